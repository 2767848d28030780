/* pairs.c: matches the parts and tensors of two caches. */
#include "formats/compare/pairs.h"

#include <stdlib.h>
#include <string.h>

/* A tensor, or a part (its tensor is KVC_NONE). Items of two caches match if their keys are equal.
 */
struct item {
    uint32_t key[5]; /* kind, stream and snapshot of the part; layer, role */
    uint32_t part, tensor;
    int wanted; /* selected; parts: and without tensors */
};

/* Items that match; KVC_NONE: of a cache without one. */
struct match {
    struct item own;
    uint32_t part[2], tensor[2];
};

static int order_of(const uint32_t *a, const uint32_t *b, int n) {
    for (int i = 0; i < n; i++)
        if (a[i] != b[i]) return a[i] < b[i] ? -1 : 1;
    return 0;
}

/* Compares two items for sorting; items of equal keys keep their order. */
static int item_order(const void *x, const void *y) {
    const struct item *a = x, *b = y;
    int order = order_of(a->key, b->key, 5);
    if (!order) order = order_of(&a->part, &b->part, 1);
    return order ? order : order_of(&a->tensor, &b->tensor, 1);
}

/* Compares two matches: those of the same two parts lie together. */
static int match_order(const void *x, const void *y) {
    const struct match *a = x, *b = y;
    int order = order_of(a->own.key, b->own.key, 3);
    if (!order) order = order_of(a->part, b->part, 2);
    if (!order) order = order_of(a->own.key + 3, b->own.key + 3, 2);
    return order ? order : order_of(a->tensor, b->tensor, 2);
}

static void *array_of(size_t n, size_t size, struct kvc_error *e) {
    void *p = calloc(n ? n : 1, size);
    if (!p) kvc_fail_memory(e, "the list of tensors");
    return p;
}

static int wants_layer(const struct kvc_pairs *p, uint32_t layer) {
    return !p->keep || (layer < p->n_keep && p->keep[layer]);
}

static struct item item_of(const struct kvc_cache *c, uint32_t part) {
    const struct kvc_part *x = &c->part[part];
    /* whether a cache keeps windows apart, and in how many parts, is no matter of values */
    const uint32_t kind = kvc_part_is_attended(x) ? KVC_PART_LIVE : x->kind;
    return (struct item){{kind, x->stream, x->snapshot, KVC_NONE, 0}, part, KVC_NONE, 0};
}

/* Returns the tensors and the parts of a cache, sorted. */
static struct item *items_of(const struct kvc_pairs *p, const struct kvc_cache *c, size_t *n,
                             struct kvc_error *e) {
    struct item *item = array_of((size_t)c->n_tensors + c->n_parts, sizeof *item, e);
    if (!item) return NULL;
    struct item *const part = item + c->n_tensors;
    for (uint32_t i = 0; i < c->n_parts; i++) {
        part[i] = item_of(c, i);
        /* without a selection of layers, a part that has none is selected as well */
        part[i].wanted = !p->keep;
    }
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const struct kvc_layer *layer = kvc_tensor_layer(c, t);
        item[t] = item_of(c, layer->part);
        item[t].key[3] = layer->index;
        item[t].key[4] = c->tensor[t].role;
        item[t].tensor = t;
        item[t].wanted = wants_layer(p, layer->index);
        part[layer->part].wanted = 0;
        if (part[layer->part].key[0] == KVC_PART_COMPANION)
            part[layer->part].key[4] = c->tensor[t].role;
    }
    *n = (size_t)c->n_tensors + c->n_parts;
    qsort(item, *n, sizeof *item, item_order);
    return item;
}

/* Matches sorted items. Returns the number of matches. */
static size_t match_items(struct item *const item[2], const size_t n[2], struct match *match) {
    size_t at[2] = {0, 0}, matches = 0;
    while (at[0] < n[0] || at[1] < n[1]) {
        const struct item *next[2];
        for (int s = 0; s < 2; s++) next[s] = at[s] < n[s] ? &item[s][at[s]] : NULL;
        const int order = next[0] && next[1] ? order_of(next[0]->key, next[1]->key, 5) : 0;
        if (order) next[order < 0] = NULL;
        struct match *const m = &match[matches++];
        for (int s = 0; s < 2; s++) {
            m->part[s] = next[s] ? next[s]->part : KVC_NONE;
            m->tensor[s] = next[s] ? next[s]->tensor : KVC_NONE;
            at[s] += next[s] != NULL;
        }
        m->own = next[0] ? *next[0] : *next[1];
        m->own.wanted |= next[1] && next[1]->wanted;
    }
    return matches;
}

