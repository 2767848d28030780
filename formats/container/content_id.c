/* content_id.c: computes content ids. */
#include "formats/container/content_id.h"

#include "formats/container/offsets.h"

#include <openssl/evp.h>
#include <string.h>

int kvc_content_begin(struct kvc_content_hash *h, struct kvc_error *e) {
    static const char tag[] = "kvc content 1\n";
    uint8_t bytes[sizeof tag - 1 + 8];
    memcpy(bytes, tag, sizeof tag - 1);
    put_u32(bytes + sizeof tag - 1, KVC_GRID_LOG2);
    put_u32(bytes + sizeof tag + 3, 0); /* features that readers need */
    *h = (struct kvc_content_hash){.ctx = EVP_MD_CTX_new()};
    if (h->ctx && EVP_DigestInit_ex(h->ctx, EVP_sha256(), NULL) &&
        EVP_DigestUpdate(h->ctx, bytes, sizeof bytes))
        return 0;
    EVP_MD_CTX_free(h->ctx);
    h->ctx = NULL;
    return kvc_fail_memory(e, "a hash");
}

void kvc_content_add(struct kvc_content_hash *h, unsigned type, uint32_t subject, uint32_t number,
                     uint64_t check) {
    uint8_t bytes[20];
    put_u32(bytes, type);
    put_u32(bytes + 4, subject);
    put_u32(bytes + 8, number);
    put_u64(bytes + 12, check);
    h->failed |= !EVP_DigestUpdate(h->ctx, bytes, sizeof bytes);
}

int kvc_content_end(struct kvc_content_hash *h, uint8_t id[KVC_CONTENT_ID], struct kvc_error *e) {
    const int good = !h->failed && EVP_DigestFinal_ex(h->ctx, id, NULL);
    EVP_MD_CTX_free(h->ctx);
    h->ctx = NULL;
    return good ? 0 : kvc_fail_memory(e, "a hash");
}
