/* hicache.c: pages of K and V, or of latents, that SGLang's HiCache stores, one file each, as bare
 * values. Not for guessing: nothing in a page says what it is, so the caller gives its geometry and
 * the layout of the host's memory. The same options are taken for writing, where the cache has the
 * geometry of its layers and options must agree with it. Source: SGLang
 * python/sglang/srt/mem_cache/pool_host, hicache_storage.py. */
#include "codecs/memory.h"
#include "formats/cache/format.h"
#include "formats/cache/keys.h"
#include "formats/cache/mapped.h"
#include "formats/engines/geometry.h"
#include "formats/engines/import.h"
#include "formats/engines/uniform.h"
#include "formats/io/member_name.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAYERS = 65536 };

/* Options, by position. */
enum { LAYOUT, DTYPE, LAYERS, HEADS, CHANNELS, PAGE, FIRST, LATENT };

static const struct kvc_format_option options[] = {
    [LAYOUT] = KVC_TEXT_OPTION("layout", "page_first_direct"),
    [DTYPE] = KVC_TEXT_OPTION("dtype", "bf16"),
    [LAYERS] = KVC_COUNT_OPTION("layers", 1, MAX_LAYERS, "L"),
    [HEADS] = KVC_COUNT_OPTION("heads", 1, UINT32_MAX, "H"),
    [CHANNELS] = KVC_COUNT_OPTION("dim", 1, UINT32_MAX, "D"),
    [PAGE] = KVC_COUNT_OPTION("page", 1, KVC_MAX_CELLS, "TOKENS"),
    [FIRST] = KVC_COUNT_OPTION("first", 0, KVC_MAX_CELLS, "POSITION"),
    [LATENT] = KVC_LATENT_OPTION,
    {.key = NULL},
};

/* Layouts of the host's memory, and the order of axes of one page in each. */
static const struct {
    const char *name, *order;
} layouts[] = {{"layer_first", "clthd"},
               {"page_first", "ctlhd"},
               {"page_first_direct", "clthd"},
               {"page_head", "chtld"}};

static int hicache_probe(const struct kvc_bundle *b, char *why, size_t size) {
    (void)b;
    snprintf(why, size, "pages are never guessed");
    return 0;
}

/* Returns what follows the SHA-256 by which HiCache names pages, or NULL if a name does not begin
 * with one. */
static const char *after_hash(const char *name) {
    const char *own = kvc_base_name(name);
    const size_t n = strspn(own, "0123456789abcdef");
    return n < 64 ? NULL : own + n;
}

/* Returns 1 if a name is HASH_MODEL.bin, without the "_RANK_RANKS" of HiCache's pages that differ
 * between ranks. */
static int lacks_ranks(const char *name) {
    const char *p = after_hash(name);
    if (!p || *p != '_' || strcmp(strrchr(p, '.') ? strrchr(p, '.') : "", ".bin") != 0) return 0;
    for (; (p = strchr(p, '_')) != NULL; p++) {
        const char *end = p + 1 + strspn(p + 1, "0123456789");
        const size_t n = end > p + 1 && *end == '_' ? strspn(end + 1, "0123456789") : 0;
        if (n && strchr("_.", end[1 + n])) return 0;
    }
    return 1;
}

/* Refuses to cut latents in two, where the model or the name of a file tells that they are latents.
 */
static int check_kind(const struct kvc_bundle *b, const struct kvc_import_options *o,
                      struct kvc_error *e) {
    static const char advice[] =
        "say latent, and kv_lora_rank + qk_rope_head_dim as dim: its pages have no V";
    if (o->value[LATENT].count) return 0;
    if (o->latent)
        return kvc_fail(e, KVC_ERR_USAGE, "hicache: the model has latent attention: %s", advice);
    for (size_t i = 0; i < b->n; i++) {
        const char *name = b->is_file ? b->name : b->member[i].name;
        if (name && lacks_ranks(name))
            return kvc_fail(e, KVC_ERR_USAGE,
                            "hicache: names of pages have no ranks, as with latent attention: %s. "
                            "Pages of K and V need other names",
                            advice);
    }
    return 0;
}

/* Checks that the order of the files is that of the tokens: names of pages sort at random. */
static int check_order(const struct kvc_bundle *b, struct kvc_error *e) {
    for (size_t i = 0; b->folder && b->n > 1 && i < b->n; i++)
        if (after_hash(b->member[i].name))
            return kvc_fail(e, KVC_ERR_USAGE,
                            "hicache: the pages of a folder are taken in the order of their names, "
                            "and these are hashes: name the files by number, or put them into a "
                            "tar archive in the order of the tokens");
    return 0;
}

/* Finds the order of axes of a layout, and sets the strides of a page. A page of latents has one
 * head. */
