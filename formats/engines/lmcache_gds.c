/* lmcache_gds.c: chunks of K and V that LMCache's GdsBackend stores: a header of 4096 bytes that
 * resembles one of safetensors, and the array. Not for the array itself (lmcache_chunk.h).
 *
 *   u64 4088, {"kvcache": {"dtype", "shape", "data_offsets", "fmt", "__metadata__":
 * {"lmcache_version": "1"}}}, spaces
 *
 * The header is repeated in a second file, whose name ends with ".metadata". Other lengths of the
 * header and further keys are accepted, as the safetensors library accepts them. Source: LMCache
 * lmcache/v1/storage_backend/gds_backend.py. */
#include "formats/engines/lmcache_chunk.h"

#include "formats/engines/import.h"
#include "formats/io/bytes.h"
#include "formats/io/json_text.h"
#include "formats/io/member_name.h"
#include "formats/io/printable.h"
#include "formats/io/safetensors_file.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER = 4096, MAX_HEADER = 1 << 20, MAX_RANK = 4 };

static const char metadata_suffix[] = ".metadata";

/* Names of dtypes: those of safetensors, and those of LMCache where they differ. */
static const struct {
    const char *name;
    int dtype;
} own[] = {{"F8E4M3FN", KVC_F8E4M3}, {"F8E5M2", KVC_F8E5M2}};

static const struct kvc_dtype_info *dtype_of(const char *name) {
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (strcmp(own[i].name, name) == 0) return kvc_dtype_info((unsigned)own[i].dtype);
    const struct kvc_safetensors_type *type = kvc_safetensors_type_by_name(name);
    return type && type->dtype >= 0 ? kvc_dtype_info((unsigned)type->dtype) : NULL;
}

static const char *name_of_dtype(enum kvc_dtype dtype) {
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (own[i].dtype == (int)dtype) return own[i].name;
    const struct kvc_safetensors_type *type = kvc_safetensors_type_of((int)dtype);
    return type ? type->name : NULL;
}

/* --- the header --- */

/* Returns the parsed header of a file that looks like a chunk, or NULL and the reason. *size gets
 * its bytes. */
static json_t *lmcache_gds_read_header(const struct kvc_input *in, uint64_t *size, char *why,
                                       size_t why_size) {
    static const char key[] = "\"kvcache\"";
    uint8_t head[9];
    json_error_t error;
    const uint64_t have = in->size < sizeof head ? in->size : sizeof head;
    snprintf(why, why_size, "the file cannot be read");
    if (kvc_input_copy(in, 0, head, have, NULL) ||
        !(*size = kvc_safetensors_begins(head, have, why, why_size)))
        return NULL;
    snprintf(why, why_size, "the header has no array 'kvcache'");
    if (*size > MAX_HEADER || *size > in->size || kvc_input_pin(in, 0, *size, NULL)) return NULL;
    const char *text = (const char *)in->data + 8;
    json_t *root = NULL;
    if (memmem(text, (size_t)*size - 8, key, sizeof key - 1)) {
        root = kvc_json_load(text, (size_t)*size - 8, JSON_REJECT_DUPLICATES, &error);
        if (!root) snprintf(why, why_size, "the header is no valid JSON: %.100s", error.text);
    }
    kvc_input_unpin(in, 0, *size);
    const size_t others = json_object_get(root, "__metadata__") != NULL;
    if (json_object_get(root, "kvcache") && json_object_size(root) == 1 + others) return root;
    json_decref(root);
    return NULL;
}

static int read_entry(struct kvc_lmcache_chunk *k, const json_t *entry, uint64_t size,
                      const struct kvc_import_options *o, struct kvc_error *e) {
    const json_t *shape = json_object_get(entry, "shape"),
                 *offsets = json_object_get(entry, "data_offsets");
    const char *type = json_string_value(json_object_get(entry, "dtype"));
    uint64_t dim[MAX_RANK], rank = json_array_size(shape), begin, end, fmt = 1;
    char shown[64];
    if (json_object_get(entry, "shapes") || json_object_get(entry, "dtypes"))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "header: the chunk has several groups of layers, and which layers are in a "
                        "group is not recorded");
    if (!type || !rank || json_array_size(offsets) != 2 ||
        kvc_json_count(json_array_get(offsets, 0), &begin) ||
        kvc_json_count(json_array_get(offsets, 1), &end))
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "header: 'kvcache' must have dtype, shape and two data_offsets");
    if (json_object_get(entry, "fmt") ? kvc_json_count(json_object_get(entry, "fmt"), &fmt)
                                      : !o->value[KVC_LMCACHE_FMT].text)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "header: 'kvcache' has no number of a memory format; if the layout is "
                        "known, say fmt=" KVC_LMCACHE_NAMES);
    const struct kvc_dtype_info *info = dtype_of(type);
    if (!info)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "header: 'kvcache' has dtype '%s', which no cache has",
                        kvc_name_show(type, shown, sizeof shown));
    if (rank > MAX_RANK)
        return kvc_fail(e, KVC_ERR_DAMAGED, "header: 'kvcache' has more than %d sizes", MAX_RANK);
    for (size_t i = 0; i < rank; i++)
        if (kvc_json_count(json_array_get(shape, i), &dim[i]))
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "header: the shape holds something other than counts");
    if (begin || end != size)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "header: the data are bytes %" PRIu64 " to %" PRIu64
                        ", but there are %" PRIu64 " (cut short or appended to)",
                        begin, end, size);
    return kvc_lmcache_of_shape(k, fmt, info, dim, rank, size, o, e);
}

/* --- files --- */

static const char *const suffixes[] = {".safetensors", ".weka1", NULL};
static const char none[] = "no file is named *.kvcache.safetensors or *.weka1";

