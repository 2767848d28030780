/* lmcache_chunk.c: layouts of LMCache's chunks, and the cache of them. Source: LMCache
 * lmcache/v1/memory_management.py, lmcache/v1/gpu_connector/gpu_connectors.py. */
#include "formats/engines/lmcache_chunk.h"

#include "formats/cache/keys.h"
#include "formats/cache/mapped.h"
#include "formats/cache/shards.h"
#include "formats/engines/import.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAYERS = 65536 };

#define HEADS KVC_COUNT_OPTION("heads", 1, UINT32_MAX, "H")
#define LAYOUT KVC_TEXT_OPTION("fmt", KVC_LMCACHE_NAMES)
#define FIRST KVC_COUNT_OPTION("first", 0, KVC_MAX_CELLS, "POSITION")

const struct kvc_format_option kvc_lmcache_header_options[] = {
    [KVC_LMCACHE_HEADS] = HEADS,
    [KVC_LMCACHE_FMT] = LAYOUT,
    [KVC_LMCACHE_FIRST] = FIRST,
    {.key = NULL},
};

const struct kvc_format_option kvc_lmcache_options[] = {
    [KVC_LMCACHE_HEADS] = HEADS,
    [KVC_LMCACHE_FMT] = LAYOUT,
    [KVC_LMCACHE_FIRST] = FIRST,
    [KVC_LMCACHE_DTYPE] = KVC_TEXT_OPTION("dtype", "bf16"),
    [KVC_LMCACHE_LAYERS] = KVC_COUNT_OPTION("layers", 1, MAX_LAYERS, "L"),
    [KVC_LMCACHE_TOKENS] = KVC_COUNT_OPTION("tokens", 1, KVC_MAX_CELLS, "T"),
    [KVC_LMCACHE_DIM] = KVC_COUNT_OPTION("dim", 1, UINT32_MAX, "D"),
    {.key = NULL},
};

const struct kvc_lmcache_layout_info kvc_lmcache_layouts[KVC_LMCACHE_LAYOUTS] = {
    [KVC_LMCACHE_2LTD] = {"2ltd", 1, "xltr", "clthd"},
    [KVC_LMCACHE_T2D] = {"t2d", 2, "txr", "ltchd"},
    [KVC_LMCACHE_2TD] = {"2td", 3, "xtr", "clthd"},
    [KVC_LMCACHE_MLA] = {"mla", 6, "xltr", "clthd"},
    [KVC_LMCACHE_FUSED] = {"fused", 1, "xltr", "lthcd"},
};
/* MemoryFormats that hold no K and V in a known layout. */
static const struct {
    uint64_t fmt;
    const char *what;
} others[] = {
    {0, "UNDEFINED"},
    {4, "BINARY: compressed or serialised bytes, of CacheGen for instance; have LMCache store "
        "chunks with remote_serde: naive"},
    {5, "BINARY_BUFFER: compressed or serialised bytes; have LMCache store chunks with "
        "remote_serde: naive"},
    {7, "EC_TD: the output of an encoder, not K and V"},
    {8, "HS_TD: hidden states, not K and V"},
};

/* Returns 1 where K and V are one plane: the first size is 1. */
static int is_plane(enum kvc_lmcache_layout layout) {
    return layout == KVC_LMCACHE_MLA || layout == KVC_LMCACHE_FUSED;
}

int kvc_lmcache_find_layout(const char *name, enum kvc_lmcache_layout *layout, const char *format,
                            struct kvc_error *e) {
    for (size_t i = 0; i < KVC_LMCACHE_LAYOUTS; i++)
        if (strcmp(name, kvc_lmcache_layouts[i].name) == 0) {
            *layout = (enum kvc_lmcache_layout)i;
            return 0;
        }
    return kvc_fail(e, KVC_ERR_USAGE, "%s: fmt=%s is not one of " KVC_LMCACHE_NAMES, format, name);
}

