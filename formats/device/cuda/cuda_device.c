/* cuda_device.c: CUDA GPUs as devices of formats/device/device.h, on the runtime API. Not for the
 * kernel (kernels/device/decode.cu).
 *
 * A thread of an engine may call with any device current, and must find the same device current
 * afterwards. cudaGetDevice() and cudaSetDevice() cannot ensure this: for a thread without a device
 * they return 0, and setting device 0 again would make a context on it. So the current context of
 * the driver is saved and restored, and the context of the device, which the runtime made, is
 * current in between; the runtime works in any current context. The runtime looks the functions of
 * the driver up, because libcuda exists only where a driver is installed, so that nothing can link
 * it. */
#include "formats/device/cuda/cuda.h"
#include "formats/device/device.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if CUDART_VERSION < 12050
#error "CUDA 12.5 or newer is needed: CUDA=0 builds without"
#endif

#define NOT_PLAIN                                                                             \
    "memory of expandable segments (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True) or of " \
    "vLLM's sleep mode "                                                                      \
    "is not plain cudaMalloc memory and cannot be shared"

_Static_assert(sizeof(cudaIpcMemHandle_t) == KVC_IPC_HANDLE, "a handle is CUDA's");

struct cuda {
    struct kvc_device device; /* for callers */
    int number;
    unsigned blocks;   /* of the decoder's kernel that a multiprocessor holds */
    unsigned encoding; /* likewise of the encoder's */
    CUcontext context; /* the runtime's own for this device */
    PFN_cuCtxGetCurrent_v4000 get_current;
    PFN_cuCtxSetCurrent_v4000 set_current;
    PFN_cuMemGetAddressRange_v3020 address_range;
};

/* Returns 0 after a call that succeeded, else -1 with what was tried and CUDA's own text. */
__attribute__((format(printf, 3, 4))) static int
cuda_result(struct kvc_error *e, cudaError_t status, const char *format, ...) {
    char tried[512];
    if (status == cudaSuccess) return 0;
    va_list ap;
    va_start(ap, format);
    vsnprintf(tried, sizeof tried, format, ap);
    va_end(ap);
    return kvc_fail(e, status == cudaErrorMemoryAllocation ? KVC_ERR_MEMORY : KVC_ERR_IO,
                    "%s: %s (%s)", tried, cudaGetErrorName(status), cudaGetErrorString(status));
}

/* --- whose context is current --- */

/* CUDA's two error enumerations share their numbers. */
static cudaError_t of_driver(CUresult status) {
    return (cudaError_t)status;
}

/* Makes the device current. *before gets the context before, for leave(), which must follow unless
 * this fails. */
static cudaError_t enter(const struct cuda *c, CUcontext *before) {
    const CUresult status = c->get_current(before);
    if (status != CUDA_SUCCESS || *before == c->context) return of_driver(status);
    return of_driver(c->set_current(c->context));
}

/* Restores the context before. Returns the status of the calls in between, or else its own. */
static cudaError_t leave(const struct cuda *c, CUcontext before, cudaError_t status) {
    const CUresult restored = before == c->context ? CUDA_SUCCESS : c->set_current(before);
    return status == cudaSuccess ? of_driver(restored) : status;
}

/* Returns the status of a call on device c. */
#define ON(c, call)                                    \
    __extension__({                                    \
        CUcontext before;                              \
        const cudaError_t entered = enter(c, &before); \
        entered ? entered : leave(c, before, call);    \
    })

/* --- memory --- */

static int cuda_alloc(struct kvc_device *d, size_t n, void **p, struct kvc_error *e) {
    const struct cuda *c = d->impl;
    *p = NULL;
    /* not from a pool, because other processes must be able to open it */
    return cuda_result(e, ON(c, cudaMalloc(p, n)), "cudaMalloc of %zu bytes on cuda:%d", n,
                       c->number);
}

static void cuda_free(struct kvc_device *d, void *p) {
    const struct cuda *c = d->impl;
    (void)ON(c, cudaFree(p));
}

static int cuda_alloc_host(struct kvc_device *d, size_t n, void **p, struct kvc_error *e) {
    const struct cuda *c = d->impl;
    *p = NULL;
    return cuda_result(e, ON(c, cudaHostAlloc(p, n, cudaHostAllocPortable)),
                       "cudaHostAlloc of %zu bytes of pinned memory (ulimit -l may bound it)", n);
}

static void cuda_free_host(struct kvc_device *d, void *p) {
    const struct cuda *c = d->impl;
    (void)ON(c, cudaFreeHost(p));
}

