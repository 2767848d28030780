/* npz.c: KV caches as a zip of .npy arrays, as numpy.savez() writes them, or as several such files.
 * Not for the meaning of names (arrays_names.c), for one array of the zip (npy.c) or for reading
 * members (zip_members.c). A file with deflated members is exported as an npz of equal values, not
 * as the same file. */
#include "formats/engines/arrays_write.h"
#include "formats/cache/format.h"
#include "formats/cache/mapped.h"
#include "formats/engines/arrays_list.h"
#include "formats/engines/import.h"
#include "formats/engines/npy.h"
#include "formats/io/member_name.h"
#include "formats/io/libarchive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- reading --- */

static int is_array(const char *path) {
    return kvc_name_has_suffix(path, ".npy");
}

/* Selects the arrays with a meaning. Others stay private bytes of the file; they are not
 * decompressed. */
static int wants(const void *state, const char *path) {
    if (!is_array(path)) return 0;
    char *name = strndup(path, strlen(path) - 4);
    const int wanted = name && (kvc_name_of(name, state).kind != KVC_NAME_OTHER ||
                                kvc_name_is_beside(name));
    free(name);
    return wanted;
}

static int wants_all(const void *state, const char *path) {
    (void)state;
    return is_array(path);
}

/* Adds the arrays of a zip in the order of the file. Arrays that are not read have their names for
 * messages only. An array without a meaning may be unreadable, but not of several files, where a
 * file's name may give it one. */
static int add_arrays(struct kvc_array_list *list, struct kvc_zip_members *z, size_t member,
                      int is_file, const struct kvc_import_options *o, struct kvc_error *e) {
    for (size_t i = 0; i < z->n; i++) {
        struct kvc_zip_member *m = &z->member[i];
        if (is_array(m->name)) m->name[strlen(m->name) - 4] = '\0';
        const int is_known = kvc_name_of(m->name, o).kind != KVC_NAME_OTHER;
        const struct kvc_array unread = {.name = m->name,
                                         .type = "?",
                                         .tensor = KVC_NONE,
                                         .member = member};
        struct kvc_array a = unread;
        if (m->is_read && !m->size && is_known)
            return kvc_fail(e, KVC_ERR_DAMAGED, "an array's member is empty");
        if (m->is_read && m->size &&
            kvc_npy_read(&a, kvc_zip_member_input(z, i), m->at, m->size, e)) {
            if (is_known || !(is_file || kvc_name_is_beside(m->name))) return -1;
            a = unread;
        }
        if (kvc_arrays_add(list, &a, e)) return -1;
    }
    return 0;
}

/* Reads the members of a zip. Where no name is that of K or V, all arrays are read, for a message
 * by their shapes. Refuses a zip of other files. */
static int read_members(struct kvc_zip_members *z, const struct kvc_input *in,
                        const struct kvc_import_options *o, struct kvc_error *e) {
    char shown[96];
    int arrays = 0, read = 0;
    if (kvc_zip_read(z, in, wants, o, e)) return -1;
    for (size_t i = 0; i < z->n; i++) {
        arrays |= is_array(z->member[i].name);
        read |= z->member[i].is_read;
    }
    if (read || !z->n) return 0;
    if (!arrays)
        kvc_fail(
            e, KVC_ERR_UNKNOWN_FORMAT,
            "a zip of files that are no arrays (%s); unpack it, and give the files or their folder",
            kvc_name_show(z->member[0].name, shown, sizeof shown));
    kvc_zip_free(z);
    return arrays ? kvc_zip_read(z, in, wants_all, NULL, e) : -1;
}

static const char *const suffixes[] = {".npz", ".npy", NULL};

/* Adds the arrays of a member: an npz, or one array, whose name is that of the file. */
static int read_member(struct kvc_array_list *list, struct kvc_zip_members *z,
                       const struct kvc_bundle *b, size_t i, const struct kvc_import_options *o,
                       struct kvc_error *e) {
    const struct kvc_input *in = kvc_bundle_open(b, i, e);
    if (!in) return -1;
    if (b->is_file || !is_array(b->member[i].name)) {
        if (b->is_file ? read_members(z, in, o, e) : kvc_zip_read(z, in, wants_all, NULL, e))
            return -1;
        return add_arrays(list, z, i, b->is_file, o, e);
    }
    char *name = strndup(b->member[i].name, strlen(b->member[i].name) - 4); /* for messages */
    struct kvc_array a = {.name = name ? name : "", .tensor = KVC_NONE, .member = i};
    const int status = kvc_npy_read(&a, in, 0, in->size, e);
    free(name);
    a.name = "";
    return status ? -1 : kvc_arrays_add(list, &a, e);
}

static int read_all(struct kvc_array_list *list, struct kvc_zip_members *zip,
                    const struct kvc_bundle *b, const struct kvc_import_options *o,
                    struct kvc_error *e) {
    for (size_t i = 0; i < b->n; i++)
        if (kvc_member_is_read(b, i, suffixes) && read_member(list, &zip[i], b, i, o, e))
            return kvc_member_failed(b, i, e);
    if (kvc_arrays_name_members(list, b, o, e)) return -1;
    return kvc_arrays_split(list, o, e);
}

