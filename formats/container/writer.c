/* writer.c: writes a cache as a .kvc container. Spec: FORMAT.md. Not for engine files.
 *
 * Tensors are encoded in runs of blocks by several threads, each run into finished records in memory; the calling
 * thread writes the runs in order. So the bytes do not depend on the number of threads. */
#include "formats/container/container.h"
#include "codecs/memory.h"
#include "formats/cache/keys.h"
#include "formats/container/record_build.h"
#include "formats/container/encode.h"
#include "formats/container/offsets.h"
#include "formats/container/extents_section.h"
#include "formats/io/parallel.h"
#include "formats/cache/prefix.h"
#include "formats/cache/view.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    struct kvc_plan plan;
    const struct kvc_fit *fit; /* of the profile, where one is used */
    struct kvc_fit own_fit;    /* where the caller has not measured it */
    struct kvc_encode encode;
    struct kvc_projections projections;
    struct kvc_shared *shared; /* by layer, n_shared of them made */
    uint32_t n_shared;
    uint64_t *left;            /* by layer: runs that are still to come */
    uint32_t *first_run;       /* by tensor: number of its first run; n_tensors + 1 entries */
    struct kvc_pack_report report;
    double squares[2][2]; /* of K and V: of the source, of the errors */
    uint64_t done; /* tensor bytes written so far */
};

/* --- records --- */

