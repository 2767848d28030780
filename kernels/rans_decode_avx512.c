/* rans_decode_avx512.c: AVX-512 twins of the decoders of rans_ref.c, sixteen lanes at once; same
 * bytes for every input. Slots of the table are gathered, or loaded one by one: which is faster
 * differs between CPUs, and trial.c finds out. Not compiled on other machines. For the encoder:
 * rans_avx512.c. */
#include "kernels/twins.h"

#if defined(__x86_64__)

#include "kernels/rans_state.h"
#include "kernels/vec_avx2.h"

#include <immintrin.h>
#include <string.h>

enum { STEP_BYTES = 2 * KVC_RANS_LANES }; /* of words, at most, that a step of all lanes takes */

struct decoding {
    const uint32_t *table;
    __m512i mask, symbol, offset, bits; /* of a state, and of a slot's fields; log2 of the slots */
};

/* GCC's header has a macro without optimisation, which takes a mask as a signed number. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
static inline __attribute__((always_inline)) __m512i gather(__m512i at, const uint32_t *table) {
    return _mm512_i32gather_epi32(at, table, 4);
}
#pragma GCC diagnostic pop

/* Returns the slots at sixteen indices. `gathers`: by the instruction for it. */
static inline __attribute__((always_inline)) __m512i slots_at(__m512i at, const uint32_t *table,
                                                              int gathers) {
    if (gathers) return gather(at, table);
    return _mm512_inserti64x4(_mm512_castsi256_si512(look_up_32(table, _mm512_castsi512_si256(at))),
                              look_up_32(table, _mm512_extracti64x4_epi64(at, 1)), 1);
}

/* Returns sixteen states after one symbol each, before they take words; *take gets a bit for each
 * that is to take one. */
static inline __attribute__((always_inline)) __m512i
decode_sixteen(__m512i x, const uint16_t *base, uint16_t *symbols, __mmask16 *take,
               const struct decoding *d, int gathers) {
    __m512i at = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)base));
    __m512i slot = slots_at(_mm512_add_epi32(at, _mm512_and_si512(x, d->mask)), d->table, gathers);
    _mm256_storeu_si256((__m256i *)(void *)symbols,
                        _mm512_cvtepi32_epi16(_mm512_and_si512(slot, d->symbol)));
    x = _mm512_add_epi32(_mm512_mullo_epi32(_mm512_srli_epi32(slot, 21),
                                            _mm512_srlv_epi32(x, d->bits)),
                         _mm512_and_si512(_mm512_srli_epi32(slot, 10), d->offset));
    *take = _mm512_cmplt_epu32_mask(x, _mm512_set1_epi32(1 << 16));
    return x;
}

/* The words of all lanes are loaded from `next` on, whichever lanes take them. */
static inline __attribute__((always_inline)) __m512i take_words(__m512i x, __mmask16 take,
                                                                const uint8_t *next) {
    __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)next));
    return _mm512_mask_or_epi32(x, take, _mm512_slli_epi32(x, 16),
                                _mm512_maskz_expand_epi32(take, words));
}

/* The states of a stream, 16 lanes each, and its words. */
struct lanes {
    __m512i low, high;
    const uint8_t *next;
};

static inline struct decoding decoding_of(const uint32_t *table, unsigned bits) {
    return (struct decoding){table, _mm512_set1_epi32((1 << bits) - 1), _mm512_set1_epi32(1023),
                             _mm512_set1_epi32(2047), _mm512_set1_epi32((int)bits)};
}

static inline struct lanes load_lanes(const struct kvc_rans_decoder *r) {
    return (struct lanes){_mm512_loadu_si512(r->x), _mm512_loadu_si512(r->x + 16), r->next};
}

static inline void store_lanes(struct kvc_rans_decoder *r, const struct lanes *x) {
    r->next = x->next;
    _mm512_storeu_si512(r->x, x->low);
    _mm512_storeu_si512(r->x + 16, x->high);
}

