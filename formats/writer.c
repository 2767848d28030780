/* writer.c: writes a cache as a .kvc container. Spec: FORMAT.md. Not for engine files.
 *
 * Tensors are encoded in runs of blocks by several threads, each run into finished records in memory; the calling
 * thread writes the runs in order. So the bytes do not depend on the number of threads. */
#include "formats/container.h"
#include "formats/keys.h"
#include "formats/layout.h"
#include "formats/parallel.h"
#include "formats/prefix.h"
#include "formats/same.h"
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_RECIPE "split"

enum {
    RUN_BLOCKS = 16, /* blocks encoded as one item of work: at most 4096 rows */
    META_LEVEL = 3   /* zstd level of the container's own sections, which are small */
};

struct entry {
    uint8_t type;
    uint32_t subject, number;
    uint64_t size;
};

struct writer {
    const struct kvc_cache *cache;
    const struct kvc_pack_options *options;
    struct kvc_sink *out;
    uint64_t start; /* sink offset of the file's first byte */
    struct entry *entry;
    uint64_t n_entries, capacity;
    uint64_t extent;  /* file offset where the current extent of BLOCK records began; 0: none yet */
    struct kvc_pipeline *pipeline; /* distinct ones */
    uint32_t n_pipelines;
    uint32_t *pipeline_of; /* by tensor */
    uint32_t *first_run;   /* by tensor: number of its first run; n_tensors + 1 entries */
    struct kvc_pack_report report;
    uint64_t done; /* tensor bytes written so far */
};

/* --- records --- */

static void section_to_directory(uint8_t *p, const struct kvc_section *s) {
    p[0] = s->type;
    p[1] = s->coder;
    p[2] = s->stage;
    p[3] = s->index;
    put_u32(p + 4, s->size);
    put_u64(p + 8, s->raw_size);
}

/* Appends one finished record to the buffer. */
static int build_record(struct kvc_buffer *buffer, uint8_t type, uint32_t subject, uint32_t number, uint64_t digest,
                        struct kvc_sections *list, struct kvc_error *e) {
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
    header[1] = KVC_RECORD_CRITICAL;
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

static int note_entry(struct writer *w, struct entry entry, struct kvc_error *e) {
    if (w->n_entries == w->capacity) {
        uint64_t capacity = w->capacity ? 2 * w->capacity : 64;
        struct entry *grown = realloc(w->entry, (size_t)capacity * sizeof *grown);
        if (!grown) return kvc_fail_memory(e, "the index");
        w->entry = grown;
        w->capacity = capacity;
    }
    w->entry[w->n_entries++] = entry;
    return 0;
}

static uint64_t file_offset(const struct writer *w) {
    return w->out->offset - w->start;
}

/* Writes the records that `bytes` holds back to back and notes them for the index. */
static int write_records(struct writer *w, const uint8_t *bytes, size_t n, struct kvc_error *e) {
    for (size_t at = 0; at < n;) {
        const uint8_t *p = bytes + at;
        uint64_t size = (uint64_t)get_u32(p + 4) * KVC_UNIT;
        if (note_entry(w, (struct entry){p[0], get_u32(p + 8), get_u32(p + 12), size}, e)) return -1;
        w->report.records++;
        w->report.sections += get_u16(p + 2);
        if (kvc_sink_write(w->out, p, (size_t)size, e)) return -1;
        at += (size_t)size;
    }
    return 0;
}

static int write_record(struct writer *w, uint8_t type, uint32_t subject, uint32_t number, struct kvc_sections *list,
                        struct kvc_error *e) {
    struct kvc_buffer buffer = {0};
    int status = build_record(&buffer, type, subject, number, 0, list, e) ||
                 write_records(w, buffer.data, buffer.n, e);
    free(buffer.data);
    return status ? -1 : 0;
}

/* Starts a new extent where the last one is long enough, padding up to the alignment. */
static int align_extent(struct writer *w, struct kvc_error *e) {
    uint64_t align = w->options->align, at = file_offset(w);
    if (align <= KVC_UNIT || (w->extent && at - w->extent < KVC_EXTENT_BYTES)) return 0;
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
        int status = write_records(w, bytes, (size_t)gap, e);
        free(bytes);
        if (status) return -1;
    }
    w->extent = file_offset(w);
    return 0;
}

