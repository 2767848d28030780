/* test_pack_handle.c: packing changes no handle, so that several threads may pack one (kvc.h). Not
 * for what is packed. */
#include "formats/api/kvc.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SLOT "samples/slot-f16.bin" /* tells neither the number of heads nor the pairing of K */
#define PROFILE "samples/smollm2-135m-instruct-predict.kvcp"

static struct kvc_file *open_slot(void) {
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *f = kvc_file_open(SLOT, NULL, e);
    if (!f) fail_msg("%s", kvc_error_message(e));
    kvc_error_free(e);
    return f;
}

/* Writes all that kvc.h tells of a handle, which the caller frees. */
static char *told_of(const struct kvc_file *f) {
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    const char *key;
    struct kvc_tensor_info t = {.size = sizeof t};
    assert_non_null(out);
    for (size_t i = 0; (key = kvc_file_meta_key(f, i)); i++) {
        char value[4096];
        fprintf(out, "%s=%s\n", key, kvc_file_meta(f, key, value, sizeof value));
    }
    for (uint32_t i = 0; !kvc_file_tensor(f, i, &t); i++)
        fprintf(out, "%s %s %s %u: %llu x %llu x %llu, %llu bytes\n", t.part, t.role, t.dtype,
                t.layer, (unsigned long long)t.rows, (unsigned long long)t.heads,
                (unsigned long long)t.dim, (unsigned long long)t.row_bytes);
    fclose(out);
    return text;
}

struct packing {
    struct kvc_write_options how;
    const struct kvc_file *file;
    void *data; /* the .kvc */
    size_t size;
    char why[512]; /* "": it was packed */
};

/* Two recipes take the number of heads and the pairing from the profile; the others have no
 * profile, and code what the file tells. */
static const struct kvc_write_options ways[] = {
    {.size = sizeof ways[0],
     .threads = 1,
     .recipe = "derope@k,center,basis,steps,code:step=0.05",
     .profile = PROFILE},
    {.size = sizeof ways[0], .threads = 1, .recipe = "split"},
    {.size = sizeof ways[0],
     .threads = 1,
     .recipe = "center,basis,steps,code:step=0.1",
     .profile = PROFILE},
    {.size = sizeof ways[0], .threads = 1, .recipe = "fast"},
};
enum { WAYS = sizeof ways / sizeof ways[0] };

static void *pack(void *state) {
    struct packing *p = state;
    struct kvc_error *e = kvc_error_new();
    if (kvc_file_pack_memory(p->file, &p->how, &p->data, &p->size, e))
        snprintf(p->why, sizeof p->why, "%s: %s", p->how.recipe, kvc_error_message(e));
    kvc_error_free(e);
    return NULL;
}

/* Packs a handle in all ways, one after the other, and compares what is told of it each time. */
static void check_unchanged(struct kvc_file *f) {
    char *before = told_of(f);
    for (int i = 0; i < WAYS; i++) {
        struct packing p = {.how = ways[i], .file = f};
        pack(&p);
        assert_string_equal(p.why, "");
        char *after = told_of(f);
        assert_string_equal(after, before);
        free(after);
        free(p.data);
    }
    free(before);
}

static void a_handle_stays_as_it_was(void **state) {
    (void)state;
    struct kvc_file *f = open_slot();
    char *told = told_of(f);
    /* else the profile has nothing to tell */
    assert_non_null(strstr(told, "cache.heads-known=false\n"));
    assert_null(strstr(told, "rope.pairing="));
    free(told);
    check_unchanged(f);
    kvc_file_close(f);
}

static void a_selection_stays_as_it_was(void **state) {
    (void)state;
    uint8_t layers[30];
    memset(layers, 1, sizeof layers);
    const struct kvc_select_options part = {.size = sizeof part, .layers = layers, .n_layers = 30};
    struct kvc_file *f = open_slot(), *some = kvc_file_select(f, &part, NULL);
    assert_non_null(some);
    char *before = told_of(f);
    check_unchanged(some);
    char *after = told_of(f);
    assert_string_equal(after, before);
    free(before);
    free(after);
    kvc_file_close(some);
    kvc_file_close(f);
}

static void a_join_stays_as_it_was(void **state) {
    (void)state;
    struct kvc_file *f = open_slot();
    const struct kvc_file *const all[] = {f};
    struct kvc_file *joined = kvc_file_join(all, 1, NULL, NULL);
    assert_non_null(joined);
    check_unchanged(joined);
    kvc_file_close(joined);
    kvc_file_close(f);
}

