/* fuzz_vllm_blocks.c: blocks of vLLM's OffloadingConnector, from any bytes of a tar archive after a
 * byte that chooses the options. */
#include "tests/fuzz/fuzz_members.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const from[] = {
        "vllm-blocks:shape=T-H-2D,heads=2,dim=2,in-order",
        "vllm-blocks:shape=2-T-H-D,heads=1,dim=4,in-order",
        "vllm-blocks:shape=H-T-2D,heads=2,dim=2,block=1,block=0",
        "vllm-blocks:shape=2-H-T-D,heads=3,dim=1,in-order,chunk=8",
        "vllm-blocks:shape=T-C,dim=8,block=0",
        "vllm-blocks:shape=T-H-2D,heads=2,dim=2,dtype=u8,in-order,chunk=4",
        "vllm-blocks",
        "vllm-blocks:shape=H-T-2D,heads=65536,dim=65536,in-order",
        "vllm-blocks:shape=H-T-2D,heads=4,dim=2,in-order,worker=1/2",
    };
    if (!size) return 0;
    const struct kvc_import_options o = {.format = from[data[0] & 0x80 ? 8 : data[0] & 7],
                                         .kv_heads = data[0] >> 3 & 3};
    fuzz_archive(data + 1, size - 1, &o);
    return 0;
}
