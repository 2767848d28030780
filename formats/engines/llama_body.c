/* llama_body.c: reads the bodies of llama.cpp's saved states by one reading. Not for finding the
 * reading (llama.c).
 *
 * [outputs: u32 n, i32 id[n], u64 n, f32 logit[n], u64 n, f32 embedding[n]]
 * BODY of the attention cache: [u32 streams;] per stream u32 cells; per cell i32 pos, u32 ids,
 * [extension], i32 id[ids]; u32 transposed; u32 layers; [u32 tile of K, u32 tile of V]; K of each
 * layer: i32 type, u64 row bytes, rows; V of each layer likewise, or transposed: i32 type, u32
 * element bytes, u32 channels, channels x cells. A second BODY of the sliding-window cache or of
 * recurrent states may follow, then the server's "SCKP" checkpoints. Source: llama.cpp
 * src/llama-kv-cache.cpp, llama-memory-recurrent.cpp, llama-context.cpp, tools/server. */
#include "formats/engines/llama_body.h"

#include "codecs/memory.h"
#include "formats/cache/mapped.h"
#include "formats/io/bytes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC_CHECKPOINTS "SCKP"

enum {
    MAX_SEQUENCES = 1024,
    MAX_STREAMS = 256,
    EMPTY_TENSOR = 12 /* bytes of a tensor that has rows of no bytes: its type and that */
};

static int cut(struct kvc_llama_parser *p, const char *what) {
    return kvc_fail_at(p->e, KVC_ERR_DAMAGED, p->at,
                       "cut short, or a count is wrong: no room for %s", what);
}

int kvc_llama_take(struct kvc_llama_parser *p, uint64_t n, const char *what) {
    if (n > p->end - p->at) return cut(p, what);
    p->at += n;
    return 0;
}

const uint8_t *kvc_llama_taken(const struct kvc_llama_parser *p, uint64_t n) {
    return kvc_window_at(p->bytes, p->at - n, n, p->e);
}

int kvc_llama_take_u32(struct kvc_llama_parser *p, uint32_t *v, const char *what) {
    const uint8_t *bytes = kvc_llama_take(p, 4, what) ? NULL : kvc_llama_taken(p, 4);
    if (bytes) *v = get_u32(bytes);
    return bytes ? 0 : -1;
}

static int take_u64(struct kvc_llama_parser *p, uint64_t *v, const char *what) {
    const uint8_t *bytes = kvc_llama_take(p, 8, what) ? NULL : kvc_llama_taken(p, 8);
    if (bytes) *v = get_u64(bytes);
    return bytes ? 0 : -1;
}

/* --- cells --- */

/* Copies cells that were checked, from byte `at` on, with their words if they are to be kept. */
static int copy_cells(struct kvc_llama_parser *p, struct kvc_cells *cells, unsigned ext,
                      uint64_t at, uint64_t words) {
    if (words) {
        cells->words = kvc_alloc(words, sizeof *cells->words);
        cells->word_at = kvc_alloc(cells->n + 1, sizeof *cells->word_at);
        if (!cells->words || !cells->word_at) return kvc_fail_memory(p->e, "cells");
    }
    uint64_t used = 0;
    for (uint64_t i = 0; i < cells->n; i++) {
        const uint8_t *q = kvc_window_at(p->bytes, at, 8, p->e);
        if (!q) return -1;
        const uint32_t n = ext + get_u32(q + 4);
        cells->pos[i] = (int32_t)get_u32(q);
        if (words) {
            if (!(q = kvc_window_at(p->bytes, at + 8, 4 * (uint64_t)n, p->e))) return -1;
            cells->word_at[i] = used;
            for (uint32_t w = 0; w < n; w++) cells->words[used++] = get_u32(q + 4 * (uint64_t)w);
        }
        at += 8 + 4 * (uint64_t)n;
    }
    if (words) cells->word_at[cells->n] = used;
    return 0;
}

/* Reads the cells of one stream, of `ext` extension words each, and adds their part when building
 * (*part). Cells of recurrent states may belong to no sequence. Words are not kept where they say
 * nothing: every cell belongs to sequence 0, or to the one that was saved. */
