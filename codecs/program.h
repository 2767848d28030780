/* program.h: turns the decoding of a block into jobs and operations of the device decoder
 * (kernels/device/launch.h). A stage that a device can decode has a function `lower` beside
 * `decode`: it checks its sections in the same way, finds them in the device's memory, and adds
 * jobs and operations. Not for running them (kernels/device/decode.h), nor for where rows go
 * (formats/device/load.h).
 *
 * Addresses are of the device's memory. A host pointer that comes with an address is where the
 * bytes may be written before they are copied to the device. */
#ifndef KVC_PROGRAM_H
#define KVC_PROGRAM_H

#include "codecs/pipeline.h"
#include "kernels/device/launch.h"

#define KVC_PROGRAM_OPS (3 * KVC_MAX_STEPS)

/* Rows that the same operations make; the first is row `first` of the matrix. */
struct kvc_program_run {
    uint64_t first, rows;
    unsigned n;
    struct kvc_device_op op[KVC_PROGRAM_OPS];
};

/* Key of a table that stays on the device: either the address of its source (size 0) or the source
 * bytes themselves, plus an index when one source yields several tables. */
struct kvc_program_key {
    const void *bytes;
    size_t size;
    uint32_t which;
};

/* The program of a block, and the memory that it is made in. Memory functions return NULL or 0 when
 * there is no more. */
struct kvc_program {
    void *owner;
    /* Returns the address of a section's stored bytes. */
    uint64_t (*place)(void *owner, const struct kvc_section *s);
    /* Allocates n bytes that are copied to the device with the program, at a multiple of 16. */
    void *(*table)(void *owner, size_t n, uint64_t *address);
    /* Allocates n bytes of the device's scratch memory, at a multiple of 16, until the block is
     * decoded. */
    uint64_t (*scratch)(void *owner, size_t n);
    /* Finds or allocates n bytes that stay on the device for all blocks with the same key. *bytes
     * is where the caller must write them before the next call of any of these functions, or NULL
     * when they are written. */
    int (*keep)(void *owner, const struct kvc_program_key *key, size_t n, void **bytes,
                uint64_t *address, struct kvc_error *e);

    /* Sets *at to the address of the inputs of predictions of the block's row 0 in a lower tensor;
     * a row has its channels as i8, filled up to a multiple of 4. Returns 1 when the device does
     * not have them, else 0. */
    int (*inputs)(void *owner, uint32_t tensor, uint64_t *at);
    int in_part; /* 1: it has them for some rows of the block only */

    struct kvc_device_job *job; /* jobs that prepare, and streams, in the order of adding */
    size_t n_jobs, job_room;
    struct kvc_program_run *run;
    size_t n_runs, run_room;
};

void kvc_program_clear(struct kvc_program *p); /* removes jobs and runs, keeps the memory */
void kvc_program_free(struct kvc_program *p);

/* Makes the program of one block. Returns 0, 1 when a device cannot decode some stage, or -1 when
 * the block is damaged. Arguments are those of kvc_pipeline_decode_record(). */
int kvc_pipeline_lower(const struct kvc_pipeline *line, struct kvc_block *block,
                       const struct kvc_coded *own, const struct kvc_coded *first,
                       struct kvc_program *p, struct kvc_error *e);

/* --- for stages --- */

/* Adds a run without operations. Returns NULL when out of memory. */
struct kvc_program_run *kvc_program_run(struct kvc_program *p, uint64_t first, uint64_t rows,
                                        struct kvc_error *e);
/* Adds an operation to every run, and sets its row to the run's first. Fails when a run has too
 * many operations. */
int kvc_program_op(struct kvc_program *p, const struct kvc_device_op *op, struct kvc_error *e);
/* Adds a job without operands. Returns NULL when out of memory; valid until the next job is added.
 */
struct kvc_device_job *kvc_program_job(struct kvc_program *p, uint32_t kind, struct kvc_error *e);
/* Returns an operation over matrices of this shape, without operands. */
struct kvc_device_op kvc_program_op_of(uint32_t kind, const struct kvc_shape *shape);

/* Begins the matrix by one operation. */
int kvc_program_first(struct kvc_program *p, uint64_t rows, const struct kvc_device_op *op,
                      struct kvc_error *e);

/* Find or make a table that stays on the device, of n bytes: as keep() does for the address
 * `source` and the number `which`; and a copy of `bytes`, or n numbers out of a section of halves
 * (floats.md), whose bytes are the source. */
int kvc_program_keep(struct kvc_program *p, const void *source, uint32_t which, size_t n,
                     void **bytes, uint64_t *address, struct kvc_error *e);
int kvc_program_keep_copy(struct kvc_program *p, const void *source, uint32_t which,
                          const void *bytes, size_t n, uint64_t *address, struct kvc_error *e);
int kvc_program_keep_halves(struct kvc_program *p, const struct kvc_section *s, size_t n,
                            uint64_t *address, struct kvc_error *e);

/* Returns the address of a section's n decoded bytes; *bytes, where it is not NULL, becomes their
 * place on the host. Returns 0 when the section does not have n bytes, is damaged, or there is no
 * memory. */
uint64_t kvc_program_bytes(struct kvc_program *p, const struct kvc_section *s, size_t n,
                           const uint8_t **bytes, struct kvc_error *e);
/* Returns room for a table of n bytes, which goes to *address of the device, or NULL. */
void *kvc_program_table(struct kvc_program *p, size_t n, uint64_t *address, struct kvc_error *e);
/* Return the address of a copy of n bytes, and of n bytes of scratch memory; 0 when there is no
 * memory. */
uint64_t kvc_program_copy(struct kvc_program *p, const void *bytes, size_t n, struct kvc_error *e);
uint64_t kvc_program_scratch(struct kvc_program *p, size_t n, struct kvc_error *e);
/* Adds the job that makes binary32 of n numbers stored as halves (floats.md) at *bytes, moves
 * *bytes past them, and returns the address of the numbers, or 0. */
uint64_t kvc_program_halves(struct kvc_program *p, const struct kvc_section *s,
                            const uint8_t **bytes, size_t n, struct kvc_error *e);
/* Does the same for numbers that fill the rest of a section. */
uint64_t kvc_program_halves_to_end(struct kvc_program *p, const struct kvc_section *s,
                                   const uint8_t *bytes, size_t n, struct kvc_error *e);

/* Begins the matrix with the one RAW section of a stage, and returns 1. Returns 0 when its sections
 * are something else, and -1 when that section has another size. */
int kvc_program_raw(struct kvc_program *p, const struct kvc_section *sections, size_t n,
                    const struct kvc_shape *shape, struct kvc_error *e);

#endif
