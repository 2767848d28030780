/* split.c: the default stage: noisy low bits unchanged, the rest entropy-coded in the context of
 * its channel. Spec: split.md. Not for decoding (split_decode.c), opening sections
 * (split_sections.c), devices (split_device.c), the channel model (channels.c) or the coder
 * (rans.c). */
#include "codecs/stages/split/channels.h"
#include "codecs/little_endian.h"
#include "codecs/memory.h"
#include "codecs/planes.h"
#include "codecs/rans.h"
#include "codecs/stage.h"
#include "codecs/stages/split/split_coder.h"
#include "codecs/stages/split/split_device.h"
#include "codecs/stages/split/split_sections.h"
#include "codecs/words.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { STREAM };
/* Bytes of CODES before its words, at most. */
#define HEAD_BOUND(streams)                                       \
    (KVC_SPLIT_HEADER + KVC_CONTEXTS * KVC_RANS_TABLE_BOUND + 4 + \
     (size_t)(streams)*4 * (1 + KVC_RANS_LANES))
enum { FEW_LANES = 2, ALL_LANES = 5 }; /* log2 of lanes: below so many values few of them do */
enum { FEW_VALUES = 16384, FEW_FLOATS = 8192 };
enum { MODEL_ROWS = 96 }; /* with so many rows the channel model is expected to pay for itself */

/* --- parameters --- */

static const struct kvc_arg arguments[] = {{.key = "stream",
                                            .min = KVC_SPLIT_STREAM_LEAST,
                                            .max = KVC_SPLIT_STREAM_MOST,
                                            .fallback = KVC_SPLIT_STREAM}};

/* --- tables --- */

/* log2 of small counts, of which most tables are made. */
enum { SMALL = 256 };
static float small_log2[SMALL];
static pthread_once_t small_once = PTHREAD_ONCE_INIT;

static void fill_small(void) {
    for (unsigned n = 1; n < SMALL; n++) small_log2[n] = log2f((float)n);
}

/* Bits that n occurrences cost at their own frequency, and roughly those of storing the table. */
static double cost_of(const uint32_t *count, unsigned alphabet) {
    double total = 0, sum = 0, stored = 16;
    uint16_t used[KVC_RANS_SYMBOLS];
    const unsigned n = kvc_rans_list_counted(used, count, alphabet);
    pthread_once(&small_once, fill_small);
    for (unsigned i = 0; i < n; i++) {
        const uint32_t c = count[used[i]];
        total += c;
        sum += c * (double)(c < SMALL ? small_log2[c] : log2f((float)c));
        stored += 5;
    }
    return total > 0 ? total * log2(total) - sum + stored : 0;
}

/* The alphabet is 16 symbols or a multiple of them; compilers vectorise loops of 16 without
 * aliasing by themselves. */
static uint64_t sum_of(const uint32_t *count, unsigned alphabet) {
    uint64_t total = 0;
    for (unsigned s = 0; s < alphabet; s += 16, count += 16) {
        uint32_t sum = 0;
        for (unsigned i = 0; i < 16; i++) sum += count[i];
        total += sum;
    }
    return total;
}

static void add_counts(uint32_t *restrict sum, const uint32_t *restrict a,
                       const uint32_t *restrict b, unsigned alphabet) {
    for (unsigned s = 0; s < alphabet; s += 16, sum += 16, a += 16, b += 16)
        for (unsigned i = 0; i < 16; i++) sum[i] = a[i] + b[i];
}

/* Joins neighbouring contexts where one table is cheaper than two; count[c] is emptied into the
 * table that serves c. Returns a bit per context that has a table; *used gets one per context that
 * has symbols. */
