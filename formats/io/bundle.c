/* bundle.c: members of folders, archives and lists of files. */
#include "formats/io/bundle.h"

#include "codecs/memory.h"
#include "formats/io/member_name.h"
#include "formats/io/printable.h"
#include "formats/io/utf8_locale.h"
#include "formats/io/libarchive.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_DEPTH = 32 };

void kvc_bundle_file(struct kvc_bundle *b, const struct kvc_input *in) {
    memset(b, 0, sizeof *b);
    b->name = in->name;
    b->is_file = 1;
    b->n = 1;
    b->one = (struct kvc_member){.size = in->size, .in = (struct kvc_input *)(uintptr_t)in};
    b->member = &b->one;
}

/* Adds a member that is not open; the name is copied. */
static int add_member(struct kvc_bundle *b, const char *name, uint64_t size, struct kvc_error *e) {
    char shown[96];
    if (!kvc_member_name_is_sane(name, strlen(name)))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "the name of the member '%s' is no relative path of printable text",
                        kvc_name_show(name, shown, sizeof shown));
    if (b->n == KVC_MAX_MEMBERS)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "more than %d files", KVC_MAX_MEMBERS);
    struct kvc_member *grown = kvc_room_for_one(b->member, b->n, sizeof *grown);
    if (grown) b->member = grown;
    char *own = grown ? strdup(name) : NULL;
    if (!own) return kvc_fail_memory(e, "members");
    b->member[b->n++] = (struct kvc_member){.name = own, .size = size};
    return 0;
}

static int bundle_by_name(const void *a, const void *b) {
    return strcmp(((const struct kvc_member *)a)->name, ((const struct kvc_member *)b)->name);
}

static int check_names(struct kvc_bundle *b, struct kvc_error *e) {
    struct kvc_member *sorted = kvc_alloc(b->n, sizeof *sorted);
    int status = sorted ? 0 : kvc_fail_memory(e, "members");
    if (!status && b->n) {
        memcpy(sorted, b->member, b->n * sizeof *sorted);
        qsort(sorted, b->n, sizeof *sorted, bundle_by_name);
    }
    for (size_t i = 1; i < b->n && !status; i++)
        if (strcmp(sorted[i - 1].name, sorted[i].name) == 0) {
            char shown[96];
            status = kvc_fail(e, KVC_ERR_UNSUPPORTED, "two members are named '%s'",
                              kvc_name_show(sorted[i].name, shown, sizeof shown));
        }
    free(sorted);
    return status;
}

/* --- folders --- */

/* Returns "folder/name", which the caller frees. */
static char *bundle_join(const char *folder, const char *name, struct kvc_error *e) {
    char *path;
    if (!*folder) path = strdup(name);
    else if (asprintf(&path, "%s/%s", folder, name) < 0) path = NULL;
    if (!path) kvc_fail_memory(e, "a path");
    return path;
}

static int list_folder(struct kvc_bundle *b, const char *below, unsigned depth,
                       struct kvc_error *e);

static int add_entry(struct kvc_bundle *b, const char *below, const char *entry, unsigned depth,
                     struct kvc_error *e) {
    struct stat st;
    char shown[96];
    if (strcmp(entry, ".") == 0 || strcmp(entry, "..") == 0) return 0;
    char *name = bundle_join(below, entry, e),
         *path = name ? bundle_join(b->folder, name, e) : NULL;
    int status = path ? 0 : -1;
    if (!status && stat(path, &st))
        status = kvc_fail(e, KVC_ERR_IO, "%s: %s", kvc_name_show(path, shown, sizeof shown),
                          strerror(errno));
    else if (!status && S_ISDIR(st.st_mode)) status = list_folder(b, name, depth + 1, e);
    else if (!status && S_ISREG(st.st_mode)) status = add_member(b, name, (uint64_t)st.st_size, e);
    else if (!status)
        status = kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s is neither a file nor a folder",
                          kvc_name_show(name, shown, sizeof shown));
    free(path);
    free(name);
    return status;
}

static int list_folder(struct kvc_bundle *b, const char *below, unsigned depth,
                       struct kvc_error *e) {
    char *path = *below ? bundle_join(b->folder, below, e) : strdup(b->folder);
    if (depth > MAX_DEPTH) {
        free(path);
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "folders are nested more than %d deep", MAX_DEPTH);
    }
    DIR *d = path ? opendir(path) : NULL;
    int status = 0;
    if (!path) status = kvc_fail_memory(e, "a path");
    else if (!d) status = kvc_fail(e, KVC_ERR_IO, "%s: %s", path, strerror(errno));
    for (const struct dirent *entry; !status && (errno = 0, entry = readdir(d));)
        status = add_entry(b, below, entry->d_name, depth, e);
    if (!status && errno) status = kvc_fail(e, KVC_ERR_IO, "%s: %s", path, strerror(errno));
    if (d) closedir(d);
    free(path);
    return status;
}

