/* channels.h: the channel model of `split`: the expected value and the spread of each channel of a
 * block, which give every word a bias and a context. Spec: channels.md. Not for coding the words
 * (split.c). */
#ifndef KVC_CHANNELS_H
#define KVC_CHANNELS_H

#include "codecs/error.h"
#include "codecs/tensor.h"
#include "kernels/kernels.h"

#include <stddef.h>
#include <stdint.h>

#define KVC_CONTEXTS 8

/* AHEAD: the mean of each value is a prediction and the channel's own mean together. */
enum kvc_turn { KVC_TURN_NONE, KVC_TURN_HALVES, KVC_TURN_INTERLEAVED, KVC_TURN_AHEAD };

struct kvc_channels {
    size_t n;                             /* channels in a row */
    const struct kvc_word_format *format; /* NULL: words are integer codes of `bits` bits */
    unsigned bits;
    /* predictions, [row][n], set by the caller before the first row of AHEAD; NULL: none */
    const float *ahead;
    /* Codes with predictions: canonical rows of q8_0 with their scales in place, set by the caller
     * before the first row. */
    const uint8_t *scales;

    /* stored */
    enum kvc_turn turn;    /* how channels rotate together from row to row */
    uint32_t period;       /* channels of a head, after which the rotation repeats; divides n */
    uint32_t first, pairs; /* of a head: its first channel that rotates, and its rotating pairs */
    float angle, ratio;    /* pair i rotates by angle * ratio^i radians a row */
    uint8_t *spread;       /* variance 2^(spread - 127), 1 to 253 */
    int8_t *mean;          /* in quarters of the spread; for codes the mean itself */

    /* computed from what is stored */
    float *value, *partner, *variance; /* per channel */
    float *moved;                      /* of this row: value and prediction together */
    size_t row;                        /* number of the next row */
    /* per channel of a period: of this row, and the rotation of one row */
    float *cosine, *sine, *step_c, *step_s;
    int flat;  /* 1: no parameters */
    int fresh; /* 1: before row 0 */
    void *memory;
};

/* Makes room for rows of n channels; format and bits as in the struct. Returns -1 when out of
 * memory. */
int kvc_channels_init(struct kvc_channels *c, size_t n, const struct kvc_word_format *format,
                      unsigned bits, struct kvc_error *e);
void kvc_channels_free(struct kvc_channels *c);

/* Fits the model to float rows, canonical in shape->dtype. Values that are not finite or beyond
 * 2^50 count as 0. The encoder is free in its choice. scratch has room for KVC_CHANNELS_SCRATCH(n,
 * rows) floats. */
/* rows that are made floats at once; the first of them are searched for a rotation */
#define KVC_CHANNELS_ROWS 48
#define KVC_CHANNELS_SCRATCH(n, rows) \
    ((size_t)(n) * (4 + ((rows) < KVC_CHANNELS_ROWS ? (size_t)(rows) : KVC_CHANNELS_ROWS)))
void kvc_channels_fit(struct kvc_channels *c, const struct kvc_shape *shape, const uint8_t *rows,
                      float *scratch);
/* Fits the model to the differences of rows, of floats or q8_0, from c->ahead. Returns 1; 0 where
 * the channels' own means predict as well, and the model is not fitted. */
int kvc_channels_fit_ahead(struct kvc_channels *c, const struct kvc_shape *shape,
                           const uint8_t *rows, float *scratch);
/* Fits the model to integer codes of c->bits bits. sign, 1: two's complement. */
void kvc_channels_fit_codes(struct kvc_channels *c, const uint16_t *codes, size_t rows, int sign);

/* Writes the stored form, at most KVC_CHANNELS_BOUND(n) bytes, and returns its size; reads it.
 * `predicted`, 0: AHEAD is refused. */
#define KVC_CHANNELS_BOUND(n) (32 + 10 * (size_t)(n))
size_t kvc_channels_write(const struct kvc_channels *c, uint8_t *bytes);
int kvc_channels_read(struct kvc_channels *c, int predicted, const uint8_t *bytes, size_t size,
                      struct kvc_error *e);

/* Makes the model without parameters: every word has bias 0 and context 0. */
void kvc_channels_flat(struct kvc_channels *c);

/* Goes to before row 0. To be called after the model is fitted, read or made flat. */
void kvc_channels_begin(struct kvc_channels *c);
/* Sets the biases and contexts (0 to 7, shifted left by context_shift) of the next row, c->n each.
 * The biases of AHEAD have low bits, others have none. Where channels do not rotate, rows after the
 * first leave both arrays unchanged: pass the same arrays. */
void kvc_channels_row(struct kvc_channels *c, uint16_t *bias, uint16_t *context,
                      unsigned context_shift);

#endif
