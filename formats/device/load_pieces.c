/* load_pieces.c: the way of pieces from the ring to the device: threads check the blocks of a piece
 * and make their programs, then queue copies and launches in the order of the file. Not for the
 * programs themselves (batch.h). */
#include "formats/device/load_state.h"

#include "formats/container/device_blocks.h"

#include <inttypes.h>
#include <stddef.h>

/* A piece that a thread has taken. */
struct load_pieces_work {
    struct kvc_load *load;
    struct kvc_batch batch;
    uint64_t number; /* of the piece */
    unsigned slot;
    struct kvc_load_room *room;
    const uint8_t *bytes;
    int queued; /* 1: the copy of its bytes is queued */
    uint64_t on_host;
};

/* Returns the address on the device of bytes of the file that this piece or an earlier one brings;
 * 0 where none does. */
static uint64_t locate(const void *owner, const uint8_t *p) {
    const struct load_pieces_work *w = owner;
    const struct kvc_load *l = w->load;
    const uint64_t offset = (uint64_t)(p - l->in->data);
    size_t low = 0, high = (size_t)w->number + 1;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (l->range[middle].offset <= offset) low = middle;
        else high = middle;
    }
    const struct kvc_ring_piece *r = &l->range[low];
    if (p < l->in->data || offset < r->offset || offset - r->offset >= r->size) return 0;
    return (uint64_t)(uintptr_t)l->device_bytes + l->piece[low].at + (offset - r->offset);
}

/* Keeps the first failure as that of the load, and stops the other threads. */
static void note_failure(struct kvc_load *l, const struct kvc_error *e) {
    pthread_mutex_lock(&l->lock);
    if (!l->failed) l->error = *e;
    l->failed = 1;
    pthread_cond_broadcast(&l->turn_came);
    pthread_mutex_unlock(&l->lock);
    kvc_ring_cancel(l->ring);
}

/* Waits until all earlier pieces are queued. Returns -1 when another thread failed meanwhile. */
static int await_turn(struct kvc_load *l, uint64_t number) {
    pthread_mutex_lock(&l->lock);
    while (l->turn != number && !l->failed) pthread_cond_wait(&l->turn_came, &l->lock);
    const int failed = l->failed;
    pthread_mutex_unlock(&l->lock);
    return failed ? -1 : 0;
}

/* Waits until the room of the piece is free: the launch that had it before is queued and done.
 * Returns 1 when another thread failed meanwhile. */
static int await_room(struct load_pieces_work *w, struct kvc_error *e) {
    struct kvc_load *l = w->load;
    w->room = &l->room[w->number % l->n_rooms];
    pthread_mutex_lock(&l->lock);
    while (l->turn + l->n_rooms <= w->number && !l->failed)
        pthread_cond_wait(&l->turn_came, &l->lock);
    const int failed = l->failed;
    pthread_mutex_unlock(&l->lock);
    return failed ? 1 : l->device->event_wait(l->device, w->room->done, e);
}

/* Queues the blocks of the batch, in the turn of the piece. */
static int queue(struct load_pieces_work *w, struct kvc_error *e) {
    struct kvc_load *l = w->load;
    struct kvc_device *d = l->device;
    struct kvc_load_slot *s = &l->slot[w->slot];
    struct kvc_load_room *r = w->room;
    void *const stream = l->way[w->number % l->ways].stream;
    struct kvc_device_launch launch;
    if (kvc_batch_finish(&w->batch, &launch, e)) return -1;
    launch.target = l->device_target;
    launch.status = l->device_status;
    launch.digest = l->device_digest;
    l->queued = 1;
    if (!w->queued && d->copy_in(d, l->copies, (uint8_t *)l->device_bytes + l->piece[w->number].at,
                                 w->bytes, (size_t)l->range[w->number].size, e))
        return -1;
    w->queued = 1;
    r->launch = launch;
    r->used = w->batch.used;
    r->launches++;
    if (d->copy_in(d, l->copies, r->device_tables, r->tables, w->batch.used, e)) return -1;
    if (d->event_record(d, s->copied, l->copies, e)) return -1;
    if (d->event_before(d, s->copied, stream, e)) return -1;
    if (d->run(d, stream, &launch, l->options.multiprocessors, e)) return -1;
    if (d->event_record(d, r->done, stream, e)) return -1;
    return 0;
}

static int inputs_of(const void *owner, uint32_t tensor, uint64_t block,
                     struct kvc_batch_inputs *to) {
    return kvc_load_inputs_of(((const struct load_pieces_work *)owner)->load, tensor, block, to);
}

static void begin_batch(struct load_pieces_work *w) {
    struct kvc_load *l = w->load;
    struct kvc_batch *b = &w->batch;
    b->cache = l->cache;
    b->target = l->target;
    b->kept = &l->kept;
    b->room = w->room->tables;
    b->size = (size_t)l->options.table_bytes;
    b->address = (uint64_t)(uintptr_t)w->room->device_tables;
    b->scratch = (uint64_t)(uintptr_t)l->way[w->number % l->ways].scratch;
    b->scratch_size = (size_t)l->options.scratch_bytes;
    b->bytes = w->bytes;
    b->n_bytes = (size_t)l->range[w->number].size;
    b->bytes_address = (uint64_t)(uintptr_t)l->device_bytes + l->piece[w->number].at;
    b->locate = locate;
    b->inputs = l->predicts ? inputs_of : NULL;
    b->owner = w;
    kvc_batch_begin(b);
}

