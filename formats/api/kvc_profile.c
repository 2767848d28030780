/* kvc_profile.c: implements the parts of kvc.h and kvc_inspect.h on profiles, their learning, and
 * what a weights file tells. */
#include "formats/api/callback.h"
#include "formats/api/kvc.h"
#include "formats/api/kvc_file.h"
#include "formats/api/kvc_inspect.h"
#include "formats/api/sized.h"
#include "formats/cache/view.h"
#include "formats/file/given.h"
#include "formats/model/predictor.h"
#include "formats/model/profile_choose.h"
#include "formats/model/profile_fit.h"
#include "formats/model/profile_folders.h"
#include "formats/model/profile_learn.h"
#include "formats/model/token_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BACK = 7, WIDEST_PREDICTED = 512 }; /* layers before a layer; values of a row of K */
enum { LEAST = 8000, MOST = 32000, OF_ONE = 4000 }; /* tokens to learn from */

struct kvc_profile *kvc_shared_profile_open(const char *path, struct kvc_error *e) {
    if (KVC_NULL(e, path)) return NULL;
    return kvc_given_profile(path, e);
}

struct kvc_profile *kvc_shared_profile_open_memory(const void *data, size_t size,
                                                   struct kvc_error *e) {
    if (KVC_NULL(e, data)) return NULL;
    return kvc_profile_open_memory(data, size, e);
}

void kvc_shared_profile_close(struct kvc_profile *p) {
    kvc_profile_free(p);
}

int kvc_shared_profile_describe(const struct kvc_profile *p, struct kvc_profile_info *info) {
    static const char *const metrics[] = {[KVC_METRIC_FISHER] = "fisher",
                                          [KVC_METRIC_QUERY] = "query",
                                          [KVC_METRIC_COVARIANCE] = "covariance"};
    struct kvc_profile_info own = {.model = kvc_profile_model(p),
                                   .metric = metrics[kvc_profile_metric(p)],
                                   .predicts = kvc_profile_predicts(p),
                                   .path = kvc_profile_path(p)};
    memcpy(own.sha256, kvc_profile_sha256(p), sizeof own.sha256);
    own.data = kvc_profile_bytes(p, &own.bytes);
    return kvc_sized_give(info, &own, sizeof own, "kvc_profile_info", NULL);
}

/* --- where profiles stay to be had --- */

struct kvc_profile *kvc_shared_profile_choose(const struct kvc_file *f,
                                              const struct kvc_write_options *options,
                                              struct kvc_error *e) {
    struct kvc_write_options o;
    struct kvc_recipe recipe;
    if (e) *e = (struct kvc_error){.code = KVC_OK};
    if (KVC_NULL(e, f) || kvc_sized_take(&o, sizeof o, options, "kvc_write_options", e))
        return NULL;
    if (!o.recipe || kvc_recipe_parse(o.recipe, &recipe, e)) return NULL;
    if (!kvc_recipe_profile_need(&recipe, 1)) return NULL;
    return kvc_profile_choose(f->cache, &recipe, o.dequantize, o.threads);
}

const char *kvc_shared_profile_fit(struct kvc_profile *p, const struct kvc_file *f,
                                   const struct kvc_write_options *options, struct kvc_error *e) {
    struct kvc_write_options o;
    struct kvc_fit fit = {.n = 0};
    if (KVC_NULL(e, p, f) || kvc_sized_take(&o, sizeof o, options, "kvc_write_options", e))
        return NULL;
    const enum kvc_fit_verdict verdict = kvc_profile_verdict(p, f->cache, o.dequantize, o.threads,
                                                             &fit);
    kvc_fit_free(&fit);
    return kvc_fit_name(verdict);
}

struct kvc_profile *kvc_shared_profile_find(const uint8_t sha256[32], const char *model,
                                            struct kvc_error *e) {
    if (KVC_NULL(e, sha256)) return NULL;
    return kvc_profile_find(sha256, model ? model : "", &(struct kvc_profile_places){.given = NULL},
                            e);
}

