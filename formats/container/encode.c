/* encode.c: encodes the records of a run of blocks of one tensor. Spec: FORMAT.md, "Records". Not
 * for the order of stages (codecs/pipeline_encode.c), the blocks that they take (encode_rows.c) or
 * the facts that they ask for (encode_facts.c), and not for the order of the file (writer.c).
 *
 * For the second tensor of a pair, the blocks of the first one are encoded again, because the
 * digests are of values decoded from both. */
#include "formats/container/encode.h"

#include "codecs/floats.h"
#include "codecs/memory.h"
#include "formats/container/base_blocks.h"
#include "formats/container/device_blocks.h"
#include "formats/container/record_write.h"
#include "formats/container/same.h"

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

/* Lists in r->read.row the rows of a block that repeat no earlier row. */
static void list_own(struct kvc_tensor_coder *r, const struct kvc_coded_block *b) {
    const uint64_t first = kvc_tensor_cells(r->x->cache, r->tensor)->block[b->number];
    uint64_t own = 0;
    for (uint64_t i = 0; i < b->n; i++)
        if (b->from[i].tensor == KVC_NONE) r->read.row[own++] = first + i;
}

/* A block whose own rows, listed in `row`, are to be decoded into b->decoded. */
static struct kvc_block block_back(const struct kvc_tensor_coder *r,
                                   const struct kvc_coded_block *b, uint64_t *row) {
    struct kvc_block block = {.shape = r->x->cache->tensor[r->tensor].shape,
                              .rows = b->decoded,
                              .role = kvc_plan_select(&r->x->cache->tensor[r->tensor]),
                              .row = row,
                              .rebuild = r->facts.source.rebuild,
                              .ahead = r->facts.ahead.ahead,
                              .position = r->facts.encoding.position,
                              .profile = r->facts.profile,
                              .turn = kvc_coder_turn(r)};
    block.shape.tokens = b->own;
    return block;
}

/* Returns the stages' sections of a block, and of its segment. */
static struct kvc_coded coded_of(struct kvc_tensor_coder *r, struct kvc_coded_block *b) {
    kvc_sections_seal(&b->list);
    return (struct kvc_coded){.section = b->list.section + b->container_sections,
                              .n = b->list.count - b->container_sections,
                              .side = r->encoder.side.section,
                              .n_side = r->encoder.side.count};
}

static struct kvc_tensor_coder *other_coder(struct kvc_tensor_coder *r, enum kvc_other_coder which,
                                            uint32_t tensor, uint64_t block, struct kvc_error *e);

/* Decodes the own rows of a block into b->decoded. */
static int decode_back(struct kvc_tensor_coder *r, struct kvc_coded_block *b, struct kvc_error *e) {
    struct kvc_block block = block_back(r, b, r->read.row);
    const struct kvc_coded coded = coded_of(r, b);
    list_own(r, b); /* encoding removed rows from the list */
    if (!is_second(r->x, r->tensor))
        return kvc_pipeline_decode_record(r->pipeline, &block, &coded, NULL, e);
    struct kvc_tensor_coder *first = other_coder(r, KVC_OTHER_FIRST, r->x->plan->partner[r->tensor],
                                                 b->number, e);
    struct kvc_block there, partner;
    if (!first) return -1;
    kvc_sections_clear(&first->now->list);
    if (kvc_coder_load(first, b->number, &there, &partner, e)) return -1;
    if (kvc_encoder_block(&first->encoder, &there, &first->now->list, e)) return -1;
    const struct kvc_coded base = coded_of(first, first->now);
    return kvc_pipeline_decode_record(r->pipeline, &block, &coded, &base, e);
}

/* Encodes block `number` of another tensor and decodes it again into o->now->decoded, as a reader
 * of the file will. */
static int decode_other(struct kvc_tensor_coder *o, uint64_t number, struct kvc_error *e) {
    if (o->have == number + 1) return 0;
    o->have = 0;
    if (kvc_coder_sections(o, number, e)) return -1;
    if (o->now->own && decode_back(o, o->now, e)) return -1;
    o->have = number + 1;
    return 0;
}

