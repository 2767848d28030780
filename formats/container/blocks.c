/* blocks.c: decodes and checks the blocks of an open container. Not for opening it (reader.c), or
 * for describing it (inspect.c). */
#include "formats/container/records.h"

#include "codecs/float_env.h"
#include "codecs/memory.h"
#include "formats/container/decoded.h"
#include "formats/container/device_blocks.h"
#include "formats/container/inputs.h"
#include "formats/container/offsets.h"
#include "formats/io/parallel.h"
#include "formats/model/predict_source.h"
#include "formats/container/plan.h"
#include "formats/container/same.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Stages write numbers of up to 8 bytes where a block is decoded. */
enum { ROW_ALIGN = 8 };

/* A reader of its own, by which verifies() knows such a cache. */
static int read_unverified(const struct kvc_cache *c, uint32_t tensor, uint64_t first, uint64_t n,
                           uint8_t *dst, struct kvc_error *e) {
    return kvc_blocks_read(c, tensor, first, n, dst, e);
}

struct kvc_cache kvc_container_unverified(const struct kvc_cache *c) {
    struct kvc_cache plain = *c;
    if (kvc_records_of(c)) plain.read = read_unverified;
    return plain;
}

/* Returns 1 if each block that is decoded is to be compared with its digest, as in a damaged file.
 */
static int verifies(const struct kvc_cache *c) {
    const struct kvc_records *k = kvc_records_of(c);
    return k->survey || (k->verify && c->read != read_unverified);
}

/* --- memory --- */

enum { THREAD_BLOCKS = 8 }; /* that a thread holds */

/* Returns the bytes of a tensor's largest block, as it is or as binary32. */
static uint64_t block_bytes(const struct kvc_shape *s) {
    const uint64_t rows = s->tokens < KVC_BLOCK ? s->tokens : KVC_BLOCK;
    const uint64_t own = kvc_row_bytes(s), floats = s->heads * s->dim * sizeof(float);
    return rows * (own > floats ? own : floats);
}

/* Returns the bytes that a thread needs: blocks, and the inputs that are held for a block that is
 * predicted, one for each value of the tensors before it. */
static uint64_t thread_bytes(const struct kvc_cache *c, uint32_t tensor) {
    const struct kvc_records *k = kvc_records_of(c);
    const int ahead = kvc_pipeline_has(kvc_records_pipeline(k, tensor), KVC_STAGE_AHEAD);
    return THREAD_BLOCKS * block_bytes(&k->shape[tensor]) +
           (ahead ? k->before[tensor] * KVC_BLOCK : 0);
}

static uint64_t for_threads(const struct kvc_cache *c) {
    const uint64_t all = kvc_records_of(c)->max_memory;
    return all - all / 4;
}

/* Refuses to decode blocks of a tensor for which the memory of the container does not suffice. The
 * message says how much would. */
static int check_memory(const struct kvc_cache *c, uint32_t tensor, struct kvc_error *e) {
    const uint64_t needs = thread_bytes(c, tensor), allowed = kvc_records_of(c)->max_memory;
    char label[64];
    if (needs <= for_threads(c)) return 0;
    kvc_tensor_label(c, tensor, label, sizeof label);
    return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_MEMORY,
                         "decoding %s may take %" PRIu64 " MiB of memory, and %" PRIu64
                         " MiB are allowed",
                         label, (needs + needs / 3) / (1 << 20) + 1, allowed >> 20);
}

unsigned kvc_decode_memory_threads(const struct kvc_cache *c, unsigned threads) {
    const struct kvc_records *k = kvc_records_of(c);
    uint64_t most = 1;
    threads = kvc_parallel_threads(threads);
    /* nothing is decoded: of rows that are read back from a device, or without a table of tensors
     */
    if (!k || !k->shape) return threads;
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const uint64_t needs = thread_bytes(c, t);
        if (needs > most) most = needs;
    }
    const uint64_t fit = for_threads(c) / most;
    return fit >= threads ? threads : fit ? (unsigned)fit : 1;
}

int kvc_container_may_hold(const struct kvc_cache *c, uint64_t bytes, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    if (!k || bytes <= k->max_memory) return 0;
    return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_MEMORY,
                         "the source's order of rows takes %" PRIu64 " MiB of memory, and %" PRIu64
                         " MiB are allowed",
                         (bytes >> 20) + 1, k->max_memory >> 20);
}

