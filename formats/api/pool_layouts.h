/* pool_layouts.h: how engines lay out their pools of K and V: a table of axes, and the strides they come to. The structs are
 * kvc_cuda.h's, whose functions of nearly the same names hand these out. Not for memory, nor for what is written there. */
#ifndef KVC_LAYOUTS_H
#define KVC_LAYOUTS_H

#include "formats/api/kvc_cuda.h"

/* The table's rows; NULL past its end. */
const struct kvc_cuda_layout *kvc_layout_at(size_t i);
/* NULL: there is none of that name. */
const struct kvc_cuda_layout *kvc_layout_find(const char *name);
/* Strides of a densely packed pool, and how many allocations it consists of: 1, layers (layer 0, 1, ...) or 2 * layers
 * (layer 0 K, layer 0 V, layer 1 K, ...), whatever the order in which the engine itself lists them. Axes that a layout lacks,
 * or that tell allocations apart, get stride 0; without H the pool must have one head. -1 for sizes of 0, for values that are
 * not of 1, 2 or 4 bytes, and when an allocation would have more than 2^63 - 1 bytes. */
int64_t kvc_layout_strides(const struct kvc_cuda_layout *layout, const struct kvc_cuda_pool *pool,
                           struct kvc_cuda_strides *strides);

#endif
