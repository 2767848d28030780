/* test_kvc.c: the public interface alone, as a program that links libkvc uses it: files, parts,
 * matches, comparisons. Not for damage and callbacks (test_kvc_callbacks.c). */
#include "kvc_support.h"

#include "tests/dense_array.h"

#include <math.h>

static int refuse(void *state, const void *data, size_t n) {
    (void)state, (void)data, (void)n;
    return 1;
}

static void a_slot_through_the_library(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct memory source = file_bytes(SAMPLE), packed = {0}, back = {0}, converted = {0};
    struct kvc_open_options options = {.size = sizeof options,
                                       .kv_heads = 3,
                                       .pairing = "interleaved"};
    struct kvc_file *f = kvc_file_open(SAMPLE, &options, e);
    if (!f) fail_msg("%s", kvc_error_message(e));
    assert_string_equal(kvc_file_format(f), "llama");
    assert_int_equal(kvc_file_tensors(f), 60);
    struct kvc_tensor_info info = {.size = sizeof info};
    assert_int_equal(kvc_file_tensor(f, 0, &info), 0);
    assert_int_equal(kvc_file_tensor(f, 60, &info), -1);
    assert_string_equal(info.role, "K");
    assert_string_equal(info.dtype, "f16");
    assert_int_equal(info.rows, 16);
    assert_int_equal(info.heads, 3);
    assert_int_equal(info.dim, 64);
    assert_int_equal(info.row_bytes, 384);
    assert_int_equal(kvc_file_position(f, 0, 5), 5);
    uint64_t n;
    const int32_t *tokens = kvc_file_tokens(f, &n);
    assert_int_equal(n, 16);
    assert_int_equal(tokens[0], 42185);
    char text[64];
    assert_string_equal(kvc_file_meta(f, "source.format", text, sizeof text), "llama.cpp GGSQ");
    assert_null(kvc_file_meta(f, "no.such.key", text, sizeof text));
    assert_int_equal(kvc_file_meta_size(f, "no.such.key"), 0);
    assert_int_equal(kvc_file_meta_size(f, "source.format"), sizeof "llama.cpp GGSQ");
    assert_ptr_equal(kvc_file_meta(f, "source.format", text, sizeof "llama.cpp GGSQ"), text);
    /* nothing is cut off */
    assert_null(kvc_file_meta(f, "source.format", text, sizeof "llama.cpp GGSQ" - 1));
    assert_string_equal(text, "");
    assert_null(kvc_file_meta(f, "source.format", NULL, 0));

    struct kvc_write_options pack = {.size = sizeof pack, .recipe = "zstd", .threads = 2};
    assert_int_equal(kvc_file_pack(f, &pack, append, &packed, e), 0);
    struct kvc_file *p = kvc_file_open_memory(packed.data, packed.n, NULL, e);
    if (!p) fail_msg("%s", kvc_error_message(e));
    assert_string_equal(kvc_file_format(p), "kvc");
    assert_int_equal(kvc_file_check(p, 2, e), 0);
    uint8_t a[384], b[384];
    assert_int_equal(kvc_file_read(f, 7, 3, 1, a, sizeof a, e), 0);
    assert_int_equal(kvc_file_read(p, 7, 3, 1, b, sizeof b, e), 0);
    assert_memory_equal(a, b, sizeof a);
    assert_int_equal(kvc_file_read(p, 7, 16, 1, b, sizeof b, e), -1);
    assert_int_equal(kvc_file_read(p, 60, 0, 1, b, sizeof b, e), -1);
    assert_int_equal(kvc_file_unpack(p, NULL, NULL, append, &back, e), 0);
    assert_int_equal(back.n, source.n);
    assert_memory_equal(back.data, source.data, source.n);
    assert_int_equal(kvc_file_unpack(p, "safetensors", NULL, append, &converted, e), 0);
    assert_true(converted.n > 368640);
    assert_int_equal(kvc_file_unpack(p, "bogus", NULL, append, &converted, e), -1);
    assert_int_equal(kvc_error_code(e), 10);
    assert_int_equal(kvc_file_pack(p, NULL, refuse, NULL, e), -1);
    assert_int_equal(kvc_error_code(e), 21);
    kvc_file_close(p);

    packed.data[packed.n / 2] ^= 4; /* somewhere in the blocks */
    p = kvc_file_open_memory(packed.data, packed.n, NULL, e);
    assert_non_null(p);
    assert_int_equal(kvc_file_check(p, 1, e), -1);
    assert_int_equal(kvc_error_code(e), 31);
    assert_int_equal(kvc_error_severity(e), 2);
    assert_true(kvc_error_offset(e) < packed.n);
    kvc_file_close(p);
    kvc_file_close(f);
    kvc_error_free(e);
    free(source.data);
    free(packed.data);
    free(back.data);
    free(converted.data);
}

