/* fuzz_lmcache.c: LMCache's chunks from any bytes: by their header, with other options, and as
 * arrays without a header. */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const as[] = {"lmcache",
                                     "lmcache:fmt=fused,heads=2",
                                     "lmcache:dtype=u8,layers=2,heads=2,dim=3",
                                     "lmcache:dtype=f16,heads=1,dim=2,fmt=t2d,first=7",
                                     "lmcache:dtype=bf16,layers=1,heads=2,dim=2,fmt=fused",
                                     "lmcache:dtype=f32,layers=3,dim=1,fmt=mla"};
    for (size_t i = 0; i < sizeof as / sizeof as[0]; i++) {
        const struct kvc_import_options options = {.format = as[i]};
        fuzz_engine_file_as(&kvc_format_lmcache, &options, data, size);
    }
    return 0;
}
