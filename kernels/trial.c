/* trial.c: times the twins of rANS on this CPU. Not for other kernels, whose twins are never slower
 * on a wider instruction set.
 *
 * The instruction sets of a CPU do not tell its fastest rANS. AVX-512 with VNNI gathers where the
 * other twins load and shuffle; some CPUs run gathers in microcode or lower their clock for wide
 * vectors, and are faster with AVX2. A table of CPUs would never be complete, so all are tried. */
#include "kernels/trial.h"

#include <time.h>

/* Symbols a run, rows of them, and runs of each kernel. The fastest run counts: an interrupt spoils
 * one or two. */
enum { SYMBOLS = 2048, ROW = 256, RUNS = 12, BITS = 11, KINDS = 64 };

struct trial {
    uint16_t symbols[SYMBOLS], out[SYMBOLS], base[ROW];
    uint8_t stream[2 * SYMBOLS + 16 + 2 * KVC_RANS_LANES];
    uint32_t decoding[1 << BITS];
    struct kvc_rans_symbol encoding[KINDS];
};

/* Frequencies are powers of two, whose reciprocals need no rounding: 8 symbols of 128, 8 of 64, 16
 * of 16, 32 of 8. A symbol takes 5.1 bits, about as many as those of caches. */
static unsigned log_frequency(unsigned symbol) {
    return symbol < 8 ? 7 : symbol < 16 ? 6 : symbol < 32 ? 4 : 3;
}

static void fill(struct trial *t) {
    uint32_t state = 1;
    for (unsigned symbol = 0, first = 0; symbol < KINDS; symbol++) {
        const unsigned log = log_frequency(symbol), frequency = 1u << log;
        t->encoding[symbol].reciprocal = UINT32_C(1) << 31;
        t->encoding[symbol].packed = KVC_RANS_PACKED(frequency, first, log - 1, 0);
        for (unsigned i = 0; i < frequency; i++)
            t->decoding[first + i] = KVC_RANS_SLOT(symbol, i, frequency);
        first += frequency;
    }
    for (unsigned i = 0; i < ROW; i++) t->base[i] = 0;
    for (unsigned i = 0; i < SYMBOLS; i++) {
        state = state * 1664525 + 1013904223;
        t->symbols[i] = (uint16_t)(t->decoding[state >> (32 - BITS)] & 1023);
    }
}

static void encode_trial(struct trial *t, const struct kvc_kernels *k,
                         struct kvc_rans_decoder *after) {
    struct kvc_rans_encoder r = {.lanes = KVC_RANS_LANES, .next = t->stream + sizeof t->stream};
    for (unsigned l = 0; l < KVC_RANS_LANES; l++) r.x[l] = KVC_RANS_START;
    for (unsigned i = SYMBOLS; i; i -= ROW)
        k->rans_encode(&r, t->symbols + i - ROW, ROW, t->encoding, BITS);
    *after = (struct kvc_rans_decoder){.lanes = KVC_RANS_LANES,
                                       .next = r.next,
                                       .end = t->stream + sizeof t->stream};
    for (unsigned l = 0; l < KVC_RANS_LANES; l++) after->x[l] = r.x[l];
}

static void decode_trial(struct trial *t, const struct kvc_kernels *k,
                         const struct kvc_rans_decoder *from) {
    struct kvc_rans_decoder r = *from;
    for (unsigned i = 0; i < SYMBOLS; i += ROW)
        k->rans_decode(&r, t->out + i, t->base, ROW, t->decoding, BITS);
}

/* Decodes half of the symbols of each of two streams. */
static void decode_two_trials(struct trial *t, const struct kvc_kernels *k,
                              const struct kvc_rans_decoder *from) {
    struct kvc_rans_decoder r[2] = {*from, *from};
    for (unsigned i = 0; i < SYMBOLS / 2; i += ROW) {
        const struct kvc_rans_row a = {&r[0], t->out + i, t->base, t->decoding, BITS};
        const struct kvc_rans_row b = {&r[1], t->out + SYMBOLS / 2 + i, t->base, t->decoding, BITS};
        k->rans_decode_two(&a, &b, ROW);
    }
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Returns the table of minimum time; of tables within 3 % the first. */
static const struct kvc_kernels *fastest(const struct kvc_kernels *const *table,
                                         const uint64_t *time, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (time[i] < time[best] - time[best] / 32) best = i;
    return table[best];
}

void kvc_trial_rans(const struct kvc_kernels *const *table, size_t n,
                    const struct kvc_kernels **best_encode, const struct kvc_kernels **best_decode,
                    const struct kvc_kernels **best_two) {
    enum { MOST = 8 };
    uint64_t encoding[MOST], decoding[MOST], two[MOST];
    struct trial t;
    struct kvc_rans_decoder packed;
    if (n > MOST) n = MOST;
    fill(&t);
    for (size_t i = 0; i < n; i++) encoding[i] = decoding[i] = two[i] = UINT64_MAX;
    for (unsigned run = 0; run < RUNS; run++)
        for (size_t i = 0; i < n; i++) {
            const uint64_t begin = now();
            encode_trial(&t, table[i], &packed);
            const uint64_t between = now();
            decode_trial(&t, table[i], &packed);
            const uint64_t end = now();
            if (table[i]->rans_decode_two) decode_two_trials(&t, table[i], &packed);
            const uint64_t after = table[i]->rans_decode_two ? now() : end + (end - between);
            if (between - begin < encoding[i]) encoding[i] = between - begin;
            if (end - between < decoding[i]) decoding[i] = end - between;
            if (after - end < two[i]) two[i] = after - end;
        }
    *best_encode = fastest(table, encoding, n);
    *best_decode = fastest(table, decoding, n);
    *best_two = fastest(table, two, n);
}
