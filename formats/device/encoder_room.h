/* encoder_room.h: memory and a stream for the encoding of one run of blocks at a time on a device.
 * Not for what is encoded (encoder_state.h). */
#ifndef KVC_ENCODER_ROOM_H
#define KVC_ENCODER_ROOM_H

#include "formats/device/device.h"
#include "kernels/device/encode_launch.h"

/* Buffers of the host: what is copied to the device and statistics from there; encoded bytes; lists
 * of escapes. */
enum kvc_room_host { KVC_ROOM_SMALL, KVC_ROOM_CODED, KVC_ROOM_LIST, KVC_ROOM_HOSTS };

struct kvc_encode_room {
    struct kvc_device *device;
    void *stream, *event;
    struct kvc_room_buffer {
        uint8_t *p;
        size_t size;
    } memory, host[KVC_ROOM_HOSTS]; /* of the device; pinned */
    struct kvc_encode_room *next;   /* in the list of rooms that are not in use */
};

/* `after`: an event that the room's stream waits for. Call kvc_room_free() also after a failure. */
int kvc_room_init(struct kvc_encode_room *r, struct kvc_device *d, void *after,
                  struct kvc_error *e);
void kvc_room_free(struct kvc_encode_room *r);

/* Takes n bytes of a buffer that is not yet allocated: returns their offset, a multiple of 256, and
 * adds them to *used. */
size_t kvc_room_take(size_t *used, size_t n);
/* Allocates at least n bytes of the device's memory, or of a buffer of the host. What these held is
 * lost. */
int kvc_room_reserve(struct kvc_encode_room *r, size_t n, struct kvc_error *e);
int kvc_room_reserve_host(struct kvc_encode_room *r, enum kvc_room_host which, size_t n,
                          struct kvc_error *e);

/* Returns the address of a byte of the device's memory. */
static inline uint64_t kvc_room_at(const struct kvc_encode_room *r, size_t offset) {
    return (uint64_t)(uintptr_t)r->memory.p + offset;
}

/* Queue a copy of n bytes from a buffer of the host to the device, or back; the third function
 * waits for all that is queued. */
int kvc_room_send(struct kvc_encode_room *r, size_t to, enum kvc_room_host which, size_t from,
                  size_t n, struct kvc_error *e);
int kvc_room_fetch(struct kvc_encode_room *r, enum kvc_room_host which, size_t to, size_t from,
                   size_t n, struct kvc_error *e);
int kvc_room_wait(struct kvc_encode_room *r, struct kvc_error *e);

#endif
