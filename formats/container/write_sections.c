/* write_sections.c: writes the records of a .kvc that are not blocks: metadata, table, cells,
 * tokens, the source's private bytes. Spec: FORMAT.md 5 and 7. Not for the frame of records
 * (record_write.c). */
#include "formats/container/write_sections.h"

#include "codecs/memory.h"
#include "formats/cache/prefix.h"
#include "formats/container/extents_section.h"
#include "formats/container/offsets.h"
#include "formats/container/record_write.h"

#include <stdlib.h>
#include <string.h>

int kvc_write_meta(struct kvc_record_writer *w, const struct kvc_meta *meta, struct kvc_error *e) {
    uint8_t *bytes;
    size_t n;
    if (kvc_meta_encode(meta, &bytes, &n, e)) return -1;
    int status = kvc_write_simple(w, KVC_RECORD_META, KVC_SECTION_META, bytes, n, e);
    free(bytes);
    return status;
}

static int add_positions(struct kvc_sections *list, const struct kvc_cells *cells,
                         struct kvc_error *e) {
    struct kvc_buffer b = {0};
    struct kvc_sink sink = kvc_sink_buffer(&b);
    int status = 0;
    int64_t expected = 0;
    for (uint64_t i = 0; i < cells->n && !status;) {
        uint8_t run[20];
        uint64_t end = i + 1;
        while (end < cells->n && cells->pos[end] == cells->pos[end - 1] + 1) end++;
        size_t n = put_varint(run, zigzag(cells->pos[i] - expected));
        n += put_varint(run + n, end - i);
        expected = cells->pos[end - 1] + 1;
        i = end;
        status = kvc_sink_write(&sink, run, n, e);
    }
    if (!status)
        status = kvc_record_add(list, KVC_SECTION_POSITIONS, b.data ? b.data : (const uint8_t *)"",
                                b.n, e);
    free(b.data);
    return status;
}

static int add_words(struct kvc_sections *list, const struct kvc_cells *cells,
                     struct kvc_error *e) {
    uint64_t words = cells->word_at[cells->n];
    uint8_t *bytes = kvc_alloc(10 * cells->n + 4 * words, 1), *p = bytes;
    if (!bytes) return kvc_fail_memory(e, "cell words");
    for (uint64_t i = 0; i < cells->n; i++)
        p += put_varint(p, cells->word_at[i + 1] - cells->word_at[i]);
    for (uint64_t i = 0; i < words; i++, p += 4) put_u32(p, cells->words[i]);
    int status = kvc_record_add(list, KVC_SECTION_WORDS, bytes, (size_t)(p - bytes), e);
    free(bytes);
    return status;
}

int kvc_write_cells(struct kvc_record_writer *w, const struct kvc_cache *c, struct kvc_error *e) {
    struct kvc_sections list;
    int status = 0;
    kvc_sections_init(&list);
    for (uint32_t i = 0; i < c->n_parts && !status; i++) {
        const struct kvc_cells *cells = &c->part[i].cells;
        kvc_sections_clear(&list);
        status = add_positions(&list, cells, e);
        if (!status && cells->words) status = add_words(&list, cells, e);
        if (!status) status = kvc_write_record(w, KVC_RECORD_CELLS, i, 0, &list, e);
    }
    kvc_sections_free(&list);
    return status;
}

int kvc_write_tokens(struct kvc_record_writer *w, const struct kvc_cache *c,
                     const struct kvc_pack_options *options, const struct kvc_meta *meta,
                     struct kvc_error *e) {
    struct kvc_prefix prefix;
    /* extras count also where `meta`, of the file, leave them out with the token ids */
    if (kvc_prefix_of(&prefix, meta, e) || kvc_extras_of(&c->meta, &prefix.extras, e)) return -1;
    uint64_t n_keys = kvc_cache_tokens_from(c, prefix.first) / KVC_PREFIX_TOKENS;
    const uint8_t *kept = NULL;
    const struct kvc_cache *keyed = options->keys ? options->keys : c;
    if (!c->tokens && keyed->prefix_keys) {
        kept = keyed->prefix_keys;
        n_keys = keyed->n_prefix_keys;
    }
    if (options->no_keys) n_keys = 0;
    if (!c->tokens && !n_keys) return 0;
    struct kvc_sections list;
    kvc_sections_init(&list);
    uint8_t *ids = kvc_alloc(c->n_tokens, 4), *keys = kvc_alloc(n_keys, KVC_KEY_BYTES);
    int status = ids && keys ? 0 : kvc_fail_memory(e, "tokens");
    if (!status && kept) memcpy(keys, kept, (size_t)n_keys * KVC_KEY_BYTES);
    if (!status && c->tokens) {
        for (uint64_t i = 0; i < c->n_tokens; i++) put_u32(ids + 4 * i, (uint32_t)c->tokens[i]);
        if (!options->no_tokens)
            status = kvc_record_add(&list, KVC_SECTION_TOKENS, ids, (size_t)(4 * c->n_tokens), e);
        if (!status)
            status = kvc_prefix_keys(&prefix, c->tokens, n_keys * KVC_PREFIX_TOKENS, keys, e);
    }
    if (!status && n_keys)
        status = kvc_record_add(&list, KVC_SECTION_KEYS, keys, (size_t)n_keys * KVC_KEY_BYTES, e);
    if (!status && list.count)
        status = kvc_write_record(w, KVC_RECORD_TOKENS, KVC_NONE, 0, &list, e);
    free(ids);
    free(keys);
    kvc_sections_free(&list);
    return status;
}

int kvc_write_source(struct kvc_record_writer *w, const struct kvc_cache *c, struct kvc_error *e) {
    if (!c->n_extents) return 0;
    struct kvc_sections list;
    struct kvc_buffer extents = {0};
    uint8_t *chunk = malloc(KVC_LITERAL_CHUNK);
    kvc_sections_init(&list);
    int status = chunk ? kvc_extents_write(c, &extents, e) : kvc_fail_memory(e, "private bytes");
    if (!status) status = kvc_record_add(&list, KVC_SECTION_EXTENTS, extents.data, extents.n, e);
    uint64_t at = 0;
    for (uint32_t number = 0; !status && (number == 0 || at < c->literal_size); number++) {
        uint64_t left = c->literal_size - at,
                 n = left < KVC_LITERAL_CHUNK ? left : KVC_LITERAL_CHUNK;
        if (n)
            status = c->read_literal(c, at, n, chunk, e) ||
                     kvc_record_add(&list, KVC_SECTION_LITERALS, chunk, (size_t)n, e);
        if (!status) status = kvc_write_record(w, KVC_RECORD_SOURCE, KVC_NONE, number, &list, e);
        at += n;
        kvc_sections_clear(&list);
    }
    free(chunk);
    free(extents.data);
    kvc_sections_free(&list);
    return status ? -1 : 0;
}
