/* diff_collect.c: keeps the results of a comparison for a report. Not for writing the report
 * (cli/html/diff_report.c). */
#include "cli/diff/diff.h"


#include <math.h>
#include <stdlib.h>
#include <string.h>

static char *copy(struct diff_collected *c, const char *text) {
    char *copied = text ? strdup(text) : NULL;
    if (text && !copied) c->failed = 1;
    return copied;
}

void diff_collect_fact(struct diff_collected *c, const char *where, const char *what, const char *a,
                       const char *b, const char *note) {
    struct diff_collected_fact *grown = cli_room_for_one(c->fact, c->n_facts, sizeof *grown);
    if (!grown) {
        c->failed = 1;
        return;
    }
    c->fact = grown;
    grown[c->n_facts++] = (struct diff_collected_fact){.where = copy(c, where),
                                                       .what = copy(c, what),
                                                       .a = copy(c, a),
                                                       .b = copy(c, b),
                                                       .note = copy(c, note)};
}

/* Returns the sums by row of a part and a role, which are made if they are the first; or NULL. */
static struct diff_collected_rows *rows_of(struct diff_collected *c,
                                           const struct kvc_compared *pair) {
    for (size_t i = 0; i < c->n_rows; i++)
        if (c->rows[i].first->parts == pair->parts &&
            strcmp(c->rows[i].first->role, pair->role) == 0)
            return &c->rows[i];
    struct diff_collected_rows *grown = cli_room_for_one(c->rows, c->n_rows, sizeof *c->rows);
    if (!grown) return NULL;
    c->rows = grown;
    struct kvc_error_sum *row = calloc(pair->rows, sizeof *row);
    if (!row) return NULL;
    c->rows[c->n_rows] = (struct diff_collected_rows){pair, row};
    return &c->rows[c->n_rows++];
}

static double error_of(const struct diff_collected *c, unsigned worst) {
    return c->tensor[c->worst[worst].tensor].all.frobenius;
}

/* Keeps the errors by channel of the last tensor, if its error is among the largest. */
static void rank(struct diff_collected *c, struct kvc_error_sums *sums) {
    const size_t last = c->n_tensors - 1;
    unsigned at = c->n_worst;
    if (!(c->tensor[last].all.frobenius > 0)) return;
    while (at && c->tensor[last].all.frobenius > error_of(c, at - 1)) at--;
    if (at == DIFF_WORST) return;
    if (c->n_worst == DIFF_WORST) free(c->worst[DIFF_WORST - 1].channel);
    else c->n_worst++;
    memmove(&c->worst[at + 1], &c->worst[at], (c->n_worst - at - 1) * sizeof *c->worst);
    c->worst[at] = (struct diff_collected_channels){last, sums->channels, sums->channel};
    sums->channel = NULL; /* the list owns it now */
}

int diff_collect_tensor(struct diff_collected *c, const struct kvc_compared *pair,
                        const struct kvc_difference *head, const struct kvc_difference *all,
                        struct kvc_error_sums *sums, struct kvc_error *e) {
    struct diff_collected_rows *rows = rows_of(c, pair);
    struct diff_collected_tensor *grown = cli_room_for_one(c->tensor, c->n_tensors, sizeof *grown);
    if (grown) c->tensor = grown;
    struct kvc_difference *heads = rows && grown ? calloc(pair->heads, sizeof *heads) : NULL;
    if (!heads) return cli_no_memory(e, "the results of a comparison");
    memcpy(heads, head, (size_t)pair->heads * sizeof *heads);
    c->tensor[c->n_tensors++] = (struct diff_collected_tensor){pair, heads, *all};
    for (uint64_t i = 0; i < sums->rows; i++) {
        rows->row[i].dd += sums->row[i].dd;
        rows->row[i].aa += sums->row[i].aa;
    }
    unsigned role = 0;
    while (strcmp(dump_roles[role], pair->role) != 0) role++;
    for (unsigned i = 0; i < KVC_OCTAVES; i++) c->octave[role][i] += sums->octave[i];
    c->zero[role] += sums->zero;
    rank(c, sums);
    return 0;
}

double diff_collect_error(const struct kvc_difference *head) {
    return head->nonfinite ? (double)NAN : head->frobenius;
}

static int is_worse(const struct kvc_difference *a, const struct kvc_difference *b) {
    return a->nonfinite != b->nonfinite ? a->nonfinite > b->nonfinite : a->frobenius > b->frobenius;
}

struct diff_worst diff_collect_worst(const struct diff_collected *c) {
    static const struct kvc_difference equal = {0};
    struct diff_worst worst = {.tensor = NULL};
    for (size_t i = 0; i < c->n_tensors; i++)
        for (uint64_t h = 0; h < c->tensor[i].pair->heads; h++)
            if (is_worse(&c->tensor[i].head[h],
                         worst.tensor ? &worst.tensor->head[worst.head] : &equal))
                worst = (struct diff_worst){&c->tensor[i], h};
    return worst;
}

void diff_collect_free(struct diff_collected *c) {
    for (size_t i = 0; i < c->n_facts; i++) {
        free(c->fact[i].where);
        free(c->fact[i].what);
        free(c->fact[i].a);
        free(c->fact[i].b);
        free(c->fact[i].note);
    }
    free(c->fact);
    for (size_t i = 0; i < c->n_tensors; i++) free(c->tensor[i].head);
    for (size_t i = 0; i < c->n_rows; i++) free(c->rows[i].row);
    for (unsigned i = 0; i < c->n_worst; i++) free(c->worst[i].channel);
    free(c->tensor);
    free(c->rows);
    *c = (struct diff_collected){.n_facts = 0};
}
