/* join.c: a cache whose rows are those of several caches, one after another. Rows are read on
 * demand. Not for heads (join_heads.c). */
#include "formats/cache/join.h"

#include "codecs/floats.h"
#include "codecs/memory.h"
#include "formats/cache/facts.h"
#include "formats/cache/keys.h"
#include "formats/cache/values.h"
#include "formats/cache/prefix.h"
#include "formats/cache/scales.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct join {
    size_t n;
    struct kvc_join_operand *from;
    int64_t *shift;   /* by operand: what is added to its positions */
    uint32_t n_parts; /* whose rows are in `start` and `part` */
    uint64_t *start;  /* [part][n + 1]: first row of each operand */
    uint32_t *part;   /* [part][n]: number of the operand's part, or KVC_NONE */
    uint32_t *tensor; /* [tensor][n]: number of the operand's tensor, or KVC_NONE */
};

static int join_read(const struct kvc_cache *c, uint32_t tensor, uint64_t first, uint64_t n,
                     uint8_t *dst, struct kvc_error *e) {
    const struct join *j = c->impl;
    const struct kvc_tensor *t = &c->tensor[tensor];
    const uint64_t *start = j->start + c->layer[t->layer].part * (j->n + 1);
    for (size_t i = 0; i < j->n && n; i++) {
        if (first >= start[i + 1]) continue;
        const uint64_t left = start[i + 1] - first, some = n < left ? n : left;
        const struct kvc_cache *from = j->from[i].cache;
        if (from->read(from, j->tensor[tensor * j->n + i], first - start[i], some, dst, e))
            return kvc_error_prefix(e, j->from[i].name);
        dst += some * kvc_row_bytes(&t->shape);
        first += some;
        n -= some;
    }
    return 0;
}

static unsigned join_threads(const struct kvc_cache *c, unsigned threads) {
    const struct join *j = c->impl;
    for (size_t i = 0; i < j->n; i++) threads = kvc_cache_threads(j->from[i].cache, threads);
    return threads;
}

static void join_close(struct kvc_cache *c) {
    struct join *j = c->impl;
    free(j->from);
    free(j->shift);
    free(j->start);
    free(j->part);
    free(j->tensor);
    free(j);
}

/* --- positions --- */

/* Returns the live cells of an operand, which kvc_join_check_operand() accepted. */
static const struct kvc_cells *live_cells(const struct kvc_cache *c) {
    return &c->part[kvc_join_find_part(c, KVC_PART_LIVE, KVC_ROLE_K)].cells;
}

/* Returns 1 if the order of the operands has to give the positions: all count from 0. llama.cpp
 * records the positions of cells. */
static int are_without_positions(const struct join *j) {
    for (size_t i = 0; i < j->n; i++) {
        const struct kvc_cells *cells = live_cells(j->from[i].cache);
        if (j->from[i].cache->meta.facts.of_llama) return 0;
        if (!cells->n || kvc_cells_position(cells, 0) ||
            kvc_cells_position(cells, cells->n - 1) != (int64_t)cells->n - 1)
            return 0;
    }
    return j->n > 1;
}

static int refuse_positions(const struct join *j, size_t a, size_t b, int64_t end, int64_t begin,
                            const char *what, struct kvc_error *e) {
    return kvc_fail(e, KVC_ERR_USAGE,
                    "%s and %s cannot be joined: %s of the first end at position %" PRId64
                    ", those of the second begin at %" PRId64
                    ": the files must be in order, without a gap and without an overlap",
                    j->from[a].name, j->from[b].name, what, end, begin);
}

