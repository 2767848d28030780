/* svg.c: heatmaps, lines and bars as inline SVG. Not for pages (page.c). */
#include "cli/html/svg.h"

#include "cli/html/page.h"
#include "cli/html/svg_parts.h"
#include "codecs/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COLORS = 16, MAX_ROWS = 128, MAX_COLUMNS = 256, MAX_LINKS = 4096, HEIGHT = 170 };

/* --- scales --- */

static int is_shown(double v) {
    return isfinite(v) && v > 0;
}

struct svg_scale svg_scale_of(const double *v, size_t n) {
    struct svg_scale s = {.low = 0};
    for (size_t i = 0; i < n; i++) {
        if (!is_shown(v[i])) continue;
        if (s.low <= 0 || v[i] < s.low) s.low = v[i];
        if (v[i] > s.high) s.high = v[i];
    }
    s.log = s.high > 100 * s.low;
    return s;
}

struct svg_scale svg_scale_join(struct svg_scale a, struct svg_scale b) {
    struct svg_scale s = a;
    if (b.high > s.high) s.high = b.high;
    if (b.low > 0 && (s.low <= 0 || b.low < s.low)) s.low = b.low;
    s.log = s.high > 100 * s.low;
    return s;
}

/* Returns the lower end of a logarithmic scale: at most six decades below the upper. */
static double log_low(const struct svg_scale *s) {
    return s->low < s->high * 1e-6 ? s->high * 1e-6 : s->low;
}

/* Returns the place of a value on a scale: 0 to 1. */
static double fraction(const struct svg_scale *s, double v) {
    if (v <= 0 || s->high <= 0) return 0;
    if (v >= s->high) return 1;
    if (!s->log) return v / s->high;
    const double low = log_low(s);
    return v <= low ? 0 : log(v / low) / log(s->high / low);
}

/* Returns the value at a place of a scale. */
static double value_at(const struct svg_scale *s, double place) {
    return s->log ? log_low(s) * pow(s->high / log_low(s), place) : place * s->high;
}

/* --- colors --- */

static void class_name(FILE *out, const struct svg_scale *s, double v) {
    if (isnan(v)) fputs("nan", out);
    else if (v < 0) fputs("none", out);
    else fprintf(out, "h%d", (int)(fraction(s, v) * (COLORS - 1) + 0.5));
}

/* --- heatmaps --- */

/* A heatmap whose rows and columns are joined, `join` at a time. */
struct cells {
    const struct svg_heatmap *h;
    uint32_t rows, columns, join_rows, join_columns;
    double *value;
};

static double larger(double a, double b) {
    return isnan(a) || isnan(b) ? (double)NAN : a > b ? a : b;
}

static int join_cells(struct cells *c, const struct svg_heatmap *h) {
    c->h = h;
    c->join_rows = h->rows / MAX_ROWS + (h->rows % MAX_ROWS != 0);
    c->join_columns = h->columns / MAX_COLUMNS + (h->columns % MAX_COLUMNS != 0);
    c->rows = (h->rows + c->join_rows - 1) / c->join_rows;
    c->columns = (h->columns + c->join_columns - 1) / c->join_columns;
    c->value = kvc_alloc((uint64_t)c->rows * c->columns, sizeof *c->value);
    if (!c->value) return -1;
    for (uint32_t i = 0; i < c->rows * c->columns; i++) c->value[i] = SVG_ABSENT;
    for (uint32_t y = 0; y < h->rows; y++)
        for (uint32_t x = 0; x < h->columns; x++) {
            double *to = &c->value[y / c->join_rows * c->columns + x / c->join_columns];
            *to = larger(*to, h->value[(size_t)y * h->columns + x]);
        }
    return 0;
}

static uint32_t number_of(const uint32_t *number, uint32_t x) {
    return number ? number[x] : x;
}

static void cell_title(FILE *out, const struct cells *c, uint32_t y, uint32_t x, double v) {
    const struct svg_heatmap *h = c->h;
    char text[32];
    svg_number(v, 0, text);
    fprintf(out, "<title>%s %" PRIu32, h->column_word, number_of(h->column_number, x * c->join_columns));
    if (c->join_columns > 1) fputs(" and next", out);
    fprintf(out, ", %s %" PRIu32, h->row_word, number_of(h->row_number, y * c->join_rows));
    if (c->join_rows > 1) fputs(" and next", out);
    fprintf(out, ": %s</title>", v < 0 ? "none" : text);
}

