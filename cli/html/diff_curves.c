/* diff_curves.c: curves of the report of kvc-diff: error along positions, and the histogram of errors. Not for heatmaps
 * (diff_pictures.c). */
#include "cli/html/diff_report.h"

#include "cli/html/page.h"
#include "cli/html/svg.h"
#include "cli/html/svg_octaves.h"
#include "codecs/memory.h"
#include "codecs/number.h"
#include "formats/container/container.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_POINTS = 500, MAX_PARTS = 4, MAX_BLOCKS = 40, MAX_MARKS = MAX_BLOCKS + 8 };

/* The letter of a role's color. */
static const char *color_of(enum kvc_role role) {
    return role == KVC_ROLE_V || role == KVC_ROLE_S ? "v" : role == KVC_ROLE_K || role == KVC_ROLE_R ? "k" : "o";
}

/* --- error along positions --- */

/* The positions of the matched rows of a part, divided into points of equally many positions. */
struct axis {
    const struct kvc_part_pair *parts;
    int64_t first, last;
    double step; /* positions of a point */
    size_t n;
};

static int64_t position_at(const struct kvc_part_pair *parts, uint64_t row) {
    return kvc_cells_position(&parts->part[0]->cells, row);
}

static struct axis axis_of(const struct kvc_part_pair *parts) {
    const struct kvc_run *end = &parts->rows.run[parts->rows.n_runs - 1];
    struct axis x = {.parts = parts,
                     .first = position_at(parts, parts->rows.run[0].a),
                     .last = position_at(parts, end->a + end->n - 1)};
    const double range = (double)((uint64_t)x.last - (uint64_t)x.first) + 1;
    x.step = ceil(range / MAX_POINTS);
    x.n = (size_t)ceil(range / x.step);
    return x;
}

/* Returns the place of a position on the axis, in points. */
static double place_of(const struct axis *x, int64_t position) {
    return position <= x->first ? 0 : (double)((uint64_t)position - (uint64_t)x->first) / x->step;
}

/* Fills y[x->n] with the relative error of each point; points without rows become NaN. */
static int fill_points(const struct axis *x, const struct kvc_error_sum *row, double *y, struct kvc_error *e) {
    const struct kvc_matching *rows = &x->parts->rows;
    struct kvc_error_sum *sum = kvc_alloc_zeros(x->n, sizeof *sum);
    uint64_t at = 0;
    if (!sum) return kvc_fail_memory(e, "a curve");
    for (size_t i = 0; i < x->n; i++) y[i] = (double)NAN;
    for (uint64_t r = 0; r < rows->n_runs; r++)
        for (uint64_t k = 0; k < rows->run[r].n; k++, at++) {
            size_t point = (size_t)place_of(x, position_at(x->parts, rows->run[r].a + k));
            if (point >= x->n) point = x->n - 1;
            kvc_error_sum_add(&sum[point], &row[at]);
            y[point] = 0;
        }
    for (size_t i = 0; i < x->n; i++)
        if (!isnan(y[i])) y[i] = kvc_error_relative(&sum[i]);
    free(sum);
    return 0;
}

/* Returns the first number of a stage in the text of a pipeline ("sink:4,tail:64:whole=64"); 0 if it has no such stage. */
static double stage_number(const char *pipeline, const char *stage) {
    const size_t n = strlen(stage);
    for (const char *at = pipeline; (at = strstr(at, stage)); at += n)
        if ((at == pipeline || at[-1] == ',') && at[n] == ':') {
            const char *number = at + n + 1 + strcspn(at + n + 1, "0123456789,");
            double v;
            return kvc_number_begin(number, &v) ? v : 0;
        }
    return 0;
}

/* The largest number of first and of last rows that a recipe of A or B keeps, and the largest window of the layers of a part. */
struct kept {
    double sink, tail;
    uint32_t window;
};

static struct kept kept_of(const struct diff_comparison *d, const struct kvc_part_pair *parts) {
    struct kept k = {.sink = 0};
    for (size_t i = 0; i < d->pairs.n_tensors; i++)
        for (int s = 0; s < 2; s++) {
            const struct kvc_tensor_pair *pair = &d->pairs.tensor[i];
            const struct kvc_cache *c = d->file[s].cache;
            if (pair->parts != parts || pair->tensor[s] == KVC_NONE) continue;
            const uint32_t window = c->layer[c->tensor[pair->tensor[s]].layer].window;
            if (window > k.window) k.window = window;
            const char *pipeline = kvc_cache_is_container(c) ? kvc_container_pipeline(c, pair->tensor[s]) : NULL;
            if (!pipeline) continue;
            k.sink = fmax(k.sink, stage_number(pipeline, "sink"));
            k.tail = fmax(k.tail, stage_number(pipeline, "tail"));
        }
    return k;
}

/* The marks of a curve, with the texts of their labels. */
struct marks {
    struct svg_mark mark[MAX_MARKS];
    size_t n;
    char text[4][80];
};

static void add_mark(struct marks *m, const char *class, const char *label, double from, double to) {
    if (m->n < MAX_MARKS && to >= from) m->mark[m->n++] = (struct svg_mark){class, label, from, to};
}

static void mark_blocks(struct marks *m, const struct axis *x) {
    int64_t every = KVC_BLOCK;
    while ((double)x->n * x->step / (double)every > MAX_BLOCKS) every *= 2;
    snprintf(m->text[3], sizeof m->text[3], "block boundaries, every %" PRId64 " positions", every);
    const char *label = m->text[3];
    int64_t at = x->first / every * every;
    for (; m->n < MAX_MARKS && at <= x->last; at += every) {
        if (at > x->first) {
            add_mark(m, "block", label, place_of(x, at), place_of(x, at));
            label = NULL;
        }
        if (at > INT64_MAX - every) break;
    }
}

