/* encode.c: encodes the records of a run of blocks of one tensor. Spec: FORMAT.md, "Records". Not for the order of stages
 * (codecs/pipeline_encode.c) or of the file (writer.c), and not for the facts that stages ask for (encode_facts.c).
 *
 * Where stages look at a whole segment before they encode, its blocks are kept between the looks as far as KEPT_BYTES go. The
 * others are read, and go through the stages before, once more for each such stage. For the second
 * tensor of a pair, the blocks of the first one are encoded again, because the digests are of values decoded from both. */
#include "formats/container/encode.h"

#include "codecs/floats.h"
#include "codecs/memory.h"
#include "formats/container/container.h"
#include "formats/container/record_build.h"
#include "formats/container/same_rows.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLED_FROM = 8, SAMPLE = 3 };  /* blocks of a segment from which on stages see a sample: every third block */
enum { KEPT_BYTES = 64 * 1048576 };     /* of matrices that a coder keeps between the looks of stages */
enum { RUN_BLOCKS = KVC_CODER_BLOCKS }; /* blocks encoded as one item of work where no stage looks ahead: at most 4096 rows */

static int is_second(const struct kvc_encode *x, uint32_t tensor) {
    return x->plan->partner[tensor] != KVC_NONE && x->plan->partner[tensor] < tensor;
}

uint64_t kvc_encode_run_blocks(const struct kvc_encode *x, uint32_t tensor) {
    return kvc_coder_looks(kvc_coder_pipeline(x, tensor)) ? KVC_SEGMENT_BLOCKS : RUN_BLOCKS;
}

/* --- blocks in and out --- */

/* Returns 1 if rows of a tensor may be stored as references to equal rows of tensor `to`: `to` is lossless or has the same
 * pipeline. Otherwise the decoded values would differ from those of the tensor's own stages. */
static int may_refer(const struct kvc_encode *x, uint32_t tensor, uint32_t to) {
    return x->plan->pipeline_of[tensor] == x->plan->pipeline_of[to] || kvc_pipeline_lossless(kvc_coder_pipeline(x, to));
}

/* Returns 1 if encoding does not change the rows of a block (codecs/stage.h), so that the stages need no copy of their own. */
static int leaves_rows(const struct kvc_pipeline *p) {
    return p->n == 1 && kvc_pipeline_lossless(p);
}

/* Reads block `number` into r->rows, and lists in r->row the rows that repeat no earlier row. Returns their number, or -1. */
static int64_t read_rows(struct kvc_tensor_coder *r, uint64_t number, struct kvc_error *e) {
    const struct kvc_cache *c = r->x->cache;
    const struct kvc_cells *cells = kvc_coder_cells(c, r->tensor);
    const uint64_t first = cells->block[number], n = cells->block[number + 1] - first;
    int64_t own = 0;
    if (c->read(c, r->tensor, first, n, r->rows, e)) return -1;
    for (uint64_t i = 0; i < n; i++) r->from[i].tensor = KVC_NONE;
    if (r->x->plan->partner[r->tensor] == KVC_NONE && kvc_same_find(c, r->tensor, first, n, r->rows, r->from, e)) return -1;
    for (uint64_t i = 0; i < n; i++) {
        if (r->from[i].tensor != KVC_NONE && !may_refer(r->x, r->tensor, r->from[i].tensor)) r->from[i].tensor = KVC_NONE;
        if (r->from[i].tensor == KVC_NONE) r->row[own++] = first + i;
    }
    return own;
}

