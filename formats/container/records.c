/* records.c: reads the frame of a container: header, footer, index, and single records with their
 * hashes and sections. Spec: FORMAT.md 3 and 4. Not for the meaning of records (reader.c) or for
 * blocks (blocks.c). */
#include "formats/container/records.h"

#include "codecs/memory.h"
#include "formats/container/offsets.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char kvc_records_kind[] = "container";

int kvc_records_none(struct kvc_error *e) {
    return kvc_fail(e, KVC_ERR_USAGE,
                    "the cache does not come from a .kvc file: it has no records");
}

struct kvc_records *kvc_records_of(const struct kvc_cache *c) {
    return kvc_cache_impl(c, kvc_records_kind);
}

const char *kvc_record_name(unsigned type) {
    static const char *const names[] = {NULL,   "META",  "TABLE",   "CELLS", "TOKENS", "SOURCE",
                                        "SIDE", "BLOCK", "PROFILE", "PAD",   "INDEX",  "SIGNATURE"};
    return type < sizeof names / sizeof names[0] ? names[type] : NULL;
}

int kvc_record_is_critical(unsigned type) {
    return type != KVC_RECORD_PAD && type != KVC_RECORD_PROFILE && type != KVC_RECORD_SIGNATURE;
}

int kvc_record_damaged(struct kvc_error *e, uint64_t offset, const char *what) {
    return kvc_fail_at(e, KVC_ERR_DAMAGED, offset, "%s", what);
}

int(kvc_record_context)(struct kvc_error *e, uint64_t record, const char *label) {
    char where[192];
    snprintf(where, sizeof where, "record %" PRIu64 "%s%s%s", record, label ? " (" : "",
             label ? label : "", label ? ")" : "");
    kvc_error_prefix(e, where);
    if (e) e->record = record;
    return -1;
}

int(kvc_record_section)(struct kvc_error *e, unsigned number) {
    if (e) e->section = number;
    return -1;
}

void kvc_blocks_label(const struct kvc_cache *c, uint32_t tensor, uint64_t block, uint64_t end,
                      char *text, size_t size) {
    const struct kvc_cells *cells = kvc_tensor_cells(c, tensor);
    char label[64];
    kvc_tensor_label(c, tensor, label, sizeof label);
    snprintf(text, size, "%s, tokens %" PRId64 ":%" PRId64, label,
             kvc_cells_position(cells, cells->block[block]),
             kvc_cells_position(cells, cells->block[end] - 1) + 1);
}

int(kvc_blocks_context)(const struct kvc_cache *c, struct kvc_error *e, uint32_t tensor,
                        uint64_t block) {
    const struct kvc_records *k = kvc_records_of(c);
    const uint64_t record = k->block_record[k->first_block[tensor] + block];
    char where[128];
    kvc_blocks_label(c, tensor, block, block + 1, where, sizeof where);
    return record == KVC_NOWHERE ? kvc_error_prefix(e, where)
                                 : kvc_record_context(e, record, where);
}

/* --- one record: its header against the index, its hash, its directory --- */

/* Returns 1 if the fields that the record's type does not use are zero, or all ones for the
 * subject. */
static int fields_fit(const struct kvc_record *r, uint64_t digest) {
    switch (r->type) {
    case KVC_RECORD_BLOCK: return 1;
    case KVC_RECORD_SIDE: return !digest;
    case KVC_RECORD_CELLS: return !r->number && !digest;
    case KVC_RECORD_SOURCE: return r->subject == KVC_NONE && !digest;
    default: return !kvc_record_name(r->type) || (r->subject == KVC_NONE && !r->number && !digest);
    }
}

/* Checks the header and the hash of a record, whose bytes are at h; `is_hashed`: the hash is known
 * to be right. */
