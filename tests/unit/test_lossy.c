/* test_lossy.c: the lossy stages but `quant`, each against its spec read value by value; the order
 * of stages, their arguments, presets, and every kernel table. Not for `quant` (test_quant.c) or
 * files.
 *
 * `test_lossy digest` prints a digest of all that is decoded: the test of kernel tables runs itself
 * so, once each. */
#include "every_table.h"
#include "lossy_support.h"

#include "codecs/presets.h"
#include "codecs/registry.h"

#include <xxhash.h>

static const enum kvc_dtype dtypes[] = {KVC_F32, KVC_F16, KVC_BF16};
static const char *program; /* argv[0] */

static int same_bits(const uint8_t *a, const uint8_t *b, enum kvc_dtype dtype, size_t i) {
    const size_t size = kvc_dtype_info(dtype)->size;
    return memcmp(a + i * size, b + i * size, size) == 0;
}

static int same_row(const struct layer *l, unsigned role, const uint8_t *rows, size_t t) {
    const size_t size = (size_t)kvc_row_bytes(&l->shape[role]);
    return memcmp(rows + t * size, l->rows[role] + t * size, size) == 0;
}

/* --- halves --- */

/* floats.md's example, and numbers of all kinds as its decoding says. */
static void halves(void **state) {
    (void)state;
    static const uint8_t want[] = {0xf2, 0xff, 8, 8, 0, 0, 0, 0, 0, 0x74, 0xf0};
    float two[] = {1, -0.5f}, x[300], y[300], z[300];
    uint8_t bytes[KVC_HALVES_BOUND(300)], *end = bytes;
    struct kvc_error e;
    assert_int_equal(kvc_halves_write(&end, two, 2, &e), 0);
    assert_int_equal(end - bytes, sizeof want);
    assert_memory_equal(bytes, want, sizeof want);
    for (int kind = 0; kind < 6; kind++)
        for (size_t n = 0; n <= 300; n += 1 + n / 3) {
            const uint8_t *from = bytes, *own = bytes;
            for (size_t i = 0; i < n; i++) {
                x[i] = kind == 0 ? 0 : kind == 1 ? 1 + (float)(i % 4) : random_normal();
                if (kind == 3) x[i] = ldexpf(x[i], (int)(random_bits() % 200) - 140);
                if (kind == 4) x[i] *= 0x1p-130f;
                if (kind == 5) x[i] *= 0x1p+120f;
            }
            memcpy(y, x, sizeof y);
            end = bytes;
            if (kvc_halves_write(&end, x, n, &e)) fail_msg("%s", e.message);
            assert_true((size_t)(end - bytes) <= KVC_HALVES_BOUND(n));
            round_halves(y, n);
            if (kvc_halves_read(z, &from, end, n, &e)) fail_msg("%s", e.message);
            assert_ptr_equal(from, end);
            for (size_t i = 0; i < n; i++) assert_true(x[i] == y[i] && z[i] == y[i]);
            read_halves(z, n, &own);
            assert_ptr_equal(own, end);
            for (size_t i = 0; i < n; i++) assert_true(z[i] == y[i]);
        }
}

/* --- finite --- */

static void put_bits(uint8_t *rows, enum kvc_dtype dtype, size_t i, uint32_t bits) {
    const size_t size = kvc_dtype_info(dtype)->size;
    for (size_t b = 0; b < size; b++) rows[i * size + b] = (uint8_t)(bits >> 8 * b & 255);
}

static const uint32_t wild[3][7] = {
    {0x7fc00001, 0xffa12345, 0x7f800000, 0xff800000, 0x58800000, 0xff7fffff, 0x7fffffff},
    {0x7e01, 0xfd23, 0x7c00, 0xfc00, 0x7c01, 0xffff, 0x7fff},
    {0x7fc1, 0xffa1, 0x7f80, 0xff80, 0x5880, 0xff7f, 0x7fff},
};

/* Puts wild values into l, and into `tame` what finite.md says stands in for them, block by block
 * of 64 rows. */
static void make_wild(struct layer *l, struct layer *tame, unsigned d, unsigned role,
                      uint8_t *is_wild) {
    const size_t width = width_of(l, role), rows = (size_t)l->shape[role].tokens, n = rows * width;
    memset(is_wild, 0, n);
    for (size_t k = 0; k < n / 50; k++) is_wild[random_bits() % n] = 1;
    for (size_t t = 0; t < rows; t++) is_wild[t * width + 3] = 1; /* a channel of nothing else */
    for (size_t i = 0; i < n; i++) {
        if (is_wild[i]) put_bits(l->rows[role], dtypes[d], i, wild[d][i % 7]);
        else if (i % 101 == 0)
            put_bits(l->rows[role], dtypes[d], i, d ? 0x8000 : 0x80000000); /* -0 */
    }
    memcpy(tame->rows[role], l->rows[role], n * kvc_dtype_info(dtypes[d])->size);
    for (size_t i = 0; i < n; i++) {
        const size_t from = i / width / 64 * 64, end = from + 64 < rows ? from + 64 : rows;
        double sum = 0;
        size_t count = 0;
        if (!is_wild[i]) continue;
        for (size_t t = from; t < end; t++)
            if (!is_wild[t * width + i % width]) {
                sum += (double)get_value(l->rows[role], dtypes[d], t * width + i % width);
                count++;
            }
        put_value(tame->rows[role], dtypes[d], i, count ? (float)(sum / (double)count) : 0);
    }
}

/* Wild values come back bit by bit; all others are what they are where means stand in the wild
 * ones' places. */
static void wild_values(void **state) {
    (void)state;
    static const char *const recipes[] = {"quant:kivi:bits=4:g=32",
                                          "outlier:0.1,quant:token:bits=2:g=16",
                                          "quant:zip:bits=3",
                                          "lowrank:r=2",
                                          "lowrank:r=3:layer,split",
                                          "quant:kcvt:bits=2,lowrank:r=2,zstd",
                                          "finite,sink:3,tail:5,quant:kivi:bits=2",
                                          "saliency:0.4:by=knorm,quant:zip:bits=4"};
    for (unsigned d = 0; d < 3; d++)
        for (unsigned role = 0; role < 2; role++)
            for (size_t r = 0; r < sizeof recipes / sizeof recipes[0]; r++) {
                struct layer l = make_layer(dtypes[d], 100, 2, 24),
                             tame = make_layer(dtypes[d], 100, 2, 24);
                const size_t n = 100 * 48;
                uint8_t *is_wild = get_memory(n);
                /* the stage that knows norms of keys looks at keys as they are: of V, so that K is
                 * tame */
                if (strstr(recipes[r], "saliency") && role == K)
                    memcpy(l.rows[V], l.rows[K], n * kvc_dtype_info(dtypes[d])->size);
                const unsigned of = strstr(recipes[r], "saliency") ? V : role;
                memcpy(tame.rows[K], l.rows[K], n * kvc_dtype_info(dtypes[d])->size);
                make_wild(&l, &tame, d, of, is_wild);
                uint8_t *back = there_and_back(recipes[r], &l, of, 64),
                        *other = there_and_back(recipes[r], &tame, of, 64);
                for (size_t i = 0; i < n; i++) {
                    if (is_wild[i] ? same_bits(back, l.rows[of], dtypes[d], i)
                                   : same_bits(back, other, dtypes[d], i))
                        continue;
                    fail_msg("%s of %s: %s value %zu of %c is another", recipes[r],
                             kvc_dtype_info(dtypes[d])->name, is_wild[i] ? "wild" : "tame", i,
                             of == V ? 'V' : 'K');
                }
                free(back);
                free(other);
                free(is_wild);
                free_layer(&l);
                free_layer(&tame);
            }
}

/* Values just below the bound are none of finite's business; a matrix of nothing but NaN survives.
 */
static void edges_of_finite(void **state) {
    (void)state;
    struct layer l = make_layer(KVC_F32, 10, 1, 8);
    struct coded c;
    put_value(l.rows[K], KVC_F32, 5, 0x1.fffffep+49f);
    put_value(l.rows[K], KVC_F32, 6, -0x1p-149f);
    must_code(&c, &(struct wanted){.recipe = "quant:kivi:bits=8", .layer = &l, .role = K});
    assert_null(section_of(&c.block[0], KVC_SECTION_ESCAPES, 0));
    code_free(&c);
    put_value(l.rows[K], KVC_F32, 5, -0x1p+50f);
    must_code(&c, &(struct wanted){.recipe = "quant:kivi:bits=8", .layer = &l, .role = K});
    const struct kvc_section *s = section_of(&c.block[0], KVC_SECTION_ESCAPES, 0);
    assert_non_null(s);
    assert_int_equal(s->raw_size, 8);
    assert_int_equal(s->data[0], 5);
    code_free(&c);
    for (size_t i = 0; i < 80; i++) put_bits(l.rows[K], KVC_F32, i, 0x7fc00000 + (uint32_t)i);
    uint8_t *back = there_and_back("outlier:0.5,quant:zip:bits=2,lowrank:r=1", &l, K, 0);
    assert_memory_equal(back, l.rows[K], 320);
    free(back);
    free_layer(&l);
}

/* --- sink and tail --- */

/* The number that a block's SINK or TAIL section says; 0 without one. */
static size_t number_of(const struct kvc_sections *list, unsigned type) {
    const struct kvc_section *s = section_of(list, type, 0);
    if (!s) return 0;
    assert_int_equal(s->size, 2);
    assert_true(s->data[0] || s->data[1]);
    return s->data[0] | (size_t)s->data[1] << 8;
}

