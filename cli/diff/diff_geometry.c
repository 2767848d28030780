/* diff_geometry.c: differences of parts, positions and tensors. Not for values (diff_values.c). */
#include "cli/diff/diff.h"

#include <inttypes.h>
#include <string.h>

/* Prints positions that only one side has, as "0:4,7:8,...", ranges without their end. */
static void positions_fact(struct diff_comparison *d, const char *where,
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
    diff_fact(d, where, "positions", side ? NULL : text, side ? text : NULL, note);
}

/* Returns the engine's words of a cell: sequence ids and others. */
static const uint32_t *words_of(const struct kvc_cells *cells, uint64_t row, uint64_t *n) {
    uint32_t cell = kvc_cell_at(cells, row);
    *n = cells->words ? cells->word_at[cell + 1] - cells->word_at[cell] : 0;
    return *n ? cells->words + cells->word_at[cell] : NULL;
}

/* Counts matched cells whose words differ. */
static void compare_words(struct diff_comparison *d, const char *where,
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
    diff_fact(d, where, "private words", "some", "others", note);
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
static void fact_text(const struct kvc_cache *c, const struct kvc_tensor *t, enum tensor_fact which,
                      char *text, size_t size) {
    if (which == DTYPE) snprintf(text, size, "%s", kvc_dtype_info(t->shape.dtype)->name);
    else if (which == WINDOW) snprintf(text, size, "%" PRIu32, c->layer[t->layer].window);
    else if (!c->meta.facts.heads_unknown)
        snprintf(text, size, "%" PRIu64 " x %" PRIu64, t->shape.heads, t->shape.dim);
    else snprintf(text, size, "%" PRIu64, t->shape.heads * t->shape.dim);
}

/* Returns 1 if a pair of tensors differs in a fact, and fills *both. */
static int tensor_differs(const struct diff_comparison *d, const struct kvc_tensor_pair *pair,
                          enum tensor_fact which, struct both *both) {
    *both = (struct both){.has = {pair->tensor[0] != KVC_NONE, pair->tensor[1] != KVC_NONE}};
    if (which == PRESENCE) {
        int is_companion = pair->role == KVC_ROLE_QUERIES || pair->role == KVC_ROLE_HIDDEN;
        return both->has[0] != both->has[1] && (d->all || !is_companion);
    }
    if (!both->has[0] || !both->has[1]) return 0;
    const struct kvc_tensor *t[2];
    uint32_t window[2];
    for (int s = 0; s < 2; s++) {
        t[s] = &d->cache[s]->tensor[pair->tensor[s]];
        window[s] = d->cache[s]->layer[t[s]->layer].window;
        fact_text(d->cache[s], t[s], which, both->text[s], sizeof both->text[s]);
    }
    if (which == SHAPE) return !pair->heads;
    if (which == DTYPE) return d->compare.exact && t[0]->shape.dtype != t[1]->shape.dtype;
    return window[0] && window[1] && window[0] != window[1];
}

/* Prints a fact of a role in the tensor pairs [begin, end) of a part; consecutive layers share a
 * line. */
static void tensor_facts(struct diff_comparison *d, size_t begin, size_t end, enum kvc_role role,
                         enum tensor_fact which) {
    const struct kvc_tensor_pair *first = NULL, *last = NULL;
    struct both open = {0}, both;
    for (size_t i = begin; i <= end; i++) {
        const struct kvc_tensor_pair *pair = i < end ? &d->pairs.tensor[i] : NULL;
        if (pair && pair->role != role) continue;
        int differs = pair && tensor_differs(d, pair, which, &both);
        if (differs && first && pair->layer == last->layer + 1 && same_both(&open, &both)) {
            last = pair;
            continue;
        }
        if (first) {
            char where[128];
            diff_layers_label(first, last, where, sizeof where);
            diff_fact(d, where, fact_name[which], open.has[0] ? open.text[0] : NULL,
                      open.has[1] ? open.text[1] : NULL, NULL);
        }
        first = last = differs ? pair : NULL;
        if (differs) open = both;
    }
}

/* Compares a pair of parts and its tensors [begin, end). */
static void compare_parts(struct diff_comparison *d, const struct kvc_part_pair *pair, size_t begin,
                          size_t end) {
    const struct kvc_part *a = pair->part[0], *b = pair->part[1];
    char where[64];
    diff_part_label(pair, where, sizeof where);
    if (!a || !b) {
        if (d->all || (a ? a : b)->kind != KVC_PART_COMPANION)
            diff_fact_presence(d, where, "part", a != NULL, b != NULL);
        return;
    }
    for (int s = 0; s < 2; s++) positions_fact(d, where, &pair->rows, s);
    if (d->all) compare_words(d, where, pair);
    for (unsigned role = 0; kvc_role_name(role); role++)
        for (unsigned which = 0; which < TENSOR_FACTS; which++)
            tensor_facts(d, begin, end, (enum kvc_role)role, (enum tensor_fact)which);
}

void diff_geometry(struct diff_comparison *d) {
    for (size_t p = 0, begin = 0, end = 0; p < d->pairs.n_parts; p++, begin = end) {
        while (end < d->pairs.n_tensors && d->pairs.tensor[end].parts == &d->pairs.part[p]) end++;
        compare_parts(d, &d->pairs.part[p], begin, end);
    }
}
