/* encoder_fast.c: encodes blocks by `fast` on a device: a launch for exponents and digests, the
 * choice of widths and biases, and a launch that cuts and packs. Not for the choice itself and for
 * the sections (codecs/stages/fast/fast_cut.h). */
#include "formats/device/encoder_state.h"

#include "codecs/stages/fast/fast_cut.h"
#include "kernels/kernels.h"

#include <string.h>

/* Offsets in the device's memory. Statistics are copied back together, and so are encoded bytes. */
struct offsets {
    size_t launch, digest, count, bias, statistics_end;                  /* of the first launch */
    size_t low[KVC_ENCODE_BLOCKS], plane[KVC_ENCODE_BLOCKS][2], escapes; /* of the second */
    size_t codes[KVC_ENCODE_BLOCKS], used_list, coded_end, list, end;
};

struct fast {
    struct kvc_encode_job *job;
    struct offsets at;
    unsigned mantissa, below;
    uint32_t channels; /* of a row */
};

static size_t values_of(const struct fast *f, uint32_t i) {
    return (size_t)f->job->rows[i] * f->channels;
}

static size_t tiles_of(const struct fast *f, uint32_t i) {
    return (values_of(f, i) + KVC_ENCODE_TILE - 1) / KVC_ENCODE_TILE;
}

/* Lays the memory out, with room for the widest codes and for as many escapes as values. */
static int lay_out(struct fast *f, struct kvc_error *e) {
    const struct kvc_encode_job *j = f->job;
    struct offsets *at = &f->at;
    size_t values = 0, tiles = 0, items = 0, used = 0;
    for (uint32_t i = 0; i < j->n; i++) {
        values += values_of(f, i);
        tiles += tiles_of(f, i);
        items += f->channels / KVC_ENCODE_COLUMNS + 1 + j->rows[i];
    }
    at->launch = kvc_room_take(&used, kvc_encode_launch_bytes(items > tiles ? items : tiles));
    at->digest = kvc_room_take(&used, j->n * sizeof(uint64_t));
    at->count = kvc_room_take(&used, j->n * 256 * sizeof(uint32_t));
    at->bias = kvc_room_take(&used, (size_t)j->n * f->channels * sizeof(uint16_t));
    at->statistics_end = used;
    const size_t host = used;
    for (uint32_t i = 0; i < j->n; i++) {
        at->low[i] = kvc_room_take(&used, values_of(f, i) + 3);
        for (unsigned p = 0; p < f->below; p++)
            at->plane[i][p] = kvc_room_take(&used, values_of(f, i) + 3);
    }
    at->escapes = kvc_room_take(&used, tiles * sizeof(struct kvc_encode_escapes));
    at->used_list = kvc_room_take(&used, sizeof(uint32_t));
    for (uint32_t i = 0; i < j->n; i++)
        at->codes[i] = kvc_room_take(&used, KVC_PACKED(values_of(f, i), KVC_FAST_WIDTH_MAX));
    at->coded_end = used;
    at->list = kvc_room_take(&used, values * sizeof(uint32_t));
    at->end = used;
    if (kvc_room_reserve(j->room, at->end, e)) return -1;
    if (kvc_room_reserve_host(j->room, KVC_ROOM_SMALL, host, e)) return -1;
    if (kvc_room_reserve_host(j->room, KVC_ROOM_CODED, at->coded_end - at->statistics_end, e))
        return -1;
    return 0;
}

static int encoder_fast_measure(struct fast *f, struct kvc_error *e) {
    struct kvc_encode_job *j = f->job;
    struct kvc_encode_room *r = j->room;
    const struct offsets *at = &f->at;
    for (uint32_t i = 0; i < j->n; i++) {
        struct kvc_encode_block *b = &j->block[i];
        b->fast = (struct kvc_encode_fast){
            .bias = kvc_room_at(r, at->bias + (size_t)i * f->channels * sizeof(uint16_t)),
            .count = kvc_room_at(r, at->count + (size_t)i * 256 * sizeof(uint32_t)),
            .mantissa = f->mantissa};
        struct kvc_device_item item = {.kind = KVC_ENCODE_EXPONENTS, .index = i};
        for (; item.column < f->channels; item.column += KVC_ENCODE_COLUMNS) {
            const uint32_t left = f->channels - item.column;
            item.columns = left < KVC_ENCODE_COLUMNS ? left : KVC_ENCODE_COLUMNS;
            if (kvc_encode_items(j, item, 1, 1, e)) return -1;
        }
        if (kvc_encode_digests(j, i, 0, (uint32_t)j->start[i], j->rows[i], j->start[i], 0, e))
            return -1;
    }
    const size_t statistics = at->statistics_end - at->digest;
    if (r->device->zero(r->device, r->stream, r->memory.p + at->digest, statistics, e)) return -1;
    if (kvc_encode_launch(j, at->launch, at->digest, e)) return -1;
    if (kvc_room_fetch(r, KVC_ROOM_SMALL, at->digest, at->digest, statistics, e)) return -1;
    if (kvc_room_wait(r, e)) return -1;
    return 0;
}

