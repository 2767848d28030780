/* kvc_pack.c: implements the part of kvc.h on packing. The work is done in formats/file/pack.c. */
#include "formats/api/callback.h"
#include "formats/api/kvc.h"
#include "formats/api/kvc_file.h"
#include "formats/api/pack_by.h"
#include "formats/api/sized.h"
#include "formats/cache/keys.h"
#include "formats/cache/rows.h"
#include "formats/cache/values.h"
#include "formats/container/container.h"
#include "formats/container/plan.h"
#include "formats/file/given.h"
#include "formats/file/pack.h"
#include "codecs/memory.h"

#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a report points to. */
struct owned {
    char recipe[KVC_MAX_RECIPE_TEXT];
    char *exact;
    struct kvc_layer_fit *layers;
};

/* A file that is packed. */
struct packing {
    const struct kvc_file *f;
    const struct kvc_write_options *o;
    struct kvc_callback callback;
    struct kvc_recipe recipe;
    struct kvc_packing how;
    struct kvc_packed done;
    uint64_t zero_bytes;
    struct owned *owned; /* NULL: no report is wanted */
};

static void pack_progress(void *state, uint64_t done, uint64_t total) {
    struct kvc_callback *c = state;
    /* the next write fails */
    if (!c->cancelled && c->progress(c->progress_state, done, total)) c->cancelled = 1;
}

/* --- notes --- */

/* Looks at the rows of the cache that is packed. Writes what is doubtful. */
static void look_at_rows(struct packing *p, const struct kvc_cache *c, char *text, size_t size) {
    struct kvc_rows rows;
    *text = '\0';
    /* packing reads the same rows, and says why it cannot */
    if (kvc_rows_look(&rows, c, NULL)) return;
    p->zero_bytes = rows.zeros * p->done.first_row_bytes;
    kvc_rows_say(&rows, "", text, size);
}

/* Writes which lossy recipes the values of a cache went through before; "" if none is known. */
static void say_past(const struct kvc_cache *c, char *text, size_t size) {
    struct kvc_meta meta = {0};
    const char *past = NULL;
    char id[2 * KVC_CONTENT_ID + 1] = "";
    *text = '\0';
    if (!kvc_meta_copy(&meta, &c->meta, NULL) && !kvc_values_pass(&meta, NULL))
        past = kvc_meta_text(&meta, KVC_KEY_VALUES_RECIPE, NULL);
    const struct kvc_meta_entry *content = kvc_meta_find(&meta, KVC_KEY_VALUES_CONTENT);
    if (content) kvc_meta_print(content, id, sizeof id);
    if (past)
        snprintf(text, size, "the values went through %s before, and lose more now%s%s", past,
                 *id ? "; they came out of the .kvc with the content id " : "", id);
    kvc_meta_free(&meta);
}

