/* signature.c: secrets of files; signs objects, and checks their signatures. Spec: STORE.md,
 * "Proof". */
#include "formats/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int kvc_store_secret(const char *path, const char *tag, uint8_t key[KVC_KEY_BYTES],
                     struct kvc_error *e) {
    uint8_t bytes[4096];
    struct stat st;
    unsigned length = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st)) {
        if (fd >= 0) close(fd);
        return kvc_fail(e, KVC_ERR_IO, "%s: %s", path, strerror(errno));
    }
    const ssize_t n = S_ISREG(st.st_mode) ? read(fd, bytes, sizeof bytes) : -1;
    close(fd);
    if (!S_ISREG(st.st_mode))
        return kvc_fail(e, KVC_ERR_USAGE, "%s: a secret must be in a regular file", path);
    if (st.st_mode & 077)
        return kvc_fail(e, KVC_ERR_USAGE, "%s: others can read the secret: chmod 600 it", path);
    if (n < 16 || n == (ssize_t)sizeof bytes)
        return kvc_fail(e, KVC_ERR_USAGE, "%s: a secret has 16 to %zu bytes", path,
                        sizeof bytes - 1);
    const void *done = HMAC(EVP_sha256(), bytes, (int)n, (const uint8_t *)tag, strlen(tag), key,
                            &length);
    OPENSSL_cleanse(bytes, sizeof bytes);
    return done && length == KVC_KEY_BYTES ? 0 : kvc_fail_memory(e, "a secret");
}

#define MARK "kvc-hmac" /* begins the signature after an object */
#define MARK_BYTES 8
#define SIGNATURE (MARK_BYTES + 32)

/* Computes the signature of an object's name and bytes. */
static int sign(const struct kvc_store *s, const struct kvc_object *o, const void *data,
                size_t size, uint8_t out[32], struct kvc_error *e) {
    char name[KVC_OBJECT_NAME];
    uint8_t hash[32], text[KVC_OBJECT_NAME + 32];
    unsigned length = 0;
    kvc_object_name(o, name);
    if (kvc_sha256(data, size, hash, e)) return -1;
    const size_t n = strlen(name);
    memcpy(text, name, n);
    memcpy(text + n, hash, sizeof hash);
    if (HMAC(EVP_sha256(), s->secret, (int)sizeof s->secret, text, n + sizeof hash, out, &length) &&
        length == 32)
        return 0;
    return kvc_fail_memory(e, "a signature");
}

int kvc_chunk_sign(const struct kvc_store *s, const struct kvc_object *o, void **data, size_t *size,
                   struct kvc_error *e) {
    if (!s->is_signed) return 0;
    uint8_t *more = realloc(*data, *size + SIGNATURE);
    if (!more) return kvc_fail_memory(e, "a signature");
    *data = more;
    memcpy(more + *size, MARK, MARK_BYTES);
    if (sign(s, o, more, *size, more + *size + MARK_BYTES, e)) return -1;
    *size += SIGNATURE;
    return 0;
}

int kvc_chunk_signature(const struct kvc_store *s, const struct kvc_object *o, const void *data,
                        size_t *size, struct kvc_error *e) {
    const uint8_t *end = (const uint8_t *)data + *size;
    uint8_t own[32];
    const int has = *size >= SIGNATURE && memcmp(end - SIGNATURE, MARK, MARK_BYTES) == 0;
    if (!s->is_signed) {
        /* who has no secret reads the objects of those who have one, unproved */
        if (has) *size -= SIGNATURE;
        return 0;
    }
    if (!has) return kvc_fail(e, KVC_ERR_VERIFY, "the object is not signed");
    if (sign(s, o, data, *size - SIGNATURE, own, e)) return -1;
    if (CRYPTO_memcmp(own, end - 32, sizeof own) != 0)
        return kvc_fail(e, KVC_ERR_VERIFY, "the object's signature is wrong");
    *size -= SIGNATURE;
    return 0;
}
