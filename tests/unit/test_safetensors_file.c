/* test_safetensors_file.c: the header of safetensors files: what is read, what is refused, in which
 * words, and what is written. Not for what tensors mean: test_safetensors.c, test_weights.c,
 * test_profile.c. */
#include "codecs/dtype.h"
#include "formats/io/bytes.h"
#include "formats/io/safetensors_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct file {
    uint8_t head[8192];
    uint64_t size; /* of the file: header and data */
};

static void make(struct file *f, const char *json, uint64_t data) {
    const size_t n = strlen(json);
    assert_true(8 + n <= sizeof f->head);
    put_u64(f->head, n);
    memcpy(f->head + 8, json, n);
    f->size = 8 + n + data;
}

#define ENTRY(type, shape, begin, end) \
    "{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static void reads_all(void **state) {
    (void)state;
    struct kvc_safetensors s;
    struct kvc_error e = {.message = ""};
    struct file f;
    make(&f,
         "{\"z\":" ENTRY("BF16", "[2,3]", 0,
                         12) ",\"__metadata__\":{\"a\":\"b\",\"__\":\"\"},"
                             "\"a\":" ENTRY("I64", "[]", 12, 20) ",\"m\":" ENTRY(
                                 "F4", "[4]", 20, 22) ",\"empty\":" ENTRY("F32", "[0,5]", 22,
                                                                          22) "}   ",
         22);
    if (kvc_safetensors_read(&s, f.head, f.size, KVC_SAFETENSORS_COVERED, &e))
        fail_msg("%s", e.message);
    assert_int_equal(s.n, 4);
    assert_int_equal(s.data_size, 22);
    assert_int_equal(s.data_at, f.size - 22);
    static const char *const order[] = {"z", "a", "m", "empty"};
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(s.tensor[i].name, order[i]);
        assert_ptr_equal(kvc_safetensors_find(&s, order[i]), &s.tensor[i]);
    }
    assert_null(kvc_safetensors_find(&s, "b"));
    assert_null(kvc_safetensors_find(&s, ""));
    assert_null(kvc_safetensors_find(&s, "__metadata__"));
    const struct kvc_safetensors_tensor *z = &s.tensor[0];
    assert_int_equal(z->rank, 2);
    assert_true(z->dim[0] == 2 && z->dim[1] == 3 && z->begin == 0 && z->end == 12);
    assert_string_equal(z->dtype, "BF16");
    assert_int_equal(z->type->dtype, KVC_BF16);
    assert_int_equal(s.tensor[1].rank, 0);
    assert_int_equal(s.tensor[1].type->dtype, -1);
    assert_string_equal(kvc_safetensors_text(&s, "a"), "b");
    assert_string_equal(kvc_safetensors_text(&s, "__"), "");
    assert_null(kvc_safetensors_text(&s, "z"));
    kvc_safetensors_free(&s);
    make(&f, "{}", 0);
    assert_int_equal(kvc_safetensors_read(&s, f.head, f.size, KVC_SAFETENSORS_COVERED, &e), 0);
    assert_int_equal(s.n, 0);
    assert_null(kvc_safetensors_find(&s, "a"));
    assert_null(kvc_safetensors_text(&s, "a"));
    kvc_safetensors_free(&s);
}

static void refuse(const struct file *f, unsigned strictness, enum kvc_code code,
                   const char *words) {
    struct kvc_safetensors s;
    struct kvc_error e = {.message = ""};
    if (!kvc_safetensors_read(&s, f->head, f->size, strictness, &e))
        fail_msg("taken, where '%s' is expected", words);
    if (e.code != code || !strstr(e.message, words))
        fail_msg("code %d, '%s' is not in: %s", (int)e.code, words, e.message);
    assert_null(s.root);
    assert_null(s.tensor);
}

