/* kvc_lists.c: implements the part of kvc.h on what the library knows: formats and their options,
 * recipes, kernels. */
#include "formats/api/kvc.h"

#include "codecs/near.h"
#include "codecs/presets.h"
#include "codecs/recipe.h"
#include "codecs/registry.h"
#include "formats/api/sized.h"
#include "formats/file/format_options.h"
#include "kernels/kernels.h"

#include <stdio.h>
#include <string.h>

int kvc_format_describe(size_t i, struct kvc_format_info *info) {
    const struct kvc_format *f = kvc_format_at(i);
    if (!f) return -1;
    const struct kvc_format_info own = {.name = f->name,
                                        .what = f->summary,
                                        .suffix = f->suffix,
                                        .written = kvc_format_is_written(f),
                                        .tool = f->tool};
    return kvc_sized_give(info, &own, sizeof own, "kvc_format_info", NULL);
}

int kvc_format_option_describe(const char *format, int writing, size_t i,
                               struct kvc_format_option_info *info) {
    const struct kvc_format *f = kvc_format_find(format);
    const struct kvc_format_option *o = !f ? NULL : writing ? f->export_options : f->import_options;
    for (size_t before = 0; o && o->key && before < i; before++) o++;
    if (!o || !o->key) return -1;
    const struct kvc_format_option_info own = {.key = o->key,
                                               .value = o->value,
                                               .is_flag = o->kind == KVC_OPTION_FLAG,
                                               .tool = o->tool,
                                               .what = o->help};
    return kvc_sized_give(info, &own, sizeof own, "kvc_format_option_info", NULL);
}

int kvc_format_check(const char *format, int writing, const char *const *set, struct kvc_error *e) {
    if (KVC_NULL(e, format)) return -1;
    const struct kvc_format *f = kvc_format_find(format);
    const char *colon = strchr(format, ':');
    struct kvc_option_values values;
    if (!f || (writing && !kvc_format_is_written(f)))
        return kvc_fail(e, KVC_ERR_USAGE, "there is no format '%s'", format);
    if (kvc_options_read(&values, writing ? f->export_options : f->import_options, f->name,
                         colon ? colon + 1 : NULL, set, e))
        return -1;
    kvc_options_free(&values);
    return 0;
}

int kvc_fact_check(const char *fact, struct kvc_error *e) {
    if (KVC_NULL(e, fact)) return -1;
    struct kvc_meta meta = {.n = 0};
    const char *const one[] = {fact, NULL};
    const int status = kvc_meta_give(&meta, one, e);
    kvc_meta_free(&meta);
    return status;
}

const char *kvc_preset_name(size_t i, const char **what) {
    const struct kvc_preset *p = kvc_preset_at(i);
    if (p && what) *what = p->summary;
    return p ? p->name : NULL;
}

const char *kvc_stage_name(size_t i) {
    return kvc_stage_at(i) ? kvc_stage_at(i)->name : NULL;
}

int kvc_recipe_describe(const char *recipe, struct kvc_recipe_info *info, struct kvc_error *e) {
    if (KVC_NULL(e, recipe)) return -1;
    struct kvc_recipe r;
    if (kvc_recipe_parse(recipe, &r, e)) return -1;
    const struct kvc_recipe_info own = {.lossy = kvc_recipe_is_lossy(&r),
                                        .rebuilds = kvc_recipe_has(&r, KVC_STAGE_REBUILDS),
                                        .profiled = kvc_recipe_profile_need(&r, 1) != 0};
    return info ? kvc_sized_give(info, &own, sizeof own, "kvc_recipe_info", e) : 0;
}

const char *kvc_kernel_name(size_t i) {
    const char *const *names = kvc_kernels_names();
    while (i && *names) i--, names++;
    return *names;
}

int kvc_kernels_describe(struct kvc_kernels_info *info) {
    const struct kvc_kernels_choice choice = kvc_kernels_choice();
    const struct kvc_kernels_info own = {.name = choice.name,
                                         .rans_encode = choice.rans_encode,
                                         .rans_decode = choice.rans_decode,
                                         .by_trial = choice.by_trial,
                                         .predictions = choice.dot_rows};
    return kvc_sized_give(info, &own, sizeof own, "kvc_kernels_info", NULL);
}

const char *kvc_similar_names(const char *word, const char *const *names, char *text, size_t size) {
    struct kvc_near near = {.word = word};
    while (*names) kvc_near_offer(&near, *names++);
    snprintf(text, size, "%s", near.text);
    return text;
}
