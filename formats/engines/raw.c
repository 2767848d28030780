/* raw.c: K and V as bare values whose geometry the caller gives. Not for guessing: nothing in such a file
 * says what it is.
 *
 * The order is a permutation of the letters "lcthd", slowest first: layer, cache (K, then V), token, head,
 * dim. Block dtypes need d last, and a head a whole number of blocks. Export writes "lcthd". */
#include "formats/engines/arrays_write.h"
#include "codecs/memory.h"
#include "formats/cache/format.h"
#include "formats/cache/keys.h"
#include "formats/cache/mapped.h"
#include "formats/cache/view.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LAYERS 65536

enum axis { LAYER, CACHE, TOKEN, HEAD, DIM, AXES };
static const char letters[] = "lcthd";

struct geometry {
    const struct kvc_dtype_info *info;
    uint64_t count[AXES];  /* of DIM: blocks in a head (values for plain types) */
    uint64_t stride[AXES]; /* bytes */
    int cache_outside;     /* all K stand before all V: c comes before l in the order */
    int tensors_are_runs;  /* l and c are the slowest: every tensor is one run of bytes */
    uint64_t bytes;        /* of everything */
};

/* Options, by position. */
enum { DTYPE, LAYERS, TOKENS, HEADS, CHANNELS, ORDER, OFFSET };

static const struct kvc_format_option import_options[] = {
    [DTYPE] = {.key = "dtype", .kind = KVC_OPTION_TEXT, .value = "f16"},
    [LAYERS] = {.key = "layers", .kind = KVC_OPTION_COUNT, .min = 1, .max = MAX_LAYERS, .value = "L"},
    [TOKENS] = {.key = "tokens", .kind = KVC_OPTION_COUNT, .min = 1, .max = KVC_MAX_CELLS, .value = "T"},
    [HEADS] = {.key = "heads", .kind = KVC_OPTION_COUNT, .min = 1, .max = UINT64_MAX, .value = "H"},
    [CHANNELS] = {.key = "dim", .kind = KVC_OPTION_COUNT, .min = 1, .max = UINT64_MAX, .value = "D"},
    [ORDER] = {.key = "order", .kind = KVC_OPTION_TEXT, .value = "lcthd"},
    [OFFSET] = {.key = "offset", .kind = KVC_OPTION_COUNT, .max = UINT64_MAX, .value = "N"},
    {NULL},
};

static int probe(const struct kvc_bundle *b, char *why, size_t size) {
    (void)b;
    snprintf(why, size, "raw is never guessed");
    return 0;
}

/* Sets the strides from the order, slowest axis first. */
static int take_order(struct geometry *g, const char *order, struct kvc_error *e) {
    unsigned seen = 0;
    g->bytes = g->info->size;
    if (strlen(order) != AXES)
        return kvc_fail(e, KVC_ERR_USAGE, "raw: order=%s must be the five letters lcthd, slowest first",
                        order);
    for (size_t i = AXES; i-- > 0;) {
        const char *letter = strchr(letters, order[i]);
        if (!letter || seen & 1u << (letter - letters))
            return kvc_fail(e, KVC_ERR_USAGE, "raw: order=%s must have each of the letters lcthd once",
                            order);
        seen |= 1u << (letter - letters);
        g->stride[letter - letters] = g->bytes;
        if (__builtin_mul_overflow(g->bytes, g->count[letter - letters], &g->bytes))
            return kvc_fail(e, KVC_ERR_USAGE, "raw: this geometry has more bytes than 64 bits count");
    }
    if (g->info->block > 1 && order[AXES - 1] != 'd')
        return kvc_fail(e, KVC_ERR_USAGE,
                        "raw: order=%s: %s keeps %" PRIu32 " channels in a block, so d must be last", order,
                        g->info->name, g->info->block);
    g->cache_outside = strchr(order, 'c') < strchr(order, 'l');
    g->tensors_are_runs = strspn(order, "lc") == 2;
    return 0;
}

