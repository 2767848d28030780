/* vllm.c: reads the folders of vLLM's ExampleConnector: a safetensors file for each layer,
 * with K and V in one array. Not for other files of vLLM.
 *
 * An array is a region of the source in which K and V are places. The array of a CPU is a region of
 * many places (see ENGINES.md). */
#include "formats/engines/vllm.h"

#include "codecs/memory.h"
#include "formats/cache/keys.h"
#include "formats/cache/mapped.h"
#include "formats/engines/geometry.h"
#include "formats/engines/import.h"
#include "formats/io/printable.h"
#include "formats/io/safetensors_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANK = 4 };

/* The array of one layer. */
struct array {
    size_t member;
    uint32_t layer; /* number in the model */
    uint32_t at;    /* number of the layer in the cache */
    const struct kvc_dtype_info *info;
    uint64_t rank, dim[MAX_RANK];
    uint64_t begin, size; /* in the file, bytes */
    /* set with the shape: of K and of V each, and where they lie in the array */
    uint64_t tokens, heads, channels;
    struct kvc_geometry layout;
};

struct folder {
    const struct kvc_bundle *b;
    struct array *array; /* in the order of the members */
    size_t n;
    enum kvc_vllm_shape shape;
    uint64_t cpu_block; /* tokens of a block of a CPU; 0: not of a CPU */
    int copies;         /* 1: K and V of a CPU's blocks have no constant strides, and are copied */
    int layers_known;
    /* Of the metadata that kvc writes: */
    enum kvc_vllm_shape said; /* KVC_VLLM_SHAPES: nothing is said */
    uint32_t said_heads;
    enum kvc_pairing said_pairing;
};

static const char *vllm_name_of(const struct folder *f, const struct array *a) {
    return f->b->is_file ? f->b->name : f->b->member[a->member].name;
}

/* Writes "BF16 [16,3,128]" for messages. */
static const char *vllm_describe(const struct array *a, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "%s [",
                                   kvc_safetensors_type_of((int)a->info->dtype)->name);
    for (uint64_t i = 0; i < a->rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%" PRIu64, i ? "," : "", a->dim[i]);
    if (used < size) snprintf(text + used, size - used, "]");
    return text;
}

/* --- headers --- */

static uint32_t number_of(const struct kvc_safetensors *header, const char *key) {
    const char *text = kvc_safetensors_text(header, key);
    if (!text || strlen(text) > KVC_VLLM_DIGITS || text[strspn(text, "0123456789")]) return 0;
    return (uint32_t)strtoul(text, NULL, 10);
}

static void read_metadata(struct folder *f, const struct kvc_safetensors *header) {
    const char *shape = kvc_safetensors_text(header, KVC_VLLM_KEY_SHAPE);
    const char *pairing = kvc_safetensors_text(header, KVC_VLLM_KEY_PAIRING);
    f->said = shape ? kvc_vllm_shape_of(shape) : KVC_VLLM_SHAPES;
    f->said_heads = number_of(header, KVC_VLLM_KEY_HEADS);
    if (!f->cpu_block) f->cpu_block = number_of(header, KVC_VLLM_KEY_CPU_BLOCK);
    if (pairing) f->said_pairing = kvc_pairing_parse(pairing);
}

static int take_array(struct array *a, const struct kvc_safetensors *header, struct kvc_error *e) {
    const struct kvc_safetensors_tensor *t = header->tensor;
    char shown[96];
    if (header->n != 1 || strcmp(t->name, KVC_VLLM_ARRAY) != 0)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "holds %zu arrays%s%s%s; the file of a layer holds one, " KVC_VLLM_ARRAY
                        ", with K and V",
                        header->n, header->n ? ", the first named '" : "",
                        header->n ? kvc_name_show(t->name, shown, sizeof shown) : "",
                        header->n ? "'" : "");
    if (t->type->dtype < 0)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "caches have no values of type %s", t->dtype);
    if (t->rank < 2 || t->rank > MAX_RANK)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "the array has %" PRIu64 " dimensions; those of vLLM have 2 to 4", t->rank);
    a->info = kvc_dtype_info((unsigned)t->type->dtype);
    a->rank = t->rank;
    memcpy(a->dim, t->dim, (size_t)t->rank * sizeof *a->dim);
    a->begin = header->data_at + t->begin;
    a->size = t->end - t->begin;
    return 0;
}

