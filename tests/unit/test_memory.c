/* Tests of caches in a program's memory: arrays of random layouts, packed, opened, and loaded into
 * other layouts, against values that are found one by one; engines' pools; what is refused. */
#include "formats/api/kvc.h"

#include "codecs/dtype.h"
#include "tests/dense_array.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 2, ARRAYS = 2 * LAYERS, LAYOUTS = 500 };

static uint64_t random_state = 1;

static uint64_t below(uint64_t n) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (random_state >> 33) % n;
}

static void fill(uint8_t *bytes, size_t n) {
    /* no NaN in any dtype */
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(below(256) & 0x3b);
}

/* Arrays of one random layout, each in a block of memory of its own. */
struct arrays {
    struct kvc_memory m;
    struct kvc_memory_array a[ARRAYS];
    uint32_t table[64];
    size_t bytes; /* of each array's memory */
    uint8_t *start[ARRAYS];
    size_t value; /* bytes of a value or block */
    uint64_t blocks;
};

/* Gives tokens, heads and channels strides in a random order, with gaps, and chooses pages. */
static void lay_out(struct arrays *x, const char *dtype, uint64_t tokens, uint64_t heads,
                    uint64_t dim) {
    const struct kvc_dtype_info *info = kvc_dtype_by_name(dtype);
    memset(x, 0, sizeof *x);
    x->value = info->size;
    x->blocks = dim / info->block;
    const uint64_t page = below(2) ? 1 + below(40) : 0;
    const uint64_t first = page ? below(3 * page) : 0,
                   pages = page ? (first + tokens + page - 1) / page + 2 : 1;
    x->m = (struct kvc_memory){.size = sizeof x->m,
                               .array_size = sizeof x->a[0],
                               .arrays = x->a,
                               .n_arrays = ARRAYS,
                               .tokens = tokens};
    uint64_t count[3] = {page ? page : tokens, heads, x->blocks}, stride[3] = {0},
             size = info->size;
    int order[3] = {0, 1, 2};
    for (int i = 2; i > 0; i--) {
        const int j = (int)below((uint64_t)i + 1), keep = order[i];
        order[i] = order[j];
        order[j] = keep;
    }
    for (int i = 0; i < 3; i++) {
        if (below(4) == 0) size += info->size * below(3);
        stride[order[i]] = size;
        size *= count[order[i]] ? count[order[i]] : 1;
    }
    uint32_t name[64];
    const uint64_t all = pages < 64 ? pages : 64;
    for (uint32_t i = 0; i < all; i++) name[i] = i;
    for (uint64_t i = 0; i < all; i++) {
        const uint64_t j = i + below(all - i);
        x->table[i] = name[j];
        name[j] = name[i];
    }
    if (page && pages <= 64 && below(3)) {
        x->m.table = x->table;
        x->m.n_table = pages;
    }
    x->m.page_size = page;
    x->m.first_slot = first;
    x->bytes = (size_t)(size * pages);
    for (size_t i = 0; i < ARRAYS; i++) {
        x->start[i] = malloc(x->bytes + 1);
        fill(x->start[i], x->bytes);
        x->a[i] = (struct kvc_memory_array){.role = i % 2 ? "V" : "K",
                                            .layer = (uint32_t)(3 + i / 2),
                                            .dtype = dtype,
                                            .heads = heads,
                                            .dim = dim,
                                            .data = x->start[i],
                                            .page = (int64_t)size,
                                            .token = (int64_t)stride[0],
                                            .head = (int64_t)stride[1],
                                            .channel = (int64_t)stride[2]};
    }
}

static void arrays_free(struct arrays *x) {
    for (size_t i = 0; i < ARRAYS; i++) free(x->start[i]);
}

/* Finds a value by the words of kvc.h. */
static uint8_t *value_at(const struct arrays *x, size_t array, uint64_t token, uint64_t head,
                         uint64_t channel) {
    const struct kvc_memory_array *a = &x->a[array];
    uint64_t slot = x->m.first_slot + token, page = 0;
    if (x->m.page_size) {
        page = slot / x->m.page_size;
        slot %= x->m.page_size;
        if (x->m.table) page = x->m.table[page];
    } else slot = token;
    return (uint8_t *)a->data + (int64_t)page * a->page + (int64_t)slot * a->token +
           (int64_t)head * a->head + (int64_t)channel * a->channel;
}

