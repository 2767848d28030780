/* encode.c: the records of a run of blocks of one tensor. Spec: FORMAT.md, "Records". Not for the stages' order
 * (codecs/pipeline.c) or the file's (writer.c).
 *
 * Where stages look at a whole segment before they encode, its blocks are read once more for each. Of the second tensor of a
 * pair the first one's blocks are encoded again, as its digests are those of what decodes from both. */
#include "formats/container/encode.h"

#include "codecs/floats.h"
#include "codecs/memory.h"
#include "formats/container/record_build.h"
#include "formats/container/container.h"
#include "formats/cache/hidden_states.h"
#include "formats/cache/keys.h"
#include "formats/cache/layers.h"
#include "formats/container/offsets.h"
#include "formats/model/layer_rope.h"
#include "formats/container/same_rows.h"
#include "formats/cache/view.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLED_FROM = 8, SAMPLE = 3 }; /* blocks from which on a sample serves, and which of them it is: every third */
enum { RUN_BLOCKS = 16 }; /* blocks encoded as one item of work where no stage looks: at most 4096 rows */

/* A tensor's blocks on their way through its pipeline, with the room they need. */
struct lane {
    const struct kvc_encode *x;
    uint32_t tensor;
    uint64_t row_bytes;
    const struct kvc_pipeline *pipeline;
    struct kvc_encoder encoder;
    struct kvc_encoding encoding;
    int64_t *position; /* owned; NULL: the cells' own */
    float *query;
    int64_t *query_position;
    uint8_t *rows, *own, *other, *decoded; /* of a block: all, those to be coded, the partner's, what comes back */
    uint64_t row[KVC_BLOCK], other_row[KVC_BLOCK];
    struct kvc_same from[KVC_BLOCK];
    struct kvc_sections list;
    const struct kvc_profile_part *profile; /* of the tensor, or NULL */
    struct kvc_rope_facts rope;             /* of the layer's K */
    double *rope_room;
    float *profile_query;
    struct kvc_rebuilder rebuilder;
    struct kvc_rebuild_source source;
    struct lane *origin;   /* of a tensor whose rows are repeated, where these are not coded exactly */
    struct lane *hidden;   /* of the hidden states that rows are rebuilt from, where these are not coded exactly */
    uint64_t have;         /* block that `decoded` holds as one that others ask for, + 1; 0: none */
    uint64_t first_block, end_block;
};

static const struct kvc_cells *cells_of(const struct kvc_cache *c, uint32_t tensor) {
    return &kvc_tensor_part(c, tensor)->cells;
}

static const struct kvc_pipeline *pipeline_of(const struct kvc_encode *x, uint32_t tensor) {
    return &x->plan->pipeline[x->plan->pipeline_of[tensor]];
}

static int looks(const struct kvc_pipeline *p) {
    return kvc_pipeline_first(p, KVC_STAGE_LOOKS) < p->n;
}

static int is_second(const struct kvc_encode *x, uint32_t tensor) {
    return x->plan->partner[tensor] != KVC_NONE && x->plan->partner[tensor] < tensor;
}

uint64_t kvc_encode_run_blocks(const struct kvc_encode *x, uint32_t tensor) {
    return looks(pipeline_of(x, tensor)) ? KVC_SEGMENT_BLOCKS : RUN_BLOCKS;
}

/* --- what stages may ask --- */

static int read_values(const struct kvc_encoding *encoding, unsigned role, uint64_t first, uint64_t n, float *dst,
                       struct kvc_error *e) {
    const struct lane *l = encoding->owner;
    const struct kvc_cache *c = l->x->cache;
    const struct kvc_layer *layer = &c->layer[c->tensor[l->tensor].layer];
    const uint32_t t = layer->tensor[role == KVC_SELECT_V];
    if (t == KVC_NONE || !kvc_is_float(c->tensor[t].shape.dtype))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "the layer has no %s in f32, f16 or bf16", role == KVC_SELECT_V ? "V" : "K");
    const size_t values = (size_t)(n * c->tensor[t].shape.heads * c->tensor[t].shape.dim);
    uint8_t *rows = kvc_alloc(values, kvc_dtype_info(c->tensor[t].shape.dtype)->size);
    if (!rows) return kvc_fail_memory(e, "rows");
    const int status = c->read(c, t, first, n, rows, e);
    if (!status) kvc_to_floats(dst, rows, values, c->tensor[t].shape.dtype);
    free(rows);
    return status;
}

