/* kvc_memory.c: implements the part of kvc.h on caches in a program's memory: a handle of arrays,
 * and decoding into arrays. Not for engines' pools (pool_layouts.c) or for devices. */
#include "formats/api/kvc.h"

#include "codecs/floats.h"
#include "codecs/memory.h"
#include "formats/api/kvc_file.h"
#include "formats/api/sized.h"
#include "formats/cache/keys.h"
#include "formats/cache/mapped.h"
#include "formats/cache/meta.h"
#include "formats/cache/scales.h"
#include "formats/cache/view.h"
#include "formats/container/container.h"
#include "formats/io/parallel.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES \
    (UINT64_C(1)   \
     << 48) /* that an array reaches from its first value on: addresses are not longer */

static const struct kvc_format format = {.name = "memory"};

/* One array, checked. */
struct array {
    struct kvc_memory_array a;
    enum kvc_role role;
    struct kvc_shape shape;
    struct kvc_strides strides;
};

struct memory {
    struct kvc_memory m;
    struct array *array;
    uint64_t bytes; /* of all values */
    uint64_t pages; /* the highest number of a page, + 1 */
};

static void memory_free(struct memory *x) {
    free(x->array);
}

/* --- checking what the caller says --- */

static int role_of(const char *name, enum kvc_role *role) {
    static const enum kvc_role roles[] = {KVC_ROLE_K, KVC_ROLE_V, KVC_ROLE_LATENT, KVC_ROLE_QUERIES,
                                          KVC_ROLE_HIDDEN};
    for (size_t i = 0; name && i < sizeof roles / sizeof roles[0]; i++) {
        *role = roles[i];
        if (strcmp(kvc_role_name(*role), name) == 0) return 1;
    }
    return 0;
}

static int fail_array(size_t i, struct kvc_error *e, const char *what) {
    return kvc_fail(e, KVC_ERR_USAGE, "array %zu %s", i, what);
}

static int has_several_pages(const struct memory *x) {
    const uint64_t size = x->m.page_size;
    return size && x->m.tokens > size - x->m.first_slot % size;
}

static int take_array(struct memory *x, size_t i, struct kvc_error *e) {
    struct array *to = &x->array[i];
    if (kvc_sized_take_at(&to->a, sizeof to->a, x->m.arrays, x->m.array_size, i, "kvc_memory_array",
                          e))
        return -1;
    const struct kvc_memory_array *a = &to->a;
    const struct kvc_dtype_info *info = a->dtype ? kvc_dtype_by_name(a->dtype) : NULL;
    if (!role_of(a->role, &to->role))
        return fail_array(i, e, "has none of the roles K, V, latent, queries, hidden");
    if (!info) return fail_array(i, e, "has a dtype that kvc does not know");
    const uint64_t tokens = a->tokens ? a->tokens : x->m.tokens;
    if (tokens > x->m.tokens) return fail_array(i, e, "has more tokens than the memory");
    if (tokens < x->m.tokens && x->m.page_size)
        return fail_array(i, e, "has fewer tokens than the memory, which pages cannot have");
    to->shape = (struct kvc_shape){info->dtype, tokens, a->heads, a->dim};
    if (a->page < 0 || a->token < 0 || a->head < 0 || a->channel < 0)
        return fail_array(i, e, "has a stride below 0");
    to->strides = (struct kvc_strides){(uint64_t)a->token, (uint64_t)a->head, (uint64_t)a->channel};
    if (!kvc_shape_check(&to->shape))
        return fail_array(i, e, "has no heads, no channels, or more than kvc takes");
    struct kvc_shape together = to->shape; /* tokens at equal distances */
    if (x->m.page_size && x->m.page_size < tokens) together.tokens = x->m.page_size;
    if (!a->data && tokens) return fail_array(i, e, "has no data");
    if (!kvc_strides_check(&together, &to->strides, MOST_BYTES) ||
        (x->pages && (uint64_t)a->page > MOST_BYTES / x->pages) ||
        (!a->page && has_several_pages(x)))
        return fail_array(i, e, "has strides by which values share bytes, or that are too long");
    return __builtin_add_overflow(x->bytes, tokens * kvc_row_bytes(&to->shape), &x->bytes)
               ? fail_array(i, e, "is too large together with the others")
               : 0;
}

