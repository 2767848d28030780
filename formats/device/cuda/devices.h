/* devices.h: which devices there are for kvc_cuda.c: CUDA's (cuda_device.c), or a test's. Not for what they do
 * (formats/device/device.h: kvc_device_cuda()). */
#ifndef KVC_DEVICES_H
#define KVC_DEVICES_H

#include "formats/device/device.h"

/* How many devices there are, 1 at least; -1 and why where CUDA cannot be used. */
int kvc_cuda_count(struct kvc_error *e);

/* The kernel's targets and compiler: "sm_80 sm_90 sm_100 PTX compute_100, CUDA 13.0". */
extern const char kvc_device_build[];

#endif
