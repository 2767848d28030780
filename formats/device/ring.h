/* ring.h: reading an ordered list of byte ranges ("pieces") of one file into a ring of caller-provided slots: reader threads
 * run ahead of one consumer, which takes filled slots in order and gives them back in any. The reading half of a loader whose
 * slots are pinned memory. Not for what the bytes mean or whether they are right: checksums are the consumer's. */
#ifndef KVC_RING_H
#define KVC_RING_H

#include "codecs/error.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    KVC_RING_ALIGN = 4096, /* direct reads: slots begin at multiples of it */
    KVC_RING_EXTRA = 8192, /* direct reads: bytes that a slot has beyond slot_bytes */
    KVC_RING_THREADS = 8   /* as many readers as 0 asks for */
};

/* Bytes [offset, offset + size) of the file. */
struct kvc_ring_piece {
    uint64_t offset, size;
};

/* Where the bytes come from: `map`, or where that is NULL `fd`. Zero-initialise. */
struct kvc_ring_source {
    int fd;              /* stays the caller's and open until kvc_ring_stop(); its file position is not used */
    const uint8_t *map;  /* a mapped file, or memory: pieces are copied from it */
    uint64_t size;       /* of the file or the map; no piece ends behind it */
    int direct;          /* fd was opened with O_DIRECT: see kvc_ring_start() */
    int threads_only;    /* direct reads go by threads even where the kernel has io_uring */
    /* Takes the place of pread(2) on fd when not NULL: of an input that is neither a file nor in memory. From several threads. */
    ssize_t (*read)(void *state, void *to, size_t n, uint64_t offset);
    void *state;
};

struct kvc_ring;

/* Starts to read `n_pieces` pieces into slots 0 .. n_slots - 1, at most slot_bytes bytes each. Pieces have 1 .. slot_bytes
 * bytes and ascend; gaps and overlaps are legal. `piece` and the slots stay the caller's and stay until kvc_ring_stop(); a slot
 * belongs to the ring except between take and give. `threads` readers (0: KVC_RING_THREADS) share the work in parts of 1 MiB,
 * so that one great piece is read by all of them too.
 *
 * With source->direct, reads begin and end at multiples of KVC_RING_ALIGN; the slots are aligned to that and have
 * KVC_RING_EXTRA bytes of room beyond slot_bytes, as the piece's neighbours land in them too. Where io_uring is allowed, one
 * thread keeps many direct reads in flight instead of `threads` of them waiting for one each; reads through the page cache
 * copy, which wants threads. Where a file system refuses direct reads all the same (EINVAL), O_DIRECT is cleared from fd, for
 * all who share its open file description (a dup() would share it too), and reading goes on buffered. */
int kvc_ring_start(struct kvc_ring **r, const struct kvc_ring_source *source, const struct kvc_ring_piece *piece,
                   uint64_t n_pieces, uint8_t *const *slot, unsigned n_slots, uint64_t slot_bytes, unsigned threads,
                   struct kvc_error *e);

/* The next piece in order; blocks until it is read, forever when all slots are taken and none is given back. For one thread
 * at a time.
 * 1: here it is: its number, its first byte, which lies inside of slot `slot`, and that slot. 0: all pieces were taken.
 * -1: cancelled, or the piece could not be read; e says which byte, and errno's text. Pieces before that one are delivered;
 * the error is that of the lowest offset and does not depend on the threads. Whoever calls again gets the same error. */
int kvc_ring_take(struct kvc_ring *r, uint64_t *number, const uint8_t **bytes, unsigned *slot, struct kvc_error *e);

/* A slot that was taken may be filled anew. From any thread, in any order, once per take. */
void kvc_ring_give(struct kvc_ring *r, unsigned slot);

/* From any thread, but no signal handler: take fails from now on, also one that blocks, and readers stop after the reads that
 * the system is at. */
void kvc_ring_cancel(struct kvc_ring *r);

/* Cancels, waits for the readers, frees. No other call may be under way. NULL is legal. */
void kvc_ring_stop(struct kvc_ring *r);

#endif
