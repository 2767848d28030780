/* encode_rows.c: the blocks that stages take. Where stages look at a whole segment before they
 * encode, its blocks are kept between the looks as far as KEPT_BYTES go. The others are read, and
 * go through the stages before, once more for each such stage. */
#include "formats/container/base_blocks.h"

#include "codecs/floats.h"
#include "codecs/memory.h"
#include "formats/container/same.h"

#include <stdlib.h>
#include <string.h>

enum { KEPT_BYTES = 64 * 1048576 }; /* of matrices that a coder keeps between the looks of stages */

/* Returns 1 if rows of a tensor may be stored as references to equal rows of tensor `to`: `to` is
 * lossless or has the same pipeline. Otherwise the decoded values would differ from those of the
 * tensor's own stages. */
static int may_refer(const struct kvc_encode *x, uint32_t tensor, uint32_t to) {
    return x->plan->pipeline_of[tensor] == x->plan->pipeline_of[to] ||
           kvc_pipeline_lossless(kvc_coder_pipeline(x, to));
}

/* Returns 1 if encoding does not change the rows of a block (codecs/stage.h), so that the stages
 * need no copy of their own. */
static int leaves_rows(const struct kvc_pipeline *p) {
    return p->n == 1 && kvc_pipeline_lossless(p);
}

/* Reads block `number` into *r->now, and lists in r->read.row the rows that repeat no earlier row.
 */
static int read_rows(struct kvc_tensor_coder *r, uint64_t number, struct kvc_error *e) {
    const struct kvc_cache *c = r->x->cache;
    const struct kvc_cells *cells = kvc_tensor_cells(c, r->tensor);
    const uint64_t first = cells->block[number], n = cells->block[number + 1] - first;
    struct kvc_coded_block *const b = r->now;
    b->number = number;
    b->n = n;
    b->own = 0;
    if (c->read(c, r->tensor, first, n, b->rows, e)) return -1;
    for (uint64_t i = 0; i < n; i++) b->from[i].tensor = KVC_NONE;
    if (r->x->plan->partner[r->tensor] == KVC_NONE &&
        kvc_same_find(c, &r->x->repeats, r->tensor, first, n, b->rows, b->from, e))
        return -1;
    for (uint64_t i = 0; i < n; i++) {
        if (b->from[i].tensor != KVC_NONE && !may_refer(r->x, r->tensor, b->from[i].tensor))
            b->from[i].tensor = KVC_NONE;
        if (b->from[i].tensor == KVC_NONE) r->read.row[b->own++] = first + i;
    }
    return 0;
}

