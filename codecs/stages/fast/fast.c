/* fast.c: fixed-width exponents around each channel's own, for latency: decodes at memory speed.
 * Spec: fast.md. */
#include "codecs/bits.h"
#include "codecs/planes.h"
#include "codecs/program.h"
#include "codecs/stage.h"
#include "codecs/stages/fast/fast_cut.h"
#include "codecs/words.h"
#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

enum {
    MIN_WIDTH = KVC_FAST_WIDTH_MIN,
    MAX_WIDTH = KVC_FAST_WIDTH_MAX,
    FARTHEST = KVC_FAST_FARTHEST
};

struct work {
    size_t rows, n, values, size; /* n words a row; size: bytes of the block */
    unsigned mantissa, below;     /* as kvc_fast_mantissa() */
    uint16_t *bias;               /* per channel, in place: exponents above the mantissa */
    uint16_t *words;              /* of a row whose words are not the row itself */
    uint8_t *low, *high;          /* one byte a value */
    uint8_t *bytes;
    void *memory;
};

/* `values` and `bytes` say how many of low and high, and of bytes, are wanted. */
static int work_init(struct work *w, size_t values, size_t bytes, struct kvc_error *e) {
    w->memory = malloc(2 * values + 4 * w->n + bytes);
    if (!w->memory) return kvc_fail_memory(e, "a block");
    w->bias = w->memory;
    w->words = w->bias + w->n;
    w->low = (uint8_t *)(w->words + w->n);
    w->high = w->low + values;
    w->bytes = w->high + values;
    return 0;
}

static void fast_measure(struct work *w, const struct kvc_shape *shape) {
    memset(w, 0, sizeof *w);
    w->rows = (size_t)shape->tokens;
    w->n = (size_t)(shape->heads * shape->dim);
    w->values = w->rows * w->n;
    w->size = w->rows * (size_t)kvc_row_bytes(shape);
    w->mantissa = kvc_fast_mantissa(shape->dtype, &w->below);
}

/* The words of row t, in place where the row is nothing else. */
static const uint16_t *row_words(const struct work *w, const uint8_t *rows, size_t t) {
    if (!w->below) return (const uint16_t *)(const void *)(rows + 2 * t * w->n);
    kvc_words_out(w->words, rows + 4 * t * w->n, w->n, kvc_words_of(KVC_F32));
    return w->words;
}

/* Compilers vectorise loops of 16 without aliasing by themselves. */
static void add_exponents(uint32_t *restrict sum, const uint16_t *restrict words, size_t n,
                          unsigned mantissa, uint16_t mask) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (size_t k = i; k < i + 16; k++) sum[k] += (uint32_t)(words[k] >> mantissa & mask);
    for (; i < n; i++) sum[i] += (uint32_t)(words[i] >> mantissa & mask);
}

/* to[i] = exponent - bias[i], mod 2^8; the sign bit, which is the exponent's ninth or sixth, is
 * masked away. */
static void take_bias(uint8_t *restrict to, const uint16_t *restrict words,
                      const uint16_t *restrict bias, size_t n, unsigned mantissa, uint16_t mask) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (size_t k = i; k < i + 16; k++)
            to[k] = (uint8_t)(((words[k] >> mantissa) - bias[k]) & mask);
    for (; i < n; i++) to[i] = (uint8_t)(((words[i] >> mantissa) - bias[i]) & mask);
}

/* Counts bytes. Eight tables: an increment need not wait for the one before, which is mostly of the
 * same byte. */
static void count_bytes(uint32_t *count, const uint8_t *bytes, size_t n) {
    uint32_t part[8][256] = {{0}};
    size_t i = 0;
    for (uint64_t eight; i + 8 <= n; i += 8) {
        memcpy(&eight, bytes + i, sizeof eight);
        part[0][eight & 255]++, part[1][eight >> 8 & 255]++, part[2][eight >> 16 & 255]++,
            part[3][eight >> 24 & 255]++;
        part[4][eight >> 32 & 255]++, part[5][eight >> 40 & 255]++, part[6][eight >> 48 & 255]++,
            part[7][eight >> 56]++;
    }
    for (; i < n; i++) part[0][bytes[i]]++;
    for (unsigned b = 0; b < 256; b++)
        for (unsigned k = 0; k < 8; k++) count[b] += part[k][b];
}

