/* cuda.h: CUDA's errors in words, and the kernel's launch
 * (kernels/device/decode.cu). Not for what loaders ask of a device (formats/device/device.h). */
#ifndef KVC_FORMATS_CUDA_H
#define KVC_FORMATS_CUDA_H

#include "formats/device/cuda/devices.h"

#include <cuda_runtime_api.h>

/* Fails with "what was tried: cudaErrorX (its text)"; returns -1. */
int kvc_fail_cuda(struct kvc_error *e, cudaError_t status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* On the current device, both. Loads the kernel; *blocks: how many of its blocks a multiprocessor holds. */
cudaError_t kvc_device_prepare_cuda(unsigned *blocks);
/* Queues the kernel over launch's items, in `blocks` blocks at most. */
cudaError_t kvc_device_launch_cuda(const struct kvc_device_launch *launch, unsigned blocks, void *stream);

#endif
