/* kernels_avx512.c: the table for AVX-512 (F, BW, VL, DQ): its own rANS, which dispatch.c takes where it is faster than AVX2's,
 * the rest AVX2's. Not compiled elsewhere. */
#include "kernels/twins.h"

#if defined(__x86_64__)

const struct kvc_kernels kvc_kernels_avx512 = {.name = "avx512",
                                               KVC_KERNELS_RANS(KVC_ROW, avx512) KVC_KERNELS_BUT_RANS(KVC_ROW, avx2)};

#else
typedef int kvc_no_avx512; /* ISO C wants one declaration in a file */
#endif