/* The layer's queries, if there are any, into the encoding. */
static int read_queries(struct lane *l, struct kvc_error *e) {
    const struct kvc_cache *q = l->x->queries, *c = l->x->cache;
    const struct kvc_shape *key = &l->encoding.key;
    uint32_t t = 0;
    if (!q) return 0;
    while (t < q->n_tensors && !(q->tensor[t].role == KVC_ROLE_QUERIES &&
                                 q->layer[q->tensor[t].layer].index == c->layer[c->tensor[l->tensor].layer].index))
        t++;
    if (t == q->n_tensors) return 0;
    const struct kvc_shape *shape = &q->tensor[t].shape;
    if (shape->dim != key->dim || shape->heads % key->heads)
        return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, kvc_cache_heads_known(c) ? KVC_NEED_NOTHING : KVC_NEED_HEADS,
                             "queries of %" PRIu64 " heads of %" PRIu64 " channels do not match K of %" PRIu64
                             " heads of %" PRIu64 " channels",
                             shape->heads, shape->dim, key->heads, key->dim);
    const struct kvc_cells *cells = cells_of(q, t);
    l->query = kvc_alloc(shape->tokens, kvc_row_bytes(shape));
    l->query_position = kvc_alloc(shape->tokens, sizeof *l->query_position);
    if (!l->query || !l->query_position) return kvc_fail_memory(e, "queries");
    for (uint64_t i = 0; i < shape->tokens; i++) l->query_position[i] = kvc_cells_position(cells, i);
    l->encoding.query = l->query;
    l->encoding.query_position = l->query_position;
    l->encoding.query_heads = shape->heads;
    l->encoding.n_queries = shape->tokens;
    return q->read(q, t, 0, shape->tokens, (uint8_t *)l->query, e);
}

static int read_hidden(const void *owner, uint32_t tensor, uint64_t first, uint64_t n, uint8_t *dst, struct kvc_error *e);
static struct lane *lane_make(const struct kvc_encode *x, uint32_t tensor, uint64_t block, uint64_t end, struct kvc_error *e);
static int prepare(struct lane *l, uint64_t first, uint64_t end, struct kvc_error *e);

/* What the lane's rows are rebuilt from, if a stage does that. */
static int find_source(struct lane *l, uint64_t block, uint64_t end, struct kvc_error *e) {
    const struct kvc_cache *c = l->x->cache;
    if (kvc_pipeline_first(l->pipeline, KVC_STAGE_REBUILDS) == l->pipeline->n) return 0;
    const uint32_t from = kvc_plan_hidden(c, l->pipeline, l->tensor);
    const enum kvc_pairing pairing = kvc_cache_pairing(c);
    if (kvc_rebuilder_init(&l->rebuilder, c, l->tensor, l->x->projections, read_hidden, l, e)) return -1;
    l->source = (struct kvc_rebuild_source){
        .rebuild = &l->rebuilder.rebuild,
        .from = from,
        .in = from == KVC_NONE ? 0 : (size_t)(c->tensor[from].shape.heads * c->tensor[from].shape.dim),
        .is_hidden = c->tensor[l->tensor].role == KVC_ROLE_HIDDEN,
        .normed = kvc_hidden_place(&c->meta),
        .rope_type = kvc_meta_text(&c->meta, KVC_KEY_ROPE_TYPE, ""),
        .theta = kvc_meta_f64(&c->meta, KVC_KEY_ROPE_THETA, 0),
        .factor = kvc_meta_f64(&c->meta, KVC_KEY_ROPE_FACTOR, 0),
        .rotated = (size_t)kvc_meta_u64(&c->meta, KVC_KEY_ROPE_DIM, 0),
        .pairing = pairing,
    };
    l->encoding.source = &l->source;
    if (!l->source.is_hidden && pairing == KVC_PAIRING_UNKNOWN)
        return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_PAIRING, "the RoPE pairing of K is unknown");
    if (from == KVC_NONE || kvc_pipeline_lossless(pipeline_of(l->x, from))) return 0;
    l->hidden = lane_make(l->x, from, block, end, e);
    return l->hidden ? prepare(l->hidden, block, end, e) : -1;
}

