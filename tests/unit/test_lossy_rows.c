/* test_lossy_rows.c: the stages that keep rows and values exactly, `finite`, `sink`, `tail` and
 * `outlier`, each against its spec read value by value, and the halves that stages store. Not for
 * what is approximated. */
#include "lossy_support.h"

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

/* Puts wild values into l, and into `tame` what finite.md says stands in for them, block by block
 * of 64 rows. */
static void make_wild(struct layer *l, struct layer *tame, unsigned d, unsigned role,
                      uint8_t *is_wild) {
    const size_t width = width_of(l, role), rows = (size_t)l->shape[role].tokens, n = rows * width;
    memset(is_wild, 0, n);
    for (size_t k = 0; k < n / 50; k++) is_wild[random_bits() % n] = 1;
    for (size_t t = 0; t < rows; t++) is_wild[t * width + 3] = 1; /* a channel of nothing else */
    for (size_t i = 0; i < n; i++) {
        if (is_wild[i]) put_pattern(l->rows[role], float_dtypes[d], i, wild_patterns[d][i % 7]);
        else if (i % 101 == 0)
            put_pattern(l->rows[role], float_dtypes[d], i, d ? 0x8000 : 0x80000000); /* -0 */
    }
    memcpy(tame->rows[role], l->rows[role], n * kvc_dtype_info(float_dtypes[d])->size);
    for (size_t i = 0; i < n; i++) {
        const size_t from = i / width / 64 * 64, end = from + 64 < rows ? from + 64 : rows;
        double sum = 0;
        size_t count = 0;
        if (!is_wild[i]) continue;
        for (size_t t = from; t < end; t++)
            if (!is_wild[t * width + i % width]) {
                sum += (double)get_value(l->rows[role], float_dtypes[d], t * width + i % width);
                count++;
            }
        put_value(tame->rows[role], float_dtypes[d], i, count ? (float)(sum / (double)count) : 0);
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
                struct layer l = make_layer(float_dtypes[d], 100, 2, 24),
                             tame = make_layer(float_dtypes[d], 100, 2, 24);
                const size_t n = 100 * 48;
                uint8_t *is_wild = get_memory(n);
                /* the stage that knows norms of keys looks at keys as they are: of V, so that K is
                 * tame */
                if (strstr(recipes[r], "saliency") && role == K)
                    memcpy(l.rows[V], l.rows[K], n * kvc_dtype_info(float_dtypes[d])->size);
                const unsigned of = strstr(recipes[r], "saliency") ? V : role;
                memcpy(tame.rows[K], l.rows[K], n * kvc_dtype_info(float_dtypes[d])->size);
                make_wild(&l, &tame, d, of, is_wild);
                uint8_t *back = there_and_back(recipes[r], &l, of, 64),
                        *other = there_and_back(recipes[r], &tame, of, 64);
                for (size_t i = 0; i < n; i++) {
                    if (is_wild[i] ? same_bits(back, l.rows[of], float_dtypes[d], i)
                                   : same_bits(back, other, float_dtypes[d], i))
                        continue;
                    fail_msg("%s of %s: %s value %zu of %c is another", recipes[r],
                             kvc_dtype_info(float_dtypes[d])->name, is_wild[i] ? "wild" : "tame", i,
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
    for (size_t i = 0; i < 80; i++) put_pattern(l.rows[K], KVC_F32, i, 0x7fc00000 + (uint32_t)i);
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
        mark[best] = (uint8_t)(mark[best] | (j < k ? 1 : 2));
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
                struct layer l = make_layer(float_dtypes[d], 300, 2, kind == 3 ? 150 : 33);
                const size_t n = (size_t)l.shape[K].tokens * width_of(&l, K);
                for (size_t i = 0; i < n; i++) {
                    /* constant */
                    if (kind == 1) put_value(l.rows[role], float_dtypes[d], i, 1.5f);
                    /* ties */
                    if (kind == 2)
                        put_value(l.rows[role], float_dtypes[d], i, (float)(random_bits() % 3) - 1);
                    /* -0 */
                    if (kind == 2 && i % 11 == 0)
                        put_pattern(l.rows[role], float_dtypes[d], i, d ? 0x8000 : 0x80000000);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves),
        cmocka_unit_test(wild_values),
        cmocka_unit_test(edges_of_finite),
        cmocka_unit_test(sinks_and_tails),
        cmocka_unit_test(examples_of_ends),
        cmocka_unit_test(outliers),
        cmocka_unit_test(outliers_before_quant),
        cmocka_unit_test(example_of_outlier),
    };
    return cmocka_run_group_tests_name("lossy_rows", tests, NULL, NULL);
}
