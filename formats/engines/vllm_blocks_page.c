/* vllm_blocks_page.c: dtypes and pages of vLLM's offloaded blocks. */
#include "formats/engines/vllm_blocks.h"

#include <string.h>
#include <strings.h>

static const struct kvc_vllm_page shapes[] = {
    {"T-H-2D", "nhd", 0, 0, 0},  {"2-T-H-D", "nhd", 0, 1, 0}, {"H-T-2D", "hnd", 1, 0, 0},
    {"2-H-T-D", "hnd", 1, 1, 0}, {"T-C", NULL, 0, 0, 1},
};

const struct kvc_vllm_page *kvc_vllm_page_of(const char *name) {
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        if (strcasecmp(name, shapes[i].name) == 0) return &shapes[i];
    return NULL;
}

struct kvc_place kvc_vllm_page_place(const struct kvc_vllm_page *page, unsigned cache,
                                     uint64_t tokens, uint64_t heads, uint64_t channels,
                                     uint64_t value) {
    const uint64_t own = channels * value, head = page->latent || page->halves ? own : 2 * own;
    const uint64_t v = page->halves ? tokens * heads * own : own;
    struct kvc_place p = {.n = tokens, .offset = cache * v, .strides = {heads * head, head, value}};
    if (page->heads_first) p.strides = (struct kvc_strides){head, tokens * head, value};
    return p;
}

/* The name that vLLM writes is the first one of a dtype. */
static const char *const names[][2] = {{"bfloat16", "bf16"},   {"float16", "f16"},
                                       {"half", "f16"},        {"float32", "f32"},
                                       {"float", "f32"},       {"fp8", "f8e4m3"},
                                       {"fp8_e4m3", "f8e4m3"}, {"float8_e4m3fn", "f8e4m3"},
                                       {"fp8_e5m2", "f8e5m2"}, {"float8_e5m2", "f8e5m2"}};
#define NAMES (sizeof names / sizeof names[0])

const struct kvc_dtype_info *kvc_vllm_dtype_of(const char *name) {
    if (strncmp(name, "torch.", 6) == 0) name += 6;
    for (size_t i = 0; i < NAMES; i++)
        if (strcmp(name, names[i][0]) == 0) return kvc_dtype_by_name(names[i][1]);
    return kvc_dtype_by_name(name);
}

const char *kvc_vllm_dtype_name(enum kvc_dtype dtype) {
    for (size_t i = 0; i < NAMES; i++)
        if (strcmp(kvc_dtype_info(dtype)->name, names[i][1]) == 0) return names[i][0];
    return NULL;
}
