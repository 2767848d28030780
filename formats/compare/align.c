/* align.c: two caches brought to one meaning of channels. Not for the arithmetic of views
 * (formats/cache/view.c). */
#include "formats/compare/align.h"

#include <inttypes.h>

#define FIT_ROWS 256 /* rows of the sample on which guesses are tried */
#define MARGIN 10    /* a guess is taken where the error is smaller by more than this factor */
#define MIN_TILE 64  /* of the tiles that llama.cpp rotates by, which are powers of two */
#define MAX_TILE 512

/* --- views --- */

/* Takes a new view of one side into use; NULL: it could not be made. */
static int use_view(struct kvc_align *a, int side, struct kvc_cache *view, struct kvc_error *e) {
    if (!view) return kvc_error_prefix(e, a->name[side]);
    a->view[side][a->n_views[side]++] = view;
    a->cache[side] = view;
    return 0;
}

/* Goes back to the first n views of a side. */
static void drop_views(struct kvc_align *a, int side, unsigned n) {
    while (a->n_views[side] > n) kvc_cache_free(a->view[side][--a->n_views[side]]);
    a->cache[side] = n ? a->view[side][n - 1] : a->source[side];
}

/* Facts of a side as it is now: of the source, told or guessed, or of its last view. */
static struct kvc_facts facts_of(const struct kvc_align *a, int side) {
    return a->n_views[side] ? a->cache[side]->meta.facts : a->facts[side];
}

static int use_floats(struct kvc_align *a, struct kvc_error *e) {
    for (int s = 0; s < 2; s++) {
        const struct kvc_facts facts = facts_of(a, s);
        if (use_view(a, s, kvc_view_float_as(a->cache[s], &facts, e), e)) return -1;
    }
    return 0;
}

/* --- guesses --- */

/* Measures the relative error of a sample on its first rows. */
static int fit(const struct kvc_align *a, const struct kvc_align_sample *sample, double *error,
               struct kvc_error *e) {
    const struct kvc_compare_options loose = {.name = {a->name[0], a->name[1]}};
    struct kvc_difference whole = {0};
    struct kvc_run run = sample->rows->run[0];
    if (run.n > FIT_ROWS) run.n = FIT_ROWS;
    const struct kvc_matching rows = {.run = &run, .n_runs = 1, .rows = run.n};
    const int status = kvc_compare_tensor(a->cache[0], sample->tensor[0], a->cache[1],
                                          sample->tensor[1], &rows, 1, &loose, &whole, e);
    *error = whole.frobenius;
    return status;
}

/* Returns 1 where K can be permuted as it is: no blocks that share a scale, no rotation. */
static int can_permute(const struct kvc_align *a, int side) {
    const struct kvc_cache *c = a->cache[side];
    if (facts_of(a, side).tile[0]) return 0;
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (c->tensor[t].role == KVC_ROLE_K && kvc_dtype_info(c->tensor[t].shape.dtype)->block > 1)
            return 0;
    return 1;
}

static int make_permutable(struct kvc_align *a, int side, struct kvc_error *e) {
    return can_permute(a, side) ? 0 : use_floats(a, e);
}

/* Returns the side to permute: A, or B where the heads of A are not known. -1 where the heads of
 * neither are. */
static int side_to_permute(const struct kvc_align *a) {
    return !a->facts[0].heads_unknown ? 0 : !a->facts[1].heads_unknown ? 1 : -1;
}

/* Makes a view of `side` with K in the pairing of the other side, where the pairings are as
 * supposed. */
static struct kvc_cache *permuted(const struct kvc_align *a, int side,
                                  const enum kvc_pairing supposed[2], struct kvc_error *e) {
    struct kvc_facts facts = facts_of(a, side);
    facts.rope.pairing = supposed[side];
    return kvc_view_pairing_as(a->cache[side], &facts, supposed[!side], e);
}

/* The two ways in which the pairings of the sides can differ. */
static const enum kvc_pairing guesses[2][2] = {{KVC_PAIRING_HALVES, KVC_PAIRING_INTERLEAVED},
                                               {KVC_PAIRING_INTERLEAVED, KVC_PAIRING_HALVES}};

