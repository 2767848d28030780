/* subtract_rows.h: subtract_rows by vectors of the DOUBLES numbers that a file which includes it
 * defines. Not for other products. */
#include "kernels/twins.h"

#include <string.h>

typedef double doubles __attribute__((vector_size(8 * DOUBLES)));

/* Takes the rows from 1 to 4 vectors, which stay in registers. Inlined with a constant number. */
static inline __attribute__((always_inline)) void take_from(double *y, const double *x,
                                                            size_t stride, const double *s,
                                                            size_t step, size_t rows,
                                                            size_t vectors) {
    doubles left[4];
#pragma GCC unroll 4
    for (size_t v = 0; v < vectors; v++) memcpy(&left[v], y + v * DOUBLES, sizeof left[v]);
    for (size_t r = 0; r < rows; r++, x += stride, s += step) {
        const doubles factor = *s - (doubles){0}; /* in all places; + 0 would make -0 a +0 */
#pragma GCC unroll 4
        for (size_t v = 0; v < vectors; v++) {
            doubles row;
            memcpy(&row, x + v * DOUBLES, sizeof row);
            left[v] -= factor * row;
        }
    }
#pragma GCC unroll 4
    for (size_t v = 0; v < vectors; v++) memcpy(y + v * DOUBLES, &left[v], sizeof left[v]);
}

static inline void subtract_rows(double *y, const double *x, size_t stride, const double *s,
                                 size_t step, size_t rows, size_t n) {
    size_t i = 0;
    for (; i + 4 * DOUBLES <= n; i += 4 * DOUBLES)
        take_from(y + i, x + i, stride, s, step, rows, 4);
    for (; i + DOUBLES <= n; i += DOUBLES) take_from(y + i, x + i, stride, s, step, rows, 1);
    kvc_subtract_rows_ref(y + i, x + i, stride, s, step, rows, n - i);
}
