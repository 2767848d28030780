/* test_kvc_callbacks.c: the public interface alone: damaged files, structs of other versions,
 * lists, progress and other callbacks, layouts. */
#include "kvc_support.h"
#include "temp_folder.h"

/* --- damaged files --- */

static void damage_is_listed(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *f = sample(e);
    struct memory packed = {0}, out = {0};
    if (kvc_file_pack(f, NULL, append, &packed, e)) fail_msg("%s", kvc_error_message(e));
    const struct kvc_open_options damaged = {.size = sizeof damaged, .damaged = 1};
    struct kvc_survey_info info = {.size = sizeof info};
    struct kvc_damage_info place = {.size = sizeof place};
    struct kvc_select_options whole = {.size = sizeof whole, .whole = 1};
    struct kvc_file *p = kvc_file_open_memory(packed.data, packed.n, &damaged, e);
    if (!p) fail_msg("%s", kvc_error_message(e));
    assert_int_equal(kvc_file_survey(f, &info), -1);
    assert_int_equal(kvc_file_survey(p, &info), 0);
    assert_true(info.records > 60 && !info.damaged && !info.places);
    assert_string_equal(info.layers, "0-29");
    assert_int_equal(kvc_file_damage(p, 0, &place), -1);
    assert_int_equal(kvc_file_check(p, 1, e), 0);
    struct kvc_file *all = kvc_file_select(p, &whole, e);
    if (!all) fail_msg("%s", kvc_error_message(e));
    assert_int_equal(
        kvc_file_compare(f, all, NULL,
                         &(struct kvc_comparison){.size = sizeof(struct kvc_comparison)}, e),
        0);
    kvc_file_close(all);
    kvc_file_close(p);

    packed.data[packed.n / 2] ^= 0x10; /* in the values of a layer of the middle */
    assert_non_null(p = kvc_file_open_memory(packed.data, packed.n, &damaged, e));
    assert_int_equal(kvc_file_survey(p, &info), 0);
    assert_int_equal(info.damaged, 1);
    assert_int_equal(info.places, 1);
    assert_string_equal(info.tokens, "");
    assert_int_equal(kvc_file_damage(p, 0, &place), 0);
    assert_string_equal(place.kind, "BLOCK");
    assert_true(place.offset < packed.n / 2 && place.offset + place.bytes > packed.n / 2 &&
                *place.reason);
    assert_int_equal(kvc_file_check(p, 1, e), -1);
    assert_int_equal(kvc_error_code(e), 31);
    assert_null(kvc_file_select(p, &whole, e)); /* all 16 tokens are one block */
    uint8_t layers[30] = {1, 1, 1};
    whole.layers = layers;
    whole.n_layers = 30;
    struct kvc_file *some = kvc_file_select(p, &whole, e);
    if (!some) fail_msg("%s", kvc_error_message(e));
    assert_int_equal(kvc_file_tensors(some), 6);
    assert_int_equal(kvc_file_unpack(some, "safetensors", NULL, append, &out, e), 0);
    assert_null(kvc_file_select(some, &whole, e));
    assert_int_equal(kvc_error_code(e), 10);
    kvc_file_close(some);
    kvc_file_close(p);
    kvc_file_close(f);
    free(packed.data);
    free(out.data);
    kvc_error_free(e);
}

/* A cache that begins after position 0 and whose first rows are damaged: nothing is whole from the
 * first one on, which is damage, and no range without rows. */
