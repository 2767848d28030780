/* kvc_cuda.c: libkvc_cuda's public interface (kvc_cuda.h): files, destinations and devices brought
 * together for a load. Not for loading itself (formats/device/load.h) or for CUDA (cuda_device.c).
 */
#include "formats/api/kvc_cuda.h"

#include "formats/container/container.h"
#include "formats/device/cuda/devices.h"
#include "formats/api/kvc_file.h"
#include "formats/api/kvc.h"
#include "formats/api/pack_device.h"
#include "formats/api/sized.h"
#include "formats/cache/scales.h"
#include "formats/device/load.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* CUDA's name for the default stream of whatever thread calls. */
#define PER_THREAD ((void *)(uintptr_t)2)

struct kvc_cuda_plan {
    struct kvc_device *device;
    struct kvc_file *file;
    struct kvc_load *load;
    struct kvc_device_target *target; /* by tensor of the file */
    uint32_t *tensor, n_tensors;      /* those that are loaded */
    void **own;                       /* by tensor: memory of the plan's own */
    void *table;                      /* on the device */
    int finished;                     /* what was loaded may be read back */
    uint64_t own_bytes;
    struct kvc_load_options options;
    int direct_fd; /* -1: none */
};

const char *kvc_cuda_version(void) {
    return KVC_VERSION;
}

const char *kvc_cuda_build(void) {
    return kvc_device_build;
}

int kvc_cuda_devices(struct kvc_error *e) {
    return kvc_cuda_count(e);
}

int kvc_cuda_device_text(int device, char *text, size_t size, struct kvc_error *e) {
    if (KVC_NULL(e, text)) return -1;
    struct kvc_device *d = kvc_device_cuda(device, e);
    if (!d) return -1;
    snprintf(text, size, "%s", d->name);
    d->close(d);
    return 0;
}

/* --- which tensors --- */

/* K, V and latents of the live cache, in the layers that are asked for. */
static int is_wanted(const struct kvc_cache *c, uint32_t t, const struct kvc_cuda_options *o) {
    const struct kvc_layer *l = kvc_tensor_layer(c, t);
    return c->tensor[t].role <= KVC_ROLE_LATENT && kvc_part_is_attended(&c->part[l->part]) &&
           (!o->layers || (l->index < o->n_layers && o->layers[l->index]));
}

/* What all targets of a tensor have in common. Block types are moved as bytes. */
static void cuda_describe(struct kvc_device_target *g, const struct kvc_shape *s) {
    const struct kvc_dtype_info *info = kvc_dtype_info(s->dtype);
    const int plain = info->block == 1;
    *g = (struct kvc_device_target){.page_size = 1};
    g->from = g->dtype = plain ? (uint32_t)s->dtype : KVC_DEVICE_U8;
    g->heads = plain || s->dim % info->block == 0 ? (uint32_t)s->heads : 1;
    g->channels = plain ? (uint32_t)s->dim : (uint32_t)(kvc_row_bytes(s) / g->heads);
}

static int64_t value_bytes(uint32_t dtype) {
    return kvc_dtype_info((enum kvc_dtype)dtype)->size;
}

static int own_memory(struct kvc_cuda_plan *p, uint32_t t, struct kvc_error *e) {
    struct kvc_device_target *g = &p->target[t];
    uint64_t first, n;
    kvc_load_rows(p->file->cache, t, &p->options, &first, &n);
    cuda_describe(g, &p->file->cache->tensor[t].shape);
    g->dim = value_bytes(g->dtype);
    g->head = (int64_t)g->channels * g->dim;
    g->token = g->page = (int64_t)g->heads * g->head;
    g->pages = n;
    const uint64_t bytes = n * (uint64_t)g->token;
    if (p->device->alloc(p->device, (size_t)(bytes ? bytes : 1), &p->own[t], e)) return -1;
    p->own_bytes += bytes;
    g->base = (uint64_t)(uintptr_t)p->own[t];
    return 0;
}

/* --- an engine's memory --- */