static void take_note(void *state, enum kvc_pack_note what, const struct kvc_cache *c) {
    static const enum kvc_note numbers[] = {[KVC_PACK_ROTATION_UNKNOWN] = KVC_NOTE_UNROTATED,
                                            [KVC_PACK_PAIRING_CHOSEN] = KVC_NOTE_PAIRING,
                                            [KVC_PACK_PROFILE_UNUSED] = KVC_NOTE_NO_STAGE,
                                            [KVC_PACK_ROWS] = KVC_NOTE_ROWS,
                                            [KVC_PACK_OTHER_QUERIES] = KVC_NOTE_OTHER_TEXT,
                                            [KVC_PACK_ESTIMATED] = KVC_NOTE_ESTIMATED,
                                            [KVC_PACK_NOT_ESTIMATED] = KVC_NOTE_NOT_ESTIMATED,
                                            [KVC_PACK_NO_BASE] = KVC_NOTE_NO_BASE,
                                            [KVC_PACK_AS_BASE] = KVC_NOTE_AS_BASE,
                                            [KVC_PACK_TWICE] = KVC_NOTE_TWICE};
    struct packing *p = state;
    char text[3 * KVC_MAX_RECIPE_TEXT];
    switch (what) {
    case KVC_PACK_ROTATION_UNKNOWN:
        snprintf(text, sizeof text,
                 "whether the quantised K or V is Hadamard-rotated is unknown (llama.cpp before "
                 "version 4 does not say), so nothing is rotated back");
        break;
    case KVC_PACK_PAIRING_CHOSEN:
        snprintf(text, sizeof text, "K is taken as paired in %s, which fits the profile",
                 kvc_pairing_name(c->meta.facts.rope.pairing));
        break;
    case KVC_PACK_PROFILE_UNUSED:
        snprintf(text, sizeof text, "no stage of the recipe takes the profile: it is left aside");
        break;
    case KVC_PACK_ROWS: look_at_rows(p, c, text, sizeof text); break;
    case KVC_PACK_OTHER_QUERIES:
        snprintf(text, sizeof text, "the queries of %s are those of other tokens",
                 p->o->queries->name);
        break;
    case KVC_PACK_ESTIMATED:
        snprintf(text, sizeof text, "queries estimated from K, V and the weights");
        break;
    case KVC_PACK_NOT_ESTIMATED:
        snprintf(text, sizeof text, "queries cannot be estimated: %s", p->done.why.message);
        break;
    case KVC_PACK_NO_BASE:
        snprintf(text, sizeof text, "no first rows stay as %s has them: all are coded anew",
                 p->o->base->name);
        break;
    case KVC_PACK_AS_BASE:
        snprintf(text, sizeof text,
                 "rows are packed as %s has them, of %s%s%s, and so without the file's own bytes",
                 p->o->base->name, kvc_dtype_info(c->tensor[0].shape.dtype)->name,
                 c->meta.facts.rope.pairing ? " and paired in " : "",
                 c->meta.facts.rope.pairing ? kvc_pairing_name(c->meta.facts.rope.pairing) : "");
        break;
    case KVC_PACK_TWICE: say_past(c, text, sizeof text); break;
    }
    if (*text && p->o->note) p->o->note(p->o->note_state, numbers[what], p->f->name, text);
}

/* --- what a lossy recipe leaves as it is --- */

/* The lowest model layer from `from` on with a tensor of this role that comes back bit by bit, or
 * KVC_NONE. */
static uint32_t next_lossless(const struct kvc_cache *c, const struct kvc_plan *plan,
                              enum kvc_role role, uint32_t from) {
    uint32_t next = KVC_NONE;
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const uint32_t index = kvc_tensor_layer(c, t)->index;
        if (c->tensor[t].role == role && index >= from && index < next &&
            kvc_pipeline_lossless(&plan->pipeline[plan->pipeline_of[t]]))
            next = index;
    }
    return next;
}

/* "K of layers 0-14,20; V of layer 3" */
static void print_lossless(FILE *out, const struct kvc_cache *c, const struct kvc_plan *plan) {
    const char *between = "";
    for (enum kvc_role role = KVC_ROLE_K; role <= KVC_ROLE_HIDDEN; role++) {
        uint32_t next = next_lossless(c, plan, role, 0);
        if (next == KVC_NONE) continue;
        const int one = next_lossless(c, plan, role, next + 1) == KVC_NONE;
        fprintf(out, "%s%s of layer%s ", between, kvc_role_name(role), one ? "" : "s");
        between = "";
        while (next != KVC_NONE) {
            const uint32_t first = next;
            uint32_t last = first;
            while ((next = next_lossless(c, plan, role, last + 1)) == last + 1 && next != KVC_NONE)
                last = next;
            fprintf(out, "%s%" PRIu32, between, first);
            if (last > first) fprintf(out, "-%" PRIu32, last);
            between = ",";
        }
        between = "; ";
    }
}

