/* store_bench.c: kvc-store bench: the hit ratio of a trace, and the rates of a store. */
#include "cli/store/store_tool.h"
#include "codecs/memory.h"
#include "codecs/number.h"
#include "formats/io/json_text.h"
#include "formats/store/dir/dir.h"
#include "formats/store/dir/policy.h"
#include "formats/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- traces --- */

/* Requests of a trace: the ids of their blocks, one after another. */
struct trace {
    uint64_t *id;
    size_t n;      /* ids */
    size_t *first; /* of each request, and the end */
    size_t requests;
    uint64_t unique;
};

static int keep_id(struct trace *x, uint64_t id) {
    uint64_t *more = kvc_room_for_one(x->id, x->n, sizeof *more);
    if (!more) return -1;
    x->id = more;
    x->id[x->n++] = id;
    return 0;
}

/* Notes where a request begins, or after the last one, where it ends. */
static int keep_start(struct trace *x, size_t request) {
    size_t *more = kvc_room_for_one(x->first, request, sizeof *more);
    if (!more) return -1;
    x->first = more;
    x->first[request] = x->n;
    return 0;
}

static int keep_request(struct trace *x) {
    if (keep_start(x, x->requests)) return -1;
    x->requests++;
    return 0;
}

static int bad_line(size_t number, const char *what) {
    cli_warn("--trace: line %zu %s", number, what);
    return EXIT_TROUBLE;
}

static int read_line(struct trace *x, const char *line, size_t number) {
    json_error_t why;
    json_t *j = kvc_json_load(line, strlen(line), 0, &why);
    const json_t *ids = json_object_get(j, "hash_ids");
    int status = json_is_array(ids) ? keep_request(x) : bad_line(number, "is no object with \"hash_ids\"");
    for (size_t i = 0; i < json_array_size(ids) && !status; i++) {
        const json_t *id = json_array_get(ids, i);
        status = json_is_integer(id) && json_integer_value(id) >= 0
                     ? keep_id(x, (uint64_t)json_integer_value(id))
                     : bad_line(number, "has an id that is no whole number from 0 on");
    }
    json_decref(j);
    return status;
}

static int by_value(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static int count_unique(struct trace *x) {
    uint64_t *sorted = malloc(x->n * sizeof *sorted + 1);
    if (!sorted) return -1;
    memcpy(sorted, x->id, x->n * sizeof *sorted);
    qsort(sorted, x->n, sizeof *sorted, by_value);
    for (size_t i = 0; i < x->n; i++) x->unique += !i || sorted[i] != sorted[i - 1];
    free(sorted);
    return 0;
}

static int read_trace(struct trace *x, const char *path) {
    struct kvc_input in;
    struct kvc_error e;
    if (kvc_input_open(&in, path, &e)) return store_trouble(&e);
    char *text = malloc((size_t)in.size + 1);
    if (!text) kvc_fail_memory(&e, "a trace");
    int status = text && !kvc_input_read(&in, 0, text, in.size, &e) ? EXIT_SAME : store_trouble(&e);
    size_t number = 0;
    if (text) text[in.size] = '\0';
    for (char *line = text, *next; line && *line && !status; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        number++;
        if (*line) status = read_line(x, line, number) ? EXIT_TROUBLE : EXIT_SAME;
    }
    if (!status && (!x->n || count_unique(x))) {
        cli_warn("%s: there are no requests with blocks in it", path);
        status = EXIT_TROUBLE;
    }
    if (!status && keep_start(x, x->requests)) status = EXIT_TROUBLE;
    free(text);
    kvc_input_close(&in);
    return status;
}

/* --- replaying --- */

#define BLOCK UINT64_C(1048576) /* bytes that a block stands for */

struct replay {
    struct kvc_index *index;
    uint64_t limit, asked, hit, written;
};

static void key_of(uint64_t id, uint8_t *key) {
    uint64_t x = id + 1;
    for (unsigned i = 0; i < KVC_OBJECT_KEY; i++) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        key[i] = (uint8_t)(x >> 56);
    }
}

/* Makes room as a directory store does. 1: the new block itself goes. */
static int make_room(struct replay *r, struct kvc_index_txn *t, const uint8_t *own, struct kvc_error *e) {
    const struct kvc_policy_choice choice = {.keep = own, .own = own};
    uint8_t key[KVC_OBJECT_KEY];
    struct kvc_index_record record;
    while (kvc_index_sums(t)->bytes > r->limit) {
        if (kvc_policy_victim(t, &choice, key, &record, e) <= 0) return -1;
        if (kvc_policy_evicted(t, key, &record, e)) return -1;
        if (memcmp(key, own, sizeof key) == 0) return 1;
    }
    return 0;
}

