/* inputs.c: inputs of predictions, kept as decoded blocks. */
#include "formats/container/inputs.h"

#include "codecs/memory.h"
#include "formats/container/decoded.h"
#include "formats/container/device_blocks.h"
#include "formats/container/records.h"
#include "formats/model/predict_source.h"
#include "formats/model/predictor.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* blocks that repeat rows of blocks that depend on others, and so on */
enum { MAX_DEPTH = 8 };

/* Makes inputs of the decoded rows of a block. */
static struct kvc_decoded_block *make_inputs(struct kvc_decoded *d,
                                             const struct kvc_predict_source *s, uint32_t tensor,
                                             uint64_t block, const uint8_t *rows,
                                             struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_tensor_cells(s->cache, tensor);
    const struct kvc_shape *shape = s->shape ? &s->shape[tensor] : &s->cache->tensor[tensor].shape;
    const uint64_t first = cells->block[block], n = cells->block[block + 1] - first;
    struct kvc_decoded_block *x = kvc_decoded_block(d, tensor, block, 0,
                                                    (size_t)(n * shape->heads * shape->dim), e);
    if (!x) return NULL;
    if (!kvc_small_rows(s, tensor, first, n, rows, (int8_t *)x->bytes, e)) return x;
    free(x);
    return NULL;
}

/* --- the blocks on which a block depends --- */

struct kvc_inputs_held {
    const struct kvc_cache *cache;
    uint64_t block;
    unsigned depth;
    uint32_t n;
    struct kvc_decoded_block *inputs[]; /* by tensor, NULL: none is held */
};

/* Reads the tensors that a segment is predicted from. Returns 1, 0 where it is from none, or -1. */
static int read_inputs(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                       struct kvc_ahead_inputs *to, struct kvc_error *e) {
    struct kvc_records *k = kvc_records_of(c);
    const struct kvc_pipeline *line = kvc_records_pipeline(k, tensor);
    const unsigned step = kvc_pipeline_first(line, KVC_STAGE_AHEAD);
    const uint64_t record = k->side_record[k->first_side[tensor] + block / KVC_SEGMENT_BLOCKS];
    struct kvc_section *list;
    unsigned n;
    if (step == line->n || !record) return 0;
    if (kvc_records_sections(k, record, &list, &n, e)) return kvc_record_context(e, record, "SIDE");
    const struct kvc_stored stored = kvc_pipeline_side(list, n, step);
    int status = line->step[step].stage->inputs(&stored, to, e);
    const enum kvc_role role = c->tensor[tensor].role;
    if (status > 0 && role != KVC_ROLE_K && role != KVC_ROLE_V)
        status = kvc_fail(e, KVC_ERR_DAMAGED, "section INPUTS of a tensor that is neither K nor V");
    for (size_t i = 0; status > 0 && i < to->n; i++)
        if (to->from[i] != KVC_AHEAD_NONE &&
            (to->from[i] >= tensor ||
             kvc_tensor_part(c, to->from[i]) != kvc_tensor_part(c, tensor)))
            status = kvc_fail(e, KVC_ERR_DAMAGED,
                              "section INPUTS names a tensor that comes later, or of another part");
    kvc_records_release(k, record, list);
    if (status > 0) k->predicts = 1;
    return status < 0 ? kvc_record_context(e, record, "SIDE") : status;
}

/* Marks the tensors that a segment is predicted from in wanted[]. */
static int want(const struct kvc_cache *c, uint32_t tensor, uint64_t block, uint8_t *wanted,
                struct kvc_error *e) {
    struct kvc_ahead_inputs inputs;
    const int has = read_inputs(c, tensor, block, &inputs, e);
    for (size_t i = 0; has > 0 && i < inputs.n; i++)
        if (inputs.from[i] != KVC_AHEAD_NONE) wanted[inputs.from[i]] = 1;
    return has < 0 ? -1 : 0;
}

