/* ends.h: the rows that `tail` keeps, for encoders other than the CPU's. Spec: tail.md. Not for
 * `sink`. */
#ifndef KVC_ENDS_H
#define KVC_ENDS_H

#include "codecs/stage.h"

/* Returns the first row that `tail` keeps of a tensor with these positions, ascending; NULL: 0, 1,
 * 2, ... */
uint64_t kvc_tail_first(const struct kvc_stage_args *args, uint64_t rows, const int64_t *position);

#endif
