/* recipe.c: reads and prints recipes, and selects the stages of a tensor. The grammar is in
 * recipe.h. */
#include "codecs/recipe.h"

#include "codecs/near.h"
#include "codecs/presets.h"
#include "codecs/registry.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int parse_number(const char **p, uint32_t *v) {
    if (**p < '0' || **p > '9') return -1;
    uint64_t n = 0;
    while (**p >= '0' && **p <= '9') {
        n = n * 10 + (uint64_t)(*(*p)++ - '0');
        if (n >= UINT32_MAX) return -1;
    }
    *v = (uint32_t)n;
    return 0;
}

/* One selector without its "@". */
static int parse_selector(const char *text, struct kvc_item *item, struct kvc_error *e) {
    if (strcmp(text, "k") == 0) {
        item->select |= KVC_SELECT_K;
        return 0;
    }
    if (strcmp(text, "v") == 0) {
        item->select |= KVC_SELECT_V;
        return 0;
    }
    if (text[0] == 'l') {
        const char *p = text + 1;
        uint32_t first, last;
        if (parse_number(&p, &first) == 0) {
            last = first;
            if ((*p != '-' || (p++, parse_number(&p, &last) == 0)) && !*p && first <= last) {
                if (item->ranges == KVC_MAX_RANGES)
                    return kvc_fail(e, KVC_ERR_USAGE, "recipe: more than %d layer ranges",
                                    KVC_MAX_RANGES);
                item->range[item->ranges].first = first;
                item->range[item->ranges++].last = last;
                return 0;
            }
        }
    }
    return kvc_fail(e, KVC_ERR_USAGE, "recipe: selector '@%s' is none of @k, @v, @l0-15", text);
}

static int fail_unknown(const char *name, struct kvc_error *e) {
    struct kvc_near near = {.word = name};
    char known[400] = "";
    for (size_t i = 0; kvc_stage_at(i); i++) {
        kvc_near_offer(&near, kvc_stage_at(i)->name);
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                 kvc_stage_at(i)->name);
    }
    for (size_t i = 0; kvc_preset_at(i); i++) {
        kvc_near_offer(&near, kvc_preset_at(i)->name);
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s",
                 i ? ", " : "; presets: ", kvc_preset_at(i)->name);
    }
    if (*near.text)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "recipe: there is no stage or preset '%s'; did you mean %s?", name,
                        near.text);
    return kvc_fail(e, KVC_ERR_USAGE, "recipe: there is no stage or preset '%s' (stages: %s)", name,
                    known);
}

/* One item; `text` is cut apart. */
static int parse_item(char *text, struct kvc_item *item, struct kvc_error *e) {
    memset(item, 0, sizeof *item);
    char *at = strchr(text, '@');
    if (at) *at++ = '\0';
    char *args = strchr(text, ':');
    if (args) *args++ = '\0';
    if (!*text) return kvc_fail(e, KVC_ERR_USAGE, "recipe: a stage's name is missing");
    item->stage = kvc_stage_find(text);
    if (!item->stage) {
        return fail_unknown(text, e);
    }
    if (args && !*args)
        return kvc_fail(e, KVC_ERR_USAGE, "recipe: %s: an argument is missing after ':'", text);
    if (args && strlen(args) >= KVC_MAX_ARGS)
        return kvc_fail(e, KVC_ERR_USAGE, "recipe: %s: arguments are too long", text);
    if (kvc_stage_parse(item->stage, args ? args : "", &item->args, e))
        return kvc_error_prefix(e, "recipe");
    while (at) {
        char *next = strchr(at, '@');
        if (next) *next++ = '\0';
        if (parse_selector(at, item, e)) return -1;
        at = next;
    }
    return 0;
}

/* Appends the items of a text; a preset's name stands for its items. */
static int parse_items(const char *text, struct kvc_recipe *recipe, int in_preset,
                       struct kvc_error *e) {
    char *copy = strdup(text), *p = copy;
    if (!copy) return kvc_fail_memory(e, "a recipe");
    int status = 0;
    while (p && !status) {
        char *next = strchr(p, ',');
        if (next) *next++ = '\0';
        const struct kvc_preset *preset = in_preset ? NULL : kvc_preset_find(p, strcspn(p, ":@"));
        if (preset && strcmp(preset->name, p) != 0)
            status = kvc_fail(e, KVC_ERR_USAGE,
                              "recipe: preset %s takes no arguments or selectors; it stands for %s",
                              preset->name, preset->recipe);
        else if (preset) status = parse_items(preset->recipe, recipe, 1, e);
        else if (recipe->n == KVC_MAX_STAGES)
            status = kvc_fail(e, KVC_ERR_USAGE, "recipe: more than %d stages", KVC_MAX_STAGES);
        else status = parse_item(p, &recipe->item[recipe->n++], e);
        p = next;
    }
    free(copy);
    return status;
}

int kvc_recipe_parse(const char *text, struct kvc_recipe *recipe, struct kvc_error *e) {
    memset(recipe, 0, sizeof *recipe);
    return parse_items(text, recipe, 0, e);
}

