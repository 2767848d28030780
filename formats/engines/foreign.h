/* foreign.h: files that are no cache kvc reads, but that people hand to it. Not for the formats that it reads (format.h). */
#ifndef KVC_FOREIGN_H
#define KVC_FOREIGN_H

#include "formats/io/input.h"

/* 1 when the input is one of them; text says what it is and what to do: "it is a tar archive; unpack it first". The first
 * few thousand bytes of an input are enough for most, not for what only a safetensors header says. */
int kvc_foreign(const struct kvc_input *in, char *text, size_t size);

#endif
