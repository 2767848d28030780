/* immintrin.h: stands in for the compiler's, so that kernels/rans_avx512.c runs on a CPU without
 * AVX-512: SIMDe's emulation, and from their documentation those intrinsics that SIMDe 0.7.4 lacks.
 * Used by emulated.c alone. */
#ifndef KVC_TESTS_SIMDE_IMMINTRIN_H
#define KVC_TESTS_SIMDE_IMMINTRIN_H

#define SIMDE_NO_NATIVE /* else a wider -march would ask for the header that this one hides */
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#include <stdint.h>
#include <string.h>

typedef uint16_t kvc_mask16;

/* Lanes of vectors, for the functions below. */
struct lanes512 {
    uint32_t v[16];
};

static inline struct lanes512 lanes512(__m512i a) {
    struct lanes512 l;
    memcpy(&l, &a, sizeof l);
    return l;
}
static inline __m512i vector512(struct lanes512 l) {
    __m512i a;
    memcpy(&a, &l, sizeof a);
    return a;
}

static inline __m256i kvc_cvtepi32_epi16(__m512i a) { /* truncates */
    struct lanes512 from = lanes512(a);
    uint16_t to[16];
    __m256i result;
    for (int i = 0; i < 16; i++) to[i] = (uint16_t)from.v[i];
    memcpy(&result, to, sizeof result);
    return result;
}

static inline kvc_mask16 kvc_cmpge_epu32_mask(__m512i a, __m512i b) {
    struct lanes512 x = lanes512(a), y = lanes512(b);
    unsigned mask = 0;
    for (int i = 0; i < 16; i++) mask |= (unsigned)(x.v[i] >= y.v[i]) << i;
    return (kvc_mask16)mask;
}

static inline __m512i kvc_sllv_epi32(__m512i a, __m512i count) {
    struct lanes512 to = lanes512(a), by = lanes512(count);
    for (int i = 0; i < 16; i++) to.v[i] = by.v[i] < 32 ? to.v[i] << by.v[i] : 0;
    return vector512(to);
}

static inline __m512i kvc_srlv_epi32(__m512i a, __m512i count) {
    struct lanes512 to = lanes512(a), by = lanes512(count);
    for (int i = 0; i < 16; i++) to.v[i] = by.v[i] < 32 ? to.v[i] >> by.v[i] : 0;
    return vector512(to);
}

/* the lanes of the mask to the lowest */
static inline __m512i kvc_maskz_compress_epi32(kvc_mask16 k, __m512i a) {
    struct lanes512 from = lanes512(a), to = {{0}};
    for (int i = 0, next = 0; i < 16; i++)
        if (k >> i & 1) to.v[next++] = from.v[i];
    return vector512(to);
}

static inline __m512i kvc_mask_srli_epi32(__m512i source, kvc_mask16 k, __m512i a, unsigned count) {
    struct lanes512 to = lanes512(source), from = lanes512(a);
    for (int i = 0; i < 16; i++)
        if (k >> i & 1) to.v[i] = count < 32 ? from.v[i] >> count : 0;
    return vector512(to);
}

/* within four lanes */
static inline __m512i kvc_mask_shuffle_epi32(__m512i source, kvc_mask16 k, __m512i a,
                                             unsigned pick) {
    struct lanes512 to = lanes512(source), from = lanes512(a);
    for (unsigned i = 0; i < 16; i++)
        if (k >> i & 1) to.v[i] = from.v[i / 4 * 4 + (pick >> i % 4 * 2 & 3)];
    return vector512(to);
}

/* touches the mask's lanes only */
static inline void kvc_mask_storeu_epi16(void *to, kvc_mask16 k, __m256i a) {
    uint16_t from[16];
    memcpy(from, &a, sizeof from);
    for (int i = 0; i < 16; i++)
        if (k >> i & 1) memcpy((uint8_t *)to + 2 * i, &from[i], sizeof from[i]);
}

/* A later SIMDe may have some of them. */
#undef __mmask16
#undef _MM_PERM_DDBB
#undef _mm512_cvtepi32_epi16
#undef _mm512_cmpge_epu32_mask
#undef _mm512_sllv_epi32
#undef _mm512_srlv_epi32
#undef _mm512_maskz_compress_epi32
#undef _mm512_mask_srli_epi32
#undef _mm512_mask_shuffle_epi32
#undef _mm256_mask_storeu_epi16
#define __mmask16 kvc_mask16
#define _MM_PERM_DDBB 0xf5
#define _mm512_cvtepi32_epi16 kvc_cvtepi32_epi16
#define _mm512_cmpge_epu32_mask kvc_cmpge_epu32_mask
#define _mm512_sllv_epi32 kvc_sllv_epi32
#define _mm512_srlv_epi32 kvc_srlv_epi32
#define _mm512_maskz_compress_epi32 kvc_maskz_compress_epi32
#define _mm512_mask_srli_epi32 kvc_mask_srli_epi32
#define _mm512_mask_shuffle_epi32 kvc_mask_shuffle_epi32
#define _mm256_mask_storeu_epi16 kvc_mask_storeu_epi16

#endif
