/* base_blocks.c: copies blocks of a base, and goes on with its segments. A record of a block names
 * its tensor and its number, and its digest counts rows, so it is valid, with the side data of its
 * segment, in every container in which these are the same. */
#include "formats/container/base_blocks.h"

#include "codecs/memory.h"
#include "formats/container/records.h"
#include "formats/container/same.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* --- what can be copied --- */

static int same_turn(const struct kvc_rope_facts *a, const struct kvc_rope_facts *b) {
    return a->half == b->half &&
           (!a->half || (a->pairing == b->pairing && a->angle && b->angle &&
                         memcmp(a->angle, b->angle, a->half * sizeof *a->angle) == 0));
}

/* Checks that rows of a lossy tensor are coded as the base's are. */
static int check_coding(const struct kvc_base *base, const struct kvc_encode *x, uint32_t tensor,
                        struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(base->from);
    const struct kvc_pipeline *line = kvc_plan_pipeline(x->plan, tensor);
    const struct kvc_shape *shape = &x->cache->tensor[tensor].shape, *had = &k->shape[tensor];
    const char *what = NULL;
    char label[64];
    if (!kvc_pipeline_same(line, kvc_records_pipeline(k, tensor))) what = "with other stages";
    else if (kvc_pipeline_has(line, KVC_STAGE_PAIR | KVC_STAGE_REBUILDS))
        what = "out of other tensors";
    else if (shape->heads != had->heads || shape->dim != had->dim) what = "with other heads";
    else if (!same_turn(&x->turn[tensor], &k->turn[tensor])) what = "with another RoPE";
    if (!what) return 0;
    kvc_tensor_label(x->cache, tensor, label, sizeof label);
    return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                    "the base has coded %s %s, so that its blocks cannot be copied", label, what);
}

/* Returns how many of the first n rows of a tensor can stay as they are where rows of the base
 * before them have gone. Rows have other numbers then, which digests count: no block is copied, and
 * all rows keep their codes, in one segment. */
static uint64_t rows_after(const struct kvc_cells *cells, const struct kvc_cells *had,
                           uint64_t skip, uint64_t n) {
    if (cells->n_blocks > KVC_SEGMENT_BLOCKS || had->n_blocks > KVC_SEGMENT_BLOCKS) return 0;
    for (uint64_t b = 0; b < cells->n_blocks && cells->block[b] < n; b++) {
        const uint64_t end = cells->block[b + 1] < n ? cells->block[b + 1] : n;
        if (kvc_cells_block_of(had, skip + cells->block[b]) !=
            kvc_cells_block_of(had, skip + end - 1))
            return cells->block[b];
    }
    return n;
}

/* Returns how many of the first n rows of a tensor can stay as they are: all of them, whole blocks,
 * or whole segments. */
static uint64_t whole_rows(const struct kvc_base *base, const struct kvc_encode *x, uint32_t tensor,
                           uint64_t n) {
    const struct kvc_pipeline *line = kvc_plan_pipeline(x->plan, tensor);
    const struct kvc_cells *cells = kvc_tensor_cells(x->cache, tensor),
                           *had = kvc_tensor_cells(base->from, tensor);
    const int adopts = kvc_pipeline_adopts(line),
              parts = kvc_pipeline_keeps_codes(line) && !kvc_same_is_possible(&x->repeats, tensor);
    const uint64_t skip = base->skip[kvc_tensor_layer(x->cache, tensor)->part];
    uint64_t whole = 0;
    if (skip) return adopts && parts ? rows_after(cells, had, skip, n) : 0;
    if (adopts && parts) return n;
    for (uint64_t b = 0; b < cells->n_blocks && b < had->n_blocks; b++) {
        if (cells->block[b + 1] != had->block[b + 1] || cells->block[b + 1] > n) break;
        if (adopts || (b + 1) % KVC_SEGMENT_BLOCKS == 0 || b + 1 == cells->n_blocks)
            whole = cells->block[b + 1];
    }
    return whole;
}

/* Reads the references of a block of the base. */
static int read_same(const struct kvc_cache *from, uint32_t tensor, uint64_t block,
                     struct kvc_split *split, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(from);
    const struct kvc_cells *cells = kvc_tensor_cells(from, tensor);
    const uint64_t i = k->block_record[k->first_block[tensor] + block];
    struct kvc_section *list;
    unsigned n;
    *split = (struct kvc_split){.own = cells->block[block + 1] - cells->block[block]};
    if (kvc_records_sections(k, i, &list, &n, e)) return -1;
    const int status = n && list[0].type == KVC_SECTION_SAME
                           ? kvc_same_read(from, tensor, split->own, &list[0], split, e)
                           : 0;
    kvc_records_release(k, i, list);
    return status;
}