static unsigned join_contexts(uint32_t count[KVC_CONTEXTS][KVC_RANS_SYMBOLS], unsigned alphabet,
                              unsigned *used) {
    enum { FEW = 4096 }; /* with more values a table of its own is never worth less */
    double cost[KVC_CONTEXTS];
    unsigned known = 0; /* a bit per context whose cost was asked for */
    uint64_t total[KVC_CONTEXTS] = {0};
    uint32_t joined[KVC_RANS_SYMBOLS];
    unsigned tables = 0, last = 0;
    for (unsigned c = 0; c < KVC_CONTEXTS; c++) {
        total[c] = sum_of(count[c], alphabet);
        if (!total[c]) continue;
        *used |= 1u << c;
        if (tables && (total[c] < FEW || total[last] < FEW)) {
            if (!(known >> last & 1)) cost[last] = cost_of(count[last], alphabet);
            cost[c] = cost_of(count[c], alphabet);
            known |= 1u << last | 1u << c;
            add_counts(joined, count[last], count[c], alphabet);
            double both = cost_of(joined, alphabet);
            if (both <= cost[last] + cost[c]) {
                memcpy(count[last], joined, alphabet * sizeof *joined);
                cost[last] = both;
                total[last] += total[c];
                continue;
            }
        }
        last = c;
        tables |= 1u << c;
    }
    return tables;
}

/* Finer tables pay once a block is large against the time it takes to build and the bits it takes
 * to store them. */
static unsigned table_bits(size_t values, unsigned alphabet) {
    unsigned bits = KVC_RANS_MAX_BITS;
    while (bits > KVC_RANS_MIN_BITS && values < (size_t)4 << bits && alphabet <= 1u << (bits - 1))
        bits--;
    return bits;
}

/* --- encoding --- */

struct work {
    const struct kvc_words *form;
    const struct kvc_dtype_info *info;
    struct kvc_channels model;
    size_t rows, n, values;   /* values = rows * n */
    uint16_t *words;          /* of the whole block; the rows themselves where those are words */
    uint16_t *symbols;        /* encoding: of the whole block, context << 10 | symbol */
    uint16_t *bias, *context; /* of a row */
    uint16_t *moved;          /* of a row: words less their biases */
    const float *ahead;       /* predictions of the block's values, or NULL */
    uint8_t *low;             /* low bits, one value a byte */
    uint8_t *bytes;           /* streams */
    struct tally *tally;
    uint32_t (*count)[KVC_RANS_SYMBOLS];
    void *memory[3];
};

static void work_free(struct work *w) {
    kvc_channels_free(&w->model);
    for (unsigned i = 0; i < 3; i++) free(w->memory[i]);
}

static size_t rows_per_stream(const struct kvc_stage_args *args, const struct work *w) {
    size_t rows = ((size_t)args->i[STREAM] + w->n - 1) / w->n;
    return rows < w->rows ? rows : w->rows;
}

static int work_init(struct work *w, const struct kvc_shape *shape, const float *ahead,
                     struct kvc_error *e) {
    memset(w, 0, sizeof *w);
    w->ahead = kvc_split_predicts(shape->dtype) ? ahead : NULL;
    w->form = kvc_words_of(shape->dtype);
    w->info = kvc_dtype_info(shape->dtype);
    w->rows = (size_t)shape->tokens;
    w->n = (size_t)(shape->heads * shape->dim);
    w->values = w->rows * w->n;
    return kvc_channels_init(&w->model, w->n, w->form->format, w->form->bits, e);
}

/* Bits that the symbols of plain words cost. There are two tables, as for a tally. */
static double cost_without_model(const struct work *w, unsigned shift) {
    uint32_t even[KVC_RANS_SYMBOLS] = {0}, odd[KVC_RANS_SYMBOLS] = {0}, both[KVC_RANS_SYMBOLS];
    const unsigned alphabet = kvc_words_alphabet(w->form);
    size_t i = 0;
    for (; i + 2 <= w->values; i += 2) {
        even[w->words[i] >> shift]++;
        odd[w->words[i + 1] >> shift]++;
    }
    if (i < w->values) even[w->words[i] >> shift]++;
    add_counts(both, even, odd, alphabet);
    return cost_of(both, alphabet);
}