/* Makes inputs of the decoded rows of a block of a container. */
static struct kvc_decoded_block *inputs_of(const struct kvc_cache *c, uint32_t tensor,
                                           uint64_t block, const uint8_t *rows,
                                           struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    struct kvc_predict_source s;
    if (!k->profile) {
        if (e) *e = k->no_profile;
        return NULL;
    }
    kvc_predict_source_init(&s, c, tensor, k->profile, k->pairing, NULL, NULL);
    s.shape = k->shape;
    s.turn = k->turn;
    return make_inputs(k->inputs, &s, tensor, block, rows, e);
}

/* Decodes a block on which others depend, and makes inputs of it. */
static struct kvc_decoded_block *decode_inputs(const struct kvc_cache *c, uint32_t tensor,
                                               const struct kvc_inputs_held *held,
                                               kvc_inputs_decode_fn *decode, struct kvc_error *e) {
    uint8_t *rows = kvc_alloc(KVC_BLOCK, kvc_row_bytes(&c->tensor[tensor].shape));
    struct kvc_decoded_block *x = NULL;
    if (!rows) kvc_fail_memory(e, "inputs");
    else if (decode(c, tensor, held->block, rows, held, e))
        kvc_error_prefix(e, "stands on a block that cannot be read");
    else x = inputs_of(c, tensor, held->block, rows, e);
    free(rows);
    return x;
}

void kvc_inputs_offer(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                      const uint8_t *rows) {
    struct kvc_records *k = kvc_records_of(c);
    if (!k->predicts || !k->profile || !kvc_predict_takes(c, tensor)) return;
    struct kvc_decoded_block *x = kvc_decoded_find(k->inputs, tensor, block, 0);
    if (!x && (x = inputs_of(c, tensor, block, rows, NULL))) kvc_decoded_put(k->inputs, x);
    if (x) kvc_decoded_release(x, 1);
}

void kvc_inputs_release(struct kvc_inputs_held *held) {
    if (!held) return;
    for (uint32_t t = 0; t < held->n; t++)
        if (held->inputs[t]) kvc_decoded_release(held->inputs[t], 1);
    free(held);
}

unsigned kvc_inputs_depth(const struct kvc_inputs_held *held) {
    return held->depth;
}

/* Holds the inputs of all blocks on which held->block of tensor held->n depends. */
static int hold_inputs(struct kvc_inputs_held *held, uint8_t *wanted, kvc_inputs_decode_fn *decode,
                       struct kvc_error *e) {
    const struct kvc_cache *c = held->cache;
    struct kvc_decoded *inputs = kvc_records_of(c)->inputs;
    if (held->depth > MAX_DEPTH)
        return kvc_fail(e, KVC_ERR_DAMAGED, "blocks stand on repeated rows of too many others");
    if (want(c, held->n, held->block, wanted, e)) return -1;
    for (uint32_t t = held->n; t-- > 0;) { /* a tensor depends on lower ones alone */
        if (!wanted[t]) continue;
        held->inputs[t] = kvc_decoded_find(inputs, t, held->block, 0);
        if (!held->inputs[t] && want(c, t, held->block, wanted, e)) return -1;
    }
    for (uint32_t t = 0; t < held->n; t++) {
        if (!wanted[t] || held->inputs[t]) continue;
        held->inputs[t] = decode_inputs(c, t, held, decode, e);
        if (!held->inputs[t]) return -1;
        kvc_decoded_put(inputs, held->inputs[t]);
    }
    return 0;
}

struct kvc_inputs_held *kvc_inputs_prepare(const struct kvc_cache *c, uint32_t tensor,
                                           uint64_t block, unsigned depth,
                                           kvc_inputs_decode_fn *decode, struct kvc_error *e) {
    uint8_t *wanted = kvc_alloc_zeros((uint64_t)tensor + 1, 1);
    struct kvc_inputs_held *held = kvc_alloc_zeros(1, sizeof *held +
                                                          (uint64_t)tensor * sizeof *held->inputs);
    if (held) *held = (struct kvc_inputs_held){c, block, depth, tensor};
    const int status = held && wanted ? hold_inputs(held, wanted, decode, e)
                                      : kvc_fail_memory(e, "inputs");
    free(wanted);
    if (!status) return held;
    kvc_inputs_release(held);
    return NULL;
}

