/* curve.h: points of ratio against error, and their table, plot and picture. Not for packing
 * (pack_curve.c). */
#ifndef KVC_CURVE_H
#define KVC_CURVE_H

#include "formats/api/kvc.h"

#include <stdint.h>
#include <stdio.h>

struct curve_point {
    char name[64];      /* of the recipe */
    int failed, chosen; /* the recipe does not suit the file; it is that of the options */
    int lossless;
    uint64_t stored; /* bytes */
    double ratio;
    double error[2];       /* of K and V: relative, measured */
    double kld[2];         /* of the continuation and of recall, estimated; 0: unknown */
    struct kvc_error *why; /* if it failed */
};

struct curve {
    const char *file;
    struct curve_point *point;
    size_t n;
};

/* Returns 1 if the horizontal axis is the KLD of the points that have one, the larger of both; else
 * it is the larger error of K and V. */
int curve_is_kld(const struct curve *c);
/* Returns the place of a point on that axis; -1: none. Lossless points are at 0. */
double curve_x(const struct curve *c, const struct curve_point *p);

/* Print as text: a row for each point; and the points on axes of characters, by the letters of the
 * rows. */
void curve_print_table(const struct curve *c, FILE *out);
void curve_print_plot(const struct curve *c, FILE *out);
/* Writes an SVG picture. Labels keep clear of each other and of points where there is room; points
 * at one place share a label. */
int curve_write_svg(const struct curve *c, FILE *out, struct kvc_error *e);

#endif
