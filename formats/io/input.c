/* input.c: mapping files, spooling pipes, undoing .gz, .xz and .zst on the way in. */
#include "formats/io/input.h"

#include "formats/io/sink.h"

#include <archive.h>
#include <archive_entry.h>
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

/* A temporary file that bytes are copied to. Its first ones are held back until sniff() has seen them. */
struct spool {
    int fd;
    kvc_input_sniff *sniff; /* NULL: not asked, or asked already */
    const void *state;
    uint8_t head[HEAD];
    size_t n_head;
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
        kvc_fail(e, KVC_ERR_IO, "cannot make a temporary file in %s: %s (set TMPDIR)", dir, strerror(errno));
    else
        unlink(path);
    free(path);
    return fd;
}

int kvc_spool_write(int fd, const void *data, size_t n, struct kvc_error *e) {
    if (!kvc_write_all(fd, data, n)) return 0;
    return kvc_fail(e, KVC_ERR_IO, "cannot write the temporary file: %s (set TMPDIR to another place)", strerror(errno));
}

/* Maps the whole of fd; an empty file gives NULL and 0. */
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

int kvc_spool_map(int fd, void **map, uint64_t *size, struct kvc_error *e) {
    int status = map_fd(fd, map, size, e);
    close(fd);
    return status;
}

static int spool_open(struct spool *s, kvc_input_sniff *sniff, const void *state, struct kvc_error *e) {
    s->sniff = sniff;
    s->state = state;
    s->n_head = 0;
    return (s->fd = kvc_spool_open(e)) < 0 ? -1 : 0;
}

/* Shows the head and writes it. */
static int spool_head(struct spool *s, struct kvc_error *e) {
    const struct kvc_input head = {.data = s->head, .size = s->n_head};
    kvc_input_sniff *sniff = s->sniff;
    s->sniff = NULL;
    if (!sniff) return 0;
    return sniff(&head, s->state, e) ? -1 : kvc_spool_write(s->fd, s->head, s->n_head, e);
}

