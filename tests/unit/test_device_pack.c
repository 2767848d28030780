/* test_device_pack.c: packing K and V out of a device's memory, proven on the host: the GPU's
 * source, run in lockstep, encodes the same file as the CPU's kernels, byte for byte. Not for CUDA
 * itself (make test-cuda). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "values_support.h"

#include "formats/api/pack_device.h"
#include "kernels/kernels.h"
#include "tests/unit/failing_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern int kvc_lanes_backwards;

/* --- a cache in memory --- */

/* What values are like. */
enum values { LIKE_A_MODEL, ROUGH, NOISE, ZEROS, SPECIAL };

struct shape {
    const char *dtype;
    uint64_t layers, tokens, heads, dim;
    uint64_t page_size, first_slot; /* page_size 0: rows follow each other */
    int heads_first;                /* pages are [head][token][channel] */
    uint64_t gap;                   /* values between heads */
    enum values values;
};

struct made {
    struct kvc_memory m;
    struct kvc_memory_array *array;
    uint8_t **data;
    uint32_t *table;
};

/* About normal, of variance 1. */
static float bell(void) {
    float sum = -6;
    for (int i = 0; i < 12; i++) sum += (float)random_bits() / 16777216.0f;
    return sum;
}

static void put_value(uint8_t *to, const struct shape *s, uint64_t channel, size_t size) {
    const float scale = (float)(1 + channel * 37 % 11) * (channel % 13 == 0 ? 9.0f : 0.3f);
    float x = bell() * scale + (channel % 5 == 0 ? 2 * scale : 0);
    uint32_t bits = random_bits() ^ random_bits() << 12;
    if (s->values == ROUGH && random_bits() % 40 == 0) x *= 1e-4f;
    if (s->values == ROUGH && random_bits() % 900 == 0) x *= 300;
    if (s->values == ZEROS) x = random_bits() % 300 ? 0 : random_bits() % 2 ? -0.0f : x;
    if (s->values != NOISE) memcpy(&bits, &x, sizeof bits);
    if (s->values == SPECIAL && random_bits() % 3000 == 0)
        bits = random_bits() % 2 ? 0x7fc01000u : 0xff800000u;
    if (size == 1) {
        *to = (uint8_t)bits;
        return;
    }
    uint16_t half = (uint16_t)(bits >> 16);
    if (strcmp(s->dtype, "f16") == 0) {
        memcpy(&x, &bits, sizeof x);
        half = s->values == NOISE ? (uint16_t)bits : kvc_float_to_half(x);
    }
    memcpy(to, size == 4 ? (void *)&bits : (void *)&half, size);
}

static void make(struct made *c, const struct shape *s) {
    static const char *const facts[] = {"model.name=test", NULL};
    const size_t size = strcmp(s->dtype, "f32") == 0 ? 4 : strcmp(s->dtype, "u8") == 0 ? 1 : 2;
    const uint64_t head = (s->dim + s->gap) * size;
    const uint64_t slots = s->first_slot + s->tokens,
                   pages = s->page_size ? (slots + s->page_size - 1) / s->page_size : 0;
    memset(c, 0, sizeof *c);
    c->array = calloc(2 * s->layers, sizeof *c->array);
    c->data = calloc(2 * s->layers, sizeof *c->data);
    c->table = calloc(pages + 1, sizeof *c->table);
    assert_true(c->array && c->data && c->table);
    for (uint64_t i = 0; i < pages; i++)
        c->table[i] = (uint32_t)((i * 7 + 3) % (pages % 7 ? pages : pages + 1));
    const uint64_t per_page = s->page_size ? s->page_size : s->tokens;
    for (uint64_t i = 0; i < 2 * s->layers; i++) {
        struct kvc_memory_array *a = &c->array[i];
        const uint64_t bytes = (s->page_size ? pages + 1 : 1) * per_page * s->heads * head;
        if (!(c->data[i] = malloc(bytes))) fail_msg("no memory");
        memset(c->data[i], 0x5a, bytes);
        *a = (struct kvc_memory_array){.role = i % 2 ? "V" : "K",
                                       .layer = (uint32_t)(i / 2),
                                       .dtype = s->dtype,
                                       .heads = s->heads,
                                       .dim = s->dim,
                                       .data = c->data[i],
                                       .page = (int64_t)(per_page * s->heads * head),
                                       .token = (int64_t)(s->heads_first ? head : s->heads * head),
                                       .head = (int64_t)(s->heads_first ? per_page * head : head),
                                       .channel = (int64_t)size};
        for (uint64_t t = 0; t < s->tokens; t++) {
            const uint64_t slot = s->first_slot + t;
            const uint64_t page = s->page_size ? c->table[slot / s->page_size] : 0,
                           in = s->page_size ? slot % s->page_size : t;
            uint8_t *row = c->data[i] + (int64_t)page * a->page + (int64_t)in * a->token;
            for (uint64_t k = 0; k < s->heads * s->dim; k++)
                put_value(row + (int64_t)(k / s->dim) * a->head + k % s->dim * size, s, k, size);
        }
    }
    c->m = (struct kvc_memory){.size = sizeof c->m,
                               .array_size = sizeof *c->array,
                               .arrays = c->array,
                               .n_arrays = 2 * s->layers,
                               .tokens = s->tokens,
                               .page_size = s->page_size,
                               .table = s->page_size ? c->table : NULL,
                               .n_table = pages,
                               .first_slot = s->first_slot,
                               .facts = facts};
}

