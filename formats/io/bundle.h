/* bundle.h: what a cache is read from: an ordered set of members with names, or one file. Not for what the members mean.
 *
 * A folder's members are the files below it, an archive's those inside; one file is a bundle of one member without a name. Members
 * are opened when somebody asks for them, and stay open as long as the bundle. */
#ifndef KVC_BUNDLE_H
#define KVC_BUNDLE_H

#include "formats/io/input.h"

#define KVC_MAX_MEMBERS 65536

struct kvc_member {
    char *name;           /* relative path with '/'; NULL of one file */
    uint64_t size;        /* bytes, as the folder or archive says */
    struct kvc_input *in; /* NULL: not opened yet */
};

struct kvc_bundle {
    const char *name; /* for messages: the path, or the file's name */
    int is_file;      /* 1: one file, whose name is not part of it */
    size_t n;         /* members */
    struct kvc_member *member;
    char *folder;             /* NULL: not a folder */
    struct kvc_input_how how; /* its files are opened so */
    void *spool;              /* an archive's members, one after another; NULL: none */
    uint64_t spool_size;
    struct kvc_member one; /* of one file */
};

/* One file. The input stays the caller's, and outlives the bundle. */
void kvc_bundle_file(struct kvc_bundle *b, const struct kvc_input *in);
/* All regular files below a folder that has files of its own, in the order of the bytes of their names. Other things than files and folders are refused, and
 * so are names that no source can have (extents.h). `how` may be NULL. */
int kvc_bundle_folder(struct kvc_bundle *b, const char *path, const struct kvc_input_how *how, struct kvc_error *e);
/* The files of a tar archive, in its order; they are copied to an unlinked temporary file. The input is needed no longer then. */
int kvc_bundle_archive(struct kvc_bundle *b, const struct kvc_input *in, struct kvc_error *e);
/* Several files, by their names without folders, which must differ. */
int kvc_bundle_files(struct kvc_bundle *b, const char *const *path, size_t n, const struct kvc_input_how *how, struct kvc_error *e);
void kvc_bundle_close(struct kvc_bundle *b);

/* 1 when an input begins as a tar archive does. */
int kvc_input_is_archive(const struct kvc_input *in);

/* Member i, opened; NULL and *e when that fails. Not for several threads at once. */
const struct kvc_input *kvc_bundle_open(const struct kvc_bundle *b, size_t i, struct kvc_error *e);
/* Bytes of all members. */
uint64_t kvc_bundle_size(const struct kvc_bundle *b);

#endif
