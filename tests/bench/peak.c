/* peak.c: how many products of bytes a core does a second at most, in registers alone, by the
 * instruction that predictions use. Not for predictions (transform.c). */
#include "tests/bench/bench.h"

#include "kernels/twins.h"

#include <stdint.h>
#include <string.h>

enum { TIMES = 1 << 16, SUMS = 12 }; /* sums at once, which hide how long a product takes */

#if defined(__x86_64__)
#include <immintrin.h>

typedef int32_t eight __attribute__((vector_size(32)));
typedef int32_t sixteen __attribute__((vector_size(64)));

/* Each product adds to a sum of its own; a is as if it were another each time, so that none is
 * computed once for all. */
#define PEAK(name, isa, vector, product)                                                      \
    __attribute__((target(isa))) static void name(struct job *job) {                          \
        vector sum[SUMS], a = (vector){0} + 0x01010101;                                       \
        const vector b = (vector){0} + 0x02020202;                                            \
        int32_t *to = job->what;                                                              \
        _Pragma("GCC unroll 12") for (int i = 0; i < SUMS; i++) sum[i] = a + i;               \
        for (int n = 0; n < TIMES; n++) {                                                     \
            __asm__("" : "+v"(a));                                                            \
            _Pragma("GCC unroll 12") for (int i = 0; i < SUMS; i++) sum[i] = (vector)product; \
        }                                                                                     \
        _Pragma("GCC unroll 12") for (int i = 0; i < SUMS; i++) *to += sum[i][0];             \
    }

PEAK(of_avx512vnni, "avx512f,avx512vnni", sixteen,
     _mm512_dpbusd_epi32((__m512i)sum[i], (__m512i)a, (__m512i)b))
#if defined(KVC_AVXVNNI)
PEAK(of_avxvnni, "avx2,avxvnni", eight,
     _mm256_dpbusd_avx_epi32((__m256i)sum[i], (__m256i)a, (__m256i)b))
#endif
/* Of 16 bits: eight bits by eight would have to be added in 16 bits, which overflow. */
PEAK(of_avx2, "avx2", eight, sum[i] + (eight)_mm256_madd_epi16((__m256i)a, (__m256i)(b + i)))
#endif

#if defined(KVC_TILES)
static void of_amx(struct job *job) {
    struct kvc_tile_shapes shape = {.palette = 1};
    for (int t = 0; t < 8; t++) shape.row_bytes[t] = 64, shape.rows[t] = 16;
    (void)job;
    kvc_tiles_begin(&shape);
    for (int n = 0; n < TIMES; n++) {
        KVC_TILE_MULTIPLY(0, 4, 6);
        KVC_TILE_MULTIPLY(1, 4, 7);
        KVC_TILE_MULTIPLY(2, 5, 6);
        KVC_TILE_MULTIPLY(3, 5, 7);
    }
    kvc_tiles_end();
}
#endif

/* What a set's kernel multiplies by, and the products of a step of its loop. */
static const struct {
    const char *name;
    void (*run)(struct job *job);
    size_t products;
} peak[] = {
#if defined(KVC_TILES)
    {"amx", of_amx, 4 * 16 * 16 * 64},
#endif
#if defined(__x86_64__)
    {"avx512vnni", of_avx512vnni, SUMS * 64},
#if defined(KVC_AVXVNNI)
    {"avxvnni", of_avxvnni, SUMS * 32},
#endif
    {"avx512", of_avx2, SUMS * 16},
    {"avx2", of_avx2, SUMS * 16},
#endif
    {"", NULL, 0},
};

double bench_peak(void) {
    static int32_t sink;
    struct line line = {.job = {{.what = &sink}}};
    const char *name = kvc_kernels_choice().dot_rows;
    for (size_t i = 0; i < sizeof peak / sizeof *peak; i++)
        if (strcmp(peak[i].name, name) == 0) {
            line.job[0].run = peak[i].run;
            line.bytes = TIMES * peak[i].products;
        }
    if (!line.job[0].run) return 0;
    race(&line, 1);
    return rate(&line, 0);
}
