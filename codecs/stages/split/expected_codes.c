/* expected_codes.c: biases and contexts of the codes of q8_0. */
#include "codecs/stages/split/expected_codes.h"

#include "kernels/kernels.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { CODES = 32, BLOCK_BYTES = 34, CONTEXTS = 8 };
/* a small number added to it is rounded to an integer, ties to even; rintf() would not be
 * vectorised */
#define ROUND 0x1.8p23f
enum { LEAST_OCTAVE = 3 }; /* of a variance in squares of the scale, which has context 0 */

/* Of a block whose scale is d. */
static void of_block(uint16_t *restrict bias, uint16_t *restrict context,
                     const float *restrict expected, const float *restrict variance, float d,
                     unsigned context_shift) {
    const float square = d * d;
    int32_t unit;
    memcpy(&unit, &square, sizeof unit);
    for (size_t i = 0; i < CODES; i++) {
        const float code = expected[i] / d, held = code < -127 ? -127 : code < 127 ? code : 127;
        int32_t bits;
        memcpy(&bits, &variance[i], sizeof bits);
        const int32_t octave = ((bits - unit) >> 23) - LEAST_OCTAVE;
        bias[i] = (uint16_t)((int32_t)((held + ROUND) - ROUND) & 255);
        context[i] = (uint16_t)((octave < 0          ? 0
                                 : octave < CONTEXTS ? octave
                                                     : CONTEXTS - 1)
                                << context_shift);
    }
}

void kvc_expected_codes(uint16_t *bias, uint16_t *context, const float *expected,
                        const float *variance, const uint8_t *row, size_t n,
                        unsigned context_shift) {
    for (size_t k = 0; k < n; k += CODES, row += BLOCK_BYTES) {
        const float d = kvc_half_to_float((uint16_t)(row[0] | row[1] << 8));
        if (d != 0 && fabsf(d) <= FLT_MAX) {
            of_block(bias + k, context + k, expected + k, variance + k, d, context_shift);
            continue;
        }
        memset(bias + k, 0, CODES * sizeof *bias);
        memset(context + k, 0, CODES * sizeof *context);
    }
}