/* Checks that the rows of a part follow each other. Those of companions need only be in order. */
static int check_positions(const struct join *j, const uint32_t *part, enum kvc_part_kind kind,
                           struct kvc_error *e) {
    size_t before = j->n;
    int64_t end = 0;
    for (size_t i = 0; i < j->n; i++) {
        const struct kvc_cells *cells = part[i] == KVC_NONE
                                            ? NULL
                                            : &j->from[i].cache->part[part[i]].cells;
        if (!cells || !cells->n) continue;
        const int64_t begin = kvc_cells_position(cells, 0) + j->shift[i];
        if (before < j->n && (kind == KVC_PART_COMPANION ? begin <= end : begin != end + 1))
            return refuse_positions(j, before, i, end, begin,
                                    kind == KVC_PART_WINDOW ? "sliding-window rows" : "rows", e);
        before = i;
        end = kvc_cells_position(cells, cells->n - 1) + j->shift[i];
    }
    return 0;
}

/* --- token ids --- */

/* Appends the ids of operand i, which must follow position *end. *first gets the position of the
 * first id of all. */
static int append_ids(struct kvc_cache *c, const struct join *j, size_t i, int64_t *first,
                      int64_t *end, struct kvc_error *e) {
    const struct kvc_cache *from = j->from[i].cache;
    int64_t *pos = kvc_cache_token_positions(from, e);
    if (!pos) return -1;
    const int64_t begin = pos[0] + j->shift[i], last = pos[from->n_tokens - 1] + j->shift[i];
    free(pos);
    if (i && begin != *end + 1) return refuse_positions(j, i - 1, i, *end, begin, "token ids", e);
    if (!i) *first = begin;
    *end = last;
    memcpy(c->tokens + c->n_tokens, from->tokens, (size_t)from->n_tokens * sizeof *c->tokens);
    c->n_tokens += from->n_tokens;
    return 0;
}

static int join_ids(struct kvc_cache *c, const struct join *j, struct kvc_join_report *report,
                    struct kvc_error *e) {
    uint64_t total = 0;
    int64_t first = 0, end = 0;
    const char *without = NULL;
    for (size_t i = 0; i < j->n; i++) {
        if (!j->from[i].cache->n_tokens) without = j->from[i].name;
        else if (__builtin_add_overflow(total, j->from[i].cache->n_tokens, &total) ||
                 total > KVC_MAX_CELLS)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "more token ids than kvc handles");
    }
    if (without) {
        if (total) report->no_ids = without;
        return 0;
    }
    if (!(c->tokens = kvc_alloc(total, sizeof *c->tokens))) return kvc_fail_memory(e, "tokens");
    for (size_t i = 0; i < j->n; i++)
        if (append_ids(c, j, i, &first, &end, e)) return -1;
    return first > 0 ? kvc_meta_set_u64(&c->meta, KVC_KEY_TOKENS_FIRST, (uint64_t)first, e) : 0;
}

/* --- prefix keys --- */

/* Stores the extras of all operands. */
static int join_extras(struct kvc_cache *c, const struct join *j, struct kvc_error *e) {
    struct kvc_extra *all = NULL, *item;
    size_t n = 0, items;
    int status = 0;
    for (size_t i = 0; i < j->n && !status; i++) {
        if (kvc_extras_list(&j->from[i].cache->meta, &item, &items, e))
            status = kvc_error_prefix(e, j->from[i].name);
        if (status) break;
        struct kvc_extra *grown = kvc_realloc(all, n + items, sizeof *grown);
        if (grown) all = grown;
        else status = kvc_fail_memory(e, "extras");
        for (size_t k = 0; k < items && !status; k++, n++) {
            all[n] = item[k];
            all[n].position += (uint64_t)j->shift[i];
        }
        free(item);
    }
    if (!status) status = kvc_extras_store(&c->meta, all, n, e);
    free(all);
    return status;
}

/* Refuses operands whose parent keys are of other tokens than those that precede them. Only keys of
 * one identity are compared. */
