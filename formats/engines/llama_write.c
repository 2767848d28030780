/* llama_write.c: writes a slot file of llama.cpp (GGSQ, one sequence) from a cache. Layout: llama_read.c. */
#include "formats/engines/llama.h"

#include "codecs/memory.h"
#include "formats/cache/facts.h"
#include "formats/cache/rope_pairing.h"
#include "formats/cache/view.h"
#include "formats/io/bytes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct out {
    const struct kvc_cache *cache;
    struct kvc_sink *sink;
    struct kvc_error *e;
};

static int emit_u32(struct out *o, uint32_t v) {
    uint8_t bytes[4];
    put_u32(bytes, v);
    return kvc_sink_write(o->sink, bytes, sizeof bytes, o->e);
}

static int emit_tensor(struct out *o, uint32_t t) {
    const struct kvc_tensor *tensor = &o->cache->tensor[t];
    const struct kvc_cells *cells = &kvc_tensor_part(o->cache, t)->cells;
    uint64_t row = kvc_row_bytes(&tensor->shape);
    uint8_t head[12], *rows = kvc_alloc(row, kvc_cells_run_rows(cells));
    int status = rows ? 0 : kvc_fail_memory(o->e, "rows");
    put_u32(head, (uint32_t)kvc_dtype_info(tensor->shape.dtype)->ggml);
    put_u64(head + 4, row);
    if (!status) status = kvc_sink_write(o->sink, head, sizeof head, o->e);
    for (uint64_t b = 0, after; b < cells->n_blocks && !status; b = after) {
        after = kvc_cells_run_end(cells, b);
        uint64_t first = cells->block[b], n = cells->block[after] - first;
        status = o->cache->read(o->cache, t, first, n, rows, o->e) || kvc_sink_write(o->sink, rows, (size_t)(n * row), o->e);
    }
    free(rows);
    return status ? -1 : 0;
}

static int emit_body(struct out *o, uint32_t part, int tiles) {
    const struct kvc_cache *c = o->cache;
    const struct kvc_cells *cells = &c->part[part].cells;
    uint32_t layers = 0, first = KVC_NONE;
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (c->layer[i].part == part) {
            if (first == KVC_NONE) first = i;
            layers++;
        }
    if (emit_u32(o, 1) || emit_u32(o, (uint32_t)cells->n)) return -1;
    for (uint64_t i = 0; i < cells->n; i++)
        if (emit_u32(o, (uint32_t)kvc_cells_position(cells, i)) || emit_u32(o, 1) || emit_u32(o, 0)) return -1;
    if (!cells->n) return 0;
    if (emit_u32(o, 0) || emit_u32(o, layers)) return -1;
    const struct kvc_facts facts = kvc_facts_of(&c->meta);
    if (tiles && (emit_u32(o, (uint32_t)facts.tile[0]) || emit_u32(o, (uint32_t)facts.tile[1]))) return -1;
    for (unsigned kv = 0; kv < 2; kv++)
        for (uint32_t i = first; i < first + layers; i++)
            if (c->layer[i].tensor[kv] != KVC_NONE && emit_tensor(o, c->layer[i].tensor[kv])) return -1;
    return 0;
}

static int emit_tokens(struct out *o, int server) {
    const struct kvc_cache *c = o->cache;
    if (c->n_tokens > INT32_MAX - 4) return kvc_fail(o->e, KVC_ERR_UNSUPPORTED, "llama: too many tokens");
    uint32_t n = (uint32_t)c->n_tokens;
    if (emit_u32(o, server ? n + 4 : n)) return -1;
    if (server && (emit_u32(o, (uint32_t)KVC_LLAMA_TOKEN_NULL) || emit_u32(o, KVC_LLAMA_SERVER_TOKENS) || emit_u32(o, n)))
        return -1;
    for (uint32_t i = 0; i < n; i++)
        if (emit_u32(o, (uint32_t)c->tokens[i])) return -1;
    return server ? emit_u32(o, 0) : 0; /* no media */
}

