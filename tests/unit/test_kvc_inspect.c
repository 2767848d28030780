/* test_kvc_inspect.c: kvc_inspect.h and kvc_comparing.h as a program that links libkvc uses them.
 * Not for the output of kvc-dump and kvc-diff (tests/cli). */
#include "kvc_support.h"

#include "formats/api/kvc_inspect.h"

static struct kvc_file *packed_sample(struct memory *m, struct kvc_error *e) {
    const struct kvc_write_options pack = {.size = sizeof pack, .recipe = "zstd"};
    struct kvc_file *f = sample(e);
    assert_int_equal(kvc_file_pack(f, &pack, append, m, e), 0);
    kvc_file_close(f);
    f = kvc_file_open_memory(m->data, m->n, NULL, e);
    assert_non_null(f);
    return f;
}

static void facts(void **state) {
    struct kvc_error *e = kvc_error_new();
    struct memory m = {0};
    struct kvc_file *f = packed_sample(&m, e);
    struct kvc_file_facts facts = {.size = sizeof facts};
    struct kvc_meta_value v = {.size = sizeof v};
    uint64_t extras = 1;
    (void)state;
    assert_int_equal(kvc_file_describe(f, &facts), 0);
    assert_int_equal(facts.tokens, 16);
    assert_int_equal(facts.layers, 30);
    assert_int_equal(facts.tensors, 60);
    assert_true(facts.lossless && !facts.heads_unknown && !facts.scaled);
    assert_null(facts.profile);
    facts.size = 0;
    assert_int_equal(kvc_file_describe(f, &facts), -1);
    assert_int_equal(kvc_file_extras(f, &extras, e), 0);
    assert_int_equal(extras, 0);
    assert_int_equal(kvc_file_meta_value(f, "source.bytes", &v), 0);
    assert_string_equal(v.type, "u64");
    assert_true(v.u64 > 0 && !v.text && !v.bytes);
    assert_int_equal(kvc_file_meta_value(f, "recipe", &v), 0);
    assert_string_equal(v.text, "zstd");
    assert_int_equal(kvc_file_meta_value(f, "no.such.key", &v), -1);
    assert_true(!v.type && !v.text && !v.u64);
    v.size = 0;
    assert_int_equal(kvc_file_meta_value(f, "recipe", &v), -1);
    kvc_file_close(f);
    free(m.data);
    kvc_error_free(e);
}

static void parts_and_cells(void **state) {
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *f = sample(e);
    struct kvc_part_info part = {.size = sizeof part};
    struct kvc_layer_info layer = {.size = sizeof layer};
    struct kvc_tensor_more more = {.size = sizeof more};
    struct kvc_cell_info cell = {.size = sizeof cell};
    char text[8] = "before";
    (void)state;
    assert_int_equal(kvc_file_part(f, 0, &part), 0);
    assert_string_equal(part.kind, "live");
    assert_true(part.cells == 16 && part.first == 0 && part.last == 15 && part.ascending);
    assert_int_equal(kvc_file_part(f, 1, &part), -1);
    assert_int_equal(kvc_file_layer(f, 29, &layer), 0);
    assert_true(layer.part == 0 && layer.layer == 29 && layer.tensor[1] != KVC_NO_NUMBER);
    assert_int_equal(kvc_file_layer(f, 30, &layer), -1);
    assert_int_equal(kvc_file_tensor_more(f, layer.tensor[1], &more), 0);
    assert_string_equal(more.label, "layer 29 V");
    assert_true(more.layer == 29 && more.bytes == 16 * 384 && !more.stored && !more.pipeline);
    assert_int_equal(kvc_file_tensor_more(f, 60, &more), -1);
    assert_int_equal(kvc_file_cell(f, 0, 15, &cell), 0);
    assert_int_equal(cell.position, 15);
    assert_int_equal(kvc_file_cell(f, 0, 16, &cell), -1);
    assert_int_equal(kvc_file_cell(f, 1, 0, &cell), -1);
    assert_int_equal(kvc_file_transform(f, 0, text, sizeof text, e), 0);
    assert_string_equal(text, "");
    assert_int_equal(kvc_file_transform(f, 60, text, sizeof text, e), -1);
    int64_t *at = kvc_file_token_positions(f, e);
    assert_int_equal(at[15], 15);
    free(at);
    kvc_file_close(f);
    kvc_error_free(e);
}

