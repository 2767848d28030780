/* blocks_write.h: writes a cache as files of some tokens each. Not for selections (view.h). */
#ifndef KVC_BLOCKS_WRITE_H
#define KVC_BLOCKS_WRITE_H

#include "formats/cache/format.h"

/* Writes `c` as files of n tokens each, named STEM-POSITION with the format's suffix: members, or
 * where `members` is NULL a tar archive. */
int kvc_blocks_write(const struct kvc_cache *c, uint64_t n, const char *stem,
                     const struct kvc_format *to, const struct kvc_export_options *options,
                     struct kvc_sink *out, const struct kvc_member_sink *members,
                     struct kvc_error *e);

#endif