/* --- the container's own sections --- */

static int add_own(struct kvc_sections *list, uint8_t type, const uint8_t *bytes, size_t n, struct kvc_error *e) {
    if (kvc_sections_add(list, type, KVC_NO_STAGE, 0, bytes, n, META_LEVEL, e)) return -1;
    struct kvc_section *s = &list->section[list->count - 1];
    if (s->coder == KVC_CODER_STORE || n <= kvc_section_limit(s->size)) return 0;
    /* Compresses better than a reader may believe: take it back and store it. */
    list->used -= s->size;
    list->count--;
    return kvc_sections_add(list, type, KVC_NO_STAGE, 0, bytes, n, 0, e);
}

/* One record of one section. */
static int write_simple(struct writer *w, uint8_t record, uint8_t section, const uint8_t *bytes, size_t n,
                        struct kvc_error *e) {
    struct kvc_sections list;
    kvc_sections_init(&list);
    int status = add_own(&list, section, bytes, n, e) || write_record(w, record, KVC_NONE, 0, &list, e);
    kvc_sections_free(&list);
    return status ? -1 : 0;
}

static int write_meta(struct writer *w, const struct kvc_meta *meta, struct kvc_error *e) {
    uint8_t *bytes;
    size_t n;
    if (kvc_meta_encode(meta, &bytes, &n, e)) return -1;
    int status = write_simple(w, KVC_RECORD_META, KVC_SECTION_META, bytes, n, e);
    free(bytes);
    return status;
}

static int write_table(struct writer *w, struct kvc_error *e) {
    const struct kvc_cache *c = w->cache;
    size_t n = 16 + (size_t)c->n_parts * KVC_PART_ENTRY + (size_t)c->n_layers * KVC_LAYER_ENTRY +
               (size_t)c->n_tensors * KVC_TENSOR_ENTRY + (size_t)w->n_pipelines * (1 + (KVC_MAX_STAGES + 1) * 258);
    uint8_t *bytes = calloc(1, n), *p = bytes;
    if (!bytes) return kvc_fail_memory(e, "the table of tensors");
    put_u32(p, c->n_parts);
    put_u32(p + 4, c->n_layers);
    put_u32(p + 8, c->n_tensors);
    put_u32(p + 12, w->n_pipelines);
    p += 16;
    for (uint32_t i = 0; i < c->n_parts; i++, p += KVC_PART_ENTRY) {
        p[0] = (uint8_t)c->part[i].kind;
        put_u32(p + 4, c->part[i].stream);
        put_u32(p + 8, c->part[i].checkpoint);
        put_u64(p + 16, c->part[i].cells.n);
    }
    for (uint32_t i = 0; i < c->n_layers; i++, p += KVC_LAYER_ENTRY) {
        put_u32(p, c->layer[i].part);
        put_u32(p + 4, c->layer[i].index);
        p[8] = (uint8_t)c->layer[i].kind;
        put_u32(p + 12, c->layer[i].window);
    }
    for (uint32_t i = 0; i < c->n_tensors; i++, p += KVC_TENSOR_ENTRY) {
        const struct kvc_tensor *t = &c->tensor[i];
        put_u32(p, t->layer);
        p[4] = (uint8_t)t->role;
        p[5] = (uint8_t)t->shape.dtype;
        put_u16(p + 6, (uint16_t)w->pipeline_of[i]);
        put_u64(p + 8, t->shape.heads);
        put_u64(p + 16, t->shape.dim);
        put_u64(p + 24, t->source.token);
        put_u64(p + 32, t->source.head);
        put_u64(p + 40, t->source.block);
        put_u64(p + 48, t->source_size);
    }
    for (uint32_t i = 0; i < w->n_pipelines; i++) {
        const struct kvc_pipeline *line = &w->pipeline[i];
        *p++ = (uint8_t)line->n;
        for (unsigned s = 0; s < line->n; s++) {
            char text[256];
            line->step[s].stage->print(&line->step[s].args, text, sizeof text);
            size_t size = strlen(text);
            put_u16(p, line->step[s].stage->id);
            p[2] = (uint8_t)size;
            memcpy(p + 3, text, size);
            p += 3 + size;
        }
    }
    int status = write_simple(w, KVC_RECORD_TABLE, KVC_SECTION_TABLE, bytes, (size_t)(p - bytes), e);
    free(bytes);
    return status;
}