/* The pieces of a file are all of it. */
static void pieces(void **state) {
    struct kvc_error *e = kvc_error_new();
    struct memory m = {0}, source = file_bytes(SAMPLE);
    struct kvc_file *file[2] = {sample(e), packed_sample(&m, e)};
    struct kvc_piece_section section[2] = {{.size = sizeof section[0]}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct kvc_file_facts facts = {.size = sizeof facts};
        struct kvc_piece_info x = {.size = sizeof x};
        uint64_t end = 0, sections = 0, tensors = 0;
        kvc_file_describe(file[i], &facts);
        assert_true(facts.pieces > 60);
        for (uint64_t p = 0; p < facts.pieces; p++) {
            assert_int_equal(kvc_file_piece(file[i], p, &x, section, 2, e), 0);
            if (x.sections) assert_true(section[0].type && section[0].coder);
            end = i ? x.offset + x.bytes : end + x.bytes;
            sections += x.sections;
            tensors += x.tensor != KVC_NO_NUMBER;
        }
        assert_int_equal(tensors, 60);
        if (i) assert_true(end <= m.n && sections >= 60);
        else assert_true(end == source.n && !sections);
        assert_int_equal(kvc_file_piece(file[i], facts.pieces, &x, NULL, 0, e), -1);
        kvc_file_close(file[i]);
    }
    free(m.data);
    free(source.data);
    kvc_error_free(e);
}

static void count(void *state, size_t i) {
    size_t *n = state;
    assert_int_equal(i, *n);
    ++*n;
}

static void values(void **state) {
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *f = sample(e);
    const uint32_t tensor[2] = {0, 1}, wrong = 60;
    struct kvc_value_spread spread[2] = {{.size = sizeof spread[0]}};
    float row[2 * 192];
    size_t n = 0;
    (void)state;
    assert_int_equal(kvc_file_read_floats(f, 0, 14, 2, row, sizeof row, e), 0);
    assert_true(row[0] != 0 && row[192] != row[0]);
    assert_int_equal(kvc_file_read_floats(f, 0, 15, 2, row, sizeof row, e), -1);
    assert_int_equal(kvc_file_read_floats(f, 60, 0, 1, row, sizeof row, e), -1);
    assert_int_equal(kvc_file_value_spread(f, tensor, 2, 1000, count, &n, spread, e), 0);
    assert_int_equal(n, 2);
    assert_true(spread[1].rows == 16 && spread[1].channels == 192 && !spread[1].error);
    assert_true(spread[0].rms[0] > 0);
    kvc_value_spread_free(spread, 2);
    assert_int_equal(kvc_file_value_spread(f, &wrong, 1, 1000, NULL, NULL, spread, e), -1);
    kvc_value_spread_free(spread, 1);
    kvc_file_close(f);
    kvc_error_free(e);
}

static void fact(void *state, const char *where, const char *what, const char *a, const char *b,
                 const char *note) {
    (void)where, (void)a, (void)b, (void)note;
    if (strcmp(what, "positions") == 0) ++*(int *)state;
}

/* A cache and its first 8 tokens: values are the same, positions are not. */
static void steps(void **state) {
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *a = sample(e);
    const struct kvc_select_options half = {.size = sizeof half, .end = 8};
    struct kvc_compare_how how = {.size = sizeof how};
    struct kvc_file *b = kvc_file_select(a, &half, e);
    struct kvc_comparing *c = kvc_comparing_new(a, b, &how, NULL, e);
    const struct kvc_compared *pair;
    struct kvc_difference all, *head;
    struct kvc_error_sums sums = {.size = sizeof sums};
    struct kvc_attention_measures m = {.size = sizeof m};
    int64_t position[8];
    char text[64];
    int differ = 0;
    size_t n = 0;
    (void)state;
    assert_non_null(c);
    assert_int_equal(kvc_comparing_facts(c, fact, &differ, e), 0);
    assert_int_equal(differ, 1);
    assert_int_equal(kvc_comparing_align(c, NULL, NULL, e), 0);
    while ((pair = kvc_comparing_pair(c, n++)) != NULL) {
        assert_true(pair->heads == 3 && pair->rows == 8 && pair->channels == 192);
        assert_non_null(head = kvc_comparing_tensor(c, pair, &all, &sums, e));
        assert_true(all.values == 8 * 192 && !all.differ && head[2].values == 8 * 64);
        free(head);
        kvc_error_sums_free(&sums);
    }
    assert_int_equal(n, 61);
    pair = kvc_comparing_pair(c, 59);
    kvc_compared_label(kvc_comparing_pair(c, 57), pair, text, sizeof text);
    assert_string_equal(text, "layers 28-29 V");
    assert_int_equal(kvc_comparing_positions(c, pair, position, sizeof position, e), 0);
    assert_int_equal(position[7], 7);
    assert_null(kvc_comparing_attended(c, 0, 0, &m));
    kvc_comparing_free(c);

    how.attention = 1;
    assert_null(kvc_comparing_new(a, b, &how, NULL, e));
    assert_int_equal(kvc_error_need(e), KVC_NEED_QUERIES);
    how = (struct kvc_compare_how){.size = sizeof how, .first = 100};
    assert_null(kvc_comparing_new(a, b, &how, NULL, e));
    assert_int_equal(kvc_error_need(e), KVC_NEED_POSITIONS);
    const uint8_t none[1] = {0};
    how = (struct kvc_compare_how){.size = sizeof how, .layers = none, .n_layers = 1};
    assert_null(kvc_comparing_new(a, b, &how, NULL, e));
    assert_int_equal(kvc_error_need(e), KVC_NEED_LAYERS);
    kvc_file_close(b);
    kvc_file_close(a);
    kvc_error_free(e);
}

