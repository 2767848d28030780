/* dump_values.c: kvc-dump --values and --stats. Not for computing statistics
 * (formats/compare/stats.c). */
#include "cli/dump/dump.h"
#include "cli/progress.h"
#include "codecs/memory.h"
#include "formats/cache/scales.h"
#include "formats/compare/stats.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Letters of --values, by role. */
static const char letters[] = {
    [KVC_ROLE_K] = 'K', [KVC_ROLE_V] = 'V',       [KVC_ROLE_LATENT] = 'L', [KVC_ROLE_R] = 'R',
    [KVC_ROLE_S] = 'S', [KVC_ROLE_QUERIES] = 'Q', [KVC_ROLE_HIDDEN] = 'H'};

static int parse_role(const char *text, enum kvc_role *role) {
    for (size_t i = 0; i < sizeof letters; i++) {
        int letter = text[0] == letters[i] || text[0] == letters[i] - 'A' + 'a';
        if ((letter && !text[1]) || strcmp(text, kvc_role_name((unsigned)i)) == 0) {
            *role = (enum kvc_role)i;
            return 0;
        }
    }
    return -1;
}

/* Reads LAYER:ROLE:HEAD. *range gets what follows after another colon, or NULL. -1 if malformed. */
static int parse_head(char *text, struct dump_values *v, char **range) {
    const char *layer = strsep(&text, ":"), *role = strsep(&text, ":"), *head = strsep(&text, ":");
    uint64_t number;
    *range = text;
    if (!head || cli_parse_u64(layer, &number) || number >= KVC_NONE || parse_role(role, &v->role))
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

static uint32_t find_tensor(const struct kvc_cache *c, const struct dump_options *options,
                            struct kvc_error *e) {
    const struct dump_values *v = &options->values;
    for (uint32_t i = 0; i < c->n_layers; i++) { /* ordered by part */
        const struct kvc_layer *layer = &c->layer[i];
        if (layer->index != v->layer || !dump_wants_part(options, layer->part)) continue;
        for (unsigned j = 0; j < 2; j++) {
            if (layer->tensor[j] != KVC_NONE && c->tensor[layer->tensor[j]].role == v->role)
                return layer->tensor[j];
        }
    }
    kvc_fail(e, KVC_ERR_USAGE,
             "layer %" PRIu32 " has no %s%s: --layers lists the roles of each layer", v->layer,
             kvc_role_name(v->role), options->part == KVC_NONE ? "" : " in that part");
    return KVC_NONE;
}

/* Returns the first sorted row whose position is at least `pos`, or the number of rows. */
static uint64_t row_at(const struct kvc_cells *cells, uint64_t pos) {
    return pos > INT64_MAX ? cells->n : kvc_cells_row_from(cells, (int64_t)pos);
}

/* Prints positions and values of rows [row, end) of tensor t, a block at a time. */
static int value_rows(struct dump_out *o, const struct kvc_cache *c, uint32_t t,
                      const struct dump_values *v, uint64_t row, uint64_t end,
                      struct kvc_error *e) {
    const struct kvc_shape *shape = &c->tensor[t].shape;
    const struct kvc_cells *cells = &c->part[c->layer[c->tensor[t].layer].part].cells;
    uint64_t bytes = kvc_row_bytes(shape), width = shape->heads * shape->dim;
    uint64_t at = v->all_heads ? 0 : v->head * shape->dim, n = v->all_heads ? width : shape->dim;
    uint64_t most = KVC_BLOCK;
    while (most > 1 && most * (bytes > 4 * width ? bytes : 4 * width) > UINT64_C(1) << 26)
        most /= 2;
    uint8_t *rows = kvc_alloc(most, bytes);
    float *values = kvc_alloc(width, sizeof *values);
    int status = rows && values ? 0 : kvc_fail_memory(e, "values");
    while (!status && row < end) {
        uint64_t block_end = cells->block[kvc_cells_block_of(cells, row) + 1];
        uint64_t stop = block_end < end ? block_end : end,
                 batch = stop - row < most ? stop - row : most;
        status = c->read(c, t, row, batch, rows, e);
        for (uint64_t i = 0; !status && i < batch; i++) {
            status = kvc_rows_to_floats(c, t, values, rows + i * bytes, 1, 1, e);
            if (status) break;
            dump_row(o);
            dump_i64(o, kvc_cells_position(cells, row + i));
            dump_floats(o, values + at, n);
            dump_row_end(o);
        }
        row += batch;
    }
    free(rows);
    free(values);
    return status;
}

int dump_values(struct dump_out *o, const struct kvc_opened *f, struct dump_options *options,
                struct kvc_error *e) {
    static const struct dump_column columns[] = {{"position", 8}, {"values", -1}, {NULL, 0}};
    const struct kvc_cache *c = f->cache;
    const struct dump_values *v = &options->values;
    if (dump_check_part(c, options, e)) return -1;
    uint32_t t = find_tensor(c, options, e);
    if (t == KVC_NONE) return -1;
    const struct kvc_tensor *tensor = &c->tensor[t];
    const struct kvc_cells *cells = &c->part[c->layer[tensor->layer].part].cells;
    if (!v->all_heads && v->head >= tensor->shape.heads)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "layer %" PRIu32 " %s has no head %" PRIu64 ": there %s %" PRIu64 "%s",
                        v->layer, kvc_role_name(v->role), v->head,
                        tensor->shape.heads == 1 ? "is" : "are", tensor->shape.heads,
                        !c->meta.facts.heads_unknown
                            ? ""
                            : " (the number is not known: --kv-heads gives it)");
    uint64_t row = row_at(cells, v->first),
             end = v->end == UINT64_MAX ? cells->n : row_at(cells, v->end);
    /* Without a range all rows are printed, also those of negative positions. */
    if (v->first == 0 && v->end == UINT64_MAX) row = 0;
    dump_begin(o, f->input.name);
    dump_table(o, "values", "value", columns);
    int status = value_rows(o, c, t, v, row, end, e);
    dump_table_end(o);
    return status;
}

