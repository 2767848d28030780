/* safetensors_file.c: the header of a safetensors file, read strictly and written. Not for what
 * tensors mean. */
#include "formats/io/safetensors_file.h"

#include "codecs/dtype.h"
#include "codecs/memory.h"
#include "formats/io/bytes.h"
#include "formats/io/input.h"
#include "formats/io/json_text.h"
#include "formats/io/printable.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char metadata_key[] = "__metadata__";

static const struct kvc_safetensors_type types[] = {
    {"F32", 32, KVC_F32},
    {"F16", 16, KVC_F16},
    {"BF16", 16, KVC_BF16},
    {"F8_E4M3", 8, KVC_F8E4M3},
    {"F8_E5M2", 8, KVC_F8E5M2},
    {"U8", 8, KVC_U8},
    {"I8", 8, KVC_I8},
    {"I32", 32, -1},
    {"I64", 64, -1},
    {"F64", 64, -1},
    {"U64", 64, -1},
    {"C64", 64, -1},
    {"U32", 32, -1},
    {"U16", 16, -1},
    {"I16", 16, -1},
    {"BOOL", 8, -1},
    {"F8_E8M0", 8, -1},
    {"F8_E4M3FNUZ", 8, -1},
    {"F8_E5M2FNUZ", 8, -1},
    {"F4", 4, -1},
    {"F6_E2M3", 6, -1},
    {"F6_E3M2", 6, -1},
};
#define TYPES (sizeof types / sizeof types[0])

const struct kvc_safetensors_type *kvc_safetensors_type_by_name(const char *name) {
    for (size_t i = 0; i < TYPES; i++)
        if (strcmp(types[i].name, name) == 0) return &types[i];
    return NULL;
}

const struct kvc_safetensors_type *kvc_safetensors_type_of(int dtype) {
    for (size_t i = 0; i < TYPES && dtype >= 0; i++)
        if (types[i].dtype == dtype) return &types[i];
    return NULL;
}

/* --- reading: entries --- */

/* Reads a JSON integer that is not negative. */
/* Reads data_offsets into *t. */
static int read_offsets(struct kvc_safetensors_tensor *t, const json_t *offsets, const char *shown,
                        uint64_t data_size, struct kvc_error *e) {
    if (kvc_json_count(json_array_get(offsets, 0), &t->begin) ||
        kvc_json_count(json_array_get(offsets, 1), &t->end))
        return kvc_fail(e, KVC_ERR_DAMAGED, "header: data_offsets of '%s' are no whole numbers",
                        shown);
    if (t->begin > t->end)
        return kvc_fail(e, KVC_ERR_DAMAGED, "header: data of '%s' ends before it begins", shown);
    if (t->end > data_size)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "header: '%s' claims data bytes %" PRIu64 " to %" PRIu64
                        ", but there are %" PRIu64 " (file cut short or header damaged)",
                        shown, t->begin, t->end, data_size);
    return 0;
}

/* Reads the shape into `dim`, and compares it with the bytes of the data where the size of an
 * element is known. */
static int read_shape(struct kvc_safetensors_tensor *t, const json_t *shape, const char *shown,
                      uint64_t *dim, struct kvc_error *e) {
    uint64_t bits = t->type ? t->type->bits : 0, values = 1, bytes;
    t->rank = json_array_size(shape);
    t->dim = dim;
    for (size_t i = 0; i < t->rank; i++) {
        if (kvc_json_count(json_array_get(shape, i), &dim[i]))
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "header: shape of '%s' holds something other than counts", shown);
        if (__builtin_mul_overflow(values, dim[i], &values))
            return kvc_fail(e, KVC_ERR_DAMAGED, "header: shape of '%s' overflows 64 bits", shown);
    }
    if (!bits) return 0;
    if (bits >= 8 ? __builtin_mul_overflow(values, bits / 8, &bytes)
                  : __builtin_mul_overflow(values, bits, &bytes))
        return kvc_fail(e, KVC_ERR_DAMAGED, "header: shape of '%s' overflows 64 bits", shown);
    if (bits < 8 && bytes % 8)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "header: '%s' needs %" PRIu64
                        " bits by its shape, which are no whole bytes",
                        shown, bytes);
    if (bits < 8) bytes /= 8;
    if (bytes == t->end - t->begin) return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED,
                    "header: '%s' needs %" PRIu64 " bytes by its shape but has %" PRIu64
                    " by its data_offsets",
                    shown, bytes, t->end - t->begin);
}

