/* test_input.c: bytes that are read when they are pinned, and bundles of members
 * (formats/io/pages.c, input.c, bundle.c). */
#include "kvc_support.h"
#include "temp_folder.h"

#include "formats/file/open.h"
#include "formats/io/member_sink.h"
#include "formats/model/profile.h"
#include "formats/model/weights.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static uint8_t byte_at(uint64_t offset) {
    return (uint8_t)(offset * 31 + offset / 257);
}

/* A source that counts what it is asked for, and fails from some byte on. */
struct source {
    atomic_ullong read;
    uint64_t broken; /* reads that reach it fail */
    int closed;
};

static int read_source(void *state, uint64_t offset, size_t n, uint8_t *dst, struct kvc_error *e) {
    struct source *s = state;
    s->read += n;
    if (offset + n > s->broken) return kvc_fail(e, KVC_ERR_IO, "the line is dead");
    for (size_t i = 0; i < n; i++) dst[i] = byte_at(offset + i);
    return 0;
}

static void close_source(void *state) {
    ((struct source *)state)->closed++;
}

static void pins(void **state) {
    (void)state;
    const uint64_t size = (UINT64_C(5) << 20) + 17;
    struct source s = {.broken = UINT64_MAX};
    struct kvc_input in;
    struct kvc_error e;
    uint8_t some[300];
    assert_int_equal(kvc_input_ranged(&in, "far away", size, read_source, close_source, &s, &e), 0);
    assert_int_equal(s.read, 0); /* nothing before it is asked for */
    for (uint64_t at = 0; at < size; at += 65521) {
        const uint64_t n = size - at < sizeof some ? size - at : sizeof some;
        assert_int_equal(kvc_input_pin(&in, at, n, &e), 0);
        for (uint64_t i = 0; i < n; i++) assert_int_equal(in.data[at + i], byte_at(at + i));
        kvc_input_unpin(&in, at, n);
    }
    assert_int_equal(kvc_input_copy(&in, size - 300, some, 300, &e), 0);
    const uint64_t once = s.read;
    assert_true(once <= size);
    assert_int_equal(kvc_input_copy(&in, size - 300, some, 300, &e), 0);
    assert_int_equal(s.read, once); /* it is still there */
    assert_int_equal(kvc_input_pin(&in, 0, 0, &e), 0);
    assert_int_equal(kvc_input_pin(&in, size, 0, &e), 0);
    assert_int_equal(kvc_input_pin(&in, size, 1, &e), -1);
    assert_int_equal(kvc_input_pin(&in, UINT64_MAX, 2, &e), -1);
    assert_int_equal(kvc_input_pin(&in, 1, size, &e), -1);
    kvc_input_close(&in);
    assert_int_equal(s.closed, 1);
}

/* Giving memory back touches none after the last byte of a file, whose last chunk is not whole. */
static void memory_after_a_file(void **state) {
    (void)state;
    enum { AFTER = 1 << 16 };
    const uint64_t size = (UINT64_C(65) << 20) + 17; /* more than what stays unpinned */
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    struct source s = {.broken = UINT64_MAX};
    struct kvc_input in;
    struct kvc_error e;
    /* Addresses are given out downwards: the file takes the place that is freed before `mine`. */
    const size_t room = (size_t)(size + page - 1) / page * page;
    uint8_t *const both = mmap(NULL, room + AFTER, PROT_READ | PROT_WRITE, flags, -1, 0);
    assert_true(both != MAP_FAILED);
    uint8_t *const mine = both + room;
    munmap(both, room);
    assert_int_equal(kvc_input_ranged(&in, "far away", size, read_source, NULL, &s, &e), 0);
    if (in.data + room != mine) skip(); /* it is elsewhere */
    memset(mine, 0x5a, AFTER);
    assert_int_equal(kvc_input_pin(&in, 0, size, &e), 0);
    kvc_input_unpin(&in, 0, size);
    for (size_t i = 0; i < AFTER; i++) assert_int_equal(mine[i], 0x5a);
    munmap(mine, AFTER);
    kvc_input_close(&in);
}

