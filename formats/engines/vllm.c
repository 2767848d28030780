/* vllm.c: the folders of vLLM's ExampleConnector as a format. Not for their bytes (vllm_read.c,
 * vllm_write.c). */
#include "formats/engines/vllm.h"

#include "formats/engines/foreign.h"
#include "formats/io/bytes.h"
#include "formats/io/safetensors_file.h"

#include <stdio.h>
#include <string.h>

#define MAX_HEADER 65536 /* bytes that probing reads; a header of vLLM has about 100 */

/* Returns 1 when a safetensors file holds one array, named kv_cache. */
static int is_layer(const struct kvc_input *in) {
    struct kvc_safetensors header;
    uint8_t head[9];
    if (in->size <= sizeof head || kvc_input_copy(in, 0, head, sizeof head, NULL) || head[8] != '{')
        return 0;
    if (get_u64(head) > MAX_HEADER || kvc_safetensors_read_input(&header, in, 0, NULL)) return 0;
    const int found = header.n == 1 && strcmp(header.tensor->name, KVC_VLLM_ARRAY) == 0;
    kvc_safetensors_free(&header);
    return found;
}

/* Looks at the first file that may be one of a layer. */
static int vllm_probe(const struct kvc_bundle *b, char *why, size_t size) {
    for (size_t i = 0; i < b->n; i++) {
        if (!b->is_file && kvc_member_is_beside(b->member[i].name)) continue;
        const char *dot = b->is_file ? NULL : strrchr(b->member[i].name, '.');
        if (!b->is_file && (!dot || strcmp(dot, ".safetensors") != 0)) continue;
        const struct kvc_input *in = kvc_bundle_open(b, i, NULL);
        if (in && is_layer(in)) return 1;
        break;
    }
    snprintf(why, size, "no safetensors file of one array " KVC_VLLM_ARRAY);
    return 0;
}

static const struct kvc_format_option import_options[] = {
    [KVC_VLLM_SHAPE] = {.key = "shape", .kind = KVC_OPTION_TEXT, .value = "T-H-2D"},
    [KVC_VLLM_CPU_BLOCK] =
        {.key = "cpu-block", .kind = KVC_OPTION_COUNT, .min = 1, .max = 65536, .value = "N"},
    [KVC_VLLM_GAPS] = {.key = "gaps", .kind = KVC_OPTION_FLAG},
    {.key = NULL},
};

static const struct kvc_format_option export_options[] = {
    [KVC_VLLM_TO_SHAPE] = {.key = "shape", .kind = KVC_OPTION_TEXT, .value = "T-H-2D"},
    [KVC_VLLM_TO_NAME] = {.key = "name",
                          .kind = KVC_OPTION_TEXT,
                          .value = "model.layers.{i}.self_attn.attn"},
    [KVC_VLLM_TO_CPU_BLOCK] =
        {.key = "cpu-block", .kind = KVC_OPTION_COUNT, .min = 1, .max = 65536, .value = "N"},
    {.key = NULL},
};

const struct kvc_format kvc_format_vllm = {
    .name = "vllm",
    .summary = "folders of vLLM's ExampleConnector, a file for each layer",
    .suffix = ".vllm",
    .takes_members = 1,
    .import_options = import_options,
    .export_options = export_options,
    .source = KVC_SOURCE_VLLM,
    .no_source = "the order in which a CPU of vLLM keeps values is not recorded for blocks of this "
                 "size (vllm:cpu-block=N writes it)",
    .lacks = KVC_LACKS_TOKENS | KVC_LACKS_POSITIONS | KVC_LACKS_COORDINATES | KVC_LACKS_COMPANIONS |
             KVC_LACKS_SNAPSHOTS | KVC_LACKS_METADATA | KVC_LACKS_UNKNOWNS,
    .keeps = kvc_vllm_keeps,
    .probe = vllm_probe,
    .import = kvc_vllm_read,
    .export_members = kvc_vllm_write,
};
