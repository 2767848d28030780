/* load_inputs.c: the device's memory for inputs of predictions: which tensors need some, and for
 * how long. Tensors are decoded in their order, so memory is used anew when the last tensor that is
 * predicted from it has been decoded. Not for making inputs (batch.c). */
#include "codecs/memory.h"
#include "formats/container/device_blocks.h"
#include "formats/device/load_state.h"

/* Returns 1 where blocks come in the order of their tensors, as kvc-pack writes them. */
static int in_order(const struct kvc_load *l) {
    for (size_t i = 1; i < l->n_blocks; i++)
        if (l->block[i].tensor < l->block[i - 1].tensor) return 0;
    return 1;
}

/* Notes which tensors the device predicts others from, and the last of these. Returns 1 when there
 * are some, 0, or -1. */
static int find_users(struct kvc_load *l, struct kvc_error *e) {
    int any = 0;
    for (size_t i = 0; i < l->n_blocks; i++) {
        const struct kvc_load_wanted *b = &l->block[i];
        const struct kvc_load_wanted *before = i ? &l->block[i - 1] : NULL;
        struct kvc_ahead_inputs inputs;
        if (before && before->tensor == b->tensor &&
            before->block / KVC_SEGMENT_BLOCKS == b->block / KVC_SEGMENT_BLOCKS)
            continue;
        const int has = kvc_inputs_for_device(l->cache, b->tensor, b->block, &inputs, e);
        if (has < 0) return -1;
        for (size_t k = 0; has && k < inputs.n; k++) {
            if (inputs.from[k] == KVC_AHEAD_NONE || !l->target[inputs.from[k]].base) continue;
            struct kvc_load_inputs *x = &l->inputs[inputs.from[k]];
            x->used = any = 1;
            x->last = b->tensor;
        }
    }
    return any;
}

/* Finds the lowest place for the inputs of a tensor beside those that are still needed when it is
 * decoded. */
static void find_place(struct kvc_load *l, uint32_t tensor) {
    struct kvc_load_inputs *x = &l->inputs[tensor];
    for (uint32_t t = 0; t < tensor;) {
        const struct kvc_load_inputs *y = &l->inputs[t++];
        if (!y->used || y->last < tensor || y->at >= x->at + x->size || x->at >= y->at + y->size)
            continue;
        x->at = y->at + y->size; /* beyond it, where others may be in the way again */
        t = 0;
    }
    if (x->at + x->size > l->input_bytes) l->input_bytes = x->at + x->size;
}

int kvc_load_plan_inputs(struct kvc_load *l, struct kvc_error *e) {
    if (!(l->inputs = kvc_alloc_zeros((uint64_t)l->cache->n_tensors + 1, sizeof *l->inputs)))
        return kvc_fail_memory(e, "a plan");
    const int any = in_order(l) ? find_users(l, e) : 0;
    if (any <= 0) return any;
    l->predicts = 1;
    for (uint32_t t = 0; t < l->cache->n_tensors; t++) {
        struct kvc_load_inputs *x = &l->inputs[t];
        uint64_t n;
        if (!x->used) continue;
        kvc_load_rows(l->cache, t, &l->options, &x->first, &n);
        x->stride = (uint32_t)kvc_dot_stride((size_t)l->target[t].heads * l->target[t].channels);
        x->size = (n * x->stride + 15) / 16 * 16;
        find_place(l, t);
    }
    return 0;
}

int kvc_load_inputs_of(const struct kvc_load *l, uint32_t tensor, uint64_t block,
                       struct kvc_batch_inputs *to) {
    const struct kvc_load_inputs *x = &l->inputs[tensor];
    if (!x->used) return 0;
    const uint64_t start = kvc_tensor_cells(l->cache, tensor)->block[block];
    *to = (struct kvc_batch_inputs){.at = (uint64_t)(uintptr_t)l->device_inputs + x->at +
                                          (start - x->first) * x->stride,
                                    .stride = x->stride};
    return 1;
}
