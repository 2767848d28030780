/* encode.c: encodes the records of a run of blocks of one tensor. Spec: FORMAT.md, "Records". Not
 * for the order of stages (codecs/pipeline_encode.c), the blocks that they take (encode_rows.c) or
 * the facts that they ask for (encode_facts.c), and not for the order of the file (writer.c).
 *
 * For the second tensor of a pair, the blocks of the first one are encoded again, because the
 * digests are of values decoded from both. */
#include "formats/container/encode.h"

#include "codecs/floats.h"
#include "codecs/memory.h"
#include "formats/container/container.h"
#include "formats/container/encode_rows.h"
#include "formats/container/record_build.h"
#include "formats/container/same_rows.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* blocks of a segment from which on stages see a sample: every third block */
enum { SAMPLED_FROM = 8, SAMPLE = 3 };
/* blocks encoded as one item of work where no stage looks ahead: at most 4096 rows */
enum { RUN_BLOCKS = KVC_CODER_BLOCKS };

static int is_second(const struct kvc_encode *x, uint32_t tensor) {
    return x->plan->partner[tensor] != KVC_NONE && x->plan->partner[tensor] < tensor;
}

uint64_t kvc_encode_run_blocks(const struct kvc_encode *x, uint32_t tensor) {
    return kvc_coder_looks(kvc_coder_pipeline(x, tensor)) ? KVC_SEGMENT_BLOCKS : RUN_BLOCKS;
}

/* --- decoding what was encoded --- */

/* Lists in r->read.row the rows of block `number` that repeat no earlier row. */
static void list_own(struct kvc_tensor_coder *r, uint64_t number) {
    const struct kvc_cells *cells = kvc_coder_cells(r->x->cache, r->tensor);
    uint64_t own = 0;
    for (uint64_t i = 0; i < cells->block[number + 1] - cells->block[number]; i++)
        if (r->read.from[i].tensor == KVC_NONE) r->read.row[own++] = cells->block[number] + i;
}

/* A block of `own` rows, listed in `row`, that is to be decoded into `rows`. */
static struct kvc_block block_back(const struct kvc_tensor_coder *r, uint64_t own, uint64_t *row,
                                   uint8_t *rows) {
    struct kvc_block block = {.shape = r->x->cache->tensor[r->tensor].shape,
                              .rows = rows,
                              .role = kvc_plan_select(&r->x->cache->tensor[r->tensor]),
                              .row = row,
                              .rebuild = r->facts.source.rebuild,
                              .ahead = r->facts.ahead.ahead,
                              .position = r->facts.encoding.position,
                              .profile = r->facts.profile,
                              .turn = kvc_coder_turn(r)};
    block.shape.tokens = own;
    return block;
}

/* Decodes the `own` rows of the block in r->list into r->decoded. `first`: the coder of the pair's
 * first tensor, or NULL. */
static int decode_back(struct kvc_tensor_coder *r, struct kvc_tensor_coder *first, uint64_t number,
                       size_t container_sections, uint64_t own, struct kvc_error *e) {
    struct kvc_block block = block_back(r, own, r->read.row, r->decoded);
    struct kvc_coded coded = {.section = r->list.section + container_sections,
                              .n = r->list.count - container_sections,
                              .side = r->encoder.side.section,
                              .n_side = r->encoder.side.count},
                     base = {0};
    kvc_sections_seal(&r->list);
    list_own(r, number); /* encoding removed rows from the list */
    if (first) {
        struct kvc_block there, partner;
        kvc_sections_clear(&first->list);
        if (kvc_coder_load(first, number, &there, &partner, e) ||
            kvc_encoder_block(&first->encoder, &there, &first->list, e))
            return -1;
        kvc_sections_seal(&first->list);
        base = (struct kvc_coded){.section = first->list.section,
                                  .n = first->list.count,
                                  .side = first->encoder.side.section,
                                  .n_side = first->encoder.side.count};
    }
    return kvc_pipeline_decode_record(r->pipeline, &block, &coded, first ? &base : NULL, e);
}