static const char *const suffixes[] = {".safetensors", NULL};

static int read_member(struct folder *f, size_t i, struct kvc_error *e) {
    const char *name = f->b->is_file ? NULL : f->b->member[i].name;
    struct array *a = &f->array[f->n];
    struct kvc_safetensors header;
    if (!kvc_member_is_read(f->b, i, suffixes)) return 0;
    const struct kvc_input *in = kvc_bundle_open(f->b, i, e);
    if (!in) return -1;
    if (kvc_safetensors_read_input(&header, in, KVC_SAFETENSORS_COVERED, e))
        return kvc_member_failed(f->b, i, e);
    if (!f->n) read_metadata(f, &header);
    a->member = i;
    int status = take_array(a, &header, e);
    kvc_safetensors_free(&header);
    if (!status && !kvc_vllm_layer(name ? name : f->b->name, &a->layer)) {
        f->layers_known = 0;
        if (name)
            status = kvc_fail(e, KVC_ERR_UNSUPPORTED,
                              "the name has no number of a layer between dots, as in "
                              "model.layers.0.self_attn.attn.safetensors");
    }
    f->n++;
    return status ? kvc_member_failed(f->b, i, e) : 0;
}

/* --- shapes --- */

/* Returns a bit for each shape that an array may have. */
static unsigned possible(const struct array *a) {
    unsigned shapes = 0;
    if (a->rank == 2) shapes |= 1u << KVC_VLLM_LATENT;
    if (a->rank == 3 && a->dim[2] % 2 == 0) shapes |= 1u << KVC_VLLM_PACKED;
    if (a->rank == 3 && a->dim[0] == 2) shapes |= 1u << KVC_VLLM_ROWS;
    if (a->rank == 4 && a->dim[1] == 2) shapes |= 1u << KVC_VLLM_SPLIT;
    return shapes;
}

static int fail_two_readings(const struct array *a, struct kvc_error *e) {
    char what[128];
    return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                    "an array %s has two readings: %" PRIu64
                    " tokens, K before V (vLLM before 2026: vllm:shape=%s), or 2 tokens of %" PRIu64
                    " heads with %" PRIu64 " channels (vllm:shape=%s); say which",
                    vllm_describe(a, what, sizeof what), a->dim[1],
                    kvc_vllm_shape_name[KVC_VLLM_ROWS], a->dim[1], a->dim[2] / 2,
                    kvc_vllm_shape_name[KVC_VLLM_PACKED]);
}

static int choose_shape(struct folder *f, const char *told, struct kvc_error *e) {
    unsigned shapes = (1u << KVC_VLLM_SHAPES) - 1;
    char what[128];
    f->shape = told ? kvc_vllm_shape_of(told) : f->said;
    if (told && f->shape == KVC_VLLM_SHAPES)
        return kvc_fail(e, KVC_ERR_USAGE, "vllm: shape=%s is none of T-H-2D, T-2-H-D, 2-T-HD, T-C",
                        told);
    if (f->cpu_block && f->shape != KVC_VLLM_PACKED && f->shape != KVC_VLLM_SHAPES)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "vllm: arrays of a CPU (cpu-block) have the shape T-H-2D, not %s",
                        told ? told : "another");
    if (f->cpu_block) f->shape = KVC_VLLM_PACKED;
    for (size_t i = 0; i < f->n; i++) {
        const struct array *a = &f->array[i];
        const unsigned own = possible(a);
        if (!own || (f->shape != KVC_VLLM_SHAPES && !(own & 1u << f->shape))) {
            kvc_fail(
                e, KVC_ERR_UNSUPPORTED, "the array is %s, %s%s",
                vllm_describe(a, what, sizeof what),
                own ? "which cannot be "
                    : "which no version of vLLM writes: they are T-H-2D, T-2-H-D, 2-T-HD and T-C",
                own ? kvc_vllm_shape_name[f->shape] : "");
            return kvc_member_failed(f->b, a->member, e);
        }
        if (!(shapes &= own)) {
            kvc_fail(e, KVC_ERR_DAMAGED,
                     "the array is %s, which is no shape of the arrays before it",
                     vllm_describe(a, what, sizeof what));
            return kvc_member_failed(f->b, a->member, e);
        }
    }
    if (f->shape != KVC_VLLM_SHAPES) return 0;
    if (shapes & (shapes - 1)) return fail_two_readings(f->array, e);
    for (f->shape = 0; !(shapes & 1u << f->shape);) f->shape++;
    return 0;
}

