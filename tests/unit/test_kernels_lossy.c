/* test_kernels_lossy.c: the kernels of lossy stages, in every table that this CPU runs:
 * conversions, ranges, codes, products of matrices. Not for stages (test_lossy.c). */
#include "kernels_support.h"

static const size_t lengths[] = {0, 1, 7, 8, 9, 31, 32, 63, 64, 65, 1000};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

typedef void narrow(uint8_t *dst, const float *src, size_t n);

/* n floats whose words are known; in place, and of every length and alignment. */
static void floats_are_narrowed(narrow *convert, const float *src, const uint16_t *want, size_t n) {
    float *x = floats(n);
    memcpy(x, src, 4 * n);
    convert((uint8_t *)x, x, n);
    for (size_t i = 0; i < n; i++) {
        uint16_t word;
        memcpy(&word, (uint8_t *)x + 2 * i, 2);
        if (word != want[i]) fail_msg("%a: 0x%04x, not 0x%04x", (double)src[i], word, want[i]);
    }
    free(x - 1);
    for (size_t s = 0; s < LENGTHS; s++) {
        const size_t count = lengths[s], from = random_u16() % (n - count);
        uint8_t *dst = bytes(2 * count);
        x = floats(count);
        memcpy(x, src + from, 4 * count);
        convert(dst, x, count);
        assert_memory_equal(dst, want + from, 2 * count);
        free(dst - 1), free(x - 1);
    }
}

/* Every word; the middle between any two neighbours, which goes to the even one, and the floats
 * beside it, which go to the nearer one; NaNs of which no bit would be left. */
static void floats_become_words(void **state) {
    (void)state;
    enum { MOST = 65536 + 6 * 32768 + 4 };
    float *half = malloc(MOST * sizeof *half), *brain = malloc(MOST * sizeof *brain);
    uint16_t *want_half = malloc(MOST * sizeof *want_half),
             *want_brain = malloc(MOST * sizeof *want_brain);
    size_t halves = 0, brains = 0;
    for (unsigned w = 0; w < 65536; w++) {
        const unsigned sign = w & 0x8000, size = w & 0x7fff;
        half[halves] = kvc_half_to_float((uint16_t)w);
        want_half[halves++] = (uint16_t)(size > 0x7c00 ? 0x7e00 : w);
        brain[brains] = kvc_bits_to_float(w << 16);
        want_brain[brains++] = (uint16_t)(size > 0x7f80 ? 0x7fc0 : w);
        if (size < 0x7c00) {
            const double next = size == 0x7bff ? 65536 : half_value(size + 1);
            const float middle = (float)((half_value(size) + next) / 2);
            const float side[] = {nextafterf(middle, 0), middle, nextafterf(middle, INFINITY)};
            const unsigned to[] = {size, size + size % 2, size + 1};
            for (int i = 0; i < 3; i++) {
                half[halves] = sign ? -side[i] : side[i];
                want_half[halves++] = (uint16_t)(sign | to[i]);
            }
        }
        if (size < 0x7f80) {
            const unsigned to[] = {size, size + size % 2, size + 1};
            for (unsigned i = 0; i < 3; i++) {
                brain[brains] = kvc_bits_to_float(w << 16 | (0x7fff + i));
                want_brain[brains++] = (uint16_t)(sign | to[i]);
            }
        }
    }
    const uint32_t hidden[] = {0x7f800001, 0xff800001};
    for (unsigned i = 0; i < 2; i++) {
        half[halves] = brain[brains] = kvc_bits_to_float(hidden[i]);
        want_half[halves++] = 0x7e00;
        want_brain[brains++] = 0x7fc0;
    }
    half[halves] = 3e38f, want_half[halves++] = 0x7c00;
    half[halves] = -0x1p-149f, want_half[halves++] = 0x8000;
    assert_true(halves <= MOST && brains <= MOST);
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        if (!k) continue;
        floats_are_narrowed(k->f32_to_f16, half, want_half, halves);
        floats_are_narrowed(k->f32_to_bf16, brain, want_brain, brains);
    }
    free(half), free(brain), free(want_half), free(want_brain);
}

