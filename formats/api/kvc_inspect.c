/* kvc_inspect.c: implements kvc_inspect.h, but for profiles and models (kvc_profile.c). Tells what
 * caches and containers hold. */
#include "formats/api/kvc_inspect.h"

#include "codecs/memory.h"
#include "formats/api/kvc_file.h"
#include "formats/api/sized.h"
#include "formats/cache/extents.h"
#include "formats/cache/keys.h"
#include "formats/cache/prefix.h"
#include "formats/cache/prefix_extras.h"
#include "formats/cache/rows.h"
#include "formats/cache/scales.h"
#include "formats/compare/value_sums.h"
#include "formats/container/container.h"
#include "formats/io/parallel.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static_assert(KVC_NO_NUMBER == KVC_NONE, "absent tensors are those of cache.h");

/* --- facts --- */

static int scales_known(const struct kvc_cache *c) {
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (kvc_scales_need(c, t, NULL)) return 0;
    return 1;
}

static const char *place_of_profile(const struct kvc_cache *c) {
    int embedded = 0;
    if (!kvc_cache_is_container(c) || !kvc_meta_find(&c->meta, KVC_KEY_PROFILE)) return NULL;
    const struct kvc_profile *p = kvc_container_profile(c, &embedded);
    return embedded ? "inside" : p ? "found" : "missing";
}

int kvc_file_describe(const struct kvc_file *f, struct kvc_file_facts *facts) {
    const struct kvc_cache *c = f->cache;
    const struct kvc_container_header header = kvc_container_header(c);
    struct kvc_file_facts own = {
        .tokens = c->tokens    ? c->n_tokens
                  : c->n_parts ? c->part[0].cells.n
                               : 0,
        .parts = c->n_parts,
        .layers = c->n_layers,
        .tensors = c->n_tensors,
        .heads_unknown = c->meta.facts.heads_unknown,
        .layers_unknown = c->meta.facts.layers_unknown,
        .has_model = kvc_file_whole(f)->opened.has_model,
        .scaled = kvc_cache_is_scaled(c),
        .scales_known = scales_known(c),
        .prefix_keys = c->n_prefix_keys,
        .pieces = kvc_cache_is_container(c) ? kvc_container_records(c) : c->n_extents,
        .write_version = header.write_version,
        .read_version = header.read_version,
        .align = header.align,
        .lossless = kvc_container_lossless(c),
        .profile = place_of_profile(c),
    };
    memcpy(own.content_id, header.content_id, sizeof own.content_id);
    return kvc_sized_give(facts, &own, sizeof own, "kvc_file_facts", NULL);
}

int kvc_file_extras(const struct kvc_file *f, uint64_t *n, struct kvc_error *e) {
    if (KVC_NULL(e, f, n)) return -1;
    struct kvc_extra *item;
    size_t items;
    if (kvc_extras_list(&f->cache->meta, &item, &items, e)) return kvc_error_prefix(e, f->name);
    free(item);
    *n = items;
    return 0;
}

int kvc_file_meta_value(const struct kvc_file *f, const char *key, struct kvc_meta_value *v) {
    static const char *const types[] = {"", "bool", "u64", "i64", "f64", "text", "bytes", "u64s"};
    const struct kvc_meta *m = &f->cache->meta;
    const struct kvc_meta_entry *x = kvc_meta_find(m, key);
    struct kvc_meta_value own = {.type = NULL};
    if (x) {
        const int is_bytes = x->type == KVC_META_BYTES || x->type == KVC_META_U64S;
        own = (struct kvc_meta_value){
            .type = types[(size_t)x->type < sizeof types / sizeof *types ? x->type : 0],
            .critical = x->critical,
            .u64 = x->type == KVC_META_BOOL ? (uint64_t)kvc_meta_bool(m, key, 0)
                                            : kvc_meta_u64(m, key, 0),
            .i64 = kvc_meta_i64(m, key, 0),
            .f64 = kvc_meta_f64(m, key, 0),
            .text = kvc_meta_text(m, key, NULL),
            .bytes = is_bytes ? x->value : NULL,
            .n_bytes = is_bytes ? x->size : 0,
        };
    }
    return kvc_sized_give(v, &own, sizeof own, "kvc_meta_value", NULL) || !x ? -1 : 0;
}

