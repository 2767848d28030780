/* test_ring.c: a ring delivers every piece in order and byte for byte, whatever the slots, the
 * threads and the source; where reading fails it says at which byte, and never delivers what was
 * not read. */
#include "formats/device/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MIB = 1 << 20, MAX_SLOTS = 16, SECOND = 1000 * 1000, NOT_READ = 0xa5, WHOLE = 40 * MIB };

/* --- a file, and pieces of it --- */

static const char *program;
static uint64_t state = 1;

static uint64_t random_below(uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
}

/* What all files hold, as far as they reach. */
static uint8_t *content(void) {
    static uint64_t word[WHOLE / sizeof(uint64_t)];
    for (size_t i = 0; !word[WHOLE / sizeof word[0] - 1]; i++)
        word[i] = (i + 1) * 0x9e3779b97f4a7c15u;
    return (uint8_t *)word;
}

/* An unlinked file of such content beside this program: /tmp may be on a file system without direct
 * reads. `again` is the same file opened for direct reads; -1 where its system refuses. */
static int file(uint64_t size, int *again) {
    char path[4096];
    assert_in_range(snprintf(path, sizeof path, "%s-XXXXXX", program), 1, sizeof path - 1);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    if (again) *again = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    unlink(path);
    assert_int_equal(pwrite(fd, content(), size, 0), (ssize_t)size);
    return fd;
}

struct shape {
    uint64_t n, slot_bytes;
    uint64_t least, most; /* bytes of a piece */
    uint64_t gap;         /* most bytes between two */
    unsigned slots, threads;
};

struct pieces {
    struct kvc_ring_piece *piece;
    uint64_t size; /* of a file that has all of them */
};

static struct pieces pieces_of(const struct shape *s) {
    struct pieces p = {.piece = calloc(s->n ? s->n : 1, sizeof *p.piece)};
    assert_non_null(p.piece);
    for (uint64_t i = 0; i < s->n; i++) {
        uint64_t offset = p.size + (s->gap ? random_below(s->gap + 1) : 0);
        p.piece[i] = (struct kvc_ring_piece){offset,
                                             s->least + random_below(s->most - s->least + 1)};
        p.size = offset + p.piece[i].size;
    }
    assert_in_range(p.size, 0, WHOLE);
    return p;
}

/* Slots of exactly the room they must have, so that a sanitizer sees what goes beyond. */
static void slots_new(uint8_t **slot, unsigned n, uint64_t slot_bytes, int direct) {
    for (unsigned i = 0; i < n; i++) {
        size_t room = (size_t)slot_bytes + (direct ? KVC_RING_EXTRA : 0);
        void *p = NULL;
        assert_int_equal(posix_memalign(&p, direct ? KVC_RING_ALIGN : 64, room), 0);
        memset(p, NOT_READ, room);
        slot[i] = p;
    }
}

static void slots_free(uint8_t **slot, unsigned n) {
    for (unsigned i = 0; i < n; i++) free(slot[i]);
}

static void check_bytes(const struct kvc_ring_piece *p, const uint8_t *bytes) {
    assert_memory_equal(bytes, content() + p->offset, p->size);
}

/* Takes everything, holds as many slots as there are, gives them back in random order. Returns what
 * the last take did. */
static int take_all(struct kvc_ring *r, const struct pieces *p, unsigned slots, uint64_t *taken,
                    struct kvc_error *e) {
    unsigned held[MAX_SLOTS], n_held = 0, slot;
    uint64_t number;
    const uint8_t *bytes;
    int status;
    *taken = 0;
    while ((status = kvc_ring_take(r, &number, &bytes, &slot, e)) == 1) {
        assert_int_equal(number, *taken);
        check_bytes(&p->piece[number], bytes);
        for (unsigned i = 0; i < n_held; i++) assert_int_not_equal(held[i], slot);
        held[n_held++] = slot;
        ++*taken;
        while (n_held == slots || (n_held && random_below(2))) {
            unsigned i = (unsigned)random_below(n_held);
            kvc_ring_give(r, held[i]);
            held[i] = held[--n_held];
        }
    }
    return status;
}

