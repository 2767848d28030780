/* kvc_cuda_file.c: a handle of a .kvc whose rows are read back from a device (kvc_cuda.h). Not for
 * plans (kvc_cuda.c). */
#include "formats/api/kvc_cuda.h"

#include "codecs/memory.h"
#include "formats/api/kvc_file.h"
#include "formats/api/sized.h"
#include "formats/container/container.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What such a handle owns. */
struct loaded {
    struct kvc_cache cache;     /* for readers; its fields belong to the container */
    const struct kvc_cache *of; /* the container */
    struct kvc_cuda_plan *plan;
    struct kvc_cuda_plan_info info;
    pthread_mutex_t lock; /* a plan is used by one thread at a time */
    uint32_t *number;     /* number of each tensor in the plan; KVC_NONE: the CPU decodes it */
};

int kvc_cuda_file_takes(const struct kvc_file *f, struct kvc_error *e) {
    if (KVC_NULL(e, f)) return -1;
    const struct kvc_input *in = &f->opened.input;
    char why[256];
    if (!f->is_part && !f->n_joined && kvc_cache_is_container(f->cache)) {
        if (in->path && !in->spooled) return 0;
        return kvc_fail(
            e, KVC_ERR_UNSUPPORTED,
            "pipes and compressed files are not decoded on a device: name the .kvc itself");
    }
    if (!in->data || kvc_format_probe(&kvc_format_kvc, in, why, sizeof why))
        snprintf(why, sizeof why, "this is a part of one, or several");
    return kvc_fail(e, KVC_ERR_UNSUPPORTED, "only .kvc files are decoded on a device: %s", why);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int read_rows(const struct kvc_cache *c, uint32_t t, uint64_t first, uint64_t n,
                     uint8_t *dst, struct kvc_error *e) {
    struct loaded *l = c->impl;
    if (l->number[t] == KVC_NONE) return l->of->read(l->of, t, first, n, dst, e);
    pthread_mutex_lock(&l->lock);
    int status = kvc_cuda_read(l->plan, l->number[t], first, n, dst,
                               n * kvc_row_bytes(&c->tensor[t].shape), e);
    pthread_mutex_unlock(&l->lock);
    return status;
}

static int read_literal(const struct kvc_cache *c, uint64_t offset, uint64_t n, uint8_t *dst,
                        struct kvc_error *e) {
    const struct kvc_cache *of = ((const struct loaded *)c->impl)->of;
    return of->read_literal(of, offset, n, dst, e);
}

/* Finds the number of each tensor of the container in the plan. The CPU decodes what is not loaded.
 */
static int number_tensors(struct loaded *l, struct kvc_error *e) {
    const struct kvc_cache *c = l->of;
    struct kvc_cuda_tensor t = {.size = sizeof t};
    if (!(l->number = kvc_alloc(c->n_tensors, sizeof *l->number)))
        return kvc_fail_memory(e, "tensors");
    for (uint32_t i = 0; i < c->n_tensors; i++) l->number[i] = KVC_NONE;
    for (uint32_t i = 0; !kvc_cuda_plan_tensor(l->plan, i, &t); i++) l->number[t.tensor] = i;
    for (uint32_t i = 0; i < c->n_tensors; i++) {
        const uint64_t bytes = l->number[i] == KVC_NONE ? kvc_tensor_bytes(&c->tensor[i]) : 0;
        l->info.decoded += bytes;
        l->info.on_host += bytes;
    }
    return 0;
}

static void loaded_free(void *owned) {
    struct loaded *l = owned;
    kvc_cuda_plan_free(l->plan);
    pthread_mutex_destroy(&l->lock);
    free(l->number);
    free(l);
}

static int load(struct loaded *l, const char *path, const struct kvc_cuda_options *options,
                struct kvc_error *e) {
    if (!(l->plan = kvc_cuda_plan_new(path, options, NULL, e))) return -1;
    const double start = now();
    if (kvc_cuda_load(l->plan, NULL, e) || kvc_cuda_finish(l->plan, e)) return -1;
    const double end = now();
    l->info.size = sizeof l->info;
    kvc_cuda_plan_describe(l->plan, &l->info); /* bytes that the CPU decoded are known only now */
    l->info.seconds = end - start;
    return number_tensors(l, e);
}

/* Reads and checks what was not loaded. */
static int check_rest(const struct kvc_file *f, unsigned threads, struct kvc_error *e) {
    const struct loaded *l = f->owned;
    const struct kvc_cache *c = l->of;
    uint8_t bytes[4096];
    if (l->info.tensors < c->n_tensors) return kvc_container_check(c, threads, e);
    for (uint64_t at = 0; at < c->literal_size; at += sizeof bytes) {
        const uint64_t left = c->literal_size - at;
        if (c->read_literal(c, at, left < sizeof bytes ? left : sizeof bytes, bytes, e)) return -1;
    }
    return kvc_container_check_rest(c, e);
}

struct kvc_file *kvc_cuda_file_open(const struct kvc_file *f,
                                    const struct kvc_cuda_options *options,
                                    struct kvc_cuda_plan_info *info, struct kvc_error *e) {
    if (KVC_NULL(e, f)) return NULL;
    if (kvc_sized_check(info, "kvc_cuda_plan_info", e)) return NULL;
    struct kvc_cuda_options o;
    if (kvc_cuda_file_takes(f, e) || kvc_sized_take(&o, sizeof o, options, "kvc_cuda_options", e))
        return NULL;
    if (o.layers || o.first || o.end) {
        kvc_fail(e, KVC_ERR_USAGE, "a file whose rows come from a device is loaded whole");
        return NULL;
    }
    struct loaded *l = calloc(1, sizeof *l);
    struct kvc_file *view = l ? kvc_file_view(f, e) : NULL;
    if (!l) kvc_fail_memory(e, "a file");
    if (!view) {
        free(l);
        return NULL;
    }
    pthread_mutex_init(&l->lock, NULL);
    l->of = f->cache;
    l->cache = *f->cache;
    l->cache.read = read_rows;
    l->cache.read_literal = read_literal;
    l->cache.kind = NULL; /* the cache no longer counts as a container */
    l->cache.impl = l;
    view->cache = &l->cache;
    view->owned = l;
    view->free_owned = loaded_free;
    view->is_part = 0;
    view->rest = f->rest;
    view->check = check_rest;
    if (!load(l, f->opened.input.path, &o, e) &&
        (!info || !kvc_sized_give(info, &l->info, sizeof l->info, "kvc_cuda_plan_info", e)))
        return view;
    kvc_file_close(view);
    return NULL;
}
