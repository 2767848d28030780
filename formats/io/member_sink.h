/* member_sink.h: writing the members of a source to a plain file, a folder or an archive. Not for
 * their content. */
#ifndef KVC_MEMBER_SINK_H
#define KVC_MEMBER_SINK_H

#include "formats/io/sink.h"

/* The bytes of a member are written to `out` between begin() and finish(). Neither is called for a
 * source that is one file. */
struct kvc_member_sink {
    struct kvc_sink *out;
    /* NULL: only one file can be written */
    int (*begin)(void *state, const char *name, uint64_t size, struct kvc_error *e);
    int (*finish)(void *state, struct kvc_error *e);
    void *state;
};

/* Writes members as a tar archive (pax) to a sink, without times. kvc_tar_close() writes the end of
 * the archive where `status` is 0, and frees *tar. */
struct kvc_tar;
struct kvc_tar *kvc_tar_open(struct kvc_sink *to, struct kvc_member_sink *members,
                             struct kvc_error *e);
int kvc_tar_close(struct kvc_tar *t, int status, struct kvc_error *e);

/* Writes members as files below an existing folder. Folders in their names are made as needed.
 * Names are checked (member_name.h). Fails where a file exists. */
struct kvc_folder;
struct kvc_folder *kvc_folder_open(const char *path, struct kvc_member_sink *members,
                                   struct kvc_error *e);
int kvc_folder_close(struct kvc_folder *f, int status, struct kvc_error *e);

#endif
