/* bench.c: rates of the hot paths beside memcpy, zstd, xxhash and ZipNN in the same run, and what
 * packing whole files saves. `bench --help` lists the tables; $PYTHON names a Python that has
 * ZipNN. Not a test: nothing here fails on a number.
 *
 * Rates are GB (10^9 bytes) of decoded data a second, of the best of many runs: on one core of
 * processor time, on which other programs have the smallest influence, on several cores of elapsed
 * time. */
#include "tests/bench/bench.h"

#include "formats/container/container.h"
#include "formats/cache/format.h"
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

#if !defined(BENCH_CFLAGS)
#define BENCH_CFLAGS ""
#endif

enum { ROUNDS = 15 };
static const double AT_LEAST = 5e-3; /* seconds that a job runs in a round */
static const double A_BATCH = 1e-4;  /* and between two looks at the clock, which cost some 10^-7 */

int quick;

static double seconds(int threaded) {
    struct timespec t;
    clock_gettime(threaded ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void run(struct job *job, int threaded) {
    double spent = 0, begin, batch;
    for (unsigned times = 1; spent < AT_LEAST && !(quick && spent > 0); spent += batch) {
        job->own = 0;
        begin = seconds(threaded);
        for (unsigned i = 0; i < times; i++) job->run(job);
        batch = job->own > 0 ? job->own : seconds(threaded) - begin;
        if (!(job->best > 0 && job->best <= batch / times)) job->best = batch / times;
        if (batch < A_BATCH) times *= 2;
    }
}

void race(struct line *lines, size_t n) {
    for (unsigned round = 0; round < (quick ? 1 : ROUNDS); round++)
        for (size_t i = 0; i < n; i++)
            for (unsigned j = 0; j < MAX_JOBS; j++)
                if (lines[i].job[j].run) run(&lines[i].job[j], lines[i].threaded);
}

double rate(const struct line *line, unsigned job) {
    return line->job[job].best > 0 ? (double)line->bytes / line->job[job].best / 1e9 : 0;
}

void give_up(const char *what, const char *why) {
    fprintf(stderr, "bench: %s: %s\n", what, why);
    exit(2);
}

void *need_memory(size_t n) {
    void *p = malloc(n ? n : 1);
    if (!p) give_up("memory", "there is not enough of it");
    return p;
}

struct kvc_cache *open_cache(struct kvc_input *in, const char *path) {
    struct kvc_error e;
    if (kvc_input_open_how(in, path, &(struct kvc_input_how){.read = 0}, &e))
        give_up("a file", e.message);
    struct kvc_cache *cache = kvc_import_file(in, NULL, NULL, &e);
    if (!cache) give_up("a file", e.message);
    if (kvc_cache_is_container(cache))
        give_up(path, "a .kvc; give the engine's file that it was made from");
    return cache;
}

/* --- what measures --- */

/* The CPU's name as Linux has it. */
static void print_cpu(void) {
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *name = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !name) continue;
        printf("%.*s", (int)strcspn(name + 2, "\n"), name + 2);
        break;
    }
    if (f) fclose(f);
    printf(", %u cores", cores());
}

static void print_isa(void) {
#if defined(__x86_64__)
#define SHOW(feature) printf("%s", __builtin_cpu_supports(feature) ? " " feature : "")
    printf("; x86-64");
    SHOW("avx2");
    SHOW("fma");
    SHOW("avx512f");
    SHOW("avx512bw");
    SHOW("avx512vl");
    SHOW("avx512dq");
    SHOW("avx512vbmi");
    SHOW("avx512vnni");
#else
    printf("; not x86-64");
#endif
}

