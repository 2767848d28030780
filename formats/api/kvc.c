/* kvc.c: the public interface (kvc.h) over the library's inside. */
#include "formats/api/kvc.h"
#include "formats/file/restore.h"

#include "formats/container/container.h"
#include "formats/api/kvc_file.h"
#include "formats/file/open.h"
#include "formats/file/rate.h"
#include "formats/cache/format.h"
#include "formats/model/model.h"
#include "formats/cache/view.h"
#include <stdlib.h>
#include <string.h>

const char *kvc_version(void) {
    return KVC_VERSION;
}

unsigned kvc_version_of_format(void) {
    return KVC_FORMAT_VERSION;
}

struct kvc_error *kvc_error_new(void) {
    struct kvc_error *e = calloc(1, sizeof *e);
    if (e) e->offset = e->record = e->section = KVC_NOWHERE;
    return e;
}

void kvc_error_free(struct kvc_error *e) {
    free(e);
}

int kvc_error_code(const struct kvc_error *e) {
    return (int)e->code;
}

int kvc_error_severity(const struct kvc_error *e) {
    return (int)e->severity;
}

uint64_t kvc_error_offset(const struct kvc_error *e) {
    return e->offset;
}

const char *kvc_error_message(const struct kvc_error *e) {
    return e->message;
}

/* Opens a path, or bytes where `path` is NULL. */
static struct kvc_file *open_file(const char *path, const void *data, size_t size, const struct kvc_open_options *o,
                                  struct kvc_error *e) {
    static const struct kvc_open_options nothing;
    struct kvc_file *f = calloc(1, sizeof *f);
    struct kvc_model *model = NULL;
    if (!o) o = &nothing;
    struct kvc_opening opening = {.import = {.format = o->format, .kv_heads = o->kv_heads, .profile = o->profile, .profile_folders = o->profile_folders}};
    int status = f ? 0 : kvc_fail_memory(e, "a file");
    if (!status && o->pairing && !kvc_pairing_parse(o->pairing, &opening.import.pairing))
        status = kvc_fail(e, KVC_ERR_USAGE, "there is no RoPE pairing '%s'", o->pairing);
    if (!status && o->model) {
        opening.model = model = malloc(sizeof *model);
        status = !model ? kvc_fail_memory(e, "a model")
                 : kvc_model_read(o->model, 0, model, e) ? kvc_error_prefix(e, o->model)
                                                         : 0;
    }
    if (!status && o->weights && !(f->weights = kvc_weights_open(o->weights, e))) status = kvc_error_prefix(e, o->weights);
    if (!status) {
        opening.import.weights = f->weights;
        status = path ? kvc_open_path(&f->opened, path, &opening, e) : kvc_open_bytes(&f->opened, data, size, &opening, e);
        f->cache = f->opened.cache;
    }
    if (!status && kvc_cache_is_container(f->cache) && !(f->blocks = kvc_block_cache_new(f->cache, e))) status = -1;
    free(model);
    if (!status) return f;
    kvc_file_close(f);
    return NULL;
}

struct kvc_file *kvc_file_open(const char *path, const struct kvc_open_options *options, struct kvc_error *e) {
    return open_file(path, NULL, 0, options, e);
}

struct kvc_file *kvc_file_open_memory(const void *data, size_t size, const struct kvc_open_options *options,
                                      struct kvc_error *e) {
    return open_file(NULL, data, size, options, e);
}

void kvc_file_close(struct kvc_file *f) {
    if (!f) return;
    kvc_block_cache_free(f->blocks);
    kvc_close(&f->opened);
    kvc_weights_close(f->weights);
    free(f);
}

const char *kvc_file_format(const struct kvc_file *f) {
    return f->opened.format->name;
}

const char *kvc_file_meta(const struct kvc_file *f, const char *key, char *text, size_t size) {
    const struct kvc_meta_entry *entry = kvc_meta_find(&f->cache->meta, key);
    if (entry && kvc_meta_print(entry, text, size) < size) return text;
    if (size) *text = '\0';
    return NULL;
}

size_t kvc_file_meta_size(const struct kvc_file *f, const char *key) {
    const struct kvc_meta_entry *entry = kvc_meta_find(&f->cache->meta, key);
    return entry ? kvc_meta_print(entry, NULL, 0) + 1 : 0;
}

const int32_t *kvc_file_tokens(const struct kvc_file *f, uint64_t *n) {
    *n = f->cache->n_tokens;
    return f->cache->tokens;
}

uint32_t kvc_file_tensors(const struct kvc_file *f) {
    return f->cache->n_tensors;
}

int kvc_file_tensor(const struct kvc_file *f, uint32_t i, struct kvc_tensor_info *info) {
    if (i >= f->cache->n_tensors) return -1;
    const struct kvc_tensor *t = &f->cache->tensor[i];
    const struct kvc_part *part = kvc_tensor_part(f->cache, i);
    *info = (struct kvc_tensor_info){
        .part = kvc_part_kind_name(part->kind),
        .role = kvc_role_name(t->role),
        .dtype = kvc_dtype_info(t->shape.dtype)->name,
        .layer = f->cache->layer[t->layer].index,
        .stream = part->stream,
        .checkpoint = part->checkpoint,
        .rows = t->shape.tokens,
        .heads = t->shape.heads,
        .dim = t->shape.dim,
        .row_bytes = kvc_row_bytes(&t->shape),
    };
    return 0;
}

