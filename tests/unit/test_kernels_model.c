/* test_kernels_model.c: the kernels of `split`'s channel model, in every table that this CPU runs,
 * against the model in double, and the examples of the specs. Not for the model's parameters
 * (test_split.c). */
#include "kernels_support.h"

static float variance_of(unsigned spread) {
    return kvc_bits_to_float(spread << 23);
}

static float value_of(int mean, unsigned spread) {
    return times((float)mean, times((float)sqrt((double)variance_of(spread)), 0.25f));
}

/* channels.md, "Float channels", the table of words. */
struct word_case {
    unsigned sign, cut, shift;
    uint32_t rebias;
};
static const struct word_case word_cases[] = {{15, 22, 6, 0},
                                              {15, 21, 8, 112},
                                              {7, 20, 0, 120},
                                              {7, 21, 0, 112}};

static struct kvc_word_format format_of(const struct word_case *w) {
    return (struct kvc_word_format){.sign = w->sign,
                                    .drop = w->cut - w->shift,
                                    .shift = w->shift,
                                    .rebias = w->rebias};
}

/* Which product is fused with a sum, for telling that a kernel does so. */
enum fused { NOTHING, FIRST_TERM, SECOND_TERM, SQUARE };

static void obvious_model_word(uint16_t *bias, uint16_t *context, float mean, float partner,
                               float variance, float c, float s, const struct word_case *w,
                               enum fused fused) {
    const float m = fused == FIRST_TERM    ? fmaf(mean, c, times(partner, s))
                    : fused == SECOND_TERM ? fmaf(partner, s, times(mean, c))
                                           : plus(times(mean, c), times(partner, s));
    const float q = fused == SQUARE ? fmaf(m, m, variance) : plus(times(m, m), variance);
    const uint32_t steps = (kvc_float_to_bits(q) - kvc_float_to_bits(variance)) >> 22;
    int64_t r = (int64_t)(kvc_float_to_bits(q) >> 1) + (INT64_C(127) << 22) -
                ((int64_t)w->rebias << 23);
    if (r < 0) r = 0;
    const int64_t magnitude = (r + (INT64_C(1) << (w->cut - 1))) / (INT64_C(1) << w->cut) *
                              (INT64_C(1) << w->shift);
    *context = (uint16_t)(steps < 7 ? steps : 7);
    *bias = (uint16_t)(magnitude % (INT64_C(1) << w->sign) +
                       (signbit(m) ? INT64_C(1) << w->sign : 0));
}

static const size_t periods[] = {1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 128};