static void stats_row(struct dump_out *o, const struct kvc_cache *c, uint32_t t, uint64_t head,
                      const struct kvc_stats *s) {
    const struct kvc_layer *layer = &c->layer[c->tensor[t].layer];
    dump_row(o);
    dump_u64(o, layer->part);
    dump_u64(o, layer->index);
    dump_text(o, kvc_role_name(c->tensor[t].role));
    dump_u64(o, head);
    dump_u64(o, s->values);
    dump_f64(o, s->mean);
    dump_f64(o, s->rms);
    dump_f64(o, s->max_abs);
    dump_u64(o, s->nan);
    dump_u64(o, s->inf);
    dump_u64(o, s->outlier_channels);
    dump_u64(o, s->worst_channel);
    dump_f64(o, s->worst_rms);
    dump_row_end(o);
}

static int tensor_rows(struct dump_out *o, const struct kvc_cache *c, uint32_t t,
                       struct cli_progress *p, struct kvc_error *e) {
    uint64_t heads = c->tensor[t].shape.heads;
    struct kvc_stats *stats = kvc_alloc(heads, sizeof *stats);
    int status = stats ? kvc_tensor_stats(c, t, stats, e) : kvc_fail_memory(e, "statistics");
    cli_progress_end(p); /* before rows are printed */
    for (uint64_t h = 0; !status && h < heads; h++) stats_row(o, c, t, h, &stats[h]);
    free(stats);
    return status;
}

int dump_stats(struct dump_out *o, const struct kvc_opened *f, struct dump_options *options,
               struct kvc_error *e) {
    static const struct dump_column columns[] = {
        {"part", 4},     {"layer", 5},          {"role", -7},      {"head", 4}, {"values", 9},
        {"mean", 12},    {"rms", 11},           {"max_abs", 11},   {"nan", 5},  {"inf", 5},
        {"outliers", 8}, {"worst_channel", 13}, {"worst_rms", 11}, {NULL, 0}};
    const struct kvc_cache *c = f->cache;
    struct cli_progress progress;
    int status = dump_check_part(c, options, e);
    if (status) return -1;
    dump_begin(o, f->input.name);
    dump_table(o, "stats", "stats", columns);
    uint64_t done = 0, total = 0;
    for (uint32_t t = 0; t < c->n_tensors; t++) total += kvc_tensor_bytes(&c->tensor[t]);
    cli_progress_start(&progress, f->input.name, options->quiet);
    for (uint32_t i = 0; i < c->n_layers && !status; i++) {
        for (unsigned j = 0; j < 2 && !status; j++) {
            uint32_t t = c->layer[i].tensor[j];
            if (t == KVC_NONE || !dump_wants_part(options, c->layer[i].part)) continue;
            status = tensor_rows(o, c, t, &progress, e);
            cli_progress_show(&progress, done += kvc_tensor_bytes(&c->tensor[t]), total);
        }
    }
    cli_progress_end(&progress);
    dump_table_end(o);
    return status;
}