/* Writes each cell by itself, with a title and a link. */
static void linked_cells(FILE *out, const struct cells *c) {
    for (uint32_t y = 0; y < c->rows; y++)
        for (uint32_t x = 0; x < c->columns; x++) {
            const double v = c->value[y * c->columns + x];
            const uint32_t anchor = c->h->anchor[x * c->join_columns];
            if (v < 0) continue;
            if (anchor != SVG_NOTHING) fprintf(out, "<a href=\"#t%" PRIu32 "\">", anchor);
            fputs("<rect class=\"", out);
            class_name(out, &c->h->scale, v);
            fprintf(out, "\" x=\"%" PRIu32 "\" y=\"%" PRIu32 "\" width=\"1\" height=\"1\">", x, y);
            cell_title(out, c, y, x, v);
            fputs(anchor == SVG_NOTHING ? "</rect>\n" : "</rect></a>\n", out);
        }
}

static int color_of(const struct svg_scale *s, double v) {
    return isnan(v) ? COLORS : v < 0 ? -1 : (int)(fraction(s, v) * (COLORS - 1) + 0.5);
}

/* Writes the cells of each color as one path, which is small. */
static void plain_cells(FILE *out, const struct cells *c) {
    for (int color = 0; color <= COLORS; color++) {
        int any = 0;
        for (uint32_t y = 0; y < c->rows; y++)
            for (uint32_t x = 0, n; x < c->columns; x += n) {
                const double *v = &c->value[y * c->columns + x];
                for (n = 1; x + n < c->columns && color_of(&c->h->scale, v[n]) == color_of(&c->h->scale, *v);) n++;
                if (color_of(&c->h->scale, *v) != color) continue;
                if (!any++) fprintf(out, color < COLORS ? "<path class=\"h%d\" d=\"" : "<path class=\"nan\" d=\"", color);
                fprintf(out, "M%" PRIu32 " %" PRIu32 "h%" PRIu32 "v1h-%" PRIu32 "z", x, y, n, n);
            }
        if (any) fputs("\"/>\n", out);
    }
}

static double row_height(uint32_t rows) {
    return rows <= 3 ? 26 : rows <= 6 ? 20 : rows <= 16 ? 15 : rows <= 32 ? 10 : 320.0 / rows;
}

int svg_heatmap(FILE *out, const struct svg_heatmap *h) {
    struct cells c;
    if (!h->rows || !h->columns) return 0;
    if (join_cells(&c, h)) return -1;
    const double row = row_height(c.rows), height = row * c.rows;
    const uint32_t row_step = (uint32_t)(svg_nice_step(c.rows, height / 15) + 0.5);
    const uint32_t column_step = (uint32_t)ceil(svg_nice_step(c.columns, SVG_LABELS));
    char text[32];
    svg_begin(out, height);
    for (uint32_t y = 0; y < c.rows; y += row_step ? row_step : 1) {
        snprintf(text, sizeof text, "%s%s%" PRIu32, y ? "" : h->row_word, y ? "" : " ",
                 number_of(h->row_number, y * c.join_rows));
        svg_side_label(out, (y + 0.5) * row, text);
    }
    svg_area(out, height, c.columns, c.rows, h->label);
    fprintf(out, "<rect class=\"none\" width=\"%" PRIu32 "\" height=\"%" PRIu32 "\"/>\n", c.columns, c.rows);
    if (h->anchor && (uint64_t)c.rows * c.columns <= MAX_LINKS) linked_cells(out, &c);
    else plain_cells(out, &c);
    if (h->mark_row != SVG_NOTHING)
        for (int ring = 0; ring < 2; ring++)
            fprintf(out, "<rect class=\"%s\" x=\"%" PRIu32 "\" y=\"%" PRIu32 "\" width=\"1\" height=\"1\"/>\n",
                    ring ? "ring" : "halo", h->mark_column / c.join_columns, h->mark_row / c.join_rows);
    svg_under(out);
    for (uint32_t x = 0; x < c.columns; x += column_step) {
        snprintf(text, sizeof text, "%" PRIu32, number_of(h->column_number, x * c.join_columns));
        svg_under_label(out, (x + 0.5) / c.columns, text);
    }
    svg_end(out, h->column_word);
    free(c.value);
    return 0;
}

