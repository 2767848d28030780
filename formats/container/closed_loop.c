/* closed_loop.c: inputs of predictions, handed from the thread that encodes a block to those that
 * predict from it. */
#include "formats/container/closed_loop.h"

#include "codecs/memory.h"
#include "formats/model/predict_source.h"

#include <pthread.h>
#include <stdlib.h>

/* A tensor, and what others need of it. */
struct loop_tensor {
    uint32_t from[KVC_AHEAD_MOST]; /* lossy tensors that it may be predicted from, n of them */
    size_t n;
    /* inputs by block, NULL: not yet, or no more; NULL array: nobody is predicted from the tensor
     */
    int8_t **block;
    uint64_t n_blocks;
    uint32_t *waiting; /* by segment: tensors of which it is not yet encoded */
    int failed;
};

struct kvc_loop {
    const struct kvc_cache *c;
    struct kvc_profile *profile;
    enum kvc_pairing pairing, rotation;
    /* 1: blocks may be encoded again, for rows that repeat them, so that nothing is freed before
     * the end */
    int keeps;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct loop_tensor *tensor;
};

static const struct kvc_pipeline *line_of(const struct kvc_plan *plan, uint32_t tensor) {
    return &plan->pipeline[plan->pipeline_of[tensor]];
}

static uint64_t segments_of(const struct loop_tensor *t) {
    return (t->n_blocks + KVC_SEGMENT_BLOCKS - 1) / KVC_SEGMENT_BLOCKS;
}

/* Lists the lossy tensors from which one may be predicted, and counts it among those that wait for
 * them. */
static int list_inputs(struct kvc_loop *loop, const struct kvc_plan *plan, uint32_t tensor,
                       int *any, struct kvc_error *e) {
    struct kvc_predict_source s;
    uint32_t from[KVC_AHEAD_MOST];
    const struct kvc_pipeline *line = line_of(plan, tensor);
    if (kvc_pipeline_first(line, KVC_STAGE_AHEAD) == line->n ||
        !kvc_plan_select(&loop->c->tensor[tensor]))
        return 0;
    kvc_predict_source_init(&s, loop->c, tensor, loop->profile, loop->pairing, NULL, NULL);
    const int n = kvc_predict_inputs(&s, from, e);
    for (int i = 0; i < n; i++) {
        if (from[i] == KVC_AHEAD_NONE || kvc_pipeline_lossless(line_of(plan, from[i]))) continue;
        struct loop_tensor *t = &loop->tensor[from[i]];
        t->n_blocks = kvc_tensor_part(loop->c, from[i])->cells.n_blocks;
        if (!t->block) {
            t->block = kvc_alloc_zeros(t->n_blocks + 1, sizeof *t->block);
            t->waiting = kvc_alloc_zeros(segments_of(t) + 1, sizeof *t->waiting);
        }
        if (!t->block || !t->waiting) return kvc_fail_memory(e, "inputs");
        for (uint64_t g = 0; g < segments_of(t); g++) t->waiting[g]++;
        loop->tensor[tensor].from[loop->tensor[tensor].n++] = from[i];
        *any = 1;
    }
    return n < 0 ? -1 : 0;
}

int kvc_loop_new(struct kvc_loop **to, const struct kvc_cache *c, const struct kvc_plan *plan,
                 struct kvc_profile *profile, enum kvc_pairing pairing, enum kvc_pairing rotation,
                 struct kvc_error *e) {
    int any = 0, status = 0;
    uint32_t parts = 0;
    *to = NULL;
    if (!profile) return 0;
    struct kvc_loop *loop = calloc(1, sizeof *loop);
    if (!loop || pthread_mutex_init(&loop->lock, NULL)) {
        free(loop);
        return kvc_fail_memory(e, "inputs");
    }
    pthread_cond_init(&loop->changed, NULL);
    loop->c = c;
    loop->profile = profile;
    loop->pairing = pairing;
    loop->rotation = rotation;
    for (uint32_t p = 0; p < c->n_parts; p++) parts += c->part[p].kind != KVC_PART_COMPANION;
    loop->keeps = parts > 1;
    loop->tensor = kvc_alloc_zeros((uint64_t)c->n_tensors + 1, sizeof *loop->tensor);
    if (!loop->tensor) status = kvc_fail_memory(e, "inputs");
    for (uint32_t t = 0; t < c->n_tensors && !status; t++)
        status = list_inputs(loop, plan, t, &any, e);
    if (!status && any) *to = loop;
    else kvc_loop_free(loop);
    return status;
}

