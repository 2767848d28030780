/* check.c: the check of kvc-dump --check and kvc-unpack --test. Not for printing its result. */
#include "cli/cli.h"
#include "cli/progress.h"

#include <string.h>

int cli_check(const char *path, struct cli_input *in, unsigned threads, kvc_check_fn *check,
              void *state, struct kvc_check_report *report, struct kvc_error *e) {
    struct kvc_open_options o;
    struct cli_progress progress;
    struct kvc_check_options how = {.size = sizeof how,
                                    .threads = threads,
                                    .check = check,
                                    .check_state = state,
                                    .progress_state = &progress};
    const char *model = in->open.model;
    *report = (struct kvc_check_report){.size = sizeof *report};
    in->open.model = NULL; /* damaged files are of no model */
    const int failed = cli_refuse_terminal(path, e) || cli_given_open(in, &o, e);
    in->open.model = model;
    if (failed) return EXIT_TROUBLE;
    cli_progress_start(&progress, cli_name(path), in->quiet);
    if (progress.on) how.progress = cli_progress_show;
    const int status = kvc_check(path, &o, &how, report, e);
    cli_progress_end(&progress);
    return status < 0 ? EXIT_TROUBLE : status ? EXIT_DIFFER : EXIT_SAME;
}
