/* member_sink.c: members of a source written into an archive or a folder. */
#include "formats/io/member_sink.h"

#include "formats/io/make_folders.h"
#include "formats/io/member_name.h"
#include "formats/io/utf8_locale.h"
#include "formats/io/libarchive.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- tar --- */

struct kvc_tar {
    struct archive *archive;
    struct kvc_sink sink; /* what members are written to */
    struct kvc_sink *to;
    struct kvc_error *e; /* of the call in progress */
    int failed;          /* 1: `to` failed, with its error in *e */
};

static la_ssize_t write_out(struct archive *a, void *state, const void *data, size_t n) {
    struct kvc_tar *t = state;
    (void)a;
    if (!t->failed && kvc_sink_write(t->to, data, n, t->e)) t->failed = 1;
    return (la_ssize_t)n;
}

static int tar_failed(struct kvc_tar *t, struct kvc_error *e) {
    if (t->failed) return -1;
    const char *why = kvc_libarchive.error_string(t->archive);
    return kvc_fail(e, KVC_ERR_IO, "the archive cannot be written: %s",
                    why ? why : "out of memory");
}

static int tar_begin(void *state, const char *name, uint64_t size, struct kvc_error *e) {
    struct kvc_tar *t = state;
    struct archive_entry *entry = kvc_libarchive.entry_new();
    t->e = e;
    if (!entry) return kvc_fail_memory(e, "an archive");
    kvc_libarchive.entry_set_pathname(entry, name);
    kvc_libarchive.entry_set_filetype(entry, AE_IFREG);
    kvc_libarchive.entry_set_perm(entry, 0644);
    kvc_libarchive.entry_set_size(entry, (la_int64_t)size);
    kvc_libarchive.entry_set_mtime(entry, 0, 0);
    struct kvc_utf8_locale utf8 = kvc_utf8_begin();
    const int r = kvc_libarchive.write_header(t->archive, entry);
    kvc_utf8_end(&utf8);
    kvc_libarchive.entry_free(entry);
    return r == ARCHIVE_OK && !t->failed ? 0 : tar_failed(t, e);
}

static int tar_write(void *state, const void *data, size_t n, struct kvc_error *e) {
    struct kvc_tar *t = state;
    t->e = e;
    return kvc_libarchive.write_data(t->archive, data, n) == (la_ssize_t)n && !t->failed
               ? 0
               : tar_failed(t, e);
}

static int tar_finish(void *state, struct kvc_error *e) {
    struct kvc_tar *t = state;
    t->e = e;
    return kvc_libarchive.write_finish_entry(t->archive) == ARCHIVE_OK && !t->failed
               ? 0
               : tar_failed(t, e);
}

struct kvc_tar *kvc_tar_open(struct kvc_sink *to, struct kvc_member_sink *members,
                             struct kvc_error *e) {
    if (kvc_libarchive_load(e)) return NULL;
    struct kvc_tar *t = calloc(1, sizeof *t);
    struct archive *a = t ? kvc_libarchive.write_new() : NULL;
    if (!a) {
        free(t);
        kvc_fail_memory(e, "an archive");
        return NULL;
    }
    t->archive = a;
    t->to = to;
    t->e = e;
    t->sink = (struct kvc_sink){.write = tar_write, .state = t};
    kvc_libarchive.write_set_format_pax_restricted(a);
    struct kvc_utf8_locale utf8 = kvc_utf8_begin(); /* this makes the conversion of names */
    kvc_libarchive.write_set_options(a, "hdrcharset=UTF-8");
    kvc_utf8_end(&utf8);
    kvc_libarchive.write_set_bytes_in_last_block(a, 1);
    if (kvc_libarchive.write_open(a, t, NULL, write_out, NULL) != ARCHIVE_OK) {
        tar_failed(t, e);
        kvc_tar_close(t, -1, NULL);
        return NULL;
    }
    *members = (struct kvc_member_sink){.out = &t->sink,
                                        .begin = tar_begin,
                                        .finish = tar_finish,
                                        .state = t};
    return t;
}

int kvc_tar_close(struct kvc_tar *t, int status, struct kvc_error *e) {
    t->e = e;
    if (status) t->failed = 1; /* further bytes are dropped */
    if (kvc_libarchive.write_close(t->archive) != ARCHIVE_OK && !status) status = tar_failed(t, e);
    if (!status && t->failed) status = -1;
    kvc_libarchive.write_free(t->archive);
    free(t);
    return status;
}

/* --- folders --- */

struct kvc_folder {
    struct kvc_sink sink, raw;
    char *path;
    int fd; /* of the member in progress; -1: none */
};

static int folder_write(void *state, const void *data, size_t n, struct kvc_error *e) {
    struct kvc_folder *f = state;
    return kvc_sink_write(&f->raw, data, n, e);
}

static int folder_begin(void *state, const char *name, uint64_t size, struct kvc_error *e) {
    struct kvc_folder *f = state;
    char *path;
    (void)size;
    if (!kvc_member_name_is_sane(name, strlen(name)))
        return kvc_fail(e, KVC_ERR_DAMAGED, "the name of a member is no relative path");
    if (asprintf(&path, "%s/%s", f->path, name) < 0) return kvc_fail_memory(e, "a path");
    int status = kvc_make_folders(path, strlen(f->path) + 1, e);
    if (!status &&
        (f->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666)) < 0)
        status = kvc_fail(e, KVC_ERR_IO, "%s: cannot create the file: %s", path, strerror(errno));
    f->raw = kvc_sink_fd(&f->fd);
    free(path);
    return status;
}

static int folder_finish(void *state, struct kvc_error *e) {
    struct kvc_folder *f = state;
    const int failed = fsync(f->fd) && errno != EINVAL && errno != EROFS, why = errno;
    const int unclosed = close(f->fd);
    f->fd = -1;
    return failed || unclosed
               ? kvc_fail(e, KVC_ERR_IO, "cannot finish a file: %s", strerror(failed ? why : errno))
               : 0;
}

struct kvc_folder *kvc_folder_open(const char *path, struct kvc_member_sink *members,
                                   struct kvc_error *e) {
    struct kvc_folder *f = calloc(1, sizeof *f);
    if (!f || !(f->path = strdup(path))) {
        free(f);
        kvc_fail_memory(e, "a path");
        return NULL;
    }
    f->fd = -1;
    f->sink = (struct kvc_sink){.write = folder_write, .state = f};
    *members = (struct kvc_member_sink){.out = &f->sink,
                                        .begin = folder_begin,
                                        .finish = folder_finish,
                                        .state = f};
    return f;
}

int kvc_folder_close(struct kvc_folder *f, int status, struct kvc_error *e) {
    (void)e;
    if (f->fd >= 0) close(f->fd);
    free(f->path);
    free(f);
    return status;
}
