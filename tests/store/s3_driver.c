/* s3_driver.c: lets s3.py use an S3 tier. `s3_driver URL` reads commands from its input and
 * answers each with one line. Objects are numbered; their bytes follow from number and size, so
 * that a wrong byte is noticed here. Not for users.
 *
 *   put FIRST N SIZE MS [replace]   -> put OK THERE FAILED | MS | MESSAGE
 *   get FIRST N SIZE MS [threads]   -> get RIGHT WRONG ABSENT REFUSED STATUS | MS | MESSAGE
 *   find FIRST N MS                 -> find FOUND STATUS ROUNDS REQUESTS | MS | MESSAGE
 *   each FIRST N MS                 -> each THERE SUM STATUS ROUNDS REQUESTS | MS | MESSAGE
 *   drop FIRST N MS, bad FIRST, walk [space], facts, stats, reopen, quit
 */
#include "formats/store/s3/s3_state.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *text;
static struct kvc_tier *tier;

static struct kvc_object object(size_t i) {
    struct kvc_object o = {KVC_OBJECT_CHUNK, {0xab, 0xcd}, {0}};
    uint64_t z = i * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (size_t k = 0; k < sizeof o.key; k++) {
        z ^= z >> 29;
        z *= UINT64_C(0xbf58476d1ce4e5b9);
        o.key[k] = (uint8_t)(z >> 56);
    }
    o.ns[7] = (uint8_t)(i >> 20); /* numbers from 2^20 on are of another namespace */
    return o;
}

/* The bytes of an object, in words. */
static uint64_t word(size_t i, size_t at) {
    return (i * UINT64_C(0x100000001b3) + at) * UINT64_C(0x9e3779b97f4a7c15);
}

static uint8_t *make(size_t i, size_t size) {
    uint8_t *p = malloc(size + 8);
    if (!p) exit(2);
    for (size_t k = 0; k < size; k += 8) {
        const uint64_t w = word(i, k);
        memcpy(p + k, &w, 8);
    }
    return p;
}

static int is_right(const uint8_t *p, size_t i, size_t size) {
    for (size_t k = 0; k < size; k += 8) {
        const uint64_t w = word(i, k);
        if (memcmp(p + k, &w, size - k < 8 ? size - k : 8) != 0) return 0;
    }
    return 1;
}

static kvc_instant in(long ms) {
    return ms ? kvc_now() + ms * 1000 : INT64_MAX;
}

static void end_line(kvc_instant begun, const struct kvc_error *e) {
    printf(" | %.3f | %s\n", (double)(kvc_now() - begun) / 1000, e->message);
    fflush(stdout);
}

struct taken {
    size_t first, size, right, wrong, absent, refused, next;
    int check;
    struct kvc_error why;
};

static int take(void *state, size_t i, void *data, size_t size, const struct kvc_error *why) {
    struct taken *t = state;
    if (i != t->next++) t->wrong++; /* out of order */
    if (!data) {
        if (why) {
            t->why = *why;
            t->refused++;
        } else t->absent++;
    } else if (size != t->size || (t->check && !is_right(data, t->first + i, size))) t->wrong++;
    else t->right++;
    free(data);
    return 0;
}

struct reader {
    size_t first, n, size;
    long ms;
    int check, status;
    struct taken t;
    struct kvc_error e;
};

static void *read_objects(void *state) {
    struct reader *r = state;
    struct kvc_object *o = calloc(r->n, sizeof *o);
    if (!o) exit(2);
    for (size_t i = 0; i < r->n; i++) o[i] = object(r->first + i);
    r->t = (struct taken){.first = r->first, .size = r->size, .check = r->check};
    r->status = tier->ops->get(tier, o, r->n, in(r->ms), take, &r->t, &r->e);
    if (!r->status && r->t.why.message[0]) r->e = r->t.why;
    free(o);
    return NULL;
}

