/* fuzz_safetensors.c: safetensors caches from any bytes. */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_engine_file(&kvc_format_safetensors, data, size);
    fuzz_arrays_as(&kvc_format_safetensors, data, size);
    return 0;
}
