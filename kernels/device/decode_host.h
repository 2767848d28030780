/* decode_host.h: the device decoder on the host. */
#ifndef KVC_DEVICE_HOST_H
#define KVC_DEVICE_HOST_H

#include "kernels/device/launch.h"

/* Runs all items of a launch whose addresses are of this process. counter[0] is then n_items, or
 * less when an item waits for a later one. */
void kvc_device_run_host(const struct kvc_device_launch *launch);

#endif