static void refuses_malformed(void **state) {
    (void)state;
    static const struct {
        const char *json;
        uint64_t data;
        const char *words;
    } bad[] = {
        {"{\"a\":" ENTRY("U8", "[1]", 0, 1) ",\"a\":" ENTRY("U8", "[1]", 1, 2) "}", 2, "duplicate"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1,
         "exactly dtype, shape and two"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "exactly"},
        {"{\"a\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "exactly"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}}", 1, "exactly"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, "exactly"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":{}}}", 1, "exactly"},
        {"{\"a\":[]}", 0, "exactly"},
        {"{\"a\":null}", 0, "exactly"},
        {"{\"a\":" ENTRY("Q9", "[1]", 0, 1) "}", 1, "dtype 'Q9', which safetensors does not know"},
        {"{\"a\":" ENTRY("", "[1]", 0, 1) "}", 1, "dtype ''"},
        {"{\"a\":" ENTRY("U8", "[1.0]", 0, 1) "}", 1, "other than counts"},
        {"{\"a\":" ENTRY("U8", "[-1]", 0, 1) "}", 1, "other than counts"},
        {"{\"a\":" ENTRY("U8", "[\"1\"]", 0, 1) "}", 1, "other than counts"},
        {"{\"a\":" ENTRY("U8", "[1]", -1, 0) "}", 1, "no whole numbers"},
        {"{\"a\":" ENTRY("U8", "[1]", 0.0, 1.0) "}", 1, "no whole numbers"},
        {"{\"a\":" ENTRY("U8", "[1]", 1, 0) "}", 1, "ends before it begins"},
        {"{\"a\":" ENTRY("U8", "[1]", 0, 2) "}", 1, "claims data bytes 0 to 2, but there are 1"},
        {"{\"a\":" ENTRY("U8", "[1]", 9223372036854775806, 9223372036854775807) "}", 1,
         "claims data bytes"},
        {"{\"a\":" ENTRY("U8", "[1]", 0, 18446744073709551616) "}", 1, "no valid JSON"},
        {"{\"a\":" ENTRY("U8", "[2]", 0, 1) "}", 1,
         "needs 2 bytes by its shape but has 1 by its data_offsets"},
        {"{\"a\":" ENTRY("F32", "[]", 0, 1) "}", 1, "needs 4 bytes"},
        {"{\"a\":" ENTRY("F4", "[3]", 0, 1) "}", 1,
         "12 bits by its shape, which are no whole bytes"},
        {"{\"a\":" ENTRY("F6_E2M3", "[4]", 0, 4) "}", 4, "needs 3 bytes"},
        {"{\"a\":" ENTRY("I64", "[2305843009213693952,16]", 0, 0) "}", 0, "overflows 64 bits"},
        {"{\"a\":" ENTRY("I64", "[4611686018427387904,2,2]", 0, 0) "}", 0, "overflows 64 bits"},
        {"{\"a\":" ENTRY("I64", "[4611686018427387904]", 0, 0) "}", 0, "overflows 64 bits"},
        {"{\"a\":" ENTRY("F4", "[4611686018427387904]", 0, 0) "}", 0, "overflows 64 bits"},
        {"{\"a\":" ENTRY("U8", "[2]", 0, 2) ",\"b\":" ENTRY("U8", "[2]", 1, 3) "}", 3,
         "overlaps are not allowed"},
        {"{\"a\":" ENTRY("U8", "[4]", 0, 4) ",\"b\":" ENTRY("U8", "[0]", 2, 2) "}", 4, "overlaps"},
        {"{\"__metadata__\":[]}", 0, "__metadata__ is no JSON object"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__ entry 'a' is no text"},
        {"{\"a\xff\":{}}", 0, "no valid JSON"},
        {"{\"a\\u0000\":{}}", 0, "no valid JSON"},
        {"{} {}", 0, "no valid JSON"},
        {"{", 0, "no valid JSON"},
    };
    struct file f;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        make(&f, bad[i].json, bad[i].data);
        refuse(&f, 0, KVC_ERR_DAMAGED, bad[i].words);
        refuse(&f, KVC_SAFETENSORS_COVERED, KVC_ERR_DAMAGED, bad[i].words);
    }
    char deep[4000] = "{\"a\":";
    memset(deep + 5, '[', sizeof deep - 6);
    make(&f, deep, 0);
    refuse(&f, 0, KVC_ERR_DAMAGED, "no valid JSON");
}

