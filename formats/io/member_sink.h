/* member_sink.h: where a source's members go: a plain file, a folder, an archive. Not for what is in them. */
#ifndef KVC_MEMBER_SINK_H
#define KVC_MEMBER_SINK_H

#include "formats/io/sink.h"

/* The bytes of a member go to `out` between begin() and finish(). Of a source that is one file both are not called. */
struct kvc_member_sink {
    struct kvc_sink *out;
    int (*begin)(void *state, const char *name, uint64_t size, struct kvc_error *e); /* NULL: only one file can be written */
    int (*finish)(void *state, struct kvc_error *e);
    void *state;
};

/* Members as a tar archive (pax) that goes to a sink; they get no times. kvc_tar_close() writes the archive's end where `status` is
 * 0, and frees it. */
struct kvc_tar;
struct kvc_tar *kvc_tar_open(struct kvc_sink *to, struct kvc_member_sink *members, struct kvc_error *e);
int kvc_tar_close(struct kvc_tar *t, int status, struct kvc_error *e);

/* Members as files below a folder that exists; folders are made as they are needed. Names are checked (member_name.h). Existing
 * files are an error. */
struct kvc_folder;
struct kvc_folder *kvc_folder_open(const char *path, struct kvc_member_sink *members, struct kvc_error *e);
int kvc_folder_close(struct kvc_folder *f, int status, struct kvc_error *e);

#endif