static void metadata_lists_are_whole_or_absent(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *f = kvc_file_open("tests/golden/profile-v1.kvc", NULL, e);
    if (!f) fail_msg("%s", kvc_error_message(e));
    char text[65];
    assert_int_equal(kvc_file_meta_size(f, "profile.sha256"), 65); /* hex */
    assert_null(kvc_file_meta(f, "profile.sha256", text, 64));
    assert_ptr_equal(kvc_file_meta(f, "profile.sha256", text, 65), text);
    assert_int_equal(strlen(text), 64);
    kvc_file_close(f);
    kvc_error_free(e);
}

/* Row after row decodes a block once: the second row is still to be had when the file's bytes are
 * gone. */
static void rows_come_from_a_kept_block(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct memory packed = file_bytes("tests/golden/split-v1.kvc");
    struct kvc_file *f = kvc_file_open_memory(packed.data, packed.n, NULL, e);
    struct kvc_tensor_info info = {.size = sizeof info};
    if (!f) fail_msg("%s", kvc_error_message(e));
    assert_int_equal(kvc_file_tensor(f, 1, &info), 0);
    assert_true(info.rows > 2);
    uint8_t *rows = malloc(info.rows * info.row_bytes), *row = malloc(info.row_bytes);
    assert_true(rows && row);
    assert_int_equal(kvc_file_read(f, 1, 0, info.rows, rows, info.rows * info.row_bytes, e), 0);
    assert_int_equal(kvc_file_read(f, 1, 0, 1, row, info.row_bytes, e), 0);
    assert_memory_equal(row, rows, info.row_bytes);
    memset(packed.data + 64, 0, packed.n - 64);
    assert_int_equal(kvc_file_read(f, 1, 1, 1, row, info.row_bytes, e), 0);
    assert_memory_equal(row, rows + info.row_bytes, info.row_bytes);
    assert_int_equal(kvc_file_read(f, 1, 1, 0, row, info.row_bytes, e), 0);
    assert_int_equal(kvc_file_read(f, 0, 0, 1, row, info.row_bytes, e),
                     -1); /* of another tensor none is kept */
    assert_int_equal(kvc_error_code(e), 31);
    assert_int_equal(kvc_file_read(f, 0, 0, 1, row, info.row_bytes, e), -1);
    assert_int_equal(kvc_file_check(f, 1, e), -1);
    kvc_file_close(f);
    kvc_error_free(e);
    free(packed.data);
    free(rows);
    free(row);
}

/* Each thread reads all rows one by one, all of them the same tensors. */
static void *read_rows(void *state) {
    const struct kvc_file *f = state;
    struct kvc_tensor_info info = {.size = sizeof info};
    uint8_t *row = NULL, *rows = NULL;
    void *bad = NULL;
    for (uint32_t t = 0; !bad && !kvc_file_tensor(f, t, &info); t++) {
        uint8_t *more = realloc(row, info.row_bytes),
                *all = more ? realloc(rows, info.row_bytes * info.rows) : NULL;
        if (more) row = more;
        if (all) rows = all;
        if (!more || !all ||
            kvc_file_read(f, t, 0, info.rows, rows, info.row_bytes * info.rows, NULL))
            bad = state;
        for (uint64_t r = 0; !bad && r < info.rows; r++)
            if (kvc_file_read(f, t, r, 1, row, info.row_bytes, NULL) ||
                memcmp(row, rows + r * info.row_bytes, info.row_bytes) != 0)
                bad = state;
    }
    free(row);
    free(rows);
    return bad;
}

