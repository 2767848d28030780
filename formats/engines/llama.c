/* llama.c: reads llama.cpp's saved states: GGSQ (one sequence: server slots), GGSN (whole
 * context: sessions), and the bytes of llama_state_get_data() without a head. Not for their bodies
 * (llama_body.c), nor for writing them (llama_write.c).
 *
 *   GGSQ versions 2, 3, 4        GGSN versions 9, 10, 11                              no head
 *   0  u32 magic, version        0  u32 magic, version                                0  u32
 * length; char architecture[length] 8  u32 n; i32 token[n]       8  u32 n; i32 token[n]; u32
 * length; char architecture[length] BODY ...                     BODY ... BODY ...
 *
 * The version does not tell all that a body may be. Each reading is tried, and the one that ends
 * exactly at the end of the file is the right one. */
#include "formats/engines/llama_body.h"

#include "codecs/memory.h"
#include "formats/cache/keys.h"
#include "formats/cache/mapped.h"
#include "formats/cache/rope_names.h"
#include "formats/engines/import.h"
#include "formats/engines/llama.h"
#include "formats/io/bytes.h"
#include "formats/io/member_name.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a file begins with. */
enum kind {
    SEQUENCE,      /* GGSQ */
    SESSION,       /* GGSN */
    STATE,         /* of llama_state_get_data(): the architecture's name */
    SEQUENCE_STATE /* of llama_state_seq_get_data(): the body, after a magic in newer builds */
};

struct head {
    enum kind kind;
    uint32_t version, words;
    uint64_t tokens_at;
    char arch[KVC_LLAMA_ARCH_BYTES]; /* "": the file does not say */
    uint64_t body;
};

/* --- readings --- */

/* The bodies that llama.cpp has written, newest first, with the versions of GGSQ and GGSN (0: none)
 * that announce them. Builds before July 2025 did not count streams; sessions had outputs until
 * early 2026. */
static const struct generation {
    int tiles, streams, outputs;
    unsigned ext; /* extension words of a cell of M-RoPE models */
    uint32_t version[2];
    const char *words;
} generations[] = {{1, 1, 0, 3, {4, 11}, "with Hadamard tiles"},
                   {0, 1, 0, 3, {3, 10}, "with streams"},
                   {0, 1, 0, 2, {2, 9}, "with streams"},
                   {0, 1, 1, 2, {0, 9}, "with streams and outputs"},
                   {0, 0, 0, 0, {2, 0}, "without streams"},
                   {0, 0, 1, 0, {0, 9}, "without streams, with outputs"}};
enum { GENERATIONS = sizeof generations / sizeof generations[0] };

static int announces(const struct head *h, const struct generation *g) {
    const uint32_t version = g->version[h->kind == SESSION || h->kind == STATE];
    return version && (!h->version || version == h->version);
}

/* The reading that explained most of a file that none fits. */
struct best {
    struct kvc_error e;
    const struct generation *g; /* NULL: none was tried yet */
    uint64_t understood, tensors;
};

static int try_reading(struct kvc_llama_parser *p, const struct generation *g,
                       const struct kvc_llama_reading *r, struct best *best) {
    struct kvc_llama_parser look = *p;
    struct kvc_error tried = {0};
    look.r = *r;
    look.e = &tried;
    look.sole = KVC_NONE;
    if (kvc_llama_state(&look) == 0) {
        p->r = *r;
        p->sole = look.sole;
        return 0;
    }
    if (!best->g || look.understood > best->understood)
        *best = (struct best){.e = tried,
                              .g = g,
                              .understood = look.understood,
                              .tensors = look.fit_tensors};
    return -1;
}

static int try_structure(struct kvc_llama_parser *p, const struct head *h,
                         enum kvc_llama_structure structure, int has_v, struct best *best) {
    for (const struct generation *g = generations; g < generations + GENERATIONS; g++)
        for (int x = 0; announces(h, g) && x < (g->ext ? 2 : 1); x++) {
            const struct kvc_llama_reading r = {.outputs = g->outputs,
                                                .streams = g->streams,
                                                .tiles = g->tiles,
                                                .ext = x ? g->ext : 0,
                                                .has_v = has_v,
                                                .structure = structure};
            if (!try_reading(p, g, &r, best)) return 0;
        }
    return -1;
}

/* Recurrent states come last: attention without a count of streams has the form of states of as
 * many cells as tokens. */