uint64_t kvc_decode_memory_kept(const struct kvc_cache *c) {
    return kvc_records_of(c)->max_memory / 8;
}

/* --- digests --- */

/* Compares the rows of a block, decoded at dst, with the digest. */
static int check_digest(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                        const uint8_t *dst, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    const struct kvc_record *r = &k->record[k->block_record[k->first_block[tensor] + block]];
    const struct kvc_cells *cells = kvc_tensor_cells(c, tensor);
    const uint64_t first = cells->block[block], rows = cells->block[block + 1] - first;
    const uint64_t digest = kvc_digest_rows(dst, kvc_row_bytes(&c->tensor[tensor].shape), first,
                                            rows);
    uint8_t head[24];
    if (kvc_input_copy(k->in, r->offset, head, sizeof head, e))
        return kvc_blocks_context(c, e, tensor, block);
    if (head[1] & KVC_RECORD_NO_DIGEST || digest == get_u64(head + 16)) return 0;
    kvc_record_damaged(e, r->offset, "decoded values do not match the digest");
    return kvc_blocks_context(c, e, tensor, block);
}

/* Compares this block and the next. */
static int check_digests(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                         const uint8_t *dst, struct kvc_error *e) {
    const uint64_t *const start = kvc_tensor_cells(c, tensor)->block + block;
    const uint8_t *second = dst + (start[1] - start[0]) * kvc_row_bytes(&c->tensor[tensor].shape);
    if (check_digest(c, tensor, block, dst, e)) return -1;
    if (check_digest(c, tensor, block + 1, second, e)) return -1;
    return 0;
}

/* --- one block --- */

/* The sections of one block's record and of its segment's side data, pinned until coded_free(). */
struct coded {
    const struct kvc_records *k;
    struct kvc_section *list, *side;
    unsigned n, n_side;
    uint64_t record, side_record; /* that are pinned; KVC_NOWHERE: none */
};

static void coded_free(struct coded *x) {
    if (x->k && x->record != KVC_NOWHERE) kvc_records_release(x->k, x->record, x->list);
    else free(x->list);
    if (x->k && x->side_record != KVC_NOWHERE) kvc_records_release(x->k, x->side_record, x->side);
}

/* `bytes`: a copy of the block's record, or NULL. */
static int coded_read(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                      const uint8_t *bytes, struct coded *x, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    const uint64_t record = k->block_record[k->first_block[tensor] + block];
    const uint64_t side = k->side_record[k->first_side[tensor] + block / KVC_SEGMENT_BLOCKS];
    *x = (struct coded){.k = k, .record = KVC_NOWHERE, .side_record = KVC_NOWHERE};
    if (record == KVC_NOWHERE) return kvc_fail(e, KVC_ERR_DAMAGED, "its record is missing");
    if (bytes ? kvc_records_sections_of(k, record, bytes, &x->list, &x->n, e)
              : kvc_records_sections(k, record, &x->list, &x->n, e))
        return -1;
    if (!bytes) x->record = record;
    if (side && kvc_records_sections(k, side, &x->side, &x->n_side, e))
        return kvc_record_context(e, side, "SIDE");
    if (side) x->side_record = side;
    if (!side) return 0;
    if (!x->n_side) kvc_fail(e, KVC_ERR_DAMAGED, "side data without a section");
    else if (x->side[0].stage != KVC_NO_STAGE || x->side[0].type != KVC_SECTION_NEEDS) return 0;
    else
        kvc_fail(
            e, KVC_ERR_UNSUPPORTED,
            "its blocks stand on what section NEEDS names, which this kvc does not know: use a "
            "newer kvc");
    return kvc_record_context(e, side, "SIDE");
}

/* Returns 1 and sets *first where `tensor` is the second one of a pair, or else 0. */
static int is_second(const struct kvc_records *k, uint32_t tensor, const struct coded *x,
                     uint32_t *first, struct kvc_error *e) {
    const struct kvc_pipeline *line = kvc_records_pipeline(k, tensor);
    const unsigned step = kvc_pipeline_first(line, KVC_STAGE_PAIR);
    if (step == line->n) return 0;
    const struct kvc_stored stored = kvc_pipeline_side(x->side, x->n_side, step);
    return line->step[step].stage->first_of(&stored, first, e);
}

