/* diff_data.c: the data of the pictures of kvc-diff's report, beside those of --json. Not for
 * drawing (share/page.html), and not for text and tables (diff_report.c). */
#include "cli/html/diff_report.h"

#include "cli/html/page.h"
#include "codecs/memory.h"
#include "formats/compare/head_sample.h"
#include "formats/container/container.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_POINTS = 2000, MAX_PARTS = 4, MAX_PAIRS = 2000, MAX_WORST = 50 };

/* --- tensors --- */

static void side(struct cli_json *j, const struct diff_comparison *d,
                 const struct kvc_tensor_pair *pair, int s) {
    const struct kvc_cache *c = d->file[s].cache->cache;
    const uint32_t t = pair->tensor[s];
    cli_json_open(j, NULL, '{');
    cli_json_u64(j, "window", c->layer[c->tensor[t].layer].window);
    cli_json_text(j, "pipeline", kvc_cache_is_container(c) ? kvc_container_pipeline(c, t) : NULL);
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
        diff_layers_label(t->pair, t->pair, label, sizeof label);
        cli_json_text(j, "label", label);
        diff_part_label(t->pair->parts, label, sizeof label);
        cli_json_text(j, "part", label);
        cli_json_u64(j, "layer", t->pair->layer);
        cli_json_text(j, "role", kvc_role_name(t->pair->role));
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

static int64_t position_at(const struct kvc_part_pair *parts, uint64_t row) {
    return kvc_cells_position(&parts->part[0]->cells, row);
}

/* Writes the sums of a role by point: "dd" of (a - b)^2 and "aa" of a^2, both -1 where no row is.
 */
static int role_sums(struct cli_json *j, const struct diff_collected_rows *r, const struct axis *x,
                     struct kvc_error *e) {
    const struct kvc_matching *rows = &r->parts->rows;
    double *dd = kvc_alloc(2 * (uint64_t)x->n, sizeof *dd), *aa = dd ? dd + x->n : NULL;
    uint64_t at = 0;
    if (!dd) return kvc_fail_memory(e, "a curve");
    for (size_t i = 0; i < 2 * x->n; i++) dd[i] = -1;
    for (uint64_t run = 0; run < rows->n_runs; run++)
        for (uint64_t k = 0; k < rows->run[run].n; k++, at++) {
            const size_t point = point_of(x, position_at(r->parts, rows->run[run].a + k));
            dd[point] = fmax(0, dd[point]) + r->row[at].dd;
            aa[point] = fmax(0, aa[point]) + r->row[at].aa;
        }
    cli_json_open(j, NULL, '{');
    cli_json_text(j, "role", kvc_role_name(r->role));
    write_numbers(j, "dd", dd, x->n);
    write_numbers(j, "aa", aa, x->n);
    cli_json_close(j);
    free(dd);
    return 0;
}

static int part_positions(struct cli_json *j, const struct diff_collected *c,
                          const struct kvc_part_pair *parts, struct kvc_error *e) {
    const struct kvc_run *end = &parts->rows.run[parts->rows.n_runs - 1];
    const int64_t last = position_at(parts, end->a + end->n - 1);
    const struct axis x = axis_of(position_at(parts, parts->rows.run[0].a), last);
    char label[64];
    int status = 0;
    diff_part_label(parts, label, sizeof label);
    cli_json_open(j, NULL, '{');
    cli_json_text(j, "part", label);
    write_axis(j, &x);
    cli_json_i64(j, "last", last);
    cli_json_u64(j, "block", KVC_BLOCK);
    cli_json_open(j, "roles", '[');
    for (size_t i = 0; i < c->n_rows && !status; i++)
        if (c->rows[i].parts == parts) status = role_sums(j, &c->rows[i], &x, e);
    cli_json_close(j);
    cli_json_close(j);
    return status;
}

/* Returns 1 if a tensor of the part differs. */
static int part_differs(const struct diff_collected *c, const struct kvc_part_pair *parts) {
    for (size_t i = 0; i < c->n_tensors; i++)
        if (c->tensor[i].pair->parts == parts && c->tensor[i].all.differ) return 1;
    return 0;
}

/* Writes the parts that differ, a bounded number; "more_parts" says that there are others. */
static int positions(struct cli_json *j, const struct diff_comparison *d, struct kvc_error *e) {
    unsigned n = 0;
    int status = 0;
    cli_json_open(j, "positions", '[');
    for (size_t p = 0; p < d->pairs.n_parts && !status; p++) {
        if (!part_differs(d->collected, &d->pairs.part[p])) continue;
        if (n++ < MAX_PARTS) status = part_positions(j, d->collected, &d->pairs.part[p], e);
    }
    cli_json_close(j);
    cli_json_bool(j, "more_parts", n > MAX_PARTS);
    return status;
}

/* --- channels --- */

/* Writes the RMS error of each channel of a tensor, relative to the RMS of the tensor. */
static int channels_of(struct cli_json *j, const struct diff_collected *c,
                       const struct diff_collected_channels *w, struct kvc_error *e) {
    const struct kvc_tensor_pair *pair = c->tensor[w->tensor].pair;
    const double rows = (double)pair->parts->rows.rows;
    struct kvc_error_sum all = {0, 0};
    double *value = kvc_alloc(w->n, sizeof *value);
    if (!value) return kvc_fail_memory(e, "a heatmap");
    for (uint64_t i = 0; i < w->n; i++) kvc_error_sum_add(&all, &w->channel[i]);
    const double rms = sqrt(all.aa / ((double)w->n * rows));
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
    struct kvc_head_sample s;
    if (!worst.tensor) return 0;
    const int status = kvc_head_sample_take(d->cache, worst.tensor->pair, worst.head, MAX_PAIRS,
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
    double *y = kvc_alloc_zeros(SERIES * (uint64_t)x.n, sizeof *y);
    if (!y) return kvc_fail_memory(e, "a curve");
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
    struct kvc_attention_weights last = {.n = 0}, worst = {.n = 0};
    uint64_t head = 0;
    const struct kvc_attended_layer *l = kvc_attended_worst(&d->attended, &head);
    if (!l || d->reached != DIFF_AT_END) return 0;
    int status = kvc_attended_find(&d->attended, l, head, 1, &last, e);
    if (!status) status = kvc_attended_find(&d->attended, l, head, 0, &worst, e);
    if (!status && last.n) {
        cli_json_open(j, "queries", '{');
        cli_json_u64(j, "layer", l->k->layer);
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
        cli_json_text(j, "role", kvc_role_name(role));
        html_octaves(j, c->octave[role]);
        cli_json_u64(j, "zero", c->zero[role]);
        cli_json_close(j);
    }
    cli_json_close(j);
    return 0;
}
