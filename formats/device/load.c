/* load.c: from a file to a device: pieces of the file are read into a ring of slots, threads check the blocks in them and make
 * their programs, and in the order of the file copies and launches are queued. What a block's program is: batch.h. */
#include "formats/device/load.h"

#include "codecs/memory.h"
#include "formats/device/batch.h"
#include "formats/io/bytes.h"
#include "formats/container/container.h"
#include "formats/device/ring.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
enum { THREADS = 8, SLOTS = 8, FEWEST_SLOTS = 2, MOST_SLOTS = 256, GAP = 1 << 16 };

/* A block that is loaded: which of its rows, and where they go. */
struct wanted {
    uint32_t tensor;
    uint64_t block, offset, size; /* of its record in the file */
    uint64_t first, rows, row;    /* of the block; row of the target */
    uint64_t digest;              /* as its record has it; set when that was checked */
    int whole;                    /* its digest is compared */
};

/* Blocks that are read and launched together. */
struct piece {
    size_t first, n; /* blocks */
    uint64_t at;     /* of its bytes in the device's memory */
};

/* A place for a piece on its way: memory of the host, and of the device for tables. */
struct slot {
    uint8_t *bytes, *tables;
    void *device_tables;
    void *copied, *done; /* events */
    struct kvc_device_launch launch; /* the last one, and bytes of its tables */
    size_t used;
    unsigned launches; /* of a run */
};

struct kvc_load {
    struct kvc_device *device;
    const struct kvc_cache *cache;
    const struct kvc_input *in;
    struct kvc_load_options options;
    struct kvc_load_info info;
    struct kvc_device_target *target; /* by tensor */
    struct wanted *block;
    size_t n_blocks;
    struct piece *piece;
    struct kvc_ring_piece *range; /* of each piece, in the file */
    size_t n_pieces;
    struct slot *slot;
    struct kvc_kept kept;
    void *device_bytes, *device_kept, *device_target, *device_status, *device_digest, *device_scratch;
    uint32_t *status; /* host memory that the device copies to */
    uint64_t *digest;
    void *copies, *last; /* a stream, an event */
    int queued;          /* something may be under way on the device */

    /* of a run */
    struct kvc_ring *ring;
    pthread_mutex_t lock, taking;
    pthread_cond_t turn_came;
    uint64_t turn;                 /* the piece that is queued next */
    unsigned *busy, first_busy, n_busy; /* slots whose work is queued, oldest first */
    void *stream;
    int failed, loaded, complete; /* complete: finished, without a fault */
    struct kvc_error error;
    atomic_int cancelled;
};

/* --- planning --- */

void kvc_load_rows(const struct kvc_cache *c, uint32_t tensor, const struct kvc_load_options *options, uint64_t *first, uint64_t *n) {
    const struct kvc_cells *cells = &kvc_tensor_part(c, tensor)->cells;
    const int all = !options->first && !options->end;
    *first = all ? 0 : kvc_cells_row_from(cells, options->first);
    const uint64_t end = all ? cells->n : kvc_cells_row_from(cells, options->end);
    *n = end > *first ? end - *first : 0;
}

