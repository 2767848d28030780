/* trace.c: `trace FILE [PERCENT,...]` replays requests on the index of a directory store, without
 * storing anything, and prints how many of their blocks were found, for stores that hold 1, 3, 10
 * and 30 per cent, or PERCENT, of all different blocks. "written" is how often blocks were written,
 * per different block. A line of FILE ("-": standard input) is a request, which looks for its
 * longest prefix that is stored and puts the blocks after it: an object of JSON whose "hash_ids" is
 * an array of whole numbers from 0 on, one for each block of the prompt in order. Equal numbers are
 * equal blocks after equal blocks: a number must always come after the same one. Other keys are
 * ignored; the traces that Mooncake published have this form. */
#include "codecs/memory.h"
#include "codecs/number.h"
#include "formats/io/input.h"
#include "formats/io/json_text.h"
#include "formats/store/dir/policy.h"
#include "formats/store/dir/root.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DONE = 0, TROUBLE = 2 };

/* Prints a message; returns TROUBLE. */
__attribute__((format(printf, 1, 2))) static int trouble(const char *format, ...) {
    va_list arguments;
    fflush(stdout);
    fputs("trace: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return TROUBLE;
}

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

static int read_line(struct trace *x, const char *line, size_t number) {
    json_error_t why;
    json_t *j = kvc_json_load(line, strlen(line), 0, &why);
    const json_t *ids = json_object_get(j, "hash_ids");
    int status = json_is_array(ids) ? keep_request(x)
                                    : trouble("line %zu is no object with \"hash_ids\"", number);
    for (size_t i = 0; i < json_array_size(ids) && !status; i++) {
        const json_t *id = json_array_get(ids, i);
        status = json_is_integer(id) && json_integer_value(id) >= 0
                     ? keep_id(x, (uint64_t)json_integer_value(id))
                     : trouble("line %zu has an id that is no whole number from 0 on", number);
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
    if (kvc_input_open(&in, path, &e)) return trouble("%s", e.message);
    char *text = malloc((size_t)in.size + 1);
    if (!text) kvc_fail_memory(&e, "a trace");
    int status = text && !kvc_input_read(&in, 0, text, in.size, &e) ? DONE
                                                                    : trouble("%s", e.message);
    size_t number = 0;
    if (text) text[in.size] = '\0';
    for (char *line = text, *next; line && *line && !status; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        number++;
        if (*line) status = read_line(x, line, number) ? TROUBLE : DONE;
    }
    if (!status && (!x->n || count_unique(x)))
        status = trouble("%s: there are no requests with blocks in it", path);
    if (!status && keep_start(x, x->requests)) status = TROUBLE;
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
static int make_room(struct replay *r, struct kvc_index_txn *t, const uint8_t *own,
                     struct kvc_error *e) {
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

static int insert(struct replay *r, struct kvc_index_txn *t, const uint8_t *key,
                  const uint8_t *parent, struct kvc_error *e) {
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

static int replay(const struct trace *x, double per_cent) {
    const char *named = getenv("TMPDIR"), *temporary = named && *named ? named : "/tmp";
    char folder[4096];
    struct replay r = {.limit = (uint64_t)(per_cent / 100 * (double)x->unique) * BLOCK};
    struct kvc_error e;
    int made, status = DONE;
    const int length = snprintf(folder, sizeof folder, "%s/kvc-trace-XXXXXX", temporary);
    if (length >= (int)sizeof folder || !mkdtemp(folder))
        return trouble("%s: no folder can be made there: %s", temporary, strerror(errno));
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (!(r.index = kvc_index_open(fd, &made, &e))) status = trouble("%s", e.message);
    for (size_t i = 0; i < x->requests && !status; i++)
        if (replay_one(&r, x->id + x->first[i], x->first[i + 1] - x->first[i], &e))
            status = trouble("%s", e.message);
    kvc_index_close(r.index);
    unlinkat(fd, KVC_INDEX_NAME, 0);
    unlinkat(fd, KVC_INDEX_JOURNAL, 0);
    if (fd >= 0) close(fd);
    rmdir(folder);
    if (status) return status;
    const double ratio = 100 * (double)r.hit / (double)r.asked,
                 writes = (double)r.written / (double)x->unique;
    printf("%8g %%  %9.1f  %9.2f\n", per_cent, ratio, writes);
    return DONE;
}

/* Refuses a list of per cents that is none, before anything is printed. */
static int check_capacities(const char *p) {
    for (const char *end; *p; p = *end ? end + 1 : end) {
        double per_cent = 0;
        end = kvc_number_begin(p, &per_cent);
        if (!end || !(per_cent > 0 && per_cent <= 1000) || (*end && *end != ','))
            return trouble("per cents are numbers up to 1000, as 1,3,10, and not '%s'", p);
    }
    return DONE;
}

int main(int argc, char **argv) {
    struct trace x = {.n = 0};
    const char *p = argc == 3 ? argv[2] : "1,3,10,30";
    if (argc < 2 || argc > 3) return trouble("usage: trace FILE [PERCENT,...]");
    int status = check_capacities(p) ? TROUBLE : read_trace(&x, argv[1]);
    if (!status)
        printf("%zu requests of %zu blocks, %" PRIu64
               " of them different\ncapacity    hits (%%)  written\n",
               x.requests, x.n, x.unique);
    while (!status && *p) {
        double per_cent = 0;
        const char *end = kvc_number_begin(p, &per_cent);
        status = replay(&x, per_cent);
        p = *end ? end + 1 : end;
    }
    free(x.id);
    free(x.first);
    return status;
}