/* Checks that the folder itself has a file, before everything below it is listed: the user may have
 * named "/" by mistake. */
static int has_files(const char *path, struct kvc_error *e) {
    DIR *d = opendir(path);
    int found = 0, folders = 0;
    if (!d) return kvc_fail(e, KVC_ERR_IO, "%s", strerror(errno));
    for (const struct dirent *entry; !found && (entry = readdir(d));) {
        struct stat st;
        if (fstatat(dirfd(d), entry->d_name, &st, 0)) continue;
        found = S_ISREG(st.st_mode);
        folders |= S_ISDIR(st.st_mode) && strcmp(entry->d_name, ".") != 0 &&
                   strcmp(entry->d_name, "..") != 0;
    }
    closedir(d);
    if (found) return 0;
    return kvc_fail_need(e, KVC_ERR_UNKNOWN_FORMAT, folders ? KVC_NEED_EACH : KVC_NEED_NOTHING,
                         "is a folder without files");
}

int kvc_bundle_folder(struct kvc_bundle *b, const char *path, int deep,
                      const struct kvc_input_how *how, struct kvc_error *e) {
    memset(b, 0, sizeof *b);
    if (how) b->how = *how;
    b->how.sniff = NULL;
    int status = (b->folder = strdup(path)) ? 0 : kvc_fail_memory(e, "a path");
    b->name = b->folder;
    if (!status && !deep) status = has_files(path, e);
    if (!status) status = list_folder(b, "", 0, e);
    if (!status && !b->n) status = kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "is a folder without files");
    if (!status) qsort(b->member, b->n, sizeof *b->member, bundle_by_name);
    if (status) {
        kvc_error_prefix(e, path);
        kvc_bundle_close(b);
    }
    return status;
}

int kvc_bundle_files(struct kvc_bundle *b, const char *const *path, size_t n,
                     const struct kvc_input_how *how, struct kvc_error *e) {
    memset(b, 0, sizeof *b);
    b->name = n ? path[0] : "";
    int status = 0;
    for (size_t i = 0; i < n && !status; i++) {
        const char *slash = strrchr(path[i], '/');
        status = add_member(b, slash ? slash + 1 : path[i], 0, e);
        if (status) break;
        struct kvc_member *m = &b->member[b->n - 1];
        if (!(m->in = calloc(1, sizeof *m->in))) status = kvc_fail_memory(e, "a file");
        else if ((status = kvc_input_open_how(m->in, path[i], how ? how : &b->how, e))) {
            free(m->in);
            m->in = NULL;
        } else m->size = m->in->size;
    }
    if (!status) status = check_names(b, e);
    if (status) kvc_bundle_close(b);
    return status;
}

/* --- archives --- */

int kvc_input_is_archive(const struct kvc_input *in) {
    char magic[5];
    return in->size >= 512 && !kvc_input_copy(in, 257, magic, sizeof magic, NULL) &&
           memcmp(magic, "ustar", 5) == 0;
}

static la_ssize_t read_input(struct archive *a, void *state, const void **buffer) {
    struct kvc_window *w = state;
    const uint64_t at = w->offset + w->n, left = w->in->size - at;
    const uint8_t *bytes = left ? kvc_window_at(w, at, 1, NULL) : w->in->data;
    if (!bytes) {
        kvc_libarchive.set_error(a, EIO, "cannot be read");
        return -1;
    }
    *buffer = bytes;
    return left ? (la_ssize_t)w->n : 0;
}

static int spool_member(struct archive *a, int fd, uint64_t *size, struct kvc_error *e) {
    const void *block;
    size_t n;
    la_int64_t offset;
    int r;
    *size = 0;
    while ((r = kvc_libarchive.read_data_block(a, &block, &n, &offset)) == ARCHIVE_OK) {
        if (!n) continue;
        if (offset < 0 || (uint64_t)offset != *size)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "a member has holes");
        if (kvc_spool_write(fd, block, n, e)) return -1;
        *size += n;
    }
    return r == ARCHIVE_EOF ? 0
                            : kvc_fail(e, KVC_ERR_DAMAGED, "the archive is damaged or cut short");
}