/* Gives K and V their heads, when a row has `row` values in each. */
static int take_heads(struct kvc_lmcache_chunk *k, uint64_t row, uint64_t heads,
                      struct kvc_error *e) {
    const int latent = k->layout == KVC_LMCACHE_MLA, fused = k->layout == KVC_LMCACHE_FUSED;
    k->heads_known = latent || heads;
    k->heads = latent || !heads ? 1 : heads;
    if (fused && !heads)
        return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_HEADS,
                             "K and V of each head are neighbours, and the number of heads, which "
                             "is not recorded, is needed to separate them");
    if (row % (k->heads * (fused ? 2 : 1)))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "rows of %" PRIu64 " values are not %" PRIu64
                        " heads%s: the number of heads is wrong",
                        row, k->heads, fused ? " of K and V" : "");
    k->dim = row / k->heads / (fused ? 2 : 1);
    return 0;
}

static int lmcache_chunk_take_bytes(struct kvc_lmcache_chunk *k, struct kvc_error *e) {
    k->bytes = k->info->size;
    const uint64_t factor[] = {k->layout == KVC_LMCACHE_MLA ? 1 : 2, k->layers, k->tokens, k->heads,
                               k->dim};
    for (size_t i = 0; i < sizeof factor / sizeof factor[0]; i++)
        if (!factor[i] || __builtin_mul_overflow(k->bytes, factor[i], &k->bytes))
            return kvc_fail(
                e, KVC_ERR_DAMAGED,
                "a size of the array is 0, or the array has more bytes than 64 bits count");
    if (k->layers > MAX_LAYERS || k->tokens > KVC_MAX_CELLS)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "%" PRIu64 " layers of %" PRIu64 " tokens are more than kvc handles",
                        k->layers, k->tokens);
    return 0;
}

static int choose(struct kvc_lmcache_chunk *k, uint64_t fmt, const uint64_t *dim, uint64_t rank,
                  const struct kvc_import_options *o, struct kvc_error *e) {
    const char *wanted = o->value[KVC_LMCACHE_FMT].text;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (fmt == others[i].fmt)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "the chunk has the memory format %" PRIu64 ", %s", fmt, others[i].what);
    if (wanted) return kvc_lmcache_find_layout(wanted, &k->layout, "lmcache", e);
    for (size_t i = 0; i < KVC_LMCACHE_LAYOUTS; i++)
        if (kvc_lmcache_layouts[i].fmt == fmt && i != KVC_LMCACHE_FUSED) {
            k->layout = (enum kvc_lmcache_layout)i;
            if (k->layout != KVC_LMCACHE_2LTD || rank != 4 || dim[0] != 1) return 0;
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "K and V are one plane: say fmt=fused if K and V of a head are "
                            "neighbours, fmt=mla for latents");
        }
    return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                    "the chunk has the memory format %" PRIu64 ", which kvc does not know", fmt);
}

int kvc_lmcache_of_shape(struct kvc_lmcache_chunk *k, uint64_t fmt,
                         const struct kvc_dtype_info *info, const uint64_t *dim, uint64_t rank,
                         uint64_t size, const struct kvc_import_options *o, struct kvc_error *e) {
    uint64_t row = 0, planes = 0;
    memset(k, 0, sizeof *k);
    k->info = info;
    k->layers = 1;
    if (choose(k, fmt, dim, rank, o, e)) return -1;
    const char *sizes = kvc_lmcache_layouts[k->layout].sizes;
    if (k->layout == KVC_LMCACHE_MLA && rank == 2) { /* one layer of latents */
        sizes = "tr";
        planes = 1;
    }
    if (strlen(sizes) != rank)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "the layout %s has %zu sizes, the header states %" PRIu64,
                        kvc_lmcache_layouts[k->layout].name, strlen(sizes), rank);
    for (uint64_t i = 0; i < rank; i++)
        *(sizes[i] == 'x'   ? &planes
          : sizes[i] == 'l' ? &k->layers
          : sizes[i] == 't' ? &k->tokens
                            : &row) = dim[i];
    if (planes != (is_plane(k->layout) ? 1 : 2))
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "the layout %s has %d planes of K and V, the header states %" PRIu64,
                        kvc_lmcache_layouts[k->layout].name, is_plane(k->layout) ? 1 : 2, planes);
    const uint64_t heads = o->value[KVC_LMCACHE_HEADS].count ? o->value[KVC_LMCACHE_HEADS].count
                                                             : o->kv_heads;
    if (take_heads(k, row, heads, e) || lmcache_chunk_take_bytes(k, e)) return -1;
    if (k->bytes != size)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "the shape makes %" PRIu64 " bytes, but there are %" PRIu64
                        " of data (cut short or appended to)",
                        k->bytes, size);
    return 0;
}