static int take_layout(struct kvc_geometry *g, const char *layout, struct kvc_error *e) {
    const char *order = NULL;
    if (g->latent && strcmp(layout, "page_head") == 0)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "hicache: layout=page_head is for heads, and latents have none");
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        if (strcmp(layout, layouts[i].name) == 0) order = layouts[i].order;
    if (!order)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "hicache: layout=%s is not one of layer_first, page_first, "
                        "page_first_direct, page_head",
                        layout);
    return kvc_geometry_order(g, order) == KVC_ORDER_GOOD
               ? 0
               : kvc_fail(e, KVC_ERR_USAGE,
                          "hicache: this geometry has more bytes than 64 bits count");
}

static int take_geometry(struct kvc_geometry *g, const struct kvc_import_options *o,
                         struct kvc_error *e) {
    const struct kvc_option_value *v = o->value;
    const int latent = v[LATENT].count != 0;
    const struct kvc_dtype_info *info = v[DTYPE].text ? kvc_dtype_by_name(v[DTYPE].text) : NULL;
    if (!v[LAYOUT].text || !v[DTYPE].text || !v[LAYERS].count || !(v[HEADS].count || latent) ||
        !v[CHANNELS].count || !v[PAGE].count)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "hicache needs the geometry of a page: "
                        "layout=page_first_direct,dtype=bf16,layers=L,heads=H,dim=D,page=TOKENS[,"
                        "first=POSITION], with latent instead of heads=H for latent attention");
    if (latent && v[HEADS].count > 1)
        return kvc_fail(e, KVC_ERR_USAGE, "hicache: heads=%s, but latents have one head",
                        v[HEADS].text);
    if (!info || info->block > 1)
        return kvc_fail(e, KVC_ERR_USAGE, "hicache: dtype=%s is no type of SGLang's caches",
                        v[DTYPE].text);
    *g = kvc_geometry_of(info, latent, v[LAYERS].count, v[PAGE].count, latent ? 1 : v[HEADS].count,
                         v[CHANNELS].count);
    return take_layout(g, v[LAYOUT].text, e);
}

static int check_sizes(const struct kvc_geometry *g, const struct kvc_bundle *b,
                       struct kvc_error *e) {
    for (size_t i = 0; i < b->n; i++) {
        const struct kvc_input *in = kvc_bundle_open(b, i, e);
        if (!in) return -1;
        if (in->size == g->bytes) continue;
        kvc_fail(e, KVC_ERR_USAGE,
                 "hicache: the geometry makes pages of %" PRIu64 " bytes, but the file has %" PRIu64
                 "%s",
                 g->bytes, in->size,
                 in->size == g->bytes / 2 && !g->latent
                     ? ", which is half of it: pages of latent attention have no V, and are read "
                       "with latent"
                     : "");
        return kvc_member_failed(b, i, e);
    }
    return 0;
}

static int add_pages(struct kvc_cache *c, const struct kvc_geometry *g, const struct kvc_bundle *b,
                     struct kvc_error *e) {
    const uint64_t page = g->count[KVC_AXIS_TOKEN];
    for (size_t i = 0; i < b->n; i++) {
        const struct kvc_input *in = kvc_member_begin(c, b, i, e);
        if (!in || kvc_geometry_map(c, g, 0, i * page, in, 0, e) ||
            kvc_geometry_extents(c, g, 0, i * page, in, 0, e))
            return -1;
    }
    return 0;
}

static int hicache_build(struct kvc_cache *c, const struct kvc_geometry *g,
                         const struct kvc_bundle *b, const struct kvc_import_options *o,
                         struct kvc_error *e) {
    uint64_t tokens;
    if (__builtin_mul_overflow(g->count[KVC_AXIS_TOKEN], b->n, &tokens) || tokens > KVC_MAX_CELLS)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "hicache: the pages hold more tokens than kvc handles (2^31)");
    if (kvc_import_cells(c, tokens, o->value[FIRST].count, e)) return -1;
    if (kvc_import_layers(c, 0, g->count[KVC_AXIS_LAYER], g->latent, e)) return -1;
    if (kvc_geometry_tensors(c, g, g->count[KVC_AXIS_DIM], 0, tokens, e)) return -1;
    if (add_pages(c, g, b, e)) return -1;
    if (kvc_import_meta_assumed(c, "hicache", b, o, g->latent, e)) return -1;
    if (kvc_meta_set_u64(&c->meta, KVC_KEY_PAGE_SIZE, g->count[KVC_AXIS_TOKEN], e)) return -1;
    return kvc_cache_finish(c, e);
}

static struct kvc_cache *hicache_import(const struct kvc_bundle *b,
                                        const struct kvc_import_options *o, struct kvc_error *e) {
    struct kvc_geometry g;
    if (take_geometry(&g, o, e) || check_kind(b, o, e) || check_order(b, e) ||
        check_sizes(&g, b, e))
        return NULL;
    struct kvc_cache *c = kvc_import_begin(e);
    return kvc_import_end(c, c ? hicache_build(c, &g, b, o, e) : -1);
}

/* --- writing --- */