static int insert(struct replay *r, struct kvc_index_txn *t, const uint8_t *key, const uint8_t *parent, struct kvc_error *e) {
    struct kvc_index_record old, record = {.size = BLOCK, .cost = 1};
    const int known = kvc_index_get(t, key, &old, e);
    if (known < 0) return -1;
    if (parent) {
        record.has_parent = 1;
        memcpy(record.parent, parent, KVC_OBJECT_KEY);
    }
    kvc_policy_tick(t, BLOCK);
    if (kvc_policy_insert(t, key, known ? &old : NULL, &record, e)) return -1;
    return make_room(r, t, key, e);
}

/* Notes a block that is not put, as those before it were not. */
static int miss(struct kvc_index_txn *t, const uint8_t *key, struct kvc_error *e) {
    struct kvc_index_record old, record = {.size = BLOCK, .cost = 1};
    const int known = kvc_index_get(t, key, &old, e);
    if (known < 0) return -1;
    if (known && !old.ghost) return 0;
    kvc_policy_tick(t, BLOCK);
    return kvc_policy_missed(t, key, known ? &old : NULL, &record, e);
}

/* Looks for a request's prefix, touches it, and puts the rest. */
static int replay_one(struct replay *r, const uint64_t *id, size_t n, struct kvc_error *e) {
    struct kvc_index_txn *t = kvc_index_begin(r->index, 1, e);
    struct kvc_index_record record;
    uint8_t key[KVC_OBJECT_KEY], parent[KVC_OBJECT_KEY];
    size_t found = 0;
    int status = t ? 1 : -1;
    if (t) kvc_policy_begin(t, r->limit);
    for (; found < n && status > 0; found += status > 0) {
        key_of(id[found], key);
        status = kvc_index_get(t, key, &record, e);
        if (status > 0 && record.ghost) status = 0;
    }
    if (status >= 0) kvc_policy_tick(t, found * BLOCK);
    for (size_t i = 0; i < found && status >= 0; i++) {
        key_of(id[i], key);
        status = kvc_index_get(t, key, &record, e);
        if (status > 0) status = kvc_policy_touch(t, key, &record, 0, e);
    }
    if (status > 0) status = 0;
    for (size_t i = found; i < n && !status; i++) {
        if (i) key_of(id[i - 1], parent);
        key_of(id[i], key);
        status = insert(r, t, key, i ? parent : NULL, e);
        r->written += !status;
        if (status > 0)
            for (size_t k = i + 1; k < n && status > 0; k++) {
                key_of(id[k], key);
                if (miss(t, key, e)) status = -1;
            }
    }
    r->asked += n;
    r->hit += found;
    if (status >= 0) return kvc_index_commit(t, e);
    kvc_index_abort(t);
    return -1;
}

static int replay(struct store_tool *t, const struct trace *x, double per_cent) {
    const char *temporary = getenv("TMPDIR");
    char folder[4096];
    struct replay r = {.limit = (uint64_t)(per_cent / 100 * (double)x->unique) * BLOCK};
    struct kvc_error e;
    int made, status = EXIT_SAME;
    const int length = snprintf(folder, sizeof folder, "%s/kvc-trace-XXXXXX", temporary && *temporary ? temporary : "/tmp");
    if (length >= (int)sizeof folder || !mkdtemp(folder)) {
        cli_warn("%s: no temporary folder can be made: %s", folder, strerror(errno));
        return EXIT_TROUBLE;
    }
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (!(r.index = kvc_index_open(fd, &made, &e))) status = store_trouble(&e);
    for (size_t i = 0; i < x->requests && !status; i++)
        if (replay_one(&r, x->id + x->first[i], x->first[i + 1] - x->first[i], &e)) status = store_trouble(&e);
    kvc_index_close(r.index);
    unlinkat(fd, KVC_INDEX_NAME, 0);
    unlinkat(fd, KVC_INDEX_JOURNAL, 0);
    if (fd >= 0) close(fd);
    rmdir(folder);
    if (status) return status;
    const double ratio = 100 * (double)r.hit / (double)r.asked, writes = (double)r.written / (double)x->unique;
    if (t->json) {
        cli_json_open(&t->report, NULL, '{');
        cli_json_f64(&t->report, "capacity", per_cent);
        cli_json_f64(&t->report, "hits", ratio);
        cli_json_f64(&t->report, "written", writes);
        cli_json_close(&t->report);
    } else {
        printf("%8g %%  %9.1f  %9.2f\n", per_cent, ratio, writes);
    }
    return EXIT_SAME;
}

