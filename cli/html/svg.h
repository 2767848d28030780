/* svg.h: pictures of HTML reports, as inline SVG: heatmaps, lines and bars. Not for pages (page.h) and not for what the pictures
 * show.
 *
 * Shapes are stretched to the width of the page; text keeps its size, so that pictures can be read on paper and on small screens.
 * Colours are classes of the style sheet (page_style.c). */
#ifndef KVC_HTML_SVG_H
#define KVC_HTML_SVG_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define SVG_ABSENT (-1.0)      /* a value that is not there; other values are 0 or more, infinite or NaN */
#define SVG_NOTHING UINT32_MAX /* no mark, no anchor */

/* A scale from `low` to `high`: linear, from 0, or logarithmic. */
struct svg_scale {
    double low, high;
    int log;
};
/* Returns a scale for values: logarithmic if they spread over more than two decades. */
struct svg_scale svg_scale_of(const double *v, size_t n);
/* Returns the scale that has room for both. */
struct svg_scale svg_scale_join(struct svg_scale a, struct svg_scale b);

struct svg_heatmap {
    const char *label; /* of the picture, for readers who do not see it */
    const char *row_word, *column_word;
    uint32_t rows, columns;
    const double *value; /* [rows][columns] */
    struct svg_scale scale;
    const uint32_t *row_number, *column_number; /* NULL: 0, 1, ... */
    const uint32_t *anchor;                     /* for each column: a cell leads to the element "tN"; NULL: no links */
    uint32_t mark_row, mark_column;
};
/* Writes a heatmap. Rows and columns beyond what a page can show are joined; the largest value is shown. Returns -1 when out of
 * memory. */
int svg_heatmap(FILE *out, const struct svg_heatmap *h);
/* Begins the legend of a scale of colours; `unit` says what the numbers are. The caller may add items, and ends the legend. */
void svg_heat_legend_begin(FILE *out, struct svg_scale scale, const char *unit);

struct svg_series {
    const char *name, *color; /* color: a letter of the style sheet */
    const double *y;
};

/* A stretch of the horizontal axis, in points; without length a line. */
struct svg_mark {
    const char *class, *label; /* label NULL: in the legend already */
    double from, to;
};

struct svg_lines {
    const char *label, *x_word;
    size_t n; /* points of each series */
    const struct svg_series *series;
    size_t n_series;
    struct svg_scale scale;
    double x_first, x_step; /* number of the first point, and from point to point */
    const struct svg_mark *mark;
    size_t n_marks;
    int log2; /* the numbers of points are powers of 2 of what the axis shows: its labels are powers of 10 */
};
void svg_lines(FILE *out, const struct svg_lines *l);

struct svg_bars {
    const char *label, *column_word;
    uint32_t columns;
    const uint32_t *column_number; /* NULL: 0, 1, ... */
    const struct svg_series *series;
    size_t n_series;
    int stacked; /* the series of a column are added; else they are side by side */
    int bytes;   /* numbers are sizes */
};
void svg_bars(FILE *out, const struct svg_bars *b);

#endif
