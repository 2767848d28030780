/* arrays.h: a cache as a list of named arrays, [1,H,T,D] with tokens in order of position: what safetensors
 * and npz export. Not for their headers and containers. */
#ifndef KVC_ARRAYS_H
#define KVC_ARRAYS_H

#include "formats/names.h"

struct kvc_arrays_item {
    char name[48];
    uint32_t tensor;      /* KVC_NONE: the tokens, as 32-bit integers */
    enum kvc_dtype dtype; /* as exported; of no meaning for tokens */
    unsigned size;        /* bytes of one value */
    unsigned rank;
    uint64_t dim[4];
    uint64_t bytes; /* of the whole array */
};

struct kvc_arrays {
    const struct kvc_cache *cache; /* what to read: the exported cache, or `view` */
    struct kvc_cache *view;        /* K in another RoPE pairing; NULL when it is not needed */
    size_t n;
    struct kvc_arrays_item
        *item; /* values of many bytes first, so that all are aligned; then by layer and role */
};

/* Lists what a cache exports: stream 0 of the live, sliding-window and companion parts; checkpoints are left
 * out. Recurrent state is refused. K is brought into the pairing o->pairing, or halves, the convention of
 * both formats. `keeps` says which dtypes the format has; values of others become float32, an exact
 * conversion that leaves a Hadamard rotation as it is. */
int kvc_arrays_list(struct kvc_arrays *list, const struct kvc_cache *c, const struct kvc_export_options *o,
                    int (*keeps)(enum kvc_dtype dtype), struct kvc_error *e);
void kvc_arrays_free(struct kvc_arrays *list);

/* The bytes of item i, row-major; free() them. Holds one array in memory at a time. */
int kvc_arrays_read(const struct kvc_arrays *list, size_t i, uint8_t **bytes, struct kvc_error *e);

/* A view of K in another pairing; NULL in *view when the cache has it already or its pairing is unknown. */
int kvc_arrays_pairing(const struct kvc_cache *c, enum kvc_pairing to, struct kvc_cache **view,
                       struct kvc_error *e);

#endif