int kvc_file_part(const struct kvc_file *f, uint32_t i, struct kvc_part_info *info) {
    if (i >= f->cache->n_parts) return -1;
    const struct kvc_part *part = &f->cache->part[i];
    const struct kvc_cells *cells = &part->cells;
    struct kvc_part_info own = {.kind = kvc_part_kind_name(part->kind),
                                .stream = part->stream,
                                .snapshot = part->snapshot,
                                .cells = cells->n,
                                .ascending = 1};
    if (cells->n) own.first = kvc_cells_position(cells, 0);
    if (cells->n) own.last = kvc_cells_position(cells, cells->n - 1);
    for (uint64_t k = 1; k < cells->n && own.ascending; k++)
        own.ascending = cells->pos[k] > cells->pos[k - 1];
    return kvc_sized_give(info, &own, sizeof own, "kvc_part_info", NULL);
}

int kvc_file_layer(const struct kvc_file *f, uint32_t i, struct kvc_layer_info *info) {
    if (i >= f->cache->n_layers) return -1;
    const struct kvc_layer *layer = &f->cache->layer[i];
    const struct kvc_layer_info own = {.part = layer->part,
                                       .layer = layer->index,
                                       .kind = kvc_layer_kind_name(layer->kind),
                                       .window = (uint32_t)kvc_layer_window(&f->cache->meta.facts,
                                                                            layer),
                                       .tensor = {layer->tensor[0], layer->tensor[1]}};
    return kvc_sized_give(info, &own, sizeof own, "kvc_layer_info", NULL);
}

int kvc_file_tensor_more(const struct kvc_file *f, uint32_t i, struct kvc_tensor_more *m) {
    const struct kvc_cache *c = f->cache;
    if (i >= c->n_tensors) return -1;
    const int packed = kvc_cache_is_container(c);
    struct kvc_tensor_more own = {.part = kvc_tensor_layer(c, i)->part,
                                  .layer = c->tensor[i].layer,
                                  .bytes = kvc_tensor_bytes(&c->tensor[i]),
                                  .stored = packed ? kvc_container_stored(c, i) : 0,
                                  .pipeline = packed ? kvc_container_pipeline(c, i) : NULL};
    kvc_tensor_label(c, i, own.label, sizeof own.label);
    return kvc_sized_give(m, &own, sizeof own, "kvc_tensor_more", NULL);
}

/* Refuses the number of a tensor that is not there. */
static int no_tensor(const struct kvc_file *f, uint32_t tensor, struct kvc_error *e) {
    if (tensor < f->cache->n_tensors) return 0;
    return kvc_fail(e, KVC_ERR_USAGE, "%s: there is no such tensor", f->name);
}

int kvc_file_transform(const struct kvc_file *f, uint32_t tensor, char *text, size_t size,
                       struct kvc_error *e) {
    if (KVC_NULL(e, f)) return -1;
    if (size && KVC_NULL(e, text)) return -1;
    if (no_tensor(f, tensor, e)) return -1;
    if (size) *text = '\0';
    if (!kvc_cache_is_container(f->cache)) return 0;
    return kvc_container_transform(f->cache, tensor, text, size, e) ? kvc_error_prefix(e, f->name)
                                                                    : 0;
}

const char *kvc_file_doubts(const struct kvc_file *f, const char *tool, char *text, size_t size) {
    struct kvc_rows rows;
    if (size) *text = '\0';
    if (size && !kvc_rows_look(&rows, f->cache, NULL)) kvc_rows_say(&rows, tool, text, size);
    return text;
}

int kvc_file_cell(const struct kvc_file *f, uint32_t part, uint64_t cell,
                  struct kvc_cell_info *info) {
    if (part >= f->cache->n_parts || cell >= f->cache->part[part].cells.n) return -1;
    const struct kvc_cells *cells = &f->cache->part[part].cells;
    struct kvc_cell_info own = {.position = cells->pos[cell]};
    if (cells->words) {
        own.words = cells->words + cells->word_at[cell];
        own.n_words = cells->word_at[cell + 1] - cells->word_at[cell];
    }
    return kvc_sized_give(info, &own, sizeof own, "kvc_cell_info", NULL);
}

