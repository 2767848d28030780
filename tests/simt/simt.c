/* simt.c: warps of a GPU on the host. A block is a thread, its lanes are fibers of the thread, each
 * with a stack of its own, which runs until its lane waits for others. Not for speed.
 *
 * ThreadSanitizer learns of the fibers, and that only __syncwarp(), __syncthreads(), the start and
 * the end of a launch order what lanes read and write (atomics order by their own rules). So it
 * reports every race between two lanes that both take part in a run, in whatever order the lanes
 * run. This file is compiled without ThreadSanitizer, as it sees all lanes. */
#include "tests/simt/simt.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

enum { WARP = 32, STACK = 256 << 10, PATIENCE = 120 /* seconds that a launch may take */ };

/* A jump from fiber to fiber takes no system call, as swapcontext() does; AddressSanitizer knows of
 * no such jumps. */
#if defined __has_feature
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
enum { JUMPS = 0 };
#else
enum { JUMPS = 1 };
#endif

/* In programs with ThreadSanitizer. Flag 1 of a switch: it orders nothing. */
extern void *__tsan_create_fiber(unsigned flags) __attribute__((weak));
extern void *__tsan_get_current_fiber(void) __attribute__((weak));
extern void __tsan_switch_to_fiber(void *fiber, unsigned flags) __attribute__((weak));
extern void __tsan_acquire(void *at) __attribute__((weak));
extern void __tsan_release(void *at) __attribute__((weak));

enum lane_state { READY, WAITING, ENDED };

struct fiber {
    ucontext_t context; /* where it begins, and without JUMPS goes on */
    jmp_buf place;      /* where it goes on, once it has begun */
    int begun;
    void *known; /* ThreadSanitizer's */
};

struct lane {
    struct fiber fiber;
    unsigned thread;
    enum lane_state state;
    /* what it waits for */
    enum simt_meeting meeting;
    uint32_t mask;
    unsigned from;
    uint64_t x, result;
    uint8_t arrival, departure; /* addresses, by which lanes that meet are ordered */
};