static int by_number(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Checks that all tokens have a slot, and no page comes twice. */
static int check_pages(struct memory *x, struct kvc_error *e) {
    const struct kvc_memory *m = &x->m;
    const uint64_t pages = m->table ? m->n_table : UINT32_MAX;
    uint64_t slots;
    if (!m->page_size) return 0;
    if (__builtin_mul_overflow(pages, m->page_size, &slots)) slots = UINT64_MAX;
    if (m->first_slot > slots || m->tokens > slots - m->first_slot)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%" PRIu64 " tokens from slot %" PRIu64 " on have no room in %" PRIu64
                        " pages",
                        m->tokens, m->first_slot, pages);
    x->pages = m->tokens ? (m->first_slot + m->tokens - 1) / m->page_size + 1 : 0;
    if (!m->table || !pages) return 0;
    uint32_t *sorted = kvc_alloc(pages, sizeof *sorted);
    if (!sorted) return kvc_fail_memory(e, "a table of pages");
    memcpy(sorted, m->table, pages * sizeof *sorted);
    qsort(sorted, (size_t)pages, sizeof *sorted, by_number);
    uint64_t twice = 0;
    for (uint64_t i = 1; i < pages && !twice; i++) twice = sorted[i] == sorted[i - 1] ? i : 0;
    const uint32_t page = sorted[twice];
    x->pages = (uint64_t)sorted[pages - 1] + 1;
    free(sorted);
    return twice ? kvc_fail(e, KVC_ERR_USAGE, "page %" PRIu32 " comes twice in the table", page)
                 : 0;
}

static int take_memory(struct memory *x, const struct kvc_memory *callers, struct kvc_error *e) {
    memset(x, 0, sizeof *x);
    if (kvc_sized_take(&x->m, sizeof x->m, callers, "kvc_memory", e)) return -1;
    const struct kvc_memory *m = &x->m;
    if (m->n_arrays && (!m->arrays || !m->array_size))
        return kvc_fail(e, KVC_ERR_USAGE, "kvc_memory: arrays or array_size is not set");
    if (m->tokens > KVC_MAX_CELLS)
        return kvc_fail(e, KVC_ERR_USAGE, "kvc_memory: more than 2^31 tokens");
    if (m->first_position < 0 || m->first_position > KVC_POSITION_LIMIT - (int64_t)KVC_MAX_CELLS)
        return kvc_fail(e, KVC_ERR_USAGE, "kvc_memory: first_position is out of range");
    if (check_pages(x, e)) return -1;
    if (!(x->array = kvc_alloc_zeros(m->n_arrays, sizeof *x->array)))
        return kvc_fail_memory(e, "arrays");
    for (size_t i = 0; i < m->n_arrays; i++)
        if (take_array(x, i, e)) return -1;
    return 0;
}

/* --- where tokens lie --- */

/* Returns how many tokens from token i on lie at equal distances, at most n, and where the first of
 * them lies. */
static uint64_t run_at(const struct kvc_memory *m, const struct array *a, uint64_t i, uint64_t n,
                       uint64_t *offset) {
    if (!m->page_size) {
        *offset = i * a->strides.token;
        return n;
    }
    const uint64_t slot = m->first_slot + i, page = slot / m->page_size,
                   within = slot % m->page_size;
    *offset = (m->table ? m->table[page] : page) * (uint64_t)a->a.page + within * a->strides.token;
    return n < m->page_size - within ? n : m->page_size - within;
}

/* --- a handle of arrays --- */

static int is_companion(const struct array *a) {
    return a->role == KVC_ROLE_QUERIES || a->role == KVC_ROLE_HIDDEN;
}

/* Returns the part for arrays of so many tokens, made if there is none. */
static uint32_t part_of(struct kvc_cache *c, const struct memory *x, const struct array *a,
                        struct kvc_error *e) {
    const struct kvc_memory *m = &x->m;
    const uint64_t tokens = a->shape.tokens;
    const enum kvc_part_kind kind = is_companion(a)      ? KVC_PART_COMPANION
                                    : tokens < m->tokens ? KVC_PART_WINDOW
                                                         : KVC_PART_LIVE;
    for (uint32_t i = 0; i < c->n_parts; i++)
        if (c->part[i].kind == kind && c->part[i].cells.n == tokens) return i;
    const uint32_t part = kvc_cache_add_part(c, kind, tokens, e);
    for (uint64_t i = 0; part != KVC_NONE && i < tokens; i++) {
        const uint64_t token = m->tokens - tokens + i;
        c->part[part].cells.pos[i] = m->positions ? m->positions[token]
                                                  : m->first_position + (int64_t)token;
    }
    return part;
}

