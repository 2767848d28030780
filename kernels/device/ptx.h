/* ptx.h: instructions of GPUs for which CUDA C++ has no function, one a function. Not for what CUDA
 * has functions for (warp.h).
 *
 * Tests that run the GPU's code on the host have the same functions in tests/simt/decode_simt.h,
 * which defines KVC_PTX_H. */
#ifndef KVC_PTX_H
#define KVC_PTX_H

/* Convert between binary16 and binary32, for all but NaN; decode_values.h has the host's code. */
KVC_DEVICE float kvc_convert_from_half(uint32_t h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((uint16_t)h));
    return x;
}
KVC_DEVICE uint32_t kvc_convert_to_half(float x) {
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}

/* Reads a counter; what other warps of the device wrote before they added to the counter is then
 * visible to this lane. */
KVC_DEVICE uint32_t kvc_load_acquire(const uint32_t *from) {
    uint32_t x;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}
/* Adds to a counter, after all that is visible to this lane. */
KVC_DEVICE void kvc_add_release(uint32_t *to, uint32_t x) {
    asm volatile("red.release.gpu.add.u32 [%0], %1;" : : "l"(to), "r"(x) : "memory");
}

#endif
