/* tier.c: what all backends need: the clock of deadlines, waiting, circuit breakers, memory of
 * objects, secrets and messages without them. */
#include "formats/store/tier.h"

#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

kvc_instant kvc_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (kvc_instant)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

kvc_instant kvc_after(int64_t microseconds) {
    const kvc_instant now = kvc_now();
    return microseconds < INT64_MAX - now ? now + microseconds : INT64_MAX;
}

void kvc_condition_init(pthread_cond_t *cond) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

int kvc_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, kvc_instant until) {
    if (until == INT64_MAX) {
        pthread_cond_wait(cond, lock);
        return 1;
    }
    const struct timespec t = {.tv_sec = (time_t)(until / 1000000),
                               .tv_nsec = (long)(until % 1000000) * 1000};
    return pthread_cond_timedwait(cond, lock, &t) != ETIMEDOUT;
}

uint64_t kvc_jitter(uint64_t n) {
    static atomic_uint_least64_t state;
    uint64_t z = atomic_fetch_add(&state, UINT64_C(0x9e3779b97f4a7c15)) ^ (uint64_t)kvc_now() ^
                 (uint64_t)getpid() << 32; /* splitmix64 from here */
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return n ? (z ^ (z >> 31)) % n : 0;
}

/* --- circuit breakers --- */

#define FIRST_PAUSE 1000000
#define LONGEST_PAUSE 30000000

void kvc_breaker_init(struct kvc_breaker *b) {
    *b = (struct kvc_breaker){.failures = 0};
    pthread_mutex_init(&b->lock, NULL);
}

void kvc_breaker_free(struct kvc_breaker *b) {
    pthread_mutex_destroy(&b->lock);
}

int64_t kvc_breaker_is_open(struct kvc_breaker *b, char why[KVC_BREAKER_TEXT]) {
    const kvc_instant now = kvc_now();
    pthread_mutex_lock(&b->lock);
    const int open = b->failures >= KVC_BREAKER_FAILURES;
    const int64_t left = open && now < b->until ? b->until - now : 0;
    if (left) memcpy(why, b->why, sizeof b->why);
    else if (open) b->until = now + b->pause;
    pthread_mutex_unlock(&b->lock);
    return left;
}

void kvc_breaker_note(struct kvc_breaker *b, unsigned failures, const char *why) {
    pthread_mutex_lock(&b->lock);
    if (!failures) {
        b->failures = 0;
        b->pause = 0;
    } else {
        snprintf(b->why, sizeof b->why, "%s", why);
        b->failures += failures;
    }
    if (failures && b->failures >= KVC_BREAKER_FAILURES) {
        b->failures = KVC_BREAKER_FAILURES;
        b->pause = b->pause ? 2 * b->pause : FIRST_PAUSE;
        if (b->pause > LONGEST_PAUSE) b->pause = LONGEST_PAUSE;
        b->until = kvc_now() + b->pause + (kvc_instant)kvc_jitter((uint64_t)b->pause / 4);
    }
    pthread_mutex_unlock(&b->lock);
}

/* --- memory of objects --- */

#define PAGE ((size_t)2 << 20) /* a large page */
#define KEPT ((size_t)64 << 20)

/* Memory that begins a large page, and is kept; kept_bytes: all of it. */
static void *_Atomic kept[16];
static atomic_size_t kept_bytes;
enum { PLACES = sizeof kept / sizeof kept[0] };

static void *take_kept(int i) {
    void *p = atomic_exchange(&kept[i], NULL);
    if (p) atomic_fetch_sub(&kept_bytes, malloc_usable_size(p));
    return p;
}

/* Has large pages as far as they make it no more than an eighth larger. */
static void *new_memory(size_t size) {
    const size_t rest = size % PAGE;
    const size_t pages = size - rest + (rest && PAGE - rest <= size / 8 ? PAGE : 0);
    if (!pages) return malloc(size ? size : 1);
    void *p;
    if (posix_memalign(&p, PAGE, pages > size ? pages : size)) return NULL;
    madvise(p, pages, MADV_HUGEPAGE); /* memory it is without them, too */
    return p;
}

void *kvc_tier_memory(size_t size) {
    for (int i = 0; i < PLACES && size >= PAGE / 2; i++) {
        void *p = take_kept(i);
        const size_t room = p ? malloc_usable_size(p) : 0;
        if (size <= room && room / 2 <= size) return p;
        free(p); /* it is of objects of another size, which may not come again */
    }
    return new_memory(size);
}

void kvc_tier_free(void *data) {
    void *none = NULL;
    if (!data || (uintptr_t)data % PAGE) { /* malloc() gives memory that begins after a header */
        free(data);
        return;
    }
    const size_t size = malloc_usable_size(data);
    if (atomic_fetch_add(&kept_bytes, size) + size <= KEPT)
        for (int i = 0; i < PLACES; i++, none = NULL)
            if (atomic_compare_exchange_strong(&kept[i], &none, data)) return;
    atomic_fetch_sub(&kept_bytes, size);
    free(data);
}

void kvc_tier_free_kept(void) {
    for (int i = 0; i < PLACES; i++) free(take_kept(i));
}

/* --- secrets --- */

#define REPEATED 12 /* bytes of a secret */

/* Returns how many bytes two texts begin with that are equal. */
static size_t common(const char *a, const char *b) {
    size_t n = 0;
    while (a[n] && a[n] == b[n]) n++;
    return n;
}

void kvc_tier_redact(char *text, const char *secret) {
    const size_t length = secret ? strlen(secret) : 0,
                 least = length < REPEATED ? length : REPEATED;
    for (size_t longest; length && *text; text += longest ? longest : 1) {
        longest = 0;
        for (const char *p = secret; p + least <= secret + length; p++) {
            const size_t n = common(text, p);
            if (n >= least && n > longest) longest = n;
        }
        memset(text, '*', longest);
    }
}