static void same_values(const struct arrays *x, const struct arrays *y, uint64_t skipped) {
    for (size_t i = 0; i < ARRAYS; i++)
        for (uint64_t t = 0; t < y->m.tokens; t++)
            for (uint64_t h = 0; h < x->a[i].heads; h++)
                for (uint64_t b = 0; b < x->blocks; b++)
                    assert_memory_equal(value_at(x, i, t + skipped, h, b), value_at(y, i, t, h, b),
                                        x->value);
}

static struct kvc_file *pack_and_open(const struct kvc_file *f, const char *recipe, void **data,
                                      struct kvc_error *e) {
    const struct kvc_write_options options = {.size = sizeof options,
                                              .recipe = recipe,
                                              .threads = 1};
    size_t size;
    if (kvc_file_pack_memory(f, &options, data, &size, e)) fail_msg("%s", kvc_error_message(e));
    struct kvc_file *g = kvc_file_open_memory(*data, size, NULL, e);
    if (!g) fail_msg("%s", kvc_error_message(e));
    return g;
}

/* What is packed out of one layout comes back in another, and the bytes between values stay. */
static void random_layouts(void **state) {
    static const char *const dtypes[] = {"bf16", "f16", "f32", "u8", "q8_0", "f8e4m3"};
    static const char *const recipes[] = {"store", "fast", "split"};
    struct kvc_error *e = kvc_error_new();
    (void)state;
    for (int n = 0; n < LAYOUTS; n++) {
        const char *dtype = dtypes[below(6)];
        const uint64_t tokens = below(4) ? 1 + below(90) : below(600), heads = 1 + below(4);
        const uint64_t dim = kvc_dtype_by_name(dtype)->block *
                             (1 + below(kvc_dtype_by_name(dtype)->block > 1 ? 2 : 40));
        const uint64_t skipped = tokens ? below(tokens) : 0;
        struct arrays x, y;
        void *data;
        lay_out(&x, dtype, tokens, heads, dim);
        x.m.first_position = (int64_t)below(1000);
        struct kvc_file *f = kvc_file_open_arrays(&x.m, e);
        if (!f) fail_msg("%s", kvc_error_message(e));
        struct kvc_file *g = pack_and_open(f, recipes[below(3)], &data, e);
        lay_out(&y, dtype, tokens - skipped, heads, dim);
        y.m.first_position = x.m.first_position + (int64_t)skipped;
        struct arrays due = y;
        for (size_t i = 0; i < ARRAYS; i++) {
            due.start[i] = due.a[i].data = malloc(y.bytes + 1);
            memcpy(due.start[i], y.start[i], y.bytes);
            for (uint64_t t = 0; t < y.m.tokens; t++)
                for (uint64_t h = 0; h < heads; h++)
                    for (uint64_t b = 0; b < x.blocks; b++)
                        memcpy(value_at(&due, i, t, h, b), value_at(&x, i, t + skipped, h, b),
                               x.value);
        }
        const struct kvc_load_how options = {.size = sizeof options,
                                             .threads = (unsigned)(1 + below(3))};
        if (kvc_file_load(below(2) ? f : g, &y.m, &options, e))
            fail_msg("%s", kvc_error_message(e));
        same_values(&x, &y, skipped);
        for (size_t i = 0; i < ARRAYS; i++) assert_memory_equal(y.start[i], due.start[i], y.bytes);
        kvc_file_close(g);
        kvc_file_close(f);
        free(data);
        arrays_free(&x), arrays_free(&y), arrays_free(&due);
    }
    kvc_error_free(e);
}

/* K and V of a pool of vLLM on a CPU lie where its kernel puts them: of each head K as [channels,
 * tokens], then V. */
