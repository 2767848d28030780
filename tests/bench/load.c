/* load.c: what the CPU does of a load onto a GPU: reading from the page cache, hashes, programs,
 * queues; with a device that computes nothing. Not for the GPU's part (tests/cuda). */
#include "tests/bench/bench.h"
#include "tests/recipe_text.h"

#include "formats/cache/mapped.h"
#include "formats/container/container.h"
#include "formats/cache/format.h"
#include "formats/device/load.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 4096, LAYERS = 4, HEADS = 8, DIM = 128, WIDTH = HEADS * DIM, MOST_RECIPES = 8 };
#define BYTES (rows() * WIDTH * 2 * 2 * LAYERS)

static size_t rows(void) {
    return quick ? MOST_ROWS / 16 : MOST_ROWS;
}

struct loaded {
    struct kvc_input in;
    struct kvc_cache *cache;
    struct kvc_device *device;
    struct kvc_load *load;
    struct kvc_buffer buffer;
};

static int compute_nothing(struct kvc_device *d, void *stream,
                           const struct kvc_device_launch *launch, unsigned limit,
                           struct kvc_error *e) {
    (void)d, (void)stream, (void)launch, (void)limit, (void)e;
    return 0;
}

/* A GPU's own copies cost the CPU nothing. */
static int copy_nothing(struct kvc_device *d, void *stream, void *to, const void *from, size_t n,
                        struct kvc_error *e) {
    (void)d, (void)stream, (void)to, (void)from, (void)n, (void)e;
    return 0;
}

static struct kvc_cache *make(uint8_t *values) {
    struct kvc_error e;
    struct kvc_cache *c = kvc_cache_new(&e);
    const struct kvc_shape shape = {.dtype = KVC_BF16,
                                    .tokens = rows(),
                                    .heads = HEADS,
                                    .dim = DIM};
    if (!c || kvc_cache_add_part(c, KVC_PART_LIVE, rows(), &e) == KVC_NONE)
        give_up("a cache", e.message);
    uint64_t state = 1;
    float row[WIDTH];
    for (size_t t = 0; t < rows() * 2 * LAYERS; t++) {
        for (size_t i = 0; i < WIDTH; i++) {
            float sum = -3;
            for (unsigned k = 0; k < 6; k++) {
                state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
                sum += (float)(state >> 40) * 0x1p-24f;
            }
            row[i] = sum * expf(-0.02f * (float)(i % DIM));
        }
        kvc_kernels_get()->f32_to_bf16(values + t * WIDTH * 2, row, WIDTH);
    }
    for (uint32_t l = 0; l < LAYERS; l++)
        if (kvc_cache_add_layer(c, 0, l, KVC_LAYER_FULL, &e) == KVC_NONE ||
            kvc_cache_add_tensor(c, l, KVC_ROLE_K, &shape, &e) == KVC_NONE ||
            kvc_cache_add_tensor(c, l, KVC_ROLE_V, &shape, &e) == KVC_NONE)
            give_up("a cache", e.message);
    if (kvc_cache_finish(c, &e) || kvc_cache_map(c, NULL, NULL, &e)) give_up("a cache", e.message);
    for (uint32_t t = 0; t < 2 * LAYERS; t++)
        if (kvc_cache_map_memory(c, t, values + (size_t)t * rows() * WIDTH * 2, &e))
            give_up("a cache", e.message);
    return c;
}

static void open_packed(struct loaded *l, const struct kvc_cache *c, const char *recipe,
                        const struct kvc_load_options *options) {
    struct kvc_error e;
    const struct kvc_pack_options pack = {.recipe = recipe_of(recipe), .no_verify = 1};
    struct kvc_sink sink = kvc_sink_buffer(&l->buffer);
    struct kvc_device_target target[2 * LAYERS];
    if (kvc_container_write(c, &pack, &sink, NULL, &e)) give_up(recipe, e.message);
    kvc_input_memory(&l->in, "a pack", l->buffer.data, l->buffer.n);
    if (!(l->cache = kvc_format_import(&kvc_format_kvc, &l->in, NULL, &e)) ||
        !(l->device = kvc_device_host(&e)))
        give_up(recipe, e.message);
    for (uint32_t t = 0; t < 2 * LAYERS; t++) /* nothing is written there */
        target[t] = (struct kvc_device_target){.base = 4096,
                                               .pages = rows(),
                                               .page = WIDTH * 2,
                                               .token = WIDTH * 2,
                                               .head = DIM * 2,
                                               .dim = 2,
                                               .page_size = 1,
                                               .dtype = KVC_BF16,
                                               .from = KVC_BF16,
                                               .heads = HEADS,
                                               .channels = DIM};
    if (!(l->load = kvc_load_new(l->device, l->cache, &l->in, options, target, &e)))
        give_up(recipe, e.message);
    l->device->run = compute_nothing;
    l->device->copy_in = copy_nothing;
}

static void run(struct job *job) {
    struct loaded *l = job->what;
    struct kvc_error e;
    if (kvc_load_run(l->load, NULL, &e)) give_up("a load", e.message);
}

static void copy(struct job *job) {
    uint8_t *const values = job->what;
    memcpy(values + BYTES, values, BYTES);
}

void bench_load(void) {
    static const char *const recipes[] = {"store",
                                          "fast",
                                          "split",
                                          "kivi4",
                                          "gear4",
                                          "minicache",
                                          "derope@k,center,basis,steps,code:step=0.5"};
    enum { N = sizeof recipes / sizeof recipes[0] };
    const struct kvc_load_options options = {.threads = 1};
    struct loaded loaded[N];
    struct line lines[N + 1];
    uint8_t *values = need_memory(2 * BYTES);
    memset(loaded, 0, sizeof loaded);
    memset(lines, 0, sizeof lines);
    struct kvc_cache *c = make(values);
    memset(values + BYTES, 0, BYTES);
    lines[0] = (struct line){.name = "memcpy",
                             .bytes = BYTES,
                             .job = {{.run = copy, .what = values}}};
    for (size_t i = 0; i < N; i++) {
        open_packed(&loaded[i], c, recipes[i], &options);
        lines[i + 1] = (struct line){.bytes = BYTES, .job = {{.run = run, .what = &loaded[i]}}};
    }
    race(lines, N + 1);
    printf("\nThe CPU's part of loading %.0f MB onto a GPU, one thread: decoded GB/s (to memcpy of "
           "them), stored GB/s, ratio.\n",
           (double)BYTES / 1e6);
    printf("    %-44s%9.3f\n", "memcpy", rate(&lines[0], 0));
    for (size_t i = 0; i < N; i++) {
        const double decoded = rate(&lines[i + 1], 0),
                     ratio = (double)BYTES / (double)loaded[i].buffer.n;
        printf("    %-44s%9.3f (%.3f)%9.3f%9.2f\n", recipes[i], decoded,
               decoded / rate(&lines[0], 0), decoded / ratio, ratio);
        kvc_load_free(loaded[i].load);
        kvc_cache_free(loaded[i].cache);
        kvc_input_close(&loaded[i].in);
        loaded[i].device->close(loaded[i].device);
        free(loaded[i].buffer.data);
    }
    kvc_cache_free(c);
    free(values);
}
