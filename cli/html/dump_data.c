/* dump_data.c: the data of the pictures of values in kvc-dump's report: the root mean square by
 * layer and channel, and a histogram. Not for drawing (share/page.html), nor for the structure of a
 * file (dump_report.c). */
#include "cli/html/dump_data.h"

#include "cli/html/page.h"
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
    /* those of K, then of V, then of latents; of each in the order of layers */
    struct shown *shown;
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
                if (t == KVC_NONE || x->c->tensor[t].role != role || !x->c->tensor[t].shape.tokens)
                    continue;
                /* earlier states of the same layers */
                if (kvc_tensor_part(x->c, t)->kind == KVC_PART_SNAPSHOT) continue;
                const double channels = (double)x->c->tensor[t].shape.heads *
                                        (double)x->c->tensor[t].shape.dim;
                if (channels > MAX_CHANNELS || x->n - x->begin[role] == MAX_TENSORS) {
                    x->left_out = 1;
                    continue;
                }
                if (x->n &&
                    x->c->layer[l].part != x->c->layer[x->c->tensor[x->shown[0].tensor].layer].part)
                    x->parts = 1;
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
    return why->code == KVC_ERR_MODEL || why->code == KVC_ERR_UNSUPPORTED ||
           why->code == KVC_ERR_USAGE;
}

/* Writes the root mean squares of a role's tensors, a row each; those of a tensor that failed are
 * absent. */
static int write_rms(struct cli_json *j, const struct values *x, unsigned role,
                     struct kvc_error *e) {
    const struct shown *s = &x->shown[x->begin[role]];
    const uint64_t rows = x->begin[role + 1] - x->begin[role];
    uint64_t columns = 0;
    for (uint64_t i = 0; i < rows; i++)
        columns = s[i].sums.channels > columns ? s[i].sums.channels : columns;
    double *value = kvc_alloc(rows * columns, sizeof *value);
    if (!value) return kvc_fail_memory(e, "a heatmap");
    cli_json_open(j, "layers", '[');
    for (uint64_t i = 0; i < rows; i++) {
        cli_json_u64(j, NULL, x->c->layer[x->c->tensor[s[i].tensor].layer].index);
        for (uint64_t d = 0; d < columns; d++)
            value[i * columns + d] = s[i].failed || d >= s[i].sums.channels
                                         ? -1
                                         : kvc_value_sums_rms(&s[i].sums, d);
    }
    cli_json_close(j);
    cli_json_u64(j, "heads", x->c->tensor[s->tensor].shape.heads);
    cli_json_u64(j, "dim", x->c->tensor[s->tensor].shape.dim);
    html_matrix(j, value, rows, columns);
    free(value);
    return 0;
}

/* Writes the histogram of a role: octaves, and the numbers of values that have none and of all. */
static void write_sizes(struct cli_json *j, const struct values *x, unsigned role) {
    uint64_t octave[KVC_ERROR_OCTAVES] = {0}, zero = 0, other = 0, values = 0;
    for (size_t i = x->begin[role]; i < x->begin[role + 1]; i++) {
        const struct kvc_value_sums *s = &x->shown[i].sums;
        for (unsigned k = 0; k < KVC_ERROR_OCTAVES; k++) octave[k] += s->octave[k];
        zero += s->zero;
        other += s->other;
        values += s->rows * s->channels;
    }
    html_octaves(j, octave);
    cli_json_u64(j, "zero", zero);
    cli_json_u64(j, "other", other);
    cli_json_u64(j, "of", values);
}

static int write_roles(struct cli_json *j, const struct values *x, struct kvc_error *e) {
    int status = 0;
    for (unsigned role = 0; role < ROLES && !status; role++) {
        if (x->begin[role] == x->begin[role + 1]) continue;
        cli_json_open(j, NULL, '{');
        cli_json_text(j, "role", kvc_role_name(role));
        status = write_rms(j, x, role, e);
        write_sizes(j, x, role);
        cli_json_close(j);
    }
    return status;
}

/* Says how many rows were read, and what the values are. */
static void explain(FILE *out, const struct values *x) {
    uint64_t read = 0, rows = 0;
    for (size_t i = 0; i < x->n; i++) {
        read += x->shown[i].sums.rows;
        rows += x->c->tensor[x->shown[i].tensor].shape.tokens;
    }
    fputs("<p class=\"note\">", out);
    if (read < rows)
        html_say(out, "Of %" PRIu64 " of %" PRIu64 " rows, in blocks that are spread evenly. ",
                 read, rows);
    else html_say(out, "Of all rows. ");
    html_say(out,
             "Values are as the file has them: K after RoPE if the file has it so, and rotated if "
             "it is rotated.%s%s",
             x->parts ? " Layers are in the order of the parts of the file; snapshots are left out."
                      : "",
             x->left_out ? " Not all tensors are shown: there are more than 512 of a kind, or rows "
                           "are wider than 16384 values."
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
    html_say(out, "Some values cannot be shown: %s",
             cli_error_text(&missing->why, text, sizeof text));
    fputs("</p>\n", out);
    return status;
}

int dump_report_values(struct cli_json *j, FILE *out, const struct kvc_cache *c,
                       struct dump_progress *p, struct kvc_error *e) {
    struct values x = {.c = c, .progress = p};
    struct kvc_error other = {.code = KVC_OK};
    int status = list(&x, e) || sum_all(&x, e) ? -1 : 0, read = 0;
    for (size_t i = 0; i < x.n; i++) read |= !x.shown[i].failed;
    cli_json_open(j, "values", '[');
    if (!status && x.n) {
        html_section(out, "values-read", "Values that were read");
        status = report(out, &x, e);
        if (read) explain(out, &x);
        if (read && write_roles(j, &x, &other)) {
            *e = other;
            status = -1;
        }
    }
    cli_json_close(j);
    free_values(&x);
    return status;
}
