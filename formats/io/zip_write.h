/* zip_write.h: a zip of stored members, whose bytes may be aligned in the file. Not for
 * compression. Source: PKWARE APPNOTE 6.3, 4.3 and 4.5. */
#ifndef KVC_ZIP_WRITE_H
#define KVC_ZIP_WRITE_H

#include "formats/io/sink.h"

struct kvc_zip_writer {
    struct kvc_sink *out;
    uint64_t start;              /* offset of the sink when the zip began */
    struct kvc_buffer directory; /* the central directory so far */
    uint64_t n;                  /* members */
};

void kvc_zip_writer_init(struct kvc_zip_writer *w, struct kvc_sink *out);
/* Writes a member of `size` bytes that begin at a multiple of `align` in the zip. Members have no
 * time, so that equal contents give equal files. */
int kvc_zip_add(struct kvc_zip_writer *w, const char *name, const void *bytes, uint64_t size,
                unsigned align, struct kvc_error *e);
/* Writes the central directory. */
int kvc_zip_finish(struct kvc_zip_writer *w, struct kvc_error *e);
void kvc_zip_writer_free(struct kvc_zip_writer *w);

#endif
