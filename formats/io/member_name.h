/* member_name.h: names of the members of a bundle or a source, which may come from untrusted files.
 * FORMAT.md, "EXTENTS". */
#ifndef KVC_MEMBER_NAME_H
#define KVC_MEMBER_NAME_H

#include <stddef.h>
#include <string.h>

#define KVC_MAX_MEMBER_NAME 4095 /* bytes */

/* Returns 1 when a name of n bytes is a relative path that stays below its folder: UTF-8 without
 * control characters, in parts separated by '/', none of which is empty, "." or ".."; else 0. */
int kvc_member_name_is_sane(const char *name, size_t n);

/* Returns what follows the last '/' of a path. */
static inline const char *kvc_base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Returns 1 if a name ends in `end`, or is it. */
static inline int kvc_name_ends_in(const char *name, const char *end) {
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* Returns 1 if a name is longer than the suffix, ".npy", and ends in it. */
static inline int kvc_name_has_suffix(const char *name, const char *suffix) {
    return kvc_name_ends_in(name, suffix) && strlen(name) > strlen(suffix);
}

#endif