int64_t kvc_file_position(const struct kvc_file *f, uint32_t tensor, uint64_t row) {
    const struct kvc_cells *cells = &kvc_tensor_part(f->cache, tensor)->cells;
    return kvc_cells_position(cells, row);
}

int kvc_file_read(const struct kvc_file *f, uint32_t tensor, uint64_t first, uint64_t n, void *dst,
                  struct kvc_error *e) {
    const struct kvc_cache *c = f->cache;
    if (tensor >= c->n_tensors || first > c->tensor[tensor].shape.tokens || n > c->tensor[tensor].shape.tokens - first)
        return kvc_fail(e, KVC_ERR_USAGE, "%s: there are no such rows", f->opened.input.name);
    const int status = f->blocks ? kvc_block_cache_read(f->blocks, tensor, first, n, dst, e) : c->read(c, tensor, first, n, dst, e);
    return status ? kvc_error_prefix(e, f->opened.input.name) : 0;
}

int kvc_file_check(const struct kvc_file *f, unsigned threads, struct kvc_error *e) {
    if (!kvc_cache_is_container(f->cache)) return 0;
    return kvc_container_check(f->cache, threads, e) ? kvc_error_prefix(e, f->opened.input.name) : 0;
}

struct callback {
    kvc_write_fn *write;
    void *state;
};

static int call_back(void *state, const void *data, size_t n, struct kvc_error *e) {
    const struct callback *c = state;
    return c->write(c->state, data, n) ? kvc_fail(e, KVC_ERR_IO, "the output was refused") : 0;
}

int kvc_file_pack(const struct kvc_file *f, const struct kvc_write_options *options, kvc_write_fn *write, void *state,
                  struct kvc_error *e) {
    struct callback callback = {write, state};
    struct kvc_sink sink = {.write = call_back, .state = &callback};
    struct kvc_pack_options pack = {.weights = f->weights};
    struct kvc_rate rate = {.source_bytes = f->opened.input.size};
    struct kvc_cache *halves = NULL, *queries = NULL, *c = f->cache;
    struct kvc_fit fit = {.n = 0};
    int status = 0;
    if (options) {
        pack.recipe = options->recipe;
        pack.threads = options->threads;
        pack.align = options->align;
        pack.no_verify = options->no_verify;
        pack.embed_profile = options->embed_profile;
        rate.kld = options->target_kld;
        rate.ratio = options->target_ratio;
        rate.output_error = options->max_output_error;
        rate.logit_error = options->max_logit_error;
        if (options->profile && !(pack.profile = kvc_profile_open(options->profile, e)))
            status = -1;
        if (!status && pack.profile) status = kvc_profile_adopt(pack.profile, f->cache, e);
        if (!status && options->dequantize && !(c = halves = kvc_view_dequantize(f->cache, e))) status = -1;
        if (!status && pack.profile) {
            const struct kvc_profile_use use = {pack.recipe, pack.threads, options->force_profile};
            const int prepared = kvc_profile_prepare(pack.profile, c, &use, &fit, e);
            pack.fit = prepared > 0 ? &fit : NULL;
            status = prepared < 0 ? -1 : 0;
        }
        if (!status && options->queries) {
            queries = kvc_view_queries(options->queries->cache, kvc_cache_pairing(c), e);
            status = queries ? 0 : kvc_error_prefix(e, options->queries->opened.input.name);
            pack.queries = queries;
        }
    }
    struct kvc_rate_report rated;
    char recipe[2048];
    if (!status) status = kvc_rate_settle(c, &pack, &rate, recipe, sizeof recipe, &rated, e);
    if (!status && rated.step > 0) pack.recipe = recipe;
    if (!status) status = kvc_container_write(c, &pack, &sink, NULL, e) ? kvc_error_prefix(e, f->opened.input.name) : 0;
    kvc_fit_free(&fit);
    kvc_profile_free(pack.profile);
    kvc_cache_free(queries);
    kvc_cache_free(halves);
    return status;
}

int kvc_file_unpack(const struct kvc_file *f, const char *format, const struct kvc_write_options *options,
                    kvc_write_fn *write, void *state, struct kvc_error *e) {
    struct callback callback = {write, state};
    struct kvc_sink sink = {.write = call_back, .state = &callback};
    struct kvc_export_options export = {0};
    int status;
    if (format) {
        const struct kvc_format *to = kvc_format_find(format);
        if (!to || !to->export) return kvc_fail(e, KVC_ERR_USAGE, "no format '%s' can be written", format);
        status = kvc_export(to, f->cache, &export, &sink, e);
        if (!status && kvc_cache_is_container(f->cache)) status = kvc_container_check_rest(f->cache, e);
    } else {
        status = kvc_source_write(f->cache, options ? options->threads : 0, &sink, e);
    }
    return status ? kvc_error_prefix(e, f->opened.input.name) : 0;
}
