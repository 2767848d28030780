/* record_write.h: the frame of a .kvc as its writer makes it: header, records one after the other,
 * padding, index, footer. Not for the contents of records. */
#ifndef KVC_RECORD_WRITE_H
#define KVC_RECORD_WRITE_H

#include "codecs/sections.h"
#include "formats/io/sink.h"

/* Appends one finished record to the buffer; seals the list. */
int kvc_record_build(struct kvc_buffer *buffer, uint8_t type, uint32_t subject, uint32_t number,
                     uint64_t digest, struct kvc_sections *list, struct kvc_error *e);
/* Adds one of the container's own sections. */
int kvc_record_add(struct kvc_sections *list, uint8_t type, const uint8_t *bytes, size_t n,
                   struct kvc_error *e);

/* A record as the index lists it. */
struct kvc_index_entry {
    uint8_t type;
    uint32_t subject, number;
    uint8_t critical;
    uint64_t size, check;
};

struct kvc_record_writer {
    struct kvc_sink *out;
    uint64_t start; /* offset in the sink of the file's first byte */
    /* bytes: alignment of runs of BLOCK records; 0: that of all records */
    unsigned align;
    /* offset in the file where the current aligned run began; 0: none yet */
    uint64_t aligned;
    struct kvc_index_entry *entry; /* owned; of the records written so far */
    uint64_t n_entries;
    uint64_t sections; /* written so far */
};

/* Returns the offset in the file of the next record. */
uint64_t kvc_writer_offset(const struct kvc_record_writer *w);

int kvc_write_header(struct kvc_record_writer *w, struct kvc_error *e);
/* Writes the finished records that `bytes` holds one after the other. */
int kvc_write_records(struct kvc_record_writer *w, const uint8_t *bytes, size_t n,
                      struct kvc_error *e);
/* Builds a record out of sections and writes it; seals the list. */
int kvc_write_record(struct kvc_record_writer *w, uint8_t type, uint32_t subject, uint32_t number,
                     struct kvc_sections *list, struct kvc_error *e);
/* Writes a record of one section, about the whole file. */
int kvc_write_simple(struct kvc_record_writer *w, uint8_t record, uint8_t section,
                     const uint8_t *bytes, size_t n, struct kvc_error *e);
/* Before a BLOCK record: pads up to the alignment and begins a new aligned run, if the current run
 * is long enough. */
int kvc_write_padding(struct kvc_record_writer *w, struct kvc_error *e);
/* Writes the INDEX record and the footer. */
int kvc_write_index(struct kvc_record_writer *w, struct kvc_error *e);

#endif