static int record_check(const struct kvc_record *r, const uint8_t *h, int is_hashed,
                        struct kvc_error *e) {
    if (h[0] != r->type || (uint64_t)get_u32(h + 4) * KVC_UNIT != r->size ||
        get_u32(h + 8) != r->subject || get_u32(h + 12) != r->number)
        return kvc_record_damaged(e, r->offset, "its header and the index disagree");
    if (!is_hashed && get_u64(h + 24) != kvc_record_check(h, r->size))
        return kvc_record_damaged(e, r->offset, "checksum mismatch");
    if (r->has_check && get_u32(h + 24) != r->check) /* the index's own check is not in it */
        return kvc_record_damaged(
            e, r->offset,
            "not the record that the index lists: it is of another file, or was replaced");
    const int known = KVC_RECORD_CRITICAL |
                      (r->type == KVC_RECORD_BLOCK ? KVC_RECORD_NO_DIGEST : 0);
    if (h[1] & ~known) {
        kvc_record_damaged(e, r->offset, "reserved flag bits are set");
        if (e) e->code = KVC_ERR_UNSUPPORTED;
        return -1;
    }
    if (kvc_record_name(r->type) && (h[1] & KVC_RECORD_CRITICAL) != kvc_record_is_critical(r->type))
        return kvc_record_damaged(
            e, r->offset, "the flag that says whether readers may skip it does not match its type");
    if (!fields_fit(r, get_u64(h + 16)))
        return kvc_record_damaged(e, r->offset,
                                  "a field that this type of record does not use is set");
    if (r->type == KVC_RECORD_BLOCK && h[1] & KVC_RECORD_NO_DIGEST && get_u64(h + 16))
        return kvc_record_damaged(e, r->offset,
                                  "it has a digest, and its flags say that it has none");
    return 0;
}

/* Reads directory entry j of a checked record. *at is the offset of the section's bytes, and is
 * moved to the next section's. */
static int read_section(const struct kvc_record *r, const uint8_t *h, unsigned j, uint64_t *at,
                        struct kvc_section *s, struct kvc_error *e) {
    const uint8_t *entry = h + KVC_RECORD_HEADER + (uint64_t)j * KVC_DIRECTORY_ENTRY;
    s->type = entry[0];
    s->coder = entry[1] & (uint8_t)~KVC_SECTION_OPTIONAL;
    s->optional = (entry[1] & KVC_SECTION_OPTIONAL) != 0;
    s->stage = entry[2];
    s->index = entry[3];
    s->size = get_u32(entry + 4);
    s->raw_size = get_u64(entry + 8);
    s->data = h + *at;
    uint64_t padded = kvc_round_up(s->size, KVC_UNIT);
    if (padded > r->size - *at)
        return kvc_record_damaged(e, r->offset, "a section reaches beyond its record");
    for (uint64_t b = s->size; b < padded; b++)
        if (s->data[b]) return kvc_record_damaged(e, r->offset, "padding is not zero");
    *at += padded;
    return 0;
}

/* Returns 1 for a section that this version knows: of the container, or of a stage. */
static int section_is_known(const struct kvc_section *s) {
    const int is_stage = s->type < KVC_SECTION_SAME;
    return kvc_section_name(s->type) && is_stage == (s->stage != KVC_NO_STAGE);
}

/* Takes the sections that readers may skip off the end of the list: this version knows none of
 * them. The others must have a byte coder that it knows. */
static int skip_optional(const struct kvc_record *r, const struct kvc_section *list, unsigned *n,
                         struct kvc_error *e) {
    unsigned known = 0;
    while (known < *n && !list[known].optional) known++;
    for (unsigned j = known; j < *n; j++) {
        if (list[j].optional && !section_is_known(&list[j])) continue;
        kvc_record_damaged(e, r->offset,
                           list[j].optional ? "a section that it needs is marked as one to skip"
                                            : "a section follows those that may be skipped");
        return kvc_record_section(e, j);
    }
    *n = known;
    if (!kvc_record_is_critical(r->type)) return 0; /* whoever uses it looks at coders */
    for (unsigned j = 0; j < known; j++) {
        if (kvc_coder_name(list[j].coder)) continue;
        const char *name = kvc_section_name(list[j].type);
        kvc_fail(e, KVC_ERR_UNSUPPORTED, "section %s: byte coder %u is unknown: use a newer kvc",
                 name ? name : "of an unknown type", list[j].coder);
        return kvc_record_section(e, j);
    }
    return 0;
}

