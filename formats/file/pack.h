/* pack.h: packs a cache into a container by a caller's options: recipe, profile, queries,
 * dequantisation, companions, a target for the step. The one way to pack, for users of libkvc and
 * the tools. Not for coding (container/) or for messages about the result (cli/pack_say.c). */
#ifndef KVC_PACK_H
#define KVC_PACK_H

#include "formats/container/container.h"
#include "formats/file/rate.h"

/* Events that a caller may want to report. */
enum kvc_pack_note {
    /* K or V are dequantised, and it is unknown whether they are Hadamard-rotated */
    KVC_PACK_ROTATION_UNKNOWN,
    /* the RoPE pairing of K is unknown; the one that fits the profile is used */
    KVC_PACK_PAIRING_CHOSEN,
    KVC_PACK_PROFILE_UNUSED, /* no stage of the recipe uses the profile */
    KVC_PACK_ROWS,           /* always: for the look of rows.h at the cache that is packed */
    KVC_PACK_OTHER_QUERIES,  /* the queries belong to other tokens than the cache */
    KVC_PACK_ESTIMATED,      /* the recipe asks for queries, and they were estimated (queries.h) */
    KVC_PACK_NOT_ESTIMATED,  /* they could not be: kvc_packed says why */
    KVC_PACK_NO_BASE,        /* no row is as the base has it */
    KVC_PACK_AS_BASE,        /* rows are in the order of tensors, dtype and pairing of the base */
    KVC_PACK_TWICE           /* the values had gone through a lossy recipe before this one */
};

/* How to pack. All zero: losslessly, by the default recipe. */
struct kvc_packing {
    /* queries: of any cache that has some; fit and keys are set here */
    struct kvc_pack_options options;
    /* Weights with which queries are estimated where options.queries and the cache have none, and
     * the recipe or the target asks for them: open, or their path; NULL: none. */
    const struct kvc_weights *weights;
    const char *model;
    /* the container out of which the first rows of the cache came, for its recipe and profile;
     * NULL: none */
    const struct kvc_cache *base;
    struct kvc_rate rate; /* a target for the step; its row_bytes are ignored */
    /* use the profile even if the values of the cache do not fit it */
    int force_profile;
    int dequantize; /* convert K and V of block types to f16 first */
    /* leave out queries and hidden states; stages still use them */
    int no_companions;

    /* Callbacks; each may be NULL. They get the cache as it is coded. check() is called before
     * anything is written; it returns -1 with *e to stop. coded() is called at the end, with the
     * recipe and its settled step. */
    void (*note)(void *state, enum kvc_pack_note note, const struct kvc_cache *c);
    int (*check)(void *state, const struct kvc_cache *c, struct kvc_error *e);
    void (*coded)(void *state, const struct kvc_cache *c, const struct kvc_recipe *recipe);
    void *state;
};

/* The result. */
struct kvc_packed {
    struct kvc_pack_report report;
    struct kvc_rate_report rated;
    struct kvc_fit fit;   /* of the profile and the cache, if `fitted` */
    int fitted;           /* the recipe uses the profile */
    int dequantized;      /* some K or V was dequantised */
    struct kvc_error why; /* with KVC_PACK_NOT_ESTIMATED */
    /* of tensors of attention: rows that stay as the base has them, and all */
    uint64_t base_rows, all_rows;
    int left_out; /* the cache has companions, and they were left out */
    /* of all rows in the source's types, without companions that were left out: ratios are of them;
     * of one row of all tensors of the first part, likewise */
    uint64_t row_bytes, first_row_bytes;
};

/* Packs a cache. What the profile tells of the cache is written with the copy that is packed; `c`
 * stays as it is, so that several threads may pack it at once. Messages do not name the file. *done
 * must be freed by kvc_packed_free(), after a failure as well. */
int kvc_pack_cache(const struct kvc_cache *c, const struct kvc_packing *p, struct kvc_sink *out,
                   struct kvc_packed *done, struct kvc_error *e);
void kvc_packed_free(struct kvc_packed *done);

#endif
