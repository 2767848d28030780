/* encode_facts.c: collects the facts that stages may ask for when they encode a tensor: positions,
 * neighbouring tensors, queries, RoPE, the profile's part, sources of rebuilt rows. Not for
 * encoding (encode.c). */
#include "formats/container/coder.h"

#include "codecs/floats.h"
#include "codecs/memory.h"
#include "formats/cache/layers.h"
#include "formats/cache/scales.h"
#include "formats/cache/view.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int read_values(const struct kvc_encoding *encoding, unsigned role, uint64_t first,
                       uint64_t n, float *dst, struct kvc_error *e) {
    const struct kvc_tensor_coder *r = encoding->owner;
    const struct kvc_cache *c = r->x->cache;
    const struct kvc_layer *layer = kvc_tensor_layer(c, r->tensor);
    const uint32_t t = layer->tensor[role == KVC_SELECT_V];
    if (t == KVC_NONE || !kvc_is_float(c->tensor[t].shape.dtype))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "the layer has no %s in f32, f16 or bf16",
                        role == KVC_SELECT_V ? "V" : "K");
    return kvc_read_floats(c, t, first, n, dst, 0, e);
}

/* Reads the layer's queries into the encoding, if the cache has any. */
static int read_queries(struct kvc_tensor_coder *r, struct kvc_error *e) {
    const struct kvc_cache *q = r->x->options->queries, *c = r->x->cache;
    const struct kvc_shape *key = &r->facts.encoding.key;
    const uint32_t t = q ? kvc_cache_find_queries(q, kvc_tensor_layer(c, r->tensor)->index)
                         : KVC_NONE;
    if (t == KVC_NONE) return 0;
    const struct kvc_shape *shape = &q->tensor[t].shape;
    if (shape->dim != key->dim || shape->heads % key->heads)
        return kvc_fail_need(e, KVC_ERR_UNSUPPORTED,
                             c->meta.facts.heads_unknown ? KVC_NEED_HEADS : KVC_NEED_NOTHING,
                             "queries of %" PRIu64 " heads of %" PRIu64
                             " channels do not match K of %" PRIu64 " heads of %" PRIu64
                             " channels",
                             shape->heads, shape->dim, key->heads, key->dim);
    const struct kvc_cells *cells = kvc_tensor_cells(q, t);
    r->facts.query = kvc_alloc(shape->tokens, kvc_row_bytes(shape));
    r->facts.query_position = kvc_alloc(shape->tokens, sizeof *r->facts.query_position);
    if (!r->facts.query || !r->facts.query_position) return kvc_fail_memory(e, "queries");
    for (uint64_t i = 0; i < shape->tokens; i++)
        r->facts.query_position[i] = kvc_cells_position(cells, i);
    r->facts.encoding.query = r->facts.query;
    r->facts.encoding.query_position = r->facts.query_position;
    r->facts.encoding.query_heads = shape->heads;
    r->facts.encoding.n_queries = shape->tokens;
    return q->read(q, t, 0, shape->tokens, (uint8_t *)r->facts.query, e);
}

/* Finds the hidden states and the projection that rows are rebuilt from, if a stage does that. */
static int find_source(struct kvc_tensor_coder *r, kvc_rows_fn *read_hidden, struct kvc_error *e) {
    const struct kvc_cache *c = r->x->cache;
    if (!kvc_pipeline_has(r->pipeline, KVC_STAGE_REBUILDS)) return 0;
    const uint32_t from = kvc_plan_hidden(c, r->pipeline, r->tensor);
    const struct kvc_facts *facts = &c->meta.facts;
    if (kvc_rebuilder_init(&r->facts.rebuilder, c, r->tensor, r->x->projections, read_hidden, r, e))
        return -1;
    r->facts.source = (struct kvc_rebuild_source){
        .rebuild = &r->facts.rebuilder.rebuild,
        .from = from,
        .in = from == KVC_NONE ? 0
                               : (size_t)(c->tensor[from].shape.heads * c->tensor[from].shape.dim),
        .is_hidden = c->tensor[r->tensor].role == KVC_ROLE_HIDDEN,
        .normed = (int)facts->hidden_place - KVC_HIDDEN_BEFORE_NORM,
        .rope = facts->rope,
    };
    r->facts.encoding.source = &r->facts.source;
    if (!r->facts.source.is_hidden && facts->rope.pairing == KVC_PAIRING_UNKNOWN)
        return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_PAIRING,
                             "the RoPE pairing of K is unknown");
    return 0;
}

