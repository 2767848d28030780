/* test_rans.c: the rANS kernels of every table against a slow coder written from codecs/rans.md
 * alone, tables of frequencies, and what must be refused. Not for what the symbols mean
 * (test_codecs.c). What the kernels read and write lies in memory of its exact size, so that the
 * address sanitizer sees one byte too many. */
#include "codecs/rans.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static uint64_t random_state = 1;

static uint32_t random_word(void) {
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (uint32_t)(random_state >> 32);
}

static uint32_t random_below(uint32_t n) {
    return (uint32_t)((uint64_t)random_word() * n >> 32);
}

/* --- the slow coder --- */

enum { CONTEXTS = 5, ROWS = 7, SYMBOLS = 3000 }; /* of a sample, at most */

/* Rows of symbols, the context of each, and the contexts' frequencies. */
struct sample {
    unsigned bits, alphabet, contexts, lanes;
    uint16_t frequency[CONTEXTS][KVC_RANS_SYMBOLS];
    size_t rows, n[ROWS], total;
    uint16_t symbol[SYMBOLS], context[SYMBOLS];
};

struct stream {
    uint32_t state[KVC_RANS_LANES];
    uint8_t words[2 * SYMBOLS + 64];
    size_t size; /* bytes of words */
};

/* What decoding a stream leaves. */
struct outcome {
    uint16_t symbol[SYMBOLS];
    uint32_t x[KVC_RANS_LANES];
    size_t taken, missing; /* bytes of words; words */
    int refused;
};

static uint64_t sum_below(const uint16_t *frequency, unsigned symbol) {
    uint64_t sum = 0;
    for (unsigned s = 0; s < symbol; s++) sum += frequency[s];
    return sum;
}

/* Encodes a sample from lanes that begin at x; the lanes' ends are the stream's states. */
static void slow_encode(const struct sample *t, const uint32_t *begin, struct stream *out) {
    static uint16_t word[SYMBOLS];
    size_t words = 0, at = t->total;
    uint64_t lane[KVC_RANS_LANES];
    for (unsigned i = 0; i < t->lanes; i++) lane[i] = begin[i];
    for (size_t row = t->rows; row-- > 0;)
        for (size_t i = t->n[row]; i-- > 0;) {
            const unsigned s = t->symbol[--at];
            const uint16_t *frequency = t->frequency[t->context[at]];
            const uint64_t f = frequency[s], c = sum_below(frequency, s);
            uint64_t x = lane[i % t->lanes];
            while (x >= f << (32 - t->bits)) {
                word[words++] = (uint16_t)(x % 65536);
                x /= 65536;
            }
            lane[i % t->lanes] = ((x / f) << t->bits) + x % f + c;
        }
    for (unsigned i = 0; i < t->lanes; i++) out->state[i] = (uint32_t)lane[i];
    out->size = 2 * words;
    for (size_t i = 0; i < words; i++) { /* the last word given is the first of the stream */
        out->words[2 * i] = (uint8_t)(word[words - 1 - i] % 256);
        out->words[2 * i + 1] = (uint8_t)(word[words - 1 - i] / 256);
    }
}

static void slow_decode(const struct sample *t, const struct stream *in, struct outcome *o) {
    const uint64_t whole = UINT64_C(1) << t->bits;
    size_t at = 0;
    uint64_t lane[KVC_RANS_LANES];
    for (unsigned i = 0; i < t->lanes; i++) lane[i] = in->state[i];
    o->taken = o->missing = 0;
    for (size_t row = 0; row < t->rows; row++)
        for (size_t i = 0; i < t->n[row]; i++, at++) {
            const uint16_t *frequency = t->frequency[t->context[at]];
            uint64_t x = lane[i % t->lanes], slot = x % whole, c = 0;
            unsigned s = 0;
            while (slot >= c + frequency[s]) c += frequency[s++];
            x = frequency[s] * (x / whole) + slot - c;
            if (x < 65536) {
                uint64_t word = 0;
                if (in->size - o->taken >= 2) {
                    word = in->words[o->taken] + 256u * in->words[o->taken + 1];
                    o->taken += 2;
                } else {
                    o->missing++;
                }
                x = x * 65536 + word;
            }
            assert_true(x >= 65536 && x >> 32 == 0);
            lane[i % t->lanes] = x;
            o->symbol[at] = (uint16_t)s;
        }
    o->refused = o->missing || o->taken != in->size;
    for (unsigned i = 0; i < t->lanes; i++) {
        o->x[i] = (uint32_t)lane[i];
        o->refused |= lane[i] != 65536;
    }
}

