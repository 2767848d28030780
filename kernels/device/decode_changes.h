/* decode_changes.h: operations that change values of a tile one by one: values put in their places,
 * factors and sums, rotations, dtypes. Not for products (decode_products.h). */
#ifndef KVC_DECODE_CHANGES_H
#define KVC_DECODE_CHANGES_H

#include "kernels/device/decode_tile.h"

/* --- places --- */

/* Returns the fault of outlier i of a vector: its index does not ascend, or reaches the vector's
 * length, or its value is not finite. */
KVC_DEVICE uint32_t kvc_outlier_fault(const struct kvc_outliers_op *o, uint32_t i, uint32_t begin) {
    const uint8_t *all = KVC_BYTES(o->index);
    const uint32_t index = kvc_value_at(all, i, o->index_bytes),
                   before = i > begin ? kvc_value_at(all, i - 1, o->index_bytes) : 0;
    const float x = kvc_widen(kvc_value_at(KVC_BYTES(o->value), i, kvc_value_bytes(o->dtype)),
                              o->dtype);
    return (index >= o->length || (i > begin && index <= before) ? KVC_FAULT_INDEX : 0u) |
           ((kvc_as_bits(x) & 0x7f800000u) == 0x7f800000u ? KVC_FAULT_NUMBER : 0u);
}

/* Puts outliers in their places, outlier.md. Where vectors are channels, the first tile of a run
 * checks all their outliers, so that others need only find their own: indices ascend. */
KVC_DEVICE void kvc_op_outliers(const struct kvc_device_op *op, struct kvc_tile *t) {
    const struct kvc_outliers_op o = op->outliers;
    const uint32_t *start = o.start ? KVC_WORDS(o.start) : 0;
    const uint32_t first = op->row + t->row, from = t->head * op->dim + t->column;
    const uint32_t least = o.columns ? first : from,
                   end_index = least + (o.columns ? t->rows : t->width),
                   checks = !o.columns || t->row == 0;
    KVC_LANE_VAR(uint32_t, index_fault);
    KVC_LANE_VAR(uint32_t, number_fault);
    KVC_EACH_LANE {
        KVC_AT(index_fault) = KVC_AT(number_fault) = 0;
    }
    /* a lane has a channel, or all lanes a row */
    for (uint32_t v = 0; v < (o.columns ? t->width : t->rows); v += o.columns ? KVC_LANES : 1) {
        KVC_EACH_LANE {
            const uint32_t own = o.columns ? v + lane : v, inside = !o.columns || own < t->width;
            const uint32_t vector = o.columns ? from + own : first + own,
                           step = o.columns ? 1 : KVC_LANES;
            const uint32_t begin = !inside ? 0 : start ? start[vector] : vector * o.each;
            const uint32_t end = !inside ? 0 : start ? start[vector + 1] : begin + o.each;
            for (uint32_t i = begin + (o.columns ? 0 : lane); i < end; i += step) {
                const uint32_t index = kvc_value_at(KVC_BYTES(o.index), i, o.index_bytes);
                if (checks) {
                    const uint32_t fault = kvc_outlier_fault(&o, i, begin);
                    KVC_AT(index_fault) |= fault & KVC_FAULT_INDEX;
                    KVC_AT(number_fault) |= fault & KVC_FAULT_NUMBER;
                } else if (index >= end_index) break;
                if (index < least || index >= end_index) continue;
                const uint32_t r = o.columns ? index - first : own,
                               c = o.columns ? own : index - from,
                               word = kvc_value_at(KVC_BYTES(o.value), i, kvc_value_bytes(o.dtype));
                KVC_VALUE(t) = kvc_as_bits(kvc_widen(word, o.dtype));
            }
        }
    }
    if (kvc_ballot(index_fault)) t->fault |= KVC_FAULT_INDEX;
    if (kvc_ballot(number_fault)) t->fault |= KVC_FAULT_NUMBER;
}

/* Puts single values in their places, finite.md. */
KVC_DEVICE void kvc_op_patch(const struct kvc_device_op *op, struct kvc_tile *t) {
    const uint32_t width = op->heads * op->dim, first = op->row + t->row;
    KVC_EACH_LANE {
        for (uint32_t i = lane; i < op->patch.n; i += KVC_LANES) {
            const uint32_t at = kvc_load32(KVC_BYTES(op->patch.number) + 4 * (uint64_t)i),
                           r = at / width - first;
            const uint32_t c = at % width - (t->head * op->dim + t->column);
            if (at / width >= first && r < t->rows && c < t->width)
                KVC_VALUE(t) = kvc_value_at(KVC_BYTES(op->patch.value), i, op->patch.size);
        }
    }
}

/* Moves channels to their places among left-out channels, prune.md. Tiles are of whole heads. */
KVC_DEVICE void kvc_op_spread(const struct kvc_device_op *op, struct kvc_tile *t) {
    const uint32_t stored = op->spread.stored,
                   *empty = op->spread.empty ? KVC_WORDS(op->spread.empty) : 0;
    for (uint32_t r = 0; r < t->rows; r++)
        KVC_EACH_LANE for (uint32_t c = lane; c < op->dim; c += KVC_LANES) {
            const uint64_t channel = (uint64_t)t->head * op->dim + c;
            const uint32_t from = kvc_load16(KVC_BYTES(op->spread.map) + 2 * channel);
            t->other[r * op->dim + c] = from < stored ? t->word[r * stored + from]
                                        : empty       ? empty[channel]
                                                      : 0;
        }
    t->width = op->dim;
    kvc_tile_swap(t);
}