static void threads_share_kept_blocks(void **state) {
    enum { THREADS = 4 };
    pthread_t thread[THREADS];
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *f = kvc_file_open("tests/golden/kivi-v1.kvc", NULL, e);
    void *bad;
    (void)state;
    if (!f) fail_msg("%s", kvc_error_message(e));
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, read_rows, f), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(thread[i], &bad);
        assert_null(bad);
    }
    kvc_file_close(f);
    kvc_error_free(e);
}

/* Returns where the row lies in a packed file that stores rows as they are. */
static uint8_t *stored_row(const struct memory *packed, const uint8_t *row, size_t n) {
    uint8_t *at = memmem(packed->data, packed->n, row, n);
    assert_non_null(at);
    return at;
}

/* Bytes in memory whose hashes were checked are not hashed again; those of files, which others can
 * change, and of which none were checked, are. */
static void records_are_hashed_once(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct memory packed = {0};
    uint8_t row[384], again[384];
    char path[] = "/tmp/kvc-hashed-XXXXXX";
    const struct kvc_write_options pack = {.size = sizeof pack, .recipe = "store"};
    const struct kvc_open_options open = {.size = sizeof open, .no_verify = 1},
                                  map = {.size = sizeof map, .no_verify = 1, .map = 1};
    struct kvc_file *f = sample(e);
    assert_int_equal(kvc_file_pack(f, &pack, append, &packed, e), 0);
    assert_int_equal(kvc_file_read(f, 0, 5, 1, row, sizeof row, e), 0);
    kvc_file_close(f);
    uint8_t *at = stored_row(&packed, row, sizeof row);
    const int fd = mkstemp(path);
    assert_int_equal(write(fd, packed.data, packed.n), packed.n);
    struct kvc_file *checked = kvc_file_open_memory(packed.data, packed.n, &open, e),
                    *unchecked = kvc_file_open_memory(packed.data, packed.n, &open, e),
                    *on_disk = kvc_file_open(path, &map, e);
    assert_int_equal(kvc_file_check_hashes(checked, e), 0);
    assert_int_equal(kvc_file_check_hashes(on_disk, e), 0);
    *at ^= 1;
    assert_int_equal(pwrite(fd, at, 1, at - packed.data), 1);
    assert_int_equal(kvc_file_read(unchecked, 0, 5, 1, again, sizeof again, e), -1);
    assert_int_equal(kvc_error_code(e), KVC_ERR_DAMAGED);
    assert_int_equal(kvc_file_check_hashes(unchecked, e), -1);
    assert_int_equal(kvc_file_read(unchecked, 0, 5, 1, again, sizeof again, e), -1);
    assert_int_equal(kvc_file_read(on_disk, 0, 5, 1, again, sizeof again, e), -1);
    assert_int_equal(kvc_file_read(checked, 0, 5, 1, again, sizeof again, e), 0);
    row[0] ^= 1;
    assert_memory_equal(again, row, sizeof row);
    kvc_file_close(checked);
    kvc_file_close(unchecked);
    kvc_file_close(on_disk);
    close(fd);
    unlink(path);
    free(packed.data);
    kvc_error_free(e);
}

static void what_cannot_be_opened(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    assert_null(kvc_file_open("no/such/file", NULL, e));
    assert_int_equal(kvc_error_code(e), 21);
    assert_non_null(strstr(kvc_error_message(e), "no/such/file"));
    assert_null(kvc_file_open_memory("nothing", 7, NULL, e));
    assert_int_equal(kvc_error_code(e), 30);
    struct kvc_open_options options = {.size = sizeof options, .pairing = "thirds"};
    assert_null(kvc_file_open(SAMPLE, &options, e));
    assert_int_equal(kvc_error_code(e), 10);
    options = (struct kvc_open_options){.size = sizeof(struct kvc_open_options),
                                        .model = "no/such/weights"};
    assert_null(kvc_file_open(SAMPLE, &options, e));
    assert_non_null(strstr(kvc_error_message(e), "no/such/weights"));
    assert_null(kvc_file_open("no/such/file", NULL, NULL)); /* an error object is not required */
    kvc_file_close(NULL);
    kvc_error_free(e);
    kvc_error_free(NULL);
}

