/* decoded.h: a bounded store of decoded blocks: rows, or inputs of predictions made of rows. For
 * several threads. Not for decoding: an encoder puts its blocks in as they are coded, a reader as
 * they are asked for. */
#ifndef KVC_DECODED_H
#define KVC_DECODED_H

#include "codecs/error.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* A block, which its maker fills before it is put into a store. */
struct kvc_decoded_block {
    uint32_t tensor;
    int kind; /* what the bytes are; the caller's numbers */
    uint64_t block;
    size_t size;
    _Atomic unsigned holders;                       /* a block that is held stays where it is */
    struct kvc_decoded_block *older, *newer, *next; /* the store's */
    _Alignas(16) uint8_t bytes[];
};

/* A store of up to `bytes` bytes, beyond which the blocks used longest ago that nobody holds are
 * freed. `one_each`: 1: only the last block of each tensor stays, whose memory the next one gets.
 */
struct kvc_decoded;
struct kvc_decoded *kvc_decoded_new(uint64_t bytes, int one_each, struct kvc_error *e);
/* Frees the blocks as well, held or not. kvc_decoded_free(NULL) is legal. */
void kvc_decoded_free(struct kvc_decoded *d);
/* Sets the bytes before anything is in the store. */
void kvc_decoded_set_bytes(struct kvc_decoded *d, uint64_t bytes);

/* Makes a block for the store, held once, which free() frees until it is put in. NULL: *e. */
struct kvc_decoded_block *kvc_decoded_block(struct kvc_decoded *d, uint32_t tensor, uint64_t block,
                                            int kind, size_t size, struct kvc_error *e);
/* Puts a block into the store, which owns it from then on; its holders remain. */
void kvc_decoded_put(struct kvc_decoded *d, struct kvc_decoded_block *b);
/* Finds a block and holds it until kvc_decoded_release(); NULL: it is not there. */
struct kvc_decoded_block *kvc_decoded_find(struct kvc_decoded *d, uint32_t tensor, uint64_t block,
                                           int kind);
static inline void kvc_decoded_release(struct kvc_decoded_block *b, unsigned holds) {
    atomic_fetch_sub(&b->holders, holds);
}
/* Frees blocks that nobody holds down to this number of bytes. */
void kvc_decoded_trim(struct kvc_decoded *d, uint64_t bytes);

/* Waits for a block that another thread puts in, and holds it. NULL: kvc_decoded_fail() has set
 * *failed. */
struct kvc_decoded_block *kvc_decoded_await(struct kvc_decoded *d, uint32_t tensor, uint64_t block,
                                            int kind, const int *failed);
void kvc_decoded_fail(struct kvc_decoded *d, int *failed);

#endif