/* Reads one entry {dtype, shape, data_offsets} into *t, its dimensions into `dim`. */
static int read_entry(struct kvc_safetensors_tensor *t, const char *name, const json_t *entry,
                      uint64_t *dim, uint64_t data_size, unsigned strictness, struct kvc_error *e) {
    char shown[96], type[32];
    kvc_name_show(name, shown, sizeof shown);
    const json_t *dtype = json_object_get(entry, "dtype"), *shape = json_object_get(entry, "shape");
    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (!json_is_object(entry) || json_object_size(entry) != 3 || !json_is_string(dtype) ||
        !json_is_array(shape) || !json_is_array(offsets) || json_array_size(offsets) != 2)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "header: '%s' must have exactly dtype, shape and two data_offsets", shown);
    t->name = name;
    t->dtype = json_string_value(dtype);
    t->type = kvc_safetensors_type_by_name(t->dtype);
    if (!t->type && !(strictness & KVC_SAFETENSORS_ANY_DTYPE))
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "header: '%s' has dtype '%s', which safetensors does not know", shown,
                        kvc_name_show(t->dtype, type, sizeof type));
    if (read_offsets(t, offsets, shown, data_size, e)) return -1;
    if (read_shape(t, shape, shown, dim, e)) return -1;
    return 0;
}

static int check_metadata(json_t *metadata, struct kvc_error *e) {
    const char *key;
    json_t *value;
    if (json_is_null(metadata)) return 0; /* the reference library takes it as no metadata */
    if (!json_is_object(metadata))
        return kvc_fail(e, KVC_ERR_DAMAGED, "header: __metadata__ is no JSON object");
    json_object_foreach(metadata, key, value) {
        char shown[96];
        if (!json_is_string(value))
            return kvc_fail(e, KVC_ERR_DAMAGED, "header: __metadata__ entry '%s' is no text",
                            kvc_name_show(key, shown, sizeof shown));
    }
    return 0;
}

static int by_offset(const void *pa, const void *pb) {
    const struct kvc_safetensors_tensor *a = pa, *b = pb;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end) return a->end < b->end ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Checks that tensors, in the order of their data, do not overlap, and that they cover all bytes
 * where the caller asks for it. */
static int check_cover(const struct kvc_safetensors *s, unsigned strictness, struct kvc_error *e) {
    uint64_t at = 0;
    char shown[96];
    for (size_t i = 0; i < s->n; i++) {
        const struct kvc_safetensors_tensor *t = &s->tensor[i];
        if (t->begin < at || (strictness & KVC_SAFETENSORS_NO_HOLES && t->begin > at))
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "header: data of '%s' begins at %" PRIu64
                            " but the data before it ends at %" PRIu64 ": %s are not allowed",
                            kvc_name_show(t->name, shown, sizeof shown), t->begin, at,
                            t->begin > at ? "holes" : "overlaps");
        at = t->end;
    }
    if (!(strictness & KVC_SAFETENSORS_NO_REST) || at == s->data_size) return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED,
                    "the file has %" PRIu64 " bytes of data but its tensors end at %" PRIu64
                    " (cut short or appended to)",
                    s->data_size, at);
}

/* The number and the name of a tensor, for sorting. */
struct named {
    const char *name;
    size_t i;
};

static int safetensors_file_by_name(const void *pa, const void *pb) {
    const struct named *a = pa, *b = pb;
    return strcmp(a->name, b->name);
}

static int sort_names(struct kvc_safetensors *s, struct kvc_error *e) {
    struct named *named = kvc_alloc(s->n, sizeof *named);
    s->by_name = kvc_alloc(s->n, sizeof *s->by_name);
    const int status = named && s->by_name ? 0 : kvc_fail_memory(e, "the header");
    for (size_t i = 0; i < s->n && !status; i++) named[i] = (struct named){s->tensor[i].name, i};
    if (!status) qsort(named, s->n, sizeof *named, safetensors_file_by_name);
    for (size_t i = 0; i < s->n && !status; i++) s->by_name[i] = named[i].i;
    free(named);
    return status;
}

