/* test_rans_tables.c: tables of frequencies: normalised, coded, damaged; Rice codes, and the
 * example of rans.md. */
#include "rans_support.h"

/* --- tables --- */

static unsigned frequency_of_level(unsigned level) {
    return level < 8 ? level : (4 + level % 4) * (1u << (level / 4 - 1));
}

/* Bits of a stored table, read one by one. */
struct reading {
    const uint8_t *bytes;
    size_t at, limit;
    int bad;
};

static unsigned next_bit(struct reading *r) {
    if (r->at >= r->limit) {
        r->bad = 1;
        return 0;
    }
    unsigned bit = (unsigned)r->bytes[r->at / 8] >> r->at % 8 & 1u;
    r->at++;
    return bit;
}

static unsigned next_rice(struct reading *r, unsigned k) {
    unsigned ones = 0, low = 0, bits = k;
    while (ones < 24 && next_bit(r)) ones++;
    if (ones == 24) bits = 16;
    for (unsigned i = 0; i < bits; i++) low |= next_bit(r) << i;
    if (ones == 24 && low >> k < 24) r->bad = 1;
    return ones == 24 ? low : (ones << k) + low;
}

/* A table as rans.md says it is read; -1 where it must be refused. */
static int slow_table_read(struct reading *r, uint16_t *frequency, unsigned alphabet,
                           unsigned bits) {
    int level = 0, greatest = 0;
    unsigned special = 0, others = 0;
    for (unsigned s = 0; s < alphabet; s++) {
        const unsigned z = next_rice(r, 2);
        level += z % 2 ? -(int)(z + 1) / 2 : (int)z / 2;
        if (r->bad || level < 0 || level > 40) return -1;
        frequency[s] = (uint16_t)frequency_of_level((unsigned)level);
        if (level > greatest) greatest = level, special = s;
        if (level) continue;
        const unsigned run = next_rice(r, 3);
        if (r->bad || run > alphabet - 1 - s) return -1;
        for (unsigned i = 0; i < run; i++) frequency[++s] = 0;
    }
    for (unsigned s = 0; s < alphabet; s++) others += s == special ? 0 : frequency[s];
    if (others == 0 || others >= 1u << bits) return -1;
    frequency[special] = (uint16_t)((1u << bits) - others);
    return 0;
}

/* Reads the first `size` bits both ways; 0 when the table is accepted, with its frequencies. */
static int read_table(const uint8_t *bytes, size_t size, uint16_t *frequency, unsigned alphabet,
                      unsigned bits) {
    uint16_t want[KVC_RANS_SYMBOLS];
    uint8_t *exact = exact_copy(bytes, (size + 7) / 8);
    uint16_t *got = malloc(alphabet * sizeof *got);
    assert_non_null(got);
    struct reading r = {.bytes = exact, .limit = size};
    struct kvc_bits b = {.read = exact, .limit = size};
    struct kvc_error e = {0};
    const int status = slow_table_read(&r, want, alphabet, bits);
    assert_int_equal(kvc_rans_table_read(&b, got, alphabet, bits, &e), status);
    if (status) {
        assert_int_equal(e.code, KVC_ERR_DAMAGED);
    } else {
        assert_int_equal(b.at, r.at);
        assert_memory_equal(got, want, alphabet * sizeof *got);
        memcpy(frequency, got, alphabet * sizeof *got);
    }
    free(got);
    free(exact);
    return status;
}

