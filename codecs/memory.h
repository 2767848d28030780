/* memory.h: allocation of n things of some size. A product that overflows gives NULL, as does a
 * lack of memory; no things at all give a pointer that can be freed, so NULL is always a failure.
 * Not for single objects, nor for sums of bytes of one block, which are far from overflowing
 * (tensor.h: KVC_MAX_BLOCK_BYTES). */
#ifndef KVC_MEMORY_H
#define KVC_MEMORY_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* n things of `size` bytes; the caller frees. */
static inline void *kvc_alloc(uint64_t n, uint64_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) return NULL;
    return malloc(bytes ? bytes : 1);
}

/* The same, from an address that begins a line of caches, for rows that vectors of a line's size
 * read and write. */
static inline void *kvc_alloc_lines(uint64_t n, uint64_t size) {
    enum { LINE = 64 };
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX - LINE) return NULL;
    return aligned_alloc(LINE, bytes / LINE * LINE + LINE);
}

/* The same as kvc_alloc_lines(), all zero. */
static inline void *kvc_alloc_zero_lines(uint64_t n, uint64_t size) {
    void *p = kvc_alloc_lines(n, size);
    return p ? memset(p, 0, n * size) : NULL;
}

/* The same as kvc_alloc(), all zero. */
static inline void *kvc_alloc_zeros(uint64_t n, uint64_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) return NULL;
    return calloc(bytes ? bytes : 1, 1);
}

/* A struct of `head` bytes and n things after it, all zero. */
static inline void *kvc_alloc_after(size_t head, uint64_t n, uint64_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX - head) return NULL;
    return calloc(head + bytes, 1);
}

/* As realloc(): p stays as it is, and the caller's, where this fails. */
static inline void *kvc_realloc(void *p, uint64_t n, uint64_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) return NULL;
    return realloc(p, bytes ? bytes : 1);
}

/* Makes room for one more element after n elements: returns the array, grown if n is a power of two
 * or 0. So arrays grow without a field for their capacity. NULL as kvc_realloc(). */
static inline void *kvc_room_for_one(void *p, uint64_t n, uint64_t size) {
    return n & (n - 1) ? p : kvc_realloc(p, n ? 2 * n : 1, size);
}

#endif
