/* member_name.h: names of the members of a bundle or a source, which may come from untrusted files.
 * FORMAT.md, "EXTENTS". */
#ifndef KVC_MEMBER_NAME_H
#define KVC_MEMBER_NAME_H

#include <stddef.h>

#define KVC_MAX_MEMBER_NAME 4095 /* bytes */

/* Returns 1 when a name of n bytes is a relative path that stays below its folder: UTF-8 without
 * control characters, in parts separated by '/', none of which is empty, "." or ".."; else 0. */
int kvc_member_name_is_sane(const char *name, size_t n);

#endif
