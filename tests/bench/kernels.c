/* kernels.c: every kernel of every table that this CPU runs beside memcpy, in cache. Not for stages
 * and files. */
#include "tests/bench/bench.h"

#include "codecs/rans.h"
#include "codecs/tensor.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    ROWS = 16,
    N = 1024,
    VALUES = ROWS * N,
    PERIOD = 64,
    BITS = 11,
    SHIFT = 6,
    WIDTH = 3,
    GROUP = 32,
    HEAD = 128
};

enum { OUTPUTS = 64, INPUTS = 384 }; /* of dot_rows */
static const struct kvc_word_format bf16 = {15, 16, SHIFT, 0};

/* What kernels read and write: bf16 rows, and all that stages make of them. */
static struct {
    uint16_t words[VALUES], symbols[VALUES], out[VALUES], bias[N], context[N];
    uint8_t low[VALUES], rotated_low[VALUES], rotated_high[VALUES];
    uint8_t packed[KVC_PACKED(VALUES, SHIFT)], narrow[KVC_PACKED(VALUES, WIDTH)],
        stream[KVC_RANS_BOUND(VALUES)];
    float values[VALUES], mean[N], partner[N], variance[N], sums[4][N];
    float cosine[PERIOD], sine[PERIOD], step_cosine[PERIOD], step_sine[PERIOD];
    struct kvc_rans_symbol encoding[KVC_RANS_SYMBOLS];
    uint32_t decoding[(1 << BITS) + KVC_RANS_SLACK];
    struct kvc_rans_decoder decoder;
    float result[VALUES], exponents[VALUES], low_end[N], step[N], inverse[N]; /* of lossy stages */
    uint8_t codes[VALUES];
    float unit[N], sparse[VALUES / HEAD], turned[VALUES]; /* of the transform codec */
    int32_t integers[VALUES], small[VALUES];
    uint16_t others[HEAD];
    uint8_t limit[HEAD];
    double angle[2][2 * N];
    /* of predictions */
    int8_t made_small[VALUES], inputs[OUTPUTS * INPUTS], weights[OUTPUTS * INPUTS];
    uint64_t hash;
} d;

static const uint8_t *words(void) {
    return (const uint8_t *)d.words;
}

static uint8_t *out(void) {
    return (uint8_t *)d.out;
}

static void copy(const struct kvc_kernels *k) {
    (void)k;
    memcpy(d.out, d.words, sizeof d.out);
    __asm__ volatile("" ::"r"(d.out) : "memory"); /* else the compiler may leave it out */
}

static void hash(const struct kvc_kernels *k) {
    d.hash += k->hash(words(), sizeof d.words, d.hash);
}

static void digest(const struct kvc_kernels *k) {
    d.hash += k->digest_rows(words(), N * sizeof d.words[0], 0, ROWS);
}

static void split_2(const struct kvc_kernels *k) {
    k->split_planes(out(), words(), VALUES, 2);
}

static void merge_2(const struct kvc_kernels *k) {
    k->merge_planes(out(), words(), VALUES, 2);
}

static void transpose_2(const struct kvc_kernels *k) {
    k->transpose_2(out(), 2 * ROWS, words(), 2 * N, ROWS, N);
}

static void split_4(const struct kvc_kernels *k) {
    k->split_planes(out(), words(), VALUES / 2, 4);
}

static void merge_4(const struct kvc_kernels *k) {
    k->merge_planes(out(), words(), VALUES / 2, 4);
}

static void from_f16(const struct kvc_kernels *k) {
    k->f16_to_f32(d.values, words(), VALUES);
}

static void from_bf16(const struct kvc_kernels *k) {
    k->bf16_to_f32(d.values, words(), VALUES);
}

static void model_sums(const struct kvc_kernels *k) {
    const struct kvc_model_sums sums = {d.sums[0], d.sums[1], d.sums[2], d.sums[3]};
    k->model_sums(&sums, d.values, VALUES / N, d.cosine, d.sine, d.step_cosine, d.step_sine, N,
                  PERIOD);
}

static void model_words(const struct kvc_kernels *k) {
    const struct kvc_model_channels channels = {d.mean, d.partner, d.variance};
    for (size_t i = 0; i < VALUES; i += N)
        k->model_words(d.bias, d.context, &channels, d.cosine, d.sine, N, PERIOD, &bf16, 0);
}

/* Stages turn one head's channels once a row; here as many as there are values. */
/* The angles of a block: its head's pairs, once. */
static void model_angles(const struct kvc_kernels *k) {
    k->model_angles(d.step_cosine, d.step_sine, d.angle[0], PERIOD / 2);
}