int kvc_shared_profile_kept(const struct kvc_profile *p, const char *path, char *command,
                            size_t size) {
    char folder[KVC_PROFILE_PATH];
    const struct kvc_profile_places places = {.folder = kvc_profile_folder_of(path, folder)};
    struct kvc_profile *found = kvc_profile_find(kvc_profile_sha256(p), "", &places, NULL);
    kvc_profile_free(found);
    if (size) *command = '\0';
    if (!found && size && *kvc_profile_path(p))
        kvc_profile_keep_command(kvc_profile_sha256(p), kvc_profile_path(p), command, size);
    return found != NULL;
}

int kvc_shared_profile_folder(char *path, size_t size) {
    char folder[KVC_PROFILE_PATH];
    const int found = kvc_profile_own_folder(folder) && strlen(folder) < size;
    if (size) snprintf(path, size, "%s", found ? folder : "");
    return found;
}

/* The caller's function, and its state. */
struct visitor {
    kvc_profile_visit_fn *visit;
    void *state;
};

static int visit_folder(void *state, const char *folder, const char *shown) {
    const struct visitor *v = state;
    (void)shown;
    return kvc_profile_files(folder, v->visit, v->state);
}

int kvc_shared_profile_visit(kvc_profile_visit_fn *visit, void *state) {
    const struct kvc_profile_places places = {.folders = NULL};
    struct visitor v = {.visit = visit, .state = state};
    return kvc_profile_folders(&places, visit_folder, &v);
}

/* --- what is in a profile --- */

const char *kvc_shared_profile_text(const struct kvc_profile *p, const char *key) {
    return kvc_profile_text(p, key);
}

uint32_t kvc_shared_profile_layers(const struct kvc_profile *p, uint64_t *bytes) {
    size_t size;
    kvc_profile_bytes(p, &size);
    *bytes = size;
    return kvc_profile_layers(p);
}

/* --- weights files --- */

struct kvc_model *kvc_shared_model_look(const char *path, struct kvc_error *e) {
    if (KVC_NULL(e, path)) return NULL;
    struct kvc_model *m = malloc(sizeof *m);
    if (m && !kvc_model_read(path, 0, m, e)) return m;
    if (!m) kvc_fail_memory(e, "a model");
    free(m);
    return NULL;
}

int kvc_shared_model_describe(const struct kvc_model *m, struct kvc_model_info *info) {
    const struct kvc_model_info own = {
        .format = kvc_model_kind_name(m->kind),
        .name = m->name,
        .architecture = m->arch,
        .layers = m->layers,
        .heads = m->heads,
        .kv_heads = m->kv_heads,
        .head_dim = m->head_dim,
        .head_dim_v = m->head_dim_v,
        .window = m->window,
        .pairing = m->pairing == KVC_PAIRING_UNKNOWN ? NULL : kvc_pairing_name(m->pairing),
        .rope_type = m->rope_type,
        .rope_theta = m->rope_theta,
        .rope_factor = m->rope_factor,
        .rope_dim = m->rope_dim,
        .rope_original = m->rope_original,
        .tokenizer = m->has_tokenizer ? m->tokenizer : NULL,
        .fingerprint = m->sampled,
    };
    return kvc_sized_give(info, &own, sizeof own, "kvc_model_info", NULL);
}

int kvc_shared_texts_open(const char *model, struct kvc_token_texts **texts, struct kvc_error *e) {
    if (KVC_NULL(e, model, texts)) return -1;
    if (!kvc_token_texts_read(model, texts, e)) return 0;
    kvc_given_no_weights(model, e);
    return -1;
}

void kvc_shared_texts_close(struct kvc_token_texts *t) {
    kvc_token_texts_free(t);
}

int kvc_shared_text(const struct kvc_token_texts *t, int64_t id, char *text, size_t size) {
    return t ? kvc_token_text(t, id, text, size) : 0;
}

/* --- learning --- */

