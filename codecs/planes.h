/* planes.h: bytes of equal meaning taken out of blocks, and how such a plane is kept. Not for stages. */
#ifndef KVC_PLANES_H
#define KVC_PLANES_H

#include "codecs/stage.h"

#include <stddef.h>
#include <stdint.h>

/* Copies `group` bytes at offset `at` of each of n blocks of `size` bytes to a plane, or back. */
void kvc_plane_out(uint8_t *plane, const uint8_t *blocks, size_t n, size_t size, size_t at, size_t group);
void kvc_plane_in(uint8_t *blocks, const uint8_t *plane, size_t n, size_t size, size_t at, size_t group);

/* Adds a PLANE section: stored where a sample of it looks like noise, else as zstd leaves it. */
int kvc_plane_add(struct kvc_sections *out, uint8_t stage, uint8_t index, const uint8_t *plane, size_t n,
                  struct kvc_error *e);

/* The fewest rows of n values that are whole groups of the 32 which pack_bits takes together. */
size_t kvc_packed_rows(size_t n);
/* 0 when the bits that fill up the last group of n values packed by the kernel pack_bits are zero, as they must be. */
int kvc_packed_check(const uint8_t *packed, size_t n, unsigned width, struct kvc_error *e);

#endif