/* Returns the name of a member without the "./" that tar puts before it. */
static const char *plain_name(const char *name) {
    while (name[0] == '.' && name[1] == '/') name += 2;
    return name;
}

static int read_members(struct kvc_bundle *b, struct archive *a, int fd, struct kvc_error *e) {
    struct archive_entry *entry;
    int r;
    while ((r = kvc_libarchive.read_next_header(a, &entry)) == ARCHIVE_OK) {
        const char *path = kvc_libarchive.entry_pathname(entry);
        uint64_t size;
        if (kvc_libarchive.entry_filetype(entry) == AE_IFDIR) continue;
        if (!path || kvc_libarchive.entry_filetype(entry) != AE_IFREG ||
            kvc_libarchive.entry_hardlink(entry))
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "the archive holds something other than files and folders");
        if (spool_member(a, fd, &size, e) || add_member(b, plain_name(path), size, e)) return -1;
    }
    if (r != ARCHIVE_EOF)
        return kvc_fail(e, KVC_ERR_DAMAGED, "the archive is damaged or cut short");
    if (!b->n) return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "the archive holds no files");
    return check_names(b, e);
}

/* Opens every member as a part of the spooled bytes. */
static int open_spooled(struct kvc_bundle *b, int fd, struct kvc_error *e) {
    uint64_t at = 0;
    if (kvc_spool_input(&b->spool, fd, b->name, e)) return -1;
    for (size_t i = 0; i < b->n; i++) {
        struct kvc_member *m = &b->member[i];
        if (!(m->in = calloc(1, sizeof *m->in))) return kvc_fail_memory(e, "members");
        kvc_input_memory(m->in, m->name, b->spool.data + at, (size_t)m->size);
        at += m->size;
    }
    return 0;
}

int kvc_bundle_archive(struct kvc_bundle *b, const struct kvc_input *in, struct kvc_error *e) {
    struct kvc_window window = {.in = in};
    memset(b, 0, sizeof *b);
    b->name = in->name;
    if (kvc_libarchive_load(e)) {
        kvc_error_prefix(e, in->name);
        return -1;
    }
    struct archive *a = kvc_libarchive.read_new();
    int fd = a ? kvc_spool_open(e) : -1, status = fd >= 0 ? 0 : -1;
    if (!a) kvc_fail_memory(e, "an archive");
    if (!status) {
        kvc_libarchive.read_support_format_tar(a);
        if (kvc_libarchive.read_open(a, &window, NULL, read_input, NULL) != ARCHIVE_OK)
            status = kvc_fail(e, KVC_ERR_DAMAGED, "the archive is damaged or cut short");
    }
    struct kvc_utf8_locale utf8 = kvc_utf8_begin();
    if (!status) status = read_members(b, a, fd, e);
    kvc_utf8_end(&utf8);
    kvc_libarchive.read_free(a);
    kvc_window_close(&window);
    if (!status) status = open_spooled(b, fd, e);
    else if (fd >= 0) close(fd);
    if (status) {
        kvc_error_prefix(e, in->name);
        kvc_bundle_close(b);
    }
    return status;
}

/* --- use --- */

const struct kvc_input *kvc_bundle_open(const struct kvc_bundle *b, size_t i, struct kvc_error *e) {
    struct kvc_member *m = &b->member[i];
    if (m->in) return m->in;
    char *path = bundle_join(b->folder, m->name, e);
    struct kvc_input *in = path ? calloc(1, sizeof *in) : NULL;
    if (path && !in) kvc_fail_memory(e, "a file");
    if (in && kvc_input_open_how(in, path, &b->how, e)) {
        free(in);
        in = NULL;
    }
    free(path);
    if (in && in->filter[0]) { /* the source could not be restored as it was */
        kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s is compressed; members of a folder are not", in->name);
        kvc_input_close(in);
        free(in);
        in = NULL;
    }
    return m->in = in;
}

uint64_t kvc_bundle_size(const struct kvc_bundle *b) {
    uint64_t sum = 0;
    for (size_t i = 0; i < b->n; i++)
        sum += b->member[i].in ? b->member[i].in->size : b->member[i].size;
    return sum;
}

void kvc_bundle_close(struct kvc_bundle *b) {
    for (size_t i = 0; i < b->n && !b->is_file; i++) {
        if (b->member[i].in) kvc_input_close(b->member[i].in);
        free(b->member[i].in);
        free(b->member[i].name);
    }
    if (!b->is_file) free(b->member);
    kvc_input_close(&b->spool);
    free(b->folder);
    memset(b, 0, sizeof *b);
}
