/* salvage.c: opens a damaged container. Not for finding out what of it is whole (survey.c).
 *
 * A whole index gives the place of every record, also of those with a damaged header. Without it,
 * records are walked from the first one on. A record's hash covers its length. So a damaged record
 * is stepped over only if a whole record, the index or the end follows at its length; otherwise the
 * next whole record is searched for. */
#include "formats/container/salvage.h"

#include "codecs/memory.h"
#include "formats/cache/keys.h"
#include "formats/container/offsets.h"
#include "formats/container/records.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* times the file's size: in a hostile file, every 16 bytes may look like a record */
enum { HASHED_AT_MOST = 64 };

struct walk {
    struct kvc_records *k;
    struct kvc_survey *survey;
    uint64_t end, budget;
    uint64_t index; /* offset of a whole INDEX record; 0: none */
};

static int add_bytes(struct kvc_survey *s, const char *kind, uint64_t offset, uint64_t size,
                     const char *reason, struct kvc_error *e) {
    struct kvc_damage *d = kvc_survey_add(s, kind, "", reason, e);
    if (!d) return -1;
    d->offset = offset;
    d->size = size;
    return 0;
}

/* The same for header, footer or index, whose names are removed from the message. */
static int add_frame(struct kvc_survey *s, const char *kind, uint64_t offset, uint64_t size,
                     const struct kvc_error *why, struct kvc_error *e) {
    static const char *const said[] = {"header: ", "footer: ", "index: record 0 (INDEX): ",
                                       "index: "};
    char reason[sizeof why->message], *place;
    const char *from = why->message;
    for (size_t i = 0; i < sizeof said / sizeof said[0] && from == why->message; i++)
        if (strncmp(from, said[i], strlen(said[i])) == 0) from += strlen(said[i]);
    snprintf(reason, sizeof reason, "%s", from);
    if ((place = strstr(reason, " (at byte "))) *place = '\0';
    return add_bytes(s, kind, offset, size, reason, e);
}

/* --- walking --- */

/* Returns 1 if the bytes at `at` may be the header of a record, and fills *r with it. */
static int looks_like_record(const struct walk *w, uint64_t at, struct kvc_record *r) {
    uint8_t h[KVC_RECORD_HEADER];
    if (w->end - at < KVC_RECORD_HEADER || kvc_input_copy(w->k->in, at, h, sizeof h, NULL))
        return 0;
    *r = (struct kvc_record){.offset = at,
                             .size = (uint64_t)get_u32(h + 4) * KVC_UNIT,
                             .subject = get_u32(h + 8),
                             .number = get_u32(h + 12),
                             .type = h[0]};
    const int known = KVC_RECORD_CRITICAL |
                      (r->type == KVC_RECORD_BLOCK ? KVC_RECORD_NO_DIGEST : 0);
    if (!r->type || h[1] & ~known ||
        (kvc_record_name(r->type) &&
         (h[1] & KVC_RECORD_CRITICAL) != kvc_record_is_critical(r->type)))
        return 0;
    return r->size >= KVC_RECORD_HEADER + (uint64_t)get_u16(h + 2) * KVC_DIRECTORY_ENTRY &&
           r->size <= w->end - at;
}

static int is_record(struct walk *w, uint64_t at, struct kvc_record *r) {
    if (!looks_like_record(w, at, r) || r->size > w->budget) return 0;
    w->budget -= r->size;
    if (kvc_input_pin(w->k->in, at, r->size, NULL)) return 0;
    const uint8_t *h = w->k->in->data + at;
    const int same = get_u64(h + 24) == kvc_record_check(h, r->size);
    kvc_input_unpin(w->k->in, at, r->size);
    return same;
}

static int salvage_append(struct walk *w, const struct kvc_record *r, struct kvc_error *e) {
    struct kvc_records *k = w->k;
    struct kvc_record *grown = kvc_room_for_one(k->record, k->n_records, sizeof *grown);
    if (!grown) return kvc_fail_memory(e, "records");
    k->record = grown;
    k->record[k->n_records++] = *r;
    if (r->type == KVC_RECORD_INDEX) w->index = r->offset;
    return 0;
}

