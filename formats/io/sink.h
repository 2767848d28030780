/* sink.h: the destination of output bytes, which are written strictly front to back. Not for naming and renaming files (cli/). */
#ifndef KVC_SINK_H
#define KVC_SINK_H

#include "codecs/error.h"

#include <stddef.h>
#include <stdint.h>

struct kvc_sink {
    int (*write)(void *state, const void *data, size_t n, struct kvc_error *e);
    void *state;
    uint64_t offset; /* bytes written so far; kept by kvc_sink_write() */
};

int kvc_sink_write(struct kvc_sink *s, const void *data, size_t n, struct kvc_error *e);
int kvc_sink_zeros(struct kvc_sink *s, uint64_t n, struct kvc_error *e);

/* Return a sink into a growing buffer in memory, which the caller frees, and one into a file descriptor. */
struct kvc_buffer {
    uint8_t *data;
    size_t n, room;
};
struct kvc_sink kvc_sink_buffer(struct kvc_buffer *b);
struct kvc_sink kvc_sink_fd(int *fd);

/* Calls write() until all n bytes are written, also after interrupts. Returns 0, or -1 with errno set. */
int kvc_write_all(int fd, const void *data, size_t n);

#endif
