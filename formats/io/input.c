/* input.c: mapping and reading files, spooling pipes, decompressing .gz, .xz and .zst. */
#include "formats/io/input.h"

#include "formats/io/sink.h"
#include "formats/io/libarchive.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { CHUNK = 1 << 18, HEAD = 4096 };

static const uint8_t nothing[1]; /* the data of an empty input */

/* A temporary file that bytes are copied to. The first bytes are kept back until sniff() has seen
 * them. */
struct spool {
    int fd;
    kvc_input_sniff *sniff; /* NULL: not needed, or called already */
    const void *state;
    uint8_t head[HEAD];
    size_t n_head;
    uint64_t room; /* bytes that may still be written */
};

int kvc_spool_open(struct kvc_error *e) {
    const char *dir = getenv("TMPDIR");
    if (!dir || !*dir) dir = "/tmp";
    size_t size = strlen(dir) + sizeof "/kvc-spool-XXXXXX";
    char *path = malloc(size);
    if (!path) return kvc_fail_memory(e, "a path");
    snprintf(path, size, "%s/kvc-spool-XXXXXX", dir);
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        kvc_fail(e, KVC_ERR_IO, "cannot make a temporary file in %s: %s (set TMPDIR)", dir,
                 strerror(errno));
    else unlink(path);
    free(path);
    return fd;
}

int kvc_spool_write(int fd, const void *data, size_t n, struct kvc_error *e) {
    if (!kvc_write_all(fd, data, n)) return 0;
    return kvc_fail(e, KVC_ERR_IO,
                    "cannot write the temporary file: %s (set TMPDIR to another place)",
                    strerror(errno));
}

/* Maps the whole of fd. *map is NULL and *size 0 for an empty file. */
static int map_fd(int fd, void **map, uint64_t *size, struct kvc_error *e) {
    struct stat st;
    *map = NULL;
    *size = 0;
    if (fstat(fd, &st)) return kvc_fail(e, KVC_ERR_IO, "%s", strerror(errno));
    if (!st.st_size) return 0;
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) return kvc_fail(e, KVC_ERR_IO, "cannot map the file: %s", strerror(errno));
    *map = p;
    *size = (uint64_t)st.st_size;
    return 0;
}

/* Maps the whole of fd and closes it. *map is NULL and *size 0 for an empty file. */
static int spool_map(int fd, void **map, uint64_t *size, struct kvc_error *e) {
    int status = map_fd(fd, map, size, e);
    close(fd);
    return status;
}

int kvc_spool_input(struct kvc_input *in, int fd, const char *name, struct kvc_error *e) {
    kvc_input_memory(in, name, nothing, 0);
    const int status = spool_map(fd, &in->map, &in->size, e);
    if (in->map) in->data = in->map;
    return status;
}

static int spool_open(struct spool *s, kvc_input_sniff *sniff, const void *state, uint64_t most,
                      struct kvc_error *e) {
    s->sniff = sniff;
    s->state = state;
    s->n_head = 0;
    s->room = most ? most : UINT64_MAX;
    return (s->fd = kvc_spool_open(e)) < 0 ? -1 : 0;
}

/* Calls sniff() with the first bytes and writes them. */
static int spool_head(struct spool *s, struct kvc_error *e) {
    const struct kvc_input head = {.data = s->head, .size = s->n_head};
    kvc_input_sniff *sniff = s->sniff;
    s->sniff = NULL;
    if (!sniff) return 0;
    return sniff(&head, s->state, e) ? -1 : kvc_spool_write(s->fd, s->head, s->n_head, e);
}

static int spool_write(struct spool *s, const void *data, size_t n, struct kvc_error *e) {
    const size_t room = HEAD - s->n_head, some = n < room ? n : room;
    if (n > s->room) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "too large: not all of it is read");
    s->room -= n;
    if (s->sniff) {
        memcpy(s->head + s->n_head, data, some);
        s->n_head += some;
        if (s->n_head < HEAD) return 0;
        if (spool_head(s, e)) return -1;
        data = (const uint8_t *)data + some;
        n -= some;
    }
    return kvc_spool_write(s->fd, data, n, e);
}

/* Maps the written bytes when `status` is 0, and closes the file. */
static int spool_finish(struct spool *s, int status, void **map, uint64_t *size,
                        struct kvc_error *e) {
    if (!status && !spool_head(s, e)) return spool_map(s->fd, map, size, e);
    close(s->fd);
    return -1;
}

static const char *filter_of(const uint8_t *p, uint64_t n);

/* The sniff() of the content, for a pipe that may be compressed. */
struct outer {
    kvc_input_sniff *sniff;
    const void *state;
    uint64_t most;
};

static int sniff_outer(const struct kvc_input *head, const void *state, struct kvc_error *e) {
    const struct outer *o = state;
    return filter_of(head->data, head->size) ? 0 : o->sniff(head, o->state, e);
}