/* Chooses widths and biases, and queues the cutting. */
static int cut(struct fast *f, struct kvc_error *e) {
    struct kvc_encode_job *j = f->job;
    struct kvc_encode_room *r = j->room;
    const struct offsets *at = &f->at;
    uint8_t *small = r->host[KVC_ROOM_SMALL].p;
    size_t tile = 0;
    for (uint32_t i = 0; i < j->n; i++) {
        struct kvc_encode_fast *b = &j->block[i].fast;
        const uint32_t *count = (const uint32_t *)(const void *)(small + at->count) +
                                (size_t)i * 256;
        uint16_t *bias = (uint16_t *)(void *)(small + at->bias) + (size_t)i * f->channels;
        b->width = kvc_fast_choose(count, values_of(f, i), f->mantissa, bias, f->channels);
        b->low = kvc_room_at(r, at->low[i]);
        for (unsigned p = 0; p < f->below; p++) b->plane[p] = kvc_room_at(r, at->plane[i][p]);
        b->codes = kvc_room_at(r, at->codes[i]);
        b->escapes = kvc_room_at(r, at->escapes + tile * sizeof(struct kvc_encode_escapes));
        b->list = kvc_room_at(r, at->list);
        b->list_used = kvc_room_at(r, at->used_list);
        if (kvc_encode_items(j, (struct kvc_device_item){.kind = KVC_ENCODE_FAST, .index = i},
                             (uint32_t)tiles_of(f, i), 1, e))
            return -1;
        tile += tiles_of(f, i);
    }
    if (kvc_room_send(r, at->bias, KVC_ROOM_SMALL, at->bias,
                      (size_t)j->n * f->channels * sizeof(uint16_t), e))
        return -1;
    if (r->device->zero(r->device, r->stream, r->memory.p + at->used_list, sizeof(uint32_t), e))
        return -1;
    if (kvc_encode_launch(j, at->launch, at->digest, e)) return -1;
    return 0;
}

/* Returns the encoded bytes at an offset in the device's memory. */
static const uint8_t *coded(const struct fast *f, size_t offset) {
    return f->job->room->host[KVC_ROOM_CODED].p + (offset - f->at.statistics_end);
}

/* Copies the encoded bytes back: the codes at their width, and as many escapes as there are. */
static int fetch(struct fast *f, uint32_t *escapes, struct kvc_error *e) {
    const struct kvc_encode_job *j = f->job;
    struct kvc_encode_room *r = j->room;
    const struct offsets *at = &f->at;
    const size_t from = at->statistics_end;
    if (kvc_room_fetch(r, KVC_ROOM_CODED, 0, from, at->codes[0] - from, e)) return -1;
    for (uint32_t i = 0; i < j->n; i++)
        if (kvc_room_fetch(r, KVC_ROOM_CODED, at->codes[i] - from, at->codes[i],
                           KVC_PACKED(values_of(f, i), j->block[i].fast.width), e))
            return -1;
    if (kvc_room_wait(r, e)) return -1;
    memcpy(escapes, coded(f, at->used_list), sizeof *escapes);
    const size_t bytes = *escapes * sizeof(uint32_t);
    if (bytes && (kvc_room_reserve_host(r, KVC_ROOM_LIST, bytes, e) ||
                  kvc_room_fetch(r, KVC_ROOM_LIST, 0, at->list, bytes, e) || kvc_room_wait(r, e)))
        return -1;
    return 0;
}

static int add_sections(const struct fast *f, struct kvc_error *e) {
    const struct kvc_encode_job *j = f->job;
    const struct offsets *at = &f->at;
    const uint8_t *small = j->room->host[KVC_ROOM_SMALL].p;
    const struct kvc_encode_escapes *escapes = (const void *)coded(f, at->escapes);
    for (uint32_t i = 0; i < j->n; i++) {
        struct kvc_shape shape = j->shape;
        struct kvc_fast_cut cut = {.width = j->block[i].fast.width,
                                   .bias = (const uint16_t *)(const void *)(small + at->bias) +
                                           (size_t)i * f->channels,
                                   .low = coded(f, at->low[i]),
                                   .codes = coded(f, at->codes[i]),
                                   .escapes = escapes,
                                   .list = (const void *)j->room->host[KVC_ROOM_LIST].p};
        shape.tokens = j->rows[i];
        for (unsigned p = 0; p < f->below; p++) cut.plane[p] = coded(f, at->plane[i][p]);
        const int status = kvc_fast_add_cut(&shape, &cut, 0, &j->to[i].list, e);
        if (status < 0) return -1;
        j->to[i].done = !status;
        memcpy(&j->to[i].digest, small + at->digest + i * sizeof(uint64_t), sizeof(uint64_t));
        escapes += tiles_of(f, i);
    }
    return 0;
}

int kvc_encode_by_fast(struct kvc_encode_job *j, struct kvc_error *e) {
    struct fast f = {.job = j, .channels = (uint32_t)(j->shape.heads * j->shape.dim)};
    uint32_t escapes;
    f.mantissa = kvc_fast_mantissa(j->shape.dtype, &f.below);
    if (!f.mantissa) return 0; /* stored as they are: by the CPU */
    if (lay_out(&f, e)) return -1;
    if (encoder_fast_measure(&f, e)) return -1;
    if (cut(&f, e)) return -1;
    if (fetch(&f, &escapes, e)) return -1;
    if (add_sections(&f, e)) return -1;
    return 0;
}
