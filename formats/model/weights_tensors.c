/* weights_tensors.c: the open files of a model's weights, and the tensors of a layer in them. Not
 * for converting their values (weights.c, weights_product.c). */
#include "formats/model/weights_tensors.h"

#include "codecs/memory.h"
#include "formats/io/printable.h"
#include "formats/model/model_files.h"
#include "kernels/kernels.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- files --- */

static int weights_tensors_read_header(struct kvc_weights_part *part, struct kvc_error *e) {
    uint64_t header;
    if (kvc_model_file_begins(&part->in, &header, e)) return -1;
    part->is_gguf = !header;
    if (part->is_gguf) return kvc_gguf_open(&part->gguf, &part->in, e);
    return kvc_safetensors_read_input(&part->safetensors, &part->in, KVC_SAFETENSORS_ANY_DTYPE, e);
}

int kvc_weights_add_part(struct kvc_weights *w, const char *path, struct kvc_error *e) {
    struct kvc_weights_part *grown = kvc_realloc(w->part, w->n + 1, sizeof *grown);
    if (!grown) return kvc_fail_memory(e, "the weights files");
    w->part = grown;
    struct kvc_weights_part *part = &w->part[w->n];
    memset(part, 0, sizeof *part);
    if (kvc_input_open(&part->in, path, e)) return -1;
    w->n++; /* from here on kvc_weights_close() sees it */
    if (weights_tensors_read_header(part, e)) return -1;
    if (part->is_gguf != kvc_weights_are_gguf(w))
        return kvc_fail(e, KVC_ERR_DAMAGED, "GGUF and safetensors files in one model");
    return 0;
}

void kvc_weights_part_close(struct kvc_weights_part *part) {
    kvc_safetensors_free(&part->safetensors);
    kvc_gguf_close(&part->gguf);
    kvc_input_close(&part->in);
}

int kvc_weights_are_gguf(const struct kvc_weights *w) {
    return w->part[0].is_gguf;
}

/* --- names --- */

/* Names of tensors, in which '#' stands for the layer's number; NULL: there is no such tensor. A
 * '/' in front: the name has no prefix. */
static const char *const gguf_names[KVC_WEIGHTS] = {
    "blk.#.attn_k.weight",        "blk.#.attn_k.bias",
    "blk.#.attn_v.weight",        "blk.#.attn_v.bias",
    "blk.#.attn_norm.weight",     "blk.#.attn_norm.bias",
    "blk.#.attn_k_norm.weight",   "blk.#.attn_q.weight",
    "blk.#.attn_q.bias",          "blk.#.attn_q_norm.weight",
    "blk.#.attn_output.weight",   "blk.#.post_attention_norm.weight",
    "blk.#.ffn_norm.weight",      "blk.#.ffn_gate.weight",
    "blk.#.ffn_up.weight",        "blk.#.ffn_down.weight",
    "blk.#.post_ffw_norm.weight", "token_embd.weight",
    "output_norm.weight",         "output.weight"};
static const char *const transformers_names[KVC_WEIGHTS] = {
    "layers.#.self_attn.k_proj.weight",
    "layers.#.self_attn.k_proj.bias",
    "layers.#.self_attn.v_proj.weight",
    "layers.#.self_attn.v_proj.bias",
    "layers.#.input_layernorm.weight",
    "layers.#.input_layernorm.bias",
    "layers.#.self_attn.k_norm.weight",
    "layers.#.self_attn.q_proj.weight",
    "layers.#.self_attn.q_proj.bias",
    "layers.#.self_attn.q_norm.weight",
    "layers.#.self_attn.o_proj.weight",
    "layers.#.post_attention_layernorm.weight",
    "layers.#.pre_feedforward_layernorm.weight",
    "layers.#.mlp.gate_proj.weight",
    "layers.#.mlp.up_proj.weight",
    "layers.#.mlp.down_proj.weight",
    "layers.#.post_feedforward_layernorm.weight",
    "embed_tokens.weight",
    "norm.weight",
    "/lm_head.weight"};
