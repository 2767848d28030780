/* restore.c: puts the source of a cache together again. Not for other layouts (the formats'
 * exports).
 *
 * Several threads decode, in runs of blocks. Where the output takes bytes in any order they also
 * put them there: into memory in place, and into a file as soon as they are decoded. Elsewhere the
 * source is written front to back while the threads decode ahead. A tensor whose source is
 * token-major with cells in sorted order streams, and a file takes runs of tokens of one head; any
 * other order needs that one tensor in memory, to which the threads copy their rows. A region of
 * several places is put together in memory, whole. Memory is used again for later items, because
 * new pages would cost as much as decoding them by a fast stage. */
#include "formats/file/restore.h"

#include "codecs/memory.h"
#include "formats/cache/extents.h"
#include "formats/container/container.h"
#include "formats/io/parallel.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { LITERAL_PIECE = 1 << 20 };

struct source {
    const struct kvc_cache *cache;
    const struct kvc_member_sink *out;
    uint64_t *first; /* by extent: number of its first item; n_extents + 1 entries */
    /* by extent: its place in the output; NULL: the output is written front to back */
    uint64_t *offset;
    uint8_t *memory;   /* of the output's first byte; NULL: the output is not in memory */
    int past;          /* 1: it is large */
    uint32_t **row_of; /* by part: the sorted row of each cell; NULL: cells are sorted */
    uint32_t n_begun;  /* members */
    /* by extent: bytes of a tensor that cannot be streamed, until it is complete */
    uint8_t **tensor;
    struct room *spare;
    pthread_mutex_t lock; /* of `tensor` and `spare` */
};

/* Memory that is not in use. Its bytes follow. */
struct room {
    struct room *next;
    uint64_t size;
};

/* An item of work: bytes of a literal, sorted rows of one tensor that are bytes of the source or
 * that are copied to their places in it, or a whole region. */
struct item {
    const struct kvc_extent *extent;
    enum { LITERAL, ROWS, SPREAD, REGION } kind;
    uint32_t tensor;   /* of ROWS and SPREAD */
    uint64_t begin, n; /* bytes of a literal, rows */
    int is_last;       /* of its extent */
};

/* --- memory --- */

/* Returns at least `size` bytes, or NULL. A tensor's memory is not given to a small item, as the
 * next tensor would need new. The lock must be held. */
static uint8_t *take_room(struct source *s, uint64_t size) {
    enum { TIMES_LARGER = 4 };
    struct room **at = &s->spare;
    while (*at && ((*at)->size < size || (*at)->size / TIMES_LARGER > size)) at = &(*at)->next;
    struct room *r = *at;
    if (r) *at = r->next;
    else if ((r = kvc_alloc(size + sizeof *r, 1))) r->size = size;
    return r ? (uint8_t *)(r + 1) : NULL;
}

/* Takes bytes back; NULL is legal. The lock must be held. */
static void give_room(struct source *s, uint8_t *bytes) {
    struct room *r = bytes ? (struct room *)(void *)bytes - 1 : NULL;
    if (!r) return;
    r->next = s->spare;
    s->spare = r;
}

static uint8_t *restore_take(struct source *s, uint64_t size, struct kvc_error *e) {
    pthread_mutex_lock(&s->lock);
    uint8_t *bytes = take_room(s, size);
    pthread_mutex_unlock(&s->lock);
    if (!bytes) kvc_fail_memory(e, "rows");
    return bytes;
}

static void give(struct source *s, uint8_t *bytes) {
    pthread_mutex_lock(&s->lock);
    give_room(s, bytes);
    pthread_mutex_unlock(&s->lock);
}

static void restore_discard(void *result) {
    if (result) free((struct room *)result - 1);
}

/* --- what an item is --- */

/* Returns 1 if the sorted rows of a tensor are its bytes in the source, in their order. */
static int streams(const struct kvc_cache *c, uint32_t tensor) {
    const struct kvc_tensor *t = &c->tensor[tensor];
    const struct kvc_strides canonical = kvc_strides_canonical(&t->shape);
    return !kvc_tensor_cells(c, tensor)->order && t->source.token == canonical.token &&
           t->source.block == canonical.block &&
           (t->shape.heads == 1 || t->source.head == canonical.head);
}

