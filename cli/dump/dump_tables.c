/* dump_tables.c: kvc-dump --layers and --tokens. Not for values (dump_values.c). */
#include "cli/dump/dump.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Returns tensor i of a layer, or NULL. */
static const struct dump_tensor *tensor_of(const struct dump_file *f,
                                           const struct kvc_layer_info *layer, unsigned i) {
    return layer->tensor[i] == KVC_NO_NUMBER ? NULL : &f->tensor[layer->tensor[i]];
}

/* Prints texts of a layer's two tensors as one cell: both, with a mark between them, or the one
 * that is there; `same`: texts that are equal only once. */
static void pair_cell(struct dump_out *o, const char *a, const char *b, const char *mark,
                      int same) {
    char text[2 * 2048 + 8]; /* the text of a pipeline has fewer than 2048 characters */
    if (!a || !b || (same && strcmp(a, b) == 0)) {
        dump_text(o, a ? a : b);
        return;
    }
    snprintf(text, sizeof text, "%s%s%s", a, mark, b);
    dump_text(o, text);
}

static void layer_row(struct dump_out *o, const struct dump_file *f,
                      const struct kvc_layer_info *layer) {
    const struct kvc_part_info *part = &f->part[layer->part];
    const struct dump_tensor *t[2] = {tensor_of(f, layer, 0), tensor_of(f, layer, 1)};
    const struct dump_tensor *first = t[0] ? t[0] : t[1];
    uint64_t bytes = 0, stored = 0;
    char text[64];
    for (unsigned i = 0; i < 2; i++) {
        bytes += t[i] ? t[i]->more.bytes : 0;
        stored += t[i] ? t[i]->more.stored : 0;
    }
    dump_row(o);
    dump_u64(o, layer->part);
    dump_u64(o, layer->layer);
    dump_text(o, layer->kind);
    if (first) pair_cell(o, t[0] ? t[0]->info.role : NULL, t[1] ? t[1]->info.role : NULL, ",", 0);
    else dump_text(o, "");
    if (layer->window) dump_u64(o, layer->window);
    else dump_none(o);
    if (first && !f->facts.heads_unknown) dump_u64(o, first->info.heads);
    else dump_none(o);
    for (unsigned i = 0; i < 2; i++) {
        if (t[i]) dump_u64(o, t[i]->info.dim);
        else dump_none(o);
    }
    for (unsigned i = 0; i < 2; i++) dump_text(o, t[i] ? t[i]->info.dtype : NULL);
    dump_u64(o, part->cells);
    dump_text(o, dump_positions_text(part, text, sizeof text));
    dump_u64(o, bytes);
    if (f->source.packed) {
        dump_u64(o, stored);
        if (stored) dump_f64(o, (double)bytes / (double)stored);
        else dump_none(o);
        pair_cell(o, t[0] ? t[0]->more.pipeline : NULL, t[1] ? t[1]->more.pipeline : NULL, "/", 1);
    }
    dump_row_end(o);
}

int dump_layers(struct dump_out *o, const struct dump_file *f, struct dump_options *options,
                struct kvc_error *e) {
    static const struct dump_column engine[] = {{"part", 4},     {"layer", 5},  {"kind", -9},
                                                {"roles", -7},   {"window", 6}, {"heads", 5},
                                                {"k_dim", 6},    {"v_dim", 6},  {"k_dtype", -7},
                                                {"v_dtype", -7}, {"cells", 7},  {"positions", -12},
                                                {"bytes", 11},   {NULL, 0}};
    static const struct dump_column container[] = {
        {"part", 4},      {"layer", 5},       {"kind", -9},  {"roles", -7},   {"window", 6},
        {"heads", 5},     {"k_dim", 6},       {"v_dim", 6},  {"k_dtype", -7}, {"v_dtype", -7},
        {"cells", 7},     {"positions", -12}, {"bytes", 11}, {"stored", 11},  {"ratio", 8},
        {"pipeline", -8}, {NULL, 0}};
    if (dump_check_part(f, options, e)) return -1;
    dump_begin(o, f->source.name);
    dump_table(o, "layers", "layer", f->source.packed ? container : engine);
    for (uint32_t i = 0; i < f->facts.layers; i++)
        if (dump_wants_part(options, f->layer[i].part)) layer_row(o, f, &f->layer[i]);
    dump_table_end(o);
    dump_draw_layers(o, f, options);
    return 0;
}

struct place {
    int64_t pos;
    uint32_t part, cell;
};

