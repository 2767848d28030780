/* names.h: which K or V a tensor's name means, for formats that are bags of named arrays (safetensors, npz).
 * Not for the arrays themselves. */
#ifndef KVC_NAMES_H
#define KVC_NAMES_H

#include "formats/cache.h"
#include "formats/format.h"

enum kvc_name_kind {
    KVC_NAME_OTHER, /* carried as private bytes */
    KVC_NAME_TENSOR, /* K, V, queries or hidden states of a layer */
    KVC_NAME_TOKENS
};

struct kvc_name {
    enum kvc_name_kind kind;
    enum kvc_role role;
    uint32_t layer;
};

/* By o->map patterns when given ("keys=model.{i}.k", "values=...", "queries=", "hidden=", "tokens="; "{i}" stands
 * for the layer number), else by the conventions: layers.{i}.keys|values, key_cache.{i} / value_cache.{i},
 * past_key_values.{i}.key|value, queries.{i}, hidden.{i}, tokens. */
struct kvc_name kvc_name_of(const char *name, const struct kvc_import_options *o);
/* Refuses malformed --map patterns. */
int kvc_name_check_map(const struct kvc_import_options *o, struct kvc_error *e);

/* One named array as found in a file. shape is [1,H,T,D] for K, V and queries, [1,T,D] or [T,D] for hidden
 * states, [T] for tokens. */
struct kvc_array {
    const char *name;
    enum kvc_dtype dtype; /* of values; tokens arrays use token_size instead */
    int is_int;           /* integer dtype of token_size bytes (4 or 8), for tokens */
    unsigned token_size;
    unsigned rank;
    uint64_t dim[8];
    const uint8_t *data;
    uint64_t size;
    uint32_t tensor; /* out: number in the cache, or KVC_NONE */
};

/* Builds parts, layers, tensors and tokens from n arrays; sets array[i].tensor; refuses inconsistent shapes.
 * The caller adds extents and metadata, then kvc_cache_finish(). */
int kvc_names_build(struct kvc_cache *c, struct kvc_array *array, size_t n, const struct kvc_import_options *o,
                    struct kvc_error *e);

/* The export side: "layers.3.keys" and so on into text. */
void kvc_name_print(enum kvc_role role, uint32_t layer, char *text, size_t size);

#endif