/* Finds in the side data the first tensor of the pair of which `tensor` is the second; KVC_NONE if
 * `tensor` is not a second one. */
static int find_first(const struct kvc_cache *c, uint32_t tensor, const struct coded *x,
                      uint32_t *first, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    uint32_t t;
    *first = KVC_NONE;
    const int second = is_second(k, tensor, x, &t, e);
    if (second <= 0) return second;
    const struct kvc_shape *mine = &k->shape[tensor], *other = t < tensor ? &k->shape[t] : NULL;
    if (!other || kvc_tensor_part(c, t) != kvc_tensor_part(c, tensor) ||
        other->dtype != mine->dtype || other->heads != mine->heads || other->dim != mine->dim ||
        c->tensor[t].role != c->tensor[tensor].role || k->pipeline_of[t] != k->pipeline_of[tensor])
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "the side data name tensor %" PRIu32
                        ", which cannot be the first of a pair here",
                        t);
    *first = t;
    return 0;
}

/* Lists the rows that a block codes itself, by their numbers in the tensor. */
static void list_own(const struct kvc_cells *cells, uint64_t block, const struct kvc_split *split,
                     uint64_t *row) {
    const uint64_t end = cells->block[block + 1];
    uint64_t at = cells->block[block], n = 0;
    for (size_t s = 0; s <= split->n_same; s++) {
        const struct kvc_same *x = s < split->n_same ? &split->same[s] : NULL;
        const uint64_t stop = x ? cells->block[block] + x->row : end;
        while (at < stop) row[n++] = at++;
        if (x) at += x->count;
    }
}

static int read_hidden(const void *owner, uint32_t tensor, uint64_t first, uint64_t n, uint8_t *dst,
                       struct kvc_error *e) {
    const struct kvc_cache *c = owner;
    const struct kvc_records *k = kvc_records_of(c);
    const struct kvc_pipeline *line = kvc_records_pipeline(k, tensor);
    if (kvc_pipeline_has(line, KVC_STAGE_REBUILDS))
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "tensor %" PRIu32 " is rebuilt itself: nothing can be rebuilt from it",
                        tensor);
    return kvc_blocks_read(c, tensor, first, n, dst, e);
}

/* Lists the positions of a block's rows. */
static int list_positions(const struct kvc_cells *cells, uint64_t block, int64_t **position,
                          struct kvc_error *e) {
    const uint64_t first = cells->block[block], n = cells->block[block + 1] - first;
    if (!(*position = kvc_alloc(n, sizeof **position))) return kvc_fail_memory(e, "positions");
    for (uint64_t i = 0; i < n; i++) (*position)[i] = kvc_cells_position(cells, first + i);
    return 0;
}

/* Finds the profile's part for a tensor, of its heads and channels. A stage that misses it says so.
 */
static int find_profile(const struct kvc_cache *c, uint32_t tensor,
                        const struct kvc_profile_part **part, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    const struct kvc_shape *shape = &k->shape[tensor];
    *part = NULL;
    if (!k->profile || !c->meta.facts.profile) return 0;
    if (kvc_profile_part(k->profile, kvc_tensor_layer(c, tensor)->index, c->tensor[tensor].role,
                         k->pairing, 0, part, e))
        return -1;
    if (*part && ((*part)->heads != shape->heads || (*part)->dim != shape->dim)) *part = NULL;
    return 0;
}

/* Where the rows of a block are decoded to. */
struct rows {
    uint8_t *bytes;
    const struct kvc_row_places *places; /* NULL: to `bytes` alone */
    int placed;                          /* 1: they are in their places, and not in `bytes` */
};

static kvc_inputs_decode_fn decode_block;

/* A block whose rows are to be decoded, with what its stages may ask for. */
struct prepared {
    struct kvc_block b;
    struct kvc_rebuilder rebuilder;
    struct kvc_inputs_held *own_held;
    struct kvc_predict_source predict;
    int64_t *position;
    uint64_t row[KVC_BLOCK];
};

static void prepared_free(struct prepared *p) {
    kvc_rebuilder_free(&p->rebuilder);
    kvc_inputs_release(p->own_held);
    free(p->position);
}

