/* dump_tables.c: kvc-dump --layers and --tokens. Not for values (dump_values.c). */
#include "cli/dump/dump_facts.h"
#include "codecs/memory.h"
#include "formats/container/container.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int dump_check_part(const struct kvc_cache *c, const struct dump_options *options,
                    struct kvc_error *e) {
    if (options->part == KVC_NONE || options->part < c->n_parts) return 0;
    return kvc_fail(e, KVC_ERR_USAGE,
                    "there is no part %" PRIu32 ": the file has %" PRIu32 " (0 is the first)",
                    options->part, c->n_parts);
}

int dump_wants_part(const struct dump_options *options, uint32_t p) {
    return options->part == KVC_NONE || options->part == p;
}

/* Writes the roles of the layer's tensors: "K,V". */
static void roles_text(const struct kvc_cache *c, const struct kvc_layer *layer, char *text,
                       size_t size) {
    *text = '\0';
    for (unsigned i = 0; i < 2; i++) {
        if (layer->tensor[i] == KVC_NONE) continue;
        size_t used = strlen(text);
        snprintf(text + used, size - used, "%s%s", used ? "," : "",
                 kvc_role_name(c->tensor[layer->tensor[i]].role));
    }
}

static uint64_t tensor_bytes(const struct kvc_tensor *t) {
    return t->shape.tokens * kvc_row_bytes(&t->shape);
}

/* Writes the pipelines of a layer: "zstd", or "zstd/store" if its two tensors have different
 * pipelines. */
static void pipeline_cell(struct dump_out *o, const struct kvc_cache *c,
                          const struct kvc_layer *layer) {
    const char *name[2] = {NULL, NULL};
    char text[2 * 2048]; /* the text of a pipeline has fewer than 2048 characters */
    for (unsigned i = 0; i < 2; i++) {
        if (layer->tensor[i] != KVC_NONE) name[i] = kvc_container_pipeline(c, layer->tensor[i]);
    }
    if (name[0] && name[1] && strcmp(name[0], name[1]) != 0) {
        snprintf(text, sizeof text, "%s/%s", name[0], name[1]);
        dump_text(o, text);
    } else {
        dump_text(o, name[0] ? name[0] : name[1]);
    }
}

static void layer_row(struct dump_out *o, const struct kvc_cache *c, const struct kvc_layer *layer,
                      const char *positions) {
    char text[64];
    uint64_t bytes = 0, stored = 0;
    const struct kvc_tensor *tensor[2];
    for (unsigned i = 0; i < 2; i++) {
        tensor[i] = layer->tensor[i] == KVC_NONE ? NULL : &c->tensor[layer->tensor[i]];
        if (!tensor[i]) continue;
        bytes += tensor_bytes(tensor[i]);
        if (kvc_cache_is_container(c)) stored += kvc_container_stored(c, layer->tensor[i]);
    }
    const struct kvc_tensor *first = tensor[0] ? tensor[0] : tensor[1];
    dump_row(o);
    dump_u64(o, layer->part);
    dump_u64(o, layer->index);
    dump_text(o, kvc_layer_kind_name(layer->kind));
    roles_text(c, layer, text, sizeof text);
    dump_text(o, text);
    if (layer->window) dump_u64(o, layer->window);
    else dump_none(o);
    if (first && !c->meta.facts.heads_unknown) dump_u64(o, first->shape.heads);
    else dump_none(o);
    for (unsigned i = 0; i < 2; i++) {
        if (tensor[i]) dump_u64(o, tensor[i]->shape.dim);
        else dump_none(o);
    }
    for (unsigned i = 0; i < 2; i++)
        dump_text(o, tensor[i] ? kvc_dtype_info(tensor[i]->shape.dtype)->name : NULL);
    dump_u64(o, c->part[layer->part].cells.n);
    dump_text(o, positions);
    dump_u64(o, bytes);
    if (kvc_cache_is_container(c)) {
        dump_u64(o, stored);
        if (stored) dump_f64(o, (double)bytes / (double)stored);
        else dump_none(o);
        pipeline_cell(o, c, layer);
    }
    dump_row_end(o);
}

