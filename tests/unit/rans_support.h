/* rans_support.h: a slow coder of rANS, value by value as rans.md says, and the kernels in its
 * terms. Not for other tests. */
#ifndef RANS_SUPPORT_H
#define RANS_SUPPORT_H

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

static inline uint32_t random_word(void) {
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (uint32_t)(random_state >> 32);
}

static inline uint32_t random_below(uint32_t n) {
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

static inline uint64_t sum_below(const uint16_t *frequency, unsigned symbol) {
    uint64_t sum = 0;
    for (unsigned s = 0; s < symbol; s++) sum += frequency[s];
    return sum;
}

/* Encodes a sample from lanes that begin at x; the lanes' ends are the stream's states. */
static inline void slow_encode(const struct sample *t, const uint32_t *begin, struct stream *out) {
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

static inline void slow_decode(const struct sample *t, const struct stream *in, struct outcome *o) {
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
static inline void *exact_copy(const void *from, size_t size) {
    uint8_t *copy = malloc(size);
    assert_true(copy || !size);
    if (size) memcpy(copy, from, size);
    return copy;
}

static inline void kernel_encode(const struct kvc_kernels *k, const struct sample *t,
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

static inline int begin_decoding(struct kvc_rans_decoder *r, const struct sample *t,
                                 const struct stream *in, const uint8_t *words,
                                 struct kvc_error *e) {
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

static inline void running_begin(struct running *x, const struct sample *t,
                                 const struct stream *in) {
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

static inline struct kvc_rans_row running_row(struct running *x, size_t n) {
    x->base = malloc(n * sizeof *x->base);
    x->symbols = malloc(n * sizeof *x->symbols);
    for (size_t i = 0; i < n; i++)
        x->base[i] = (uint16_t)((size_t)x->t->context[x->at + i] << x->t->bits);
    return (struct kvc_rans_row){&x->r, x->symbols, x->base, x->table, x->t->bits};
}

static inline void running_take(struct running *x, size_t n, struct outcome *o) {
    if (n) memcpy(o->symbol + x->at, x->symbols, n * sizeof *x->symbols);
    x->at += n;
    free(x->base);
    free(x->symbols);
}

static inline void running_end(struct running *x, struct outcome *o) {
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

static inline void kernel_decode(const struct kvc_kernels *k, const struct sample *t,
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
static inline void kernel_decode_two(const struct kvc_kernels *k, const struct sample *const t[2],
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

static inline void assert_same_stream(const struct sample *t, const struct stream *a,
                                      const struct stream *b) {
    assert_int_equal(a->size, b->size);
    assert_memory_equal(a->words, b->words, a->size);
    assert_memory_equal(a->state, b->state, t->lanes * sizeof *a->state);
}

static inline void assert_same_outcome(const struct sample *t, const struct outcome *a,
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
static inline void check_decoding(const struct sample *t, const struct stream *in,
                                  struct outcome *want) {
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
static inline void check_sample(const struct sample *t, struct stream *stream) {
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

#endif
