/* mapped.c: gathers rows of caches that lie in inputs, and pins the bytes that it reads. */
#include "formats/cache/mapped.h"

#include "codecs/memory.h"

#include <stdlib.h>
#include <string.h>

/* Literal bytes. */
struct piece {
    const struct kvc_input *in;
    uint64_t at, size;
    uint64_t offset; /* among all literal bytes */
};

/* Some cells of a tensor. */
struct spot {
    const struct kvc_input *in; /* NULL: they are in memory */
    const uint8_t *base;        /* in memory: what `at` counts from */
    uint64_t at;                /* of the first value of the first cell */
    uint64_t cell, n;
    uint64_t heads; /* for which the strides were made */
    struct kvc_strides strides;
};

struct spots {
    struct spot *spot; /* ascending by cell */
    uint64_t n;
};

struct mapped {
    void (*close)(void *owner);
    void *owner;
    struct spots *tensor;
    uint32_t n_tensors;
    struct piece *piece; /* literals in order */
    uint64_t n_pieces;
    kvc_cells_reader *read; /* reads the cells of places; NULL: they are gathered here */
    void *reader;
};

static const char kind[] = "mapped";

static struct mapped *mapped_of(const struct kvc_cache *c) {
    return kvc_cache_impl(c, kind);
}

static int not_mapped(struct kvc_error *e) {
    return kvc_fail(e, KVC_ERR_USAGE, "the cache's tensors do not lie in inputs");
}

/* --- rows --- */

/* Returns the strides for the present shape: the number of heads may have been found out since the
 * import. */
static struct kvc_strides strides_now(const struct spot *s, const struct kvc_shape *shape) {
    struct kvc_strides now = s->strides;
    const uint32_t block = kvc_dtype_info(shape->dtype)->block;
    if (s->heads != shape->heads)
        now.head = shape->dim % block ? 0 : shape->dim / block * now.block;
    return now;
}

/* Finds the byte ranges that hold cells [first, first + n) of a spot: n_outer ranges of `size`
 * bytes. An axis whose stride is longer than the other axes reach is walked, so that a range of
 * tokens of one head does not pin all heads. */
struct ranges {
    uint64_t at, size;
    uint64_t count[2], stride[2];
};

static struct ranges ranges_of(const struct spot *s, const struct kvc_shape *shape, uint64_t first,
                               uint64_t n) {
    const struct kvc_strides now = strides_now(s, shape);
    const struct kvc_dtype_info *info = kvc_dtype_info(shape->dtype);
    struct ranges r = {.at = s->at + (first - s->cell) * now.token,
                       .size = info->size,
                       .count = {shape->heads, shape->dim / info->block},
                       .stride = {now.head, now.block}};
    if (shape->dim % info->block) {
        r.size = kvc_row_bytes(shape);
        r.count[0] = r.count[1] = 1;
    }
    const uint64_t tokens = (n - 1) * now.token;
    /* values within a head come first: their strides are shorter than those of heads, or the
     * longest of all */
    for (int axis = 1; axis >= 0; axis--)
        if (r.count[axis] > 1 && r.stride[axis] < r.size + tokens) {
            r.size += (r.count[axis] - 1) * r.stride[axis];
            r.count[axis] = 1;
        }
    r.size += tokens;
    return r;
}

static void unpin_ranges(const struct kvc_input *in, const struct ranges *r, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        kvc_input_unpin(in, r->at + i / r->count[1] * r->stride[0] + i % r->count[1] * r->stride[1],
                        r->size);
}

static int pin_ranges(const struct kvc_input *in, const struct ranges *r, struct kvc_error *e) {
    for (uint64_t i = 0; i < r->count[0] * r->count[1]; i++)
        if (kvc_input_pin(in,
                          r->at + i / r->count[1] * r->stride[0] + i % r->count[1] * r->stride[1],
                          r->size, e)) {
            unpin_ranges(in, r, i);
            return -1;
        }
    return 0;
}

static const struct spot *spot_of(const struct spots *list, uint64_t cell) {
    uint64_t low = 0, high = list->n;
    while (high - low > 1) {
        const uint64_t mid = low + (high - low) / 2;
        if (list->spot[mid].cell <= cell) low = mid;
        else high = mid;
    }
    return &list->spot[low];
}