/* Notes the recipe as it was used. What has no room or cannot be planned is left out. */
static void take_coded(void *state, const struct kvc_cache *c, const struct kvc_recipe *recipe) {
    struct owned *own = ((struct packing *)state)->owned;
    struct kvc_plan plan;
    size_t n;
    if (kvc_recipe_print(recipe, own->recipe, sizeof own->recipe)) *own->recipe = '\0';
    FILE *out = open_memstream(&own->exact, &n);
    if (!out) return;
    if (!kvc_plan_make(&plan, c, recipe, NULL)) print_lossless(out, c, &plan);
    kvc_plan_free(&plan);
    if (!fclose(out)) return;
    free(own->exact);
    own->exact = NULL;
}

/* Refuses a recipe that would leave nothing of the exact values. */
static int refuse_loss(void *state, const struct kvc_cache *c, struct kvc_error *e) {
    const struct packing *p = state;
    const struct kvc_recipe *recipe = kvc_recipe_or_default(p->how.options.recipe);
    struct kvc_plan plan;
    if (!kvc_recipe_is_lossy(recipe)) return 0;
    /* a recipe that fits no tensor is refused later, with the reason */
    const int lossy = !kvc_plan_make(&plan, c, recipe, e) && !plan.lossless;
    kvc_plan_free(&plan);
    return lossy ? kvc_fail_need(e, KVC_ERR_USAGE, KVC_NEED_EXACT, "the recipe is lossy") : 0;
}

/* --- the report --- */

static void free_owned(struct owned *own) {
    if (!own) return;
    free(own->exact);
    free(own->layers);
    free(own);
}

/* Returns 1 if the caller's struct has the field by which kvc_write_report_free() frees. */
static int knows_owned(const struct kvc_write_report *r) {
    return r->size >= offsetof(struct kvc_write_report, owned) + sizeof r->owned;
}

void kvc_write_report_free(struct kvc_write_report *r) {
    if (!r || !knows_owned(r)) return;
    free_owned(r->owned);
    kvc_sized_clear(r);
}

static int report_fit(struct kvc_write_report *r, struct owned *own, const struct kvc_fit *fit,
                      struct kvc_error *e) {
    if (!(own->layers = kvc_alloc(fit->n, sizeof *own->layers)))
        return kvc_fail_memory(e, "a report");
    for (uint32_t i = 0; i < fit->n; i++)
        own->layers[i] = (struct kvc_layer_fit){.layer = fit->layer[i].layer,
                                                .ratio = {fit->layer[i].ratio[0],
                                                          fit->layer[i].ratio[1]}};
    r->fit = kvc_fit_name(fit->verdict);
    r->fit_ratio[0] = fit->ratio[0];
    r->fit_ratio[1] = fit->ratio[1];
    r->layers = own->layers;
    r->n_layers = fit->n;
    return 0;
}

static int report(struct packing *p, struct kvc_error *e) {
    const struct kvc_packed *done = &p->done;
    const struct kvc_pack_report *coded = &done->report;
    struct owned *own = p->owned;
    struct kvc_write_report r = {.bytes = coded->stored_bytes,
                                 .row_bytes = done->row_bytes,
                                 .zero_bytes = p->zero_bytes,
                                 .tensor_bytes = coded->tensor_bytes,
                                 .records = coded->records,
                                 .sections = coded->sections,
                                 .same_rows = coded->same_rows,
                                 .base_rows = done->base_rows,
                                 .rows = done->all_rows,
                                 .lossless = coded->lossless,
                                 .dequantized = done->dequantized,
                                 .no_companions = done->left_out,
                                 .needs_profile = coded->uses_profile && !p->o->embed_profile,
                                 .step = done->rated.step,
                                 .kld = {done->rated.kld[0], done->rated.kld[1]},
                                 .target_error = done->rated.error,
                                 .error = {coded->error[0], coded->error[1]},
                                 .recipe = own->recipe,
                                 .exact = own->exact ? own->exact : "",
                                 .owned = own};
    if (done->fitted && report_fit(&r, own, &done->fit, e)) return -1;
    if (kvc_sized_give(p->o->report, &r, sizeof r, "kvc_write_report", e)) return -1;
    if (!knows_owned(p->o->report)) return 0;
    p->owned = NULL;
    return 0;
}