struct kvc_learning {
    struct kvc_learner *learner;
    struct kvc_learning_options options;
    unsigned estimated; /* caches whose queries were */
    int spoilt;         /* by a cache of which a part was added */
    /* why those of a cache were not, and why its gradients were not measured */
    struct kvc_error why, why_not_measured;
};

struct kvc_learning *kvc_learning_start(const struct kvc_learning_options *options,
                                        struct kvc_error *e) {
    struct kvc_learning_options o;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_learning_options", e)) return NULL;
    if (o.back > MOST_BACK) {
        kvc_fail(e, KVC_ERR_USAGE, "a layer is predicted from at most %d before it", MOST_BACK);
        return NULL;
    }
    struct kvc_learning *l = calloc(1, sizeof *l);
    if (!l) kvc_fail_memory(e, "a profile");
    if (!l || !(l->learner = kvc_learner_new(e))) {
        free(l);
        return NULL;
    }
    l->options = o;
    kvc_learner_predict(l->learner, o.back, o.base);
    return l;
}

struct kvc_learning *kvc_learning_new(struct kvc_error *e) {
    const struct kvc_learning_options o = {.size = sizeof o, .back = 1};
    return kvc_learning_start(&o, e);
}

uint64_t kvc_learning_least(uint64_t *most, uint64_t *of_one) {
    if (most) *most = MOST;
    if (of_one) *of_one = OF_ONE;
    return LEAST;
}

unsigned kvc_learning_back(const struct kvc_file *f) {
    struct kvc_tensor_info t = {.size = sizeof t};
    uint64_t widest = 0;
    for (uint32_t i = 0; !kvc_file_tensor(f, i, &t); i++)
        if (strcmp(t.role, "K") == 0 && t.heads * t.dim > widest) widest = t.heads * t.dim;
    return widest <= WIDEST_PREDICTED;
}

void kvc_learning_free(struct kvc_learning *l) {
    if (l) kvc_learner_free(l->learner);
    free(l);
}

/* Gives a cache the heads, layers and pairing of the profile that gets predictors, and checks that
 * it is of its model. */
static int fit_base(const struct kvc_learning_options *o, struct kvc_cache *c,
                    struct kvc_error *e) {
    struct kvc_fit fit;
    if (!o->base) return 0;
    if (kvc_profile_adopt(o->base, c, e) ||
        kvc_profile_settle(o->base, c, o->threads, o->force_profile, &fit, e))
        return -1;
    kvc_fit_free(&fit);
    return 0;
}

/* Tokens of a cache in which gradients are measured, at least. In shorter ones all rows are near
 * the tokens that look at them, and what these say of a long cache was not tried. */
enum { LEAST_MEASURED = 640 };

/* Returns the rows whose token ids are known, of the layer that has most: others may be windows. */
static uint64_t known_rows(const struct kvc_cache *c) {
    uint64_t rows = 0;
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (c->tensor[t].role == KVC_ROLE_K && c->tensor[t].shape.tokens > rows)
            rows = c->tensor[t].shape.tokens;
    return c->n_tokens < rows ? c->n_tokens : rows;
}

/* Adds rows and queries. A cache that fails half-way leaves nothing to go on with. */
static int add_rows(struct kvc_learning *l, const struct kvc_cache *c,
                    const struct kvc_cache *queries, struct kvc_error *e) {
    l->spoilt = kvc_learner_add(l->learner, c, queries, e) != 0;
    return l->spoilt ? -1 : 0;
}

static int is_spoilt(const struct kvc_learning *l, struct kvc_error *e) {
    return l->spoilt ? kvc_fail(e, KVC_ERR_USAGE, "a cache before could not be learnt from") : 0;
}

/* Refuses a cache that is of another model than the weights, and begins to measure. What else is in
 * the way of measuring is noted. */
