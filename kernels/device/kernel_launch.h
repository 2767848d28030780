/* kernel_launch.h: loads and queues a CUDA kernel that takes items from one queue. Not for what it
 * does with them (decode.cu, encode.cu). */
#ifndef KVC_KERNEL_LAUNCH_H
#define KVC_KERNEL_LAUNCH_H

#include "kernels/device/launch.h"

#include <cuda_runtime_api.h>

/* Loads the kernel on the current device; *blocks becomes the number of its blocks that a
 * multiprocessor holds. */
static cudaError_t kvc_kernel_prepare(const void *kernel, int threads, unsigned *blocks) {
    int n = 0;
    cudaError_t status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, kernel, threads, 0);
    if (status == cudaSuccess && n < 1) status = cudaErrorLaunchOutOfResources;
    *blocks = (unsigned)n;
    return status;
}

/* Queues the kernel over launch's items on a stream of the current device, in `blocks` blocks of
 * `warps` warps at most. Returns the status of this launch, unlike cudaGetLastError(), which may
 * report an earlier error. */
static cudaError_t kvc_kernel_launch(const void *kernel, unsigned warps,
                                     const struct kvc_device_launch *launch, unsigned blocks,
                                     void *stream) {
    const unsigned useful = launch->n_items / warps + (launch->n_items % warps != 0);
    void *arguments[] = {const_cast<struct kvc_device_launch *>(launch)};
    if (!useful) return cudaSuccess;
    return cudaLaunchKernel(kernel, dim3(useful < blocks ? useful : blocks),
                            dim3(warps * KVC_LANES), arguments, 0,
                            static_cast<cudaStream_t>(stream));
}

#endif
