/* bench.c: rates of the hot paths on one core beside memcpy, zstd and xxhash in the same run, and what packing whole
 * files costs. `bench [FILE...]`; without files, generated bf16 values. Not a test: nothing here fails on a number.
 *
 * Rates are GB (10^9 bytes) of decoded data per second, the best of several repetitions; x is the ratio to memcpy. */
#include "codecs/recipe.h"
#include "formats/container.h"
#include "formats/format.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

enum { ROWS = 256, VALUES = 1024, REPEAT = 7 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double copy_rate; /* of the current buffer size, for the ratios */

static void show(const char *name, size_t bytes, double seconds, const char *more) {
    double rate = (double)bytes / seconds / 1e9;
    printf("  %-34s %8.2f GB/s  %6.3f x memcpy  %s\n", name, rate, copy_rate > 0 ? rate / copy_rate : 1.0, more);
}

/* memcpy that the compiler must not leave out. */
static void copy_bytes(uint8_t *dst, const uint8_t *src, size_t n) {
    memcpy(dst, src, n);
    __asm__ volatile("" ::"r"(dst) : "memory");
}

/* The best time of several runs of `body`, each long enough to measure. */
#define BEST(seconds, body)                                  \
    do {                                                     \
        (seconds) = 1e9;                                     \
        for (int repeat_ = 0; repeat_ < REPEAT; repeat_++) { \
            unsigned times_ = 0;                             \
            double start_ = now(), spent_;                   \
            do {                                             \
                body;                                        \
                times_++;                                    \
            } while ((spent_ = now() - start_) < 0.02);      \
            spent_ /= times_;                                \
            if (spent_ < (seconds)) (seconds) = spent_;      \
        }                                                    \
    } while (0)

static uint32_t random_state = 1;

static double uniform(void) {
    random_state = random_state * 1664525 + 1013904223;
    return (random_state >> 8) / 16777216.0;
}

/* Normal values with a spread per channel: what K looks like to an entropy coder. */
static void fill_bf16(uint8_t *p, size_t rows, size_t values) {
    for (size_t i = 0; i < rows * values; i++) {
        double spread = exp(2 * sin((double)(i % values) * 12.9898)), u = uniform() + 1e-12;
        uint16_t h = kvc_float_to_bf16((float)(spread * sqrt(-2 * log(u)) * cos(6.283185307179586 * uniform())));
        p[2 * i] = (uint8_t)h;
        p[2 * i + 1] = (uint8_t)(h >> 8);
    }
}

static void bench_kernels(uint8_t *a, uint8_t *b, size_t n) {
    double s;
    printf("kernels, one core, %zu KiB in cache:\n", n / 1024);
    BEST(s, copy_bytes(b, a, n));
    copy_rate = (double)n / s / 1e9;
    show("memcpy", n, s, "");
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        char label[64];
        if (!k) continue;
        for (size_t size = 2; size <= 4; size += 2) {
            snprintf(label, sizeof label, "split %zu byte planes, %s", size, *name);
            BEST(s, k->split_planes(b, a, n / size, size));
            show(label, n, s, "");
            snprintf(label, sizeof label, "merge %zu byte planes, %s", size, *name);
            BEST(s, k->merge_planes(b, a, n / size, size));
            show(label, n, s, "");
        }
    }
    uint64_t sum = 0;
    BEST(s, sum += XXH3_64bits(a, n));
    show("XXH3-64", n, s, "");
    BEST(s, sum += kvc_digest_rows(a, 2 * VALUES, 0, n / (2 * VALUES)));
    show("row digest", n, s, sum ? "" : " ");
}

static void bench_stage(const struct kvc_stage *stage, uint8_t *source, size_t n) {
    struct kvc_error e;
    struct kvc_pipeline line = {.n = 1};
    struct kvc_block block = {{KVC_BF16, ROWS, 8, VALUES / 8}, malloc(n)};
    struct kvc_sections list;
    char label[64], ratio[32];
    double s;
    line.step[0].stage = stage;
    kvc_sections_init(&list);
    if (!block.rows || stage->parse("", &line.step[0].args, &e)) exit(2);
    memcpy(block.rows, source, n);
    BEST(s, (kvc_sections_clear(&list), (void)kvc_pipeline_encode(&line, &block, &list, &e)));
    snprintf(label, sizeof label, "%s encode", stage->name);
    snprintf(ratio, sizeof ratio, "ratio %.3f", (double)n / (double)list.used);
    show(label, n, s, ratio);
    kvc_sections_seal(&list);
    BEST(s, (void)kvc_pipeline_decode(&line, &block, list.section, list.count, &e));
    snprintf(label, sizeof label, "%s decode", stage->name);
    show(label, n, s, "");
    kvc_sections_free(&list);
    free(block.rows);
}

