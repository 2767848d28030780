/* vllm_blocks.c: reads blocks that vLLM's OffloadingConnector wrote to a folder (its tier `fs`),
 * with the canonical layout, or the pages of one worker out of files without it. Not for writing
 * (vllm_blocks_write.c).
 *
 * A file has the tokens of one chunk and no header: for each layer the pages of the chunk's blocks,
 * then padding. config.json says dtype, layers and tokens of a page; the options say the rest. Each
 * file is a region with a place for each page of K and V. */
#include "formats/cache/format.h"

#include "codecs/memory.h"
#include "formats/cache/keys.h"
#include "formats/cache/mapped.h"
#include "formats/cache/shards.h"
#include "formats/engines/import.h"
#include "formats/engines/vllm.h"
#include "formats/engines/vllm_blocks.h"
#include "formats/io/json_text.h"
#include "formats/io/member_name.h"
#include "formats/io/printable.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    MAX_LAYERS = 65536,
    MAX_NUMBER = 1000000, /* of a layer: KVC_VLLM_DIGITS */
    MAX_CONFIG = 1 << 24  /* bytes */
};

/* Options, by position. */
enum { SHAPE, HEADS, CHANNELS, DTYPE, CHUNK, BLOCK, IN_ORDER, WORKER };

static const struct kvc_format_option import_options[] = {
    [SHAPE] = KVC_TEXT_OPTION("shape", "T-H-2D"),
    [HEADS] = KVC_COUNT_OPTION("heads", 1, 65536, "H"),
    [CHANNELS] = KVC_COUNT_OPTION("dim", 1, 1 << 24, "D"),
    [DTYPE] = KVC_TEXT_OPTION("dtype", "bf16"),
    [CHUNK] = KVC_COUNT_OPTION("chunk", 1, KVC_VLLM_BLOCKS_TOKENS, "TOKENS"),
    [BLOCK] = {.key = "block", .kind = KVC_OPTION_LIST, .value = "HASH"},
    [IN_ORDER] = {.key = "in-order", .kind = KVC_OPTION_FLAG},
    [WORKER] = KVC_TEXT_OPTION("worker", "R/N"),
    {.key = NULL},
};

struct blocks {
    const struct kvc_bundle *b;
    size_t config;  /* member */
    size_t *member; /* the files in the order of their tokens */
    size_t n;
    json_t *root;
    const json_t *layers; /* their names */
    const struct kvc_vllm_page *shape;
    const struct kvc_dtype_info *info;
    uint64_t page_tokens, pages; /* pages of a layer in a file */
    uint64_t heads, channels;
    struct kvc_geometry page;
    /* of `workers`, whose pages follow each other, the one that is read; canonical: 0 of 1 */
    uint64_t worker, workers;
};

/* Finds a dtype by vLLM's name or by kvc's; NULL: there is none. */
static const struct kvc_dtype_info *dtype_of(const char *name) {
    const struct kvc_dtype_info *info = kvc_import_dtype(name);
    return info && kvc_import_dtype_name(info->dtype) ? info : kvc_dtype_by_name(name);
}

/* --- config.json --- */

/* Finds the config.json of vLLM, which names cache groups. Returns its parsed root, or NULL. */
static json_t *find_config(const struct kvc_bundle *b, size_t *member) {
    for (size_t i = 0; i < b->n && !b->is_file; i++) {
        if (strcmp(kvc_base_name(b->member[i].name), "config.json") != 0) continue;
        const struct kvc_input *in = kvc_bundle_open(b, i, NULL);
        if (!in || in->size > MAX_CONFIG || kvc_input_pin(in, 0, in->size, NULL)) continue;
        json_t *root = kvc_json_load(in->data, (size_t)in->size, JSON_REJECT_DUPLICATES, NULL);
        kvc_input_unpin(in, 0, in->size);
        *member = i;
        if (json_is_array(json_object_get(root, "kv_cache_groups"))) return root;
        json_decref(root);
    }
    return NULL;
}

static int vllm_blocks_probe(const struct kvc_bundle *b, char *why, size_t size) {
    size_t member;
    json_t *root = find_config(b, &member);
    json_decref(root);
    if (!root) snprintf(why, size, "no config.json with kv_cache_groups");
    return root != NULL;
}

