/* kernels_avx2.c: the table for AVX2, and its twin of copy_pieces, which stores past the caches. Not compiled on other machines. */
#include "kernels/past.h"
#include "kernels/twins.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

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

void kvc_copy_pieces_vec(uint8_t *dst, size_t to_step, const uint8_t *src, size_t from_step, size_t n, size_t size, int past) {
    if (past && n == 1 && size >= KVC_PAST_RUN) copy_run_past(dst, src, size);
    else if (past && kvc_fills_lines(dst, to_step, n, size)) copy_past(dst, to_step, src, from_step, n, size);
    else copy_cached(dst, to_step, src, from_step, n, size);
}

const struct kvc_kernels kvc_kernels_avx2 = {.name = "avx2", KVC_KERNELS(KVC_ROW, vec)};

#else
typedef int kvc_no_avx2; /* ISO C wants one declaration in a file */
#endif
