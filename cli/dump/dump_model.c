/* dump_model.c: the summary of a model's profile or weights file, which kvc-dump is given instead
 * of a cache. Not for caches (dump_summary.c). */
#include "cli/dump/dump.h"

#include <inttypes.h>
#include <string.h>

enum { SHA256_BYTES = 32 };

static int is_gguf(const struct kvc_model_info *m) {
    return strcmp(m->format, "gguf") == 0;
}

static void text_fact(struct dump_out *o, const char *name, const char *text) {
    dump_key_text(o, name, text && *text ? text : NULL);
}

static void number_fact(struct dump_out *o, const char *name, uint64_t v) {
    if (v) dump_key_u64(o, name, v);
    else dump_key_none(o, name);
}

static void real_fact(struct dump_out *o, const char *name, double v) {
    if (v > 0) dump_key_f64(o, name, v);
    else dump_key_none(o, name);
}

/* Prints a text of the profile that is a decimal number. */
static void profile_number(struct dump_out *o, const char *name, const struct kvc_profile *p,
                           const char *key) {
    uint64_t v;
    if (!cli_parse_u64(kvc_shared_profile_text(p, key), &v)) dump_key_u64(o, name, v);
    else dump_key_none(o, name);
}

void dump_profile(struct dump_out *o, const char *path, const struct kvc_profile *p) {
    struct kvc_profile_info info = {.size = sizeof info};
    uint64_t size;
    const uint32_t layers = kvc_shared_profile_layers(p, &size);
    kvc_shared_profile_describe(p, &info);
    dump_begin(o, path);
    dump_key_text(o, "format", "profile");
    text_fact(o, "version", kvc_shared_profile_text(p, "kvc.profile"));
    text_fact(o, "model", info.model);
    text_fact(o, "architecture", kvc_shared_profile_text(p, "model.architecture"));
    dump_key_u64(o, "layers", layers);
    profile_number(o, "heads", p, "model.heads");
    profile_number(o, "kv_heads", p, "model.kv-heads");
    profile_number(o, "head_dim", p, "model.head-dim");
    text_fact(o, "metric", kvc_shared_profile_text(p, "metric"));
    dump_key_bool(o, "predicts", info.predicts);
    profile_number(o, "tokens", p, "tokens");
    text_fact(o, "texts", kvc_shared_profile_text(p, "texts"));
    text_fact(o, "made", kvc_shared_profile_text(p, "made"));
    dump_key_hex(o, "sha256", info.sha256, sizeof info.sha256);
    dump_key_u64(o, "bytes", size);
    dump_end(o);
}

static void print_model(struct dump_out *o, const char *path, const struct kvc_model_info *m) {
    dump_begin(o, path);
    dump_key_text(o, "format", is_gguf(m) ? "GGUF weights" : "safetensors weights");
    text_fact(o, "model", m->name);
    text_fact(o, "architecture", m->architecture);
    number_fact(o, "layers", m->layers);
    number_fact(o, "heads", m->heads);
    number_fact(o, "kv_heads", m->kv_heads);
    number_fact(o, "head_dim", m->head_dim);
    number_fact(o, "head_dim_v", m->head_dim_v);
    number_fact(o, "window", m->window);
    text_fact(o, "pairing", m->pairing);
    text_fact(o, "rope_type", m->rope_type);
    real_fact(o, "rope_theta", m->rope_theta);
    number_fact(o, "rope_dim", m->rope_dim);
    real_fact(o, "rope_factor", m->rope_factor);
    number_fact(o, "rope_original_context", m->rope_original);
    if (m->tokenizer) dump_key_hex(o, "tokenizer", m->tokenizer, SHA256_BYTES);
    else dump_key_none(o, "tokenizer");
    dump_key_hex(o, "fingerprint", m->fingerprint, SHA256_BYTES);
    dump_end(o);
}

static int is_named(const char *path, const char *suffix) {
    const size_t n = strlen(path), m = strlen(suffix);
    return n > m && strcmp(path + n - m, suffix) == 0;
}

int dump_no_cache(struct dump_out *o, const char *path, struct kvc_error *e) {
    struct kvc_model_info info = {.size = sizeof info};
    if (strcmp(path, "-") == 0) return -1;
    if (is_named(path, ".kvcp")) {
        struct kvc_profile *p = kvc_shared_profile_open(path, e);
        if (p) dump_profile(o, path, p);
        kvc_shared_profile_close(p);
        return p ? 0 : -1;
    }
    /* A safetensors file is taken as weights if its config.json tells the model, as otherwise it
     * may be a cache. */
    struct kvc_model *model = kvc_shared_model_look(path, NULL);
    if (!model || kvc_shared_model_describe(model, &info)) return -1;
    const int known = is_gguf(&info) || info.layers;
    if (known) print_model(o, path, &info);
    kvc_shared_model_close(model);
    return known ? 0 : -1;
}
