/* encode_host.h: the device encoder on the host. */
#ifndef KVC_ENCODE_HOST_H
#define KVC_ENCODE_HOST_H

#include "kernels/device/encode_launch.h"

/* Runs all items of a launch whose addresses are of this process. counter[0] is then n_items, or
 * less when an item waits for a later one. */
void kvc_encode_run_host(const struct kvc_device_launch *launch);

#endif
