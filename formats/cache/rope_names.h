/* rope_names.h: RoPE as files name it: the channels of K that an engine rotates together, by the
 * model's architecture, and their names; the scaling in transformers' config.json. Not for rotating
 * or permuting (kernels, view.h). */
#ifndef KVC_ROPE_NAMES_H
#define KVC_ROPE_NAMES_H

#include "codecs/rope.h"

#include <jansson.h>

/* Returns the RoPE pairing of K in llama.cpp: its rope type of a GGUF architecture
 * (src/llama-model.cpp, llama_model_rope_type). NULL: an unknown architecture. */
enum kvc_pairing kvc_pairing_of_gguf_arch(const char *arch);
/* Returns the RoPE pairing of K in transformers, by model_type or GGUF architecture: halves unless
 * known otherwise. */
enum kvc_pairing kvc_pairing_of_transformers(const char *arch);

const char *kvc_pairing_name(enum kvc_pairing p);
/* Returns UNKNOWN for other texts than the names of known pairings. */
enum kvc_pairing kvc_pairing_parse(const char *name);
/* The same for the text "rope_pairing" of safetensors files, which has "half" for halves. */
const char *kvc_pairing_tensor_name(enum kvc_pairing p);
enum kvc_pairing kvc_pairing_parse_tensor(const char *name);

enum { KVC_ROPE_SECTIONS = 4, KVC_ROPE_MORE = 4096 };

/* The objects rope_scaling and rope_parameters of config.json. */
struct kvc_rope_scaling {
    /* as metadata spell it; NULL: not said. Owned by the object, or static */
    const char *type;
    double factor; /* 0: none */
    /* positions that the model was trained with before scaling; 0: not said */
    uint64_t original;
    uint64_t section[KVC_ROPE_SECTIONS]; /* pairs of each coordinate (M-RoPE) */
    uint32_t n_sections;
    /* the entries that are none of these, and not the base, as a JSON object; "": none, or too many
     */
    char more[KVC_ROPE_MORE];
};

/* Reads an object; one that is NULL or no object says nothing. */
void kvc_rope_scaling_read(struct kvc_rope_scaling *s, const json_t *object);

#endif