/* --- the kernels, in the same terms --- */

/* A copy in memory of exactly this size. */
static void *exact_copy(const void *from, size_t size) {
    uint8_t *copy = malloc(size);
    assert_true(copy || !size);
    if (size) memcpy(copy, from, size);
    return copy;
}

static void kernel_encode(const struct kvc_kernels *k, const struct sample *t,
                          const uint32_t *begin, struct stream *out) {
    struct kvc_rans_symbol *table = malloc(t->contexts * t->alphabet * sizeof *table);
    uint8_t *bytes = malloc(KVC_RANS_BOUND(t->total)), *end = bytes + KVC_RANS_BOUND(t->total);
    assert_non_null(table);
    assert_non_null(bytes);
    for (unsigned c = 0; c < t->contexts; c++)
        kvc_rans_encoding_table(table + c * t->alphabet, t->frequency[c], t->alphabet);
    struct kvc_rans_encoder r;
    kvc_rans_encode_begin(&r, t->lanes, end);
    for (unsigned i = 0; i < t->lanes; i++) {
        assert_int_equal(r.x[i], KVC_RANS_START);
        r.x[i] = begin[i];
    }
    size_t at = t->total;
    for (size_t row = t->rows; row-- > 0;) {
        const size_t n = t->n[row];
        at -= n;
        uint16_t *symbols = exact_copy(t->symbol + at, n * sizeof *symbols);
        for (size_t i = 0; i < n; i++)
            symbols[i] = (uint16_t)(symbols[i] + t->context[at + i] * t->alphabet);
        k->rans_encode(&r, symbols, n, table, t->bits);
        free(symbols);
    }
    assert_true(r.next >= bytes + 16 && r.next <= end);
    uint8_t states[4 * KVC_RANS_LANES];
    kvc_rans_encode_end(&r, states);
    for (unsigned i = 0; i < t->lanes; i++)
        out->state[i] = states[4 * i] | (uint32_t)states[4 * i + 1] << 8 |
                        (uint32_t)states[4 * i + 2] << 16 | (uint32_t)states[4 * i + 3] << 24;
    out->size = (size_t)(end - r.next);
    memcpy(out->words, r.next, out->size);
    free(bytes);
    free(table);
}

static int begin_decoding(struct kvc_rans_decoder *r, const struct sample *t,
                          const struct stream *in, const uint8_t *words, struct kvc_error *e) {
    uint8_t states[4 * KVC_RANS_LANES];
    for (unsigned i = 0; i < 4 * t->lanes; i++)
        states[i] = (uint8_t)(in->state[i / 4] >> 8 * (i % 4));
    uint8_t *exact = exact_copy(states, 4 * t->lanes);
    int status = kvc_rans_decode_begin(r, t->lanes, exact, words, in->size, e);
    free(exact);
    return status;
}

/* A stream in decoding. Its words lie at an odd address, as sections may. */
struct running {
    const struct sample *t;
    uint32_t *table;
    uint8_t *bytes, *words;
    uint16_t *base, *symbols; /* of a row */
    size_t at, size;          /* symbols before the row; bytes of words */
    struct kvc_rans_decoder r;
};

static void running_begin(struct running *x, const struct sample *t, const struct stream *in) {
    const size_t whole = (size_t)1 << t->bits;
    uint32_t *roomy = malloc((t->contexts * whole + KVC_RANS_SLACK) * sizeof *roomy);
    struct kvc_error e = {0};
    *x = (struct running){.t = t, .bytes = malloc(in->size + 1), .size = in->size};
    assert_non_null(roomy);
    assert_non_null(x->bytes);
    for (unsigned c = 0; c < t->contexts; c++)
        kvc_rans_decoding_table(roomy + c * whole, t->frequency[c], t->alphabet);
    x->table = exact_copy(roomy, t->contexts * whole * sizeof *roomy);
    x->words = x->bytes + 1;
    memcpy(x->words, in->words, in->size);
    assert_int_equal(begin_decoding(&x->r, t, in, x->words, &e), 0);
    free(roomy);
}

static struct kvc_rans_row running_row(struct running *x, size_t n) {
    x->base = malloc(n * sizeof *x->base);
    x->symbols = malloc(n * sizeof *x->symbols);
    for (size_t i = 0; i < n; i++)
        x->base[i] = (uint16_t)((size_t)x->t->context[x->at + i] << x->t->bits);
    return (struct kvc_rans_row){&x->r, x->symbols, x->base, x->table, x->t->bits};
}

static void running_take(struct running *x, size_t n, struct outcome *o) {
    if (n) memcpy(o->symbol + x->at, x->symbols, n * sizeof *x->symbols);
    x->at += n;
    free(x->base);
    free(x->symbols);
}