static int add_positions(struct kvc_sections *list, const struct kvc_cells *cells, struct kvc_error *e) {
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
    if (!status) status = add_own(list, KVC_SECTION_POSITIONS, b.data ? b.data : (const uint8_t *)"", b.n, e);
    free(b.data);
    return status;
}

static int add_words(struct kvc_sections *list, const struct kvc_cells *cells, struct kvc_error *e) {
    uint64_t words = cells->word_at[cells->n];
    uint8_t *bytes = malloc((size_t)(10 * cells->n + 4 * words + 1)), *p = bytes;
    if (!bytes) return kvc_fail_memory(e, "cell words");
    for (uint64_t i = 0; i < cells->n; i++) p += put_varint(p, cells->word_at[i + 1] - cells->word_at[i]);
    for (uint64_t i = 0; i < words; i++, p += 4) put_u32(p, cells->words[i]);
    int status = add_own(list, KVC_SECTION_WORDS, bytes, (size_t)(p - bytes), e);
    free(bytes);
    return status;
}

static int write_cells(struct writer *w, struct kvc_error *e) {
    struct kvc_sections list;
    int status = 0;
    kvc_sections_init(&list);
    for (uint32_t i = 0; i < w->cache->n_parts && !status; i++) {
        const struct kvc_cells *cells = &w->cache->part[i].cells;
        kvc_sections_clear(&list);
        status = add_positions(&list, cells, e);
        if (!status && cells->words) status = add_words(&list, cells, e);
        if (!status) status = write_record(w, KVC_RECORD_CELLS, i, 0, &list, e);
    }
    kvc_sections_free(&list);
    return status;
}

/* Token ids and prefix keys; of a .kvc packed again without ids, the keys it came with. */
static int write_tokens(struct writer *w, const struct kvc_meta *meta, struct kvc_error *e) {
    const struct kvc_cache *c = w->cache;
    uint64_t n_keys = kvc_cache_prefix_tokens(c) / KVC_PREFIX_TOKENS;
    const uint8_t *kept = NULL;
    if (!c->tokens && kvc_cache_is_container(c)) kept = kvc_container_keys(c, &n_keys);
    if (!c->tokens && !n_keys) return 0;
    struct kvc_sections list;
    kvc_sections_init(&list);
    uint8_t *ids = malloc((size_t)(4 * c->n_tokens + 1)), *keys = malloc((size_t)(KVC_KEY_BYTES * n_keys + 1));
    int status = ids && keys ? 0 : kvc_fail_memory(e, "tokens");
    if (!status && kept) memcpy(keys, kept, (size_t)n_keys * KVC_KEY_BYTES);
    if (!status && c->tokens) {
        for (uint64_t i = 0; i < c->n_tokens; i++) put_u32(ids + 4 * i, (uint32_t)c->tokens[i]);
        if (!w->options->no_tokens) status = add_own(&list, KVC_SECTION_TOKENS, ids, (size_t)(4 * c->n_tokens), e);
        if (!status && n_keys)
            status = kvc_prefix_keys(kvc_meta_text(meta, KVC_KEY_PREFIX_IDENTITY, ""), c->tokens, n_keys * KVC_PREFIX_TOKENS,
                                     keys, e);
    }
    if (!status && n_keys) status = add_own(&list, KVC_SECTION_KEYS, keys, (size_t)n_keys * KVC_KEY_BYTES, e);
    if (!status && list.count) status = write_record(w, KVC_RECORD_TOKENS, KVC_NONE, 0, &list, e);
    free(ids);
    free(keys);
    kvc_sections_free(&list);
    return status;
}

