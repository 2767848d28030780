/* split_device.c: makes jobs of the sections of `split`: slots of its tables, its channel model, a
 * job for each stream; and of those of `cross`, whose channel model differs from row to row. Specs:
 * split.md, cross.md. Not for running them (kernels/device/decode_streams.h, decode_ahead.h). */
#include "codecs/stages/split/split_device.h"

#include "codecs/planes.h"
#include "codecs/program.h"
#include "codecs/stages/predict/predict_device.h"
#include "codecs/stages/split/split_sections.h"

#include <string.h>

/* Adds the job that makes slots of a table of frequencies. */
static int lower_table(struct kvc_program *program, const uint16_t *frequency, unsigned alphabet,
                       uint64_t slots, struct kvc_error *e) {
    uint64_t address;
    uint32_t n = 0, *entry = kvc_program_table(program, alphabet * sizeof *entry, &address, e);
    if (!entry) return -1;
    for (unsigned i = 0; i < alphabet; i++)
        if (frequency[i]) entry[n++] = i | (uint32_t)frequency[i] << 16;
    struct kvc_device_job *job = kvc_program_job(program, KVC_JOB_SLOTS, e);
    if (!job) return -1;
    job->slots = (struct kvc_slots_job){.entry = address, .to = slots, .n = n};
    return 0;
}

/* Adds jobs for all tables. */
static int lower_tables(const struct kvc_split *s, struct kvc_program *program,
                        struct kvc_split_job *job, struct kvc_error *e) {
    const unsigned alphabet = kvc_words_alphabet(s->form);
    if (!(job->slots = kvc_program_scratch(program, (size_t)4 * KVC_CONTEXTS << s->bits, e)))
        return -1;
    for (unsigned k = 0; k < KVC_CONTEXTS; k++) {
        const uint64_t slots = job->slots + ((uint64_t)4 * k << s->bits);
        if (s->tables >> k & 1 && lower_table(program, s->frequency[k], alphabet, slots, e))
            return -1;
        job->tables |= kvc_split_table(s->tables, k) << 4 * k;
    }
    return 0;
}

/* Adds the jobs that make the channel model of each row out of predictions and of `model`, the
 * channels'. Returns 1 when a device cannot do it. */
static int lower_rows(const struct kvc_split *s, const struct kvc_block *block,
                      const struct kvc_ahead_inputs *inputs, uint64_t model,
                      struct kvc_program *program, struct kvc_split_job *split,
                      struct kvc_error *e) {
    enum { TILES = 4 }; /* keep a warp busy; few enough to occupy many warps */
    const struct kvc_word_format *f = s->form->format;
    const uint32_t rows = (uint32_t)s->rows, heads = (uint32_t)block->shape.heads,
                   dim = (uint32_t)block->shape.dim;
    struct kvc_ahead_job like = {.model = model,
                                 .dim = dim,
                                 .form = {f->sign | f->drop << 8, f->rebias, 0},
                                 .half = 1u << f->shift >> 1};
    if (program->in_part) return 1; /* a stream needs the inputs of all rows before it */
    int status = kvc_predict_lower(&like.predict, inputs, block, program, e);
    if (!status) status = kvc_predict_lower_turn(&like.turn, block, program, e);
    if (status) return status;
    if (!(like.to = split->model = kvc_program_scratch(program, sizeof(uint32_t) * s->values, e)))
        return -1;
    const uint32_t together = TILES * (KVC_DEVICE_TILE / dim);
    for (like.head = 0; like.head < heads; like.head++)
        for (like.first = 0; like.first < rows; like.first += together) {
            struct kvc_device_job *job = kvc_program_job(program, KVC_JOB_AHEAD, e);
            if (!job) return -1;
            like.rows = rows - like.first < together ? rows - like.first : together;
            job->ahead = like;
        }
    return 0;
}

/* Adds the jobs that make the channel model, and fills the operands of streams that depend on it.
 * Returns 1 when a device cannot do it. */
