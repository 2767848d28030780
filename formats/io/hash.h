/* hash.h: SHA-256, for hashes that are identities (models, tokenizers, prefix keys). Not for
 * checksums. */
#ifndef KVC_HASH_H
#define KVC_HASH_H

#include "codecs/error.h"

#include <stddef.h>
#include <stdint.h>

#define KVC_SHA256_BYTES 32

/* A failure (out of memory) is remembered and reported by kvc_sha256_final(), so updates need no
 * check. */
struct kvc_sha256 {
    void *context; /* NULL after a failure */
};

void kvc_sha256_init(struct kvc_sha256 *h);
void kvc_sha256_update(struct kvc_sha256 *h, const void *data, size_t n);
/* Hash a number as the hashes of FORMAT.md need it: little-endian. */
void kvc_sha256_u32(struct kvc_sha256 *h, uint32_t v);
void kvc_sha256_u64(struct kvc_sha256 *h, uint64_t v);
/* Writes the hash and frees the context, also on failure. */
int kvc_sha256_final(struct kvc_sha256 *h, uint8_t out[KVC_SHA256_BYTES], struct kvc_error *e);
/* Frees a context without computing the hash. */
void kvc_sha256_drop(struct kvc_sha256 *h);

/* Hashes n bytes in one call. */
int kvc_sha256(const void *data, size_t n, uint8_t out[KVC_SHA256_BYTES], struct kvc_error *e);

/* Returns the value of a hexadecimal digit of either case, or -1. */
int kvc_hex_digit(char c);

/* Writes 2 * n lower-case hexadecimal digits and a NUL. */
void kvc_hex(const uint8_t *bytes, size_t n, char *text);

#endif
