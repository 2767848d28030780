/* llama_read.c: reads llama.cpp's saved states: GGSQ (one sequence: server slots) and GGSN (whole context: sessions). Not for
 * writing them (llama_write.c).
 *
 *   GGSQ versions 2, 3, 4        GGSN versions 9, 10, 11
 *   0  u32 magic, version        0  u32 magic, version
 *   8  u32 n; i32 token[n]       8  u32 n; i32 token[n]; u32 length; char architecture[length]
 *      BODY ...                     BODY ...
 *
 * BODY of the attention cache: u32 streams; per stream u32 cells; per cell i32 pos, u32 ids, [extension], i32 id[ids];
 * u32 transposed; u32 layers; [u32 tile of K, u32 tile of V: versions 4 and 11]; K of each layer: i32 type, u64 row
 * bytes, rows; V of each layer likewise, or transposed: i32 type, u32 element bytes, u32 channels, channels x cells.
 * A second BODY of the sliding-window cache or of recurrent states may follow, then the server's "SCKP" checkpoints.
 * The file does not record these choices: the structure that ends exactly at the end of the file is the right one.
 * Source: llama.cpp src/llama-kv-cache.cpp, llama-memory-recurrent.cpp, llama-context.cpp, tools/server.
 *
 * Tested with real files of GGSQ 3 and 4 and GGSN 10 and 11; GGSQ 2, GGSN 9, recurrent states and M-RoPE extensions only with
 * files that were built by the layout in the engine's source. */
#include "formats/engines/llama.h"

#include "codecs/memory.h"
#include "formats/cache/keys.h"
#include "formats/cache/mapped.h"
#include "formats/cache/rope_pairing.h"
#include "formats/io/bytes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC_MEMORY 0xaf143cd8u /* before the body of a checkpoint */
#define MAGIC_CHECKPOINTS "SCKP"

enum { MAX_SEQUENCES = 1024, MAX_STREAMS = 256 };

enum structure { ATTENTION, ATTENTION_TWICE, HYBRID, RECURRENT, N_STRUCTURES };

/* One possible layout of the parts that the file does not describe. */
struct variant {
    unsigned ext; /* extension words per cell: 0, 2 or 3 */
    int has_v;    /* 0: latent attention keeps no V. The caller must say so: such a file looks exactly like one of
                          another model that was cut after its last K */
    enum structure structure;
};

struct parser {
    struct kvc_window *bytes;
    uint64_t at, end;
    unsigned version;
    int tiles; /* 1: the version records Hadamard tiles */
    struct variant v;
    struct kvc_cache *cache; /* NULL: only check that the layout fits */
    uint64_t literal;        /* bytes before this offset have extents already */
    uint64_t tile_k, tile_v;
    int quantised[2], transposed; /* quantised: K, V */
    uint64_t streams;
    uint64_t understood; /* lists of cells and tensors that were valid, to compare trials */
    struct kvc_error *e;
};

static int cut(struct parser *p, const char *what) {
    return kvc_fail_at(p->e, KVC_ERR_DAMAGED, p->at, "cut short, or a count is wrong: no room for %s", what);
}

static int take(struct parser *p, uint64_t n, const char *what) {
    if (n > p->end - p->at) return cut(p, what);
    p->at += n;
    return 0;
}

/* Returns the last n bytes that the parser has read. */
static const uint8_t *taken(const struct parser *p, uint64_t n) {
    return kvc_window_at(p->bytes, p->at - n, n, p->e);
}

static int take_u32(struct parser *p, uint32_t *v, const char *what) {
    const uint8_t *bytes = take(p, 4, what) ? NULL : taken(p, 4);
    if (bytes) *v = get_u32(bytes);
    return bytes ? 0 : -1;
}

static int take_u64(struct parser *p, uint64_t *v, const char *what) {
    const uint8_t *bytes = take(p, 8, what) ? NULL : taken(p, 8);
    if (bytes) *v = get_u64(bytes);
    return bytes ? 0 : -1;
}

