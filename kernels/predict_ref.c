/* predict_ref.c: portable reference of the kernels of prediction: small integers of values, and
 * products of these. Not for products of floats (products_ref.c). */
#include "kernels/twins.h"

#include <math.h>

void kvc_small_codes_ref(int8_t *to, const float *x, const float *mean, const float *gain,
                         size_t n) {
    for (size_t i = 0; i < n; i++) {
        const float y = (x[i] - mean[i]) * gain[i];
        to[i] = (int8_t)(y != y ? 0 : rintf(y > 127 ? 127 : y < -127 ? -127 : y));
    }
}

void kvc_dot_rows_ref(float *y, const int8_t *x, size_t rows, const struct kvc_dot_matrix *m) {
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < m->outputs; i++) {
            int32_t sum = 0;
            for (size_t j = 0; j < m->inputs; j++)
                sum += x[r * m->inputs + j] * m->weights[kvc_dot_place(m->inputs, i, j)];
            y[r * m->outputs + i] = (float)sum * m->scale[i] + m->mean[i];
        }
}