static int check_parents(const struct kvc_cache *c, const struct join *j, struct kvc_error *e) {
    const char *identity = c->meta.facts.identity;
    uint8_t *keys = NULL;
    struct kvc_prefix p;
    int status = kvc_prefix_of(&p, &c->meta, e);
    const uint64_t n = kvc_cache_tokens_from(c, p.first) / KVC_PREFIX_TOKENS;
    for (size_t i = 1; i < j->n && !status; i++) {
        const struct kvc_facts *facts = &j->from[i].cache->meta.facts;
        const uint64_t first = facts->tokens_first, number = (first - p.first) / KVC_PREFIX_TOKENS;
        const char *its = facts->identity ? facts->identity : "";
        if (!facts->parent || first <= p.first || number > n ||
            (identity && strcmp(identity, its) != 0))
            continue;
        /* the chain begins at position 0, with the identity of the first operand that has a parent
         */
        if (!identity) {
            const struct kvc_extras extras = p.extras;
            identity = its;
            status = kvc_prefix_begin(&p, identity, e);
            p.extras = extras;
        }
        if (!status && !keys) {
            keys = kvc_alloc(n, KVC_KEY_BYTES);
            status = keys ? kvc_prefix_keys(&p, c->tokens, n * KVC_PREFIX_TOKENS, keys, e)
                          : kvc_fail_memory(e, "prefix keys");
        }
        if (!status &&
            memcmp(facts->parent, keys + (number - 1) * KVC_KEY_BYTES, KVC_KEY_BYTES) != 0)
            status = kvc_fail(e, KVC_ERR_USAGE,
                              "%s does not continue %s: its prefix key (prefix.parent) is of other "
                              "tokens before it",
                              j->from[i].name, j->from[i - 1].name);
    }
    free(keys);
    return status;
}

/* Begins the chain of prefix keys where the first operand begins. Keys themselves are computed when
 * the cache is written. */
static int join_prefix(struct kvc_cache *c, const struct join *j, struct kvc_error *e) {
    static const char *const of_first[] = {KVC_KEY_PREFIX_PARENT, KVC_KEY_PREFIX_IDENTITY};
    const struct kvc_meta *meta = &j->from[0].cache->meta;
    const int has_parent = c->tokens && meta->facts.parent;
    kvc_meta_remove(&c->meta, KVC_KEY_PREFIX_EXTRAS);
    for (size_t i = 0; i < sizeof of_first / sizeof of_first[0]; i++) {
        const struct kvc_meta_entry *entry = kvc_meta_find(meta, of_first[i]);
        kvc_meta_remove(&c->meta, of_first[i]);
        if (has_parent && entry && kvc_meta_set_entry(&c->meta, entry, e)) return -1;
    }
    if (c->tokens && (join_extras(c, j, e) || check_parents(c, j, e))) return -1;
    return 0;
}

/* --- building --- */

/* Adds the layers of a part as the operand `like` has them. */
static int join_add_layers(struct kvc_cache *c, const struct join *j, size_t like, uint32_t part,
                           struct kvc_error *e) {
    const struct kvc_cache *from = j->from[like].cache;
    for (uint32_t l = 0; l < from->n_layers; l++) {
        const struct kvc_layer *layer = &from->layer[l];
        if (layer->part != j->part[part * j->n + like]) continue;
        if (kvc_cache_copy_layer(c, part, layer, e) == KVC_NONE) return -1;
    }
    return 0;
}

/* Adds tensor `from` of operand i, with those of the other operands, to a part, unless it is there
 * already. */