int kvc_recipe_print(const struct kvc_recipe *recipe, char *text, size_t size) {
    if (!size) return -1;
    *text = '\0';
    for (unsigned i = 0; i < recipe->n; i++) {
        const struct kvc_item *item = &recipe->item[i];
        if ((i && kvc_text_append(text, size, ",")) ||
            kvc_stage_append(text, size, item->stage, &item->args))
            return -1;
        if (((item->select & KVC_SELECT_K) && kvc_text_append(text, size, "@k")) ||
            ((item->select & KVC_SELECT_V) && kvc_text_append(text, size, "@v")))
            return -1;
        for (unsigned r = 0; r < item->ranges; r++) {
            char range[32];
            if (item->range[r].first == item->range[r].last)
                snprintf(range, sizeof range, "@l%" PRIu32, item->range[r].first);
            else
                snprintf(range, sizeof range, "@l%" PRIu32 "-%" PRIu32, item->range[r].first,
                         item->range[r].last);
            if (kvc_text_append(text, size, range)) return -1;
        }
    }
    return 0;
}

static int selects(const struct kvc_item *item, unsigned select, uint32_t layer) {
    if (item->select && !(item->select & select)) return 0;
    if (!item->ranges) return 1;
    if (!select) return 0;
    for (unsigned r = 0; r < item->ranges; r++)
        if (layer >= item->range[r].first && layer <= item->range[r].last) return 1;
    return 0;
}

/* Without arguments: the stage's defaults. */
static void add_step(struct kvc_pipeline *pipeline, const struct kvc_stage *stage,
                     const struct kvc_stage_args *args, unsigned item) {
    pipeline->step[pipeline->n].stage = stage;
    pipeline->step[pipeline->n].item = item;
    if (args) pipeline->step[pipeline->n].args = *args;
    else kvc_stage_parse(stage, "", &pipeline->step[pipeline->n].args, NULL);
    pipeline->n++;
}

void kvc_recipe_pipeline(const struct kvc_recipe *recipe, unsigned select, uint32_t layer,
                         struct kvc_pipeline *pipeline) {
    memset(pipeline, 0, sizeof *pipeline);
    int finite = 0;
    for (unsigned i = 0; i < recipe->n; i++) {
        const struct kvc_item *item = &recipe->item[i];
        const unsigned flags = item->stage->flags;
        const int whole = flags & KVC_STAGE_TERMINAL && flags & KVC_STAGE_LOSSLESS;
        if (!selects(item, select, layer) || (!select && !whole)) continue;
        if (item->stage == &kvc_stage_finite) finite = 1;
        if (flags & (KVC_STAGE_FINITE | KVC_STAGE_FLOAT) && !finite) {
            add_step(pipeline, &kvc_stage_finite, NULL, recipe->n);
            finite = 1;
        }
        add_step(pipeline, item->stage, &item->args, i);
        if (flags & KVC_STAGE_TERMINAL) return;
    }
    if (!pipeline->n || !(pipeline->step[pipeline->n - 1].stage->flags & KVC_STAGE_RESIDUAL))
        add_step(pipeline, kvc_stage_find(KVC_DEFAULT_STAGE), NULL, recipe->n);
}

static void take_out(struct kvc_pipeline *pipeline, unsigned step) {
    pipeline->n--;
    memmove(&pipeline->step[step], &pipeline->step[step + 1],
            (pipeline->n - step) * sizeof pipeline->step[0]);
}

void kvc_pipeline_remove(struct kvc_pipeline *pipeline, unsigned step) {
    take_out(pipeline, step);
    if (kvc_pipeline_first(pipeline, KVC_STAGE_FINITE | KVC_STAGE_FLOAT) < pipeline->n) return;
    for (unsigned i = 0; i < pipeline->n; i++)
        if (pipeline->step[i].stage == &kvc_stage_finite) take_out(pipeline, i);
}

static struct kvc_recipe default_recipe;
static pthread_once_t default_once = PTHREAD_ONCE_INIT;

static void make_default(void) {
    struct kvc_item *item = &default_recipe.item[default_recipe.n++];
    item->stage = kvc_stage_find(KVC_DEFAULT_STAGE);
    kvc_stage_parse(item->stage, "", &item->args, NULL); /* needs no memory, and so cannot fail */
}

const struct kvc_recipe *kvc_recipe_or_default(const struct kvc_recipe *recipe) {
    if (!recipe) pthread_once(&default_once, make_default);
    return recipe ? recipe : &default_recipe;
}

unsigned kvc_recipe_profile_need(const struct kvc_recipe *recipe, int predicts) {
    unsigned use = 0;
    recipe = kvc_recipe_or_default(recipe);
    for (unsigned i = 0; i < recipe->n; i++)
        use |= kvc_stage_profile_need(recipe->item[i].stage, predicts);
    return use;
}

int kvc_recipe_has(const struct kvc_recipe *recipe, unsigned flags) {
    recipe = kvc_recipe_or_default(recipe);
    for (unsigned i = 0; i < recipe->n; i++)
        if (recipe->item[i].stage->flags & flags) return 1;
    return 0;
}

int kvc_recipe_is_lossy(const struct kvc_recipe *recipe) {
    recipe = kvc_recipe_or_default(recipe);
    for (unsigned i = 0; i < recipe->n; i++)
        if (!(recipe->item[i].stage->flags & KVC_STAGE_LOSSLESS)) return 1;
    return 0;
}