static void get(const char *arguments) {
    size_t first, n, size;
    long ms;
    unsigned threads = 1;
    int check = 1;
    if (sscanf(arguments, "%zu %zu %zu %ld %u %d", &first, &n, &size, &ms, &threads, &check) < 4 ||
        !threads || threads > 64)
        exit(2);
    struct reader r[64];
    pthread_t thread[64];
    const kvc_instant begun = kvc_now();
    memset(r, 0, sizeof r);
    for (unsigned k = 0; k < threads; k++) {
        r[k].first = first;
        r[k].n = n;
        r[k].size = size;
        r[k].ms = ms;
        r[k].check = check;
        if (pthread_create(&thread[k], NULL, read_objects, &r[k])) exit(2);
    }
    for (unsigned k = 0; k < threads; k++) {
        pthread_join(thread[k], NULL);
        if (!k) continue;
        r[0].t.right += r[k].t.right;
        r[0].t.wrong += r[k].t.wrong;
        r[0].t.absent += r[k].t.absent;
        r[0].t.refused += r[k].t.refused;
        if (r[k].status) r[0] = (struct reader){.status = -1, .t = r[0].t, .e = r[k].e};
    }
    printf("get %zu %zu %zu %zu %d", r[0].t.right, r[0].t.wrong, r[0].t.absent, r[0].t.refused,
           r[0].status);
    end_line(begun, &r[0].e);
}

static void put(const char *arguments) {
    size_t first, n, size, ok = 0, there = 0, failed = 0;
    long ms;
    char word_of[16] = "";
    if (sscanf(arguments, "%zu %zu %zu %ld %15s", &first, &n, &size, &ms, word_of) < 4) exit(2);
    struct kvc_error e = {0};
    const struct kvc_tier_put how = {.replace = strcmp(word_of, "replace") == 0};
    kvc_instant spent = 0;
    for (size_t i = first; i < first + n; i++) {
        const struct kvc_object o = object(i);
        uint8_t *data = make(i, size);
        int was = 0;
        const kvc_instant begun = kvc_now();
        if (tier->ops->put(tier, &o, data, size, &how, in(ms), &was, &e)) failed++;
        else if (was) there++;
        else ok++;
        spent += kvc_now() - begun;
        free(data);
    }
    printf("put %zu %zu %zu", ok, there, failed);
    end_line(kvc_now() - spent, &e);
}

static void find(const char *arguments) {
    size_t first, n, found = 0;
    long ms;
    struct kvc_error e = {0};
    struct kvc_s3_stats before, after;
    if (sscanf(arguments, "%zu %zu %ld", &first, &n, &ms) != 3) exit(2);
    struct kvc_object *o = calloc(n, sizeof *o);
    uint64_t *size = calloc(n, sizeof *size);
    if (!o || !size) exit(2);
    for (size_t i = 0; i < n; i++) o[i] = object(first + i);
    kvc_s3_stats(tier, &before);
    const kvc_instant begun = kvc_now();
    const int status = tier->ops->find(tier, o, n, in(ms), &found, size, &e);
    const kvc_instant spent = kvc_now() - begun;
    kvc_s3_stats(tier, &after);
    printf("find %zu %d %" PRIu64 " %" PRIu64, found, status, after.rounds - before.rounds,
           after.requests - before.requests);
    end_line(kvc_now() - spent, &e);
    free(o);
    free(size);
}

static void count(void *state, size_t i) {
    size_t *there = state;
    there[0]++;
    there[1] += i;
}

static void each(const char *arguments) {
    size_t first, n, there[2] = {0};
    long ms;
    struct kvc_error e = {0};
    struct kvc_s3_stats before, after;
    if (sscanf(arguments, "%zu %zu %ld", &first, &n, &ms) != 3) exit(2);
    struct kvc_object *o = calloc(n, sizeof *o);
    if (!o) exit(2);
    for (size_t i = 0; i < n; i++) o[i] = object(first + i);
    kvc_s3_stats(tier, &before);
    const kvc_instant begun = kvc_now();
    const int status = tier->ops->each(tier, o, n, in(ms), count, there, &e);
    kvc_s3_stats(tier, &after);
    printf("each %zu %zu %d %" PRIu64 " %" PRIu64, there[0], there[1], status,
           after.rounds - before.rounds, after.requests - before.requests);
    end_line(begun, &e);
    free(o);
}

