/* load_run.c: the memory and the run of a load: pieces of the file are read into a ring of slots,
 * threads make them ready (load_pieces.c), and the device decodes them. Not for choosing the pieces
 * (load_plan.c). */
#include "formats/device/load.h"

#include "codecs/memory.h"
#include "formats/container/device_blocks.h"
#include "formats/device/load_state.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int alloc_device(struct kvc_load *l, size_t n, void **p, struct kvc_error *e) {
    if (l->device->alloc(l->device, n ? n : 1, p, e)) return -1;
    l->info.device_bytes += n;
    return 0;
}

static int alloc_slots(struct kvc_load *l, struct kvc_error *e) {
    struct kvc_device *d = l->device;
    if (!(l->slot = calloc(l->options.slots, sizeof *l->slot)) ||
        !(l->busy = calloc(l->options.slots, sizeof *l->busy)))
        return kvc_fail_memory(e, "slots");
    for (unsigned i = 0; i < l->options.slots; i++) {
        struct kvc_load_slot *s = &l->slot[i];
        void *bytes = NULL;
        /* a device's host memory is aligned as malloc()'s is */
        if (d->alloc_host(d, (size_t)l->options.slot_bytes + KVC_RING_EXTRA + KVC_RING_ALIGN,
                          &bytes, e))
            return -1;
        s->memory = bytes;
        s->bytes = s->memory + (0 - (uintptr_t)bytes) % KVC_RING_ALIGN;
        if (d->event_new(d, &s->copied, e)) return -1;
    }
    return 0;
}

/* Twice as many as slots, because decoding takes longer than copying. */
static int alloc_rooms(struct kvc_load *l, struct kvc_error *e) {
    struct kvc_device *d = l->device;
    const size_t tables = (size_t)l->options.table_bytes;
    const unsigned most = 2 * l->options.slots;
    l->n_rooms = l->n_pieces < most ? (unsigned)l->n_pieces : most;
    if (!l->n_rooms) return 0;
    if (!(l->room = calloc(l->n_rooms, sizeof *l->room))) return kvc_fail_memory(e, "tables");
    for (unsigned i = 0; i < l->n_rooms; i++) {
        struct kvc_load_room *r = &l->room[i];
        void *host = NULL;
        if (d->alloc_host(d, tables, &host, e)) return -1;
        r->tables = host;
        if (alloc_device(l, tables, &r->device_tables, e) || d->event_new(d, &r->done, e))
            return -1;
    }
    return 0;
}

/* Launches wait long for memory and little for each other, so some run at a time, where no launch
 * needs what an earlier one made. */
static int alloc_ways(struct kvc_load *l, struct kvc_error *e) {
    struct kvc_device *d = l->device;
    const uint64_t fit = KVC_LOAD_SCRATCH / l->options.scratch_bytes;
    l->ways = l->predicts || l->options.multiprocessors || !fit ? 1
              : fit < KVC_LOAD_MAX_WAYS                         ? (unsigned)fit
                                                                : KVC_LOAD_MAX_WAYS;
    for (unsigned i = 0; i < l->ways; i++)
        if (d->stream_new(d, &l->way[i].stream, e) ||
            alloc_device(l, (size_t)l->options.scratch_bytes, &l->way[i].scratch, e))
            return -1;
    return 0;
}

