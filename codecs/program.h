/* program.h: turns the decoding of a block into jobs and operations of the device decoder (kernels/device/launch.h). Stages that can
 * be decoded there have a function `lower` beside `decode`: it checks their sections in the same way, says where they lie in the
 * device's memory, and adds what is to be computed. Not for running it (kernels/device/decode.h), nor for where rows go
 * (formats/device/load.h).
 *
 * Addresses are of the device's memory. Host pointers that go with them are where their bytes can be written before they are
 * copied there. */
#ifndef KVC_PROGRAM_H
#define KVC_PROGRAM_H

#include "codecs/pipeline.h"
#include "kernels/device/launch.h"

#define KVC_PROGRAM_OPS (3 * KVC_MAX_STEPS)

/* Rows that come to be in the same way, and how: the first of them is row `first` of the matrix at hand. */
struct kvc_program_run {
    uint64_t first, rows;
    unsigned n;
    struct kvc_device_op op[KVC_PROGRAM_OPS];
};

/* What stays on a device is asked for by the bytes it is made of: by their address, or, where `size` is not 0, by themselves; and by
 * which of several it is. */
struct kvc_program_key {
    const void *bytes;
    size_t size;
    uint32_t which;
};

/* What a block's program is made with and of. Memory functions give NULL or 0 where there is no more. */
struct kvc_program {
    void *owner;
    /* Where a section's stored bytes lie on the device. */
    uint64_t (*place)(void *owner, const struct kvc_section *s);
    /* n bytes that go to the device with the program, on a multiple of 16. */
    void *(*table)(void *owner, size_t n, uint64_t *address);
    /* n bytes of scratch memory of the device, on a multiple of 16, until the block is decoded. */
    uint64_t (*scratch)(void *owner, size_t n);
    /* n bytes that stay on the device for all blocks that ask with the same key; *bytes is where to write them
     * before anything else is asked for, NULL where that was done already. Fills *address. */
    int (*keep)(void *owner, const struct kvc_program_key *key, size_t n, void **bytes, uint64_t *address, struct kvc_error *e);

    struct kvc_device_job *job; /* those that prepare, and streams, in the order they were added */
    size_t n_jobs, job_room;
    struct kvc_program_run *run;
    size_t n_runs, run_room;
};

void kvc_program_clear(struct kvc_program *p); /* forgets jobs and runs, keeps the memory */
void kvc_program_free(struct kvc_program *p);

/* Makes the program of one block. 0; 1: some stage cannot be decoded there, and the CPU must; -1: damaged. The arguments are those
 * of kvc_pipeline_decode_record(). */
int kvc_pipeline_lower(const struct kvc_pipeline *line, struct kvc_block *block, const struct kvc_coded *own,
                       const struct kvc_coded *first, struct kvc_program *p, struct kvc_error *e);

/* --- for stages --- */

/* The matrix begins: one run of `rows` rows. */
int kvc_program_begin(struct kvc_program *p, uint64_t rows, struct kvc_error *e);
/* Adds a run without operations; NULL when out of memory. */
struct kvc_program_run *kvc_program_run(struct kvc_program *p, uint64_t first, uint64_t rows, struct kvc_error *e);
/* Adds an operation to every run, its row being each run's; `op` has all but that. Fails where a run has too many. */
int kvc_program_op(struct kvc_program *p, const struct kvc_device_op *op, struct kvc_error *e);
/* Adds a job; NULL when out of memory. */
struct kvc_device_job *kvc_program_job(struct kvc_program *p, uint32_t kind, struct kvc_error *e);
/* An operation of a kind over matrices of this shape. */
struct kvc_device_op kvc_program_op_of(uint32_t kind, const struct kvc_shape *shape);

/* A section's bytes on the device, those that it has after its coder: n of them; also on the host, in *bytes where that is not
 * NULL. 0 and *e filled when they are not n bytes, or there is no memory. */
uint64_t kvc_program_bytes(struct kvc_program *p, const struct kvc_section *s, size_t n, const uint8_t **bytes,
                           struct kvc_error *e);
/* A copy of n bytes of the host's. */
uint64_t kvc_program_copy(struct kvc_program *p, const void *bytes, size_t n, struct kvc_error *e);
uint64_t kvc_program_scratch(struct kvc_program *p, size_t n, struct kvc_error *e);
/* Numbers stored as halves (floats.md), n of them from *bytes on, as binary32 in scratch memory: adds the job. *bytes moves on. */
uint64_t kvc_program_halves(struct kvc_program *p, const struct kvc_section *s, const uint8_t **bytes, size_t n,
                            struct kvc_error *e);
/* The same of those that fill the rest of a section. */
uint64_t kvc_program_halves_to_end(struct kvc_program *p, const struct kvc_section *s, const uint8_t *bytes, size_t n,
                                   struct kvc_error *e);

/* Begins with a stage's one RAW section: 1. 0 when its sections are something else, -1 when that one has another size. */
int kvc_program_raw(struct kvc_program *p, const struct kvc_section *sections, size_t n, const struct kvc_shape *shape,
                    struct kvc_error *e);

#endif