/* Orders of the axes of one layer's array (geometry.h). */
static const char *const orders[KVC_VLLM_SHAPES] = {[KVC_VLLM_PACKED] = "lthcd",
                                                    [KVC_VLLM_SPLIT] = "ltchd",
                                                    [KVC_VLLM_ROWS] = "lcthd",
                                                    [KVC_VLLM_LATENT] = "lcthd"};

static int measure(struct folder *f, struct array *a, struct kvc_error *e) {
    const uint64_t *dim = a->dim;
    const int latent = f->shape == KVC_VLLM_LATENT;
    char what[128];
    a->tokens = dim[f->shape == KVC_VLLM_ROWS];
    a->heads = f->shape == KVC_VLLM_PACKED ? dim[1] : f->shape == KVC_VLLM_SPLIT ? dim[2] : 1;
    a->channels = latent ? dim[1] : f->shape == KVC_VLLM_PACKED ? dim[2] / 2 : dim[a->rank - 1];
    const struct kvc_shape shape = {a->info->dtype, a->tokens, a->heads, a->channels};
    vllm_describe(a, what, sizeof what);
    if (!a->tokens)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "the array is %s, so the folder holds no tokens: vLLM saves whole blocks, "
                        "and the prompt was shorter",
                        what);
    if (!kvc_shape_check(&shape) || a->tokens > KVC_MAX_CELLS)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "the array is %s: no heads or channels, or more than kvc handles", what);
    if (a->tokens != f->array[0].tokens)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "the array is %s, which is %" PRIu64 " tokens, but %s has %" PRIu64, what,
                        a->tokens, vllm_name_of(f, &f->array[0]), f->array[0].tokens);
    if (f->cpu_block && a->tokens % f->cpu_block)
        return kvc_fail(
            e, KVC_ERR_UNSUPPORTED,
            "the array is %s: %" PRIu64 " tokens are no whole blocks of %" PRIu64
            ", and the values of a CPU's block are scattered over all of the block's tokens",
            what, a->tokens, f->cpu_block);
    if (f->cpu_block % (2 * a->channels)) f->copies = 1;
    a->layout = kvc_geometry_of(a->info, latent, 1, a->tokens, a->heads, a->channels);
    kvc_geometry_order(&a->layout, orders[f->shape]); /* the array has bytes for all of it */
    return 0;
}

/* --- layers --- */

static int by_layer(const void *pa, const void *pb) {
    const struct array *a = *(const struct array *const *)pa, *b = *(const struct array *const *)pb;
    if (a->layer != b->layer) return a->layer < b->layer ? -1 : 1;
    return a->member < b->member ? -1 : a->member > b->member;
}

static int check_layers(const struct folder *f, struct array *const *sorted, int gaps,
                        struct kvc_error *e) {
    for (size_t i = 1; i < f->n; i++) {
        const struct array *a = sorted[i - 1], *b = sorted[i];
        if (a->layer == b->layer)
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "%s and %s both are layer %" PRIu32
                            "; a cache is the folder of one prompt, of one model",
                            vllm_name_of(f, a), vllm_name_of(f, b), a->layer);
        if (b->layer != a->layer + 1 && !gaps)
            return kvc_fail(
                e, KVC_ERR_DAMAGED,
                "layer %" PRIu32 " is missing: the folder holds layers %" PRIu32 " to %" PRIu32
                ". Copy the whole folder; if the model has no K and V there, say so (vllm:gaps)",
                a->layer + 1, sorted[0]->layer, sorted[f->n - 1]->layer);
    }
    return 0;
}

