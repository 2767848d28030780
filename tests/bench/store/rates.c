/* rates.c: `rates STORE RECIPE FILE [CHUNK]` puts the cache FILE, packed by RECIPE in chunks of
 * CHUNK tokens, into a store, and prints how long putting, finding, reading and loading it take:
 * `make bench-store`. */
#include "formats/store/dir/dir.h"
#include "formats/store/store.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define RUNS 11

static int by_time(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Seconds by the clock, and those of all cores that the process took. */
struct times {
    double s[RUNS], cpu[RUNS];
};

static double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* Sorts times, and prints a row with their median and minimum, and a rate if there are bytes. */
static void print_times(const char *what, struct times *t, size_t n, uint64_t bytes) {
    qsort(t->s, n, sizeof *t->s, by_time);
    qsort(t->cpu, n, sizeof *t->cpu, by_time);
    const double median = t->s[n / 2];
    printf("%-38s %8.2f ms, minimum %8.2f  CPU %8.2f ms, minimum %8.2f", what, 1000 * median,
           1000 * t->s[0], 1000 * t->cpu[n / 2], 1000 * t->cpu[0]);
    if (bytes) printf("  %7.2f GiB/s", (double)bytes / median / (1 << 30));
    printf("\n");
}

/* Memory for the rows of a cache: an array for each K and V, densely packed. */
struct rows {
    struct kvc_memory memory;
    struct kvc_memory_array *array;
    uint64_t bytes;
};

static void free_rows(struct rows *r) {
    for (size_t i = 0; i < r->memory.n_arrays; i++) free(r->array[i].data);
    free(r->array);
}

static int make_rows(struct rows *r, const struct kvc_file *f, uint64_t tokens) {
    const uint32_t n = kvc_file_tensors(f);
    struct kvc_tensor_info info = {.size = sizeof info};
    *r = (struct rows){.array = calloc(n + 1, sizeof *r->array)};
    if (!r->array) return -1;
    r->memory = (struct kvc_memory){.size = sizeof r->memory,
                                    .array_size = sizeof *r->array,
                                    .arrays = r->array,
                                    .tokens = tokens};
    for (uint32_t i = 0; i < n; i++) {
        if (kvc_file_tensor(f, i, &info) || strcmp(info.part, "live") != 0) continue;
        struct kvc_memory_array *a = &r->array[r->memory.n_arrays];
        const uint64_t head = info.row_bytes / info.heads;
        *a = (struct kvc_memory_array){.role = info.role,
                                       .layer = info.layer,
                                       .dtype = info.dtype,
                                       .heads = info.heads,
                                       .dim = info.dim,
                                       .data = malloc((size_t)(tokens * info.row_bytes) + 1),
                                       .token = (int64_t)info.row_bytes,
                                       .head = (int64_t)head,
                                       .channel = (int64_t)(head / info.dim)};
        if (!a->data) return -1;
        /* pages that exist, as an engine's do */
        memset(a->data, 1, (size_t)(tokens * info.row_bytes));
        r->memory.n_arrays++;
        r->bytes += tokens * info.row_bytes;
    }
    return 0;
}

/* Returns 1 and the path of an object if it is a file. */
static int path_of(const struct kvc_store *s, const struct kvc_store_hit *hit, size_t i,
                   char path[4096]) {
    const struct kvc_store_tier *l = &s->tier[hit->tier[i]];
    char below[KVC_ROOT_PATH];
    if (l->ops != &kvc_tier_dir) return 0;
    kvc_root_path(&hit->object[i], below);
    return snprintf(path, 4096, "%s/%s", ((const struct kvc_dir *)l->tier)->root.path, below) <
           4096;
}

/* Takes the files of a hit out of the page cache. */
static void make_cold(const struct kvc_store *s, const struct kvc_store_hit *hit) {
    char path[4096];
    for (size_t i = 0; i < hit->chunks; i++) {
        const int fd = path_of(s, hit, i, path) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        if (fd < 0) continue;
        fsync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
}

/* Reads the files of a hit one after another, as dd does, into one buffer. */
static uint64_t read_plainly(const struct kvc_store *s, const struct kvc_store_hit *hit,
                             void *buffer, size_t size) {
    uint64_t bytes = 0;
    char path[4096];
    for (size_t i = 0; i < hit->chunks; i++) {
        const int fd = path_of(s, hit, i, path) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        for (ssize_t n; fd >= 0 && (n = read(fd, buffer, size)) > 0;) bytes += (uint64_t)n;
        if (fd >= 0) close(fd);
    }
    return bytes;
}

static int take_chunk(void *state, uint64_t first, uint64_t tokens, const void *data, size_t size) {
    uint64_t *bytes = state;
    (void)first, (void)tokens, (void)data;
    *bytes += size;
    return 0;
}

enum { FIND, PLAIN, CHECKED, LOADED, WAYS };

/* Times each way once. The files lie in the page cache, or do not. */
static int measure_once(struct kvc_store_namespace *ns, const int32_t *tokens, uint64_t n,
                        struct rows *rows, int cold, struct times t[WAYS], size_t run,
                        uint64_t *bytes, struct kvc_error *e) {
    const struct kvc_store_load_options load = {.size = sizeof load, .timeout_us = 600000000};
    const struct kvc_store_find_options find = {.size = sizeof find, .timeout_us = 10000000};
    static uint8_t buffer[4 << 20];
    uint64_t checked = 0;
    kvc_instant began = kvc_now();
    double cpu = cpu_seconds();
    struct kvc_store_hit *hit = kvc_store_find(ns, tokens, n, &find, e);
    t[FIND].s[run] = (double)(kvc_now() - began) / 1e6;
    t[FIND].cpu[run] = cpu_seconds() - cpu;
    int status = hit ? 0 : -1;
    if (hit && !hit->chunks)
        status = kvc_fail(e, KVC_ERR_USAGE, "no chunk of %" PRIu64 " tokens was found", ns->chunk);
    for (int way = PLAIN; way < WAYS && !status; way++) {
        if (cold) make_cold(ns->store, hit);
        began = kvc_now();
        cpu = cpu_seconds();
        if (way == PLAIN) *bytes = read_plainly(ns->store, hit, buffer, sizeof buffer);
        else if (way == CHECKED)
            status = kvc_store_chunks(hit, &load, take_chunk, &checked, e) > 0 ? 0 : -1;
        else status = kvc_store_load(hit, &rows->memory, &load, e) > 0 ? 0 : -1;
        t[way].s[run] = (double)(kvc_now() - began) / 1e6;
        t[way].cpu[run] = cpu_seconds() - cpu;
    }
    if (!*bytes) *bytes = checked;
    kvc_store_hit_free(hit);
    return status;
}

/* Finds, reads plainly, reads with all checks, and loads, again and again. */
static int measure(struct kvc_store_namespace *ns, const struct kvc_file *f, struct kvc_error *e) {
    static const char *const what[2][WAYS] = {{"find", "plain reading of the files",
                                               "read and check objects", "load into memory"},
                                              {"find", "plain reading, not in the page cache",
                                               "read and check, not in the page cache",
                                               "load, not in the page cache"}};
    struct times t[WAYS];
    struct rows rows;
    uint64_t n = 0, bytes = 0;
    const int32_t *tokens = kvc_file_tokens(f, &n);
    /* only these can be read by other means */
    const int files = ns->store->tier[0].ops == &kvc_tier_dir;
    int status = make_rows(&rows, f, n / ns->chunk * ns->chunk) ? kvc_fail_memory(e, "rows") : 0;
    for (int cold = 0; cold <= files && !status; cold++) {
        const size_t runs = cold ? RUNS / 3 : RUNS;
        for (size_t i = 0; i < runs && !status; i++)
            status = measure_once(ns, tokens, n, &rows, cold, t, i, &bytes, e);
        for (int way = cold ? PLAIN : FIND; way < WAYS && !status; way++)
            if (way != PLAIN || files)
                print_times(what[cold][way], &t[way], runs, way == FIND ? 0 : bytes);
    }
    if (!status) printf("objects of %" PRIu64 " bytes, rows of %" PRIu64 "\n", bytes, rows.bytes);
    free_rows(&rows);
    return status;
}

/* Puts the file, and measures. */
static int run(const char *tiers, const char *recipe, const char *path, uint64_t chunk,
               struct kvc_error *e) {
    const struct kvc_store_options open = {.size = sizeof open,
                                           .backends = getenv("KVC_STORE_BACKENDS"),
                                           .threads = 4};
    const struct kvc_store_namespace_options like = {.size = sizeof like,
                                                     .recipe = recipe,
                                                     .chunk = chunk};
    const struct kvc_store_put_options put = {.size = sizeof put, .wait = 1};
    struct kvc_file *f = kvc_file_open(path, NULL, e);
    struct kvc_store *s = f ? kvc_store_open(tiers, &open, e) : NULL;
    struct kvc_store_namespace *ns = s ? kvc_store_namespace_like(s, f, &like, e) : NULL;
    int status = ns ? 0 : -1;
    const kvc_instant began = kvc_now();
    const double cpu = cpu_seconds();
    if (!status) status = kvc_store_put(ns, f, &put, e);
    struct times took = {{(double)(kvc_now() - began) / 1e6}, {cpu_seconds() - cpu}};
    if (!status) print_times("put (what was lacking)", &took, 1, 0);
    if (!status) status = measure(ns, f, e);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    kvc_file_close(f);
    return status;
}

int main(int argc, char **argv) {
    struct kvc_error e;
    if (argc < 4 || argc > 5) {
        fputs("usage: rates STORE RECIPE FILE [CHUNK]\n", stderr);
        return 2;
    }
    if (!run(argv[1], argv[2], argv[3], argc == 5 ? strtoull(argv[4], NULL, 10) : 0, &e)) return 0;
    fprintf(stderr, "rates: %s\n", e.message);
    return 2;
}
