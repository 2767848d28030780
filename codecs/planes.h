/* planes.h: bytes of equal meaning taken out of blocks, and how such a plane is kept. Not for stages. */
#ifndef KVC_PLANES_H
#define KVC_PLANES_H

#include "codecs/sections.h"

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

/* n values of `width` bits, 0 to 8, a byte each: packed by pack_bits, or as they are with 8 bits. Returns the bytes that
 * takes, the end of what was written, or -1 where the last group is not filled up with zeros. */
size_t kvc_packed_bytes(size_t n, unsigned width);
uint8_t *kvc_packed_write(uint8_t *to, const uint8_t *values, size_t n, unsigned width);
int kvc_packed_read(uint8_t *values, const uint8_t *bytes, size_t n, unsigned width, struct kvc_error *e);

#endif
