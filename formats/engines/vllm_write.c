/* vllm_write.c: writes the folders of vLLM's ExampleConnector. Not for reading them. */
#include "formats/engines/vllm.h"

#include "codecs/memory.h"
#include "formats/engines/arrays_write.h"
#include "formats/io/member_name.h"
#include "formats/io/safetensors_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *const kvc_vllm_shape_name[KVC_VLLM_SHAPES] = {[KVC_VLLM_PACKED] = "T-H-2D",
                                                          [KVC_VLLM_SPLIT] = "T-2-H-D",
                                                          [KVC_VLLM_ROWS] = "2-T-HD",
                                                          [KVC_VLLM_LATENT] = "T-C"};

enum kvc_vllm_shape kvc_vllm_shape_of(const char *name) {
    enum kvc_vllm_shape shape = 0;
    while (shape < KVC_VLLM_SHAPES && strcasecmp(name, kvc_vllm_shape_name[shape]) != 0) shape++;
    return shape;
}

int kvc_vllm_layer(const char *path, uint32_t *layer) {
    for (const char *dot = strchr(kvc_base_name(path), '.'); dot; dot = strchr(dot + 1, '.')) {
        const size_t n = strspn(dot + 1, "0123456789");
        if (!n || n > KVC_VLLM_DIGITS || dot[1 + n] != '.') continue;
        *layer = (uint32_t)strtoul(dot + 1, NULL, 10);
        return 1;
    }
    return 0;
}

int kvc_vllm_name_layer(const char *format, const char *pattern, uint32_t layer, const char *suffix,
                        char *name, size_t size, struct kvc_error *e) {
    const char *place = strstr(pattern, "{i}");
    uint32_t found = 0;
    const int n = place ? snprintf(name, size, "%.*s%" PRIu32 "%s%s", (int)(place - pattern),
                                   pattern, layer, place + 3, suffix)
                        : -1;
    if (n >= 0 && (size_t)n < size && !strchr(name, '/') && kvc_vllm_layer(name, &found) &&
        found == layer)
        return 0;
    return kvc_fail(e, KVC_ERR_USAGE,
                    "%s: name=%s must be a name without '/' that has {i} between dots, in place of "
                    "the first number, as in model.layers.{i}.self_attn.attn",
                    format, pattern);
}

struct out {
    const struct kvc_cache *cache;
    const struct kvc_member_sink *to;
    enum kvc_vllm_shape shape;
    uint64_t cpu_block;  /* tokens of a block of a CPU; 0: not for a CPU */
    const char *pattern; /* of the name of a layer, with "{i}" for its number */
};

int kvc_vllm_keeps(enum kvc_dtype dtype) {
    return kvc_safetensors_type_of((int)dtype) != NULL;
}

/* --- checks --- */

static int check_layer(const struct out *o, const struct kvc_layer *layer, uint64_t tokens,
                       struct kvc_error *e) {
    const struct kvc_cache *c = o->cache;
    if (layer->tensor[0] == KVC_NONE || layer->tensor[1] == KVC_NONE)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "vllm: layer %" PRIu32 " has no K or no V",
                        layer->index);
    const struct kvc_shape *k = &c->tensor[layer->tensor[0]].shape,
                           *v = &c->tensor[layer->tensor[1]].shape;
    if (k->dtype != v->dtype || k->heads != v->heads || k->dim != v->dim)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "vllm: K and V of layer %" PRIu32
                        " differ in dtype, heads or head dim, and lie in one array",
                        layer->index);
    if (c->part[layer->part].kind != KVC_PART_LIVE || k->tokens != tokens)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "vllm: layer %" PRIu32 " holds a sliding window, and all layers of a "
                        "folder hold the same tokens; use safetensors",
                        layer->index);
    if (o->cpu_block && tokens % o->cpu_block)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "vllm: %" PRIu64 " tokens are no whole blocks of a CPU (cpu-block=%" PRIu64
                        "): select a multiple, as vLLM does",
                        tokens, o->cpu_block);
    return 0;
}