/* Encodes block `number` of another tensor and decodes it again into h->decoded, as a reader of the
 * file will. */
static int decode_other(struct kvc_tensor_coder *h, uint64_t number, struct kvc_error *e) {
    uint64_t own;
    size_t container_sections;
    if (h->have == number + 1) return 0;
    h->have = 0;
    if (kvc_coder_sections(h, number, &own, &container_sections, e) ||
        (own && decode_back(h, NULL, number, container_sections, own, e)))
        return -1;
    h->have = number + 1;
    return 0;
}

/* Reads hidden states as a reader of the file will decode them. The rows must be in the coder's
 * segment; hidden states have the same blocks there. */
static int read_hidden(const void *owner, uint32_t tensor, uint64_t first, uint64_t n, uint8_t *dst,
                       struct kvc_error *e) {
    struct kvc_tensor_coder *r = (struct kvc_tensor_coder *)(uintptr_t)owner, *h = r->hidden;
    const struct kvc_cache *c = r->x->cache;
    if (!h) return c->read(c, tensor, first, n, dst, e);
    const struct kvc_cells *cells = kvc_coder_cells(c, tensor);
    const uint64_t block = kvc_cells_block_of(cells, first), start = cells->block[block];
    if (decode_other(h, block, e)) return -1;
    memcpy(dst, h->decoded + (first - start) * h->row_bytes, (size_t)(n * h->row_bytes));
    return 0;
}

/* --- coders --- */

/* Shows the segment to every stage that looks ahead, and encodes the side data. */
static int encode_prepare(struct kvc_tensor_coder *r, uint64_t first, uint64_t end,
                          struct kvc_error *e) {
    const struct kvc_cache *c = r->x->cache;
    unsigned steps = r->pipeline->n;
    uint64_t own;
    if (r->facts.encoding.second) steps = kvc_pipeline_first(r->pipeline, KVC_STAGE_PAIR) + 1;
    for (unsigned i = 0; i < steps; i++) {
        struct kvc_block like = {.shape = c->tensor[r->tensor].shape,
                                 .role = kvc_plan_select(&c->tensor[r->tensor]),
                                 .profile = r->facts.profile,
                                 .turn = kvc_coder_turn(r)};
        if (!(r->pipeline->step[i].stage->flags & KVC_STAGE_LOOKS)) continue;
        like.shape.tokens = 0;
        /* the shape after earlier stages */
        for (uint64_t b = first; b < end && !like.shape.tokens; b++) {
            struct kvc_block read,
                partner, *const block = kvc_coder_look_at(r, b, &read, &partner, &own, e);
            if (!block || (own && kvc_encoder_shape(&r->encoder, i, block, e))) return -1;
            if (!block->shape.tokens) continue;
            like.shape = block->shape;
            like.profile = block->profile;
            like.before_rope = block->before_rope;
        }
        if (kvc_encoder_begin(&r->encoder, i, &like, e)) return -1;
        const int sees = r->pipeline->step[i].stage->look && r->encoder.state[i];
        const int samples = r->pipeline->step[i].stage->flags & KVC_STAGE_SAMPLES &&
                            end - first >= SAMPLED_FROM;
        for (uint64_t b = first + (samples ? 1 : 0); b < end && sees; b += samples ? SAMPLE : 1) {
            struct kvc_block read,
                partner, *const block = kvc_coder_look_at(r, b, &read, &partner, &own, e);
            if (!block || (own && kvc_encoder_look(&r->encoder, i, block, e))) return -1;
        }
        if (kvc_encoder_settle(&r->encoder, i, e)) return -1;
    }
    return 0;
}

static void coder_free(struct kvc_tensor_coder *r) {
    if (!r) return;
    kvc_coder_drop(r);
    kvc_encoder_free(&r->encoder);
    kvc_sections_free(&r->list);
    coder_free(r->hidden);
    coder_free(r->origin);
    kvc_coder_facts_free(&r->facts);
    free(r->read.rows);
    free(r->read.own);
    free(r->read.other);
    free(r->decoded);
    kvc_sections_free(&r->waiting.list);
    free(r->waiting.rows);
    free(r->waiting.decoded);
    free(r);
}

