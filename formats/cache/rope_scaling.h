/* rope_scaling.h: RoPE facts in the JSON objects of transformers' config.json: rope_scaling,
 * rope_parameters. Not for rotating. */
#ifndef KVC_ROPE_SCALING_H
#define KVC_ROPE_SCALING_H

#include <jansson.h>
#include <stdint.h>

enum { KVC_ROPE_SECTIONS = 4, KVC_ROPE_MORE = 4096 };

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