static void drop(struct made *c, const struct shape *s) {
    for (uint64_t i = 0; i < 2 * s->layers; i++) free(c->data[i]);
    free(c->array);
    free(c->data);
    free(c->table);
}

/* --- packing it twice --- */

struct bytes {
    uint8_t *p;
    size_t n;
};

static int collect(void *state, const void *data, size_t n) {
    struct bytes *b = state;
    uint8_t *grown = realloc(b->p, b->n + n + 1);
    if (!grown) return -1;
    memcpy(grown + b->n, data, n);
    b->p = grown;
    b->n += n;
    return 0;
}

static struct kvc_device *other; /* the device, where it is not the host as it is */

static int pack_on_device(const struct kvc_memory *m, const char *recipe, unsigned threads,
                          struct bytes *out, struct kvc_pack_device_result *result,
                          struct kvc_error *e) {
    const struct kvc_write_options options = {.size = sizeof options,
                                              .recipe = recipe,
                                              .threads = threads};
    const struct kvc_pack_device_how how = {.multiprocessors = 0};
    struct kvc_device *d = kvc_device_host(e);
    assert_non_null(d);
    memset(out, 0, sizeof *out);
    const int status = kvc_pack_device(other ? other : d, m, &how, &options, collect, out, result,
                                       e);
    d->close(d);
    return status;
}

/* Compares both files. Returns the bytes of rows that were copied as they are, in permille of all.
 */
static uint64_t compare(const struct shape *s, const char *recipe, unsigned threads) {
    const struct kvc_write_options options = {.size = sizeof options,
                                              .recipe = recipe,
                                              .threads = threads};
    struct kvc_error e = {0};
    struct kvc_pack_device_result result;
    struct bytes got;
    struct made c;
    void *want = NULL;
    size_t n = 0;
    make(&c, s);
    struct kvc_file *f = kvc_file_open_arrays(&c.m, &e);
    if (!f || kvc_file_pack_memory(f, &options, &want, &n, &e)) fail_msg("%s", e.message);
    if (pack_on_device(&c.m, recipe, threads, &got, &result, &e))
        fail_msg("%s: %s", recipe, e.message);
    size_t i = 0;
    while (i < n && i < got.n && got.p[i] == ((uint8_t *)want)[i]) i++;
    if (i < n || n != got.n)
        fail_msg("%s, %s %llux%llux%llu, pages of %llu: the files of %zu and %zu bytes differ at "
                 "byte %zu",
                 recipe, s->dtype, (unsigned long long)s->tokens, (unsigned long long)s->heads,
                 (unsigned long long)s->dim, (unsigned long long)s->page_size, n, got.n, i);
    assert_true(result.bytes > 0 && result.raw <= result.bytes);
    kvc_file_close(f);
    free(want);
    free(got.p);
    drop(&c, s);
    return result.raw * 1000 / result.bytes;
}

