/* inputs.c: inputs of predictions, decoded, held and kept. */
#include "formats/container/inputs.h"

#include "codecs/floats.h"
#include "codecs/memory.h"
#include "formats/container/offsets.h"
#include "formats/container/records.h"
#include "formats/model/predict_source.h"
#include "formats/model/predictor.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define KEPT_BYTES (UINT64_C(256) << 20) /* of inputs that nobody holds */
/* blocks that repeat rows of blocks that stand on others, and so on */
enum { MAX_DEPTH = 8 };

/* Inputs of one block of a tensor. */
struct entry {
    uint32_t tensor;
    uint64_t block;
    enum kvc_pairing rotation;
    size_t bytes;
    unsigned holders;
    struct entry *older, *newer;
    int8_t small[]; /* [row][channel] */
};

struct kvc_inputs {
    pthread_mutex_t lock;
    /* of K in the container, as the first INPUTS that was read says; -1: none was read */
    int rotation;
    struct entry *oldest, *newest; /* all that are kept, by last use */
    uint64_t bytes;
    uint64_t kept_bytes; /* at most, of inputs that nobody holds */
};

struct kvc_inputs_held {
    const struct kvc_cache *cache;
    uint64_t block;
    unsigned depth;
    struct entry **entry; /* by tensor, NULL: none is held */
    uint32_t n;
};

struct kvc_inputs *kvc_inputs_new(struct kvc_error *e) {
    struct kvc_inputs *k = calloc(1, sizeof *k);
    if (k) *k = (struct kvc_inputs){.rotation = -1, .kept_bytes = KEPT_BYTES};
    if (k && !pthread_mutex_init(&k->lock, NULL)) return k;
    kvc_fail_memory(e, "a container");
    free(k);
    return NULL;
}

void kvc_inputs_set_kept(struct kvc_inputs *k, uint64_t bytes) {
    k->kept_bytes = bytes < KEPT_BYTES ? bytes : KEPT_BYTES;
}

void kvc_inputs_free(struct kvc_inputs *k) {
    if (!k) return;
    for (struct entry *x = k->oldest, *next; x; x = next) {
        next = x->newer;
        free(x);
    }
    pthread_mutex_destroy(&k->lock);
    free(k);
}

/* --- what is kept; under the lock --- */

static void take_out(struct kvc_inputs *k, struct entry *x) {
    *(x->older ? &x->older->newer : &k->oldest) = x->newer;
    *(x->newer ? &x->newer->older : &k->newest) = x->older;
    k->bytes -= x->bytes;
}

static void put_in(struct kvc_inputs *k, struct entry *x) {
    x->older = k->newest;
    x->newer = NULL;
    *(k->newest ? &k->newest->newer : &k->oldest) = x;
    k->newest = x;
    k->bytes += x->bytes;
}

/* Frees what was not used for longest and is not held. */
static void inputs_make_room(struct kvc_inputs *k) {
    for (struct entry *x = k->oldest, *next; x && k->bytes > k->kept_bytes; x = next) {
        next = x->newer;
        if (x->holders) continue;
        take_out(k, x);
        free(x);
    }
}

/* Returns what is kept of a block, now held, or NULL. */
static struct entry *inputs_find(struct kvc_inputs *k, uint32_t tensor, uint64_t block,
                                 enum kvc_pairing rotation) {
    pthread_mutex_lock(&k->lock);
    struct entry *x = k->newest;
    while (x && !(x->tensor == tensor && x->block == block && x->rotation == rotation))
        x = x->older;
    if (x) {
        x->holders++;
        take_out(k, x);
        put_in(k, x);
    }
    pthread_mutex_unlock(&k->lock);
    return x;
}

static void inputs_keep(struct kvc_inputs *k, struct entry *x) {
    pthread_mutex_lock(&k->lock);
    put_in(k, x);
    inputs_make_room(k);
    pthread_mutex_unlock(&k->lock);
}

/* --- what a block stands on --- */