static int dtype_of(const char *name, uint32_t *dtype) {
    for (uint32_t i = KVC_DEVICE_F32; i <= KVC_DEVICE_F8E5M2; i++)
        if (strcmp(kvc_dtype_info((enum kvc_dtype)i)->name, name) == 0) {
            *dtype = i;
            return 0;
        }
    return -1;
}

/* What a destination means, with strides and number of bases settled. */
struct settled {
    const struct kvc_cuda_destination *d;
    struct kvc_pool_strides strides;
    uint64_t pages; /* that tokens have, in their order */
};

static int cuda_settle(struct settled *s, const struct kvc_cuda_destination *d,
                       struct kvc_error *e) {
    const struct kvc_pool *pool = &d->pool;
    if (pool->reserved[0] || pool->reserved[1] || d->strides.reserved[0] || d->strides.reserved[1])
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "a reserved field of the destination is not 0");
    const struct kvc_pool_layout *layout = d->layout ? kvc_pool_layout_find(d->layout) : NULL;
    *s = (struct settled){.d = d,
                          .strides = d->strides,
                          .pages = d->table ? d->n_table : pool->pages};
    if (d->layout && !layout)
        return kvc_fail(e, KVC_ERR_USAGE, "there is no layout '%s'", d->layout);
    if (!d->bases || !d->n_bases) return kvc_fail(e, KVC_ERR_USAGE, "the destination has no bases");
    if (!pool->layers || !pool->pages || !pool->page_size || !pool->heads || !pool->dim ||
        pool->page_size > UINT32_MAX)
        return kvc_fail(e, KVC_ERR_USAGE, "the destination's pool lacks a size");
    if (layout) {
        struct kvc_pool_strides of_v;
        if (layout->k_axes)
            return kvc_fail(e, KVC_ERR_USAGE,
                            "layout %s transposes K, as engines do in memory of CPUs only",
                            layout->name);
        const int64_t bases = kvc_pool_layout_strides(layout, pool, &s->strides, &of_v);
        if (bases < 0)
            return kvc_fail(e, KVC_ERR_USAGE, "layout %s does not take a pool of these sizes",
                            layout->name);
        if ((uint64_t)bases != d->n_bases)
            return kvc_fail(e, KVC_ERR_USAGE, "layout %s has %" PRId64 " bases, not %" PRIu64,
                            layout->name, bases, d->n_bases);
    } else if (d->n_bases != 1 && d->n_bases != pool->layers && d->n_bases != 2 * pool->layers) {
        return kvc_fail(e, KVC_ERR_USAGE,
                        "bases are 1, as many as layers or twice as many, not %" PRIu64,
                        d->n_bases);
    }
    const struct kvc_pool_strides *x = &s->strides;
    if (x->layer < 0 || x->kv < 0 || x->page < (s->pages > 1) || x->token < (pool->page_size > 1) ||
        x->head < (pool->heads > 1) || x->dim <= 0)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "strides are not below 0, and above 0 where there are several values");
    for (uint64_t i = 0; i < s->pages && d->table; i++)
        if (d->table[i] >= pool->pages)
            return kvc_fail(e, KVC_ERR_USAGE, "page %" PRIu32 " is none of %" PRIu64, d->table[i],
                            pool->pages);
    return 0;
}

/* n - 1 times a stride, added; -1 when that is too much. */
static int reach(uint64_t *to, uint64_t n, int64_t stride) {
    uint64_t more;
    if (__builtin_mul_overflow(n - 1, (uint64_t)stride, &more)) return -1;
    if (__builtin_add_overflow(*to, more, to)) return -1;
    return 0;
}

/* Refuses to convert values of 8 bits that have a scale. */
static int check_scale(const struct kvc_cache *c, uint32_t t, struct kvc_error *e) {
    char label[64];
    if (kvc_scales_need(c, t, e)) return -1;
    if (kvc_scales_plain(c, t)) return 0;
    kvc_tensor_label(c, t, label, sizeof label);
    return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                    "%s is %s with a scale, by which only the CPU multiplies: load it as it is",
                    label, kvc_dtype_info(c->tensor[t].shape.dtype)->name);
}

