/* test_store_hits.c: caches put into a directory store and found again: loads of all layouts,
 * ranges, extras, tiers, hints, the queue, requests in the background, limits and times. */
#include "store_support.h"

#include "formats/store/dir/dir.h"

#include <poll.h>

static void round_trip(void **state) {
    (void)state;
    struct made *x = make(5 * CHUNK + 10, 3, NULL), *y = make(3 * CHUNK, 3, NULL);
    struct kvc_store *s = open_store("a", "");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    struct kvc_error e;
    assert_int_equal(count_found(ns, x), 0);
    put(ns, y);
    assert_int_equal(count_found(ns, x), 3 * CHUNK);
    put(ns, x);
    put(ns, x);
    assert_int_equal(counted(s, KVC_COUNT_PUT), 5);
    assert_int_equal(read_back(ns, x), 5 * CHUNK);
    assert_int_equal(read_back(ns, y), 3 * CHUNK);
    /* other tokens from the middle of a chunk on, from the first on; too few for a chunk */
    x->ids[2 * CHUNK + 1]++;
    assert_int_equal(count_found(ns, x), 2 * CHUNK);
    x->ids[0]++;
    assert_int_equal(count_found(ns, x), 0);
    x->ids[0]--;
    x->ids[2 * CHUNK + 1]--;
    struct kvc_store_hit *hit = find_n(ns, x->ids, CHUNK - 1);
    assert_int_equal(found_of(hit), 0);
    kvc_store_hit_free(hit);
    hit = find_n(ns, x->ids, 0);
    assert_int_equal(found_of(hit), 0);
    assert_null(kvc_store_get(hit, NULL, &e));
    assert_int_equal(e.code, KVC_OK);
    kvc_store_hit_free(hit);
    /* a process of later on */
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    s = open_store("a", "");
    ns = open_namespace(s, y);
    assert_int_equal(read_back(ns, x), 5 * CHUNK);
    assert_int_equal(kvc_store_drop(ns, &e), 6); /* with the facts */
    assert_int_equal(count_found(ns, x), 0);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
    unmake(y);
}

/* --- loading --- */