/* Reads the tensors that a segment is predicted from. Returns 1, 0 where it is from none, or -1. */
static int read_inputs(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                       struct kvc_ahead_inputs *to, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    const struct kvc_pipeline *line = &k->pipeline[k->pipeline_of[tensor]];
    const unsigned step = kvc_pipeline_first(line, KVC_STAGE_AHEAD);
    const uint64_t record = k->side_record[k->first_side[tensor] + block / KVC_SEGMENT_BLOCKS];
    struct kvc_section *list;
    unsigned n;
    if (step == line->n || !record) return 0;
    if (kvc_records_sections(k, record, &list, &n, e)) return kvc_record_context(e, record, "SIDE");
    const struct kvc_stored stored = kvc_pipeline_side(list, n, step);
    int status = line->step[step].stage->inputs(&stored, to, e);
    for (size_t i = 0; status > 0 && i < to->n; i++)
        if (to->from[i] != KVC_AHEAD_NONE &&
            (to->from[i] >= tensor ||
             kvc_tensor_part(c, to->from[i]) != kvc_tensor_part(c, tensor)))
            status = kvc_fail(e, KVC_ERR_DAMAGED,
                              "section INPUTS names a tensor that comes later, or of another part");
    kvc_records_release(k, record, list);
    if (status > 0) {
        pthread_mutex_lock(&k->inputs->lock);
        if (k->inputs->rotation < 0) k->inputs->rotation = (int)to->rotation;
        pthread_mutex_unlock(&k->inputs->lock);
    }
    return status < 0 ? kvc_record_context(e, record, "SIDE") : status;
}

enum { UNUSED, WANTED }; /* WANTED + how K is rotated */

/* Marks the tensors that a segment is predicted from in wanted[]. */
static int want(const struct kvc_cache *c, uint32_t tensor, uint64_t block, uint8_t *wanted,
                struct kvc_error *e) {
    struct kvc_ahead_inputs inputs;
    const int has = read_inputs(c, tensor, block, &inputs, e);
    for (size_t i = 0; has > 0 && i < inputs.n; i++) {
        if (inputs.from[i] == KVC_AHEAD_NONE) continue;
        uint8_t *mark = &wanted[inputs.from[i]];
        if (*mark != UNUSED && *mark != WANTED + inputs.rotation)
            return kvc_fail(e, KVC_ERR_DAMAGED, "sections INPUTS differ in how K is rotated");
        *mark = (uint8_t)(WANTED + inputs.rotation);
    }
    return has < 0 ? -1 : 0;
}

/* Makes inputs of the decoded rows of a block. */
static struct entry *make(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                          enum kvc_pairing rotation, const uint8_t *rows, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    const struct kvc_cells *cells = &kvc_tensor_part(c, tensor)->cells;
    const uint64_t first = cells->block[block], n = cells->block[block + 1] - first;
    const size_t bytes = (size_t)(n * k->shape[tensor].heads * k->shape[tensor].dim);
    struct entry *x = kvc_alloc(sizeof *x + bytes, 1);
    struct kvc_predict_source s;
    int status = x ? 0 : kvc_fail_memory(e, "inputs");
    kvc_predict_source_init(&s, c, tensor, k->profile, k->pairing, NULL, NULL);
    s.shape = k->shape;
    if (!status && !k->profile) {
        if (e) *e = k->no_profile;
        status = -1;
    }
    if (!status)
        *x = (struct entry){
            .tensor = tensor, .block = block, .rotation = rotation, .bytes = bytes, .holders = 1};
    if (!status) status = kvc_small_rows(&s, tensor, rotation, first, n, rows, x->small, e);
    if (!status) return x;
    free(x);
    return NULL;
}

/* Decodes a block that others stand on, and makes inputs of it. */
static struct entry *decode_and_make(const struct kvc_cache *c, uint32_t tensor,
                                     enum kvc_pairing rotation, const struct kvc_inputs_held *held,
                                     kvc_inputs_decode_fn *decode, struct kvc_error *e) {
    uint8_t *rows = kvc_alloc(KVC_BLOCK, kvc_row_bytes(&c->tensor[tensor].shape));
    struct entry *x = NULL;
    if (!rows) kvc_fail_memory(e, "inputs");
    else if (decode(c, tensor, held->block, rows, held, e))
        kvc_error_prefix(e, "stands on a block that cannot be read");
    else x = make(c, tensor, held->block, rotation, rows, e);
    free(rows);
    return x;
}

void kvc_inputs_offer(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                      const uint8_t *rows) {
    const struct kvc_records *k = kvc_records_of(c);
    pthread_mutex_lock(&k->inputs->lock);
    const int rotation = k->inputs->rotation;
    pthread_mutex_unlock(&k->inputs->lock);
    if (rotation < 0 || !k->profile || !kvc_predict_takes(c, tensor)) return;
    struct entry *x = inputs_find(k->inputs, tensor, block, (enum kvc_pairing)rotation);
    if (!x && (x = make(c, tensor, block, (enum kvc_pairing)rotation, rows, NULL)))
        inputs_keep(k->inputs, x);
    if (!x) return;
    pthread_mutex_lock(&k->inputs->lock);
    x->holders--;
    pthread_mutex_unlock(&k->inputs->lock);
}

