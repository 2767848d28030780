/* literal_bytes.c: reads the literal bytes of the source, which are not of tensors. Not for tensors
 * (blocks.c). Spec: FORMAT.md, "Records", SOURCE. */
#include "formats/container/offsets.h"
#include "formats/container/records.h"

#include <stdlib.h>
#include <string.h>

/* Decodes the literal bytes of a chunk, unless they are those that were read last. The lock must be
 * held. */
static int read_chunk(struct kvc_records *k, uint64_t number, struct kvc_error *e) {
    struct kvc_section *list;
    unsigned count;
    const uint64_t i = k->chunk[number];
    if (k->literal && k->literal_chunk == number) return 0;
    free(k->literal);
    k->literal = NULL;
    if (kvc_records_sections(k, i, &list, &count, e)) return kvc_record_context(e, i, "SOURCE");
    const int status = kvc_records_decode(&list[count - 1], &k->literal, &k->literal_size, e)
                           ? kvc_record_section(e, count - 1)
                           : 0;
    kvc_records_release(k, i, list);
    k->literal_chunk = number;
    return status ? kvc_record_context(e, i, "SOURCE") : 0;
}

int kvc_blocks_read_literal(const struct kvc_cache *c, uint64_t offset, uint64_t n, uint8_t *dst,
                            struct kvc_error *e) {
    struct kvc_records *k = kvc_records_of(c);
    if (!k) return kvc_records_none(e);
    int status = 0;
    pthread_mutex_lock(&k->literal_lock);
    while (n && !(status = read_chunk(k, offset / KVC_LITERAL_CHUNK, e))) {
        const uint64_t skip_bytes = offset % KVC_LITERAL_CHUNK, left = k->literal_size - skip_bytes,
                       part = left < n ? left : n;
        memcpy(dst, k->literal + skip_bytes, (size_t)part);
        dst += part;
        offset += part;
        n -= part;
    }
    pthread_mutex_unlock(&k->literal_lock);
    return status;
}
