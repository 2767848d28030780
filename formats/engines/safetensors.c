/* safetensors.c: KV caches as named tensors in a safetensors file. Not for weights (model.c) or for what the
 * names mean (arrays_read.c).
 *
 *   offset | size | name
 *        0 |    8 | n, little-endian
 *        8 |    n | JSON object: "__metadata__" {text: text}, per tensor "name": {dtype, shape, data_offsets}
 *    8 + n |      | data: offsets count from here; the tensors cover it without holes or overlaps
 */
#include "formats/engines/arrays_write.h"
#include "codecs/memory.h"
#include "formats/io/bytes.h"
#include "formats/cache/format.h"
#include "formats/cache/keys.h"
#include "formats/cache/mapped.h"
#include "formats/engines/arrays_read.h"
#include "formats/cache/view.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_HEADER UINT64_C(100000000) /* as the reference library has it */

static const struct element {
    const char *name;
    unsigned bits;
    int dtype;         /* enum kvc_dtype, or -1 when caches have no such type */
    unsigned int_size; /* as struct kvc_array has it */
} elements[] = {
    {"F32", 32, KVC_F32, 0},
    {"F16", 16, KVC_F16, 0},
    {"BF16", 16, KVC_BF16, 0},
    {"F8_E4M3", 8, KVC_F8E4M3, 0},
    {"F8_E5M2", 8, KVC_F8E5M2, 0},
    {"U8", 8, KVC_U8, 0},
    {"I8", 8, KVC_I8, 0},
    {"I32", 32, -1, 4},
    {"I64", 64, -1, 8},
    {"F64", 64, -1, 0},
    {"U64", 64, -1, 0},
    {"C64", 64, -1, 0},
    {"U32", 32, -1, 0},
    {"U16", 16, -1, 0},
    {"I16", 16, -1, 0},
    {"BOOL", 8, -1, 0},
    {"F8_E8M0", 8, -1, 0},
    {"F8_E4M3FNUZ", 8, -1, 0},
    {"F8_E5M2FNUZ", 8, -1, 0},
    {"F4", 4, -1, 0},
    {"F6_E2M3", 6, -1, 0},
    {"F6_E3M2", 6, -1, 0},
};

static const struct element *element_by_name(const char *name) {
    for (size_t i = 0; i < sizeof elements / sizeof elements[0]; i++)
        if (strcmp(elements[i].name, name) == 0) return &elements[i];
    return NULL;
}

static const char *name_of_dtype(enum kvc_dtype dtype) {
    for (size_t i = 0; i < sizeof elements / sizeof elements[0]; i++)
        if (elements[i].dtype == (int)dtype) return elements[i].name;
    return NULL;
}

/* What both directions know about "__metadata__". Other people's files hold these as text, if at all; what
 * does not parse counts as not recorded. */
enum fact_type { FACT_TEXT, FACT_COUNT, FACT_NUMBER, FACT_TILE, FACT_KNOWN };
static const struct fact {
    const char *name, *key;
    enum fact_type type;
} facts[] = {
    {"model", KVC_KEY_MODEL_NAME, FACT_TEXT},
    {"architecture", KVC_KEY_MODEL_ARCH, FACT_TEXT},
    {"n_layers", KVC_KEY_MODEL_LAYERS, FACT_COUNT},
    {"n_heads", KVC_KEY_MODEL_HEADS, FACT_COUNT},
    {"n_kv_heads", KVC_KEY_MODEL_KV_HEADS, FACT_COUNT},
    {"head_dim", KVC_KEY_MODEL_HEAD_DIM, FACT_COUNT},
    {"hidden", KVC_KEY_HIDDEN_STATES, FACT_TEXT},
    {"k_rope", KVC_KEY_ROPE_K, FACT_TEXT},
    {"rope_type", KVC_KEY_ROPE_TYPE, FACT_TEXT},
    {"rope_theta", KVC_KEY_ROPE_THETA, FACT_NUMBER},
    {"rope_dim", KVC_KEY_ROPE_DIM, FACT_COUNT},
    {"rope_factor", KVC_KEY_ROPE_FACTOR, FACT_NUMBER},
    {"tokens_first", KVC_KEY_TOKENS_FIRST, FACT_COUNT},
    {"hadamard_k", KVC_KEY_HADAMARD_K, FACT_TILE}, /* "unknown", or written unless 0 */
    {"hadamard_v", KVC_KEY_HADAMARD_V, FACT_TILE},
    {"heads_known", KVC_KEY_HEADS_KNOWN, FACT_KNOWN}, /* written only as "false" */
    {"layers_known", KVC_KEY_LAYERS_KNOWN, FACT_KNOWN},
};

