/* inspect.c: describes a container (header, records, pipelines, sizes), and checks all of it. Not
 * for decoding (blocks.c). */
#include "formats/container/records.h"

#include "formats/cache/keys.h"
#include "formats/container/device_blocks.h"
#include "formats/cache/prefix.h"
#include "formats/container/content_id.h"
#include "formats/container/offsets.h"
#include "formats/io/parallel.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int kvc_cache_is_container(const struct kvc_cache *c) {
    return kvc_records_of(c) != NULL;
}

struct kvc_container_header kvc_container_header(const struct kvc_cache *c) {
    const struct kvc_records *k = kvc_records_of(c);
    return k ? k->header : (struct kvc_container_header){0};
}

uint64_t kvc_container_records(const struct kvc_cache *c) {
    const struct kvc_records *k = kvc_records_of(c);
    return k ? k->n_records : 0;
}

int kvc_container_record(const struct kvc_cache *c, uint64_t i, struct kvc_record_info *info,
                         struct kvc_section *section, unsigned n_max, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    if (!k) return kvc_records_none(e);
    if (i >= k->n_records) return kvc_fail(e, KVC_ERR_USAGE, "there is no record %" PRIu64, i);
    const struct kvc_record *r = &k->record[i];
    struct kvc_section *list;
    unsigned n;
    if (kvc_records_sections(k, i, &list, &n, e))
        return kvc_record_context(e, i, kvc_record_name(r->type));
    const uint8_t *h = k->in->data + r->offset;
    *info = (struct kvc_record_info){.type = r->type,
                                     .tensor = KVC_NONE,
                                     .block = r->number,
                                     .offset = r->offset,
                                     .size = r->size,
                                     .check = get_u64(h + 24),
                                     .digest = get_u64(h + 16),
                                     .n_sections = n};
    if (r->type == KVC_RECORD_SIDE) info->tensor = r->subject;
    if (r->type == KVC_RECORD_BLOCK) {
        const struct kvc_cells *cells = kvc_tensor_cells(c, r->subject);
        info->tensor = r->subject;
        info->rows = cells->block[r->number + 1] - cells->block[r->number];
    }
    for (unsigned s = 0; section && s < n && s < n_max; s++) section[s] = list[s];
    kvc_records_release(k, i, list);
    return 0;
}

const char *kvc_container_pipeline(const struct kvc_cache *c, uint32_t tensor) {
    const struct kvc_records *k = kvc_records_of(c);
    return k ? k->pipeline_text[k->pipeline_of[tensor]] : "";
}

int kvc_container_lossless(const struct kvc_cache *c) {
    const struct kvc_records *k = kvc_records_of(c);
    if (!k) return 0;
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (!kvc_pipeline_lossless(kvc_records_pipeline(k, t))) return 0;
    return 1;
}

uint64_t kvc_container_stored(const struct kvc_cache *c, uint32_t tensor) {
    const struct kvc_records *k = kvc_records_of(c);
    uint64_t sum = 0;
    if (!k) return 0;
    for (uint64_t b = k->first_block[tensor]; b < k->first_block[tensor + 1]; b++)
        sum += k->record[k->block_record[b]].size;
    for (uint64_t s = k->first_side[tensor]; s < k->first_side[tensor + 1]; s++)
        if (k->side_record[s]) sum += k->record[k->side_record[s]].size;
    return sum;
}

struct checking {
    const struct kvc_cache *cache;
    void (*progress)(void *state, uint64_t done, uint64_t total);
    void *state;
    uint64_t done, total; /* stored bytes of records */
};

/* Records of an item of work. */
enum { CHECKED = 2 };

/* Returns the record after the last one of an item. */
static uint64_t end_of(const struct checking *k, uint64_t item) {
    const uint64_t n = kvc_container_records(k->cache), first = CHECKED * item;
    return n - first < CHECKED ? n : first + CHECKED;
}

static int check_item(void *state, uint64_t item, void **result, struct kvc_error *e) {
    const struct checking *k = state;
    const uint64_t end = end_of(k, item);
    *result = NULL;
    if (end == CHECKED * (item + 1) && !kvc_blocks_check_two(k->cache, CHECKED * item)) return 0;
    for (uint64_t i = CHECKED * item; i < end; i++)
        if (kvc_blocks_check(k->cache, i, e)) return -1;
    return 0;
}

static int checked_item(void *state, uint64_t item, void *result, struct kvc_error *e) {
    struct checking *k = state;
    (void)result;
    (void)e;
    for (uint64_t i = CHECKED * item; i < end_of(k, item); i++)
        k->done += kvc_records_of(k->cache)->record[i].size;
    if (k->progress) k->progress(k->state, k->done, k->total);
    return 0;
}

static void discard_nothing(void *result) {
    (void)result;
}

/* Compares the content id of the footer with that of the records. A survey knows what is damaged.
 */
static int check_content(const struct kvc_cache *c, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    struct kvc_sha256 hash;
    uint8_t id[KVC_CONTENT_ID], head[KVC_RECORD_HEADER];
    int status = 0;
    if (k->survey) return 0;
    kvc_content_begin(&hash);
    for (uint64_t i = 0; i + 1 < k->n_records && !status; i++) {
        const struct kvc_record *r = &k->record[i];
        status = kvc_input_copy(k->in, r->offset, head, sizeof head, e);
        if (!status && head[1] & KVC_RECORD_CRITICAL)
            kvc_content_add(&hash, r->type, r->subject, r->number, get_u64(head + 24));
    }
    if (kvc_sha256_final(&hash, id, e) || status) return -1;
    if (memcmp(id, k->header.content_id, sizeof id) == 0) return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED, "footer: the content id is not that of the records");
}

