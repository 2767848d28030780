/* kvc_open.c: implements the part of kvc.h on errors, opening, facts and reading. Not for writing
 * (kvc_pack.c, kvc_unpack.c) or comparing (kvc_compare.c). */
#include "formats/api/kvc.h"

#include "formats/api/kvc_file.h"
#include "formats/api/prefix_extras_given.h"
#include "formats/api/sized.h"
#include "formats/cache/keys.h"
#include "formats/cache/prefix.h"
#include "formats/cache/view.h"
#include "formats/container/container.h"
#include "formats/file/given.h"
#include "formats/file/restore.h"
#include "formats/file/token_ids.h"
#include "codecs/number.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
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

/* NULL is what kvc_error_new() returned for lack of memory. */
enum kvc_code kvc_error_code(const struct kvc_error *e) {
    return e ? e->code : KVC_ERR_MEMORY;
}

enum kvc_severity kvc_error_severity(const struct kvc_error *e) {
    return e ? e->severity : KVC_SEVERITY_RETRY;
}

uint64_t kvc_error_offset(const struct kvc_error *e) {
    return e ? e->offset : KVC_NOWHERE;
}

const char *kvc_error_message(const struct kvc_error *e) {
    return e ? e->message : "out of memory";
}

enum kvc_need kvc_error_need(const struct kvc_error *e) {
    return e ? e->need : KVC_NEED_NOTHING;
}

int kvc_error_set(struct kvc_error *e, enum kvc_code code, enum kvc_need need, const char *format,
                  ...) {
    char text[sizeof e->message];
    const struct kvc_point point = kvc_point_begin();
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    kvc_point_end(&point);
    return kvc_fail_need(e, code, need, "%s", text);
}

int kvc_error_about(struct kvc_error *e, const char *name) {
    const size_t n = strlen(name);
    if (!e || (strncmp(e->message, name, n) == 0 && strncmp(e->message + n, ": ", 2) == 0))
        return -1;
    return kvc_error_prefix(e, name);
}

void kvc_error_copy(struct kvc_error *to, const struct kvc_error *from) {
    if (to && from) *to = *from;
}

/* --- opening --- */

/* The source to open: one path, several paths, or bytes. */
struct source {
    const char *const *path;
    size_t paths; /* 0: bytes */
    const void *data;
    size_t size;
    int members; /* the paths are members of one cache */
};

static int open_source(struct kvc_file *f, const struct source *s, const struct kvc_opening *o,
                       struct kvc_error *e) {
    if (!s->paths) return kvc_open_bytes(&f->opened, s->data, s->size, o, e);
    return s->members ? kvc_open_members(&f->opened, s->path, s->paths, o, e)
                      : kvc_open_path(&f->opened, s->path[0], o, e);
}

/* Looks for all damage. A file of whole bytes that cannot be decoded, as for lack of its profile,
 * is refused. */
static int survey(struct kvc_file *f, unsigned threads, struct kvc_error *e) {
    if (!(f->survey = kvc_salvage_survey(f->opened.cache, threads, e))) return -1;
    if (f->survey->trouble.code == KVC_OK) return 0;
    if (e) *e = f->survey->trouble;
    return -1;
}

int kvc_file_opening_begin(struct kvc_file_opening *by, const struct kvc_open_options *callers,
                           struct kvc_error *e) {
    struct kvc_open_options *o = &by->options;
    memset(by, 0, sizeof *by);
    if (kvc_sized_take(o, sizeof *o, callers, "kvc_open_options", e)) return -1;
    by->how = (struct kvc_opening){.import = {.format = o->format,
                                              .set = o->set,
                                              .kv_heads = o->kv_heads,
                                              .weights = o->shared_weights,
                                              .profile = o->profile,
                                              .profile_folders = o->profile_folders,
                                              .open_profile = o->shared_profile,
                                              .no_verify = o->no_verify,
                                              .max_memory = o->max_memory,
                                              .facts = o->facts,
                                              .salvage = o->damaged},
                                   .model = o->shared_model,
                                   .maps_files = o->map};
    struct kvc_import_options *import = &by->how.import;
    if (kvc_file_pairing(o->pairing, &import->pairing, e)) return -1;
    if (o->model && !by->how.model) {
        if (!(by->model = kvc_shared_model_open(o->model, 1, e))) return -1;
        by->how.model = by->model;
    }
    if (o->weights && !import->weights) {
        if (!(by->weights = kvc_given_weights(o->weights, e))) return -1;
        import->weights = by->weights;
    }
    if (o->profile && kvc_given_profile_check(o->profile, e)) return -1;
    /* damaged first bytes may not tell the format */
    if (o->damaged && !o->format) import->format = "kvc";
    return 0;
}

