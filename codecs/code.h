/* code.h: the step of the stage `code`, for who settles it. Not for coding. */
#ifndef KVC_CODE_H
#define KVC_CODE_H

#include "codecs/args.h"

/* The step that a recipe gives, 0 where it gives none, and the KLD, likewise. */
double kvc_code_step(const struct kvc_stage_args *args, double *kld);
/* Gives a step instead, rounded to five significant digits, so that the recipe stays short. */
void kvc_code_set_step(struct kvc_stage_args *args, double step);

#endif