/* --- a layer --- */

static int write_header(const struct out *o, const struct kvc_shape *shape, struct kvc_sink *sink,
                        struct kvc_error *e) {
    const uint64_t packed[] = {shape->tokens, shape->heads, 2 * shape->dim};
    const uint64_t split[] = {shape->tokens, 2, shape->heads, shape->dim};
    const uint64_t rows[] = {2, shape->tokens, shape->heads * shape->dim};
    const uint64_t *dim = o->shape == KVC_VLLM_PACKED  ? packed
                          : o->shape == KVC_VLLM_SPLIT ? split
                                                       : rows;
    struct kvc_safetensors_writer header;
    char heads[32], block[32];
    snprintf(block, sizeof block, "%" PRIu64, o->cpu_block);
    snprintf(heads, sizeof heads, "%" PRIu64, shape->heads);
    if (kvc_safetensors_writer_init(&header, e)) return -1;
    int status = kvc_safetensors_add_text(&header, KVC_VLLM_KEY_SHAPE,
                                          kvc_vllm_shape_name[o->shape], e);
    if (!status && o->cpu_block)
        status = kvc_safetensors_add_text(&header, KVC_VLLM_KEY_CPU_BLOCK, block, e);
    if (!status && o->shape == KVC_VLLM_ROWS && !o->cache->meta.facts.heads_unknown)
        status = kvc_safetensors_add_text(&header, KVC_VLLM_KEY_HEADS, heads, e);
    /* an assumption does not become a record */
    const struct kvc_rope_facts *rope = &o->cache->meta.facts.rope;
    if (!status && rope->pairing && !rope->assumed)
        status = kvc_safetensors_add_text(&header, KVC_VLLM_KEY_PAIRING,
                                          kvc_pairing_name(rope->pairing), e);
    if (!status)
        status = kvc_safetensors_add(&header, KVC_VLLM_ARRAY,
                                     kvc_safetensors_type_of((int)shape->dtype)->name, dim,
                                     o->shape == KVC_VLLM_SPLIT ? 4 : 3, e);
    if (!status) status = kvc_safetensors_write(&header, sink, e);
    kvc_safetensors_writer_free(&header);
    return status;
}

static int write_cpu_blocks(const struct out *o, const uint32_t *tensor, struct kvc_error *e) {
    const struct kvc_cache *c = o->cache;
    const struct kvc_shape *shape = &c->tensor[tensor[0]].shape;
    const uint64_t n = o->cpu_block, heads = shape->heads, dim = shape->dim,
                   row = kvc_row_bytes(shape);
    const size_t value = kvc_dtype_info(shape->dtype)->size;
    uint8_t *rows = kvc_alloc(n, row), *block = kvc_alloc(2 * n, row);
    int status = rows && block ? 0 : kvc_fail_memory(e, "blocks");
    for (uint64_t first = 0; first < shape->tokens && !status; first += n) {
        for (unsigned k = 0; k < 2 && !status; k++) {
            status = c->read(c, tensor[k], first, n, rows, e);
            for (uint64_t i = 0; i < n * heads * dim && !status; i++) {
                const uint64_t token = i / dim / heads, d = i % dim,
                               x = k ? (n + token) * dim + d : d * n + token;
                memcpy(block + kvc_vllm_cpu_value(x, i / dim % heads, heads, dim) * value,
                       rows + i * value, value);
            }
        }
        if (!status) status = kvc_sink_write(o->to->out, block, (size_t)(2 * n * row), e);
    }
    free(rows);
    free(block);
    return status;
}