/* The profile's queries, turned to where the next token stands. */
static int turn_queries(struct lane *l, const struct kvc_profile_part *part, struct kvc_error *e) {
    const size_t row = part->query_heads * part->dim;
    struct kvc_rope rope;
    if (!part->n_queries || part->dim != l->encoding.key.dim || part->query_heads % l->encoding.key.heads || !l->encoding.rows)
        return 0;
    if (!(l->profile_query = kvc_alloc(part->n_queries, row * sizeof *l->profile_query))) return kvc_fail_memory(e, "queries");
    memcpy(l->profile_query, part->query, part->n_queries * row * sizeof *l->profile_query);
    l->encoding.profile_query = l->profile_query;
    l->encoding.profile_queries = part->n_queries;
    l->encoding.profile_query_heads = part->query_heads;
    const int64_t last = l->encoding.position[l->encoding.rows - 1];
    if (!l->rope.angle || last < 0) return 0;
    if (kvc_rope_init(&rope, l->rope.angle, l->rope.half, l->rope.pairing, e)) return -1;
    kvc_rope_at(&rope, last);
    for (size_t q = 0; q < part->n_queries; q++) kvc_rope_turn(&rope, l->profile_query + q * row, part->query_heads, part->dim);
    kvc_rope_free(&rope);
    return 0;
}

/* Tokens of a layer's sliding window, 0 where it has none. Where nobody says how many, a cache that no longer has its first
 * rows is taken to hold what the next token sees, as transformers keeps it. */
static uint64_t window_of(const struct kvc_cache *c, const struct kvc_layer *layer, const struct kvc_encoding *x) {
    const uint64_t window = kvc_layer_window(c, layer);
    if (layer->kind != KVC_LAYER_SLIDING) return 0;
    return window ? window : x->rows && x->position[0] > 0 ? x->rows + 1 : 0;
}

/* What a profile and the metadata know of the tensor and of its layer's K. */
static int find_knowledge(struct lane *l, struct kvc_error *e) {
    const struct kvc_cache *c = l->x->cache;
    const struct kvc_tensor *t = &c->tensor[l->tensor];
    const struct kvc_layer *layer = &c->layer[t->layer];
    const struct kvc_profile_part *key = NULL;
    if (!kvc_plan_select(t)) return 0;
    if (l->x->profile && (kvc_profile_part(l->x->profile, layer->index, t->role, kvc_cache_pairing(c), 1, &l->profile, e) ||
                          kvc_profile_part(l->x->profile, layer->index, KVC_ROLE_K, kvc_cache_pairing(c), 1, &key, e)))
        return -1;
    l->encoding.window = window_of(c, layer, &l->encoding);
    if (kvc_rope_of_layer(c, t->layer, key, &l->rope, &l->rope_room, e)) return -1;
    l->encoding.rope = &l->rope;
    return key ? turn_queries(l, key, e) : 0;
}