/* --- packing --- */

static int check_targets(const struct kvc_write_options *o, struct kvc_error *e) {
    const double target[] = {o->target_kld, o->target_ratio, o->max_output_error,
                             o->max_logit_error};
    for (size_t i = 0; i < sizeof target / sizeof target[0]; i++)
        if (!(target[i] >= 0 && target[i] <= DBL_MAX))
            return kvc_fail(e, KVC_ERR_USAGE, "a target of %g is not a number of 0 or more",
                            target[i]);
    return 0;
}

static int take_base(struct packing *p, struct kvc_error *e) {
    const struct kvc_write_options *o = p->o;
    const struct kvc_cache *base = o->base->cache;
    if (!kvc_cache_is_container(base))
        return kvc_fail(e, KVC_ERR_USAGE, "%s is no .kvc, which a base is", o->base->name);
    if (o->recipe || o->target_kld > 0 || o->target_ratio > 0 || o->max_output_error > 0 ||
        o->max_logit_error > 0)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "recipe and step are those of the base: none is given beside it");
    if (o->reuse)
        return kvc_fail(e, KVC_ERR_USAGE, "a base excludes a .kvc whose blocks are copied");
    const char *text = kvc_meta_text(&base->meta, KVC_KEY_RECIPE, NULL);
    if (!text)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s, the base, does not say its recipe",
                        o->base->name);
    if (kvc_recipe_parse(text, &p->recipe, e)) return kvc_error_prefix(e, o->base->name);
    p->how.options.recipe = &p->recipe;
    if (kvc_recipe_is_lossy(&p->recipe)) p->how.base = base;
    return 0;
}

/* Takes the profile of the base, which the caller may have given as well. */
static int take_base_profile(struct packing *p, struct kvc_error *e) {
    struct kvc_pack_options *o = &p->how.options;
    const struct kvc_cache *base = p->o->base->cache;
    const uint8_t *hash = base->meta.facts.profile;
    int embedded;
    if (o->profile &&
        (!hash || memcmp(hash, kvc_profile_sha256(o->profile), KVC_SHA256_BYTES) != 0))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%s was packed with %s profile: it is the base, and no "
                        "other profile is given beside it",
                        p->o->base->name, hash ? "another" : "no");
    struct kvc_profile *own = kvc_container_profile(base, &embedded);
    if (!o->profile && own) o->profile = kvc_profile_hold(own);
    o->embed_profile |= hash && embedded;
    p->how.force_profile = 1; /* the base's values fit it */
    return 0;
}

static int pack(struct packing *p, struct kvc_error *e) {
    const struct kvc_write_options *o = p->o;
    struct kvc_packing *how = &p->how;
    struct kvc_sink sink = kvc_callback_sink(&p->callback);
    if (o->report && !(p->owned = calloc(1, sizeof *p->owned)))
        return kvc_fail_memory(e, "a report");
    if (o->recipe) {
        if (kvc_recipe_parse(o->recipe, &p->recipe, e)) return -1;
        how->options.recipe = &p->recipe;
    }
    if (check_targets(o, e)) return -1;
    if (o->base && take_base(p, e)) return -1;
    if (o->reuse && !kvc_cache_is_container(o->reuse->cache))
        return kvc_fail(e, KVC_ERR_USAGE, "%s is no .kvc whose blocks could be copied",
                        o->reuse->name);
    if (o->shared_profile) how->options.profile = kvc_profile_hold(o->shared_profile);
    else if (o->profile && !(how->options.profile = kvc_given_profile(o->profile, e))) return -1;
    int status = o->base ? take_base_profile(p, e) : 0;
    if (!status) status = kvc_pack_cache(p->f->cache, how, &sink, &p->done, e);
    if (!status && o->report) status = report(p, e);
    kvc_packed_free(&p->done);
    kvc_profile_free(how->options.profile);
    return status;
}

