/* planes.h: byte planes, which are bytes of equal meaning out of blocks, and packed bits. Not for
 * stages. */
#ifndef KVC_PLANES_H
#define KVC_PLANES_H

#include "codecs/sections.h"

#include <stddef.h>
#include <stdint.h>

/* Copies `group` bytes at offset `at` of each of n blocks of `size` bytes to a plane, or back. */
void kvc_plane_out(uint8_t *plane, const uint8_t *blocks, size_t n, size_t size, size_t at,
                   size_t group);
void kvc_plane_in(uint8_t *blocks, const uint8_t *plane, size_t n, size_t size, size_t at,
                  size_t group);

/* Adds a PLANE section: stored when a sample of it looks like noise, else coded by zstd. */
int kvc_plane_add(struct kvc_sections *out, uint8_t stage, uint8_t index, const uint8_t *plane,
                  size_t n, struct kvc_error *e);

/* Returns the minimum number of rows of n values that make whole groups of 32, which pack_bits
 * takes together. */
size_t kvc_packed_rows(size_t n);
/* Checks that the bits after n values packed by the kernel pack_bits are zero up to the end of the
 * last group. */
int kvc_packed_check(const uint8_t *packed, size_t n, unsigned width, struct kvc_error *e);

/* Pack n values of `width` bits, 0 to 8, one byte each: by pack_bits, or as bytes when width is 8.
 * Return the packed bytes, the end of the written bytes, and -1 when the last group is not filled
 * up with zeros. */
size_t kvc_packed_bytes(size_t n, unsigned width);
uint8_t *kvc_packed_write(uint8_t *to, const uint8_t *values, size_t n, unsigned width);
int kvc_packed_read(uint8_t *values, const uint8_t *bytes, size_t n, unsigned width,
                    struct kvc_error *e);

#endif