static int take_worker(struct blocks *k, const char *text, struct kvc_error *e) {
    unsigned worker = 0, workers = 1;
    int end = 0;
    if (text &&
        (strspn(text, "0123456789/") != strlen(text) ||
         sscanf(text, "%5u/%5u%n", &worker, &workers, &end) != 2 || text[end] || worker >= workers))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "vllm-blocks: worker=%s is not R/N, with a rank R from 0 to N - 1", text);
    k->worker = worker;
    k->workers = workers;
    return 0;
}

static int check_layout(const struct blocks *k, int has_worker, struct kvc_error *e) {
    const char *format = json_string_value(json_object_get(k->root, "canonical_format"));
    char shown[64];
    if (json_object_get(k->root, "storage_format"))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "config.json: the blocks are stored encoded (storage_format)");
    if (!format)
        return has_worker ? 0
                          : kvc_fail(e, KVC_ERR_UNSUPPORTED,
                                     "config.json has no canonical_format: the files have the "
                                     "pages of the workers one after another. Say how many there "
                                     "were, and which is to be read: vllm-blocks:worker=R/N, or "
                                     "worker=0/1; kvc-pack --join=heads joins them");
    if (strcmp(format, "v1-nhd") != 0 && strcmp(format, "v1-hnd") != 0)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "config.json: canonical_format '%s' is neither v1-nhd nor v1-hnd",
                        kvc_name_show(format, shown, sizeof shown));
    if (has_worker)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "vllm-blocks: worker= is for blocks without a canonical_format; those of "
                        "this config.json have all heads");
    if (json_is_false(json_object_get(k->root, "parallel_agnostic")))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "config.json: parallel_agnostic is false: some layers have pages of single "
                        "workers, whose layout no file says");
    return 0;
}

static int vllm_blocks_take_shape(struct blocks *k, const struct kvc_import_options *o,
                                  struct kvc_error *e) {
    const struct kvc_option_value *v = o->value;
    const char *format = json_string_value(json_object_get(k->root, "canonical_format"));
    const int heads_first = format && kvc_name_ends_in(format, "hnd");
    const uint64_t heads = v[HEADS].count ? v[HEADS].count : o->kv_heads;
    if (v[SHAPE].text && !(k->shape = kvc_vllm_page_of(v[SHAPE].text)))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "vllm-blocks: shape=%s is none of T-H-2D, 2-T-H-D, H-T-2D, 2-H-T-D, T-C",
                        v[SHAPE].text);
    if (!k->shape || !v[CHANNELS].count || (!heads && !k->shape->latent))
        return kvc_fail(
            e, KVC_ERR_USAGE,
            "the blocks do not say the shape of a page: vllm-blocks:shape=%s,heads=H,dim=D, or "
            "shape=%s where K and V lie apart, or shape=T-C,dim=C of latent attention",
            heads_first ? "H-T-2D" : "T-H-2D", heads_first ? "2-H-T-D" : "2-T-H-D");
    if (format && k->shape->family && !kvc_name_ends_in(format, k->shape->family))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "vllm-blocks: shape=%s is not one of the canonical format %s",
                        k->shape->name, format);
    if (!k->shape->latent && heads % k->workers)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "vllm-blocks: %" PRIu64 " workers do not divide the %" PRIu64
                        " KV heads of the model",
                        k->workers, heads);
    k->heads = k->shape->latent ? 1 : heads / k->workers;
    k->channels = v[CHANNELS].count;
    return 0;
}

