/* immintrin.h: stands in for the compiler's, so that kernels/rans_avx512.c runs on a CPU without AVX-512: SIMDe's
 * emulation, and from their documentation those intrinsics that SIMDe 0.7.4 lacks. Used by emulated.c alone. */
#ifndef KVC_TESTS_SIMDE_IMMINTRIN_H
#define KVC_TESTS_SIMDE_IMMINTRIN_H

#define SIMDE_NO_NATIVE /* else a wider -march would ask for the header that this one hides */
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#include <stdint.h>
#include <string.h>

typedef uint16_t __mmask16;

/* Lanes of vectors, for the functions below. */
struct lanes32 {
    uint32_t v[16];
};
struct lanes16 {
    uint16_t v[16];
};

static inline struct lanes32 lanes32(__m512i a) {
    struct lanes32 l;
    memcpy(&l, &a, sizeof l);
    return l;
}
static inline __m512i vector32(struct lanes32 l) {
    __m512i a;
    memcpy(&a, &l, sizeof a);
    return a;
}
static inline struct lanes16 lanes16(__m256i a) {
    struct lanes16 l;
    memcpy(&l, &a, sizeof l);
    return l;
}
static inline __m256i vector16(struct lanes16 l) {
    __m256i a;
    memcpy(&a, &l, sizeof a);
    return a;
}

static inline __m512i kvc_cvtepu16_epi32(__m256i a) {
    struct lanes16 from = lanes16(a);
    struct lanes32 to;
    for (int i = 0; i < 16; i++) to.v[i] = from.v[i];
    return vector32(to);
}

static inline __m256i kvc_cvtepi32_epi16(__m512i a) { /* truncates */
    struct lanes32 from = lanes32(a);
    struct lanes16 to;
    for (int i = 0; i < 16; i++) to.v[i] = (uint16_t)from.v[i];
    return vector16(to);
}

static inline __m512i kvc_i32gather_epi32(__m512i index, const void *base, int scale) { /* indices are signed */
    struct lanes32 at = lanes32(index), to;
    for (int i = 0; i < 16; i++) memcpy(&to.v[i], (const uint8_t *)base + (int64_t)(int32_t)at.v[i] * scale, sizeof to.v[i]);
    return vector32(to);
}

static inline __mmask16 kvc_cmplt_epu32_mask(__m512i a, __m512i b) {
    struct lanes32 x = lanes32(a), y = lanes32(b);
    unsigned mask = 0;
    for (int i = 0; i < 16; i++) mask |= (unsigned)(x.v[i] < y.v[i]) << i;
    return (__mmask16)mask;
}

static inline __mmask16 kvc_cmpgt_epu32_mask(__m512i a, __m512i b) {
    return kvc_cmplt_epu32_mask(b, a);
}

static inline __m512i kvc_maskz_expand_epi32(__mmask16 k, __m512i a) { /* the lowest lanes to those of the mask */
    struct lanes32 from = lanes32(a), to;
    for (int i = 0, next = 0; i < 16; i++) to.v[i] = k >> i & 1 ? from.v[next++] : 0;
    return vector32(to);
}

static inline __m512i kvc_mask_srli_epi32(__m512i source, __mmask16 k, __m512i a, unsigned count) {
    struct lanes32 to = lanes32(source), from = lanes32(a);
    for (int i = 0; i < 16; i++)
        if (k >> i & 1) to.v[i] = count < 32 ? from.v[i] >> count : 0;
    return vector32(to);
}

static inline void kvc_mask_storeu_epi16(void *to, __mmask16 k, __m256i a) { /* touches the mask's lanes only */
    struct lanes16 from = lanes16(a);
    for (int i = 0; i < 16; i++)
        if (k >> i & 1) memcpy((uint8_t *)to + 2 * i, &from.v[i], sizeof from.v[i]);
}

/* A later SIMDe may have some of them. */
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtepi32_epi16
#undef _mm512_i32gather_epi32
#undef _mm512_cmplt_epu32_mask
#undef _mm512_cmpgt_epu32_mask
#undef _mm512_maskz_expand_epi32
#undef _mm512_mask_srli_epi32
#undef _mm256_mask_storeu_epi16
#define _mm512_cvtepu16_epi32 kvc_cvtepu16_epi32
#define _mm512_cvtepi32_epi16 kvc_cvtepi32_epi16
#define _mm512_i32gather_epi32 kvc_i32gather_epi32
#define _mm512_cmplt_epu32_mask kvc_cmplt_epu32_mask
#define _mm512_cmpgt_epu32_mask kvc_cmpgt_epu32_mask
#define _mm512_maskz_expand_epi32 kvc_maskz_expand_epi32
#define _mm512_mask_srli_epi32 kvc_mask_srli_epi32
#define _mm256_mask_storeu_epi16 kvc_mask_storeu_epi16

#endif