static void cut_words(const struct kvc_kernels *k) {
    for (size_t i = 0; i < VALUES; i += N)
        k->cut_words(d.symbols + i, d.low + i, d.words + i, d.bias, d.context, N, SHIFT, 0xffff);
}

static void join_words(const struct kvc_kernels *k) {
    for (size_t i = 0; i < VALUES; i += N)
        k->join_words(d.out + i, d.symbols + i, d.bias, d.low + i, N, SHIFT, 0xffff);
}

static void cut_rotated(const struct kvc_kernels *k) {
    for (size_t i = 0; i < VALUES; i += N)
        k->cut_rotated(d.rotated_low + i, d.rotated_high + i, d.words + i, d.bias, N);
}

static void join_rotated(const struct kvc_kernels *k) {
    k->join_rotated(out(), 2 * N, d.rotated_low, d.rotated_high, N, d.bias, VALUES / N, N, 0);
}

static void pack_6(const struct kvc_kernels *k) {
    k->pack_bits(d.packed, d.low, VALUES, SHIFT);
}

static void unpack_6(const struct kvc_kernels *k) {
    k->unpack_bits(out(), d.packed, VALUES, SHIFT);
}

static void pack_3(const struct kvc_kernels *k) {
    k->pack_bits(d.narrow, d.low, VALUES, WIDTH);
}

static void unpack_3(const struct kvc_kernels *k) {
    k->unpack_bits(out(), d.narrow, VALUES, WIDTH);
}

static void encode(const struct kvc_kernels *k) {
    struct kvc_rans_encoder r;
    kvc_rans_encode_begin(&r, KVC_RANS_LANES, d.stream + sizeof d.stream);
    for (size_t i = VALUES; i > 0; i -= N)
        k->rans_encode(&r, d.symbols + i - N, N, d.encoding, BITS);
    memcpy(d.decoder.x, r.x, sizeof r.x);
    d.decoder.next = r.next;
}

static void decode(const struct kvc_kernels *k) {
    struct kvc_rans_decoder r = d.decoder;
    for (size_t i = 0; i < VALUES; i += N)
        k->rans_decode(&r, d.out + i, d.context, N, d.decoding, BITS);
}

/* Decodes half of the rows of each of two streams: as many as decode(). */
static void decode_two(const struct kvc_kernels *k) {
    struct kvc_rans_decoder r[2] = {d.decoder, d.decoder};
    for (size_t i = 0; i < VALUES / 2; i += N) {
        const struct kvc_rans_row a = {&r[0], d.out + i, d.context, d.decoding, BITS};
        const struct kvc_rans_row b = {&r[1], d.out + VALUES / 2 + i, d.context, d.decoding, BITS};
        if (k->rans_decode_two) {
            k->rans_decode_two(&a, &b, N);
        } else {
            k->rans_decode(a.r, a.symbols, a.base, N, a.table, a.bits);
            k->rans_decode(b.r, b.symbols, b.base, N, b.table, b.bits);
        }
    }
}

static void to_f16(const struct kvc_kernels *k) {
    k->f32_to_f16(out(), d.values, VALUES);
}

static void to_bf16(const struct kvc_kernels *k) {
    k->f32_to_bf16(out(), d.values, VALUES);
}

static void widen_ranges(const struct kvc_kernels *k) {
    for (size_t i = 0; i < VALUES; i += N)
        k->widen_ranges(d.result, d.result + N + HEAD, d.values + i, N);
}

static void range(const struct kvc_kernels *k) {
    float low, high;
    for (size_t i = 0; i < VALUES; i += GROUP) k->range(d.values + i, GROUP, &low, &high);
}

/* No value, as of most vectors, is beyond. */
static void find_beyond(const struct kvc_kernels *k) {
    static uint16_t index[N];
    const float low = -0x1p100f, high = 0x1p100f;
    for (size_t i = 0; i < VALUES; i += N) k->find_beyond(index, d.values + i, &low, &high, N, 0);
}

static void quantise_channels(const struct kvc_kernels *k) {
    for (size_t i = 0; i < VALUES; i += N)
        k->quantise(d.codes + i, d.values + i, d.low_end, d.inverse, N, 1, 15);
}

static void quantise_groups(const struct kvc_kernels *k) {
    for (size_t i = 0; i < VALUES; i += N)
        k->quantise(d.codes + i, d.values + i, d.low_end, d.inverse, N, GROUP, 15);
}

