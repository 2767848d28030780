/* torch.h: the element types of PyTorch, for reading (torch_read.c) and writing (torch_write.c) files of torch.save(). */
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
};
#define KVC_TORCH_UNTYPED "torch.storage.UntypedStorage" /* storage of types without a class; counts bytes */

extern const struct kvc_torch_type kvc_torch_types[]; /* the last has no dtype */

struct kvc_cache *kvc_torch_read(const struct kvc_bundle *b, const struct kvc_import_options *o, struct kvc_error *e);
int kvc_torch_write(const struct kvc_cache *c, const struct kvc_export_options *o, struct kvc_sink *out, struct kvc_error *e);

#endif
