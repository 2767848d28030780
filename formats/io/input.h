/* input.h: the bytes of a file, a pipe or a buffer, at one address. Not for the meaning of the
 * bytes.
 *
 * A regular file is read as its bytes are needed, or mapped. A pipe, and the content of a .gz, .xz
 * or .zst file, is first spooled to an unlinked temporary file ($TMPDIR or /tmp), which is then
 * mapped. So memory stays bounded in all cases.
 *
 * Bytes must be pinned before they are read. Pinning costs nothing where all bytes are in memory or
 * mapped; otherwise it reads them. */
#ifndef KVC_INPUT_H
#define KVC_INPUT_H

#include "codecs/error.h"
#include "formats/io/pages.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

struct kvc_input {
    /* for messages: the path, "(stdin)" for "-", or the name of kvc_input_memory() */
    const char *name;
    char *path;          /* NULL where the input is no file */
    const uint8_t *data; /* address of byte 0, never NULL; only pinned bytes may be read */
    uint64_t size;
    char filter[32]; /* "gzip", "xz", "zstd" when decompressed on the way in, else "" */
    int spooled;     /* 1: a temporary file is mapped */
    unsigned mode;   /* permission bits of the file, 0666 for pipes */
    dev_t device;    /* identity of the file, with inode; 0 for pipes */
    ino_t inode;
    int has_times; /* 0 for standard input and pipes */
    /* of last access and modification, as futimens() takes them, where has_times */
    struct timespec times[2];
    void *map;
    struct kvc_pages *pages; /* NULL: all bytes are in memory, or mapped */
};

/* Looks at the first bytes of a pipe, a device or compressed data (at all bytes of a short one),
 * before more than a few thousand bytes are read or spooled. Returns -1 with *e to refuse the
 * input. For compressed data it sees the content. */
typedef int kvc_input_sniff(const struct kvc_input *head, const void *state, struct kvc_error *e);

/* How to open an input. Zeros: map files, no sniff. */
struct kvc_input_how {
    int read; /* 1: read files as their bytes are needed. A mapped file that is cut short kills its
               * reader by SIGBUS, so a program may map only if it catches SIGBUS. */
    kvc_input_sniff *sniff; /* may be NULL */
    const void *state;      /* of sniff */
    uint64_t most;          /* bytes that may be spooled; 0: any number */
};

/* Opens a path; "-" is standard input. On failure *in is empty and needs no close. */
int kvc_input_open_how(struct kvc_input *in, const char *path, const struct kvc_input_how *how,
                       struct kvc_error *e);
/* Opens a path for a program that does not catch SIGBUS: files are read, and there is no sniff. */
int kvc_input_open(struct kvc_input *in, const char *path, struct kvc_error *e);
/* Makes an input of bytes in memory. The bytes and the name belong to the caller and must outlive
 * *in. */
void kvc_input_memory(struct kvc_input *in, const char *name, const void *data, size_t size);
/* Makes an input of `size` bytes that read() copies, of an object on a server for instance. close()
 * gets `state` when the input is closed, and also when opening fails; it may be NULL. The name
 * belongs to the caller. */
int kvc_input_ranged(struct kvc_input *in, const char *name, uint64_t size, kvc_pages_read *read,
                     void (*close)(void *state), void *state, struct kvc_error *e);
void kvc_input_close(struct kvc_input *in);

/* Makes bytes [offset, offset + n) readable at in->data + offset until kvc_input_unpin() of the
 * same range. From any thread. Fails when the bytes cannot be read or lie outside of the input. */
int kvc_input_pin(const struct kvc_input *in, uint64_t offset, uint64_t n, struct kvc_error *e);
void kvc_input_unpin(const struct kvc_input *in, uint64_t offset, uint64_t n);
/* Copies bytes [offset, offset + n) to dst. */
int kvc_input_copy(const struct kvc_input *in, uint64_t offset, void *dst, uint64_t n,
                   struct kvc_error *e);
/* Copies bytes that are not needed again: only these bytes are read, and none of them stays in
 * memory. */
int kvc_input_read(const struct kvc_input *in, uint64_t offset, void *dst, uint64_t n,
                   struct kvc_error *e);

/* A part of an input that stays pinned while a parser walks over it. Zero-initialise all but `in`.
 * For one thread. */
struct kvc_window {
    const struct kvc_input *in;
    uint64_t offset, n;
};
/* Returns the address of bytes [offset, offset + n), which is valid until the next call; NULL and
 * *e as kvc_input_pin(). */
const uint8_t *kvc_window_at(struct kvc_window *w, uint64_t offset, uint64_t n,
                             struct kvc_error *e);
void kvc_window_close(struct kvc_window *w);

/* Opens an unlinked temporary file to spool to. Returns its descriptor, or -1 with *e.
 * kvc_spool_input() maps it after writing. */
int kvc_spool_open(struct kvc_error *e);
int kvc_spool_write(int fd, const void *data, size_t n, struct kvc_error *e);
/* Makes an input of what was written, and closes fd. `name` must outlive it. */
int kvc_spool_input(struct kvc_input *in, int fd, const char *name, struct kvc_error *e);

#endif