static void dequantise_channels(const struct kvc_kernels *k) {
    for (size_t i = 0; i < VALUES; i += N)
        k->dequantise(d.result + i, d.codes + i, d.step, d.low_end, N, 1);
}

static void dequantise_groups(const struct kvc_kernels *k) {
    for (size_t i = 0; i < VALUES; i += N)
        k->dequantise(d.result + i, d.codes + i, d.step, d.low_end, N, GROUP);
}

static void dequantise_add(const struct kvc_kernels *k) {
    for (size_t i = 0; i < VALUES; i += N)
        k->dequantise_add(d.result + i, d.codes + i, d.step, d.low_end, N, GROUP);
}

/* A row times as many rows of a head as make up the values. */
static void multiply_rows(const struct kvc_kernels *k) {
    k->multiply_rows(d.result, d.step, d.values, VALUES / HEAD, HEAD, HEAD);
}

/* Eight rows of a head's channels times as many of its columns as make up the values. */
static void multiply_tiles(const struct kvc_kernels *k) {
    enum { TILES = 4 };
    for (size_t i = 0; i + HEAD * TILES * KVC_TILE <= VALUES; i += HEAD * TILES * KVC_TILE)
        k->multiply_tiles(d.result, TILES * KVC_TILE, d.step, 0, 8, d.values + i, HEAD, TILES);
}

/* The Gram matrix of as many rows of a head as make up the values. */
static void add_gram(const struct kvc_kernels *k) {
    static double gram[HEAD * HEAD];
    k->add_gram(gram, d.values, VALUES / HEAD, HEAD, HEAD);
}

/* Thirty-two rows of 64, as equations are solved, as often as make up the values. */
static void subtract_rows(const struct kvc_kernels *k) {
    enum { LINES = 32, COLUMNS = 64 };
    static double y[COLUMNS], x[LINES * COLUMNS], s[LINES];
    for (size_t i = 0; i < VALUES; i += LINES * COLUMNS)
        k->subtract_rows(y, x, COLUMNS, s, 1, LINES, COLUMNS);
}

/* Sixty-four rows of inputs times the weights of as many outputs as make up the values. */
static void dot_rows(const struct kvc_kernels *k) {
    const struct kvc_dot_matrix m = {OUTPUTS, INPUTS, d.weights, d.values, d.values};
    for (size_t i = 0; i < VALUES; i += OUTPUTS * OUTPUTS)
        k->dot_rows(d.result + i, d.inputs, OUTPUTS, &m);
}

static void add_squares(const struct kvc_kernels *k) {
    for (size_t i = 0; i < VALUES; i += HEAD) k->add_squares(d.result, d.values + i, HEAD);
}

static void add_scaled(const struct kvc_kernels *k) {
    for (size_t i = 0; i < VALUES; i += HEAD) k->add_scaled(d.result, d.values + i, 0.5f, HEAD);
}

static void scale(const struct kvc_kernels *k) {
    k->scale(d.result, d.values, 0.5f, VALUES);
}

static void dot(const struct kvc_kernels *k) {
    for (size_t i = 0; i < VALUES; i += HEAD)
        d.result[i / HEAD] = k->dot(d.values, d.values + i, HEAD);
}

/* In place: of values below 1, as they then stay. */
static void exponentials(const struct kvc_kernels *k) {
    d.sums[0][0] = k->exponentials(d.exponents, VALUES, 1);
}

static void multiply(const struct kvc_kernels *k) {
    for (size_t i = 0; i < VALUES; i += N) k->multiply(d.unit, d.unit, N);
}

static void multiply_sparse(const struct kvc_kernels *k) {
    k->multiply_sparse(d.result, HEAD, d.sparse, 0, 1, d.values, VALUES / HEAD, HEAD, HEAD);
}

static void angles(const struct kvc_kernels *k) {
    for (size_t i = 0; i < VALUES; i += N)
        k->angles(d.sums[0], d.sums[1], d.angle[0], d.angle[1], N);
}

static void turn_halves(const struct kvc_kernels *k) {
    for (size_t i = 0; i < VALUES; i += 2 * PERIOD)
        k->turn_halves(d.turned + i, d.turned + i + PERIOD, d.cosine, d.sine, PERIOD);
}

static void turn_pairs(const struct kvc_kernels *k) {
    for (size_t i = 0; i < VALUES; i += 2 * PERIOD)
        k->turn_pairs(d.turned + i, d.cosine, d.sine, PERIOD);
}