void svg_heat_legend_begin(FILE *out, struct svg_scale scale, const char *unit) {
    char text[32];
    svg_legend_begin(out);
    if (scale.high <= 0) { /* one color */
        svg_legend_item(out, "h0", "0");
        return;
    }
    fputs("<span class=\"scale\">", out);
    for (int i = 0; i <= 4; i++) { /* a swatch between two numbers has the colors between them */
        svg_number(value_at(&scale, i / 4.0), 0, text);
        fprintf(out, "%s ", text);
        if (i == 4) break;
        fputs("<svg width=\"32\" height=\"12\" aria-hidden=\"true\">", out);
        for (int k = 0; k < COLORS / 4; k++)
            fprintf(out, "<rect class=\"h%d\" x=\"%d\" width=\"8\" height=\"12\"/>", COLORS / 4 * i + k, 8 * k);
        fputs("</svg>", out);
    }
    fputs("</span><span>", out);
    html_text(out, unit);
    if (scale.log) fputs(", logarithmic", out);
    fputs("</span>", out);
}

/* --- lines --- */

static double y_of(const struct svg_scale *s, double v) {
    return HEIGHT * (1 - fraction(s, v) * 0.96);
}

/* Writes rules with their labels. `rules` is 0 for the labels, 1 for the rules. */
static void rules_at(FILE *out, const struct svg_scale *s, int bytes, int rules) {
    char text[32];
    if (s->high <= 0) return;
    if (s->log) {
        const double first = ceil(log10(log_low(s))), last = floor(log10(s->high));
        const double step = last - first > 5 ? 2 : 1;
        for (double decade = first; decade <= last; decade += step) {
            const double y = y_of(s, pow(10, decade));
            snprintf(text, sizeof text, "1e%.0f", decade);
            if (rules) fprintf(out, "<path class=\"rule\" d=\"M0 %.1fH%d\"/>", y, SVG_WIDTH);
            else svg_side_label(out, y, text);
        }
        return;
    }
    const double step = svg_nice_step(s->high, 5);
    for (int i = 0; i * step <= s->high * 1.001; i++) {
        svg_number(i * step, bytes, text);
        if (rules) fprintf(out, "<path class=\"rule\" d=\"M0 %.1fH%d\"/>", y_of(s, i * step), SVG_WIDTH);
        else svg_side_label(out, y_of(s, i * step), text);
    }
}

static void line(FILE *out, const struct svg_lines *l, const struct svg_series *s) {
    int drawn = 0;
    fprintf(out, "<path class=\"line l%s\" d=\"", s->color);
    for (size_t i = 0; i < l->n; i++) {
        if (!isfinite(s->y[i]) || s->y[i] < 0) {
            drawn = 0;
            continue;
        }
        const double y = y_of(&l->scale, s->y[i]), width = (double)SVG_WIDTH / (double)l->n, x = (double)i * width;
        if (l->n <= 64) fprintf(out, "%s%.1f %.1fH%.1f", drawn ? "L" : "M", x, y, x + width); /* few points are steps */
        else fprintf(out, "%s%.1f %.1f", drawn ? "L" : "M", x + width / 2, y);
        drawn = 1;
    }
    fputs("\"/>\n", out);
}

static void mark(FILE *out, const struct svg_lines *l, const struct svg_mark *m) {
    const double from = m->from * SVG_WIDTH / (double)l->n, to = m->to * SVG_WIDTH / (double)l->n;
    if (to > from)
        fprintf(out, "<rect class=\"%s\" x=\"%.2f\" y=\"0\" width=\"%.2f\" height=\"%d\"/>\n", m->class, from, to - from, HEIGHT);
    else fprintf(out, "<path class=\"%s\" d=\"M%.2f 0V%d\"/>\n", m->class, from, HEIGHT);
}

/* Writes the numbers below lines. */
static void x_labels(FILE *out, const struct svg_lines *l) {
    char text[32];
    const double first = l->x_first, range = l->x_step * (double)l->n;
    if (l->log2) {
        const double decade = log10(2), step = ceil(svg_nice_step(range * decade, SVG_LABELS));
        for (double d = ceil(first * decade / step) * step; d <= (first + range) * decade; d += step) {
            snprintf(text, sizeof text, "1e%.0f", d);
            svg_under_label(out, (d / decade - first) / range, text);
        }
        return;
    }
    svg_whole_labels(out, first, range);
}

/* Writes the legend item of a series. */
static void series_item(FILE *out, const struct svg_series *s) {
    char class[8];
    snprintf(class, sizeof class, "f%s", s->color);
    svg_legend_item(out, class, s->name);
}