static void check_ends(const struct layer *l, unsigned role, int64_t sink, int64_t tail,
                       size_t whole, uint64_t block_rows) {
    const size_t rows = (size_t)l->shape[role].tokens;
    const int lossless = !(l->shape[role].dtype == KVC_F32);
    struct coded c;
    char recipe[100] = "", one[40];
    uint8_t *kept = get_memory(rows);
    size_t before_tail = 0;
    if (sink) snprintf(recipe, sizeof recipe, "sink:%lld,", (long long)sink);
    if (tail) {
        snprintf(one, sizeof one, "tail:%lld:whole=%zu,", (long long)tail, whole);
        strcat(recipe, one);
    }
    strcat(recipe, lossless ? "split" : "quant:kcvt:bits=1");
    while (before_tail < rows && l->position[before_tail] <= l->position[rows - 1] - tail)
        before_tail++;
    for (size_t t = 0; t < rows; t++)
        kept[t] = (sink && l->position[t] < sink) ||
                  (tail && t >= before_tail - before_tail % whole);
    must_code(
        &c, &(struct wanted){.recipe = recipe, .layer = l, .role = role, .block_rows = block_rows});
    uint8_t *back = decode(&c, NULL);
    for (size_t b = 0; b < c.blocks; b++) {
        size_t sinks = 0, tails = 0;
        for (size_t i = 0; i < rows_in_block(&c, b); i++) {
            const size_t t = b * (size_t)c.w.block_rows + i;
            const int first = sink && l->position[t] < sink;
            sinks += first != 0;
            tails += !first && kept[t];
            if (lossless || kept[t]) assert_true(same_row(l, role, back, t));
            else if (rows - before_tail < rows)
                assert_false(same_row(l, role, back, t) && rows_in_block(&c, b) > 8);
        }
        assert_int_equal(number_of(&c.block[b], KVC_SECTION_SINK), sinks);
        assert_int_equal(number_of(&c.block[b], KVC_SECTION_TAIL), tails);
    }
    code_free(&c);
    free(back);
    free(kept);
}

static void sinks_and_tails(void **state) {
    (void)state;
    static const enum kvc_dtype kinds[] = {KVC_F32, KVC_Q8_0, KVC_I8, KVC_F16};
    for (int gaps = 0; gaps < 4; gaps++)
        for (size_t d = 0; d < 4; d++)
            for (uint64_t block_rows = 16; block_rows <= 256; block_rows += 240)
                for (unsigned role = 0; role < 2; role++) {
                    struct layer l = make_layer(kinds[d], 150, 2, 32);
                    for (size_t t = 1; t < 150 && gaps; t++)
                        l.position[t] = l.position[t - 1] + 1 + (int64_t)random_bits() % (gaps + 1);
                    for (size_t t = 0; t < 150 && gaps == 3; t++) l.position[t] += 5;
                    for (size_t i = 0; i < 6; i++) {
                        static const int64_t sink[] = {1, 4, 20, 0, 3, 1 << 20},
                                             tail[] = {0, 0, 7, 64, 64, 0};
                        static const size_t whole[] = {1, 1, 1, 64, 10, 1};
                        check_ends(&l, role, sink[i], tail[i], whole[i], block_rows);
                    }
                    check_ends(&l, role, 0, 1, 1, block_rows);
                    check_ends(&l, role, 0, 1 << 20, 1, block_rows);
                    check_ends(&l, role, 0, 1, 65536, block_rows);
                    free_layer(&l);
                }
}

/* sink.md's and tail.md's examples. */
static void examples_of_ends(void **state) {
    (void)state;
    struct layer l = make_layer(KVC_F16, 160, 1, 8);
    struct coded c;
    must_code(&c, &(struct wanted){.recipe = "tail:64:whole=64", .layer = &l});
    assert_int_equal(number_of(&c.block[0], KVC_SECTION_TAIL), 96);
    code_free(&c);
    l.shape[K].tokens = 3;
    must_code(&c, &(struct wanted){.recipe = "sink:2", .layer = &l});
    assert_int_equal(number_of(&c.block[0], KVC_SECTION_SINK), 2);
    assert_int_equal(c.block[0].section[0].type, KVC_SECTION_SINK);
    code_free(&c);
    l.shape[K].tokens = 160;
    free_layer(&l);
}

/* --- outlier --- */

/* Marks the k smallest (1) and the k largest (2) of n values: among equal values the first, but of
 * rows of V the last are the largest. */
static void mark_extremes(const float *x, size_t n, size_t step, size_t k, int last,
                          uint8_t *mark) {
    memset(mark, 0, n);
    for (size_t j = 0; j < 2 * k; j++) {
        size_t best = n;
        for (size_t i = 0; i < n; i++) {
            if (mark[i] & (j < k ? 1 : 2)) continue;
            if (best == n ||
                (j < k ? x[i * step] < x[best * step]
                       : x[i * step] > x[best * step] || (last && x[i * step] == x[best * step])))
                best = i;
        }
        mark[best] |= j < k ? 1 : 2;
    }
}

/* What is to be taken, by the rule: mark[row * width + channel]; and the mean of each vector. */
static void mark_all(const float *x, size_t rows, size_t width, unsigned role, unsigned share,
                     uint8_t *mark, double *mean) {
    const size_t length = role == V ? width : rows, n = role == V ? rows : width,
                 step = role == V ? 1 : width;
    const size_t k = length * share / 200 ? length * share / 200 : 1;
    uint8_t *one = get_memory(length);
    memset(mark, 0, rows * width);
    for (size_t i = 0; i < n; i++) {
        const size_t at = i * (role == V ? width : 1);
        mean[i] = 0;
        for (size_t j = 0; j < length; j++) mean[i] += (double)x[at + j * step] / (double)length;
        if (role == V ? 2 * k > length : 2 * k >= length) continue;
        mark_extremes(x + at, length, step, k, role == V, one);
        for (size_t j = 0; j < length; j++) mark[at + j * step] = one[j];
    }
    free(one);
}

/* share: in hundredths. The section, byte by byte; means in the places; values back bit by bit. */
static void check_outliers(const struct layer *l, unsigned role, unsigned share,
                           uint64_t block_rows) {
    const enum kvc_dtype dtype = l->shape[role].dtype;
    const size_t width = width_of(l, role), size = kvc_dtype_info(dtype)->size,
                 all = (size_t)l->shape[role].tokens;
    struct coded c;
    char recipe[64];
    float *x = layer_values(l, role);
    uint8_t *mark = get_memory(all * width);
    double *mean = get_memory((all > width ? all : width) * sizeof *mean);
    mark_all(x, all, width, role, share, mark, mean);
    snprintf(recipe, sizeof recipe, "outlier:0.%02u,split", share);
    must_code(
        &c, &(struct wanted){.recipe = recipe, .layer = l, .role = role, .block_rows = block_rows});
    uint8_t *back = decode(&c, NULL);
    for (size_t b = 0; b < c.blocks; b++) {
        const size_t rows = (size_t)rows_in_block(&c, b), first = b * (size_t)c.w.block_rows;
        const size_t length = role == V ? width : rows, n = role == V ? rows : width,
                     step = role == V ? 1 : width;
        const struct kvc_section *s = section_of(&c.block[b], KVC_SECTION_OUTLIERS, 0);
        uint8_t *rest = get_memory(rows * width * size);
        size_t total = 0, done = 0;
        for (size_t i = 0; i < rows * width; i++) total += mark[first * width + i] != 0;
        if (!total) {
            assert_null(s);
            free(rest);
            continue;
        }
        assert_non_null(s);
        const size_t wide = length <= 256 ? 1 : 2, head = role == V ? 2 : 2 + n;
        assert_int_equal(s->data[0] | s->data[1] << 8, role == V ? total / n / 2 : 0);
        assert_int_equal(s->size, head + total * (wide + size));
        /* without OUTLIERS, decoding shows what the next stage saw */
        struct kvc_section *others = get_memory(c.block[b].count * sizeof *others);
        size_t n_others = 0;
        struct kvc_error e;
        for (size_t i = 0; i < c.block[b].count; i++)
            if (c.block[b].section[i].type != KVC_SECTION_OUTLIERS)
                others[n_others++] = c.block[b].section[i];
        if (try_decode(&c, b, others, n_others, NULL, rest, &e)) fail_msg("%s", e.message);
        for (size_t i = 0; i < n; i++) {
            const size_t at = first * width + i * (role == V ? width : 1),
                         vector = role == V ? first + i : i;
            const size_t before = done;
            for (size_t j = 0; j < length; j++) {
                const size_t value = at + j * step;
                assert_true(same_bits(back, l->rows[role], dtype, value));
                const float seen = get_value(rest, dtype, value - first * width);
                if (!mark[value]) {
                    assert_true(seen == x[value]);
                    continue;
                }
                /* the order of the mean's sum is the encoder's */
                const float open = 1e-5f + 1e-6f * fabsf(x[value]);
                assert_true(seen >= as_stored((float)mean[vector] - open, dtype) &&
                            seen <= as_stored((float)mean[vector] + open, dtype));
                const uint8_t *index = s->data + head + done * wide;
                assert_int_equal(wide == 2 ? index[0] | index[1] << 8 : index[0], j);
                assert_memory_equal(s->data + head + total * wide + done * size,
                                    l->rows[role] + value * size, size);
                done++;
            }
            if (role != V) assert_int_equal(s->data[2 + i], done - before);
        }
        assert_int_equal(done, total);
        free(others);
        free(rest);
    }
    free(mark);
    free(mean);
    free(x);
    free(back);
    code_free(&c);
}