void kvc_file_opening_end(struct kvc_file_opening *by) {
    kvc_shared_model_close(by->model);
    kvc_weights_close(by->weights);
}

/* Fills a zeroed handle. After a failure kvc_file_close() frees its parts. */
static int fill(struct kvc_file *f, const struct source *s, struct kvc_file_opening *by,
                struct kvc_error *e) {
    const struct kvc_open_options *o = &by->options;
    if (open_source(f, s, &by->how, e)) return -1;
    f->weights = by->weights;
    by->weights = NULL;
    f->rebuild = by->how.import.weights;
    if (by->how.model && *by->how.model->path && !(f->model = strdup(by->how.model->path)))
        return kvc_fail_memory(e, "a name");
    f->cache = f->opened.cache;
    f->is_told = (o->set && *o->set) || (o->facts && *o->facts) || o->n_token_ids;
    f->name = f->opened.input.name;
    if (*f->opened.note && o->note) o->note(o->note_state, KVC_NOTE_MODEL, f->name, f->opened.note);
    if (o->n_token_ids && kvc_cache_give_tokens(f->opened.cache, o->token_ids, o->n_token_ids, e))
        return kvc_error_prefix(e, f->name);
    if (!kvc_cache_is_container(f->cache)) return 0;
    f->rest = f->cache;
    return o->damaged && survey(f, o->threads, e) ? kvc_error_prefix(e, f->name) : 0;
}

static struct kvc_file *open_file(const struct source *s, const struct kvc_open_options *callers,
                                  struct kvc_error *e) {
    struct kvc_file_opening by;
    struct kvc_file *f = calloc(1, sizeof *f);
    int status = f ? kvc_file_opening_begin(&by, callers, e) : kvc_fail_memory(e, "a file");
    if (f && !status) status = fill(f, s, &by, e);
    if (f) kvc_file_opening_end(&by);
    if (!status) return f;
    kvc_file_close(f);
    return NULL;
}

struct kvc_file *kvc_file_open(const char *path, const struct kvc_open_options *options,
                               struct kvc_error *e) {
    if (KVC_NULL(e, path)) return NULL;
    return open_file(&(struct source){.path = &path, .paths = 1}, options, e);
}

struct kvc_file *kvc_file_open_members(const char *const *paths, size_t n,
                                       const struct kvc_open_options *options,
                                       struct kvc_error *e) {
    if (n && KVC_NULL(e, paths)) return NULL;
    if (n) return open_file(&(struct source){.path = paths, .paths = n, .members = 1}, options, e);
    kvc_fail(e, KVC_ERR_USAGE, "no members are given");
    return NULL;
}

struct kvc_file *kvc_file_open_memory(const void *data, size_t size,
                                      const struct kvc_open_options *options, struct kvc_error *e) {
    if (size && KVC_NULL(e, data)) return NULL;
    return open_file(&(struct source){.data = data, .size = size}, options, e);
}

/* Returns the position after the last of a cache. */
static uint64_t end_of(const struct kvc_cache *c) {
    int64_t end = 0;
    for (uint32_t p = 0; p < c->n_parts; p++) {
        const struct kvc_cells *cells = &c->part[p].cells;
        if (cells->n && kvc_cells_position(cells, cells->n - 1) >= end)
            end = kvc_cells_position(cells, cells->n - 1) + 1;
    }
    return (uint64_t)end;
}

/* Leaves out what is damaged. */
static int narrow(const struct kvc_file *f, struct kvc_selection *s, struct kvc_error *e) {
    if (!f->survey)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%s: the file was not opened as damaged, or is a selection already",
                        f->name);
    return kvc_survey_narrow(f->survey, f->cache, s, e) ? kvc_error_prefix(e, f->name) : 0;
}

struct kvc_file *kvc_file_view(const struct kvc_file *f, struct kvc_error *e) {
    struct kvc_file *view = calloc(1, sizeof *view);
    if (!view) {
        kvc_fail_memory(e, "a file");
        return NULL;
    }
    view->of = kvc_file_whole(f);
    view->name = f->name;
    view->is_part = 1;
    return view;
}