/* Finds the records from the first place on up to w->end. */
static int salvage_walk(struct walk *w, struct kvc_error *e) {
    struct kvc_record r, next;
    uint64_t at = KVC_HEADER_SIZE;
    while (at < w->end) {
        if (is_record(w, at, &r)) {
            uint8_t head[2];
            if (kvc_input_copy(w->k->in, at, head, sizeof head, e)) return -1;
            if (!kvc_record_name(r.type) && (head[1] & KVC_RECORD_CRITICAL))
                return kvc_fail(
                    e, KVC_ERR_UNSUPPORTED,
                    "record %" PRIu64
                    " of type %u is critical and unknown to this reader: use a newer kvc",
                    w->k->n_records, r.type);
            if (salvage_append(w, &r, e)) return -1;
            at += r.size;
            continue;
        }
        const uint64_t start = at, index = w->index;
        if (looks_like_record(w, at, &r) &&
            (at + r.size == w->end || is_record(w, at + r.size, &next))) {
            r.doubtful = 1;
            w->survey->gaps = 1;
            if (salvage_append(w, &r, e)) return -1;
            w->index = index; /* the header of a damaged record cannot be trusted */
            at += r.size;
            continue;
        }
        do at += KVC_UNIT;
        while (at < w->end && !is_record(w, at, &next));
        if (at > w->end) at = w->end;
        char reason[160];
        snprintf(reason, sizeof reason,
                 "hold no record that can be read%s; %" PRIu64 " records stand before",
                 at < w->end ? "" : ": the file is cut short there, or damaged up to its end",
                 w->k->n_records);
        w->survey->gaps = 1;
        if (add_bytes(w->survey, "bytes", start, at - start, reason, e)) return -1;
    }
    return 0;
}

/* Forgets the records found so far. */
static void forget(struct kvc_records *k) {
    free(k->record);
    k->record = NULL;
    k->n_records = 0;
}

/* Takes the records from the INDEX at `offset`, the file's last record. Returns 1 if the INDEX does
 * not list them. */
static int follow_index(struct kvc_records *k, uint64_t offset, struct kvc_error *why) {
    uint8_t head[8];
    forget(k);
    if (kvc_input_copy(k->in, offset, head, sizeof head, why)) return 1;
    k->size = offset + (uint64_t)get_u32(head + 4) * KVC_UNIT + KVC_FOOTER_SIZE;
    return kvc_records_index(k, offset, why) ? 1 : 0;
}

/* Fills k->record from a walk, or from the index that the walk found. `end`: the latest end of
 * records. */
static int find_by_walking(struct kvc_records *k, const struct kvc_input *in, uint64_t end,
                           struct kvc_error *e) {
    struct kvc_survey found = {.n = 0};
    struct kvc_error why;
    struct walk w = {.k = k, .survey = &found, .end = end, .budget = HASHED_AT_MOST * in->size};
    forget(k);
    int status = salvage_walk(&w, e);
    struct kvc_record *walked = k->record;
    const uint64_t n = k->n_records;
    k->record = NULL;
    if (!status && w.index && !follow_index(k, w.index, &why)) {
        free(walked);
        if (k->size < in->size)
            status = add_bytes(k->survey, "bytes", k->size, in->size - k->size, "follow the end",
                               e);
    } else {
        forget(k);
        k->record = walked;
        k->n_records = n;
        for (uint64_t i = 0; i < found.n && !status; i++)
            status = add_bytes(k->survey, found.damage[i].kind, found.damage[i].offset,
                               found.damage[i].size, found.damage[i].reason, e);
        /* without footer and index, the records after it are unknown */
        k->survey->gaps = found.gaps || end == in->size;
    }
    for (uint64_t i = 0; i < found.n; i++) {
        free(found.damage[i].place);
        free(found.damage[i].reason);
    }
    free(found.damage);
    k->size = in->size;
    return status;
}