int64_t *kvc_file_token_positions(const struct kvc_file *f, struct kvc_error *e) {
    if (KVC_NULL(e, f)) return NULL;
    return kvc_cache_token_positions(f->cache, e);
}

int kvc_file_match_how(const struct kvc_file *f, const int32_t *tokens, uint64_t n,
                       struct kvc_match_info *info, struct kvc_error *e) {
    if (KVC_NULL(e, f, info)) return -1;
    if (n && KVC_NULL(e, tokens)) return -1;
    struct kvc_prefix_matched m;
    if (kvc_prefix_match(f->cache, tokens, n, &m, e)) return kvc_error_prefix(e, f->name);
    const struct kvc_match_info own = {.common = m.common, .first = m.first, .by_keys = m.by_keys};
    return kvc_sized_give(info, &own, sizeof own, "kvc_match_info", e);
}

/* --- the places of bytes --- */

/* Describes a section; returns what the caller gets. */
static struct kvc_piece_section section_of(const struct kvc_section *s) {
    return (struct kvc_piece_section){.size = sizeof(struct kvc_piece_section),
                                      .type = kvc_section_name(s->type),
                                      .coder = kvc_coder_name(s->coder),
                                      .stage = s->stage == KVC_NO_STAGE ? -1 : s->stage,
                                      .index = s->index,
                                      .stored = s->size,
                                      .decoded = s->raw_size};
}

static int find_record(const struct kvc_cache *c, uint64_t i, struct kvc_piece_info *own,
                       struct kvc_piece_section *section, size_t room, struct kvc_error *e) {
    enum { MOST = 65536 }; /* their number has 16 bits */
    struct kvc_section *list = NULL;
    struct kvc_record_info r;
    const unsigned most = room < MOST ? (unsigned)room : MOST;
    if (section && !(list = kvc_alloc(most, sizeof *list)))
        return kvc_fail_memory(e, "a list of sections");
    int status = kvc_container_record(c, i, &r, list, most, e);
    for (unsigned s = 0; section && !status && s < r.n_sections && s < most; s++) {
        const struct kvc_piece_section one = section_of(&list[s]);
        status = kvc_sized_give_at(section, s, &one, sizeof one, "kvc_piece_section", e);
    }
    free(list);
    if (status) return -1;
    *own = (struct kvc_piece_info){.kind = kvc_record_name(r.type),
                                   .tensor = r.tensor,
                                   .bytes = r.size,
                                   .side = r.type == KVC_RECORD_SIDE,
                                   .offset = r.offset,
                                   .block = r.block,
                                   .rows = r.rows,
                                   .check = r.check,
                                   .digest = r.digest,
                                   .has_digest = r.type == KVC_RECORD_BLOCK,
                                   .sections = r.n_sections};
    return 0;
}

static void find_extent(const struct kvc_cache *c, uint64_t i, struct kvc_piece_info *own) {
    const struct kvc_extent *x = &c->extent[i];
    *own = (struct kvc_piece_info){.kind = x->n_places ? "region" : "literal",
                                   .tensor = KVC_NONE,
                                   .bytes = x->size,
                                   .places = x->n_places};
    if (kvc_extent_is_tensor(c, x, &own->tensor)) own->kind = "tensor";
    else own->tensor = KVC_NONE;
}

int kvc_file_piece(const struct kvc_file *f, uint64_t i, struct kvc_piece_info *info,
                   struct kvc_piece_section *section, size_t room, struct kvc_error *e) {
    if (KVC_NULL(e, f, info)) return -1;
    const struct kvc_cache *c = f->cache;
    struct kvc_piece_info own;
    if (kvc_cache_is_container(c)) {
        if (find_record(c, i, &own, section, room, e)) return kvc_error_prefix(e, f->name);
    } else if (i < c->n_extents) {
        find_extent(c, i, &own);
    } else {
        return kvc_fail(e, KVC_ERR_USAGE, "%s: there is no such extent", f->name);
    }
    return kvc_sized_give(info, &own, sizeof own, "kvc_piece_info", e);
}

/* --- values --- */