/* Checks that a PAD record has no sections and is zero after its header. */
static int read_padding(const struct kvc_record *r, const uint8_t *h, unsigned n,
                        struct kvc_section **list, struct kvc_error *e) {
    if (n) return kvc_record_damaged(e, r->offset, "PAD has sections");
    for (uint64_t b = KVC_RECORD_HEADER; b < r->size; b++)
        if (h[b]) return kvc_record_damaged(e, r->offset, "padding is not zero");
    *list = NULL;
    return 0;
}

int kvc_records_sections(const struct kvc_records *k, uint64_t i, struct kvc_section **list,
                         unsigned *n, struct kvc_error *e) {
    const struct kvc_record *r = &k->record[i];
    if (kvc_input_pin(k->in, r->offset, r->size, e)) return -1;
    if (!kvc_records_sections_of(k, i, k->in->data + r->offset, list, n, e)) return 0;
    kvc_input_unpin(k->in, r->offset, r->size);
    return -1;
}

void kvc_records_release(const struct kvc_records *k, uint64_t i, struct kvc_section *list) {
    kvc_input_unpin(k->in, k->record[i].offset, k->record[i].size);
    free(list);
}

int kvc_records_sections_of(const struct kvc_records *k, uint64_t i, const uint8_t *h,
                            struct kvc_section **list, unsigned *n, struct kvc_error *e) {
    const struct kvc_record *r = &k->record[i];
    const int is_hashed = k->is_hashed && h == k->in->data + r->offset;
    if (record_check(r, h, is_hashed, e)) return -1;
    *n = 0;
    *list = NULL;
    if (!kvc_record_name(r->type)) return 0; /* nothing else of it is known */
    *n = get_u16(h + 2);
    if (r->type == KVC_RECORD_PAD) return read_padding(r, h, *n, list, e);
    uint64_t at = KVC_RECORD_HEADER + (uint64_t)*n * KVC_DIRECTORY_ENTRY;
    if (at > r->size) return kvc_record_damaged(e, r->offset, "its directory reaches beyond it");
    *list = kvc_alloc(*n, sizeof **list);
    if (!*list) return kvc_fail_memory(e, "sections");
    int status = 0;
    for (unsigned j = 0; j < *n && !status; j++)
        if (read_section(r, h, j, &at, *list + j, e)) status = kvc_record_section(e, j);
    if (!status && at != r->size)
        status = kvc_record_damaged(e, r->offset, "bytes follow its last section");
    if (!status) status = skip_optional(r, *list, n, e);
    if (status) {
        free(*list);
        *list = NULL;
    }
    return status;
}

int kvc_records_decode(const struct kvc_section *s, uint8_t **bytes, size_t *n,
                       struct kvc_error *e) {
    if (s->stage != KVC_NO_STAGE || s->index != 0)
        return kvc_fail(e, KVC_ERR_DAMAGED, "section %u claims a stage", s->type);
    if (s->coder != KVC_CODER_STORE && s->raw_size > kvc_section_limit(s->size))
        return kvc_fail(e, KVC_ERR_DAMAGED, "section %u claims %" PRIu64 " bytes from %" PRIu32,
                        s->type, s->raw_size, s->size);
    if (s->coder == KVC_CODER_STORE && s->raw_size != s->size)
        return kvc_fail(e, KVC_ERR_DAMAGED, "section %u: stored size and decoded size differ",
                        s->type);
    *n = (size_t)s->raw_size;
    *bytes = malloc(*n ? *n : 1);
    if (!*bytes) return kvc_fail_memory(e, "a section");
    if (kvc_section_decode(s, *bytes, *n, e)) {
        free(*bytes);
        *bytes = NULL;
        return -1;
    }
    return 0;
}

