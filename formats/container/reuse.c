/* reuse.c: copies blocks of a container as they are. A record names its tensor and its number, and
 * its digest counts rows, so it is valid in every container in which these are the same. */
#include "formats/container/reuse.h"

#include "formats/container/records.h"

#include <stdlib.h>

/* Returns 1 if a block depends on its own rows only, and not on other blocks, a profile or the
 * number of all rows. */
static int codes_blocks_alone(const struct kvc_pipeline *line) {
    return !kvc_pipeline_has(line, KVC_STAGE_LOOKS | KVC_STAGE_PAIR | KVC_STAGE_TAKES |
                                       KVC_STAGE_REBUILDS | KVC_STAGE_PROFILE | KVC_STAGE_AHEAD);
}

/* Returns 1 if blocks of a tensor of `from` mean the same as blocks of the tensor of this number of
 * `c`. */
static int is_alike(const struct kvc_cache *c, const struct kvc_plan *plan,
                    const struct kvc_cache *from, uint32_t tensor) {
    const struct kvc_records *k = from ? kvc_records_of(from) : NULL;
    if (!k || tensor >= from->n_tensors) return 0;
    const struct kvc_pipeline *line = kvc_plan_pipeline(plan, tensor);
    const struct kvc_tensor *x = &c->tensor[tensor], *y = &from->tensor[tensor];
    const struct kvc_layer *layer = &c->layer[x->layer], *other = &from->layer[y->layer];
    const struct kvc_shape *s = &x->shape, *r = &k->shape[tensor];
    return codes_blocks_alone(line) && kvc_pipeline_same(line, kvc_records_pipeline(k, tensor)) &&
           x->role == y->role && layer->part == other->part && layer->index == other->index &&
           s->dtype == r->dtype && s->heads == r->heads && s->dim == r->dim;
}

uint64_t kvc_reuse_blocks(const struct kvc_cache *c, const struct kvc_plan *plan,
                          const struct kvc_cache *from, uint32_t tensor) {
    if (!is_alike(c, plan, from, tensor)) return 0;
    const struct kvc_cells *cells = &kvc_tensor_part(c, tensor)->cells,
                           *had = &kvc_tensor_part(from, tensor)->cells;
    uint64_t n = 0;
    while (n < had->n_blocks && n < cells->n_blocks && cells->block[n + 1] == had->block[n + 1])
        n++;
    return n;
}

int kvc_reuse_check(const struct kvc_cache *c, const struct kvc_plan *plan,
                    const struct kvc_cache *from, struct kvc_error *e) {
    for (uint32_t t = 0; from && t < c->n_tensors && t < from->n_tensors; t++) {
        const uint64_t had = kvc_tensor_part(from, t)->cells.n_blocks;
        char label[64];
        if (kvc_pipeline_lossless(kvc_plan_pipeline(plan, t))) continue;
        /* the last block may grow */
        if (is_alike(c, plan, from, t) && kvc_reuse_blocks(c, plan, from, t) + 1 >= had) continue;
        kvc_tensor_label(c, t, label, sizeof label);
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "%s: its blocks are coded with loss and not each alone, so they cannot be "
                        "copied, and coding them again would add "
                        "to the loss: join the original files",
                        label);
    }
    return 0;
}

int kvc_reuse_copy(const struct kvc_cache *from, uint32_t tensor, uint64_t block,
                   struct kvc_buffer *out, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(from);
    const uint64_t i = k->block_record[k->first_block[tensor] + block];
    struct kvc_sink sink = kvc_sink_buffer(out);
    struct kvc_section *list;
    unsigned n;
    if (kvc_records_sections(k, i, &list, &n, e)) {
        char label[96];
        kvc_blocks_label(from, tensor, block, block + 1, label, sizeof label);
        return kvc_record_context(e, i, label);
    }
    const int status = kvc_sink_write(&sink, k->in->data + k->record[i].offset,
                                      (size_t)k->record[i].size, e);
    kvc_records_release(k, i, list);
    return status;
}
