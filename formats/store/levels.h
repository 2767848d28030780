/* levels.h: finds backends: directories are built in, others are shared objects that are loaded
 * when a level names them. */
#ifndef KVC_LEVELS_H
#define KVC_LEVELS_H

#include "formats/store/level.h"

/* Finds the backend of a scheme, in kvc_store_SCHEME.so. `folder`: of shared objects; NULL: where
 * kvc was installed. *handle is NULL of one that is built in. */
int kvc_level_find(const char *scheme, const char *folder, const struct kvc_level_ops **ops,
                   void **handle, struct kvc_error *e);
/* Checks the text of a directory without making it. */
int kvc_level_check(struct kvc_url *url, struct kvc_error *e);
void kvc_level_unload(void *handle); /* NULL is legal */

#endif
