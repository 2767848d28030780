/* trial.h: which kernels code rANS fastest on the CPU at hand. Not for the choice of tables (dispatch.c). */
#ifndef KVC_TRIAL_H
#define KVC_TRIAL_H

#include "kernels/kernels.h"

/* Times rANS of n tables that this CPU runs, the narrowest instruction set first, for less than a millisecond. Puts the table
 * whose rans_encode is fastest into *encode, and that whose rans_decode is into *decode; a wider one must win by a tenth. All
 * give the same bytes, so that a disturbed trial costs time and nothing else. */
void kvc_trial_rans(const struct kvc_kernels *const *table, size_t n, const struct kvc_kernels **encode,
                    const struct kvc_kernels **decode);

#endif
