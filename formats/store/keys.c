/* keys.c: prefix keys, and names of objects from them; secrets and signatures; also keys as vLLM
 * and LMCache compute them, for routers and indexers. Spec: STORE.md, "Keys" and "Proof". */
#include "formats/store/store.h"

#include "formats/api/sized.h"
#include "formats/io/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OBJECT_TAG "kvc object 1\n"

int kvc_key_object(const struct kvc_store_namespace *ns, enum kvc_object_kind kind,
                   const uint8_t key[KVC_KEY_BYTES], struct kvc_object *o, struct kvc_error *e) {
    uint8_t text[sizeof OBJECT_TAG - 1 + KVC_KEY_BYTES + 1 + KVC_KEY_BYTES], *p = text;
    o->kind = kind;
    memcpy(o->ns, ns->hash, sizeof o->ns);
    memcpy(p, OBJECT_TAG, sizeof OBJECT_TAG - 1);
    p += sizeof OBJECT_TAG - 1;
    memcpy(p, ns->hash, KVC_KEY_BYTES);
    p += KVC_KEY_BYTES;
    *p++ = (uint8_t)kind;
    memcpy(p, key, KVC_KEY_BYTES);
    return kvc_sha256(text, sizeof text, o->key, e);
}

int kvc_chunk_object(const struct kvc_store_namespace *ns, const uint8_t *keys, size_t i,
                     struct kvc_object *o, struct kvc_error *e) {
    const size_t per_chunk = (size_t)(ns->chunk / KVC_PREFIX_TOKENS);
    return kvc_key_object(ns, KVC_OBJECT_CHUNK, keys + ((i + 1) * per_chunk - 1) * KVC_KEY_BYTES, o,
                          e);
}

int kvc_whole_object(const struct kvc_store_namespace *ns, const uint8_t *keys, size_t i,
                     struct kvc_object *o, struct kvc_error *e) {
    uint8_t start[KVC_KEY_BYTES];
    if (i) return kvc_key_object(ns, KVC_OBJECT_STATE, keys + (i - 1) * KVC_KEY_BYTES, o, e);
    if (kvc_prefix_chain(ns->identity, NULL, 0, NULL, 0, start, NULL, 0, e)) return -1;
    return kvc_key_object(ns, KVC_OBJECT_STATE, start, o, e);
}

int kvc_named_object(const struct kvc_store_namespace *ns, const struct kvc_store_name *name,
                     struct kvc_object *o, struct kvc_error *e) {
    uint8_t hash[KVC_KEY_BYTES];
    if (!name->size || name->size > KVC_STORE_MAX_NAME)
        return kvc_fail(e, KVC_ERR_USAGE, "the name of a cache has 1 to %d bytes",
                        KVC_STORE_MAX_NAME);
    if (!name->bytes) return kvc_fail(e, KVC_ERR_USAGE, "the bytes of a name are NULL");
    if (kvc_sha256(name->bytes, name->size, hash, e)) return -1;
    if (kvc_key_object(ns, KVC_OBJECT_NAMED, hash, o, e)) return -1;
    return 0;
}

struct kvc_object *kvc_named_objects(const struct kvc_store_namespace *ns,
                                     const struct kvc_store_name *names, size_t n,
                                     struct kvc_error *e) {
    struct kvc_object *o = calloc(n, sizeof *o);
    if (!o) kvc_fail_memory(e, "names");
    for (size_t i = 0; i < n && o; i++)
        if (kvc_named_object(ns, &names[i], &o[i], e)) {
            free(o);
            o = NULL;
        }
    return o;
}

/* Allocates the keys of n tokens, *size bytes. */
static uint8_t *new_keys(uint64_t n, size_t *size, struct kvc_error *e) {
    *size = (size_t)(n / KVC_PREFIX_TOKENS) * KVC_KEY_BYTES;
    uint8_t *keys = malloc(*size + 1);
    if (!keys) kvc_fail_memory(e, "keys");
    return keys;
}

/* Frees keys that could not be computed. */
static int drop_keys(uint8_t **keys, int status) {
    if (!status) return 0;
    free(*keys);
    *keys = NULL;
    return -1;
}

int kvc_namespace_keys_of(const struct kvc_store_namespace *ns, const struct kvc_file *f,
                          uint64_t n, uint8_t **keys, struct kvc_error *e) {
    size_t size;
    if (!(*keys = new_keys(n, &size, e))) return -1;
    return drop_keys(keys, kvc_file_prefix_chain(f, ns->identity, n, *keys, size, e));
}

