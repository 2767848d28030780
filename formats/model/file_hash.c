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
#define SETTLED                                                                      \
    2 /* seconds: a file may change twice within one tick of its file system's clock \
       */
#define HEX_BYTES (2 * KVC_SHA256_BYTES)

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

/* Writes the name of the file that remembers the hash of a file as the file is now. Returns 0, or
 * -1 where the hash is not worth it or cannot be remembered. */
static int remembered_name(const struct kvc_input *in, char *name, size_t size, time_t *changed) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    struct stat st;
    struct kvc_sha256 h;
    uint8_t hash[KVC_SHA256_BYTES];
    char hex[HEX_BYTES + 1], *path;
    if (!in->path || in->size < REMEMBERED || stat(in->path, &st) || !S_ISREG(st.st_mode))
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
    if (kvc_sha256_final(&h, hash, NULL)) return -1;
    kvc_hex(hash, sizeof hash, hex);
    *changed = st.st_ctim.tv_sec;
    const int n = snprintf(name, size, "%s%s/kvc/weights/%s", cache ? cache : home,
                           cache ? "" : "/.cache", hex);
    return n > 0 && (size_t)n < size ? 0 : -1;
}

/* Returns 1 if the file holds a hash. */
static int recall(const char *name, uint8_t *out) {
    char text[HEX_BYTES + 1];
    const int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    const ssize_t n = read(fd, text, sizeof text);
    close(fd);
    if (n != HEX_BYTES) return 0;
    for (size_t i = 0; i < KVC_SHA256_BYTES; i++) {
        const int high = kvc_hex_digit(text[2 * i]), low = kvc_hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0) return 0;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return 1;
}

/* Writes a hash into a file, whole or not at all. */
static void remember(char *name, const uint8_t *hash) {
    char text[HEX_BYTES + 1], temporary[PATH_MAX + 8];
    kvc_hex(hash, KVC_SHA256_BYTES, text);
    if (kvc_make_folders(name, 1, NULL)) return;
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", name);
    const int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) return;
    const int whole = write(fd, text, HEX_BYTES) == HEX_BYTES;
    if (close(fd) || !whole || rename(temporary, name)) unlink(temporary);
}

int kvc_file_hash(const struct kvc_input *in, uint8_t out[KVC_SHA256_BYTES], struct kvc_error *e) {
    char name[PATH_MAX], after[PATH_MAX];
    time_t changed = 0;
    const int is_known = remembered_name(in, name, sizeof name, &changed) == 0;
    if (is_known && recall(name, out)) return 0;
    if (hash_all(in, out, e)) return -1;
    if (!is_known || remembered_name(in, after, sizeof after, &changed)) return 0;
    if (strcmp(name, after) == 0 && time(NULL) - changed > SETTLED) remember(name, out);
    return 0;
}