static void pools(void **state) {
    enum { N = 16, D = 8, H = 3, PAGES = 4, TOKENS = 40 };
    struct kvc_error *e = kvc_error_new();
    const struct kvc_pool_layout *layout = kvc_pool_layout_find("vllm-cpu"),
                                 *plain = kvc_pool_layout_find("dense");
    const struct kvc_pool pool = {
        .layers = LAYERS, .pages = PAGES, .page_size = N, .heads = H, .dim = D, .value_bytes = 2};
    const struct kvc_pool one = {
        .layers = LAYERS, .pages = 1, .page_size = TOKENS, .heads = H, .dim = D, .value_bytes = 2};
    static const uint32_t table[] = {2, 0, 3};
    uint16_t *base[LAYERS], *dense = calloc((size_t)LAYERS * 2 * TOKENS * H * D, 2);
    struct kvc_memory_array a[ARRAYS], b[ARRAYS];
    (void)state;
    for (size_t l = 0; l < LAYERS; l++) {
        base[l] = malloc((size_t)PAGES * H * 2 * N * D * 2);
        fill((uint8_t *)base[l], (size_t)PAGES * H * 2 * N * D * 2);
    }
    assert_int_equal(kvc_pool_arrays(layout, &pool, "bf16", (void *const *)base, LAYERS, a,
                                     sizeof a[0], ARRAYS, e),
                     0);
    assert_int_equal(kvc_pool_arrays(plain, &one, "bf16", (void *const *)&dense, 1, b, sizeof b[0],
                                     ARRAYS, e),
                     0);
    const struct kvc_memory m = {.size = sizeof m,
                                 .array_size = sizeof a[0],
                                 .arrays = a,
                                 .n_arrays = ARRAYS,
                                 .tokens = TOKENS,
                                 .page_size = N,
                                 .table = table,
                                 .n_table = 3};
    const struct kvc_memory to = {.size = sizeof to,
                                  .array_size = sizeof b[0],
                                  .arrays = b,
                                  .n_arrays = ARRAYS,
                                  .tokens = TOKENS};
    struct kvc_file *f = kvc_file_open_arrays(&m, e);
    if (!f || kvc_file_load(f, &to, NULL, e)) fail_msg("%s", kvc_error_message(e));
    for (size_t l = 0; l < LAYERS; l++)
        for (size_t t = 0; t < TOKENS; t++)
            for (size_t h = 0; h < H; h++)
                for (size_t d = 0; d < D; d++) {
                    const uint16_t *block = base[l] + (table[t / N] * H + h) * 2 * N * D;
                    assert_int_equal(dense[(((l * 2 + 0) * TOKENS + t) * H + h) * D + d],
                                     block[d * N + t % N]);
                    assert_int_equal(dense[(((l * 2 + 1) * TOKENS + t) * H + h) * D + d],
                                     block[N * D + t % N * D + d]);
                }
    assert_int_equal(kvc_pool_arrays(layout, &pool, "bf16", (void *const *)base, 1, a, sizeof a[0],
                                     ARRAYS, e),
                     -1);
    assert_int_equal(kvc_pool_arrays(layout, &pool, "bf16", (void *const *)base, LAYERS, a,
                                     sizeof a[0], 3, e),
                     -1);
    kvc_file_close(f);
    for (size_t l = 0; l < LAYERS; l++) free(base[l]);
    free(dense);
    kvc_error_free(e);
}

