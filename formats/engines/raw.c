/* raw.c: K and V as bare values whose geometry the caller gives. Not for guessing: nothing in such
 * a file says what it is.
 *
 * The order is a permutation of the letters "lcthd", slowest first: layer, cache (K, then V),
 * token, head, dim. Block dtypes need d last, and a head that is a whole number of blocks. Export
 * writes "lcthd". */
#include "formats/engines/arrays_write.h"
#include "formats/cache/format.h"
#include "formats/cache/keys.h"
#include "formats/cache/mapped.h"
#include "formats/cache/view.h"
#include "formats/engines/geometry.h"
#include "formats/engines/import.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LAYERS 65536

/* Options, by position. */
enum { DTYPE, LAYERS, TOKENS, HEADS, CHANNELS, ORDER, OFFSET };

static const struct kvc_format_option import_options[] = {
    [DTYPE] = KVC_TEXT_OPTION("dtype", "f16"),
    [LAYERS] = KVC_COUNT_OPTION("layers", 1, MAX_LAYERS, "L"),
    [TOKENS] = KVC_COUNT_OPTION("tokens", 1, KVC_MAX_CELLS, "T"),
    [HEADS] = KVC_COUNT_OPTION("heads", 1, UINT64_MAX, "H"),
    [CHANNELS] = KVC_COUNT_OPTION("dim", 1, UINT64_MAX, "D"),
    [ORDER] = KVC_TEXT_OPTION("order", "lcthd"),
    [OFFSET] = KVC_COUNT_OPTION("offset", 0, UINT64_MAX, "N"),
    {.key = NULL},
};

static int raw_probe(const struct kvc_bundle *b, char *why, size_t size) {
    (void)b;
    snprintf(why, size, "raw is never guessed");
    return 0;
}

static int take_order(struct kvc_geometry *g, const char *order, struct kvc_error *e) {
    switch (kvc_geometry_order(g, order)) {
    case KVC_ORDER_LENGTH:
        return kvc_fail(e, KVC_ERR_USAGE,
                        "raw: order=%s must be the five letters lcthd, slowest first", order);
    case KVC_ORDER_LETTERS:
        return kvc_fail(e, KVC_ERR_USAGE, "raw: order=%s must have each of the letters lcthd once",
                        order);
    case KVC_ORDER_OVERFLOW:
        return kvc_fail(e, KVC_ERR_USAGE, "raw: this geometry has more bytes than 64 bits count");
    case KVC_ORDER_BLOCKS:
        return kvc_fail(e, KVC_ERR_USAGE,
                        "raw: order=%s: %s keeps %" PRIu32
                        " channels in a block, so d must be last",
                        order, g->info->name, g->info->block);
    case KVC_ORDER_GOOD: break;
    }
    return 0;
}

static int take_geometry(struct kvc_geometry *g, const struct kvc_import_options *o,
                         struct kvc_error *e) {
    const struct kvc_option_value *v = o->value;
    const struct kvc_dtype_info *info = v[DTYPE].text ? kvc_dtype_by_name(v[DTYPE].text) : NULL;
    const uint64_t dim = v[CHANNELS].count;
    if (!v[DTYPE].text || !v[LAYERS].count || !v[TOKENS].count || !v[HEADS].count || !dim)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "raw needs its geometry: "
                        "dtype=f16,layers=L,tokens=T,heads=H,dim=D[,order=lcthd][,offset=N]");
    if (!info) return kvc_fail(e, KVC_ERR_USAGE, "raw: dtype=%s is not known", v[DTYPE].text);
    if (dim % info->block)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "raw: dim=%" PRIu64 " is no multiple of the %" PRIu32
                        " values in a %s block",
                        dim, info->block, info->name);
    *g = kvc_geometry_of(info, 0, v[LAYERS].count, v[TOKENS].count, v[HEADS].count,
                         dim / info->block);
    return take_order(g, v[ORDER].text ? v[ORDER].text : KVC_AXIS_LETTERS, e);
}

