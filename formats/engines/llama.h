/* llama.h: shared by reading and writing llama.cpp's saved states. Not for callers, who use
 * kvc_format_llama. */
#ifndef KVC_LLAMA_H
#define KVC_LLAMA_H

#include "formats/cache/format.h"

#define KVC_LLAMA_SEQUENCE 0x67677371u /* "qsgg" on disk */
#define KVC_LLAMA_SESSION 0x6767736eu  /* "nsgg" */

#define KVC_LLAMA_NEWEST 4      /* version of the slots that are written by default */
#define KVC_LLAMA_ARCH_BYTES 64 /* of an architecture's name, with its NUL */

enum {
    KVC_LLAMA_TOKEN_NULL = -1,
    KVC_LLAMA_SERVER_TOKENS = 1 /* version of the server's token list */
};

/* Options, by position. */
enum { KVC_LLAMA_LATENT }; /* of reading */
enum {                     /* of writing */
       KVC_LLAMA_VERSION,
       KVC_LLAMA_STREAMS,
       KVC_LLAMA_STREAM,
       KVC_LLAMA_TILE_K,
       KVC_LLAMA_TILE_V,
       KVC_LLAMA_TRANSPOSED
};

int kvc_llama_write(const struct kvc_cache *cache, const struct kvc_export_options *options,
                    struct kvc_sink *sink, struct kvc_error *e);

#endif
