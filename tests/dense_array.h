/* dense_array.h: K, V or queries of a layer in memory without gaps, for tests of what takes arrays.
 */
#ifndef KVC_TESTS_DENSE_ARRAY_H
#define KVC_TESTS_DENSE_ARRAY_H

#include "formats/api/kvc.h"

/* Returns the array over `data`, which is [token][head][channel] in values of `bytes` bytes. */
static inline struct kvc_memory_array dense_array(const char *role, uint32_t layer,
                                                  const char *dtype, size_t bytes, uint64_t heads,
                                                  uint64_t dim, void *data) {
    return (struct kvc_memory_array){.role = role,
                                     .layer = layer,
                                     .dtype = dtype,
                                     .heads = heads,
                                     .dim = dim,
                                     .data = data,
                                     .token = (int64_t)(bytes * heads * dim),
                                     .head = (int64_t)(bytes * dim),
                                     .channel = (int64_t)bytes};
}

#endif