static uint64_t items_of(const struct kvc_cache *c, const struct kvc_extent *x) {
    uint32_t t;
    if (!x->n_places) return (x->size + LITERAL_PIECE - 1) / LITERAL_PIECE;
    return kvc_extent_is_tensor(c, x, &t)
               ? (kvc_tensor_cells(c, t)->n_blocks + KVC_RUN_BLOCKS - 1) / KVC_RUN_BLOCKS
               : 1;
}

static struct item find_item(const struct source *s, uint64_t number) {
    uint64_t low = 0, high = s->cache->n_extents;
    while (high - low > 1) {
        uint64_t mid = low + (high - low) / 2;
        if (s->first[mid] <= number) low = mid;
        else high = mid;
    }
    struct item item = {.extent = &s->cache->extent[low],
                        .kind = REGION,
                        .is_last = number + 1 == s->first[low + 1]};
    const uint64_t k = number - s->first[low];
    if (!item.extent->n_places) {
        item.kind = LITERAL;
        item.begin = k * LITERAL_PIECE;
        item.n = item.is_last ? item.extent->size - item.begin : LITERAL_PIECE;
    } else if (kvc_extent_is_tensor(s->cache, item.extent, &item.tensor)) {
        const struct kvc_cells *cells = kvc_tensor_cells(s->cache, item.tensor);
        item.kind = streams(s->cache, item.tensor) ? ROWS : SPREAD;
        item.begin = cells->block[k * KVC_RUN_BLOCKS];
        item.n = cells->block[kvc_cells_run_end(cells, k * KVC_RUN_BLOCKS)] - item.begin;
    }
    return item;
}

/* --- regions --- */

/* Reads the literal bytes of a region, between its tensors. */
static int fill_gaps(const struct kvc_cache *c, const struct kvc_extent *x, uint8_t *region,
                     struct kvc_error *e) {
    struct kvc_gap *gap;
    uint64_t n, at = x->literal;
    if (kvc_region_gaps(c, x->size, &c->place[x->place], x->n_places, &gap, &n, e)) return -1;
    int status = 0;
    for (uint64_t i = 0; i < n && !status; i++) {
        status = c->read_literal(c, at, gap[i].size, region + gap[i].offset, e);
        at += gap[i].size;
    }
    free(gap);
    return status;
}

/* Copies the rows of a place to the positions of its cells in the region. */
static int fill_place(const struct source *s, const struct kvc_place *p, uint8_t *region,
                      uint8_t *rows, struct kvc_error *e) {
    const struct kvc_cache *c = s->cache;
    const struct kvc_shape *shape = &c->tensor[p->tensor].shape;
    const uint32_t *row_of = s->row_of[kvc_tensor_layer(c, p->tensor)->part];
    for (uint64_t i = 0, run; i < p->n; i += run) {
        const uint64_t first = row_of ? row_of[p->cell + i] : p->cell + i;
        for (run = 1; run < KVC_BLOCK && i + run < p->n &&
                      (!row_of || row_of[p->cell + i + run] == first + run);)
            run++;
        if (c->read(c, p->tensor, first, run, rows, e)) return -1;
        kvc_rows_scatter(region + p->offset, rows, shape, &p->strides, i, run, 0);
    }
    return 0;
}

static int fill_region(const struct source *s, const struct kvc_extent *x, uint8_t *region,
                       struct kvc_error *e) {
    const struct kvc_cache *c = s->cache;
    uint64_t longest = 0;
    for (uint64_t i = 0; i < x->n_places; i++) {
        const uint64_t row = kvc_row_bytes(&c->tensor[c->place[x->place + i].tensor].shape);
        if (row > longest) longest = row;
    }
    uint8_t *rows = kvc_alloc(KVC_BLOCK, longest);
    int status = rows ? fill_gaps(c, x, region, e) : kvc_fail_memory(e, "rows");
    for (uint64_t i = 0; i < x->n_places && !status; i++)
        status = fill_place(s, &c->place[x->place + i], region, rows, e);
    free(rows);
    return status;
}

/* --- items --- */

/* Returns the bytes of the tensor that an item's rows are copied to. The first item that asks finds
 * memory for them. */
static uint8_t *tensor_bytes(struct source *s, const struct item *item, struct kvc_error *e) {
    uint8_t **bytes = &s->tensor[item->extent - s->cache->extent];
    pthread_mutex_lock(&s->lock);
    if (!*bytes) *bytes = take_room(s, item->extent->size);
    uint8_t *found = *bytes;
    pthread_mutex_unlock(&s->lock);
    if (!found) kvc_fail_memory(e, "a tensor");
    return found;
}

