/* mapped.h: caches whose rows lie in inputs as the engine laid them out, for importers. Not for the
 * meaning of a format's bytes.
 *
 * Offsets count from byte 0 of an input, which must outlive the cache. Bytes are read only when
 * rows are. */
#ifndef KVC_MAPPED_H
#define KVC_MAPPED_H

#include "formats/cache/extents.h"
#include "formats/io/input.h"

/* Gives the cache a `read` that gathers rows from the places that the functions below name, and a
 * `read_literal`. kvc_cache_free() calls close(owner); close may be NULL. */
int kvc_cache_map(struct kvc_cache *c, void (*close)(void *owner), void *owner,
                  struct kvc_error *e);

/* Sets the offset of tensor t's region. kvc_tensor.source and source_size must be set before, and
 * are checked. */
int kvc_cache_map_tensor(struct kvc_cache *c, uint32_t t, const struct kvc_input *in,
                         uint64_t offset, struct kvc_error *e);
/* Sets the place of some cells of a tensor, with an offset from byte 0 of the input. For tensors in
 * several pieces, which must come in ascending order of cells. */
int kvc_cache_map_place(struct kvc_cache *c, const struct kvc_input *in,
                        const struct kvc_place *place, struct kvc_error *e);

/* The same for a region in memory at `base`, which must outlive the cache. */
int kvc_cache_map_memory(struct kvc_cache *c, uint32_t t, const uint8_t *base, struct kvc_error *e);
/* The same for some cells of a tensor, whose offset counts from `base`, as kvc_cache_map_place()
 * does. */
int kvc_cache_map_memory_place(struct kvc_cache *c, const uint8_t *base,
                               const struct kvc_place *place, struct kvc_error *e);

/* Lets rows be read by `read`, which gets consecutive cells: for places in memory that this process
 * cannot read itself. `reader` must outlive the cache. */
typedef int kvc_cells_reader(void *reader, uint32_t tensor, uint64_t cell, uint64_t n, uint8_t *dst,
                             struct kvc_error *e);
int kvc_cache_map_reader(struct kvc_cache *c, kvc_cells_reader *read, void *reader,
                         struct kvc_error *e);

/* Describe the source from its first byte to its last, with kvc_extents_tensor() (extents.h).
 * Literal bytes and the gaps of a region come from the input. */
int kvc_cache_extent_literal(struct kvc_cache *c, const struct kvc_input *in, uint64_t offset,
                             uint64_t size, struct kvc_error *e);
/* The region of `size` bytes that begins at byte `offset` of the input. Offsets of places count
 * from there. */
int kvc_cache_extent_region(struct kvc_cache *c, const struct kvc_input *in, uint64_t offset,
                            uint64_t size, const struct kvc_place *place, uint64_t n,
                            struct kvc_error *e);

#endif