/* Reads hidden states as a reader of the file will decode them. The rows must be in one block. */
static int read_hidden(const void *owner, uint32_t tensor, uint64_t first, uint64_t n, uint8_t *dst,
                       struct kvc_error *e) {
    struct kvc_tensor_coder *r = (struct kvc_tensor_coder *)(uintptr_t)owner;
    const struct kvc_cache *c = r->x->cache;
    if (kvc_pipeline_lossless(kvc_coder_pipeline(r->x, tensor)))
        return c->read(c, tensor, first, n, dst, e);
    const struct kvc_cells *cells = kvc_tensor_cells(c, tensor);
    const uint64_t block = kvc_cells_block_of(cells, first), start = cells->block[block];
    struct kvc_tensor_coder *h = other_coder(r, KVC_OTHER_HIDDEN, tensor, block, e);
    if (!h || decode_other(h, block, e)) return -1;
    memcpy(dst, h->now->decoded + (first - start) * h->row_bytes, (size_t)(n * h->row_bytes));
    return 0;
}

/* --- coders --- */

/* Shows the segment to every stage that looks ahead, and encodes the side data. A segment of the
 * base has those of the base. */
static int encode_prepare(struct kvc_tensor_coder *r, uint64_t first, uint64_t end,
                          const struct kvc_base_side *base, struct kvc_error *e) {
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
            if (!own) continue;
            like.shape = block->shape; /* also where earlier stages took all rows */
            like.profile = block->profile;
            like.before_rope = block->before_rope;
        }
        if (kvc_encoder_begin(&r->encoder, i, &like, e)) return -1;
        if (base->from) {
            if (kvc_encoder_adopt(&r->encoder, i, base->section, base->n, e)) return -1;
            continue;
        }
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
    for (int i = 0; i < KVC_OTHER_CODERS; i++) coder_free(r->other[i]);
    kvc_coder_drop(r);
    kvc_encoder_free(&r->encoder);
    kvc_coder_facts_free(&r->facts);
    free(r->read.own);
    free(r->read.other);
    for (int i = 0; i < 2; i++) {
        kvc_sections_free(&r->block[i].list);
        free(r->block[i].rows);
        free(r->block[i].decoded);
    }
    free(r);
}

/* Makes room for the rows of a block. Returns 0 without memory. */
static int have_room(const struct kvc_tensor_coder *r, struct kvc_coded_block *b) {
    const size_t n = (size_t)r->row_bytes * KVC_BLOCK;
    if (!b->rows) b->rows = malloc(n);
    if (!b->decoded) b->decoded = malloc(n);
    return b->rows && b->decoded;
}

/* Makes the rest of a coder that knows its blocks. */
static int coder_fill(struct kvc_tensor_coder *r, struct kvc_error *e) {
    const size_t n = (size_t)r->row_bytes * KVC_BLOCK;
    const int paired = r->x->plan->partner[r->tensor] != KVC_NONE;
    r->read.own = malloc(n);
    r->read.other = paired ? malloc(n) : NULL;
    if (!r->read.own || (paired && !r->read.other) || !have_room(r, r->now))
        return kvc_fail_memory(e, "a block");
    if (kvc_coder_describe(r, read_hidden, e)) return -1;
    struct kvc_base_side base;
    if (kvc_base_side(r->x, r->tensor, r->first_block, &base, e)) return -1;
    int status = base.from ? 0 : kvc_coder_keeps(r, e);
    if (!status) status = encode_prepare(r, r->first_block, r->end_block, &base, e);
    kvc_base_side_free(&base);
    return status;
}

static struct kvc_tensor_coder *coder_make(const struct kvc_encode *x, uint32_t tensor, int apart,
                                           uint64_t block, uint64_t end, struct kvc_error *e) {
    struct kvc_tensor_coder *r = calloc(1, sizeof *r);
    if (!r) {
        kvc_fail_memory(e, "a run of blocks");
        return NULL;
    }
    r->x = x;
    r->tensor = tensor;
    r->apart = apart;
    r->first_block = block;
    r->end_block = end;
    r->row_bytes = kvc_row_bytes(&x->cache->tensor[tensor].shape);
    r->pipeline = kvc_coder_pipeline(x, tensor);
    r->now = &r->block[0];
    r->waiting = &r->block[1];
    kvc_encoder_init(&r->encoder, r->pipeline, &r->facts.encoding);
    for (int i = 0; i < 2; i++) kvc_sections_init(&r->block[i].list);
    if (!coder_fill(r, e)) return r;
    coder_free(r);
    return NULL;
}