static int take_cells(struct kvc_llama_parser *p, uint32_t count, unsigned ext,
                      enum kvc_part_kind kind, int recurrent, uint32_t *part) {
    const uint64_t start = p->at;
    uint64_t words = 0;
    uint32_t ids, sequence = 0;
    int plain = ext == 0;
    *part = KVC_NONE;
    if (count > (p->end - p->at) / 8) return cut(p, "the list of cells");
    for (uint32_t i = 0; i < count; i++) {
        if (kvc_llama_take(p, 4, "a cell") || kvc_llama_take_u32(p, &ids, "a cell")) return -1;
        if (ids > MAX_SEQUENCES || (!ids && !recurrent && p->r.streams))
            return kvc_fail_at(p->e, KVC_ERR_DAMAGED, p->at - 4,
                               "cell %" PRIu32 " claims %" PRIu32 " sequences", i, ids);
        if (kvc_llama_take(p, 4 * ((uint64_t)ext + ids), "a cell")) return -1;
        words += ext + ids;
        if (!plain) continue;
        const uint8_t *id = kvc_llama_taken(p, 4);
        if (!id) return -1;
        if (!i && ids && p->one_sequence && !recurrent) sequence = get_u32(id);
        plain = ids ? ids == 1 && get_u32(id) == sequence : !recurrent;
    }
    p->understood += !recurrent; /* almost any bytes are valid as a list of recurrent cells */
    if (!p->cache) return 0;
    *part = kvc_cache_add_part(p->cache, kind, count, p->e);
    if (*part == KVC_NONE) return -1;
    return copy_cells(p, &p->cache->part[*part].cells, ext, start, plain ? 0 : words);
}

/* --- tensors --- */

/* Where rows of a tensor are. */
struct rows {
    const struct kvc_dtype_info *info;
    /* values of a row; bytes of all rows and of what is before them */
    uint64_t values, offset, size;
    int transposed; /* 1: [channel][cell] */
};

static uint32_t add_tensor(struct kvc_llama_parser *p, uint32_t layer, enum kvc_role role,
                           uint32_t cells, const struct rows *r) {
    struct kvc_shape shape = {.dtype = r->info->dtype,
                              .tokens = cells,
                              .heads = 1,
                              .dim = r->values};
    uint32_t t = kvc_cache_add_tensor(p->cache, layer, role, &shape, p->e);
    if (t == KVC_NONE) return t;
    struct kvc_tensor *tensor = &p->cache->tensor[t];
    if (r->transposed)
        tensor->source = (struct kvc_strides){r->info->size, r->size,
                                              (uint64_t)cells * r->info->size};
    tensor->source_size = r->size;
    return kvc_cache_map_tensor(p->cache, t, p->bytes->in, r->offset, p->e) ? KVC_NONE : t;
}

/* Adds the extents of a tensor and of the literal bytes before it. Tensors must come in the order
 * of the file. */
static int add_extents(struct kvc_llama_parser *p, uint32_t tensor, const struct rows *r) {
    if (kvc_cache_extent_literal(p->cache, p->bytes->in, p->literal, r->offset - p->literal,
                                 p->e) ||
        kvc_extents_tensor(p->cache, tensor, p->e))
        return -1;
    p->literal = r->offset + r->size;
    return 0;
}

/* Types of forks, which number them from 97 on (ik_llama.cpp), and types of llama.cpp that kvc
 * cannot decode. */
static const struct {
    int32_t type;
    const char *name;
} other_types[] = {{9, "q8_1"},
                   {10, "q2_K"},
                   {11, "q3_K"},
                   {12, "q4_K"},
                   {13, "q5_K"},
                   {14, "q6_K"},
                   {15, "q8_K"},
                   {24, "i8"},
                   {28, "f64"},
                   {39, "mxfp4"},
                   {40, "nvfp4"},
                   {133, "q6_0 of ik_llama.cpp"},
                   {151, "q8_KV of ik_llama.cpp"}};