/* Fills k->record, and lists the damage of header, footer and index. */
static int find_records(struct kvc_records *k, const struct kvc_input *in, struct kvc_error *e) {
    struct kvc_error why;
    uint64_t index;
    if (in->size < KVC_HEADER_SIZE + KVC_RECORD_HEADER)
        return kvc_fail(e, KVC_ERR_DAMAGED, "%" PRIu64 " bytes hold no record of a .kvc", in->size);
    if (kvc_records_header(in, &why)) {
        if (why.code == KVC_ERR_UNSUPPORTED) {
            *e = why;
            return -1;
        }
        if (add_frame(k->survey, "header", 0, KVC_HEADER_SIZE, &why, e)) return -1;
    }
    if (kvc_records_footer(in, &index, k->header.content_id, &why)) {
        if (add_frame(k->survey, "footer", in->size - KVC_FOOTER_SIZE, KVC_FOOTER_SIZE, &why, e) ||
            find_by_walking(k, in, in->size, e))
            return -1;
    } else if (kvc_records_index(k, index, &why)) {
        k->survey->records++;
        k->survey->damaged++;
        if (add_frame(k->survey, "INDEX", index, in->size - KVC_FOOTER_SIZE - index, &why, e) ||
            find_by_walking(k, in, index, e))
            return -1;
    }
    for (uint64_t i = 0; i < k->n_records; i++)
        k->n_blocks += k->record[i].type == KVC_RECORD_BLOCK;
    k->most_cells = k->n_blocks * KVC_BLOCK > KVC_SALVAGE_CELLS ? k->n_blocks * KVC_BLOCK
                                                                : KVC_SALVAGE_CELLS;
    return k->n_records ? 0 : kvc_fail(e, KVC_ERR_DAMAGED, "no record of a .kvc can be found");
}

/* --- the contents of records --- */

/* Returns the first record of a type (of one part, if `subject` is not KVC_NONE), preferably one
 * whose header is certain; n_records: there is none. */
static uint64_t salvage_find(const struct kvc_records *k, unsigned type, uint32_t subject) {
    uint64_t found = k->n_records;
    for (uint64_t i = 0; i < k->n_records; i++) {
        if (k->record[i].type != type || k->record[i].subject != subject) continue;
        if (!k->record[i].doubtful) return i;
        if (found == k->n_records) found = i;
    }
    return found;
}

/* Lists why a record could not be used. The record may be missing. */
static int salvage_note(const struct kvc_cache *c, uint64_t i, unsigned type, const char *place,
                        const struct kvc_error *why, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    if (i < k->n_records) return kvc_survey_record(k->survey, c, i, why, e);
    k->survey->records++;
    k->survey->damaged++;
    return kvc_survey_add(k->survey, kvc_record_name(type), place, "is missing", e) ? 0 : -1;
}

/* Finds the only record *i of a type, and the bytes of its only section, which the caller frees.
 * Returns -1 and *why if the record is missing or damaged. */
static int open_single(const struct kvc_records *k, unsigned type, uint8_t section, uint64_t *i,
                       uint8_t **bytes, size_t *n, struct kvc_error *why) {
    *why = (struct kvc_error){.code = KVC_ERR_DAMAGED};
    *bytes = NULL;
    *i = salvage_find(k, type, KVC_NONE);
    if (*i == k->n_records || kvc_records_single(k, *i, section, bytes, n, why)) return -1;
    return 0;
}

/* Notes that metadata are lost: the number of heads of rows with one head, and the first position
 * of token ids, are unknown. */
static int read_meta(struct kvc_cache *c, struct kvc_error *e) {
    struct kvc_records *k = kvc_records_of(c);
    struct kvc_error why;
    uint64_t i;
    uint8_t *bytes;
    size_t n;
    const int status = open_single(k, KVC_RECORD_META, KVC_SECTION_META, &i, &bytes, &n, &why) ||
                       kvc_meta_decode(&c->meta, bytes, n, &why);
    free(bytes);
    if (!status) return 0;
    if (why.code != KVC_ERR_DAMAGED) {
        *e = why;
        return -1;
    }
    k->survey->no_meta = 1;
    kvc_meta_free(&c->meta);
    memset(&c->meta, 0, sizeof c->meta);
    if (salvage_note(c, i, KVC_RECORD_META, "", &why, e)) return -1;
    if (kvc_meta_set_bool(&c->meta, KVC_KEY_LAYERS_KNOWN, 0, e)) return -1;
    return 0;
}