int kvc_coder_load(struct kvc_tensor_coder *r, uint64_t number, struct kvc_block *block,
                   struct kvc_block *partner, struct kvc_error *e) {
    const struct kvc_cache *c = r->x->cache;
    const struct kvc_cells *cells = kvc_tensor_cells(c, r->tensor);
    const uint64_t first = cells->block[number], n = cells->block[number + 1] - first;
    const uint32_t other = r->x->plan->partner[r->tensor];
    if (read_rows(r, number, e)) return -1;
    uint8_t *const rows = r->now->rows;
    const uint64_t own = r->now->own;
    const int in_place = own == n && leaves_rows(r->pipeline);
    for (uint64_t i = 0; i < own && !in_place; i++)
        memcpy(r->read.own + i * r->row_bytes, rows + (r->read.row[i] - first) * r->row_bytes,
               (size_t)r->row_bytes);
    *block = (struct kvc_block){.shape = c->tensor[r->tensor].shape,
                                .rows = in_place ? rows : r->read.own,
                                .row = r->read.row,
                                .profile = r->facts.profile,
                                .turn = kvc_coder_turn(r),
                                .role = kvc_plan_select(&c->tensor[r->tensor])};
    block->shape.tokens = own;
    if (other == KVC_NONE) return 0;
    if (c->read(c, other, first, n, r->read.other, e)) return -1;
    for (uint64_t i = 0; i < n; i++) r->read.other_row[i] = first + i;
    *partner = *block;
    partner->rows = r->read.other;
    partner->row = r->read.other_row;
    block->partner = partner;
    return 0;
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

int kvc_coder_keeps(struct kvc_tensor_coder *r, struct kvc_error *e) {
    unsigned last = 0;
    for (unsigned i = 0; i < r->pipeline->n; i++)
        if (r->pipeline->step[i].stage->flags & KVC_STAGE_LOOKS) last = i;
    if (!last || r->x->plan->partner[r->tensor] != KVC_NONE) return 0;
    r->read.kept = kvc_alloc_zeros(r->end_block - r->first_block, sizeof(struct kvc_kept_block *));
    return r->read.kept ? 0 : kvc_fail_memory(e, "a segment");
}

/* Returns 1 if the matrices of a segment's blocks up to `number` are within KEPT_BYTES, in the
 * tensor's dtype and as binary32. */
static int may_keep(const struct kvc_tensor_coder *r, uint64_t number) {
    const struct kvc_cells *cells = kvc_tensor_cells(r->x->cache, r->tensor);
    const size_t size = kvc_dtype_info(r->x->cache->tensor[r->tensor].shape.dtype)->size;
    const uint64_t rows = cells->block[number + 1] - cells->block[r->first_block];
    return r->read.kept &&
           rows * (r->row_bytes + r->row_bytes / size * sizeof(float)) <= KEPT_BYTES;
}

/* Keeps a block that kvc_coder_load() made. */
static int encode_rows_keep(struct kvc_tensor_coder *r, uint64_t number,
                            const struct kvc_block *block, struct kvc_error *e) {
    struct kvc_kept_block *k = calloc(1, sizeof *k);
    if (!k) return kvc_fail_memory(e, "a block");
    kvc_sections_init(&k->done.list);
    k->block = *block;
    k->own = block->shape.tokens;
    if (kvc_same_add(&k->done.list, r->now->from, r->now->n, e) ||
        kvc_encoder_keep(&r->encoder, &k->block, &k->done, e)) {
        kept_free(k);
        return -1;
    }
    k->container_sections = k->done.list.count;
    r->read.kept[number - r->first_block] = k;
    return 0;
}

struct kvc_block *kvc_coder_look_at(struct kvc_tensor_coder *r, uint64_t number,
                                    struct kvc_block *block, struct kvc_block *partner,
                                    uint64_t *own, struct kvc_error *e) {
    struct kvc_kept_block **k = r->read.kept ? &r->read.kept[number - r->first_block] : NULL;
    if (!k || !*k) {
        if (kvc_coder_load(r, number, block, partner, e)) return NULL;
        *own = block->shape.tokens;
        if (!may_keep(r, number)) return block;
        if (encode_rows_keep(r, number, block, e)) return NULL;
    }
    *own = (*k)->own;
    return &(*k)->block;
}

/* Encodes a block that was not kept. Rows that are the base's keep their codes. */
static int encode_anew(struct kvc_tensor_coder *r, uint64_t number, struct kvc_block *block,
                       struct kvc_error *e) {
    struct kvc_earlier_rows earlier;
    int status = kvc_base_earlier(r, number, &earlier, e);
    block->earlier = earlier.n ? &earlier : NULL;
    if (!status) status = kvc_encoder_block(&r->encoder, block, &r->now->list, e);
    kvc_earlier_free(&earlier);
    return status;
}

int kvc_coder_sections(struct kvc_tensor_coder *r, uint64_t number, struct kvc_error *e) {
    struct kvc_kept_block *k = r->read.kept ? r->read.kept[number - r->first_block] : NULL;
    struct kvc_coded_block *const to = r->now;
    struct kvc_block block, partner;
    if (!k) {
        kvc_sections_clear(&to->list);
        if (kvc_coder_load(r, number, &block, &partner, e) ||
            kvc_same_add(&to->list, to->from, to->n, e))
            return -1;
        to->container_sections = to->list.count;
        return to->own ? encode_anew(r, number, &block, e) : 0;
    }
    r->read.kept[number - r->first_block] = NULL;
    const struct kvc_sections spare = to->list;
    to->list = k->done.list;
    k->done.list = spare;
    to->container_sections = k->container_sections;
    int status = read_rows(r, number, e);
    if (!status && to->own) status = kvc_encoder_block(&r->encoder, &k->block, &to->list, e);
    kept_free(k);
    return status;
}

void kvc_coder_drop(struct kvc_tensor_coder *r) {
    for (uint64_t b = r->first_block; b < r->end_block && r->read.kept; b++)
        kept_free(r->read.kept[b - r->first_block]);
    free(r->read.kept);
}
