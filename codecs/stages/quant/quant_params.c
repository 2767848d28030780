/* quant_params.c: steps and minima of `quant` out of the ranges of groups. Spec: quant.md. */
#include "codecs/stages/quant/quant_params.h"

#include "codecs/floats.h"

void kvc_quant_centre(const struct kvc_quant_layout *l, const struct kvc_quant_class *k) {
    const float half = kvc_quant_levels(k) / 2;
    for (size_t g = 0; g < k->params; g++) l->low[g] = l->step[g] * -half;
}

int kvc_quant_add_params(const struct kvc_quant_layout *l, const struct kvc_quant_class *k,
                         int looked, uint8_t stage, uint8_t index, struct kvc_sections *out,
                         struct kvc_error *e) {
    const float levels = kvc_quant_levels(k);
    uint8_t *end = l->packed;
    for (size_t g = 0; g < k->params; g++) {
        const float least = l->low[g], greatest = l->high[g];
        if (l->sym) l->step[g] = 2 * (-least > greatest ? -least : greatest) / levels;
        else l->step[g] = (greatest - least) / levels;
    }
    if (looked ? kvc_halves_round(l->step, k->params, e)
               : kvc_halves_write(&end, l->step, k->params, e))
        return -1;
    if (l->sym) kvc_quant_centre(l, k);
    else if (looked ? kvc_halves_round(l->low, k->params, e)
                    : kvc_halves_write(&end, l->low, k->params, e))
        return -1;
    /* below this a reciprocal may be infinite, and a step moves nothing that matters */
    for (size_t g = 0; g < k->params; g++)
        l->inverse[g] = l->step[g] > 0x1p-120f ? 1 / l->step[g] : 0;
    return looked ? 0
                  : kvc_sections_add(out, KVC_SECTION_PARAMS, stage, index, l->packed,
                                     (size_t)(end - l->packed), 0, e);
}
