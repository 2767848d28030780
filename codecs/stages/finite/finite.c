/* finite.c: the stage that takes values that would spoil statistics out of the matrix: NaN,
 * infinities, values from 2^50 on. Spec: finite.md. */
#include "codecs/floats.h"
#include "codecs/little_endian.h"
#include "codecs/memory.h"
#include "codecs/program.h"
#include "codecs/stage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int finite_accepts(const struct kvc_stage_args *args, const struct kvc_shape *shape,
                          struct kvc_error *e) {
    (void)args;
    if (kvc_is_float(shape->dtype)) return 1;
    kvc_fail(e, KVC_ERR_UNSUPPORTED, "takes f32, f16 and bf16, not %s",
             kvc_dtype_info(shape->dtype)->name);
    return 0;
}

/* Returns the replacements of values of each channel: the mean of the channel's tame values, which
 * is inside their range. All at once, as any number of values may be wild. NULL: no memory. */
static double *stand_ins(const float *x, size_t rows, size_t channels) {
    double *mean = kvc_alloc_zeros(channels, 2 * sizeof *mean), *n = mean ? mean + channels : NULL;
    for (size_t t = 0; t < rows && mean; t++, x += channels)
        for (size_t i = 0; i < channels; i++)
            if (kvc_is_tame(x[i])) {
                mean[i] += (double)x[i];
                n[i]++;
            }
    for (size_t i = 0; i < channels && mean; i++) mean[i] = n[i] > 0 ? mean[i] / n[i] : 0;
    return mean;
}

/* Puts the wild values among n values `x` of the block into ESCAPES: indices, then values in their
 * dtype. */
static int take_out(struct kvc_block *block, const float *x, size_t n, size_t wild, uint8_t stage,
                    struct kvc_sections *out, struct kvc_error *e) {
    const size_t size = kvc_dtype_info(block->shape.dtype)->size,
                 row = (size_t)(block->shape.heads * block->shape.dim);
    uint8_t *bytes = kvc_alloc(wild, 4 + size);
    double *means = stand_ins(x, (size_t)block->shape.tokens, row);
    int status = bytes && means ? 0 : kvc_fail_memory(e, "escapes");
    size_t k = 0;
    for (size_t i = 0; i < n && !status; i++) {
        if (kvc_is_tame(x[i])) continue;
        put_u32(bytes + 4 * k, (uint32_t)i);
        memcpy(bytes + 4 * wild + k++ * size, block->rows + i * size, size);
        const float mean = (float)means[i % row];
        kvc_from_floats(block->rows + i * size, &mean, 1, block->shape.dtype);
    }
    if (!status)
        status = kvc_sections_add(out, KVC_SECTION_ESCAPES, stage, 0, bytes, wild * (4 + size), 1,
                                  e);
    free(bytes);
    free(means);
    return status;
}

/* Whether n 16-bit values have one whose bits below the sign reach `limit`: four at a time. */
static int any_reaches(const uint8_t *values, size_t n, uint16_t limit) {
    const uint64_t each = UINT64_C(0x0001000100010001), carry = each * (0x8000u - limit);
    uint64_t four, found = 0;
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        memcpy(&four, values + 2 * i, sizeof four);
        found |= (four & each * 0x7fff) + carry;
    }
    for (; i < n; i++)
        if ((get_u16(values + 2 * i) & 0x7fff) >= limit) return 1;
    return (found & each * 0x8000) != 0;
}

/* 0 when every value of the block is tame for certain. */
static int may_be_wild(const struct kvc_block *block, size_t n) {
    /* infinity */
    if (block->shape.dtype == KVC_F16) return any_reaches(block->rows, n, 0x7c00);
    /* 2^50 */
    if (block->shape.dtype == KVC_BF16) return any_reaches(block->rows, n, (127 + 50) << 7);
    return 1;
}

