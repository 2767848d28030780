/* bundle.h: the source of a cache: an ordered set of members with names, or one file. Not for the
 * meaning of the members.
 *
 * The members of a folder are the files below it, and those of an archive the files in it. One file
 * is a bundle of one member without a name. A member is opened when it is first asked for, and
 * stays open as long as the bundle. */
#ifndef KVC_BUNDLE_H
#define KVC_BUNDLE_H

#include "formats/io/input.h"

#define KVC_MAX_MEMBERS 65536

struct kvc_member {
    char *name;           /* relative path with '/'; NULL of one file */
    uint64_t size;        /* bytes, according to the folder or archive */
    struct kvc_input *in; /* NULL: not opened yet */
};

struct kvc_bundle {
    const char *name; /* for messages: the path, or the file's name */
    int is_file;      /* 1: one file, whose name is not part of it */
    size_t n;         /* members */
    struct kvc_member *member;
    char *folder;             /* NULL: not a folder */
    struct kvc_input_how how; /* of opening its files */
    struct kvc_input spool;   /* the members of an archive, one after another */
    struct kvc_member one;    /* of one file */
};

/* Makes a bundle of one file. The input belongs to the caller and must outlive the bundle. */
void kvc_bundle_file(struct kvc_bundle *b, const struct kvc_input *in);
/* Makes a bundle of all regular files below a folder, in the order of the bytes of their names.
 * Unless `deep`, the folder itself must have a file. Anything but files and folders is refused, and
 * so are names that no source can have (extents.h). `how` may be NULL. */
int kvc_bundle_folder(struct kvc_bundle *b, const char *path, int deep,
                      const struct kvc_input_how *how, struct kvc_error *e);
/* Makes a bundle of the files of a tar archive, in its order. They are copied to an unlinked
 * temporary file, so that the input may be closed afterwards. */
int kvc_bundle_archive(struct kvc_bundle *b, const struct kvc_input *in, struct kvc_error *e);
/* Makes a bundle of several files. Their names without folders must differ. */
int kvc_bundle_files(struct kvc_bundle *b, const char *const *path, size_t n,
                     const struct kvc_input_how *how, struct kvc_error *e);
void kvc_bundle_close(struct kvc_bundle *b);

/* Returns 1 when an input begins as a tar archive does. */
int kvc_input_is_archive(const struct kvc_input *in);

/* Returns member i, opened; NULL and *e on failure. Not for several threads at once. */
const struct kvc_input *kvc_bundle_open(const struct kvc_bundle *b, size_t i, struct kvc_error *e);
/* Returns the bytes of all members. */
uint64_t kvc_bundle_size(const struct kvc_bundle *b);

#endif