static void outliers(void **state) {
    (void)state;
    static const unsigned shares[] = {1, 2, 5, 13, 50};
    for (unsigned d = 0; d < 3; d++)
        for (int kind = 0; kind < 4; kind++)
            for (unsigned role = 0; role < 2; role++) {
                struct layer l = make_layer(dtypes[d], 300, 2, kind == 3 ? 150 : 33);
                const size_t n = (size_t)l.shape[K].tokens * width_of(&l, K);
                for (size_t i = 0; i < n; i++) {
                    /* constant */
                    if (kind == 1) put_value(l.rows[role], dtypes[d], i, 1.5f);
                    /* ties */
                    if (kind == 2)
                        put_value(l.rows[role], dtypes[d], i, (float)(random_bits() % 3) - 1);
                    /* -0 */
                    if (kind == 2 && i % 11 == 0)
                        put_bits(l.rows[role], dtypes[d], i, d ? 0x8000 : 0x80000000);
                }
                for (size_t s = 0; s < 5; s++)
                    for (size_t b = 0; b < 3; b++)
                        check_outliers(&l, role, shares[s], (uint64_t[]){39, 70, 256}[b]);
                free_layer(&l);
            }
}

/* What is taken does not widen ranges: other values have a smaller error, the taken none. */
static void outliers_before_quant(void **state) {
    (void)state;
    for (unsigned role = 0; role < 2; role++) {
        struct layer l = make_layer(KVC_F32, 256, 1, 100);
        for (size_t i = 0; i < 256; i++) /* two in each row, and 64 or so in each 25th channel */
            for (size_t k = 0; k < 2; k++)
                put_value(l.rows[role], KVC_F32, i * 100 + (i * 37 + k * 50) % 100, k ? 500 : -500);
        uint8_t *plain = there_and_back("quant:kcvt:bits=2", &l, role, 0);
        uint8_t *apart = there_and_back("outlier:0.1,quant:kcvt:bits=2", &l, role, 0);
        double with = 0, without = 0;
        for (size_t i = 0; i < 25600; i++) {
            const float x = get_value(l.rows[role], KVC_F32, i);
            if (fabsf(x) == 500) assert_true(same_bits(apart, l.rows[role], KVC_F32, i));
            with += fabs((double)(get_value(apart, KVC_F32, i) - x));
            without += fabs((double)(get_value(plain, KVC_F32, i) - x));
        }
        assert_true(with * 20 < without);
        free(plain);
        free(apart);
        free_layer(&l);
    }
}

/* outlier.md's example. */
static void example_of_outlier(void **state) {
    (void)state;
    static const uint8_t want[] = {1, 0, 0, 3, 0, 0, 0x80, 0x3f, 0, 0, 0x10, 0x41};
    struct layer l = make_layer(KVC_F32, 1, 1, 4);
    struct coded c;
    for (size_t i = 0; i < 4; i++) put_value(l.rows[V], KVC_F32, i, (float[]){1, 5, 2, 9}[i]);
    must_code(&c, &(struct wanted){.recipe = "outlier:0.5", .layer = &l, .role = V});
    const struct kvc_section *s = section_of(&c.block[0], KVC_SECTION_OUTLIERS, 0);
    assert_int_equal(s->size, sizeof want);
    assert_memory_equal(s->data, want, sizeof want);
    code_free(&c);
    free_layer(&l);
}

/* --- lowrank --- */

/* Eigenvalues of a symmetric matrix, which is destroyed, by Jacobi's rotations. */
static void eigenvalues(double *a, size_t n, double *value) {
    for (int sweep = 0; sweep < 30; sweep++)
        for (size_t p = 0; p < n; p++)
            for (size_t q = p + 1; q < n; q++) {
                if (fabs(a[p * n + q]) < 1e-300) continue;
                const double theta = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
                const double t = (theta < 0 ? -1 : 1) / (fabs(theta) + sqrt(theta * theta + 1)),
                             c = 1 / sqrt(t * t + 1), s = t * c;
                for (size_t i = 0; i < n; i++) {
                    const double x = a[i * n + p], y = a[i * n + q];
                    a[i * n + p] = c * x - s * y;
                    a[i * n + q] = s * x + c * y;
                }
                for (size_t i = 0; i < n; i++) {
                    const double x = a[p * n + i], y = a[q * n + i];
                    a[p * n + i] = c * x - s * y;
                    a[q * n + i] = s * x + c * y;
                }
            }
    for (size_t i = 0; i < n; i++) value[i] = a[i * n + i];
}

/* Returns the minimum squared error at rank r of `dim` channels of x from channel `at` on; *all is
 * the sum of squares. */
static double optimum(const float *x, size_t rows, size_t width, size_t at, size_t dim, size_t r,
                      double *all) {
    double *gram = get_memory(dim * dim * sizeof *gram), *value = get_memory(dim * sizeof *value),
           sum = 0;
    for (size_t i = 0; i < dim; i++)
        for (size_t j = 0; j < dim; j++) {
            gram[i * dim + j] = 0;
            for (size_t t = 0; t < rows; t++)
                gram[i * dim + j] += (double)x[t * width + at + i] * (double)x[t * width + at + j];
        }
    for (size_t i = 0; i < dim; i++) *all += gram[i * dim + i];
    eigenvalues(gram, dim, value);
    for (size_t k = 0; k < dim; k++) sum += value[k];
    for (size_t k = 0; k < r; k++) { /* the largest, one after another */
        size_t most = 0;
        for (size_t i = 1; i < dim; i++)
            if (value[i] > value[most]) most = i;
        sum -= value[most];
        value[most] = -1;
    }
    free(gram);
    free(value);
    return sum > 0 ? sum : 0;
}

/* Decoded values are the sums of products that lowrank.md writes down. */
static void check_products(const struct coded *c, const float *y, size_t heads, size_t dim,
                           size_t r) {
    float *b = get_memory(heads * r * dim * sizeof *b),
          *a = get_memory(256 * heads * r * sizeof *a);
    assert_int_equal(c->encoder.side.count, 1);
    assert_int_equal(c->encoder.side.section[0].type, KVC_SECTION_FACTOR_B);
    const uint8_t *p = c->encoder.side.section[0].data;
    read_halves(b, heads * r * dim, &p);
    for (size_t n = 0; n < c->blocks; n++) {
        const size_t rows = (size_t)rows_in_block(c, n), first = n * (size_t)c->w.block_rows;
        const struct kvc_section *s = section_of(&c->block[n], KVC_SECTION_FACTOR_A, 0);
        assert_non_null(s);
        p = s->data;
        read_halves(a, rows * heads * r, &p);
        assert_ptr_equal(p, s->data + s->size);
        for (size_t i = 0; i < rows * heads * dim; i++) {
            const size_t t = i / (heads * dim), h = i / dim % heads;
            float sum = 0;
            for (size_t k = 0; k < r; k++)
                sum = fmaf(a[(t * heads + h) * r + k], b[(h * r + k) * dim + i % dim], sum);
            assert_true(sum == y[first * heads * dim + i]);
        }
    }
    free(a);
    free(b);
}

static double check_rank(const struct layer *l, unsigned role, size_t r, int layer, const char *how,
                         uint64_t block_rows) {
    const size_t rows = (size_t)l->shape[role].tokens, width = width_of(l, role);
    const size_t heads = layer ? 1 : (size_t)l->shape[role].heads, dim = width / heads,
                 rank = r < dim ? r : dim;
    const int power = strstr(how, "power") != NULL, exact = strstr(how, "exact") != NULL;
    struct coded c;
    char recipe[64];
    double error = 0, best = 0, all = 0;
    snprintf(recipe, sizeof recipe, "lowrank:r=%zu%s%s", r, layer ? ":layer" : "", how);
    must_code(
        &c, &(struct wanted){.recipe = recipe, .layer = l, .role = role, .block_rows = block_rows});
    uint8_t *back = decode(&c, NULL);
    float *x = layer_values(l, role), *y = values_of(back, l->shape[role].dtype, rows * width);
    if (l->shape[role].dtype == KVC_F32) check_products(&c, y, heads, dim, rank);
    for (size_t i = 0; i < rows * width; i++) error += pow((double)x[i] - (double)y[i], 2);
    for (size_t h = 0; h < heads; h++) best += optimum(x, rows, width, h * dim, dim, rank, &all);
    /* what rounding factors and results costs */
    const double halves = all * (l->shape[role].dtype == KVC_BF16 ? 1e-5 : 1e-6);
    if (l->shape[role].dtype == KVC_F32 && error < best * (1 - 1e-6) - halves)
        fail_msg("%s: squared error %g below the optimum %g", recipe, error, best);
    if (!power && error > best * (exact ? 1.001 : 1.01 * 1.01) + halves)
        fail_msg("%s: squared error %g, optimum %g of %g", recipe, error, best, all);
    if (power && error > best + 0.02 * all)
        fail_msg("%s: squared error %g, optimum %g of %g", recipe, error, best, all);
    if (rank == dim && !power) assert_true(error <= halves);
    free(x);
    free(y);
    free(back);
    code_free(&c);
    return error;
}

/* Values near a few directions, as those of caches are, and noise. */
static void make_directed(struct layer *l, unsigned role) {
    const size_t width = width_of(l, role), rows = (size_t)l->shape[role].tokens;
    float *direction = get_memory(6 * width * sizeof *direction);
    for (size_t i = 0; i < 6 * width; i++) direction[i] = random_normal();
    for (size_t t = 0; t < rows; t++) {
        float a[6];
        for (int k = 0; k < 6; k++) a[k] = ldexpf(random_normal(), 2 * (5 - k));
        for (size_t i = 0; i < width; i++) {
            float x = 0.5f * random_normal();
            for (size_t k = 0; k < 6; k++) x += a[k] * direction[k * width + i];
            put_value(l->rows[role], l->shape[role].dtype, t * width + i, x);
        }
    }
    free(direction);
}

