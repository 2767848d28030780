/* quant_params.h: steps and minima of `quant` out of the ranges of groups, once for the CPU's
 * encoder (quant.c) and for a device's. Spec: quant.md. Not for the ranges. */
#ifndef KVC_QUANT_PARAMS_H
#define KVC_QUANT_PARAMS_H

#include "codecs/stages/quant/quant_layout.h"

/* Sets the minima of steps that are symmetric around 0. */
void kvc_quant_centre(const struct kvc_quant_layout *l, const struct kvc_quant_class *k);

/* Makes steps and minima of the ranges l->low and l->high, and adds them as section PARAMS, unless
 * the block is only looked at. l->low, l->step and l->inverse become the values that a reader gets,
 * and the reciprocals of its steps. */
int kvc_quant_add_params(const struct kvc_quant_layout *l, const struct kvc_quant_class *k,
                         int looked, uint8_t stage, uint8_t index, struct kvc_sections *out,
                         struct kvc_error *e);

#endif
