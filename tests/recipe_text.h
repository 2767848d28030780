/* recipe_text.h: recipes out of text, for tests. */
#ifndef KVC_TESTS_RECIPE_TEXT_H
#define KVC_TESTS_RECIPE_TEXT_H

#include "codecs/recipe.h"

#include <stdio.h>
#include <stdlib.h>

/* Returns the recipe of a text, which must be one; NULL of NULL. Good for the next 15 calls. */
static inline const struct kvc_recipe *recipe_of(const char *text) {
    static struct kvc_recipe recipe[16];
    static unsigned next;
    struct kvc_recipe *one = &recipe[next++ % 16];
    struct kvc_error e;
    if (!text) return NULL;
    if (kvc_recipe_parse(text, one, &e)) {
        fprintf(stderr, "%s: %s\n", text, e.message);
        abort();
    }
    return one;
}

#endif
