/* decode_simt.c: takes the place of kernels/device/decode_host.c in tests: the device decoder on the host is here the code for GPUs,
 * decode.cu, in warps of lanes that advance apart from each other (simt.h). Not for speed. */
#include "tests/simt/decode_simt.h"

#include "kernels/device/decode_host.h"
#include "kernels/kernels.h"
#include "tests/simt/cuda_runtime_api.h"

#include <stdlib.h>

/* decode.cu */
cudaError_t kvc_device_prepare_cuda(unsigned *blocks);
cudaError_t kvc_device_launch_cuda(const struct kvc_device_launch *launch, unsigned blocks, void *stream);

/* Tests set it: 1 changes the order of the lanes. */
int kvc_lanes_backwards;

float kvc_convert_from_half(uint32_t h) {
    return kvc_half_to_float((uint16_t)h);
}
uint32_t kvc_convert_to_half(float x) {
    return kvc_float_to_half(x);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int threads, size_t shared) {
    (void)kernel, (void)shared;
    *blocks = threads <= SIMT_THREADS;
    return cudaSuccess;
}

struct launched {
    void (*kernel)(struct kvc_device_launch launch);
    const struct kvc_device_launch *launch;
};
static void run_kernel(void *arguments) {
    const struct launched *l = arguments;
    l->kernel(*l->launch);
}

cudaError_t cudaLaunchKernel(const void *kernel, dim3 blocks, dim3 threads, void **arguments, size_t shared,
                             cudaStream_t stream) {
    struct launched l = {.launch = arguments[0]};
    (void)shared, (void)stream;
    memcpy(&l.kernel, &kernel, sizeof kernel); /* C has no cast for it */
    simt_run(run_kernel, &l, blocks.x, threads.x);
    return cudaSuccess;
}

/* Each launch has another order than the one before. */
void kvc_device_run_host(const struct kvc_device_launch *launch) {
    static uint32_t launches;
    const uint32_t number = __atomic_fetch_add(&launches, 1, __ATOMIC_RELAXED);
    unsigned blocks;
    if (kvc_device_prepare_cuda(&blocks) != cudaSuccess) abort();
    simt_set_order((enum simt_order)((number + (uint32_t)kvc_lanes_backwards) % SIMT_ORDERS), number);
    if (kvc_device_launch_cuda(launch, blocks * SIMT_BLOCKS, NULL) != cudaSuccess) abort();
    /* each warp found the queue empty once */
    if (launch->counter[0] > launch->n_items) launch->counter[0] = launch->n_items;
}