static const char *const cache_names[KVC_WEIGHTS] = {
    [KVC_WEIGHT_K] = "wk.#", [KVC_WEIGHT_V] = "wv.#", [KVC_WEIGHT_Q] = "wq.#"};

struct kvc_weights_naming {
    int gguf;
    const char *prefix;
    const char *const *name;
};
static const struct kvc_weights_naming namings[] = {
    {1, "", gguf_names},
    {0, "model.", transformers_names},
    {0, "language_model.model.", transformers_names},
    {0, "model.language_model.", transformers_names},
    {0, "", transformers_names},
    {0, "", cache_names},
};
#define NAMINGS (sizeof namings / sizeof namings[0])

/* --- tensors --- */

/* Writes the name of a tensor; returns 0 when the naming has none. */
static int spell(const struct kvc_weights_naming *naming, enum kvc_weight which, uint32_t layer,
                 char *text, size_t size) {
    const char *name = naming->name[which], *mark = name ? strchr(name, '#') : NULL;
    if (!name) return 0;
    if (!mark) {
        snprintf(text, size, "%s%s", *name == '/' ? "" : naming->prefix, name + (*name == '/'));
        return 1;
    }
    snprintf(text, size, "%s%.*s%" PRIu32 "%s", naming->prefix, (int)(mark - name), name, layer,
             mark + 1);
    return 1;
}

/* Sets where the values are, at `offset` from `base`, which lies inside the file. Refuses bytes
 * beyond the end of the file. */
static int weights_tensors_place(struct kvc_weights_tensor *t, const struct kvc_input *in,
                                 uint64_t base, uint64_t offset, uint64_t bytes,
                                 struct kvc_error *e) {
    uint64_t size = in->size - base;
    if (offset > size || bytes > size - offset)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "%s: '%s' needs %" PRIu64 " bytes from byte %" PRIu64
                        " of the data on, but there are %" PRIu64
                        " (file cut short or header damaged)",
                        t->file, t->name, bytes, offset, size);
    t->in = in;
    t->offset = base + offset;
    t->bytes = bytes;
    return 0;
}

/* Bytes of the tensor's values. Returns -1 when rows are no whole blocks or the bytes pass 64 bits.
 */
static int bytes_of(const struct kvc_weights_tensor *t, uint64_t *bytes) {
    uint64_t inner = t->rank ? t->dim[t->rank - 1] : 1;
    if (inner % t->type.block) return -1;
    *bytes = inner / t->type.block;
    for (uint64_t i = 0; i + 1 < t->rank; i++)
        if (__builtin_mul_overflow(*bytes, t->dim[i], bytes)) return -1;
    if (__builtin_mul_overflow(*bytes, t->type.size, bytes)) return -1;
    return 0;
}

static void set_type(struct kvc_weights_tensor *t, const struct kvc_dtype_info *info) {
    t->type = (struct kvc_weights_type){info->name, info->block, info->size, info->to_f32};
}

/* Sets the type of a number of ggml's enum ggml_type; -1 where kvc cannot read its values. */
static int set_ggml_type(struct kvc_weights_tensor *t, uint32_t number) {
    static const struct {
        uint32_t number, size;
        void (*to_f32)(float *dst, const uint8_t *src, size_t blocks);
    } large[] = {{10, 84, kvc_q2_k_to_f32},  {11, 110, kvc_q3_k_to_f32},
                 {12, 144, kvc_q4_k_to_f32}, {13, 176, kvc_q5_k_to_f32},
                 {14, 210, kvc_q6_k_to_f32}, {23, 136, kvc_iq4_xs_to_f32}};
    const struct kvc_dtype_info *info = kvc_dtype_by_ggml(number);
    if (info) {
        set_type(t, info);
        return 0;
    }
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++) {
        if (large[i].number != number) continue;
        t->type = (struct kvc_weights_type){kvc_gguf_type_name(number), KVC_GGML_LARGE,
                                            large[i].size, large[i].to_f32};
        return 0;
    }
    return -1;
}

