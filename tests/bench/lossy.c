/* lossy.c: the presets of lossy recipes on whole files: ratios, and rates beside memcpy. Not for
 * the lossless stages (files.c) or for what is lost (tests/quality). */
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

enum { PRESETS = 32, ENCODE = 0, DECODE = 1 };

struct file {
    struct kvc_input in;
    struct kvc_cache *cache;
    size_t values_bytes, all_bytes; /* of K and V; of all tensors */
    uint8_t *from, *to;             /* as large as the largest tensor */
};

struct packed {
    const struct file *file;
    const char *recipe;
    struct kvc_recipe settled; /* the recipe with the step of the transform codec */
    struct kvc_buffer buffer;
    struct kvc_input again;
    struct kvc_cache *cache;
    size_t coded; /* bytes of the records of K and V */
};

static void pack(struct packed *p, unsigned threads) {
    struct kvc_error e;
    const struct kvc_pack_options options = {.recipe = &p->settled, .threads = threads};
    p->buffer.n = 0;
    struct kvc_sink sink = kvc_sink_buffer(&p->buffer);
    if (kvc_container_write(p->file->cache, &options, &sink, NULL, &e))
        give_up(p->recipe, e.message);
}

static void encode(struct job *job) {
    pack(job->what, 1);
}

static void encode_all(struct job *job) {
    pack(job->what, 0);
}

/* K and V, tensor by tensor, into one buffer. */
static void decode(struct job *job) {
    const struct packed *p = job->what;
    const struct kvc_cache *c = p->cache;
    struct kvc_error e;
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (kvc_plan_select(&c->tensor[t]) &&
            c->read(c, t, 0, c->tensor[t].shape.tokens, p->file->to, &e))
            give_up(p->recipe, e.message);
}

static void check_all(struct job *job) {
    const struct packed *p = job->what;
    struct kvc_error e;
    if (kvc_container_check(p->cache, 0, &e)) give_up(p->recipe, e.message);
}

static void copy(struct job *job) {
    const struct file *f = job->what;
    for (uint32_t t = 0; t < f->cache->n_tensors; t++)
        if (kvc_plan_select(&f->cache->tensor[t]))
            memcpy(f->to, f->from, (size_t)kvc_tensor_bytes(&f->cache->tensor[t]));
}

/* 0 when the recipe does not fit the file: no queries, or values that are coded already. */
static int packed_init(struct packed *p, const struct file *file, const char *recipe) {
    struct kvc_error e;
    struct kvc_pack_options options = {.recipe = recipe_of(recipe), .threads = 0};
    const struct kvc_rate rate = {.kld = 0};
    struct kvc_rate_report report;
    memset(p, 0, sizeof *p);
    p->file = file;
    p->recipe = recipe;
    struct kvc_sink sink = kvc_sink_buffer(&p->buffer);
    if (kvc_rate_settle(file->cache, &options, &rate, &p->settled, &report, &e))
        give_up(recipe, e.message);
    options.recipe = &p->settled;
    if (kvc_container_write(file->cache, &options, &sink, NULL, &e)) {
        printf("    %-22s%s\n", recipe, e.message);
        free(p->buffer.data);
        return 0;
    }
    kvc_input_memory(&p->again, recipe, p->buffer.data, p->buffer.n);
    p->cache = kvc_container_open(&p->again, &e);
    if (!p->cache) give_up(recipe, e.message);
    for (uint32_t t = 0; t < p->cache->n_tensors; t++)
        if (kvc_plan_select(&p->cache->tensor[t])) p->coded += kvc_container_stored(p->cache, t);
    return 1;
}

static void packed_free(struct packed *p) {
    kvc_cache_free(p->cache);
    kvc_input_close(&p->again);
    free(p->buffer.data);
}

static void bench_cache(const char *path, struct file *f) {
    static struct packed packed[PRESETS];
    static struct line lines[2 * PRESETS + 1]; /* memcpy; on one core; on all */
    size_t n = 0, largest = 1;
    for (uint32_t t = 0; t < f->cache->n_tensors; t++) {
        const size_t bytes = (size_t)kvc_tensor_bytes(&f->cache->tensor[t]);
        f->all_bytes += bytes;
        if (kvc_plan_select(&f->cache->tensor[t])) f->values_bytes += bytes;
        largest = bytes > largest ? bytes : largest;
    }
    f->from = need_memory(largest);
    f->to = need_memory(largest);
    memset(f->from, 1, largest);
    printf("\n%s, lossy recipes: K and V %.1f MB; GB/s (to memcpy), %u cores in the last two "
           "columns\n",
           path, (double)f->values_bytes / 1e6, cores());
    for (size_t i = 0; kvc_preset_at(i) && n < PRESETS; i++) {
        if (!packed_init(&packed[n], f, kvc_preset_at(i)->name)) continue;
        struct line *one = &lines[1 + 2 * n], *all = one + 1;
        memset(one, 0, 2 * sizeof *one);
        one->bytes = all->bytes = f->values_bytes;
        all->threaded = 1;
        snprintf(one->name, sizeof one->name, "%s", kvc_preset_at(i)->name);
        one->ratio = (double)f->values_bytes / (double)packed[n].coded;
        one->job[ENCODE] = (struct job){.run = encode, .what = &packed[n]};
        one->job[DECODE] = (struct job){.run = decode, .what = &packed[n]};
        all->job[ENCODE] = (struct job){.run = encode_all, .what = &packed[n]};
        all->job[DECODE] = (struct job){.run = check_all, .what = &packed[n]};
        n++;
    }
    lines[0] = (struct line){.name = "memcpy",
                             .bytes = f->values_bytes,
                             .job = {{.run = copy, .what = f}}};
    race(lines, 2 * n + 1);
    const double whole = rate(&lines[0], ENCODE),
                 share = (double)f->all_bytes / (double)f->values_bytes;
    printf("    %-18s%9s%17s%17s%17s%17s\n", "", "ratio", "encode", "decode", "encode", "check");
    printf("    %-18s%9s%9.3f\n", "memcpy", "", whole);
    for (size_t i = 0; i < n; i++) {
        printf("    %-18s%9.4f", lines[1 + 2 * i].name, lines[1 + 2 * i].ratio);
        for (unsigned job = 0; job < 4; job++) {
            /* encoding and checking are about all tensors */
            const double gb = rate(&lines[1 + 2 * i + job / 2], job % 2) *
                              (job == DECODE ? 1 : share);
            printf("%9.3f (%.3f)", gb, gb / whole);
        }
        putchar('\n');
        packed_free(&packed[i]);
    }
    fflush(stdout);
    free(f->from);
    free(f->to);
}

void bench_lossy(const char *path) {
    struct file f = {.all_bytes = 0};
    f.cache = open_cache(&f.in, path);
    bench_cache(path, &f);
    kvc_cache_free(f.cache);
    kvc_input_close(&f.in);
}
