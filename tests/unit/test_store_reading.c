/* test_store_reading.c: chunks that are read while their files change, chunks of many megabytes and
 * the memory that they are read into, how many are read ahead, and several threads that read. The
 * linker puts pread64() below in the place of the C library's (tests.mk). */
#include "store_support.h"

#include "formats/store/dir/dir.h"
#include "tests/large_files.h"

#include <pthread.h>
#include <stdatomic.h>

/* --- files that change between two reads --- */

enum { PIECE = 1000 }; /* bytes of a read of the file that changes */
enum change { NONE, CUT, EMPTIED, OVERWRITTEN, REPLACED, REMOVED };

static struct {
    ino_t inode; /* of the file; 0: none */
    char path[400];
    enum change what;
    atomic_uint reads; /* of it */
} changing;

static void write_at(const char *path, off_t at, size_t n) {
    static const uint8_t other[PIECE] = {1, 2, 3};
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    for (off_t end = at + (off_t)n; at < end; at += PIECE)
        assert_int_equal(pwrite(fd, other, PIECE, at), PIECE);
    close(fd);
}

static void change(void) {
    char other[sizeof changing.path + 8];
    snprintf(other, sizeof other, "%s.new", changing.path);
    switch (changing.what) {
    case NONE: break;
    case CUT: assert_int_equal(truncate(changing.path, 2 * PIECE), 0); break;
    case EMPTIED: assert_int_equal(truncate(changing.path, 0), 0); break;
    case OVERWRITTEN: write_at(changing.path, 3 * PIECE, PIECE); break;
    case REPLACED:
        write_file(other, "no chunk", 8);
        assert_int_equal(rename(other, changing.path), 0);
        break;
    case REMOVED: assert_int_equal(unlink(changing.path), 0); break;
    }
}

ssize_t __real_pread64(int fd, void *data, size_t n, off_t at);
ssize_t __wrap_pread64(int fd, void *data, size_t n, off_t at);
ssize_t __wrap_pread64(int fd, void *data, size_t n, off_t at) {
    struct stat st;
    if (!changing.inode || fstat(fd, &st) || st.st_ino != changing.inode)
        return __real_pread64(fd, data, n, at);
    if (atomic_fetch_add(&changing.reads, 1) == 1) change();
    return __real_pread64(fd, data, n < PIECE ? n : PIECE, at);
}

static int take_tokens(void *state, uint64_t first, uint64_t tokens, const void *data,
                       size_t size) {
    (void)first, (void)data, (void)size;
    *(uint64_t *)state += tokens;
    return 0;
}

/* The ways of reading a prefix; each returns how many tokens came. */
static uint64_t by_load(struct kvc_store_hit *hit, const struct made *x) {
    return load_and_compare(hit, x, 0, x->m.tokens);
}

static uint64_t by_chunks(struct kvc_store_hit *hit, const struct made *x) {
    uint64_t tokens = 0;
    struct kvc_error e;
    (void)x;
    const uint64_t end = (uint64_t)kvc_store_chunks(hit, NULL, take_tokens, &tokens, &e);
    assert_int_equal(end, tokens);
    return end;
}

static uint64_t by_get(struct kvc_store_hit *hit, const struct made *x) {
    static uint8_t rows[MOST * ROW];
    struct kvc_error e;
    struct kvc_file *f = kvc_store_get(hit, NULL, &e);
    uint64_t n = 0;
    if (f) kvc_file_tokens(f, &n);
    for (uint32_t t = 0; f && t < ARRAYS; t++) {
        if (kvc_file_read(f, t, 0, n, rows, sizeof rows, &e)) fail_msg("%s", e.message);
        assert_memory_equal(rows, x->rows[t], n * ROW);
    }
    kvc_file_close(f);
    return n;
}

typedef uint64_t read_fn(struct kvc_store_hit *hit, const struct made *x);
static read_fn *const ways[] = {by_load, by_chunks, by_get};
enum { WAYS = sizeof ways / sizeof ways[0] };

