/* pack.c: packs a cache into a container by a caller's options. */
#include "formats/model/predictor.h"
#include "formats/file/pack.h"

#include "formats/cache/keys.h"
#include "formats/cache/like.h"
#include "formats/cache/view.h"
#include "formats/container/base.h"
#include "formats/file/given.h"

#include <stdio.h>
#include <string.h>

struct pack_pack {
    const struct kvc_cache *source; /* as it was opened, and facts of the profile */
    const struct kvc_packing *how;
    struct kvc_sink *out;
    struct kvc_packed *done;
};

static void pack_note(const struct pack_pack *p, enum kvc_pack_note what,
                      const struct kvc_cache *c) {
    if (p->how->note) p->how->note(p->how->state, what, c);
}

/* Returns 1 if both caches have token ids and these differ in the length that both have. */
static int of_other_tokens(const struct kvc_cache *a, const struct kvc_cache *b) {
    const uint64_t n = kvc_cache_tokens_from(a, 0), m = kvc_cache_tokens_from(b, 0),
                   both = n < m ? n : m;
    return both && memcmp(a->tokens, b->tokens, (size_t)both * sizeof *a->tokens) != 0;
}

/* Checks that the profile belongs to the model of the cache, before a stage uses the profile. */
static int settle_profile(const struct pack_pack *p, struct kvc_cache *c, struct kvc_error *e) {
    const struct kvc_packing *how = p->how;
    const struct kvc_profile_use use = {how->options.recipe, how->options.threads,
                                        how->force_profile};
    const enum kvc_pairing was = c->meta.facts.rope.pairing;
    if (!how->options.profile) return 0;
    const int prepared = kvc_profile_prepare(how->options.profile, c, &use, &p->done->fit, e);
    if (prepared < 0) return -1;
    p->done->fitted = prepared;
    if (prepared && c->meta.facts.rope.pairing != was) pack_note(p, KVC_PACK_PAIRING_CHOSEN, c);
    /* the profile may be given to decode the source only */
    if (!prepared && !p->source->meta.facts.profile) pack_note(p, KVC_PACK_PROFILE_UNUSED, c);
    return 0;
}

/* Returns 1 if the recipe or the target needs queries of the cache. The stages that a profile
 * serves take the profile's, if it has some. */
static int asks_queries(const struct kvc_packing *how) {
    const struct kvc_recipe *recipe = kvc_recipe_or_default(how->options.recipe);
    const struct kvc_profile *profile = how->options.profile;
    int asks = how->rate.output_error > 0 || how->rate.logit_error > 0;
    if (!asks && profile && kvc_recipe_profile_need(recipe, 1) &&
        kvc_profile_metric(profile) != KVC_METRIC_COVARIANCE)
        return 0;
    for (unsigned i = 0; i < recipe->n; i++)
        asks |= recipe->item[i].stage->asks && recipe->item[i].stage->asks(&recipe->item[i].args);
    return asks;
}

/* Estimates the queries of c where they are needed. What cannot be done is noted: the recipe may do
 * without, or says itself that it cannot. */
static struct kvc_cache *pack_estimate(const struct pack_pack *p, const struct kvc_cache *c) {
    const struct kvc_packing *how = p->how;
    if ((!how->weights && !how->model) || kvc_cache_has_queries(c) || !asks_queries(how))
        return NULL;
    struct kvc_cache *queries = kvc_given_queries(c, how->weights, how->model, how->options.threads,
                                                  &p->done->why);
    pack_note(p, queries ? KVC_PACK_ESTIMATED : KVC_PACK_NOT_ESTIMATED, c);
    return queries;
}

/* Sets *queries to the queries for stages, in the RoPE pairing of K of c: the given ones, or those
 * of `full` if c has no companions, or estimated ones. */
static int pack_find_queries(const struct pack_pack *p, const struct kvc_cache *c,
                             const struct kvc_cache *full, struct kvc_cache **queries,
                             struct kvc_error *e) {
    const struct kvc_cache *asked = p->how->options.queries;
    *queries = NULL;
    if (!asked && c != full && kvc_cache_has_queries(full)) asked = full;
    if (asked && !(*queries = kvc_view_queries(asked, c->meta.facts.rope.pairing, e))) return -1;
    if (!asked) *queries = pack_estimate(p, c);
    if (p->how->options.queries && of_other_tokens(c, p->how->options.queries))
        pack_note(p, KVC_PACK_OTHER_QUERIES, c);
    return 0;
}

