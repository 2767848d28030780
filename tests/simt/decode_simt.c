/* decode_simt.c: takes the place of kernels/device/decode_host.c and encode_host.c in tests: the
 * device decoder and the device encoder on the host are here the code for GPUs, decode.cu and
 * encode.cu, in warps of lanes that advance apart from each other (simt.h). Not for speed. */
#include "tests/simt/decode_simt.h"

#include "kernels/device/decode_host.h"
#include "kernels/device/encode_host.h"
#include "kernels/kernels.h"
#include "tests/simt/cuda_runtime_api.h"

#include <pthread.h>
#include <stdlib.h>

/* decode.cu */
cudaError_t kvc_device_prepare_cuda(unsigned *blocks);
cudaError_t kvc_device_launch_cuda(const struct kvc_device_launch *launch, unsigned blocks,
                                   void *stream);
/* encode.cu */
cudaError_t kvc_encode_prepare_cuda(unsigned *blocks);
cudaError_t kvc_encode_launch_cuda(const struct kvc_device_launch *launch, unsigned blocks,
                                   void *stream);

/* Tests set it: 1 changes the order of the lanes. */
int kvc_lanes_backwards;

float kvc_convert_from_half(uint32_t h) {
    return kvc_half_to_float((uint16_t)h);
}
uint32_t kvc_convert_to_half(float x) {
    return kvc_float_to_half(x);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel,
                                                          int threads, size_t shared) {
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

cudaError_t cudaLaunchKernel(const void *kernel, dim3 blocks, dim3 threads, void **arguments,
                             size_t shared, cudaStream_t stream) {
    struct launched l = {.launch = arguments[0]};
    (void)shared, (void)stream;
    memcpy(&l.kernel, &kernel, sizeof kernel); /* C has no cast for it */
    simt_run(run_kernel, &l, blocks.x, threads.x);
    return cudaSuccess;
}

typedef cudaError_t prepare(unsigned *blocks);
typedef cudaError_t launch(const struct kvc_device_launch *launch, unsigned blocks, void *stream);

/* Each launch has another order than the one before. The layer runs one launch at a time. */
static void run(prepare *prepares, launch *launches, const struct kvc_device_launch *l) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint32_t number;
    unsigned blocks;
    pthread_mutex_lock(&lock);
    number++;
    if (prepares(&blocks) != cudaSuccess) abort();
    simt_set_order((enum simt_order)((number + (uint32_t)kvc_lanes_backwards) % SIMT_ORDERS),
                   number);
    if (launches(l, blocks * SIMT_BLOCKS, NULL) != cudaSuccess) abort();
    /* each warp found the queue empty once */
    if (l->counter[0] > l->n_items) l->counter[0] = l->n_items;
    pthread_mutex_unlock(&lock);
}

void kvc_device_run_host(const struct kvc_device_launch *l) {
    run(kvc_device_prepare_cuda, kvc_device_launch_cuda, l);
}

void kvc_encode_run_host(const struct kvc_device_launch *l) {
    run(kvc_encode_prepare_cuda, kvc_encode_launch_cuda, l);
}