/* Takes off rows from the first block on whose rows reference rows that are not the base's. Sets
 * *changed where some were. */
static int follow_references(struct kvc_base *base, const struct kvc_cache *c, uint32_t tensor,
                             int *changed, struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_tensor_cells(base->from, tensor);
    uint64_t *const rows = &base->rows[kvc_tensor_layer(c, tensor)->part];
    for (uint64_t b = 0; b < cells->n_blocks && cells->block[b] < *rows; b++) {
        struct kvc_split split;
        int status = read_same(base->from, tensor, b, &split, e), lost = 0;
        for (size_t i = 0; i < split.n_same && !status; i++) {
            const struct kvc_same *s = &split.same[i];
            lost |= base->skip[kvc_tensor_layer(c, s->tensor)->part] != 0;
            lost |= kvc_tensor_cells(base->from, s->tensor)->block[s->block] + s->there + s->count >
                    base->rows[kvc_tensor_layer(c, s->tensor)->part];
        }
        free(split.same);
        if (status) return kvc_blocks_context(base->from, e, tensor, b);
        if (!lost) continue;
        *rows = cells->block[b];
        *changed = 1;
    }
    return 0;
}

static int settle_rows(struct kvc_base *base, const struct kvc_encode *x, struct kvc_error *e) {
    const struct kvc_cache *c = x->cache;
    const uint32_t n = kvc_base_tensors(c);
    for (int changed = 1; changed;) {
        changed = 0;
        for (uint32_t t = 0; t < n; t++) {
            uint64_t *const rows = &base->rows[kvc_tensor_layer(c, t)->part];
            if (kvc_pipeline_lossless(kvc_plan_pipeline(x->plan, t))) continue;
            const uint64_t whole = whole_rows(base, x, t, *rows);
            changed |= whole != *rows;
            *rows = whole;
            if (kvc_same_is_possible(&x->repeats, t) && follow_references(base, c, t, &changed, e))
                return -1;
        }
    }
    return 0;
}

int kvc_base_settle(struct kvc_base *base, const struct kvc_encode *x, struct kvc_error *e) {
    const uint32_t unknown = kvc_records_of(base->from)->header.writers;
    if (unknown)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "copying blocks of the base needs features %08" PRIx32
                        " of a newer kvc (header, bytes 20 to 23)",
                        unknown);
    for (uint32_t t = 0; t < kvc_base_tensors(x->cache); t++)
        if (base->rows[kvc_tensor_layer(x->cache, t)->part] &&
            !kvc_pipeline_lossless(kvc_plan_pipeline(x->plan, t)) && check_coding(base, x, t, e))
            return -1;
    return settle_rows(base, x, e);
}

/* --- copying --- */

int kvc_base_has(const struct kvc_encode *x, uint32_t tensor, uint64_t row) {
    return x->base && tensor < kvc_base_tensors(x->cache) &&
           row < x->base->rows[kvc_tensor_layer(x->cache, tensor)->part] &&
           !kvc_pipeline_lossless(kvc_plan_pipeline(x->plan, tensor));
}

uint64_t kvc_base_copied(const struct kvc_encode *x, uint32_t tensor, uint64_t block,
                         uint64_t end) {
    const struct kvc_cells *cells = kvc_tensor_cells(x->cache, tensor);
    while (block < end && kvc_base_has(x, tensor, cells->block[block + 1] - 1)) {
        const struct kvc_cells *had = kvc_tensor_cells(x->base->from, tensor);
        if (x->base->skip[kvc_tensor_layer(x->cache, tensor)->part] || had->n_blocks <= block ||
            had->block[block + 1] != cells->block[block + 1])
            break;
        block++;
    }
    return block;
}

static int copy_record(const struct kvc_records *k, uint64_t i, struct kvc_buffer *out,
                       struct kvc_error *e) {
    struct kvc_sink sink = kvc_sink_buffer(out);
    struct kvc_section *list;
    unsigned n;
    if (kvc_records_sections(k, i, &list, &n, e)) return -1;
    const int status = kvc_sink_write(&sink, k->in->data + k->record[i].offset,
                                      (size_t)k->record[i].size, e);
    kvc_records_release(k, i, list);
    return status;
}

