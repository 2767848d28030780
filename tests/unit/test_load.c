/* test_load.c: loading onto a device, proven on the host: every stored file of tests/golden and
 * samples decoded by the GPU's source in lockstep is what the CPU's kernels decode, byte for byte;
 * parts of files, pages, other dtypes; and whatever fails in mid-load is never reported as loaded.
 * Not for CUDA itself (make test-cuda). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "codecs/floats.h"
#include "formats/container/container.h"
#include "formats/cache/format.h"
#include "formats/container/records.h"
#include "formats/device/load.h"
#include "kernels/device/decode_host.h"
#include "kernels/kernels.h"
#include "tests/unit/failing_device.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern int kvc_lanes_backwards;

/* --- a file, and memory for its rows --- */

struct opened {
    struct kvc_input in;
    struct kvc_cache *cache;
    struct kvc_device *device;
    struct kvc_device_target *target;
    uint8_t **rows; /* by tensor */
};

static unsigned value_bytes(unsigned dtype) {
    return dtype == KVC_F32 ? 4 : dtype == KVC_F16 || dtype == KVC_BF16 ? 2 : 1;
}

/* Dense rows of each tensor, in `dtype` or its own (-1). Block types are bytes. */
static void aim(struct opened *o, int dtype, const struct kvc_load_options *options) {
    for (uint32_t t = 0; t < o->cache->n_tensors; t++) {
        const struct kvc_shape *s = &o->cache->tensor[t].shape;
        const int plain = kvc_dtype_info(s->dtype)->block == 1;
        struct kvc_device_target *g = &o->target[t];
        uint64_t first, n;
        kvc_load_rows(o->cache, t, options, &first, &n);
        free(o->rows[t]);
        *g = (struct kvc_device_target){.page_size = 1, .pages = n};
        g->from = plain ? (uint32_t)s->dtype : KVC_DEVICE_U8;
        g->heads = plain ? (uint32_t)s->heads : 1;
        g->channels = plain ? (uint32_t)s->dim : (uint32_t)kvc_row_bytes(s);
        g->dtype = plain && dtype >= 0 && s->dtype <= KVC_F8E5M2 ? (uint32_t)dtype : g->from;
        const unsigned size = value_bytes(g->dtype);
        g->dim = size;
        g->head = (int64_t)g->channels * size;
        g->token = g->page = (int64_t)g->heads * g->head;
        o->rows[t] = malloc((size_t)(n * (uint64_t)g->token) + 1);
        assert_non_null(o->rows[t]);
        memset(o->rows[t], 0xa5, (size_t)(n * (uint64_t)g->token) + 1);
        g->base = (uint64_t)(uintptr_t)o->rows[t];
    }
}

static int open_file(struct opened *o, const char *path) {
    struct kvc_error e;
    memset(o, 0, sizeof *o);
    if (kvc_input_open_how(&o->in, path, &(struct kvc_input_how){.read = 0}, &e))
        fail_msg("%s", e.message);
    if (!(o->cache = kvc_format_import(&kvc_format_kvc, &o->in, NULL, &e)))
        fail_msg("%s: %s", path, e.message);
    kvc_container_set_profile(o->cache, &(struct kvc_profile_places){.folder = "samples"});
    o->device = kvc_device_host(&e);
    o->target = calloc(o->cache->n_tensors, sizeof *o->target);
    o->rows = calloc(o->cache->n_tensors, sizeof *o->rows);
    assert_true(o->device && o->target && o->rows);
    return 0;
}

static void close_file(struct opened *o) {
    for (uint32_t t = 0; t < o->cache->n_tensors; t++) free(o->rows[t]);
    free(o->rows);
    free(o->target);
    o->device->close(o->device);
    kvc_cache_free(o->cache);
    kvc_input_close(&o->in);
}

/* Loads; 0, or -1 and why. */
static int load(struct opened *o, const struct kvc_load_options *options,
                struct kvc_load_info *info, struct kvc_error *e) {
    memset(e, 0, sizeof *e);
    struct kvc_load *l = kvc_load_new(o->device, o->cache, &o->in, options, o->target, e);
    if (!l) return -1;
    int status = kvc_load_run(l, NULL, e);
    if (!status) status = kvc_load_finish(l, e);
    if (info) kvc_load_describe(l, info);
    kvc_load_free(l);
    return status;
}

