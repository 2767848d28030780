/* reader.c: opens a .kvc container as a cache: cells, tokens, source, and the order of records. Not
 * for the frame of records (records.c), the table (table.c) or blocks (blocks.c). Spec:
 * FORMAT.md 4, 5 and 7. */
#include "formats/container/records.h"

#include "codecs/memory.h"
#include "codecs/registry.h"
#include "formats/cache/keys.h"
#include "formats/io/control_group.h"
#include "formats/container/decoded.h"
#include "formats/container/extents_section.h"
#include "formats/container/inputs.h"
#include "formats/container/offsets.h"
#include "formats/cache/prefix_space.h"
#include "formats/container/salvage.h"
#include "formats/cache/view.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int read_positions(struct kvc_cells *cells, const uint8_t *p, size_t n,
                          struct kvc_error *e) {
    const uint8_t *end = p + n;
    uint64_t at = 0;
    int64_t expected = 0;
    while (at < cells->n) {
        uint64_t step, length;
        int64_t first, last;
        if (get_varint(&p, end, &step) || get_varint(&p, end, &length) || !length ||
            length > cells->n - at || __builtin_add_overflow(expected, unzigzag(step), &first) ||
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
    cells->word_at = kvc_alloc(cells->n + 1, sizeof *cells->word_at);
    if (!cells->word_at) return kvc_fail_memory(e, "cell words");
    for (uint64_t i = 0; i < cells->n; i++) {
        uint64_t count;
        if (get_varint(&p, end, &count) || count > n)
            return kvc_fail(e, KVC_ERR_DAMAGED, "cell words are cut short");
        cells->word_at[i] = total;
        total += count;
    }
    cells->word_at[cells->n] = total;
    if ((uint64_t)(end - p) % 4 || total != (uint64_t)(end - p) / 4)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "cell words: %" PRIu64 " are announced, %zu bytes follow", total,
                        (size_t)(end - p));
    cells->words = kvc_alloc(total, sizeof *cells->words);
    if (!cells->words) return kvc_fail_memory(e, "cell words");
    for (uint64_t i = 0; i < total; i++, p += 4) cells->words[i] = get_u32(p);
    return 0;
}

int kvc_reader_cells(struct kvc_cache *c, struct kvc_records *k, uint64_t i, struct kvc_error *e) {
    struct kvc_section *list;
    unsigned n;
    if (k->record[i].subject >= c->n_parts)
        return kvc_fail(e, KVC_ERR_DAMAGED, "CELLS of a part that does not exist");
    struct kvc_cells *cells = &c->part[k->record[i].subject].cells;
    if (kvc_records_sections(k, i, &list, &n, e)) return -1;
    int status = n >= 1 && n <= 2 && list[0].type == KVC_SECTION_POSITIONS &&
                         (n == 1 || list[1].type == KVC_SECTION_WORDS)
                     ? 0
                     : kvc_fail(e, KVC_ERR_DAMAGED, "needs POSITIONS, and may have WORDS after it");
    for (unsigned s = 0; s < n && !status; s++) {
        uint8_t *bytes;
        size_t size;
        status = kvc_records_decode(&list[s], &bytes, &size, e);
        if (!status) {
            status = s ? read_words(cells, bytes, size, e) : read_positions(cells, bytes, size, e);
            free(bytes);
        }
        if (status) kvc_record_section(e, s);
    }
    kvc_records_release(k, i, list);
    return status;
}

int kvc_reader_tokens(struct kvc_cache *c, struct kvc_records *k, uint64_t i, struct kvc_error *e) {
    struct kvc_section *list;
    unsigned n;
    if (kvc_records_sections(k, i, &list, &n, e)) return -1;
    unsigned ids = n && list[0].type == KVC_SECTION_TOKENS,
             keys = n > ids && list[ids].type == KVC_SECTION_KEYS;
    int status = n && n == ids + keys
                     ? 0
                     : kvc_fail(e, KVC_ERR_DAMAGED, "needs TOKENS, KEYS, or both in this order");
    for (unsigned s = 0; s < n && !status; s++) {
        uint8_t *bytes;
        size_t size, unit = s < ids ? 4 : KVC_KEY_BYTES;
        status = kvc_records_decode(&list[s], &bytes, &size, e) ? kvc_record_section(e, s) : 0;
        if (status) break;
        if (size % unit) {
            status = kvc_fail(e, KVC_ERR_DAMAGED, "%zu bytes are no whole number of tokens or keys",
                              size);
            kvc_record_section(e, s);
        } else if (s < ids) {
            int32_t *tokens = malloc(size ? size : 1);
            if (!tokens) status = kvc_fail_memory(e, "tokens");
            for (size_t t = 0; tokens && t < size / 4; t++)
                tokens[t] = (int32_t)get_u32(bytes + 4 * t);
            c->tokens = tokens;
            c->n_tokens = tokens ? size / 4 : 0;
        } else if (!size) {
            status = kvc_fail(e, KVC_ERR_DAMAGED, "a section KEYS without keys");
            kvc_record_section(e, s);
        } else {
            c->prefix_keys = bytes;
            c->n_prefix_keys = size / unit;
            bytes = NULL;
        }
        free(bytes);
    }
    kvc_records_release(k, i, list);
    return status;
}

/* Returns the maximum number of literal bytes that the SOURCE records can hold. */
static uint64_t most_literals(const struct kvc_records *k) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < k->n_records; i++) n += k->record[i].type == KVC_RECORD_SOURCE;
    return n * KVC_LITERAL_CHUNK;
}

