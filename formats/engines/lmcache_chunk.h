/* lmcache_chunk.h: a chunk of LMCache: K and V of some tokens as one array, without the bytes
 * around it, which differ by storage: lmcache.c, lmcache_gds.c. Not for these. */
#ifndef KVC_LMCACHE_CHUNK_H
#define KVC_LMCACHE_CHUNK_H

#include "formats/cache/format.h"
#include "formats/engines/geometry.h"
#include "formats/engines/uniform.h"

/* Layouts of the array. */
enum kvc_lmcache_layout {
    KVC_LMCACHE_2LTD,  /* [2][layer][token][heads * dim]: K of all layers, then V */
    KVC_LMCACHE_T2D,   /* one layer: [token][2][heads * dim] */
    KVC_LMCACHE_2TD,   /* one layer: [2][token][heads * dim] */
    KVC_LMCACHE_MLA,   /* latents: [1][layer][token][channels] */
    KVC_LMCACHE_FUSED, /* [1][layer][token][heads * 2 * dim]: K and V of a head are neighbours */
    KVC_LMCACHE_LAYOUTS
};

#define KVC_LMCACHE_NAMES "2ltd|t2d|2td|mla|fused"

/* What no chunk holds (format.h). */
#define KVC_LMCACHE_LACKS                                                                  \
    (KVC_LACKS_TOKENS | KVC_LACKS_POSITIONS | KVC_LACKS_COORDINATES | KVC_LACKS_LAYERS |   \
     KVC_LACKS_COMPANIONS | KVC_LACKS_SNAPSHOTS | KVC_LACKS_METADATA | KVC_LACKS_PAIRING | \
     KVC_LACKS_UNKNOWNS)
struct kvc_lmcache_layout_info {
    const char *name; /* in options */
    unsigned fmt;     /* number of LMCache's MemoryFormat */
    /* of the shape: x K and V, which are 2 or one plane; l layers; t tokens; r values of a row */
    const char *sizes;
    const char *order; /* of axes (geometry.h) */
};
extern const struct kvc_lmcache_layout_info kvc_lmcache_layouts[KVC_LMCACHE_LAYOUTS];
/* Finds a layout by its name; `format` begins the message. */
int kvc_lmcache_find_layout(const char *name, enum kvc_lmcache_layout *layout, const char *format,
                            struct kvc_error *e);

struct kvc_lmcache_chunk {
    enum kvc_lmcache_layout layout;
    const struct kvc_dtype_info *info;
    uint64_t layers, tokens;
    /* dim: channels of a head. heads = 1 where heads_known is 0: all of a row */
    uint64_t heads, dim;
    int heads_known;
    uint64_t bytes;
};

/* Options of reading, by position. Rows that need no geometry take the first three only. */
enum {
    KVC_LMCACHE_HEADS,
    KVC_LMCACHE_FMT,
    KVC_LMCACHE_FIRST,
    KVC_LMCACHE_DTYPE,
    KVC_LMCACHE_LAYERS,
    KVC_LMCACHE_TOKENS,
    KVC_LMCACHE_DIM
};
extern const struct kvc_format_option kvc_lmcache_options[], kvc_lmcache_header_options[];
/* Options of writing: the layout. */
extern const struct kvc_format_option kvc_lmcache_export_options[];

/* Reads a shape as a header states it: `fmt` is a number of MemoryFormat, `dim` has `rank` sizes
 * without padding. `size` bytes of data are due. */
int kvc_lmcache_of_shape(struct kvc_lmcache_chunk *k, uint64_t fmt,
                         const struct kvc_dtype_info *info, const uint64_t *dim, uint64_t rank,
                         uint64_t size, const struct kvc_import_options *o, struct kvc_error *e);
/* Returns 1 if options describe a chunk that has no header. */
int kvc_lmcache_has_geometry(const struct kvc_import_options *o);
/* Reads the chunk of `size` bytes that options describe. Without the option, the number of tokens
 * follows from the size, and the dtype is `info`, if that is not NULL. */
int kvc_lmcache_of_options(struct kvc_lmcache_chunk *k, const char *format, uint64_t size,
                           const struct kvc_dtype_info *info, const struct kvc_import_options *o,
                           struct kvc_error *e);
/* Returns 1 if a file of LocalDisk lies beside a member, which states the shape: NAME.meta, or the
 * same without .pt. */
int kvc_lmcache_is_disk(const struct kvc_bundle *b, size_t member);
/* Reads the chunk of `size` bytes that this file describes. Returns 1 where there is none. */
int kvc_lmcache_of_disk(struct kvc_lmcache_chunk *k, const struct kvc_bundle *b, size_t member,
                        uint64_t size, const struct kvc_import_options *o, struct kvc_error *e);

/* The file, or the member, that holds a chunk. */
struct kvc_lmcache_file {
    size_t member;
    const struct kvc_input *in; /* the member, which holds the array from byte `at` on */
    uint64_t at;
    uint32_t layer; /* number of the chunk's first layer */
    uint32_t place; /* out: its place among the layers of the cache */
    struct kvc_lmcache_chunk chunk;
};

/* Builds the cache of n chunks, in the order of their members. Several chunks must be of one layer
 * each, of the same tokens. The model and the shard are those of the key in the name of the first.
 */
struct kvc_cache *kvc_lmcache_build(const char *format, const struct kvc_bundle *b,
                                    struct kvc_lmcache_file *file, size_t n, int layers_known,
                                    const struct kvc_import_options *o, struct kvc_error *e);

/* The key in the name of a file: "model@world@worker@hash@dtype[@layer][@tag...]",
 * "model@0xrank@group@hash[@salt]", or, until 0.3, "engine@model@world@worker@hash". */
struct kvc_lmcache_key {
    char model[256];
    char dtype[32]; /* "" where the key has none */
    uint64_t world, worker;
    uint64_t layer; /* where has_layer */
    int has_layer;
    char chunk[512]; /* the key without the layer */
};
/* Returns 1 if a path ends with a key. */
int kvc_lmcache_key_of(struct kvc_lmcache_key *key, const char *path);

/* --- writing (lmcache_write.c) --- */

struct kvc_lmcache_export {
    struct kvc_uniform cache;
    struct kvc_lmcache_chunk chunk;
};

/* Prepares a cache for writing: one sequence, whose layers have equal shapes, in the pairing that
 * transformers keeps. `keeps` returns 1 for the dtypes of the format; others are refused. */
int kvc_lmcache_export_open(struct kvc_lmcache_export *x, const struct kvc_cache *c,
                            const struct kvc_export_options *o, int (*keeps)(enum kvc_dtype),
                            const char *format, struct kvc_error *e);
void kvc_lmcache_export_close(struct kvc_lmcache_export *x);
/* Returns the rank of the shape, whose sizes go to dim[4]; unused ones are 0. */
unsigned kvc_lmcache_shape(const struct kvc_lmcache_chunk *k, uint64_t dim[4]);
/* Writes the array. */
int kvc_lmcache_export_data(const struct kvc_lmcache_export *x, struct kvc_sink *out,
                            struct kvc_error *e);
/* Returns 1 if the source is a header of so many bytes and an array in the layout that is written
 * without options. */
int kvc_lmcache_is_default(const struct kvc_cache *c, uint64_t header);

#endif
