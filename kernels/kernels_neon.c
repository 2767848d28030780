/* kernels_neon.c: the tables for NEON and for the same with dot products of bytes, and NEON's twin of copy_pieces. Not compiled on
 * other machines. */
#include "kernels/twins.h"

#if defined(__aarch64__)

#include <arm_neon.h>
#include <string.h>

void kvc_copy_pieces_vec(uint8_t *dst, size_t to_step, const uint8_t *src, size_t from_step, size_t n, size_t size, int past) {
    (void)past;
    for (size_t i = 0; i < n;
         i++, dst += to_step, src += from_step) { /* heads are whole vectors, mostly a few: no call for each */
        size_t b = 0;
        for (; size < 1024 && b + 16 <= size; b += 16) vst1q_u8(dst + b, vld1q_u8(src + b));
        if (b < size) memcpy(dst + b, src + b, size - b);
    }
}

/* Both sets' kernels but dot_rows: xxHash takes NEON in the reference's checksums already. */
#define SHARED                          \
    KVC_KERNELS_RANS(KVC_ROW, vec)      \
    KVC_KERNELS_MODEL(KVC_ROW, vec)     \
    KVC_KERNELS_TRANSFORM(KVC_ROW, vec) \
    KVC_KERNELS_HASH(KVC_ROW, ref) KVC_KERNELS_WIDE(KVC_ROW, vec) KVC_KERNELS_REST(KVC_ROW, vec)
const struct kvc_kernels kvc_kernels_neon = {.name = "neon", SHARED KVC_KERNELS_DOT(KVC_ROW, vec)};
const struct kvc_kernels kvc_kernels_neondot = {.name = "neondot", SHARED KVC_KERNELS_DOT(KVC_ROW, neondot)};

#else
typedef int kvc_no_neon; /* ISO C wants one declaration in a file */
#endif
