/* ring.c: a queue of (piece, chunk) over reader threads. */
#include "formats/device/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 1 << 20 };

/* A part of a piece, which one reader reads at a time. */
struct chunk {
    uint8_t *to;
    unsigned slot;
    uint64_t begin, end; /* in the file */
    /* end of the part of the piece; a direct read ends at a multiple of 4096, or at the end of the
     * file */
    uint64_t need;
};

struct kvc_ring {
    struct kvc_ring_source source;
    const struct kvc_ring_piece *piece;
    uint64_t n_pieces;
    uint8_t *const *slot;
    unsigned n_slots;

    pthread_mutex_t lock;
    pthread_cond_t work;  /* for readers: a slot is free, or the ring stops */
    pthread_cond_t ready; /* for the consumer: a piece is read, or the ring stops */
    uint64_t *left;       /* per slot: bytes still to be read */
    unsigned *order;      /* piece i, while under way, is in slot order[i % n_slots] */
    unsigned *unused;     /* a stack of free slots */
    unsigned n_unused;
    uint64_t next;  /* piece that gets a slot next */
    uint64_t taken; /* pieces below were taken */
    /* of piece next - 1: bytes to read for it; chunks below `at` are handed out */
    uint64_t begin, at, end;
    unsigned busy; /* chunks handed out and not finished */
    int failed;
    struct kvc_error error;
    /* changed under the lock; readers check it between two reads without the lock */
    atomic_int cancelled;

    pthread_t *thread;
    unsigned started;
};

static uint64_t round_down(uint64_t offset) {
    return offset / KVC_RING_ALIGN * KVC_RING_ALIGN;
}

/* --- the queue; called with the lock held --- */

static int over(const struct kvc_ring *r) {
    return atomic_load(&r->cancelled) || r->failed || (r->at == r->end && r->next == r->n_pieces);
}

/* Gives the next piece a slot. */
static void open_piece(struct kvc_ring *r) {
    const struct kvc_ring_piece *p = &r->piece[r->next];
    unsigned slot = r->unused[--r->n_unused];
    r->order[r->next++ % r->n_slots] = slot;
    r->begin = p->offset;
    r->end = p->offset + p->size;
    if (r->source.direct) {
        r->begin = round_down(r->begin);
        r->end = round_down(r->end + KVC_RING_ALIGN - 1);
    }
    r->at = r->begin;
    r->left[slot] = r->end - r->begin;
}

/* Returns 1 and the next chunk to read, or 0 when there is none now. */
static int next_chunk(struct kvc_ring *r, struct chunk *c) {
    if (over(r)) return 0;
    if (r->at == r->end) {
        if (!r->n_unused) return 0;
        open_piece(r);
    }
    const struct kvc_ring_piece *p = &r->piece[r->next - 1];
    uint64_t size = r->end - r->at < CHUNK ? r->end - r->at : CHUNK;
    c->slot = r->order[(r->next - 1) % r->n_slots];
    c->to = r->slot[c->slot] + (r->at - r->begin);
    c->begin = r->at;
    c->end = r->at + size;
    c->need = c->end < p->offset + p->size ? c->end : p->offset + p->size;
    r->at = c->end;
    r->busy++;
    return 1;
}

/* Records that the chunk was read, or failed with *e. All chunks before a failed one were handed
 * out before it, so that the lowest error is known as soon as no reader is busy. */
static void finish_chunk(struct kvc_ring *r, const struct chunk *c, int status,
                         const struct kvc_error *e) {
    r->busy--;
    if (!status) {
        r->left[c->slot] -= c->end - c->begin;
    } else if (!r->failed || e->offset < r->error.offset) {
        r->failed = 1;
        r->error = *e;
        pthread_cond_broadcast(&r->work);
    }
    if (r->failed || !r->left[c->slot]) pthread_cond_broadcast(&r->ready);
}

/* --- reading; called without the lock --- */

static ssize_t read_some(const struct kvc_ring_source *s, void *to, size_t n, uint64_t offset) {
    return s->read ? s->read(s->state, to, n, offset) : pread(s->fd, to, n, (off_t)offset);
}

/* Reads a chunk. After a short direct read the next one
 * begins at the last multiple of 4096; when it brings no further bytes, the file ends there. */
static int read_chunk(const struct kvc_ring *r, const struct chunk *c, struct kvc_error *e) {
    const struct kvc_ring_source *s = &r->source;
    uint64_t at = c->begin;
    int refused = 0;
    if (s->map) {
        memcpy(c->to, s->map + c->begin, (size_t)(c->end - c->begin));
        return 0;
    }
    while (at < c->need) {
        if (atomic_load(&r->cancelled)) return kvc_fail(e, KVC_ERR_IO, "reading was cancelled");
        uint64_t from = s->direct ? round_down(at) : at;
        ssize_t n = read_some(s, c->to + (from - c->begin), (size_t)(c->end - from), from);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EINVAL && s->direct && !refused) {
            refused = 1; /* aligned reads work for a buffered file too */
            fcntl(s->fd, F_SETFL, fcntl(s->fd, F_GETFL) & ~O_DIRECT);
            continue;
        }
        if (n < 0)
            return kvc_fail_at(e, KVC_ERR_IO, at, "cannot read the file: %s", strerror(errno));
        if (from + (uint64_t)n <= at)
            return kvc_fail_at(e, KVC_ERR_DAMAGED, at, "the file was cut short while it was read");
        at = from + (uint64_t)n;
    }
    return 0;
}