static void read_shape(const struct kvc_ring_source *source, const struct pieces *p,
                       const struct shape *s) {
    uint8_t *slot[MAX_SLOTS];
    struct kvc_ring *r;
    struct kvc_error e;
    uint64_t taken;
    slots_new(slot, s->slots, s->slot_bytes, source->direct);
    assert_int_equal(kvc_ring_start(&r, source, p->piece, s->n, slot, s->slots, s->slot_bytes,
                                    s->threads, &e),
                     0);
    assert_int_equal(take_all(r, p, s->slots, &taken, &e), 0);
    assert_int_equal(taken, s->n);
    kvc_ring_stop(r);
    slots_free(slot, s->slots);
}

static const struct shape shapes[] = {
    {.n = 0, .slot_bytes = 100, .least = 1, .most = 1, .slots = 3, .threads = 4},
    {.n = 1, .slot_bytes = 1, .least = 1, .most = 1, .slots = 1, .threads = 1},
    {.n = 1,
     .slot_bytes = 5 * MIB + 77,
     .least = 5 * MIB + 77,
     .most = 5 * MIB + 77,
     .slots = 2,
     .threads = 4},
    {.n = 3,
     .slot_bytes = 3 * MIB,
     .least = 1,
     .most = 3 * MIB,
     .gap = 5000,
     .slots = 1,
     .threads = 16},
    {.n = 300, .slot_bytes = 5000, .least = 1, .most = 5000, .gap = 300, .slots = 1, .threads = 1},
    {.n = 300, .slot_bytes = 5000, .least = 1, .most = 5000, .slots = 3, .threads = 0},
    {.n = 300, .slot_bytes = 10000, .least = 4096, .most = 4096, .slots = 16, .threads = 3},
    {.n = 12,
     .slot_bytes = 2 * MIB,
     .least = 1,
     .most = 2 * MIB,
     .gap = MIB,
     .slots = 8,
     .threads = 4},
    {.n = 24, .slot_bytes = MIB, .least = MIB, .most = MIB, .slots = 4, .threads = 2},
};

static void test_map(void **unused) {
    (void)unused;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct pieces p = pieces_of(&shapes[i]);
        struct kvc_ring_source source = {.fd = -1, .map = content(), .size = p.size};
        read_shape(&source, &p, &shapes[i]);
        free(p.piece);
    }
}

static void test_file(void **unused) {
    (void)unused;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct pieces p = pieces_of(&shapes[i]);
        struct kvc_ring_source source = {.fd = file(p.size, NULL), .size = p.size};
        read_shape(&source, &p, &shapes[i]);
        close(source.fd);
        free(p.piece);
    }
}

/* Files end anywhere within 4096 bytes. */
static void test_direct(void **unused) {
    (void)unused;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct pieces p = pieces_of(&shapes[i]);
        struct kvc_ring_source source = {.size = p.size, .direct = 1};
        int fd = file(p.size, &source.fd);
        assert_int_equal(fsync(fd), 0);
        if (source.fd >= 0) read_shape(&source, &p, &shapes[i]);
        close(fd);
        free(p.piece);
        if (source.fd < 0) {
            print_message("SKIPPED: no O_DIRECT in this directory\n");
            skip();
        }
        close(source.fd);
    }
}

/* --- injected reads --- */

struct injected {
    uint64_t size;
    uint64_t most;          /* bytes at a time; 0: as many as asked for */
    int random;             /* of those, any number, and now and then EINTR */
    uint64_t bad, bad_size; /* bytes [bad, bad + bad_size) give EIO */
    int aligned;            /* else EINVAL, as O_DIRECT has it */
    int fd;                 /* while it has O_DIRECT: EINVAL; -1: never */
    unsigned delay;         /* of a read, in microseconds */
    atomic_uint reads;
    atomic_uint at_once, most_at_once;
    pthread_mutex_t lock; /* of the random numbers */
    uint64_t seed;
};

