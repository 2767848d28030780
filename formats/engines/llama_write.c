/* llama_write.c: writes a slot file of llama.cpp (GGSQ, one sequence) from a cache. Layout:
 * llama.c. */
#include "formats/engines/llama.h"

#include "codecs/memory.h"
#include "formats/cache/facts.h"
#include "formats/cache/rope_names.h"
#include "formats/cache/view.h"
#include "formats/engines/arrays_write.h"
#include "formats/io/bytes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct out {
    const struct kvc_cache *cache;
    struct kvc_sink *sink;
    /* `stream` gets the cells, the others are empty; of no streams the body counts none */
    uint32_t version, streams, stream;
    uint64_t tile[2]; /* of K and V */
    int transposed;   /* 1: V is written as channels of cells */
    struct kvc_error *e;
};

static int emit_u32(struct out *o, uint32_t v) {
    uint8_t bytes[4];
    put_u32(bytes, v);
    return kvc_sink_write(o->sink, bytes, sizeof bytes, o->e);
}

/* Moves rows of cells to rows of channels: `size` bytes an element. */
static void transpose(uint8_t *dst, const uint8_t *src, uint64_t cells, uint64_t channels,
                      size_t size) {
    for (uint64_t i = 0; i < cells; i++)
        for (uint64_t k = 0; k < channels; k++)
            memcpy(dst + (k * cells + i) * size, src + (i * channels + k) * size, size);
}

/* Writes V as channels of cells, for which all rows are in memory twice. */
static int emit_transposed(struct out *o, uint32_t t) {
    const struct kvc_tensor *tensor = &o->cache->tensor[t];
    const uint64_t cells = tensor->shape.tokens, row = kvc_row_bytes(&tensor->shape);
    const struct kvc_dtype_info *info = kvc_dtype_info(tensor->shape.dtype);
    uint8_t head[12], *rows = kvc_alloc(row, cells), *turned = kvc_alloc(row, cells);
    int status = rows && turned ? 0 : kvc_fail_memory(o->e, "rows");
    put_u32(head, (uint32_t)info->ggml);
    put_u32(head + 4, info->size);
    put_u32(head + 8, (uint32_t)(row / info->size));
    if (!status) status = o->cache->read(o->cache, t, 0, cells, rows, o->e);
    if (!status) {
        transpose(turned, rows, cells, row / info->size, info->size);
        status = kvc_sink_write(o->sink, head, sizeof head, o->e);
    }
    if (!status) status = kvc_sink_write(o->sink, turned, (size_t)(row * cells), o->e);
    free(turned);
    free(rows);
    return status;
}

static int emit_tensor(struct out *o, uint32_t t) {
    const struct kvc_shape *shape = &o->cache->tensor[t].shape;
    uint8_t head[12];
    put_u32(head, (uint32_t)kvc_dtype_info(shape->dtype)->ggml);
    put_u64(head + 4, kvc_row_bytes(shape));
    if (kvc_sink_write(o->sink, head, sizeof head, o->e)) return -1;
    return kvc_write_rows(o->cache, &t, 1, 0, o->sink, o->e);
}

static int emit_stream(struct out *o, uint32_t part) {
    const struct kvc_cache *c = o->cache;
    const struct kvc_cells *cells = &c->part[part].cells;
    uint32_t layers = 0, first = KVC_NONE;
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (c->layer[i].part == part) {
            if (first == KVC_NONE) first = i;
            layers++;
        }
    for (uint64_t i = 0; i < cells->n;
         /* builds that count no streams name no sequences of a slot, and refuse such names */
         i++) {
        const int named = o->streams != 0;
        if (emit_u32(o, (uint32_t)kvc_cells_position(cells, i)) || emit_u32(o, (uint32_t)named) ||
            (named && emit_u32(o, 0)))
            return -1;
    }
    if (!cells->n) return 0;
    if (emit_u32(o, (uint32_t)o->transposed) || emit_u32(o, layers)) return -1;
    if (o->version >= 4 && (emit_u32(o, (uint32_t)o->tile[0]) || emit_u32(o, (uint32_t)o->tile[1])))
        return -1;
    for (unsigned kv = 0; kv < 2; kv++)
        for (uint32_t i = first; i < first + layers; i++) {
            const uint32_t t = c->layer[i].tensor[kv];
            const int turns = t != KVC_NONE && o->transposed && c->tensor[t].role == KVC_ROLE_V;
            if (t != KVC_NONE && (turns ? emit_transposed(o, t) : emit_tensor(o, t))) return -1;
        }
    return 0;
}

static int emit_body(struct out *o, uint32_t part) {
    if (!o->streams) {
        if (emit_u32(o, (uint32_t)o->cache->part[part].cells.n)) return -1;
        return emit_stream(o, part);
    }
    if (emit_u32(o, o->streams)) return -1;
    for (uint32_t s = 0; s < o->streams; s++) {
        const int has_cells = s == o->stream;
        if (emit_u32(o, has_cells ? (uint32_t)o->cache->part[part].cells.n : 0)) return -1;
        if (has_cells && emit_stream(o, part)) return -1;
    }
    return 0;
}

