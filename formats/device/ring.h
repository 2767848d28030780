/* ring.h: reading an ordered list of byte ranges ("pieces") of one file into a ring of slots that
 * the caller provides. Reader threads run ahead of one consumer, which takes filled slots in order
 * and gives them back in any order. A loader uses it with slots in pinned memory. Not for the
 * meaning of the bytes or for checksums, which the consumer checks. */
#ifndef KVC_RING_H
#define KVC_RING_H

#include "codecs/error.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    KVC_RING_ALIGN = 4096, /* direct reads: alignment of slots, bytes */
    KVC_RING_EXTRA = 8192, /* direct reads: bytes that a slot has beyond slot_bytes */
    KVC_RING_THREADS = 8   /* readers where the caller gives 0 */
};

/* Bytes [offset, offset + size) of the file. */
struct kvc_ring_piece {
    uint64_t offset, size;
};

/* The source of the bytes: `map`, or `fd` where `map` is NULL. Zero-initialise. */
struct kvc_ring_source {
    /* stays the caller's and open until kvc_ring_stop(); its file position is not used */
    int fd;
    const uint8_t *map; /* a mapped file, or memory: pieces are copied from it */
    uint64_t size;      /* of the file or the map; no piece ends after it */
    int direct;         /* 1: fd was opened with O_DIRECT, see kvc_ring_start() */
    /* Replaces pread(2) on fd when not NULL, for an input that is neither a file nor in memory.
     * Called from several threads. */
    ssize_t (*read)(void *state, void *to, size_t n, uint64_t offset);
    void *state;
};

struct kvc_ring;

/* Starts to read `n_pieces` pieces into slots 0 .. n_slots - 1, at most slot_bytes bytes each.
 * Pieces have 1 .. slot_bytes bytes and ascend; gaps and overlaps are allowed. `piece` and the
 * slots belong to the caller and must outlive the ring; a slot may be touched only between take and
 * give. `threads` readers (0: KVC_RING_THREADS) share the work in parts of 1 MiB, so that all of
 * them read one large piece too.
 *
 * With source->direct, reads begin and end at multiples of KVC_RING_ALIGN. The slots must be
 * aligned to KVC_RING_ALIGN and have KVC_RING_EXTRA bytes of room beyond slot_bytes, because bytes
 * beside the piece are read into them too. Where a file system refuses direct reads (EINVAL),
 * O_DIRECT is cleared from fd, for all who share its open file description (a dup() shares it too),
 * and reads go through the page cache. */
int kvc_ring_start(struct kvc_ring **r, const struct kvc_ring_source *source,
                   const struct kvc_ring_piece *piece, uint64_t n_pieces, uint8_t *const *slot,
                   unsigned n_slots, uint64_t slot_bytes, unsigned threads, struct kvc_error *e);

/* Takes the next piece in order. Blocks until the piece is read, forever when all slots are taken
 * and none is given back. For one thread at a time. Returns 1 with the number of the piece, its
 * slot and its first byte, which lies in the slot; 0 when all pieces were taken; -1 when the ring
 * was cancelled or the piece could not be read: *e names the byte and the error of the system.
 * Pieces before a failed one are delivered. The error is that of the lowest offset and does not
 * depend on the threads. Further calls fail with the same error. */
int kvc_ring_take(struct kvc_ring *r, uint64_t *number, const uint8_t **bytes, unsigned *slot,
                  struct kvc_error *e);

/* Gives a slot back to be filled again. From any thread, in any order, once per take. */
void kvc_ring_give(struct kvc_ring *r, unsigned slot);

/* Makes all takes fail from now on, also one that blocks. Readers stop after the reads that are in
 * flight. From any thread, but not from a signal handler. */
void kvc_ring_cancel(struct kvc_ring *r);

/* Cancels, waits for the readers, frees. No other call may be under way. NULL is allowed. */
void kvc_ring_stop(struct kvc_ring *r);

#endif