static int try_structures(struct kvc_llama_parser *p, const struct head *h, int has_v,
                          struct best *best) {
    for (int s = KVC_LLAMA_ATTENTION; s < (has_v ? KVC_LLAMA_STRUCTURES : KVC_LLAMA_RECURRENT); s++)
        if (!try_structure(p, h, (enum kvc_llama_structure)s, has_v, best)) return 0;
    return -1;
}

static int fail_unread(const struct head *h, const struct best *best, struct kvc_error *e) {
    static const char *const names[] = {"GGSQ", "GGSN", "a state without a head",
                                        "a sequence without a head"};
    char version[16] = "", text[160], fit[48] = "";
    unsigned n = 0;
    for (size_t i = 0; i < GENERATIONS; i++) n += announces(h, &generations[i]) != 0;
    if (h->kind == SEQUENCE_STATE && !best->tensors)
        return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "not a llama.cpp state file");
    if (h->version) snprintf(version, sizeof version, " %" PRIu32, h->version);
    if (best->tensors) snprintf(fit, sizeof fit, ": %" PRIu64 " tensors fit, then", best->tensors);
    snprintf(text, sizeof text, "read as %s%s%s%s%s", names[h->kind], version,
             n < 2        ? ""
             : h->version ? " "
                          : ", ",
             n > 1 ? best->g->words : "", fit);
    if (e) *e = best->e;
    return kvc_error_prefix(e, text);
}

/* Finds the reading that fits to the last byte. A file of latent attention, which has no V, is that
 * of another model that was cut after its last K: `latent` 1 says that the model has it, 0 that it
 * has not or nobody knows, -1 that it may have it. For a file that no reading fits, the message is
 * that of the reading that understood most; among equals that of the first. */
static int find_reading(struct kvc_llama_parser *p, const struct head *h, int latent,
                        struct kvc_error *e) {
    struct best best = {.g = NULL}, ignored = {.g = NULL};
    if (latent <= 0 && !try_structures(p, h, 1, &best)) return 0;
    if (latent && !try_structures(p, h, 0, latent < 0 ? &ignored : &best)) return 0;
    if (!latent && !try_structures(p, h, 0, &ignored))
        return kvc_fail_at(
            e, KVC_ERR_DAMAGED, p->end,
            "cut short, or a count is wrong: no V follows the last K; latent attention has none: "
            "if this is the cache of such a model, say so by the option latent (--latent)");
    return fail_unread(h, &best, e);
}

/* Returns 1 for the architectures that llama.cpp caches as latents, unless the weights are of an
 * older conversion. */
static int may_be_latent(const char *arch) {
    static const char *const latent[] = {"deepseek2", "deepseek32", "glm-dsa", "kimi-linear",
                                         "mistral4"};
    for (size_t i = 0; i < sizeof latent / sizeof latent[0]; i++)
        if (strcmp(arch, latent[i]) == 0) return 1;
    return 0;
}

/* --- head, tokens, metadata --- */

/* Returns 1 if the file begins as llama_state_get_data() does: with the name of an architecture,
 * and no head before it. */
static int begins_state(const struct kvc_input *in) {
    uint8_t size[4], name[KVC_LLAMA_ARCH_BYTES];
    if (in->size < sizeof size || kvc_input_copy(in, 0, size, sizeof size, NULL)) return 0;
    const uint32_t n = get_u32(size);
    if (n < 2 || n >= sizeof name || in->size - sizeof size < n ||
        kvc_input_copy(in, sizeof size, name, n, NULL))
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        const int letter = name[i] >= 'a' && name[i] <= 'z',
                  later = (name[i] >= '0' && name[i] <= '9') || strchr("-_.", name[i]);
        if (!letter && (!i || !name[i] || !later)) return 0;
    }
    return 1;
}

static int read_arch(struct kvc_llama_parser *p, struct head *h, struct kvc_error *e) {
    uint32_t n;
    if (kvc_llama_take_u32(p, &n, "the architecture's name") ||
        kvc_llama_take(p, n, "the architecture's name"))
        return -1;
    const uint8_t *name = n < sizeof h->arch ? kvc_llama_taken(p, n) : NULL;
    if (n < sizeof h->arch && !name) return -1;
    if (!n || !name || memchr(name, 0, n))
        return kvc_fail_at(e, KVC_ERR_DAMAGED, p->at - n,
                           "the architecture's name has %" PRIu32 " bytes", n);
    memcpy(h->arch, name, n);
    return 0;
}