static int look(struct kvc_learning *l, const struct kvc_cache *c, const struct kvc_weights *w,
                struct kvc_gradients_pass **pass, struct kvc_error *e) {
    const struct kvc_learning_options *o = &l->options;
    const uint64_t known = known_rows(c);
    struct kvc_error why = {.code = KVC_OK};
    if (kvc_learner_look(l->learner, c, w, o->threads, o->stop, o->stop_state,
                         known >= LEAST_MEASURED, pass, &why)) {
        if (why.code == KVC_ERR_OTHER_MODEL) return kvc_fail(e, why.code, "%s", why.message);
        l->why_not_measured = why;
    }
    if (known < LEAST_MEASURED)
        kvc_fail(&l->why_not_measured, KVC_ERR_UNSUPPORTED,
                 "a cache has %" PRIu64 " rows whose token ids are known, fewer than %d", known,
                 LEAST_MEASURED);
    return 0;
}

/* Adds a cache with what the weights tell: estimates of queries that it lacks, and gradients. */
static int add_with_weights(struct kvc_learning *l, const struct kvc_cache *c,
                            const struct kvc_weights *w, struct kvc_error *e) {
    struct kvc_gradients_pass *pass;
    if (look(l, c, w, &pass, e)) return -1;
    struct kvc_cache *queries = kvc_cache_has_queries(c)
                                    ? NULL
                                    : kvc_given_queries(c, w, NULL, l->options.threads, &l->why);
    l->estimated += queries != NULL;
    const int status = add_rows(l, c, queries, e);
    kvc_cache_free(queries);
    if (!status && pass) kvc_learner_measure(l->learner, pass, &l->why_not_measured);
    kvc_gradients_free(pass);
    return status;
}

int kvc_learning_add(struct kvc_learning *l, const struct kvc_file *f, struct kvc_error *e) {
    if (KVC_NULL(e, l, f) || is_spoilt(l, e)) return -1;
    const struct kvc_file *whole = kvc_file_whole(f);
    const struct kvc_weights *weights = l->options.base ? NULL : whole->rebuild;
    struct kvc_weights *opened = NULL;
    struct kvc_cache own;
    int status = kvc_cache_own_facts(&own, f->cache, e);
    if (!status) status = fit_base(&l->options, &own, e);
    if (!status && !weights && whole->model && !l->options.base)
        weights = opened = kvc_given_weights(whole->model, &l->why);
    if (!status)
        status = weights ? add_with_weights(l, &own, weights, e) : add_rows(l, &own, NULL, e);
    kvc_weights_close(opened);
    kvc_cache_disown(&own);
    return status ? kvc_error_prefix(e, f->name) : 0;
}

int kvc_learning_write(struct kvc_learning *l, kvc_write_fn *write, void *state,
                       struct kvc_error *e) {
    if (KVC_NULL(e, l)) return -1;
    if (!write) return kvc_null_function(e, __func__, "write");
    if (is_spoilt(l, e)) return -1;
    struct kvc_callback callback = {.write = write, .state = state};
    struct kvc_sink sink = kvc_callback_sink(&callback);
    return kvc_learner_write(l->learner, &sink, e);
}

struct kvc_profile *kvc_learning_profile(struct kvc_learning *l, struct kvc_error *e) {
    if (KVC_NULL(e, l) || is_spoilt(l, e)) return NULL;
    struct kvc_buffer bytes = {0};
    struct kvc_sink sink = kvc_sink_buffer(&bytes);
    struct kvc_profile *p = kvc_learner_write(l->learner, &sink, e)
                                ? NULL
                                : kvc_profile_open_memory(bytes.data, bytes.n, e);
    free(bytes.data);
    return p;
}

int kvc_learning_describe(const struct kvc_learning *l, struct kvc_learning_info *info) {
    const struct kvc_learning_info own = {.has_queries = kvc_learner_has_queries(l->learner),
                                          .knows_rope = kvc_learner_knows_rope(l->learner),
                                          .estimated = l->estimated,
                                          .not_estimated = l->why.message,
                                          .has_gradients = kvc_learner_has_gradients(l->learner),
                                          .not_measured = l->why_not_measured.message};
    return kvc_sized_give(info, &own, sizeof own, "kvc_learning_info", NULL);
}