/* Tries the pairings that the caches leave open and by which the two sides differ. Where a guess
 * has an error on the sample below *best, sets *best and *found. The views stay as they were. */
static int try_pairings(struct kvc_align *a, double *best, const enum kvc_pairing **found,
                        struct kvc_error *e) {
    const enum kvc_pairing told[2] = {a->facts[0].rope.pairing, a->facts[1].rope.pairing};
    const unsigned before[2] = {a->n_views[0], a->n_views[1]};
    const int side = side_to_permute(a);
    if (side < 0) return 0;
    int status = make_permutable(a, side, e);
    for (int i = 0; !status && i < 2; i++) {
        double error;
        if ((told[0] && told[0] != guesses[i][0]) || (told[1] && told[1] != guesses[i][1]))
            continue;
        struct kvc_cache *view = permuted(a, side, guesses[i], e);
        if (!view) continue; /* these caches have no pairs to permute */
        status = use_view(a, side, view, e);
        if (!status) status = fit(a, &a->sample[0], &error, e);
        drop_views(a, side, a->n_views[side] - 1);
        if (status || !(error < *best)) continue;
        *best = error;
        *found = guesses[i];
    }
    for (int s = 0; s < 2; s++) drop_views(a, s, before[s]);
    return status;
}

/* --- Hadamard rotation --- */

/* The roles of kvc_facts.tile. */
static const enum kvc_role rotated[2] = {KVC_ROLE_K, KVC_ROLE_V};

/* Lowers *best to the error of the sample where `side` was rotated by `tile`. The facts and the
 * views stay as they were. */
static int try_tile(struct kvc_align *a, int side, int which, uint64_t tile, double *best,
                    struct kvc_error *e) {
    const struct kvc_facts before = a->facts[side];
    const enum kvc_pairing *any;
    double error;
    a->facts[side].tile[which] = tile;
    int status = use_floats(a, e);
    if (!status) status = fit(a, &a->sample[which], &error, e);
    if (!status && error < *best) *best = error;
    if (!status && !which) status = try_pairings(a, best, &any, e);
    for (int s = 0; s < 2; s++) drop_views(a, s, 0);
    a->facts[side] = before;
    return status;
}

/* Guesses the tile of K or V of `side`, which does not say it while the other side does. Only block
 * types are guessed: llama.cpp rotates these without always recording it. Tries no rotation, or
 * where the other side has none what llama.cpp does. The guess becomes a fact where its error is
 * small enough. */
static int guess_tile(struct kvc_align *a, int side, int which, struct kvc_error *e) {
    const struct kvc_align_sample *sample = &a->sample[which];
    if (!sample->rows) return 0;
    const struct kvc_shape *shape = &a->cache[side]->tensor[sample->tensor[side]].shape;
    if (kvc_dtype_info(shape->dtype)->block == 1) return 0;
    const uint64_t other = a->facts[!side].tile[which], first = other ? 0 : MIN_TILE,
                   last = other ? 0 : MAX_TILE;
    uint64_t found = other;
    double plain;
    if (fit(a, sample, &plain, e)) return -1;
    double best = plain / MARGIN;
    for (uint64_t tile = first; plain > 0 && tile <= last; tile = tile ? 2 * tile : last + 1) {
        const double before = best;
        if (tile && shape->heads * shape->dim % tile) break;
        if (try_tile(a, side, which, tile, &best, e)) return -1;
        if (best < before) found = tile;
    }
    if (found == other) return 0;
    a->facts[side].tile[which] = found;
    a->note[a->n_notes++] = (struct kvc_align_note){.kind = KVC_ALIGN_TILE_GUESSED,
                                                    .role = rotated[which],
                                                    .side = side,
                                                    .tile = {a->facts[0].tile[which],
                                                             a->facts[1].tile[which]},
                                                    .error = best,
                                                    .plain = plain};
    return 1;
}

