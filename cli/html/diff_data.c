/* diff_data.c: the data of the pictures of kvc-diff's report, beside those of --json. Not for
 * drawing (share/page.html), and not for text and tables (diff_report.c). */
#include "cli/diff/diff.h"

#include "cli/html/page.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_POINTS = 2000, MAX_PARTS = 4, MAX_PAIRS = 2000, MAX_WORST = 50 };

/* --- tensors --- */

static void side(struct cli_json *j, const struct diff_comparison *d,
                 const struct kvc_compared *pair, int s) {
    cli_json_open(j, NULL, '{');
    cli_json_u64(j, "window", pair->window[s]);
    cli_json_text(j, "pipeline", d->file[s].tensor[pair->tensor[s]].more.pipeline);
    cli_json_close(j);
}

/* Writes the compared tensors in the order of their table: their names, and the errors of their
 * heads. */
static void tensors(struct cli_json *j, const struct diff_comparison *d) {
    const struct diff_collected *c = d->collected;
    const struct diff_worst worst = diff_collect_worst(c);
    char label[128];
    cli_json_open(j, "tensors", '[');
    for (size_t i = 0; i < c->n_tensors; i++) {
        const struct diff_collected_tensor *t = &c->tensor[i];
        cli_json_open(j, NULL, '{');
        kvc_compared_label(t->pair, t->pair, label, sizeof label);
        cli_json_text(j, "label", label);
        kvc_compared_part(t->pair, label, sizeof label);
        cli_json_text(j, "part", label);
        cli_json_u64(j, "layer", t->pair->layer);
        cli_json_text(j, "role", t->pair->role);
        cli_json_bool(j, "differs", t->all.differ != 0);
        cli_json_open(j, "errors", '[');
        for (uint64_t h = 0; h < t->pair->heads; h++)
            html_number(j, NULL, diff_collect_error(&t->head[h]));
        cli_json_close(j);
        cli_json_open(j, "sides", '[');
        for (int s = 0; s < 2; s++) side(j, d, t->pair, s);
        cli_json_close(j);
        cli_json_close(j);
    }
    cli_json_close(j);
    if (!worst.tensor) return;
    cli_json_open(j, "worst", '{');
    cli_json_u64(j, "tensor", (uint64_t)(worst.tensor - c->tensor));
    cli_json_u64(j, "head", worst.head);
    cli_json_close(j);
}

/* --- along positions --- */

/* Positions from the first to the last, divided into points of equally many. */
struct axis {
    int64_t first;
    double step;
    size_t n;
};

static struct axis axis_of(int64_t first, int64_t last) {
    const double range = (double)((uint64_t)last - (uint64_t)first) + 1,
                 step = ceil(range / MAX_POINTS);
    return (struct axis){first, step, (size_t)ceil(range / step)};
}

static size_t point_of(const struct axis *x, int64_t position) {
    const size_t at = (size_t)((double)((uint64_t)position - (uint64_t)x->first) / x->step);
    return at < x->n ? at : x->n - 1;
}

static void write_axis(struct cli_json *j, const struct axis *x) {
    cli_json_i64(j, "first", x->first);
    cli_json_f64(j, "step", x->step);
}

static void write_numbers(struct cli_json *j, const char *key, const double *v, size_t n) {
    cli_json_open(j, key, '[');
    for (size_t i = 0; i < n; i++) html_number(j, NULL, v[i]);
    cli_json_close(j);
}

/* Writes the sums of a role by point: "dd" of (a - b)^2 and "aa" of a^2, both -1 where no row is.
 */
static int role_sums(struct cli_json *j, const struct diff_collected_rows *r, const struct axis *x,
                     const int64_t *position, struct kvc_error *e) {
    double *dd = calloc(2 * x->n, sizeof *dd), *aa = dd ? dd + x->n : NULL;
    if (!dd) return cli_no_memory(e, "a curve");
    for (size_t i = 0; i < 2 * x->n; i++) dd[i] = -1;
    for (uint64_t at = 0; at < r->first->rows; at++) {
        const size_t point = point_of(x, position[at]);
        dd[point] = fmax(0, dd[point]) + r->row[at].dd;
        aa[point] = fmax(0, aa[point]) + r->row[at].aa;
    }
    cli_json_open(j, NULL, '{');
    cli_json_text(j, "role", r->first->role);
    write_numbers(j, "dd", dd, x->n);
    write_numbers(j, "aa", aa, x->n);
    cli_json_close(j);
    free(dd);
    return 0;
}