/* Gives inputs of rows as a reader decodes them: of lossless tensors, those of the source. */
static int small_rows(const void *owner, uint32_t tensor, const uint64_t *row, size_t n, int8_t *to,
                      size_t stride, struct kvc_error *e) {
    const struct kvc_tensor_coder *r = owner;
    const struct kvc_cache *c = r->x->cache;
    if (!kvc_pipeline_lossless(kvc_coder_pipeline(r->x, tensor)))
        return kvc_loop_small(r->x->loop, tensor, row, n, to, stride, e);
    const uint64_t first = row[0], rows = row[n - 1] - first + 1;
    const size_t width = (size_t)(c->tensor[tensor].shape.heads * c->tensor[tensor].shape.dim);
    uint8_t *bytes = kvc_alloc(rows, kvc_row_bytes(&c->tensor[tensor].shape));
    int8_t *small = kvc_alloc(rows, width);
    int status = bytes && small ? c->read(c, tensor, first, rows, bytes, e)
                                : kvc_fail_memory(e, "inputs");
    if (!status) status = kvc_small_rows(&r->facts.predict, tensor, first, rows, bytes, small, e);
    if (!status) kvc_small_spread(small, width, first, row, n, to, stride);
    free(bytes);
    free(small);
    return status;
}

/* Finds the tensors from which rows may be predicted. */
static int find_inputs(struct kvc_tensor_coder *r, struct kvc_error *e) {
    const struct kvc_cache *c = r->x->cache;
    if (!kvc_pipeline_has(r->pipeline, KVC_STAGE_AHEAD) || !kvc_plan_select(&c->tensor[r->tensor]))
        return 0;
    if (kvc_tensor_is_companion(c, r->tensor) || !r->facts.profile) return 0;
    kvc_predict_source_init(&r->facts.predict, c, r->tensor, r->x->options->profile,
                            c->meta.facts.rope.pairing, small_rows, r);
    r->facts.predict.memo = &r->facts.predicted;
    r->facts.predict.turn = r->x->turn;
    const int n = kvc_predict_inputs(&r->facts.predict, r->facts.ahead.from, e);
    if (n < 0) return -1;
    int any = 0;
    for (int i = 0; i < n; i++) {
        any |= r->facts.ahead.from[i] != KVC_AHEAD_NONE;
        r->facts.ahead.layer_of[i] = r->facts.ahead.from[i] == KVC_AHEAD_NONE
                                         ? 0
                                         : c->layer[c->tensor[r->facts.ahead.from[i]].layer].index;
    }
    r->facts.ahead.layer = kvc_tensor_layer(c, r->tensor)->index;
    r->facts.ahead.ahead = &r->facts.predict.ahead;
    r->facts.ahead.n = any ? (size_t)n : 0;
    r->facts.encoding.ahead = &r->facts.ahead;
    return 0;
}

/* Rotates the profile's queries to the position of the last row. */
static int rotate_queries(struct kvc_tensor_coder *r, const struct kvc_profile_part *part,
                          struct kvc_error *e) {
    const size_t row = part->query_heads * part->dim;
    struct kvc_rope rope;
    if (!part->n_queries || part->dim != r->facts.encoding.key.dim ||
        part->query_heads % r->facts.encoding.key.heads || !r->facts.encoding.rows)
        return 0;
    if (!(r->facts.profile_query = kvc_alloc(part->n_queries,
                                             row * sizeof *r->facts.profile_query)))
        return kvc_fail_memory(e, "queries");
    memcpy(r->facts.profile_query, part->query,
           part->n_queries * row * sizeof *r->facts.profile_query);
    r->facts.encoding.profile_query = r->facts.profile_query;
    r->facts.encoding.profile_queries = part->n_queries;
    r->facts.encoding.profile_query_heads = part->query_heads;
    const int64_t last = r->facts.encoding.position[r->facts.encoding.rows - 1];
    const struct kvc_rope_facts *turn = r->facts.encoding.rope;
    if (!turn || last < 0) return 0;
    if (kvc_rope_init(&rope, turn->angle, turn->half, turn->pairing, e)) return -1;
    kvc_rope_at(&rope, last);
    for (size_t q = 0; q < part->n_queries; q++)
        kvc_rope_turn(&rope, r->facts.profile_query + q * row, part->query_heads, part->dim);
    kvc_rope_free(&rope);
    return 0;
}

/* Returns the tokens of a layer's sliding window, 0 where the layer has none. Where the number is
 * unknown, a cache without position 0 is assumed to hold exactly the rows that the next token
 * attends to, as transformers keeps it. */
