/* diff_align.c: bringing two caches to the same meaning of channels: Hadamard rotation and RoPE pairs of K.
 * What a file does not say is guessed from the values. Not for the arithmetic (formats/cache/view.c). */
#include "cli/diff/diff.h"
#include "formats/cache/keys.h"
#include "formats/cache/view.h"

#include <inttypes.h>

#define FIT_ROWS 256 /* rows of one layer on which guesses are tried */

/* --- views --- */

/* Takes a new view of one side into use; NULL: making it failed. */
static int use_view(struct diff *d, int side, struct kvc_cache *view, struct kvc_error *e) {
    if (!view) return kvc_error_prefix(e, d->compare.name[side]);
    d->view[side][d->n_views[side]++] = view;
    d->cache[side] = view;
    return 0;
}

void diff_drop_views(struct diff *d, int side, unsigned n) {
    while (d->n_views[side] > n) kvc_cache_free(d->view[side][--d->n_views[side]]);
    d->cache[side] = n ? d->view[side][n - 1] : d->file[side].cache;
}

static int use_floats(struct diff *d, struct kvc_error *e) {
    for (int s = 0; s < 2; s++)
        if (use_view(d, s, kvc_view_float(d->cache[s], e), e)) return -1;
    return 0;
}

/* --- guesses --- */

/* The first tensors of a role whose values both sides have: what guesses are measured on. */
static const struct diff_tensors *first_common(const struct diff *d, enum kvc_role role) {
    for (size_t i = 0; i < d->n_tensors; i++) {
        const struct diff_tensors *pair = &d->tensor[i];
        if (pair->role == role && pair->heads && pair->parts->rows.rows) return pair;
    }
    return NULL;
}

/* The relative error of a pair of tensors on its first rows. */
static int fit(const struct diff *d, const struct diff_tensors *pair, double *error, struct kvc_error *e) {
    const struct kvc_compare_options loose = {.name = {d->compare.name[0], d->compare.name[1]}};
    struct kvc_difference whole = {0};
    struct kvc_run run = pair->parts->rows.run[0];
    if (run.n > FIT_ROWS) run.n = FIT_ROWS;
    const struct kvc_matching rows = {.run = &run, .n_runs = 1, .rows = run.n};
    int status = kvc_compare_tensor(d->cache[0], pair->tensor[0], d->cache[1], pair->tensor[1], &rows, 1,
                                    &loose, &whole, e);
    *error = whole.frobenius;
    return status;
}

/* Permuting takes K whose channels stand for themselves: no blocks that share a scale, no rotation. */
static int can_permute(const struct kvc_cache *c) {
    if (kvc_meta_u64(&c->meta, KVC_KEY_HADAMARD_K, 0)) return 0;
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (c->tensor[t].role == KVC_ROLE_K && kvc_dtype_info(c->tensor[t].shape.dtype)->block > 1) return 0;
    return 1;
}

static int make_permutable(struct diff *d, int side, struct kvc_error *e) {
    return can_permute(d->cache[side]) ? 0 : use_floats(d, e);
}

/* The side to permute: A, unless its heads are not known. -1 when neither side's are. */
static int side_to_permute(const struct diff *d) {
    return kvc_cache_heads_known(d->cache[0]) ? 0 : kvc_cache_heads_known(d->cache[1]) ? 1 : -1;
}

/* K of `side` as it is in the other side's pairing, supposing the pairings given; NULL with *e filled. */
static struct kvc_cache *permuted(const struct diff *d, int side, const enum kvc_pairing supposed[2],
                                  struct kvc_error *e) {
    struct kvc_cache *c = d->cache[side];
    if (kvc_cache_pairing(c) == supposed[side]) return kvc_view_pairing(c, supposed[!side], e);
    if (kvc_meta_set_text(&c->meta, KVC_KEY_ROPE_PAIRING, kvc_pairing_name(supposed[side]), e)) return NULL;
    struct kvc_cache *view = kvc_view_pairing(c, supposed[!side], e);
    kvc_meta_remove(&c->meta, KVC_KEY_ROPE_PAIRING);
    return view;
}