static int emit_tokens(struct out *o, int server) {
    const struct kvc_cache *c = o->cache;
    if (c->n_tokens > INT32_MAX - 4)
        return kvc_fail(o->e, KVC_ERR_UNSUPPORTED, "llama: too many tokens");
    uint32_t n = (uint32_t)c->n_tokens;
    if (emit_u32(o, server ? n + 4 : n)) return -1;
    if (server && (emit_u32(o, (uint32_t)KVC_LLAMA_TOKEN_NULL) ||
                   emit_u32(o, KVC_LLAMA_SERVER_TOKENS) || emit_u32(o, n)))
        return -1;
    for (uint32_t i = 0; i < n; i++)
        if (emit_u32(o, (uint32_t)c->tokens[i])) return -1;
    return server ? emit_u32(o, 0) : 0; /* no media */
}

static int check_positions(const struct kvc_cells *cells, struct kvc_error *e) {
    for (uint64_t j = 0; j < cells->n; j++) {
        const int64_t pos = kvc_cells_position(cells, j);
        if (pos < 0 || pos > INT32_MAX)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "llama: position %" PRId64 " does not fit",
                            pos);
        if (j && pos == kvc_cells_position(cells, j - 1))
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "llama: position %" PRId64
                            " occurs twice: a slot file holds one sequence, this cache several",
                            pos);
    }
    return 0;
}

/* Finds the parts that a GGSQ file can hold; *live and *sliding are part numbers. Streams without
 * cells do not count. */
static int find_parts(const struct kvc_cache *c, const struct kvc_facts *facts, uint32_t *live,
                      uint32_t *sliding, struct kvc_error *e) {
    *live = *sliding = KVC_NONE;
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const struct kvc_part *part = &c->part[i];
        uint32_t *place = part->kind == KVC_PART_LIVE     ? live
                          : part->kind == KVC_PART_WINDOW ? sliding
                                                          : NULL;
        if (part->kind == KVC_PART_STATE)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "llama: recurrent states can only be restored into their own file");
        if (!place) continue;
        if (facts->coordinates)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "llama: M-RoPE cells can only be restored into their own file");
        if (*place != KVC_NONE && c->part[*place].cells.n && part->cells.n)
            return kvc_fail(
                e, KVC_ERR_UNSUPPORTED,
                "llama: a slot file holds one sequence, this cache has several streams");
        if (check_positions(&part->cells, e)) return -1;
        if (*place == KVC_NONE || part->cells.n) *place = i;
    }
    const struct kvc_cells *cells = *live == KVC_NONE ? NULL : &c->part[*live].cells;
    if (facts->tokens_first || (cells && cells->n && kvc_cells_position(cells, 0)))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "llama: a slot must begin with token 0");
    if (*live == KVC_NONE)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "llama: there is no attention cache to write");
    return 0;
}

/* Finds the Hadamard tiles to record: those that are known, else those that the options say. */
static int find_tiles(struct out *o, const struct kvc_facts *facts,
                      const struct kvc_export_options *options, int known[2]) {
    for (int kv = 0; kv < 2; kv++) {
        const char *text = options->value[kv ? KVC_LLAMA_TILE_V : KVC_LLAMA_TILE_K].text;
        char *end = NULL;
        const unsigned long told = text && strcmp(text, "none") ? strtoul(text, &end, 10) : 0;
        known[kv] = facts->tile_known[kv] || text;
        o->tile[kv] = facts->tile_known[kv] ? facts->tile[kv] : told;
        if (!text) continue;
        if (end && (*end || told < 2 || told > 65536 || told & (told - 1)))
            return kvc_fail(
                o->e, KVC_ERR_USAGE,
                "llama: hadamard-%s=%s is neither none nor a power of two from 2 to 65536",
                kv ? "v" : "k", text);
        if (facts->tile_known[kv] && facts->tile[kv] != told)
            return kvc_fail(o->e, KVC_ERR_USAGE,
                            "llama: hadamard-%s=%s contradicts the cache, which says %" PRIu64,
                            kv ? "v" : "k", text, facts->tile[kv]);
    }
    return 0;
}

/* Refuses layers with K or V alone, which no slot has. */
static int check_layers(const struct out *o) {
    const struct kvc_cache *c = o->cache;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct kvc_layer *layer = &c->layer[i];
        const uint32_t k = layer->tensor[0], v = layer->tensor[1];
        if (!kvc_part_is_attended(&c->part[layer->part])) continue;
        if (k == KVC_NONE || (v == KVC_NONE && c->tensor[k].role != KVC_ROLE_LATENT))
            return kvc_fail(o->e, KVC_ERR_UNSUPPORTED, "llama: layer %" PRIu32 " lacks %s",
                            layer->index, k == KVC_NONE ? "K" : "V");
    }
    return 0;
}

