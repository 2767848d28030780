/* dot_rows_neon.h: dot_rows for NEON, of which the instruction that multiplies is a parameter:
 * predict_neon.c and predict_neondot.c have one each. Not for other files. */
#ifndef KVC_DOT_ROWS_NEON_H
#define KVC_DOT_ROWS_NEON_H

#include "kernels/dot_matrix.h"

#include <arm_neon.h>
#include <string.h>

/* Adds to the sums of four outputs the products of their weights, four each, by the same four
 * inputs, which are repeated. */
typedef int32x4_t kvc_dot_four_fn(int32x4_t sum, int8x16_t weights, int8x16_t inputs);

enum { KVC_DOT_ROWS = 4, KVC_DOT_VECTORS = KVC_DOT_BLOCK / 4 }; /* of a tile */

/* Multiplies `rows` rows, 1 or KVC_DOT_ROWS, by a block of outputs: sixteen vectors of sums stay in
 * registers. Inlined with constant numbers. */
static inline __attribute__((always_inline)) void
kvc_dot_tile(float *y, const int8_t *x, size_t rows, const struct kvc_dot_matrix *m, size_t first,
             kvc_dot_four_fn *dot_four) {
    const int8_t *weights = m->weights + kvc_dot_place(m->inputs, first, 0);
    int32x4_t sum[KVC_DOT_ROWS][KVC_DOT_VECTORS];
#pragma GCC unroll 4
    for (size_t r = 0; r < KVC_DOT_ROWS; r++)
        sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = vdupq_n_s32(0);
    for (size_t j = 0; j < m->inputs; j += KVC_DOT_STEP, weights += KVC_DOT_STEP * KVC_DOT_BLOCK) {
        const int8x16_t w0 = vld1q_s8(weights), w1 = vld1q_s8(weights + 16),
                        w2 = vld1q_s8(weights + 32), w3 = vld1q_s8(weights + 48);
#pragma GCC unroll 4
        for (size_t r = 0; r < KVC_DOT_ROWS; r++) {
            int32_t four;
            if (r >= rows) continue;
            memcpy(&four, x + r * m->inputs + j, sizeof four);
            const int8x16_t row = vreinterpretq_s8_s32(vdupq_n_s32(four));
            sum[r][0] = dot_four(sum[r][0], w0, row);
            sum[r][1] = dot_four(sum[r][1], w1, row);
            sum[r][2] = dot_four(sum[r][2], w2, row);
            sum[r][3] = dot_four(sum[r][3], w3, row);
        }
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < KVC_DOT_ROWS; r++) {
        if (r >= rows) continue;
#pragma GCC unroll 4
        for (size_t v = 0; v < KVC_DOT_VECTORS; v++) {
            const float32x4_t values = vcvtq_f32_s32(sum[r][v]);
            const size_t at = first + 4 * v;
            float *to = y + r * m->outputs + at, rest[4];
            if (at + 4 <= m->outputs) {
                vst1q_f32(to, vaddq_f32(vmulq_f32(values, vld1q_f32(m->scale + at)),
                                        vld1q_f32(m->mean + at)));
                continue;
            }
            vst1q_f32(rest, values);
            for (size_t i = 0; at + i < m->outputs; i++)
                to[i] = rest[i] * m->scale[at + i] + m->mean[at + i];
        }
    }
}

/* Weights of a block of outputs stay in the cache for all rows. */
static inline __attribute__((always_inline)) void kvc_dot_rows(float *y, const int8_t *x,
                                                               size_t rows,
                                                               const struct kvc_dot_matrix *m,
                                                               kvc_dot_four_fn *dot_four) {
    for (size_t i = 0; i < m->outputs; i += KVC_DOT_BLOCK) {
        size_t r = 0;
        for (; r + KVC_DOT_ROWS <= rows; r += KVC_DOT_ROWS)
            kvc_dot_tile(y + r * m->outputs, x + r * m->inputs, KVC_DOT_ROWS, m, i, dot_four);
        for (; r < rows; r++)
            kvc_dot_tile(y + r * m->outputs, x + r * m->inputs, 1, m, i, dot_four);
    }
}

#endif
