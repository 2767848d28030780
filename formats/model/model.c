/* model.c: facts and fingerprint of weights files. Not for comparing them with a cache
 * (model_match.c), and not for the weights themselves. KEYS.md, "Model fingerprint". */
#include "formats/model/model.h"

#include "codecs/memory.h"
#include "formats/io/json_text.h"
#include "formats/model/file_hash.h"
#include "formats/model/gguf.h"
#include "formats/io/hash.h"
#include "formats/io/input.h"
#include "formats/io/printable.h"
#include "formats/model/model_files.h"
#include "formats/model/rope_scaling.h"
#include "formats/model/vocab.h"
#include "formats/model/weights_names.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TAG_SAMPLED "kvc model sampled 0\n"
#define TAG_FULL "kvc model pieces 1\n"
#define SAMPLES 64
#define SAMPLE_BYTES UINT64_C(4096)
#define STEP_BYTES ((size_t)1 << 18) /* of a file that is hashed are in memory together */
#define MAX_TOKENIZER_BYTES (UINT64_C(256) << 20)
#define LLAMA_THETA 10000.0           /* the base that llama.cpp takes when a file has none */
#define MAX_COUNT (UINT64_C(1) << 31) /* of layers, heads, channels */

/* Copies a text from a file by the rules of metadata: UTF-8 without control characters. Bytes that
 * break them become '?'. */
static void copy_text(char *to, size_t room, const char *text, uint64_t size) {
    size_t used = 0;
    const uint8_t *p = (const uint8_t *)text;
    while (size) {
        size_t n = kvc_utf8_length(p, (size_t)size);
        const int good = n && (n > 1 || (*p >= 0x20 && *p != 0x7f));
        if (!good) n = 1;
        if (used + n >= room) break;
        if (good) memcpy(to + used, p, n);
        else to[used] = '?';
        used += n;
        p += n;
        size -= n;
    }
    to[used] = '\0';
}

/* Returns a frequency base or factor; 0 (unknown) when the number cannot be one. */
static double sane(double v) {
    return v > 0 && isfinite(v) ? v : 0;
}

/* ---- GGUF ---- */

struct gguf_facts {
    const struct kvc_gguf *g;
    const char *arch;
    char key[128];
};

/* "llama" and "block_count" give "llama.block_count". */
static const char *arch_key(struct gguf_facts *f, const char *name) {
    snprintf(f->key, sizeof f->key, "%s.%s", f->arch, name);
    return f->key;
}

static uint64_t arch_u64(struct gguf_facts *f, const char *name, uint64_t otherwise) {
    int differ;
    uint64_t v = kvc_gguf_u64(f->g, arch_key(f, name), otherwise, &differ);
    return differ || v > MAX_COUNT ? 0 : v;
}

/* Reads the sections of a model whose positions have several coordinates (M-RoPE), as llama.cpp's
 * use_mrope() tells it. */
static void gguf_sections(struct gguf_facts *f, struct kvc_model *m) {
    const struct kvc_gguf_entry *entry = kvc_gguf_find(f->g,
                                                       arch_key(f, "rope.dimension_sections"));
    uint64_t v[KVC_ROPE_SECTIONS];
    uint32_t n = 0;
    while (entry && n < KVC_ROPE_SECTIONS && n < entry->count && kvc_gguf_item(entry, n, &v[n]) &&
           v[n] <= UINT16_MAX)
        n++;
    if (n < 2 || !v[0] || !v[1]) return;
    memcpy(m->rope_section, v, n * sizeof v[0]);
    m->n_rope_sections = n;
}

/* Returns the type of a model's RoPE that is not scaled. */
static const char *plain_type(const struct kvc_model *m) {
    /* IMROPE of llama.cpp */
    static const char *const interleaved[] = {"qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"};
    if (!m->n_rope_sections) return "default";
    for (size_t i = 0; i < sizeof interleaved / sizeof interleaved[0]; i++)
        if (strcmp(m->arch, interleaved[i]) == 0) return "imrope";
    return "mrope";
}

