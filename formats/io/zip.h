/* zip.h: the offsets of the members of a zip, by its central directory. Not for their content or
 * checksums, which libarchive reads. Source: PKWARE APPNOTE 6.3, 4.3 and 4.5.3. */
#ifndef KVC_ZIP_H
#define KVC_ZIP_H

#include "formats/io/input.h"

struct kvc_zip_entry {
    const char *name; /* name_size bytes, no NUL after them */
    size_t name_size;
    uint64_t header; /* offset of the local header */
};

struct kvc_zip {
    uint8_t *directory;          /* contains the names of the entries */
    struct kvc_zip_entry *entry; /* sorted by name */
    size_t n;
};

/* Lists the central directory. A directory that is damaged or not understood has no entries;
 * libarchive then reports what is wrong. Returns -1 and *e only when memory runs out or the input
 * cannot be read. */
int kvc_zip_open(struct kvc_zip *z, const struct kvc_input *in, struct kvc_error *e);
void kvc_zip_close(struct kvc_zip *z);

/* Returns the offset of the `size` bytes of a member where they are stored without compression,
 * else 0. */
uint64_t kvc_zip_stored(const struct kvc_zip *z, const struct kvc_input *in, const char *name,
                        uint64_t size);

#endif
