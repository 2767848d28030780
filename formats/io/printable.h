/* printable.h: makes names from files printable, for messages. Not for output on a terminal (cli/).
 */
#ifndef KVC_PRINTABLE_H
#define KVC_PRINTABLE_H

#include <stddef.h>

/* Copies a name from a file for a message: every byte but printable ASCII becomes '?', and the text
 * is cut at `size` bytes. */
const char *kvc_name_show(const char *name, char *text, size_t size);

#endif