/* Gives what one cache lacks the part that other tensors of its part match; without any, the part
 * that is as many parts on. */
static int find_other_parts(const struct kvc_pairs *p, struct match *match, size_t n,
                            struct kvc_error *e) {
    for (int s = 0; s < 2; s++) {
        uint32_t *other = array_of(p->cache[s]->n_parts, sizeof *other, e);
        if (!other) return -1;
        memset(other, 0xff, p->cache[s]->n_parts * sizeof *other); /* KVC_NONE */
        for (size_t i = n; i-- > 0;)
            if (match[i].part[0] != KVC_NONE && match[i].part[1] != KVC_NONE)
                other[match[i].part[s]] = match[i].part[!s];
        for (size_t i = 0; i < n; i++)
            if (match[i].part[!s] == KVC_NONE) match[i].part[!s] = other[match[i].part[s]];
        free(other);
    }
    return 0;
}

/* Returns the number of heads for the report of a pair, or 0 if rows are not comparable. If an
 * engine does not record the number, the cache has one head of all channels, and the number of the
 * other side is used. */
static uint64_t heads_of(const struct kvc_pairs *p, const uint32_t tensor[2]) {
    if (tensor[0] == KVC_NONE || tensor[1] == KVC_NONE) return 0;
    const struct kvc_shape *a = &p->cache[0]->tensor[tensor[0]].shape,
                           *b = &p->cache[1]->tensor[tensor[1]].shape;
    if (a->heads * a->dim != b->heads * b->dim) return 0;
    if (a->heads == b->heads) return a->heads;
    if (a->heads == 1 && p->cache[0]->meta.facts.heads_unknown) return b->heads;
    if (b->heads == 1 && p->cache[1]->meta.facts.heads_unknown) return a->heads;
    return 0;
}

/* Adds a pair of parts to the result. */
static int add_parts(struct kvc_pairs *p, const struct match *m, struct kvc_error *e) {
    struct kvc_part_pair *pair = &p->part[p->n_parts++];
    for (int s = 0; s < 2; s++)
        if (m->part[s] != KVC_NONE) pair->part[s] = &p->cache[s]->part[m->part[s]];
    if (!pair->part[0] || !pair->part[1]) return 0;
    return kvc_match_rows(&pair->part[0]->cells, &pair->part[1]->cells, p->first, p->last,
                          &pair->rows, e);
}

/* Lists sorted matches that are wanted. */
static int list_pairs(struct kvc_pairs *p, const struct match *match, size_t n,
                      struct kvc_error *e) {
    const struct match *last = NULL;
    for (const struct match *m = match; m < match + n; last = m++) {
        if ((!last || order_of(last->part, m->part, 2)) && add_parts(p, m, e)) return -1;
        if (m->own.tensor == KVC_NONE) continue;
        p->tensor[p->n_tensors++] = (struct kvc_tensor_pair){.parts = &p->part[p->n_parts - 1],
                                                             .layer = m->own.key[3],
                                                             .role = (enum kvc_role)m->own.key[4],
                                                             .tensor = {m->tensor[0], m->tensor[1]},
                                                             .heads = heads_of(p, m->tensor)};
    }
    return 0;
}

int kvc_pairs_repeats(const struct kvc_pairs *p, size_t i, int side) {
    const struct kvc_matching *x = &p->part[i].rows;
    for (size_t k = i; k-- > 0 && p->part[k].part[side] == p->part[i].part[side];) {
        const struct kvc_matching *before = &p->part[k].rows;
        if (p->part[k].part[!side] && before->n_only[side] == x->n_only[side] &&
            (!x->n_only[side] || !memcmp(before->only[side], x->only[side],
                                         (size_t)x->n_only[side] * sizeof *x->only[side])))
            return 1;
    }
    return 0;
}

static int reaches_position(const struct kvc_pairs *p, const struct kvc_part *part) {
    for (uint64_t i = 0; part && i < part->cells.n; i++)
        if (part->cells.pos[i] >= p->first && part->cells.pos[i] <= p->last) return 1;
    return 0;
}

