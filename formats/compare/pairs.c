/* pairs.c: matches the parts and tensors of two caches. */
#include "formats/compare/pairs.h"

#include <stdlib.h>
#include <string.h>

/* A part or a tensor. Items of two caches match if their keys are equal. */
struct item {
    /* parts: kind, stream, snapshot, companion's role; tensors: parts, layer, role */
    uint32_t key[4];
    uint32_t number;
    int wanted; /* of parts: selected */
};

static int key_order(const struct item *a, const struct item *b) {
    for (int i = 0; i < 4; i++)
        if (a->key[i] != b->key[i]) return a->key[i] < b->key[i] ? -1 : 1;
    return 0;
}

/* Compares two items for sorting; items of equal keys keep their order. */
static int item_order(const void *x, const void *y) {
    const struct item *a = x, *b = y;
    int order = key_order(a, b);
    return order ? order : a->number < b->number ? -1 : a->number > b->number;
}

/* The sorted items of two caches. */
struct merge {
    struct item *item[2];
    size_t n[2], at[2];
};

/* Returns the next item of one cache, or of both if their keys are equal; number[] is KVC_NONE for
 * a cache without the item. Items that neither cache wants are passed over. NULL: the end. */
static const struct item *next_pair(struct merge *m, uint32_t number[2]) {
    const struct item *next[2];
    do {
        for (int s = 0; s < 2; s++) next[s] = m->at[s] < m->n[s] ? &m->item[s][m->at[s]] : NULL;
        int order = next[0] && next[1] ? key_order(next[0], next[1]) : 0;
        if (order) next[order < 0] = NULL;
        for (int s = 0; s < 2; s++) {
            number[s] = next[s] ? next[s]->number : KVC_NONE;
            m->at[s] += next[s] != NULL;
        }
    } while ((next[0] || next[1]) && !(next[0] && next[0]->wanted) &&
             !(next[1] && next[1]->wanted));
    return next[0] ? next[0] : next[1];
}

static void *array_of(size_t n, size_t size, struct kvc_error *e) {
    void *p = calloc(n ? n : 1, size);
    if (!p) kvc_fail_memory(e, "the list of tensors");
    return p;
}

static int wants_layer(const struct kvc_pairs *p, uint32_t layer) {
    return !p->keep || (layer < p->n_keep && p->keep[layer]);
}

/* Returns the parts of a cache, sorted. */
static struct item *part_items(const struct kvc_pairs *p, const struct kvc_cache *c, size_t *n,
                               struct kvc_error *e) {
    struct item *item = array_of(c->n_parts, sizeof *item, e);
    if (!item) return NULL;
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const struct kvc_part *part = &c->part[i];
        /* without a selection of layers, a part that has none is selected as well */
        item[i] = (struct item){{part->kind, part->stream, part->snapshot, 0}, i, !p->keep};
    }
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const struct kvc_layer *layer = kvc_tensor_layer(c, t);
        if (c->part[layer->part].kind == KVC_PART_COMPANION)
            item[layer->part].key[3] = c->tensor[t].role;
        item[layer->part].wanted |= wants_layer(p, layer->index);
    }
    *n = c->n_parts;
    qsort(item, *n, sizeof *item, item_order);
    return item;
}

/* Returns the selected tensors of a cache, sorted; pair_of maps part numbers. */
static struct item *tensor_items(const struct kvc_pairs *p, const struct kvc_cache *c,
                                 const uint32_t *pair_of, size_t *n, struct kvc_error *e) {
    struct item *item = array_of(c->n_tensors, sizeof *item, e);
    if (!item) return NULL;
    *n = 0;
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const struct kvc_layer *layer = kvc_tensor_layer(c, t);
        if (wants_layer(p, layer->index))
            item[(*n)++] = (struct item){{pair_of[layer->part], layer->index, c->tensor[t].role, 0},
                                         t,
                                         1};
    }
    qsort(item, *n, sizeof *item, item_order);
    return item;
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

static int match_parts(struct kvc_pairs *p, uint32_t *pair_of[2], struct kvc_error *e) {
    struct merge m = {0};
    uint32_t number[2];
    for (int s = 0; s < 2; s++) m.item[s] = part_items(p, p->cache[s], &m.n[s], e);
    p->part = array_of(m.n[0] + m.n[1], sizeof *p->part, e);
    int status = m.item[0] && m.item[1] && p->part ? 0 : -1;
    while (!status && next_pair(&m, number)) {
        struct kvc_part_pair *pair = &p->part[p->n_parts];
        for (int s = 0; s < 2; s++) {
            if (number[s] == KVC_NONE) continue;
            pair->part[s] = &p->cache[s]->part[number[s]];
            pair_of[s][number[s]] = (uint32_t)p->n_parts;
        }
        p->n_parts++;
        if (pair->part[0] && pair->part[1])
            status = kvc_match_rows(&pair->part[0]->cells, &pair->part[1]->cells, p->first, p->last,
                                    &pair->rows, e);
    }
    for (int s = 0; s < 2; s++) free(m.item[s]);
    return status;
}

static int match_tensors(struct kvc_pairs *p, uint32_t *const pair_of[2], struct kvc_error *e) {
    struct merge m = {0};
    uint32_t number[2];
    for (int s = 0; s < 2; s++) m.item[s] = tensor_items(p, p->cache[s], pair_of[s], &m.n[s], e);
    p->tensor = array_of(m.n[0] + m.n[1], sizeof *p->tensor, e);
    int status = m.item[0] && m.item[1] && p->tensor ? 0 : -1;
    for (const struct item *any; !status && (any = next_pair(&m, number));)
        p->tensor[p->n_tensors++] = (struct kvc_tensor_pair){.parts = &p->part[any->key[0]],
                                                             .layer = any->key[1],
                                                             .role = (enum kvc_role)any->key[2],
                                                             .tensor = {number[0], number[1]},
                                                             .heads = heads_of(p, number)};
    for (int s = 0; s < 2; s++) free(m.item[s]);
    return status;
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
    const struct kvc_part *part = t->parts->part[0] ? t->parts->part[0] : t->parts->part[1];
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
    uint32_t *pair_of[2];
    for (int s = 0; s < 2; s++) pair_of[s] = array_of(p->cache[s]->n_parts, sizeof *pair_of[s], e);
    int status = pair_of[0] && pair_of[1] ? 0 : -1;
    if (!status) status = match_parts(p, pair_of, e);
    if (!status) status = match_tensors(p, pair_of, e);
    for (size_t i = 0; i < p->n_tensors; i++) p->tensor[i].shown = shown(p, &p->tensor[i]);
    for (int s = 0; s < 2; s++) free(pair_of[s]);
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
