/* curve_svg.c: draws points of ratio against error as an SVG picture, which needs nothing beside itself. Not for text (curve.c). */
#include "cli/curve.h"

#include <math.h>

enum { LEFT = 70, TOP = 40, RIGHT = 160, BOTTOM = 60, WIDTH = 520, HEIGHT = 360, ZERO = 30 };

/* Limits of the axes: powers of ten for errors, of two for ratios. */
struct axes {
    double x0, x1, y0, y1;
};

static double across(const struct axes *a, double x) {
    if (!(x > 0)) return LEFT;
    return LEFT + ZERO + (WIDTH - ZERO) * (log(x / a->x0) / log(a->x1 / a->x0));
}

static double down(const struct axes *a, double y) {
    return TOP + HEIGHT * (1 - log(y / a->y0) / log(a->y1 / a->y0));
}

/* Prints text with the characters of XML escaped. Bytes that XML cannot have become '?'. */
static void print_text(FILE *out, const char *text) {
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '&') fputs("&amp;", out);
        else if (c == '<') fputs("&lt;", out);
        else if (c == '>') fputs("&gt;", out);
        else putc(c < 0x20 || c > 0x7e ? '?' : c, out);
    }
}

static struct axes axes_of(const struct curve *c) {
    double x[2] = {INFINITY, 0}, y[2] = {1, 2};
    for (size_t i = 0; i < c->n; i++) {
        const double at = curve_x(c, &c->point[i]);
        if (at < 0) continue;
        y[0] = fmin(y[0], c->point[i].ratio);
        y[1] = fmax(y[1], c->point[i].ratio);
        if (!(at > 0)) continue;
        x[0] = fmin(x[0], at);
        x[1] = fmax(x[1], at);
    }
    if (!(x[1] > 0)) x[0] = 0.001, x[1] = 0.1;
    struct axes a = {pow(10, floor(log10(x[0]))), pow(10, ceil(log10(x[1]))), pow(2, floor(log2(y[0]))),
                     pow(2, ceil(log2(y[1])))};
    if (!(a.x1 > a.x0)) a.x1 = 10 * a.x0;
    return a;
}

static void draw_axes(const struct curve *c, const struct axes *a, FILE *out) {
    const double bottom = TOP + HEIGHT, right = LEFT + WIDTH;
    for (double x = a->x0; x < a->x1 * 1.01; x *= 10)
        fprintf(out, "<path d='M%.1f %d V%.1f' stroke='#ddd'/><text x='%.1f' y='%.1f' text-anchor='middle'>%g</text>\n",
                across(a, x), TOP, bottom, across(a, x), bottom + 18, x);
    for (double y = a->y0; y < a->y1 * 1.01; y *= 2)
        fprintf(out, "<path d='M%d %.1f H%.1f' stroke='#ddd'/><text x='%d' y='%.1f' text-anchor='end'>%g</text>\n", LEFT,
                down(a, y), right, LEFT - 8, down(a, y) + 4, y);
    fprintf(out, "<path d='M%d %d V%.1f H%.1f' fill='none' stroke='#444'/>\n", LEFT, TOP, bottom, right);
    fprintf(out, "<text x='%d' y='%.1f' text-anchor='middle'>0</text>\n", LEFT, bottom + 18);
    fprintf(out, "<text x='%d' y='%.1f' text-anchor='middle'>%s</text>\n", LEFT + WIDTH / 2, bottom + 42,
            curve_is_kld(c) ? "estimated KL divergence (nats per token), the larger of continuation and recall"
                            : "relative error of values, the larger of K and V");
    fprintf(out, "<text x='18' y='%d' text-anchor='middle' transform='rotate(-90 18 %d)'>ratio</text>\n", TOP + HEIGHT / 2,
            TOP + HEIGHT / 2);
}

void curve_write_svg(const struct curve *c, FILE *out) {
    const struct axes a = axes_of(c);
    fprintf(out,
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' font-family='sans-serif' font-size='12'>\n"
            "<rect width='100%%' height='100%%' fill='white'/>\n<text x='%d' y='22' font-size='14'>Ratio and error of recipes: ",
            LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM, LEFT);
    print_text(out, c->file);
    fputs("</text>\n", out);
    draw_axes(c, &a, out);
    for (size_t i = 0; i < c->n; i++) {
        const struct curve_point *p = &c->point[i];
        const double x = curve_x(c, p);
        if (x < 0) continue;
        fprintf(out, "<circle cx='%.1f' cy='%.1f' r='%d' fill='%s'/><text x='%.1f' y='%.1f'%s>", across(&a, x),
                down(&a, p->ratio), p->chosen ? 7 : 4, p->chosen ? "#c22" : "#26a", across(&a, x) + 10, down(&a, p->ratio) + 4,
                p->chosen ? " font-weight='bold'" : "");
        print_text(out, p->name);
        fprintf(out, "%s</text>\n", p->chosen ? " (chosen)" : "");
    }
    fputs("</svg>\n", out);
}
