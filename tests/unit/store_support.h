/* store_support.h: what the tests of the store share: a scratch folder, small caches in memory,
 * stores with long deadlines. Not for other tests. */
#ifndef STORE_SUPPORT_H
#define STORE_SUPPORT_H

#include "temp_folder.h"

#include "formats/store/store.h"
#include "tests/dense_array.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LAYERS = 2, ARRAYS = 2 * LAYERS, DIM = 8, ROW = 2 * DIM, CHUNK = 256, MOST = 8 * CHUNK };

/* A cache of `tokens` tokens in memory; token i is seed + i % 1000, and so on for its rows. */
struct made {
    struct kvc_memory m;
    struct kvc_memory_array a[ARRAYS];
    int32_t ids[MOST];
    uint8_t rows[ARRAYS][MOST * ROW];
    struct kvc_file *f;
};

static inline void describe(struct made *x, uint64_t tokens) {
    x->m = (struct kvc_memory){.size = sizeof x->m,
                               .array_size = sizeof x->a[0],
                               .arrays = x->a,
                               .n_arrays = ARRAYS,
                               .tokens = tokens,
                               .token_ids = x->ids,
                               .n_token_ids = tokens};
    for (unsigned i = 0; i < ARRAYS; i++)
        x->a[i] = dense_array(i % 2 ? "V" : "K", i / 2, "f16", 2, 1, DIM, x->rows[i]);
}

static const char *const usual_facts[] = {"model.name=m", "model.architecture=llama",
                                          "rope.pairing=halves", NULL};

/* Opens what was described. Caches of one seed begin with the same tokens and rows. */
static inline struct kvc_file *open_made(struct made *x, const char *const *facts) {
    struct kvc_error e;
    x->m.facts = facts ? facts : usual_facts;
    x->f = kvc_file_open_arrays(&x->m, &e);
    if (!x->f) fail_msg("%s", e.message);
    return x->f;
}

static inline struct made *make(uint64_t tokens, int32_t seed, const char *const *facts) {
    struct made *x = calloc(1, sizeof *x);
    assert_non_null(x);
    describe(x, tokens);
    for (uint64_t t = 0; t < MOST; t++) {
        x->ids[t] = seed + (int32_t)(t % 1000);
        for (unsigned i = 0; i < ARRAYS; i++)
            for (unsigned b = 0; b < ROW; b++)
                x->rows[i][t * ROW + b] = (uint8_t)(((uint64_t)seed * 31 + t * 7 + i * 3 + b) &
                                                    0x3b);
    }
    open_made(x, facts);
    return x;
}

static inline void unmake(struct made *x) {
    kvc_file_close(x->f);
    free(x);
}

/* --- stores --- */

#define LONG INT64_C(60000000) /* a deadline that slow machines keep too */
static const struct kvc_store_options patient = {.size = sizeof patient,
                                                 .local_timeout_us = LONG,
                                                 .timeout_us = LONG,
                                                 .load_timeout_us = LONG};

#define LIMITS "min-free=0&durability=none"

/* Opens the tier of a name in the scratch folder, with further options. */
static inline char *tier_url(char *text, size_t size, const char *name, const char *more) {
    snprintf(text, size, "dir:%s/%s?" LIMITS "%s", folder, name, more);
    return text;
}

static inline struct kvc_store *open_store_with(const char *tiers,
                                                const struct kvc_store_options *o) {
    struct kvc_error e;
    struct kvc_store *s = kvc_store_open(tiers, o, &e);
    if (!s) fail_msg("%s", e.message);
    return s;
}

static inline struct kvc_store *open_store(const char *name, const char *more) {
    char url[300];
    return open_store_with(tier_url(url, sizeof url, name, more), &patient);
}

static inline struct kvc_store_namespace *
open_namespace_with(struct kvc_store *s, const struct made *x,
                    const struct kvc_store_namespace_options *o) {
    struct kvc_error e;
    struct kvc_store_namespace *ns = kvc_store_namespace_like(s, x->f, o, &e);
    if (!ns) fail_msg("%s", e.message);
    return ns;
}

static inline struct kvc_store_namespace *open_namespace(struct kvc_store *s,
                                                         const struct made *x) {
    const struct kvc_store_namespace_options o = {.size = sizeof o, .chunk = CHUNK};
    return open_namespace_with(s, x, &o);
}