static void ranges_agree(void **state) {
    (void)state;
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        if (!k) continue;
        for (size_t s = 0; s < LENGTHS; s++)
            for (unsigned round = 0; round < 20; round++) {
                const size_t n = lengths[s];
                float *x = floats(n), *low = floats(n), *high = floats(n);
                float *want_low = floats(n), *want_high = floats(n);
                float least, greatest, want_least = INFINITY, want_greatest = -INFINITY;
                fill_with(round % 2 ? finite_float : common_float, x, n);
                for (size_t i = 0; i < n; i++) {
                    if (round == 19) x[i] = random_byte() % 2 ? 0 : -0.0f;
                    /* the last is the minimum */
                    if (round == 17) x[i] = fabsf(x[i]) + (float)(i != n - 1);
                    low[i] = random_byte() % 2 ? INFINITY : finite_float();
                    high[i] = random_byte() % 2 ? -INFINITY : finite_float();
                    want_low[i] = x[i] < low[i] ? x[i] : low[i];
                    want_high[i] = x[i] > high[i] ? x[i] : high[i];
                    if (x[i] < want_least) want_least = x[i];
                    if (x[i] > want_greatest) want_greatest = x[i];
                }
                k->widen_ranges(low, high, x, n);
                assert_memory_equal(low, want_low, 4 * n);
                assert_memory_equal(high, want_high, 4 * n);
                if (n) {
                    k->range(x, n, &least, &greatest);
                    assert_int_equal(kvc_float_to_bits(least),
                                     want_least == 0 ? 0 : kvc_float_to_bits(want_least));
                    assert_int_equal(kvc_float_to_bits(greatest),
                                     want_greatest == 0 ? 0 : kvc_float_to_bits(want_greatest));
                }
                free(x - 1), free(low - 1), free(high - 1), free(want_low - 1), free(want_high - 1);
            }
    }
}

/* Values beyond limits of their own and of all; many are equal to a limit, some limits are
 * infinite. */
static void limits_agree(void **state) {
    (void)state;
    for (size_t s = 0; s < LENGTHS; s++)
        for (unsigned round = 0; round < 20; round++) {
            const size_t n = lengths[s], step = round % 2;
            float *x = floats(n), *low = floats(n + 1), *high = floats(n + 1);
            uint16_t *got = malloc(2 * n + 2), *want = malloc(2 * n + 2);
            size_t count = 0;
            assert_true(got && want);
            for (size_t i = 0; i < n; i++)
                x[i] = round % 3 ? common_float() : (float)(random_byte() % 16 - 8);
            for (size_t i = 0; i <= n; i++) {
                low[i] = round % 3 ? -0.5f : (float)(random_byte() % 4 - 8);
                high[i] = round % 3 ? 0.5f : (float)(random_byte() % 4 + 4);
                if (round % 5 == 4) low[i] = random_byte() % 2 ? INFINITY : -INFINITY;
            }
            for (size_t i = 0; i < n; i++)
                if (x[i] <= low[i * step] || x[i] >= high[i * step]) want[count++] = (uint16_t)i;
            for (const char *const *name = kvc_kernels_names(); *name; name++) {
                const struct kvc_kernels *k = kvc_kernels_find(*name);
                if (!k) continue;
                assert_int_equal(k->find_beyond(got, x, low, high, n, step), count);
                assert_memory_equal(got, want, 2 * count);
            }
            free(x - 1), free(low - 1), free(high - 1), free(got), free(want);
        }
}

static const size_t group_sizes[] = {1, 3, 7, 8, 13, 32, 64, 80, 2000};
enum { GROUP_SIZES = sizeof group_sizes / sizeof group_sizes[0] };

/* Halves between two codes are common, so are values outside of the range; some are infinite or no
 * numbers. */