/* Prepares the split->own rows that a block codes itself; for a program where dst is NULL. */
static int blocks_prepare(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                          const struct coded *x, const struct kvc_split *split,
                          const struct kvc_inputs_held *held, unsigned depth,
                          const struct rows *dst, struct prepared *p, struct kvc_error *e) {
    struct kvc_records *k = kvc_records_of(c);
    const struct kvc_pipeline *line = kvc_records_pipeline(k, tensor);
    const struct kvc_cells *cells = kvc_tensor_cells(c, tensor);
    const unsigned ahead = kvc_pipeline_first(line, KVC_STAGE_AHEAD);
    const int predicts = ahead < line->n;
    struct kvc_block *b = &p->b;
    int status = 0;
    p->rebuilder = (struct kvc_rebuilder){.position = NULL};
    p->own_held = NULL;
    p->position = NULL;
    *b = (struct kvc_block){.shape = k->shape[tensor],
                            .role = kvc_plan_select(&c->tensor[tensor]),
                            .first_row = cells->block[block]};
    b->shape.tokens = split->own;
    if (dst) {
        b->rows = dst->bytes;
        b->places = split->n_same ? NULL : dst->places;
    }
    if (kvc_pipeline_has(line, KVC_STAGE_REBUILDS | KVC_STAGE_POSITIONS)) {
        list_own(cells, block, split, p->row);
        b->row = p->row;
    }
    if (kvc_pipeline_has(line, KVC_STAGE_REBUILDS)) {
        status = kvc_rebuilder_init(&p->rebuilder, c, tensor, &k->projections, read_hidden, c, e);
        b->rebuild = &p->rebuilder.rebuild;
    }
    if (!status && kvc_pipeline_has(line, KVC_STAGE_POSITIONS))
        status = list_positions(cells, block, &p->position, e);
    b->position = p->position;
    if (k->turn[tensor].half && kvc_pipeline_has(line, KVC_STAGE_REBUILDS | KVC_STAGE_POSITIONS))
        b->turn = &k->turn[tensor];
    if (!status && kvc_pipeline_has(line, KVC_STAGE_PROFILE))
        status = find_profile(c, tensor, &b->profile, e);
    if (predicts && !status && !k->profile && kvc_pipeline_side(x->side, x->n_side, ahead).n_side) {
        if (e) *e = k->no_profile;
        status = -1;
    }
    if (predicts && !status && !held && dst) {
        held = p->own_held = kvc_inputs_prepare(c, tensor, block, depth, decode_block, e);
        if (!held) status = -1;
    }
    if (predicts && !status) {
        kvc_predict_source_init(&p->predict, c, tensor, k->profile, k->pairing, kvc_inputs_small,
                                held);
        p->predict.shape = k->shape;
        p->predict.turn = k->turn;
        b->ahead = &p->predict.ahead;
    }
    return status;
}

/* Decodes the split->own rows that a block codes itself to the front of *dst, or makes the program
 * by which a device decodes them. */
static int decode_stages(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                         const struct coded *x, const struct kvc_split *split,
                         const struct kvc_inputs_held *held, unsigned depth, struct rows *dst,
                         struct kvc_program *program, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    const struct kvc_pipeline *line = kvc_records_pipeline(k, tensor);
    const unsigned skip = split->n_same != 0;
    struct prepared p;
    struct coded other = {0};
    uint32_t first = KVC_NONE;
    int status = blocks_prepare(c, tensor, block, x, split, held, depth, dst, &p, e);
    if (!status) status = find_first(c, tensor, x, &first, e);
    if (!status && first != KVC_NONE) {
        status = coded_read(c, first, block, NULL, &other, e)
                     ? kvc_blocks_context(c, e, first, block)
                     : 0;
        uint32_t of_first;
        const int second = status ? 0 : is_second(k, first, &other, &of_first, e);
        if (second < 0) status = -1;
        else if (second)
            status = kvc_fail(e, KVC_ERR_DAMAGED, "a pair's first tensor is another pair's second");
    }
    const struct kvc_coded mine = {x->list + skip, x->side, x->n - skip, x->n_side};
    const struct kvc_coded base = {other.list, other.side, other.n, other.n_side};
    if (!status)
        status = program ? kvc_pipeline_lower(line, &p.b, &mine, first == KVC_NONE ? NULL : &base,
                                              program, e)
                         : kvc_pipeline_decode_record(line, &p.b, &mine,
                                                      first == KVC_NONE ? NULL : &base, e);
    if (status < 0 && !k->profile && e && e->need == KVC_NEED_PROFILE) *e = k->no_profile;
    if (dst) dst->placed = p.b.placed;
    if (status < 0 && e && e->section != KVC_NOWHERE) e->section += skip;
    coded_free(&other);
    prepared_free(&p);
    return status;
}