static int read_entries(struct kvc_safetensors *s, unsigned strictness, struct kvc_error *e) {
    const char *name;
    json_t *entry;
    size_t dims = 0;
    json_object_foreach(s->root, name, entry)
        dims += json_array_size(json_object_get(entry, "shape"));
    s->tensor = kvc_alloc_zeros(json_object_size(s->root), sizeof *s->tensor);
    s->dims = kvc_alloc(dims, sizeof *s->dims);
    if (!s->tensor || !s->dims) return kvc_fail_memory(e, "the header");
    uint64_t *dim = s->dims;
    json_object_foreach(s->root, name, entry) {
        if (strcmp(name, metadata_key) == 0) {
            if (check_metadata(entry, e)) return -1;
            continue;
        }
        struct kvc_safetensors_tensor *t = &s->tensor[s->n++];
        if (read_entry(t, name, entry, dim, s->data_size, strictness, e)) return -1;
        dim += t->rank;
    }
    qsort(s->tensor, s->n, sizeof *s->tensor, by_offset);
    if (check_cover(s, strictness, e) || sort_names(s, e)) return -1;
    return 0;
}

/* --- reading: the header --- */

uint64_t kvc_safetensors_begins(const uint8_t *head, uint64_t have, char *why, size_t size) {
    const uint64_t n = have < 9 ? 0 : get_u64(head);
    if (have < 9) snprintf(why, size, "too short for a header");
    else if (n > KVC_SAFETENSORS_HEADER)
        snprintf(why, size, "the first 8 bytes are no header length");
    else if (n < 2 || head[8] != '{')
        snprintf(why, size, "no JSON object follows the header length");
    else return 8 + n;
    return 0;
}

/* Parses the JSON of a header whose length was checked. */
static int parse(struct kvc_safetensors *s, const uint8_t *head, uint64_t n, struct kvc_error *e) {
    json_error_t error;
    char text[160];
    s->root = kvc_json_load(head + 8, (size_t)n, JSON_REJECT_DUPLICATES, &error);
    if (s->root)
        return json_is_object(s->root) ? 0
                                       : kvc_fail(e, KVC_ERR_DAMAGED, "header is no JSON object");
    if (json_error_code(&error) == json_error_out_of_memory)
        return kvc_fail_memory(e, "the header");
    return kvc_fail_at(e, KVC_ERR_DAMAGED, 8 + (uint64_t)error.position,
                       "header is no valid JSON: %s", kvc_name_show(error.text, text, sizeof text));
}

int kvc_safetensors_read(struct kvc_safetensors *s, const uint8_t *head, uint64_t file_size,
                         unsigned strictness, struct kvc_error *e) {
    memset(s, 0, sizeof *s);
    if (file_size < 9)
        return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "too short for a safetensors header");
    const uint64_t n = get_u64(head);
    if (n > KVC_SAFETENSORS_HEADER)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "header length %" PRIu64 ": safetensors allows at most %" PRIu64 " bytes",
                        n, KVC_SAFETENSORS_HEADER);
    if (head[8] != '{')
        return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "no JSON object follows the header length");
    if (n > file_size - 8)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "header length %" PRIu64 " reaches beyond the end of the file (%" PRIu64
                        " bytes): cut short",
                        n, file_size);
    s->data_at = 8 + n;
    s->data_size = file_size - s->data_at;
    if (!parse(s, head, n, e) && !read_entries(s, strictness, e)) return 0;
    kvc_safetensors_free(s);
    return -1;
}

int kvc_safetensors_read_input(struct kvc_safetensors *s, const struct kvc_input *in,
                               unsigned strictness, struct kvc_error *e) {
    uint8_t first[9];
    char why[64];
    const uint64_t have = in->size < sizeof first ? in->size : sizeof first;
    memset(s, 0, sizeof *s);
    if (kvc_input_copy(in, 0, first, have, e)) return -1;
    uint64_t n = kvc_safetensors_begins(first, have, why, sizeof why);
    if (n < have) n = have;
    if (n > in->size) n = in->size;
    if (kvc_input_pin(in, 0, n, e)) return -1;
    const int status = kvc_safetensors_read(s, in->data, in->size, strictness, e);
    kvc_input_unpin(in, 0, n);
    return status;
}

void kvc_safetensors_free(struct kvc_safetensors *s) {
    json_decref(s->root);
    free(s->tensor);
    free(s->by_name);
    free(s->dims);
    memset(s, 0, sizeof *s);
}

