/* foreign.h: well-known files that are not caches that kvc reads. Not for the formats that kvc
 * reads (format.h). */
#ifndef KVC_FOREIGN_H
#define KVC_FOREIGN_H

#include "formats/io/bundle.h"
#include "formats/io/input.h"

#define KVC_FOREIGN_BESIDE 2 /* a file that is kept beside a cache, and belongs to it */

/* Returns 1, or KVC_FOREIGN_BESIDE, when the input is such a file; `text` gets its name and advice:
 * "it is a tar archive; unpack it first". The first few thousand bytes of an input are enough,
 * except for files that only their safetensors header identifies. */
int kvc_foreign(const struct kvc_input *in, char *text, size_t size);
/* The same for an input that no format takes: files that nothing but their name or a few bytes tell
 * from raw data. */
int kvc_foreign_unknown(const struct kvc_input *in, char *text, size_t size);
/* The same, by the first bytes alone. */
int kvc_foreign_by_bytes(const struct kvc_input *in, char *text, size_t size);
/* The same for several files, of a folder or an archive. */
int kvc_foreign_unknown_members(const struct kvc_bundle *b, char *text, size_t size);


#endif
