/* diff_json.h: the objects of kvc-diff's JSON: printed as they are found, or all at once from
 * collected results. Not for text and TSV (diff.h). */
#ifndef KVC_DIFF_JSON_H
#define KVC_DIFF_JSON_H

#include "cli/diff/diff.h"

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

#endif