static int vllm_add_layers(struct kvc_cache *c, const struct folder *f, int gaps,
                           struct kvc_error *e) {
    if (kvc_import_cells(c, f->array[0].tokens, 0, e)) return -1;
    struct array **sorted = kvc_alloc(f->n, sizeof(struct array *));
    if (!sorted) return kvc_fail_memory(e, "layers");
    for (size_t i = 0; i < f->n; i++) sorted[i] = &f->array[i];
    qsort(sorted, f->n, sizeof(struct array *), by_layer);
    int status = check_layers(f, sorted, gaps, e);
    for (size_t i = 0; i < f->n && !status; i++) {
        sorted[i]->at = c->n_layers;
        status = kvc_import_layers(c, sorted[i]->layer, 1, f->shape == KVC_VLLM_LATENT, e);
    }
    free(sorted);
    return status;
}

/* --- places --- */

/* Adds the region of a CPU's blocks (vllm.h) of a multiple of 2D tokens: K has constant strides in
 * runs of 2D tokens, V in pairs. */
static int add_cpu_region(struct kvc_cache *c, const struct array *a, const struct kvc_input *in,
                          uint64_t block, struct kvc_error *e) {
    const uint64_t value = a->info->size, row = 2 * a->channels, token = a->heads * row * value;
    const uint64_t runs = a->tokens / row, n = runs + a->tokens / 2;
    struct kvc_place *place = kvc_alloc(n, sizeof *place);
    int status = place ? 0 : kvc_fail_memory(e, "places");
    for (uint64_t i = 0; i < n && !status; i++) {
        const int is_v = i >= runs;
        const uint64_t cell = is_v ? 2 * (i - runs) : i * row, in_block = cell % block;
        struct kvc_place p = {.tensor = c->layer[a->at].tensor[is_v], .cell = cell};
        if (is_v) {
            p.n = 2;
            p.offset = (cell - in_block + block / 2 + in_block / 2) * token;
            p.strides = (struct kvc_strides){a->channels * value, row * value, value};
        } else {
            p.n = row;
            p.offset = (cell - in_block + in_block / row) * token;
            p.strides = (struct kvc_strides){value, row * value, block / row * token};
        }
        place[i] = p;
        p.offset += a->begin;
        status = kvc_cache_map_place(c, in, &p, e);
    }
    if (!status) status = kvc_cache_extent_region(c, in, a->begin, a->size, place, n, e);
    free(place);
    return status;
}

static int add_tensors(struct kvc_cache *c, const struct folder *f, const struct array *a,
                       const struct kvc_input *in, struct kvc_error *e) {
    const struct kvc_geometry *g = &a->layout;
    if (kvc_geometry_tensors(c, g, a->channels, a->at, a->tokens, e)) return -1;
    if (f->cpu_block) return add_cpu_region(c, a, in, f->cpu_block, e);
    if (kvc_geometry_map(c, g, a->at, 0, in, a->begin, e)) return -1;
    return kvc_geometry_extents(c, g, a->at, 0, in, a->begin, e);
}

/* --- copies --- */

/* Copies K and V out of the blocks of a CPU, from the bytes of the array. */
static void unscramble(const struct folder *f, const struct array *a, const uint8_t *bytes,
                       uint8_t *k, uint8_t *v) {
    const uint64_t n = f->cpu_block, dim = a->channels, heads = a->heads;
    const size_t value = a->info->size;
    for (uint64_t token = 0; token < a->tokens; token++) {
        const uint8_t *block = bytes + (token - token % n) * heads * 2 * dim * value;
        for (uint64_t head = 0; head < heads; head++)
            for (uint64_t d = 0; d < dim; d++, k += value, v += value) {
                const uint64_t at_k = kvc_vllm_cpu_value(d * n + token % n, head, heads, dim);
                const uint64_t at_v = kvc_vllm_cpu_value((n + token % n) * dim + d, head, heads,
                                                         dim);
                memcpy(k, block + at_k * value, value);
                memcpy(v, block + at_v * value, value);
            }
    }
}