/* Takes the number of heads from the base, where the cache does not tell it. */
static int adopt_base_heads(const struct kvc_cache *from, struct kvc_cache *c,
                            struct kvc_error *e) {
    const uint32_t k = from->n_layers ? from->layer[0].tensor[0] : KVC_NONE;
    if (!c->meta.facts.heads_unknown || from->meta.facts.heads_unknown || k == KVC_NONE) return 0;
    return kvc_cache_set_heads(c, (uint32_t)from->tensor[k].shape.heads, e);
}

/* Takes from the base facts that the cache lacks or that are assumed: the rows are the base's. */
static int adopt_base(const struct kvc_cache *from, struct kvc_cache *c, struct kvc_error *e) {
    static const char *const kinds[] = {"rope.", "model.", "hadamard.", "tokenizer.", "sliding."};
    const struct kvc_facts *facts = &c->meta.facts, *known = &from->meta.facts;
    if (known->rope.pairing && !known->rope.assumed &&
        (!facts->rope.pairing || facts->rope.assumed) &&
        kvc_meta_set_pairing(&c->meta, known->rope.pairing, e))
        return -1;
    for (size_t i = 0; i < from->meta.n; i++) {
        const struct kvc_meta_entry *entry = &from->meta.entry[i];
        size_t kind = 0;
        while (kind < sizeof kinds / sizeof kinds[0] &&
               strncmp(entry->key, kinds[kind], strlen(kinds[kind])) != 0)
            kind++;
        if (kind == sizeof kinds / sizeof kinds[0] || kvc_meta_find(&c->meta, entry->key)) continue;
        if (strcmp(entry->key, KVC_KEY_ROPE_ASSUMED) != 0 && kvc_meta_set_entry(&c->meta, entry, e))
            return -1;
    }
    return 0;
}

/* Compares the cache with the base: *base gets what both have, NULL where that is nothing. */
static int settle_base(const struct pack_pack *p, struct kvc_cache *c, struct kvc_base **base,
                       struct kvc_error *e) {
    const struct kvc_packing *how = p->how;
    *base = NULL;
    if (!how->base) return 0;
    if (kvc_base_compare(base, how->base, c, how->options.threads, e))
        return kvc_error_prefix(e, "the base");
    if (kvc_base_count(*base, c, &p->done->all_rows)) return adopt_base(how->base, c, e);
    kvc_base_free(*base);
    *base = NULL;
    return 0;
}

/* Packs c, which is `full`, or `full` without its companions. */
static int pack_pack(const struct pack_pack *p, struct kvc_cache *c, const struct kvc_cache *full,
                     struct kvc_error *e) {
    const struct kvc_packing *how = p->how;
    struct kvc_pack_options options = how->options;
    struct kvc_rate rate = how->rate;
    struct kvc_recipe recipe;
    struct kvc_cache *queries;
    if (how->check && how->check(how->state, c, e)) return -1;
    if (settle_base(p, c, &options.base, e) || settle_profile(p, c, e) ||
        pack_find_queries(p, c, full, &queries, e)) {
        kvc_base_free(options.base);
        return -1;
    }
    options.queries = queries;
    options.fit = p->done->fitted ? &p->done->fit : NULL;
    options.keys = p->source;
    rate.row_bytes = p->done->row_bytes;
    int status = kvc_rate_settle(c, &options, &rate, &recipe, &p->done->rated, e);
    options.recipe = &recipe;
    pack_note(p, KVC_PACK_ROWS, c);
    if (!status) status = kvc_container_write(c, &options, p->out, &p->done->report, e);
    kvc_cache_free(queries);
    if (options.base) p->done->base_rows = kvc_base_count(options.base, c, &p->done->all_rows);
    kvc_base_free(options.base);
    if (!status && how->base && !p->done->base_rows) pack_note(p, KVC_PACK_NO_BASE, c);
    if (!status && !p->done->base_rows && !p->done->report.lossless)
        pack_note(p, KVC_PACK_TWICE, c);
    if (status && e && e->code == KVC_ERR_USAGE && e->need == KVC_NEED_NOTHING &&
        kvc_recipe_is_lossy(how->options.recipe) && kvc_cache_is_quantized(c))
        e->need = KVC_NEED_FLOATS;
    if (!status && how->coded) how->coded(how->state, c, &recipe);
    return status;
}

