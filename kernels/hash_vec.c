/* hash_vec.c: XXH3-64 by xxHash, which takes AVX2 where it is compiled for it (some three times as
 * fast as with SSE2), and NEON.
 */
#include "kernels/twins.h"

#if defined(KVC_VECTORS)

/* Bytes from what is hashed to what is prefetched. Records come from a file or from another core's
 * cache; the CPU's own prefetching ends with each page of 4 KiB, and xxHash's own distance is too
 * short to begin the next page. */
#define XXH_PREFETCH_DIST 6144
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t kvc_hash_vec(const uint8_t *bytes, size_t n, uint64_t seed) {
    return XXH3_64bits_withSeed(bytes, n, seed);
}

uint64_t kvc_digest_rows_vec(const uint8_t *rows, size_t row_bytes, uint64_t first, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += XXH3_64bits_withSeed(rows + i * row_bytes, row_bytes, first + i);
    return sum;
}

#else
typedef int kvc_no_hash_vec; /* ISO C wants one declaration in a file */
#endif