static void gguf_rope(struct gguf_facts *f, struct kvc_model *m) {
    gguf_sections(f, m);
    m->pairing = m->n_rope_sections ? KVC_PAIRING_HALVES : kvc_pairing_of_gguf_arch(m->arch);
    if (m->pairing == KVC_PAIRING_NONE) return;
    m->rope_original = arch_u64(f, "rope.scaling.original_context_length", 0);
    m->rope_theta = sane(kvc_gguf_f64(f->g, arch_key(f, "rope.freq_base"), LLAMA_THETA));
    m->rope_dim = arch_u64(f, "rope.dimension_count", m->head_dim);
    m->rope_factor = sane(kvc_gguf_f64(f->g, arch_key(f, "rope.scaling.factor"), 0));
    if (!(m->rope_factor > 0))
        m->rope_factor = sane(kvc_gguf_f64(f->g, arch_key(f, "rope.scale_linear"), 0));

    uint64_t size;
    const char *type = kvc_gguf_text(f->g, arch_key(f, "rope.scaling.type"), &size);
    if (type && !(size == 4 && memcmp(type, "none", 4) == 0))
        copy_text(m->rope_type, sizeof m->rope_type, type, size);
    else if (!type && kvc_gguf_has_tensor(f->g, "rope_factors_long.weight"))
        snprintf(m->rope_type, sizeof m->rope_type, "longrope"); /* it alone tells so */
    else if (!type && kvc_gguf_has_tensor(f->g, "rope_freqs.weight"))
        /* A table changes the frequencies. Its formula is known for the llama family alone. */
        snprintf(m->rope_type, sizeof m->rope_type, "%s",
                 strcmp(m->arch, "llama") == 0 ? "llama3" : "");
    else
        snprintf(m->rope_type, sizeof m->rope_type, "%s",
                 m->rope_factor > 0 && !type ? "linear" : plain_type(m));
}

static void gguf_rope_table(const struct kvc_gguf *g, const struct kvc_input *in,
                            struct kvc_model *m) {
    const struct kvc_rope_facts rope = {.type = kvc_rope_type_parse(m->rope_type),
                                        .theta = m->rope_theta,
                                        .factor = m->rope_factor,
                                        .dim = m->rope_dim,
                                        .original = m->rope_original};
    if (m->pairing != KVC_PAIRING_NONE) kvc_rope_table_gguf(&m->rope_table, g, in, m->arch, &rope);
}

/* The patterns that llama.cpp takes where a file has no sliding_window_pattern: all layers but
 * every n-th have a window (src/models/, load_arch_hparams of each architecture). kvc knows no
 * pattern of other architectures. */
static const struct {
    const char *arch;
    uint32_t period, window; /* window: where the file has none either */
} known_patterns[] = {{"cohere2", 4, 0}, {"gemma2", 2, 4096}, {"gemma3", 6, 0}, {"gemma3n", 5, 0},
                      {"gpt-oss", 2, 0}, {"olmo2", 4, 0},     {"plamo3", 8, 0}};

static uint32_t window_tokens(uint64_t n) {
    return n <= UINT32_MAX ? (uint32_t)n : 0;
}

/* Reads the layers that have a window: a flag or a number for each, a period, or else the pattern
 * of the architecture. */
static void gguf_windows(struct gguf_facts *f, struct kvc_model *m) {
    const struct kvc_gguf_entry *entry =
        kvc_gguf_find(f->g, arch_key(f, "attention.sliding_window_pattern"));
    const uint32_t layers = m->layers <= KVC_MAX_PATTERN ? (uint32_t)m->layers : 0;
    uint64_t v;
    for (size_t i = 0; i < sizeof known_patterns / sizeof known_patterns[0] && !entry; i++)
        if (strcmp(m->arch, known_patterns[i].arch) == 0) {
            if (!m->window) m->window = known_patterns[i].window;
            if (m->window)
                kvc_pattern_repeat(&m->pattern, layers, known_patterns[i].period,
                                   window_tokens(m->window));
        }
    if (!entry || !m->window || !kvc_gguf_item(entry, 0, &v)) return;
    if (!entry->array) {
        if (v <= KVC_MAX_PATTERN)
            kvc_pattern_repeat(&m->pattern, layers, (uint32_t)v, window_tokens(m->window));
        return;
    }
    kvc_pattern_repeat(&m->pattern, layers, 1, window_tokens(m->window));
    if (entry->count < layers) m->pattern.n = 0;
    for (uint32_t i = 0; i < m->pattern.n; i++)
        if (kvc_gguf_item(entry, i, &v)) m->pattern.sliding[i] = v != 0;
}

