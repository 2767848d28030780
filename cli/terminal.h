/* terminal.h: what a terminal can show: colour, UTF-8, rows of blocks and bars. Not for messages
 * (cli.h) or progress (progress.h). */
#ifndef KVC_TERMINAL_H
#define KVC_TERMINAL_H

#include <stddef.h>
#include <stdio.h>

enum cli_when { CLI_AUTO, CLI_ALWAYS, CLI_NEVER };

#define CLI_WHEN_WORDS "auto|always|never"

/* How to draw on a stream. */
struct cli_canvas {
    int plots;  /* draw at all */
    int utf8;   /* the locale's characters are UTF-8; else ASCII is drawn */
    int colors; /* print escape sequences of colours */
};
/* CLI_AUTO: plots if `out` is a terminal; colours likewise, unless $NO_COLOR is set and not empty,
 * or $TERM is "dumb". */
struct cli_canvas cli_canvas_on(FILE *out, enum cli_when plots, enum cli_when colors);

enum cli_color { CLI_PLAIN, CLI_RED, CLI_GREEN, CLI_YELLOW };
/* Begins a colour, or ends it with CLI_PLAIN. Prints nothing without colours. */
void cli_color(const struct cli_canvas *c, FILE *out, enum cli_color color);

/* Prints a row of n blocks of eight heights, U+2581 to U+2588 or ASCII: `largest` is the full
 * block; 0 and what is no number are a blank. Values above CLI_STRIP are drawn together, the
 * largest of neighbours in a block. `color` gives the colour of a value and may be NULL. */
enum { CLI_STRIP = 64 };
void cli_strip(const struct cli_canvas *c, FILE *out, const double *value, size_t n, double largest,
               enum cli_color (*color)(double value));
/* Prints a bar of `width` columns for value / largest, in eighths of a column. */
void cli_bar(const struct cli_canvas *c, FILE *out, double value, double largest, unsigned width);

#endif