/* Adds the symbols as CODES. */
static int encode_symbols(const struct kvc_stage_args *args, struct work *w, uint8_t stage,
                          struct kvc_sections *out, struct kvc_error *e) {
    unsigned used = 0;
    const unsigned alphabet = kvc_words_alphabet(w->form),
                   tables = join_contexts(w->count, alphabet, &used);
    const unsigned bits = table_bits(w->values, alphabet),
                   few = w->form->format ? FEW_FLOATS : FEW_VALUES;
    const unsigned lanes = w->values < few ? FEW_LANES : ALL_LANES;
    const size_t per = rows_per_stream(args, w), streams = (w->rows + per - 1) / per;
    struct kvc_rans_symbol(*symbol)[KVC_RANS_SYMBOLS] = kvc_alloc(KVC_CONTEXTS, sizeof *symbol);
    uint8_t *head = malloc(HEAD_BOUND(streams));
    if (!symbol || !head) {
        free(symbol);
        free(head);
        return kvc_fail_memory(e, "rANS tables");
    }
    struct kvc_bits to = {.bytes = head, .at = 8 * KVC_SPLIT_HEADER};
    head[0] = (uint8_t)(bits | lanes << 4);
    head[1] = (uint8_t)tables;
    put_u16(head + 2, (uint16_t)per);
    for (unsigned c = 0; c < KVC_CONTEXTS; c++) {
        if (!(tables >> c & 1)) continue;
        uint16_t frequency[KVC_RANS_SYMBOLS];
        kvc_rans_normalise(frequency, w->count[c], alphabet, bits);
        kvc_rans_table_write(&to, frequency, alphabet);
        kvc_rans_encoding_table(symbol[c], frequency, alphabet);
    }
    for (unsigned c = 0; c < KVC_CONTEXTS; c++)
        if ((used & ~tables) >> c & 1)
            memcpy(symbol[c], symbol[kvc_split_table(tables, c)], alphabet * sizeof **symbol);
    kvc_bits_put(&to, 0, (unsigned)(-to.at % 32));
    uint8_t *const sizes = head + to.at / 8, *const states = sizes + 4 * streams;
    const size_t ahead = (size_t)(states - head) + (streams << (lanes + 2));
    uint8_t *const end = w->bytes + ahead + KVC_RANS_BOUND(w->values), *next = end;
    for (size_t s = streams; s-- > 0;) {
        size_t first = s * per, last = first + per < w->rows ? first + per : w->rows;
        uint8_t *stop = next;
        struct kvc_rans_encoder r;
        kvc_rans_encode_begin(&r, 1u << lanes, stop);
        /* together: whole rows begin with the first lane */
        const size_t rows = w->n % KVC_RANS_LANES ? 1 : last - first;
        for (size_t t = last; t > first; t -= rows)
            kvc_kernels_get()->rans_encode(&r, w->symbols + (t - rows) * w->n, rows * w->n,
                                           symbol[0], bits);
        kvc_rans_encode_end(&r, states + (s << (lanes + 2)));
        next = r.next;
        put_u32(sizes + 4 * s, (uint32_t)(stop - next));
    }
    next -= ahead;
    memcpy(next, head, ahead);
    free(symbol);
    free(head);
    return kvc_sections_add(out, KVC_SECTION_CODES, stage, 0, next, (size_t)(end - next), 0, e);
}

/* Counts of a few symbols, in half the memory of all counts: their lines are to stay in the cache.
 * There are two tables, because an increment would often wait for the one before; they are skewed,
 * so that equal symbols differ in their addresses modulo 4096. */
enum { ALL_SYMBOLS = KVC_CONTEXTS * KVC_RANS_SYMBOLS, SKEW = 160, MOST_COUNTED = UINT16_MAX };
struct tally {
    uint16_t count[2][ALL_SYMBOLS + SKEW];
    size_t n; /* symbols in it */
};

static void add_tallied(uint32_t *restrict count, const uint16_t *restrict even,
                        const uint16_t *restrict odd) {
    for (size_t s = 0; s < ALL_SYMBOLS; s++) count[s] += (uint32_t)even[s] + odd[s];
}