/* Facts, tokens, queries and a layer with a sliding window: all are in the container. */
static void facts_and_windows(void **state) {
    enum { T = 30, W = 10, H = 2, D = 4 };
    static const char *const facts[] = {"model.name=a model",
                                        "rope.pairing=halves",
                                        "rope.theta=1e5",
                                        "model.layers=2",
                                        "tokenizer.sha256=00ff",
                                        "x-mine.note=b",
                                        NULL};
    static float k[T * H * D], v[T * H * D], wk[W * H * D], wv[W * H * D], q[5 * 4 * D];
    static int32_t ids[T];
    struct kvc_error *e = kvc_error_new();
    struct kvc_memory_array a[5] = {dense_array("K", 0, "f32", 4, H, D, k),
                                    dense_array("V", 0, "f32", 4, H, D, v),
                                    dense_array("K", 1, "f32", 4, H, D, wk),
                                    dense_array("V", 1, "f32", 4, H, D, wv),
                                    dense_array("queries", 0, "f32", 4, 4, D, q)};
    char text[80];
    void *data;
    uint64_t n;
    (void)state;
    a[2].tokens = a[3].tokens = W, a[4].tokens = 5;
    for (size_t i = 0; i < T * H * D; i++) k[i] = (float)i, v[i] = (float)i + 0.5f;
    for (size_t i = 0; i < W * H * D; i++) wk[i] = -(float)i, wv[i] = -(float)i - 0.5f;
    for (int32_t i = 0; i < T; i++) ids[i] = 7 * i;
    struct kvc_memory m = {.size = sizeof m,
                           .array_size = sizeof a[0],
                           .arrays = a,
                           .n_arrays = 5,
                           .tokens = T,
                           .token_ids = ids,
                           .n_token_ids = T,
                           .facts = facts};
    struct kvc_file *f = kvc_file_open_arrays(&m, e);
    if (!f) fail_msg("%s", kvc_error_message(e));
    assert_string_equal(kvc_file_format(f), "memory");
    struct kvc_file *g = pack_and_open(f, NULL, &data, e);
    assert_string_equal(kvc_file_meta(g, "model.name", text, sizeof text), "a model");
    assert_string_equal(kvc_file_meta(g, "rope.theta", text, sizeof text), "100000");
    assert_string_equal(kvc_file_meta(g, "tokenizer.sha256", text, sizeof text), "00ff");
    assert_string_equal(kvc_file_meta(g, "x-mine.note", text, sizeof text), "b");
    assert_memory_equal(kvc_file_tokens(g, &n), ids, sizeof ids);
    assert_int_equal(n, T);
    assert_int_equal(kvc_file_tensors(g), 5);

    static float k2[T * H * D], wv2[W * H * D];
    struct kvc_memory_array back[2] = {a[0], a[3]};
    back[0].data = k2, back[1].data = wv2;
    struct kvc_memory to = {.size = sizeof to,
                            .array_size = sizeof back[0],
                            .arrays = back,
                            .n_arrays = 2,
                            .tokens = T};
    if (kvc_file_load(g, &to, NULL, e)) fail_msg("%s", kvc_error_message(e));
    assert_memory_equal(k2, k, sizeof k);
    assert_memory_equal(wv2, wv, sizeof wv);
    back[1].tokens = 0; /* all of a layer that has the last tokens only */
    assert_int_equal(kvc_file_load(g, &to, NULL, e), -1);
    assert_int_equal(kvc_error_code(e), 33);
    to.n_arrays = 1, to.tokens = T + 1;
    assert_int_equal(kvc_file_load(g, &to, NULL, e), -1);
    assert_int_equal(kvc_error_code(e), 33);
    struct kvc_select_options part = {.size = sizeof part, .first = 2, .end = 9};
    assert_null(kvc_file_select(g, &part, e));
    assert_int_equal(kvc_error_code(e), 33);
    kvc_file_close(g);
    kvc_file_close(f);
    free(data);
    kvc_error_free(e);
}

/* Floats are rounded to another dtype, and block types widened, only where that is asked for. */
static void conversions(void **state) {
    struct kvc_error *e = kvc_error_new();
    const float value[4] = {1, 1.0f + 0x1p-8f, 3e38f, -0.1f};
    float wide[4] = {0};
    uint16_t half[4];
    struct kvc_memory_array a = dense_array("V", 0, "f32", 4, 1, 4, (void *)(uintptr_t)value);
    struct kvc_memory m = {
        .size = sizeof m, .array_size = sizeof a, .arrays = &a, .n_arrays = 1, .tokens = 1};
    struct kvc_load_how o = {.size = sizeof o};
    (void)state;
    struct kvc_file *f = kvc_file_open_arrays(&m, e);
    if (!f) fail_msg("%s", kvc_error_message(e));
    a.dtype = "bf16", a.data = half, a.token = a.head = 8, a.channel = 2;
    assert_int_equal(kvc_file_load(f, &m, &o, e), -1);
    assert_int_equal(kvc_error_code(e), 10);
    o.convert = 1;
    if (kvc_file_load(f, &m, &o, e)) fail_msg("%s", kvc_error_message(e));
    static const uint16_t due[4] = {0x3f80, 0x3f80, 0x7f62, 0xbdcd};
    assert_memory_equal(half, due, sizeof due);
    a.dtype = "q8_0";
    assert_int_equal(kvc_file_load(f, &m, &o, e), -1);
    kvc_file_close(f);
    a.dtype = "bf16"; /* and back */
    f = kvc_file_open_arrays(&m, e);
    a.dtype = "f32", a.data = wide, a.token = a.head = 16, a.channel = 4;
    if (!f || kvc_file_load(f, &m, &o, e)) fail_msg("%s", kvc_error_message(e));
    assert_true(wide[0] >= 1 && wide[0] <= 1 && wide[3] < -0.0999f && wide[3] > -0.1009f);
    kvc_file_close(f);
    kvc_error_free(e);
}

