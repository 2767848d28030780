/* profile_learn_relation.c: counts how K and V of a layer go with those of the layers before it. Not for the matrices that follow from
 * it (profile_learn_predictor.c). */
#include "formats/model/profile_learn.h"

#include "codecs/eigen.h"
#include "codecs/floats.h"
#include "codecs/memory.h"
#include "formats/model/profile_learn_state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void kvc_learnt_relation_free(struct kvc_learnt_relation *r) {
    free(r->sum);
    free(r->gram);
}

/* A layer of the part that is read: its tensors, its columns among those of all layers, and its RoPE. */
struct column {
    uint32_t layer, tensor[2];
    size_t at, width[2];
    struct kvc_rope rope;
};

/* The layers of one part that have K and V as floats, ascending. */
struct table {
    struct column *column;
    unsigned n;
    size_t width;
};

static void table_free(struct table *t) {
    for (unsigned i = 0; i < t->n; i++) kvc_rope_free(&t->column[i].rope);
    free(t->column);
}

static int by_layer(const void *a, const void *b) {
    const struct column *x = a, *y = b;
    return x->layer < y->layer ? -1 : x->layer > y->layer;
}

static int list_columns(struct kvc_learner *l, const struct kvc_cache *c, uint32_t part, struct table *t, struct kvc_error *e) {
    *t = (struct table){.column = kvc_alloc_zeros((uint64_t)c->n_layers + 1, sizeof *t->column)};
    if (!t->column) return kvc_fail_memory(e, "a profile");
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct kvc_layer *layer = &c->layer[i];
        struct column *x = &t->column[t->n];
        if (layer->part != part || layer->index >= l->layers) continue;
        int whole = 1;
        for (int r = 0; r < 2 && whole; r++) {
            const uint32_t tensor = x->tensor[r] = layer->tensor[r];
            whole = tensor != KVC_NONE && c->tensor[tensor].role == (enum kvc_role)r &&
                    kvc_is_float(c->tensor[tensor].shape.dtype);
            if (whole) x->width[r] = (size_t)(c->tensor[tensor].shape.heads * c->tensor[tensor].shape.dim);
        }
        if (!whole) continue;
        x->layer = layer->index;
        if (kvc_learn_rope(l, c, i, &l->layer[layer->index], &x->rope, e)) return -1;
        t->n++;
    }
    qsort(t->column, t->n, sizeof *t->column, by_layer);
    for (unsigned i = 0; i < t->n; i++) {
        t->column[i].at = t->width;
        t->width += t->column[i].width[0] + t->column[i].width[1];
    }
    return 0;
}

/* Begins the relation of column i, or checks that it is that of the caches before. Returns NULL on failure. */
static struct kvc_learnt_relation *relation_of(struct kvc_learner *l, const struct table *t, unsigned i, struct kvc_error *e) {
    struct kvc_learnt_relation own = {.n = 0}, *r = &l->relation[t->column[i].layer];
    for (unsigned k = 0; k <= i; k++) {
        const struct column *x = &t->column[k];
        if (x->layer + l->back < t->column[i].layer) continue;
        own.layers[own.n] = x->layer;
        memcpy(own.width[own.n++], x->width, sizeof x->width);
        own.size += x->width[0] + x->width[1];
    }
    if (r->n) {
        if (r->n == own.n && memcmp(r->layers, own.layers, sizeof own.layers) == 0 &&
            memcmp(r->width, own.width, sizeof own.width) == 0)
            return r;
        kvc_fail(e, KVC_ERR_MODEL, "layer %" PRIu32 ": the layers before it are not those of the caches before",
                 t->column[i].layer);
        return NULL;
    }
    own.sum = kvc_alloc_zeros(own.size, sizeof *own.sum);
    own.gram = kvc_alloc_zeros(own.size, own.size * sizeof *own.gram);
    *r = own;
    if (r->sum && r->gram) return r;
    kvc_fail_memory(e, "a profile");
    return NULL;
}

/* Reads the rows of block b of all columns into rows[][t->width], as floats before RoPE. Rows at the first positions, and rows with
 * a value that is not finite, are left out. */
