/* arrays_write.c: lists and reads the tensors of a cache as named arrays, for exports. Not for
 * writing any format. */
#include "formats/engines/arrays_write.h"

#include "codecs/memory.h"
#include "formats/cache/scales.h"
#include "formats/io/bytes.h"
#include "formats/cache/view.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- checks --- */

static int is_exported(const struct kvc_part *part, uint32_t stream) {
    return (kvc_part_is_attended(part) && part->stream == stream) ||
           part->kind == KVC_PART_COMPANION;
}

/* Checks that no position occurs twice. Tokens of an image may share a position where cells have
 * further coordinates (M-RoPE), `ext` words before their sequence ids. */
static int same_sequences(const struct kvc_cells *cells, uint32_t a, uint32_t b, uint64_t ext) {
    if (!cells->words || !ext) return 0;
    uint64_t n = cells->word_at[a + 1] - cells->word_at[a];
    if (n < ext || n != cells->word_at[b + 1] - cells->word_at[b]) return 0;
    return !memcmp(cells->words + cells->word_at[a] + ext, cells->words + cells->word_at[b] + ext,
                   (size_t)(n - ext) * sizeof *cells->words);
}

static int check_one_sequence(const struct kvc_cache *c, const struct kvc_cells *cells,
                              struct kvc_error *e) {
    const uint64_t ext = c->meta.facts.coordinates;
    for (uint64_t i = 1; i < cells->n; i++) {
        uint32_t a = kvc_cell_at(cells, i - 1), b = kvc_cell_at(cells, i);
        if (cells->pos[a] == cells->pos[b] && !same_sequences(cells, a, b, ext))
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "position %" PRId64
                            " occurs twice: the cache holds several sequences, and one file holds "
                            "one; save each sequence by itself",
                            cells->pos[a]);
    }
    return 0;
}

int kvc_arrays_stream(const struct kvc_cache *c, uint32_t *stream, struct kvc_error *e) {
    uint32_t live = 0;
    int several = 0;
    *stream = KVC_NONE;
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const struct kvc_part *part = &c->part[i];
        if (!kvc_part_is_attended(part) || !part->cells.n) continue;
        if (*stream == KVC_NONE) *stream = part->stream;
        several |= part->stream != *stream;
        live += part->kind == KVC_PART_LIVE;
    }
    if (several)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "the cache holds %" PRIu32
                        " streams, and one file holds one sequence; save each sequence by itself",
                        live);
    if (*stream == KVC_NONE) *stream = 0;
    for (uint32_t i = 0; i < c->n_parts; i++)
        if (kvc_part_is_attended(&c->part[i]) && check_one_sequence(c, &c->part[i].cells, e))
            return -1;
    return 0;
}

/* --- views --- */

int kvc_arrays_pairing(const struct kvc_cache *c, enum kvc_pairing to, struct kvc_cache **view,
                       struct kvc_error *e) {
    enum kvc_pairing have = c->meta.facts.rope.pairing;
    *view = NULL;
    if (!to || !have || have == KVC_PAIRING_NONE || have == to) return 0;
    if (!c->meta.facts.tile_known[0])
        return kvc_fail(
            e, KVC_ERR_UNSUPPORTED,
            "whether K is Hadamard-rotated is unknown: its RoPE pairing cannot be changed");
    *view = kvc_view_pairing(c, to, e);
    return *view ? 0 : -1;
}

/* Returns the pairing in which transformers keeps K. Unknown means that K stays unchanged, because
 * nothing is paired or the pairing cannot be changed. */
static enum kvc_pairing default_pairing(const struct kvc_cache *c) {
    const struct kvc_facts *facts = &c->meta.facts;
    enum kvc_pairing pairing = kvc_pairing_of_transformers(facts->architecture);
    int fixed = pairing == KVC_PAIRING_NONE || !facts->tile_known[0];
    return fixed ? KVC_PAIRING_UNKNOWN : pairing;
}

int kvc_arrays_needs_float(const struct kvc_cache *c, uint32_t stream) {
    const uint64_t *tile = c->meta.facts.tile;
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const struct kvc_tensor *tensor = &c->tensor[t];
        if (!is_exported(kvc_tensor_part(c, t), stream)) continue;
        if (kvc_dtype_info(tensor->shape.dtype)->block > 1) return 1;
        if ((tensor->role == KVC_ROLE_K && tile[0]) || (tensor->role == KVC_ROLE_V && tile[1]))
            return 1;
    }
    return 0;
}

