/* basis_own.c: a basis of the file's own, and the BASIS section. Spec: basis.md. Not for finding a
 * basis (basis.c). */
#include "codecs/stages/basis/basis_own.h"

#include "codecs/floats.h"
#include "codecs/little_endian.h"
#include "codecs/memory.h"
#include "codecs/planes.h"

#include <stdlib.h>
#include <string.h>

enum { HEADER = 2 };

void kvc_basis_own_free(struct kvc_basis_own *o) {
    free(o->kept);
    free(o->scale);
    free(o->row_scale);
    free(o->code);
    free(o->row);
}

int kvc_basis_own_init(struct kvc_basis_own *o, size_t heads, size_t dim, struct kvc_error *e) {
    memset(o, 0, sizeof *o);
    o->heads = heads;
    o->dim = dim;
    o->kept = calloc(heads, sizeof *o->kept);
    o->scale = kvc_alloc_zeros(heads, dim * sizeof *o->scale);
    o->row_scale = kvc_alloc_zeros(heads, dim * sizeof *o->row_scale);
    return o->kept && o->scale && o->row_scale ? 0 : kvc_fail_memory(e, "a basis");
}

size_t kvc_basis_own_count(const struct kvc_basis_own *o) {
    size_t n = 0;
    for (size_t h = 0; h < o->heads; h++) n += o->kept[h];
    return n;
}

int kvc_basis_own_rows(struct kvc_basis_own *o, struct kvc_error *e) {
    const size_t n = kvc_basis_own_count(o) * o->dim;
    o->code = malloc(n + 1);
    o->row = kvc_alloc_lines(n, sizeof *o->row);
    return o->code && o->row ? 0 : kvc_fail_memory(e, "a basis");
}

void kvc_basis_own_build(struct kvc_basis_own *o) {
    const float *row_scale = o->row_scale;
    size_t i = 0;
    for (size_t h = 0; h < o->heads; h++)
        for (size_t j = 0; j < o->kept[h]; j++, row_scale++)
            for (size_t d = 0; d < o->dim; d++, i++)
                o->row[i] = ((float)((int)o->code[i] - (1 << (o->bits - 1))) * *row_scale) *
                            o->scale[h * o->dim + d];
}

int kvc_basis_own_write(struct kvc_basis_own *o, uint8_t stage, struct kvc_sections *side,
                        struct kvc_error *e) {
    const size_t width = o->heads * o->dim, rows = kvc_basis_own_count(o);
    uint8_t *bytes = malloc(HEADER + 2 * o->heads + KVC_HALVES_BOUND(width) +
                            KVC_HALVES_BOUND(rows) + kvc_packed_bytes(rows * o->dim, o->bits) + 16);
    uint8_t *p = bytes;
    if (!bytes) return kvc_fail_memory(e, "a basis");
    *p++ = (uint8_t)o->kind;
    *p++ = (uint8_t)o->bits;
    int status = kvc_halves_write(&p, o->scale, width, e);
    if (!status && o->kind == KVC_BASIS_ROWS) {
        for (size_t h = 0; h < o->heads; h++, p += 2) put_u16(p, (uint16_t)o->kept[h]);
        status = rows ? kvc_halves_write(&p, o->row_scale, rows, e) : 0;
        if (!status) p = kvc_packed_write(p, o->code, rows * o->dim, o->bits);
    }
    if (!status)
        status = kvc_sections_add(side, KVC_SECTION_BASIS, stage, 0, bytes, (size_t)(p - bytes), 0,
                                  e);
    free(bytes);
    return status ? -1 : 0;
}

static int basis_own_read_rows(struct kvc_basis_own *o, const uint8_t **bytes, const uint8_t *end,
                               struct kvc_error *e) {
    const uint8_t *p = *bytes;
    if ((size_t)(end - p) < 2 * o->heads)
        return kvc_fail(e, KVC_ERR_DAMAGED, "section BASIS is cut short");
    for (size_t h = 0; h < o->heads; h++, p += 2)
        if ((o->kept[h] = get_u16(p)) > o->dim)
            return kvc_fail(e, KVC_ERR_DAMAGED, "section BASIS has more rows than channels");
    const size_t rows = kvc_basis_own_count(o), size = kvc_packed_bytes(rows * o->dim, o->bits);
    if (rows && kvc_halves_read(o->row_scale, &p, end, rows, e))
        return kvc_error_prefix(e, "BASIS");
    if ((size_t)(end - p) < size) return kvc_fail(e, KVC_ERR_DAMAGED, "section BASIS is cut short");
    if (kvc_basis_own_rows(o, e)) return -1;
    if (kvc_packed_read(o->code, p, rows * o->dim, o->bits, e)) return kvc_error_prefix(e, "BASIS");
    *bytes = p + size;
    return 0;
}

static int read_own(struct kvc_basis_own *o, const struct kvc_section *s, struct kvc_error *e) {
    const uint8_t *p = s->data, *end = p + s->size;
    if (s->size < HEADER) return kvc_fail(e, KVC_ERR_DAMAGED, "section BASIS is cut short");
    if (p[0] > KVC_BASIS_ROWS)
        return kvc_fail(e, KVC_ERR_DAMAGED, "section BASIS: kind %u is unknown", p[0]);
    if (p[1] < 4 || p[1] > 8)
        return kvc_fail(e, KVC_ERR_DAMAGED, "section BASIS: elements of %u bits, not 4 to 8", p[1]);
    o->kind = p[0];
    o->bits = p[1];
    p += HEADER;
    if (kvc_halves_read(o->scale, &p, end, o->heads * o->dim, e))
        return kvc_error_prefix(e, "BASIS");
    if (o->kind == KVC_BASIS_ROWS && basis_own_read_rows(o, &p, end, e)) return -1;
    if (p != end) return kvc_fail(e, KVC_ERR_DAMAGED, "section BASIS has bytes after its rows");
    return 0;
}

int kvc_basis_own_read(struct kvc_basis_own *o, const struct kvc_stored *stored,
                       struct kvc_error *e) {
    const struct kvc_section *s = kvc_section_only(stored->side, stored->n_side, KVC_SECTION_BASIS,
                                                   e);
    return s ? read_own(o, s, e) : -1;
}

int kvc_basis_open(struct kvc_basis_source *b, const struct kvc_stored *stored,
                   const struct kvc_block *block, struct kvc_error *e) {
    memset(b, 0, sizeof *b);
    if (kvc_stored_none(stored, e)) return -1;
    if (block->shape.dim > KVC_BASIS_MAX_DIM)
        return kvc_fail(e, KVC_ERR_DAMAGED, "a basis of too many channels");
    if (!stored->n_side) {
        if (!block->profile)
            return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_PROFILE,
                                 "the profile's matrices are needed to decode this");
        b->profile = block->profile;
        return 0;
    }
    if (!(b->section = kvc_section_only(stored->side, stored->n_side, KVC_SECTION_BASIS, e)))
        return -1;
    if (kvc_basis_own_init(&b->own, (size_t)block->shape.heads, (size_t)block->shape.dim, e))
        return -1;
    return read_own(&b->own, b->section, e);
}