/* Gathers the rows of consecutive cells of one spot. */
static int mapped_gather(const struct spot *s, const struct kvc_shape *shape, uint64_t cell,
                         uint64_t n, uint8_t *dst, struct kvc_error *e) {
    const struct kvc_strides now = strides_now(s, shape);
    const int pinned = s->in && s->in->pages;
    const struct ranges r = pinned ? ranges_of(s, shape, cell, n) : (struct ranges){0};
    const uint8_t *base = (s->in ? s->in->data : s->base) + s->at;
    if (pinned && pin_ranges(s->in, &r, e)) return -1;
    kvc_rows_gather(dst, base, shape, &now, cell - s->cell, n);
    if (pinned) unpin_ranges(s->in, &r, r.count[0] * r.count[1]);
    return 0;
}

static int mapped_read(const struct kvc_cache *c, uint32_t tensor, uint64_t first, uint64_t n,
                       uint8_t *dst, struct kvc_error *e) {
    const struct mapped *m = mapped_of(c);
    const struct spots *list = &m->tensor[tensor];
    const struct kvc_shape *shape = &c->tensor[tensor].shape;
    const struct kvc_cells *cells = kvc_tensor_cells(c, tensor);
    const uint64_t row = kvc_row_bytes(shape);
    for (uint64_t i = 0, run; i < n; i += run) {
        const uint64_t cell = kvc_cell_at(cells, first + i);
        const struct spot *s = spot_of(list, cell);
        for (run = 1; i + run < n && cell + run < s->cell + s->n &&
                      kvc_cell_at(cells, first + i + run) == cell + run;)
            run++;
        if (m->read ? m->read(m->reader, tensor, cell, run, dst + i * row, e)
                    : mapped_gather(s, shape, cell, run, dst + i * row, e))
            return -1;
    }
    return 0;
}

static int mapped_read_literal(const struct kvc_cache *c, uint64_t offset, uint64_t n, uint8_t *dst,
                               struct kvc_error *e) {
    const struct mapped *m = mapped_of(c);
    uint64_t low = 0, high = m->n_pieces;
    while (high - low > 1) {
        uint64_t mid = low + (high - low) / 2;
        if (m->piece[mid].offset <= offset) low = mid;
        else high = mid;
    }
    for (; n; low++) {
        const struct piece *p = &m->piece[low];
        uint64_t skip = offset - p->offset, part = p->size - skip < n ? p->size - skip : n;
        if (kvc_input_copy(p->in, p->at + skip, dst, part, e)) return -1;
        dst += part;
        offset += part;
        n -= part;
    }
    return 0;
}

/* --- building --- */

static void mapped_close(struct kvc_cache *c) {
    struct mapped *m = mapped_of(c);
    if (!m) return;
    if (m->close) m->close(m->owner);
    for (uint32_t t = 0; t < m->n_tensors; t++) free(m->tensor[t].spot);
    free(m->tensor);
    free(m->piece);
    free(m);
    c->impl = NULL;
}

int kvc_cache_map(struct kvc_cache *c, void (*close)(void *owner), void *owner,
                  struct kvc_error *e) {
    struct mapped *m = calloc(1, sizeof *m);
    if (!m) return kvc_fail_memory(e, "a cache");
    m->close = close;
    m->owner = owner;
    c->kind = kind;
    c->impl = m;
    c->read = mapped_read;
    c->read_literal = mapped_read_literal;
    c->close = mapped_close;
    return 0;
}

static int add_spot(struct kvc_cache *c, uint32_t t, const struct spot *s, struct kvc_error *e) {
    struct mapped *m = mapped_of(c);
    if (!m) return not_mapped(e);
    while (m->n_tensors <= t) {
        struct spots *grown = kvc_room_for_one(m->tensor, m->n_tensors, sizeof *grown);
        if (!grown) return kvc_fail_memory(e, "tensors");
        m->tensor = grown;
        m->tensor[m->n_tensors++] = (struct spots){.n = 0};
    }
    struct spots *list = &m->tensor[t];
    struct spot *grown = kvc_room_for_one(list->spot, list->n, sizeof *grown);
    if (!grown) return kvc_fail_memory(e, "tensors");
    list->spot = grown;
    list->spot[list->n++] = *s;
    return 0;
}

static int reaches_beyond(const struct kvc_cache *c, uint32_t t, struct kvc_error *e) {
    char label[64];
    kvc_tensor_label(c, t, label, sizeof label);
    return kvc_fail(e, KVC_ERR_DAMAGED, "%s reaches beyond its bytes", label);
}

