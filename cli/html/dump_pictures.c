/* dump_pictures.c: pictures of values in the report of kvc-dump: the root mean square by layer and channel, and a histogram. Not for
 * the structure of a file (dump_report.c). */
#include "cli/html/dump_pictures.h"

#include "cli/html/page.h"
#include "cli/html/svg.h"
#include "cli/html/svg_octaves.h"
#include "cli/html/svg_parts.h"
#include "codecs/memory.h"
#include "formats/compare/value_sums.h"
#include "formats/io/parallel.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum { ROLES = KVC_ROLE_LATENT + 1, MAX_TENSORS = 512, MAX_CHANNELS = 16384 };
/* Values that are read at most, but for a block of each tensor. */
static const double most_values = 256e6;

/* Sums over a tensor, or why it could not be read. */
struct shown {
    uint32_t tensor;
    int failed;
    struct kvc_value_sums sums;
    struct kvc_error why;
};

struct values {
    const struct kvc_cache *c;
    struct shown *shown; /* those of K, then of V, then of latents; of each in the order of layers */
    size_t n, begin[ROLES + 1];
    uint64_t most_rows; /* of a tensor */
    int left_out;       /* there are more tensors, or wider ones */
    int parts;          /* tensors are of several parts */
    struct dump_progress *progress;
};

void dump_progress_add(struct dump_progress *p, uint64_t bytes) {
    p->done += bytes;
    if (p->line.on) cli_progress_show(&p->line, p->done, p->total);
}

static void free_values(struct values *x) {
    for (size_t i = 0; i < x->n; i++) kvc_value_sums_free(&x->shown[i].sums);
    free(x->shown);
}

/* --- reading --- */

/* Lists the tensors that are shown. */
static int list(struct values *x, struct kvc_error *e) {
    double width = 0;
    x->shown = kvc_alloc_zeros(ROLES * (uint64_t)MAX_TENSORS, sizeof *x->shown);
    if (!x->shown) return kvc_fail_memory(e, "pictures of values");
    for (unsigned role = 0; role < ROLES; role++) {
        x->begin[role] = x->n;
        for (uint32_t l = 0; l < x->c->n_layers; l++)
            for (unsigned j = 0; j < 2; j++) {
                const uint32_t t = x->c->layer[l].tensor[j];
                if (t == KVC_NONE || x->c->tensor[t].role != role || !x->c->tensor[t].shape.tokens) continue;
                if (kvc_tensor_part(x->c, t)->kind == KVC_PART_CHECKPOINT) continue; /* earlier states of the same layers */
                const double channels = (double)x->c->tensor[t].shape.heads * (double)x->c->tensor[t].shape.dim;
                if (channels > MAX_CHANNELS || x->n - x->begin[role] == MAX_TENSORS) {
                    x->left_out = 1;
                    continue;
                }
                if (x->n && x->c->layer[l].part != x->c->layer[x->c->tensor[x->shown[0].tensor].layer].part) x->parts = 1;
                width += channels;
                x->shown[x->n++].tensor = t;
            }
    }
    x->begin[ROLES] = x->n;
    x->most_rows = (uint64_t)(most_values / fmax(1, width));
    return 0;
}

static int sum_one(void *state, uint64_t item, void **result, struct kvc_error *e) {
    struct values *x = state;
    struct shown *s = &x->shown[item];
    (void)e;
    (void)result;
    s->why.code = KVC_OK;
    s->failed = kvc_value_sums_take(x->c, s->tensor, x->most_rows, &s->sums, &s->why);
    return 0;
}

static int show_one(void *state, uint64_t item, void *result, struct kvc_error *e) {
    const struct values *x = state;
    (void)e;
    (void)result;
    dump_progress_add(x->progress, kvc_tensor_bytes(&x->c->tensor[x->shown[item].tensor]));
    return 0;
}

static int sum_all(struct values *x, struct kvc_error *e) {
    const struct kvc_job job = {.n = x->n, .work = sum_one, .commit = show_one, .state = x};
    return kvc_parallel(&job, kvc_cache_threads(x->c, 0), e);
}

/* Returns 1 for an error that is no damage: something is needed to decode. */
static int needs(const struct kvc_error *why) {
    return why->code == KVC_ERR_MODEL || why->code == KVC_ERR_UNSUPPORTED || why->code == KVC_ERR_USAGE;
}

/* --- pictures --- */

/* Draws one role; tensors that failed are rows without values. */
static int draw_role(FILE *out, const struct values *x, unsigned role, struct kvc_error *e) {
    const uint32_t rows = (uint32_t)(x->begin[role + 1] - x->begin[role]);
    const struct shown *s = &x->shown[x->begin[role]];
    uint64_t columns = 0, other = 0;
    if (!rows) return 0;
    for (uint32_t i = 0; i < rows; i++) columns = s[i].sums.channels > columns ? s[i].sums.channels : columns;
    double *value = kvc_alloc(rows * columns, sizeof *value);
    uint32_t *number = kvc_alloc(rows, sizeof *number);
    int status = value && number ? 0 : kvc_fail_memory(e, "a heatmap");
    for (uint32_t i = 0; i < rows && !status; i++) {
        number[i] = x->c->layer[x->c->tensor[s[i].tensor].layer].index;
        other += s[i].sums.other;
        for (uint64_t d = 0; d < columns; d++)
            value[i * columns + d] = s[i].failed || d >= s[i].sums.channels ? SVG_ABSENT : kvc_value_sums_rms(&s[i].sums, d);
    }
    if (!status && columns) {
        const struct kvc_shape *shape = &x->c->tensor[s[0].tensor].shape;
        char label[128];
        snprintf(label, sizeof label, "Root mean square of %s by layer and channel", kvc_role_name(role));
        const struct svg_heatmap h = {.label = label,
                                      .row_word = "layer",
                                      .column_word = "channel",
                                      .rows = rows,
                                      .columns = (uint32_t)columns,
                                      .value = value,
                                      .scale = svg_scale_of(value, rows * columns),
                                      .row_number = number,
                                      .mark_row = SVG_NOTHING};
        fputs("<figure><figcaption>", out);
        html_text(out, label);
        if (shape->heads > 1) html_say(out, "; %" PRIu64 " heads of %" PRIu64 " channels side by side", shape->heads, shape->dim);
        fputs("</figcaption>\n", out);
        if (svg_heatmap(out, &h)) status = kvc_fail_memory(e, "a heatmap");
        svg_heat_legend_begin(out, h.scale, "root mean square over the rows");
        if (other) svg_legend_item(out, "nan", "no finite value");
        svg_legend_end(out);
        fputs("</figure>\n", out);
    }
    free(value);
    free(number);
    return status;
}