/* Decodes the rows that a block codes itself to where they are in the block, from to->bytes on;
 * *split gets the entries for the other rows. */
static int decode_coded(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                        const struct kvc_inputs_held *held, unsigned depth, struct rows *to,
                        struct kvc_split *split, struct kvc_error *e) {
    uint8_t *dst = to->bytes;
    const struct kvc_cells *cells = kvc_tensor_cells(c, tensor);
    const uint64_t rows = cells->block[block + 1] - cells->block[block],
                   row = kvc_row_bytes(&c->tensor[tensor].shape);
    struct coded x;
    memset(split, 0, sizeof *split);
    split->own = rows;
    int status = coded_read(c, tensor, block, NULL, &x, e);
    const unsigned first = !status && x.n && x.list[0].type == KVC_SECTION_SAME;
    const struct kvc_records *k = kvc_records_of(c);
    const struct kvc_pipeline *line = kvc_records_pipeline(k, tensor);
    if (first && kvc_pipeline_has(line, KVC_STAGE_PAIR))
        status = kvc_fail(e, KVC_ERR_DAMAGED, "a block of a pair has a SAME section");
    else if (first && c->tensor[tensor].role == KVC_ROLE_HIDDEN) /* rows may be rebuilt from it */
        status = kvc_fail(e, KVC_ERR_DAMAGED, "a block of hidden states has a SAME section");
    else if (first && kvc_same_read(c, tensor, rows, &x.list[0], split, e))
        status = kvc_record_section(e, 0);
    if (!status && split->own)
        status = decode_stages(c, tensor, block, &x, split, held, depth, to, NULL, e);
    else if (!status && x.n != first)
        status = kvc_fail(e, KVC_ERR_DAMAGED, "sections follow although no rows are left");
    coded_free(&x);
    if (status) {
        free(split->same);
        split->same = NULL;
        return kvc_blocks_context(c, e, tensor, block);
    }
    /* The coded rows are packed at the front of dst. Spread them, last rows first, around the rows
     * of each entry. */
    uint64_t end = rows, left = split->own;
    for (size_t s = split->n_same; s-- > 0;) {
        const struct kvc_same *same = &split->same[s];
        uint64_t after = end - (same->row + same->count);
        left -= after;
        memmove(dst + (end - after) * row, dst + left * row, (size_t)(after * row));
        end = same->row;
    }
    return 0;
}

/* Decodes a whole block. */
static int decode_whole(const struct kvc_cache *c, uint32_t tensor, uint64_t block, struct rows *to,
                        const struct kvc_inputs_held *held, struct kvc_error *e) {
    uint8_t *dst = to->bytes;
    const unsigned depth = held ? kvc_inputs_depth(held) : 0;
    struct kvc_split split;
    uint64_t row = kvc_row_bytes(&c->tensor[tensor].shape);
    if (decode_coded(c, tensor, block, held, depth, to, &split, e)) return -1;
    uint8_t *there = split.n_same ? kvc_alloc(row, KVC_BLOCK) : NULL;
    int status = split.n_same && !there ? kvc_fail_memory(e, "rows") : 0;
    uint32_t have_tensor = KVC_NONE, have_block = KVC_NONE;
    struct kvc_split origin = {0};
    for (size_t s = 0; s < split.n_same && !status; s++) {
        const struct kvc_same *x = &split.same[s];
        if (x->tensor != have_tensor || x->block != have_block) {
            free(origin.same);
            memset(&origin, 0, sizeof origin);
            status = decode_coded(c, x->tensor, x->block, NULL, depth + 1,
                                  &(struct rows){.bytes = there}, &origin, e);
            have_tensor = x->tensor;
            have_block = x->block;
        }
        for (size_t o = 0; o < origin.n_same && !status; o++)
            if (origin.same[o].row < x->there + x->count &&
                x->there < origin.same[o].row + origin.same[o].count)
                status = kvc_fail(e, KVC_ERR_DAMAGED,
                                  "SAME refers to rows that are references themselves");
        if (!status) memcpy(dst + x->row * row, there + x->there * row, (size_t)(x->count * row));
    }
    free(origin.same);
    free(there);
    free(split.same);
    const struct kvc_records *k = kvc_records_of(c);
    if (!status && verifies(c)) status = check_digest(c, tensor, block, dst, e);
    const struct kvc_pipeline *line = kvc_records_pipeline(k, tensor);
    if (!status && !held && kvc_pipeline_has(line, KVC_STAGE_AHEAD))
        kvc_inputs_offer(c, tensor, block, dst);
    return status;
}