/* Checks that a GGSQ file can hold the cache, and finds its parts; *live and *sliding are part numbers. */
static int check_exportable(const struct kvc_cache *c, const struct kvc_facts *facts, unsigned version, uint32_t *live,
                            uint32_t *sliding, struct kvc_error *e) {
    *live = *sliding = KVC_NONE;
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const struct kvc_part *part = &c->part[i];
        uint32_t *place = part->kind == KVC_PART_LIVE ? live : part->kind == KVC_PART_SLIDING ? sliding : NULL;
        if (part->kind == KVC_PART_RECURRENT)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "llama: recurrent states can only be restored into their own file");
        if (!place) continue;
        if (part->stream || *place != KVC_NONE)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "llama: a slot file holds one sequence, this cache has several streams");
        if (facts->cell_words)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "llama: M-RoPE cells can only be restored into their own file");
        for (uint64_t j = 0; j < part->cells.n; j++) {
            int64_t pos = part->cells.pos[kvc_cell_at(&part->cells, j)];
            if (pos < 0 || pos > INT32_MAX)
                return kvc_fail(e, KVC_ERR_UNSUPPORTED, "llama: position %" PRId64 " does not fit", pos);
            if (j && pos == part->cells.pos[kvc_cell_at(&part->cells, j - 1)])
                return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                                "llama: position %" PRId64 " occurs twice: a slot file holds one "
                                "sequence, this cache several",
                                pos);
        }
        *place = i;
    }
    const struct kvc_cells *cells = *live == KVC_NONE ? NULL : &c->part[*live].cells;
    if (facts->tokens_first || (cells && cells->n && kvc_cells_position(cells, 0)))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "llama: a slot must begin with token 0");
    if (*live == KVC_NONE) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "llama: there is no attention cache to write");
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        enum kvc_part_kind kind = kvc_tensor_part(c, t)->kind;
        const struct kvc_dtype_info *info = kvc_dtype_info(c->tensor[t].shape.dtype);
        char label[64];
        int is_k = c->tensor[t].role != KVC_ROLE_V;
        if (kind != KVC_PART_LIVE && kind != KVC_PART_SLIDING) continue;
        kvc_tensor_label(c, t, label, sizeof label);
        if (info->ggml < 0)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "llama: %s is %s, which no llama.cpp cache has", label, info->name);
        if (info->block > 1 && version >= 4 && !facts->tile_known[!is_k])
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "llama: %s is quantised and whether it is Hadamard-rotated is unknown; "
                            "version 4 must record it (version 3 does not)",
                            label);
        if (version < 4 && facts->tile[!is_k])
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "llama: %s is Hadamard-rotated, which version %u does not record: write version 4", label, version);
    }
    return 0;
}

int kvc_llama_write(const struct kvc_cache *cache, const struct kvc_export_options *options, struct kvc_sink *sink,
                    struct kvc_error *e) {
    const uint64_t wanted = options->value[KVC_LLAMA_VERSION].count;
    const uint32_t version = wanted ? (uint32_t)wanted : 4;
    uint32_t live, sliding;
    const struct kvc_facts facts = kvc_facts_of(&cache->meta);
    if (check_exportable(cache, &facts, version, &live, &sliding, e)) return -1;
    enum kvc_pairing have = facts.pairing, want = options->pairing;
    int from_llama = facts.source == KVC_SOURCE_LLAMA;
    if (want == KVC_PAIRING_UNKNOWN) want = kvc_pairing_of_gguf_arch(facts.architecture);
    if (want == KVC_PAIRING_UNKNOWN && from_llama) want = have;
    if (want == KVC_PAIRING_UNKNOWN && !from_llama)
        return kvc_fail_need(e, KVC_ERR_USAGE, KVC_NEED_TARGET_PAIRING,
                             "llama: the RoPE pairing that llama.cpp uses for this model is unknown");
    struct kvc_cache *view = NULL;
    if (want != have) {
        view = kvc_view_pairing(cache, want, e);
        if (!view) return -1;
    }
    struct out o = {.cache = view ? view : cache, .sink = sink, .e = e};
    int server = !facts.plain_tokens;
    int status = emit_u32(&o, KVC_LLAMA_SEQUENCE) || emit_u32(&o, version) || emit_tokens(&o, server) ||
                 emit_body(&o, live, version >= 4) || (sliding != KVC_NONE && emit_body(&o, sliding, version >= 4));
    kvc_cache_free(view);
    return status ? -1 : 0;
}
