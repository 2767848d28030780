/* reader.c: opens a .kvc container as a cache and checks it. Spec: FORMAT.md. Not for writing one.
 *
 * Everything but the blocks is read and checked on opening; a block's hash is checked whenever it is decoded. */
#include "formats/container.h"
#include "formats/format.h"
#include "formats/keys.h"
#include "formats/layout.h"
#include "formats/parallel.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct record {
    uint64_t offset;
    uint64_t size;
    uint32_t subject, number;
    uint8_t type;
};

struct container {
    const uint8_t *data; /* the whole file */
    uint64_t size;
    struct record *record;
    uint64_t n_records, n_blocks; /* records in the file; BLOCK records among them */
    uint64_t *first_block;        /* by tensor: index into block_record */
    uint64_t *block_record;       /* record number of each block, tensor after tensor */
    struct kvc_pipeline *pipeline;
    char **pipeline_text;
    uint32_t n_pipelines;
    uint16_t *pipeline_of; /* by tensor */
    uint8_t *keys;
    uint64_t n_keys;
    uint64_t *chunk; /* record numbers of the SOURCE chunks */
    uint64_t n_chunks;
};

const char *kvc_record_name(unsigned type) {
    static const char *const names[] = {NULL,   "META", "TABLE", "CELLS",   "TOKENS", "SOURCE",
                                        "SIDE", "BLOCK", "PROFILE", "PAD", "INDEX"};
    return type < sizeof names / sizeof names[0] ? names[type] : NULL;
}

/* What is wrong in a record; callers put its number and content before it with in_record(). */
static int damaged_record(struct kvc_error *e, uint64_t offset, const char *what) {
    return kvc_fail_at(e, KVC_ERR_DAMAGED, offset, "%s", what);
}

/* Puts the record's place before a message that a decoder left in *e. */
static int in_record(struct kvc_error *e, uint64_t record, const char *label) {
    char where[192];
    snprintf(where, sizeof where, "record %" PRIu64 "%s%s%s", record, label ? " (" : "", label ? label : "",
             label ? ")" : "");
    kvc_error_prefix(e, where);
    if (e) e->record = record;
    return -1;
}

/* --- one record: its header against the index, its hash, its directory --- */

/* Checks record i as far as its hash. */
static int record_check(const struct container *k, uint64_t i, struct kvc_error *e) {
    const struct record *r = &k->record[i];
    const uint8_t *h = k->data + r->offset;
    if (h[0] != r->type || (uint64_t)get_u32(h + 4) * KVC_UNIT != r->size || get_u32(h + 8) != r->subject ||
        get_u32(h + 12) != r->number)
        return damaged_record(e, r->offset, "its header and the index disagree");
    if (get_u64(h + 24) != kvc_record_check(h, r->size))
        return damaged_record(e, r->offset, "checksum mismatch");
    if (h[1] & ~KVC_RECORD_CRITICAL) {
        damaged_record(e, r->offset, "reserved flag bits are set");
        if (e) e->code = KVC_ERR_UNSUPPORTED;
        return -1;
    }
    return 0;
}

/* Reads entry j of a checked record; *at is the offset of its bytes and moves on to the next. */
static int read_section(const struct container *k, uint64_t i, unsigned j, uint64_t *at, struct kvc_section *s,
                        struct kvc_error *e) {
    const struct record *r = &k->record[i];
    const uint8_t *h = k->data + r->offset, *entry = h + KVC_RECORD_HEADER + (uint64_t)j * KVC_DIRECTORY_ENTRY;
    s->type = entry[0];
    s->coder = entry[1];
    s->stage = entry[2];
    s->index = entry[3];
    s->size = get_u32(entry + 4);
    s->raw_size = get_u64(entry + 8);
    s->data = h + *at;
    uint64_t padded = kvc_round_up(s->size, KVC_UNIT);
    if (padded > r->size - *at) return damaged_record(e, r->offset, "a section reaches beyond its record");
    for (uint64_t b = s->size; b < padded; b++)
        if (s->data[b]) return damaged_record(e, r->offset, "padding is not zero");
    *at += padded;
    return 0;
}

/* A PAD record has no sections and is zero behind its header. */
static int read_padding(const struct container *k, uint64_t i, unsigned n, struct kvc_section **list,
                        struct kvc_error *e) {
    const struct record *r = &k->record[i];
    if (n || get_u64(k->data + r->offset + 16)) return damaged_record(e, r->offset, "PAD has sections or a digest");
    for (uint64_t b = KVC_RECORD_HEADER; b < r->size; b++)
        if (k->data[r->offset + b]) return damaged_record(e, r->offset, "padding is not zero");
    *list = NULL;
    return 0;
}

/* Sections of record i, checked; *list is allocated, the caller frees it. */
static int read_sections(const struct container *k, uint64_t i, struct kvc_section **list, unsigned *n,
                         struct kvc_error *e) {
    const struct record *r = &k->record[i];
    const uint8_t *h = k->data + r->offset;
    if (record_check(k, i, e)) return -1;
    *n = get_u16(h + 2);
    if (r->type == KVC_RECORD_PAD) return read_padding(k, i, *n, list, e);
    uint64_t at = KVC_RECORD_HEADER + (uint64_t)*n * KVC_DIRECTORY_ENTRY;
    if (at > r->size) return damaged_record(e, r->offset, "its directory reaches beyond it");
    *list = malloc((*n ? *n : 1) * sizeof **list);
    if (!*list) return kvc_fail_memory(e, "sections");
    int status = 0;
    for (unsigned j = 0; j < *n && !status; j++) status = read_section(k, i, j, &at, *list + j, e);
    if (!status && at != r->size) status = damaged_record(e, r->offset, "bytes follow its last section");
    if (status) {
        free(*list);
        *list = NULL;
    }
    return status;
}