/* Writes a table, reads the same again, and refuses it without its last bit; its size in bits. */
static size_t check_table(const uint16_t *frequency, unsigned alphabet, unsigned bits,
                          uint8_t *bytes) {
    uint16_t again[KVC_RANS_SYMBOLS];
    struct kvc_bits out = {.bytes = malloc(KVC_RANS_TABLE_BOUND)};
    assert_non_null(out.bytes);
    uint16_t *exact = exact_copy(frequency, alphabet * sizeof *exact);
    kvc_rans_table_write(&out, exact, alphabet);
    assert_true(out.at <= 8 * KVC_RANS_TABLE_BOUND);
    memcpy(bytes, out.bytes, (out.at + 7) / 8);
    assert_int_equal(read_table(bytes, out.at, again, alphabet, bits), 0);
    assert_memory_equal(again, frequency, alphabet * sizeof *again);
    assert_int_equal(read_table(bytes, out.at - 1, again, alphabet, bits), -1);
    assert_int_equal(read_table(bytes, random_below((uint32_t)out.at), again, alphabet, bits), -1);
    free(exact);
    free(out.bytes);
    return out.at;
}

static double distance(double a, double b) {
    return a < b ? b - a : a - b;
}

/* Frequencies made from these counts keep what rans.md says of them, and go through a stored table.
 */
static void check_normalised(const uint32_t *counts, unsigned alphabet, unsigned bits) {
    const uint32_t whole = 1u << bits;
    uint8_t bytes[KVC_RANS_TABLE_BOUND];
    uint32_t *count = exact_copy(counts, alphabet * sizeof *count);
    uint16_t *f = malloc(alphabet * sizeof *f);
    assert_non_null(f);
    kvc_rans_normalise(f, count, alphabet, bits);

    uint64_t total = 0;
    unsigned n = 0, sum = 0, present = 0, big = 0;
    for (unsigned s = 0; s < alphabet; s++) {
        total += count[s];
        n += count[s] != 0;
        if (count[s] > count[big]) big = s;
        sum += f[s];
        present += f[s] != 0;
        assert_true(f[s] < whole);
        assert_true(f[s] || !count[s]);
    }
    assert_int_equal(sum, whole);
    assert_int_equal(present, n > 1 ? n : 2);

    /* all but the most frequent are rounded to levels; those that gained most make room for it */
    if (n > 1) {
        double rounded = 0, share_of_big = (double)count[big] * whole / (double)total;
        int lowered = 0, above_one = 0;
        for (unsigned s = 0; s < alphabet; s++) {
            if (s == big || !count[s]) continue;
            const double share = (double)count[s] * whole / (double)total;
            unsigned level = 1, own = 0;
            while (distance(frequency_of_level(level + 1), share) <
                   distance(frequency_of_level(level), share))
                level++;
            while (own <= 40 && frequency_of_level(own) != f[s]) own++;
            assert_true(own <= 40);
            const double best = distance(frequency_of_level(level), share),
                         is = distance(f[s], share);
            if (is > best + 0.13) { /* shares are taken in sixteenths: ties go either way */
                assert_true(own < level);
                lowered = 1;
            }
            rounded += frequency_of_level(level) + 0.13;
            above_one |= f[s] > 1;
        }
        if (lowered) assert_true(rounded + share_of_big / 2 + 1 > whole);
        if (above_one) assert_true(f[big] >= share_of_big / 2);
    }
    check_table(f, alphabet, bits, bytes);
    free(f);
    free(count);
}

static void normalised_tables(void **state) {
    (void)state;
    static const unsigned alphabets[] = {2, 4, 16, 32, 256, 1024};
    uint32_t count[KVC_RANS_SYMBOLS];
    for (unsigned bits = KVC_RANS_MIN_BITS; bits <= KVC_RANS_MAX_BITS; bits++)
        for (size_t a = 0; a < COUNT(alphabets); a++) {
            const unsigned alphabet = alphabets[a],
                           most = alphabet < 1u << bits ? alphabet : 1u << bits;
            for (unsigned round = 0; round < 200; round++) {
                const unsigned n = round == 0       ? 1
                                   : round % 4 == 1 ? most
                                                    : 1 + random_below(most),
                               how = round / 4 % 6;
                unsigned s = random_below(alphabet);
                memset(count, 0, sizeof count);
                for (unsigned i = 0; i < n; i++) {
                    while (count[s]) s = random_below(alphabet);
                    count[s] = how == 0   ? 1
                               : how == 1 ? UINT32_MAX
                               : how == 2 ? (i == n / 2 ? UINT32_MAX : 1)
                               : how == 3 ? UINT32_MAX >> (i % 32)
                               : how == 4 ? random_word() | 1
                                          : (random_word() >> random_below(32)) | 1;
                }
                check_normalised(count, alphabet, bits);
            }
            for (unsigned s = 0; s < alphabet; s++) { /* one symbol, each in turn */
                memset(count, 0, sizeof count);
                count[s] = 1 + random_word() / 2;
                check_normalised(count, alphabet, bits);
            }
        }
}

