/* svg_mirror.h: two series on one axis as inline SVG, one upwards and the other downwards, so that they can be compared. Not for other
 * pictures (svg.h). */
#ifndef KVC_HTML_SVG_MIRROR_H
#define KVC_HTML_SVG_MIRROR_H

#include "cli/html/svg.h"

struct svg_mirror {
    const char *label, *x_word;
    size_t n;                           /* points of each series */
    const struct svg_series *up, *down; /* values that are not above 0 are not drawn */
    double low, high;                   /* of the logarithmic scale of both, above 0; smaller values are not drawn */
    double x_first, x_step;             /* number of the first point, and from point to point */
};
void svg_mirror(FILE *out, const struct svg_mirror *m);

#endif
