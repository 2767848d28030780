/* given.c: opens what a caller gives beside a cache: the model's weights, a profile. Says of a
 * wrong file what it is. Not for caches (open.c). */
#include "formats/file/given.h"

#include "formats/file/open.h"
#include "formats/model/model_files.h"
#include "formats/model/weights_names.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum given { UNKNOWN, WEIGHTS, PROFILE, CACHE };

/* What a file is. */
struct kind {
    enum given is;
    char text[64]; /* "a kvc profile" */
};

static void set_kind(struct kind *k, enum given is, const char *text, const char *format) {
    k->is = is;
    snprintf(k->text, sizeof k->text, format ? "%s (%s)" : "%s", text, format);
}

/* Recognises weights and profiles by their headers. */
static void find_by_header(struct kind *k, const struct kvc_input *in) {
    struct kvc_safetensors s;
    uint64_t header;
    if (kvc_model_file_begins(in, &header, NULL)) return;
    if (!header) {
        set_kind(k, WEIGHTS, "a GGUF file", NULL);
        return;
    }
    if (kvc_safetensors_read_input(&s, in, KVC_SAFETENSORS_ANY_DTYPE, NULL)) return;
    if (kvc_safetensors_text(&s, "kvc.profile")) set_kind(k, PROFILE, "a kvc profile", NULL);
    else if (kvc_safetensors_has_attention(&s))
        set_kind(k, WEIGHTS, "a model's weights", "safetensors");
    kvc_safetensors_free(&s);
}

/* Recognises a regular file, or a folder of a cache. Pipes are left alone. */
static struct kind find_kind(const char *path) {
    struct kind k = {UNKNOWN, ""};
    const struct kvc_opening nothing = {.any_bytes = 1};
    struct kvc_opened f;
    struct kvc_input in;
    struct stat st;
    if (stat(path, &st) || !(S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))) return k;
    if (S_ISREG(st.st_mode) && !kvc_input_open(&in, path, NULL)) {
        find_by_header(&k, &in);
        kvc_input_close(&in);
    }
    if (k.is || kvc_open_path(&f, path, &nothing, NULL)) return k;
    set_kind(&k, CACHE, "a cache", f.format->name);
    kvc_close(&f);
    return k;
}

/* Returns 1, and fills *e with what the file is, if that is known and is not what was wanted. */
static int is_other(const char *path, enum given wanted, struct kvc_error *e) {
    static const enum kvc_need serves[] = {[WEIGHTS] = KVC_NEED_AS_MODEL,
                                           [PROFILE] = KVC_NEED_AS_PROFILE,
                                           [CACHE] = KVC_NEED_AS_INPUT};
    const struct kind k = find_kind(path);
    if (!k.is || k.is == wanted) return 0;
    kvc_fail_need(e, KVC_ERR_UNKNOWN_FORMAT, serves[k.is], "%s: is %s, not %s", path, k.text,
                  wanted == PROFILE ? "a profile" : "a model's weights");
    return 1;
}

static int no_attention(const char *path, struct kvc_error *e) {
    if (is_other(path, WEIGHTS, e)) return -1;
    return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT,
                    "%s: is not a model's weights: it has no matrix of attention", path);
}

int kvc_given_no_weights(const char *path, struct kvc_error *e) {
    return is_other(path, WEIGHTS, e) ? -1 : kvc_error_prefix(e, path);
}

int kvc_given_model(const char *path, int full, struct kvc_model *m, struct kvc_error *e) {
    if (kvc_model_read(path, full, m, e)) return kvc_given_no_weights(path, e);
    return m->has_attention ? 0 : no_attention(path, e);
}

struct kvc_weights *kvc_given_weights(const char *path, struct kvc_error *e) {
    struct kvc_weights *w = kvc_weights_open(path, e);
    if (w && kvc_weights_have_attention(w)) return w;
    if (w) no_attention(path, e);
    else kvc_given_no_weights(path, e);
    kvc_weights_close(w);
    return NULL;
}

struct kvc_cache *kvc_given_queries(const struct kvc_cache *c, const struct kvc_weights *weights,
                                    const char *path, unsigned threads, struct kvc_error *e) {
    struct kvc_weights *opened = NULL;
    if (!weights && !path) {
        kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_QUERIES, "there are no queries");
        return NULL;
    }
    if (!weights && !(weights = opened = kvc_given_weights(path, e))) return NULL;
    struct kvc_cache *queries = kvc_queries_estimate(c, weights, threads, e);
    kvc_weights_close(opened);
    return queries;
}

struct kvc_profile *kvc_given_profile(const char *path, struct kvc_error *e) {
    struct kvc_profile *p = kvc_profile_open(path, e);
    if (!p) is_other(path, PROFILE, e);
    return p;
}

int kvc_given_profile_check(const char *path, struct kvc_error *e) {
    if (is_other(path, PROFILE, e)) return -1;
    return 0;
}
