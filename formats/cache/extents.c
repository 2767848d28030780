/* extents.c: the layout of a cache's source: members, regions of tensors, literal bytes. Not for
 * the bytes (mapped.c, restore.c). */
#include "formats/cache/extents.h"

#include "codecs/memory.h"
#include "formats/cache/divisor.h"
#include "formats/io/member_name.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_UNITS (UINT64_C(1) << 34) /* of a region: bits of its map */

int kvc_extents_member(struct kvc_cache *c, const char *name, struct kvc_error *e) {
    if (!kvc_member_name_is_sane(name, strlen(name)))
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "a member's name must be a relative path of printable characters, without "
                        "'.' and '..'");
    if (!c->n_members && c->n_extents)
        return kvc_fail(e, KVC_ERR_DAMAGED, "bytes come before the first member");
    if (c->n_members == UINT32_MAX - 1)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "the source has more members than kvc handles");
    char **grown = kvc_room_for_one(c->member, c->n_members, sizeof *grown);
    if (grown) c->member = grown;
    if (!grown || !(grown[c->n_members] = strdup(name))) return kvc_fail_memory(e, "members");
    c->n_members++;
    return 0;
}

/* --- extents --- */

static int add_extent(struct kvc_cache *c, const struct kvc_extent *x, struct kvc_error *e) {
    struct kvc_extent *grown = kvc_room_for_one(c->extent, c->n_extents, sizeof *grown);
    if (!grown) return kvc_fail_memory(e, "extents");
    c->extent = grown;
    c->extent[c->n_extents] = *x;
    c->extent[c->n_extents++].member = c->n_members ? c->n_members - 1 : 0;
    return 0;
}

static int add_places(struct kvc_cache *c, const struct kvc_place *place, uint64_t n,
                      struct kvc_error *e) {
    for (uint64_t i = 0; i < n; i++) {
        struct kvc_place *grown = kvc_room_for_one(c->place, c->n_places, sizeof *grown);
        if (!grown) return kvc_fail_memory(e, "places");
        c->place = grown;
        c->place[c->n_places++] = place[i];
    }
    return 0;
}

int kvc_extents_literal(struct kvc_cache *c, uint64_t size, struct kvc_error *e) {
    struct kvc_extent *last = c->n_extents ? &c->extent[c->n_extents - 1] : NULL;
    const struct kvc_extent x = {.size = size, .literal = c->literal_size};
    uint64_t total;
    if (__builtin_add_overflow(c->literal_size, size, &total))
        return kvc_fail(e, KVC_ERR_DAMAGED, "extents overflow");
    if (last && !last->n_places && (!c->n_members || last->member == c->n_members - 1))
        last->size += size;
    else if (add_extent(c, &x, e)) return -1;
    c->literal_size = total;
    return 0;
}

int kvc_extents_tensor(struct kvc_cache *c, uint32_t t, struct kvc_error *e) {
    const struct kvc_tensor *tensor = &c->tensor[t];
    const struct kvc_place place = {.tensor = t,
                                    .n = tensor->shape.tokens,
                                    .strides = tensor->source};
    const struct kvc_extent x = {.size = tensor->source_size,
                                 .literal = c->literal_size,
                                 .place = c->n_places,
                                 .n_places = 1};
    if (tensor->source_size != kvc_tensor_bytes(tensor))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "a tensor's region of the source holds more than the tensor");
    if (add_places(c, &place, 1, e) || add_extent(c, &x, e)) return -1;
    return 0;
}

int kvc_extents_region(struct kvc_cache *c, uint64_t size, const struct kvc_place *place,
                       uint64_t n, struct kvc_gap **gaps, uint64_t *n_gaps, struct kvc_error *e) {
    const struct kvc_extent x = {.size = size,
                                 .literal = c->literal_size,
                                 .place = c->n_places,
                                 .n_places = n};
    struct kvc_gap *found;
    uint64_t n_found;
    if (kvc_region_gaps(c, size, place, n, &found, &n_found, e)) return -1;
    int status = add_places(c, place, n, e);
    if (!status) status = add_extent(c, &x, e);
    for (uint64_t i = 0; i < n_found && !status; i++)
        if (__builtin_add_overflow(c->literal_size, found[i].size, &c->literal_size))
            status = kvc_fail(e, KVC_ERR_DAMAGED, "extents overflow");
    if (gaps && !status) {
        *gaps = found;
        *n_gaps = n_found;
    } else {
        free(found);
    }
    return status;
}

