/* geometry.h: K and V of equal layers in one stretch of a file, as axes with strides: whole caches
 * (raw.c), or the pages of one. Not for how a caller says the geometry: options, messages. */
#ifndef KVC_GEOMETRY_H
#define KVC_GEOMETRY_H

#include "codecs/dtype.h"
#include "formats/cache/cache.h"
#include "formats/io/input.h"

#include <stdint.h>

enum kvc_axis {
    KVC_AXIS_LAYER,
    KVC_AXIS_CACHE,
    KVC_AXIS_TOKEN,
    KVC_AXIS_HEAD,
    KVC_AXIS_DIM,
    KVC_AXES
};
#define KVC_AXIS_LETTERS "lcthd" /* by number; cache: K, then V */

struct kvc_geometry {
    const struct kvc_dtype_info *info;
    uint64_t count[KVC_AXES];  /* of DIM: blocks of the dtype in a head (values for plain types) */
    uint64_t stride[KVC_AXES]; /* bytes */
    int latent;                /* 1: the only cache holds latents, in place of K and V */
    int caches_outside;        /* 1: all K come before all V */
    /* 1: layer and cache are the two slowest axes, so that every tensor is one run of bytes */
    int tensors_are_runs;
    uint64_t bytes; /* of everything */
};

/* Why an order of axes cannot be used. */
enum kvc_order_fault {
    KVC_ORDER_GOOD,
    KVC_ORDER_LENGTH,   /* it has not five letters */
    KVC_ORDER_LETTERS,  /* a letter is unknown or occurs twice */
    KVC_ORDER_OVERFLOW, /* the bytes of everything pass 64 bits */
    KVC_ORDER_BLOCKS    /* a block dtype needs dim as the last axis */
};
/* Returns a geometry of these counts, whose order is not set. */
struct kvc_geometry kvc_geometry_of(const struct kvc_dtype_info *info, int latent, uint64_t layers,
                                    uint64_t tokens, uint64_t heads, uint64_t dim);
/* Sets strides and all after `latent` from `order`, the letters of the axes, slowest first. `info`
 * and `count` must be set, and no count may be 0. */
enum kvc_order_fault kvc_geometry_order(struct kvc_geometry *g, const char *order);

/* Returns the place of the cells [cell, cell + tokens) of `tensor`, which is the K (cache 0) or V
 * (cache 1) of a layer of the geometry, relative to the first byte of the geometry. */
struct kvc_place kvc_geometry_place(const struct kvc_geometry *g, uint32_t layer, unsigned cache,
                                    uint64_t cell, uint32_t tensor);

/* The functions below work on layers [layer, layer + the geometry's layers) of a cache. Tensors
 * come in the order of the file. */

/* Adds K and V with `dim` channels in a head to layers that have been added: as many rows as the
 * geometry has tokens, or `tokens` rows where several geometries, pages, make one cache. */
int kvc_geometry_tensors(struct kvc_cache *c, const struct kvc_geometry *g, uint64_t dim,
                         uint32_t layer, uint64_t tokens, struct kvc_error *e);
/* Maps the cells from `cell` on, for a cache that went through kvc_cache_map(): their values lie in
 * the input from `offset` on. */
int kvc_geometry_map(struct kvc_cache *c, const struct kvc_geometry *g, uint32_t layer,
                     uint64_t cell, const struct kvc_input *in, uint64_t offset,
                     struct kvc_error *e);
/* Adds the extents of the same bytes. */
int kvc_geometry_extents(struct kvc_cache *c, const struct kvc_geometry *g, uint32_t layer,
                         uint64_t cell, const struct kvc_input *in, uint64_t offset,
                         struct kvc_error *e);
/* All three, for a cache that is one geometry. */
int kvc_geometry_add(struct kvc_cache *c, const struct kvc_geometry *g, uint64_t dim,
                     const struct kvc_input *in, uint64_t offset, struct kvc_error *e);

/* Returns 1 if the source is `head` literal bytes and then the canonical rows of each tensor: layer
 * by layer, or, with `caches_outside`, K of all layers before V of all layers. */
int kvc_geometry_is_plain(const struct kvc_cache *c, uint64_t head, int caches_outside);

#endif