enum kvc_pairs_reach kvc_pairs_reach(const struct kvc_pairs *p) {
    if (p->keep && !p->n_tensors) return KVC_PAIRS_NO_LAYERS;
    if (p->first == INT64_MIN) return KVC_PAIRS_SOME;
    for (size_t i = 0; i < p->n_parts; i++)
        for (int s = 0; s < 2; s++)
            if (reaches_position(p, p->part[i].part[s])) return KVC_PAIRS_SOME;
    return KVC_PAIRS_NO_POSITIONS;
}

struct kvc_align_sample kvc_pairs_sample(const struct kvc_pairs *p, enum kvc_role role) {
    for (size_t i = 0; i < p->n_tensors; i++) {
        const struct kvc_tensor_pair *pair = &p->tensor[i];
        if (pair->role == role && pair->heads && pair->parts->rows.rows)
            return (struct kvc_align_sample){{pair->tensor[0], pair->tensor[1]},
                                             &pair->parts->rows};
    }
    return (struct kvc_align_sample){.rows = NULL};
}

/* Describes a pair for users. */
static struct kvc_compared shown(const struct kvc_pairs *p, const struct kvc_tensor_pair *t) {
    const struct kvc_part *part = t->parts->part[t->tensor[0] == KVC_NONE];
    struct kvc_compared x = {.size = sizeof x,
                             .number = (size_t)(t - p->tensor),
                             .part = kvc_part_kind_name(part->kind),
                             .stream = part->stream,
                             .snapshot = part->snapshot,
                             .parts = (size_t)(t->parts - p->part),
                             .layer = t->layer,
                             .role = kvc_role_name(t->role),
                             .tensor = {t->tensor[0], t->tensor[1]},
                             .heads = t->heads,
                             .rows = t->parts->rows.rows};
    for (int s = 0; s < 2; s++)
        if (t->tensor[s] != KVC_NONE)
            x.window[s] = p->cache[s]->layer[p->cache[s]->tensor[t->tensor[s]].layer].window;
    if (!t->heads) return x;
    const struct kvc_shape *shape = &p->cache[0]->tensor[t->tensor[0]].shape;
    x.channels = shape->heads * shape->dim;
    x.bytes = x.rows * kvc_row_bytes(shape);
    return x;
}

int kvc_pairs_find(struct kvc_pairs *p, struct kvc_error *e) {
    struct item *item[2];
    size_t n[2] = {0, 0}, kept = 0;
    for (int s = 0; s < 2; s++) item[s] = items_of(p, p->cache[s], &n[s], e);
    struct match *match = array_of(n[0] + n[1], sizeof *match, e);
    p->part = array_of(n[0] + n[1], sizeof *p->part, e);
    p->tensor = array_of(n[0] + n[1], sizeof *p->tensor, e);
    int status = item[0] && item[1] && match && p->part && p->tensor ? 0 : -1;
    const size_t matches = status ? 0 : match_items(item, n, match);
    if (!status) status = find_other_parts(p, match, matches, e);
    for (size_t i = 0; i < matches; i++)
        if (match[i].own.wanted) match[kept++] = match[i];
    if (kept) qsort(match, kept, sizeof *match, match_order);
    if (!status) status = list_pairs(p, match, kept, e);
    for (size_t i = 0; i < p->n_tensors; i++) p->tensor[i].shown = shown(p, &p->tensor[i]);
    for (int s = 0; s < 2; s++) free(item[s]);
    free(match);
    return status;
}

void kvc_pairs_free(struct kvc_pairs *p) {
    for (size_t i = 0; i < p->n_parts; i++) kvc_matching_free(&p->part[i].rows);
    free(p->part);
    free(p->tensor);
    p->part = NULL;
    p->tensor = NULL;
    p->n_parts = p->n_tensors = 0;
}

struct kvc_difference *kvc_pairs_compare(const struct kvc_cache *const cache[2],
                                         const struct kvc_tensor_pair *pair,
                                         const struct kvc_compare_options *o,
                                         struct kvc_difference *all, struct kvc_error *e) {
    struct kvc_difference *head = calloc((size_t)pair->heads, sizeof *head);
    *all = (struct kvc_difference){0};
    if (!head) {
        kvc_fail_memory(e, "the measures of heads");
        return NULL;
    }
    if (kvc_compare_tensor(cache[0], pair->tensor[0], cache[1], pair->tensor[1], &pair->parts->rows,
                           pair->heads, o, head, e)) {
        free(head);
        return NULL;
    }
    for (uint64_t h = 0; h < pair->heads; h++) kvc_difference_add(all, &head[h]);
    return head;
}