/* --- reading --- */

struct header {
    json_t *root;
    struct kvc_array *array; /* in order of their data */
    size_t n;
    json_t *metadata; /* NULL when there is none */
};

static void header_free(struct header *h) {
    json_decref(h->root);
    free(h->array);
}

static int probe_file(const struct kvc_input *in, char *why, size_t size) {
    uint8_t head[9];
    if (in->size < 9 || kvc_input_copy(in, 0, head, sizeof head, NULL)) {
        snprintf(why, size, "too short for a header");
        return 0;
    }
    if (get_u64(head) > MAX_HEADER) {
        snprintf(why, size, "the first 8 bytes are no header length");
        return 0;
    }
    if (head[8] != '{') {
        snprintf(why, size, "no JSON object follows the header length");
        return 0;
    }
    return 1;
}

/* Whether a member's arrays are read: of several files those that are named so; others come along as they are. */
static int is_read(const struct kvc_bundle *b, size_t i) {
    const char *dot = b->is_file ? NULL : strrchr(b->member[i].name, '.');
    return b->is_file || (dot && strcmp(dot, ".safetensors") == 0);
}

static int probe(const struct kvc_bundle *b, char *why, size_t size) {
    snprintf(why, size, "no file is named *.safetensors");
    for (size_t i = 0; i < b->n; i++) {
        if (!is_read(b, i)) continue;
        const struct kvc_input *in = kvc_bundle_open(b, i, NULL);
        if (in && probe_file(in, why, size)) return 1;
        if (!in) snprintf(why, size, "a file cannot be opened");
    }
    return 0;
}

/* A non-negative JSON integer. */
static int get_count(const json_t *v, uint64_t *count) {
    if (!json_is_integer(v) || json_integer_value(v) < 0) return -1;
    *count = (uint64_t)json_integer_value(v);
    return 0;
}

/* Reads one entry {dtype, shape, data_offsets} into *a; the data of all begins at byte `data`, `size` bytes long. */
static int read_entry(const char *name, const json_t *entry, uint64_t data, uint64_t size, struct kvc_array *a,
                      struct kvc_error *e) {
    char shown[96];
    kvc_name_show(name, shown, sizeof shown);
    const json_t *dtype = json_object_get(entry, "dtype"), *shape = json_object_get(entry, "shape");
    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (!json_is_object(entry) || json_object_size(entry) != 3 || !json_is_string(dtype) ||
        !json_is_array(shape) || !json_is_array(offsets) || json_array_size(offsets) != 2)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "header: '%s' must have exactly dtype, shape and two data_offsets", shown);
    const struct element *element = element_by_name(json_string_value(dtype));
    if (!element) {
        char type[32];
        return kvc_fail(e, KVC_ERR_DAMAGED, "header: '%s' has dtype '%s', which safetensors does not know",
                        shown, kvc_name_show(json_string_value(dtype), type, sizeof type));
    }
    if (element->bits < 8)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "header: '%s' has dtype %s; types below a byte are not supported", shown,
                        element->name);
    uint64_t begin, end, bytes = element->bits / 8, rank = json_array_size(shape);
    if (get_count(json_array_get(offsets, 0), &begin) || get_count(json_array_get(offsets, 1), &end))
        return kvc_fail(e, KVC_ERR_DAMAGED, "header: data_offsets of '%s' are no whole numbers", shown);
    if (begin > end) return kvc_fail(e, KVC_ERR_DAMAGED, "header: data of '%s' ends before it begins", shown);
    if (end > size)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "header: '%s' claims data bytes %" PRIu64 " to %" PRIu64 ", but there are %" PRIu64
                        " (file cut short or header damaged)",
                        shown, begin, end, size);
    memset(a, 0, sizeof *a);
    for (size_t i = 0; i < rank; i++) {
        uint64_t dim;
        if (get_count(json_array_get(shape, i), &dim))
            return kvc_fail(e, KVC_ERR_DAMAGED, "header: shape of '%s' holds something other than counts",
                            shown);
        if (__builtin_mul_overflow(bytes, dim, &bytes))
            return kvc_fail(e, KVC_ERR_DAMAGED, "header: shape of '%s' overflows 64 bits", shown);
        if (i < KVC_ARRAY_RANK) a->dim[i] = dim;
    }
    if (bytes != end - begin)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "header: '%s' needs %" PRIu64 " bytes by its shape but has %" PRIu64
                        " by its data_offsets",
                        shown, bytes, end - begin);
    a->name = name;
    a->type = element->name;
    a->info = element->dtype < 0 ? NULL : kvc_dtype_info((unsigned)element->dtype);
    a->int_size = element->int_size;
    a->rank = rank;
    a->at = data + begin;
    a->size = bytes;
    return 0;
}

