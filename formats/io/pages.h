/* pages.h: an address range as large as a file, whose bytes are read when they are asked for. Not for where they come from
 * (input.c).
 *
 * Mapping a file has one flaw for a library: whoever cuts the file short later kills the program that reads it, by SIGBUS. Here
 * bytes are copied into memory of the program's own, by a function that can fail. Addresses stay the same as long as the range
 * lives, so that parsers may keep pointers to what they have pinned. */
#ifndef KVC_PAGES_H
#define KVC_PAGES_H

#include "codecs/error.h"

#include <stddef.h>
#include <stdint.h>

struct kvc_pages;

/* Copies bytes [offset, offset + n) of a source to dst. Called from several threads at once. */
typedef int kvc_pages_read(void *state, uint64_t offset, size_t n, uint8_t *dst, struct kvc_error *e);

/* Reserves addresses for `size` bytes, at least 1; nothing is read yet. `state` is read()'s; kvc_pages_free() gives it to
 * close(), which may be NULL. NULL and *e when there is no room; `state` then stays the caller's. */
struct kvc_pages *kvc_pages_new(uint64_t size, kvc_pages_read *read, void (*close)(void *state), void *state,
                                struct kvc_error *e);
void kvc_pages_free(struct kvc_pages *p);

/* The address of byte 0. Bytes may be read only while they are pinned; others are zeros, or what was pinned before. */
const uint8_t *kvc_pages_data(const struct kvc_pages *p);

/* Reads bytes [offset, offset + n) unless they are there already, and keeps them until as many kvc_pages_unpin() of the same
 * range. They must lie in the range. From any thread. -1 and *e when they cannot be read; nothing is pinned then. Up to 64 MiB of
 * bytes that nobody pins any more stay for the next who asks. */
int kvc_pages_pin(struct kvc_pages *p, uint64_t offset, uint64_t n, struct kvc_error *e);
void kvc_pages_unpin(struct kvc_pages *p, uint64_t offset, uint64_t n);
/* Copies bytes [offset, offset + n), which lie in the range, from their source to dst, and keeps none. From any thread. */
int kvc_pages_copy(const struct kvc_pages *p, uint64_t offset, uint8_t *dst, uint64_t n, struct kvc_error *e);

#endif