static int note_entry(struct writer *w, struct entry entry, struct kvc_error *e) {
    if (w->n_entries == w->capacity) {
        uint64_t capacity = w->capacity ? 2 * w->capacity : 64;
        struct entry *grown = kvc_realloc(w->entry, capacity, sizeof *grown);
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
    int status = kvc_record_build(&buffer, type, subject, number, 0, list, e) ||
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

/* One record of one section. */
static int write_simple(struct writer *w, uint8_t record, uint8_t section, const uint8_t *bytes, size_t n,
                        struct kvc_error *e) {
    struct kvc_sections list;
    kvc_sections_init(&list);
    int status = kvc_record_add(&list, section, bytes, n, e) || write_record(w, record, KVC_NONE, 0, &list, e);
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
               (size_t)c->n_tensors * KVC_TENSOR_ENTRY + (size_t)w->plan.n_pipelines * (1 + KVC_MAX_STEPS * 258);
    uint8_t *bytes = calloc(1, n), *p = bytes;
    if (!bytes) return kvc_fail_memory(e, "the table of tensors");
    put_u32(p, c->n_parts);
    put_u32(p + 4, c->n_layers);
    put_u32(p + 8, c->n_tensors);
    put_u32(p + 12, w->plan.n_pipelines);
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
        put_u16(p + 6, (uint16_t)w->plan.pipeline_of[i]);
        put_u64(p + 8, t->shape.heads);
        put_u64(p + 16, t->shape.dim);
        put_u64(p + 24, t->source.token);
        put_u64(p + 32, t->source.head);
        put_u64(p + 40, t->source.block);
        put_u64(p + 48, t->source_size);
    }
    for (uint32_t i = 0; i < w->plan.n_pipelines; i++) {
        const struct kvc_pipeline *line = &w->plan.pipeline[i];
        *p++ = (uint8_t)line->n;
        for (unsigned s = 0; s < line->n; s++) {
            char text[256];
            kvc_stage_print(line->step[s].stage, &line->step[s].args, text, sizeof text);
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
    if (!status) status = kvc_record_add(list, KVC_SECTION_POSITIONS, b.data ? b.data : (const uint8_t *)"", b.n, e);
    free(b.data);
    return status;
}

static int add_words(struct kvc_sections *list, const struct kvc_cells *cells, struct kvc_error *e) {
    uint64_t words = cells->word_at[cells->n];
    uint8_t *bytes = kvc_alloc(10 * cells->n + 4 * words, 1), *p = bytes;
    if (!bytes) return kvc_fail_memory(e, "cell words");
    for (uint64_t i = 0; i < cells->n; i++) p += put_varint(p, cells->word_at[i + 1] - cells->word_at[i]);
    for (uint64_t i = 0; i < words; i++, p += 4) put_u32(p, cells->words[i]);
    int status = kvc_record_add(list, KVC_SECTION_WORDS, bytes, (size_t)(p - bytes), e);
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
    const struct kvc_cache *keyed = w->options->keys ? w->options->keys : c;
    if (!c->tokens && keyed->prefix_keys) {
        kept = keyed->prefix_keys;
        n_keys = keyed->n_prefix_keys;
    }
    if (!c->tokens && !n_keys) return 0;
    struct kvc_sections list;
    kvc_sections_init(&list);
    uint8_t *ids = kvc_alloc(c->n_tokens, 4), *keys = kvc_alloc(n_keys, KVC_KEY_BYTES);
    int status = ids && keys ? 0 : kvc_fail_memory(e, "tokens");
    if (!status && kept) memcpy(keys, kept, (size_t)n_keys * KVC_KEY_BYTES);
    if (!status && c->tokens) {
        for (uint64_t i = 0; i < c->n_tokens; i++) put_u32(ids + 4 * i, (uint32_t)c->tokens[i]);
        if (!w->options->no_tokens) status = kvc_record_add(&list, KVC_SECTION_TOKENS, ids, (size_t)(4 * c->n_tokens), e);
        if (!status && n_keys)
            status = kvc_prefix_keys(kvc_meta_text(meta, KVC_KEY_PREFIX_IDENTITY, ""), c->tokens, n_keys * KVC_PREFIX_TOKENS,
                                     keys, e);
    }
    if (!status && n_keys) status = kvc_record_add(&list, KVC_SECTION_KEYS, keys, (size_t)n_keys * KVC_KEY_BYTES, e);
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
    uint8_t *chunk = malloc(KVC_LITERAL_CHUNK);
    kvc_sections_init(&list);
    int status = chunk ? kvc_extents_write(c, &extents, e) : kvc_fail_memory(e, "private bytes");
    if (!status) status = kvc_record_add(&list, KVC_SECTION_EXTENTS, extents.data, extents.n, e);
    uint64_t at = 0;
    for (uint32_t number = 0; !status && (number == 0 || at < c->literal_size); number++) {
        uint64_t left = c->literal_size - at, n = left < KVC_LITERAL_CHUNK ? left : KVC_LITERAL_CHUNK;
        if (n) status = c->read_literal(c, at, n, chunk, e) || kvc_record_add(&list, KVC_SECTION_LITERALS, chunk, (size_t)n, e);
        if (!status) status = write_record(w, KVC_RECORD_SOURCE, KVC_NONE, number, &list, e);
        at += n;
        kvc_sections_clear(&list);
    }
    free(chunk);
    free(extents.data);
    kvc_sections_free(&list);
    return status ? -1 : 0;
}

/* --- blocks --- */

static void discard_run(void *result) {
    struct kvc_run *run = result;
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
    const uint32_t tensor = tensor_of_run(w, item);
    const uint64_t blocks = kvc_tensor_part(w->cache, tensor)->cells.n_blocks;
    const uint64_t each = kvc_encode_run_blocks(&w->encode, tensor), block = (item - w->first_run[tensor]) * each;
    struct kvc_run *run = calloc(1, sizeof *run);
    if (!run) return kvc_fail_memory(e, "a run of blocks");
    if (kvc_encode_run(&w->encode, tensor, block, block + each < blocks ? block + each : blocks, run, e)) {
        char label[64];
        kvc_tensor_label(w->cache, tensor, label, sizeof label);
        kvc_error_prefix(e, label);
        discard_run(run);
        return -1;
    }
    *result = run;
    return 0;
}

/* What a layer's tensors shared goes when the last of them is done. */
static void forget_shared(struct writer *w, uint32_t layer) {
    if (--w->left[layer]) return;
    free(w->shared[layer].bytes);
    w->shared[layer].bytes = NULL;
}

static int commit_run(void *state, uint64_t item, void *result, struct kvc_error *e) {
    struct writer *w = state;
    struct kvc_run *run = result;
    int status = 0;
    forget_shared(w, w->cache->tensor[tensor_of_run(w, item)].layer);
    for (size_t at = 0; at < run->buffer.n && !status;) {
        size_t size = (size_t)get_u32(run->buffer.data + at + 4) * KVC_UNIT;
        status = align_extent(w, e) || write_records(w, run->buffer.data + at, size, e);
        at += size;
    }
    w->report.same_rows += run->same_rows;
    const enum kvc_role role = w->cache->tensor[tensor_of_run(w, item)].role;
    if (role == KVC_ROLE_K || role == KVC_ROLE_V) {
        w->squares[role][0] += run->source_squares;
        w->squares[role][1] += run->error_squares;
    }
    w->done += run->bytes;
    if (!status && w->options->progress)
        w->options->progress(w->options->progress_state, w->done, w->report.tensor_bytes);
    discard_run(run);
    return status ? -1 : 0;
}

static int write_blocks(struct writer *w, struct kvc_error *e) {
    struct kvc_job job = {.work = encode_run, .commit = commit_run, .discard = discard_run, .state = w};
    for (uint32_t t = 0; t < w->cache->n_tensors; t++) {
        const uint64_t each = kvc_encode_run_blocks(&w->encode, t);
        const uint64_t runs = (kvc_tensor_part(w->cache, t)->cells.n_blocks + each - 1) / each;
        w->first_run[t] = (uint32_t)job.n;
        w->left[w->cache->tensor[t].layer] += runs;
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

/* Whether rows are coded with the profile at hand. */
static int uses_profile(const struct writer *w) {
    for (uint32_t i = 0; i < w->plan.n_pipelines && w->options->profile; i++)
        if (kvc_pipeline_first(&w->plan.pipeline[i], KVC_STAGE_PROFILE) < w->plan.pipeline[i].n) return 1;
    return 0;
}

static int write_profile(struct writer *w, struct kvc_error *e) {
    size_t n;
    if (!uses_profile(w) || !w->options->embed_profile) return 0;
    const uint8_t *bytes = kvc_profile_bytes(w->options->profile, &n);
    return write_simple(w, KVC_RECORD_PROFILE, KVC_SECTION_PROFILE, bytes, n, e);
}

static const char *const fit_key[2] = {KVC_KEY_PROFILE_FIT_K, KVC_KEY_PROFILE_FIT_V};

/* Which profile decoding needs, and how well it fits; of a file that was packed with one before, that one is no longer it. */
static int name_profile(const struct writer *w, struct kvc_meta *meta, struct kvc_error *e) {
    const struct kvc_profile *p = w->options->profile;
    kvc_meta_remove(meta, KVC_KEY_PROFILE);
    kvc_meta_remove(meta, KVC_KEY_PROFILE_MODEL);
    kvc_meta_remove(meta, KVC_KEY_PROFILE_FIT);
    for (int r = 0; r < 2; r++) kvc_meta_remove(meta, fit_key[r]);
    if (!uses_profile(w)) return 0;
    if (kvc_meta_set_text(meta, KVC_KEY_PROFILE_FIT, kvc_fit_name(w->fit->verdict), e)) return -1;
    for (int r = 0; r < 2; r++)
        if (w->fit->ratio[r] > 0 && kvc_meta_set_f64(meta, fit_key[r], round(1000 * w->fit->ratio[r]) / 1000, e)) return -1;
    return kvc_meta_set_bytes(meta, KVC_KEY_PROFILE, kvc_profile_sha256(p), KVC_SHA256_BYTES, e) ||
           kvc_meta_set_text(meta, KVC_KEY_PROFILE_MODEL, kvc_profile_model(p), e);
}

/* Measures the fit where the caller has not, and refuses a misfit. Pairing and layers are the caller's to settle. */
static int find_fit(struct writer *w, struct kvc_error *e) {
    struct kvc_profile *p = w->options->profile;
    int status = p ? kvc_profile_fits(p, w->cache, e) : 0;
    w->fit = w->options->fit;
    if (!status && uses_profile(w) && !w->fit) {
        status = kvc_fit_measure(&w->own_fit, p, w->cache, kvc_cache_pairing(w->cache), w->options->threads, e) ||
                 kvc_fit_accept(p, &w->own_fit, e);
        w->fit = &w->own_fit;
    }
    return status ? kvc_error_prefix(e, "profile") : 0;
}

static int describe(const struct writer *w, const char *recipe, struct kvc_meta *meta, struct kvc_error *e) {
    const struct kvc_cache *c = w->cache;
    char identity[128];
    if (kvc_meta_copy(meta, &c->meta, e) || kvc_meta_set_text(meta, KVC_KEY_PRODUCER, "kvc " KVC_VERSION, e) ||
        kvc_meta_set_text(meta, KVC_KEY_RECIPE, recipe, e) || name_profile(w, meta, e))
        return -1;
    /* Keys that came without their token ids cannot be chained anew, so their identity stays as well. */
    if (!c->tokens) return 0;
    kvc_meta_remove(meta, KVC_KEY_PREFIX_IDENTITY);
    kvc_prefix_identity(meta, identity, sizeof identity);
    return kvc_meta_set_text(meta, KVC_KEY_PREFIX_IDENTITY, identity, e);
}

static int prepare(struct writer *w, struct kvc_cache **own_queries, struct kvc_error *e) {
    const struct kvc_cache *c = w->cache;
    w->first_run = calloc((size_t)c->n_tensors + 1, sizeof *w->first_run);
    w->left = calloc((size_t)c->n_layers + 1, sizeof *w->left);
    w->shared = calloc((size_t)c->n_layers + 1, sizeof *w->shared);
    if (!w->first_run || !w->left || !w->shared) return kvc_fail_memory(e, "the table of tensors");
    for (; w->n_shared < c->n_layers; w->n_shared++)
        if (kvc_shared_init(&w->shared[w->n_shared], e)) return -1;
    const struct kvc_cache *queries = w->options->queries;
    int looks = 0;
    for (uint32_t i = 0; i < w->plan.n_pipelines; i++)
        looks |= kvc_pipeline_first(&w->plan.pipeline[i], KVC_STAGE_LOOKS) < w->plan.pipeline[i].n;
    if (looks && !queries && !(queries = *own_queries = kvc_view_float(c, e))) return -1;
    w->encode = (struct kvc_encode){.cache = c, .plan = &w->plan, .queries = queries, .shared = w->shared,
                                    .projections = &w->projections, .profile = w->options->profile,
                                    .no_verify = w->options->no_verify, .measure = w->options->measure};
    w->report.lossless = w->plan.lossless;
    w->report.uses_profile = uses_profile(w);
    w->report.tensor_bytes = w->plan.tensor_bytes;
    return 0;
}

int kvc_container_write(const struct kvc_cache *cache, const struct kvc_pack_options *options, struct kvc_sink *out,
                        struct kvc_pack_report *report, struct kvc_error *e) {
    struct writer w = {.cache = cache, .options = options, .out = out, .start = out->offset};
    const struct kvc_recipe *recipe = kvc_recipe_or_default(options->recipe);
    struct kvc_meta meta = {0};
    struct kvc_cache *own_queries = NULL;
    char text[KVC_MAX_RECIPE_TEXT];
    if (!kvc_kernels_get())
        return kvc_fail(e, KVC_ERR_USAGE, "KVC_KERNEL names no kernel table that this CPU can run");
    if (kvc_recipe_print(recipe, text, sizeof text)) return kvc_fail(e, KVC_ERR_USAGE, "recipe: too long");
    if (kvc_projections_init(&w.projections, options->weights, e)) return -1;
    int status = kvc_plan_make(&w.plan, cache, recipe, e) || find_fit(&w, e) || prepare(&w, &own_queries, e);
    if (!status)
        status = describe(&w, text, &meta, e) || write_header(&w, e) || write_meta(&w, &meta, e) ||
                 write_table(&w, e) || write_cells(&w, e) || write_tokens(&w, &meta, e) || write_source(&w, e) ||
                 write_profile(&w, e) || write_blocks(&w, e) || write_index(&w, e);
    w.report.stored_bytes = file_offset(&w);
    for (int i = 0; i < 2; i++) w.report.error[i] = w.squares[i][0] > 0 ? sqrt(w.squares[i][1] / w.squares[i][0]) : 0;
    if (!status && report) *report = w.report;
    kvc_meta_free(&meta);
    kvc_cache_free(own_queries);
    kvc_fit_free(&w.own_fit);
    kvc_plan_free(&w.plan);
    kvc_projections_free(&w.projections);
    for (uint32_t i = 0; i < w.n_shared; i++) kvc_shared_free(&w.shared[i]);
    free(w.shared);
    free(w.left);
    free(w.first_run);
    free(w.entry);
    return status ? -1 : 0;
}
