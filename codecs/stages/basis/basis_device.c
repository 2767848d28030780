/* basis_device.c: makes an operation of the basis of a block, whose tables stay on the device.
 * Spec: basis.md. Not for running it (kernels/device/decode_products.h). */
#include "codecs/stages/basis/basis_device.h"

#include "codecs/profile_part.h"
#include "codecs/program.h"
#include "codecs/stages/basis/basis_own.h"

#include <string.h>

/* Rows as a device has them: codes, a quarter of the bytes, and scales; it makes the elements where
 * it uses them. */
struct rows {
    const void *source;  /* key of the tables on the device */
    const size_t *kept;  /* of each head; NULL: as many as channels */
    const uint8_t *code; /* of their elements, less `offset` */
    unsigned offset;
    const float *scale;   /* of each row */
    const float *channel; /* of channels, or NULL */
};

static int lower_rows(const struct rows *from, const struct kvc_block *block,
                      struct kvc_program *program, struct kvc_error *e) {
    enum { CODES, PARTS, SCALES, CHANNELS };
    const size_t heads = (size_t)block->shape.heads, dim = (size_t)block->shape.dim,
                 stride = (dim + 3) & ~(size_t)3;
    struct kvc_device_op op = kvc_program_op_of(KVC_OP_BASIS, &block->shape);
    uint32_t rows = 0;
    void *to;
    if (kvc_program_keep(program, from->source, PARTS, 2 * heads * sizeof(uint32_t), &to,
                         &op.basis.parts, e))
        return -1;
    for (size_t h = 0; h < heads; h++) {
        const uint32_t part[2] = {rows, (uint32_t)(from->kept ? from->kept[h] : dim)};
        if (to) memcpy((uint8_t *)to + h * sizeof part, part, sizeof part);
        rows += part[1];
    }
    if (kvc_program_keep(program, from->source, CODES, rows * stride, &to, &op.basis.codes, e))
        return -1;
    for (size_t i = 0; to && i < rows; i++) {
        uint8_t *row = (uint8_t *)to + i * stride;
        for (size_t d = 0; d < stride; d++)
            row[d] = d < dim ? (uint8_t)(from->code[i * dim + d] - from->offset) : 0;
    }
    if (kvc_program_keep_copy(program, from->source, SCALES, from->scale, rows * sizeof(float),
                              &op.basis.scale, e))
        return -1;
    if (from->channel) {
        if (kvc_program_keep(program, from->source, CHANNELS, heads * stride * sizeof(float), &to,
                             &op.basis.channel, e))
            return -1;
        if (to) memset(to, 0, heads * stride * sizeof(float));
        for (size_t h = 0; to && h < heads; h++)
            memcpy((float *)to + h * stride, from->channel + h * dim, dim * sizeof(float));
    }
    return kvc_program_op(program, &op, e);
}

static int lower_scales(const struct kvc_basis_own *o, const void *source,
                        const struct kvc_block *block, struct kvc_program *program,
                        struct kvc_error *e) {
    struct kvc_device_op op = kvc_program_op_of(KVC_OP_SCALE, &block->shape);
    if (kvc_program_keep_copy(program, source, 0, o->scale, o->heads * o->dim * sizeof *o->scale,
                              &op.channels.number, e))
        return -1;
    return kvc_program_op(program, &op, e);
}

int kvc_basis_lower(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                    struct kvc_block *block, struct kvc_program *program, struct kvc_error *e) {
    struct kvc_basis_source b;
    (void)args;
    int status = kvc_basis_open(&b, stored, block, e);
    const struct kvc_profile_part *profile = b.profile;
    const struct kvc_basis_own *own = &b.own;
    if (!status && block->shape.dim > KVC_DEVICE_TILE) {
        status = 1;
    } else if (!status && profile) {
        const struct rows rows = {profile->basis, NULL, (const uint8_t *)profile->code, 0,
                                  profile->scale, NULL};
        status = lower_rows(&rows, block, program, e);
    } else if (!status && own->kind == KVC_BASIS_ROWS) {
        const struct rows rows = {b.section->data,       own->kept,      own->code,
                                  1u << (own->bits - 1), own->row_scale, own->scale};
        status = lower_rows(&rows, block, program, e);
    } else if (!status) {
        status = lower_scales(own, b.section->data, block, program, e);
    }
    kvc_basis_own_free(&b.own);
    return status;
}