/* Reads block `number`: all rows into r->rows, rows that repeat no earlier row into *block, the partner's rows into *partner. */
static int load(struct kvc_tensor_coder *r, uint64_t number, struct kvc_block *block, struct kvc_block *partner,
                struct kvc_error *e) {
    const struct kvc_cache *c = r->x->cache;
    const struct kvc_cells *cells = kvc_coder_cells(c, r->tensor);
    const uint64_t first = cells->block[number], n = cells->block[number + 1] - first;
    const uint32_t other = r->x->plan->partner[r->tensor];
    const int64_t own = read_rows(r, number, e);
    if (own < 0) return -1;
    const int in_place = (uint64_t)own == n && leaves_rows(r->pipeline);
    for (int64_t i = 0; i < own && !in_place; i++)
        memcpy(r->own + (uint64_t)i * r->row_bytes, r->rows + (r->row[i] - first) * r->row_bytes, (size_t)r->row_bytes);
    *block = (struct kvc_block){.shape = c->tensor[r->tensor].shape,
                                .rows = in_place ? r->rows : r->own,
                                .row = r->row,
                                .profile = r->profile,
                                .role = kvc_plan_select(&c->tensor[r->tensor])};
    block->shape.tokens = (uint64_t)own;
    if (other == KVC_NONE) return 0;
    if (c->read(c, other, first, n, r->other, e)) return -1;
    for (uint64_t i = 0; i < n; i++) r->other_row[i] = first + i;
    *partner = *block;
    partner->rows = r->other;
    partner->row = r->other_row;
    block->partner = partner;
    return 0;
}

/* Adds the SAME section for the rows found, if any. */
static int add_same(struct kvc_sections *list, const struct kvc_same *from, uint64_t n, struct kvc_error *e) {
    uint8_t bytes[KVC_BLOCK * KVC_SAME_ENTRY];
    size_t used = 0;
    for (uint64_t i = 0; i < n;) {
        if (from[i].tensor == KVC_NONE) {
            i++;
            continue;
        }
        struct kvc_same run = from[i];
        for (i++; i < n && from[i].tensor == run.tensor && from[i].block == run.block && from[i].there == run.there + run.count;
             i++)
            run.count++;
        uint8_t *p = bytes + used;
        put_u32(p, run.row);
        put_u32(p + 4, run.count);
        put_u32(p + 8, run.tensor);
        put_u32(p + 12, run.block);
        put_u32(p + 16, run.there);
        used += KVC_SAME_ENTRY;
    }
    return used ? kvc_record_add(list, KVC_SECTION_SAME, bytes, used, e) : 0;
}

/* --- blocks that are kept --- */

/* A block of a segment, kept from the first look at it until it is encoded. */
struct kvc_kept_block {
    struct kvc_block block;
    struct kvc_steps_done done;
    uint64_t own;              /* its rows before the first stage */
    size_t container_sections; /* at the begin of done.list */
};

static void kept_free(struct kvc_kept_block *k) {
    if (!k) return;
    kvc_encoder_drop(&k->block);
    kvc_sections_free(&k->done.list);
    free(k);
}

/* Makes room for the blocks that a coder may keep: none where no stage runs before a look, and none of a pair. */
static int kept_room(struct kvc_tensor_coder *r, struct kvc_error *e) {
    unsigned last = 0;
    for (unsigned i = 0; i < r->pipeline->n; i++)
        if (r->pipeline->step[i].stage->flags & KVC_STAGE_LOOKS) last = i;
    if (!last || r->x->plan->partner[r->tensor] != KVC_NONE) return 0;
    r->kept = kvc_alloc_zeros(r->end_block - r->first_block, sizeof(struct kvc_kept_block *));
    return r->kept ? 0 : kvc_fail_memory(e, "a segment");
}

/* Returns 1 if the matrices of a segment's blocks up to `number` are within KEPT_BYTES, in the tensor's dtype and as binary32. */
static int may_keep(const struct kvc_tensor_coder *r, uint64_t number) {
    const struct kvc_cells *cells = kvc_coder_cells(r->x->cache, r->tensor);
    const size_t size = kvc_dtype_info(r->x->cache->tensor[r->tensor].shape.dtype)->size;
    const uint64_t rows = cells->block[number + 1] - cells->block[r->first_block];
    return r->kept && rows * (r->row_bytes + r->row_bytes / size * sizeof(float)) <= KEPT_BYTES;
}

