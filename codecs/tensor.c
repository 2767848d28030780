/* tensor.c: sizes of tensors, copies between strided layouts and canonical rows, the digest of
 * values. */
#include "codecs/tensor.h"

#include "kernels/kernels.h"

#include <string.h>

int kvc_shape_check(const struct kvc_shape *shape) {
    const struct kvc_dtype_info *info = kvc_dtype_info(shape->dtype);
    uint64_t values, bytes;
    if (!info || !shape->heads || !shape->dim) return 0;
    if (__builtin_mul_overflow(shape->heads, shape->dim, &values) || values % info->block) return 0;
    if (values / info->block > KVC_MAX_ROW_BYTES / info->size) return 0;
    bytes = values / info->block * info->size;
    uint64_t rows = shape->tokens < KVC_MAX_BLOCK_ROWS ? shape->tokens : KVC_MAX_BLOCK_ROWS;
    return rows <= KVC_MAX_BLOCK_BYTES / bytes && shape->tokens <= KVC_MAX_TENSOR_BYTES / bytes;
}

uint64_t kvc_row_blocks(const struct kvc_shape *shape) {
    return shape->heads * shape->dim / kvc_dtype_info(shape->dtype)->block;
}

uint64_t kvc_row_bytes(const struct kvc_shape *shape) {
    return kvc_row_blocks(shape) * kvc_dtype_info(shape->dtype)->size;
}

/* Blocks in one head, or 0 when blocks straddle heads and only whole rows make sense. */
static uint64_t head_blocks(const struct kvc_shape *shape) {
    uint32_t block = kvc_dtype_info(shape->dtype)->block;
    return shape->dim % block ? 0 : shape->dim / block;
}

struct kvc_strides kvc_strides_canonical(const struct kvc_shape *shape) {
    uint64_t size = kvc_dtype_info(shape->dtype)->size;
    return (struct kvc_strides){kvc_row_bytes(shape), head_blocks(shape) * size, size};
}

struct kvc_strides kvc_strides_heads_first(const struct kvc_shape *shape) {
    uint64_t size = kvc_dtype_info(shape->dtype)->size, head = head_blocks(shape) * size;
    return (struct kvc_strides){head, head * shape->tokens, size};
}

/* 1 when a row is one run of bytes. */
static int row_is_contiguous(const struct kvc_shape *shape, const struct kvc_strides *s) {
    struct kvc_strides c = kvc_strides_canonical(shape);
    return s->block == c.block && (shape->heads == 1 || s->head == c.head);
}

uint64_t kvc_row_pieces(const struct kvc_shape *shape, const struct kvc_strides *s) {
    if (row_is_contiguous(shape, s)) return 1;
    return head_blocks(shape) && s->block == kvc_dtype_info(shape->dtype)->size ? shape->heads : 0;
}

int kvc_strides_check(const struct kvc_shape *shape, const struct kvc_strides *s, uint64_t size) {
    uint64_t blocks = head_blocks(shape), reach = kvc_dtype_info(shape->dtype)->size;
    struct {
        uint64_t count, stride;
    } axis[3] = {{shape->tokens, s->token}, {shape->heads, s->head}, {blocks, s->block}};
    if (!shape->tokens) return 1;
    if (!blocks) { /* blocks straddle heads: the row is one run, and only the token axis is left */
        if (!row_is_contiguous(shape, s)) return 0;
        reach = kvc_row_bytes(shape);
        axis[1].count = axis[2].count = 1;
    }
    /* From the shortest stride to the longest, each step must clear all that the shorter ones
     * reach. */
    for (int done = 0; done < 3; done++) {
        int next = done;
        for (int i = done + 1; i < 3; i++)
            if (axis[i].count > 1 && (axis[next].count <= 1 || axis[i].stride < axis[next].stride))
                next = i;
        uint64_t count = axis[next].count, stride = axis[next].stride, steps;
        axis[next] = axis[done];
        if (count <= 1) continue;
        if (stride < reach || __builtin_mul_overflow(stride, count - 1, &steps) ||
            __builtin_add_overflow(reach, steps, &reach))
            return 0;
    }
    return reach <= size;
}