static int by_offset(const void *pa, const void *pb) {
    const struct kvc_array *a = pa, *b = pb;
    if (a->at != b->at) return a->at < b->at ? -1 : 1;
    if (a->size != b->size) return a->size < b->size ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* The tensors must cover the data exactly, one after another. */
static int check_cover(const struct header *h, uint64_t data, uint64_t size, struct kvc_error *e) {
    uint64_t at = 0;
    char shown[96];
    for (size_t i = 0; i < h->n; i++) {
        uint64_t begin = h->array[i].at - data;
        if (begin != at)
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "header: data of '%s' begins at %" PRIu64
                            " but the data before it ends at %" PRIu64 ": %s are not allowed",
                            kvc_name_show(h->array[i].name, shown, sizeof shown), begin, at,
                            begin > at ? "holes" : "overlaps");
        at = begin + h->array[i].size;
    }
    if (at != size)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "the file has %" PRIu64 " bytes of data but its tensors have %" PRIu64
                        " (cut short or appended to)",
                        size, at);
    return 0;
}

static int check_metadata(const json_t *metadata, struct kvc_error *e) {
    void *at;
    if (!json_is_object(metadata))
        return kvc_fail(e, KVC_ERR_DAMAGED, "header: __metadata__ is no JSON object");
    for (at = json_object_iter((json_t *)(uintptr_t)metadata); at;
         at = json_object_iter_next((json_t *)(uintptr_t)metadata, at)) {
        char shown[96];
        if (!json_is_string(json_object_iter_value(at)))
            return kvc_fail(e, KVC_ERR_DAMAGED, "header: __metadata__ entry '%s' is no text",
                            kvc_name_show(json_object_iter_key(at), shown, sizeof shown));
    }
    return 0;
}

static int read_entries(struct header *h, const struct kvc_input *in, uint64_t data, uint64_t size, struct kvc_error *e) {
    const char *name;
    json_t *entry;
    h->array = calloc(json_object_size(h->root) + 1, sizeof *h->array);
    if (!h->array) return kvc_fail_memory(e, "the header");
    json_object_foreach(h->root, name, entry) {
        if (strcmp(name, "__metadata__") == 0) {
            h->metadata = entry;
            if (check_metadata(entry, e)) return -1;
        } else {
            if (read_entry(name, entry, data, size, &h->array[h->n++], e)) return -1;
            h->array[h->n - 1].in = in;
        }
    }
    qsort(h->array, h->n, sizeof *h->array, by_offset);
    return check_cover(h, data, size, e);
}

