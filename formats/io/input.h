/* input.h: input bytes as one read-only mapping, wherever they come from. Not for their meaning.
 *
 * A regular file is mapped. A pipe, and the content of a .gz, .xz or .zst file, is first spooled to an
 * unlinked temporary file ($TMPDIR or /tmp), which is then mapped: memory stays bounded either way. */
#ifndef KVC_INPUT_H
#define KVC_INPUT_H

#include "codecs/error.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

struct kvc_input {
    const char *name;    /* for messages: the path, "(stdin)" for "-", or what kvc_input_memory() was given */
    char *path;          /* NULL when there is no file behind it */
    const uint8_t *data; /* never NULL; size 0 points at nothing readable */
    uint64_t size;
    char filter[32];     /* "gzip", "xz", "zstd" when decompressed on the way in, else "" */
    int spooled;         /* 1 when a temporary file stands behind the mapping */
    unsigned mode;       /* permission bits of the file, 0666 for pipes */
    dev_t device;        /* which file it is; 0 for pipes */
    ino_t inode;
    int has_times;       /* 0 for standard input and pipes */
    struct timespec times[2]; /* of last access and modification, as futimens() takes them, where has_times */
    void *map;
};

/* path "-" is standard input. On failure *in is empty and needs no close. */
int kvc_input_open(struct kvc_input *in, const char *path, struct kvc_error *e);
/* The same; a pipe, a device or compressed data is looked at before more than a few thousand bytes of it are read or
 * spooled: sniff() gets its first bytes, all there are of a short one. -1 with *e refuses it. A pipe of compressed data is
 * not shown, what is inside is. */
typedef int kvc_input_sniff(const struct kvc_input *head, const void *state, struct kvc_error *e);
int kvc_input_open_sniffed(struct kvc_input *in, const char *path, kvc_input_sniff *sniff, const void *state,
                           struct kvc_error *e);
/* Bytes and a name that stay the caller's and outlive *in. */
void kvc_input_memory(struct kvc_input *in, const char *name, const void *data, size_t size);
void kvc_input_close(struct kvc_input *in);

/* An unlinked temporary file to spool to; -1 with *e filled. Map it with kvc_spool_map() after writing. */
int kvc_spool_open(struct kvc_error *e);
int kvc_spool_write(int fd, const void *data, size_t n, struct kvc_error *e);
/* Maps the whole of fd and closes it. *map is NULL and *size 0 for an empty file. */
int kvc_spool_map(int fd, void **map, uint64_t *size, struct kvc_error *e);

#endif