/* Returns the coder of the segment of another tensor that contains a block; NULL: *e. */
static struct kvc_tensor_coder *other_coder(struct kvc_tensor_coder *r, enum kvc_other_coder which,
                                            uint32_t tensor, uint64_t block, struct kvc_error *e) {
    struct kvc_tensor_coder *o = r->other[which];
    if (o && o->tensor == tensor && block >= o->first_block && block < o->end_block) return o;
    const uint64_t blocks = kvc_tensor_cells(r->x->cache, tensor)->n_blocks,
                   first = block / KVC_SEGMENT_BLOCKS * KVC_SEGMENT_BLOCKS,
                   end = first + KVC_SEGMENT_BLOCKS;
    const int apart = r->apart ||
                      r->x->cache->tensor[tensor].layer != r->x->cache->tensor[r->tensor].layer;
    coder_free(o);
    return r->other[which] = coder_make(r->x, tensor, apart, first, end < blocks ? end : blocks, e);
}

/* --- records of blocks --- */

/* Replaces rows that refer to another tensor by the values that the other tensor decodes to. */
static int decode_repeated(struct kvc_tensor_coder *r, const struct kvc_coded_block *b,
                           struct kvc_error *e) {
    for (uint64_t i = 0; i < b->n; i++) {
        const struct kvc_same *from = &b->from[i];
        if (from->tensor == KVC_NONE ||
            kvc_pipeline_lossless(kvc_coder_pipeline(r->x, from->tensor)) ||
            kvc_base_has(r->x, from->tensor,
                         kvc_tensor_cells(r->x->cache, from->tensor)->block[from->block] +
                             from->there))
            continue;
        struct kvc_tensor_coder *o = other_coder(r, KVC_OTHER_ORIGIN, from->tensor, from->block, e);
        if (!o || decode_other(o, from->block, e)) return -1;
        /* the origin's rows are packed, without the rows that are references themselves */
        uint64_t place = 0;
        for (uint32_t j = 0; j < from->there; j++) place += o->now->from[j].tensor == KVC_NONE;
        memcpy(b->rows + i * r->row_bytes, o->now->decoded + place * r->row_bytes,
               (size_t)r->row_bytes);
    }
    return 0;
}

/* Adds the squares of n lossy rows of a shape, and those of their errors. Skips values that are not
 * finite, which decode exactly. */
static void measure_rows(struct kvc_run *run, const struct kvc_shape *shape, const uint8_t *source,
                         const uint8_t *back, uint64_t n) {
    float x[64], y[64];
    if (!kvc_is_float(shape->dtype)) return;
    const size_t size = kvc_dtype_info(shape->dtype)->size,
                 values = (size_t)(n * kvc_row_bytes(shape)) / size;
    for (size_t i = 0, count; i < values; i += count) {
        count = values - i < 64 ? values - i : 64;
        kvc_to_floats(x, source + i * size, count, shape->dtype);
        kvc_to_floats(y, back + i * size, count, shape->dtype);
        for (size_t j = 0; j < count; j++) {
            const double a = (double)x[j], d = a - (double)y[j];
            if (!(d - d == 0)) continue;
            run->source_squares += a * a;
            run->error_squares += d * d;
        }
    }
}

/* Compares the own rows of a block with what they decode to, or takes them for it where stages are
 * lossy. */
static int check_decoded(struct kvc_tensor_coder *r, struct kvc_coded_block *b, struct kvc_run *run,
                         struct kvc_error *e) {
    const int lossless = kvc_pipeline_lossless(r->pipeline);
    const int measures = !lossless && r->x->options->measure;
    const struct kvc_shape *shape = &r->x->cache->tensor[r->tensor].shape;
    const uint64_t first = kvc_tensor_cells(r->x->cache, r->tensor)->block[b->number];
    const uint8_t *back = b->decoded;
    for (uint64_t i = 0; i < b->n; i++) {
        uint8_t *row = b->rows + i * r->row_bytes;
        if (b->from[i].tensor != KVC_NONE) continue;
        if (lossless && memcmp(back, row, (size_t)r->row_bytes) != 0)
            return kvc_fail(e, KVC_ERR_VERIFY,
                            "block %" PRIu64 " does not decode to what was encoded", b->number);
        if (kvc_base_has(r->x, r->tensor, first + i) &&
            memcmp(back, row, (size_t)r->row_bytes) != 0)
            return kvc_fail(e, KVC_ERR_VERIFY,
                            "block %" PRIu64 " does not decode to the rows of the base", b->number);
        if (measures) measure_rows(run, shape, row, back, 1);
        if (!lossless && b->own < b->n) memcpy(row, back, (size_t)r->row_bytes);
        back += r->row_bytes;
    }
    if (lossless || b->own < b->n) return 0;
    uint8_t *const source = b->rows;
    b->rows = b->decoded;
    b->decoded = source;
    return 0;
}

