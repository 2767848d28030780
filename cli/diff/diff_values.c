/* diff_values.c: compares the values of two caches, tensor by tensor. Not for measuring (formats/compare/compare.c). */
#include "cli/diff/diff.h"

#include <stdlib.h>

static int compare_tensors(struct diff_comparison *d, const struct kvc_tensor_pair *pair, struct kvc_error *e) {
    struct kvc_difference all, *head;
    if (!pair->heads || !pair->parts->rows.rows) return 0;
    d->now = pair;
    d->opened = 0;
    if (d->groups.by && kvc_groups_before(&d->groups, pair, &d->compare, e)) return -1;
    if (!(head = kvc_pairs_compare(d->cache, pair, &d->compare, &all, e))) return -1;
    d->compared++;
    d->values += all.values;
    if (all.differ) {
        d->unequal++;
        kvc_difference_add(&d->total, &all);
    }
    diff_print_tensor(d, head, all.differ != 0);
    const int status = d->groups.by ? kvc_groups_after(&d->groups, pair, head, &all, e) : 0;
    free(head);
    return status;
}

int diff_values(struct diff_comparison *d, struct kvc_error *e) {
    d->groups.cache = d->cache[0];
    d->groups.all = d->verbose;
    for (size_t i = 0; i < d->pairs.n_tensors && !(d->quiet && diff_differs(d)); i++)
        if (compare_tensors(d, &d->pairs.tensor[i], e)) return -1;
    return d->groups.by && !d->quiet ? kvc_groups_end(&d->groups, e) : 0;
}
