/* batch.c: programs of blocks put together for one launch. Not for what programs are made of
 * (codecs/program.h). */
#include "formats/device/batch.h"

#include "codecs/memory.h"
#include "codecs/stages/derope/derope_device.h"
#include "formats/container/device_blocks.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 16 };

/* Kinds of levels that a tensor has where some are predicted from others. */
enum { OF_AHEAD, OF_STREAMS, OF_ROWS, LEVELS };

static size_t aligned(size_t n) {
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* --- memory of a batch --- */

static uint64_t batch_place(void *owner, const struct kvc_section *s) {
    struct kvc_batch *b = owner;
    if (s->data >= b->bytes && s->data < b->bytes + b->n_bytes)
        return b->bytes_address + (uint64_t)(s->data - b->bytes);
    /* of the first record of a pair */
    const uint64_t address = b->locate ? b->locate(b->owner, s->data) : 0;
    if (address) return address;
    uint64_t copied;
    void *room = b->program.table(b, s->size, &copied);
    if (!room) return 0;
    memcpy(room, s->data, s->size);
    return copied;
}

static void *table(void *owner, size_t n, uint64_t *address) {
    struct kvc_batch *b = owner;
    if (n > b->size || b->size - b->used < aligned(n)) {
        b->full = 1;
        return NULL;
    }
    uint8_t *room = b->room + b->used;
    *address = b->address + b->used;
    b->used += aligned(n);
    return room;
}

static uint64_t scratch(void *owner, size_t n) {
    struct kvc_batch *b = owner;
    if (n > b->scratch_size || b->scratch_size - b->scratch_used < aligned(n)) {
        b->full = 1;
        return 0;
    }
    const uint64_t address = b->scratch + b->scratch_used;
    b->scratch_used += aligned(n);
    return address;
}

/* Returns a kept table; a table that the plan did not find is copied with the batch. */
static int batch_keep(void *owner, const struct kvc_program_key *key, size_t n, void **bytes,
                      uint64_t *address, struct kvc_error *e) {
    struct kvc_batch *b = owner;
    const struct kvc_kept_table *t = b->kept ? kvc_kept_find(b->kept, key, n) : NULL;
    if (t) {
        *bytes = NULL;
        *address = b->kept->address + t->offset;
        return 0;
    }
    *bytes = table(b, n, address);
    return *bytes ? 0 : kvc_fail_memory(e, "a table");
}

static int inputs(void *owner, uint32_t tensor, uint64_t *at) {
    const struct kvc_batch *b = owner;
    struct kvc_batch_inputs found;
    if (!b->inputs || !b->inputs(b->owner, tensor, b->block, &found)) return 1;
    *at = found.at;
    return 0;
}

/* --- lists --- */

/* Appends n items of `size` bytes. Returns the address of the first of them, or NULL. */
static void *batch_append(struct kvc_list *l, size_t n, size_t size, struct kvc_error *e) {
    if (l->room - l->n < n) {
        const size_t room = 2 * l->room + n;
        void *grown = kvc_realloc(l->at, room, size);
        if (!grown) {
            kvc_fail_memory(e, "a queue");
            return NULL;
        }
        l->at = grown;
        l->room = room;
    }
    l->n += n;
    return (uint8_t *)l->at + (l->n - n) * size;
}

void kvc_batch_begin(struct kvc_batch *b) {
    b->used = b->scratch_used = 0;
    b->full = 0;
    b->prepare.n = b->stream.n = b->op.n = b->run.n = b->rows.n = b->digest.n = 0;
    b->predicted.n = b->ahead.n = b->late.n = 0;
    b->program.owner = b;
    b->program.place = batch_place;
    b->program.table = table;
    b->program.scratch = scratch;
    b->program.keep = batch_keep;
    b->program.inputs = inputs;
}

void kvc_batch_free(struct kvc_batch *b) {
    struct kvc_list *const list[] = {&b->prepare, &b->stream,    &b->op,    &b->run, &b->rows,
                                     &b->digest,  &b->predicted, &b->ahead, &b->late};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) free(list[i]->at);
    kvc_program_free(&b->program);
}

/* Returns the most levels that the queue can have. */
static size_t levels_most(const struct kvc_batch *b) {
    return 4 + (b->inputs ? (size_t)LEVELS * b->cache->n_tensors : 0);
}

static size_t jobs_of(const struct kvc_batch *b) {
    return b->prepare.n + b->stream.n + b->predicted.n;
}

