/* printable.h: makes names from files printable, for messages. Not for output on a terminal (cli/).
 */
#ifndef KVC_PRINTABLE_H
#define KVC_PRINTABLE_H

#include <stddef.h>

/* Returns the bytes of the UTF-8 character that begins a text of n bytes; 0 where there is none, as
 * in overlong forms, surrogates and what is above U+10FFFF. A NUL is a character. */
size_t kvc_utf8_length(const void *text, size_t n);

/* Copies a name from a file for a message: every byte but printable ASCII becomes '?', and the text
 * is cut at `size` bytes. */
const char *kvc_name_show(const char *name, char *text, size_t size);

#endif
