/* host_device.c: the host as a device: its memory is host memory, queued work runs at once, and
 * decoder and encoder are the GPU's source, run in lockstep on one thread. Tests with this device
 * show what a GPU does, except for errors of CUDA itself. Not fast. */
#include "formats/device/device.h"

#include "kernels/device/decode_host.h"
#include "kernels/device/encode_host.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Stands before each allocation. As CUDA's, memory of the device is aligned to 512 bytes, and
 * memory of the host less than to a page. */
struct taken {
    struct taken *next, *before;
    size_t n;
};
enum { PAGE = 4096, AHEAD = PAGE + 512 };

/* Of all devices: one may be asked for memory of another, as on a GPU. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct taken *first;

static int take_memory(struct kvc_device *d, size_t n, void **p, struct kvc_error *e) {
    (void)d;
    *p = NULL;
    if (n > SIZE_MAX - AHEAD - PAGE) return kvc_fail_memory(e, "device memory");
    uint8_t *memory = aligned_alloc(PAGE, (AHEAD + n + PAGE - 1) / PAGE * PAGE);
    if (!memory) return kvc_fail_memory(e, "device memory");
    struct taken *t = (struct taken *)(void *)memory;
    pthread_mutex_lock(&lock);
    *t = (struct taken){.next = first, .n = n};
    if (t->next) t->next->before = t;
    first = t;
    pthread_mutex_unlock(&lock);
    *p = memory + AHEAD;
    return 0;
}

static void free_memory(struct kvc_device *d, void *p) {
    (void)d;
    if (!p) return;
    struct taken *t = (struct taken *)(void *)((uint8_t *)p - AHEAD);
    pthread_mutex_lock(&lock);
    if (t->next) t->next->before = t->before;
    if (t->before) t->before->next = t->next;
    else first = t->next;
    pthread_mutex_unlock(&lock);
    free(t);
}

static int host_device_copy(struct kvc_device *d, void *stream, void *to, const void *from,
                            size_t n, struct kvc_error *e) {
    (void)d, (void)stream, (void)e;
    if (n) memcpy(to, from, n);
    return 0;
}

static int zero(struct kvc_device *d, void *stream, void *to, size_t n, struct kvc_error *e) {
    (void)d, (void)stream, (void)e;
    if (n) memset(to, 0, n);
    return 0;
}

static int ended(const struct kvc_device_launch *launch, struct kvc_error *e) {
    if (launch->counter[0] == launch->n_items) return 0;
    return kvc_fail(e, KVC_ERR_VERIFY, "item %u waits for a later one", launch->counter[0]);
}

static int host_device_run(struct kvc_device *d, void *stream,
                           const struct kvc_device_launch *launch, unsigned limit,
                           struct kvc_error *e) {
    (void)d, (void)stream, (void)limit;
    kvc_device_run_host(launch);
    return ended(launch, e);
}

static int encode(struct kvc_device *d, void *stream, const struct kvc_device_launch *launch,
                  unsigned limit, struct kvc_error *e) {
    (void)d, (void)stream, (void)limit;
    kvc_encode_run_host(launch);
    return ended(launch, e);
}

/* Events are reached as soon as they are recorded. */
static int event_new(struct kvc_device *d, void **event, struct kvc_error *e) {
    return take_memory(d, 1, event, e);
}
static int event_record(struct kvc_device *d, void *event, void *stream, struct kvc_error *e) {
    (void)d, (void)event, (void)stream, (void)e;
    return 0;
}
static int event_wait(struct kvc_device *d, void *event, struct kvc_error *e) {
    (void)d, (void)event, (void)e;
    return 0;
}
static int stream_new(struct kvc_device *d, void **stream, struct kvc_error *e) {
    (void)d, (void)e;
    *stream = NULL;
    return 0;
}

/* Checks memory that was allocated here; other memory of the host is taken as it is. */
static int owns(struct kvc_device *d, const void *p, size_t n, struct kvc_error *e) {
    (void)d;
    size_t left = SIZE_MAX;
    if (!p) return kvc_fail(e, KVC_ERR_USAGE, "address 0 is not memory of the device");
    pthread_mutex_lock(&lock);
    for (const struct taken *t = first; t; t = t->next) {
        const uintptr_t from = (uintptr_t)t + AHEAD, at = (uintptr_t)p;
        if (at >= from && at - from < t->n) left = t->n - (at - from);
    }
    pthread_mutex_unlock(&lock);
    if (n <= left) return 0;
    return kvc_fail(e, KVC_ERR_USAGE,
                    "address %p: %zu bytes are memory of the device, and %zu are needed", p, left,
                    n);
}

/* Handles are addresses, which are valid in this process only. */
static int ipc_export(struct kvc_device *d, void *p, uint8_t handle[KVC_IPC_HANDLE],
                      uint64_t *offset, struct kvc_error *e) {
    (void)d, (void)e;
    memset(handle, 0, KVC_IPC_HANDLE);
    memcpy(handle, &p, sizeof p);
    *offset = 0;
    return 0;
}
static int ipc_open(struct kvc_device *d, const uint8_t handle[KVC_IPC_HANDLE], void **base,
                    struct kvc_error *e) {
    (void)d, (void)handle;
    *base = NULL;
    return kvc_fail(e, KVC_ERR_UNSUPPORTED, "memory of the host is not shared between processes");
}
static void ipc_close(struct kvc_device *d, void *base) {
    (void)d, (void)base;
}

static void close_host(struct kvc_device *d) {
    free(d);
}

struct kvc_device *kvc_device_host(struct kvc_error *e) {
    struct kvc_device *d = malloc(sizeof *d);
    if (!d) {
        kvc_fail_memory(e, "a device");
        return NULL;
    }
    *d = (struct kvc_device){.name = "host",
                             .memory = UINT64_MAX,
                             .multiprocessors = 1,
                             .alloc = take_memory,
                             .free = free_memory,
                             .alloc_host = take_memory,
                             .free_host = free_memory,
                             .copy_in = host_device_copy,
                             .copy_out = host_device_copy,
                             .zero = zero,
                             .run = host_device_run,
                             .encode = encode,
                             .event_new = event_new,
                             .event_free = free_memory,
                             .event_record = event_record,
                             .event_wait = event_wait,
                             .event_before = event_record,
                             .stream_new = stream_new,
                             .stream_free = free_memory,
                             .owns = owns,
                             .ipc_export = ipc_export,
                             .ipc_open = ipc_open,
                             .ipc_close = ipc_close,
                             .close = close_host};
    return d;
}