static int fail_type(struct kvc_llama_parser *p, uint64_t at, enum kvc_role role, int32_t type) {
    const char *name = NULL;
    for (size_t i = 0; i < sizeof other_types / sizeof other_types[0]; i++)
        if (other_types[i].type == type) name = other_types[i].name;
    return kvc_fail_at(p->e, KVC_ERR_DAMAGED, at,
                       "%s has ggml type %" PRIi32 "%s%s%s, which kvc does not know",
                       kvc_role_name(role), type, name ? " (" : "", name ? name : "",
                       name ? ")" : "");
}

/* Reads one tensor: type, row size and rows, which are only passed over. */
static int take_rows(struct kvc_llama_parser *p, enum kvc_role role, uint32_t cells, int transposed,
                     struct rows *rows) {
    uint32_t type, element, channels;
    uint64_t row, start = p->at;
    if (kvc_llama_take_u32(p, &type, "a tensor's type")) return -1;
    const struct kvc_dtype_info *info = kvc_dtype_by_ggml((int32_t)type);
    if (!info) return fail_type(p, start, role, (int32_t)type);
    if (transposed) {
        if (kvc_llama_take_u32(p, &element, "a tensor's element size") ||
            kvc_llama_take_u32(p, &channels, "a tensor's channels"))
            return -1;
        if (info->block != 1 || element != info->size || !channels)
            return kvc_fail_at(p->e, KVC_ERR_DAMAGED, start,
                               "transposed %s of type %s has elements of %" PRIu32 " bytes",
                               kvc_role_name(role), info->name, element);
        row = (uint64_t)element * channels;
    } else {
        if (take_u64(p, &row, "a tensor's row size")) return -1;
    }
    /* models with a convolution alone have no S */
    const int may_be_empty = role == KVC_ROLE_R || role == KVC_ROLE_S;
    if ((!row && !may_be_empty) || row > KVC_MAX_ROW_BYTES || row % info->size)
        return kvc_fail_at(p->e, KVC_ERR_DAMAGED, start,
                           "%s has rows of %" PRIu64 " bytes, type %s comes in %" PRIu32 "s",
                           kvc_role_name(role), row, info->name, info->size);
    *rows = (struct rows){.info = info,
                          .values = row / info->size * info->block,
                          .offset = p->at,
                          .size = row * cells, /* below 2^28 * 2^32 */
                          .transposed = transposed};
    if (kvc_llama_take(p, rows->size, "a tensor's rows")) return -1;
    p->understood++;
    p->fit_tensors++;
    return 0;
}

/* Adds the tensors of `layers` layers, the first of which is `first`: rows[role][layer]. Layer by
 * layer, so that a layer can be predicted from both tensors of those before it; the file has all
 * tensors of one role before those of the other. */
static int add_tensors(struct kvc_llama_parser *p, uint32_t first, uint32_t layers,
                       const enum kvc_role *role, unsigned roles, uint32_t cells,
                       const struct rows *rows) {
    const uint32_t tensor = p->cache->n_tensors;
    for (uint32_t i = 0; i < layers; i++)
        for (unsigned k = 0; k < roles; k++)
            if (add_tensor(p, first + i, role[k], cells, &rows[(uint64_t)k * layers + i]) ==
                KVC_NONE)
                return -1;
    for (unsigned k = 0; k < roles; k++)
        for (uint32_t i = 0; i < layers; i++)
            if (add_extents(p, tensor + i * roles + k, &rows[(uint64_t)k * layers + i])) return -1;
    return 0;
}

/* Reads the tensors of `layers` layers, of part `part`: those of role[0] of all layers, then those
 * of role[1], whose rows are transposed or not. */
static int take_tensors(struct kvc_llama_parser *p, uint32_t part, enum kvc_layer_kind kind,
                        uint32_t layers, const enum kvc_role *role, unsigned roles, uint32_t cells,
                        int transposed) {
    const uint64_t n = (uint64_t)roles * layers;
    struct rows one, *rows = p->cache ? kvc_alloc(n, sizeof *rows) : NULL;
    const uint32_t first = p->cache ? p->cache->n_layers : 0;
    int status = p->cache && !rows ? kvc_fail_memory(p->e, "a list of tensors") : 0;
    for (uint64_t i = 0; i < n && !status; i++) {
        const unsigned k = (unsigned)(i / layers);
        status = take_rows(p, role[k], cells, k && transposed, rows ? &rows[i] : &one);
        if (!status) p->quantised[k] |= (rows ? &rows[i] : &one)->info->block > 1;
    }
    for (uint32_t i = 0; rows && i < layers && !status; i++)
        status = kvc_cache_add_layer(p->cache, part, i, kind, p->e) == KVC_NONE ? -1 : 0;
    if (rows && !status) status = add_tensors(p, first, layers, role, roles, cells, rows);
    free(rows);
    return status;
}