int kvc_inputs_small(const void *owner, uint32_t tensor, const uint64_t *row, size_t n, int8_t *to,
                     size_t stride, struct kvc_error *e) {
    const struct kvc_inputs_held *held = owner;
    const struct kvc_decoded_block *x = tensor < held->n ? held->inputs[tensor] : NULL;
    if (!x)
        return kvc_fail(e, KVC_ERR_DAMAGED, "tensor %" PRIu32 " is not what section INPUTS names",
                        tensor);
    const struct kvc_shape *shape = &kvc_records_of(held->cache)->shape[tensor];
    const uint64_t start = kvc_tensor_cells(held->cache, tensor)->block[held->block];
    kvc_small_spread((const int8_t *)x->bytes, (size_t)(shape->heads * shape->dim), start, row, n,
                     to, stride);
    return 0;
}

/* --- for devices --- */

int kvc_inputs_for_device(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                          struct kvc_ahead_inputs *to, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    const struct kvc_pipeline *line = kvc_records_pipeline(k, tensor);
    const unsigned step = kvc_pipeline_first(line, KVC_STAGE_AHEAD);
    return step < line->n && line->step[step].stage->lower ? read_inputs(c, tensor, block, to, e)
                                                           : 0;
}

int kvc_inputs_made_by(const struct kvc_cache *c, uint32_t tensor, const struct kvc_small **small,
                       const struct kvc_rope_facts **turn, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    const uint32_t layer = kvc_tensor_layer(c, tensor)->index;
    *turn = k->turn[tensor].half ? &k->turn[tensor] : NULL;
    if (!k->profile ||
        kvc_profile_small(k->profile, layer, c->tensor[tensor].role, k->pairing, small, e))
        return -1;
    if (!*small || (*small)->width != k->shape[tensor].heads * k->shape[tensor].dim)
        return kvc_fail(e, KVC_ERR_DAMAGED, "the profile does not predict from tensor %" PRIu32,
                        tensor);
    return 0;
}

/* --- for encoders --- */

/* A tensor, and what others need of it. */
struct loop_tensor {
    uint32_t from[KVC_AHEAD_MOST]; /* lossy tensors that it may be predicted from, n of them */
    size_t n;
    /* tensors that may be predicted from this one, each of which holds its blocks */
    unsigned users;
    int failed;
};

struct kvc_loop {
    const struct kvc_cache *c;
    struct kvc_profile *profile;
    const struct kvc_rope_facts *turn;
    /* 1: blocks may be encoded again, for rows that repeat them, so that nothing is freed before
     * the end */
    int keeps;
    struct kvc_decoded *inputs;
    struct loop_tensor *tensor;
};

static void loop_source(const struct kvc_loop *loop, uint32_t tensor,
                        struct kvc_predict_source *s) {
    kvc_predict_source_init(s, loop->c, tensor, loop->profile, loop->c->meta.facts.rope.pairing,
                            NULL, NULL);
    s->turn = loop->turn;
}

/* Lists the lossy tensors from which a tensor may be predicted, and counts it among their users. */
static int list_inputs(struct kvc_loop *loop, const struct kvc_plan *plan, uint32_t tensor,
                       int *any, struct kvc_error *e) {
    struct kvc_predict_source s;
    uint32_t from[KVC_AHEAD_MOST];
    const struct kvc_pipeline *line = kvc_plan_pipeline(plan, tensor);
    if (!kvc_pipeline_has(line, KVC_STAGE_AHEAD) || !kvc_plan_select(&loop->c->tensor[tensor]))
        return 0;
    loop_source(loop, tensor, &s);
    const int n = kvc_predict_inputs(&s, from, e);
    for (int i = 0; i < n; i++) {
        if (from[i] == KVC_AHEAD_NONE || kvc_pipeline_lossless(kvc_plan_pipeline(plan, from[i])))
            continue;
        struct loop_tensor *t = &loop->tensor[tensor];
        t->from[t->n++] = from[i];
        loop->tensor[from[i]].users++;
        *any = 1;
    }
    return n < 0 ? -1 : 0;
}