/* Sets each channel's bias to its mean exponent, moved so that values cost the fewest bits, and
 * returns the width of codes. */
static unsigned fast_choose(struct work *w, const uint8_t *rows) {
    const uint16_t mask = (uint16_t)((1u << (15 - w->mantissa)) - 1);
    uint32_t *sum = calloc(w->n, sizeof *sum), count[256] = {0};
    if (!sum) return 0;
    for (size_t t = 0; t < w->rows; t++)
        add_exponents(sum, row_words(w, rows, t), w->n, w->mantissa, mask);
    for (size_t i = 0; i < w->n; i++) w->bias[i] = (uint16_t)((sum[i] + w->rows / 2) / w->rows);
    free(sum);
    for (size_t t = 0; t < w->rows; t++)
        take_bias(w->high + t * w->n, row_words(w, rows, t), w->bias, w->n, w->mantissa, mask);
    count_bytes(count, w->high, w->values);
    return kvc_fast_choose(count, w->values, w->mantissa, w->bias, w->n);
}

static int get_params(struct work *w, const struct kvc_section *s, unsigned *width,
                      struct kvc_error *e) {
    struct kvc_bits b = {.read = s->data, .limit = 8 * (size_t)s->size};
    const unsigned exponents = 1u << (15 - w->mantissa);
    *width = kvc_bits_get(&b, 4);
    const unsigned k = kvc_bits_get(&b, 4);
    const int middle = (int)kvc_bits_get(&b, 8);
    int bad = *width < MIN_WIDTH || *width > MAX_WIDTH || k > KVC_RICE_MOST;
    const size_t read = bad ? 0 : kvc_bits_get_rices(&b, w->bias, w->n, k);
    for (size_t i = 0; i < read; i++) {
        const int bias = middle + kvc_unzigzag(w->bias[i]);
        bad |= bias < 0 || bias >= (int)exponents;
        w->bias[i] = (uint16_t)((unsigned)bias << w->mantissa);
    }
    if (bad) return kvc_fail(e, KVC_ERR_DAMAGED, "section PARAMS has a number out of range");
    if (!kvc_bits_ended(&b))
        return kvc_fail(e, KVC_ERR_DAMAGED, "section PARAMS does not end where it should");
    return 0;
}

/* Returns the first value from i on whose high byte has bits above `width`, or w->values. */
static size_t next_escape(const struct work *w, size_t i, unsigned width) {
    const uint64_t above = (uint64_t)(0xff << width & 0xff) * UINT64_C(0x0101010101010101);
    for (uint64_t eight; i + 8 <= w->values; i += 8) {
        memcpy(&eight, w->high + i, sizeof eight);
        if (eight & above) return i + (size_t)__builtin_ctzll(eight & above) / 8;
    }
    while (i < w->values && !(w->high[i] >> width)) i++;
    return i;
}

/* Writes ESCAPES: the high bytes that `width` bits do not hold, which lose what does not fit.
 * Returns the bytes; more than `room` when they do not fit. */
static size_t put_escapes(struct work *w, unsigned width, size_t room) {
    size_t used = 0, next = 0; /* next: the value a distance of 0 means */
    for (size_t i = next_escape(w, 0, width); i < w->values; i = next_escape(w, i + 1, width)) {
        /* escapes that change nothing bridge a long distance */
        for (; i - next > FARTHEST; next += FARTHEST + 1, used += 2) {
            if (used + 2 > room) return room + 1;
            w->bytes[used] = FARTHEST;
            w->bytes[used + 1] = w->high[next + FARTHEST];
        }
        if (used + 2 > room) return room + 1;
        w->bytes[used++] = (uint8_t)(i - next);
        w->bytes[used++] = w->high[i];
        w->high[i] &= (uint8_t)((1u << width) - 1);
        next = i + 1;
    }
    return used;
}

