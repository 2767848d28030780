/* predict_avxvnni.c: the twin of dot_rows for AVX-VNNI, which CPUs without AVX-512 have, same bytes
 * for every input. Not compiled on other machines. */
#include "kernels/twins.h"

#if defined(KVC_AVXVNNI)

#include <immintrin.h>

#define VNNI __attribute__((target("avxvnni")))
#define DOT(sum, a, b) (vector) _mm256_dpbusd_avx_epi32((__m256i)(sum), (__m256i)(a), (__m256i)(b))
enum { LANES = 8, BLOCKS = 1 };
#include "kernels/dot_rows_vnni.h"

VNNI void kvc_dot_rows_avxvnni(float *y, const int8_t *x, size_t rows,
                               const struct kvc_dot_matrix *m) {
    dot_rows(y, x, rows, m);
}

#else
typedef int kvc_no_predict_avxvnni; /* ISO C wants one declaration in a file */
#endif