/* The rows of a tensor as the CPU decodes them. */
static uint8_t *expected(const struct opened *o, uint32_t t, uint64_t first, uint64_t n) {
    struct kvc_error e;
    const uint64_t bytes = n * kvc_row_bytes(&o->cache->tensor[t].shape);
    uint8_t *rows = malloc((size_t)bytes + 1);
    assert_non_null(rows);
    if (o->cache->read(o->cache, t, first, n, rows, &e)) fail_msg("%s", e.message);
    return rows;
}

static void compare_all(const struct opened *o, const char *what,
                        const struct kvc_load_options *options) {
    for (uint32_t t = 0; t < o->cache->n_tensors; t++) {
        uint64_t first, n;
        kvc_load_rows(o->cache, t, options, &first, &n);
        uint8_t *want = expected(o, t, first, n);
        const size_t size = (size_t)(n * kvc_row_bytes(&o->cache->tensor[t].shape));
        for (size_t i = 0; i < size; i++)
            if (want[i] != o->rows[t][i])
                fail_msg("%s: tensor %u of dtype %u (%s): byte %zu of %zu is %02x, not %02x", what,
                         t, o->target[t].from, kvc_container_pipeline(o->cache, t), i, size,
                         o->rows[t][i], want[i]);
        assert_int_equal(o->rows[t][size], 0xa5);
        free(want);
    }
}

/* --- every stored file --- */

static uint64_t on_device, on_host;

static void check_file(const char *path) {
    static const struct kvc_load_options ways[] = {
        {.verify = 1},
        {.verify = 1, .slots = 2, .threads = 1, .slot_bytes = 1},
        {.verify = 1,
         .slots = 5,
         .threads = 4,
         .slot_bytes = 20000,
         .table_bytes = 1,
         .scratch_bytes = 1},
        {.first = 3, .end = 200},
        {.first = 255, .end = 258},
        {.first = 1 << 30, .end = 1 << 30},
    };
    struct opened o;
    struct kvc_error e;
    struct kvc_load_info info;
    open_file(&o, path);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        kvc_lanes_backwards = i % 2;
        aim(&o, -1, &ways[i]);
        if (load(&o, &ways[i], &info, &e)) fail_msg("%s, way %zu: %s", path, i, e.message);
        compare_all(&o, path, &ways[i]);
        assert_true(info.on_host <= info.decoded);
        if (!i) on_device += info.decoded - info.on_host, on_host += info.on_host;
        if (!i && getenv("KVC_LOAD_VERBOSE"))
            printf("%s: %llu of %llu by the CPU\n", path, (unsigned long long)info.on_host,
                   (unsigned long long)info.decoded);
    }
    kvc_lanes_backwards = 0;
    close_file(&o);
}

static void each_file(const char *folder, void (*check)(const char *path)) {
    struct dirent *entry;
    unsigned n = 0;
    DIR *d = opendir(folder);
    if (!d) fail_msg("no folder %s", folder);
    while ((entry = readdir(d))) {
        char path[512];
        const size_t length = strlen(entry->d_name);
        if (length < 4 || strcmp(entry->d_name + length - 4, ".kvc") != 0) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        check(path);
        n++;
    }
    closedir(d);
    assert_true(n > 0);
}

static void stored_files_decode_alike(void **state) {
    (void)state;
    each_file("tests/golden", check_file);
    each_file("samples", check_file);
    assert_true(on_device > 0);
}

/* --- predictions --- */

static unsigned n_predicted; /* jobs that predict */

static int counting_run(struct kvc_device *d, void *stream, const struct kvc_device_launch *launch,
                        unsigned limit, struct kvc_error *e) {
    (void)d, (void)stream, (void)limit, (void)e;
    for (uint32_t i = 0; i < launch->n_items; i++)
        n_predicted += launch->item[i].kind == KVC_ITEM_JOB &&
                       launch->job[launch->item[i].index].kind == KVC_JOB_AHEAD;
    kvc_device_run_host(launch);
    return 0;
}

