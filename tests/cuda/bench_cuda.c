/* bench_cuda.c: how fast a real GPU decodes and loads, against copies of the same bytes in the same
 * run: JSON on standard output, what it is at on standard error. Caches are made up (made.h): 32
 * layers, 8 heads of 128, bf16. Times are medians after a warm-up; a buffer greater than the GPU's
 * cache is written between repetitions. Not over the host in a GPU's place, whose figures would
 * mean nothing; not for whether what is decoded is right (test_cuda.c), though every file is
 * verified. */
#include "formats/device/cuda/devices.h"
#include "formats/api/kvc_file.h"
#include "formats/api/kvc.h"
#include "formats/api/kvc_cuda.h"
#include "formats/device/load.h"
#include "tests/cuda/made.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    LAYERS = 32,
    HEADS = 8,
    DIM = 128,
    TOKEN = LAYERS * 2 * HEADS * DIM * 2,
    PAGE = 16,
    WARM_UP = 3,
    MOST = 64
};
#define MIB (UINT64_C(1) << 20)
#define FLUSH (256 * MIB)
#define PINNED (1024 * MIB) /* at most, of raw bytes: copied from over and over */

/* What the issue asks of each: a share of the copy, or decoded bytes a second. */
static const struct scenario {
    const char *name, *recipe;
    int profile;
    double share, rate;
} scenarios[] = {
    {"store", "store", 0, 0.8, 0},
    {"fast", "fast", 0, 0.8, 0},
    {"split", "split", 0, 0, 300e9},
    {"quant2", "outlier:0.02,quant:kivi:bits=2", 0, 0.8, 0},
    {"quant4", "outlier:0.02,quant:kivi:bits=4", 0, 0.8, 0},
    {"quant8", "outlier:0.02,quant:kivi:bits=8", 0, 0.8, 0},
    {"gear4", "gear4", 0, 0.5, 0},
    {"minicache", "minicache", 0, 0.5, 0},
    {"small", "small", 1, 0, 250e9},
};
enum { SCENARIOS = sizeof scenarios / sizeof scenarios[0] };

static struct {
    uint64_t size[MOST];
    unsigned n_sizes;
    int wanted[SCENARIOS];
    unsigned sms[MOST], n_sms;
    unsigned repetitions;
} asked = {.size = {16 * MIB, 256 * MIB, 4096 * MIB},
           .n_sizes = 3,
           .sms = {0, 32, 16, 8},
           .n_sms = 4,
           .repetitions = 15};

static struct kvc_device *device;
static cudaStream_t stream;
static cudaEvent_t before, after;
static void *flush;     /* memory that is written to empty the cache */
static char path[4096]; /* of the file that is measured */

/* --- what goes wrong --- */

static _Noreturn void give_up(const char *what, const char *why) {
    fprintf(stderr, "bench_cuda: %s: %s\n", what, why);
    unlink(path);
    exit(2);
}

static void must(cudaError_t status, const char *what) {
    if (status) give_up(what, cudaGetErrorString(status));
}

/* --- times --- */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct times {
    double median, least, most;
};

