/* split.c: the default stage: noisy low bits as they are, the rest entropy-coded in the context of its channel.
 * Spec: split.md. Not for the channel model (channels.c) or the coder (rans.c). */
#include "codecs/channels.h"
#include "codecs/memory.h"
#include "codecs/planes.h"
#include "codecs/program.h"
#include "codecs/rans.h"
#include "codecs/stage.h"
#include "codecs/words.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STREAM, DEFAULT_STREAM = 65536, MIN_STREAM = 1024, MAX_STREAM = 1 << 24 };
enum { CODES_HEADER = 4 };
/* Bytes of CODES before its words, at most. */
#define HEAD_BOUND(streams) \
    (CODES_HEADER + KVC_CONTEXTS * KVC_RANS_TABLE_BOUND + 4 + (size_t)(streams) * 4 * (1 + KVC_RANS_LANES))
enum { FEW_LANES = 2, ALL_LANES = 5 }; /* log2 of lanes: below so many values few of them do */
enum { FEW_VALUES = 16384, FEW_FLOATS = 8192 };
enum { MODEL_ROWS = 96 }; /* from which on the channel model is taken to pay for itself */

/* --- parameters --- */

static const struct kvc_arg arguments[] = {{.key = "stream", .min = MIN_STREAM, .max = MAX_STREAM, .fallback = DEFAULT_STREAM}};

/* --- tables --- */

/* Bits that n occurrences cost at their own frequency, and roughly those of storing the table. */
static double cost_of(const uint32_t *count, unsigned alphabet) {
    double total = 0, sum = 0, stored = 16;
    for (unsigned s = 0; s < alphabet; s++)
        if (count[s]) {
            total += count[s];
            sum += count[s] * (double)log2f((float)count[s]);
            stored += 5;
        }
    return total > 0 ? total * log2(total) - sum + stored : 0;
}

/* Joins neighbouring contexts where one table is cheaper than two; count[c] is emptied into the table that serves c.
 * Returns a bit per context that has a table; *used gets one per context that has symbols. */
