/* test_store_progress.c: what callers are told while a store packs and reads, and how they cancel.
 */
#include "store_support.h"

#include "formats/api/kvc_file.h"

#include <poll.h>

enum { TENSOR_BYTES = ARRAYS * CHUNK * ROW }; /* of a chunk */

struct heard {
    unsigned calls, cancel_at; /* number of the call that cancels; 0: none does */
    uint64_t done, total;
};

static int hear(void *state, uint64_t done, uint64_t total) {
    struct heard *h = state;
    assert_true(done > h->done || done == total);
    assert_true(done <= total);
    h->done = done;
    h->total = total;
    return ++h->calls == h->cancel_at;
}

static int put_heard(struct kvc_store_namespace *ns, const struct made *x, struct heard *h,
                     struct kvc_error *e) {
    const struct kvc_store_put_options o = {.size = sizeof o,
                                            .wait = 1,
                                            .progress = hear,
                                            .progress_state = h};
    return kvc_store_put(ns, x->f, &o, e);
}

static void putting(void **state) {
    (void)state;
    struct made *x = make(5 * CHUNK + 10, 3, NULL), *y = make(2 * CHUNK, 3, NULL);
    struct kvc_store *s = open_store("put", "");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    struct kvc_error e = {.code = KVC_OK};
    struct heard first = {0}, rest = {0}, again = {0};
    assert_int_equal(put_heard(ns, y, &first, &e), 0);
    assert_int_equal(first.total, 2 * TENSOR_BYTES);
    assert_int_equal(first.done, first.total);
    /* what the store has is not packed */
    assert_int_equal(put_heard(ns, x, &rest, &e), 0);
    assert_int_equal(rest.total, 3 * TENSOR_BYTES);
    assert_int_equal(rest.done, rest.total);
    assert_int_equal(put_heard(ns, x, &again, &e), 0);
    assert_int_equal(again.calls, 0);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
    unmake(y);
}

/* The work goes on while the caller is told, so that a call which cancels may come after the last
 * object. */
static void cancelled_puts(void **state) {
    (void)state;
    unsigned cancelled = 0;
    for (int seed = 1; seed <= 20; seed++) {
        struct made *x = make(8 * CHUNK, 1000 * seed, NULL);
        struct kvc_store *s = open_store("cut", "");
        struct kvc_store_namespace *ns = open_namespace(s, x);
        struct kvc_error e = {.code = KVC_OK};
        struct heard h = {.cancel_at = 1};
        const int status = put_heard(ns, x, &h, &e);
        assert_int_equal(h.calls, 1);
        const uint64_t found = read_back(ns, x);
        if (status) {
            assert_non_null(strstr(e.message, "cancelled by the caller"));
            assert_true(found < 8 * CHUNK);
            cancelled++;
        } else {
            assert_int_equal(found, 8 * CHUNK);
        }
        kvc_store_namespace_close(ns);
        kvc_store_close(s);
        unmake(x);
    }
    assert_true(cancelled > 0);
}

/* A cache with a sliding window is one object. */
static void whole_caches(void **state) {
    (void)state;
    struct made *x = make(CHUNK, 3, NULL);
    const struct kvc_select_options all = {.size = sizeof all};
    struct kvc_store *s = open_store("whole", "");
    struct kvc_error e = {.code = KVC_OK};
    struct heard h = {0};
    struct kvc_file *f = kvc_file_select(x->f, &all, &e);
    assert_non_null(f);
    struct kvc_store_namespace *ns = open_namespace(s, x);
    for (uint32_t p = 0; p < f->cache->n_parts; p++) f->cache->part[p].kind = KVC_PART_WINDOW;
    const struct kvc_store_put_options o = {.size = sizeof o,
                                            .wait = 1,
                                            .progress = hear,
                                            .progress_state = &h};
    kvc_store_put(ns, f, &o, &e);
    assert_int_equal(h.total, TENSOR_BYTES);
    assert_int_equal(h.done, h.total);
    kvc_file_close(f);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

static int count_chunk(void *state, uint64_t first, uint64_t tokens, const void *data,
                       size_t size) {
    (void)first, (void)data, (void)size;
    *(uint64_t *)state += tokens;
    return 0;
}

static void reading(void **state) {
    (void)state;
    struct made *x = make(4 * CHUNK, 3, NULL), *y = calloc(1, sizeof *y);
    struct kvc_store *s = open_store("get", "");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    struct kvc_store_hit_info info = {.size = sizeof info};
    struct kvc_error e;
    put(ns, x);
    struct kvc_store_hit *hit = find_n(ns, x->ids, 4 * CHUNK);
    assert_int_equal(kvc_store_hit_describe(hit, &info), 0);
    describe(y, 4 * CHUNK);
    for (unsigned at = 0; at <= 4; at++) {
        struct heard got = {.cancel_at = at}, loaded = {.cancel_at = at}, given = {.cancel_at = at};
        struct kvc_store_load_options o = {.size = sizeof o,
                                           .progress = hear,
                                           .progress_state = &got};
        const uint64_t calls = at ? at : 4, end = at ? (at - 1) * CHUNK : 4 * CHUNK;
        uint64_t tokens = 0;
        struct kvc_file *f = kvc_store_get(hit, &o, &e);
        assert_int_equal(!f, at != 0);
        assert_int_equal(e.code, at ? KVC_ERR_IO : KVC_OK);
        kvc_file_close(f);
        o.progress_state = &loaded;
        assert_int_equal(kvc_store_load(hit, &y->m, &o, &e), end);
        for (unsigned i = 0; i < ARRAYS; i++)
            assert_memory_equal(y->rows[i], x->rows[i], end * ROW);
        o.progress_state = &given;
        assert_int_equal(kvc_store_chunks(hit, &o, count_chunk, &tokens, &e), end);
        assert_int_equal(tokens, calls * CHUNK);
        assert_int_equal(got.calls, calls);
        assert_int_equal(loaded.calls, calls);
        assert_int_equal(given.calls, calls);
        assert_int_equal(got.total, info.bytes);
        assert_int_equal(got.done == got.total, calls == 4);
        assert_int_equal(found_of(hit), 4 * CHUNK); /* nothing of it is gone */
        assert_int_equal(counted(s, KVC_COUNT_SHORT), 0);
    }
    free(y);
    kvc_store_hit_free(hit);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

/* Requests in the background tell nothing: it would be in another thread. */
static void in_background(void **state) {
    (void)state;
    struct made *x = make(2 * CHUNK, 3, NULL), *y = calloc(1, sizeof *y);
    struct kvc_store *s = open_store("back", "");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    struct heard h = {.cancel_at = 1};
    const struct kvc_store_load_options o = {.size = sizeof o,
                                             .progress = hear,
                                             .progress_state = &h};
    struct kvc_store_event event = {.size = sizeof event};
    struct kvc_error e;
    put(ns, x);
    describe(y, 2 * CHUNK);
    assert_true(kvc_store_submit(ns, x->ids, 2 * CHUNK, &y->m, &o, &e) > 0);
    struct pollfd wait = {.fd = kvc_store_fd(s), .events = POLLIN};
    assert_int_equal(poll(&wait, 1, 60000), 1);
    assert_int_equal(kvc_store_poll(s, &event), 1);
    assert_int_equal(event.end, 2 * CHUNK);
    assert_int_equal(h.calls, 0);
    free(y);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(putting), cmocka_unit_test(cancelled_puts), cmocka_unit_test(whole_caches),
        cmocka_unit_test(reading), cmocka_unit_test(in_background),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
