/* vllm_blocks_write.c: writes blocks as vLLM's OffloadingConnector keeps them in files, with the
 * canonical layout. Not for reading them.
 *
 * The folders are those that vLLM computes from config.json: a hash of its fields is in their
 * names. The names of files are hashes of token ids under a key of vLLM's, which the caller gives;
 * without them, files are numbered. */
#include "formats/engines/import.h"

#include "codecs/memory.h"
#include "formats/engines/uniform.h"
#include "formats/engines/vllm.h"
#include "formats/engines/vllm_blocks.h"
#include "formats/io/hash.h"
#include "formats/io/json_text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* --- pages --- */

static const struct kvc_vllm_page shapes[] = {{"T-H-2D", "nhd", "lthcd", 0},
                                              {"2-T-H-D", "nhd", "lcthd", 0},
                                              {"H-T-2D", "hnd", "lhtcd", 0},
                                              {"2-H-T-D", "hnd", "lchtd", 0},
                                              {"T-C", NULL, "lcthd", 1}};

const struct kvc_vllm_page *kvc_vllm_page_of(const char *name) {
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        if (strcasecmp(name, shapes[i].name) == 0) return &shapes[i];
    return NULL;
}

int kvc_vllm_page_geometry(const struct kvc_vllm_page *page, const struct kvc_dtype_info *info,
                           uint64_t tokens, uint64_t heads, uint64_t channels,
                           struct kvc_geometry *g) {
    *g = kvc_geometry_of(info, page->latent, 1, tokens, heads, channels);
    return kvc_geometry_order(g, page->order) == KVC_ORDER_GOOD ? 0 : -1;
}

enum {
    DIGEST = 12,     /* hexadecimal digits of the hash of config.json in the names of folders */
    HASH_DIGITS = 64 /* of a number in place of a hash */
};

/* Options, by position. */
enum { SHAPE, PAGE, CHUNK, BLOCK, NAME, MODEL };

const struct kvc_format_option kvc_vllm_blocks_export_options[] = {
    [SHAPE] = KVC_TEXT_OPTION("shape", "T-H-2D"),
    [PAGE] = KVC_COUNT_OPTION("page", 1, KVC_VLLM_BLOCKS_TOKENS, "TOKENS"),
    [CHUNK] = KVC_COUNT_OPTION("chunk", 1, KVC_VLLM_BLOCKS_TOKENS, "TOKENS"),
    [BLOCK] = {.key = "block", .kind = KVC_OPTION_LIST, .value = "HASH"},
    [NAME] = {.key = "name", .kind = KVC_OPTION_TEXT, .value = "model.layers.{i}.self_attn.attn"},
    [MODEL] = KVC_TEXT_OPTION("model", "NAME"),
    {.key = NULL},
};

struct out {
    struct kvc_uniform cache;
    const struct kvc_member_sink *to;
    const struct kvc_vllm_page *shape;
    uint64_t page_tokens, pages; /* of a page; pages of a layer in a file */
    struct kvc_geometry layout;  /* of a page */
    uint64_t file;               /* bytes */
    uint64_t files;
    const char *const *hash; /* names of the files; NULL at the end; none: they are numbered */
    json_t *config;
    char *folder;
};

int kvc_vllm_blocks_keeps(enum kvc_dtype dtype) {
    return kvc_import_dtype_name(dtype) != NULL;
}

/* --- options --- */

static int vllm_blocks_write_take_shape(struct out *o, const char *told, struct kvc_error *e) {
    const struct kvc_uniform *u = &o->cache;
    if (!(o->shape = kvc_vllm_page_of(told ? told : u->latent ? "T-C" : "T-H-2D")))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "vllm-blocks: shape=%s is none of T-H-2D, 2-T-H-D, H-T-2D, 2-H-T-D, T-C",
                        told);
    if (o->shape->latent != u->latent)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "vllm-blocks: shape=T-C is for latents, and latents have no other shape");
    if (!u->heads_known && !u->latent)
        return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_HEADS,
                             "vllm-blocks: the number of KV heads is unknown");
    return 0;
}

