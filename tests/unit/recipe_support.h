/* recipe_support.h: recipes that are read and printed, and texts that are no recipes. Not for what
 * stages do. */
#ifndef RECIPE_SUPPORT_H
#define RECIPE_SUPPORT_H

#include "codecs/recipe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* Reads a recipe, prints it as `canonical`, and reads it so again. */
static inline void assert_recipe(const char *recipe, const char *canonical) {
    struct kvc_recipe r, again;
    struct kvc_error e;
    char text[512];
    if (kvc_recipe_parse(recipe, &r, &e)) fail_msg("%s: %s", recipe, e.message);
    assert_int_equal(kvc_recipe_print(&r, text, sizeof text), 0);
    assert_string_equal(text, canonical);
    assert_int_equal(kvc_recipe_parse(text, &again, &e), 0);
    assert_memory_equal(&r, &again, sizeof r);
}

/* The message says more than that something is wrong. */
static inline void assert_no_recipe(const char *recipe) {
    struct kvc_recipe r;
    struct kvc_error e;
    if (!kvc_recipe_parse(recipe, &r, &e)) fail_msg("'%s' is taken", recipe);
    assert_int_equal(e.code, KVC_ERR_USAGE);
    assert_true(strlen(e.message) > 10);
}

#endif