/* --- work on a stream --- */

static int cuda_copy_in(struct kvc_device *d, void *stream, void *to, const void *from, size_t n,
                        struct kvc_error *e) {
    const struct cuda *c = d->impl;
    return cuda_result(e, ON(c, cudaMemcpyAsync(to, from, n, cudaMemcpyHostToDevice, stream)),
                       "cudaMemcpyAsync of %zu bytes to cuda:%d", n, c->number);
}

static int cuda_copy_out(struct kvc_device *d, void *stream, void *to, const void *from, size_t n,
                         struct kvc_error *e) {
    const struct cuda *c = d->impl;
    return cuda_result(e, ON(c, cudaMemcpyAsync(to, from, n, cudaMemcpyDeviceToHost, stream)),
                       "cudaMemcpyAsync of %zu bytes from cuda:%d", n, c->number);
}

static int cuda_zero(struct kvc_device *d, void *stream, void *to, size_t n, struct kvc_error *e) {
    const struct cuda *c = d->impl;
    return cuda_result(e, ON(c, cudaMemsetAsync(to, 0, n, stream)),
                       "cudaMemsetAsync of %zu bytes on cuda:%d", n, c->number);
}

static int cuda_run(struct kvc_device *d, void *stream, const struct kvc_device_launch *launch,
                    unsigned limit, struct kvc_error *e) {
    const struct cuda *c = d->impl;
    const unsigned held = limit && limit < d->multiprocessors ? limit : d->multiprocessors;
    return cuda_result(e, ON(c, kvc_device_launch_cuda(launch, held * c->blocks, stream)),
                       "launch over %" PRIu32 " items on cuda:%d", launch->n_items, c->number);
}

static int cuda_encode(struct kvc_device *d, void *stream, const struct kvc_device_launch *launch,
                       unsigned limit, struct kvc_error *e) {
    const struct cuda *c = d->impl;
    const unsigned held = limit && limit < d->multiprocessors ? limit : d->multiprocessors;
    return cuda_result(e, ON(c, kvc_encode_launch_cuda(launch, held * c->encoding, stream)),
                       "launch of the encoder over %" PRIu32 " items on cuda:%d", launch->n_items,
                       c->number);
}

/* --- events and streams --- */

static int cuda_event_new(struct kvc_device *d, void **event, struct kvc_error *e) {
    const struct cuda *c = d->impl;
    cudaEvent_t made = NULL;
    const cudaError_t status = ON(c, cudaEventCreateWithFlags(&made, cudaEventDisableTiming |
                                                                         cudaEventBlockingSync));
    *event = made;
    return cuda_result(e, status, "cudaEventCreateWithFlags on cuda:%d", c->number);
}

static void cuda_event_free(struct kvc_device *d, void *event) {
    const struct cuda *c = d->impl;
    if (event) (void)ON(c, cudaEventDestroy(event));
}

static int cuda_event_record(struct kvc_device *d, void *event, void *stream, struct kvc_error *e) {
    const struct cuda *c = d->impl;
    return cuda_result(e, ON(c, cudaEventRecord(event, stream)), "cudaEventRecord on cuda:%d",
                       c->number);
}

/* A failure here may be that of anything queued before the event. */
static int cuda_event_before(struct kvc_device *d, void *event, void *stream, struct kvc_error *e) {
    const struct cuda *c = d->impl;
    return cuda_result(e, ON(c, cudaStreamWaitEvent(stream, event, 0)),
                       "cudaStreamWaitEvent on cuda:%d", c->number);
}

/* A failure here may be that of anything queued before the event. */
static int cuda_event_wait(struct kvc_device *d, void *event, struct kvc_error *e) {
    const struct cuda *c = d->impl;
    return cuda_result(e, ON(c, cudaEventSynchronize(event)),
                       "cudaEventSynchronize: queued work on cuda:%d", c->number);
}

/* On the current device. */
static cudaError_t new_stream(cudaStream_t *stream) {
    int least = 0;
    const cudaError_t status = cudaDeviceGetStreamPriorityRange(&least, NULL);
    return status ? status : cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, least);
}

static int cuda_stream_new(struct kvc_device *d, void **stream, struct kvc_error *e) {
    const struct cuda *c = d->impl;
    cudaStream_t made = NULL;
    const cudaError_t status = ON(c, new_stream(&made));
    *stream = made;
    return cuda_result(e, status, "cudaStreamCreateWithPriority on cuda:%d", c->number);
}

