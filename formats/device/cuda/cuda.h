/* cuda.h: the launches of kernels (kernels/device/decode.cu, encode.cu). Not for the functions of a
 * device (formats/device/device.h). */
#ifndef KVC_FORMATS_CUDA_H
#define KVC_FORMATS_CUDA_H

#include "formats/device/cuda/devices.h"

#include <cuda_runtime_api.h>

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
