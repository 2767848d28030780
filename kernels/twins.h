/* twins.h: every kernel by name, for the tables of the instruction sets and for the tails of fast
 * twins. Their contracts are in kernels.h; a set need not define all. */
#ifndef KVC_TWINS_H
#define KVC_TWINS_H

#include "kernels/kernels.h"
#include "kernels/tiles.h"

/* Declares a twin, kvc_NAME_ISA; makes its row in a table. */
#define KVC_TWIN(name, isa) kvc_##name##_fn kvc_##name##_##isa;
#define KVC_ROW(name, isa) .name = kvc_##name##_##isa,

KVC_KERNELS(KVC_TWIN, ref)

/* Does the part of model_sums that fast twins leave: the channels of every head from `first` on,
 * fewer than KVC_WIDEST_F32, which do not fill a vector. */
enum { KVC_WIDEST_F32 = 16 }; /* floats in the widest vector */
void kvc_model_sums_rest(const struct kvc_model_sums *sums, const float *x, size_t rows,
                         float *cosine, float *sine, const float *step_cosine,
                         const float *step_sine, size_t n, size_t period, size_t first);

/* The twins of AVX2 or of NEON, whichever this machine has. */
#if defined(__x86_64__) || defined(__aarch64__)
#define KVC_VECTORS
KVC_KERNELS(KVC_TWIN, vec)
#endif

#if defined(__x86_64__)
KVC_KERNELS(KVC_TWIN, avx512)
#if __has_include(<avxvnniintrin.h>) /* the compiler knows it */
#define KVC_AVXVNNI
KVC_KERNELS_DOT(KVC_TWIN, avxvnni)
#endif
KVC_KERNELS_DOT(KVC_TWIN, avx512vnni)
KVC_TWIN(rans_decode, avx512vnni)
KVC_TWIN(rans_decode_two, avx512vnni)
KVC_TWIN(rans_decode_two, avx512)
#endif
#if defined(KVC_TILES)
KVC_KERNELS_DOT(KVC_TWIN, amx)
#endif
#if defined(__aarch64__)
KVC_KERNELS_DOT(KVC_TWIN, neondot)
#endif

#endif