/* Flipped bits and noise: refused or read as rans.md says; what is accepted can be written again.
 */
static void damaged_tables(void **state) {
    (void)state;
    unsigned accepted = 0;
    for (unsigned round = 0; round < 20000; round++) {
        const unsigned bits = 8 + random_below(4),
                       alphabet = 2u << random_below(round % 2 ? 10 : 4);
        uint16_t f[KVC_RANS_SYMBOLS];
        uint8_t bytes[KVC_RANS_TABLE_BOUND];
        size_t size = 8 * 64;
        if (round % 2) {
            uint32_t count[KVC_RANS_SYMBOLS] = {0};
            for (unsigned i = 1 + random_below(200); i; i--)
                count[random_below(alphabet)] = (random_word() >> random_below(32)) | 1;
            kvc_rans_normalise(f, count, alphabet, bits);
            size = check_table(f, alphabet, bits, bytes);
            for (unsigned i = random_below(3) + 1; i; i--) {
                uint8_t *at = &bytes[random_below((uint32_t)size) / 8];
                *at = (uint8_t)(*at ^ 1u << random_below(8));
            }
        } else {
            for (size_t i = 0; i < size / 8; i++)
                bytes[i] = (uint8_t)(random_word() & random_word());
        }
        if (read_table(bytes, size, f, alphabet, bits)) continue;
        accepted++;
        assert_int_equal(sum_below(f, alphabet), 1u << bits);
        for (unsigned s = 0; s < alphabet; s++) assert_true(f[s] < 1u << bits);
        check_table(f, alphabet, bits, bytes);
    }
    assert_in_range(accepted, 1000, 19000); /* both happen */
}

/* Each thing that must be refused beside its neighbour that must not be; alphabet 16, P = 8. */
static void refused_tables(void **state) {
    (void)state;
    /* the rest of the numbers are levels; one after RUN is a run's, then nothing */
    enum { RUN = 100, LONG_RUN = 200 };
    static const struct {
        int level[8]; /* ends with RUN, then the zeros that follow the last level, 0 */
        int status;
    } cases[] = {
        {{3, 28, 0, RUN, 13}, 0},
        {{3, 28, 0, RUN, 14}, -1}, /* a run beyond the alphabet */
        /* the long form where the short would do */
        {{3, 28, 0, LONG_RUN, 13}, -1},
        {{3, 40, 0, RUN, 13}, 0},
        {{3, 41, 0, RUN, 13}, -1}, /* no such level */
        {{3, -1, 0, RUN, 13}, -1},
        {{0, RUN, 15}, -1},     /* nothing has a frequency */
        {{28, 0, RUN, 14}, -1}, /* the others sum to 0 */
        {{28, 1, 0, RUN, 13}, 0},
        {{27, 27, 0, RUN, 13}, 0},      /* 224 and what is left */
        {{28, 28, 0, RUN, 13}, -1},     /* 256 leaves nothing */
        {{27, 27, 16, 0, RUN, 12}, -1}, /* 224 + 32 */
        {{27, 27, 15, 0, RUN, 12}, 0},
        {{40, 40, 40, 0, RUN, 12}, -1},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        uint8_t bytes[64];
        uint16_t f[16];
        struct kvc_bits b = {.bytes = bytes};
        int last = 0;
        for (const int *v = cases[i].level;; v++) {
            if (*v == LONG_RUN) {
                kvc_bits_put(&b, (1u << 24) - 1, 24);
                kvc_bits_put(&b, (uint32_t)v[1], 16);
            } else if (*v == RUN) {
                kvc_bits_put_rice(&b, (uint32_t)v[1], 3);
            } else {
                kvc_bits_put_rice(&b, kvc_zigzag(*v - last), 2);
                last = *v;
                continue;
            }
            break;
        }
        assert_int_equal(read_table(bytes, b.at, f, 16, 8), cases[i].status);
    }
}