static struct kvc_tensor_coder *coder_make(const struct kvc_encode *x, uint32_t tensor,
                                           uint64_t block, uint64_t end, struct kvc_error *e) {
    struct kvc_tensor_coder *r = calloc(1, sizeof *r);
    if (!r) {
        kvc_fail_memory(e, "a run of blocks");
        return NULL;
    }
    r->x = x;
    r->tensor = tensor;
    r->first_block = block;
    r->end_block = end;
    r->row_bytes = kvc_row_bytes(&x->cache->tensor[tensor].shape);
    r->pipeline = kvc_coder_pipeline(x, tensor);
    kvc_encoder_init(&r->encoder, r->pipeline, &r->facts.encoding);
    kvc_sections_init(&r->list);
    kvc_sections_init(&r->waiting.list);
    const size_t n = (size_t)r->row_bytes * KVC_BLOCK;
    r->read.rows = malloc(n);
    r->read.own = malloc(n);
    r->read.other = x->plan->partner[tensor] == KVC_NONE ? NULL : malloc(n);
    r->decoded = malloc(n);
    int status = 0;
    if (!r->read.rows || !r->read.own || !r->decoded ||
        (x->plan->partner[tensor] != KVC_NONE && !r->read.other))
        status = kvc_fail_memory(e, "a block");
    if (!status) status = kvc_coder_describe(r, read_hidden, e) || kvc_coder_keeps(r, e) ? -1 : 0;
    const uint32_t from = r->facts.source.rebuild ? r->facts.source.from : KVC_NONE;
    if (!status && from != KVC_NONE && !kvc_pipeline_lossless(kvc_coder_pipeline(x, from)))
        status = (r->hidden = coder_make(x, from, block, end, e)) ? 0 : -1;
    if (!status) status = encode_prepare(r, block, end, e);
    if (status) {
        coder_free(r);
        return NULL;
    }
    return r;
}

/* --- records of blocks --- */

/* Replaces rows that refer to another tensor by the values that the other tensor decodes to. */
static int decode_repeated(struct kvc_tensor_coder *r, uint64_t n, struct kvc_error *e) {
    for (uint64_t i = 0; i < n; i++) {
        const struct kvc_same *from = &r->read.from[i];
        if (from->tensor == KVC_NONE ||
            kvc_pipeline_lossless(kvc_coder_pipeline(r->x, from->tensor)))
            continue;
        struct kvc_tensor_coder *o = r->origin;
        if (!o || o->tensor != from->tensor || from->block < o->first_block ||
            from->block >= o->end_block) {
            const uint64_t first = from->block / KVC_SEGMENT_BLOCKS * KVC_SEGMENT_BLOCKS,
                           end = first + KVC_SEGMENT_BLOCKS;
            const uint64_t blocks = kvc_coder_cells(r->x->cache, from->tensor)->n_blocks;
            coder_free(o);
            r->origin = o = coder_make(r->x, from->tensor, first, end < blocks ? end : blocks, e);
            if (!o) return -1;
        }
        if (decode_other(o, from->block, e)) return -1;
        /* the origin's rows are packed, without the rows that are references themselves */
        uint64_t place = 0;
        for (uint32_t j = 0; j < from->there; j++) place += o->read.from[j].tensor == KVC_NONE;
        memcpy(r->read.rows + i * r->row_bytes, o->decoded + place * r->row_bytes,
               (size_t)r->row_bytes);
    }
    return 0;
}

/* Adds the squares of a lossy row and of its error. Skips values that are not finite, which decode
 * exactly. */
