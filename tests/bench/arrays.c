/* arrays.c: caches in a program's memory, through kvc.h: packing from arrays and loading into
 * arrays of several layouts, against the same cache as a file in memory; and small chunks. Not for
 * the coding itself (files.c). */
#include "tests/bench/bench.h"

#include "codecs/dtype.h"
#include "formats/api/kvc.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LAYERS = 128, PAGE = 128, CHUNK = 256, LAYOUTS = 5, RECIPES = 3 };

/* A cache in one layout. */
struct laid {
    const char *name;
    struct kvc_memory m;
    struct kvc_memory_array a[2 * MOST_LAYERS];
    void *base[MOST_LAYERS];
};

struct packing {
    const struct kvc_file *f;
    const char *recipe;
};

struct loading {
    const struct kvc_file *f;
    const struct laid *to;
};

static struct kvc_error *error;

static void fail(const char *what) {
    give_up(what, kvc_error_message(error));
}

static int forget(void *state, const void *data, size_t n) {
    (void)state, (void)data, (void)n;
    return 0;
}

static void pack(struct job *job) {
    const struct packing *p = job->what;
    const struct kvc_write_options how = {.size = sizeof how,
                                          .recipe = p->recipe,
                                          .threads = 1,
                                          .no_verify = 1};
    if (kvc_file_pack(p->f, &how, forget, NULL, error)) fail(p->recipe);
}

static void load(struct job *job) {
    const struct loading *l = job->what;
    const struct kvc_load_how how = {.size = sizeof how, .threads = 1};
    if (kvc_file_load(l->f, &l->to->m, &how, error)) fail(l->to->name);
}

/* Makes memory for `tokens` tokens of a file's layers in a known layout, of pages of PAGE tokens
 * where `paged`. */
static void lay_out(struct laid *x, const char *name, int paged, const struct kvc_file *f,
                    uint64_t tokens) {
    struct kvc_tensor_info info = {.size = sizeof info}, of = info;
    uint32_t layers = 0;
    for (uint32_t t = 0; t < kvc_file_tensors(f); t++) {
        if (kvc_file_tensor(f, t, &of)) fail(name);
        /* Q has more heads */
        if (strcmp(of.role, "K") != 0 || strcmp(of.part, "live") != 0) continue;
        info = of;
        layers++;
    }
    if (!layers || layers > MOST_LAYERS) give_up(name, "no layers, or too many");
    const struct kvc_dtype_info *dtype = kvc_dtype_by_name(info.dtype);
    const struct kvc_pool pool = {.layers = layers,
                                  .pages = paged ? (tokens + PAGE - 1) / PAGE : 1,
                                  .page_size = paged ? PAGE : tokens,
                                  .heads = info.heads,
                                  .dim = info.dim,
                                  .value_bytes = dtype->size};
    const struct kvc_pool_layout *layout = kvc_pool_layout_find(name);
    struct kvc_pool_strides k, v;
    const int64_t bases = kvc_pool_layout_strides(layout, &pool, &k, &v);
    const size_t all = (size_t)(pool.pages * pool.page_size * pool.heads * pool.dim *
                                pool.value_bytes * 2);
    if (bases != 1 && bases != (int64_t)layers) give_up(name, "not a layout for this benchmark");
    *x = (struct laid){.name = name};
    for (int64_t i = 0; i < bases; i++) x->base[i] = need_memory(bases == 1 ? all * layers : all);
    if (kvc_pool_arrays(layout, &pool, dtype->name, x->base, (uint64_t)bases, x->a, sizeof x->a[0],
                        2 * (size_t)layers, error))
        fail(name);
    x->m = (struct kvc_memory){.size = sizeof x->m,
                               .array_size = sizeof x->a[0],
                               .arrays = x->a,
                               .n_arrays = 2 * (size_t)layers,
                               .tokens = tokens,
                               .page_size = paged ? PAGE : 0};
    const struct kvc_load_how how = {.size = sizeof how};
    if (kvc_file_load(f, &x->m, &how, error)) fail(name);
}

static void laid_free(struct laid *x) {
    for (size_t i = 0; i < MOST_LAYERS; i++) free(x->base[i]);
}

static uint64_t bytes_of(const struct laid *x) {
    const struct kvc_memory_array *a = x->a;
    return x->m.n_arrays * x->m.tokens * a->heads * a->dim * kvc_dtype_by_name(a->dtype)->size;
}

static const struct {
    const char *name, *layout;
    int paged;
} layouts[LAYOUTS] = {{"[token][head][channel]", "dense", 0},
                      {"pages, side by side", "vllm-unified", 1},
                      {"pages, heads first", "vllm-flashinfer-hnd", 1},
                      {"pages, K transposed", "vllm-cpu", 1},
                      {"K transposed", "vllm-cpu", 0}};

