/* pool_layouts.c: the table of engines' pools. What a row's axes say is all there is to it: strides are computed from them.
 * Not for pools with padding between pages, whose owners give strides of their own. */
#include "formats/api/pool_layouts.h"

#include <string.h>

/* Pools that engines keep as [pages * page size, ...] have B and T side by side: the same bytes. Lists of tensors are told
 * apart by L and 2 before the '/', layer first whatever list is the outer one. Latents (MLA) are one vector a token: no H, no
 * 2. "Heads first": before the tokens of a page. */
static const struct kvc_cuda_layout layouts[] = {
    {"dense", "L2BTHD", "one array [layers][2][tokens][heads][channels]"},
    {"transformers", "L2/BHTD", "transformers: K and V of each layer [batch, heads, tokens, channels]; a page is a sequence"},
    {"vllm-flash", "L/2BTHD", "vLLM FlashAttention: each layer [2, pages, page size, heads, channels]"},
    {"vllm-flash-hnd", "L/2BHTD", "vLLM FlashAttention, heads first: each layer [2, pages, heads, page size, channels]"},
    {"vllm-flashinfer", "L/B2THD", "vLLM FlashInfer: each layer [pages, 2, page size, heads, channels]"},
    {"vllm-flashinfer-hnd", "L/B2HTD", "vLLM FlashInfer, heads first: each layer [pages, 2, heads, page size, channels]"},
    {"vllm-unified", "L/BTHC", "vLLM, K and V side by side: each layer [pages, page size, heads, 2 * channels]"},
    {"vllm-unified-hnd", "L/BHTC", "vLLM, side by side, heads first: each layer [pages, heads, page size, 2 * channels]"},
    {"vllm-pairs", "L2/BTHD", "vLLM: K and V of each layer [pages, page size, heads, channels]"},
    {"vllm-mla", "L/BTD", "vLLM latent attention: each layer [pages, page size, channels]"},
    {"vllm-cross-layer", "BL2THD", "vLLM, layers in one array: [pages, layers, 2, page size, heads, channels]"},
    {"vllm-cross-unified", "BLTHC", "the same, K and V side by side: [pages, layers, page size, heads, 2 * channels]"},
    {"vllm-cross-unified-hnd", "BLHTC", "the same, heads first: [pages, layers, heads, page size, 2 * channels]"},
    {"sglang-mha", "L2/BTHD", "SGLang: lists of K and of V, each layer [pages * page size, heads, channels]"},
    {"sglang-mla", "L/BTD", "SGLang latent attention: each layer [pages * page size, 1, channels]"},
    {"trtllm", "BL2HTD", "TensorRT-LLM: [pages, layers, 2, heads, page size, channels]"},
};

const struct kvc_cuda_layout *kvc_layout_at(size_t i) {
    return i < sizeof layouts / sizeof layouts[0] ? &layouts[i] : NULL;
}

const struct kvc_cuda_layout *kvc_layout_find(const char *name) {
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        if (strcmp(layouts[i].name, name) == 0) return &layouts[i];
    return NULL;
}

/* How many entries an axis has (C: those of D), and where its stride goes. */
static uint64_t axis(char letter, const struct kvc_cuda_pool *pool, struct kvc_cuda_strides *strides, int64_t **stride) {
    switch (letter) {
    case 'L': *stride = &strides->layer; return pool->layers;
    case '2': *stride = &strides->kv; return 2;
    case 'B': *stride = &strides->page; return pool->pages;
    case 'T': *stride = &strides->token; return pool->page_size;
    case 'H': *stride = &strides->head; return pool->heads;
    default: *stride = &strides->dim; return pool->dim;
    }
}

static int usable(const char *axes, const struct kvc_cuda_pool *p) {
    if (!p->layers || !p->pages || !p->page_size || !p->heads || !p->dim) return 0;
    if (p->heads != 1 && !strchr(axes, 'H')) return 0;
    return p->value_bytes == 1 || p->value_bytes == 2 || p->value_bytes == 4;
}

int64_t kvc_layout_strides(const struct kvc_cuda_layout *layout, const struct kvc_cuda_pool *pool,
                           struct kvc_cuda_strides *strides) {
    const char *axes = layout ? layout->axes : "", *slash = strchr(axes, '/');
    if (!layout || !usable(axes, pool)) return -1;
    int64_t size = (int64_t)pool->value_bytes, bases = 1, *stride;
    memset(strides, 0, sizeof *strides);
    for (const char *a = axes + strlen(axes); a-- > axes && *a != '/';) {
        uint64_t n = axis(*a, pool, strides, &stride);
        *stride = size;
        if (__builtin_mul_overflow(size, n, &size)) return -1;
        if (*a != 'C') continue; /* V after K, head by head */
        strides->kv = size;
        if (__builtin_mul_overflow(size, 2, &size)) return -1;
    }
    for (const char *a = axes; slash && a < slash; a++)
        if (__builtin_mul_overflow(bases, axis(*a, pool, strides, &stride), &bases)) return -1;
    return bases;
}
