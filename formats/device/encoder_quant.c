/* encoder_quant.c: encodes blocks by `quant`, alone or after `tail`, on a device: a launch for
 * ranges, the parameters, and a launch that quantises, packs and decodes again for the digest. The
 * rows that `tail` keeps are coded by the host. Not for the parameters
 * (codecs/stages/quant/quant_params.h). */
#include "formats/device/encoder_state.h"

#include "codecs/planes.h"
#include "codecs/stages/ends/ends.h"
#include "codecs/stages/quant/quant_params.h"
#include "formats/container/plan.h"
#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

enum { GROUPS = 32 }; /* of an item: one lane a group */

/* A block: its groups, and where its parts lie in the device's memory. */
struct quantised {
    struct kvc_quant_layout layout;
    int has_layout, beyond;
    uint32_t own, kept; /* rows that are quantised, and the rows after them that `tail` keeps */
    size_t low, high, rows, step, inverse, codes, decoded;
};

struct quant {
    struct kvc_encode_job *job;
    struct quantised block[KVC_ENCODE_BLOCKS];
    const struct kvc_stage_args *tail, *args;
    uint8_t tail_step, step; /* places of the stages in the pipeline */
    size_t row_bytes, launch, digest, beyond, high, low, step_begin, codes, codes_end, end;
};

int kvc_encode_takes_quant(const struct kvc_pipeline *p) {
    unsigned i = 0;
    if (i < p->n && p->step[i].stage == &kvc_stage_tail) i++;
    if (i < p->n && p->step[i].stage == &kvc_stage_finite) i++;
    if (i + 1 != p->n || p->step[i].stage != &kvc_stage_quant) return 0;
    return !p->step[i].args.i[KVC_QUANT_CLIP] && !kvc_quant_is_normed(&p->step[i].args);
}

static const struct kvc_quant_class *class_of(const struct quantised *b) {
    return &b->layout.class[0];
}

/* Returns the bytes of a number a group. */
static size_t floats_of(const struct quantised *b) {
    return b->has_layout ? class_of(b)->params * sizeof(float) : 0;
}

/* Divides the rows of each block between `tail` and `quant`, and makes the groups. */
static int divide(struct quant *q, struct kvc_error *e) {
    const struct kvc_encode_job *j = q->job;
    const struct kvc_encoding *x = j->work->encoding;
    const uint64_t first = q->tail ? kvc_tail_first(q->tail, x->rows, x->position) : UINT64_MAX;
    for (uint32_t i = 0; i < j->n; i++) {
        struct quantised *b = &q->block[i];
        b->own = first >= j->start[i] + j->rows[i] ? j->rows[i]
                 : first > j->start[i]             ? (uint32_t)(first - j->start[i])
                                                   : 0;
        b->kept = j->rows[i] - b->own;
        struct kvc_block like = {.shape = j->shape,
                                 .role = kvc_plan_select(&j->work->cache->tensor[j->work->tensor])};
        like.shape.tokens = b->own;
        if (!b->own) continue;
        if (kvc_quant_layout_init(&b->layout, q->args, &like, e)) return -1;
        b->has_layout = 1;
    }
    return 0;
}

/* Lays the device's memory out: statistics that are copied back, parameters that are copied to the
 * device, codes, decoded rows. */
static int lay_out(struct quant *q, struct kvc_error *e) {
    const struct kvc_encode_job *j = q->job;
    const size_t row = q->row_bytes;
    size_t items = 0, used = 0;
    for (uint32_t i = 0; i < j->n; i++) {
        const struct quantised *b = &q->block[i];
        items += 2 * (size_t)j->rows[i] + (b->own * row + KVC_ENCODE_TILE - 1) / KVC_ENCODE_TILE +
                 1;
        if (b->has_layout) items += class_of(b)->params / GROUPS + 1;
    }
    q->launch = kvc_room_take(&used, kvc_encode_launch_bytes(items));
    q->digest = kvc_room_take(&used, j->n * sizeof(uint64_t));
    q->beyond = kvc_room_take(&used, j->n * sizeof(uint32_t));
    q->high = used;
    for (uint32_t i = 0; i < j->n; i++) {
        q->block[i].high = kvc_room_take(&used, floats_of(&q->block[i]));
        q->block[i].rows = kvc_room_take(&used, q->block[i].kept * row);
    }
    q->low = used; /* from here on, up to the steps, in both directions */
    for (uint32_t i = 0; i < j->n; i++)
        q->block[i].low = kvc_room_take(&used, floats_of(&q->block[i]));
    q->step_begin = used;
    for (uint32_t i = 0; i < j->n; i++) {
        q->block[i].step = kvc_room_take(&used, floats_of(&q->block[i]));
        q->block[i].inverse = kvc_room_take(&used, floats_of(&q->block[i]));
    }
    q->codes = used;
    for (uint32_t i = 0; i < j->n; i++)
        if (q->block[i].has_layout)
            q->block[i].codes = kvc_room_take(&used, KVC_PACKED(class_of(&q->block[i])->codes,
                                                                class_of(&q->block[i])->bits));
    q->codes_end = used;
    for (uint32_t i = 0; i < j->n; i++)
        q->block[i].decoded = kvc_room_take(&used, q->block[i].own * row);
    q->end = used;
    if (kvc_room_reserve(j->room, q->end, e)) return -1;
    if (kvc_room_reserve_host(j->room, KVC_ROOM_SMALL, q->codes, e)) return -1;
    if (kvc_room_reserve_host(j->room, KVC_ROOM_CODED, q->codes_end - q->codes, e)) return -1;
    return 0;
}