static uint64_t window_of(const struct kvc_facts *facts, const struct kvc_layer *layer,
                          const struct kvc_encoding *x) {
    const uint64_t window = kvc_layer_window(facts, layer);
    if (layer->kind != KVC_LAYER_WINDOW) return 0;
    return window ? window : x->rows && x->position[0] > 0 ? x->rows + 1 : 0;
}

/* Collects the facts of the profile and the metadata about the tensor and about its layer's K. */
static int find_knowledge(struct kvc_tensor_coder *r, struct kvc_error *e) {
    const struct kvc_cache *c = r->x->cache;
    const struct kvc_tensor *t = &c->tensor[r->tensor];
    const struct kvc_layer *layer = &c->layer[t->layer];
    const struct kvc_profile_part *key = NULL;
    const struct kvc_facts *facts = &c->meta.facts;
    /* making the inverse of a basis takes time */
    const int encodes = (kvc_pipeline_profile_need(r->pipeline, 1) & KVC_PROFILE_ENCODES) != 0;
    if (!kvc_plan_select(t)) return 0;
    /* Both tensors of a pair are decoded from the first one's sections, the second one with what
     * the profile knows of its own layer: these sections have to do without it. */
    const int alone = r->x->plan->partner[r->tensor] == KVC_NONE;
    if (r->x->options->profile &&
        ((alone && kvc_profile_part(r->x->options->profile, layer->index, t->role,
                                    facts->rope.pairing, encodes, &r->facts.profile, e)) ||
         kvc_profile_part(r->x->options->profile, layer->index, KVC_ROLE_K, facts->rope.pairing,
                          encodes, &key, e)))
        return -1;
    r->facts.encoding.window = window_of(facts, layer, &r->facts.encoding);
    const uint32_t k = layer->tensor[0];
    r->facts.encoding.rope = k != KVC_NONE && r->x->turn[k].half ? &r->x->turn[k] : NULL;
    return key ? rotate_queries(r, key, e) : 0;
}

int kvc_coder_describe(struct kvc_tensor_coder *r, kvc_rows_fn *read_hidden, struct kvc_error *e) {
    const struct kvc_cache *c = r->x->cache;
    const struct kvc_cells *cells = kvc_tensor_cells(c, r->tensor);
    const struct kvc_layer *layer = kvc_tensor_layer(c, r->tensor);
    const uint32_t partner = r->x->plan->partner[r->tensor];
    struct kvc_encoding *n = &r->facts.encoding;
    n->rows = cells->n;
    n->position = cells->pos;
    n->read = read_values;
    n->owner = r;
    n->first = cells->block[r->first_block];
    n->segment_rows = cells->block[r->end_block] - n->first;
    if (r->apart && kvc_shared_init(&r->facts.shared, e)) return -1;
    r->facts.has_shared = r->apart;
    n->shared = r->apart ? &r->facts.shared : &r->x->shared[c->tensor[r->tensor].layer];
    n->key = n->value = c->tensor[r->tensor].shape;
    if (layer->tensor[0] != KVC_NONE) n->key = c->tensor[layer->tensor[0]].shape;
    if (layer->tensor[1] != KVC_NONE) n->value = c->tensor[layer->tensor[1]].shape;
    if (partner != KVC_NONE) {
        n->second = partner < r->tensor;
        n->pair = n->second ? partner : r->tensor;
        n->deeper = kvc_tensor_layer(c, partner)->index < layer->index;
    }
    if (cells->order) {
        if (!(r->facts.position = kvc_alloc(cells->n, sizeof *r->facts.position)))
            return kvc_fail_memory(e, "positions");
        for (uint64_t i = 0; i < cells->n; i++) r->facts.position[i] = kvc_cells_position(cells, i);
        n->position = r->facts.position;
    }
    if (find_source(r, read_hidden, e) || (kvc_coder_looks(r->pipeline) && find_knowledge(r, e)) ||
        find_inputs(r, e))
        return -1;
    return kvc_coder_looks(r->pipeline) && kvc_plan_select(&c->tensor[r->tensor])
               ? read_queries(r, e)
               : 0;
}

void kvc_coder_facts_free(struct kvc_coder_facts *facts) {
    if (facts->has_shared) kvc_shared_free(&facts->shared);
    kvc_rebuilder_free(&facts->rebuilder);
    kvc_predict_memo_free(&facts->predicted);
    free(facts->position);
    free(facts->profile_query);
    free(facts->query);
    free(facts->query_position);
}