static int hicache_keeps(enum kvc_dtype dtype) {
    return kvc_dtype_info(dtype)->block == 1;
}

static int agree(const struct kvc_option_value *v, int option, uint64_t have, struct kvc_error *e) {
    return !v[option].text || v[option].count == have
               ? 0
               : kvc_fail(e, KVC_ERR_USAGE, "hicache: %s=%s, but the cache has %" PRIu64,
                          options[option].key, v[option].text, have);
}

static int shape_pages(struct kvc_geometry *g, const struct kvc_uniform *u,
                       const struct kvc_option_value *v, struct kvc_error *e) {
    const struct kvc_cells *cells = &u->arrays.cache->part[u->part].cells;
    if (v[LATENT].count && !u->latent)
        return kvc_fail(e, KVC_ERR_USAGE, "hicache: latent, but the cache has K and V");
    if (!u->heads_known && !u->latent)
        return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_HEADS,
                             "hicache: the number of KV heads is unknown");
    if (!v[LAYOUT].text || !v[PAGE].count)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "hicache needs the layout and the tokens of a page: "
                        "layout=page_first_direct,page=TOKENS");
    if (v[DTYPE].text && strcmp(v[DTYPE].text, u->info->name) != 0)
        return kvc_fail(e, KVC_ERR_USAGE, "hicache: dtype=%s, but the values are %s", v[DTYPE].text,
                        u->info->name);
    if (agree(v, LAYERS, u->layers, e) || agree(v, HEADS, u->heads, e) ||
        agree(v, CHANNELS, u->dim, e) || agree(v, FIRST, (uint64_t)kvc_cells_position(cells, 0), e))
        return -1;
    if (u->tokens % v[PAGE].count)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "hicache: %" PRIu64 " tokens are no whole pages of %" PRIu64
                        ": select a multiple, as SGLang does",
                        u->tokens, v[PAGE].count);
    *g = kvc_geometry_of(u->info, u->latent, u->layers, v[PAGE].count, u->heads, u->dim);
    return take_layout(g, v[LAYOUT].text, e);
}

static int fill_page(struct kvc_uniform *u, const struct kvc_geometry *g, uint64_t first,
                     uint8_t *page, struct kvc_error *e) {
    const struct kvc_cache *c = u->arrays.cache;
    uint32_t number = 0;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (!kvc_uniform_has(u, &c->layer[i])) continue;
        for (unsigned cache = 0; cache < g->count[KVC_AXIS_CACHE]; cache++) {
            const struct kvc_place place = kvc_geometry_place(g, number, cache, first,
                                                              c->layer[i].tensor[cache]);
            if (kvc_uniform_place(u, &place, page, e)) return -1;
        }
        number++;
    }
    return 0;
}

/* Writes the pages, named by their first token, so that names sort as the tokens do. */
static int write_pages(struct kvc_uniform *u, const struct kvc_geometry *g,
                       const struct kvc_member_sink *to, struct kvc_error *e) {
    const uint64_t step = g->count[KVC_AXIS_TOKEN];
    uint8_t *page = kvc_alloc(g->bytes, 1);
    int status = page ? 0 : kvc_fail_memory(e, "a page");
    for (uint64_t first = 0; first < u->tokens && !status; first += step) {
        char name[32];
        snprintf(name, sizeof name, "%010" PRIu64 ".bin", first);
        status = fill_page(u, g, first, page, e);
        if (!status) status = to->begin(to->state, name, g->bytes, e);
        if (!status) status = kvc_sink_write(to->out, page, (size_t)g->bytes, e);
        if (!status) status = to->finish(to->state, e);
    }
    free(page);
    return status;
}

static int hicache_export(const struct kvc_cache *c, const struct kvc_export_options *o,
                          const struct kvc_member_sink *to, struct kvc_error *e) {
    struct kvc_uniform u;
    struct kvc_geometry g;
    if (kvc_uniform_open(&u, c, o, hicache_keeps, "hicache", e)) return -1;
    int status = shape_pages(&g, &u, o->value, e);
    if (!status) status = write_pages(&u, &g, to, e);
    kvc_uniform_close(&u);
    return status;
}

const struct kvc_format kvc_format_hicache = {
    .name = "hicache",
    .summary = "pages of SGLang's HiCache, geometry given by options",
    .suffix = ".hicache",
    .import_options = options,
    .export_options = options,
    /* The number of heads and dtypes count as geometry, which readers must be given. */
    .lacks = KVC_LACKS_TOKENS | KVC_LACKS_POSITIONS | KVC_LACKS_COORDINATES | KVC_LACKS_LAYERS |
             KVC_LACKS_COMPANIONS | KVC_LACKS_SNAPSHOTS | KVC_LACKS_METADATA | KVC_LACKS_PAIRING |
             KVC_LACKS_UNKNOWNS,
    .keeps = hicache_keeps,
    .takes_members = 1,
    .probe = hicache_probe,
    .import = hicache_import,
    .export_members = hicache_export,
};