static uint32_t memory_layer_of(struct kvc_cache *c, uint32_t part, const struct array *a,
                                struct kvc_error *e) {
    static const enum kvc_layer_kind kinds[] = {[KVC_PART_LIVE] = KVC_LAYER_FULL,
                                                [KVC_PART_WINDOW] = KVC_LAYER_WINDOW,
                                                [KVC_PART_COMPANION] = KVC_LAYER_COMPANION};
    const enum kvc_part_kind kind = c->part[part].kind;
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (c->layer[i].part == part && c->layer[i].index == a->a.layer &&
            c->layer[i].tensor[a->role == KVC_ROLE_V] == KVC_NONE)
            return i;
    return kvc_cache_add_layer(c, part, a->a.layer,
                               a->role == KVC_ROLE_LATENT ? KVC_LAYER_LATENT : kinds[kind], e);
}

static int memory_add_tensor(struct kvc_cache *c, const struct memory *x, uint32_t part,
                             const struct array *a, struct kvc_error *e) {
    const uint32_t layer = memory_layer_of(c, part, a, e);
    const uint32_t t = layer == KVC_NONE ? KVC_NONE
                                         : kvc_cache_add_tensor(c, layer, a->role, &a->shape, e);
    if (t == KVC_NONE) return -1;
    struct kvc_place place = {.tensor = t, .strides = a->strides};
    c->tensor[t].source = kvc_strides_canonical(&a->shape); /* its places say where it lies */
    c->tensor[t].source_size = kvc_tensor_bytes(&c->tensor[t]);
    for (uint64_t left = a->shape.tokens; left; left -= place.n, place.cell += place.n) {
        place.n = run_at(&x->m, a, place.cell, left, &place.offset);
        if (kvc_cache_map_memory_place(c, a->a.data, &place, e)) return -1;
    }
    return 0;
}

static int add_facts(struct kvc_cache *c, const struct memory *x, struct kvc_error *e) {
    int rotates = 0; /* engines rotate only values that they quantise in blocks */
    for (size_t i = 0; i < x->m.n_arrays; i++)
        rotates |= kvc_dtype_info(x->array[i].shape.dtype)->block > 1;
    struct kvc_meta *meta = &c->meta;
    if (kvc_meta_set_text(meta, KVC_KEY_SOURCE_FORMAT, format.name, e) ||
        kvc_meta_set_u64(meta, KVC_KEY_SOURCE_BYTES, x->bytes, e) ||
        kvc_meta_set_bool(meta, KVC_KEY_HEADS_KNOWN, 1, e) ||
        kvc_meta_set_bool(meta, KVC_KEY_LAYERS_KNOWN, 1, e))
        return -1;
    if (!rotates && (kvc_meta_set_u64(meta, KVC_KEY_HADAMARD_K, 0, e) ||
                     kvc_meta_set_u64(meta, KVC_KEY_HADAMARD_V, 0, e)))
        return -1;
    for (const char *const *fact = x->m.facts; fact && *fact; fact++)
        if (kvc_meta_parse(meta, *fact, e)) return -1;
    if (!x->m.token_ids || !x->m.n_token_ids) return 0;
    if (kvc_cache_set_tokens(c, x->m.token_ids, x->m.n_token_ids, e)) return -1;
    return x->m.first_position
               ? kvc_meta_set_u64(meta, KVC_KEY_TOKENS_FIRST, (uint64_t)x->m.first_position, e)
               : 0;
}

/* Layers are ordered by part, so the arrays of a part are added together. */
static int memory_build(struct kvc_cache *c, const struct memory *x, struct kvc_error *e) {
    if (kvc_cache_map(c, NULL, NULL, e)) return -1;
    for (int companions = 0; companions < 2; companions++)
        for (size_t i = 0; i < x->m.n_arrays; i++)
            if (is_companion(&x->array[i]) == companions &&
                part_of(c, x, &x->array[i], e) == KVC_NONE)
                return -1;
    for (uint32_t part = 0; part < c->n_parts; part++)
        for (size_t i = 0; i < x->m.n_arrays; i++)
            if (part_of(c, x, &x->array[i], e) == part &&
                memory_add_tensor(c, x, part, &x->array[i], e))
                return -1;
    if (add_facts(c, x, e) || kvc_cache_finish(c, e)) return -1;
    return 0;
}

