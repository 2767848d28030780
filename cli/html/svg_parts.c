/* svg_parts.c: what pictures as inline SVG have in common. Not for any picture (svg.c, svg_scatter.c). */
#include "cli/html/svg_parts.h"

#include "cli/html/page.h"

#include <math.h>

double svg_nice_step(double range, double most) {
    double step = range > 0 ? pow(10, floor(log10(range / most))) : 1;
    for (int i = 0; range / step > most; i++) step *= i % 3 == 1 ? 2.5 : 2;
    return step;
}

void svg_number(double v, int bytes, char text[32]) {
    if (bytes) cli_size_text((uint64_t)v, text);
    else if (isfinite(v)) snprintf(text, 32, "%.3g", v);
    else cli_double_text(v, text);
}

void svg_begin(FILE *out, double height) {
    fprintf(out, "<div class=\"grid\"><svg class=\"side\" height=\"%.0f\" aria-hidden=\"true\">", height);
}

void svg_side_label(FILE *out, double y, const char *text) {
    fprintf(out, "<text x=\"100%%\" y=\"%.1f\" text-anchor=\"end\">%s</text>", y + 4, text);
}

void svg_area(FILE *out, double height, double width, double units, const char *label) {
    fprintf(out,
            "</svg>\n<svg class=\"area\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" preserveAspectRatio=\"none\" role=\"img\" "
            "aria-label=\"",
            height, width, units);
    html_text(out, label);
    fputs("\">\n", out);
}

void svg_under(FILE *out) {
    fputs("</svg>\n<svg class=\"under\" height=\"34\" aria-hidden=\"true\">", out);
}

void svg_under_label(FILE *out, double place, const char *text) {
    const char *anchor = place < 0.02 ? "start" : place > 0.97 ? "end" : "middle";
    fprintf(out, "<text x=\"%.2f%%\" y=\"14\" text-anchor=\"%s\">%s</text>", 100 * place, anchor, text);
}

void svg_whole_labels(FILE *out, double first, double range) {
    const double step = fmax(1, svg_nice_step(range, SVG_LABELS - 1));
    char text[32];
    for (double x = ceil(first / step) * step; x < first + range; x += step) {
        snprintf(text, sizeof text, "%.0f", x);
        svg_under_label(out, (x + 0.5 - first) / range, text);
    }
}

void svg_end(FILE *out, const char *x_word) {
    fputs("<text x=\"50%\" y=\"30\" text-anchor=\"middle\">", out);
    html_text(out, x_word);
    fputs("</text></svg></div>\n", out);
}

void svg_legend_begin(FILE *out) {
    fputs("<div class=\"legend\">", out);
}

void svg_legend_item(FILE *out, const char *class, const char *label) {
    fprintf(out,
            "<span><svg width=\"14\" height=\"12\" aria-hidden=\"true\"><rect class=\"%s\" width=\"14\" height=\"12\"/></svg>",
            class);
    html_text(out, label);
    fputs("</span>", out);
}

void svg_legend_end(FILE *out) {
    fputs("</div>\n", out);
}