static int write_source(struct writer *w, struct kvc_error *e) {
    const struct kvc_cache *c = w->cache;
    /* the source's private bytes hold the token ids as well */
    if (!c->n_extents || w->options->no_tokens) return 0;
    struct kvc_sections list;
    struct kvc_buffer extents = {0};
    struct kvc_sink sink = kvc_sink_buffer(&extents);
    uint8_t varint[20], *chunk = malloc(KVC_LITERAL_CHUNK);
    kvc_sections_init(&list);
    int status = chunk ? 0 : kvc_fail_memory(e, "private bytes");
    if (!status) status = kvc_sink_write(&sink, varint, put_varint(varint, c->n_extents), e);
    for (uint64_t i = 0; i < c->n_extents && !status; i++) {
        size_t n = put_varint(varint, c->extent[i].tensor == KVC_NONE ? 0 : (uint64_t)c->extent[i].tensor + 1);
        if (c->extent[i].tensor == KVC_NONE) n += put_varint(varint + n, c->extent[i].size);
        status = kvc_sink_write(&sink, varint, n, e);
    }
    if (!status) status = add_own(&list, KVC_SECTION_EXTENTS, extents.data, extents.n, e);
    uint64_t at = 0;
    for (uint32_t number = 0; !status && (number == 0 || at < c->literal_size); number++) {
        uint64_t left = c->literal_size - at, n = left < KVC_LITERAL_CHUNK ? left : KVC_LITERAL_CHUNK;
        if (n) status = c->read_literal(c, at, n, chunk, e) || add_own(&list, KVC_SECTION_LITERALS, chunk, (size_t)n, e);
        if (!status) status = write_record(w, KVC_RECORD_SOURCE, KVC_NONE, number, &list, e);
        at += n;
        kvc_sections_clear(&list);
    }
    free(chunk);
    free(extents.data);
    kvc_sections_free(&list);
    return status ? -1 : 0;
}

/* Adds the SAME section for the rows found, if any. */
static int add_same(struct kvc_sections *list, const struct kvc_same *from, uint64_t n, struct kvc_error *e) {
    uint8_t bytes[KVC_BLOCK * KVC_SAME_ENTRY];
    size_t used = 0;
    for (uint64_t i = 0; i < n;) {
        if (from[i].tensor == KVC_NONE) {
            i++;
            continue;
        }
        struct kvc_same run = from[i];
        for (i++; i < n && from[i].tensor == run.tensor && from[i].block == run.block &&
                  from[i].there == run.there + run.count; i++)
            run.count++;
        uint8_t *p = bytes + used;
        put_u32(p, run.row);
        put_u32(p + 4, run.count);
        put_u32(p + 8, run.tensor);
        put_u32(p + 12, run.block);
        put_u32(p + 16, run.there);
        used += KVC_SAME_ENTRY;
    }
    return used ? add_own(list, KVC_SECTION_SAME, bytes, used, e) : 0;
}

/* --- blocks --- */

struct run { /* encoded records of consecutive blocks of one tensor */
    struct kvc_buffer buffer;
    uint64_t bytes, same_rows;
};

struct scratch {
    uint8_t *rows, *own, *decoded;
    struct kvc_same *from;
    struct kvc_sections list;
};

static void scratch_free(struct scratch *s) {
    free(s->rows);
    free(s->own);
    free(s->decoded);
    free(s->from);
    kvc_sections_free(&s->list);
}

static int scratch_make(struct scratch *s, uint64_t row_bytes, struct kvc_error *e) {
    size_t n = (size_t)row_bytes * KVC_BLOCK;
    memset(s, 0, sizeof *s);
    s->rows = malloc(n);
    s->own = malloc(n);
    s->decoded = malloc(n);
    s->from = malloc(KVC_BLOCK * sizeof *s->from);
    if (s->rows && s->own && s->decoded && s->from) return 0;
    scratch_free(s);
    return kvc_fail_memory(e, "a block");
}

