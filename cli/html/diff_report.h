/* diff_report.h: the HTML report of kvc-diff. Not for comparing (cli/diff) and not for drawing (svg.h). */
#ifndef KVC_DIFF_REPORT_H
#define KVC_DIFF_REPORT_H

#include "cli/diff/diff.h"

/* Writes the report of a comparison to d->html, from what d->collected has. `why` says why the comparison stopped before its end;
 * NULL: it did not. */
int diff_report(struct diff_comparison *d, const struct kvc_error *why, struct kvc_error *e);

/* Write the pictures of a report; 0, or -1 and *e. */
int diff_report_heatmaps(struct diff_comparison *d, FILE *out, struct kvc_error *e);  /* error and attention by layer and head */
int diff_report_positions(struct diff_comparison *d, FILE *out, struct kvc_error *e); /* error along positions */
int diff_report_channels(struct diff_comparison *d, FILE *out, struct kvc_error *e);  /* channels of the worst tensors */
int diff_report_probabilities(struct diff_comparison *d, FILE *out, struct kvc_error *e); /* attention of single queries */
int diff_report_values(struct diff_comparison *d, FILE *out, struct kvc_error *e);        /* values of the worst head */
int diff_report_sizes(struct diff_comparison *d, FILE *out, struct kvc_error *e);         /* histogram of errors */

#endif