static void free_copies(void *owner) {
    uint8_t **copy = owner;
    for (size_t i = 0; copy[i]; i++) free(copy[i]);
    free(copy);
}

/* Adds tensors that are copies. Such a cache has no extents. */
static int add_copies(struct kvc_cache *c, const struct folder *f, uint8_t **copy,
                      struct kvc_error *e) {
    for (size_t i = 0; i < f->n; i++) {
        const struct array *a = &f->array[i];
        const uint32_t *tensor = c->layer[a->at].tensor;
        const struct kvc_input *in = kvc_bundle_open(f->b, a->member, e);
        uint8_t *k = in ? copy[i] = kvc_alloc(a->size, 1) : NULL;
        if (!k) return in ? kvc_fail_memory(e, "a layer") : -1;
        if (kvc_input_pin(in, a->begin, a->size, e)) return kvc_member_failed(f->b, a->member, e);
        unscramble(f, a, in->data + a->begin, k, k + a->size / 2);
        kvc_input_unpin(in, a->begin, a->size);
        if (kvc_geometry_tensors(c, &a->layout, a->channels, a->at, a->tokens, e) ||
            kvc_cache_map_memory(c, tensor[0], k, e) ||
            kvc_cache_map_memory(c, tensor[1], k + a->size / 2, e))
            return -1;
    }
    return 0;
}

static int vllm_add_members(struct kvc_cache *c, const struct folder *f, struct kvc_error *e) {
    const struct array *a = f->array, *end = a + f->n;
    for (size_t i = 0; i < f->b->n; i++) {
        if (a == end || a->member != i) {
            if (kvc_member_literal(c, f->b, i, e)) return -1;
            continue;
        }
        const struct kvc_input *in = kvc_member_begin(c, f->b, i, e);
        if (!in) return -1;
        if (kvc_cache_extent_literal(c, in, 0, a->begin, e) || add_tensors(c, f, a, in, e))
            return kvc_member_failed(f->b, i, e);
        a++;
    }
    return 0;
}

/* --- the cache --- */

static int add_metadata(struct kvc_cache *c, const struct folder *f,
                        const struct kvc_import_options *o, struct kvc_error *e) {
    const int latent = f->shape == KVC_VLLM_LATENT;
    const enum kvc_pairing pairing = f->said_pairing ? f->said_pairing
                                     : latent        ? KVC_PAIRING_UNKNOWN
                                                     : KVC_PAIRING_HALVES;
    const int assumed = !f->said_pairing && !latent;
    if (kvc_import_meta(c, "vllm", f->b, o, pairing, assumed, e) ||
        kvc_meta_set_text(&c->meta, KVC_KEY_ROPE_K, "post", e) ||
        kvc_meta_set_bool(&c->meta, KVC_KEY_LAYERS_KNOWN, f->layers_known, e))
        return -1;
    if (f->shape != KVC_VLLM_ROWS) return 0;
    if (kvc_meta_set_bool(&c->meta, KVC_KEY_HEADS_KNOWN, 0, e)) return -1;
    return f->said_heads ? kvc_cache_set_heads(c, f->said_heads, e) : 0;
}

static int read_headers(struct folder *f, struct kvc_error *e) {
    if (!(f->array = kvc_alloc_zeros(f->b->n, sizeof *f->array)))
        return kvc_fail_memory(e, "arrays");
    for (size_t i = 0; i < f->b->n; i++)
        if (read_member(f, i, e)) return -1;
    return f->n ? 0 : kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "no file is named *.safetensors");
}