static void codes_agree(void **state) {
    (void)state;
    static const float tops[] = {0, 1, 3, 6.5f, 15, 127, 255};
    static const float special[] = {INFINITY, -INFINITY, NAN,    -NAN,
                                    -0.0f,    3e38f,     -3e38f, 0x1p-149f};
    unsigned seen[256] = {0};
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        if (!k) continue;
        for (size_t s = 0; s < LENGTHS; s++)
            for (size_t g = 0; g < GROUP_SIZES; g++)
                for (unsigned round = 0; round < 7; round++) {
                    const size_t n = lengths[s], group = group_sizes[g],
                                 groups = (n + group - 1) / group;
                    float *x = floats(n), *low = floats(groups), *inverse = floats(groups);
                    uint8_t *codes = bytes(n), *want = bytes(n);
                    for (size_t i = 0; i < groups; i++) {
                        low[i] = round % 2 ? common_float() : (float)(random_byte() % 32) / 4 - 4;
                        inverse[i] = round % 2 ? fabsf(common_float())
                                               : ldexpf(1, random_byte() % 4 - 1);
                    }
                    for (size_t i = 0; i < n; i++) {
                        const float own = (float)(random_u16() % 640) / 4 - 12;
                        x[i] = round % 2 ? common_float() : own;
                        if (round == 5 && random_byte() % 8 == 0) x[i] = special[random_byte() % 8];
                        const float v = times(plus(x[i], -low[i / group]), inverse[i / group]);
                        double clamped = v > 0 ? (double)v : 0;
                        if (clamped > (double)tops[round]) clamped = (double)tops[round];
                        /* ties to even by hand */
                        const double below = floor(clamped), over = clamped - below;
                        const double code = over > 0.5 || (over == 0.5 && fmod(below, 2) != 0)
                                                ? below + 1
                                                : below;
                        want[i] = (uint8_t)code;
                        seen[want[i]]++;
                    }
                    k->quantise(codes, x, low, inverse, n, group, tops[round]);
                    assert_memory_equal(codes, want, n);
                    free(x - 1), free(low - 1), free(inverse - 1), free(codes - 1), free(want - 1);
                }
    }
    for (unsigned code = 0; code < 256; code++) assert_true(seen[code] > 0);
}

static void values_agree(void **state) {
    (void)state;
    unsigned fused = 0;
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        if (!k) continue;
        for (size_t s = 0; s < LENGTHS; s++)
            for (size_t g = 0; g < GROUP_SIZES; g++)
                for (unsigned round = 0; round < 4; round++) {
                    const size_t n = lengths[s], group = group_sizes[g],
                                 groups = (n + group - 1) / group;
                    float *x = floats(n), *step = floats(groups), *low = floats(groups);
                    float *want = floats(n), *want_added = floats(n);
                    uint8_t *codes = bytes(n);
                    fill_with(round % 2 ? common_float : finite_float, step, groups);
                    fill_with(round % 2 ? common_float : finite_float, low, groups);
                    for (size_t i = 0; i < n; i++) {
                        want[i] = plus(times((float)codes[i], step[i / group]), low[i / group]);
                        fused += want[i] != fmaf((float)codes[i], step[i / group], low[i / group]);
                    }
                    k->dequantise(x, codes, step, low, n, group);
                    assert_memory_equal(x, want, 4 * n);
                    fill_with(round % 2 ? common_float : finite_float, x, n);
                    for (size_t i = 0; i < n; i++) want_added[i] = plus(want[i], x[i]);
                    k->dequantise_add(x, codes, step, low, n, group);
                    assert_memory_equal(x, want_added, 4 * n);
                    free(x - 1), free(step - 1), free(low - 1), free(want - 1),
                        free(want_added - 1), free(codes - 1);
                }
    }
    assert_true(fused > 1000); /* a fused product would show */
}

/* In their order, each product and difference rounded; a -0 stays one. */
static void rows_are_subtracted(void **state) {
    static const size_t some[] = {0, 1, 3, 32};
    unsigned apart = 0;
    (void)state;
    for (size_t n = 0; n <= 80; n++)
        for (size_t r = 0; r < sizeof some / sizeof some[0]; r++)
            for (size_t step = 0; step <= 2; step++) {
                const size_t rows = some[r], stride = n + step, all = rows ? rows * stride : 0;
                double *x = noise(8 * all), *s = noise(8 * (rows * step + 1)), *y = noise(8 * n),
                       *want = noise(8 * n);
                for (size_t i = 0; i < all; i++) x[i] = i % 5 ? (double)common_float() / 3 : 0;
                for (size_t i = 0; i <= rows * step; i++)
                    s[i] = i % 3 == 2 ? -0.0 : (double)common_float() / 3;
                for (size_t i = 0; i < n; i++) y[i] = i % 4 ? (double)common_float() : -0.0;
                for (size_t i = 0; i < n; i++) {
                    double fused = want[i] = y[i];
                    for (size_t k = 0; k < rows; k++) {
                        volatile double product = s[k * step] * x[k * stride + i];
                        want[i] = want[i] - product;
                        fused = fma(-s[k * step], x[k * stride + i], fused);
                    }
                    apart += fused != want[i];
                }
                for (const char *const *name = kvc_kernels_names(); *name; name++) {
                    const struct kvc_kernels *kernels = kvc_kernels_find(*name);
                    if (!kernels) continue;
                    double *got = noise(8 * n);
                    if (n) memcpy(got, y, 8 * n);
                    kernels->subtract_rows(got, x, stride, s, step, rows, n);
                    assert_memory_equal(got, want, 8 * n);
                    free(got);
                }
                free(x), free(s), free(y), free(want);
            }
    assert_true(apart > 1000); /* a fused product would show */
}