/* Which way rows are copied. */
enum way { IN, OUT, OUT_PAST }; /* from a layout, to a layout, to a layout past the caches */

/* Copies n pieces of `size` bytes, row_step and other_step bytes apart. */
static void move(uint8_t *row, uint64_t row_step, uint8_t *other, uint64_t other_step, uint64_t n,
                 uint64_t size, enum way way) {
    if (n <= 1) row_step = other_step = 0; /* of one piece it may be any */
    if (way == IN) kvc_kernels_get()->copy_pieces(row, row_step, other, other_step, n, size, 0);
    else kvc_kernels_get()->copy_pieces(other, other_step, row, row_step, n, size, way == OUT_PAST);
}

/* Copies the rows of a layout head by head. */
static void heads_copy(uint8_t *rows, uint8_t *base, const struct kvc_shape *shape,
                       const struct kvc_strides *s, uint64_t n, enum way way) {
    const uint64_t size = kvc_dtype_info(shape->dtype)->size, blocks = head_blocks(shape),
                   row = kvc_row_bytes(shape);
    for (uint64_t h = 0; h < shape->heads; h++) { /* the stride of a single head may be any */
        uint8_t *to = rows + h * blocks * size, *from = base + h * s->head;
        if (s->block == size) move(to, row, from, s->token, n, blocks * size, way);
        else
            for (uint64_t b = 0; b < blocks; b++)
                move(to + b * size, row, from + b * s->block, s->token, n, size, way);
    }
}

/* Copies rows of a layout in which the tokens of a channel lie side by side. */
static void turned_copy(uint8_t *rows, uint8_t *base, const struct kvc_shape *shape,
                        const struct kvc_strides *s, uint64_t n, enum way way) {
    const uint64_t size = s->token, blocks = head_blocks(shape), row = kvc_row_bytes(shape);
    for (uint64_t h = 0; h < shape->heads; h++) {
        uint8_t *to = rows + h * blocks * size, *from = base + h * s->head;
        if (size == 2 && way == IN)
            kvc_kernels_get()->transpose_2(to, row, from, s->block, blocks, n);
        else if (size == 2) kvc_kernels_get()->transpose_2(from, s->block, to, row, n, blocks);
        else
            for (uint64_t b = 0; b < blocks; b++)
                move(to + b * size, row, from + b * s->block, size, n, size, way);
    }
}

static void rows_copy(uint8_t *rows, uint8_t *base, const struct kvc_shape *shape,
                      const struct kvc_strides *s, uint64_t first, uint64_t n, enum way way) {
    const uint64_t row = kvc_row_bytes(shape), size = kvc_dtype_info(shape->dtype)->size;
    base += first * s->token;
    if (row_is_contiguous(shape, s) && s->token == row) move(rows, 0, base, 0, 1, n * row, way);
    else if (row_is_contiguous(shape, s)) move(rows, row, base, s->token, n, row, way);
    else if (s->token == size && s->block != size) turned_copy(rows, base, shape, s, n, way);
    else heads_copy(rows, base, shape, s, n, way);
}

void kvc_rows_gather(uint8_t *rows, const uint8_t *base, const struct kvc_shape *shape,
                     const struct kvc_strides *s, uint64_t first, uint64_t n) {
    rows_copy(rows, (uint8_t *)(uintptr_t)base, shape, s, first, n, IN);
}

void kvc_rows_scatter(uint8_t *base, const uint8_t *rows, const struct kvc_shape *shape,
                      const struct kvc_strides *s, uint64_t first, uint64_t n, int past) {
    rows_copy((uint8_t *)(uintptr_t)rows, base, shape, s, first, n, past ? OUT_PAST : OUT);
}

uint64_t kvc_digest_rows(const uint8_t *rows, uint64_t row_bytes, uint64_t first, uint64_t n) {
    return kvc_kernels_get()->digest_rows(rows, (size_t)row_bytes, first, (size_t)n);
}