/* Keeps a block that load() made. */
static int keep(struct kvc_tensor_coder *r, uint64_t number, const struct kvc_block *block, struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_coder_cells(r->x->cache, r->tensor);
    struct kvc_kept_block *k = calloc(1, sizeof *k);
    if (!k) return kvc_fail_memory(e, "a block");
    kvc_sections_init(&k->done.list);
    k->block = *block;
    k->own = block->shape.tokens;
    if (add_same(&k->done.list, r->from, cells->block[number + 1] - cells->block[number], e) ||
        kvc_encoder_keep(&r->encoder, &k->block, &k->done, e)) {
        kept_free(k);
        return -1;
    }
    k->container_sections = k->done.list.count;
    r->kept[number - r->first_block] = k;
    return 0;
}

/* Returns block `number` for a stage to look at: the one that is kept, or *block; NULL after a failure. *own: its rows before the
 * first stage. */
static struct kvc_block *look_at(struct kvc_tensor_coder *r, uint64_t number, struct kvc_block *block, struct kvc_block *partner,
                                 uint64_t *own, struct kvc_error *e) {
    struct kvc_kept_block **k = r->kept ? &r->kept[number - r->first_block] : NULL;
    if (!k || !*k) {
        if (load(r, number, block, partner, e)) return NULL;
        *own = block->shape.tokens;
        if (!may_keep(r, number)) return block;
        if (keep(r, number, block, e)) return NULL;
    }
    *own = (*k)->own;
    return &(*k)->block;
}

/* Encodes block `number` into r->list: *container_sections of the container, then those of the stages. *own: rows that are
 * encoded. A block that was kept is not kept any longer. */
static int encode_sections(struct kvc_tensor_coder *r, uint64_t number, uint64_t *own, size_t *container_sections,
                           struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_coder_cells(r->x->cache, r->tensor);
    struct kvc_kept_block *k = r->kept ? r->kept[number - r->first_block] : NULL;
    struct kvc_block block, partner;
    if (!k) {
        kvc_sections_clear(&r->list);
        if (load(r, number, &block, &partner, e) ||
            add_same(&r->list, r->from, cells->block[number + 1] - cells->block[number], e))
            return -1;
        *own = block.shape.tokens;
        *container_sections = r->list.count;
        return *own && kvc_encoder_block(&r->encoder, &block, &r->list, e) ? -1 : 0;
    }
    r->kept[number - r->first_block] = NULL;
    const struct kvc_sections spare = r->list;
    r->list = k->done.list;
    k->done.list = spare;
    *own = k->own;
    *container_sections = k->container_sections;
    const int status = read_rows(r, number, e) < 0 || (*own && kvc_encoder_block(&r->encoder, &k->block, &r->list, e));
    kept_free(k);
    return status ? -1 : 0;
}

/* --- decoding what was encoded --- */

/* Lists in r->row the rows of block `number` that repeat no earlier row. */
static void list_own(struct kvc_tensor_coder *r, uint64_t number) {
    const struct kvc_cells *cells = kvc_coder_cells(r->x->cache, r->tensor);
    uint64_t own = 0;
    for (uint64_t i = 0; i < cells->block[number + 1] - cells->block[number]; i++)
        if (r->from[i].tensor == KVC_NONE) r->row[own++] = cells->block[number] + i;
}

