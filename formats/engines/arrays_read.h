/* arrays_read.h: the meaning of the names of arrays, K or V of a layer for instance, for formats
 * that are collections of named arrays (safetensors, npz). Not for finding the arrays in a file. */
#ifndef KVC_NAMES_H
#define KVC_NAMES_H

#include "formats/cache/cache.h"
#include "formats/cache/format.h"
#include "formats/io/input.h"
#include "formats/io/printable.h"

enum kvc_name_kind {
    KVC_NAME_OTHER,  /* kept as private bytes of the file */
    KVC_NAME_TENSOR, /* K, V, queries or hidden states of a layer */
    KVC_NAME_TOKENS,
    KVC_NAME_POSITIONS,
    KVC_NAME_FACT /* read by the format itself */
};

enum { KVC_NAME_DIGITS = 6 };

struct kvc_name {
    enum kvc_name_kind kind;
    enum kvc_role role;
    uint32_t layer; /* at most KVC_NAME_DIGITS digits */
    /* 1: of a second cache, for sliding windows, which numbers its layers from 0 again */
    int sliding;
    int both; /* 1: K and V in one array, which kvc_arrays_split() takes apart */
};

/* Options of formats that are collections of arrays: the table, and positions in it. */
enum { KVC_ARRAYS_MAP, KVC_ARRAYS_LATENT };
extern const struct kvc_format_option kvc_arrays_options[];

/* Interprets a name by the patterns of the option `map` ("keys=model.{i}.k", "values=...",
 * "queries=...", "hidden=...", "tokens=ids", "positions=...", "kv=..." for K and V in one array;
 * "{i}" stands for the layer number) and by the conventions: layers.{i}.keys|values,
 * sliding.layers.{i}.keys|values, key_cache.{i} / value_cache.{i}, past_key_values.{i}.key|value,
 * keys.{i} / values.{i}, queries.{i}, hidden.{i}, tokens, positions, sliding.positions. A pattern
 * for keys or values replaces the conventions for both; any other pattern replaces only its own. */
struct kvc_name kvc_name_of(const char *name, const struct kvc_import_options *o);
/* Returns 1 if patterns name keys or values, so that no convention does. */
int kvc_name_maps_attention(const struct kvc_import_options *o);
/* Returns the order of axes that the option `map` says ("axes=lbhtd"), slowest first; NULL: it says
 * none. */
const char *kvc_name_axes(const struct kvc_import_options *o);
/* Returns the type that the option `map` says integers of 8 or 16 bits are ("dtype=bf16"); NULL: it
 * says none. */
const struct kvc_dtype_info *kvc_name_dtype(const struct kvc_import_options *o);
/* Refuses malformed patterns, and axes that do not fit them. */
int kvc_name_check_map(const struct kvc_import_options *o, struct kvc_error *e);
/* Writes the name for exports into `text`: "layers.3.keys", for instance. */
void kvc_name_print(const struct kvc_name *name, char *text, size_t size);

#define KVC_ARRAY_RANK 8

/* One named array of a file. Its shape is [1,H,T,D] for K, V and queries, [1,T,D] or [T,D] for
 * hidden states, [T] or [1,T] for tokens and positions. */
struct kvc_array {
    const char *name;
    /* meaning, where the format itself says it; KVC_NAME_OTHER: the name says it */
    struct kvc_name known;
    size_t member;                     /* of the bundle, that the array is from */
    const char *type;                  /* element type in the words of the format, for messages */
    const struct kvc_dtype_info *info; /* NULL: caches have no such dtype */
    /* bytes of little-endian signed integers, as tokens are: 4 or 8; else 0 */
    unsigned int_size;
    /* bytes of integers that may be the bits of other values: 1 or 2; else 0 */
    unsigned raw_size;
    uint64_t rank;
    uint64_t dim[KVC_ARRAY_RANK];    /* the first dimensions; their product matches the size */
    const struct kvc_input *in;      /* holds the data, from byte `at` on */
    uint64_t at, size;               /* size: bytes from the first value to the last */
    int strided;                     /* 1: values lie by `stride`; 0: row-major, without gaps */
    uint64_t stride[KVC_ARRAY_RANK]; /* bytes, of the first dimensions */
    /* for the format's own use: position after the last row; 0: unknown */
    uint64_t end;
    /* for the format's own use: tokens of the layer's sliding window; 0: unknown */
    uint32_t window;
    uint32_t tensor;            /* out: number in the cache, or KVC_NONE */
    enum kvc_name_kind meaning; /* out: what it was taken as */
};

