/* llama.c: llama.cpp's saved states as a format: slots (GGSQ) and sessions (GGSN). Not for their
 * bytes (llama_read.c, llama_write.c). */
#include "formats/engines/llama.h"

#include "formats/cache/keys.h"
#include "formats/io/bytes.h"

#include <stdio.h>

static int llama_probe(const struct kvc_bundle *b, char *why, size_t size) {
    const size_t member = kvc_llama_member(b);
    const struct kvc_input *in = member == SIZE_MAX ? NULL : kvc_bundle_open(b, member, NULL);
    uint8_t magic[4];
    snprintf(why, size, "more than a slot and its checkpoints");
    if (!in) return 0;
    if (in->size >= 4 && !kvc_input_copy(in, 0, magic, 4, NULL) &&
        (get_u32(magic) == KVC_LLAMA_SEQUENCE || get_u32(magic) == KVC_LLAMA_SESSION ||
         get_u32(magic) == KVC_LLAMA_MEMORY))
        return 1;
    if (kvc_llama_is_state(in)) return 1;
    snprintf(why, size, "no GGSQ or GGSN magic at the start");
    return 0;
}

static const struct kvc_format_option import_options[] = {
    /* such a cache looks like a file that was cut short, so that the caller must say it */
    [KVC_LLAMA_LATENT] =
        {.key = "latent",
         .kind = KVC_OPTION_FLAG,
         .tool = "latent",
         .help = "the model has latent attention, and the cache no V (llama, hicache, arrays)"},
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
    [KVC_LLAMA_STREAMS] =
        {.key = "streams",
         .kind = KVC_OPTION_TEXT,
         .value = "N",
         .help = "for a server of N slots with a stream each (-np N without --kv-unified; default "
                 "1); none, with "
                 "version=2: for builds before July 2025, whose files do not count streams"},
    [KVC_LLAMA_STREAM] = {.key = "stream",
                          .kind = KVC_OPTION_COUNT,
                          .max = 255,
                          .value = "K",
                          .help = "the stream that gets the cells, from 0 on (default 0)"},
    [KVC_LLAMA_TILE_K] = {.key = "hadamard-k",
                          .kind = KVC_OPTION_TEXT,
                          .value = "TILE",
                          .help = "for version 4: tile by which a quantised K is rotated, or none, "
                                  "where the cache does not say"},
    [KVC_LLAMA_TILE_V] = {.key = "hadamard-v",
                          .kind = KVC_OPTION_TEXT,
                          .value = "TILE",
                          .help = "the same for V"},
    [KVC_LLAMA_TRANSPOSED] = {.key = "transposed-v",
                              .kind = KVC_OPTION_FLAG,
                              .help =
                                  "with V transposed, as a server without flash attention has it"},
    {.key = NULL},
};

/* A slot of one stream in the newest version is as it would be written. */
static int is_default(const struct kvc_cache *c) {
    return kvc_meta_u64(&c->meta, KVC_KEY_SOURCE_VERSION, 0) == KVC_LLAMA_NEWEST &&
           kvc_meta_u64(&c->meta, KVC_KEY_LLAMA_STREAMS, 1) == 1;
}

const struct kvc_format kvc_format_llama = {
    .name = "llama",
    .summary = "llama.cpp slots (GGSQ) and sessions (GGSN)",
    .suffix = ".bin",
    .takes_members = 1,
    .import_options = import_options,
    .export_options = export_options,
    .source = KVC_SOURCE_LLAMA,
    .lacks = KVC_LACKS_LAYERS | KVC_LACKS_COMPANIONS | KVC_LACKS_SNAPSHOTS | KVC_LACKS_METADATA,
    .is_default = is_default,
    .probe = llama_probe,
    .import = kvc_llama_read,
    .export = kvc_llama_write,
};