int kvc_records_single(const struct kvc_records *k, uint64_t i, uint8_t section, uint8_t **bytes,
                       size_t *n, struct kvc_error *e) {
    struct kvc_section *list;
    unsigned count;
    if (kvc_records_sections(k, i, &list, &count, e))
        return kvc_record_context(e, i, kvc_record_name(k->record[i].type));
    int status = 0;
    if (count != 1 || list[0].type != section)
        status = kvc_fail(e, KVC_ERR_DAMAGED, "needs exactly one %s section",
                          kvc_section_name(section));
    else if (kvc_records_decode(&list[0], bytes, n, e)) status = kvc_record_section(e, 0);
    kvc_records_release(k, i, list);
    return status ? kvc_record_context(e, i, kvc_record_name(k->record[i].type)) : 0;
}

/* --- header, footer, index --- */

int kvc_records_take_shapes(struct kvc_records *k, const struct kvc_cache *c, struct kvc_error *e) {
    uint64_t *of_part = kvc_alloc_zeros(c->n_parts + UINT64_C(1), sizeof *of_part);
    k->shape = kvc_alloc(c->n_tensors + UINT64_C(1), sizeof *k->shape);
    k->before = kvc_alloc(c->n_tensors + UINT64_C(1), sizeof *k->before);
    const int status = of_part && k->shape && k->before ? 0 : kvc_fail_memory(e, "shapes");
    for (uint32_t t = 0; t < c->n_tensors && !status; t++) {
        uint64_t *values = &of_part[kvc_tensor_layer(c, t)->part];
        k->shape[t] = c->tensor[t].shape;
        k->before[t] = *values;
        *values += k->shape[t].heads * k->shape[t].dim;
    }
    free(of_part);
    return status;
}

int kvc_records_header(const struct kvc_input *in, struct kvc_error *e) {
    uint8_t p[KVC_HEADER_SIZE];
    if (kvc_input_copy(in, 0, p, in->size < sizeof p ? in->size : sizeof p, e)) return -1;
    if (in->size < 8 || memcmp(p, KVC_MAGIC, 8) != 0)
        return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "not a .kvc file");
    if (in->size < KVC_HEADER_SIZE + KVC_FOOTER_SIZE)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "truncated: %" PRIu64 " bytes hold no header and footer", in->size);
    if (get_u64(p + 24) != XXH3_64bits(p, 24))
        return kvc_fail(e, KVC_ERR_DAMAGED, "header: checksum mismatch");
    if (get_u16(p + 10) > KVC_FORMAT_VERSION)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "needs a reader of format version %u; this one reads %d: use a newer kvc",
                        get_u16(p + 10), KVC_FORMAT_VERSION);
    if (!get_u16(p + 10))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "is of format version 0, the layout of drafts: unpack it with the kvc 0.1 "
                        "that wrote it, and pack it anew");
    if (get_u16(p + 8) < get_u16(p + 10))
        return kvc_fail(e, KVC_ERR_DAMAGED, "header: write version %u is below read version %u",
                        get_u16(p + 8), get_u16(p + 10));
    if (p[12] < KVC_MIN_ALIGN_LOG2 || p[12] > KVC_MAX_ALIGN_LOG2)
        return kvc_fail(e, KVC_ERR_DAMAGED, "header: alignment 2^%u is out of range", p[12]);
    if (get_u32(p + 16))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "needs features %08" PRIx32 " of a newer kvc (header, bytes 16 to 19)",
                        get_u32(p + 16));
    if (p[13] != KVC_GRID_LOG2)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "header: blocks of 2^%u positions; this kvc reads 2^%d", p[13],
                        KVC_GRID_LOG2);
    return 0;
}

