/* test_rope_scaling.c: angles of scaled RoPE: from numbers in metadata, against those of
 * transformers (tests/engine/rope_scaling.py prints the table), and from GGUF files. */
#include "weights_support.h"

#include "formats/cache/cache.h"
#include "formats/cache/keys.h"
#include "formats/cache/mapped.h"
#include "formats/cache/view.h"
#include "formats/model/layer_rope.h"
#include "formats/model/model.h"
#include "formats/model/rope_scaling.h"

enum { SHOWN = 8, PAIRS = 16 };

static const struct {
    const char *type;
    double theta, factor;
    uint64_t original;
    const char *more;
    size_t dim;
    double length, angle[SHOWN];
} cases[] = {
    {"llama3",
     500000.0,
     32.0,
     8192,
     "{\"low_freq_factor\":1.0,\"high_freq_factor\":4.0}",
     64,
     1,
     {1, 0.193922758, 0.0376060307, 0.00729266508, 0.000429556705, 8.57025589e-06, 1.66196742e-06,
      3.22293289e-07}},
    {"llama3",
     10000.0,
     4.0,
     1024,
     "{\"low_freq_factor\":2.0,\"high_freq_factor\":8.0}",
     32,
     1,
     {1, 0.316227764, 0.100000001, 0.0203718338, 0.00249999994, 0.000790569466, 0.000250000012,
      7.90569466e-05}},
    {"yarn",
     1000000.0,
     4.0,
     32768,
     NULL,
     128,
     1.13862944,
     {1, 0.177827939, 0.0316227786, 0.00537532149, 0.000602941145, 4.44569851e-05, 7.90569356e-06,
      1.40585337e-06}},
    {"yarn",
     150000.0,
     32.0,
     4096,
     "{\"beta_fast\":32.0,\"beta_slow\":1.0,\"truncate\":false}",
     64,
     1.34657359,
     {1, 0.225418001, 0.0508132726, 0.00679495931, 0.000456483918, 1.8188337e-05, 4.09997847e-06,
      9.24208962e-07}},
    {"yarn",
     10000.0,
     16.0,
     2048,
     "{\"beta_fast\":16.0,\"beta_slow\":2.0,\"mscale\":1.0,\"mscale_all_dim\":0.8}",
     32,
     1.04538505,
     {1, 0.316227764, 0.100000001, 0.0242111888, 0.00296874996, 0.000197642366, 6.2500003e-05,
      1.97642366e-05}},
    {"yarn",
     10000.0,
     8.0,
     1024,
     "{\"attention_factor\":1.5}",
     32,
     1.5,
     {1, 0.316227764, 0.075000003, 0.0158113874, 0.00249999994, 0.000395284733, 0.000125000006,
      3.95284733e-05}},
    {"linear",
     10000.0,
     3.0,
     0,
     NULL,
     32,
     1,
     {0.333333343, 0.105409257, 0.0333333351, 0.0105409259, 0.00333333318, 0.00105409266,
      0.000333333359, 0.000105409265}},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static int near(double a, double b) {
    return fabs(a - b) <= 2e-6 * fabs(b);
}

static void test_formulas(void **state) {
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        const size_t half = cases[i].dim / 2;
        const struct kvc_rope_facts rope = {.type = kvc_rope_type_parse(cases[i].type),
                                            .theta = cases[i].theta,
                                            .factor = cases[i].factor,
                                            .original = cases[i].original,
                                            .scaling = cases[i].more};
        double divisor[64], length = 0;
        assert_int_equal(kvc_rope_scaling(&rope, half, divisor, &length), 1);
        assert_true(near(length, cases[i].length));
        for (size_t s = 0; s < SHOWN; s++) {
            const size_t pair = s * half / SHOWN;
            const double angle = pow(cases[i].theta, -(double)pair / (double)half) / divisor[pair];
            if (!near(angle, cases[i].angle[s]))
                fail_msg("case %zu, pair %zu: %.9g, not %.9g", i, pair, angle, cases[i].angle[s]);
        }
    }
}