/* Writes the errors of the part of a pair. */
static int part_positions(struct cli_json *j, const struct diff_comparison *d,
                          const struct kvc_compared *pair, struct kvc_error *e) {
    const struct diff_collected *c = d->collected;
    int64_t *position = calloc(pair->rows, sizeof *position);
    char label[64];
    int status = 0;
    if (!position) return cli_no_memory(e, "a curve");
    if (kvc_comparing_positions(d->steps, pair, position, pair->rows * sizeof *position, e)) {
        free(position);
        return -1;
    }
    const int64_t last = position[pair->rows - 1];
    const struct axis x = axis_of(position[0], last);
    kvc_compared_part(pair, label, sizeof label);
    cli_json_open(j, NULL, '{');
    cli_json_text(j, "part", label);
    write_axis(j, &x);
    cli_json_i64(j, "last", last);
    cli_json_u64(j, "block", 256);
    cli_json_open(j, "roles", '[');
    for (size_t i = 0; i < c->n_rows && !status; i++)
        if (c->rows[i].first->parts == pair->parts)
            status = role_sums(j, &c->rows[i], &x, position, e);
    cli_json_close(j);
    cli_json_close(j);
    free(position);
    return status;
}

/* Writes the parts that differ, a bounded number; "more_parts" says that there are others. */
static int positions(struct cli_json *j, const struct diff_comparison *d, struct kvc_error *e) {
    const struct diff_collected *c = d->collected;
    const struct kvc_compared *last = NULL; /* tensors are ordered by part */
    unsigned n = 0;
    int status = 0;
    cli_json_open(j, "positions", '[');
    for (size_t i = 0; i < c->n_tensors && !status; i++) {
        const struct kvc_compared *pair = c->tensor[i].pair;
        if (!c->tensor[i].all.differ || (last && last->parts == pair->parts)) continue;
        last = pair;
        if (n++ < MAX_PARTS) status = part_positions(j, d, pair, e);
    }
    cli_json_close(j);
    cli_json_bool(j, "more_parts", n > MAX_PARTS);
    return status;
}

/* --- channels --- */

/* Writes the RMS error of each channel of a tensor, relative to the RMS of the tensor. */
static int channels_of(struct cli_json *j, const struct diff_collected *c,
                       const struct diff_collected_channels *w, struct kvc_error *e) {
    const struct kvc_compared *pair = c->tensor[w->tensor].pair;
    const double rows = (double)pair->rows;
    double aa = 0;
    double *value = calloc(w->n, sizeof *value);
    if (!value) return cli_no_memory(e, "a heatmap");
    for (uint64_t i = 0; i < w->n; i++) aa += w->channel[i].aa;
    const double rms = sqrt(aa / ((double)w->n * rows));
    for (uint64_t i = 0; i < w->n; i++)
        value[i] = sqrt(w->channel[i].dd / rows) / (rms > 0 ? rms : 1);
    cli_json_open(j, NULL, '{');
    cli_json_u64(j, "tensor", w->tensor);
    html_matrix(j, value, pair->heads, w->n / pair->heads);
    cli_json_close(j);
    free(value);
    return 0;
}

static int channels(struct cli_json *j, const struct diff_collected *c, struct kvc_error *e) {
    int status = 0;
    cli_json_open(j, "channels", '[');
    for (unsigned i = 0; i < c->n_worst && !status; i++)
        status = channels_of(j, c, &c->worst[i], e);
    cli_json_close(j);
    return status;
}

/* --- values of the worst head --- */

/* Writes pairs as points: the value in A, and the error. */
static void points(struct cli_json *j, const char *key, const float (*pair)[2], size_t n) {
    cli_json_open(j, key, '[');
    for (size_t i = 0; i < n; i++) {
        cli_json_open(j, NULL, '[');
        html_number(j, NULL, (double)pair[i][0]);
        html_number(j, NULL, (double)pair[i][1] - (double)pair[i][0]);
        cli_json_close(j);
    }
    cli_json_close(j);
}