static int read_table(struct kvc_cache *c, struct kvc_error *e) {
    struct kvc_records *k = kvc_records_of(c);
    struct kvc_error why;
    uint64_t i;
    uint8_t *bytes;
    size_t n;
    const int status = open_single(k, KVC_RECORD_TABLE, KVC_SECTION_TABLE, &i, &bytes, &n, &why) ||
                       kvc_reader_table(c, k, bytes, n, &why);
    free(bytes);
    if (!status) return 0;
    if (why.code == KVC_ERR_DAMAGED)
        kvc_fail(&k->survey->unusable, KVC_ERR_DAMAGED,
                 "the TABLE record is damaged, which says what tensors there are: nothing "
                 "can be given back%s%s",
                 *why.message ? ": " : "", why.message);
    else k->survey->unusable = why;
    return salvage_note(c, i, KVC_RECORD_TABLE, "", &why, e);
}

static int read_cells(struct kvc_cache *c, struct kvc_error *e) {
    struct kvc_records *k = kvc_records_of(c);
    if (!(k->lost = calloc(1, (size_t)c->n_parts + 1))) return kvc_fail_memory(e, "parts");
    for (uint32_t part = 0; part < c->n_parts; part++) {
        const uint64_t i = salvage_find(k, KVC_RECORD_CELLS, part);
        struct kvc_cells *cells = &c->part[part].cells;
        struct kvc_error why = {.code = KVC_ERR_DAMAGED};
        if (i < k->n_records && !kvc_reader_cells(c, k, i, &why)) continue;
        char place[32];
        snprintf(place, sizeof place, "part %" PRIu32, part);
        k->lost[part] = 1;
        free(cells->words);
        free(cells->word_at);
        cells->words = NULL;
        cells->word_at = NULL;
        for (uint64_t r = 0; r < cells->n; r++) cells->pos[r] = (int64_t)r;
        if (salvage_note(c, i, KVC_RECORD_CELLS, place, &why, e)) return -1;
    }
    return 0;
}

static void drop_tokens(struct kvc_cache *c) {
    struct kvc_records *k = kvc_records_of(c);
    k->survey->no_tokens = 1;
    free(c->tokens);
    free(c->prefix_keys);
    c->tokens = NULL;
    c->prefix_keys = NULL;
    c->n_tokens = c->n_prefix_keys = 0;
}

static int read_tokens(struct kvc_cache *c, struct kvc_error *e) {
    struct kvc_records *k = kvc_records_of(c);
    const uint64_t i = salvage_find(k, KVC_RECORD_TOKENS, KVC_NONE);
    struct kvc_error why;
    if (i == k->n_records) { /* the record is optional */
        k->survey->no_tokens = k->survey->gaps;
        return 0;
    }
    int status = kvc_reader_tokens(c, k, i, &why);
    /* positions of ids come from the metadata, or from part 0 */
    const int by_rows = c->n_parts && c->part[0].kind == KVC_PART_LIVE && !k->lost[0] &&
                        c->part[0].cells.n == c->n_tokens;
    if (!status && !by_rows && (k->survey->no_meta || (c->n_parts && k->lost[0])))
        status = kvc_fail(&why, KVC_ERR_DAMAGED,
                          "nothing says any more at which positions its ids stand");
    if (!status) return 0;
    drop_tokens(c);
    return salvage_note(c, i, KVC_RECORD_TOKENS, "", &why, e);
}

