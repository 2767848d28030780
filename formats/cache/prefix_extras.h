/* prefix_extras.h: what prefix keys take beside token ids: hashes of media and embeddings, by
 * position (metadata key prefix.extras). Not for the keys (prefix.h). KEYS.md, "What token ids do
 * not say". */
#ifndef KVC_PREFIX_EXTRAS_H
#define KVC_PREFIX_EXTRAS_H

#include "formats/cache/meta.h"

#define KVC_PREFIX_TOKENS 256  /* of a block, which has one key */
#define KVC_MAX_EXTRAS 1048576 /* bytes of the metadata value */

enum kvc_extra_tag {
    KVC_EXTRA_MEDIA = 1,      /* hash of the whole media item that begins at the position */
    KVC_EXTRA_EMBEDDINGS = 2, /* hash of embeddings that were given in place of tokens */
    KVC_EXTRA_USER = 3
};
#define KVC_MIN_EXTRA_HASH 16 /* bytes of tags 1 and 2 */

/* An item. Other tags than those above are kept and hashed too. */
struct kvc_extra {
    uint64_t position;
    uint8_t tag; /* not 0 */
    uint16_t size;
    const uint8_t *bytes;
};

/* Stores n items, which ascend by position, then tag; none removes the key. Fails with
 * KVC_ERR_USAGE if they break the format. */
int kvc_extras_store(struct kvc_meta *meta, const struct kvc_extra *item, size_t n,
                     struct kvc_error *e);
/* Checks and lists the items of the metadata, whose bytes stay the metadata's. The caller frees
 * *item. */
int kvc_extras_list(const struct kvc_meta *meta, struct kvc_extra **item, size_t *n,
                    struct kvc_error *e);

/* The blocks with extras that are left, of a value that was checked. All zero: none. */
struct kvc_extras {
    const uint8_t *at, *end;
};
/* Checks the layout of the metadata's value; without the key there are no extras. */
int kvc_extras_of(const struct kvc_meta *meta, struct kvc_extras *x, struct kvc_error *e);
/* Returns the position of the first item; UINT64_MAX if there is none. */
uint64_t kvc_extras_first(const struct kvc_extras *x);
/* Returns what the key of the block at `position` takes, *n bytes; NULL: nothing. Positions must
 * ascend from call to call. */
const uint8_t *kvc_extras_take(struct kvc_extras *x, uint64_t position, size_t *n);

#endif