/* Divides the tokens into files and pages. */
static int take_pages(struct out *o, const struct kvc_option_value *v, struct kvc_error *e) {
    const struct kvc_uniform *u = &o->cache;
    const uint64_t chunk = v[CHUNK].count ? v[CHUNK].count : v[PAGE].count;
    if (!(o->page_tokens = v[PAGE].count))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "vllm-blocks needs the tokens of a block of vLLM: page=TOKENS");
    if (chunk % o->page_tokens)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "vllm-blocks: chunk=%" PRIu64 " is no multiple of page=%" PRIu64, chunk,
                        o->page_tokens);
    if (u->tokens % chunk)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "vllm-blocks: %" PRIu64 " tokens are no whole files of %" PRIu64
                        ": select a multiple, as vLLM does",
                        u->tokens, chunk);
    o->pages = chunk / o->page_tokens;
    o->files = u->tokens / chunk;
    if (kvc_vllm_page_geometry(o->shape, u->info, o->page_tokens, u->heads, u->dim, &o->layout) ||
        __builtin_mul_overflow(o->layout.bytes, o->pages * u->layers, &o->file) ||
        __builtin_add_overflow(o->file, KVC_VLLM_BLOCKS_PADDING - 1, &o->file))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "vllm-blocks: a file would have more bytes than 64 bits count");
    o->file -= o->file % KVC_VLLM_BLOCKS_PADDING;
    return 0;
}

static int take_hashes(struct out *o, const char *const *hash, struct kvc_error *e) {
    uint64_t n = 0;
    for (o->hash = hash; hash[n]; n++) {
        const size_t digits = strlen(hash[n]);
        if (digits < 6 || digits > 128 || strspn(hash[n], "0123456789abcdef") != digits)
            return kvc_fail(e, KVC_ERR_USAGE,
                            "vllm-blocks: block=%s is no hash of 6 to 128 hexadecimal digits",
                            hash[n]);
        for (uint64_t i = 0; i < n; i++)
            if (strcmp(hash[i], hash[n]) == 0)
                return kvc_fail(e, KVC_ERR_USAGE, "vllm-blocks: block=%s is given twice", hash[n]);
    }
    if (n && n != o->files)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "vllm-blocks: %" PRIu64 " hashes (block=HASH) are given for %" PRIu64
                        " files",
                        n, o->files);
    return 0;
}

/* --- config.json --- */

static json_t *name_layers(const struct out *o, const char *pattern, struct kvc_error *e) {
    const struct kvc_cache *c = o->cache.arrays.cache;
    json_t *names = json_array();
    int status = names ? 0 : kvc_fail_memory(e, "names");
    char name[512];
    for (uint32_t i = 0; i < c->n_layers && !status; i++) {
        if (!kvc_uniform_has(&o->cache, &c->layer[i])) continue;
        status = kvc_vllm_name_layer("vllm-blocks", pattern, c->layer[i].index, "", name,
                                     sizeof name, e);
        if (!status && json_array_append_new(names, json_string(name)))
            status = kvc_fail(e, KVC_ERR_USAGE, "vllm-blocks: name=%s is not UTF-8", pattern);
    }
    if (!status) return names;
    json_decref(names);
    return NULL;
}

/* Makes config.json of the fields that vLLM hashes, for any number of workers. A model without a
 * name gets none. */
static int make_config(struct out *o, const char *pattern, const char *model, struct kvc_error *e) {
    json_t *names = name_layers(o, pattern ? pattern : "model.layers.{i}.self_attn.attn", e);
    if (!names) return -1;
    const char *family = o->shape->family;
    const char *format = family && strcmp(family, "hnd") == 0 ? "v1-hnd" : "v1-nhd";
    const json_int_t tokens = (json_int_t)o->page_tokens, pages = (json_int_t)o->pages;
    o->config = json_pack("{s:I, s:I, s:i, s:i, s:i, s:i, s:s, s:[{s:I, s:o}], s:s, s:s}",
                          "tokens_per_hash", tokens, "blocks_per_file", pages, "tp_size", 1,
                          "pp_size", 1, "pcp_size", 1, "dcp_size", 1, "dtype",
                          kvc_import_dtype_name(o->cache.info->dtype), "kv_cache_groups",
                          "tokens_per_block", tokens, "layer_names", names, "inference_engine",
                          "vllm", "canonical_format", format);
    if (!o->config) return kvc_fail_memory(e, "config.json");
    if (model && json_object_set_new(o->config, "model_name", json_string(model)))
        return kvc_fail(e, KVC_ERR_USAGE, "vllm-blocks: the model's name is not UTF-8");
    return 0;
}