/* Makes the blocks of a piece ready. Where the tables have no room for all blocks, those that are
 * ready are queued first, in the turn of the piece. Returns 1 when another thread failed. */
static int load_pieces_prepare(struct load_pieces_work *w, struct kvc_error *e) {
    struct kvc_load *l = w->load;
    const struct kvc_load_piece *p = &l->piece[w->number];
    begin_batch(w);
    for (size_t i = p->first; i < p->first + p->n;) {
        struct kvc_load_wanted *b = &l->block[i];
        const uint8_t *bytes = w->bytes + (b->offset - l->range[w->number].offset);
        b->whole = kvc_container_block_digest(bytes, &b->digest) && b->whole;
        const struct kvc_batch_block x = {.tensor = b->tensor,
                                          .record = (uint32_t)i,
                                          .block = b->block,
                                          .bytes = bytes,
                                          .first = b->first,
                                          .rows = b->rows,
                                          .row = b->row,
                                          .digest = b->whole};
        uint64_t on_host;
        if (atomic_load(&l->cancelled)) return kvc_fail(e, KVC_ERR_IO, "cancelled");
        const int status = kvc_batch_add(&w->batch, &x, &on_host, e);
        if (status < 0) return -1;
        if (!status) {
            w->on_host += on_host;
            i++;
            continue;
        }
        if (!w->batch.rows.n)
            return kvc_fail(e, KVC_ERR_MEMORY,
                            "record %" PRIu64 " needs more room for tables than %" PRIu64 " bytes",
                            kvc_container_block(l->cache, b->tensor, b->block).record,
                            l->options.table_bytes);
        if (await_turn(l, w->number)) return 1;
        if (queue(w, e) || l->device->event_wait(l->device, w->room->done, e)) return -1;
        kvc_batch_begin(&w->batch);
    }
    return 0;
}

/* Gives slots whose bytes are copied back to the ring; half of the slots may stay under way. */
static int give_back(struct kvc_load *l, unsigned slot, struct kvc_error *e) {
    const unsigned keep = l->options.slots / 2;
    pthread_mutex_lock(&l->lock);
    l->busy[(l->first_busy + l->n_busy++) % l->options.slots] = slot;
    while (l->n_busy > keep) {
        const unsigned oldest = l->busy[l->first_busy];
        l->first_busy = (l->first_busy + 1) % l->options.slots;
        l->n_busy--;
        pthread_mutex_unlock(&l->lock);
        if (l->device->event_wait(l->device, l->slot[oldest].copied, e)) return -1;
        kvc_ring_give(l->ring, oldest);
        pthread_mutex_lock(&l->lock);
    }
    pthread_mutex_unlock(&l->lock);
    return 0;
}

/* Takes the next piece and queues it. Returns 1 when more may come, 0 when there are none. */
static int next_piece(struct load_pieces_work *w, struct kvc_error *e) {
    struct kvc_load *l = w->load;
    pthread_mutex_lock(&l->taking);
    const int taken = kvc_ring_take(l->ring, &w->number, &w->bytes, &w->slot, e);
    pthread_mutex_unlock(&l->taking);
    if (taken <= 0) return taken;
    w->queued = 0;
    int status = await_room(w, e);
    if (!status) status = load_pieces_prepare(w, e);
    if (status) return status < 0 ? -1 : 0;
    if (await_turn(l, w->number)) return 0;
    if (queue(w, e)) return -1;
    pthread_mutex_lock(&l->lock);
    l->turn = w->number + 1;
    pthread_cond_broadcast(&l->turn_came);
    pthread_mutex_unlock(&l->lock);
    return give_back(l, w->slot, e) ? -1 : 1;
}

static void *load_pieces_work(void *state) {
    struct kvc_load *l = state;
    struct load_pieces_work w = {.load = l};
    struct kvc_error e;
    int status;
    while ((status = next_piece(&w, &e)) > 0) continue;
    if (status < 0) note_failure(l, &e);
    pthread_mutex_lock(&l->lock);
    l->info.on_host += w.on_host;
    pthread_mutex_unlock(&l->lock);
    kvc_batch_free(&w.batch);
    return NULL;
}

void kvc_load_pieces(struct kvc_load *l) {
    enum { MOST = 64 };
    pthread_t thread[MOST];
    const unsigned half = l->options.slots / 2,
                   wanted = l->options.threads < half ? l->options.threads : half;
    unsigned n = 0;
    while (n + 1 < wanted && n < MOST && !pthread_create(&thread[n], NULL, load_pieces_work, l))
        n++;
    load_pieces_work(l);
    while (n) pthread_join(thread[--n], NULL);
}