static void rows_are_multiplied(void **state) {
    (void)state;
    static const size_t rows[] = {0, 1, 2, 17, 100};
    unsigned apart = 0;
    for (size_t n = 0; n <= 200; n++)
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
            for (unsigned round = 0; round < 3; round++) {
                const size_t k = rows[r], stride = n + 3 * round,
                             all = k ? (k - 1) * stride + n : 0;
                float *a = floats(k), *b = floats(all), *y = floats(n), *want = floats(n);
                fill_with(round == 2 ? number : common_float, a, k);
                fill_with(round == 2 ? number : common_float, b, all);
                for (size_t i = 0; i < n; i++) {
                    float other = want[i] = 0;
                    for (size_t j = 0; j < k; j++) {
                        want[i] = fmaf(a[j], b[j * stride + i], want[i]);
                        other = plus(other, times(a[j], b[j * stride + i]));
                    }
                    apart += isfinite(want[i]) && other != want[i];
                }
                for (const char *const *name = kvc_kernels_names(); *name; name++) {
                    const struct kvc_kernels *kernels = kvc_kernels_find(*name);
                    if (!kernels) continue;
                    fill_with(any_float, y, n);
                    kernels->multiply_rows(y, a, b, k, stride, n);
                    assert_memory_equal(y, want, 4 * n);
                }
                free(a - 1), free(b - 1), free(y - 1), free(want - 1);
            }
    assert_true(apart > 1000); /* a product rounded by itself would show */
}

/* Each value goes to its place, and nothing between rows is touched. */
static void matrices_are_transposed(void **state) {
    (void)state;
    for (size_t rows = 0; rows <= 19; rows += rows < 9 ? 1 : 5)
        for (size_t columns = 0; columns <= 27; columns += columns < 9 ? 1 : 6) {
            const size_t from = 2 * columns + 4, to = 2 * rows + 6;
            uint8_t *src = bytes(rows * from + 1), *dst = bytes(columns * to + 1),
                    *want = bytes(columns * to + 1);
            for (const char *const *name = kvc_kernels_names(); *name; name++) {
                const struct kvc_kernels *kernels = kvc_kernels_find(*name);
                if (!kernels) continue;
                memset(dst, 0x5a, columns * to);
                memset(want, 0x5a, columns * to);
                for (size_t r = 0; r < rows; r++)
                    for (size_t c = 0; c < columns; c++)
                        memcpy(want + c * to + 2 * r, src + r * from + 2 * c, 2);
                kernels->transpose_2(dst, to, src, from, rows, columns);
                assert_memory_equal(dst, want, columns * to);
            }
            free(src - 1), free(dst - 1), free(want - 1);
        }
}

/* Small integers of values: rounded, clamped, NaN as 0. */
static void values_become_small(void **state) {
    (void)state;
    for (size_t n = 0; n <= 50; n++) {
        float *x = floats(n), *mean = floats(n), *gain = floats(n);
        int8_t *want = malloc(n + 1), *to = malloc(n + 1);
        fill_with(n % 2 ? any_float : common_float, x, n);
        fill_with(number, mean, n);
        fill_with(common_float, gain, n);
        for (size_t i = 0; i < n; i++) {
            volatile float d = x[i] - mean[i], y = d * gain[i];
            want[i] = (int8_t)(isnan(y) ? 0 : y > 127 ? 127 : y < -127 ? -127 : rintf(y));
        }
        for (const char *const *name = kvc_kernels_names(); *name; name++) {
            const struct kvc_kernels *kernels = kvc_kernels_find(*name);
            if (!kernels) continue;
            memset(to, 0x55, n + 1);
            kernels->small_codes(to, x, mean, gain, n);
            assert_memory_equal(to, want, n);
            assert_int_equal(to[n], 0x55);
        }
        free(x - 1), free(mean - 1), free(gain - 1), free(want), free(to);
    }
}

