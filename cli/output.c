/* output.c: output files that appear complete or not at all. Not for text on standard output.
 *
 * A file is written without a name (O_TMPFILE), made durable (fsync) and named (linkat); then its
 * folder is made durable. A program that ends before, also by kill -9, leaves nothing. linkat()
 * cannot replace a file: an existing file is replaced after all bytes are written, by linking a
 * temporary name beside it and renaming that. If the file system has no files without names, the
 * file has the temporary name from the start; signals remove it, and only kill -9 leaves it. */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The temporary name that a signal handler must remove. One output is open at a time. */
static char *volatile pending;

void cli_output_remove_all(void) {
    if (pending) unlink(pending);
    pending = NULL;
}

int cli_directory_of(const char *path, int flags, struct kvc_error *e) {
    const char *slash = strrchr(path, '/');
    char *dir = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    if (!dir) return cli_no_memory(e, "a path");
    int fd = open(dir, flags | O_CLOEXEC, 0600);
    if (fd < 0) cli_io_error(e, "%s: %s", dir, strerror(errno));
    free(dir);
    return fd;
}

/* Sets the temporary name "dir/.name.XXXXXX" beside path. */
static int temporary_name(struct cli_output *o, struct kvc_error *e) {
    const char *slash = strrchr(o->path, '/');
    const int dir = slash ? (int)(slash + 1 - o->path) : 0;
    if (asprintf(&o->temporary, "%.*s.%.200s.XXXXXX", dir, o->path, o->path + dir) >= 0) return 0;
    o->temporary = NULL;
    return cli_no_memory(e, "a path");
}

static void drop_temporary(struct cli_output *o) {
    free(o->temporary);
    o->temporary = NULL;
}

/* Opens a file without a name. -1 if the file system has none, or such a file cannot be named. */
static int open_unnamed(struct cli_output *o) {
    char self[32];
    o->fd = cli_directory_of(o->path, O_TMPFILE | O_RDWR, NULL);
    if (o->fd < 0) return -1;
    snprintf(self, sizeof self, "/proc/self/fd/%d", o->fd);
    if (access(self, F_OK) == 0) return 0;
    close(o->fd);
    o->fd = -1;
    return -1;
}

static int open_named(struct cli_output *o, struct kvc_error *e) {
    if (temporary_name(o, e)) return -1;
    o->fd = mkostemp(o->temporary, O_CLOEXEC);
    if (o->fd >= 0) {
        pending = o->temporary;
        return 0;
    }
    cli_io_error(e, "%s: cannot create the file: %s", o->path, strerror(errno));
    drop_temporary(o);
    return -1;
}

static int open_file(struct cli_output *o, int named, unsigned mode, struct kvc_error *e) {
    if ((named || open_unnamed(o)) && open_named(o, e)) return -1;
    mode_t mask = umask(0);
    umask(mask);
    return fchmod(o->fd, mode & 0777 & ~mask) ? cli_io_error(e, "%s: %s", o->path, strerror(errno))
                                              : 0;
}

/* Returns 1 for existing devices and pipes (/dev/null, /dev/stdout), which are written to directly.
 */
static int is_special(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

int cli_output_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

int cli_folder_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Writes all n bytes, also after interrupts: at an offset, or with UINT64_MAX where the descriptor
 * is. */
static int write_all(struct cli_output *o, uint64_t offset, const char *data, size_t n) {
    const size_t all = n;
    while (n && o->fd >= 0) {
        const ssize_t done = offset == UINT64_MAX ? write(o->fd, data, n)
                                                  : pwrite(o->fd, data, n, (off_t)offset);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) {
            o->failed = errno;
            return -1;
        }
        data += done;
        n -= (size_t)done;
        if (offset != UINT64_MAX) offset += (uint64_t)done;
    }
    if (o->count) o->count(o->count_state, all);
    return 0;
}

int cli_output_write(void *state, const void *data, size_t n) {
    struct cli_output *o = state;
    o->offset += n;
    return write_all(o, UINT64_MAX, data, n);
}

int cli_output_put(void *state, uint64_t offset, const void *data, size_t n) {
    return write_all(state, offset, data, n);
}

kvc_put_fn *cli_output_any_order(const struct cli_output *o) {
    return o->path ? cli_output_put : NULL;
}

/* Says in *e why a write failed, if one did; else leaves *e as it is. Returns -1. */
static int say_failed(const struct cli_output *o, struct kvc_error *e) {
    if (o->failed) cli_io_error(e, "%s: write error: %s", o->name, strerror(o->failed));
    return -1;
}