static int tile_is_valid(uint32_t tile) {
    return !tile || (tile >= 2 && tile <= 65536 && !(tile & (tile - 1)));
}

/* Reads the tensors of one stream of an attention cache, whose cells are part `part`. */
static int take_layers(struct kvc_llama_parser *p, uint32_t part, uint32_t cells,
                       enum kvc_layer_kind kind) {
    uint32_t transposed, layers, tile[2] = {0, 0};
    uint64_t start = p->at;
    if (kvc_llama_take_u32(p, &transposed, "the transposition flag") ||
        kvc_llama_take_u32(p, &layers, "the number of layers"))
        return -1;
    if (transposed > 1)
        return kvc_fail_at(p->e, KVC_ERR_DAMAGED, start, "the flag for transposed V is %" PRIu32,
                           transposed);
    if (!layers)
        return kvc_fail_at(p->e, KVC_ERR_DAMAGED, start + 4, "no layers for %" PRIu32 " cells",
                           cells);
    if (p->r.tiles) {
        if (kvc_llama_take_u32(p, &tile[0], "the Hadamard tiles") ||
            kvc_llama_take_u32(p, &tile[1], "the Hadamard tiles"))
            return -1;
        if (!tile_is_valid(tile[0]) || !tile_is_valid(tile[1]))
            return kvc_fail_at(p->e, KVC_ERR_DAMAGED, p->at - 8,
                               "Hadamard tiles %" PRIu32 " and %" PRIu32 " are not powers of two",
                               tile[0], tile[1]);
    }
    if (layers > (p->end - p->at) / 12) return cut(p, "the list of layers");
    const enum kvc_role role[2] = {p->r.has_v ? KVC_ROLE_K : KVC_ROLE_LATENT, KVC_ROLE_V};
    if (take_tensors(p, part, kind, layers, role, p->r.has_v ? 2 : 1, cells, transposed == 1))
        return -1;
    p->transposed |= transposed == 1;
    p->tile_k = tile[0];
    p->tile_v = tile[1];
    return 0;
}

/* Returns 1 if the next cell has a position after the first: the only cell of a recurrent state has
 * that of the last token. */
static int is_state(const struct kvc_llama_parser *p) {
    const uint8_t *cell = p->end - p->at < 4 ? NULL : kvc_window_at(p->bytes, p->at, 4, p->e);
    return cell && get_u32(cell) != 0;
}

/* Reads the body of an attention cache. Streams without cells add nothing, so that the only stream
 * that has some is stream 0, whatever its number: the slot of a server with several is a sequence
 * as any other. */
static int take_attention(struct kvc_llama_parser *p, enum kvc_part_kind kind,
                          uint32_t checkpoint) {
    const enum kvc_layer_kind layer = !p->r.has_v             ? KVC_LAYER_LATENT
                                      : kind == KVC_PART_LIVE ? KVC_LAYER_FULL
                                                              : KVC_LAYER_WINDOW;
    uint32_t streams = 1, cells, part, full = 0, last = 0;
    if (p->r.streams && kvc_llama_take_u32(p, &streams, "the number of streams")) return -1;
    if (!streams || streams > MAX_STREAMS)
        return kvc_fail_at(p->e, KVC_ERR_DAMAGED, p->at - 4, "%" PRIu32 " streams", streams);
    for (uint32_t s = 0; s < streams; s++) {
        if (kvc_llama_take_u32(p, &cells, "the number of cells")) return -1;
        if (!cells && (full || s + 1 < streams)) continue;
        if (!p->r.streams && cells == 1 && is_state(p))
            return kvc_fail_at(
                p->e, KVC_ERR_DAMAGED, p->at,
                "the only cell is not of the first token, as that of a recurrent state");
        if (take_cells(p, cells, p->r.ext, kind, 0, &part)) return -1;
        if (p->cache) {
            p->cache->part[part].stream = cells && s != p->sole ? s : 0;
            p->cache->part[part].snapshot = checkpoint;
        }
        if (!cells) continue;
        if (take_layers(p, part, cells, layer)) return -1;
        last = s;
        full++;
    }
    if (kind != KVC_PART_LIVE) return 0;
    p->streams = streams;
    p->sole = full == 1 ? last : KVC_NONE;
    return 0;
}