static int alloc_all(struct kvc_load *l, struct kvc_error *e) {
    struct kvc_device *d = l->device;
    const struct kvc_load_piece *last = l->n_pieces ? &l->piece[l->n_pieces - 1] : NULL;
    const size_t bytes = last ? (size_t)(last->at + l->range[l->n_pieces - 1].size) : 0,
                 n = l->n_blocks ? l->n_blocks : 1;
    const size_t targets = l->cache->n_tensors * sizeof *l->target;
    void *status = NULL, *digest = NULL;
    if (d->stream_new(d, &l->copies, e) || d->event_new(d, &l->last, e) ||
        d->event_new(d, &l->meet, e))
        return -1;
    if (alloc_device(l, bytes, &l->device_bytes, e) ||
        alloc_device(l, l->kept.used, &l->device_kept, e) ||
        alloc_device(l, targets, &l->device_target, e) ||
        alloc_device(l, n * sizeof *l->status, &l->device_status, e) ||
        alloc_device(l, n * sizeof *l->digest, &l->device_digest, e) ||
        alloc_device(l, (size_t)l->input_bytes, &l->device_inputs, e) || alloc_ways(l, e))
        return -1;
    if (d->alloc_host(d, n * sizeof *l->status, &status, e)) return -1;
    l->status = status;
    if (d->alloc_host(d, n * sizeof *l->digest, &digest, e)) return -1;
    l->digest = digest;
    l->kept.address = (uint64_t)(uintptr_t)l->device_kept;
    if (kvc_device_write(d, l->device_kept, l->kept.bytes, l->kept.used, e) ||
        kvc_device_write(d, l->device_target, l->target, targets, e))
        return -1;
    return alloc_slots(l, e) || alloc_rooms(l, e) ? -1 : 0;
}

struct kvc_load *kvc_load_new(struct kvc_device *d, const struct kvc_cache *c,
                              const struct kvc_input *in, const struct kvc_load_options *options,
                              const struct kvc_device_target *target, struct kvc_error *e) {
    struct kvc_load *l = calloc(1, sizeof *l);
    if (!l) {
        kvc_fail_memory(e, "a plan");
        return NULL;
    }
    l->device = d;
    l->cache = c;
    l->in = in;
    l->options = *options;
    pthread_mutex_init(&l->lock, NULL);
    pthread_mutex_init(&l->taking, NULL);
    pthread_cond_init(&l->turn_came, NULL);
    int status = 0;
    if (!kvc_cache_is_container(c))
        status = kvc_fail(e, KVC_ERR_UNSUPPORTED, "only .kvc files are decoded on a device");
    if (!status && !(l->target = kvc_alloc(c->n_tensors, sizeof *l->target)))
        status = kvc_fail_memory(e, "a plan");
    if (!status && c->n_tensors) memcpy(l->target, target, c->n_tensors * sizeof *l->target);
    if (!status) status = kvc_load_plan(l, e);
    if (!status) status = kvc_load_plan_inputs(l, e);
    if (!status) status = alloc_all(l, e);
    if (!status) return l;
    kvc_load_free(l);
    return NULL;
}

/* Waits for the work that a failure left queued, because its memory may be used anew afterwards,
 * and the caller's stream may be gone. */
static void drain(struct kvc_load *l) {
    struct kvc_device *d = l->device;
    struct kvc_error e; /* the work ends, whether or not it fails */
    if (!l->queued) return;
    for (unsigned i = 0; i < l->ways; i++)
        if (!d->event_record(d, l->last, l->way[i].stream, &e)) d->event_wait(d, l->last, &e);
    if (!d->event_record(d, l->last, l->stream, &e)) d->event_wait(d, l->last, &e);
    if (!d->event_record(d, l->last, l->copies, &e)) d->event_wait(d, l->last, &e);
    l->queued = 0;
}

