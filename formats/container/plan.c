/* plan.c: chooses the pipeline of each tensor of a cache, and the pairs of layers. Not for running
 * pipelines (encode.c). */
#include "formats/container/plan.h"

#include "codecs/memory.h"
#include "formats/container/offsets.h"
#include "formats/model/rebuild_source.h"

#include <stdlib.h>
#include <string.h>

unsigned kvc_plan_select(const struct kvc_tensor *t) {
    if (t->role == KVC_ROLE_K || t->role == KVC_ROLE_LATENT) return KVC_SELECT_K;
    return t->role == KVC_ROLE_V ? KVC_SELECT_V : 0;
}

/* --- pairs --- */

/* What layers have in common that may pair. */
struct likeness {
    uint64_t part, kind, window;
    struct {
        uint64_t absent, role, dtype, heads, dim;
    } tensor[2];
};

static struct likeness likeness_of(const struct kvc_cache *c, uint32_t layer) {
    const struct kvc_layer *x = &c->layer[layer];
    struct likeness a = {.part = x->part, .kind = x->kind, .window = x->window};
    for (int i = 0; i < 2; i++) {
        a.tensor[i].absent = x->tensor[i] == KVC_NONE;
        if (a.tensor[i].absent) continue;
        const struct kvc_tensor *t = &c->tensor[x->tensor[i]];
        a.tensor[i].role = t->role;
        a.tensor[i].dtype = t->shape.dtype;
        a.tensor[i].heads = t->shape.heads;
        a.tensor[i].dim = t->shape.dim;
    }
    return a;
}

/* Compares the likeness of two layers, of numbers without gaps, in some order. */
static int compare_likeness(const struct kvc_cache *c, uint32_t a, uint32_t b) {
    const struct likeness x = likeness_of(c, a), y = likeness_of(c, b);
    return memcmp(&x, &y, sizeof x);
}

static int by_likeness(const void *pa, const void *pb, void *cache) {
    const struct kvc_cache *c = cache;
    const uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
    const int order = compare_likeness(c, a, b);
    if (order) return order;
    if (c->layer[a].index != c->layer[b].index)
        return c->layer[a].index < c->layer[b].index ? -1 : 1;
    return a < b ? -1 : 1;
}

/* Sets other[] of layers [first, end) of `sorted`, which are alike: of a layer with an even number
 * of layers below it in the model, the next one above it; of the rest KVC_NONE. */
static void pair_alike(const struct kvc_cache *c, const uint32_t *sorted, uint32_t first,
                       uint32_t end, uint32_t *other) {
    for (uint32_t i = first, next; i < end; i = next) {
        for (next = i + 1; next < end; next++) /* a file may have several of one index */
            if (c->layer[sorted[next]].index != c->layer[sorted[i]].index) break;
        const int even = (i - first) % 2 == 0;
        for (uint32_t k = i; k < next; k++)
            other[sorted[k]] = even && next < end ? sorted[next] : KVC_NONE;
    }
}

/* Returns by layer the one above it with which it may pair, or KVC_NONE; the caller frees them. */
static uint32_t *find_others(const struct kvc_cache *c, struct kvc_error *e) {
    uint32_t *sorted = kvc_alloc(c->n_layers, sizeof *sorted);
    uint32_t *other = kvc_alloc(c->n_layers, sizeof *other);
    if (!sorted || !other) {
        free(sorted);
        free(other);
        kvc_fail_memory(e, "the plan");
        return NULL;
    }
    for (uint32_t i = 0; i < c->n_layers; i++) sorted[i] = i;
    qsort_r(sorted, c->n_layers, sizeof *sorted, by_likeness, (void *)(uintptr_t)c);
    for (uint32_t first = 0, end; first < c->n_layers; first = end) {
        for (end = first + 1; end < c->n_layers; end++)
            if (compare_likeness(c, sorted[first], sorted[end])) break;
        pair_alike(c, sorted, first, end, other);
    }
    free(sorted);
    return other;
}

/* Returns the number of model layers that the cache covers: one more than the highest index of its
 * K and V. */
static uint32_t count_layers(const struct kvc_cache *c) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (c->part[c->layer[i].part].kind != KVC_PART_COMPANION && c->layer[i].index >= n)
            n = c->layer[i].index + 1;
    return n;
}

static int any_pairs(const struct kvc_cache *c, const struct kvc_pipeline *line) {
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (kvc_pipeline_first(&line[t], KVC_STAGE_PAIR) < line[t].n) return 1;
    return 0;
}