static void symbols_to_floats(const struct kvc_kernels *k) {
    for (size_t i = 0; i < VALUES; i += HEAD)
        k->symbols_to_floats(d.result + i, d.symbols + i, HEAD, 512, 0.5f);
}

static void round_codes(const struct kvc_kernels *k) {
    for (size_t i = 0; i < VALUES; i += HEAD)
        k->round_codes(d.integers + i, d.values + i, HEAD, 2, 1 << 24);
}

static void small_codes(const struct kvc_kernels *k) {
    for (size_t i = 0; i < VALUES; i += N)
        k->small_codes(d.made_small + i, d.values + i, d.mean, d.variance, N);
}

static void codes_to_symbols(const struct kvc_kernels *k) {
    for (size_t i = 0; i < VALUES; i += HEAD)
        k->codes_to_symbols(d.out + i, d.others, d.small + i, d.context, d.limit, HEAD, 32);
}

static const struct kernel {
    const char *name;
    void (*run)(const struct kvc_kernels *k);
    int alone; /* 1: the same whatever the table */
} kernels[] = {
    {"memcpy", copy, 1}, /* the first: others are compared with it */
    {"hash", hash, 0},
    {"digest_rows", digest, 0},
    {"split_planes, 2 bytes", split_2, 0},
    {"merge_planes, 2 bytes", merge_2, 0},
    {"transpose_2, 16 rows", transpose_2, 0},
    {"split_planes, 4 bytes", split_4, 0},
    {"merge_planes, 4 bytes", merge_4, 0},
    {"f16_to_f32", from_f16, 0},
    {"bf16_to_f32", from_bf16, 0},
    {"model_sums", model_sums, 0},
    {"model_words", model_words, 0},
    {"model_angles, 32 pairs", model_angles, 0},
    {"cut_words", cut_words, 0},
    {"join_words", join_words, 0},
    {"cut_rotated", cut_rotated, 0},
    {"join_rotated", join_rotated, 0},
    {"pack_bits, 6 bits", pack_6, 0},
    {"unpack_bits, 6 bits", unpack_6, 0},
    {"pack_bits, 3 bits", pack_3, 0},
    {"unpack_bits, 3 bits", unpack_3, 0},
    {"rans_encode", encode, 0},
    {"rans_decode", decode, 0},
    {"rans_decode, two streams", decode_two, 0},
    {"f32_to_f16", to_f16, 0},
    {"f32_to_bf16", to_bf16, 0},
    {"widen_ranges", widen_ranges, 0},
    {"range, 32 values", range, 0},
    {"find_beyond", find_beyond, 0},
    {"quantise, by channel", quantise_channels, 0},
    {"quantise, by 32", quantise_groups, 0},
    {"dequantise, by channel", dequantise_channels, 0},
    {"dequantise, by 32", dequantise_groups, 0},
    {"dequantise_add, by 32", dequantise_add, 0},
    {"multiply_rows, 128x128", multiply_rows, 0},
    {"multiply_tiles, 8 rows", multiply_tiles, 0},
    {"add_gram, 128 channels", add_gram, 0},
    {"subtract_rows, 64 values", subtract_rows, 0},
    {"add_scaled, 128 values", add_scaled, 0},
    {"add_squares, 128 values", add_squares, 0},
    {"scale", scale, 0},
    {"dot, 128 values", dot, 0},
    {"exponentials", exponentials, 0},
    {"multiply", multiply, 0},
    {"multiply_sparse, 1 of 4", multiply_sparse, 0},
    {"angles", angles, 0},
    {"turn_halves", turn_halves, 0},
    {"turn_pairs", turn_pairs, 0},
    {"symbols_to_floats", symbols_to_floats, 0},
    {"round_codes", round_codes, 0},
    {"codes_to_symbols", codes_to_symbols, 0},
    {"small_codes", small_codes, 0},
    {"dot_rows, 384 inputs", dot_rows, 0},
};
enum { KERNELS = sizeof kernels / sizeof kernels[0] };

static double uniform(void) {
    static uint32_t state = 1;
    state = state * 1664525 + 1013904223;
    return (state >> 8) / 16777216.0;
}

/* Normal values with a spread for each channel, as K and V have, the model that knows those, and
 * their symbols. */