static void measure_row(const struct kvc_tensor_coder *r, const uint8_t *source,
                        const uint8_t *back, struct kvc_run *run) {
    float x[64], y[64];
    const enum kvc_dtype dtype = r->x->cache->tensor[r->tensor].shape.dtype;
    const size_t size = kvc_dtype_info(dtype)->size, n = (size_t)r->row_bytes / size;
    for (size_t i = 0, count; i < n; i += count) {
        count = n - i < 64 ? n - i : 64;
        kvc_to_floats(x, source + i * size, count, dtype);
        kvc_to_floats(y, back + i * size, count, dtype);
        for (size_t j = 0; j < count; j++) {
            const double a = (double)x[j], d = a - (double)y[j];
            if (!(d - d == 0)) continue;
            run->source_squares += a * a;
            run->error_squares += d * d;
        }
    }
}

static void swap_bytes(uint8_t **a, uint8_t **b) {
    uint8_t *const other = *a;
    *a = *b;
    *b = other;
}

/* Compares the `own` rows of the block with what they decode to, or takes them for it where stages
 * are lossy. */
static int check_decoded(struct kvc_tensor_coder *r, uint64_t number, uint64_t own,
                         struct kvc_run *run, struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_coder_cells(r->x->cache, r->tensor);
    const uint64_t n = cells->block[number + 1] - cells->block[number];
    const int lossless = kvc_pipeline_lossless(r->pipeline);
    uint64_t k = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (r->read.from[i].tensor != KVC_NONE) continue;
        const uint8_t *back = r->decoded + k++ * r->row_bytes;
        if (lossless && memcmp(back, r->read.rows + i * r->row_bytes, (size_t)r->row_bytes) != 0)
            return kvc_fail(e, KVC_ERR_VERIFY,
                            "block %" PRIu64 " does not decode to what was encoded", number);
        if (!lossless && r->x->options->measure &&
            kvc_is_float(r->x->cache->tensor[r->tensor].shape.dtype))
            measure_row(r, r->read.rows + i * r->row_bytes, back, run);
        if (!lossless && own < n)
            memcpy(r->read.rows + i * r->row_bytes, back, (size_t)r->row_bytes);
    }
    if (!lossless && own == n) swap_bytes(&r->read.rows, &r->decoded);
    return 0;
}

/* Adds the record of the block in r->list. */
static int add_record(struct kvc_tensor_coder *r, uint64_t number, struct kvc_run *run,
                      struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_coder_cells(r->x->cache, r->tensor);
    const uint64_t start = cells->block[number], n = cells->block[number + 1] - start;
    if (decode_repeated(r, n, e) ||
        (!kvc_pipeline_lossless(r->pipeline) &&
         kvc_loop_publish(r->x->loop, r->tensor, number, r->read.rows, e)))
        return -1;
    const uint64_t digest = kvc_digest_rows(r->read.rows, r->row_bytes, start, n);
    return kvc_record_build(&run->buffer, KVC_RECORD_BLOCK, r->tensor, (uint32_t)number, digest,
                            &r->list, e);
}

/* Returns 1 where what blocks decode to is asked for: lossless blocks may go unverified. */
static int decodes_back(const struct kvc_tensor_coder *r) {
    return !kvc_pipeline_lossless(r->pipeline) || !r->x->options->no_verify;
}

/* Decodes and checks the block in r->list, and adds its record. */
static int finish_block(struct kvc_tensor_coder *r, struct kvc_tensor_coder *first, uint64_t number,
                        uint64_t own, size_t container_sections, struct kvc_run *run,
                        struct kvc_error *e) {
    if (own && decodes_back(r) &&
        (decode_back(r, first, number, container_sections, own, e) ||
         check_decoded(r, number, own, run, e)))
        return -1;
    return add_record(r, number, run, e);
}

/* Encodes block `number` into r->list. */
static int start_block(struct kvc_tensor_coder *r, uint64_t number, uint64_t *own,
                       size_t *container_sections, struct kvc_run *run, struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_coder_cells(r->x->cache, r->tensor);
    const uint64_t n = cells->block[number + 1] - cells->block[number];
    if (kvc_coder_sections(r, number, own, container_sections, e)) return -1;
    run->same_rows += n - *own;
    run->bytes += n * r->row_bytes;
    return 0;
}