int kvc_arrays_views(struct kvc_arrays *list, uint32_t stream, const struct kvc_export_options *o,
                     struct kvc_error *e) {
    if (kvc_arrays_needs_float(list->cache, stream)) {
        list->view[0] = kvc_view_float(list->cache, e);
        if (!list->view[0]) return -1;
        list->cache = list->view[0];
    }
    enum kvc_pairing to = o->pairing ? o->pairing : default_pairing(list->cache);
    if (kvc_arrays_pairing(list->cache, to, &list->view[1], e)) return -1;
    if (list->view[1]) list->cache = list->view[1];
    return 0;
}

/* --- the list --- */

static int arrays_write_describe(struct kvc_arrays_item *item, const struct kvc_cache *c,
                                 uint32_t t, int (*keeps)(enum kvc_dtype), struct kvc_error *e) {
    const struct kvc_tensor *tensor = &c->tensor[t];
    const struct kvc_shape *shape = &tensor->shape;
    char label[64];
    kvc_tensor_label(c, t, label, sizeof label);
    if (tensor->role == KVC_ROLE_LATENT || tensor->role == KVC_ROLE_R || tensor->role == KVC_ROLE_S)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s cannot be exported as arrays of K and V",
                        label);
    item->kind = KVC_NAME_TENSOR;
    item->number = t;
    item->dtype = keeps(shape->dtype) ? shape->dtype : KVC_F32;
    if (item->dtype != shape->dtype && kvc_scales_need(c, t, e)) return -1;
    item->size = kvc_dtype_info(item->dtype)->size;
    item->bytes = item->size;
    if (tensor->role == KVC_ROLE_HIDDEN && shape->heads == 1) {
        item->rank = 3;
        memcpy(item->dim, (uint64_t[4]){1, shape->tokens, shape->dim}, sizeof item->dim);
    } else {
        item->rank = 4;
        memcpy(item->dim, (uint64_t[4]){1, shape->heads, shape->tokens, shape->dim},
               sizeof item->dim);
    }
    for (unsigned i = 0; i < item->rank; i++)
        if (__builtin_mul_overflow(item->bytes, item->dim[i], &item->bytes) ||
            item->bytes > SIZE_MAX / 2)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s is too large to export", label);
    return 0;
}

static int compare_items(const void *pa, const void *pb, void *state) {
    const struct kvc_arrays_item *a = pa, *b = pb;
    const struct kvc_cache *c = state;
    if (a->size != b->size) return a->size > b->size ? -1 : 1;
    /* only tokens have the same size */
    if (a->kind != b->kind) return a->kind == KVC_NAME_TENSOR ? 1 : -1;
    if (a->kind != KVC_NAME_TENSOR) return a->number < b->number ? -1 : a->number > b->number;
    const struct kvc_tensor *x = &c->tensor[a->number], *y = &c->tensor[b->number];
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return x->role < y->role ? -1 : x->role > y->role;
}

static int compare_names(const void *pa, const void *pb) {
    const struct kvc_arrays_item *const *a = pa, *const *b = pb;
    return strcmp((*a)->name, (*b)->name);
}

static void print_name(struct kvc_arrays_item *item, const struct kvc_cache *c, int mark_sliding) {
    struct kvc_name name = {.kind = item->kind};
    if (item->kind == KVC_NAME_POSITIONS)
        name.sliding = c->part[item->number].kind == KVC_PART_WINDOW;
    if (item->kind == KVC_NAME_TENSOR) {
        const struct kvc_layer *layer = kvc_tensor_layer(c, item->number);
        name.role = c->tensor[item->number].role;
        name.layer = layer->index;
        name.sliding = mark_sliding && c->part[layer->part].kind == KVC_PART_WINDOW;
    }
    kvc_name_print(&name, item->name, sizeof item->name);
}

/* Names every item. The name of a sliding-window layer begins with "sliding." when `mark_sliding`
 * is set, or when these layers are numbered from 0 as the live ones are (llama.cpp). Two parts with
 * the same names are refused. */
