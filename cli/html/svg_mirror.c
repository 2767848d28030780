/* svg_mirror.c: two series on one axis as inline SVG, one upwards and the other downwards. Not for other pictures (svg.c). */
#include "cli/html/svg_mirror.h"

#include "cli/html/svg_parts.h"

#include <math.h>

enum { HEIGHT = 180, MIDDLE = HEIGHT / 2 };

/* Returns the length of a bar. */
static double length_of(const struct svg_mirror *m, double v) {
    if (!(v > m->low)) return 0;
    return fmin(1, log(v / m->low) / log(m->high / m->low)) * MIDDLE * 0.96;
}

/* Writes rules of both sides or, with `labels`, their numbers. */
static void levels(FILE *out, const struct svg_mirror *m, int labels) {
    char text[32];
    for (double decade = ceil(log10(m->low)); decade <= floor(log10(m->high)); decade++) {
        const double at = length_of(m, pow(10, decade));
        snprintf(text, sizeof text, "1e%.0f", decade);
        for (int side = -1; side <= 1; side += 2) {
            if (labels && at > 10) svg_side_label(out, MIDDLE + side * at, text); /* those of both sides would overlap */
            else if (!labels) fprintf(out, "<path class=\"rule\" d=\"M0 %.1fH%d\"/>", MIDDLE + side * at, SVG_WIDTH);
        }
    }
}

/* Draws a series; `side` is -1 upwards, 1 downwards. */
static void draw(FILE *out, const struct svg_mirror *m, const struct svg_series *s, int side) {
    const double width = (double)SVG_WIDTH / (double)m->n;
    fprintf(out, "<path class=\"f%s\" d=\"", s->color);
    for (size_t i = 0; i < m->n; i++) {
        const double length = length_of(m, s->y[i]);
        if (length > 0) fprintf(out, "M%.1f %dv%.1fh%.1fV%dz", (double)i * width, MIDDLE, side * length, width, MIDDLE);
    }
    fputs("\"/>\n", out);
}

void svg_mirror(FILE *out, const struct svg_mirror *m) {
    const struct svg_series *series[2] = {m->up, m->down};
    if (!m->n || !(m->low > 0) || !(m->high > m->low)) return;
    svg_begin(out, HEIGHT);
    levels(out, m, 1);
    svg_area(out, HEIGHT, SVG_WIDTH, HEIGHT, m->label);
    levels(out, m, 0);
    fprintf(out, "<rect class=\"frame\" width=\"%d\" height=\"%d\"/>\n", SVG_WIDTH, HEIGHT);
    draw(out, m, m->up, -1);
    draw(out, m, m->down, 1);
    fprintf(out, "<path class=\"rule\" d=\"M0 %dH%d\"/>\n", MIDDLE, SVG_WIDTH);
    svg_under(out);
    svg_whole_labels(out, m->x_first, m->x_step * (double)m->n);
    svg_end(out, m->x_word);
    svg_legend_begin(out);
    for (int i = 0; i < 2; i++) {
        char class[8];
        snprintf(class, sizeof class, "f%s", series[i]->color);
        svg_legend_item(out, class, series[i]->name);
    }
    svg_legend_end(out);
}
