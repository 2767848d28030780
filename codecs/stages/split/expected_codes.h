/* expected_codes.h: biases and contexts of the codes of q8_0, from what is expected of their
 * values. Spec: stages/cross/cross.md, "PARAMS with turn 3". Not for words of floats
 * (kernels/kernels.h, model_words). */
#ifndef KVC_EXPECTED_CODES_H
#define KVC_EXPECTED_CODES_H

#include <stddef.h>
#include <stdint.h>

/* Sets n biases and contexts (0 to 7, shifted left by context_shift) of a row of q8_0; n is a
 * multiple of 32. `expected` and `variance` are those of the values; `row` is the canonical row, of
 * which the scales alone are read. */
void kvc_expected_codes(uint16_t *bias, uint16_t *context, const float *expected,
                        const float *variance, const uint8_t *row, size_t n,
                        unsigned context_shift);

#endif
