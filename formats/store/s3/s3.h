/* s3.h: the S3 backend of the prefix store, for what is linked with it. Not for the store, which
 * finds it by KVC_LEVEL_ENTRY. */
#ifndef KVC_S3_H
#define KVC_S3_H

#include "formats/store/level.h"

const struct kvc_level_ops *kvc_store_level(void);

/* What a level did since it was opened. */
struct kvc_s3_stats {
    uint64_t rounds; /* of HEAD requests at once, by finding */
    uint64_t requests, retries, hedges, hedges_won;
};
void kvc_s3_stats(const struct kvc_level *level, struct kvc_s3_stats *stats);

#endif