/* Reads three chunks of which the second changes after its first thousand bytes were read. */
static void read_changing(enum change what, read_fn *read, unsigned chunks, unsigned bad) {
    char path[400];
    struct stat st;
    size_t n;
    struct made *x = make(3 * CHUNK, 3, NULL);
    struct kvc_store *s = open_store("changing", "&index=no");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    put(ns, x);
    chunk_path(ns, x, 1, "changing", path, sizeof path);
    uint8_t *data = read_file(path, &n);
    assert_true(n > 4 * PIECE);
    assert_int_equal(stat(path, &st), 0);
    struct kvc_store_hit *hit = find_n(ns, x->ids, x->m.tokens);
    assert_int_equal(found_of(hit), 3 * CHUNK);
    memcpy(changing.path, path, sizeof changing.path);
    changing.what = what;
    changing.reads = 0;
    changing.inode = st.st_ino;
    const uint64_t came = read(hit, x);
    kvc_store_hit_free(hit);
    wait_for_all(s);
    changing.inode = 0;
    assert_true(changing.reads > 1);
    assert_int_equal(came, chunks * CHUNK);
    assert_int_equal(counted(s, KVC_COUNT_BAD), bad);
    assert_int_equal(counted(s, KVC_COUNT_SHORT), (3 - chunks) * CHUNK);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    snprintf(path, sizeof path, "%s/changing", folder);
    assert_int_equal(nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
    free(data);
    unmake(x);
}

static void files_that_change(void **state) {
    (void)state;
    for (size_t i = 0; i < WAYS; i++) {
        read_changing(NONE, ways[i], 3, 0);
        read_changing(CUT, ways[i], 1, 1);
        read_changing(EMPTIED, ways[i], 1, 1);
        read_changing(OVERWRITTEN, ways[i], 1, 1);
        /* the file that was opened is read to its end */
        read_changing(REPLACED, ways[i], 3, 0);
        read_changing(REMOVED, ways[i], 3, 0);
    }
}

/* --- damage, by every way of reading --- */

enum { PARTS = 40 };

/* Damages a byte at the begin of a part of a chunk; part PARTS is its last byte. */
static void damage(size_t part, read_fn *read) {
    char path[400];
    size_t n;
    struct made *x = make(2 * CHUNK, 3, NULL);
    struct kvc_store *s = open_store("damage", "&index=no");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    put(ns, x);
    chunk_path(ns, x, 1, "damage", path, sizeof path);
    uint8_t *data = read_file(path, &n);
    data[part < PARTS ? n / PARTS * part : n - 1] ^= 4;
    write_file(path, data, n);
    struct kvc_store_hit *hit = find_n(ns, x->ids, x->m.tokens);
    assert_int_equal(read(hit, x), CHUNK);
    kvc_store_hit_free(hit);
    assert_int_equal(counted(s, KVC_COUNT_BAD), 1);
    wait_for_all(s);
    assert_int_not_equal(access(path, F_OK), 0);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    free(data);
    unmake(x);
}

static void damaged_parts(void **state) {
    (void)state;
    for (size_t i = 1; i < WAYS; i++) /* loading: test_store_proof.c */
        for (size_t part = 0; part <= PARTS; part++) damage(part, ways[i]);
}

/* --- reading ahead --- */

struct asking {
    const struct kvc_store *s;
    uint64_t before, used; /* calls of the tier before reading, chunks that were used */
};

/* Compares the calls that were made so far with the chunks that were used: one more is used now,
 * and each thread may read another. */
static int count_asked(void *state, uint64_t first, uint64_t tokens, const void *data,
                       size_t size) {
    struct asking *a = state;
    (void)first, (void)tokens, (void)data, (void)size;
    const uint64_t asked = a->s->tier[0].count[KVC_TIER_CALLS] - a->before;
    assert_in_range(asked, a->used + 1, a->used + 1 + a->s->options.threads);
    a->used++;
    return 0;
}

static void read_ahead(void **state) {
    (void)state;
    char url[300];
    struct made *x = make(8 * CHUNK, 3, NULL);
    for (unsigned threads = 1; threads <= 3; threads++) {
        struct kvc_store_options o = patient;
        struct kvc_error e;
        o.threads = threads;
        struct kvc_store *s = open_store_with(tier_url(url, sizeof url, "ahead", ""), &o);
        struct kvc_store_namespace *ns = open_namespace(s, x);
        put(ns, x);
        struct kvc_store_hit *hit = find_n(ns, x->ids, x->m.tokens);
        wait_for_all(s);
        struct asking a = {.s = s, .before = s->tier[0].count[KVC_TIER_CALLS]};
        assert_int_equal(kvc_store_chunks(hit, NULL, count_asked, &a, &e), 8 * CHUNK);
        assert_int_equal(a.used, 8);
        kvc_store_hit_free(hit);
        kvc_store_namespace_close(ns);
        kvc_store_close(s);
    }
    unmake(x);
}

/* --- chunks of megabytes --- */

enum { BIG_TOKENS = 4 * CHUNK, BIG_DIM = 1024, BIG_ROW = 8 * BIG_DIM, BIG = BIG_TOKENS * BIG_ROW };

struct big {
    struct kvc_memory m;
    struct kvc_memory_array a[1];
    int32_t ids[BIG_TOKENS];
    uint8_t *rows;
};

static void describe_big(struct big *x) {
    x->rows = calloc(BIG, 1);
    assert_non_null(x->rows);
    x->a[0] = dense_array("K", 0, "f32", 4, 2, BIG_DIM, x->rows);
    x->m = (struct kvc_memory){.size = sizeof x->m,
                               .array_size = sizeof x->a[0],
                               .arrays = x->a,
                               .n_arrays = 1,
                               .tokens = BIG_TOKENS};
}

struct thread {
    pthread_t thread;
    struct kvc_store_namespace *ns;
    const struct big *x;
    unsigned wrong;
};

/* Loads all again and again, by a hit of its own. Asserts nothing: only the main thread may. */
static void *load_big(void *state) {
    struct thread *t = state;
    struct big y;
    describe_big(&y);
    for (int i = 0; i < 3; i++) {
        struct kvc_error e;
        struct kvc_store_hit *hit = kvc_store_find(t->ns, t->x->ids, BIG_TOKENS, NULL, &e);
        memset(y.rows, 0xff, BIG);
        if (!hit || kvc_store_load(hit, &y.m, NULL, &e) != BIG_TOKENS) t->wrong++;
        else t->wrong += memcmp(y.rows, t->x->rows, BIG) != 0;
        kvc_store_hit_free(hit);
    }
    free(y.rows);
    return NULL;
}

static void several_threads(void **state) {
    (void)state;
    enum { THREADS = 3 };
    static const char *const recipes[] = {"store", "fast"};
    struct thread t[THREADS];
    struct big x;
    struct kvc_error e;
    describe_big(&x);
    for (int i = 0; i < BIG_TOKENS; i++) x.ids[i] = i;
    for (size_t i = 0; i < BIG; i++) x.rows[i] = (uint8_t)(i * i >> 7);
    x.m.facts = usual_facts;
    x.m.token_ids = x.ids;
    x.m.n_token_ids = BIG_TOKENS;
    struct kvc_file *f = kvc_file_open_arrays(&x.m, &e);
    if (!f) fail_msg("%s", e.message);
    struct kvc_store *s = open_store("big", "");
    for (size_t r = 0; r < 2; r++) {
        const struct kvc_store_namespace_options like = {.size = sizeof like,
                                                         .recipe = recipes[r],
                                                         .chunk = CHUNK};
        const struct kvc_store_put_options wait = {.size = sizeof wait, .wait = 1};
        struct kvc_store_namespace *ns = kvc_store_namespace_like(s, f, &like, &e);
        if (!ns || kvc_store_put(ns, f, &wait, &e)) fail_msg("%s", e.message);
        for (int i = 0; i < THREADS; i++) {
            t[i] = (struct thread){.ns = ns, .x = &x};
            assert_int_equal(pthread_create(&t[i].thread, NULL, load_big, &t[i]), 0);
        }
        for (int i = 0; i < THREADS; i++) {
            pthread_join(t[i].thread, NULL);
            assert_int_equal(t[i].wrong, 0);
        }
        kvc_store_namespace_close(ns);
    }
    assert_int_equal(counted(s, KVC_COUNT_BAD), 0);
    kvc_store_close(s);
    kvc_file_close(f);
    free(x.rows);
}

/* --- the memory of objects --- */

static atomic_uint news; /* times that new memory got large pages */

int __real_madvise(void *p, size_t n, int advice);
int __wrap_madvise(void *p, size_t n, int advice);
int __wrap_madvise(void *p, size_t n, int advice) {
    atomic_fetch_add(&news, 1);
    return __real_madvise(p, n, advice);
}

static void *take(size_t size) {
    uint8_t *p = kvc_tier_memory(size);
    assert_non_null(p);
    memset(p, (int)(size % 251), size);
    return p;
}

static void memory_of_objects(void **state) {
    (void)state;
    static const size_t sizes[] = {0,       1,       4095,     1 << 20,       1800000,
                                   1900000, 2097152, 2097153,  5 << 20,       6100000,
                                   8 << 20, 9000000, 35 << 20, (35 << 20) + 1};
    enum { SIZES = sizeof sizes / sizeof sizes[0], MIB = 1 << 20 };
    uint8_t *p[SIZES];
    for (int twice = 0; twice < 2; twice++) {
        for (size_t i = 0; i < SIZES; i++) p[i] = take(sizes[i]);
        for (size_t i = 0; i < SIZES; i++) {
            for (size_t k = 0; k < sizes[i]; k++)
                if (p[i][k] != sizes[i] % 251) fail_msg("byte %zu of %zu", k, sizes[i]);
            kvc_tier_free(p[i]);
        }
    }
    kvc_tier_free(NULL);
    kvc_tier_free(malloc(3));
    /* it comes again for as much or a little less, and not for more or much less */
    kvc_tier_free_kept();
    kvc_tier_free(take(8 * MIB));
    news = 0;
    kvc_tier_free(take(7 * MIB));
    kvc_tier_free(take(8 * MIB));
    assert_int_equal(news, 0);
    kvc_tier_free(take(11 * MIB));
    assert_int_equal(news, 1);
    kvc_tier_free(take(2 * MIB));
    assert_int_equal(news, 2);
    /* small objects leave it alone */
    kvc_tier_free(take(1000));
    kvc_tier_free(take(2 * MIB));
    assert_int_equal(news, 2);
    /* no more than 64 MiB are kept */
    kvc_tier_free_kept();
    for (int i = 0; i < SIZES; i++) p[i] = take(8 * MIB);
    for (int i = 0; i < SIZES; i++) kvc_tier_free(p[i]);
    news = 0;
    for (int i = 0; i < SIZES; i++) p[i] = take(8 * MIB);
    assert_in_range(news, SIZES - 8, SIZES - 6); /* malloc() may give 2 MiB more */
    for (int i = 0; i < SIZES; i++) free(p[i]);
    /* none of it is left after a store was closed */
    kvc_tier_free(take(8 * MIB));
    kvc_store_close(open_store("closed", ""));
    news = 0;
    kvc_tier_free(take(8 * MIB));
    assert_int_equal(news, 1);
    kvc_tier_free_kept();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(files_that_change),
                                       cmocka_unit_test(damaged_parts),
                                       cmocka_unit_test(read_ahead),
                                       cmocka_unit_test(several_threads),
                                       cmocka_unit_test(memory_of_objects)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
