/* fuzz_vllm.c: folders of vLLM's ExampleConnector, from any bytes of a tar archive after a byte
 * that chooses the options. */
#include "tests/fuzz/fuzz_members.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const from[] = {
        "vllm",      "vllm:shape=T-H-2D", "vllm:shape=T-2-H-D", "vllm:shape=2-T-HD",
        "vllm:gaps", "vllm:cpu-block=4",  "vllm:cpu-block=8",   "vllm:gaps,cpu-block=16",
    };
    if (!size) return 0;
    const struct kvc_import_options o = {.format = from[data[0] & 7], .kv_heads = data[0] >> 3 & 3};
    fuzz_archive(data + 1, size - 1, &o);
    return 0;
}
