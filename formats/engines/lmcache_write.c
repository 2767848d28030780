/* lmcache_write.c: writes K and V as the array of an LMCache chunk. Not for the bytes around it. */
#include "formats/engines/import.h"
#include "formats/engines/lmcache_chunk.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Options of writing, by position. */
enum { LAYOUT };

const struct kvc_format_option kvc_lmcache_export_options[] = {
    [LAYOUT] = KVC_TEXT_OPTION("fmt", KVC_LMCACHE_NAMES),
    {.key = NULL},
};

static int lmcache_write_take_shape(struct kvc_lmcache_export *x, const char *format,
                                    struct kvc_error *e) {
    const struct kvc_uniform *u = &x->cache;
    struct kvc_lmcache_chunk *k = &x->chunk;
    *k = (struct kvc_lmcache_chunk){.layout = u->latent ? KVC_LMCACHE_MLA : KVC_LMCACHE_2LTD,
                                    .info = u->info,
                                    .layers = u->layers,
                                    .tokens = u->tokens,
                                    .heads = u->heads,
                                    .dim = u->dim,
                                    .heads_known = u->heads_known,
                                    .bytes = (u->latent ? 1 : 2) * u->info->size};
    if (__builtin_mul_overflow(k->bytes, k->layers * k->tokens, &k->bytes) ||
        __builtin_mul_overflow(k->bytes, k->heads * k->dim, &k->bytes))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s: the cache is too large", format);
    return 0;
}

static int take_layout(struct kvc_lmcache_chunk *k, const char *wanted, const char *format,
                       struct kvc_error *e) {
    enum kvc_lmcache_layout layout;
    if (!wanted) return 0;
    if (kvc_lmcache_find_layout(wanted, &layout, format, e)) return -1;
    if ((layout == KVC_LMCACHE_MLA) != (k->layout == KVC_LMCACHE_MLA))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%s: fmt=mla is for latents, and latents have no other layout", format);
    if (!strchr(kvc_lmcache_layouts[layout].sizes, 'l') && k->layers > 1)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%s: fmt=%s holds one layer, and %" PRIu64 " are to be written", format,
                        wanted, k->layers);
    if (layout == KVC_LMCACHE_FUSED && !k->heads_known)
        return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_HEADS,
                             "%s: fmt=fused needs the number of KV heads", format);
    k->layout = layout;
    return 0;
}

int kvc_lmcache_export_open(struct kvc_lmcache_export *x, const struct kvc_cache *c,
                            const struct kvc_export_options *o, int (*keeps)(enum kvc_dtype),
                            const char *format, struct kvc_error *e) {
    if (kvc_uniform_open(&x->cache, c, o, keeps, format, e)) return -1;
    if (!lmcache_write_take_shape(x, format, e) &&
        !take_layout(&x->chunk, o->value[LAYOUT].text, format, e))
        return 0;
    kvc_lmcache_export_close(x);
    return -1;
}

void kvc_lmcache_export_close(struct kvc_lmcache_export *x) {
    kvc_uniform_close(&x->cache);
}

unsigned kvc_lmcache_shape(const struct kvc_lmcache_chunk *k, uint64_t dim[4]) {
    const int fused = k->layout == KVC_LMCACHE_FUSED, latent = k->layout == KVC_LMCACHE_MLA;
    unsigned rank = 0;
    memset(dim, 0, 4 * sizeof *dim);
    for (const char *size = kvc_lmcache_layouts[k->layout].sizes; *size; size++)
        dim[rank++] = *size == 'x'   ? (uint64_t)(fused || latent ? 1 : 2)
                      : *size == 'l' ? k->layers
                      : *size == 't' ? k->tokens
                                     : k->heads * k->dim * (fused ? 2 : 1);
    return rank;
}

int kvc_lmcache_export_data(const struct kvc_lmcache_export *x, struct kvc_sink *out,
                            struct kvc_error *e) {
    const struct kvc_cache *c = x->cache.arrays.cache;
    const struct kvc_lmcache_chunk *k = &x->chunk;
    const int turns = k->layout == KVC_LMCACHE_T2D || k->layout == KVC_LMCACHE_FUSED;
    const uint64_t unit = k->info->size * k->dim * (k->layout == KVC_LMCACHE_T2D ? k->heads : 1);
    for (unsigned pass = 0; pass < (turns || k->layout == KVC_LMCACHE_MLA ? 1 : 2); pass++)
        for (uint32_t i = 0; i < c->n_layers; i++)
            if (kvc_uniform_has(&x->cache, &c->layer[i]) &&
                kvc_write_rows(c, &c->layer[i].tensor[pass], turns ? 2 : 1, unit, out, e))
                return -1;
    return 0;
}

int kvc_lmcache_is_default(const struct kvc_cache *c, uint64_t header) {
    /* The array of one layer has the same bytes in two layouts, of which the header tells. */
    return c->n_layers > 1 && kvc_geometry_is_plain(c, header, 1);
}
