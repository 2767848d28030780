/* zip_members.c: reads the members of a zip by libarchive, which checks their CRC-32. Not for the
 * meaning of the members. */
#include "formats/io/zip_members.h"

#include "codecs/memory.h"
#include "formats/io/libarchive.h"
#include "formats/io/printable.h"
#include "formats/io/utf8_locale.h"
#include "formats/io/zip.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Deflate compresses by at most a factor of 1032: a zip that claims more is malicious. */
#define MAX_RATIO 1032

struct reader {
    struct kvc_zip_members *members;
    struct kvc_zip places;
    struct kvc_window window; /* the bytes that libarchive reads */
    uint64_t at;              /* libarchive reads on from here */
    struct archive *archive;
    int spool;        /* descriptor; -1 when nothing was spooled */
    uint64_t spooled; /* bytes in it */
    uint64_t claimed; /* sizes of all members */
};

static int fail_zip(struct reader *z, const char *what, struct kvc_error *e) {
    const char *text = kvc_libarchive.error_string(z->archive);
    char name[96], reason[160];
    return kvc_fail(e, KVC_ERR_DAMAGED, "%s: %s", kvc_name_show(what, name, sizeof name),
                    kvc_name_show(text ? text : "damaged zip", reason, sizeof reason));
}

/* --- libarchive over the input --- */

static la_ssize_t read_input(struct archive *a, void *state, const void **buffer) {
    struct reader *z = state;
    const uint64_t left = z->members->in->size - z->at;
    const uint8_t *bytes = left ? kvc_window_at(&z->window, z->at, 1, NULL) : z->members->in->data;
    if (!bytes) {
        kvc_libarchive.set_error(a, EIO, "the file cannot be read");
        return -1;
    }
    const uint64_t n = left ? z->window.offset + z->window.n - z->at : 0;
    *buffer = bytes;
    z->at += n;
    return (la_ssize_t)n;
}

static la_int64_t skip_input(struct archive *a, void *state, la_int64_t n) {
    struct reader *z = state;
    (void)a;
    if (n < 0 || (uint64_t)n > z->members->in->size - z->at)
        n = (la_int64_t)(z->members->in->size - z->at);
    z->at += (uint64_t)n;
    return n;
}

static la_int64_t seek_input(struct archive *a, void *state, la_int64_t offset, int whence) {
    struct reader *z = state;
    const uint64_t base = whence == SEEK_CUR   ? z->at
                          : whence == SEEK_END ? z->members->in->size
                                               : 0;
    int64_t to;
    (void)a;
    if (__builtin_add_overflow((int64_t)base, offset, &to) || to < 0 ||
        (uint64_t)to > z->members->in->size)
        return ARCHIVE_FATAL;
    z->at = (uint64_t)to;
    return to;
}

/* Checks that the bytes that libarchive returns are those in the file. */
static int is_at(const struct kvc_input *in, uint64_t at, const void *block, size_t n,
                 struct kvc_error *e) {
    if (in->data + at == block) return 1;
    if (kvc_input_pin(in, at, n, e)) return 0;
    const int same = memcmp(in->data + at, block, n) == 0;
    kvc_input_unpin(in, at, n);
    if (!same) kvc_fail(e, KVC_ERR_DAMAGED, "the central directory and the members disagree");
    return same;
}

/* Reads the current member to its end, which checks its CRC, and records the place of its bytes. */
static int read_member(struct reader *z, struct kvc_zip_member *m, const char *path,
                       struct kvc_error *e) {
    const void *block;
    size_t n;
    la_int64_t offset;
    uint64_t done = 0;
    int r;
    const uint64_t stored = kvc_zip_stored(&z->places, z->members->in, path, m->size);
    m->in_place = stored != 0;
    m->at = stored ? stored : z->spooled;
    while ((r = kvc_libarchive.read_data_block(z->archive, &block, &n, &offset)) == ARCHIVE_OK) {
        if (!n) continue;
        if (offset < 0 || (uint64_t)offset != done || n > m->size - done)
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "a member holds more than the %" PRIu64 " bytes it claims", m->size);
        if (m->in_place) {
            if (!is_at(z->members->in, m->at + done, block, n, e)) return -1;
        } else {
            if (z->spool < 0 && (z->spool = kvc_spool_open(e)) < 0) return -1;
            if (kvc_spool_write(z->spool, block, n, e)) return -1;
            z->spooled += n;
        }
        done += n;
    }
    if (r != ARCHIVE_EOF) return fail_zip(z, m->name, e);
    if (done != m->size)
        return kvc_fail(e, KVC_ERR_DAMAGED, "a member claims %" PRIu64 " bytes but holds %" PRIu64,
                        m->size, done);
    return 0;
}

