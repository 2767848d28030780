/* foreign.h: well-known files that are not caches that kvc reads. Not for the formats that kvc reads (format.h). */
#ifndef KVC_FOREIGN_H
#define KVC_FOREIGN_H

#include "formats/io/input.h"

/* Returns 1 when the input is such a file; `text` gets its name and advice: "it is a tar archive; unpack it first". The first few
 * thousand bytes of an input are enough, except for files that only their safetensors header identifies. */
int kvc_foreign(const struct kvc_input *in, char *text, size_t size);

#endif