/* Tries the pairings that the files leave open and by which the two sides differ. Where one has an error on
 * tensors k below *best, sets *best and *found. Leaves the views as they were. */
static int try_pairings(struct diff *d, const struct diff_tensors *k, double *best,
                        const enum kvc_pairing **found, struct kvc_error *e) {
    static const enum kvc_pairing guesses[2][2] = {{KVC_PAIRING_HALVES, KVC_PAIRING_INTERLEAVED},
                                                   {KVC_PAIRING_INTERLEAVED, KVC_PAIRING_HALVES}};
    const enum kvc_pairing known[2] = {kvc_cache_pairing(d->cache[0]), kvc_cache_pairing(d->cache[1])};
    const unsigned before[2] = {d->n_views[0], d->n_views[1]};
    int side = side_to_permute(d);
    if (side < 0) return 0;
    int status = make_permutable(d, side, e);
    for (int i = 0; !status && i < 2; i++) {
        double error;
        if ((known[0] && known[0] != guesses[i][0]) || (known[1] && known[1] != guesses[i][1])) continue;
        struct kvc_cache *view = permuted(d, side, guesses[i], e);
        if (!view) continue; /* these caches have no pairs to permute */
        status = use_view(d, side, view, e) || fit(d, k, &error, e) ? -1 : 0;
        diff_drop_views(d, side, d->n_views[side] - 1);
        if (status || !(error < *best)) continue;
        *best = error;
        *found = guesses[i];
    }
    for (int s = 0; s < 2; s++) diff_drop_views(d, s, before[s]);
    return status;
}

/* --- Hadamard rotation --- */

static const struct rotated {
    const char *key;
    enum kvc_role role;
} rotated[] = {{KVC_KEY_HADAMARD_K, KVC_ROLE_K}, {KVC_KEY_HADAMARD_V, KVC_ROLE_V}};

/* Lowers *best to the error of a pair of tensors when `side` was rotated by `tile`. Nothing stays of it. */
static int try_tile(struct diff *d, int side, const struct rotated *what, const struct diff_tensors *pair,
                    uint64_t tile, double *best, struct kvc_error *e) {
    struct kvc_meta *meta = &d->cache[side]->meta;
    const enum kvc_pairing *any;
    double error;
    int status =
        kvc_meta_set_u64(meta, what->key, tile, e) || use_floats(d, e) || fit(d, pair, &error, e) ? -1 : 0;
    if (!status && error < *best) *best = error;
    if (!status && what->role == KVC_ROLE_K) status = try_pairings(d, pair, best, &any, e);
    for (int s = 0; s < 2; s++) diff_drop_views(d, s, 0);
    kvc_meta_remove(meta, what->key);
    return status;
}

/* Where only the other side says by which Hadamard tile K or V is rotated, and `side` holds it in a block
 * type, which llama.cpp rotates without always recording it: tries what llama.cpp does (a power of two from
 * 64 on), or no rotation, on the first tensors in common. Takes it into the metadata when the error falls
 * below a tenth. */
static int guess_tile(struct diff *d, int side, const struct rotated *what, struct kvc_error *e) {
    const struct diff_tensors *pair = first_common(d, what->role);
    if (!pair) return 0;
    const struct kvc_shape *shape = &d->cache[side]->tensor[pair->tensor[side]].shape;
    if (kvc_dtype_info(shape->dtype)->block == 1) return 0;
    struct kvc_meta *meta = &d->cache[side]->meta;
    uint64_t other = kvc_meta_u64(&d->cache[!side]->meta, what->key, 0), found = other;
    uint64_t first = other ? 0 : 64, last = other ? 0 : 512;
    double same, best;
    if (fit(d, pair, &same, e)) return -1;
    best = same / 10;
    for (uint64_t tile = first; same > 0 && tile <= last; tile = tile ? 2 * tile : last + 1) {
        double before = best;
        if (tile && shape->heads * shape->dim % tile) break;
        if (try_tile(d, side, what, pair, tile, &best, e)) return -1;
        if (best < before) found = tile;
    }
    if (found == other) return 0;
    const char *name = kvc_role_name(what->role);
    if (!d->quiet)
        cli_warn("%s does not say whether its %s is Hadamard-rotated: by tiles of %" PRIu64 " (0: not) the "
                 "relative error of the first %s is %.3g, else %.3g: compared rotated back",
                 diff_side[side], name, found, name, best, same);
    return kvc_meta_set_u64(meta, what->key, found, e);
}