static int decode_block(const struct kvc_cache *c, uint32_t tensor, uint64_t block, uint8_t *dst,
                        const struct kvc_inputs_held *held, struct kvc_error *e) {
    const fenv_t env = kvc_float_env_enter();
    const int status = decode_whole(c, tensor, block, &(struct rows){.bytes = dst}, held, e);
    kvc_float_env_leave(&env);
    return status;
}

int kvc_container_lower(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                        const uint8_t *bytes, struct kvc_program *p, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    if (!k) return kvc_records_none(e);
    const struct kvc_pipeline *line = kvc_records_pipeline(k, tensor);
    const struct kvc_cells *cells = kvc_tensor_cells(c, tensor);
    const struct kvc_split split = {.own = cells->block[block + 1] - cells->block[block]};
    struct coded x;
    const fenv_t env = kvc_float_env_enter();
    int status = coded_read(c, tensor, block, bytes, &x, e);
    if (!status &&
        ((x.n && x.list[0].type == KVC_SECTION_SAME) || kvc_pipeline_has(line, KVC_STAGE_REBUILDS)))
        status = 1;
    if (!status) status = decode_stages(c, tensor, block, &x, &split, NULL, 0, NULL, p, e);
    coded_free(&x);
    kvc_float_env_leave(&env);
    return status < 0 ? kvc_blocks_context(c, e, tensor, block) : status;
}

/* Reads and prepares a block of which dst gets the rows. Returns 0, or 1 with nothing to free if
 * the block cannot be read, or has rows that other blocks code. */
static int begin_block(const struct kvc_cache *c, uint32_t tensor, uint64_t block, uint64_t rows,
                       uint8_t *dst, struct coded *x, struct prepared *p) {
    const struct kvc_split split = {.own = rows};
    const struct rows to = {.bytes = dst};
    int status = coded_read(c, tensor, block, NULL, x, NULL) || !x->n ||
                 x->list[0].type == KVC_SECTION_SAME;
    if (!status && blocks_prepare(c, tensor, block, x, &split, NULL, 0, &to, p, NULL)) {
        prepared_free(p);
        status = 1;
    }
    if (status) coded_free(x);
    return status;
}

/* Decodes this block and the next into dst, at once. Returns 0, or 1 where they must be decoded one
 * by one, which then says what is wrong with them. */
static int decode_two_blocks(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                             uint8_t *dst) {
    const struct kvc_records *k = kvc_records_of(c);
    const struct kvc_pipeline *line = kvc_records_pipeline(k, tensor);
    const uint64_t *const start = kvc_tensor_cells(c, tensor)->block + block;
    struct prepared p[2];
    struct coded x[2];
    struct kvc_coded own[2];
    struct kvc_block b[2];
    const fenv_t env = kvc_float_env_enter();
    unsigned n = 0;
    for (uint64_t rows; n < 2; n++, dst += rows * kvc_row_bytes(&c->tensor[tensor].shape)) {
        rows = start[n + 1] - start[n];
        if (begin_block(c, tensor, block + n, rows, dst, &x[n], &p[n])) break;
        own[n] = (struct kvc_coded){x[n].list, x[n].side, x[n].n, x[n].n_side};
        b[n] = p[n].b;
    }
    const int status = n < 2 || kvc_pipeline_decode_two(line, b, own);
    for (unsigned i = 0; i < n; i++) {
        if (!status && kvc_pipeline_has(line, KVC_STAGE_AHEAD))
            kvc_inputs_offer(c, tensor, block + i, b[i].rows);
        prepared_free(&p[i]);
        coded_free(&x[i]);
    }
    kvc_float_env_leave(&env);
    return status;
}

