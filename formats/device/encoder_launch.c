/* encoder_launch.c: the queue of a launch of the device encoder. */
#include "formats/device/encoder_state.h"

#include "codecs/memory.h"

#include <string.h>

enum { DIGEST_ROWS = 32, GATHERED_ROWS = 8 }; /* of an item: one lane a row of a digest */

int kvc_encode_items(struct kvc_encode_job *j, struct kvc_device_item like, uint32_t rows,
                     uint32_t each, struct kvc_error *e) {
    const size_t n = j->n_items + (rows + each - 1) / each;
    if (n > j->item_room) {
        struct kvc_device_item *grown = kvc_realloc(j->item, 2 * n, sizeof *grown);
        if (!grown) return kvc_fail_memory(e, "items of a launch");
        j->item = grown;
        j->item_room = 2 * n;
    }
    for (uint32_t at = 0; at < rows; at += each, like.first += each, like.seed += each) {
        like.rows = rows - at < each ? rows - at : each;
        j->item[j->n_items++] = like;
    }
    return 0;
}

int kvc_encode_digests(struct kvc_encode_job *j, uint32_t index, uint32_t target, uint32_t first,
                       uint32_t rows, uint64_t seed, uint32_t level, struct kvc_error *e) {
    const struct kvc_device_item like = {.kind = KVC_ENCODE_DIGEST,
                                         .index = index,
                                         .head = target,
                                         .first = first,
                                         .seed = (uint32_t)seed,
                                         .level = level};
    return kvc_encode_items(j, like, rows, DIGEST_ROWS, e);
}

int kvc_encode_gathers(struct kvc_encode_job *j, uint32_t index, uint32_t first, uint32_t end,
                       struct kvc_error *e) {
    const struct kvc_device_item like = {.kind = KVC_ENCODE_GATHER, .index = index, .first = first};
    return kvc_encode_items(j, like, end - first, GATHERED_ROWS, e);
}

/* Offsets of the parts of a launch. */
struct parts {
    /* sent: bytes that are copied; then the counters, which begin at 0 */
    size_t need, block, target, item, sent, counter, end;
};

static struct parts parts_of(size_t items) {
    struct parts p;
    size_t used = 0;
    p.need = kvc_room_take(&used, (1 + KVC_ENCODE_LEVELS) * sizeof(uint32_t));
    p.block = kvc_room_take(&used, KVC_ENCODE_BLOCKS * sizeof(struct kvc_encode_block));
    p.target = kvc_room_take(&used, KVC_ENCODE_TARGETS * sizeof(struct kvc_device_target));
    p.item = kvc_room_take(&used, items * sizeof(struct kvc_device_item));
    p.sent = used;
    p.counter = kvc_room_take(&used, (1 + KVC_ENCODE_LEVELS) * sizeof(uint32_t));
    p.end = used;
    return p;
}

size_t kvc_encode_launch_bytes(size_t items) {
    return parts_of(items).end;
}

int kvc_encode_launch(struct kvc_encode_job *j, size_t at, size_t digest, struct kvc_error *e) {
    struct kvc_encode_room *r = j->room;
    struct kvc_device *d = r->device;
    const struct parts p = parts_of(j->n_items);
    uint8_t *host = r->host[KVC_ROOM_SMALL].p + at;
    uint32_t need[1 + KVC_ENCODE_LEVELS] = {0};
    for (size_t i = 0; i < j->n_items; i++)
        if (j->item[i].level + 1 < KVC_ENCODE_LEVELS) need[j->item[i].level + 1]++;
    memcpy(host + p.need, need, sizeof need);
    memcpy(host + p.block, j->block, sizeof j->block);
    memcpy(host + p.target, j->target, sizeof j->target);
    memcpy(host + p.item, j->item, j->n_items * sizeof *j->item);
    uint8_t *const memory = r->memory.p;
    const struct kvc_device_launch launch = {.item = (const void *)(memory + at + p.item),
                                             .target = (const void *)(memory + at + p.target),
                                             .block = (const void *)(memory + at + p.block),
                                             .need = (const void *)(memory + at + p.need),
                                             .counter = (void *)(memory + at + p.counter),
                                             .digest = (void *)(memory + digest),
                                             .n_items = (uint32_t)j->n_items};
    j->n_items = 0;
    if (kvc_room_send(r, at, KVC_ROOM_SMALL, at, p.sent, e)) return -1;
    if (d->zero(d, r->stream, memory + at + p.counter, p.end - p.counter, e)) return -1;
    if (d->encode(d, r->stream, &launch, j->multiprocessors, e)) return -1;
    return 0;
}