static int encode_words(struct work *w, const struct kvc_block *block, uint8_t stage,
                        struct kvc_sections *out, struct kvc_error *e) {
    for (unsigned p = 0; p < w->below; p++) {
        kvc_plane_out(w->bytes, block->rows, w->values, 4, p, 1);
        if (kvc_plane_add(out, stage, (uint8_t)p, w->bytes, w->values, e)) return -1;
    }
    const unsigned width = fast_choose(w, block->rows);
    if (!width) return kvc_fail_memory(e, "a block");
    if (kvc_sections_add(out, KVC_SECTION_PARAMS, stage, 0, w->bytes,
                         kvc_fast_put_params(w->bytes, w->bias, w->n, w->mantissa, width), 0, e))
        return -1;
    for (size_t i = 0; i < w->n; i++) w->bias[i] = (uint16_t)(w->bias[i] << w->mantissa);
    for (size_t t = 0; t < w->rows; t++)
        kvc_kernels_get()->cut_rotated(w->low + t * w->n, w->high + t * w->n,
                                       row_words(w, block->rows, t), w->bias, w->n);
    if (kvc_plane_add(out, stage, (uint8_t)w->below, w->low, w->values, e)) return -1;
    const size_t escapes = put_escapes(w, width, w->size);
    if (escapes > w->size) return 1; /* nothing gained */
    if (escapes && kvc_sections_add(out, KVC_SECTION_ESCAPES, stage, 0, w->bytes, escapes, 0, e))
        return -1;
    kvc_kernels_get()->pack_bits(w->bytes, w->high, w->values, width);
    return kvc_sections_add(out, KVC_SECTION_CODES, stage, 0, w->bytes,
                            KVC_PACKED(w->values, width), 0, e);
}

static int fast_encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                       uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    (void)args, (void)state;
    const size_t count = out->count, used = out->used;
    struct work w;
    fast_measure(&w, &block->shape);
    int status = !w.mantissa && w.values;
    if (w.mantissa && w.values) {
        size_t params = KVC_FAST_PARAMS(w.n), packed = KVC_PACKED(w.values, MAX_WIDTH);
        size_t most = w.size > packed ? w.size : packed;
        if (work_init(&w, w.values, most > params ? most : params, e)) return -1;
        status = encode_words(&w, block, stage, out, e);
        free(w.memory);
    }
    if (status < 0) return -1;
    if (status ||
        out->used - used + (out->count - count) * KVC_SECTION_COST >= w.size + KVC_SECTION_COST) {
        out->count = count; /* nothing gained: keep the rows */
        out->used = used;
        return kvc_sections_add(out, KVC_SECTION_RAW, stage, 0, block->rows, w.size, 0, e);
    }
    return 0;
}

/* --- decoding --- */

/* Escapes of the rows decoded so far, in order. */
struct escapes {
    const uint8_t *next, *end;
    size_t at; /* the value a distance of 0 means */
};

/* Puts the escaped bytes among values first to last - 1 in their places of `high`, whose first is
 * value `first`. */
static void apply_escapes(struct escapes *s, uint8_t *high, size_t first, size_t last) {
    const uint8_t *next = s->next, *const end = s->end; /* own copies: bytes written to `high` could
                                                           be those of *s */
    size_t at = s->at;
    while (next != end && at + next[0] < last) {
        at += next[0];
        high[at++ - first] = next[1];
        next += 2;
    }
    s->next = next;
    s->at = at;
}

/* The sections of a block, opened; biases and the width of codes are read. */
struct sections {
    const struct kvc_section *plane[2]; /* bytes below the words, w->below of them */
    const struct kvc_section *low, *codes;
    const struct kvc_section *escapes; /* NULL: none */
    unsigned width;
};

static int fast_open_sections(struct work *w, const struct kvc_stored *stored, struct sections *s,
                              struct kvc_error *e) {
    const struct kvc_section *next = stored->section, *end = next + stored->n, *params;
    *s = (struct sections){.width = 0};
    for (unsigned p = 0; p < w->below; p++)
        if (!(s->plane[p] = kvc_section_take(&next, end, KVC_SECTION_PLANE, p, e))) return -1;
    if (!(params = kvc_section_take_stored(&next, end, KVC_SECTION_PARAMS, 0, e)) ||
        get_params(w, params, &s->width, e) ||
        !(s->low = kvc_section_take(&next, end, KVC_SECTION_PLANE, w->below, e)))
        return -1;
    if (next != end && next->type == KVC_SECTION_ESCAPES) {
        if (!(s->escapes = kvc_section_take_stored(&next, end, KVC_SECTION_ESCAPES, 0, e)))
            return -1;
        if (!s->escapes->size || s->escapes->size % 2)
            return kvc_fail(e, KVC_ERR_DAMAGED, "section ESCAPES is not pairs of bytes");
    }
    if (!(s->codes = kvc_section_take(&next, end, KVC_SECTION_CODES, 0, e))) return -1;
    return kvc_section_none_left(next, end, e);
}