/* --- cells --- */

/* Reads the cells of one stream, of `ext` extension words each, and adds their part when building (*part). `recurrent` cells have
 * no extension and may belong to no sequence. */
static int take_cells(struct parser *p, uint32_t count, unsigned ext, int recurrent, enum kvc_part_kind kind, uint32_t *part) {
    uint64_t start = p->at, words = 0;
    int plain = ext == 0; /* 1: every cell belongs to sequence 0 alone */
    *part = KVC_NONE;
    if (count > (p->end - p->at) / 8) return cut(p, "the list of cells");
    for (uint32_t i = 0; i < count; i++) {
        uint32_t ids;
        if (take(p, 4, "a cell") || take_u32(p, &ids, "a cell")) return -1;
        if (ids > MAX_SEQUENCES || (!ids && !recurrent))
            return kvc_fail_at(p->e, KVC_ERR_DAMAGED, p->at - 4, "cell %" PRIu32 " claims %" PRIu32 " sequences", i, ids);
        if (take(p, 4 * ((uint64_t)ext + ids), "a cell")) return -1;
        words += ext + ids;
        if (!plain) continue;
        const uint8_t *id = taken(p, 4);
        if (!id) return -1;
        plain = ids == 1 && get_u32(id) == 0;
    }
    p->understood += !recurrent; /* almost any bytes are valid as a list of recurrent cells */
    if (!p->cache) return 0;
    *part = kvc_cache_add_part(p->cache, kind, count, p->e);
    if (*part == KVC_NONE) return -1;
    struct kvc_cells *cells = &p->cache->part[*part].cells;
    if (!plain) {
        cells->words = kvc_alloc(words, sizeof *cells->words);
        cells->word_at = kvc_alloc((size_t)count + 1, sizeof *cells->word_at);
        if (!cells->words || !cells->word_at) return kvc_fail_memory(p->e, "cells");
    }
    words = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *q = kvc_window_at(p->bytes, start, 8, p->e);
        if (!q) return -1;
        const uint32_t n = ext + get_u32(q + 4);
        cells->pos[i] = (int32_t)get_u32(q);
        if (!plain && !(q = kvc_window_at(p->bytes, start + 8, 4 * (uint64_t)n, p->e))) return -1;
        if (!plain) {
            cells->word_at[i] = words;
            for (uint32_t w = 0; w < n; w++) cells->words[words++] = get_u32(q + 4 * (uint64_t)w);
        }
        start += 8 + 4 * (uint64_t)n;
    }
    if (!plain) cells->word_at[count] = words;
    return 0;
}

/* --- tensors --- */

/* Where rows of a tensor are. */
struct rows {
    const struct kvc_dtype_info *info;
    uint64_t values, offset, size; /* values of a row; bytes of all rows and of what is before them */
    int transposed;                /* 1: [channel][cell] */
};

/* Adds a tensor to the cache. Returns its number, or KVC_NONE. */
static uint32_t add_tensor(struct parser *p, uint32_t layer, enum kvc_role role, uint32_t cells, const struct rows *r) {
    struct kvc_shape shape = {.dtype = r->info->dtype, .tokens = cells, .heads = 1, .dim = r->values};
    uint32_t t = kvc_cache_add_tensor(p->cache, layer, role, &shape, p->e);
    if (t == KVC_NONE) return t;
    struct kvc_tensor *tensor = &p->cache->tensor[t];
    if (r->transposed) tensor->source = (struct kvc_strides){r->info->size, r->size, (uint64_t)cells * r->info->size};
    tensor->source_size = r->size;
    return kvc_cache_map_tensor(p->cache, t, p->bytes->in, r->offset, p->e) ? KVC_NONE : t;
}

/* Adds the extents of a tensor and of the literal bytes before it. Tensors must come in the order of the file. */
static int add_extents(struct parser *p, uint32_t tensor, const struct rows *r) {
    if (kvc_cache_extent_literal(p->cache, p->bytes->in, p->literal, r->offset - p->literal, p->e) ||
        kvc_cache_extent_tensor(p->cache, tensor, p->e))
        return -1;
    p->literal = r->offset + r->size;
    return 0;
}

