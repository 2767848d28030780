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

/* Returns 1 if two layers have the same kind and geometry. Only such layers may pair. */
static int alike(const struct kvc_cache *c, uint32_t a, uint32_t b) {
    const struct kvc_layer *x = &c->layer[a], *y = &c->layer[b];
    if (x->part != y->part || x->kind != y->kind || x->window != y->window) return 0;
    for (int i = 0; i < 2; i++) {
        if ((x->tensor[i] == KVC_NONE) != (y->tensor[i] == KVC_NONE)) return 0;
        if (x->tensor[i] == KVC_NONE) continue;
        const struct kvc_tensor *s = &c->tensor[x->tensor[i]], *t = &c->tensor[y->tensor[i]];
        if (s->role != t->role || s->shape.dtype != t->shape.dtype ||
            s->shape.heads != t->shape.heads || s->shape.dim != t->shape.dim)
            return 0;
    }
    return 1;
}

/* Counts the layers below `layer` in the model that are alike. */
static uint32_t rank_of(const struct kvc_cache *c, uint32_t layer) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        n += c->layer[i].index < c->layer[layer].index && alike(c, i, layer);
    return n;
}

/* Returns the next layer above `layer` that is alike, or KVC_NONE. */
static uint32_t next_alike(const struct kvc_cache *c, uint32_t layer) {
    uint32_t next = KVC_NONE;
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (c->layer[i].index > c->layer[layer].index && alike(c, i, layer) &&
            (next == KVC_NONE || c->layer[i].index < c->layer[next].index))
            next = i;
    return next;
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

/* Sets the partners of K or V of layers 2i and 2i + 1 among layers that are alike, if both have the
 * same pipeline, which pairs the first of them. */
static void plan_find_pairs(struct kvc_plan *plan, const struct kvc_cache *c,
                            const struct kvc_pipeline *line) {
    const uint32_t layers = count_layers(c);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const uint32_t other = rank_of(c, i) % 2 ? KVC_NONE : next_alike(c, i);
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
    for (uint32_t i = c->layer[c->tensor[tensor].layer].index; i < layers && step < line->n; i++)
        if (line->step[step].stage->hidden(&line->step[step].args, i, layers, &by, &by_args))
            return kvc_find_hidden(c, tensor, i);
    return KVC_NONE;
}

/* Chooses the pipeline for the hidden states of a layer whose K and V are rebuilt. If the layer
 * keeps no states of its own, the states are rebuilt too; else the stage that rebuilds may name
 * another one that stores them. */
static void hidden_pipeline(const struct kvc_cache *c, const struct kvc_recipe *recipe,
                            uint32_t tensor, struct kvc_pipeline *line) {
    const uint32_t index = c->layer[c->tensor[tensor].layer].index;
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
    if (!status) plan_find_pairs(plan, c, line);
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
