/* npz.c: KV caches as a zip of .npy arrays, as numpy.savez() writes them. Not for the meaning of names (arrays_read.c) or for one
 * array of the zip (npy.c).
 *
 * Members are read by libarchive, which checks their CRC-32. Stored arrays are used in place, so that the file can be restored. A
 * deflated member is decompressed into a temporary file; an export then makes an npz of equal values, not the same file. */
#include "formats/engines/arrays_write.h"
#include "codecs/memory.h"
#include "formats/io/bytes.h"
#include "formats/cache/format.h"
#include "formats/cache/mapped.h"
#include "formats/engines/arrays_read.h"
#include "formats/engines/npy.h"
#include "formats/io/zip.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Deflate compresses by at most a factor of 1032: a zip that claims more is malicious. */
#define MAX_RATIO 1032

/* --- reading --- */

struct member {
    char *name; /* without ".npy" */
    int is_npy;
    int in_place;      /* 1: the data are in the file; 0: in the spool */
    uint64_t at, size; /* of the data, bytes */
};

struct zip {
    const struct kvc_input *in;
    struct kvc_zip places;
    struct kvc_window window; /* the bytes that libarchive reads */
    uint64_t at;              /* libarchive reads on from here */
    struct archive *archive;
    struct member *member;
    size_t n;
    int spool;        /* descriptor; -1 when nothing was spooled, or when it is mapped */
    uint64_t spooled; /* bytes in it */
    uint64_t claimed; /* sizes of all members */
};

/* The decompressed members, owned by the cache. */
struct spool {
    void *map;
    uint64_t size;
    struct kvc_input in; /* of the spool */
};

static void spool_close(void *owner) {
    struct spool *s = owner;
    if (s->map) munmap(s->map, (size_t)s->size);
    free(s);
}

static void zip_close(struct zip *z) {
    for (size_t i = 0; i < z->n; i++) free(z->member[i].name);
    free(z->member);
    if (z->spool >= 0) close(z->spool);
    archive_read_free(z->archive);
    kvc_window_close(&z->window);
    kvc_zip_close(&z->places);
}

static int fail_zip(struct zip *z, const char *what, struct kvc_error *e) {
    const char *text = archive_error_string(z->archive);
    char name[96], reason[160];
    return kvc_fail(e, KVC_ERR_DAMAGED, "%s: %s", kvc_name_show(what, name, sizeof name),
                    kvc_name_show(text ? text : "damaged zip", reason, sizeof reason));
}

/* --- libarchive over the input --- */

static la_ssize_t read_input(struct archive *a, void *state, const void **buffer) {
    struct zip *z = state;
    const uint64_t left = z->in->size - z->at;
    const uint8_t *bytes = left ? kvc_window_at(&z->window, z->at, 1, NULL) : z->in->data;
    if (!bytes) {
        archive_set_error(a, EIO, "the file cannot be read");
        return -1;
    }
    const uint64_t n = left ? z->window.offset + z->window.n - z->at : 0;
    *buffer = bytes;
    z->at += n;
    return (la_ssize_t)n;
}

static la_int64_t skip_input(struct archive *a, void *state, la_int64_t n) {
    struct zip *z = state;
    (void)a;
    if (n < 0 || (uint64_t)n > z->in->size - z->at) n = (la_int64_t)(z->in->size - z->at);
    z->at += (uint64_t)n;
    return n;
}

static la_int64_t seek_input(struct archive *a, void *state, la_int64_t offset, int whence) {
    struct zip *z = state;
    const uint64_t base = whence == SEEK_CUR ? z->at : whence == SEEK_END ? z->in->size : 0;
    int64_t to;
    (void)a;
    if (__builtin_add_overflow((int64_t)base, offset, &to) || to < 0 || (uint64_t)to > z->in->size) return ARCHIVE_FATAL;
    z->at = (uint64_t)to;
    return to;
}

/* Checks that the bytes that libarchive returns are those in the file. */
static int is_at(const struct kvc_input *in, uint64_t at, const void *block, size_t n, struct kvc_error *e) {
    if (in->data + at == block) return 1;
    if (kvc_input_pin(in, at, n, e)) return 0;
    const int same = memcmp(in->data + at, block, n) == 0;
    kvc_input_unpin(in, at, n);
    if (!same) kvc_fail(e, KVC_ERR_DAMAGED, "the central directory and the members disagree");
    return same;
}

/* Reads the current member to its end, which checks its CRC, and records the place of its bytes. */
static int read_member(struct zip *z, struct member *m, const char *path, struct kvc_error *e) {
    const void *block;
    size_t n;
    la_int64_t offset;
    uint64_t done = 0;
    int r;
    const uint64_t stored = m->size ? kvc_zip_stored(&z->places, z->in, path, m->size) : 0;
    m->in_place = stored != 0;
    m->at = stored ? stored : z->spooled;
    while ((r = archive_read_data_block(z->archive, &block, &n, &offset)) == ARCHIVE_OK) {
        if (!n) continue;
        if (offset < 0 || (uint64_t)offset != done || n > m->size - done)
            return kvc_fail(e, KVC_ERR_DAMAGED, "a member holds more than the %" PRIu64 " bytes it claims", m->size);
        if (m->in_place) {
            if (!is_at(z->in, m->at + done, block, n, e)) return -1;
        } else {
            if (z->spool < 0 && (z->spool = kvc_spool_open(e)) < 0) return -1;
            if (kvc_spool_write(z->spool, block, n, e)) return -1;
            z->spooled += n;
        }
        done += n;
    }
    if (r != ARCHIVE_EOF) return fail_zip(z, m->name, e);
    if (done != m->size)
        return kvc_fail(e, KVC_ERR_DAMAGED, "a member claims %" PRIu64 " bytes but holds %" PRIu64, m->size, done);
    return 0;
}

