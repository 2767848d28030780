/* load.h: a .kvc into the memory of a device: reads blocks, checks their hashes, makes their programs, queues copies and launches,
 * and in the end says whether all was decoded as it should be. Works on any struct kvc_device. Not for who owns the memory that
 * rows go to, nor for engines' layouts (kvc_cuda.c, pool_layouts.h). */
#ifndef KVC_LOAD_H
#define KVC_LOAD_H

#include "formats/cache/cache.h"
#include "formats/device/device.h"
#include "formats/io/input.h"

struct kvc_load;

/* Zero-initialise. */
struct kvc_load_options {
    unsigned threads, slots;  /* 0: 8 each. Threads both read and prepare. */
    uint64_t slot_bytes;      /* of stored blocks that go together, one launch for them; 0: 8 to 32 MiB, as they are compressed */
    uint64_t table_bytes;     /* room beside them for tables and what the CPU decodes; 0: as much */
    uint64_t scratch_bytes;   /* of the device, for what rANS gives; 0: as the greatest slot needs, at most 1 GiB */
    unsigned multiprocessors; /* most that a launch holds; 0: all */
    int verify;               /* digests of whole blocks, on the device */
    int direct;               /* direct_fd is the file, opened with O_DIRECT, and is read in the mapped one's place */
    int direct_fd;
    /* Which rows of a tensor: those at positions from first to end - 1; both 0: all. */
    int64_t first, end;
};

/* What loading will do, once planned; and has done. */
struct kvc_load_info {
    uint64_t stored, decoded, on_host; /* bytes read; written; of those, decoded by the CPU (known after a load) */
    uint64_t device_bytes;
};

/* Rows [*first, *first + *n) of a tensor are those at the positions that options ask for. */
void kvc_load_rows(const struct kvc_cache *c, uint32_t tensor, const struct kvc_load_options *options, uint64_t *first, uint64_t *n);

/* Plans: `target` has an entry for each tensor of the cache, whose row 0 is the first row that is loaded; those with base 0 are not
 * loaded. `in` is the container that the cache was opened from. All three outlive the plan. Allocates what loading needs. */
struct kvc_load *kvc_load_new(struct kvc_device *d, const struct kvc_cache *c, const struct kvc_input *in,
                              const struct kvc_load_options *options, const struct kvc_device_target *target, struct kvc_error *e);
void kvc_load_free(struct kvc_load *l); /* waits for the device; NULL is legal */

void kvc_load_describe(const struct kvc_load *l, struct kvc_load_info *info);

/* Queues everything on the stream; returns when all has been read, or, where something failed, when nothing is under way any more. */
int kvc_load_run(struct kvc_load *l, void *stream, struct kvc_error *e);
/* Waits for the device; 0 when every block was decoded without a fault and, with verify, to the digest of its record. */
int kvc_load_finish(struct kvc_load *l, struct kvc_error *e);
/* Queues the launches of a finished load anew, for those who time them: what was read still lies on the device. The events, of
 * kvc_load_new()'s device, are recorded right before and right behind the launches; NULL: none. May be called several times before
 * the next kvc_load_finish(). Refuses a load in which a slot was used more than once: its tables were written over. */
int kvc_load_again(struct kvc_load *l, void *stream, void *before, void *after, struct kvc_error *e);
/* From any thread: the run that is under way, or else the next one, fails soon. */
void kvc_load_cancel(struct kvc_load *l);

#endif