/* Streams that are coded relative to earlier layers: the device decodes them where it has all that
 * their rows are predicted from, the CPU decodes the others. */
static void streams_wait_for_earlier_layers(void **state) {
    (void)state;
    static const struct {
        struct kvc_load_options options;
        int without; /* 1: tensor 0 is not loaded */
    } ways[] = {
        {{.slots = 2, .verify = 1}, 0},
        {{.slots = 2, .slot_bytes = 1}, 0},
        {{.slots = 2, .first = 3, .end = UINT32_MAX}, 0},
        {{.slots = 2}, 1},
    };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        const int whole = !ways[i].options.first && !ways[i].without;
        struct kvc_load_info info;
        struct opened o;
        struct kvc_error e;
        open_file(&o, "tests/golden/cross-v1.kvc");
        aim(&o, -1, &ways[i].options);
        if (ways[i].without) o.target[0].base = 0;
        o.device->run = counting_run;
        n_predicted = 0;
        if (load(&o, &ways[i].options, &info, &e)) fail_msg("way %zu: %s", i, e.message);
        if (ways[i].without) { /* so that it compares equal */
            uint8_t *rows = expected(&o, 0, 0, o.cache->tensor[0].shape.tokens);
            memcpy(o.rows[0], rows,
                   (size_t)(o.cache->tensor[0].shape.tokens *
                            kvc_row_bytes(&o.cache->tensor[0].shape)));
            free(rows);
        }
        compare_all(&o, "predicted", &ways[i].options);
        assert_int_equal(info.on_host != 0, !whole);
        assert_int_equal(n_predicted != 0, !ways[i].without);
        close_file(&o);
    }
}

/* --- where rows go --- */

/* Pages in a strange order, heads and channels apart, other dtypes: against a loop that says where
 * each value must be. */
