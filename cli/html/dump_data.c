/* dump_data.c: the data of the pictures of values in kvc-dump's report: the root mean square by
 * layer and channel, and a histogram. Not for drawing (share/page.html), nor for the structure of a
 * file (dump_report.c). */
#include "cli/dump/dump.h"

#include "cli/html/page.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROLES = 3, MAX_TENSORS = 512, MAX_CHANNELS = 16384 }; /* K, V and latents */
/* Values that are read at most, but for a block of each tensor. */
static const double most_values = 256e6;

struct values {
    const struct dump_file *f;
    /* those of K, then of V, then of latents; of each in the order of layers */
    uint32_t *tensor;
    struct kvc_value_spread *spread;
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

/* Adds a tensor of a role to those that are shown, where it can be; `width` sums their channels. */
static void list_one(struct values *x, unsigned role, uint32_t number, double *width) {
    const struct dump_tensor *t = &x->f->tensor[number];
    const double channels = (double)t->info.heads * (double)t->info.dim;
    if (strcmp(t->info.role, dump_roles[role]) != 0 || !t->info.rows) return;
    if (strcmp(t->info.part, "snapshot") == 0) return; /* earlier states of the same layers */
    if (channels > MAX_CHANNELS || x->n - x->begin[role] == MAX_TENSORS) {
        x->left_out = 1;
        return;
    }
    if (x->n && t->more.part != x->f->tensor[x->tensor[0]].more.part) x->parts = 1;
    *width += channels;
    x->tensor[x->n++] = number;
}

static int list(struct values *x, struct kvc_error *e) {
    double width = 0;
    x->tensor = calloc(ROLES * (size_t)MAX_TENSORS, sizeof *x->tensor);
    x->spread = calloc(ROLES * (size_t)MAX_TENSORS, sizeof *x->spread);
    if (!x->tensor || !x->spread) return cli_no_memory(e, "pictures of values");
    x->spread->size = sizeof *x->spread;
    for (unsigned role = 0; role < ROLES; role++) {
        x->begin[role] = x->n;
        for (uint32_t l = 0; l < x->f->facts.layers; l++)
            for (unsigned j = 0; j < 2; j++)
                if (x->f->layer[l].tensor[j] != KVC_NO_NUMBER)
                    list_one(x, role, x->f->layer[l].tensor[j], &width);
    }
    x->begin[ROLES] = x->n;
    x->most_rows = (uint64_t)(most_values / fmax(1, width));
    return 0;
}

static void show_one(void *state, size_t i) {
    const struct values *x = state;
    dump_progress_add(x->progress, x->f->tensor[x->tensor[i]].more.bytes);
}

/* Returns 1 for an error that is no damage: something is needed to decode. */
static int needs(const struct kvc_error *why) {
    const enum kvc_code code = kvc_error_code(why);
    return code == KVC_ERR_OTHER_MODEL || code == KVC_ERR_UNSUPPORTED || code == KVC_ERR_USAGE;
}

/* Writes the root mean squares of a role's tensors, a row each; those of a tensor that failed are
 * absent. */
static int write_rms(struct cli_json *j, const struct values *x, unsigned role,
                     struct kvc_error *e) {
    const struct kvc_value_spread *s = &x->spread[x->begin[role]];
    const uint32_t *tensor = &x->tensor[x->begin[role]];
    const uint64_t rows = x->begin[role + 1] - x->begin[role];
    uint64_t columns = 0;
    for (uint64_t i = 0; i < rows; i++) columns = s[i].channels > columns ? s[i].channels : columns;
    double *value = calloc(rows * columns + 1, sizeof *value);
    if (!value) return cli_no_memory(e, "a heatmap");
    cli_json_open(j, "layers", '[');
    for (uint64_t i = 0; i < rows; i++) {
        cli_json_u64(j, NULL, x->f->tensor[tensor[i]].info.layer);
        for (uint64_t d = 0; d < columns; d++)
            value[i * columns + d] = d < s[i].channels ? s[i].rms[d] : -1;
    }
    cli_json_close(j);
    cli_json_u64(j, "heads", x->f->tensor[*tensor].info.heads);
    cli_json_u64(j, "dim", x->f->tensor[*tensor].info.dim);
    html_matrix(j, value, rows, columns);
    free(value);
    return 0;
}

/* Writes the histogram of a role: octaves, and the numbers of values that have none and of all. */
static void write_sizes(struct cli_json *j, const struct values *x, unsigned role) {
    uint64_t octave[KVC_OCTAVES] = {0}, zero = 0, other = 0, values = 0;
    for (size_t i = x->begin[role]; i < x->begin[role + 1]; i++) {
        const struct kvc_value_spread *s = &x->spread[i];
        for (unsigned k = 0; k < KVC_OCTAVES; k++) octave[k] += s->octave[k];
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
        cli_json_text(j, "role", dump_roles[role]);
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
        read += x->spread[i].rows;
        rows += x->f->tensor[x->tensor[i]].info.rows;
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
    const struct kvc_error *missing = NULL;
    int status = 0;
    for (size_t i = 0; i < x->n; i++) {
        const struct kvc_error *why = x->spread[i].error;
        if (!why) continue;
        if (!needs(why) && !status) {
            kvc_error_copy(e, why);
            status = -1;
        }
        if (!missing) missing = why;
    }
    if (!missing) return 0;
    char text[CLI_ERROR_TEXT];
    fputs("<p class=\"note\">", out);
    html_say(out, "Some values cannot be shown: %s", cli_error_text(missing, text, sizeof text));
    fputs("</p>\n", out);
    return status;
}

int dump_report_values(struct cli_json *j, FILE *out, const struct dump_file *f,
                       struct dump_progress *p, struct kvc_error *e) {
    struct values x = {.f = f, .progress = p};
    int status = list(&x, e), read = 0;
    if (!status)
        status = kvc_file_value_spread(f->cache, x.tensor, x.n, x.most_rows, show_one, &x, x.spread,
                                       e);
    for (size_t i = 0; i < x.n; i++) read |= !x.spread[i].error;
    cli_json_open(j, "values", '[');
    if (!status && x.n) {
        html_section(out, "values-read", "Values that were read");
        status = report(out, &x, e);
        if (read) explain(out, &x);
        if (read && write_roles(j, &x, status ? NULL : e)) status = -1;
    }
    cli_json_close(j);
    if (x.spread) kvc_value_spread_free(x.spread, x.n);
    free(x.spread);
    free(x.tensor);
    return status;
}