/* Writes what a selection's metadata are to say. */
static int give_metadata(struct kvc_file *view, const struct kvc_select_options *o,
                         struct kvc_error *e) {
    struct kvc_meta *meta = &view->opened.cache->meta;
    if (o->n_extras && kvc_extras_given(meta, o->extras, o->n_extras, e)) return -1;
    if (!o->store_name) return 0;
    return kvc_meta_set_bytes(meta, KVC_KEY_STORE_NAME, o->store_name, o->store_name_bytes, e);
}

struct kvc_file *kvc_file_select(const struct kvc_file *f, const struct kvc_select_options *part,
                                 struct kvc_error *e) {
    if (KVC_NULL(e, f)) return NULL;
    struct kvc_select_options o;
    if (kvc_sized_take(&o, sizeof o, part, "kvc_select_options", e)) return NULL;
    if (o.first && !o.end) o.end = end_of(f->cache);
    if (o.first >= o.end && o.end) {
        kvc_fail(e, KVC_ERR_USAGE, "%s: has no positions from %" PRIu64 " to below %" PRIu64,
                 f->name, o.first, o.end);
        return NULL;
    }
    struct kvc_selection selection = {.first = o.first,
                                      .end = o.end,
                                      .layers = o.layers,
                                      .n_layers = o.n_layers,
                                      .no_companions = o.no_companions};
    if (o.whole && narrow(f, &selection, e)) return NULL;
    struct kvc_file *view = kvc_file_view(f, e);
    if (!view) return NULL;
    if ((view->cache = view->opened.cache = kvc_view_select(f->cache, &selection, e)) &&
        !give_metadata(view, &o, e))
        return view;
    kvc_error_prefix(e, f->name);
    kvc_file_close(view);
    return NULL;
}

void kvc_file_own(struct kvc_file *f, void *owned, void (*release)(void *owned)) {
    f->owned = owned;
    f->free_owned = release;
}

void kvc_file_give_profile(struct kvc_file *f, struct kvc_profile *p) {
    kvc_container_set_profile(f->opened.cache, &(struct kvc_profile_places){.open = p});
}

void kvc_file_close(struct kvc_file *f) {
    if (!f) return;
    if (f->cache) kvc_close(&f->opened);
    kvc_weights_close(f->weights);
    free(f->joined);
    free(f->joined_name);
    free(f->model);
    if (f->free_owned) f->free_owned(f->owned);
    free(f);
}

/* --- looking --- */

const char *kvc_file_format(const struct kvc_file *f) {
    return kvc_file_whole(f)->opened.format->name;
}

int kvc_file_source(const struct kvc_file *f, struct kvc_source_info *info) {
    const struct kvc_opened *opened = &kvc_file_whole(f)->opened;
    const struct kvc_source_info own = {.name = f->name,
                                        .bytes = kvc_file_whole(f)->bytes ? kvc_file_whole(f)->bytes
                                                                          : kvc_opened_size(opened),
                                        .filter = opened->input.filter,
                                        .is_file = opened->bundle.is_file,
                                        .members = f->cache->n_members,
                                        .packed = kvc_cache_is_container(f->cache),
                                        .has_bytes = f->cache->n_extents != 0};
    return kvc_sized_give(info, &own, sizeof own, "kvc_source_info", NULL);
}

const char *kvc_file_meta_key(const struct kvc_file *f, size_t i) {
    return i < f->cache->meta.n ? f->cache->meta.entry[i].key : NULL;
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
    if (n) *n = f->cache->n_tokens;
    return f->cache->tokens;
}

int kvc_file_match(const struct kvc_file *f, const int32_t *tokens, uint64_t n, uint64_t *common,
                   struct kvc_error *e) {
    if (KVC_NULL(e, f, common)) return -1;
    if (n && KVC_NULL(e, tokens)) return -1;
    struct kvc_prefix_matched m;
    if (kvc_prefix_match(f->cache, tokens, n, &m, e)) return kvc_error_prefix(e, f->name);
    *common = m.common;
    return 0;
}

const char *kvc_file_member(const struct kvc_file *f, uint32_t i, uint64_t *bytes) {
    if (i >= f->cache->n_members) return NULL;
    if (bytes) *bytes = kvc_source_size(f->cache, i);
    return f->cache->member[i];
}