static unsigned join_contexts(uint32_t count[KVC_CONTEXTS][KVC_RANS_SYMBOLS], unsigned alphabet, unsigned *used) {
    enum { FEW = 4096 }; /* with more values a table of its own is never worth less */
    double cost[KVC_CONTEXTS];
    uint64_t total[KVC_CONTEXTS] = {0};
    uint32_t joined[KVC_RANS_SYMBOLS];
    unsigned tables = 0, last = 0;
    for (unsigned c = 0; c < KVC_CONTEXTS; c++) {
        for (unsigned s = 0; s < alphabet; s++) total[c] += count[c][s];
        if (!total[c]) continue;
        *used |= 1u << c;
        cost[c] = cost_of(count[c], alphabet);
        if (tables && (total[c] < FEW || total[last] < FEW)) {
            for (unsigned s = 0; s < alphabet; s++) joined[s] = count[last][s] + count[c][s];
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

/* The context whose table serves c: its own, else the nearest below that has one, else the first. */
static unsigned table_for(unsigned tables, unsigned c) {
    for (unsigned k = c + 1; k-- > 0;)
        if (tables >> k & 1) return k;
    return (unsigned)__builtin_ctz(tables);
}

/* Finer tables pay once a block is large against the time it takes to build and the bits it takes to store them. */
static unsigned table_bits(size_t values, unsigned alphabet) {
    unsigned bits = KVC_RANS_MAX_BITS;
    while (bits > KVC_RANS_MIN_BITS && values < (size_t)4 << bits && alphabet <= 1u << (bits - 1)) bits--;
    return bits;
}

/* --- encoding --- */

struct work {
    const struct kvc_words *form;
    const struct kvc_dtype_info *info;
    struct kvc_channels model;
    size_t rows, n, values; /* values = rows * n */
    uint16_t *words;        /* of the whole block; the rows themselves where those are words */
    uint16_t *symbols;      /* encoding: of the whole block, context << 10 | symbol */
    uint16_t *bias, *context; /* of a row */
    uint8_t *low;           /* low bits, one value a byte */
    uint8_t *bytes;         /* streams */
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

static int work_init(struct work *w, const struct kvc_shape *shape, struct kvc_error *e) {
    memset(w, 0, sizeof *w);
    w->form = kvc_words_of(shape->dtype);
    w->info = kvc_dtype_info(shape->dtype);
    w->rows = (size_t)shape->tokens;
    w->n = (size_t)(shape->heads * shape->dim);
    w->values = w->rows * w->n;
    return kvc_channels_init(&w->model, w->n, w->form->format, w->form->bits, e);
}

/* Adds the symbols as CODES. */
static int encode_symbols(const struct kvc_stage_args *args, struct work *w, uint8_t stage, struct kvc_sections *out,
                          struct kvc_error *e) {
    unsigned used = 0;
    const unsigned alphabet = kvc_words_alphabet(w->form), tables = join_contexts(w->count, alphabet, &used);
    const unsigned bits = table_bits(w->values, alphabet), few = w->form->format ? FEW_FLOATS : FEW_VALUES;
    const unsigned lanes = w->values < few ? FEW_LANES : ALL_LANES;
    const size_t per = rows_per_stream(args, w), streams = (w->rows + per - 1) / per;
    struct kvc_rans_symbol(*symbol)[KVC_RANS_SYMBOLS] = kvc_alloc(KVC_CONTEXTS, sizeof *symbol);
    uint8_t *head = malloc(HEAD_BOUND(streams));
    if (!symbol || !head) {
        free(symbol);
        free(head);
        return kvc_fail_memory(e, "rANS tables");
    }
    struct kvc_bits to = {.bytes = head, .at = 8 * CODES_HEADER};
    head[0] = (uint8_t)(bits | lanes << 4);
    head[1] = (uint8_t)tables;
    head[2] = (uint8_t)per;
    head[3] = (uint8_t)(per >> 8);
    for (unsigned c = 0; c < KVC_CONTEXTS; c++) {
        if (!(tables >> c & 1)) continue;
        uint16_t frequency[KVC_RANS_SYMBOLS];
        kvc_rans_normalise(frequency, w->count[c], alphabet, bits);
        kvc_rans_table_write(&to, frequency, alphabet);
        kvc_rans_encoding_table(symbol[c], frequency, alphabet);
    }
    for (unsigned c = 0; c < KVC_CONTEXTS; c++)
        if ((used & ~tables) >> c & 1) memcpy(symbol[c], symbol[table_for(tables, c)], alphabet * sizeof **symbol);
    kvc_bits_put(&to, 0, (unsigned)(-to.at % 32));
    uint8_t *const sizes = head + to.at / 8, *const states = sizes + 4 * streams;
    const size_t ahead = (size_t)(states - head) + (streams << (lanes + 2));
    uint8_t *const end = w->bytes + ahead + KVC_RANS_BOUND(w->values), *next = end;
    for (size_t s = streams; s-- > 0;) {
        size_t first = s * per, last = first + per < w->rows ? first + per : w->rows;
        uint8_t *stop = next;
        struct kvc_rans_encoder r;
        kvc_rans_encode_begin(&r, 1u << lanes, stop);
        for (size_t t = last; t-- > first;)
            kvc_kernels_get()->rans_encode(&r, w->symbols + t * w->n, w->n, symbol[0], bits);
        kvc_rans_encode_end(&r, states + (s << (lanes + 2)));
        next = r.next;
        uint32_t size = (uint32_t)(stop - next);
        for (unsigned b = 0; b < 4; b++) sizes[4 * s + b] = (uint8_t)(size >> 8 * b);
    }
    next -= ahead;
    memcpy(next, head, ahead);
    free(symbol);
    free(head);
    return kvc_sections_add(out, KVC_SECTION_CODES, stage, 0, next, (size_t)(end - next), 0, e);
}

enum { SKEW = 80 }; /* keeps equal symbols of two tables of counts off the same address modulo 4096 */

/* Every word's symbol, context and low bits, and how often each symbol comes. */
static void cut_rows(struct work *w) {
    const struct kvc_kernels *k = kvc_kernels_get();
    const struct kvc_words *f = w->form;
    uint32_t *const first = (uint32_t *)(void *)w->count;
    uint32_t *const second = first + KVC_CONTEXTS * KVC_RANS_SYMBOLS + SKEW;
    memset(w->count, 0, (2 * KVC_CONTEXTS + 1) * sizeof *w->count);
    kvc_channels_begin(&w->model);
    for (size_t t = 0; t < w->rows; t++) {
        uint16_t *symbols = w->symbols + t * w->n;
        kvc_channels_row(&w->model, w->bias, w->context, KVC_RANS_SYMBOL_BITS);
        k->cut_words(symbols, w->low + t * w->n, w->words + t * w->n, w->bias, w->context, w->n, kvc_words_shift(f),
                     (uint16_t)((1u << f->bits) - 1));
        size_t i = 0;
        for (; i + 2 <= w->n; i += 2) { /* two tables: an increment need not wait for the one before */
            first[symbols[i]]++;
            second[symbols[i + 1]]++;
        }
        if (i < w->n) first[symbols[i]]++;
    }
    for (unsigned i = 0; i < KVC_CONTEXTS * KVC_RANS_SYMBOLS; i++) first[i] += second[i];
}

static int encode_rows(const struct kvc_stage_args *args, struct work *w, const struct kvc_block *block, uint8_t stage,
                       struct kvc_sections *out, struct kvc_error *e) {
    const struct kvc_words *f = w->form;
    const unsigned shift = kvc_words_shift(f);
    const size_t per = rows_per_stream(args, w), streams = (w->rows + per - 1) / per;
    const size_t floats = f->format ? KVC_CHANNELS_SCRATCH(w->n, w->rows) * sizeof(float) : 0;
    const size_t packed = KVC_PACKED(w->values, 7), scratch = floats > packed ? floats : packed;
    w->memory[0] = malloc(2 * w->values * (kvc_words_in_place(f) ? 1 : 2) + 4 * w->n);
    w->memory[1] = malloc(scratch + w->values);
    w->memory[2] = malloc((2 * KVC_CONTEXTS + 1) * sizeof *w->count + HEAD_BOUND(streams) +
                          KVC_RANS_BOUND(w->values) + KVC_CHANNELS_BOUND(w->n));
    if (!w->memory[0] || !w->memory[1] || !w->memory[2]) return kvc_fail_memory(e, "a block");
    w->bias = w->memory[0];
    w->context = w->bias + w->n;
    w->symbols = w->context + w->n;
    w->words = w->symbols + w->values;
    w->low = (uint8_t *)w->memory[1] + scratch;
    w->count = w->memory[2];
    w->bytes = (uint8_t *)(w->count + 2 * KVC_CONTEXTS + 1);

    const size_t blocks = w->values / w->info->block;
    for (unsigned p = 0; p < f->planes; p++) {
        kvc_plane_out(w->bytes, block->rows, blocks, w->info->size, p, 1);
        if (kvc_plane_add(out, stage, (uint8_t)p, w->bytes, blocks, e)) return -1;
    }
    if (kvc_words_in_place(f)) w->words = (uint16_t *)(void *)block->rows;
    else kvc_words_out(w->words, block->rows, w->values, f);
    if (f->format) kvc_channels_fit(&w->model, &block->shape, block->rows, w->memory[1]);
    else kvc_channels_fit_codes(&w->model, w->words, w->rows, f->sign);
    const size_t sections = out->count, used = out->used;
    size_t stored = kvc_channels_write(&w->model, w->bytes);
    if (kvc_sections_add(out, KVC_SECTION_PARAMS, stage, 0, w->bytes, stored, 0, e)) return -1;
    cut_rows(w);
    if (w->rows < MODEL_ROWS || !f->format) { /* too few rows, or too even ones, to pay for parameters? */
        double with = 8.0 * (double)(out->used - used + KVC_SECTION_COST);
        for (unsigned c = 0; c < KVC_CONTEXTS; c++) with += cost_of(w->count[c], kvc_words_alphabet(f));
        uint32_t plain[KVC_RANS_SYMBOLS] = {0};
        for (size_t i = 0; i < w->values; i++) plain[w->words[i] >> shift]++;
        if (cost_of(plain, kvc_words_alphabet(f)) <= with) {
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
    return kvc_plane_add(out, stage, (uint8_t)f->planes, w->memory[1], KVC_PACKED(w->values, shift), e);
}

static int encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block, uint8_t stage,
                  struct kvc_sections *out, struct kvc_error *e) {
    (void)state;
    const size_t count = out->count, used = out->used;
    struct work w;
    if (work_init(&w, &block->shape, e)) return -1;
    const size_t size = w.values / w.info->block * w.info->size;
    int status = w.values ? encode_rows(args, &w, block, stage, out, e) : 0;
    if (!status && out->used - used + (out->count - count) * KVC_SECTION_COST >= size + KVC_SECTION_COST) {
        out->count = count; /* nothing gained: keep the rows */
        out->used = used;
        status = kvc_sections_add(out, KVC_SECTION_RAW, stage, 0, block->rows, size, 0, e);
    }
    work_free(&w);
    return status;
}

/* --- decoding --- */

/* What CODES begins with. */
struct codes {
    unsigned bits, lanes, tables;
    size_t per;                    /* rows in a stream */
    const uint8_t *sizes, *states; /* of the streams, four bytes and four bytes a lane */
    const uint8_t *next, *end;     /* words */
};

/* Reads the head of CODES; tables follow, from *in on. */
static int open_codes(const struct work *w, const struct kvc_section *s, struct codes *c, struct kvc_bits *in,
                      struct kvc_error *e) {
    const uint8_t *p = s->data;
    if (s->size < CODES_HEADER) return kvc_fail(e, KVC_ERR_DAMAGED, "section CODES is too short");
    c->bits = p[0] & 15;
    c->lanes = 1u << (p[0] >> 4);
    c->tables = p[1];
    c->per = (size_t)(p[2] | p[3] << 8);
    if (c->bits < KVC_RANS_MIN_BITS || c->bits > KVC_RANS_MAX_BITS || c->lanes > KVC_RANS_LANES || !c->tables || !c->per ||
        c->per > w->rows)
        return kvc_fail(e, KVC_ERR_DAMAGED, "the header of section CODES is out of range");
    *in = (struct kvc_bits){.read = p, .at = 8 * CODES_HEADER, .limit = 8 * (size_t)s->size};
    return 0;
}

/* What stands behind the tables. */
static int close_codes(const struct work *w, const struct kvc_section *s, struct codes *c, struct kvc_bits *in,
                       struct kvc_error *e) {
    if (kvc_bits_get(in, (unsigned)(-in->at % 32)))
        return kvc_fail(e, KVC_ERR_DAMAGED, "padding after tables is not 0");
    const size_t streams = (w->rows + c->per - 1) / c->per, at = in->at / 8;
    if (in->bad || (s->size - at) / (4 + 4 * c->lanes) < streams)
        return kvc_fail(e, KVC_ERR_DAMAGED, "section CODES is too short");
    c->sizes = s->data + at;
    c->states = c->sizes + 4 * streams;
    c->next = c->states + 4 * c->lanes * streams;
    c->end = s->data + s->size;
    return 0;
}

/* Reads the head of CODES, and its tables into a decoding table for every context. */
static int read_codes(const struct work *w, const struct kvc_section *s, uint32_t *slots, struct codes *c,
                      struct kvc_error *e) {
    struct kvc_bits in;
    if (open_codes(w, s, c, &in, e)) return -1;
    for (unsigned k = 0; k < KVC_CONTEXTS; k++) {
        if (!(c->tables >> k & 1)) continue;
        uint16_t frequency[KVC_RANS_SYMBOLS];
        if (kvc_rans_table_read(&in, frequency, kvc_words_alphabet(w->form), c->bits, e)) return -1;
        kvc_rans_decoding_table(slots + ((size_t)k << c->bits), frequency, kvc_words_alphabet(w->form));
    }
    return close_codes(w, s, c, &in, e);
}

/* Gives every context its table: where channels rest, their contexts are replaced once, else the tables are copied. */
static void share_tables(struct work *w, const struct codes *c, uint32_t *slots) {
    if (w->model.turn == KVC_TURN_NONE) {
        kvc_channels_row(&w->model, w->bias, w->context, 0);
        for (size_t i = 0; i < w->n; i++) w->context[i] = (uint16_t)(table_for(c->tables, w->context[i]) << c->bits);
        return;
    }
    for (unsigned k = 0; k < KVC_CONTEXTS; k++)
        if (!(c->tables >> k & 1))
            memcpy(slots + ((size_t)k << c->bits), slots + ((size_t)table_for(c->tables, k) << c->bits),
                   sizeof *slots << c->bits);
}

/* Begins the stream of the rows from t on. */
static int next_stream(struct codes *c, struct kvc_rans_decoder *r, size_t t, struct kvc_error *e) {
    const size_t s = t / c->per;
    const uint8_t *p = c->sizes + 4 * s;
    size_t size = p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24;
    if (t && kvc_rans_decode_end(r, e)) return -1;
    if (size > (size_t)(c->end - c->next)) return kvc_fail(e, KVC_ERR_DAMAGED, "section CODES is too short");
    c->next += size;
    return kvc_rans_decode_begin(r, c->lanes, c->states + 4 * c->lanes * s, c->next - size, size, e);
}

/* Rows whose low bits are unpacked together. */
static size_t rows_together(const struct work *w) {
    const unsigned shift = kvc_words_shift(w->form);
    return shift && shift < 8 ? kvc_packed_rows(w->n) : 1;
}

static int decode_rows(struct work *w, struct kvc_block *block, const uint8_t *low, uint32_t *slots, struct codes *c,
                       struct kvc_error *e) {
    const struct kvc_kernels *k = kvc_kernels_get();
    const struct kvc_words *f = w->form;
    const unsigned shift = kvc_words_shift(f);
    const uint16_t mask = (uint16_t)((1u << f->bits) - 1);
    const size_t row_bytes = w->n / w->info->block * w->info->size;
    const size_t together = rows_together(w);
    const int direct = kvc_words_in_place(f), packed = shift && shift < 8;
    struct kvc_rans_decoder r = {.missing = 0};
    kvc_channels_begin(&w->model);
    share_tables(w, c, slots);
    for (size_t t = 0; t < w->rows; t++) {
        if (t % c->per == 0 && next_stream(c, &r, t, e)) return -1;
        if (packed && t % together == 0) {
            size_t rows = w->rows - t < together ? w->rows - t : together;
            k->unpack_bits(w->low, low + KVC_PACKED(t * w->n, shift), rows * w->n, shift);
        }
        const uint8_t *below = shift == 8 ? low + t * w->n : w->low + t % together * w->n; /* zeros without low bits */
        if (w->model.turn != KVC_TURN_NONE) kvc_channels_row(&w->model, w->bias, w->context, c->bits);
        k->rans_decode(&r, w->symbols, w->context, w->n, slots, c->bits);
        uint8_t *row = block->rows + t * row_bytes;
        uint16_t *words = direct ? (uint16_t *)(void *)row : w->words;
        k->join_words(words, w->symbols, w->bias, below, w->n, shift, mask);
        if (!direct) kvc_words_in(row, words, w->n, f);
    }
    if (c->next != c->end) return kvc_fail(e, KVC_ERR_DAMAGED, "section CODES is too long");
    return kvc_rans_decode_end(&r, e);
}

enum { SLOTS = (KVC_CONTEXTS << KVC_RANS_MAX_BITS) + KVC_RANS_SLACK };

static int decode_sections(struct work *w, struct kvc_block *block, const struct kvc_section *sections, size_t n,
                           struct kvc_error *e) {
    const struct kvc_words *f = w->form;
    const unsigned shift = kvc_words_shift(f);
    const struct kvc_section *next = sections, *end = sections + n, *s;
    const size_t blocks = w->values / w->info->block;
    const size_t low_size = shift == 8 ? w->values : shift ? KVC_PACKED(w->values, shift) : 0;
    uint32_t *slots = w->memory[0] = kvc_alloc(SLOTS + 2 * w->n, sizeof *slots);
    uint8_t *low = w->memory[1] = malloc((low_size > blocks ? low_size : blocks) + 1);
    w->low = w->memory[2] = calloc(w->rows < rows_together(w) ? w->rows : rows_together(w), w->n);
    if (!slots || !low || !w->low) return kvc_fail_memory(e, "a block");
    w->words = (uint16_t *)(void *)(slots + SLOTS);
    w->symbols = w->words + w->n;
    w->bias = w->symbols + w->n;
    w->context = w->bias + w->n;

    for (unsigned p = 0; p < f->planes; p++) {
        if (!(s = kvc_section_take(&next, end, KVC_SECTION_PLANE, p, e)) || kvc_section_decode(s, low, blocks, e))
            return -1;
        kvc_plane_in(block->rows, low, blocks, w->info->size, p, 1);
    }
    if (next != end && next->type == KVC_SECTION_PARAMS) {
        if (!(s = kvc_section_take_stored(&next, end, KVC_SECTION_PARAMS, 0, e)) ||
            kvc_channels_read(&w->model, s->data, s->size, e))
            return -1;
    } else {
        kvc_channels_flat(&w->model);
    }
    struct codes c = {.bits = 0};
    if (!(s = kvc_section_take_stored(&next, end, KVC_SECTION_CODES, 0, e)) || read_codes(w, s, slots, &c, e)) return -1;
    const uint8_t *bits_below = low;
    if (shift && (!(s = kvc_section_take(&next, end, KVC_SECTION_PLANE, f->planes, e)) ||
                  !(bits_below = kvc_section_bytes(s, low, low_size, e)) ||
                  (shift < 8 && kvc_packed_check(bits_below, w->values, shift, e))))
        return -1;
    if (kvc_section_none_left(next, end, e)) return -1;
    return decode_rows(w, block, bits_below, slots, &c, e);
}

static int decode(const struct kvc_stage_args *args, const struct kvc_stored *stored, struct kvc_block *block,
                  struct kvc_error *e) {
    (void)args;
    const struct kvc_section *sections = stored->section;
    const size_t n = stored->n;
    struct work w;
    if (work_init(&w, &block->shape, e)) return -1;
    int status = kvc_section_raw(sections, n, block->rows, w.values / w.info->block * w.info->size, e);
    if (!status && (w.values || n)) status = decode_sections(&w, block, sections, n, e);
    work_free(&w);
    return status < 0 ? -1 : 0;
}

/* A table of frequencies as the device makes slots of it. */
static int lower_table(struct kvc_program *program, const uint16_t *frequency, unsigned alphabet, uint64_t slots,
                       struct kvc_error *e) {
    uint64_t address;
    uint32_t n = 0, *entry = program->table(program->owner, alphabet * sizeof *entry, &address);
    if (!entry) return kvc_fail_memory(e, "a table");
    for (unsigned i = 0; i < alphabet; i++)
        if (frequency[i]) entry[n++] = i | (uint32_t)frequency[i] << 16;
    struct kvc_device_job *job = kvc_program_job(program, KVC_JOB_SLOTS, e);
    if (!job) return -1;
    job->slots = (struct kvc_slots_job){.entry = address, .to = slots, .n = n};
    return 0;
}

/* The head of CODES, its tables as jobs; `job` gets what all streams have in common. */
static int lower_codes(const struct work *w, const struct kvc_section *s, struct kvc_program *program, struct codes *c,
                       struct kvc_split_job *job, struct kvc_error *e) {
    struct kvc_bits in;
    if (open_codes(w, s, c, &in, e) || !(job->slots = kvc_program_scratch(program, (size_t)4 * KVC_CONTEXTS << c->bits, e)))
        return -1;
    for (unsigned k = 0; k < KVC_CONTEXTS; k++) {
        uint16_t frequency[KVC_RANS_SYMBOLS];
        if (!(c->tables >> k & 1)) continue;
        if (kvc_rans_table_read(&in, frequency, kvc_words_alphabet(w->form), c->bits, e) ||
            lower_table(program, frequency, kvc_words_alphabet(w->form), job->slots + ((uint64_t)4 * k << c->bits), e))
            return -1;
    }
    for (unsigned k = 0; k < KVC_CONTEXTS; k++) job->tables |= table_for(c->tables, k) << 4 * k;
    return close_codes(w, s, c, &in, e);
}

/* The channel model: what is stored becomes what streams take, in a job of its own. `job` gets what they are told of it. */
static int lower_model(struct work *w, struct kvc_program *program, struct kvc_split_job *job, struct kvc_error *e) {
    const struct kvc_channels *m = &w->model;
    const struct kvc_word_format *f = w->form->format;
    const int turns = f && m->turn != KVC_TURN_NONE;
    if (f) job->form = (struct kvc_word_form){.sign_cut = f->sign | (f->drop + f->shift) << 8, .rebias = f->rebias, .shift = f->shift};
    if (m->flat) return 0;
    if (turns && m->period > KVC_DEVICE_TILE) return 1;
    const uint64_t mean = kvc_program_copy(program, m->mean, w->n, e), spread = mean ? kvc_program_copy(program, m->spread, w->n, e) : 0;
    if (!spread || !(job->model = kvc_program_scratch(program, (turns ? 3 : 1) * sizeof(float) * w->n, e))) return -1;
    if (turns) {
        kvc_channels_begin(&w->model);
        float *turn = program->table(program->owner, 2 * m->period * sizeof *turn, &job->turn);
        if (!turn) return kvc_fail_memory(e, "a table");
        memcpy(turn, m->step_c, m->period * sizeof *turn);
        memcpy(turn + m->period, m->step_s, m->period * sizeof *turn);
    }
    job->kind = turns ? (uint32_t)m->turn : f ? 0 : KVC_MODEL_CODES;
    job->period = m->period;
    struct kvc_device_job *model = kvc_program_job(program, KVC_JOB_MODEL, e);
    if (!model) return -1;
    model->model = (struct kvc_model_job){.mean = mean,
                                          .spread = spread,
                                          .to = job->model,
                                          .channels = (uint32_t)w->n,
                                          .word_bits = w->form->bits,
                                          .kind = job->kind,
                                          .period = turns ? m->period : 1,
                                          .first = turns ? m->first : 0,
                                          .pairs = turns ? m->pairs : 0,
                                          .form = job->form};
    return 0;
}

/* A job for each stream. */
static int lower_streams(const struct work *w, const struct kvc_section *s, const struct codes *c, uint64_t base,
                         const struct kvc_split_job *like, struct kvc_program *program, struct kvc_error *e) {
    const uint8_t *words = c->next;
    for (size_t t = 0, i = 0; t < w->rows; t += c->per, i++) {
        const uint8_t *p = c->sizes + 4 * i;
        const size_t size = p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24;
        struct kvc_device_job *job = kvc_program_job(program, KVC_JOB_SPLIT, e);
        if (!job) return -1;
        if (size > (size_t)(c->end - words)) return kvc_fail(e, KVC_ERR_DAMAGED, "section CODES is too short");
        if (size % 2) return kvc_fail(e, KVC_ERR_DAMAGED, "an rANS stream ends in half a word");
        job->split = *like;
        job->split.states = base + (uint64_t)(c->states - s->data) + 4 * c->lanes * i;
        job->split.words = base + (uint64_t)(words - s->data);
        job->split.size = (uint32_t)size;
        job->split.first = (uint32_t)t;
        job->split.rows = (uint32_t)(w->rows - t < c->per ? w->rows - t : c->per);
        words += size;
    }
    return words == c->end ? 0 : kvc_fail(e, KVC_ERR_DAMAGED, "section CODES is too long");
}

static int lower_sections(struct work *w, const struct kvc_stored *stored, struct kvc_device_op *op, struct kvc_program *program,
                          struct kvc_error *e) {
    const unsigned shift = kvc_words_shift(w->form);
    const struct kvc_section *next = stored->section, *end = next + stored->n, *s;
    struct kvc_split_job job = {.states = 0};
    struct codes c = {.bits = 0};
    const uint8_t *low;
    for (unsigned p = 0; p < w->form->planes; p++)
        if (!(s = kvc_section_take(&next, end, KVC_SECTION_PLANE, p, e)) ||
            !(*(p ? &op->upper.low : &op->upper.lowest) = kvc_program_bytes(program, s, w->values, NULL, e)))
            return -1;
    if (next != end && next->type == KVC_SECTION_PARAMS) {
        if (!(s = kvc_section_take_stored(&next, end, KVC_SECTION_PARAMS, 0, e)) ||
            kvc_channels_read(&w->model, s->data, s->size, e))
            return -1;
    } else {
        kvc_channels_flat(&w->model);
    }
    const struct kvc_section *codes = kvc_section_take_stored(&next, end, KVC_SECTION_CODES, 0, e);
    if (!codes || lower_codes(w, codes, program, &c, &job, e)) return -1;
    const size_t size = shift == 8 ? w->values : KVC_PACKED(w->values, shift);
    if (shift && (!(s = kvc_section_take(&next, end, KVC_SECTION_PLANE, w->form->planes, e)) ||
                  !(job.low = kvc_program_bytes(program, s, size, &low, e)) ||
                  (shift < 8 && kvc_packed_check(low, w->values, shift, e))))
        return -1;
    if (kvc_section_none_left(next, end, e)) return -1;
    const int status = lower_model(w, program, &job, e);
    if (status) return status;
    const uint64_t base = kvc_program_bytes(program, codes, codes->size, NULL, e);
    if (!base || !(job.to = kvc_program_scratch(program, 2 * w->values, e))) return -1;
    job.lanes = c.lanes;
    job.table_bits = c.bits;
    job.channels = (uint32_t)w->n;
    job.word_bits = w->form->bits;
    if (w->form->planes) op->upper.upper = job.to;
    else op->words.from = job.to;
    return lower_streams(w, codes, &c, base, &job, program, e);
}

static int lower(const struct kvc_stage_args *args, const struct kvc_stored *stored, struct kvc_block *block,
                 struct kvc_program *program, struct kvc_error *e) {
    (void)args;
    struct work w;
    struct kvc_device_op op = kvc_program_op_of(block->shape.dtype == KVC_F32 ? KVC_OP_UPPER : KVC_OP_WORDS, &block->shape);
    const int raw = kvc_program_raw(program, stored->section, stored->n, &block->shape, e);
    if (raw) return raw < 0 ? -1 : 0;
    if (kvc_words_of(block->shape.dtype)->bits < 8 || kvc_dtype_info(block->shape.dtype)->block > 1) return 1;
    if (work_init(&w, &block->shape, e)) return -1;
    if (op.kind == KVC_OP_WORDS) op.words.size = 2;
    int status = w.values || stored->n ? lower_sections(&w, stored, &op, program, e) : 0;
    if (!status) status = kvc_program_begin(program, w.rows, e) || kvc_program_op(program, &op, e) ? -1 : 0;
    work_free(&w);
    return status;
}

const struct kvc_stage kvc_stage_split = {
    .id = 3,
    .name = "split",
    .summary = "low bits as they are, the rest entropy-coded in its channel's context",
    .flags = KVC_STAGE_TERMINAL | KVC_STAGE_LOSSLESS,
    .args = arguments,
    .n_args = 1,
    .encode = encode,
    .decode = decode,
    .lower = lower,
};
