/* coder.h: the state of encoding a run of blocks of one tensor, for the three files that fill it:
 * encode.c, encode_rows.c (the blocks that stages take) and encode_facts.c (what stages may ask
 * about the tensor). */
#ifndef KVC_CODER_H
#define KVC_CODER_H

#include "codecs/shared.h"
#include "formats/container/container.h"
#include "formats/container/inputs.h"
#include "formats/container/offsets.h"
#include "formats/container/plan.h"
#include "formats/container/same.h"
#include "formats/model/predict_source.h"
#include "formats/model/rebuild_source.h"

/* The inputs that all runs of one cache share. Several threads read them. */
struct kvc_encode {
    const struct kvc_cache *cache;
    const struct kvc_plan *plan;
    struct kvc_repeats repeats;
    /* with the queries that stages ask for, if a stage looks */
    const struct kvc_pack_options *options;
    /* by layer; freed once the runs of the layer are written, so for no coder of another layer */
    struct kvc_shared *shared;
    struct kvc_projections *projections;
    /* by tensor, how the engine rotated its rows; half 0: it did not, or nothing is known */
    const struct kvc_rope_facts *turn;
    struct kvc_loop *loop; /* inputs of predictions from lossy tensors; NULL: there are none */
    const struct kvc_base *base; /* settled; NULL: none */
};

/* What stages may ask about the tensor. */
struct kvc_coder_facts {
    struct kvc_encoding encoding;
    struct kvc_shared shared; /* of a coder of another layer */
    int has_shared;
    int64_t *position; /* owned; NULL: the cells' own */
    float *query;
    int64_t *query_position;
    const struct kvc_profile_part *profile; /* of the tensor, or NULL */
    float *profile_query;
    struct kvc_rebuilder rebuilder;
    struct kvc_rebuild_source source;
    struct kvc_predict_source predict;
    struct kvc_predict_memo predicted;
    struct kvc_ahead_source ahead;
};

struct kvc_kept_block;

/* The rows of a block on their way to the stages. */
struct kvc_coder_rows {
    uint8_t *own, *other; /* those to be coded; the partner's */
    uint64_t row[KVC_BLOCK], other_row[KVC_BLOCK];
    /* by block from first_block on; NULL, or entries of NULL: blocks that are read again */
    struct kvc_kept_block **kept;
};

/* A block that is encoded. */
struct kvc_coded_block {
    uint64_t number, n, own; /* its rows; those that are coded and refer to no other rows */
    struct kvc_same from[KVC_BLOCK];
    struct kvc_sections list;  /* of the container, then of the stages */
    size_t container_sections; /* of the container */
    uint8_t *rows, *decoded;   /* all rows; the coded ones, decoded again */
};

/* Other tensors on whose decoded values a block depends, which are encoded again for it. A store of
 * all that was encoded would not do: hidden states come after the tensors that are rebuilt from
 * them, and rows of a snapshot repeat rows anywhere in the live cache. */
enum kvc_other_coder {
    KVC_OTHER_FIRST,  /* the first tensor of the pair, its second one's */
    KVC_OTHER_HIDDEN, /* lossy hidden states that rows are rebuilt from */
    KVC_OTHER_ORIGIN, /* a lossy tensor whose rows this one repeats */
    KVC_OTHER_CODERS
};

struct kvc_tensor_coder {
    const struct kvc_encode *x;
    uint32_t tensor;
    int apart; /* made for a run of another layer */
    uint64_t row_bytes;
    uint64_t first_block, end_block;
    const struct kvc_pipeline *pipeline;
    struct kvc_encoder encoder;
    struct kvc_coder_facts facts;
    struct kvc_coder_rows read;
    /* The block that is encoded, and another one, which waits so that both are decoded at once. The
     * latter has no rows before there is reason to wait. */
    struct kvc_coded_block block[2], *now, *waiting;
    /* 1 + number of the block of which now->decoded holds the rows, for coders that ask for it; 0:
     * none */
    uint64_t have;
    struct kvc_tensor_coder *other[KVC_OTHER_CODERS]; /* NULL: not needed so far */
};

static inline const struct kvc_pipeline *kvc_coder_pipeline(const struct kvc_encode *x,
                                                            uint32_t tensor) {
    return kvc_plan_pipeline(x->plan, tensor);
}

static inline int kvc_coder_looks(const struct kvc_pipeline *p) {
    return kvc_pipeline_has(p, KVC_STAGE_LOOKS);
}

/* --- encode_facts.c --- */

/* Fills r->facts for blocks [r->first_block, r->end_block). `read_hidden` gets r as its owner. */
int kvc_coder_describe(struct kvc_tensor_coder *r, kvc_rows_fn *read_hidden, struct kvc_error *e);
void kvc_coder_facts_free(struct kvc_coder_facts *facts);

/* --- encode_rows.c --- */

/* Reads block `number`: all rows into r->now->rows, rows that repeat no earlier row into *block,
 * the partner's rows into *partner. */
int kvc_coder_load(struct kvc_tensor_coder *r, uint64_t number, struct kvc_block *block,
                   struct kvc_block *partner, struct kvc_error *e);
/* Makes room for the blocks that a coder may keep: none where no stage runs before a look, and none
 * of a pair. */
int kvc_coder_keeps(struct kvc_tensor_coder *r, struct kvc_error *e);
/* Returns block `number` for a stage to look at: the one that is kept, or *block; NULL after a
 * failure. *own: its rows before the first stage. */
struct kvc_block *kvc_coder_look_at(struct kvc_tensor_coder *r, uint64_t number,
                                    struct kvc_block *block, struct kvc_block *partner,
                                    uint64_t *own, struct kvc_error *e);
/* Encodes block `number` into *r->now. A block that was kept is not kept any longer. */
int kvc_coder_sections(struct kvc_tensor_coder *r, uint64_t number, struct kvc_error *e);
/* Frees the blocks that are kept, and their room. */
void kvc_coder_drop(struct kvc_tensor_coder *r);

/* Returns how the engine rotated the rows of the coder's tensor; NULL: it did not. */
static inline const struct kvc_rope_facts *kvc_coder_turn(const struct kvc_tensor_coder *r) {
    return r->x->turn[r->tensor].half ? &r->x->turn[r->tensor] : NULL;
}

#endif