static int by_offset(const void *a, const void *b) {
    const struct wanted *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The blocks that have wanted rows, in the order of the file. */
static int list_blocks(struct kvc_load *l, struct kvc_error *e) {
    if (!(l->block = kvc_alloc(kvc_container_blocks(l->cache), sizeof *l->block))) return kvc_fail_memory(e, "a plan");
    for (uint32_t t = 0; t < l->cache->n_tensors; t++) {
        const struct kvc_cells *cells = &kvc_tensor_part(l->cache, t)->cells;
        uint64_t first, n;
        if (!l->target[t].base) continue;
        kvc_load_rows(l->cache, t, &l->options, &first, &n);
        if (n > UINT32_MAX - l->target[t].first)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%" PRIu64 " tokens: a device takes 2^32 - 1 at once", n);
        for (uint64_t b = n ? kvc_cells_block_of(cells, first) : 0; n && b < cells->n_blocks && cells->block[b] < first + n; b++) {
            const struct kvc_container_block r = kvc_container_block(l->cache, t, b);
            const uint64_t start = cells->block[b], end = cells->block[b + 1];
            const uint64_t from = start > first ? start : first, to = end < first + n ? end : first + n;
            const int whole = l->options.verify && to - from == end - start && l->target[t].dtype == l->target[t].from;
            l->block[l->n_blocks++] = (struct wanted){.tensor = t, .block = b, .offset = r.offset, .size = r.size,
                                                      .first = from - start, .rows = to - from, .row = from - first, .whole = whole};
            l->info.decoded += (to - from) * kvc_row_bytes(&l->cache->tensor[t].shape);
        }
    }
    qsort(l->block, l->n_blocks, sizeof *l->block, by_offset);
    return 0;
}

/* What goes together when nobody says: 8 MiB, and up to four times as much of what is stored smaller, so that a launch has blocks
 * enough to keep a device busy. */
static uint64_t usual_slot(const struct kvc_load *l) {
    uint64_t stored = 1;
    for (size_t i = 0; i < l->n_blocks; i++) stored += l->block[i].size;
    const uint64_t times = l->info.decoded / stored / 3;
    return 8 * MIB * (times < 1 ? 1 : times < 4 ? times : 4);
}

/* Cuts the list into pieces of at most slot_bytes, which grows to what the greatest record takes. */
static int list_pieces(struct kvc_load *l, struct kvc_error *e) {
    uint64_t at = 0;
    if (!l->options.slot_bytes) l->options.slot_bytes = usual_slot(l);
    for (size_t i = 0; i < l->n_blocks; i++)
        if (l->block[i].size > l->options.slot_bytes) l->options.slot_bytes = l->block[i].size;
    l->piece = kvc_alloc(l->n_blocks, sizeof *l->piece);
    l->range = kvc_alloc(l->n_blocks, sizeof *l->range);
    if (!l->piece || !l->range) return kvc_fail_memory(e, "a plan");
    for (size_t i = 0; i < l->n_blocks; i++) {
        const struct wanted *b = &l->block[i];
        struct kvc_ring_piece *r = l->n_pieces ? &l->range[l->n_pieces - 1] : NULL;
        if (r && b->offset - (r->offset + r->size) <= GAP && b->offset + b->size - r->offset <= l->options.slot_bytes) {
            r->size = b->offset + b->size - r->offset;
            l->piece[l->n_pieces - 1].n++;
            continue;
        }
        l->range[l->n_pieces] = (struct kvc_ring_piece){b->offset, b->size};
        l->piece[l->n_pieces++] = (struct piece){.first = i, .n = 1};
    }
    for (size_t i = 0; i < l->n_pieces; i++) {
        l->piece[i].at = at;
        at += (l->range[i].size + KVC_RING_ALIGN - 1) / KVC_RING_ALIGN * KVC_RING_ALIGN;
        l->info.stored += l->range[i].size;
    }
    return 0;
}

/* What blocks share is found by dry runs: of the first block of each segment, and on as long as a tensor's blocks have new things
 * in them, as those of the first K have, whose positions are everybody's. */
static int find_kept(struct kvc_load *l, struct kvc_error *e) {
    uint32_t tensor = KVC_NONE;
    uint64_t segment = 0;
    int more = 0;
    for (size_t i = 0; i < l->n_blocks; i++) {
        const struct wanted *b = &l->block[i];
        const int new_segment = b->tensor != tensor || b->block / KVC_SEGMENT_BLOCKS != segment;
        if (!new_segment && !more) continue;
        tensor = b->tensor;
        segment = b->block / KVC_SEGMENT_BLOCKS;
        if (kvc_kept_add_block(&l->kept, l->cache, b->tensor, b->block, &more, e)) return -1;
    }
    return 0;
}

/* Room that the greatest block may need for tables, and for scratch. */
static void measure_room(struct kvc_load *l) {
    struct kvc_load_options *o = &l->options;
    uint64_t block = 0, piece = 0;
    for (size_t i = 0; i < l->n_pieces; i++) {
        uint64_t decoded = 0;
        for (size_t k = 0; k < l->piece[i].n; k++) {
            const struct wanted *b = &l->block[l->piece[i].first + k];
            const uint64_t bytes = KVC_BLOCK * kvc_row_bytes(&l->cache->tensor[b->tensor].shape);
            block = bytes > block ? bytes : block;
            decoded += bytes;
        }
        piece = decoded > piece ? decoded : piece;
    }
    const uint64_t tables = 4 * block + 4 * MIB, least = 8 * block + 4 * MIB, most = 3 * piece + least;
    if (!o->table_bytes) o->table_bytes = o->slot_bytes;
    if (o->table_bytes < tables) o->table_bytes = tables;
    if (!o->scratch_bytes) o->scratch_bytes = most < 1024 * MIB ? most : 1024 * MIB;
    if (o->scratch_bytes < least) o->scratch_bytes = least;
}

static int alloc_device(struct kvc_load *l, size_t n, void **p, struct kvc_error *e) {
    if (l->device->alloc(l->device, n ? n : 1, p, e)) return -1;
    l->info.device_bytes += n;
    return 0;
}

static int alloc_slots(struct kvc_load *l, struct kvc_error *e) {
    struct kvc_device *d = l->device;
    const size_t tables = (size_t)l->options.table_bytes;
    if (!(l->slot = calloc(l->options.slots, sizeof *l->slot)) || !(l->busy = calloc(l->options.slots, sizeof *l->busy)))
        return kvc_fail_memory(e, "slots");
    for (unsigned i = 0; i < l->options.slots; i++) {
        struct slot *s = &l->slot[i];
        void *bytes = NULL, *room = NULL;
        if (d->alloc_host(d, (size_t)l->options.slot_bytes + KVC_RING_EXTRA, &bytes, e)) return -1;
        s->bytes = bytes;
        if (d->alloc_host(d, tables, &room, e)) return -1;
        s->tables = room;
        if (alloc_device(l, tables, &s->device_tables, e) || d->event_new(d, &s->copied, e) || d->event_new(d, &s->done, e))
            return -1;
    }
    return 0;
}

static int alloc_all(struct kvc_load *l, struct kvc_error *e) {
    struct kvc_device *d = l->device;
    const struct piece *last = l->n_pieces ? &l->piece[l->n_pieces - 1] : NULL;
    const size_t bytes = last ? (size_t)(last->at + l->range[l->n_pieces - 1].size) : 0, n = l->n_blocks ? l->n_blocks : 1;
    const size_t targets = l->cache->n_tensors * sizeof *l->target;
    void *status = NULL, *digest = NULL;
    if (d->stream_new(d, &l->copies, e) || d->event_new(d, &l->last, e)) return -1;
    if (alloc_device(l, bytes, &l->device_bytes, e) || alloc_device(l, l->kept.used, &l->device_kept, e) ||
        alloc_device(l, targets, &l->device_target, e) || alloc_device(l, n * sizeof *l->status, &l->device_status, e) ||
        alloc_device(l, n * sizeof *l->digest, &l->device_digest, e) ||
        alloc_device(l, (size_t)l->options.scratch_bytes, &l->device_scratch, e))
        return -1;
    if (d->alloc_host(d, n * sizeof *l->status, &status, e)) return -1;
    l->status = status;
    if (d->alloc_host(d, n * sizeof *l->digest, &digest, e)) return -1;
    l->digest = digest;
    l->kept.address = (uint64_t)(uintptr_t)l->device_kept;
    if (kvc_device_write(d, l->device_kept, l->kept.bytes, l->kept.used, e) ||
        kvc_device_write(d, l->device_target, l->target, targets, e))
        return -1;
    return alloc_slots(l, e);
}

struct kvc_load *kvc_load_new(struct kvc_device *d, const struct kvc_cache *c, const struct kvc_input *in,
                              const struct kvc_load_options *options, const struct kvc_device_target *target, struct kvc_error *e) {
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
    struct kvc_load_options *o = &l->options;
    if (!o->slots) o->slots = SLOTS;
    if (o->slots < FEWEST_SLOTS) o->slots = FEWEST_SLOTS;
    if (o->slots > MOST_SLOTS) o->slots = MOST_SLOTS;
    if (!o->threads) o->threads = THREADS;
    int status = 0;
    if (!kvc_cache_is_container(c)) status = kvc_fail(e, KVC_ERR_UNSUPPORTED, "only .kvc files are decoded on a device");
    if (!status && !(l->target = kvc_alloc(c->n_tensors, sizeof *l->target))) status = kvc_fail_memory(e, "a plan");
    if (!status && c->n_tensors) memcpy(l->target, target, c->n_tensors * sizeof *l->target);
    if (!status) status = list_blocks(l, e) || list_pieces(l, e) || find_kept(l, e);
    if (!status && o->slots > l->n_pieces) o->slots = l->n_pieces > FEWEST_SLOTS ? (unsigned)l->n_pieces : FEWEST_SLOTS;
    if (!status) measure_room(l);
    if (!status) status = alloc_all(l, e);
    if (!status) return l;
    kvc_load_free(l);
    return NULL;
}

/* Waits for what a failure left under way: its memory may be used anew, and the caller's stream be gone, afterwards. */
static void drain(struct kvc_load *l) {
    struct kvc_device *d = l->device;
    struct kvc_error e; /* it ends, whatever became of it */
    if (!l->queued) return;
    if (!d->event_record(d, l->last, l->stream, &e)) d->event_wait(d, l->last, &e);
    if (!d->event_record(d, l->last, l->copies, &e)) d->event_wait(d, l->last, &e);
    l->queued = 0;
}

void kvc_load_free(struct kvc_load *l) {
    if (!l) return;
    struct kvc_device *d = l->device;
    struct kvc_error ignored;
    if (l->queued) d->event_wait(d, l->last, &ignored); /* a run that was not finished: its last event is behind all else */
    for (unsigned i = 0; l->slot && i < l->options.slots; i++) {
        d->free_host(d, l->slot[i].bytes);
        d->free_host(d, l->slot[i].tables);
        d->free(d, l->slot[i].device_tables);
        if (l->slot[i].copied) d->event_free(d, l->slot[i].copied);
        if (l->slot[i].done) d->event_free(d, l->slot[i].done);
    }
    void *const memory[] = {l->device_bytes, l->device_kept, l->device_target, l->device_status, l->device_digest, l->device_scratch};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) d->free(d, memory[i]);
    d->free_host(d, l->status);
    d->free_host(d, l->digest);
    if (l->last) d->event_free(d, l->last);
    if (l->copies) d->stream_free(d, l->copies);
    kvc_kept_free(&l->kept);
    pthread_mutex_destroy(&l->lock);
    pthread_mutex_destroy(&l->taking);
    pthread_cond_destroy(&l->turn_came);
    free(l->slot);
    free(l->busy);
    free(l->block);
    free(l->piece);
    free(l->range);
    free(l->target);
    free(l);
}

