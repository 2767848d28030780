/* prefix_extras_given.h: a caller's extras of prefix keys as metadata. Not for users. */
#ifndef KVC_PREFIX_EXTRAS_GIVEN_H
#define KVC_PREFIX_EXTRAS_GIVEN_H

#include "formats/api/kvc.h"
#include "formats/cache/meta.h"

/* Writes n extras, at least one, into metadata. */
int kvc_extras_given(struct kvc_meta *meta, const struct kvc_prefix_extra *extras, size_t n,
                     struct kvc_error *e);

#endif
