/* encoder.c: the coder of blocks of a device: which pipelines it takes, and its rooms. */
#include "formats/device/encoder.h"

#include "codecs/dtype.h"
#include "codecs/memory.h"
#include "formats/device/encoder_state.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CHANNELS = 1 << 16 };

struct kvc_device_encoder {
    struct kvc_device *device;
    const struct kvc_device_target *source;
    struct kvc_device_encoder_options options;
    struct kvc_block_coder coder;
    void *ready;          /* event: the caller's work before */
    pthread_mutex_t lock; /* of the two below */
    struct kvc_encode_room *idle;
    uint64_t raw;
};

/* --- rooms --- */

static struct kvc_encode_room *take_room(struct kvc_device_encoder *x, struct kvc_error *e) {
    pthread_mutex_lock(&x->lock);
    struct kvc_encode_room *r = x->idle;
    if (r) x->idle = r->next;
    pthread_mutex_unlock(&x->lock);
    if (r) return r;
    if (!(r = malloc(sizeof *r))) {
        kvc_fail_memory(e, "a run of blocks");
        return NULL;
    }
    if (!kvc_room_init(r, x->device, x->ready, e)) return r;
    kvc_room_free(r);
    free(r);
    return NULL;
}

static void give_room(struct kvc_device_encoder *x, struct kvc_encode_room *r) {
    pthread_mutex_lock(&x->lock);
    r->next = x->idle;
    x->idle = r;
    pthread_mutex_unlock(&x->lock);
}

/* --- runs of blocks --- */

/* Returns 1 if four channels can be loaded together everywhere. */
static uint32_t in_fours(const struct kvc_device_target *g) {
    const uint64_t size = kvc_dtype_info((enum kvc_dtype)g->dtype)->size;
    return size > 1 && g->dim == (int64_t)size && g->channels % 4 == 0 &&
           (g->base | (uint64_t)(g->page | g->token | g->head)) % (4 * size) == 0;
}

static void encoder_describe(struct kvc_encode_job *j, const struct kvc_device_encoder *x,
                             const struct kvc_coder_work *w) {
    const struct kvc_cells *cells = kvc_tensor_cells(w->cache, w->tensor);
    j->shape = w->cache->tensor[w->tensor].shape;
    j->n = (uint32_t)(w->end - w->block);
    j->target[0] = x->source[w->tensor];
    j->n_targets = 1;
    for (uint32_t i = 0; i < j->n; i++) {
        j->start[i] = cells->block[w->block + i];
        j->rows[i] = (uint32_t)(cells->block[w->block + i + 1] - j->start[i]);
        j->block[i] = (struct kvc_encode_block){.first = (uint32_t)j->start[i],
                                                .rows = j->rows[i],
                                                .channels = (uint32_t)(j->shape.heads *
                                                                       j->shape.dim),
                                                .fours = in_fours(&j->target[0])};
    }
}

static int is_fast(const struct kvc_pipeline *p) {
    return p->n == 1 && p->step[0].stage == &kvc_stage_fast;
}

static void count_raw(struct kvc_device_encoder *x, uint64_t bytes) {
    pthread_mutex_lock(&x->lock);
    x->raw += bytes;
    pthread_mutex_unlock(&x->lock);
}

static int encode(void *state, const struct kvc_coder_work *work, struct kvc_coder_block *to,
                  struct kvc_error *e) {
    struct kvc_device_encoder *x = state;
    struct kvc_encode_job *j = calloc(1, sizeof *j);
    if (!j) return kvc_fail_memory(e, "a run of blocks");
    j->multiprocessors = x->options.multiprocessors;
    j->work = work;
    j->to = to;
    encoder_describe(j, x, work);
    uint64_t raw = 0;
    int status = (j->room = take_room(x, e)) ? 0 : -1;
    if (!status)
        status = is_fast(work->pipeline) ? kvc_encode_by_fast(j, e)
                                         : kvc_encode_by_quant(j, &raw, e);
    if (j->room) give_room(x, j->room);
    count_raw(x, raw);
    free(j->item);
    free(j);
    return status;
}

/* --- rows that the host codes --- */

