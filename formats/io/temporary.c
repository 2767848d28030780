/* temporary.c: a file without a name. */
#include "formats/io/temporary.h"

#include "formats/io/sink.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int kvc_temporary_open(struct kvc_temporary *t, struct kvc_error *e) {
    char path[4096];
    const char *folder = getenv("TMPDIR");
    if (!folder || !*folder) folder = "/tmp";
    *t = (struct kvc_temporary){.fd = -1};
    if (snprintf(path, sizeof path, "%s/kvc-XXXXXX", folder) >= (int)sizeof path)
        return kvc_fail(e, KVC_ERR_IO, "TMPDIR is too long for the name of a temporary file");
    if ((t->fd = mkstemp(path)) < 0)
        return kvc_fail(e, KVC_ERR_IO, "a temporary file in %s: %s", folder, strerror(errno));
    unlink(path);
    return 0;
}

void kvc_temporary_close(struct kvc_temporary *t) {
    if (t->fd >= 0) close(t->fd);
    t->fd = -1;
}

int kvc_temporary_append(struct kvc_temporary *t, const void *data, size_t n, struct kvc_error *e) {
    if (kvc_write_all(t->fd, data, n))
        return kvc_fail(e, KVC_ERR_IO, "a temporary file: %s", strerror(errno));
    t->size += n;
    return 0;
}

int kvc_temporary_read(const struct kvc_temporary *t, uint64_t offset, void *dst, size_t n,
                       struct kvc_error *e) {
    for (size_t at = 0; at < n;) {
        const ssize_t got = pread(t->fd, (char *)dst + at, n - at, (off_t)(offset + at));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return kvc_fail(e, KVC_ERR_IO, "a temporary file: %s",
                            got ? strerror(errno) : "it is shorter than it was");
        at += (size_t)got;
    }
    return 0;
}
