/* groups.c: sums errors of a comparison by layer, head, position or channel. Not for comparing
 * values (compare.c). */
#include "formats/compare/groups.h"

#include "codecs/memory.h"

#include <stdlib.h>
#include <string.h>

enum { ROLES = KVC_ROLE_HIDDEN + 1 };

/* --- order --- */

static int compare_numbers(int64_t a, int64_t b) {
    return a < b ? -1 : a > b;
}

/* Sorts by relative error, the largest first; equal errors in the order of the pairs. */
static int by_error(const void *a, const void *b) {
    const struct kvc_group *x = a, *y = b;
    if (x->error.frobenius > y->error.frobenius) return -1;
    if (x->error.frobenius < y->error.frobenius) return 1;
    if (x->pair != y->pair) return x->pair->number < y->pair->number ? -1 : 1;
    const int heads = compare_numbers((int64_t)x->head, (int64_t)y->head);
    if (heads) return heads;
    const int positions = compare_numbers(x->position, y->position);
    return positions ? positions : compare_numbers((int64_t)x->channel, (int64_t)y->channel);
}

/* Sorts the kept groups and drops all but the worst. */
static void cut(struct kvc_groups *g) {
    if (g->n_kept) qsort(g->kept, (size_t)g->n_kept, sizeof *g->kept, by_error);
    if (g->n_kept > g->worst) g->n_kept = g->worst;
}

/* Gives a group, or keeps it if the worst are wanted. */
static int groups_take(struct kvc_groups *g, const struct kvc_group *group, struct kvc_error *e) {
    if (!group->error.differ && !g->all) return 0;
    if (!g->worst) return g->give(g->state, group);
    if (!g->kept && !(g->kept = kvc_alloc(2 * g->worst, sizeof *g->kept)))
        return kvc_fail_memory(e, "the worst errors");
    g->kept[g->n_kept++] = *group;
    if (g->n_kept == 2 * g->worst) cut(g);
    return 0;
}

/* --- positions --- */

/* Gives the rows of the current part: rows of one position are one group. */
static int end_part(struct kvc_groups *g, struct kvc_error *e) {
    int status = 0;
    for (unsigned role = 0; role < ROLES; role++) {
        const struct kvc_matching *m = g->parts ? &g->parts->rows : NULL;
        struct kvc_group group = {.size = sizeof group,
                                  .pair = g->of[role] ? &g->of[role]->shown : NULL};
        uint64_t at = 0;
        for (uint64_t r = 0; g->row[role] && m && r < m->n_runs && !status; r++)
            for (uint64_t i = 0; i < m->run[r].n && !status; i++, at++) {
                const int64_t position = kvc_cells_position(&g->parts->part[0]->cells,
                                                            m->run[r].a + i);
                if (at && position != group.position) {
                    status = groups_take(g, &group, e);
                    memset(&group.error, 0, sizeof group.error);
                }
                group.position = position;
                kvc_difference_add(&group.error, &g->row[role][at]);
            }
        if (at && !status) status = groups_take(g, &group, e);
        free(g->row[role]);
        g->row[role] = NULL;
        g->of[role] = NULL;
    }
    g->parts = NULL;
    return status;
}

/* --- a comparison --- */

int kvc_groups_before(struct kvc_groups *g, const struct kvc_tensor_pair *pair,
                      struct kvc_compare_options *o, struct kvc_error *e) {
    const struct kvc_shape *shape = &g->cache->tensor[pair->tensor[0]].shape;
    o->detail = (struct kvc_difference_detail){NULL, NULL};
    if (g->by == KVC_GROUP_CHANNEL) {
        free(g->channel);
        o->detail.channel = g->channel = kvc_alloc_zeros(shape->heads * shape->dim,
                                                         sizeof *g->channel);
        if (!g->channel) return kvc_fail_memory(e, "the errors of channels");
    }
    if (g->by == KVC_GROUP_POSITION) {
        if (g->parts && g->parts != pair->parts && end_part(g, e)) return -1;
        g->parts = pair->parts;
        if (!g->row[pair->role]) {
            g->row[pair->role] = kvc_alloc_zeros(pair->parts->rows.rows,
                                                 sizeof(struct kvc_difference));
            if (!g->row[pair->role]) return kvc_fail_memory(e, "the errors of positions");
            g->of[pair->role] = pair;
        }
        o->detail.row = g->row[pair->role];
    }
    return 0;
}

int kvc_groups_after(struct kvc_groups *g, const struct kvc_tensor_pair *pair,
                     const struct kvc_difference *head, const struct kvc_difference *sum,
                     struct kvc_error *e) {
    struct kvc_group group = {.size = sizeof group, .pair = &pair->shown, .error = *sum};
    const struct kvc_shape *shape = &g->cache->tensor[pair->tensor[0]].shape;
    const uint64_t dim = shape->heads * shape->dim / pair->heads;
    if (g->by == KVC_GROUP_LAYER) return groups_take(g, &group, e);
    for (group.head = 0; group.head < pair->heads && g->by != KVC_GROUP_POSITION; group.head++) {
        group.error = head[group.head];
        if (g->by == KVC_GROUP_HEAD && groups_take(g, &group, e)) return -1;
        for (group.channel = 0; g->channel && group.channel < dim; group.channel++) {
            group.error = g->channel[group.head * dim + group.channel];
            if (groups_take(g, &group, e)) return -1;
        }
        group.channel = 0;
    }
    return 0;
}

int kvc_groups_end(struct kvc_groups *g, struct kvc_error *e) {
    int status = end_part(g, e);
    cut(g);
    for (uint64_t i = 0; i < g->n_kept && !status; i++) status = g->give(g->state, &g->kept[i]);
    g->n_kept = 0;
    return status;
}

void kvc_groups_free(struct kvc_groups *g) {
    for (unsigned role = 0; role < ROLES; role++) {
        free(g->row[role]);
        g->row[role] = NULL;
    }
    free(g->channel);
    free(g->kept);
    g->channel = NULL;
    g->kept = NULL;
    g->n_kept = 0;
}
