/* unpack_device.c: kvc-unpack --device. Not for finding the device (gpu.c), nor for loading itself
 * (kvc_cuda.h). */
#include "cli/unpack.h"

#include <string.h>

int unpack_open_device(struct cli_unpack *u) {
    struct kvc_error *why = cli_error_new(), *e = cli_error_new();
    const int status = cli_device_open(&u->device, why, e) ? EXIT_TROUBLE : 0;
    if (status) cli_error(e);
    else if (u->device.kind == CLI_DEVICE_AUTO && u->job.verbose) {
        if (u->device.cuda) cli_warn("--device=auto: %s", u->device.name);
        else cli_warn("--device=auto: cpu: %s", kvc_error_message(why));
    }
    kvc_error_free(why);
    kvc_error_free(e);
    return status;
}

/* Returns 1 if the device decodes this input, 0 if the CPU does, -1 if the input is refused.
 * --device=auto takes the CPU for an input that the device cannot decode. */
static int on_device(const struct cli_unpack *u, const struct kvc_file *f, struct kvc_error *e) {
    if (!u->device.cuda) return 0;
    if (!u->device.cuda->file_takes(f, e)) return 1;
    if (u->device.kind != CLI_DEVICE_AUTO) return -1;
    if (u->job.verbose)
        cli_warn("%s: decoded on the CPU: %s", job_source(f).name, kvc_error_message(e));
    return 0;
}

static struct kvc_file *load(struct cli_unpack *u, const struct kvc_file *f, struct kvc_error *e) {
    const struct kvc_open_options *o = &u->job.input.open;
    const struct kvc_cuda_options how = {.size = sizeof how,
                                         .device = u->device.number,
                                         .threads = u->job.threads,
                                         .verify = u->job.test || !o->no_verify,
                                         .profile = o->profile,
                                         .model = o->model,
                                         .profile_folders = o->profile_folders};
    struct kvc_file *loaded = cli_load(&u->load, &u->device, f, &how, e);
    u->loaded = loaded != NULL;
    return loaded;
}

int unpack_write_from_device(struct cli_unpack *u, const struct kvc_file *f,
                             const struct unpack_place *place, struct kvc_error *e) {
    const int device = on_device(u, f, e);
    if (device <= 0) return device ? -1 : unpack_write(u, f, place, e);
    struct kvc_file *loaded = load(u, f, e);
    if (!loaded) return -1;
    const int status = unpack_write(u, loaded, place, e);
    kvc_file_close(loaded);
    return status;
}

int unpack_check_container(void *state, const struct kvc_file *f, struct kvc_error *e) {
    struct cli_unpack *u = state;
    const int device = on_device(u, f, e);
    if (device <= 0) return device ? -1 : kvc_file_check(f, u->job.threads, e);
    struct kvc_file *loaded = load(u, f, e);
    if (!loaded) return -1;
    const int status = kvc_file_check(loaded, u->job.threads, e);
    kvc_file_close(loaded);
    return status;
}
