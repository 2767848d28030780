/* cuda.h: messages of CUDA's errors, and the launch of the kernel (kernels/device/decode.cu). Not
 * for the functions of a device (formats/device/device.h). */
#ifndef KVC_FORMATS_CUDA_H
#define KVC_FORMATS_CUDA_H

#include "formats/device/cuda/devices.h"

#include <cuda_runtime_api.h>

/* Fails with the message "FORMAT...: cudaErrorX (its text)"; returns -1. */
int kvc_fail_cuda(struct kvc_error *e, cudaError_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Loads the kernel on the current device. *blocks gets the number of its blocks that a
 * multiprocessor holds. */
cudaError_t kvc_device_prepare_cuda(unsigned *blocks);
/* Queues the kernel on the current device over the items of a launch, in at most `blocks` blocks.
 */
cudaError_t kvc_device_launch_cuda(const struct kvc_device_launch *launch, unsigned blocks,
                                   void *stream);

/* The same for the encoder's kernel (kernels/device/encode.cu). */
cudaError_t kvc_encode_prepare_cuda(unsigned *blocks);
cudaError_t kvc_encode_launch_cuda(const struct kvc_device_launch *launch, unsigned blocks,
                                   void *stream);

#endif
