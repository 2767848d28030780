/* row_runs.c: runs of rows through stages. */
#include "codecs/row_runs.h"

#include "codecs/floats.h"
#include "codecs/memory.h"

#include <stdlib.h>
#include <string.h>

/* Values of a run of one block: 32 KB of binary32, and as much to spare. Of wide rows more are
 * taken, since a run reads what stages have for every row, as bases are. */
enum { VALUES = 8192, LEAST_ROWS = 16 };

int kvc_row_runs_add(struct kvc_row_runs *r, const struct kvc_stage *stage,
                     const struct kvc_stage_args *args, const struct kvc_stored *stored,
                     const struct kvc_block *block, struct kvc_error *e) {
    struct kvc_row_stage *at = &r->at[r->n++];
    *at = (struct kvc_row_stage){.stage = stage, .stored = stored};
    if (!stage->rows_begin(args, stored, block, &at->state, e)) return 0;
    r->failed = at;
    return -1;
}

/* Decodes a run of as many rows of each of n blocks, one or two. */
static int decode_run(struct kvc_row_runs *const r[], unsigned n, struct kvc_row_run *run,
                      struct kvc_error *e) {
    for (unsigned i = 0; i < r[0]->n; i++) {
        const struct kvc_stage *s = r[0]->at[i].stage;
        const int both = n == 2 && s->rows_next_two;
        if (both && s->rows_next_two((void *const[]){r[0]->at[i].state, r[1]->at[i].state}, run, e))
            return -1;
        for (unsigned b = 0; b < n && !both; b++)
            if (s->rows_next(r[b]->at[i].state, &run[b], e)) {
                r[b]->failed = &r[b]->at[i];
                return -1;
            }
    }
    return 0;
}

/* Rows of a run, and room for them. */
struct room {
    size_t width, rows, size; /* values of a row; rows of a run; bytes of a value that is decoded */
    float *run[2], *spare[2];
};

static int room_init(struct room *m, const struct kvc_shape *shape, enum kvc_dtype dtype,
                     unsigned runs, struct kvc_error *e) {
    m->width = (size_t)(shape->heads * shape->dim);
    m->size = kvc_dtype_info(dtype)->size;
    const size_t fit = m->width ? VALUES / m->width : (size_t)shape->tokens;
    m->rows = fit > LEAST_ROWS ? fit : LEAST_ROWS;
    const size_t n = m->rows * m->width;
    if (!(m->run[0] = kvc_alloc_lines(2 * runs * n, sizeof(float))))
        return kvc_fail_memory(e, "rows");
    m->spare[0] = m->run[0] + n;
    m->run[1] = m->spare[0] + n;
    m->spare[1] = m->run[1] + n;
    return 0;
}

/* Decodes rows [first, end) of each of n blocks. */
static int decode_rows(struct kvc_row_runs *const r[], unsigned n, const struct room *m,
                       size_t first, size_t end, const float *from, uint8_t *const to[],
                       enum kvc_dtype dtype, struct kvc_error *e) {
    for (size_t i = first; i < end; i += m->rows) {
        const size_t rows = end - i < m->rows ? end - i : m->rows;
        struct kvc_row_run run[2];
        for (unsigned b = 0; b < n; b++)
            run[b] = (struct kvc_row_run){i, rows, m->run[b], m->spare[b]};
        if (from) memcpy(run[0].rows, from + i * m->width, rows * m->width * sizeof *from);
        if (decode_run(r, n, run, e)) return -1;
        for (unsigned b = 0; b < n; b++)
            kvc_from_floats(to[b] + i * m->width * m->size, run[b].rows, rows * m->width, dtype);
    }
    return 0;
}

int kvc_row_runs_decode(struct kvc_row_runs *r, const struct kvc_shape *shape, float *from,
                        uint8_t *to, enum kvc_dtype dtype, struct kvc_error *e) {
    struct room m;
    if (room_init(&m, shape, dtype, 1, e)) return -1;
    const int status = decode_rows(&r, 1, &m, 0, (size_t)shape->tokens, from, &to, dtype, e);
    free(m.run[0]);
    return status;
}

int kvc_row_runs_decode_two(struct kvc_row_runs *const r[2], const struct kvc_shape *const shape[2],
                            uint8_t *const to[2], enum kvc_dtype dtype, struct kvc_error *e) {
    const size_t rows[] = {(size_t)shape[0]->tokens, (size_t)shape[1]->tokens},
                 both = rows[0] < rows[1] ? rows[0] : rows[1];
    struct room m;
    if (room_init(&m, shape[0], dtype, 2, e)) return -1;
    int status = decode_rows(r, 2, &m, 0, both, NULL, to, dtype, e);
    for (int b = 0; b < 2 && !status; b++)
        status = decode_rows(&r[b], 1, &m, both, rows[b], NULL, &to[b], dtype, e);
    free(m.run[0]);
    return status;
}

int kvc_row_runs_end(struct kvc_row_runs *r, int done, struct kvc_error *e) {
    int status = 0;
    for (unsigned i = 0; i < r->n; i++)
        if (!r->at[i].stage->rows_end) {
            free(r->at[i].state);
        } else if (r->at[i].stage->rows_end(r->at[i].state, done && !status, e)) {
            r->failed = &r->at[i];
            status = -1;
        }
    r->n = 0;
    return status;
}