static int read_header(struct header *h, const struct kvc_input *in, struct kvc_error *e) {
    json_error_t error;
    uint8_t head[9];
    memset(h, 0, sizeof *h);
    if (in->size < 9) return kvc_fail(e, KVC_ERR_UNKNOWN, "too short for a safetensors header");
    if (kvc_input_copy(in, 0, head, sizeof head, e)) return -1;
    const uint64_t n = get_u64(head);
    if (n > MAX_HEADER)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "header length %" PRIu64 ": safetensors allows at most %" PRIu64 " bytes", n,
                        MAX_HEADER);
    if (head[8] != '{') return kvc_fail(e, KVC_ERR_UNKNOWN, "no JSON object follows the header length");
    if (n > in->size - 8)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "header length %" PRIu64 " reaches beyond the end of the file (%" PRIu64
                        " bytes): cut short",
                        n, in->size);
    if (kvc_input_pin(in, 8, n, e)) return -1;
    h->root = json_loadb((const char *)in->data + 8, (size_t)n, JSON_REJECT_DUPLICATES, &error);
    kvc_input_unpin(in, 8, n);
    if (!h->root) {
        char text[160];
        if (json_error_code(&error) == json_error_out_of_memory) return kvc_fail_memory(e, "the header");
        return kvc_fail_at(e, KVC_ERR_DAMAGED, 8 + (uint64_t)error.position, "header is no valid JSON: %s",
                           kvc_name_show(error.text, text, sizeof text));
    }
    if (!json_is_object(h->root)) return kvc_fail(e, KVC_ERR_DAMAGED, "header is no JSON object");
    return read_entries(h, in, 8 + n, in->size - 8 - n, e);
}

/* A whole number as text, nothing around it. */
static int parse_count(const char *text, uint64_t *count) {
    char *end;
    if (*text < '0' || *text > '9' || strlen(text) > 18) return -1;
    *count = strtoull(text, &end, 10);
    return *end ? -1 : 0;
}

/* A JSON number as text, 0 when it is none. Unlike strtod() this does not depend on the locale. */
static double parse_number(const char *text) {
    json_t *v = json_loads(text, JSON_DECODE_ANY, NULL);
    double number = json_number_value(v);
    json_decref(v);
    return number;
}

static int read_fact(struct kvc_meta *meta, const struct fact *fact, const char *text, struct kvc_error *e) {
    uint64_t count;
    double number;
    switch (fact->type) {
    case FACT_TEXT:
        if (strcmp(fact->name, "k_rope") == 0 && strcmp(text, "post") && strcmp(text, "pre")) return 0;
        return kvc_meta_set_text(meta, fact->key, text, e);
    case FACT_COUNT: return parse_count(text, &count) ? 0 : kvc_meta_set_u64(meta, fact->key, count, e);
    case FACT_TILE:
        if (strcmp(text, "unknown") == 0) kvc_meta_remove(meta, fact->key);
        return parse_count(text, &count) ? 0 : kvc_meta_set_u64(meta, fact->key, count, e);
    case FACT_NUMBER:
        number = parse_number(text);
        return number > 0 ? kvc_meta_set_f64(meta, fact->key, number, e) : 0;
    case FACT_KNOWN: return strcmp(text, "false") ? 0 : kvc_meta_set_bool(meta, fact->key, 0, e);
    }
    return 0;
}

/* What a file records, "unknown" included, or else as transformers keeps K; *assumed when nothing in the file says so. */
static enum kvc_pairing pairing_of(const json_t *metadata, int *assumed) {
    enum kvc_pairing pairing = KVC_PAIRING_UNKNOWN;
    const char *text = json_string_value(json_object_get(metadata, "rope_pairing"));
    const char *arch = json_string_value(json_object_get(metadata, "architecture"));
    *assumed = !text && !arch;
    if (!text) return kvc_pairing_of_transformers(arch ? arch : "");
    if (strcmp(text, "half") == 0) return KVC_PAIRING_HALVES;
    return kvc_pairing_parse(text, &pairing) ? pairing : KVC_PAIRING_UNKNOWN;
}

static int read_metadata(struct kvc_cache *c, const json_t *metadata, uint64_t bytes,
                         const struct kvc_import_options *o, struct kvc_error *e) {
    int assumed;
    enum kvc_pairing pairing = pairing_of(metadata, &assumed);
    if (kvc_names_meta(c, "safetensors", bytes, o, pairing, assumed, e)) return -1;
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        const char *text = json_string_value(json_object_get(metadata, facts[i].name));
        if (text && read_fact(&c->meta, &facts[i], text, e)) return -1;
    }
    return 0;
}