/* Reads the EXTENTS of chunk 0. Literals are only measured here, and decoded on demand. */
int kvc_reader_source(struct kvc_cache *c, struct kvc_records *k, uint64_t i, struct kvc_error *e) {
    struct kvc_section *list;
    unsigned n;
    uint32_t number = k->record[i].number;
    if (number != k->n_chunks)
        return kvc_fail(e, KVC_ERR_DAMAGED, "SOURCE chunk %" PRIu32 " is out of order", number);
    uint64_t *grown = kvc_realloc(k->chunk, k->n_chunks + 1, sizeof *grown);
    if (!grown) return kvc_fail_memory(e, "chunks");
    k->chunk = grown;
    k->chunk[k->n_chunks++] = i;
    if (kvc_records_sections(k, i, &list, &n, e)) return -1;
    int status = 0;
    unsigned s = 0;
    if (!number) {
        uint8_t *bytes;
        size_t size;
        if (n && list[0].type == KVC_SECTION_EXTENTS)
            status = kvc_records_decode(&list[0], &bytes, &size, e);
        else status = kvc_fail(e, KVC_ERR_DAMAGED, "chunk 0 has no EXTENTS");
        if (!status) {
            status = kvc_extents_read(c, bytes, size, most_literals(k), e);
            free(bytes);
        }
        if (status && n) kvc_record_section(e, 0);
        s = 1;
    }
    if (!status) {
        uint64_t before = (uint64_t)number * KVC_LITERAL_CHUNK;
        uint64_t due = c->literal_size <= before                      ? 0
                       : c->literal_size - before < KVC_LITERAL_CHUNK ? c->literal_size - before
                                                                      : KVC_LITERAL_CHUNK;
        if ((number && !due) || n != s + (due != 0) ||
            (due && (list[s].type != KVC_SECTION_LITERALS || list[s].raw_size != due ||
                     list[s].stage != KVC_NO_STAGE || list[s].index)))
            status = kvc_fail(e, KVC_ERR_DAMAGED, "chunk %" PRIu32 " does not hold its LITERALS",
                              number);
    }
    kvc_records_release(k, i, list);
    return status;
}

/* --- literal bytes of the source --- */

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

