/* torch_types.h: the element types of PyTorch that kvc knows. Not for other formats' names of
 * types. */
#ifndef KVC_TORCH_TYPES_H
#define KVC_TORCH_TYPES_H

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

#endif