/* Blocks of the array's dtype are copied, also where other arrays are converted. */
static void blocks_stay(void **state) {
    enum { T = 3, Q4_1 = 20, Q8_0 = 34 };
    struct kvc_error *e = kvc_error_new();
    static uint8_t k[T][Q4_1], v[T][Q8_0], k_back[T][Q4_1], v_back[T][Q8_0];
    static float wide[T][32], due[T][32];
    struct kvc_memory_array a[2] = {dense_array("K", 0, "q4_1", Q4_1, 1, 1, k),
                                    dense_array("V", 0, "q8_0", Q8_0, 1, 1, v)};
    struct kvc_memory m = {
        .size = sizeof m, .array_size = sizeof a[0], .arrays = a, .n_arrays = 2, .tokens = T};
    const struct kvc_load_how o = {.size = sizeof o, .convert = 1};
    (void)state;
    a[0].dim = a[1].dim = 32; /* in one block */
    fill(k[0], sizeof k);
    fill(v[0], sizeof v);
    k[1][1] = 0x7e; /* a scale that is NaN */
    struct kvc_file *f = kvc_file_open_arrays(&m, e);
    if (!f) fail_msg("%s", kvc_error_message(e));
    a[0].data = k_back, a[1].data = v_back;
    if (kvc_file_load(f, &m, &o, e)) fail_msg("%s", kvc_error_message(e));
    assert_memory_equal(k_back, k, sizeof k);
    assert_memory_equal(v_back, v, sizeof v);
    memset(k_back, 0, sizeof k_back);
    a[1] = dense_array("V", 0, "f32", 4, 1, 32, wide);
    if (kvc_file_load(f, &m, &o, e)) fail_msg("%s", kvc_error_message(e));
    assert_memory_equal(k_back, k, sizeof k);
    kvc_dtype_by_name("q8_0")->to_f32(due[0], v[0], T);
    assert_memory_equal(wide, due, sizeof due);
    a[0].dtype = "q8_0"; /* other blocks */
    assert_int_equal(kvc_file_load(f, &m, &o, e), -1);
    assert_int_equal(kvc_error_code(e), 10);
    kvc_file_close(f);
    kvc_error_free(e);
}

struct heard {
    unsigned calls, cancel_at;
    uint64_t done, total;
};

static int hear(void *state, uint64_t done, uint64_t total) {
    struct heard *h = state;
    assert_true(done > h->done);
    h->done = done;
    h->total = total;
    return ++h->calls == h->cancel_at;
}

/* Progress counts the bytes of the arrays; what it cancels is an error. */
static void progress_of_loading(void **state) {
    enum { T = 600, HEADS = 2, DIM = 8 };
    struct kvc_error *e = kvc_error_new();
    struct arrays x, y;
    void *packed = NULL;
    size_t n = 0;
    (void)state;
    lay_out(&x, "f16", T, HEADS, DIM);
    lay_out(&y, "f16", T, HEADS, DIM);
    struct kvc_file *f = kvc_file_open_arrays(&x.m, e);
    if (!f || kvc_file_pack_memory(f, NULL, &packed, &n, e)) fail_msg("%s", kvc_error_message(e));
    struct kvc_file *g = kvc_file_open_memory(packed, n, NULL, e);
    if (!g) fail_msg("%s", kvc_error_message(e));
    const uint64_t total = x.m.n_arrays * T * HEADS * DIM * 2;
    /* three blocks, which are decoded two at a time */
    const unsigned calls = (unsigned)x.m.n_arrays * 2;
    for (unsigned threads = 1; threads <= 3; threads += 2)
        for (unsigned at = 0; at <= calls; at++) {
            struct heard h = {.cancel_at = at};
            const struct kvc_load_how o = {.size = sizeof o,
                                           .threads = threads,
                                           .progress = hear,
                                           .progress_state = &h};
            assert_int_equal(kvc_file_load(g, &y.m, &o, e), at ? -1 : 0);
            assert_int_equal(h.calls, at ? at : calls);
            assert_int_equal(h.total, total);
            assert_int_equal(h.done == total, !at || at == calls);
            if (at) assert_int_equal(kvc_error_code(e), 21);
            else same_values(&x, &y, 0);
        }
    kvc_file_close(g);
    kvc_file_close(f);
    free(packed);
    arrays_free(&x);
    arrays_free(&y);
    kvc_error_free(e);
}

