/* test_rans.c: the kernels of rANS against a slow coder: samples of all kinds, damage, divisions.
 * Not for tables of frequencies (test_rans_tables.c). */
#include "rans_support.h"

/* --- samples --- */

enum kind { RANDOM, TWO, EVEN, DOMINANT, SPARSE, KINDS };

/* Spreads what is missing to `whole` over the symbols that have a frequency. */
static void fill_up(uint16_t *frequency, unsigned alphabet, unsigned whole) {
    unsigned left = whole - (unsigned)sum_below(frequency, alphabet);
    while (left) {
        unsigned s = random_below(alphabet), piece = 1 + random_below(left);
        if (!frequency[s]) continue;
        frequency[s] = (uint16_t)(frequency[s] + piece);
        left -= piece;
    }
}

static void make_frequencies(uint16_t *frequency, unsigned alphabet, unsigned bits,
                             enum kind kind) {
    const unsigned whole = 1u << bits, most = alphabet < whole ? alphabet : whole;
    memset(frequency, 0, KVC_RANS_SYMBOLS * sizeof *frequency);
    if (kind == RANDOM) {
        for (unsigned n = 2 + random_below(most - 1); n; n--) frequency[random_below(alphabet)] = 1;
        frequency[0] = frequency[alphabet - 1] = 1;
    } else if (kind == TWO) { /* 1 : 2^bits - 1 */
        unsigned s = random_below(alphabet);
        frequency[s] = 1;
        frequency[(s + 1) % alphabet] = (uint16_t)(whole - 1);
    } else if (kind == EVEN) { /* all ones where the alphabet is not less than `whole` */
        for (unsigned i = 0; i < most; i++)
            frequency[i * (alphabet / most)] = (uint16_t)(whole / most);
    } else if (kind == DOMINANT) { /* as many ones as leave one symbol half of the whole */
        const unsigned ones = alphabet < whole / 2 ? alphabet : whole / 2;
        for (unsigned i = 0; i < ones; i++) frequency[i * (alphabet / ones)] = 1;
        frequency[random_below(ones) * (alphabet / ones)] = (uint16_t)(whole - ones + 1);
    } else { /* three of 1024 */
        frequency[0] = frequency[alphabet - 1] = 1;
        frequency[1 + random_below(alphabet - 2)] = 1;
    }
    if (kind == RANDOM || kind == SPARSE) fill_up(frequency, alphabet, whole);
    assert_int_equal(sum_below(frequency, alphabet), whole);
}

/* A symbol as often as its frequency says, any that has one, the rarest (most words), the most
 * frequent (fewest). */
static uint16_t draw_symbol(const uint16_t *frequency, unsigned alphabet, unsigned bits,
                            unsigned how) {
    unsigned s = 0, best = alphabet, slot = random_below(1u << bits);
    if (how == 0) {
        while (slot >= frequency[s]) slot -= frequency[s++];
        return (uint16_t)s;
    }
    if (how == 1) {
        do s = random_below(alphabet);
        while (!frequency[s]);
        return (uint16_t)s;
    }
    for (s = 0; s < alphabet; s++)
        if (frequency[s] && (best == alphabet || (frequency[s] < frequency[best]) == (how == 2)))
            best = s;
    return (uint16_t)best;
}

static const size_t row_sizes[] = {0, 1, 31, 32, 33, 192, 1000};

/* Three rows of one of those sizes, or for plan == COUNT(row_sizes) one row of each. */
static void make_sample(struct sample *t, enum kind kind, unsigned bits, unsigned contexts,
                        unsigned lanes, size_t plan) {
    static const unsigned alphabets[] = {4, 256, 1024};
    const int mixed = plan == COUNT(row_sizes);
    t->bits = bits;
    t->alphabet = kind == RANDOM || kind == TWO ? alphabets[random_below(COUNT(alphabets))] : 1024;
    t->contexts = contexts;
    t->lanes = lanes;
    for (unsigned c = 0; c < contexts; c++)
        make_frequencies(t->frequency[c], t->alphabet, bits, kind);
    t->rows = mixed ? ROWS : 3;
    t->total = 0;
    for (size_t row = 0; row < t->rows; row++) {
        const unsigned how = random_below(4);
        t->n[row] = row_sizes[mixed ? (row + 3) % ROWS : plan];
        for (size_t i = 0; i < t->n[row]; i++, t->total++) {
            unsigned c = random_below(contexts);
            t->context[t->total] = (uint16_t)c;
            t->symbol[t->total] = draw_symbol(t->frequency[c], t->alphabet, bits, how);
        }
    }
}

static struct sample sample;
static struct stream stream;
static struct outcome outcome;

