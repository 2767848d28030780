/* extents.h: the layout of a cache's source, which is a file or several members: regions of
 * tensors, and literal bytes. Spec: FORMAT.md, "EXTENTS". Not for reading or writing any bytes. */
#ifndef KVC_EXTENTS_H
#define KVC_EXTENTS_H

#include "formats/cache/cache.h"

/* The functions below append to a cache. They return 0, or -1 and *e. */

/* Begins a member, whose extents follow. */
int kvc_extents_member(struct kvc_cache *c, const char *name, struct kvc_error *e);
/* Appends the next `size` literal bytes of the cache, at least 1. Adjacent literal bytes become one
 * extent. */
int kvc_extents_literal(struct kvc_cache *c, uint64_t size, struct kvc_error *e);
/* Appends the region of one tensor: all its cells by its own strides, which must fill the region.
 */
int kvc_extents_tensor(struct kvc_cache *c, uint32_t t, struct kvc_error *e);
/* Appends a region of `size` bytes with n places, which are checked as by kvc_region_gaps(). The
 * bytes that no place covers are the cache's next literal bytes. If `gaps` is not NULL, *gaps gets
 * them, which the caller frees, and *n_gaps their number. */
struct kvc_gap {
    uint64_t offset, size; /* bytes of the region */
};
int kvc_extents_region(struct kvc_cache *c, uint64_t size, const struct kvc_place *place,
                       uint64_t n, struct kvc_gap **gaps, uint64_t *n_gaps, struct kvc_error *e);

/* Finds the bytes of a region of `size` bytes that none of its n places covers, ascending. Fails
 * with KVC_ERR_DAMAGED if a place reaches outside of the region or its tensor, or if two values
 * share a byte. The caller frees *gaps. */
int kvc_region_gaps(const struct kvc_cache *c, uint64_t size, const struct kvc_place *place,
                    uint64_t n, struct kvc_gap **gaps, uint64_t *n_gaps, struct kvc_error *e);

/* Checks that every cell of every tensor lies in exactly one place, and that no two members have
 * one name. */
int kvc_extents_check(const struct kvc_cache *c, struct kvc_error *e);

/* Returns 1 if an extent is one tensor by the tensor's own strides; *t is the tensor. */
int kvc_extent_is_tensor(const struct kvc_cache *c, const struct kvc_extent *x, uint32_t *t);

#endif