static int write_layer(const struct out *o, const struct kvc_layer *layer, struct kvc_error *e) {
    const uint32_t *t = layer->tensor;
    const struct kvc_shape *shape = &o->cache->tensor[t[0]].shape;
    const uint64_t row = kvc_row_bytes(shape);
    struct kvc_sink *out = o->to->out;
    struct kvc_buffer header = {0};
    struct kvc_sink to_header = kvc_sink_buffer(&header);
    char name[512];
    int status = kvc_vllm_name_layer("vllm", o->pattern, layer->index, ".safetensors", name,
                                     sizeof name, e) ||
                 write_header(o, shape, &to_header, e) ||
                 o->to->begin(o->to->state, name, header.n + 2 * shape->tokens * row, e) ||
                 kvc_sink_write(out, header.data, header.n, e);
    free(header.data);
    if (status) return -1;
    if (o->cpu_block) status = write_cpu_blocks(o, t, e);
    else if (o->shape == KVC_VLLM_ROWS)
        status = kvc_write_rows(o->cache, t, 1, row, out, e) ||
                 kvc_write_rows(o->cache, t + 1, 1, row, out, e);
    else
        status = kvc_write_rows(o->cache, t, 2,
                                o->shape == KVC_VLLM_PACKED ? row / shape->heads : row, out, e);
    return status ? -1 : o->to->finish(o->to->state, e);
}

static int write_layers(const struct out *o, struct kvc_error *e) {
    const struct kvc_cache *c = o->cache;
    const struct kvc_layer *first = NULL;
    uint32_t stream;
    if (kvc_arrays_stream(c, &stream, e)) return -1;
    for (int writing = 0; writing < 2; writing++)
        for (uint32_t i = 0; i < c->n_layers; i++) {
            const struct kvc_layer *layer = &c->layer[i];
            const struct kvc_part *part = &c->part[layer->part];
            if (!kvc_part_is_attended(part) || part->stream != stream) continue;
            if (!first) first = layer;
            if (writing ? write_layer(o, layer, e)
                        : check_layer(o, layer, c->part[first->part].cells.n, e))
                return -1;
        }
    return 0;
}

static int vllm_write_take_shape(struct out *o, const char *told, struct kvc_error *e) {
    o->shape = told ? kvc_vllm_shape_of(told) : KVC_VLLM_PACKED;
    if (o->shape == KVC_VLLM_SHAPES || o->shape == KVC_VLLM_LATENT)
        return kvc_fail(e, KVC_ERR_USAGE, "vllm: shape=%s is none of T-H-2D, T-2-H-D, 2-T-HD",
                        told);
    if (o->cpu_block && o->shape != KVC_VLLM_PACKED)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "vllm: arrays of a CPU (cpu-block) have the shape T-H-2D, not %s", told);
    return 0;
}

int kvc_vllm_write(const struct kvc_cache *c, const struct kvc_export_options *options,
                   const struct kvc_member_sink *to, struct kvc_error *e) {
    const char *pattern = options->value[KVC_VLLM_TO_NAME].text;
    struct out o = {.to = to,
                    .cpu_block = options->value[KVC_VLLM_TO_CPU_BLOCK].count,
                    .pattern = pattern ? pattern : "model.layers.{i}.self_attn.attn"};
    struct kvc_arrays list;
    char name[512];
    if (vllm_write_take_shape(&o, options->value[KVC_VLLM_TO_SHAPE].text, e) ||
        kvc_vllm_name_layer("vllm", o.pattern, 0, ".safetensors", name, sizeof name, e))
        return -1;
    if (c->meta.facts.heads_unknown && o.shape != KVC_VLLM_ROWS)
        return kvc_fail_need(
            e, KVC_ERR_UNSUPPORTED, KVC_NEED_HEADS,
            "vllm: the number of KV heads is unknown, and the arrays have an axis of heads");
    if (kvc_arrays_list(&list, c, options, kvc_vllm_keeps, KVC_IDS_NONE, e))
        return -1; /* for its views: plain values, paired as in transformers */
    o.cache = list.cache;
    const int status = write_layers(&o, e);
    kvc_arrays_free(&list);
    return status;
}
