/* zip.h: where the members of a zip lie in a file, by its central directory. Not for their content or their checksums, which are
 * libarchive's. Source: PKWARE APPNOTE 6.3, 4.3 and 4.5.3. */
#ifndef KVC_ZIP_H
#define KVC_ZIP_H

#include "formats/io/input.h"

struct kvc_zip_entry {
    const char *name; /* name_size bytes, no NUL after them */
    size_t name_size;
    uint64_t header; /* offset of the local header */
};

struct kvc_zip {
    uint8_t *directory; /* the entries' names lie in it */
    struct kvc_zip_entry *entry;
    size_t n;
};

/* Lists the central directory. A directory that is damaged or that this does not understand has no entries: whoever reads the zip
 * otherwise says what is wrong with it. -1 and *e only when out of memory or the input cannot be read. */
int kvc_zip_open(struct kvc_zip *z, const struct kvc_input *in, struct kvc_error *e);
void kvc_zip_close(struct kvc_zip *z);

/* The offset of a member's `size` bytes of data where they are stored as they are, else 0. */
uint64_t kvc_zip_stored(const struct kvc_zip *z, const struct kvc_input *in, const char *name, uint64_t size);

#endif