static uint64_t injected_random(struct injected *s, uint64_t n) {
    pthread_mutex_lock(&s->lock);
    s->seed = s->seed * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = (s->seed >> 33) % n;
    pthread_mutex_unlock(&s->lock);
    return x;
}

static ssize_t injected_bytes(struct injected *s, void *to, size_t n, uint64_t offset) {
    if ((s->fd >= 0 && (fcntl(s->fd, F_GETFL) & O_DIRECT)) ||
        (s->aligned &&
         (offset % KVC_RING_ALIGN || n % KVC_RING_ALIGN || (uintptr_t)to % KVC_RING_ALIGN))) {
        errno = EINVAL;
        return -1;
    }
    if (s->random && injected_random(s, 4) == 0) {
        errno = EINTR;
        return -1;
    }
    if (offset >= s->size) return 0;
    if (s->most && n > s->most) n = s->most;
    if (s->random) n = 1 + injected_random(s, n);
    if (n > s->size - offset) n = (size_t)(s->size - offset);
    if (s->bad_size && offset < s->bad + s->bad_size && offset + n > s->bad) {
        if (offset >= s->bad) {
            errno = EIO;
            return -1;
        }
        n = (size_t)(s->bad - offset);
    }
    memcpy(to, content() + offset, n);
    return (ssize_t)n;
}

static ssize_t injected_read(void *arg, void *to, size_t n, uint64_t offset) {
    struct injected *s = arg;
    unsigned now = atomic_fetch_add(&s->at_once, 1) + 1, most = atomic_load(&s->most_at_once);
    while (now > most && !atomic_compare_exchange_weak(&s->most_at_once, &most, now)) continue;
    atomic_fetch_add(&s->reads, 1);
    if (s->delay) usleep(s->delay);
    ssize_t done = injected_bytes(s, to, n, offset);
    int error = errno;
    atomic_fetch_sub(&s->at_once, 1);
    errno = error;
    return done;
}

static struct injected injected(uint64_t size) {
    return (struct injected){.size = size, .fd = -1, .lock = PTHREAD_MUTEX_INITIALIZER};
}

static struct kvc_ring_source source_of(struct injected *s, int direct) {
    return (struct kvc_ring_source){
        .fd = -1, .size = s->size, .direct = direct, .read = injected_read, .state = s};
}

static void test_short_reads(void **unused) {
    (void)unused;
    static const struct shape shape = {.n = 40,
                                       .slot_bytes = 20000,
                                       .least = 1,
                                       .most = 20000,
                                       .gap = 9000,
                                       .slots = 3,
                                       .threads = 4};
    struct pieces p = pieces_of(&shape);
    struct injected one = injected(p.size), any = injected(p.size), odd = injected(p.size);
    one.most = 1;
    any.random = 1;
    odd.aligned = 1;
    /* direct reads go on at a multiple again: less would be no progress */
    odd.most = KVC_RING_ALIGN + 1;
    const struct kvc_ring_source sources[] = {source_of(&one, 0), source_of(&any, 0),
                                              source_of(&odd, 1)};
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++)
        read_shape(&sources[i], &p, &shape);
    free(p.piece);
}

/* One piece alone keeps all readers busy. */
static void test_one_piece_many_threads(void **unused) {
    (void)unused;
    static const struct shape shape = {
        .n = 1, .slot_bytes = 8 * MIB, .least = 8 * MIB, .most = 8 * MIB, .slots = 1, .threads = 4};
    struct pieces p = pieces_of(&shape);
    struct injected s = injected(p.size);
    s.delay = 50000;
    struct kvc_ring_source source = source_of(&s, 0);
    read_shape(&source, &p, &shape);
    assert_int_equal(atomic_load(&s.reads), 8);
    assert_in_range(atomic_load(&s.most_at_once), 2, 4);
    free(p.piece);
}

/* --- failures --- */

