/* extents_section.h: writes and reads the section EXTENTS. Spec: FORMAT.md, "EXTENTS". Not for the
 * bytes that it places. */
#ifndef KVC_EXTENTS_SECTION_H
#define KVC_EXTENTS_SECTION_H

#include "formats/cache/extents.h"
#include "formats/io/sink.h"

/* Appends the section's bytes; the caller frees out->data. */
int kvc_extents_write(const struct kvc_cache *c, struct kvc_buffer *out, struct kvc_error *e);
/* Reads n bytes of a section into a cache whose tensors are known and that has no extents yet.
 * `literals`: maximum bytes of the file's LITERALS. */
int kvc_extents_read(struct kvc_cache *c, const uint8_t *p, size_t n, uint64_t literals,
                     struct kvc_error *e);

#endif