static int read_literal(const struct kvc_cache *c, uint64_t offset, uint64_t n, uint8_t *dst,
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

/* --- blocks --- */

static uint64_t segments_of(const struct kvc_cache *c, uint32_t tensor) {
    return (kvc_tensor_cells(c, tensor)->n_blocks + KVC_SEGMENT_BLOCKS - 1) / KVC_SEGMENT_BLOCKS;
}

int kvc_reader_count_blocks(struct kvc_cache *c, struct kvc_records *k, uint64_t *due,
                            struct kvc_error *e) {
    uint64_t segments = 0;
    *due = 0;
    k->first_block = kvc_alloc((size_t)c->n_tensors + 1, sizeof *k->first_block);
    k->first_side = kvc_alloc((size_t)c->n_tensors + 1, sizeof *k->first_side);
    if (!k->first_block || !k->first_side) return kvc_fail_memory(e, "blocks");
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        k->first_block[t] = *due;
        k->first_side[t] = segments;
        *due += kvc_tensor_cells(c, t)->n_blocks;
        segments += segments_of(c, t);
    }
    k->first_block[c->n_tensors] = *due;
    k->first_side[c->n_tensors] = segments;
    if (k->survey ? *due > KVC_SALVAGE_BLOCKS && *due > k->n_blocks : *due != k->n_blocks)
        return kvc_fail(e, KVC_ERR_DAMAGED, "%" PRIu64 " blocks are due, %" PRIu64 " are there",
                        *due, k->n_blocks);
    k->block_record = kvc_alloc(*due + 1, sizeof *k->block_record);
    k->side_record = kvc_alloc_zeros(segments + 1, sizeof *k->side_record);
    return k->block_record && k->side_record ? 0 : kvc_fail_memory(e, "blocks");
}

/* Checks that the BLOCK records are exactly the blocks of all tensors, in order, with a segment's
 * side data before its first block, and notes their records. */
static int place_blocks(struct kvc_cache *c, struct kvc_records *k, uint64_t i,
                        struct kvc_error *e) {
    uint64_t due;
    if (kvc_reader_count_blocks(c, k, &due, e)) return -1;
    uint32_t tensor = 0;
    uint64_t placed = 0;
    for (; i < k->n_records; i++) {
        const struct kvc_record *r = &k->record[i];
        if (!kvc_record_name(r->type) || !kvc_record_is_critical(r->type)) continue;
        if (r->type == KVC_RECORD_INDEX && i + 1 == k->n_records) continue;
        while (tensor < c->n_tensors && placed == k->first_block[tensor + 1]) tensor++;
        if (tensor < c->n_tensors && r->subject == tensor) {
            const uint64_t block = placed - k->first_block[tensor];
            uint64_t *side = &k->side_record[k->first_side[tensor] + block / KVC_SEGMENT_BLOCKS];
            if (r->type == KVC_RECORD_BLOCK && r->number == block) {
                k->block_record[placed++] = i;
                continue;
            }
            if (r->type == KVC_RECORD_SIDE && block % KVC_SEGMENT_BLOCKS == 0 && !*side &&
                r->number == block / KVC_SEGMENT_BLOCKS) {
                *side = i;
                continue;
            }
        }
        kvc_record_damaged(e, r->offset, "is not the record due here");
        return kvc_record_context(e, i, kvc_record_name(r->type));
    }
    return placed == due ? 0 : kvc_fail(e, KVC_ERR_DAMAGED, "blocks are missing");
}

/* Returns the first record from i on that is neither padding nor skippable. */
static uint64_t skip(const struct kvc_records *k, uint64_t i) {
    while (i < k->n_records &&
           (!kvc_record_name(k->record[i].type) || !kvc_record_is_critical(k->record[i].type)))
        i++;
    return i;
}

/* Checks that a file that names a profile has at most one PROFILE record, before its rows. */
static int check_profiles(const struct kvc_cache *c, const struct kvc_records *k,
                          struct kvc_error *e) {
    int rows = 0, profiles = 0;
    for (uint64_t i = 0; c->meta.facts.profile && i < k->n_records; i++) {
        const unsigned type = k->record[i].type;
        rows |= type == KVC_RECORD_SIDE || type == KVC_RECORD_BLOCK;
        if (type != KVC_RECORD_PROFILE || (!rows && !profiles++)) continue;
        kvc_record_damaged(e, k->record[i].offset,
                           rows ? "stands behind rows" : "is the second of its type");
        return kvc_record_context(e, i, "PROFILE");
    }
    return 0;
}