static void model_words_agree(void **state) {
    (void)state;
    static const unsigned spreads[] = {1, 2, 64, 127, 190, 191, 192, 252, 253};
    static const float turns[][2] = {{1, 0},      {-1, 0},        {0, 1},        {0, -1},
                                     {-1, -0.0f}, {0x1p-126f, 1}, {1, 0x1p-149f}};
    static const unsigned shifts[] = {0, 4, 8, 10, 13};
    unsigned infinite = 0, contexts = 0;
    for (size_t p = 0; p < sizeof periods / sizeof periods[0]; p++)
        for (size_t heads = 0; heads <= 3; heads++)
            for (size_t w = 0; w < sizeof word_cases / sizeof word_cases[0]; w++)
                for (unsigned round = 0; round < 10; round++) {
                    const size_t period = periods[p], n = heads * period;
                    const unsigned up = shifts[round % 5];
                    const struct kvc_word_format format = format_of(&word_cases[w]);
                    float *mean = noise(4 * n), *partner = noise(4 * n), *variance = noise(4 * n);
                    float *cosine = noise(4 * period), *sine = noise(4 * period);
                    uint16_t *bias = noise(2 * n), *context = noise(2 * n);
                    uint16_t *want_bias = noise(2 * n), *want_context = noise(2 * n);
                    for (size_t d = 0; d < period; d++) {
                        const double angle = random_u16() / 10000.0;
                        const float *turn = turns[random_byte() % 7];
                        cosine[d] = round % 2 ? (float)cos(angle) : turn[0];
                        sine[d] = round % 2 ? (float)sin(angle) : turn[1];
                    }
                    for (size_t i = 0; i < n; i++) {
                        const unsigned any = 1 + random_u16() % 253u;
                        const unsigned spread = random_byte() % 2 ? spreads[random_byte() % 9]
                                                                  : any;
                        const int far = random_byte() % 4, other = random_byte() - 128;
                        const int own = far == 0   ? -128
                                        : far == 1 ? 127
                                        : far == 2 ? 0
                                                   : random_byte() - 128;
                        variance[i] = variance_of(spread);
                        mean[i] = value_of(own, spread);
                        partner[i] = value_of(other, 1 + random_u16() % 253u);
                        if (random_byte() % 4 == 0) partner[i] = random_byte() % 2 ? 0 : -0.0f;
                        obvious_model_word(&want_bias[i], &want_context[i], mean[i], partner[i],
                                           variance[i], cosine[i % period], sine[i % period],
                                           &word_cases[w], NOTHING);
                        const float m = plus(times(mean[i], cosine[i % period]),
                                             times(partner[i], sine[i % period]));
                        infinite += isinf(times(m, m)) != 0;
                        contexts |= 1u << want_context[i];
                        want_context[i] = (uint16_t)(want_context[i] << up);
                    }
                    const struct kvc_model_channels channels = {mean, partner, variance};
                    for (const char *const *name = kvc_kernels_names(); *name; name++) {
                        const struct kvc_kernels *k = kvc_kernels_find(*name);
                        if (!k) continue;
                        memset(bias, 0xa5, 2 * n);
                        memset(context, 0xa5, 2 * n);
                        k->model_words(bias, context, &channels, cosine, sine, n, period, &format,
                                       up);
                        assert_memory_equal(bias, want_bias, 2 * n);
                        assert_memory_equal(context, want_context, 2 * n);
                    }
                    free(mean), free(partner), free(variance), free(cosine), free(sine);
                    free(bias), free(context), free(want_bias), free(want_context);
                }
    assert_true(infinite > 100);
    assert_int_equal(contexts, 255);
}

/* Channels whose bias would be another if an operation were fused: their q lies where the bias
 * steps, so that its last bit decides. */
static void model_words_are_not_fused(void **state) {
    (void)state;
    enum { N = 96 };
    const struct word_case *word = &word_cases[2];
    const struct kvc_word_format format = format_of(word);
    float mean[N], partner[N], variance[N], cosine[N], sine[N];
    uint16_t bias[N], context[N], want_bias[N], want_context[N];
    for (enum fused fused = FIRST_TERM; fused <= SQUARE; fused++) {
        unsigned tries = 0;
        for (size_t i = 0; i < N; tries++) {
            assert_in_range(tries, 0, 1000000);
            const double angle = random_u16() / 20000.0 - 1.5;
            cosine[i] = (float)cos(angle);
            sine[i] = (float)sin(angle);
            const unsigned spread = 120 + random_byte() % 16u;
            variance[i] = variance_of(spread);
            partner[i] = value_of(random_byte() - 128, spread);
            const float step = kvc_bits_to_float(kvc_float_to_bits(variance[i]) +
                                                 ((2u * (random_byte() % 40u) + 1) << word->cut));
            const double m = sqrt((double)step - (double)variance[i]);
            mean[i] = (float)((m - (double)partner[i] * (double)sine[i]) / (double)cosine[i]);
            mean[i] = kvc_bits_to_float(kvc_float_to_bits(mean[i]) + random_byte() % 8u);
            uint16_t fused_bias, fused_context;
            obvious_model_word(&want_bias[i], &want_context[i], mean[i], partner[i], variance[i],
                               cosine[i], sine[i], word, NOTHING);
            obvious_model_word(&fused_bias, &fused_context, mean[i], partner[i], variance[i],
                               cosine[i], sine[i], word, fused);
            i += fused_bias != want_bias[i];
        }
        const struct kvc_model_channels channels = {mean, partner, variance};
        for (const char *const *name = kvc_kernels_names(); *name; name++) {
            const struct kvc_kernels *k = kvc_kernels_find(*name);
            if (!k) continue;
            k->model_words(bias, context, &channels, cosine, sine, N, N, &format, 0);
            assert_memory_equal(bias, want_bias, sizeof bias);
            assert_memory_equal(context, want_context, sizeof context);
        }
    }
}

