/* decode_ahead.h: predictions of rows from rows of earlier layers (codecs/stages/cross/cross.md,
 * "Prediction"): the operations that add them to rows and that make their inputs, and the job that
 * makes a channel model of them. One source for GPU and host (warp.h). */
#ifndef KVC_DECODE_AHEAD_H
#define KVC_DECODE_AHEAD_H

#include "kernels/device/decode_changes.h"
#include "kernels/device/decode_streams.h"

/* Rows that one word of weights serves. */
enum { KVC_AHEAD_ROWS = 8 };

/* Writes predictions of rows to the tile, or adds them to it. The tile begins in row `first` of the
 * block, at channel `begin` of its rows. Sums are of integers, exact in any order. */
KVC_DEVICE void kvc_predict_tile(const struct kvc_predict_op *p, struct kvc_tile *t, uint32_t first,
                                 uint32_t begin, uint32_t add) {
    const struct kvc_predict_input *input = (const struct kvc_predict_input *)(uintptr_t)p->inputs;
    const float *scale = KVC_FLOATS(p->numbers), *mean = scale + p->outputs;
    for (uint32_t r = 0; r < t->rows; r += KVC_AHEAD_ROWS) {
        const uint32_t rows = t->rows - r < KVC_AHEAD_ROWS ? t->rows - r : KVC_AHEAD_ROWS,
                       last = rows - 1;
        KVC_EACH_LANE for (uint32_t c = lane; c < t->width; c += KVC_LANES) {
            const uint32_t channel = begin + c;
            const uint32_t *block = KVC_WORDS(p->weights) + channel % KVC_DOT_BLOCK +
                                    (uint64_t)(channel / KVC_DOT_BLOCK) * p->words * KVC_DOT_BLOCK;
            int32_t sum[KVC_AHEAD_ROWS] = {0};
            for (uint32_t k = 0; k < p->n; k++) {
                const uint32_t words = input[k].words;
                const uint32_t *weight = block + (uint64_t)input[k].first * KVC_DOT_BLOCK;
                const uint32_t *x = KVC_WORDS(input[k].at) + (uint64_t)(first + r) * words;
                /* lanes read adjacent weights, and all of them the same input */
                for (uint32_t j = 0; j < words; j++) {
                    const uint32_t w = weight[(uint64_t)j * KVC_DOT_BLOCK];
                    /* rows beyond the last repeat it, which needs no branch */
                    KVC_UNROLL for (uint32_t i = 0; i < KVC_AHEAD_ROWS; i++)
                        sum[i] = kvc_dot_four(x[(uint64_t)(i < last ? i : last) * words + j], w,
                                              sum[i]);
                }
            }
            KVC_UNROLL for (uint32_t i = 0; i < KVC_AHEAD_ROWS; i++) if (i < rows) {
                const float ahead = kvc_add(kvc_times((float)sum[i], scale[channel]),
                                            mean[channel]);
                uint32_t *word = t->word + (r + i) * t->width + c;
                *word = kvc_as_bits(add ? kvc_add(kvc_as_float(*word), ahead) : ahead);
            }
        }
    }
}

/* Adds predictions of rows to the tile, predict.md. */
KVC_DEVICE void kvc_op_predict(const struct kvc_device_op *op, struct kvc_tile *t) {
    kvc_predict_tile(&op->predict, t, op->row + t->row, kvc_op_channel(op, t, 0), 1);
}

/* Makes the channel model of predicted rows of a head: the mean of a value is its prediction and
 * its channel's own mean together. */
KVC_DEVICE uint32_t kvc_job_ahead(const struct kvc_device_job *job, uint32_t *work) {
    const struct kvc_ahead_job *a = &job->ahead;
    const uint32_t channels = a->predict.outputs, begin = a->head * a->dim,
                   end = a->first + a->rows;
    const uint32_t together = KVC_DEVICE_TILE / a->dim;
    const float *value = KVC_FLOATS(a->model) + begin, *variance = value + 2 * (uint64_t)channels;
    const struct kvc_word_form form = a->form;
    struct kvc_tile t = {work, work + KVC_DEVICE_TILE, 0, a->dim, 0, a->head, 0, 0};
    for (uint32_t first = a->first; first < end; first += t.rows) {
        uint32_t *to = (uint32_t *)(uintptr_t)a->to + (uint64_t)first * channels + begin;
        t.rows = end - first < together ? end - first : together;
        kvc_predict_tile(&a->predict, &t, first, begin, 0);
        KVC_LANES_MEET();
        if (a->turn.pairs) {
            kvc_turn_words(&a->turn, &t, t.word, first);
            KVC_LANES_MEET();
        }
        KVC_EACH_VALUE(&t) {
            const uint32_t word = kvc_model_word(&form, kvc_add(value[c], kvc_tile_float(&t, r, c)),
                                                 variance[c]);
            to[(uint64_t)r * channels + c] = (word & ~0xffffu) | ((word - a->half) & 0xffffu);
        }
        KVC_LANES_MEET();
    }
    return 0;
}

/* Makes inputs of the values of the tile, which stay as they are. */
KVC_DEVICE void kvc_op_small(const struct kvc_device_op *op, struct kvc_tile *t) {
    const struct kvc_small_op *s = &op->small;
    const float *mean = KVC_FLOATS(s->numbers), *gain = mean + op->heads * op->dim;
    uint32_t *const back = t->other;
    KVC_EACH_VALUE(t) back[r * t->width + c] = kvc_as_bits(kvc_widen(KVC_VALUE(t), s->dtype));
    KVC_LANES_MEET();
    if (s->turn.pairs) kvc_turn_words(&s->turn, t, back, op->row + t->row);
    KVC_LANES_MEET();
    KVC_EACH_VALUE(t) {
        const uint32_t channel = kvc_op_channel(op, t, c);
        const float x = kvc_as_float(back[r * t->width + c]);
        const float y = kvc_times(kvc_add(x, -mean[channel]), gain[channel]);
        const int32_t code = y != y ? 0 : y >= 127 ? 127 : y <= -127 ? -127 : kvc_nearest(y);
        int8_t *to = (int8_t *)(uintptr_t)s->to + (uint64_t)(op->row + t->row + r) * s->stride +
                     channel;
        *to = (int8_t)code;
    }
}

#endif
