/* text.h: prints text of files safely. Not for numbers (cli.h). */
#ifndef KVC_TEXT_H
#define KVC_TEXT_H

#include <stddef.h>
#include <stdio.h>

/* Returns bytes of the well-formed UTF-8 character at s (1 to 4), or 0 if there is none; s ends
 * with a NUL. */
size_t cli_utf8_length(const char *s);

/* Prints text for terminals and TSV. Backslashes, control characters (also U+0080 to U+009F, line
 * separators and characters that change the direction of writing) and bytes that are no UTF-8
 * become \xNN, so that text of a file can neither move the cursor nor end a column. Returns the
 * number of printed bytes. */
size_t cli_print_safe(FILE *out, const char *text);

#endif