static int read_tokens_head(struct kvc_llama_parser *p, struct head *h, struct kvc_error *e) {
    const int session = h->kind == SESSION;
    const uint32_t oldest = session ? 9 : 2, newest = session ? 11 : 4;
    if (kvc_llama_take_u32(p, &h->version, "the version")) return -1;
    if (h->version < oldest || h->version > newest)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "%s version %" PRIu32 " is not one of %" PRIu32 " to %" PRIu32,
                        session ? "GGSN" : "GGSQ", h->version, oldest, newest);
    if (kvc_llama_take_u32(p, &h->words, "the number of tokens")) return -1;
    h->tokens_at = p->at;
    return kvc_llama_take(p, 4 * (uint64_t)h->words, "the list of tokens");
}

static int read_head(struct kvc_window *bytes, struct head *h, struct kvc_error *e) {
    struct kvc_llama_parser p = {.bytes = bytes, .end = bytes->in->size, .e = e};
    uint32_t magic;
    if (kvc_llama_take_u32(&p, &magic, "the magic")) return -1;
    if (magic == KVC_LLAMA_SEQUENCE || magic == KVC_LLAMA_SESSION) {
        h->kind = magic == KVC_LLAMA_SESSION ? SESSION : SEQUENCE;
        if (read_tokens_head(&p, h, e) || (h->kind == SESSION && read_arch(&p, h, e))) return -1;
    } else if (begins_state(bytes->in)) {
        h->kind = STATE;
        p.at = 0;
        if (read_arch(&p, h, e)) return -1;
    } else {
        h->kind = SEQUENCE_STATE;
        p.at = 0;
        if (magic == KVC_LLAMA_MEMORY && kvc_llama_take(&p, 8, "the head of a sequence")) return -1;
    }
    h->body = p.at;
    return 0;
}

/* Reads the token array. The server's is -1, 1, count, tokens, media count; the library's is the
 * tokens themselves. */
static int read_tokens(struct kvc_cache *c, struct kvc_window *bytes, const struct head *h,
                       struct kvc_error *e) {
    const char *form = "plain";
    uint32_t n = h->words, first = 0;
    const uint8_t *words = kvc_window_at(bytes, h->tokens_at, 4 * (uint64_t)n, e);
    if (!words) return -1;
    if (n >= 3 && (int32_t)get_u32(words) == KVC_LLAMA_TOKEN_NULL) {
        uint32_t count = get_u32(words + 8);
        if (get_u32(words + 4) != KVC_LLAMA_SERVER_TOKENS)
            return kvc_fail_at(e, KVC_ERR_UNSUPPORTED, h->tokens_at + 4,
                               "server token list of version %" PRIu32, get_u32(words + 4));
        if (count > n - 3)
            return kvc_fail_at(e, KVC_ERR_DAMAGED, h->tokens_at + 8,
                               "%" PRIu32 " tokens in a list of %" PRIu32 " words", count, n);
        form = "server";
        first = 3;
        n = count;
    }
    if (kvc_meta_set_text(&c->meta, KVC_KEY_LLAMA_TOKEN_FORM, n ? form : "none", e)) return -1;
    if (!n) return 0;
    int32_t *tokens = kvc_alloc(n, sizeof *tokens);
    if (!tokens) return kvc_fail_memory(e, "tokens");
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)get_u32(words + 4 * ((uint64_t)first + i));
    int status = kvc_cache_set_tokens(c, tokens, n, e);
    free(tokens);
    return status;
}

static int describe_layout(struct kvc_meta *m, const struct kvc_llama_parser *p,
                           struct kvc_error *e) {
    if (kvc_meta_set_bool(m, KVC_KEY_LLAMA_TRANSPOSED_V, p->transposed, e)) return -1;
    const int attention = p->r.structure != KVC_LLAMA_RECURRENT;
    if (attention && kvc_meta_set_u64(m, KVC_KEY_LLAMA_STREAMS, p->streams, e)) return -1;
    const int named = attention && p->sole && p->sole != KVC_NONE;
    if (named && kvc_meta_set_u64(m, KVC_KEY_LLAMA_STREAM, p->sole, e)) return -1;
    if (p->r.ext && kvc_meta_set_u64(m, KVC_KEY_CELLS_COORDINATES, p->r.ext, e)) return -1;
    /* Only quantised caches are rotated. Their rotation is unknown where it is not recorded. */
    const int known[2] = {p->r.tiles || !p->quantised[0], p->r.tiles || !p->quantised[1]};
    if (known[0] && kvc_meta_set_u64(m, KVC_KEY_HADAMARD_K, p->tile_k, e)) return -1;
    return known[1] ? kvc_meta_set_u64(m, KVC_KEY_HADAMARD_V, p->tile_v, e) : 0;
}