/* --- parts, matches, comparisons --- */

/* Token ids of a file that holds none. */
static void given_token_ids(void **state) {
    (void)state;
    static const char raw[] = "raw:dtype=u8,layers=1,tokens=5,heads=1,dim=2";
    static const int32_t ids[] = {7, 8, 9, 10, 11};
    const uint8_t values[20] = {1, 2, 3};
    struct kvc_open_options options = {.size = sizeof options,
                                       .format = raw,
                                       .token_ids = ids,
                                       .n_token_ids = 5};
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *f = kvc_file_open_memory(values, sizeof values, &options, e);
    uint64_t n;
    assert_non_null(f);
    assert_memory_equal(kvc_file_tokens(f, &n), ids, sizeof ids);
    assert_int_equal(n, 5);
    kvc_file_close(f);
    options.n_token_ids = 4;
    assert_null(kvc_file_open_memory(values, sizeof values, &options, e));
    assert_non_null(strstr(kvc_error_message(e), "4 token ids are given"));
    kvc_error_free(e);
}

static void parts_of_a_file(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *f = sample(e);
    const uint8_t layers[] = {0, 1, 0, 1};
    struct kvc_select_options some = {
        .size = sizeof some, .first = 0, .end = 5, .layers = layers, .n_layers = 4};
    struct kvc_file *part = kvc_file_select(f, &some, e);
    if (!part) fail_msg("%s", kvc_error_message(e));
    assert_int_equal(kvc_file_tensors(part), 4); /* K and V of layers 1 and 3 */
    assert_string_equal(kvc_file_format(part), "llama");
    struct kvc_tensor_info info = {.size = sizeof info};
    assert_int_equal(kvc_file_tensor(part, 3, &info), 0);
    assert_int_equal(info.rows, 5);
    assert_int_equal(info.layer, 3);
    uint8_t a[384], b[384];
    assert_int_equal(kvc_file_read(part, 1, 4, 1, a, sizeof a, e), 0);
    uint32_t same = 0;
    for (uint32_t t = 0; t < kvc_file_tensors(f); t++) {
        struct kvc_tensor_info whole = {.size = sizeof whole};
        kvc_file_tensor(f, t, &whole);
        kvc_file_tensor(part, 1, &info);
        if (whole.layer == info.layer && strcmp(whole.role, info.role) == 0) same = t;
    }
    assert_int_equal(kvc_file_read(f, same, 4, 1, b, sizeof b, e), 0);
    assert_memory_equal(a, b, sizeof a);
    assert_int_equal(kvc_file_check(part, 1, e), 0);

    struct memory packed = {0};
    assert_int_equal(kvc_file_pack(part, NULL, append, &packed, e), 0);
    struct kvc_file *p = kvc_file_open_memory(packed.data, packed.n, NULL, e);
    assert_non_null(p);
    assert_int_equal(kvc_file_tensors(p), 4);
    assert_int_equal(
        kvc_file_compare(p, part, NULL,
                         &(struct kvc_comparison){.size = sizeof(struct kvc_comparison)}, e),
        0);
    /* a part is not the source's file */
    assert_int_equal(kvc_file_unpack(p, NULL, NULL, append, &packed, e), -1);
    assert_int_equal(kvc_error_code(e), 32);
    some.end = 0;
    some.first = 99;
    assert_null(kvc_file_select(f, &some, e));
    kvc_file_close(p);
    kvc_file_close(part);
    kvc_file_close(f);
    free(packed.data);
    kvc_error_free(e);
}

