/* program.c: programs of the device decoder, block by block. Not for the jobs and operations of
 * each stage (its own file). */
#include "codecs/program.h"

#include "codecs/floats.h"
#include "codecs/memory.h"
#include "codecs/planes.h"

#include <stdlib.h>
#include <string.h>

void kvc_program_clear(struct kvc_program *p) {
    p->n_jobs = p->n_runs = 0;
}

void kvc_program_free(struct kvc_program *p) {
    free(p->job);
    free(p->run);
    p->job = NULL;
    p->run = NULL;
    p->n_jobs = p->job_room = p->n_runs = p->run_room = 0;
}

/* Makes room for one more element of `size` bytes. */
static int grow(void **array, size_t n, size_t *room, size_t size, struct kvc_error *e) {
    if (n < *room) return 0;
    const size_t more = *room ? 2 * *room : 8;
    void *grown = kvc_realloc(*array, more, size);
    if (!grown) return kvc_fail_memory(e, "a program");
    *array = grown;
    *room = more;
    return 0;
}

struct kvc_program_run *kvc_program_run(struct kvc_program *p, uint64_t first, uint64_t rows,
                                        struct kvc_error *e) {
    void *array = p->run;
    if (grow(&array, p->n_runs, &p->run_room, sizeof *p->run, e)) return NULL;
    p->run = array;
    struct kvc_program_run *run = &p->run[p->n_runs++];
    run->first = first;
    run->rows = rows;
    run->n = 0;
    return run;
}

/* Begins the matrix: one run of `rows` rows. */
static int begin(struct kvc_program *p, uint64_t rows, struct kvc_error *e) {
    p->n_runs = 0;
    return !rows || kvc_program_run(p, 0, rows, e) ? 0 : -1;
}

static int add_op(struct kvc_program_run *run, const struct kvc_device_op *op,
                  struct kvc_error *e) {
    if (run->n == KVC_PROGRAM_OPS)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "too many stages for a device's program");
    run->op[run->n] = *op;
    run->op[run->n++].row = (uint32_t)run->first;
    return 0;
}

int kvc_program_op(struct kvc_program *p, const struct kvc_device_op *op, struct kvc_error *e) {
    for (size_t i = 0; i < p->n_runs; i++)
        if (add_op(&p->run[i], op, e)) return -1;
    return 0;
}

int kvc_program_first(struct kvc_program *p, uint64_t rows, const struct kvc_device_op *op,
                      struct kvc_error *e) {
    return begin(p, rows, e) ? -1 : kvc_program_op(p, op, e);
}

struct kvc_device_job *kvc_program_job(struct kvc_program *p, uint32_t kind, struct kvc_error *e) {
    void *array = p->job;
    if (grow(&array, p->n_jobs, &p->job_room, sizeof *p->job, e)) return NULL;
    p->job = array;
    struct kvc_device_job *job = &p->job[p->n_jobs++];
    memset(job, 0, sizeof *job);
    job->kind = kind;
    return job;
}

struct kvc_device_op kvc_program_op_of(uint32_t kind, const struct kvc_shape *shape) {
    return (struct kvc_device_op){.kind = kind,
                                  .heads = (uint32_t)shape->heads,
                                  .dim = (uint32_t)shape->dim};
}

int kvc_program_keep(struct kvc_program *p, const void *source, uint32_t which, size_t n,
                     void **bytes, uint64_t *address, struct kvc_error *e) {
    const struct kvc_program_key key = {source, 0, which};
    return p->keep(p->owner, &key, n, bytes, address, e);
}

int kvc_program_keep_copy(struct kvc_program *p, const void *source, uint32_t which,
                          const void *bytes, size_t n, uint64_t *address, struct kvc_error *e) {
    void *room;
    if (kvc_program_keep(p, source, which, n, &room, address, e)) return -1;
    if (room) memcpy(room, bytes, n);
    return 0;
}

int kvc_program_keep_halves(struct kvc_program *p, const struct kvc_section *s, size_t n,
                            uint64_t *address, struct kvc_error *e) {
    void *room;
    if (kvc_program_keep(p, s->data, 0, n * sizeof(float), &room, address, e)) return -1;
    return room ? kvc_halves_take(room, s, n, e) : 0;
}

void *kvc_program_table(struct kvc_program *p, size_t n, uint64_t *address, struct kvc_error *e) {
    void *room = p->table(p->owner, n ? n : 1, address);
    if (!room) kvc_fail_memory(e, "a table");
    return room;
}

uint64_t kvc_program_bytes(struct kvc_program *p, const struct kvc_section *s, size_t n,
                           const uint8_t **bytes, struct kvc_error *e) {
    if (s->raw_size != n || (s->coder == KVC_CODER_STORE && s->size != n)) {
        kvc_fail(e, KVC_ERR_DAMAGED, "section %s does not have %zu bytes",
                 kvc_section_name(s->type), n);
        return 0;
    }
    if (s->coder == KVC_CODER_STORE) {
        if (bytes) *bytes = s->data;
        const uint64_t address = p->place(p->owner, s);
        if (!address) kvc_fail_memory(e, "a section");
        return address;
    }
    uint64_t address; /* the CPU decodes what zstd coded */
    uint8_t *room = kvc_program_table(p, n, &address, e);
    if (!room || kvc_section_decode(s, room, n, e)) return 0;
    if (bytes) *bytes = room;
    return address;
}

