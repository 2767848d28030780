/* handles.h: the file of --into: the memory that another process exported and its layout, as JSON. Not for opening the memory
 * (gpu.h). kvc-unpack(1) documents the file. */
#ifndef KVC_CLI_HANDLES_H
#define KVC_CLI_HANDLES_H

#include "codecs/error.h"
#include "formats/api/kvc_cuda.h"

struct cli_base {
    uint8_t handle[KVC_CUDA_HANDLE];
    uint64_t offset;
};

struct cli_handles {
    struct kvc_cuda_destination destination; /* without its bases */
    struct cli_base *base;
    uint64_t n_bases;
    uint32_t *table; /* destination.table */
};

/* Reads and checks every field; unknown keys are refused. On failure *h is empty. */
int cli_handles_read(struct cli_handles *h, const char *path, struct kvc_error *e);
void cli_handles_free(struct cli_handles *h);

#endif
