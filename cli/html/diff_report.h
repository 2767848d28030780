/* diff_report.h: the HTML report of kvc-diff. Not for comparing (cli/diff). */
#ifndef KVC_DIFF_REPORT_H
#define KVC_DIFF_REPORT_H

#include "cli/diff/diff.h"

/* Writes the report of a comparison to d->html, from what d->collected has. `why` says why the
 * comparison stopped before its end; NULL: it did not. */
int diff_report(struct diff_comparison *d, const struct kvc_error *why, struct kvc_error *e);

/* Writes the data of the pictures as keys of an object: "tensors" and "worst", "positions",
 * "channels", "values", "queries" and "sizes". Returns 0, or -1 and *e. */
int diff_report_data(struct diff_comparison *d, struct cli_json *j, struct kvc_error *e);

#endif