int dump_layers(struct dump_out *o, const struct kvc_opened *f, struct dump_options *options,
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
    const struct kvc_cache *c = f->cache;
    if (dump_check_part(c, options, e)) return -1;
    dump_begin(o, f->input.name);
    dump_table(o, "layers", "layer", kvc_cache_is_container(c) ? container : engine);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct kvc_layer *layer = &c->layer[i];
        const struct kvc_cells *cells = &c->part[layer->part].cells;
        char positions[64];
        if (!dump_wants_part(options, layer->part)) continue;
        layer_row(o, c, layer, dump_positions_text(cells, positions, sizeof positions));
    }
    dump_table_end(o);
    dump_draw_layers(o, c);
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
static struct place *all_places(const struct kvc_cache *c, const struct dump_options *options,
                                uint64_t *n, struct kvc_error *e) {
    uint64_t total = 0;
    for (uint32_t p = 0; p < c->n_parts; p++)
        total += dump_wants_part(options, p) ? c->part[p].cells.n : 0;
    struct place *place = kvc_alloc(total + 1, sizeof *place);
    if (!place) {
        kvc_fail_memory(e, "a list of cells");
        return NULL;
    }
    struct place *at = place;
    for (uint32_t p = 0; p < c->n_parts; p++) {
        const struct kvc_cells *cells = &c->part[p].cells;
        if (!dump_wants_part(options, p)) continue;
        for (uint64_t i = 0; i < cells->n; i++)
            *at++ = (struct place){cells->pos[i], p, (uint32_t)i};
    }
    qsort(place, (size_t)total, sizeof *place, dump_tables_by_place);
    *n = total;
    return place;
}

static void words_cell(struct dump_out *o, const struct kvc_cells *cells, uint32_t cell) {
    char text[512];
    size_t used = 0;
    if (!cells->words) {
        dump_none(o);
        return;
    }
    text[0] = '\0';
    for (uint64_t i = cells->word_at[cell]; i < cells->word_at[cell + 1]; i++) {
        if (used + 16 > sizeof text) { /* marks that thousands of sequences share the cell */
            snprintf(text + used, sizeof text - used, " ...");
            break;
        }
        int n = snprintf(text + used, sizeof text - used, "%s%" PRId32, used ? " " : "",
                         (int32_t)cells->words[i]);
        used += n > 0 ? (size_t)n : 0;
    }
    dump_text(o, text);
}

/* Prints a row. `token` is NULL for a position without an id, `place` for an id without a cell. */
static void token_row(struct dump_out *o, const struct kvc_cache *c,
                      const struct dump_options *options, int64_t pos, const int32_t *token,
                      const struct place *place) {
    char text[512];
    dump_row(o);
    dump_i64(o, pos);
    if (token) dump_i64(o, *token);
    else dump_none(o);
    if (place) {
        dump_u64(o, place->part);
        dump_u64(o, place->cell);
        words_cell(o, &c->part[place->part].cells, place->cell);
    } else {
        dump_none(o);
        dump_none(o);
        dump_none(o);
    }
    if (options->texts)
        dump_text(o,
                  token && kvc_token_text(options->texts, *token, text, sizeof text) ? text : NULL);
    dump_row_end(o);
}

int dump_tokens(struct dump_out *o, const struct kvc_opened *f, struct dump_options *options,
                struct kvc_error *e) {
    static const struct dump_column columns[] = {{"position", 8}, {"token", 8},  {"part", 4},
                                                 {"cell", 7},     {"words", -8}, {NULL, 0}};
    static const struct dump_column with_text[] = {{"position", 8}, {"token", 8},  {"part", 4},
                                                   {"cell", 7},     {"words", -8}, {"text", -1},
                                                   {NULL, 0}};
    const struct kvc_cache *c = f->cache;
    uint64_t n, next = 0; /* the next token that has not been shown */
    if (dump_check_part(c, options, e)) return -1;
    struct place *place = all_places(c, options, &n, e);
    int64_t *at = place ? kvc_cache_token_positions(c, e) : NULL;
    if (!at) {
        free(place);
        return -1;
    }
    dump_begin(o, f->input.name);
    dump_table(o, "tokens", "token", options->texts ? with_text : columns);
    for (uint64_t i = 0; i < n; i++) {
        int64_t pos = place[i].pos;
        for (; next < c->n_tokens && at[next] < pos; next++)
            token_row(o, c, options, at[next], &c->tokens[next], NULL);
        int has_id = next < c->n_tokens && at[next] == pos;
        token_row(o, c, options, pos, has_id ? &c->tokens[next] : NULL, &place[i]);
        if (has_id && (i + 1 == n || place[i + 1].pos != pos)) next++;
    }
    for (; next < c->n_tokens; next++) token_row(o, c, options, at[next], &c->tokens[next], NULL);
    free(at);
    dump_table_end(o);
    free(place);
    return 0;
}