/* Returns 1 where K or V is rotated by different tiles on the two sides, told or guessed; 0 where
 * not, or where a side does not tell and nothing fits. */
static int tiles_differ(struct kvc_align *a, int which, struct kvc_error *e) {
    int told[2];
    for (int s = 0; s < 2; s++) told[s] = a->facts[s].tile_known[which];
    if (told[0] != told[1]) return guess_tile(a, told[0], which, e);
    const uint64_t tile[2] = {a->facts[0].tile[which], a->facts[1].tile[which]};
    if (!told[0] || tile[0] == tile[1]) return 0;
    a->note[a->n_notes++] = (struct kvc_align_note){.kind = KVC_ALIGN_TILES_DIFFER,
                                                    .role = rotated[which],
                                                    .tile = {tile[0], tile[1]}};
    return 1;
}

/* Where K or V is rotated by different Hadamard tiles on the two sides: values as float32, rotated
 * back. */
static int align_rotation(struct kvc_align *a, struct kvc_error *e) {
    int any = 0;
    for (int which = 0; which < 2; which++) {
        const int differ = tiles_differ(a, which, e);
        if (differ < 0) return -1;
        any |= differ;
    }
    return any ? use_floats(a, e) : 0;
}

/* --- RoPE pairs of K --- */

/* Permutes K of `side` and notes why. */
static int permute(struct kvc_align *a, int side, struct kvc_align_note note, struct kvc_error *e) {
    if (make_permutable(a, side, e)) return -1;
    note.role = KVC_ROLE_K;
    note.side = side;
    a->note[a->n_notes++] = note;
    return use_view(a, side, permuted(a, side, note.pairing, e), e);
}

/* Guesses pairings where not both sides say how their K is paired. A guess is taken where its error
 * is small enough. */
static int guess_pairing(struct kvc_align *a, const enum kvc_pairing told[2], struct kvc_error *e) {
    const enum kvc_pairing *found = NULL;
    double plain;
    if (fit(a, &a->sample[0], &plain, e)) return -1;
    double best = plain / MARGIN;
    if (plain > 0 && try_pairings(a, &best, &found, e)) return -1;
    if (!found) return 0;
    return permute(a, side_to_permute(a),
                   (struct kvc_align_note){.kind = KVC_ALIGN_PAIRING_GUESSED,
                                           .told = {told[0], told[1]},
                                           .pairing = {found[0], found[1]},
                                           .error = best,
                                           .plain = plain},
                   e);
}

static int align_pairing(struct kvc_align *a, struct kvc_error *e) {
    const enum kvc_pairing told[2] = {a->facts[0].rope.pairing, a->facts[1].rope.pairing};
    if (!a->sample[0].rows || told[0] == KVC_PAIRING_NONE || told[1] == KVC_PAIRING_NONE) return 0;
    if (!told[0] || !told[1]) return guess_pairing(a, told, e);
    if (told[0] == told[1]) return 0;
    const int side = side_to_permute(a);
    if (side < 0)
        return kvc_fail_need(
            e, KVC_ERR_USAGE, KVC_NEED_HEADS,
            "RoPE pairs of K are %s in A, %s in B, and neither file says how many KV heads it has",
            kvc_pairing_name(told[0]), kvc_pairing_name(told[1]));
    return permute(a, side,
                   (struct kvc_align_note){.kind = KVC_ALIGN_PAIRINGS_DIFFER,
                                           .told = {told[0], told[1]},
                                           .pairing = {told[0], told[1]}},
                   e);
}

int kvc_align_caches(struct kvc_align *a, struct kvc_error *e) {
    a->n_notes = 0;
    for (int s = 0; s < 2; s++) {
        a->source[s] = a->cache[s];
        a->n_views[s] = 0;
        a->facts[s] = a->cache[s]->meta.facts;
    }
    if (align_rotation(a, e) || align_pairing(a, e)) return -1;
    return 0;
}

void kvc_align_free(struct kvc_align *a) {
    for (int s = 0; s < 2; s++)
        if (a->source[s]) drop_views(a, s, 0);
}