/* Reads one tensor: type, row size and rows, which are only passed over. */
static int take_rows(struct parser *p, enum kvc_role role, uint32_t cells, int transposed, struct rows *rows) {
    uint32_t type, element, channels;
    uint64_t row, start = p->at;
    if (take_u32(p, &type, "a tensor's type")) return -1;
    const struct kvc_dtype_info *info = kvc_dtype_by_ggml((int32_t)type);
    if (!info)
        return kvc_fail_at(p->e, KVC_ERR_DAMAGED, start, "%s has ggml type %" PRIi32 ", which no cache has", kvc_role_name(role),
                           (int32_t)type);
    if (transposed) {
        if (take_u32(p, &element, "a tensor's element size") || take_u32(p, &channels, "a tensor's channels")) return -1;
        if (info->block != 1 || element != info->size || !channels)
            return kvc_fail_at(p->e, KVC_ERR_DAMAGED, start, "transposed %s of type %s has elements of %" PRIu32 " bytes",
                               kvc_role_name(role), info->name, element);
        row = (uint64_t)element * channels;
    } else {
        if (take_u64(p, &row, "a tensor's row size")) return -1;
    }
    if (!row || row > KVC_MAX_ROW_BYTES || row % info->size)
        return kvc_fail_at(p->e, KVC_ERR_DAMAGED, start, "%s has rows of %" PRIu64 " bytes, type %s comes in %" PRIu32 "s",
                           kvc_role_name(role), row, info->name, info->size);
    *rows = (struct rows){.info = info,
                          .values = row / info->size * info->block,
                          .offset = p->at,
                          .size = row * cells, /* below 2^28 * 2^32 */
                          .transposed = transposed};
    if (take(p, rows->size, "a tensor's rows")) return -1;
    p->understood++;
    return 0;
}

/* Adds the tensors of `layers` layers, the first of which is `first`: rows[role][layer]. Layer by layer, so that a layer can be
 * predicted from both tensors of those before it; the file has all tensors of one role before those of the other. */
static int add_tensors(struct parser *p, uint32_t first, uint32_t layers, const enum kvc_role *role, unsigned roles,
                       uint32_t cells, const struct rows *rows) {
    const uint32_t tensor = p->cache->n_tensors;
    for (uint32_t i = 0; i < layers; i++)
        for (unsigned k = 0; k < roles; k++)
            if (add_tensor(p, first + i, role[k], cells, &rows[(uint64_t)k * layers + i]) == KVC_NONE) return -1;
    for (unsigned k = 0; k < roles; k++)
        for (uint32_t i = 0; i < layers; i++)
            if (add_extents(p, tensor + i * roles + k, &rows[(uint64_t)k * layers + i])) return -1;
    return 0;
}

/* Reads the tensors of `layers` layers, of part `part`: those of role[0] of all layers, then those of role[1], whose rows are
 * transposed or not. */