int kvc_file_read_floats(const struct kvc_file *f, uint32_t tensor, uint64_t first, uint64_t n,
                         float *dst, size_t size, struct kvc_error *e) {
    if (KVC_NULL(e, f)) return -1;
    if (n && KVC_NULL(e, dst)) return -1;
    if (no_tensor(f, tensor, e)) return -1;
    const struct kvc_shape *shape = &f->cache->tensor[tensor].shape;
    const uint64_t row_bytes = kvc_row_bytes(shape);
    if (KVC_SHORT(e, dst, size, n, shape->heads * shape->dim * sizeof *dst)) return -1;
    uint8_t *rows = kvc_alloc(n, row_bytes);
    int status = rows ? kvc_file_read(f, tensor, first, n, rows, n * row_bytes, e)
                      : kvc_fail_memory(e, "values");
    if (!status && kvc_rows_to_floats(f->cache, tensor, dst, rows, n, 1, e))
        status = kvc_error_prefix(e, f->name);
    free(rows);
    return status;
}

static int give_spread(struct kvc_value_spread *spread, size_t i,
                       const struct kvc_value_spread *own, struct kvc_error *e) {
    return kvc_sized_give_at(spread, i, own, sizeof *own, "kvc_value_spread", e);
}

struct spreading {
    const struct kvc_cache *c;
    const uint32_t *tensor;
    uint64_t most_rows;
    void (*done)(void *state, size_t i);
    void *state;
    struct kvc_value_spread *spread;
};

/* Reads what the caller gets from the sums. */
static int read_spread(struct kvc_value_spread *s, const struct kvc_value_sums *sums,
                       struct kvc_error *e) {
    if (!(s->rms = kvc_alloc(sums->channels, sizeof *s->rms)))
        return kvc_fail_memory(e, "sums of values");
    s->rows = sums->rows;
    s->channels = sums->channels;
    s->zero = sums->zero;
    s->other = sums->other;
    memcpy(s->octave, sums->octave, sizeof s->octave);
    for (uint64_t i = 0; i < sums->channels; i++) s->rms[i] = kvc_value_sums_rms(sums, i);
    return 0;
}

static int spread_one(void *state, uint64_t item, void **result, struct kvc_error *e) {
    struct spreading *x = state;
    struct kvc_value_sums sums;
    struct kvc_value_spread own = {.size = sizeof own};
    struct kvc_error *why = kvc_error_new();
    (void)result;
    if (!why) return kvc_fail_memory(e, "an error");
    int status = kvc_value_sums_take(x->c, x->tensor[item], x->most_rows, &sums, why);
    if (!status) status = read_spread(&own, &sums, why);
    kvc_value_sums_free(&sums);
    if (status) own.error = why;
    else kvc_error_free(why);
    return give_spread(x->spread, (size_t)item, &own, e);
}

static int spread_done(void *state, uint64_t item, void *result, struct kvc_error *e) {
    const struct spreading *x = state;
    (void)e;
    (void)result;
    if (x->done) x->done(x->state, (size_t)item);
    return 0;
}

int kvc_file_value_spread(const struct kvc_file *f, const uint32_t *tensor, size_t n,
                          uint64_t most_rows, void (*done)(void *state, size_t i), void *state,
                          struct kvc_value_spread *spread, struct kvc_error *e) {
    static const struct kvc_value_spread empty = {.size = sizeof empty};
    if (KVC_NULL(e, f)) return -1;
    if (n && KVC_NULL(e, tensor, spread)) return -1;
    struct spreading x = {f->cache, tensor, most_rows, done, state, spread};
    const struct kvc_job job = {.n = n, .work = spread_one, .commit = spread_done, .state = &x};
    for (size_t i = 0; i < n; i++)
        if (give_spread(spread, i, &empty, e)) return -1;
    for (size_t i = 0; i < n; i++)
        if (no_tensor(f, tensor[i], e)) return -1;
    return kvc_parallel(&job, kvc_cache_threads(f->cache, 0), e);
}

void kvc_value_spread_free(struct kvc_value_spread *spread, size_t n) {
    for (size_t i = 0; spread && i < n; i++) {
        struct kvc_value_spread *s = kvc_sized_at(spread, i);
        free(s->rms);
        kvc_error_free(s->error);
        kvc_sized_clear(s);
    }
}
