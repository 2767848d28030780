/* encode_host.c: runs a launch of the device encoder on the host, one warp for all: it shows,
 * without a GPU, that the GPU's source encodes to the bytes that the CPU's kernels encode to. Not
 * for speed. */
#include "kernels/device/encode_host.h"

#include "kernels/device/encode_items.h"

void kvc_encode_run_host(const struct kvc_device_launch *launch) {
    _Alignas(16) uint32_t work[KVC_DEVICE_WORK];
    memset(work, 0, sizeof work);
    kvc_take_items(launch, work);
}