static int read_config(struct blocks *k, const struct kvc_import_options *o, struct kvc_error *e) {
    char shown[64];
    if (!(k->root = find_config(k->b, &k->config)))
        return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT,
                        "there is no config.json with kv_cache_groups: a cache is that file and "
                        "the .bin files");
    if (take_worker(k, o->value[WORKER].text, e) ||
        check_layout(k, o->value[WORKER].text != NULL, e))
        return -1;
    const json_t *groups = json_object_get(k->root, "kv_cache_groups"),
                 *group = json_array_get(groups, 0);
    const json_int_t tokens = json_integer_value(json_object_get(group, "tokens_per_block"));
    if (json_array_size(groups) != 1)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "config.json has %zu cache groups, whose layers share memory; kvc reads "
                        "models of one group",
                        json_array_size(groups));
    k->layers = json_object_get(group, "layer_names");
    if (tokens < 1 || tokens > KVC_VLLM_BLOCKS_TOKENS || !json_array_size(k->layers) ||
        json_array_size(k->layers) > MAX_LAYERS)
        return kvc_fail(
            e, KVC_ERR_DAMAGED,
            "config.json: the group has no tokens_per_block or no layer_names, or too many");
    k->page_tokens = (uint64_t)tokens;
    const char *told = o->value[DTYPE].text,
               *dtype = told ? told : json_string_value(json_object_get(k->root, "dtype"));
    if (!(k->info = dtype ? dtype_of(dtype) : NULL) || k->info->block > 1)
        return kvc_fail(e, told ? KVC_ERR_USAGE : KVC_ERR_UNSUPPORTED,
                        "%s '%s' is no dtype that kvc knows: give vllm-blocks:dtype=",
                        told ? "vllm-blocks: dtype" : "config.json: dtype",
                        dtype ? kvc_name_show(dtype, shown, sizeof shown) : "");
    return vllm_blocks_take_shape(k, o, e);
}

/* --- files --- */

static int add_hash(struct blocks *k, const char *hash, struct kvc_error *e) {
    const size_t before = k->n, length = strlen(hash);
    for (size_t i = 0; i < k->b->n; i++) {
        const char *name = kvc_base_name(k->b->member[i].name);
        if (!kvc_name_ends_in(name, ".bin") || strncasecmp(name, hash, length) != 0) continue;
        for (size_t x = 0; x < k->n; x++)
            if (k->member[x] == i)
                return kvc_fail(e, KVC_ERR_USAGE, "vllm-blocks: block=%s and another mean one file",
                                hash);
        if (k->n > before)
            return kvc_fail(e, KVC_ERR_USAGE, "vllm-blocks: block=%s begins the names of two files",
                            hash);
        k->member[k->n++] = i;
    }
    return k->n > before ? 0
                         : kvc_fail(e, KVC_ERR_USAGE,
                                    "vllm-blocks: block=%s begins the name of no .bin file", hash);
}

/* Orders the files by the options. One file needs no order. */
static int find_files(struct blocks *k, const struct kvc_option_value *v, struct kvc_error *e) {
    if (!(k->member = kvc_alloc(k->b->n, sizeof *k->member))) return kvc_fail_memory(e, "files");
    for (const char *const *hash = v[BLOCK].list; *hash; hash++)
        if (add_hash(k, *hash, e)) return -1;
    if (k->n) return 0;
    for (size_t i = 0; i < k->b->n; i++)
        if (kvc_name_ends_in(k->b->member[i].name, ".bin")) k->member[k->n++] = i;
    if (!k->n) return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "there are no .bin files");
    if (k->n > 1 && !v[IN_ORDER].count)
        return kvc_fail(
            e, KVC_ERR_UNSUPPORTED,
            "the %zu .bin files are named by hashes, which do not tell the order of the tokens: "
            "name them in order (vllm-blocks:block=HASH,block=HASH,...), or make a tar archive "
            "with the files in order and say so (vllm-blocks:in-order)",
            k->n);
    return 0;
}

