/* curve_svg.c: draws points of ratio against error as an SVG picture, which needs nothing beside
 * itself. Not for text (curve.c). */
#include "cli/curve.h"
#include "cli/cli.h"


#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEFT = 70,
    TOP = 40,
    RIGHT = 160,
    BOTTOM = 60,
    WIDTH = 520,
    HEIGHT = 360,
    ZERO = 30,
    LINE = 15,
    MAX_NAME = 56
};

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
    double x[2] = {HUGE_VAL, 0}, y[2] = {1, 2};
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
    struct axes a = {pow(10, floor(log10(x[0]))), pow(10, ceil(log10(x[1]))),
                     pow(2, floor(log2(y[0]))), pow(2, ceil(log2(y[1])))};
    if (!(a.x1 > a.x0)) a.x1 = 10 * a.x0;
    return a;
}

static void draw_axes(const struct curve *c, const struct axes *a, FILE *out) {
    const double bottom = TOP + HEIGHT, right = LEFT + WIDTH;
    for (double x = a->x0; x < a->x1 * 1.01; x *= 10)
        fprintf(out,
                "<path d='M%.1f %d V%.1f' stroke='#ddd'/><text x='%.1f' y='%.1f' "
                "text-anchor='middle'>%g</text>\n",
                across(a, x), TOP, bottom, across(a, x), bottom + 18, x);
    for (double y = a->y0; y < a->y1 * 1.01; y *= 2)
        fprintf(out,
                "<path d='M%d %.1f H%.1f' stroke='#ddd'/><text x='%d' y='%.1f' "
                "text-anchor='end'>%g</text>\n",
                LEFT, down(a, y), right, LEFT - 8, down(a, y) + 4, y);
    fprintf(out, "<path d='M%d %d V%.1f H%.1f' fill='none' stroke='#444'/>\n", LEFT, TOP, bottom,
            right);
    fprintf(out, "<text x='%d' y='%.1f' text-anchor='middle'>0</text>\n", LEFT, bottom + 18);
    fprintf(out, "<text x='%d' y='%.1f' text-anchor='middle'>%s</text>\n", LEFT + WIDTH / 2,
            bottom + 42,
            curve_is_kld(c)
                ? "estimated KL divergence (nats per token), the larger of continuation and recall"
                : "relative error of values, the larger of K and V");
    fprintf(out,
            "<text x='18' y='%d' text-anchor='middle' transform='rotate(-90 18 %d)'>ratio</text>\n",
            TOP + HEIGHT / 2, TOP + HEIGHT / 2);
}

/* --- points and their labels --- */

struct box {
    double left, top, right, bottom;
};

/* A point, and the names of all recipes that are drawn at its place. */
struct label {
    double x, y, radius;
    int chosen, merged; /* merged: an earlier label has its name */
    char text[256];
    struct box box;
};

static struct box box_of_point(const struct label *l) {
    const double r = l->radius + 1;
    return (struct box){l->x - r, l->y - r, l->x + r, l->y + r};
}

static int meet(const struct box *a, const struct box *b) {
    return a->left < b->right && b->left < a->right && a->top < b->bottom && b->top < a->bottom;
}

/* Returns the box of a label beside, above or below its point: `side` -1 left, 0 middle, 1 right;
 * `step` in lines. */
static struct box box_at(const struct label *l, int side, double step) {
    const double width = (double)strlen(l->text) * (l->chosen ? 7.6 : 6.6), gap = l->radius + 4,
                 y = l->y + step * LINE;
    const double left = side > 0 ? l->x + gap : side < 0 ? l->x - gap - width : l->x - width / 2;
    return (struct box){left, y - LINE / 2.0, left + width, y + LINE / 2.0};
}

/* Returns how many points and earlier labels a box covers; a box that leaves the picture counts as
 * many. */
static size_t covered(const struct label *l, size_t n, size_t at, const struct box *box) {
    size_t count = box->left < LEFT || box->right > LEFT + WIDTH + RIGHT || box->top < TOP ||
                           box->bottom > TOP + HEIGHT
                       ? n
                       : 0;
    for (size_t i = 0; i < n; i++) {
        const struct box point = box_of_point(&l[i]);
        count += i != at && meet(box, &point);
        count += i < at && !l[i].merged && meet(box, &l[i].box);
    }
    return count;
}

