/* floats.c: matrices as binary32, arrays of binary16 with a common exponent. Spec of the latter:
 * floats.md. */
#include "codecs/floats.h"

#include "codecs/little_endian.h"
#include "codecs/memory.h"
#include "codecs/planes.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MIN_EXPONENT = -126, MAX_EXPONENT = 112 };

int kvc_all_finite(const float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!kvc_is_tame(x[i])) return 0;
    return 1;
}

int kvc_is_float(enum kvc_dtype dtype) {
    return dtype == KVC_F32 || dtype == KVC_F16 || dtype == KVC_BF16;
}

void kvc_to_floats(float *dst, const uint8_t *src, size_t n, enum kvc_dtype dtype) {
    if (!n) return; /* there may be no memory */
    if (dtype == KVC_F16) kvc_kernels_get()->f16_to_f32(dst, src, n);
    else if (dtype == KVC_BF16) kvc_kernels_get()->bf16_to_f32(dst, src, n);
    else if ((const uint8_t *)dst != src) memcpy(dst, src, n * sizeof *dst);
}

/* Replaces infinite halves by the maximum finite half. */
static void hold_finite(uint8_t *halves, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((halves[2 * i + 1] & 0x7f) == 0x7c && !halves[2 * i]) {
            halves[2 * i] = 0xff;
            halves[2 * i + 1]--;
        }
}

/* Makes NaNs the quiet one. The values may lie anywhere. */
static void settle_nans(uint8_t *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + 4 * i, sizeof bits);
        bits = (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc00000 : bits;
        memcpy(x + 4 * i, &bits, sizeof bits);
    }
}

void kvc_from_floats(uint8_t *dst, const float *src, size_t n, enum kvc_dtype dtype) {
    const struct kvc_kernels *k = kvc_kernels_get();
    if (!n) return;
    if (dtype == KVC_F16) {
        float low, high;
        k->range(src, n, &low, &high);
        k->f32_to_f16(dst, src, n);
        if (!(low > -0x1p15f && high < 0x1p15f)) hold_finite(dst, n);
        return;
    }
    if (dtype == KVC_BF16) {
        k->f32_to_bf16(dst, src, n);
        return;
    }
    if ((const uint8_t *)src != dst) memcpy(dst, src, n * sizeof *src);
    settle_nans(dst, n);
}

/* Returns the exponent that brings the maximum below 2^15; 0 when all values are 0. */
static int exponent_for(float largest) {
    int e = 0;
    if (!(largest > 0)) return 0;
    frexpf(largest, &e); /* largest < 2^e */
    e -= 15;
    return e < MIN_EXPONENT ? MIN_EXPONENT : e > MAX_EXPONENT ? MAX_EXPONENT : e;
}

enum { HEADER = 9, ROTATED = 128 };

/* How the upper bytes are coded: those from `base` on in `width` bits, the last code standing for
 * an escape. */
struct upper {
    unsigned width, base; /* width 8: uncoded bytes */
    int rotated;
    size_t escapes;
};

static uint8_t rotate(uint8_t byte) {
    return (uint8_t)(byte << 1 | byte >> 7);
}

/* The cheapest way to code n upper bytes, with the sign as the highest or as the lowest bit. */
static struct upper choose_upper(const uint8_t *bytes, size_t n) {
    struct upper best = {.width = 8};
    size_t least = n;
    for (int rotated = 0; rotated < 2; rotated++) {
        size_t count[256] = {0};
        for (size_t i = 0; i < n; i++) count[rotated ? rotate(bytes[i]) : bytes[i]]++;
        for (unsigned width = 1; width < 8; width++) {
            const unsigned codes = (1u << width) - 1;
            size_t covered = 0;
            if (KVC_PACKED(n, width) >= least) break;
            for (unsigned v = 0; v < codes; v++) covered += count[v];
            for (unsigned base = 0; base < 256; base++) {
                const size_t cost = KVC_PACKED(n, width) + n - covered;
                if (cost < least) {
                    least = cost;
                    best = (struct upper){width, base, rotated, n - covered};
                }
                covered += count[(base + codes) % 256] - count[base];
            }
        }
    }
    return best;
}

