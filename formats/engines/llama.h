/* llama.h: shared by reading and writing llama.cpp's saved states. Not for callers, who use
 * kvc_format_llama. */
#ifndef KVC_LLAMA_H
#define KVC_LLAMA_H

#include "formats/cache/format.h"

#define KVC_LLAMA_SEQUENCE 0x67677371u /* "qsgg" on disk */
#define KVC_LLAMA_SESSION 0x6767736eu  /* "nsgg" */
#define KVC_LLAMA_MEMORY 0xaf143cd8u   /* of one sequence without a head, and of a checkpoint */

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

/* Returns 1 if the file begins as llama_state_get_data() does: with the name of an architecture,
 * and no head before it. */
int kvc_llama_is_state(const struct kvc_input *in);

/* Returns the member that is the state: the only one beside which checkpoints and what macOS keeps
 * may lie. SIZE_MAX: there is no such member. */
size_t kvc_llama_member(const struct kvc_bundle *b);

/* Import and export of kvc_format_llama. */
struct kvc_cache *kvc_llama_read(const struct kvc_bundle *b, const struct kvc_import_options *o,
                                 struct kvc_error *e);
int kvc_llama_write(const struct kvc_cache *cache, const struct kvc_export_options *options,
                    struct kvc_sink *sink, struct kvc_error *e);

#endif
