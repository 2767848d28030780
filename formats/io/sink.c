/* sink.c: writing to memory and to file descriptors. Not for other destinations. */
#include "formats/io/sink.h"

#include "codecs/tensor.h"
#include "kernels/kernels.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Copies bytes to an output of `room` bytes in memory, which is not read soon. */
static void sink_copy(uint8_t *to, const void *from, size_t n, uint64_t room) {
    kvc_kernels_get()->copy_pieces(to, 0, from, 0, 1, n, room >= KVC_LARGE);
}

int kvc_sink_write(struct kvc_sink *s, const void *data, size_t n, struct kvc_error *e) {
    if (!n) return 0;
    if (s->memory && n > s->room - s->offset)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "the output is longer than the memory for it, %" PRIu64 " bytes", s->room);
    if (s->memory) sink_copy(s->memory + s->offset, data, n, s->room);
    else if (s->put ? s->put(s->state, s->offset, data, n, e) : s->write(s->state, data, n, e))
        return -1;
    return kvc_sink_skip(s, n, e);
}

int kvc_sink_skip(struct kvc_sink *s, uint64_t n, struct kvc_error *e) {
    s->offset += n;
    return s->told ? s->told(s->state, s->offset, e) : 0;
}

int kvc_sink_zeros(struct kvc_sink *s, uint64_t n, struct kvc_error *e) {
    static const uint8_t zeros[4096];
    while (n) {
        size_t part = n < sizeof zeros ? (size_t)n : sizeof zeros;
        if (kvc_sink_write(s, zeros, part, e)) return -1;
        n -= part;
    }
    return 0;
}

static int sink_append(struct kvc_buffer *b, const void *data, size_t n, int is_output,
                       struct kvc_error *e) {
    if (b->room - b->n < n) {
        size_t room = (b->n + n) * 2;
        uint8_t *grown = realloc(b->data, room);
        if (!grown) return kvc_fail_memory(e, "output");
        b->data = grown;
        b->room = room;
    }
    if (is_output) sink_copy(b->data + b->n, data, n, b->room);
    else memcpy(b->data + b->n, data, n);
    b->n += n;
    return 0;
}

static int buffer_write(void *state, const void *data, size_t n, struct kvc_error *e) {
    return sink_append(state, data, n, 0, e);
}

static int output_write(void *state, const void *data, size_t n, struct kvc_error *e) {
    return sink_append(state, data, n, 1, e);
}

struct kvc_sink kvc_sink_buffer(struct kvc_buffer *b) {
    return (struct kvc_sink){.write = buffer_write, .state = b};
}

struct kvc_sink kvc_sink_output(struct kvc_buffer *b) {
    return (struct kvc_sink){.write = output_write, .state = b};
}

struct kvc_sink kvc_sink_memory(void *bytes, uint64_t size) {
    return (struct kvc_sink){.memory = bytes, .room = size};
}

int kvc_write_all(int fd, const void *data, size_t n) {
    const char *p = data;
    while (n) {
        ssize_t done = write(fd, p, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return -1;
        p += done;
        n -= (size_t)done;
    }
    return 0;
}

static int fd_write(void *state, const void *data, size_t n, struct kvc_error *e) {
    return kvc_write_all(*(int *)state, data, n)
               ? kvc_fail(e, KVC_ERR_IO, "write error: %s", strerror(errno))
               : 0;
}

struct kvc_sink kvc_sink_fd(int *fd) {
    return (struct kvc_sink){.write = fd_write, .state = fd};
}
