/* pack_device.c: packs K and V that lie in the memory of a device: finds where the rows of each
 * tensor lie, and lets the device encode them. */
#include "formats/api/pack_device.h"

#include "codecs/memory.h"
#include "formats/api/kvc_file.h"
#include "formats/api/pack_by.h"
#include "formats/api/sized.h"
#include "formats/cache/mapped.h"
#include "formats/device/encoder.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 8 }; /* each with a stream and memory of its own on the device */

struct packing {
    struct kvc_device *device;
    struct kvc_memory memory;
    struct kvc_file *file;
    struct kvc_device_target *source; /* by tensor */
    struct kvc_device_encoder *encoder;
    void *table; /* of pages, on the device */
};

/* Returns the tensor of an array, or KVC_NONE. */
static uint32_t tensor_of(const struct kvc_cache *c, const struct kvc_memory_array *a,
                          uint64_t tokens) {
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (kvc_tensor_layer(c, t)->index == a->layer &&
            strcmp(kvc_role_name(c->tensor[t].role), a->role) == 0 &&
            c->tensor[t].shape.tokens == tokens)
            return t;
    return KVC_NONE;
}

/* Adds n - 1 times a stride. Returns -1 if that is too much. */
static int reach(uint64_t *to, uint64_t n, int64_t stride) {
    uint64_t more;
    if (__builtin_mul_overflow(n - 1, (uint64_t)stride, &more)) return -1;
    if (__builtin_add_overflow(*to, more, to)) return -1;
    return 0;
}

/* Checks that the device has the bytes from the first to the last value. */
static int check_memory(const struct packing *p, const struct kvc_memory_array *a,
                        const struct kvc_device_target *g, struct kvc_error *e) {
    const struct kvc_memory *m = &p->memory;
    const uint64_t size = kvc_dtype_info((enum kvc_dtype)g->dtype)->size;
    uint64_t bytes = size, pages = 1, slots = g->pages;
    if (m->page_size) {
        slots = m->page_size;
        pages = m->table ? 1 : (m->first_slot + m->tokens - 1) / m->page_size + 1;
        for (uint64_t i = 0; m->table && i < m->n_table; i++)
            pages = m->table[i] < pages ? pages : (uint64_t)m->table[i] + 1;
    }
    if (reach(&bytes, pages, a->page) || reach(&bytes, slots ? slots : 1, a->token) ||
        reach(&bytes, a->heads, a->head) || reach(&bytes, a->dim, a->channel) || bytes > SIZE_MAX)
        return kvc_fail(e, KVC_ERR_USAGE, "its strides are too long");
    const int64_t strides = (m->page_size ? a->page : 0) | a->token | a->head | a->channel;
    if (((uint64_t)(uintptr_t)a->data | (uint64_t)strides) % size)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "its address or a stride is no multiple of the %" PRIu64
                        " bytes of its values",
                        size);
    return p->device->owns(p->device, a->data, (size_t)bytes, e);
}

/* Describes where the rows of a tensor lie. */
static int aim(struct packing *p, const struct kvc_memory_array *a, struct kvc_error *e) {
    const struct kvc_memory *m = &p->memory;
    const struct kvc_cache *c = p->file->cache;
    const uint64_t tokens = a->tokens ? a->tokens : m->tokens;
    const uint32_t t = tensor_of(c, a, tokens);
    if (t == KVC_NONE)
        return kvc_fail(e, KVC_ERR_USAGE, "layer %" PRIu32 " %s is no tensor of the cache",
                        a->layer, a->role);
    const struct kvc_tensor *tensor = &c->tensor[t];
    const struct kvc_dtype_info *info = kvc_dtype_info(tensor->shape.dtype);
    struct kvc_device_target *g = &p->source[t];
    if (g->base)
        return kvc_fail(e, KVC_ERR_USAGE, "layer %" PRIu32 " %s is given twice", a->layer, a->role);
    if (tensor->role > KVC_ROLE_LATENT)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s are packed in memory of the host only",
                        a->role);
    if (info->block > 1 || tensor->shape.dtype > KVC_I8)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "values of %s are packed in memory of the host only", info->name);
    if (a->dim > UINT32_MAX || a->heads > UINT32_MAX || m->page_size > UINT32_MAX)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "heads, channels or tokens of a page are more than a device counts");
    *g = (struct kvc_device_target){.base = (uint64_t)(uintptr_t)a->data,
                                    .pages = tokens,
                                    .page = a->token,
                                    .head = a->head,
                                    .dim = a->channel,
                                    .page_size = 1,
                                    .dtype = (uint32_t)tensor->shape.dtype,
                                    .from = (uint32_t)tensor->shape.dtype,
                                    .heads = (uint32_t)a->heads,
                                    .channels = (uint32_t)a->dim};
    if (tokens && check_memory(p, a, g, e)) return -1;
    if (!m->page_size) return 0;
    const uint64_t skipped = m->first_slot / m->page_size; /* pages before the first token's */
    g->page_size = (uint32_t)m->page_size;
    g->first = (uint32_t)(m->first_slot % m->page_size);
    g->page = a->page;
    g->token = a->token;
    g->pages = (m->table ? m->n_table : UINT32_MAX) - skipped;
    if (m->table) g->table = (uint64_t)(uintptr_t)p->table + skipped * sizeof(uint32_t);
    else g->base += skipped * (uint64_t)a->page;
    return 0;
}

