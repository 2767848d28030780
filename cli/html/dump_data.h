/* dump_data.h: the data of the pictures of values in the HTML report of kvc-dump. Not for a file's
 * structure (dump_report.c). */
#ifndef KVC_DUMP_DATA_H
#define KVC_DUMP_DATA_H

#include "cli/dump/dump.h"
#include "cli/progress.h"

/* How far a page has come, in bytes of stored records and of tensors. */
struct dump_progress {
    struct cli_progress line;
    uint64_t done, total;
};
void dump_progress_add(struct dump_progress *p, uint64_t bytes);

/* Writes the key "values" on the values of K, V and latents, of a bounded number of rows, and to
 * `out` how many were read. Values that cannot be decoded without something that is not there, as a
 * profile, are a note there. Returns -1 and the first damage in *e; what could be read is written.
 * Adds the bytes of the tensors to p->done. */
int dump_report_values(struct cli_json *j, FILE *out, const struct dump_file *f,
                       struct dump_progress *p, struct kvc_error *e);

#endif