static int count(void *state, const void *data, size_t n) {
    (void)data;
    *(size_t *)state += n;
    return 0;
}

/* A handle of arrays is as good as any other: it is selected, compared and written as another
 * layout; there is no source to restore. */
static void as_any_other(void **state) {
    enum { T = 20 };
    struct kvc_error *e = kvc_error_new();
    const struct kvc_write_options how = {.size = sizeof how, .lossy_metadata = 1};
    const struct kvc_select_options part = {.size = sizeof part, .first = 5, .end = 12};
    const struct kvc_compare_how whole = {.size = sizeof whole};
    struct kvc_comparison c = {.size = sizeof c};
    struct arrays x;
    size_t written = 0;
    (void)state;
    lay_out(&x, "f16", T, 2, 8);
    struct kvc_file *f = kvc_file_open_arrays(&x.m, e),
                    *g = f ? kvc_file_select(f, &part, e) : NULL;
    if (!g) fail_msg("%s", kvc_error_message(e));
    assert_int_equal(kvc_file_compare(f, f, &whole, &c, e), 0);
    assert_int_equal(kvc_file_check(f, 1, e), 0);
    assert_int_equal(kvc_file_unpack(f, NULL, &how, count, &written, e), -1);
    assert_int_equal(kvc_file_unpack(g, "safetensors", &how, count, &written, e), 0);
    assert_true(written > 4 * 7 * 2 * 8 * 2);
    struct arrays y;
    lay_out(&y, "f16", 7, 2, 8);
    y.m.first_position = 5;
    if (kvc_file_load(g, &y.m, NULL, e)) fail_msg("%s", kvc_error_message(e));
    same_values(&x, &y, 5);
    y.m.first_position = 6; /* one beyond the selection */
    assert_int_equal(kvc_file_load(g, &y.m, NULL, e), -1);
    assert_int_equal(kvc_error_code(e), 33);
    kvc_file_close(g);
    kvc_file_close(f);
    arrays_free(&x), arrays_free(&y);
    kvc_error_free(e);
}

/* A profile that is opened once serves a pack and a file; the file holds it. */
static void shared_profiles(void **state) {
    enum { T = 40, H = 3, D = 64, L = 30 };
    struct kvc_error *e = kvc_error_new();
    struct kvc_profile *p = kvc_shared_profile_open("samples/smollm2-135m-instruct-predict.kvcp",
                                                    e);
    struct kvc_memory_array *a = calloc(2 * L, sizeof *a);
    float *values = malloc(2 * L * T * H * D * sizeof *values), *row = malloc(H * D * sizeof *row);
    static const char *const facts[] = {"rope.pairing=halves", "rope.theta=1e5",
                                        "rope.type=default", NULL};
    const struct kvc_memory m = {.size = sizeof m,
                                 .array_size = sizeof *a,
                                 .arrays = a,
                                 .n_arrays = 2 * L,
                                 .tokens = T,
                                 .facts = facts};
    (void)state;
    if (!p) fail_msg("%s", kvc_error_message(e));
    for (size_t i = 0; i < 2 * L * T * H * D; i++) values[i] = (float)below(1000) / 500 - 1;
    for (size_t i = 0; i < 2 * L; i++)
        a[i] = dense_array(i % 2 ? "V" : "K", (uint32_t)(i / 2), "f32", 4, H, D,
                           values + i * T * H * D);
    struct kvc_file *f = kvc_file_open_arrays(&m, e);
    const struct kvc_write_options how = {.size = sizeof how,
                                          .recipe = "basis,steps,code:step=0.01",
                                          .shared_profile = p,
                                          .force_profile = 1};
    void *data = NULL;
    size_t size = 0;
    if (!f || kvc_file_pack_memory(f, &how, &data, &size, e)) fail_msg("%s", kvc_error_message(e));
    struct kvc_open_options with = {.size = sizeof with};
    struct kvc_file *g = kvc_file_open_memory(data, size, &with, e);
    assert_non_null(g);
    assert_int_equal(kvc_file_read(g, 0, 0, 1, row, H * D * sizeof *row, e),
                     -1); /* the profile is nowhere */
    assert_int_equal(kvc_error_need(e), 5);
    kvc_file_close(g);
    with.shared_profile = p;
    g = kvc_file_open_memory(data, size, &with, e);
    kvc_shared_profile_close(p);
    if (!g || kvc_file_read(g, 0, 0, 1, row, H * D * sizeof *row, e))
        fail_msg("%s", kvc_error_message(e));
    kvc_file_close(g);
    kvc_file_close(f);
    free(data);
    free(a), free(values), free(row);
    kvc_shared_profile_close(NULL);
    kvc_error_free(e);
}

