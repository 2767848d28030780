/* trial.h: finds the kernels that code rANS fastest on this CPU. Not for the choice of tables
 * (dispatch.c). */
#ifndef KVC_TRIAL_H
#define KVC_TRIAL_H

#include "kernels/kernels.h"

/* Times rANS of n tables that this CPU runs, the narrowest instruction set first, for less than a
 * millisecond. Puts the table of the fastest rans_encode into *encode, the table of the fastest
 * rans_decode into *decode, and into *two the table that decodes two streams fastest, by
 * rans_decode_two or, without it, one after the other; a wider one must win by 3 %. All tables give
 * the same bytes, so that a disturbed trial costs speed only. */
void kvc_trial_rans(const struct kvc_kernels *const *table, size_t n,
                    const struct kvc_kernels **encode, const struct kvc_kernels **decode,
                    const struct kvc_kernels **two);

#endif
