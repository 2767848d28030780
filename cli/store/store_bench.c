/* store_bench.c: kvc-store bench: the hit ratio of a trace, and the rates of a store. */
#include "cli/store/store_tool.h"
#include "formats/store/dir/policy.h"
#include "formats/store/store.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- traces --- */

/* Requests of a trace: the ids of their blocks, one after another. */
struct trace {
    uint64_t *id;
    size_t n, room; /* ids */
    size_t *first;  /* of each request, and the end */
    size_t requests, room_requests;
    uint64_t unique;
};

static int keep_id(struct trace *x, uint64_t id) {
    if (x->n == x->room) {
        const size_t room = x->room ? 2 * x->room : 65536;
        uint64_t *more = realloc(x->id, room * sizeof *more);
        if (!more) return -1;
        x->id = more;
        x->room = room;
    }
    x->id[x->n++] = id;
    return 0;
}

static int keep_request(struct trace *x) {
    if (x->requests + 1 >= x->room_requests) {
        const size_t room = x->room_requests ? 2 * x->room_requests : 4096;
        size_t *more = realloc(x->first, room * sizeof *more);
        if (!more) return -1;
        x->first = more;
        x->room_requests = room;
    }
    x->first[x->requests++] = x->n;
    return 0;
}

static int bad_line(size_t number, const char *what) {
    cli_warn("--trace: line %zu %s", number, what);
    return EXIT_TROUBLE;
}

static int read_line(struct trace *x, const char *line, size_t number) {
    json_error_t why;
    json_t *j = json_loads(line, 0, &why);
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
    if (!status) x->first[x->requests] = x->n;
    free(text);
    kvc_input_close(&in);
    return status;
}

/* --- replaying --- */

#define BLOCK UINT64_C(1048576) /* bytes that a block stands for */

struct replay {
    const struct trace *trace;
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
    char folder[4096], path[4120];
    struct replay r = {.trace = x, .limit = (uint64_t)(per_cent / 100 * (double)x->unique) * BLOCK};
    struct kvc_error e;
    int made, status = EXIT_SAME;
    const int length = snprintf(folder, sizeof folder, "%s/kvc-trace-XXXXXX", temporary && *temporary ? temporary : "/tmp");
    if (length >= (int)sizeof folder || !mkdtemp(folder)) {
        cli_warn("%s: no temporary folder can be made: %s", folder, strerror(errno));
        return EXIT_TROUBLE;
    }
    if (!(r.index = kvc_index_open(folder, 0, &made, &e))) status = store_trouble(&e);
    for (size_t i = 0; i < x->requests && !status; i++)
        if (replay_one(&r, x->id + x->first[i], x->first[i + 1] - x->first[i], &e)) status = store_trouble(&e);
    kvc_index_close(r.index);
    snprintf(path, sizeof path, "%s/index.mdb", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/index.mdb-lock", folder);
    unlink(path);
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
    for (char *end; *p; p = *end ? end + 1 : end) {
        const double per_cent = strtod(p, &end);
        if (end == p || !(per_cent > 0 && per_cent <= 1000) || (*end && *end != ','))
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
        char *end;
        status = replay(t, &x, strtod(p, &end));
        p = *end ? end + 1 : end;
    }
    if (t->json && x.first) cli_json_close(&t->report);
    free(x.id);
    free(x.first);
    return status;
}

/* --- rates --- */

int store_bench(struct store_tool *t) {
    if (t->trace) return bench_trace(t);
    return cli_usage("kvc-store bench needs --trace=FILE");
}
