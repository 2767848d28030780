/* decode.cu: the device decoder (decode.h) as one CUDA kernel, and its launch. Not for making the
 * queue (formats/device/batch.c).
 *
 * A grid of warps takes items from one queue until it is empty. An item waits only for items before
 * it in the queue, which a running warp has taken already; so the earliest unfinished item always
 * makes progress, and the launch ends however many of its blocks are resident; the others, once
 * they start, take later items or none. The grid is as large as the device holds at once: more
 * blocks would only start to find the queue empty. */
#include "kernels/device/decode.h"
#include "kernels/device/kernel_launch.h"

/* Four small blocks a multiprocessor: as many as have the registers of basis products
 * (decode_products.h); half of its shared memory is left to cache tables and matrices. */
enum { WARPS = 4, THREADS = WARPS * KVC_LANES, BLOCKS = 4 };

extern "C" {

/* The kernel's targets and compiler: "sm_80 sm_90 sm_100 PTX compute_100, CUDA 13.0". */
extern const char kvc_device_build[] = KVC_CUDA_BUILD;

__global__ __launch_bounds__(THREADS, BLOCKS) void kvc_device_kernel(
    const __grid_constant__ struct kvc_device_launch launch) {
    __shared__ __align__(16) uint32_t work[WARPS][KVC_DEVICE_WORK];
    kvc_take_items(&launch, work[threadIdx.x / KVC_LANES]);
}

cudaError_t kvc_device_prepare_cuda(unsigned *blocks) {
    return kvc_kernel_prepare((const void *)kvc_device_kernel, THREADS, blocks);
}

cudaError_t kvc_device_launch_cuda(const struct kvc_device_launch *launch, unsigned blocks,
                                   void *stream) {
    return kvc_kernel_launch((const void *)kvc_device_kernel, WARPS, launch, blocks, stream);
}
}