/* Encodes block `number` into run->buffer. */
static int encode_block(struct kvc_tensor_coder *r, struct kvc_tensor_coder *first, uint64_t number,
                        struct kvc_run *run, struct kvc_error *e) {
    uint64_t own;
    size_t container_sections;
    if (start_block(r, number, &own, &container_sections, run, e)) return -1;
    if (finish_block(r, first, number, own, container_sections, run, e)) return -1;
    return 0;
}

/* --- blocks that are decoded two at a time --- */

/* Exchanges the block with the waiting one. */
static void exchange(struct kvc_tensor_coder *r) {
    const struct kvc_sections list = r->list;
    r->list = r->waiting.list;
    r->waiting.list = list;
    swap_bytes(&r->read.rows, &r->waiting.rows);
    swap_bytes(&r->decoded, &r->waiting.decoded);
}

/* Makes room for a block that waits. Returns 0 without memory or reason to wait. */
static int may_wait(struct kvc_tensor_coder *r, const struct kvc_tensor_coder *first) {
    const size_t n = (size_t)r->row_bytes * KVC_BLOCK;
    if (first || !decodes_back(r) || !kvc_pipeline_decodes_two(r->pipeline)) return 0;
    if (!r->waiting.rows) r->waiting.rows = malloc(n);
    if (!r->waiting.decoded) r->waiting.decoded = malloc(n);
    return r->waiting.rows && r->waiting.decoded;
}

/* Decodes the waiting block, `number`, and the one after it, neither of which has references.
 * Returns 0, or 1 where each is to be decoded alone. */
static int decode_two_back(struct kvc_tensor_coder *r, uint64_t number) {
    const uint64_t *const start = kvc_coder_cells(r->x->cache, r->tensor)->block + number;
    const struct kvc_sections *const list[] = {&r->waiting.list, &r->list}, *const side =
                                                                                &r->encoder.side;
    uint8_t *const to[] = {r->waiting.decoded, r->decoded};
    uint64_t row[2][KVC_BLOCK];
    struct kvc_block block[2];
    struct kvc_coded coded[2];
    kvc_sections_seal(&r->waiting.list);
    kvc_sections_seal(&r->list);
    for (int b = 0; b < 2; b++) {
        for (uint64_t i = start[b]; i < start[b + 1]; i++) row[b][i - start[b]] = i;
        block[b] = block_back(r, start[b + 1] - start[b], row[b], to[b]);
        coded[b] = (struct kvc_coded){list[b]->section, side->section, list[b]->count, side->count};
    }
    return kvc_pipeline_decode_two(r->pipeline, block, coded);
}

/* Adds a block that is decoded already. */
static int keep_decoded(struct kvc_tensor_coder *r, uint64_t number, uint64_t rows,
                        struct kvc_run *run, struct kvc_error *e) {
    return check_decoded(r, number, rows, run, e) ? -1 : add_record(r, number, run, e);
}

/* Encodes blocks `number` and `number` + 1 into run->buffer, and decodes them at once where neither
 * has references to other rows. */
static int encode_two(struct kvc_tensor_coder *r, uint64_t number, struct kvc_run *run,
                      struct kvc_error *e) {
    const uint64_t *const start = kvc_coder_cells(r->x->cache, r->tensor)->block + number;
    const uint64_t n = start[1] - start[0], next = start[2] - start[1];
    uint64_t own;
    size_t container_sections;
    if (start_block(r, number, &own, &container_sections, run, e)) return -1;
    if (container_sections || own != n) {
        if (finish_block(r, NULL, number, own, container_sections, run, e)) return -1;
        return encode_block(r, NULL, number + 1, run, e);
    }
    exchange(r);
    if (start_block(r, number + 1, &own, &container_sections, run, e)) return -1;
    const int both = !container_sections && own == next && !decode_two_back(r, number);
    struct kvc_same from[KVC_BLOCK]; /* of the second block; the first has no references */
    memcpy(from, r->read.from, (size_t)next * sizeof *from);
    for (uint64_t i = 0; i < n; i++) r->read.from[i].tensor = KVC_NONE;
    exchange(r);
    if (both ? keep_decoded(r, number, n, run, e) : finish_block(r, NULL, number, n, 0, run, e))
        return -1;
    exchange(r);
    memcpy(r->read.from, from, (size_t)next * sizeof *from);
    return both ? keep_decoded(r, number + 1, own, run, e)
                : finish_block(r, NULL, number + 1, own, container_sections, run, e);
}