static void model_sums_agree(void **state) {
    (void)state;
    enum { ROWS = 4 };
    for (size_t p = 0; p < sizeof periods / sizeof periods[0]; p++)
        for (size_t heads = 1; heads <= 3; heads++)
            for (size_t rows = 0; rows <= ROWS; rows++) {
                const size_t period = periods[p], n = heads * period;
                float *x = noise(4 * n * ROWS), *turn[4], *turned[4], *sums[4], *before[4],
                      *want[4];
                for (int a = 0; a < 4; a++)
                    sums[a] = noise(4 * n), before[a] = noise(4 * n), want[a] = noise(4 * n);
                for (int a = 0; a < 4; a++)
                    turn[a] = noise(4 * period), turned[a] = noise(4 * period);
                for (size_t d = 0; d < period; d++)
                    for (int a = 0; a < 4; a++)
                        turn[a][d] = turned[a][d] = (float)cos(random_u16() / 1000.0);
                for (int a = 0; a < 4; a++)
                    for (size_t i = 0; i < n; i++)
                        before[a][i] = want[a][i] = random_byte() % 4
                                                        ? (float)random_u16() / 77 - 400
                                                        : -0.0f;
                for (size_t t = 0; t < rows; t++) {
                    for (size_t i = 0; i < n; i++) {
                        x[t * n + i] = any_float();
                        /* false for NaN */
                        const float v = fabs((double)x[t * n + i]) < 0x1p50 ? x[t * n + i] : 0;
                        want[0][i] = plus(want[0][i], v);
                        want[1][i] = plus(want[1][i], times(v, v));
                        want[2][i] = plus(want[2][i], times(v, turned[0][i % period]));
                        want[3][i] = plus(want[3][i], times(v, turned[1][i % period]));
                    }
                    for (size_t d = 0; d < period; d++) {
                        const float c = turned[0][d], s = turned[1][d];
                        turned[0][d] = plus(times(c, turn[2][d]), -times(s, turn[3][d]));
                        turned[1][d] = plus(times(s, turn[2][d]), times(c, turn[3][d]));
                    }
                }
                for (const char *const *name = kvc_kernels_names(); *name; name++) {
                    const struct kvc_kernels *k = kvc_kernels_find(*name);
                    if (!k) continue;
                    const struct kvc_model_sums to = {sums[0], sums[1], sums[2], sums[3]};
                    float *c = noise(4 * period), *s = noise(4 * period);
                    memcpy(c, turn[0], 4 * period);
                    memcpy(s, turn[1], 4 * period);
                    for (int a = 0; a < 4; a++) memcpy(sums[a], before[a], 4 * n);
                    k->model_sums(&to, x, rows, c, s, turn[2], turn[3], n, period);
                    for (int a = 0; a < 4; a++) assert_memory_equal(sums[a], want[a], 4 * n);
                    assert_memory_equal(c, turned[0], 4 * period);
                    assert_memory_equal(s, turned[1], 4 * period);
                    free(c), free(s);
                    const struct kvc_model_sums resting = {.plain = sums[0], .square = sums[1]};
                    for (int a = 0; a < 4; a++) memcpy(sums[a], before[a], 4 * n);
                    k->model_sums(&resting, x, rows, NULL, NULL, NULL, NULL, n, period);
                    for (int a = 0; a < 4; a++)
                        assert_memory_equal(sums[a], a < 2 ? want[a] : before[a], 4 * n);
                }
                for (int a = 0; a < 4; a++)
                    free(sums[a]), free(before[a]), free(want[a]), free(turn[a]), free(turned[a]);
                free(x);
            }
}

/* Angles of every size that models have, and 0 and 4. */
static void model_angles_agree(void **state) {
    (void)state;
    enum { N = 77 };
    double x[N];
    float cosine[N], sine[N];
    for (int i = 0; i < N; i++) x[i] = i < 2 ? 4.0 * i : 4 * pow(0.83, i);
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        for (size_t n = 0; k && n <= N; n += n < 9 ? 1 : 17) {
            memset(cosine, 0, sizeof cosine);
            memset(sine, 0, sizeof sine);
            k->model_angles(cosine, sine, x, n);
            for (size_t i = 0; i < N; i++) {
                float want[2] = {0, 0};
                if (i < n) kvc_kernels_ref.model_angles(&want[0], &want[1], x + i, 1);
                assert_memory_equal(&cosine[i], &want[0], 4);
                assert_memory_equal(&sine[i], &want[1], 4);
                if (i < n)
                    assert_true(fabs((double)cosine[i] - cos(x[i])) < 1e-7 &&
                                fabs((double)sine[i] - sin(x[i])) < 1e-7);
            }
        }
    }
}

