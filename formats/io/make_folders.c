/* make_folders.c: makes the folders of a path. */
#include "formats/io/make_folders.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

int kvc_make_folders(char *path, size_t base, struct kvc_error *e) {
    for (char *slash = strchr(path + base, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        const int failed = mkdir(path, 0777) && errno != EEXIST;
        if (failed)
            kvc_fail(e, KVC_ERR_IO, "%s: cannot create the folder: %s", path, strerror(errno));
        *slash = '/';
        if (failed) return -1;
    }
    return 0;
}