static int gguf_facts(const struct kvc_gguf *g, struct kvc_model *m, struct kvc_error *e) {
    uint64_t size;
    const char *text = kvc_gguf_text(g, "general.architecture", &size);
    if (!text || !size)
        return kvc_fail(e, KVC_ERR_DAMAGED, "GGUF header: general.architecture is missing");
    if (size >= sizeof m->arch)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "GGUF header: general.architecture is longer than %zu bytes",
                        sizeof m->arch - 1);
    copy_text(m->arch, sizeof m->arch, text, size);
    text = kvc_gguf_text(g, "general.name", &size);
    if (text) copy_text(m->name, sizeof m->name, text, size);

    struct gguf_facts f = {g, m->arch, ""};
    m->layers = arch_u64(&f, "block_count", 0);
    uint64_t predicting = arch_u64(&f, "nextn_predict_layers", 0); /* counted in block_count */
    if (predicting < m->layers) m->layers -= predicting;
    m->heads = arch_u64(&f, "attention.head_count", 0);
    m->kv_heads = arch_u64(&f, "attention.head_count_kv", m->heads);
    uint64_t width = arch_u64(&f, "embedding_length", 0), each = m->heads ? width / m->heads : 0;
    m->head_dim = arch_u64(&f, "attention.key_length", each);
    m->head_dim_v = arch_u64(&f, "attention.value_length", each);
    m->latent = arch_u64(&f, "attention.kv_lora_rank", 0) != 0;
    m->window = arch_u64(&f, "attention.sliding_window", 0);
    gguf_windows(&f, m);
    gguf_rope(&f, m);
    return kvc_vocab_hash_gguf(g, m->tokenizer, &m->has_tokenizer, e);
}

/* ---- safetensors: config.json and tokenizer.json ---- */

/* The settings of a language model: config.json, or an object in it when the model takes pictures,
 * too. */
struct config {
    json_t *root, *text;
};

static json_t *config_get(const struct config *c, const char *const *names) {
    for (; *names; names++) {
        json_t *v = json_object_get(c->text, *names);
        if (!v) v = json_object_get(c->root, *names);
        if (v && !json_is_null(v)) return v;
    }
    return NULL;
}
#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

static uint64_t count_of(const json_t *v) {
    json_int_t n = json_is_integer(v) ? json_integer_value(v) : 0;
    return n > 0 && (uint64_t)n <= MAX_COUNT ? (uint64_t)n : 0;
}

/* Returns a whole number, or the number that all items of a list (one per layer) equal; 0 when
 * unknown. */
static uint64_t config_count(const struct config *c, const char *const *names) {
    json_t *v = config_get(c, names), *item;
    if (!json_is_array(v)) return count_of(v);
    uint64_t first = count_of(json_array_get(v, 0));
    size_t i;
    json_array_foreach(v, i, item) if (count_of(item) != first) return 0;
    return first;
}

static double config_number(const struct config *c, const json_t *rope, const char *name) {
    const json_t *v = json_object_get(rope, name);
    if (!json_is_number(v)) v = config_get(c, NAMES(name));
    return sane(json_number_value(v));
}

/* Returns the object that holds rope_type and so on; NULL when there is none. With one object per
 * kind of attention, returns the object of full attention. */
static json_t *config_rope(const struct config *c) {
    json_t *rope = config_get(c, NAMES("rope_parameters", "rope_scaling"));
    json_t *full = json_object_get(rope, "full_attention");
    return json_is_object(full) ? full : rope;
}