/* Decodes the `own` rows of the block in r->list into r->decoded. `first`: the coder of the pair's first tensor, or NULL. */
static int decode_back(struct kvc_tensor_coder *r, struct kvc_tensor_coder *first, uint64_t number, size_t container_sections,
                       uint64_t own, struct kvc_error *e) {
    struct kvc_block block = {.shape = r->x->cache->tensor[r->tensor].shape,
                              .rows = r->decoded,
                              .role = kvc_plan_select(&r->x->cache->tensor[r->tensor]),
                              .row = r->row,
                              .rebuild = r->source.rebuild,
                              .ahead = r->ahead.ahead,
                              .position = r->encoding.position,
                              .profile = r->profile};
    struct kvc_coded coded = {.section = r->list.section + container_sections,
                              .n = r->list.count - container_sections,
                              .side = r->encoder.side.section,
                              .n_side = r->encoder.side.count},
                     base = {0};
    kvc_sections_seal(&r->list);
    block.shape.tokens = own;
    list_own(r, number); /* encoding removed rows from the list */
    if (first) {
        struct kvc_block there, partner;
        kvc_sections_clear(&first->list);
        if (load(first, number, &there, &partner, e) || kvc_encoder_block(&first->encoder, &there, &first->list, e)) return -1;
        kvc_sections_seal(&first->list);
        base = (struct kvc_coded){.section = first->list.section,
                                  .n = first->list.count,
                                  .side = first->encoder.side.section,
                                  .n_side = first->encoder.side.count};
    }
    return kvc_pipeline_decode_record(r->pipeline, &block, &coded, first ? &base : NULL, e);
}

/* Encodes block `number` of another tensor and decodes it again into h->decoded, as a reader of the file will. */
static int decode_other(struct kvc_tensor_coder *h, uint64_t number, struct kvc_error *e) {
    uint64_t own;
    size_t container_sections;
    if (h->have == number + 1) return 0;
    h->have = 0;
    if (encode_sections(h, number, &own, &container_sections, e) ||
        (own && decode_back(h, NULL, number, container_sections, own, e)))
        return -1;
    h->have = number + 1;
    return 0;
}

/* Reads hidden states as a reader of the file will decode them. The rows must be in the coder's segment; hidden states have the
 * same blocks there. */