static void cuda_stream_free(struct kvc_device *d, void *stream) {
    const struct cuda *c = d->impl;
    if (stream) (void)ON(c, cudaStreamDestroy(stream)); /* NULL would be the default stream */
}

/* --- whose memory it is --- */

/* Finds the allocation that p lies in. */
static cudaError_t range_of(const struct cuda *c, const void *p, CUdeviceptr *base, size_t *size) {
    return ON(c, of_driver(c->address_range(base, size, (CUdeviceptr)(uintptr_t)p)));
}

/* Checks that the byte at p is memory of the device. */
static int owns_byte(const struct cuda *c, const void *p, struct kvc_error *e) {
    struct cudaPointerAttributes a = {0};
    const cudaError_t status = ON(c, cudaPointerGetAttributes(&a, p));
    if (status) return cuda_result(e, status, "cudaPointerGetAttributes of address %p", p);
    if (a.type != cudaMemoryTypeDevice && a.type != cudaMemoryTypeManaged)
        return kvc_fail(e, KVC_ERR_USAGE, "address %p is host memory, and the plan is for cuda:%d",
                        p, c->number);
    if (a.device == c->number) return 0;
    return kvc_fail(e, KVC_ERR_USAGE,
                    "address %p is memory of cuda:%d, and the plan is for cuda:%d", p, a.device,
                    c->number);
}

/* Checks each of the ranges in a row that expandable segments consist of. */
static int cuda_owns(struct kvc_device *d, const void *p, size_t n, struct kvc_error *e) {
    const struct cuda *c = d->impl;
    if (owns_byte(c, p, e)) return -1;
    for (uint64_t done = 0; done < n;) {
        const void *at = (const uint8_t *)p + done;
        CUdeviceptr base;
        size_t size;
        if (range_of(c, at, &base, &size) != cudaSuccess || owns_byte(c, at, NULL))
            return kvc_fail(e, KVC_ERR_USAGE,
                            "address %p: %" PRIu64
                            " bytes are memory of cuda:%d, and %zu are needed",
                            p, done, c->number, n);
        done = base + size - (uintptr_t)p;
    }
    return 0;
}

/* --- other processes --- */

static int cuda_ipc_export(struct kvc_device *d, void *p, uint8_t handle[KVC_IPC_HANDLE],
                           uint64_t *offset, struct kvc_error *e) {
    const struct cuda *c = d->impl;
    CUdeviceptr base = 0;
    size_t size;
    cudaError_t status = range_of(c, p, &base, &size);
    if (status)
        return cuda_result(e, status, "cuMemGetAddressRange of address %p on cuda:%d", p,
                           c->number);
    cudaIpcMemHandle_t made;
    status = ON(c, cudaIpcGetMemHandle(&made, (void *)(uintptr_t)base));
    if (status)
        return cuda_result(e, status,
                           "address %p on cuda:%d gives no handle (" NOT_PLAIN
                           "): cudaIpcGetMemHandle",
                           p, c->number);
    memcpy(handle, &made, sizeof made);
    *offset = (uintptr_t)p - base;
    return 0;
}

static int cuda_ipc_open(struct kvc_device *d, const uint8_t handle[KVC_IPC_HANDLE], void **base,
                         struct kvc_error *e) {
    const struct cuda *c = d->impl;
    cudaIpcMemHandle_t given;
    memcpy(&given, handle, sizeof given);
    *base = NULL;
    const cudaError_t status = ON(c, cudaIpcOpenMemHandle(base, given,
                                                          cudaIpcMemLazyEnablePeerAccess));
    if (!status) return 0;
    return cuda_result(
        e, status,
        "the handle cannot be opened on cuda:%d (its process must still hold the memory; the same "
        "process cannot open its own handle; " NOT_PLAIN "): cudaIpcOpenMemHandle",
        c->number);
}

static void cuda_ipc_close(struct kvc_device *d, void *base) {
    const struct cuda *c = d->impl;
    (void)ON(c, cudaIpcCloseMemHandle(base));
}

/* --- opening --- */

int kvc_cuda_count(struct kvc_error *e) {
    int count = 0, driver = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaSuccess && count > 0) return count;
    if (status == cudaSuccess || status == cudaErrorNoDevice)
        return kvc_fail(
            e, KVC_ERR_UNSUPPORTED,
            "CUDA cannot be used: there is no device (or CUDA_VISIBLE_DEVICES hides it)");
    if (cudaDriverGetVersion(&driver) == cudaSuccess && !driver)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "CUDA cannot be used: no NVIDIA driver is installed");
    if (status == cudaErrorInsufficientDriver)
        return kvc_fail(
            e, KVC_ERR_UNSUPPORTED,
            "CUDA cannot be used: the NVIDIA driver is for CUDA %d.%d at most, and CUDA "
            "%d.%d is needed",
            driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    return cuda_result(e, status, "CUDA cannot be used: cudaGetDeviceCount");
}