/* Sets the partners of K or V of layers 2i and 2i + 1 among layers that are alike, if both have the
 * same pipeline, which pairs the first of them. */
static int plan_find_pairs(struct kvc_plan *plan, const struct kvc_cache *c,
                           const struct kvc_pipeline *line, struct kvc_error *e) {
    const uint32_t layers = count_layers(c);
    if (!any_pairs(c, line)) return 0;
    uint32_t *others = find_others(c, e);
    if (!others) return -1;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const uint32_t other = others[i];
        if (other == KVC_NONE) continue;
        for (int r = 0; r < 2; r++) {
            const uint32_t a = c->layer[i].tensor[r], b = c->layer[other].tensor[r];
            if (a == KVC_NONE || !kvc_plan_select(&c->tensor[a])) continue;
            const unsigned step = kvc_pipeline_first(&line[a], KVC_STAGE_PAIR);
            if (step == line[a].n || !kvc_pipeline_same(&line[a], &line[b]) ||
                !line[a].step[step].stage->pairs(&line[a].step[step].args, c->layer[i].index,
                                                 layers))
                continue;
            plan->partner[a] = b;
            plan->partner[b] = a;
        }
    }
    free(others);
    return 0;
}

/* Removes the pair stage from the pipeline of a tensor without a partner. */
static void drop_pair_stage(struct kvc_pipeline *line) {
    const unsigned step = kvc_pipeline_first(line, KVC_STAGE_PAIR);
    if (step < line->n) kvc_pipeline_remove(line, step);
}

/* --- pipelines --- */

static int add_pipeline(struct kvc_plan *plan, uint32_t tensor, const struct kvc_pipeline *line,
                        struct kvc_error *e) {
    uint32_t p = 0;
    while (p < plan->n_pipelines && !kvc_pipeline_same(&plan->pipeline[p], line)) p++;
    if (p == plan->n_pipelines) {
        if (p == KVC_MAX_PIPELINES)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "more than %u pipelines", p);
        struct kvc_pipeline *grown = kvc_realloc(plan->pipeline, p + 1, sizeof *grown);
        if (!grown) return kvc_fail_memory(e, "pipelines");
        plan->pipeline = grown;
        plan->pipeline[plan->n_pipelines++] = *line;
    }
    plan->pipeline_of[tensor] = p;
    return 0;
}

/* --- rows that are rebuilt --- */

uint32_t kvc_plan_hidden(const struct kvc_cache *c, const struct kvc_pipeline *line,
                         uint32_t tensor) {
    const unsigned step = kvc_pipeline_first(line, KVC_STAGE_REBUILDS);
    const uint32_t layers = count_layers(c);
    const struct kvc_stage *by;
    struct kvc_stage_args by_args;
    for (uint32_t i = kvc_tensor_layer(c, tensor)->index; i < layers && step < line->n; i++)
        if (line->step[step].stage->hidden(&line->step[step].args, i, layers, &by, &by_args))
            return kvc_find_hidden(c, tensor, i);
    return KVC_NONE;
}

/* Chooses the pipeline for the hidden states of a layer whose K and V are rebuilt. If the layer
 * keeps no states of its own, the states are rebuilt too; else the stage that rebuilds may name
 * another one that stores them. */
static void hidden_pipeline(const struct kvc_cache *c, const struct kvc_recipe *recipe,
                            uint32_t tensor, struct kvc_pipeline *line) {
    const uint32_t index = kvc_tensor_layer(c, tensor)->index;
    struct kvc_pipeline of_k;
    struct kvc_recipe instead = {.n = 1};
    kvc_recipe_pipeline(recipe, KVC_SELECT_K, index, &of_k);
    const unsigned step = kvc_pipeline_first(&of_k, KVC_STAGE_REBUILDS);
    if (step == of_k.n) return;
    const struct kvc_stage *const rebuilds = of_k.step[step].stage;
    struct kvc_item *const item = &instead.item[0];
    const int own = rebuilds->hidden(&of_k.step[step].args, index, count_layers(c), &item->stage,
                                     &item->args);
    if (own && !item->stage) return;
    if (!own) *item = (struct kvc_item){.stage = rebuilds, .args = of_k.step[step].args};
    kvc_recipe_pipeline(&instead, KVC_SELECT_K, index, line);
    for (unsigned i = 0; i < line->n; i++) line->step[i].item = recipe->n;
}

/* --- the pipeline of each tensor --- */

/* Chooses the pipeline of each tensor before pairs are known. A tensor that its pipeline refuses
 * gets the default, and the first reason is kept. */
