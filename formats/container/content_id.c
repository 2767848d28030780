/* content_id.c: computes content ids. */
#include "formats/container/content_id.h"

#include "formats/container/offsets.h"

void kvc_content_begin(struct kvc_sha256 *h) {
    static const char tag[] = "kvc content 1\n";
    kvc_sha256_init(h);
    kvc_sha256_update(h, tag, sizeof tag - 1);
    kvc_sha256_u32(h, KVC_GRID_LOG2);
    kvc_sha256_u32(h, 0); /* features that readers need */
}

void kvc_content_add(struct kvc_sha256 *h, unsigned type, uint32_t subject, uint32_t number,
                     uint64_t check) {
    kvc_sha256_u32(h, type);
    kvc_sha256_u32(h, subject);
    kvc_sha256_u32(h, number);
    kvc_sha256_u64(h, check);
}
