/* text.h: text from files, made safe to show. Not for numbers (cli.h). */
#ifndef KVC_TEXT_H
#define KVC_TEXT_H

#include <stddef.h>
#include <stdio.h>

/* Bytes of the well-formed UTF-8 character at s (1 to 4), or 0 when there is none; s ends with a NUL. */
size_t cli_utf8_length(const char *s);

/* Prints text for people and for TSV: backslashes, control characters (also U+0080 to U+009F, line separators
 * and what turns the direction of writing) and bytes that are no UTF-8 as \xNN, so that a file's names can
 * neither move the cursor nor end a column. Returns the bytes printed. */
size_t cli_print_safe(FILE *out, const char *text);

#endif
