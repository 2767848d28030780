/* below.c: files below a folder, without following links. */
#include "formats/store/dir/below.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LONGEST_PART 256
/* of renameat2(), for which not every C library has a name */
#define RENAME_NEW 1U

/* Closes a folder below the root and keeps errno. Returns `status`. */
static int leave(int root, int fd, int status) {
    const int code = errno;
    if (fd != root) close(fd);
    errno = code;
    return status;
}

/* Opens the folder that a path is in, and sets *name to the last part of the path. Makes folders
 * on the way if `mode` is not 0. */
static int enter(int root, const char *path, mode_t mode, const char **name) {
    char part[LONGEST_PART];
    int at = root;
    for (const char *slash; at >= 0 && (slash = strchr(path, '/')) != NULL; path = slash + 1) {
        int next = -1;
        if ((size_t)(slash - path) >= sizeof part) {
            errno = ENAMETOOLONG;
            return leave(root, at, -1);
        }
        memcpy(part, path, (size_t)(slash - path));
        part[slash - path] = '\0';
        if (!mode || !mkdirat(at, part, mode) || errno == EEXIST)
            next = openat(at, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        at = leave(root, at, next);
    }
    *name = path;
    return at;
}

int kvc_below_folder(int root, const char *path) {
    const char *name;
    const int at = enter(root, path, 0, &name);
    return at < 0
               ? -1
               : leave(root, at, openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

int kvc_below_make(int root, const char *path, mode_t mode) {
    const char *name;
    const int at = enter(root, path, mode, &name);
    return at < 0 ? -1 : leave(root, at, 0);
}

int kvc_below_open(int root, const char *path, int flags, mode_t mode, struct stat *st) {
    const char *name;
    const int at = enter(root, path, 0, &name);
    if (at < 0) return -1;
    const int fd = leave(root, at,
                         openat(at, name, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC,
                                mode));
    if (fd < 0) {
        if (errno == ELOOP || errno == ENXIO) errno = KVC_NO_FILE; /* a link, a socket */
        return -1;
    }
    if (fstat(fd, st)) return leave(root, fd, -1);
    if (S_ISREG(st->st_mode)) return fd;
    errno = KVC_NO_FILE;
    return leave(root, fd, -1);
}

int kvc_below_stat(int root, const char *path, struct stat *st) {
    const char *name;
    const int at = enter(root, path, 0, &name);
    if (at < 0 || leave(root, at, fstatat(at, name, st, AT_SYMLINK_NOFOLLOW))) return -1;
    if (S_ISREG(st->st_mode)) return 0;
    errno = KVC_NO_FILE;
    return -1;
}

int kvc_below_remove(int root, const char *path) {
    const char *name;
    const int at = enter(root, path, 0, &name);
    return at < 0 ? -1 : leave(root, at, unlinkat(at, name, 0));
}

int kvc_below_rename(int root, const char *from, const char *to) {
    const char *name, *other;
    const int at = enter(root, from, 0, &name), then = at < 0 ? -1 : enter(root, to, 0, &other);
    int status = then < 0 ? -1 : renameat(at, name, then, other);
    if (then >= 0) status = leave(root, then, status);
    return at < 0 ? -1 : leave(root, at, status);
}

int kvc_below_touch(int root, const char *path, const struct timespec times[2]) {
    const char *name;
    const int at = enter(root, path, 0, &name);
    return at < 0 ? -1 : leave(root, at, utimensat(at, name, times, AT_SYMLINK_NOFOLLOW));
}

int kvc_below_unnamed(int folder, mode_t mode) {
    char self[32];
    const int fd = openat(folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, mode);
    if (fd < 0) {
        if (errno == EISDIR || errno == EINVAL) errno = EOPNOTSUPP; /* of earlier kernels */
        return -1;
    }
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    if (!access(self, F_OK)) return fd;
    close(fd);
    errno = EOPNOTSUPP;
    return -1;
}

/* A file system without hard links says so in one of these ways. */
static int has_no_links(int code) {
    return code == EPERM || code == EOPNOTSUPP || code == ENOSYS || code == EACCES;
}

/* Renames without replacing. Where the file system cannot, two that name one file at one time both
 * succeed, and the last stays. */
static int rename_new(int at, const char *name, int to, const char *other) {
    struct stat st;
    if (!syscall(SYS_renameat2, at, name, to, other, RENAME_NEW)) return 0;
    if (errno != EINVAL && errno != ENOSYS) return -1;
    if (fstatat(to, other, &st, AT_SYMLINK_NOFOLLOW))
        return errno == ENOENT ? renameat(at, name, to, other) : -1;
    errno = EEXIST;
    return -1;
}

int kvc_below_name(int root, const char *from, const char *to) {
    const char *name, *other;
    const int at = enter(root, from, 0, &name), then = at < 0 ? -1 : enter(root, to, 0, &other);
    int status = then < 0 ? -1 : linkat(at, name, then, other, 0);
    if (then >= 0 && status && has_no_links(errno)) status = rename_new(at, name, then, other);
    if (then >= 0) status = leave(root, then, status);
    return at < 0 ? -1 : leave(root, at, status);
}

int kvc_below_link(int fd, int root, const char *path) {
    const char *name;
    char self[32];
    const int at = enter(root, path, 0, &name);
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    return at < 0 ? -1 : leave(root, at, linkat(AT_FDCWD, self, at, name, AT_SYMLINK_FOLLOW));
}