/* All lanes by one symbol each. */
static inline __attribute__((always_inline)) void step(struct lanes *x, const uint16_t *base,
                                                       uint16_t *symbols, const struct decoding *d,
                                                       int gathers) {
    __mmask16 low, high;
    __m512i a = decode_sixteen(x->low, base, symbols, &low, d, gathers),
            b = decode_sixteen(x->high, base + 16, symbols + 16, &high, d, gathers);
    const uint8_t *middle = x->next + 2 * __builtin_popcount(low);
    x->low = take_words(a, low, x->next);
    x->high = take_words(b, high, middle);
    x->next = middle + 2 * __builtin_popcount(high);
}

/* Decodes with fewer words left than a step may read, of which a copy is followed by zeros. Returns
 * the symbols that are decoded: fewer than n, or than whole steps, once a word is missing. */
static size_t decode_end(struct kvc_rans_decoder *r, uint16_t *symbols, const uint16_t *base,
                         size_t n, const struct decoding *d) {
    uint8_t words[2 * STEP_BYTES] = {0};
    const size_t left = (size_t)(r->end - r->next);
    const uint8_t *const end = words + left;
    struct lanes x = load_lanes(r);
    size_t i = 0;
    memcpy(words, r->next, left);
    for (x.next = words; i + KVC_RANS_LANES <= n; i += KVC_RANS_LANES) {
        const struct lanes before = x;
        step(&x, base + i, symbols + i, d, 1);
        if (x.next > end) { /* the reference counts the missing ones */
            x = before;
            break;
        }
    }
    x.next = r->end - (end - x.next);
    store_lanes(r, &x);
    return i;
}

void kvc_rans_decode_avx512vnni(struct kvc_rans_decoder *r, uint16_t *symbols, const uint16_t *base,
                                size_t n, const uint32_t *table, unsigned bits) {
    size_t i = 0;
    if (r->lanes == KVC_RANS_LANES) {
        const struct decoding d = decoding_of(table, bits);
        struct lanes x = load_lanes(r);
        for (; i + KVC_RANS_LANES <= n && r->end - x.next >= STEP_BYTES; i += KVC_RANS_LANES)
            step(&x, base + i, symbols + i, &d, 1);
        store_lanes(r, &x);
        if (i + KVC_RANS_LANES <= n) i += decode_end(r, symbols + i, base + i, n - i, &d);
    }
    if (i < n) kvc_rans_decode_ref(r, symbols + i, base + i, n - i, table, bits);
}

/* Decodes rows of two streams with `one` for what is left. A step waits for the step before it: for
 * its slots, product and place among the words. Steps of two streams wait at once. */
static inline __attribute__((always_inline)) void decode_two(const struct kvc_rans_row *a,
                                                             const struct kvc_rans_row *b, size_t n,
                                                             int gathers, kvc_rans_decode_fn *one) {
    size_t i = 0;
    if (a->r->lanes == KVC_RANS_LANES && b->r->lanes == KVC_RANS_LANES) {
        const struct decoding of_a = decoding_of(a->table, a->bits),
                              of_b = decoding_of(b->table, b->bits);
        const uint8_t *const end_a = a->r->end, *const end_b = b->r->end;
        struct lanes x = load_lanes(a->r), y = load_lanes(b->r);
        for (; i + KVC_RANS_LANES <= n && end_a - x.next >= STEP_BYTES &&
               end_b - y.next >= STEP_BYTES;
             i += KVC_RANS_LANES) {
            step(&x, a->base + i, a->symbols + i, &of_a, gathers);
            step(&y, b->base + i, b->symbols + i, &of_b, gathers);
        }
        store_lanes(a->r, &x);
        store_lanes(b->r, &y);
    }
    if (i == n) return;
    one(a->r, a->symbols + i, a->base + i, n - i, a->table, a->bits);
    one(b->r, b->symbols + i, b->base + i, n - i, b->table, b->bits);
}

void kvc_rans_decode_two_avx512vnni(const struct kvc_rans_row *a, const struct kvc_rans_row *b,
                                    size_t n) {
    decode_two(a, b, n, 1, kvc_rans_decode_avx512vnni);
}

void kvc_rans_decode_two_avx512(const struct kvc_rans_row *a, const struct kvc_rans_row *b,
                                size_t n) {
    decode_two(a, b, n, 0, kvc_rans_decode_vec);
}

#else
typedef int kvc_no_rans_decode_avx512; /* ISO C wants one declaration in a file */
#endif
