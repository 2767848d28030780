/* test_arguments.c: required arguments that are NULL, memory that is too small for what is written
 * to it, and structs of other versions of the headers, in all functions of the public interface
 * that have a struct kvc_error: refused with a message that names the argument. Linked as a program
 * links the three libraries. Not for what functions do. */
#include "temp_folder.h"

#include "formats/api/kvc.h"
#include "formats/api/kvc_cuda.h"
#include "formats/api/kvc_inspect.h"
#include "formats/api/kvc_store.h"
#include "tests/dense_array.h"

#include <ctype.h>
#include <string.h>

enum { MOST = 256 };

static struct kvc_error *e;
static char called[MOST][64]; /* functions that refused something */
static size_t n_called;

static void note_called(const char *name, int length) {
    for (size_t i = 0; i < n_called; i++)
        if (strlen(called[i]) == (size_t)length && strncmp(called[i], name, (size_t)length) == 0)
            return;
    assert_true(n_called < MOST && length < 64);
    snprintf(called[n_called++], sizeof called[0], "%.*s", length, name);
}

/* `call` is the text of a call without the argument. */
static void is_refused(int refused, const char *call, const char *argument) {
    const int length = (int)strcspn(call, "(");
    char want[160];
    snprintf(want, sizeof want, "%.*s(): %s is NULL", length, call, argument);
    if (!refused) fail_msg("%s: it did not fail", want);
    assert_int_equal(kvc_error_code(e), KVC_ERR_USAGE);
    assert_string_equal(kvc_error_message(e), want);
    note_called(call, length);
    kvc_error_free(e);
    e = kvc_error_new();
}
#define FAILS(argument, call) is_refused((call) == -1, #call, argument)
#define NOTHING(argument, call) is_refused((call) == NULL, #call, argument)

static int write_nowhere(void *state, const void *data, size_t n) {
    (void)state, (void)data, (void)n;
    return 0;
}
static int see_object(void *state, unsigned tier, const char *name, uint64_t bytes, int64_t used) {
    (void)state, (void)tier, (void)name, (void)bytes, (void)used;
    return 0;
}
static int see_chunk(void *state, uint64_t first, uint64_t tokens, const void *data, size_t size) {
    (void)state, (void)first, (void)tokens, (void)data, (void)size;
    return 0;
}
static void see_fact(void *state, const char *where, const char *what, const char *a, const char *b,
                     const char *note) {
    (void)state, (void)where, (void)what, (void)a, (void)b, (void)note;
}

/* --- what functions are given beside NULL --- */

static struct kvc_file *f;
static uint64_t number;
static size_t size;
static void *data;
static uint8_t key[KVC_KEY_BYTES];
static const int32_t ids[256];
static char text[256];

static int set_up(void **state) {
    e = kvc_error_new();
    f = kvc_file_open("samples/tiny.kvc", NULL, e);
    return f ? make_folder(state) : -1;
}

static int tear_down(void **state) {
    kvc_file_close(f);
    kvc_error_free(e);
    return remove_folder(state);
}

static void files(void **state) {
    const struct kvc_memory memory = {.size = sizeof memory};
    struct kvc_head_stats stats = {.size = sizeof stats};
    int32_t *list;
    (void)state;
    NOTHING("path", kvc_file_open(NULL, NULL, e));
    NOTHING("paths", kvc_file_open_members(NULL, 1, NULL, e));
    NOTHING("data", kvc_file_open_memory(NULL, 1, NULL, e));
    NOTHING("m", kvc_file_open_arrays(NULL, e));
    NOTHING("f", kvc_file_select(NULL, NULL, e));
    NOTHING("files", kvc_file_join(NULL, 1, NULL, e));
    NOTHING("files", kvc_file_join_by(NULL, 1, NULL, e));
    NOTHING("files[i]", kvc_file_join_by((const struct kvc_file *const[]){f, NULL}, 2, NULL, e));
    NOTHING("f", kvc_file_shard(NULL, 0, 1, e));
    FAILS("f", kvc_file_match(NULL, ids, 1, &number, e));
    FAILS("common", kvc_file_match(f, ids, 1, NULL, e));
    FAILS("tokens", kvc_file_match(f, NULL, 1, &number, e));
    FAILS("f", kvc_file_read(NULL, 0, 0, 1, text, sizeof text, e));
    FAILS("dst", kvc_file_read(f, 0, 0, 1, NULL, sizeof text, e));
    FAILS("f", kvc_file_check(NULL, 1, e));
    FAILS("f", kvc_file_check_hashes(NULL, e));
    FAILS("f", kvc_file_check_rows(NULL, e));
    FAILS("path", kvc_check(NULL, NULL, NULL, NULL, e));
    FAILS("f", kvc_file_stats(NULL, 0, &stats, 1, e));
    FAILS("head", kvc_file_stats(f, 0, NULL, 1, e));
    FAILS("path", kvc_token_ids_read(NULL, NULL, &list, &number, e));
    FAILS("ids", kvc_token_ids_read("-", NULL, NULL, &number, e));
    FAILS("n", kvc_token_ids_read("-", NULL, &list, NULL, e));
    FAILS("a", kvc_file_compare(NULL, f, NULL, NULL, e));
    FAILS("b", kvc_file_compare(f, NULL, NULL, NULL, e));
    FAILS("result", kvc_file_compare(f, f, NULL, NULL, e));
    FAILS("f", kvc_file_load(NULL, &memory, NULL, e));
    FAILS("m", kvc_file_load(f, NULL, NULL, e));
}

