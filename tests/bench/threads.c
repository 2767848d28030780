/* threads.c: packing whole files by one thread and by two: how much faster two are, and which part of the work one thread does alone.
 * Not for rates beside memcpy (files.c, lossy.c). */
#include "tests/bench/bench.h"
#include "tests/recipe_text.h"

#include "codecs/presets.h"
#include "formats/container/container.h"
#include "formats/cache/format.h"
#include "formats/container/plan.h"
#include "formats/file/rate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 32, ONE = 0, TWO = 1 };

struct packing {
    const struct kvc_cache *cache;
    const char *name;
    struct kvc_recipe settled; /* the recipe with the step of the transform codec */
    struct kvc_buffer buffer;
};

static int pack(struct packing *p, unsigned threads, struct kvc_error *e) {
    const struct kvc_pack_options options = {.recipe = &p->settled, .threads = threads};
    p->buffer.n = 0;
    struct kvc_sink sink = kvc_sink_buffer(&p->buffer);
    return kvc_container_write(p->cache, &options, &sink, NULL, e);
}

static void pack_one(struct job *job) {
    struct kvc_error e;
    if (pack(job->what, 1, &e)) give_up("a recipe", e.message);
}

static void pack_two(struct job *job) {
    struct kvc_error e;
    if (pack(job->what, 2, &e)) give_up("a recipe", e.message);
}

/* 0 when the recipe does not fit the file: no queries, no weights, or values that are coded already. */
static int packing_init(struct packing *p, const struct kvc_cache *cache, const char *name) {
    struct kvc_error e;
    struct kvc_pack_options options = {.recipe = recipe_of(name)};
    const struct kvc_rate rate = {.kld = 0};
    struct kvc_rate_report report;
    *p = (struct packing){.cache = cache, .name = name};
    if (kvc_rate_settle(cache, &options, &rate, &p->settled, &report, &e)) give_up(name, e.message);
    if (!pack(p, 2, &e)) return 1;
    printf("    %-18s%s\n", name, e.message);
    free(p->buffer.data);
    return 0;
}

/* A program whose serial part is s takes s + (1 - s) / 2 of the time on two cores (Amdahl). */
static void print_line(const struct line *line) {
    const double one = rate(line, ONE), two = rate(line, TWO), times = one > 0 ? two / one : 0;
    const double serial = times > 0 ? 2 / times - 1 : 0;
    printf("    %-18s%9.3f%9.3f%9.2f%9.1f %%\n", line->name, one, two, times, 100 * (serial > 0 ? serial : 0));
}

void bench_threads(const char *path) {
    static struct packing packing[MOST];
    static struct line lines[MOST];
    static const char *const lossless[] = {"split", "fast", "zstd"};
    enum { LOSSLESS = sizeof lossless / sizeof lossless[0] };
    struct kvc_input in;
    struct kvc_cache *cache = open_cache(&in, path);
    size_t n = 0, bytes = 0;
    for (uint32_t t = 0; t < cache->n_tensors; t++) bytes += (size_t)kvc_tensor_bytes(&cache->tensor[t]);
    printf("\n%s, packed by one thread and by two: %.1f MB, %u cores; GB/s of elapsed time\n", path, (double)bytes / 1e6,
           cores());
    for (size_t i = 0; n < MOST && (i < LOSSLESS || kvc_preset_at(i - LOSSLESS)); i++) {
        const char *name = i < LOSSLESS ? lossless[i] : kvc_preset_at(i - LOSSLESS)->name;
        if (!packing_init(&packing[n], cache, name)) continue;
        memset(&lines[n], 0, sizeof lines[n]);
        snprintf(lines[n].name, sizeof lines[n].name, "%s", name);
        lines[n].bytes = bytes;
        lines[n].threaded = 1;
        lines[n].job[ONE] = (struct job){.run = pack_one, .what = &packing[n]};
        lines[n].job[TWO] = (struct job){.run = pack_two, .what = &packing[n]};
        n++;
    }
    race(lines, n);
    printf("    %-18s%9s%9s%9s%11s\n", "", "one", "two", "times", "serial");
    for (size_t i = 0; i < n; i++) {
        print_line(&lines[i]);
        free(packing[i].buffer.data);
    }
    fflush(stdout);
    kvc_cache_free(cache);
    kvc_input_close(&in);
}