uint64_t kvc_program_copy(struct kvc_program *p, const void *bytes, size_t n, struct kvc_error *e) {
    uint64_t address = 0;
    void *room = kvc_program_table(p, n, &address, e);
    if (!room) return 0;
    memcpy(room, bytes, n);
    return address;
}

uint64_t kvc_program_scratch(struct kvc_program *p, size_t n, struct kvc_error *e) {
    const uint64_t address = p->scratch(p->owner, n ? n : 1);
    if (!address) kvc_fail_memory(e, "scratch");
    return address;
}

uint64_t kvc_program_halves(struct kvc_program *p, const struct kvc_section *s,
                            const uint8_t **bytes, size_t n, struct kvc_error *e) {
    struct kvc_halves h;
    if (kvc_halves_open(&h, bytes, s->data + s->size, n, e) ||
        (h.zeros && h.zeros < 8 && kvc_packed_check(h.lower, n, 8 - h.zeros, e)) ||
        (h.width < 8 && kvc_packed_check(h.codes, n, h.width, e)))
        return 0;
    const uint64_t base = kvc_program_bytes(p, s, s->size, NULL, e),
                   to = base ? kvc_program_scratch(p, 4 * n, e) : 0;
    struct kvc_device_job *job = to ? kvc_program_job(p, KVC_JOB_HALVES, e) : NULL;
    if (!job) return 0;
    job->halves = (struct kvc_halves_job){.lower = base + (uint64_t)(h.lower - s->data),
                                          .codes = base + (uint64_t)(h.codes - s->data),
                                          .escapes = base + (uint64_t)(h.escapes - s->data),
                                          .to = to,
                                          .n = (uint32_t)n,
                                          .zeros = h.zeros,
                                          .width = h.width,
                                          .base = h.base,
                                          .rotated = (uint32_t)h.rotated,
                                          .n_escapes = (uint32_t)h.n_escapes,
                                          .scale = h.scale};
    return to;
}

uint64_t kvc_program_halves_to_end(struct kvc_program *p, const struct kvc_section *s,
                                   const uint8_t *bytes, size_t n, struct kvc_error *e) {
    const uint64_t to = kvc_program_halves(p, s, &bytes, n, e);
    if (to && bytes != s->data + s->size) {
        kvc_fail(e, KVC_ERR_DAMAGED, "bytes follow the numbers of section %s",
                 kvc_section_name(s->type));
        return 0;
    }
    return to;
}

int kvc_program_raw(struct kvc_program *p, const struct kvc_section *sections, size_t n,
                    const struct kvc_shape *shape, struct kvc_error *e) {
    const struct kvc_dtype_info *info = kvc_dtype_info(shape->dtype);
    const size_t size = (size_t)(shape->tokens * kvc_row_bytes(shape));
    struct kvc_device_op op = kvc_program_op_of(KVC_OP_WORDS, shape);
    if (n != 1 || sections->type != KVC_SECTION_RAW || sections->index != 0) return 0;
    if (sections->coder != KVC_CODER_STORE)
        return kvc_fail(e, KVC_ERR_DAMAGED, "section RAW is not stored as it is");
    if (!(op.words.from = kvc_program_bytes(p, sections, size, NULL, e))) return -1;
    op.words.size = info->size;
    return kvc_program_first(p, shape->tokens, &op, e) ? -1 : 1;
}

/* Converts values between stages of different dtypes, as kvc_block_convert(). */
static int convert(struct kvc_program *p, const struct kvc_block *block,
                   const struct kvc_shape *shape, enum kvc_dtype own, enum kvc_dtype to,
                   struct kvc_error *e) {
    if (block->stands == to && !block->settles) return 0;
    const uint32_t kind = to == KVC_F32 && !block->settles ? KVC_OP_WIDEN : KVC_OP_ROUND;
    struct kvc_device_op op = kvc_program_op_of(kind, shape);
    op.convert.dtype = (uint32_t)own;
    return kvc_program_op(p, &op, e);
}

struct lowering {
    struct kvc_program *program;
    enum kvc_dtype own;
};

static int lower_stage(void *state, const struct kvc_stage *stage,
                       const struct kvc_stage_args *args, const struct kvc_stored *stored,
                       struct kvc_block *block, struct kvc_error *e) {
    const struct lowering *l = state;
    if (block->residual &&
        convert(l->program, block, &block->handed, l->own, block->handed.dtype, e))
        return -1;
    if (!stage->lower) return 1;
    return stage->lower(args, stored, block, l->program, e);
}

int kvc_pipeline_lower(const struct kvc_pipeline *line, struct kvc_block *block,
                       const struct kvc_coded *own, const struct kvc_coded *first,
                       struct kvc_program *p, struct kvc_error *e) {
    struct lowering l = {p, block->shape.dtype};
    const struct kvc_shape shape = block->shape;
    if (kvc_dtype_info(l.own)->block > 1) return 1; /* a tile has no values that share scales */
    kvc_program_clear(p);
    int status = kvc_pipeline_walk_back(line, block, own, first, lower_stage, &l, e);
    if (!status) status = convert(p, block, &shape, l.own, l.own, e);
    return status;
}