/* Decodes a container section whose size only the directory tells; bounded by what is stored. */
static int decode_own(const struct kvc_section *s, uint8_t **bytes, size_t *n, struct kvc_error *e) {
    if (s->stage != KVC_NO_STAGE || s->index != 0)
        return kvc_fail(e, KVC_ERR_DAMAGED, "section %u claims a stage", s->type);
    if (s->coder != KVC_CODER_STORE && s->raw_size > kvc_section_limit(s->size))
        return kvc_fail(e, KVC_ERR_DAMAGED, "section %u claims %" PRIu64 " bytes from %" PRIu32, s->type, s->raw_size,
                        s->size);
    if (s->coder == KVC_CODER_STORE && s->raw_size != s->size)
        return kvc_fail(e, KVC_ERR_DAMAGED, "section %u: stored size and decoded size differ", s->type);
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

/* The one section of type `section` that record i consists of. */
static int decode_single(const struct container *k, uint64_t i, uint8_t section, uint8_t **bytes, size_t *n,
                         struct kvc_error *e) {
    struct kvc_section *list;
    unsigned count;
    if (read_sections(k, i, &list, &count, e)) return in_record(e, i, kvc_record_name(k->record[i].type));
    int status = count == 1 && list[0].type == section
                     ? decode_own(&list[0], bytes, n, e)
                     : kvc_fail(e, KVC_ERR_DAMAGED, "needs exactly one %s section", kvc_section_name(section));
    free(list);
    return status ? in_record(e, i, kvc_record_name(k->record[i].type)) : 0;
}

/* --- header, footer, index --- */

static int check_frame(const struct kvc_input *in, uint64_t *index, struct kvc_error *e) {
    const uint8_t *p = in->data;
    if (in->size < 8 || memcmp(p, KVC_MAGIC, in->size < 8 ? (size_t)in->size : 8) != 0)
        return kvc_fail(e, KVC_ERR_UNKNOWN, "not a .kvc file");
    if (in->size < KVC_HEADER_SIZE + KVC_FOOTER_SIZE)
        return kvc_fail(e, KVC_ERR_DAMAGED, "truncated: %" PRIu64 " bytes hold no header and footer", in->size);
    if (get_u64(p + 24) != XXH3_64bits(p, 24)) return kvc_fail(e, KVC_ERR_DAMAGED, "header: checksum mismatch");
    if (get_u16(p + 10) > KVC_FORMAT_VERSION)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "needs a reader of format version %u; this one reads %d: use a newer kvc",
                        get_u16(p + 10), KVC_FORMAT_VERSION);
    if (get_u16(p + 8) < get_u16(p + 10))
        return kvc_fail(e, KVC_ERR_DAMAGED, "header: write version %u is below read version %u", get_u16(p + 8),
                        get_u16(p + 10));
    if (p[12] < KVC_MIN_ALIGN_LOG2 || p[12] > KVC_MAX_ALIGN_LOG2)
        return kvc_fail(e, KVC_ERR_DAMAGED, "header: alignment 2^%u is out of range", p[12]);
    for (int i = 13; i < 24; i++)
        if (p[i]) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "header: reserved byte %d is set", i);
    const uint8_t *f = p + in->size - KVC_FOOTER_SIZE;
    if (memcmp(f + 16, KVC_MAGIC_END, 8) != 0)
        return kvc_fail(e, KVC_ERR_DAMAGED, "truncated, or bytes follow the end: no footer in the last 32 bytes");
    if (get_u64(f + 24) != XXH3_64bits(f, 24)) return kvc_fail(e, KVC_ERR_DAMAGED, "footer: checksum mismatch");
    if (get_u64(f + 8) != in->size)
        return kvc_fail(e, KVC_ERR_DAMAGED, "the footer says %" PRIu64 " bytes, the file has %" PRIu64, get_u64(f + 8),
                        in->size);
    *index = get_u64(f);
    if (*index < KVC_HEADER_SIZE || *index % KVC_UNIT || *index > in->size - KVC_FOOTER_SIZE - KVC_RECORD_HEADER)
        return kvc_fail(e, KVC_ERR_DAMAGED, "footer: the index offset %" PRIu64 " is not in the file", *index);
    return 0;
}

/* Lays out the records that the INDEX section lists; the INDEX record itself is the last. */
static int parse_index(struct container *k, const uint8_t *p, size_t n, uint64_t end, struct kvc_error *e) {
    const uint8_t *stop = p + n;
    uint64_t at = KVC_HEADER_SIZE, count = 0;
    while (p < stop) {
        uint64_t type, units, subject, number;
        if (get_varint(&p, stop, &type) || get_varint(&p, stop, &units) || get_varint(&p, stop, &subject) ||
            get_varint(&p, stop, &number))
            return kvc_fail(e, KVC_ERR_DAMAGED, "index: entry %" PRIu64 " is cut short", count);
        if (type > UINT8_MAX || subject > UINT32_MAX || number > UINT32_MAX ||
            units < KVC_RECORD_HEADER / KVC_UNIT || units > (end - at) / KVC_UNIT)
            return kvc_fail(e, KVC_ERR_DAMAGED, "index: entry %" PRIu64 " does not fit the file", count);
        if (!kvc_record_name((unsigned)type) && (k->data[at + 1] & KVC_RECORD_CRITICAL))
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "record %" PRIu64 " of type %" PRIu64 " is critical and unknown to this reader", count, type);
        k->record[count++] = (struct record){.offset = at, .size = units * KVC_UNIT,
                                             .subject = subject ? (uint32_t)(subject - 1) : KVC_NONE,
                                             .number = (uint32_t)number, .type = (uint8_t)type};
        at += units * KVC_UNIT;
    }
    if (at != end) return kvc_fail(e, KVC_ERR_DAMAGED, "index: bytes before it belong to no record");
    k->n_records = count;
    return 0;
}