/* The headers of the members that are read, and all their arrays, in the members' order. */
struct headers {
    struct header *of; /* by member */
    size_t n;
    struct kvc_array *array;
    size_t n_arrays;
    const json_t *metadata; /* of the first member that has any */
};

static void headers_free(struct headers *h) {
    for (size_t i = 0; i < h->n; i++) header_free(&h->of[i]);
    free(h->of);
    free(h->array);
}

static int read_headers(struct headers *h, const struct kvc_bundle *b, struct kvc_error *e) {
    memset(h, 0, sizeof *h);
    if (!(h->of = kvc_alloc_zeros(b->n, sizeof *h->of))) return kvc_fail_memory(e, "headers");
    size_t n = 0;
    for (; h->n < b->n; h->n++) {
        if (!is_read(b, h->n)) continue;
        const struct kvc_input *in = kvc_bundle_open(b, h->n, e);
        if (!in) return -1;
        if (read_header(&h->of[h->n], in, e)) {
            if (!b->is_file) kvc_error_prefix(e, b->member[h->n].name);
            header_free(&h->of[h->n]);
            return -1;
        }
        n += h->of[h->n].n;
        if (!h->metadata) h->metadata = h->of[h->n].metadata;
    }
    if (!(h->array = kvc_alloc(n, sizeof *h->array))) return kvc_fail_memory(e, "arrays");
    for (size_t i = 0; i < b->n; i++) {
        if (h->of[i].n) memcpy(h->array + h->n_arrays, h->of[i].array, h->of[i].n * sizeof *h->array);
        h->n_arrays += h->of[i].n;
    }
    return 0;
}

static int add_extents(struct kvc_cache *c, const struct kvc_bundle *b, const struct headers *h, struct kvc_error *e) {
    for (size_t i = 0; i < b->n; i++) {
        const struct kvc_input *in = kvc_bundle_open(b, i, e);
        if (!in || (!b->is_file && kvc_extents_member(c, b->member[i].name, e)) ||
            kvc_names_extents(c, h->array, h->n_arrays, in, e))
            return -1;
    }
    return 0;
}

static struct kvc_cache *import(const struct kvc_bundle *b, const struct kvc_import_options *o, struct kvc_error *e) {
    struct headers h;
    struct kvc_cache *c = NULL;
    if (kvc_name_check_map(o, e)) return NULL;
    int status = read_headers(&h, b, e);
    if (!status) status = (c = kvc_cache_new(e)) ? 0 : -1;
    if (!status) status = kvc_cache_map(c, NULL, NULL, e);
    if (!status) status = kvc_names_build(c, h.array, h.n_arrays, o, e);
    if (!status) status = add_extents(c, b, &h, e);
    if (!status) status = read_metadata(c, h.metadata, kvc_bundle_size(b), o, e);
    if (!status) status = kvc_cache_finish(c, e);
    headers_free(&h);
    if (status) {
        kvc_cache_free(c);
        return NULL;
    }
    return c;
}

/* --- writing --- */

static int keeps(enum kvc_dtype dtype) {
    return name_of_dtype(dtype) != NULL;
}

static int write_fact(json_t *to, const struct kvc_meta *meta, const struct fact *fact) {
    const struct kvc_meta_entry *entry = kvc_meta_find(meta, fact->key);
    json_t *value = NULL;
    if (!entry && fact->type != FACT_TILE) return 0;
    if (!entry) return json_object_set_new(to, fact->name, json_string("unknown"));
    if (fact->type == FACT_TEXT) value = json_string(kvc_meta_text(meta, fact->key, ""));
    if (fact->type == FACT_KNOWN && !kvc_meta_bool(meta, fact->key, 1)) value = json_string("false");
    if (fact->type == FACT_COUNT || (fact->type == FACT_TILE && kvc_meta_u64(meta, fact->key, 0)))
        value = json_sprintf("%" PRIu64, kvc_meta_u64(meta, fact->key, 0));
    if (fact->type == FACT_NUMBER) {
        json_t *real = json_real(kvc_meta_f64(meta, fact->key, 0)); /* NULL when not finite */
        char *text = json_dumps(real, JSON_ENCODE_ANY);
        json_decref(real);
        value = json_string(text);
        free(text);
    }
    return value ? json_object_set_new(to, fact->name, value) : 0;
}