static int encode_blocks(struct kvc_tensor_coder *r, struct kvc_tensor_coder *first, uint64_t block,
                         uint64_t end, struct kvc_run *run, struct kvc_error *e) {
    int status = 0;
    for (uint64_t b = block, n; b < end && !status; b += n) {
        n = end - b > 1 && may_wait(r, first) ? 2 : 1;
        status = n == 2 ? encode_two(r, b, run, e) : encode_block(r, first, b, run, e);
    }
    return status ? -1 : 0;
}

/* --- blocks that another coder encodes --- */

/* Writes the block that the coder has encoded, or encodes the block that it left. */
static int take_block(struct kvc_tensor_coder *r, uint64_t number, struct kvc_coder_block *coded,
                      struct kvc_run *run, struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_coder_cells(r->x->cache, r->tensor);
    if (!coded->done) return encode_block(r, NULL, number, run, e);
    run->bytes += (cells->block[number + 1] - cells->block[number]) * r->row_bytes;
    return kvc_record_build(&run->buffer, KVC_RECORD_BLOCK, r->tensor, (uint32_t)number,
                            coded->digest, &coded->list, e);
}

static int encode_by_coder(struct kvc_tensor_coder *r, uint64_t block, uint64_t end,
                           struct kvc_run *run, struct kvc_error *e) {
    const struct kvc_block_coder *coder = r->x->options->coder;
    const struct kvc_coder_work work = {r->x->cache,        r->tensor, r->pipeline,
                                        &r->facts.encoding, block,     end};
    struct kvc_coder_block coded[RUN_BLOCKS] = {{.done = 0}};
    for (uint64_t b = block; b < end; b++) kvc_sections_init(&coded[b - block].list);
    int status = coder->encode(coder->state, &work, coded, e);
    for (uint64_t b = block; b < end && !status; b++)
        status = take_block(r, b, &coded[b - block], run, e);
    for (uint64_t b = block; b < end; b++) kvc_sections_free(&coded[b - block].list);
    return status;
}

/* Returns 1 if the coder takes the blocks of a tensor: rows are no references, and no stage looks
 * ahead. */
static int by_coder(const struct kvc_encode *x, uint32_t tensor) {
    return x->options->coder && !kvc_coder_looks(kvc_coder_pipeline(x, tensor)) &&
           !kvc_same_is_possible(x->cache, tensor);
}

int kvc_encode_run(const struct kvc_encode *x, uint32_t tensor, uint64_t block, uint64_t end,
                   struct kvc_run *run, struct kvc_error *e) {
    struct kvc_tensor_coder *own = coder_make(x, tensor, block, end, e), *first = NULL;
    int status = own ? 0 : -1;
    if (!status && is_second(x, tensor)) {
        first = coder_make(x, x->plan->partner[tensor], block, end, e);
        status = first ? 0 : -1;
    }
    if (!status && own->encoder.side.count)
        status = kvc_record_build(&run->buffer, KVC_RECORD_SIDE, tensor,
                                  (uint32_t)(block / KVC_SEGMENT_BLOCKS), 0, &own->encoder.side, e);
    if (by_coder(x, tensor)) status = status || encode_by_coder(own, block, end, run, e);
    else status = status || encode_blocks(own, first, block, end, run, e);
    kvc_loop_done(x->loop, tensor, block, end, status);
    coder_free(own);
    coder_free(first);
    return status ? -1 : 0;
}
