/* decode_digest.h: XXH3-64 with a seed over rows in an engine's pages, one lane a row: the terms of
 * a record's digest (FORMAT.md 6). The algorithm is that of xxHash 0.8's specification
 * (doc/xxhash_spec.md). One source for GPU and host. Not for records' own hashes, which the CPU
 * checks. */
#ifndef KVC_DECODE_DIGEST_H
#define KVC_DECODE_DIGEST_H

#include "kernels/device/decode_values.h"

#define KVC_XXH_P32_1 UINT64_C(0x9E3779B1)
#define KVC_XXH_P32_2 UINT64_C(0x85EBCA77)
#define KVC_XXH_P32_3 UINT64_C(0xC2B2AE3D)
#define KVC_XXH_P64_1 UINT64_C(0x9E3779B185EBCA87)
#define KVC_XXH_P64_2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define KVC_XXH_P64_3 UINT64_C(0x165667B19E3779F9)
#define KVC_XXH_P64_4 UINT64_C(0x85EBCA77C2B2AE63)
#define KVC_XXH_P64_5 UINT64_C(0x27D4EB2F165667C5)

/* The default secret, as little-endian words. */
KVC_DEVICE uint64_t kvc_xxh_secret_word(uint32_t i) {
#ifdef __CUDACC__
    __constant__
#endif
        static const uint64_t secret[24] = {
            UINT64_C(0xbe4ba423396cfeb8), UINT64_C(0x1cad21f72c81017c),
            UINT64_C(0xdb979083e96dd4de), UINT64_C(0x1f67b3b7a4a44072),
            UINT64_C(0x78e5c0cc4ee679cb), UINT64_C(0x2172ffcc7dd05a82),
            UINT64_C(0x8e2443f7744608b8), UINT64_C(0x4c263a81e69035e0),
            UINT64_C(0xcb00c391bb52283c), UINT64_C(0xa32e531b8b65d088),
            UINT64_C(0x4ef90da297486471), UINT64_C(0xd8acdea946ef1938),
            UINT64_C(0x3f349ce33f76faa8), UINT64_C(0x1d4f0bc7c7bbdcf9),
            UINT64_C(0x3159b4cd4be0518a), UINT64_C(0x647378d9c97e9fc8),
            UINT64_C(0xc3ebd33483acc5ea), UINT64_C(0xeb6313faffa081c5),
            UINT64_C(0x49daf0b751dd0d17), UINT64_C(0x9e68d429265516d3),
            UINT64_C(0xfca1477d58be162b), UINT64_C(0xce31d07ad1b8f88f),
            UINT64_C(0x280416958f3acb45), UINT64_C(0x7e404bbbcafbd7af)};
    return secret[i];
}

/* Returns eight bytes of the secret from any byte on, with the seed added to even words and
 * subtracted from odd words. */
KVC_DEVICE uint64_t kvc_xxh_secret(uint32_t at, uint64_t seed) {
    const uint32_t i = at / 8, bits = at % 8 * 8;
    const uint64_t low = kvc_xxh_secret_word(i) + (i % 2 ? 0 - seed : seed);
    if (!bits) return low;
    const uint64_t high = kvc_xxh_secret_word(i + 1) + ((i + 1) % 2 ? 0 - seed : seed);
    return low >> bits | high << (64 - bits);
}