/* Tiles of many rows are multiply_rows, row by row, and touch nothing between them. */
static void tiles_are_multiplied(void **state) {
    (void)state;
    for (size_t i = 0; i <= 20 * 8; i++)
        for (size_t k = 0; k <= 33; k += 11)
            for (size_t gap = 0; gap <= 3; gap++) {
                const size_t rows = i % 21, tiles = i / 21, a_stride = k + gap,
                             y_stride = tiles * KVC_TILE + gap;
                float *a = floats(rows * a_stride), *b = floats(tiles * k * KVC_TILE),
                      *y = floats(rows * y_stride);
                float *want = floats(rows * y_stride);
                fill_with(gap ? common_float : number, a, rows * a_stride);
                fill_with(gap ? common_float : number, b, tiles * k * KVC_TILE);
                for (const char *const *name = kvc_kernels_names(); *name; name++) {
                    const struct kvc_kernels *kernels = kvc_kernels_find(*name);
                    if (!kernels) continue;
                    fill_with(any_float, y, rows * y_stride);
                    memcpy(want, y, 4 * rows * y_stride);
                    for (size_t r = 0; r < rows; r++)
                        for (size_t t = 0; t < tiles; t++)
                            kvc_kernels_ref.multiply_rows(want + r * y_stride + t * KVC_TILE,
                                                          a + r * a_stride, b + t * k * KVC_TILE, k,
                                                          KVC_TILE, KVC_TILE);
                    kernels->multiply_tiles(y, y_stride, a, a_stride, rows, b, k, tiles);
                    assert_memory_equal(y, want, 4 * rows * y_stride);
                }
                free(a - 1), free(b - 1), free(y - 1), free(want - 1);
            }
}

/* add_gram's upper triangle sum by sum, and nothing beside it. */
static void grams_agree(void **state) {
    (void)state;
    static const size_t dims[] = {1, 2, 5, 6, 7, 15, 16, 17, 22, 31, 64, 67},
                        counts[] = {0, 1, 2, 17, 64};
    for (size_t s = 0; s < sizeof dims / sizeof dims[0] * 5 * 3; s++) {
        const size_t dim = dims[s / 15], n = counts[s / 3 % 5], stride = dim + (s % 3 ? 3 : 0);
        float *x = floats(n * stride);
        double *gram = malloc(dim * dim * sizeof *gram), *want = malloc(dim * dim * sizeof *want);
        assert_true(gram && want);
        fill_with(s % 3 == 2 ? finite_float : common_float, x, n * stride);
        for (size_t i = 0; i < dim * dim; i++) want[i] = (double)common_float();
        for (const char *const *name = kvc_kernels_names(); *name; name++) {
            const struct kvc_kernels *kernels = kvc_kernels_find(*name);
            if (!kernels) continue;
            memcpy(gram, want, dim * dim * sizeof *gram);
            kernels->add_gram(gram, x, n, stride, dim);
            for (size_t i = 0; i < dim; i++)
                for (size_t j = 0; j < dim; j++) {
                    float sum = 0;
                    for (size_t t = 0; t < n && i <= j; t++)
                        sum = fmaf(x[t * stride + i], x[t * stride + j], sum);
                    const double due = i <= j ? want[i * dim + j] + (double)sum : want[i * dim + j];
                    assert_memory_equal(&due, &gram[i * dim + j], sizeof due);
                }
        }
        free(x - 1), free(gram), free(want);
    }
}

static float total_of(const float sum[8]) {
    return plus(plus(plus(sum[0], sum[4]), plus(sum[2], sum[6])),
                plus(plus(sum[1], sum[5]), plus(sum[3], sum[7])));
}