static int take_gguf(struct kvc_weights_tensor *t, const struct kvc_weights_part *part,
                     const struct kvc_gguf_tensor *found, struct kvc_error *e) {
    if (set_ggml_type(t, found->type)) {
        const char *type = kvc_gguf_type_name(found->type);
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "%s: '%s' has type %s (number %" PRIu32
                        "); kvc reads weights in f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, "
                        "q2_K to q6_K, iq4_nl and iq4_xs: take the model in one of these",
                        t->file, t->name, type ? type : "unknown", found->type);
    }
    t->rank = found->rank;
    for (uint32_t i = 0; i < found->rank; i++) t->dim[i] = found->dim[found->rank - 1 - i];
    uint64_t bytes;
    if (bytes_of(t, &bytes))
        return kvc_fail(e, KVC_ERR_DAMAGED, "%s: '%s' has dimensions that no tensor of %s can have",
                        t->file, t->name, t->type.name);
    return weights_tensors_place(t, &part->in, part->gguf.data_offset,
                                 found->offset - part->gguf.data_offset, bytes, e);
}

static int take_safetensors(struct kvc_weights_tensor *t, const struct kvc_weights_part *part,
                            const struct kvc_safetensors_tensor *found, struct kvc_error *e) {
    const int dtype = found->type ? found->type->dtype : -1;
    char shown[32];
    if (dtype != KVC_F32 && dtype != KVC_F16 && dtype != KVC_BF16)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "%s: '%s' has dtype %s; kvc reads weights in F32, F16 and BF16", t->file,
                        t->name, kvc_name_show(found->dtype, shown, sizeof shown));
    if (found->rank > KVC_WEIGHTS_RANK)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s: '%s' has %" PRIu64 " dimensions", t->file,
                        t->name, found->rank);
    set_type(t, kvc_dtype_info((unsigned)dtype));
    t->rank = found->rank;
    for (size_t i = 0; i < t->rank; i++) t->dim[i] = found->dim[i];
    t->in = &part->in;
    t->offset = part->safetensors.data_at + found->begin;
    t->bytes = found->end - found->begin;
    return 0;
}

int kvc_weights_find(const struct kvc_weights *w, const struct kvc_weights_naming *naming,
                     enum kvc_weight which, uint32_t layer, struct kvc_weights_tensor *t,
                     struct kvc_error *e) {
    memset(t, 0, sizeof *t);
    if (naming->gguf != kvc_weights_are_gguf(w) ||
        !spell(naming, which, layer, t->name, sizeof t->name))
        return 0;
    for (size_t i = 0; i < w->n; i++) {
        const struct kvc_weights_part *part = &w->part[i];
        t->file = kvc_base_name(part->in.name);
        if (naming->gguf) {
            struct kvc_gguf_tensor found;
            if (kvc_gguf_tensor(&part->gguf, t->name, &found))
                return take_gguf(t, part, &found, e) ? -1 : 1;
        } else {
            const struct kvc_safetensors_tensor *found = kvc_safetensors_find(&part->safetensors,
                                                                              t->name);
            if (found) return take_safetensors(t, part, found, e) ? -1 : 1;
        }
    }
    return 0;
}

int kvc_weights_missing(const struct kvc_weights *w, const char *name, struct kvc_error *e) {
    return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                    "%s%s: no tensor '%s' (one tensor of Q, K and V together, and latent "
                    "attention, cannot be used)",
                    kvc_base_name(w->part[0].in.name), w->n > 1 ? " and the other shards" : "",
                    name);
}

const struct kvc_weights_naming *kvc_weights_find_k(const struct kvc_weights *w, uint32_t layer,
                                                    struct kvc_weights_tensor *k,
                                                    struct kvc_error *e) {
    const struct kvc_weights_naming *usual = NULL;
    for (size_t i = 0; i < NAMINGS; i++) {
        if (namings[i].gguf != kvc_weights_are_gguf(w)) continue;
        const int found = kvc_weights_find(w, &namings[i], KVC_WEIGHT_K, layer, k, e);
        if (found) return found < 0 ? NULL : &namings[i];
        if (!usual) usual = &namings[i];
    }
    spell(usual, KVC_WEIGHT_K, layer, k->name, sizeof k->name);
    kvc_weights_missing(w, k->name, e);
    return NULL;
}
