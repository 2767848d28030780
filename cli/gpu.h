/* gpu.h: decodes .kvc files on a device: finds libkvc_cuda at run time, loads a file, reads it back
 * as a cache, shares memory with other processes. Not for options (kvc-unpack.c), nor for decoding
 * itself (libkvc_cuda). */
#ifndef KVC_CLI_GPU_H
#define KVC_CLI_GPU_H

#include "cli/cli.h"
#include "formats/api/kvc_cuda.h"

#include <pthread.h>

/* Functions of libkvc_cuda that the tools call. */
/* clang-format off */
#define CLI_CUDA_FUNCTIONS(F)                                                                            \
    F(version) F(build) F(devices) F(device_text)                                                        \
    F(plan_new) F(plan_free) F(plan_describe) F(plan_tensor) F(load) F(finish) F(read)
/* clang-format on */
struct cli_cuda {
#define F(name) __typeof__(kvc_cuda_##name) *name;
    CLI_CUDA_FUNCTIONS(F)
#undef F
};

/* Returns the library, which stays open: $KVC_CUDA_LIBRARY, or libkvc_cuda.so.0 in the loader's
 * search path, beside the program or in ../lib from there. NULL and *e if there is none, or it has
 * another version. */
const struct cli_cuda *cli_cuda_get(struct kvc_error *e);
/* Prints the lines "devices: ..." and "cuda: ..." of --version -v. */
void cli_cuda_version(void);

/* The value of --device and the device that was found. */
struct cli_device {
    enum { CLI_DEVICE_CPU, CLI_DEVICE_CUDA, CLI_DEVICE_AUTO } kind;
    int number;
    const struct cli_cuda *cuda; /* NULL: the CPU decodes; else device `number` does */
    char name[24];               /* "cpu", "cuda:0" */
};
/* Parses "cpu", "cuda", "cuda:N" or "auto"; -1 for other text. */
int cli_device_parse(struct cli_device *d, const char *text);
/* Finds the device. A named device that is not available is an error; `auto` then takes the CPU,
 * and `why` (may be NULL) gets the reason. */
int cli_device_open(struct cli_device *d, struct kvc_error *why, struct kvc_error *e);

/* --- loading --- */

/* A file on a device. */
struct cli_load {
    const struct cli_device *device;
    struct kvc_cuda_plan *plan;
    struct kvc_cuda_plan_info info;
    double seconds; /* from the first byte read to the last byte decoded */
};
/* Plans, loads and waits. Returns 0 if everything is decoded. Messages name the file. On failure
 * all memory is freed. */
int cli_load(struct cli_load *l, const struct cli_device *device, const char *path,
             const struct kvc_cuda_options *options, const struct kvc_cuda_destination *destination,
             struct kvc_error *e);
void cli_load_free(struct cli_load *l);
/* Print bytes and rate of a load on standard error, or as keys of the open JSON object. */
void cli_load_say(const struct cli_load *l, const char *name);
void cli_load_json(const struct cli_load *l, struct cli_json *j);

/* Returns 0 if a device can decode the file, else -1 and the reason in *e; the CPU may still be
 * able to. */
int cli_device_refuses(const struct kvc_input *in, struct kvc_error *e);

/* A container whose rows are read back from a device. */
struct cli_device_cache {
    struct kvc_cache cache;     /* for readers; its fields belong to the container */
    const struct kvc_cache *of; /* the container */
    struct cli_load load;
    pthread_mutex_t lock; /* a plan is used by one thread at a time */
    uint32_t *number;     /* number of each tensor in the plan; KVC_NONE: the CPU decodes it */
};
/* Loads a container that was opened from `in`, and builds d->cache. cli_device_refuses() must have
 * accepted `in`. `of` must outlive *d. */
int cli_device_cache_open(struct cli_device_cache *d, const struct cli_device *device,
                          const struct kvc_input *in, const struct kvc_cache *of,
                          const struct kvc_cuda_options *options, struct kvc_error *e);
void cli_device_cache_close(struct cli_device_cache *d);
/* Reads and checks the data that were not loaded; loading must have had options.verify. `threads`
 * as in kvc_container_check(). */
int cli_device_cache_check(const struct cli_device_cache *d, unsigned threads, struct kvc_error *e);

#endif