static int read_hidden(const void *owner, uint32_t tensor, uint64_t first, uint64_t n, uint8_t *dst, struct kvc_error *e) {
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
static int prepare(struct kvc_tensor_coder *r, uint64_t first, uint64_t end, struct kvc_error *e) {
    const struct kvc_cache *c = r->x->cache;
    unsigned steps = r->pipeline->n;
    uint64_t own;
    if (r->encoding.second) steps = kvc_pipeline_first(r->pipeline, KVC_STAGE_PAIR) + 1;
    for (unsigned i = 0; i < steps; i++) {
        struct kvc_block like = {.shape = c->tensor[r->tensor].shape,
                                 .role = kvc_plan_select(&c->tensor[r->tensor]),
                                 .profile = r->profile};
        if (!(r->pipeline->step[i].stage->flags & KVC_STAGE_LOOKS)) continue;
        like.shape.tokens = 0;
        for (uint64_t b = first; b < end && !like.shape.tokens; b++) { /* the shape after earlier stages */
            struct kvc_block read, partner, *const block = look_at(r, b, &read, &partner, &own, e);
            if (!block || (own && kvc_encoder_shape(&r->encoder, i, block, e))) return -1;
            if (!block->shape.tokens) continue;
            like.shape = block->shape;
            like.profile = block->profile;
            like.before_rope = block->before_rope;
        }
        if (kvc_encoder_begin(&r->encoder, i, &like, e)) return -1;
        const int sees = r->pipeline->step[i].stage->look && r->encoder.state[i];
        const int samples = r->pipeline->step[i].stage->flags & KVC_STAGE_SAMPLES && end - first >= SAMPLED_FROM;
        for (uint64_t b = first + (samples ? 1 : 0); b < end && sees; b += samples ? SAMPLE : 1) {
            struct kvc_block read, partner, *const block = look_at(r, b, &read, &partner, &own, e);
            if (!block || (own && kvc_encoder_look(&r->encoder, i, block, e))) return -1;
        }
        if (kvc_encoder_settle(&r->encoder, i, e)) return -1;
    }
    return 0;
}

static void coder_free(struct kvc_tensor_coder *r) {
    if (!r) return;
    for (uint64_t b = r->first_block; b < r->end_block && r->kept; b++) kept_free(r->kept[b - r->first_block]);
    free(r->kept);
    kvc_encoder_free(&r->encoder);
    kvc_sections_free(&r->list);
    coder_free(r->hidden);
    coder_free(r->origin);
    kvc_rebuilder_free(&r->rebuilder);
    free(r->predicted.values);
    free(r->position);
    free(r->rope_room);
    free(r->profile_query);
    free(r->query);
    free(r->query_position);
    free(r->rows);
    free(r->own);
    free(r->other);
    free(r->decoded);
    free(r);
}

static struct kvc_tensor_coder *coder_make(const struct kvc_encode *x, uint32_t tensor, uint64_t block, uint64_t end,
                                           struct kvc_error *e) {
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
    kvc_encoder_init(&r->encoder, r->pipeline, &r->encoding);
    kvc_sections_init(&r->list);
    const size_t n = (size_t)r->row_bytes * KVC_BLOCK;
    r->rows = malloc(n);
    r->own = malloc(n);
    r->other = x->plan->partner[tensor] == KVC_NONE ? NULL : malloc(n);
    r->decoded = malloc(n);
    int status = 0;
    if (!r->rows || !r->own || !r->decoded || (x->plan->partner[tensor] != KVC_NONE && !r->other))
        status = kvc_fail_memory(e, "a block");
    if (!status) status = kvc_coder_describe(r, read_hidden, e) || kept_room(r, e) ? -1 : 0;
    const uint32_t from = r->source.rebuild ? r->source.from : KVC_NONE;
    if (!status && from != KVC_NONE && !kvc_pipeline_lossless(kvc_coder_pipeline(x, from)))
        status = (r->hidden = coder_make(x, from, block, end, e)) ? 0 : -1;
    if (!status) status = prepare(r, block, end, e);
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
        const struct kvc_same *from = &r->from[i];
        if (from->tensor == KVC_NONE || kvc_pipeline_lossless(kvc_coder_pipeline(r->x, from->tensor))) continue;
        struct kvc_tensor_coder *o = r->origin;
        if (!o || o->tensor != from->tensor || from->block < o->first_block || from->block >= o->end_block) {
            const uint64_t first = from->block / KVC_SEGMENT_BLOCKS * KVC_SEGMENT_BLOCKS, end = first + KVC_SEGMENT_BLOCKS;
            const uint64_t blocks = kvc_coder_cells(r->x->cache, from->tensor)->n_blocks;
            coder_free(o);
            r->origin = o = coder_make(r->x, from->tensor, first, end < blocks ? end : blocks, e);
            if (!o) return -1;
        }
        if (decode_other(o, from->block, e)) return -1;
        /* the origin's rows are packed, without the rows that are references themselves */
        uint64_t place = 0;
        for (uint32_t j = 0; j < from->there; j++) place += o->from[j].tensor == KVC_NONE;
        memcpy(r->rows + i * r->row_bytes, o->decoded + place * r->row_bytes, (size_t)r->row_bytes);
    }
    return 0;
}