/* Counts n symbols; what does not fit into the tally is added to the counts. */
static void tally_row(struct tally *t, const uint16_t *symbols, size_t n, uint32_t *count) {
    for (size_t i = 0, end; i < n; i = end) {
        if (t->n == MOST_COUNTED) {
            add_tallied(count, t->count[0], t->count[1]);
            memset(t, 0, sizeof *t);
        }
        end = n - i < MOST_COUNTED - t->n ? n : i + (MOST_COUNTED - t->n);
        t->n += end - i;
        for (uint64_t four; i + 4 <= end; i += 4) {
            memcpy(&four, symbols + i, sizeof four);
            t->count[0][four & UINT16_MAX]++;
            t->count[1][four >> 16 & UINT16_MAX]++;
            t->count[0][four >> 32 & UINT16_MAX]++;
            t->count[1][four >> 48]++;
        }
        for (; i < end; i++) t->count[0][symbols[i]]++;
    }
}

/* Every word's symbol, context and low bits, and how often each symbol comes. */
static void cut_rows(struct work *w) {
    const struct kvc_kernels *k = kvc_kernels_get();
    const struct kvc_words *f = w->form;
    memset(w->tally, 0, sizeof *w->tally);
    memset(w->count, 0, KVC_CONTEXTS * sizeof *w->count);
    kvc_channels_begin(&w->model);
    const int ahead = w->model.turn == KVC_TURN_AHEAD;
    for (size_t t = 0; t < w->rows; t++) {
        uint16_t *symbols = w->symbols + t * w->n;
        const uint16_t *words = w->words + t * w->n;
        kvc_channels_row(&w->model, w->bias, w->context, KVC_RANS_SYMBOL_BITS);
        if (ahead) { /* these biases have low bits, so that all of a word is a difference */
            for (size_t i = 0; i < w->n; i++) w->moved[i] = (uint16_t)(words[i] - w->bias[i]);
            memset(w->bias, 0, w->n * sizeof *w->bias);
            words = w->moved;
        }
        k->cut_words(symbols, w->low + t * w->n, words, w->bias, w->context, w->n,
                     kvc_words_shift(f), (uint16_t)((1u << f->bits) - 1));
        tally_row(w->tally, symbols, w->n, w->count[0]);
    }
    add_tallied(w->count[0], w->tally->count[0], w->tally->count[1]);
}