/* Finds the number of pages of a layer in a file, from the size of the files or from the option. */
static int count_pages(struct blocks *k, uint64_t chunk, struct kvc_error *e) {
    const uint64_t size = k->b->member[k->member[0]].size, layers = json_array_size(k->layers);
    const struct kvc_shape shape = {k->info->dtype, k->page_tokens, k->heads, k->channels};
    uint64_t all;
    if (!kvc_shape_check(&shape) ||
        kvc_vllm_page_geometry(k->shape, k->info, k->page_tokens, k->heads, k->channels,
                               &k->page) ||
        __builtin_mul_overflow(k->page.bytes, layers * k->workers, &all))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "vllm-blocks: a page of this shape is larger than kvc handles");
    if (chunk % k->page_tokens)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "vllm-blocks: chunk=%" PRIu64 " is no multiple of the %" PRIu64
                        " tokens of a page",
                        chunk, k->page_tokens);
    const json_int_t told = json_integer_value(json_object_get(k->root, "blocks_per_file"));
    k->pages = chunk ? chunk / k->page_tokens : told > 0 ? (uint64_t)told : size / all;
    const uint64_t rest = k->pages > size / all ? 0 : size - k->pages * all;
    if (!k->pages || k->pages > size / all)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "a file has %" PRIu64 " bytes, and %" PRIu64 " pages of %" PRIu64
                        " layers with %" PRIu64 " tokens need %" PRIu64
                        ": heads, dim, dtype or chunk are others",
                        size, k->pages ? k->pages : 1, layers, k->page_tokens,
                        k->pages ? k->pages * all : all);
    const int in_doubt = told <= 0 &&
                         (all < KVC_VLLM_BLOCKS_PADDING || size % KVC_VLLM_BLOCKS_PADDING);
    if (!chunk && rest && (rest >= KVC_VLLM_BLOCKS_PADDING || in_doubt))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "a file has %" PRIu64 " bytes, which are not some pages of %" PRIu64
                        " layers (%" PRIu64
                        " bytes) and the padding to a multiple of %d: heads, dim or dtype are "
                        "others, or give vllm-blocks:chunk=TOKENS",
                        size, layers, all, KVC_VLLM_BLOCKS_PADDING);
    return 0;
}

static int check_files(const struct blocks *k, struct kvc_error *e) {
    const uint64_t size = k->b->member[k->member[0]].size;
    for (size_t i = 0; i < k->n; i++) {
        const struct kvc_member *m = &k->b->member[k->member[i]];
        const struct kvc_input *in = kvc_bundle_open(k->b, k->member[i], e);
        if (!in) return -1;
        if (in->size != size)
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "%s has %" PRIu64 " bytes, and %s has %" PRIu64
                            ": a file is cut short, or of another model",
                            m->name, in->size, k->b->member[k->member[0]].name, size);
    }
    return 0;
}

/* --- the model --- */

/* Adds the layers in the order of their pages. *known is 0 where a name has no number. */
static int vllm_blocks_add_layers(struct kvc_cache *c, const struct blocks *k, int *known,
                                  struct kvc_error *e) {
    const size_t layers = json_array_size(k->layers);
    uint64_t tokens;
    char *seen = NULL;
    if (__builtin_mul_overflow(k->n * k->page_tokens, k->pages, &tokens) || tokens > KVC_MAX_CELLS)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "more tokens than kvc handles (2^31)");
    int status = kvc_import_cells(c, tokens, 0, e);
    if (!status && !(seen = kvc_alloc_zeros(MAX_NUMBER, 1))) status = kvc_fail_memory(e, "layers");
    *known = 1;
    for (size_t i = 0; i < layers && *known; i++) {
        uint32_t number;
        const char *name = json_string_value(json_array_get(k->layers, i));
        *known = name && kvc_vllm_layer(name, &number);
    }
    for (size_t i = 0; i < layers && !status; i++) {
        uint32_t number = (uint32_t)i;
        const char *name = json_string_value(json_array_get(k->layers, i));
        if (*known) kvc_vllm_layer(name, &number);
        if (seen[number]++)
            status = kvc_fail(e, KVC_ERR_UNSUPPORTED,
                              "config.json: two caches are of layer %" PRIu32, number);
        else status = kvc_import_layers(c, number, 1, k->shape->latent, e);
    }
    free(seen);
    return status;
}

static int add_tensors(struct kvc_cache *c, const struct blocks *k, struct kvc_error *e) {
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (kvc_geometry_tensors(c, &k->page, k->channels, i, c->part[0].cells.n, e)) return -1;
    return 0;
}

static struct kvc_place place_of(const struct blocks *k, size_t number, uint32_t tensor,
                                 uint64_t page) {
    const uint32_t caches = (uint32_t)k->page.count[KVC_AXIS_CACHE];
    const uint64_t cell = (number * k->pages + page) * k->page_tokens,
                   layer = k->worker * json_array_size(k->layers) + tensor / caches;
    struct kvc_place p = kvc_geometry_place(&k->page, 0, tensor % caches, cell, tensor);
    p.offset += (layer * k->pages + page) * k->page.bytes;
    return p;
}