static int vllm_build(struct kvc_cache *c, struct folder *f, const struct kvc_import_options *o,
                      struct kvc_error *e) {
    if (read_headers(f, e) || choose_shape(f, o->value[KVC_VLLM_SHAPE].text, e)) return -1;
    for (size_t i = 0; i < f->n; i++)
        if (measure(f, &f->array[i], e)) return kvc_member_failed(f->b, f->array[i].member, e);
    uint8_t **copy = f->copies ? kvc_alloc_zeros(f->n + 1, sizeof *copy) : NULL;
    if (f->copies && !copy) return kvc_fail_memory(e, "layers");
    if (kvc_cache_map(c, f->copies ? free_copies : NULL, copy, e)) {
        free(copy);
        return -1;
    }
    if (vllm_add_layers(c, f, o->value[KVC_VLLM_GAPS].count != 0, e) ||
        (f->copies ? add_copies(c, f, copy, e) : vllm_add_members(c, f, e)))
        return -1;
    return add_metadata(c, f, o, e) ? -1 : kvc_cache_finish(c, e);
}

static struct kvc_cache *vllm_import(const struct kvc_bundle *b, const struct kvc_import_options *o,
                                     struct kvc_error *e) {
    struct folder f = {.b = b,
                       .cpu_block = o->value[KVC_VLLM_CPU_BLOCK].count,
                       .layers_known = 1,
                       .said = KVC_VLLM_SHAPES};
    struct kvc_cache *c = kvc_cache_new(e);
    c = kvc_import_end(c, c ? vllm_build(c, &f, o, e) : -1);
    free(f.array);
    return c;
}

/* --- the format --- */

#define MAX_HEADER 65536 /* bytes that probing reads; a header of vLLM has about 100 */

static int is_layer(const struct kvc_input *in) {
    struct kvc_safetensors header;
    uint64_t n;
    if (!kvc_member_header(in, MAX_HEADER, NULL, &n) ||
        kvc_safetensors_read_input(&header, in, 0, NULL))
        return 0;
    const int found = header.n == 1 && strcmp(header.tensor->name, KVC_VLLM_ARRAY) == 0;
    kvc_safetensors_free(&header);
    return found;
}

/* Looks at the first file that may be one of a layer. */
static int vllm_probe(const struct kvc_bundle *b, char *why, size_t size) {
    for (size_t i = 0; i < b->n; i++) {
        if (!kvc_member_is_read(b, i, suffixes)) continue;
        const struct kvc_input *in = kvc_bundle_open(b, i, NULL);
        if (in && is_layer(in)) return 1;
        break;
    }
    snprintf(why, size, "no safetensors file of one array " KVC_VLLM_ARRAY);
    return 0;
}

static const struct kvc_format_option import_options[] = {
    [KVC_VLLM_SHAPE] = KVC_TEXT_OPTION("shape", "T-H-2D"),
    [KVC_VLLM_CPU_BLOCK] = KVC_COUNT_OPTION("cpu-block", 1, 65536, "N"),
    [KVC_VLLM_GAPS] = {.key = "gaps", .kind = KVC_OPTION_FLAG},
    {.key = NULL},
};

static const struct kvc_format_option export_options[] = {
    [KVC_VLLM_TO_SHAPE] = KVC_TEXT_OPTION("shape", "T-H-2D"),
    [KVC_VLLM_TO_NAME] = {.key = "name",
                          .kind = KVC_OPTION_TEXT,
                          .value = "model.layers.{i}.self_attn.attn"},
    [KVC_VLLM_TO_CPU_BLOCK] = KVC_COUNT_OPTION("cpu-block", 1, 65536, "N"),
    {.key = NULL},
};

const struct kvc_format kvc_format_vllm = {
    .name = "vllm",
    .summary = "folders of vLLM's ExampleConnector, a file for each layer",
    .suffix = ".vllm",
    .takes_members = 1,
    .import_options = import_options,
    .export_options = export_options,
    .no_source = "the order in which a CPU of vLLM keeps values is not recorded for blocks of this "
                 "size (vllm:cpu-block=N writes it)",
    .lacks = KVC_LACKS_TOKENS | KVC_LACKS_POSITIONS | KVC_LACKS_COORDINATES | KVC_LACKS_COMPANIONS |
             KVC_LACKS_SNAPSHOTS | KVC_LACKS_METADATA | KVC_LACKS_UNKNOWNS,
    .keeps = kvc_vllm_keeps,
    .probe = vllm_probe,
    .import = vllm_import,
    .export_members = kvc_vllm_write,
};