static int take_geometry(struct geometry *g, const struct kvc_import_options *o, struct kvc_error *e) {
    memset(g, 0, sizeof *g);
    const struct kvc_option_value *v = o->value;
    const uint64_t dim = v[CHANNELS].count;
    if (!v[DTYPE].text || !v[LAYERS].count || !v[TOKENS].count || !v[HEADS].count || !dim)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "raw needs its geometry: dtype=f16,layers=L,tokens=T,heads=H,dim=D[,order=lcthd][,offset=N]");
    if (!(g->info = kvc_dtype_by_name(v[DTYPE].text)))
        return kvc_fail(e, KVC_ERR_USAGE, "raw: dtype=%s is not known", v[DTYPE].text);
    if (dim % g->info->block)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "raw: dim=%" PRIu64 " is no multiple of the %" PRIu32 " values in a %s block",
                        dim, g->info->block, g->info->name);
    memcpy(g->count,
           (uint64_t[AXES]){v[LAYERS].count, 2, v[TOKENS].count, v[HEADS].count, dim / g->info->block},
           sizeof g->count);
    return take_order(g, v[ORDER].text ? v[ORDER].text : letters, e);
}

/* The i-th tensor in file order: which layer, and K (0) or V (1). */
static void tensor_at(const struct geometry *g, uint64_t i, uint32_t *layer, unsigned *cache) {
    uint64_t layers = g->count[LAYER];
    *layer = (uint32_t)(g->cache_outside ? i % layers : i / 2);
    *cache = (unsigned)(g->cache_outside ? i / layers : i % 2);
}

/* Interleaved tensors: all bytes are one region, in which each lies by its strides. */
static int add_region(struct kvc_cache *c, const struct geometry *g, const struct kvc_input *in, uint64_t offset,
                      struct kvc_error *e) {
    struct kvc_place *place = kvc_alloc(c->n_tensors, sizeof *place);
    if (!place) return kvc_fail_memory(e, "places");
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        struct kvc_tensor *tensor = &c->tensor[t];
        uint32_t layer;
        unsigned cache;
        tensor_at(g, t, &layer, &cache);
        place[t] = (struct kvc_place){.tensor = t, .n = tensor->shape.tokens, .strides = tensor->source,
                                      .offset = layer * g->stride[LAYER] + cache * g->stride[CACHE]};
        tensor->source = kvc_strides_canonical(&tensor->shape); /* the region says where it lies */
        tensor->source_size = kvc_tensor_bytes(tensor);
    }
    const int status = kvc_cache_extent_region(c, in, offset, g->bytes, place, c->n_tensors, e);
    free(place);
    return status;
}

static int add_tensors(struct kvc_cache *c, const struct geometry *g, const struct kvc_shape *shape,
                       const struct kvc_input *in, uint64_t offset, struct kvc_error *e) {
    uint64_t span = g->info->size; /* from the first byte of a tensor to after its last */
    for (unsigned axis = TOKEN; axis <= DIM; axis++) span += g->stride[axis] * (g->count[axis] - 1);
    for (uint64_t i = 0; i < 2 * g->count[LAYER]; i++) {
        uint32_t layer;
        unsigned cache;
        tensor_at(g, i, &layer, &cache);
        uint32_t t = kvc_cache_add_tensor(c, layer, cache ? KVC_ROLE_V : KVC_ROLE_K, shape, e);
        if (t == KVC_NONE) return -1;
        c->tensor[t].source = (struct kvc_strides){g->stride[TOKEN], g->stride[HEAD], g->stride[DIM]};
        c->tensor[t].source_size = span;
        if (kvc_cache_map_tensor(c, t, in, offset + layer * g->stride[LAYER] + cache * g->stride[CACHE], e)) return -1;
        if (g->tensors_are_runs && kvc_cache_extent_tensor(c, t, e)) return -1;
    }
    return g->tensors_are_runs ? 0 : add_region(c, g, in, offset, e);
}

