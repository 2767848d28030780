/* test_vllm.c: folders of vLLM's ExampleConnector in memory: names, every shape and back, outputs
 * that fail. */
#include "tests/unit/arrays_support.h"

#include "formats/engines/vllm.h"

enum { L = 11, T = 12, H = 3, D = 4 };

static uint8_t values[L * 2 * T * H * D * 2];

static struct kvc_cache *make_cache(struct kvc_input *in) {
    for (size_t i = 0; i < sizeof values; i++) values[i] = (uint8_t)(i * 37 + i / 251);
    return raw_cache(in, values, sizeof values, "f16", L, T, H, D, KVC_PAIRING_INTERLEAVED);
}

static void layers_in_names(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t layer;
    } names[] = {{"model.layers.0.self_attn.attn.safetensors", 0},
                 {"a.7/model.layers.31.self_attn.attn.safetensors", 31},
                 {"transformer.h.12.attn.3.safetensors", 12},
                 {"x.007.safetensors", 7},
                 {"x.999999.y", 999999},
                 {"x.1000000.y", -1},
                 {"x.5a.6.y", 6},
                 {"x.5", -1},
                 {"5.x", -1},
                 {"layer5.safetensors", -1},
                 {"", -1}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        uint32_t layer = 0;
        const int found = kvc_vllm_layer(names[i].name, &layer);
        if (found != (names[i].layer >= 0) || (found && layer != names[i].layer))
            fail_msg("%s: %u", names[i].name, layer);
    }
    assert_int_equal(kvc_vllm_shape_of("t-h-2d"), KVC_VLLM_PACKED);
    assert_int_equal(kvc_vllm_shape_of("2-T-HD"), KVC_VLLM_ROWS);
    assert_int_equal(kvc_vllm_shape_of("T-H-2"), KVC_VLLM_SHAPES);
}

/* Each value of a block of a CPU has a place of its own. */
static void cpu_blocks_are_permutations(void **state) {
    (void)state;
    for (uint64_t n = 1; n < 9; n++) {
        uint8_t seen[8 * H * 2 * D] = {0};
        for (uint64_t head = 0; head < H; head++)
            for (uint64_t x = 0; x < 2 * n * D; x++) {
                const uint64_t at = kvc_vllm_cpu_value(x, head, H, D);
                assert_true(at < n * H * 2 * D);
                assert_int_equal(seen[at]++, 0);
            }
    }
}

static const char *const targets[] = {"shape=T-H-2D", "shape=T-2-H-D", "shape=2-T-HD",
                                      "cpu-block=4",  "cpu-block=3",   "name=a.{i}.b"};

/* What is written says its shape, its pairing and so on, and comes back without options. */
static void shapes_come_back(void **state) {
    (void)state;
    struct kvc_input in, again;
    struct kvc_bundle b;
    struct kvc_error e;
    struct kvc_cache *c = make_cache(&in);
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        const struct kvc_export_options o = {.own = targets[i], .pairing = KVC_PAIRING_INTERLEAVED};
        const struct kvc_format *format;
        struct kvc_buffer tar = {0};
        struct kvc_sink out = kvc_sink_buffer(&tar);
        if (kvc_export(&kvc_format_vllm, c, &o, &out, &e))
            fail_msg("%s: %s", targets[i], e.message);
        kvc_input_memory(&again, "tar", tar.data, tar.n);
        if (kvc_bundle_archive(&b, &again, &e)) fail_msg("%s", e.message);
        struct kvc_cache *back = kvc_import(&b, NULL, &format, &e);
        if (!back) fail_msg("%s: %s", targets[i], e.message);
        assert_ptr_equal(format, &kvc_format_vllm);
        assert_int_equal(b.n, L);
        assert_int_equal(back->meta.facts.rope.pairing, KVC_PAIRING_INTERLEAVED);
        /* both sizes are no multiple of 2D */
        assert_int_equal(back->n_members, strncmp(targets[i], "cpu", 3) == 0 ? 0 : L);
        assert_same_cache(c, back);
        kvc_cache_free(back);
        kvc_bundle_close(&b);
        free(tar.data);
    }
    kvc_cache_free(c);
    kvc_input_close(&in);
}

/* A sink that takes so many bytes. */
static int write_until(void *state, const void *data, size_t n, struct kvc_error *e) {
    size_t *left = state;
    (void)data;
    if (n > *left) return kvc_fail(e, KVC_ERR_IO, "full");
    *left -= n;
    return 0;
}

static void outputs_that_fail(void **state) {
    (void)state;
    struct kvc_input in;
    struct kvc_cache *c = make_cache(&in);
    size_t refused = 0;
    for (size_t room = 0;; room += 509) {
        const struct kvc_export_options o = {.own = targets[room % 5]};
        struct kvc_error e = {.code = KVC_OK};
        size_t left = room;
        struct kvc_sink out = {.write = write_until, .state = &left};
        if (!kvc_export(&kvc_format_vllm, c, &o, &out, &e)) break;
        assert_int_equal(e.code, KVC_ERR_IO);
        assert_string_equal(e.message, "full");
        refused++;
    }
    assert_true(refused > 5);
    kvc_cache_free(c);
    kvc_input_close(&in);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_in_names),
        cmocka_unit_test(cpu_blocks_are_permutations),
        cmocka_unit_test(shapes_come_back),
        cmocka_unit_test(outputs_that_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