struct kvc_file *kvc_file_open_arrays(const struct kvc_memory *m, struct kvc_error *e) {
    if (KVC_NULL(e, m)) return NULL;
    struct memory x;
    struct kvc_file *f = calloc(1, sizeof *f);
    int status = f ? take_memory(&x, m, e) : kvc_fail_memory(e, "a file");
    if (f) {
        kvc_input_memory(&f->opened.input, "(memory)", "", 0);
        f->name = f->opened.input.name;
        f->opened.format = &format;
        if (!status && !(f->cache = f->opened.cache = kvc_cache_new(e))) status = -1;
        if (!status) status = memory_build(f->opened.cache, &x, e);
        f->bytes = x.bytes;
        memory_free(&x);
    }
    if (!status) return f;
    kvc_file_close(f);
    return NULL;
}

/* --- decoding into arrays --- */

/* An array to be filled, and the rows of the tensor that fill it. */
struct target {
    const struct array *array;
    const struct kvc_cache *cache; /* the load's, or its source */
    uint32_t tensor;
    uint64_t first, end;  /* rows */
    uint64_t item, block; /* number of its first item; block of its first row */
};

struct load {
    const struct memory *memory;
    const struct kvc_cache *source, *cache; /* cache: with views */
    int turns;                              /* K is paired otherwise than in the source */
    /* ascending by tensor, so that what a tensor stands on is decoded just before */
    struct target *target;
    size_t n;
    int past; /* 1: the arrays are large */
    const struct kvc_load_how *how;
    uint64_t done; /* bytes, of progress */
};

static uint32_t find_tensor(const struct kvc_cache *c, const struct array *a) {
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const struct kvc_tensor *tensor = &c->tensor[t];
        if (tensor->role == a->role && c->layer[tensor->layer].index == a->a.layer &&
            kvc_part_is_attended(kvc_tensor_part(c, t)))
            return t;
    }
    return KVC_NONE;
}

/* Finds the rows of the tensor at the array's positions. */
static int find_rows(const struct load *l, struct target *to, struct kvc_error *e) {
    const struct array *a = to->array;
    const struct kvc_cells *cells = kvc_tensor_cells(l->cache, to->tensor);
    const uint64_t n = a->shape.tokens;
    const int64_t first = l->memory->m.first_position + (int64_t)(l->memory->m.tokens - n);
    char label[64];
    to->first = to->end = kvc_cells_row_from(cells, first);
    if (!n) return 0;
    while (to->end < cells->n && to->end - to->first < n &&
           kvc_cells_position(cells, to->end) == first + (int64_t)(to->end - to->first))
        to->end++;
    if (to->end - to->first == n) {
        to->block = kvc_cells_block_of(cells, to->first);
        return 0;
    }
    kvc_tensor_label(l->cache, to->tensor, label, sizeof label);
    return kvc_fail(e, KVC_ERR_NOT_SLICEABLE,
                    "%s does not have each of the positions %" PRId64 " to %" PRId64 " once", label,
                    first, first + (int64_t)n - 1);
}

/* Returns the cache whose rows fill an array: the source for blocks that stay as they are. */
static const struct kvc_cache *rows_of(const struct load *l, const struct target *to) {
    const struct kvc_tensor *t = &l->source->tensor[to->tensor];
    const int stays = t->shape.dtype == to->array->shape.dtype &&
                      kvc_dtype_info(t->shape.dtype)->block > 1 &&
                      !(l->turns && t->role == KVC_ROLE_K);
    return stays ? l->source : l->cache;
}

static int check_values(const struct load *l, const struct target *to, int convert,
                        struct kvc_error *e) {
    const struct kvc_shape *have = &to->cache->tensor[to->tensor].shape, *due = &to->array->shape;
    const struct kvc_dtype_info *from = kvc_dtype_info(have->dtype),
                                *into = kvc_dtype_info(due->dtype);
    char label[64];
    kvc_tensor_label(l->cache, to->tensor, label, sizeof label);
    if (have->heads != due->heads || have->dim != due->dim)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%s has %" PRIu64 " heads of %" PRIu64 " channels, its array %" PRIu64
                        " of %" PRIu64,
                        label, have->heads, have->dim, due->heads, due->dim);
    if (have->dtype == due->dtype) return 0;
    if (convert && from->block == 1 &&
        (due->dtype == KVC_F32 || due->dtype == KVC_F16 || due->dtype == KVC_BF16))
        return kvc_scales_need(l->cache, to->tensor, e);
    return kvc_fail(e, KVC_ERR_USAGE, "%s is %s, its array %s%s", label, from->name, into->name,
                    convert ? ", to which kvc does not convert" : "; ask for a conversion");
}