static void writing(void **state) {
    struct kvc_target_info info = {.size = sizeof info};
    struct kvc_learning *l = kvc_learning_new(e);
    (void)state;
    assert_non_null(l);
    FAILS("f", kvc_file_pack(NULL, NULL, write_nowhere, NULL, e));
    FAILS("f", kvc_file_pack_memory(NULL, NULL, &data, &size, e));
    FAILS("data", kvc_file_pack_memory(f, NULL, NULL, &size, e));
    FAILS("size", kvc_file_pack_memory(f, NULL, &data, NULL, e));
    FAILS("f", kvc_file_pack_fd(NULL, NULL, 1, e));
    FAILS("f", kvc_file_unpack(NULL, NULL, NULL, write_nowhere, NULL, e));
    FAILS("write", kvc_file_unpack(f, NULL, NULL, NULL, NULL, e));
    FAILS("f", kvc_file_unpack_memory(NULL, NULL, NULL, NULL, 0, &size, e));
    FAILS("size", kvc_file_unpack_memory(f, NULL, NULL, NULL, 0, NULL, e));
    FAILS("f", kvc_file_unpack_folder(NULL, NULL, folder, NULL, e));
    FAILS("path", kvc_file_unpack_folder(f, NULL, NULL, NULL, e));
    FAILS("f", kvc_file_target(NULL, NULL, NULL, &info, e));
    FAILS("info", kvc_file_target(f, NULL, NULL, NULL, e));
    FAILS("l", kvc_learning_add(NULL, f, e));
    FAILS("f", kvc_learning_add(l, NULL, e));
    FAILS("l", kvc_learning_write(NULL, write_nowhere, NULL, e));
    FAILS("write", kvc_learning_write(l, NULL, NULL, e));
    NOTHING("l", kvc_learning_profile(NULL, e));
    kvc_learning_free(l);
    /* with the file's name before it */
    assert_int_equal(kvc_file_pack(f, NULL, NULL, NULL, e), -1);
    assert_non_null(strstr(kvc_error_message(e), "kvc_file_pack(): write is NULL"));
}

static void models_and_names(void **state) {
    const struct kvc_pool_layout *layout = kvc_pool_layout_at(0);
    const struct kvc_pool pool = {.layers = 1, .pages = 1, .page_size = 1, .heads = 1, .dim = 1};
    struct kvc_memory_array array[2];
    struct kvc_namespace_facts facts = {.size = sizeof facts};
    void *const base[1] = {text};
    (void)state;
    FAILS("weights", kvc_model_identity(NULL, text, sizeof text, e));
    FAILS("text", kvc_model_identity("x", NULL, 0, e));
    NOTHING("path", kvc_shared_model_open(NULL, 0, e));
    NOTHING("path", kvc_shared_model_look(NULL, e));
    NOTHING("path", kvc_shared_weights_open(NULL, e));
    NOTHING("path", kvc_shared_profile_open(NULL, e));
    NOTHING("data", kvc_shared_profile_open_memory(NULL, 0, e));
    NOTHING("sha256", kvc_shared_profile_find(NULL, "m", e));
    NOTHING("f", kvc_shared_profile_choose(NULL, NULL, e));
    NOTHING("p", kvc_shared_profile_fit(NULL, f, NULL, e));
    FAILS("model", kvc_shared_texts_open(NULL, (struct kvc_token_texts **)&data, e));
    FAILS("texts", kvc_shared_texts_open("x", NULL, e));
    FAILS("layout", kvc_pool_arrays(NULL, &pool, "f16", base, 1, array, sizeof *array, 2, e));
    FAILS("pool", kvc_pool_arrays(layout, NULL, "f16", base, 1, array, sizeof *array, 2, e));
    FAILS("dtype", kvc_pool_arrays(layout, &pool, NULL, base, 1, array, sizeof *array, 2, e));
    FAILS("bases", kvc_pool_arrays(layout, &pool, "f16", NULL, 1, array, sizeof *array, 2, e));
    FAILS("arrays", kvc_pool_arrays(layout, &pool, "f16", base, 1, NULL, sizeof *array, 2, e));
    FAILS("f", kvc_file_check_prefix(NULL, e));
    FAILS("identity", kvc_prefix_chain(NULL, ids, 256, NULL, 0, NULL, key, sizeof key, e));
    FAILS("tokens", kvc_prefix_chain("m", NULL, 256, NULL, 0, NULL, key, sizeof key, e));
    FAILS("keys", kvc_prefix_chain("m", ids, 256, NULL, 0, NULL, NULL, sizeof key, e));
    FAILS("extras", kvc_prefix_chain("m", ids, 256, NULL, 1, NULL, key, sizeof key, e));
    FAILS("f", kvc_file_prefix_chain(NULL, "m", 1, key, sizeof key, e));
    FAILS("identity", kvc_file_prefix_chain(f, NULL, 1, key, sizeof key, e));
    FAILS("keys", kvc_file_prefix_chain(f, "m", 1, NULL, sizeof key, e));
    NOTHING("f", kvc_namespace_of(NULL, NULL, &facts, e));
    NOTHING("facts", kvc_namespace_of(f, NULL, NULL, e));
    FAILS("text", kvc_namespace_read(NULL, 0, &facts, e));
    FAILS("facts", kvc_namespace_read("x", 1, NULL, e));
    FAILS("f", kvc_file_namespace(NULL, 256, NULL, key, e));
    FAILS("ns", kvc_file_namespace(f, 256, NULL, NULL, e));
    FAILS("format", kvc_format_check(NULL, 0, NULL, e));
    FAILS("fact", kvc_fact_check(NULL, e));
    FAILS("recipe", kvc_recipe_describe(NULL, NULL, e));
    FAILS("root", kvc_store_vllm_hashes(NULL, ids, 16, 16, key, sizeof key, e));
    FAILS("tokens", kvc_store_vllm_hashes(key, NULL, 16, 16, key, sizeof key, e));
    FAILS("hashes", kvc_store_vllm_hashes(key, ids, 16, 16, NULL, sizeof key, e));
}

