/* comparing.c: the steps of a comparison, but for facts (facts_differ.c). Not for measuring
 * (compare.c, attention.c). */
#include "formats/compare/comparing.h"

#include "codecs/number.h"
#include "formats/api/sized.h"
#include "formats/cache/view.h"
#include "formats/compare/head_sample.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct kvc_tensor_pair *pair_of(const struct kvc_comparing *c,
                                             const struct kvc_compared *t) {
    return &c->pairs.tensor[t->number];
}

int kvc_comparing_begin(struct kvc_comparing *c, struct kvc_error *e) {
    if (kvc_pairs_find(&c->pairs, e)) return -1;
    for (int s = 0; s < 2; s++) c->align.cache[s] = c->pairs.cache[s];
    switch (kvc_pairs_reach(&c->pairs)) {
    case KVC_PAIRS_NO_LAYERS:
        return kvc_fail_need(e, KVC_ERR_USAGE, KVC_NEED_LAYERS,
                             "neither cache has any of these layers");
    case KVC_PAIRS_NO_POSITIONS:
        return kvc_fail_need(e, KVC_ERR_USAGE, KVC_NEED_POSITIONS,
                             "neither cache has any of these positions");
    default: return 0;
    }
}

void kvc_comparing_free(struct kvc_comparing *c) {
    if (!c) return;
    kvc_cache_free(c->estimated);
    kvc_align_free(&c->align);
    kvc_attended_free(&c->attended);
    kvc_pairs_free(&c->pairs);
    kvc_groups_free(&c->groups);
    free(c);
}

const struct kvc_compared *kvc_comparing_pair(const struct kvc_comparing *c, size_t i) {
    return i < c->pairs.n_tensors ? &c->pairs.tensor[i].shown : NULL;
}

/* --- names --- */

void kvc_compared_part(const struct kvc_compared *t, char *text, size_t size) {
    char snapshot[16] = "", stream[24] = "";
    if (strcmp(t->part, "snapshot") == 0)
        snprintf(snapshot, sizeof snapshot, " %" PRIu32, t->snapshot);
    if (t->stream) snprintf(stream, sizeof stream, " stream %" PRIu32, t->stream);
    snprintf(text, size, "%s%s%s", t->part, snapshot, stream);
}

void kvc_compared_label(const struct kvc_compared *first, const struct kvc_compared *last,
                        char *text, size_t size) {
    char where[64] = "", layers[32];
    if (strcmp(first->part, "live") != 0 || first->stream)
        kvc_compared_part(first, where, sizeof where);
    if (first->layer == last->layer)
        snprintf(layers, sizeof layers, "layer %" PRIu32, first->layer);
    else snprintf(layers, sizeof layers, "layers %" PRIu32 "-%" PRIu32, first->layer, last->layer);
    snprintf(text, size, "%s%s%s %s", where, *where ? " " : "", layers, first->role);
}

/* --- aligning --- */

static const char *const side_name[2] = {"A", "B"};

/* Writes what a note says. */
static void note_text(const struct kvc_align_note *n, char *text, size_t size) {
    const char *role = kvc_role_name(n->role), *from = side_name[n->side],
               *to = side_name[!n->side];
    const char *who = n->told[0]   ? "B does not say"
                      : n->told[1] ? "A does not say"
                                   : "A and B do not say";
    char error[32], plain[32];
    kvc_number_print(error, sizeof error, 3, n->error);
    kvc_number_print(plain, sizeof plain, 3, n->plain);
    switch (n->kind) {
    case KVC_ALIGN_TILE_GUESSED:
        snprintf(text, size,
                 "%s does not say whether its %s is Hadamard-rotated: with tiles of %" PRIu64
                 " (0: none) the "
                 "relative error of the first %s is %s, as stored %s: compared rotated back",
                 from, role, n->tile[n->side], role, error, plain);
        break;
    case KVC_ALIGN_TILES_DIFFER:
        snprintf(text, size,
                 "Hadamard tiles of %s: %" PRIu64 " in A, %" PRIu64 " in B (0: none): rotated back",
                 role, n->tile[0], n->tile[1]);
        break;
    case KVC_ALIGN_PAIRING_GUESSED:
        snprintf(
            text, size,
            "%s how RoPE pairs the channels of K: as %s in A and %s in B the relative error of the "
            "first K is %s, as stored %s: aligned %s to %s",
            who, kvc_pairing_name(n->pairing[0]), kvc_pairing_name(n->pairing[1]), error, plain,
            from, to);
        break;
    case KVC_ALIGN_PAIRINGS_DIFFER:
        snprintf(text, size, "RoPE pairs of K: %s in A, %s in B: aligned %s to %s",
                 kvc_pairing_name(n->pairing[0]), kvc_pairing_name(n->pairing[1]), from, to);
        break;
    }
}