static int expect(const struct kvc_records *k, uint64_t i, unsigned type, struct kvc_error *e) {
    if (i < k->n_records && k->record[i].type == type) return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED, "record %" PRIu64 " is not the %s record due there", i,
                    kvc_record_name(type));
}

/* Notes whether the namespace follows from the facts. It decides nothing, so only a check of the
 * whole file reports it; now the metadata are those of the file. */
static int compare_space(const struct kvc_cache *c, struct kvc_records *k, struct kvc_error *e) {
    const struct kvc_meta_entry *m = kvc_meta_find(&c->meta, KVC_KEY_PREFIX_SPACE);
    const struct kvc_space space = {.lossless = kvc_container_lossless(c)};
    uint8_t hash[KVC_KEY_BYTES];
    struct kvc_error why;
    if (!m) return 0;
    for (uint32_t i = 0; i < k->n_pipelines; i++)
        if (k->pipeline[i].step[0].stage == &kvc_stage_unknown) return 0; /* lossless, or not */
    if (kvc_prefix_space(c, &c->meta, &space, hash, &why)) {
        k->other_space = 1; /* such facts have no namespace */
        if (why.code != KVC_ERR_MEMORY) return 0;
        return kvc_fail_memory(e, "a namespace");
    }
    k->other_space = m->type != KVC_META_BYTES || m->size != sizeof hash ||
                     memcmp(m->value, hash, sizeof hash) != 0;
    return 0;
}

static int read_all(struct kvc_cache *c, struct kvc_records *k, struct kvc_error *e) {
    uint8_t *bytes;
    size_t n;
    uint64_t i = skip(k, 0);
    if (expect(k, i, KVC_RECORD_META, e) ||
        kvc_records_single(k, i, KVC_SECTION_META, &bytes, &n, e))
        return -1;
    int status = kvc_meta_decode(&c->meta, bytes, n, e);
    free(bytes);
    if (status) return kvc_record_context(e, i, "META");
    if (check_profiles(c, k, e)) return -1;
    i = skip(k, i + 1);
    if (expect(k, i, KVC_RECORD_TABLE, e) ||
        kvc_records_single(k, i, KVC_SECTION_TABLE, &bytes, &n, e))
        return -1;
    status = kvc_reader_table(c, k, bytes, n, e);
    free(bytes);
    if (status) return kvc_record_context(e, i, "TABLE");
    for (uint32_t part = 0; part < c->n_parts; part++) {
        i = skip(k, i + 1);
        if (expect(k, i, KVC_RECORD_CELLS, e)) return -1;
        if (k->record[i].subject != part) {
            kvc_record_damaged(e, k->record[i].offset, "cells of another part");
            return kvc_record_context(e, i, "CELLS");
        }
        if (kvc_reader_cells(c, k, i, e)) return kvc_record_context(e, i, "CELLS");
    }
    i = skip(k, i + 1);
    if (i < k->n_records && k->record[i].type == KVC_RECORD_TOKENS) {
        if (kvc_reader_tokens(c, k, i, e)) return kvc_record_context(e, i, "TOKENS");
        i = skip(k, i + 1);
    }
    k->pairing = c->meta.facts.rope.pairing;
    for (; i < k->n_records && k->record[i].type == KVC_RECORD_SOURCE; i = skip(k, i + 1))
        if (kvc_reader_source(c, k, i, e)) return kvc_record_context(e, i, "SOURCE");
    if (c->literal_size > k->n_chunks * (uint64_t)KVC_LITERAL_CHUNK)
        return kvc_fail(e, KVC_ERR_DAMAGED, "literal bytes of the source file are missing");
    if (kvc_cache_finish(c, e)) return -1;
    if (kvc_records_take_shapes(k, c, e)) return -1;
    if (kvc_prefix_check(c, e) || compare_space(c, k, e)) return -1;
    return place_blocks(c, k, i, e);
}

