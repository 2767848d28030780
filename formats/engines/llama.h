/* llama.h: shared by reading and writing llama.cpp's saved states. Not for callers, who use kvc_format_llama. */
#ifndef KVC_LLAMA_H
#define KVC_LLAMA_H

#include "formats/cache/format.h"

#define KVC_LLAMA_SEQUENCE 0x67677371u /* "qsgg" on disk */
#define KVC_LLAMA_SESSION 0x6767736eu  /* "nsgg" */

enum { KVC_LLAMA_TOKEN_NULL = -1, KVC_LLAMA_SERVER_TOKENS = 1 /* version of the server's token list */ };

/* Options, by position. */
enum { KVC_LLAMA_LATENT };  /* of reading */
enum { KVC_LLAMA_VERSION }; /* of writing */

/* Import and export of kvc_format_llama. */
struct kvc_cache *kvc_llama_read(const struct kvc_bundle *b, const struct kvc_import_options *o, struct kvc_error *e);
int kvc_llama_write(const struct kvc_cache *cache, const struct kvc_export_options *options, struct kvc_sink *sink,
                    struct kvc_error *e);

#endif
