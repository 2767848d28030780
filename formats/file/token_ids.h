/* token_ids.h: a list of token ids that a caller has in a file. Not for matching, nor for giving
 * ids to a cache (formats/cache/prefix.h). */
#ifndef KVC_TOKEN_IDS_H
#define KVC_TOKEN_IDS_H

#include "formats/cache/format.h"

struct kvc_token_ids {
    int32_t *id; /* the caller frees them, also after a failure */
    uint64_t n;
};

/* Reads token ids from a file ("-": standard input) in the JSON of engines, as a list, or of a
 * cache file, which is read with `import`. No ids are an error. */
int kvc_token_ids_find(struct kvc_token_ids *ids, const char *path,
                       const struct kvc_import_options *import, struct kvc_error *e);

#endif