static int build(struct kvc_cache *c, const struct geometry *g, const struct kvc_input *in,
                 const struct kvc_import_options *o, struct kvc_error *e) {
    const uint64_t tokens = o->value[TOKENS].count, offset = o->value[OFFSET].count;
    const struct kvc_shape shape = {g->info->dtype, tokens, o->value[HEADS].count, o->value[CHANNELS].count};
    if (kvc_cache_map(c, NULL, NULL, e)) return -1;
    uint32_t part = kvc_cache_add_part(c, KVC_PART_LIVE, tokens, e);
    if (part == KVC_NONE) return -1;
    for (uint32_t i = 0; i < g->count[LAYER]; i++)
        if (kvc_cache_add_layer(c, part, i, KVC_LAYER_FULL, e) == KVC_NONE) return -1;
    if (kvc_cache_extent_literal(c, in, 0, offset, e) || add_tensors(c, g, &shape, in, offset, e) ||
        kvc_meta_set_text(&c->meta, KVC_KEY_SOURCE_FORMAT, "raw", e) ||
        kvc_meta_set_u64(&c->meta, KVC_KEY_SOURCE_BYTES, in->size, e) ||
        kvc_meta_set_bool(&c->meta, KVC_KEY_HEADS_KNOWN, 1, e) ||
        kvc_meta_set_bool(&c->meta, KVC_KEY_LAYERS_KNOWN, 1, e))
        return -1;
    if (g->info->block == 1 && /* engines rotate only what they quantise in blocks */
        (kvc_meta_set_u64(&c->meta, KVC_KEY_HADAMARD_K, 0, e) ||
         kvc_meta_set_u64(&c->meta, KVC_KEY_HADAMARD_V, 0, e)))
        return -1;
    if (o->pairing && kvc_meta_set_text(&c->meta, KVC_KEY_ROPE_PAIRING, kvc_pairing_name(o->pairing), e))
        return -1;
    return kvc_cache_finish(c, e);
}

static struct kvc_cache *import(const struct kvc_bundle *b, const struct kvc_import_options *o,
                                struct kvc_error *e) {
    const struct kvc_input *in = b->one.in;
    struct geometry g;
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
    struct kvc_cache *c = kvc_cache_new(e);
    if (c && build(c, &g, in, o, e)) {
        kvc_cache_free(c);
        c = NULL;
    }
    return c;
}

/* The rows of one tensor in order of position. */
static int write_tensor(const struct kvc_cache *c, uint32_t t, struct kvc_sink *out, struct kvc_error *e) {
    const struct kvc_cells *cells = &kvc_tensor_part(c, t)->cells;
    uint64_t row = kvc_row_bytes(&c->tensor[t].shape), most = cells->n < KVC_BLOCK ? cells->n : KVC_BLOCK;
    uint8_t *rows = kvc_alloc(most, row);
    int status = rows ? 0 : kvc_fail_memory(e, "rows");
    for (uint64_t b = 0; b < cells->n_blocks && !status; b++) {
        uint64_t first = cells->block[b], n = cells->block[b + 1] - first;
        status = c->read(c, t, first, n, rows, e);
        if (!status) status = kvc_sink_write(out, rows, (size_t)(n * row), e);
    }
    free(rows);
    return status;
}

static int write_live(const struct kvc_cache *c, struct kvc_sink *out, struct kvc_error *e) {
    int written = 0;
    uint32_t stream;
    for (uint32_t i = 0; i < c->n_parts; i++)
        if (c->part[i].kind == KVC_PART_SLIDING || c->part[i].kind == KVC_PART_RECURRENT)
            return kvc_fail(
                e, KVC_ERR_UNSUPPORTED,
                "the cache has %s layers of another length, and raw holds one geometry; use safetensors",
                kvc_part_kind_name(c->part[i].kind));
    if (kvc_arrays_stream(c, &stream, e)) return -1;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct kvc_part *part = &c->part[c->layer[i].part];
        for (unsigned k = 0; k < 2; k++) {
            uint32_t t = c->layer[i].tensor[k];
            if (t == KVC_NONE || part->kind != KVC_PART_LIVE || part->stream != stream) continue;
            if (write_tensor(c, t, out, e)) return -1;
            written = 1;
        }
    }
    return written ? 0 : kvc_fail(e, KVC_ERR_UNSUPPORTED, "the cache has no K or V to export");
}

/* The live cache, layer by layer, K then V, canonical rows: order lcthd, dtypes as they are. */
static int export(const struct kvc_cache *c, const struct kvc_export_options *o, struct kvc_sink *out,
                  struct kvc_error *e) {
    struct kvc_cache *view;
    if (kvc_arrays_pairing(c, o ? o->pairing : KVC_PAIRING_UNKNOWN, &view, e)) return -1;
    int status = write_live(view ? view : c, out, e);
    kvc_cache_free(view);
    return status;
}

const struct kvc_format kvc_format_raw = {
    .name = "raw",
    .summary = "bare values, geometry given by options",
    .suffix = ".raw",
    .import_options = import_options,
    .tool = "raw",
    .probe = probe,
    .import = import,
    .export = export,
};