/* Encodes sorted rows [first, first + n) of a tensor as block `number` into run->buffer. */
static int encode_block(const struct writer *w, uint32_t tensor, uint64_t number, uint64_t first, uint64_t n,
                        struct scratch *s, struct run *run, struct kvc_error *e) {
    const struct kvc_cache *c = w->cache;
    const struct kvc_pipeline *pipeline = &w->pipeline[w->pipeline_of[tensor]];
    struct kvc_block block = {.shape = c->tensor[tensor].shape, .rows = s->own};
    uint64_t row = kvc_row_bytes(&block.shape), own = 0;
    int lossless = kvc_pipeline_lossless(pipeline);
    if (c->read(c, tensor, first, n, s->rows, e)) return -1;
    for (uint64_t i = 0; i < n; i++) s->from[i].tensor = KVC_NONE;
    if (kvc_same_find(c, tensor, first, n, s->rows, s->from, e)) return -1;
    kvc_sections_clear(&s->list);
    if (add_same(&s->list, s->from, n, e)) return -1;
    for (uint64_t i = 0; i < n; i++)
        if (s->from[i].tensor == KVC_NONE) memcpy(s->own + own++ * row, s->rows + i * row, (size_t)row);
    size_t container_sections = s->list.count;
    block.shape.tokens = own;
    if (own && kvc_pipeline_encode(pipeline, &block, &s->list, e)) return -1;
    run->same_rows += n - own;
    run->bytes += n * row;
    if (own && (!lossless || !w->options->no_verify)) {
        kvc_sections_seal(&s->list);
        block.rows = s->decoded;
        if (kvc_pipeline_decode(pipeline, &block, s->list.section + container_sections,
                                s->list.count - container_sections, e))
            return -1;
        own = 0;
        for (uint64_t i = 0; i < n; i++) {
            if (s->from[i].tensor != KVC_NONE) continue;
            const uint8_t *back = s->decoded + own++ * row;
            if (lossless && memcmp(back, s->rows + i * row, (size_t)row) != 0)
                return kvc_fail(e, KVC_ERR_VERIFY, "block %llu does not decode to what was encoded",
                                (unsigned long long)number);
            if (!lossless) memcpy(s->rows + i * row, back, (size_t)row);
        }
    }
    uint64_t digest = kvc_digest_rows(s->rows, row, first, n);
    return build_record(&run->buffer, KVC_RECORD_BLOCK, tensor, (uint32_t)number, digest, &s->list, e);
}

static void discard_run(void *result) {
    struct run *run = result;
    free(run->buffer.data);
    free(run);
}

static uint32_t tensor_of_run(const struct writer *w, uint64_t item) {
    uint32_t low = 0, high = w->cache->n_tensors;
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (w->first_run[mid] <= item) low = mid;
        else high = mid;
    }
    return low;
}

static int encode_run(void *state, uint64_t item, void **result, struct kvc_error *e) {
    const struct writer *w = state;
    uint32_t tensor = tensor_of_run(w, item);
    const struct kvc_cells *cells = &kvc_tensor_part(w->cache, tensor)->cells;
    uint64_t block = (item - w->first_run[tensor]) * RUN_BLOCKS;
    uint64_t end = block + RUN_BLOCKS < cells->n_blocks ? block + RUN_BLOCKS : cells->n_blocks;
    struct run *run = calloc(1, sizeof *run);
    struct scratch scratch;
    if (!run) return kvc_fail_memory(e, "a run of blocks");
    int status = scratch_make(&scratch, kvc_row_bytes(&w->cache->tensor[tensor].shape), e);
    if (!status) {
        for (; block < end && !status; block++)
            status = encode_block(w, tensor, block, cells->block[block], cells->block[block + 1] - cells->block[block],
                                  &scratch, run, e);
        scratch_free(&scratch);
    }
    if (status) {
        char label[64];
        kvc_tensor_label(w->cache, tensor, label, sizeof label);
        kvc_error_prefix(e, label);
        discard_run(run);
        return -1;
    }
    *result = run;
    return 0;
}

static int commit_run(void *state, uint64_t item, void *result, struct kvc_error *e) {
    struct writer *w = state;
    struct run *run = result;
    int status = 0;
    (void)item;
    for (size_t at = 0; at < run->buffer.n && !status;) {
        size_t size = (size_t)get_u32(run->buffer.data + at + 4) * KVC_UNIT;
        status = align_extent(w, e) || write_records(w, run->buffer.data + at, size, e);
        at += size;
    }
    w->report.same_rows += run->same_rows;
    w->done += run->bytes;
    if (!status && w->options->progress)
        w->options->progress(w->options->progress_state, w->done, w->report.tensor_bytes);
    discard_run(run);
    return status ? -1 : 0;
}