static int dump_tables_by_place(const void *a, const void *b) {
    const struct place *x = a, *y = b;
    if (x->pos != y->pos) return x->pos < y->pos ? -1 : 1;
    if (x->part != y->part) return x->part < y->part ? -1 : 1;
    return x->cell < y->cell ? -1 : x->cell > y->cell;
}

/* Returns all *n cells of the selected parts, by position. The caller frees them. */
static struct place *all_places(const struct dump_file *f, const struct dump_options *options,
                                uint64_t *n, struct kvc_error *e) {
    uint64_t total = 0;
    for (uint32_t p = 0; p < f->facts.parts; p++)
        total += dump_wants_part(options, p) ? f->part[p].cells : 0;
    struct place *place = calloc(total + 1, sizeof *place), *at = place;
    if (!place) {
        cli_no_memory(e, "a list of cells");
        return NULL;
    }
    for (uint32_t p = 0; p < f->facts.parts; p++) {
        struct kvc_cell_info cell = {.size = sizeof cell};
        if (!dump_wants_part(options, p)) continue;
        for (uint64_t i = 0; !kvc_file_cell(f->cache, p, i, &cell); i++)
            *at++ = (struct place){cell.position, p, (uint32_t)i};
    }
    qsort(place, (size_t)total, sizeof *place, dump_tables_by_place);
    *n = total;
    return place;
}

static void words_cell(struct dump_out *o, const struct kvc_cell_info *cell) {
    char text[512] = "";
    size_t used = 0;
    if (!cell->words) {
        dump_none(o);
        return;
    }
    for (uint64_t i = 0; i < cell->n_words; i++) {
        if (used + 16 > sizeof text) { /* marks that thousands of sequences share the cell */
            snprintf(text + used, sizeof text - used, " ...");
            break;
        }
        int n = snprintf(text + used, sizeof text - used, "%s%" PRId32, used ? " " : "",
                         (int32_t)cell->words[i]);
        used += n > 0 ? (size_t)n : 0;
    }
    dump_text(o, text);
}

/* Prints a row. `token` is NULL for a position without an id, `place` for an id without a cell. */
static void token_row(struct dump_out *o, const struct dump_file *f,
                      const struct dump_options *options, int64_t pos, const int32_t *token,
                      const struct place *place) {
    struct kvc_cell_info cell = {.size = sizeof cell};
    char text[512];
    dump_row(o);
    dump_i64(o, pos);
    if (token) dump_i64(o, *token);
    else dump_none(o);
    if (place) {
        kvc_file_cell(f->cache, place->part, place->cell, &cell);
        dump_u64(o, place->part);
        dump_u64(o, place->cell);
    } else {
        dump_none(o);
        dump_none(o);
    }
    words_cell(o, &cell);
    if (options->texts)
        dump_text(o, token && kvc_shared_text(options->texts, *token, text, sizeof text) ? text
                                                                                         : NULL);
    dump_row_end(o);
}

int dump_tokens(struct dump_out *o, const struct dump_file *f, struct dump_options *options,
                struct kvc_error *e) {
    static const struct dump_column columns[] = {{"position", 8}, {"token", 8},  {"part", 4},
                                                 {"cell", 7},     {"words", -8}, {NULL, 0}};
    static const struct dump_column with_text[] = {{"position", 8}, {"token", 8},  {"part", 4},
                                                   {"cell", 7},     {"words", -8}, {"text", -1},
                                                   {NULL, 0}};
    uint64_t n, ids, next = 0; /* the next token that has not been shown */
    const int32_t *id = kvc_file_tokens(f->cache, &ids);
    if (dump_check_part(f, options, e)) return -1;
    struct place *place = all_places(f, options, &n, e);
    int64_t *at = place ? kvc_file_token_positions(f->cache, e) : NULL;
    if (!at) {
        free(place);
        return -1;
    }
    dump_begin(o, f->source.name);
    dump_table(o, "tokens", "token", options->texts ? with_text : columns);
    for (uint64_t i = 0; i < n; i++) {
        int64_t pos = place[i].pos;
        for (; next < ids && at[next] < pos; next++)
            token_row(o, f, options, at[next], &id[next], NULL);
        int has_id = next < ids && at[next] == pos;
        token_row(o, f, options, pos, has_id ? &id[next] : NULL, &place[i]);
        if (has_id && (i + 1 == n || place[i + 1].pos != pos)) next++;
    }
    for (; next < ids; next++) token_row(o, f, options, at[next], &id[next], NULL);
    free(at);
    dump_table_end(o);
    free(place);
    return 0;
}
