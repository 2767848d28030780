/* tables.h: the fixed frequency tables of the stage `code`. Spec: code.md, "Tables". Not for tables
 * that are measured and stored (rans.h). */
#ifndef KVC_TABLES_H
#define KVC_TABLES_H

#include "kernels/rans_state.h"

#include <stdint.h>

enum {
    KVC_CODE_TABLES = 32, /* scales 2^-3.4, 2^-3.2 ... 2^2.8 */
    /* value + KVC_CODE_MIDDLE, or KVC_CODE_ESCAPE for values without a symbol */
    KVC_CODE_SYMBOLS = 128,
    KVC_CODE_MIDDLE = 63,
    KVC_CODE_ESCAPE = 127,
    KVC_CODE_BITS = 11
};

/* Frequencies of 0, 1, 2 ... in each table, 0 from the first value on that has no symbol. Negative
 * values have those of the positive ones; the escape has what is left of 2^KVC_CODE_BITS. */
extern const uint16_t kvc_code_half[KVC_CODE_TABLES][KVC_CODE_MIDDLE];

#endif