int kvc_namespace_keys(const struct kvc_store_namespace *ns, const int32_t *tokens, uint64_t n,
                       const struct kvc_prefix_extra *extras, size_t n_extras, uint8_t **keys,
                       struct kvc_error *e) {
    size_t size;
    if (!(*keys = new_keys(n, &size, e))) return -1;
    return drop_keys(keys, kvc_prefix_chain(ns->identity, tokens, n, extras, n_extras, NULL, *keys,
                                            size, e));
}

/* --- secrets and signatures --- */

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

static int append_signature(const struct kvc_store *s, const struct kvc_object *o, void **data,
                            size_t *size, struct kvc_error *e) {
    uint8_t *more = realloc(*data, *size + SIGNATURE);
    if (!more) return kvc_fail_memory(e, "a signature");
    *data = more;
    memcpy(more + *size, MARK, MARK_BYTES);
    if (sign(s, o, more, *size, more + *size + MARK_BYTES, e)) return -1;
    *size += SIGNATURE;
    return 0;
}

struct kvc_bytes *kvc_chunk_sign(const struct kvc_store *s, const struct kvc_object *o, void *data,
                                 size_t size, struct kvc_error *e) {
    if (s->is_signed && append_signature(s, o, &data, &size, e)) {
        free(data);
        return NULL;
    }
    struct kvc_bytes *bytes = kvc_bytes_of(data, size);
    if (!bytes) kvc_fail_memory(e, "an object");
    return bytes;
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

/* --- for routers and indexers: CBOR (RFC 8949), as far as the hashes need it --- */

/* Writes the head of an item: its major type, and a number in the shortest form. Returns the bytes,
 * at most 9. */
static size_t cbor_head(uint8_t *p, unsigned major, uint64_t v) {
    const unsigned type = major << 5;
    if (v < 24) {
        p[0] = (uint8_t)(type | v);
        return 1;
    }
    const unsigned log = v <= 0xff         ? 0
                         : v <= 0xffff     ? 1
                         : v <= 0xffffffff ? 2
                                           : 3,
                   bytes = 1u << log;
    p[0] = (uint8_t)(type | (24 + log));
    for (unsigned i = 0; i < bytes; i++) p[1 + i] = (uint8_t)(v >> (8 * (bytes - 1 - i)));
    return 1 + bytes;
}

static size_t cbor_int(uint8_t *p, int32_t v) {
    return v < 0 ? cbor_head(p, 1, (uint64_t)(-1 - (int64_t)v)) : cbor_head(p, 0, (uint64_t)v);
}

#define CBOR_BYTES 2
#define CBOR_ARRAY 4
#define CBOR_NULL 0xf6

int kvc_store_vllm_hashes(const uint8_t *root, const int32_t *tokens, uint64_t n, uint64_t block,
                          uint8_t *hashes, size_t size, struct kvc_error *e) {
    if (KVC_NULL(e, root)) return -1;
    if (n && KVC_NULL(e, tokens, hashes)) return -1;
    if (!block || block > (UINT64_C(1) << 24))
        return kvc_fail(e, KVC_ERR_USAGE, "a block has 1 to 16777216 tokens");
    if (KVC_SHORT(e, hashes, size, n / block, KVC_KEY_BYTES)) return -1;
    uint8_t *text = malloc((size_t)block * 9 + 64);
    int status = text ? 0 : kvc_fail_memory(e, "a hash");
    const uint8_t *parent = root;
    for (uint64_t b = 0; b < n / block && !status; b++) {
        /* (parent hash, tuple of tokens, extra keys or None); tuples are arrays */
        size_t at = cbor_head(text, CBOR_ARRAY, 3);
        at += cbor_head(text + at, CBOR_BYTES, KVC_KEY_BYTES);
        memcpy(text + at, parent, KVC_KEY_BYTES);
        at += KVC_KEY_BYTES;
        at += cbor_head(text + at, CBOR_ARRAY, block);
        for (uint64_t i = 0; i < block; i++) at += cbor_int(text + at, tokens[b * block + i]);
        text[at++] = CBOR_NULL;
        status = kvc_sha256(text, at, hashes + b * KVC_KEY_BYTES, e);
        parent = hashes + b * KVC_KEY_BYTES;
    }
    free(text);
    return status;
}