static int name_items(struct kvc_arrays *list, int mark_sliding, struct kvc_error *e) {
    const struct kvc_arrays_item **sorted = kvc_alloc(list->n, sizeof *sorted), *twice = NULL;
    if (!sorted) return kvc_fail_memory(e, "names");
    for (; mark_sliding < 2; mark_sliding++) {
        twice = NULL;
        for (size_t i = 0; i < list->n; i++) {
            print_name(&list->item[i], list->cache, mark_sliding);
            sorted[i] = &list->item[i];
        }
        qsort(sorted, list->n, sizeof *sorted, compare_names);
        for (size_t i = 1; i < list->n && !twice; i++)
            if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0) twice = sorted[i];
        if (!twice) break;
    }
    free(sorted);
    if (!twice) return 0;
    return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                    "two arrays would be named %s: the cache has two such parts", twice->name);
}

/* Returns the part from which an import derives the positions of the others: the first one
 * (arrays_read.h). */
static const struct kvc_part *reference_part(const struct kvc_cache *c, uint32_t stream) {
    const struct kvc_part *best = NULL;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct kvc_part *part = &c->part[c->layer[i].part];
        if (!kvc_part_is_attended(part) || !is_exported(part, stream)) continue;
        if (!best || part->kind < best->kind ||
            (part->kind == best->kind && part->cells.n > best->cells.n))
            best = part;
    }
    return best;
}

static int positions_are_assumed(const struct kvc_part *part, const struct kvc_part *reference) {
    const struct kvc_cells *cells = &part->cells, *others = &reference->cells;
    if (cells->n > others->n) return 0;
    for (uint64_t i = 0; i < cells->n; i++) {
        int64_t assumed = part == reference ? (int64_t)i
                                            : kvc_cells_position(others, others->n - cells->n + i);
        if (kvc_cells_position(cells, i) != assumed) return 0;
    }
    return 1;
}

static void add_integers(struct kvc_arrays *list, enum kvc_name_kind kind, uint32_t part,
                         uint64_t n) {
    unsigned size = kind == KVC_NAME_POSITIONS ? 8 : 4;
    list->item[list->n++] = (struct kvc_arrays_item){
        .kind = kind, .number = part, .size = size, .rank = 1, .dim = {n}, .bytes = n * size};
}

static int list_positions(struct kvc_arrays *list, const struct kvc_part *reference,
                          uint32_t stream, struct kvc_error *e) {
    const struct kvc_cache *c = list->cache;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        uint32_t number = c->layer[i].part;
        const struct kvc_part *part = &c->part[number];
        if (i && c->layer[i - 1].part == number) continue; /* layers are ordered by part */
        if (!is_exported(part, stream) || positions_are_assumed(part, reference)) continue;
        if (part->kind == KVC_PART_COMPANION)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "queries or hidden states of other than the last tokens cannot be "
                            "exported as arrays; leave them out");
        add_integers(list, KVC_NAME_POSITIONS, number, part->cells.n);
    }
    return 0;
}

/* Returns 1 when an import would take a sliding-window part for the live one, unless its names are
 * marked. */
static int must_mark_sliding(const struct kvc_cache *c, const struct kvc_part *reference,
                             uint32_t stream) {
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct kvc_part *part = &c->part[c->layer[i].part];
        if (part->kind == KVC_PART_WINDOW && is_exported(part, stream) &&
            (part == reference || part->cells.n >= reference->cells.n))
            return 1;
    }
    return 0;
}

/* Returns 1 if a reader gives the ids of a cache to the positions that they have. Ids that are as
 * many as the rows of `cells` count as theirs; NULL: there are no such rows. */
static int are_read_back(const struct kvc_cache *c, const int64_t *position,
                         const struct kvc_cells *cells, enum kvc_arrays_ids ids) {
    const uint64_t first = ids == KVC_IDS_FROM_ANY ? c->meta.facts.tokens_first : 0;
    for (uint64_t i = 0; i < c->n_tokens; i++) {
        const int64_t read = cells && c->n_tokens == cells->n ? kvc_cells_position(cells, i)
                                                              : (int64_t)(first + i);
        if (position[i] != read) return 0;
    }
    return 1;
}