static int aim(struct kvc_cuda_plan *p, const struct settled *s, uint32_t t, struct kvc_error *e) {
    const struct kvc_cache *c = p->file->cache;
    const struct kvc_cuda_destination *d = s->d;
    const struct kvc_pool_strides *x = &s->strides;
    const uint32_t index = kvc_tensor_layer(c, t)->index, layer = index - d->first_layer,
                   kv = c->tensor[t].role == KVC_ROLE_V;
    struct kvc_device_target *g = &p->target[t];
    uint64_t first, n, extent = 0;
    char label[64];
    kvc_tensor_label(c, t, label, sizeof label);
    kvc_load_rows(c, t, &p->options, &first, &n);
    cuda_describe(g, &c->tensor[t].shape);
    if (index < d->first_layer || layer >= d->pool.layers)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%s: its layer is not among the %" PRIu64 " layers of the destination",
                        label, d->pool.layers);
    if (kvc_dtype_info(c->tensor[t].shape.dtype)->block > 1)
        return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_FLOATS,
                             "%s is %s, which is no layout's", label,
                             kvc_dtype_info(c->tensor[t].shape.dtype)->name);
    if (d->pool.heads != g->heads || d->pool.dim != g->channels)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%s has %" PRIu32 " heads of %" PRIu32 " channels, the pool %" PRIu64
                        " of %" PRIu64,
                        label, g->heads, g->channels, d->pool.heads, d->pool.dim);
    if (d->dtype && dtype_of(d->dtype, &g->dtype))
        return kvc_fail(e, KVC_ERR_USAGE, "dtype '%s' is none of f32, f16, bf16, f8e4m3, f8e5m2",
                        d->dtype);
    if (g->dtype != g->from && check_scale(c, t, e)) return -1;
    if (x->dim < value_bytes(g->dtype))
        return kvc_fail(e, KVC_ERR_USAGE, "values of %s do not fit their stride", label);
    if (d->first / d->pool.page_size >= s->pages || n > s->pages * d->pool.page_size - d->first)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%" PRIu64 " tokens do not fit %" PRIu64 " pages of %" PRIu64
                        " from slot %" PRIu64,
                        n, s->pages, d->pool.page_size, d->first);
    const uint64_t base = d->n_bases == 1                ? 0
                          : d->n_bases == d->pool.layers ? layer
                                                         : 2 * (uint64_t)layer + kv;
    g->base = d->bases[base];
    if (d->n_bases == 1) g->base += (uint64_t)x->layer * layer;
    if (d->n_bases != 2 * d->pool.layers || d->n_bases == d->pool.layers)
        g->base += (uint64_t)x->kv * kv;
    const uint64_t skipped = d->first / d->pool.page_size; /* pages before the first token's */
    g->first = (uint32_t)(d->first % d->pool.page_size);
    g->pages = s->pages - skipped;
    if (p->table) g->table = (uint64_t)(uintptr_t)p->table + skipped * sizeof(uint32_t);
    else g->base += skipped * (uint64_t)x->page;
    g->page_size = (uint32_t)d->pool.page_size;
    g->page = x->page;
    g->token = x->token;
    g->head = x->head;
    g->dim = x->dim;
    if ((g->base | (uint64_t)(x->page | x->token | x->head | x->dim)) %
        (uint64_t)value_bytes(g->dtype))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%s: an address or a stride is no multiple of its values' %" PRId64
                        " bytes",
                        label, value_bytes(g->dtype));
    for (uint32_t i = 0; i < p->n_tensors; i++)
        if (p->target[p->tensor[i]].base == g->base)
            return kvc_fail(
                e, KVC_ERR_USAGE,
                "%s would lie where another sequence's or window's layer does: select layers",
                label);
    /* without a table, pages before the first token's are neither written nor counted */
    if (reach(&extent, p->table ? d->pool.pages : g->pages, x->page) ||
        reach(&extent, d->pool.page_size, x->token) || reach(&extent, g->heads, x->head) ||
        reach(&extent, g->channels, x->dim) || extent > INT64_MAX)
        return kvc_fail(e, KVC_ERR_USAGE, "the pool's sizes overflow");
    const uint64_t bytes = extent + (uint64_t)value_bytes(g->dtype);
    if (p->device->owns(p->device, (const void *)(uintptr_t)g->base, (size_t)bytes, e))
        return kvc_error_prefix(e, label);
    return 0;
}