int kvc_lmcache_has_geometry(const struct kvc_import_options *o) {
    for (int i = KVC_LMCACHE_DTYPE; i <= KVC_LMCACHE_DIM; i++)
        if (o->value[i].text) return 1;
    return 0;
}

int kvc_lmcache_of_options(struct kvc_lmcache_chunk *k, const char *format, uint64_t size,
                           const struct kvc_dtype_info *info, const struct kvc_import_options *o,
                           struct kvc_error *e) {
    const struct kvc_option_value *v = o->value;
    const char *dtype = v[KVC_LMCACHE_DTYPE].text ? v[KVC_LMCACHE_DTYPE].text
                        : info                    ? info->name
                                                  : NULL;
    memset(k, 0, sizeof *k);
    if (v[KVC_LMCACHE_FMT].text &&
        kvc_lmcache_find_layout(v[KVC_LMCACHE_FMT].text, &k->layout, format, e))
        return -1;
    const int latent = k->layout == KVC_LMCACHE_MLA;
    k->layers = v[KVC_LMCACHE_LAYERS].count;
    if (!k->layers && !strchr(kvc_lmcache_layouts[k->layout].sizes, 'l')) k->layers = 1;
    if (!dtype || !k->layers || !v[KVC_LMCACHE_DIM].count ||
        (!latent && !v[KVC_LMCACHE_HEADS].count))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%s: a file without a header needs its geometry: "
                        "dtype=bf16,layers=L,heads=H,dim=D[,tokens=T][,fmt=" KVC_LMCACHE_NAMES "]",
                        format);
    if (k->layers > 1 && !strchr(kvc_lmcache_layouts[k->layout].sizes, 'l'))
        return kvc_fail(e, KVC_ERR_USAGE, "%s: fmt=%s holds one layer", format,
                        kvc_lmcache_layouts[k->layout].name);
    if (!(k->info = kvc_dtype_by_name(dtype)) || k->info->block > 1)
        return kvc_fail(e, KVC_ERR_USAGE, "%s: dtype=%s is no type of LMCache", format, dtype);
    k->heads = latent ? 1 : v[KVC_LMCACHE_HEADS].count;
    k->heads_known = 1;
    k->dim = v[KVC_LMCACHE_DIM].count;
    k->tokens = 1;
    if (lmcache_chunk_take_bytes(k, e)) return -1;
    k->tokens = v[KVC_LMCACHE_TOKENS].count ? v[KVC_LMCACHE_TOKENS].count : size / k->bytes;
    if (!k->tokens || lmcache_chunk_take_bytes(k, e) || k->bytes != size)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%s: the geometry makes %" PRIu64 " bytes%s, but there are %" PRIu64,
                        format, k->bytes, v[KVC_LMCACHE_TOKENS].count ? "" : " in whole tokens",
                        size);
    return 0;
}

/* --- the cache --- */

/* Adds the tensors of a file, and maps them. The layers of most layouts are mapped together; where
 * K and V lie between each other, each layer is one region, which restoring keeps in memory. */
static int add_chunk(struct kvc_cache *c, const struct kvc_lmcache_file *f, struct kvc_error *e) {
    const struct kvc_lmcache_chunk *k = &f->chunk;
    uint32_t layer = f->place;
    const char *order = kvc_lmcache_layouts[k->layout].order;
    uint64_t at = f->at, steps = *order == 'l' ? k->layers : 1;
    struct kvc_geometry g = kvc_geometry_of(k->info, k->layout == KVC_LMCACHE_MLA,
                                            k->layers / steps, k->tokens, k->heads, k->dim);
    if (kvc_geometry_order(&g, order) != KVC_ORDER_GOOD)
        return kvc_fail(e, KVC_ERR_DAMAGED, "the array has no geometry");
    for (; steps; steps--, layer++, at += g.bytes)
        if (kvc_geometry_tensors(c, &g, k->dim, layer, k->tokens, e) ||
            kvc_geometry_map(c, &g, layer, 0, f->in, at, e) ||
            kvc_geometry_extents(c, &g, layer, 0, f->in, at, e))
            return -1;
    return 0;
}

