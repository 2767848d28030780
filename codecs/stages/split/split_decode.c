/* split_decode.c: decoding of blocks that `split` coded, one or two at once. Spec: split.md. Not
 * for encoding (split.c), opening sections (split_sections.c) or devices (split_device.c). */
#include "codecs/stages/split/channels.h"
#include "codecs/memory.h"
#include "codecs/planes.h"
#include "codecs/rans.h"
#include "codecs/stages/split/split_coder.h"
#include "codecs/stages/split/split_sections.h"
#include "codecs/words.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = (KVC_CONTEXTS << KVC_RANS_MAX_BITS) + KVC_RANS_SLACK };

/* Room for decoding a block. */
struct room {
    uint32_t *slots;                            /* of all tables */
    uint16_t *words, *symbols, *bias, *context; /* of a row */
    /* low bits of rows_together() rows; zeros without low bits */
    uint8_t *below;
    uint8_t *bytes; /* a section's */
};

/* Returns the rows whose low bits are unpacked together. */
static size_t rows_together(const struct kvc_split *s) {
    const unsigned shift = kvc_words_shift(s->form);
    return shift && shift < 8 ? kvc_packed_rows(s->n) : 1;
}

static void room_free(struct room *r) {
    free(r->slots);
    free(r->below);
    free(r->bytes);
}

static int room_init(struct room *r, const struct kvc_split *s, struct kvc_error *e) {
    const size_t together = rows_together(s);
    r->slots = kvc_alloc(SLOTS + 2 * s->n, sizeof *r->slots);
    r->below = kvc_alloc_zeros(s->rows < together ? s->rows : together, s->n);
    r->bytes = kvc_alloc((s->low_size > s->blocks ? s->low_size : s->blocks) + 1, 1);
    if (!r->slots || !r->below || !r->bytes) return kvc_fail_memory(e, "a block");
    r->words = (uint16_t *)(void *)(r->slots + SLOTS);
    r->symbols = r->words + s->n;
    r->bias = r->symbols + s->n;
    r->context = r->bias + s->n;
    return 0;
}

/* Makes the slots, a table for every context. Where channels rest, their contexts are replaced once
 * instead of copying tables. */
static void make_slots(struct kvc_split *s, struct room *r) {
    for (unsigned k = 0; k < KVC_CONTEXTS; k++)
        if (s->tables >> k & 1)
            kvc_rans_decoding_table(r->slots + ((size_t)k << s->bits), s->frequency[k],
                                    kvc_words_alphabet(s->form));
    if (s->model.turn == KVC_TURN_NONE) {
        kvc_channels_row(&s->model, r->bias, r->context, 0);
        for (size_t i = 0; i < s->n; i++)
            r->context[i] = (uint16_t)(kvc_split_table(s->tables, r->context[i]) << s->bits);
        return;
    }
    for (unsigned k = 0; k < KVC_CONTEXTS; k++)
        if (!(s->tables >> k & 1))
            memcpy(r->slots + ((size_t)k << s->bits),
                   r->slots + ((size_t)kvc_split_table(s->tables, k) << s->bits),
                   sizeof *r->slots << s->bits);
}

/* Decoding of a block, row after row. On the heap: the stack of a thread may be small. */
struct decoding {
    struct kvc_split split;
    struct room room;
    struct kvc_block *block;
    const uint8_t *low, *stream; /* low bits; words of the next stream */
    size_t row, row_bytes;       /* the next row; bytes of one */
    struct kvc_rans_decoder r;
};

/* Begins a row: its stream where it is a stream's first, its biases and contexts. *to gets what the
 * kernel asks for. */
static int begin_row(struct decoding *d, struct kvc_rans_row *to, struct kvc_error *e) {
    struct kvc_split *s = &d->split;
    if (d->row % s->per == 0) {
        const size_t i = d->row / s->per, size = kvc_split_stream(s, i);
        if (d->row && kvc_rans_decode_end(&d->r, e)) return -1;
        if (kvc_rans_decode_begin(&d->r, s->lanes, s->states + 4 * s->lanes * i, d->stream, size,
                                  e))
            return -1;
        d->stream += size;
    }
    if (s->model.turn != KVC_TURN_NONE)
        kvc_channels_row(&s->model, d->room.bias, d->room.context, s->bits);
    *to = (struct kvc_rans_row){&d->r, d->room.symbols, d->room.context, d->room.slots, s->bits};
    return 0;
}