int kvc_records_footer(const struct kvc_input *in, uint64_t *index, uint8_t id[KVC_CONTENT_ID],
                       struct kvc_error *e) {
    uint8_t f[KVC_FOOTER_SIZE];
    if (kvc_input_copy(in, in->size - sizeof f, f, sizeof f, e)) return -1;
    if (memcmp(f + 48, KVC_MAGIC_END, 8) != 0)
        return kvc_fail_need(e, KVC_ERR_DAMAGED, KVC_NEED_SALVAGE,
                             "truncated, or bytes follow the end: no footer in the last %d bytes",
                             KVC_FOOTER_SIZE);
    *index = get_u64(f);
    uint8_t seed[8]; /* the check of the INDEX record */
    if (*index < KVC_HEADER_SIZE || *index % KVC_UNIT != 0 ||
        *index > in->size - KVC_FOOTER_SIZE - KVC_RECORD_HEADER)
        return kvc_fail_need(e, KVC_ERR_DAMAGED, KVC_NEED_SALVAGE,
                             "footer: the index offset %" PRIu64 " is not in the file", *index);
    if (kvc_input_copy(in, *index + 24, seed, sizeof seed, e)) return -1;
    if (get_u64(f + 56) != XXH3_64bits_withSeed(f, 56, get_u64(seed)))
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "footer: checksum mismatch, or it is the footer of another index");
    if (get_u64(f + 8) != in->size)
        return kvc_fail_need(e, KVC_ERR_DAMAGED, KVC_NEED_SALVAGE,
                             "the footer says %" PRIu64 " bytes, the file has %" PRIu64,
                             get_u64(f + 8), in->size);
    memcpy(id, f + 16, KVC_CONTENT_ID);
    return 0;
}

int kvc_records_frame(const struct kvc_input *in, uint64_t *index, uint8_t id[KVC_CONTENT_ID],
                      struct kvc_error *e) {
    if (kvc_records_header(in, e)) return -1;
    return kvc_records_footer(in, index, id, e);
}

/* Reads a column of the index: a number for each record. */
static int read_column(const uint8_t **p, const uint8_t *end, uint64_t n, uint64_t most,
                       uint64_t *to, struct kvc_error *e) {
    for (uint64_t i = 0; i < n; i++) {
        if (get_varint(p, end, &to[i]))
            return kvc_fail(e, KVC_ERR_DAMAGED, "index: entry %" PRIu64 " is cut short", i);
        if (to[i] > most)
            return kvc_fail(e, KVC_ERR_DAMAGED, "index: entry %" PRIu64 " does not fit the file",
                            i);
    }
    return 0;
}

/* Refuses a record that a reader may not skip, and does not know. */
static int refuse_unknown(const struct kvc_records *k, uint64_t i, struct kvc_error *e) {
    const struct kvc_record *r = &k->record[i];
    uint8_t head[2];
    if (kvc_record_name(r->type)) return 0;
    if (kvc_input_copy(k->in, r->offset, head, sizeof head, e)) return -1;
    if (head[0] != r->type)
        return kvc_record_damaged(e, r->offset, "its header and the index disagree");
    if (!(head[1] & KVC_RECORD_CRITICAL)) return 0;
    return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                    "record %" PRIu64
                    " is of type %u, which this kvc does not know and must not skip: use a newer "
                    "kvc",
                    i, r->type);
}

/* Lays out the n records that the columns of the index tell, up to offset `end`. `column` has room
 * for n numbers. */