static int raw_build(struct kvc_cache *c, const struct kvc_geometry *g, const struct kvc_input *in,
                     const struct kvc_import_options *o, struct kvc_error *e) {
    const uint64_t offset = o->value[OFFSET].count;
    if (kvc_import_cells(c, g->count[KVC_AXIS_TOKEN], 0, e) ||
        kvc_import_layers(c, 0, g->count[KVC_AXIS_LAYER], 0, e) ||
        kvc_cache_extent_literal(c, in, 0, offset, e) ||
        kvc_geometry_add(c, g, o->value[CHANNELS].count, in, offset, e) ||
        kvc_meta_set_text(&c->meta, KVC_KEY_SOURCE_FORMAT, "raw", e) ||
        kvc_meta_set_u64(&c->meta, KVC_KEY_SOURCE_BYTES, in->size, e) ||
        kvc_meta_set_bool(&c->meta, KVC_KEY_HEADS_KNOWN, 1, e) ||
        kvc_meta_set_bool(&c->meta, KVC_KEY_LAYERS_KNOWN, 1, e))
        return -1;
    if (g->info->block == 1 && /* engines rotate only values that they quantise in blocks */
        (kvc_meta_set_u64(&c->meta, KVC_KEY_HADAMARD_K, 0, e) ||
         kvc_meta_set_u64(&c->meta, KVC_KEY_HADAMARD_V, 0, e)))
        return -1;
    if (o->pairing && kvc_meta_set_pairing(&c->meta, o->pairing, e)) return -1;
    return kvc_cache_finish(c, e);
}

static struct kvc_cache *raw_import(const struct kvc_bundle *b, const struct kvc_import_options *o,
                                    struct kvc_error *e) {
    const struct kvc_input *in = b->one.in;
    struct kvc_geometry g;
    const uint64_t offset = o->value[OFFSET].count;
    uint64_t need;
    if (take_geometry(&g, o, e)) return NULL;
    if (__builtin_add_overflow(g.bytes, offset, &need) || need != in->size) {
        kvc_fail(e, KVC_ERR_USAGE,
                 "raw: the geometry makes %" PRIu64 " bytes after offset %" PRIu64
                 ", but the file has %" PRIu64,
                 g.bytes, offset, in->size);
        return NULL;
    }
    struct kvc_cache *c = kvc_import_begin(e);
    return kvc_import_end(c, c ? raw_build(c, &g, in, o, e) : -1);
}

static int write_live(const struct kvc_cache *c, struct kvc_sink *out, struct kvc_error *e) {
    int written = 0;
    uint32_t stream;
    for (uint32_t i = 0; i < c->n_parts; i++)
        if (c->part[i].kind == KVC_PART_WINDOW || c->part[i].kind == KVC_PART_STATE)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "the cache has %s layers of another length, and raw holds one "
                            "geometry; use safetensors",
                            kvc_part_kind_name(c->part[i].kind));
    if (kvc_arrays_stream(c, &stream, e)) return -1;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct kvc_layer *layer = &c->layer[i];
        const struct kvc_part *part = &c->part[layer->part];
        if (part->kind != KVC_PART_LIVE || part->stream != stream) continue;
        if (layer->tensor[0] == KVC_NONE || layer->tensor[1] == KVC_NONE)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "layer %" PRIu32 " lacks K or V, and raw has both of every layer; use "
                            "safetensors",
                            layer->index);
        for (unsigned k = 0; k < 2; k++) {
            uint32_t t = layer->tensor[k];
            if (kvc_write_rows(c, &t, 1, 0, out, e)) return -1;
            written = 1;
        }
    }
    return written ? 0 : kvc_fail(e, KVC_ERR_UNSUPPORTED, "the cache has no K or V to export");
}

/* Exports the live cache layer by layer, K, then V, in canonical rows: order lcthd, dtypes as they
 * are. */
static int raw_export(const struct kvc_cache *c, const struct kvc_export_options *o,
                      struct kvc_sink *out, struct kvc_error *e) {
    struct kvc_cache *view;
    if (kvc_arrays_pairing(c, o->pairing, &view, e)) return -1;
    int status = write_live(view ? view : c, out, e);
    kvc_cache_free(view);
    return status;
}

static int raw_is_default(const struct kvc_cache *c) {
    return kvc_geometry_is_plain(c, 0, 0);
}

const struct kvc_format kvc_format_raw = {
    .name = "raw",
    .summary = "bare values, geometry given by options",
    .suffix = ".raw",
    .import_options = import_options,
    .tool = "raw",
    /* The pairing counts as geometry, which readers must be given. */
    .lacks = KVC_LACKS_TOKENS | KVC_LACKS_POSITIONS | KVC_LACKS_COORDINATES | KVC_LACKS_LAYERS |
             KVC_LACKS_COMPANIONS | KVC_LACKS_SNAPSHOTS | KVC_LACKS_METADATA | KVC_LACKS_ROTATION |
             KVC_LACKS_SHAPES | KVC_LACKS_UNKNOWNS,
    .is_default = raw_is_default,
    .probe = raw_probe,
    .import = raw_import,
    .export = raw_export,
};