static int values(struct cli_json *j, const struct diff_comparison *d, struct kvc_error *e) {
    const struct diff_worst worst = diff_collect_worst(d->collected);
    struct kvc_head_sample s = {.size = sizeof s};
    if (!worst.tensor) return 0;
    const int status = kvc_comparing_sample(d->steps, worst.tensor->pair, worst.head, MAX_PAIRS,
                                            MAX_WORST, &s, e);
    if (!status && s.n) {
        cli_json_open(j, "values", '{');
        cli_json_u64(j, "of", s.values);
        points(j, "points", (const float(*)[2])s.value, s.n);
        points(j, "worst", (const float(*)[2])s.worst, s.n_worst);
        cli_json_close(j);
    }
    kvc_head_sample_free(&s);
    return status;
}

/* --- attention of single queries --- */

/* The sums of each point: probabilities of A and of B, and how much A has more than B, and B than
 * A. */
static int query(struct cli_json *j, const struct kvc_attention_weights *w, struct kvc_error *e) {
    static const char *const keys[] = {"a", "b", "more_a", "more_b"};
    enum { SERIES = sizeof keys / sizeof *keys };
    const struct axis x = axis_of(w->at[0], w->at[w->n - 1]);
    double *y = calloc(SERIES * x.n, sizeof *y);
    if (!y) return cli_no_memory(e, "a curve");
    for (uint64_t i = 0; i < w->n; i++) {
        const double a = (double)w->p[0][i], b = (double)w->p[1][i],
                     add[] = {a, b, fmax(0, a - b), fmax(0, b - a)};
        for (size_t s = 0; s < SERIES; s++) y[s * x.n + point_of(&x, w->at[i])] += add[s];
    }
    cli_json_open(j, NULL, '{');
    cli_json_u64(j, "head", w->head);
    cli_json_i64(j, "position", w->position);
    html_number(j, "kl", w->kl);
    write_axis(j, &x);
    for (size_t s = 0; s < SERIES; s++) write_numbers(j, keys[s], y + s * x.n, x.n);
    cli_json_close(j);
    free(y);
    return 0;
}

/* Writes the last query of the head whose attention drifts most, and if it is another the one that
 * drifts most. */
static int queries(struct cli_json *j, struct diff_comparison *d, struct kvc_error *e) {
    struct kvc_attention_weights last = {.size = sizeof last}, worst = {.size = sizeof worst};
    uint64_t head = 0;
    struct kvc_attention_measures m = {.size = sizeof m};
    const struct kvc_compared *k = kvc_comparing_worst(d->steps, &head, &m);
    if (!k || d->reached != DIFF_AT_END) return 0;
    int status = kvc_comparing_query(d->steps, 1, &last, e);
    if (!status) status = kvc_comparing_query(d->steps, 0, &worst, e);
    if (!status && last.n) {
        cli_json_open(j, "queries", '{');
        cli_json_u64(j, "layer", k->layer);
        cli_json_u64(j, "kv_head", head);
        cli_json_open(j, "of", '[');
        status = query(j, &last, e);
        if (!status && (last.position != worst.position || last.head != worst.head))
            status = query(j, &worst, e);
        cli_json_close(j);
        cli_json_close(j);
    }
    kvc_attention_weights_free(&last);
    kvc_attention_weights_free(&worst);
    return status;
}

int diff_report_data(struct diff_comparison *d, struct cli_json *j, struct kvc_error *e) {
    const struct diff_collected *c = d->collected;
    tensors(j, d);
    if (positions(j, d, e) || channels(j, c, e) || values(j, d, e) || queries(j, d, e)) return -1;
    cli_json_open(j, "sizes", '[');
    for (unsigned role = 0; role < DIFF_ROLES; role++) {
        cli_json_open(j, NULL, '{');
        cli_json_text(j, "role", dump_roles[role]);
        html_octaves(j, c->octave[role]);
        cli_json_u64(j, "zero", c->zero[role]);
        cli_json_close(j);
    }
    cli_json_close(j);
    return 0;
}
