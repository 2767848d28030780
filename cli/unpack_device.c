/* unpack_device.c: kvc-unpack --device. Not for loading itself (gpu_load.c). */
#include "cli/unpack.h"

#include "formats/container/container.h"

#include <string.h>

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

int unpack_write_from_device(struct cli_unpack *u, const struct kvc_opened *f, struct kvc_sink *out,
                             struct kvc_error *e) {
    struct kvc_cuda_options options = load_options(u);
    struct cli_device_cache d;
    if (cli_device_cache_open(&d, &u->device, &f->input, f->cache, &options, e)) return -1;
    int status = unpack_write(u, f, &d.cache, out, e);
    keep_load(u, &d.load);
    cli_device_cache_close(&d);
    return status;
}

int unpack_check_container(void *state, const struct kvc_input *in, const struct kvc_cache *c,
                           struct kvc_error *e) {
    struct cli_unpack *u = state;
    struct kvc_cuda_options options = load_options(u);
    struct cli_device_cache d;
    int device = unpack_on_device(u, in, e);
    if (device <= 0)
        return device ? -1
                      : cli_check_container(c, in->name, u->job.threads, u->job.input.quiet, e);
    if (cli_device_cache_open(&d, &u->device, in, c, &options, e)) return -1;
    int status = cli_device_cache_check(&d, u->job.threads, e);
    keep_load(u, &d.load);
    cli_device_cache_close(&d);
    return status;
}