static void bench_peers(const uint8_t *source, size_t n) {
    size_t room = ZSTD_compressBound(n), size = 0;
    uint8_t *coded = malloc(room), *back = malloc(n);
    char ratio[32];
    double s;
    if (!coded || !back) exit(2);
    BEST(s, size = ZSTD_compress(coded, room, source, n, 1));
    snprintf(ratio, sizeof ratio, "ratio %.3f", (double)n / (double)size);
    show("libzstd -1, raw bytes, compress", n, s, ratio);
    BEST(s, (void)ZSTD_decompress(back, n, coded, size));
    show("libzstd -1, raw bytes, decompress", n, s, "");
    free(coded);
    free(back);
}

static int count_bytes(void *state, const void *data, size_t n, struct kvc_error *e) {
    (void)data, (void)e;
    *(uint64_t *)state += n;
    return 0;
}

/* A whole file in memory: pack (with and without verification), check, give the source back. */
static void bench_file(const char *path) {
    struct kvc_error e;
    struct kvc_input in;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (kvc_input_open(&in, path, &e)) {
        fprintf(stderr, "bench: %s\n", e.message);
        return;
    }
    struct kvc_cache *c = kvc_import(&in, NULL, NULL, &e);
    if (!c) {
        fprintf(stderr, "bench: %s\n", e.message);
        kvc_input_close(&in);
        return;
    }
    uint8_t *copy = malloc((size_t)in.size);
    double s;
    if (!copy) exit(2);
    printf("%s, %.1f MB:\n", path, (double)in.size / 1e6);
    BEST(s, copy_bytes(copy, in.data, (size_t)in.size));
    copy_rate = (double)in.size / s / 1e9;
    show("memcpy", (size_t)in.size, s, "");
    for (size_t i = 0; kvc_stage_at(i); i++)
        for (unsigned threads = 1; threads <= (unsigned)cores; threads += cores > 1 ? (unsigned)cores - 1 : 1) {
            struct kvc_pack_options options = {.recipe = kvc_stage_at(i)->name, .threads = threads};
            struct kvc_buffer packed = {0};
            struct kvc_sink sink = kvc_sink_buffer(&packed);
            char label[80], ratio[48];
            uint64_t written = 0;
            if (kvc_container_write(c, &options, &sink, NULL, &e)) break;
            snprintf(ratio, sizeof ratio, "ratio %.4f", (double)in.size / (double)packed.n);
            BEST(s, (packed.n = 0, sink.offset = 0, (void)kvc_container_write(c, &options, &sink, NULL, &e)));
            snprintf(label, sizeof label, "pack %s, verified, -T%u", options.recipe, threads);
            show(label, (size_t)in.size, s, ratio);
            options.no_verify = 1;
            BEST(s, (packed.n = 0, sink.offset = 0, (void)kvc_container_write(c, &options, &sink, NULL, &e)));
            snprintf(label, sizeof label, "pack %s, -T%u", options.recipe, threads);
            show(label, (size_t)in.size, s, "");
            struct kvc_input again;
            kvc_input_memory(&again, path, packed.data, packed.n);
            struct kvc_cache *back = kvc_container_open(&again, &e);
            if (back) {
                struct kvc_sink count = {.write = count_bytes, .state = &written};
                BEST(s, (void)kvc_source_write(back, threads, &count, &e));
                snprintf(label, sizeof label, "unpack %s, -T%u", options.recipe, threads);
                show(label, (size_t)in.size, s, "");
                BEST(s, (void)kvc_container_check(back, threads, &e));
                snprintf(label, sizeof label, "check %s, -T%u", options.recipe, threads);
                show(label, (size_t)in.size, s, "");
                kvc_cache_free(back);
            }
            kvc_input_close(&again);
            free(packed.data);
        }
    free(copy);
    kvc_cache_free(c);
    kvc_input_close(&in);
}

int main(int argc, char **argv) {
    size_t n = (size_t)ROWS * VALUES * 2;
    uint8_t *a = malloc(n), *b = malloc(n);
    if (!a || !b || !kvc_kernels_get()) return 2;
    fill_bf16(a, ROWS, VALUES);
    bench_kernels(a, b, n);
    printf("stages, one core, a block of %d x %d bf16 (kernels: %s):\n", ROWS, VALUES, kvc_kernels_get()->name);
    for (size_t i = 0; kvc_stage_at(i); i++) bench_stage(kvc_stage_at(i), a, n);
    bench_peers(a, n);
    for (int i = 1; i < argc; i++) bench_file(argv[i]);
    free(a);
    free(b);
    return 0;
}