/* Copies an item's rows to their places in the tensor. */
static void spread(const struct source *s, const struct item *item, const uint8_t *rows,
                   uint8_t *to) {
    const struct kvc_tensor *t = &s->cache->tensor[item->tensor];
    const struct kvc_cells *cells = kvc_tensor_cells(s->cache, item->tensor);
    const uint64_t row = kvc_row_bytes(&t->shape);
    for (uint64_t i = 0, run; i < item->n; i += run) {
        const uint64_t cell = kvc_cell_at(cells, item->begin + i);
        for (run = 1; i + run < item->n && kvc_cell_at(cells, item->begin + i + run) == cell + run;)
            run++;
        kvc_rows_scatter(to, rows + i * row, &t->shape, &t->source, cell, run, s->past);
    }
}

/* Decodes an item's rows, and puts them to their places in the tensor. `rows` has room for them. */
static int restore_place(const struct source *s, const struct item *item, uint8_t *rows,
                         uint8_t *to, struct kvc_error *e) {
    const struct kvc_cache *c = s->cache;
    const struct kvc_row_places places = {.base = to,
                                          .strides = c->tensor[item->tensor].source,
                                          .first = item->begin,
                                          .past = s->past};
    if (kvc_cache_is_container(c) && !kvc_tensor_cells(c, item->tensor)->order)
        return kvc_container_place(c, item->tensor, item->begin, item->n, &places, rows, e);
    if (c->read(c, item->tensor, item->begin, item->n, rows, e)) return -1;
    spread(s, item, rows, to);
    return 0;
}

static uint64_t item_bytes(const struct source *s, const struct item *item) {
    return item->kind == LITERAL  ? item->n
           : item->kind == REGION ? item->extent->size
                                  : item->n * kvc_row_bytes(&s->cache->tensor[item->tensor].shape);
}

/* Returns the offset of an item in the output, and of the first byte of its tensor for one whose
 * rows are spread. */
static uint64_t item_offset(const struct source *s, const struct item *item) {
    const uint64_t extent = s->offset[item->extent - s->cache->extent];
    return item->kind == LITERAL ? extent + item->begin
           : item->kind == ROWS
               ? extent + item->begin * kvc_row_bytes(&s->cache->tensor[item->tensor].shape)
               : extent;
}

static int read_bytes(const struct source *s, const struct item *item, uint8_t *bytes,
                      struct kvc_error *e) {
    const struct kvc_cache *c = s->cache;
    return item->kind == LITERAL
               ? c->read_literal(c, item->extent->literal + item->begin, item->n, bytes, e)
           : item->kind == REGION ? fill_region(s, item->extent, bytes, e)
                                  : c->read(c, item->tensor, item->begin, item->n, bytes, e);
}

/* Returns 1 if the rows of a tensor's items are long runs of bytes in the source, one a head. The
 * last item may be short: all items of a tensor go one way, to the file or to memory for the
 * tensor. */
static int runs_by_head(const struct source *s, uint32_t tensor) {
    enum { LONG = 4096 };
    const struct kvc_tensor *t = &s->cache->tensor[tensor];
    const struct kvc_cells *cells = kvc_tensor_cells(s->cache, tensor);
    const uint64_t head = kvc_row_bytes(&t->shape) / t->shape.heads;
    return !cells->order && t->source.token == head &&
           t->source.block == kvc_dtype_info(t->shape.dtype)->size &&
           kvc_cells_run_rows(cells) * head >= LONG;
}

static int put_heads(struct source *s, const struct item *item, const uint8_t *rows,
                     struct kvc_error *e) {
    const struct kvc_tensor *t = &s->cache->tensor[item->tensor];
    const uint64_t head = item->n * t->source.token,
                   to = item_offset(s, item) + item->begin * t->source.token;
    const struct kvc_strides by_head = {.token = t->source.token,
                                        .head = head,
                                        .block = t->source.block};
    uint8_t *by_heads = restore_take(s, item_bytes(s, item), e);
    if (!by_heads) return -1;
    kvc_rows_scatter(by_heads, rows, &t->shape, &by_head, 0, item->n, 0);
    int status = 0;
    for (uint64_t h = 0; h < t->shape.heads && !status; h++)
        status = s->out->out->put(s->out->out->state, to + h * t->source.head, by_heads + h * head,
                                  (size_t)head, e);
    give(s, by_heads);
    return status;
}

