/* pack_join.c: kvc-pack --join: opens several inputs as one. Not for joining caches
 * (formats/cache/join.h). */
#include "cli/pack_job.h"

#include "codecs/memory.h"
#include "codecs/recipe.h"
#include "formats/cache/join.h"
#include "formats/cache/keys.h"
#include "formats/cache/meta.h"
#include "formats/container/container.h"

#include <stdlib.h>
#include <string.h>

int pack_check_join(struct cli_pack *p) {
    const int n = p->job.files.n;
    if (!p->job.joins) return 0;
    const char *option = p->joined.append ? "--append" : "--join";
    if (!n) return cli_usage("%s needs files to join", option);
    if (p->learn_path) return cli_usage("%s and --learn-profile exclude each other", option);
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
    p->job.open = pack_join_open;
    return 0;
}

/* Names the joined input: "a.bin and 2 more". */
static int name_joined(struct cli_joined *all, struct kvc_error *e) {
    const char *first = all->file[0].input.name;
    const int status = all->n > 1 ? asprintf(&all->name, "%s and %d more", first, all->n - 1)
                                  : asprintf(&all->name, "%s", first);
    if (status >= 0) return 0;
    all->name = NULL;
    return kvc_fail_memory(e, "a name");
}

/* Opens the operands. Ranks have other heads than the model that --model names, which the joined
 * cache is compared with. */
static int open_all(struct cli_pack *p, struct kvc_error *e) {
    struct cli_joined *all = &p->joined;
    if (!(all->file = kvc_alloc_zeros((uint64_t)all->n, sizeof *all->file)))
        return kvc_fail_memory(e, "files");
    const char *model = p->job.input.model_path;
    int status = 0;
    if (all->heads) p->job.input.model_path = NULL;
    for (int i = 0; i < all->n && !status; i++) {
        const char *path = !all->append ? all->paths[i] : i ? all->paths[i - 1] : all->append;
        status = cli_open(&all->file[i], path, &p->job.input, e);
    }
    p->job.input.model_path = model;
    return status ? -1 : name_joined(all, e);
}

/* For --append: takes the recipe of the first file, whose blocks are copied. */
static int take_recipe(struct cli_pack *p, struct kvc_error *e) {
    const struct kvc_opened *old = &p->joined.file[0];
    if (!kvc_cache_is_container(old->cache))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%s is no .kvc: --append=OLD.kvc wants the container that comes first",
                        old->input.name);
    p->recipe_text = kvc_meta_text(&old->cache->meta, KVC_KEY_RECIPE, KVC_DEFAULT_STAGE);
    if (kvc_recipe_parse(p->recipe_text, &p->recipe, e))
        return kvc_error_prefix(e, old->input.name);
    p->how.options.recipe = &p->recipe;
    p->how.options.reuse = old->cache;
    return 0;
}

static void say_joined(const struct cli_pack *p, const struct kvc_join_report *report) {
    if (p->job.input.quiet) return;
    if (report->by_order)
        cli_warn("%s: the files do not record positions: they are taken in the given order",
                 p->joined.name);
    if (report->no_ids && !p->token_ids.n)
        cli_warn("%s: without token ids: %s has none", p->joined.name, report->no_ids);
    if (report->left_out) cli_warn("%s: without queries and hidden states", p->joined.name);
}

/* Compares the cache of all ranks with the model. */
static int apply_model(struct cli_pack *p, struct kvc_opened *f, struct kvc_error *e) {
    struct cli_input *in = &p->job.input;
    if (!p->joined.heads || !in->has_model) return 0;
    const uint64_t heads = in->model.kv_heads;
    if (f->cache->meta.facts.heads_unknown && heads && heads <= UINT16_MAX &&
        kvc_cache_set_heads(f->cache, (uint32_t)heads, e))
        return -1;
    if (kvc_model_match(&f->cache->meta, &in->model, f->note, sizeof f->note, e)) return -1;
    if (kvc_model_apply(&in->model, f->cache, f->note, sizeof f->note, e)) return -1;
    if (kvc_meta_give(&f->cache->meta, in->import.facts, e)) return -1;
    return 0;
}

int pack_join_open(void *state, struct kvc_opened *f, const char *path, struct kvc_error *e) {
    struct cli_pack *p = state;
    struct cli_joined *all = &p->joined;
    struct kvc_join_report report;
    uint64_t bytes = 0;
    (void)path; /* of the first operand */
    memset(f, 0, sizeof *f);
    if (open_all(p, e) || (all->append && take_recipe(p, e)) || cli_read_model(&p->job.input, e))
        return -1;
    struct kvc_join_operand *from = kvc_alloc((uint64_t)all->n, sizeof *from);
    if (!from) return kvc_fail_memory(e, "files");
    for (int i = 0; i < all->n; i++) {
        from[i] = (struct kvc_join_operand){all->file[i].cache, all->file[i].input.name,
                                            !i && all->append};
        bytes += kvc_opened_size(&all->file[i]);
    }
    f->cache = all->heads ? kvc_view_join_heads(from, (size_t)all->n, &report, e)
                          : kvc_view_join(from, (size_t)all->n, &report, e);
    free(from);
    if (!f->cache) return -1;
    kvc_input_memory(&f->input, all->name, NULL,
                     /* the name and size of all; their bytes are those of the operands */
                     (size_t)bytes);
    f->format = all->file[0].format;
    if (apply_model(p, f, e)) {
        kvc_error_prefix(e, all->name);
        kvc_close(f);
        return -1;
    }
    say_joined(p, &report);
    return 0;
}

void pack_join_close(struct cli_pack *p) {
    for (int i = 0; i < p->joined.n && p->joined.file; i++) kvc_close(&p->joined.file[i]);
    free(p->joined.file);
    free(p->joined.name);
}