static void *reader(void *arg) {
    struct kvc_ring *r = arg;
    struct kvc_error e;
    struct chunk c;
    pthread_mutex_lock(&r->lock);
    while (!over(r)) {
        if (!next_chunk(r, &c)) {
            pthread_cond_wait(&r->work, &r->lock);
            continue;
        }
        pthread_mutex_unlock(&r->lock);
        int status = read_chunk(r, &c, &e);
        pthread_mutex_lock(&r->lock);
        finish_chunk(r, &c, status, &e);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* --- the interface --- */

/* Returns 1 when the piece that is taken next is read. */
static int is_ready(const struct kvc_ring *r) {
    return r->taken < r->next && !r->left[r->order[r->taken % r->n_slots]];
}

static int check(const struct kvc_ring_source *source, const struct kvc_ring_piece *piece,
                 uint64_t n_pieces, uint8_t *const *slot, unsigned n_slots, uint64_t slot_bytes,
                 struct kvc_error *e) {
    if (!n_slots) return kvc_fail(e, KVC_ERR_USAGE, "a ring needs a slot");
    for (unsigned i = 0; source->direct && i < n_slots; i++)
        if ((uintptr_t)slot[i] % KVC_RING_ALIGN)
            return kvc_fail(e, KVC_ERR_USAGE, "slots of direct reads must be aligned");
    for (uint64_t i = 0; i < n_pieces; i++) {
        const struct kvc_ring_piece *p = &piece[i];
        if (!p->size || p->size > slot_bytes || (i && p->offset < p[-1].offset))
            return kvc_fail_at(e, KVC_ERR_USAGE, p->offset,
                               "a piece to read is empty, larger than a slot, or out of order");
        if (p->offset > source->size || p->size > source->size - p->offset)
            return kvc_fail_at(e, KVC_ERR_DAMAGED, p->offset,
                               "a piece to read ends after the end of the file");
    }
    return 0;
}

static int start_threads(struct kvc_ring *r, unsigned threads, struct kvc_error *e) {
    int error = 0;
    while (r->started < threads && !error) {
        error = pthread_create(&r->thread[r->started], NULL, reader, r);
        if (!error) r->started++;
    }
    return r->started ? 0
                      : kvc_fail(e, KVC_ERR_MEMORY, "cannot start a thread: %s", strerror(error));
}

int kvc_ring_start(struct kvc_ring **ring, const struct kvc_ring_source *source,
                   const struct kvc_ring_piece *piece, uint64_t n_pieces, uint8_t *const *slot,
                   unsigned n_slots, uint64_t slot_bytes, unsigned threads, struct kvc_error *e) {
    *ring = NULL;
    if (check(source, piece, n_pieces, slot, n_slots, slot_bytes, e)) return -1;
    struct kvc_ring *r = calloc(1, sizeof *r);
    if (!r) return kvc_fail_memory(e, "reading");
    r->source = *source;
    r->source.direct = source->direct && !source->map;
    r->piece = piece;
    r->n_pieces = n_pieces;
    r->slot = slot;
    r->n_slots = n_slots;
    atomic_init(&r->cancelled, 0);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work, NULL);
    pthread_cond_init(&r->ready, NULL);
    if (!threads) threads = KVC_RING_THREADS;
    r->left = calloc(n_slots, sizeof *r->left);
    r->order = calloc(n_slots, sizeof *r->order);
    r->unused = calloc(n_slots, sizeof *r->unused);
    r->thread = calloc(threads, sizeof *r->thread);
    if (!r->left || !r->order || !r->unused || !r->thread) {
        kvc_ring_stop(r);
        return kvc_fail_memory(e, "reading");
    }
    while (r->n_unused < n_slots) {
        r->unused[r->n_unused] = n_slots - 1 - r->n_unused;
        r->n_unused++;
    }
    if (start_threads(r, threads, e)) {
        kvc_ring_stop(r);
        return -1;
    }
    *ring = r;
    return 0;
}

int kvc_ring_take(struct kvc_ring *r, uint64_t *number, const uint8_t **bytes, unsigned *slot,
                  struct kvc_error *e) {
    int status;
    pthread_mutex_lock(&r->lock);
    while (!atomic_load(&r->cancelled) && r->taken < r->n_pieces && !is_ready(r) &&
           !(r->failed && !r->busy))
        pthread_cond_wait(&r->ready, &r->lock);
    if (atomic_load(&r->cancelled)) {
        status = kvc_fail(e, KVC_ERR_IO, "reading was cancelled");
    } else if (r->taken == r->n_pieces) {
        status = 0;
    } else if (is_ready(r)) {
        uint64_t offset = r->piece[r->taken].offset;
        *slot = r->order[r->taken % r->n_slots];
        *bytes = r->slot[*slot] + (r->source.direct ? offset - round_down(offset) : 0);
        *number = r->taken++;
        status = 1;
    } else {
        if (e) *e = r->error;
        status = -1;
    }
    pthread_mutex_unlock(&r->lock);
    return status;
}

void kvc_ring_give(struct kvc_ring *r, unsigned slot) {
    pthread_mutex_lock(&r->lock);
    r->unused[r->n_unused++] = slot;
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->lock);
}

void kvc_ring_cancel(struct kvc_ring *r) {
    pthread_mutex_lock(&r->lock);
    atomic_store(&r->cancelled, 1);
    pthread_cond_broadcast(&r->work);
    pthread_cond_broadcast(&r->ready);
    pthread_mutex_unlock(&r->lock);
}

void kvc_ring_stop(struct kvc_ring *r) {
    if (!r) return;
    kvc_ring_cancel(r);
    for (unsigned i = 0; i < r->started; i++) pthread_join(r->thread[i], NULL);
    pthread_cond_destroy(&r->ready);
    pthread_cond_destroy(&r->work);
    pthread_mutex_destroy(&r->lock);
    free(r->thread);
    free(r->unused);
    free(r->order);
    free(r->left);
    free(r);
}
