/* tiers.h: finds backends: directories are built in, others are shared objects that are loaded
 * when a tier names them. */
#ifndef KVC_TIERS_H
#define KVC_TIERS_H

#include "formats/store/tier.h"

/* Finds the backend of a scheme, in kvc_store_SCHEME.so. `folder`: of shared objects; NULL: where
 * kvc was installed. *handle is NULL of one that is built in. */
int kvc_tier_find(const char *scheme, const char *folder, const struct kvc_tier_ops **ops,
                  void **handle, struct kvc_error *e);
/* Checks the text of a directory without making it. */
int kvc_tier_check(struct kvc_url *url, struct kvc_error *e);
void kvc_tier_unload(void *handle); /* NULL is legal */

#endif
