/* diff_values.c: compares the values of two caches, tensor by tensor. Not for measuring (formats/compare/compare.c). */
#include "cli/diff/diff.h"

#include <stdlib.h>

static int compare_tensors(struct diff_comparison *d, const struct kvc_tensor_pair *pair, struct kvc_error *e) {
    const struct kvc_matching *rows = &pair->parts->rows;
    if (!pair->heads || !rows->rows) return 0;
    struct kvc_difference all = {0}, *head = calloc((size_t)pair->heads, sizeof *head);
    if (!head) return kvc_fail_memory(e, "the measures of heads");
    d->now = pair;
    d->opened = 0;
    int status = kvc_compare_tensor(d->cache[0], pair->tensor[0], d->cache[1], pair->tensor[1], rows, pair->heads, &d->compare,
                                    head, e);
    if (!status) {
        for (uint64_t h = 0; h < pair->heads; h++) kvc_difference_add(&all, &head[h]);
        d->compared++;
        d->values += all.values;
        if (all.differ) {
            d->unequal++;
            kvc_difference_add(&d->total, &all);
        }
        diff_print_tensor(d, head, all.differ != 0);
    }
    free(head);
    return status;
}

int diff_values(struct diff_comparison *d, struct kvc_error *e) {
    for (size_t i = 0; i < d->pairs.n_tensors && !(d->quiet && diff_differs(d)); i++)
        if (compare_tensors(d, &d->pairs.tensor[i], e)) return -1;
    return 0;
}
