/* facts_differ.c: what differs of two caches beside values: token ids, metadata, private bytes,
 * parts, positions, shapes. Not for values (compare.c). */
#include "formats/compare/comparing.h"

#include "formats/api/sized.h"
#include "formats/compare/meta_differ.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The caches, and the caller who hears of facts. */
struct facts {
    const struct kvc_comparing *c;
    const struct kvc_cache *cache[2];
    kvc_fact_fn *fact;
    void *state;
};

static void fact_text(const struct facts *d, const char *where, const char *what, const char *a,
                      const char *b, const char *note) {
    d->fact(d->state, where, what, a, b, note);
}

static void fact_u64(const struct facts *d, const char *where, const char *what, uint64_t a,
                     uint64_t b) {
    char text[2][24];
    snprintf(text[0], sizeof text[0], "%" PRIu64, a);
    snprintf(text[1], sizeof text[1], "%" PRIu64, b);
    fact_text(d, where, what, text[0], text[1], NULL);
}

/* Tells of a thing that only one cache has. */
static void fact_presence(const struct facts *d, const char *where, const char *what, int in_a,
                          int in_b) {
    fact_text(d, where, what, in_a ? "" : NULL, in_b ? "" : NULL, NULL);
}

/* Tells the first of several differences of one kind. */
static void fact_first(const struct facts *d, const char *unit, int64_t at, uint64_t differ,
                       const char *what, const char *a, const char *b) {
    char where[48], note[64];
    snprintf(where, sizeof where, "%s %" PRId64, unit, at);
    snprintf(note, sizeof note, "first of %" PRIu64 " that differ", differ);
    fact_text(d, where, what, a, b, note);
}

/* --- token ids --- */

/* The token ids of a cache at the selected positions, which ascend. */
struct ids {
    const int32_t *id; /* NULL: unknown */
    const int64_t *pos;
    uint64_t n;
    int64_t *all; /* positions of all ids of the cache, owned */
};

static int select_ids(struct ids *ids, const struct kvc_pairs *p, int side, struct kvc_error *e) {
    const struct kvc_cache *c = p->cache[side];
    if (!c->tokens) return 0;
    if (!(ids->all = kvc_cache_token_positions(c, e))) return -1;
    uint64_t first = 0, end = c->n_tokens;
    while (first < end && ids->all[first] < p->first) first++;
    while (end > first && ids->all[end - 1] > p->last) end--;
    ids->id = c->tokens + first;
    ids->pos = ids->all + first;
    ids->n = end - first;
    return 0;
}

/* Tells what differs of ids that both caches have. */
static void ids_differ(const struct facts *d, const struct ids *a, const struct ids *b) {
    uint64_t differ = 0, both = 0;
    int64_t at = 0;
    char text[2][24];
    for (uint64_t i = 0, j = 0; i < a->n && j < b->n;) {
        const int64_t p = a->pos[i], q = b->pos[j];
        if (p == q && a->id[i] != b->id[j] && !differ++) {
            at = p;
            snprintf(text[0], sizeof text[0], "%" PRId32, a->id[i]);
            snprintf(text[1], sizeof text[1], "%" PRId32, b->id[j]);
        }
        both += p == q;
        i += p <= q;
        j += q <= p;
    }
    if (differ) fact_first(d, "token", at, differ, "id", text[0], text[1]);
    if (a->n && b->n && *a->pos != *b->pos) {
        snprintf(text[0], sizeof text[0], "%" PRId64, *a->pos);
        snprintf(text[1], sizeof text[1], "%" PRId64, *b->pos);
        fact_text(d, "", "first token", text[0], text[1], NULL);
    } else if (a->n == b->n && both < a->n) {
        fact_text(d, "", "positions of tokens", "some", "others", NULL);
    }
    if (a->n != b->n) fact_u64(d, "", "number of tokens", a->n, b->n);
}