/* Returns the bytes of the rows of a cache, in its own types; without companions if they are left
 * out. */
static uint64_t bytes_of_rows(const struct kvc_cache *c, int left_out) {
    uint64_t n = 0;
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (!left_out || !kvc_tensor_is_companion(c, t)) n += kvc_tensor_bytes(&c->tensor[t]);
    return n;
}

/* Returns the bytes of one row of all tensors of the first part. */
static uint64_t bytes_of_first_row(const struct kvc_cache *c) {
    uint64_t n = 0;
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (kvc_tensor_layer(c, t)->part == 0) n += kvc_row_bytes(&c->tensor[t].shape);
    return n;
}

/* Leaves the companions of c out, also of the bytes that ratios are of. */
static void leave_out(const struct pack_pack *p, const struct kvc_cache *c) {
    for (uint32_t t = 0; t < c->n_tensors; t++) p->done->left_out |= kvc_tensor_is_companion(c, t);
    if (p->done->left_out) p->done->row_bytes = bytes_of_rows(p->source, 1);
}

/* Packs a cache as the base has it: in its order of tensors, dtypes and pairing. */
static int pack_like(const struct pack_pack *p, struct kvc_cache *c, const struct kvc_cache *full,
                     struct kvc_error *e) {
    const struct kvc_cache *base = p->how->base;
    if (!base || !kvc_like_differs(c, base)) return pack_pack(p, c, full, e);
    struct kvc_cache *view = kvc_like_view(c, base, e);
    if (!view) return kvc_error_prefix(e, "the base");
    pack_note(p, KVC_PACK_AS_BASE, view);
    leave_out(p, c);
    const int status = pack_pack(p, view, full, e);
    kvc_cache_free(view);
    return status;
}

/* Packs a cache, without its companions if the options say so. */
static int pack_chosen(const struct pack_pack *p, struct kvc_cache *c, struct kvc_error *e) {
    const struct kvc_selection others = {.no_companions = 1};
    if (p->how->no_companions) leave_out(p, c);
    if (!p->done->left_out) return pack_like(p, c, c, e);
    struct kvc_cache *view = kvc_view_select(c, &others, e);
    const int status = view ? pack_like(p, view, c, e) : -1;
    kvc_cache_free(view);
    return status;
}

/* Packs *c, to which facts of the profile are added. */
static int pack_own(struct pack_pack *p, struct kvc_cache *c, struct kvc_error *e) {
    p->source = c;
    if (p->how->base && adopt_base_heads(p->how->base, c, e))
        return kvc_error_prefix(e, "the base");
    if (p->how->options.profile && kvc_profile_adopt(p->how->options.profile, c, e)) return -1;
    if (!p->done->dequantized) return pack_chosen(p, c, e);
    struct kvc_cache *view = kvc_view_dequantize(c, e);
    if (!view) return -1;
    const int *known = c->meta.facts.tile_known;
    if (!known[0] || !known[1]) pack_note(p, KVC_PACK_ROTATION_UNKNOWN, c);
    const int status = pack_chosen(p, view, e);
    kvc_cache_free(view);
    return status;
}

int kvc_pack_cache(const struct kvc_cache *c, const struct kvc_packing *how, struct kvc_sink *out,
                   struct kvc_packed *done, struct kvc_error *e) {
    struct kvc_packing with = *how;
    struct kvc_recipe best;
    struct kvc_cache own;
    struct pack_pack p = {.how = &with, .out = out, .done = done};
    memset(done, 0, sizeof *done);
    if (!how->options.recipe && how->options.profile &&
        kvc_profile_predicts(how->options.profile)) {
        if (kvc_recipe_parse(KVC_PREDICTING_STAGE, &best, e)) return -1;
        with.options.recipe = &best;
    }
    done->row_bytes = bytes_of_rows(c, 0);
    done->first_row_bytes = bytes_of_first_row(c);
    done->dequantized = how->dequantize && kvc_cache_is_quantized(c);
    int status = kvc_cache_own_facts(&own, c, e);
    if (!status) status = pack_own(&p, &own, e);
    kvc_cache_disown(&own);
    return status;
}

void kvc_packed_free(struct kvc_packed *done) {
    kvc_fit_free(&done->fit);
}