static void fast_gives_the_same_file(void **state) {
    (void)state;
    static const struct shape shapes[] = {
        {"bf16", 2, 300, 2, 64, 16, 5, 0, 0, LIKE_A_MODEL},
        {"bf16", 1, 257, 3, 80, 0, 0, 0, 0, LIKE_A_MODEL},
        {"f16", 2, 513, 2, 128, 64, 0, 1, 0, LIKE_A_MODEL},
        {"f16", 1, 31, 1, 5, 4, 3, 0, 1, ROUGH},
        {"bf16", 1, 700, 1, 7, 0, 0, 0, 3, ROUGH},
        {"bf16", 1, 64, 4, 33, 8, 2, 1, 0, ROUGH},
        {"f32", 1, 260, 2, 64, 16, 1, 0, 0, LIKE_A_MODEL},
        {"f32", 1, 40, 1, 9, 0, 0, 1, 2, ROUGH},
        {"bf16", 1, 300, 2, 64, 16, 0, 0, 0, ZEROS},
        {"f16", 1, 300, 2, 64, 16, 0, 0, 0, SPECIAL},
        {"bf16", 1, 1, 1, 1, 0, 0, 0, 0, LIKE_A_MODEL},
        {"bf16", 1, 4400, 1, 4, 0, 0, 0, 0, ROUGH},
        {"bf16", 1, 70, 5, 128, 16, 0, 0, 4, LIKE_A_MODEL},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (kvc_lanes_backwards = 0; kvc_lanes_backwards < 2; kvc_lanes_backwards++) {
            random_state = (uint32_t)i;
            const uint64_t raw = compare(&shapes[i], "fast", 1);
            /* the parameters of a block of one row are larger than what its codes save */
            if (shapes[i].values == LIKE_A_MODEL && shapes[i].tokens % 256 > 1)
                assert_int_equal(raw, 0);
        }
    kvc_lanes_backwards = 0;
}

/* Blocks that do not become smaller, and dtypes that `fast` does not code, are stored as they are.
 */
static void rows_that_do_not_shrink_are_stored(void **state) {
    (void)state;
    static const struct shape noise = {"bf16", 1, 300, 2, 32, 16, 0, 0, 0, NOISE},
                              bytes = {"u8", 1, 300, 2, 32, 16, 0, 0, 0, NOISE};
    random_state = 1;
    assert_int_equal(compare(&noise, "fast", 1), 1000);
    assert_int_equal(compare(&bytes, "fast", 1), 1000);
}

static void threads_give_the_same_file(void **state) {
    (void)state;
    static const struct shape s = {"bf16", 5, 300, 2, 64, 16, 5, 0, 0, LIKE_A_MODEL};
    random_state = 2;
    assert_int_equal(compare(&s, "fast", 4), 0);
}

static void quantisers_give_the_same_file(void **state) {
    (void)state;
    static const char *const recipes[] = {
        "kivi2",
        "kivi4",
        "kcvt4",
        "quant:kivi:bits=3:g=32",
        "quant:token:bits=8:g=7",
        "quant:kivi:bits=1:sym",
        "tail:300,quant:kcvt:bits=5",
        "fast@k,quant:token:bits=6@v",
    };
    static const struct shape shapes[] = {
        {"bf16", 2, 300, 2, 64, 16, 5, 0, 0, LIKE_A_MODEL},
        {"f16", 1, 513, 3, 80, 64, 0, 1, 0, LIKE_A_MODEL},
        {"f32", 1, 257, 2, 128, 0, 0, 0, 4, LIKE_A_MODEL},
        {"f16", 1, 600, 2, 33, 8, 3, 0, 1, ROUGH},
        {"bf16", 1, 700, 1, 7, 0, 0, 0, 0, ZEROS},
        {"bf16", 1, 40, 2, 64, 16, 0, 0, 0, LIKE_A_MODEL},
        {"bf16", 1, 4500, 1, 4, 0, 0, 1, 0, ROUGH},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (size_t k = 0; k < sizeof recipes / sizeof recipes[0]; k++) {
            random_state = (uint32_t)i;
            kvc_lanes_backwards = k % 2;
            const uint64_t raw = compare(&shapes[i], recipes[k], 1);
            /* else the last rows, which `tail` keeps, or values beyond f16's range */
            if (!strncmp(recipes[k], "quant", 5) && shapes[i].values == LIKE_A_MODEL)
                assert_int_equal(raw, 0);
        }
    kvc_lanes_backwards = 0;
}

/* The host codes blocks that have values which `finite` stores apart. */
static void blocks_that_are_not_finite_are_coded_by_the_host(void **state) {
    (void)state;
    static const struct shape s = {"f32", 1, 1500, 1, 4, 16, 0, 0, 0, SPECIAL};
    random_state = 5;
    const uint64_t raw = compare(&s, "quant:kivi:bits=4", 1);
    assert_in_range(raw, 1, 999);
    compare(&s, "kivi4", 1);
}

static void random_shapes_give_the_same_file(void **state) {
    (void)state;
    static const char *const recipes[] = {"fast", "kivi2", "kcvt4", "quant:token:bits=7:g=12",
                                          "tail:9:whole=5,quant:kivi:bits=5:g=20:sym"};
    static const char *const dtypes[] = {"bf16", "f16", "f32"};
    for (uint32_t i = 0; i < 60; i++) {
        random_state = i;
        const struct shape s = {.dtype = dtypes[random_bits() % 3],
                                .layers = 1,
                                .tokens = 1 + random_bits() % 700,
                                .heads = 1 + random_bits() % 4,
                                .dim = 1 + random_bits() % (i % 4 ? 40 : 150),
                                .page_size = random_bits() % 2 ? 1 + random_bits() % 40 : 0,
                                .first_slot = random_bits() % 90,
                                .heads_first = (int)(random_bits() % 2),
                                .gap = random_bits() % 3 ? 0 : random_bits() % 9,
                                .values = (enum values)(random_bits() % (SPECIAL + 1))};
        kvc_lanes_backwards = i % 2;
        compare(&s, recipes[i % (sizeof recipes / sizeof recipes[0])], 1);
    }
    kvc_lanes_backwards = 0;
}

/* --- devices that fail, and devices that work late --- */

static void devices_may_fail_anywhere(void **state) {
    (void)state;
    static const struct shape s = {"bf16", 1, 300, 1, 5, 16, 0, 0, 0, ROUGH};
    static const char *const recipes[] = {"fast", "kivi4"};
    struct kvc_error e;
    struct made c;
    random_state = 6;
    make(&c, &s);
    struct kvc_device *const host = kvc_device_host(&e);
    assert_non_null(host);
    struct kvc_device faulty = failing_over(host);
    other = &faulty;
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++) {
        int n = 0, status;
        do {
            struct bytes got;
            failing.left = n++;
            memset(&e, 0, sizeof e);
            status = pack_on_device(&c.m, recipes[i], 1, &got, NULL, &e);
            if (status) assert_non_null(strstr(e.message, "the device fails"));
            free(got.p);
        } while (status);
        assert_true(n > 30);
    }
    other = NULL;
    host->close(host);
    drop(&c, &s);
}

/* A device that does nothing before a call waits for an event. */
static struct late {
    struct kvc_device *under;
    struct queued {
        enum { COPY, ZERO, ENCODE } kind;
        void *to;
        const void *from;
        size_t n;
        struct kvc_device_launch launch;
    } queue[4096];
    size_t n;
} late;

static struct queued *queue_late(void) {
    assert_true(late.n < sizeof late.queue / sizeof late.queue[0]);
    return &late.queue[late.n++];
}
static int late_copy(struct kvc_device *d, void *stream, void *to, const void *from, size_t n,
                     struct kvc_error *e) {
    (void)d, (void)stream, (void)e;
    *queue_late() = (struct queued){.kind = COPY, .to = to, .from = from, .n = n};
    return 0;
}
static int late_zero(struct kvc_device *d, void *stream, void *to, size_t n, struct kvc_error *e) {
    (void)d, (void)stream, (void)e;
    *queue_late() = (struct queued){.kind = ZERO, .to = to, .n = n};
    return 0;
}
static int late_encode(struct kvc_device *d, void *stream, const struct kvc_device_launch *launch,
                       unsigned limit, struct kvc_error *e) {
    (void)d, (void)stream, (void)limit, (void)e;
    *queue_late() = (struct queued){.kind = ENCODE, .launch = *launch};
    return 0;
}
static int late_wait(struct kvc_device *d, void *event, struct kvc_error *e) {
    (void)event;
    for (size_t i = 0; i < late.n; i++) {
        const struct queued *q = &late.queue[i];
        if (q->kind == COPY) memcpy(q->to, q->from, q->n);
        else if (q->kind == ZERO) memset(q->to, 0, q->n);
        else if (late.under->encode(d, NULL, &q->launch, 0, e)) return -1;
    }
    late.n = 0;
    return 0;
}

static void late_devices_are_waited_for(void **state) {
    (void)state;
    static const struct shape s = {"bf16", 2, 600, 2, 64, 16, 0, 0, 0, ROUGH};
    struct kvc_error e;
    late.under = kvc_device_host(&e);
    assert_non_null(late.under);
    struct kvc_device slow = *late.under;
    slow.copy_in = late_copy, slow.copy_out = late_copy, slow.zero = late_zero,
    slow.encode = late_encode;
    slow.event_wait = late_wait;
    other = &slow;
    random_state = 7;
    compare(&s, "fast", 1);
    compare(&s, "kivi2", 1);
    other = NULL;
    late.under->close(late.under);
}

/* --- what is refused --- */

static void expect_refusal(const struct kvc_memory *m, const char *recipe, const char *why) {
    struct kvc_error e = {0};
    struct bytes got;
    assert_int_equal(pack_on_device(m, recipe, 1, &got, NULL, &e), -1);
    if (!strstr(e.message, why)) fail_msg("'%s' does not say '%s'", e.message, why);
    free(got.p);
}

static void unsuitable_input_is_refused(void **state) {
    (void)state;
    static const struct shape s = {"bf16", 1, 40, 2, 16, 16, 0, 0, 0, LIKE_A_MODEL};
    struct made c;
    random_state = 3;
    make(&c, &s);
    expect_refusal(&c.m, NULL, "no device encodes 'split'");
    expect_refusal(&c.m, "zstd", "use fast");
    expect_refusal(&c.m, "fast@k", "layer 0 V: no device encodes 'split'");
    expect_refusal(&c.m, "small", "no device encodes");
    expect_refusal(&c.m, "quant:zip:bits=4", "without zip and clip");
    expect_refusal(&c.m, "quant:kivi:bits=4:clip", "without zip and clip");
    expect_refusal(&c.m, "outlier:0.02,kivi4", "no device encodes");
    expect_refusal(NULL, "fast", "m is NULL");

    c.array[1].channel = 3;
    expect_refusal(&c.m, "fast", "array 1");
    c.array[1].channel = 2;
    c.array[1].data = c.data[1] + 1;
    expect_refusal(&c.m, "fast",
                   "array 1: its address or a stride is no multiple of the 2 bytes of its values");
    c.array[1].data = c.data[1];
    c.array[1].role = "K";
    expect_refusal(&c.m, "fast", "array 1: layer 0 K is given twice");
    c.array[1].role = "hidden";
    expect_refusal(&c.m, "fast", "array 1: hidden are packed in memory of the host only");
    c.array[1].role = "V";
    const int64_t positions[40] = {9};
    c.m.positions = positions;
    expect_refusal(&c.m, "fast", "must ascend");
    drop(&c, &s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fast_gives_the_same_file),
        cmocka_unit_test(rows_that_do_not_shrink_are_stored),
        cmocka_unit_test(threads_give_the_same_file),
        cmocka_unit_test(quantisers_give_the_same_file),
        cmocka_unit_test(blocks_that_are_not_finite_are_coded_by_the_host),
        cmocka_unit_test(random_shapes_give_the_same_file),
        cmocka_unit_test(devices_may_fail_anywhere),
        cmocka_unit_test(late_devices_are_waited_for),
        cmocka_unit_test(unsuitable_input_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