/* Writes numbers, reads them at once and one by one: from all bits, and from strings that end in a
 * code; long codes and random bits too. */
static void rice_codes_at_once(void **state) {
    (void)state;
    enum { NUMBERS = 300, ROOM = 5 * NUMBERS };
    uint64_t x = 1;
    for (unsigned how = 0; how < 400; how++) {
        const unsigned k = how % (KVC_RICE_MOST + 1);
        uint8_t bytes[ROOM];
        struct kvc_bits out = {.bytes = bytes};
        for (unsigned i = 0; i < NUMBERS; i++) {
            x = x * UINT64_C(6364136223846793005) + 1442695040888963407;
            const unsigned number = (unsigned)(x >> 48);
            kvc_bits_put_rice(&out, x >> 40 & 63 ? number % (4u << k) : number, k);
        }
        const size_t limit = how < 200 ? out.at : (size_t)(x >> 33) % out.at;
        for (size_t i = 0; how % 5 == 4 && i < out.at / 8; i++)
            bytes[i] = (uint8_t)(bytes[i] ^ (x >> i % 50 & x >> (i + 7) % 41));
        uint8_t *exact = exact_copy(bytes, (limit + 7) / 8);
        struct kvc_bits at_once = {.read = exact, .limit = limit}, one_by_one = at_once;
        uint16_t got[NUMBERS];
        const size_t n = kvc_bits_get_rices(&at_once, got, NUMBERS, k);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(one_by_one.bad, 0);
            assert_int_equal(got[i], (uint16_t)kvc_bits_get_rice(&one_by_one, k));
        }
        assert_true(n == NUMBERS || at_once.bad);
        assert_int_equal(at_once.bad, one_by_one.bad);
        assert_int_equal(at_once.at, one_by_one.at);
        free(exact);
    }
}

/* rans.md, "Example". */
static void example(void **state) {
    (void)state;
    static const uint16_t frequency[] = {0, 3, 250, 3}, symbols[] = {2, 2, 1, 2, 3, 2};
    static const uint8_t stored[] = {0x80, 0xfc, 0x7f, 0xfe, 0xbf, 0x00};
    static struct sample sample;
    static struct stream stream;
    uint8_t bytes[KVC_RANS_TABLE_BOUND];
    assert_int_equal(check_table(frequency, 4, 8, bytes), 41);
    assert_memory_equal(bytes, stored, sizeof stored);
    sample = (struct sample){
        .bits = 8, .alphabet = 4, .contexts = 1, .lanes = 2, .rows = 1, .n = {6}, .total = 6};
    memcpy(sample.frequency[0], frequency, sizeof frequency);
    memcpy(sample.symbol, symbols, sizeof symbols);
    check_sample(&sample, &stream);
    assert_int_equal(stream.size, 0);
    assert_int_equal(stream.state[0], 0x1d20c396);
    assert_int_equal(stream.state[1], 0x000112e1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(example),           cmocka_unit_test(rice_codes_at_once),
        cmocka_unit_test(normalised_tables), cmocka_unit_test(damaged_tables),
        cmocka_unit_test(refused_tables),
    };
    return cmocka_run_group_tests_name("rans_tables", tests, NULL, NULL);
}