/* Returns the bytes of the queue, which follows the tables. */
static size_t queue_bytes(const struct kvc_batch *b) {
    const size_t jobs = jobs_of(b), items = jobs + b->rows.n + b->digest.n;
    return aligned(jobs * sizeof(struct kvc_device_job)) +
           aligned(b->op.n * sizeof(struct kvc_device_op)) +
           aligned(b->run.n * sizeof(struct kvc_device_run)) +
           aligned(items * sizeof(struct kvc_device_item)) +
           2 * aligned((levels_most(b) + 1) * sizeof(uint32_t));
}

/* --- blocks --- */

/* Decodes rows on the CPU, as values of the dtype of the target. */
static int decode_here(struct kvc_batch *b, const struct kvc_batch_block *x, struct kvc_error *e) {
    const struct kvc_shape *shape = &b->cache->tensor[x->tensor].shape;
    const struct kvc_cells *cells = kvc_tensor_cells(b->cache, x->tensor);
    const struct kvc_device_target *g = &b->target[x->tensor];
    const uint64_t first = cells->block[x->block], rows = cells->block[x->block + 1] - first;
    struct kvc_device_op op = {.kind = KVC_OP_WORDS, .heads = g->heads, .dim = g->channels};
    kvc_program_clear(&b->program);
    void *room = table(b, (size_t)(rows * kvc_row_bytes(shape)), &op.words.from);
    if (!room) return kvc_fail_memory(e, "rows");
    if (b->cache->read(b->cache, x->tensor, first, rows, room, e)) return -1;
    op.words.size = g->from == KVC_DEVICE_F32                                 ? 4
                    : g->from == KVC_DEVICE_F16 || g->from == KVC_DEVICE_BF16 ? 2
                                                                              : 1;
    return kvc_program_first(&b->program, rows, &op, e);
}

/* Returns the number by which levels of tensors are in order; all rows are one level where no
 * tensor is predicted. */
static uint32_t rank_of(const struct kvc_batch *b, uint32_t tensor, unsigned kind) {
    return b->inputs ? LEVELS * tensor + kind : 0;
}

static int is_stream(const struct kvc_device_job *job) {
    return job->kind == KVC_JOB_SPLIT || job->kind == KVC_JOB_CODE;
}

/* Adds the item of the last job that needs inputs of predictions. */
static int add_predicted(struct kvc_batch *b, const struct kvc_device_job *job, uint32_t tensor,
                         struct kvc_error *e) {
    struct kvc_device_item *item = batch_append(is_stream(job) ? &b->late : &b->ahead, 1,
                                                sizeof *item, e);
    if (!item) return -1;
    *item = (struct kvc_device_item){.kind = KVC_ITEM_JOB,
                                     /* among these, until all are known */
                                     .index = (uint32_t)(b->predicted.n - 1),
                                     .level = rank_of(b, tensor,
                                                      is_stream(job) ? OF_STREAMS : OF_AHEAD)};
    return 0;
}

static int add_jobs(struct kvc_batch *b, const struct kvc_batch_block *x, struct kvc_error *e) {
    for (size_t i = 0; i < b->program.n_jobs; i++) {
        const struct kvc_device_job *from = &b->program.job[i];
        const int late = from->kind == KVC_JOB_AHEAD ||
                         (from->kind == KVC_JOB_SPLIT && from->split.kind == KVC_MODEL_AHEAD);
        struct kvc_device_job *job = batch_append(late              ? &b->predicted
                                                  : is_stream(from) ? &b->stream
                                                                    : &b->prepare,
                                                  1, sizeof *job, e);
        if (!job) return -1;
        *job = *from;
        job->record = x->record;
        if (late && add_predicted(b, job, x->tensor, e)) return -1;
    }
    return 0;
}

/* Splits the heads of a run into pieces that are large enough to keep a warp busy, and small enough
 * to occupy many warps. */
static int add_rows(struct kvc_batch *b, const struct kvc_device_target *g, uint32_t run,
                    uint32_t level, uint32_t rows, struct kvc_error *e) {
    enum { TILES = 4 };
    const uint32_t columns = g->channels < KVC_DEVICE_TILE ? g->channels : KVC_DEVICE_TILE;
    const uint32_t together = TILES * (KVC_DEVICE_TILE / columns);
    for (uint32_t h = 0; h < g->heads; h++)
        for (uint32_t column = 0; column < g->channels; column += columns)
            for (uint32_t row = 0; row < rows; row += together) {
                struct kvc_device_item *item = batch_append(&b->rows, 1, sizeof *item, e);
                if (!item) return -1;
                *item = (struct kvc_device_item){
                    .kind = KVC_ITEM_ROWS,
                    .level = level,
                    .index = run,
                    .head = h,
                    .first = row,
                    .rows = rows - row < together ? rows - row : together,
                    .column = column,
                    .columns = g->channels - column < columns ? g->channels - column : columns};
            }
    return 0;
}