static void files_are_joined(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *f = sample(e);
    struct kvc_select_options some = {.size = sizeof some, .end = 5};
    struct kvc_file *part[2] = {kvc_file_select(f, &some, e)};
    some.first = 5;
    some.end = 16;
    part[1] = kvc_file_select(f, &some, e);
    assert_true(part[0] && part[1]);
    struct kvc_file *all = kvc_file_join((const struct kvc_file *const *)part, 2, NULL, e);
    if (!all) fail_msg("%s", kvc_error_message(e));
    assert_int_equal(
        kvc_file_compare(f, all, NULL,
                         &(struct kvc_comparison){.size = sizeof(struct kvc_comparison)}, e),
        0);
    assert_int_equal(kvc_file_check(all, 1, e), 0);
    assert_string_equal(kvc_file_format(all), "llama");
    struct memory packed = {0};
    assert_int_equal(kvc_file_pack(all, NULL, append, &packed, e), 0);
    struct kvc_file *p = kvc_file_open_memory(packed.data, packed.n, NULL, e);
    assert_non_null(p);
    assert_int_equal(
        kvc_file_compare(p, f, NULL,
                         &(struct kvc_comparison){.size = sizeof(struct kvc_comparison)}, e),
        0);
    /* it has no file of its own */
    assert_int_equal(kvc_file_unpack(all, NULL, NULL, append, &packed, e), -1);
    some.first = 3;
    some.end = 7;
    struct kvc_file *middle = kvc_file_select(all, &some, e); /* over the border */
    assert_non_null(middle);
    kvc_file_close(middle);
    kvc_file_close(all);
    assert_null(kvc_file_join((const struct kvc_file *const *)part + 1, 0, NULL, e));
    assert_null(kvc_file_join((const struct kvc_file *const *)part, 2, "rows", e));
    /* other positions */
    assert_null(kvc_file_join((const struct kvc_file *const *)part, 2, "heads", e));
    assert_int_equal(kvc_error_code(e), 10);
    /* facts of the whole, also without a model */
    const char *const facts[] = {"model.name=joined", NULL}, *const nonsense[] = {"no.fact=1",
                                                                                  NULL};
    struct kvc_join_options told = {.size = sizeof told, .facts = facts};
    char name[16];
    all = kvc_file_join_by((const struct kvc_file *const *)part, 2, &told, e);
    if (!all) fail_msg("%s", kvc_error_message(e));
    assert_string_equal(kvc_file_meta(all, "model.name", name, sizeof name), "joined");
    kvc_file_close(all);
    told.facts = nonsense;
    assert_null(kvc_file_join_by((const struct kvc_file *const *)part, 2, &told, e));
    assert_int_equal(kvc_error_code(e), 10);
    const struct kvc_file *const again[] = {part[1], part[0]};
    assert_null(kvc_file_join(again, 2, "tokens", e));
    kvc_file_close(p);
    kvc_file_close(part[0]);
    kvc_file_close(part[1]);
    kvc_file_close(f);
    free(packed.data);
    kvc_error_free(e);
}

static void leading_tokens_are_matched(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *f = sample(e);
    uint64_t n, common;
    const int32_t *tokens = kvc_file_tokens(f, &n);
    int32_t prompt[16];
    memcpy(prompt, tokens, sizeof prompt);
    assert_int_equal(kvc_file_match(f, prompt, 16, &common, e), 0);
    assert_int_equal(common, 16);
    prompt[7]++;
    assert_int_equal(kvc_file_match(f, prompt, 16, &common, e), 0);
    assert_int_equal(common, 7);
    kvc_file_close(f);
    kvc_error_free(e);
}