/* Returns 1 where what blocks decode to is asked for: lossless blocks may go unverified. */
static int decodes_back(const struct kvc_tensor_coder *r) {
    return !kvc_pipeline_lossless(r->pipeline) || !r->x->options->no_verify;
}

/* Decodes a block, unless it is decoded already, checks it, and adds its record. */
static int finish_block(struct kvc_tensor_coder *r, struct kvc_coded_block *b, int is_decoded,
                        struct kvc_run *run, struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_tensor_cells(r->x->cache, r->tensor);
    if (b->own && decodes_back(r)) {
        if (!is_decoded && decode_back(r, b, e)) return -1;
        if (check_decoded(r, b, run, e)) return -1;
    }
    if (decode_repeated(r, b, e)) return -1;
    if (!kvc_pipeline_lossless(r->pipeline) &&
        kvc_loop_publish(r->x->loop, r->tensor, b->number, b->rows, e))
        return -1;
    const uint64_t digest = kvc_digest_rows(b->rows, r->row_bytes, cells->block[b->number], b->n);
    return kvc_record_build(&run->buffer, KVC_RECORD_BLOCK, r->tensor, (uint32_t)b->number, digest,
                            &b->list, e);
}

/* Encodes block `number` into *r->now. */
static int start_block(struct kvc_tensor_coder *r, uint64_t number, struct kvc_run *run,
                       struct kvc_error *e) {
    if (kvc_coder_sections(r, number, e)) return -1;
    run->same_rows += r->now->n - r->now->own;
    run->bytes += r->now->n * r->row_bytes;
    return 0;
}

/* Encodes block `number` into run->buffer. */
static int encode_block(struct kvc_tensor_coder *r, uint64_t number, struct kvc_run *run,
                        struct kvc_error *e) {
    if (start_block(r, number, run, e)) return -1;
    return finish_block(r, r->now, 0, run, e);
}

/* --- blocks that are decoded two at a time --- */

/* Returns 1 where two blocks may be decoded at once, and there is memory for the second. */
static int may_wait(struct kvc_tensor_coder *r) {
    return !is_second(r->x, r->tensor) && decodes_back(r) &&
           kvc_pipeline_decodes_two(r->pipeline) && have_room(r, r->waiting);
}

static int codes_all_rows(const struct kvc_coded_block *b) {
    return !b->container_sections && b->own == b->n;
}

/* Decodes the waiting block and the one after it. Returns 0, or 1 where each is to be decoded
 * alone. */
static int decode_two_back(struct kvc_tensor_coder *r) {
    struct kvc_coded_block *const both[] = {r->waiting, r->now};
    const uint64_t *const start = kvc_tensor_cells(r->x->cache, r->tensor)->block;
    uint64_t row[2][KVC_BLOCK];
    struct kvc_block block[2];
    struct kvc_coded coded[2];
    for (int b = 0; b < 2; b++) {
        for (uint64_t i = 0; i < both[b]->n; i++) row[b][i] = start[both[b]->number] + i;
        block[b] = block_back(r, both[b], row[b]);
        coded[b] = coded_of(r, both[b]);
    }
    return kvc_pipeline_decode_two(r->pipeline, block, coded);
}

/* Encodes blocks `number` and `number` + 1 into run->buffer, and decodes them at once where neither
 * has references to other rows. */
static int encode_two(struct kvc_tensor_coder *r, uint64_t number, struct kvc_run *run,
                      struct kvc_error *e) {
    if (start_block(r, number, run, e)) return -1;
    if (!codes_all_rows(r->now)) {
        if (finish_block(r, r->now, 0, run, e)) return -1;
        return encode_block(r, number + 1, run, e);
    }
    struct kvc_coded_block *const first = r->now;
    r->now = r->waiting;
    r->waiting = first;
    if (start_block(r, number + 1, run, e)) return -1;
    const int both = codes_all_rows(r->now) && !decode_two_back(r);
    if (finish_block(r, r->waiting, both, run, e)) return -1;
    return finish_block(r, r->now, both, run, e);
}

