/* one_tensor.h: caches of one tensor in memory, for the tests of what is measured over tensors. Not
 * for caches of more. */
#ifndef ONE_TENSOR_H
#define ONE_TENSOR_H

#include "formats/cache/mapped.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* Returns a cache of one layer's K over `rows`, canonical, which stay the caller's; positions NULL:
 * 0, 1, ... */
static inline struct kvc_cache *one_tensor(const struct kvc_shape *shape, const void *rows,
                                           const int64_t *positions) {
    struct kvc_error e;
    struct kvc_cache *c = kvc_cache_new(&e);
    assert_non_null(c);
    const uint32_t part = kvc_cache_add_part(c, KVC_PART_LIVE, shape->tokens, &e);
    assert_int_not_equal(part, KVC_NONE);
    const uint32_t layer = kvc_cache_add_layer(c, part, 0, KVC_LAYER_FULL, &e);
    assert_int_not_equal(layer, KVC_NONE);
    assert_int_equal(kvc_cache_add_tensor(c, layer, KVC_ROLE_K, shape, &e), 0);
    if (positions)
        memcpy(c->part[part].cells.pos, positions, (size_t)shape->tokens * sizeof *positions);
    assert_int_equal(kvc_cache_map(c, NULL, NULL, &e), 0);
    assert_int_equal(kvc_cache_map_memory(c, 0, rows, &e), 0);
    assert_int_equal(kvc_cache_finish(c, &e), 0);
    return c;
}

#endif