/* Adds the wanted rows of the runs of the program. */
static int add_runs(struct kvc_batch *b, const struct kvc_batch_block *x, struct kvc_error *e) {
    const struct kvc_device_target *g = &b->target[x->tensor];
    for (size_t i = 0; i < b->program.n_runs; i++) {
        const struct kvc_program_run *from = &b->program.run[i];
        const uint64_t first = from->first > x->first ? from->first : x->first;
        const uint64_t end = from->first + from->rows < x->first + x->rows
                                 ? from->first + from->rows
                                 : x->first + x->rows;
        if (first >= end) continue;
        struct kvc_device_op *op = batch_append(&b->op, from->n, sizeof *op, e);
        struct kvc_device_run *run = op ? batch_append(&b->run, 1, sizeof *run, e) : NULL;
        if (!run) return -1;
        for (unsigned k = 0; k < from->n; k++) {
            op[k] = from->op[k];
            op[k].row += (uint32_t)(first - from->first);
        }
        /* a number until the address of the list is known */
        *run = (struct kvc_device_run){.ops = b->op.n - from->n,
                                       .n_ops = from->n,
                                       .record = x->record,
                                       .target = x->tensor,
                                       .dim = g->channels,
                                       .row = x->row + (first - x->first)};
        if (add_rows(b, g, (uint32_t)(b->run.n - 1), rank_of(b, x->tensor, OF_ROWS),
                     (uint32_t)(end - first), e))
            return -1;
    }
    return 0;
}

static int add_digest(struct kvc_batch *b, const struct kvc_batch_block *x, struct kvc_error *e) {
    enum { TOGETHER = 32 };
    const struct kvc_cells *cells = kvc_tensor_cells(b->cache, x->tensor);
    for (uint64_t row = 0; x->digest && row < x->rows; row += TOGETHER) {
        struct kvc_device_item *item = batch_append(&b->digest, 1, sizeof *item, e);
        if (!item) return -1;
        *item = (struct kvc_device_item){.kind = KVC_ITEM_DIGEST,
                                         .index = x->record,
                                         .head = x->tensor,
                                         .rows = (uint32_t)(x->rows - row < TOGETHER ? x->rows - row
                                                                                     : TOGETHER),
                                         .first = (uint32_t)(x->row + row),
                                         .seed = (uint32_t)(cells->block[x->block] + row)};
    }
    return 0;
}

/* Adds the operation that makes inputs of the rows of a block, where a tensor is predicted from
 * them. */
static int add_small(struct kvc_batch *b, const struct kvc_batch_block *x, struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_tensor_cells(b->cache, x->tensor);
    const struct kvc_device_target *g = &b->target[x->tensor];
    const uint64_t first = cells->block[x->block], rows = cells->block[x->block + 1] - first;
    struct kvc_device_op op = {.kind = KVC_OP_SMALL, .heads = g->heads, .dim = g->channels};
    struct kvc_batch_inputs to;
    const struct kvc_small *small;
    const struct kvc_rope_facts *turn;
    void *room;
    if (!b->inputs || !b->inputs(b->owner, x->tensor, x->block, &to)) return 0;
    if (kvc_inputs_made_by(b->cache, x->tensor, &small, &turn, e)) return -1;
    if (kvc_program_keep(&b->program, small->mean, 0, 2 * small->width * sizeof(float), &room,
                         &op.small.numbers, e))
        return -1;
    if (room) {
        memcpy(room, small->mean, small->width * sizeof(float));
        memcpy((float *)room + small->width, small->gain, small->width * sizeof(float));
    }
    if (turn) {
        int64_t position[KVC_BLOCK];
        for (uint64_t i = 0; i < rows; i++) position[i] = kvc_cells_position(cells, first + i);
        if (rows && (position[0] < 0 || position[rows - 1] >= KVC_ROPE_POSITIONS))
            return kvc_fail(e, KVC_ERR_DAMAGED, "a position is below 0 or from 2^32 on");
        if (!turn->angle)
            return kvc_fail(e, KVC_ERR_OTHER_MODEL,
                            "the profile has not the angles of the tensor's RoPE");
        if (kvc_turn_lower(&op.small.turn, turn->angle, turn->half, turn->pairing, position,
                           (size_t)rows, &b->program, e))
            return -1;
        op.small.turn.back = 1;
    }
    op.small.to = to.at;
    op.small.stride = to.stride;
    op.small.dtype = g->from;
    return kvc_program_op(&b->program, &op, e);
}

