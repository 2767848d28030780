/* fuzz_device.c: .kvc files from any bytes onto a device, which is the host here: programs, queue
 * and decoder of a GPU. The first byte says how the file is mended (mend.h) and how it is loaded.
 * What the device loads the CPU reads as well, and the same bytes; what the CPU reads the device
 * loads; with verify that holds of files whose digests fit, and no others are loaded. Not for
 * engines' layouts. */
#include "tests/fuzz/mend.h"

#include "formats/container/device_blocks.h"
#include "formats/device/load.h"
#include "kernels/device/warp.h"

#include <sanitizer/asan_interface.h>

/* Above the number of the mode, in the first byte. PART: some rows only. SPLIT: rows that came as
 * one head turn out to be two. FEW: a block at a time. */
enum { BACKWARDS = 4, PART = 8, SPLIT = 16, FEW = 32 };

struct loaded {
    struct kvc_cache *cache;
    const struct kvc_input *in;
    struct kvc_device *device;
    struct kvc_device_target *target;
    uint8_t **rows; /* by tensor, in memory that is exactly as large */
};

/* Dense rows of each tensor in its own dtype; block types as bytes. */
static void aim(struct loaded *l, const struct kvc_load_options *options) {
    for (uint32_t t = 0; t < l->cache->n_tensors; t++) {
        const struct kvc_shape *s = &l->cache->tensor[t].shape;
        const struct kvc_dtype_info *info = kvc_dtype_info(s->dtype);
        struct kvc_device_target *g = &l->target[t];
        uint64_t first, n;
        kvc_load_rows(l->cache, t, options, &first, &n);
        *g = (struct kvc_device_target){.page_size = 1,
                                        .pages = n,
                                        .heads = 1,
                                        .channels = (uint32_t)kvc_row_bytes(s)};
        g->from = g->dtype = KVC_DEVICE_U8;
        g->dim = 1;
        if (info->block == 1) {
            g->from = g->dtype = (uint32_t)s->dtype;
            g->heads = (uint32_t)s->heads;
            g->channels = (uint32_t)s->dim;
            g->dim = info->size;
        }
        g->head = g->channels * g->dim;
        g->token = g->page = g->heads * g->head;
        free(l->rows[t]);
        l->rows[t] = fuzz_alloc((size_t)(n * (uint64_t)g->token));
        g->base = (uint64_t)(uintptr_t)l->rows[t];
    }
}

/* A device whose memory for stored bytes, the first that is asked for, is dark to the address
 * sanitizer but where bytes were copied to: so nothing reads beyond a block. */
static unsigned n_allocs;
static int (*alloc_memory)(struct kvc_device *d, size_t n, void **p, struct kvc_error *e);
static int (*copy_memory)(struct kvc_device *d, void *stream, void *to, const void *from, size_t n,
                          struct kvc_error *e);

static int alloc_dark(struct kvc_device *d, size_t n, void **p, struct kvc_error *e) {
    const int status = alloc_memory(d, n, p, e);
    if (!status && !n_allocs++) ASAN_POISON_MEMORY_REGION(*p, n);
    return status;
}

static int copy_lit(struct kvc_device *d, void *stream, void *to, const void *from, size_t n,
                    struct kvc_error *e) {
    ASAN_UNPOISON_MEMORY_REGION(to, n);
    return copy_memory(d, stream, to, from, n, e);
}

static struct kvc_device *dark_device(struct kvc_error *e) {
    struct kvc_device *d = kvc_device_host(e);
    if (!d) fuzz_die("no device", e);
    alloc_memory = d->alloc;
    copy_memory = d->copy_in;
    d->alloc = alloc_dark;
    d->copy_in = copy_lit;
    return d;
}

static int load(struct loaded *l, const struct kvc_load_options *options, struct kvc_error *e) {
    n_allocs = 0;
    struct kvc_load *load = kvc_load_new(l->device, l->cache, l->in, options, l->target, e);
    int status = load ? kvc_load_run(load, NULL, e) : -1;
    if (!status) status = kvc_load_finish(load, e);
    if (status && !*e->message) fuzz_die("not loaded without a word", NULL);
    kvc_load_free(load);
    return status;
}

/* Two values that differ in their bits may be NaN both: whose payload an operation keeps is the
 * machine's business. */
static int both_nan(const uint8_t *a, const uint8_t *b, uint32_t dtype) {
    const uint32_t exponent = dtype == KVC_F32 ? 0x7f800000u : dtype == KVC_F16 ? 0x7c00u : 0x7f80u;
    const uint32_t sign = dtype == KVC_F32 ? 0x80000000u : 0x8000u;
    const uint32_t x = dtype == KVC_F32 ? get_u32(a) : get_u16(a),
                   y = dtype == KVC_F32 ? get_u32(b) : get_u16(b);
    return dtype <= KVC_BF16 && (x & ~sign) > exponent && (y & ~sign) > exponent;
}

/* Dies of other values; 1 when the bits are the same ones. */
static int are_equal(const uint8_t *rows, const uint8_t *want, size_t size, uint32_t dtype) {
    const size_t each = dtype == KVC_F32 ? 4 : dtype == KVC_F16 || dtype == KVC_BF16 ? 2 : 1;
    if (!size || !memcmp(rows, want, size)) return 1;
    for (size_t i = 0; i < size; i += each)
        if (memcmp(rows + i, want + i, each) != 0 && !both_nan(rows + i, want + i, dtype))
            fuzz_die("a device decodes other values than the CPU", NULL);
    return 0;
}

