/* arrays_read.h: which K or V a tensor's name means, for formats that are bags of named arrays (safetensors, npz).
 * Not for finding the arrays in a file. */
#ifndef KVC_NAMES_H
#define KVC_NAMES_H

#include "formats/cache/cache.h"
#include "formats/cache/format.h"
#include "formats/io/input.h"
#include "formats/io/printable.h"

enum kvc_name_kind {
    KVC_NAME_OTHER,  /* carried as private bytes */
    KVC_NAME_TENSOR, /* K, V, queries or hidden states of a layer */
    KVC_NAME_TOKENS,
    KVC_NAME_POSITIONS
};

struct kvc_name {
    enum kvc_name_kind kind;
    enum kvc_role role;
    uint32_t layer; /* at most six digits */
    int sliding;    /* of a second, sliding-window cache that numbers its layers from 0 again */
};

/* Options of formats that are bags of arrays: the table, and positions in it. */
enum { KVC_ARRAYS_MAP };
extern const struct kvc_format_option kvc_arrays_options[];

/* By the patterns of the option `map` ("keys=model.{i}.k", "values=...", "queries=...", "hidden=...", "tokens=ids",
 * "positions=..."; "{i}" stands for the layer number) and by the conventions: layers.{i}.keys|values,
 * sliding.layers.{i}.keys|values, key_cache.{i} / value_cache.{i}, past_key_values.{i}.key|value,
 * queries.{i}, hidden.{i}, tokens, positions, sliding.positions. A pattern for keys or values turns the
 * conventions for both off; any other only its own. */
struct kvc_name kvc_name_of(const char *name, const struct kvc_import_options *o);
/* Refuses malformed patterns. */
int kvc_name_check_map(const struct kvc_import_options *o, struct kvc_error *e);
/* The export side: "layers.3.keys" and so on into text. */
void kvc_name_print(const struct kvc_name *name, char *text, size_t size);

#define KVC_ARRAY_RANK 8

/* One named array as found in a file. shape is [1,H,T,D] for K, V and queries, [1,T,D] or [T,D] for hidden
 * states, [T] or [1,T] for tokens and positions. */
struct kvc_array {
    const char *name;
    const char *type;                  /* element type as the format spells it, for messages */
    const struct kvc_dtype_info *info; /* NULL: no dtype that caches have */
    unsigned int_size;                 /* 4 or 8: little-endian signed integers, as tokens are; else 0 */
    uint64_t rank;
    uint64_t dim[KVC_ARRAY_RANK]; /* the first dimensions; their product is checked against size */
    const struct kvc_input *in; /* holds the data, from byte `at` on */
    uint64_t at, size;
    uint32_t tensor; /* out: number in the cache, or KVC_NONE */
};

/* Builds parts, layers, tensors and tokens from n arrays, which stand in file order, and maps the tensors;
 * the cache must have gone through kvc_cache_map(). Sets array[i].tensor. Layers of the longest cache form
 * the live part, shorter ones (sliding windows: only the last tokens are kept) sliding parts, queries and
 * hidden states companion parts. Where no array says otherwise the first part (the live one, or the longest
 * sliding one) has positions 0, 1, ..., and the others have its last ones. The caller adds extents and
 * metadata, then kvc_cache_finish(). */
int kvc_names_build(struct kvc_cache *c, struct kvc_array *array, size_t n,
                    const struct kvc_import_options *o, struct kvc_error *e);
/* The extents of a file: of n arrays, in file order, those that lie in it; everything else is literal. */
int kvc_names_extents(struct kvc_cache *c, const struct kvc_array *array, size_t n,
                      const struct kvc_input *in, struct kvc_error *e);
/* Metadata that holds for every bag of arrays: format, size in bytes, heads and layers known, no Hadamard rotation.
 * The pairing is o->pairing when given, else `pairing` (`assumed`: nothing in the file says so), else none. */
int kvc_names_meta(struct kvc_cache *c, const char *format, uint64_t bytes,
                   const struct kvc_import_options *o, enum kvc_pairing pairing, int assumed, struct kvc_error *e);

#endif