static uint8_t *write_halves(uint8_t *to, int exponent, uint8_t *lower, uint8_t *upper, size_t n) {
    const struct upper u = choose_upper(upper, n);
    const unsigned escape = (1u << u.width) - 1;
    uint8_t any = 0;
    unsigned zeros = 0; /* that all lower bytes end in */
    for (size_t i = 0; i < n; i++) any |= lower[i];
    while (zeros < 8 && !(any >> zeros & 1)) zeros++;
    for (size_t i = 0; i < n; i++) lower[i] = (uint8_t)(lower[i] >> zeros);
    put_u16(to, (uint16_t)exponent);
    to[2] = (uint8_t)zeros;
    to[3] = (uint8_t)(u.width | (u.rotated ? ROTATED : 0));
    to[4] = (uint8_t)u.base;
    put_u32(to + 5, (uint32_t)u.escapes);
    to = kvc_packed_write(to + HEADER, lower, n, 8 - zeros);
    if (u.width == 8) return kvc_packed_write(to, upper, n, 8);
    uint8_t *escapes = to + kvc_packed_bytes(n, u.width);
    for (size_t i = 0; i < n; i++) {
        const unsigned code = ((u.rotated ? rotate(upper[i]) : upper[i]) - u.base) & 255;
        if (code >= escape) *escapes++ = upper[i];
        upper[i] = (uint8_t)(code < escape ? code : escape);
    }
    kvc_packed_write(to, upper, n, u.width);
    return escapes;
}

/* Rounds values to halves of a common exponent, which it returns. */
static int round_halves(uint8_t *halves, float *values, size_t n) {
    const struct kvc_kernels *k = kvc_kernels_get();
    float low = 0, high = 0;
    if (n) k->range(values, n, &low, &high);
    const int exponent = exponent_for(-low > high ? -low : high);
    k->scale(values, values, ldexpf(1, -exponent), n);
    k->f32_to_f16(halves, values, n);
    k->f16_to_f32(values, halves, n);
    k->scale(values, values, ldexpf(1, exponent), n);
    return exponent;
}

int kvc_halves_round(float *values, size_t n, struct kvc_error *e) {
    uint8_t *halves = kvc_alloc(n, 2);
    if (!halves) return kvc_fail_memory(e, "numbers");
    round_halves(halves, values, n);
    free(halves);
    return 0;
}

int kvc_halves_write(uint8_t **bytes, float *values, size_t n, struct kvc_error *e) {
    uint8_t *halves = kvc_alloc(n, 4);
    if (!halves) return kvc_fail_memory(e, "numbers");
    uint8_t *planes = halves + 2 * n;
    const int exponent = round_halves(halves, values, n);
    kvc_kernels_get()->split_planes(planes, halves, n, 2);
    *bytes = write_halves(*bytes, exponent, planes, planes + n, n);
    free(halves);
    return 0;
}

int kvc_halves_open(struct kvc_halves *h, const uint8_t **bytes, const uint8_t *end, size_t n,
                    struct kvc_error *e) {
    const uint8_t *p = *bytes;
    if (end - p < HEADER) return kvc_fail(e, KVC_ERR_DAMAGED, "numbers are cut short");
    const int exponent = (int16_t)get_u16(p);
    *h = (struct kvc_halves){.zeros = p[2],
                             .width = p[3] & (ROTATED - 1),
                             .rotated = p[3] >= ROTATED,
                             .base = p[4],
                             .n_escapes = get_u32(p + 5)};
    if (exponent < MIN_EXPONENT || exponent > MAX_EXPONENT)
        return kvc_fail(e, KVC_ERR_DAMAGED, "an exponent of %d is out of range", exponent);
    if (h->zeros > 8 || !h->width || h->width > 8 || h->n_escapes > n ||
        (h->width == 8 && (h->n_escapes || h->base || h->rotated)))
        return kvc_fail(e, KVC_ERR_DAMAGED, "the header of %zu numbers is out of range", n);
    const size_t lower = kvc_packed_bytes(n, 8 - h->zeros), codes = kvc_packed_bytes(n, h->width);
    if ((size_t)(end - p) - HEADER < lower + codes + h->n_escapes)
        return kvc_fail(e, KVC_ERR_DAMAGED, "numbers are cut short");
    h->scale = ldexpf(1, exponent);
    h->lower = p + HEADER;
    h->codes = h->lower + lower;
    h->escapes = h->codes + codes;
    *bytes = h->escapes + h->n_escapes;
    return 0;
}