/* Finds a function of the driver, as of CUDA `version`. */
static int cuda_device_find(void *to, const char *name, unsigned version, struct kvc_error *e) {
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *p = NULL;
    const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &p, version,
                                                                cudaEnableDefault, &found);
    if (status) return cuda_result(e, status, "cudaGetDriverEntryPointByVersion of %s", name);
    if (found != cudaDriverEntryPointSuccess || !p)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "the NVIDIA driver has no %s", name);
    memcpy(to, &p, sizeof p);
    return 0;
}

static int find_driver(struct cuda *c, struct kvc_error *e) {
    if (cuda_device_find(&c->get_current, "cuCtxGetCurrent", 4000, e)) return -1;
    if (cuda_device_find(&c->set_current, "cuCtxSetCurrent", 4000, e)) return -1;
    if (cuda_device_find(&c->address_range, "cuMemGetAddressRange", 3020, e)) return -1;
    return 0;
}

/* Describes the device. Refuses devices that are older than the targets of the kernel. */
static int cuda_device_describe(struct cuda *c, struct kvc_error *e) {
    struct cudaDeviceProp p;
    const cudaError_t status = cudaGetDeviceProperties(&p, c->number);
    if (status) return cuda_result(e, status, "cudaGetDeviceProperties of cuda:%d", c->number);
    snprintf(c->device.name, sizeof c->device.name, "cuda:%d %.100s", c->number, p.name);
    c->device.memory = p.totalGlobalMem;
    c->device.multiprocessors = (unsigned)p.multiProcessorCount;
    if (p.major >= 8) return 0;
    return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                    "%s has compute capability %d.%d, and 8.0 or newer is needed", c->device.name,
                    p.major, p.minor);
}

/* Prepares the device. The kernel is loaded here, so that no later call has to wait for it. */
static cudaError_t make_current(struct cuda *c) {
    const cudaError_t status = cudaSetDevice(c->number);
    if (status) return status;
    const CUresult found = c->get_current(&c->context);
    if (found) return of_driver(found);
    const cudaError_t decoder = kvc_device_prepare_cuda(&c->blocks);
    return decoder ? decoder : kvc_encode_prepare_cuda(&c->encoding);
}

static int cuda_device_prepare(struct cuda *c, struct kvc_error *e) {
    CUcontext before;
    cudaError_t status = of_driver(c->get_current(&before));
    if (!status) status = leave(c, before, make_current(c));
    return cuda_result(e, status, "preparing %s", c->device.name);
}

static void cuda_close(struct kvc_device *d) {
    free(d->impl);
} /* d is part of it */

struct kvc_device *kvc_device_cuda(int number, struct kvc_error *e) {
    const int count = kvc_cuda_count(e);
    if (count < 0) return NULL;
    if (number < 0 || number >= count) {
        kvc_fail(e, KVC_ERR_USAGE, "there is no device cuda:%d: the last is cuda:%d", number,
                 count - 1);
        return NULL;
    }
    struct cuda *c = calloc(1, sizeof *c);
    if (!c) {
        kvc_fail_memory(e, "a device");
        return NULL;
    }
    c->number = number;
    c->device = (struct kvc_device){.impl = c,
                                    .alloc = cuda_alloc,
                                    .free = cuda_free,
                                    .alloc_host = cuda_alloc_host,
                                    .free_host = cuda_free_host,
                                    .copy_in = cuda_copy_in,
                                    .copy_out = cuda_copy_out,
                                    .zero = cuda_zero,
                                    .run = cuda_run,
                                    .encode = cuda_encode,
                                    .event_new = cuda_event_new,
                                    .event_free = cuda_event_free,
                                    .event_record = cuda_event_record,
                                    .event_wait = cuda_event_wait,
                                    .event_before = cuda_event_before,
                                    .stream_new = cuda_stream_new,
                                    .stream_free = cuda_stream_free,
                                    .owns = cuda_owns,
                                    .ipc_export = cuda_ipc_export,
                                    .ipc_open = cuda_ipc_open,
                                    .ipc_close = cuda_ipc_close,
                                    .close = cuda_close};
    if (find_driver(c, e) || cuda_device_describe(c, e) || cuda_device_prepare(c, e)) {
        free(c);
        return NULL;
    }
    return &c->device;
}