static void damage_at_a_later_start(void **state) {
    (void)state;
    static uint8_t rows[600][64];
    struct kvc_memory_array array = {.role = "K",
                                     .dtype = "u8",
                                     .heads = 1,
                                     .dim = sizeof rows[0],
                                     .data = rows,
                                     .token = sizeof rows[0],
                                     .channel = 1};
    const struct kvc_memory m = {.size = sizeof m,
                                 .array_size = sizeof array,
                                 .arrays = &array,
                                 .n_arrays = 1,
                                 .tokens = 600,
                                 .first_position = 1024};
    const struct kvc_write_options store = {.size = sizeof store, .recipe = "store"};
    const struct kvc_open_options damaged = {.size = sizeof damaged, .damaged = 1};
    struct kvc_select_options whole = {.size = sizeof whole, .whole = 1};
    struct kvc_error *e = kvc_error_new();
    struct memory packed = {0};
    for (size_t i = 0; i < sizeof rows; i++)
        rows[i / sizeof rows[0]][i % sizeof rows[0]] = (uint8_t)((uint32_t)i * 2654435761u >> 24);
    struct kvc_file *f = kvc_file_open_arrays(&m, e);
    if (!f || kvc_file_pack(f, &store, append, &packed, e)) fail_msg("%s", kvc_error_message(e));
    uint8_t *row = memmem(packed.data, packed.n, rows[10], sizeof rows[0]);
    assert_non_null(row);
    row[5] ^= 1;
    struct kvc_file *p = kvc_file_open_memory(packed.data, packed.n, &damaged, e);
    if (!p) fail_msg("%s", kvc_error_message(e));
    const uint64_t first[] = {0, 10, 1024, 1100};
    for (size_t i = 0; i < sizeof first / sizeof first[0]; i++) {
        whole.first = first[i];
        assert_null(kvc_file_select(p, &whole, e));
        assert_int_equal(kvc_error_code(e), 31);
        assert_non_null(strstr(kvc_error_message(e), "is whole in all layers"));
    }
    whole.first = 0;
    whole.end = 900;
    assert_null(kvc_file_select(p, &whole, e));
    assert_int_equal(kvc_error_code(e), 10);
    whole = (struct kvc_select_options){.size = sizeof whole, .whole = 1, .first = 1280};
    struct kvc_file *rest = kvc_file_select(p, &whole, e);
    if (!rest) fail_msg("%s", kvc_error_message(e));
    assert_int_equal(kvc_file_position(rest, 0, 0), 1280);
    kvc_file_close(rest);
    kvc_file_close(p);
    kvc_file_close(f);
    free(packed.data);
    kvc_error_free(e);
}

/* Writes bytes to a file, one of them wrong, and checks it. */
static int check_flipped(const struct memory *m, size_t at, struct kvc_check_report *report,
                         struct kvc_error *e) {
    m->data[at] ^= 1;
    put_file("flipped", m->data, m->n);
    m->data[at] ^= 1;
    *report = (struct kvc_check_report){.size = sizeof *report};
    return kvc_check(in_folder("flipped"), NULL, NULL, report, e);
}

/* Where even the tensors are lost, the survey can be asked, too. */
static void damage_of_tables(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *f = sample(e);
    struct memory packed = {0};
    struct kvc_check_report report;
    struct kvc_survey_info info = {.size = sizeof info, .layers = ""};
    if (kvc_file_pack(f, NULL, append, &packed, e)) fail_msg("%s", kvc_error_message(e));
    for (size_t at = 64; at < packed.n && info.layers; at += 64) {
        assert_int_equal(check_flipped(&packed, at, &report, e), 1);
        assert_int_equal(kvc_error_code(e), KVC_ERR_DAMAGED);
        assert_int_equal(report.has_checksums, 1);
        assert_non_null(report.damaged);
        assert_int_equal(kvc_file_survey(report.damaged, &info), 0);
        assert_true(info.places > 0);
        kvc_file_close(report.damaged);
    }
    assert_null(info.layers); /* found */
    assert_int_equal(info.whole, 0);
    kvc_file_close(f);
    free(packed.data);
    kvc_error_free(e);
}

/* --- structs of other versions, lists, callbacks --- */

/* Loads V of the only layer, 2 heads of 4 f16, heads before tokens. */
static int load_v(const struct kvc_file *f, int verify, struct kvc_error *e) {
    uint16_t value[2][5][4];
    const struct kvc_memory_array a = {.role = "V",
                                       .dtype = "f16",
                                       .heads = 2,
                                       .dim = 4,
                                       .data = value,
                                       .token = sizeof value[0][0],
                                       .head = sizeof value[0],
                                       .channel = sizeof value[0][0][0]};
    const struct kvc_memory m = {
        .size = sizeof m, .array_size = sizeof a, .arrays = &a, .n_arrays = 1, .tokens = 5};
    return kvc_file_load(
        f, &m, &(struct kvc_load_how){.size = sizeof(struct kvc_load_how), .verify = verify}, e);
}

/* Rows that differ from their digest: reading and unpacking refuse them, loading only if asked, and
 * nothing with no_verify. */
