/* test_raw.c: every order of axes, geometry that does not fit, and the export. */
#include "tests/unit/arrays_support.h"

static const struct kvc_format *const format = &kvc_format_raw;

/* 3 layers, K and V, 5 tokens, 2 heads, 4 channels of two bytes; each value says where it belongs.
 */
enum { L = 3, T = 5, H = 2, D = 4, VALUES = L * 2 * T * H * D, OFFSET = 7 };

static uint16_t value_of(unsigned l, unsigned c, unsigned t, unsigned h, unsigned d) {
    return (uint16_t)((((l * 2 + c) * T + t) * H + h) * D + d);
}

/* Writes the values with the axes in this order, slowest first. */
static void fill(uint8_t *data, const char *order) {
    static const unsigned count[5] = {L, 2, T, H, D};
    unsigned axis[5], at[5];
    for (unsigned i = 0; i < 5; i++) axis[i] = (unsigned)(strchr("lcthd", order[i]) - "lcthd");
    for (unsigned n = 0; n < VALUES; n++) {
        unsigned rest = n;
        for (unsigned i = 5; i-- > 0;) {
            at[axis[i]] = rest % count[axis[i]];
            rest /= count[axis[i]];
        }
        uint16_t v = value_of(at[0], at[1], at[2], at[3], at[4]);
        memcpy(data + 2 * n, &v, 2);
    }
}

/* The options of the file, with another value for one key, or without it: "dtype=f12", "tokens=".
 */
static struct kvc_import_options geometry_but(const char *order, const char *other) {
    static char text[512];
    static const char *const plain[] = {"dtype=f16", "layers=3", "tokens=5",
                                        "heads=2",   "dim=4",    "offset=7"};
    snprintf(text, sizeof text, order ? "raw:order=%s" : "raw:offset=7", order);
    for (int i = 0; i < 6; i++) {
        const size_t key = strcspn(plain[i], "=") + 1;
        const char *item = strncmp(plain[i], other, key) == 0 ? other : plain[i];
        if (item[key]) snprintf(text + strlen(text), sizeof text - strlen(text), ",%s", item);
    }
    return (struct kvc_import_options){.format = text};
}

static struct kvc_import_options geometry(const char *order) {
    return geometry_but(order, "");
}

static void check_order(const char *order) {
    uint8_t data[OFFSET + 2 * VALUES];
    struct kvc_import_options o = geometry(order);
    struct kvc_input in;
    memset(data, 'x', OFFSET);
    fill(data + OFFSET, order);
    struct kvc_cache *c = import_bytes(format, &in, data, sizeof data, &o);
    assert_int_equal(c->n_layers, L);
    for (unsigned l = 0; l < L; l++)
        for (unsigned k = 0; k < 2; k++) {
            size_t n;
            uint8_t *rows = read_all(c, c->layer[l].tensor[k], &n);
            for (unsigned i = 0; i < T * H * D; i++) {
                uint16_t v;
                memcpy(&v, rows + 2 * i, 2);
                assert_int_equal(v, value_of(l, k, 0, 0, 0) + i);
            }
            free(rows);
        }
    assert_source_is(c, data, sizeof data); /* also where tensors lie between each other */
    struct kvc_buffer b = export_bytes(format, c);
    uint8_t plain[2 * VALUES];
    fill(plain, "lcthd");
    assert_int_equal(b.n, sizeof plain);
    assert_memory_equal(b.data, plain, sizeof plain);
    free(b.data);
    kvc_cache_free(c);
    kvc_input_close(&in);
}

/* All 120 permutations. */
static void permute(char *order, unsigned n) {
    if (n == 5) check_order(order);
    for (unsigned i = n; i < 5; i++) {
        char c = order[n];
        order[n] = order[i];
        order[i] = c;
        permute(order, n + 1);
        order[i] = order[n];
        order[n] = c;
    }
}

static void test_orders(void **state) {
    (void)state;
    char order[] = "lcthd";
    permute(order, 0);
}