static void fill(void) {
    static uint32_t count[KVC_RANS_SYMBOLS];
    static uint16_t frequency[KVC_RANS_SYMBOLS];
    const struct kvc_kernels *k = &kvc_kernels_ref;
    for (size_t i = 0; i < N; i++) d.variance[i] = (float)exp2(round(6 * sin((double)i * 12.9898)));
    for (size_t i = 0; i < VALUES; i++) {
        double normal = sqrt(-2 * log(uniform() + 1e-12)) * cos(6.283185307179586 * uniform());
        d.words[i] = kvc_float_to_bf16((float)(sqrt(d.variance[i % N]) * normal));
    }
    for (size_t i = 0; i < N; i++) {
        d.step[i] = (float)sqrt(d.variance[i]) / 2; /* four bits a value, over eight spreads */
        d.inverse[i] = 1 / d.step[i];
        d.low_end[i] = -7.5f * d.step[i];
    }
    for (size_t i = 0; i < N; i++) d.unit[i] = 1;
    for (size_t i = 0; i < VALUES / HEAD; i++) d.sparse[i] = i % 4 ? 0 : 1;
    for (size_t i = 0; i < VALUES; i++)
        d.turned[i] = (float)(i % HEAD), d.small[i] = (int32_t)(i * 7 % 16) - 8;
    memset(d.limit, 7, sizeof d.limit);
    for (size_t i = 0; i < OUTPUTS * INPUTS; i++)
        d.inputs[i] = (int8_t)((int)(i * 31 % 255) - 127),
        d.weights[i] = (int8_t)((int)(i % 255) - 127);
    for (size_t i = 0; i < N; i++) {
        d.angle[0][i] = d.angle[1][i] = cos((double)i);
        d.angle[0][N + i] = d.angle[1][N + i] = sin((double)i);
    }
    for (size_t i = 0; i < PERIOD; i++) {
        d.cosine[i] = d.step_cosine[i] = (float)cos(exp(-0.15 * (double)i));
        d.sine[i] = d.step_sine[i] = (float)sin(exp(-0.15 * (double)i));
    }
    from_bf16(k);
    model_words(k); /* means are 0, so every context is: one table serves all */
    cut_words(k);
    cut_rotated(k);
    for (size_t i = 0; i < VALUES; i++) count[d.symbols[i]]++;
    kvc_rans_normalise(frequency, count, KVC_RANS_SYMBOLS, BITS);
    kvc_rans_encoding_table(d.encoding, frequency, KVC_RANS_SYMBOLS);
    kvc_rans_decoding_table(d.decoding, frequency, KVC_RANS_SYMBOLS);
    d.decoder.lanes = KVC_RANS_LANES;
    d.decoder.end = d.stream + sizeof d.stream;
    encode(k);
    decode(k);
    if (memcmp(d.out, d.symbols, sizeof d.out) != 0) give_up("rANS", "other symbols came back");
}

struct call {
    const struct kernel *kernel;
    const struct kvc_kernels *table;
};

static void run(struct job *job) {
    const struct call *call = job->what;
    call->kernel->run(call->table);
}

void bench_kernels(void) {
    static struct line line[KERNELS];
    static struct call calls[KERNELS][MAX_JOBS];
    const struct kvc_kernels *table[MAX_JOBS];
    unsigned tables = 0;
    for (const char *const *name = kvc_kernels_names(); *name && tables < MAX_JOBS; name++)
        if (kvc_kernels_find(*name)) table[tables++] = kvc_kernels_find(*name);
    fill();
    for (size_t i = 0; i < KERNELS; i++) {
        line[i].bytes = sizeof d.words;
        for (unsigned j = 0; j < (kernels[i].alone ? 1 : tables); j++) {
            calls[i][j] = (struct call){&kernels[i], table[j]};
            line[i].job[j].run = run;
            line[i].job[j].what = &calls[i][j];
        }
    }
    race(line, KERNELS);
    printf("Kernels, one core, %d rows of %d values of 16 bits in cache: 10^9 values a second (to "
           "memcpy).\n",
           ROWS, N);
    printf("rANS: %.2f bits a value.\n  %-22s",
           8.0 * (double)(d.decoder.end - d.decoder.next) / VALUES, "");
    for (unsigned j = 0; j < tables; j++) printf("%16s", table[j]->name);
    putchar('\n');
    for (size_t i = 0; i < KERNELS; i++) {
        printf("  %-22s", kernels[i].name);
        for (unsigned j = 0; j < MAX_JOBS && line[i].job[j].run; j++)
            printf("%8.3f (%.3f)", rate(&line[i], j) / 2, rate(&line[i], j) / rate(&line[0], 0));
        putchar('\n');
    }
}