static int lower_model(struct kvc_split *s, const struct kvc_block *block,
                       const struct kvc_ahead_inputs *inputs, struct kvc_program *program,
                       struct kvc_split_job *job, struct kvc_error *e) {
    const struct kvc_channels *m = &s->model;
    const struct kvc_word_format *f = s->form->format;
    const int ahead = m->turn == KVC_TURN_AHEAD, turns = f && m->turn != KVC_TURN_NONE && !ahead;
    if (f) {
        job->form.sign_cut = f->sign | (f->drop + f->shift) << 8;
        job->form.rebias = f->rebias;
        job->form.shift = f->shift;
    }
    if (m->flat) return 0;
    if (ahead && !f) return 1; /* codes expected of a prediction need the scales */
    if (turns && m->period > KVC_DEVICE_TILE) return 1;
    const uint64_t mean = kvc_program_copy(program, m->mean, s->n, e);
    const uint64_t spread = mean ? kvc_program_copy(program, m->spread, s->n, e) : 0;
    if (!spread ||
        !(job->model = kvc_program_scratch(program, (turns || ahead ? 3 : 1) * sizeof(float) * s->n,
                                           e)))
        return -1;
    if (turns) {
        kvc_channels_begin(&s->model);
        float *turn = kvc_program_table(program, 2 * m->period * sizeof *turn, &job->turn, e);
        if (!turn) return -1;
        memcpy(turn, m->step_c, m->period * sizeof *turn);
        memcpy(turn + m->period, m->step_s, m->period * sizeof *turn);
    }
    job->kind = ahead ? KVC_MODEL_AHEAD : turns ? (uint32_t)m->turn : f ? 0 : KVC_MODEL_CODES;
    job->period = m->period;
    struct kvc_device_job *model = kvc_program_job(program, KVC_JOB_MODEL, e);
    if (!model) return -1;
    model->model = (struct kvc_model_job){.mean = mean,
                                          .spread = spread,
                                          .to = job->model,
                                          .channels = (uint32_t)s->n,
                                          .word_bits = s->form->bits,
                                          .kind = job->kind,
                                          .period = turns ? m->period : 1,
                                          .first = turns ? m->first : 0,
                                          .pairs = turns ? m->pairs : 0,
                                          .form = job->form};
    return ahead ? lower_rows(s, block, inputs, job->model, program, job, e) : 0;
}

/* Adds a job for each stream; `like` has what all streams share. */
static int lower_streams(const struct kvc_split *s, const struct kvc_split_job *like,
                         struct kvc_program *program, struct kvc_error *e) {
    const uint64_t base = kvc_program_bytes(program, s->codes, s->codes->size, NULL, e);
    const uint8_t *words = s->words;
    if (!base) return -1;
    for (size_t i = 0, t = 0; i < s->streams; i++, t += s->per) {
        struct kvc_device_job *job = kvc_program_job(program, KVC_JOB_SPLIT, e);
        if (!job) return -1;
        job->split = *like;
        job->split.states = base + (uint64_t)(s->states - s->codes->data) + 4 * s->lanes * i;
        job->split.words = base + (uint64_t)(words - s->codes->data);
        job->split.size = (uint32_t)kvc_split_stream(s, i);
        job->split.first = (uint32_t)t;
        job->split.rows = (uint32_t)(s->rows - t < s->per ? s->rows - t : s->per);
        words += job->split.size;
    }
    return 0;
}

static int lower_sections(struct kvc_split *s, const struct kvc_block *block,
                          const struct kvc_ahead_inputs *inputs, struct kvc_device_op *op,
                          struct kvc_program *program, struct kvc_error *e) {
    const unsigned shift = kvc_words_shift(s->form);
    struct kvc_split_job job = {.lanes = s->lanes,
                                .table_bits = s->bits,
                                .channels = (uint32_t)s->n,
                                .word_bits = s->form->bits};
    const uint8_t *low;
    if (s->form->planes &&
        (!(op->upper.lowest = kvc_program_bytes(program, s->plane[0], s->blocks, NULL, e)) ||
         !(op->upper.low = kvc_program_bytes(program, s->plane[1], s->blocks, NULL, e))))
        return -1;
    if (lower_tables(s, program, &job, e)) return -1;
    if (shift && (!(job.low = kvc_program_bytes(program, s->low, s->low_size, &low, e)) ||
                  (shift < 8 && kvc_packed_check(low, s->values, shift, e))))
        return -1;
    const int status = lower_model(s, block, inputs, program, &job, e);
    if (status) return status;
    if (!(job.to = kvc_program_scratch(program, 2 * s->values, e))) return -1;
    if (s->form->planes) op->upper.upper = job.to;
    else op->words.from = job.to;
    return lower_streams(s, &job, program, e);
}

int kvc_split_lower_ahead(const struct kvc_stored *stored, struct kvc_block *block,
                          const struct kvc_ahead_inputs *inputs, struct kvc_program *program,
                          struct kvc_error *e) {
    struct kvc_split s;
    struct kvc_device_op op = kvc_program_op_of(block->shape.dtype == KVC_F32 ? KVC_OP_UPPER
                                                                              : KVC_OP_WORDS,
                                                &block->shape);
    const int raw = kvc_program_raw(program, stored->section, stored->n, &block->shape, e);
    if (raw) return raw < 0 ? -1 : 0;
    if (kvc_words_of(block->shape.dtype)->bits < 8 || kvc_dtype_info(block->shape.dtype)->block > 1)
        return 1;
    if (op.kind == KVC_OP_WORDS) op.words.size = sizeof(uint16_t);
    int status = kvc_split_open(&s, &block->shape, inputs != NULL, stored->section, stored->n, e);
    if (!status && s.values) status = lower_sections(&s, block, inputs, &op, program, e);
    if (!status) status = kvc_program_first(program, s.rows, &op, e);
    kvc_split_close(&s);
    return status;
}

int kvc_split_lower(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                    struct kvc_block *block, struct kvc_program *program, struct kvc_error *e) {
    (void)args;
    return kvc_split_lower_ahead(stored, block, NULL, program, e);
}