static struct block {
    struct fiber host; /* the thread itself */
    struct lane lane[SIMT_THREADS];
    unsigned n, made; /* lanes of the launch; those that have a stack */
    /* by warp: a bit for each lane that neither waits nor has ended */
    uint32_t ready[SIMT_THREADS / WARP];
    unsigned paused; /* pauses since a lane last met others */
    uint32_t random;
    time_t begun;
    uint8_t start, end; /* as arrival */
} blocks[SIMT_BLOCKS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, one_launch = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct {
    simt_kernel *kernel;
    void *arguments;
    unsigned blocks, threads;
    uint64_t number; /* of the launch */
    unsigned running, made;
    enum simt_order order;
    uint32_t seed;
} launch;

static _Thread_local struct block *own;
static _Thread_local struct lane *self;

static void acquire(uint8_t *at) {
    if (__tsan_acquire) __tsan_acquire(at);
}
static void release(uint8_t *at) {
    if (__tsan_release) __tsan_release(at);
}

/* --- what is wrong --- */

static const char *const meetings[] = {"__syncwarp", "__syncthreads", "a ballot", "a shuffle"};

static _Noreturn void give_up(const char *why) {
    fprintf(stderr, "simt: block %td, thread %u: %s\n", own - blocks, self ? self->thread : 0, why);
    for (unsigned i = 0; i < own->n; i++) {
        const struct lane *l = &own->lane[i];
        if (l->state == WAITING)
            fprintf(stderr, "  thread %u waits at %s, mask %08x\n", i, meetings[l->meeting],
                    l->mask);
        else fprintf(stderr, "  thread %u %s\n", i, l->state == READY ? "runs" : "has ended");
    }
    abort();
}

/* --- whose turn it is --- */

static void switch_fiber(struct fiber *from, struct fiber *to, struct lane *lane) {
    self = lane;
    if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(to->known, 1);
    if (!JUMPS || __tsan_switch_to_fiber) {
        if (swapcontext(&from->context, &to->context)) abort();
        return;
    }
    from->begun = 1;
    if (_setjmp(from->place)) return; /* another fiber jumped back */
    if (to->begun) _longjmp(to->place, 1);
    setcontext(&to->context);
    abort();
}

static uint32_t next_random(void) {
    own->random = own->random * 1664525u + 1013904223u;
    return own->random >> 8;
}

static void set_state(struct lane *l, enum lane_state state) {
    const uint32_t bit = UINT32_C(1) << l->thread % WARP;
    l->state = state;
    if (state == READY) own->ready[l->thread / WARP] |= bit;
    else own->ready[l->thread / WARP] &= ~bit;
}

/* Returns the lane that runs next, or NULL where none can. */
static struct lane *next_lane(void) {
    const unsigned n = own->n;
    const int down = launch.order == SIMT_DESCENDING;
    const unsigned at = self ? self->thread : down ? 0 : n - 1;
    unsigned i = launch.order == SIMT_RANDOM ? next_random() % n
                 : down                      ? (at + n - 1) % n
                                             : (at + 1) % n;
    for (unsigned k = 0; k < n; k++) {
        if (own->ready[i / WARP] >> i % WARP & 1) return &own->lane[i];
        if (down) i = i ? i - 1 : n - 1;
        else i = i + 1 < n ? i + 1 : 0;
    }
    return NULL;
}

/* Runs other lanes until it is this lane's turn again. */
static void run_others(void) {
    struct lane *const me = self, *const next = next_lane();
    if (!next) give_up("no lane can go on");
    if (next != me) switch_fiber(&me->fiber, &next->fiber, next);
}

void simt_pause(int wait) {
    enum { VISITS = 2 * SIMT_THREADS / WARP };
    const struct timespec while_others_run = {.tv_nsec = 50000};
    if (wait && ++own->paused > VISITS) { /* all lanes that could run wait for the other block */
        if (time(NULL) - own->begun > PATIENCE) give_up("waits for ever");
        nanosleep(&while_others_run, NULL);
    }
    if (wait || (launch.order == SIMT_RANDOM && next_random() % 4 == 0)) run_others();
}

unsigned simt_thread(void) {
    return self->thread;
}

/* --- meetings --- */

/* Returns 1 where a lane takes part in a meeting of lane l. */
static int takes_part(const struct lane *l, const struct lane *other) {
    if (other->state == ENDED) return 0;
    return l->meeting == SIMT_SYNC_BLOCK ||
           (other->thread / WARP == l->thread / WARP && l->mask >> other->thread % WARP & 1);
}

/* Returns what a shuffle gives a lane. */
static uint64_t shuffled(const struct lane *l) {
    const struct lane *from = &own->lane[l->thread / WARP * WARP + l->from];
    if (!takes_part(l, from)) give_up("a shuffle reads a lane that takes no part");
    return from->x;
}

/* Lets the lanes that meet lane l go on, once all of them wait for the same. */
static void end_meeting(const struct lane *l) {
    const struct lane met = *l;
    const int whole = met.meeting == SIMT_SYNC_BLOCK,
              ordered = whole || met.meeting == SIMT_SYNC_WARP;
    const unsigned first = whole ? 0 : met.thread / WARP * WARP,
                   end = whole ? own->n : first + WARP;
    uint64_t ballot = 0;
    if (!whole && own->ready[met.thread / WARP] & met.mask) return; /* the usual case, quickly */
    for (unsigned i = first; i < end; i++) {
        const struct lane *other = &own->lane[i];
        if (!takes_part(&met, other)) continue;
        if (other->state != WAITING || other->meeting != met.meeting || other->mask != met.mask)
            return;
        ballot |= (uint64_t)(other->x != 0) << i % WARP;
    }
    for (unsigned i = first; i < end; i++)
        if (takes_part(&met, &own->lane[i])) {
            own->lane[i].result = met.meeting == SIMT_SHUFFLE ? shuffled(&own->lane[i]) : ballot;
            if (ordered) acquire(&own->lane[i].arrival);
        }
    for (unsigned i = first; i < end; i++)
        if (takes_part(&met, &own->lane[i])) {
            if (ordered) release(&own->lane[i].departure);
            set_state(&own->lane[i], READY);
        }
}

uint64_t simt_meet(enum simt_meeting meeting, uint32_t mask, uint64_t x, unsigned from) {
    struct lane *const me = self;
    const int ordered = meeting == SIMT_SYNC_WARP || meeting == SIMT_SYNC_BLOCK;
    if (meeting != SIMT_SYNC_BLOCK && !(mask >> me->thread % WARP & 1))
        give_up("a lane's own bit is not in its mask");
    own->paused = 0;
    me->meeting = meeting;
    me->mask = mask;
    me->x = x;
    me->from = from;
    set_state(me, WAITING);
    if (ordered) release(&me->arrival);
    end_meeting(me);
    run_others();
    if (ordered) acquire(&me->departure);
    return me->result;
}

/* --- launches --- */

/* Runs a lane's part of each launch. */
static void run_lane(void) {
    for (;;) {
        struct lane *const me = self;
        acquire(&own->start);
        launch.kernel(launch.arguments);
        release(&own->end);
        set_state(me, ENDED);
        for (unsigned i = 0; i < own->n; i++) /* the others no longer wait for this lane */
            if (own->lane[i].state == WAITING) end_meeting(&own->lane[i]);
        struct lane *const next = next_lane();
        unsigned waiting = 0;
        for (unsigned i = 0; i < own->n; i++) waiting += own->lane[i].state == WAITING;
        if (!next && waiting) give_up("no lane can go on");
        switch_fiber(&me->fiber, next ? &next->fiber : &own->host, next);
    }
}

static void make_lane(struct lane *l, unsigned thread) {
    void *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED || getcontext(&l->fiber.context)) abort();
    l->thread = thread;
    l->fiber.context.uc_stack.ss_sp = stack;
    l->fiber.context.uc_stack.ss_size = STACK;
    if (__tsan_create_fiber) l->fiber.known = __tsan_create_fiber(0);
    makecontext(&l->fiber.context, run_lane, 0);
}

