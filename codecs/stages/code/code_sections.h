/* code_sections.h: the sections TABLES and CODES of the stage `code`, and decoding them. Spec:
 * code.md. For code.c and code_decode.c. */
#ifndef KVC_CODE_SECTIONS_H
#define KVC_CODE_SECTIONS_H

#include "codecs/stage.h"

/* Arguments of the stage. */
enum { KVC_CODE_STEP, KVC_CODE_KLD, KVC_CODE_LANES, KVC_CODE_ARGS };

enum {
    KVC_CODE_TABLE_RICE = 1, /* parameter of the differences of indices */
    KVC_CODE_INDEX_BITS = 6, /* of a head's first index */
    KVC_CODE_HEADER = 4,     /* bytes before the states of CODES: size of the words */
    KVC_CODE_VALUES_A_LANE = 512
};

/* Returns the lanes of a block: half as many, and again, while a lane would have few values. */
static inline unsigned kvc_code_lanes(const struct kvc_stage_args *args, size_t values) {
    unsigned lanes = (unsigned)args->i[KVC_CODE_LANES];
    while (lanes > 1 && values < (size_t)lanes * KVC_CODE_VALUES_A_LANE) lanes /= 2;
    return lanes;
}

/* Reads the section TABLES. */
int kvc_code_read_indices(const struct kvc_section *s, uint8_t *index, size_t heads, size_t dim,
                          struct kvc_error *e);

/* Decoding, as of a stage (stage.h). */
int kvc_code_rows_begin(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                        const struct kvc_block *block, void **state, struct kvc_error *e);
int kvc_code_rows_next(void *state, struct kvc_row_run *run, struct kvc_error *e);
int kvc_code_rows_next_two(void *const state[2], struct kvc_row_run run[2], struct kvc_error *e);
int kvc_code_rows_end(void *state, int done, struct kvc_error *e);
int kvc_code_lower(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                   struct kvc_block *block, struct kvc_program *program, struct kvc_error *e);

#endif