void kvc_inputs_release(struct kvc_inputs_held *held) {
    if (!held) return;
    struct kvc_inputs *k = kvc_records_of(held->cache)->inputs;
    pthread_mutex_lock(&k->lock);
    for (uint32_t t = 0; t < held->n; t++)
        if (held->entry[t]) held->entry[t]->holders--;
    inputs_make_room(k);
    pthread_mutex_unlock(&k->lock);
    free(held->entry);
    free(held);
}

unsigned kvc_inputs_depth(const struct kvc_inputs_held *held) {
    return held->depth;
}

struct kvc_inputs_held *kvc_inputs_prepare(const struct kvc_cache *c, uint32_t tensor,
                                           uint64_t block, unsigned depth,
                                           kvc_inputs_decode_fn *decode, struct kvc_error *e) {
    struct kvc_inputs *k = kvc_records_of(c)->inputs;
    struct kvc_inputs_held *held = calloc(1, sizeof *held);
    uint8_t *wanted = kvc_alloc_zeros((uint64_t)tensor + 1, 1);
    if (held)
        *held = (struct kvc_inputs_held){.cache = c, .block = block, .depth = depth, .n = tensor};
    if (held) held->entry = kvc_alloc_zeros((uint64_t)tensor + 1, sizeof *held->entry);
    int status = held && wanted && held->entry ? 0 : kvc_fail_memory(e, "inputs");
    if (!status && depth > MAX_DEPTH)
        status = kvc_fail(e, KVC_ERR_DAMAGED, "blocks stand on repeated rows of too many others");
    if (!status) status = want(c, tensor, block, wanted, e);
    for (uint32_t t = tensor; t-- > 0 && !status;) /* a tensor stands on lower ones alone */
        if (wanted[t] != UNUSED &&
            !(held->entry[t] = inputs_find(k, t, block, (enum kvc_pairing)(wanted[t] - WANTED))))
            status = want(c, t, block, wanted, e);
    for (uint32_t t = 0; t < tensor && !status; t++) {
        if (wanted[t] == UNUSED || held->entry[t]) continue;
        held->entry[t] = decode_and_make(c, t, (enum kvc_pairing)(wanted[t] - WANTED), held, decode,
                                         e);
        if (held->entry[t]) inputs_keep(k, held->entry[t]);
        else status = -1;
    }
    free(wanted);
    if (!status) return held;
    if (held && !held->entry) {
        free(held);
        held = NULL;
    }
    kvc_inputs_release(held);
    return NULL;
}

int kvc_inputs_for_device(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                          struct kvc_ahead_inputs *to, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    const struct kvc_pipeline *line = &k->pipeline[k->pipeline_of[tensor]];
    const unsigned step = kvc_pipeline_first(line, KVC_STAGE_AHEAD);
    return step < line->n && line->step[step].stage->lower ? read_inputs(c, tensor, block, to, e)
                                                           : 0;
}

int kvc_inputs_made_by(const struct kvc_cache *c, uint32_t tensor, const struct kvc_small **small,
                       const double **angle, size_t *half, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    const uint32_t layer = c->layer[c->tensor[tensor].layer].index;
    *half = 0;
    *angle = NULL;
    if (!k->profile ||
        kvc_profile_small(k->profile, layer, c->tensor[tensor].role, k->pairing, small, e))
        return -1;
    if (!*small || (*small)->width != k->shape[tensor].heads * k->shape[tensor].dim)
        return kvc_fail(e, KVC_ERR_DAMAGED, "the profile does not predict from tensor %" PRIu32,
                        tensor);
    if (c->tensor[tensor].role == KVC_ROLE_K) *angle = kvc_profile_angles(k->profile, layer, half);
    return 0;
}

int kvc_inputs_small(const void *owner, uint32_t tensor, enum kvc_pairing rotation,
                     const uint64_t *row, size_t n, int8_t *to, size_t stride,
                     struct kvc_error *e) {
    const struct kvc_inputs_held *held = owner;
    const struct entry *x = tensor < held->n ? held->entry[tensor] : NULL;
    if (!x || x->rotation != rotation)
        return kvc_fail(e, KVC_ERR_DAMAGED, "tensor %" PRIu32 " is not what section INPUTS names",
                        tensor);
    const struct kvc_shape *shape = &kvc_records_of(held->cache)->shape[tensor];
    const uint64_t start = kvc_tensor_part(held->cache, tensor)->cells.block[held->block];
    kvc_small_spread(x->small, (size_t)(shape->heads * shape->dim), start, row, n, to, stride);
    return 0;
}
