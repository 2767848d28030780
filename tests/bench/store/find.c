/* find.c: times kvc_store_find() for a prompt of 128 k tokens in a directory store of a million
 * objects: `make bench-store`. The objects have records in the index and no files. Prints the
 * median and the 99th percentile, with the keys' hashing and of the index alone. */
#include "formats/store/dir/dir.h"
#include "formats/store/dir/policy.h"
#include "formats/store/store.h"
#include "tests/dense_array.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TOKENS 131072
#define CHUNK 256
#define CHUNKS (TOKENS / CHUNK)
#define FINDS 500

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The tokens of prompt number i, which has no chunk in common with others. */
static void make_prompt(int32_t *tokens, uint64_t i) {
    for (uint64_t k = 0; k < TOKENS; k++) tokens[k] = (int32_t)((i * 7919 + k) & 0x7fffffff);
}

static struct kvc_file *make_cache(struct kvc_error *e) {
    static uint16_t values[2 * CHUNK * 8];
    const struct kvc_memory_array array[2] = {dense_array("K", 0, "bf16", 2, 1, 8, values),
                                              dense_array("V", 0, "bf16", 2, 1, 8,
                                                          values + CHUNK * 8)};
    static const char *const facts[] = {"model.name=bench", NULL};
    const struct kvc_memory m = {.size = sizeof m,
                                 .array_size = sizeof array[0],
                                 .arrays = array,
                                 .n_arrays = 2,
                                 .tokens = CHUNK,
                                 .facts = facts};
    return kvc_file_open_arrays(&m, e);
}

/* Adds the records of a prompt's chunks. */
static int add_prompt(struct kvc_dir *d, const struct kvc_store_namespace *ns,
                      const int32_t *tokens, struct kvc_object *o, struct kvc_error *e) {
    uint8_t *keys;
    struct kvc_index_txn *t = kvc_index_begin(d->index, 1, e);
    int status = t ? kvc_namespace_keys(ns, tokens, TOKENS, NULL, 0, &keys, e) : -1;
    if (!status) kvc_policy_begin(t, UINT64_C(1) << 40);
    for (size_t i = 0; i < CHUNKS && !status; i++) {
        struct kvc_index_record r = {.size = 1000,
                                     .cost = 1,
                                     .used = (int64_t)time(NULL),
                                     .has_parent = i > 0};
        status = kvc_chunk_object(ns, keys, i, &o[i], e);
        if (i) memcpy(r.parent, o[i - 1].key, sizeof r.parent);
        memcpy(r.ns, o[i].ns, sizeof r.ns);
        kvc_policy_tick(t, r.size);
        if (!status) status = kvc_policy_insert(t, o[i].key, NULL, &r, e);
    }
    if (!status) status = kvc_index_commit(t, e);
    free(keys);
    return status;
}

int main(int argc, char **argv) {
    static int32_t tokens[TOKENS];
    static struct kvc_object object[CHUNKS];
    static uint64_t size[CHUNKS];
    double all[FINDS], index[FINDS];
    struct kvc_error e = {.code = KVC_OK};
    char url[4096];
    const uint64_t objects = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000000,
                   prompts = objects / CHUNKS + 1;
    if (argc < 2 || snprintf(url, sizeof url, "dir:%s?durability=none&max-size=0&min-free=0",
                             argv[1]) >= (int)sizeof url) {
        fprintf(stderr, "Usage: find FOLDER [OBJECTS]   FOLDER: of a new store\n");
        return 2;
    }
    struct kvc_store *s = kvc_store_open(url, NULL, &e);
    struct kvc_file *f = s ? make_cache(&e) : NULL;
    const struct kvc_store_namespace_options o = {.size = sizeof o, .chunk = CHUNK};
    const struct kvc_store_find_options patient = {.size = sizeof patient, .timeout_us = 10000000};
    struct kvc_store_namespace *ns = f ? kvc_store_namespace_like(s, f, &o, &e) : NULL;
    struct kvc_dir *d = ns ? (struct kvc_dir *)s->tier[0].tier : NULL;
    int status = d ? 0 : -1;
    for (uint64_t i = 0; i < prompts && !status; i++) {
        make_prompt(tokens, i);
        status = add_prompt(d, ns, tokens, object, &e);
    }
    srand(1);
    for (size_t i = 0; i < FINDS && !status; i++) {
        size_t found = 0;
        make_prompt(tokens, (uint64_t)rand() % prompts);
        const kvc_instant began = kvc_now();
        struct kvc_store_hit *hit = kvc_store_find(ns, tokens, TOKENS, &patient, &e);
        all[i] = (double)(kvc_now() - began);
        if (!hit || hit->chunks != CHUNKS)
            status = kvc_fail(&e, KVC_ERR_VERIFY, "a prompt that was put is not found");
        const kvc_instant then = kvc_now();
        if (!status)
            status = kvc_tier_dir.find(&d->tier, hit->object, CHUNKS, INT64_MAX, &found, size, &e);
        index[i] = (double)(kvc_now() - then);
        kvc_store_hit_free(hit);
    }
    if (!status) {
        qsort(all, FINDS, sizeof *all, by_value);
        qsort(index, FINDS, sizeof *index, by_value);
        printf("%" PRIu64 " objects, prompts of %d tokens: find %.2f ms (p99 %.2f ms); of it the "
               "index %.2f ms (p99 %.2f ms)\n",
               prompts * CHUNKS, TOKENS, all[FINDS / 2] / 1000, all[FINDS * 99 / 100] / 1000,
               index[FINDS / 2] / 1000, index[FINDS * 99 / 100] / 1000);
    } else {
        fprintf(stderr, "%s\n", e.message);
    }
    kvc_store_namespace_close(ns);
    kvc_file_close(f);
    kvc_store_close(s);
    return status ? 2 : 0;
}