int kvc_file_pack(const struct kvc_file *f, const struct kvc_write_options *options,
                  kvc_write_fn *write, void *state, struct kvc_error *e) {
    if (KVC_NULL(e, f)) return -1;
    return kvc_file_pack_by(f, options, NULL, write, state, e);
}

int kvc_file_pack_by(const struct kvc_file *f, const struct kvc_write_options *options,
                     const struct kvc_block_coder *coder, kvc_write_fn *write, void *state,
                     struct kvc_error *e) {
    struct kvc_write_options o;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_write_options", e)) return -1;
    if (kvc_sized_check(o.report, "kvc_write_report", e)) return -1;
    if (!write && !o.put) return kvc_null_function(e, "kvc_file_pack", "write");
    struct packing p = {.f = f,
                        .o = &o,
                        .callback = {.write = write,
                                     .put = o.put,
                                     .state = state,
                                     .progress = o.progress,
                                     .progress_state = o.progress_state}};
    p.how = (struct kvc_packing){.options = {.threads = o.threads,
                                             .align = o.align,
                                             .no_verify = o.no_verify,
                                             .coder = coder,
                                             .embed_profile = o.embed_profile,
                                             .measure = o.measure,
                                             .no_tokens = o.no_tokens,
                                             .no_keys = o.no_keys,
                                             .weights = kvc_file_whole(f)->rebuild,
                                             .queries = o.queries ? o.queries->cache : NULL,
                                             .reuse = o.reuse ? o.reuse->cache : NULL,
                                             .progress = o.progress ? pack_progress : NULL,
                                             .progress_state = &p.callback},
                                 .weights = kvc_file_whole(f)->rebuild,
                                 .model = kvc_file_whole(f)->model,
                                 .rate = {.kld = o.target_kld,
                                          .ratio = o.target_ratio,
                                          .output_error = o.max_output_error,
                                          .logit_error = o.max_logit_error},
                                 .force_profile = o.force_profile,
                                 .dequantize = o.dequantize,
                                 .no_companions = o.no_companions,
                                 .note = o.note || o.report ? take_note : NULL,
                                 .check = o.exact ? refuse_loss : NULL,
                                 .coded = o.report && o.measure ? take_coded : NULL,
                                 .state = &p};
    const int status = pack(&p, e);
    free_owned(p.owned);
    return status ? kvc_error_prefix(e, f->name) : 0;
}

/* Where a container is written to, and why that failed. */
struct output {
    struct kvc_sink sink;
    struct kvc_error why;
};

static int write_output(void *state, const void *data, size_t n) {
    struct output *o = state;
    return kvc_sink_write(&o->sink, data, n, &o->why);
}

static int pack_to(const struct kvc_file *f, const struct kvc_write_options *options,
                   struct kvc_sink sink, struct kvc_error *e) {
    struct output o = {.sink = sink, .why = {.code = KVC_OK}};
    const int status = kvc_file_pack(f, options, write_output, &o, e);
    if (status && o.why.code && e) *e = o.why;
    return status;
}

int kvc_file_pack_memory(const struct kvc_file *f, const struct kvc_write_options *options,
                         void **data, size_t *size, struct kvc_error *e) {
    if (KVC_NULL(e, f, data, size)) return -1;
    struct kvc_buffer buffer = {0};
    const int status = pack_to(f, options, kvc_sink_output(&buffer), e);
    if (status) free(buffer.data);
    *data = status ? NULL : buffer.data;
    *size = status ? 0 : buffer.n;
    return status;
}

int kvc_file_pack_fd(const struct kvc_file *f, const struct kvc_write_options *options, int fd,
                     struct kvc_error *e) {
    if (KVC_NULL(e, f)) return -1;
    return pack_to(f, options, kvc_sink_fd(&fd), e);
}