/* Returns 1 where the whole blocks b and b + 1 may be decoded at once to `dst`. In a damaged file
 * the next block may be missing. */
static int may_decode_two(const struct kvc_cache *c, uint32_t tensor, uint64_t b, uint64_t end,
                          const uint8_t *dst) {
    const struct kvc_records *k = kvc_records_of(c);
    const struct kvc_cells *cells = kvc_tensor_cells(c, tensor);
    if (k->survey || b + 2 > cells->n_blocks || cells->block[b + 2] > end) return 0;
    const uint64_t bytes = (cells->block[b + 1] - cells->block[b]) *
                           kvc_row_bytes(&c->tensor[tensor].shape);
    return ((uintptr_t)dst | bytes) % ROW_ALIGN == 0 &&
           kvc_pipeline_decodes_two(kvc_records_pipeline(k, tensor));
}

/* Decodes a block into the store, which holds it for the caller. NULL: *e. */
static struct kvc_decoded_block *decode_into_store(const struct kvc_cache *c, uint32_t tensor,
                                                   uint64_t block, int kind, uint64_t bytes,
                                                   struct kvc_error *e) {
    struct kvc_decoded *const rows = kvc_records_of(c)->rows;
    if (check_memory(c, tensor, e)) return NULL;
    struct kvc_decoded_block *b = kvc_decoded_block(rows, tensor, block, kind, (size_t)bytes, e);
    if (b && decode_block(c, tensor, block, b->bytes, NULL, e)) {
        free(b);
        return NULL;
    }
    if (b) kvc_decoded_put(rows, b);
    return b;
}

/* Copies rows [first, first + n) of a block, which stays in the store for the next ones. */
static int read_part(const struct kvc_cache *c, const struct kvc_records *k, uint32_t tensor,
                     uint64_t block, uint64_t first, uint64_t n, uint8_t *dst,
                     struct kvc_error *e) {
    const uint64_t *const start = &kvc_tensor_cells(c, tensor)->block[block],
                          row = kvc_row_bytes(&c->tensor[tensor].shape);
    const int kind = c->read == read_unverified;
    struct kvc_decoded_block *b = kvc_decoded_find(k->rows, tensor, block, kind);
    if (!b) b = decode_into_store(c, tensor, block, kind, (start[1] - start[0]) * row, e);
    if (!b) return -1;
    memcpy(dst, b->bytes + (first - start[0]) * row, (size_t)(n * row));
    kvc_decoded_release(b, 1);
    return 0;
}

/* Refuses rows that a tensor does not have: a caller took them for those of another one. */
static int check_rows(const struct kvc_cells *cells, uint64_t first, uint64_t n,
                      struct kvc_error *e) {
    if (first <= cells->n && n <= cells->n - first) return 0;
    return kvc_fail(e, KVC_ERR_USAGE, "the tensor has %llu rows, and others are asked for",
                    (unsigned long long)cells->n);
}

int kvc_blocks_read(const struct kvc_cache *c, uint32_t tensor, uint64_t first, uint64_t n,
                    uint8_t *dst, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    if (!k) return kvc_records_none(e);
    const struct kvc_cells *cells = kvc_tensor_cells(c, tensor);
    if (check_rows(cells, first, n, e)) return -1;
    const uint64_t row = kvc_row_bytes(&c->tensor[tensor].shape), end = first + n;
    for (uint64_t b = n ? kvc_cells_block_of(cells, first) : 0, stop; first < end; b++) {
        stop = cells->block[b + 1] < end ? cells->block[b + 1] : end;
        if (first != cells->block[b] || stop != cells->block[b + 1] ||
            (uintptr_t)dst % ROW_ALIGN != 0) {
            if (read_part(c, k, tensor, b, first, stop - first, dst, e)) return -1;
        } else if (check_memory(c, tensor, e)) {
            return -1;
        } else if (may_decode_two(c, tensor, b, end, dst) &&
                   !decode_two_blocks(c, tensor, b, dst)) {
            if (verifies(c) && check_digests(c, tensor, b, dst, e)) return -1;
            stop = cells->block[++b + 1];
        } else if (decode_block(c, tensor, b, dst, NULL, e)) {
            return -1;
        }
        dst += (stop - first) * row;
        first = stop;
    }
    return 0;
}