static void failures(void **state) {
    (void)state;
    struct source s = {.broken = 200000};
    struct kvc_input in;
    struct kvc_error e;
    assert_int_equal(kvc_input_ranged(&in, "far away", 1 << 20, read_source, close_source, &s, &e),
                     0);
    assert_int_equal(kvc_input_pin(&in, 0, 100, &e), 0);
    assert_int_equal(kvc_input_pin(&in, 0, 300000, &e), -1);
    assert_non_null(strstr(e.message, "the line is dead"));
    assert_int_equal(in.data[99], byte_at(99)); /* what is pinned stays */
    s.broken = UINT64_MAX;
    assert_int_equal(kvc_input_pin(&in, 0, 300000, &e), 0); /* and it may work later */
    assert_int_equal(in.data[299999], byte_at(299999));
    kvc_input_unpin(&in, 0, 300000);
    kvc_input_unpin(&in, 0, 100);
    kvc_input_close(&in);
    assert_int_equal(kvc_input_ranged(&in, "nothing", 0, read_source, close_source, &s, &e), 0);
    assert_int_equal(s.closed, 2);
    kvc_input_close(&in);
}

/* More than what stays unpinned, so that memory is given back while others read. */
struct reader {
    const struct kvc_input *in;
    unsigned seed;
    int bad;
};

static void *read_here_and_there(void *state) {
    struct reader *r = state;
    for (int i = 0; i < 2000; i++) {
        r->seed = r->seed * 1103515245u + 12345u;
        const uint64_t n = 1 + r->seed % 200000, at = ((uint64_t)r->seed << 13) % (r->in->size - n);
        if (kvc_input_pin(r->in, at, n, NULL)) r->bad = 1;
        else {
            r->bad |= r->in->data[at] != byte_at(at) ||
                      r->in->data[at + n / 2] != byte_at(at + n / 2) ||
                      r->in->data[at + n - 1] != byte_at(at + n - 1);
            kvc_input_unpin(r->in, at, n);
        }
    }
    return NULL;
}