int kvc_extent_is_tensor(const struct kvc_cache *c, const struct kvc_extent *x, uint32_t *t) {
    if (x->n_places != 1) return 0;
    const struct kvc_place *p = &c->place[x->place];
    const struct kvc_tensor *tensor = &c->tensor[p->tensor];
    *t = p->tensor;
    return !p->cell && p->n == tensor->shape.tokens && !p->offset &&
           x->size == tensor->source_size && p->strides.token == tensor->source.token &&
           p->strides.head == tensor->source.head && p->strides.block == tensor->source.block &&
           x->size == kvc_tensor_bytes(tensor);
}

static int by_cell(const void *a, const void *b) {
    const struct kvc_place *x = a, *y = b;
    if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
    return x->cell < y->cell ? -1 : x->cell > y->cell;
}

static int extents_by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_members(const struct kvc_cache *c, struct kvc_error *e) {
    const char **sorted = kvc_alloc(c->n_members, sizeof *sorted);
    int status = sorted ? 0 : kvc_fail_memory(e, "members");
    for (uint32_t i = 0; i < c->n_members && !status; i++) sorted[i] = c->member[i];
    if (!status) qsort(sorted, c->n_members, sizeof *sorted, extents_by_name);
    for (uint32_t i = 1; i < c->n_members && !status; i++)
        if (strcmp(sorted[i - 1], sorted[i]) == 0)
            status = kvc_fail(e, KVC_ERR_DAMAGED, "two members have one name");
    free(sorted);
    return status;
}

int kvc_extents_check(const struct kvc_cache *c, struct kvc_error *e) {
    if (check_members(c, e)) return -1;
    struct kvc_place *sorted = kvc_alloc(c->n_places, sizeof *sorted);
    if (!sorted) return kvc_fail_memory(e, "places");
    if (c->n_places) {
        memcpy(sorted, c->place, (size_t)c->n_places * sizeof *sorted);
        qsort(sorted, (size_t)c->n_places, sizeof *sorted, by_cell);
    }
    uint64_t p = 0;
    int status = 0;
    for (uint32_t t = 0; t < c->n_tensors && !status; t++) {
        uint64_t cell = 0;
        const uint64_t first = p;
        /* a tensor without cells has one place of none */
        for (; p < c->n_places && sorted[p].tensor == t && sorted[p].cell == cell &&
               (sorted[p].n || p == first);
             p++)
            cell += sorted[p].n;
        if (cell != c->tensor[t].shape.tokens || p == first ||
            (p < c->n_places && sorted[p].tensor == t))
            status = kvc_fail(e, KVC_ERR_DAMAGED,
                              "extents do not name every tensor once: tensor %" PRIu32, t);
    }
    free(sorted);
    return status;
}

/* --- gaps --- */

/* The values of a place as runs of `run` bytes. Axis i repeats the axes below it `count[i]` times,
 * `stride[i]` bytes apart. */
struct runs {
    uint64_t run;
    uint64_t count[3], stride[3];
};

/* Fills *r with the runs of a place, and joins adjacent runs. Returns 0 if the values lie in the
 * region and share no byte. */
static int take_apart(const struct kvc_shape *shape, const struct kvc_place *p, uint64_t size,
                      struct runs *r) {
    struct kvc_shape own = *shape;
    const uint32_t block = kvc_dtype_info(shape->dtype)->block;
    own.tokens = p->n;
    if (p->offset > size || !kvc_strides_check(&own, &p->strides, size - p->offset)) return -1;
    *r = (struct runs){.run = kvc_dtype_info(shape->dtype)->size,
                       .count = {shape->dim / block, shape->heads, p->n},
                       .stride = {p->strides.block, p->strides.head, p->strides.token}};
    if (shape->dim % block) { /* the row is one run */
        r->run = kvc_row_bytes(shape);
        r->count[0] = r->count[1] = 1;
    }
    for (int joined = 1; joined;) {
        joined = 0;
        for (int i = 0; i < 3; i++)
            if (r->count[i] > 1 && r->stride[i] == r->run) {
                r->run *= r->count[i];
                r->count[i] = 1;
                joined = 1;
            }
    }
    return 0;
}

