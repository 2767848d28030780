/* tier_driver.c: drives a tier for tests: a backend's shared object, by lines of commands.
 * Replies are lines of JSON. Objects have numbers; what an object holds follows from its number,
 * its size and a seed, so that wrong bytes are found.
 *
 *   tier_driver BACKEND.so
 *   open URL | close | facts | walk | walk-space SPACE
 *   put FIRST N SIZE [OPTION=..]   find FIRST N   each FIRST N   get FIRST N   drop FIRST N   pin
 * FIRST N UNTIL
 * quarantine FIRST load FIRST N SIZE threads=T seconds=S: puts, finds, gets and drops of random
 * objects Options: deadline=MS seed=N seconds=N replace=1 pin=1 check=0 space=N stop=N (get: no
 * more objects after so many) */
#include "formats/store/tier.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_THREADS = 64 };

static const struct kvc_tier_ops *ops;
static struct kvc_tier *tier;
static struct kvc_url url;

static struct { uint64_t deadline, seed, seconds, replace, pin, check, ns, stop, threads; } option;

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static struct kvc_object object(uint64_t i) {
    struct kvc_object o = {.kind = KVC_OBJECT_CHUNK};
    memset(o.ns, (int)option.ns, sizeof o.ns);
    for (uint64_t w = 0; w < KVC_OBJECT_KEY / 8; w++) {
        const uint64_t word = mix(i * 4 + w + 1);
        memcpy(o.key + 8 * w, &word, 8);
    }
    return o;
}

static struct kvc_object *objects(uint64_t first, size_t n) {
    struct kvc_object *o = calloc(n ? n : 1, sizeof *o);
    if (!o) abort();
    for (size_t i = 0; i < n; i++) o[i] = object(first + i);
    return o;
}

static void fill(uint8_t *data, size_t size, uint64_t i, uint64_t seed) {
    const uint64_t start = mix(i ^ seed << 40) ^ size;
    for (size_t at = 0; at < size; at += 8) {
        const uint64_t word = (start + at) * 0x9e3779b97f4a7c15u;
        memcpy(data + at, &word, size - at < 8 ? size - at : 8);
    }
}

static int is_right(const uint8_t *data, size_t size, uint64_t i, uint64_t seed) {
    const uint64_t start = mix(i ^ seed << 40) ^ size;
    for (size_t at = 0; at < size; at += 8) {
        const uint64_t word = (start + at) * 0x9e3779b97f4a7c15u;
        if (memcmp(data + at, &word, size - at < 8 ? size - at : 8) != 0) return 0;
    }
    return 1;
}

static kvc_instant deadline(void) {
    return option.deadline ? kvc_now() + (int64_t)option.deadline * 1000 : INT64_MAX;
}

/* --- replies --- */

static void end_reply(int status, const struct kvc_error *e, kvc_instant begin) {
    static const char *const severity[] = {"retry", "item", "file"};
    printf("\"us\": %" PRId64 ", \"ok\": %s", kvc_now() - begin, status ? "false" : "true");
    if (status) {
        printf(", \"severity\": \"%s\", \"code\": %d, \"error\": \"", severity[e->severity],
               (int)e->code);
        for (const char *p = e->message; *p; p++)
            putchar(*p == '"' || *p == '\\' || *p < ' ' ? '\'' : *p);
        putchar('"');
    }
    puts("}");
    fflush(stdout);
}

struct taken {
    uint64_t first, next, there, missing, wrong, bytes, why;
    int out_of_order;
};

static int take(void *state, size_t i, void *data, size_t size, const struct kvc_error *why) {
    struct taken *t = state;
    t->out_of_order |= i != t->next;
    t->next = i + 1;
    if (data) {
        t->there++;
        t->bytes += size;
        if (option.check && !is_right(data, size, t->first + i, option.seed)) t->wrong++;
    } else t->missing++;
    t->why += why != NULL;
    free(data);
    return option.stop && t->next >= option.stop;
}

struct walked {
    uint64_t n, bytes, used;
};