static void digests_are_compared(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    for (int no_verify = 0; no_verify < 2; no_verify++) {
        const struct kvc_open_options options = {.size = sizeof options, .no_verify = no_verify};
        struct kvc_file *f = kvc_file_open("tests/conformance/files/bad-block-row.kvc", &options,
                                           e);
        struct memory back = {0}, packed = {0};
        uint8_t row[16], whole[1024];
        size_t size;
        const int due = no_verify ? 0 : -1;
        assert_non_null(f);
        assert_int_equal(kvc_file_read(f, 0, 0, 1, row, sizeof row, e), 0);
        assert_int_equal(kvc_file_read(f, 1, 0, 1, row, sizeof row, e), due);
        assert_int_equal(kvc_error_code(e), no_verify ? 0 : 31);
        assert_int_equal(kvc_file_read(f, 1, 0, 5, whole, sizeof whole, e), due);
        assert_int_equal(kvc_file_unpack(f, NULL, NULL, append, &back, e), due);
        assert_int_equal(kvc_file_unpack_memory(f, NULL, NULL, whole, sizeof whole, &size, e), due);
        assert_int_equal(kvc_file_pack(f, NULL, append, &packed, e), due);
        assert_int_equal(
            kvc_file_compare(f, f, NULL,
                             &(struct kvc_comparison){.size = sizeof(struct kvc_comparison)}, e),
            due);
        assert_int_equal(load_v(f, 0, e), 0);
        assert_int_equal(load_v(f, 1, e), due);
        assert_int_equal(kvc_file_check(f, 1, e), -1); /* a check is one */
        assert_non_null(strstr(kvc_error_message(e), "digest"));
        free(back.data);
        free(packed.data);
        kvc_file_close(f);
        kvc_error_free(e);
        e = kvc_error_new();
    }
    kvc_error_free(e);
}

/* Blocks for which the allowed memory does not suffice are refused by everything that decodes;
 * looking at the file needs none. */
static void memory_is_limited(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct kvc_open_options options = {.size = sizeof options, .max_memory = 1 << 10};
    struct kvc_file *f = kvc_file_open("tests/conformance/files/good-full-block.kvc", &options, e);
    struct memory out = {0};
    uint8_t row[64];
    assert_non_null(f);
    struct kvc_tensor_info info = {.size = sizeof info};
    assert_int_equal(kvc_file_tensor(f, 0, &info), 0);
    assert_true(info.row_bytes <= sizeof row && info.rows > 256);
    assert_int_equal(kvc_file_read(f, 0, 0, 1, row, sizeof row, e), -1);
    assert_int_equal(kvc_error_code(e), 32);
    assert_int_equal(kvc_error_need(e), 20);
    assert_int_equal(kvc_file_unpack(f, NULL, NULL, append, &out, e), -1);
    assert_int_equal(kvc_file_pack(f, NULL, append, &out, e), -1);
    assert_int_equal(kvc_file_check(f, 2, e), -1);
    assert_int_equal(kvc_error_code(e), 32); /* no damage */
    kvc_file_close(f);
    /* of a thread, and as much again */
    options.max_memory = 8 * 256 * 2 * info.heads * info.dim * sizeof(float);
    f = kvc_file_open("tests/conformance/files/good-full-block.kvc", &options, e);
    if (kvc_file_read(f, 0, 0, 1, row, sizeof row, e) || kvc_file_check(f, 8, e))
        fail_msg("%s", kvc_error_message(e));
    assert_int_equal(kvc_file_read(f, 0, 299, 1, row, sizeof row, e), 0);
    kvc_file_close(f);
    free(out.data);
    kvc_error_free(e);
}

static void sizes_of_structs(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct kvc_open_options none = {.format = "llama"};
    assert_null(kvc_file_open(SAMPLE, &none, e)); /* no size */
    assert_int_equal(kvc_error_code(e), 10);
    struct {
        struct kvc_open_options known;
        const char *unknown;
    } later = {.known = {.size = sizeof later, .format = "llama"}};
    /* what is not known here is not asked for */
    struct kvc_file *f = kvc_file_open(SAMPLE, &later.known, e);
    assert_non_null(f);
    later.unknown = "something";
    assert_null(kvc_file_open(SAMPLE, &later.known, e));
    assert_int_equal(kvc_error_code(e), 32);
    struct kvc_open_options earlier = {.size = offsetof(struct kvc_open_options, model),
                                       .model = "no/such/weights"};
    struct kvc_file *g = kvc_file_open(SAMPLE, &earlier, e); /* a program that knows no models */
    assert_non_null(g);
    struct kvc_tensor_info info = {.size = offsetof(struct kvc_tensor_info, dtype), .rows = 77};
    assert_int_equal(kvc_file_tensor(f, 0, &info), 0);
    assert_string_equal(info.role, "K");
    assert_int_equal(info.rows, 77); /* is not this program's to hear */
    info.size = 0;
    assert_int_equal(kvc_file_tensor(f, 0, &info), -1);
    kvc_file_close(f);
    kvc_file_close(g);
    kvc_error_free(e);
}