/* Numbers that are missing or make no sense, and types that depend on the length. */
static void test_unknown(void **state) {
    (void)state;
    static const struct {
        enum kvc_rope_type type;
        double factor;
        uint64_t original;
        const char *more;
        int known;
    } bad[] = {
        {KVC_ROPE_TYPE_LLAMA3, 8, 0, NULL, 1}, /* the numbers of Llama 3.1 */
        {KVC_ROPE_TYPE_LLAMA3, 8, 0, "{\"low_freq_factor\":null}", 1},
        {KVC_ROPE_TYPE_LLAMA3, 0, 0, NULL, 0},
        {KVC_ROPE_TYPE_LLAMA3, 0.5, 0, NULL, 0},
        {KVC_ROPE_TYPE_LLAMA3, 8, 0, "{\"low_freq_factor\":4.0}", 0},
        {KVC_ROPE_TYPE_LLAMA3, 8, 0, "{\"high_freq_factor\":\"4\"}", 0},
        {KVC_ROPE_TYPE_LLAMA3, 8, 0, "{\"low_freq_factor\":-1}", 0},
        {KVC_ROPE_TYPE_YARN, 4, 2048, NULL, 1},
        {KVC_ROPE_TYPE_YARN, 4, 2048, "not JSON", 1}, /* counts as none */
        {KVC_ROPE_TYPE_YARN, 1, 2048, NULL, 1},
        {KVC_ROPE_TYPE_YARN, 0, 2048, NULL, 0},
        {KVC_ROPE_TYPE_YARN, 4, 0, NULL, 0},
        {KVC_ROPE_TYPE_YARN, 4, 2048, "{\"beta_fast\":1}", 0},
        {KVC_ROPE_TYPE_YARN, 4, 2048, "{\"beta_slow\":0}", 0},
        {KVC_ROPE_TYPE_YARN, 4, 2048, "{\"attention_factor\":[]}", 0},
        {KVC_ROPE_TYPE_YARN, 4, 2048, "{\"mscale\":true}", 0},
        {KVC_ROPE_TYPE_LONGROPE, 4, 2048, "{\"short_factor\":[1],\"long_factor\":[2]}", 0},
        {KVC_ROPE_TYPE_OTHER, 4, 2048, NULL, 0},
        {KVC_ROPE_TYPE_UNKNOWN, 1, 0, NULL, 0},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const struct kvc_rope_facts rope = {.type = bad[i].type,
                                            .theta = 10000,
                                            .factor = bad[i].factor,
                                            .original = bad[i].original,
                                            .scaling = bad[i].more};
        double divisor[PAIRS], length;
        if (kvc_rope_scaling(&rope, PAIRS, divisor, &length) != bad[i].known)
            fail_msg("case %zu", i);
        for (size_t p = 0; bad[i].known && p < PAIRS; p++)
            assert_true(divisor[p] >= 1 && divisor[p] <= bad[i].factor);
    }
}

/* --- GGUF files --- */

struct key {
    const char *name; /* NULL: no more */
    double number;
    const char *text; /* of a text */
};

/* Writes a file of heads of 2 PAIRS channels; `freqs`: values of a tensor of `type` that is said
 * to have `n`. */
static void put_model(const char *arch, const struct key *keys, const char *tensor, unsigned type,
                      const float *freqs, size_t n) {
    struct bytes *f = calloc(1, sizeof *f);
    char name[96];
    size_t n_keys = 0;
    assert_non_null(f);
    while (keys[n_keys].name) n_keys++;
    add(f, "GGUF", 4);
    add_number(f, 3, 4);
    add_number(f, tensor != NULL, 8);
    add_number(f, 1 + n_keys, 8);
    add_string(f, "general.architecture");
    add_number(f, KVC_GGUF_STRING, 4);
    add_string(f, arch);
    for (size_t i = 0; i < n_keys; i++) {
        const float number = (float)keys[i].number;
        const int whole = keys[i].number > 100 || strstr(keys[i].name, "attention.");
        uint32_t bits;
        memcpy(&bits, &number, sizeof bits);
        snprintf(name, sizeof name, "%s.%s", arch, keys[i].name);
        add_string(f, name);
        add_number(f, keys[i].text ? KVC_GGUF_STRING : whole ? KVC_GGUF_U32 : KVC_GGUF_F32, 4);
        if (keys[i].text) add_string(f, keys[i].text);
        else add_number(f, whole ? (uint32_t)keys[i].number : bits, 4);
    }
    if (tensor) {
        add_string(f, tensor);
        add_number(f, 1, 4);
        add_number(f, n, 8);
        add_number(f, type, 4);
        add_number(f, 0, 8);
    }
    while (f->n % 32) add_number(f, 0, 1);
    for (size_t i = 0; freqs && i < PAIRS; i++) add(f, &freqs[i], sizeof freqs[i]);
    put_file("m.gguf", f->b, f->n);
    free(f);
}

