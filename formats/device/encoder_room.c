/* encoder_room.c: memory and a stream for the encoding of one run of blocks. */
#include "formats/device/encoder_room.h"

#include <string.h>

enum { ALIGN = 256 };

int kvc_room_init(struct kvc_encode_room *r, struct kvc_device *d, void *after,
                  struct kvc_error *e) {
    *r = (struct kvc_encode_room){.device = d};
    if (d->stream_new(d, &r->stream, e)) return -1;
    if (d->event_new(d, &r->event, e)) return -1;
    if (d->event_before(d, after, r->stream, e)) return -1;
    return 0;
}

void kvc_room_free(struct kvc_encode_room *r) {
    struct kvc_device *d = r->device;
    struct kvc_error ignored;
    /* after a failure, copies may still be under way */
    if (r->event && !d->event_record(d, r->event, r->stream, &ignored))
        d->event_wait(d, r->event, &ignored);
    for (unsigned i = 0; i < KVC_ROOM_HOSTS; i++) d->free_host(d, r->host[i].p);
    d->free(d, r->memory.p);
    if (r->event) d->event_free(d, r->event);
    if (r->stream) d->stream_free(d, r->stream);
}

size_t kvc_room_take(size_t *used, size_t n) {
    const size_t at = *used;
    *used += (n + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

int kvc_room_reserve(struct kvc_encode_room *r, size_t n, struct kvc_error *e) {
    struct kvc_device *d = r->device;
    void *p = NULL;
    if (n <= r->memory.size) return 0;
    d->free(d, r->memory.p);
    r->memory = (struct kvc_room_buffer){.size = 0};
    if (d->alloc(d, n, &p, e)) return -1;
    r->memory = (struct kvc_room_buffer){p, n};
    return 0;
}

int kvc_room_reserve_host(struct kvc_encode_room *r, enum kvc_room_host which, size_t n,
                          struct kvc_error *e) {
    struct kvc_device *d = r->device;
    struct kvc_room_buffer *b = &r->host[which];
    void *p = NULL;
    if (n <= b->size) return 0;
    d->free_host(d, b->p);
    *b = (struct kvc_room_buffer){.size = 0};
    if (d->alloc_host(d, n, &p, e)) return -1;
    *b = (struct kvc_room_buffer){p, n};
    return 0;
}

int kvc_room_send(struct kvc_encode_room *r, size_t to, enum kvc_room_host which, size_t from,
                  size_t n, struct kvc_error *e) {
    return r->device->copy_in(r->device, r->stream, r->memory.p + to, r->host[which].p + from, n,
                              e);
}

int kvc_room_fetch(struct kvc_encode_room *r, enum kvc_room_host which, size_t to, size_t from,
                   size_t n, struct kvc_error *e) {
    return n ? r->device->copy_out(r->device, r->stream, r->host[which].p + to, r->memory.p + from,
                                   n, e)
             : 0;
}

int kvc_room_wait(struct kvc_encode_room *r, struct kvc_error *e) {
    if (r->device->event_record(r->device, r->event, r->stream, e)) return -1;
    if (r->device->event_wait(r->device, r->event, e)) return -1;
    return 0;
}