/* Copies a pipe into a spool file. */
static int spool_pipe(int fd, struct kvc_input *in, const struct outer *outer,
                      struct kvc_error *e) {
    struct spool s;
    if (spool_open(&s, outer->sniff ? sniff_outer : NULL, outer, outer->most, e)) return -1;
    char *chunk = malloc(CHUNK);
    int status = chunk ? 0 : kvc_fail_memory(e, "reading");
    while (!status) {
        ssize_t n = read(fd, chunk, s.sniff ? HEAD : CHUNK);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) status = kvc_fail(e, KVC_ERR_IO, "%s", strerror(errno));
        if (n <= 0) break;
        status = spool_write(&s, chunk, (size_t)n, e);
    }
    free(chunk);
    in->spooled = 1;
    return spool_finish(&s, status, &in->map, &in->size, e);
}

/* Returns the name of a compression by the first bytes of a file, or NULL. A safetensors file
 * begins with the length of its header, which may look like the magic of gzip; but its ninth byte
 * is '{'. */
static const char *filter_of(const uint8_t *p, uint64_t n) {
    static const struct {
        const char *name, *magic;
        size_t size;
    } known[] = {{"gzip", "\x1f\x8b\x08", 3},
                 {"xz",
                  "\xfd"
                  "7zXZ\0",
                  6},
                 {"zstd", "\x28\xb5\x2f\xfd", 4}};
    if (n > 8 && p[8] == '{') return NULL;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (n >= known[i].size && memcmp(p, known[i].magic, known[i].size) == 0)
            return known[i].name;
    return NULL;
}

/* The next bytes of a compressed input, which are pinned until the next call. */
struct stretch {
    const struct kvc_input *in;
    uint64_t at;
    size_t n; /* bytes pinned before `at` */
};

static int next_stretch(struct stretch *s, const uint8_t **bytes, size_t *n, struct kvc_error *e) {
    const uint64_t left = s->in->size - s->at;
    kvc_input_unpin(s->in, s->at - s->n, s->n);
    s->n = 0;
    *n = left < CHUNK ? (size_t)left : CHUNK;
    if (kvc_input_pin(s->in, s->at, *n, e)) return -1;
    *bytes = s->in->data + s->at;
    s->n = *n;
    s->at += *n;
    return 0;
}

/* Decompresses gzip by zlib, because libarchive does not compare the checksum at the end. */
static int inflate_gzip(const struct kvc_input *in, struct spool *spool, struct kvc_error *e) {
    uint8_t *chunk = malloc(CHUNK);
    z_stream z = {0};
    struct stretch from = {.in = in};
    int r = Z_OK, status = 0;
    if (!chunk || inflateInit2(&z, 15 + 16) != Z_OK) {
        free(chunk);
        return kvc_fail_memory(e, "decompression");
    }
    do { /* there may be several members; each must be complete */
        if (!z.avail_in && from.at < in->size) {
            const uint8_t *bytes;
            size_t n;
            if ((status = next_stretch(&from, &bytes, &n, e))) break;
            z.next_in = (Bytef *)(uintptr_t)bytes;
            z.avail_in = (unsigned)n;
        }
        if (r == Z_STREAM_END && inflateReset(&z) != Z_OK) break;
        z.next_out = chunk;
        z.avail_out = CHUNK;
        r = inflate(&z, Z_NO_FLUSH);
        if (r != Z_OK && r != Z_STREAM_END) break;
        status = spool_write(spool, chunk, CHUNK - z.avail_out, e);
    } while (!status && (r == Z_OK || z.avail_in || from.at < in->size));
    if (!status && r != Z_STREAM_END)
        status = kvc_fail(e, KVC_ERR_DAMAGED, "gzip data is damaged or cut short: %s",
                          z.msg ? z.msg : "no end");
    kvc_input_unpin(in, from.at - from.n, from.n);
    inflateEnd(&z);
    free(chunk);
    return status;
}

struct archive_state {
    struct stretch from;
    struct kvc_error *e;
    int failed; /* the input could not be read: *e says why */
};

static la_ssize_t read_archive(struct archive *a, void *state, const void **buffer) {
    struct archive_state *s = state;
    const uint8_t *bytes = NULL;
    size_t n = 0;
    (void)a;
    if (next_stretch(&s->from, &bytes, &n, s->e)) {
        s->failed = 1;
        return -1;
    }
    *buffer = bytes;
    return (la_ssize_t)n;
}