/* A thousand rows, so that a fused or differently rounded operation has time to show. */
static void turns_of_a_model_agree(void **state) {
    (void)state;
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        if (!k) continue;
        for (size_t p = 0; p < sizeof periods / sizeof periods[0]; p++) {
            const size_t n = periods[p];
            float *c = noise(4 * n), *s = noise(4 * n), *a = noise(4 * n), *b = noise(4 * n);
            float *want_c = noise(4 * n), *want_s = noise(4 * n);
            for (size_t i = 0; i < n; i++) {
                const double angle = i % 5 ? 4.0 * random_u16() / 65536 : ldexp(1, -(int)i);
                c[i] = want_c[i] = 1;
                s[i] = want_s[i] = 0;
                a[i] = (float)cos(angle);
                b[i] = (float)sin(angle);
            }
            for (int row = 0; row < 1000; row++) {
                k->turn_halves(c, s, a, b, n);
                for (size_t i = 0; i < n; i++) {
                    const float next = plus(times(want_c[i], a[i]), -times(want_s[i], b[i]));
                    want_s[i] = plus(times(want_s[i], a[i]), times(want_c[i], b[i]));
                    want_c[i] = next;
                }
                assert_memory_equal(c, want_c, 4 * n);
                assert_memory_equal(s, want_s, 4 * n);
            }
            free(c), free(s), free(a), free(b), free(want_c), free(want_s);
        }
    }
}

/* The worked examples of channels.md, split.md and fast.md, in as many copies as make every loop of
 * a twin turn. */
static void examples(void **state) {
    (void)state;
    enum { N = 70 };
    const struct kvc_word_format bf16 = format_of(&word_cases[0]);
    uint16_t words[N], bias[N], context[N], none[N] = {0}, symbols[N];
    float mean[N], partner[N], variance[N], one[N], zero[N];
    uint8_t low[N], high[N], packed[KVC_PACKED(N, 3)];
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        if (!k) continue;
        for (size_t i = 0; i < N; i++) {
            mean[i] = value_of(4, 127);
            variance[i] = variance_of(127);
            one[i] = 1, zero[i] = partner[i] = 0;
            words[i] = 0x3f80;
            bias[i] = context[i] = 0xffff;
        }
        const struct kvc_model_channels channels = {mean, partner, variance};
        k->model_words(bias, context, &channels, one, zero, N, N, &bf16, 10);
        for (size_t i = 0; i < N; i++)
            assert_true(mean[i] == 1 && bias[i] == 0x3fc0 && context[i] == 2 << 10);
        k->cut_words(symbols, low, words, none, none, N, 6, 0xffff);
        for (size_t i = 0; i < N; i++) assert_true(symbols[i] == 254 && low[i] == 0);
        k->cut_words(symbols, low, words, bias, none, N, 6, 0xffff);
        for (size_t i = 0; i < N; i++) assert_true(symbols[i] == 1023 && low[i] == 0);

        for (size_t i = 0; i < N; i++) bias[i] = 120 << 7, words[i] = i % 2 ? 0xc000 : 0x3f80;
        k->cut_rotated(low, high, words, bias, N);
        for (size_t i = 0; i < N; i++) assert_true(low[i] == i % 2 && high[i] == 7 + i % 2);
        for (size_t i = 0; i < N; i++) high[i] &= 7; /* -2.0 is an escape and packed as 0 */
        k->pack_bits(packed, high, N, 3);
        /* two bits of 32 values */
        for (size_t i = 0; i < 8; i++) assert_int_equal(packed[i], i % 2 ? 0 : 0xff);
        /* and the third */
        for (size_t i = 8; i < 12; i++) assert_int_equal(packed[i], i % 2 ? 0 : 0xff);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(model_words_agree),  cmocka_unit_test(model_words_are_not_fused),
        cmocka_unit_test(model_sums_agree),   cmocka_unit_test(turns_of_a_model_agree),
        cmocka_unit_test(model_angles_agree), cmocka_unit_test(examples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