static int check_tensors(const struct out *o, const int known[2]) {
    const struct kvc_cache *c = o->cache;
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const struct kvc_dtype_info *info = kvc_dtype_info(c->tensor[t].shape.dtype);
        const int kv = c->tensor[t].role == KVC_ROLE_V;
        char label[64];
        if (!kvc_part_is_attended(kvc_tensor_part(c, t))) continue;
        kvc_tensor_label(c, t, label, sizeof label);
        if (info->ggml < 0)
            return kvc_fail(o->e, KVC_ERR_UNSUPPORTED,
                            "llama: %s is %s, which no llama.cpp cache has", label, info->name);
        if (info->block > 1 && kv && o->transposed)
            return kvc_fail(o->e, KVC_ERR_UNSUPPORTED,
                            "llama: %s is %s, whose blocks llama.cpp does not transpose: leave out "
                            "transposed-v, or write a cache that was packed with --dequantize",
                            label, info->name);
        if (info->block > 1 && o->version >= 4 && !known[kv])
            return kvc_fail(
                o->e, KVC_ERR_UNSUPPORTED,
                "llama: %s is quantised and whether it is Hadamard-rotated is unknown; version 4 "
                "must record it (version 3 does not): say hadamard-%s=TILE or hadamard-%s=none",
                label, kv ? "v" : "k", kv ? "v" : "k");
        if (o->version < 4 && o->tile[kv])
            return kvc_fail(
                o->e, KVC_ERR_UNSUPPORTED,
                "llama: %s is Hadamard-rotated, which version %u does not record: write version 4",
                label, o->version);
    }
    return 0;
}

static int find_pairing(const struct kvc_facts *facts, enum kvc_pairing *want,
                        struct kvc_error *e) {
    const int from_llama = facts->of_llama;
    if (*want == KVC_PAIRING_UNKNOWN) *want = kvc_pairing_of_gguf_arch(facts->architecture);
    if (*want == KVC_PAIRING_UNKNOWN && from_llama) *want = facts->rope.pairing;
    if (*want != KVC_PAIRING_UNKNOWN || from_llama) return 0;
    return kvc_fail_need(e, KVC_ERR_USAGE, KVC_NEED_TARGET_PAIRING,
                         "llama: the RoPE pairing that llama.cpp uses for this model is unknown");
}

static int find_streams(struct out *o, const struct kvc_option_value *value) {
    const char *text = value[KVC_LLAMA_STREAMS].text;
    char *end = NULL;
    const int none = text && strcmp(text, "none") == 0;
    const unsigned long n = !text ? 1 : none ? 0 : strtoul(text, &end, 10);
    if (text && !none && (*text < '0' || *text > '9' || *end || n < 1 || n > 256))
        return kvc_fail(o->e, KVC_ERR_USAGE,
                        "llama: streams=%s is neither none nor a number from 1 to 256", text);
    if (none && o->version != 2)
        return kvc_fail(o->e, KVC_ERR_USAGE,
                        "llama: streams=none: only version 2 has files that do not count streams: "
                        "add version=2");
    o->streams = (uint32_t)n;
    o->stream = (uint32_t)value[KVC_LLAMA_STREAM].count;
    if (o->stream >= (none ? 1 : o->streams))
        return kvc_fail(o->e, KVC_ERR_USAGE,
                        "llama: stream=%" PRIu32 " is none of %" PRIu32
                        " streams, which count from 0",
                        o->stream, none ? 1 : o->streams);
    return 0;
}

int kvc_llama_write(const struct kvc_cache *cache, const struct kvc_export_options *options,
                    struct kvc_sink *sink, struct kvc_error *e) {
    const struct kvc_option_value *value = options->value;
    struct out o = {.cache = cache,
                    .sink = sink,
                    .version = value[KVC_LLAMA_VERSION].count
                                   ? (uint32_t)value[KVC_LLAMA_VERSION].count
                                   : KVC_LLAMA_NEWEST,
                    .transposed = value[KVC_LLAMA_TRANSPOSED].count != 0,
                    .e = e};
    uint32_t live, sliding;
    int known[2];
    const struct kvc_facts *facts = &cache->meta.facts;
    enum kvc_pairing want = options->pairing;
    if (find_streams(&o, value) || find_parts(cache, facts, &live, &sliding, e) ||
        find_tiles(&o, facts, options, known) || check_layers(&o) || check_tensors(&o, known) ||
        find_pairing(facts, &want, e))
        return -1;
    struct kvc_cache *view = NULL;
    if (want != facts->rope.pairing) {
        view = kvc_view_pairing(cache, want, e);
        if (!view) return -1;
        o.cache = view;
    }
    const int status = emit_u32(&o, KVC_LLAMA_SEQUENCE) || emit_u32(&o, o.version) ||
                       emit_tokens(&o, !facts->plain_tokens) || emit_body(&o, live) ||
                       (sliding != KVC_NONE && emit_body(&o, sliding));
    kvc_cache_free(view);
    return status ? -1 : 0;
}
