/* pool_layouts.c: the table of engines' pools. What a row's axes say is all there is to it: strides
 * are computed from them. Not for pools with padding between pages, whose owners give strides of
 * their own. */
#include "formats/api/kvc.h"

#include "codecs/error.h"
#include "formats/api/sized.h"

#include <inttypes.h>
#include <string.h>

/* Pools that engines keep as [pages * page size, ...] have B and T side by side: the same bytes.
 * Lists of tensors are told apart by L and 2 before the '/', layer first whatever list is the outer
 * one. Latents (MLA) are one vector a token: no H, no
 * 2. "Heads first": before the tokens of a page. */
enum { SIZE = sizeof(struct kvc_pool_layout) };
static const struct kvc_pool_layout layouts[] = {
    {SIZE, "dense", "L2BTHD", NULL, "one array [layers][2][tokens][heads][channels]"},
    {SIZE, "transformers", "L2/BHTD", NULL,
     "transformers: K and V of each layer [batch, heads, tokens, channels]; a page is a sequence"},
    {SIZE, "vllm-flash", "L/2BTHD", NULL,
     "vLLM FlashAttention: each layer [2, pages, page size, heads, channels]"},
    {SIZE, "vllm-flash-hnd", "L/2BHTD", NULL,
     "vLLM FlashAttention, heads first: each layer [2, pages, heads, page size, channels]"},
    {SIZE, "vllm-flashinfer", "L/B2THD", NULL,
     "vLLM FlashInfer: each layer [pages, 2, page size, heads, channels]"},
    {SIZE, "vllm-flashinfer-hnd", "L/B2HTD", NULL,
     "vLLM FlashInfer, heads first: each layer [pages, 2, heads, page size, channels]"},
    {SIZE, "vllm-unified", "L/BTHC", NULL,
     "vLLM, K and V side by side: each layer [pages, page size, heads, 2 * channels]"},
    {SIZE, "vllm-unified-hnd", "L/BHTC", NULL,
     "vLLM, side by side, heads first: each layer [pages, heads, page size, 2 * channels]"},
    {SIZE, "vllm-pairs", "L2/BTHD", NULL,
     "vLLM: K and V of each layer [pages, page size, heads, channels]"},
    {SIZE, "vllm-mla", "L/BTD", NULL,
     "vLLM latent attention: each layer [pages, page size, channels]"},
    {SIZE, "vllm-cross-layer", "BL2THD", NULL,
     "vLLM, layers in one array: [pages, layers, 2, page size, heads, channels]"},
    {SIZE, "vllm-cross-unified", "BLTHC", NULL,
     "the same, K and V side by side: [pages, layers, page size, heads, 2 * channels]"},
    {SIZE, "vllm-cross-unified-hnd", "BLHTC", NULL,
     "the same, heads first: [pages, layers, heads, page size, 2 * channels]"},
    {SIZE, "vllm-cpu", "L/BH2TD", "L/BH2DT",
     "vLLM on CPUs with AVX2 or AVX-512: of a head of a page K, [channels, page size], then V"},
    {SIZE, "sglang-mha", "L2/BTHD", NULL,
     "SGLang: lists of K and of V, each layer [pages * page size, heads, channels]"},
    {SIZE, "sglang-mla", "L/BTD", NULL,
     "SGLang latent attention: each layer [pages * page size, 1, channels]"},
    {SIZE, "trtllm", "BL2HTD", NULL,
     "TensorRT-LLM: [pages, layers, 2, heads, page size, channels]"},
};

const struct kvc_pool_layout *kvc_pool_layout_at(size_t i) {
    return i < sizeof layouts / sizeof layouts[0] ? &layouts[i] : NULL;
}

const struct kvc_pool_layout *kvc_pool_layout_find(const char *name) {
    for (size_t i = 0; name && i < sizeof layouts / sizeof layouts[0]; i++)
        if (strcmp(layouts[i].name, name) == 0) return &layouts[i];
    return NULL;
}