/* Returns 1 where the trailer of checkpoints begins here, or the rest of one that was cut short. */
static int begins_checkpoints(const struct kvc_llama_parser *p) {
    const uint64_t n = p->end - p->at < 4 ? p->end - p->at : 4;
    const uint8_t *bytes = kvc_window_at(p->bytes, p->at, n, p->e);
    return bytes && memcmp(bytes, MAGIC_CHECKPOINTS, (size_t)n) == 0;
}

/* Reads R and S of `layers` layers. Where all R, or all S, have rows of no bytes, they are no
 * tensors. */
static int take_recurrent_tensors(struct kvc_llama_parser *p, uint32_t part, uint32_t layers,
                                  uint32_t cells, int no_r, int no_s) {
    static const enum kvc_role role[2] = {KVC_ROLE_R, KVC_ROLE_S};
    const uint64_t heads = (uint64_t)EMPTY_TENSOR * layers;
    if (no_r && kvc_llama_take(p, heads, "recurrent states")) return -1;
    if (take_tensors(p, part, KVC_LAYER_STATE, layers, role + no_r, no_r || no_s ? 1 : 2, cells, 0))
        return -1;
    return no_s ? kvc_llama_take(p, heads, "recurrent states") : 0;
}

/* Reads recurrent states: R of every layer that has one, then S likewise. The file does not record
 * their number, so tensors are counted up to the end. A file that was cut between two of them must
 * not pass: all R are alike, and all S are alike and differ from R (state of the convolution or
 * token shift, and state of the recurrence). */
static int take_recurrent(struct kvc_llama_parser *p, enum kvc_part_kind kind,
                          uint32_t checkpoint) {
    uint32_t cells, part, transposed, layers, n = 0;
    if (kvc_llama_take_u32(p, &cells, "the number of states") ||
        take_cells(p, cells, 0, kind, 1, &part))
        return -1;
    if (p->cache) p->cache->part[part].snapshot = checkpoint;
    if (!cells) return 0;
    if (kvc_llama_take_u32(p, &transposed, "the transposition flag") ||
        kvc_llama_take_u32(p, &layers, "the number of layers"))
        return -1;
    if (transposed || !layers)
        return kvc_fail_at(p->e, KVC_ERR_DAMAGED, p->at - 8,
                           "recurrent states with flag %" PRIu32 " and %" PRIu32 " layers",
                           transposed, layers);
    struct kvc_llama_parser look = *p;
    struct rows rows;
    uint64_t size_r = 0, size_s = 0, alike_r = 0;
    look.cache = NULL;
    for (; look.at < look.end && !begins_checkpoints(&look); n++) {
        uint64_t start = look.at, size;
        if (n / 2 == layers || take_rows(&look, KVC_ROLE_R, cells, 0, &rows))
            return cut(p, "a recurrent state");
        size = look.at - start;
        if (!n) size_r = size;
        if (size == size_r && alike_r == n) alike_r++;
        else if (!size_s) size_s = size;
        else if (size != size_s) alike_r = UINT32_MAX;
    }
    if (!n || alike_r != n - alike_r)
        return kvc_fail_at(p->e, KVC_ERR_DAMAGED, p->at,
                           "%" PRIu32 " recurrent tensors are no pairs of R and S", n);
    return take_recurrent_tensors(p, part, n / 2, cells, size_r == EMPTY_TENSOR,
                                  size_s == EMPTY_TENSOR);
}

/* Reads the state of one server checkpoint: the body of the sliding-window cache, or recurrent
 * states. */
