/* svg_octaves.h: a histogram of sizes by octave as inline SVG, one line a role. Not for other pictures (svg.h). */
#ifndef KVC_HTML_SVG_OCTAVES_H
#define KVC_HTML_SVG_OCTAVES_H

#include "formats/compare/error_sums.h"

#include <stdio.h>

/* The counts of one role. */
struct svg_octave_row {
    const char *name, *color;
    const uint64_t *count; /* [KVC_ERROR_OCTAVES] */
    double whole;          /* the counts are drawn in percent of it; a role is left out where it is not above 0 */
};

struct svg_octaves {
    const char *caption, *label, *x_word;
    const struct svg_octave_row *row;
    size_t n_rows;
    unsigned low, high; /* octaves that are drawn */
};

/* Sets the octaves from the lowest to the highest that has a count. Returns 0 where none has. */
int svg_octaves_range(struct svg_octaves *o);
/* Draws the octaves of the range as a figure. */
int svg_octaves(FILE *out, const struct svg_octaves *o, struct kvc_error *e);

#endif