/* --- factors and sums --- */

/* Multiplies rows by their norms, merge.md. */
KVC_DEVICE void kvc_op_norms(const struct kvc_device_op *op, struct kvc_tile *t) {
    KVC_EACH_VALUE(t) {
        const uint64_t i = (uint64_t)(op->row + t->row + r) * op->norms.each +
                           (op->norms.each > 1 ? t->head : 0);
        KVC_VALUE(t) = kvc_as_bits(
            kvc_times(KVC_FLOATS(op->norms.norms)[i], kvc_tile_float(t, r, c)));
    }
}

/* Multiplies rows by their steps, steps.md. */
KVC_DEVICE void kvc_op_steps(const struct kvc_device_op *op, struct kvc_tile *t) {
    const int8_t *step_class = (const int8_t *)(uintptr_t)op->steps.step_class;
    for (uint32_t r = 0; r < t->rows; r++) {
        const int32_t step = step_class[(uint64_t)(op->row + t->row + r) * op->heads + t->head];
        if (!step) continue;
        /* 2^(step / 2): a power of two, or the root of two times one */
        const uint32_t odd = (uint32_t)step & 1u;
        const float by = kvc_as_float((odd ? 0x3fb504f3u : 0x3f800000u) +
                                      (uint32_t)((step - (int32_t)odd) / 2 * (1 << 23)));
        KVC_EACH_LANE for (uint32_t c = lane; c < t->width; c += KVC_LANES)
            KVC_VALUE(t) = kvc_as_bits(kvc_times(by, kvc_tile_float(t, r, c)));
    }
}

/* Multiplies or adds a number a channel: basis.md, kind 0, and center.md. */
KVC_DEVICE void kvc_op_scale(const struct kvc_device_op *op, struct kvc_tile *t) {
    KVC_EACH_VALUE(t)
    KVC_VALUE(t) = kvc_as_bits(
        kvc_times(kvc_tile_float(t, r, c),
                  KVC_FLOATS(op->channels.number)[kvc_op_channel(op, t, c)]));
}
KVC_DEVICE void kvc_op_mean(const struct kvc_device_op *op, struct kvc_tile *t) {
    KVC_EACH_VALUE(t)
    KVC_VALUE(t) = kvc_as_bits(kvc_add(kvc_tile_float(t, r, c),
                                       KVC_FLOATS(op->channels.number)[kvc_op_channel(op, t, c)]));
}

/* Rotates rows by their positions, derope.md; the tile's first is row `first` of the block. Tiles
 * are of whole heads. */
KVC_DEVICE void kvc_turn_words(const struct kvc_turn_op *turn, const struct kvc_tile *t,
                               uint32_t *word, uint32_t first) {
    const uint32_t pairs = turn->pairs, halves = turn->halves;
    for (uint32_t r = 0; r < t->rows; r++) {
        const uint32_t p = KVC_BYTES(turn->position)[first + r];
        const double *a = (const double *)(uintptr_t)turn->high + (uint64_t)(p / 16) * 2 * pairs;
        const double *b = (const double *)(uintptr_t)turn->low + (uint64_t)(p % 16) * 2 * pairs;
        KVC_EACH_LANE for (uint32_t i = lane; i < pairs; i += KVC_LANES) {
            const double c = a[i], s = a[pairs + i], c2 = b[i], s2 = b[pairs + i];
            const float cosine = kvc_narrow(
                kvc_add_double(kvc_times_double(c, c2), -kvc_times_double(s, s2)));
            const float forward = kvc_narrow(
                kvc_add_double(kvc_times_double(c, s2), kvc_times_double(s, c2)));
            const float sine = turn->back ? -forward : forward;
            uint32_t *u = word + r * t->width + (halves ? i : 2 * i), *v = u + (halves ? pairs : 1);
            const float x = kvc_as_float(*u), y = kvc_as_float(*v);
            *u = kvc_as_bits(kvc_add(kvc_times(x, cosine), -kvc_times(y, sine)));
            *v = kvc_as_bits(kvc_add(kvc_times(y, cosine), kvc_times(x, sine)));
        }
    }
}

KVC_DEVICE void kvc_op_turn(const struct kvc_device_op *op, struct kvc_tile *t) {
    kvc_turn_words(&op->turn, t, t->word, op->row + t->row);
}

/* Convert between a dtype and binary32. */
KVC_DEVICE void kvc_op_widen(const struct kvc_device_op *op, struct kvc_tile *t) {
    const uint32_t dtype = op->convert.dtype;
    KVC_EACH_VALUE(t) KVC_VALUE(t) = kvc_as_bits(kvc_widen(KVC_VALUE(t), dtype));
}
KVC_DEVICE void kvc_op_round(const struct kvc_device_op *op, struct kvc_tile *t) {
    const uint32_t dtype = op->convert.dtype;
    KVC_EACH_VALUE(t) KVC_VALUE(t) = kvc_round(kvc_tile_float(t, r, c), dtype);
}

#endif