KVC_DEVICE uint64_t kvc_xxh_fold(uint64_t a, uint64_t b) {
#ifdef __CUDACC__
    return (a * b) ^ __umul64hi(a, b);
#else
    __extension__ typedef unsigned __int128 wide;
    const wide product = (wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
#endif
}

KVC_DEVICE uint64_t kvc_xxh_rotate(uint64_t x, unsigned n) {
    return x << n | x >> (64 - n);
}

KVC_DEVICE uint64_t kvc_xxh_finish(uint64_t h) {
    h ^= h >> 37;
    h *= UINT64_C(0x165667919E3779F9);
    return h ^ h >> 32;
}

/* A canonical row, whose values are in an engine's layout. */
struct kvc_digest_row {
    const uint8_t *base;
    int64_t head, dim;        /* strides */
    uint32_t channels, bytes; /* of a head; of a value */
    uint32_t size;            /* of the row */
};

/* Returns bytes [at, at + n) of the row, n <= 8. */
KVC_DEVICE uint64_t kvc_digest_read(const struct kvc_digest_row *r, uint32_t at, uint32_t n) {
    const uint32_t head = r->channels * r->bytes;
    uint64_t word = 0;
    if (n == 8 && r->dim == (int64_t)r->bytes && at % head + 8 <= head) { /* most reads */
        const uint8_t *p = r->base + (int64_t)(at / head) * r->head + at % head;
        uint32_t low, high;
        if ((uintptr_t)p % 8 == 0) {
            kvc_load_two(p, &low, &high);
            return low | (uint64_t)high << 32;
        }
    }
    for (uint32_t i = 0; i < n;) {
        const uint32_t value = (at + i) / r->bytes, part = (at + i) % r->bytes;
        const uint8_t *p = r->base + (int64_t)(value / r->channels) * r->head +
                           (int64_t)(value % r->channels) * r->dim;
        for (uint32_t b = part; b < r->bytes && i < n; b++, i++) word |= (uint64_t)p[b] << 8 * i;
    }
    return word;
}

KVC_DEVICE uint64_t kvc_xxh_mix(const struct kvc_digest_row *r, uint32_t at, uint32_t secret,
                                uint64_t seed) {
    return kvc_xxh_fold(kvc_digest_read(r, at, 8) ^ (kvc_xxh_secret(secret, 0) + seed),
                        kvc_digest_read(r, at + 8, 8) ^ (kvc_xxh_secret(secret + 8, 0) - seed));
}

KVC_DEVICE uint64_t kvc_xxh_short(const struct kvc_digest_row *r, uint64_t seed) {
    const uint32_t n = r->size;
    if (n > 8) {
        const uint64_t low = kvc_digest_read(r, 0, 8) ^
                             ((kvc_xxh_secret(24, 0) ^ kvc_xxh_secret(32, 0)) + seed);
        const uint64_t high = kvc_digest_read(r, n - 8, 8) ^
                              ((kvc_xxh_secret(40, 0) ^ kvc_xxh_secret(48, 0)) - seed);
        uint64_t swapped = 0;
        for (unsigned i = 0; i < 8; i++) swapped |= (low >> 8 * i & 255u) << (56 - 8 * i);
        return kvc_xxh_finish(n + swapped + high + kvc_xxh_fold(low, high));
    }
    if (n >= 4) {
        const uint32_t s = (uint32_t)seed;
        seed ^= (uint64_t)(s >> 24 | (s >> 8 & 0xff00u) | (s << 8 & 0xff0000u) | s << 24) << 32;
        const uint64_t word = kvc_digest_read(r, n - 4, 4) + (kvc_digest_read(r, 0, 4) << 32);
        uint64_t h = word ^ ((kvc_xxh_secret(8, 0) ^ kvc_xxh_secret(16, 0)) - seed);
        h ^= kvc_xxh_rotate(h, 49) ^ kvc_xxh_rotate(h, 24);
        h *= UINT64_C(0x9FB21C651E98DF25);
        h ^= (h >> 35) + n;
        h *= UINT64_C(0x9FB21C651E98DF25);
        return h ^ h >> 28;
    }
    const uint64_t word = kvc_digest_read(r, 0, 1) << 16 | kvc_digest_read(r, n / 2, 1) << 24 |
                          kvc_digest_read(r, n - 1, 1) | (uint64_t)n << 8;
    const uint64_t start = kvc_xxh_secret(0, 0);
    uint64_t h = word ^ (((start ^ start >> 32) & 0xffffffffu) + seed);
    h ^= h >> 33;
    h *= KVC_XXH_P64_2;
    h ^= h >> 29;
    h *= KVC_XXH_P64_3;
    return h ^ h >> 32;
}

KVC_DEVICE uint64_t kvc_xxh_middle(const struct kvc_digest_row *r, uint64_t seed) {
    const uint32_t n = r->size;
    uint64_t h = n * KVC_XXH_P64_1;
    if (n <= 128) {
        for (uint32_t i = (n - 1) / 32 + 1; i-- > 0;)
            h += kvc_xxh_mix(r, 16 * i, 32 * i, seed) +
                 kvc_xxh_mix(r, n - 16 * (i + 1), 32 * i + 16, seed);
        return kvc_xxh_finish(h);
    }
    for (uint32_t i = 0; i < 8; i++) h += kvc_xxh_mix(r, 16 * i, 16 * i, seed);
    h = kvc_xxh_finish(h);
    for (uint32_t i = 8; i < n / 16; i++) h += kvc_xxh_mix(r, 16 * i, 16 * (i - 8) + 3, seed);
    return kvc_xxh_finish(h + kvc_xxh_mix(r, n - 16, 136 - 17, seed));
}

KVC_DEVICE void kvc_xxh_stripe(uint64_t sum[8], const struct kvc_digest_row *r, uint32_t at,
                               uint32_t secret, uint64_t seed) {
    for (uint32_t i = 0; i < 8; i++) {
        const uint64_t data = kvc_digest_read(r, at + 8 * i, 8),
                       key = data ^ kvc_xxh_secret(secret + 8 * i, seed);
        sum[i ^ 1] += data;
        sum[i] += (key & 0xffffffffu) * (key >> 32);
    }
}

KVC_DEVICE uint64_t kvc_xxh_long(const struct kvc_digest_row *r, uint64_t seed) {
    enum { STRIPES = 16 }; /* in a block of 1024 bytes */
    const uint32_t n = r->size, stripes = (n - 1) / 64;
    uint64_t sum[8] = {KVC_XXH_P32_3, KVC_XXH_P64_1, KVC_XXH_P64_2, KVC_XXH_P64_3,
                       KVC_XXH_P64_4, KVC_XXH_P32_2, KVC_XXH_P64_5, KVC_XXH_P32_1};
    for (uint32_t s = 0; s < stripes; s++) {
        kvc_xxh_stripe(sum, r, 64 * s, s % STRIPES * 8, seed);
        if (s % STRIPES != STRIPES - 1) continue;
        for (uint32_t i = 0; i < 8; i++) {
            sum[i] ^= sum[i] >> 47;
            sum[i] ^= kvc_xxh_secret(128 + 8 * i, seed);
            sum[i] *= KVC_XXH_P32_1;
        }
    }
    kvc_xxh_stripe(sum, r, n - 64, 121, seed);
    uint64_t h = n * KVC_XXH_P64_1;
    for (uint32_t i = 0; i < 4; i++)
        h += kvc_xxh_fold(sum[2 * i] ^ kvc_xxh_secret(11 + 16 * i, seed),
                          sum[2 * i + 1] ^ kvc_xxh_secret(19 + 16 * i, seed));
    return kvc_xxh_finish(h);
}

KVC_DEVICE uint64_t kvc_digest_row_hash(const struct kvc_digest_row *r, uint64_t seed) {
    return r->size > 240  ? kvc_xxh_long(r, seed)
           : r->size > 16 ? kvc_xxh_middle(r, seed)
                          : kvc_xxh_short(r, seed);
}

#endif
