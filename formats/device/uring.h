/* uring.h: io_uring by its system calls, as much as it takes to keep reads of one file in flight. Not for what to do where the
 * kernel has none, forbids it, or reads less than was asked: whoever calls has pread(2) for that. */
#ifndef KVC_URING_H
#define KVC_URING_H

#include <stdint.h>

struct kvc_uring;

/* For at most `depth` reads in flight, a power of two. NULL where the kernel has no io_uring (before Linux 5.6) or forbids it,
 * as containers often do. For one thread at a time. */
struct kvc_uring *kvc_uring_new(unsigned depth);
/* No read may be in flight. NULL is legal. */
void kvc_uring_free(struct kvc_uring *u);

/* Submits a read of n bytes at `offset` of fd. -1: the kernel did not take it, and nothing will come of it. */
int kvc_uring_read(struct kvc_uring *u, int fd, void *to, uint32_t n, uint64_t offset, uint64_t tag);
/* Waits for one of the reads in flight, of which there must be one: its tag; bytes read or -errno. */
int32_t kvc_uring_wait(struct kvc_uring *u, uint64_t *tag);

#endif
