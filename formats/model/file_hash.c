/* file_hash.c: a hash over all bytes of a weights file, and where it is remembered. Spec: KEYS.md,
 * "Model fingerprint". */
#include "formats/model/file_hash.h"

#include "codecs/memory.h"
#include "formats/io/make_folders.h"
#include "formats/io/parallel.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PIECE (UINT64_C(1) << 24)       /* bytes that are hashed alone */
#define STEP ((uint64_t)1 << 18)        /* bytes of a piece in memory at a time */
#define REMEMBERED (UINT64_C(64) << 20) /* smaller files are hashed before a folder is made */
/* seconds: a file may change twice within one tick of its file system's clock */
#define SETTLED 2
#define TEXT_BYTES (4 * KVC_SHA256_BYTES) /* of a remembered hash and its check */

/* --- hashing --- */

struct pieces {
    const struct kvc_input *in;
    uint8_t (*hash)[KVC_SHA256_BYTES];
};

static int hash_piece(void *state, uint64_t item, void **result, struct kvc_error *e) {
    const struct pieces *p = state;
    const uint64_t first = item * PIECE;
    const uint64_t end = p->in->size - first < PIECE ? p->in->size : first + PIECE;
    uint8_t *bytes = kvc_alloc(STEP, 1);
    struct kvc_sha256 h;
    int status = bytes ? 0 : kvc_fail_memory(e, "a SHA-256 hash");
    *result = NULL;
    kvc_sha256_init(&h);
    for (uint64_t at = first, n; at < end && !status; at += n) {
        n = end - at < STEP ? end - at : STEP;
        status = kvc_input_read(p->in, at, bytes, n, e);
        if (!status) kvc_sha256_update(&h, bytes, (size_t)n);
    }
    free(bytes);
    if (!status) return kvc_sha256_final(&h, p->hash[item], e);
    kvc_sha256_drop(&h);
    return -1;
}

static int hash_all(const struct kvc_input *in, uint8_t *out, struct kvc_error *e) {
    struct pieces p = {.in = in};
    const struct kvc_job job = {.n = (in->size + PIECE - 1) / PIECE,
                                .work = hash_piece,
                                .state = &p};
    if (!(p.hash = kvc_alloc(job.n, sizeof *p.hash))) return kvc_fail_memory(e, "a SHA-256 hash");
    int status = kvc_parallel(&job, 0, e);
    if (!status) status = kvc_sha256(p.hash, (size_t)job.n * sizeof *p.hash, out, e);
    free(p.hash);
    return status;
}

/* --- remembering --- */

/* A file that remembers the hash of a weights file as the weights file is now. */
struct memo {
    char path[PATH_MAX];
    size_t folders;                /* bytes of `path` that must be there already */
    uint8_t key[KVC_SHA256_BYTES]; /* of the weights file and its times */
    time_t changed;
};

/* Returns 1 if the file at a path is the one that is open, and as it was then. */
static int is_open_file(const struct kvc_input *in, const struct stat *st) {
    return S_ISREG(st->st_mode) && st->st_dev == in->device && st->st_ino == in->inode &&
           st->st_mtim.tv_sec == in->times[1].tv_sec && st->st_mtim.tv_nsec == in->times[1].tv_nsec;
}

/* Returns 0, or -1 where the hash is not worth it or cannot be remembered. */
static int find_memo(const struct kvc_input *in, struct memo *m) {
    const char *cache = secure_getenv("XDG_CACHE_HOME"), *home = secure_getenv("HOME");
    struct stat st;
    struct kvc_sha256 h;
    char hex[2 * KVC_SHA256_BYTES + 1], *path;
    if (!in->path || in->size < REMEMBERED || stat(in->path, &st) || !is_open_file(in, &st))
        return -1;
    if (!cache || *cache != '/') cache = NULL; /* the XDG specification: others are not valid */
    if (!cache && (!home || *home != '/')) return -1;
    if (!(path = realpath(in->path, NULL))) return -1;
    kvc_sha256_init(&h);
    kvc_sha256_update(&h, path, strlen(path) + 1);
    free(path);
    kvc_sha256_u64(&h, (uint64_t)st.st_dev);
    kvc_sha256_u64(&h, (uint64_t)st.st_ino);
    kvc_sha256_u64(&h, (uint64_t)st.st_size);
    kvc_sha256_u64(&h, (uint64_t)st.st_mtim.tv_sec);
    kvc_sha256_u64(&h, (uint64_t)st.st_mtim.tv_nsec);
    kvc_sha256_u64(&h, (uint64_t)st.st_ctim.tv_sec);
    kvc_sha256_u64(&h, (uint64_t)st.st_ctim.tv_nsec);
    if (kvc_sha256_final(&h, m->key, NULL)) return -1;
    kvc_hex(m->key, sizeof m->key, hex);
    m->changed = st.st_ctim.tv_sec;
    m->folders = cache ? 1 : strlen(home) + 1; /* a home that is not there is none */
    const int n = snprintf(m->path, sizeof m->path, "%s%s/kvc/weights/%s", cache ? cache : home,
                           cache ? "" : "/.cache", hex);
    return n > 0 && (size_t)n < sizeof m->path ? 0 : -1;
}

/* Writes a hash, and a hash over it and the key, which tells a damaged file. */
static int memo_text(const struct memo *m, const uint8_t *hash, char text[TEXT_BYTES + 1]) {
    struct kvc_sha256 h;
    uint8_t check[KVC_SHA256_BYTES];
    kvc_sha256_init(&h);
    kvc_sha256_update(&h, m->key, sizeof m->key);
    kvc_sha256_update(&h, hash, KVC_SHA256_BYTES);
    if (kvc_sha256_final(&h, check, NULL)) return -1;
    kvc_hex(hash, KVC_SHA256_BYTES, text);
    kvc_hex(check, sizeof check, text + TEXT_BYTES / 2);
    return 0;
}

/* Returns 1 if the file holds a hash. It may be anything: a FIFO without a writer is not waited
 * for. */
static int recall(const struct memo *m, uint8_t *out) {
    char text[TEXT_BYTES + 1], due[TEXT_BYTES + 1];
    const int fd = open(m->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return 0;
    const ssize_t n = read(fd, text, sizeof text);
    close(fd);
    if (n != TEXT_BYTES) return 0;
    for (size_t i = 0; i < KVC_SHA256_BYTES; i++) {
        const int high = kvc_hex_digit(text[2 * i]), low = kvc_hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0) return 0;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return !memo_text(m, out, due) && memcmp(text, due, TEXT_BYTES) == 0;
}

/* Writes a hash into a file, whole or not at all. */
static void remember(struct memo *m, const uint8_t *hash) {
    char text[TEXT_BYTES + 1], temporary[PATH_MAX + 8];
    if (memo_text(m, hash, text) || kvc_make_folders(m->path, m->folders, NULL)) return;
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", m->path);
    const int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) return;
    const int whole = write(fd, text, TEXT_BYTES) == TEXT_BYTES;
    if (close(fd) || !whole || rename(temporary, m->path)) unlink(temporary);
}

int kvc_file_hash(const struct kvc_input *in, uint8_t out[KVC_SHA256_BYTES], struct kvc_error *e) {
    struct memo m, after;
    const time_t start = time(NULL);
    const int is_known = find_memo(in, &m) == 0;
    if (is_known && recall(&m, out)) return 0;
    if (hash_all(in, out, e)) return -1;
    if (!is_known || start - m.changed <= SETTLED || find_memo(in, &after)) return 0;
    if (memcmp(m.key, after.key, sizeof m.key) == 0) remember(&m, out);
    return 0;
}
