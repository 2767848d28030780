/* diff_probabilities.c: the picture of the attention of single queries in the report of kvc-diff. Not for measures over all queries
 * (diff_pictures.c, diff_report.c). */
#include "cli/html/diff_report.h"

#include "cli/html/page.h"
#include "cli/html/svg_mirror.h"
#include "codecs/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* What is drawn of each point: probabilities of A and of B, and how much A has more than B, and B than A. */
enum series { A, B, MORE_A, MORE_B, SERIES };
enum { MAX_POINTS = 300, DECADES = 4 };

/* Positions of the rows that a query sees, divided into points of equally many. */
struct axis {
    double first, step;
    size_t n;
};

static struct axis axis_of(const struct kvc_attention_weights *w) {
    const double range = (double)((uint64_t)w->at[w->n - 1] - (uint64_t)w->at[0]) + 1;
    struct axis x = {.first = (double)w->at[0], .step = ceil(range / MAX_POINTS)};
    x.n = (size_t)ceil(range / x.step);
    return x;
}

/* Sums the probabilities and their differences in each point; y[SERIES][x->n]. */
static void sum_points(const struct axis *x, const struct kvc_attention_weights *w, double *y) {
    for (size_t i = 0; i < SERIES * x->n; i++) y[i] = 0;
    for (uint64_t i = 0; i < w->n; i++) {
        size_t point = (size_t)((double)((uint64_t)w->at[i] - (uint64_t)w->at[0]) / x->step);
        if (point >= x->n) point = x->n - 1;
        const double a = (double)w->p[0][i], b = (double)w->p[1][i];
        y[A * x->n + point] += a;
        y[B * x->n + point] += b;
        y[MORE_A * x->n + point] += fmax(0, a - b);
        y[MORE_B * x->n + point] += fmax(0, b - a);
    }
}

static void picture(FILE *out, const struct axis *x, const double *y, double high, const char *label, const char *const name[2],
                    enum series up, enum series down) {
    const struct svg_series series[2] = {{name[0], up == A ? "k" : "v", y + up * x->n},
                                         {name[1], up == A ? "v" : "k", y + down * x->n}};
    svg_mirror(out, &(struct svg_mirror){.label = label,
                                         .x_word = "position",
                                         .n = x->n,
                                         .up = &series[0],
                                         .down = &series[1],
                                         .low = high * pow(10, -DECADES),
                                         .high = high,
                                         .x_first = x->first,
                                         .x_step = x->step});
}

/* Draws the probabilities of a query, and below them what differs; `which` says which query it is. */
static int draw(FILE *out, const struct kvc_attended_layer *l, const struct kvc_attention_weights *w, const char *which,
                struct kvc_error *e) {
    static const char *const names[2] = {"A, upwards", "B, downwards"}, *const differences[2] = {"more in B, upwards",
                                                                                                 "more in A, downwards"};
    const struct axis x = axis_of(w);
    double *y = kvc_alloc(SERIES * x.n, sizeof *y), high = 0, apart = 0;
    if (!y) return kvc_fail_memory(e, "a curve");
    sum_points(&x, w, y);
    for (size_t i = 0; i < 2 * x.n; i++) {
        high = fmax(high, y[i]);
        apart = fmax(apart, y[MORE_A * x.n + i]);
    }
    fputs("<figure><figcaption>", out);
    html_say(out, "Layer %" PRIu32 ", query head %" PRIu64 ", %s (position %" PRId64 "): probability of each position",
             l->k->layer, w->head, which, w->position);
    if (x.step > 1) html_say(out, ", summed over %.0f positions a bar", x.step);
    html_say(out, " (logarithmic); KL divergence %.3g nats", w->kl);
    fputs("</figcaption>\n", out);
    picture(out, &x, y, high, "Probabilities of one query by position, in A and in B", names, A, B);
    fputs("</figure>\n", out);
    if (apart > 0) {
        fputs("<figure><figcaption>The difference of both</figcaption>\n", out);
        picture(out, &x, y, high, "Differences of the probabilities of one query by position", differences, MORE_B, MORE_A);
        fputs("</figure>\n", out);
    }
    free(y);
    return 0;
}

static void explain(FILE *out, const struct kvc_attended_layer *l, uint64_t head) {
    fputs("<p class=\"note\">", out);
    html_say(out,
             "Of layer %" PRIu32 ", KV head %" PRIu64
             ", whose attention drifts most. Probabilities are the softmax of q\xc2\xb7k / "
             "\xe2\x88\x9a"
             "dim over the rows that both files have and the query sees, with K of A and with K of B.",
             l->k->layer, head);
    fputs("</p>\n", out);
}

int diff_report_probabilities(struct diff_comparison *d, FILE *out, struct kvc_error *e) {
    struct kvc_attention_weights last = {.n = 0}, worst = {.n = 0};
    uint64_t head = 0;
    const struct kvc_attended_layer *l = kvc_attended_worst(&d->attended, &head);
    if (!l || d->reached != DIFF_AT_END) return 0;
    int status = kvc_attended_find(&d->attended, l, head, 1, &last, e) || kvc_attended_find(&d->attended, l, head, 0, &worst, e);
    if (!status && last.n) {
        const int same = last.position == worst.position && last.head == worst.head;
        html_section(out, "probabilities", "Attention of single queries");
        explain(out, l, head);
        status = draw(out, l, &last, same ? "the last query, and the one that drifts most" : "the last query", e) ||
                 (!same && draw(out, l, &worst, "the query that drifts most", e));
    }
    kvc_attention_weights_free(&last);
    kvc_attention_weights_free(&worst);
    return status ? -1 : 0;
}
