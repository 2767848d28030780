/* rebuild_source.c: hidden states out of a cache, projections out of weights. Not for the
 * arithmetic (codecs/papers/project/project.c). */
#include "formats/model/rebuild_source.h"

#include "codecs/floats.h"
#include "codecs/memory.h"
#include "formats/cache/view.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(KVC_FINGERPRINT_BYTES == KVC_SHA256_BYTES, "a fingerprint is a SHA-256");

/* --- projections --- */

struct kvc_projections_slot {
    uint32_t layer;
    struct kvc_projection projection;
    uint8_t fingerprint[KVC_FINGERPRINT_BYTES];
    unsigned users; /* and one more while the slot is the one used last */
};

int kvc_projections_init(struct kvc_projections *p, const struct kvc_weights *weights,
                         struct kvc_error *e) {
    p->weights = weights;
    p->slot = NULL;
    return pthread_mutex_init(&p->lock, NULL) ? kvc_fail_memory(e, "a lock") : 0;
}

static void drop(struct kvc_projections_slot *slot) {
    if (!slot || --slot->users) return;
    kvc_projection_free(&slot->projection);
    free(slot);
}

void kvc_projections_free(struct kvc_projections *p) {
    drop(p->slot);
    pthread_mutex_destroy(&p->lock);
}

static struct kvc_projections_slot *rebuild_source_load(const struct kvc_projections *p,
                                                        uint32_t layer,
                                                        const struct kvc_projection_shape *shape,
                                                        struct kvc_error *e) {
    struct kvc_projections_slot *slot = calloc(1, sizeof *slot);
    if (!slot) {
        kvc_fail_memory(e, "weights");
        return NULL;
    }
    slot->layer = layer;
    slot->users = 1;
    int status = kvc_weights_load(p->weights, layer, shape, &slot->projection, e);
    if (!status && slot->projection.k_norm)
        status = kvc_fail(e, KVC_ERR_UNSUPPORTED,
                          "the model normalises K again before RoPE: K cannot be rebuilt");
    if (!status && slot->projection.norm_bias)
        status = kvc_fail(e, KVC_ERR_UNSUPPORTED,
                          "the model's norm has a bias: K and V cannot be rebuilt");
    if (!status) status = kvc_projection_fingerprint(&slot->projection, slot->fingerprint, e);
    if (!status) return slot;
    drop(slot);
    kvc_error_prefix(e, "weights");
    return NULL;
}

/* Loads the matrix of K or V. The weights must have the geometry of the cache. */
static int matrix(const struct kvc_rebuild *x, size_t in, struct kvc_matrix *m,
                  struct kvc_error *e) {
    const struct kvc_rebuilder *r = x->owner;
    const struct kvc_cache *c = r->cache;
    const struct kvc_layer *layer = kvc_tensor_layer(c, r->tensor);
    const int is_v = c->tensor[r->tensor].role == KVC_ROLE_V;
    if (!r->projections->weights)
        return kvc_fail_need(e, KVC_ERR_USAGE, KVC_NEED_WEIGHTS,
                             "K and V are rebuilt from hidden states with the model's weights");
    if (layer->tensor[0] == KVC_NONE || layer->tensor[1] == KVC_NONE)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "a layer without K or V cannot be rebuilt");
    const struct kvc_shape *key = &c->tensor[layer->tensor[0]].shape,
                           *value = &c->tensor[layer->tensor[1]].shape;
    const struct kvc_rope_facts *rope = &c->meta.facts.rope;
    const struct kvc_projection_shape shape = {.in = in,
                                               .heads = key->heads,
                                               .dim = key->dim,
                                               .dim_v = value->dim,
                                               .rotated = rope->dim,
                                               .pairing = rope->pairing};
    if (key->heads != value->heads)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "K and V differ in their number of heads");
    pthread_mutex_lock(&r->projections->lock);
    struct kvc_projections_slot *slot = r->projections->slot;
    if (!slot || slot->layer != layer->index || slot->projection.shape.in != in) {
        slot = rebuild_source_load(r->projections, layer->index, &shape, e);
        if (slot) {
            drop(r->projections->slot);
            r->projections->slot = slot;
        }
    }
    if (slot) slot->users++;
    pthread_mutex_unlock(&r->projections->lock);
    if (!slot) return -1;
    const struct kvc_projection *p = &slot->projection;
    *m = (struct kvc_matrix){.weight = is_v ? p->v : p->k,
                             .bias = is_v ? p->v_bias : p->k_bias,
                             .norm = p->norm,
                             .epsilon = p->norm_epsilon,
                             .hold = slot};
    memcpy(m->fingerprint, slot->fingerprint, sizeof m->fingerprint);
    return 0;
}

