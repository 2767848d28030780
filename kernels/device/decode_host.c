/* decode_host.c: runs a launch of the device decoder on the host, one warp for all: it shows,
 * without a GPU, that the GPU's source decodes what the CPU's kernels decode. Not for speed. */
#include "kernels/device/decode_host.h"

#include "kernels/device/decode.h"

int kvc_lanes_backwards;

void kvc_device_run_host(const struct kvc_device_launch *launch) {
    _Alignas(16) uint32_t work[KVC_DEVICE_WORK];
    memset(work, 0, sizeof work);
    kvc_take_items(launch, work);
}