static int open_output(struct cli_output *o, const char *path, int named, int force, unsigned mode,
                       struct kvc_error *e) {
    struct stat st;
    memset(o, 0, sizeof *o);
    o->force = force;
    o->fd = STDOUT_FILENO;
    if (!path) {
        if (!force && isatty(STDOUT_FILENO))
            return cli_usage_error(
                e, "standard output is a terminal: use -o FILE, a pipe, or -f to force it");
    } else if (is_special(path)) {
        o->fd = open(path, O_WRONLY | O_CLOEXEC);
        if (o->fd < 0) return cli_io_error(e, "%s: %s", path, strerror(errno));
    } else if (cli_folder_exists(path)) {
        return cli_usage_error(e, "%s is a directory: name a file in it", path);
    } else if (lstat(path, &st) &&
               errno != ENOENT) { /* a name that could not be given at the end */
        return cli_io_error(e, "%s: cannot create the file: %s", path, strerror(errno));
    } else {
        if (!force && access(path, F_OK) == 0)
            return cli_usage_error(e, "%s exists already: use -f to replace it", path);
        o->path = strdup(path);
        if (!o->path) return cli_no_memory(e, "a path");
        if (open_file(o, named, mode, e)) {
            cli_output_abandon(o);
            return -1;
        }
    }
    o->name = path ? path : "standard output";
    return 0;
}

int cli_output_open(struct cli_output *o, const char *path, int force, unsigned mode,
                    struct kvc_error *e) {
    return open_output(o, path, 0, force, mode, e);
}

int cli_output_open_named(struct cli_output *o, const char *path, int force, unsigned mode,
                          struct kvc_error *e) {
    return open_output(o, path, 1, force, mode, e);
}

/* Names the file that has no name; never replaces a file. */
static int link_fd(const struct cli_output *o, const char *name) {
    char self[32];
    snprintf(self, sizeof self, "/proc/self/fd/%d", o->fd);
    return linkat(AT_FDCWD, self, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
}

static int link_temporary(struct cli_output *o, struct kvc_error *e) {
    for (int tries = 0; tries < 100; tries++) {
        if (temporary_name(o, e)) return -1;
        int fd = mkostemp(o->temporary, O_CLOEXEC); /* finds a free name */
        if (fd < 0) break;
        close(fd);
        unlink(o->temporary);
        pending = o->temporary;
        if (link_fd(o, o->temporary) == 0) return 0;
        pending = NULL;
        if (errno != EEXIST) break;
        drop_temporary(o);
    }
    cli_io_error(e, "%s: %s", o->path, strerror(errno));
    drop_temporary(o);
    return -1;
}

static int exists_already(const struct cli_output *o, struct kvc_error *e) {
    return cli_usage_error(e, "%s exists already: use -f to replace it", o->path);
}

/* Names the complete file. link() and linkat() never replace a file that appeared meanwhile, as
 * rename() does. */
static int take_name(struct cli_output *o, struct kvc_error *e) {
    if (!o->temporary) {
        if (link_fd(o, o->path) == 0) return 0;
        if (errno != EEXIST) return cli_io_error(e, "%s: %s", o->path, strerror(errno));
        if (!o->force) return exists_already(o, e);
        if (link_temporary(o, e)) return -1;
    }
    if (!o->force && link(o->temporary, o->path) == 0) return 0;
    if (!o->force && errno == EEXIST) return exists_already(o, e);
    return rename(o->temporary, o->path) ? cli_io_error(e, "%s: %s", o->path, strerror(errno)) : 0;
}

int cli_sync_name(int dir, const char *path, struct kvc_error *e) {
    if (!fsync(dir) || errno == EINVAL) return 0;
    return cli_io_error(e, "%s: is complete, but its name may be lost in a power failure: %s", path,
                        strerror(errno));
}

int cli_output_commit(struct cli_output *o, struct kvc_error *e) {
    if (!o->path) {
        int fd = o->fd, special = fd != STDOUT_FILENO;
        o->fd = -1;
        if (special && close(fd)) return cli_io_error(e, "write error: %s", strerror(errno));
        return 0;
    }
    int status = 0, dir = cli_directory_of(o->path, O_RDONLY | O_DIRECTORY, e);
    if (dir < 0) return -1;
    if (o->times) futimens(o->fd, o->times); /* a file system without times is no error */
    if (fsync(o->fd)) status = cli_io_error(e, "%s: write error: %s", o->path, strerror(errno));
    if (!status) status = take_name(o, e);
    close(o->fd); /* fsync() has reported all errors */
    o->fd = -1;
    if (!status) {
        if (o->temporary) unlink(o->temporary); /* left by link(), already gone after rename() */
        pending = NULL;
        status = cli_sync_name(dir, o->path, e);
        drop_temporary(o);
        free(o->path);
        o->path = NULL;
    }
    close(dir);
    return status;
}

void cli_output_abandon(struct cli_output *o) {
    if (o->fd > STDERR_FILENO) close(o->fd);
    if (o->temporary) unlink(o->temporary);
    pending = NULL;
    free(o->temporary);
    free(o->path);
    memset(o, 0, sizeof *o);
    o->fd = -1;
}

int cli_output_end(struct cli_output *o, int status, struct kvc_error *e) {
    if (status) say_failed(o, e);
    else status = cli_output_commit(o, e);
    if (status) cli_output_abandon(o);
    return status;
}

int cli_make_folders(char *path, struct kvc_error *e) {
    /* a slash at its begin is the root's */
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        const int failed = mkdir(path, 0777) && errno != EEXIST;
        if (failed) cli_io_error(e, "%s: cannot create the folder: %s", path, strerror(errno));
        *slash = '/';
        if (failed) return -1;
    }
    return 0;
}
