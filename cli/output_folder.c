/* output_folder.c: an output folder of several files that appears complete or not at all. Not for
 * single files (output.c).
 *
 * The files are written into a folder with a temporary name, which gets its final name after all
 * files are complete. A program that a signal ends before leaves the temporary folder, whose name
 * begins with a dot. */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *place) {
    (void)st, (void)kind, (void)place;
    remove(path);
    return 0;
}

int cli_folder_open(struct cli_folder *o, const char *path, struct kvc_error *e) {
    struct stat st;
    size_t n = strlen(path), dir;
    while (n > 1 && path[n - 1] == '/') n--; /* "again/" */
    for (dir = n; dir && path[dir - 1] != '/';) dir--;
    memset(o, 0, sizeof *o);
    if (lstat(path, &st) == 0)
        return cli_usage_error(e, "%s exists already: a folder of files replaces nothing", path);
    o->path = strndup(path, n);
    o->temporary = malloc(n + sizeof "..XXXXXX");
    int status = o->path && o->temporary ? 0 : cli_no_memory(e, "a path");
    if (!status) {
        snprintf(o->temporary, n + sizeof "..XXXXXX", "%.*s.%s.XXXXXX", (int)dir, path,
                 o->path + dir);
        o->made = mkdtemp(o->temporary) != NULL;
        if (!o->made)
            status = cli_io_error(e, "%s: cannot create the folder: %s", path, strerror(errno));
    }
    if (status) cli_folder_abandon(o);
    return status;
}

int cli_folder_commit(struct cli_folder *o, struct kvc_error *e) {
    const mode_t mask = umask(0);
    umask(mask);
    int status = 0;
    const int fd = open(o->temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fchmod(fd, 0777 & ~mask) || (fsync(fd) && errno != EINVAL))
        status = cli_io_error(e, "%s: %s", o->path, strerror(errno));
    if (fd >= 0) close(fd);
    if (!status && rename(o->temporary, o->path))
        status = cli_io_error(e, "%s: %s", o->path, strerror(errno));
    if (!status) {
        /* a folder that may be written to and not read is no error */
        const int dir = cli_directory_of(o->path, O_RDONLY | O_DIRECTORY, NULL);
        o->made = 0;
        if (dir >= 0) status = cli_sync_name(dir, o->path, e);
        if (dir >= 0) close(dir);
    }
    cli_folder_abandon(o);
    return status;
}

void cli_folder_abandon(struct cli_folder *o) {
    if (o->made) nftw(o->temporary, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(o->temporary);
    free(o->path);
    memset(o, 0, sizeof *o);
}