static void test_geometry(void **state) {
    (void)state;
    static uint8_t data[OFFSET + 2 * VALUES];
    struct kvc_import_options o = geometry(NULL), bad;
    struct kvc_input in;
    struct kvc_cache *c = import_bytes(format, &in, data, sizeof data, &o); /* the default order */
    assert_null(kvc_meta_find(&c->meta, KVC_KEY_ROPE_PAIRING));
    kvc_cache_free(c);
    kvc_input_close(&in);
    refuse_bytes(format, data, sizeof data, NULL, KVC_ERR_USAGE, "dtype=f16,layers=L");
    refuse_bytes(format, data, sizeof data - 1, &o, KVC_ERR_USAGE,
                 "makes 480 bytes after offset 7");
    static const char *const orders[] = {"", "lcth", "lcthdd", "lcthl", "lcthx", "LCTHD"};
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        bad = geometry(orders[i]);
        refuse_bytes(format, data, sizeof data, &bad, KVC_ERR_USAGE, "order=");
    }
    static const char *const others[][2] = {{"dtype=f12", "dtype=f12"},
                                            {"tokens=", "needs its geometry"},
                                            {"dim=4611686018427387903", "64 bits"},
                                            {"offset=18446744073709551611", "but the file has"},
                                            {"layers=1024G",
                                             "layers=1024G is not a number from 1 to 65536"},
                                            {"tokens=0", "is not a number"},
                                            {"heads=3x", "is not a number"},
                                            {"dtype=q8_0", "no multiple"}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        bad = geometry_but("lcthd", others[i][0]);
        refuse_bytes(format, data, sizeof data, &bad, KVC_ERR_USAGE, others[i][1]);
    }
    bad.format = "raw:order=lcdth,dtype=q8_0,layers=2,tokens=3,heads=4,dim=32";
    refuse_bytes(format, data, sizeof data, &bad, KVC_ERR_USAGE, "d must be last");
    bad.format = "raw:ordre=lcthd";
    refuse_bytes(format, data, sizeof data, &bad, KVC_ERR_USAGE,
                 "there is no option 'ordre'; did you mean order?");
    bad.format = "raw:dtype";
    refuse_bytes(format, data, sizeof data, &bad, KVC_ERR_USAGE, "dtype wants a value: dtype=f16");
}

/* Block types keep whole blocks: here heads before tokens. */
static void test_blocks(void **state) {
    (void)state;
    uint8_t data[2 * 2 * 3 * 34];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i / 34);
    const struct kvc_import_options o = {
        .format = "raw:dtype=q8_0,order=clhtd,layers=1,tokens=3,heads=2,dim=32"};
    struct kvc_input in;
    struct kvc_cache *c = import_bytes(format, &in, data, sizeof data, &o);
    size_t n;
    uint8_t *rows = read_all(c, c->layer[0].tensor[1], &n);
    assert_int_equal(n, 6 * 34);
    static const uint8_t want[6] = {6, 9, 7, 10, 8, 11};
    for (unsigned i = 0; i < 6; i++) assert_int_equal(rows[34 * i], want[i]);
    free(rows);
    assert_source_is(c, data, sizeof data);
    assert_null(kvc_meta_find(&c->meta, KVC_KEY_HADAMARD_K));
    kvc_cache_free(c);
    kvc_input_close(&in);
}

/* One file holds one sequence: several streams, or several sequences in one, are refused. */
static void test_sequences(void **state) {
    (void)state;
    uint8_t data[4 * 2 * 4];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)i;
    struct kvc_input in;
    struct kvc_cache *c = raw_cache(&in, data, sizeof data, "u8", 1, 4, 1, 4, KVC_PAIRING_UNKNOWN);
    set_positions(c, 0, (int64_t[]){0, 1, 1, 2});
    refuse_export(format, c, NULL, KVC_ERR_UNSUPPORTED, "position 1 occurs twice");
    set_positions(c, 0, (int64_t[]){3, 2, 1, 0});
    c->part[0].stream = 1; /* the only one that has cells */
    struct kvc_error e;
    assert_true(kvc_cache_add_part(c, KVC_PART_LIVE, 0, &e) == 1);
    struct kvc_buffer b = export_bytes(format, c);
    assert_int_equal(b.n, sizeof data);
    assert_memory_equal(b.data, data + 12, 4);
    assert_memory_equal(b.data + 12, data, 4);
    free(b.data);
    add_part(c, KVC_PART_LIVE, 2, 0, 2, data);
    refuse_export(format, c, NULL, KVC_ERR_UNSUPPORTED, "the cache holds 2 streams");
    kvc_cache_free(c);
    kvc_input_close(&in);
}

/* Values stay as they are, blocks and Hadamard rotation included. */
static void test_unconverted(void **state) {
    (void)state;
    uint8_t data[2 * 34];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)i;
    struct kvc_input in;
    struct kvc_error e;
    struct kvc_export_options o = {.pairing = KVC_PAIRING_HALVES};
    struct kvc_cache *c = raw_cache(&in, data, sizeof data, "q8_0", 1, 1, 1, 32,
                                    KVC_PAIRING_INTERLEAVED);
    refuse_export(format, c, &o, KVC_ERR_UNSUPPORTED, "whether K is Hadamard-rotated is unknown");
    assert_int_equal(kvc_meta_set_u64(&c->meta, KVC_KEY_HADAMARD_K, 32, &e), 0);
    struct kvc_buffer b = export_bytes(format, c);
    assert_int_equal(b.n, sizeof data);
    assert_memory_equal(b.data, data, b.n);
    free(b.data);
    refuse_export(format, c, &o, KVC_ERR_UNSUPPORTED, "without dequantising");
    kvc_cache_free(c);
    kvc_input_close(&in);
}

static void test_probe(void **state) {
    (void)state;
    char why[64];
    struct kvc_input in;
    kvc_input_memory(&in, "test", "", 0);
    assert_false(kvc_format_probe(format, &in, why, sizeof why));
    assert_non_null(strstr(why, "never guessed"));
    kvc_input_close(&in);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orders),      cmocka_unit_test(test_geometry),
        cmocka_unit_test(test_blocks),      cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_unconverted), cmocka_unit_test(test_probe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