static void two_files_are_compared(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *f = sample(e);
    struct memory packed = {0};
    const struct kvc_write_options lossy = {.size = sizeof lossy, .recipe = "quant:zip:bits=8"};
    struct kvc_comparison found = {.size = sizeof found};
    assert_int_equal(kvc_file_compare(f, f, NULL, &found, e), 0);
    assert_int_equal(found.tensors, 60);
    assert_int_equal(found.values, 60 * 16 * 192);
    assert_int_equal(found.differ, 0);
    assert_true(found.cosine == 1 && found.rms == 0);
    if (kvc_file_pack(f, &lossy, append, &packed, e)) fail_msg("%s", kvc_error_message(e));
    struct kvc_file *p = kvc_file_open_memory(packed.data, packed.n, NULL, e);
    assert_non_null(p);
    assert_int_equal(kvc_file_compare(f, p, NULL, &found, e), 1);
    assert_true(found.differ > 0 && found.unequal > 0 && found.rms > 0 && found.frobenius > 0 &&
                found.frobenius < 0.2);
    assert_true(found.cosine > 0.9 && found.cosine < 1);
    struct kvc_compare_how how = {.size = sizeof how, .abs = 1e6};
    assert_int_equal(kvc_file_compare(f, p, &how, &found, e), 0);
    const struct kvc_compare_how senseless[] = {{.abs = -1},
                                                {.abs = NAN, .rel = 1},
                                                {.rel = -1e-9, .abs = 1},
                                                {.rel = NAN}};
    for (size_t i = 0; i < sizeof senseless / sizeof senseless[0]; i++) {
        how = senseless[i];
        how.size = sizeof how;
        assert_int_equal(kvc_file_compare(f, p, &how, &found, e), -1);
        assert_int_equal(kvc_error_code(e), 10);
    }
    how = (struct kvc_compare_how){.size = sizeof how, .first = 99, .end = 100};
    assert_int_equal(kvc_file_compare(f, p, &how, &found, e), -1);
    assert_int_equal(kvc_error_code(e), 10);
    const struct kvc_select_options some = {.size = sizeof some, .end = 5};
    struct kvc_file *part = kvc_file_select(f, &some, e);
    assert_int_equal(kvc_file_compare(f, part, NULL, &found, e), 1);
    assert_int_equal(found.rows_only[0], 11);
    assert_int_equal(found.rows_only[1], 0);
    assert_int_equal(found.differ, 0);
    kvc_file_close(part);
    kvc_file_close(p);
    kvc_file_close(f);
    free(packed.data);
    kvc_error_free(e);
}

/* Ids count at the positions that are compared. */
static void ids_of_a_range_are_compared(void **state) {
    (void)state;
    enum { T = 16, D = 4 };
    static float rows[T * D];
    struct kvc_error *e = kvc_error_new();
    struct kvc_memory_array a = dense_array("V", 0, "f32", 4, 1, D, rows);
    int32_t ids[2][T] = {{0}};
    struct kvc_file *f[2];
    ids[1][T - 1] = 1;
    for (int i = 0; i < 2; i++) {
        const struct kvc_memory m = {.size = sizeof m,
                                     .array_size = sizeof a,
                                     .arrays = &a,
                                     .n_arrays = 1,
                                     .tokens = T,
                                     .token_ids = ids[i],
                                     .n_token_ids = T};
        f[i] = kvc_file_open_arrays(&m, e);
        if (!f[i]) fail_msg("%s", kvc_error_message(e));
    }
    struct kvc_comparison found = {.size = sizeof found};
    struct kvc_compare_how how = {.size = sizeof how};
    for (how.end = T + 1; how.end-- > T - 1;) {
        assert_int_equal(kvc_file_compare(f[0], f[1], &how, &found, e), how.end == T);
        assert_int_equal(found.tokens_differ, how.end == T);
    }
    kvc_file_close(f[0]);
    kvc_file_close(f[1]);
    kvc_error_free(e);
}

static void count_meta(void *state, const char *key, const char *a, const char *b) {
    unsigned *n = state;
    assert_true(a || b);
    *n += strcmp(key, "recipe") == 0 && !a && b;
}

