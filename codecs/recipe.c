/* recipe.c: reading, printing and running recipes. The grammar stands in recipe.h. */
#include "codecs/recipe.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_STAGE "split" /* what ends a pipeline that has no terminal stage */

enum { MAX_ARGS = 128 }; /* bytes of one stage's arguments */

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
                    return kvc_fail(e, KVC_ERR_USAGE, "recipe: more than %d layer ranges", KVC_MAX_RANGES);
                item->range[item->ranges].first = first;
                item->range[item->ranges++].last = last;
                return 0;
            }
        }
    }
    return kvc_fail(e, KVC_ERR_USAGE, "recipe: selector '@%s' is none of @k, @v, @l0-15", text);
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
        char known[256] = "";
        for (size_t i = 0; kvc_stage_at(i); i++)
            snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                     kvc_stage_at(i)->name);
        return kvc_fail(e, KVC_ERR_USAGE, "recipe: there is no stage '%s' (stages: %s)", text, known);
    }
    if (args && !*args) return kvc_fail(e, KVC_ERR_USAGE, "recipe: %s: an argument is missing after ':'", text);
    if (args && strlen(args) >= MAX_ARGS) return kvc_fail(e, KVC_ERR_USAGE, "recipe: %s: arguments are too long", text);
    if (item->stage->parse(args ? args : "", &item->args, e)) return kvc_error_prefix(e, "recipe");
    while (at) {
        char *next = strchr(at, '@');
        if (next) *next++ = '\0';
        if (parse_selector(at, item, e)) return -1;
        at = next;
    }
    return 0;
}

int kvc_recipe_parse(const char *text, struct kvc_recipe *recipe, struct kvc_error *e) {
    memset(recipe, 0, sizeof *recipe);
    char *copy = strdup(text), *p = copy;
    if (!copy) return kvc_fail_memory(e, "a recipe");
    int status = 0;
    while (p && !status) {
        char *next = strchr(p, ',');
        if (next) *next++ = '\0';
        if (recipe->n == KVC_MAX_STAGES)
            status = kvc_fail(e, KVC_ERR_USAGE, "recipe: more than %d stages", KVC_MAX_STAGES);
        else
            status = parse_item(p, &recipe->item[recipe->n++], e);
        p = next;
    }
    free(copy);
    return status;
}

/* Appends to text; a negative return means it did not fit. */
static int append(char *text, size_t size, const char *more) {
    size_t used = strlen(text), n = strlen(more);
    if (used + n >= size) return -1;
    memcpy(text + used, more, n + 1);
    return 0;
}

static int append_stage(char *text, size_t size, const struct kvc_stage *stage, const struct kvc_stage_args *args) {
    char buffer[MAX_ARGS];
    stage->print(args, buffer, sizeof buffer);
    return append(text, size, stage->name) || (*buffer && (append(text, size, ":") || append(text, size, buffer)));
}

int kvc_recipe_print(const struct kvc_recipe *recipe, char *text, size_t size) {
    if (!size) return -1;
    *text = '\0';
    for (unsigned i = 0; i < recipe->n; i++) {
        const struct kvc_item *item = &recipe->item[i];
        if ((i && append(text, size, ",")) || append_stage(text, size, item->stage, &item->args)) return -1;
        if (((item->select & KVC_SELECT_K) && append(text, size, "@k")) ||
            ((item->select & KVC_SELECT_V) && append(text, size, "@v")))
            return -1;
        for (unsigned r = 0; r < item->ranges; r++) {
            char range[32];
            if (item->range[r].first == item->range[r].last)
                snprintf(range, sizeof range, "@l%" PRIu32, item->range[r].first);
            else
                snprintf(range, sizeof range, "@l%" PRIu32 "-%" PRIu32, item->range[r].first, item->range[r].last);
            if (append(text, size, range)) return -1;
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

void kvc_recipe_pipeline(const struct kvc_recipe *recipe, unsigned select, uint32_t layer,
                         struct kvc_pipeline *pipeline) {
    memset(pipeline, 0, sizeof *pipeline);
    for (unsigned i = 0; i < recipe->n; i++) {
        const struct kvc_item *item = &recipe->item[i];
        if (!selects(item, select, layer)) continue;
        pipeline->step[pipeline->n].stage = item->stage;
        pipeline->step[pipeline->n].item = i;
        pipeline->step[pipeline->n++].args = item->args;
        if (item->stage->flags & KVC_STAGE_TERMINAL) return;
    }
    const struct kvc_stage *last = kvc_stage_find(DEFAULT_STAGE);
    pipeline->step[pipeline->n].stage = last;
    pipeline->step[pipeline->n].item = recipe->n;
    last->parse("", &pipeline->step[pipeline->n++].args, NULL);
}

int kvc_pipeline_print(const struct kvc_pipeline *pipeline, char *text, size_t size) {
    if (!size) return -1;
    *text = '\0';
    for (unsigned i = 0; i < pipeline->n; i++)
        if ((i && append(text, size, ",")) ||
            append_stage(text, size, pipeline->step[i].stage, &pipeline->step[i].args))
            return -1;
    return 0;
}

int kvc_pipeline_lossless(const struct kvc_pipeline *pipeline) {
    for (unsigned i = 0; i < pipeline->n; i++)
        if (!(pipeline->step[i].stage->flags & KVC_STAGE_LOSSLESS)) return 0;
    return 1;
}

int kvc_pipeline_encode(const struct kvc_pipeline *pipeline, struct kvc_block *block, struct kvc_sections *out,
                        struct kvc_error *e) {
    for (unsigned i = 0; i < pipeline->n; i++)
        if (pipeline->step[i].stage->encode(&pipeline->step[i].args, block, (uint8_t)i, out, e))
            return kvc_error_prefix(e, pipeline->step[i].stage->name);
    return 0;
}

int kvc_pipeline_decode(const struct kvc_pipeline *pipeline, struct kvc_block *block,
                        const struct kvc_section *sections, size_t n, struct kvc_error *e) {
    /* Sections stand in stage order, so each stage's own are one run, taken from the end. */
    for (unsigned i = pipeline->n; i-- > 0;) {
        size_t first = n;
        while (first && sections[first - 1].stage == i) first--;
        if (pipeline->step[i].stage->decode(&pipeline->step[i].args, block, sections + first, n - first, e))
            return kvc_error_prefix(e, pipeline->step[i].stage->name);
        n = first;
    }
    return n ? kvc_fail(e, KVC_ERR_DAMAGED, "%zu sections belong to no stage of the recipe", n) : 0;
}