static int join_add_tensor(struct kvc_cache *c, struct join *j, size_t i, uint32_t from,
                           uint32_t part, struct kvc_error *e) {
    const struct kvc_tensor *x = &j->from[i].cache->tensor[from];
    const uint32_t index = j->from[i].cache->layer[x->layer].index, *parts = j->part + part * j->n;
    struct kvc_shape shape = x->shape;
    uint32_t layer = 0;
    if (kvc_cache_find_tensor(c, part, index, x->role) != KVC_NONE) return 0;
    /* join_add_layers() added it */
    while (c->layer[layer].part != part || c->layer[layer].index != index) layer++;
    shape.tokens = c->part[part].cells.n;
    uint32_t *tensor = kvc_realloc(j->tensor, (c->n_tensors + UINT64_C(1)) * j->n, sizeof *tensor);
    if (!tensor) return kvc_fail_memory(e, "tensors");
    j->tensor = tensor;
    tensor += c->n_tensors * j->n;
    for (size_t k = 0; k < j->n; k++)
        tensor[k] = parts[k] == KVC_NONE
                        ? KVC_NONE
                        : kvc_cache_find_tensor(j->from[k].cache, parts[k], index, x->role);
    return kvc_cache_add_tensor(c, layer, x->role, &shape, e) == KVC_NONE ? -1 : 0;
}

/* Adds the tensors in the order of the first operand, then those that only later operands have. */
static int join_add_tensors(struct kvc_cache *c, struct join *j, struct kvc_error *e) {
    for (size_t i = 0; i < j->n; i++) {
        const struct kvc_cache *from = j->from[i].cache;
        for (uint32_t t = 0; t < from->n_tensors; t++)
            for (uint32_t p = 0; p < c->n_parts; p++)
                if (kvc_tensor_layer(from, t)->part == j->part[p * j->n + i] &&
                    join_add_tensor(c, j, i, t, p, e))
                    return -1;
    }
    return 0;
}

/* Adds the cells of all operands. Engine-private words are kept if all operands have them. */
static int add_cells(struct kvc_cache *c, const struct join *j, enum kvc_part_kind kind,
                     struct kvc_error *e) {
    const uint64_t *start = j->start + c->n_parts * (j->n + 1);
    const uint32_t *parts = j->part + c->n_parts * j->n,
                   number = kvc_cache_add_part(c, kind, start[j->n], e);
    size_t with_words = 0, filled = 0;
    if (number == KVC_NONE) return -1;
    struct kvc_cells *to = &c->part[number].cells;
    for (size_t i = 0; i < j->n; i++) {
        if (start[i] == start[i + 1]) continue;
        struct kvc_cells cells = j->from[i].cache->part[parts[i]].cells;
        filled++;
        with_words += cells.words != NULL;
        if (with_words && with_words != filled)
            return kvc_fail(e, KVC_ERR_USAGE,
                            "%s cannot be joined to files of another engine: only some of them "
                            "have cells of llama.cpp",
                            j->from[i].name);
        if (kvc_cells_copy(to, start[i], &cells, 0, cells.n, e)) return -1;
        for (uint64_t r = start[i]; r < start[i + 1]; r++) to->pos[r] += j->shift[i];
    }
    return 0;
}

/* Lists the parts of this kind and role in all operands, and where their rows begin. *like is the
 * first operand that has it. */
static int list_rows(struct join *j, enum kvc_part_kind kind, enum kvc_role role, size_t *like,
                     struct kvc_error *e) {
    uint32_t *part = kvc_realloc(j->part, (j->n_parts + UINT64_C(1)) * j->n, sizeof *part);
    if (part) j->part = part;
    uint64_t *start = kvc_realloc(j->start, (j->n_parts + UINT64_C(1)) * (j->n + 1), sizeof *start),
             rows = 0;
    if (start) j->start = start;
    if (!part || !start) return kvc_fail_memory(e, "parts");
    part += j->n_parts * j->n;
    start += j->n_parts * (j->n + 1);
    *like = j->n;
    for (size_t i = 0; i < j->n; i++) {
        part[i] = kvc_join_find_part(j->from[i].cache, kind, role);
        start[i] = rows;
        if (part[i] == KVC_NONE) continue;
        if (*like == j->n) *like = i;
        rows += j->from[i].cache->part[part[i]].cells.n; /* each is at most KVC_MAX_CELLS */
        if (rows > KVC_MAX_CELLS)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "more rows than kvc handles in one cache");
    }
    start[j->n] = rows;
    return 0;
}

