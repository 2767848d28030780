/* bench.h: how things are timed against each other. Not for what is timed (kernels.c, files.c). */
#ifndef KVC_BENCH_H
#define KVC_BENCH_H

#include <stddef.h>

enum { MAX_JOBS = 6 };

/* One thing that is timed. */
struct job {
    void (*run)(struct job *job); /* NULL: there is none */
    void *what;                   /* its own */
    /* seconds of a long run that measures itself; 0: the clock around it counts */
    double own;
    double best; /* seconds of the fastest run */
};

/* Things of one kind: a kernel in every table, or encoding and decoding. */
struct line {
    const char *title; /* of the lines that begin here, or NULL */
    char name[40];
    double ratio; /* of sizes; 0: none */
    size_t bytes; /* that a run is about */
    int threaded; /* 1: on all cores, so that time counts; 0: on one, so that processor time does */
    struct job job[MAX_JOBS];
};

/* 1: each job runs once, on small data: tables are printed, rates say nothing. */
extern int quick;

/* At least 1. */
unsigned cores(void);

/* Times every job of n lines, all of them in turn in each of several rounds: the clock of a machine
 * may jump, and the best runs of all then fall into the same times. */
void race(struct line *lines, size_t n);
/* 10^9 bytes a second of the fastest run; 0 without one. */
double rate(const struct line *line, unsigned job);

/* Ends the program: a benchmark of something that does not work is none. */
_Noreturn void give_up(const char *what, const char *why);
void *need_memory(size_t n);

/* The cache of an engine's file, of which the program ends where it cannot be read. */
struct kvc_input;
struct kvc_cache *open_cache(struct kvc_input *in, const char *path);

/* kernels.c: every kernel of every table of this CPU, in cache. */
void bench_kernels(void);

/* files.c: whole files and their blocks. bench_file() prints one; bench_files_done() compares all
 * that were. */
void bench_file(const char *path);
void bench_files_done(void);

/* ratios.c: sizes of whole files. */
void bench_ratios(char **paths, int n);

/* lossy.c: the presets of lossy recipes on one file. */
void bench_lossy(const char *path);

/* threads.c: packing by one thread and by two. */
void bench_threads(const char *path);

/* transform.c: the transform codec and its stages, on caches made up. */
void bench_transform(void);

/* peak.c: 10^9 products of bytes a second that a core can do, by the kernels' instruction; 0 where
 * this is not known. */
double bench_peak(void);

/* load.c: what the CPU does of loads onto a GPU. */
void bench_load(void);

/* arrays.c: packing from memory and loading into it. */
void bench_arrays(const char *path);

/* zipnn.c: ZipNN from PyPI, in a Python process of its own. */
/* Returns its version, or NULL if the available Python does not have it. */
const char *zipnn_version(void);
/* Takes a file of values of this dtype ("bf16", "f16", "f32"); bytes that it compresses to, or 0
 * when it cannot. */
size_t zipnn_file(const char *dtype, const char *path);
/* job->what: the request, "compress THREADS" or "decompress THREADS". */
void zipnn_run(struct job *job);
void zipnn_stop(void);

#endif