/* Joins the symbols of the row with its low bits, and goes to the next row. */
static void end_row(struct decoding *d, const struct kvc_kernels *k) {
    const struct kvc_split *s = &d->split;
    const struct kvc_words *f = s->form;
    const unsigned shift = kvc_words_shift(f);
    const size_t together = rows_together(s), in_group = d->row % together;
    if (shift && shift < 8 && !in_group) {
        const size_t rows = s->rows - d->row < together ? s->rows - d->row : together;
        k->unpack_bits(d->room.below, d->low + KVC_PACKED(d->row * s->n, shift), rows * s->n,
                       shift);
    }
    const uint8_t *below = shift == 8 ? d->low + d->row * s->n : d->room.below + in_group * s->n;
    uint8_t *row = d->block->rows + d->row * d->row_bytes;
    const int direct = kvc_words_in_place(f);
    uint16_t *words = direct ? (uint16_t *)(void *)row : d->room.words;
    k->join_words(words, d->room.symbols, d->room.bias, below, s->n, shift,
                  (uint16_t)((1u << f->bits) - 1));
    if (!direct) kvc_words_in(row, words, s->n, f);
    d->row++;
}

/* Decodes the rows that are left. */
static int decode_rows(struct decoding *d, struct kvc_error *e) {
    const struct kvc_kernels *k = kvc_kernels_get();
    while (d->row < d->split.rows) {
        struct kvc_rans_row x;
        if (begin_row(d, &x, e)) return -1;
        k->rans_decode(x.r, x.symbols, x.base, d->split.n, x.table, x.bits);
        end_row(d, k);
    }
    return kvc_rans_decode_end(&d->r, e);
}

/* Decodes the rows that both blocks have. */
static int decode_rows_of_two(struct decoding *a, struct decoding *b, struct kvc_error *e) {
    const struct kvc_kernels *k = kvc_kernels_get();
    while (a->row < a->split.rows && b->row < b->split.rows) {
        struct kvc_rans_row x, y;
        if (begin_row(a, &x, e) || begin_row(b, &y, e)) return -1;
        k->rans_decode_two(&x, &y, a->split.n);
        end_row(a, k);
        end_row(b, k);
    }
    return 0;
}

/* Opens a block that is not RAW, and decodes all but the words of its rows; a block without values
 * is then whole. To be closed by close_block() in any case. */
static int open_block(struct decoding *d, const struct kvc_stored *stored, struct kvc_block *block,
                      const float *ahead, struct kvc_error *e) {
    struct kvc_split *s = &d->split;
    d->room = (struct room){.slots = NULL};
    d->block = block;
    d->row = 0;
    d->row_bytes = (size_t)kvc_row_bytes(&block->shape);
    const int status = kvc_split_open(s, &block->shape, ahead != NULL, stored->section, stored->n,
                                      e);
    s->model.ahead = ahead;
    s->model.scales = block->rows;
    if (status || !s->values) return status;
    if (room_init(&d->room, s, e)) return -1;
    for (unsigned p = 0; p < s->form->planes; p++) {
        if (kvc_section_decode(s->plane[p], d->room.bytes, s->blocks, e)) return -1;
        kvc_plane_in(block->rows, d->room.bytes, s->blocks,
                     kvc_dtype_info(block->shape.dtype)->size, p, 1);
    }
    const unsigned shift = kvc_words_shift(s->form);
    d->low = s->low ? kvc_section_bytes(s->low, d->room.bytes, s->low_size, e) : d->room.bytes;
    if (!d->low || (shift && shift < 8 && kvc_packed_check(d->low, s->values, shift, e))) return -1;
    d->stream = s->words;
    d->r.missing = 0;
    kvc_channels_begin(&s->model);
    make_slots(s, &d->room);
    return 0;
}

static void close_block(struct decoding *d) {
    room_free(&d->room);
    kvc_split_close(&d->split);
}

int kvc_split_decode(const struct kvc_stored *stored, struct kvc_block *block, const float *ahead,
                     struct kvc_error *e) {
    const int raw = kvc_stored_raw(stored, block, e);
    if (raw) return raw < 0 ? -1 : 0;
    struct decoding *const d = malloc(sizeof *d);
    if (!d) return kvc_fail_memory(e, "a block");
    int status = open_block(d, stored, block, ahead, e);
    if (!status && d->split.values) status = decode_rows(d, e);
    close_block(d);
    free(d);
    return status;
}

int kvc_split_has_codes(const struct kvc_stored *stored, const struct kvc_block *block) {
    return block->shape.tokens && block->shape.heads && block->shape.dim && stored->n &&
           stored->section->type != KVC_SECTION_RAW;
}

int kvc_split_decode_two(const struct kvc_stored *stored, struct kvc_block *block,
                         const float *const ahead[2]) {
    if (!kvc_split_has_codes(&stored[0], &block[0]) || !kvc_split_has_codes(&stored[1], &block[1]))
        return 1;
    struct decoding *const d = kvc_alloc(2, sizeof *d);
    if (!d) return 1;
    int bad = open_block(&d[0], &stored[0], &block[0], ahead[0], NULL);
    if (!bad) {
        bad = open_block(&d[1], &stored[1], &block[1], ahead[1], NULL) ||
              decode_rows_of_two(&d[0], &d[1], NULL) || decode_rows(&d[0], NULL) ||
              decode_rows(&d[1], NULL);
        close_block(&d[1]);
    }
    close_block(&d[0]);
    free(d);
    return bad != 0;
}
