/* check.c: the check of kvc-dump --check and kvc-unpack --test. Not for printing its result. */
#include "cli/cli.h"
#include "cli/progress.h"

#include "formats/container/container.h"
#include "formats/container/salvage.h"

#include <string.h>

static int named_kvc(const char *path) {
    size_t n = strlen(path), suffix = strlen(kvc_format_kvc.suffix);
    return n >= suffix && strcmp(path + n - suffix, kvc_format_kvc.suffix) == 0;
}

/* Returns 1 if the input is a .kvc by its bytes, its name or --from. An unreadable .kvc counts as
 * damaged. */
static int claims_kvc(const struct kvc_bundle *b, const struct cli_input *options) {
    char why[256];
    if (!b->is_file) return 0;
    if (options->import.format) return strcmp(options->import.format, kvc_format_kvc.name) == 0;
    return kvc_format_kvc.probe(b, why, sizeof why) || named_kvc(b->name);
}

int cli_check_container(const struct kvc_cache *c, const char *name, unsigned threads, int quiet,
                        struct kvc_error *e) {
    struct cli_progress progress;
    cli_progress_start(&progress, name, quiet);
    const int status = kvc_container_check_shown(c, threads, progress.on ? cli_progress_show : NULL,
                                                 &progress, e);
    cli_progress_end(&progress);
    return status;
}

struct checker {
    unsigned threads;
    int quiet;
};

static int check_all(void *state, const struct kvc_input *in, const struct kvc_cache *c,
                     struct kvc_error *e) {
    const struct checker *k = state;
    return cli_check_container(c, in->name, k->threads, k->quiet, e);
}

/* Returns EXIT_SAME, EXIT_DIFFER for a damaged .kvc, or EXIT_TROUBLE. */
static int check_input(const struct kvc_opened *f, struct cli_input *options, cli_checker *check,
                       void *state, int *checksums, struct kvc_error *e) {
    int status = EXIT_SAME;
    struct kvc_cache *c;
    *checksums = claims_kvc(&f->bundle, options);
    if (*checksums) {
        struct kvc_import_options import = options->import;
        import.weights = options->weights;
        c = kvc_format_kvc.import(&f->bundle, &import, e);
        if (!c || check(state, &f->input, c, e))
            status = e->code == KVC_ERR_DAMAGED || e->code == KVC_ERR_UNKNOWN ? EXIT_DIFFER
                                                                              : EXIT_TROUBLE;
    } else if (!(c = kvc_import(&f->bundle, &options->import, NULL, e))) {
        status = EXIT_TROUBLE;
    }
    kvc_cache_free(c);
    return status;
}

/* Lists all damage. Returns NULL if nothing is known beyond *why, the first damage. If whole rows
 * cannot be decoded for another reason, *why and *status become that reason, because it outweighs
 * damage. */
static struct kvc_survey *survey(const struct kvc_input *in, const struct kvc_import_options *o,
                                 unsigned threads, int *status, struct kvc_error *why) {
    struct kvc_error e;
    struct kvc_cache *c = kvc_import_damaged(in, o, &e);
    if (!c) return NULL;
    if (!kvc_salvage_survey(c, threads, &e)) {
        kvc_cache_free(c);
        return NULL;
    }
    struct kvc_survey *s = kvc_salvage_end(c);
    if (s->trouble.code != KVC_OK) {
        *why = s->trouble;
        *status = EXIT_TROUBLE;
    }
    if (s->n) return s;
    kvc_survey_free(s);
    return NULL;
}

/* Opens the input of a check. A pipe that is no cache is refused by its first bytes, unless its
 * name ends in .kvc. */
static int open_input(struct kvc_opened *f, const char *path, struct cli_input *options,
                      struct kvc_error *e) {
    const struct kvc_opening o = {.import = options->import,
                                  .maps_files = 1,
                                  .any_bytes = named_kvc(path)};
    if (cli_refuse_terminal(path, e) || cli_open_given(options, e)) return -1;
    return kvc_open_bundle(f, path, &o, e);
}

int cli_check(const char *path, struct cli_input *options, unsigned threads, int *checksums,
              struct kvc_survey **damage, struct kvc_error *e) {
    struct kvc_opened f;
    *damage = NULL;
    if (open_input(&f, path, options, e)) return EXIT_TROUBLE;
    struct checker checker = {threads, options->quiet};
    int status = check_input(&f, options, check_all, &checker, checksums, e);
    struct kvc_import_options import = options->import;
    import.weights = options->weights;
    if (status == EXIT_DIFFER) *damage = survey(&f.input, &import, threads, &status, e);
    kvc_close(&f);
    return status;
}

int cli_check_with(const char *path, struct cli_input *options, cli_checker *check, void *state,
                   int *checksums, struct kvc_error *e) {
    struct kvc_opened f;
    if (open_input(&f, path, options, e)) return EXIT_TROUBLE;
    const int status = check_input(&f, options, check, state, checksums, e);
    kvc_close(&f);
    return status;
}