/* take() must deliver those that end by `bad` and fail there, each time. */
static void expect_failure(const struct kvc_ring_source *source, const struct pieces *p,
                           const struct shape *s, uint64_t bad, enum kvc_code code,
                           const char *text) {
    uint8_t *slot[MAX_SLOTS];
    struct kvc_ring *r;
    struct kvc_error e;
    uint64_t taken, good = 0;
    slots_new(slot, s->slots, s->slot_bytes, source->direct);
    assert_int_equal(kvc_ring_start(&r, source, p->piece, s->n, slot, s->slots, s->slot_bytes,
                                    s->threads, &e),
                     0);
    while (p->piece[good].offset + p->piece[good].size <= bad) good++;
    for (int again = 0; again < 2; again++) {
        memset(&e, 0, sizeof e);
        assert_int_equal(take_all(r, p, s->slots, &taken, &e), -1);
        assert_int_equal(taken, again ? 0 : good);
        assert_int_equal(e.code, code);
        assert_int_equal(e.offset, bad);
        assert_non_null(strstr(e.message, text));
    }
    kvc_ring_stop(r);
    slots_free(slot, s->slots);
}

static const struct shape failing = {.n = 20,
                                     .slot_bytes = 3 * MIB / 2,
                                     .least = MIB / 2,
                                     .most = 3 * MIB / 2,
                                     .slots = 4,
                                     .threads = 4};

static void test_io_error(void **unused) {
    (void)unused;
    struct pieces p = pieces_of(&failing);
    for (int direct = 0; direct < 2; direct++)
        for (int i = 0; i < 20; i++) {
            struct injected s = injected(p.size);
            s.aligned = direct;
            s.bad = random_below(p.size);
            s.bad_size = i % 2 ? 1 : p.size - s.bad; /* one bad byte; or several readers fail */
            if (direct) s.bad -= s.bad % KVC_RING_ALIGN;
            struct kvc_ring_source source = source_of(&s, direct);
            char text[128];
            snprintf(text, sizeof text, "cannot read the file: %s (at byte %ju)", strerror(EIO),
                     (uintmax_t)s.bad);
            expect_failure(&source, &p, &failing, s.bad, KVC_ERR_IO, text);
        }
    free(p.piece);
}

static void test_shorter_file(void **unused) {
    (void)unused;
    struct pieces p = pieces_of(&failing);
    for (int direct = 0; direct < 2; direct++) {
        struct kvc_ring_source source = {.size = p.size, .direct = direct};
        int again, fd = file(p.size, &again);
        uint64_t size = p.size / 2 + 1234;
        assert_int_equal(ftruncate(fd, (off_t)size), 0);
        source.fd = direct ? again : fd;
        if (source.fd >= 0)
            expect_failure(&source, &p, &failing, size, KVC_ERR_DAMAGED,
                           "the file was cut short while it was read");
        close(fd);
        if (again >= 0) close(again);
    }
    free(p.piece);
}

static void test_bad_descriptor(void **unused) {
    (void)unused;
    struct pieces p = pieces_of(&failing);
    for (int direct = 0; direct < 2; direct++) {
        struct kvc_ring_source source = {.fd = -1, .size = p.size, .direct = direct};
        expect_failure(&source, &p, &failing, 0, KVC_ERR_IO, strerror(EBADF));
    }
    free(p.piece);
}

/* A file that opens with O_DIRECT and then refuses such reads: buffered from there on. */
static void test_direct_refused(void **unused) {
    (void)unused;
    struct pieces p = pieces_of(&failing);
    struct injected s = injected(p.size);
    close(file(1, &s.fd));
    if (s.fd < 0) {
        free(p.piece);
        print_message("SKIPPED: no O_DIRECT in this directory\n");
        skip();
    }
    struct kvc_ring_source source = source_of(&s, 1);
    source.fd = s.fd;
    read_shape(&source, &p, &failing);
    assert_int_equal(fcntl(s.fd, F_GETFL) & O_DIRECT, 0);
    /* nothing helps: the error is EINVAL's */
    assert_int_equal(fcntl(s.fd, F_SETFL, fcntl(s.fd, F_GETFL) | O_DIRECT), 0);
    source.fd = -1;
    expect_failure(&source, &p, &failing, 0, KVC_ERR_IO, strerror(EINVAL));
    close(s.fd);
    free(p.piece);
}

