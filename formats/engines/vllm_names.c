/* vllm_names.c: the names of shapes, and the numbers of layers in the names of files, of vLLM's ExampleConnector. */
#include "formats/engines/vllm.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *const kvc_vllm_shape_name[KVC_VLLM_SHAPES] = {
    [KVC_VLLM_PACKED] = "T-H-2D", [KVC_VLLM_SPLIT] = "T-2-H-D", [KVC_VLLM_ROWS] = "2-T-HD", [KVC_VLLM_LATENT] = "T-C"};

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
