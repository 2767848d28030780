/* encode.cu: the device encoder (encode_items.h) as one CUDA kernel, and its launch. Not for making
 * the queue (formats/device/encoder.c). Its grid is that of decode.cu. */
#include "kernels/device/encode_items.h"
#include "kernels/device/kernel_launch.h"

enum { WARPS = 4, THREADS = WARPS * KVC_LANES, BLOCKS = 6 };

extern "C" {

__global__ __launch_bounds__(THREADS, BLOCKS) void kvc_encode_kernel(
    const __grid_constant__ struct kvc_device_launch launch) {
    __shared__ __align__(16) uint32_t work[WARPS][KVC_DEVICE_WORK];
    kvc_take_items(&launch, work[threadIdx.x / KVC_LANES]);
}

cudaError_t kvc_encode_prepare_cuda(unsigned *blocks) {
    return kvc_kernel_prepare((const void *)kvc_encode_kernel, THREADS, blocks);
}

cudaError_t kvc_encode_launch_cuda(const struct kvc_device_launch *launch, unsigned blocks,
                                   void *stream) {
    return kvc_kernel_launch((const void *)kvc_encode_kernel, WARPS, launch, blocks, stream);
}
}