static void kernels_code_as_specified(void **state) {
    (void)state;
    for (unsigned kind = 0; kind < KINDS; kind++)
        for (unsigned bits = KVC_RANS_MIN_BITS; bits <= KVC_RANS_MAX_BITS; bits++)
            for (unsigned lanes = 1; lanes <= KVC_RANS_LANES; lanes *= 2)
                for (size_t plan = 0; plan <= COUNT(row_sizes); plan++) {
                    make_sample(&sample, kind, bits, 1, lanes, plan);
                    check_sample(&sample, &stream);
                    make_sample(&sample, kind, bits, CONTEXTS, lanes, plan);
                    check_sample(&sample, &stream);
                }
}

/* Every table that decodes two streams at once decodes each as the slow coder does. */
static void check_two(const struct sample *const t[2], const struct stream *const in[2]) {
    static struct outcome want, got[2];
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        if (!k || !k->rans_decode_two) continue;
        kernel_decode_two(k, t, in, got);
        for (unsigned i = 0; i < 2; i++) {
            slow_decode(t[i], in[i], &want);
            assert_same_outcome(t[i], &want, &got[i]);
        }
    }
}

/* Streams of any tables, bits and lanes, whole and cut, in either order. */
static void two_streams_at_once(void **state) {
    static struct sample other;
    static struct stream streams[2], cut;
    static const size_t cuts[] = {2, 64, 66, 130, 500, 2 * SYMBOLS};
    (void)state;
    for (unsigned kind = 0; kind < KINDS; kind++)
        for (unsigned bits = KVC_RANS_MIN_BITS; bits <= KVC_RANS_MAX_BITS; bits++)
            for (unsigned lanes = 4; lanes <= KVC_RANS_LANES; lanes *= 8)
                for (size_t plan = 0; plan <= COUNT(row_sizes); plan++) {
                    make_sample(&sample, kind, bits, CONTEXTS, KVC_RANS_LANES, plan);
                    make_sample(&other, (kind + plan) % KINDS, KVC_RANS_MIN_BITS + random_below(4),
                                1 + random_below(CONTEXTS), lanes, plan);
                    slow_encode(&sample, fresh, &streams[0]);
                    slow_encode(&other, fresh, &streams[1]);
                    const struct sample *const t[] = {&sample, &other, &sample};
                    const struct stream *const in[] = {&streams[0], &streams[1], &streams[0]};
                    check_two(t, in);
                    check_two(t + 1, in + 1);
                    for (size_t i = 0; i < COUNT(cuts); i++) {
                        cut = streams[0];
                        cut.size -= cuts[i] < cut.size ? cuts[i] : cut.size;
                        const struct stream *const damaged[] = {&cut, &streams[1], &cut};
                        check_two(t, damaged);
                        check_two(t + 1, damaged + 1);
                    }
                }
}

static void assert_refused(const struct sample *t, const struct stream *damaged) {
    check_decoding(t, damaged, &outcome);
    assert_true(outcome.refused);
}

/* Whatever the damage, the kernels do the same and stay within the stream; short and long ones are
 * refused. */
static void damaged_streams(void **state) {
    (void)state;
    static struct stream damaged;
    static const size_t cuts[] = {1, 2, 3, 4, 62, 64, 66, 130};
    for (unsigned kind = 0; kind < KINDS; kind++)
        for (unsigned bits = KVC_RANS_MIN_BITS; bits <= KVC_RANS_MAX_BITS; bits++)
            for (unsigned lanes = 4; lanes <= KVC_RANS_LANES; lanes *= 8) {
                make_sample(&sample, kind, bits, 1 + random_below(CONTEXTS), lanes,
                            COUNT(row_sizes));
                check_sample(&sample, &stream);
                for (size_t i = 0; i < COUNT(cuts); i++) {
                    damaged = stream;
                    damaged.size -= cuts[i] < stream.size ? cuts[i] : stream.size;
                    if (stream.size) assert_refused(&sample, &damaged);
                }
                for (size_t more = 1; more <= 64; more = 2 * more + more % 2) {
                    damaged = stream;
                    for (size_t i = 0; i < more; i++)
                        damaged.words[damaged.size++] = (uint8_t)random_word();
                    assert_refused(&sample, &damaged);
                }
                for (int i = 0; i < 4 && stream.size; i++) { /* a bit, a byte, a state, all */
                    damaged = stream;
                    uint8_t *at = &damaged.words[random_below((uint32_t)stream.size)];
                    if (i == 0) *at = (uint8_t)(*at ^ 1u << random_below(8));
                    if (i == 1) *at = (uint8_t) ~*at;
                    if (i == 2) damaged.state[random_below(lanes)] = UINT32_MAX;
                    for (size_t j = 0; i == 3 && j < damaged.size; j++)
                        damaged.words[j] = (uint8_t)random_word();
                    for (unsigned j = 0; i == 3 && j < lanes; j++)
                        damaged.state[j] = random_word() | 65536;
                    check_decoding(&sample, &damaged, &outcome);
                }
            }
}