static int copy_table(struct packing *p, struct kvc_error *e) {
    const struct kvc_memory *m = &p->memory;
    const size_t bytes = (size_t)m->n_table * sizeof *m->table;
    if (!m->page_size || !m->table || !m->n_table) return 0;
    if (p->device->alloc(p->device, bytes, &p->table, e)) return -1;
    if (kvc_device_write(p->device, p->table, m->table, bytes, e)) return -1;
    return 0;
}

static int find_rows(struct packing *p, struct kvc_error *e) {
    const struct kvc_memory *m = &p->memory;
    const struct kvc_cache *c = p->file->cache;
    for (uint32_t i = 0; i < c->n_parts; i++)
        if (c->part[i].cells.order)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "positions of tokens in a device's memory must ascend");
    if (!(p->source = kvc_alloc_zeros(c->n_tensors, sizeof *p->source)))
        return kvc_fail_memory(e, "arrays");
    if (copy_table(p, e)) return -1;
    for (size_t i = 0; i < m->n_arrays; i++) {
        struct kvc_memory_array a = {0};
        char label[64];
        memcpy(&a, (const uint8_t *)m->arrays + i * m->array_size,
               m->array_size < sizeof a ? m->array_size : sizeof a);
        snprintf(label, sizeof label, "array %zu", i);
        if (aim(p, &a, e)) return kvc_error_prefix(e, label);
    }
    return 0;
}

static int pack_device_pack(struct packing *p, const struct kvc_pack_device_how *how,
                            const struct kvc_write_options *options, kvc_write_fn *write,
                            void *state, struct kvc_error *e) {
    const struct kvc_device_encoder_options encoding = {.multiprocessors = how->multiprocessors,
                                                        .stream = how->stream};
    struct kvc_write_options o;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_write_options", e)) return -1;
    o.size = sizeof o;
    o.threads = o.threads ? o.threads : THREADS;
    if (!(p->encoder = kvc_device_encoder_new(p->device, p->source, &encoding, e)) ||
        kvc_cache_map_reader(p->file->opened.cache, kvc_device_encoder_read, p->encoder, e))
        return -1;
    return kvc_file_pack_by(p->file, &o, kvc_device_encoder_coder(p->encoder), write, state, e);
}

int kvc_pack_device(struct kvc_device *d, const struct kvc_memory *m,
                    const struct kvc_pack_device_how *how, const struct kvc_write_options *options,
                    kvc_write_fn *write, void *state, struct kvc_pack_device_result *result,
                    struct kvc_error *e) {
    struct packing p = {.device = d};
    if (m && kvc_sized_take(&p.memory, sizeof p.memory, m, "kvc_memory", e)) return -1;
    if (!(p.file = kvc_file_open_arrays(m, e))) return -1;
    int status = find_rows(&p, e);
    if (!status) status = pack_device_pack(&p, how, options, write, state, e);
    if (!status && result)
        *result = (struct kvc_pack_device_result){.bytes = p.file->bytes,
                                                  .raw = kvc_device_encoder_raw(p.encoder)};
    kvc_device_encoder_free(p.encoder);
    kvc_file_close(p.file);
    d->free(d, p.table);
    free(p.source);
    return status;
}