static int copy_table(struct kvc_cuda_plan *p, const struct kvc_cuda_destination *d,
                      struct kvc_error *e) {
    const size_t bytes = (size_t)d->n_table * sizeof *d->table;
    if (!d->table || !d->n_table) return 0;
    if (p->device->alloc(p->device, bytes, &p->table, e)) return -1;
    if (kvc_device_write(p->device, p->table, d->table, bytes, e)) return -1;
    return 0;
}

/* --- plans --- */

/* Reads the positions that are asked for. */
static int take_positions(struct kvc_cuda_plan *p, const struct kvc_cuda_options *o,
                          struct kvc_error *e) {
    if (!o->first && !o->end) return 0;
    const uint64_t end = o->end && o->end < INT64_MAX ? o->end : INT64_MAX;
    if (o->first >= end) return kvc_fail(e, KVC_ERR_USAGE, "the range of positions is empty");
    p->options.first = (int64_t)o->first;
    p->options.end = (int64_t)end;
    return 0;
}

static int cuda_open_file(struct kvc_cuda_plan *p, const char *path,
                          const struct kvc_cuda_options *o, struct kvc_error *e) {
    const struct kvc_open_options open_options = {.size = sizeof open_options,
                                                  .format = "kvc",
                                                  .model = o->model,
                                                  .profile = o->profile,
                                                  .weights = o->weights,
                                                  .profile_folders = o->profile_folders};
    if (!(p->file = kvc_file_open(path, &open_options, e))) return -1;
    p->options = (struct kvc_load_options){.threads = o->threads,
                                           .slots = o->slots,
                                           .slot_bytes = o->slot_bytes,
                                           .multiprocessors = o->multiprocessors,
                                           .verify = o->verify};
    if (take_positions(p, o, e)) return -1;
    if (o->direct && strcmp(path, "-") != 0 && !*p->file->opened.input.filter) {
        p->direct_fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
        p->options.direct = p->direct_fd >= 0; /* else the mapped file serves */
        p->options.direct_fd = p->direct_fd;
    }
    return 0;
}

static int make_plan(struct kvc_cuda_plan *p, const char *path, const struct kvc_cuda_options *o,
                     const struct kvc_cuda_destination *d, struct kvc_error *e) {
    struct settled s;
    if (cuda_open_file(p, path, o, e)) return -1;
    const struct kvc_cache *c = p->file->cache;
    if (d && cuda_settle(&s, d, e)) return -1;
    if (!(p->device = kvc_device_cuda(o->device, e))) return -1;
    p->target = calloc(c->n_tensors + 1, sizeof *p->target);
    p->tensor = calloc(c->n_tensors + 1, sizeof *p->tensor);
    p->own = calloc(c->n_tensors + 1, sizeof *p->own);
    if (!p->target || !p->tensor || !p->own) return kvc_fail_memory(e, "a plan");
    if (d && copy_table(p, d, e)) return -1;
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        if (!is_wanted(c, t, o)) continue;
        if (d ? aim(p, &s, t, e) : own_memory(p, t, e)) return -1;
        p->tensor[p->n_tensors++] = t;
    }
    if (!p->n_tensors && o->layers) return kvc_fail(e, KVC_ERR_USAGE, "no layer is left to load");
    uint64_t rows = 0;
    for (uint32_t i = 0; i < p->n_tensors; i++) {
        uint64_t first, n;
        kvc_load_rows(c, p->tensor[i], &p->options, &first, &n);
        rows += n;
    }
    if (!rows && (o->first || o->end))
        return kvc_fail(e, KVC_ERR_USAGE, "no token stands at the positions that are asked for");
    return (p->load = kvc_load_new(p->device, c, &p->file->opened.input, &p->options, p->target, e))
               ? 0
               : -1;
}