static int lmcache_gds_probe_file(const struct kvc_bundle *b, size_t i, const struct kvc_input *in,
                                  char *why, size_t size) {
    uint64_t header;
    (void)b;
    (void)i;
    json_t *root = lmcache_gds_read_header(in, &header, why, size);
    json_decref(root);
    return root != NULL;
}

static int lmcache_gds_probe(const struct kvc_bundle *b, char *why, size_t size) {
    return kvc_members_probe(b, suffixes, none, lmcache_gds_probe_file, why, size);
}

/* Checks that the second file of a chunk, if it is there, repeats the header. */
static int check_metadata(const struct kvc_bundle *b, const struct kvc_lmcache_file *f,
                          struct kvc_error *e) {
    const char *name = b->member[f->member].name;
    const size_t n = b->is_file ? 0 : strlen(name);
    for (size_t i = 0; i < b->n && n; i++) {
        const char *other = b->member[i].name;
        if (strncmp(other, name, n) != 0 || strcmp(other + n, metadata_suffix) != 0) continue;
        const struct kvc_input *in = kvc_bundle_open(b, i, e);
        if (!in) return -1;
        struct kvc_window first = {.in = in}, second = {.in = f->in};
        int same = in->size == f->at;
        if (same) {
            const uint8_t *a = kvc_window_at(&first, 0, f->at, e),
                          *c = kvc_window_at(&second, 0, f->at, e);
            same = !a || !c ? -1 : memcmp(a, c, (size_t)f->at) == 0;
        }
        kvc_window_close(&first);
        kvc_window_close(&second);
        if (same < 0) return -1;
        if (!same)
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "%s differs from the header of the chunk, which it repeats", other);
    }
    return 0;
}

static int lmcache_gds_read_file(struct kvc_lmcache_file *f, const struct kvc_bundle *b,
                                 const struct kvc_import_options *o, struct kvc_error *e) {
    char why[256];
    snprintf(why, sizeof why, "%s", none);
    for (size_t i = 0; i < b->n; i++) {
        if (!kvc_member_is_read(b, i, suffixes)) continue;
        const struct kvc_input *in = kvc_bundle_open(b, i, e);
        uint64_t header;
        if (!in) return -1;
        json_t *root = lmcache_gds_read_header(in, &header, why, sizeof why);
        if (!root) continue;
        int status = 0;
        if (f->in)
            status = kvc_fail(e, KVC_ERR_UNSUPPORTED,
                              "there are several chunks, whose order is not recorded: read each by "
                              "itself (%s, %s)",
                              b->member[f->member].name, b->member[i].name);
        *f = (struct kvc_lmcache_file){.member = i, .in = in, .at = header};
        if (!status)
            status = read_entry(&f->chunk, json_object_get(root, "kvcache"), in->size - header, o,
                                e);
        json_decref(root);
        if (status) return -1;
    }
    return f->in ? check_metadata(b, f, e) : kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "%s", why);
}

static struct kvc_cache *lmcache_gds_import(const struct kvc_bundle *b,
                                            const struct kvc_import_options *o,
                                            struct kvc_error *e) {
    struct kvc_lmcache_file file = {.in = NULL};
    if (lmcache_gds_read_file(&file, b, o, e)) return NULL;
    return kvc_lmcache_build("lmcache-gds", b, &file, 1, 1, o, e);
}

/* --- writing --- */

static int lmcache_gds_keeps(enum kvc_dtype dtype) {
    return name_of_dtype(dtype) != NULL;
}

/* Writes the file without its ".metadata", which has the same first 4096 bytes. */
static int lmcache_gds_export(const struct kvc_cache *c, const struct kvc_export_options *o,
                              struct kvc_sink *out, struct kvc_error *e) {
    struct kvc_lmcache_export x;
    char head[HEADER + 1], shape[128] = "";
    uint64_t dim[4];
    if (kvc_lmcache_export_open(&x, c, o, lmcache_gds_keeps, "lmcache-gds", e)) return -1;
    const unsigned rank = kvc_lmcache_shape(&x.chunk, dim);
    for (unsigned i = 0; i < rank; i++)
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%" PRIu64, i ? ", " : "",
                 dim[i]);
    memset(head, ' ', HEADER);
    put_u64((uint8_t *)head, HEADER - 8);
    const int n =
        snprintf(head + 8, HEADER - 8,
                 "{\"kvcache\": {\"dtype\": \"%s\", \"shape\": [%s], \"data_offsets\": [0, %" PRIu64
                 "], \"fmt\": %u, \"__metadata__\": {\"lmcache_version\": \"1\"}}}",
                 name_of_dtype(x.chunk.info->dtype), shape, x.chunk.bytes,
                 kvc_lmcache_layouts[x.chunk.layout].fmt);
    head[8 + n] = ' ';
    int status = kvc_sink_write(out, head, HEADER, e);
    if (!status) status = kvc_lmcache_export_data(&x, out, e);
    kvc_lmcache_export_close(&x);
    return status;
}

static int lmcache_gds_is_default(const struct kvc_cache *c) {
    return kvc_lmcache_is_default(c, HEADER);
}

const struct kvc_format kvc_format_lmcache_gds = {
    .name = "lmcache-gds",
    .summary = "chunks of LMCache's GdsBackend",
    .suffix = ".kvcache.safetensors",
    .import_options = kvc_lmcache_header_options,
    .export_options = kvc_lmcache_export_options,
    .lacks = KVC_LMCACHE_LACKS,
    .keeps = lmcache_gds_keeps,
    .is_default = lmcache_gds_is_default,
    .takes_members = 1,
    .probe = lmcache_gds_probe,
    .import = lmcache_gds_import,
    .export = lmcache_gds_export,
};