static int compare_tokens(const struct facts *d, struct kvc_error *e) {
    struct ids a = {0}, b = {0};
    const int status = select_ids(&a, &d->c->pairs, 0, e) || select_ids(&b, &d->c->pairs, 1, e);
    if (!status && a.id && b.id) ids_differ(d, &a, &b);
    else if (!status && d->c->every && (a.id || b.id))
        fact_presence(d, "", "tokens", a.id != NULL, b.id != NULL);
    free(a.all);
    free(b.all);
    return status ? -1 : 0;
}

int kvc_comparing_ids_differ(const struct kvc_comparing *c, struct kvc_error *e) {
    struct ids a = {0}, b = {0};
    int differ = select_ids(&a, &c->pairs, 0, e) || select_ids(&b, &c->pairs, 1, e) ? -1 : 0;
    if (!differ && a.id && b.id)
        differ = a.n != b.n || memcmp(a.id, b.id, (size_t)a.n * sizeof *a.id) != 0 ||
                 memcmp(a.pos, b.pos, (size_t)a.n * sizeof *a.pos) != 0;
    free(a.all);
    free(b.all);
    return differ;
}

/* --- metadata --- */

static void meta_differs(void *state, const struct kvc_meta_entry *a,
                         const struct kvc_meta_entry *b) {
    const struct facts *d = state;
    char text[2][600];
    if (a) kvc_meta_print(a, text[0], sizeof text[0]);
    if (b) kvc_meta_print(b, text[1], sizeof text[1]);
    fact_text(d, "", a ? a->key : b->key, a ? text[0] : NULL, b ? text[1] : NULL, NULL);
}

/* --- private bytes --- */

static int read_private(const struct facts *d, int side, uint64_t offset, uint64_t n, uint8_t *to,
                        struct kvc_error *e) {
    const struct kvc_cache *c = d->cache[side];
    return c->read_literal(c, offset, n, to, e) ? kvc_error_prefix(e, d->c->options.name[side]) : 0;
}

static int compare_private(const struct facts *d, struct kvc_error *e) {
    const struct kvc_cache *a = d->cache[0], *b = d->cache[1];
    uint64_t size = a->literal_size, differ = 0, at = 0;
    uint8_t x[4096], y[4096], byte[2] = {0, 0};
    if (!a->n_extents || !b->n_extents) {
        if (a->n_extents || b->n_extents)
            fact_presence(d, "", "private bytes", a->n_extents > 0, b->n_extents > 0);
        return 0;
    }
    if (size != b->literal_size) {
        fact_u64(d, "", "private bytes", size, b->literal_size);
        return 0;
    }
    for (uint64_t done = 0, n; done < size; done += n) {
        n = size - done < sizeof x ? size - done : sizeof x;
        if (read_private(d, 0, done, n, x, e) || read_private(d, 1, done, n, y, e)) return -1;
        for (uint64_t i = 0; i < n; i++) {
            if (x[i] == y[i] || differ++) continue;
            at = done + i;
            byte[0] = x[i];
            byte[1] = y[i];
        }
    }
    if (differ) {
        char text[2][8];
        for (int s = 0; s < 2; s++) snprintf(text[s], sizeof text[s], "0x%02x", byte[s]);
        fact_first(d, "private byte", (int64_t)at, differ, "value", text[0], text[1]);
    }
    return 0;
}

/* Tells positions that only one side has, as "0:4,7:8,...", ranges without their end. */
static void positions_fact(const struct facts *d, const char *where,
                           const struct kvc_matching *rows, int side) {
    enum { MAX_SPANS = 8 };
    char text[MAX_SPANS * 48 + 8] = "", note[48];
    size_t used = 0;
    uint64_t n = 0;
    for (uint64_t i = 0; i < rows->n_only[side]; i++) {
        const struct kvc_span *s = &rows->only[side][i];
        n += (uint64_t)s->last - (uint64_t)s->first + 1;
        if (i < MAX_SPANS) {
            const int64_t end = s->last < INT64_MAX ? s->last + 1 : s->last;
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%" PRId64 ":%" PRId64,
                                     i ? "," : "", s->first, end);
        } else if (i == MAX_SPANS) {
            snprintf(text + used, sizeof text - used, ",...");
        }
    }
    if (!n) return;
    snprintf(note, sizeof note, "%" PRIu64 " position%s", n, n == 1 ? "" : "s");
    fact_text(d, where, "positions", side ? NULL : text, side ? text : NULL, note);
}