struct kvc_cuda_plan *kvc_cuda_plan_new(const char *path, const struct kvc_cuda_options *options,
                                        const struct kvc_cuda_destination *destination,
                                        struct kvc_error *e) {
    if (KVC_NULL(e, path)) return NULL;
    struct kvc_cuda_options o;
    struct kvc_cuda_destination d;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_cuda_options", e) ||
        kvc_sized_take(&d, sizeof d, destination, "kvc_cuda_destination", e))
        return NULL;
    struct kvc_cuda_plan *p = calloc(1, sizeof *p);
    if (!p) {
        kvc_fail_memory(e, "a plan");
        return NULL;
    }
    p->direct_fd = -1;
    if (!make_plan(p, path, &o, destination ? &d : NULL, e)) return p;
    kvc_cuda_plan_free(p);
    return NULL;
}

void kvc_cuda_plan_free(struct kvc_cuda_plan *p) {
    if (!p) return;
    kvc_load_free(p->load);
    for (uint32_t i = 0; i < p->n_tensors; i++) p->device->free(p->device, p->own[p->tensor[i]]);
    if (p->device) {
        p->device->free(p->device, p->table);
        p->device->close(p->device);
    }
    if (p->direct_fd >= 0) close(p->direct_fd);
    kvc_file_close(p->file);
    free(p->target);
    free(p->tensor);
    free(p->own);
    free(p);
}

int kvc_cuda_plan_describe(const struct kvc_cuda_plan *p, struct kvc_cuda_plan_info *info) {
    struct kvc_load_info l;
    kvc_load_describe(p->load, &l);
    const struct kvc_cuda_plan_info own = {.stored = l.stored,
                                           .decoded = l.decoded,
                                           .on_host = l.on_host,
                                           .device_bytes = l.device_bytes,
                                           .tensors = p->n_tensors};
    return kvc_sized_give(info, &own, sizeof own, "kvc_cuda_plan_info", NULL);
}

int kvc_cuda_plan_tensor(const struct kvc_cuda_plan *p, uint32_t i,
                         struct kvc_cuda_tensor *tensor) {
    if (i >= p->n_tensors) return -1;
    const uint32_t t = p->tensor[i];
    const struct kvc_cache *c = p->file->cache;
    const struct kvc_shape *s = &c->tensor[t].shape;
    const struct kvc_device_target *g = &p->target[t];
    const struct kvc_cells *cells = kvc_tensor_cells(c, t);
    uint64_t first, n;
    kvc_load_rows(c, t, &p->options, &first, &n);
    const struct kvc_cuda_tensor own = {
        .tensor = t,
        .layer = kvc_tensor_layer(c, t)->index,
        .role = kvc_role_name(c->tensor[t].role),
        .dtype = g->dtype == g->from ? kvc_dtype_info(s->dtype)->name
                                     : kvc_dtype_info((enum kvc_dtype)g->dtype)->name,
        .address = g->base,
        .tokens = n,
        .heads = s->heads,
        .dim = s->dim,
        .token = g->token,
        .head = g->head,
        .position = n ? kvc_cells_position(cells, first) : 0};
    return kvc_sized_give(tensor, &own, sizeof own, "kvc_cuda_tensor", NULL);
}

int kvc_cuda_load(struct kvc_cuda_plan *p, void *stream, struct kvc_error *e) {
    if (KVC_NULL(e, p)) return -1;
    p->finished = 0;
    if (stream == PER_THREAD)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "cudaStreamPerThread is another stream in each of the loader's threads: "
                        "give one of your own");
    return kvc_load_run(p->load, stream, e) ? kvc_error_prefix(e, p->file->opened.input.name) : 0;
}

int kvc_cuda_finish(struct kvc_cuda_plan *p, struct kvc_error *e) {
    if (KVC_NULL(e, p)) return -1;
    p->finished = !kvc_load_finish(p->load, e);
    return p->finished ? 0 : kvc_error_prefix(e, p->file->opened.input.name);
}

