/* bench.c: rates of the hot paths beside memcpy, zstd, xxhash and ZipNN in the same run, and what packing whole files
 * saves. `bench [FILE...]`; $PYTHON names a Python that has ZipNN. Not a test: nothing here fails on a number.
 *
 * Rates are GB (10^9 bytes) of decoded data a second, of the best of many runs: on one core of processor time, which
 * what else the machine does disturbs least, on several of time. */
#include "tests/bench/bench.h"

#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 15 };
static const double AT_LEAST = 5e-3; /* seconds that a job runs in a round */
static const double A_BATCH = 1e-4;  /* and between two looks at the clock, which cost some 10^-7 */

static double seconds(int threaded) {
    struct timespec t;
    clock_gettime(threaded ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void run(struct job *job, int threaded) {
    double spent = 0, begin, batch;
    for (unsigned times = 1; spent < AT_LEAST; spent += batch) {
        job->own = 0;
        begin = seconds(threaded);
        for (unsigned i = 0; i < times; i++) job->run(job);
        batch = job->own > 0 ? job->own : seconds(threaded) - begin;
        if (!(job->best > 0 && job->best <= batch / times)) job->best = batch / times;
        if (batch < A_BATCH) times *= 2;
    }
}

void race(struct line *lines, size_t n) {
    for (unsigned round = 0; round < ROUNDS; round++)
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

int main(int argc, char **argv) {
    if (!kvc_kernels_get()) give_up("$KVC_KERNEL", "names no kernels that this CPU runs");
    const int lossy_alone = argc > 1 && strcmp(argv[1], "--lossy") == 0;
    if (lossy_alone) {
        for (int i = 2; i < argc; i++) bench_lossy(argv[i]);
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "--transform") == 0) {
        bench_transform();
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "--load") == 0) {
        bench_load();
        return 0;
    }
    bench_kernels();
    bench_transform();
    bench_load();
    printf("\nFiles in memory, kernels %s. Blocks: 256 rows of a K or V, without container, hashes, verification.\n",
           kvc_kernels_get()->name);
    if (zipnn_version()) printf("ZipNN %s from PyPI.\n", zipnn_version());
    else printf("ZipNN: skipped, as $PYTHON cannot import it (PYTHON=... names one that can; pip install zipnn).\n");
    for (int i = 1; i < argc; i++) bench_file(argv[i]);
    for (int i = 1; i < argc; i++) bench_lossy(argv[i]);
    bench_tables();
    bench_files_done();
    zipnn_stop();
    return 0;
}