/* Takes the ids of the rows alone, in their order. */
static int take_ids_of_rows(struct kvc_arrays *list, const int64_t *position,
                            const struct kvc_cells *cells, struct kvc_error *e) {
    const struct kvc_cache *c = list->cache;
    if (!cells)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "a file of sliding-window layers alone cannot say of which tokens the ids "
                        "are, as positions are missing between them: take other layers, too");
    int32_t *ids = list->own_tokens = kvc_alloc(cells->n, sizeof *ids);
    if (!ids) return kvc_fail_memory(e, "token ids");
    for (uint64_t i = 0, at = 0; i < cells->n; i++) {
        const int64_t row = kvc_cells_position(cells, i);
        while (at < c->n_tokens && position[at] < row) at++;
        if (at == c->n_tokens || position[at] != row)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "the token id of position %" PRId64
                            " is unknown, and the file cannot say whose the others are: take rows "
                            "whose ids are known",
                            row);
        ids[i] = c->tokens[at];
    }
    list->tokens = ids;
    list->n_tokens = cells->n;
    return 0;
}

/* Chooses the ids to write; `cells` of the rows that a reader takes for the live ones. */
static int choose_tokens(struct kvc_arrays *list, const struct kvc_cells *cells,
                         enum kvc_arrays_ids ids, struct kvc_error *e) {
    const struct kvc_cache *c = list->cache;
    if (!c->tokens || ids == KVC_IDS_NONE) return 0;
    list->tokens = c->tokens;
    list->n_tokens = c->n_tokens;
    int64_t *position = kvc_cache_token_positions(c, e);
    if (!position) return -1;
    const int status = are_read_back(c, position, cells, ids)
                           ? 0
                           : take_ids_of_rows(list, position, cells, e);
    free(position);
    return status;
}

static int list_items(struct kvc_arrays *list, uint32_t stream, int (*keeps)(enum kvc_dtype),
                      enum kvc_arrays_ids ids, struct kvc_error *e) {
    const struct kvc_cache *c = list->cache;
    const struct kvc_part *reference = reference_part(c, stream);
    for (uint32_t i = 0; i < c->n_parts; i++)
        if (c->part[i].kind == KVC_PART_STATE)
            return kvc_fail(
                e, KVC_ERR_UNSUPPORTED,
                "the cache has recurrent state, which cannot be exported as arrays of K and V");
    if (!reference) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "the cache has no K or V to export");
    list->item = calloc((size_t)c->n_tensors + c->n_parts + 1, sizeof *list->item);
    if (!list->item) return kvc_fail_memory(e, "names");
    const int marked = must_mark_sliding(c, reference, stream);
    if (choose_tokens(list, marked ? NULL : &reference->cells, ids, e)) return -1;
    if (list->tokens) add_integers(list, KVC_NAME_TOKENS, 0, list->n_tokens);
    if (list_positions(list, reference, stream, e)) return -1;
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        if (!is_exported(kvc_tensor_part(c, t), stream)) continue;
        if (arrays_write_describe(&list->item[list->n], c, t, keeps, e)) return -1;
        list->n++;
    }
    qsort_r(list->item, list->n, sizeof *list->item, compare_items, (void *)(uintptr_t)c);
    return name_items(list, marked, e);
}

int kvc_arrays_list(struct kvc_arrays *list, const struct kvc_cache *c,
                    const struct kvc_export_options *o, int (*keeps)(enum kvc_dtype dtype),
                    enum kvc_arrays_ids ids, struct kvc_error *e) {
    uint32_t stream;
    memset(list, 0, sizeof *list);
    list->cache = c;
    if (kvc_arrays_stream(c, &stream, e) || kvc_arrays_views(list, stream, o, e) ||
        list_items(list, stream, keeps, ids, e)) {
        kvc_arrays_free(list);
        return -1;
    }
    return 0;
}

void kvc_arrays_free(struct kvc_arrays *list) {
    free(list->item);
    free(list->own_tokens);
    kvc_cache_free(list->view[1]); /* before view[0], which it reads */
    kvc_cache_free(list->view[0]);
    memset(list, 0, sizeof *list);
}

/* --- values --- */

/* Copies n rows, [n][H][D] of `value` bytes, into dst, [H][T][D], from token `first` on. */
static void transpose(uint8_t *dst, const uint8_t *rows, const struct kvc_shape *shape,
                      uint64_t first, uint64_t n, size_t value) {
    size_t head = (size_t)shape->dim * value;
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t h = 0; h < shape->heads; h++)
            memcpy(dst + (h * shape->tokens + first + i) * head,
                   rows + (i * shape->heads + h) * head, head);
}

