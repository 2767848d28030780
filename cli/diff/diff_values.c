/* diff_values.c: compares the values of two caches, tensor by tensor. Not for measuring
 * (formats/compare/compare.c). */
#include "cli/diff/diff.h"

#include <stdlib.h>

/* Gives the comparison sums of errors, if a report needs them. */
static int begin_collecting(struct diff_comparison *d, const struct kvc_tensor_pair *pair,
                            struct kvc_error *e) {
    const struct kvc_shape *shape = &d->cache[0]->tensor[pair->tensor[0]].shape;
    if (!d->collected) return 0;
    d->compare.sums = &d->collected->now;
    return diff_collect_begin(d->collected, pair, shape->heads * shape->dim, e);
}

static int compare_tensors(struct diff_comparison *d, const struct kvc_tensor_pair *pair,
                           struct kvc_error *e) {
    struct kvc_difference all, *head;
    if (!pair->heads || !pair->parts->rows.rows) return 0;
    d->now = pair;
    d->opened = 0;
    if (begin_collecting(d, pair, e)) return -1;
    if (d->groups.by && kvc_groups_before(&d->groups, pair, &d->compare, e)) return -1;
    if (!(head = kvc_pairs_compare(d->cache, pair, &d->compare, &all, e))) return -1;
    d->compared++;
    d->values += all.values;
    if (all.differ) {
        d->unequal++;
        kvc_difference_add(&d->total, &all);
    }
    cli_progress_end(&d->progress);
    diff_print_tensor(d, head, all.differ != 0);
    int status = diff_note_layer(d, pair, &all, e);
    if (!status && d->groups.by) status = kvc_groups_after(&d->groups, pair, head, &all, e);
    if (!status && d->collected) status = diff_collect_end(d->collected, pair, head, &all, e);
    free(head);
    return status;
}

/* Returns bytes of a pair that are read, of one side. */
static uint64_t bytes_of(const struct diff_comparison *d, const struct kvc_tensor_pair *pair) {
    if (!pair->heads) return 0;
    return pair->parts->rows.rows * kvc_row_bytes(&d->cache[0]->tensor[pair->tensor[0]].shape);
}

int diff_values(struct diff_comparison *d, struct kvc_error *e) {
    d->groups.cache = d->cache[0];
    d->groups.all = d->verbose;
    uint64_t done = 0, total = 0;
    for (size_t i = 0; i < d->pairs.n_tensors; i++) total += bytes_of(d, &d->pairs.tensor[i]);
    cli_progress_start(&d->progress, d->file[0].source.name, d->quiet);
    for (size_t i = 0; i < d->pairs.n_tensors && !diff_may_end(d); i++) {
        if (compare_tensors(d, &d->pairs.tensor[i], e)) return -1;
        cli_progress_show(&d->progress, done += bytes_of(d, &d->pairs.tensor[i]), total);
    }
    cli_progress_end(&d->progress);
    return d->groups.by && !d->quiet ? kvc_groups_end(&d->groups, e) : 0;
}
