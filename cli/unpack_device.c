/* unpack_device.c: kvc-unpack --device, --to=ipc and --into. Not for loading itself (gpu_load.c). */
#include "cli/unpack.h"

#include "formats/container/container.h"

#include <string.h>

int unpack_check_sharing(const struct cli_unpack *u) {
    const char *option = u->to_ipc ? "--to=ipc" : "--into";
    const struct cli_job *j = &u->job;
    const int n = j->files.n;
    if (!u->to_ipc && !u->into) return 0;
    if (u->to_ipc && u->into) return cli_usage("--to=ipc and --into exclude each other");
    if (u->device.kind != CLI_DEVICE_CUDA) return cli_usage("%s needs --device=cuda", option);
    if (u->to || j->output || j->output_dir || j->to_stdout || j->test || j->remove || u->export.pairing || u->settings.n)
        return cli_usage("%s writes no file: leave out --to, -o, -c, -t, --rm, --to-pairing and options of formats", option);
    if (n > 1) return cli_usage("%s takes one input, not %d", option, n);
    const int from_stdin = !n || strcmp(j->files.path[0], "-") == 0;
    if (u->to_ipc && from_stdin) return cli_usage("--to=ipc needs a FILE: the end of standard input releases the device memory");
    if (u->to_ipc && j->json) return cli_usage("--to=ipc and --json exclude each other: --to=ipc prints its own JSON");
    if (u->into && from_stdin && strcmp(u->into, "-") == 0) return cli_usage("standard input can be read only once");
    return 0;
}

int unpack_open_device(struct cli_unpack *u) {
    struct kvc_error why, e;
    if (cli_device_open(&u->device, &why, &e)) {
        cli_error(&e);
        return EXIT_TROUBLE;
    }
    if (u->device.kind != CLI_DEVICE_AUTO || !u->job.verbose) return 0;
    if (u->device.cuda) cli_warn("--device=auto: %s", u->device.name);
    else cli_warn("--device=auto: cpu: %s", why.message);
    return 0;
}

int unpack_on_device(const struct cli_unpack *u, const struct kvc_input *in, struct kvc_error *e) {
    struct kvc_error why;
    if (!u->device.cuda) return 0;
    if (!cli_device_refuses(in, &why)) return 1;
    if (u->device.kind == CLI_DEVICE_AUTO) {
        if (u->job.verbose) cli_warn("%s: decoded on the CPU: %s", in->name, why.message);
        return 0;
    }
    *e = why;
    return -1;
}

static struct kvc_cuda_options load_options(const struct cli_unpack *u) {
    return (struct kvc_cuda_options){.size = sizeof(struct kvc_cuda_options),
                                     .device = u->device.number,
                                     .threads = u->job.threads,
                                     .verify = u->job.test || !u->job.input.import.no_verify,
                                     .profile = u->job.input.import.profile,
                                     .model = u->job.input.model_path,
                                     .profile_folders = u->job.input.import.profile_folders};
}

static void keep_load(struct cli_unpack *u, const struct cli_load *l) {
    u->loaded = 1;
    u->load = *l;
    u->load.plan = NULL;
}

int unpack_write_from_device(struct cli_unpack *u, const struct kvc_opened *f, struct kvc_sink *out, struct kvc_error *e) {
    struct kvc_cuda_options options = load_options(u);
    struct cli_device_cache d;
    if (cli_device_cache_open(&d, &u->device, &f->input, f->cache, &options, e)) return -1;
    int status = unpack_write(u, f, &d.cache, out, e);
    keep_load(u, &d.load);
    cli_device_cache_close(&d);
    return status;
}

int unpack_check_container(void *state, const struct kvc_input *in, const struct kvc_cache *c, struct kvc_error *e) {
    struct cli_unpack *u = state;
    struct kvc_cuda_options options = load_options(u);
    struct cli_device_cache d;
    int device = unpack_on_device(u, in, e);
    if (device <= 0) return device ? -1 : cli_check_container(c, in->name, u->job.threads, u->job.input.quiet, e);
    if (cli_device_cache_open(&d, &u->device, in, c, &options, e)) return -1;
    int status = cli_device_cache_check(&d, u->job.threads, e);
    keep_load(u, &d.load);
    cli_device_cache_close(&d);
    return status;
}

int unpack_share(struct cli_unpack *u, const char *path, struct kvc_error *e) {
    struct kvc_cuda_options options = load_options(u);
    const uint64_t last = INT64_MAX;
    struct cli_load l;
    if (u->part.selection.end) {
        options.first = (int64_t)(u->part.selection.first < last ? u->part.selection.first : last);
        options.end = (int64_t)(u->part.selection.end < last ? u->part.selection.end : last);
    }
    options.layers = u->part.selection.layers;
    options.n_layers = u->part.selection.n_layers;
    int status = u->into ? cli_device_into(&l, &u->device, path, u->into, &options, e)
                         : cli_load(&l, &u->device, path, &options, NULL, e);
    if (status) return -1;
    if (u->job.verbose) cli_load_say(&l, path);
    if (u->job.json) {
        cli_report_file(&u->job.report, path);
        cli_load_json(&l, &u->job.report.json);
        cli_report_file_end(&u->job.report);
    }
    if (u->to_ipc) status = cli_device_lend(&l, path, e);
    cli_load_free(&l);
    return status;
}