void kvc_cuda_cancel(struct kvc_cuda_plan *p) {
    if (p) kvc_load_cancel(p->load);
}

int kvc_cuda_read(struct kvc_cuda_plan *p, uint32_t i, uint64_t first, uint64_t n, void *dst,
                  size_t size, struct kvc_error *e) {
    if (KVC_NULL(e, p)) return -1;
    if (n && KVC_NULL(e, dst)) return -1;
    const uint32_t t = i < p->n_tensors ? p->tensor[i] : 0;
    const struct kvc_device_target *g = &p->target[t];
    if (!p->finished) return kvc_fail(e, KVC_ERR_USAGE, "nothing was loaded");
    if (i >= p->n_tensors || !p->own[t] || first > g->pages || n > g->pages - first)
        return kvc_fail(e, KVC_ERR_USAGE, "these rows are not in memory of the plan's own");
    if (KVC_SHORT(e, dst, size, n, (uint64_t)g->token)) return -1;
    return kvc_device_read(p->device, dst, (const uint8_t *)p->own[t] + first * (uint64_t)g->token,
                           (size_t)(n * (uint64_t)g->token), e);
}

/* --- packing --- */

int kvc_cuda_pack(const struct kvc_memory *m, const struct kvc_cuda_pack_options *cuda,
                  const struct kvc_write_options *options, kvc_write_fn *write, void *state,
                  struct kvc_cuda_packed *packed, struct kvc_error *e) {
    if (KVC_NULL(e, m)) return -1;
    if (kvc_sized_check(packed, "kvc_cuda_packed", e)) return -1;
    struct kvc_cuda_pack_options o;
    struct kvc_pack_device_result result;
    if (kvc_sized_take(&o, sizeof o, cuda, "kvc_cuda_pack_options", e)) return -1;
    if (o.stream == PER_THREAD)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "cudaStreamPerThread is another stream in each of the packer's threads: "
                        "give one of your own");
    const struct kvc_pack_device_how how = {.multiprocessors = o.multiprocessors,
                                            .stream = o.stream};
    struct kvc_device *d = kvc_device_cuda(o.device, e);
    if (!d) return -1;
    const int status = kvc_pack_device(d, m, &how, options, write, state, &result, e);
    d->close(d);
    if (status || !packed) return status;
    const struct kvc_cuda_packed own = {.bytes = result.bytes, .raw = result.raw};
    return kvc_sized_give(packed, &own, sizeof own, "kvc_cuda_packed", e);
}

/* --- other processes --- */

_Static_assert(KVC_CUDA_HANDLE == KVC_IPC_HANDLE, "handles are of one size");

int kvc_cuda_export(struct kvc_cuda_plan *p, uint32_t i, uint8_t handle[KVC_CUDA_HANDLE],
                    uint64_t *offset, struct kvc_error *e) {
    if (KVC_NULL(e, p, handle, offset)) return -1;
    if (i >= p->n_tensors) return kvc_fail(e, KVC_ERR_USAGE, "the plan has no tensor %" PRIu32, i);
    return p->device->ipc_export(p->device, (void *)(uintptr_t)p->target[p->tensor[i]].base, handle,
                                 offset, e);
}

int kvc_cuda_open_handle(int device, const uint8_t handle[KVC_CUDA_HANDLE], uint64_t *address,
                         struct kvc_error *e) {
    if (KVC_NULL(e, handle, address)) return -1;
    struct kvc_device *d = kvc_device_cuda(device, e);
    void *base = NULL;
    if (!d) return -1;
    const int status = d->ipc_open(d, handle, &base, e);
    *address = (uint64_t)(uintptr_t)base;
    d->close(d);
    return status;
}

int kvc_cuda_close_handle(int device, uint64_t address, struct kvc_error *e) {
    struct kvc_device *d = kvc_device_cuda(device, e);
    if (!d) return -1;
    d->ipc_close(d, (void *)(uintptr_t)address);
    d->close(d);
    return 0;
}
