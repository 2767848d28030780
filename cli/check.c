/* check.c: the check that kvc-dump --check and kvc-unpack --test share. Not for printing its result. */
#include "cli/cli.h"

#include "formats/container.h"

#include <string.h>

static int named_kvc(const char *path) {
    size_t n = strlen(path), suffix = strlen(kvc_format_kvc.suffix);
    return n >= suffix && strcmp(path + n - suffix, kvc_format_kvc.suffix) == 0;
}

/* 1 when the input is a .kvc, or is said to be one by its name or by --from: then being unreadable is damage. */
static int claims_kvc(const struct kvc_input *in, const struct cli_input *options) {
    char why[256];
    if (options->import.format) return strcmp(options->import.format, kvc_format_kvc.name) == 0;
    return kvc_format_kvc.probe(in, why, sizeof why) || named_kvc(in->name);
}

static int check_all(void *threads, const struct kvc_input *in, const struct kvc_cache *c, struct kvc_error *e) {
    (void)in;
    return kvc_container_check(c, *(const unsigned *)threads, e);
}

int cli_check(const char *path, struct cli_input *options, unsigned threads, int *checksums, struct kvc_error *e) {
    return cli_check_with(path, options, check_all, &threads, checksums, e);
}

int cli_check_with(const char *path, struct cli_input *options, cli_checker *check, void *state, int *checksums,
                   struct kvc_error *e) {
    struct kvc_input in;
    kvc_input_sniff *sniff = named_kvc(path) ? NULL : kvc_format_sniff;
    if (cli_check_kernels(e) || cli_refuse_terminal(path, e) || cli_open_weights(options, e) ||
        kvc_input_open_sniffed(&in, path, sniff, &options->import, e)) return EXIT_TROUBLE;
    int status = EXIT_SAME;
    *checksums = claims_kvc(&in, options);
    if (*checksums) {
        struct kvc_import_options import = options->import;
        import.weights = options->weights;
        struct kvc_cache *c = kvc_format_kvc.import(&in, &import, e);
        if (!c || check(state, &in, c, e)) {
            status = e->code == KVC_ERR_DAMAGED || e->code == KVC_ERR_UNKNOWN ? EXIT_DIFFER : EXIT_TROUBLE;
        }
        kvc_cache_free(c);
    } else {
        struct kvc_cache *c = kvc_import(&in, &options->import, NULL, e);
        if (!c) status = EXIT_TROUBLE;
        kvc_cache_free(c);
    }
    kvc_input_close(&in);
    return status;
}
