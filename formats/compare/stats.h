/* stats.h: statistics of one tensor's values per head: what kvc-dump --stats prints. */
#ifndef KVC_STATS_H
#define KVC_STATS_H

#include "formats/cache/cache.h"

struct kvc_stats {
    uint64_t values, nan, inf;
    double mean, rms, max_abs; /* over finite values */
    /* channels whose rms is over 4 times the head's median channel rms */
    uint64_t outlier_channels;
    uint64_t worst_channel; /* the channel of largest rms */
    double worst_rms;
};

/* Fills out[heads of the tensor]. Block types are dequantised, not rotated back. */
int kvc_tensor_stats(const struct kvc_cache *c, uint32_t tensor, struct kvc_stats *out,
                     struct kvc_error *e);

#endif
