/* diff.h: the state of a comparison by kvc-diff: its selection, the matched parts and tensors of
 * both caches, and one printer of text, JSON and TSV. Not for other tools.
 *
 * A comparison calls kvc_pairs_find(), diff_facts(), diff_geometry(), diff_align(), diff_values()
 * and diff_attention(), in this order. Each reads both caches and passes differences to the
 * printer, which also counts them. */
#ifndef KVC_DIFF_H
#define KVC_DIFF_H

#include "cli/cli.h"
#include "cli/open_cache.h"
#include "cli/diff/diff_collect.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "formats/compare/attend.h"
#include "formats/compare/groups.h"

enum diff_style { DIFF_TEXT, DIFF_JSON, DIFF_TSV };
/* How far a comparison came. */
enum diff_reached { DIFF_AT_START, DIFF_AT_FACTS, DIFF_AT_TENSORS, DIFF_AT_END };

struct diff_comparison {
    /* The selection. */
    struct kvc_compare_options compare;
    int all; /* also compare provenance, other metadata and private bytes */
    struct kvc_pairs pairs;

    /* The output. */
    enum diff_style style;
    int quiet, verbose;
    const char *html;                 /* where the page of --html is written, or NULL */
    struct diff_collected *collected; /* the results for that page, or NULL */
    uint64_t count;                   /* number of values that may still be reported */

    int attention; /* measure attention with the queries of `queries`, or else of A or B */
    struct kvc_opened queries;

    struct kvc_opened file[2];
    const struct kvc_cache *cache[2]; /* the file's cache, or a view of it */
    struct kvc_align align;

    /* Results. */
    enum diff_reached reached;
    uint64_t facts;                     /* number of facts that differ */
    uint64_t compared, unequal, values; /* numbers of tensors, of tensors that differ, of values */
    struct kvc_difference total;        /* over the tensors that differ */

    struct kvc_groups groups; /* --by and --worst; by KVC_GROUP_NONE: heads are printed */

    struct kvc_attended attended; /* empty unless attention was measured */

    /* Relative errors of compared tensors, if they are drawn. */
    struct cli_canvas canvas;
    struct diff_layer {
        const struct kvc_tensor_pair *pair;
        double error;
    } * layer;
    size_t n_layers;

    struct cli_progress progress;

    /* State of the printer. */
    struct cli_report report;
    const struct kvc_tensor_pair *now; /* the current tensors */
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

/* Compares token ids, metadata and, with `all`, the engine's private bytes. */
int diff_facts(struct diff_comparison *d, struct kvc_error *e);
/* Compares parts, positions and tensors that one side lacks; shapes, dtypes and windows. */
void diff_geometry(struct diff_comparison *d);
/* Replaces the caches by views whose channels have the same meaning on both sides. Tensors keep
 * their numbers. */
int diff_align(struct diff_comparison *d, struct kvc_error *e);
/* Compares the values of tensors that both have. */
int diff_values(struct diff_comparison *d, struct kvc_error *e);

/* Measures the effect of the differences on attention, if d->attention is set.
 * diff_attention_possible() fails if there are no queries; it may be called before anything is
 * printed. */
int diff_attention_possible(const struct diff_comparison *d, struct kvc_error *e);
int diff_attention(struct diff_comparison *d, struct kvc_error *e);
void diff_print_attention(struct diff_comparison *d);

/* Print the text before facts, between facts and tensors, and after tensors. */
void diff_begin(struct diff_comparison *d);
/* Ends the JSON object with an error, and begins it if necessary; `a` and `b` are the names of the
 * files. */
void diff_failed(struct diff_comparison *d, const char *a, const char *b,
                 const struct kvc_error *e);
void diff_begin_tensors(struct diff_comparison *d);
void diff_end(struct diff_comparison *d);

/* Prints a fact that differs: `what` of `where` ("": the whole cache) is `a` in A and `b` in B;
 * NULL: absent. `note` may be NULL. */
void diff_fact(struct diff_comparison *d, const char *where, const char *what, const char *a,
               const char *b, const char *note);
/* Print a number that differs, and a thing that only one side has. */
void diff_fact_u64(struct diff_comparison *d, const char *where, const char *what, uint64_t a,
                   uint64_t b);
void diff_fact_presence(struct diff_comparison *d, const char *where, const char *what, int in_a,
                        int in_b);

/* Prints a value of d->now that differs; `state` is the struct diff_comparison. */
kvc_report_fn diff_report_value;
/* Prints the heads of d->now. */
void diff_print_tensor(struct diff_comparison *d, const struct kvc_difference *head, int unequal);

/* Prints a group of --by; `state` is the struct diff_comparison. */
kvc_group_fn diff_print_group;

/* Prints a heading of TSV once. */
void diff_tsv_heading(struct diff_comparison *d, enum diff_headed which, const char *heading);
/* Print columns of TSV: part, stream and snapshot; numbers of values, and measures; the row of a
 * head. */
void diff_tsv_part(const struct kvc_tensor_pair *t);
void diff_tsv_counts(const struct kvc_difference *x);
void diff_tsv_head(const struct kvc_tensor_pair *t, uint64_t head, const struct kvc_difference *x);

/* Keeps the error of a tensor, and draws what was kept. */
int diff_note_layer(struct diff_comparison *d, const struct kvc_tensor_pair *pair,
                    const struct kvc_difference *all, struct kvc_error *e);
void diff_draw_layers(const struct diff_comparison *d);

/* Writes "snapshot 1", "live stream 2". */
void diff_part_label(const struct kvc_part_pair *parts, char *text, size_t size);
/* Returns the part of A, or that of B if A has none: kind, stream and snapshot are equal in both.
 */
const struct kvc_part *diff_part_of(const struct kvc_part_pair *parts);
/* Writes "snapshot 1 layers 0-29 K" for tensors of one part and role. */
void diff_layers_label(const struct kvc_tensor_pair *first, const struct kvc_tensor_pair *last,
                       char *text, size_t size);

#endif
