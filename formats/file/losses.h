/* losses.h: the content of a cache that a format does not hold, and the values that it stores in
 * another type. Not for caches that a format cannot hold at all: exports refuse them. */
#ifndef KVC_LOSSES_H
#define KVC_LOSSES_H

#include "formats/cache/format.h"

struct kvc_losses {
    char lost[1280]; /* "npz does not hold the model's name, RoPE facts"; "": nothing is lost */
    char casts[256]; /* "npz: values of bf16 are written as f32"; "": all keep their types */
};

/* Finds what export to a format with these options leaves out, of what somebody would miss. `c` is
 * the cache that is exported: of a selection, its view. Facts of the model do not count if
 * has_model is 1, because the caller has the model's file, or if the cache came from a file of this
 * format, which had no place for them either. Facts that are unknown or only assumed do not count,
 * nor does what kvc-pack adds: producer, source, recipe, profile, prefix keys. */
void kvc_losses_find(struct kvc_losses *l, const struct kvc_format *to, const struct kvc_cache *c,
                     const struct kvc_export_options *o, int has_model);
/* Refuses an export that loses anything. */
int kvc_losses_refuse(const struct kvc_losses *l, struct kvc_error *e);

#endif
