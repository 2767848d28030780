/* load.h: a .kvc into the memory of a device: reads blocks, checks their hashes, makes their
 * programs, queues copies and launches, and checks at the end that every block was decoded. Works
 * on any struct kvc_device. Not for who owns the memory that rows are written to, nor for layouts
 * of engines (kvc_cuda.c, pool_layouts.c). */
#ifndef KVC_LOAD_H
#define KVC_LOAD_H

#include "formats/cache/cache.h"
#include "formats/device/device.h"
#include "formats/io/input.h"

struct kvc_load;

/* Zero-initialise. */
struct kvc_load_options {
    unsigned threads, slots; /* 0: 8 each. Threads both read and prepare. */
    /* of stored blocks for one launch; 0: 8 to 32 MiB, more where they are compressed further */
    uint64_t slot_bytes;
    /* of tables and of blocks that the CPU decodes, for one launch; 0: half of slot_bytes */
    uint64_t table_bytes;
    /* of the device, for the output of rANS of one launch; 0: as the largest piece needs, at most
     * 1 GiB. Up to 8 launches run at a time, as far as 1 GiB suffices for all of them. */
    uint64_t scratch_bytes;
    unsigned multiprocessors; /* that a launch may occupy; 0: all */
    int verify;               /* 1: digests of whole blocks are compared, on the device */
    /* 1: direct_fd is the file, opened with O_DIRECT, and is read instead of the input */
    int direct;
    int direct_fd;
    /* positions of the rows of a tensor that are loaded, [first, end); both 0: all */
    int64_t first, end;
};

/* What loading will do once it is planned, and what it has done. */
struct kvc_load_info {
    uint64_t stored;       /* bytes that are read */
    uint64_t decoded;      /* bytes that are written */
    uint64_t on_host;      /* bytes of these that the CPU decoded, known after a load */
    uint64_t device_bytes; /* of memory */
};

/* Finds rows [*first, *first + *n) of a tensor, which are at the positions of the options. */
void kvc_load_rows(const struct kvc_cache *c, uint32_t tensor,
                   const struct kvc_load_options *options, uint64_t *first, uint64_t *n);

/* Plans a load and allocates the memory for it. `target` has an entry for each tensor of the cache;
 * its row 0 is the first row that is loaded. Tensors with base 0 are not loaded. `in` is the
 * container that the cache was opened from. Cache, input and device must outlive the plan. */
struct kvc_load *kvc_load_new(struct kvc_device *d, const struct kvc_cache *c,
                              const struct kvc_input *in, const struct kvc_load_options *options,
                              const struct kvc_device_target *target, struct kvc_error *e);
void kvc_load_free(struct kvc_load *l); /* waits for the device; NULL is allowed */

void kvc_load_describe(const struct kvc_load *l, struct kvc_load_info *info);

/* Queues all work on the stream. Returns when everything has been read, or, on failure, when no
 * work is under way any more. */
int kvc_load_run(struct kvc_load *l, void *stream, struct kvc_error *e);
/* Waits for the device. Returns 0 when every block was decoded without a fault, and with `verify`
 * to the digest of its record. */
int kvc_load_finish(struct kvc_load *l, struct kvc_error *e);
/* Queues the launches of a finished load again, to time them: the stored bytes are still on the
 * device. The two events are recorded right before and right after the launches; NULL: none. May be
 * called several times before the next kvc_load_finish(). Refuses a load in which a slot was used
 * more than once, because its tables were overwritten. */
int kvc_load_again(struct kvc_load *l, void *stream, void *before, void *after,
                   struct kvc_error *e);
/* Makes the run that is under way, or else the next one, fail soon. From any thread. */
void kvc_load_cancel(struct kvc_load *l);

#endif
