/* output.c: output files that appear whole or not at all. Not for text on standard output.
 *
 * A named file is written under a temporary name in its directory, made durable (fsync), renamed, and the directory made
 * durable too. Whatever ends the program on the way removes the temporary name; only kill -9 leaves it behind. */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What a signal handler has to remove. One output is open at a time. */
static char *volatile pending;

void cli_output_remove_all(void) {
    if (pending) unlink(pending);
    pending = NULL;
}

static int directory_of(const char *path, struct kvc_error *e) {
    const char *slash = strrchr(path, '/');
    char *dir = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    if (!dir) return kvc_fail_memory(e, "a path");
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) kvc_fail(e, KVC_ERR_IO, "%s: %s", dir, strerror(errno));
    free(dir);
    return fd;
}

/* "dir/.name.PID-RANDOM.tmp" made with O_EXCL in path's directory. */
static int make_temporary(struct cli_output *o, unsigned mode, struct kvc_error *e) {
    size_t size = strlen(o->path) + 32;
    const char *slash = strrchr(o->path, '/');
    int dir = slash ? (int)(slash + 1 - o->path) : 0;
    o->temporary = malloc(size);
    if (!o->temporary) return kvc_fail_memory(e, "a path");
    snprintf(o->temporary, size, "%.*s.%.200s.XXXXXX", dir, o->path, o->path + dir);
    o->fd = mkostemp(o->temporary, O_CLOEXEC);
    if (o->fd < 0) {
        kvc_fail(e, KVC_ERR_IO, "%s: cannot create the file: %s", o->path, strerror(errno));
        free(o->temporary);
        o->temporary = NULL;
        return -1;
    }
    pending = o->temporary;
    mode_t mask = umask(0);
    umask(mask);
    if (fchmod(o->fd, mode & 0777 & ~mask)) return kvc_fail(e, KVC_ERR_IO, "%s: %s", o->temporary, strerror(errno));
    return 0;
}

/* Existing devices and pipes (/dev/null, /dev/stdout) are written to directly: there is nothing to replace. */
static int is_special(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

int cli_output_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static int is_directory(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Writes to the descriptor; a failure names the output. */
static int write_named(void *state, const void *data, size_t n, struct kvc_error *e) {
    struct cli_output *o = state;
    if (!kvc_sink_write(&o->raw, data, n, e)) return 0;
    return kvc_error_prefix(e, o->name);
}

int cli_output_open(struct cli_output *o, const char *path, int force, unsigned mode, struct kvc_error *e) {
    memset(o, 0, sizeof *o);
    o->force = force;
    o->fd = STDOUT_FILENO;
    if (!path) {
        if (!force && isatty(STDOUT_FILENO))
            return kvc_fail(e, KVC_ERR_USAGE, "standard output is a terminal: use -o FILE, a pipe, or -f to force it");
    } else if (is_special(path)) {
        o->fd = open(path, O_WRONLY | O_CLOEXEC);
        if (o->fd < 0) return kvc_fail(e, KVC_ERR_IO, "%s: %s", path, strerror(errno));
    } else if (is_directory(path)) {
        return kvc_fail(e, KVC_ERR_USAGE, "%s is a directory: name a file in it", path);
    } else {
        if (!force && access(path, F_OK) == 0)
            return kvc_fail(e, KVC_ERR_USAGE, "%s exists already: use -f to replace it", path);
        o->path = strdup(path);
        if (!o->path) return kvc_fail_memory(e, "a path");
        if (make_temporary(o, mode, e)) {
            cli_output_abandon(o);
            return -1;
        }
    }
    o->name = path ? path : "standard output";
    o->raw = kvc_sink_fd(&o->fd);
    o->sink = (struct kvc_sink){.write = write_named, .state = o};
    return 0;
}

int cli_output_commit(struct cli_output *o, struct kvc_error *e) {
    if (!o->temporary) {
        int fd = o->fd, special = fd != STDOUT_FILENO;
        o->fd = -1;
        if (special && close(fd)) return kvc_fail(e, KVC_ERR_IO, "write error: %s", strerror(errno));
        return 0;
    }
    int status = 0, dir = directory_of(o->path, e);
    if (dir < 0) return -1;
    if (o->times) futimens(o->fd, o->times); /* a file system that cannot is no reason to fail */
    if (fsync(o->fd)) status = kvc_fail(e, KVC_ERR_IO, "%s: write error: %s", o->path, strerror(errno));
    if (close(o->fd) && !status) status = kvc_fail(e, KVC_ERR_IO, "%s: write error: %s", o->path, strerror(errno));
    o->fd = -1;
    if (status)
        ; /* nothing takes the file's name */
    else if (!o->force && link(o->temporary, o->path)) { /* unlike rename, link never replaces a newcomer */
        if (errno == EEXIST) status = kvc_fail(e, KVC_ERR_USAGE, "%s exists already: use -f to replace it", o->path);
        else if (rename(o->temporary, o->path)) status = kvc_fail(e, KVC_ERR_IO, "%s: %s", o->path, strerror(errno));
    } else if (o->force && rename(o->temporary, o->path)) {
        status = kvc_fail(e, KVC_ERR_IO, "%s: %s", o->path, strerror(errno));
    }
    if (!status) {
        unlink(o->temporary); /* left over by link(), gone after rename() */
        pending = NULL;
        if (fsync(dir) && errno != EINVAL) status = kvc_fail(e, KVC_ERR_IO, "%s: %s", o->path, strerror(errno));
        free(o->temporary);
        free(o->path);
        o->temporary = o->path = NULL;
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

int cli_remove_input(const struct kvc_input *in, struct kvc_error *e) {
    struct stat st;
    if (!in->path || stat(in->path, &st)) return 0;
    if (st.st_dev != in->device || st.st_ino != in->inode) return 0;
    return unlink(in->path) ? kvc_fail(e, KVC_ERR_IO, "%s: cannot be removed: %s", in->path, strerror(errno)) : 0;
}