/* --- the first launch --- */

static int add_ranges(struct quant *q, uint32_t i, struct kvc_error *e) {
    struct kvc_encode_job *j = q->job;
    const struct quantised *b = &q->block[i];
    const struct kvc_quant_layout *l = &b->layout;
    if (!b->has_layout) return 0;
    j->block[i].rows = b->own;
    j->block[i].quant =
        (struct kvc_encode_quant){.low = kvc_room_at(j->room, b->low),
                                  .high = kvc_room_at(j->room, b->high),
                                  .beyond = kvc_room_at(j->room, q->beyond + i * sizeof(uint32_t)),
                                  .bits = class_of(b)->bits,
                                  .axis = l->axis,
                                  .group = (uint32_t)l->group,
                                  .by_head = class_of(b)->n_spans > 1};
    return kvc_encode_items(j, (struct kvc_device_item){.kind = KVC_ENCODE_RANGES, .index = i},
                            (uint32_t)class_of(b)->params, GROUPS, e);
}

/* Copies the rows that `tail` keeps, and adds their digest. */
static int add_kept(struct quant *q, uint32_t i, struct kvc_error *e) {
    struct kvc_encode_job *j = q->job;
    const struct quantised *b = &q->block[i];
    /* the device counts rows of the block */
    j->block[i].gathered = kvc_room_at(j->room, b->rows) - b->own * q->row_bytes;
    if (kvc_encode_gathers(j, i, b->own, j->rows[i], e)) return -1;
    const uint64_t first = j->start[i] + b->own;
    return kvc_encode_digests(j, i, 0, (uint32_t)first, b->kept, first, 0, e);
}

static int encoder_quant_measure(struct quant *q, struct kvc_error *e) {
    struct kvc_encode_job *j = q->job;
    struct kvc_encode_room *r = j->room;
    for (uint32_t i = 0; i < j->n; i++)
        if (add_ranges(q, i, e) || add_kept(q, i, e)) return -1;
    const size_t bytes = q->step_begin - q->digest;
    if (r->device->zero(r->device, r->stream, r->memory.p + q->digest, q->high - q->digest, e))
        return -1;
    if (kvc_encode_launch(j, q->launch, q->digest, e)) return -1;
    if (kvc_room_fetch(r, KVC_ROOM_SMALL, q->digest, q->digest, bytes, e)) return -1;
    if (kvc_room_wait(r, e)) return -1;
    return 0;
}

/* --- parameters --- */

/* Codes the rows that `tail` keeps, as the stage does in a block. */
static int code_kept(struct quant *q, uint32_t i, struct kvc_error *e) {
    const struct kvc_encode_job *j = q->job;
    const struct quantised *b = &q->block[i];
    uint64_t row[KVC_BLOCK];
    struct kvc_block block = {.shape = j->shape,
                              .own = j->shape.dtype,
                              .rows = j->room->host[KVC_ROOM_SMALL].p + b->rows,
                              .row = row,
                              .encoding = j->work->encoding};
    block.shape.tokens = b->kept;
    if (!b->kept) return 0;
    for (uint32_t t = 0; t < b->kept; t++) row[t] = j->start[i] + b->own + t;
    return kvc_stage_tail.encode(q->tail, NULL, &block, q->tail_step, &j->to[i].list, e);
}

/* Makes the parameters of the ranges, and puts them where they are copied from. */
static int encoder_quant_choose(struct quant *q, uint32_t i, struct kvc_error *e) {
    const struct kvc_encode_job *j = q->job;
    const struct quantised *b = &q->block[i];
    const struct kvc_quant_layout *l = &b->layout;
    uint8_t *host = j->room->host[KVC_ROOM_SMALL].p;
    const size_t bytes = floats_of(b);
    memcpy(l->low, host + b->low, bytes);
    memcpy(l->high, host + b->high, bytes);
    if (kvc_quant_add_params(l, class_of(b), 0, q->step, 0, &j->to[i].list, e)) return -1;
    memcpy(host + b->low, l->low, bytes);
    memcpy(host + b->step, l->step, bytes);
    memcpy(host + b->inverse, l->inverse, bytes);
    return 0;
}

/* --- the second launch --- */

