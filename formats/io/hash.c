/* hash.c: SHA-256 by OpenSSL. Not for checksums (XXH3-64, in the container). */
#include "formats/io/hash.h"

#include "formats/io/bytes.h"

#include <openssl/evp.h>

void kvc_sha256_init(struct kvc_sha256 *h) {
    h->context = EVP_MD_CTX_new();
    if (h->context && EVP_DigestInit_ex(h->context, EVP_sha256(), NULL) != 1) kvc_sha256_drop(h);
}

void kvc_sha256_update(struct kvc_sha256 *h, const void *data, size_t n) {
    if (h->context && n && EVP_DigestUpdate(h->context, data, n) != 1) kvc_sha256_drop(h);
}

void kvc_sha256_u32(struct kvc_sha256 *h, uint32_t v) {
    uint8_t bytes[4];
    put_u32(bytes, v);
    kvc_sha256_update(h, bytes, sizeof bytes);
}

void kvc_sha256_u64(struct kvc_sha256 *h, uint64_t v) {
    uint8_t bytes[8];
    put_u64(bytes, v);
    kvc_sha256_update(h, bytes, sizeof bytes);
}

int kvc_sha256_final(struct kvc_sha256 *h, uint8_t out[KVC_SHA256_BYTES], struct kvc_error *e) {
    int ok = h->context && EVP_DigestFinal_ex(h->context, out, NULL) == 1;
    kvc_sha256_drop(h);
    return ok ? 0 : kvc_fail_memory(e, "a SHA-256 hash");
}

void kvc_sha256_drop(struct kvc_sha256 *h) {
    EVP_MD_CTX_free(h->context);
    h->context = NULL;
}

int kvc_sha256(const void *data, size_t n, uint8_t out[KVC_SHA256_BYTES], struct kvc_error *e) {
    struct kvc_sha256 h;
    kvc_sha256_init(&h);
    kvc_sha256_update(&h, data, n);
    return kvc_sha256_final(&h, out, e);
}

void kvc_hex(const uint8_t *bytes, size_t n, char *text) {
    static const char digit[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        *text++ = digit[bytes[i] >> 4];
        *text++ = digit[bytes[i] & 15];
    }
    *text = '\0';
}

int kvc_hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}
