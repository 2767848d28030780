/* zip_members.h: the members of a zip, read and checked. Not for their meaning.
 *
 * A stored member is used in place, so that the zip can be restored. A compressed member is
 * decompressed into a temporary file (the spool). */
#ifndef KVC_ZIP_MEMBERS_H
#define KVC_ZIP_MEMBERS_H

#include "formats/io/input.h"

struct kvc_zip_member {
    char *name;
    int is_read;       /* 1: its bytes were read and agree with their CRC-32 */
    int in_place;      /* 1: they are in the zip; 0: in the spool */
    uint64_t at, size; /* of the bytes, in one or the other */
};

struct kvc_zip_members {
    const struct kvc_input *in;
    struct kvc_zip_member *member; /* in the order of the file */
    size_t n;
    const struct kvc_zip_member **by_name; /* the same, sorted */
    struct kvc_input spool;                /* the members that were decompressed */
};

/* Returns 1 when a member is to be read. */
typedef int kvc_zip_wants(const void *state, const char *name);

/* Lists the members by the central directory, and reads those that wants() selects. No two members
 * may have one name. The input must outlive *z. On failure *z is empty. */
int kvc_zip_read(struct kvc_zip_members *z, const struct kvc_input *in, kvc_zip_wants *wants,
                 const void *state, struct kvc_error *e);
void kvc_zip_free(struct kvc_zip_members *z);

/* Returns the number of the member of a name; SIZE_MAX if there is none. */
size_t kvc_zip_find(const struct kvc_zip_members *z, const char *name);
/* Returns the input that holds the bytes of member i, until kvc_zip_free(). */
const struct kvc_input *kvc_zip_member_input(const struct kvc_zip_members *z, size_t i);

#endif