static int llama_describe(struct kvc_cache *c, const struct kvc_llama_parser *p,
                          const struct head *h, uint64_t bytes, struct kvc_error *e) {
    static const char *const names[] = {"llama.cpp GGSQ", "llama.cpp GGSN", "llama.cpp state",
                                        "llama.cpp sequence"};
    struct kvc_meta *m = &c->meta;
    if (kvc_meta_set_text(m, KVC_KEY_SOURCE_FORMAT, names[h->kind], e) ||
        (h->version && kvc_meta_set_u64(m, KVC_KEY_SOURCE_VERSION, h->version, e)) ||
        kvc_meta_set_u64(m, KVC_KEY_SOURCE_BYTES, bytes, e) ||
        kvc_meta_set_text(m, KVC_KEY_ROPE_K, "post", e) ||
        kvc_meta_set_bool(m, KVC_KEY_HEADS_KNOWN, 0, e) ||
        kvc_meta_set_bool(m, KVC_KEY_LAYERS_KNOWN, 0, e) || describe_layout(m, p, e))
        return -1;
    if (!*h->arch) return 0;
    if (kvc_meta_set_text(m, KVC_KEY_MODEL_ARCH, h->arch, e)) return -1;
    const enum kvc_pairing pairing = kvc_pairing_of_gguf_arch(h->arch);
    return pairing ? kvc_meta_set_pairing(m, pairing, e) : 0;
}

static int is_checkpoints(const char *name) {
    return kvc_name_ends_in(name, ".checkpoints") || kvc_name_ends_in(name, ".ckpt");
}

/* Returns the member that is the state: the only one beside which checkpoints and what macOS keeps
 * may lie. SIZE_MAX: there is no such member. */
static size_t member_of(const struct kvc_bundle *b) {
    size_t at = SIZE_MAX;
    if (b->is_file) return 0;
    for (size_t i = 0; i < b->n; i++) {
        if (kvc_member_is_beside(b->member[i].name) || is_checkpoints(b->member[i].name)) continue;
        if (at != SIZE_MAX) return SIZE_MAX;
        at = i;
    }
    return at;
}

/* Adds members [first, end), which lie beside the state, and after them begins the state's own if
 * there is one. */
static int llama_add_members(struct kvc_cache *c, const struct kvc_bundle *b, size_t first,
                             size_t end, int state, struct kvc_error *e) {
    for (size_t i = first; i < end; i++)
        if (kvc_member_literal(c, b, i, e)) return -1;
    return state && !kvc_member_begin(c, b, end, e) ? -1 : 0;
}

/* Builds p->cache by the reading that fits: member `member` of the bundle, and beside it the
 * others. */
static int llama_build(struct kvc_llama_parser *p, const struct head *h, const struct kvc_bundle *b,
                       size_t member, struct kvc_error *e) {
    struct kvc_cache *c = p->cache;
    const struct kvc_input *in = p->bytes->in;
    if (llama_add_members(c, b, 0, member, 1, e)) return -1;
    if (kvc_llama_state(p)) return -1;
    if (kvc_cache_extent_literal(c, in, p->literal, in->size - p->literal, e)) return -1;
    if (llama_add_members(c, b, member + 1, b->n, 0, e)) return -1;
    if (read_tokens(c, p->bytes, h, e)) return -1;
    if (llama_describe(c, p, h, kvc_bundle_size(b), e)) return -1;
    return kvc_cache_finish(c, e);
}