int kvc_comparing_align(struct kvc_comparing *c,
                        void (*note)(void *state, const char *text, int guessed), void *state,
                        struct kvc_error *e) {
    if (KVC_NULL(e, c)) return -1;
    struct kvc_align *a = &c->align;
    for (int s = 0; s < 2; s++) a->name[s] = c->options.name[s];
    a->sample[0] = kvc_pairs_sample(&c->pairs, KVC_ROLE_K);
    a->sample[1] = kvc_pairs_sample(&c->pairs, KVC_ROLE_V);
    const int status = kvc_align_caches(a, e);
    for (unsigned i = 0; i < a->n_notes && note; i++) {
        char text[512];
        note_text(&a->note[i], text, sizeof text);
        note(state, text, a->note[i].kind == KVC_ALIGN_PAIRING_GUESSED);
    }
    c->groups.cache = a->cache[0];
    return status;
}

/* --- values --- */

/* Refuses a pair without values, and a comparison that was not aligned. */
static int check_values(const struct kvc_comparing *c, const struct kvc_compared *t,
                        struct kvc_error *e) {
    if (!c->groups.cache) return kvc_fail(e, KVC_ERR_USAGE, "caches are compared unaligned");
    if (t->heads && t->rows) return 0;
    return kvc_fail(e, KVC_ERR_USAGE, "layer %" PRIu32 " %s: no values that can be compared",
                    t->layer, t->role);
}

static struct kvc_difference *compare_pair(struct kvc_comparing *c,
                                           const struct kvc_tensor_pair *pair,
                                           struct kvc_difference *all, struct kvc_error *e) {
    if (c->groups.by && kvc_groups_before(&c->groups, pair, &c->options, e)) return NULL;
    struct kvc_difference *head = kvc_pairs_compare(c->align.cache, pair, &c->options, all, e);
    if (!head || !c->groups.by || !kvc_groups_after(&c->groups, pair, head, all, e)) return head;
    free(head);
    return NULL;
}

struct kvc_difference *kvc_comparing_tensor(struct kvc_comparing *c,
                                            const struct kvc_compared *pair,
                                            struct kvc_difference *all, struct kvc_error_sums *sums,
                                            struct kvc_error *e) {
    struct kvc_error_sums own = {.size = sizeof own};
    if (KVC_NULL(e, c, pair, all)) return NULL;
    if (sums && kvc_sized_give(sums, &own, sizeof own, "kvc_error_sums", e)) return NULL;
    if (check_values(c, pair, e)) return NULL;
    if (sums && kvc_error_sums_start(&own, pair->rows, pair->channels, e)) return NULL;
    c->options.sums = sums ? &own : NULL;
    struct kvc_difference *head = compare_pair(c, pair_of(c, pair), all, e);
    if (head && sums) kvc_sized_give(sums, &own, sizeof own, "kvc_error_sums", NULL);
    else kvc_error_sums_free(&own);
    return head;
}

int kvc_comparing_groups_end(struct kvc_comparing *c, struct kvc_error *e) {
    if (KVC_NULL(e, c)) return -1;
    return c->groups.by ? kvc_groups_end(&c->groups, e) : 0;
}

int kvc_comparing_positions(const struct kvc_comparing *c, const struct kvc_compared *pair,
                            int64_t *position, size_t size, struct kvc_error *e) {
    if (KVC_NULL(e, c, pair)) return -1;
    if (pair->rows && KVC_NULL(e, position)) return -1;
    if (KVC_SHORT(e, position, size, pair->rows, sizeof *position)) return -1;
    const struct kvc_part_pair *parts = pair_of(c, pair)->parts;
    for (uint64_t r = 0; r < parts->rows.n_runs; r++)
        for (uint64_t k = 0; k < parts->rows.run[r].n; k++)
            *position++ = kvc_cells_position(&parts->part[0]->cells, parts->rows.run[r].a + k);
    return 0;
}

