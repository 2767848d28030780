/* facts.c: decodes metadata into typed facts. Not for deciding by them. */
#include "formats/cache/facts.h"

#include "formats/cache/keys.h"
#include "formats/cache/rope_pairing.h"

#include <string.h>

/* How the values of source.format begin. */
static const struct {
    const char *begin;
    enum kvc_source source;
} sources[] = {/* longer names before those that they begin with */
               {"llama.cpp", KVC_SOURCE_LLAMA},
               {"safetensors", KVC_SOURCE_SAFETENSORS},
               {"npz", KVC_SOURCE_NPZ},
               {"mlx", KVC_SOURCE_MLX},
               {"torch", KVC_SOURCE_TORCH},
               {"raw", KVC_SOURCE_RAW},
               {"vllm-blocks", KVC_SOURCE_VLLM_BLOCKS},
               {"vllm", KVC_SOURCE_VLLM},
               {"lmcache-gds", KVC_SOURCE_LMCACHE_GDS},
               {"lmcache", KVC_SOURCE_LMCACHE},
               {"hicache", KVC_SOURCE_HICACHE}};

static enum kvc_source source_of(const struct kvc_meta *meta) {
    const char *text = kvc_meta_text(meta, KVC_KEY_SOURCE_FORMAT, "");
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++)
        if (strncmp(text, sources[i].begin, strlen(sources[i].begin)) == 0)
            return sources[i].source;
    return KVC_SOURCE_OTHER;
}

static int text_is(const struct kvc_meta *meta, const char *key, const char *otherwise,
                   const char *value) {
    return strcmp(kvc_meta_text(meta, key, otherwise), value) == 0;
}

static void read_rope(struct kvc_facts *f, const struct kvc_meta *meta) {
    kvc_pairing_parse(kvc_meta_text(meta, KVC_KEY_ROPE_PAIRING, ""), &f->pairing);
    f->pairing_assumed = kvc_meta_bool(meta, KVC_KEY_ROPE_ASSUMED, 0);
    f->after_rope = text_is(meta, KVC_KEY_ROPE_K, "post", "post");
    f->rope_type = kvc_rope_type_parse(kvc_meta_text(meta, KVC_KEY_ROPE_TYPE, ""));
    f->theta = kvc_meta_f64(meta, KVC_KEY_ROPE_THETA, 0);
    f->factor = kvc_meta_f64(meta, KVC_KEY_ROPE_FACTOR, 1);
    f->rotated = kvc_meta_u64(meta, KVC_KEY_ROPE_DIM, 0);
    f->rotated_known = f->rotated || !kvc_meta_u64(meta, KVC_KEY_ROPE_DIM, 1);
}

static void read_model(struct kvc_facts *f, const struct kvc_meta *meta) {
    f->layers = kvc_meta_u64(meta, KVC_KEY_MODEL_LAYERS, 0);
    f->query_heads = kvc_meta_u64(meta, KVC_KEY_MODEL_HEADS, 0);
    f->kv_heads = kvc_meta_u64(meta, KVC_KEY_MODEL_KV_HEADS, 0);
    f->head_dim = kvc_meta_u64(meta, KVC_KEY_MODEL_HEAD_DIM, 0);
    f->head_dim_v = kvc_meta_u64(meta, KVC_KEY_MODEL_HEAD_DIM_V, 0);
    if (!f->head_dim_v) f->head_dim_v = f->head_dim; /* stored only where it differs */
    f->architecture = kvc_meta_text(meta, KVC_KEY_MODEL_ARCH, "");
}

struct kvc_facts kvc_facts_of(const struct kvc_meta *meta) {
    static const char *const tile_key[2] = {KVC_KEY_HADAMARD_K, KVC_KEY_HADAMARD_V};
    struct kvc_facts f = {.source = source_of(meta)};
    read_rope(&f, meta);
    read_model(&f, meta);
    for (int i = 0; i < 2; i++) {
        f.tile[i] = kvc_meta_u64(meta, tile_key[i], 0);
        f.tile_known[i] = kvc_meta_find(meta, tile_key[i]) != NULL;
    }
    f.heads_known = kvc_meta_bool(meta, KVC_KEY_HEADS_KNOWN, 1);
    f.layers_known = kvc_meta_bool(meta, KVC_KEY_LAYERS_KNOWN, 1);
    f.window = kvc_meta_u64(meta, KVC_KEY_WINDOW, 0);
    f.hidden_place = kvc_hidden_place_parse(kvc_meta_text(meta, KVC_KEY_HIDDEN_STATES, ""));
    f.tokens_first = kvc_meta_u64(meta, KVC_KEY_TOKENS_FIRST, 0);
    f.has_profile = kvc_meta_find(meta, KVC_KEY_PROFILE) != NULL;
    f.had_tokens = !text_is(meta, KVC_KEY_LLAMA_TOKEN_FORM, "none", "none");
    f.plain_tokens = text_is(meta, KVC_KEY_LLAMA_TOKEN_FORM, "server", "plain");
    f.cell_words = kvc_meta_u64(meta, KVC_KEY_LLAMA_CELL_EXT, 0);
    return f;
}

uint64_t kvc_facts_rotated(const struct kvc_facts *facts, uint64_t dim) {
    return facts->rotated_known ? facts->rotated : dim;
}