static struct kvc_cache *llama_import(const struct kvc_bundle *b,
                                      const struct kvc_import_options *o, struct kvc_error *e) {
    const size_t member = member_of(b);
    const struct kvc_input *in = member == SIZE_MAX ? NULL : kvc_bundle_open(b, member, e);
    struct head h = {0};
    struct kvc_window bytes = {.in = in};
    struct kvc_cache *c = NULL;
    if (member == SIZE_MAX)
        kvc_fail(
            e, KVC_ERR_UNSUPPORTED,
            "llama: several files that are not one slot and its checkpoints (.checkpoints, .ckpt)");
    if (!in) return NULL;
    if (!read_head(&bytes, &h, e)) {
        struct kvc_llama_parser p = {.bytes = &bytes,
                                     .at = h.body,
                                     .end = in->size,
                                     .one_sequence = h.kind == SEQUENCE || h.kind == SEQUENCE_STATE,
                                     .e = e};
        const int told = o->value[KVC_LLAMA_LATENT].count != 0;
        const int may_be = o->latent || may_be_latent(h.arch);
        if (!find_reading(&p, &h, told ? 1 : may_be ? -1 : 0, e)) c = p.cache = kvc_import_begin(e);
        if (c) c = kvc_import_end(c, llama_build(&p, &h, b, member, e));
    }
    kvc_window_close(&bytes);
    return c;
}

/* --- the format --- */

static int llama_probe(const struct kvc_bundle *b, char *why, size_t size) {
    const size_t member = member_of(b);
    const struct kvc_input *in = member == SIZE_MAX ? NULL : kvc_bundle_open(b, member, NULL);
    uint8_t magic[4];
    snprintf(why, size, "more than a slot and its checkpoints");
    if (!in) return 0;
    if (in->size >= 4 && !kvc_input_copy(in, 0, magic, 4, NULL) &&
        (get_u32(magic) == KVC_LLAMA_SEQUENCE || get_u32(magic) == KVC_LLAMA_SESSION ||
         get_u32(magic) == KVC_LLAMA_MEMORY))
        return 1;
    if (begins_state(in)) return 1;
    snprintf(why, size, "no GGSQ or GGSN magic at the start");
    return 0;
}

static const struct kvc_format_option import_options[] = {
    /* such a cache looks like a file that was cut short, so that the caller must say it */
    [KVC_LLAMA_LATENT] = KVC_LATENT_OPTION,
    {.key = NULL},
};

static const struct kvc_format_option export_options[] = {
    [KVC_LLAMA_VERSION] = {.key = "version",
                           .kind = KVC_OPTION_COUNT,
                           .min = 2,
                           .max = 4,
                           .value = "N",
                           .tool = "llama-version",
                           .help = "llama: slot version 2, 3 or 4 (default 4)"},
    [KVC_LLAMA_STREAMS] =
        {.key = "streams",
         .kind = KVC_OPTION_TEXT,
         .value = "N",
         .help =
             "for a server of N slots with a stream each (-np N without --kv-unified; default 1); "
             "none, with version=2: for builds before July 2025, whose files do not count streams"},
    [KVC_LLAMA_STREAM] = {.key = "stream",
                          .kind = KVC_OPTION_COUNT,
                          .max = 255,
                          .value = "K",
                          .help = "the stream that gets the cells, from 0 on (default 0)"},
    [KVC_LLAMA_TILE_K] = {.key = "hadamard-k",
                          .kind = KVC_OPTION_TEXT,
                          .value = "TILE",
                          .help = "for version 4: tile by which a quantised K is rotated, or none, "
                                  "where the cache does not say"},
    [KVC_LLAMA_TILE_V] = {.key = "hadamard-v",
                          .kind = KVC_OPTION_TEXT,
                          .value = "TILE",
                          .help = "the same for V"},
    [KVC_LLAMA_TRANSPOSED] = {.key = "transposed-v",
                              .kind = KVC_OPTION_FLAG,
                              .help =
                                  "with V transposed, as a server without flash attention has it"},
    {.key = NULL},
};

/* A slot of one stream in the newest version is as it would be written. */
static int is_default(const struct kvc_cache *c) {
    return kvc_meta_u64(&c->meta, KVC_KEY_SOURCE_VERSION, 0) == KVC_LLAMA_NEWEST &&
           kvc_meta_u64(&c->meta, KVC_KEY_LLAMA_STREAMS, 1) == 1;
}

const struct kvc_format kvc_format_llama = {
    .name = "llama",
    .summary = "llama.cpp slots (GGSQ) and sessions (GGSN)",
    .suffix = ".bin",
    .takes_members = 1,
    .import_options = import_options,
    .export_options = export_options,
    .lacks = KVC_LACKS_LAYERS | KVC_LACKS_COMPANIONS | KVC_LACKS_SNAPSHOTS | KVC_LACKS_METADATA,
    .is_default = is_default,
    .probe = llama_probe,
    .import = llama_import,
    .export = kvc_llama_write,
};