static int add_member(struct zip *z, struct archive_entry *entry, const struct kvc_import_options *o, struct kvc_error *e) {
    const char *path = archive_entry_pathname(entry);
    la_int64_t size = archive_entry_size(entry);
    if (!path || !archive_entry_size_is_set(entry) || size < 0)
        return kvc_fail(e, KVC_ERR_DAMAGED, "a member has no name or no size");
    if (!(z->n & (z->n - 1))) {
        struct member *grown = kvc_realloc(z->member, z->n ? 2 * z->n : 1, sizeof *grown);
        if (!grown) return kvc_fail_memory(e, "members");
        z->member = grown;
    }
    struct member *m = &z->member[z->n];
    memset(m, 0, sizeof *m);
    m->size = (uint64_t)size;
    if (!(m->name = strdup(path))) return kvc_fail_memory(e, "a name");
    z->n++;
    size_t n = strlen(path);
    m->is_npy = n > 4 && strcmp(path + n - 4, ".npy") == 0;
    if (m->is_npy) m->name[n - 4] = 0;
    if (__builtin_add_overflow(z->claimed, m->size, &z->claimed) || z->claimed / MAX_RATIO > z->in->size)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "the members claim %" PRIu64 " bytes or more, which cannot come from a "
                        "file of %" PRIu64,
                        z->claimed, z->in->size);
    /* Arrays of other names stay private bytes of the file; they are not decompressed. */
    m->is_npy = m->is_npy && kvc_name_of(m->name, o).kind != KVC_NAME_OTHER;
    return m->is_npy ? read_member(z, m, path, e) : 0;
}

static int compare_members(const void *pa, const void *pb) {
    const struct member *const *a = pa, *const *b = pb;
    return strcmp((*a)->name, (*b)->name);
}

static int check_duplicates(const struct zip *z, struct kvc_error *e) {
    const struct member **sorted = kvc_alloc(z->n, sizeof *sorted);
    int status = sorted ? 0 : kvc_fail_memory(e, "names");
    for (size_t i = 0; i < z->n && !status; i++) sorted[i] = &z->member[i];
    if (!status) qsort(sorted, z->n, sizeof *sorted, compare_members);
    for (size_t i = 1; i < z->n && !status; i++) {
        char shown[96];
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            status = kvc_fail(e, KVC_ERR_DAMAGED, "two members are named '%s'",
                              kvc_name_show(sorted[i]->name, shown, sizeof shown));
    }
    free(sorted);
    return status;
}

/* Reads the zip by its central directory, which libarchive lists in the order of the members in the file. */
static int zip_read(struct zip *z, const struct kvc_input *in, const struct kvc_import_options *o, struct kvc_error *e) {
    static const char no_zip[] = "no zip, or its central directory is missing (cut short)";
    struct archive_entry *entry;
    int r;
    memset(z, 0, sizeof *z);
    z->in = z->window.in = in;
    z->spool = -1;
    if (kvc_zip_open(&z->places, in, e)) return -1;
    if (!(z->archive = archive_read_new())) return kvc_fail_memory(e, "reading a zip");
    if (archive_read_support_format_zip_seekable(z->archive) != ARCHIVE_OK ||
        archive_read_set_read_callback(z->archive, read_input) != ARCHIVE_OK ||
        archive_read_set_skip_callback(z->archive, skip_input) != ARCHIVE_OK ||
        archive_read_set_seek_callback(z->archive, seek_input) != ARCHIVE_OK ||
        archive_read_set_callback_data(z->archive, z) != ARCHIVE_OK || archive_read_open1(z->archive) != ARCHIVE_OK)
        return fail_zip(z, no_zip, e);
    while ((r = archive_read_next_header(z->archive, &entry)) == ARCHIVE_OK)
        if (add_member(z, entry, o, e)) return -1;
    if (r != ARCHIVE_EOF) return fail_zip(z, z->n || r == ARCHIVE_WARN ? "a member cannot be read" : no_zip, e);
    return check_duplicates(z, e);
}

/* Lists the arrays of the members in the order of the file. Arrays of other names keep their name for messages only. */
static int make_arrays(struct zip *z, const struct spool *spool, struct kvc_array *array, struct kvc_error *e) {
    for (size_t i = 0; i < z->n; i++) {
        const struct member *m = &z->member[i];
        array[i].name = m->name;
        array[i].type = "?";
        if (!m->is_npy) continue;
        if (!m->size) return kvc_fail(e, KVC_ERR_DAMAGED, "an array's member is empty");
        if (kvc_npy_read(&array[i], m->in_place ? z->in : &spool->in, m->at, m->size, e)) return -1;
    }
    return 0;
}