static void inspecting(void **state) {
    struct kvc_match_info match = {.size = sizeof match};
    struct kvc_piece_info piece = {.size = sizeof piece};
    struct kvc_value_spread spread = {.size = sizeof spread};
    struct kvc_head_sample sample = {.size = sizeof sample};
    struct kvc_attention_weights weights = {.size = sizeof weights};
    struct kvc_difference all;
    struct kvc_comparing *c = kvc_comparing_new(f, f, NULL, NULL, e);
    const struct kvc_compared *pair = c ? kvc_comparing_pair(c, 0) : NULL;
    const uint32_t tensor = 0;
    float value;
    int64_t at;
    (void)state;
    assert_non_null(pair);
    FAILS("f", kvc_file_extras(NULL, &number, e));
    FAILS("n", kvc_file_extras(f, NULL, e));
    FAILS("f", kvc_file_transform(NULL, 0, text, sizeof text, e));
    FAILS("text", kvc_file_transform(f, 0, NULL, sizeof text, e));
    NOTHING("f", kvc_file_token_positions(NULL, e));
    FAILS("f", kvc_file_match_how(NULL, ids, 1, &match, e));
    FAILS("tokens", kvc_file_match_how(f, NULL, 1, &match, e));
    FAILS("info", kvc_file_match_how(f, ids, 1, NULL, e));
    FAILS("f", kvc_file_piece(NULL, 0, &piece, NULL, 0, e));
    FAILS("info", kvc_file_piece(f, 0, NULL, NULL, 0, e));
    FAILS("f", kvc_file_read_floats(NULL, 0, 0, 1, &value, sizeof value, e));
    FAILS("dst", kvc_file_read_floats(f, 0, 0, 1, NULL, sizeof value, e));
    FAILS("f", kvc_file_value_spread(NULL, &tensor, 1, 1, NULL, NULL, &spread, e));
    FAILS("tensor", kvc_file_value_spread(f, NULL, 1, 1, NULL, NULL, &spread, e));
    FAILS("spread", kvc_file_value_spread(f, &tensor, 1, 1, NULL, NULL, NULL, e));
    FAILS("f", kvc_file_borrow_layers(NULL, f, e));
    FAILS("from", kvc_file_borrow_layers(f, NULL, e));
    NOTHING("a", kvc_comparing_new(NULL, f, NULL, NULL, e));
    NOTHING("b", kvc_comparing_new(f, NULL, NULL, NULL, e));
    FAILS("c", kvc_comparing_facts(NULL, see_fact, NULL, e));
    FAILS("fact", kvc_comparing_facts(c, NULL, NULL, e));
    FAILS("c", kvc_comparing_align(NULL, NULL, NULL, e));
    NOTHING("c", kvc_comparing_tensor(NULL, pair, &all, NULL, e));
    NOTHING("pair", kvc_comparing_tensor(c, NULL, &all, NULL, e));
    NOTHING("all", kvc_comparing_tensor(c, pair, NULL, NULL, e));
    FAILS("c", kvc_comparing_groups_end(NULL, e));
    FAILS("c", kvc_comparing_positions(NULL, pair, &at, sizeof at, e));
    FAILS("pair", kvc_comparing_positions(c, NULL, &at, sizeof at, e));
    FAILS("position", kvc_comparing_positions(c, pair, NULL, 0, e));
    FAILS("c", kvc_comparing_sample(NULL, pair, 0, 1, 1, &sample, e));
    FAILS("pair", kvc_comparing_sample(c, NULL, 0, 1, 1, &sample, e));
    FAILS("out", kvc_comparing_sample(c, pair, 0, 1, 1, NULL, e));
    FAILS("c", kvc_comparing_attention(NULL, e));
    FAILS("out", kvc_comparing_query(c, 0, NULL, e));
    assert_int_equal(kvc_comparing_query(NULL, 0, &weights, e), 0);
    kvc_comparing_free(c);
}

