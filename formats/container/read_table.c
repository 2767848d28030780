/* read_table.c: reads the TABLE of a .kvc: parts, layers, tensors and pipelines. Spec: FORMAT.md 5.
 * Not for other records (reader.c). */
#include "formats/container/records.h"

#include "codecs/memory.h"
#include "codecs/registry.h"
#include "formats/container/offsets.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Each function reads one table at *at and moves *at to its end; kvc_reader_table() has checked
 * that fixed entries fit. */
static int read_parts(struct kvc_cache *c, const struct kvc_records *k, const uint8_t **at,
                      uint64_t n, struct kvc_error *e) {
    uint64_t cells = 0;
    for (; n; n--, *at += KVC_PART_ENTRY) {
        const uint8_t *p = *at;
        if (!kvc_part_kind_name(p[0]))
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "part kind %u is unknown", p[0]);
        if (p[1] | p[2] | p[3] | get_u32(p + 12))
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "table: reserved bytes are set");
        uint64_t part_cells = get_u64(p + 16);
        if (part_cells > KVC_MAX_CELLS || (cells += part_cells) > k->most_cells)
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "table: %" PRIu64 " cells are more than the blocks can hold", cells);
        uint32_t number = kvc_cache_add_part(c, (enum kvc_part_kind)p[0], part_cells, e);
        if (number == KVC_NONE) return -1;
        c->part[number].stream = get_u32(p + 4);
        c->part[number].checkpoint = get_u32(p + 8);
    }
    return 0;
}

static int read_layers(struct kvc_cache *c, const uint8_t **at, uint64_t n, struct kvc_error *e) {
    for (uint64_t i = 0; i < n; i++, *at += KVC_LAYER_ENTRY) {
        const uint8_t *p = *at;
        uint32_t part = get_u32(p);
        if (!kvc_layer_kind_name(p[8]))
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "layer kind %u is unknown", p[8]);
        if (p[9] | p[10] | p[11])
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "table: reserved bytes are set");
        if (part >= c->n_parts)
            return kvc_fail(e, KVC_ERR_DAMAGED, "table: layer %" PRIu64 " has no part", i);
        uint32_t number = kvc_cache_add_layer(c, part, get_u32(p + 4), (enum kvc_layer_kind)p[8],
                                              e);
        if (number == KVC_NONE) return -1;
        c->layer[number].window = get_u32(p + 12);
    }
    return 0;
}

static int read_tensors(struct kvc_cache *c, struct kvc_records *k, const uint8_t **at, uint64_t n,
                        uint64_t pipelines, struct kvc_error *e) {
    k->pipeline_of = kvc_alloc(n + 1, sizeof *k->pipeline_of);
    if (!k->pipeline_of) return kvc_fail_memory(e, "the table of tensors");
    for (uint64_t i = 0; i < n; i++, *at += KVC_TENSOR_ENTRY) {
        const uint8_t *p = *at;
        uint32_t layer = get_u32(p);
        if (layer >= c->n_layers)
            return kvc_fail(e, KVC_ERR_DAMAGED, "table: tensor %" PRIu64 " has no layer", i);
        if (!kvc_role_name(p[4]))
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "role %u is unknown", p[4]);
        if (!kvc_dtype_info(p[5]))
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "dtype %u is unknown", p[5]);
        if (get_u16(p + 6) >= pipelines)
            return kvc_fail(e, KVC_ERR_DAMAGED, "table: tensor %" PRIu64 " has no pipeline", i);
        struct kvc_shape shape = {.dtype = (enum kvc_dtype)p[5],
                                  .heads = get_u64(p + 8),
                                  .dim = get_u64(p + 16),
                                  .tokens = c->part[c->layer[layer].part].cells.n};
        uint32_t number = kvc_cache_add_tensor(c, layer, (enum kvc_role)p[4], &shape, e);
        if (number == KVC_NONE) return -1;
        struct kvc_tensor *t = &c->tensor[number];
        t->source = (struct kvc_strides){get_u64(p + 24), get_u64(p + 32), get_u64(p + 40)};
        t->source_size = get_u64(p + 48);
        if (t->source_size > KVC_MAX_TENSOR_BYTES || t->source_size < kvc_tensor_bytes(t) ||
            !kvc_strides_check(&shape, &t->source, t->source_size))
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "table: tensor %" PRIu64 " reaches beyond its region of the source", i);
        k->pipeline_of[i] = get_u16(p + 6);
    }
    return 0;
}