static void ranks(void **state) {
    (void)state;
    static const size_t r[] = {1, 2, 4, 20, 256};
    for (unsigned d = 0; d < 3; d++)
        for (unsigned role = 0; role < 2; role++)
            for (size_t i = 0; i < 5; i++) {
                struct layer l = make_layer(dtypes[d], 150, 2, 20);
                check_rank(&l, role, r[i], 0, "", 64);
                check_rank(&l, role, r[i], 1, "", 64);
                make_directed(&l, role);
                check_rank(&l, role, r[i], 0, "", 256);
                check_rank(&l, role, r[i], 0, ":power=3", 256);
                check_rank(&l, role, r[i], 1, "", 50);
                check_rank(&l, role, r[i], 0, ":exact", 256);
                check_rank(&l, role, r[i], 1, ":exact", 50);
                free_layer(&l);
            }
    struct layer few = make_layer(KVC_F32, 3, 1, 80), none = make_layer(KVC_F32, 40, 1, 8);
    check_rank(&few, K, 4, 0, "", 256); /* fewer rows than the rank */
    check_rank(&few, K, 4, 0, ":power=3", 256);
    memset(none.rows[K], 0, 40 * 32);
    assert_true(check_rank(&none, K, 2, 0, "", 256) == 0);
    assert_true(check_rank(&none, K, 2, 0, ":power=3", 256) == 0);
    free_layer(&few);
    free_layer(&none);
}

/* Each segment has directions of its own, out of its rows alone; what follows them changes no block
 * before. */
static void segments(void **state) {
    (void)state;
    struct layer l = make_layer(KVC_F32, 300, 2, 16), cut = l;
    cut.shape[K].tokens = cut.shape[V].tokens = 200;
    struct coded a, b;
    must_code(&a,
              &(struct wanted){
                  .recipe = "lowrank:r=3", .layer = &l, .block_rows = 50, .first = 100, .n = 100});
    must_code(&b, &(struct wanted){.recipe = "lowrank:r=3",
                                   .layer = &cut,
                                   .block_rows = 50,
                                   .first = 100,
                                   .n = 100});
    uint8_t *x = decode(&a, NULL), *y = decode(&b, NULL);
    assert_memory_equal(x, y, 100 * 32 * 4);
    free(x);
    free(y);
    code_free(&a);
    code_free(&b);
    free_layer(&l);
}

/* After quant, the remaining error shrinks with the rank. */
static void lowrank_behind_quant(void **state) {
    (void)state;
    static const char *const recipes[] = {"quant:kcvt:bits=2", "quant:kcvt:bits=2,lowrank:r=2",
                                          "quant:kcvt:bits=2,lowrank:r=8",
                                          "quant:kcvt:bits=2,lowrank:r=8,lowrank:r=8"};
    for (unsigned role = 0; role < 2; role++) {
        struct layer l = make_layer(KVC_F32, 200, 2, 32);
        double before = INFINITY;
        for (size_t i = 0; i < 4; i++) {
            uint8_t *back = there_and_back(recipes[i], &l, role, 64);
            double error = 0;
            for (size_t k = 0; k < 200 * 64; k++)
                error += pow((double)get_value(back, KVC_F32, k) -
                                 (double)get_value(l.rows[role], KVC_F32, k),
                             2);
            assert_true(error < before);
            before = error;
            free(back);
        }
        free_layer(&l);
    }
}

/* --- attention of the queries, in double --- */

/* The weights of query q of query head i: to[row]. */
static void attend(const struct layer *l, size_t q, size_t i, const float *key, double *to) {
    const size_t rows = (size_t)l->shape[K].tokens, dim = (size_t)l->shape[K].dim,
                 heads = (size_t)l->shape[K].heads;
    const size_t h = i / (size_t)(l->query_heads / heads);
    double most = -INFINITY, sum = 0;
    for (size_t t = 0; t < rows; t++) {
        to[t] = 0;
        for (size_t d = 0; d < dim; d++)
            to[t] += (double)l->query[(q * (size_t)l->query_heads + i) * dim + d] *
                     (double)key[(t * heads + h) * dim + d];
        to[t] /= sqrt((double)dim);
        if (l->position[t] > l->query_position[q]) to[t] = -INFINITY;
        most = fmax(most, to[t]);
    }
    for (size_t t = 0; t < rows; t++) sum += to[t] = exp(to[t] - most);
    for (size_t t = 0; t < rows; t++) to[t] /= sum;
}

/* --- prune --- */

enum { QUERY, L1, L2 };

/* prune.md's scores: to[head][channel]. */
static void prune_scores(const struct layer *l, unsigned role, int by, int mean, size_t window,
                         size_t first, size_t n, double *to) {
    const size_t heads = (size_t)l->shape[role].heads, dim = (size_t)l->shape[role].dim,
                 width = heads * dim;
    const size_t from = l->n_queries > window ? (size_t)l->n_queries - window : 0;
    float *x = layer_values(l, role), *key = layer_values(l, K);
    double *weight = get_memory((size_t)l->shape[K].tokens * sizeof *weight);
    for (size_t c = 0; c < width; c++) {
        const size_t h = c / dim, group = l->query_heads ? (size_t)l->query_heads / heads : 0;
        double sum = 0, size = 0, square = 0, energy = 0;
        for (size_t t = first; t < first + n; t++) {
            sum += (double)x[t * width + c];
            size += fabs((double)x[t * width + c]);
            square += pow((double)x[t * width + c], 2);
        }
        to[c] = square / (double)n - (mean ? pow(sum / (double)n, 2) : 0);
        if (by == L1) to[c] = size / (double)n;
        if (by != QUERY) continue;
        if (role == V) to[c] = 0;
        for (size_t q = from; q < l->n_queries && role == K; q++)
            for (size_t g = 0; g < group; g++)
                energy += pow(
                    (double)l->query[(q * (size_t)l->query_heads + h * group + g) * dim + c % dim],
                    2);
        if (role == K) to[c] *= energy / (double)((l->n_queries - from) * group);
    }
    for (size_t q = from; q < l->n_queries && by == QUERY && role == V; q++)
        for (size_t i = 0; i < l->query_heads; i++) {
            const size_t h = i / ((size_t)l->query_heads / heads);
            attend(l, q, i, key, weight);
            for (size_t d = 0; d < dim; d++) {
                double out = 0;
                for (size_t t = 0; t < l->shape[K].tokens; t++)
                    out += weight[t] * (double)x[t * width + h * dim + d];
                to[h * dim + d] += out * out;
            }
        }
    free(weight);
    free(x);
    free(key);
}

/* share: in hundredths. */
static void check_prune(const struct layer *l, unsigned role, unsigned share, int by, int mean,
                        size_t window, size_t first, size_t n) {
    const enum kvc_dtype dtype = l->shape[role].dtype;
    const size_t heads = (size_t)l->shape[role].heads, dim = (size_t)l->shape[role].dim,
                 width = heads * dim;
    const size_t size = kvc_dtype_info(dtype)->size, out = dim * share / 100;
    double *score = get_memory(width * sizeof *score);
    struct coded c;
    char recipe[100];
    snprintf(recipe, sizeof recipe, "prune:%c=0.%02u%s%s:window=%zu,split", role == V ? 'v' : 'k',
             share,
             by == L1   ? ":by=l1"
             : by == L2 ? ":by=l2"
                        : "",
             mean ? ":mean" : "", window);
    must_code(&c, &(struct wanted){.recipe = recipe,
                                   .layer = l,
                                   .role = role,
                                   .block_rows = 60,
                                   .first = first,
                                   .n = n});
    uint8_t *back = decode(&c, NULL);
    prune_scores(l, role, by, mean, window, first, n, score);
    const struct kvc_section *mask = section_of(&c.encoder.side, KVC_SECTION_MASK, 0);
    if (!out) {
        assert_int_equal(c.encoder.side.count, 0);
        assert_memory_equal(back, l->rows[role] + first * width * size, n * width * size);
    } else {
        assert_non_null(mask);
        assert_int_equal(mask->size, (width + 7) / 8);
    }
    for (size_t h = 0; h < heads && out; h++) {
        size_t count = 0;
        for (size_t i = h * dim; i < (h + 1) * dim; i++) {
            size_t below = 0, clearly = 0; /* channels of lower scores, and of clearly lower ones */
            for (size_t j = h * dim; j < (h + 1) * dim; j++) {
                below += score[j] < score[i] * 1.0001;
                clearly += score[j] < score[i] * 0.9999 ||
                           (by != QUERY && score[j] == score[i] && j < i);
            }
            if (bit(mask->data, i) ? clearly >= out : below - 1 < out && clearly < out)
                fail_msg("%s: channel %zu is %s", recipe, i,
                         bit(mask->data, i) ? "left out" : "kept");
            count += (size_t)bit(mask->data, i);
        }
        assert_int_equal(count, out);
    }
    for (size_t i = 0; i < width && out; i++) {
        double sum = 0;
        for (size_t t = 0; t < n; t++)
            sum += (double)get_value(l->rows[role], dtype, (first + t) * width + i);
        uint8_t want[4];
        put_value(want, dtype, 0, mean ? (float)(sum / (double)n) : 0);
        for (size_t t = 0; t < n; t++) {
            const uint8_t *is = back + (t * width + i) * size;
            if (bit(mask->data, i)) assert_memory_equal(is, want, size);
            else assert_memory_equal(is, l->rows[role] + ((first + t) * width + i) * size, size);
        }
    }
    assert_true(!out || !mean == !section_of(&c.encoder.side, KVC_SECTION_MEAN, 0));
    free(score);
    free(back);
    code_free(&c);
}