const struct kvc_safetensors_tensor *kvc_safetensors_find(const struct kvc_safetensors *s,
                                                          const char *name) {
    size_t low = 0, high = s->n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const struct kvc_safetensors_tensor *t = &s->tensor[s->by_name[middle]];
        const int order = strcmp(name, t->name);
        if (!order) return t;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

int kvc_safetensors_has_metadata(const struct kvc_safetensors *s) {
    return json_is_object(json_object_get(s->root, metadata_key));
}

const char *kvc_safetensors_text(const struct kvc_safetensors *s, const char *key) {
    return json_string_value(json_object_get(json_object_get(s->root, metadata_key), key));
}

/* --- writing --- */

int kvc_safetensors_writer_init(struct kvc_safetensors_writer *w, struct kvc_error *e) {
    *w = (struct kvc_safetensors_writer){.root = json_object(), .metadata = json_object()};
    if (w->root && w->metadata && !json_object_set(w->root, metadata_key, w->metadata)) return 0;
    kvc_safetensors_writer_free(w);
    return kvc_fail_memory(e, "the header");
}

void kvc_safetensors_writer_free(struct kvc_safetensors_writer *w) {
    json_decref(w->metadata);
    json_decref(w->root);
    memset(w, 0, sizeof *w);
}

int kvc_safetensors_add_text(struct kvc_safetensors_writer *w, const char *key, const char *text,
                             struct kvc_error *e) {
    return json_object_set_new(w->metadata, key, json_string(text))
               ? kvc_fail_memory(e, "the header")
               : 0;
}

int kvc_safetensors_copy_texts(struct kvc_safetensors_writer *w, const struct kvc_safetensors *from,
                               struct kvc_error *e) {
    json_t *texts = json_object_get(from->root, metadata_key);
    return json_is_object(texts) && json_object_update(w->metadata, texts)
               ? kvc_fail_memory(e, "the header")
               : 0;
}

int kvc_safetensors_add(struct kvc_safetensors_writer *w, const char *name, const char *type,
                        const uint64_t *dim, unsigned rank, struct kvc_error *e) {
    const struct kvc_safetensors_type *known = kvc_safetensors_type_by_name(type);
    char shown[96];
    kvc_name_show(name, shown, sizeof shown);
    if (!known || json_object_get(w->root, name))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "'%s' cannot be written: %s", shown,
                        known ? "another tensor has this name" : "safetensors has no such type");
    json_t *shape = json_array();
    uint64_t bits = known->bits, end;
    int status = 0, sane = 1;
    for (unsigned i = 0; i < rank && !status; i++) {
        sane = sane && dim[i] <= INT64_MAX && !__builtin_mul_overflow(bits, dim[i], &bits);
        status = json_array_append_new(shape, json_integer((json_int_t)dim[i]));
    }
    if (__builtin_add_overflow(w->data_size, bits / 8, &end) || end > INT64_MAX || bits % 8 ||
        !sane) {
        json_decref(shape);
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "'%s' cannot be written: its shape makes no number of bytes", shown);
    }
    if (status) {
        json_decref(shape);
        return kvc_fail_memory(e, "the header");
    }
    json_t *entry = json_pack("{s:s,s:o,s:[I,I]}", "dtype", known->name, "shape", shape,
                              "data_offsets", (json_int_t)w->data_size, (json_int_t)end);
    if (json_object_set_new(w->root, name, entry)) return kvc_fail_memory(e, "the header");
    w->data_size = end;
    return 0;
}

int kvc_safetensors_write(const struct kvc_safetensors_writer *w, struct kvc_sink *out,
                          struct kvc_error *e) {
    char *text = kvc_json_dump(w->root, JSON_COMPACT);
    if (!text) return kvc_fail_memory(e, "the header");
    uint8_t length[8];
    const size_t n = strlen(text), padding = (8 - n % 8) % 8;
    put_u64(length, n + padding);
    int status = 0;
    if (n + padding > KVC_SAFETENSORS_HEADER)
        status = kvc_fail(e, KVC_ERR_UNSUPPORTED, "too many tensors for a safetensors header");
    if (!status) status = kvc_sink_write(out, length, sizeof length, e);
    if (!status) status = kvc_sink_write(out, text, n, e);
    if (!status) status = kvc_sink_write(out, "        ", padding, e);
    free(text);
    return status;
}
