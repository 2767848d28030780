/* uring.h: io_uring by its system calls, to keep several reads of one file in flight. Not for
 * kernels that lack or forbid io_uring, or for short reads: the caller uses pread(2) then. */
#ifndef KVC_URING_H
#define KVC_URING_H

#include <stdint.h>

struct kvc_uring;

/* Returns queues for at most `depth` reads in flight, a power of two. NULL where the kernel has no
 * io_uring (before Linux 5.6) or forbids it, as containers often do. For one thread at a time. */
struct kvc_uring *kvc_uring_new(unsigned depth);
/* Frees the queues. No read may be in flight. NULL is allowed. */
void kvc_uring_free(struct kvc_uring *u);

/* Submits a read of n bytes at `offset` of fd. Returns -1 when the kernel did not accept the read;
 * no wait may follow then. */
int kvc_uring_read(struct kvc_uring *u, int fd, void *to, uint32_t n, uint64_t offset,
                   uint64_t tag);
/* Waits for one of the reads in flight; there must be at least one. *tag gets its tag. Returns the
 * bytes read, or -errno. */
int32_t kvc_uring_wait(struct kvc_uring *u, uint64_t *tag);

#endif