static int by_tensor(const void *a, const void *b) {
    const struct target *x = a, *y = b;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

static int aim(struct load *l, int convert, uint64_t *items, struct kvc_error *e) {
    uint64_t bytes = 0;
    *items = 0;
    for (size_t i = 0; i < l->n; i++) {
        struct target *to = &l->target[i];
        to->array = &l->memory->array[i];
        if ((to->tensor = find_tensor(l->cache, to->array)) == KVC_NONE)
            return kvc_fail(e, KVC_ERR_USAGE, "the cache has no %s in layer %" PRIu32,
                            to->array->a.role, to->array->a.layer);
        to->cache = rows_of(l, to);
        if (check_values(l, to, convert, e) || find_rows(l, to, e)) return -1;
        bytes += (to->end - to->first) * kvc_row_bytes(&to->array->shape);
    }
    l->past = bytes >= KVC_LARGE;
    qsort(l->target, l->n, sizeof *l->target, by_tensor);
    for (size_t i = 0; i < l->n; i++) {
        struct target *to = &l->target[i];
        if (i && to->tensor == to[-1].tensor)
            return kvc_fail(e, KVC_ERR_USAGE, "two arrays are for %s of layer %" PRIu32,
                            to->array->a.role, to->array->a.layer);
        to->item = *items;
        if (to->end > to->first)
            *items += (kvc_cells_block_of(kvc_tensor_cells(l->cache, to->tensor), to->end - 1) -
                       to->block) /
                          KVC_RUN_BLOCKS +
                      1;
    }
    return 0;
}

/* Sets *rows to rows in the array's dtype: as they are, or in `room`. */
static int convert_rows(const struct target *to, const uint8_t **rows, uint64_t n, float *floats,
                        uint8_t *room, struct kvc_error *e) {
    const enum kvc_dtype from = to->cache->tensor[to->tensor].shape.dtype,
                         into = to->array->shape.dtype;
    if (from == into) return 0;
    if (kvc_rows_to_floats(to->cache, to->tensor, floats, *rows, n, 0, e)) return -1;
    kvc_from_floats(room, floats, (size_t)(n * to->array->shape.heads * to->array->shape.dim),
                    into);
    *rows = room;
    return 0;
}

static void scatter(const struct load *l, const struct target *to, const uint8_t *rows,
                    uint64_t token, uint64_t n) {
    const uint64_t row = kvc_row_bytes(&to->array->shape);
    for (uint64_t i = 0, run, offset; i < n; i += run) {
        run = run_at(&l->memory->m, to->array, token + i, n - i, &offset);
        kvc_rows_scatter((uint8_t *)to->array->a.data + offset, rows + i * row, &to->array->shape,
                         &to->array->strides, 0, run, l->past);
    }
}

/* Decodes rows [first, first + n), straight into the array where they lie there as they are
 * decoded, or in one run and the stages can put them there. */
static int load_rows(const struct load *l, const struct target *to, uint64_t first, uint64_t n,
                     struct kvc_error *e) {
    const struct kvc_cache *c = to->cache;
    const struct array *a = to->array;
    const struct kvc_strides plain = kvc_strides_canonical(&a->shape);
    const enum kvc_dtype from = c->tensor[to->tensor].shape.dtype;
    uint64_t offset;
    const int other = from != a->shape.dtype,
              whole = !other && run_at(&l->memory->m, a, first - to->first, n, &offset) == n;
    if (whole && !l->past && memcmp(&plain, &a->strides, sizeof plain) == 0)
        return c->read(c, to->tensor, first, n, (uint8_t *)a->a.data + offset, e);
    const size_t values = (size_t)(n * a->shape.heads * a->shape.dim),
                 bytes = (size_t)(n * kvc_row_bytes(&c->tensor[to->tensor].shape));
    uint8_t *rows = kvc_alloc(bytes, 1), *room = other ? kvc_alloc(values, sizeof(float)) : NULL;
    float *floats = other ? kvc_alloc(values, sizeof(float)) : NULL;
    int status = rows && (!other || (room && floats)) ? 0 : kvc_fail_memory(e, "rows");
    if (!status && whole && kvc_cache_is_container(c)) {
        const struct kvc_row_places places = {.base = (uint8_t *)a->a.data + offset,
                                              .strides = a->strides,
                                              .past = l->past};
        status = kvc_container_place(c, to->tensor, first, n, &places, rows, e);
    } else if (!status) {
        const uint8_t *made = rows;
        status = c->read(c, to->tensor, first, n, rows, e);
        if (!status) status = convert_rows(to, &made, n, floats, room, e);
        if (!status) scatter(l, to, made, first - to->first, n);
    }
    free(rows);
    free(room);
    free(floats);
    return status;
}

static const struct target *find_item(const struct load *l, uint64_t item, uint64_t *first,
                                      uint64_t *n) {
    size_t low = 0, high = l->n;
    while (high - low > 1) {
        const size_t mid = low + (high - low) / 2;
        if (l->target[mid].item <= item) low = mid;
        else high = mid;
    }
    const struct target *to = &l->target[low];
    const struct kvc_cells *cells = kvc_tensor_cells(l->cache, to->tensor);
    const uint64_t block = to->block + (item - to->item) * KVC_RUN_BLOCKS;
    const uint64_t stop = cells->block[kvc_cells_run_end(cells, block)],
                   end = stop < to->end ? stop : to->end;
    *first = cells->block[block] > to->first ? cells->block[block] : to->first;
    *n = end - *first;
    return to;
}

static int load_item(void *state, uint64_t item, void **result, struct kvc_error *e) {
    const struct load *l = state;
    uint64_t first, n;
    const struct target *to = find_item(l, item, &first, &n);
    *result = NULL;
    return load_rows(l, to, first, n, e);
}

/* Tells the caller of an item that was decoded. */
static int tell_item(void *state, uint64_t item, void *result, struct kvc_error *e) {
    struct load *l = state;
    uint64_t first, n;
    const struct target *to = find_item(l, item, &first, &n);
    (void)result;
    l->done += n * kvc_row_bytes(&to->array->shape);
    return l->how->progress(l->how->progress_state, l->done, l->memory->bytes)
               ? kvc_fail(e, KVC_ERR_IO, "cancelled by the caller")
               : 0;
}

static int has_blocks(const struct kvc_cache *c) {
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (kvc_dtype_info(c->tensor[t].shape.dtype)->block > 1) return 1;
    return 0;
}

/* Makes the views that the options ask for: *view[], NULL where none is needed. */
static int make_views(const struct kvc_cache *c, const struct kvc_load_how *o,
                      struct kvc_cache *view[2], struct kvc_error *e) {
    enum kvc_pairing pairing = KVC_PAIRING_UNKNOWN;
    if (kvc_file_pairing(o->pairing, &pairing, e)) return -1;
    if (o->convert && has_blocks(c) && !(view[0] = kvc_view_float(c, e))) return -1;
    if (view[0]) c = view[0];
    if (pairing == KVC_PAIRING_UNKNOWN || pairing == c->meta.facts.rope.pairing) return 0;
    return (view[1] = kvc_view_pairing(c, pairing, e)) ? 0 : -1;
}

int kvc_file_load(const struct kvc_file *f, const struct kvc_memory *m,
                  const struct kvc_load_how *options, struct kvc_error *e) {
    if (KVC_NULL(e, f, m)) return -1;
    struct kvc_load_how o;
    struct memory x;
    struct kvc_cache *view[2] = {NULL, NULL};
    if (kvc_sized_take(&o, sizeof o, options, "kvc_load_how", e)) return -1;
    int status = take_memory(&x, m, e);
    const struct kvc_cache plain = kvc_container_unverified(f->cache), *const from = o.verify
                                                                                         ? f->cache
                                                                                         : &plain;
    struct load l = {.memory = &x,
                     .how = &o,
                     .n = x.m.n_arrays,
                     .target = kvc_alloc_zeros(x.m.n_arrays, sizeof *l.target)};
    uint64_t items = 0;
    if (!status && !l.target) status = kvc_fail_memory(e, "arrays");
    if (!status) status = make_views(from, &o, view, e);
    l.source = from;
    l.turns = view[1] != NULL;
    l.cache = view[1] ? view[1] : view[0] ? view[0] : from;
    if (!status) status = aim(&l, o.convert, &items, e);
    const struct kvc_job job = {.n = items,
                                .work = load_item,
                                .commit = o.progress ? tell_item : NULL,
                                .state = &l};
    if (!status) status = kvc_parallel(&job, kvc_cache_threads(l.cache, o.threads), e);
    free(l.target);
    memory_free(&x);
    kvc_cache_free(view[1]);
    kvc_cache_free(view[0]);
    return status ? kvc_error_prefix(e, f->name) : 0;
}
