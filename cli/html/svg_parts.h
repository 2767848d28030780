/* svg_parts.h: what pictures as inline SVG have in common: a box with labels at its left and below, steps of axes, and
 * legends. Not for any picture (svg.h). */
#ifndef KVC_HTML_SVG_PARTS_H
#define KVC_HTML_SVG_PARTS_H

#include <stdio.h>

enum { SVG_WIDTH = 1000, SVG_LABELS = 8 }; /* units across; labels below a picture */

/* Returns the smallest of 1, 2 and 5 times a power of 10 of which at most `most` steps fit into the range. */
double svg_nice_step(double range, double most);
/* Writes a number with 3 digits, or with `bytes` a size. */
void svg_number(double v, int bytes, char text[32]);

/* Begins a picture: the box of its vertical labels, which the caller fills. */
void svg_begin(FILE *out, double height);
void svg_side_label(FILE *out, double y, const char *text);
/* Ends the vertical labels and begins the area of a picture; coordinates are 0 to `width` and 0 to `units`. */
void svg_area(FILE *out, double height, double width, double units, const char *label);
/* Ends the area and begins the horizontal labels. */
void svg_under(FILE *out);
/* Writes a label at a place of 0 to 1; labels at the ends stay inside. */
void svg_under_label(FILE *out, double place, const char *text);
/* Writes labels of an axis of whole numbers from `first` to below first + range. */
void svg_whole_labels(FILE *out, double first, double range);
/* Ends the picture with the name of its horizontal axis. */
void svg_end(FILE *out, const char *x_word);

/* One item of a legend: a swatch that the class fills. */
void svg_legend_begin(FILE *out);
void svg_legend_item(FILE *out, const char *class, const char *label);
void svg_legend_end(FILE *out);

#endif