static int read_index(struct container *k, uint64_t offset, struct kvc_error *e) {
    uint64_t size = (uint64_t)get_u32(k->data + offset + 4) * KVC_UNIT, room = k->size - KVC_FOOTER_SIZE - offset;
    if (k->data[offset] != KVC_RECORD_INDEX || size != room)
        return kvc_fail(e, KVC_ERR_DAMAGED, "the footer does not point at the INDEX record");
    /* for the time being the index is the only record known */
    struct record own = {.offset = offset, .size = size, .subject = KVC_NONE, .type = KVC_RECORD_INDEX};
    k->record = malloc(sizeof own);
    if (!k->record) return kvc_fail_memory(e, "the index");
    k->record[0] = own;
    k->n_records = 1;
    uint8_t *bytes;
    size_t n;
    if (decode_single(k, 0, KVC_SECTION_INDEX, &bytes, &n, e)) return kvc_error_prefix(e, "index");
    /* an entry takes at least 4 bytes */
    struct record *all = malloc((n / 4 + 1) * sizeof *all);
    int status = -1;
    if (all) {
        free(k->record);
        k->record = all;
        k->n_records = 0;
        status = parse_index(k, bytes, n, offset, e);
        if (!status) k->record[k->n_records++] = own;
    } else {
        kvc_fail_memory(e, "the index");
    }
    free(bytes);
    return status;
}

/* --- the records before the blocks --- */

static int read_table(struct kvc_cache *c, struct container *k, const uint8_t *p, size_t n, struct kvc_error *e) {
    const uint8_t *end = p + n;
    if (n < 16) return kvc_fail(e, KVC_ERR_DAMAGED, "the table is cut short");
    uint64_t parts = get_u32(p), layers = get_u32(p + 4), tensors = get_u32(p + 8), pipelines = get_u32(p + 12);
    p += 16;
    if (parts * KVC_PART_ENTRY + layers * KVC_LAYER_ENTRY + tensors * KVC_TENSOR_ENTRY + pipelines > (uint64_t)(end - p))
        return kvc_fail(e, KVC_ERR_DAMAGED, "the table is cut short");
    uint64_t cells = 0;
    for (uint64_t i = 0; i < parts; i++, p += KVC_PART_ENTRY) {
        if (!kvc_part_kind_name(p[0])) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "part kind %u is unknown", p[0]);
        if (p[1] | p[2] | p[3] | get_u32(p + 12)) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "table: reserved bytes are set");
        uint64_t part_cells = get_u64(p + 16);
        if (part_cells > KVC_MAX_CELLS || (cells += part_cells) > KVC_BLOCK * k->n_blocks)
            return kvc_fail(e, KVC_ERR_DAMAGED, "table: %" PRIu64 " cells are more than the blocks can hold", cells);
        uint32_t number = kvc_cache_add_part(c, (enum kvc_part_kind)p[0], part_cells, e);
        if (number == KVC_NONE) return -1;
        c->part[number].stream = get_u32(p + 4);
        c->part[number].checkpoint = get_u32(p + 8);
    }
    for (uint64_t i = 0; i < layers; i++, p += KVC_LAYER_ENTRY) {
        uint32_t part = get_u32(p);
        if (!kvc_layer_kind_name(p[8])) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "layer kind %u is unknown", p[8]);
        if (p[9] | p[10] | p[11]) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "table: reserved bytes are set");
        if (part >= parts) return kvc_fail(e, KVC_ERR_DAMAGED, "table: layer %" PRIu64 " has no part", i);
        uint32_t number = kvc_cache_add_layer(c, part, get_u32(p + 4), (enum kvc_layer_kind)p[8], e);
        if (number == KVC_NONE) return -1;
        c->layer[number].window = get_u32(p + 12);
    }
    k->pipeline_of = malloc((size_t)(tensors + 1) * sizeof *k->pipeline_of);
    if (!k->pipeline_of) return kvc_fail_memory(e, "the table of tensors");
    for (uint64_t i = 0; i < tensors; i++, p += KVC_TENSOR_ENTRY) {
        uint32_t layer = get_u32(p);
        if (layer >= layers) return kvc_fail(e, KVC_ERR_DAMAGED, "table: tensor %" PRIu64 " has no layer", i);
        if (!kvc_role_name(p[4])) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "role %u is unknown", p[4]);
        if (!kvc_dtype_info(p[5])) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "dtype %u is unknown", p[5]);
        if (get_u16(p + 6) >= pipelines) return kvc_fail(e, KVC_ERR_DAMAGED, "table: tensor %" PRIu64 " has no pipeline", i);
        struct kvc_shape shape = {.dtype = (enum kvc_dtype)p[5], .heads = get_u64(p + 8), .dim = get_u64(p + 16),
                                  .tokens = c->part[c->layer[layer].part].cells.n};
        uint32_t number = kvc_cache_add_tensor(c, layer, (enum kvc_role)p[4], &shape, e);
        if (number == KVC_NONE) return -1;
        struct kvc_tensor *t = &c->tensor[number];
        t->source = (struct kvc_strides){get_u64(p + 24), get_u64(p + 32), get_u64(p + 40)};
        t->source_size = get_u64(p + 48);
        if (t->source_size > KVC_MAX_TENSOR_BYTES || t->source_size < kvc_tensor_bytes(t) ||
            !kvc_strides_check(&shape, &t->source, t->source_size))
            return kvc_fail(e, KVC_ERR_DAMAGED, "table: tensor %" PRIu64 " reaches beyond its region of the source", i);
        k->pipeline_of[i] = get_u16(p + 6);
    }
    if (pipelines > KVC_MAX_PIPELINES) return kvc_fail(e, KVC_ERR_DAMAGED, "table: too many pipelines");
    k->pipeline = calloc((size_t)pipelines + 1, sizeof *k->pipeline);
    k->pipeline_text = calloc((size_t)pipelines + 1, sizeof *k->pipeline_text);
    if (!k->pipeline || !k->pipeline_text) return kvc_fail_memory(e, "pipelines");
    for (uint64_t i = 0; i < pipelines; i++) {
        struct kvc_pipeline *line = &k->pipeline[i];
        if (p == end || *p < 1 || *p > KVC_MAX_STAGES)
            return kvc_fail(e, KVC_ERR_DAMAGED, "table: pipeline %" PRIu64 " has no valid number of stages", i);
        line->n = *p++;
        for (unsigned s = 0; s < line->n; s++) {
            if (end - p < 3 || end - p - 3 < p[2]) return kvc_fail(e, KVC_ERR_DAMAGED, "the table is cut short");
            char text[256], again[256];
            line->step[s].stage = kvc_stage_by_id(get_u16(p));
            if (!line->step[s].stage)
                return kvc_fail(e, KVC_ERR_UNSUPPORTED, "stage id %u is unknown to this reader: use a newer kvc", get_u16(p));
            memcpy(text, p + 3, p[2]);
            text[p[2]] = '\0';
            if (strlen(text) != p[2] || line->step[s].stage->parse(text, &line->step[s].args, e))
                return kvc_fail(e, KVC_ERR_DAMAGED, "table: arguments of stage %s are malformed", line->step[s].stage->name);
            line->step[s].stage->print(&line->step[s].args, again, sizeof again);
            if (strcmp(text, again) != 0)
                return kvc_fail(e, KVC_ERR_DAMAGED, "table: arguments of stage %s are not canonical",
                                line->step[s].stage->name);
            int terminal = (line->step[s].stage->flags & KVC_STAGE_TERMINAL) != 0;
            if (terminal != (s + 1 == line->n))
                return kvc_fail(e, KVC_ERR_DAMAGED, "table: pipeline %" PRIu64 " does not end in its terminal stage", i);
            p += 3 + p[2];
        }
        char text[2048];
        if (kvc_pipeline_print(line, text, sizeof text) || !(k->pipeline_text[i] = strdup(text)))
            return kvc_fail_memory(e, "pipelines");
        k->n_pipelines++;
    }
    return p == end ? 0 : kvc_fail(e, KVC_ERR_DAMAGED, "bytes follow the table");
}

