/* quant_device.c: makes an operation of the sections of `quant`. Spec: quant.md. Not for running it
 * (kernels/device/decode_quant.h). */
#include "codecs/stages/quant/quant_device.h"

#include "codecs/planes.h"
#include "codecs/program.h"
#include "codecs/stages/quant/quant_layout.h"

/* Lists the first parameter and code of every class and head, and the class and rank of every row
 * and head. */
static int lower_spans(const struct kvc_quant_layout *l, struct kvc_program *program,
                       struct kvc_device_op *op, struct kvc_error *e) {
    const struct kvc_quant_class *k = l->class;
    if (k->n_spans == 1 && l->heads > 1) return 0;
    uint32_t *begin = kvc_program_table(program, l->n_classes * l->heads * 2 * sizeof *begin,
                                        &op->quant.begin, e);
    if (!begin) return -1;
    for (unsigned c = 0; c < l->n_classes; c++)
        for (size_t h = 0; h < l->heads; h++) {
            *begin++ = (uint32_t)l->class[c].span[h].param;
            *begin++ = (uint32_t)l->class[c].span[h].code;
        }
    op->quant.flags |= KVC_QUANT_BY_HEAD;
    if (l->n_classes == 1) return 0;
    uint16_t *rank = kvc_program_table(program, l->rows * l->heads * sizeof *rank, &op->quant.rank,
                                       e);
    if (!rank) return -1;
    for (unsigned c = 0; c < l->n_classes; c++)
        for (size_t h = 0; h < l->heads; h++) {
            const struct kvc_quant_span *s = &l->class[c].span[h];
            for (size_t r = 0; r < s->rows; r++)
                rank[s->row[r] * l->heads + h] = (uint16_t)(r | c << 15);
        }
    return 0;
}

static int lower_class(const struct kvc_quant_layout *l, unsigned c,
                       const struct kvc_quant_sections *s, struct kvc_program *program,
                       struct kvc_device_op *op, struct kvc_error *e) {
    const struct kvc_quant_class *k = &l->class[c];
    op->quant.bits[c] = k->bits;
    op->quant.centre[c] = -kvc_quant_levels(k) / 2;
    if (!k->codes) return 0;
    const struct kvc_section *params = s->params[c];
    const uint8_t *p = params->data;
    if (!(op->quant.step[c] = kvc_program_halves(program, params, &p, k->params, e)))
        return kvc_error_prefix(e, "PARAMS");
    /* `sym` does not read the minima */
    op->quant.low[c] = l->sym ? op->quant.step[c]
                              : kvc_program_halves(program, params, &p, k->params, e);
    if (!op->quant.low[c]) return kvc_error_prefix(e, "PARAMS");
    if (p != params->data + params->size)
        return kvc_fail(e, KVC_ERR_DAMAGED, "section PARAMS has bytes after its numbers");
    if (!(op->quant.codes[c] = kvc_program_bytes(program, s->codes[c], s->codes[c]->size, &p, e)))
        return -1;
    return k->bits < 8 ? kvc_packed_check(p, k->codes, k->bits, e) : 0;
}

static int lower_sections(const struct kvc_quant_layout *l, const struct kvc_stored *stored,
                          int residual, struct kvc_program *program, struct kvc_device_op *op,
                          struct kvc_error *e) {
    struct kvc_quant_sections s;
    if (kvc_quant_open(&s, l, stored, e)) return -1;
    if (l->normed &&
        !(op->quant.norms = kvc_program_copy(program, l->norm, l->width * sizeof *l->norm, e)))
        return -1;
    op->quant.axis = l->axis;
    op->quant.group = (uint32_t)l->group;
    op->quant.flags = (l->sym ? KVC_QUANT_SYM : 0u) | (residual ? KVC_QUANT_ADD : 0u);
    if (lower_spans(l, program, op, e)) return -1;
    for (unsigned c = 0; c < l->n_classes; c++)
        if (lower_class(l, c, &s, program, op, e)) return -1;
    return residual ? kvc_program_op(program, op, e) : kvc_program_first(program, l->rows, op, e);
}

int kvc_quant_lower(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                    struct kvc_block *block, struct kvc_program *program, struct kvc_error *e) {
    struct kvc_quant_layout l;
    struct kvc_device_op op = kvc_program_op_of(KVC_OP_QUANT, &block->shape);
    if (!block->shape.tokens) return kvc_stored_none(stored, e);
    if (kvc_quant_layout_init(&l, args, block, e)) return -1;
    const int status = lower_sections(&l, stored, block->residual, program, &op, e);
    kvc_quant_layout_free(&l);
    return status;
}