static int write_blocks(struct writer *w, struct kvc_error *e) {
    struct kvc_job job = {.work = encode_run, .commit = commit_run, .discard = discard_run, .state = w};
    for (uint32_t t = 0; t < w->cache->n_tensors; t++) {
        uint64_t runs = (kvc_tensor_part(w->cache, t)->cells.n_blocks + RUN_BLOCKS - 1) / RUN_BLOCKS;
        w->first_run[t] = (uint32_t)job.n;
        job.n += runs;
        if (job.n > UINT32_MAX) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "more blocks than one .kvc can number");
    }
    return kvc_parallel(&job, w->options->threads, e);
}

static int write_index(struct writer *w, struct kvc_error *e) {
    struct kvc_buffer b = {0};
    struct kvc_sink sink = kvc_sink_buffer(&b);
    uint64_t offset = file_offset(w);
    int status = 0;
    for (uint64_t i = 0; i < w->n_entries && !status; i++) {
        uint8_t bytes[40];
        const struct entry *x = &w->entry[i];
        size_t n = put_varint(bytes, x->type);
        n += put_varint(bytes + n, x->size / KVC_UNIT);
        n += put_varint(bytes + n, x->subject == KVC_NONE ? 0 : (uint64_t)x->subject + 1);
        n += put_varint(bytes + n, x->number);
        status = kvc_sink_write(&sink, bytes, n, e);
    }
    if (!status) status = write_simple(w, KVC_RECORD_INDEX, KVC_SECTION_INDEX, b.data, b.n, e);
    free(b.data);
    if (status) return -1;
    uint8_t footer[KVC_FOOTER_SIZE];
    put_u64(footer, offset);
    put_u64(footer + 8, file_offset(w) + sizeof footer);
    memcpy(footer + 16, KVC_MAGIC_END, 8);
    put_u64(footer + 24, XXH3_64bits(footer, 24));
    return kvc_sink_write(w->out, footer, sizeof footer, e);
}

static int write_header(struct writer *w, struct kvc_error *e) {
    uint8_t header[KVC_HEADER_SIZE] = {0};
    unsigned align = w->options->align ? w->options->align : KVC_UNIT, log2 = 0;
    while (1u << log2 < align) log2++;
    if (1u << log2 != align || log2 < KVC_MIN_ALIGN_LOG2 || log2 > KVC_MAX_ALIGN_LOG2)
        return kvc_fail(e, KVC_ERR_USAGE, "alignment must be a power of two from 16 to 1048576, not %u", align);
    memcpy(header, KVC_MAGIC, 8);
    put_u16(header + 8, KVC_FORMAT_VERSION);
    put_u16(header + 10, KVC_FORMAT_VERSION);
    header[12] = (uint8_t)log2;
    put_u64(header + 24, XXH3_64bits(header, 24));
    return kvc_sink_write(w->out, header, sizeof header, e);
}

/* --- the plan: which pipeline codes which tensor --- */

static int same_pipeline(const struct kvc_pipeline *a, const struct kvc_pipeline *b) {
    char x[KVC_MAX_STAGES * 160], y[sizeof x];
    return kvc_pipeline_print(a, x, sizeof x) == 0 && kvc_pipeline_print(b, y, sizeof y) == 0 && strcmp(x, y) == 0;
}