/* Reads one stage of a pipeline; its arguments must be spelled as kvc prints them. */
static int read_stage(const uint8_t **at, const uint8_t *end, const struct kvc_stage **stage,
                      struct kvc_stage_args *args, struct kvc_error *e) {
    const uint8_t *p = *at;
    char text[256], again[256];
    if (end - p < 3 || end - p - 3 < p[2])
        return kvc_fail(e, KVC_ERR_DAMAGED, "the table is cut short");
    if (!(*stage = kvc_stage_by_id(get_u16(p))))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "stage id %u is unknown to this reader: use a newer kvc", get_u16(p));
    memcpy(text, p + 3, p[2]);
    text[p[2]] = '\0';
    if (strlen(text) != p[2] || kvc_stage_parse(*stage, text, args, e))
        return kvc_fail(e, KVC_ERR_DAMAGED, "table: arguments of stage %s are malformed",
                        (*stage)->name);
    kvc_stage_print_stored(*stage, args, again, sizeof again);
    if (strcmp(text, again) != 0)
        return kvc_fail(e, KVC_ERR_DAMAGED, "table: arguments of stage %s are not canonical",
                        (*stage)->name);
    *at = p + 3 + p[2];
    return 0;
}

static int read_pipelines(struct kvc_records *k, const uint8_t **at, const uint8_t *end, uint64_t n,
                          struct kvc_error *e) {
    if (n > KVC_MAX_PIPELINES) return kvc_fail(e, KVC_ERR_DAMAGED, "table: too many pipelines");
    k->pipeline = calloc((size_t)n + 1, sizeof *k->pipeline);
    k->pipeline_text = calloc((size_t)n + 1, sizeof *k->pipeline_text);
    if (!k->pipeline || !k->pipeline_text) return kvc_fail_memory(e, "pipelines");
    for (uint64_t i = 0; i < n; i++) {
        struct kvc_pipeline *line = &k->pipeline[i];
        char text[2048];
        if (*at == end || **at < 1 || **at > KVC_MAX_STEPS)
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "table: pipeline %" PRIu64 " has no valid number of stages", i);
        line->n = *(*at)++;
        for (unsigned s = 0; s < line->n; s++)
            if (read_stage(at, end, &line->step[s].stage, &line->step[s].args, e)) return -1;
        if (kvc_pipeline_check(line, e)) {
            if (e) e->code = KVC_ERR_DAMAGED;
            return kvc_error_prefix(e, "table");
        }
        if (kvc_pipeline_print(line, text, sizeof text) || !(k->pipeline_text[i] = strdup(text)))
            return kvc_fail_memory(e, "pipelines");
        k->n_pipelines++;
    }
    return 0;
}

int kvc_reader_table(struct kvc_cache *c, struct kvc_records *k, const uint8_t *p, size_t n,
                     struct kvc_error *e) {
    const uint8_t *end = p + n;
    if (n < 16) return kvc_fail(e, KVC_ERR_DAMAGED, "the table is cut short");
    uint64_t parts = get_u32(p), layers = get_u32(p + 4), tensors = get_u32(p + 8),
             pipelines = get_u32(p + 12);
    p += 16;
    if (parts * KVC_PART_ENTRY + layers * KVC_LAYER_ENTRY + tensors * KVC_TENSOR_ENTRY + pipelines >
        (uint64_t)(end - p))
        return kvc_fail(e, KVC_ERR_DAMAGED, "the table is cut short");
    if (read_parts(c, k, &p, parts, e) || read_layers(c, &p, layers, e) ||
        read_tensors(c, k, &p, tensors, pipelines, e) || read_pipelines(k, &p, end, pipelines, e))
        return -1;
    return p == end ? 0 : kvc_fail(e, KVC_ERR_DAMAGED, "bytes follow the table");
}
