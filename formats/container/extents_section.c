/* extents_section.c: writes and reads the section EXTENTS. Spec: FORMAT.md, "EXTENTS". Not for the
 * bytes that it places. */
#include "formats/container/extents_section.h"

#include "codecs/memory.h"
#include "formats/io/bytes.h"
#include "formats/io/member_name.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PLACE_NUMBERS = 7, LONGEST_VARINT = 10 };

/* --- writing --- */

static int extents_section_put(struct kvc_sink *out, const uint64_t *number, unsigned n,
                               struct kvc_error *e) {
    uint8_t bytes[PLACE_NUMBERS * LONGEST_VARINT];
    size_t size = 0;
    for (unsigned i = 0; i < n; i++) size += put_varint(bytes + size, number[i]);
    return kvc_sink_write(out, bytes, size, e);
}

static int put_region(const struct kvc_cache *c, const struct kvc_extent *x, struct kvc_sink *out,
                      struct kvc_error *e) {
    uint32_t t;
    if (!x->n_places) return extents_section_put(out, (const uint64_t[]){0, x->size}, 2, e);
    if (kvc_extent_is_tensor(c, x, &t))
        return extents_section_put(out, (const uint64_t[]){(uint64_t)t + 1}, 1, e);
    if (extents_section_put(out,
                            (const uint64_t[]){(uint64_t)c->n_tensors + 1, x->size, x->n_places}, 3,
                            e))
        return -1;
    for (uint64_t i = 0; i < x->n_places; i++) {
        const struct kvc_place *p = &c->place[x->place + i];
        const uint64_t number[PLACE_NUMBERS] = {p->tensor,       p->cell,          p->n,
                                                p->offset,       p->strides.token, p->strides.head,
                                                p->strides.block};
        if (extents_section_put(out, number, PLACE_NUMBERS, e)) return -1;
    }
    return 0;
}

static int put_member(const struct kvc_cache *c, uint32_t member, struct kvc_sink *out,
                      struct kvc_error *e) {
    const char *name = c->member[member];
    if (extents_section_put(out, (const uint64_t[]){(uint64_t)c->n_tensors + 2, strlen(name)}, 2,
                            e))
        return -1;
    return kvc_sink_write(out, name, strlen(name), e);
}

int kvc_extents_write(const struct kvc_cache *c, struct kvc_buffer *out, struct kvc_error *e) {
    struct kvc_sink sink = kvc_sink_buffer(out);
    uint32_t member = 0; /* the next to begin */
    int status = extents_section_put(&sink, (const uint64_t[]){c->n_extents + c->n_members}, 1, e);
    for (uint64_t i = 0; i < c->n_extents && !status; i++) {
        for (; member < c->n_members && member <= c->extent[i].member && !status; member++)
            status = put_member(c, member, &sink, e);
        if (!status) status = put_region(c, &c->extent[i], &sink, e);
    }
    /* empty ones */
    for (; member < c->n_members && !status; member++) status = put_member(c, member, &sink, e);
    return status;
}

/* --- reading --- */

static int cut_short(struct kvc_error *e) {
    return kvc_fail(e, KVC_ERR_DAMAGED, "extents are cut short");
}

static int get(const uint8_t **p, const uint8_t *end, uint64_t *number, unsigned n,
               struct kvc_error *e) {
    for (unsigned i = 0; i < n; i++)
        if (get_varint(p, end, &number[i])) return cut_short(e);
    return 0;
}

static int get_member(struct kvc_cache *c, const uint8_t **p, const uint8_t *end,
                      struct kvc_error *e) {
    char name[KVC_MAX_MEMBER_NAME + 1];
    uint64_t n;
    if (get(p, end, &n, 1, e)) return -1;
    if (n > KVC_MAX_MEMBER_NAME || n > (uint64_t)(end - *p) || memchr(*p, 0, (size_t)n))
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "the name of a member has %" PRIu64
                        " bytes, which is too many, or contains a NUL",
                        n);
    memcpy(name, *p, (size_t)n);
    name[n] = '\0';
    *p += n;
    return kvc_extents_member(c, name, e);
}

/* Fails if a region is larger than its places and the remaining literal bytes, so that no memory is
 * allocated for a false size. */