/* Returns how many files the folder `sub` of a tier has, but for hidden ones. */
static inline unsigned count_names(const char *tier, const char *sub) {
    char path[300];
    unsigned n = 0;
    snprintf(path, sizeof path, "%s/%s/%s", folder, tier, sub);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (const struct dirent *entry; (entry = readdir(d)) != NULL;) n += entry->d_name[0] != '.';
    closedir(d);
    return n;
}

static inline void put(struct kvc_store_namespace *ns, const struct made *x) {
    const struct kvc_store_put_options o = {.size = sizeof o, .wait = 1};
    struct kvc_error e = {.code = KVC_OK};
    if (kvc_store_put(ns, x->f, &o, &e) || e.code) fail_msg("%s", e.message);
}

static inline struct kvc_store_hit *find_n(struct kvc_store_namespace *ns, const int32_t *tokens,
                                           uint64_t n) {
    struct kvc_error e;
    struct kvc_store_hit *hit = kvc_store_find(ns, tokens, n, NULL, &e);
    if (!hit) fail_msg("%s", e.message);
    return hit;
}

static inline uint64_t found_of(const struct kvc_store_hit *hit) {
    struct kvc_store_hit_info info = {.size = sizeof info};
    assert_int_equal(kvc_store_hit_describe(hit, &info), 0);
    return info.tokens;
}

static inline uint64_t count_found(struct kvc_store_namespace *ns, const struct made *x) {
    struct kvc_store_hit *hit = find_n(ns, x->ids, x->m.tokens);
    const uint64_t n = found_of(hit);
    kvc_store_hit_free(hit);
    return n;
}

static inline void wait_for_all(struct kvc_store *s) {
    assert_int_equal(kvc_store_flush(s, LONG), 0);
}

static inline uint64_t counted(const struct kvc_store *s, enum kvc_counter c) {
    return s->count[c];
}

/* Loads tokens [first, first + n) densely, and returns up to where they are there; those have the
 * rows of x. */
static inline uint64_t load_and_compare(struct kvc_store_hit *hit, const struct made *x,
                                        uint64_t first, uint64_t n) {
    struct made *y = calloc(1, sizeof *y);
    struct kvc_error e = {.code = KVC_OK};
    assert_non_null(y);
    describe(y, n);
    y->m.first_position = (int64_t)first;
    const uint64_t end = (uint64_t)kvc_store_load(hit, &y->m, NULL, &e); /* -1: a large one */
    assert_true(end >= first && end <= first + n);
    for (unsigned i = 0; i < ARRAYS; i++)
        assert_memory_equal(y->rows[i], x->rows[i] + first * ROW, (end - first) * ROW);
    free(y);
    return end;
}

/* Finds the prefix of x in what is stored, reads all of it, and returns how many tokens came. */
static inline uint64_t read_back(struct kvc_store_namespace *ns, const struct made *x) {
    struct kvc_store_hit *hit = find_n(ns, x->ids, x->m.tokens);
    const uint64_t n = found_of(hit) ? load_and_compare(hit, x, 0, found_of(hit)) : 0;
    kvc_store_hit_free(hit);
    return n;
}

/* Writes the path of chunk i of x in a tier. */
static inline void chunk_path(struct kvc_store_namespace *ns, const struct made *x, size_t i,
                              const char *tier, char *path, size_t size) {
    struct kvc_store_hit *hit = find_n(ns, x->ids, x->m.tokens);
    char name[KVC_OBJECT_NAME];
    kvc_object_name(&hit->object[i], name);
    snprintf(path, size, "%s/%s/obj/%.2s/%.2s/%s", folder, tier, name + 17, name + 19, name);
    kvc_store_hit_free(hit);
}

static inline uint8_t *read_file(const char *path, size_t *n) {
    struct stat st;
    FILE *f = fopen(path, "rb");
    if (!f || fstat(fileno(f), &st)) fail_msg("%s cannot be read", path);
    uint8_t *data = malloc((size_t)st.st_size + 1);
    assert_non_null(data);
    *n = fread(data, 1, (size_t)st.st_size, f);
    fclose(f);
    return data;
}

static inline void write_file(const char *path, const void *data, size_t n) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f)) fail_msg("%s cannot be written", path);
    chmod(path, 0600);
}

#endif
