/* threads.c: packing whole files by one thread and by two: how much faster two are, and which part
 * of the work one thread does alone. Two threads of the same machine that only compute, or only
 * copy, show how much faster two can be: cores that share an arithmetic unit, a clock or a memory
 * are less than twice as fast. Not for rates beside memcpy (files.c, lossy.c). */
#include "tests/bench/bench.h"
#include "tests/recipe_text.h"

#include "codecs/presets.h"
#include "formats/container/container.h"
#include "formats/cache/format.h"
#include "formats/container/plan.h"
#include "formats/file/rate.h"
#include "formats/io/parallel.h"
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 32, ONE = 0, TWO = 1 };
enum { COMPUTING, COPYING, MACHINE }; /* the first lines */
/* items of such a job; bytes that are hashed again and again, and how often */
enum { PIECES = 64, IN_CACHE = 16384, AGAIN = 4 };

struct packing {
    const struct kvc_cache *cache;
    const char *name;
    struct kvc_recipe settled; /* the recipe with the step of the transform codec */
    struct kvc_buffer buffer;
};

/* --- what the machine can --- */

struct machine {
    uint8_t *from, *to;
    size_t piece; /* bytes of an item */
};

static int compute(void *state, uint64_t item, void **result, struct kvc_error *e) {
    const struct machine *m = state;
    uint64_t sum = item;
    (void)result, (void)e;
    for (size_t done = 0; done < AGAIN * m->piece; done += IN_CACHE)
        sum = kvc_kernels_get()->hash(m->from, IN_CACHE, sum);
    m->to[item * m->piece] = (uint8_t)(sum & 255);
    return 0;
}

static int copy(void *state, uint64_t item, void **result, struct kvc_error *e) {
    const struct machine *m = state;
    (void)result, (void)e;
    memcpy(m->to + item * m->piece, m->from + item * m->piece, m->piece);
    return 0;
}

static void run_pieces(struct machine *m,
                       int (*work)(void *, uint64_t, void **, struct kvc_error *),
                       unsigned threads) {
    const struct kvc_job job = {.n = PIECES, .work = work, .state = m};
    struct kvc_error e;
    if (kvc_parallel(&job, threads, &e)) give_up("threads", e.message);
}

static void compute_one(struct job *job) {
    run_pieces(job->what, compute, 1);
}

static void compute_two(struct job *job) {
    run_pieces(job->what, compute, 2);
}

static void copy_one(struct job *job) {
    run_pieces(job->what, copy, 1);
}

static void copy_two(struct job *job) {
    run_pieces(job->what, copy, 2);
}

/* Makes the first lines, about as many bytes as the file has. */
static void machine_init(struct machine *m, struct line lines[MACHINE], size_t bytes) {
    m->piece = bytes / PIECES + IN_CACHE;
    m->from = need_memory(PIECES * m->piece);
    m->to = need_memory(PIECES * m->piece);
    memset(m->from, 1, PIECES * m->piece);
    memset(m->to, 0, PIECES * m->piece);
    lines[COMPUTING] = (struct line){.name = "only computing",
                                     .bytes = PIECES * AGAIN * m->piece,
                                     .threaded = 1,
                                     .job = {{.run = compute_one, .what = m},
                                             {.run = compute_two, .what = m}}};
    lines[COPYING] = (struct line){.name = "only copying",
                                   .bytes = PIECES * m->piece,
                                   .threaded = 1,
                                   .job = {{.run = copy_one, .what = m},
                                           {.run = copy_two, .what = m}}};
}

/* --- packing --- */

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

/* 0 when the recipe does not fit the file: no queries, no weights, or values that are coded
 * already. */
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

static double times_faster(const struct line *line) {
    const double one = rate(line, ONE);
    return one > 0 ? rate(line, TWO) / one : 0;
}

/* A program whose serial part is s takes s + (1 - s) / 2 of the time on two cores (Amdahl).
 * `possible`: how many times faster two threads can be. */
static void print_line(const struct line *line, double possible) {
    const double times = times_faster(line), serial = times > 0 ? 2 / times - 1 : 0;
    printf("    %-18s%9.3f%9.3f%9.2f%9.1f %%%11.2f\n", line->name, rate(line, ONE), rate(line, TWO),
           times, 100 * (serial > 0 ? serial : 0), possible > 0 ? times / possible : 0);
}

void bench_threads(const char *path) {
    static struct packing packing[MOST];
    static struct line lines[MACHINE + MOST], *const packed = lines + MACHINE;
    struct machine machine;
    static const char *const lossless[] = {"split", "fast", "zstd"};
    enum { LOSSLESS = sizeof lossless / sizeof lossless[0] };
    struct kvc_input in;
    struct kvc_cache *cache = open_cache(&in, path);
    size_t n = 0, bytes = 0;
    for (uint32_t t = 0; t < cache->n_tensors; t++)
        bytes += (size_t)kvc_tensor_bytes(&cache->tensor[t]);
    printf("\n%s, packed by one thread and by two: %.1f MB, %u cores; GB/s of elapsed time\n", path,
           (double)bytes / 1e6, cores());
    machine_init(&machine, lines, bytes);
    for (size_t i = 0; n < MOST && (i < LOSSLESS || kvc_preset_at(i - LOSSLESS)); i++) {
        const char *name = i < LOSSLESS ? lossless[i] : kvc_preset_at(i - LOSSLESS)->name;
        if (!packing_init(&packing[n], cache, name)) continue;
        memset(&packed[n], 0, sizeof packed[n]);
        snprintf(packed[n].name, sizeof packed[n].name, "%s", name);
        packed[n].bytes = bytes;
        packed[n].threaded = 1;
        packed[n].job[ONE] = (struct job){.run = pack_one, .what = &packing[n]};
        packed[n].job[TWO] = (struct job){.run = pack_two, .what = &packing[n]};
        n++;
    }
    race(lines, MACHINE + n);
    printf("    %-18s%9s%9s%9s%11s%11s\n", "", "one", "two", "times", "serial", "possible");
    for (size_t i = 0; i < MACHINE + n; i++) print_line(&lines[i], times_faster(&lines[COMPUTING]));
    for (size_t i = 0; i < n; i++) free(packing[i].buffer.data);
    fflush(stdout);
    free(machine.from);
    free(machine.to);
    kvc_cache_free(cache);
    kvc_input_close(&in);
}
