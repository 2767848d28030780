/* device.c: copies that are waited for, the same for all devices. Not for the copies of a load,
 * which are queued (load_run.c). */
#include "formats/device/device.h"

#include <string.h>

typedef int copy(struct kvc_device *d, void *stream, void *to, const void *from, size_t n,
                 struct kvc_error *e);

static int copy_and_wait(struct kvc_device *d, copy *queue, void *to, const void *from, size_t n,
                         struct kvc_error *e) {
    void *event = NULL, *stream = NULL;
    int status = d->event_new(d, &event, e) || d->stream_new(d, &stream, e);
    if (!status)
        status = queue(d, stream, to, from, n, e) || d->event_record(d, event, stream, e) ||
                 d->event_wait(d, event, e);
    if (stream) d->stream_free(d, stream);
    if (event) d->event_free(d, event);
    return status ? -1 : 0;
}

int kvc_device_write(struct kvc_device *d, void *to, const void *from, size_t n,
                     struct kvc_error *e) {
    void *room = NULL;
    if (!n) return 0;
    if (d->alloc_host(d, n, &room, e)) return -1;
    memcpy(room, from, n);
    const int status = copy_and_wait(d, d->copy_in, to, room, n, e);
    d->free_host(d, room);
    return status;
}

int kvc_device_read(struct kvc_device *d, void *to, const void *from, size_t n,
                    struct kvc_error *e) {
    return n ? copy_and_wait(d, d->copy_out, to, from, n, e) : 0;
}