static void config_rope_facts(const struct config *c, struct kvc_model *m) {
    /* the language model's own */
    const char *text = json_string_value(json_object_get(c->text, "model_type"));
    m->pairing = kvc_pairing_of_transformers(text ? text : m->arch);
    if (json_is_true(config_get(c, NAMES("alibi")))) m->pairing = KVC_PAIRING_NONE; /* falcon */
    if (m->pairing == KVC_PAIRING_NONE) return;
    json_t *rope = config_rope(c);
    m->rope_theta = config_number(c, rope, "rope_theta");
    if (!(m->rope_theta > 0)) m->rope_theta = config_number(c, rope, "rotary_emb_base");
    struct kvc_rope_scaling scaling;
    kvc_rope_scaling_read(&scaling, rope);
    m->rope_factor = scaling.factor;
    m->rope_original = scaling.original
                           ? scaling.original
                           : config_count(c, NAMES("original_max_position_embeddings"));
    if (!m->rope_original && scaling.type && strcmp(scaling.type, "dynamic") == 0)
        m->rope_original = config_count(c, NAMES("max_position_embeddings"));
    memcpy(m->rope_section, scaling.section, sizeof m->rope_section);
    m->n_rope_sections = scaling.n_sections;
    memcpy(m->rope_more, scaling.more, sizeof m->rope_more);
    const char *type = scaling.type ? scaling.type : "default";
    copy_text(m->rope_type, sizeof m->rope_type, type, strlen(type));

    double part = config_number(c, rope, "partial_rotary_factor");
    if (!(part > 0)) part = config_number(c, rope, "rotary_pct");
    m->rope_dim = config_count(c, NAMES("rotary_dim"));
    if (!m->rope_dim)
        m->rope_dim = part > 0 && part <= 1 ? (uint64_t)((double)m->head_dim * part) : m->head_dim;
}

static uint64_t config_kv_heads(const struct config *c, uint64_t heads) {
    static const char *const names[] = {"num_key_value_heads", "num_kv_heads", NULL};
    int one = json_is_true(config_get(c, NAMES("multi_query"))) &&
              !json_is_true(config_get(c, NAMES("new_decoder_architecture"))); /* falcon */
    if (one) return 1;
    return config_get(c, names) ? config_count(c, names) : heads;
}

/* Reads the layers that have a window: layer_types of newer files, sliding_window_pattern of older
 * files. */
static void config_windows(const struct config *c, struct kvc_model *m) {
    const json_t *types = config_get(c, NAMES("layer_types"));
    const uint32_t layers = m->layers <= KVC_MAX_PATTERN ? (uint32_t)m->layers : 0;
    const uint64_t period = config_count(c, NAMES("sliding_window_pattern"));
    if (!m->window) return;
    if (json_is_array(types) && json_array_size(types) == layers) {
        kvc_pattern_repeat(&m->pattern, layers, 1, window_tokens(m->window));
        for (uint32_t i = 0; i < layers; i++) {
            const char *type = json_string_value(json_array_get(types, i));
            m->pattern.sliding[i] = type && strcmp(type, "sliding_attention") == 0;
        }
    } else if (period && period <= KVC_MAX_PATTERN) {
        kvc_pattern_repeat(&m->pattern, layers, (uint32_t)period, window_tokens(m->window));
    } else if (strcmp(m->arch, "gemma2") ==
               0) { /* modeling_gemma2.py: every second layer, the first one included */
        kvc_pattern_repeat(&m->pattern, layers, 2, window_tokens(m->window));
    }
}

static void config_facts(const struct config *c, struct kvc_model *m) {
    const char *text = json_string_value(json_object_get(c->root, "model_type"));
    if (text) copy_text(m->arch, sizeof m->arch, text, strlen(text));
    text = json_string_value(config_get(c, NAMES("_name_or_path")));
    if (text) {
        /* somebody's folder is no name */
        if (text[0] == '/' || text[0] == '.') text = kvc_base_name(text);
        copy_text(m->name, sizeof m->name, text, strlen(text));
    }
    m->layers = config_count(c, NAMES("num_hidden_layers", "n_layer", "num_layers"));
    m->heads = config_count(c, NAMES("num_attention_heads", "n_head"));
    m->latent = config_get(c, NAMES("kv_lora_rank")) != NULL;
    if (!m->latent) { /* latent attention is cached in another shape */
        uint64_t width = config_count(c, NAMES("hidden_size", "n_embd", "d_model"));
        m->kv_heads = config_kv_heads(c, m->heads);
        m->head_dim = config_count(c, NAMES("head_dim"));
        if (!m->head_dim && m->heads && width % m->heads == 0) m->head_dim = width / m->heads;
        m->head_dim_v = config_count(c, NAMES("v_head_dim"));
        if (!m->head_dim_v) m->head_dim_v = m->head_dim;
    }
    if (!json_is_false(config_get(c, NAMES("use_sliding_window"))))
        m->window = config_count(c, NAMES("sliding_window"));
    config_windows(c, m);
    config_rope_facts(c, m);
    if (m->latent) m->pairing = KVC_PAIRING_UNKNOWN; /* transformers keeps latents as K */
}