/* Returns the engine's words of a cell: sequence ids and others. */
static const uint32_t *words_of(const struct kvc_cells *cells, uint64_t row, uint64_t *n) {
    uint32_t cell = kvc_cell_at(cells, row);
    *n = cells->words ? cells->word_at[cell + 1] - cells->word_at[cell] : 0;
    return *n ? cells->words + cells->word_at[cell] : NULL;
}

/* Counts matched cells whose words differ. */
static void compare_words(const struct facts *d, const char *where,
                          const struct kvc_part_pair *pair) {
    uint64_t differ = 0;
    for (uint64_t r = 0; r < pair->rows.n_runs; r++) {
        const struct kvc_run *run = &pair->rows.run[r];
        for (uint64_t i = 0; i < run->n; i++) {
            uint64_t n[2];
            const uint32_t *a = words_of(&pair->part[0]->cells, run->a + i, &n[0]);
            const uint32_t *b = words_of(&pair->part[1]->cells, run->b + i, &n[1]);
            differ += n[0] != n[1] || (n[0] && memcmp(a, b, (size_t)n[0] * sizeof *a) != 0);
        }
    }
    if (!differ) return;
    char note[48];
    snprintf(note, sizeof note, "%" PRIu64 " cell%s", differ, differ == 1 ? "" : "s");
    fact_text(d, where, "private words", "some", "others", note);
}

enum tensor_fact { PRESENCE, SHAPE, DTYPE, WINDOW, TENSOR_FACTS };
static const char *const fact_name[] = {"tensor", "heads x channels", "dtype", "window"};

/* A fact of both sides that may differ. */
struct both {
    char text[2][48];
    int has[2];
};

static int same_both(const struct both *x, const struct both *y) {
    for (int s = 0; s < 2; s++)
        if (x->has[s] != y->has[s] || strcmp(x->text[s], y->text[s]) != 0) return 0;
    return 1;
}

/* Writes the value of a fact on one side. */
static void value_text(const struct kvc_cache *c, const struct kvc_tensor *t,
                       enum tensor_fact which, char *text, size_t size) {
    if (which == DTYPE) snprintf(text, size, "%s", kvc_dtype_info(t->shape.dtype)->name);
    else if (which == WINDOW) snprintf(text, size, "%" PRIu32, c->layer[t->layer].window);
    else if (!c->meta.facts.heads_unknown)
        snprintf(text, size, "%" PRIu64 " x %" PRIu64, t->shape.heads, t->shape.dim);
    else snprintf(text, size, "%" PRIu64, t->shape.heads * t->shape.dim);
}

/* Returns 1 if a pair of tensors differs in a fact, and fills *both. */
static int tensor_differs(const struct facts *d, const struct kvc_tensor_pair *pair,
                          enum tensor_fact which, struct both *both) {
    *both = (struct both){.has = {pair->tensor[0] != KVC_NONE, pair->tensor[1] != KVC_NONE}};
    if (which == PRESENCE) {
        int is_companion = pair->role == KVC_ROLE_QUERIES || pair->role == KVC_ROLE_HIDDEN;
        return both->has[0] != both->has[1] && (d->c->every || !is_companion);
    }
    if (!both->has[0] || !both->has[1]) return 0;
    const struct kvc_tensor *t[2];
    uint32_t window[2];
    for (int s = 0; s < 2; s++) {
        t[s] = &d->cache[s]->tensor[pair->tensor[s]];
        window[s] = d->cache[s]->layer[t[s]->layer].window;
        value_text(d->cache[s], t[s], which, both->text[s], sizeof both->text[s]);
    }
    if (which == SHAPE) return !pair->heads;
    if (which == DTYPE) return d->c->options.exact && t[0]->shape.dtype != t[1]->shape.dtype;
    return window[0] && window[1] && window[0] != window[1];
}

