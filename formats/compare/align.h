/* align.h: two caches brought to one meaning of channels, so that their values can be compared:
 * Hadamard rotation of K and V, RoPE pairs of K. Facts that a cache does not tell are guessed from
 * the values. Not for comparing (compare.h), for rotating and permuting (formats/cache/view.h), or
 * for saying what was done (cli/diff). */
#ifndef KVC_ALIGN_H
#define KVC_ALIGN_H

#include "formats/cache/view.h"
#include "formats/compare/compare.h"

/* Tensors of one role, one of each cache, on whose first rows guesses are measured. */
struct kvc_align_sample {
    uint32_t tensor[2];
    /* NULL: the caches have no such tensors, and nothing is guessed */
    const struct kvc_matching *rows;
};

/* What was done, and on what grounds. */
enum kvc_align_kind {
    KVC_ALIGN_TILE_GUESSED,    /* cache `side` does not say its tile */
    KVC_ALIGN_TILES_DIFFER,    /* both caches say their tiles */
    KVC_ALIGN_PAIRING_GUESSED, /* not both caches say their pairing; K of `side` was permuted */
    KVC_ALIGN_PAIRINGS_DIFFER  /* both say their pairing; K of `side` was permuted */
};
struct kvc_align_note {
    enum kvc_align_kind kind;
    enum kvc_role role; /* K or V */
    int side;
    uint64_t tile[2];            /* of both caches, guessed or told; 0: not rotated */
    enum kvc_pairing told[2];    /* by the caches */
    enum kvc_pairing pairing[2]; /* guessed or told */
    /* guesses: relative error of the sample with the guess, and without */
    double error, plain;
};

struct kvc_align {
    /* before: the two caches; after: what to compare, with the same numbers of tensors */
    const struct kvc_cache *cache[2];
    const char *name[2];               /* of the two caches' files, for messages */
    struct kvc_align_sample sample[2]; /* of K and of V */
    struct kvc_align_note note[3];     /* found, also where kvc_align_caches() fails later */
    unsigned n_notes;

    /* Its own. */
    const struct kvc_cache *source[2];
    struct kvc_cache *view[2][2]; /* float32, K in another pairing; each a view of the one before */
    unsigned n_views[2];
    struct kvc_facts facts[2]; /* of the sources, told or guessed */
};

/* Aligns a->cache, in views that live until kvc_align_free(), which is called on failure too.
 * Neither cache nor its metadata change. KVC_ERR_USAGE: K is paired in two ways, and the number of
 * heads is unknown. */
int kvc_align_caches(struct kvc_align *a, struct kvc_error *e);
void kvc_align_free(struct kvc_align *a);

#endif