/* Steps that are asked for too early, of what is not there, or of nothing. */
static void odd_steps(void **state) {
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *a = sample(e);
    const uint8_t first[1] = {1};
    const struct kvc_select_options one = {.size = sizeof one, .layers = first, .n_layers = 1};
    struct kvc_file *b = kvc_file_select(a, &one, e);
    const struct kvc_compare_how how = {.size = sizeof how};
    struct kvc_attention_measures m = {.size = sizeof m, .queries = 1};
    struct kvc_attention_weights w = {.size = sizeof w};
    struct kvc_error_sums sums = {.size = sizeof sums};
    struct kvc_head_sample taken = {.size = sizeof taken};
    struct kvc_difference all;
    uint64_t at;
    (void)state;
    for (int by = KVC_GROUP_NONE; by <= KVC_GROUP_CHANNEL; by++) {
        const struct kvc_compare_detail detail = {.size = sizeof detail,
                                                  .by = (enum kvc_group_by)by};
        struct kvc_comparing *c = kvc_comparing_new(a, b, &how, &detail, e);
        assert_non_null(c);
        const struct kvc_compared *pair = kvc_comparing_pair(c, 0), *alone;
        for (size_t i = 0; (alone = kvc_comparing_pair(c, i)) && alone->heads;) i++;
        assert_non_null(alone);
        assert_null(kvc_comparing_tensor(c, pair, &all, &sums, e)); /* before they are aligned */
        assert_int_equal(kvc_error_code(e), KVC_ERR_USAGE);
        kvc_error_sums_free(&sums);
        assert_int_equal(kvc_comparing_sample(c, pair, 0, 5, 5, &taken, e), -1);
        kvc_head_sample_free(&taken);
        assert_int_equal(kvc_comparing_align(c, NULL, NULL, e), 0);
        assert_int_equal(kvc_comparing_sample(c, pair, 0, 5, 5, &taken, e), 0);
        assert_int_equal(taken.n, 5);
        kvc_head_sample_free(&taken);
        assert_int_equal(kvc_comparing_sample(c, pair, 0, 0, 0, &taken, e), 0);
        assert_true(!taken.n && taken.values == pair->rows * pair->channels / pair->heads);
        kvc_head_sample_free(&taken);
        assert_int_equal(kvc_comparing_sample(c, pair, pair->heads, 5, 5, &taken, e), -1);
        assert_int_equal(kvc_error_code(e), KVC_ERR_USAGE);
        kvc_head_sample_free(&taken);
        assert_null(kvc_comparing_tensor(c, alone, &all, &sums, e)); /* one cache has it */
        assert_int_equal(kvc_error_code(e), KVC_ERR_USAGE);
        kvc_error_sums_free(&sums);
        assert_int_equal(kvc_comparing_sample(c, alone, 0, 5, 5, &taken, e), -1);
        kvc_head_sample_free(&taken);
        kvc_comparing_free(c);
    }
    kvc_comparing_attended_all(NULL, &m);
    assert_true(!m.queries);
    assert_null(kvc_comparing_attended(NULL, 0, 0, &m));
    assert_null(kvc_comparing_worst(NULL, &at, &m));
    assert_int_equal(kvc_comparing_query(NULL, 0, &w, e), 0);
    assert_int_equal(w.n, 0);
    assert_int_equal(kvc_shared_text(NULL, 0, NULL, 0), 0);
    kvc_file_close(b);
    kvc_file_close(a);
    kvc_error_free(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(facts),  cmocka_unit_test(parts_and_cells), cmocka_unit_test(pieces),
        cmocka_unit_test(values), cmocka_unit_test(steps),           cmocka_unit_test(odd_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