/* Tells a fact of a role in the tensor pairs [begin, end) of a part; consecutive layers share a
 * line. */
static void tensor_facts(const struct facts *d, size_t begin, size_t end, enum kvc_role role,
                         enum tensor_fact which) {
    const struct kvc_tensor_pair *first = NULL, *last = NULL;
    struct both open = {0}, both;
    for (size_t i = begin; i <= end; i++) {
        const struct kvc_tensor_pair *pair = i < end ? &d->c->pairs.tensor[i] : NULL;
        if (pair && pair->role != role) continue;
        int differs = pair && tensor_differs(d, pair, which, &both);
        if (differs && first && pair->layer == last->layer + 1 && same_both(&open, &both)) {
            last = pair;
            continue;
        }
        if (first) {
            char where[128];
            kvc_compared_label(&first->shown, &last->shown, where, sizeof where);
            fact_text(d, where, fact_name[which], open.has[0] ? open.text[0] : NULL,
                      open.has[1] ? open.text[1] : NULL, NULL);
        }
        first = last = differs ? pair : NULL;
        if (differs) open = both;
    }
}

/* Compares a pair of parts and its tensors [begin, end). */
static void compare_parts(const struct facts *d, const struct kvc_part_pair *pair, size_t begin,
                          size_t end) {
    const struct kvc_part *a = pair->part[0], *b = pair->part[1];
    char where[64];
    const struct kvc_part *any = a ? a : b;
    const struct kvc_compared part = {.size = sizeof part,
                                      .part = kvc_part_kind_name(any->kind),
                                      .stream = any->stream,
                                      .snapshot = any->snapshot};
    kvc_compared_part(&part, where, sizeof where);
    if (!a || !b) {
        if (d->c->every || any->kind != KVC_PART_COMPANION)
            fact_presence(d, where, "part", a != NULL, b != NULL);
        return;
    }
    for (int s = 0; s < 2; s++)
        if (!kvc_pairs_repeats(&d->c->pairs, (size_t)(pair - d->c->pairs.part), s))
            positions_fact(d, where, &pair->rows, s);
    if (d->c->every) compare_words(d, where, pair);
    for (unsigned role = 0; kvc_role_name(role); role++)
        for (unsigned which = 0; which < TENSOR_FACTS; which++)
            tensor_facts(d, begin, end, (enum kvc_role)role, (enum tensor_fact)which);
}

int kvc_comparing_facts(struct kvc_comparing *c, kvc_fact_fn *fact, void *state,
                        struct kvc_error *e) {
    if (KVC_NULL(e, c)) return -1;
    if (!fact) return kvc_null_function(e, __func__, "fact");
    const struct kvc_pairs *p = &c->pairs;
    struct facts d = {c, {p->cache[0], p->cache[1]}, fact, state};
    if (compare_tokens(&d, e)) return -1;
    /* With a tolerance, storage such as the dtype is no difference. */
    kvc_meta_differ(d.cache,
                    c->every           ? KVC_META_EVERY_ENTRY
                    : c->options.exact ? KVC_META_EXACT
                                       : KVC_META_MEANING,
                    meta_differs, &d);
    if (c->every && compare_private(&d, e)) return -1;
    for (size_t i = 0, begin = 0, end = 0; i < p->n_parts; i++, begin = end) {
        while (end < p->n_tensors && p->tensor[end].parts == &p->part[i]) end++;
        compare_parts(&d, &p->part[i], begin, end);
    }
    return 0;
}