static void pruned_channels(void **state) {
    (void)state;
    static const unsigned shares[] = {1, 30, 50, 95};
    for (unsigned d = 0; d < 3; d++)
        for (uint64_t group = 1; group <= 3; group++) {
            struct layer l = make_layer(dtypes[d], 150, 2, 20);
            for (size_t t = 75; t < 150; t++) l.position[t] += 10;
            add_queries(&l, 9, group);
            /* -0 */
            for (size_t i = 0; i < 150 * 40; i += 37)
                put_bits(l.rows[V], dtypes[d], i, d ? 0x8000 : 0x80000000);
            for (size_t s = 0; s < 4; s++)
                for (unsigned role = 0; role < 2; role++)
                    for (int by = 0; by < 3; by++)
                        for (int mean = 0; mean < 2; mean++) {
                            check_prune(&l, role, shares[s], by, mean, 32, 0, 150);
                            /* the second of two segments */
                            check_prune(&l, role, shares[s], by, mean, 4, 60, 90);
                        }
            free_layer(&l);
        }
    /* equal scores: the first channels go */
    struct layer l = make_layer(KVC_F32, 10, 2, 12);
    for (size_t i = 0; i < 240; i++) put_value(l.rows[K], KVC_F32, i, 2);
    check_prune(&l, K, 50, L1, 0, 32, 0, 10);
    check_prune(&l, K, 50, L2, 1, 32, 0, 10);
    free_layer(&l);
}

static void must_not_code(const char *recipe, const struct layer *l, unsigned role,
                          const char *words) {
    struct coded c;
    struct kvc_error e;
    if (!code(&c, &(struct wanted){.recipe = recipe, .layer = l, .role = role}, &e))
        fail_msg("%s is taken", recipe);
    assert_int_equal(e.code, KVC_ERR_UNSUPPORTED);
    if (!strstr(e.message, words)) fail_msg("%s: '%s' says no '%s'", recipe, e.message, words);
    code_free(&c);
}

/* --- saliency --- */

enum { CODE, PAPER, KNORM };

static void saliency_scores(const struct layer *l, int rule, double *to) {
    const size_t rows = (size_t)l->shape[K].tokens, dim = (size_t)l->shape[K].dim,
                 heads = (size_t)l->shape[K].heads;
    float *key = layer_values(l, K);
    double *weight = get_memory(rows * sizeof *weight);
    memset(to, 0, heads * rows * sizeof *to);
    for (size_t i = 0; i < heads * rows && rule == KNORM; i++)
        for (size_t d = 0; d < dim; d++)
            to[i] -= pow((double)key[(i % rows * heads + i / rows) * dim + d], 2);
    for (size_t q = 0; q < l->n_queries && rule != KNORM; q++)
        for (size_t i = 0; i < l->query_heads; i++) {
            attend(l, q, i, key, weight);
            for (size_t t = 0; t < rows; t++)
                to[i / ((size_t)l->query_heads / heads) * rows + t] += weight[t];
        }
    for (size_t i = 0; i < heads * rows && rule != KNORM; i++) {
        size_t n = 0;
        for (size_t q = 0; q < l->n_queries; q++)
            n += l->query_position[q] >= l->position[i % rows];
        if (rule == CODE) n = rows - i % rows;
        to[i] = n ? to[i] / (double)n : INFINITY;
    }
    free(weight);
    free(key);
}

/* share: in hundredths; sink: rows that do not reach the stage. */
static void check_saliency(const struct layer *l, unsigned role, unsigned share, int rule,
                           size_t sink, size_t first, size_t n) {
    const size_t rows = (size_t)l->shape[K].tokens, heads = (size_t)l->shape[K].heads;
    double *score = get_memory(heads * rows * sizeof *score);
    uint8_t *salient = get_memory(heads * n);
    struct coded c;
    char recipe[100] = "";
    const size_t skip = sink > first ? sink - first : 0, come = n - skip;
    const size_t most = come - (100 - share) * come / 100;
    if (sink) snprintf(recipe, sizeof recipe, "sink:%zu,", sink);
    snprintf(recipe + strlen(recipe), sizeof recipe - strlen(recipe), "saliency:%u.%02u%s,split",
             share / 100, share % 100,
             rule == PAPER   ? ":norm=paper"
             : rule == KNORM ? ":by=knorm"
                             : "");
    must_code(&c, &(struct wanted){.recipe = recipe,
                                   .layer = l,
                                   .role = role,
                                   .block_rows = 60,
                                   .first = first,
                                   .n = n});
    uint8_t *back = decode(&c, NULL);
    assert_memory_equal(back, l->rows[role] + first * kvc_row_bytes(&l->shape[role]),
                        n * kvc_row_bytes(&l->shape[role]));
    saliency_scores(l, rule, score);
    for (size_t b = 0, t = skip; b < c.blocks; b++) {
        const struct kvc_section *s = section_of(&c.block[b], KVC_SECTION_MASK, 0);
        const size_t end = b * 60 + (size_t)rows_in_block(&c, b), here = t < end ? end - t : 0;
        assert_true(!here == !s);
        if (s) assert_int_equal(s->size, (here * heads + 7) / 8);
        for (size_t i = 0; i < here; i++, t++)
            for (size_t h = 0; h < heads; h++)
                salient[h * n + t] = (uint8_t)bit(s->data, i * heads + h);
    }
    for (size_t h = 0; h < heads; h++) {
        size_t count = 0;
        for (size_t t = skip; t < n; t++) {
            const double own = score[h * rows + first + t], slack = 1e-4 * fabs(own);
            size_t above = 0, clearly = 0;
            for (size_t i = skip; i < n; i++) {
                const double other = score[h * rows + first + i];
                above += i != t && (other >= own || own - other < slack);
                clearly += i != t && other > own && other - own > slack;
            }
            if (salient[h * n + t] ? clearly >= most : above < most)
                fail_msg("%s: row %zu of head %zu is %d", recipe, t, h, salient[h * n + t]);
            count += salient[h * n + t];
        }
        assert_int_equal(count, most);
    }
    free(score);
    free(salient);
    free(back);
    code_free(&c);
}

static void salient_tokens(void **state) {
    (void)state;
    static const unsigned shares[] = {0, 1, 10, 40, 60, 99, 100};
    for (uint64_t group = 1; group <= 3; group += 2) {
        struct layer l = make_layer(KVC_F32, 150, 3, 16);
        for (size_t t = 20; t < 150; t++) l.position[t] += 7;
        add_queries(&l, 25, group);
        for (size_t s = 0; s < 7; s++)
            for (unsigned role = 0; role < 2; role++)
                for (int rule = 0; rule < 3; rule++) {
                    check_saliency(&l, role, shares[s], rule, 0, 0, 150);
                    check_saliency(&l, role, shares[s], rule, 10, 0, 150);
                    check_saliency(&l, role, shares[s], rule, 4, 60, 90);
                }
        /* queries that stand before the last keys: what nothing has looked at yet is kept */
        for (size_t q = 0; q < 25; q++) l.query_position[q] -= 30;
        check_saliency(&l, K, 50, CODE, 0, 0, 150);
        check_saliency(&l, V, 50, PAPER, 0, 0, 150);
        free_layer(&l);
    }
}

static void without_queries(void **state) {
    (void)state;
    struct layer l = make_layer(KVC_F16, 20, 2, 16);
    must_not_code("saliency:0.6,quant:zip:bits=4", &l, K, "no queries");
    must_not_code("saliency:0.6:norm=paper,quant:zip:bits=4", &l, V, "no queries");
    must_not_code("prune:k=0.5,split", &l, K, "no queries");
    must_not_code("prune:v=0.5,split", &l, V, "no queries");
    check_prune(&l, K, 50, L2, 0, 32, 0, 20);
    free_layer(&l);
}

/* --- merge --- */

enum { SLERP, MEAN, MAXNORM };
static const char *const ways[] = {"slerp", "mean", "maxnorm"};

struct merge {
    int how, heads;
    double t, keep, gamma; /* gamma 0: keep */
};