static int write_metadata(json_t *root, const struct kvc_cache *c) {
    json_t *to = json_object();
    enum kvc_pairing pairing = kvc_cache_pairing(c);
    const char *name = pairing == KVC_PAIRING_HALVES ? "half"
                       : pairing                     ? kvc_pairing_name(pairing)
                                                     : "unknown";
    int status = json_object_set_new(to, "format", json_string("kvc"));
    for (size_t i = 0; i < sizeof facts / sizeof facts[0] && !status; i++)
        status = write_fact(to, &c->meta, &facts[i]);
    /* a habit that nothing recorded does not become a record */
    int assumed = pairing == KVC_PAIRING_HALVES && kvc_meta_bool(&c->meta, KVC_KEY_ROPE_ASSUMED, 0);
    if (!status && !assumed) status = json_object_set_new(to, "rope_pairing", json_string(name));
    if (status) {
        json_decref(to);
        return -1;
    }
    return json_object_set_new(root, "__metadata__", to);
}

static int write_entry(json_t *root, const struct kvc_arrays_item *item, uint64_t offset) {
    const char *type = item->kind == KVC_NAME_TOKENS      ? "I32"
                       : item->kind == KVC_NAME_POSITIONS ? "I64"
                                                          : name_of_dtype(item->dtype);
    json_t *shape = json_array();
    for (unsigned i = 0; i < item->rank; i++)
        if (json_array_append_new(shape, json_integer((json_int_t)item->dim[i]))) {
            json_decref(shape);
            return -1;
        }
    json_t *entry = json_pack("{s:s,s:o,s:[I,I]}", "dtype", type, "shape", shape, "data_offsets",
                              (json_int_t)offset, (json_int_t)(offset + item->bytes));
    return json_object_set_new(root, item->name, entry);
}

/* The whole header: length, JSON, spaces up to a multiple of 8. */
static int write_header(const struct kvc_arrays *list, struct kvc_sink *out, struct kvc_error *e) {
    json_t *root = json_object();
    uint64_t offset = 0;
    int status = write_metadata(root, list->cache);
    for (size_t i = 0; i < list->n && !status; i++) {
        status = write_entry(root, &list->item[i], offset);
        offset += list->item[i].bytes;
    }
    char *text = status ? NULL : json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (!text) return kvc_fail_memory(e, "the header");
    uint8_t length[8];
    size_t n = strlen(text), padding = (8 - n % 8) % 8;
    put_u64(length, n + padding);
    if (n + padding > MAX_HEADER)
        status = kvc_fail(e, KVC_ERR_UNSUPPORTED, "too many tensors for a safetensors header");
    if (!status) status = kvc_sink_write(out, length, sizeof length, e);
    if (!status) status = kvc_sink_write(out, text, n, e);
    if (!status) status = kvc_sink_write(out, "        ", padding, e);
    free(text);
    return status;
}

/* Tensors in the order and with the names of arrays_write.h. */
static int export(const struct kvc_cache *c, const struct kvc_export_options *o, struct kvc_sink *out,
                  struct kvc_error *e) {
    struct kvc_arrays list;
    if (kvc_arrays_list(&list, c, o, keeps, e)) return -1;
    int status = write_header(&list, out, e);
    for (size_t i = 0; i < list.n && !status; i++) {
        uint8_t *bytes;
        status = kvc_arrays_read(&list, i, &bytes, e);
        if (!status) status = kvc_sink_write(out, bytes, (size_t)list.item[i].bytes, e);
        free(bytes);
    }
    kvc_arrays_free(&list);
    return status;
}

const struct kvc_format kvc_format_safetensors = {
    .name = "safetensors",
    .summary = "named tensors, as transformers users keep caches",
    .suffix = ".safetensors",
    .takes_members = 1,
    .import_options = kvc_arrays_options,
    .probe = probe,
    .import = import,
    .export = export,
};
