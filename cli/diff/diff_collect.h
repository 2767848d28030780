/* diff_collect.h: the results of a comparison, kept for a report that is written at its end. Not
 * for printing (diff_print.c). */
#ifndef KVC_DIFF_COLLECT_H
#define KVC_DIFF_COLLECT_H

#include "formats/api/kvc_inspect.h"

enum { DIFF_WORST = 4, DIFF_ROLES = 7 };

/* A fact that differs, or a note (only `what`). Texts are NULL as in diff_fact(). */
struct diff_collected_fact {
    char *where, *what, *a, *b, *note;
};

struct diff_collected_tensor {
    const struct kvc_compared *pair;
    struct kvc_difference *head, all; /* head[pair->heads] */
};

/* Errors of all tensors of a role in a part, by matched row. */
struct diff_collected_rows {
    const struct kvc_compared *first; /* of these tensors */
    struct kvc_error_sum *row;        /* [first->rows] */
};

/* Errors by channel of a tensor whose relative error is among the largest. */
struct diff_collected_channels {
    size_t tensor; /* number of the collected tensor */
    uint64_t n;
    struct kvc_error_sum *channel;
};

struct diff_collected {
    struct diff_collected_fact *fact, *align;
    size_t n_facts, n_aligns;
    struct diff_collected_tensor *tensor;
    size_t n_tensors;
    struct diff_collected_rows *rows;
    size_t n_rows;
    struct diff_collected_channels worst[DIFF_WORST]; /* the largest error first */
    unsigned n_worst;
    /* as in struct kvc_error_sums */
    uint64_t octave[DIFF_ROLES][KVC_OCTAVES], zero[DIFF_ROLES];
    /* memory was missing for a fact */
    int failed;
};

/* Keep a fact and a note on alignment. */
void diff_collect_fact(struct diff_collected *c, const char *where, const char *what, const char *a,
                       const char *b, const char *note);
void diff_collect_align(struct diff_collected *c, const char *text);
/* Keeps a tensor: copies the measures of its heads, and takes what it needs of the sums. */
int diff_collect_tensor(struct diff_collected *c, const struct kvc_compared *pair,
                        const struct kvc_difference *head, const struct kvc_difference *all,
                        struct kvc_error_sums *sums, struct kvc_error *e);
/* Returns the error of a head that pictures show: relative; NaN if a pair that differs is not
 * finite. */
double diff_collect_error(const struct kvc_difference *head);
/* The head with the largest error; one with values that are not finite, if there is any. */
struct diff_worst {
    const struct diff_collected_tensor *tensor; /* NULL: no head has an error */
    uint64_t head;
};
struct diff_worst diff_collect_worst(const struct diff_collected *c);
void diff_collect_free(struct diff_collected *c);

#endif