/* Reads the file into the metadata of a cache, and finds the angles of its layer. */
static struct kvc_rope_facts angles(double **room, enum kvc_layer_kind kind, const char *fact) {
    const struct kvc_shape shape = {KVC_F32, 1, 1, 2 * PAIRS};
    const char *const facts[] = {fact, NULL};
    static struct kvc_model m;
    struct kvc_error e = {.message = ""};
    struct kvc_rope_facts rope;
    struct kvc_cache *c = kvc_cache_new(&e), *view;
    assert_non_null(c);
    assert_int_equal(kvc_model_read(in_folder("m.gguf"), 0, &m, &e), 0);
    assert_int_equal(kvc_cache_add_part(c, KVC_PART_LIVE, 1, &e), 0);
    assert_int_equal(kvc_cache_add_layer(c, 0, 0, kind, &e), 0);
    assert_int_equal(kvc_cache_add_tensor(c, 0, KVC_ROLE_K, &shape, &e), 0);
    assert_int_equal(kvc_cache_map(c, NULL, NULL, &e), 0);
    static const float row[2 * PAIRS];
    assert_int_equal(kvc_cache_map_memory(c, 0, (const uint8_t *)row, &e), 0);
    assert_int_equal(kvc_model_store(&m, &c->meta, 1, &e), 0);
    assert_int_equal(kvc_meta_give(&c->meta, facts, &e), 0);
    assert_int_equal(kvc_cache_finish(c, &e), 0);
    view = kvc_view_float(c, &e); /* has the table, too */
    assert_non_null(view);
    assert_int_equal(kvc_rope_of_layer(view, 0, NULL, &rope, room, &e), 0);
    kvc_cache_free(view);
    kvc_cache_free(c);
    return rope;
}

static const struct key llama[] = {{"attention.head_count", 1, NULL},
                                   {"attention.key_length", 2.0 * PAIRS, NULL},
                                   {NULL, 0, NULL}};

/* A table of the file divides the angles, but of a layer with a window and of another type. */
static void test_table(void **state) {
    (void)state;
    float freqs[PAIRS];
    double *room;
    for (size_t i = 0; i < PAIRS; i++) freqs[i] = 1 + (float)i / 2;
    put_model("llama", llama, "rope_freqs.weight", 0, freqs, PAIRS);
    struct kvc_rope_facts rope = angles(&room, KVC_LAYER_FULL, NULL);
    assert_non_null(rope.angle);
    assert_int_equal(rope.half, PAIRS);
    assert_true(rope.length == 1);
    for (size_t i = 0; i < PAIRS; i++)
        assert_true(near(room[i], pow(10000, -(double)i / PAIRS) / (double)freqs[i]));
    free(room);
    rope = angles(&room, KVC_LAYER_FULL, "rope.type=default");
    assert_non_null(rope.angle);
    for (size_t i = 0; i < PAIRS; i++) assert_true(near(room[i], pow(10000, -(double)i / PAIRS)));
    free(room);
    rope = angles(&room, KVC_LAYER_WINDOW, NULL);
    assert_null(rope.angle);

    put_model("exaone4", llama, "rope_freqs.weight", 0, freqs, PAIRS); /* of no known formula */
    rope = angles(&room, KVC_LAYER_FULL, NULL);
    assert_non_null(rope.angle);
    assert_true(near(room[5], pow(10000, -5.0 / PAIRS) / (double)freqs[5]));
    free(room);
    drop_file("m.gguf");
}

static void test_bad_tables(void **state) {
    (void)state;
    static const struct {
        const char *name;
        unsigned type;
        size_t n;
        float last;
    } bad[] = {{"rope_freqs.weight", 1, PAIRS, 2},        {"rope_freqs.weight", 0, PAIRS - 1, 2},
               {"rope_freqs.weight", 0, PAIRS + 1, 2},    {"rope_freqs.weight", 0, 257, 2},
               {"rope_freqs.weight", 0, SIZE_MAX / 8, 2}, {"rope_freqs.weight", 0, PAIRS, 0},
               {"rope_freqs.weight", 0, PAIRS, -1},       {"rope_freqs.weight", 0, PAIRS, INFINITY},
               {"rope_freqs.weight", 0, PAIRS, NAN},      {"rope_freqs.weight", 0, PAIRS, 1e-6f},
               {"rope_factors_long.weight", 0, PAIRS, 2}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const int of_two = strcmp(bad[i].name, "rope_freqs.weight") != 0;
        static struct kvc_model m;
        float freqs[PAIRS];
        double *room;
        for (size_t p = 0; p < PAIRS; p++) freqs[p] = 1;
        freqs[PAIRS - 1] = bad[i].last;
        put_model("llama", llama, bad[i].name, bad[i].type, freqs, bad[i].n);
        if (angles(&room, KVC_LAYER_FULL, NULL).angle) fail_msg("case %zu has angles", i);
        assert_null(room);
        /* the metadata say it too: without the weights, nobody takes the default angles */
        assert_int_equal(kvc_model_read(in_folder("m.gguf"), 0, &m, NULL), 0);
        assert_string_equal(m.rope_type, of_two ? "longrope" : "llama3");
    }
    drop_file("m.gguf");
}

