/* test_pickle.c: the values that pickles describe, and the pickles that are refused. */
#include "formats/engines/pickle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static int allows(const char *name, struct kvc_error *e) {
    return strncmp(name, "good.", 5) == 0 ? 0 : kvc_fail(e, KVC_ERR_UNSUPPORTED, "not %s", name);
}

#define READ(p, text, e) kvc_pickle_read(p, (const uint8_t *)text, sizeof text - 1, allows, e)
#define REFUSE(text, what, words)                                 \
    do {                                                          \
        struct kvc_pickle p;                                      \
        struct kvc_error e;                                       \
        assert_int_equal(READ(&p, text, &e), -1);                 \
        assert_int_equal(e.code, what);                           \
        if (!strstr(e.message, words)) fail_msg("%s", e.message); \
        assert_null(p.value);                                     \
    } while (0)

static const struct kvc_pickle_value *item(const struct kvc_pickle *p,
                                           const struct kvc_pickle_value *v, uint64_t i) {
    assert_true(i < v->n);
    return &p->value[v->item[i]];
}

/* {"a": [-2, 300, -1, True], "b": (None, 1.5)}, with the memo, in protocol 2. */
static void test_plain(void **state) {
    (void)state;
    struct kvc_pickle p;
    struct kvc_error e;
    assert_int_equal(READ(&p,
                          "\x80\x02}q\0(X\1\0\0\0aq\1]q\2(J\xfe\xff\xff\xffM\x2c\x01\x8a\1\xff\x88"
                          "eX\1\0\0\0bNG\x3f\xf8\0\0\0\0\0\0\x86q\3u.",
                          &e),
                     0);
    const struct kvc_pickle_value *root = &p.value[p.root], *list = item(&p, root, 1),
                                  *pair = item(&p, root, 3);
    assert_int_equal(root->kind, KVC_PICKLE_DICT);
    assert_int_equal(root->n, 4);
    assert_memory_equal(item(&p, root, 0)->text, "a", 1);
    assert_int_equal(list->kind, KVC_PICKLE_LIST);
    assert_int_equal(item(&p, list, 0)->integer, -2);
    assert_int_equal(item(&p, list, 1)->integer, 300);
    assert_int_equal(item(&p, list, 2)->integer, -1);
    assert_int_equal(item(&p, list, 3)->kind, KVC_PICKLE_BOOL);
    assert_int_equal(pair->kind, KVC_PICKLE_TUPLE);
    assert_int_equal(item(&p, pair, 0)->kind, KVC_PICKLE_NONE);
    assert_int_equal(item(&p, pair, 1)->kind, KVC_PICKLE_FLOAT);
    kvc_pickle_free(&p);
}

/* good.f(persistent 7) with a state and an item; the same class by protocol 4. */
static void test_calls(void **state) {
    (void)state;
    struct kvc_pickle p;
    struct kvc_error e;
    assert_int_equal(READ(&p,
                          "\x80\x02"
                          "cgood\nf\nK\7Q\x85RX\1\0\0\0kK\1s}b.",
                          &e),
                     0);
    const struct kvc_pickle_value *call = &p.value[p.root];
    assert_int_equal(call->kind, KVC_PICKLE_CALL);
    assert_string_equal(p.value[call->function].text, "good.f");
    const struct kvc_pickle_value *outside = item(&p, &p.value[call->arguments], 0);
    assert_int_equal(outside->kind, KVC_PICKLE_PERSISTENT);
    assert_int_equal(p.value[outside->arguments].integer, 7);
    assert_int_equal(p.value[call->state].kind, KVC_PICKLE_DICT);
    assert_int_equal(call->n, 2);
    kvc_pickle_free(&p);
    assert_int_equal(
        READ(&p, "\x80\x04\x95\x0b\0\0\0\0\0\0\0\x8c\4good\x94\x8c\1g\x94\x93\x94)\x81.", &e), 0);
    assert_string_equal(p.value[p.value[p.root].function].text, "good.g");
    kvc_pickle_free(&p);
}

/* A list that contains itself is one value with its own number. */
static void test_endless(void **state) {
    (void)state;
    struct kvc_pickle p;
    struct kvc_error e;
    assert_int_equal(READ(&p, "\x80\x02]q\0h\0a.", &e), 0);
    assert_int_equal(p.value[p.root].item[0], p.root);
    kvc_pickle_free(&p);
}

static void test_refused(void **state) {
    (void)state;
    REFUSE("", KVC_ERR_DAMAGED, "cut short");
    REFUSE("\x80\x02", KVC_ERR_DAMAGED, "cut short");
    REFUSE("\x80\x01N.", KVC_ERR_DAMAGED, "protocol");
    REFUSE("\x80\x02.", KVC_ERR_DAMAGED, "one value");
    REFUSE("NN.", KVC_ERR_DAMAGED, "one value");
    REFUSE("(.", KVC_ERR_DAMAGED, "one value");
    REFUSE("(Q.", KVC_ERR_DAMAGED, "a mark is");
    REFUSE("cos\nsystem\n.", KVC_ERR_UNSUPPORTED, "not os.system");
    REFUSE("cgood\nf", KVC_ERR_DAMAGED, "cut short");
    REFUSE("NNR.", KVC_ERR_DAMAGED, "no function");
    REFUSE("cgood\nf\nNR.", KVC_ERR_DAMAGED, "no tuple");
    REFUSE("N}b.", KVC_ERR_DAMAGED, "no object");
    REFUSE("}Ns.", KVC_ERR_DAMAGED, "belong to nothing");
    REFUSE("]NNs.", KVC_ERR_DAMAGED, "cannot have them");
    REFUSE("}(Nu.", KVC_ERR_DAMAGED, "cannot have them");
    REFUSE("}Nu.", KVC_ERR_DAMAGED, "without a mark");
    REFUSE("(Ne.", KVC_ERR_DAMAGED, "belong to nothing");
    REFUSE("a.", KVC_ERR_DAMAGED, "more values than there are");
    REFUSE("\x87.", KVC_ERR_DAMAGED, "more values than there are");
    REFUSE("h\0.", KVC_ERR_DAMAGED, "not set");
    REFUSE("Nr\xff\xff\xff\xff.", KVC_ERR_DAMAGED, "memo number");
    REFUSE("X\xff\xff\xff\xff"
           "a.",
           KVC_ERR_DAMAGED, "cut short");
    REFUSE("\x8a\x09"
           "012345678.",
           KVC_ERR_UNSUPPORTED, "64 bits");
    REFUSE("NN\x93.", KVC_ERR_DAMAGED, "other than texts");
    REFUSE("I1\n.", KVC_ERR_UNSUPPORTED, "opcode 0x49");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_endless),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