void kvc_load_describe(const struct kvc_load *l, struct kvc_load_info *info) {
    *info = l->info;
}

/* --- running --- */

/* A piece in a thread's hands. */
struct work {
    struct kvc_load *load;
    struct kvc_batch batch;
    uint64_t number; /* of the piece */
    unsigned slot;
    const uint8_t *bytes;
    int queued; /* its bytes are on their way */
    uint64_t on_host;
};

/* Where on the device bytes of the file are that an earlier piece, or this one, brought. */
static uint64_t locate(const void *owner, const uint8_t *p) {
    const struct work *w = owner;
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

/* The first failure is the load's. */
static void note_failure(struct kvc_load *l, const struct kvc_error *e) {
    pthread_mutex_lock(&l->lock);
    if (!l->failed) l->error = *e;
    l->failed = 1;
    pthread_cond_broadcast(&l->turn_came);
    pthread_mutex_unlock(&l->lock);
    kvc_ring_cancel(l->ring);
}

/* Waits until all earlier pieces are queued; -1 when something failed meanwhile. */
static int await_turn(struct kvc_load *l, uint64_t number) {
    pthread_mutex_lock(&l->lock);
    while (l->turn != number && !l->failed) pthread_cond_wait(&l->turn_came, &l->lock);
    const int failed = l->failed;
    pthread_mutex_unlock(&l->lock);
    return failed ? -1 : 0;
}

/* Queues what the batch has, in the piece's turn. */
static int queue(struct work *w, struct kvc_error *e) {
    struct kvc_load *l = w->load;
    struct kvc_device *d = l->device;
    struct slot *s = &l->slot[w->slot];
    struct kvc_device_launch launch;
    if (kvc_batch_finish(&w->batch, &launch, e)) return -1;
    launch.target = l->device_target;
    launch.status = l->device_status;
    launch.digest = l->device_digest;
    l->queued = 1;
    if (!w->queued && d->copy_in(d, l->copies, (uint8_t *)l->device_bytes + l->piece[w->number].at, w->bytes,
                                 (size_t)l->range[w->number].size, e))
        return -1;
    w->queued = 1;
    s->launch = launch;
    s->used = w->batch.used;
    s->launches++;
    return d->copy_in(d, l->copies, s->device_tables, s->tables, w->batch.used, e) || d->event_record(d, s->copied, l->copies, e) ||
                   d->event_before(d, s->copied, l->stream, e) || d->run(d, l->stream, &launch, l->options.multiprocessors, e) ||
                   d->event_record(d, s->done, l->stream, e)
               ? -1
               : 0;
}

static void begin_batch(struct work *w) {
    struct kvc_load *l = w->load;
    struct kvc_batch *b = &w->batch;
    b->cache = l->cache;
    b->target = l->target;
    b->kept = &l->kept;
    b->room = l->slot[w->slot].tables;
    b->size = (size_t)l->options.table_bytes;
    b->address = (uint64_t)(uintptr_t)l->slot[w->slot].device_tables;
    b->scratch = (uint64_t)(uintptr_t)l->device_scratch;
    b->scratch_size = (size_t)l->options.scratch_bytes;
    b->bytes = w->bytes;
    b->n_bytes = (size_t)l->range[w->number].size;
    b->bytes_address = (uint64_t)(uintptr_t)l->device_bytes + l->piece[w->number].at;
    b->locate = locate;
    b->owner = w;
    kvc_batch_begin(b);
}

/* Makes the blocks of a piece ready; where its tables have no room for all, what there is goes ahead, in the piece's turn. */
static int prepare(struct work *w, struct kvc_error *e) {
    struct kvc_load *l = w->load;
    const struct piece *p = &l->piece[w->number];
    begin_batch(w);
    for (size_t i = p->first; i < p->first + p->n;) {
        struct wanted *b = &l->block[i];
        const struct kvc_batch_block x = {.tensor = b->tensor,
                                          .record = (uint32_t)i,
                                          .block = b->block,
                                          .bytes = w->bytes + (b->offset - l->range[w->number].offset),
                                          .first = b->first,
                                          .rows = b->rows,
                                          .row = b->row,
                                          .digest = b->whole};
        uint64_t on_host;
        if (atomic_load(&l->cancelled)) return kvc_fail(e, KVC_ERR_IO, "cancelled");
        const int status = kvc_batch_add(&w->batch, &x, &on_host, e);
        if (status < 0) return -1;
        if (!status) {
            b->digest = kvc_container_block_digest(x.bytes);
            w->on_host += on_host;
            i++;
            continue;
        }
        if (!w->batch.rows.n)
            return kvc_fail(e, KVC_ERR_MEMORY, "record %" PRIu64 " needs more room than %" PRIu64 " bytes of tables",
                            kvc_container_block(l->cache, b->tensor, b->block).record, l->options.table_bytes);
        if (await_turn(l, w->number)) return 1;
        if (queue(w, e) || l->device->event_wait(l->device, l->slot[w->slot].done, e)) return -1;
        kvc_batch_begin(&w->batch);
    }
    return 0;
}

/* Slots whose work is done go back to the ring; half of them may stay under way. */
static int give_back(struct kvc_load *l, unsigned slot, struct kvc_error *e) {
    const unsigned keep = l->options.slots / 2;
    pthread_mutex_lock(&l->lock);
    l->busy[(l->first_busy + l->n_busy++) % l->options.slots] = slot;
    while (l->n_busy > keep) {
        const unsigned oldest = l->busy[l->first_busy];
        l->first_busy = (l->first_busy + 1) % l->options.slots;
        l->n_busy--;
        pthread_mutex_unlock(&l->lock);
        if (l->device->event_wait(l->device, l->slot[oldest].done, e)) return -1;
        kvc_ring_give(l->ring, oldest);
        pthread_mutex_lock(&l->lock);
    }
    pthread_mutex_unlock(&l->lock);
    return 0;
}

/* One piece after the other until there are none; 1: more may come. */
static int next_piece(struct work *w, struct kvc_error *e) {
    struct kvc_load *l = w->load;
    pthread_mutex_lock(&l->taking);
    const int taken = kvc_ring_take(l->ring, &w->number, &w->bytes, &w->slot, e);
    pthread_mutex_unlock(&l->taking);
    if (taken <= 0) return taken;
    w->queued = 0;
    const int status = prepare(w, e);
    if (status) return status < 0 ? -1 : 0;
    if (await_turn(l, w->number)) return 0;
    if (queue(w, e)) return -1;
    pthread_mutex_lock(&l->lock);
    l->turn = w->number + 1;
    pthread_cond_broadcast(&l->turn_came);
    pthread_mutex_unlock(&l->lock);
    return give_back(l, w->slot, e) ? -1 : 1;
}

static void *work(void *state) {
    struct kvc_load *l = state;
    struct work w = {.load = l};
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

/* The workers: all but one are threads. */
static void run_workers(struct kvc_load *l) {
    enum { MOST = 64 };
    pthread_t thread[MOST];
    const unsigned half = l->options.slots / 2, wanted = l->options.threads < half ? l->options.threads : half;
    unsigned n = 0;
    while (n + 1 < wanted && n < MOST && !pthread_create(&thread[n], NULL, work, l)) n++;
    work(l);
    while (n) pthread_join(thread[--n], NULL);
}

/* kvc_load_cancel() may be looking at the ring. */
static void set_ring(struct kvc_load *l, struct kvc_ring *ring) {
    pthread_mutex_lock(&l->lock);
    l->ring = ring;
    pthread_mutex_unlock(&l->lock);
}

/* Queued before launches, and behind them all. */
static int queue_zeros(struct kvc_load *l, void *stream, struct kvc_error *e) {
    struct kvc_device *d = l->device;
    l->queued = 1;
    return d->zero(d, stream, l->device_status, l->n_blocks * sizeof *l->status, e) ||
                   d->zero(d, stream, l->device_digest, l->n_blocks * sizeof *l->digest, e)
               ? -1
               : 0;
}

static int queue_results(struct kvc_load *l, void *stream, struct kvc_error *e) {
    struct kvc_device *d = l->device;
    l->loaded = !d->copy_out(d, stream, l->status, l->device_status, l->n_blocks * sizeof *l->status, e) &&
                !d->copy_out(d, stream, l->digest, l->device_digest, l->n_blocks * sizeof *l->digest, e) &&
                !d->event_record(d, l->last, stream, e);
    return l->loaded ? 0 : -1;
}

/* Reads for a ring from an input that is not in memory. */
static ssize_t read_input(void *state, void *to, size_t n, uint64_t offset) {
    if (!kvc_input_copy(state, offset, to, n, NULL)) return (ssize_t)n;
    errno = EIO;
    return -1;
}

static int run_all(struct kvc_load *l, void *stream, struct kvc_error *e) {
    struct kvc_ring_source source = {.fd = -1, .map = l->in->pages ? NULL : l->in->data, .size = l->in->size};
    uint8_t *slots[MOST_SLOTS];
    if (l->options.direct) source = (struct kvc_ring_source){.fd = l->options.direct_fd, .size = l->in->size, .direct = 1};
    else if (l->in->pages) {
        source.read = read_input;
        source.state = (void *)(uintptr_t)l->in;
    }
    for (unsigned i = 0; i < l->options.slots; i++) {
        slots[i] = l->slot[i].bytes;
        l->slot[i].launches = 0;
    }
    l->stream = stream;
    l->loaded = l->failed = l->complete = 0;
    l->turn = 0;
    l->first_busy = l->n_busy = 0;
    l->info.on_host = 0;
    if (atomic_load(&l->cancelled)) return kvc_fail(e, KVC_ERR_IO, "cancelled");
    if (queue_zeros(l, stream, e)) return -1;
    struct kvc_ring *ring;
    if (kvc_ring_start(&ring, &source, l->range, l->n_pieces, slots, l->options.slots, l->options.slot_bytes, l->options.threads, e))
        return -1;
    set_ring(l, ring);
    run_workers(l);
    set_ring(l, NULL);
    kvc_ring_stop(ring);
    if (l->failed) {
        if (e) *e = l->error;
        return -1;
    }
    return queue_results(l, stream, e);
}

int kvc_load_run(struct kvc_load *l, void *stream, struct kvc_error *e) {
    drain(l); /* of a run that nobody finished */
    const int status = run_all(l, stream, e);
    if (status) drain(l);
    atomic_store(&l->cancelled, 0);
    return status;
}

int kvc_load_again(struct kvc_load *l, void *stream, void *before, void *after, struct kvc_error *e) {
    struct kvc_device *d = l->device;
    if (!l->complete) return kvc_fail(e, KVC_ERR_USAGE, "nothing was loaded");
    for (unsigned i = 0; i < l->options.slots; i++)
        if (l->slot[i].launches > 1)
            return kvc_fail(e, KVC_ERR_USAGE, "a slot of %" PRIu64 " bytes and tables of %" PRIu64 " were used more than once",
                            l->options.slot_bytes, l->options.table_bytes);
    l->stream = stream;
    if (queue_zeros(l, stream, e)) return -1;
    for (unsigned i = 0; i < l->options.slots; i++) { /* the counters of a launch are in its tables */
        const struct slot *s = &l->slot[i];
        if (s->launches && d->copy_in(d, stream, s->device_tables, s->tables, s->used, e)) return -1;
    }
    if (before && d->event_record(d, before, stream, e)) return -1;
    for (unsigned i = 0; i < l->options.slots; i++) {
        const struct slot *s = &l->slot[i];
        if (s->launches && d->run(d, stream, &s->launch, l->options.multiprocessors, e)) return -1;
    }
    if (after && d->event_record(d, after, stream, e)) return -1;
    return queue_results(l, stream, e);
}

/* What a device found wrong, in words. */
static const char *fault_text(uint32_t fault) {
    if (fault & KVC_FAULT_STREAM) return "an rANS stream does not end where it should";
    if (fault & KVC_FAULT_INDEX) return "an index lies outside, or a row has no page";
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