static void all_metadata_are_listed(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *f = sample(e);
    size_t n = 0, found = 0;
    for (const char *key; (key = kvc_file_meta_key(f, n)); n++) {
        assert_true(kvc_file_meta_size(f, key) > 0);
        found += strcmp(key, "source.format") == 0;
    }
    assert_int_equal(found, 1);
    kvc_file_close(f);
    kvc_error_free(e);
}

struct heard {
    uint64_t calls, done, total, stop; /* stop: at this call */
};

static int hear(void *state, uint64_t done, uint64_t total) {
    struct heard *h = state;
    h->done = done;
    h->total = total;
    return ++h->calls == h->stop;
}

static void progress_and_cancelling(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *f = sample(e);
    struct memory packed = {0}, back = {0};
    struct heard heard = {0};
    struct kvc_write_options o = {.size = sizeof o,
                                  .threads = 2,
                                  .progress = hear,
                                  .progress_state = &heard};
    assert_int_equal(kvc_file_pack(f, &o, append, &packed, e), 0);
    assert_true(heard.calls > 0);
    assert_int_equal(heard.done, heard.total);
    assert_int_equal(heard.total, 60 * 16 * 384);
    heard = (struct heard){.stop = 1};
    packed.n = 0;
    assert_int_equal(kvc_file_pack(f, &o, append, &packed, e), -1);
    assert_int_equal(kvc_error_code(e), 21);
    assert_non_null(strstr(kvc_error_message(e), "cancelled"));
    heard = (struct heard){0};
    packed.n = 0;
    assert_int_equal(kvc_file_pack(f, &o, append, &packed, e), 0);
    struct kvc_file *p = kvc_file_open_memory(packed.data, packed.n, NULL, e);
    heard = (struct heard){0};
    assert_int_equal(kvc_file_unpack(p, NULL, &o, append, &back, e), 0);
    assert_int_equal(heard.done, back.n);
    assert_int_equal(heard.total, back.n);
    heard = (struct heard){.stop = 2};
    assert_int_equal(kvc_file_unpack(p, NULL, &o, append, &back, e), -1);
    assert_int_equal(heard.calls, 2);
    kvc_file_close(p);
    kvc_file_close(f);
    free(packed.data);
    free(back.data);
    kvc_error_free(e);
}

/* Unpacks into memory with a byte before and after it, which must be what a callback gets. */
static void assert_unpacks_to(const struct kvc_file *f, const char *format, unsigned threads,
                              struct kvc_error *e) {
    struct memory due = {0};
    struct heard heard = {0};
    struct kvc_write_options o = {.size = sizeof o, .threads = threads};
    size_t size;
    if (kvc_file_unpack(f, format, &o, append, &due, e)) fail_msg("%s", kvc_error_message(e));
    if (kvc_file_unpack_memory(f, format, &o, NULL, 0, &size, e))
        fail_msg("%s", kvc_error_message(e));
    assert_int_equal(size, due.n);
    uint8_t *room = malloc(due.n + 2);
    assert_non_null(room);
    memset(room, 0xa5, due.n + 2);
    if (kvc_file_unpack_memory(f, format, &o, room + 1, due.n, &size, e))
        fail_msg("%s", kvc_error_message(e));
    assert_int_equal(size, due.n);
    assert_memory_equal(room + 1, due.data, due.n);
    assert_true(room[0] == 0xa5 && room[due.n + 1] == 0xa5);
    /* one byte less */
    room[due.n] = 0xa5;
    assert_int_equal(kvc_file_unpack_memory(f, format, &o, room + 1, due.n - 1, &size, e), -1);
    assert_int_equal(kvc_error_code(e), 10);
    assert_int_equal(size, 0);
    assert_true(room[0] == 0xa5 && room[due.n] == 0xa5);
    /* progress, and cancelling */
    o.progress = hear;
    o.progress_state = &heard;
    if (kvc_file_unpack_memory(f, format, &o, room, due.n + 2, &size, e))
        fail_msg("%s", kvc_error_message(e));
    assert_int_equal(heard.done, due.n);
    const uint64_t calls = heard.calls;
    assert_true(calls > 1);
    heard = (struct heard){.stop = calls};
    assert_int_equal(kvc_file_unpack_memory(f, format, &o, room, due.n + 2, &size, e), -1);
    assert_int_equal(kvc_error_code(e), 21);
    assert_non_null(strstr(kvc_error_message(e), "cancelled"));
    free(room);
    free(due.data);
}