static int map_files(struct kvc_cache *c, const struct blocks *k, struct kvc_error *e) {
    for (size_t i = 0; i < k->n; i++)
        for (uint32_t t = 0; t < c->n_tensors; t++)
            for (uint64_t page = 0; page < k->pages; page++) {
                const struct kvc_place p = place_of(k, i, t, page);
                if (kvc_cache_map_place(c, k->b->member[k->member[i]].in, &p, e)) return -1;
            }
    return 0;
}

/* Adds the members in their own order. */
static int vllm_blocks_add_members(struct kvc_cache *c, const struct blocks *k,
                                   struct kvc_error *e) {
    const uint64_t n = c->n_tensors * k->pages;
    struct kvc_place *place = kvc_alloc(n, sizeof *place);
    int status = place ? 0 : kvc_fail_memory(e, "places");
    for (size_t i = 0; i < k->b->n && !status; i++) {
        const struct kvc_input *in = kvc_member_begin(c, k->b, i, e);
        size_t number = 0;
        while (number < k->n && k->member[number] != i) number++;
        if (!in) status = -1;
        else if (number == k->n) status = kvc_cache_extent_literal(c, in, 0, in->size, e);
        else {
            for (uint64_t x = 0; x < n; x++)
                place[x] = place_of(k, number, (uint32_t)(x / k->pages), x % k->pages);
            status = kvc_cache_extent_region(c, in, 0, in->size, place, n, e);
        }
    }
    free(place);
    return status;
}

static int vllm_blocks_build(struct kvc_cache *c, struct blocks *k,
                             const struct kvc_import_options *o, struct kvc_error *e) {
    int known;
    if (read_config(k, o, e) || find_files(k, o->value, e) || check_files(k, e) ||
        count_pages(k, o->value[CHUNK].count, e) || vllm_blocks_add_layers(c, k, &known, e) ||
        add_tensors(c, k, e) || map_files(c, k, e) || vllm_blocks_add_members(c, k, e))
        return -1;
    const char *model = json_string_value(json_object_get(k->root, "model_name"));
    if (kvc_import_meta_assumed(c, "vllm-blocks", k->b, o, k->shape->latent, e) ||
        kvc_meta_set_text(&c->meta, KVC_KEY_ROPE_K, "post", e) ||
        kvc_meta_set_bool(&c->meta, KVC_KEY_LAYERS_KNOWN, known, e) ||
        kvc_meta_set_u64(&c->meta, KVC_KEY_PAGE_SIZE, k->page_tokens, e) ||
        (!k->shape->latent && kvc_shard_set_rank(&c->meta, k->worker, k->workers, e)) ||
        (model && kvc_meta_set_text(&c->meta, KVC_KEY_MODEL_NAME, model, e)))
        return -1;
    return kvc_cache_finish(c, e);
}

static struct kvc_cache *vllm_blocks_import(const struct kvc_bundle *b,
                                            const struct kvc_import_options *o,
                                            struct kvc_error *e) {
    struct blocks k = {.b = b};
    struct kvc_cache *c = kvc_import_begin(e);
    c = kvc_import_end(c, c ? vllm_blocks_build(c, &k, o, e) : -1);
    json_decref(k.root);
    free(k.member);
    return c;
}

const struct kvc_format kvc_format_vllm_blocks = {
    .name = "vllm-blocks",
    .summary = "blocks that vLLM offloaded to files",
    .suffix = ".vllm-blocks",
    .takes_members = 1,
    .import_options = import_options,
    .export_options = kvc_vllm_blocks_export_options,
    /* The number of heads counts as geometry, which readers must be given; the names of layers have
       their numbers. */
    .lacks = KVC_LACKS_TOKENS | KVC_LACKS_POSITIONS | KVC_LACKS_COORDINATES | KVC_LACKS_COMPANIONS |
             KVC_LACKS_SNAPSHOTS | KVC_LACKS_FACTS | KVC_LACKS_SCALES | KVC_LACKS_WINDOWS |
             KVC_LACKS_PAIRING | KVC_LACKS_UNKNOWNS,
    .keeps = kvc_vllm_blocks_keeps,
    .probe = vllm_blocks_probe,
    .import = vllm_blocks_import,
    .export_members = kvc_vllm_blocks_write,
};