static double norm_of(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

static double angle_of(const float *u, const float *v, size_t n) {
    const double a = norm_of(u, n), b = norm_of(v, n);
    double sum = 0;
    if (a == 0 || b == 0) return 0;
    for (size_t i = 0; i < n; i++) sum += (double)u[i] * (double)v[i];
    return acos(fmax(-1, fmin(1, sum / a / b)));
}

/* The merged vector of the lower layer's u and the deeper one's v; merge.md, "Encoders". */
static void merged(const struct merge *m, const float *u, const float *v, size_t n, double *to) {
    const double a = norm_of(u, n), b = norm_of(v, n), w = angle_of(u, v, n);
    double p = 0.5, q = 0.5, size = 0;
    if (m->how == SLERP) {
        p = w < 1e-3 ? 1 - m->t : sin((1 - m->t) * w) / sin(w);
        q = w < 1e-3 ? m->t : sin(m->t * w) / sin(w);
        p = a > 0 ? p / a : 0;
        q = b > 0 ? q / b : 0;
        if (a > 0 && b == 0) p = 1 / a; /* a zero row gets the direction of the other row */
        if (b > 0 && a == 0) q = 1 / b;
    }
    for (size_t i = 0; i < n; i++) {
        to[i] = p * (double)u[i] + q * (double)v[i];
        size += to[i] * to[i];
    }
    if (m->how == MEAN || size == 0) return;
    for (size_t i = 0; i < n; i++) to[i] *= (m->how == MAXNORM ? fmax(a, b) : 1) / sqrt(size);
}

/* deeper_first: the tensor with the lower number belongs to the deeper layer. */
static void check_merge(const struct merge *m, const struct layer *lower, const struct layer *upper,
                        unsigned role, int deeper_first, uint64_t block_rows) {
    const enum kvc_dtype dtype = lower->shape[role].dtype;
    const size_t rows = (size_t)lower->shape[role].tokens, width = width_of(lower, role);
    const size_t each = m->heads ? (size_t)lower->shape[role].dim : width;
    const struct layer *layer[2] = {deeper_first ? upper : lower, deeper_first ? lower : upper};
    struct coded c[2];
    char recipe[120], rule[40];
    if (m->gamma > 0) snprintf(rule, sizeof rule, "gamma=%.3f", m->gamma);
    else snprintf(rule, sizeof rule, "keep=%.3f", m->keep);
    snprintf(recipe, sizeof recipe, "merge:%s:t=%.3f:%s%s,split", ways[m->how], m->t, rule,
             m->heads ? ":heads" : "");
    for (int i = 0; i < 2; i++)
        must_code(&c[i], &(struct wanted){.recipe = recipe,
                                          .layer = layer[i],
                                          .partner = layer[!i],
                                          .role = role,
                                          .second = i,
                                          .deeper = layer[i] == upper,
                                          .block_rows = block_rows});
    uint8_t *back[2] = {decode(&c[0], NULL), decode(&c[1], &c[0])};
    static const uint8_t number[4] = {5, 0, 0, 0};
    assert_int_equal(c[0].encoder.side.count, 0);
    assert_int_equal(c[1].encoder.side.count, 1);
    assert_int_equal(c[1].encoder.side.section[0].type, KVC_SECTION_MERGED);
    assert_memory_equal(c[1].encoder.side.section[0].data, number, 4);

    /* which rows are kept: by distance of whole rows */
    float *u = layer_values(lower, role), *v = layer_values(upper, role);
    double *distance = get_memory(rows * sizeof *distance), most = 0, least = 1;
    uint8_t *kept = get_memory(rows);
    for (size_t t = 0; t < rows; t++) {
        distance[t] = angle_of(u + t * width, v + t * width, width) / 3.14159265358979323846;
        most = fmax(most, distance[t]);
        least = fmin(least, distance[t]);
    }
    const size_t share = (size_t)floor(m->keep * (double)rows + 1e-9);
    size_t count = 0, opposite = 0;
    for (size_t b = 0; b < c[0].blocks; b++) {
        const struct kvc_section *s = section_of(&c[0].block[b], KVC_SECTION_KEPT, 0);
        assert_null(section_of(&c[1].block[b], KVC_SECTION_KEPT, 0));
        for (size_t i = 0; i < rows_in_block(&c[0], b); i++)
            count += kept[b * (size_t)c[0].w.block_rows + i] = s ? (uint8_t)bit(s->data, i) : 0;
    }
    for (size_t t = 0; t < rows; t++) {
        const int apart = distance[t] > 1 - 1e-3 / 3.14159265358979323846;
        size_t farther = 0, equal = 0;
        opposite += apart != 0;
        for (size_t i = 0; i < rows; i++) {
            farther += distance[i] > distance[t] + 1e-5;
            equal += fabs(distance[i] - distance[t]) <= 1e-5;
        }
        const int sure = m->gamma > 0 ? distance[t] > most - m->gamma * (most - least) + 1e-5
                                      : farther + equal <= share;
        const int never = m->gamma > 0 ? distance[t] < most - m->gamma * (most - least) - 1e-5
                                       : farther >= share;
        if ((apart || sure) && !kept[t])
            fail_msg("%s: row %zu at distance %g is not kept", recipe, t, distance[t]);
        if (!apart && never && kept[t])
            fail_msg("%s: row %zu at distance %g is kept", recipe, t, distance[t]);
    }
    if (!(m->gamma > 0)) assert_int_equal(count, share > opposite ? share : opposite);

    /* what comes back */
    const double ulp = dtype == KVC_F32 ? 1e-6 : dtype == KVC_F16 ? 0x1p-10 : 0x1p-7;
    double *want = get_memory(each * sizeof *want);
    float *norm = get_memory(rows * width * sizeof *norm);
    for (int i = 0; i < 2; i++)
        for (size_t b = 0; b < c[i].blocks; b++) {
            const size_t first = b * (size_t)block_rows,
                         end = first + (size_t)rows_in_block(&c[i], b);
            size_t n = 0;
            for (size_t t = first; t < end; t++)
                for (size_t at = 0; at < width && !kept[t]; at += each)
                    norm[n++] = (float)norm_of((layer[i] == upper ? v : u) + t * width + at, each);
            round_halves(norm, n);
            n = 0;
            for (size_t t = first; t < end; t++) {
                if (kept[t]) {
                    assert_true(same_row(layer[i], role, back[i], t));
                    continue;
                }
                for (size_t at = 0; at < width; at += each) {
                    const double own = m->how == SLERP ? (double)norm[n++] : 1;
                    const double size = fmax(norm_of(u + t * width + at, each),
                                             norm_of(v + t * width + at, each));
                    merged(m, u + t * width + at, v + t * width + at, each, want);
                    for (size_t d = 0; d < each; d++) {
                        const double x = (double)get_value(back[i], dtype, t * width + at + d),
                                     y = want[d] * own;
                        /* halves of norms may round to the other side where binary32 differs in the
                         * last place */
                        const double allowed = (ulp + (m->how == SLERP ? 0x1p-10 : 0)) * fabs(y) +
                                               3e-5 * size + 1e-7;
                        if (!(fabs(x - y) <= allowed))
                            fail_msg("%s: %s tensor, row %zu, channel %zu is %.9g, not %.9g",
                                     recipe, i ? "second" : "first", t, at + d, x, y);
                    }
                }
            }
        }
    free(want);
    free(norm);
    free(u);
    free(v);
    free(distance);
    free(kept);
    for (int i = 0; i < 2; i++) {
        free(back[i]);
        code_free(&c[i]);
    }
}

/* Rows of two layers at all angles: alike, opposite, zero in one or both. */
static void make_pair(struct layer *lower, struct layer *upper, unsigned role, int specials) {
    const enum kvc_dtype dtype = lower->shape[role].dtype;
    const size_t rows = (size_t)lower->shape[role].tokens, width = width_of(lower, role);
    for (size_t t = 0; t < rows; t++) {
        const float mix = (float)(random_bits() % 1000) / 1000,
                    scale = 0.25f + (float)(random_bits() % 100) / 20;
        for (size_t i = t * width; i < (t + 1) * width; i++) {
            const float x = get_value(lower->rows[role], dtype, i),
                        y = get_value(upper->rows[role], dtype, i);
            put_value(upper->rows[role], dtype, i, scale * (mix * x + (1 - mix) * y));
            if (specials && t % 13 == 3) put_value(upper->rows[role], dtype, i, -2 * x);
            if (specials && t % 13 == 5) put_value(upper->rows[role], dtype, i, x);
            if (specials && t % 13 == 7) put_value(upper->rows[role], dtype, i, 0);
            if (specials && t % 13 == 9) put_value(lower->rows[role], dtype, i, 0);
            if (specials && t % 39 == 11)
                put_value(lower->rows[role], dtype, i, 0),
                    put_value(upper->rows[role], dtype, i, 0);
        }
    }
}

static void merges(void **state) {
    (void)state;
    static const struct merge settings[] = {
        {SLERP, 0, 0.6, 0.05, 0},   {SLERP, 0, 0, 0, 0},      {SLERP, 0, 1, 0.1, 0},
        {SLERP, 0, 0.5, 1, 0},      {SLERP, 1, 0.6, 0.05, 0}, {SLERP, 1, 0.25, 0.3, 0},
        {SLERP, 0, 0.6, 0.05, 0.4}, {MEAN, 0, 0.6, 0, 0},     {MEAN, 1, 0.6, 0.2, 0},
        {MEAN, 0, 0.6, 0.05, 1},    {MAXNORM, 0, 0.6, 0, 0},  {MAXNORM, 1, 0.6, 0.05, 0.2},
    };
    for (unsigned d = 0; d < 3; d++)
        for (int specials = 0; specials < 2; specials++) {
            struct layer lower = make_layer(dtypes[d], 150, 2, 24),
                         upper = make_layer(dtypes[d], 150, 2, 24);
            for (unsigned role = 0; role < 2; role++) {
                make_pair(&lower, &upper, role, specials);
                for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
                    for (int deeper_first = 0; deeper_first < 2; deeper_first++)
                        check_merge(&settings[i], &lower, &upper, role, deeper_first,
                                    i % 2 ? 64 : 256);
            }
            free_layer(&lower);
            free_layer(&upper);
        }
}

/* merge.md's example: norms of their own, one direction. */
static void example_of_merge(void **state) {
    (void)state;
    struct layer a = make_layer(KVC_F32, 1, 1, 2), b = make_layer(KVC_F32, 1, 1, 2);
    struct coded c[2];
    for (size_t i = 0; i < 2; i++) {
        put_value(a.rows[K], KVC_F32, i, i ? 0 : 2);
        put_value(b.rows[K], KVC_F32, i, i ? 1 : 0);
    }
    must_code(&c[0],
              &(struct wanted){.recipe = "merge:slerp:t=0.5,split", .layer = &a, .partner = &b});
    must_code(&c[1], &(struct wanted){.recipe = "merge:slerp:t=0.5,split",
                                      .layer = &b,
                                      .partner = &a,
                                      .second = 1,
                                      .deeper = 1});
    uint8_t *x = decode(&c[0], NULL), *y = decode(&c[1], &c[0]);
    for (size_t i = 0; i < 2; i++) {
        assert_true(fabsf(get_value(x, KVC_F32, i) - 1.41421356f) < 1e-6f);
        assert_true(fabsf(get_value(y, KVC_F32, i) - 0.70710678f) < 1e-6f);
    }
    free(x);
    free(y);
    for (int i = 0; i < 2; i++) code_free(&c[i]);
    free_layer(&a);
    free_layer(&b);
}

/* After sinks and tails, and before lossy stages, both tensors of a pair decode, also with wild
 * values. */
static void merges_among_others(void **state) {
    (void)state;
    static const char *const recipes[] = {"sink:4,tail:10,merge:slerp,quant:kivi:bits=8:g=16",
                                          "merge:mean:keep=0.1,lowrank:r=24",
                                          "merge:slerp:heads,outlier:0.1,quant:token:bits=8:g=8",
                                          "tail:300,merge:slerp",
                                          "merge:slerp:keep=1,quant:kivi:bits=2",
                                          "merge:maxnorm,prune:k=0.5:v=0.5:by=l2,split"};
    for (unsigned d = 0; d < 3; d++)
        for (size_t r = 0; r < 6; r++)
            for (unsigned role = 0; role < 2; role++) {
                struct layer l[2] = {make_layer(dtypes[d], 150, 2, 24),
                                     make_layer(dtypes[d], 150, 2, 24)};
                struct coded c[2];
                make_pair(&l[0], &l[1], role, 0);
                for (size_t i = 0; i < 2; i++)
                    for (size_t k = 0; k < 7; k++)
                        put_bits(l[i].rows[role], dtypes[d], 500 * k + 77 + i, wild[d][k]);
                for (int i = 0; i < 2; i++)
                    must_code(&c[i], &(struct wanted){.recipe = recipes[r],
                                                      .layer = &l[i],
                                                      .partner = &l[!i],
                                                      .role = role,
                                                      .second = i,
                                                      .deeper = i,
                                                      .block_rows = 64});
                uint8_t *back[2] = {decode(&c[0], NULL), decode(&c[1], &c[0])};
                for (size_t i = 0; i < 2; i++) {
                    for (size_t k = 0; k < 7; k++)
                        assert_true(
                            same_bits(back[i], l[i].rows[role], dtypes[d], 500 * k + 77 + i));
                    for (size_t t = 0; t < 150; t++)
                        if (r == 3 || r == 4 || (r == 0 && (t < 4 || t >= 140)))
                            assert_true(same_row(&l[i], role, back[i], t));
                    for (size_t k = 0; k < 150 * 48; k++)
                        if (r == 0 && fabsf(get_value(l[i].rows[role], dtypes[d], k)) < 100)
                            assert_true(fabsf(get_value(back[i], dtypes[d], k)) < 100);
                    free(back[i]);
                }
                for (int i = 0; i < 2; i++) {
                    code_free(&c[i]);
                    free_layer(&l[i]);
                }
            }
}

/* --- pipelines, arguments, presets --- */

static void pipelines(void **state) {
    (void)state;
    static const struct {
        const char *recipe, *want;
    } cases[] = {
        {"quant:kivi:bits=2", "finite,quant:kivi:bits=2"},
        {"outlier:0.02,quant:kivi:bits=2,lowrank:r=4",
         "finite,outlier:0.02,quant:kivi:bits=2,lowrank:r=4"},
        {"sink:4,tail:64,quant:kivi:bits=2", "sink:4,tail:64,finite,quant:kivi:bits=2"},
        {"finite,sink:4,quant:kivi:bits=2", "finite,sink:4,quant:kivi:bits=2"},
        {"tail:64", "tail:64,split"},
        {"outlier:0.02", "finite,outlier:0.02,split"},
        {"prune:k=0.4", "finite,prune:k=0.4,split"},
        {"saliency:0.6", "saliency:0.6,split"},
        {"saliency:0.6,quant:zip:bits=4", "saliency:0.6,finite,quant:zip:bits=4"},
        {"merge:slerp", "finite,merge:slerp,split"},
        {"lowrank:r=4", "finite,lowrank:r=4"},
        {"lowrank:r=4,zstd", "finite,lowrank:r=4,zstd"},
        {"lowrank:r=4,tail:3", "finite,lowrank:r=4,tail:3,split"},
        {"quant:kivi:bits=2@v,split@k", "split"},
    };
    char text[256];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct kvc_pipeline p = pipeline_for(cases[i].recipe, K);
        assert_int_equal(kvc_pipeline_print(&p, text, sizeof text), 0);
        assert_string_equal(text, cases[i].want);
        const int lossy = strstr(text, "quant") || strstr(text, "lowrank") ||
                          strstr(text, "outlier") || strstr(text, "prune") || strstr(text, "merge");
        assert_int_equal(kvc_pipeline_lossless(&p), !lossy);
    }
}