static int lay_out(struct kvc_records *k, const uint8_t *p, const uint8_t *stop, uint64_t n,
                   uint64_t end, uint64_t *column, struct kvc_error *e) {
    uint64_t at = KVC_HEADER_SIZE;
    if ((uint64_t)(stop - p) < n)
        return kvc_fail(e, KVC_ERR_DAMAGED, "index: its types are cut short");
    for (uint64_t i = 0; i < n; i++)
        k->record[i] = (struct kvc_record){.type = *p++, .has_check = 1};
    if (read_column(&p, stop, n, end / KVC_UNIT, column, e)) return -1;
    for (uint64_t i = 0; i < n; i++) {
        if (column[i] < KVC_RECORD_HEADER / KVC_UNIT || column[i] > (end - at) / KVC_UNIT)
            return kvc_fail(e, KVC_ERR_DAMAGED, "index: entry %" PRIu64 " does not fit the file",
                            i);
        k->record[i].offset = at;
        k->record[i].size = column[i] * KVC_UNIT;
        at += k->record[i].size;
    }
    if (at != end)
        return kvc_fail(e, KVC_ERR_DAMAGED, "index: bytes before it belong to no record");
    if (read_column(&p, stop, n, UINT32_MAX, column, e)) return -1;
    for (uint64_t i = 0; i < n; i++)
        k->record[i].subject = column[i] ? (uint32_t)(column[i] - 1) : KVC_NONE;
    if (read_column(&p, stop, n, UINT32_MAX, column, e)) return -1;
    for (uint64_t i = 0; i < n; i++) k->record[i].number = (uint32_t)column[i];
    if ((uint64_t)(stop - p) != 4 * n)
        return kvc_fail(e, KVC_ERR_DAMAGED, "index: %td bytes of checks for %" PRIu64 " records",
                        stop - p, n);
    for (uint64_t i = 0; i < n; i++, p += 4) k->record[i].check = get_u32(p);
    k->n_records = n;
    for (uint64_t i = 0; i < n; i++)
        if (refuse_unknown(k, i, e)) return -1;
    return 0;
}

/* Lays out the records that the INDEX section lists, in the place of the INDEX record itself. */
static int parse_index(struct kvc_records *k, const uint8_t *p, size_t size, uint64_t end,
                       struct kvc_error *e) {
    const uint8_t *const stop = p + size;
    /* each record has at least a header in the file */
    const uint64_t most = (end - KVC_HEADER_SIZE) / KVC_RECORD_HEADER;
    uint64_t n;
    if (get_varint(&p, stop, &n) || n > most)
        return kvc_fail(e, KVC_ERR_DAMAGED, "index: its number of records does not fit");
    struct kvc_record *all = kvc_alloc(n + 1, sizeof *all);
    uint64_t *column = kvc_alloc(n + 1, sizeof *column);
    int status = all && column ? 0 : kvc_fail_memory(e, "the index");
    if (!status) {
        free(k->record);
        k->record = all;
        k->n_records = 0;
        all = NULL;
        status = lay_out(k, p, stop, n, end, column, e);
    }
    free(all);
    free(column);
    return status;
}

int kvc_records_index(struct kvc_records *k, uint64_t offset, struct kvc_error *e) {
    uint8_t head[8], *bytes;
    size_t n;
    if (kvc_input_copy(k->in, offset, head, sizeof head, e)) return -1;
    const uint64_t size = (uint64_t)get_u32(head + 4) * KVC_UNIT,
                   room = k->size - KVC_FOOTER_SIZE - offset;
    if (head[0] != KVC_RECORD_INDEX || size != room)
        return kvc_fail(e, KVC_ERR_DAMAGED, "the footer does not point at the INDEX record");
    /* until it is read, the index is the only record known */
    struct kvc_record own = {.offset = offset,
                             .size = size,
                             .subject = KVC_NONE,
                             .type = KVC_RECORD_INDEX};
    k->record = malloc(sizeof own);
    if (!k->record) return kvc_fail_memory(e, "the index");
    k->record[0] = own;
    k->n_records = 1;
    if (kvc_records_single(k, 0, KVC_SECTION_INDEX, &bytes, &n, e))
        return kvc_error_prefix(e, "index");
    const int status = parse_index(k, bytes, n, offset, e);
    free(bytes);
    if (!status) k->record[k->n_records++] = own;
    return status;
}