static void check_places(const char *path) {
    static const int dtypes[] = {-1, KVC_F32, KVC_F16, KVC_BF16, KVC_F8E4M3, KVC_F8E5M2};
    const struct kvc_load_options options = {.slots = 2, .threads = 1};
    struct opened o;
    struct kvc_error e;
    open_file(&o, path);
    for (size_t k = 0; k < sizeof dtypes / sizeof dtypes[0]; k++) {
        aim(&o, dtypes[k], &options);
        uint32_t **table = calloc(o.cache->n_tensors, sizeof *table);
        for (uint32_t t = 0; t < o.cache->n_tensors; t++) {
            struct kvc_device_target *g = &o.target[t];
            const uint64_t n = o.cache->tensor[t].shape.tokens;
            const int64_t size = value_bytes(g->dtype);
            g->page_size = 3;
            g->pages = (n + 2) / 3;
            g->dim = size * (k % 2 ? 2 : 1);
            g->token = g->dim * g->channels;
            g->head = 3 * g->token; /* heads before tokens */
            g->page = g->head * g->heads + 8;
            table[t] = malloc((g->pages + 1) * sizeof **table);
            for (uint64_t p = 0; p < g->pages; p++) table[t][p] = (uint32_t)(g->pages - 1 - p);
            g->table = (uint64_t)(uintptr_t)table[t];
            free(o.rows[t]);
            o.rows[t] = malloc((size_t)((uint64_t)g->page * g->pages) + 16);
            g->base = (uint64_t)(uintptr_t)o.rows[t];
        }
        if (load(&o, &options, NULL, &e)) fail_msg("%s: %s", path, e.message);
        for (uint32_t t = 0; t < o.cache->n_tensors; t++) {
            const struct kvc_device_target *g = &o.target[t];
            const uint64_t n = o.cache->tensor[t].shape.tokens;
            const unsigned size = value_bytes(g->dtype), had = value_bytes(g->from);
            uint8_t *want = expected(&o, t, 0, n);
            for (uint64_t i = 0; i < n * g->heads * g->channels; i++) {
                const uint64_t d = i % g->channels, h = i / g->channels % g->heads,
                               r = i / g->channels / g->heads;
                const uint8_t *at = o.rows[t] + (g->pages - 1 - r / 3) * (uint64_t)g->page +
                                    r % 3 * (uint64_t)g->token + h * (uint64_t)g->head +
                                    d * (uint64_t)g->dim;
                if (g->dtype == g->from) {
                    assert_memory_equal(at, want + i * had, size);
                    continue;
                }
                float x;
                uint8_t room[4];
                if (g->from == KVC_F8E4M3) kvc_f8e4m3_to_f32(&x, want + i, 1);
                else if (g->from == KVC_F8E5M2) kvc_f8e5m2_to_f32(&x, want + i, 1);
                else kvc_to_floats(&x, want + i * had, 1, (enum kvc_dtype)g->from);
                if (g->dtype >= KVC_F8E4M3) { /* the nearest of all 256, the even one of two */
                    if (x != x) continue;
                    float best = 1e38f, value;
                    for (unsigned code = 0; code < 256; code++) {
                        const uint8_t byte = (uint8_t)code;
                        if (g->dtype == KVC_F8E4M3) kvc_f8e4m3_to_f32(&value, &byte, 1);
                        else kvc_f8e5m2_to_f32(&value, &byte, 1);
                        const double miss = (double)value - (double)x,
                                     least = (double)best - (double)x;
                        if (value - value != 0) continue;
                        if ((miss < 0 ? -miss : miss) < (least < 0 ? -least : least)) best = value;
                    }
                    if (g->dtype == KVC_F8E4M3) kvc_f8e4m3_to_f32(&value, at, 1);
                    else kvc_f8e5m2_to_f32(&value, at, 1);
                    const double miss = (double)value - (double)x, least = (double)best - (double)x;
                    assert_true((miss < 0 ? -miss : miss) == (least < 0 ? -least : least));
                    continue;
                }
                kvc_from_floats(room, &x, 1, (enum kvc_dtype)g->dtype);
                assert_memory_equal(at, room, size);
            }
            free(want);
            free(table[t]);
        }
        free(table);
    }
    close_file(&o);
}

static void rows_go_where_they_should(void **state) {
    (void)state;
    check_places("tests/golden/kivi-v1.kvc");
    check_places("tests/golden/split-v1.kvc");
    check_places("tests/golden/profile-v1.kvc");
}

/* Too few pages: said, not written elsewhere. */
static void missing_pages_are_a_failure(void **state) {
    (void)state;
    const struct kvc_load_options options = {.slots = 2};
    struct opened o;
    struct kvc_error e;
    open_file(&o, "tests/golden/store-v1.kvc");
    aim(&o, -1, &options);
    o.target[0].pages--;
    assert_int_equal(load(&o, &options, NULL, &e), -1);
    assert_non_null(strstr(e.message, "no page"));
    assert_int_equal(o.rows[0][(o.cache->tensor[0].shape.tokens - 1) * (uint64_t)o.target[0].token],
                     0xa5);
    close_file(&o);
}

/* A file with descriptor 0, which programs without standard input get, is read in the place of the
 * mapped bytes: zeros here. */
static void descriptor_0_is_a_file(void **state) {
    (void)state;
    const char *const path = "tests/golden/kivi-v1.kvc";
    const struct kvc_load_options options = {.slots = 2, .threads = 1, .direct = 1, .direct_fd = 0};
    struct opened o;
    struct kvc_error e;
    open_file(&o, path);
    const struct kvc_input whole = o.in; /* the cache's; the load sees zeros there */
    kvc_records_of(o.cache)->in = &whole;
    uint8_t *nothing = calloc((size_t)o.in.size, 1);
    const int standard_input = dup(0);
    close(0);
    assert_non_null(nothing);
    assert_int_equal(open(path, O_RDONLY), 0);
    o.in.data = nothing;
    aim(&o, -1, &options);
    const int status = load(&o, &options, NULL, &e);
    o.in.data = whole.data;
    close(0);
    if (standard_input >= 0) {
        dup2(standard_input, 0);
        close(standard_input);
    }
    if (status) fail_msg("%s", e.message);
    compare_all(&o, path, &options);
    free(nothing);
    close_file(&o);
}