static int encoder_gather(struct kvc_encode_job *j, uint8_t *dst, struct kvc_error *e) {
    struct kvc_encode_room *r = j->room;
    const size_t bytes = j->rows[0] * (size_t)kvc_row_bytes(&j->shape);
    size_t used = 0;
    const size_t launch = kvc_room_take(&used, kvc_encode_launch_bytes(j->rows[0])),
                 rows = kvc_room_take(&used, bytes);
    if (kvc_room_reserve(r, used, e) || kvc_room_reserve_host(r, KVC_ROOM_SMALL, rows, e) ||
        kvc_room_reserve_host(r, KVC_ROOM_CODED, bytes, e))
        return -1;
    j->block[0].gathered = kvc_room_at(r, rows);
    if (kvc_encode_gathers(j, 0, 0, j->rows[0], e) || kvc_encode_launch(j, launch, rows, e) ||
        kvc_room_fetch(r, KVC_ROOM_CODED, 0, rows, bytes, e) || kvc_room_wait(r, e))
        return -1;
    memcpy(dst, r->host[KVC_ROOM_CODED].p, bytes);
    return 0;
}

int kvc_device_encoder_read(void *state, uint32_t tensor, uint64_t first, uint64_t n, uint8_t *dst,
                            struct kvc_error *e) {
    struct kvc_device_encoder *x = state;
    const struct kvc_device_target *g = &x->source[tensor];
    struct kvc_encode_job *j = calloc(1, sizeof *j);
    if (!j) return kvc_fail_memory(e, "rows");
    j->multiprocessors = x->options.multiprocessors;
    j->shape = (struct kvc_shape){(enum kvc_dtype)g->dtype, n, g->heads, g->channels};
    j->n = 1;
    j->target[0] = *g;
    const size_t bytes = (size_t)kvc_row_bytes(&j->shape);
    int status = (j->room = take_room(x, e)) ? 0 : -1;
    for (uint64_t done = 0; done < n && !status; done += j->rows[0]) {
        j->rows[0] = n - done < KVC_BLOCK ? (uint32_t)(n - done) : KVC_BLOCK;
        j->block[0] = (struct kvc_encode_block){.first = (uint32_t)(first + done),
                                                .rows = j->rows[0],
                                                .channels = g->heads * g->channels};
        status = encoder_gather(j, dst + done * bytes, e);
    }
    if (j->room) give_room(x, j->room);
    count_raw(x, n * bytes);
    free(j->item);
    free(j);
    return status;
}

uint64_t kvc_device_encoder_raw(const struct kvc_device_encoder *x) {
    return x->raw;
}

/* --- pipelines --- */

static int accept(void *state, const struct kvc_cache *c, uint32_t tensor,
                  const struct kvc_pipeline *p, struct kvc_error *e) {
    const struct kvc_shape *s = &c->tensor[tensor].shape;
    char text[KVC_MAX_RECIPE_TEXT];
    (void)state;
    if (s->heads * s->dim > MOST_CHANNELS)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "a row has %" PRIu64 " channels, and a device encodes %d at most",
                        s->heads * s->dim, MOST_CHANNELS);
    if (is_fast(p) || kvc_encode_takes_quant(p)) return 0;
    if (kvc_pipeline_print(p, text, sizeof text))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "the pipeline is too long");
    return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                    "no device encodes '%s': use fast, kivi2, kivi4, kcvt4 or quant without zip "
                    "and clip, or pack in memory of the host",
                    text);
}

const struct kvc_block_coder *kvc_device_encoder_coder(struct kvc_device_encoder *x) {
    return &x->coder;
}

struct kvc_device_encoder *kvc_device_encoder_new(struct kvc_device *d,
                                                  const struct kvc_device_target *source,
                                                  const struct kvc_device_encoder_options *options,
                                                  struct kvc_error *e) {
    struct kvc_device_encoder *x = calloc(1, sizeof *x);
    if (!x || pthread_mutex_init(&x->lock, NULL)) {
        free(x);
        kvc_fail_memory(e, "an encoder");
        return NULL;
    }
    x->device = d;
    x->source = source;
    x->options = *options;
    x->coder = (struct kvc_block_coder){.state = x, .accept = accept, .encode = encode};
    if (!d->event_new(d, &x->ready, e) && !d->event_record(d, x->ready, options->stream, e))
        return x;
    kvc_device_encoder_free(x);
    return NULL;
}

void kvc_device_encoder_free(struct kvc_device_encoder *x) {
    if (!x) return;
    for (struct kvc_encode_room *r = x->idle, *next; r; r = next) {
        next = r->next;
        kvc_room_free(r);
        free(r);
    }
    if (x->ready) x->device->event_free(x->device, x->ready);
    pthread_mutex_destroy(&x->lock);
    free(x);
}
