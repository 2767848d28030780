/* content_id.h: the content id of a container: a hash over the checks of its critical records.
 * Spec: FORMAT.md, "Footer". Not for the checks themselves (offsets.h). */
#ifndef KVC_CONTENT_ID_H
#define KVC_CONTENT_ID_H

#include "formats/io/hash.h"

/* Begins a hash, which kvc_sha256_final() ends. */
void kvc_content_begin(struct kvc_sha256 *h);
/* Adds a critical record; records in file order, without INDEX. */
void kvc_content_add(struct kvc_sha256 *h, unsigned type, uint32_t subject, uint32_t number,
                     uint64_t check);

#endif