static int by_layer(const void *pa, const void *pb) {
    const struct kvc_lmcache_file *a = pa, *b = pb;
    return a->layer < b->layer ? -1 : a->layer > b->layer;
}

static int by_member(const void *pa, const void *pb) {
    const struct kvc_lmcache_file *a = pa, *b = pb;
    return a->member < b->member ? -1 : a->member > b->member;
}

/* Adds the layers in ascending order, which need not be the order of the files. */
static int lmcache_chunk_add_layers(struct kvc_cache *c, struct kvc_lmcache_file *file, size_t n,
                                    struct kvc_error *e) {
    qsort(file, n, sizeof *file, by_layer);
    for (size_t i = 0; i < n; i++) {
        struct kvc_lmcache_file *f = &file[i];
        if (i && f[-1].layer == f->layer)
            return kvc_fail(e, KVC_ERR_DAMAGED, "two files hold layer %" PRIu32, f->layer);
        f->place = c->n_layers;
        if (kvc_import_layers(c, f->layer, f->chunk.layers, f->chunk.layout == KVC_LMCACHE_MLA, e))
            return -1;
    }
    return 0;
}

/* Adds the tensors and extents of all members, in their order. */
static int lmcache_chunk_add_members(struct kvc_cache *c, const struct kvc_bundle *b,
                                     struct kvc_lmcache_file *file, size_t n, struct kvc_error *e) {
    qsort(file, n, sizeof *file, by_member);
    for (size_t i = 0, next = 0; i < b->n; i++) {
        const struct kvc_lmcache_file *f = next < n && file[next].member == i ? &file[next++]
                                                                              : NULL;
        if (!f && kvc_member_literal(c, b, i, e)) return -1;
        if (!f) continue;
        if (!kvc_member_begin(c, b, i, e) || kvc_cache_extent_literal(c, f->in, 0, f->at, e) ||
            add_chunk(c, f, e))
            return -1;
    }
    return 0;
}

static int describe_key(struct kvc_cache *c, const char *name, struct kvc_error *e) {
    struct kvc_lmcache_key key;
    if (!name || !kvc_lmcache_key_of(&key, name)) return 0;
    if (kvc_shard_set_rank(&c->meta, key.worker, key.world, e)) return -1;
    return kvc_meta_set_text(&c->meta, KVC_KEY_MODEL_NAME, key.model, e);
}

struct kvc_cache *kvc_lmcache_build(const char *format, const struct kvc_bundle *b,
                                    struct kvc_lmcache_file *file, size_t n, int layers_known,
                                    const struct kvc_import_options *o, struct kvc_error *e) {
    const struct kvc_lmcache_chunk *k = &file->chunk;
    const int latent = k->layout == KVC_LMCACHE_MLA, heads_known = k->heads_known;
    const char *key = kvc_member_path(b, file->member);
    struct kvc_cache *c = kvc_import_begin(e);
    if (!c || kvc_import_cells(c, k->tokens, o->value[KVC_LMCACHE_FIRST].count, e) ||
        lmcache_chunk_add_layers(c, file, n, e) || lmcache_chunk_add_members(c, b, file, n, e) ||
        kvc_import_meta_assumed(c, format, b, o, latent, e) ||
        kvc_meta_set_bool(&c->meta, KVC_KEY_HEADS_KNOWN, heads_known, e) ||
        kvc_meta_set_bool(&c->meta, KVC_KEY_LAYERS_KNOWN, layers_known, e) ||
        describe_key(c, key, e) || kvc_cache_finish(c, e))
        return kvc_import_end(c, -1);
    return c;
}
