/* weights_names.c: tells a model's weights from other files of the same formats by the names of
 * their matrices. Not for finding the matrices of a layer (weights_tensors.c). */
#include "formats/model/weights_names.h"

#include <string.h>

static int has_word(const char *text, size_t size, const char *const *words) {
    for (; *words; words++)
        if (memmem(text, size, *words, strlen(*words))) return 1;
    return 0;
}

static int begins(const char *text, size_t size, const char *with) {
    const size_t n = strlen(with);
    return size >= n && memcmp(text, with, n) == 0;
}

/* As llama.cpp names them: "blk.0.attn_k.weight", "blk.0.ssm_in.weight",
 * "blk.0.time_mix_key.weight". An adapter adds ".lora_a", a projector begins with "v.blk.". */
static int is_gguf_attention(const char *name, size_t size) {
    static const char *const words[] = {".attn_", ".ssm_", ".time_mix_", NULL};
    static const char suffix[] = ".weight";
    const size_t n = sizeof suffix - 1;
    if (!begins(name, size, "blk.") && !begins(name, size, "dec.blk.")) return 0;
    if (size < n || memcmp(name + size - n, suffix, n) != 0) return 0;
    return has_word(name, size, words);
}

int kvc_gguf_has_attention(const struct kvc_gguf *g) {
    const uint8_t *at = g->tensors;
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        uint64_t size;
        uint32_t rank;
        const char *name = kvc_gguf_next_tensor(&at, &size, &rank);
        if (rank > 1 && is_gguf_attention(name, (size_t)size)) return 1;
    }
    return 0;
}

/* As transformers and others name them: "model.layers.0.self_attn.k_proj.weight",
 * "transformer.h.0.attn.c_attn.weight", "layers.0.attention.wq.weight",
 * "backbone.layers.0.mixer.in_proj.weight"; of quantised models "...qweight", "...W_q". */
static int weights_names_is_attention(const char *name) {
    static const char *const words[] = {"attn",  "attention",      "Attention", "mixer",
                                        "mamba", "temporal_block", "mlstm",     NULL};
    static const char *const adapters[] = {"lora_", NULL};
    const char *dot = strrchr(name, '.'), *last = dot ? dot + 1 : name;
    if (!strstr(last, "weight") && *last != 'W') return 0;
    return has_word(name, strlen(name), words) && !has_word(name, strlen(name), adapters);
}

int kvc_safetensors_has_attention(const struct kvc_safetensors *s) {
    for (size_t i = 0; i < s->n; i++)
        if (s->tensor[i].rank == 2 && weights_names_is_attention(s->tensor[i].name)) return 1;
    return 0;
}
