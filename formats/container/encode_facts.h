/* encode_facts.h: the state of encoding one tensor, and the facts that its stages may ask for. Not
 * for encoding (encode.h), whose users need only struct kvc_encode of this file. */
#ifndef KVC_ENCODE_FACTS_H
#define KVC_ENCODE_FACTS_H

#include "codecs/shared.h"
#include "formats/cache/facts.h"
#include "formats/container/container.h"
#include "formats/container/inputs.h"
#include "formats/container/offsets.h"
#include "formats/container/plan.h"
#include "formats/model/predict_source.h"
#include "formats/model/profile.h"
#include "formats/model/rebuild_source.h"

/* The inputs that all runs of one cache share. Several threads read them. */
struct kvc_encode {
    const struct kvc_cache *cache;
    struct kvc_facts facts; /* of the cache */
    const struct kvc_plan *plan;
    /* with the queries that stages ask for, if a stage looks */
    const struct kvc_pack_options *options;
    struct kvc_shared *shared; /* by layer */
    struct kvc_projections *projections;
    /* by tensor, how the engine rotated its rows; half 0: it did not, or nothing is known */
    const struct kvc_rope_facts *turn;
    struct kvc_loop *loop; /* inputs of predictions from lossy tensors; NULL: there are none */
};

/* What stages may ask about the tensor. Filled by encode_facts.c. */
struct kvc_coder_facts {
    struct kvc_encoding encoding;
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

/* The rows of the block that is encoded. Filled by encode_rows.c. */
struct kvc_coder_rows {
    uint8_t *rows, *own, *other; /* all; those to be coded; the partner's */
    uint64_t row[KVC_BLOCK], other_row[KVC_BLOCK];
    struct kvc_same from[KVC_BLOCK];
    /* by block from first_block on; NULL, or entries of NULL: blocks that are read again */
    struct kvc_kept_block **kept;
};

/* The state of encoding a run of blocks of one tensor, with its buffers. */
struct kvc_tensor_coder {
    const struct kvc_encode *x;
    uint32_t tensor;
    uint64_t row_bytes;
    uint64_t first_block, end_block;
    const struct kvc_pipeline *pipeline;
    struct kvc_encoder encoder;
    struct kvc_coder_facts facts;
    struct kvc_coder_rows read;
    struct kvc_sections list;
    uint8_t *decoded; /* the block, decoded again */
    /* 1 + number of the block in `decoded`, for coders that ask for it; 0: none */
    uint64_t have;
    /* A block that is encoded and waits for the next one, so that both are decoded at once. NULL:
     * there is no room for one yet. */
    struct {
        uint8_t *rows, *decoded;
        struct kvc_sections list;
    } waiting;
    struct kvc_tensor_coder *origin; /* of a lossy tensor whose rows this one repeats, or NULL */
    /* of the lossy hidden states that rows are rebuilt from, or NULL */
    struct kvc_tensor_coder *hidden;
};

static inline const struct kvc_cells *kvc_coder_cells(const struct kvc_cache *c, uint32_t tensor) {
    return &kvc_tensor_part(c, tensor)->cells;
}

static inline const struct kvc_pipeline *kvc_coder_pipeline(const struct kvc_encode *x,
                                                            uint32_t tensor) {
    return kvc_plan_pipeline(x->plan, tensor);
}

static inline int kvc_coder_looks(const struct kvc_pipeline *p) {
    return kvc_pipeline_first(p, KVC_STAGE_LOOKS) < p->n;
}

/* Fills r->facts for blocks [r->first_block, r->end_block). `read_hidden` gets r as its owner. */
int kvc_coder_describe(struct kvc_tensor_coder *r, kvc_rows_fn *read_hidden, struct kvc_error *e);
void kvc_coder_facts_free(struct kvc_coder_facts *facts);

/* Returns how the engine rotated the rows of the coder's tensor; NULL: it did not. */
static inline const struct kvc_rope_facts *kvc_coder_turn(const struct kvc_tensor_coder *r) {
    return r->x->turn[r->tensor].half ? &r->x->turn[r->tensor] : NULL;
}

#endif