static int seen(void *state, const struct kvc_object *o, uint64_t size, int64_t used) {
    struct walked *w = state;
    (void)o;
    w->n++;
    w->bytes += size;
    w->used += used > 0;
    return option.stop && w->n >= option.stop;
}

/* --- commands --- */

static void put(uint64_t first, size_t n, size_t size) {
    struct kvc_error e;
    const struct kvc_tier_put how = {.seconds = (int64_t)option.seconds,
                                     .replace = (int)option.replace,
                                     .pin = (int)option.pin};
    uint8_t *data = malloc(size ? size : 1);
    uint64_t done = 0, already = 0;
    int status = 0;
    kvc_instant spent = 0;
    if (!data) abort();
    for (size_t i = 0; i < n && !status; i++) {
        const struct kvc_object o = object(first + i);
        int there = 0;
        if (option.check || !i) fill(data, size, first + i, option.seed);
        const kvc_instant begin = kvc_now();
        status = ops->put(tier, &o, data, size, &how, deadline(), &there, &e);
        spent += kvc_now() - begin;
        done += !status;
        already += there != 0;
    }
    free(data);
    printf("{\"put\": %" PRIu64 ", \"there\": %" PRIu64 ", ", done, already);
    end_reply(status, &e, kvc_now() - spent);
}

static void find(uint64_t first, size_t n) {
    struct kvc_error e;
    struct kvc_object *o = objects(first, n);
    uint64_t *size = calloc(n ? n : 1, sizeof *size), bytes = 0;
    size_t found = 0;
    if (!size) abort();
    const kvc_instant begin = kvc_now();
    const int status = ops->find(tier, o, n, deadline(), &found, size, &e);
    const kvc_instant spent = kvc_now() - begin;
    for (size_t i = 0; i < found; i++) bytes += size[i];
    printf("{\"found\": %zu, \"bytes\": %" PRIu64 ", ", found, bytes);
    end_reply(status, &e, kvc_now() - spent);
    free(size);
    free(o);
}

static void count(void *state, size_t i) {
    uint64_t *there = state;
    there[0]++;
    there[1] += i;
}

static void each(uint64_t first, size_t n) {
    struct kvc_error e;
    struct kvc_object *o = objects(first, n);
    uint64_t there[2] = {0};
    const kvc_instant begin = kvc_now();
    const int status = ops->each(tier, o, n, deadline(), count, there, &e);
    printf("{\"there\": %" PRIu64 ", \"sum\": %" PRIu64 ", ", there[0], there[1]);
    end_reply(status, &e, begin);
    free(o);
}

static void get(uint64_t first, size_t n) {
    struct kvc_error e;
    struct kvc_object *o = objects(first, n);
    struct taken t = {.first = first};
    const kvc_instant begin = kvc_now();
    const int status = ops->get(tier, o, n, deadline(), take, &t, &e);
    printf("{\"there\": %" PRIu64 ", \"missing\": %" PRIu64 ", \"wrong\": %" PRIu64
           ", \"bytes\": %" PRIu64 ", \"why\": %" PRIu64 ", \"order\": %s, ",
           t.there, t.missing, t.wrong, t.bytes, t.why, t.out_of_order ? "false" : "true");
    end_reply(status, &e, begin);
    free(o);
}

static void simple(const char *verb, uint64_t first, size_t n, int64_t until) {
    struct kvc_error e;
    struct kvc_object *o = objects(first, n);
    const kvc_instant begin = kvc_now();
    int status;
    if (strcmp(verb, "drop") == 0) status = ops->drop(tier, o, n, deadline(), &e);
    else if (strcmp(verb, "pin") == 0) status = ops->pin ? ops->pin(tier, o, n, until, &e) : 0;
    else status = ops->quarantine ? ops->quarantine(tier, o, &e) : 0;
    printf("{");
    end_reply(status, &e, begin);
    free(o);
}