static void put_steps(struct kvc_pipeline *p, const char *const *step) {
    struct kvc_error e;
    memset(p, 0, sizeof *p);
    for (; *step; step++) {
        char name[64];
        snprintf(name, sizeof name, "%s", *step);
        char *args = strchr(name, ':');
        if (args) *args++ = '\0';
        p->step[p->n].stage = kvc_stage_find(name);
        assert_non_null(p->step[p->n].stage);
        if (kvc_stage_parse(p->step[p->n].stage, args ? args : "", &p->step[p->n].args, &e))
            fail_msg("%s", e.message);
        p->n++;
    }
}

static void orders(void **state) {
    (void)state;
    static const char *const good[][5] = {{"finite", "merge:slerp", "lowrank:r=2"},
                                          {"finite", "merge:slerp", "prune:k=0.1", "split"},
                                          {"quant:kivi:bits=2", "lowrank:r=2"},
                                          {"sink:1", "finite", "merge:mean", "quant:kivi:bits=2"}};
    static const char *const bad[][5] = {{"split", "quant:kivi:bits=2"},
                                         {"zstd", "split"},
                                         {"tail:3"},
                                         {"quant:kivi:bits=2", "tail:3"},
                                         {"outlier:0.1"},
                                         {"merge:slerp"},
                                         {"saliency:1"},
                                         {"prune:k=0.5"},
                                         {"finite"},
                                         {"sink:2"},
                                         {"lowrank:r=1", "merge:slerp", "split"},
                                         {"saliency:0.5", "merge:slerp", "split"},
                                         {"prune:k=0.5", "merge:slerp", "split"},
                                         {"merge:slerp", "merge:mean", "split"}};
    struct kvc_pipeline p;
    struct kvc_error e;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        put_steps(&p, good[i]);
        if (kvc_pipeline_check(&p, &e)) fail_msg("%s first: %s", good[i][0], e.message);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        put_steps(&p, bad[i]);
        if (!kvc_pipeline_check(&p, &e))
            fail_msg("%s first, %s next: taken", bad[i][0], bad[i][1] ? bad[i][1] : "none");
    }
}

static void arguments(void **state) {
    (void)state;
    static const struct {
        const char *text, *canonical;
    } good[] = {
        {"finite", "finite"},
        {"sink:4", "sink:4"},
        {"sink:1", "sink:1"},
        {"sink:1048576", "sink:1048576"},
        {"tail:64", "tail:64"},
        {"tail:64:whole=1", "tail:64"},
        {"tail:whole=64:64", "tail:64:whole=64"},
        {"tail:7:whole=65536", "tail:7:whole=65536"},
        {"quant:kivi:bits=2", "quant:kivi:bits=2"},
        {"quant:bits=8:zip", "quant:zip:bits=8"},
        {"quant:token:bits=3:sym:clip:low=1:g=1", "quant:token:bits=3:g=1:low=1:clip:sym"},
        {"quant:kcvt:bits=1:g=64:low=2", "quant:kcvt:bits=1"},
        {"outlier:0.02", "outlier:0.02"},
        {"outlier:0.0001", "outlier:0.0001"},
        {"outlier:0.5", "outlier:0.5"},
        {"outlier:0.500", "outlier:0.5"},
        {"outlier:0.333", "outlier:0.333"},
        {"outlier:0.05", "outlier:0.05"},
        {"outlier:0.07", "outlier:0.07"},
        {"lowrank:r=4", "lowrank:r=4"},
        {"lowrank:power=3:layer:r=256", "lowrank:r=256:layer:power=3"},
        {"lowrank:r=1:power=0", "lowrank:r=1"},
        {"lowrank:exact:r=1", "lowrank:r=1:exact"},
        {"prune:k=0.4", "prune:k=0.4"},
        {"prune:v=0.29", "prune:v=0.29"},
        {"prune:mean:by=l2:window=5:v=0.95:k=0.123456789012",
         "prune:k=0.123456789012:v=0.95:by=l2:mean:window=5"},
        {"prune:k=0.1:by=query:window=32:v=0", "prune:k=0.1"},
        {"prune:k=0.1:by=l1", "prune:k=0.1:by=l1"},
        {"saliency:0.6", "saliency:0.6"},
        {"saliency:0", "saliency:0"},
        {"saliency:1", "saliency:1"},
        {"saliency:1.0", "saliency:1"},
        {"saliency:0.333", "saliency:0.333"},
        {"saliency:by=knorm:0.05:norm=paper", "saliency:0.05:norm=paper:by=knorm"},
        {"saliency:0.6:norm=code:by=attention", "saliency:0.6"},
        {"merge:slerp", "merge:slerp"},
        {"merge:mean:t=0.6:keep=0.05:from=0.5", "merge:mean"},
        {"merge:maxnorm:heads", "merge:maxnorm:heads"},
        {"merge:slerp:t=0:keep=0:from=0", "merge:slerp:t=0:keep=0:from=0"},
        {"merge:slerp:from=1:keep=1:t=1", "merge:slerp:t=1:keep=1:from=1"},
        {"merge:slerp:gamma=0.333", "merge:slerp:gamma=0.333"},
    };
    static const char *const bad[] = {
        "finite:1",
        "sink",
        "sink:0",
        "sink:1048577",
        "sink:-1",
        "sink:4:4",
        "sink:4x",
        "sink:n=4",
        "tail",
        "tail:0",
        "tail:1048577",
        "tail:64:whole=0",
        "tail:64:whole=65537",
        "tail:64:whole",
        "tail:whole=64",
        "quant",
        "quant:kivi",
        "quant:bits=2",
        "quant:kivi:bits=0",
        "quant:kivi:bits=9",
        "quant:kivi:bits=2:g=0",
        "quant:kivi:bits=2:g=65537",
        "quant:kivi:bits=2:low=0",
        "quant:kivi:bits=2:low=9",
        "quant:kivi:bits=2:clip=1",
        "quant:kivi:bits=2:bits=3",
        "quant:kivi:bits=2:clip:clip",
        "quant:kiv:bits=2",
        "quant:kivi:kcvt:bits=2",
        "quant:KIVI:bits=2",
        "quant:kivi:bits=2.0",
        "outlier",
        "outlier:0",
        "outlier:0.00009",
        "outlier:0.51",
        "outlier:1",
        "outlier:0.1:0.1",
        "outlier:.1",
        "outlier:-0.1",
        "outlier:1e-2",
        "outlier:nan",
        "outlier:0.1.1",
        "outlier:0,1",
        "lowrank",
        "lowrank:4",
        "lowrank:r=0",
        "lowrank:r=257",
        "lowrank:layer",
        "lowrank:r=4:power=65",
        "lowrank:r=4:exact=1",
        "lowrank:r=4:exact:power=3",
        "lowrank:r=4:layer=1",
        "prune",
        "prune:k=0",
        "prune:k=0:v=0",
        "prune:k=0.96",
        "prune:k=1",
        "prune:0.4",
        "prune:k=0.4:by=l3",
        "prune:k=0.4:window=0",
        "prune:k=0.4:window=65537",
        "prune:mean",
        "saliency",
        "saliency:1.01",
        "saliency:-0",
        "saliency:0.6:norm=x",
        "saliency:0.6:by=norm",
        "saliency:by=knorm",
        "saliency:0.6:norm",
        "merge",
        "merge:slurp",
        "merge:slerp:t=1.1",
        "merge:slerp:keep=1.1",
        "merge:slerp:gamma=1.5",
        "merge:slerp:from=2",
        "merge:t=0.5",
        "merge:slerp:keep=0.1:gamma=0.1",
        "merge:slerp:heads=2",
    };
    struct kvc_recipe r, again;
    struct kvc_error e;
    char text[256];
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        if (kvc_recipe_parse(good[i].text, &r, &e)) fail_msg("%s: %s", good[i].text, e.message);
        assert_int_equal(kvc_recipe_print(&r, text, sizeof text), 0);
        assert_string_equal(text, good[i].canonical);
        assert_int_equal(kvc_recipe_parse(text, &again, &e), 0);
        assert_memory_equal(&r, &again, sizeof r);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (!kvc_recipe_parse(bad[i], &r, &e)) fail_msg("'%s' is taken", bad[i]);
        assert_int_equal(e.code, KVC_ERR_USAGE);
        assert_true(strlen(e.message) > 10);
    }
    /* every share of up to four decimals reads back as it was printed */
    for (unsigned i = 0; i <= 10000; i++) {
        char share[32];
        snprintf(share, sizeof share, "saliency:%u.%04u", i / 10000, i % 10000);
        assert_int_equal(kvc_recipe_parse(share, &r, &e), 0);
        assert_int_equal(kvc_recipe_print(&r, text, sizeof text), 0);
        for (size_t n = strlen(share); share[n - 1] == '0' || share[n - 1] == '.'; share[n] = '\0')
            if (share[--n] == '.') {
                share[n] = '\0';
                break;
            }
        assert_string_equal(text, share);
        assert_int_equal(kvc_recipe_parse(text, &again, &e), 0);
        assert_memory_equal(&r, &again, sizeof r);
    }
}

