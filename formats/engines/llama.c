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

const struct kvc_format kvc_format_llama = {
    .name = "llama",
    .summary = "llama.cpp slots (GGSQ) and sessions (GGSN)",
    .suffix = ".bin",
    .probe = probe,
    .import = kvc_llama_read,
    .export = kvc_llama_write,
};
