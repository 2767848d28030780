/* diff.h: the state of a comparison by kvc-diff, which the library does (kvc_comparing.h), and one
 * printer of text, JSON and TSV. Not for other tools.
 *
 * diff_compare() takes the steps of a comparison in their order; each passes differences to the
 * printer, which also counts them. */
#ifndef KVC_DIFF_H
#define KVC_DIFF_H

#include "cli/cli.h"
#include "cli/dump/dump.h"
#include "cli/diff/diff_collect.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "formats/api/kvc_inspect.h"

enum diff_style { DIFF_TEXT, DIFF_JSON, DIFF_TSV };
/* How far a comparison came. */
enum diff_reached { DIFF_AT_START, DIFF_AT_FACTS, DIFF_AT_TENSORS, DIFF_AT_END };

struct diff_comparison {
    struct kvc_compare_how how;
    struct kvc_compare_detail detail;

    /* The output. */
    enum diff_style style;
    int quiet, verbose;
    const char *html;                 /* where the page of --html is written, or NULL */
    struct diff_collected *collected; /* the results for that page, or NULL */
    uint64_t count;                   /* number of values that may still be reported */

    struct kvc_file *queries; /* of --queries, or NULL */
    struct dump_file file[2];
    struct kvc_comparing *steps;

    /* Results. */
    enum diff_reached reached;
    uint64_t facts;                     /* number of facts that differ */
    uint64_t compared, unequal, values; /* numbers of tensors, of tensors that differ, of values */
    struct kvc_difference total;        /* over the tensors that differ */

    /* Relative errors of compared tensors, if they are drawn. */
    struct cli_canvas canvas;
    struct diff_layer {
        const struct kvc_compared *pair;
        double error;
    } * layer;
    size_t n_layers;

    struct cli_progress progress;

    /* State of the printer. */
    struct cli_report report;
    const struct kvc_compared *now; /* the current tensors */
    /* their JSON object is open; the heading of the text table is printed */
    int opened, headed;
    unsigned headed_rows; /* TSV's row types whose heading is printed */
};

/* Columns of TSV. */
#define DIFF_TSV_COUNTS "differ\tvalues\tnonfinite\tmax_abs\trms\tfrobenius\tcosine"
#define DIFF_TSV_HEAD                                                      \
    "#head\tpart\tstream\tcheckpoint\tlayer\trole\thead\t" DIFF_TSV_COUNTS \
    "\tfirst_position\tfirst_channel\tfirst_a\tfirst_b"
enum diff_headed {
    DIFF_HEADED_FACT = 1,
    DIFF_HEADED_VALUE = 2,
    DIFF_HEADED_HEAD = 4,
    DIFF_HEADED_GROUPS = 8,
    DIFF_HEADED_ATTENTION = 16
};

/* "A" and "B". */
extern const char *const diff_side[2];

static inline int diff_differs(const struct diff_comparison *d) {
    return d->facts || d->unequal;
}
/* Returns 1 if the rest of the comparison changes neither the exit status nor anything that is
 * printed. */
int diff_may_end(const struct diff_comparison *d);

/* Begins the comparison of the files: finds their tensors. Refuses a selection of nothing. */
int diff_start(struct diff_comparison *d, struct kvc_error *e);
int diff_compare(struct diff_comparison *d, struct kvc_error *e);
void diff_print_attention(struct diff_comparison *d);

/* Print the text before facts, between facts and tensors, and after tensors. */
void diff_begin(struct diff_comparison *d);
/* Ends the JSON object with an error, and begins it if necessary; `a` and `b` are the names of the
 * files. */
void diff_failed(struct diff_comparison *d, const char *a, const char *b,
                 const struct kvc_error *e);
void diff_begin_tensors(struct diff_comparison *d);
void diff_end(struct diff_comparison *d);

/* Prints a fact that differs; `state` is the struct diff_comparison. */
kvc_fact_fn diff_fact;
/* Prints a value of d->now that differs; `state` is the struct diff_comparison. */
kvc_report_fn diff_report_value;
/* Prints the heads of d->now. */
void diff_print_tensor(struct diff_comparison *d, const struct kvc_difference *head, int unequal);

/* Prints a group of --by; `state` is the struct diff_comparison. */
extern const char *const diff_group_name[];
kvc_group_fn diff_print_group;

/* Prints a heading of TSV once. */
static inline void diff_tsv_heading(struct diff_comparison *d, enum diff_headed which,
                                    const char *heading) {
    if (!(d->headed_rows & which)) puts(heading);
    d->headed_rows |= which;
}
/* Print columns of TSV: part, stream and checkpoint; numbers of values, and measures; the row of a
 * head. */
void diff_tsv_part(const struct kvc_compared *t);
void diff_tsv_counts(const struct kvc_difference *x);
void diff_tsv_head(const struct kvc_compared *t, uint64_t head, const struct kvc_difference *x);

/* Keeps the error of a tensor, and draws what was kept. */
int diff_note_layer(struct diff_comparison *d, const struct kvc_compared *pair,
                    const struct kvc_difference *all, struct kvc_error *e);
void diff_draw_layers(const struct diff_comparison *d);

#endif
