/* uniform.h: a cache whose layers have one type and shape, for writing formats that are one array
 * of it, or pages of such an array. Not for the bytes of any format. */
#ifndef KVC_UNIFORM_H
#define KVC_UNIFORM_H

#include "formats/engines/arrays_write.h"

struct kvc_uniform {
    struct kvc_arrays arrays; /* the cache to read from, and its views */
    uint32_t stream;
    uint32_t part; /* of the layers */
    const struct kvc_dtype_info *info;
    uint64_t layers, tokens;
    uint64_t heads, dim; /* of K and of V; heads = 1 where heads_known is 0: all of a row */
    int latent;          /* 1: a layer has a latent in place of K and V */
    int heads_known;
    uint8_t *rows;
};

/* Prepares a cache for writing: one sequence, whose layers have equal types and shapes, with values
 * and pairing as kvc_arrays_views() makes them. `keeps` returns 1 for the dtypes of the format;
 * others are refused. `format` begins the messages. */
int kvc_uniform_open(struct kvc_uniform *u, const struct kvc_cache *c,
                     const struct kvc_export_options *o, int (*keeps)(enum kvc_dtype),
                     const char *format, struct kvc_error *e);
void kvc_uniform_close(struct kvc_uniform *u);
/* Returns 1 if a layer of u->arrays.cache is one of those to write, which come in the order of the
 * cache. */
int kvc_uniform_has(const struct kvc_uniform *u, const struct kvc_layer *layer);
/* Writes rows, in order of position, to their place in memory: the place's cells are numbers of
 * rows, and its offset counts from `base`. */
int kvc_uniform_place(struct kvc_uniform *u, const struct kvc_place *place, uint8_t *base,
                      struct kvc_error *e);

#endif
