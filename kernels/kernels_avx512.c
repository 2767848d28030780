/* kernels_avx512.c: the tables for AVX-512 (F, BW, VL, DQ), for the same with VNNI, and with AMX
 * too: their own encoder of rANS, decoder of two streams, channel model, packed words of `fast`,
 * products and codes, with VNNI also decoders of rANS that gather and products of integers; AVX2's
 * kernels for the rest. Not compiled elsewhere. */
#include "kernels/twins.h"

#if defined(__x86_64__)

/* All sets' kernels but dot_rows and the decoders of rANS. */
#define SHARED                             \
    KVC_ROW(rans_encode, avx512)           \
    KVC_KERNELS_MODEL(KVC_ROW, avx512)     \
    KVC_KERNELS_TRANSFORM(KVC_ROW, avx512) \
    KVC_KERNELS_HASH(KVC_ROW, vec) KVC_KERNELS_WIDE(KVC_ROW, avx512) KVC_KERNELS_REST(KVC_ROW, vec)
const struct kvc_kernels kvc_kernels_avx512 = {.name = "avx512",
                                               SHARED KVC_ROW(rans_decode, vec)
                                                   KVC_ROW(rans_decode_two, avx512)
                                                       KVC_KERNELS_DOT(KVC_ROW, vec)};
#define SHARED_VNNI SHARED KVC_ROW(rans_decode, avx512vnni) KVC_ROW(rans_decode_two, avx512vnni)
const struct kvc_kernels kvc_kernels_avx512vnni = {.name = "avx512vnni",
                                                   SHARED_VNNI KVC_KERNELS_DOT(KVC_ROW,
                                                                               avx512vnni)};
#if defined(KVC_TILES)
const struct kvc_kernels kvc_kernels_amx = {.name = "amx",
                                            SHARED_VNNI KVC_KERNELS_DOT(KVC_ROW, amx)};
#endif

#else
typedef int kvc_no_avx512; /* ISO C wants one declaration in a file */
#endif