static void states_out_of_range(void **state) {
    (void)state;
    for (unsigned lanes = 1; lanes <= KVC_RANS_LANES; lanes *= 2)
        for (unsigned lane = 0; lane < lanes; lane++) {
            struct kvc_rans_decoder r;
            struct kvc_error e = {0};
            /* empty rows: the states must be the start already */
            make_sample(&sample, RANDOM, 11, 1, lanes, 0);
            slow_encode(&sample, fresh, &stream);
            assert_int_equal(begin_decoding(&r, &sample, &stream, stream.words, &e), 0);
            assert_int_equal(kvc_rans_decode_end(&r, &e), 0);
            stream.state[lane] = 65537;
            assert_int_equal(begin_decoding(&r, &sample, &stream, stream.words, &e), 0);
            assert_int_equal(kvc_rans_decode_end(&r, &e), -1);
            assert_int_equal(e.code, KVC_ERR_DAMAGED);
            e.code = KVC_OK;
            stream.state[lane] = lane % 2 ? 65535 : 0;
            assert_int_equal(begin_decoding(&r, &sample, &stream, stream.words, &e), -1);
            assert_int_equal(e.code, KVC_ERR_DAMAGED);
        }
}

/* --- division by multiplication --- */

static int quotient_is_exact(const struct kvc_rans_symbol *s, uint64_t x, uint64_t f) {
    const unsigned shift = s->packed >> 22 & 15, add = s->packed >> 26;
    return (x + add) * s->reciprocal >> (32 + shift) == x / f;
}

/* The quotient steps at multiples of f, and an error grows with x: the highest multiples below f *
 * 2^(32 - bits). */
static void reciprocals_are_exact(void **state) {
    (void)state;
    for (unsigned bits = KVC_RANS_MIN_BITS; bits <= KVC_RANS_MAX_BITS; bits++)
        for (uint32_t f = 1; f < 1u << bits; f++) {
            const uint16_t frequency[] = {(uint16_t)((1u << bits) - f), (uint16_t)f};
            struct kvc_rans_symbol table[2];
            kvc_rans_encoding_table(table, frequency, 2);
            assert_int_equal(table[1].packed & 2047, f);
            assert_int_equal(table[1].packed >> 11 & 2047, frequency[0]);
            const uint64_t limit = UINT64_C(1) << (32 - bits);
            for (uint64_t i = 1; i <= 512; i++) {
                uint64_t q = i <= 256 ? limit - i : 1 + random_below((uint32_t)limit - 1);
                assert_true(quotient_is_exact(&table[1], q * f, f));
                assert_true(quotient_is_exact(&table[1], q * f - 1, f));
                assert_true(quotient_is_exact(&table[1], q * f + f - 1, f));
            }
        }
}

/* One symbol in each lane, from states around those where a word is given and where the quotient
 * steps. */
static void kernels_divide_exactly(void **state) {
    (void)state;
    static struct stream got;
    for (unsigned bits = KVC_RANS_MIN_BITS; bits <= KVC_RANS_MAX_BITS; bits++)
        for (uint32_t f = 1; f < 1u << bits; f++) {
            const uint32_t limit = f << (32 - bits), first = (65535 + f) / f * f;
            const uint32_t boundary[] = {limit - 1,     limit,          limit + 1, limit - f,
                                         limit - f - 1, limit - 2 * f,  limit / 2, limit / 2 - 1,
                                         first,         first + f - 1,  first + f, 65536,
                                         65537,         UINT32_MAX - 1, UINT32_MAX};
            uint32_t begin[KVC_RANS_LANES];
            for (size_t i = 0; i < KVC_RANS_LANES; i++) {
                begin[i] = i < COUNT(boundary) ? boundary[i] : random_word() >> random_below(16);
                if (begin[i] < 65536) begin[i] += 65536;
            }
            sample =
                (struct sample){.bits = bits, .alphabet = 2, .contexts = 1, .lanes = 32, .rows = 1};
            sample.n[0] = sample.total = 32;
            const unsigned s = random_below(2); /* with others below it or above */
            sample.frequency[0][s] = (uint16_t)f;
            sample.frequency[0][1 - s] = (uint16_t)((1u << bits) - f);
            for (size_t i = 0; i < 32; i++) sample.symbol[i] = (uint16_t)s;
            slow_encode(&sample, begin, &stream);
            for (const char *const *name = kvc_kernels_names(); *name; name++) {
                const struct kvc_kernels *k = kvc_kernels_find(*name);
                if (!k) continue;
                kernel_encode(k, &sample, begin, &got);
                assert_same_stream(&sample, &stream, &got);
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_code_as_specified), cmocka_unit_test(two_streams_at_once),
        cmocka_unit_test(damaged_streams),           cmocka_unit_test(states_out_of_range),
        cmocka_unit_test(reciprocals_are_exact),     cmocka_unit_test(kernels_divide_exactly),
    };
    return cmocka_run_group_tests_name("rans", tests, NULL, NULL);
}