static int plan(struct writer *w, const struct kvc_recipe *recipe, struct kvc_error *e) {
    const struct kvc_cache *c = w->cache;
    unsigned used = 0; /* bit i: item i codes some tensor */
    w->report.lossless = 1;
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        struct kvc_pipeline line;
        unsigned select = c->tensor[t].role == KVC_ROLE_K   ? KVC_SELECT_K
                          : c->tensor[t].role == KVC_ROLE_V ? KVC_SELECT_V
                                                            : 0;
        kvc_recipe_pipeline(recipe, select, c->layer[c->tensor[t].layer].index, &line);
        for (unsigned s = 0; s < line.n; s++) {
            if (line.step[s].item < recipe->n) used |= 1u << line.step[s].item;
            if (line.step[s].stage->accepts &&
                !line.step[s].stage->accepts(&line.step[s].args, &c->tensor[t].shape, e)) {
                char label[64];
                kvc_tensor_label(c, t, label, sizeof label);
                return kvc_error_prefix(e, label);
            }
        }
        if (!kvc_pipeline_lossless(&line)) w->report.lossless = 0;
        w->report.tensor_bytes += kvc_tensor_bytes(&c->tensor[t]);
        uint32_t p = 0;
        while (p < w->n_pipelines && !same_pipeline(&w->pipeline[p], &line)) p++;
        if (p == w->n_pipelines) {
            if (p == KVC_MAX_PIPELINES) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "more than %u pipelines", p);
            struct kvc_pipeline *grown = realloc(w->pipeline, (p + 1) * sizeof *grown);
            if (!grown) return kvc_fail_memory(e, "pipelines");
            w->pipeline = grown;
            w->pipeline[w->n_pipelines++] = line;
        }
        w->pipeline_of[t] = p;
    }
    for (unsigned i = 0; i < recipe->n; i++)
        if (c->n_tensors && !(used & 1u << i))
            return kvc_fail(e, KVC_ERR_USAGE, "recipe: stage '%s' (number %u) applies to no tensor of this cache",
                            recipe->item[i].stage->name, i + 1);
    return 0;
}

static int describe(const struct kvc_cache *c, const char *recipe, struct kvc_meta *meta, struct kvc_error *e) {
    char identity[128];
    if (kvc_meta_copy(meta, &c->meta, e) || kvc_meta_set_text(meta, KVC_KEY_PRODUCER, "kvc " KVC_VERSION, e) ||
        kvc_meta_set_text(meta, KVC_KEY_RECIPE, recipe, e))
        return -1;
    /* Keys that came without their token ids cannot be chained anew, so their identity stays as well. */
    if (!c->tokens) return 0;
    kvc_meta_remove(meta, KVC_KEY_PREFIX_IDENTITY);
    kvc_prefix_identity(meta, identity, sizeof identity);
    return kvc_meta_set_text(meta, KVC_KEY_PREFIX_IDENTITY, identity, e);
}

int kvc_container_write(const struct kvc_cache *cache, const struct kvc_pack_options *options, struct kvc_sink *out,
                        struct kvc_pack_report *report, struct kvc_error *e) {
    struct writer w = {.cache = cache, .options = options, .out = out, .start = out->offset};
    struct kvc_recipe recipe;
    struct kvc_meta meta = {0};
    char text[2048];
    if (!kvc_kernels_get())
        return kvc_fail(e, KVC_ERR_USAGE, "KVC_KERNEL names no kernel table that this CPU can run");
    if (kvc_recipe_parse(options->recipe ? options->recipe : DEFAULT_RECIPE, &recipe, e)) return -1;
    if (kvc_recipe_print(&recipe, text, sizeof text)) return kvc_fail(e, KVC_ERR_USAGE, "recipe: too long");
    w.pipeline_of = calloc((size_t)cache->n_tensors + 1, sizeof *w.pipeline_of);
    w.first_run = calloc((size_t)cache->n_tensors + 1, sizeof *w.first_run);
    int status = w.pipeline_of && w.first_run ? 0 : kvc_fail_memory(e, "the table of tensors");
    if (!status)
        status = plan(&w, &recipe, e) || describe(cache, text, &meta, e) || write_header(&w, e) ||
                 write_meta(&w, &meta, e) || write_table(&w, e) || write_cells(&w, e) || write_tokens(&w, &meta, e) ||
                 write_source(&w, e) || write_blocks(&w, e) || write_index(&w, e);
    w.report.stored_bytes = file_offset(&w);
    if (!status && report) *report = w.report;
    kvc_meta_free(&meta);
    free(w.pipeline);
    free(w.pipeline_of);
    free(w.first_run);
    free(w.entry);
    return status ? -1 : 0;
}
