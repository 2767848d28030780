/* vllm_names.c: the names of shapes, and the numbers of layers in the names of files, of vLLM's
 * ExampleConnector. */
#include "formats/engines/vllm.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *const kvc_vllm_shape_name[KVC_VLLM_SHAPES] = {[KVC_VLLM_PACKED] = "T-H-2D",
                                                          [KVC_VLLM_SPLIT] = "T-2-H-D",
                                                          [KVC_VLLM_ROWS] = "2-T-HD",
                                                          [KVC_VLLM_LATENT] = "T-C"};

enum kvc_vllm_shape kvc_vllm_shape_of(const char *name) {
    enum kvc_vllm_shape shape = 0;
    while (shape < KVC_VLLM_SHAPES && strcasecmp(name, kvc_vllm_shape_name[shape]) != 0) shape++;
    return shape;
}

int kvc_vllm_layer(const char *path, uint32_t *layer) {
    const char *slash = strrchr(path, '/');
    for (const char *dot = strchr(slash ? slash : path, '.'); dot; dot = strchr(dot + 1, '.')) {
        const size_t n = strspn(dot + 1, "0123456789");
        if (!n || n > KVC_VLLM_DIGITS || dot[1 + n] != '.') continue;
        *layer = (uint32_t)strtoul(dot + 1, NULL, 10);
        return 1;
    }
    return 0;
}

int kvc_vllm_name_layer(const char *format, const char *pattern, uint32_t layer, const char *suffix,
                        char *name, size_t size, struct kvc_error *e) {
    const char *place = strstr(pattern, "{i}");
    uint32_t found = 0;
    const int n = place ? snprintf(name, size, "%.*s%" PRIu32 "%s%s", (int)(place - pattern),
                                   pattern, layer, place + 3, suffix)
                        : -1;
    if (n >= 0 && (size_t)n < size && !strchr(name, '/') && kvc_vllm_layer(name, &found) &&
        found == layer)
        return 0;
    return kvc_fail(e, KVC_ERR_USAGE,
                    "%s: name=%s must be a name without '/' that has {i} between dots, in place of "
                    "the first number, as in "
                    "model.layers.{i}.self_attn.attn",
                    format, pattern);
}