static void drop(const char *arguments, int bad) {
    size_t first, n = 1;
    long ms = 0;
    struct kvc_error e = {0};
    if (sscanf(arguments, "%zu %zu %ld", &first, &n, &ms) < 1) exit(2);
    struct kvc_object *o = calloc(n, sizeof *o);
    if (!o) exit(2);
    for (size_t i = 0; i < n; i++) o[i] = object(first + i);
    const kvc_instant begun = kvc_now();
    const int status = bad ? tier->ops->quarantine(tier, o, &e)
                           : tier->ops->drop(tier, o, n, in(ms), &e);
    printf("drop %d", status);
    end_line(begun, &e);
    free(o);
}

struct seen {
    size_t n;
    uint64_t bytes;
    int64_t oldest;
};

static int see(void *state, const struct kvc_object *o, uint64_t size, int64_t used) {
    struct seen *s = state;
    (void)o;
    s->n++;
    s->bytes += size;
    if (!s->oldest || used < s->oldest) s->oldest = used;
    return 0;
}

static void walk(const char *arguments) {
    struct seen s = {0};
    struct kvc_error e = {0};
    const struct kvc_object o = object((size_t)strtoul(arguments, NULL, 10));
    const kvc_instant begun = kvc_now();
    const int status = tier->ops->walk(tier, *arguments ? o.ns : NULL, see, &s, &e);
    printf("walk %zu %" PRIu64 " %" PRId64 " %d", s.n, s.bytes, s.oldest, status);
    end_line(begun, &e);
}

static void open_tier(void) {
    struct kvc_url u;
    struct kvc_error e = {0};
    if (kvc_url_parse(&u, text, &e) || (tier = kvc_store_tier()->open(&u, &e)) == NULL) {
        printf("refused | 0 | %s\n", e.message);
        exit(0);
    }
    kvc_url_free(&u);
}

static int run(char *line) {
    struct kvc_error e = {0};
    const kvc_instant begun = kvc_now();
    line[strcspn(line, "\n")] = '\0';
    const char *arguments = line + strcspn(line, " ");
    arguments += *arguments == ' ';
    if (strncmp(line, "put ", 4) == 0) put(arguments);
    else if (strncmp(line, "get ", 4) == 0) get(arguments);
    else if (strncmp(line, "find ", 5) == 0) find(arguments);
    else if (strncmp(line, "each ", 5) == 0) each(arguments);
    else if (strncmp(line, "drop ", 5) == 0) drop(arguments, 0);
    else if (strncmp(line, "bad ", 4) == 0) drop(arguments, 1);
    else if (strncmp(line, "walk", 4) == 0) walk(arguments);
    else if (strncmp(line, "facts", 5) == 0) {
        struct kvc_store_tier_info f = {0};
        const int status = tier->ops->facts(tier, &f, in(5000), &e);
        printf("facts %d %s", status, f.text);
        end_line(begun, &e);
    } else if (strcmp(line, "stats") == 0) {
        struct kvc_s3_stats s;
        kvc_s3_stats(tier, &s);
        printf("stats %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64, s.rounds,
               s.requests, s.retries, s.hedges, s.hedges_won);
        end_line(begun, &e);
    } else if (strcmp(line, "reopen") == 0) {
        tier->ops->close(tier);
        open_tier();
        printf("reopen");
        end_line(begun, &e);
    } else return 0;
    return 1;
}

int main(int argc, char **argv) {
    char line[256];
    if (argc != 2) return 2;
    text = argv[1];
    open_tier();
    printf("ready | 0 | \n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) && run(line)) {}
    tier->ops->close(tier);
    return 0;
}
