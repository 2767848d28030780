/* vllm_blocks.h: what reading and writing of vLLM's offloaded blocks share: dtypes, and the shapes
 * of a page. Not for other formats. */
#ifndef KVC_VLLM_BLOCKS_H
#define KVC_VLLM_BLOCKS_H

#include "formats/cache/format.h"
#include "formats/engines/geometry.h"

#define KVC_VLLM_BLOCKS_PADDING 4096     /* files end at a multiple of the memory's page */
#define KVC_VLLM_BLOCKS_TOKENS (1 << 24) /* at most, of a page or a file */

/* The shapes of a page: K and V of some tokens of a layer. */
struct kvc_vllm_page {
    const char *name;   /* "T-H-2D" */
    const char *family; /* end of the name of the canonical format; NULL: of both */
    const char *order;  /* of the axes of one layer (geometry.h) */
    int latent;
};
/* Returns the shape of a name, in any case, or NULL. */
const struct kvc_vllm_page *kvc_vllm_page_of(const char *name);

/* Sets the geometry of a page of one layer. Returns 0; -1 where it has more bytes than 64 bits
 * count. */
int kvc_vllm_page_geometry(const struct kvc_vllm_page *page, const struct kvc_dtype_info *info,
                           uint64_t tokens, uint64_t heads, uint64_t channels,
                           struct kvc_geometry *g);

extern const struct kvc_format_option kvc_vllm_blocks_export_options[];
int kvc_vllm_blocks_keeps(enum kvc_dtype dtype);
int kvc_vllm_blocks_write(const struct kvc_cache *c, const struct kvc_export_options *o,
                          const struct kvc_member_sink *out, struct kvc_error *e);

#endif