static void walk(const uint8_t *ns) {
    struct kvc_error e;
    struct walked w = {0};
    const kvc_instant begin = kvc_now();
    const int status = ops->walk(tier, ns, seen, &w, &e);
    printf("{\"n\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"used\": %" PRIu64 ", ", w.n, w.bytes,
           w.used);
    end_reply(status, &e, begin);
}

static void facts(void) {
    struct kvc_error e;
    struct kvc_store_tier_info f = {0};
    const kvc_instant begin = kvc_now();
    const int status = ops->facts(tier, &f, deadline(), &e);
    printf("{\"objects\": %" PRId64 ", \"bytes\": %" PRId64 ", \"limit\": %" PRId64
           ", \"text\": \"%s\", ",
           f.objects, f.bytes, f.limit, f.text);
    end_reply(status, &e, begin);
}

static void open_tier(const char *text) {
    struct kvc_error e;
    const kvc_instant begin = kvc_now();
    int status = kvc_url_parse(&url, text, &e);
    if (!status) {
        tier = ops->open(&url, &e);
        status = tier ? 0 : -1;
        kvc_url_free(&url);
    }
    printf("{");
    end_reply(status, &e, begin);
}

/* --- load from several threads --- */

static struct {
    uint64_t first, n, size;
    kvc_instant until;
    atomic_uint_fast64_t calls, errors, wrong, there;
    char error[200]; /* the last */
    pthread_mutex_t lock;
} load_of = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void failed(const struct kvc_error *e) {
    load_of.errors++;
    pthread_mutex_lock(&load_of.lock);
    snprintf(load_of.error, sizeof load_of.error, "%.199s", e->message);
    for (char *p = load_of.error; *p; p++)
        if (*p == '"' || *p == '\\') *p = '\'';
    pthread_mutex_unlock(&load_of.lock);
}

static void *worker(void *arg) {
    uint64_t dice = mix((uint64_t)(uintptr_t)arg + 1);
    enum { RUN = 8 };
    uint8_t *data = malloc(load_of.size ? load_of.size : 1);
    if (!data) abort();
    while (kvc_now() < load_of.until) {
        struct kvc_error e;
        dice = mix(dice + 0x9e3779b97f4a7c15u);
        const uint64_t i = load_of.first + dice % load_of.n, size = mix(i) % (load_of.size + 1);
        int there, status;
        load_of.calls++;
        switch (dice >> 60) {
        case 0: {
            struct kvc_object o = object(i);
            status = ops->drop(tier, &o, 1, deadline(), &e);
            break;
        }
        case 1:
        case 2:
        case 3:
        case 4:
        case 5: {
            struct kvc_object o = object(i);
            const struct kvc_tier_put how = {.replace = (int)option.replace};
            fill(data, size, i, option.seed);
            status = ops->put(tier, &o, data, size, &how, deadline(), &there, &e);
            break;
        }
        case 6:
        case 7: {
            struct kvc_object *o = objects(i, RUN);
            uint64_t sizes[RUN];
            size_t found;
            status = ops->find(tier, o, RUN, deadline(), &found, sizes, &e);
            for (size_t k = 0; !status && k < found; k++)
                load_of.wrong += sizes[k] != mix(i + k) % (load_of.size + 1);
            free(o);
            break;
        }
        default: {
            struct kvc_object *o = objects(i, RUN);
            struct taken t = {.first = i};
            status = ops->get(tier, o, RUN, deadline(), take, &t, &e);
            load_of.wrong += t.wrong + (t.out_of_order != 0);
            load_of.there += t.there;
            free(o);
        }
        }
        if (status) failed(&e);
    }
    free(data);
    return NULL;
}

