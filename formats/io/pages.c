/* pages.c: an address range whose bytes are read when they are pinned, in chunks with a count of
 * pins each. */
#include "formats/io/pages.h"

#include "codecs/memory.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHUNK (UINT64_C(1) << 16)
#define MAX_IDLE 1024 /* chunks without a pin that stay in memory */

enum state { ABSENT, READING, PRESENT };

struct chunk {
    uint32_t pins;
    uint8_t state; /* enum state */
};

struct kvc_pages {
    uint8_t *data;
    uint64_t size;
    kvc_pages_read *read;
    void (*close)(void *state);
    void *state;
    pthread_mutex_t lock;
    pthread_cond_t arrived; /* signalled when a chunk is no longer READING */
    struct chunk *chunk;
    uint64_t n_chunks, n_idle; /* idle: PRESENT without a pin */
};

struct kvc_pages *kvc_pages_new(uint64_t size, kvc_pages_read *read, void (*close)(void *state),
                                void *state, struct kvc_error *e) {
    struct kvc_pages *p = calloc(1, sizeof *p);
    if (!p || size > SIZE_MAX - CHUNK) {
        free(p);
        kvc_fail_memory(e, "a file");
        return NULL;
    }
    p->size = size;
    p->n_chunks = size / CHUNK + (size % CHUNK != 0);
    p->chunk = kvc_alloc_zeros(p->n_chunks, sizeof *p->chunk);
    void *data = p->chunk ? mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                          : MAP_FAILED;
    if (data == MAP_FAILED) {
        free(p->chunk);
        free(p);
        kvc_fail_memory(e, "a file");
        return NULL;
    }
    p->data = data;
    p->read = read;
    p->close = close;
    p->state = state;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->arrived, NULL);
    return p;
}

void kvc_pages_free(struct kvc_pages *p) {
    if (!p) return;
    if (p->close) p->close(p->state);
    munmap(p->data, (size_t)p->size);
    pthread_cond_destroy(&p->arrived);
    pthread_mutex_destroy(&p->lock);
    free(p->chunk);
    free(p);
}

const uint8_t *kvc_pages_data(const struct kvc_pages *p) {
    return p->data;
}

static uint64_t chunk_bytes(const struct kvc_pages *p, uint64_t i) {
    const uint64_t left = p->size - i * CHUNK;
    return left < CHUNK ? left : CHUNK;
}

/* Frees the memory of all idle chunks, neighbours in one call. Under the lock. */
static void drop_idle(struct kvc_pages *p) {
    for (uint64_t i = 0, end; i < p->n_chunks; i = end) {
        for (end = i; end < p->n_chunks && p->chunk[end].state == PRESENT && !p->chunk[end].pins;
             end++)
            p->chunk[end].state = ABSENT;
        if (end == i) end++;
        else /* the last chunk may be shorter: what comes after it is another's memory */
            madvise(p->data + i * CHUNK,
                    (size_t)((end < p->n_chunks ? end * CHUNK : p->size) - i * CHUNK),
                    MADV_DONTNEED);
    }
    p->n_idle = 0;
}

/* Removes one pin from chunks [first, end). Under the lock. */
static void release(struct kvc_pages *p, uint64_t first, uint64_t end) {
    for (uint64_t i = first; i < end; i++)
        if (!--p->chunk[i].pins && p->chunk[i].state == PRESENT) p->n_idle++;
    if (p->n_idle > MAX_IDLE) drop_idle(p);
}

/* Reads the absent chunks from i on that are neighbours, up to `end`; *next is the first chunk
 * after them. Under the lock, which is released while reading: a chunk in READING belongs to the
 * thread that set the state. */
static int read_run(struct kvc_pages *p, uint64_t i, uint64_t end, uint64_t *next,
                    struct kvc_error *e) {
    uint64_t stop = i, bytes = 0;
    for (; stop < end && p->chunk[stop].state == ABSENT; stop++) {
        p->chunk[stop].state = READING;
        bytes += chunk_bytes(p, stop);
    }
    pthread_mutex_unlock(&p->lock);
    const int status = p->read(p->state, i * CHUNK, (size_t)bytes, p->data + i * CHUNK, e);
    pthread_mutex_lock(&p->lock);
    for (uint64_t c = i; c < stop; c++) p->chunk[c].state = status ? ABSENT : PRESENT;
    pthread_cond_broadcast(&p->arrived);
    *next = stop;
    return status;
}

int kvc_pages_pin(struct kvc_pages *p, uint64_t offset, uint64_t n, struct kvc_error *e) {
    if (!n) return 0;
    const uint64_t first = offset / CHUNK, end = (offset + n - 1) / CHUNK + 1;
    int status = 0;
    pthread_mutex_lock(&p->lock);
    for (uint64_t i = first; i < end; i++) {
        if (!p->chunk[i].pins++ && p->chunk[i].state == PRESENT) p->n_idle--;
    }
    for (uint64_t i = first; i < end && !status;) {
        if (p->chunk[i].state == ABSENT) status = read_run(p, i, end, &i, e);
        else if (p->chunk[i].state == READING) pthread_cond_wait(&p->arrived, &p->lock);
        else i++;
    }
    if (status) release(p, first, end);
    pthread_mutex_unlock(&p->lock);
    return status ? -1 : 0;
}

void kvc_pages_unpin(struct kvc_pages *p, uint64_t offset, uint64_t n) {
    if (!n) return;
    pthread_mutex_lock(&p->lock);
    release(p, offset / CHUNK, (offset + n - 1) / CHUNK + 1);
    pthread_mutex_unlock(&p->lock);
}

int kvc_pages_copy(const struct kvc_pages *p, uint64_t offset, uint8_t *dst, uint64_t n,
                   struct kvc_error *e) {
    return n ? p->read(p->state, offset, (size_t)n, dst, e) : 0;
}