static int take_checkpoint_body(struct kvc_llama_parser *p, uint32_t number) {
    uint32_t magic;
    if (kvc_llama_take_u32(p, &magic, "a checkpoint's magic")) return -1;
    if (magic != KVC_LLAMA_MEMORY)
        return kvc_fail_at(p->e, KVC_ERR_DAMAGED, p->at - 4,
                           "checkpoint %" PRIu32 " has magic %08" PRIx32, number, magic);
    if (kvc_llama_take(p, 4, "a checkpoint's sequence")) return -1;
    int recurrent = p->r.structure == KVC_LLAMA_HYBRID || p->r.structure == KVC_LLAMA_RECURRENT;
    if (recurrent ? take_recurrent(p, KVC_PART_SNAPSHOT, number)
                  : take_attention(p, KVC_PART_SNAPSHOT, number))
        return -1;
    if (p->at != p->end)
        return kvc_fail_at(p->e, KVC_ERR_DAMAGED, p->at, "bytes follow checkpoint %" PRIu32,
                           number);
    return 0;
}

static int take_checkpoints(struct kvc_llama_parser *p) {
    uint32_t version, count;
    if (p->at == p->end) return 0;
    if (p->end - p->at < 4 || !begins_checkpoints(p))
        return kvc_fail_at(p->e, KVC_ERR_DAMAGED, p->at,
                           "bytes follow the last cache and are no checkpoints");
    p->at += 4;
    if (kvc_llama_take_u32(p, &version, "the checkpoint trailer") ||
        kvc_llama_take_u32(p, &count, "the checkpoint trailer"))
        return -1;
    if (version != 1)
        return kvc_fail_at(p->e, KVC_ERR_UNSUPPORTED, p->at - 8,
                           "checkpoint trailer of version %" PRIu32, version);
    if (count > (p->end - p->at) / 40) return cut(p, "the list of checkpoints");
    for (uint32_t i = 0; i < count; i++) {
        uint64_t size, end = p->end;
        if (kvc_llama_take(p, 16, "a checkpoint") || take_u64(p, &size, "a checkpoint")) return -1;
        if (size > p->end - p->at) return cut(p, "a checkpoint's state");
        p->end = p->at + size;
        int status = take_checkpoint_body(p, i);
        p->end = end;
        if (status) return -1;
        for (int extra = 0; extra < 2; extra++)
            if (take_u64(p, &size, "a checkpoint") ||
                kvc_llama_take(p, size, "a checkpoint's further bytes"))
                return -1;
    }
    return p->at == p->end
               ? 0
               : kvc_fail_at(p->e, KVC_ERR_DAMAGED, p->at, "bytes follow the checkpoints");
}

/* Passes over the outputs of a session: their ids, logits and embeddings. */
static int take_outputs(struct kvc_llama_parser *p) {
    uint32_t ids;
    uint64_t floats;
    if (kvc_llama_take_u32(p, &ids, "the ids of outputs")) return -1;
    if (kvc_llama_take(p, 4 * (uint64_t)ids, "the ids of outputs")) return -1;
    for (int i = 0; i < 2; i++) {
        const char *what = i ? "embeddings" : "logits";
        if (take_u64(p, &floats, what)) return -1;
        if (floats > (p->end - p->at) / 4) return cut(p, what);
        p->at += 4 * floats;
    }
    p->understood++;
    return 0;
}

int kvc_llama_state(struct kvc_llama_parser *p) {
    if (p->r.outputs && take_outputs(p)) return -1;
    switch (p->r.structure) {
    case KVC_LLAMA_ATTENTION:
        if (take_attention(p, KVC_PART_LIVE, 0)) return -1;
        break;
    case KVC_LLAMA_TWICE:
        if (take_attention(p, KVC_PART_LIVE, 0) || take_attention(p, KVC_PART_WINDOW, 0)) return -1;
        break;
    case KVC_LLAMA_HYBRID:
        if (take_attention(p, KVC_PART_LIVE, 0) || take_recurrent(p, KVC_PART_STATE, 0)) return -1;
        break;
    case KVC_LLAMA_RECURRENT:
        if (take_recurrent(p, KVC_PART_STATE, 0)) return -1;
        break;
    case KVC_LLAMA_STRUCTURES: break;
    }
    return take_checkpoints(p);
}