static int describe(struct lane *l, uint64_t block, uint64_t end, struct kvc_error *e) {
    const struct kvc_cache *c = l->x->cache;
    const struct kvc_cells *cells = cells_of(c, l->tensor);
    const struct kvc_layer *layer = &c->layer[c->tensor[l->tensor].layer];
    const uint32_t partner = l->x->plan->partner[l->tensor];
    struct kvc_encoding *n = &l->encoding;
    n->rows = cells->n;
    n->position = cells->pos;
    n->read = read_values;
    n->owner = l;
    n->first = cells->block[block];
    n->segment_rows = cells->block[end] - n->first;
    n->shared = &l->x->shared[c->tensor[l->tensor].layer];
    n->key = n->value = c->tensor[l->tensor].shape;
    if (layer->tensor[0] != KVC_NONE) n->key = c->tensor[layer->tensor[0]].shape;
    if (layer->tensor[1] != KVC_NONE) n->value = c->tensor[layer->tensor[1]].shape;
    if (partner != KVC_NONE) {
        n->second = partner < l->tensor;
        n->pair = n->second ? partner : l->tensor;
        n->deeper = c->layer[c->tensor[partner].layer].index < layer->index;
    }
    if (cells->order) {
        if (!(l->position = kvc_alloc(cells->n, sizeof *l->position))) return kvc_fail_memory(e, "positions");
        for (uint64_t i = 0; i < cells->n; i++) l->position[i] = kvc_cells_position(cells, i);
        n->position = l->position;
    }
    if (find_source(l, block, end, e) || (looks(l->pipeline) && find_knowledge(l, e))) return -1;
    return looks(l->pipeline) && kvc_plan_select(&c->tensor[l->tensor]) ? read_queries(l, e) : 0;
}

/* --- lanes --- */

static void lane_free(struct lane *l) {
    if (!l) return;
    kvc_encoder_free(&l->encoder);
    kvc_sections_free(&l->list);
    lane_free(l->hidden);
    lane_free(l->origin);
    kvc_rebuilder_free(&l->rebuilder);
    free(l->position);
    free(l->rope_room);
    free(l->profile_query);
    free(l->query);
    free(l->query_position);
    free(l->rows);
    free(l->own);
    free(l->other);
    free(l->decoded);
    free(l);
}

static struct lane *lane_make(const struct kvc_encode *x, uint32_t tensor, uint64_t block, uint64_t end, struct kvc_error *e) {
    struct lane *l = calloc(1, sizeof *l);
    if (!l) {
        kvc_fail_memory(e, "a run of blocks");
        return NULL;
    }
    l->x = x;
    l->tensor = tensor;
    l->first_block = block;
    l->end_block = end;
    l->row_bytes = kvc_row_bytes(&x->cache->tensor[tensor].shape);
    l->pipeline = pipeline_of(x, tensor);
    kvc_encoder_init(&l->encoder, l->pipeline, &l->encoding);
    kvc_sections_init(&l->list);
    const size_t n = (size_t)l->row_bytes * KVC_BLOCK;
    l->rows = malloc(n);
    l->own = malloc(n);
    l->other = x->plan->partner[tensor] == KVC_NONE ? NULL : malloc(n);
    l->decoded = malloc(n);
    int status = 0;
    if (!l->rows || !l->own || !l->decoded || (x->plan->partner[tensor] != KVC_NONE && !l->other))
        status = kvc_fail_memory(e, "a block");
    if (status || describe(l, block, end, e)) {
        lane_free(l);
        return NULL;
    }
    return l;
}

/* Equal rows may be said to be another tensor's only where they decode to what its own stages would make of them, or exactly. */
static int may_refer(const struct kvc_encode *x, uint32_t tensor, uint32_t to) {
    return x->plan->pipeline_of[tensor] == x->plan->pipeline_of[to] || kvc_pipeline_lossless(pipeline_of(x, to));
}

/* Reads block `number`: l->rows are all its rows, `block` those that repeat no earlier one, `partner` the other layer's. */
static int load(struct lane *l, uint64_t number, struct kvc_block *block, struct kvc_block *partner, struct kvc_error *e) {
    const struct kvc_cache *c = l->x->cache;
    const struct kvc_cells *cells = cells_of(c, l->tensor);
    const uint64_t first = cells->block[number], n = cells->block[number + 1] - first;
    const uint32_t other = l->x->plan->partner[l->tensor];
    uint64_t own = 0;
    if (c->read(c, l->tensor, first, n, l->rows, e)) return -1;
    for (uint64_t i = 0; i < n; i++) l->from[i].tensor = KVC_NONE;
    if (other == KVC_NONE && kvc_same_find(c, l->tensor, first, n, l->rows, l->from, e)) return -1;
    for (uint64_t i = 0; i < n; i++) {
        if (l->from[i].tensor != KVC_NONE && !may_refer(l->x, l->tensor, l->from[i].tensor)) l->from[i].tensor = KVC_NONE;
        if (l->from[i].tensor != KVC_NONE) continue;
        l->row[own] = first + i;
        memcpy(l->own + own++ * l->row_bytes, l->rows + i * l->row_bytes, (size_t)l->row_bytes);
    }
    *block = (struct kvc_block){.shape = c->tensor[l->tensor].shape, .rows = l->own, .row = l->row, .profile = l->profile,
                                .role = kvc_plan_select(&c->tensor[l->tensor])};
    block->shape.tokens = own;
    if (other == KVC_NONE) return 0;
    if (c->read(c, other, first, n, l->other, e)) return -1;
    for (uint64_t i = 0; i < n; i++) l->other_row[i] = first + i;
    *partner = *block;
    partner->rows = l->other;
    partner->row = l->other_row;
    block->partner = partner;
    return 0;
}