static int read_positions(struct kvc_cells *cells, const uint8_t *p, size_t n, struct kvc_error *e) {
    const uint8_t *end = p + n;
    uint64_t at = 0;
    int64_t expected = 0;
    while (at < cells->n) {
        uint64_t step, length;
        int64_t first, last;
        if (get_varint(&p, end, &step) || get_varint(&p, end, &length) || !length || length > cells->n - at ||
            __builtin_add_overflow(expected, unzigzag(step), &first) ||
            __builtin_add_overflow(first, (int64_t)length, &last))
            return kvc_fail(e, KVC_ERR_DAMAGED, "positions are malformed at cell %" PRIu64, at);
        for (uint64_t i = 0; i < length; i++) cells->pos[at++] = first + (int64_t)i;
        expected = last;
    }
    return p == end ? 0 : kvc_fail(e, KVC_ERR_DAMAGED, "bytes follow the positions");
}

static int read_words(struct kvc_cells *cells, const uint8_t *p, size_t n, struct kvc_error *e) {
    const uint8_t *end = p + n;
    uint64_t total = 0;
    cells->word_at = malloc((size_t)(cells->n + 1) * sizeof *cells->word_at);
    if (!cells->word_at) return kvc_fail_memory(e, "cell words");
    for (uint64_t i = 0; i < cells->n; i++) {
        uint64_t count;
        if (get_varint(&p, end, &count) || count > n) return kvc_fail(e, KVC_ERR_DAMAGED, "cell words are cut short");
        cells->word_at[i] = total;
        total += count;
    }
    cells->word_at[cells->n] = total;
    if ((uint64_t)(end - p) % 4 || total != (uint64_t)(end - p) / 4)
        return kvc_fail(e, KVC_ERR_DAMAGED, "cell words: %" PRIu64 " are announced, %zu bytes follow", total,
                        (size_t)(end - p));
    cells->words = malloc(total ? (size_t)total * sizeof *cells->words : 1);
    if (!cells->words) return kvc_fail_memory(e, "cell words");
    for (uint64_t i = 0; i < total; i++, p += 4) cells->words[i] = get_u32(p);
    return 0;
}

static int read_cells(struct kvc_cache *c, struct container *k, uint64_t i, struct kvc_error *e) {
    struct kvc_section *list;
    unsigned n;
    if (k->record[i].subject >= c->n_parts) return kvc_fail(e, KVC_ERR_DAMAGED, "CELLS of a part that is not there");
    struct kvc_cells *cells = &c->part[k->record[i].subject].cells;
    if (read_sections(k, i, &list, &n, e)) return -1;
    int status = n >= 1 && n <= 2 && list[0].type == KVC_SECTION_POSITIONS && (n == 1 || list[1].type == KVC_SECTION_WORDS)
                     ? 0
                     : kvc_fail(e, KVC_ERR_DAMAGED, "needs POSITIONS and at most WORDS");
    for (unsigned s = 0; s < n && !status; s++) {
        uint8_t *bytes;
        size_t size;
        status = decode_own(&list[s], &bytes, &size, e);
        if (status) break;
        status = s ? read_words(cells, bytes, size, e) : read_positions(cells, bytes, size, e);
        free(bytes);
    }
    free(list);
    return status;
}

static int read_tokens(struct kvc_cache *c, struct container *k, uint64_t i, struct kvc_error *e) {
    struct kvc_section *list;
    unsigned n;
    if (read_sections(k, i, &list, &n, e)) return -1;
    unsigned ids = n && list[0].type == KVC_SECTION_TOKENS, keys = n > ids && list[ids].type == KVC_SECTION_KEYS;
    int status = n && n == ids + keys ? 0 : kvc_fail(e, KVC_ERR_DAMAGED, "needs TOKENS, KEYS, or both in this order");
    for (unsigned s = 0; s < n && !status; s++) {
        uint8_t *bytes;
        size_t size, unit = s < ids ? 4 : 32;
        status = decode_own(&list[s], &bytes, &size, e);
        if (status) break;
        if (size % unit) {
            status = kvc_fail(e, KVC_ERR_DAMAGED, "%zu bytes are no whole number of tokens or keys", size);
        } else if (s < ids) {
            int32_t *tokens = malloc(size ? size : 1);
            if (!tokens) status = kvc_fail_memory(e, "tokens");
            for (size_t t = 0; tokens && t < size / 4; t++) tokens[t] = (int32_t)get_u32(bytes + 4 * t);
            c->tokens = tokens;
            c->n_tokens = tokens ? size / 4 : 0;
        } else {
            k->keys = bytes;
            k->n_keys = size / unit;
            bytes = NULL;
        }
        free(bytes);
    }
    uint64_t due = kvc_meta_u64(&c->meta, KVC_KEY_TOKENS_FIRST, 0) ? 0 : c->n_tokens / KVC_BLOCK;
    if (!status && ids && k->n_keys != due)
        status = kvc_fail(e, KVC_ERR_DAMAGED, "%" PRIu64 " prefix keys for %" PRIu64 " tokens", k->n_keys, c->n_tokens);
    free(list);
    return status;
}

