/* kvc_file.h: what stands behind kvc.h's struct kvc_file. Not for users. */
#ifndef KVC_FILE_H
#define KVC_FILE_H

#include "formats/cache/cache.h"
#include "formats/cache/format.h"
#include "formats/io/input.h"
#include "formats/model/weights.h"

/* A block as kvc_file_read() decoded it. */
struct kvc_file_block {
    uint64_t number;
    uint8_t bytes[];
};

struct kvc_file {
    struct kvc_input input;
    struct kvc_cache *cache;
    const struct kvc_format *format;
    struct kvc_weights *weights;
    _Atomic(struct kvc_file_block *) *kept; /* by tensor: the last block of which rows were read; NULL unless it is a .kvc */
};

#endif
