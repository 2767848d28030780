/* device.h: the functions that a loader and an encoder need of a device: memory, copies, launches,
 * events. Two devices exist: CUDA GPUs (cuda_device.c, only in libkvc_cuda), and the host itself
 * (host_device.c), which runs the same decoder over host memory, so that loading can be tested on
 * machines without a GPU. Not for what is loaded (load.h) or encoded (encoder.h).
 *
 * Functions return 0, or -1 with *e filled, which includes the text of CUDA's error. A stream is an
 * opaque pointer of the device; all work on a stream is in order. No function waits unless its
 * comment says so. */
#ifndef KVC_DEVICE_H
#define KVC_DEVICE_H

#include "codecs/error.h"
#include "kernels/device/launch.h"

#include <stddef.h>
#include <stdint.h>

#define KVC_IPC_HANDLE 64 /* bytes of a handle that another process opens */

struct kvc_device {
    char name[128];  /* "cuda:0 NVIDIA H200", "host" */
    uint64_t memory; /* bytes */
    unsigned multiprocessors;
    void *impl;

    /* Memory of the device, and pinned memory of the host, which the device copies from at full
     * speed and which is aligned as malloc()'s is, no more. free(NULL) is allowed. */
    int (*alloc)(struct kvc_device *d, size_t n, void **p, struct kvc_error *e);
    void (*free)(struct kvc_device *d, void *p);
    int (*alloc_host)(struct kvc_device *d, size_t n, void **p, struct kvc_error *e);
    void (*free_host)(struct kvc_device *d, void *p);

    /* Queue a copy of n bytes from memory of alloc_host() to the device, a copy in the other
     * direction, or zeros. */
    int (*copy_in)(struct kvc_device *d, void *stream, void *to, const void *from, size_t n,
                   struct kvc_error *e);
    int (*copy_out)(struct kvc_device *d, void *stream, void *to, const void *from, size_t n,
                    struct kvc_error *e);
    int (*zero)(struct kvc_device *d, void *stream, void *to, size_t n, struct kvc_error *e);
    /* Queues one launch over launch->items, which occupies at most `limit` multiprocessors; 0: all.
     */
    int (*run)(struct kvc_device *d, void *stream, const struct kvc_device_launch *launch,
               unsigned limit, struct kvc_error *e);
    /* The same for a launch of the encoder (kernels/device/encode_launch.h). */
    int (*encode)(struct kvc_device *d, void *stream, const struct kvc_device_launch *launch,
                  unsigned limit, struct kvc_error *e);

    /* An event is reached when all work queued before record() is done. wait() blocks the caller
     * until then; it returns 0 at once for an event that was never recorded. */
    int (*event_new)(struct kvc_device *d, void **event, struct kvc_error *e);
    void (*event_free)(struct kvc_device *d, void *event);
    int (*event_record)(struct kvc_device *d, void *event, void *stream, struct kvc_error *e);
    int (*event_wait)(struct kvc_device *d, void *event, struct kvc_error *e);
    /* Makes later work on the stream wait for the event. */
    int (*event_before)(struct kvc_device *d, void *event, void *stream, struct kvc_error *e);
    /* of low priority */
    int (*stream_new)(struct kvc_device *d, void **stream, struct kvc_error *e);
    void (*stream_free)(struct kvc_device *d, void *stream);

    /* Checks that n bytes at p are memory of this device, as far as can be found out. */
    int (*owns)(struct kvc_device *d, const void *p, size_t n, struct kvc_error *e);
    /* Make and open handles for other processes: of the allocation that p lies in, with the offset
     * of p in it. */
    int (*ipc_export)(struct kvc_device *d, void *p, uint8_t handle[KVC_IPC_HANDLE],
                      uint64_t *offset, struct kvc_error *e);
    int (*ipc_open)(struct kvc_device *d, const uint8_t handle[KVC_IPC_HANDLE], void **base,
                    struct kvc_error *e);
    void (*ipc_close)(struct kvc_device *d, void *base);

    void (*close)(struct kvc_device *d); /* frees d */
};

/* Copy n bytes from any memory of the host to the device, or in the other direction, and wait for
 * the end of the copy. */
int kvc_device_write(struct kvc_device *d, void *to, const void *from, size_t n,
                     struct kvc_error *e);
int kvc_device_read(struct kvc_device *d, void *to, const void *from, size_t n,
                    struct kvc_error *e);

/* Returns the host as a device, which runs queued work at once. */
struct kvc_device *kvc_device_host(struct kvc_error *e);
/* Returns CUDA device `number`. In libkvc_cuda only. */
struct kvc_device *kvc_device_cuda(int number, struct kvc_error *e);

#endif
