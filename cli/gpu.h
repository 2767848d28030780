/* gpu.h: decodes .kvc files on a device: finds libkvc_cuda at run time, which loads them. Not for
 * options (kvc-unpack.c), nor for decoding itself (libkvc_cuda). */
#ifndef KVC_CLI_GPU_H
#define KVC_CLI_GPU_H

#include "cli/cli.h"
#include "formats/api/kvc_cuda.h"

/* Functions of libkvc_cuda that the tools call. */
/* clang-format off */
#define CLI_CUDA_FUNCTIONS(F) \
    F(version) F(build) F(devices) F(device_text) F(file_takes) F(file_open)
/* clang-format on */
struct cli_cuda {
#define F(name) __typeof__(kvc_cuda_##name) *name;
    CLI_CUDA_FUNCTIONS(F)
#undef F
};

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

/* What a device loaded. */
struct cli_load {
    const char *device; /* "cuda:0" */
    struct kvc_cuda_plan_info info;
};
/* Loads a file onto the device, and returns a handle of its rows there. f must stay open. */
struct kvc_file *cli_load(struct cli_load *l, const struct cli_device *d, const struct kvc_file *f,
                          const struct kvc_cuda_options *options, struct kvc_error *e);
/* Print bytes and rate of a load on standard error, or as keys of the open JSON object. */
void cli_load_say(const struct cli_load *l, const char *name);
void cli_load_json(const struct cli_load *l, struct cli_json *j);

#endif
