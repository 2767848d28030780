/* pages.h: an address range as large as a file, whose bytes are read when they are pinned. Not for
 * the source of the bytes (input.c).
 *
 * A library should not map files: when another process cuts a mapped file short, reading it raises
 * SIGBUS. Here bytes are copied into memory of the process, by a function that can fail. Addresses
 * stay the same as long as the range exists, so that parsers may keep pointers to pinned bytes. */
#ifndef KVC_PAGES_H
#define KVC_PAGES_H

#include "codecs/error.h"

#include <stddef.h>
#include <stdint.h>

struct kvc_pages;

/* Copies bytes [offset, offset + n) of a source to dst. Called from several threads at once. */
typedef int kvc_pages_read(void *state, uint64_t offset, size_t n, uint8_t *dst,
                           struct kvc_error *e);

/* Reserves addresses for `size` bytes, at least 1; nothing is read yet. `state` is the argument of
 * read(); kvc_pages_free() gives it to close(), which may be NULL. Returns NULL and *e when there
 * is no room; `state` then still belongs to the caller. */
struct kvc_pages *kvc_pages_new(uint64_t size, kvc_pages_read *read, void (*close)(void *state),
                                void *state, struct kvc_error *e);
void kvc_pages_free(struct kvc_pages *p);

/* Returns the address of byte 0. Bytes may be read only while they are pinned; other bytes are
 * zeros, or were pinned before. */
const uint8_t *kvc_pages_data(const struct kvc_pages *p);

/* Reads bytes [offset, offset + n) unless they are present already, and keeps them until as many
 * calls of kvc_pages_unpin() with the same range. The bytes must lie in the address range. From any
 * thread. Returns -1 and *e when they cannot be read; nothing is pinned then. Up to 64 MiB of bytes
 * without a pin stay in memory, in case they are pinned again. */
int kvc_pages_pin(struct kvc_pages *p, uint64_t offset, uint64_t n, struct kvc_error *e);
void kvc_pages_unpin(struct kvc_pages *p, uint64_t offset, uint64_t n);
/* Copies bytes [offset, offset + n), which lie in the range, from their source to dst, and keeps
 * none. From any thread. */
int kvc_pages_copy(const struct kvc_pages *p, uint64_t offset, uint8_t *dst, uint64_t n,
                   struct kvc_error *e);

#endif