static int read_extents(struct kvc_cache *c, const uint8_t *p, size_t n, struct kvc_error *e) {
    const uint8_t *end = p + n;
    uint64_t count, tensors = 0, total = 0;
    if (get_varint(&p, end, &count) || count > n) return kvc_fail(e, KVC_ERR_DAMAGED, "extents are cut short");
    c->extent = malloc((size_t)(count ? count : 1) * sizeof *c->extent);
    uint8_t *seen = calloc(1, (size_t)c->n_tensors + 1);
    int status = c->extent && seen ? 0 : kvc_fail_memory(e, "extents");
    for (uint64_t i = 0; i < count && !status; i++) {
        uint64_t which, size = 0;
        if (get_varint(&p, end, &which) || (!which && get_varint(&p, end, &size)))
            status = kvc_fail(e, KVC_ERR_DAMAGED, "extents are cut short");
        else if (which > c->n_tensors || (which && seen[which - 1]++))
            status = kvc_fail(e, KVC_ERR_DAMAGED, "extent %" PRIu64 " names no tensor, or one named before", i);
        if (status) break;
        if (which) size = c->tensor[which - 1].source_size;
        c->extent[i] = (struct kvc_extent){.tensor = which ? (uint32_t)(which - 1) : KVC_NONE, .size = size,
                                           .literal = which ? 0 : c->literal_size};
        tensors += which != 0;
        if (__builtin_add_overflow(total, size, &total)) status = kvc_fail(e, KVC_ERR_DAMAGED, "extents overflow");
        if (!which) c->literal_size += size;
    }
    free(seen);
    if (status) return -1;
    if (p != end || tensors != c->n_tensors || !count)
        return kvc_fail(e, KVC_ERR_DAMAGED, "extents do not name every tensor once, or bytes follow them");
    c->n_extents = count;
    return 0;
}

/* Chunk 0 is read; all chunks' literals are only measured here and decoded when asked for. */
static int read_source(struct kvc_cache *c, struct container *k, uint64_t i, struct kvc_error *e) {
    struct kvc_section *list;
    unsigned n;
    uint32_t number = k->record[i].number;
    if (number != k->n_chunks) return kvc_fail(e, KVC_ERR_DAMAGED, "SOURCE chunk %" PRIu32 " is out of order", number);
    uint64_t *grown = realloc(k->chunk, (size_t)(k->n_chunks + 1) * sizeof *grown);
    if (!grown) return kvc_fail_memory(e, "chunks");
    k->chunk = grown;
    k->chunk[k->n_chunks++] = i;
    if (read_sections(k, i, &list, &n, e)) return -1;
    int status = 0;
    unsigned s = 0;
    if (!number) {
        uint8_t *bytes;
        size_t size;
        if (n && list[0].type == KVC_SECTION_EXTENTS) status = decode_own(&list[0], &bytes, &size, e);
        else status = kvc_fail(e, KVC_ERR_DAMAGED, "chunk 0 has no EXTENTS");
        if (!status) {
            status = read_extents(c, bytes, size, e);
            free(bytes);
        }
        s = 1;
    }
    if (!status) {
        uint64_t before = (uint64_t)number * KVC_LITERAL_CHUNK;
        uint64_t due = c->literal_size <= before                      ? 0
                       : c->literal_size - before < KVC_LITERAL_CHUNK ? c->literal_size - before
                                                                      : KVC_LITERAL_CHUNK;
        if (n != s + (due != 0) || (due && (list[s].type != KVC_SECTION_LITERALS || list[s].raw_size != due ||
                                            list[s].stage != KVC_NO_STAGE || list[s].index)))
            status = kvc_fail(e, KVC_ERR_DAMAGED, "chunk %" PRIu32 " does not hold its LITERALS", number);
    }
    free(list);
    return status;
}

static int container_read(const struct kvc_cache *c, uint32_t tensor, uint64_t first, uint64_t n, uint8_t *dst,
                          struct kvc_error *e);
static int container_read_literal(const struct kvc_cache *c, uint64_t offset, uint64_t n, uint8_t *dst,
                                  struct kvc_error *e);

/* Checks that the BLOCK records are exactly the blocks due, in order, and notes where they are. */
static int place_blocks(struct kvc_cache *c, struct container *k, uint64_t i, struct kvc_error *e) {
    uint64_t due = 0;
    k->first_block = malloc(((size_t)c->n_tensors + 1) * sizeof *k->first_block);
    k->block_record = malloc((size_t)(k->n_blocks + 1) * sizeof *k->block_record);
    if (!k->first_block || !k->block_record) return kvc_fail_memory(e, "blocks");
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        k->first_block[t] = due;
        due += kvc_tensor_part(c, t)->cells.n_blocks;
    }
    k->first_block[c->n_tensors] = due;
    if (due != k->n_blocks)
        return kvc_fail(e, KVC_ERR_DAMAGED, "%" PRIu64 " blocks are due, %" PRIu64 " are there", due, k->n_blocks);
    uint32_t tensor = 0;
    uint64_t placed = 0;
    for (; i < k->n_records; i++) {
        const struct record *r = &k->record[i];
        if (r->type == KVC_RECORD_PAD || !kvc_record_name(r->type) || r->type == KVC_RECORD_PROFILE) continue;
        if (r->type == KVC_RECORD_INDEX && i + 1 == k->n_records) continue;
        while (tensor < c->n_tensors && placed == k->first_block[tensor + 1]) tensor++;
        if (r->type == KVC_RECORD_BLOCK && tensor < c->n_tensors && r->subject == tensor &&
            r->number == placed - k->first_block[tensor]) {
            k->block_record[placed++] = i;
            continue;
        }
        damaged_record(e, r->offset, r->type == KVC_RECORD_SIDE ? "no stage of this version has side data"
                                                                : "is not the record due here");
        return in_record(e, i, kvc_record_name(r->type));
    }
    return placed == due ? 0 : kvc_fail(e, KVC_ERR_DAMAGED, "blocks are missing");
}

