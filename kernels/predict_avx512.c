/* predict_avx512.c: the AVX-512 VNNI twin of dot_rows, same bytes for every input. Not compiled on
 * other machines. */
#include "kernels/twins.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define VNNI __attribute__((target("avx512vnni")))
#define DOT(sum, a, b) (vector) _mm512_dpbusd_epi32((__m512i)(sum), (__m512i)(a), (__m512i)(b))
enum { LANES = 16, BLOCKS = 4 };
#include "kernels/dot_rows_vnni.h"

VNNI void kvc_dot_rows_avx512vnni(float *y, const int8_t *x, size_t rows,
                                  const struct kvc_dot_matrix *m) {
    dot_rows(y, x, rows, m);
}

#else
typedef int kvc_no_predict_avx512; /* ISO C wants one declaration in a file */
#endif
