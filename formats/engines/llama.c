/* llama.c: llama.cpp's saved states as a format: slots (GGSQ) and sessions (GGSN). Not for their bytes (llama_read.c,
 * llama_write.c). */
#include "formats/engines/llama.h"

#include "formats/io/bytes.h"

#include <stdio.h>

static int probe(const struct kvc_bundle *b, char *why, size_t size) {
    const struct kvc_input *in = b->one.in;
    uint8_t magic[4];
    if (in->size >= 4 && !kvc_input_copy(in, 0, magic, 4, NULL) &&
        (get_u32(magic) == KVC_LLAMA_SEQUENCE || get_u32(magic) == KVC_LLAMA_SESSION))
        return 1;
    snprintf(why, size, "no GGSQ or GGSN magic at the start");
    return 0;
}

static const struct kvc_format_option import_options[] = {
    /* such a cache looks like a file that was cut short, so that the caller must say it */
    [KVC_LLAMA_LATENT] = {.key = "latent",
                          .kind = KVC_OPTION_FLAG,
                          .tool = "latent",
                          .help = "llama.cpp cache of a model with latent attention: no V"},
    {.key = NULL},
};

static const struct kvc_format_option export_options[] = {
    [KVC_LLAMA_VERSION] = {.key = "version",
                           .kind = KVC_OPTION_COUNT,
                           .min = 2,
                           .max = 4,
                           .value = "N",
                           .tool = "llama-version",
                           .help = "llama: slot version 2, 3 or 4 (default 4)"},
    {.key = NULL},
};

const struct kvc_format kvc_format_llama = {
    .name = "llama",
    .summary = "llama.cpp slots (GGSQ) and sessions (GGSN)",
    .suffix = ".bin",
    .import_options = import_options,
    .export_options = export_options,
    .source = KVC_SOURCE_LLAMA,
    .lacks = KVC_LACKS_LAYERS | KVC_LACKS_COMPANIONS | KVC_LACKS_CHECKPOINTS | KVC_LACKS_METADATA,
    .probe = probe,
    .import = kvc_llama_read,
    .export = kvc_llama_write,
};