/* The next record that is neither padding nor unknown and skippable. */
static uint64_t skip(const struct container *k, uint64_t i) {
    while (i < k->n_records && (k->record[i].type == KVC_RECORD_PAD || k->record[i].type == KVC_RECORD_PROFILE ||
                                !kvc_record_name(k->record[i].type)))
        i++;
    return i;
}

static int expect(const struct container *k, uint64_t i, unsigned type, struct kvc_error *e) {
    if (i < k->n_records && k->record[i].type == type) return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED, "record %" PRIu64 " is not the %s record due there", i, kvc_record_name(type));
}

static int read_all(struct kvc_cache *c, struct container *k, struct kvc_error *e) {
    uint8_t *bytes;
    size_t n;
    uint64_t i = skip(k, 0);
    if (expect(k, i, KVC_RECORD_META, e) || decode_single(k, i, KVC_SECTION_META, &bytes, &n, e)) return -1;
    int status = kvc_meta_decode(&c->meta, bytes, n, e);
    free(bytes);
    if (status) return in_record(e, i, "META");
    i = skip(k, i + 1);
    if (expect(k, i, KVC_RECORD_TABLE, e) || decode_single(k, i, KVC_SECTION_TABLE, &bytes, &n, e)) return -1;
    status = read_table(c, k, bytes, n, e);
    free(bytes);
    if (status) return in_record(e, i, "TABLE");
    for (uint32_t part = 0; part < c->n_parts; part++) {
        i = skip(k, i + 1);
        if (expect(k, i, KVC_RECORD_CELLS, e)) return -1;
        if (k->record[i].subject != part) {
            damaged_record(e, k->record[i].offset, "cells of another part");
            return in_record(e, i, "CELLS");
        }
        if (read_cells(c, k, i, e)) return in_record(e, i, "CELLS");
    }
    i = skip(k, i + 1);
    if (i < k->n_records && k->record[i].type == KVC_RECORD_TOKENS) {
        if (read_tokens(c, k, i, e)) return in_record(e, i, "TOKENS");
        i = skip(k, i + 1);
    }
    for (; i < k->n_records && k->record[i].type == KVC_RECORD_SOURCE; i = skip(k, i + 1))
        if (read_source(c, k, i, e)) return in_record(e, i, "SOURCE");
    if (c->literal_size > k->n_chunks * (uint64_t)KVC_LITERAL_CHUNK)
        return kvc_fail(e, KVC_ERR_DAMAGED, "literal bytes of the source file are missing");
    if (kvc_cache_finish(c, e)) return -1;
    return place_blocks(c, k, i, e);
}

static void container_close(struct kvc_cache *c) {
    struct container *k = c->impl;
    if (!k) return;
    for (uint32_t i = 0; i < k->n_pipelines; i++) free(k->pipeline_text[i]);
    free(k->pipeline_text);
    free(k->pipeline);
    free(k->pipeline_of);
    free(k->record);
    free(k->first_block);
    free(k->block_record);
    free(k->keys);
    free(k->chunk);
    free(k);
    c->impl = NULL;
}

struct kvc_cache *kvc_container_open(const struct kvc_input *in, struct kvc_error *e) {
    uint64_t index = 0;
    if (check_frame(in, &index, e)) return NULL;
    struct kvc_cache *c = kvc_cache_new(e);
    struct container *k = calloc(1, sizeof *k);
    if (!c || !k) {
        if (c) kvc_fail_memory(e, "a container");
        kvc_cache_free(c);
        free(k);
        return NULL;
    }
    k->data = in->data;
    k->size = in->size;
    c->impl = k;
    c->close = container_close;
    c->read = container_read;
    c->read_literal = container_read_literal;
    int status = read_index(k, index, e);
    for (uint64_t i = 0; !status && i < k->n_records; i++) k->n_blocks += k->record[i].type == KVC_RECORD_BLOCK;
    if (!status) status = read_all(c, k, e);
    if (status) {
        kvc_cache_free(c);
        return NULL;
    }
    return c;
}

/* --- blocks --- */

/* Rows of a block that its stages code, and the entries for the others. */
struct split {
    struct kvc_same *same;
    size_t n_same;
    uint64_t own;
};

static int parse_same(const struct kvc_cache *c, uint32_t tensor, uint64_t rows, const struct kvc_section *s,
                      struct split *split, struct kvc_error *e) {
    uint8_t *bytes;
    size_t n;
    if (decode_own(s, &bytes, &n, e)) return -1;
    uint64_t next = 0;
    int status = 0;
    split->n_same = n / KVC_SAME_ENTRY;
    split->same = malloc(n ? split->n_same * sizeof *split->same : 1);
    if (!split->same) status = kvc_fail_memory(e, "references");
    else if (!n || n % KVC_SAME_ENTRY) status = kvc_fail(e, KVC_ERR_DAMAGED, "SAME holds no whole entries");
    for (size_t i = 0; i < split->n_same && !status; i++) {
        const uint8_t *p = bytes + i * KVC_SAME_ENTRY;
        struct kvc_same x = {get_u32(p), get_u32(p + 4), get_u32(p + 8), get_u32(p + 12), get_u32(p + 16)};
        if (x.row < next || !x.count || x.count > rows || x.row > rows - x.count || x.tensor >= tensor) {
            status = kvc_fail(e, KVC_ERR_DAMAGED, "SAME entry %zu is out of range", i);
            break;
        }
        const struct kvc_shape *mine = &c->tensor[tensor].shape, *other = &c->tensor[x.tensor].shape;
        const struct kvc_cells *cells = &kvc_tensor_part(c, x.tensor)->cells;
        uint64_t there = x.block < cells->n_blocks ? cells->block[x.block + 1] - cells->block[x.block] : 0;
        if (mine->dtype != other->dtype || mine->heads != other->heads || mine->dim != other->dim || x.count > there ||
            x.there > there - x.count)
            status = kvc_fail(e, KVC_ERR_DAMAGED, "SAME entry %zu refers to rows that are not there", i);
        split->same[i] = x;
        split->own -= x.count;
        next = (uint64_t)x.row + x.count;
    }
    free(bytes);
    return status;
}

