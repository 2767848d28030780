/* dump_values.c: kvc-dump --values and --stats. Not for computing statistics
 * (formats/compare/stats.c). */
#include "cli/dump/dump.h"
#include "cli/progress.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Letters of --values, by role. */
static const char letters[] = "KVLRSQH";

static const char *parse_role(const char *text) {
    for (size_t i = 0; dump_roles[i]; i++) {
        int letter = text[0] == letters[i] || text[0] == letters[i] - 'A' + 'a';
        if ((letter && !text[1]) || strcmp(text, dump_roles[i]) == 0) return dump_roles[i];
    }
    return NULL;
}

/* Reads LAYER:ROLE:HEAD. *range gets what follows after another colon, or NULL. -1 if malformed. */
static int parse_head(char *text, struct dump_values *v, char **range) {
    const char *layer = strsep(&text, ":"), *role = strsep(&text, ":"), *head = strsep(&text, ":");
    uint64_t number;
    *range = text;
    if (!head || cli_parse_u64(layer, &number) || number >= KVC_NO_NUMBER ||
        !(v->role = parse_role(role)))
        return -1;
    v->layer = (uint32_t)number;
    v->all_heads = strcmp(head, "all") == 0;
    return v->all_heads ? 0 : cli_parse_u64(head, &v->head);
}

int dump_values_take(const char *arg, struct dump_values *v) {
    char text[128], before[160], *range = NULL;
    snprintf(text, sizeof text, "%s", arg);
    *v = (struct dump_values){.end = UINT64_MAX};
    if (strlen(arg) >= sizeof text || parse_head(text, v, &range))
        return cli_usage("--values=%s is not LAYER:ROLE:HEAD or LAYER:ROLE:HEAD:FIRST:END", arg);
    snprintf(before, sizeof before, "--values=%.*s", range ? (int)(range - text) : 0, arg);
    return range ? cli_take_range(before, range, &v->first, &v->end) : 0;
}

static const struct dump_tensor *
find_tensor(const struct dump_file *f, const struct dump_options *options, struct kvc_error *e) {
    const struct dump_values *v = &options->values;
    for (uint32_t i = 0; i < f->facts.layers; i++) {
        const struct kvc_layer_info *layer = &f->layer[i];
        if (layer->layer != v->layer || !dump_wants_part(options, layer->part)) continue;
        for (unsigned j = 0; j < 2; j++) {
            const uint32_t t = layer->tensor[j];
            if (t != KVC_NO_NUMBER && strcmp(f->tensor[t].info.role, v->role) == 0)
                return &f->tensor[t];
        }
    }
    cli_usage_error(e, "layer %" PRIu32 " has no %s%s: --layers lists the roles of each layer",
                    v->layer, v->role, options->part == KVC_NO_NUMBER ? "" : " in that part");
    return NULL;
}

/* Rows of a tensor to print. */
struct rows {
    const struct kvc_file *file;
    const struct kvc_tensor_info *tensor;
    uint32_t number; /* of the tensor */
    uint64_t at, n;  /* values of a row to print */
    uint64_t batch;  /* rows that are read at most at a time */
};

static int64_t position_of(const struct rows *r, uint64_t row) {
    return kvc_file_position(r->file, r->number, row);
}

