/* model.h: facts and fingerprint of a model's weights file (GGUF or safetensors). Not for loading
 * weights.
 *
 * KEYS.md, "Model fingerprint", defines the hashes. */
#ifndef KVC_MODEL_H
#define KVC_MODEL_H

#include "formats/cache/cache.h"
#include "formats/cache/layers.h"
#include "formats/cache/rope_names.h"
#include "formats/io/hash.h"

enum { KVC_MODEL_PATH = 4096 };

/* The file format of weights. Fingerprints and names of architectures differ by it. */
enum kvc_model_kind { KVC_MODEL_GGUF, KVC_MODEL_SAFETENSORS };

struct kvc_model {
    enum kvc_model_kind kind;
    char path[KVC_MODEL_PATH]; /* as it was given; "" where it is longer */
    /* 0: no matrix of attention was found, so the file is no model's weights (weights_names.h) */
    int has_attention;
    char name[256]; /* "" when the file does not say */
    char arch[64];  /* general.architecture of a GGUF, model_type of a config.json; "" unknown */
    /* 0: unknown, or not the same in all layers */
    uint64_t layers, heads, kv_heads, head_dim, head_dim_v;
    uint64_t window; /* 0: none or unknown */
    /* which layers have the window; pattern.n 0: unknown */
    struct kvc_layer_pattern pattern;
    /* as the kind's own engine keeps K: llama.cpp (gguf), transformers */
    enum kvc_pairing pairing;
    char rope_type[32]; /* as keys.h spells it; "" unknown */
    double rope_theta;  /* 0: unknown */
    double rope_factor; /* 0: none */
    uint64_t rope_dim;  /* 0: unknown */
    /* positions of training before scaling; 0: unknown */
    uint64_t rope_original;
    /* pairs of each coordinate of a position (M-RoPE) */
    uint64_t rope_section[KVC_ROPE_SECTIONS];
    uint32_t n_rope_sections;
    char rope_more[KVC_ROPE_MORE];    /* what else a config.json says of the scaling; "": nothing */
    struct kvc_rope_table rope_table; /* what else a GGUF file says of it */
    int latent;                       /* 1: attention may keep latents and no V */
    int has_tokenizer;
    uint8_t tokenizer[KVC_SHA256_BYTES];
    uint8_t sampled[KVC_SHA256_BYTES];
    int has_full;
    uint8_t full[KVC_SHA256_BYTES];
};

/* Returns "gguf" or "safetensors". */
const char *kvc_model_kind_name(enum kvc_model_kind kind);

/* Reads a GGUF file, or a safetensors file (or a directory that holds model.safetensors or its
 * shards) with the config.json and tokenizer.json beside it when they are there. A name like
 * x-00002-of-00003.gguf (or .safetensors) stands for all three files. `full` also hashes every
 * byte (file_hash.h). Files without attention are read, too: callers who store what they say open
 * them by kvc_given_model() (formats/file/given.h), which refuses them. */
int kvc_model_read(const char *path, int full, struct kvc_model *m, struct kvc_error *e);

/* Writes the model's facts into metadata (keys.h), over facts of the same key. `engine` 1: the
 * cache is llama.cpp's, so K is paired as the GGUF architecture says; 0: the cache is
 * transformers'. An existing rope.pairing stays. The table of RoPE becomes a fact without an entry.
 */
int kvc_model_store(const struct kvc_model *m, struct kvc_meta *meta, int engine,
                    struct kvc_error *e);

/* Compares a cache's metadata with a model. Returns 0 for the same model (or where nothing
 * contradicts), -1 and KVC_ERR_OTHER_MODEL otherwise. With a fingerprint of the same kind and
 * algorithm only the fingerprint counts; otherwise architecture (when spelled by the same kind),
 * geometry, RoPE and tokenizer are compared as far as both sides know them, and `note` says so (""
 * when the fingerprints matched). Pairing is not compared, as it belongs to the engine. */
int kvc_model_match(const struct kvc_meta *meta, const struct kvc_model *m, char *note, size_t size,
                    struct kvc_error *e);

#endif
