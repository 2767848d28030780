/* printable.h: names out of files as messages may show them. Not for output on a terminal (cli/). */
#ifndef KVC_PRINTABLE_H
#define KVC_PRINTABLE_H

#include <stddef.h>

/* A name from a file made fit for a message: anything but printable ASCII becomes '?', and it is cut at
 * `size`. */
const char *kvc_name_show(const char *name, char *text, size_t size);

#endif
