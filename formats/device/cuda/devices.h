/* devices.h: the list of devices for kvc_cuda.c: CUDA GPUs (cuda_device.c), or those of a test. Not
 * for their functions (formats/device/device.h: kvc_device_cuda()). */
#ifndef KVC_DEVICES_H
#define KVC_DEVICES_H

#include "formats/device/device.h"

/* Returns the number of devices, at least 1; -1 and *e where CUDA cannot be used. */
int kvc_cuda_count(struct kvc_error *e);

/* Returns the targets and the compiler of the kernel: "sm_80 sm_90 sm_100 PTX compute_100,
 * CUDA 13.0". */
extern const char kvc_device_build[];

#endif