static void test_refused_arguments(void **unused) {
    (void)unused;
    static const struct {
        struct kvc_ring_piece piece[2];
        unsigned slots;
        int direct;
        enum kvc_code code;
    } bad[] = {
        {{{0, 10}, {10, 0}}, 2, 0, KVC_ERR_USAGE},            /* empty */
        {{{0, 10}, {10, 101}}, 2, 0, KVC_ERR_USAGE},          /* greater than a slot */
        {{{10, 10}, {0, 10}}, 2, 0, KVC_ERR_USAGE},           /* out of order */
        {{{0, 10}, {10, 10}}, 0, 0, KVC_ERR_USAGE},           /* no slot */
        {{{0, 10}, {10, 10}}, 2, 1, KVC_ERR_USAGE},           /* slots not aligned */
        {{{0, 10}, {950, 51}}, 2, 0, KVC_ERR_DAMAGED},        /* after the end of the file */
        {{{0, 10}, {1001, 1}}, 2, 0, KVC_ERR_DAMAGED},        /* the same */
        {{{0, 10}, {UINT64_MAX, 100}}, 2, 0, KVC_ERR_DAMAGED} /* the same */
    };
    uint8_t *memory = NULL, *slot[2];
    assert_int_equal(posix_memalign((void **)&memory, KVC_RING_ALIGN, 400), 0);
    slot[0] = memory + 1;
    slot[1] = memory + 201;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kvc_ring_source source = {.fd = -1, .size = 1000, .direct = bad[i].direct};
        struct kvc_ring *r = (struct kvc_ring *)&source;
        struct kvc_error e;
        assert_int_equal(kvc_ring_start(&r, &source, bad[i].piece, 2, slot, bad[i].slots, 100, 1,
                                        &e),
                         -1);
        assert_int_equal(e.code, bad[i].code);
        assert_null(r);
    }
    free(memory);
    kvc_ring_stop(NULL);
}

/* --- cancelling and stopping --- */

static void *cancel_soon(void *arg) {
    usleep(SECOND / 20);
    kvc_ring_cancel(arg);
    return NULL;
}

static void expect_cancelled(struct kvc_ring *r) {
    uint64_t number;
    const uint8_t *bytes;
    unsigned slot;
    struct kvc_error e;
    for (int again = 0; again < 2; again++) {
        assert_int_equal(kvc_ring_take(r, &number, &bytes, &slot, &e), -1);
        assert_int_equal(e.code, KVC_ERR_IO);
        assert_non_null(strstr(e.message, "cancelled"));
    }
}

/* take() blocks because all slots are taken, then because readers are slow: one byte in 2 ms would
 * take half an hour. */
static void test_cancel(void **unused) {
    (void)unused;
    for (int slow = 0; slow < 2; slow++) {
        struct pieces p = pieces_of(&failing);
        struct injected s = injected(p.size);
        s.delay = slow ? 2000 : 0;
        s.most = slow ? 1 : 0;
        struct kvc_ring_source source = source_of(&s, 0);
        uint8_t *slot[MAX_SLOTS];
        struct kvc_ring *r;
        struct kvc_error e;
        pthread_t thread;
        slots_new(slot, failing.slots, failing.slot_bytes, 0);
        assert_int_equal(kvc_ring_start(&r, &source, p.piece, failing.n, slot, failing.slots,
                                        failing.slot_bytes, 4, &e),
                         0);
        for (unsigned i = 0; !slow && i < failing.slots; i++) {
            uint64_t number;
            const uint8_t *bytes;
            unsigned mine;
            assert_int_equal(kvc_ring_take(r, &number, &bytes, &mine, &e), 1);
        }
        assert_int_equal(pthread_create(&thread, NULL, cancel_soon, r), 0);
        expect_cancelled(r);
        assert_int_equal(pthread_join(thread, NULL), 0);
        kvc_ring_stop(r);
        slots_free(slot, failing.slots);
        free(p.piece);
    }
}