void kvc_loop_free(struct kvc_loop *loop) {
    if (!loop) return;
    for (uint32_t t = 0; loop->tensor && t < loop->c->n_tensors; t++) {
        for (uint64_t b = 0; loop->tensor[t].block && b < loop->tensor[t].n_blocks; b++)
            free(loop->tensor[t].block[b]);
        free(loop->tensor[t].block);
        free(loop->tensor[t].waiting);
    }
    free(loop->tensor);
    pthread_cond_destroy(&loop->changed);
    pthread_mutex_destroy(&loop->lock);
    free(loop);
}

int kvc_loop_publish(struct kvc_loop *loop, uint32_t tensor, uint64_t block, const uint8_t *rows,
                     struct kvc_error *e) {
    if (!loop || !loop->tensor[tensor].block) return 0;
    const struct kvc_cells *cells = &kvc_tensor_part(loop->c, tensor)->cells;
    const struct kvc_shape *shape = &loop->c->tensor[tensor].shape;
    const uint64_t first = cells->block[block], n = cells->block[block + 1] - first;
    struct kvc_predict_source s;
    int8_t *small = kvc_alloc(n, shape->heads * shape->dim);
    if (!small) return kvc_fail_memory(e, "inputs");
    kvc_predict_source_init(&s, loop->c, tensor, loop->profile, loop->pairing, NULL, NULL);
    if (kvc_small_rows(&s, tensor, loop->rotation, first, n, rows, small, e)) {
        free(small);
        return -1;
    }
    pthread_mutex_lock(&loop->lock);
    loop->tensor[tensor].block[block] = small;
    pthread_cond_broadcast(&loop->changed);
    pthread_mutex_unlock(&loop->lock);
    return 0;
}

void kvc_loop_done(struct kvc_loop *loop, uint32_t tensor, uint64_t block, uint64_t end,
                   int failed) {
    if (!loop) return;
    struct loop_tensor *t = &loop->tensor[tensor];
    pthread_mutex_lock(&loop->lock);
    if (failed) {
        t->failed = 1;
        pthread_cond_broadcast(&loop->changed);
    }
    for (size_t i = 0; i < t->n && !loop->keeps; i++) {
        struct loop_tensor *from = &loop->tensor[t->from[i]];
        if (--from->waiting[block / KVC_SEGMENT_BLOCKS]) continue;
        for (uint64_t b = block; b < end; b++) {
            free(from->block[b]);
            from->block[b] = NULL;
        }
    }
    pthread_mutex_unlock(&loop->lock);
}

int kvc_loop_small(struct kvc_loop *loop, uint32_t tensor, const uint64_t *row, size_t n,
                   int8_t *to, size_t stride, struct kvc_error *e) {
    const struct kvc_cells *cells = &kvc_tensor_part(loop->c, tensor)->cells;
    const struct kvc_shape *shape = &loop->c->tensor[tensor].shape;
    const uint64_t block = kvc_cells_block_of(cells, row[0]);
    const struct loop_tensor *t = &loop->tensor[tensor];
    pthread_mutex_lock(&loop->lock);
    while (!t->block[block] && !t->failed) pthread_cond_wait(&loop->changed, &loop->lock);
    const int8_t *small = t->block[block];
    pthread_mutex_unlock(&loop->lock);
    if (!small)
        return kvc_fail(e, KVC_ERR_VERIFY,
                        "a layer that this one is predicted from could not be encoded");
    kvc_small_spread(small, (size_t)(shape->heads * shape->dim), cells->block[block], row, n, to,
                     stride);
    return 0;
}
