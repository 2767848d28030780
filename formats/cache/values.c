/* values.c: keeps the metadata values.recipe, values.profile and values.content. */
#include "formats/cache/values.h"

#include "codecs/memory.h"
#include "codecs/recipe.h"
#include "formats/cache/keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Adds a text to that of values.recipe, which may be absent, with `between`. */
static int add_recipe(struct kvc_meta *meta, const char *between, const char *recipe,
                      struct kvc_error *e) {
    const char *past = kvc_meta_text(meta, KVC_KEY_VALUES_RECIPE, NULL);
    char *text = NULL;
    if (!past) return kvc_meta_set_text(meta, KVC_KEY_VALUES_RECIPE, recipe, e);
    if (asprintf(&text, "%s%s%s", past, between, recipe) < 0) return kvc_fail_memory(e, "metadata");
    const int status = kvc_meta_set_text(meta, KVC_KEY_VALUES_RECIPE, text, e);
    free(text);
    return status;
}

/* Adds the hashes of profiles to those of values.profile. */
static int add_profile(struct kvc_meta *meta, const struct kvc_meta_entry *more,
                       struct kvc_error *e) {
    const struct kvc_meta_entry *past = kvc_meta_find(meta, KVC_KEY_VALUES_PROFILE);
    const uint64_t n = past && past->type == KVC_META_BYTES ? past->size : 0;
    if (!more || more->type != KVC_META_BYTES) return 0;
    uint8_t *all = kvc_alloc(n + more->size, 1);
    if (!all) return kvc_fail_memory(e, "metadata");
    if (n) memcpy(all, past->value, (size_t)n);
    memcpy(all + n, more->value, (size_t)more->size);
    const int status = kvc_meta_set_bytes(meta, KVC_KEY_VALUES_PROFILE, all,
                                          (size_t)(n + more->size), e);
    free(all);
    return status;
}

int kvc_values_pass(struct kvc_meta *meta, struct kvc_error *e) {
    struct kvc_recipe recipe;
    const char *text = kvc_meta_text(meta, KVC_KEY_RECIPE, NULL);
    struct kvc_error why;
    if (!text) return 0;
    const int unknown = kvc_recipe_parse(text, &recipe, &why);
    if (unknown && why.code == KVC_ERR_MEMORY) return kvc_fail_memory(e, "a recipe");
    if (!unknown && !kvc_recipe_is_lossy(&recipe)) return 0; /* an unknown one may be lossy */
    if (add_recipe(meta, " then ", text, e)) return -1;
    if (add_profile(meta, kvc_meta_find(meta, KVC_KEY_PROFILE), e)) return -1;
    static const uint8_t none[sizeof meta->content];
    kvc_meta_remove(meta, KVC_KEY_VALUES_CONTENT);
    if (memcmp(meta->content, none, sizeof none) == 0) return 0;
    return kvc_meta_set_bytes(meta, KVC_KEY_VALUES_CONTENT, meta->content, sizeof none, e);
}

static const char *const past_keys[] = {KVC_KEY_VALUES_RECIPE, KVC_KEY_VALUES_PROFILE,
                                        KVC_KEY_VALUES_CONTENT};

/* Returns 1 if a past is that of values that came out of the base, alone or joined by others that
 * went through nothing. */
static int is_of_base(const char *past, const char *base) {
    static const char before[] = "lossless or ", after[] = " or lossless";
    if (!past) return 1;
    if (strncmp(past, before, sizeof before - 1) == 0) past += sizeof before - 1;
    if (strncmp(past, base, strlen(base)) != 0) return 0;
    past += strlen(base);
    return !*past || strcmp(past, after) == 0;
}

int kvc_values_keep(struct kvc_meta *meta, const struct kvc_meta *base, struct kvc_error *e) {
    const char *past = kvc_meta_text(meta, KVC_KEY_VALUES_RECIPE, NULL);
    struct kvc_meta passed = {0};
    int status = kvc_meta_copy(&passed, base, e);
    if (!status) status = kvc_values_pass(&passed, e);
    const int known = !status &&
                      is_of_base(past, kvc_meta_text(&passed, KVC_KEY_VALUES_RECIPE, ""));
    kvc_meta_free(&passed);
    for (size_t i = 0; i < sizeof past_keys / sizeof past_keys[0] && known && !status; i++) {
        const struct kvc_meta_entry *entry = kvc_meta_find(base, past_keys[i]);
        kvc_meta_remove(meta, past_keys[i]);
        if (entry) status = kvc_meta_set_entry(meta, entry, e);
    }
    return status;
}

static int same(const struct kvc_meta_entry *a, const struct kvc_meta_entry *b) {
    return !a == !b &&
           (!a || (a->size == b->size && memcmp(a->value, b->value, (size_t)a->size) == 0));
}

/* Returns 1 if an operand before operand i has the same value of a key. */
static int came_before(const struct kvc_meta *of, size_t i, const char *key) {
    for (size_t k = 0; k < i; k++)
        if (same(kvc_meta_find(&of[k], key), kvc_meta_find(&of[i], key))) return 1;
    return 0;
}

int kvc_values_join(struct kvc_meta *meta, const struct kvc_join_operand *from, size_t n,
                    struct kvc_error *e) {
    struct kvc_meta *of = kvc_alloc_zeros(n, sizeof *of);
    int status = of ? 0 : kvc_fail_memory(e, "metadata"), lossy = 0;
    for (size_t i = 0; i < n && !status; i++) {
        status = kvc_meta_copy(&of[i], &from[i].cache->meta, e);
        if (!status && !from[i].is_kept) status = kvc_values_pass(&of[i], e);
        lossy |= kvc_meta_find(&of[i], KVC_KEY_VALUES_RECIPE) != NULL;
    }
    kvc_meta_remove(meta, KVC_KEY_RECIPE);
    kvc_meta_remove(meta, KVC_KEY_VALUES_RECIPE);
    kvc_meta_remove(meta, KVC_KEY_VALUES_PROFILE);
    kvc_meta_remove(meta, KVC_KEY_VALUES_CONTENT);
    for (size_t i = 0; i < n && lossy && !status; i++) {
        if (!came_before(of, i, KVC_KEY_VALUES_RECIPE))
            status = add_recipe(meta, " or ",
                                kvc_meta_text(&of[i], KVC_KEY_VALUES_RECIPE, "lossless"), e);
        if (!status && !came_before(of, i, KVC_KEY_VALUES_PROFILE))
            status = add_profile(meta, kvc_meta_find(&of[i], KVC_KEY_VALUES_PROFILE), e);
    }
    for (size_t i = 0; i < n && of; i++) kvc_meta_free(&of[i]);
    free(of);
    return status;
}
