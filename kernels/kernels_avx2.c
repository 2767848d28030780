/* kernels_avx2.c: AVX2 twins of kernels_ref.c, same bytes for every input. Not compiled on other machines. */
#include "kernels/past.h"
#include "kernels/twins.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

/* Two-byte elements, 32 at a time: gather even and odd bytes of each 16-byte lane, then mend the lane order. */
static size_t split2(uint8_t *dst, const uint8_t *src, size_t n) {
    const __m256i pick = _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10, 12, 14, 1, 3,
                                          5, 7, 9, 11, 13, 15);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(src + 2 * i));
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(src + 2 * i + 32));
        a = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(a, pick), 0xd8);
        b = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(b, pick), 0xd8);
        _mm256_storeu_si256((__m256i *)(void *)(dst + i), _mm256_permute2x128_si256(a, b, 0x20));
        _mm256_storeu_si256((__m256i *)(void *)(dst + n + i), _mm256_permute2x128_si256(a, b, 0x31));
    }
    return i;
}

static size_t merge2(uint8_t *dst, const uint8_t *src, size_t n) {
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i lo = _mm256_loadu_si256((const __m256i *)(const void *)(src + i));
        __m256i hi = _mm256_loadu_si256((const __m256i *)(const void *)(src + n + i));
        __m256i a = _mm256_unpacklo_epi8(lo, hi), b = _mm256_unpackhi_epi8(lo, hi);
        _mm256_storeu_si256((__m256i *)(void *)(dst + 2 * i), _mm256_permute2x128_si256(a, b, 0x20));
        _mm256_storeu_si256((__m256i *)(void *)(dst + 2 * i + 32), _mm256_permute2x128_si256(a, b, 0x31));
    }
    return i;
}

/* Four-byte elements, 32 at a time: transpose each lane's 4x4 bytes, then collect equal planes. */
static size_t split4(uint8_t *dst, const uint8_t *src, size_t n) {
    const __m256i pick = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6,
                                          10, 14, 3, 7, 11, 15);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i v[4];
        for (int k = 0; k < 4; k++) {
            __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(src + 4 * i + 32 * (size_t)k));
            /* 64-bit lane p of v[k] now holds plane p of elements 8k..8k+7 */
            v[k] = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(x, pick), order);
        }
        __m256i a = _mm256_unpacklo_epi64(v[0], v[1]), b = _mm256_unpackhi_epi64(v[0], v[1]);
        __m256i c = _mm256_unpacklo_epi64(v[2], v[3]), d = _mm256_unpackhi_epi64(v[2], v[3]);
        _mm256_storeu_si256((__m256i *)(void *)(dst + i), _mm256_permute2x128_si256(a, c, 0x20));
        _mm256_storeu_si256((__m256i *)(void *)(dst + n + i), _mm256_permute2x128_si256(b, d, 0x20));
        _mm256_storeu_si256((__m256i *)(void *)(dst + 2 * n + i), _mm256_permute2x128_si256(a, c, 0x31));
        _mm256_storeu_si256((__m256i *)(void *)(dst + 3 * n + i), _mm256_permute2x128_si256(b, d, 0x31));
    }
    return i;
}

static size_t merge4(uint8_t *dst, const uint8_t *src, size_t n) {
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i p[4];
        for (int k = 0; k < 4; k++) p[k] = _mm256_loadu_si256((const __m256i *)(const void *)(src + (size_t)k * n + i));
        __m256i a = _mm256_unpacklo_epi8(p[0], p[1]), b = _mm256_unpackhi_epi8(p[0], p[1]);
        __m256i c = _mm256_unpacklo_epi8(p[2], p[3]), d = _mm256_unpackhi_epi8(p[2], p[3]);
        __m256i e = _mm256_unpacklo_epi16(a, c), f = _mm256_unpackhi_epi16(a, c);
        __m256i g = _mm256_unpacklo_epi16(b, d), h = _mm256_unpackhi_epi16(b, d);
        uint8_t *to = dst + 4 * i;
        _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permute2x128_si256(e, f, 0x20));
        _mm256_storeu_si256((__m256i *)(void *)(to + 32), _mm256_permute2x128_si256(g, h, 0x20));
        _mm256_storeu_si256((__m256i *)(void *)(to + 64), _mm256_permute2x128_si256(e, f, 0x31));
        _mm256_storeu_si256((__m256i *)(void *)(to + 96), _mm256_permute2x128_si256(g, h, 0x31));
    }
    return i;
}

void kvc_split_planes_avx2(uint8_t *dst, const uint8_t *src, size_t n, size_t size) {
    size_t done = size == 2 ? split2(dst, src, n) : size == 4 ? split4(dst, src, n) : 0;
    for (size_t i = done; i < n; i++)
        for (size_t b = 0; b < size; b++) dst[b * n + i] = src[i * size + b];
}

void kvc_merge_planes_avx2(uint8_t *dst, const uint8_t *src, size_t n, size_t size) {
    size_t done = size == 2 ? merge2(dst, src, n) : size == 4 ? merge4(dst, src, n) : 0;
    for (size_t i = done; i < n; i++)
        for (size_t b = 0; b < size; b++) dst[i * size + b] = src[b * n + i];
}