/* Marks units [first, first + n). Returns -1 if a unit is marked already. */
static int mark(uint8_t *map, uint64_t first, uint64_t n) {
    for (uint64_t u = first; u < first + n; u++) {
        if (map[u / 8] & 1u << u % 8) return -1;
        map[u / 8] |= (uint8_t)(1u << u % 8);
    }
    return 0;
}

static int mark_place(uint8_t *map, const struct runs *r, uint64_t offset, uint64_t unit) {
    for (uint64_t a = 0; a < r->count[2]; a++)
        for (uint64_t b = 0; b < r->count[1]; b++)
            for (uint64_t d = 0; d < r->count[0]; d++) {
                const uint64_t at = offset + a * r->stride[2] + b * r->stride[1] + d * r->stride[0];
                if (mark(map, at / unit, r->run / unit)) return -1;
            }
    return 0;
}

/* Lists the runs of units that are not marked. */
static int list_gaps(const uint8_t *map, uint64_t units, uint64_t unit, struct kvc_gap **gaps,
                     uint64_t *n, struct kvc_error *e) {
    for (uint64_t u = 0; u < units; u++) {
        if (map[u / 8] & 1u << u % 8) continue;
        struct kvc_gap *last = *n ? &(*gaps)[*n - 1] : NULL;
        if (last && last->offset + last->size == u * unit) {
            last->size += unit;
            continue;
        }
        struct kvc_gap *grown = kvc_room_for_one(*gaps, *n, sizeof *grown);
        if (!grown) return kvc_fail_memory(e, "a region");
        *gaps = grown;
        (*gaps)[(*n)++] = (struct kvc_gap){.offset = u * unit, .size = unit};
    }
    return 0;
}

int kvc_region_gaps(const struct kvc_cache *c, uint64_t size, const struct kvc_place *place,
                    uint64_t n, struct kvc_gap **gaps, uint64_t *n_gaps, struct kvc_error *e) {
    uint64_t unit = size, covered = 0;
    struct runs *runs = kvc_alloc(n, sizeof *runs);
    *gaps = NULL;
    *n_gaps = 0;
    if (!runs) return kvc_fail_memory(e, "a region");
    int status = 0;
    if (!size || size > KVC_MAX_TENSOR_BYTES)
        status = kvc_fail(e, KVC_ERR_DAMAGED,
                          "a region of %" PRIu64 " bytes: the size must be 1 to 2^48", size);
    for (uint64_t i = 0; i < n && !status; i++) {
        const struct kvc_place *p = &place[i];
        const uint64_t cells = p->tensor < c->n_tensors ? c->tensor[p->tensor].shape.tokens : 0;
        if (!p->n || p->cell > cells || p->n > cells - p->cell ||
            take_apart(&c->tensor[p->tensor].shape, p, size, &runs[i])) {
            status = kvc_fail(e, KVC_ERR_DAMAGED,
                              "place %" PRIu64
                              " of a region reaches outside of the region or its tensor",
                              i);
            break;
        }
        unit = kvc_common_divisor(kvc_common_divisor(unit, runs[i].run), p->offset);
        for (int k = 0; k < 3; k++)
            if (runs[i].count[k] > 1) unit = kvc_common_divisor(unit, runs[i].stride[k]);
        if (__builtin_add_overflow(covered, p->n * kvc_row_bytes(&c->tensor[p->tensor].shape),
                                   &covered) ||
            covered > size)
            status = kvc_fail(e, KVC_ERR_DAMAGED,
                              "the places of a region hold more bytes than the region");
    }
    const uint64_t units = status ? 0 : size / unit;
    if (units > MAX_UNITS)
        status = kvc_fail(e, KVC_ERR_UNSUPPORTED,
                          "a region of %" PRIu64 " pieces is more than kvc handles", units);
    uint8_t *map = status ? NULL : kvc_alloc_zeros(units / 8 + 1, 1);
    if (!status && !map) status = kvc_fail_memory(e, "a region");
    for (uint64_t i = 0; i < n && !status; i++)
        if (mark_place(map, &runs[i], place[i].offset, unit))
            status = kvc_fail(e, KVC_ERR_DAMAGED,
                              "place %" PRIu64 " of a region shares bytes with another place", i);
    if (!status && covered < size) status = list_gaps(map, units, unit, gaps, n_gaps, e);
    if (status) {
        free(*gaps);
        *gaps = NULL;
    }
    free(map);
    free(runs);
    return status;
}