/* Finds the place of a label that covers the fewest others, of equal ones the first of the list. */
static void place(struct label *l, size_t n, size_t at) {
    static const struct {
        int side;
        double step;
    } places[] = {{1, 0},    {-1, 0},  {1, -0.8}, {1, 0.8}, {-1, -0.8}, {-1, 0.8},
                  {0, -1.2}, {0, 1.2}, {1, -1.6}, {1, 1.6}, {-1, -1.6}, {-1, 1.6}};
    size_t fewest = SIZE_MAX;
    for (size_t i = 0; i < sizeof places / sizeof places[0] && fewest; i++) {
        const struct box box = box_at(&l[at], places[i].side, places[i].step);
        const size_t count = covered(l, n, at, &box);
        if (count >= fewest) continue;
        fewest = count;
        l[at].box = box;
    }
}

/* Gives the name of a point to the label of an earlier point at the same place, if there is one. */
static void merge(struct label *l, size_t at) {
    for (size_t i = 0; i < at && !l[at].merged; i++) {
        const size_t used = strlen(l[i].text), more = strlen(l[at].text);
        if (l[i].merged || fabs(l[i].x - l[at].x) > 2 || fabs(l[i].y - l[at].y) > 2 ||
            used + 2 + more >= sizeof l[i].text)
            continue;
        memcpy(l[i].text + used, ", ", 2);
        memcpy(l[i].text + used + 2, l[at].text, more + 1);
        l[i].chosen |= l[at].chosen;
        l[i].radius = fmax(l[i].radius, l[at].radius);
        l[at].merged = 1;
    }
}

/* Fills labels of the points that have a place on the axes. Returns their number. */
static size_t make_labels(const struct curve *c, const struct axes *a, struct label *l) {
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++) {
        const struct curve_point *p = &c->point[i];
        const double x = curve_x(c, p);
        if (x < 0) continue;
        l[n] = (struct label){.x = across(a, x),
                              .y = down(a, p->ratio),
                              .radius = p->chosen ? 7 : 4,
                              .chosen = p->chosen};
        snprintf(l[n].text, sizeof l[n].text, "%s%s", p->name, p->chosen ? " (chosen)" : "");
        n++;
    }
    for (size_t i = 0; i < n; i++) merge(l, i);
    for (size_t i = 0; i < n; i++)
        if (!l[i].merged) place(l, n, i);
    return n;
}

static void draw_title(const struct curve *c, FILE *out) {
    const size_t n = strlen(c->file);
    fprintf(out, "<text x='%d' y='22' font-size='14'>Ratio and error of recipes: %s", LEFT,
            n > MAX_NAME ? "..." : "");
    print_text(out, n > MAX_NAME ? c->file + n - MAX_NAME : c->file);
    fputs("</text>\n", out);
}

int curve_write_svg(const struct curve *c, FILE *out, struct kvc_error *e) {
    const struct axes a = axes_of(c);
    struct label *l = calloc(c->n + 1, sizeof *l);
    if (!l) return cli_no_memory(e, "a picture");
    fprintf(out,
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' font-family='sans-serif' "
            "font-size='12'>\n"
            "<rect width='100%%' height='100%%' fill='white'/>\n",
            LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM);
    draw_title(c, out);
    draw_axes(c, &a, out);
    const size_t n = make_labels(c, &a, l);
    for (size_t i = 0; i < n; i++)
        fprintf(out, "<circle cx='%.1f' cy='%.1f' r='%.0f' fill='%s'/>\n", l[i].x, l[i].y,
                l[i].radius, l[i].radius > 4 ? "#c22" : "#26a");
    for (size_t i = 0; i < n; i++) { /* the text is as wide as its box, or narrower */
        if (l[i].merged) continue;
        const int side = l[i].box.left >= l[i].x ? 1 : l[i].box.right <= l[i].x ? -1 : 0;
        fprintf(out, "<text x='%.1f' y='%.1f' text-anchor='%s'%s>",
                side > 0   ? l[i].box.left
                : side < 0 ? l[i].box.right
                           : l[i].x,
                l[i].box.bottom - 3,
                side > 0   ? "start"
                : side < 0 ? "end"
                           : "middle",
                l[i].chosen ? " font-weight='bold'" : "");
        print_text(out, l[i].text);
        fputs("</text>\n", out);
    }
    fputs("</svg>\n", out);
    free(l);
    return 0;
}