/* Returns 1 when the runs cover all rows without gaps and each has at least one operation. */
static int runs_are_whole(const struct kvc_program *p, uint64_t rows) {
    uint64_t next = 0;
    for (size_t i = 0; i < p->n_runs; i++) {
        if (p->run[i].first != next || !p->run[i].n) return 0;
        next += p->run[i].rows;
    }
    return next == rows;
}

/* Rewrites operations from one head to several. The number of heads may be known only now, where
 * the file was packed without it. Returns 1 when an operation cannot be rewritten. */
static int fit_heads(struct kvc_batch *b, uint32_t tensor) {
    const struct kvc_device_target *g = &b->target[tensor];
    if (kvc_container_coded_shape(b->cache, tensor)->heads == g->heads) return 0;
    for (size_t i = 0; i < b->program.n_runs; i++)
        for (unsigned n = 0; n < b->program.run[i].n; n++) {
            struct kvc_device_op *op = &b->program.run[i].op[n];
            switch (op->kind) {
            case KVC_OP_WORDS:
            case KVC_OP_UPPER:
            case KVC_OP_FAST:
            case KVC_OP_OUTLIERS:
            case KVC_OP_PATCH:
            case KVC_OP_SCALE:
            case KVC_OP_MEAN:
            case KVC_OP_WIDEN:
            case KVC_OP_ROUND:
                op->heads = g->heads;
                op->dim = g->channels;
                break;
            default: return 1;
            }
        }
    return 0;
}

/* Adds a block by its program, or as rows that the CPU decodes. Returns as kvc_batch_add() does. */
static int add_block(struct kvc_batch *b, const struct kvc_batch_block *x, int by_program,
                     uint64_t *on_host, struct kvc_error *e) {
    const struct kvc_batch before = *b;
    const struct kvc_cells *cells = kvc_tensor_cells(b->cache, x->tensor);
    const uint64_t rows = cells->block[x->block + 1] - cells->block[x->block];
    *on_host = 0;
    b->block = x->block;
    b->program.in_part = x->rows != rows;
    int status = by_program
                     ? kvc_container_lower(b->cache, x->tensor, x->block, x->bytes, &b->program, e)
                     : 1;
    if (!status) status = fit_heads(b, x->tensor);
    if (status == 1 && !b->full) {
        status = decode_here(b, x, e);
        *on_host = x->rows * kvc_row_bytes(&b->cache->tensor[x->tensor].shape);
    }
    if (!status && !runs_are_whole(&b->program, rows))
        status = kvc_fail(e, KVC_ERR_DAMAGED, "a block's program leaves rows out");
    if (!status) status = add_small(b, x, e);
    if (!status) status = add_jobs(b, x, e);
    if (!status) status = add_runs(b, x, e);
    if (!status) status = add_digest(b, x, e);
    if (!b->full && !status && b->size - b->used >= queue_bytes(b)) return 0;
    const int full = b->full || !status;
    b->used = before.used;
    b->scratch_used = before.scratch_used;
    b->full = 0;
    b->prepare.n = before.prepare.n;
    b->stream.n = before.stream.n;
    b->op.n = before.op.n;
    b->run.n = before.run.n;
    b->rows.n = before.rows.n;
    b->digest.n = before.digest.n;
    b->predicted.n = before.predicted.n;
    b->ahead.n = before.ahead.n;
    b->late.n = before.late.n;
    return full ? 1 : -1;
}

int kvc_batch_add(struct kvc_batch *b, const struct kvc_batch_block *x, uint64_t *on_host,
                  struct kvc_error *e) {
    const size_t others = b->rows.n;
    const int status = add_block(b, x, 1, on_host, e);
    /* a block that is too large for a batch of its own is decoded by the CPU */
    return status == 1 && !others ? add_block(b, x, 0, on_host, e) : status;
}

/* --- the queue --- */

static struct kvc_device_item *queue_jobs(struct kvc_device_item *item, size_t first, size_t n) {
    for (size_t i = 0; i < n; i++)
        *item++ = (struct kvc_device_item){.kind = KVC_ITEM_JOB, .index = (uint32_t)(first + i)};
    return item;
}

