/* below.h: files below a folder, reached step by step without following links, so that nothing
 * outside of it is read, written or moved. Paths are relative and have no empty parts, "." or
 * "..". Not for what the paths mean (root.h). */
#ifndef KVC_STORE_BELOW_H
#define KVC_STORE_BELOW_H

#include <sys/stat.h>
#include <time.h>

/* Functions return 0 or a descriptor, or -1 with errno: ENOTDIR if a link or a file stands in
 * place of a folder, KVC_NO_FILE if something that is no regular file stands in place of a file. */
#define KVC_NO_FILE EISDIR

/* Opens a folder. */
int kvc_below_folder(int root, const char *path);
/* Makes the folders that a path is in. */
int kvc_below_make(int root, const char *path, mode_t mode);
/* Opens a regular file; never waits for the other end of a pipe. */
int kvc_below_open(int root, const char *path, int flags, mode_t mode, struct stat *st);
/* Looks at a regular file. */
int kvc_below_stat(int root, const char *path, struct stat *st);
int kvc_below_remove(int root, const char *path);
int kvc_below_rename(int root, const char *from, const char *to);
int kvc_below_touch(int root, const char *path, const struct timespec times[2]);
/* Makes a file without a name in a folder. EOPNOTSUPP: the file system has none, or such a file
 * could not be named, as /proc is missing. */
int kvc_below_unnamed(int folder, mode_t mode);
/* Name a file without a name, or one that has another name, which it may lose. Fail with EEXIST if
 * the name is taken. */
int kvc_below_link(int fd, int root, const char *path);
int kvc_below_name(int root, const char *from, const char *to);

#endif
