/* diff_values.c: compares the values of two caches, tensor by tensor. Not for measuring (formats/compare/compare.c). */
#include "cli/diff/diff.h"

#include <stdlib.h>

/* Gives the comparison sums of errors, if a report needs them. */
static int begin_collecting(struct diff_comparison *d, const struct kvc_tensor_pair *pair, struct kvc_error *e) {
    const struct kvc_shape *shape = &d->cache[0]->tensor[pair->tensor[0]].shape;
    if (!d->collected) return 0;
    d->compare.sums = &d->collected->now;
    return diff_collect_begin(d->collected, pair, shape->heads * shape->dim, e);
}

static int compare_tensors(struct diff_comparison *d, const struct kvc_tensor_pair *pair, struct kvc_error *e) {
    struct kvc_difference all, *head;
    if (!pair->heads || !pair->parts->rows.rows) return 0;
    d->now = pair;
    d->opened = 0;
    if (begin_collecting(d, pair, e)) return -1;
    if (!(head = kvc_pairs_compare(d->cache, pair, &d->compare, &all, e))) return -1;
    d->compared++;
    d->values += all.values;
    if (all.differ) {
        d->unequal++;
        kvc_difference_add(&d->total, &all);
    }
    diff_print_tensor(d, head, all.differ != 0);
    const int status = d->collected ? diff_collect_end(d->collected, pair, head, &all, e) : 0;
    free(head);
    return status;
}

int diff_values(struct diff_comparison *d, struct kvc_error *e) {
    for (size_t i = 0; i < d->pairs.n_tensors && !diff_may_end(d); i++)
        if (compare_tensors(d, &d->pairs.tensor[i], e)) return -1;
    return 0;
}
