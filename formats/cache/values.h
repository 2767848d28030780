/* values.h: what lossy recipes the values of a cache went through before it was packed. FORMAT.md,
 * "Metadata keys". Not for the loss of a container's own recipe. */
#ifndef KVC_VALUES_H
#define KVC_VALUES_H

#include "formats/cache/join_check.h"

/* Turns the recipe of a source, if it is lossy, and its profile into the last ones that the
 * source's values went through, and notes the container out of which they came. */
int kvc_values_pass(struct kvc_meta *meta, struct kvc_error *e);
/* Sets the past of values that are packed with a base (formats/container/base.h) of this metadata:
 * that of the base, whose recipe they do not go through again, unless they are known to have gone
 * through others. */
int kvc_values_keep(struct kvc_meta *meta, const struct kvc_meta *base, struct kvc_error *e);
/* Sets what the values of joined caches went through. Operands that went through different recipes
 * are all named. */
int kvc_values_join(struct kvc_meta *meta, const struct kvc_join_operand *from, size_t n,
                    struct kvc_error *e);

#endif
