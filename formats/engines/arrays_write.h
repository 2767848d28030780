/* arrays_write.h: a cache as a list of named arrays, [1,H,T,D] with tokens in order of position,
 * for the exports of safetensors and npz. Not for their headers and containers. */
#ifndef KVC_ARRAYS_H
#define KVC_ARRAYS_H

#include "formats/engines/arrays_read.h"

struct kvc_arrays_item {
    char name[48];
    /* KVC_NAME_TENSOR; KVC_NAME_TOKENS, 32-bit; KVC_NAME_POSITIONS, 64-bit */
    enum kvc_name_kind kind;
    uint32_t number;      /* of the tensor, or of the part whose positions these are */
    enum kvc_dtype dtype; /* of a tensor, as exported */
    unsigned size;        /* bytes of one value */
    unsigned rank;
    uint64_t dim[4];
    uint64_t bytes; /* of the whole array */
};

struct kvc_arrays {
    const struct kvc_cache *cache; /* to read from: the exported cache, or the last of `view` */
    /* values as float32; K in another RoPE pairing; NULL: not needed */
    struct kvc_cache *view[2];
    const int32_t *tokens; /* ids to write: the cache's, or own_tokens */
    int32_t *own_tokens;
    uint64_t n_tokens;
    size_t n;
    /* the widest values first, so that all are aligned; then by layer and role */
    struct kvc_arrays_item *item;
};

/* What a format says of token ids that are not as many as rows: it has none; they begin at position
 * 0; it says where. */
enum kvc_arrays_ids { KVC_IDS_NONE, KVC_IDS_FROM_0, KVC_IDS_FROM_ANY };

/* Lists the exported arrays: live, sliding-window and companion parts of the only sequence;
 * checkpoints are left out. Recurrent state is refused. Positions are listed where arrays_read.h
 * would assume others. Where a tensor has a block dtype or a known Hadamard rotation, all tensors
 * become float32 by kvc_view_float(); an unknown rotation stays. K is converted to the pairing
 * o->pairing, or to that of transformers for the architecture (halves, where the architecture is
 * unknown). `keeps` returns 1 for the dtypes of the format; other values become float32, which is
 * exact. Token ids are those that the cache has, where a reader of the file gives them to the same
 * positions, and else those of the rows. */
int kvc_arrays_list(struct kvc_arrays *list, const struct kvc_cache *c,
                    const struct kvc_export_options *o, int (*keeps)(enum kvc_dtype dtype),
                    enum kvc_arrays_ids ids, struct kvc_error *e);
void kvc_arrays_free(struct kvc_arrays *list);

/* Reads the bytes of item i, row-major. The caller frees them. */
int kvc_arrays_read(const struct kvc_arrays *list, size_t i, uint8_t **bytes, struct kvc_error *e);

/* Writes the bytes of all items. */
int kvc_arrays_write(const struct kvc_arrays *list, struct kvc_sink *out, struct kvc_error *e);

/* Writes the rows of a tensor in order of position, or of two of one shape (n 2), which take turns
 * after `unit` bytes. */
int kvc_write_rows(const struct kvc_cache *c, const uint32_t *tensor, unsigned n, uint64_t unit,
                   struct kvc_sink *out, struct kvc_error *e);

/* Finds the stream to export: the only one that has cells (0 when none has). Refuses caches of
 * several sequences, in several streams or in one, because arrays do not record the sequence of a
 * token. */
int kvc_arrays_stream(const struct kvc_cache *c, uint32_t *stream, struct kvc_error *e);

/* Returns 1 if K or V of the stream, or companions, are in blocks or rotated, which readers of
 * arrays do not understand: all of them become float32. */
int kvc_arrays_needs_float(const struct kvc_cache *c, uint32_t stream);

/* Replaces list->cache by views of it, which kvc_arrays_free() frees: float32 and the pairing, as
 * kvc_arrays_list() has them. */
int kvc_arrays_views(struct kvc_arrays *list, uint32_t stream, const struct kvc_export_options *o,
                     struct kvc_error *e);

/* Makes a view of K in another pairing. *view is NULL when K has this pairing already or its
 * pairing is unknown. */
int kvc_arrays_pairing(const struct kvc_cache *c, enum kvc_pairing to, struct kvc_cache **view,
                       struct kvc_error *e);

#endif