static struct times sort_times(double *t, unsigned n) {
    qsort(t, n, sizeof *t, by_value);
    return (struct times){t[n / 2], t[0], t[n - 1]};
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double elapsed(void) {
    float ms = 0;
    must(cudaEventElapsedTime(&ms, before, after), "cudaEventElapsedTime");
    return 1e-3 * (double)ms;
}

/* "1.234e9 bytes in t" as GB/s, with the spread of the times. */
static json_t *rates(double bytes, struct times t) {
    return json_pack("{s:f, s:f, s:f, s:f}", "GB/s", bytes / t.median / 1e9, "least",
                     bytes / t.most / 1e9, "most", bytes / t.least / 1e9, "seconds", t.median);
}

static void empty_cache(void) {
    must(cudaMemsetAsync(flush, 1, FLUSH, stream), "cudaMemsetAsync");
}

static void *take(uint64_t n) {
    struct kvc_error e;
    void *p = NULL;
    if (device->alloc(device, (size_t)n, &p, &e)) give_up("memory", e.message);
    return p;
}

/* A copy on the device that reads and writes `moved` bytes together. */
static struct times time_copy(uint64_t moved) {
    double t[MOST];
    const size_t n = (size_t)(moved / 2);
    void *from = take(n), *to = take(n);
    must(cudaMemsetAsync(from, 0x5b, n, stream), "cudaMemsetAsync");
    for (unsigned i = 0; i < WARM_UP + asked.repetitions; i++) {
        empty_cache();
        must(cudaEventRecord(before, stream), "cudaEventRecord");
        must(cudaMemcpyAsync(to, from, n, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
        must(cudaEventRecord(after, stream), "cudaEventRecord");
        must(cudaStreamSynchronize(stream), "a copy");
        if (i >= WARM_UP) t[i - WARM_UP] = elapsed();
    }
    device->free(device, from);
    device->free(device, to);
    return sort_times(t, asked.repetitions);
}

/* Raw bytes out of pinned memory, as many as are decoded. */
static struct times time_raw(uint64_t bytes) {
    double t[MOST];
    struct kvc_error e;
    const uint64_t room = bytes < PINNED ? bytes : PINNED;
    void *to = take(bytes), *from = NULL;
    if (device->alloc_host(device, (size_t)room, &from, &e)) give_up("memory", e.message);
    memset(from, 0x5b, (size_t)room);
    for (unsigned i = 0; i < WARM_UP + asked.repetitions; i++) {
        const double start = now();
        for (uint64_t at = 0; at < bytes; at += room)
            must(cudaMemcpyAsync((uint8_t *)to + at, from,
                                 (size_t)(bytes - at < room ? bytes - at : room),
                                 cudaMemcpyHostToDevice, stream),
                 "cudaMemcpyAsync");
        must(cudaStreamSynchronize(stream), "a copy");
        if (i >= WARM_UP) t[i - WARM_UP] = now() - start;
    }
    device->free(device, to);
    device->free_host(device, from);
    return sort_times(t, asked.repetitions);
}

/* --- decoding alone --- */

/* A load of a whole file by one launch. */
struct whole {
    struct kvc_file *file;
    struct kvc_device_target *target;
    void *rows;
    struct kvc_load *load;
    struct kvc_load_info info;
    uint64_t table_bytes;
};

static void aim(struct whole *w) {
    const struct kvc_cache *c = w->file->cache;
    uint64_t at = 0, bytes = 0;
    for (uint32_t t = 0; t < c->n_tensors; t++) bytes += kvc_tensor_bytes(&c->tensor[t]);
    w->rows = take(bytes);
    if (!(w->target = calloc(c->n_tensors, sizeof *w->target))) give_up("memory", "none");
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        w->target[t] = (struct kvc_device_target){.base = (uint64_t)(uintptr_t)w->rows + at,
                                                  .pages = c->tensor[t].shape.tokens,
                                                  .page_size = 1,
                                                  .page = HEADS * DIM * 2,
                                                  .head = DIM * 2,
                                                  .dim = 2,
                                                  .dtype = KVC_DEVICE_BF16,
                                                  .from = KVC_DEVICE_BF16,
                                                  .heads = HEADS,
                                                  .channels = DIM};
        at += kvc_tensor_bytes(&c->tensor[t]);
    }
}

/* Loads, in one slot, whose tables get twice the room until all blocks go in one launch. */
static int load_whole(struct whole *w, int verify, struct kvc_error *e) {
    uint64_t decoded = 0;
    for (uint32_t t = 0; t < w->file->cache->n_tensors; t++)
        decoded += kvc_tensor_bytes(&w->file->cache->tensor[t]);
    if (!w->table_bytes) w->table_bytes = decoded / 32 + 32 * MIB;
    for (;; w->table_bytes *= 2) {
        const struct kvc_load_options options = {.threads = 16,
                                                 .slots = 2,
                                                 .slot_bytes = w->file->opened.input.size,
                                                 .table_bytes = w->table_bytes,
                                                 .scratch_bytes = 3 * decoded + 64 * MIB,
                                                 .verify = verify};
        if (!(w->load = kvc_load_new(device, w->file->cache, &w->file->opened.input, &options,
                                     w->target, e)) ||
            kvc_load_run(w->load, stream, e) || kvc_load_finish(w->load, e))
            return -1;
        if (!kvc_load_again(w->load, stream, before, after, e)) break;
        if (e->code != KVC_ERR_USAGE || w->table_bytes > 2 * decoded) return -1;
        kvc_load_free(w->load);
        w->load = NULL;
    }
    kvc_load_describe(w->load, &w->info);
    return kvc_load_finish(w->load, e);
}

static struct times time_decode(struct whole *w) {
    double t[MOST];
    struct kvc_error e;
    for (unsigned i = 0; i < WARM_UP + asked.repetitions; i++) {
        empty_cache();
        if (kvc_load_again(w->load, stream, before, after, &e) || kvc_load_finish(w->load, &e))
            give_up("decoding", e.message);
        if (i >= WARM_UP) t[i - WARM_UP] = elapsed();
    }
    return sort_times(t, asked.repetitions);
}

static int bench_decode(json_t *report, const struct scenario *s, double *decode_rate,
                        double *ratio, struct kvc_error *e) {
    struct whole w = {0};
    struct times plain, verified;
    int status = (w.file = kvc_file_open(path, NULL, e)) ? 0 : -1;
    if (!status) aim(&w);
    if (!status && !(status = load_whole(&w, 1, e))) {
        verified = time_decode(&w);
        kvc_load_free(w.load);
        w.load = NULL;
        if (!(status = load_whole(&w, 0, e))) plain = time_decode(&w);
    }
    kvc_load_free(w.load);
    device->free(device, w.rows);
    free(w.target);
    kvc_file_close(w.file);
    if (status) return -1;
    const double moved = (double)(w.info.stored + w.info.decoded), decoded = (double)w.info.decoded;
    const struct times copy = time_copy(w.info.stored + w.info.decoded);
    const double share = copy.median / plain.median;
    *decode_rate = decoded / plain.median;
    *ratio = decoded / (double)w.info.stored;
    json_object_set_new(report, "stored", json_integer((json_int_t)w.info.stored));
    json_object_set_new(report, "decoded", json_integer((json_int_t)w.info.decoded));
    json_object_set_new(report, "decoded by the CPU", json_integer((json_int_t)w.info.on_host));
    json_object_set_new(report, "decode", rates(decoded, plain));
    json_object_set_new(report, "decode, verified", rates(decoded, verified));
    json_object_set_new(report, "read and written", rates(moved, plain));
    json_object_set_new(report, "copy, read and written", rates(moved, copy));
    json_object_set_new(report, "share of the copy", json_real(share));
    json_object_set_new(report, "target",
                        s->share > 0 ? json_pack("{s:f}", "share of the copy", s->share)
                                     : json_pack("{s:f}", "GB/s", s->rate / 1e9));
    json_object_set_new(report, "met",
                        json_boolean(s->share > 0 ? share >= s->share : *decode_rate >= s->rate));
    return 0;
}

/* --- a file into pages --- */

struct paged {
    struct kvc_cuda_plan *plan;
    uint64_t base[LAYERS], bytes;
    uint32_t *table;
};

/* vLLM's pages, in a strange order. */
static int paged_new(struct paged *p, uint64_t tokens, unsigned sms, struct kvc_error *e) {
    const uint64_t pages = (tokens + PAGE - 1) / PAGE;
    const struct kvc_cuda_options options = {.size = sizeof options, .multiprocessors = sms};
    struct kvc_cuda_destination d = {.size = sizeof d,
                                     .layout = "vllm-flash",
                                     .bases = p->base,
                                     .n_bases = LAYERS,
                                     .n_table = pages,
                                     .pool = {.layers = LAYERS,
                                              .pages = pages,
                                              .page_size = PAGE,
                                              .heads = HEADS,
                                              .dim = DIM,
                                              .value_bytes = 2}};
    if (!(p->table = malloc((size_t)pages * sizeof *p->table))) return kvc_fail_memory(e, "pages");
    for (uint32_t i = 0; i < pages; i++) p->table[i] = i;
    for (uint64_t i = pages - 1, state = 1; i; i--) {
        state = state * UINT64_C(6364136223846793005) + 1;
        const uint64_t k = (state >> 33) % (i + 1);
        const uint32_t was = p->table[i];
        p->table[i] = p->table[k];
        p->table[k] = was;
    }
    d.table = p->table;
    for (unsigned i = 0; i < LAYERS; i++)
        p->base[i] = (uint64_t)(uintptr_t)take(pages * PAGE * (TOKEN / LAYERS));
    return (p->plan = kvc_cuda_plan_new(path, &options, &d, e)) ? 0 : -1;
}

static void paged_free(struct paged *p) {
    kvc_cuda_plan_free(p->plan);
    for (unsigned i = 0; i < LAYERS; i++) device->free(device, (void *)(uintptr_t)p->base[i]);
    free(p->table);
}

static void load_pages(struct paged *p, cudaStream_t on) {
    struct kvc_error e;
    if (kvc_cuda_load(p->plan, on, &e) || kvc_cuda_finish(p->plan, &e))
        give_up("loading", e.message);
}

static struct times time_load(struct paged *p) {
    double t[MOST];
    for (unsigned i = 0; i < WARM_UP + asked.repetitions; i++) {
        const double start = now();
        load_pages(p, stream);
        if (i >= WARM_UP) t[i - WARM_UP] = now() - start;
    }
    return sort_times(t, asked.repetitions);
}

static int bench_load(json_t *report, uint64_t tokens, double decode_rate, double ratio,
                      struct times raw, struct kvc_error *e) {
    struct paged p = {0};
    int status = paged_new(&p, tokens, 0, e);
    if (!status) {
        struct kvc_cuda_plan_info info = {.size = sizeof info};
        const struct times load = time_load(&p);
        kvc_cuda_plan_describe(p.plan, &info);
        const double bus = (double)info.decoded / raw.median,
                     bound = bus < decode_rate / ratio ? bus : decode_rate / ratio;
        const double stored = (double)info.stored;
        json_t *into = json_object();
        json_object_set_new(into, "decoded", rates((double)info.decoded, load));
        json_object_set_new(into, "stored", rates(stored, load));
        json_object_set_new(into, "times as fast as raw bytes",
                            json_real(raw.median / load.median));
        json_object_set_new(into, "share of the lesser of bus and decoder",
                            json_real(stored / load.median / bound));
        json_object_set_new(into, "target",
                            json_pack("{s:s, s:f}", "times as fast as raw bytes",
                                      ratio >= 2 ? "> 1" : "none",
                                      "share of the lesser of bus and decoder", 0.9));
        const int faster = raw.median > load.median, near = stored / load.median >= 0.9 * bound;
        json_object_set_new(into, "met", json_boolean((ratio < 2 || faster) && near));
        json_object_set_new(report, "file into pages", into);
    }
    paged_free(&p);
    return status;
}

/* --- beside a matrix product --- */

enum {
    ORDER = 8192,
    PRODUCTS = 40,
    BF16 = 14,
    COMPUTE_32F = 68,
    NO_TRANSPOSE = 0,
    DEFAULT_ALGORITHM = -1
};

/* cuBLAS's own, by hand: its headers are not everywhere where the library is. */
static struct {
    int (*create)(void **handle);
    int (*set_stream)(void *handle, cudaStream_t on);
    int (*multiply)(void *handle, int ta, int tb, int m, int n, int k, const void *alpha,
                    const void *a, int a_type, int lda, const void *b, int b_type, int ldb,
                    const void *beta, void *c, int c_type, int ldc, int compute, int algorithm);
    void *handle;
    cudaStream_t on;
    void *a, *b, *c;
} blas;

static int find_function(void *library, const char *name, void *to) {
    void *p = dlsym(library, name);
    memcpy(to, &p, sizeof p);
    return p ? 0 : -1;
}

static int open_blas(const struct made *m) {
    static const char *const name[] = {"libcublas.so", "libcublas.so.13", "libcublas.so.12"};
    const size_t bytes = (size_t)2 * ORDER * ORDER;
    void *library = NULL;
    for (size_t i = 0; i < sizeof name / sizeof name[0] && !library; i++)
        library = dlopen(name[i], RTLD_NOW | RTLD_LOCAL);
    if (!library || find_function(library, "cublasCreate_v2", &blas.create) ||
        find_function(library, "cublasSetStream_v2", &blas.set_stream) ||
        find_function(library, "cublasGemmEx", &blas.multiply))
        return -1;
    must(cudaStreamCreateWithFlags(&blas.on, cudaStreamNonBlocking), "a stream");
    if (blas.create(&blas.handle) || blas.set_stream(blas.handle, blas.on)) return -1;
    blas.a = take(bytes), blas.b = take(bytes), blas.c = take(bytes);
    /* random numbers, not zeros */
    must(cudaMemcpy(blas.a, m->values, bytes, cudaMemcpyHostToDevice), "a matrix");
    must(cudaMemcpy(blas.b, m->values + bytes / 2, bytes, cudaMemcpyHostToDevice), "a matrix");
    return 0;
}

static void multiply(unsigned times) {
    const float one = 1, zero = 0;
    for (unsigned i = 0; i < times; i++)
        if (blas.multiply(blas.handle, NO_TRANSPOSE, NO_TRANSPOSE, ORDER, ORDER, ORDER, &one,
                          blas.a, BF16, ORDER, blas.b, BF16, ORDER, &zero, blas.c, BF16, ORDER,
                          COMPUTE_32F, DEFAULT_ALGORITHM))
            give_up("a matrix product", "cuBLAS failed");
}

/* Seconds of one product. */
static struct times time_products(void) {
    double t[MOST];
    multiply(WARM_UP);
    for (unsigned i = 0; i < asked.repetitions; i++) {
        must(cudaEventRecord(before, blas.on), "cudaEventRecord");
        multiply(PRODUCTS);
        must(cudaEventRecord(after, blas.on), "cudaEventRecord");
        must(cudaStreamSynchronize(blas.on), "matrix products");
        t[i] = elapsed() / PRODUCTS;
    }
    return sort_times(t, asked.repetitions);
}

/* Loads over and over in a thread of its own. */
struct loading {
    struct paged paged;
    cudaStream_t on;
    atomic_int stop;
    unsigned loads;
    double seconds;
};

static void *load_on(void *state) {
    struct loading *l = state;
    const double start = now();
    while (!atomic_load(&l->stop)) {
        load_pages(&l->paged, l->on);
        l->loads++;
    }
    l->seconds = now() - start;
    return NULL;
}

/* What loading on fewer multiprocessors costs it, and spares others. */
static json_t *bench_beside(uint64_t tokens) {
    json_t *list = json_array();
    const double operations = 2.0 * ORDER * ORDER * ORDER;
    const struct times alone = time_products();
    int least = 0;
    must(cudaDeviceGetStreamPriorityRange(&least, NULL), "priorities");
    for (unsigned i = 0; i < asked.n_sms; i++) {
        struct loading l = {.loads = 0};
        struct kvc_error e;
        struct kvc_cuda_plan_info info = {.size = sizeof info};
        pthread_t thread;
        if (paged_new(&l.paged, tokens, asked.sms[i], &e)) give_up("loading", e.message);
        const struct times undisturbed = time_load(&l.paged);
        must(cudaStreamCreateWithPriority(&l.on, cudaStreamNonBlocking, least), "a stream");
        if (pthread_create(&thread, NULL, load_on, &l)) give_up("loading", "no thread");
        const struct times beside = time_products();
        atomic_store(&l.stop, 1);
        pthread_join(thread, NULL);
        kvc_cuda_plan_describe(l.paged.plan, &info);
        const unsigned held = asked.sms[i] ? asked.sms[i] : device->multiprocessors;
        json_array_append_new(
            list, json_pack("{s:i, s:o, s:f, s:f, s:f, s:f}", "multiprocessors", (int)held,
                            "load alone, decoded", rates((double)info.decoded, undisturbed),
                            "load beside products, decoded, GB/s",
                            (double)info.decoded * l.loads / l.seconds / 1e9,
                            "product alone, TFLOP/s", operations / alone.median / 1e12,
                            "product beside loads, TFLOP/s", operations / beside.median / 1e12,
                            "slowdown of the product", beside.median / alone.median));
        cudaStreamDestroy(l.on);
        paged_free(&l.paged);
    }
    return list;
}

/* --- all of it --- */

static json_t *bench_scenario(const struct made *m, const struct scenario *s, uint64_t tokens,
                              struct times raw) {
    json_t *report = json_pack("{s:s, s:s, s:I}", "name", s->name, "recipe", s->recipe, "bytes",
                               (json_int_t)m->bytes);
    struct kvc_error e;
    double decode_rate = 0, ratio = 0;
    fprintf(stderr, "%" PRIu64 " MiB, %s: packing", m->bytes / MIB, s->name);
    int status = made_pack(m->cache, s->recipe, s->profile ? m->profile : NULL, path, &e);
    if (!status) fprintf(stderr, ", decoding");
    if (!status) status = bench_decode(report, s, &decode_rate, &ratio, &e);
    if (!status) fprintf(stderr, ", loading");
    if (!status) status = bench_load(report, tokens, decode_rate, ratio, raw, &e);
    fprintf(stderr, "%s\n", status ? ": failed" : "");
    if (status) json_object_set_new(report, "failed", json_string(e.message));
    return report;
}

static void bench_size(json_t *report, uint64_t size) {
    const struct made_shape shape = {.tokens = size / TOKEN,
                                     .layers = LAYERS,
                                     .heads = HEADS,
                                     .dim_k = DIM,
                                     .dim_v = DIM,
                                     .dtype = KVC_BF16};
    struct made m;
    struct kvc_error e;
    fprintf(stderr, "%" PRIu64 " MiB: making\n", size / MIB);
    if (made_new(&m, &shape, 1, &e)) give_up("a cache", e.message);
    const struct times raw = time_raw(m.bytes);
    json_array_append_new(json_object_get(report, "raw bytes from pinned memory"),
                          rates((double)m.bytes, raw));
    for (unsigned i = 0; i < SCENARIOS; i++)
        if (asked.wanted[i])
            json_array_append_new(json_object_get(report, "cases"),
                                  bench_scenario(&m, &scenarios[i], shape.tokens, raw));
    if (asked.n_sms && size >= 256 * MIB && !json_object_get(report, "beside matrix products")) {
        json_t *beside = json_object();
        json_object_set_new(report, "beside matrix products", beside);
        if (open_blas(&m)) {
            json_object_set_new(beside, "skipped", json_string("no libcublas"));
        } else {
            for (unsigned i = 0; i < SCENARIOS; i++) {
                if (!asked.wanted[i] ||
                    (strcmp(scenarios[i].name, "quant4") && strcmp(scenarios[i].name, "split")))
                    continue;
                fprintf(stderr, "%s beside matrix products\n", scenarios[i].name);
                if (made_pack(m.cache, scenarios[i].recipe, NULL, path, &e))
                    give_up("packing", e.message);
                json_object_set_new(beside, scenarios[i].name, bench_beside(shape.tokens));
            }
            device->free(device, blas.a);
            device->free(device, blas.b);
            device->free(device, blas.c);
        }
    }
    made_free(&m);
}

/* --- arguments --- */

static const char usage[] =
    "Usage: bench_cuda [--sizes=16M,256M,4G] [--recipes=NAME,...] [--sms=0,32,16,8] "
    "[--repetitions=15] [--quick]\n"
    "  --sizes         of decoded caches; at least 1M\n"
    "  --recipes       of store fast split quant2 quant4 quant8 gear4 minicache small\n"
    "  --sms           multiprocessors that loading may hold beside a matrix product; 0: all; "
    "empty: none of that\n"
    "  --quick         16M and 256M, 5 repetitions, no matrix product\n";

static _Noreturn void refuse(const char *what) {
    fprintf(stderr, "bench_cuda: '%s' makes no sense\n%s", what, usage);
    exit(2);
}

static void parse_sizes(char *list) {
    asked.n_sizes = 0;
    for (char *s = strtok(list, ","); s; s = strtok(NULL, ",")) {
        char *end;
        uint64_t n = strtoull(s, &end, 10);
        n *= *end == 'G' ? 1024 * MIB : *end == 'M' ? MIB : 1;
        if (n < MIB || asked.n_sizes == MOST) refuse(s);
        asked.size[asked.n_sizes++] = n;
    }
}

static void parse_recipes(char *list) {
    memset(asked.wanted, 0, sizeof asked.wanted);
    for (char *s = strtok(list, ","); s; s = strtok(NULL, ",")) {
        unsigned i = 0;
        while (i < SCENARIOS && strcmp(scenarios[i].name, s)) i++;
        if (i == SCENARIOS) refuse(s);
        asked.wanted[i] = 1;
    }
}

static void parse(int argc, char **argv) {
    static const struct option options[] = {{"sizes", 1, NULL, 's'},
                                            {"recipes", 1, NULL, 'r'},
                                            {"sms", 1, NULL, 'm'},
                                            {"repetitions", 1, NULL, 'n'},
                                            {"quick", 0, NULL, 'q'},
                                            {"help", 0, NULL, 'h'},
                                            {0}};
    for (unsigned i = 0; i < SCENARIOS; i++) asked.wanted[i] = 1;
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (o == 's') parse_sizes(optarg);
        else if (o == 'r') parse_recipes(optarg);
        else if (o == 'n') asked.repetitions = (unsigned)strtoul(optarg, NULL, 10);
        else if (o == 'q') asked.n_sizes = 2, asked.repetitions = 5, asked.n_sms = 0;
        else if (o == 'm') {
            asked.n_sms = 0;
            for (char *s = strtok(optarg, ","); s && asked.n_sms < MOST; s = strtok(NULL, ","))
                asked.sms[asked.n_sms++] = (unsigned)strtoul(s, NULL, 10);
        } else {
            fprintf(o == 'h' ? stdout : stderr, "%s", usage);
            exit(o == 'h' ? 0 : 2);
        }
    }
    if (optind < argc) refuse(argv[optind]);
    if (!asked.repetitions || asked.repetitions > MOST) refuse("--repetitions");
}

int main(int argc, char **argv) {
    struct kvc_error e;
    parse(argc, argv);
    if (!(device = kvc_device_cuda(0, &e))) {
        printf("SKIPPED: nothing is measured on a GPU: %s\n", e.message);
        return 0;
    }
    if (strncmp(device->name, "cuda:", 5) != 0) {
        fprintf(stderr, "bench_cuda: %s is no GPU, its figures would mean nothing\n", device->name);
        return 2;
    }
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/kvc-bench.XXXXXX", folder ? folder : "/tmp");
    const int fd = mkstemp(path);
    if (fd < 0) give_up(path, "no temporary file");
    close(fd);
    must(cudaSetDevice(0), "device 0");
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    must(cudaEventCreate(&before), "an event");
    must(cudaEventCreate(&after), "an event");
    flush = take(FLUSH);
    json_t *report = json_pack("{s:s, s:s, s:i, s:i, s:[], s:[]}", "device", device->name,
                               "built for", kvc_cuda_build(), "multiprocessors",
                               (int)device->multiprocessors, "repetitions", (int)asked.repetitions,
                               "raw bytes from pinned memory", "cases");
    for (unsigned i = 0; i < asked.n_sizes; i++) bench_size(report, asked.size[i]);
    json_dumpf(report, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(report);
    unlink(path);
    device->free(device, flush);
    device->close(device);
    return 0;
}
