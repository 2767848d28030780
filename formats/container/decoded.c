/* decoded.c: a bounded store of decoded blocks. */
#include "formats/container/decoded.h"

#include <pthread.h>
#include <stdlib.h>

enum { CHAINS = 256 };

struct kvc_decoded {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t bytes, most; /* in the store; from which on blocks without a holder are freed */
    int one_each;
    struct kvc_decoded_block *oldest, *newest; /* all, by last use */
    struct kvc_decoded_block *chain[CHAINS];   /* all, by tensor, the last put first */
};

struct kvc_decoded *kvc_decoded_new(uint64_t bytes, int one_each, struct kvc_error *e) {
    struct kvc_decoded *d = calloc(1, sizeof *d);
    if (!d) {
        kvc_fail_memory(e, "decoded blocks");
        return NULL;
    }
    d->most = bytes;
    d->one_each = one_each;
    pthread_mutex_init(&d->lock, NULL); /* neither can fail */
    pthread_cond_init(&d->changed, NULL);
    return d;
}

void kvc_decoded_free(struct kvc_decoded *d) {
    if (!d) return;
    for (unsigned i = 0; i < CHAINS; i++)
        for (struct kvc_decoded_block *b = d->chain[i], *next; b; b = next) {
            next = b->next;
            free(b);
        }
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

void kvc_decoded_set_bytes(struct kvc_decoded *d, uint64_t bytes) {
    d->most = bytes;
}

/* --- under the lock --- */

static void unlink_use(struct kvc_decoded *d, struct kvc_decoded_block *b) {
    *(b->older ? &b->older->newer : &d->oldest) = b->newer;
    *(b->newer ? &b->newer->older : &d->newest) = b->older;
}

static void link_newest(struct kvc_decoded *d, struct kvc_decoded_block *b) {
    b->older = d->newest;
    b->newer = NULL;
    *(d->newest ? &d->newest->newer : &d->oldest) = b;
    d->newest = b;
}

static void take_out(struct kvc_decoded *d, struct kvc_decoded_block *b) {
    struct kvc_decoded_block **at = &d->chain[b->tensor % CHAINS];
    while (*at != b) at = &(*at)->next;
    *at = b->next;
    unlink_use(d, b);
    d->bytes -= b->size;
}

/* Frees blocks that nobody holds, those used longest ago first. */
static void make_room(struct kvc_decoded *d, uint64_t most) {
    for (struct kvc_decoded_block *b = d->oldest, *newer; b && d->bytes > most; b = newer) {
        newer = b->newer;
        if (b->holders) continue;
        take_out(d, b);
        free(b);
    }
}

/* Takes out the blocks of a tensor that nobody holds. Returns one of this size, or NULL. */
static struct kvc_decoded_block *take_spare(struct kvc_decoded *d, uint32_t tensor, size_t size) {
    struct kvc_decoded_block *spare = NULL;
    for (struct kvc_decoded_block *b = d->chain[tensor % CHAINS], *next; b; b = next) {
        next = b->next;
        if (b->tensor != tensor || b->holders) continue;
        take_out(d, b);
        if (!spare && b->size == size) spare = b;
        else free(b);
    }
    return spare;
}

static struct kvc_decoded_block *find_and_hold(struct kvc_decoded *d, uint32_t tensor,
                                               uint64_t block, int kind) {
    struct kvc_decoded_block *b = d->chain[tensor % CHAINS];
    while (b && (b->tensor != tensor || b->block != block || b->kind != kind)) b = b->next;
    if (!b) return NULL;
    b->holders++;
    if (b == d->newest) return b;
    unlink_use(d, b);
    link_newest(d, b);
    return b;
}

/* --- the store --- */

struct kvc_decoded_block *kvc_decoded_block(struct kvc_decoded *d, uint32_t tensor, uint64_t block,
                                            int kind, size_t size, struct kvc_error *e) {
    struct kvc_decoded_block *b = NULL;
    if (d->one_each) {
        pthread_mutex_lock(&d->lock);
        b = take_spare(d, tensor, size);
        pthread_mutex_unlock(&d->lock);
    }
    if (!b && size < SIZE_MAX / 2) b = malloc(sizeof *b + size);
    if (b) *b = (struct kvc_decoded_block){tensor, kind, block, size, .holders = 1};
    else kvc_fail_memory(e, "a block");
    return b;
}

void kvc_decoded_put(struct kvc_decoded *d, struct kvc_decoded_block *b) {
    pthread_mutex_lock(&d->lock);
    b->next = d->chain[b->tensor % CHAINS];
    d->chain[b->tensor % CHAINS] = b;
    link_newest(d, b);
    d->bytes += b->size;
    make_room(d, d->most);
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

struct kvc_decoded_block *kvc_decoded_find(struct kvc_decoded *d, uint32_t tensor, uint64_t block,
                                           int kind) {
    pthread_mutex_lock(&d->lock);
    struct kvc_decoded_block *const b = find_and_hold(d, tensor, block, kind);
    pthread_mutex_unlock(&d->lock);
    return b;
}

void kvc_decoded_trim(struct kvc_decoded *d, uint64_t bytes) {
    pthread_mutex_lock(&d->lock);
    make_room(d, bytes);
    pthread_mutex_unlock(&d->lock);
}

struct kvc_decoded_block *kvc_decoded_await(struct kvc_decoded *d, uint32_t tensor, uint64_t block,
                                            int kind, const int *failed) {
    struct kvc_decoded_block *b;
    pthread_mutex_lock(&d->lock);
    while (!(b = find_and_hold(d, tensor, block, kind)) && !*failed)
        pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
    return b;
}

void kvc_decoded_fail(struct kvc_decoded *d, int *failed) {
    pthread_mutex_lock(&d->lock);
    *failed = 1;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}