static void presets(void **state) {
    (void)state;
    struct kvc_recipe r, again, spelt;
    struct kvc_error e;
    char text[512], with[100];
    for (size_t i = 0; kvc_preset_at(i); i++) {
        const struct kvc_preset *p = kvc_preset_at(i);
        assert_ptr_equal(kvc_preset_find(p->name, strlen(p->name)), p);
        assert_null(kvc_stage_find(p->name));
        if (kvc_recipe_parse(p->name, &r, &e)) fail_msg("%s: %s", p->name, e.message);
        assert_int_equal(kvc_recipe_parse(p->recipe, &spelt, &e), 0);
        assert_memory_equal(&r, &spelt, sizeof r);
        assert_int_equal(kvc_recipe_print(&r, text, sizeof text), 0);
        assert_string_equal(text, p->recipe);
        assert_int_equal(kvc_recipe_parse(text, &again, &e), 0);
        assert_memory_equal(&r, &again, sizeof r);
        /* an order that can be run */
        for (unsigned role = 0; role < 2; role++) pipeline_for(p->name, role);
        static const char *const behind[] = {":bits=2", "@k", ":"};
        for (size_t k = 0; k < 3; k++) {
            snprintf(with, sizeof with, "%s%s", p->name, behind[k]);
            if (!kvc_recipe_parse(with, &r, &e)) fail_msg("'%s' is taken", with);
            assert_int_equal(e.code, KVC_ERR_USAGE);
            assert_non_null(strstr(e.message, p->recipe));
        }
    }
    assert_int_equal(kvc_recipe_parse("sink:4,kivi2", &r, &e), 0);
    assert_int_equal(kvc_recipe_print(&r, text, sizeof text), 0);
    assert_int_equal(strncmp(text, "sink:4,tail:", 12), 0);
    assert_null(kvc_preset_find("kivi", 4));
    assert_int_equal(kvc_recipe_parse("kivi", &r, &e), -1);
}

/* --- kernels --- */

static const char *const whole_recipes[] = {
    "kivi2",
    "kivi4",
    "gear",
    "gear4",
    "gear-l",
    "gear-l4",
    "kcvt4",
    "zipcache",
    "think",
    "think-kivi",
    "quant:token:bits=5:g=5:clip:sym",
    "quant:zip:bits=8,split",
    "quant:kivi:bits=1:g=1000,lowrank:r=3:layer:power=3",
    "sink:4,outlier:0.1,prune:v=0.3:k=0.2:mean:by=l1,quant:zip:bits=6",
    "lowrank:r=256,zstd",
    "saliency:0.3:norm=paper,tail:9,quant:kcvt:bits=4:low=1,lowrank:r=2",
    "prune:v=0.5,quant:kivi:bits=3",
};

static void add_digest(XXH3_state_t *digest, const struct coded *c, const struct coded *first) {
    uint8_t *back = decode(c, first);
    XXH3_64bits_update(digest, back,
                       (size_t)(c->w.n * kvc_row_bytes(&c->w.layer->shape[c->w.role])));
    free(back);
    for (size_t b = 0; b < c->blocks; b++)
        for (size_t s = 0; s < c->block[b].count; s++)
            XXH3_64bits_update(digest, c->block[b].section[s].data, c->block[b].section[s].size);
}

static unsigned long long digest_of_all(void) {
    XXH3_state_t *digest = XXH3_createState();
    assert_non_null(digest);
    XXH3_64bits_reset(digest);
    random_state = 7;
    for (unsigned d = 0; d < 3; d++)
        for (uint64_t dim = 20; dim <= 84; dim += 32) {
            struct layer l[2] = {make_layer(dtypes[d], 330, 2, dim),
                                 make_layer(dtypes[d], 330, 2, dim)};
            struct coded c[2];
            add_queries(&l[0], 30, 3);
            for (unsigned role = 0; role < 2; role++) {
                for (size_t k = 0; k < 7; k++)
                    put_bits(l[0].rows[role], dtypes[d], 600 * k + 77, wild[d][k]);
                for (size_t r = 0; r < sizeof whole_recipes / sizeof whole_recipes[0]; r++) {
                    must_code(&c[0], &(struct wanted){.recipe = whole_recipes[r],
                                                      .layer = &l[0],
                                                      .role = role});
                    add_digest(digest, &c[0], NULL);
                    code_free(&c[0]);
                }
                static const char *const pairs[] = {"minicache", "minicache-kivi4",
                                                    "merge:maxnorm:heads,lowrank:r=5"};
                for (size_t r = 0; r < 3; r++) {
                    for (int i = 0; i < 2; i++)
                        must_code(&c[i], &(struct wanted){.recipe = pairs[r],
                                                          .layer = &l[i],
                                                          .partner = &l[!i],
                                                          .role = role,
                                                          .second = i,
                                                          .deeper = i});
                    add_digest(digest, &c[0], NULL);
                    add_digest(digest, &c[1], &c[0]);
                    for (int i = 0; i < 2; i++) code_free(&c[i]);
                }
            }
            for (int i = 0; i < 2; i++) free_layer(&l[i]);
        }
    const XXH64_hash_t value = XXH3_64bits_digest(digest);
    XXH3_freeState(digest);
    return value;
}

/* Every kernel table codes to the same bytes and decodes the same values. */
static void every_kernel_table(void **state) {
    (void)state;
    assert_every_table(program, NULL);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves),
        cmocka_unit_test(wild_values),
        cmocka_unit_test(edges_of_finite),
        cmocka_unit_test(sinks_and_tails),
        cmocka_unit_test(examples_of_ends),
        cmocka_unit_test(outliers),
        cmocka_unit_test(outliers_before_quant),
        cmocka_unit_test(example_of_outlier),
        cmocka_unit_test(ranks),
        cmocka_unit_test(segments),
        cmocka_unit_test(lowrank_behind_quant),
        cmocka_unit_test(pruned_channels),
        cmocka_unit_test(salient_tokens),
        cmocka_unit_test(without_queries),
        cmocka_unit_test(merges),
        cmocka_unit_test(example_of_merge),
        cmocka_unit_test(merges_among_others),
        cmocka_unit_test(pipelines),
        cmocka_unit_test(orders),
        cmocka_unit_test(arguments),
        cmocka_unit_test(presets),
        cmocka_unit_test(every_kernel_table),
    };
    if (print_digest(argc, argv, digest_of_all)) return 0;
    program = argv[0];
    return cmocka_run_group_tests_name("lossy", tests, NULL, NULL);
}
