/* vllm_blocks_page.c: dtypes and pages of vLLM's offloaded blocks. */
#include "formats/engines/vllm_blocks.h"

#include <string.h>
#include <strings.h>

static const struct kvc_vllm_page shapes[] = {{"T-H-2D", "nhd", "lthcd", 0},
                                              {"2-T-H-D", "nhd", "lcthd", 0},
                                              {"H-T-2D", "hnd", "lhtcd", 0},
                                              {"2-H-T-D", "hnd", "lchtd", 0},
                                              {"T-C", NULL, "lcthd", 1}};

const struct kvc_vllm_page *kvc_vllm_page_of(const char *name) {
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        if (strcasecmp(name, shapes[i].name) == 0) return &shapes[i];
    return NULL;
}

int kvc_vllm_page_geometry(const struct kvc_vllm_page *page, const struct kvc_dtype_info *info,
                           uint64_t tokens, uint64_t heads, uint64_t channels,
                           struct kvc_geometry *g) {
    *g = kvc_geometry_of(info, page->latent, 1, tokens, heads, channels);
    return kvc_geometry_order(g, page->order) == KVC_ORDER_GOOD ? 0 : -1;
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