static void fill_marks(struct marks *m, const struct diff_comparison *d, const struct axis *x) {
    const struct kept k = kept_of(d, x->parts);
    const double n = (double)x->n, end = place_of(x, x->last) + 1 / x->step;
    m->n = 0;
    if (k.window && k.window / x->step < n) {
        snprintf(m->text[0], sizeof m->text[0], "last window of %" PRIu32 " tokens", k.window);
        add_mark(m, "window", m->text[0], end - k.window / x->step, end);
    }
    if (k.sink > 0) {
        snprintf(m->text[1], sizeof m->text[1], "%.0f sink token%s kept by the recipe", k.sink, k.sink > 1 ? "s" : "");
        add_mark(m, "sink", m->text[1], 0, fmin(n, fmax(k.sink / x->step, n / 250))); /* visible on long axes */
    }
    if (k.tail > 0) {
        snprintf(m->text[2], sizeof m->text[2], "%.0f last tokens kept by the recipe", k.tail);
        add_mark(m, "tail", m->text[2], fmax(0, end - k.tail / x->step), end);
    }
    mark_blocks(m, x);
}

/* Draws the roles of a part, which are `count` entries of the collected rows from `first` on. */
static int draw_part(const struct diff_comparison *d, FILE *out, const struct kvc_part_pair *parts, struct kvc_error *e) {
    const struct diff_collected *c = d->collected;
    const struct axis x = axis_of(parts);
    struct svg_series series[DIFF_ROLES];
    struct svg_scale scale = {.high = 0};
    struct marks m;
    size_t n = 0;
    char part[64], label[160];
    double *y = kvc_alloc(DIFF_ROLES * x.n, sizeof *y);
    if (!y) return kvc_fail_memory(e, "a curve");
    int status = 0;
    for (size_t i = 0; i < c->n_rows && n < DIFF_ROLES && !status; i++) {
        if (c->rows[i].parts != parts) continue;
        double *to = y + n * x.n;
        status = fill_points(&x, c->rows[i].row, to, e);
        if (status) break;
        series[n++] = (struct svg_series){kvc_role_name(c->rows[i].role), color_of(c->rows[i].role), to};
        scale = svg_scale_join(scale, svg_scale_of(to, x.n));
    }
    if (!status && scale.high > 0) { /* an error without finite values has no curve */
        diff_part_label(parts, part, sizeof part);
        snprintf(label, sizeof label, "Relative error along positions, part %s, all layers%s", part,
                 x.step > 1 ? "; each point is of several positions" : "");
        fill_marks(&m, d, &x);
        fputs("<figure><figcaption>", out);
        html_say(out, "%s%s", label, scale.log ? " (logarithmic)" : "");
        fputs("</figcaption>\n", out);
        svg_lines(out, &(struct svg_lines){.label = label,
                                           .x_word = "position",
                                           .n = x.n,
                                           .series = series,
                                           .n_series = n,
                                           .scale = scale,
                                           .x_first = (double)x.first,
                                           .x_step = x.step,
                                           .mark = m.mark,
                                           .n_marks = m.n});
        fputs("</figure>\n", out);
    }
    free(y);
    return status;
}

/* Returns 1 if a tensor of the part differs. */
static int part_differs(const struct diff_collected *c, const struct kvc_part_pair *parts) {
    for (size_t i = 0; i < c->n_tensors; i++)
        if (c->tensor[i].pair->parts == parts && c->tensor[i].all.differ) return 1;
    return 0;
}

int diff_report_positions(struct diff_comparison *d, FILE *out, struct kvc_error *e) {
    const struct diff_collected *c = d->collected;
    unsigned drawn = 0;
    for (size_t p = 0; p < d->pairs.n_parts; p++) {
        const struct kvc_part_pair *parts = &d->pairs.part[p];
        if (!part_differs(c, parts)) continue;
        if (!drawn) html_section(out, "positions", "Error along positions");
        if (drawn == MAX_PARTS) {
            html_note(out, "More parts differ; the table of tensors has all.");
            break;
        }
        drawn++;
        if (draw_part(d, out, parts, e)) return -1;
    }
    return 0;
}

/* --- histogram --- */

int diff_report_sizes(struct diff_comparison *d, FILE *out, struct kvc_error *e) {
    const struct diff_collected *c = d->collected;
    struct svg_octave_row row[DIFF_ROLES];
    struct svg_octaves octaves = {.caption = "Percent of the values that differ, by |a \xe2\x88\x92 b| in octaves",
                                  .label = "Histogram of the sizes of errors",
                                  .x_word = "|a \xe2\x88\x92 b|",
                                  .row = row,
                                  .n_rows = DIFF_ROLES};
    for (unsigned role = 0; role < DIFF_ROLES; role++) {
        row[role] = (struct svg_octave_row){kvc_role_name(role), color_of((enum kvc_role)role), c->octave[role], 0};
        for (unsigned i = 0; i < KVC_ERROR_OCTAVES; i++) row[role].whole += (double)c->octave[role][i];
    }
    if (!svg_octaves_range(&octaves)) return 0;
    html_section(out, "sizes", "Sizes of errors");
    if (svg_octaves(out, &octaves, e)) return -1;
    for (unsigned role = 0; role < DIFF_ROLES; role++)
        if (c->zero[role]) {
            fputs("<p class=\"note\">", out);
            html_say(out, "%" PRIu64 " value%s of %s %s equal in tensors that differ; the histogram leaves %s out.",
                     c->zero[role], c->zero[role] == 1 ? "" : "s", kvc_role_name(role), c->zero[role] == 1 ? "is" : "are",
                     c->zero[role] == 1 ? "it" : "them");
            fputs("</p>\n", out);
        }
    return 0;
}
