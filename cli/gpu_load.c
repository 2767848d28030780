/* gpu_load.c: loads a .kvc onto a device, and reads it back as a cache. Not for finding the device
 * (gpu.c). */
#include "cli/gpu.h"

#include "codecs/memory.h"
#include "formats/container/container.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int cli_load(struct cli_load *l, const struct cli_device *device, const char *path,
             const struct kvc_cuda_options *options, const struct kvc_cuda_destination *destination,
             struct kvc_error *e) {
    const struct cli_cuda *cuda = device->cuda;
    *l = (struct cli_load){.device = device, .plan = cuda->plan_new(path, options, destination, e)};
    const char *name = strcmp(path, "-") == 0 ? "(stdin)" : path;
    if (!l->plan) return cli_error_about(e, name);
    double start = now();
    if (cuda->load(l->plan, NULL, e) || cuda->finish(l->plan, e)) {
        cli_load_free(l);
        return cli_error_about(e, name);
    }
    l->seconds = now() - start;
    l->info.size = sizeof l->info;
    cuda->plan_describe(l->plan, &l->info); /* the bytes that the CPU decoded are known only now */
    return 0;
}

void cli_load_free(struct cli_load *l) {
    if (l->plan) l->device->cuda->plan_free(l->plan);
    l->plan = NULL;
}

static double rate(const struct cli_load *l) {
    return l->seconds > 0 ? (double)l->info.decoded / l->seconds / 1e9 : 0;
}

void cli_load_say(const struct cli_load *l, const char *name) {
    char stored[32], decoded[32], on_host[32];
    cli_size_text(l->info.stored, stored);
    cli_size_text(l->info.decoded, decoded);
    cli_size_text(l->info.on_host, on_host);
    cli_warn("%s: %s: %s -> %s, %s of it decoded by the CPU, %.3f s, %.2f GB/s", name,
             l->device->name, stored, decoded, on_host, l->seconds, rate(l));
}

void cli_load_json(const struct cli_load *l, struct cli_json *j) {
    cli_json_text(j, "device", l->device->name);
    cli_json_u64(j, "stored", l->info.stored);
    cli_json_u64(j, "decoded", l->info.decoded);
    cli_json_u64(j, "decoded_by_cpu", l->info.on_host);
    cli_json_f64(j, "seconds", l->seconds);
    cli_json_f64(j, "gb_per_s", rate(l));
}

int cli_device_refuses(const struct kvc_input *in, struct kvc_error *e) {
    char why[256];
    if (!kvc_format_probe(&kvc_format_kvc, in, why, sizeof why))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "only .kvc files are decoded on a device: %s", why);
    if (!in->path || in->spooled)
        return kvc_fail(
            e, KVC_ERR_UNSUPPORTED,
            "pipes and compressed files are not decoded on a device: name the .kvc itself");
    return 0;
}

/* --- a cache of loaded rows --- */

static int read_rows(const struct kvc_cache *c, uint32_t t, uint64_t first, uint64_t n,
                     uint8_t *dst, struct kvc_error *e) {
    struct cli_device_cache *d = c->impl;
    if (d->number[t] == KVC_NONE) return d->of->read(d->of, t, first, n, dst, e);
    pthread_mutex_lock(&d->lock);
    int status = d->load.device->cuda->read(d->load.plan, d->number[t], first, n, dst, e);
    pthread_mutex_unlock(&d->lock);
    return status;
}

static int read_literal(const struct kvc_cache *c, uint64_t offset, uint64_t n, uint8_t *dst,
                        struct kvc_error *e) {
    const struct kvc_cache *of = ((const struct cli_device_cache *)c->impl)->of;
    return of->read_literal(of, offset, n, dst, e);
}

/* Finds the number of each tensor of the container in the plan. */
static int number_tensors(struct cli_device_cache *d, struct kvc_error *e) {
    const struct kvc_cache *c = d->of;
    struct kvc_cuda_tensor loaded = {.size = sizeof loaded};
    for (uint32_t i = 0; i < c->n_tensors; i++) d->number[i] = KVC_NONE;
    for (uint32_t i = 0; i < d->load.info.tensors; i++) {
        if (d->load.device->cuda->plan_tensor(d->load.plan, i, &loaded) ||
            loaded.tensor >= c->n_tensors || loaded.tokens != c->tensor[loaded.tensor].shape.tokens)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "libkvc_cuda's tensor %u is none of the file's",
                            i);
        d->number[loaded.tensor] = i;
    }
    return 0;
}

/* Reads rows. The CPU decodes tensors that the plan does not load. */
static void count_rest(struct cli_device_cache *d) {
    for (uint32_t t = 0; t < d->of->n_tensors; t++)
        if (d->number[t] == KVC_NONE) {
            uint64_t bytes = kvc_tensor_bytes(&d->of->tensor[t]);
            d->load.info.decoded += bytes;
            d->load.info.on_host += bytes;
        }
}

int cli_device_cache_open(struct cli_device_cache *d, const struct cli_device *device,
                          const struct kvc_input *in, const struct kvc_cache *of,
                          const struct kvc_cuda_options *options, struct kvc_error *e) {
    memset(d, 0, sizeof *d);
    d->of = of;
    d->number = kvc_alloc(of->n_tensors, sizeof *d->number);
    if (!d->number) return kvc_fail_memory(e, "tensors");
    if (cli_load(&d->load, device, in->path, options, NULL, e) || number_tensors(d, e)) {
        cli_load_free(&d->load);
        free(d->number);
        return -1;
    }
    count_rest(d);
    pthread_mutex_init(&d->lock, NULL);
    d->cache = *of;
    d->cache.read = read_rows;
    d->cache.read_literal = read_literal;
    d->cache.kind = NULL; /* the cache no longer counts as a container */
    d->cache.impl = d;
    return 0;
}

void cli_device_cache_close(struct cli_device_cache *d) {
    cli_load_free(&d->load);
    pthread_mutex_destroy(&d->lock);
    free(d->number);
}

static int read_literals(const struct kvc_cache *c, struct kvc_error *e) {
    uint8_t bytes[4096];
    int status = 0;
    for (uint64_t at = 0; !status && at < c->literal_size; at += sizeof bytes) {
        uint64_t left = c->literal_size - at;
        status = c->read_literal(c, at, left < sizeof bytes ? left : sizeof bytes, bytes, e);
    }
    return status;
}

int cli_device_cache_check(const struct cli_device_cache *d, unsigned threads,
                           struct kvc_error *e) {
    uint32_t loaded = d->load.info.tensors;
    if (loaded < d->of->n_tensors) return kvc_container_check(d->of, threads, e);
    return read_literals(d->of, e) ? -1 : kvc_container_check_rest(d->of, e);
}