/* Lets every stage that looks see the segment, and settles its side data. */
static int prepare(struct lane *l, uint64_t first, uint64_t end, struct kvc_error *e) {
    const struct kvc_cache *c = l->x->cache;
    unsigned steps = l->pipeline->n;
    if (l->encoding.second) steps = kvc_pipeline_first(l->pipeline, KVC_STAGE_PAIR) + 1;
    for (unsigned i = 0; i < steps; i++) {
        struct kvc_block like = {.shape = c->tensor[l->tensor].shape, .role = kvc_plan_select(&c->tensor[l->tensor]),
                                 .profile = l->profile};
        if (!(l->pipeline->step[i].stage->flags & KVC_STAGE_LOOKS)) continue;
        like.shape.tokens = 0;
        for (uint64_t b = first; b < end && !like.shape.tokens; b++) { /* what earlier stages make of the shape */
            struct kvc_block block, partner;
            if (load(l, b, &block, &partner, e) || (block.shape.tokens && kvc_encoder_shape(&l->encoder, i, &block, e)))
                return -1;
            if (block.shape.tokens) like.shape = block.shape;
        }
        if (kvc_encoder_begin(&l->encoder, i, &like, e)) return -1;
        const int sees = l->pipeline->step[i].stage->look && l->encoder.state[i];
        const int samples = l->pipeline->step[i].stage->flags & KVC_STAGE_SAMPLES && end - first >= SAMPLED_FROM;
        for (uint64_t b = first + (samples ? 1 : 0); b < end && sees; b += samples ? SAMPLE : 1) {
            struct kvc_block block, partner;
            if (load(l, b, &block, &partner, e) ||
                (block.shape.tokens && kvc_encoder_look(&l->encoder, i, &block, e)))
                return -1;
        }
        if (kvc_encoder_settle(&l->encoder, i, e)) return -1;
    }
    return 0;
}

/* --- rows that repeat earlier ones --- */

/* Adds the SAME section for the rows found, if any. */
static int add_same(struct kvc_sections *list, const struct kvc_same *from, uint64_t n, struct kvc_error *e) {
    uint8_t bytes[KVC_BLOCK * KVC_SAME_ENTRY];
    size_t used = 0;
    for (uint64_t i = 0; i < n;) {
        if (from[i].tensor == KVC_NONE) {
            i++;
            continue;
        }
        struct kvc_same run = from[i];
        for (i++; i < n && from[i].tensor == run.tensor && from[i].block == run.block &&
                  from[i].there == run.there + run.count; i++)
            run.count++;
        uint8_t *p = bytes + used;
        put_u32(p, run.row);
        put_u32(p + 4, run.count);
        put_u32(p + 8, run.tensor);
        put_u32(p + 12, run.block);
        put_u32(p + 16, run.there);
        used += KVC_SAME_ENTRY;
    }
    return used ? kvc_record_add(list, KVC_SECTION_SAME, bytes, used, e) : 0;
}

/* --- blocks --- */

static void list_own(struct lane *l, uint64_t number) {
    const struct kvc_cells *cells = cells_of(l->x->cache, l->tensor);
    uint64_t own = 0;
    for (uint64_t i = 0; i < cells->block[number + 1] - cells->block[number]; i++)
        if (l->from[i].tensor == KVC_NONE) l->row[own++] = cells->block[number] + i;
}

