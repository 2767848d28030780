/* kept.c: rows that are taken out of a matrix, coded by `split`, and put back. Spec: kept.md. */
#include "codecs/stages/ends/kept.h"

#include "codecs/memory.h"

#include <stdlib.h>
#include <string.h>

static uint64_t kept_count(const uint8_t *mask, uint64_t rows) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < rows; i++) n += mask[i] != 0;
    return n;
}

/* Closes the gaps that taken rows leave in an array of rows of `size` bytes. */
static void close_gaps(uint8_t *rows, size_t size, const uint8_t *mask, uint64_t n) {
    uint64_t to = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (mask[i]) continue;
        if (to != i) memcpy(rows + to * size, rows + i * size, size);
        to++;
    }
}

void kvc_kept_open(struct kvc_block *block, const uint8_t *mask) {
    if (block->salient)
        close_gaps(block->salient, (size_t)block->shape.heads, mask, block->shape.tokens);
    if (block->row)
        close_gaps((uint8_t *)block->row, sizeof *block->row, mask, block->shape.tokens);
    block->shape.tokens -= kept_count(mask, block->shape.tokens);
}

int kvc_kept_encode(struct kvc_block *block, const uint8_t *mask, uint8_t stage,
                    struct kvc_sections *out, struct kvc_error *e) {
    const size_t size = (size_t)kvc_row_bytes(&block->shape);
    const uint64_t rows = block->shape.tokens;
    struct kvc_block kept = {.shape = block->shape};
    struct kvc_stage_args args;
    kept.shape.tokens = kept_count(mask, rows);
    if (!kept.shape.tokens) return 0;
    if (!(kept.rows = kvc_alloc(kept.shape.tokens, size))) return kvc_fail_memory(e, "kept rows");
    uint64_t to = 0;
    for (uint64_t i = 0; i < rows; i++)
        if (mask[i]) memcpy(kept.rows + to++ * size, block->rows + i * size, size);
    close_gaps(block->rows, size, mask, rows);
    kvc_kept_open(block, mask);
    const int status = !block->looked &&
                       (kvc_stage_parse(&kvc_stage_split, "", &args, e) ||
                        kvc_stage_split.encode(&args, NULL, &kept, stage, out, e));
    free(kept.rows);
    return status ? -1 : 0;
}

int kvc_kept_decode(struct kvc_block *block, const uint8_t *mask,
                    const struct kvc_section *sections, size_t n, struct kvc_error *e) {
    const size_t size = (size_t)kvc_row_bytes(&block->shape);
    const struct kvc_stored stored = {.section = sections, .n = n};
    struct kvc_block kept = {.shape = block->shape};
    struct kvc_stage_args args;
    kept.shape.tokens = kept_count(mask, block->shape.tokens);
    if (!kept.shape.tokens) return kvc_section_none_left(sections, sections + n, e);
    if (!(kept.rows = kvc_alloc(kept.shape.tokens, size))) return kvc_fail_memory(e, "kept rows");
    int status = kvc_stage_parse(&kvc_stage_split, "", &args, e) ||
                 kvc_stage_split.decode(&args, &stored, &kept, e);
    /* from the end, so that no row is overwritten before it has moved */
    uint64_t own = block->handed.tokens, from = kept.shape.tokens;
    for (uint64_t i = block->shape.tokens; i-- > 0 && !status;) {
        if (mask[i]) memcpy(block->rows + i * size, kept.rows + --from * size, size);
        else if (--own != i) memcpy(block->rows + i * size, block->rows + own * size, size);
    }
    free(kept.rows);
    return status ? -1 : 0;
}

int kvc_kept_lower(struct kvc_program *p, const struct kvc_shape *shape, const uint8_t *mask,
                   const struct kvc_section *sections, size_t n, struct kvc_error *e) {
    const struct kvc_stored stored = {.section = sections, .n = n};
    struct kvc_block kept = {.shape = *shape, .own = shape->dtype};
    struct kvc_stage_args args;
    struct kvc_program own = *p; /* shares the memory and the jobs; its runs are of its own */
    kept.shape.tokens = 0;
    for (uint64_t i = 0; i < shape->tokens; i++) kept.shape.tokens += mask[i] != 0;
    if (!kept.shape.tokens) return kvc_section_none_left(sections, sections + n, e);
    kept.handed = kept.shape;
    own.run = NULL;
    own.n_runs = own.run_room = 0;
    if (kvc_stage_parse(&kvc_stage_split, "", &args, e)) return -1;
    int status = kvc_stage_split.lower(&args, &stored, &kept, &own, e);
    p->job = own.job;
    p->n_jobs = own.n_jobs;
    p->job_room = own.job_room;
    /* both matrices' runs, cut where rows of the other stand between */
    struct kvc_program_run *const left = p->run;
    const size_t n_left = p->n_runs;
    uint64_t at[2] = {0, 0}; /* next row of the matrix, and of the kept rows */
    p->run = NULL;
    p->n_runs = p->run_room = 0;
    for (uint64_t i = 0, end; i < shape->tokens && !status; i = end) {
        const unsigned from = mask[i] != 0;
        for (end = i; end < shape->tokens && (mask[end] != 0) == from;) end++;
        for (uint64_t row = i; row < end && !status;) {
            const struct kvc_program_run *list = from ? own.run : left, *run = NULL;
            for (size_t k = 0; k < (from ? own.n_runs : n_left); k++)
                if (at[from] >= list[k].first && at[from] < list[k].first + list[k].rows)
                    run = &list[k];
            if (!run) {
                status = kvc_fail(e, KVC_ERR_DAMAGED, "rows are missing");
                break;
            }
            const uint64_t skip = at[from] - run->first, most = run->rows - skip,
                           rows = end - row < most ? end - row : most;
            struct kvc_program_run *to = kvc_program_run(p, row, rows, e);
            if (!to) {
                status = -1;
                break;
            }
            to->n = run->n;
            for (unsigned k = 0; k < run->n; k++) {
                to->op[k] = run->op[k];
                to->op[k].row += (uint32_t)skip;
            }
            at[from] += rows;
            row += rows;
        }
    }
    free(left);
    free(own.run);
    return status;
}
