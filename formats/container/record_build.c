/* record_build.c: builds records out of sections. Spec: FORMAT.md, "Records". Not for the contents
 * of sections. */
#include "formats/container/record_build.h"

#include "formats/container/container.h"
#include "formats/container/offsets.h"
#include "formats/container/records.h"

/* zstd levels of the container's own sections. Small ones take no time at the highest. */
enum { META_LEVEL = 3, SMALL_LEVEL = 19, SMALL_BYTES = 64 << 10 };

static void section_to_directory(uint8_t *p, const struct kvc_section *s) {
    p[0] = s->type;
    p[1] = s->coder;
    p[2] = s->stage;
    p[3] = s->index;
    put_u32(p + 4, s->size);
    put_u64(p + 8, s->raw_size);
}

int kvc_record_build(struct kvc_buffer *buffer, uint8_t type, uint32_t subject, uint32_t number,
                     uint64_t digest, struct kvc_sections *list, struct kvc_error *e) {
    kvc_sections_seal(list);
    uint64_t size = KVC_RECORD_HEADER + list->count * KVC_DIRECTORY_ENTRY;
    for (size_t i = 0; i < list->count; i++) size += kvc_round_up(list->section[i].size, KVC_UNIT);
    if (size / KVC_UNIT > UINT32_MAX || list->count > UINT16_MAX)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "a record of %llu bytes is over the format's limit",
                        (unsigned long long)size);
    size_t start = buffer->n;
    struct kvc_sink sink = kvc_sink_buffer(buffer);
    uint8_t header[KVC_RECORD_HEADER] = {0}, entry[KVC_DIRECTORY_ENTRY];
    header[0] = type;
    header[1] = kvc_record_is_critical(type) ? KVC_RECORD_CRITICAL : 0;
    put_u16(header + 2, (uint16_t)list->count);
    put_u32(header + 4, (uint32_t)(size / KVC_UNIT));
    put_u32(header + 8, subject);
    put_u32(header + 12, number);
    put_u64(header + 16, digest);
    if (kvc_sink_write(&sink, header, sizeof header, e)) return -1;
    for (size_t i = 0; i < list->count; i++) {
        section_to_directory(entry, &list->section[i]);
        if (kvc_sink_write(&sink, entry, sizeof entry, e)) return -1;
    }
    for (size_t i = 0; i < list->count; i++) {
        const struct kvc_section *s = &list->section[i];
        if (kvc_sink_write(&sink, s->data, s->size, e) ||
            kvc_sink_zeros(&sink, kvc_round_up(s->size, KVC_UNIT) - s->size, e))
            return -1;
    }
    put_u64(buffer->data + start + 24, kvc_record_check(buffer->data + start, size));
    return 0;
}

int kvc_record_add(struct kvc_sections *list, uint8_t type, const uint8_t *bytes, size_t n,
                   struct kvc_error *e) {
    const int level = n <= SMALL_BYTES ? SMALL_LEVEL : META_LEVEL;
    if (kvc_sections_add(list, type, KVC_NO_STAGE, 0, bytes, n, level, e)) return -1;
    struct kvc_section *s = &list->section[list->count - 1];
    if (s->coder == KVC_CODER_STORE || n <= kvc_section_limit(s->size)) return 0;
    /* the section compresses below the limit of readers: it is stored instead */
    list->used -= s->size;
    list->count--;
    return kvc_sections_add(list, type, KVC_NO_STAGE, 0, bytes, n, 0, e);
}