int kvc_loop_new(struct kvc_loop **to, const struct kvc_cache *c, const struct kvc_plan *plan,
                 struct kvc_profile *profile, const struct kvc_rope_facts *turn,
                 struct kvc_error *e) {
    int any = 0;
    uint32_t parts = 0;
    *to = NULL;
    if (!profile) return 0;
    for (uint32_t p = 0; p < c->n_parts; p++) parts += c->part[p].kind != KVC_PART_COMPANION;
    struct kvc_loop *loop = malloc(sizeof *loop);
    if (!loop) return kvc_fail_memory(e, "inputs");
    *loop = (struct kvc_loop){c, profile, turn, .keeps = parts > 1};
    loop->inputs = kvc_decoded_new(UINT64_MAX, 0, e);
    loop->tensor = kvc_alloc_zeros((uint64_t)c->n_tensors + 1, sizeof *loop->tensor);
    int status = loop->inputs && loop->tensor ? 0 : kvc_fail_memory(e, "inputs");
    for (uint32_t t = 0; t < c->n_tensors && !status; t++)
        status = list_inputs(loop, plan, t, &any, e);
    if (!status && any) *to = loop;
    else kvc_loop_free(loop);
    return status;
}

void kvc_loop_free(struct kvc_loop *loop) {
    if (!loop) return;
    kvc_decoded_free(loop->inputs);
    free(loop->tensor);
    free(loop);
}

int kvc_loop_publish(struct kvc_loop *loop, uint32_t tensor, uint64_t block, const uint8_t *rows,
                     struct kvc_error *e) {
    struct kvc_predict_source s;
    if (!loop || !loop->tensor[tensor].users) return 0;
    loop_source(loop, tensor, &s);
    struct kvc_decoded_block *x = make_inputs(loop->inputs, &s, tensor, block, rows, e);
    if (!x) return -1;
    x->holders = loop->tensor[tensor].users;
    kvc_decoded_put(loop->inputs, x);
    return 0;
}

void kvc_loop_done(struct kvc_loop *loop, uint32_t tensor, uint64_t block, uint64_t end,
                   int failed) {
    if (!loop) return;
    struct loop_tensor *t = &loop->tensor[tensor];
    if (failed) kvc_decoded_fail(loop->inputs, &t->failed);
    for (size_t i = 0; i < t->n && !loop->keeps; i++)
        for (uint64_t b = block; b < end; b++) {
            struct kvc_decoded_block *x = kvc_decoded_find(loop->inputs, t->from[i], b, 0);
            if (!x) continue;          /* not encoded yet: nothing was predicted from it */
            kvc_decoded_release(x, 2); /* it is held for this tensor since it was published */
        }
    if (!loop->keeps) kvc_decoded_trim(loop->inputs, 0);
}

int kvc_loop_small(struct kvc_loop *loop, uint32_t tensor, const uint64_t *row, size_t n,
                   int8_t *to, size_t stride, struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_tensor_cells(loop->c, tensor);
    const struct kvc_shape *shape = &loop->c->tensor[tensor].shape;
    const uint64_t block = kvc_cells_block_of(cells, row[0]);
    struct kvc_decoded_block *x = kvc_decoded_await(loop->inputs, tensor, block, 0,
                                                    &loop->tensor[tensor].failed);
    if (!x)
        return kvc_fail(e, KVC_ERR_VERIFY,
                        "a layer that this one is predicted from could not be encoded");
    kvc_small_spread((const int8_t *)x->bytes, (size_t)(shape->heads * shape->dim),
                     cells->block[block], row, n, to, stride);
    kvc_decoded_release(x, 1);
    return 0;
}
