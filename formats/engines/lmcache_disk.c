/* lmcache_disk.c: the file that LMCache's LocalDisk keeps beside the bytes of a chunk: JSON with
 * shape, dtype, memory format and size. Not for the bytes (lmcache.c). Source: LMCache, pull
 * requests 563, 1650 and 4778 (local_disk_backend.py). */
#include "formats/engines/lmcache_chunk.h"

#include "formats/engines/import.h"
#include "formats/io/json_text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANK = 4, MAX_BYTES = 1 << 20, KV_2LTD = 1, KV_T2D = 2, KV_2TD = 3 };

static const char *const formats[] = {"UNDEFINED", "KV_2LTD",       "KV_T2D",    "KV_2TD",
                                      "BINARY",    "BINARY_BUFFER", "KV_MLA_FMT"};

/* --- finding the file --- */

/* Writes the name of the file beside a chunk: NAME.meta, or without the chunk's own suffix. Returns
 * 0 if there is none. */
static int name_beside(char *text, size_t size, const char *name, int cut) {
    const size_t n = strlen(name);
    const int has_suffix = n > 3 && strcmp(name + n - 3, ".pt") == 0;
    if (cut && !has_suffix) return 0;
    const int used = snprintf(text, size, "%.*s.meta", (int)(cut ? n - 3 : n), name);
    return used > 0 && (size_t)used < size;
}

static json_t *parse(const struct kvc_input *in) {
    if (!in->size || in->size > MAX_BYTES || kvc_input_pin(in, 0, in->size, NULL)) return NULL;
    json_t *root = kvc_json_load(in->data, (size_t)in->size, 0, NULL);
    kvc_input_unpin(in, 0, in->size);
    return root;
}

static json_t *parse_beside(const struct kvc_bundle *b, const char *name) {
    struct kvc_input own;
    const struct kvc_input *in = kvc_member_beside(b, name, &own);
    json_t *root = in ? parse(in) : NULL;
    if (in == &own) kvc_input_close(&own);
    return root;
}

static json_t *read_beside(const struct kvc_bundle *b, size_t member) {
    const char *name = kvc_member_path(b, member);
    char beside[4096];
    json_t *root = NULL;
    for (int cut = 0; cut < 2 && !root && name; cut++)
        if (name_beside(beside, sizeof beside, name, cut)) root = parse_beside(b, beside);
    if (root && json_is_array(json_object_get(root, "shape")) &&
        json_is_string(json_object_get(root, "dtype")))
        return root;
    json_decref(root);
    return NULL;
}

int kvc_lmcache_is_disk(const struct kvc_bundle *b, size_t member) {
    json_t *root = read_beside(b, member);
    const int found = root != NULL;
    json_decref(root);
    return found;
}

/* --- its meaning --- */

/* Returns the number of a memory format: that which is stated, by number or name, unless the shape
 * can only be another; of older versions, whose numbers were others. */
static uint64_t format_of(const json_t *root, const uint64_t *dim, uint64_t rank) {
    const json_t *stated = json_object_get(root, json_object_get(root, "fmt") ? "fmt" : "format");
    const char *name = json_string_value(stated), *dot = name ? strrchr(name, '.') : NULL;
    uint64_t fmt = json_is_integer(stated) && json_integer_value(stated) > 0
                       ? (uint64_t)json_integer_value(stated)
                       : 0;
    for (size_t i = 0; name && i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(dot ? dot + 1 : name, formats[i]) == 0) fmt = i;
    if (fmt > KV_2TD) return fmt;
    if (rank == 4 && dim[0] == 2) return KV_2LTD;
    if (rank == 3 && dim[1] == 2 && dim[0] != 2) return KV_T2D;
    if (rank == 3 && dim[0] == 2 && dim[1] != 2) return KV_2TD;
    return fmt;
}

static int lmcache_disk_take_shape(const json_t *shape, uint64_t dim[MAX_RANK], uint64_t *rank,
                                   struct kvc_error *e) {
    *rank = json_array_size(shape);
    int good = *rank && *rank <= MAX_RANK;
    for (size_t i = 0; good && i < *rank; i++) {
        const json_t *size = json_array_get(shape, i);
        good = json_is_integer(size) && json_integer_value(size) >= 0;
        dim[i] = (uint64_t)json_integer_value(size);
    }
    return good ? 0
                : kvc_fail(e, KVC_ERR_DAMAGED,
                           "the .meta file beside it has no shape of 1 to %d sizes", MAX_RANK);
}

static int lmcache_disk_take(struct kvc_lmcache_chunk *k, const json_t *root, uint64_t size,
                             const struct kvc_import_options *o, struct kvc_error *e) {
    const char *name = json_string_value(json_object_get(root, "dtype"));
    const struct kvc_dtype_info *info = kvc_import_dtype(name);
    const json_t *stated = json_object_get(root, "size");
    uint64_t dim[MAX_RANK] = {0}, rank;
    if (!info)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "the .meta file beside it states dtype '%.40s', which no cache has", name);
    if (lmcache_disk_take_shape(json_object_get(root, "shape"), dim, &rank, e)) return -1;
    if (json_is_integer(stated) &&
        (json_integer_value(stated) < 0 || (uint64_t)json_integer_value(stated) != size))
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "the .meta file beside it states %" JSON_INTEGER_FORMAT
                        " bytes, but there are %" PRIu64 " (cut short or appended to)",
                        json_integer_value(stated), size);
    uint64_t fmt = format_of(root, dim, rank);
    if (!fmt && !o->value[KVC_LMCACHE_FMT].text)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "the .meta file beside it states no memory format that kvc knows: say "
                        "fmt=" KVC_LMCACHE_NAMES ", for instance --from=lmcache:fmt=2td");
    if (!fmt) fmt = KV_2LTD; /* the option says which one it is */
    return kvc_lmcache_of_shape(k, fmt, info, dim, rank, size, o, e);
}

int kvc_lmcache_of_disk(struct kvc_lmcache_chunk *k, const struct kvc_bundle *b, size_t member,
                        uint64_t size, const struct kvc_import_options *o, struct kvc_error *e) {
    json_t *root = read_beside(b, member);
    if (!root) return 1;
    const int status = lmcache_disk_take(k, root, size, o, e);
    json_decref(root);
    return status;
}