/* Where K or V is rotated by different Hadamard tiles on the two sides: values as float32, rotated back. */
static int align_rotation(struct diff *d, struct kvc_error *e) {
    int differ = 0;
    for (int i = 0; i < 2; i++) {
        const char *key = rotated[i].key;
        int known[2];
        uint64_t tile[2];
        for (int s = 0; s < 2; s++) known[s] = kvc_meta_find(&d->cache[s]->meta, key) != NULL;
        if (!known[0] && !known[1]) continue;
        if (known[0] != known[1] && guess_tile(d, known[0], &rotated[i], e)) return -1;
        for (int s = 0; s < 2; s++) tile[s] = kvc_meta_u64(&d->cache[s]->meta, key, UINT64_MAX);
        if (tile[0] == tile[1] || tile[0] == UINT64_MAX || tile[1] == UINT64_MAX) continue;
        if (known[0] && known[1] && !d->quiet)
            cli_warn("Hadamard tiles of %s: %" PRIu64 " in A, %" PRIu64 " in B (0: none): rotated back",
                     kvc_role_name(rotated[i].role), tile[0], tile[1]);
        differ = 1;
    }
    return differ ? use_floats(d, e) : 0;
}

/* --- RoPE pairs of K --- */

/* Where a side does not say how its K is paired, or neither does, the other pairing is taken when the error
 * falls below a tenth. */
static int guess_pairing(struct diff *d, const struct diff_tensors *k, const enum kvc_pairing known[2],
                         struct kvc_error *e) {
    const enum kvc_pairing *found = NULL;
    double same, best;
    if (fit(d, k, &same, e)) return -1;
    best = same / 10;
    if (same > 0 && try_pairings(d, k, &best, &found, e)) return -1;
    if (!found) return 0;
    int side = side_to_permute(d);
    if (make_permutable(d, side, e)) return -1;
    const char *who = known[0] ? "B does not say" : known[1] ? "A does not say" : "A and B do not say";
    if (!d->quiet)
        cli_warn("%s how RoPE pairs the channels of K: as %s in A and %s in B the relative error of the "
                 "first K is %.3g, alike %.3g: aligned %s to %s (--pairing=P,Q settles it)",
                 who, kvc_pairing_name(found[0]), kvc_pairing_name(found[1]), best, same, diff_side[side],
                 diff_side[!side]);
    return use_view(d, side, permuted(d, side, found, e), e);
}

static int align_pairing(struct diff *d, struct kvc_error *e) {
    const enum kvc_pairing known[2] = {kvc_cache_pairing(d->cache[0]), kvc_cache_pairing(d->cache[1])};
    const struct diff_tensors *k = first_common(d, KVC_ROLE_K);
    int side = side_to_permute(d);
    if (!k || known[0] == KVC_PAIRING_NONE || known[1] == KVC_PAIRING_NONE) return 0;
    if (!known[0] || !known[1]) return guess_pairing(d, k, known, e);
    if (known[0] == known[1]) return 0;
    if (side < 0)
        return kvc_fail(
            e, KVC_ERR_USAGE,
            "RoPE pairs of K are %s in A, %s in B, and neither file says how many KV heads it has: "
            "give --kv-heads or --model",
            kvc_pairing_name(known[0]), kvc_pairing_name(known[1]));
    if (make_permutable(d, side, e)) return -1;
    if (!d->quiet)
        cli_warn("RoPE pairs of K: %s in A, %s in B: aligned %s to %s", kvc_pairing_name(known[0]),
                 kvc_pairing_name(known[1]), diff_side[side], diff_side[!side]);
    return use_view(d, side, permuted(d, side, known, e), e);
}

int diff_align(struct diff *d, struct kvc_error *e) {
    return align_rotation(d, e) || align_pairing(d, e) ? -1 : 0;
}
