/* rope_pairing.h: the channels of K that an engine rotates together, by the engine's architecture,
 * and their names. Not for rotating or permuting them (kernels, view.h). */
#ifndef KVC_ROPE_PAIRING_H
#define KVC_ROPE_PAIRING_H

#include "codecs/rope.h"

/* Returns the RoPE pairing of K in llama.cpp: its rope type of a GGUF architecture
 * (src/llama-model.cpp, llama_model_rope_type). */
enum kvc_pairing kvc_pairing_of_gguf_arch(const char *arch);
/* Returns the RoPE pairing of K in transformers, by model_type or GGUF architecture: halves unless
 * known otherwise. */
enum kvc_pairing kvc_pairing_of_transformers(const char *arch);

const char *kvc_pairing_name(enum kvc_pairing p);
/* Returns 1 and sets *p if the name is known. */
int kvc_pairing_parse(const char *name, enum kvc_pairing *p);

#endif