static void release(const struct kvc_rebuild *x, struct kvc_matrix *m) {
    const struct kvc_rebuilder *r = x->owner;
    pthread_mutex_lock(&r->projections->lock);
    drop(m->hold);
    pthread_mutex_unlock(&r->projections->lock);
}

/* --- hidden states --- */

uint32_t kvc_find_hidden(const struct kvc_cache *c, uint32_t tensor, uint32_t layer_index) {
    const struct kvc_cells *mine = kvc_tensor_cells(c, tensor);
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const struct kvc_cells *cells = kvc_tensor_cells(c, t);
        uint64_t i = 0;
        if (c->tensor[t].role != KVC_ROLE_HIDDEN || kvc_tensor_layer(c, t)->index != layer_index ||
            !kvc_is_float(c->tensor[t].shape.dtype) || cells->n != mine->n)
            continue;
        while (i < mine->n && kvc_cells_position(cells, i) == kvc_cells_position(mine, i)) i++;
        if (i == mine->n) return t;
    }
    return KVC_NONE;
}

/* Reads rows of hidden states, which have the numbers of the tensor's rows, as positions are the
 * same. */
static int hidden(const struct kvc_rebuild *x, uint32_t from, const uint64_t *row, size_t n,
                  size_t in, float *dst, struct kvc_error *e) {
    const struct kvc_rebuilder *r = x->owner;
    const struct kvc_cache *c = r->cache;
    if (from >= c->n_tensors || from == r->tensor || c->tensor[from].role != KVC_ROLE_HIDDEN ||
        !kvc_is_float(c->tensor[from].shape.dtype) ||
        c->tensor[from].shape.heads * c->tensor[from].shape.dim != in)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "tensor %" PRIu32 " is not one of hidden states of %zu channels", from, in);
    const struct kvc_cells *cells = kvc_tensor_cells(c, from);
    for (size_t i = 0; i < n; i++)
        if (row[i] >= cells->n || kvc_cells_position(cells, row[i]) != x->position[row[i]])
            return kvc_fail(e, KVC_ERR_DAMAGED, "position %" PRId64 " has no hidden state",
                            x->position[row[i]]);
    const uint64_t first = row[0], rows = row[n - 1] - first + 1;
    const size_t bytes = (size_t)kvc_row_bytes(&c->tensor[from].shape);
    uint8_t *piece = kvc_alloc(rows, bytes);
    if (!piece) return kvc_fail_memory(e, "hidden states");
    const int status = r->read(r->read_owner, from, first, rows, piece, e);
    for (size_t i = 0; i < n && !status; i++)
        kvc_to_floats(dst + i * in, piece + (row[i] - first) * bytes, in,
                      c->tensor[from].shape.dtype);
    free(piece);
    return status;
}

int kvc_rebuilder_init(struct kvc_rebuilder *r, const struct kvc_cache *c, uint32_t tensor,
                       struct kvc_projections *p, kvc_rows_fn *read, const void *read_owner,
                       struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_tensor_cells(c, tensor);
    *r = (struct kvc_rebuilder){.rebuild = {.owner = r,
                                            .position = cells->pos,
                                            .hidden = hidden,
                                            .matrix = matrix,
                                            .release = release},
                                .cache = c,
                                .tensor = tensor,
                                .projections = p,
                                .read = read,
                                .read_owner = read_owner};
    if (!cells->order) return 0;
    if (!(r->position = kvc_alloc(cells->n, sizeof *r->position)))
        return kvc_fail_memory(e, "positions");
    for (uint64_t i = 0; i < cells->n; i++) r->position[i] = kvc_cells_position(cells, i);
    r->rebuild.position = r->position;
    return 0;
}

void kvc_rebuilder_free(struct kvc_rebuilder *r) {
    free(r->position);
}