static int take_tensors(struct parser *p, uint32_t part, enum kvc_layer_kind kind, uint32_t layers, const enum kvc_role *role,
                        unsigned roles, uint32_t cells, int transposed) {
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
static int take_layers(struct parser *p, uint32_t part, uint32_t cells, enum kvc_layer_kind kind) {
    uint32_t transposed, layers, tile[2] = {0, 0};
    uint64_t start = p->at;
    if (take_u32(p, &transposed, "the transposition flag") || take_u32(p, &layers, "the number of layers")) return -1;
    if (transposed > 1) return kvc_fail_at(p->e, KVC_ERR_DAMAGED, start, "the flag for transposed V is %" PRIu32, transposed);
    if (!layers) return kvc_fail_at(p->e, KVC_ERR_DAMAGED, start + 4, "no layers for %" PRIu32 " cells", cells);
    if (p->tiles) {
        if (take_u32(p, &tile[0], "the Hadamard tiles") || take_u32(p, &tile[1], "the Hadamard tiles")) return -1;
        if (!tile_is_valid(tile[0]) || !tile_is_valid(tile[1]))
            return kvc_fail_at(p->e, KVC_ERR_DAMAGED, p->at - 8,
                               "Hadamard tiles %" PRIu32 " and %" PRIu32 " are not powers of two", tile[0], tile[1]);
    }
    if (layers > (p->end - p->at) / 12) return cut(p, "the list of layers");
    const enum kvc_role role[2] = {p->v.has_v ? KVC_ROLE_K : KVC_ROLE_LATENT, KVC_ROLE_V};
    if (take_tensors(p, part, kind, layers, role, p->v.has_v ? 2 : 1, cells, transposed == 1)) return -1;
    p->transposed |= transposed == 1;
    p->tile_k = tile[0];
    p->tile_v = tile[1];
    return 0;
}

static int take_attention(struct parser *p, enum kvc_part_kind kind, uint32_t checkpoint) {
    uint32_t streams, cells, part;
    enum kvc_layer_kind layer = !p->v.has_v ? KVC_LAYER_LATENT : kind == KVC_PART_LIVE ? KVC_LAYER_FULL : KVC_LAYER_SLIDING;
    if (take_u32(p, &streams, "the number of streams")) return -1;
    if (!streams || streams > MAX_STREAMS) return kvc_fail_at(p->e, KVC_ERR_DAMAGED, p->at - 4, "%" PRIu32 " streams", streams);
    if (kind == KVC_PART_LIVE) p->streams = streams;
    for (uint32_t s = 0; s < streams; s++) {
        if (take_u32(p, &cells, "the number of cells") || take_cells(p, cells, p->v.ext, 0, kind, &part)) return -1;
        if (p->cache) {
            p->cache->part[part].stream = s;
            p->cache->part[part].checkpoint = checkpoint;
        }
        if (cells && take_layers(p, part, cells, layer)) return -1;
    }
    return 0;
}

/* Returns 1 where the trailer of checkpoints begins here, or the rest of one that was cut short. */
static int begins_checkpoints(const struct parser *p) {
    const uint64_t n = p->end - p->at < 4 ? p->end - p->at : 4;
    const uint8_t *bytes = kvc_window_at(p->bytes, p->at, n, p->e);
    return bytes && memcmp(bytes, MAGIC_CHECKPOINTS, (size_t)n) == 0;
}

/* Reads recurrent states: R of every layer that has one, then S likewise. The file does not record their number, so tensors are
 * counted up to the end. A file that was cut between two of them must not pass: all R are alike, and all S are alike and differ
 * from R (state of the convolution or token shift, and state of the recurrence). */
static int take_recurrent(struct parser *p, enum kvc_part_kind kind, uint32_t checkpoint) {
    uint32_t cells, part, transposed, layers, n = 0;
    if (take_u32(p, &cells, "the number of states") || take_cells(p, cells, 0, 1, kind, &part)) return -1;
    if (p->cache) p->cache->part[part].checkpoint = checkpoint;
    if (!cells) return 0;
    if (take_u32(p, &transposed, "the transposition flag") || take_u32(p, &layers, "the number of layers")) return -1;
    if (transposed || !layers)
        return kvc_fail_at(p->e, KVC_ERR_DAMAGED, p->at - 8, "recurrent states with flag %" PRIu32 " and %" PRIu32 " layers",
                           transposed, layers);
    struct parser look = *p;
    struct rows rows;
    uint64_t size_r = 0, size_s = 0, alike_r = 0;
    look.cache = NULL;
    for (; look.at < look.end && !begins_checkpoints(&look); n++) {
        uint64_t start = look.at, size;
        if (n / 2 == layers || take_rows(&look, KVC_ROLE_R, cells, 0, &rows)) return cut(p, "a recurrent state");
        size = look.at - start;
        if (!n) size_r = size;
        if (size == size_r && alike_r == n) alike_r++;
        else if (!size_s) size_s = size;
        else if (size != size_s) alike_r = UINT32_MAX;
    }
    if (!n || alike_r != n - alike_r)
        return kvc_fail_at(p->e, KVC_ERR_DAMAGED, p->at, "%" PRIu32 " recurrent tensors are no pairs of R and S", n);
    static const enum kvc_role role[2] = {KVC_ROLE_R, KVC_ROLE_S};
    return take_tensors(p, part, KVC_LAYER_RECURRENT, n / 2, role, 2, cells, 0);
}

/* Reads the state of one server checkpoint: the body of the sliding-window cache, or recurrent states. */
static int take_checkpoint_body(struct parser *p, uint32_t number) {
    uint32_t magic;
    if (take_u32(p, &magic, "a checkpoint's magic")) return -1;
    if (magic != MAGIC_MEMORY)
        return kvc_fail_at(p->e, KVC_ERR_DAMAGED, p->at - 4, "checkpoint %" PRIu32 " has magic %08" PRIx32, number, magic);
    if (take(p, 4, "a checkpoint's sequence")) return -1;
    int recurrent = p->v.structure == HYBRID || p->v.structure == RECURRENT;
    if (recurrent ? take_recurrent(p, KVC_PART_CHECKPOINT, number) : take_attention(p, KVC_PART_CHECKPOINT, number)) return -1;
    if (p->at != p->end) return kvc_fail_at(p->e, KVC_ERR_DAMAGED, p->at, "bytes follow checkpoint %" PRIu32, number);
    return 0;
}

static int take_checkpoints(struct parser *p) {
    uint32_t version, count;
    if (p->at == p->end) return 0;
    if (p->end - p->at < 4 || !begins_checkpoints(p))
        return kvc_fail_at(p->e, KVC_ERR_DAMAGED, p->at, "bytes follow the last cache and are no checkpoints");
    p->at += 4;
    if (take_u32(p, &version, "the checkpoint trailer") || take_u32(p, &count, "the checkpoint trailer")) return -1;
    if (version != 1) return kvc_fail_at(p->e, KVC_ERR_UNSUPPORTED, p->at - 8, "checkpoint trailer of version %" PRIu32, version);
    if (count > (p->end - p->at) / 40) return cut(p, "the list of checkpoints");
    for (uint32_t i = 0; i < count; i++) {
        uint64_t size, end = p->end;
        if (take(p, 16, "a checkpoint") || take_u64(p, &size, "a checkpoint")) return -1;
        if (size > p->end - p->at) return cut(p, "a checkpoint's state");
        p->end = p->at + size;
        int status = take_checkpoint_body(p, i);
        p->end = end;
        if (status) return -1;
        for (int extra = 0; extra < 2; extra++)
            if (take_u64(p, &size, "a checkpoint") || take(p, size, "a checkpoint's further bytes")) return -1;
    }
    return p->at == p->end ? 0 : kvc_fail_at(p->e, KVC_ERR_DAMAGED, p->at, "bytes follow the checkpoints");
}

/* Reads everything after the tokens in the layout p->v, up to exactly the end. */
static int take_state(struct parser *p) {
    switch (p->v.structure) {
    case ATTENTION:
        if (take_attention(p, KVC_PART_LIVE, 0)) return -1;
        break;
    case ATTENTION_TWICE:
        if (take_attention(p, KVC_PART_LIVE, 0) || take_attention(p, KVC_PART_SLIDING, 0)) return -1;
        break;
    case HYBRID:
        if (take_attention(p, KVC_PART_LIVE, 0) || take_recurrent(p, KVC_PART_RECURRENT, 0)) return -1;
        break;
    case RECURRENT:
        if (take_recurrent(p, KVC_PART_RECURRENT, 0)) return -1;
        break;
    case N_STRUCTURES: break;
    }
    return take_checkpoints(p);
}

/* Finds the layout that fits to the last byte. For a damaged file, the message is that of the layout that understood the largest
 * part; among equals that of the simplest, which is tried first. */
static int find_variant(struct parser *p, int latent) {
    const unsigned ext[2] = {0, p->version == 2 || p->version == 9 ? 2 : 3};
    struct kvc_error best = {0}, tried;
    uint64_t furthest = 0;
    int any = 0;
    for (unsigned x = 0; x < 2; x++)
        for (enum structure s = ATTENTION; s < N_STRUCTURES; s++) {
            struct parser look = *p;
            if (s == RECURRENT && x) continue;
            look.v = (struct variant){.ext = ext[x], .has_v = !latent, .structure = s};
            look.e = &tried;
            memset(&tried, 0, sizeof tried);
            if (take_state(&look) == 0) {
                p->v = look.v;
                return 0;
            }
            if (!any || look.understood > furthest) {
                best = tried;
                furthest = look.understood;
                any = 1;
            }
        }
    if (p->e) *p->e = best;
    return -1;
}

/* --- header, tokens, metadata --- */

struct head {
    int session;
    uint32_t version, words;
    uint64_t tokens_at;
    char arch[64]; /* of a session */
    uint64_t body;
};

static int read_head(struct kvc_window *bytes, struct head *h, struct kvc_error *e) {
    struct parser p = {.bytes = bytes, .end = bytes->in->size, .e = e};
    uint32_t magic, n;
    if (take_u32(&p, &magic, "the magic") || take_u32(&p, &h->version, "the version")) return -1;
    h->session = magic == KVC_LLAMA_SESSION;
    uint32_t oldest = h->session ? 9 : 2, newest = h->session ? 11 : 4;
    if (magic != KVC_LLAMA_SESSION && magic != KVC_LLAMA_SEQUENCE)
        return kvc_fail(e, KVC_ERR_UNKNOWN, "not a llama.cpp state file");
    if (h->version < oldest || h->version > newest)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s version %" PRIu32 " is not one of %" PRIu32 " to %" PRIu32,
                        h->session ? "GGSN" : "GGSQ", h->version, oldest, newest);
    if (take_u32(&p, &h->words, "the number of tokens")) return -1;
    h->tokens_at = p.at;
    if (take(&p, 4 * (uint64_t)h->words, "the list of tokens")) return -1;
    if (h->session) {
        if (take_u32(&p, &n, "the architecture's name") || take(&p, n, "the architecture's name")) return -1;
        const uint8_t *name = n < sizeof h->arch ? taken(&p, n) : NULL;
        if (n < sizeof h->arch && !name) return -1;
        if (!n || !name || memchr(name, 0, n))
            return kvc_fail_at(e, KVC_ERR_DAMAGED, p.at - n, "the architecture's name has %" PRIu32 " bytes", n);
        memcpy(h->arch, name, n);
    }
    h->body = p.at;
    return 0;
}

