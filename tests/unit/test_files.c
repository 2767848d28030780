/* test_files.c: what the runner of the conformance set (tests/conformance) cannot ask of a program:
 * when the container's reader refuses a file, where its message points and with which words
 * (expected.txt there); sources of several members; that a file which is written anew keeps unknown
 * metadata. */
#include "formats/io/bytes.h"
#include "formats/file/restore.h"
#include "formats/container/container.h"
#include "formats/cache/format.h"
#include "formats/model/weights.h"

#include <dirent.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <xxhash.h>

#define FOLDER "tests/conformance"

/* Where a reader may notice what is wrong, in this order. */
enum step { OPEN, READ, CHECK, NOWHERE };
static const char *const step_name[] = {"open", "read", "check", "nowhere"};

struct expected {
    char name[64], where[16], words[80];
};

static int has_prefix(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

/* Reads the lines of expected.txt: a file's name, the step at which it is refused, words of the
 * message. Returns their number. */
static size_t read_expected(struct expected *list, size_t room) {
    char line[512];
    size_t n = 0;
    FILE *f = fopen(FOLDER "/expected.txt", "r");
    if (!f) fail_msg("%s cannot be read", FOLDER "/expected.txt");
    while (fgets(line, sizeof line, f)) {
        struct expected *x = &list[n];
        assert_int_equal(sscanf(line, "%63s %15s %79[^\n]", x->name, x->where, x->words), 3);
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

/* Opens the weights that lie beside a file; NULL: there are none. */
static struct kvc_weights *weights_beside(const char *path) {
    char name[600];
    struct kvc_error e;
    snprintf(name, sizeof name, "%.*ssafetensors", (int)(strlen(path) - strlen("kvc")), path);
    if (access(name, R_OK)) return NULL;
    struct kvc_weights *weights = kvc_weights_open(name, &e);
    if (!weights) fail_msg("%s", e.message);
    return weights;
}

/* How far the file is accepted; *cache when it opened. */
static enum step try_file(const struct kvc_input *in, const struct kvc_weights *weights,
                          struct kvc_cache **cache, struct kvc_error *e) {
    *cache = kvc_container_open(in, e);
    if (!*cache) return OPEN;
    kvc_container_set_weights(*cache, weights);
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

/* What is wrong with how a file is refused; NULL for nothing. */
static const char *wrong_refusal(const struct expected *x, enum step step,
                                 const struct kvc_error *e) {
    if (strcmp(step_name[step], x->where) != 0) return "not refused where expected";
    if (!strstr(e->message, x->words)) return "not refused with the words expected";
    const int is_unsupported = has_prefix(x->name, "unsupported-"),
              by_weights = has_prefix(x->name, "bad-project-") &&
                           (e->code == KVC_ERR_OTHER_MODEL || e->code == KVC_ERR_USAGE);
    if (is_unsupported != (e->code == KVC_ERR_UNSUPPORTED) ||
        (!is_unsupported && !by_weights && e->code != KVC_ERR_DAMAGED &&
         e->code != KVC_ERR_UNKNOWN_FORMAT))
        return "not refused with the code expected";
    /* EXTENTS is section 0 of its record: what is wrong in it is said to be there */
    if (step == OPEN && has_prefix(x->name, "bad-extents-") &&
        !has_prefix(x->name, "bad-extents-literals") &&
        (e->section != 0 || e->record == KVC_NOWHERE))
        return "not refused in the section EXTENTS";
    /* what is wrong in a stage's sections is said to be in the first of them */
    if (step == READ && (has_prefix(x->name, "bad-quant-") || has_prefix(x->name, "bad-fast-")) &&
        (e->section == KVC_NOWHERE || e->record == KVC_NOWHERE))
        return "not refused in a section";
    return NULL;
}

/* Returns 1 and says in `text` what is wrong where a file is not treated as expected. x: NULL for
 * one that is good. */
static int judge(const char *name, const struct expected *x, char *text, size_t size) {
    char path[512];
    struct kvc_input in;
    struct kvc_cache *c;
    struct kvc_error e = {.code = KVC_OK};
    snprintf(path, sizeof path, FOLDER "/files/%s", name);
    if (kvc_input_open(&in, path, &e) || kvc_input_pin(&in, 0, in.size, &e)) {
        snprintf(text, size, "%s", e.message);
        return 1;
    }
    struct kvc_weights *weights = weights_beside(path);
    const enum step step = try_file(&in, weights, &c, &e);
    const char *wrong = NULL;
    if (x) wrong = wrong_refusal(x, step, &e);
    else if (step != NOWHERE) wrong = e.message;
    else if (!(wrong = wrong_source(c, &e))) wrong = lost_keys(c, &e);
    const int status = wrong != NULL;
    if (status)
        snprintf(text, size, "%s (%s): %s", wrong == e.message ? "refused" : wrong, step_name[step],
                 step == NOWHERE ? "accepted" : e.message);
    kvc_cache_free(c);
    kvc_weights_close(weights);
    kvc_input_close(&in);
    return status;
}

static void refused_files(void **state) {
    (void)state;
    static struct expected list[2048];
    static char text[4096];
    const size_t n = read_expected(list, sizeof list / sizeof list[0]);
    unsigned failures = 0;
    for (size_t i = 0; i < n; i++) {
        if (!judge(list[i].name, &list[i], text, sizeof text)) continue;
        print_error("%s: %s\n", list[i].name, text);
        failures++;
    }
    assert_in_range(n, 500, sizeof list / sizeof list[0]);
    assert_int_equal(failures, 0);
}

static void good_files(void **state) {
    (void)state;
    static char text[4096];
    unsigned files = 0, failures = 0;
    DIR *dir = opendir(FOLDER "/files");
    assert_non_null(dir);
    for (const struct dirent *d; (d = readdir(dir));) {
        const size_t length = strlen(d->d_name);
        if (!has_prefix(d->d_name, "good-") || strcmp(d->d_name + length - 4, ".kvc") != 0)
            continue;
        if (strcmp(d->d_name, "good-profile-beside.kvc") == 0) continue; /* is not looked for */
        files++;
        if (!judge(d->d_name, NULL, text, sizeof text)) continue;
        print_error("%s: %s\n", d->d_name, text);
        failures++;
    }
    closedir(dir);
    assert_in_range(files, 100, UINT_MAX);
    assert_int_equal(failures, 0);
}

/* Writes a file of the set anew, with blocks copied from itself. */
static int copy_blocks(const char *path, struct kvc_buffer *b, struct kvc_error *e) {
    struct kvc_input in;
    struct kvc_sink out = kvc_sink_buffer(b);
    assert_int_equal(kvc_input_open(&in, path, e), 0);
    struct kvc_cache *c = kvc_container_open(&in, e);
    assert_non_null(c);
    const struct kvc_pack_options options = {.threads = 1, .reuse = c};
    const int status = kvc_container_write(c, &options, &out, NULL, e);
    kvc_cache_free(c);
    kvc_input_close(&in);
    return status;
}

/* Records of a file that needs a feature of writers are not copied; a file that is written has no
 * features. */
static void features_of_writers(void **state) {
    (void)state;
    struct kvc_error e = {.code = KVC_OK};
    struct kvc_buffer b = {0};
    assert_int_equal(copy_blocks(FOLDER "/files/good-features.kvc", &b, &e), -1);
    assert_int_equal(e.code, KVC_ERR_UNSUPPORTED);
    assert_non_null(strstr(e.message, "features 80000000"));
    b.n = 0;
    assert_int_equal(copy_blocks(FOLDER "/files/good-small.kvc", &b, &e), 0);
    assert_memory_equal(b.data + 14, "\0\0\0\0\0\0\0\0\0", 10);
    free(b.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_files),
        cmocka_unit_test(refused_files),
        cmocka_unit_test(features_of_writers),
    };
    return cmocka_run_group_tests_name("files", tests, NULL, NULL);
}
