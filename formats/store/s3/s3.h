/* s3.h: the S3 backend of the prefix store, for what is linked with it. Not for the store, which
 * finds it by KVC_TIER_ENTRY. */
#ifndef KVC_S3_H
#define KVC_S3_H

#include "formats/store/tier.h"

const struct kvc_tier_ops *kvc_store_tier(void);

/* What a tier did since it was opened. */
struct kvc_s3_stats {
    uint64_t rounds; /* of HEAD requests at once, by finding */
    uint64_t requests, retries, hedges, hedges_won;
};
void kvc_s3_stats(const struct kvc_tier *tier, struct kvc_s3_stats *stats);

#endif
