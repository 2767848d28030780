/* test_float_env.c: what is packed, decoded and read as numbers does not depend on the
 * floating-point environment that the program has set, and the program keeps it. Not for what the
 * values are (tests/golden, tests/conformance). */
#include "container_support.h"

#include "codecs/number.h"

#include <fenv.h>

enum environment { UPWARD, DOWNWARD, TOWARD_ZERO, FLUSH, ENVIRONMENTS };

/* Sets an environment; returns 0 where this machine has none such. */
static int set(enum environment env) {
    static const int round[FLUSH] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    if (env != FLUSH) return !fesetround(round[env]);
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040); /* results, and operands */
    return 1;
#elif defined(__aarch64__)
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    __asm__ volatile("msr fpcr, %0" : : "r"(control | UINT64_C(1) << 24));
    return 1;
#else
    return 0;
#endif
}

/* Numbers that tell the environments apart, computed when it runs: 1 and less than half of its last
 * place more, and less; a third, whose last bit is rounded up; a subnormal product. */
struct probe {
    float up, down, third, product;
};
static struct probe probe(void) {
    static volatile float one = 1, less = 0x1p-26f, three = 3, small = 0x1p-100f;
    return (struct probe){one + less, -one - less, one / three, small * (0x1p-40f * one)};
}

static void assert_kept(const struct probe *before) {
    const struct probe now = probe();
    assert_memory_equal(&now, before, sizeof now);
}

/* Four tensors of binary32 in [-1, 1), those of the second layer times 2^-126: mostly subnormal. */
static struct kvc_cache *make_cache(void) {
    enum { TOKENS = 300, VALUES = TOKENS * 2 * 32 };
    struct builder b = simple(KVC_F32, TOKENS, 2, 2, 32);
    for (size_t t = 0; t < 4; t++) {
        float *values = b.m->block[3 * t]; /* a text and its input follow */
        for (size_t i = 0; i < VALUES; i++)
            values[i] = (float)((int)(mix(t << 32 | i) >> 40) - (1 << 23)) *
                        (t < 2 ? 0x1p-23f : 0x1p-149f);
    }
    return finish(&b);
}

static void packs_and_decodes_alike(void **state) {
    (void)state;
    static const char *const lossy[] = {
        "split",
        "lowrank:r=3",
        "tail:4,outlier:0.05,quant:kivi:bits=2:g=16,lowrank:r=2",
        "quant:token:bits=5:g=7:sym,quant:token:bits=2:clip",
        "outlier:0.1,quant:kcvt:bits=8",
        "tail:3,merge:slerp:from=0:keep=0.1,quant:token:bits=6:g=16",
        "sink:4,center,basis,steps,code:step=0.1",
    };
    struct kvc_cache *c = make_cache();
    fenv_t before;
    fegetenv(&before);
    const struct probe usual = probe();
    unsigned n_tried = 0;
    for (size_t i = 0; i < sizeof lossy / sizeof lossy[0]; i++) {
        const struct kvc_pack_options options = {.recipe = recipe_of(lossy[i]), .threads = 2};
        struct kvc_error e;
        struct kvc_buffer usually = pack(c, &options, NULL);
        for (enum environment env = 0; env < ENVIRONMENTS; env++) {
            struct kvc_input in;
            uint8_t *rows[4];
            size_t n[4];
            if (!set(env)) continue;
            const struct probe mine = probe();
            if (memcmp(&mine, &usual, sizeof mine) == 0) continue; /* as under some emulators */
            n_tried++;
            struct kvc_buffer packed = pack(c, &options, NULL);
            struct kvc_cache *back = open_bytes(&in, usually.data, usually.n);
            const int status = kvc_container_check(back, 2, &e);
            for (uint32_t t = 0; t < 4; t++) rows[t] = rows_of(back, t, &n[t]);
            assert_kept(&mine);
            fesetenv(&before);
            if (status) fail_msg("%s, %d: %s", lossy[i], (int)env, e.message);
            assert_int_equal(packed.n, usually.n);
            assert_memory_equal(packed.data, usually.data, usually.n);
            for (uint32_t t = 0; t < 4; t++) {
                size_t size;
                uint8_t *want = rows_of(back, t, &size);
                assert_int_equal(n[t], size);
                assert_memory_equal(rows[t], want, size);
                free(want);
                free(rows[t]);
            }
            kvc_cache_free(back);
            free(packed.data);
        }
        free(usually.data);
    }
    kvc_cache_free(c);
    assert_true(n_tried > 0);
}

/* Files with a profile, whose bases and predictors are made when a block is first read, and one
 * with a namespace of all facts. */
static void checks_alike(void **state) {
    (void)state;
    static const char *const files[] = {
        "tests/golden/profile-v1.kvc",
        "tests/golden/predict-v1.kvc",
        "tests/golden/cross-v1.kvc",
        "tests/golden/merge-heads-v1.kvc",
        "tests/conformance/files/good-space-known.kvc",
        "tests/conformance/files/good-split-models.kvc",
    };
    fenv_t before;
    fegetenv(&before);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        for (enum environment env = 0; env < ENVIRONMENTS; env++) {
            struct kvc_input in;
            struct kvc_error e;
            if (!set(env)) continue;
            int status = kvc_input_open(&in, files[i], &e);
            struct kvc_cache *c = status ? NULL : kvc_container_open(&in, &e);
            if (c) kvc_container_set_profile(c, NULL);
            status = !c || kvc_container_check(c, 1, &e);
            fesetenv(&before);
            if (status) fail_msg("%s, %d: %s", files[i], (int)env, e.message);
            kvc_cache_free(c);
            kvc_input_close(&in);
        }
}

static void reads_numbers_alike(void **state) {
    (void)state;
    fenv_t before;
    fegetenv(&before);
    for (enum environment env = 0; env < ENVIRONMENTS; env++) {
        double tenth = 0, third = 0;
        char text[32];
        if (!set(env)) continue;
        const int status = kvc_number_read("0.1", &tenth) || kvc_number_read("-0.3", &third);
        kvc_number_print(text, sizeof text, 2, 0.125);
        fesetenv(&before);
        assert_int_equal(status, 0);
        assert_true(tenth == 0.1 && third == -0.3);
        assert_string_equal(text, "0.12");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packs_and_decodes_alike),
        cmocka_unit_test(checks_alike),
        cmocka_unit_test(reads_numbers_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