/* Refuses a list of per cents that is none, before anything is printed. */
static int check_capacities(const char *p) {
    for (const char *end; *p; p = *end ? end + 1 : end) {
        double per_cent = 0;
        end = kvc_number_begin(p, &per_cent);
        if (!end || !(per_cent > 0 && per_cent <= 1000) || (*end && *end != ','))
            return cli_usage("--capacity takes per cents up to 1000, as 1,3,10, and not '%s'", p);
    }
    return EXIT_SAME;
}

static int bench_trace(struct store_tool *t) {
    struct trace x = {.n = 0};
    const char *p = t->capacity && *t->capacity ? t->capacity : "1,3,10,30";
    int status = check_capacities(p) ? EXIT_TROUBLE : read_trace(&x, t->trace);
    if (!status && t->json) cli_json_open(&t->report, "results", '[');
    else if (!status)
        printf("%zu requests of %zu blocks, %" PRIu64 " of them different\ncapacity    hits (%%)  written\n", x.requests, x.n,
               x.unique);
    while (!status && *p) {
        double per_cent = 0;
        const char *end = kvc_number_begin(p, &per_cent);
        status = replay(t, &x, per_cent);
        p = *end ? end + 1 : end;
    }
    if (t->json && x.first) cli_json_close(&t->report);
    free(x.id);
    free(x.first);
    return status;
}

/* --- rates --- */

#define RUNS 11

static int by_time(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Sorts times in seconds, and prints a row with their median and 99th percentile, and a rate if there are bytes. */
static void print_times(struct store_tool *t, const char *what, double *s, size_t n, uint64_t bytes) {
    qsort(s, n, sizeof *s, by_time);
    const double median = s[n / 2], late = s[(n - 1) * 99 / 100];
    if (t->json) {
        cli_json_open(&t->report, NULL, '{');
        cli_json_text(&t->report, "what", what);
        cli_json_f64(&t->report, "median_ms", 1000 * median);
        cli_json_f64(&t->report, "p99_ms", 1000 * late);
        if (bytes) cli_json_f64(&t->report, "gb_per_s", (double)bytes / median / 1e9);
        cli_json_close(&t->report);
    } else {
        printf("%-44s %9.3f ms  p99 %9.3f ms", what, 1000 * median, 1000 * late);
        if (bytes) printf("  %7.2f GiB/s", (double)bytes / median / (1 << 30));
        printf("\n");
    }
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
    r->memory =
        (struct kvc_memory){.size = sizeof r->memory, .array_size = sizeof *r->array, .arrays = r->array, .tokens = tokens};
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
                                       .token = info.row_bytes,
                                       .head = head,
                                       .channel = head / info.dim};
        if (!a->data) return -1;
        memset(a->data, 1, (size_t)(tokens * info.row_bytes)); /* pages that exist, as an engine's do */
        r->memory.n_arrays++;
        r->bytes += tokens * info.row_bytes;
    }
    return 0;
}

/* Returns 1 and the path of an object if it is a file. */
static int path_of(const struct store_tool *t, const struct kvc_store_hit *hit, size_t i, char path[4096]) {
    const struct kvc_store_level *l = &t->s->level[hit->level[i]];
    char below[KVC_ROOT_PATH];
    if (l->ops != &kvc_level_dir) return 0;
    kvc_root_path(&hit->object[i], below);
    return snprintf(path, 4096, "%s/%s", ((const struct kvc_dir *)l->level)->root.path, below) < 4096;
}

