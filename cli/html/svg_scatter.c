/* svg_scatter.c: points in a plane as inline SVG. Not for other pictures (svg.c). */
#include "cli/html/svg_scatter.h"

#include "cli/html/svg_parts.h"

#include <math.h>

enum { HEIGHT = 240, EDGE = 6 }; /* units; EDGE: between the outermost points and the frame */

/* What the axes show. */
struct ranges {
    double low, high; /* across */
    double most;      /* of |y| */
};

static struct ranges ranges_of(const struct svg_scatter *s) {
    struct ranges r = {.low = HUGE_VAL, .high = -HUGE_VAL};
    for (size_t i = 0; i < s->n_points; i++)
        for (size_t k = 0; k < s->points[i].n; k++) {
            r.low = fmin(r.low, s->points[i].at[k][0]);
            r.high = fmax(r.high, s->points[i].at[k][0]);
            r.most = fmax(r.most, fabs(s->points[i].at[k][1]));
        }
    if (!(r.low <= r.high)) r.low = r.high = 0;
    if (!(r.low < r.high)) { /* one value: in the middle */
        const double around = r.low != 0 ? fabs(r.low) : 1;
        r.low -= around;
        r.high += around;
    }
    if (!(r.most > 0)) r.most = 1;
    return r;
}

/* Returns the place of x: 0 to 1. */
static double across(const struct ranges *r, double x) {
    return (EDGE + (SVG_WIDTH - 2 * EDGE) * (x - r->low) / (r->high - r->low)) / SVG_WIDTH;
}

static double down(const struct ranges *r, double y) {
    return HEIGHT / 2.0 - (HEIGHT / 2.0 - EDGE) * y / r->most;
}

/* Writes the horizontal rules or, with `labels`, their numbers. */
static void levels(FILE *out, const struct ranges *r, int labels) {
    const double step = svg_nice_step(2 * r->most, 6);
    char text[32];
    for (double i = 0 - floor(r->most / step); i * step <= r->most; i++) {
        svg_number(i * step, 0, text);
        if (labels) svg_side_label(out, down(r, i * step), text);
        else fprintf(out, "<path class=\"rule\" d=\"M0 %.1fH%d\"/>", down(r, i * step), SVG_WIDTH);
    }
}

static void columns(FILE *out, const struct ranges *r, int labels) {
    const double step = svg_nice_step(r->high - r->low, SVG_LABELS);
    char text[32]; /* + 0.0: of a negative zero, "-0" would be printed */
    for (double i = ceil(r->low / step) + 0.0; i * step <= r->high; i++) {
        svg_number(i * step, 0, text);
        if (labels) svg_under_label(out, across(r, i * step), text);
        else fprintf(out, "<path class=\"rule\" d=\"M%.1f 0V%d\"/>", SVG_WIDTH * across(r, i * step), HEIGHT);
    }
}

/* Draws points as lines without length, whose round ends are the same size at every width of the page. */
static void draw(FILE *out, const struct ranges *r, const struct svg_points *p) {
    if (!p->n) return;
    fprintf(out, "<path class=\"dots l%s\" d=\"", p->color);
    for (size_t i = 0; i < p->n; i++) fprintf(out, "M%.1f %.1fh0", SVG_WIDTH * across(r, p->at[i][0]), down(r, p->at[i][1]));
    fputs("\"/>\n", out);
}

void svg_scatter(FILE *out, const struct svg_scatter *s) {
    const struct ranges r = ranges_of(s);
    svg_begin(out, HEIGHT);
    levels(out, &r, 1);
    svg_area(out, HEIGHT, SVG_WIDTH, HEIGHT, s->label);
    levels(out, &r, 0);
    columns(out, &r, 0);
    fprintf(out, "<rect class=\"frame\" width=\"%d\" height=\"%d\"/>\n", SVG_WIDTH, HEIGHT);
    for (size_t i = 0; i < s->n_points; i++) draw(out, &r, &s->points[i]);
    svg_under(out);
    columns(out, &r, 1);
    svg_end(out, s->x_word);
    svg_legend_begin(out);
    for (size_t i = 0; i < s->n_points; i++) {
        char class[16];
        snprintf(class, sizeof class, "f%s", s->points[i].color);
        if (s->points[i].n) svg_legend_item(out, class, s->points[i].name);
    }
    svg_legend_end(out);
}