static void ranges(void **state) {
    (void)state;
    struct made *x = make(4 * CHUNK, 3, NULL);
    struct kvc_store *s = open_store("r", "");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    put(ns, x);
    struct kvc_store_hit *hit = find_n(ns, x->ids, 4 * CHUNK);
    static const uint64_t firsts[] = {0, 1, 255, 256, 257, 511, 700, 1023, 1024};
    for (size_t i = 0; i < sizeof firsts / sizeof firsts[0]; i++)
        for (uint64_t n = 0; n <= 4 * CHUNK - firsts[i]; n += 151)
            assert_int_equal(load_and_compare(hit, x, firsts[i], n), firsts[i] + n);
    /* more than there is: what is there comes */
    struct made *y = calloc(1, sizeof *y);
    describe(y, 2 * CHUNK);
    y->m.first_position = 3 * CHUNK;
    struct kvc_error e;
    y->a[1].tokens = y->m.tokens; /* as 0 */
    assert_int_equal(kvc_store_load(hit, &y->m, NULL, &e), 4 * CHUNK);
    for (unsigned i = 0; i < ARRAYS; i++)
        assert_memory_equal(y->rows[i], x->rows[i] + 3 * CHUNK * ROW, CHUNK * ROW);
    /* what makes no sense */
    y->m.first_position = 4 * CHUNK + 1;
    assert_int_equal(kvc_store_load(hit, &y->m, NULL, &e), -1);
    assert_int_equal(e.code, KVC_ERR_USAGE);
    y->m.first_position = 0;
    y->a[1].tokens = 5;
    assert_int_equal(kvc_store_load(hit, &y->m, NULL, &e), -1);
    assert_int_equal(e.code, KVC_ERR_NOT_SLICEABLE);
    /* as a cache */
    for (uint64_t first = 0; first < 4 * CHUNK; first += CHUNK) {
        const struct kvc_store_load_options o = {.size = sizeof o,
                                                 .first = first,
                                                 .end = first + 1};
        struct kvc_file *f = kvc_store_get(hit, &o, &e);
        if (!f) fail_msg("%s", e.message);
        uint8_t rows[CHUNK * ROW];
        uint64_t n;
        assert_int_equal(kvc_file_position(f, 0, 0), first);
        assert_int_equal(kvc_file_read(f, 0, 0, CHUNK, rows, sizeof rows, &e), 0);
        assert_memory_equal(rows, x->rows[0] + first * ROW, sizeof rows);
        assert_memory_equal(kvc_file_tokens(f, &n), x->ids + first, CHUNK * sizeof *x->ids);
        kvc_file_close(f);
    }
    const struct kvc_store_load_options empty = {.size = sizeof empty, .first = 5, .end = 5};
    assert_null(kvc_store_get(hit, &empty, &e));
    assert_int_equal(e.code, KVC_ERR_USAGE);
    free(y);
    kvc_store_hit_free(hit);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

/* Pages of 48 slots in an order of their own, rows of 3 times their bytes, in a pool that begins in
 * the middle of a page. */
static void pages(void **state) {
    (void)state;
    enum { PAGE = 48, PAGES = 24, FIRST = 17, WIDE = 3 * ROW, TOKENS = 4 * CHUNK - 30 };
    struct made *x = make(4 * CHUNK, 3, NULL);
    struct kvc_store *s = open_store("p", "");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    put(ns, x);
    struct kvc_store_hit *hit = find_n(ns, x->ids, 4 * CHUNK);
    uint32_t table[PAGES];
    for (uint32_t i = 0; i < PAGES; i++) table[i] = i * 7 % PAGES;
    uint8_t *pool[ARRAYS];
    struct kvc_memory_array a[ARRAYS];
    struct kvc_memory m = {.size = sizeof m,
                           .array_size = sizeof a[0],
                           .arrays = a,
                           .n_arrays = ARRAYS,
                           .tokens = TOKENS,
                           .first_position = 20,
                           .page_size = PAGE,
                           .table = table,
                           .n_table = PAGES,
                           .first_slot = FIRST};
    for (unsigned i = 0; i < ARRAYS; i++) {
        pool[i] = malloc(PAGES * PAGE * WIDE);
        assert_non_null(pool[i]);
        memset(pool[i], 0xee, PAGES * PAGE * WIDE);
        a[i] = (struct kvc_memory_array){.role = i % 2 ? "V" : "K",
                                         .layer = i / 2,
                                         .dtype = "f16",
                                         .heads = 1,
                                         .dim = DIM,
                                         .data = pool[i],
                                         .page = PAGE * WIDE,
                                         .token = WIDE,
                                         .head = WIDE,
                                         .channel = 6};
    }
    struct kvc_error e;
    assert_int_equal(kvc_store_load(hit, &m, NULL, &e), TOKENS + 20);
    for (unsigned i = 0; i < ARRAYS; i++) {
        for (uint64_t t = 0; t < TOKENS; t++) {
            const uint64_t slot = FIRST + t;
            const uint8_t *row = pool[i] + (table[slot / PAGE] * PAGE + slot % PAGE) * WIDE;
            for (unsigned c = 0; c < DIM; c++)
                assert_memory_equal(row + 6 * c, x->rows[i] + (t + 20) * ROW + 2 * c, 2);
        }
    }
    /* pages that lie one over the other, also where each chunk has one of them */
    m.first_position = 0;
    m.first_slot = 0;
    m.page_size = CHUNK;
    a[1].page = 0;
    assert_int_equal(kvc_store_load(hit, &m, NULL, &e), -1);
    assert_int_equal(e.code, KVC_ERR_USAGE);
    for (unsigned i = 0; i < ARRAYS; i++) free(pool[i]);
    kvc_store_hit_free(hit);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

struct chunks {
    uint64_t next;
    unsigned stop;
};
static int take_chunk(void *state, uint64_t first, uint64_t tokens, const void *data, size_t size) {
    struct chunks *c = state;
    assert_int_equal(first, c->next);
    assert_int_equal(tokens, CHUNK);
    struct kvc_file *f = kvc_file_open_memory(data, size, NULL, NULL);
    assert_non_null(f);
    kvc_file_close(f);
    c->next += CHUNK;
    return c->stop && !--c->stop;
}

static void chunks(void **state) {
    (void)state;
    struct made *x = make(4 * CHUNK, 3, NULL);
    struct kvc_store *s = open_store("c", "");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    struct kvc_error e;
    put(ns, x);
    struct kvc_store_hit *hit = find_n(ns, x->ids, 4 * CHUNK);
    struct chunks c = {.next = 0};
    assert_int_equal(kvc_store_chunks(hit, NULL, take_chunk, &c, &e), 4 * CHUNK);
    /* who stops does not make the rest missing */
    c = (struct chunks){.stop = 2};
    kvc_store_chunks(hit, NULL, take_chunk, &c, &e);
    assert_int_equal(c.next, 2 * CHUNK);
    assert_int_equal(found_of(hit), 4 * CHUNK);
    assert_int_equal(counted(s, KVC_COUNT_SHORT), 0);
    assert_int_equal(load_and_compare(hit, x, 0, 4 * CHUNK), 4 * CHUNK);
    kvc_store_hit_free(hit);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

/* --- extras --- */

static void extras(void **state) {
    (void)state;
    struct made *x = make(3 * CHUNK, 3, NULL);
    struct kvc_store *s = open_store("e", "");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    struct kvc_error e;
    const struct kvc_prefix_extra image = {.position = CHUNK + 5,
                                           .tag = 1,
                                           .bytes = "0123456789abcdef",
                                           .size = 16};
    const struct kvc_prefix_extra other = {.position = CHUNK + 5,
                                           .tag = 1,
                                           .bytes = "0123456789abcdeF",
                                           .size = 16};
    const struct kvc_prefix_extra wrong[] = {{.position = 1, .tag = 0, .size = 0},
                                             {.position = 1, .tag = 256, .size = 0}};
    const struct kvc_store_put_options o = {.size = sizeof o,
                                            .wait = 1,
                                            .extras = &image,
                                            .n_extras = 1};
    e.code = KVC_OK;
    if (kvc_store_put(ns, x->f, &o, &e) || e.code) fail_msg("%s", e.message);
    static const uint64_t due[] = {CHUNK, 3 * CHUNK, CHUNK};
    const struct kvc_prefix_extra *const asked[] = {NULL, &image, &other};
    for (unsigned i = 0; i < 3; i++) {
        const struct kvc_store_find_options f = {.size = sizeof f,
                                                 .extras = asked[i],
                                                 .n_extras = asked[i] != NULL};
        struct kvc_store_hit *hit = kvc_store_find(ns, x->ids, 3 * CHUNK, &f, &e);
        assert_non_null(hit);
        assert_int_equal(found_of(hit), due[i]);
        assert_int_equal(load_and_compare(hit, x, 0, due[i]), due[i]);
        kvc_store_hit_free(hit);
    }
    for (unsigned i = 0; i < 2; i++) {
        const struct kvc_store_find_options f = {.size = sizeof f,
                                                 .extras = &wrong[i],
                                                 .n_extras = 1};
        assert_null(kvc_store_find(ns, x->ids, 3 * CHUNK, &f, &e));
        assert_int_equal(e.code, KVC_ERR_USAGE);
    }
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

/* --- tiers --- */

static void two_tiers(void **state) {
    (void)state;
    char a[200], b[200], chain[500];
    struct made *x = make(6 * CHUNK, 3, NULL);
    struct kvc_store *slow = open_store("lb", "");
    struct kvc_store_namespace *ns = open_namespace(slow, x);
    put(ns, x);
    kvc_store_namespace_close(ns);
    kvc_store_close(slow);
    snprintf(chain, sizeof chain, "%s,%s", tier_url(a, sizeof a, "la", ""),
             tier_url(b, sizeof b, "lb", ""));
    struct kvc_store *s = open_store_with(chain, &patient);
    ns = open_namespace(s, x);
    struct kvc_store_hit *hit = find_n(ns, x->ids, 6 * CHUNK);
    struct kvc_store_hit_info info = {.size = sizeof info};
    kvc_store_hit_describe(hit, &info);
    assert_string_equal(info.tiers, "dir 1536");
    assert_int_equal(hit->tier[0], 1);
    assert_int_equal(load_and_compare(hit, x, 0, 6 * CHUNK), 6 * CHUNK);
    kvc_store_hit_free(hit);
    wait_for_all(s);
    assert_true(counted(s, KVC_COUNT_BACKFILL) >= 6);
    hit = find_n(ns, x->ids, 6 * CHUNK);
    assert_int_equal(found_of(hit), 6 * CHUNK);
    for (unsigned i = 0; i < 6; i++) assert_int_equal(hit->tier[i], 0);
    assert_int_equal(load_and_compare(hit, x, 0, 6 * CHUNK), 6 * CHUNK);
    kvc_store_hit_free(hit);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    /* the faster tier stands alone */
    s = open_store("la", "");
    ns = open_namespace(s, x);
    assert_int_equal(read_back(ns, x), 6 * CHUNK);
    struct kvc_error e;
    const char digits[3] = {*kvc_store_namespace_name(ns), kvc_store_namespace_name(ns)[1], '\0'};
    struct kvc_store_namespace *named = kvc_store_namespace_named(s, digits, NULL, &e);
    if (!named) fail_msg("%s", e.message);
    assert_string_equal(kvc_store_namespace_facts(named), kvc_store_namespace_facts(ns));
    assert_string_equal(kvc_store_namespace_name(named), kvc_store_namespace_name(ns));
    assert_int_equal(read_back(named, x), 6 * CHUNK);
    kvc_store_namespace_close(named);
    assert_null(kvc_store_namespace_named(s, "zz", NULL, &e));
    assert_null(kvc_store_namespace_named(s, "", NULL, &e));
    struct kvc_store_hit *none = kvc_store_find(ns, NULL, 0, NULL, &e);
    assert_int_equal(found_of(none), 0);
    assert_int_equal(kvc_store_pin(none, INT64_MAX, &e), 0); /* a sum that would overflow */
    kvc_store_hit_free(none);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

/* --- the queue, requests in the background --- */

static void count_done(void *state, int stored) {
    atomic_fetch_add((atomic_int *)state, stored ? 1 : 100);
}

static void queue(void **state) {
    (void)state;
    char url[200];
    struct kvc_store_options o = patient;
    struct made *x = make(8 * CHUNK, 3, NULL), *y = make(8 * CHUNK, 4, NULL);
    atomic_int done = 0;
    o.queue_bytes = 1; /* one at a time */
    o.threads = 1;
    struct kvc_store *s = open_store_with(tier_url(url, sizeof url, "q", ""), &o);
    struct kvc_store_namespace *ns = open_namespace(s, x);
    const struct kvc_store_put_options later = {.size = sizeof later,
                                                .done = count_done,
                                                .state = &done};
    int dropped = 0, taken = 0;
    for (int i = 0; i < 50; i++) {
        const int status = kvc_store_put(ns, i % 2 ? y->f : x->f, &later, NULL);
        assert_true(status == 0 || status == 1);
        if (status) dropped++;
        else taken++;
    }
    assert_true(taken > 0 && dropped > 0);
    wait_for_all(s);
    assert_int_equal(done, taken);
    assert_int_equal(counted(s, KVC_COUNT_DROPPED), dropped);
    /* nothing is left in the queue, and nothing more was taken off it than was put */
    assert_int_equal(s->waiting, 0);
    assert_int_equal(s->waiting_bytes, 0);
    assert_int_equal(kvc_store_put(ns, y->f, &later, NULL), 0);
    wait_for_all(s);
    assert_int_equal(read_back(ns, y), 8 * CHUNK);
    wait_for_all(s);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
    unmake(y);
}

static void events(void **state) {
    (void)state;
    enum { REQUESTS = 12 };
    struct made *x = make(4 * CHUNK, 3, NULL), *y[REQUESTS];
    struct kvc_store *s = open_store("ev", "");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    struct kvc_error e;
    int64_t number[REQUESTS];
    int came[REQUESTS] = {0};
    struct kvc_store_event event = {.size = sizeof event};
    put(ns, x);
    const size_t event_size = event.size;
    event.size = 0;
    assert_int_equal(kvc_store_poll(s, &event), -1);
    event.size = event_size;
    assert_int_equal(kvc_store_poll(s, &event), 0);
    for (int i = 0; i < REQUESTS; i++) {
        y[i] = calloc(1, sizeof *y[i]);
        describe(y[i], 4 * CHUNK - 64 * (uint64_t)i);
        y[i]->m.first_position = 64 * i;
        if (i == 5) y[i]->m.first_position = 5 * CHUNK; /* makes no sense */
        number[i] = kvc_store_submit(ns, x->ids, 4 * CHUNK, &y[i]->m, NULL, &e);
        assert_true(number[i] > 0);
    }
    for (int n = 0; n < REQUESTS;) {
        struct pollfd p = {.fd = kvc_store_fd(s), .events = POLLIN};
        assert_int_equal(poll(&p, 1, 60000), 1);
        while (kvc_store_poll(s, &event) == 1) {
            int i = 0;
            while (i < REQUESTS && number[i] != event.number) i++;
            assert_true(i < REQUESTS && !came[i]++);
            n++;
            assert_int_equal(event.code, i == 5 ? KVC_ERR_USAGE : 0);
            if (i == 5) continue;
            assert_int_equal(event.end, 4 * CHUNK);
            for (unsigned k = 0; k < ARRAYS; k++)
                assert_memory_equal(y[i]->rows[k], x->rows[k] + 64 * i * ROW, y[i]->m.tokens * ROW);
        }
    }
    assert_int_equal(kvc_store_poll(s, &event), 0);
    struct pollfd p = {.fd = kvc_store_fd(s), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 0), 0);
    /* a store that is closed forgets events that nobody took */
    assert_true(kvc_store_submit(ns, x->ids, 4 * CHUNK, &y[0]->m, NULL, &e) > 0);
    wait_for_all(s);
    for (int i = 0; i < REQUESTS && poll(&p, 1, 60000) != 1; i++) continue;
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    for (int i = 0; i < REQUESTS; i++) free(y[i]);
    unmake(x);
}

/* --- limits and times --- */

static struct kvc_dir *directory(const struct kvc_store *s) {
    return (struct kvc_dir *)s->tier[0].tier;
}

static uint64_t bytes_of(struct kvc_store *s) {
    struct kvc_store_tier_info facts;
    struct kvc_error e;
    assert_int_equal(kvc_tier_dir.facts(s->tier[0].tier, &facts, INT64_MAX, &e), 0);
    return (uint64_t)facts.bytes;
}

static void limits(void **state) {
    (void)state;
    struct made *x = make(4 * CHUNK, 3, NULL);
    struct kvc_store *s = open_store("full", "&max-size=20000");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    for (int32_t i = 0; i < 12; i++) {
        struct made *y = make(4 * CHUNK, 10 * i, NULL);
        put(ns, y);
        assert_true(bytes_of(s) <= 20000);
        const uint64_t n = count_found(ns, y);
        assert_int_equal(read_back(ns, y), n);
        unmake(y);
    }
    assert_true(counted(s, KVC_COUNT_PUT) > 0);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    /* an object that is larger than the limit evicts nothing, and does not make the tier a failing
     * one */
    struct made *big = make(8 * CHUNK, 3, NULL);
    s = open_store("small", "&max-size=9000");
    ns = open_namespace(s, x);
    put(ns, x);
    const uint64_t before = count_found(ns, x);
    assert_true(before > 0);
    const struct kvc_store_namespace_options wide = {.size = sizeof wide,
                                                     .chunk = 8 * CHUNK,
                                                     .recipe = "store"};
    struct kvc_store_namespace *huge = open_namespace_with(s, big, &wide);
    const struct kvc_store_put_options wait = {.size = sizeof wait, .wait = 1};
    struct kvc_error e = {.code = KVC_OK};
    for (int i = 0; i < 5; i++) kvc_store_put(huge, big->f, &wait, &e);
    assert_non_null(strstr(e.message, "larger than the limit"));
    assert_int_equal(counted(s, KVC_COUNT_FAILED), 5);
    assert_int_equal(count_found(huge, big), 0);
    assert_int_equal(count_found(ns, x), before);
    assert_int_equal(s->tier[0].count[KVC_TIER_FAILURES], 0);
    kvc_store_namespace_close(huge);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(big);
    unmake(x);
}

static void times(void **state) {
    (void)state;
    struct made *x = make(2 * CHUNK, 3, NULL);
    struct kvc_store *s = open_store("t", "&grace=3s");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    const struct kvc_store_put_options brief = {.size = sizeof brief, .wait = 1, .seconds = 3};
    struct kvc_error e = {.code = KVC_OK};
    struct kvc_store_cleaned counts;
    const struct kvc_store_clean_options usual = {.evict = 0}, all = {.evict = 1, .max_size = 0};
    assert_int_equal(kvc_store_put(ns, x->f, &brief, &e), 0);
    assert_int_equal(count_found(ns, x), 2 * CHUNK);
    sleep(4);
    assert_int_equal(count_found(ns, x), 0);
    /* what has expired is put again, though its files are still there */
    put(ns, x);
    assert_int_equal(read_back(ns, x), 2 * CHUNK);
    assert_int_equal(kvc_dir_clean(&directory(s)->tier, &usual, &counts, &e), 0);
    assert_int_equal(counts.expired, 0);
    /* what was found can be read for the grace */
    struct kvc_store_hit *hit = find_n(ns, x->ids, 2 * CHUNK);
    assert_int_equal(kvc_dir_clean(&directory(s)->tier, &all, &counts, &e), 0);
    assert_int_equal(counts.evicted, 2);
    assert_int_equal(count_found(ns, x), 0);
    assert_int_equal(load_and_compare(hit, x, 0, 2 * CHUNK), 2 * CHUNK);
    sleep(5);
    assert_int_equal(kvc_dir_clean(&directory(s)->tier, &usual, &counts, &e), 0);
    assert_int_equal(load_and_compare(hit, x, 0, 2 * CHUNK), 0);
    assert_int_equal(counted(s, KVC_COUNT_GONE), 1);
    struct kvc_store_counter_info info = {.size = sizeof info};
    size_t n = 0;
    for (uint64_t gone = 0; !kvc_store_counter_describe(s, n, &info); n++) {
        assert_true(*info.what && info.value == kvc_store_counter(s, info.name));
        if (strcmp(info.name, "gone_objects") == 0) assert_int_equal(gone += info.value, 1);
    }
    assert_int_equal(n, KVC_COUNTERS);
    kvc_store_hit_free(hit);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    s = open_store("ta", "&max-age=3s");
    ns = open_namespace(s, x);
    put(ns, x);
    sleep(5);
    assert_int_equal(count_found(ns, x), 0);
    put(ns, x);
    assert_int_equal(read_back(ns, x), 2 * CHUNK);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

/* The longest times there are: nothing expires early, and no deadline has passed before it began.
 */
static void far(void **state) {
    (void)state;
    struct made *x = make(2 * CHUNK, 3, NULL);
    struct kvc_store *s = open_store("far", "");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    struct kvc_store_put_options o = {.size = sizeof o, .wait = 1, .seconds = INT64_MAX};
    const struct kvc_store_find_options find = {.size = sizeof find, .timeout_us = INT64_MAX};
    const struct kvc_store_load_options load = {.size = sizeof load, .timeout_us = INT64_MAX};
    const struct kvc_store_name name = {"a", 1};
    struct kvc_store_object_info info = {.size = sizeof info};
    struct kvc_store_clean_options clean = {.size = sizeof clean, .older = INT64_MAX};
    struct kvc_store_tier_info tier = {.size = sizeof tier};
    struct kvc_error e = {.code = KVC_OK};
    char object[KVC_STORE_OBJECT_NAME];
    uint8_t there = 0;
    assert_int_equal(kvc_store_put(ns, x->f, &o, &e), 0);
    assert_int_equal(kvc_store_put_name(ns, &name, x->f, &o, &e), 0);
    struct kvc_store_hit *hit = kvc_store_find(ns, x->ids, 2 * CHUNK, &find, &e);
    assert_non_null(hit);
    assert_int_equal(found_of(hit), 2 * CHUNK);
    kvc_object_name(&hit->object[0], object);
    assert_int_equal(kvc_store_object(s, 0, object, &info, &e), 1);
    assert_in_range(info.expires, INT64_C(1000000000000), INT64_C(1100000000000));
    struct kvc_file *f = kvc_store_get(hit, &load, &e);
    assert_non_null(f);
    kvc_file_close(f);
    kvc_store_hit_free(hit);
    assert_int_equal(kvc_store_find_names(ns, &name, 1, &there, &find, &e), 1);
    assert_non_null(f = kvc_store_get_name(ns, &name, &load, &e));
    kvc_file_close(f);
    assert_int_equal(kvc_store_flush(s, INT64_MAX), 0);
    assert_int_equal(kvc_store_describe_tier(s, 0, INT64_MAX, &tier, &e), 0);
    assert_int_equal(kvc_store_clean(s, 0, &clean, NULL, &e), 0);
    assert_int_equal(count_found(ns, x), 2 * CHUNK);
    clean.older = INT64_MIN;
    assert_int_equal(kvc_store_clean(s, 0, &clean, NULL, &e), -1);
    assert_int_equal(e.code, KVC_ERR_USAGE);
    o.seconds = -1;
    assert_int_equal(kvc_store_put(ns, x->f, &o, &e), -1);
    assert_int_equal(e.code, KVC_ERR_USAGE);
    assert_int_equal(kvc_store_put_name(ns, &name, x->f, &o, &e), -1);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

static void pins(void **state) {
    (void)state;
    struct made *x = make(2 * CHUNK, 3, NULL);
    struct kvc_store *s = open_store("pin", "");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    struct kvc_error e;
    struct kvc_store_cleaned counts;
    const struct kvc_store_clean_options all = {.evict = 1, .max_size = 0};
    put(ns, x);
    struct kvc_store_hit *hit = find_n(ns, x->ids, 2 * CHUNK);
    assert_int_equal(kvc_store_pin(hit, 0, &e), 0);
    assert_int_equal(kvc_dir_clean(&directory(s)->tier, &all, &counts, &e), 0);
    assert_int_equal(counts.evicted, 0);
    assert_int_equal(read_back(ns, x), 2 * CHUNK);
    assert_int_equal(kvc_store_unpin(hit, &e), 0);
    assert_int_equal(kvc_dir_clean(&directory(s)->tier, &all, &counts, &e), 0);
    assert_int_equal(counts.evicted, 2);
    assert_int_equal(count_found(ns, x), 0);
    kvc_store_hit_free(hit);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

static void no_index(void **state) {
    (void)state;
    struct made *x = make(4 * CHUNK, 3, NULL);
    struct kvc_store *s = open_store("ni", "&index=no");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    assert_null(directory(s)->index);
    put(ns, x);
    put(ns, x);
    assert_int_equal(counted(s, KVC_COUNT_PUT), 4);
    assert_int_equal(read_back(ns, x), 4 * CHUNK);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip), cmocka_unit_test(ranges),   cmocka_unit_test(pages),
        cmocka_unit_test(chunks),     cmocka_unit_test(extras),   cmocka_unit_test(two_tiers),
        cmocka_unit_test(queue),      cmocka_unit_test(events),   cmocka_unit_test(limits),
        cmocka_unit_test(times),      cmocka_unit_test(far),      cmocka_unit_test(pins),
        cmocka_unit_test(far),        cmocka_unit_test(no_index),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