/* Reads rows [first, first + n) of a tensor, compares them where the device has them; -1 when they
 * cannot be read. *same becomes 0 where bits differ. */
static int compare(const struct loaded *l, uint32_t t, uint64_t first, uint64_t n, int loaded,
                   int *same, struct kvc_error *e) {
    const size_t size = (size_t)(n * kvc_row_bytes(&l->cache->tensor[t].shape));
    uint8_t *want = fuzz_alloc(size);
    const int status = n ? l->cache->read(l->cache, t, first, n, want, e) : 0;
    if (!status && loaded && !are_equal(l->rows[t], want, size, l->target[t].from)) *same = 0;
    free(want);
    return status;
}

/* Dies where a device loads what the CPU does not. The CPU reads all blocks that a segment's side
 * data name; a device those that its blocks take values from, and RAW rows take none. */
static void die_of_more(const struct kvc_error *e) {
    if (!strstr(e->message, "stands on a block that cannot be read"))
        fuzz_die("a device loads what the CPU does not", e);
}

/* Every tensor alone, so that one that is refused does not hide the others. */
static void load_each(struct loaded *l, const struct kvc_load_options *options) {
    for (uint32_t t = 0; t < l->cache->n_tensors; t++) {
        struct kvc_error e = {.message = ""};
        int same;
        const uint64_t n = kvc_tensor_part(l->cache, t)->cells.n;
        aim(l, options);
        for (uint32_t other = 0; other < l->cache->n_tensors; other++)
            if (other != t) l->target[other].base = 0;
        const int loaded = !load(l, options, &e), read = !compare(l, t, 0, n, loaded, &same, &e);
        if (read && !loaded) fuzz_die("the CPU reads what a device does not", &e);
        if (loaded && !read) die_of_more(&e);
    }
}

/* Whether all blocks decode to their digests, where they have some. */
static int digests_fit(const struct loaded *l) {
    const struct kvc_cache *c = l->cache;
    struct kvc_record_info r;
    struct kvc_error e;
    uint64_t digest;
    int fit = 1;
    for (uint64_t i = 0; i < kvc_container_records(c) && fit; i++) {
        if (kvc_container_record(c, i, &r, NULL, 0, &e) || r.type != KVC_RECORD_BLOCK) continue;
        const uint64_t first = kvc_tensor_part(c, r.tensor)->cells.block[r.block];
        const uint64_t row = kvc_row_bytes(&c->tensor[r.tensor].shape);
        uint8_t *rows = fuzz_alloc((size_t)(r.rows * row));
        fit = !c->read(c, r.tensor, first, r.rows, rows, &e) &&
              (!kvc_container_block_digest(l->in->data + r.offset, &digest) ||
               kvc_digest_rows(rows, row, first, r.rows) == digest);
        free(rows);
    }
    return fit;
}

static void load_all(struct loaded *l, unsigned how) {
    struct kvc_load_options options = {.threads = 1, .slots = 2, .slot_bytes = how & FEW ? 1 : 0};
    struct kvc_error e = {.message = ""}, why = {.message = ""};
    int read = 1, same = 1;
    kvc_lanes_backwards = (how & BACKWARDS) != 0;
    if (how & PART) options.first = 1 + (how >> 6), options.end = 9 + (how >> 6) * 100;
    aim(l, &options);
    const int loaded = !load(l, &options, &why);
    for (uint32_t t = 0; t < l->cache->n_tensors && read; t++) {
        uint64_t first, n;
        kvc_load_rows(l->cache, t, &options, &first, &n);
        read = !compare(l, t, first, n, loaded, &same, &e);
    }
    if (read && !loaded) fuzz_die("the CPU reads what a device does not", &why);
    /* a device looks at the rows that are asked for, the CPU at whole blocks */
    if (how & PART) return;
    if (loaded && !read) die_of_more(&e);
    if (!read) load_each(l, &options);
    options.verify = 1;
    aim(l, &options);
    const int verified = !load(l, &options, &why);
    if (same && verified != (read && digests_fit(l)))
        fuzz_die(verified ? "a device verifies what the CPU does not"
                          : "the CPU verifies what a device does not",
                 &why);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct kvc_input in;
    struct kvc_error e;
    if (!size) return 0;
    struct file f = mend(data + 1, size - 1, (data[0] & 3) % MODES);
    kvc_input_memory(&in, "input", f.data, f.size);
    struct kvc_cache *c = kvc_container_open(&in, &e);
    if (c) kvc_container_set_profile(c, NULL); /* one that is inside */
    if (c && fuzz_is_small(c) && (!(data[0] & SPLIT) || !kvc_cache_set_heads(c, 2, &e))) {
        struct loaded l = {.cache = c, .in = &in, .device = dark_device(&e)};
        l.target = calloc(c->n_tensors + 1, sizeof *l.target);
        l.rows = calloc(c->n_tensors + 1, sizeof *l.rows);
        if (!l.target || !l.rows) fuzz_die("out of memory", NULL);
        load_all(&l, data[0]);
        for (uint32_t t = 0; t < c->n_tensors; t++) free(l.rows[t]);
        free(l.rows);
        free(l.target);
        l.device->close(l.device);
    }
    kvc_cache_free(c);
    kvc_input_close(&in);
    free(f.data);
    return 0;
}
