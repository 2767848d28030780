/* diff.h: the state of a comparison by kvc-diff, which the library does (kvc_comparing.h), and one
 * printer of text, JSON and TSV. Not for other tools.
 *
 * diff_compare() takes the steps of a comparison in their order; each passes differences to the
 * printer, which also counts them. */
#ifndef KVC_DIFF_H
#define KVC_DIFF_H

#include "cli/cli.h"
#include "cli/dump/dump.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "formats/api/kvc_inspect.h"

/* --- the results, kept for a page that is written at the end --- */

enum { DIFF_WORST = 4, DIFF_ROLES = 7 };

/* A fact that differs, with texts as in diff_fact(); or how channels were aligned: only `what`. */
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
    struct diff_collected_fact *fact;
    size_t n_facts;
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

/* --- the comparison --- */

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
#define DIFF_TSV_HEAD                                                    \
    "#head\tpart\tstream\tsnapshot\tlayer\trole\thead\t" DIFF_TSV_COUNTS \
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
/* Print columns of TSV: part, stream and snapshot; numbers of values, and measures; the row of a
 * head. */
void diff_tsv_part(const struct kvc_compared *t);
void diff_tsv_counts(const struct kvc_difference *x);
void diff_tsv_head(const struct kvc_compared *t, uint64_t head, const struct kvc_difference *x);

/* Keeps the error of a tensor, and draws what was kept. */
int diff_note_layer(struct diff_comparison *d, const struct kvc_compared *pair,
                    const struct kvc_difference *all, struct kvc_error *e);
void diff_draw_layers(const struct diff_comparison *d);

/* --- results (diff_collect.c) --- */

/* Keeps a fact. */
void diff_collect_fact(struct diff_collected *c, const char *where, const char *what, const char *a,
                       const char *b, const char *note);
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

/* --- JSON (diff_json.c) --- */

/* Write an object, or keys of one. */
void diff_json_fact(struct cli_json *j, const char *where, const char *what, const char *a,
                    const char *b, const char *note);
void diff_json_part(struct cli_json *j, const struct kvc_compared *t); /* keys */
/* Opens the object of a tensor, which the caller fills and closes. */
void diff_json_tensor(struct cli_json *j, const struct kvc_compared *t);
void diff_json_head(struct cli_json *j, uint64_t head, const struct kvc_difference *x);
void diff_json_counts(struct cli_json *j, const struct kvc_difference *x); /* keys */
void diff_json_attention(struct cli_json *j, struct kvc_comparing *c);     /* keys */
void diff_json_summary(struct cli_json *j, const struct diff_comparison *d);

/* Writes what --json=lines prints without --by, --worst and --report, from d->collected. `why` says
 * why the comparison stopped before its end; NULL: it did not. */
void diff_json_collected(struct diff_comparison *d, const struct kvc_error *why, FILE *out);

/* --- the page (cli/html) --- */

/* Writes the report of a comparison to d->html, from what d->collected has. `why` says why the
 * comparison stopped before its end; NULL: it did not. */
int diff_report(struct diff_comparison *d, const struct kvc_error *why, struct kvc_error *e);

/* Writes the data of the pictures as keys of an object: "tensors" and "worst", "positions",
 * "channels", "values", "queries" and "sizes". Returns 0, or -1 and *e. */
int diff_report_data(struct diff_comparison *d, struct cli_json *j, struct kvc_error *e);

#endif
