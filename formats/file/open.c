/* open.c: opens files, folders and bytes as caches. */
#include "formats/file/open.h"

#include "formats/cache/meta.h"
#include "formats/cache/meta.h"
#include "formats/container/container.h"
#include "kernels/kernels.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Checks that rows of K and V have the length that the model's heads need. An engine's file without
 * a fingerprint says nothing else about its model. */
static int check_rows(const struct kvc_model *m, const struct kvc_cache *c, struct kvc_error *e) {
    uint64_t dim[2] = {m->head_dim, m->head_dim_v ? m->head_dim_v : m->head_dim};
    for (uint32_t i = 0; i < c->n_tensors && m->kv_heads; i++) {
        const struct kvc_tensor *t = &c->tensor[i];
        if (t->role != KVC_ROLE_K && t->role != KVC_ROLE_V) continue;
        uint64_t have = t->shape.heads * t->shape.dim,
                 due = m->kv_heads * dim[t->role == KVC_ROLE_V];
        char label[64];
        kvc_tensor_label(c, i, label, sizeof label);
        if (due && have != due)
            return kvc_fail(e, KVC_ERR_OTHER_MODEL,
                            "another model: %s has rows of %" PRIu64
                            " values, the weights make %" PRIu64,
                            label, have, due);
        if (m->layers && c->layer[t->layer].index >= m->layers)
            return kvc_fail(e, KVC_ERR_OTHER_MODEL,
                            "another model: %s, but the weights have %" PRIu64 " layers", label,
                            m->layers);
    }
    return 0;
}

/* Gives the layers the model's windows. A model without facts about windows has none. */
static int settle_layers(const struct kvc_model *m, struct kvc_cache *c, struct kvc_error *e) {
    struct kvc_layer_pattern plain;
    /* its parts are found by number */
    if (kvc_cache_is_container(c) && c->meta.facts.profile) return 0;
    if (m->pattern.n) return kvc_layers_settle(c, &m->pattern, e) < 0 ? -1 : 0;
    kvc_pattern_repeat(&plain, m->layers <= KVC_MAX_PATTERN ? (uint32_t)m->layers : 0, 1, 0);
    return kvc_layers_settle(c, &plain, e) < 0 ? -1 : 0;
}

int kvc_model_apply(const struct kvc_model *m, struct kvc_cache *c, char *note, size_t size,
                    struct kvc_error *e) {
    if (size) *note = '\0';
    if (check_rows(m, c, e)) return -1;
    if (kvc_cache_is_container(c) && kvc_model_match(&c->meta, m, note, size, e)) return -1;
    if (settle_layers(m, c, e)) return -1;
    return kvc_model_store(m, &c->meta, c->meta.facts.of_llama, e);
}

/* --- opening --- */

/* Checks that KVC_KERNEL, if it is set, names kernels that this CPU can run. */
static int check_kernels(struct kvc_error *e) {
    if (kvc_kernels_get()) return 0;
    const char *name = getenv("KVC_KERNEL");
    return kvc_fail(e, KVC_ERR_USAGE, "KVC_KERNEL=%s names no kernel table that this CPU can run",
                    name ? name : "");
}

/* Reads the cache out of f->bundle. */
static int open_import(struct kvc_opened *f, const struct kvc_opening *o, struct kvc_error *e) {
    struct kvc_import_options options = o->import;
    if (o->model && !options.kv_heads && o->model->kv_heads <= UINT16_MAX)
        options.kv_heads = (uint32_t)o->model->kv_heads;
    options.latent |= o->model && o->model->latent;
    f->has_model = o->model != NULL;
    if (!(f->cache = kvc_import(&f->bundle, &options, &f->format, e))) return -1;
    if (o->model && kvc_model_apply(o->model, f->cache, f->note, sizeof f->note, e))
        return kvc_error_prefix(e, f->input.name);
    return kvc_meta_give(&f->cache->meta, options.facts, e);
}

static int is_folder(const char *path) {
    struct stat st;
    return strcmp(path, "-") != 0 && stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Gives the input of a bundle that is no file its name. */
static void name_input(struct kvc_opened *f) {
    kvc_input_memory(&f->input, f->bundle.name, "", 0);
}

uint64_t kvc_opened_size(const struct kvc_opened *f) {
    return f->input.size ? f->input.size : kvc_bundle_size(&f->bundle);
}

int kvc_open_bundle(struct kvc_opened *f, const char *path, const struct kvc_opening *o,
                    struct kvc_error *e) {
    const struct kvc_input_how how = {.read = !o->maps_files,
                                      .sniff = o->any_bytes ? NULL : kvc_format_sniff,
                                      .state = &o->import};
    memset(f, 0, sizeof *f);
    if (check_kernels(e)) return -1;
    if (is_folder(path)) {
        if (kvc_bundle_folder(&f->bundle, path, o->import.format != NULL, &how, e)) return -1;
        name_input(f);
        return 0;
    }
    if (kvc_input_open_how(&f->input, path, &how, e)) return -1;
    if (!kvc_bundle_of(&f->bundle, &f->input, &o->import, e)) return 0;
    kvc_close(f);
    return -1;
}

int kvc_open_path(struct kvc_opened *f, const char *path, const struct kvc_opening *o,
                  struct kvc_error *e) {
    if (kvc_open_bundle(f, path, o, e)) return -1;
    if (!open_import(f, o, e)) return 0;
    kvc_close(f);
    return -1;
}

int kvc_open_bytes(struct kvc_opened *f, const void *data, size_t size, const struct kvc_opening *o,
                   struct kvc_error *e) {
    memset(f, 0, sizeof *f);
    if (check_kernels(e)) return -1;
    kvc_input_memory(&f->input, "(memory)", data, size);
    int status = kvc_bundle_of(&f->bundle, &f->input, &o->import, e);
    if (!status) status = open_import(f, o, e);
    if (status) kvc_close(f);
    return status;
}

int kvc_open_members(struct kvc_opened *f, const char *const *path, size_t n,
                     const struct kvc_opening *o, struct kvc_error *e) {
    const struct kvc_input_how how = {.read = !o->maps_files};
    memset(f, 0, sizeof *f);
    if (check_kernels(e) || kvc_bundle_files(&f->bundle, path, n, &how, e)) return -1;
    name_input(f);
    const int status = open_import(f, o, e);
    if (status) kvc_close(f);
    return status;
}

void kvc_close(struct kvc_opened *f) {
    kvc_cache_free(f->cache);
    kvc_bundle_close(&f->bundle);
    kvc_input_close(&f->input);
    memset(f, 0, sizeof *f);
}