static void load(uint64_t first, uint64_t n, uint64_t size) {
    pthread_t thread[MAX_THREADS];
    const kvc_instant begin = kvc_now();
    const uint64_t threads = option.threads < MAX_THREADS ? option.threads : MAX_THREADS;
    load_of.first = first;
    load_of.n = n ? n : 1;
    load_of.size = size;
    load_of.until = begin + (int64_t)option.seconds * 1000000;
    load_of.calls = load_of.errors = load_of.wrong = load_of.there = 0;
    load_of.error[0] = '\0';
    for (uint64_t t = 0; t < threads; t++)
        if (pthread_create(&thread[t], NULL, worker, (void *)(uintptr_t)t)) abort();
    for (uint64_t t = 0; t < threads; t++) pthread_join(thread[t], NULL);
    printf("{\"calls\": %" PRIuFAST64 ", \"errors\": %" PRIuFAST64 ", \"wrong\": %" PRIuFAST64
           ", \"there\": %" PRIuFAST64 ", \"last\": \"%s\", ",
           load_of.calls, load_of.errors, load_of.wrong, load_of.there, load_of.error);
    end_reply(0, NULL, begin);
}

static void read_options(char *text) {
    static const struct {
        const char *name;
        uint64_t *value;
    } known[] = {{"deadline", &option.deadline}, {"seed", &option.seed},
                 {"seconds", &option.seconds},   {"replace", &option.replace},
                 {"pin", &option.pin},           {"check", &option.check},
                 {"space", &option.ns},          {"stop", &option.stop},
                 {"threads", &option.threads}};
    memset(&option, 0, sizeof option);
    option.check = 1;
    option.threads = 4;
    option.ns = 0x51;
    for (char *word = strtok(text, " \n"); word; word = strtok(NULL, " \n")) {
        char *value = strchr(word, '=');
        if (!value) continue;
        *value++ = '\0';
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            if (strcmp(word, known[i].name) == 0) *known[i].value = strtoull(value, NULL, 10);
    }
}

static void command(char *text) {
    char verb[32] = "", *copy = strdup(text);
    uint64_t first = 0, n = 0, third = 0;
    if (!copy) abort();
    read_options(copy);
    free(copy);
    text[strcspn(text, "\n")] = '\0';
    sscanf(text, "%31s %" SCNu64 " %" SCNu64 " %" SCNu64, verb, &first, &n, &third);
    if (strcmp(verb, "open") == 0) open_tier(text + 5);
    else if (!tier) puts("{\"ok\": false, \"error\": \"no tier is open\"}");
    else if (strcmp(verb, "put") == 0) put(first, n, third);
    else if (strcmp(verb, "find") == 0) find(first, n);
    else if (strcmp(verb, "each") == 0) each(first, n);
    else if (strcmp(verb, "get") == 0) get(first, n);
    else if (strcmp(verb, "pin") == 0) simple(verb, first, n, (int64_t)third);
    else if (strcmp(verb, "drop") == 0) simple(verb, first, n, 0);
    else if (strcmp(verb, "quarantine") == 0) simple(verb, first, 1, 0);
    else if (strcmp(verb, "walk") == 0) walk(NULL);
    else if (strcmp(verb, "walk-space") == 0) {
        uint8_t ns[KVC_OBJECT_NS];
        memset(ns, (int)first, sizeof ns);
        walk(ns);
    } else if (strcmp(verb, "facts") == 0) facts();
    else if (strcmp(verb, "load") == 0) load(first, n, third);
    else if (strcmp(verb, "close") == 0) {
        ops->close(tier);
        tier = NULL;
        puts("{\"ok\": true}");
    } else puts("{\"ok\": false, \"error\": \"there is no such command\"}");
    fflush(stdout);
}

int main(int argc, char **argv) {
    static char line[65536];
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    union {
        void *symbol;
        kvc_tier_entry *entry;
    } of = {.symbol = library ? dlsym(library, KVC_TIER_ENTRY) : NULL};
    if (!of.symbol) {
        fprintf(stderr, "usage: tier_driver BACKEND.so (%s)\n",
                argc == 2 ? dlerror() : "no backend");
        return 2;
    }
    ops = of.entry();
    if (ops->abi != KVC_TIER_ABI) return 2;
    while (fgets(line, sizeof line, stdin)) command(line);
    if (tier) ops->close(tier);
    return 0;
}