/* Puts "record 12 (layer 3 K, tokens 256-511): " before the message. */
static int in_block(const struct kvc_cache *c, struct kvc_error *e, uint32_t tensor, uint64_t block) {
    const struct container *k = c->impl;
    const struct kvc_cells *cells = &kvc_tensor_part(c, tensor)->cells;
    char label[64], where[128];
    kvc_tensor_label(c, tensor, label, sizeof label);
    snprintf(where, sizeof where, "%s, tokens %" PRId64 "-%" PRId64, label,
             cells->pos[kvc_cell_at(cells, cells->block[block])],
             cells->pos[kvc_cell_at(cells, cells->block[block + 1] - 1)]);
    return in_record(e, k->block_record[k->first_block[tensor] + block], where);
}

/* Decodes the rows that a block itself codes into their places in dst; `split` gets the entries for the others. */
static int decode_coded(const struct kvc_cache *c, uint32_t tensor, uint64_t block, uint8_t *dst, struct split *split,
                        struct kvc_error *e) {
    const struct container *k = c->impl;
    const struct kvc_cells *cells = &kvc_tensor_part(c, tensor)->cells;
    uint64_t i = k->block_record[k->first_block[tensor] + block], rows = cells->block[block + 1] - cells->block[block];
    struct kvc_block b = {.shape = c->tensor[tensor].shape, .rows = dst};
    uint64_t row = kvc_row_bytes(&b.shape);
    struct kvc_section *list;
    unsigned n;
    memset(split, 0, sizeof *split);
    split->own = rows;
    if (read_sections(k, i, &list, &n, e)) return in_block(c, e, tensor, block);
    unsigned first = n && list[0].type == KVC_SECTION_SAME;
    int status = first ? parse_same(c, tensor, rows, &list[0], split, e) : 0;
    b.shape.tokens = split->own;
    if (!status && split->own)
        status = kvc_pipeline_decode(&k->pipeline[k->pipeline_of[tensor]], &b, list + first, n - first, e);
    else if (!status && n != first)
        status = kvc_fail(e, KVC_ERR_DAMAGED, "sections follow although no rows are left");
    free(list);
    if (status) {
        free(split->same);
        split->same = NULL;
        return in_block(c, e, tensor, block);
    }
    /* The coded rows stand packed at the front of dst: spread them from the end, past the rows of each entry. */
    uint64_t end = rows, left = split->own;
    for (size_t s = split->n_same; s-- > 0;) {
        const struct kvc_same *x = &split->same[s];
        uint64_t after = end - (x->row + x->count);
        left -= after;
        memmove(dst + (end - after) * row, dst + left * row, (size_t)(after * row));
        end = x->row;
    }
    return 0;
}

/* Decodes a whole block into dst. */
static int decode_block(const struct kvc_cache *c, uint32_t tensor, uint64_t block, uint8_t *dst, struct kvc_error *e) {
    struct split split;
    uint64_t row = kvc_row_bytes(&c->tensor[tensor].shape);
    if (decode_coded(c, tensor, block, dst, &split, e)) return -1;
    uint8_t *there = split.n_same ? malloc((size_t)row * KVC_BLOCK) : NULL;
    int status = split.n_same && !there ? kvc_fail_memory(e, "rows") : 0;
    uint32_t have_tensor = KVC_NONE, have_block = KVC_NONE;
    struct split origin = {0};
    for (size_t s = 0; s < split.n_same && !status; s++) {
        const struct kvc_same *x = &split.same[s];
        if (x->tensor != have_tensor || x->block != have_block) {
            free(origin.same);
            memset(&origin, 0, sizeof origin);
            status = decode_coded(c, x->tensor, x->block, there, &origin, e);
            have_tensor = x->tensor;
            have_block = x->block;
        }
        for (size_t o = 0; o < origin.n_same && !status; o++)
            if (origin.same[o].row < x->there + x->count && x->there < origin.same[o].row + origin.same[o].count)
                status = kvc_fail(e, KVC_ERR_DAMAGED, "SAME refers to rows that are references themselves");
        if (!status) memcpy(dst + x->row * row, there + x->there * row, (size_t)(x->count * row));
    }
    free(origin.same);
    free(there);
    free(split.same);
    return status;
}

static int container_read(const struct kvc_cache *c, uint32_t tensor, uint64_t first, uint64_t n, uint8_t *dst,
                          struct kvc_error *e) {
    const struct kvc_cells *cells = &kvc_tensor_part(c, tensor)->cells;
    uint64_t row = kvc_row_bytes(&c->tensor[tensor].shape), end = first + n;
    uint8_t *whole = NULL;
    int status = 0;
    for (uint64_t b = n ? kvc_cells_block_of(cells, first) : 0; first < end && !status; b++) {
        uint64_t start = cells->block[b], stop = cells->block[b + 1], take = (stop < end ? stop : end) - first;
        if (take == stop - start) {
            status = decode_block(c, tensor, b, dst, e);
        } else {
            if (!whole && !(whole = malloc((size_t)row * KVC_BLOCK))) status = kvc_fail_memory(e, "a block");
            else status = decode_block(c, tensor, b, whole, e);
            if (!status) memcpy(dst, whole + (first - start) * row, (size_t)(take * row));
        }
        dst += take * row;
        first += take;
    }
    free(whole);
    return status;
}