int kvc_base_copy_block(const struct kvc_cache *from, uint32_t tensor, uint64_t block,
                        struct kvc_buffer *out, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(from);
    const uint64_t i = k->block_record[k->first_block[tensor] + block];
    return copy_record(k, i, out, e) ? kvc_blocks_context(from, e, tensor, block) : 0;
}

static uint64_t side_record(const struct kvc_cache *from, uint32_t tensor, uint64_t block) {
    const struct kvc_records *k = kvc_records_of(from);
    return k->side_record[k->first_side[tensor] + block / KVC_SEGMENT_BLOCKS];
}

/* --- going on with a segment of the base --- */

int kvc_base_side(const struct kvc_encode *x, uint32_t tensor, uint64_t block,
                  struct kvc_base_side *to, struct kvc_error *e) {
    *to = (struct kvc_base_side){.from = NULL};
    if (!kvc_base_has(x, tensor, kvc_tensor_cells(x->cache, tensor)->block[block])) return 0;
    to->record = side_record(x->base->from, tensor, block);
    if (to->record &&
        kvc_records_sections(kvc_records_of(x->base->from), to->record, &to->section, &to->n, e))
        return kvc_record_context(e, to->record, "SIDE");
    /* of a segment of references alone */
    if (!to->record && kvc_same_is_possible(&x->repeats, tensor)) return 0;
    to->from = x->base->from;
    return 0;
}

void kvc_base_side_free(struct kvc_base_side *side) {
    if (side->from && side->record)
        kvc_records_release(kvc_records_of(side->from), side->record, side->section);
}

int kvc_base_copy_side(const struct kvc_base_side *side, struct kvc_buffer *out,
                       struct kvc_error *e) {
    if (!side->record || !copy_record(kvc_records_of(side->from), side->record, out, e)) return 0;
    return kvc_record_context(e, side->record, "SIDE");
}

/* Decodes what the last stage takes of block `number` of the base, which has no references, for the
 * run of blocks of the coder. */
static int decode_earlier(const struct kvc_tensor_coder *r, uint64_t number,
                          struct kvc_earlier_rows *to, struct kvc_error *e) {
    const struct kvc_cache *from = r->x->base->from;
    const struct kvc_records *k = kvc_records_of(from);
    const struct kvc_cells *cells = kvc_tensor_cells(from, r->tensor);
    const uint64_t i = k->block_record[k->first_block[r->tensor] + number];
    uint64_t row[KVC_BLOCK];
    struct kvc_base_side side;
    struct kvc_section *list;
    unsigned n;
    struct kvc_block block = {.shape = k->shape[r->tensor],
                              .role = kvc_plan_select(&from->tensor[r->tensor]),
                              .row = row,
                              .profile = r->facts.profile,
                              .turn = kvc_coder_turn(r)};
    block.shape.tokens = cells->block[number + 1] - cells->block[number];
    for (uint64_t j = 0; j < block.shape.tokens; j++) row[j] = cells->block[number] + j;
    if (kvc_records_sections(k, i, &list, &n, e)) return -1;
    int status = kvc_base_side(r->x, r->tensor, r->first_block, &side, e);
    if (!status) {
        const struct kvc_coded coded = {list, side.section, n, side.n};
        status = kvc_pipeline_decode_last(r->pipeline, &block, &coded, to, e);
        kvc_base_side_free(&side);
    }
    kvc_records_release(k, i, list);
    return status;
}

int kvc_base_earlier(const struct kvc_tensor_coder *r, uint64_t number, struct kvc_earlier_rows *to,
                     struct kvc_error *e) {
    const uint64_t first = kvc_tensor_cells(r->x->cache, r->tensor)->block[number];
    memset(to, 0, sizeof *to);
    if (!kvc_base_has(r->x, r->tensor, first)) return 0;
    const struct kvc_base *base = r->x->base;
    const uint32_t part = kvc_tensor_layer(r->x->cache, r->tensor)->part;
    const uint64_t skip = base->skip[part],
                   there = kvc_cells_block_of(kvc_tensor_cells(base->from, r->tensor),
                                              skip + first);
    if (decode_earlier(r, there, to, e)) return kvc_blocks_context(base->from, e, r->tensor, there);
    to->skip = skip;
    while (to->n && to->row[to->n - 1] >= skip + base->rows[part]) to->n--;
    return 0;
}