/* Takes the files of a hit out of the page cache. */
static void make_cold(const struct store_tool *t, const struct kvc_store_hit *hit) {
    char path[4096];
    for (size_t i = 0; i < hit->chunks; i++) {
        const int fd = path_of(t, hit, i, path) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        if (fd < 0) continue;
        fsync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
}

/* Reads the files of a hit one after another, as dd does, into one buffer. */
static uint64_t read_plainly(const struct store_tool *t, const struct kvc_store_hit *hit, void *buffer, size_t size) {
    uint64_t bytes = 0;
    char path[4096];
    for (size_t i = 0; i < hit->chunks; i++) {
        const int fd = path_of(t, hit, i, path) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
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
static int measure_once(struct store_tool *t, struct kvc_store_space *space, const int32_t *tokens, uint64_t n, struct rows *rows,
                        int cold, double s[WAYS], uint64_t *bytes) {
    const struct kvc_store_load_options load = {.size = sizeof load, .deadline = 600000000};
    const struct kvc_store_find_options find = {.size = sizeof find, .deadline = 10000000};
    static uint8_t buffer[4 << 20];
    uint64_t checked = 0;
    struct kvc_error e;
    kvc_instant began = kvc_now();
    struct kvc_store_hit *hit = kvc_store_find(space, tokens, n, &find, &e);
    s[FIND] = (double)(kvc_now() - began) / 1e6;
    if (!hit || !hit->chunks) {
        kvc_store_hit_free(hit);
        return cli_usage("what was put is not found again");
    }
    for (int way = PLAIN; way < WAYS; way++) {
        if (cold) make_cold(t, hit);
        began = kvc_now();
        if (way == PLAIN) *bytes = read_plainly(t, hit, buffer, sizeof buffer);
        else if (way == CHECKED) kvc_store_chunks(hit, &load, take_chunk, &checked, &e);
        else kvc_store_load(hit, &rows->memory, &load, &e);
        s[way] = (double)(kvc_now() - began) / 1e6;
    }
    if (!*bytes) *bytes = checked;
    kvc_store_hit_free(hit);
    return EXIT_SAME;
}

/* Finds, reads plainly, reads with all checks, and loads, again and again. */
static int measure(struct store_tool *t, struct kvc_store_space *space, const struct kvc_file *f, const int32_t *tokens,
                   uint64_t n) {
    static const char *const what[2][WAYS] = {{"find", "plain reading of the files", "read and check objects",
                                               "load into memory"},
                                              {"find", "plain reading, not in the page cache",
                                               "read and check, not in the page cache", "load, not in the page cache"}};
    double s[WAYS][RUNS], one[WAYS];
    struct rows rows;
    uint64_t bytes = 0;
    const int files = t->s->level[0].ops == &kvc_level_dir; /* only these can be read by other means */
    int status = make_rows(&rows, f, n / space->chunk * space->chunk) ? EXIT_TROUBLE : EXIT_SAME;
    for (int cold = 0; cold <= files && !status; cold++) {
        const size_t runs = cold ? RUNS / 3 : RUNS;
        for (size_t i = 0; i < runs && !status; i++) {
            status = measure_once(t, space, tokens, n, &rows, cold, one, &bytes);
            for (int way = 0; way < WAYS; way++) s[way][i] = one[way];
        }
        for (int way = cold ? PLAIN : FIND; way < WAYS && !status; way++)
            if (way != PLAIN || files) print_times(t, what[cold][way], s[way], runs, way == FIND ? 0 : bytes);
    }
    if (!status && !t->json) printf("objects of %" PRIu64 " bytes, rows of %" PRIu64 "\n", bytes, rows.bytes);
    free_rows(&rows);
    return status;
}

int store_bench(struct store_tool *t) {
    struct kvc_error e;
    uint64_t n = 0;
    const struct kvc_store_put_options put = {.size = sizeof put, .wait = 1};
    if (t->trace) return bench_trace(t);
    if (!t->store || t->n != 1)
        return cli_usage("kvc-store bench needs --trace=FILE, or a store and a cache FILE that is put into it");
    struct kvc_file *f = store_open_file(t, t->operand[0]);
    struct kvc_store_space *space = f ? kvc_store_space_like(t->s, f, &t->of_space, &e) : NULL;
    int status = !f ? EXIT_TROUBLE : !space ? store_trouble(&e) : EXIT_SAME;
    size_t chunks = 0;
    if (!status && kvc_put_check(space, f, &chunks, &n, &e)) status = store_trouble(&e);
    if (!status && !chunks) status = cli_usage("%s: it has less than a chunk of %" PRIu64 " tokens", t->operand[0], space->chunk);
    if (!status && !t->s) status = store_open(t, 0);
    if (!status) space->store = t->s;
    const int32_t *tokens = f ? kvc_file_tokens(f, &n) : NULL;
    const kvc_instant began = kvc_now();
    if (!status && kvc_store_put(space, f, &put, &e)) status = store_trouble(&e);
    double took = (double)(kvc_now() - began) / 1e6;
    if (!status && t->json) cli_json_open(&t->report, "rates", '[');
    if (!status) print_times(t, "put (what was lacking)", &took, 1, 0);
    if (!status) status = measure(t, space, f, tokens, n);
    if (f && space && t->json) cli_json_close(&t->report);
    kvc_store_space_close(space);
    kvc_file_close(f);
    return status;
}
