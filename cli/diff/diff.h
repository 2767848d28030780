/* diff.h: what the parts of kvc-diff share: what is compared, which parts and tensors of the two caches
 * belong together, and one printer of text, JSON and TSV. Not for other tools.
 *
 * A comparison goes through diff_match(), diff_facts(), diff_geometry(), diff_align(), diff_values() and
 * diff_attention(), in this order. Each looks at both caches and hands what differs to the printer, which counts it, too. */
#ifndef KVC_DIFF_H
#define KVC_DIFF_H

#include "cli/cli.h"
#include "formats/compare/align.h"
#include "formats/compare/attention.h"
#include "formats/compare/compare.h"

enum diff_style { DIFF_TEXT, DIFF_JSON, DIFF_TSV };

/* Parts of A and B that correspond. */
struct diff_parts {
    const struct kvc_part *part[2]; /* NULL where a side has none */
    struct kvc_matching rows;       /* of the selected positions; empty when a side has none */
};

/* Tensors of A and B that correspond. */
struct diff_tensors {
    const struct diff_parts *parts;
    uint32_t layer; /* model layer */
    enum kvc_role role;
    uint32_t tensor[2]; /* KVC_NONE where a side has none */
    uint64_t heads;     /* to report values by; 0: the shapes do not let values be compared */
};

/* A layer whose attention is measured. */
struct diff_attention {
    const struct diff_tensors *k, *v;
    uint64_t heads;             /* KV heads */
    struct kvc_attention *head; /* of each */
};

struct diff_comparison {
    /* What is compared. */
    struct kvc_compare_options compare;
    int all;             /* provenance, other metadata and private bytes, too */
    int64_t first, last; /* positions, both inclusive; first is INT64_MIN when none are selected */
    uint8_t *keep;       /* keep[i] != 0 selects layer i < n_keep; NULL: all */
    uint32_t n_keep;

    /* What is printed. */
    enum diff_style style;
    int quiet, verbose;
    uint64_t count; /* values that may still be reported */

    int attention; /* measure it, with the queries of `queries` or else of A or B */
    struct kvc_opened queries;

    struct kvc_opened file[2];
    const struct kvc_cache *cache[2]; /* compared: the file's, or a view of it */
    struct kvc_align align;

    /* Sorted: parts by kind, stream and checkpoint; tensors by part, layer and role. */
    struct diff_parts *part;
    size_t n_parts;
    struct diff_tensors *tensor;
    size_t n_tensors;

    /* Results. */
    uint64_t facts;                     /* that differ */
    uint64_t compared, unequal, values; /* tensors, those of them that differ, values of all */
    struct kvc_difference total;        /* over the tensors that differ */

    struct diff_attention *attended;
    size_t n_attended;
    struct kvc_attention attended_all;

    /* The printer's. */
    struct cli_report report;
    const struct diff_tensors *now; /* the tensors being compared */
    int opened, headed;             /* their JSON object is open; the table of text has its heading */
};

/* "A" and "B". */
extern const char *const diff_side[2];

int diff_differs(const struct diff_comparison *d);

/* Fills part and tensor with what the selection reaches; refuses one that reaches nothing. */
int diff_match(struct diff_comparison *d, struct kvc_error *e);
/* Compares token ids, metadata and, with `all`, the engine's private bytes. */
int diff_facts(struct diff_comparison *d, struct kvc_error *e);
/* Compares parts, positions and tensors that one side lacks; shapes, dtypes and windows. */
void diff_geometry(struct diff_comparison *d);
/* Replaces the caches by views in which channels mean the same on both sides. Tensors keep their numbers. */
int diff_align(struct diff_comparison *d, struct kvc_error *e);
/* Compares the values of tensors that both have. */
int diff_values(struct diff_comparison *d, struct kvc_error *e);

/* Measures what the differences do to attention, where asked for. diff_attention_possible() fails where there are no queries, and
 * may be called before anything is printed. */
int diff_attention_possible(const struct diff_comparison *d, struct kvc_error *e);
int diff_attention(struct diff_comparison *d, struct kvc_error *e);
void diff_print_attention(struct diff_comparison *d);
void diff_attention_free(struct diff_comparison *d);

/* Print what comes before, between and after facts and tensors. */
void diff_begin(struct diff_comparison *d);
/* Ends the JSON object with an error, begun or not; `a` and `b` are the files' names. */
void diff_failed(struct diff_comparison *d, const char *a, const char *b, const struct kvc_error *e);
void diff_begin_tensors(struct diff_comparison *d);
void diff_end(struct diff_comparison *d);

/* Prints a difference of facts: `what` of `where` ("": of the whole cache) is a in A and b in B; NULL where it is
 * absent. `note` may be NULL. */
void diff_fact(struct diff_comparison *d, const char *where, const char *what, const char *a, const char *b,
               const char *note);
/* The same of a number, and of something that one side lacks. */
void diff_fact_u64(struct diff_comparison *d, const char *where, const char *what, uint64_t a, uint64_t b);
void diff_fact_presence(struct diff_comparison *d, const char *where, const char *what, int in_a, int in_b);

/* Prints a value of d->now that differs; `state` is the struct diff_comparison. */
kvc_report_fn diff_report_value;
/* Prints the heads of d->now. */
void diff_print_tensor(struct diff_comparison *d, const struct kvc_difference *head, int unequal);

/* Writes "checkpoint 1", "live stream 2". */
void diff_part_label(const struct diff_parts *parts, char *text, size_t size);
/* Returns the part of A, or of B where A has none: kind, stream and checkpoint are the same in both. */
const struct kvc_part *diff_part_of(const struct diff_parts *parts);
/* Writes "checkpoint 1 layers 0-29 K" for tensors of one part and role. */
void diff_layers_label(const struct diff_tensors *first, const struct diff_tensors *last, char *text,
                       size_t size);

#endif