static int read_block(const struct kvc_cache *c, struct table *t, uint64_t b, float *rows, uint8_t *bytes, size_t *kept,
                      struct kvc_error *e) {
    const struct kvc_cells *cells = &kvc_tensor_part(c, t->column[0].tensor[0])->cells;
    const uint64_t first = cells->block[b], n = cells->block[b + 1] - first;
    float *room = rows + KVC_BLOCK * t->width;
    uint8_t keep[KVC_BLOCK];
    for (uint64_t i = 0; i < n; i++) keep[i] = kvc_cells_position(cells, first + i) >= KVC_PROFILE_FIRST;
    for (unsigned k = 0; k < t->n; k++)
        for (int r = 0; r < 2; r++) {
            struct column *x = &t->column[k];
            const struct kvc_shape *shape = &c->tensor[x->tensor[r]].shape;
            if (c->read(c, x->tensor[r], first, n, bytes, e)) return -1;
            for (uint64_t i = 0; i < n; i++) {
                float *to = rows + i * t->width + x->at + (r ? x->width[0] : 0);
                kvc_to_floats(to, bytes + i * kvc_row_bytes(shape), x->width[r], shape->dtype);
                if (!kvc_all_finite(to, x->width[r])) keep[i] = 0;
                else if (keep[i] && !r)
                    kvc_learn_normalise(&x->rope, to, (size_t)shape->heads, (size_t)shape->dim,
                                        kvc_cells_position(cells, first + i), room);
            }
        }
    *kept = 0;
    for (uint64_t i = 0; i < n; i++)
        if (keep[i]) memmove(rows + (*kept)++ * t->width, rows + i * t->width, t->width * sizeof *rows);
    return 0;
}

static int add_part(struct kvc_learner *l, const struct kvc_cache *c, struct table *t, struct kvc_error *e) {
    const uint64_t blocks = t->n ? kvc_tensor_part(c, t->column[0].tensor[0])->cells.n_blocks : 0;
    uint64_t widest = 1;
    for (unsigned k = 0; k < t->n; k++)
        for (int r = 0; r < 2; r++) {
            const uint64_t row = kvc_row_bytes(&c->tensor[t->column[k].tensor[r]].shape);
            if (row > widest) widest = row;
        }
    float *rows = kvc_alloc(KVC_BLOCK + 1, (t->width + 1) * sizeof *rows);
    uint8_t *bytes = kvc_alloc(KVC_BLOCK, widest);
    int status = rows && bytes ? 0 : kvc_fail_memory(e, "rows");
    for (uint64_t b = 0; b < blocks && !status; b++) {
        size_t kept;
        status = read_block(c, t, b, rows, bytes, &kept, e);
        for (unsigned i = 0; i < t->n && !status; i++) {
            struct kvc_learnt_relation *r = relation_of(l, t, i, e);
            if (!r) {
                status = -1;
                break;
            }
            const float *from = rows + t->column[i].at + t->column[i].width[0] + t->column[i].width[1] - r->size;
            for (size_t k = 0; k < kept; k++)
                for (size_t j = 0; j < r->size; j++) r->sum[j] += (double)from[k * t->width + j];
            status = kvc_gram_add(r->gram, from, kept, r->size, t->width, e);
            r->rows += (double)kept;
        }
    }
    free(rows);
    free(bytes);
    return status;
}

int kvc_learn_relations(struct kvc_learner *l, const struct kvc_cache *c, struct kvc_error *e) {
    if (l->n_relations < l->layers) {
        struct kvc_learnt_relation *grown = kvc_realloc(l->relation, l->layers, sizeof *grown);
        if (!grown) return kvc_fail_memory(e, "a profile");
        memset(grown + l->n_relations, 0, (l->layers - l->n_relations) * sizeof *grown);
        l->relation = grown;
        l->n_relations = l->layers;
    }
    for (uint32_t p = 0; p < c->n_parts; p++) {
        struct table t;
        if (c->part[p].kind != KVC_PART_LIVE && c->part[p].kind != KVC_PART_SLIDING) continue;
        const int status = list_columns(l, c, p, &t, e) || add_part(l, c, &t, e);
        table_free(&t);
        if (status) return -1;
    }
    return 0;
}
