/* device.h: what a loader asks of a device: memory, copies, launches, events. Two devices exist: CUDA's (cuda_device.c, in
 * libkvc_cuda alone) and the host itself (host_device.c), which runs the same decoder over host memory and proves on machines
 * without a GPU what loading does. Not for what is loaded (load.h).
 *
 * Functions return 0, or -1 with *e filled: what failed, in CUDA's words too. A stream is an opaque pointer of the device's; all
 * work on it is in order. Nothing waits but what says so. */
#ifndef KVC_DEVICE_H
#define KVC_DEVICE_H

#include "codecs/error.h"
#include "kernels/device/launch.h"

#include <stddef.h>
#include <stdint.h>

#define KVC_IPC_HANDLE 64 /* bytes of a handle that another process opens */

struct kvc_device {
    char name[128];          /* "cuda:0 NVIDIA H200", "host" */
    uint64_t memory;         /* bytes of the device's memory */
    unsigned multiprocessors;
    void *impl;

    /* Memory of the device, and memory of the host that it copies from at full speed (pinned). free(NULL) is legal. */
    int (*alloc)(struct kvc_device *d, size_t n, void **p, struct kvc_error *e);
    void (*free)(struct kvc_device *d, void *p);
    int (*alloc_host)(struct kvc_device *d, size_t n, void **p, struct kvc_error *e);
    void (*free_host)(struct kvc_device *d, void *p);

    /* Queued on the stream: n bytes from alloc_host()'s memory to the device; the other way; zeros. */
    int (*copy_in)(struct kvc_device *d, void *stream, void *to, const void *from, size_t n, struct kvc_error *e);
    int (*copy_out)(struct kvc_device *d, void *stream, void *to, const void *from, size_t n, struct kvc_error *e);
    int (*zero)(struct kvc_device *d, void *stream, void *to, size_t n, struct kvc_error *e);
    /* Queued: one launch over launch->items; `limit`: most multiprocessors it may hold, 0: all. */
    int (*run)(struct kvc_device *d, void *stream, const struct kvc_device_launch *launch, unsigned limit, struct kvc_error *e);

    /* An event is reached when all work queued before record() is done. wait() blocks the caller until then; 0 at once for an
     * event never recorded. */
    int (*event_new)(struct kvc_device *d, void **event, struct kvc_error *e);
    void (*event_free)(struct kvc_device *d, void *event);
    int (*event_record)(struct kvc_device *d, void *event, void *stream, struct kvc_error *e);
    int (*event_wait)(struct kvc_device *d, void *event, struct kvc_error *e);
    /* Queued: what comes later on the stream waits for the event. */
    int (*event_before)(struct kvc_device *d, void *event, void *stream, struct kvc_error *e);
    int (*stream_new)(struct kvc_device *d, void **stream, struct kvc_error *e); /* of low priority */
    void (*stream_free)(struct kvc_device *d, void *stream);

    /* Whether p is memory of this very device, n bytes of it as far as can be told; -1 and why not. */
    int (*owns)(struct kvc_device *d, const void *p, size_t n, struct kvc_error *e);
    /* Handles that other processes open: of the allocation that p lies in, and p's offset in it. */
    int (*ipc_export)(struct kvc_device *d, void *p, uint8_t handle[KVC_IPC_HANDLE], uint64_t *offset, struct kvc_error *e);
    int (*ipc_open)(struct kvc_device *d, const uint8_t handle[KVC_IPC_HANDLE], void **base, struct kvc_error *e);
    void (*ipc_close)(struct kvc_device *d, void *base);

    void (*close)(struct kvc_device *d); /* frees d */
};

/* n bytes from any memory of the host to the device's, or the other way: done when they return. */
int kvc_device_write(struct kvc_device *d, void *to, const void *from, size_t n, struct kvc_error *e);
int kvc_device_read(struct kvc_device *d, void *to, const void *from, size_t n, struct kvc_error *e);

/* The host as a device: runs at once whatever is queued. */
struct kvc_device *kvc_device_host(struct kvc_error *e);
/* Device `number` of CUDA's. In libkvc_cuda only. */
struct kvc_device *kvc_device_cuda(int number, struct kvc_error *e);

#endif
