/* fuzz_mlx.c: prompt caches of mlx-lm from any bytes. */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_engine_file(&kvc_format_mlx, data, size);
    return 0;
}