static int add_member(struct reader *z, struct archive_entry *entry, kvc_zip_wants *wants,
                      const void *state, struct kvc_error *e) {
    const char *path = kvc_libarchive.entry_pathname(entry);
    la_int64_t size = kvc_libarchive.entry_size(entry);
    if (!path || !kvc_libarchive.entry_size_is_set(entry) || size < 0)
        return kvc_fail(e, KVC_ERR_DAMAGED, "a member has no name or no size");
    struct kvc_zip_members *to = z->members;
    struct kvc_zip_member *grown = kvc_room_for_one(to->member, to->n, sizeof *grown);
    if (!grown) return kvc_fail_memory(e, "members");
    to->member = grown;
    struct kvc_zip_member *m = &to->member[to->n];
    *m = (struct kvc_zip_member){.name = strdup(path), .size = (uint64_t)size};
    if (!m->name) return kvc_fail_memory(e, "a name");
    to->n++;
    if (__builtin_add_overflow(z->claimed, m->size, &z->claimed) ||
        z->claimed / MAX_RATIO > z->members->in->size)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "the members claim %" PRIu64 " bytes or more, which cannot come from a "
                        "file of %" PRIu64,
                        z->claimed, z->members->in->size);
    m->is_read = wants(state, path);
    return m->is_read ? read_member(z, m, path, e) : 0;
}

static int compare_members(const void *pa, const void *pb) {
    const struct kvc_zip_member *const *a = pa, *const *b = pb;
    return strcmp((*a)->name, (*b)->name);
}

/* Sorts the names, no two of which may be equal. */
static int sort_names(struct kvc_zip_members *z, struct kvc_error *e) {
    const struct kvc_zip_member **sorted = z->by_name = kvc_alloc(z->n, sizeof *sorted);
    if (!sorted) return kvc_fail_memory(e, "names");
    for (size_t i = 0; i < z->n; i++) sorted[i] = &z->member[i];
    qsort(sorted, z->n, sizeof *sorted, compare_members);
    for (size_t i = 1; i < z->n; i++) {
        char shown[96];
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            return kvc_fail(e, KVC_ERR_DAMAGED, "two members are named '%s'",
                            kvc_name_show(sorted[i]->name, shown, sizeof shown));
    }
    return 0;
}

/* Reads the zip by its central directory, which libarchive lists in the order of the members in the
 * file. */
static int read_zip(struct reader *z, kvc_zip_wants *wants, const void *state,
                    struct kvc_error *e) {
    static const char no_zip[] = "no zip, or its central directory is missing (cut short)";
    struct archive_entry *entry;
    int r;
    if (kvc_zip_open(&z->places, z->members->in, e)) return -1;
    if (!(z->archive = kvc_libarchive.read_new())) return kvc_fail_memory(e, "reading a zip");
    if (kvc_libarchive.read_support_format_zip_seekable(z->archive) != ARCHIVE_OK ||
        kvc_libarchive.read_set_read_callback(z->archive, read_input) != ARCHIVE_OK ||
        kvc_libarchive.read_set_skip_callback(z->archive, skip_input) != ARCHIVE_OK ||
        kvc_libarchive.read_set_seek_callback(z->archive, seek_input) != ARCHIVE_OK ||
        kvc_libarchive.read_set_callback_data(z->archive, z) != ARCHIVE_OK ||
        kvc_libarchive.read_open1(z->archive) != ARCHIVE_OK)
        return fail_zip(z, no_zip, e);
    while ((r = kvc_libarchive.read_next_header(z->archive, &entry)) == ARCHIVE_OK)
        if (add_member(z, entry, wants, state, e)) return -1;
    if (r != ARCHIVE_EOF)
        return fail_zip(z, z->members->n || r == ARCHIVE_WARN ? "a member cannot be read" : no_zip,
                        e);
    return sort_names(z->members, e);
}

int kvc_zip_read(struct kvc_zip_members *z, const struct kvc_input *in, kvc_zip_wants *wants,
                 const void *state, struct kvc_error *e) {
    struct reader r = {.members = z, .window = {.in = in}, .spool = -1};
    if (kvc_libarchive_load(e)) return -1;
    *z = (struct kvc_zip_members){.in = in};
    kvc_input_memory(&z->spool, in->name, "", 0);
    /* libarchive accepts every name of a member only in a UTF-8 locale; it is that of this thread
     * meanwhile */
    struct kvc_utf8_locale utf8 = kvc_utf8_begin();
    int status = read_zip(&r, wants, state, e);
    kvc_utf8_end(&utf8);
    if (r.spool >= 0 && status) close(r.spool);
    else if (r.spool >= 0) status = kvc_spool_input(&z->spool, r.spool, in->name, e);
    kvc_libarchive.read_free(r.archive);
    kvc_window_close(&r.window);
    kvc_zip_close(&r.places);
    if (status) kvc_zip_free(z);
    return status;
}

void kvc_zip_free(struct kvc_zip_members *z) {
    for (size_t i = 0; i < z->n; i++) free(z->member[i].name);
    free(z->member);
    free(z->by_name);
    kvc_input_close(&z->spool);
    *z = (struct kvc_zip_members){.n = 0};
}

static int compare_name(const void *name, const void *member) {
    return strcmp(name, (*(const struct kvc_zip_member *const *)member)->name);
}

size_t kvc_zip_find(const struct kvc_zip_members *z, const char *name) {
    const struct kvc_zip_member *const *found = z->n ? bsearch(name, z->by_name, z->n,
                                                               sizeof *found, compare_name)
                                                     : NULL;
    return found ? (size_t)(*found - z->member) : SIZE_MAX;
}

const struct kvc_input *kvc_zip_member_input(const struct kvc_zip_members *z, size_t i) {
    return z->member[i].in_place ? z->in : &z->spool;
}
