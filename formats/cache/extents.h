/* extents.h: how a cache's source, a file or several members, is put together from tensors and literal bytes. FORMAT.md,
 * "EXTENTS". Not for reading or writing any bytes. */
#ifndef KVC_EXTENTS_H
#define KVC_EXTENTS_H

#include "formats/cache/cache.h"

/* The functions below append to a cache. They return 0, or -1 and *e. */

/* Begins a member, whose extents follow. */
int kvc_extents_member(struct kvc_cache *c, const char *name, struct kvc_error *e);
/* Literal bytes, at least 1, which are the next `size` literal bytes of the cache. Neighbours become one extent. */
int kvc_extents_literal(struct kvc_cache *c, uint64_t size, struct kvc_error *e);
/* The region of a tensor alone: all its cells by its own strides, which must fill the region. */
int kvc_extents_tensor(struct kvc_cache *c, uint32_t t, struct kvc_error *e);
/* A region of `size` bytes with n places, which are checked as kvc_region_gaps() does; *gaps, if not NULL, gets the bytes that no
 * place covers (the caller frees it), *n_gaps their number. They are the cache's next literal bytes. */
struct kvc_gap {
    uint64_t offset, size; /* bytes of the region */
};
int kvc_extents_region(struct kvc_cache *c, uint64_t size, const struct kvc_place *place, uint64_t n, struct kvc_gap **gaps,
                       uint64_t *n_gaps, struct kvc_error *e);

/* Finds the bytes of a region of `size` bytes that none of its n places covers, ascending. KVC_ERR_DAMAGED where a place reaches
 * outside of the region or its tensor, or two values share a byte. The caller frees *gaps. */
int kvc_region_gaps(const struct kvc_cache *c, uint64_t size, const struct kvc_place *place, uint64_t n, struct kvc_gap **gaps,
                    uint64_t *n_gaps, struct kvc_error *e);

/* Checks that every cell of every tensor lies in exactly one place, and that no two members have one name. */
int kvc_extents_check(const struct kvc_cache *c, struct kvc_error *e);

/* 1 when an extent is one tensor alone, by the tensor's own strides; *t is that tensor. */
int kvc_extent_is_tensor(const struct kvc_cache *c, const struct kvc_extent *x, uint32_t *t);

#endif
