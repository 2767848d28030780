/* open_cache.h: opens a cache for tools that read it by the library's own structs: kvc-dump and
 * kvc-diff. Not for tools on kvc.h (cli_open()). */
#ifndef KVC_OPEN_CACHE_H
#define KVC_OPEN_CACHE_H

#include "cli/cli.h"
#include "formats/file/open.h"

/* Opens a file, a folder or an archive as the options say; kvc_close() closes it. On failure *e is
 * filled, and *f is empty. Prints a note on stderr if --model could not be compared by
 * fingerprints. */
int cli_open_cache(struct kvc_opened *f, const char *path, struct cli_input *in,
                   struct kvc_error *e);

#endif