/* --- failures --- */

static void devices_may_fail_anywhere(void **state) {
    (void)state;
    const struct kvc_load_options options = {.slots = 2,
                                             .threads = 1,
                                             .slot_bytes = 1,
                                             .verify = 1};
    struct opened o;
    struct kvc_error e;
    int n = 0, status;
    open_file(&o, "tests/golden/gear-v1.kvc");
    struct kvc_device *const own = o.device, faulty = failing_over(own);
    do {
        failing.left = n++;
        o.device = &faulty;
        aim(&o, -1, &options);
        status = load(&o, &options, NULL, &e);
        o.device = own;
        if (status) assert_non_null(strstr(e.message, "the device fails"));
    } while (status);
    assert_true(n > 50);
    compare_all(&o, "after all calls", &options);
    close_file(&o);
}

/* Each byte of the blocks changed: never loaded. */
static void damage_is_noticed(void **state) {
    (void)state;
    const struct kvc_load_options options = {.slots = 3, .threads = 2, .slot_bytes = 1};
    struct opened o;
    struct kvc_error e;
    open_file(&o, "tests/golden/own-basis-v1.kvc");
    uint8_t *copy = malloc((size_t)o.in.size);
    memcpy(copy, o.in.data, (size_t)o.in.size);
    const uint8_t *const data = o.in.data;
    unsigned refused = 0;
    for (uint64_t i = 0, n = kvc_container_records(o.cache); i < n; i++) {
        struct kvc_record_info info;
        assert_int_equal(kvc_container_record(o.cache, i, &info, NULL, 0, &e), 0);
        if (info.type != KVC_RECORD_BLOCK) continue;
        for (uint64_t at = 0; at < info.size; at += 1 + info.size / 7) {
            copy[info.offset + at] ^= 1;
            o.in.data = copy; /* what is read; the cache looks at the sound one */
            aim(&o, -1, &options);
            assert_int_equal(load(&o, &options, NULL, &e), -1);
            assert_int_equal(e.code, KVC_ERR_DAMAGED);
            copy[info.offset + at] ^= 1;
            refused++;
        }
    }
    o.in.data = data;
    assert_true(refused > 20);
    free(copy);
    close_file(&o);
}

/* Values that are not what the digest says, in a record whose own hash fits: only verify can tell,
 * and does. */
static int wrong_run(struct kvc_device *d, void *stream, const struct kvc_device_launch *launch,
                     unsigned limit, struct kvc_error *e) {
    (void)d, (void)stream, (void)limit, (void)e;
    for (uint32_t i = 0; i < launch->n_items; i++)
        if (launch->item[i].kind == KVC_ITEM_DIGEST && launch->item[i].rows)
            *(uint8_t *)(uintptr_t)launch->target[launch->item[i].head].base ^=
                1; /* before its digest is taken */
    kvc_device_run_host(launch);
    for (uint32_t i = 0; i < launch->n_items; i++)
        if (launch->item[i].kind == KVC_ITEM_DIGEST) launch->digest[launch->item[i].index] ^= 1;
    return 0;
}

static void digests_are_compared(void **state) {
    (void)state;
    struct kvc_load_options options = {.slots = 2, .verify = 1};
    struct opened o;
    struct kvc_error e;
    open_file(&o, "tests/golden/fast-v1.kvc");
    o.device->run = wrong_run;
    aim(&o, -1, &options);
    assert_int_equal(load(&o, &options, NULL, &e), -1);
    assert_non_null(strstr(e.message, "do not match the digest"));
    options.verify = 0;
    assert_int_equal(load(&o, &options, NULL, &e), 0);
    close_file(&o);
}

