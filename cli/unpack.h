/* unpack.h: the state of kvc-unpack, and its ways of writing an output: from a container, from a
 * damaged one, from a device. Not for options (kvc-unpack.c), nor for opening inputs and outputs
 * (job.h). */
#ifndef KVC_CLI_UNPACK_H
#define KVC_CLI_UNPACK_H

#include "cli/gpu.h"
#include "cli/job.h"
#include "cli/progress.h"
#include "formats/container/salvage.h"

struct cli_unpack {
    struct cli_job job;
    struct kvc_export_options export;
    struct cli_settings settings; /* options of the target's format */
    const struct kvc_format *to;  /* --to; NULL: the source's format */
    struct cli_selection part;
    int lossy_metadata;   /* writes a format also if it does not hold all of the cache */
    uint64_t blocks;      /* --blocks: tokens of each output file; 0: one output */
    uint32_t rank, ranks; /* --shard=RANK/RANKS; ranks 0: all heads */
    struct cli_device device;
    int salvage;
    /* Of the current input: */
    int incomplete;                  /* --salvage could not return all of it */
    const struct kvc_survey *survey; /* with --salvage; belongs to the cache */
    uint64_t written;                /* bytes */
    int loaded;                      /* a device decoded it */
    struct cli_load load;            /* if loaded; without its plan */
};

/* Returns 1 if the options ask for the source as it was. Of several files, --to=FORMAT asks for a
 * single new file. */
int unpack_wants_source(const struct cli_unpack *u, const struct kvc_cache *c);
/* Returns the format of a new output; NULL: the output is the source as it was, or a message will
 * say why there is none. */
const struct kvc_format *unpack_target(const struct cli_unpack *u, const struct kvc_cache *c);
/* Reads what a read of all rows leaves out of a container, and checks it. */
int unpack_check_rest(const struct kvc_opened *f, struct kvc_error *e);
/* Writes a single file. `c` is the file's cache, or a cache whose rows come from a device. */
int unpack_write(const struct cli_unpack *u, const struct kvc_opened *f, const struct kvc_cache *c,
                 struct kvc_sink *out, struct kvc_error *e);

/* Writes several files. */
int unpack_write_members(const struct cli_unpack *u, const struct kvc_opened *f,
                         const struct kvc_member_sink *out, struct kvc_error *e);

/* Checks the options beside --blocks and --shard. 0, or EXIT_TROUBLE (message printed). */
int unpack_check_dividing(const struct cli_unpack *u);
/* For --blocks: writes `c` as files of u->blocks tokens each: members, or where `members` is NULL a
 * tar archive. */
int unpack_write_blocks(const struct cli_unpack *u, const struct kvc_cache *c,
                        const struct kvc_export_options *options, struct kvc_sink *out,
                        const struct kvc_member_sink *members, struct kvc_error *e);

/* Checks the options beside --salvage, and makes the import accept damage. 0, or EXIT_TROUBLE
 * (message printed). */
int unpack_check_salvage(struct cli_unpack *u);
/* Writes what is whole of a container: the source's own file if all of it is whole, else a new file
 * with the longest run of tokens that is whole in all selected layers. Sets u->incomplete and
 * u->survey. */
int unpack_write_salvaged(struct cli_unpack *u, const struct kvc_opened *f, struct kvc_sink *out,
                          struct kvc_error *e);

/* Finds the device before anything is read. 0, or EXIT_TROUBLE (message printed). */
int unpack_open_device(struct cli_unpack *u);
/* Returns 1 if the device decodes this input, 0 if the CPU does, -1 if the input is refused.
 * --device=auto takes the CPU for an input that the device cannot decode. */
int unpack_on_device(const struct cli_unpack *u, const struct kvc_input *in, struct kvc_error *e);
/* Writes a file whose rows the device decodes. */
int unpack_write_from_device(struct cli_unpack *u, const struct kvc_opened *f, struct kvc_sink *out,
                             struct kvc_error *e);
/* Checks a container on the device if it can, else on the CPU. `state` is the struct cli_unpack. */
cli_checker unpack_check_container;

#endif
