/* encode.cu: the device encoder (encode_items.h) as one CUDA kernel, and its launch. Not for making the queue (formats/device/encoder.c).
 * Its grid is that of decode.cu. */
#include "kernels/device/encode_items.h"

#include <cuda_runtime_api.h>

enum { WARPS = 4, THREADS = WARPS * KVC_LANES, BLOCKS = 6 };

extern "C" {

__global__ __launch_bounds__(THREADS, BLOCKS) void kvc_encode_kernel(const __grid_constant__ struct kvc_device_launch launch) {
    __shared__ __align__(16) uint32_t work[WARPS][KVC_DEVICE_WORK];
    kvc_take_items(&launch, work[threadIdx.x / KVC_LANES]);
}

/* Loads the kernel on the current device; *blocks becomes the number of its blocks that a multiprocessor holds. */
cudaError_t kvc_encode_prepare_cuda(unsigned *blocks) {
    int n = 0;
    cudaError_t status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, (const void *)kvc_encode_kernel, THREADS, 0);
    if (status == cudaSuccess && n < 1) status = cudaErrorLaunchOutOfResources;
    *blocks = (unsigned)n;
    return status;
}

/* Queues the kernel over launch's items on a stream of the current device, in `blocks` blocks at most. Returns the status of this
 * launch. */
cudaError_t kvc_encode_launch_cuda(const struct kvc_device_launch *launch, unsigned blocks, void *stream) {
    const unsigned useful = launch->n_items / WARPS + (launch->n_items % WARPS != 0);
    void *arguments[] = {const_cast<struct kvc_device_launch *>(launch)};
    if (!useful) return cudaSuccess;
    return cudaLaunchKernel((const void *)kvc_encode_kernel, dim3(useful < blocks ? useful : blocks), dim3(THREADS), arguments, 0,
                            static_cast<cudaStream_t>(stream));
}
}