/* A cancelled load fails, and so does finishing it. */
static void loads_are_cancelled(void **state) {
    (void)state;
    const struct kvc_load_options options = {.slots = 2, .slot_bytes = 1};
    struct opened o;
    struct kvc_error e;
    open_file(&o, "tests/golden/split-v1.kvc");
    aim(&o, -1, &options);
    struct kvc_load *l = kvc_load_new(o.device, o.cache, &o.in, &options, o.target, &e);
    assert_non_null(l);
    kvc_load_cancel(l);
    assert_int_equal(kvc_load_run(l, NULL, &e), -1);
    assert_non_null(strstr(e.message, "cancelled"));
    assert_int_equal(kvc_load_finish(l, &e), -1);
    /* the next one is not */
    if (kvc_load_run(l, NULL, &e) || kvc_load_finish(l, &e)) fail_msg("%s", e.message);
    compare_all(&o, "after a cancelled load", &options);
    kvc_load_free(l);
    close_file(&o);
}

/* --- a device that does everything as late as it may --- */

/* Work in the queue of a stream runs only when a later event is awaited. So a use of memory that is
 * too early fails, as on a slow GPU. */
enum { COPY, ZERO, RUN, AWAIT, STREAMS = 16 };
struct queued {
    int kind;
    void *to;
    const void *from;
    size_t n;
    struct kvc_device_launch launch;
};
struct mark {
    size_t stream, upto;
};
static struct late {
    struct queued *work;
    size_t n, done, room;
} late[STREAMS];
static size_t late_streams = 1; /* the first is the caller's */
static int late_runs;           /* until one fails; -1: none does */
static pthread_mutex_t late_lock = PTHREAD_MUTEX_INITIALIZER;

static void catch_up(size_t stream, size_t upto) {
    struct late *s = &late[stream];
    while (s->done < upto) {
        const struct queued q = s->work[s->done++];
        if (q.kind == COPY) memcpy(q.to, q.from, q.n);
        if (q.kind == ZERO) memset(q.to, 0, q.n);
        if (q.kind == RUN) kvc_device_run_host(&q.launch);
        if (q.kind == AWAIT) catch_up((size_t)(uintptr_t)q.from, q.n);
    }
}
static int put_off(void *stream, struct queued q) {
    struct late *s = &late[(size_t)(uintptr_t)stream];
    pthread_mutex_lock(&late_lock);
    if (s->n == s->room) s->work = realloc(s->work, (s->room = 2 * s->room + 64) * sizeof q);
    s->work[s->n++] = q;
    pthread_mutex_unlock(&late_lock);
    return 0;
}
static int late_copy(struct kvc_device *d, void *stream, void *to, const void *from, size_t n,
                     struct kvc_error *e) {
    (void)d, (void)e;
    return put_off(stream, (struct queued){.kind = COPY, .to = to, .from = from, .n = n});
}
static int late_zero(struct kvc_device *d, void *stream, void *to, size_t n, struct kvc_error *e) {
    (void)d, (void)e;
    return put_off(stream, (struct queued){.kind = ZERO, .to = to, .n = n});
}
static int late_run(struct kvc_device *d, void *stream, const struct kvc_device_launch *launch,
                    unsigned limit, struct kvc_error *e) {
    (void)d, (void)limit;
    if (late_runs >= 0 && !late_runs--) return kvc_fail(e, KVC_ERR_IO, "the device fails");
    return put_off(stream, (struct queued){.kind = RUN, .launch = *launch});
}
static int late_event_new(struct kvc_device *d, void **event, struct kvc_error *e) {
    (void)d, (void)e;
    *event = calloc(1, sizeof(struct mark));
    return *event ? 0 : -1;
}
static void late_event_free(struct kvc_device *d, void *event) {
    (void)d;
    free(event);
}
static int late_event_record(struct kvc_device *d, void *event, void *stream, struct kvc_error *e) {
    (void)d, (void)e;
    pthread_mutex_lock(&late_lock);
    *(struct mark *)event = (struct mark){(size_t)(uintptr_t)stream,
                                          late[(size_t)(uintptr_t)stream].n};
    pthread_mutex_unlock(&late_lock);
    return 0;
}
static int late_event_wait(struct kvc_device *d, void *event, struct kvc_error *e) {
    const struct mark *m = event;
    (void)d, (void)e;
    pthread_mutex_lock(&late_lock);
    catch_up(m->stream, m->upto);
    pthread_mutex_unlock(&late_lock);
    return 0;
}
static int late_event_before(struct kvc_device *d, void *event, void *stream, struct kvc_error *e) {
    const struct mark *m = event;
    (void)d, (void)e;
    return put_off(stream, (struct queued){.kind = AWAIT,
                                           .from = (const void *)(uintptr_t)m->stream,
                                           .n = m->upto});
}
static int late_stream_new(struct kvc_device *d, void **stream, struct kvc_error *e) {
    (void)d, (void)e;
    assert_true(late_streams < STREAMS);
    *stream = (void *)(uintptr_t)late_streams++;
    return 0;
}
static void late_stream_free(struct kvc_device *d, void *stream) {
    (void)d, (void)stream;
    late_streams--;
}