/* Checks the hashes of all records, or of those that are not read with tensors and literals. */
static int check_hashes(const struct kvc_cache *c, int all, struct kvc_error *e) {
    struct kvc_records *k = kvc_records_of(c);
    if (!k) return kvc_records_none(e);
    /* a survey has checked all records */
    for (uint64_t i = 0; i < k->n_records && !k->survey; i++) {
        struct kvc_section *list;
        unsigned n;
        if (!all &&
            (k->record[i].type == KVC_RECORD_BLOCK || k->record[i].type == KVC_RECORD_SOURCE))
            continue;
        if (kvc_records_sections(k, i, &list, &n, e))
            return kvc_record_context(e, i, kvc_record_name(k->record[i].type));
        kvc_records_release(k, i, list);
    }
    if (check_content(c, e)) return -1;
    if (all && !k->in->path && !k->in->map && !k->in->pages) k->is_hashed = 1;
    return 0;
}

int kvc_container_check_rest(const struct kvc_cache *c, struct kvc_error *e) {
    return check_hashes(c, 0, e);
}

int kvc_container_check_hashes(const struct kvc_cache *c, struct kvc_error *e) {
    return check_hashes(c, 1, e);
}

int kvc_container_check(const struct kvc_cache *c, unsigned threads, struct kvc_error *e) {
    return kvc_container_check_shown(c, threads, NULL, NULL, e);
}

int kvc_container_check_shown(const struct kvc_cache *c, unsigned threads,
                              void (*progress)(void *state, uint64_t done, uint64_t total),
                              void *state, struct kvc_error *e) {
    if (!kvc_cache_is_container(c)) return kvc_records_none(e);
    struct checking k = {.cache = c, .progress = progress, .state = state};
    for (uint64_t i = 0; i < kvc_container_records(c); i++)
        k.total += kvc_records_of(c)->record[i].size;
    struct kvc_job job = {.n = (kvc_container_records(c) + CHECKED - 1) / CHECKED,
                          .work = check_item,
                          .commit = checked_item,
                          .discard = discard_nothing,
                          .state = &k};
    if (kvc_parallel(&job, kvc_cache_threads(c, threads), e) || kvc_prefix_verify(c, e)) return -1;
    if (check_content(c, e)) return -1;
    if (!kvc_records_of(c)->other_space) return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED,
                    "metadata key '" KVC_KEY_PREFIX_SPACE
                    "' does not follow from the facts of the file");
}

int kvc_container_transform(const struct kvc_cache *c, uint32_t tensor, char *text, size_t size,
                            struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    if (!k) return kvc_records_none(e);
    const struct kvc_pipeline *line = kvc_records_pipeline(k, tensor);
    const uint64_t side = k->first_side[tensor] < k->first_side[tensor + 1]
                              ? k->side_record[k->first_side[tensor]]
                              : 0;
    struct kvc_section *list;
    unsigned n;
    int described = 0;
    if (size) *text = '\0';
    for (unsigned i = 0; i < line->n; i++) described |= line->step[i].stage->describe != NULL;
    if (!side || !described) return 0;
    if (kvc_records_sections(k, side, &list, &n, e)) return kvc_record_context(e, side, "SIDE");
    const unsigned role = c->tensor[tensor].role == KVC_ROLE_K ? KVC_SELECT_K : KVC_SELECT_V;
    kvc_pipeline_describe(line, role, k->turn[tensor].half != 0, list, n, text, size);
    kvc_records_release(k, side, list);
    return 0;
}

/* --- blocks --- */

uint64_t kvc_container_blocks(const struct kvc_cache *c) {
    const struct kvc_records *k = kvc_records_of(c);
    return k ? k->n_blocks : 0;
}

struct kvc_container_block kvc_container_block(const struct kvc_cache *c, uint32_t tensor,
                                               uint64_t block) {
    const struct kvc_records *k = kvc_records_of(c);
    if (!k) return (struct kvc_container_block){0};
    const uint64_t i = k->block_record[k->first_block[tensor] + block];
    return (struct kvc_container_block){.record = i,
                                        .offset = k->record[i].offset,
                                        .size = k->record[i].size};
}

int kvc_container_block_digest(const uint8_t *record, uint64_t *digest) {
    *digest = get_u64(record + 16);
    return !(record[1] & KVC_RECORD_NO_DIGEST);
}

const struct kvc_shape *kvc_container_coded_shape(const struct kvc_cache *c, uint32_t tensor) {
    const struct kvc_records *k = kvc_records_of(c);
    return k ? &k->shape[tensor] : &c->tensor[tensor].shape;
}

int kvc_container_block_failed(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                               const char *what, struct kvc_error *e) {
    const struct kvc_container_block at = kvc_container_block(c, tensor, block);
    char label[64];
    kvc_tensor_label(c, tensor, label, sizeof label);
    kvc_record_damaged(e, at.offset, what);
    return kvc_record_context(e, at.record, label);
}
