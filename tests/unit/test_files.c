/* test_files.c: the container's reader against the files of tests/files: what is accepted, what is
 * refused, and with which words. expected.txt there says what is expected of each; $KVC_TEST_FILES
 * names another directory. */
#include "formats/io/bytes.h"
#include "formats/file/restore.h"
#include "formats/container/container.h"
#include "formats/cache/format.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

#define GROUPS 3

enum group { GOOD, BAD, UNSUPPORTED };
static const char *const prefix[GROUPS] = {"good-", "bad-", "unsupported-"};

/* Where a reader may notice what is wrong, in this order. */
enum step { OPEN, READ, CHECK, NOWHERE };
static const char *const step_name[] = {"open", "read", "check", "nowhere"};

struct expected {
    enum group group;
    char name[64], where[16], words[80];
};

static const char *directory(void) {
    const char *dir = getenv("KVC_TEST_FILES");
    return dir && *dir ? dir : "tests/files";
}

static int has_prefix(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

/* Reads the lines of expected.txt: a good file's name; of another also the step at which it is
 * refused, and words of the message. Returns their number. */
static size_t read_expected(struct expected *list, size_t room) {
    char path[512], line[512];
    size_t n = 0;
    snprintf(path, sizeof path, "%s/expected.txt", directory());
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("%s cannot be read", path);
    while (fgets(line, sizeof line, f)) {
        struct expected *x = &list[n];
        memset(x, 0, sizeof *x);
        const int fields = sscanf(line, "%63s %15s %79[^\n]", x->name, x->where, x->words);
        while (x->group < GROUPS && !has_prefix(x->name, prefix[x->group])) x->group++;
        if (x->group == GROUPS) fail_msg("%s: no group has a file %s", path, x->name);
        assert_int_equal(fields, x->group == GOOD ? 1 : 3);
        assert_in_range(++n, 1, room - 1);
    }
    fclose(f);
    return n;
}

/* Reads every row and every literal. */
static int read_whole(const struct kvc_cache *c, struct kvc_error *e) {
    int status = 0;
    for (uint32_t t = 0; t < c->n_tensors && !status; t++) {
        uint8_t *rows = malloc((size_t)kvc_tensor_bytes(&c->tensor[t]) + 1);
        assert_non_null(rows);
        status = c->read(c, t, 0, c->tensor[t].shape.tokens, rows, e);
        free(rows);
    }
    if (!status && c->literal_size) {
        uint8_t *bytes = malloc((size_t)c->literal_size);
        assert_non_null(bytes);
        status = c->read_literal(c, 0, c->literal_size, bytes, e);
        free(bytes);
    }
    return status;
}

/* How far the file is accepted; *cache when it opened. */
static enum step try_file(const struct kvc_input *in, struct kvc_cache **cache,
                          struct kvc_error *e) {
    *cache = kvc_container_open(in, e);
    if (!*cache) return OPEN;
    kvc_container_set_profile(*cache, NULL);
    if (read_whole(*cache, e)) return READ;
    return kvc_container_check(*cache, 2, e) ? CHECK : NOWHERE;
}

static int ignore_member(void *state, const char *name, uint64_t size, struct kvc_error *e) {
    (void)state, (void)name, (void)size, (void)e;
    return 0;
}

static int ignore_end(void *state, struct kvc_error *e) {
    (void)state, (void)e;
    return 0;
}

/* The source file must come back as its hash in the metadata says; several members are hashed one
 * after the other. */
static const char *wrong_source(const struct kvc_cache *c, struct kvc_error *e) {
    const struct kvc_meta_entry *hash = kvc_meta_find(&c->meta, "x-test.source");
    struct kvc_buffer b = {0};
    struct kvc_sink out = kvc_sink_buffer(&b);
    if (!hash) return NULL;
    const struct kvc_member_sink members = {.out = &out,
                                            .begin = ignore_member,
                                            .finish = ignore_end};
    int status = kvc_source_write_members(c, 1, &members, e);
    uint64_t got = status ? 0 : XXH3_64bits(b.data, b.n);
    free(b.data);
    if (status) return e->message;
    return got == get_u64(hash->value) ? NULL : "another source file comes back";
}

/* Ancillary keys that the reader does not know stay when a file is written anew. */
static const char *lost_keys(const struct kvc_cache *c, struct kvc_error *e) {
    static const struct kvc_pack_options options = {.threads = 1};
    struct kvc_buffer b = {0};
    struct kvc_sink out = kvc_sink_buffer(&b);
    struct kvc_input in;
    if (kvc_container_write(c, &options, &out, NULL, e)) {
        free(b.data);
        return e->message;
    }
    kvc_input_memory(&in, "again", b.data, b.n);
    struct kvc_cache *d = kvc_container_open(&in, e);
    const char *wrong = d ? NULL : e->message;
    for (size_t i = 0; i < c->meta.n && d && !wrong; i++) {
        const struct kvc_meta_entry *x = &c->meta.entry[i], *y = kvc_meta_find(&d->meta, x->key);
        if (!has_prefix(x->key, "x-test.")) continue;
        if (!y || y->type != x->type || y->size != x->size ||
            memcmp(x->value, y->value, (size_t)x->size) != 0)
            wrong = "an unknown metadata key is lost";
    }
    if (d && !wrong && kvc_container_check(d, 1, e)) wrong = e->message;
    kvc_cache_free(d);
    kvc_input_close(&in);
    free(b.data);
    return wrong;
}

/* NULL when the file is treated as expected, else what is wrong. */
static const char *judge(const struct expected *x, char *text, size_t size) {
    char path[512];
    struct kvc_input in;
    struct kvc_cache *c;
    struct kvc_error e = {.code = KVC_OK};
    const char *wrong = NULL;
    snprintf(path, sizeof path, "%s/%s", directory(), x->name);
    if (kvc_input_open(&in, path, &e) || kvc_input_pin(&in, 0, in.size, &e)) {
        snprintf(text, size, "%s", e.message);
        return text;
    }
    enum step step = try_file(&in, &c, &e);
    if (x->group == GOOD) {
        if (step != NOWHERE)
            snprintf(text, size, "refused (%s): %s", step_name[step], e.message), wrong = text;
        else if (!(wrong = wrong_source(c, &e))) wrong = lost_keys(c, &e);
        if (wrong && wrong != text) snprintf(text, size, "%s", wrong), wrong = text;
    } else {
        int code = step == NOWHERE ? 0
                   : x->group == UNSUPPORTED
                       ? e.code == KVC_ERR_UNSUPPORTED
                       : e.code == KVC_ERR_DAMAGED || e.code == KVC_ERR_UNKNOWN;
        /* EXTENTS is section 0 of its record: what is wrong in it is said to be there */
        if (step == OPEN && has_prefix(x->name, "bad-extents-") &&
            !has_prefix(x->name, "bad-extents-literals"))
            code = code && e.section == 0 && e.record != KVC_NOWHERE;
        /* what is wrong in a stage's sections is said to be in the first of them */
        if (step == READ && (has_prefix(x->name, "bad-quant-") || has_prefix(x->name, "bad-fast-")))
            code = code && e.section != KVC_NOWHERE && e.record != KVC_NOWHERE;
        if (!code || strcmp(step_name[step], x->where) != 0 || !strstr(e.message, x->words)) {
            snprintf(text, size, "expected (%s) '%s', got (%s) %d: %s", x->where, x->words,
                     step_name[step], (int)e.code, step == NOWHERE ? "accepted" : e.message);
            wrong = text;
        }
    }
    kvc_cache_free(c);
    kvc_input_close(&in);
    return wrong;
}

static struct expected list[1024];

static void judge_group(enum group group) {
    size_t n = read_expected(list, sizeof list / sizeof list[0]), files = 0, failures = 0;
    char text[1200];
    for (size_t i = 0; i < n; i++) {
        if (list[i].group != group) continue;
        const char *wrong = judge(&list[i], text, sizeof text);
        if (wrong) print_error("%s: %s\n", list[i].name, wrong);
        failures += wrong != NULL;
        files++;
    }
    assert_true(files > 0);
    assert_int_equal(failures, 0);
}

static void good_files(void **state) {
    (void)state;
    judge_group(GOOD);
}

static void bad_files(void **state) {
    (void)state;
    judge_group(BAD);
}

static void unsupported_files(void **state) {
    (void)state;
    judge_group(UNSUPPORTED);
}

/* expected.txt names every file. */
static void no_file_is_left_out(void **state) {
    (void)state;
    size_t n = read_expected(list, sizeof list / sizeof list[0]), files = 0;
    DIR *dir = opendir(directory());
    assert_non_null(dir);
    for (const struct dirent *d; (d = readdir(dir));) {
        size_t i = 0, length = strlen(d->d_name);
        if (length < 4 || strcmp(d->d_name + length - 4, ".kvc") != 0) continue;
        while (i < n && strcmp(list[i].name, d->d_name) != 0) i++;
        if (i == n) fail_msg("%s is not in expected.txt", d->d_name);
        files++;
    }
    closedir(dir);
    assert_int_equal(files, n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_file_is_left_out),
        cmocka_unit_test(good_files),
        cmocka_unit_test(unsupported_files),
        cmocka_unit_test(bad_files),
    };
    return cmocka_run_group_tests_name("files", tests, NULL, NULL);
}