static void knows_strictness(void **state) {
    (void)state;
    struct kvc_safetensors s;
    struct kvc_error e;
    struct file f;
    make(&f, "{\"a\":" ENTRY("U8", "[2]", 1, 3) ",\"b\":" ENTRY("U8", "[2]", 4, 6) "}", 7);
    refuse(&f, KVC_SAFETENSORS_COVERED, KVC_ERR_DAMAGED,
           "'a' begins at 1 but the data before it ends at 0: holes are not");
    refuse(&f, KVC_SAFETENSORS_NO_REST, KVC_ERR_DAMAGED,
           "7 bytes of data but its tensors end at 6");
    f.size--;
    refuse(&f, KVC_SAFETENSORS_NO_HOLES, KVC_ERR_DAMAGED, "holes");
    assert_int_equal(kvc_safetensors_read(&s, f.head, f.size, KVC_SAFETENSORS_NO_REST, &e), 0);
    kvc_safetensors_free(&s);
    f.size++;
    assert_int_equal(kvc_safetensors_read(&s, f.head, f.size, 0, &e), 0);
    kvc_safetensors_free(&s);
    make(&f, "{\"a\":" ENTRY("U8", "[2]", 0, 2) "}", 3);
    refuse(&f, KVC_SAFETENSORS_COVERED, KVC_ERR_DAMAGED,
           "3 bytes of data but its tensors end at 2");
    make(&f, "{}", 1);
    refuse(&f, KVC_SAFETENSORS_COVERED, KVC_ERR_DAMAGED,
           "1 bytes of data but its tensors end at 0");
    make(&f, "{\"a\":" ENTRY("E8", "[2]", 0, 7) "}", 7);
    refuse(&f, KVC_SAFETENSORS_COVERED, KVC_ERR_DAMAGED, "'E8'");
    assert_int_equal(kvc_safetensors_read(&s, f.head, f.size,
                                          KVC_SAFETENSORS_COVERED | KVC_SAFETENSORS_ANY_DTYPE, &e),
                     0);
    assert_null(s.tensor[0].type);
    assert_string_equal(s.tensor[0].dtype, "E8");
    kvc_safetensors_free(&s);
}

static void knows_beginnings(void **state) {
    (void)state;
    struct file f;
    char why[64] = "";
    make(&f, "{}", 0);
    assert_int_equal(kvc_safetensors_begins(f.head, 9, why, sizeof why), 10);
    assert_int_equal(kvc_safetensors_begins(f.head, 8, why, sizeof why), 0);
    assert_string_equal(why, "too short for a header");
    f.size = 8;
    refuse(&f, 0, KVC_ERR_UNKNOWN_FORMAT, "too short for a safetensors header");
    f.size = 9;
    refuse(&f, 0, KVC_ERR_DAMAGED,
           "header length 2 reaches beyond the end of the file (9 bytes): cut short");
    make(&f, "[]", 0);
    assert_int_equal(kvc_safetensors_begins(f.head, 10, why, sizeof why), 0);
    assert_string_equal(why, "no JSON object follows the header length");
    refuse(&f, 0, KVC_ERR_UNKNOWN_FORMAT, "no JSON object");
    make(&f, "{}", 0);
    put_u64(f.head, 1);
    assert_int_equal(kvc_safetensors_begins(f.head, 10, why, sizeof why), 0);
    refuse(&f, 0, KVC_ERR_DAMAGED, "no valid JSON");
    static const uint64_t lengths[] = {KVC_SAFETENSORS_HEADER + 1, UINT64_C(1) << 63,
                                       UINT64_MAX - 7, UINT64_MAX};
    for (size_t i = 0; i < 4; i++) {
        put_u64(f.head, lengths[i]);
        assert_int_equal(kvc_safetensors_begins(f.head, 10, why, sizeof why), 0);
        assert_string_equal(why, "the first 8 bytes are no header length");
        refuse(&f, 0, KVC_ERR_DAMAGED, "safetensors allows at most 100000000 bytes");
    }
    put_u64(f.head, KVC_SAFETENSORS_HEADER);
    assert_int_equal(kvc_safetensors_begins(f.head, 10, why, sizeof why),
                     8 + KVC_SAFETENSORS_HEADER);
    refuse(&f, 0, KVC_ERR_DAMAGED, "reaches beyond the end");
}

/* No shorter file and no changed byte makes the reader leave its bounds: the sanitizers watch. */
static void survives_changes(void **state) {
    (void)state;
    struct file f;
    make(&f,
         "{\"__metadata__\":{\"k\":\"v\"},\"a\":" ENTRY("F16", "[2,2]", 0,
                                                        8) ",\"b\":" ENTRY("U8", "[3]", 8, 11) "}",
         11);
    const size_t header = (size_t)f.size - 11;
    for (size_t i = 0; i < header; i++)
        for (unsigned bit = 0; bit < 8; bit++) {
            struct kvc_safetensors s;
            struct kvc_error e;
            uint8_t *own = malloc(header);
            memcpy(own, f.head, header);
            own[i] ^= (uint8_t)(1u << bit);
            if (!kvc_safetensors_read(&s, own, f.size, KVC_SAFETENSORS_COVERED, &e)) {
                for (size_t t = 0; t < s.n; t++)
                    assert_true(s.tensor[t].begin <= s.tensor[t].end &&
                                s.tensor[t].end <= s.data_size);
                kvc_safetensors_free(&s);
            }
            free(own);
        }
    for (size_t n = 0; n < header; n++) {
        struct file cut = f;
        cut.size = n;
        refuse(&cut, 0, n < 9 ? KVC_ERR_UNKNOWN_FORMAT : KVC_ERR_DAMAGED,
               n < 9 ? "too short" : "cut short");
    }
}

