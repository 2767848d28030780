/* fuzz_hicache.c: pages of SGLang's HiCache from any bytes, in each layout. */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const as[] = {
        "hicache:layout=layer_first,dtype=u8,layers=2,heads=2,dim=3,page=2",
        "hicache:layout=page_first,dtype=f16,layers=2,heads=1,dim=3,page=2,first=9",
        "hicache:layout=page_first_direct,dtype=f8e4m3,layers=2,heads=2,dim=3,page=2",
        "hicache:layout=page_head,dtype=f32,layers=1,heads=3,dim=1,page=2",
        "hicache:layout=page_first,dtype=u8,layers=2,dim=12,page=2,latent"};
    for (size_t i = 0; i < sizeof as / sizeof as[0]; i++) {
        const struct kvc_import_options options = {.format = as[i]};
        fuzz_engine_file_as(&kvc_format_hicache, &options, data, size);
    }
    return 0;
}