static int npz_build(struct kvc_cache *c, struct kvc_array_list *list, const struct kvc_bundle *b,
                     const struct kvc_import_options *o, struct kvc_error *e) {
    if (kvc_names_build(c, list->array, list->n, o, e)) return -1;
    if (kvc_arrays_source(c, list, b, e)) return -1;
    if (kvc_import_meta_assumed(c, "npz", b, o, 0, e)) return -1;
    if (kvc_names_first_token(c, e)) return -1;
    return kvc_cache_finish(c, e);
}

static struct kvc_cache *npz_import(const struct kvc_bundle *b, const struct kvc_import_options *o,
                                    struct kvc_error *e) {
    return kvc_arrays_of_zips(b, o, read_all, npz_build, e);
}

static int npz_probe_file(const struct kvc_bundle *b, size_t i, const struct kvc_input *in,
                          char *why, size_t size) {
    const int is_zip = b->is_file || !is_array(b->member[i].name);
    uint8_t head[6];
    snprintf(why, size,
             b->is_file ? "does not begin as a zip does"
                        : "a file does not begin as an npz or a npy does");
    return in->size >= 22 && !kvc_input_copy(in, 0, head, sizeof head, NULL) &&
           memcmp(head, is_zip ? "PK\3\4" : "\x93NUMPY", is_zip ? 4 : 6) == 0;
}

static int npz_probe(const struct kvc_bundle *b, char *why, size_t size) {
    return kvc_members_probe(b, suffixes, "no file is named *.npz or *.npy", npz_probe_file, why,
                             size);
}

/* --- writing --- */

static int npz_keeps(enum kvc_dtype dtype) {
    return dtype == KVC_F32 || dtype == KVC_F16 || dtype == KVC_U8 || dtype == KVC_I8;
}

struct writer {
    struct kvc_sink *out;
    struct kvc_error *e;
    int failed; /* 1: the sink failed, with its error in *e */
};

/* Writes to the sink and always reports success, because libarchive 3.6 leaks the zip writer when
 * its output fails. Bytes after a failure are dropped. */
static la_ssize_t write_bytes(struct archive *a, void *state, const void *data, size_t n) {
    struct writer *w = state;
    (void)a;
    if (!w->failed && kvc_sink_write(w->out, data, n, w->e)) w->failed = 1;
    return (la_ssize_t)n;
}

static int write_item(struct archive *a, struct archive_entry *entry, const struct kvc_arrays *list,
                      size_t i, struct kvc_error *e) {
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
    /* No time is set, so that equal caches give equal files; zip then shows its first day,
     * 1980-01-01. */
    int status = kvc_libarchive.write_header(a, entry) == ARCHIVE_OK &&
                         kvc_libarchive.write_data(a, header, n) == (la_ssize_t)n &&
                         kvc_libarchive.write_data(a, bytes, (size_t)item->bytes) ==
                             (la_ssize_t)item->bytes
                     ? 0
                     : -1;
    free(bytes);
    return status;
}

/* Writes stored members in the order and with the names of arrays_write.h. bf16 and eight-bit
 * floats, for which numpy has no types, become float32: exact, but larger and of another dtype.
 * Metadata are not written. */
static int npz_export(const struct kvc_cache *c, const struct kvc_export_options *o,
                      struct kvc_sink *out, struct kvc_error *e) {
    struct kvc_arrays list;
    struct kvc_error mine = {.code = KVC_OK};
    struct writer w = {out, &mine, 0};
    if (kvc_libarchive_load(e) || kvc_arrays_list(&list, c, o, npz_keeps, KVC_IDS_FROM_0, e))
        return -1;
    struct archive *a = kvc_libarchive.write_new();
    struct archive_entry *entry = kvc_libarchive.entry_new();
    int ok = a && entry && kvc_libarchive.write_set_format_zip(a) == ARCHIVE_OK &&
             kvc_libarchive.write_set_format_option(a, "zip", "compression", "store") ==
                 ARCHIVE_OK &&
             kvc_libarchive.write_set_bytes_in_last_block(a, 1) == ARCHIVE_OK &&
             kvc_libarchive.write_open(a, &w, NULL, write_bytes, NULL) == ARCHIVE_OK;
    for (size_t i = 0; i < list.n && ok; i++)
        ok = write_item(a, entry, &list, i, &mine) == 0 && !w.failed;
    if (!ok) w.failed = 1; /* write nothing more */
    ok = ok && kvc_libarchive.write_close(a) == ARCHIVE_OK && !w.failed;
    if (!ok && mine.code == KVC_OK)
        kvc_fail(&mine, KVC_ERR_IO, "cannot write a zip: %s",
                 a && kvc_libarchive.error_string(a) ? kvc_libarchive.error_string(a)
                                                     : "out of memory");
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
    .takes_members = 1,
    .import_options = kvc_arrays_options,
    .lacks = KVC_LACKS_COORDINATES | KVC_LACKS_SNAPSHOTS | KVC_LACKS_METADATA | KVC_LACKS_PAIRING |
             KVC_LACKS_UNKNOWNS,
    .keeps = npz_keeps,
    .no_source = "a compressed npz's own bytes are not recorded",
    .probe = npz_probe,
    .import = npz_import,
    .export = npz_export,
};