static void writes_what_it_reads(void **state) {
    (void)state;
    static const uint64_t shape[] = {2, 3};
    struct kvc_safetensors_writer w;
    struct kvc_buffer b = {0};
    struct kvc_sink sink = kvc_sink_buffer(&b);
    struct kvc_error e = {.message = ""};
    assert_int_equal(kvc_safetensors_writer_init(&w, &e), 0);
    assert_int_equal(kvc_safetensors_add(&w, "z", "F16", shape, 2, &e), 0);
    assert_int_equal(kvc_safetensors_add_text(&w, "k", "a \"quoted\" \\ text\n", &e), 0);
    assert_int_equal(kvc_safetensors_add(&w, "a", "I64", NULL, 0, &e), 0);
    assert_int_equal(kvc_safetensors_add_text(&w, "l", "\xc3\xa4", &e), 0);
    assert_int_equal(w.data_size, 20);
    assert_int_equal(kvc_safetensors_write(&w, &sink, &e), 0);
    kvc_safetensors_writer_free(&w);
    static const char json[] =
        "{\"__metadata__\":{\"k\":\"a \\\"quoted\\\" \\\\ text\\n\",\"l\":\"\xc3\xa4\"},"
        "\"z\":{\"dtype\":\"F16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
        "\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[12,20]}}";
    assert_int_equal(b.n % 8, 0);
    assert_int_equal(get_u64(b.data), b.n - 8);
    assert_memory_equal(b.data + 8, json, sizeof json - 1);
    for (size_t i = 8 + sizeof json - 1; i < b.n; i++) assert_int_equal(b.data[i], ' ');
    struct kvc_safetensors s;
    if (kvc_safetensors_read(&s, b.data, b.n + 20, KVC_SAFETENSORS_COVERED, &e))
        fail_msg("%s", e.message);
    assert_int_equal(s.n, 2);
    assert_string_equal(kvc_safetensors_text(&s, "k"), "a \"quoted\" \\ text\n");
    kvc_safetensors_free(&s);
    free(b.data);
}

static void refuses_to_write(void **state) {
    (void)state;
    static const uint64_t one[] = {1}, large[] = {UINT64_C(1) << 62, 2}, three[] = {3};
    struct kvc_safetensors_writer w;
    struct kvc_error e = {.message = ""};
    assert_int_equal(kvc_safetensors_writer_init(&w, &e), 0);
    assert_int_equal(kvc_safetensors_add(&w, "a", "U8", one, 1, &e), 0);
    assert_int_equal(kvc_safetensors_add(&w, "a", "U8", one, 1, &e), -1);
    assert_non_null(strstr(e.message, "'a' cannot be written: another tensor has this name"));
    assert_int_equal(kvc_safetensors_add(&w, "__metadata__", "U8", one, 1, &e), -1);
    assert_int_equal(kvc_safetensors_add(&w, "b", "Q9", one, 1, &e), -1);
    assert_non_null(strstr(e.message, "no such type"));
    assert_int_equal(kvc_safetensors_add(&w, "b", "F64", large, 2, &e), -1);
    assert_int_equal(kvc_safetensors_add(&w, "b", "F4", three, 1, &e), -1);
    assert_non_null(strstr(e.message, "no number of bytes"));
    assert_int_equal(w.data_size, 1);
    kvc_safetensors_writer_free(&w);
}

static void names_types(void **state) {
    (void)state;
    assert_string_equal(kvc_safetensors_type_of(KVC_F8E4M3)->name, "F8_E4M3");
    assert_null(kvc_safetensors_type_of(KVC_Q8_0));
    assert_null(kvc_safetensors_type_of(-1));
    assert_int_equal(kvc_safetensors_type_by_name("F6_E3M2")->bits, 6);
    assert_null(kvc_safetensors_type_by_name("f32"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_all),        cmocka_unit_test(refuses_malformed),
        cmocka_unit_test(knows_strictness), cmocka_unit_test(knows_beginnings),
        cmocka_unit_test(survives_changes), cmocka_unit_test(writes_what_it_reads),
        cmocka_unit_test(refuses_to_write), cmocka_unit_test(names_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
