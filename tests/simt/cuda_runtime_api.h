/* cuda_runtime_api.h: the functions of CUDA's run-time library that the kernels
 * (kernels/device/kernel_launch.h) call, over the layer of simt.h. decode.cu finds this file where
 * it looks for CUDA's. Not for memory and streams, which the host's device has (host_device.c). */
#ifndef KVC_SIMT_RUNTIME_H
#define KVC_SIMT_RUNTIME_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cudaError { cudaSuccess = 0, cudaErrorLaunchOutOfResources = 701 } cudaError_t;
typedef struct CUstream_st *cudaStream_t;

/* Only x is used. */
typedef struct dim3 {
    unsigned x, y, z;
#ifdef __cplusplus
    explicit dim3(unsigned n) : x(n), y(1), z(1) {}
#endif
} dim3;

/* One block a multiprocessor. */
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel,
                                                          int threads, size_t shared);
/* Runs a kernel, whose argument is a struct kvc_device_launch, and waits for its end. */
cudaError_t cudaLaunchKernel(const void *kernel, dim3 blocks, dim3 threads, void **arguments,
                             size_t shared, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
