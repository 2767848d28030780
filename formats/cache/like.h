/* like.h: a cache as another cache would have kept it: its tensors in that order, in that dtype and
 * RoPE pairing, with the rows of that cache where they are what was converted. Not for views of one
 * cache (view.h). */
#ifndef KVC_LIKE_H
#define KVC_LIKE_H

#include "formats/cache/cache.h"

/* Returns 1 if tensors of attention of `c` are in another order, dtype or pairing than those of
 * `from`. */
int kvc_like_differs(const struct kvc_cache *c, const struct kvc_cache *from);
/* Makes a view of `c`, without companions and extents, like `from`; both must outlive it. A row of
 * `c` that is the row of `from` at its place, converted to the dtype and pairing of `c`, is that
 * row of `from`, bit by bit; others are converted. Refuses other layers, and other dtypes than f32,
 * f16 and bf16 where they differ. */
struct kvc_cache *kvc_like_view(const struct kvc_cache *c, const struct kvc_cache *from,
                                struct kvc_error *e);

#endif