void kvc_load_free(struct kvc_load *l) {
    if (!l) return;
    struct kvc_device *d = l->device;
    struct kvc_error ignored;
    /* of a run that was not finished; the last event comes after all work */
    if (l->queued) d->event_wait(d, l->last, &ignored);
    for (unsigned i = 0; l->slot && i < l->options.slots; i++) {
        d->free_host(d, l->slot[i].memory);
        if (l->slot[i].copied) d->event_free(d, l->slot[i].copied);
    }
    for (unsigned i = 0; l->room && i < l->n_rooms; i++) {
        d->free_host(d, l->room[i].tables);
        d->free(d, l->room[i].device_tables);
        if (l->room[i].done) d->event_free(d, l->room[i].done);
    }
    for (unsigned i = 0; i < KVC_LOAD_MAX_WAYS; i++) {
        d->free(d, l->way[i].scratch);
        if (l->way[i].stream) d->stream_free(d, l->way[i].stream);
    }
    void *const memory[] = {l->device_bytes,  l->device_kept,   l->device_target,
                            l->device_status, l->device_digest, l->device_inputs};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) d->free(d, memory[i]);
    d->free_host(d, l->status);
    d->free_host(d, l->digest);
    if (l->last) d->event_free(d, l->last);
    if (l->meet) d->event_free(d, l->meet);
    if (l->copies) d->stream_free(d, l->copies);
    kvc_kept_free(&l->kept);
    pthread_mutex_destroy(&l->lock);
    pthread_mutex_destroy(&l->taking);
    pthread_cond_destroy(&l->turn_came);
    free(l->slot);
    free(l->room);
    free(l->busy);
    free(l->block);
    free(l->piece);
    free(l->range);
    free(l->target);
    free(l->inputs);
    free(l);
}

void kvc_load_describe(const struct kvc_load *l, struct kvc_load_info *info) {
    *info = l->info;
}

/* Sets the ring under the lock, because kvc_load_cancel() may use it at the same time. */
static void set_ring(struct kvc_load *l, struct kvc_ring *ring) {
    pthread_mutex_lock(&l->lock);
    l->ring = ring;
    pthread_mutex_unlock(&l->lock);
}

/* Queues zeros for faults and digests, before all launches. */
static int queue_zeros(struct kvc_load *l, void *stream, struct kvc_error *e) {
    struct kvc_device *d = l->device;
    l->queued = 1;
    if (d->zero(d, stream, l->device_status, l->n_blocks * sizeof *l->status, e)) return -1;
    if (d->zero(d, stream, l->device_digest, l->n_blocks * sizeof *l->digest, e)) return -1;
    return 0;
}

/* Queues copies of faults and digests to the host, after all launches. */
static int queue_results(struct kvc_load *l, void *stream, struct kvc_error *e) {
    struct kvc_device *d = l->device;
    for (unsigned i = 0; i < l->ways; i++)
        if (d->event_record(d, l->meet, l->way[i].stream, e) ||
            d->event_before(d, l->meet, stream, e))
            return -1;
    l->loaded = !d->copy_out(d, stream, l->status, l->device_status,
                             l->n_blocks * sizeof *l->status, e) &&
                !d->copy_out(d, stream, l->digest, l->device_digest,
                             l->n_blocks * sizeof *l->digest, e) &&
                !d->event_record(d, l->last, stream, e);
    return l->loaded ? 0 : -1;
}

/* Reads for a ring from an input that is neither in memory nor mapped. */
static ssize_t read_input(void *state, void *to, size_t n, uint64_t offset) {
    if (!kvc_input_read(state, offset, to, n, NULL)) return (ssize_t)n;
    errno = EIO;
    return -1;
}

static int run_all(struct kvc_load *l, void *stream, struct kvc_error *e) {
    struct kvc_device *d = l->device;
    struct kvc_ring_source source = {.fd = -1,
                                     .map = l->in->pages ? NULL : l->in->data,
                                     .size = l->in->size};
    uint8_t *slots[KVC_LOAD_MAX_SLOTS];
    if (l->options.direct)
        source = (struct kvc_ring_source){.fd = l->options.direct_fd,
                                          .size = l->in->size,
                                          .direct = 1};
    else if (l->in->pages) {
        source.read = read_input;
        source.state = (void *)(uintptr_t)l->in;
    }
    for (unsigned i = 0; i < l->options.slots; i++) slots[i] = l->slot[i].bytes;
    for (unsigned i = 0; i < l->n_rooms; i++) l->room[i].launches = 0;
    l->stream = stream;
    l->loaded = l->failed = l->complete = 0;
    l->turn = 0;
    l->first_busy = l->n_busy = 0;
    l->info.on_host = 0;
    if (atomic_load(&l->cancelled)) return kvc_fail(e, KVC_ERR_IO, "cancelled");
    if (queue_zeros(l, stream, e) || d->event_record(d, l->meet, stream, e)) return -1;
    for (unsigned i = 0; i < l->ways; i++)
        if (d->event_before(d, l->meet, l->way[i].stream, e)) return -1;
    struct kvc_ring *ring;
    if (kvc_ring_start(&ring, &source, l->range, l->n_pieces, slots, l->options.slots,
                       l->options.slot_bytes, l->options.threads, e))
        return -1;
    set_ring(l, ring);
    kvc_load_pieces(l);
    set_ring(l, NULL);
    kvc_ring_stop(ring);
    if (l->failed) {
        if (e) *e = l->error;
        return -1;
    }
    return queue_results(l, stream, e);
}