/* Finds the name of the folder: the model's, then the begin of the hash of all fields. */
static int name_folder(struct out *o, const char *model, struct kvc_error *e) {
    char *text = kvc_json_dump(o->config, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENSURE_ASCII),
         hex[2 * KVC_SHA256_BYTES + 1];
    uint8_t hash[KVC_SHA256_BYTES];
    int status = text ? kvc_sha256(text, strlen(text), hash, e) : kvc_fail_memory(e, "config.json");
    free(text);
    if (status) return -1;
    kvc_hex(hash, sizeof hash, hex);
    if (asprintf(&o->folder, "%s_%.*s", model ? model : "model", DIGEST, hex) < 0) {
        o->folder = NULL;
        return kvc_fail_memory(e, "a name");
    }
    for (char *p = o->folder; *p; p++)
        if (*p == '/') *p = '_';
    return 0;
}

/* --- files --- */

static int write_config(const struct out *o, struct kvc_error *e) {
    char *text = kvc_json_dump(o->config, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_ENSURE_ASCII),
         *name = NULL;
    const size_t n = text ? strlen(text) : 0;
    int status = text && asprintf(&name, "%s/config.json", o->folder) >= 0
                     ? o->to->begin(o->to->state, name, n, e)
                     : kvc_fail_memory(e, "config.json");
    if (!status) status = kvc_sink_write(o->to->out, text, n, e);
    if (!status) status = o->to->finish(o->to->state, e);
    free(name);
    free(text);
    return status;
}

static int write_layer(struct out *o, const struct kvc_layer *layer, uint64_t first, uint8_t *page,
                       struct kvc_error *e) {
    for (uint64_t i = 0; i < o->pages; i++) {
        for (unsigned k = 0; k < o->layout.count[KVC_AXIS_CACHE]; k++) {
            const struct kvc_place place = kvc_geometry_place(&o->layout, 0, k,
                                                              first + i * o->page_tokens,
                                                              layer->tensor[k]);
            if (kvc_uniform_place(&o->cache, &place, page, e)) return -1;
        }
        if (kvc_sink_write(o->to->out, page, (size_t)o->layout.bytes, e)) return -1;
    }
    return 0;
}

static int vllm_blocks_write_write_file(struct out *o, uint64_t number, uint8_t *page,
                                        struct kvc_error *e) {
    static const uint8_t zeros[KVC_VLLM_BLOCKS_PADDING];
    const struct kvc_cache *c = o->cache.arrays.cache;
    char digits[HASH_DIGITS + 1], *name;
    snprintf(digits, sizeof digits, "%0*" PRIu64, HASH_DIGITS, number);
    const char *hash = *o->hash ? o->hash[number] : digits;
    if (asprintf(&name, "%s_r0/%.3s/%.2s_g0/%s.bin", o->folder, hash, hash + 3, hash) < 0)
        return kvc_fail_memory(e, "a name");
    int status = o->to->begin(o->to->state, name, o->file, e);
    for (uint32_t i = 0; i < c->n_layers && !status; i++)
        if (kvc_uniform_has(&o->cache, &c->layer[i]))
            status = write_layer(o, &c->layer[i], number * o->pages * o->page_tokens, page, e);
    if (!status)
        status = kvc_sink_write(o->to->out, zeros,
                                (size_t)(o->file - o->layout.bytes * o->pages * o->cache.layers),
                                e);
    if (!status) status = o->to->finish(o->to->state, e);
    free(name);
    return status;
}

static int write_files(struct out *o, struct kvc_error *e) {
    uint8_t *page = kvc_alloc(o->layout.bytes, 1);
    int status = page ? write_config(o, e) : kvc_fail_memory(e, "a page");
    for (uint64_t i = 0; i < o->files && !status; i++)
        status = vllm_blocks_write_write_file(o, i, page, e);
    free(page);
    return status;
}

int kvc_vllm_blocks_write(const struct kvc_cache *c, const struct kvc_export_options *options,
                          const struct kvc_member_sink *to, struct kvc_error *e) {
    const struct kvc_option_value *v = options->value;
    const char *model = v[MODEL].text ? v[MODEL].text : c->meta.facts.model;
    struct out o = {.to = to};
    if (kvc_uniform_open(&o.cache, c, options, kvc_vllm_blocks_keeps, "vllm-blocks", e)) return -1;
    int status = vllm_blocks_write_take_shape(&o, v[SHAPE].text, e);
    if (!status) status = take_pages(&o, v, e);
    if (!status) status = take_hashes(&o, v[BLOCK].list, e);
    if (!status) status = make_config(&o, v[NAME].text, model, e);
    if (!status) status = name_folder(&o, model, e);
    if (!status) status = write_files(&o, e);
    free(o.folder);
    json_decref(o.config);
    kvc_uniform_close(&o.cache);
    return status;
}