/* What block l->list decodes to, its `own` rows, into l->decoded; `first`: the lane of the pair's first tensor. */
static int decode_back(struct lane *l, struct lane *first, uint64_t number, size_t container_sections, uint64_t own,
                       struct kvc_error *e) {
    struct kvc_block block = {.shape = l->x->cache->tensor[l->tensor].shape, .rows = l->decoded,
                              .role = kvc_plan_select(&l->x->cache->tensor[l->tensor]), .row = l->row,
                              .rebuild = l->source.rebuild, .position = l->encoding.position, .profile = l->profile};
    struct kvc_coded coded = {.section = l->list.section + container_sections, .n = l->list.count - container_sections,
                              .side = l->encoder.side.section, .n_side = l->encoder.side.count}, base = {0};
    kvc_sections_seal(&l->list);
    block.shape.tokens = own;
    list_own(l, number); /* encoding has taken rows out of the list */
    if (first) {
        struct kvc_block there, partner;
        kvc_sections_clear(&first->list);
        if (load(first, number, &there, &partner, e) || kvc_encoder_block(&first->encoder, &there, &first->list, e))
            return -1;
        kvc_sections_seal(&first->list);
        base = (struct kvc_coded){.section = first->list.section, .n = first->list.count,
                                  .side = first->encoder.side.section, .n_side = first->encoder.side.count};
    }
    return kvc_pipeline_decode_record(l->pipeline, &block, &coded, first ? &base : NULL, e);
}

/* Block `number` of another tensor, in its lane's `decoded`, as a decoder will have it. */
static int decode_other(struct lane *h, uint64_t number, struct kvc_error *e) {
    struct kvc_block block, partner;
    if (h->have == number + 1) return 0;
    h->have = 0;
    kvc_sections_clear(&h->list);
    if (load(h, number, &block, &partner, e)) return -1;
    const uint64_t own = block.shape.tokens;
    if (own && (kvc_encoder_block(&h->encoder, &block, &h->list, e) || decode_back(h, NULL, number, 0, own, e))) return -1;
    h->have = number + 1;
    return 0;
}

/* Rows that repeat rows of another tensor become what those decode to. */
static int decode_repeated(struct lane *l, uint64_t n, struct kvc_error *e) {
    for (uint64_t i = 0; i < n; i++) {
        const struct kvc_same *from = &l->from[i];
        if (from->tensor == KVC_NONE || kvc_pipeline_lossless(pipeline_of(l->x, from->tensor))) continue;
        struct lane *o = l->origin;
        if (!o || o->tensor != from->tensor || from->block < o->first_block || from->block >= o->end_block) {
            const uint64_t first = from->block / KVC_SEGMENT_BLOCKS * KVC_SEGMENT_BLOCKS, end = first + KVC_SEGMENT_BLOCKS;
            const uint64_t blocks = cells_of(l->x->cache, from->tensor)->n_blocks;
            lane_free(o);
            l->origin = o = lane_make(l->x, from->tensor, first, end < blocks ? end : blocks, e);
            if (!o || prepare(o, first, o->end_block, e)) return -1;
        }
        if (decode_other(o, from->block, e)) return -1;
        /* the origin's rows stand packed: those that it repeats itself are not among them */
        uint64_t place = 0;
        for (uint32_t j = 0; j < from->there; j++) place += o->from[j].tensor == KVC_NONE;
        memcpy(l->rows + i * l->row_bytes, o->decoded + place * l->row_bytes, (size_t)l->row_bytes);
    }
    return 0;
}

/* Adds a lossy row's squares, and those of its error; values that are not finite come back exactly. */
static void measure_row(const struct lane *l, const uint8_t *source, const uint8_t *back, struct kvc_run *run) {
    float x[64], y[64];
    const enum kvc_dtype dtype = l->x->cache->tensor[l->tensor].shape.dtype;
    const size_t size = kvc_dtype_info(dtype)->size, n = (size_t)l->row_bytes / size;
    for (size_t i = 0, count; i < n; i += count) {
        count = n - i < 64 ? n - i : 64;
        kvc_to_floats(x, source + i * size, count, dtype);
        kvc_to_floats(y, back + i * size, count, dtype);
        for (size_t j = 0; j < count; j++) {
            const double a = (double)x[j], d = a - (double)y[j];
            if (!(d - d == 0)) continue;
            run->source_squares += a * a;
            run->error_squares += d * d;
        }
    }
}