static int encode_blocks(struct kvc_tensor_coder *r, uint64_t first, struct kvc_run *run,
                         struct kvc_error *e) {
    for (uint64_t b = first, n; b < r->end_block; b += n) {
        n = r->end_block - b > 1 && may_wait(r) ? 2 : 1;
        if (n == 2 ? encode_two(r, b, run, e) : encode_block(r, b, run, e)) return -1;
    }
    return 0;
}

/* --- blocks that another coder encodes --- */

/* Writes the block that the coder has encoded, or encodes the block that it left. */
static int take_block(struct kvc_tensor_coder *r, uint64_t number, struct kvc_coder_block *coded,
                      struct kvc_run *run, struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_tensor_cells(r->x->cache, r->tensor);
    if (!coded->done) return encode_block(r, number, run, e);
    run->bytes += (cells->block[number + 1] - cells->block[number]) * r->row_bytes;
    return kvc_record_build(&run->buffer, KVC_RECORD_BLOCK, r->tensor, (uint32_t)number,
                            coded->digest, &coded->list, e);
}

static int encode_by_coder(struct kvc_tensor_coder *r, struct kvc_run *run, struct kvc_error *e) {
    const struct kvc_block_coder *coder = r->x->options->coder;
    const uint64_t block = r->first_block, end = r->end_block;
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
           !kvc_same_is_possible(&x->repeats, tensor);
}

/* --- runs --- */

/* Copies the records of blocks [block, end) of the base, which decode to the rows of the cache. */
static int copy_blocks(const struct kvc_encode *x, uint32_t tensor, uint64_t block, uint64_t end,
                       struct kvc_run *run, struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_tensor_cells(x->cache, tensor);
    const struct kvc_shape *shape = &x->cache->tensor[tensor].shape;
    const int reads = x->loop || x->options->measure;
    uint8_t *rows = reads ? kvc_alloc(KVC_BLOCK, kvc_row_bytes(shape)) : NULL;
    int status = reads && !rows ? kvc_fail_memory(e, "a block") : 0;
    for (uint64_t b = block; b < end && !status; b++) {
        const uint64_t first = cells->block[b], n = cells->block[b + 1] - first;
        run->bytes += n * kvc_row_bytes(shape);
        status = kvc_base_copy_block(x->base->from, tensor, b, &run->buffer, e);
        if (!status && reads) status = x->cache->read(x->cache, tensor, first, n, rows, e);
        if (!status && x->options->measure) measure_rows(run, shape, rows, rows, n);
        if (!status) status = kvc_loop_publish(x->loop, tensor, b, rows, e);
    }
    free(rows);
    return status;
}

/* Writes the side data of a run: those of the base, or of the coder, which is NULL where all blocks
 * are copied. */
static int write_side(const struct kvc_encode *x, uint32_t tensor, uint64_t block,
                      struct kvc_tensor_coder *r, struct kvc_run *run, struct kvc_error *e) {
    struct kvc_base_side base;
    if (kvc_base_side(x, tensor, block, &base, e)) return -1;
    if (base.from) {
        const int status = kvc_base_copy_side(&base, &run->buffer, e);
        kvc_base_side_free(&base);
        return status;
    }
    if (!r || !r->encoder.side.count) return 0;
    return kvc_record_build(&run->buffer, KVC_RECORD_SIDE, tensor,
                            (uint32_t)(block / KVC_SEGMENT_BLOCKS), 0, &r->encoder.side, e);
}

/* Encodes the blocks of a coder from block `first` on. */
static int encode_rest(struct kvc_tensor_coder *r, uint64_t first, struct kvc_run *run,
                       struct kvc_error *e) {
    return by_coder(r->x, r->tensor) ? encode_by_coder(r, run, e) : encode_blocks(r, first, run, e);
}

int kvc_encode_run(const struct kvc_encode *x, uint32_t tensor, uint64_t block, uint64_t end,
                   struct kvc_run *run, struct kvc_error *e) {
    const uint64_t copied = kvc_base_copied(x, tensor, block, end);
    struct kvc_tensor_coder *r = copied < end ? coder_make(x, tensor, 0, block, end, e) : NULL;
    int status = copied < end && !r ? -1 : write_side(x, tensor, block, r, run, e);
    if (!status && copied > block) status = copy_blocks(x, tensor, block, copied, run, e);
    if (!status && copied < end) status = encode_rest(r, copied, run, e);
    kvc_loop_done(x->loop, tensor, block, end, status);
    coder_free(r);
    return status;
}
