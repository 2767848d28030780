/* fuzz_lmcr.c: compressed records of LMCache from any bytes, as they are and with sizes and checksum of the header put right. */
#include "tests/fuzz/fuzz.h"

#include "formats/io/bytes.h"

#include <zlib.h>

enum { HEADER = 44, ENTRY = 24 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const struct kvc_import_options options = {.format = "lmcr:dtype=u8,layers=1,heads=1,dim=1"};
    fuzz_engine_file(&kvc_format_lmcr, data, size);
    if (size < HEADER) return 0;
    uint8_t *right = fuzz_alloc(size);
    memcpy(right, data, size);
    const uint64_t n = get_u32(right + 28) % ((size - HEADER) / ENTRY + 1);
    memcpy(right, "LMCR\1\1", 6);
    right[6] = (uint8_t)(1 + right[6] % 2);
    right[7] = 0;
    put_u32(right + 8, (uint32_t)(HEADER + n * ENTRY));
    put_u64(right + 12, size);
    put_u32(right + 28, (uint32_t)n);
    put_u32(right + 32, 0);
    put_u32(right + 40, 0);
    put_u32(right + 32, (uint32_t)crc32_z(0, right, HEADER + n * ENTRY));
    fuzz_engine_file_as(&kvc_format_lmcr, &options, right, size);
    free(right);
    return 0;
}
