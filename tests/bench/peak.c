/* peak.c: how many products of bytes a core does a second at most, in registers alone, by the
 * instruction that predictions use. Not for predictions (transform.c). */
#include "tests/bench/bench.h"

#include "kernels/kernels.h"

#include <stdint.h>
#include <string.h>

enum { TIMES = 1 << 16, SUMS = 12 }; /* sums at once, which hide how long a product takes */

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx512f,avx512vnni"))) static void of_avx512vnni(struct job *job) {
    __m512i sum[SUMS];
    __m512i a = _mm512_set1_epi8(1);
    const __m512i b = _mm512_set1_epi8(2);
    int32_t *to = job->what;
#pragma GCC unroll 12
    for (int i = 0; i < SUMS; i++) sum[i] = _mm512_set1_epi32(i);
    for (int n = 0; n < TIMES; n++) {
        __asm__("" : "+v"(a)); /* as if it were another: a product is not computed once for all */
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++) sum[i] = _mm512_dpbusd_epi32(sum[i], a, b);
    }
#pragma GCC unroll 12
    for (int i = 0; i < SUMS; i++) *to += _mm512_reduce_add_epi32(sum[i]);
}

/* Of 16 bits: eight bits by eight would have to be added in 16 bits, which overflow. */
__attribute__((target("avx2"))) static void of_avx2(struct job *job) {
    __m256i sum[SUMS];
    __m256i a = _mm256_set1_epi16(1);
    int32_t *to = job->what;
#pragma GCC unroll 12
    for (int i = 0; i < SUMS; i++) sum[i] = _mm256_set1_epi32(i);
    for (int n = 0; n < TIMES; n++) {
        __asm__("" : "+x"(a));
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++)
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(a, _mm256_set1_epi16((short)i)));
    }
#pragma GCC unroll 12
    for (int i = 0; i < SUMS; i++) *to += _mm256_extract_epi32(sum[i], 0);
}
#endif

double bench_peak(void) {
    static int32_t sink;
    struct line line = {.job = {{.what = &sink}}};
#if defined(__x86_64__)
    const char *name = kvc_kernels_get()->name;
    if (strstr(name, "vnni")) {
        line.job[0].run = of_avx512vnni;
        line.bytes = (size_t)TIMES * SUMS * 64;
    } else if (strcmp(name, "ref") != 0) {
        line.job[0].run = of_avx2;
        line.bytes = (size_t)TIMES * SUMS * 16;
    }
#endif
    if (!line.job[0].run) return 0;
    race(&line, 1);
    return rate(&line, 0);
}