/* Adds some cells of a tensor in an input, or in memory (`in` NULL), of which `size` bytes may be
 * used. */
static int map_place(struct kvc_cache *c, const struct kvc_input *in, const uint8_t *base,
                     uint64_t size, const struct kvc_place *place, struct kvc_error *e) {
    const struct kvc_tensor *tensor = &c->tensor[place->tensor];
    const struct spot s = {.in = in,
                           .base = base,
                           .at = place->offset,
                           .cell = place->cell,
                           .n = place->n,
                           .heads = tensor->shape.heads,
                           .strides = place->strides};
    struct kvc_shape own = tensor->shape;
    own.tokens = place->n;
    if (place->offset > size || !kvc_strides_check(&own, &place->strides, size - place->offset) ||
        place->cell > tensor->shape.tokens || place->n > tensor->shape.tokens - place->cell)
        return reaches_beyond(c, place->tensor, e);
    return add_spot(c, place->tensor, &s, e);
}

/* All cells of a tensor, in its own layout. */
static struct kvc_place whole_tensor(const struct kvc_cache *c, uint32_t t, uint64_t offset) {
    return (struct kvc_place){.tensor = t,
                              .n = c->tensor[t].shape.tokens,
                              .offset = offset,
                              .strides = c->tensor[t].source};
}

int kvc_cache_map_tensor(struct kvc_cache *c, uint32_t t, const struct kvc_input *in,
                         uint64_t offset, struct kvc_error *e) {
    const struct kvc_place whole = whole_tensor(c, t, offset);
    const uint64_t size = c->tensor[t].source_size;
    if (offset > in->size || size > in->size - offset) return reaches_beyond(c, t, e);
    return map_place(c, in, NULL, offset + size, &whole, e);
}

int kvc_cache_map_memory(struct kvc_cache *c, uint32_t t, const uint8_t *base,
                         struct kvc_error *e) {
    const struct kvc_place whole = whole_tensor(c, t, 0);
    return map_place(c, NULL, base, c->tensor[t].source_size, &whole, e);
}

int kvc_cache_map_place(struct kvc_cache *c, const struct kvc_input *in,
                        const struct kvc_place *place, struct kvc_error *e) {
    return map_place(c, in, NULL, in->size, place, e);
}

int kvc_cache_map_memory_place(struct kvc_cache *c, const uint8_t *base,
                               const struct kvc_place *place, struct kvc_error *e) {
    return map_place(c, NULL, base, UINT64_MAX, place, e);
}

int kvc_cache_map_reader(struct kvc_cache *c, kvc_cells_reader *read, void *reader,
                         struct kvc_error *e) {
    struct mapped *m = mapped_of(c);
    if (!m) return not_mapped(e);
    m->read = read;
    m->reader = reader;
    return 0;
}

/* --- extents --- */

static int add_piece(struct kvc_cache *c, const struct piece *p, struct kvc_error *e) {
    struct mapped *m = mapped_of(c);
    struct piece *grown = kvc_room_for_one(m->piece, m->n_pieces, sizeof *grown);
    if (!grown) return kvc_fail_memory(e, "private bytes");
    m->piece = grown;
    m->piece[m->n_pieces++] = *p;
    return 0;
}

int kvc_cache_extent_literal(struct kvc_cache *c, const struct kvc_input *in, uint64_t offset,
                             uint64_t size, struct kvc_error *e) {
    if (!mapped_of(c)) return not_mapped(e);
    if (!size) return 0;
    const struct piece p = {.in = in, .at = offset, .size = size, .offset = c->literal_size};
    if (add_piece(c, &p, e) || kvc_extents_literal(c, size, e)) return -1;
    return 0;
}

int kvc_cache_extent_region(struct kvc_cache *c, const struct kvc_input *in, uint64_t offset,
                            uint64_t size, const struct kvc_place *place, uint64_t n,
                            struct kvc_error *e) {
    struct kvc_gap *gap = NULL;
    uint64_t n_gaps = 0, literal = c->literal_size;
    if (!mapped_of(c)) return not_mapped(e);
    int status = kvc_extents_region(c, size, place, n, &gap, &n_gaps, e);
    for (uint64_t i = 0; i < n_gaps && !status; i++) {
        const struct piece p = {.in = in,
                                .at = offset + gap[i].offset,
                                .size = gap[i].size,
                                .offset = literal};
        status = add_piece(c, &p, e);
        literal += gap[i].size;
    }
    free(gap);
    return status;
}