static int read_config(const struct kvc_model_files *files, struct kvc_model *m,
                       uint64_t *vocab_size, struct kvc_error *e) {
    struct kvc_input in;
    *vocab_size = 0;
    int there = kvc_model_files_beside(files, "config.json", KVC_MAX_CONFIG_BYTES, &in, e);
    if (there <= 0) return there;
    json_error_t error;
    struct config c = {kvc_json_load(in.data, (size_t)in.size, JSON_REJECT_DUPLICATES, &error),
                       NULL};
    kvc_input_close(&in);
    if (!json_is_object(c.root)) {
        json_decref(c.root);
        return kvc_fail(e, KVC_ERR_DAMAGED, "config.json: no JSON object: %s (line %d)", error.text,
                        error.line);
    }
    c.text = json_object_get(c.root, "text_config");
    if (!c.text) c.text = json_object_get(c.root, "llm_config");
    config_facts(&c, m);
    *vocab_size = config_count(&c, NAMES("vocab_size"));
    json_decref(c.root);
    return 0;
}

static int read_tokenizer(const struct kvc_model_files *files, struct kvc_model *m,
                          uint64_t vocab_size, struct kvc_error *e) {
    struct kvc_input in;
    int there = kvc_model_files_beside(files, "tokenizer.json", MAX_TOKENIZER_BYTES, &in, e);
    if (there <= 0) return there;
    int status = kvc_vocab_hash_json(in.data, in.size, vocab_size, m->tokenizer, &m->has_tokenizer,
                                     e);
    kvc_input_close(&in);
    return status ? kvc_error_prefix(e, "tokenizer.json") : 0;
}

/* ---- fingerprints ---- */

/* Hashes bytes [at, at + n) of a file, a step of them at a time. */
static int hash_bytes(struct kvc_sha256 *h, const struct kvc_input *in, uint64_t at, uint64_t n,
                      struct kvc_error *e) {
    const size_t step = n < STEP_BYTES ? (size_t)n : STEP_BYTES;
    uint8_t *bytes = kvc_alloc(step, 1);
    int status = bytes ? 0 : kvc_fail_memory(e, "a SHA-256 hash");
    for (uint64_t some; n && !status; at += some, n -= some) {
        some = n < step ? n : step;
        status = kvc_input_read(in, at, bytes, some, e);
        if (!status) kvc_sha256_update(h, bytes, (size_t)some);
    }
    free(bytes);
    return status;
}

static int hash_header(struct kvc_sha256 *h, const struct kvc_input *in, uint64_t header,
                       struct kvc_error *e) {
    if (kvc_input_pin(in, 0, header, e)) return -1;
    kvc_sha256_update(h, in->data, (size_t)header);
    kvc_input_unpin(in, 0, header);
    return 0;
}

/* Hashes the size, the header, and samples of the data that follow the header. */
static int sample(struct kvc_sha256 *h, const struct kvc_input *in, uint64_t header,
                  struct kvc_error *e) {
    kvc_sha256_u64(h, in->size);
    if (hash_header(h, in, header, e)) return -1;
    uint64_t size = in->size - header;
    if (size <= SAMPLES * SAMPLE_BYTES) return hash_bytes(h, in, header, size, e);
    /* floor(i * (size - 4096) / 63) without overflow: the first block begins the data, the last
     * ends it. */
    uint64_t step = (size - SAMPLE_BYTES) / (SAMPLES - 1),
             rest = (size - SAMPLE_BYTES) % (SAMPLES - 1);
    for (uint64_t i = 0; i < SAMPLES; i++)
        if (hash_bytes(h, in, header + i * step + i * rest / (SAMPLES - 1), SAMPLE_BYTES, e))
            return -1;
    return 0;
}

struct hashes {
    struct kvc_sha256 sampled, full;
    int want_full;
};