/* Decompresses xz and zstd by libarchive. */
static int filter_archive(const struct kvc_input *in, const char *filter, struct spool *spool,
                          struct kvc_error *e) {
    if (kvc_libarchive_load(e)) return -1;
    struct archive *a = kvc_libarchive.read_new();
    struct archive_entry *entry;
    struct archive_state state = {.from = {.in = in}, .e = e};
    int status = 0, any = 0, r;
    if (!a) return kvc_fail_memory(e, "decompression");
    kvc_libarchive.read_support_filter_xz(a);
    kvc_libarchive.read_support_filter_zstd(a);
    kvc_libarchive.read_support_format_raw(a);
    r = kvc_libarchive.read_open(a, &state, NULL, read_archive, NULL);
    if (r == ARCHIVE_OK) r = kvc_libarchive.read_next_header(a, &entry);
    while (r == ARCHIVE_OK && !status) {
        const void *block;
        size_t n;
        la_int64_t offset;
        r = kvc_libarchive.read_data_block(a, &block, &n, &offset);
        any |= r == ARCHIVE_OK && n;
        if (r == ARCHIVE_OK) status = spool_write(spool, block, n, e);
    }
    if (state.failed) status = -1;
    if (!status && (r != ARCHIVE_EOF || !any)) {
        const char *why = kvc_libarchive.error_string(a);
        status = kvc_fail(e, KVC_ERR_DAMAGED, "%s data is damaged or cut short: %s", filter,
                          why ? why : "no content");
    }
    kvc_input_unpin(in, state.from.at - state.from.n, state.from.n);
    kvc_libarchive.read_free(a);
    return status;
}

/* Frees the bytes, and keeps the description of the file. */
static void drop_bytes(struct kvc_input *in) {
    if (in->map) munmap(in->map, (size_t)in->size);
    kvc_pages_free(in->pages);
    in->map = NULL;
    in->pages = NULL;
    in->data = nothing;
    in->size = 0;
}

/* Replaces the bytes by the decompressed ones. */
static int decompress(struct kvc_input *in, const char *filter, const struct outer *outer,
                      struct kvc_error *e) {
    struct spool s;
    void *map = NULL;
    uint64_t size = 0;
    if (spool_open(&s, outer->sniff, outer->state, outer->most, e)) return -1;
    const int status = strcmp(filter, "gzip") == 0 ? inflate_gzip(in, &s, e)
                                                   : filter_archive(in, filter, &s, e);
    if (spool_finish(&s, status, &map, &size, e)) return -1;
    drop_bytes(in);
    in->map = map;
    in->data = map ? map : nothing;
    in->size = size;
    in->spooled = 1;
    snprintf(in->filter, sizeof in->filter, "%s", filter);
    return 0;
}

/* --- files read as they are needed --- */