static int read_source(struct kvc_cache *c, struct kvc_error *e) {
    struct kvc_records *k = kvc_records_of(c);
    struct kvc_error why;
    uint64_t chunks = 0;
    for (uint64_t i = 0; i < k->n_records; i++) {
        if (k->record[i].type != KVC_RECORD_SOURCE) continue;
        chunks++;
        if (!kvc_reader_source(c, k, i, &why)) continue;
        k->survey->no_source = 1; /* the survey checks the chunks that follow */
        if (salvage_note(c, i, KVC_RECORD_SOURCE, "", &why, e)) return -1;
        break;
    }
    if (c->literal_size > k->n_chunks * (uint64_t)KVC_LITERAL_CHUNK || (k->survey->gaps && !chunks))
        k->survey->no_source = 1;
    if (k->survey->no_source) c->n_extents = c->literal_size = 0;
    return 0;
}

/* Notes the records of the blocks that were found. */
static int place_blocks(struct kvc_cache *c, struct kvc_error *e) {
    struct kvc_records *k = kvc_records_of(c);
    uint64_t due;
    if (kvc_reader_count_blocks(c, k, &due, e)) return -1;
    for (uint64_t b = 0; b < due; b++) k->block_record[b] = KVC_NOWHERE;
    for (uint64_t i = 0; i < k->n_records; i++) {
        const struct kvc_record *r = &k->record[i];
        if ((r->type != KVC_RECORD_BLOCK && r->type != KVC_RECORD_SIDE) ||
            r->subject >= c->n_tensors || kvc_survey_lost(c, r->subject))
            continue;
        const int is_block = r->type == KVC_RECORD_BLOCK;
        const uint64_t *first = is_block ? k->first_block : k->first_side;
        if (r->number >= first[r->subject + 1] - first[r->subject]) continue;
        uint64_t *place = (is_block ? k->block_record : k->side_record) + first[r->subject] +
                          r->number;
        if (*place == (is_block ? KVC_NOWHERE : 0) || k->record[*place].doubtful) *place = i;
    }
    return 0;
}

/* Rows with one head may have several, whose number is in the metadata. */
static int forget_heads(struct kvc_cache *c, struct kvc_error *e) {
    int one = 1;
    for (uint32_t t = 0; t < c->n_tensors; t++)
        one &= (c->tensor[t].role != KVC_ROLE_K && c->tensor[t].role != KVC_ROLE_V) ||
               c->tensor[t].shape.heads == 1;
    return one ? kvc_meta_set_bool(&c->meta, KVC_KEY_HEADS_KNOWN, 0, e) : 0;
}

static int read_rest(struct kvc_cache *c, struct kvc_error *e) {
    struct kvc_records *k = kvc_records_of(c);
    if (read_cells(c, e) || read_tokens(c, e)) return -1;
    k->pairing = c->meta.facts.rope.pairing;
    if (read_source(c, e) || kvc_cache_finish(c, e)) return -1;
    if (kvc_records_take_shapes(k, c, e)) return -1;
    if (k->survey->no_meta && forget_heads(c, e)) return -1;
    return place_blocks(c, e);
}

struct kvc_cache *kvc_salvage_open(const struct kvc_input *in, struct kvc_error *e) {
    struct kvc_cache *c = kvc_reader_new(in, e);
    if (!c) return NULL;
    struct kvc_records *k = kvc_records_of(c);
    int status = (k->survey = calloc(1, sizeof *k->survey)) ? 0 : kvc_fail_memory(e, "a survey");
    if (!status) status = find_records(k, in, e);
    if (!status && !(k->survey->noted = calloc(1, (size_t)k->n_records + 1)))
        status = kvc_fail_memory(e, "a survey");
    if (!status) {
        k->survey->records += k->n_records;
        status = read_meta(c, e) || read_table(c, e);
    }
    if (!status && k->survey->unusable.code == KVC_OK) status = read_rest(c, e);
    if (status) {
        kvc_cache_free(c);
        return NULL;
    }
    return c;
}

const struct kvc_error *kvc_salvage_refusal(const struct kvc_cache *c) {
    const struct kvc_records *k = kvc_records_of(c);
    return k->survey && k->survey->unusable.code != KVC_OK ? &k->survey->unusable : NULL;
}