/* Adds the squares of a lossy row and of its error. Skips values that are not finite, which decode exactly. */
static void measure_row(const struct kvc_tensor_coder *r, const uint8_t *source, const uint8_t *back, struct kvc_run *run) {
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

/* Encodes block `number` into run->buffer. */
static int encode_block(struct kvc_tensor_coder *r, struct kvc_tensor_coder *first, uint64_t number, struct kvc_run *run,
                        struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_coder_cells(r->x->cache, r->tensor);
    const uint64_t start = cells->block[number], n = cells->block[number + 1] - start;
    const int lossless = kvc_pipeline_lossless(r->pipeline);
    uint64_t own;
    size_t container_sections;
    if (encode_sections(r, number, &own, &container_sections, e)) return -1;
    run->same_rows += n - own;
    run->bytes += n * r->row_bytes;
    if (own && (!lossless || !r->x->no_verify)) {
        if (decode_back(r, first, number, container_sections, own, e)) return -1;
        uint64_t k = 0;
        for (uint64_t i = 0; i < n; i++) {
            if (r->from[i].tensor != KVC_NONE) continue;
            const uint8_t *back = r->decoded + k++ * r->row_bytes;
            if (lossless && memcmp(back, r->rows + i * r->row_bytes, (size_t)r->row_bytes) != 0)
                return kvc_fail(e, KVC_ERR_VERIFY, "block %" PRIu64 " does not decode to what was encoded", number);
            if (!lossless && r->x->measure && kvc_is_float(r->x->cache->tensor[r->tensor].shape.dtype))
                measure_row(r, r->rows + i * r->row_bytes, back, run);
            if (!lossless) memcpy(r->rows + i * r->row_bytes, back, (size_t)r->row_bytes);
        }
    }
    if (decode_repeated(r, n, e) || (!lossless && kvc_loop_publish(r->x->loop, r->tensor, number, r->rows, e))) return -1;
    const uint64_t digest = kvc_digest_rows(r->rows, r->row_bytes, start, n);
    return kvc_record_build(&run->buffer, KVC_RECORD_BLOCK, r->tensor, (uint32_t)number, digest, &r->list, e);
}

/* --- blocks that another coder encodes --- */

/* Writes the block that the coder has encoded, or encodes the block that it left. */
static int take_block(struct kvc_tensor_coder *r, uint64_t number, struct kvc_coder_block *coded, struct kvc_run *run,
                      struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_coder_cells(r->x->cache, r->tensor);
    if (!coded->done) return encode_block(r, NULL, number, run, e);
    run->bytes += (cells->block[number + 1] - cells->block[number]) * r->row_bytes;
    return kvc_record_build(&run->buffer, KVC_RECORD_BLOCK, r->tensor, (uint32_t)number, coded->digest, &coded->list, e);
}

static int encode_by_coder(struct kvc_tensor_coder *r, uint64_t block, uint64_t end, struct kvc_run *run, struct kvc_error *e) {
    const struct kvc_block_coder *coder = r->x->coder;
    const struct kvc_coder_work work = {r->x->cache, r->tensor, r->pipeline, &r->encoding, block, end};
    struct kvc_coder_block coded[RUN_BLOCKS] = {{.done = 0}};
    for (uint64_t b = block; b < end; b++) kvc_sections_init(&coded[b - block].list);
    int status = coder->encode(coder->state, &work, coded, e);
    for (uint64_t b = block; b < end && !status; b++) status = take_block(r, b, &coded[b - block], run, e);
    for (uint64_t b = block; b < end; b++) kvc_sections_free(&coded[b - block].list);
    return status;
}

/* Returns 1 if the coder takes the blocks of a tensor: rows are no references, and no stage looks ahead. */
static int by_coder(const struct kvc_encode *x, uint32_t tensor) {
    return x->coder && !kvc_coder_looks(kvc_coder_pipeline(x, tensor)) && !kvc_same_is_possible(x->cache, tensor);
}

int kvc_encode_run(const struct kvc_encode *x, uint32_t tensor, uint64_t block, uint64_t end, struct kvc_run *run,
                   struct kvc_error *e) {
    struct kvc_tensor_coder *own = coder_make(x, tensor, block, end, e), *first = NULL;
    int status = own ? 0 : -1;
    if (!status && is_second(x, tensor)) {
        first = coder_make(x, x->plan->partner[tensor], block, end, e);
        status = first ? 0 : -1;
    }
    if (!status && own->encoder.side.count)
        status = kvc_record_build(&run->buffer, KVC_RECORD_SIDE, tensor, (uint32_t)(block / KVC_SEGMENT_BLOCKS), 0,
                                  &own->encoder.side, e);
    if (by_coder(x, tensor)) status = status || encode_by_coder(own, block, end, run, e);
    else
        for (uint64_t b = block; b < end && !status; b++) status = encode_block(own, first, b, run, e);
    kvc_loop_done(x->loop, tensor, block, end, status);
    coder_free(own);
    coder_free(first);
    return status ? -1 : 0;
}