static void metadata_is_compared(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *f = sample(e);
    struct memory packed = {0};
    if (kvc_file_pack(f, NULL, append, &packed, e)) fail_msg("%s", kvc_error_message(e));
    struct kvc_file *p = kvc_file_open_memory(packed.data, packed.n, NULL, e);
    struct kvc_comparison found = {.size = sizeof found};
    unsigned recipes = 0;
    struct kvc_compare_how how = {.size = sizeof how,
                                  .meta = 1,
                                  .meta_differs = count_meta,
                                  .meta_state = &recipes};
    assert_int_equal(kvc_file_compare(f, p, &how, &found, e), 0);
    assert_int_equal(found.meta_differ, 0);
    how.meta = 2;
    assert_int_equal(kvc_file_compare(f, p, &how, &found, e), 1);
    assert_true(found.meta_differ > 0);
    assert_int_equal(recipes, 1);
    how.meta = 3;
    assert_int_equal(kvc_file_compare(f, p, &how, &found, e), -1);
    how = (struct kvc_compare_how){.size = sizeof how, .attention = 1};
    assert_int_equal(kvc_file_compare(f, p, &how, &found, e), -1);
    assert_int_equal(kvc_error_need(e), 6);
    kvc_file_close(p);
    kvc_file_close(f);
    free(packed.data);
    kvc_error_free(e);
}

#define QUERIED "samples/prompt.safetensors.kvc"

static void attention_is_measured(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    const struct kvc_open_options options = {.size = sizeof options, .kv_heads = 3};
    struct kvc_file *f = kvc_file_open(QUERIED, &options, e),
                    *q = kvc_file_open("samples/prompt-queries.kvc", &options, e);
    if (!f || !q) fail_msg("%s", kvc_error_message(e));
    struct memory packed = {0};
    const struct kvc_write_options lossy = {.size = sizeof lossy, .recipe = "kivi4"};
    if (kvc_file_pack(f, &lossy, append, &packed, e)) fail_msg("%s", kvc_error_message(e));
    struct kvc_file *p = kvc_file_open_memory(packed.data, packed.n, NULL, e);
    struct kvc_comparison found = {.size = sizeof found};
    const struct kvc_compare_how how = {.size = sizeof how, .attention = 1, .queries = q};
    assert_int_equal(kvc_file_compare(f, p, &how, &found, e), 1);
    assert_true(found.queries > 0 && found.kl > 0 && found.kl < 1 && found.logit_rms > 0);
    assert_true(found.output_median > 0 && found.output_median < found.output_p99 &&
                found.output_p99 < 1);
    kvc_file_close(p);
    kvc_file_close(q);
    kvc_file_close(f);
    free(packed.data);
    kvc_error_free(e);
}

static void statistics_of_heads(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *f = sample(e);
    struct kvc_head_stats head[3] = {{.size = sizeof head[0]},
                                     {.size = sizeof head[0]},
                                     {.size = sizeof head[0]}};
    if (kvc_file_stats(f, 1, head, 3, e)) fail_msg("%s", kvc_error_message(e));
    for (int h = 0; h < 3; h++) {
        assert_int_equal(head[h].size, sizeof head[h]);
        assert_int_equal(head[h].values, 16 * 64);
        assert_true(head[h].rms > 0 && head[h].rms <= head[h].worst_rms &&
                    head[h].worst_rms <= head[h].max_abs);
    }
    assert_int_equal(kvc_file_stats(f, 1, head, 2, e), -1);
    assert_int_equal(kvc_file_stats(f, 60, head, 3, e), -1);
    kvc_file_close(f);
    kvc_error_free(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slot_through_the_library),
        cmocka_unit_test(given_token_ids),
        cmocka_unit_test(metadata_lists_are_whole_or_absent),
        cmocka_unit_test(rows_come_from_a_kept_block),
        cmocka_unit_test(threads_share_kept_blocks),
        cmocka_unit_test(records_are_hashed_once),
        cmocka_unit_test(what_cannot_be_opened),
        cmocka_unit_test(parts_of_a_file),
        cmocka_unit_test(files_are_joined),
        cmocka_unit_test(leading_tokens_are_matched),
        cmocka_unit_test(two_files_are_compared),
        cmocka_unit_test(ids_of_a_range_are_compared),
        cmocka_unit_test(metadata_is_compared),
        cmocka_unit_test(attention_is_measured),
        cmocka_unit_test(statistics_of_heads),
    };
    return cmocka_run_group_tests_name("kvc", tests, NULL, NULL);
}