/* Builds parts, layers, tensors and tokens from n arrays, which are in the order of the file, and
 * maps the tensors. The cache must have gone through kvc_cache_map(). Sets array[i].tensor. Layers
 * of the longest cache form the live part; shorter ones, of which a sliding window kept only the
 * last tokens, form sliding parts; queries and hidden states form companion parts. Unless an array
 * of positions says otherwise, the first part (the live one, or the longest sliding one) has
 * positions 0, 1, ..., and shorter parts have the last of these. Arrays with a row for each of the
 * first part's rows are in the order of these rows in the file: their positions are the same, and
 * token ids become those of sorted rows. The caller adds extents and metadata, then calls
 * kvc_cache_finish(). */
int kvc_names_build(struct kvc_cache *c, struct kvc_array *array, size_t n,
                    const struct kvc_import_options *o, struct kvc_error *e);
/* Refuse arrays of which none is K or V, and a layer that has one without the other; with advice by
 * what is there. `mapped`: the caller has named keys or values. */
int kvc_names_unknown(const struct kvc_array *array, size_t n, int mapped, struct kvc_error *e);
int kvc_names_lone(const struct kvc_array *a, uint32_t layer, int is_k, struct kvc_error *e);
/* For kvc_names_build(): what lies beside K and V, of the arrays without another meaning. Returns 1
 * for names of which one is seen. */
int kvc_name_is_beside(const char *name);
/* Returns input_ids if there are no token ids and they fit the rows: one for each, or one more, of
 * the token that was sampled last. */
const struct kvc_array *kvc_names_ids(const struct kvc_cache *c, struct kvc_array *array, size_t n);
/* Returns position_ids if there is one for each of `rows` rows; NULL: there are none. */
const struct kvc_array *kvc_names_position_ids(struct kvc_array *array, size_t n, uint64_t rows);
/* For positions of position_ids, which are of no use for padding: rows that attention_mask leaves
 * out get the positions before and after those of the rows that it keeps, below 0 too. */
int kvc_names_pad_positions(struct kvc_cells *cells, struct kvc_array *array, size_t n,
                            struct kvc_error *e);
/* Notes the padding of attention_mask, and records the names of all others. */
int kvc_names_beside(struct kvc_cache *c, struct kvc_array *array, size_t n, struct kvc_error *e);
/* Adds the extents of a file: those of n arrays, in the order of the file, that lie in it. All
 * other bytes are literal. Arrays that lie between each other become one region; two arrays that
 * share a byte are refused. */
int kvc_names_extents(struct kvc_cache *c, const struct kvc_array *array, size_t n,
                      const struct kvc_input *in, struct kvc_error *e);
/* Records the position of the first token where arrays of tokens and positions have the same length
 * and positions begin above 0. For formats that have no other place for it. */
int kvc_names_first_token(struct kvc_cache *c, struct kvc_error *e);
/* Fails, with the description of an array before the message. Returns -1. */
int kvc_array_fail(const struct kvc_array *a, struct kvc_error *e, enum kvc_code code,
                   const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Fails because an array holds n sequences. */
int kvc_array_fail_batch(const struct kvc_array *a, uint64_t n, struct kvc_error *e);
/* Describes an array for messages: "array 'layers.0.keys' (F16 [1,3,7,64])". */
const char *kvc_array_describe(const struct kvc_array *a, char *text, size_t size);

struct kvc_safetensors;
struct kvc_safetensors_tensor;
/* Makes an array of a tensor of a safetensors header; its name belongs to the header. */
int kvc_array_of_safetensors(struct kvc_array *a, const struct kvc_safetensors_tensor *t,
                             const struct kvc_safetensors *header, const struct kvc_input *in,
                             struct kvc_error *e);

#endif