void svg_lines(FILE *out, const struct svg_lines *l) {
    if (!l->n) return;
    svg_begin(out, HEIGHT);
    rules_at(out, &l->scale, 0, 0);
    svg_area(out, HEIGHT, SVG_WIDTH, HEIGHT, l->label);
    for (size_t i = 0; i < l->n_marks; i++) mark(out, l, &l->mark[i]);
    rules_at(out, &l->scale, 0, 1);
    fprintf(out, "<rect class=\"frame\" width=\"%d\" height=\"%d\"/>\n", SVG_WIDTH, HEIGHT);
    for (size_t i = 0; i < l->n_series; i++) line(out, l, &l->series[i]);
    svg_under(out);
    x_labels(out, l);
    svg_end(out, l->x_word);
    svg_legend_begin(out);
    for (size_t i = 0; i < l->n_series; i++) series_item(out, &l->series[i]);
    for (size_t i = 0; i < l->n_marks; i++) {
        if (!l->mark[i].label) continue;
        if (l->mark[i].to > l->mark[i].from) {
            svg_legend_item(out, l->mark[i].class, l->mark[i].label);
            continue;
        }
        fprintf(out, "<span><svg width=\"14\" height=\"12\" aria-hidden=\"true\"><path class=\"%s\" d=\"M7 0V12\"/></svg>",
                l->mark[i].class);
        html_text(out, l->mark[i].label);
        fputs("</span>", out);
    }
    svg_legend_end(out);
}

/* --- bars --- */

static double value_of(const struct svg_bars *b, size_t series, uint32_t x) {
    const double v = b->series[series].y[x];
    return isfinite(v) && v > 0 ? v : 0;
}

static struct svg_scale bar_scale(const struct svg_bars *b) {
    struct svg_scale s = {.high = 0};
    for (uint32_t x = 0; x < b->columns; x++) {
        double sum = 0;
        for (size_t i = 0; i < b->n_series; i++) {
            sum = b->stacked ? sum + value_of(b, i, x) : value_of(b, i, x);
            if (sum > s.high) s.high = sum;
        }
    }
    return s;
}

static void bar_title(FILE *out, const struct svg_bars *b, uint32_t x) {
    char text[32];
    fprintf(out, "<title>%s %" PRIu32, b->column_word, number_of(b->column_number, x));
    for (size_t i = 0; i < b->n_series; i++) {
        svg_number(value_of(b, i, x), b->bytes, text);
        fprintf(out, "%s%s %s", i ? ", " : ": ", b->series[i].name, text);
    }
    fputs("</title>", out);
}

static void column(FILE *out, const struct svg_bars *b, const struct svg_scale *s, uint32_t x) {
    const double width = (double)SVG_WIDTH / b->columns * 0.84, left = ((double)x + 0.08) * SVG_WIDTH / b->columns;
    const double one = b->stacked ? width : width / (double)b->n_series;
    double sum = 0;
    fputs("<g>", out);
    bar_title(out, b, x);
    for (size_t i = 0; i < b->n_series; i++) {
        const double v = value_of(b, i, x), from = b->stacked ? sum : 0, bottom = y_of(s, from), top = y_of(s, from + v);
        sum += v;
        if (bottom > top)
            fprintf(out, "<rect class=\"f%s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"/>", b->series[i].color,
                    left + (b->stacked ? 0 : (double)i * one), top, one, bottom - top);
    }
    fputs("</g>\n", out);
}

void svg_bars(FILE *out, const struct svg_bars *b) {
    const struct svg_scale s = bar_scale(b);
    const uint32_t step = (uint32_t)ceil(svg_nice_step(b->columns, SVG_LABELS));
    char text[32];
    if (!b->columns) return;
    svg_begin(out, HEIGHT);
    rules_at(out, &s, b->bytes, 0);
    svg_area(out, HEIGHT, SVG_WIDTH, HEIGHT, b->label);
    rules_at(out, &s, b->bytes, 1);
    for (uint32_t x = 0; x < b->columns; x++) column(out, b, &s, x);
    svg_under(out);
    for (uint32_t x = 0; x < b->columns; x += step) {
        snprintf(text, sizeof text, "%" PRIu32, number_of(b->column_number, x));
        svg_under_label(out, (x + 0.5) / b->columns, text);
    }
    svg_end(out, b->column_word);
    svg_legend_begin(out);
    for (size_t i = 0; i < b->n_series; i++) series_item(out, &b->series[i]);
    svg_legend_end(out);
}