static int check_size(const struct kvc_cache *c, uint64_t size, const struct kvc_place *place,
                      uint64_t n, uint64_t literals, struct kvc_error *e) {
    uint64_t covered = literals > c->literal_size ? literals - c->literal_size : 0;
    for (uint64_t i = 0; i < n && covered < size; i++) {
        uint64_t bytes;
        if (place[i].tensor >= c->n_tensors || place[i].n > c->tensor[place[i].tensor].shape.tokens)
            break;
        bytes = place[i].n * kvc_row_bytes(&c->tensor[place[i].tensor].shape);
        if (__builtin_add_overflow(covered, bytes, &covered)) break;
    }
    if (covered >= size) return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED,
                    "a region of %" PRIu64 " bytes is larger than its places and literal bytes",
                    size);
}

/* Refuses a place of a tensor whose row of TABLE says as well where it lies. */
static int check_table(const struct kvc_cache *c, const struct kvc_place *place,
                       struct kvc_error *e) {
    if (place->tensor >= c->n_tensors) return 0; /* refused with the region */
    const struct kvc_tensor *t = &c->tensor[place->tensor];
    const struct kvc_strides due = kvc_strides_canonical(&t->shape);
    if (memcmp(&t->source, &due, sizeof due) == 0 && t->source_size == kvc_tensor_bytes(t))
        return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED,
                    "tensor %" PRIu32 " lies in places, and its strides are not canonical",
                    place->tensor);
}

static int get_region(struct kvc_cache *c, const uint8_t **p, const uint8_t *end, uint64_t literals,
                      struct kvc_error *e) {
    uint64_t head[2];
    if (get(p, end, head, 2, e)) return -1;
    if (!head[1] || head[1] > (uint64_t)(end - *p) / PLACE_NUMBERS)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "a region has no places, or more than the section holds");
    struct kvc_place *place = kvc_alloc(head[1], sizeof *place);
    int status = place ? 0 : kvc_fail_memory(e, "places");
    for (uint64_t i = 0; i < head[1] && !status; i++) {
        uint64_t number[PLACE_NUMBERS];
        status = get(p, end, number, PLACE_NUMBERS, e);
        if (status) break;
        place[i] = (struct kvc_place){.tensor = number[0] < KVC_NONE ? (uint32_t)number[0]
                                                                     : KVC_NONE,
                                      .cell = number[1],
                                      .n = number[2],
                                      .offset = number[3],
                                      .strides = {number[4], number[5], number[6]}};
    }
    for (uint64_t i = 0; i < head[1] && !status; i++) status = check_table(c, &place[i], e);
    if (!status) status = check_size(c, head[0], place, head[1], literals, e);
    if (!status) status = kvc_extents_region(c, head[0], place, head[1], NULL, NULL, e);
    free(place);
    return status;
}

static int get_entry(struct kvc_cache *c, uint64_t i, const uint8_t **p, const uint8_t *end,
                     uint64_t literals, struct kvc_error *e) {
    const struct kvc_extent *last = c->n_extents ? &c->extent[c->n_extents - 1] : NULL;
    uint64_t what, size;
    if (get(p, end, &what, 1, e)) return -1;
    if (what == (uint64_t)c->n_tensors + 2) return get_member(c, p, end, e);
    if (what == (uint64_t)c->n_tensors + 1) return get_region(c, p, end, literals, e);
    if (what > c->n_tensors)
        return kvc_fail(e, KVC_ERR_DAMAGED, "extent %" PRIu64 " names no tensor", i);
    if (what && c->tensor[what - 1].source_size != kvc_tensor_bytes(&c->tensor[what - 1]))
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "the region of tensor %" PRIu64 " in the source is longer than the tensor",
                        what - 1);
    if (what) return kvc_extents_tensor(c, (uint32_t)(what - 1), e);
    if (get(p, end, &size, 1, e)) return -1;
    if (!size || (last && !last->n_places && (!c->n_members || last->member == c->n_members - 1)))
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "extent %" PRIu64 " is empty, or continues the extent before", i);
    return kvc_extents_literal(c, size, e);
}

int kvc_extents_read(struct kvc_cache *c, const uint8_t *p, size_t n, uint64_t literals,
                     struct kvc_error *e) {
    const uint8_t *end = p + n;
    uint64_t count;
    if (get(&p, end, &count, 1, e)) return -1;
    if (!count || count > n)
        return kvc_fail(e, KVC_ERR_DAMAGED, "extents are cut short, or there are none");
    for (uint64_t i = 0; i < count; i++)
        if (get_entry(c, i, &p, end, literals, e)) return -1;
    if (p != end)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "extents do not name every tensor once, or bytes follow them");
    return kvc_extents_check(c, e);
}