/* Reads the token array. The server's is -1, 1, count, tokens, media count; the library's is the tokens themselves. */
static int read_tokens(struct kvc_cache *c, struct kvc_window *bytes, const struct head *h, struct kvc_error *e) {
    const uint8_t *words = kvc_window_at(bytes, h->tokens_at, 4 * (uint64_t)h->words, e);
    uint32_t n = h->words, first = 0;
    const char *form = "plain";
    if (!words) return -1;
    if (n >= 3 && (int32_t)get_u32(words) == KVC_LLAMA_TOKEN_NULL) {
        uint32_t count = get_u32(words + 8);
        if (get_u32(words + 4) != KVC_LLAMA_SERVER_TOKENS)
            return kvc_fail_at(e, KVC_ERR_UNSUPPORTED, h->tokens_at + 4, "server token list of version %" PRIu32,
                               get_u32(words + 4));
        if (count > n - 3)
            return kvc_fail_at(e, KVC_ERR_DAMAGED, h->tokens_at + 8, "%" PRIu32 " tokens in a list of %" PRIu32 " words", count,
                               n);
        form = "server";
        first = 3;
        n = count;
    }
    if (kvc_meta_set_text(&c->meta, KVC_KEY_LLAMA_TOKEN_FORM, n ? form : "none", e)) return -1;
    if (!n) return 0;
    int32_t *tokens = kvc_alloc(n, sizeof *tokens);
    if (!tokens) return kvc_fail_memory(e, "tokens");
    for (uint32_t i = 0; i < n; i++) tokens[i] = (int32_t)get_u32(words + 4 * ((uint64_t)first + i));
    int status = kvc_cache_set_tokens(c, tokens, n, e);
    free(tokens);
    return status;
}