static void stores(void **state) {
    const struct kvc_store_namespace_options by = {.size = sizeof by, .chunk = 256};
    const struct kvc_store_name name = {"a", 1};
    const struct kvc_memory m = {.size = sizeof m};
    struct kvc_store_tier_info tier = {.size = sizeof tier};
    struct kvc_store_object_info object = {.size = sizeof object};
    kvc_store_namespace_text *names;
    uint8_t there;
    int64_t us;
    (void)state;
    snprintf(text, sizeof text, "dir:%.90s/store?min-free=0", folder);
    struct kvc_store *s = kvc_store_open(text, NULL, e);
    struct kvc_store_namespace *ns = s ? kvc_store_namespace_like(s, f, &by, e) : NULL;
    struct kvc_store_hit *hit = ns ? kvc_store_find(ns, ids, 256, NULL, e) : NULL;
    if (!hit) fail_msg("%s", kvc_error_message(e));
    NOTHING("tiers", kvc_store_open(NULL, NULL, e));
    FAILS("s", kvc_store_make(NULL, e));
    NOTHING("s", kvc_store_namespace_like(NULL, f, NULL, e));
    NOTHING("f", kvc_store_namespace_like(s, NULL, NULL, e));
    NOTHING("s", kvc_store_namespace_named(NULL, "a", NULL, e));
    NOTHING("name", kvc_store_namespace_named(s, NULL, NULL, e));
    FAILS("s", kvc_store_namespaces(NULL, &names, &size, e));
    FAILS("names", kvc_store_namespaces(s, NULL, &size, e));
    FAILS("n", kvc_store_namespaces(s, &names, NULL, e));
    NOTHING("ns", kvc_store_find(NULL, ids, 256, NULL, e));
    NOTHING("tokens", kvc_store_find(ns, NULL, 256, NULL, e));
    NOTHING("hit", kvc_store_get(NULL, NULL, e));
    FAILS("hit", kvc_store_load(NULL, &m, NULL, e));
    FAILS("m", kvc_store_load(hit, NULL, NULL, e));
    FAILS("hit", kvc_store_chunks(NULL, NULL, see_chunk, NULL, e));
    FAILS("take", kvc_store_chunks(hit, NULL, NULL, NULL, e));
    NOTHING("ns", kvc_store_get_whole(NULL, ids, 256, NULL, e));
    NOTHING("tokens", kvc_store_get_whole(ns, NULL, 256, NULL, e));
    FAILS("ns", kvc_store_put(NULL, f, NULL, e));
    FAILS("f", kvc_store_put(ns, NULL, NULL, e));
    FAILS("ns", kvc_store_put_check(NULL, f, 0, &number, e));
    FAILS("f", kvc_store_put_check(ns, NULL, 0, &number, e));
    FAILS("tokens", kvc_store_put_check(ns, f, 0, NULL, e));
    FAILS("ns", kvc_store_find_names(NULL, &name, 1, &there, NULL, e));
    FAILS("names", kvc_store_find_names(ns, NULL, 1, &there, NULL, e));
    FAILS("there", kvc_store_find_names(ns, &name, 1, NULL, NULL, e));
    FAILS("ns", kvc_store_put_name(NULL, &name, f, NULL, e));
    FAILS("name", kvc_store_put_name(ns, NULL, f, NULL, e));
    FAILS("f", kvc_store_put_name(ns, &name, NULL, NULL, e));
    NOTHING("ns", kvc_store_get_name(NULL, &name, NULL, e));
    NOTHING("name", kvc_store_get_name(ns, NULL, NULL, e));
    FAILS("ns", kvc_store_load_name(NULL, &name, &m, NULL, e));
    FAILS("name", kvc_store_load_name(ns, NULL, &m, NULL, e));
    FAILS("m", kvc_store_load_name(ns, &name, NULL, NULL, e));
    FAILS("ns", kvc_store_drop_names(NULL, &name, 1, e));
    FAILS("names", kvc_store_drop_names(ns, NULL, 1, e));
    FAILS("hit", kvc_store_pin(NULL, 0, e));
    FAILS("hit", kvc_store_unpin(NULL, e));
    FAILS("ns", kvc_store_submit(NULL, ids, 256, &m, NULL, e));
    FAILS("tokens", kvc_store_submit(ns, NULL, 256, &m, NULL, e));
    FAILS("m", kvc_store_submit(ns, ids, 256, NULL, NULL, e));
    FAILS("ns", kvc_store_drop(NULL, e));
    FAILS("ns", kvc_store_drop_tokens(NULL, ids, 256, NULL, NULL, e));
    FAILS("tokens", kvc_store_drop_tokens(ns, NULL, 256, NULL, NULL, e));
    FAILS("s", kvc_store_describe_tier(NULL, 0, 0, &tier, e));
    FAILS("info", kvc_store_describe_tier(s, 0, 0, NULL, e));
    FAILS("s", kvc_store_walk(NULL, NULL, see_object, NULL, e));
    FAILS("fn", kvc_store_walk(s, NULL, NULL, NULL, e));
    FAILS("s", kvc_store_walk_tier(NULL, 0, NULL, see_object, NULL, e));
    FAILS("fn", kvc_store_walk_tier(s, 0, NULL, NULL, NULL, e));
    FAILS("s", kvc_store_object(NULL, 0, "a", &object, e));
    FAILS("name", kvc_store_object(s, 0, NULL, &object, e));
    FAILS("info", kvc_store_object(s, 0, "a", NULL, e));
    FAILS("s", kvc_store_clean(NULL, 0, NULL, NULL, e));
    FAILS("s", kvc_store_configure(NULL, 0, NULL, text, sizeof text, e));
    FAILS("text", kvc_store_configure(s, 0, NULL, NULL, sizeof text, e));
    FAILS("s", kvc_store_verify(NULL, NULL, NULL, e));
    FAILS("from", kvc_store_copy(NULL, s, NULL, NULL, e));
    FAILS("to", kvc_store_copy(s, NULL, NULL, NULL, e));
    FAILS("s", kvc_store_export(NULL, NULL, write_nowhere, NULL, NULL, e));
    FAILS("write", kvc_store_export(s, NULL, NULL, NULL, NULL, e));
    NOTHING("path", kvc_store_archive_open(NULL, e));
    FAILS("s", kvc_store_import(NULL, NULL, NULL, NULL, e));
    FAILS("a", kvc_store_import(s, NULL, NULL, NULL, e));
    FAILS("name", kvc_store_read_time(NULL, "1s", &us, e));
    FAILS("text", kvc_store_read_time("time", NULL, &us, e));
    FAILS("microseconds", kvc_store_read_time("time", "1s", NULL, e));
    FAILS("name", kvc_store_read_size(NULL, "1M", &number, e));
    FAILS("text", kvc_store_read_size("size", NULL, &number, e));
    FAILS("bytes", kvc_store_read_size("size", "1M", NULL, e));
    kvc_store_hit_free(hit);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
}