/* Returns the first row whose position is at least `pos`, or the number of rows. */
static uint64_t row_at(const struct rows *r, uint64_t pos) {
    uint64_t low = 0, high = r->tensor->rows;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        const int64_t at = position_of(r, middle);
        if (at < 0 || (uint64_t)at < pos) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Returns how many of the rows [row, end) are in one block of the file. */
static uint64_t batch_of(const struct rows *r, uint64_t row, uint64_t end) {
    const int64_t grid = position_of(r, row) >> 8;
    uint64_t n = 1;
    while (n < r->batch && row + n < end && position_of(r, row + n) >> 8 == grid) n++;
    return n;
}

/* Prints positions and values of rows [row, end), a block at a time. */
static int value_rows(struct dump_out *o, struct rows *r, uint64_t row, uint64_t end,
                      struct kvc_error *e) {
    const uint64_t width = r->tensor->heads * r->tensor->dim, bytes = r->tensor->row_bytes;
    r->batch = 256;
    while (r->batch > 1 && r->batch * (bytes > 4 * width ? bytes : 4 * width) > UINT64_C(1) << 26)
        r->batch /= 2;
    float *values = calloc(r->batch * width + 1, sizeof *values);
    const size_t size = r->batch * width * sizeof *values;
    int status = values ? 0 : cli_no_memory(e, "values");
    while (!status && row < end) {
        const uint64_t batch = batch_of(r, row, end);
        status = kvc_file_read_floats(r->file, r->number, row, batch, values, size, e);
        for (uint64_t i = 0; !status && i < batch; i++) {
            dump_row(o);
            dump_i64(o, position_of(r, row + i));
            dump_floats(o, values + i * width + r->at, r->n);
            dump_row_end(o);
        }
        row += batch;
    }
    free(values);
    return status;
}

int dump_values(struct dump_out *o, const struct dump_file *f, struct dump_options *options,
                struct kvc_error *e) {
    static const struct dump_column columns[] = {{"position", 8}, {"values", -1}, {NULL, 0}};
    const struct dump_values *v = &options->values;
    if (dump_check_part(f, options, e)) return -1;
    const struct dump_tensor *t = find_tensor(f, options, e);
    if (!t) return -1;
    const uint64_t heads = t->info.heads, dim = t->info.dim;
    if (!v->all_heads && v->head >= heads)
        return cli_usage_error(
            e, "layer %" PRIu32 " %s has no head %" PRIu64 ": there %s %" PRIu64 "%s", v->layer,
            v->role, v->head, heads == 1 ? "is" : "are", heads,
            !f->facts.heads_unknown ? "" : " (the number is not known: --kv-heads gives it)");
    struct rows r = {.file = f->cache,
                     .tensor = &t->info,
                     .number = (uint32_t)(t - f->tensor),
                     .at = v->all_heads ? 0 : v->head * dim,
                     .n = v->all_heads ? heads * dim : dim};
    /* Without a range all rows are printed, also those of negative positions. */
    const int all = v->first == 0 && v->end == UINT64_MAX;
    const uint64_t row = all ? 0 : row_at(&r, v->first),
                   end = v->end == UINT64_MAX ? t->info.rows : row_at(&r, v->end);
    dump_begin(o, f->source.name);
    dump_table(o, "values", "value", columns);
    int status = value_rows(o, &r, row, end, e);
    dump_table_end(o);
    return status;
}

static int has_finite(const struct kvc_head_stats *s) {
    return s->nan + s->inf < s->values;
}

/* Prints a measure of finite values, if there are any. */
static void finite_cell(struct dump_out *o, const struct kvc_head_stats *s, double v) {
    if (has_finite(s)) dump_f64(o, v);
    else dump_none(o);
}

static void stats_row(struct dump_out *o, const struct dump_tensor *t, uint64_t head,
                      const struct kvc_head_stats *s) {
    dump_row(o);
    dump_u64(o, t->more.part);
    dump_u64(o, t->info.layer);
    dump_text(o, t->info.role);
    dump_u64(o, head);
    dump_u64(o, s->values);
    finite_cell(o, s, s->mean);
    finite_cell(o, s, s->rms);
    finite_cell(o, s, s->max_abs);
    dump_u64(o, s->nan);
    dump_u64(o, s->inf);
    dump_u64(o, s->outlier_channels);
    if (has_finite(s)) dump_u64(o, s->worst_channel);
    else dump_none(o);
    finite_cell(o, s, s->worst_rms);
    dump_row_end(o);
}

static int tensor_rows(struct dump_out *o, const struct dump_file *f, uint32_t number,
                       struct cli_progress *p, struct kvc_error *e) {
    const struct dump_tensor *t = &f->tensor[number];
    const uint64_t heads = t->info.heads;
    struct kvc_head_stats *stats = calloc(heads + 1, sizeof *stats);
    for (uint64_t h = 0; stats && h < heads; h++) stats[h].size = sizeof *stats;
    int status = stats ? kvc_file_stats(f->cache, number, stats, heads, e)
                       : cli_no_memory(e, "statistics");
    cli_progress_end(p); /* before rows are printed */
    for (uint64_t h = 0; !status && h < heads; h++) stats_row(o, t, h, &stats[h]);
    free(stats);
    return status;
}

int dump_stats(struct dump_out *o, const struct dump_file *f, struct dump_options *options,
               struct kvc_error *e) {
    static const struct dump_column columns[] = {
        {"part", 4},     {"layer", 5},          {"role", -7},      {"head", 4}, {"values", 9},
        {"mean", 12},    {"rms", 11},           {"max_abs", 11},   {"nan", 5},  {"inf", 5},
        {"outliers", 8}, {"worst_channel", 13}, {"worst_rms", 11}, {NULL, 0}};
    struct cli_progress progress;
    int status = dump_check_part(f, options, e);
    if (status) return -1;
    dump_begin(o, f->source.name);
    dump_table(o, "stats", "stats", columns);
    uint64_t done = 0, total = 0;
    for (uint32_t t = 0; t < f->facts.tensors; t++) total += f->tensor[t].more.bytes;
    cli_progress_start(&progress, f->source.name, options->quiet);
    for (uint32_t i = 0; i < f->facts.layers && !status; i++) {
        for (unsigned j = 0; j < 2 && !status; j++) {
            uint32_t t = f->layer[i].tensor[j];
            if (t == KVC_NO_NUMBER || !dump_wants_part(options, f->layer[i].part)) continue;
            status = tensor_rows(o, f, t, &progress, e);
            cli_progress_show(&progress, done += f->tensor[t].more.bytes, total);
        }
    }
    cli_progress_end(&progress);
    dump_table_end(o);
    return status;
}
