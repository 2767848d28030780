/* fuzz_lmcache_gds.c: chunks of LMCache's GdsBackend from any bytes. */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const struct kvc_import_options options = {.format = "lmcache-gds:fmt=fused,heads=2,first=3"};
    fuzz_engine_file(&kvc_format_lmcache_gds, data, size);
    fuzz_engine_file_as(&kvc_format_lmcache_gds, &options, data, size);
    return 0;
}
