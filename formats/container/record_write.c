/* record_write.c: builds records out of sections, and writes header, records, padding, index and
 * footer of a .kvc. Spec: FORMAT.md 3 and 4. Not for the contents of
 * sections (writer.c, encode.c). */
#include "formats/container/record_write.h"

#include "codecs/memory.h"
#include "formats/container/container.h"
#include "formats/container/content_id.h"
#include "formats/container/offsets.h"
#include "formats/container/records.h"

#include <stdlib.h>
#include <string.h>

/* zstd levels of the container's own sections. Small ones take no time at the highest. */
enum { META_LEVEL = 3, SMALL_LEVEL = 19, SMALL_BYTES = 4 << 10 };

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

/* Bytes of a record in the index: a type, varints of 32 bits for size, subject and number, and a
 * check. The subject plus 1 may have 33 bits. */
enum { INDEX_MOST_BYTES = 1 + 5 + 5 + 5 + 4 };

uint64_t kvc_writer_offset(const struct kvc_record_writer *w) {
    return w->out->offset - w->start;
}

int kvc_write_records(struct kvc_record_writer *w, const uint8_t *bytes, size_t n,
                      struct kvc_error *e) {
    for (size_t at = 0; at < n;) {
        const uint8_t *p = bytes + at;
        uint64_t size = (uint64_t)get_u32(p + 4) * KVC_UNIT;
        struct kvc_index_entry *grown = kvc_room_for_one(w->entry, w->n_entries, sizeof *grown);
        if (!grown) return kvc_fail_memory(e, "the index");
        w->entry = grown;
        w->entry[w->n_entries++] = (struct kvc_index_entry){.type = p[0],
                                                            .critical = p[1] & KVC_RECORD_CRITICAL,
                                                            .subject = get_u32(p + 8),
                                                            .number = get_u32(p + 12),
                                                            .check = get_u64(p + 24),
                                                            .size = size};
        w->sections += get_u16(p + 2);
        if (kvc_sink_write(w->out, p, (size_t)size, e)) return -1;
        at += (size_t)size;
    }
    return 0;
}

int kvc_write_record(struct kvc_record_writer *w, uint8_t type, uint32_t subject, uint32_t number,
                     struct kvc_sections *list, struct kvc_error *e) {
    struct kvc_buffer buffer = {0};
    int status = kvc_record_build(&buffer, type, subject, number, 0, list, e) ||
                 kvc_write_records(w, buffer.data, buffer.n, e);
    free(buffer.data);
    return status ? -1 : 0;
}

int kvc_write_padding(struct kvc_record_writer *w, struct kvc_error *e) {
    uint64_t align = w->align, at = kvc_writer_offset(w);
    if (align <= KVC_UNIT || (w->aligned && at - w->aligned < KVC_EXTENT_BYTES)) return 0;
    uint64_t gap = kvc_round_up(at, align) - at;
    if (gap && gap < KVC_RECORD_HEADER) gap += align;
    if (gap) {
        uint8_t header[KVC_RECORD_HEADER] = {0};
        header[0] = KVC_RECORD_PAD;
        put_u32(header + 4, (uint32_t)(gap / KVC_UNIT));
        put_u32(header + 8, UINT32_MAX);
        uint8_t *bytes = calloc(1, (size_t)gap);
        if (!bytes) return kvc_fail_memory(e, "padding");
        memcpy(bytes, header, sizeof header);
        put_u64(bytes + 24, kvc_record_check(bytes, gap));
        int status = kvc_write_records(w, bytes, (size_t)gap, e);
        free(bytes);
        if (status) return -1;
    }
    w->aligned = kvc_writer_offset(w);
    return 0;
}

int kvc_write_simple(struct kvc_record_writer *w, uint8_t record, uint8_t section,
                     const uint8_t *bytes, size_t n, struct kvc_error *e) {
    struct kvc_sections list;
    kvc_sections_init(&list);
    int status = kvc_record_add(&list, section, bytes, n, e) ||
                 kvc_write_record(w, record, KVC_NONE, 0, &list, e);
    kvc_sections_free(&list);
    return status ? -1 : 0;
}