int kvc_container_place(const struct kvc_cache *c, uint32_t tensor, uint64_t first, uint64_t n,
                        const struct kvc_row_places *places, uint8_t *rows, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    if (!k) return kvc_records_none(e);
    const struct kvc_cells *cells = kvc_tensor_cells(c, tensor);
    if (check_rows(cells, first, n, e) || check_memory(c, tensor, e)) return -1;
    const struct kvc_shape *shape = &c->tensor[tensor].shape;
    const struct kvc_pipeline *line = kvc_records_pipeline(k, tensor);
    /* Blocks that are decoded two at once have no places. Digests, and blocks that are predicted
     * from this one, need its rows; strides are of the cache's shape. */
    const int alone = !kvc_pipeline_decodes_two(line) && !verifies(c) &&
                      !kvc_pipeline_has(line, KVC_STAGE_AHEAD) &&
                      k->shape[tensor].heads == shape->heads && k->shape[tensor].dim == shape->dim;
    const fenv_t env = kvc_float_env_enter();
    struct kvc_row_places at = *places;
    int status = 0;
    for (uint64_t b = n ? kvc_cells_block_of(cells, first) : 0, take; n && !status;
         b++, first += take, n -= take, at.first += take) {
        const uint64_t left = cells->block[b + 1] - first;
        struct rows to = {.bytes = rows, .places = &at};
        take = !alone || left > n ? n : left;
        if (alone && take == cells->block[b + 1] - cells->block[b])
            status = decode_whole(c, tensor, b, &to, NULL, e);
        else status = kvc_blocks_read(c, tensor, first, take, rows, e);
        if (!status && !to.placed)
            kvc_rows_scatter(at.base, rows, shape, &at.strides, at.first, take, at.past);
    }
    kvc_float_env_leave(&env);
    return status;
}

int kvc_blocks_check_two(const struct kvc_cache *c, uint64_t i) {
    const struct kvc_records *k = kvc_records_of(c);
    const struct kvc_record *r = &k->record[i];
    if (r[0].type != KVC_RECORD_BLOCK || r[1].type != KVC_RECORD_BLOCK ||
        r[0].subject != r[1].subject || r[0].number + 1 != r[1].number ||
        check_memory(c, r->subject, NULL))
        return 1;
    const uint64_t *const start = kvc_tensor_cells(c, r->subject)->block + r->number;
    uint8_t *dst = kvc_alloc(start[2] - start[0], kvc_row_bytes(&c->tensor[r->subject].shape));
    const int status = !dst || !may_decode_two(c, r->subject, r->number, start[2], dst) ||
                       decode_two_blocks(c, r->subject, r->number, dst) ||
                       check_digests(c, r->subject, r->number, dst, NULL);
    free(dst);
    return status;
}

int kvc_blocks_check(const struct kvc_cache *c, uint64_t i, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    const struct kvc_record *r = &k->record[i];
    struct kvc_section *list;
    unsigned n;
    int status = 0;
    if (r->type != KVC_RECORD_BLOCK) {
        if (kvc_records_sections(k, i, &list, &n, e))
            return kvc_record_context(e, i, kvc_record_name(r->type));
        for (unsigned s = 0; r->type == KVC_RECORD_SOURCE && s < n && !status; s++) {
            uint8_t *bytes; /* opening the file only added up the sizes of the literals */
            size_t size;
            if (!kvc_records_decode(&list[s], &bytes, &size, e)) {
                free(bytes);
                continue;
            }
            kvc_record_section(e, s);
            status = kvc_record_context(e, i, "SOURCE");
        }
        kvc_records_release(k, i, list);
        return status;
    }
    if (check_memory(c, r->subject, e)) return -1;
    const struct kvc_cells *cells = kvc_tensor_cells(c, r->subject);
    const uint64_t rows = cells->block[r->number + 1] - cells->block[r->number];
    uint8_t *dst = kvc_alloc(rows, kvc_row_bytes(&c->tensor[r->subject].shape));
    if (!dst) return kvc_fail_memory(e, "a block");
    status = decode_block(c, r->subject, r->number, dst, NULL, e);
    if (!status && !verifies(c)) status = check_digest(c, r->subject, r->number, dst, e);
    free(dst);
    return status;
}