static int join_check_layers(const struct join *j, const uint32_t *part, size_t like,
                             struct kvc_error *e) {
    for (size_t i = like + 1; i < j->n; i++)
        if (part[i] != KVC_NONE &&
            kvc_join_check_layers(&j->from[like], part[like], &j->from[i], part[i], 0, e))
            return -1;
    return 0;
}

/* Joins a part that all operands must have. */
static int join_part(struct kvc_cache *c, struct join *j, enum kvc_part_kind kind,
                     struct kvc_error *e) {
    size_t like;
    if (list_rows(j, kind, KVC_ROLE_K, &like, e)) return -1;
    const uint32_t *part = j->part + j->n_parts * j->n;
    if (like == j->n) return 0;
    for (size_t i = 0; i < j->n; i++)
        if (kvc_join_check_part(&j->from[like], part[like], &j->from[i], e)) return -1;
    if (join_check_layers(j, part, like, e) || check_positions(j, part, kind, e) ||
        add_cells(c, j, kind, e))
        return -1;
    return join_add_layers(c, j, like, j->n_parts++, e);
}

/* --- operands that begin anew --- */

/* Sets *distance to the squared distance of row 0 of operand i from that of the first one in a
 * joined tensor, relative to the first one's square; -1 where it is nothing to go by. */
static int row_distance(const struct kvc_cache *c, const struct join *j, uint32_t tensor, size_t i,
                        double *distance, struct kvc_error *e) {
    const struct kvc_shape *shape = &c->tensor[tensor].shape;
    const uint32_t *number = j->tensor + tensor * j->n;
    const size_t n = (size_t)(shape->heads * shape->dim);
    *distance = -1;
    if (!kvc_is_float(shape->dtype) || number[0] == KVC_NONE || number[i] == KVC_NONE) return 0;
    float *row[2] = {kvc_alloc(n, sizeof **row), kvc_alloc(n, sizeof **row)};
    int status = row[0] && row[1] ? 0 : kvc_fail_memory(e, "a row");
    for (int k = 0; k < 2 && !status; k++)
        status = kvc_read_floats(j->from[k ? i : 0].cache, number[k ? i : 0], 0, 1, row[k], 0, e);
    double apart = 0, all = 0;
    for (size_t k = 0; k < n && !status; k++) {
        apart += ((double)row[0][k] - (double)row[1][k]) * ((double)row[0][k] - (double)row[1][k]);
        all += (double)row[0][k] * (double)row[0][k];
    }
    if (all > 0 && isfinite(apart)) *distance = apart / all;
    free(row[0]);
    free(row[1]);
    return status;
}

/* Sets *anew to 1 if operand i begins with the first token of all at position 0: the token's id is
 * the same, and so is its row of K, which depends on no other token. Later rows of the same token
 * are far from it: the mean of the layers' distances is 1.2 and more (SmolLM2, Qwen, Gemma), .1
 * after the largest loss of a preset. Where rows say nothing, ids that repeat decide. */
static int begins_anew(const struct kvc_cache *c, const struct join *j, size_t i, int *anew,
                       struct kvc_error *e) {
    const struct kvc_cache *a = j->from[0].cache, *b = j->from[i].cache;
    const uint64_t ids = a->n_tokens < b->n_tokens ? a->n_tokens : b->n_tokens;
    double sum = 0, distance;
    size_t n = 0;
    *anew = 0;
    if (!ids || a->tokens[0] != b->tokens[0]) return 0;
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        if (c->tensor[t].role != KVC_ROLE_K || kvc_tensor_part(c, t)->kind != KVC_PART_LIVE)
            continue;
        if (row_distance(c, j, t, i, &distance, e)) return -1;
        if (distance < 0) continue;
        sum += distance;
        n++;
    }
    if (n) *anew = sum < .5 * (double)n;
    else *anew = ids > 1 && !memcmp(a->tokens, b->tokens, (size_t)ids * sizeof *a->tokens);
    return 0;
}