uint32_t kvc_file_tensors(const struct kvc_file *f) {
    return f->cache->n_tensors;
}

int kvc_file_tensor(const struct kvc_file *f, uint32_t i, struct kvc_tensor_info *info) {
    if (i >= f->cache->n_tensors) return -1;
    const struct kvc_tensor *t = &f->cache->tensor[i];
    const struct kvc_part *part = kvc_tensor_part(f->cache, i);
    const struct kvc_tensor_info own = {
        .part = kvc_part_kind_name(part->kind),
        .role = kvc_role_name(t->role),
        .dtype = kvc_dtype_info(t->shape.dtype)->name,
        .layer = f->cache->layer[t->layer].index,
        .stream = part->stream,
        .snapshot = part->snapshot,
        .rows = t->shape.tokens,
        .heads = t->shape.heads,
        .dim = t->shape.dim,
        .row_bytes = kvc_row_bytes(&t->shape),
    };
    return kvc_sized_give(info, &own, sizeof own, "kvc_tensor_info", NULL);
}

int64_t kvc_file_position(const struct kvc_file *f, uint32_t tensor, uint64_t row) {
    const struct kvc_cells *cells = kvc_tensor_cells(f->cache, tensor);
    return kvc_cells_position(cells, row);
}

int kvc_file_read(const struct kvc_file *f, uint32_t tensor, uint64_t first, uint64_t n, void *dst,
                  size_t size, struct kvc_error *e) {
    if (KVC_NULL(e, f)) return -1;
    if (n && KVC_NULL(e, dst)) return -1;
    const struct kvc_cache *c = f->cache;
    if (tensor >= c->n_tensors || first > c->tensor[tensor].shape.tokens ||
        n > c->tensor[tensor].shape.tokens - first)
        return kvc_fail(e, KVC_ERR_USAGE, "%s: there are no such rows", f->name);
    if (KVC_SHORT(e, dst, size, n, kvc_row_bytes(&c->tensor[tensor].shape))) return -1;
    return c->read(c, tensor, first, n, dst, e) ? kvc_error_prefix(e, f->name) : 0;
}

/* --- models --- */

struct kvc_model *kvc_shared_model_open(const char *path, int full, struct kvc_error *e) {
    if (KVC_NULL(e, path)) return NULL;
    struct kvc_model *m = malloc(sizeof *m);
    if (m && !kvc_given_model(path, full, m, e)) return m;
    if (!m) kvc_fail_memory(e, "a model");
    free(m);
    return NULL;
}

void kvc_shared_model_close(struct kvc_model *m) {
    free(m);
}

struct kvc_weights *kvc_shared_weights_open(const char *path, struct kvc_error *e) {
    if (KVC_NULL(e, path)) return NULL;
    return kvc_given_weights(path, e);
}

void kvc_shared_weights_close(struct kvc_weights *w) {
    kvc_weights_close(w);
}

int kvc_token_ids_read(const char *path, const struct kvc_open_options *options, int32_t **ids,
                       uint64_t *n, struct kvc_error *e) {
    if (KVC_NULL(e, path, ids, n)) return -1;
    struct kvc_token_ids found = {.id = NULL};
    struct kvc_file_opening by;
    int status = kvc_file_opening_begin(&by, options, e);
    if (!status) status = kvc_token_ids_find(&found, path, &by.how.import, e);
    kvc_file_opening_end(&by);
    if (status) free(found.id);
    *ids = status ? NULL : found.id;
    *n = status ? 0 : found.n;
    return status;
}

int kvc_model_identity(const char *weights, char *text, size_t size, struct kvc_error *e) {
    if (KVC_NULL(e, weights, text)) return -1;
    struct kvc_meta meta = {0};
    char identity[KVC_IDENTITY_BYTES];
    struct kvc_model *model = kvc_shared_model_open(weights, 1, e);
    if (!model) return -1;
    int status = kvc_model_store(model, &meta, 0, e);
    if (!status) status = kvc_prefix_identity(&meta, identity, sizeof identity, e);
    if (!status && strlen(identity) >= size)
        status = kvc_fail(e, KVC_ERR_USAGE, "the identity has no room in %zu bytes", size);
    if (!status) memcpy(text, identity, strlen(identity) + 1);
    kvc_meta_free(&meta);
    free(model);
    return status ? kvc_error_prefix(e, weights) : 0;
}