/* Each mistake has its message. */
static void refusals(void **state) {
    struct kvc_error *e = kvc_error_new();
    static uint8_t bytes[4096];
    static const uint32_t twice[] = {1, 1};
    static const char *const bad_facts[][2] = {{"x", NULL},
                                               {"rope.theta=a", NULL},
                                               {"source.format=b", NULL},
                                               {"model.layers=-1", NULL},
                                               {"tokenizer.sha256=0g", NULL},
                                               {"Key=1", NULL}};
    const struct kvc_memory_array good = {.role = "K",
                                          .dtype = "f16",
                                          .heads = 2,
                                          .dim = 4,
                                          .data = bytes,
                                          .page = 64,
                                          .token = 16,
                                          .head = 8,
                                          .channel = 2};
    struct kvc_memory_array a;
    const struct kvc_memory m0 = {
        .size = sizeof m0, .array_size = sizeof a, .arrays = &a, .n_arrays = 1, .tokens = 4};
    struct kvc_memory m;
    (void)state;
#define REFUSES(what, change)                                                                    \
    do {                                                                                         \
        a = good, m = m0;                                                                        \
        change;                                                                                  \
        assert_null(kvc_file_open_arrays(&m, e));                                                \
        if (!strstr(kvc_error_message(e), what)) fail_msg("%s: %s", what, kvc_error_message(e)); \
    } while (0)
    a = good, m = m0;
    struct kvc_file *f = kvc_file_open_arrays(&m, e);
    assert_non_null(f);
    REFUSES("roles", a.role = "k");
    REFUSES("roles", a.role = NULL);
    REFUSES("dtype", a.dtype = "float");
    REFUSES("no heads", a.heads = 0);
    REFUSES("no data", a.data = NULL);
    REFUSES("share bytes", a.token = 15);
    REFUSES("share bytes", a.channel = 1);
    REFUSES("too long", a.head = UINT64_MAX / 2);
    REFUSES("too long", (m.page_size = 2, a.page = UINT64_MAX / 2));
    REFUSES("more tokens", a.tokens = 5);
    REFUSES("pages cannot", (m.page_size = 4, a.tokens = 3));
    REFUSES("no room", (m.page_size = 2, m.table = twice, m.n_table = 1));
    REFUSES("no room",
            (m.page_size = 2, m.table = twice, m.n_table = 2, m.first_slot = UINT64_MAX));
    REFUSES("comes twice", (m.page_size = 2, m.table = twice, m.n_table = 2));
    REFUSES("first_position", m.first_position = -1);
    REFUSES("2^31", m.tokens = UINT64_MAX);
    REFUSES("array_size", m.array_size = 0);
    for (size_t i = 0; i < sizeof bad_facts / sizeof bad_facts[0]; i++)
        REFUSES("", m.facts = bad_facts[i]);
    assert_null(kvc_file_open_arrays(NULL, e));
    a = good, m = m0;
    a.layer = 7;
    assert_int_equal(kvc_file_load(f, &m, NULL, e), -1);
    assert_non_null(strstr(kvc_error_message(e), "no K in layer 7"));
    a = good;
    a.heads = 1;
    assert_int_equal(kvc_file_load(f, &m, NULL, e), -1);
    const struct kvc_memory_array both[] = {good, good};
    m.arrays = both, m.n_arrays = 2;
    assert_int_equal(kvc_file_load(f, &m, NULL, e), -1);
    assert_non_null(strstr(kvc_error_message(e), "two arrays"));
    kvc_file_close(f);
    kvc_error_free(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_layouts),      cmocka_unit_test(pools),
        cmocka_unit_test(facts_and_windows),   cmocka_unit_test(conversions),
        cmocka_unit_test(blocks_stay),         cmocka_unit_test(shared_profiles),
        cmocka_unit_test(as_any_other),        cmocka_unit_test(refusals),
        cmocka_unit_test(progress_of_loading),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
