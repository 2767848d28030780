/* zip_set.h: the zips among the members of a bundle, and their temporary files as one thing to
 * close. Not for reading a zip (zip_members.h). */
#ifndef KVC_ZIP_SET_H
#define KVC_ZIP_SET_H

#include "formats/io/zip_members.h"

struct kvc_zip_set {
    /* by member of the bundle; empty where it is no zip, or not read */
    struct kvc_zip_members *zip;
    size_t n;
};

int kvc_zip_set_open(struct kvc_zip_set *set, size_t n, struct kvc_error *e);
void kvc_zip_set_free(struct kvc_zip_set *set);
/* Returns the temporary files of all zips, which now belong to the caller; kvc_zip_set_close()
 * closes them. NULL and *e on failure. */
void *kvc_zip_set_take(struct kvc_zip_set *set, struct kvc_error *e);
void kvc_zip_set_close(void *taken);

#endif
