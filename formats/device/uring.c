/* uring.c: the submission and completion queues of io_uring, shared with the kernel. */
#include "formats/device/uring.h"

#include <linux/io_uring.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The features that kvc needs: one mapping for both queues, and those that came with IORING_OP_READ
 * in Linux 5.6. */
enum { FEATURES = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_RW_CUR_POS };

struct kvc_uring {
    int fd;
    uint8_t *queues; /* both queues, in one mapping */
    size_t queues_size;
    struct io_uring_sqe *entry;
    size_t entries_size;
    const struct io_uring_cqe *completion;
    uint32_t *sq_array, *sq_tail, *cq_head, *cq_tail;
    uint32_t sq_mask, cq_mask;
};

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static void *map(int fd, size_t size, uint64_t offset) {
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
                   (off_t)offset);
    return p == MAP_FAILED ? NULL : p;
}

struct kvc_uring *kvc_uring_new(unsigned depth) {
    struct io_uring_params p = {0};
    struct kvc_uring *u = calloc(1, sizeof *u);
    if (!u) return NULL;
    u->fd = (int)syscall(SYS_io_uring_setup, depth, &p);
    if (u->fd < 0 || (p.features & FEATURES) != FEATURES) goto fail;
    u->queues_size = larger(p.sq_off.array + p.sq_entries * sizeof(uint32_t),
                            p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe));
    u->entries_size = p.sq_entries * sizeof(struct io_uring_sqe);
    if (!(u->queues = map(u->fd, u->queues_size, IORING_OFF_SQ_RING))) goto fail;
    if (!(u->entry = map(u->fd, u->entries_size, IORING_OFF_SQES))) goto fail;
    u->completion = (const void *)(u->queues + p.cq_off.cqes);
    u->sq_array = (void *)(u->queues + p.sq_off.array);
    u->sq_tail = (void *)(u->queues + p.sq_off.tail);
    u->sq_mask = p.sq_entries - 1;
    u->cq_head = (void *)(u->queues + p.cq_off.head);
    u->cq_tail = (void *)(u->queues + p.cq_off.tail);
    u->cq_mask = p.cq_entries - 1;
    return u;
fail:
    kvc_uring_free(u);
    return NULL;
}

void kvc_uring_free(struct kvc_uring *u) {
    if (!u) return;
    if (u->entry) munmap(u->entry, u->entries_size);
    if (u->queues) munmap(u->queues, u->queues_size);
    if (u->fd >= 0) close(u->fd);
    free(u);
}

int kvc_uring_read(struct kvc_uring *u, int fd, void *to, uint32_t n, uint64_t offset,
                   uint64_t tag) {
    uint32_t tail = *u->sq_tail, i = tail & u->sq_mask;
    u->entry[i] = (struct io_uring_sqe){.opcode = IORING_OP_READ,
                                        .fd = fd,
                                        .addr = (uintptr_t)to,
                                        .len = n,
                                        .off = offset,
                                        .user_data = tag};
    u->sq_array[i] = i;
    __atomic_store_n(u->sq_tail, tail + 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, u->fd, 1, 0, 0, NULL, 0) == 1) return 0;
    /* takes the entry back: the kernel reads the queue only during the call */
    __atomic_store_n(u->sq_tail, tail, __ATOMIC_RELEASE);
    return -1;
}

int32_t kvc_uring_wait(struct kvc_uring *u, uint64_t *tag) {
    uint32_t head = *u->cq_head;
    /* Retries after errors, because the kernel owns the buffers until it completes the reads. */
    while (__atomic_load_n(u->cq_tail, __ATOMIC_ACQUIRE) == head)
        syscall(SYS_io_uring_enter, u->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
    const struct io_uring_cqe *done = &u->completion[head & u->cq_mask];
    int32_t result = done->res;
    *tag = done->user_data;
    __atomic_store_n(u->cq_head, head + 1, __ATOMIC_RELEASE);
    return result;
}