/* Whichever launch fails, and with none: what was queued ends before its memory is used anew, and
 * the next load is right. */
static void late_devices_are_waited_for(void **state) {
    (void)state;
    const struct kvc_load_options options = {.slots = 3,
                                             .threads = 2,
                                             .slot_bytes = 1,
                                             .verify = 1};
    struct opened o;
    struct kvc_error e;
    open_file(&o, "tests/golden/gear-v1.kvc");
    o.device->copy_in = o.device->copy_out = late_copy;
    o.device->zero = late_zero;
    o.device->run = late_run;
    o.device->event_new = late_event_new;
    o.device->event_free = late_event_free;
    o.device->event_record = late_event_record;
    o.device->event_wait = late_event_wait;
    o.device->event_before = late_event_before;
    o.device->stream_new = late_stream_new;
    o.device->stream_free = late_stream_free;
    unsigned failed = 0;
    for (int k = -1; k < 12; k++) {
        aim(&o, -1, &options);
        late_runs = -1;
        struct kvc_load *l = kvc_load_new(o.device, o.cache, &o.in, &options, o.target, &e);
        if (!l) fail_msg("%s", e.message);
        late_runs = k;
        if (kvc_load_run(l, NULL, &e)) {
            failed++;
            for (size_t s = 0; s < STREAMS; s++) assert_int_equal(late[s].done, late[s].n);
            assert_int_equal(kvc_load_finish(l, &e), -1);
        }
        late_runs = -1; /* also where the first was not finished */
        if (kvc_load_run(l, NULL, &e) || kvc_load_finish(l, &e)) fail_msg("%s", e.message);
        compare_all(&o, "late", &options);
        kvc_load_free(l);
    }
    assert_int_equal(failed, 12);
    for (size_t s = 0; s < STREAMS; s++) {
        free(late[s].work);
        memset(&late[s], 0, sizeof late[s]);
    }
    close_file(&o);
}

static void only_containers_are_loaded(void **state) {
    (void)state;
    const struct kvc_load_options options = {.slots = 2};
    struct opened o;
    struct kvc_error e;
    open_file(&o, "samples/tiny.kvc");
    struct kvc_cache *other = kvc_cache_new(&e);
    assert_null(kvc_load_new(o.device, other, &o.in, &options, o.target, &e));
    assert_int_equal(e.code, KVC_ERR_UNSUPPORTED);
    kvc_cache_free(other);
    close_file(&o);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stored_files_decode_alike),
        cmocka_unit_test(rows_go_where_they_should),
        cmocka_unit_test(descriptor_0_is_a_file),
        cmocka_unit_test(missing_pages_are_a_failure),
        cmocka_unit_test(devices_may_fail_anywhere),
        cmocka_unit_test(damage_is_noticed),
        cmocka_unit_test(digests_are_compared),
        cmocka_unit_test(loads_are_cancelled),
        cmocka_unit_test(only_containers_are_loaded),
        cmocka_unit_test(late_devices_are_waited_for),
        cmocka_unit_test(streams_wait_for_earlier_layers),
    };
    for (int i = 1; i < argc; i++) check_file(argv[i]); /* other files, by hand */
    return argc > 1 ? 0 : cmocka_run_group_tests(tests, NULL, NULL);
}
