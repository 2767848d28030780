/* fuzz_ggsq.c: llama.cpp's per-sequence files from any bytes. The first eight become a valid magic
 * and version. */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 8) {
        fuzz_engine_file(&kvc_format_llama, data, size);
        return 0;
    }
    uint8_t *copy = fuzz_alloc(size);
    memcpy(copy, data, size);
    memcpy(copy, "qsgg", 4);
    /* 2, 3 and 4 stay themselves */
    memcpy(copy + 4, (uint8_t[]){(uint8_t)(2 + (data[4] + 1) % 3), 0, 0, 0}, 4);
    fuzz_engine_file(&kvc_format_llama, copy, size);
    free(copy);
    return 0;
}
