/* rope_scaling.h: how scaled RoPE changes angles and lengths: llama3, YaRN, tables of GGUF files.
 * Not for the angles of a layer (layer_rope.h), and not for names of types (rope_names.h). */
#ifndef KVC_ROPE_SCALING_H
#define KVC_ROPE_SCALING_H

#include "codecs/error.h"
#include "formats/cache/facts.h"
#include "formats/model/gguf.h"

/* Sets what the angle of each of `half` pairs is divided by, which is theta^(-i / half) before, and
 * *length to what rotated channels are multiplied with, by the type and numbers that the metadata
 * hold. Returns 0 where they do not tell: a type that depends on the length that an engine was set
 * to, numbers that are missing or make no sense. */
int kvc_rope_scaling(const struct kvc_rope_facts *rope, size_t half, double *divisor,
                     double *length);

/* Fills the table with what a GGUF file has and metadata do not hold, of the file that `in` is: the
 * tensor rope_freqs.weight, YaRN's numbers. *rope is what the file says otherwise. A table that is
 * damaged, and one whose choice depends on the engine (rope_factors_long.weight), is unknown. */
void kvc_rope_table_gguf(struct kvc_rope_table *table, const struct kvc_gguf *g,
                         const struct kvc_input *in, const char *arch,
                         const struct kvc_rope_facts *rope);

#endif
