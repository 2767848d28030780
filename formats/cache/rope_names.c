/* rope_names.c: what names of architectures and config.json say about RoPE. Not for rotating or
 * permuting (kernels, exporters).
 *
 * Interleaved: channels 2i and 2i+1. Halves: i and i + D/2, D being the rotated channels of a head.
 */
#include "formats/cache/rope_names.h"

#include "formats/io/json_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- pairing --- */

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
 * (transformers 5.24) or by the GGUF architecture of the same model; and nothing in the second
 * list. facts.py repeats both (test_facts.py compares). */
static const char *const transformers_interleaved[] = {"chatglm",
                                                       "codegen",
                                                       "cohere",
                                                       "cohere2",
                                                       "cohere2_moe",
                                                       "cohere2moe",
                                                       "command-r",
                                                       "ernie4_5",
                                                       "ernie4_5-moe",
                                                       "ernie4_5_moe",
                                                       "ernie4_5_vl_moe",
                                                       "ernie4_5_vl_moe_text",
                                                       "glm",
                                                       "glm4",
                                                       "glm4v",
                                                       "glm4v_text",
                                                       "glm_ocr",
                                                       "glm_ocr_text",
                                                       "gptj",
                                                       "helium",
                                                       "llama4",
                                                       "llama4_text",
                                                       "moonshine",
                                                       "roformer",
                                                       NULL};
static const char *const transformers_none[] = {"biogpt",     "ctrl", "gpt_bigcode", "gpt_neo",
                                                "openai-gpt", "opt",  "xglm",        NULL};

static int listed(const char *const *list, const char *name) {
    for (; name && *list; list++)
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
    if (listed(gguf_none, arch) || listed(transformers_none, arch)) return KVC_PAIRING_NONE;
    return KVC_PAIRING_HALVES;
}

static const char *const pairing_names[] = {"unknown", "halves", "interleaved", "none"};

const char *kvc_pairing_name(enum kvc_pairing p) {
    return pairing_names[p];
}

enum kvc_pairing kvc_pairing_parse(const char *name) {
    for (int i = KVC_PAIRING_HALVES; i <= KVC_PAIRING_NONE; i++)
        if (strcmp(name, pairing_names[i]) == 0) return (enum kvc_pairing)i;
    return KVC_PAIRING_UNKNOWN;
}

const char *kvc_pairing_tensor_name(enum kvc_pairing p) {
    return p == KVC_PAIRING_HALVES ? "half" : kvc_pairing_name(p);
}

enum kvc_pairing kvc_pairing_parse_tensor(const char *name) {
    return strcmp(name, "half") == 0 ? KVC_PAIRING_HALVES : kvc_pairing_parse(name);
}

/* --- scaling; source: transformers, modeling_rope_utils.py --- */

static const char *text_of(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static uint64_t count_of(const json_t *v) {
    const json_int_t n = json_integer_value(v);
    return n > 0 ? (uint64_t)n : 0;
}

static void read_sections(struct kvc_rope_scaling *s, const json_t *list) {
    const size_t n = json_array_size(list);
    if (n > KVC_ROPE_SECTIONS) return;
    for (size_t i = 0; i < n; i++) {
        const json_int_t v = json_integer_value(json_array_get(list, i));
        if (v < 0 || v > UINT16_MAX) return;
        s->section[i] = (uint64_t)v;
    }
    s->n_sections = (uint32_t)n;
}

/* Keeps what a type needs beyond its factor: YaRN's betas, the frequencies of llama3, the lists of
 * longrope. */
static void keep_more(struct kvc_rope_scaling *s, const json_t *object) {
    static const char *const known[] = {"rope_type",     "type",
                                        "factor",        "original_max_position_embeddings",
                                        "mrope_section", "mrope_interleaved",
                                        "rope_theta",    "partial_rotary_factor"};
    json_t *rest = json_is_object(object) ? json_copy((json_t *)(uintptr_t)object) : NULL;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) json_object_del(rest, known[i]);
    char *text = json_object_size(rest) ? kvc_json_dump(rest, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    if (text && strlen(text) < sizeof s->more) strcpy(s->more, text);
    free(text);
    json_decref(rest);
}

void kvc_rope_scaling_read(struct kvc_rope_scaling *s, const json_t *object) {
    *s = (struct kvc_rope_scaling){.type = text_of(object, "rope_type")};
    if (!s->type) s->type = text_of(object, "type");
    /* the name of its first year */
    if (s->type && strcmp(s->type, "su") == 0) s->type = "longrope";
    const double factor = json_number_value(json_object_get(object, "factor"));
    if (factor > 0 && isfinite(factor)) s->factor = factor;
    s->original = count_of(json_object_get(object, "original_max_position_embeddings"));
    read_sections(s, json_object_get(object, "mrope_section"));
    keep_more(s, object);
    const int plain = !s->type || strcmp(s->type, "default") == 0 || strcmp(s->type, "mrope") == 0;
    if (!s->n_sections || !plain) return;
    s->type = json_is_true(json_object_get(object, "mrope_interleaved")) ? "imrope" : "mrope";
}
