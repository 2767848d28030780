/* svg_scatter.h: points in a plane as inline SVG. Not for other pictures (svg.h). */
#ifndef KVC_HTML_SVG_SCATTER_H
#define KVC_HTML_SVG_SCATTER_H

#include <stddef.h>
#include <stdio.h>

struct svg_points {
    const char *name, *color; /* color: a letter of the style sheet, or "lost" */
    size_t n;
    const double (*at)[2]; /* finite x and y */
};

struct svg_scatter {
    const char *label, *x_word;
    const struct svg_points *points; /* later ones are drawn over earlier ones */
    size_t n_points;
};
/* Writes the points on linear axes, the vertical one symmetric about 0. */
void svg_scatter(FILE *out, const struct svg_scatter *s);

#endif
