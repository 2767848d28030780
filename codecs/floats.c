/* floats.c: matrices as binary32, arrays of binary16 with a common exponent. Spec of the latter: floats.md. */
#include "codecs/floats.h"

#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

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

void kvc_halves_write(uint8_t *bytes, float *values, size_t n) {
    float greatest = 0;
    for (size_t i = 0; i < n; i++) greatest = fabsf(values[i]) > greatest ? fabsf(values[i]) : greatest;
    const int exponent = exponent_for(greatest);
    bytes[0] = (uint8_t)(exponent & 255);
    bytes[1] = (uint8_t)(exponent >> 8 & 255);
    if (exponent)
        for (size_t i = 0; i < n; i++) values[i] = ldexpf(values[i], -exponent);
    kvc_kernels_get()->f32_to_f16(bytes + 2, values, n);
    kvc_kernels_get()->f16_to_f32(values, bytes + 2, n);
    if (exponent)
        for (size_t i = 0; i < n; i++) values[i] = ldexpf(values[i], exponent);
}

int kvc_halves_read(float *values, const uint8_t *bytes, size_t n, struct kvc_error *e) {
    const int exponent = (int16_t)(uint16_t)(bytes[0] | bytes[1] << 8);
    if (exponent < MIN_EXPONENT || exponent > MAX_EXPONENT)
        return kvc_fail(e, KVC_ERR_DAMAGED, "an exponent of %d is out of range", exponent);
    for (size_t i = 0; i < n; i++)
        if ((bytes[3 + 2 * i] & 0x7c) == 0x7c) return kvc_fail(e, KVC_ERR_DAMAGED, "number %zu is not finite", i);
    kvc_kernels_get()->f16_to_f32(values, bytes + 2, n);
    if (exponent) {
        const float scale = ldexpf(1, exponent); /* one rounding, where the product is subnormal */
        for (size_t i = 0; i < n; i++) values[i] *= scale;
    }
    return 0;
}