/* Where words go: the pieces of a row that are consecutive bytes, and the bytes between those of
 * two rows and of one row. */
struct target {
    uint8_t *first; /* of the first row */
    size_t pieces, row, piece;
    int past; /* as in struct kvc_row_places */
};

/* Finds the places of a block's rows where they are known and a row is at most its heads, else its
 * own rows. */
static struct target find_target(const struct work *w, struct kvc_block *block) {
    const struct kvc_row_places *p = w->below ? NULL : block->places;
    const uint64_t pieces = p ? kvc_row_pieces(&block->shape, &p->strides) : 0;
    if (!pieces) return (struct target){.first = block->rows, .pieces = 1, .row = 2 * w->n};
    block->placed = 1;
    return (struct target){.first = p->base + p->first * p->strides.token,
                           .pieces = (size_t)pieces,
                           .row = (size_t)p->strides.token,
                           .piece = (size_t)p->strides.head,
                           .past = p->past};
}

/* Joins rows t to t + rows - 1, whose high bytes are in `high`. */
static void join_rows(struct work *w, const struct target *to, uint8_t *block_rows,
                      const uint8_t *low, const uint8_t *high, size_t t, size_t rows) {
    const struct kvc_kernels *k = kvc_kernels_get();
    const size_t size = w->n / to->pieces;
    low += t * w->n;
    for (size_t p = 0; p < to->pieces && !w->below; p++)
        k->join_rotated(to->first + p * to->piece + t * to->row, to->row, low + p * size,
                        high + p * size, w->n, w->bias + p * size, rows, size, to->past);
    for (size_t i = 0; i < rows && w->below; i++) {
        k->join_rotated((uint8_t *)w->words, 0, low + i * w->n, high + i * w->n, 0, w->bias, 1,
                        w->n, 0);
        kvc_words_in(block_rows + 4 * (t + i) * w->n, w->words, w->n, kvc_words_of(KVC_F32));
    }
}

/* Rows that are decoded together, so that their high bytes stay in the first cache: whole groups of
 * packed codes. */
static size_t rows_together(size_t n) {
    enum { VALUES = 8192 };
    const size_t least = kvc_packed_rows(n), fit = VALUES / n / least;
    return fit ? fit * least : least;
}

static int decode_words(struct work *w, struct kvc_block *block, const struct kvc_stored *stored,
                        struct kvc_error *e) {
    struct sections s;
    if (fast_open_sections(w, stored, &s, e)) return -1;
    for (unsigned p = 0; p < w->below; p++) {
        if (kvc_section_decode(s.plane[p], w->bytes, w->values, e)) return -1;
        kvc_plane_in(block->rows, w->bytes, w->values, 4, p, 1);
    }
    const unsigned width = s.width;
    const uint8_t *low = kvc_section_bytes(s.low, w->low, w->values, e);
    const uint8_t *packed = low ? kvc_section_bytes(s.codes, w->bytes, KVC_PACKED(w->values, width),
                                                    e)
                                : NULL;
    if (!packed || kvc_packed_check(packed, w->values, width, e)) return -1;
    struct escapes escapes = {.next = NULL};
    if (s.escapes) {
        escapes.next = s.escapes->data;
        escapes.end = escapes.next + s.escapes->size;
    }
    const struct target to = find_target(w, block);
    const size_t together = rows_together(w->n);
    for (size_t t = 0, rows; t < w->rows; t += rows) {
        rows = w->rows - t < together ? w->rows - t : together;
        kvc_kernels_get()->unpack_bits(w->high, packed + KVC_PACKED(t * w->n, width), rows * w->n,
                                       width);
        apply_escapes(&escapes, w->high, t * w->n, (t + rows) * w->n);
        join_rows(w, &to, block->rows, low, w->high, t, rows);
    }
    if (to.past) kvc_kernels_get()->join_rotated(to.first, 0, low, w->high, 0, w->bias, 0, 0, 1);
    if (escapes.next != escapes.end)
        return kvc_fail(e, KVC_ERR_DAMAGED, "an escape lies beyond the block");
    return 0;
}

