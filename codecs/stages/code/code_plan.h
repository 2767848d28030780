/* code_plan.h: how the stage `code` codes each component at each step class: its fixed tables as
 * the coder takes them, and plans made from a segment's indices. Spec: code.md, "Tables". Not for
 * choosing indices or for codes (code.c). */
#ifndef KVC_CODE_PLAN_H
#define KVC_CODE_PLAN_H

#include "codecs/error.h"
#include "codecs/tables.h"

#include "kernels/rans_state.h"

#include <stddef.h>
#include <stdint.h>

enum {
    KVC_CODE_INDICES = 64,
    KVC_CODE_CLASSES = 16,   /* of step classes, -8 to 7, for arrays */
    KVC_CODE_CLASS_ZERO = 8, /* class 0 in arrays */
    KVC_CODE_SLOTS = KVC_CODE_TABLES << KVC_CODE_BITS
};

/* Returns the low bits that are taken off a code before the scale of its index has a table, and
 * that table. */
unsigned kvc_code_shift(unsigned index);
unsigned kvc_code_table(unsigned index);
/* Returns the index for rows of a step class: a step larger by half octaves makes codes of a scale
 * as much smaller. */
unsigned kvc_code_index_at(unsigned index, int class);

/* Sets the frequencies of all symbols of a table. */
void kvc_code_frequencies(uint16_t to[KVC_CODE_SYMBOLS], unsigned table);

/* All tables, as kernels take them: KVC_CODE_SLOTS slots; KVC_CODE_TABLES times KVC_CODE_SYMBOLS
 * rows. Made on first use. Thread-safe. */
const uint32_t *kvc_code_slots(void);
const struct kvc_rans_symbol *kvc_code_rows(void);

/* How each component of each head is coded at one step class. */
struct kvc_code_way {
    uint16_t *base; /* [head][component]: where its table begins */
    /* [head][i]: the components that lose low bits, ascending; NULL: nothing is made yet */
    uint32_t *shifted;
    uint32_t *n_shifted; /* [head] */
    uint8_t *shift;      /* [head][component]: low bits that it loses */
    /* [head][component]: smaller codes have symbols of their own, and lose no low bits */
    uint8_t *limit;
};

struct kvc_code_plan {
    size_t heads, dim;
    const uint8_t *index; /* [head][component], below KVC_CODE_INDICES */
    unsigned factor;      /* of tables in base[]: slots or rows a table */
    struct kvc_code_way at[KVC_CODE_CLASSES];
};

/* Returns the ways of a step class, from -8 to 7, or NULL. Made on first use. */
static inline const struct kvc_code_way *kvc_code_plan_at(struct kvc_code_plan *p, int class,
                                                          struct kvc_error *e);
void kvc_code_plan_free(struct kvc_code_plan *p);

/* --- inline, as each head of each row asks --- */

const struct kvc_code_way *kvc_code_plan_make(struct kvc_code_plan *p, int class,
                                              struct kvc_error *e);

static inline const struct kvc_code_way *kvc_code_plan_at(struct kvc_code_plan *p, int class,
                                                          struct kvc_error *e) {
    const struct kvc_code_way *way = &p->at[class + KVC_CODE_CLASS_ZERO];
    return way->shifted ? way : kvc_code_plan_make(p, class, e);
}

#endif