static int container_read_literal(const struct kvc_cache *c, uint64_t offset, uint64_t n, uint8_t *dst,
                                  struct kvc_error *e) {
    const struct container *k = c->impl;
    int status = 0;
    while (n && !status) {
        uint64_t number = offset / KVC_LITERAL_CHUNK, skip_bytes = offset % KVC_LITERAL_CHUNK, i = k->chunk[number];
        struct kvc_section *list;
        unsigned count;
        uint8_t *bytes = NULL;
        size_t size = 0;
        if (read_sections(k, i, &list, &count, e)) return in_record(e, i, "SOURCE");
        status = decode_own(&list[count - 1], &bytes, &size, e);
        free(list);
        if (status) return in_record(e, i, "SOURCE");
        uint64_t part = size - skip_bytes < n ? size - skip_bytes : n;
        memcpy(dst, bytes + skip_bytes, (size_t)part);
        free(bytes);
        dst += part;
        offset += part;
        n -= part;
    }
    return status;
}

/* --- looking inside, checking --- */

int kvc_cache_is_container(const struct kvc_cache *c) {
    return c->read == container_read;
}

uint64_t kvc_container_records(const struct kvc_cache *c) {
    return ((const struct container *)c->impl)->n_records;
}

int kvc_container_record(const struct kvc_cache *c, uint64_t i, struct kvc_record_info *info,
                         struct kvc_section *section, unsigned n_max, struct kvc_error *e) {
    const struct container *k = c->impl;
    const struct record *r = &k->record[i];
    struct kvc_section *list;
    unsigned n;
    if (read_sections(k, i, &list, &n, e)) return in_record(e, i, kvc_record_name(r->type));
    const uint8_t *h = k->data + r->offset;
    *info = (struct kvc_record_info){.type = r->type, .tensor = KVC_NONE, .block = r->number, .offset = r->offset,
                                     .size = r->size, .check = get_u64(h + 24), .digest = get_u64(h + 16),
                                     .n_sections = n};
    if (r->type == KVC_RECORD_BLOCK) {
        const struct kvc_cells *cells = &kvc_tensor_part(c, r->subject)->cells;
        info->tensor = r->subject;
        info->rows = cells->block[r->number + 1] - cells->block[r->number];
    }
    for (unsigned s = 0; section && s < n && s < n_max; s++) section[s] = list[s];
    free(list);
    return 0;
}

const char *kvc_container_pipeline(const struct kvc_cache *c, uint32_t tensor) {
    const struct container *k = c->impl;
    return k->pipeline_text[k->pipeline_of[tensor]];
}

uint64_t kvc_container_stored(const struct kvc_cache *c, uint32_t tensor) {
    const struct container *k = c->impl;
    uint64_t sum = 0;
    for (uint64_t b = k->first_block[tensor]; b < k->first_block[tensor + 1]; b++)
        sum += k->record[k->block_record[b]].size;
    return sum;
}

const uint8_t *kvc_container_keys(const struct kvc_cache *c, uint64_t *n) {
    const struct container *k = c->impl;
    *n = k->n_keys;
    return k->keys;
}

/* One record, all of it: hash, padding, and for blocks the digest of what it decodes to. */
static int check_one(void *state, uint64_t i, void **result, struct kvc_error *e) {
    const struct kvc_cache *c = state;
    const struct container *k = c->impl;
    const struct record *r = &k->record[i];
    struct kvc_section *list;
    unsigned n;
    int status = 0;
    *result = NULL;
    if (r->type != KVC_RECORD_BLOCK) {
        if (read_sections(k, i, &list, &n, e)) return in_record(e, i, kvc_record_name(r->type));
        for (unsigned s = 0; r->type == KVC_RECORD_SOURCE && s < n && !status; s++) {
            uint8_t *bytes; /* opening only measured the literals */
            size_t size;
            if (!(status = decode_own(&list[s], &bytes, &size, e))) free(bytes);
            else in_record(e, i, "SOURCE");
        }
        free(list);
        return status;
    }
    const struct kvc_cells *cells = &kvc_tensor_part(c, r->subject)->cells;
    uint64_t row = kvc_row_bytes(&c->tensor[r->subject].shape), first = cells->block[r->number],
             rows = cells->block[r->number + 1] - first;
    uint8_t *dst = malloc((size_t)(row * rows));
    if (!dst) return kvc_fail_memory(e, "a block");
    status = decode_block(c, r->subject, r->number, dst, e);
    if (!status && kvc_digest_rows(dst, row, first, rows) != get_u64(k->data + r->offset + 16)) {
        damaged_record(e, r->offset, "decoded values do not match the digest");
        status = in_block(c, e, r->subject, r->number);
    }
    free(dst);
    return status;
}

static int check_commit(void *state, uint64_t item, void *result, struct kvc_error *e) {
    (void)state, (void)item, (void)result, (void)e;
    return 0;
}

int kvc_container_check_rest(const struct kvc_cache *c, struct kvc_error *e) {
    const struct container *k = c->impl;
    for (uint64_t i = 0; i < k->n_records; i++) {
        struct kvc_section *list;
        unsigned n;
        if (k->record[i].type == KVC_RECORD_BLOCK || k->record[i].type == KVC_RECORD_SOURCE) continue;
        if (read_sections(k, i, &list, &n, e)) return in_record(e, i, kvc_record_name(k->record[i].type));
        free(list);
    }
    return 0;
}

int kvc_container_check(const struct kvc_cache *c, unsigned threads, struct kvc_error *e) {
    /* check_one only reads the cache; the job's state is not const because other jobs write theirs */
    struct kvc_job job = {.n = kvc_container_records(c), .work = check_one, .commit = check_commit,
                          .state = (void *)(uintptr_t)c};
    return kvc_parallel(&job, threads, e);
}

/* --- the row in the table of formats --- */

static int probe(const struct kvc_input *in, char *why, size_t size) {
    uint64_t n = in->size < 8 ? in->size : 8;
    if (n >= 4 && memcmp(in->data, KVC_MAGIC, (size_t)n) == 0) return 1;
    snprintf(why, size, "no .kvc magic at the start");
    return 0;
}

static struct kvc_cache *import(const struct kvc_input *in, const struct kvc_import_options *o, struct kvc_error *e) {
    (void)o;
    return kvc_container_open(in, e);
}

const struct kvc_format kvc_format_kvc = {
    .name = "kvc",
    .summary = "kvc's own container",
    .suffix = ".kvc",
    .probe = probe,
    .import = import,
};