int kvc_comparing_sample(const struct kvc_comparing *c, const struct kvc_compared *pair,
                         uint64_t head, size_t most, size_t most_worst, struct kvc_head_sample *out,
                         struct kvc_error *e) {
    struct kvc_head_sample own = {.size = sizeof own};
    if (KVC_NULL(e, c, pair, out)) return -1;
    if (kvc_sized_give(out, &own, sizeof own, "kvc_head_sample", e)) return -1;
    if (check_values(c, pair, e)) return -1;
    if (head >= pair->heads)
        return kvc_fail(e, KVC_ERR_USAGE, "no head %" PRIu64 ": there are %" PRIu64, head,
                        pair->heads);
    if (kvc_head_sample_take(c->align.cache, pair_of(c, pair), head, most, most_worst, &own, e)) {
        kvc_head_sample_free(&own);
        return -1;
    }
    return kvc_sized_give(out, &own, sizeof own, "kvc_head_sample", e);
}

/* --- attention --- */

const struct kvc_cache *kvc_comparing_queries(const struct kvc_comparing *c, struct kvc_error *e) {
    if (c->queries) return c->queries;
    for (int s = 0; s < 2; s++)
        if (kvc_cache_has_queries(c->align.cache[s])) return c->align.cache[s];
    kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_QUERIES, "neither cache has queries");
    return NULL;
}

int kvc_comparing_estimated(const struct kvc_comparing *c) {
    return c && c->estimated;
}

int kvc_comparing_attention(struct kvc_comparing *c, struct kvc_error *e) {
    if (KVC_NULL(e, c)) return -1;
    c->attended = (struct kvc_attended){.pairs = &c->pairs,
                                        .cache = {c->align.cache[0], c->align.cache[1]},
                                        .name = {c->options.name[0], c->options.name[1]},
                                        .queries = kvc_comparing_queries(c, e)};
    return c->attended.queries ? kvc_attend(&c->attended, e) : -1;
}

/* Fills the caller's struct; `a` NULL: with 0. */
static int measure(struct kvc_attention *a, struct kvc_attention_measures *m) {
    struct kvc_attention_measures own = {.size = sizeof own};
    if (a) {
        own.queries = a->queries;
        own.logit_rms = kvc_attention_logit_rms(a);
        own.kl = kvc_attention_kl(a);
        own.output_median = kvc_attention_output(a, 0.5);
        own.output_p99 = kvc_attention_output(a, 0.99);
    }
    return kvc_sized_give(m, &own, sizeof own, "kvc_attention_measures", NULL);
}

const struct kvc_compared *kvc_comparing_attended(struct kvc_comparing *c, size_t i, uint64_t head,
                                                  struct kvc_attention_measures *m) {
    if (!c || i >= c->attended.n || head >= c->attended.layer[i].heads) return NULL;
    if (measure(&c->attended.layer[i].head[head], m)) return NULL;
    return &c->attended.layer[i].k->shown;
}

int kvc_comparing_attended_all(struct kvc_comparing *c, struct kvc_attention_measures *m) {
    return measure(c ? &c->attended.all : NULL, m);
}

const struct kvc_compared *kvc_comparing_worst(struct kvc_comparing *c, uint64_t *head,
                                               struct kvc_attention_measures *m) {
    const struct kvc_attended_layer *l = c && head ? kvc_attended_worst(&c->attended, head) : NULL;
    if (!l || measure(&l->head[*head], m)) return NULL;
    return &l->k->shown;
}

int kvc_comparing_query(struct kvc_comparing *c, int last, struct kvc_attention_weights *out,
                        struct kvc_error *e) {
    if (KVC_NULL(e, out)) return -1;
    uint64_t head;
    struct kvc_attention_weights own = {.size = sizeof own};
    const struct kvc_attended_layer *l = c ? kvc_attended_worst(&c->attended, &head) : NULL;
    if (kvc_sized_give(out, &own, sizeof own, "kvc_attention_weights", e)) return -1;
    if (l && kvc_attended_find(&c->attended, l, head, last, &own, e)) {
        kvc_attention_weights_free(&own);
        return -1;
    }
    return kvc_sized_give(out, &own, sizeof own, "kvc_attention_weights", e);
}