static int fast_decode(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                       struct kvc_block *block, struct kvc_error *e) {
    (void)args;
    struct work w;
    fast_measure(&w, &block->shape);
    const int raw = kvc_stored_raw(stored, block, e);
    if (raw) return raw < 0 ? -1 : 0;
    if (!w.values && !stored->n) return 0;
    if (!w.mantissa || !w.values)
        return kvc_fail(e, KVC_ERR_DAMAGED, "%zu sections where RAW is due", stored->n);
    /* room for that and for a plane, were they compressed */
    const size_t packed = KVC_PACKED(w.values, MAX_WIDTH);
    if (work_init(&w, w.values, packed > w.values ? packed : w.values, e)) return -1;
    const int status = decode_words(&w, block, stored, e);
    free(w.memory);
    return status;
}

/* Lists the first escape of each row, and the value that a distance of 0 means there. */
static int list_rows(const struct work *w, const struct kvc_section *s, uint32_t *start,
                     struct kvc_error *e) {
    const size_t pairs = s->size / 2;
    size_t at = 0, p = 0;
    for (size_t t = 0; t <= w->rows; t++) {
        for (; p < pairs && at + s->data[2 * p] < t * w->n; p++) at += s->data[2 * p] + 1u;
        start[2 * t] = (uint32_t)p;
        start[2 * t + 1] = (uint32_t)at;
    }
    return p == pairs ? 0 : kvc_fail(e, KVC_ERR_DAMAGED, "an escape lies beyond the block");
}

static int lower_words(struct work *w, struct kvc_fast_op *op, const struct kvc_stored *stored,
                       struct kvc_program *program, struct kvc_error *e) {
    struct sections s;
    const uint8_t *packed;
    if (fast_open_sections(w, stored, &s, e)) return -1;
    for (unsigned p = 0; p < w->below; p++)
        if (!(op->plane[p] = kvc_program_bytes(program, s.plane[p], w->values, NULL, e))) return -1;
    if (!(op->bias = kvc_program_copy(program, w->bias, w->n * sizeof *w->bias, e)) ||
        !(op->low = kvc_program_bytes(program, s.low, w->values, NULL, e)))
        return -1;
    if (s.escapes) {
        if (!(op->pair = kvc_program_bytes(program, s.escapes, s.escapes->size, NULL, e)))
            return -1;
        uint32_t *start = kvc_program_table(program, 2 * (w->rows + 1) * sizeof *start, &op->start,
                                            e);
        if (!start || list_rows(w, s.escapes, start, e)) return -1;
    }
    op->bits = s.width;
    op->codes = kvc_program_bytes(program, s.codes, KVC_PACKED(w->values, s.width), &packed, e);
    return op->codes ? kvc_packed_check(packed, w->values, s.width, e) : -1;
}

static int fast_lower(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                      struct kvc_block *block, struct kvc_program *program, struct kvc_error *e) {
    (void)args;
    struct work w;
    struct kvc_device_op op = kvc_program_op_of(KVC_OP_FAST, &block->shape);
    const int raw = kvc_program_raw(program, stored->section, stored->n, &block->shape, e);
    if (raw) return raw < 0 ? -1 : 0;
    fast_measure(&w, &block->shape);
    if (!w.values && !stored->n) return 0;
    if (!w.mantissa || !w.values)
        return kvc_fail(e, KVC_ERR_DAMAGED, "%zu sections where RAW is due", stored->n);
    if (work_init(&w, 0, 0, e)) return -1;
    int status = lower_words(&w, &op.fast, stored, program, e);
    free(w.memory);
    return status ? -1 : kvc_program_first(program, w.rows, &op, e);
}

const struct kvc_stage kvc_stage_fast = {
    .id = 4,
    .name = "fast",
    .summary = "exponents in a few bits around their channel's own, escapes apart",
    .flags = KVC_STAGE_TERMINAL | KVC_STAGE_LOSSLESS,
    .encode = fast_encode,
    .decode = fast_decode,
    .lower = fast_lower,
};
