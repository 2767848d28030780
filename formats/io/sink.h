/* sink.h: the destination of output bytes, which are written front to back; into memory and regular
 * files also in any order. Not for naming and renaming files (cli/). */
#ifndef KVC_SINK_H
#define KVC_SINK_H

#include "codecs/error.h"

#include <stddef.h>
#include <stdint.h>

/* A sink has write() or put(). */
struct kvc_sink {
    /* Takes the next n bytes. */
    int (*write)(void *state, const void *data, size_t n, struct kvc_error *e);
    /* Takes n bytes that begin at an offset; from any thread, in any order. */
    int (*put)(void *state, uint64_t offset, const void *data, size_t n, struct kvc_error *e);
    void *state;
    uint64_t offset; /* bytes written so far; kept by kvc_sink_write() */
    uint8_t *memory; /* of sinks into memory: where the byte at offset 0 belongs, for writers that
                        make bytes in place; else NULL */
    uint64_t room;   /* bytes that fit there */
    /* Is called with `offset` when bytes of `memory` are there, in the thread that writes them in
     * order. NULL: is not called. */
    int (*told)(void *state, uint64_t offset, struct kvc_error *e);
};

int kvc_sink_write(struct kvc_sink *s, const void *data, size_t n, struct kvc_error *e);
/* Counts n bytes as written that were put or made in place. */
int kvc_sink_skip(struct kvc_sink *s, uint64_t n, struct kvc_error *e);
int kvc_sink_zeros(struct kvc_sink *s, uint64_t n, struct kvc_error *e);

/* Return a sink into a growing buffer in memory, which the caller frees, and one into a file
 * descriptor. */
struct kvc_buffer {
    uint8_t *data;
    size_t n, room;
};
struct kvc_sink kvc_sink_buffer(struct kvc_buffer *b);
/* As kvc_sink_buffer(), for output that is not read soon: where it is large it is written past the
 * caches. */
struct kvc_sink kvc_sink_output(struct kvc_buffer *b);
struct kvc_sink kvc_sink_fd(int *fd);
/* Returns a sink into `size` bytes of memory; a write beyond them is an error. */
struct kvc_sink kvc_sink_memory(void *bytes, uint64_t size);

/* Calls write() until all n bytes are written, also after interrupts. Returns 0, or -1 with errno
 * set. */
int kvc_write_all(int fd, const void *data, size_t n);

#endif