int kvc_write_header(struct kvc_record_writer *w, struct kvc_error *e) {
    uint8_t header[KVC_HEADER_SIZE] = {0};
    unsigned align = w->align ? w->align : KVC_UNIT, log2 = 0;
    while (1u << log2 < align) log2++;
    if (1u << log2 != align || log2 < KVC_MIN_ALIGN_LOG2 || log2 > KVC_MAX_ALIGN_LOG2)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "alignment must be a power of two from 16 to 1048576, not %u", align);
    memcpy(header, KVC_MAGIC, 8);
    put_u16(header + 8, KVC_FORMAT_VERSION);
    put_u16(header + 10, KVC_FORMAT_VERSION);
    header[12] = (uint8_t)log2;
    header[13] = KVC_GRID_LOG2;
    put_u64(header + 24, XXH3_64bits(header, 24));
    return kvc_sink_write(w->out, header, sizeof header, e);
}

/* Adds the section INDEX: the number of records, and their types, sizes, subjects, numbers and
 * checks, each in a column of its own. */
static int add_index(const struct kvc_record_writer *w, struct kvc_sections *list,
                     struct kvc_error *e) {
    uint8_t *bytes = kvc_alloc(w->n_entries + 1, INDEX_MOST_BYTES), *p = bytes;
    if (!bytes) return kvc_fail_memory(e, "the index");
    const struct kvc_index_entry *const end = w->entry + w->n_entries;
    p += put_varint(p, w->n_entries);
    for (const struct kvc_index_entry *x = w->entry; x < end; x++) *p++ = x->type;
    for (const struct kvc_index_entry *x = w->entry; x < end; x++)
        p += put_varint(p, x->size / KVC_UNIT);
    for (const struct kvc_index_entry *x = w->entry; x < end; x++)
        p += put_varint(p, x->subject == KVC_NONE ? 0 : (uint64_t)x->subject + 1);
    for (const struct kvc_index_entry *x = w->entry; x < end; x++) p += put_varint(p, x->number);
    for (const struct kvc_index_entry *x = w->entry; x < end; x++, p += 4)
        put_u32(p, (uint32_t)x->check);
    const int status = kvc_record_add(list, KVC_SECTION_INDEX, bytes, (size_t)(p - bytes), e);
    free(bytes);
    return status;
}

/* Writes the INDEX record; *check gets its check. */
static int write_index_record(struct kvc_record_writer *w, uint64_t *check, struct kvc_error *e) {
    struct kvc_sections list;
    struct kvc_buffer record = {0};
    kvc_sections_init(&list);
    int status = add_index(w, &list, e);
    if (!status) status = kvc_record_build(&record, KVC_RECORD_INDEX, KVC_NONE, 0, 0, &list, e);
    if (!status) *check = get_u64(record.data + 24);
    if (!status) status = kvc_write_records(w, record.data, record.n, e);
    kvc_sections_free(&list);
    free(record.data);
    return status;
}

/* Computes the content id of the records so far. */
static int content_id(const struct kvc_record_writer *w, uint8_t id[KVC_CONTENT_ID],
                      struct kvc_error *e) {
    struct kvc_sha256 hash;
    kvc_content_begin(&hash);
    for (uint64_t i = 0; i < w->n_entries; i++) {
        const struct kvc_index_entry *x = &w->entry[i];
        if (x->critical) kvc_content_add(&hash, x->type, x->subject, x->number, x->check);
    }
    return kvc_sha256_final(&hash, id, e);
}

int kvc_write_index(struct kvc_record_writer *w, struct kvc_error *e) {
    const uint64_t offset = kvc_writer_offset(w);
    uint8_t footer[KVC_FOOTER_SIZE];
    uint64_t check;
    if (content_id(w, footer + 16, e)) return -1;
    if (write_index_record(w, &check, e)) return -1;
    put_u64(footer, offset);
    put_u64(footer + 8, kvc_writer_offset(w) + sizeof footer);
    memcpy(footer + 48, KVC_MAGIC_END, 8);
    put_u64(footer + 56, XXH3_64bits_withSeed(footer, 56, check));
    return kvc_sink_write(w->out, footer, sizeof footer, e);
}