static int spool_write(struct spool *s, const void *data, size_t n, struct kvc_error *e) {
    const size_t room = HEAD - s->n_head, some = n < room ? n : room;
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

/* Maps what was written, when `status` is 0, and closes the file. */
static int spool_finish(struct spool *s, int status, void **map, uint64_t *size, struct kvc_error *e) {
    if (!status && !spool_head(s, e)) return kvc_spool_map(s->fd, map, size, e);
    close(s->fd);
    return -1;
}

static const char *filter_of(const uint8_t *p, uint64_t n);

/* What a pipe may begin with: anything that is undone first, too. */
struct outer {
    kvc_input_sniff *sniff;
    const void *state;
};

static int sniff_outer(const struct kvc_input *head, const void *state, struct kvc_error *e) {
    const struct outer *o = state;
    return filter_of(head->data, head->size) ? 0 : o->sniff(head, o->state, e);
}

/* Copies a pipe into a spool file. */
static int spool_pipe(int fd, struct kvc_input *in, const struct outer *outer, struct kvc_error *e) {
    struct spool s;
    if (spool_open(&s, outer->sniff ? sniff_outer : NULL, outer, e)) return -1;
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

/* A safetensors file starts with its header's length, which may look like gzip's magic; its ninth byte does not. */
static const char *filter_of(const uint8_t *p, uint64_t n) {
    static const struct { const char *name, *magic; size_t size; } known[] = {
        {"gzip", "\x1f\x8b\x08", 3}, {"xz", "\xfd" "7zXZ\0", 6}, {"zstd", "\x28\xb5\x2f\xfd", 4}};
    if (n > 8 && p[8] == '{') return NULL;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (n >= known[i].size && memcmp(p, known[i].magic, known[i].size) == 0) return known[i].name;
    return NULL;
}

/* gzip by zlib, because libarchive does not compare the checksum at the end. */
static int inflate_gzip(const struct kvc_input *in, struct spool *spool, struct kvc_error *e) {
    uint8_t *chunk = malloc(CHUNK);
    z_stream z = {0};
    uint64_t left = in->size;
    int r = Z_OK, status = 0;
    if (!chunk || inflateInit2(&z, 15 + 16) != Z_OK) {
        free(chunk);
        return kvc_fail_memory(e, "decompression");
    }
    z.next_in = in->map;
    do { /* members follow each other; each must come to its end */
        if (!z.avail_in && left) {
            z.avail_in = left < CHUNK ? (unsigned)left : CHUNK;
            left -= z.avail_in;
        }
        if (r == Z_STREAM_END && inflateReset(&z) != Z_OK) break;
        z.next_out = chunk;
        z.avail_out = CHUNK;
        r = inflate(&z, Z_NO_FLUSH);
        if (r != Z_OK && r != Z_STREAM_END) break;
        status = spool_write(spool, chunk, CHUNK - z.avail_out, e);
    } while (!status && (r == Z_OK || z.avail_in || left));
    if (!status && r != Z_STREAM_END)
        status = kvc_fail(e, KVC_ERR_DAMAGED, "gzip data is damaged or cut short: %s", z.msg ? z.msg : "no end");
    inflateEnd(&z);
    free(chunk);
    return status;
}

/* xz and zstd by libarchive. */
static int filter_archive(const struct kvc_input *in, const char *filter, struct spool *spool, struct kvc_error *e) {
    struct archive *a = archive_read_new();
    struct archive_entry *entry;
    int status = 0, any = 0, r;
    if (!a) return kvc_fail_memory(e, "decompression");
    archive_read_support_filter_xz(a);
    archive_read_support_filter_zstd(a);
    archive_read_support_format_raw(a);
    r = archive_read_open_memory(a, in->map, (size_t)in->size);
    if (r == ARCHIVE_OK) r = archive_read_next_header(a, &entry);
    while (r == ARCHIVE_OK && !status) {
        const void *block;
        size_t n;
        la_int64_t offset;
        r = archive_read_data_block(a, &block, &n, &offset);
        any |= r == ARCHIVE_OK && n;
        if (r == ARCHIVE_OK) status = spool_write(spool, block, n, e);
    }
    if (!status && (r != ARCHIVE_EOF || !any)) {
        const char *why = archive_error_string(a);
        status = kvc_fail(e, KVC_ERR_DAMAGED, "%s data is damaged or cut short: %s", filter, why ? why : "no content");
    }
    archive_read_free(a);
    return status;
}

/* Replaces the mapping by the decompressed bytes. */
static int decompress(struct kvc_input *in, const char *filter, const struct outer *outer, struct kvc_error *e) {
    struct spool s;
    void *map = NULL;
    uint64_t size = 0;
    if (spool_open(&s, outer->sniff, outer->state, e)) return -1;
    const int status = strcmp(filter, "gzip") == 0 ? inflate_gzip(in, &s, e) : filter_archive(in, filter, &s, e);
    if (spool_finish(&s, status, &map, &size, e)) return -1;
    if (in->map) munmap(in->map, (size_t)in->size);
    in->map = map;
    in->size = size;
    in->spooled = 1;
    snprintf(in->filter, sizeof in->filter, "%s", filter);
    return 0;
}

int kvc_input_open(struct kvc_input *in, const char *path, struct kvc_error *e) {
    return kvc_input_open_sniffed(in, path, NULL, NULL, e);
}

int kvc_input_open_sniffed(struct kvc_input *in, const char *path, kvc_input_sniff *sniff, const void *state,
                           struct kvc_error *e) {
    const struct outer outer = {.sniff = sniff, .state = state};
    static const uint8_t nothing[1];
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
    } else if (S_ISREG(st.st_mode) && st.st_size && lseek(fd, 0, SEEK_CUR) == 0) { /* files of /proc say 0 */
        in->device = st.st_dev;
        in->inode = st.st_ino;
        in->mode = st.st_mode & 07777;
        in->times[0] = st.st_atim;
        in->times[1] = st.st_mtim;
        in->has_times = !is_stdin;
        status = map_fd(fd, &in->map, &in->size, e);
    } else {
        in->mode = 0666;
        status = spool_pipe(fd, in, &outer, e);
    }
    if (!is_stdin && fd >= 0) close(fd);
    const char *filter = status ? NULL : filter_of(in->map, in->size);
    if (filter) status = decompress(in, filter, &outer, e);
    if (status) {
        kvc_error_prefix(e, in->name);
        kvc_input_close(in);
        return -1;
    }
    in->data = in->map ? in->map : nothing;
    return 0;
}

void kvc_input_memory(struct kvc_input *in, const char *name, const void *data, size_t size) {
    memset(in, 0, sizeof *in);
    in->name = name;
    in->data = data;
    in->size = size;
    in->mode = 0666;
}

void kvc_input_close(struct kvc_input *in) {
    if (in->map) munmap(in->map, (size_t)in->size);
    free(in->path);
    memset(in, 0, sizeof *in);
}