static void print_machine(void) {
    printf("kvc %s; CPU: ", KVC_VERSION);
    print_cpu();
    print_isa();
#if defined(__clang__)
    printf("\ncompiler: %s %s", __VERSION__, BENCH_CFLAGS);
#else
    printf("\ncompiler: gcc %s %s", __VERSION__, BENCH_CFLAGS);
#endif
    const struct kvc_kernels_choice choice = kvc_kernels_choice();
    printf("; libzstd %s\nkernels: %s; rANS: %s encodes, %s decodes (%s); predictions: %s\n\n",
           ZSTD_versionString(), choice.name, choice.rans_encode, choice.rans_decode,
           choice.by_trial ? "by trial" : "by KVC_KERNEL", choice.dot_rows);
}

unsigned cores(void) {
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 1 ? (unsigned)n : 1;
}

/* --- tables --- */

static void kernels_table(char **file, int n) {
    (void)file, (void)n;
    bench_kernels();
}

static void transform_table(char **file, int n) {
    (void)file, (void)n;
    bench_transform();
}

static void load_table(char **file, int n) {
    (void)file, (void)n;
    bench_load();
}

static void print_zipnn(void) {
    if (zipnn_version()) printf("ZipNN %s from PyPI.\n", zipnn_version());
    else
        printf("ZipNN: skipped, as $PYTHON cannot import it (PYTHON=... names one that can; pip "
               "install zipnn).\n");
}

static void files_table(char **file, int n) {
    printf("\nFiles in memory. Blocks: 256 rows of a K or V, without container, hashes, "
           "verification.\n");
    print_zipnn();
    for (int i = 0; i < n; i++) bench_file(file[i]);
    bench_files_done();
}

static void lossy_table(char **file, int n) {
    for (int i = 0; i < n; i++) bench_lossy(file[i]);
}

static void threads_table(char **file, int n) {
    for (int i = 0; i < n; i++) bench_threads(file[i]);
}

static void arrays_table(char **file, int n) {
    for (int i = 0; i < n; i++) bench_arrays(file[i]);
}

static void ratios_table(char **file, int n) {
    bench_ratios(file, n);
    print_zipnn();
}

static const struct table {
    const char *name, *what;
    void (*print)(char **file, int n);
} tables[] = {
    {"kernels", "every kernel of every instruction set that this CPU runs, in cache",
     kernels_table},
    {"transform", "the transform codec, on caches made up", transform_table},
    {"load", "the CPU's part of loads onto a GPU", load_table},
    {"files", "lossless stages on each FILE, whole and in blocks", files_table},
    {"arrays", "each FILE's cache in memory, packed from arrays and loaded into them",
     arrays_table},
    {"lossy", "presets on each FILE", lossy_table},
    {"threads", "packing each FILE by one thread and by two, and the serial part", threads_table},
    {"ratios", "how small each FILE becomes; no rates, the same on every machine", ratios_table},
};
enum { TABLES = sizeof tables / sizeof tables[0] };

static int help(void) {
    printf("Usage: bench [--quick] [--TABLE]... [FILE]...\n"
           "Prints the tables asked for, or all. --quick: of one run each, to see that they are "
           "printed at all.\n");
    for (unsigned t = 0; t < TABLES; t++) printf("  --%-10s %s\n", tables[t].name, tables[t].what);
    return 0;
}

int main(int argc, char **argv) {
    int wanted[TABLES] = {0}, any = 0, first = 1;
    for (; first < argc && strncmp(argv[first], "--", 2) == 0; first++) {
        const char *name = argv[first] + 2;
        unsigned t = 0;
        while (t < TABLES && strcmp(tables[t].name, name) != 0) t++;
        if (t < TABLES) any = wanted[t] = 1;
        else if (strcmp(name, "quick") == 0) quick = 1;
        else if (strcmp(name, "help") == 0) return help();
        else give_up(argv[first], "no such table; --help lists them");
    }
    if (!kvc_kernels_get()) give_up("$KVC_KERNEL", "names no kernels that this CPU runs");
    print_machine();
    for (unsigned t = 0; t < TABLES; t++)
        if (!any || wanted[t]) tables[t].print(argv + first, argc - first);
    zipnn_stop();
    return 0;
}