static int read_tensor(const struct kvc_arrays *list, const struct kvc_arrays_item *item,
                       uint8_t *dst, struct kvc_error *e) {
    const struct kvc_cache *c = list->cache;
    const struct kvc_shape *shape = &c->tensor[item->number].shape;
    const struct kvc_cells *cells = kvc_tensor_cells(c, item->number);
    size_t row = (size_t)kvc_row_bytes(shape), values = (size_t)(shape->heads * shape->dim);
    int convert = item->dtype != shape->dtype, status = 0;
    const size_t together = (size_t)kvc_cells_run_rows(cells);
    uint8_t *rows = kvc_alloc(together, row);
    float *floats = convert ? kvc_alloc(together, values * sizeof *floats) : NULL;
    if (!rows || (convert && !floats)) status = kvc_fail_memory(e, "rows");
    for (uint64_t b = 0, after; b < cells->n_blocks && !status; b = after) {
        after = kvc_cells_run_end(cells, b);
        uint64_t first = cells->block[b], n = cells->block[after] - first;
        status = c->read(c, item->number, first, n, rows, e);
        if (!status && convert) status = kvc_rows_to_floats(c, item->number, floats, rows, n, 0, e);
        if (status) break;
        transpose(dst, convert ? (const uint8_t *)floats : rows, shape, first, n, item->size);
    }
    free(rows);
    free(floats);
    return status;
}

int kvc_arrays_read(const struct kvc_arrays *list, size_t i, uint8_t **bytes, struct kvc_error *e) {
    const struct kvc_arrays_item *item = &list->item[i];
    const struct kvc_cache *c = list->cache;
    *bytes = malloc(item->bytes ? (size_t)item->bytes : 1);
    if (!*bytes) return kvc_fail_memory(e, item->name);
    if (item->kind == KVC_NAME_TOKENS) {
        for (uint64_t k = 0; k < list->n_tokens; k++)
            put_u32(*bytes + 4 * k, (uint32_t)list->tokens[k]);
    } else if (item->kind == KVC_NAME_POSITIONS) {
        const struct kvc_cells *cells = &c->part[item->number].cells;
        for (uint64_t k = 0; k < cells->n; k++)
            put_u64(*bytes + 8 * k, (uint64_t)kvc_cells_position(cells, k));
    } else if (read_tensor(list, item, *bytes, e)) {
        free(*bytes);
        *bytes = NULL;
        return -1;
    }
    return 0;
}

int kvc_arrays_write(const struct kvc_arrays *list, struct kvc_sink *out, struct kvc_error *e) {
    for (size_t i = 0; i < list->n; i++) {
        uint8_t *bytes;
        if (kvc_arrays_read(list, i, &bytes, e)) return -1;
        const int status = kvc_sink_write(out, bytes, (size_t)list->item[i].bytes, e);
        free(bytes);
        if (status) return -1;
    }
    return 0;
}

int kvc_write_rows(const struct kvc_cache *c, const uint32_t *tensor, unsigned n, uint64_t unit,
                   struct kvc_sink *out, struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_tensor_cells(c, *tensor);
    const uint64_t row = kvc_row_bytes(&c->tensor[*tensor].shape),
                   together = kvc_cells_run_rows(cells);
    uint8_t *rows = kvc_alloc(together, row), *turns = n > 1 ? kvc_alloc(n * together, row) : rows;
    int status = rows && turns ? 0 : kvc_fail_memory(e, "rows");
    for (uint64_t b = 0, after; b < cells->n_blocks && !status; b = after) {
        after = kvc_cells_run_end(cells, b);
        const uint64_t first = cells->block[b], count = cells->block[after] - first,
                       bytes = count * row;
        for (unsigned i = 0; i < n && !status; i++) {
            status = c->read(c, tensor[i], first, count, rows, e);
            for (uint64_t at = 0; at < bytes && n > 1 && !status; at += unit)
                memcpy(turns + n * at + i * unit, rows + at, (size_t)unit);
        }
        if (!status) status = kvc_sink_write(out, turns, (size_t)(n * bytes), e);
    }
    if (n > 1) free(turns);
    free(rows);
    return status;
}