static int plan_choose(struct kvc_plan *plan, const struct kvc_cache *c,
                       const struct kvc_recipe *recipe, struct kvc_pipeline *line,
                       struct kvc_error *refusal, struct kvc_error *e) {
    const int heads_known = !c->meta.facts.heads_unknown;
    refusal->code = KVC_OK;
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        struct kvc_error why;
        const struct kvc_tensor *tensor = &c->tensor[t];
        plan->tensor_bytes += kvc_tensor_bytes(tensor);
        plan->partner[t] = KVC_NONE;
        kvc_recipe_pipeline(recipe, kvc_plan_select(tensor), c->layer[tensor->layer].index,
                            &line[t]);
        if (kvc_pipeline_check(&line[t], e)) {
            if (e) e->code = KVC_ERR_USAGE;
            return kvc_error_prefix(e, "recipe");
        }
        const unsigned heads = kvc_pipeline_first(&line[t], KVC_STAGE_HEADS);
        if (heads < line[t].n && !heads_known)
            return kvc_fail_need(
                e, KVC_ERR_USAGE, KVC_NEED_HEADS,
                "recipe: %s works head by head, but nothing says how many KV heads there are",
                line[t].step[heads].stage->name);
        if (tensor->role == KVC_ROLE_HIDDEN) hidden_pipeline(c, recipe, t, &line[t]);
        const unsigned rebuilt = kvc_pipeline_first(&line[t], KVC_STAGE_REBUILDS);
        if (kvc_pipeline_accepts(&line[t], &tensor->shape, &why)) {
            if (rebuilt == line[t].n || kvc_plan_hidden(c, &line[t], t) != KVC_NONE) continue;
            kvc_fail(&why, KVC_ERR_UNSUPPORTED,
                     "there are no hidden states of the same positions to rebuild it from");
        }
        if (refusal->code == KVC_OK) {
            char label[64];
            *refusal = why;
            kvc_tensor_label(c, t, label, sizeof label);
            kvc_error_prefix(refusal, label);
        }
        static const struct kvc_recipe nothing;
        kvc_recipe_pipeline(&nothing, 0, 0, &line[t]);
        line[t].step[0].item = recipe->n;
    }
    return 0;
}

int kvc_plan_make(struct kvc_plan *plan, const struct kvc_cache *c, const struct kvc_recipe *recipe,
                  struct kvc_error *e) {
    struct kvc_error refusal;
    memset(plan, 0, sizeof *plan);
    plan->lossless = 1;
    plan->pipeline_of = calloc((size_t)c->n_tensors + 1, sizeof *plan->pipeline_of);
    plan->partner = calloc((size_t)c->n_tensors + 1, sizeof *plan->partner);
    struct kvc_pipeline *line = calloc((size_t)c->n_tensors + 1, sizeof *line);
    unsigned used = 0; /* bit i: item i codes some tensor */
    int status = plan->pipeline_of && plan->partner && line ? 0 : kvc_fail_memory(e, "the plan");
    if (!status) status = plan_choose(plan, c, recipe, line, &refusal, e);
    if (!status) status = plan_find_pairs(plan, c, line, e);
    for (uint32_t t = 0; t < c->n_tensors && !status; t++) {
        if (plan->partner[t] == KVC_NONE) drop_pair_stage(&line[t]);
        for (unsigned s = 0; s < line[t].n; s++)
            if (line[t].step[s].item < recipe->n) used |= 1u << line[t].step[s].item;
        if (!kvc_pipeline_lossless(&line[t])) plan->lossless = 0;
        status = add_pipeline(plan, t, &line[t], e);
    }
    for (unsigned i = 0; i < recipe->n && !status; i++) {
        if (!c->n_tensors || used & 1u << i) continue;
        if (refusal.code == KVC_OK && recipe->item[i].stage->flags & KVC_STAGE_PAIR)
            kvc_fail(&refusal, KVC_ERR_USAGE,
                     "from its first layer on, no two layers have the same kind and shape");
        status = kvc_fail(e, KVC_ERR_USAGE,
                          "recipe: stage '%s' (number %u) applies to no tensor of this cache%s%s",
                          recipe->item[i].stage->name, i + 1, refusal.code == KVC_OK ? "" : ": ",
                          refusal.code == KVC_OK ? "" : refusal.message);
    }
    free(line);
    return status;
}

void kvc_plan_free(struct kvc_plan *plan) {
    free(plan->pipeline);
    free(plan->pipeline_of);
    free(plan->partner);
    memset(plan, 0, sizeof *plan);
}
