/* code.h: the quantisation step in the arguments of the stage `code`, for rate control. Not for coding. */
#ifndef KVC_CODE_H
#define KVC_CODE_H

#include "codecs/args.h"

/* Returns the step that a recipe gives, or 0; sets *kld to its KL divergence per token, or 0. */
double kvc_code_step(const struct kvc_stage_args *args, double *kld);
/* Sets the step, rounded to five significant digits to keep the recipe's text short, and clears the divergence. */
void kvc_code_set_step(struct kvc_stage_args *args, double step);

#endif
