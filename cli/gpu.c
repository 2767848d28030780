/* gpu.c: finds libkvc_cuda, which is loaded at run time, and the device of --device; says what was
 * loaded. */
#include "cli/gpu.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define cli_unsupported(e, ...) kvc_error_set(e, KVC_ERR_UNSUPPORTED, KVC_NEED_NOTHING, __VA_ARGS__)

static const char soname[] = KVC_CUDA_SONAME, file_name[] = "libkvc_cuda.so." KVC_VERSION;

/* Looks up all functions of a library, which must have this version. */
static int take_functions(struct cli_cuda *c, void *library, const char *name,
                          struct kvc_error *e) {
    static const struct {
        const char *symbol;
        size_t offset;
    } functions[] = {
#define F(name) {"kvc_cuda_" #name, offsetof(struct cli_cuda, name)},
        CLI_CUDA_FUNCTIONS(F)
#undef F
    };
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *symbol = dlsym(library, functions[i].symbol);
        if (!symbol)
            return cli_unsupported(e, "%s is no libkvc_cuda: it lacks %s", name,
                                   functions[i].symbol);
        memcpy((char *)c + functions[i].offset, &symbol, sizeof symbol);
    }
    const char *version = c->version();
    if (strcmp(version, KVC_VERSION) == 0) return 0;
    return cli_unsupported(e, "%s has version %s, but this is kvc %s", name, version, KVC_VERSION);
}

static int take_library(struct cli_cuda *c, const char *name, struct kvc_error *e) {
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) return cli_unsupported(e, "%s", dlerror());
    int status = take_functions(c, library, name, e);
    if (status) dlclose(library);
    return status;
}

/* Loads the library from a folder relative to the program. Returns 1 if there is none. */
static int take_near(struct cli_cuda *c, const char *folder, struct kvc_error *e) {
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path);
    char *end = n > 0 && (size_t)n < sizeof path ? memrchr(path, '/', (size_t)n) : NULL;
    size_t left = end ? sizeof path - (size_t)(end - path) : 0;
    if (!end || (size_t)snprintf(end, left, "/%s%s", folder, file_name) >= left ||
        access(path, F_OK))
        return 1;
    return take_library(c, path, e);
}

static int find_library(struct cli_cuda *c, struct kvc_error *e) {
    const char *named = getenv("KVC_CUDA_LIBRARY");
    if (named && *named) return take_library(c, named, e);
    if (!take_library(c, soname, e)) return 0;
    struct kvc_error *near = cli_error_new();
    int status = take_near(c, "", near);
    if (status > 0) status = take_near(c, "../lib/", near);
    if (status < 0) kvc_error_copy(e, near);
    kvc_error_free(near);
    return status ? -1 : 0;
}

/* Returns the library, which stays open: $KVC_CUDA_LIBRARY, or KVC_CUDA_SONAME in the loader's
 * search path, beside the program or in ../lib from there. NULL and *e if there is none, or it has
 * another version. */
static const struct cli_cuda *get_cuda(struct kvc_error *e) {
    static struct cli_cuda cuda;
    static int tried, status;
    static char why[1024];
    if (!tried && (status = find_library(&cuda, e)) != 0)
        snprintf(why, sizeof why, "%s", kvc_error_message(e));
    if (tried && status) cli_unsupported(e, "%s", why);
    tried = 1;
    return status ? NULL : &cuda;
}

void cli_cuda_version(void) {
    struct kvc_error *e = cli_error_new(), *why = cli_error_new();
    char text[256];
    const struct cli_cuda *cuda = get_cuda(e);
    int n = cuda ? cuda->devices(e) : 0;
    printf("devices: cpu");
    for (int i = 0; i < n; i++)
        printf("; cuda:%d %s", i,
               cuda->device_text(i, text, sizeof text, why) ? kvc_error_message(why) : text);
    if (cuda)
        printf("\ncuda: %s%s%s\n", cuda->build(), n < 0 ? "; no devices: " : "",
               n < 0 ? kvc_error_message(e) : "");
    else printf("\ncuda: not available: %s\n", kvc_error_message(e));
    kvc_error_free(why);
    kvc_error_free(e);
}

int cli_device_parse(struct cli_device *d, const char *text) {
    uint64_t n = 0;
    *d = (struct cli_device){.kind = CLI_DEVICE_CUDA};
    if (strcmp(text, "cpu") == 0) d->kind = CLI_DEVICE_CPU;
    else if (strcmp(text, "auto") == 0) d->kind = CLI_DEVICE_AUTO;
    else if (strncmp(text, "cuda:", 5) == 0) {
        if (cli_parse_u64(text + 5, &n) || n > 1023) return -1;
        d->number = (int)n;
    } else if (strcmp(text, "cuda") != 0) return -1;
    return 0;
}

static int open_cuda(struct cli_device *d, struct kvc_error *e) {
    const struct cli_cuda *cuda = get_cuda(e);
    int n = cuda ? cuda->devices(e) : -1;
    if (n < 0) return -1;
    if (d->number >= n) {
        if (!n) return cli_unsupported(e, "there is no CUDA device");
        return cli_unsupported(e, "there is no such device; the last is cuda:%d", n - 1);
    }
    d->cuda = cuda;
    snprintf(d->name, sizeof d->name, "cuda:%d", d->number);
    return 0;
}

int cli_device_open(struct cli_device *d, struct kvc_error *why, struct kvc_error *e) {
    snprintf(d->name, sizeof d->name, "cpu");
    if (d->kind == CLI_DEVICE_CPU) return 0;
    if (d->kind == CLI_DEVICE_AUTO) {
        open_cuda(d, why);
        return 0;
    }
    if (!open_cuda(d, e)) return 0;
    char option[32];
    snprintf(option, sizeof option, "--device=cuda:%d", d->number);
    return kvc_error_about(e, option);
}

/* --- loading --- */

struct kvc_file *cli_load(struct cli_load *l, const struct cli_device *d, const struct kvc_file *f,
                          const struct kvc_cuda_options *options, struct kvc_error *e) {
    *l = (struct cli_load){.device = d->name, .info = {.size = sizeof l->info}};
    return d->cuda->file_open(f, options, &l->info, e);
}

static double rate(const struct cli_load *l) {
    return l->info.seconds > 0 ? (double)l->info.decoded / l->info.seconds / 1e9 : 0;
}

void cli_load_say(const struct cli_load *l, const char *name) {
    char stored[32], decoded[32], on_host[32];
    cli_size_text(l->info.stored, stored);
    cli_size_text(l->info.decoded, decoded);
    cli_size_text(l->info.on_host, on_host);
    cli_warn("%s: %s: %s -> %s, %s of it decoded by the CPU, %.3f s, %.2f GB/s", name, l->device,
             stored, decoded, on_host, l->info.seconds, rate(l));
}

void cli_load_json(const struct cli_load *l, struct cli_json *j) {
    cli_json_text(j, "device", l->device);
    cli_json_u64(j, "stored", l->info.stored);
    cli_json_u64(j, "decoded", l->info.decoded);
    cli_json_u64(j, "decoded_by_cpu", l->info.on_host);
    cli_json_f64(j, "seconds", l->info.seconds);
    cli_json_f64(j, "gb_per_s", rate(l));
}
