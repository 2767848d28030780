/* npz.c: KV caches as a zip of .npy arrays, as numpy.savez() writes them. Not for the meaning of names (arrays_read.c), for one
 * array of the zip (npy.c) or for reading members (zip_members.c). A file with deflated members is exported as an npz of equal
 * values, not as the same file. */
#include "formats/engines/arrays_write.h"
#include "codecs/memory.h"
#include "formats/cache/format.h"
#include "formats/cache/mapped.h"
#include "formats/engines/arrays_read.h"
#include "formats/engines/npy.h"
#include "formats/io/zip_members.h"
#include "formats/io/libarchive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- reading --- */

static int is_array(const char *path) {
    const size_t n = strlen(path);
    return n > 4 && strcmp(path + n - 4, ".npy") == 0;
}

/* Selects the arrays with a meaning. Others stay private bytes of the file; they are not decompressed. */
static int wants(const void *state, const char *path) {
    if (!is_array(path)) return 0;
    char *name = strndup(path, strlen(path) - 4);
    const int wanted = name && (kvc_name_of(name, state).kind != KVC_NAME_OTHER || kvc_name_is_beside(name));
    free(name);
    return wanted;
}

/* Lists the arrays of the members in the order of the file. Arrays of other names keep their name for messages only. Removes
 * ".npy" from the names of arrays. */
static int make_arrays(struct kvc_zip_members *z, struct kvc_array *array, const struct kvc_import_options *o,
                       struct kvc_error *e) {
    for (size_t i = 0; i < z->n; i++) {
        struct kvc_zip_member *m = &z->member[i];
        if (is_array(m->name)) m->name[strlen(m->name) - 4] = '\0';
        array[i] = (struct kvc_array){.name = m->name, .type = "?", .tensor = KVC_NONE};
        if (!m->is_read) continue;
        if (!m->size && kvc_name_of(m->name, o).kind == KVC_NAME_OTHER) continue;
        if (!m->size) return kvc_fail(e, KVC_ERR_DAMAGED, "an array's member is empty");
        if (!kvc_npy_read(&array[i], kvc_zip_member_input(z, i), m->at, m->size, e)) continue;
        if (kvc_name_of(m->name, o).kind != KVC_NAME_OTHER) return -1;
        array[i] = (struct kvc_array){.name = m->name, .type = "?", .tensor = KVC_NONE}; /* read for a message only */
    }
    return 0;
}

static int wants_all(const void *state, const char *path) {
    (void)state;
    return is_array(path);
}

/* Reads the members. Where no name is that of K or V, all arrays are read, for a message by their shapes. Refuses a zip of other
 * files. */
static int read_members(struct kvc_zip_members *z, const struct kvc_input *in, const struct kvc_import_options *o,
                        struct kvc_error *e) {
    char shown[96];
    int arrays = 0, read = 0;
    if (kvc_zip_read(z, in, wants, o, e)) return -1;
    for (size_t i = 0; i < z->n; i++) {
        arrays |= is_array(z->member[i].name);
        read |= z->member[i].is_read;
    }
    if (read || !z->n) return 0;
    if (!arrays)
        kvc_fail(e, KVC_ERR_UNKNOWN, "a zip of files that are no arrays (%s); unpack it, and give the files or their folder",
                 kvc_name_show(z->member[0].name, shown, sizeof shown));
    kvc_zip_free(z);
    return arrays ? kvc_zip_read(z, in, wants_all, NULL, e) : -1;
}

/* Returns 1 when every tensor is in the file itself. */
static int all_in_place(const struct kvc_zip_members *z, const struct kvc_array *array) {
    for (size_t i = 0; i < z->n; i++)
        if (array[i].tensor != KVC_NONE && !z->member[i].in_place) return 0;
    return 1;
}

static int build(struct kvc_cache *c, struct kvc_zip_members *z, const struct kvc_import_options *o, struct kvc_error *e) {
    struct kvc_array *array = kvc_alloc(z->n, sizeof *array);
    if (!array) return kvc_fail_memory(e, "arrays");
    int status = make_arrays(z, array, o, e);
    if (!status) status = kvc_names_build(c, array, z->n, o, e);
    if (!status && all_in_place(z, array)) status = kvc_names_extents(c, array, z->n, z->in, e);
    if (!status) status = kvc_names_meta(c, "npz", z->in->size, o, KVC_PAIRING_HALVES, 1, e);
    if (!status) status = kvc_names_first_token(c, e);
    if (!status) status = kvc_cache_finish(c, e);
    free(array);
    return status;
}

static struct kvc_cache *import(const struct kvc_bundle *b, const struct kvc_import_options *o, struct kvc_error *e) {
    struct kvc_zip_members z;
    struct kvc_cache *c = NULL;
    if (kvc_name_check_map(o, e) || read_members(&z, b->one.in, o, e)) return NULL;
    int status = (c = kvc_cache_new(e)) ? kvc_cache_map(c, kvc_zip_spool_close, z.spool, e) : -1;
    if (!status) z.spool_is_taken = 1;
    if (!status) status = build(c, &z, o, e);
    kvc_zip_free(&z);
    if (!status) return c;
    kvc_cache_free(c);
    return NULL;
}