static int finite_encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                         uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    (void)args, (void)state;
    if (!may_be_wild(block, (size_t)(block->shape.tokens * block->shape.heads * block->shape.dim)))
        return 0;
    const size_t n = (size_t)(block->shape.tokens * block->shape.heads * block->shape.dim);
    float *x = kvc_alloc(n, sizeof *x);
    size_t wild = 0;
    int status = 0;
    if (!x) return kvc_fail_memory(e, "a block");
    kvc_to_floats(x, block->rows, n, block->shape.dtype);
    for (size_t i = 0; i < n; i++) wild += !kvc_is_tame(x[i]);
    if (wild) status = take_out(block, x, n, wild, stage, out, e);
    free(x);
    return status;
}

static int check_ascending(const uint8_t *bytes, size_t count, uint64_t values,
                           struct kvc_error *e) {
    uint64_t from = 0;
    for (size_t k = 0; k < count; k++) {
        const uint64_t i = get_u32(bytes + 4 * k);
        if (i < from || i >= values)
            return kvc_fail(e, KVC_ERR_DAMAGED, "escape %zu is out of place", k);
        from = i + 1;
    }
    return 0;
}

static int put_back(struct kvc_block *block, const struct kvc_section *s, size_t count,
                    uint8_t *room, struct kvc_error *e) {
    const size_t size = kvc_dtype_info(block->shape.dtype)->size;
    const uint64_t values = block->shape.tokens * block->shape.heads * block->shape.dim;
    const uint8_t *bytes = kvc_section_bytes(s, room, (size_t)s->raw_size, e);
    if (!bytes || check_ascending(bytes, count, values, e)) return -1;
    for (size_t k = 0; k < count; k++)
        memcpy(block->rows + get_u32(bytes + 4 * k) * size, bytes + 4 * count + k * size, size);
    return 0;
}

/* Finds the block's escapes and their number; *s is NULL when it has none. */
static int find_escapes(const struct kvc_stored *stored, const struct kvc_shape *shape,
                        const struct kvc_section **s, size_t *n, struct kvc_error *e) {
    const struct kvc_section *next = stored->section, *end = next + stored->n;
    const size_t each = 4 + kvc_dtype_info(shape->dtype)->size;
    *s = NULL;
    if (next == end) return 0;
    if (!(*s = kvc_section_take(&next, end, KVC_SECTION_ESCAPES, 0, e)) ||
        kvc_section_none_left(next, end, e))
        return -1;
    if (!(*s)->raw_size || (*s)->raw_size % each ||
        (*s)->raw_size / each > shape->tokens * shape->heads * shape->dim)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "section ESCAPES of %llu bytes is not a whole number of escapes",
                        (unsigned long long)(*s)->raw_size);
    *n = (size_t)(*s)->raw_size / each;
    return 0;
}

static int finite_decode(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                         struct kvc_block *block, struct kvc_error *e) {
    const struct kvc_section *s;
    size_t n;
    (void)args;
    if (find_escapes(stored, &block->shape, &s, &n, e)) return -1;
    if (!s) return 0;
    uint8_t *room = malloc((size_t)s->raw_size);
    if (!room) return kvc_fail_memory(e, "escapes");
    const int status = put_back(block, s, n, room, e);
    free(room);
    return status;
}

static int finite_lower(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                        struct kvc_block *block, struct kvc_program *program, struct kvc_error *e) {
    const uint64_t values = block->shape.tokens * block->shape.heads * block->shape.dim;
    const struct kvc_section *s;
    const uint8_t *index;
    size_t n;
    (void)args;
    if (find_escapes(stored, &block->shape, &s, &n, e)) return -1;
    if (!s) return 0;
    struct kvc_device_op op = kvc_program_op_of(KVC_OP_PATCH, &block->shape);
    op.patch.number = kvc_program_bytes(program, s, (size_t)s->raw_size, &index, e);
    if (!op.patch.number || check_ascending(index, n, values, e)) return -1;
    op.patch.value = op.patch.number + 4 * n;
    op.patch.n = (uint32_t)n;
    op.patch.size = kvc_dtype_info(block->shape.dtype)->size;
    return kvc_program_op(program, &op, e);
}

const struct kvc_stage kvc_stage_finite = {
    .id = 5,
    .name = "finite",
    .summary = "NaN, infinities and values from 2^50 on apart, exactly",
    .flags = KVC_STAGE_LOSSLESS,
    .accepts = finite_accepts,
    .encode = finite_encode,
    .decode = finite_decode,
    .lower = finite_lower,
};
