/* vllm.h: what reading and writing of vLLM's ExampleConnector folders share: options and shapes.
 * Not for other formats. */
#ifndef KVC_VLLM_H
#define KVC_VLLM_H

#include "formats/cache/format.h"
#include "formats/io/member_sink.h"

#define KVC_VLLM_ARRAY "kv_cache" /* the only array of a file */

/* Keys of "__metadata__" in files that kvc writes. vLLM writes no metadata and ignores them. */
#define KVC_VLLM_KEY_SHAPE "kvc.shape"
#define KVC_VLLM_KEY_HEADS "kvc.kv-heads" /* of the shape 2-T-HD */
#define KVC_VLLM_KEY_CPU_BLOCK "kvc.cpu-block"
#define KVC_VLLM_KEY_PAIRING "kvc.rope-pairing"

/* Shapes of the array in a layer's file, over the versions of vLLM: T tokens, H heads, D channels
 * of K and of V each. */
enum kvc_vllm_shape {
    KVC_VLLM_PACKED, /* [T, H, 2D]: K and V of a head lie side by side */
    KVC_VLLM_SPLIT,  /* [T, 2, H, D] */
    KVC_VLLM_ROWS,   /* [2, T, H*D]: H is not said */
    KVC_VLLM_LATENT, /* [T, C]: latent attention */
    KVC_VLLM_SHAPES
};
/* as options and metadata spell them */
extern const char *const kvc_vllm_shape_name[KVC_VLLM_SHAPES];

/* Returns the shape of a name, in any case; KVC_VLLM_SHAPES: there is none. */
enum kvc_vllm_shape kvc_vllm_shape_of(const char *name);

#define KVC_VLLM_DIGITS 6 /* of the number of a layer */
/* Finds the number of a layer in the name of its file: as vLLM, the first part between dots that is
 * digits alone. Returns 1 if there is one. */
int kvc_vllm_layer(const char *path, uint32_t *layer);
/* Writes a layer's name: the pattern with the number of the layer in place of "{i}", and `suffix`.
 * Checks that vLLM finds the number in it; `format` begins the message. */
int kvc_vllm_name_layer(const char *format, const char *pattern, uint32_t layer, const char *suffix,
                        char *name, size_t size, struct kvc_error *e);

/* A CPU sees a block of N tokens and a head as 2N * D values: K as [D][N], then V as [N][D]. vLLM
 * takes these values for N rows of 2D values, and the connector saves row o of all heads as token
 * o. Returns the number of value x of a head among all values of the block as they are saved. */
static inline uint64_t kvc_vllm_cpu_value(uint64_t x, uint64_t head, uint64_t heads, uint64_t dim) {
    return (x / (2 * dim) * heads + head) * 2 * dim + x % (2 * dim);
}

/* Options, by position. */
enum { KVC_VLLM_SHAPE, KVC_VLLM_CPU_BLOCK, KVC_VLLM_GAPS };
enum { KVC_VLLM_TO_SHAPE, KVC_VLLM_TO_NAME, KVC_VLLM_TO_CPU_BLOCK };

int kvc_vllm_keeps(enum kvc_dtype dtype); /* 0: a dtype becomes float32 */
int kvc_vllm_write(const struct kvc_cache *c, const struct kvc_export_options *o,
                   const struct kvc_member_sink *out, struct kvc_error *e);

#endif
