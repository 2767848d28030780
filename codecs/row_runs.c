/* row_runs.c: runs of rows through stages. */
#include "codecs/row_runs.h"

#include "codecs/floats.h"
#include "codecs/memory.h"

#include <string.h>

/* Values of a run: 16 KB of binary32, and as much to spare. Of wide rows more are taken, since a run reads what stages have for every
 * row, as bases are. */
enum { VALUES = 4096, LEAST_ROWS = 16 };

int kvc_row_runs_add(struct kvc_row_runs *r, const struct kvc_stage *stage, const struct kvc_stage_args *args,
                     const struct kvc_stored *stored, const struct kvc_block *block, struct kvc_error *e) {
    struct kvc_row_stage *at = &r->at[r->n++];
    *at = (struct kvc_row_stage){.stage = stage, .stored = stored};
    if (!stage->rows_begin(args, stored, block, &at->state, e)) return 0;
    r->failed = at;
    return -1;
}

static int decode_run(struct kvc_row_runs *r, struct kvc_row_run *run, struct kvc_error *e) {
    for (unsigned i = 0; i < r->n; i++)
        if (r->at[i].stage->rows_next(r->at[i].state, run, e)) {
            r->failed = &r->at[i];
            return -1;
        }
    return 0;
}

int kvc_row_runs_decode(struct kvc_row_runs *r, const struct kvc_shape *shape, float *from, uint8_t *to, enum kvc_dtype dtype,
                        struct kvc_error *e) {
    const size_t width = (size_t)(shape->heads * shape->dim), rows = (size_t)shape->tokens, size = kvc_dtype_info(dtype)->size;
    const size_t fit = width ? VALUES / width : rows, most = fit > LEAST_ROWS ? fit : LEAST_ROWS, room = most * width;
    float *buffer = kvc_alloc_lines(2 * room, sizeof *buffer);
    int status = buffer ? 0 : kvc_fail_memory(e, "rows");
    for (size_t i = 0; i < rows && !status; i += most) {
        struct kvc_row_run run = {.first = i, .n = rows - i < most ? rows - i : most, .rows = buffer, .spare = buffer + room};
        if (from) memcpy(run.rows, from + i * width, run.n * width * sizeof *from);
        if (!(status = decode_run(r, &run, e))) kvc_from_floats(to + i * width * size, run.rows, run.n * width, dtype);
    }
    free(buffer);
    return status;
}

int kvc_row_runs_end(struct kvc_row_runs *r, int done, struct kvc_error *e) {
    int status = 0;
    for (unsigned i = 0; i < r->n; i++)
        if (r->at[i].stage->rows_end(r->at[i].state, done && !status, e)) {
            r->failed = &r->at[i];
            status = -1;
        }
    r->n = 0;
    return status;
}
