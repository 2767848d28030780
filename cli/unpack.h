/* unpack.h: the state of kvc-unpack, and its ways of writing an output: from a container, from a
 * damaged one, from a device. Not for options (kvc-unpack.c), nor for opening inputs and outputs
 * (job.h). */
#ifndef KVC_CLI_UNPACK_H
#define KVC_CLI_UNPACK_H

#include "cli/gpu.h"
#include "cli/job.h"
#include "cli/progress.h"

struct cli_unpack {
    struct cli_job job;
    const char *to;                /* --to, with its options; NULL: the source's format */
    struct kvc_format_info target; /* of it */
    const char *pairing;
    struct cli_settings settings; /* options of the target's format */
    struct cli_selection part;
    int lossy_metadata;   /* writes a format also if it does not hold all of the cache */
    uint64_t blocks;      /* --blocks: tokens of each output file; 0: one output */
    uint32_t rank, ranks; /* --shard=RANK/RANKS; ranks 0: all heads */
    struct cli_device device;
    int salvage;
    /* Of the current input: */
    int incomplete;       /* --salvage could not return all of it */
    int loaded;           /* a device decoded it */
    struct cli_load load; /* if loaded */
};

/* Where an output goes. */
struct unpack_place {
    struct cli_output *out; /* NULL: into `folder` */
    const char *folder;
};

/* Returns the options of writing. */
struct kvc_write_options unpack_options(const struct cli_unpack *u);
/* Writes f, or what is selected of it. */
int unpack_write(struct cli_unpack *u, const struct kvc_file *f, const struct unpack_place *place,
                 struct kvc_error *e);

/* Checks the options beside --blocks and --shard. 0, or EXIT_TROUBLE (message printed). */
int unpack_check_dividing(const struct cli_unpack *u);
/* Checks the options beside --salvage, and has damage accepted. 0, or EXIT_TROUBLE (message
 * printed). */
int unpack_check_salvage(struct cli_unpack *u);
/* Writes what is whole of a container: the source's own file if all of it is whole, else a new file
 * with the longest run of tokens that is whole in all selected layers. Sets u->incomplete. */
int unpack_write_salvaged(struct cli_unpack *u, const struct kvc_file *f,
                          const struct unpack_place *place, struct kvc_error *e);

/* Finds the device before anything is read. 0, or EXIT_TROUBLE (message printed). */
int unpack_open_device(struct cli_unpack *u);
/* Writes a file whose rows the device decodes, or the CPU if the device is not to. */
int unpack_write_from_device(struct cli_unpack *u, const struct kvc_file *f,
                             const struct unpack_place *place, struct kvc_error *e);
/* Checks a container on the device if it can, else on the CPU. `state` is the struct cli_unpack. */
kvc_check_fn unpack_check_container;

#endif