/* Refuses an operand that does not follow the ones before it, as a longer cache of the same text,
 * whose first rows would stand there twice. */
static int refuse_repeated(const struct kvc_cache *c, const struct join *j, struct kvc_error *e) {
    for (size_t i = 1; i < j->n; i++) {
        int anew;
        if (begins_anew(c, j, i, &anew, e)) return -1;
        if (anew)
            return kvc_fail(e, KVC_ERR_USAGE,
                            "%s and %s cannot be joined: both begin with the first token of a "
                            "text, and their rows would stand there one after the other: pack the "
                            "second alone, with --base=%s where it is the same text",
                            j->from[0].name, j->from[i].name, j->from[0].name);
    }
    return 0;
}

/* Joins the companions of a role that the operands have, or leaves them out where they do not
 * match. */
static int join_companions(struct kvc_cache *c, struct join *j, enum kvc_role role,
                           struct kvc_join_report *report, struct kvc_error *e) {
    size_t like;
    if (list_rows(j, KVC_PART_COMPANION, role, &like, e)) return -1;
    const uint32_t *part = j->part + j->n_parts * j->n;
    if (like == j->n) return 0;
    if (join_check_layers(j, part, like, NULL) ||
        check_positions(j, part, KVC_PART_COMPANION, NULL)) {
        report->left_out = 1;
        return 0;
    }
    return add_cells(c, j, KVC_PART_COMPANION, e) ? -1
                                                  : join_add_layers(c, j, like, j->n_parts++, e);
}

static int join_build(struct kvc_cache *c, struct join *j, struct kvc_join_report *report,
                      struct kvc_error *e) {
    for (size_t i = 0; i < j->n; i++)
        if (kvc_join_check_operand(&j->from[i], e) || kvc_join_check_alone(&j->from[i], e))
            return -1;
    report->by_order = are_without_positions(j);
    for (size_t i = 1; i < j->n && report->by_order; i++)
        j->shift[i] = j->shift[i - 1] + (int64_t)live_cells(j->from[i - 1].cache)->n;
    if (join_part(c, j, KVC_PART_LIVE, e) || join_part(c, j, KVC_PART_WINDOW, e)) return -1;
    if (join_companions(c, j, KVC_ROLE_QUERIES, report, e) ||
        join_companions(c, j, KVC_ROLE_HIDDEN, report, e))
        return -1;
    if (join_add_tensors(c, j, e) || (report->by_order && refuse_repeated(c, j, e))) return -1;
    if (kvc_join_meta(&c->meta, j->from, j->n, KVC_KEY_TOKENS_FIRST, e) ||
        kvc_values_join(&c->meta, j->from, j->n, e) || join_ids(c, j, report, e))
        return -1;
    if (kvc_cache_finish(c, e) || join_prefix(c, j, e)) return -1;
    return 0;
}

struct kvc_cache *kvc_view_join(const struct kvc_join_operand *from, size_t n,
                                struct kvc_join_report *report, struct kvc_error *e) {
    struct kvc_cache *c = kvc_cache_derived(sizeof(struct join), join_close, e);
    if (!c) return NULL;
    memset(report, 0, sizeof *report);
    struct join *j = c->impl;
    c->read = join_read;
    c->threads = join_threads;
    int status = -1;
    *j = (struct join){.n = n,
                       .from = kvc_alloc(n, sizeof *j->from),
                       .shift = kvc_alloc_zeros(n, sizeof *j->shift)};
    if (!j->from || !j->shift) kvc_fail_memory(e, "a cache");
    else if (!n) kvc_fail(e, KVC_ERR_USAGE, "there are no caches to join");
    else {
        memcpy(j->from, from, n * sizeof *from);
        status = join_build(c, j, report, e);
    }
    if (!status) return c;
    kvc_cache_free(c);
    return NULL;
}
