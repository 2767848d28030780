/* floats.c: matrices as binary32, arrays of binary16 with a common exponent. Spec of the latter: floats.md. */
#include "codecs/floats.h"

#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

enum { MIN_EXPONENT = -126, MAX_EXPONENT = 112 };

int kvc_is_float(enum kvc_dtype dtype) {
    return dtype == KVC_F32 || dtype == KVC_F16 || dtype == KVC_BF16;
}

void kvc_to_floats(float *dst, const uint8_t *src, size_t n, enum kvc_dtype dtype) {
    if (dtype == KVC_F16) kvc_kernels_get()->f16_to_f32(dst, src, n);
    else if (dtype == KVC_BF16) kvc_kernels_get()->bf16_to_f32(dst, src, n);
    else if ((const uint8_t *)dst != src) memcpy(dst, src, n * sizeof *dst);
}

void kvc_from_floats(uint8_t *dst, const float *src, size_t n, enum kvc_dtype dtype) {
    if (dtype == KVC_F16) kvc_kernels_get()->f32_to_f16(dst, src, n);
    else if (dtype == KVC_BF16) kvc_kernels_get()->f32_to_bf16(dst, src, n);
    else if ((const uint8_t *)src != dst) memcpy(dst, src, n * sizeof *src);
}

/* What brings the greatest value below 2^15, and 0 where there is none but zeros. */
static int exponent_for(float greatest) {
    int e = 0;
    if (!(greatest > 0)) return 0;
    frexpf(greatest, &e); /* greatest < 2^e */
    e -= 15;
    return e < MIN_EXPONENT ? MIN_EXPONENT : e > MAX_EXPONENT ? MAX_EXPONENT : e;
}

/* One plane of halves: its size, then its bytes, as zstd makes them where that is fewer. */
static uint8_t *write_plane(uint8_t *to, const uint8_t *plane, size_t n) {
    size_t size = ZSTD_compress(to + 4, n, plane, n, 1); /* an error where it is not fewer */
    if (ZSTD_isError(size) || size >= n) {
        memcpy(to + 4, plane, n);
        size = n;
    }
    for (unsigned b = 0; b < 4; b++) to[b] = (uint8_t)(size >> 8 * b & 255);
    return to + 4 + size;
}

int kvc_halves_write(uint8_t **bytes, float *values, size_t n, struct kvc_error *e) {
    const struct kvc_kernels *k = kvc_kernels_get();
    float greatest = 0;
    uint8_t *halves = malloc(4 * n + 1), *planes = halves + 2 * n, *to = *bytes;
    if (!halves) return kvc_fail_memory(e, "numbers");
    for (size_t i = 0; i < n; i++) greatest = fabsf(values[i]) > greatest ? fabsf(values[i]) : greatest;
    const int exponent = exponent_for(greatest);
    k->scale(values, values, ldexpf(1, -exponent), n);
    k->f32_to_f16(halves, values, n);
    k->f16_to_f32(values, halves, n);
    k->scale(values, values, ldexpf(1, exponent), n);
    k->split_planes(planes, halves, n, 2);
    *to++ = (uint8_t)(exponent & 255);
    *to++ = (uint8_t)(exponent >> 8 & 255);
    to = write_plane(to, planes + n, n);
    *bytes = write_plane(to, planes, n);
    free(halves);
    return 0;
}

static int read_plane(uint8_t *plane, const uint8_t **bytes, const uint8_t *end, size_t n, struct kvc_error *e) {
    const uint8_t *p = *bytes;
    if (end - p < 4) return kvc_fail(e, KVC_ERR_DAMAGED, "numbers are cut short");
    const size_t size = p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24;
    p += 4;
    if (size > n || size > (size_t)(end - p))
        return kvc_fail(e, KVC_ERR_DAMAGED, "a plane of %zu numbers has %zu bytes", n, size);
    *bytes = p + size;
    if (size == n) {
        memcpy(plane, p, n);
        return 0;
    }
    if (ZSTD_findFrameCompressedSize(p, size) != size || ZSTD_decompress(plane, n, p, size) != n)
        return kvc_fail(e, KVC_ERR_DAMAGED, "a plane of numbers is not one zstd frame of %zu bytes", n);
    return 0;
}

int kvc_halves_read(float *values, const uint8_t **bytes, const uint8_t *end, size_t n, struct kvc_error *e) {
    if (end - *bytes < 2) return kvc_fail(e, KVC_ERR_DAMAGED, "numbers are cut short");
    const int exponent = (int16_t)(uint16_t)((*bytes)[0] | (*bytes)[1] << 8);
    if (exponent < MIN_EXPONENT || exponent > MAX_EXPONENT)
        return kvc_fail(e, KVC_ERR_DAMAGED, "an exponent of %d is out of range", exponent);
    *bytes += 2;
    uint8_t *planes = malloc(4 * n + 1), *halves = planes + 2 * n;
    if (!planes) return kvc_fail_memory(e, "numbers");
    int status = read_plane(planes + n, bytes, end, n, e) || read_plane(planes, bytes, end, n, e);
    for (size_t i = 0; i < n && !status; i++)
        if ((planes[n + i] & 0x7c) == 0x7c) status = kvc_fail(e, KVC_ERR_DAMAGED, "number %zu is not finite", i);
    if (!status) {
        kvc_kernels_get()->merge_planes(halves, planes, n, 2);
        kvc_kernels_get()->f16_to_f32(values, halves, n);
        kvc_kernels_get()->scale(values, values, ldexpf(1, exponent), n); /* rounds where the product is subnormal */
    }
    free(planes);
    return status ? -1 : 0;
}

int kvc_halves_add(struct kvc_sections *out, unsigned type, uint8_t stage, float *values, size_t n, struct kvc_error *e) {
    uint8_t *bytes = malloc(KVC_HALVES_BOUND(n)), *end = bytes;
    if (!bytes) return kvc_fail_memory(e, "numbers");
    const int status = kvc_halves_write(&end, values, n, e) ||
                       kvc_sections_add(out, (uint8_t)type, stage, 0, bytes, (size_t)(end - bytes), 0, e);
    free(bytes);
    return status ? -1 : 0;
}

int kvc_halves_take(float *values, const struct kvc_section *s, size_t n, struct kvc_error *e) {
    const uint8_t *p = s->data, *end = p + s->size;
    if (kvc_halves_read(values, &p, end, n, e)) return kvc_error_prefix(e, kvc_section_name(s->type));
    return p == end ? 0 : kvc_fail(e, KVC_ERR_DAMAGED, "section %s has bytes after its numbers", kvc_section_name(s->type));
}