static void unpacking_into_memory(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    const char *const paths[] = {"samples/tiny.safetensors", "README.md"};
    const struct kvc_select_options some = {.size = sizeof some, .end = 5};
    void *packed;
    size_t n, size;
    struct kvc_file *f = sample(e), *part = kvc_file_select(f, &some, e),
                    *several = kvc_file_open_members(paths, 2, NULL, e);
    assert_true(part && several);
    assert_int_equal(kvc_file_pack_memory(f, NULL, &packed, &n, e), 0);
    struct kvc_file *p = kvc_file_open_memory(packed, n, NULL, e);
    for (unsigned threads = 1; threads <= 3; threads++) {
        assert_unpacks_to(p, NULL, threads, e);
        assert_unpacks_to(p, "safetensors", threads, e);
        assert_unpacks_to(several, NULL, threads, e); /* a tar archive */
    }
    /* a selection has no source */
    assert_int_equal(kvc_file_unpack_memory(part, NULL, NULL, NULL, 0, &size, e), -1);
    assert_int_equal(kvc_error_need(e), 7);
    kvc_file_close(several);
    kvc_file_close(p);
    kvc_file_close(part);
    kvc_file_close(f);
    free(packed);
    kvc_error_free(e);
}

static void layouts_of_an_export(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *f = sample(e);
    struct memory two = {0}, three = {0};
    const char *const set[] = {"version=2", NULL};
    struct kvc_write_options o = {.size = sizeof o, .set = set};
    if (kvc_file_unpack(f, "llama:version=3", NULL, append, &three, e))
        fail_msg("%s", kvc_error_message(e));
    if (kvc_file_unpack(f, "llama", &o, append, &two, e)) fail_msg("%s", kvc_error_message(e));
    /* the version follows the magic number */
    assert_true(two.n && three.n && two.data[4] == 2 && three.data[4] == 3);
    assert_int_equal(kvc_file_unpack(f, "llama:no=3", NULL, append, &three, e), -1);
    o = (struct kvc_write_options){.size = sizeof o};
    /* token ids would be lost */
    assert_int_equal(kvc_file_unpack(f, "raw", &o, append, &three, e), -1);
    assert_int_equal(kvc_error_need(e), 14);
    o.lossy_metadata = 1;
    if (kvc_file_unpack(f, "raw", &o, append, &three, e)) fail_msg("%s", kvc_error_message(e));
    o = (struct kvc_write_options){.size = sizeof o, .pairing = "thirds"};
    assert_int_equal(kvc_file_unpack(f, "safetensors", &o, append, &three, e), -1);
    kvc_file_close(f);
    /* K without a pairing, and one asked for */
    f = kvc_file_open(SAMPLE, NULL, e);
    o.pairing = "halves";
    assert_int_equal(kvc_file_unpack(f, "safetensors", &o, append, &three, e), -1);
    assert_int_equal(kvc_error_need(e), 2);
    kvc_file_close(f);
    free(two.data);
    free(three.data);
    kvc_error_free(e);
}

