/* s3_ops.h: what an S3 tier does, as tier.h asks for it. Not for opening and closing one. */
#ifndef KVC_S3_OPS_H
#define KVC_S3_OPS_H

#include "formats/store/s3/s3_state.h"

int kvc_s3_find(struct kvc_tier *tier, const struct kvc_object *o, size_t n, kvc_instant deadline,
                size_t *found, uint64_t *size, struct kvc_error *e);
int kvc_s3_get(struct kvc_tier *tier, const struct kvc_object *o, size_t n, kvc_instant deadline,
               kvc_tier_take *take, void *state, struct kvc_error *e);
int kvc_s3_put(struct kvc_tier *tier, const struct kvc_object *o, const void *data, size_t size,
               const struct kvc_tier_put *how, kvc_instant deadline, int *there,
               struct kvc_error *e);
int kvc_s3_drop(struct kvc_tier *tier, const struct kvc_object *o, size_t n, kvc_instant deadline,
                struct kvc_error *e);
int kvc_s3_walk(struct kvc_tier *tier, const uint8_t *ns, kvc_tier_seen *seen, void *state,
                struct kvc_error *e);
int kvc_s3_quarantine(struct kvc_tier *tier, const struct kvc_object *o, struct kvc_error *e);

#endif