static void whole(const struct kvc_file *file, uint64_t tokens) {
    static const char *const recipes[RECIPES] = {"store", "fast", "split"};
    static struct laid laid[LAYOUTS];
    struct kvc_file *f[LAYOUTS];
    for (size_t i = 0; i < LAYOUTS; i++) {
        lay_out(&laid[i], layouts[i].layout, layouts[i].paged, file, tokens);
        if (!(f[i] = kvc_file_open_arrays(&laid[i].m, error))) fail("arrays");
    }
    const uint64_t bytes = bytes_of(&laid[0]);
    for (size_t r = 0; r < RECIPES; r++) {
        struct packing packing[LAYOUTS + 1];
        struct loading loading[LAYOUTS];
        struct line lines[LAYOUTS + 1];
        const struct kvc_write_options how = {.size = sizeof how, .recipe = recipes[r]};
        void *data;
        size_t size;
        if (kvc_file_pack_memory(file, &how, &data, &size, error)) fail(recipes[r]);
        struct kvc_file *packed = kvc_file_open_memory(data, size, NULL, error);
        if (!packed) fail(recipes[r]);
        memset(lines, 0, sizeof lines);
        for (size_t i = 0; i <= LAYOUTS; i++) {
            packing[i] = (struct packing){i ? f[i - 1] : file, recipes[r]};
            lines[i] = (struct line){.bytes = (size_t)bytes,
                                     .job = {{.run = pack, .what = &packing[i]}}};
            if (!i) continue;
            loading[i - 1] = (struct loading){packed, &laid[i - 1]};
            lines[i].job[1] = (struct job){.run = load, .what = &loading[i - 1]};
        }
        race(lines, LAYOUTS + 1);
        printf("  %-24s%8.3f  the file, packed without verification\n", recipes[r],
               rate(&lines[0], 0));
        for (size_t i = 0; i < LAYOUTS; i++)
            printf("    %-22s%8.3f (%.2f of the file) packed, %.3f loaded\n", layouts[i].name,
                   rate(&lines[i + 1], 0), rate(&lines[i + 1], 0) / rate(&lines[0], 0),
                   rate(&lines[i + 1], 1));
        fflush(stdout);
        kvc_file_close(packed);
        free(data);
    }
    for (size_t i = 0; i < LAYOUTS; i++) {
        kvc_file_close(f[i]);
        laid_free(&laid[i]);
    }
}

/* A chunk of CHUNK tokens against its share of all tokens, in which the container costs next to
 * nothing. */
static void chunk(const struct kvc_file *file, uint64_t tokens) {
    static struct laid small, large;
    lay_out(&small, "vllm-unified", 1, file, CHUNK);
    lay_out(&large, "vllm-unified", 1, file, tokens);
    struct kvc_file *f = kvc_file_open_arrays(&small.m, error),
                    *g = kvc_file_open_arrays(&large.m, error);
    if (!f || !g) fail("arrays");
    for (const char *const *recipe = (const char *const[]){"store", "fast", "split", NULL}; *recipe;
         recipe++) {
        struct packing packing[2] = {{f, *recipe}, {g, *recipe}};
        struct line lines[2];
        void *data;
        size_t size;
        const struct kvc_write_options how = {.size = sizeof how, .recipe = "store"};
        if (kvc_file_pack_memory(f, &how, &data, &size, error)) fail("a chunk");
        free(data);
        memset(lines, 0, sizeof lines);
        for (size_t i = 0; i < 2; i++)
            lines[i] = (struct line){.bytes = (size_t)bytes_of(i ? &large : &small),
                                     .job = {{.run = pack, .what = &packing[i]}}};
        race(lines, 2);
        const double alone = rate(&lines[1], 0), own = rate(&lines[0], 0);
        printf("  %d tokens, %-13s%8.3f, %.2f times the time of as many of %u; %zu bytes that are "
               "not values\n",
               CHUNK, *recipe, own, alone / own, (unsigned)tokens, size - (size_t)bytes_of(&small));
    }
    kvc_file_close(f);
    kvc_file_close(g);
    laid_free(&small);
    laid_free(&large);
}

void bench_arrays(const char *path) {
    struct kvc_tensor_info info = {.size = sizeof info};
    error = kvc_error_new();
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) give_up(path, "cannot be read");
    const long size = ftell(file);
    void *data = need_memory((size_t)size);
    rewind(file);
    if (fread(data, 1, (size_t)size, file) != (size_t)size) give_up(path, "cannot be read");
    fclose(file);
    struct kvc_file *f = kvc_file_open_memory(data, (size_t)size, NULL, error);
    if (!f || kvc_file_tensor(f, 0, &info)) fail(path);
    const uint64_t tokens = quick && info.rows > CHUNK ? CHUNK : info.rows;
    printf("\n%s, %u tokens: GB/s on one core, packed from memory and loaded into it\n", path,
           (unsigned)tokens);
    if (kvc_dtype_by_name(info.dtype)->block > 1) printf("  block types have no pools\n");
    else if (tokens >= CHUNK) {
        whole(f, tokens);
        chunk(f, tokens);
    } else printf("  too few tokens\n");
    kvc_file_close(f);
    free(data);
    kvc_error_free(error);
}