static int input_read_file(void *state, uint64_t offset, size_t n, uint8_t *dst,
                           struct kvc_error *e) {
    const int fd = *(const int *)state;
    while (n) {
        const ssize_t got = pread(fd, dst, n, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return kvc_fail(e, KVC_ERR_IO, "%s", strerror(errno));
        if (!got) return kvc_fail(e, KVC_ERR_IO, "the file was cut short while it was read");
        dst += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return 0;
}

static void close_file(void *state) {
    close(*(const int *)state);
    free(state);
}

/* Duplicates the descriptor of a regular file, whose bytes are read when they are pinned. */
static int read_fd(int fd, uint64_t size, struct kvc_input *in, struct kvc_error *e) {
    int *own = malloc(sizeof *own);
    if (!own) return kvc_fail_memory(e, "a file");
    if ((*own = fcntl(fd, F_DUPFD_CLOEXEC, 3)) < 0) {
        free(own);
        return kvc_fail(e, KVC_ERR_IO, "%s", strerror(errno));
    }
    if (!(in->pages = kvc_pages_new(size, input_read_file, close_file, own, e))) {
        close_file(own);
        return -1;
    }
    in->size = size;
    return 0;
}

/* Decompresses the input where its first bytes are those of a compression. */
static int undo_filter(struct kvc_input *in, const struct outer *outer, struct kvc_error *e) {
    uint8_t head[16];
    const uint64_t n = in->size < sizeof head ? in->size : sizeof head;
    if (kvc_input_copy(in, 0, head, n, e)) return -1;
    const char *filter = filter_of(head, n);
    return filter ? decompress(in, filter, outer, e) : 0;
}

int kvc_input_open(struct kvc_input *in, const char *path, struct kvc_error *e) {
    const struct kvc_input_how how = {.read = 1};
    return kvc_input_open_how(in, path, &how, e);
}

int kvc_input_open_how(struct kvc_input *in, const char *path, const struct kvc_input_how *how,
                       struct kvc_error *e) {
    const struct outer outer = {.sniff = how->sniff, .state = how->state, .most = how->most};
    struct stat st;
    int is_stdin = strcmp(path, "-") == 0, fd = 0, status;
    memset(in, 0, sizeof *in);
    if (!is_stdin && !(in->path = strdup(path))) return kvc_fail_memory(e, "a name");
    in->name = is_stdin ? "(stdin)" : in->path;
    if (!is_stdin && (fd = open(path, O_RDONLY | O_CLOEXEC)) < 0) {
        status = kvc_fail(e, KVC_ERR_IO, "%s", strerror(errno));
    } else if (fstat(fd, &st)) {
        status = kvc_fail(e, KVC_ERR_IO, "%s", strerror(errno));
    } else if (S_ISDIR(st.st_mode)) {
        status = kvc_fail(e, KVC_ERR_IO, "is a directory");
    } else if (S_ISREG(st.st_mode) && st.st_size &&
               lseek(fd, 0, SEEK_CUR) == 0) { /* files of /proc have size 0 */
        in->device = st.st_dev;
        in->inode = st.st_ino;
        in->mode = st.st_mode & 07777;
        in->times[0] = st.st_atim;
        in->times[1] = st.st_mtim;
        in->has_times = !is_stdin;
        status = how->read ? read_fd(fd, (uint64_t)st.st_size, in, e)
                           : map_fd(fd, &in->map, &in->size, e);
    } else {
        in->mode = 0666;
        status = spool_pipe(fd, in, &outer, e);
    }
    if (!is_stdin && fd >= 0) close(fd);
    in->data = in->pages ? kvc_pages_data(in->pages) : in->map ? in->map : nothing;
    if (!status) status = undo_filter(in, &outer, e);
    if (status) {
        kvc_error_prefix(e, in->name);
        kvc_input_close(in);
        return -1;
    }
    return 0;
}

void kvc_input_memory(struct kvc_input *in, const char *name, const void *data, size_t size) {
    memset(in, 0, sizeof *in);
    in->name = name;
    in->data = data;
    in->size = size;
    in->mode = 0666;
}

int kvc_input_ranged(struct kvc_input *in, const char *name, uint64_t size, kvc_pages_read *read,
                     void (*close)(void *state), void *state, struct kvc_error *e) {
    kvc_input_memory(in, name, nothing, 0);
    if (size && !(in->pages = kvc_pages_new(size, read, close, state, e))) {
        if (close) close(state);
        return -1;
    }
    if (!size && close) close(state);
    in->size = size;
    if (in->pages) in->data = kvc_pages_data(in->pages);
    return 0;
}

void kvc_input_close(struct kvc_input *in) {
    drop_bytes(in);
    free(in->path);
    memset(in, 0, sizeof *in);
}

/* --- bytes --- */

static int check_range(const struct kvc_input *in, uint64_t offset, uint64_t n,
                       struct kvc_error *e) {
    if (offset <= in->size && n <= in->size - offset) return 0;
    return kvc_fail_at(e, KVC_ERR_DAMAGED, offset, "%llu bytes reach beyond the end of the input",
                       (unsigned long long)n);
}

int kvc_input_pin(const struct kvc_input *in, uint64_t offset, uint64_t n, struct kvc_error *e) {
    if (check_range(in, offset, n, e)) return -1;
    return in->pages ? kvc_pages_pin(in->pages, offset, n, e) : 0;
}

void kvc_input_unpin(const struct kvc_input *in, uint64_t offset, uint64_t n) {
    if (in->pages) kvc_pages_unpin(in->pages, offset, n);
}

int kvc_input_copy(const struct kvc_input *in, uint64_t offset, void *dst, uint64_t n,
                   struct kvc_error *e) {
    if (kvc_input_pin(in, offset, n, e)) return -1;
    if (n) memcpy(dst, in->data + offset, (size_t)n);
    kvc_input_unpin(in, offset, n);
    return 0;
}

int kvc_input_read(const struct kvc_input *in, uint64_t offset, void *dst, uint64_t n,
                   struct kvc_error *e) {
    if (!in->pages) return kvc_input_copy(in, offset, dst, n, e);
    if (check_range(in, offset, n, e)) return -1;
    if (kvc_pages_copy(in->pages, offset, dst, n, e)) return -1;
    return 0;
}

const uint8_t *kvc_window_at(struct kvc_window *w, uint64_t offset, uint64_t n,
                             struct kvc_error *e) {
    if (offset >= w->offset && n <= w->n && offset - w->offset <= w->n - n)
        return w->in->data + offset;
    kvc_window_close(w);
    const uint64_t left = offset < w->in->size ? w->in->size - offset : 0,
                   wide = left < CHUNK ? left : CHUNK;
    const uint64_t pinned = n > wide ? n : wide;
    if (kvc_input_pin(w->in, offset, pinned, e)) return NULL;
    w->offset = offset;
    w->n = pinned;
    return w->in->data + offset;
}

void kvc_window_close(struct kvc_window *w) {
    kvc_input_unpin(w->in, w->offset, w->n);
    w->offset = w->n = 0;
}