static void members_of_a_source(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    const char *const paths[] = {"samples/tiny.safetensors"};
    struct kvc_file *f = kvc_file_open_members(paths, 1, NULL, e);
    if (!f) fail_msg("%s", kvc_error_message(e));
    struct memory packed = {0};
    uint64_t bytes = 0;
    assert_string_equal(kvc_file_member(f, 0, &bytes), "tiny.safetensors");
    assert_null(kvc_file_member(f, 1, NULL));
    assert_int_equal(kvc_file_pack(f, NULL, append, &packed, e), 0);
    struct kvc_file *p = kvc_file_open_memory(packed.data, packed.n, NULL, e);
    assert_non_null(p);
    assert_string_equal(kvc_file_member(p, 0, NULL), "tiny.safetensors");
    if (kvc_file_unpack_folder(p, NULL, folder, NULL, e)) fail_msg("%s", kvc_error_message(e));
    struct memory was = file_bytes(paths[0]), is = file_bytes(in_folder("tiny.safetensors"));
    assert_int_equal(was.n, bytes);
    assert_int_equal(is.n, was.n);
    assert_memory_equal(is.data, was.data, was.n);
    /* it is there already */
    assert_int_equal(kvc_file_unpack_folder(p, NULL, folder, NULL, e), -1);
    kvc_file_close(p);
    kvc_file_close(f);
    assert_null(kvc_file_open_members(paths, 0, NULL, e));
    f = sample(e);
    assert_null(kvc_file_member(f, 0, NULL));
    assert_int_equal(kvc_file_unpack_folder(f, NULL, folder, NULL, e), -1);
    /* a format of several files goes into a folder too, and is read from there */
    const struct kvc_write_options lossy = {.size = sizeof lossy, .lossy_metadata = 1};
    char named[256];
    snprintf(named, sizeof named, "%s/named", folder);
    assert_int_equal(mkdir(named, 0700), 0);
    assert_int_equal(kvc_file_unpack_folder(f, "npz", named, &lossy, e), -1);
    if (kvc_file_unpack_folder(f, "vllm", named, &lossy, e)) fail_msg("%s", kvc_error_message(e));
    struct kvc_file *again = kvc_file_open(named, NULL, e);
    if (!again) fail_msg("%s", kvc_error_message(e));
    struct kvc_comparison same = {.size = sizeof same};
    assert_int_equal(kvc_file_compare(f, again, NULL, &same, e), 0);
    const char *member;
    for (uint32_t i = 0; (member = kvc_file_member(again, i, NULL)); i++) {
        char file[512];
        snprintf(file, sizeof file, "%s/%s", named, member);
        remove(file);
    }
    kvc_file_close(again);
    assert_int_equal(remove(named), 0);
    kvc_file_close(f);
    free(packed.data);
    free(was.data);
    free(is.data);
    kvc_error_free(e);
}

static void a_profile_is_learnt(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *f = kvc_file_open("samples/transformers-16.safetensors", NULL, e);
    if (!f) fail_msg("%s", kvc_error_message(e));
    struct kvc_learning *l = kvc_learning_new(e);
    struct memory profile = {0};
    assert_non_null(l);
    assert_int_equal(kvc_learning_write(l, append, &profile, e), -1); /* of nothing */
    if (kvc_learning_add(l, f, e)) fail_msg("%s", kvc_error_message(e));
    kvc_file_close(f);
    if (kvc_learning_write(l, append, &profile, e)) fail_msg("%s", kvc_error_message(e));
    assert_true(profile.n > 1000);
    kvc_learning_free(l);
    kvc_learning_free(NULL);
    free(profile.data);
    kvc_error_free(e);
}

static void versions(void **state) {
    (void)state;
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", KVC_VERSION_MAJOR, KVC_VERSION_MINOR,
             KVC_VERSION_PATCH);
    assert_string_equal(kvc_version(), version);
    assert_int_equal(kvc_version_of_format(), 1);
    assert_true(strlen(kvc_version()) >= 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damage_is_listed),
        cmocka_unit_test(damage_at_a_later_start),
        cmocka_unit_test(damage_of_tables),
        cmocka_unit_test(digests_are_compared),
        cmocka_unit_test(memory_is_limited),
        cmocka_unit_test(sizes_of_structs),
        cmocka_unit_test(all_metadata_are_listed),
        cmocka_unit_test(progress_and_cancelling),
        cmocka_unit_test(unpacking_into_memory),
        cmocka_unit_test(layouts_of_an_export),
        cmocka_unit_test(members_of_a_source),
        cmocka_unit_test(a_profile_is_learnt),
        cmocka_unit_test(versions),
    };
    return cmocka_run_group_tests_name("kvc_callbacks", tests, make_folder, remove_folder);
}
