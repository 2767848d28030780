/* mapped.h: caches whose rows lie in inputs as the engine laid them out, for importers. Not for what formats mean by their bytes.
 *
 * Offsets count from byte 0 of an input, which must outlive the cache. Nothing is read before somebody asks for rows. */
#ifndef KVC_MAPPED_H
#define KVC_MAPPED_H

#include "formats/cache/extents.h"
#include "formats/io/input.h"

/* Gives the cache a `read` that gathers rows, and a `read_literal`, from what the functions below say. kvc_cache_free() calls
 * close(owner); close may be NULL. */
int kvc_cache_map(struct kvc_cache *c, void (*close)(void *owner), void *owner, struct kvc_error *e);

/* Says where tensor t's region begins. kvc_tensor.source and source_size must be set, and are checked. */
int kvc_cache_map_tensor(struct kvc_cache *c, uint32_t t, const struct kvc_input *in, uint64_t offset, struct kvc_error *e);
/* Says where some cells of a tensor are: a place whose offset counts from byte 0 of the input. For tensors that lie in several
 * pieces; the pieces of one tensor come in ascending order of cells. */
int kvc_cache_map_place(struct kvc_cache *c, const struct kvc_input *in, const struct kvc_place *place, struct kvc_error *e);

/* The same of a region that lies in memory, at `base`, and stays there as long as the cache. */
int kvc_cache_map_memory(struct kvc_cache *c, uint32_t t, const uint8_t *base, struct kvc_error *e);

/* Describe the source front to back (extents.h). Literal bytes and the gaps of a region are those of the input. */
int kvc_cache_extent_literal(struct kvc_cache *c, const struct kvc_input *in, uint64_t offset, uint64_t size, struct kvc_error *e);
int kvc_cache_extent_bytes(struct kvc_cache *c, const uint8_t *bytes, uint64_t size, struct kvc_error *e); /* in memory */
int kvc_cache_extent_tensor(struct kvc_cache *c, uint32_t t, struct kvc_error *e);
/* The region of `size` bytes from byte `offset` of the input on; the places' offsets count from there. */
int kvc_cache_extent_region(struct kvc_cache *c, const struct kvc_input *in, uint64_t offset, uint64_t size,
                            const struct kvc_place *place, uint64_t n, struct kvc_error *e);

#endif
