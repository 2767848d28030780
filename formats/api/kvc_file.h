/* kvc_file.h: what stands behind kvc.h's struct kvc_file. Not for users. */
#ifndef KVC_FILE_H
#define KVC_FILE_H

#include "formats/cache/block_cache.h"
#include "formats/file/open.h"
#include "formats/model/weights.h"

struct kvc_file {
    struct kvc_opened opened;
    struct kvc_cache *cache; /* opened.cache, for short */
    struct kvc_weights *weights;
    struct kvc_block_cache *blocks; /* of which rows were read; NULL unless it is a .kvc */
};

#endif
