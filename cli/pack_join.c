/* pack_join.c: kvc-pack --join and --append: opens several inputs as one. */
#include "cli/pack_job.h"

#include <stdlib.h>
#include <string.h>

/* Opens the operands. Ranks have other heads than the model that --model names, which the joined
 * cache is compared with. */
static int open_all(struct cli_pack *p, struct kvc_error *e) {
    struct cli_joined *all = &p->joined;
    if (!(all->file = calloc((size_t)all->n, sizeof *all->file))) return cli_no_memory(e, "files");
    const char *model = p->job.input.open.model;
    int status = 0;
    if (all->heads) p->job.input.open.model = NULL;
    for (int i = 0; i < all->n && !status; i++) {
        const char *path = !all->append ? all->paths[i] : i ? all->paths[i - 1] : all->append;
        all->file[i] = cli_open(path, &p->job.input, e);
        status = all->file[i] ? 0 : -1;
    }
    p->job.input.open.model = model;
    return status;
}

/* For --append: takes the recipe of the first file, whose blocks are copied. */
static int take_recipe(struct cli_pack *p, struct kvc_error *e) {
    const struct kvc_file *old = p->joined.file[0];
    const size_t size = kvc_file_meta_size(old, "recipe");
    if (!job_source(old).packed)
        return cli_usage_error(
            e, "%s is no .kvc: --append=OLD.kvc wants the container that comes first",
            job_source(old).name);
    p->how.reuse = old;
    p->recipe_text = p->how.recipe = "split"; /* of containers that do not say */
    if (!size) return 0;
    if (!(p->joined.recipe = malloc(size))) return cli_no_memory(e, "a recipe");
    p->recipe_text = p->how.recipe = kvc_file_meta(old, "recipe", p->joined.recipe, size);
    return kvc_recipe_describe(p->how.recipe, NULL, e) ? kvc_error_about(e, job_source(old).name)
                                                       : 0;
}

static struct kvc_file *open_joined(void *state, const char *path, struct kvc_error *e) {
    struct cli_pack *p = state;
    struct cli_joined *all = &p->joined;
    struct kvc_open_options o;
    (void)path; /* of the first operand */
    if (open_all(p, e) || (all->append && take_recipe(p, e)) ||
        cli_given_open(&p->job.input, &o, e))
        return NULL;
    const struct kvc_join_options how = {.size = sizeof how,
                                         .how = all->heads ? "heads" : "tokens",
                                         .keeps_first = all->append != NULL,
                                         .shared_model = o.shared_model,
                                         .facts = o.facts,
                                         .token_ids = p->token_ids,
                                         .n_token_ids = p->n_token_ids,
                                         .note = o.note};
    return kvc_file_join_by((const struct kvc_file *const *)all->file, (size_t)all->n, &how, e);
}

int pack_check_join(struct cli_pack *p) {
    const int n = p->job.files.n;
    if (!p->job.joins) return 0;
    const char *option = p->joined.append ? "--append" : "--join";
    if (!n) return cli_usage("%s needs files to join", option);
    if (p->job.remove) return cli_usage("%s and --rm exclude each other", option);
    if (!p->job.output && !p->job.to_stdout && !p->job.test)
        return cli_usage("%s needs -o FILE or -c", option);
    if (p->joined.append &&
        (p->joined.heads || cli_given("recipe") || p->how.dequantize || p->part.given))
        return cli_usage("--append excludes --join=heads, -r, --dequantize, --tokens and --layers: "
                         "the recipe is that of %s",
                         p->joined.append);
    p->joined.n = n + (p->joined.append != NULL);
    p->joined.paths = p->job.files.path;
    p->job.open = open_joined;
    return 0;
}

void pack_join_close(struct cli_pack *p) {
    for (int i = 0; i < p->joined.n && p->joined.file; i++) kvc_file_close(p->joined.file[i]);
    free(p->joined.file);
    free(p->joined.recipe);
}
