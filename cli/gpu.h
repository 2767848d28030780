/* gpu.h: decoding .kvc files on a device: finding libkvc_cuda at run time, loading a file, a cache over what was loaded,
 * memory that processes share. Not for options (kvc-unpack.c), nor for decoding itself (libkvc_cuda). */
#ifndef KVC_CLI_DEVICE_H
#define KVC_CLI_DEVICE_H

#include "cli/cli.h"
#include "formats/api/kvc_cuda.h"

#include <pthread.h>

/* libkvc_cuda's functions that the tools call. */
#define CLI_CUDA_FUNCTIONS(F)                                                                            \
    F(version) F(build) F(devices) F(device_text)                                                        \
    F(plan_new) F(plan_free) F(plan_describe) F(plan_tensor) F(load) F(finish) F(read)                    \
    F(export) F(open_handle) F(close_handle)
struct cli_cuda {
#define F(name) __typeof__(kvc_cuda_##name) *name;
    CLI_CUDA_FUNCTIONS(F)
#undef F
};

/* The library, which stays open: $KVC_CUDA_LIBRARY, or libkvc_cuda.so.0 where the loader looks, beside the program or in ../lib
 * from there. NULL and why when there is none, or it is of another version. */
const struct cli_cuda *cli_cuda_get(struct kvc_error *e);
/* Prints the lines "devices: ..." and "cuda: ..." of --version -v. */
void cli_cuda_version(void);

/* What --device says, and what came of it. */
struct cli_device {
    enum { CLI_DEVICE_CPU, CLI_DEVICE_CUDA, CLI_DEVICE_AUTO } kind;
    int number;
    const struct cli_cuda *cuda; /* NULL: the CPU decodes; else device `number` does */
    char name[24];               /* "cpu", "cuda:0" */
};
/* "cpu", "cuda", "cuda:N", "auto"; -1 for anything else. */
int cli_device_parse(struct cli_device *d, const char *text);
/* Finds the device. One that was asked for and is not there is an error; auto takes the CPU then, and `why` (may be NULL) gets
 * the reason. */
int cli_device_open(struct cli_device *d, struct kvc_error *why, struct kvc_error *e);

/* --- loading --- */

/* A file on a device. */
struct cli_load {
    const struct cli_device *device;
    struct kvc_cuda_plan *plan;
    struct kvc_cuda_plan_info info;
    double seconds; /* from the first byte read to the last one decoded */
};
/* Plans, loads and waits: 0 only when all is decoded. Messages name the file. On failure nothing stays. */
int cli_load(struct cli_load *l, const struct cli_device *device, const char *path, const struct kvc_cuda_options *options,
             const struct kvc_cuda_destination *destination, struct kvc_error *e);
void cli_load_free(struct cli_load *l);
/* What was loaded and how fast, on standard error, or as keys of the JSON object that is open. */
void cli_load_say(const struct cli_load *l, const char *name);
void cli_load_json(const struct cli_load *l, struct cli_json *j);

/* Why a file cannot be decoded on a device, though it may be on the CPU; 0 when it can. */
int cli_device_refuses(const struct kvc_input *in, struct kvc_error *e);

/* A container whose rows are read back from a device. */
struct cli_device_cache {
    struct kvc_cache cache;     /* for readers; it has the container's fields, which stay the container's */
    const struct kvc_cache *of; /* the container */
    struct cli_load load;
    pthread_mutex_t lock;       /* a plan is used by one thread at a time */
    uint32_t *number;           /* by tensor: the plan's; KVC_NONE: the CPU decodes it */
};
/* Loads a container that was opened from `in`, which cli_device_refuses() does not refuse, and makes d->cache. `of` must
 * outlive it. */
int cli_device_cache_open(struct cli_device_cache *d, const struct cli_device *device, const struct kvc_input *in,
                          const struct kvc_cache *of, const struct kvc_cuda_options *options, struct kvc_error *e);
void cli_device_cache_close(struct cli_device_cache *d);
/* Having been loaded with options.verify: reads and checks what was not loaded; `threads` as in kvc_container_check(). */
int cli_device_cache_check(const struct cli_device_cache *d, unsigned threads, struct kvc_error *e);

/* --- other processes --- */

/* One line of JSON about what was loaded, by which other processes open it; then waits for the end of standard input. */
int cli_device_lend(const struct cli_load *l, const char *path, struct kvc_error *e);
/* Loads into memory that another process exported, as the file `handles` describes (handles.h). */
int cli_device_into(struct cli_load *l, const struct cli_device *device, const char *path, const char *handles,
                    const struct kvc_cuda_options *options, struct kvc_error *e);

#endif
