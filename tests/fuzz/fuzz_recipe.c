/* fuzz_recipe.c: recipes from any text: what parses prints as a text that parses to the same. */
#include "tests/fuzz/fuzz.h"

#include "codecs/recipe.h"

enum { ROOM = 1 << 14, SMALL = 12 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct kvc_recipe recipe, second;
    struct kvc_error e;
    char *text = fuzz_alloc(size + 1), *first = fuzz_alloc(ROOM), *again = fuzz_alloc(ROOM),
         few[SMALL];
    memcpy(text, data, size);
    text[size] = '\0';
    if (kvc_recipe_parse(text, &recipe, &e) == 0) {
        if (kvc_recipe_print(&recipe, first, ROOM)) fuzz_die("a recipe cannot be printed", NULL);
        if (kvc_recipe_parse(first, &second, &e)) fuzz_die("a printed recipe does not parse", &e);
        if (kvc_recipe_print(&second, again, ROOM) || strcmp(first, again) != 0)
            fuzz_die("a recipe changes when printed twice", NULL);
        if ((kvc_recipe_print(&recipe, few, sizeof few) == 0) != (strlen(first) < sizeof few))
            fuzz_die("printing into too little room", NULL);
        for (unsigned select = 0; select <= KVC_SELECT_V; select++) {
            struct kvc_pipeline line;
            kvc_recipe_pipeline(&recipe, select, (uint32_t)size, &line);
            if (!line.n || line.n > KVC_MAX_STEPS || kvc_pipeline_print(&line, first, ROOM))
                fuzz_die("a pipeline without stages, or one that cannot be printed", NULL);
            kvc_pipeline_lossless(&line);
        }
    }
    free(text);
    free(first);
    free(again);
    return 0;
}