static int find_attention(const struct kvc_input *in, struct kvc_model *m, struct kvc_error *e) {
    struct kvc_safetensors header;
    if (kvc_safetensors_read_input(&header, in, KVC_SAFETENSORS_ANY_DTYPE, e)) return -1;
    m->has_attention |= kvc_safetensors_has_attention(&header);
    kvc_safetensors_free(&header);
    return 0;
}

/* Reads one weights file: its header, the facts (of the first file) and its share of the
 * fingerprints. */
static int model_read_file(const struct kvc_input *in, int first, size_t n_files, struct hashes *h,
                           struct kvc_model *m, struct kvc_error *e) {
    uint64_t header;
    if (kvc_model_file_begins(in, &header, e)) return -1;
    const int is_gguf = !header;
    if (is_gguf) {
        struct kvc_gguf g;
        if (kvc_gguf_open(&g, in, e)) return -1;
        header = g.data_offset;
        int status = first ? gguf_facts(&g, m, e) : 0;
        if (first && !status) gguf_rope_table(&g, in, m);
        m->has_attention |= kvc_gguf_has_attention(&g);
        kvc_gguf_close(&g);
        if (status) return -1;
    } else if (find_attention(in, m, e)) {
        return -1;
    }
    const enum kvc_model_kind kind = is_gguf ? KVC_MODEL_GGUF : KVC_MODEL_SAFETENSORS;
    if (!first && m->kind != kind)
        return kvc_fail(e, KVC_ERR_DAMAGED, "a %s file among parts of a %s model",
                        kvc_model_kind_name(kind), kvc_model_kind_name(m->kind));
    m->kind = kind;

    for (int full = 0; full <= h->want_full; full++) {
        struct kvc_sha256 *hash = full ? &h->full : &h->sampled;
        if (first) {
            const char *tag = full ? TAG_FULL : TAG_SAMPLED;
            kvc_sha256_update(hash, tag, strlen(tag));
            kvc_sha256_update(hash, kvc_model_kind_name(kind), strlen(kvc_model_kind_name(kind)));
            kvc_sha256_update(hash, "\n", 1);
            kvc_sha256_u32(hash, (uint32_t)n_files);
        }
        if (full) {
            uint8_t all[KVC_SHA256_BYTES];
            if (kvc_file_hash(in, all, e)) return -1;
            kvc_sha256_u64(hash, in->size);
            kvc_sha256_update(hash, all, sizeof all);
        } else if (sample(hash, in, header, e)) {
            return -1;
        }
    }
    return 0;
}

static int read_files(const struct kvc_model_files *f, struct hashes *h, struct kvc_model *m,
                      struct kvc_error *e) {
    for (size_t i = 0; i < f->n; i++) {
        struct kvc_input in;
        int status = kvc_input_open(&in, f->path[i], e);
        if (!status) {
            status = model_read_file(&in, i == 0, f->n, h, m, e);
            kvc_input_close(&in);
        }
        if (status) return f->n > 1 ? kvc_error_prefix(e, kvc_base_name(f->path[i])) : -1;
    }
    return 0;
}

int kvc_model_read(const char *path, int full, struct kvc_model *m, struct kvc_error *e) {
    memset(m, 0, sizeof *m);
    struct kvc_model_files files;
    if (kvc_model_files_list(&files, path, e)) return -1;
    struct hashes h = {{NULL}, {NULL}, full != 0};
    kvc_sha256_init(&h.sampled);
    kvc_sha256_init(&h.full);

    uint64_t vocab_size;
    int status = read_files(&files, &h, m, e);
    if (!status && m->kind == KVC_MODEL_SAFETENSORS) {
        status = read_config(&files, m, &vocab_size, e);
        if (!status) status = read_tokenizer(&files, m, vocab_size, e);
    }
    if (!status) status = kvc_sha256_final(&h.sampled, m->sampled, e);
    if (!status && full) {
        status = kvc_sha256_final(&h.full, m->full, e);
        m->has_full = 1;
    }
    kvc_sha256_drop(&h.sampled);
    kvc_sha256_drop(&h.full);
    kvc_model_files_free(&files);
    if (status) memset(m, 0, sizeof *m);
    else if (strlen(path) < sizeof m->path) strcpy(m->path, path);
    return status;
}