static void threads(void **state) {
    (void)state;
    struct source s = {.broken = UINT64_MAX};
    struct kvc_input in;
    struct kvc_error e;
    pthread_t thread[4];
    struct reader reader[4];
    assert_int_equal(kvc_input_ranged(&in, "far away", UINT64_C(100) << 20, read_source, NULL, &s,
                                      &e),
                     0);
    for (unsigned i = 0; i < 4; i++) {
        reader[i] = (struct reader){.in = &in, .seed = i + 1};
        assert_int_equal(pthread_create(&thread[i], NULL, read_here_and_there, &reader[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(reader[i].bad, 0);
    }
    kvc_input_close(&in);
}

static void put_text(const char *name, const char *text) {
    put_file(name, text, strlen(text));
}

static void put_sample(const char *name, const char *path) {
    const struct memory m = file_bytes(path);
    assert_true(m.n > 100);
    put_file(name, m.data, m.n);
    free(m.data);
}

/* A file that is cut short while a program has it open: an error, no signal. */
static void files_cut_short(void **state) {
    (void)state;
    static const char *const samples[] = {"samples/prompt.safetensors.kvc",
                                          "samples/transformers-16.safetensors"};
    for (int i = 0; i < 2; i++) {
        put_sample("cut", samples[i]);
        struct kvc_error *e = kvc_error_new();
        struct kvc_file *f = kvc_file_open(in_folder("cut"), NULL, e);
        if (!f) fail_msg("%s", kvc_error_message(e));
        assert_int_equal(truncate(in_folder("cut"), 100), 0);
        struct kvc_tensor_info info = {.size = sizeof info};
        int failed = 0;
        for (uint32_t t = 0; !kvc_file_tensor(f, t, &info); t++) {
            uint8_t *rows = malloc((size_t)(info.rows * info.row_bytes));
            failed += kvc_file_read(f, t, 0, info.rows, rows, info.rows * info.row_bytes, e) != 0;
            free(rows);
        }
        assert_true(failed > 0); /* not all had been read before */
        assert_int_equal(kvc_error_code(e), 21);
        assert_non_null(strstr(kvc_error_message(e), "cut short"));
        if (!i) assert_int_equal(kvc_file_check(f, 1, e), -1);
        kvc_file_close(f);
        kvc_error_free(e);
    }
}

/* Writes a model of one layer with 64 KV heads of 8 channels and 512 channels in, all zeros: 1 MiB
 * for K and as much for V. */
static void make_weights(const char *name) {
    enum { MATRIX = 512 * 512 * 4 };
    static const char header[] = "{\"model.layers.0.self_attn.k_proj.weight\":{\"dtype\":\"F32\","
                                 "\"shape\":[512,512],\"data_offsets\":[0,1048576]},"
                                 "\"model.layers.0.self_attn.v_proj.weight\":{\"dtype\":\"F32\","
                                 "\"shape\":[512,512],\"data_offsets\":[1048576,2097152]},"
                                 "\"__metadata__\":{\"architecture\":\"llama\"}}";
    const uint64_t n = sizeof header - 1;
    uint8_t begin[8 + sizeof header];
    memcpy(begin, &n, 8); /* the tests run on little-endian machines */
    memcpy(begin + 8, header, sizeof header);
    put_file(name, begin, 8 + n);
    assert_int_equal(truncate(in_folder(name), (off_t)(8 + n + 2 * MATRIX)), 0);
}

/* Weights that are cut short after they were opened: an error, no signal. */
static void weights_cut_short(void **state) {
    (void)state;
    make_weights("weights");
    const char *path = in_folder("weights");
    struct kvc_error e;
    struct kvc_projection p;
    const struct kvc_projection_shape shape = {512, 64, 8, 8, 0, KVC_PAIRING_HALVES};
    struct kvc_weights *w = kvc_weights_open(path, &e);
    if (!w) fail_msg("%s", e.message);
    if (kvc_weights_load(w, 0, &shape, &p, &e)) fail_msg("%s", e.message);
    kvc_projection_free(&p);
    kvc_weights_close(w);
    assert_non_null(w = kvc_weights_open(path, &e));
    assert_int_equal(truncate(path, 1500000), 0); /* in V */
    assert_int_equal(kvc_weights_load(w, 0, &shape, &p, &e), -1);
    assert_int_equal(e.code, KVC_ERR_IO);
    assert_non_null(strstr(e.message, "cut short"));
    kvc_weights_close(w);
}

/* A profile is in memory once it is open, so that its file may be cut short. */
static void profile_cut_short(void **state) {
    (void)state;
    put_sample("cut", "samples/smollm2-135m-instruct-predict.kvcp");
    struct kvc_error e;
    struct kvc_profile *p = kvc_profile_open(in_folder("cut"), &e);
    if (!p) fail_msg("%s", e.message);
    assert_int_equal(truncate(in_folder("cut"), 100), 0);
    const struct kvc_profile_part *part = NULL;
    assert_int_equal(kvc_profile_part(p, 0, KVC_ROLE_V, KVC_PAIRING_HALVES, 1, &part, &e), 0);
    assert_non_null(part);
    kvc_profile_free(p);
    assert_null(kvc_profile_open(in_folder("cut"), &e));
}

/* --- the same cache, mapped and read --- */

static void compare_bytes(const struct kvc_cache *a, const struct kvc_cache *b, const char *path) {
    struct kvc_error e;
    assert_int_equal(a->n_tensors, b->n_tensors);
    assert_int_equal(a->literal_size, b->literal_size);
    for (uint32_t t = 0; t < a->n_tensors; t++) {
        const uint64_t row = kvc_row_bytes(&a->tensor[t].shape), n = a->tensor[t].shape.tokens,
                       size = kvc_tensor_bytes(&a->tensor[t]);
        uint8_t *x = malloc((size_t)size + 1), *y = malloc((size_t)size + 1);
        if (!a->read(a, t, 0, n, x, &e)) {
            if (b->read(b, t, 0, n, y, &e) || memcmp(x, y, (size_t)size) != 0)
                fail_msg("%s, tensor %u", path, t);
            for (uint64_t i = 0; i < n; i += 37) /* single rows */
                if (b->read(b, t, i, 1, y, &e) || memcmp(x + i * row, y, (size_t)row) != 0)
                    fail_msg("%s, row of tensor %u", path, t);
        }
        free(x);
        free(y);
    }
    uint8_t *x = malloc((size_t)a->literal_size + 1), *y = malloc((size_t)a->literal_size + 1);
    const int status = a->read_literal(a, 0, a->literal_size, x, &e);
    assert_int_equal(b->read_literal(b, 0, a->literal_size, y, &e), status);
    if (!status) assert_memory_equal(x, y, a->literal_size);
    free(x);
    free(y);
}

static void open_both_ways(const char *path, unsigned *compared) {
    struct kvc_opened mapped, read;
    struct kvc_error e, other;
    const int status = kvc_open_path(&mapped, path, &(struct kvc_opening){.maps_files = 1}, &e);
    if (status != kvc_open_path(&read, path, &(struct kvc_opening){0}, &other))
        fail_msg("%s: %s", path, status ? e.message : other.message);
    if (status) {
        assert_string_equal(e.message, other.message);
        return;
    }
    compare_bytes(mapped.cache, read.cache, path);
    kvc_close(&mapped);
    kvc_close(&read);
    ++*compared;
}

static void mapped_and_read(void **state) {
    (void)state;
    static const char *const folders[] = {"samples", "tests/conformance/files", "tests/golden"};
    unsigned compared = 0;
    for (int i = 0; i < 3; i++) {
        DIR *d = opendir(folders[i]);
        assert_non_null(d);
        for (const struct dirent *entry; (entry = readdir(d));) {
            char path[512];
            struct stat st;
            snprintf(path, sizeof path, "%s/%s", folders[i], entry->d_name);
            if (stat(path, &st) == 0 && S_ISREG(st.st_mode)) open_both_ways(path, &compared);
        }
        closedir(d);
    }
    assert_true(compared > 40);
}

/* --- bundles --- */

static void check_bundle(const struct kvc_bundle *b) {
    static const char *const names[] = {"a.bin", "b/c.bin", "empty"}, *const texts[] = {"first",
                                                                                        "second",
                                                                                        ""};
    struct kvc_error e;
    assert_int_equal(b->n, 3);
    assert_int_equal(kvc_bundle_size(b), 11);
    for (size_t i = 0; i < 3; i++) {
        const struct kvc_input *in = kvc_bundle_open(b, i, &e);
        if (!in) fail_msg("%s", e.message);
        char text[8] = "";
        assert_string_equal(b->member[i].name, names[i]);
        assert_int_equal(in->size, strlen(texts[i]));
        assert_int_equal(kvc_input_copy(in, 0, text, in->size, &e), 0);
        assert_string_equal(text, texts[i]);
        assert_ptr_equal(kvc_bundle_open(b, i, &e), in);
    }
}

static void folders_and_archives(void **state) {
    (void)state;
    struct kvc_bundle b;
    struct kvc_error e;
    assert_int_equal(kvc_bundle_folder(&b, folder, 0, NULL, &e), -1);
    assert_non_null(strstr(e.message, "without files"));
    assert_int_equal(mkdir(in_folder("b"), 0700), 0);
    assert_int_equal(kvc_bundle_folder(&b, folder, 1, NULL, &e), -1);
    assert_non_null(strstr(e.message, "without files"));
    put_text("b/c.bin", "second");
    assert_int_equal(kvc_bundle_folder(&b, folder, 0, NULL, &e), -1);
    assert_int_equal(kvc_bundle_folder(&b, folder, 1, NULL, &e), 0);
    assert_int_equal(b.n, 1);
    kvc_bundle_close(&b);
    put_text("empty", "");
    put_text("a.bin", "first");
    for (int read = 0; read < 2; read++) {
        assert_int_equal(kvc_bundle_folder(&b, folder, 0, &(struct kvc_input_how){.read = read},
                                           &e),
                         0);
        check_bundle(&b);
        kvc_bundle_close(&b);
    }
    /* the same through an archive */
    struct kvc_buffer bytes = {0};
    struct kvc_sink sink = kvc_sink_buffer(&bytes);
    struct kvc_member_sink members;
    struct kvc_tar *tar = kvc_tar_open(&sink, &members, &e);
    assert_non_null(tar);
    static const char *const names[] = {"a.bin", "b/c.bin", "empty"}, *const texts[] = {"first",
                                                                                        "second",
                                                                                        ""};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(members.begin(members.state, names[i], strlen(texts[i]), &e), 0);
        assert_int_equal(kvc_sink_write(members.out, texts[i], strlen(texts[i]), &e), 0);
        assert_int_equal(members.finish(members.state, &e), 0);
    }
    assert_int_equal(kvc_tar_close(tar, 0, &e), 0);
    struct kvc_input in;
    kvc_input_memory(&in, "x.tar", bytes.data, bytes.n);
    assert_int_equal(kvc_input_is_archive(&in), 1);
    assert_int_equal(kvc_bundle_archive(&b, &in, &e), 0);
    check_bundle(&b);
    kvc_bundle_close(&b);
    in.size = 700; /* in the middle of the first member's padding */
    assert_int_equal(kvc_bundle_archive(&b, &in, &e), -1);
    free(bytes.data);
    put_text("bad\nname", "x");
    assert_int_equal(kvc_bundle_folder(&b, folder, 0, NULL, &e), -1);
}

/* Members written as files: folders in their names are made, unless a file is in their place. */
static void written_folders(void **state) {
    (void)state;
    char path[256];
    struct kvc_member_sink members;
    struct kvc_bundle b;
    struct kvc_error e;
    struct kvc_folder *f = kvc_folder_open(folder, &members, &e);
    assert_non_null(f);
    static const char *const names[] = {"a.bin", "b/c.bin", "empty"}, *const texts[] = {"first",
                                                                                        "second",
                                                                                        ""};
    for (int i = 0; i < 3; i++) {
        if (members.begin(members.state, names[i], strlen(texts[i]), &e)) fail_msg("%s", e.message);
        assert_int_equal(kvc_sink_write(members.out, texts[i], strlen(texts[i]), &e), 0);
        assert_int_equal(members.finish(members.state, &e), 0);
    }
    assert_int_equal(kvc_bundle_folder(&b, folder, 0, NULL, &e), 0);
    check_bundle(&b);
    kvc_bundle_close(&b);
    assert_int_equal(members.begin(members.state, "b/deeper/d.bin", 0, &e), 0);
    assert_int_equal(members.finish(members.state, &e), 0);
    assert_int_equal(members.begin(members.state, "a.bin/x/y.bin", 0, &e), -1);
    assert_int_equal(e.code, KVC_ERR_IO);
    snprintf(path, sizeof path, "%s/a.bin/x: cannot create the folder: ", folder);
    assert_memory_equal(e.message, path, strlen(path));
    assert_int_equal(kvc_folder_close(f, -1, &e), -1);
}

/* Content, or a pipe, that is larger than the caller wants is not spooled. */
static void spooled_bytes_are_limited(void **state) {
    (void)state;
    char path[256], fifo[256], shell[512];
    struct kvc_input in;
    struct kvc_error e;
    snprintf(path, sizeof path, "%s/zeros", folder);
    snprintf(fifo, sizeof fifo, "%s/pipe", folder);
    snprintf(shell, sizeof shell, "head -c 100000 /dev/zero | gzip >%s", path);
    assert_int_equal(system(shell), 0);
    for (int pipe = 0; pipe < 2; pipe++)
        for (uint64_t most = 99999; most < 100001; most++) {
            const struct kvc_input_how how = {.read = 1, .most = most};
            /* A pipe of its own: the writer of a refused one may still be ending. */
            unlink(fifo);
            assert_int_equal(mkfifo(fifo, 0600), 0);
            snprintf(shell, sizeof shell, "head -c 100000 /dev/zero >%s 2>/dev/null &", fifo);
            if (pipe) assert_int_equal(system(shell), 0);
            const int status = kvc_input_open_how(&in, pipe ? fifo : path, &how, &e);
            assert_int_equal(status, most < 100000 ? -1 : 0);
            if (status) assert_non_null(strstr(e.message, "too large"));
            else assert_int_equal(in.size, 100000);
            kvc_input_close(&in);
        }
}

/* A test in a folder of its own. */
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(spooled_bytes_are_limited),
        cmocka_unit_test(pins),
        cmocka_unit_test(memory_after_a_file),
        cmocka_unit_test(failures),
        cmocka_unit_test(threads),
        IN_FOLDER(files_cut_short),
        IN_FOLDER(weights_cut_short),
        IN_FOLDER(profile_cut_short),
        cmocka_unit_test(mapped_and_read),
        IN_FOLDER(folders_and_archives),
        IN_FOLDER(written_folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