/* Every thread writes the bytes that it writes alone. */
static void threads_pack_one_handle(void **state) {
    (void)state;
    pthread_t thread[WAYS];
    struct packing alone[WAYS] = {0}, together[WAYS] = {0};
    struct kvc_file *f = open_slot();
    for (int i = 0; i < WAYS; i++) {
        struct kvc_file *own = open_slot();
        alone[i] = (struct packing){.how = ways[i], .file = own};
        pack(&alone[i]);
        assert_string_equal(alone[i].why, "");
        kvc_file_close(own);
        together[i] = (struct packing){.how = ways[i], .file = f};
    }
    for (int i = 0; i < WAYS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, pack, &together[i]), 0);
    for (int i = 0; i < WAYS; i++) assert_int_equal(pthread_join(thread[i], NULL), 0);
    for (int i = 0; i < WAYS; i++) {
        assert_string_equal(together[i].why, "");
        assert_int_equal(together[i].size, alone[i].size);
        assert_memory_equal(together[i].data, alone[i].data, alone[i].size);
        free(together[i].data);
        free(alone[i].data);
    }
    kvc_file_close(f);
}

/* --- every call with a const handle, of a .kvc that needs a profile, at once --- */

static int swallow(void *state, const void *data, size_t n) {
    size_t *bytes = state;
    (void)data;
    *bytes += n;
    return 0;
}

static int reads(const struct kvc_file *f, struct kvc_error *e) {
    struct kvc_tensor_info t = {.size = sizeof t};
    int status = 0;
    for (uint32_t i = 0; !status && !kvc_file_tensor(f, i, &t); i++) {
        void *row = malloc(t.row_bytes);
        for (uint64_t r = 0; r < t.rows && !status; r += 5)
            status = kvc_file_read(f, i, r, 1, row, t.row_bytes, e);
        free(row);
    }
    return status;
}

static int packs(const struct kvc_file *f, struct kvc_error *e) {
    const struct kvc_write_options how = {.size = sizeof how,
                                          .threads = 2,
                                          .recipe = "derope@k,center,basis,steps,code:step=0.2",
                                          .profile = PROFILE};
    size_t n = 0;
    return kvc_file_pack(f, &how, swallow, &n, e);
}

static int unpacks(const struct kvc_file *f, struct kvc_error *e) {
    const struct kvc_write_options how = {.size = sizeof how, .threads = 2};
    size_t n = 0;
    return kvc_file_unpack(f, NULL, &how, swallow, &n, e);
}

static int converts(const struct kvc_file *f, struct kvc_error *e) {
    const struct kvc_write_options how = {.size = sizeof how, .lossy_metadata = 1};
    size_t n = 0;
    return kvc_file_unpack(f, "npz", &how, swallow, &n, e);
}

static int checks(const struct kvc_file *f, struct kvc_error *e) {
    return kvc_file_check(f, 2, e);
}

static int compares(const struct kvc_file *f, struct kvc_error *e) {
    struct kvc_comparison same = {.size = sizeof same};
    return kvc_file_compare(f, f, NULL, &same, e);
}

static int selects(const struct kvc_file *f, struct kvc_error *e) {
    const struct kvc_select_options part = {.size = sizeof part, .first = 3, .end = 9};
    struct kvc_file *some = kvc_file_select(f, &part, e);
    const int status = some ? reads(some, e) || packs(some, e) ? -1 : 0 : -1;
    kvc_file_close(some);
    return status;
}

struct use {
    int (*call)(const struct kvc_file *f, struct kvc_error *e);
    const struct kvc_file *file;
    char why[512];
};

static void *use(void *state) {
    struct use *u = state;
    struct kvc_error *e = kvc_error_new();
    for (int i = 0; i < 3 && !*u->why; i++)
        if (u->call(u->file, e)) snprintf(u->why, sizeof u->why, "%s.", kvc_error_message(e));
    kvc_error_free(e);
    return NULL;
}

static void threads_use_one_container(void **state) {
    (void)state;
    struct use u[] = {{.call = reads},  {.call = packs},    {.call = unpacks}, {.call = converts},
                      {.call = checks}, {.call = compares}, {.call = selects}};
    enum { USES = sizeof u / sizeof u[0] };
    pthread_t thread[USES];
    struct kvc_file *slot = open_slot();
    struct packing p = {.how = ways[0], .file = slot};
    p.how.embed_profile = 1;
    pack(&p);
    assert_string_equal(p.why, "");
    kvc_file_close(slot);
    struct kvc_file *f = kvc_file_open_memory(p.data, p.size, NULL, NULL);
    assert_non_null(f);
    char *before = told_of(f);
    for (int i = 0; i < USES; i++) {
        u[i].file = f;
        assert_int_equal(pthread_create(&thread[i], NULL, use, &u[i]), 0);
    }
    for (int i = 0; i < USES; i++) assert_int_equal(pthread_join(thread[i], NULL), 0);
    for (int i = 0; i < USES; i++) assert_string_equal(u[i].why, "");
    char *after = told_of(f);
    assert_string_equal(after, before);
    free(before);
    free(after);
    kvc_file_close(f);
    free(p.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_handle_stays_as_it_was),  cmocka_unit_test(a_selection_stays_as_it_was),
        cmocka_unit_test(a_join_stays_as_it_was),    cmocka_unit_test(threads_pack_one_handle),
        cmocka_unit_test(threads_use_one_container),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