static struct kvc_device_item *queue_items(struct kvc_device_item *item,
                                           const struct kvc_list *list) {
    if (list->n) memcpy(item, list->at, list->n * sizeof *item);
    return item + list->n;
}

/* Queues the items of tensors, each of whose lists is in the order of its ranks. */
static struct kvc_device_item *queue_tensors(struct kvc_device_item *item,
                                             const struct kvc_batch *b) {
    const struct kvc_list *const list[LEVELS] = {&b->ahead, &b->late, &b->rows};
    size_t done[LEVELS] = {0};
    for (;;) {
        const struct kvc_device_item *next = NULL;
        unsigned of = 0;
        for (unsigned k = 0; k < LEVELS; k++) {
            const struct kvc_device_item *own = done[k] < list[k]->n
                                                    ? (const struct kvc_device_item *)list[k]->at +
                                                          done[k]
                                                    : NULL;
            if (!own || (next && own->level >= next->level)) continue;
            next = own;
            of = k;
        }
        if (!next) return item;
        *item = *next;
        if (item->kind == KVC_ITEM_JOB) item->index += (uint32_t)(b->prepare.n + b->stream.n);
        item++;
        done[of]++;
    }
}

/* Numbers the levels of the queue, which so far have ranks: jobs that prepare, streams, levels of
 * tensors, digests; need[] becomes the number of items of the level before. */
static void set_levels(const struct kvc_batch *b, struct kvc_device_item *item, uint32_t *need) {
    const size_t n[] = {b->prepare.n, b->stream.n, b->predicted.n + b->rows.n, b->digest.n};
    uint32_t level = 0, here = 0;
    for (unsigned kind = 0; kind < 4; kind++)
        for (size_t i = 0, own = 0; i < n[kind]; i++, item++) {
            const uint32_t rank = item->level;
            if (!i || rank != own) { /* a new level */
                level += here != 0;
                need[level] = here;
                here = 0;
                own = rank;
            }
            item->level = level;
            here++;
        }
}

int kvc_batch_finish(struct kvc_batch *b, struct kvc_device_launch *launch, struct kvc_error *e) {
    const size_t n_jobs = jobs_of(b), items = n_jobs + b->rows.n + b->digest.n,
                 levels = levels_most(b);
    uint64_t ops = 0, at[5] = {0};
    struct kvc_device_op *op = table(b, b->op.n * sizeof *op, &ops);
    struct kvc_device_run *run = table(b, b->run.n * sizeof *run, &at[0]);
    struct kvc_device_job *job = table(b, n_jobs * sizeof *job, &at[1]);
    struct kvc_device_item *item = table(b, items * sizeof *item, &at[2]);
    uint32_t *counter = table(b, (levels + 1) * sizeof *counter, &at[3]),
             *need = table(b, (levels + 1) * sizeof *need, &at[4]);
    if (!op || !run || !job || !item || !counter || !need || items > UINT32_MAX)
        return kvc_fail_memory(e, "a queue");
    if (b->op.n) memcpy(op, b->op.at, b->op.n * sizeof *op);
    if (b->run.n) memcpy(run, b->run.at, b->run.n * sizeof *run);
    for (size_t i = 0; i < b->run.n; i++) run[i].ops = ops + run[i].ops * sizeof *op;
    if (b->prepare.n) memcpy(job, b->prepare.at, b->prepare.n * sizeof *job);
    if (b->stream.n) memcpy(job + b->prepare.n, b->stream.at, b->stream.n * sizeof *job);
    if (b->predicted.n)
        memcpy(job + b->prepare.n + b->stream.n, b->predicted.at, b->predicted.n * sizeof *job);
    memset(counter, 0, (levels + 1) * sizeof *counter);
    memset(need, 0, (levels + 1) * sizeof *need);
    struct kvc_device_item *next = queue_jobs(item, 0, b->prepare.n);
    next = queue_jobs(next, b->prepare.n, b->stream.n);
    queue_items(queue_tensors(next, b), &b->digest);
    set_levels(b, item, need);
    *launch = (struct kvc_device_launch){.item = (const struct kvc_device_item *)(uintptr_t)at[2],
                                         .job = (const struct kvc_device_job *)(uintptr_t)at[1],
                                         .run = (const struct kvc_device_run *)(uintptr_t)at[0],
                                         .counter = (uint32_t *)(uintptr_t)at[3],
                                         .need = (const uint32_t *)(uintptr_t)at[4],
                                         .n_items = (uint32_t)items};
    return 0;
}