/* Queues a block's quantising, and the digest of its rows as they are decoded. */
static int add_codes(struct quant *q, uint32_t i, struct kvc_error *e) {
    struct kvc_encode_job *j = q->job;
    const struct quantised *b = &q->block[i];
    const struct kvc_device_target *source = &j->target[0];
    struct kvc_encode_quant *to = &j->block[i].quant;
    const uint32_t target = j->n_targets++;
    to->step = kvc_room_at(j->room, b->step);
    to->inverse = kvc_room_at(j->room, b->inverse);
    to->codes = kvc_room_at(j->room, b->codes);
    to->decoded = kvc_room_at(j->room, b->decoded);
    const size_t tiles = (class_of(b)->codes + KVC_ENCODE_TILE - 1) / KVC_ENCODE_TILE;
    if (kvc_encode_items(j, (struct kvc_device_item){.kind = KVC_ENCODE_QUANT, .index = i},
                         (uint32_t)tiles, 1, e))
        return -1;
    const int64_t size = kvc_dtype_info(j->shape.dtype)->size;
    j->target[target] = (struct kvc_device_target){.base = to->decoded,
                                                   .pages = b->own,
                                                   .page = (int64_t)q->row_bytes,
                                                   .head = size * source->channels,
                                                   .dim = size,
                                                   .page_size = 1,
                                                   .dtype = source->dtype,
                                                   .from = source->from,
                                                   .heads = source->heads,
                                                   .channels = source->channels};
    return 0;
}

static int quantise(struct quant *q, struct kvc_error *e) {
    struct kvc_encode_job *j = q->job;
    struct kvc_encode_room *r = j->room;
    const uint8_t *host = r->host[KVC_ROOM_SMALL].p;
    for (uint32_t i = 0; i < j->n; i++) {
        struct quantised *b = &q->block[i];
        uint32_t beyond;
        memcpy(&beyond, host + q->beyond + i * sizeof beyond, sizeof beyond);
        b->beyond = beyond != 0;
        if (b->beyond) continue;
        if (code_kept(q, i, e) ||
            (b->has_layout && (encoder_quant_choose(q, i, e) || add_codes(q, i, e))))
            return -1;
    }
    for (uint32_t i = 0, target = 1; i < j->n; i++) { /* digests wait for all codes */
        const struct quantised *b = &q->block[i];
        if (b->has_layout && !b->beyond &&
            kvc_encode_digests(j, i, target++, 0, b->own, j->start[i], 1, e))
            return -1;
    }
    if (kvc_room_send(r, q->low, KVC_ROOM_SMALL, q->low, q->codes - q->low, e)) return -1;
    if (kvc_encode_launch(j, q->launch, q->digest, e)) return -1;
    if (kvc_room_fetch(r, KVC_ROOM_SMALL, q->digest, q->digest, j->n * sizeof(uint64_t), e))
        return -1;
    if (kvc_room_fetch(r, KVC_ROOM_CODED, 0, q->codes, q->codes_end - q->codes, e)) return -1;
    if (kvc_room_wait(r, e)) return -1;
    return 0;
}

static int encoder_quant_finish(struct quant *q, uint64_t *raw, struct kvc_error *e) {
    const struct kvc_encode_job *j = q->job;
    for (uint32_t i = 0; i < j->n; i++) {
        const struct quantised *b = &q->block[i];
        if (b->beyond) continue; /* the host reads all of its rows */
        *raw += b->kept * q->row_bytes;
        if (b->has_layout &&
            kvc_sections_add(&j->to[i].list, KVC_SECTION_CODES, q->step, 0,
                             j->room->host[KVC_ROOM_CODED].p + (b->codes - q->codes),
                             kvc_packed_bytes(class_of(b)->codes, class_of(b)->bits), 0, e))
            return -1;
        memcpy(&j->to[i].digest, j->room->host[KVC_ROOM_SMALL].p + q->digest + i * sizeof(uint64_t),
               sizeof(uint64_t));
        j->to[i].done = 1;
    }
    return 0;
}

int kvc_encode_by_quant(struct kvc_encode_job *j, uint64_t *raw, struct kvc_error *e) {
    const struct kvc_pipeline *p = j->work->pipeline;
    struct quant q = {.job = j,
                      .step = (uint8_t)(p->n - 1),
                      .row_bytes = (size_t)kvc_row_bytes(&j->shape)};
    q.args = &p->step[q.step].args;
    for (unsigned i = 0; i < p->n; i++)
        if (p->step[i].stage == &kvc_stage_tail) {
            q.tail = &p->step[i].args;
            q.tail_step = (uint8_t)i;
        }
    const int status = divide(&q, e) || lay_out(&q, e) || encoder_quant_measure(&q, e) ||
                       quantise(&q, e) || encoder_quant_finish(&q, raw, e);
    for (uint32_t i = 0; i < j->n; i++)
        if (q.block[i].has_layout) kvc_quant_layout_free(&q.block[i].layout);
    return status ? -1 : 0;
}
