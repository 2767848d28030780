/* kvc_file.h: the fields of kvc.h's struct kvc_file. Not for users. */
#ifndef KVC_FILE_H
#define KVC_FILE_H

#include "formats/cache/block_cache.h"
#include "formats/container/salvage.h"
#include "formats/file/open.h"
#include "formats/model/weights.h"

struct kvc_file {
    struct kvc_opened opened;  /* empty of a selection */
    const struct kvc_file *of; /* the whole file that this is a selection of; NULL: it is whole */
    struct kvc_cache *cache;   /* opened.cache, or the selection's own */
    const char *name;          /* for messages */
    struct kvc_weights *weights;
    const struct kvc_survey *survey; /* of a file opened as damaged; the cache owns it. NULL: it was opened as whole */
    struct kvc_block_cache *blocks;  /* of which rows were read; NULL unless it is a whole .kvc */
};

/* Returns the file that was opened. */
static inline const struct kvc_file *kvc_file_whole(const struct kvc_file *f) {
    return f->of ? f->of : f;
}

#endif