/* Stopped at once, after some pieces, and with direct reads in flight. */
static void test_stop_early(void **unused) {
    (void)unused;
    struct pieces p = pieces_of(&failing);
    int direct, fd = file(p.size, &direct);
    for (uint64_t pieces = 0; pieces < 12; pieces++)
        for (int i = 0; i < 2; i++) {
            struct kvc_ring_source source = {.fd = i ? direct : fd, .size = p.size, .direct = i};
            uint8_t *slot[MAX_SLOTS];
            struct kvc_ring *r;
            struct kvc_error e;
            if (source.fd < 0) continue;
            slots_new(slot, failing.slots, failing.slot_bytes, source.direct);
            assert_int_equal(kvc_ring_start(&r, &source, p.piece, failing.n, slot, failing.slots,
                                            failing.slot_bytes, 3, &e),
                             0);
            for (uint64_t k = 0; k < pieces; k++) {
                uint64_t number;
                const uint8_t *bytes;
                unsigned mine;
                assert_int_equal(kvc_ring_take(r, &number, &bytes, &mine, &e), 1);
                assert_int_equal(number, k);
                check_bytes(&p.piece[k], bytes);
                kvc_ring_give(r, mine);
            }
            kvc_ring_stop(r);
            slots_free(slot, failing.slots);
        }
    close(fd);
    if (direct >= 0) close(direct);
    free(p.piece);
}

/* Slots come back from another thread than takes them. */
struct giver {
    struct kvc_ring *r;
    unsigned slot[MAX_SLOTS];
    atomic_uint put, got;
    uint64_t n;
};

static void *give_all(void *arg) {
    struct giver *g = arg;
    for (uint64_t i = 0; i < g->n; i++) {
        while (atomic_load(&g->put) == atomic_load(&g->got)) usleep(10);
        unsigned slot = g->slot[atomic_load(&g->got) % MAX_SLOTS];
        atomic_fetch_add(&g->got, 1);
        kvc_ring_give(g->r, slot);
    }
    return NULL;
}

static void test_give_from_another_thread(void **unused) {
    (void)unused;
    static const struct shape shape = {.n = 1000,
                                       .slot_bytes = 3000,
                                       .least = 1,
                                       .most = 3000,
                                       .gap = 10,
                                       .slots = 5,
                                       .threads = 3};
    struct pieces p = pieces_of(&shape);
    uint8_t *slot[MAX_SLOTS];
    struct kvc_ring_source source = {.fd = -1, .map = content(), .size = p.size};
    struct giver g = {.n = shape.n};
    struct kvc_error e;
    pthread_t thread;
    slots_new(slot, shape.slots, shape.slot_bytes, 0);
    assert_int_equal(kvc_ring_start(&g.r, &source, p.piece, shape.n, slot, shape.slots,
                                    shape.slot_bytes, 3, &e),
                     0);
    assert_int_equal(pthread_create(&thread, NULL, give_all, &g), 0);
    for (uint64_t i = 0; i < shape.n; i++) {
        uint64_t number;
        const uint8_t *bytes;
        unsigned mine;
        assert_int_equal(kvc_ring_take(g.r, &number, &bytes, &mine, &e), 1);
        assert_int_equal(number, i);
        check_bytes(&p.piece[i], bytes);
        g.slot[atomic_load(&g.put) % MAX_SLOTS] = mine;
        atomic_fetch_add(&g.put, 1);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    kvc_ring_stop(g.r);
    slots_free(slot, shape.slots);
    free(p.piece);
}

int main(int argc, char **argv) {
    (void)argc;
    program = argv[0];
    content(); /* before there are threads */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_direct),
        cmocka_unit_test(test_short_reads),
        cmocka_unit_test(test_one_piece_many_threads),
        cmocka_unit_test(test_io_error),
        cmocka_unit_test(test_shorter_file),
        cmocka_unit_test(test_bad_descriptor),
        cmocka_unit_test(test_direct_refused),
        cmocka_unit_test(test_refused_arguments),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_stop_early),
        cmocka_unit_test(test_give_from_another_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
