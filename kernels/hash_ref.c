/* hash_ref.c: XXH3-64 of bytes and of rows, by xxHash with the instructions that every CPU of this
 * machine's kind has. Not for what is hashed (formats/container/FORMAT.md 4 and 6). */
#include "kernels/twins.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t kvc_hash_ref(const uint8_t *bytes, size_t n, uint64_t seed) {
    return XXH3_64bits_withSeed(bytes, n, seed);
}

uint64_t kvc_digest_rows_ref(const uint8_t *rows, size_t row_bytes, uint64_t first, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += XXH3_64bits_withSeed(rows + i * row_bytes, row_bytes, first + i);
    return sum;
}