/* Replaces codes by upper bytes, in place. */
static int undo_codes(uint8_t *upper, const struct kvc_halves *h, size_t n, struct kvc_error *e) {
    const unsigned escape = (1u << h->width) - 1;
    size_t used = 0;
    for (size_t i = 0; i < n && h->width < 8; i++) {
        if (upper[i] == escape) {
            if (used == h->n_escapes)
                return kvc_fail(e, KVC_ERR_DAMAGED, "numbers have too few escapes");
            upper[i] = h->escapes[used++];
            continue;
        }
        const uint8_t byte = (uint8_t)(upper[i] + h->base);
        upper[i] = (uint8_t)(h->rotated ? byte >> 1 | byte << 7 : byte);
    }
    return used == h->n_escapes ? 0 : kvc_fail(e, KVC_ERR_DAMAGED, "numbers have too many escapes");
}

int kvc_halves_read(float *values, const uint8_t **bytes, const uint8_t *end, size_t n,
                    struct kvc_error *e) {
    struct kvc_halves h;
    if (kvc_halves_open(&h, bytes, end, n, e)) return -1;
    uint8_t *lower = kvc_alloc(n, 4);
    if (!lower) return kvc_fail_memory(e, "numbers");
    uint8_t *upper = lower + n, *halves = upper + n;
    int status = kvc_packed_read(lower, h.lower, n, 8 - h.zeros, e) ||
                 kvc_packed_read(upper, h.codes, n, h.width, e) || undo_codes(upper, &h, n, e);
    unsigned wild = 0;
    for (size_t i = 0; i < n && !status; i++) {
        lower[i] = (uint8_t)(lower[i] << h.zeros);
        wild |= (upper[i] & 0x7cu) == 0x7c;
    }
    if (!status && wild) status = kvc_fail(e, KVC_ERR_DAMAGED, "a number is not finite");
    if (!status) {
        kvc_kernels_get()->merge_planes(halves, lower, n, 2);
        kvc_kernels_get()->f16_to_f32(values, halves, n);
        /* rounds where the product is subnormal */
        kvc_kernels_get()->scale(values, values, h.scale, n);
    }
    free(lower);
    return status ? -1 : 0;
}

int kvc_halves_add(struct kvc_sections *out, unsigned type, uint8_t stage, float *values, size_t n,
                   struct kvc_error *e) {
    uint8_t *bytes = malloc(KVC_HALVES_BOUND(n)), *end = bytes;
    if (!bytes) return kvc_fail_memory(e, "numbers");
    const int status = kvc_halves_write(&end, values, n, e) ||
                       kvc_sections_add(out, (uint8_t)type, stage, 0, bytes, (size_t)(end - bytes),
                                        0, e);
    free(bytes);
    return status ? -1 : 0;
}

int kvc_halves_take(float *values, const struct kvc_section *s, size_t n, struct kvc_error *e) {
    const uint8_t *p = s->data, *end = p + s->size;
    if (kvc_halves_read(values, &p, end, n, e))
        return kvc_error_prefix(e, kvc_section_name(s->type));
    return p == end ? 0
                    : kvc_fail(e, KVC_ERR_DAMAGED, "section %s has bytes after its numbers",
                               kvc_section_name(s->type));
}
