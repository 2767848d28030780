/* decode_simt.h: what kernels/device/decode.cu is compiled with for the layer of simt.h: CUDA's
 * names, and the functions of kernels/device/ptx.h for the host. The compiler includes it first, as
 * nvcc includes CUDA's headers. */
#ifndef KVC_DECODE_SIMT_H
#define KVC_DECODE_SIMT_H

#define KVC_PTX_H
#include "tests/simt/simt.h"

#ifdef __cplusplus
extern "C" {
#endif

float kvc_convert_from_half(uint32_t h);
uint32_t kvc_convert_to_half(float x);

#ifdef __cplusplus
}
#endif

static inline uint32_t kvc_load_acquire(const uint32_t *from) {
    return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}
static inline void kvc_add_release(uint32_t *to, uint32_t x) {
    __atomic_fetch_add(to, x, __ATOMIC_RELEASE);
}

#endif