/* Reads an item and puts its bytes where they belong: into the output where it takes them, or into
 * its tensor. *result gets bytes that wait for their turn. */
static int read_item(void *state, uint64_t number, void **result, struct kvc_error *e) {
    struct source *s = state;
    const struct kvc_sink *out = s->out->out;
    const struct item item = find_item(s, number);
    if (s->memory && item.kind != SPREAD) {
        uint8_t *there = s->memory + item_offset(s, &item);
        /* as decoders want it */
        const int straight = !s->past && (uintptr_t)there % sizeof(uint64_t) == 0;
        if (straight || item.kind != ROWS) return read_bytes(s, &item, there, e);
    }
    uint8_t *bytes = restore_take(s, item_bytes(s, &item), e), *tensor = NULL;
    if (!bytes) return -1;
    const int puts = s->offset && !s->memory &&
                     (item.kind != SPREAD || runs_by_head(s, item.tensor));
    int status;
    if (!puts && (s->memory || item.kind == SPREAD)) {
        tensor = s->memory ? s->memory + s->offset[item.extent - s->cache->extent]
                           : tensor_bytes(s, &item, e);
        status = tensor ? restore_place(s, &item, bytes, tensor, e) : -1;
    } else {
        status = read_bytes(s, &item, bytes, e);
        if (!status && puts && item.kind == SPREAD) status = put_heads(s, &item, bytes, e);
        else if (!status && puts)
            status = out->put(out->state, item_offset(s, &item), bytes,
                              (size_t)item_bytes(s, &item), e);
    }
    if (status || puts || tensor) give(s, bytes);
    else *result = bytes;
    return status ? -1 : 0;
}

/* Begins the members before member n. Each begins after its predecessor is finished. */
static int begin_members(struct source *s, uint32_t n, struct kvc_error *e) {
    for (; s->n_begun < n; s->n_begun++) {
        if (s->n_begun && s->out->finish(s->out->state, e)) return -1;
        if (s->out->begin(s->out->state, s->cache->member[s->n_begun],
                          kvc_source_size(s->cache, s->n_begun), e))
            return -1;
    }
    return 0;
}

/* Writes an item, or the tensor that is complete with it, or counts what is in its place already.
 */
static int write_item(void *state, uint64_t number, void *result, struct kvc_error *e) {
    struct source *s = state;
    const struct item item = find_item(s, number);
    uint8_t **tensor = &s->tensor[item.extent - s->cache->extent], *bytes = result;
    int status = s->cache->n_members ? begin_members(s, item.extent->member + 1, e) : 0;
    uint64_t n = item_bytes(s, &item);
    if (!bytes && *tensor && item.is_last) {
        bytes = *tensor;
        n = item.extent->size;
        *tensor = NULL;
    }
    if (!status && bytes) status = kvc_sink_write(s->out->out, bytes, (size_t)n, e);
    else if (!status && !*tensor) status = kvc_sink_skip(s->out->out, n, e);
    give(s, bytes);
    return status;
}

/* Finds where extents lie in the output if it takes bytes in any order. */
static int place_extents(struct source *s, struct kvc_error *e) {
    const struct kvc_cache *c = s->cache;
    const struct kvc_sink *out = s->out->out;
    uint64_t at = out->offset;
    if (c->n_members || !(out->put || out->memory)) return 0;
    if (!(s->offset = kvc_alloc(c->n_extents, sizeof *s->offset)))
        return kvc_fail_memory(e, "extents");
    for (uint64_t x = 0; x < c->n_extents; x++) {
        s->offset[x] = at;
        at += c->extent[x].size;
    }
    s->memory = out->memory;
    s->past = out->memory && at >= KVC_LARGE;
    if (!out->memory || at <= out->room) return 0;
    return kvc_fail(e, KVC_ERR_USAGE,
                    "the source is longer than the memory for it, %" PRIu64 " bytes", out->room);
}