static void container_close(struct kvc_cache *c) {
    struct kvc_records *k = kvc_records_of(c);
    if (!k) return;
    for (uint32_t i = 0; i < k->n_pipelines; i++) free(k->pipeline_text[i]);
    free(k->pipeline_text);
    free(k->pipeline);
    free(k->pipeline_of);
    for (uint32_t i = 0; i < k->n_angles; i++) free(k->angles[i]);
    free(k->angles);
    free(k->turn);
    free(k->shape);
    free(k->before);
    free(k->record);
    free(k->first_block);
    free(k->block_record);
    free(k->first_side);
    free(k->side_record);
    free(k->chunk);
    free(k->lost);
    kvc_survey_free(k->survey);
    kvc_profile_free(k->profile);
    kvc_projections_free(&k->projections);
    kvc_decoded_free(k->rows);
    kvc_decoded_free(k->inputs);
    pthread_mutex_destroy(&k->literal_lock);
    free(k->literal);
    free(k);
    c->impl = NULL;
}

struct kvc_cache *kvc_reader_new(const struct kvc_input *in, struct kvc_error *e) {
    struct kvc_cache *c = kvc_cache_new(e);
    struct kvc_records *k = calloc(1, sizeof *k);
    if (!c || !k || kvc_projections_init(&k->projections, NULL, e)) {
        if (c && !k) kvc_fail_memory(e, "a container");
        kvc_cache_free(c);
        free(k);
        return NULL;
    }
    k->rows = kvc_decoded_new(0, 1, e);
    k->inputs = kvc_decoded_new(0, 0, e);
    if (!k->rows || !k->inputs) {
        kvc_decoded_free(k->rows);
        kvc_decoded_free(k->inputs);
        kvc_projections_free(&k->projections);
        kvc_cache_free(c);
        free(k);
        return NULL;
    }
    kvc_fail(&k->no_profile, KVC_ERR_OTHER_MODEL,
             "packed with a profile, which was not looked for");
    pthread_mutex_init(&k->literal_lock, NULL); /* cannot fail */
    k->in = in;
    k->size = in->size;
    uint8_t head[KVC_HEADER_SIZE] = {0};
    /* kvc_records_header() has checked it, except in a damaged file */
    if (in->size >= sizeof head) kvc_input_copy(in, 0, head, sizeof head, NULL);
    k->header = (struct kvc_container_header){.write_version = get_u16(head + 8),
                                              .read_version = get_u16(head + 10),
                                              .align = 1u << (head[12] & 31),
                                              .writers = get_u32(head + 20)};
    c->kind = kvc_records_kind;
    c->impl = k;
    c->close = container_close;
    c->read = kvc_blocks_read;
    c->threads = kvc_decode_memory_threads;
    kvc_container_set_memory(c, 0);
    c->read_literal = read_literal;
    return c;
}

struct kvc_cache *kvc_container_open(const struct kvc_input *in, struct kvc_error *e) {
    uint64_t index = 0;
    uint8_t id[KVC_CONTENT_ID];
    if (kvc_records_frame(in, &index, id, e)) return NULL;
    struct kvc_cache *c = kvc_reader_new(in, e);
    if (!c) return NULL;
    struct kvc_records *k = c->impl;
    memcpy(k->header.content_id, id, sizeof id);
    memcpy(c->meta.content, id, sizeof id);
    int status = kvc_records_index(k, index, e);
    for (uint64_t i = 0; !status && i < k->n_records; i++)
        k->n_blocks += k->record[i].type == KVC_RECORD_BLOCK;
    k->most_cells = KVC_BLOCK * k->n_blocks;
    if (!status) status = read_all(c, k, e);
    if (status) {
        kvc_cache_free(c);
        return NULL;
    }
    return c;
}

void kvc_container_set_memory(struct kvc_cache *c, uint64_t bytes) {
    struct kvc_records *k = kvc_records_of(c);
    if (!k) return;
    k->max_memory = bytes ? bytes : kvc_memory_limit() / 4;
    const uint64_t kept = kvc_decode_memory_kept(c);
    kvc_decoded_set_bytes(k->rows, kept);
    kvc_decoded_set_bytes(k->inputs, kept < KVC_INPUTS_BYTES ? kept : KVC_INPUTS_BYTES);
}
