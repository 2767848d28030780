/* test_parallel.c: items done by several threads: commits in order, errors, slow commits, groups.
 * Not for packing by several threads (tests/cli/threads-same-bytes). */
#include "formats/io/parallel.h"

#include "formats/io/control_group.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { ITEMS = 100, NEVER = 1000 };

struct counting {
    atomic_int results, most_results; /* that exist, and existed at most */
    unsigned failing[2];              /* items, or NEVER */
    unsigned commits, out_of_order;
    long commit_ns; /* that a commit waits */
    pthread_t caller;
    atomic_int late; /* items in the calling thread after its third commit */
};

static void wait_ns(long ns) {
    const struct timespec time = {.tv_nsec = ns};
    nanosleep(&time, NULL);
}

static int count_work(void *state, uint64_t item, void **result, struct kvc_error *e) {
    struct counting *s = state;
    if (pthread_equal(pthread_self(), s->caller) && s->commits >= 3) s->late++;
    if (item % 7 == 3) wait_ns(200000);
    if (item == s->failing[0] || item == s->failing[1])
        return kvc_fail(e, KVC_ERR_IO, "item %u", (unsigned)item);
    uint64_t *number = malloc(sizeof *number);
    if (!number) return kvc_fail_memory(e, "a number");
    *number = item;
    *result = number;
    const int now = ++s->results;
    int most = s->most_results;
    while (now > most && !atomic_compare_exchange_weak(&s->most_results, &most, now)) continue;
    return 0;
}

static struct counting *counted;

static void count_discard(void *result) {
    free(result);
    counted->results--;
}

static int count_commit(void *state, uint64_t item, void *result, struct kvc_error *e) {
    struct counting *s = state;
    (void)e;
    s->out_of_order += *(uint64_t *)result != item || item != s->commits ||
                       !pthread_equal(pthread_self(), s->caller);
    if (s->commit_ns) wait_ns(s->commit_ns);
    s->commits++;
    count_discard(result);
    return 0;
}

static int count(struct counting *s, unsigned threads, struct kvc_error *e) {
    const struct kvc_job job = {.n = ITEMS,
                                .work = count_work,
                                .commit = count_commit,
                                .discard = count_discard,
                                .state = s};
    s->caller = pthread_self();
    counted = s;
    return kvc_parallel(&job, threads, e);
}

static void commits_in_order(void **state) {
    (void)state;
    for (unsigned threads = 0; threads < 7; threads++) {
        struct counting s = {.failing = {NEVER, NEVER}};
        struct kvc_error e;
        assert_int_equal(count(&s, threads, &e), 0);
        assert_int_equal(s.commits, ITEMS);
        assert_int_equal(s.out_of_order, 0);
        assert_int_equal(s.results, 0);
        if (threads) assert_in_range(s.most_results, 1, 3 * threads);
    }
}

/* The lowest failing item ends the job, and no result is left. */
static void lowest_error(void **state) {
    (void)state;
    for (unsigned threads = 1; threads < 7; threads++) {
        struct counting s = {.failing = {34, 31}};
        struct kvc_error e;
        assert_int_equal(count(&s, threads, &e), -1);
        assert_string_equal(e.message, "item 31");
        assert_int_equal(s.commits, 31);
        assert_int_equal(s.out_of_order, 0);
        assert_int_equal(s.results, 0);
    }
}

/* Where commits wait for their output, the calling thread soon does nothing else. */
static void slow_commits(void **state) {
    (void)state;
    struct counting s = {.failing = {NEVER, NEVER}, .commit_ns = 4000000};
    struct kvc_error e;
    assert_int_equal(count(&s, 2, &e), 0);
    assert_int_equal(s.commits, ITEMS);
    assert_int_equal(s.out_of_order, 0);
    assert_int_equal(s.late, 0);
}

struct meeting {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t begun[4]; /* in their order */
    unsigned n;
};

/* Item 0 waits until another one has begun. */
static int meet(void *state, uint64_t item, void **result, struct kvc_error *e) {
    struct meeting *m = state;
    (void)result, (void)e;
    pthread_mutex_lock(&m->lock);
    m->begun[m->n++] = item;
    pthread_cond_broadcast(&m->changed);
    while (item == 0 && m->n < 2) pthread_cond_wait(&m->changed, &m->lock);
    pthread_mutex_unlock(&m->lock);
    return 0;
}

static uint32_t half(const void *state, uint64_t item) {
    (void)state;
    return (uint32_t)(item / 2);
}

static void groups_apart(void **state) {
    (void)state;
    for (int grouped = 0; grouped < 2; grouped++) {
        struct meeting m = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
        const struct kvc_job job = {.n = 4,
                                    .work = meet,
                                    .group = grouped ? half : NULL,
                                    .state = &m};
        struct kvc_error e;
        assert_int_equal(kvc_parallel(&job, 2, &e), 0);
        assert_int_equal(m.n, 4);
        /* items 0 and 2, or 0 and 1, in any order */
        assert_int_equal(m.begun[0] + m.begun[1], grouped ? 2 : 1);
    }
}

/* Without a number there are as many threads as cores that the process may use. */
static void allowed_cores(void **state) {
    (void)state;
    cpu_set_t all, one;
    size_t first = 0;
    if (sched_getaffinity(0, sizeof all, &all)) skip();
    const uint64_t cores = (uint64_t)CPU_COUNT(&all), limit = kvc_core_limit();
    assert_int_equal(kvc_parallel_threads(0), cores < limit ? cores : limit);
    while (!CPU_ISSET(first, &all)) first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(kvc_parallel_threads(0), 1);
    assert_int_equal(kvc_parallel_threads(3), 3);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(commits_in_order),
                                       cmocka_unit_test(lowest_error),
                                       cmocka_unit_test(slow_commits),
                                       cmocka_unit_test(groups_apart),
                                       cmocka_unit_test(allowed_cores)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