static int encode_rows(const struct kvc_stage_args *args, struct work *w,
                       const struct kvc_block *block, uint8_t stage, struct kvc_sections *out,
                       struct kvc_error *e) {
    const struct kvc_words *f = w->form;
    const unsigned shift = kvc_words_shift(f);
    const size_t per = rows_per_stream(args, w), streams = (w->rows + per - 1) / per;
    const size_t floats = f->format || w->ahead
                              ? KVC_CHANNELS_SCRATCH(w->n, w->rows) * sizeof(float)
                              : 0;
    const size_t packed = KVC_PACKED(w->values, 7), scratch = floats > packed ? floats : packed;
    w->memory[0] = malloc(2 * w->values * (kvc_words_in_place(f) ? 1 : 2) + 6 * w->n);
    w->memory[1] = malloc(scratch + w->values);
    w->memory[2] = malloc(sizeof *w->tally + KVC_CONTEXTS * sizeof *w->count + HEAD_BOUND(streams) +
                          KVC_RANS_BOUND(w->values) + KVC_CHANNELS_BOUND(w->n));
    if (!w->memory[0] || !w->memory[1] || !w->memory[2]) return kvc_fail_memory(e, "a block");
    w->bias = w->memory[0];
    w->context = w->bias + w->n;
    w->moved = w->context + w->n;
    w->symbols = w->moved + w->n;
    w->words = w->symbols + w->values;
    w->low = (uint8_t *)w->memory[1] + scratch;
    w->tally = w->memory[2]; /* the stack of a thread may be too small for it */
    w->count = (void *)(w->tally + 1);
    w->bytes = (uint8_t *)(w->count + KVC_CONTEXTS);

    const size_t blocks = w->values / w->info->block;
    for (unsigned p = 0; p < f->planes; p++) {
        kvc_plane_out(w->bytes, block->rows, blocks, w->info->size, p, 1);
        if (kvc_plane_add(out, stage, (uint8_t)p, w->bytes, blocks, e)) return -1;
    }
    if (kvc_words_in_place(f)) w->words = (uint16_t *)(void *)block->rows;
    else kvc_words_out(w->words, block->rows, w->values, f);
    w->model.ahead = w->ahead;
    w->model.scales = block->rows;
    const int predicted = w->ahead && kvc_channels_fit_ahead(&w->model, &block->shape, block->rows,
                                                             w->memory[1]);
    if (f->format && !predicted)
        kvc_channels_fit(&w->model, &block->shape, block->rows, w->memory[1]);
    else if (!predicted) kvc_channels_fit_codes(&w->model, w->words, w->rows, f->sign);
    const size_t sections = out->count, used = out->used;
    size_t stored = kvc_channels_write(&w->model, w->bytes);
    if (kvc_sections_add(out, KVC_SECTION_PARAMS, stage, 0, w->bytes, stored, 0, e)) return -1;
    cut_rows(w);
    /* too few rows, or too even ones, to pay for parameters? */
    if (w->rows < MODEL_ROWS || !f->format) {
        double with = 8.0 * (double)(out->used - used + KVC_SECTION_COST);
        for (unsigned c = 0; c < KVC_CONTEXTS; c++)
            with += cost_of(w->count[c], kvc_words_alphabet(f));
        if (cost_without_model(w, shift) <= with) {
            out->count = sections;
            out->used = used;
            kvc_channels_flat(&w->model);
            cut_rows(w);
        }
    }
    if (encode_symbols(args, w, stage, out, e)) return -1;
    if (!shift) return 0;
    if (shift == 8) return kvc_plane_add(out, stage, (uint8_t)f->planes, w->low, w->values, e);
    kvc_kernels_get()->pack_bits(w->memory[1], w->low, w->values, shift);
    return kvc_plane_add(out, stage, (uint8_t)f->planes, w->memory[1], KVC_PACKED(w->values, shift),
                         e);
}

int kvc_split_encode(const struct kvc_stage_args *args, struct kvc_block *block, const float *ahead,
                     uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    const size_t count = out->count, used = out->used;
    struct work w;
    if (work_init(&w, &block->shape, ahead, e)) return -1;
    const size_t size = w.values / w.info->block * w.info->size;
    int status = w.values ? encode_rows(args, &w, block, stage, out, e) : 0;
    if (!status &&
        out->used - used + (out->count - count) * KVC_SECTION_COST >= size + KVC_SECTION_COST) {
        out->count = count; /* nothing gained: keep the rows */
        out->used = used;
        status = kvc_sections_add(out, KVC_SECTION_RAW, stage, 0, block->rows, size, 0, e);
    }
    work_free(&w);
    return status;
}

/* --- the stage --- */

static int split_encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                        uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    (void)state;
    return kvc_split_encode(args, block, NULL, stage, out, e);
}

static int decode(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                  struct kvc_block *block, struct kvc_error *e) {
    (void)args;
    return kvc_split_decode(stored, block, NULL, e);
}

static int decode_two(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                      struct kvc_block *block) {
    (void)args;
    return kvc_split_decode_two(stored, block, (const float *[]){NULL, NULL});
}

const struct kvc_stage kvc_stage_split = {
    .id = 3,
    .name = "split",
    .summary = "low bits unchanged, the rest entropy-coded in its channel's context",
    .flags = KVC_STAGE_TERMINAL | KVC_STAGE_LOSSLESS,
    .args = arguments,
    .n_args = 1,
    .encode = split_encode,
    .decode = decode,
    .decode_two = decode_two,
    .lower = kvc_split_lower,
};
