/* dump_pictures.h: pictures of values in the HTML report of kvc-dump. Not for those of a file's structure (dump_report.c). */
#ifndef KVC_DUMP_PICTURES_H
#define KVC_DUMP_PICTURES_H

#include "cli/dump/dump.h"
#include "cli/progress.h"

/* How far a page has come, in bytes of stored records and of tensors. */
struct dump_progress {
    struct cli_progress line;
    uint64_t done, total;
};
void dump_progress_add(struct dump_progress *p, uint64_t bytes);

/* Writes a section on the values of K, V and latents, of a bounded number of rows. Values that cannot be decoded without something
 * that is not there, as a profile, are a note. Returns -1 and the first damage in *e; what could be read is shown. Adds the bytes of
 * the tensors that are shown to p->done. */
int dump_report_values(FILE *out, const struct kvc_cache *c, struct dump_progress *p, struct kvc_error *e);

#endif