/* Eight rows of eight values: pairs of rows, of pairs, of these pairs. */
static inline void transpose_eight(uint8_t *dst, size_t to, const uint8_t *src, size_t from) {
    __m128i a[8], b[8];
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++) a[i] = _mm_loadu_si128((const __m128i *)(const void *)(src + i * from));
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        b[i] = _mm_unpacklo_epi16(a[2 * i], a[2 * i + 1]); /* columns 0 to 3 of rows 2 i and 2 i + 1 */
        b[i + 4] = _mm_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (size_t i = 0; i < 2; i++) {
#pragma GCC unroll 2
        for (size_t half = 0; half < 2; half++) {
            a[4 * half + i] = _mm_unpacklo_epi32(b[4 * half + 2 * i], b[4 * half + 2 * i + 1]); /* two columns of four rows */
            a[4 * half + i + 2] = _mm_unpackhi_epi32(b[4 * half + 2 * i], b[4 * half + 2 * i + 1]);
        }
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        _mm_storeu_si128((__m128i *)(void *)(dst + 2 * i * to), _mm_unpacklo_epi64(a[2 * i], a[2 * i + 1]));
        _mm_storeu_si128((__m128i *)(void *)(dst + (2 * i + 1) * to), _mm_unpackhi_epi64(a[2 * i], a[2 * i + 1]));
    }
}

void kvc_transpose_2_avx2(uint8_t *dst, size_t to, const uint8_t *src, size_t from, size_t rows, size_t columns) {
    const size_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
    for (size_t c = 0; c < whole_columns; c += 8)
        for (size_t r = 0; r < whole_rows; r += 8) transpose_eight(dst + c * to + r * 2, to, src + r * from + c * 2, from);
    kvc_transpose_2_ref(dst + whole_columns * to, to, src + whole_columns * 2, from, whole_rows, columns - whole_columns);
    kvc_transpose_2_ref(dst + whole_rows * 2, to, src + whole_rows * from, from, rows - whole_rows, columns);
}

void kvc_bf16_to_f32_avx2(float *dst, const uint8_t *src, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(src + 2 * i));
        __m256i w = _mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16);
        _mm256_storeu_si256((__m256i *)(void *)(dst + i), w);
    }
    kvc_bf16_to_f32_ref(dst + i, src + 2 * i, n - i);
}

void kvc_f16_to_f32_avx2(float *dst, const uint8_t *src, size_t n) {
    /* vcvtph2ps makes signalling NaNs quiet, the reference keeps their bits: eight values with an all-ones
     * exponent among them go the slow way. */
    const __m128i exponent = _mm_set1_epi16(0x7c00);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(src + 2 * i));
        __m128i special = _mm_cmpeq_epi16(_mm_and_si128(h, exponent), exponent);
        if (_mm_movemask_epi8(special)) kvc_f16_to_f32_ref(dst + i, src + 2 * i, 8);
        else _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(h));
    }
    kvc_f16_to_f32_ref(dst + i, src + 2 * i, n - i);
}

/* Copies pieces of 16-byte vectors past the caches, to addresses of such vectors; 32 bytes at once where all fits, as the wider store is
 * faster. */
static void copy_past(uint8_t *dst, size_t to_step, const uint8_t *src, size_t from_step, size_t n, size_t size) {
    const int wide = ((uintptr_t)dst | to_step | size) % 32 == 0;
    for (size_t i = 0; i < n; i++, dst += to_step, src += from_step) {
        size_t b = 0;
        for (; wide && b < size; b += 32)
            _mm256_stream_si256((__m256i *)(void *)(dst + b), _mm256_loadu_si256((const __m256i *)(const void *)(src + b)));
        for (; b < size; b += 16)
            _mm_stream_si128((__m128i *)(void *)(dst + b), _mm_loadu_si128((const __m128i *)(const void *)(src + b)));
    }
    _mm_sfence();
}

/* Copies a run past the caches, whole lines of it. */
static void copy_run_past(uint8_t *dst, const uint8_t *src, size_t size) {
    const size_t head = (size_t)(-(uintptr_t)dst % 64), lines = (size - head) / 64 * 64;
    memcpy(dst, src, head);
    copy_past(dst + head, 0, src + head, 0, 1, lines);
    memcpy(dst + head + lines, src + head + lines, size - head - lines);
}

/* Bytes from what is copied to what is prefetched: more than a page, at whose end the CPU's own prefetching stops. */
enum { AHEAD = 6144 };

static void copy_cached(uint8_t *dst, size_t to_step, const uint8_t *src, size_t from_step, size_t n, size_t size) {
    const char *later = (const char *)src + AHEAD; /* of pieces that lie side by side, as those of a head mostly do */
    for (size_t i = 0; i < n; i++, dst += to_step, src += from_step,
                later += from_step) { /* heads are whole vectors, mostly a few: no call for each */
        size_t b = 0;
        for (size_t p = 0; size < 1024 && p < size; p += 64) _mm_prefetch(later + p, _MM_HINT_T0);
        for (; size < 1024 && b + 32 <= size; b += 32)
            _mm256_storeu_si256((__m256i *)(void *)(dst + b), _mm256_loadu_si256((const __m256i *)(const void *)(src + b)));
        if (b < size) memcpy(dst + b, src + b, size - b);
    }
}

void kvc_copy_pieces_avx2(uint8_t *dst, size_t to_step, const uint8_t *src, size_t from_step, size_t n, size_t size, int past) {
    if (past && n == 1 && size >= KVC_PAST_RUN) copy_run_past(dst, src, size);
    else if (past && kvc_fills_lines(dst, to_step, n, size)) copy_past(dst, to_step, src, from_step, n, size);
    else copy_cached(dst, to_step, src, from_step, n, size);
}

const struct kvc_kernels kvc_kernels_avx2 = {.name = "avx2", KVC_KERNELS(KVC_ROW, avx2)};

#else
typedef int kvc_no_avx2; /* ISO C wants one declaration in a file */
#endif