/* Returns 1 when every tensor is in the file itself. */
static int all_in_place(const struct zip *z, const struct kvc_array *array) {
    for (size_t i = 0; i < z->n; i++)
        if (array[i].tensor != KVC_NONE && !z->member[i].in_place) return 0;
    return 1;
}

/* Makes a new cache, which owns the decompressed members. */
static struct kvc_cache *new_cache(struct zip *z, struct spool **spool, struct kvc_error *e) {
    struct kvc_cache *c = kvc_cache_new(e);
    struct spool *s = calloc(1, sizeof *s);
    if (c && !s) kvc_fail_memory(e, "members");
    int status = c && s ? 0 : -1;
    if (!status && z->spool >= 0) {
        status = kvc_spool_map(z->spool, &s->map, &s->size, e);
        z->spool = -1;
    }
    if (s) kvc_input_memory(&s->in, z->in->name, s->map ? s->map : (const void *)"", (size_t)s->size);
    if (!status && kvc_cache_map(c, spool_close, s, e) == 0) {
        *spool = s;
        return c;
    }
    if (s) spool_close(s);
    kvc_cache_free(c);
    return NULL;
}

static int build(struct kvc_cache *c, struct zip *z, const struct spool *spool, const struct kvc_import_options *o,
                 struct kvc_error *e) {
    struct kvc_array *array = calloc(z->n ? z->n : 1, sizeof *array);
    if (!array) return kvc_fail_memory(e, "arrays");
    int status = make_arrays(z, spool, array, e);
    if (!status) status = kvc_names_build(c, array, z->n, o, e);
    if (!status && all_in_place(z, array)) status = kvc_names_extents(c, array, z->n, z->in, e);
    if (!status) status = kvc_names_meta(c, "npz", z->in->size, o, KVC_PAIRING_HALVES, 1, e);
    if (!status) status = kvc_names_first_token(c, e);
    if (!status) status = kvc_cache_finish(c, e);
    free(array);
    return status;
}

/* Calls zip_read() in a UTF-8 locale of this thread, so that libarchive accepts every name of a member in any locale of the
 * program. */
static int zip_read_utf8(struct zip *z, const struct kvc_input *in, const struct kvc_import_options *o, struct kvc_error *e) {
    locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0), before = uselocale(utf8);
    int status = zip_read(z, in, o, e);
    uselocale(before);
    if (utf8) freelocale(utf8);
    return status;
}

static struct kvc_cache *import(const struct kvc_bundle *b, const struct kvc_import_options *o, struct kvc_error *e) {
    const struct kvc_input *in = b->one.in;
    struct zip z;
    struct spool *spool = NULL;
    struct kvc_cache *c = NULL;
    if (kvc_name_check_map(o, e)) return NULL;
    if (!zip_read_utf8(&z, in, o, e)) c = new_cache(&z, &spool, e);
    if (c && build(c, &z, spool, o, e)) {
        kvc_cache_free(c);
        c = NULL;
    }
    zip_close(&z);
    return c;
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
    archive_entry_clear(entry);
    archive_entry_set_pathname(entry, name);
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_size(entry, (la_int64_t)(n + item->bytes));
    /* No time is set, so that equal caches give equal files; zip then shows its first day, 1980-01-01. */
    int status = archive_write_header(a, entry) == ARCHIVE_OK && archive_write_data(a, header, n) == (la_ssize_t)n &&
                         archive_write_data(a, bytes, (size_t)item->bytes) == (la_ssize_t)item->bytes
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
    if (kvc_arrays_list(&list, c, o, keeps, e)) return -1;
    struct archive *a = archive_write_new();
    struct archive_entry *entry = archive_entry_new();
    int ok = a && entry && archive_write_set_format_zip(a) == ARCHIVE_OK &&
             archive_write_set_format_option(a, "zip", "compression", "store") == ARCHIVE_OK &&
             archive_write_set_bytes_in_last_block(a, 1) == ARCHIVE_OK &&
             archive_write_open2(a, &w, NULL, write_bytes, NULL, NULL) == ARCHIVE_OK;
    for (size_t i = 0; i < list.n && ok; i++) ok = write_item(a, entry, &list, i, &mine) == 0 && !w.failed;
    if (!ok) w.failed = 1; /* write nothing more */
    ok = ok && archive_write_close(a) == ARCHIVE_OK && !w.failed;
    if (!ok && mine.code == KVC_OK)
        kvc_fail(&mine, KVC_ERR_IO, "cannot write a zip: %s",
                 a && archive_error_string(a) ? archive_error_string(a) : "out of memory");
    if (a) archive_write_free(a);
    archive_entry_free(entry);
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
    .lacks = KVC_LACKS_UNKNOWNS,
    .no_source = "a compressed npz's own bytes are not recorded",
    .probe = probe,
    .import = import,
    .export = export,
};
