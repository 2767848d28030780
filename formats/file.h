/* file.h: what stands behind kvc.h's struct kvc_file. Not for users. */
#ifndef KVC_FILE_H
#define KVC_FILE_H

#include "formats/cache.h"
#include "formats/format.h"
#include "formats/input.h"
#include "formats/weights.h"

struct kvc_file {
    struct kvc_input input;
    struct kvc_cache *cache;
    const struct kvc_format *format;
    struct kvc_weights *weights;
};

#endif