/* Encodes block `number` into run->buffer. */
static int encode_block(struct lane *l, struct lane *first, uint64_t number, struct kvc_run *run, struct kvc_error *e) {
    const struct kvc_cells *cells = cells_of(l->x->cache, l->tensor);
    const uint64_t start = cells->block[number], n = cells->block[number + 1] - start;
    const int lossless = kvc_pipeline_lossless(l->pipeline);
    struct kvc_block block, partner;
    if (load(l, number, &block, &partner, e)) return -1;
    const uint64_t own = block.shape.tokens;
    kvc_sections_clear(&l->list);
    if (add_same(&l->list, l->from, n, e)) return -1;
    const size_t container_sections = l->list.count;
    if (own && kvc_encoder_block(&l->encoder, &block, &l->list, e)) return -1;
    run->same_rows += n - own;
    run->bytes += n * l->row_bytes;
    if (own && (!lossless || !l->x->no_verify)) {
        if (decode_back(l, first, number, container_sections, own, e)) return -1;
        uint64_t k = 0;
        for (uint64_t i = 0; i < n; i++) {
            if (l->from[i].tensor != KVC_NONE) continue;
            const uint8_t *back = l->decoded + k++ * l->row_bytes;
            if (lossless && memcmp(back, l->rows + i * l->row_bytes, (size_t)l->row_bytes) != 0)
                return kvc_fail(e, KVC_ERR_VERIFY, "block %" PRIu64 " does not decode to what was encoded", number);
            if (!lossless && l->x->measure && kvc_is_float(l->x->cache->tensor[l->tensor].shape.dtype))
                measure_row(l, l->rows + i * l->row_bytes, back, run);
            if (!lossless) memcpy(l->rows + i * l->row_bytes, back, (size_t)l->row_bytes);
        }
    }
    if (decode_repeated(l, n, e)) return -1;
    const uint64_t digest = kvc_digest_rows(l->rows, l->row_bytes, start, n);
    return kvc_record_build(&run->buffer, KVC_RECORD_BLOCK, l->tensor, (uint32_t)number, digest, &l->list, e);
}

/* Hidden states as a decoder will have them. Rows lie in the lane's own segment, whose blocks are those of the lane. */
static int read_hidden(const void *owner, uint32_t tensor, uint64_t first, uint64_t n, uint8_t *dst, struct kvc_error *e) {
    struct lane *l = (struct lane *)(uintptr_t)owner, *h = l->hidden;
    const struct kvc_cache *c = l->x->cache;
    if (!h) return c->read(c, tensor, first, n, dst, e);
    const struct kvc_cells *cells = cells_of(c, tensor);
    const uint64_t block = kvc_cells_block_of(cells, first), start = cells->block[block];
    if (decode_other(h, block, e)) return -1;
    memcpy(dst, h->decoded + (first - start) * h->row_bytes, (size_t)(n * h->row_bytes));
    return 0;
}

int kvc_encode_run(const struct kvc_encode *x, uint32_t tensor, uint64_t block, uint64_t end, struct kvc_run *run,
                   struct kvc_error *e) {
    struct lane *own = lane_make(x, tensor, block, end, e), *first = NULL;
    int status = own ? prepare(own, block, end, e) : -1;
    if (!status && is_second(x, tensor)) {
        first = lane_make(x, x->plan->partner[tensor], block, end, e);
        status = first ? prepare(first, block, end, e) : -1;
    }
    if (!status && own->encoder.side.count)
        status = kvc_record_build(&run->buffer, KVC_RECORD_SIDE, tensor, (uint32_t)(block / KVC_SEGMENT_BLOCKS), 0,
                                  &own->encoder.side, e);
    for (; block < end && !status; block++) status = encode_block(own, first, block, run, e);
    lane_free(own);
    lane_free(first);
    return status ? -1 : 0;
}
