/* rope_pairing.c: the channels of K that an engine rotates together. Not for rotating or permuting
 * (kernels, exporters).
 *
 * Interleaved: channels 2i and 2i+1. Halves: i and i + D/2, D being the rotated channels of a head.
 */
#include "formats/cache/rope_pairing.h"

#include <string.h>

/* llama.cpp's rope types NORM, NEOX and NONE by general.architecture, as its library of September
 * 2026 answers. Its multi-axis types MROPE and IMROPE (qwen2vl, qwen3vl, ...) rotate halves,
 * whatever the coordinates of a position. Encoders, which keep no cache, are left out. starcoder,
 * NORM there, rotates nothing. */
static const char *const gguf_interleaved[] = {
    "arcee",         "arctic",    "baichuan",    "bailingmoe",    "bailingmoe3",
    "chameleon",     "chatglm",   "cohere2",     "cohere2moe",    "command-r",
    "deci",          "deepseek",  "deepseek2",   "deepseek2-ocr", "deepseek32",
    "deepseek4",     "dots3note", "ernie4_5",    "ernie4_5-moe",  "glm-dsa",
    "glm4",          "granite",   "granite_swa", "granitehybrid", "granitemoe",
    "graniteswitch", "hy_v4",     "internlm2",   "llada",         "llama",
    "llama4",        "maincoder", "minicpm",     "mistral3",      "mistral4",
    "muse-glimmer",  "nanbeige",  "olmo",        "plm",           "pockettts",
    "smollm3",       "xverse",    NULL};
static const char *const gguf_halves[] = {
    "afmoe",          "apertus",     "bailingmoe2", "bitnet",     "codeshell",
    "cogvlm",         "dbrx",        "dots1",       "dream",      "exaone",
    "exaone-moe",     "exaone4",     "falcon",      "falcon-h1",  "gemma",
    "gemma2",         "gemma3",      "gemma3n",     "gemma4",     "glm4moe",
    "gpt-oss",        "gptneox",     "grok",        "grovemoe",   "hrm_text",
    "hunyuan-dense",  "hunyuan-moe", "hy_v3",       "jais2",      "laguna",
    "lfm2",           "lfm2moe",     "llada-moe",   "maple",      "mellum",
    "mimo2",          "minicpm3",    "minimax-01",  "minimax-m2", "minimax-m3",
    "nemotron",       "olmo2",       "olmoe",       "openelm",    "orion",
    "pangu-embedded", "phi2",        "phi3",        "phimoe",     "plamo",
    "plamo2",         "plamo3",      "qwen",        "qwen2",      "qwen2moe",
    "qwen3",          "qwen3moe",    "qwen3next",   "rnd1",       "seed_oss",
    "smallthinker",   "spark2_5",    "stablelm",    "starcoder2", "step35",
    "talkie",         "qwen2vl",     "paddleocr",   "qwen3vl",    "qwen3vlmoe",
    "qwen35",         "qwen35moe",   NULL};
static const char *const gguf_none[] = {"arwkv7",      "bloom",          "glm5-next", "gpt2",
                                        "gptj",        "jais",           "jamba",     "kimi-k3",
                                        "kimi-linear", "mamba",          "mamba2",    "mpt",
                                        "nemotron_h",  "nemotron_h_moe", "refact",    "rwkv6",
                                        "rwkv6qwen2",  "rwkv7",          "starcoder", NULL};

/* transformers rotates halves everywhere but in these, by config.json's model_type
 * (transformers 5.23) or by the GGUF architecture of the same model. */
static const char *const transformers_interleaved[] = {
    "chatglm",   "codegen",  "cohere",       "cohere2",      "cohere2_moe", "cohere2moe",
    "command-r", "ernie4_5", "ernie4_5-moe", "ernie4_5_moe", "glm",         "glm4",
    "gptj",      "helium",   "llama4",       "llama4_text",  NULL};

static int listed(const char *const *list, const char *name) {
    for (; *list; list++)
        if (strcmp(*list, name) == 0) return 1;
    return 0;
}

enum kvc_pairing kvc_pairing_of_gguf_arch(const char *arch) {
    if (listed(gguf_interleaved, arch)) return KVC_PAIRING_INTERLEAVED;
    if (listed(gguf_halves, arch)) return KVC_PAIRING_HALVES;
    if (listed(gguf_none, arch)) return KVC_PAIRING_NONE;
    return KVC_PAIRING_UNKNOWN;
}

enum kvc_pairing kvc_pairing_of_transformers(const char *arch) {
    if (listed(transformers_interleaved, arch)) return KVC_PAIRING_INTERLEAVED;
    if (listed(gguf_none, arch)) return KVC_PAIRING_NONE;
    return KVC_PAIRING_HALVES;
}

static const char *const pairing_names[] = {"unknown", "halves", "interleaved", "none"};

const char *kvc_pairing_name(enum kvc_pairing p) {
    return pairing_names[p];
}

int kvc_pairing_parse(const char *name, enum kvc_pairing *p) {
    for (int i = KVC_PAIRING_HALVES; i <= KVC_PAIRING_NONE; i++)
        if (strcmp(name, pairing_names[i]) == 0) {
            *p = (enum kvc_pairing)i;
            return 1;
        }
    return 0;
}