/* Returns the bytes of the largest tensor or region that is put together in memory. */
static uint64_t held_bytes(const struct source *s) {
    const struct kvc_cache *c = s->cache;
    uint64_t most = 0;
    for (uint64_t x = 0; x < c->n_extents && !s->memory; x++) {
        const struct kvc_extent *extent = &c->extent[x];
        uint32_t t;
        const int is_tensor = extent->n_places && kvc_extent_is_tensor(c, extent, &t);
        const int held = extent->n_places &&
                         !(is_tensor && (streams(c, t) || (s->offset && runs_by_head(s, t))));
        if (held && extent->size > most) most = extent->size;
    }
    return most;
}

/* Frees all memory of items, those that were not written too. */
static void free_rooms(struct source *s) {
    for (uint64_t x = 0; s->tensor && x < s->cache->n_extents; x++) give_room(s, s->tensor[x]);
    for (struct room *r = s->spare, *next; r; r = next) {
        next = r->next;
        free(r);
    }
    free(s->tensor);
    free(s->offset);
}

/* Fills row_of for the parts whose cells are not sorted and that lie in regions. */
static int invert_orders(struct source *s, struct kvc_error *e) {
    const struct kvc_cache *c = s->cache;
    if (!(s->row_of = kvc_alloc_zeros(c->n_parts, sizeof *s->row_of)))
        return kvc_fail_memory(e, "cells");
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const struct kvc_cells *cells = &c->part[i].cells;
        if (!cells->order) continue;
        if (!(s->row_of[i] = kvc_alloc(cells->n, sizeof **s->row_of)))
            return kvc_fail_memory(e, "cells");
        for (uint64_t row = 0; row < cells->n; row++)
            s->row_of[i][cells->order[row]] = (uint32_t)row;
    }
    return 0;
}

uint64_t kvc_source_size(const struct kvc_cache *c, uint32_t i) {
    uint64_t n = 0;
    for (uint64_t x = 0; x < c->n_extents; x++)
        n += c->extent[x].member == i ? c->extent[x].size : 0;
    return n;
}

int kvc_source_write_members(const struct kvc_cache *c, unsigned threads,
                             const struct kvc_member_sink *out, struct kvc_error *e) {
    struct source s = {.cache = c, .out = out, .lock = PTHREAD_MUTEX_INITIALIZER};
    struct kvc_job job = {.work = read_item,
                          .commit = write_item,
                          .discard = restore_discard,
                          .state = &s};
    if (!c->n_extents)
        return kvc_fail_need(
            e, KVC_ERR_UNSUPPORTED, KVC_NEED_FORMAT,
            "the source file's own layout is not recorded (compressed npz, or a selection)");
    if (c->n_members && !out->begin)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "the source is %u files: they need a folder or an archive", c->n_members);
    int status = invert_orders(&s, e);
    if (!status && (!(s.first = kvc_alloc(c->n_extents + 1, sizeof *s.first)) ||
                    !(s.tensor = kvc_alloc_zeros(c->n_extents, sizeof *s.tensor))))
        status = kvc_fail_memory(e, "extents");
    if (!status) status = place_extents(&s, e);
    for (uint64_t i = 0; i < c->n_extents && !status; i++) {
        s.first[i] = job.n;
        job.n += items_of(c, &c->extent[i]);
    }
    if (!status) status = kvc_container_may_hold(c, held_bytes(&s), e);
    if (!status) {
        s.first[c->n_extents] = job.n;
        status = kvc_parallel(&job, kvc_cache_threads(c, threads), e);
    }
    if (!status && c->n_members) status = begin_members(&s, c->n_members, e);
    if (!status && c->n_members && out->finish(out->state, e)) status = -1;
    for (uint32_t i = 0; s.row_of && i < c->n_parts; i++) free(s.row_of[i]);
    free(s.row_of);
    free_rooms(&s);
    free(s.first);
    if (status) return -1;
    return kvc_cache_is_container(c) ? kvc_container_check_rest(c, e) : 0;
}

int kvc_source_write(const struct kvc_cache *c, unsigned threads, struct kvc_sink *out,
                     struct kvc_error *e) {
    struct kvc_member_sink members = {.out = out};
    if (!c->n_members) return kvc_source_write_members(c, threads, &members, e);
    struct kvc_tar *tar = kvc_tar_open(out, &members, e);
    return tar ? kvc_tar_close(tar, kvc_source_write_members(c, threads, &members, e), e) : -1;
}