static int describe(struct kvc_cache *c, const struct parser *p, const struct head *h, uint64_t bytes, struct kvc_error *e) {
    struct kvc_meta *m = &c->meta;
    if (kvc_meta_set_text(m, KVC_KEY_SOURCE_FORMAT, h->session ? "llama.cpp GGSN" : "llama.cpp GGSQ", e) ||
        kvc_meta_set_u64(m, KVC_KEY_SOURCE_VERSION, h->version, e) || kvc_meta_set_u64(m, KVC_KEY_SOURCE_BYTES, bytes, e) ||
        kvc_meta_set_text(m, KVC_KEY_ROPE_K, "post", e) || kvc_meta_set_bool(m, KVC_KEY_HEADS_KNOWN, 0, e) ||
        kvc_meta_set_bool(m, KVC_KEY_LAYERS_KNOWN, 0, e) || kvc_meta_set_bool(m, KVC_KEY_LLAMA_TRANSPOSED_V, p->transposed, e))
        return -1;
    if (p->v.structure != RECURRENT && kvc_meta_set_u64(m, KVC_KEY_LLAMA_STREAMS, p->streams, e)) return -1;
    if (p->v.ext && kvc_meta_set_u64(m, KVC_KEY_LLAMA_CELL_EXT, p->v.ext, e)) return -1;
    /* Only quantised caches are rotated. Their rotation is unknown in versions that do not record it. */
    if ((p->tiles || !p->quantised[0]) && kvc_meta_set_u64(m, KVC_KEY_HADAMARD_K, p->tile_k, e)) return -1;
    if ((p->tiles || !p->quantised[1]) && kvc_meta_set_u64(m, KVC_KEY_HADAMARD_V, p->tile_v, e)) return -1;
    if (h->session) {
        if (kvc_meta_set_text(m, KVC_KEY_MODEL_ARCH, h->arch, e)) return -1;
        enum kvc_pairing pairing = kvc_pairing_of_gguf_arch(h->arch);
        if (pairing != KVC_PAIRING_UNKNOWN) return kvc_meta_set_text(m, KVC_KEY_ROPE_PAIRING, kvc_pairing_name(pairing), e);
    }
    return 0;
}

struct kvc_cache *kvc_llama_read(const struct kvc_bundle *b, const struct kvc_import_options *o, struct kvc_error *e) {
    const struct kvc_input *in = b->one.in;
    struct head h = {0};
    struct kvc_window bytes = {.in = in};
    struct kvc_cache *c = NULL;
    if (!read_head(&bytes, &h, e)) {
        struct parser p = {.bytes = &bytes,
                           .at = h.body,
                           .end = in->size,
                           .version = h.version,
                           .tiles = h.version == 4 || h.version == 11,
                           .e = e};
        if (!find_variant(&p, o->value[KVC_LLAMA_LATENT].count != 0)) c = p.cache = kvc_cache_new(e);
        if (c && (kvc_cache_map(c, NULL, NULL, e) || take_state(&p) ||
                  kvc_cache_extent_literal(c, in, p.literal, in->size - p.literal, e) || read_tokens(c, &bytes, &h, e) ||
                  describe(c, &p, &h, in->size, e) || kvc_cache_finish(c, e))) {
            kvc_cache_free(c);
            c = NULL;
        }
    }
    kvc_window_close(&bytes);
    return c;
}
