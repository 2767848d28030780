/* test_shared.c: bytes that several threads make in parts: each part once, by threads at the same
 * time; failures; tags. */
#include "codecs/shared.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { THREADS = 4, PARTS = 7, FAILS = 3, TAG = 5 };

/* What a test and its threads share. */
struct scene {
    struct kvc_shared shared;
    pthread_mutex_t lock;
    pthread_cond_t begun;
    int together;     /* parts that must have begun before any ends */
    int fails;        /* the part that fails, or -1 */
    int count;        /* parts begun */
    int times[PARTS]; /* that each was made */
    int missed;       /* 1: a part did not find the others begun in time */
};

struct caller {
    struct scene *scene;
    pthread_t thread;
    const void *found;
    struct kvc_error error;
};

static int make(const void *what, void *bytes, size_t part, struct kvc_error *e) {
    struct scene *s = ((const struct caller *)what)->scene;
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 60;
    pthread_mutex_lock(&s->lock);
    s->times[part]++;
    s->count++;
    pthread_cond_broadcast(&s->begun);
    while (s->count < s->together && !s->missed)
        s->missed = pthread_cond_timedwait(&s->begun, &s->lock, &end) != 0;
    pthread_mutex_unlock(&s->lock);
    ((uint8_t *)bytes)[part] = (uint8_t)(part + 1);
    return (int)part == s->fails ? kvc_fail(e, KVC_ERR_DAMAGED, "part %zu", part) : 0;
}

static void *get(void *of) {
    struct caller *c = of;
    c->found = kvc_shared_get(&c->scene->shared, TAG, PARTS, PARTS, make, c, &c->error);
    return NULL;
}

/* Lets all threads ask at once. */
static void ask(struct scene *s, struct caller *c, int together, int fails) {
    struct kvc_error e;
    memset(s, 0, sizeof *s);
    s->together = together;
    s->fails = fails;
    assert_int_equal(kvc_shared_init(&s->shared, &e), 0);
    assert_int_equal(pthread_mutex_init(&s->lock, NULL), 0);
    assert_int_equal(pthread_cond_init(&s->begun, NULL), 0);
    for (int i = 0; i < THREADS; i++) {
        c[i] = (struct caller){.scene = s};
        assert_int_equal(pthread_create(&c[i].thread, NULL, get, &c[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_join(c[i].thread, NULL), 0);
    assert_int_equal(s->missed, 0);
}

static void leave(struct scene *s) {
    kvc_shared_free(&s->shared);
    pthread_cond_destroy(&s->begun);
    pthread_mutex_destroy(&s->lock);
}

/* As many parts begin at once as threads ask, and each is made once. */
static void parts(void **state) {
    struct scene s;
    struct caller c[THREADS];
    (void)state;
    ask(&s, c, THREADS, -1);
    for (int i = 0; i < THREADS; i++) {
        assert_ptr_equal(c[i].found, c[0].found);
        assert_non_null(c[i].found);
    }
    for (size_t p = 0; p < PARTS; p++) {
        assert_int_equal(s.times[p], 1);
        assert_int_equal(((const uint8_t *)c[0].found)[p], p + 1);
    }
    assert_ptr_equal(kvc_shared_get(&s.shared, TAG, PARTS, PARTS, make, &c[0], &c[0].error),
                     c[0].found);
    assert_int_equal(s.count, PARTS);
    assert_null(kvc_shared_get(&s.shared, TAG + 1, PARTS, PARTS, make, &c[0], &c[0].error));
    assert_int_equal(c[0].error.code, KVC_ERR_UNSUPPORTED);
    leave(&s);
}

/* All threads get the error of the part that failed. */
static void failures(void **state) {
    struct scene s;
    struct caller c[THREADS];
    (void)state;
    ask(&s, c, 1, FAILS);
    for (int i = 0; i < THREADS; i++) {
        assert_null(c[i].found);
        assert_int_equal(c[i].error.code, KVC_ERR_DAMAGED);
        assert_string_equal(c[i].error.message, "part 3");
    }
    for (size_t p = 0; p < PARTS; p++) assert_in_range(s.times[p], p <= FAILS, 1);
    leave(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts),
        cmocka_unit_test(failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