static void products_agree(void **state) {
    (void)state;
    unsigned fused = 0, fused_dot = 0, fused_squares = 0;
    for (size_t s = 0; s < LENGTHS; s++)
        for (unsigned round = 0; round < 60; round++) {
            const size_t n = lengths[s];
            const float factor = round % 2 ? common_float() : number();
            float *x = floats(n), *y = floats(n), *got = floats(n), *sum = floats(n),
                  *scaled = floats(n), *squares = floats(n);
            float lane[8] = {0}, other[8] = {0};
            fill_with(round % 2 ? common_float : number, x, n);
            fill_with(round % 2 ? common_float : number, y, n);
            for (size_t i = 0; i < n; i++) {
                scaled[i] = times(factor, x[i]);
                sum[i] = plus(y[i], scaled[i]);
                squares[i] = plus(y[i], times(x[i], x[i]));
                fused_squares += isfinite(squares[i]) && squares[i] != fmaf(x[i], x[i], y[i]);
                fused += isfinite(sum[i]) && sum[i] != fmaf(factor, x[i], y[i]);
                lane[i % 8] = plus(lane[i % 8], times(x[i], y[i]));
                other[i % 8] = fmaf(x[i], y[i], other[i % 8]);
            }
            const float want = total_of(lane);
            fused_dot += isfinite(want) && want != total_of(other);
            for (const char *const *name = kvc_kernels_names(); *name; name++) {
                const struct kvc_kernels *k = kvc_kernels_find(*name);
                if (!k) continue;
                memcpy(got, y, 4 * n);
                k->add_scaled(got, x, factor, n);
                assert_memory_equal(got, sum, 4 * n);
                memcpy(got, y, 4 * n);
                k->add_squares(got, x, n);
                assert_memory_equal(got, squares, 4 * n);
                k->scale(got, x, factor, n);
                assert_memory_equal(got, scaled, 4 * n);
                memcpy(got, x, 4 * n);
                k->scale(got, got, factor, n);
                assert_memory_equal(got, scaled, 4 * n);
                assert_int_equal(kvc_float_to_bits(k->dot(x, y, n)), kvc_float_to_bits(want));
            }
            free(x - 1), free(y - 1), free(got - 1), free(sum - 1), free(scaled - 1),
                free(squares - 1);
        }
    assert_true(fused > 1000 && fused_dot > 10 && fused_squares > 1000);
}

static float obvious_exponential(float d) {
    static const float c[] = KVC_EXPONENTIAL;
    if (d < -87) return 0;
    const float power = (float)nearbyint((double)times(d, KVC_LOG2_E));
    const float r = fmaf(power, -KVC_LN2_LOW, fmaf(power, -KVC_LN2_HIGH, d));
    const float p = fmaf(fmaf(fmaf(fmaf(fmaf(fmaf(c[0], r, c[1]), r, c[2]), r, c[3]), r, c[4]), r,
                              c[5]),
                         r, c[6]);
    return ldexpf(p, (int)power);
}

static void exponentials_agree(void **state) {
    (void)state;
    static const float special[] = {-INFINITY,      0,      -0.0f,     -87, -100, -0x1.5c0002p6f,
                                    -0x1.5bfffep6f, -3e38f, -0x1p-149f};
    static const float mosts[] = {0, 1, -17.25f, 1000, 3e38f, 0x1p-140f};
    unsigned zeros = 0;
    for (size_t s = 0; s < LENGTHS; s++)
        for (unsigned round = 0; round < 24; round++) {
            const size_t n = lengths[s];
            const float most = mosts[round % 6];
            float *x = floats(n), *got = floats(n), *want = floats(n), lane[8] = {0};
            for (size_t i = 0; i < n; i++) {
                const float below = random_byte() % 4 ? (float)random_u16() / -700
                                                      : special[random_byte() % 9];
                x[i] = plus(most, below);
                const float d = plus(x[i], -most);
                want[i] = obvious_exponential(d);
                const double real = exp((double)d);
                if (d >= -87) assert_true(fabs((double)want[i] - real) < real * 0x1p-23);
                else zeros += kvc_float_to_bits(want[i]) == 0;
                lane[i % 8] = plus(lane[i % 8], want[i]);
            }
            for (const char *const *name = kvc_kernels_names(); *name; name++) {
                const struct kvc_kernels *k = kvc_kernels_find(*name);
                if (!k) continue;
                memcpy(got, x, 4 * n);
                assert_int_equal(kvc_float_to_bits(k->exponentials(got, n, most)),
                                 kvc_float_to_bits(total_of(lane)));
                assert_memory_equal(got, want, 4 * n);
            }
            free(x - 1), free(got - 1), free(want - 1);
        }
    assert_true(zeros > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floats_become_words), cmocka_unit_test(ranges_agree),
        cmocka_unit_test(limits_agree),        cmocka_unit_test(codes_agree),
        cmocka_unit_test(values_agree),        cmocka_unit_test(rows_are_subtracted),
        cmocka_unit_test(rows_are_multiplied), cmocka_unit_test(tiles_are_multiplied),
        cmocka_unit_test(grams_agree),         cmocka_unit_test(products_agree),
        cmocka_unit_test(exponentials_agree),  cmocka_unit_test(matrices_are_transposed),
        cmocka_unit_test(values_become_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