/* Fields of options that count what a NULL beside them should have. */
static void lists(void **state) {
    const struct kvc_prefix_extra no_bytes = {.tag = KVC_PREFIX_OWN, .size = 20};
    const struct kvc_store_namespace_options by = {.size = sizeof by, .chunk = 256};
    const struct kvc_store_name no_name = {.size = 5};
    const struct kvc_select_options parts[] = {{.size = sizeof parts[0], .n_extras = 1},
                                               {.size = sizeof parts[0],
                                                .extras = &no_bytes,
                                                .n_extras = 1}};
    const struct kvc_store_put_options puts[] = {{.size = sizeof puts[0], .n_extras = 1},
                                                 {.size = sizeof puts[0],
                                                  .extras = &no_bytes,
                                                  .n_extras = 1}};
    const struct kvc_store_find_options finds[] = {{.size = sizeof finds[0], .n_extras = 1},
                                                   {.size = sizeof finds[0],
                                                    .extras = &no_bytes,
                                                    .n_extras = 1}};
    uint64_t n;
    uint8_t there;
    (void)state;
    assert_non_null(kvc_file_tokens(f, &n));
    const struct kvc_open_options open = {.size = sizeof open, .n_token_ids = n};
    const struct kvc_join_options join = {.size = sizeof join, .n_token_ids = n};
    snprintf(text, sizeof text, "dir:%.90s/lists?min-free=0", folder);
    struct kvc_store *s = kvc_store_open(text, NULL, e);
    struct kvc_store_namespace *ns = s ? kvc_store_namespace_like(s, f, &by, e) : NULL;
    if (!ns) fail_msg("%s", kvc_error_message(e));
#define NULL_LIST(failed)                                      \
    do {                                                       \
        assert_true(failed);                                   \
        assert_int_equal(kvc_error_code(e), KVC_ERR_USAGE);    \
        assert_non_null(strstr(kvc_error_message(e), "NULL")); \
    } while (0)
    NULL_LIST(!kvc_file_open("samples/tiny.kvc", &open, e));
    NULL_LIST(!kvc_file_join_by((const struct kvc_file *const[]){f}, 1, &join, e));
    NULL_LIST(kvc_prefix_chain("x", ids, 256, &no_bytes, 1, NULL, key, sizeof key, e));
    for (int i = 0; i < 2; i++) {
        NULL_LIST(!kvc_file_select(f, &parts[i], e));
        NULL_LIST(!kvc_store_find(ns, ids, 256, &finds[i], e));
        NULL_LIST(!kvc_store_get_whole(ns, ids, 256, &finds[i], e));
        NULL_LIST(kvc_store_put(ns, f, &puts[i], e));
    }
    NULL_LIST(kvc_store_find_names(ns, &no_name, 1, &there, NULL, e) == -1);
    NULL_LIST(kvc_store_put_name(ns, &no_name, f, NULL, e) == -1);
    NULL_LIST(!kvc_store_get_name(ns, &no_name, NULL, e));
    NULL_LIST(kvc_store_drop_names(ns, &no_name, 1, e) == -1);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
}

static void devices(void **state) {
    const struct kvc_memory m = {.size = sizeof m};
    uint8_t handle[KVC_CUDA_HANDLE] = {0};
    struct kvc_cuda_plan *p = kvc_cuda_plan_new("samples/tiny.kvc", NULL, NULL, e);
    (void)state;
    if (!p) fail_msg("%s", kvc_error_message(e));
    FAILS("text", kvc_cuda_device_text(0, NULL, 0, e));
    NOTHING("path", kvc_cuda_plan_new(NULL, NULL, NULL, e));
    FAILS("p", kvc_cuda_load(NULL, NULL, e));
    FAILS("p", kvc_cuda_finish(NULL, e));
    FAILS("p", kvc_cuda_read(NULL, 0, 0, 1, text, sizeof text, e));
    FAILS("dst", kvc_cuda_read(p, 0, 0, 1, NULL, sizeof text, e));
    FAILS("f", kvc_cuda_file_takes(NULL, e));
    NOTHING("f", kvc_cuda_file_open(NULL, NULL, NULL, e));
    FAILS("m", kvc_cuda_pack(NULL, NULL, NULL, write_nowhere, NULL, NULL, e));
    FAILS("p", kvc_cuda_export(NULL, 0, handle, &number, e));
    FAILS("handle", kvc_cuda_export(p, 0, NULL, &number, e));
    FAILS("offset", kvc_cuda_export(p, 0, handle, NULL, e));
    FAILS("handle", kvc_cuda_open_handle(0, NULL, &number, e));
    FAILS("address", kvc_cuda_open_handle(0, handle, NULL, e));
    assert_int_equal(kvc_cuda_pack(&m, NULL, NULL, NULL, NULL, NULL, e), -1);
    kvc_cuda_plan_free(p);
}