static void running_end(struct running *x, struct outcome *o) {
    struct kvc_error e = {0};
    memcpy(o->x, x->r.x, x->t->lanes * sizeof *x->r.x);
    o->taken = (size_t)(x->r.next - x->words);
    o->missing = x->r.missing;
    o->refused = kvc_rans_decode_end(&x->r, &e) != 0;
    if (o->refused) assert_int_equal(e.code, KVC_ERR_DAMAGED);
    assert_ptr_equal(x->r.end, x->words + x->size);
    free(x->bytes);
    free(x->table);
}

static void kernel_decode(const struct kvc_kernels *k, const struct sample *t,
                          const struct stream *in, struct outcome *o) {
    struct running x;
    running_begin(&x, t, in);
    for (size_t row = 0; row < t->rows; row++) {
        const struct kvc_rans_row to = running_row(&x, t->n[row]);
        k->rans_decode(to.r, to.symbols, to.base, t->n[row], to.table, to.bits);
        running_take(&x, t->n[row], o);
    }
    running_end(&x, o);
}

/* Decodes two streams, whose rows have the same sizes, at once. */
static void kernel_decode_two(const struct kvc_kernels *k, const struct sample *const t[2],
                              const struct stream *const in[2], struct outcome *o) {
    struct running x[2];
    for (unsigned i = 0; i < 2; i++) running_begin(&x[i], t[i], in[i]);
    for (size_t row = 0; row < t[0]->rows; row++) {
        const size_t n = t[0]->n[row];
        assert_int_equal(n, t[1]->n[row]);
        const struct kvc_rans_row a = running_row(&x[0], n), b = running_row(&x[1], n);
        k->rans_decode_two(&a, &b, n);
        for (unsigned i = 0; i < 2; i++) running_take(&x[i], n, &o[i]);
    }
    for (unsigned i = 0; i < 2; i++) running_end(&x[i], &o[i]);
}

static void assert_same_stream(const struct sample *t, const struct stream *a,
                               const struct stream *b) {
    assert_int_equal(a->size, b->size);
    assert_memory_equal(a->words, b->words, a->size);
    assert_memory_equal(a->state, b->state, t->lanes * sizeof *a->state);
}

static void assert_same_outcome(const struct sample *t, const struct outcome *a,
                                const struct outcome *b) {
    assert_memory_equal(a->symbol, b->symbol, t->total * sizeof *a->symbol);
    assert_memory_equal(a->x, b->x, t->lanes * sizeof *a->x);
    assert_int_equal(a->taken, b->taken);
    assert_int_equal(a->missing, b->missing);
    assert_int_equal(a->refused, b->refused);
}

static const uint32_t fresh[KVC_RANS_LANES] = {
    65536, 65536, 65536, 65536, 65536, 65536, 65536, 65536, 65536, 65536, 65536,
    65536, 65536, 65536, 65536, 65536, 65536, 65536, 65536, 65536, 65536, 65536,
    65536, 65536, 65536, 65536, 65536, 65536, 65536, 65536, 65536, 65536,
};

/* Every table of kernels decodes this stream, whatever it is, as the slow coder does. */
static void check_decoding(const struct sample *t, const struct stream *in, struct outcome *want) {
    static struct outcome got;
    slow_decode(t, in, want);
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        if (!k) continue;
        kernel_decode(k, t, in, &got);
        assert_same_outcome(t, want, &got);
    }
}

/* ... and encodes and decodes this sample as it does, to the same symbols. */
static void check_sample(const struct sample *t, struct stream *stream) {
    static struct stream got;
    static struct outcome outcome;
    slow_encode(t, fresh, stream);
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        if (!k) continue;
        kernel_encode(k, t, fresh, &got);
        assert_same_stream(t, stream, &got);
    }
    check_decoding(t, stream, &outcome);
    assert_false(outcome.refused);
    assert_memory_equal(outcome.symbol, t->symbol, t->total * sizeof *t->symbol);
}

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
        cmocka_unit_test(example),
        cmocka_unit_test(rice_codes_at_once),
        cmocka_unit_test(kernels_code_as_specified),
        cmocka_unit_test(two_streams_at_once),
        cmocka_unit_test(damaged_streams),
        cmocka_unit_test(states_out_of_range),
        cmocka_unit_test(reciprocals_are_exact),
        cmocka_unit_test(kernels_divide_exactly),
        cmocka_unit_test(normalised_tables),
        cmocka_unit_test(damaged_tables),
        cmocka_unit_test(refused_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