/* Sums of all tensors of a role. */
struct sizes {
    uint64_t octave[KVC_ERROR_OCTAVES], zero, other, values;
};

static struct sizes sizes_of(const struct values *x, unsigned role) {
    struct sizes all = {.values = 0};
    for (size_t i = x->begin[role]; i < x->begin[role + 1]; i++) {
        const struct kvc_value_sums *s = &x->shown[i].sums;
        for (unsigned k = 0; k < KVC_ERROR_OCTAVES; k++) all.octave[k] += s->octave[k];
        all.zero += s->zero;
        all.other += s->other;
        all.values += s->rows * s->channels;
    }
    return all;
}

/* Says how many values the histogram leaves out. */
static void left_out_note(FILE *out, unsigned role, uint64_t n, const char *what) {
    if (!n) return;
    fputs("<p class=\"note\">", out);
    html_say(out, "%" PRIu64 " value%s of %s %s %s; the histogram leaves %s out.", n, n == 1 ? "" : "s", kvc_role_name(role),
             n == 1 ? "is" : "are", what, n == 1 ? "it" : "them");
    fputs("</p>\n", out);
}

static int draw_sizes(FILE *out, const struct values *x, struct kvc_error *e) {
    static const char *const colors[ROLES] = {"k", "v", "o"};
    struct sizes sizes[ROLES];
    struct svg_octave_row row[ROLES];
    struct svg_octaves octaves = {.caption = "Percent of the values, by |value| in octaves",
                                  .label = "Histogram of the sizes of values",
                                  .x_word = "|value|",
                                  .row = row,
                                  .n_rows = ROLES};
    for (unsigned role = 0; role < ROLES; role++) {
        sizes[role] = sizes_of(x, role);
        row[role] = (struct svg_octave_row){kvc_role_name(role), colors[role], sizes[role].octave, (double)sizes[role].values};
    }
    if (svg_octaves_range(&octaves) && svg_octaves(out, &octaves, e)) return -1;
    for (unsigned role = 0; role < ROLES; role++) {
        left_out_note(out, role, sizes[role].zero, "0");
        left_out_note(out, role, sizes[role].other, "NaN or infinite");
    }
    return 0;
}

/* Says how many rows were read, and what the values are. */
static void explain(FILE *out, const struct values *x) {
    uint64_t read = 0, rows = 0;
    for (size_t i = 0; i < x->n; i++) {
        read += x->shown[i].sums.rows;
        rows += x->c->tensor[x->shown[i].tensor].shape.tokens;
    }
    fputs("<p class=\"note\">", out);
    if (read < rows) html_say(out, "Of %" PRIu64 " of %" PRIu64 " rows, in blocks that are spread evenly. ", read, rows);
    else html_say(out, "Of all rows. ");
    html_say(out, "Values are as the file has them: K after RoPE if the file has it so, and rotated if it is rotated.%s%s",
             x->parts ? " Layers are in the order of the parts of the file; checkpoints are left out." : "",
             x->left_out ? " Not all tensors are shown: there are more than 512 of a kind, or rows are wider than 16384 values."
                         : "");
    fputs("</p>\n", out);
}

/* Writes why tensors are missing. Returns -1 and *e if a file is damaged. */
static int report(FILE *out, const struct values *x, struct kvc_error *e) {
    const struct shown *missing = NULL;
    int status = 0;
    for (size_t i = 0; i < x->n; i++) {
        const struct shown *s = &x->shown[i];
        if (!s->failed) continue;
        if (!needs(&s->why) && !status) {
            *e = s->why;
            status = -1;
        }
        if (!missing) missing = s;
    }
    if (!missing) return 0;
    char text[sizeof missing->why.message + 160];
    fputs("<p class=\"note\">", out);
    html_say(out, "Some values cannot be shown: %s", cli_error_text(&missing->why, text, sizeof text));
    fputs("</p>\n", out);
    return status;
}

int dump_report_values(FILE *out, const struct kvc_cache *c, struct dump_progress *p, struct kvc_error *e) {
    struct values x = {.c = c, .progress = p};
    int status = list(&x, e) || sum_all(&x, e) ? -1 : 0;
    if (!status && x.n) {
        html_section(out, "values", "Values");
        status = report(out, &x, e);
        int drawn = 0;
        for (size_t i = 0; i < x.n; i++) drawn |= !x.shown[i].failed;
        struct kvc_error other = {.code = KVC_OK};
        if (drawn) {
            explain(out, &x);
            for (unsigned role = 0; role < ROLES; role++)
                if (draw_role(out, &x, role, &other)) status = -1;
            if (draw_sizes(out, &x, &other)) status = -1;
            if (other.code != KVC_OK) *e = other;
        }
    }
    free_values(&x);
    return status;
}