static int probe(const struct kvc_bundle *b, char *why, size_t size) {
    uint8_t head[4];
    if (b->one.in->size >= 22 && !kvc_input_copy(b->one.in, 0, head, sizeof head, NULL) && memcmp(head, "PK\3\4", 4) == 0)
        return 1;
    snprintf(why, size, "does not begin as a zip does");
    return 0;
}

/* --- writing --- */

static int keeps(enum kvc_dtype dtype) {
    return dtype == KVC_F32 || dtype == KVC_F16 || dtype == KVC_U8 || dtype == KVC_I8;
}

struct writer {
    struct kvc_sink *out;
    struct kvc_error *e;
    int failed; /* 1: the sink failed, with its error in *e */
};

/* Writes to the sink and always reports success, because libarchive 3.6 leaks the zip writer when its output fails. Bytes after a
 * failure are dropped. */
static la_ssize_t write_bytes(struct archive *a, void *state, const void *data, size_t n) {
    struct writer *w = state;
    (void)a;
    if (!w->failed && kvc_sink_write(w->out, data, n, w->e)) w->failed = 1;
    return (la_ssize_t)n;
}

static int write_item(struct archive *a, struct archive_entry *entry, const struct kvc_arrays *list, size_t i,
                      struct kvc_error *e) {
    const struct kvc_arrays_item *item = &list->item[i];
    char header[256], name[64];
    uint8_t *bytes;
    size_t n = kvc_npy_print(item, header, sizeof header);
    if (kvc_arrays_read(list, i, &bytes, e)) return -1;
    snprintf(name, sizeof name, "%s.npy", item->name);
    kvc_libarchive.entry_clear(entry);
    kvc_libarchive.entry_set_pathname(entry, name);
    kvc_libarchive.entry_set_filetype(entry, AE_IFREG);
    kvc_libarchive.entry_set_perm(entry, 0644);
    kvc_libarchive.entry_set_size(entry, (la_int64_t)(n + item->bytes));
    /* No time is set, so that equal caches give equal files; zip then shows its first day, 1980-01-01. */
    int status = kvc_libarchive.write_header(a, entry) == ARCHIVE_OK &&
                         kvc_libarchive.write_data(a, header, n) == (la_ssize_t)n &&
                         kvc_libarchive.write_data(a, bytes, (size_t)item->bytes) == (la_ssize_t)item->bytes
                     ? 0
                     : -1;
    free(bytes);
    return status;
}

/* Writes stored members in the order and with the names of arrays_write.h. bf16 and eight-bit floats, for which numpy has no
 * types, become float32: exact, but larger and of another dtype. Metadata are not written. */
static int export(const struct kvc_cache *c, const struct kvc_export_options *o, struct kvc_sink *out, struct kvc_error *e) {
    struct kvc_arrays list;
    struct kvc_error mine = {.code = KVC_OK};
    struct writer w = {out, &mine, 0};
    if (kvc_libarchive_load(e) || kvc_arrays_list(&list, c, o, keeps, e)) return -1;
    struct archive *a = kvc_libarchive.write_new();
    struct archive_entry *entry = kvc_libarchive.entry_new();
    int ok = a && entry && kvc_libarchive.write_set_format_zip(a) == ARCHIVE_OK &&
             kvc_libarchive.write_set_format_option(a, "zip", "compression", "store") == ARCHIVE_OK &&
             kvc_libarchive.write_set_bytes_in_last_block(a, 1) == ARCHIVE_OK &&
             kvc_libarchive.write_open2(a, &w, NULL, write_bytes, NULL, NULL) == ARCHIVE_OK;
    for (size_t i = 0; i < list.n && ok; i++) ok = write_item(a, entry, &list, i, &mine) == 0 && !w.failed;
    if (!ok) w.failed = 1; /* write nothing more */
    ok = ok && kvc_libarchive.write_close(a) == ARCHIVE_OK && !w.failed;
    if (!ok && mine.code == KVC_OK)
        kvc_fail(&mine, KVC_ERR_IO, "cannot write a zip: %s",
                 a && kvc_libarchive.error_string(a) ? kvc_libarchive.error_string(a) : "out of memory");
    if (a) kvc_libarchive.write_free(a);
    kvc_libarchive.entry_free(entry);
    kvc_arrays_free(&list);
    if (!ok && e) *e = mine;
    return ok ? 0 : -1;
}

const struct kvc_format kvc_format_npz = {
    .name = "npz",
    .summary = "numpy arrays in a zip",
    .suffix = ".npz",
    .import_options = kvc_arrays_options,
    .source = KVC_SOURCE_NPZ,
    .lacks = KVC_LACKS_COORDINATES | KVC_LACKS_CHECKPOINTS | KVC_LACKS_METADATA | KVC_LACKS_PAIRING | KVC_LACKS_UNKNOWNS,
    .keeps = keeps,
    .no_source = "a compressed npz's own bytes are not recorded",
    .probe = probe,
    .import = import,
    .export = export,
};