static void *run_block(void *arg) {
    struct block *const b = own = arg;
    const unsigned number = (unsigned)(b - blocks);
    uint64_t done = 0;
    if (__tsan_get_current_fiber) b->host.known = __tsan_get_current_fiber();
    for (;;) {
        pthread_mutex_lock(&lock);
        while (launch.number == done || number >= launch.blocks) {
            done = launch.number;
            pthread_cond_wait(&changed, &lock);
        }
        done = launch.number;
        pthread_mutex_unlock(&lock);
        b->n = launch.threads;
        b->random = launch.seed * 31 + number;
        b->begun = time(NULL);
        for (; b->made < b->n; b->made++) make_lane(&b->lane[b->made], b->made);
        for (unsigned i = 0; i < b->n; i++) set_state(&b->lane[i], READY);
        release(&b->start);
        struct lane *const first = next_lane();
        switch_fiber(&b->host, &first->fiber, first);
        acquire(&b->end);
        pthread_mutex_lock(&lock);
        launch.running--;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

void simt_set_order(enum simt_order order, uint32_t seed) {
    pthread_mutex_lock(&one_launch);
    launch.order = order;
    launch.seed = seed;
    pthread_mutex_unlock(&one_launch);
}

void simt_run(simt_kernel *kernel, void *arguments, unsigned n_blocks, unsigned threads) {
    if (!n_blocks || n_blocks > SIMT_BLOCKS || !threads || threads > SIMT_THREADS || threads % WARP)
        abort();
    pthread_mutex_lock(&one_launch);
    pthread_mutex_lock(&lock);
    for (; launch.made < n_blocks; launch.made++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run_block, &blocks[launch.made])) abort();
        pthread_detach(thread);
    }
    launch.kernel = kernel;
    launch.arguments = arguments;
    launch.blocks = launch.running = n_blocks;
    launch.threads = threads;
    launch.number++;
    pthread_cond_broadcast(&changed);
    while (launch.running) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&one_launch);
}