/* YaRN of a GGUF file: the numbers of a case of the table, and llama.cpp's factors of lengths. */
static void test_yarn(void **state) {
    (void)state;
    static const struct {
        double slow, multiplier, attention, length;
    } yarn[] = {{2, 0, 1, 1.27725887},
                {2, 1, 1, 1},
                {2, 0.8, 1, 1.04538505},
                {2, 0, 2, 2.55451774}};
    for (size_t i = 0; i < sizeof yarn / sizeof yarn[0]; i++) {
        const struct key keys[] = {{"attention.head_count", 1, NULL},
                                   {"attention.key_length", 2.0 * PAIRS, NULL},
                                   {"rope.scaling.type", 0, "yarn"},
                                   {"rope.scaling.factor", 16, NULL},
                                   {"rope.scaling.original_context_length", 2048, NULL},
                                   {"rope.scaling.yarn_beta_fast", 16, NULL},
                                   {"rope.scaling.yarn_beta_slow", yarn[i].slow, NULL},
                                   {"rope.scaling.attn_factor", yarn[i].attention, NULL},
                                   {"rope.scaling.yarn_log_multiplier", yarn[i].multiplier, NULL},
                                   {NULL, 0, NULL}};
        double *room;
        put_model("mistral3", keys, NULL, 0, NULL, 0);
        const struct kvc_rope_facts rope = angles(&room, KVC_LAYER_FULL, NULL);
        assert_non_null(rope.angle);
        assert_true(near(rope.length, yarn[i].length));
        for (size_t s = 0; s < SHOWN; s++) assert_true(near(room[2 * s], cases[4].angle[s]));
        free(room);
    }
    /* llama.cpp reads these keys for Mistral 3 alone */
    const struct key ignored[] = {{"attention.head_count", 1, NULL},
                                  {"attention.key_length", 2.0 * PAIRS, NULL},
                                  {"rope.scaling.type", 0, "yarn"},
                                  {"rope.scaling.factor", 8, NULL},
                                  {"rope.scaling.original_context_length", 1024, NULL},
                                  {"rope.scaling.yarn_beta_fast", 8, NULL},
                                  {"rope.scaling.yarn_log_multiplier", 1, NULL},
                                  {NULL, 0, NULL}};
    double *own;
    put_model("llama", ignored, NULL, 0, NULL, 0);
    const struct kvc_rope_facts plain = angles(&own, KVC_LAYER_FULL, NULL);
    assert_non_null(plain.angle);
    assert_true(near(plain.length, 1.20794415));
    for (size_t s = 0; s < SHOWN; s++) assert_true(near(own[2 * s], cases[5].angle[s]));
    free(own);
    const struct key odd[] = {{"attention.head_count", 1, NULL},
                              {"attention.key_length", 2.0 * PAIRS, NULL},
                              {"rope.scaling.type", 0, "yarn"},
                              {"rope.scaling.factor", 16, NULL},
                              {"context_length", 2048, NULL}, /* in place of the original */
                              {"rope.scaling.yarn_beta_fast", 0.5, NULL},
                              {NULL, 0, NULL}};
    struct key good[sizeof odd / sizeof odd[0]];
    double *room;
    put_model("mistral3", odd, NULL, 0, NULL, 0);
    assert_null(angles(&room, KVC_LAYER_FULL, NULL).angle);
    memcpy(good, odd, sizeof odd);
    good[5].number = 32;
    put_model("mistral3", good, NULL, 0, NULL, 0);
    assert_non_null(angles(&room, KVC_LAYER_FULL, NULL).angle);
    free(room);
    drop_file("m.gguf");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas), cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_table),    cmocka_unit_test(test_bad_tables),
        cmocka_unit_test(test_yarn),
    };
    return cmocka_run_group_tests_name("rope_scaling", tests, make_folder, remove_folder);
}
