/* make_folders.h: makes the folders of a path. Not for temporary folders, or for those of a store.
 */
#ifndef KVC_MAKE_FOLDERS_H
#define KVC_MAKE_FOLDERS_H

#include "codecs/error.h"

#include <stddef.h>

/* Makes the folders that a path names after its first `base` bytes and before its last slash. Those
 * that exist stay as they are. The path is the same afterwards. */
int kvc_make_folders(char *path, size_t base, struct kvc_error *e);

#endif