/* --- memory to be filled, whose size the caller says --- */

enum { UNTOUCHED = 0xa5 };

static uint8_t room[4096] __attribute__((aligned(8)));
static size_t given; /* bytes of it, as calls are told */

static void expect_untouched(size_t from) {
    for (size_t i = from; i < sizeof room; i++) assert_int_equal(room[i], UNTOUCHED);
}

static void is_too_small(int status, const char *call, const char *argument, size_t n,
                         size_t each) {
    char want[160];
    snprintf(want, sizeof want, "%.*s(): %s has %zu bytes, and %zu * %zu are needed",
             (int)strcspn(call, "("), call, argument, given, n, each);
    if (status != -1) fail_msg("%s: it did not fail", want);
    assert_int_equal(kvc_error_code(e), KVC_ERR_USAGE);
    assert_string_equal(kvc_error_message(e), want);
    expect_untouched(0);
}

static void is_filled(int status, const char *call) {
    if (status) fail_msg("%s: %s", call, kvc_error_message(e));
    assert_int_not_equal(room[given - 1], UNTOUCHED);
    expect_untouched(given);
}

/* `call` writes n elements of `each` bytes into `room`, of which it is told the `given` ones. */
#define FILLS(argument, n, each, call)                \
    do {                                              \
        memset(room, UNTOUCHED, sizeof room);         \
        given = 0;                                    \
        is_too_small(call, #call, argument, n, each); \
        given = (n) * (each)-1;                       \
        is_too_small(call, #call, argument, n, each); \
        given++;                                      \
        is_filled(call, #call);                       \
    } while (0)

static void sizes(void **state) {
    struct kvc_tensor_info t = {.size = sizeof t};
    struct kvc_comparing *c = kvc_comparing_new(f, f, NULL, NULL, e);
    const struct kvc_compared *pair = c ? kvc_comparing_pair(c, 0) : NULL;
    struct kvc_file *prompt = kvc_file_open("samples/prompt.safetensors.kvc", NULL, e);
    struct kvc_cuda_plan *p = kvc_cuda_plan_new("samples/tiny.kvc", NULL, NULL, e);
    (void)state;
    assert_true(pair && prompt);
    if (!p || kvc_cuda_load(p, NULL, e) || kvc_cuda_finish(p, e))
        fail_msg("%s", kvc_error_message(e));
    assert_int_equal(kvc_file_tensor(f, 0, &t), 0);
    const size_t row = t.row_bytes, floats = t.heads * t.dim * sizeof(float);
    FILLS("dst", 2, row, kvc_file_read(f, 0, 1, 2, room, given, e));
    FILLS("dst", 2, floats, kvc_file_read_floats(f, 0, 1, 2, (void *)room, given, e));
    FILLS("dst", 2, row, kvc_cuda_read(p, 0, 1, 2, room, given, e));
    FILLS("position", pair->rows, sizeof(int64_t),
          kvc_comparing_positions(c, pair, (void *)room, given, e));
    FILLS("keys", 1, KVC_KEY_BYTES, kvc_prefix_chain("m", ids, 256, NULL, 0, NULL, room, given, e));
    FILLS("keys", 2, KVC_KEY_BYTES, kvc_file_prefix_chain(prompt, "m", 512, room, given, e));
    FILLS("hashes", 2, KVC_KEY_BYTES, kvc_store_vllm_hashes(key, ids, 37, 16, room, given, e));
    /* of nothing */
    assert_int_equal(kvc_file_read(f, 0, 0, 0, NULL, 0, e), 0);
    assert_int_equal(kvc_prefix_chain("m", ids, 255, NULL, 0, NULL, room, 0, e), 0);
    kvc_cuda_plan_free(p);
    kvc_file_close(prompt);
    kvc_comparing_free(c);
}

/* --- nothing was left out --- */

static int was_called(const char *name, size_t length) {
    for (size_t i = 0; i < n_called; i++)
        if (strlen(called[i]) == length && strncmp(called[i], name, length) == 0) return 1;
    return 0;
}

/* Functions that need none of their pointers, or fill and read errors. */
static int needs_none(const char *name, size_t length) {
    static const char *const names[] = {"kvc_learning_new", "kvc_learning_start",
                                        "kvc_cuda_devices", "kvc_cuda_close_handle"};
    if (strncmp(name, "kvc_error_", 10) == 0) return 1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == length && strncmp(names[i], name, length) == 0) return 1;
    return 0;
}

/* Looks for declarations with a struct kvc_error whose function refused nothing above. Returns how
 * many there are. */
static size_t look_at(const char *header) {
    static char source[1 << 17];
    FILE *in = fopen(header, "r");
    assert_non_null(in);
    source[fread(source, 1, sizeof source - 1, in)] = '\0';
    fclose(in);
    size_t n = 0;
    for (char *p = source; (p = strstr(p, "API ")) != NULL; p += 4) {
        char *end = strchr(p, ';'), *open = strchr(p, '('), *begin = open;
        if (!end || !open || open > end) continue;
        while (isalnum((unsigned char)begin[-1]) || begin[-1] == '_') begin--;
        *end = '\0';
        const char *error = strstr(open, "struct kvc_error *e)");
        *end = ';';
        if (!error || needs_none(begin, (size_t)(open - begin))) continue;
        n++;
        if (!was_called(begin, (size_t)(open - begin)))
            fail_msg("%.*s() of %s has no row here", (int)(open - begin), begin, header);
    }
    return n;
}

static void all_functions(void **state) {
    (void)state;
    size_t n = 0;
    static const char *const headers[] = {"kvc", "kvc_inspect", "kvc_comparing", "kvc_store",
                                          "kvc_cuda"};
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        snprintf(text, sizeof text, "formats/api/%s.h", headers[i]);
        n += look_at(text);
    }
    assert_true(n > 100 && n == n_called);
}

/* --- without a struct kvc_error --- */

static void other_functions(void **state) {
    struct kvc_error *none = NULL;
    struct kvc_pool_strides k, v;
    struct kvc_pool pool = {
        .layers = 1, .pages = 1, .page_size = 1, .heads = 1, .dim = 1, .value_bytes = 2};
    (void)state;
    assert_int_equal(kvc_error_code(none), KVC_ERR_MEMORY);
    assert_int_equal(kvc_error_severity(none), KVC_SEVERITY_RETRY);
    assert_int_equal(kvc_error_need(none), KVC_NEED_NOTHING);
    assert_true(kvc_error_offset(none) == UINT64_MAX);
    assert_string_equal(kvc_error_message(none), "out of memory");
    kvc_error_copy(none, e);
    kvc_error_copy(e, none);
    kvc_error_free(none);
    assert_int_equal(kvc_error_about(none, "a"), -1);
    assert_int_equal(kvc_file_describe(f, NULL), -1);
    assert_int_equal(kvc_file_tensor(f, 0, NULL), -1);
    assert_int_equal(kvc_file_source(f, NULL), -1);
    assert_int_equal(kvc_format_describe(0, NULL), -1);
    assert_int_equal(kvc_kernels_describe(NULL), -1);
    assert_int_equal(kvc_comparing_attended_all(NULL, NULL), -1);
    assert_int_equal(kvc_comparing_estimated(NULL), 0);
    assert_non_null(kvc_file_tokens(f, NULL));
    kvc_write_report_free(NULL);
    kvc_error_sums_free(NULL);
    kvc_head_sample_free(NULL);
    kvc_attention_weights_free(NULL);
    kvc_value_spread_free(NULL, 0);
    kvc_shared_weights_close(NULL);
    assert_int_equal(kvc_pool_layout_strides(kvc_pool_layout_at(0), NULL, &k, &v), -1);
    assert_int_equal(kvc_pool_layout_strides(kvc_pool_layout_at(0), &pool, &k, &v), 1);
    pool.reserved[1] = 1;
    assert_int_equal(kvc_pool_layout_strides(kvc_pool_layout_at(0), &pool, &k, &v), -1);
    assert_null(kvc_pool_layout_find(NULL));
}

/* --- structs of other versions --- */

/* The size of the first element is that of all: an array of larger elements, as of a later header,
 * is filled by its own distance, with 0 where this library knows nothing. */
static void arrays_of_a_later_version(void **state) {
    struct later {
        struct kvc_value_spread of_now;
        uint64_t more[3];
    } spread[2];
    struct later_stats {
        struct kvc_head_stats of_now;
        uint64_t more;
    } stats[64];
    struct later_section {
        struct kvc_piece_section of_now;
        uint64_t more;
    } section[2];
    const uint32_t tensor[2] = {0, 1};
    struct kvc_tensor_info info = {.size = sizeof info};
    struct kvc_piece_info piece = {.size = sizeof piece};
    (void)state;
    memset(spread, 0xff, sizeof spread);
    spread[0].of_now.size = sizeof spread[0];
    assert_int_equal(kvc_file_value_spread(f, tensor, 2, 10, NULL, NULL, &spread[0].of_now, e), 0);
    assert_int_equal(kvc_file_tensor(f, 1, &info), 0);
    assert_int_equal(spread[1].of_now.size, sizeof spread[0]);
    assert_int_equal(spread[1].of_now.channels, info.heads * info.dim);
    assert_true(!spread[0].more[2] && !spread[1].more[2] && spread[1].of_now.rms);
    kvc_value_spread_free(&spread[0].of_now, 2);
    assert_true(!spread[1].of_now.rms && spread[1].of_now.size == sizeof spread[0]);

    assert_in_range(info.heads, 2, 64);
    memset(stats, 0xff, sizeof stats);
    stats[0].of_now.size = sizeof stats[0];
    assert_int_equal(kvc_file_stats(f, 1, &stats[0].of_now, info.heads, e), 0);
    const struct later_stats *last = &stats[info.heads - 1];
    assert_true(last->of_now.size == sizeof stats[0] && !last->more && last->of_now.values);

    memset(section, 0xff, sizeof section);
    section[0].of_now.size = sizeof section[0];
    uint64_t i = 0;
    do {
        assert_int_equal(kvc_file_piece(f, i++, &piece, &section[0].of_now, 2, e), 0);
    } while (piece.sections < 2);
    assert_true(section[1].of_now.type && section[1].of_now.size == sizeof section[0]);
    assert_true(!section[0].more && !section[1].more);

    /* the size is not set */
    memset(spread, 0, sizeof spread);
    assert_int_equal(kvc_file_value_spread(f, tensor, 2, 10, NULL, NULL, &spread[0].of_now, e), -1);
    assert_non_null(strstr(kvc_error_message(e), "size of struct kvc_value_spread"));
    memset(stats, 0, sizeof stats);
    assert_int_equal(kvc_file_stats(f, 1, &stats[0].of_now, info.heads, e), -1);
    memset(section, 0, sizeof section);
    assert_int_equal(kvc_file_piece(f, i - 1, &piece, &section[0].of_now, 2, e), -1);
}

/* A caller that knows the field by which a report is freed owns its texts, whatever follows it; a
 * size that is not set is found before anything is written. */
static void reports(void **state) {
    struct kvc_write_report r = {.size = offsetof(struct kvc_write_report, owned) + sizeof r.owned};
    const struct kvc_write_options o = {.size = sizeof o, .report = &r, .measure = 1};
    (void)state;
    assert_int_equal(kvc_file_pack_memory(f, &o, &data, &size, e), 0);
    assert_non_null(r.owned);
    assert_true(strlen(r.recipe) > 0);
    kvc_write_report_free(&r);
    assert_null(r.owned);
    free(data);
    r.size = 0; /* before anything is written */
    assert_int_equal(kvc_file_pack_memory(f, &o, &data, &size, e), -1);
    assert_int_equal(kvc_error_code(e), KVC_ERR_USAGE);
    assert_null(data);
}

/* Elements of memory that are longer than this library's: what it does not know must be 0. */
static void memory_of_a_later_version(void **state) {
    static uint16_t rows[2][4];
    struct later {
        struct kvc_memory_array of_now;
        uint64_t more;
    } array[2] = {0};
    for (unsigned i = 0; i < 2; i++)
        array[i].of_now = dense_array(i ? "V" : "K", 0, "f16", 2, 1, 2, rows[i]);
    const struct kvc_memory m = {.size = sizeof m,
                                 .array_size = sizeof array[0],
                                 .arrays = &array[0].of_now,
                                 .n_arrays = 2,
                                 .tokens = 2};
    (void)state;
    struct kvc_file *g = kvc_file_open_arrays(&m, e);
    if (!g) fail_msg("%s", kvc_error_message(e));
    assert_int_equal(kvc_file_tensors(g), 2);
    kvc_file_close(g);
    array[1].more = 1;
    assert_null(kvc_file_open_arrays(&m, e));
    assert_int_equal(kvc_error_code(e), KVC_ERR_UNSUPPORTED);
    array[1].more = 0;
    array[1].of_now.token = -4;
    assert_null(kvc_file_open_arrays(&m, e));
    assert_non_null(strstr(kvc_error_message(e), "stride below 0"));
}

/* Pages at one address would be filled one over the other; a single one needs no stride. */
static void pages_without_a_stride(void **state) {
    static uint16_t rows[4][2];
    const struct kvc_memory_array array = dense_array("K", 0, "f16", 2, 1, 2, rows[0]);
    struct kvc_memory m = {.size = sizeof m,
                           .array_size = sizeof array,
                           .arrays = &array,
                           .n_arrays = 1,
                           .tokens = 3,
                           .page_size = 4};
    (void)state;
    for (m.first_slot = 0; m.first_slot < 3; m.first_slot++) {
        struct kvc_file *g = kvc_file_open_arrays(&m, e);
        assert_int_equal(g != NULL, m.first_slot < 2);
        kvc_file_close(g);
    }
    assert_non_null(strstr(kvc_error_message(e), "share bytes"));
    const uint64_t base = 4096;
    const struct kvc_cuda_destination to = {.size = sizeof to,
                                            .pool = {2, 2, 2, 3, 64, 2, {0}},
                                            .strides = {64, 64, 0, 384, 128, 2, {0}},
                                            .bases = &base,
                                            .n_bases = 1};
    assert_null(kvc_cuda_plan_new("samples/tiny.kvc", NULL, &to, e));
    assert_non_null(strstr(kvc_error_message(e), "several values"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files),
        cmocka_unit_test(writing),
        cmocka_unit_test(models_and_names),
        cmocka_unit_test(inspecting),
        cmocka_unit_test(stores),
        cmocka_unit_test(lists),
        cmocka_unit_test(devices),
        cmocka_unit_test(sizes),
        cmocka_unit_test(all_functions),
        cmocka_unit_test(other_functions),
        cmocka_unit_test(arrays_of_a_later_version),
        cmocka_unit_test(reports),
        cmocka_unit_test(memory_of_a_later_version),
        cmocka_unit_test(pages_without_a_stride),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
