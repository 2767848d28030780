/* dtype.h: the element types of caches: sizes, names, planes, conversion to float. Not for tensors.
 */
#ifndef KVC_DTYPE_H
#define KVC_DTYPE_H

#include <stddef.h>
#include <stdint.h>

/* The numbers are stored in .kvc files: never renumber. */
enum kvc_dtype {
    KVC_F32 = 0,
    KVC_F16 = 1,
    KVC_BF16 = 2,
    KVC_F8E4M3 = 3,
    KVC_F8E5M2 = 4,
    KVC_U8 = 5,
    KVC_I8 = 6,
    KVC_Q8_0 = 16, /* ggml block types: 32 values a block */
    KVC_Q4_0 = 17,
    KVC_Q4_1 = 18,
    KVC_Q5_0 = 19,
    KVC_Q5_1 = 20,
    KVC_IQ4_NL = 21
};

#define KVC_MAX_PLANES 6

struct kvc_dtype_info {
    enum kvc_dtype dtype;
    const char *name; /* as printed and as options take it */
    uint32_t block;   /* values in one block: 1, or 32 for ggml's block types */
    uint32_t size;    /* bytes of one block */
    int ggml;         /* number in ggml's enum ggml_type, -1 when it has none */
    int floating;     /* 1: values may be NaN or infinite */
    /* bytes of a block that belong together, 0-terminated; sums to size */
    uint8_t planes[KVC_MAX_PLANES + 1];
    void (*to_f32)(float *dst, const uint8_t *src, size_t blocks);
};

/* Returns the facts of a dtype; NULL when the number is unknown. */
const struct kvc_dtype_info *kvc_dtype_info(unsigned dtype);
/* Return a dtype by its name ("bf16") or its ggml number; NULL when it is unknown. */
const struct kvc_dtype_info *kvc_dtype_by_name(const char *name);
const struct kvc_dtype_info *kvc_dtype_by_ggml(int64_t type);

#endif
