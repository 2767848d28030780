/* torch.h: what reading (torch.c) and writing (torch_write.c) of files of torch.save() share. Not
 * for the opcodes of pickles (pickle.h). */
#ifndef KVC_TORCH_H
#define KVC_TORCH_H

#include "formats/cache/format.h"

/* An element type: of a storage class, or where no class has it, of a dtype. */
struct kvc_torch_type {
    const char *storage; /* class of the storage: "torch.HalfStorage" */
    const char *dtype;   /* "torch.float16" */
    const char *name;    /* for messages */
    int kvc;             /* enum kvc_dtype, or -1 */
    unsigned size;       /* bytes */
    int is_int;          /* 1: tokens and positions may have it */
    int is_raw;          /* 1: integers that may be the bits of other values */
};
/* storage of types without a class; counts bytes */
#define KVC_TORCH_UNTYPED "torch.storage.UntypedStorage"

extern const struct kvc_torch_type kvc_torch_types[]; /* the last has no dtype */

int kvc_torch_keeps(enum kvc_dtype dtype); /* 0: a dtype becomes float32 */
int kvc_torch_write(const struct kvc_cache *c, const struct kvc_export_options *o,
                    struct kvc_sink *out, struct kvc_error *e);

#endif