int kvc_load_run(struct kvc_load *l, void *stream, struct kvc_error *e) {
    drain(l); /* a run that nobody finished may be under way */
    const int status = run_all(l, stream, e);
    if (status) drain(l);
    atomic_store(&l->cancelled, 0);
    return status;
}

int kvc_load_again(struct kvc_load *l, void *stream, void *before, void *after,
                   struct kvc_error *e) {
    struct kvc_device *d = l->device;
    if (!l->complete) return kvc_fail(e, KVC_ERR_USAGE, "nothing was loaded");
    for (unsigned i = 0; i < l->n_rooms; i++)
        if (l->room[i].launches > 1)
            return kvc_fail(e, KVC_ERR_USAGE,
                            "%" PRIu64 " bytes of tables for slots of %" PRIu64
                            " bytes were used twice; take larger ones",
                            l->options.table_bytes, l->options.slot_bytes);
    l->stream = stream;
    if (queue_zeros(l, stream, e)) return -1;
    /* the counters of a launch are in its tables */
    for (unsigned i = 0; i < l->n_rooms; i++) {
        const struct kvc_load_room *r = &l->room[i];
        if (r->launches && d->copy_in(d, stream, r->device_tables, r->tables, r->used, e))
            return -1;
    }
    if (before && d->event_record(d, before, stream, e)) return -1;
    for (unsigned i = 0; i < l->n_rooms; i++) {
        const struct kvc_load_room *r = &l->room[i];
        if (r->launches && d->run(d, stream, &r->launch, l->options.multiprocessors, e)) return -1;
    }
    if (after && d->event_record(d, after, stream, e)) return -1;
    return queue_results(l, stream, e);
}

/* Returns the message of a fault that the device found. */
static const char *fault_text(uint32_t fault) {
    if (fault & KVC_FAULT_STREAM) return "an rANS stream does not end where it should";
    if (fault & KVC_FAULT_INDEX) return "an index lies outside of its table, or a row has no page";
    return "a stored number is out of range";
}

static int block_failed(const struct kvc_load *l, size_t i, const char *what, struct kvc_error *e) {
    return kvc_container_block_failed(l->cache, l->block[i].tensor, l->block[i].block, what, e);
}

int kvc_load_finish(struct kvc_load *l, struct kvc_error *e) {
    if (!l->loaded) return kvc_fail(e, KVC_ERR_USAGE, "nothing was loaded");
    l->loaded = 0;
    if (l->device->event_wait(l->device, l->last, e)) return -1;
    l->queued = l->complete = 0;
    for (size_t i = 0; i < l->n_blocks; i++) {
        if (l->status[i]) return block_failed(l, i, fault_text(l->status[i]), e);
        if (l->block[i].whole && l->digest[i] != l->block[i].digest)
            return block_failed(l, i, "decoded values do not match the digest", e);
    }
    l->complete = 1;
    return 0;
}

void kvc_load_cancel(struct kvc_load *l) {
    atomic_store(&l->cancelled, 1);
    pthread_mutex_lock(&l->lock);
    if (l->ring) kvc_ring_cancel(l->ring);
    pthread_mutex_unlock(&l->lock);
}
