/* curve.c: prints points of ratio against error as a table and as a plot of characters. Not for SVG
 * (curve_svg.c). */
#include "cli/curve.h"
#include "cli/cli.h"
#include "cli/text.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { WIDTH = 60, HEIGHT = 16 };

int curve_is_kld(const struct curve *c) {
    for (size_t i = 0; i < c->n; i++)
        if (c->point[i].kld[0] > 0) return 1;
    return 0;
}

double curve_x(const struct curve *c, const struct curve_point *p) {
    if (p->failed || !(p->ratio > 0)) return -1;
    if (p->lossless) return 0;
    const double x = curve_is_kld(c) ? fmax(p->kld[0], p->kld[1]) : fmax(p->error[0], p->error[1]);
    return x > 0 ? x : curve_is_kld(c) ? -1 : 0;
}

/* Returns the letter of point i in table and plot; that of the chosen point is a capital. */
static char letter(const struct curve *c, size_t i) {
    return (char)((c->point[i].chosen ? 'A' : 'a') + (int)(i % 26));
}

static void number(FILE *out, double v, int known) {
    if (known) fprintf(out, " %9.3g", v);
    else fprintf(out, " %9s", "-");
}

void curve_print_table(const struct curve *c, FILE *out) {
    fprintf(out, "   %-28s %7s %9s %9s %9s %9s\n", "recipe", "ratio", "error K", "error V", "KLD",
            "recall");
    for (size_t i = 0; i < c->n; i++) {
        const struct curve_point *p = &c->point[i];
        char text[CLI_ERROR_TEXT];
        fprintf(out, "%c%c %-28s", letter(c, i), p->chosen ? '*' : ' ', p->name);
        if (p->failed) {
            fputs("       - ", out);
            cli_print_safe(out, cli_error_text(p->why, text, sizeof text));
        } else {
            fprintf(out, " %7.3f", p->ratio);
            for (int k = 0; k < 2; k++) number(out, p->error[k], 1);
            for (int k = 0; k < 2; k++) number(out, p->kld[k], p->kld[k] > 0);
        }
        fputc('\n', out);
    }
}

/* Returns the cell of v between two positive limits on a logarithmic axis of n cells. */
static unsigned cell_of(double v, double low, double high, unsigned n) {
    if (!(high > low) || !(v > low)) return 0;
    const double at = (n - 1) * (log(v / low) / log(high / low));
    return at > n - 1 ? n - 1 : (unsigned)(at + 0.5);
}

void curve_print_plot(const struct curve *c, FILE *out) {
    char cell[HEIGHT][WIDTH + 2];
    double x[2] = {HUGE_VAL, 0}, y[2] = {HUGE_VAL, 0};
    unsigned without = 0; /* recipes that have a ratio, but no place on the axis */
    memset(cell, ' ', sizeof cell);
    for (size_t i = 0; i < c->n; i++) {
        const double at = curve_x(c, &c->point[i]);
        without += at < 0 && !c->point[i].failed;
        if (at < 0) continue;
        y[0] = fmin(y[0], c->point[i].ratio);
        y[1] = fmax(y[1], c->point[i].ratio);
        if (!(at > 0)) continue;
        x[0] = fmin(x[0], at);
        x[1] = fmax(x[1], at);
    }
    if (!(y[1] > 0)) return;
    for (size_t i = c->n; i-- > 0;) { /* of points in one cell the first is seen */
        const double at = curve_x(c, &c->point[i]);
        if (at < 0) continue;
        /* column 0: no error */
        const unsigned column = at > 0 ? 2 + cell_of(at, x[0], x[1], WIDTH) : 0;
        cell[HEIGHT - 1 - cell_of(c->point[i].ratio, y[0], y[1], HEIGHT)][column] = letter(c, i);
    }
    fputs("\nratio\n", out);
    for (unsigned r = 0; r < HEIGHT; r++) {
        if (r % 5 == 0)
            fprintf(out, "%7.2f |",
                    y[0] * pow(y[1] / y[0], (double)(HEIGHT - 1 - r) / (HEIGHT - 1)));
        else fputs("        |", out);
        unsigned n = WIDTH + 2;
        while (n && cell[r][n - 1] == ' ') n--;
        fprintf(out, "%.*s\n", (int)n, cell[r]);
    }
    fputs("        +", out);
    for (unsigned i = 0; i < WIDTH + 2; i++) fputc('-', out);
    char low[16] = "", high[16] = "";
    if (x[1] > 0) {
        snprintf(low, sizeof low, "%.3g", x[0]);
        snprintf(high, sizeof high, "%.3g", x[1]);
    }
    fprintf(out, "\n         0 %-*s%s\n", WIDTH - (int)strlen(high), low, high);
    fprintf(out, "         %s\n",
            curve_is_kld(c) ? "estimated KLD, nats per token, the larger of continuation and recall"
                            : "error, relative, the larger of K and V");
    if (without)
        fprintf(out, "         without an estimated KLD, only in the table: %u recipes\n", without);
}
