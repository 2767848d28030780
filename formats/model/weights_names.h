/* weights_names.h: tells a model's weights from other files of the same formats by the names of
 * their matrices. Not for finding the matrices of a layer (weights_tensors.h). */
#ifndef KVC_WEIGHTS_NAMES_H
#define KVC_WEIGHTS_NAMES_H

#include "formats/io/safetensors_file.h"
#include "formats/model/gguf.h"

/* Return 1 if the file has a matrix of attention, or of what a model has in its place (state-space
 * layers, RWKV). Vocabularies, adapters (LoRA), projectors of pictures, profiles and caches have
 * none. */
int kvc_gguf_has_attention(const struct kvc_gguf *g);
int kvc_safetensors_has_attention(const struct kvc_safetensors *s);

#endif