/* How many entries an axis has (C: those of D), and where its stride goes. */
static uint64_t axis(char letter, const struct kvc_pool *pool, struct kvc_pool_strides *strides,
                     int64_t **stride) {
    switch (letter) {
    case 'L': *stride = &strides->layer; return pool->layers;
    case '2': *stride = &strides->kv; return 2;
    case 'B': *stride = &strides->page; return pool->pages;
    case 'T': *stride = &strides->token; return pool->page_size;
    case 'H': *stride = &strides->head; return pool->heads;
    default: *stride = &strides->dim; return pool->dim;
    }
}

static int usable(const char *axes, const struct kvc_pool *p) {
    if (!p->layers || !p->pages || !p->page_size || !p->heads || !p->dim) return 0;
    if (p->reserved[0] || p->reserved[1]) return 0;
    if (p->heads != 1 && !strchr(axes, 'H')) return 0;
    return p->value_bytes == 1 || p->value_bytes == 2 || p->value_bytes == 4;
}

/* Strides of K or of V. Returns the number of allocations, or -1. */
static int64_t strides_of(const char *axes, const struct kvc_pool *pool,
                          struct kvc_pool_strides *strides) {
    const char *slash = strchr(axes, '/');
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

int64_t kvc_pool_layout_strides(const struct kvc_pool_layout *layout, const struct kvc_pool *pool,
                                struct kvc_pool_strides *k, struct kvc_pool_strides *v) {
    if (!layout || !pool || !k || !v || !usable(layout->axes, pool)) return -1;
    const int64_t bases = strides_of(layout->k_axes ? layout->k_axes : layout->axes, pool, k);
    return bases < 0 ? -1 : strides_of(layout->axes, pool, v);
}

static void take_array(struct kvc_memory_array *a, const struct kvc_pool *pool,
                       const struct kvc_pool_strides *s, uint64_t layer, unsigned kv,
                       void *const *bases, uint64_t n_bases) {
    const uint64_t base = n_bases == 1 ? 0 : n_bases == pool->layers ? layer : 2 * layer + kv;
    /* strides between allocations are 0 */
    const uint64_t offset = (uint64_t)s->layer * layer + (uint64_t)s->kv * kv;
    a->layer = (uint32_t)layer;
    a->heads = pool->heads;
    a->dim = pool->dim;
    a->data = (uint8_t *)bases[base] + offset;
    a->page = s->page;
    a->token = s->token;
    a->head = s->head;
    a->channel = s->dim;
}

int kvc_pool_arrays(const struct kvc_pool_layout *layout, const struct kvc_pool *pool,
                    const char *dtype, void *const *bases, uint64_t n_bases,
                    struct kvc_memory_array *arrays, size_t array_size, size_t n,
                    struct kvc_error *e) {
    struct kvc_pool_strides s[2];
    if (KVC_NULL(e, layout, pool, dtype, bases, arrays)) return -1;
    if (!array_size) return kvc_fail(e, KVC_ERR_USAGE, "kvc_pool_arrays(): array_size is 0");
    const int64_t due = kvc_pool_layout_strides(layout, pool, &s[0], &s[1]);
    if (due < 0)
        return kvc_fail(e, KVC_ERR_USAGE, "layout %s does not take a pool of these sizes",
                        layout->name);
    const unsigned caches = strpbrk(layout->axes, "2C") ? 2 : 1; /* 1: latents */
    if ((uint64_t)due != n_bases)
        return kvc_fail(e, KVC_ERR_USAGE, "layout %s has %" PRId64 " bases, not %" PRIu64,
                        layout->name, due, n_bases);
    if (pool->layers > UINT32_MAX || n != caches * pool->layers)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "layout %s has %u arrays for each of %" PRIu64 " layers, not %zu",
                        layout->name, caches, pool->layers, n);
    for (size_t i = 0; i < n; i++) {
        struct kvc_memory_array own = {.role = caches == 1 ? "latent"
                                               : i % 2     ? "V"
                                                           : "K",
                                       .dtype = dtype};
        take_array(&own, pool, &s[i % caches], i / caches, (unsigned)(i % caches), bases, n_bases);
        memset((uint8_t *)arrays + i * array_size, 0, array_size);
        memcpy((uint8_t *)arrays + i * array_size, &own,
               array_size < sizeof own ? array_size : sizeof own);
    }
    return 0;
}
