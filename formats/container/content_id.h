/* content_id.h: the content id of a container: a hash over the checks of its critical records.
 * Spec: FORMAT.md, "Footer". Not for the checks themselves (offsets.h). */
#ifndef KVC_CONTENT_ID_H
#define KVC_CONTENT_ID_H

#include "formats/container/container.h"

struct kvc_content_hash {
    struct evp_md_ctx_st *ctx;
    int failed;
};

/* Begins a hash, which kvc_content_end() ends in any case. */
int kvc_content_begin(struct kvc_content_hash *h, struct kvc_error *e);
/* Adds a critical record; records in file order, without INDEX. */
void kvc_content_add(struct kvc_content_hash *h, unsigned type, uint32_t subject, uint32_t number,
                     uint64_t check);
int kvc_content_end(struct kvc_content_hash *h, uint8_t id[KVC_CONTENT_ID], struct kvc_error *e);

#endif
