/* record_build.h: builds a finished record out of sections. Spec: FORMAT.md, "Records". Not for the
 * contents of sections. */
#ifndef KVC_BUILD_H
#define KVC_BUILD_H

#include "codecs/sections.h"
#include "formats/io/sink.h"

/* Appends one record to the buffer; seals the list. */
int kvc_record_build(struct kvc_buffer *buffer, uint8_t type, uint32_t subject, uint32_t number,
                     uint64_t digest, struct kvc_sections *list, struct kvc_error *e);
/* Adds one of the container's own sections. */
int kvc_record_add(struct kvc_sections *list, uint8_t type, const uint8_t *bytes, size_t n,
                   struct kvc_error *e);

#endif
