/* test_profile_refused.c: profile files that are refused: metadata, tensors, predictors, headers,
 * cut and changed bytes. Not for caches that a profile does not fit (test_profile.c). */
#include "profile_support.h"

static void refuse(const uint8_t *bytes, size_t n, enum kvc_code code, const char *what) {
    struct kvc_error e = {.code = KVC_OK};
    struct kvc_profile *p = kvc_profile_open_memory(bytes, n, &e);
    if (p) fail_msg("%s: taken", what);
    if (e.code != code || strlen(e.message) < 10)
        fail_msg("%s: code %d: %s", what, (int)e.code, e.message);
}

static void refuse_maker(struct maker *m, enum kvc_code code, const char *what) {
    size_t n;
    uint8_t *bytes = render(m, &n);
    refuse(bytes, n, code, what);
    free(bytes);
    free_maker(m);
}

static void wrong_metadata(void **state) {
    (void)state;
    static const struct {
        const char *name, *value;
        enum kvc_code code;
    } cases[] = {
        {"kvc.profile", "2", KVC_ERR_UNSUPPORTED},
        {"kvc.profile", "00", KVC_ERR_UNSUPPORTED},
        {"kvc.profile", "", KVC_ERR_UNKNOWN_FORMAT},
        {"kvc.profile", "0 and a long tail of other words", KVC_ERR_UNSUPPORTED},
        {"metric", "fischer", KVC_ERR_UNSUPPORTED},
        {"metric", "Fisher", KVC_ERR_UNSUPPORTED},
        {"metric", "", KVC_ERR_UNSUPPORTED},
        {"model.layers", "0", KVC_ERR_DAMAGED},
        {"model.layers", "03", KVC_ERR_DAMAGED},
        {"model.layers", "3 layers", KVC_ERR_DAMAGED},
        {"model.layers", " 3", KVC_ERR_DAMAGED},
        {"model.layers", "4097", KVC_ERR_DAMAGED},
        {"model.layers", "-1", KVC_ERR_DAMAGED},
        {"model.layers", "", KVC_ERR_DAMAGED},
        {"model.layers", "three", KVC_ERR_DAMAGED},
        {"model.layers", "99999999999999999999999", KVC_ERR_DAMAGED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct maker m = make_good();
        key_of(&m, cases[i].name)->value = cases[i].value;
        refuse_maker(&m, cases[i].code, cases[i].value);
    }
    static const char *const recalls[] = {"",    "-5",    " 512", "+512", "0512", "512 tokens",
                                          "inf", "1e300", "nan",  "00",   "65537"};
    for (size_t i = 0; i < sizeof recalls / sizeof recalls[0]; i++) {
        struct maker m = make_good();
        m.key[m.keys++] = (struct key){"metric.recall", recalls[i]};
        refuse_maker(&m, KVC_ERR_DAMAGED, recalls[i]);
    }
    static const char *const right[] = {"0", "512", "65536"};
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
        struct maker m = make_good();
        m.key[m.keys++] = (struct key){"metric.recall", right[i]};
        struct kvc_profile *p = must_open(&m);
        assert_int_equal(kvc_profile_recall(p), strtol(right[i], NULL, 10));
        kvc_profile_free(p);
        free_maker(&m);
    }
    struct maker m = make_good();
    key_of(&m, "kvc.profile")->name = "kvc.profiles";
    refuse_maker(&m, KVC_ERR_UNKNOWN_FORMAT, "another file of safetensors");
    m = make_good();
    key_of(&m, "model.layers")->name = "layers";
    refuse_maker(&m, KVC_ERR_DAMAGED, "no number of layers");
    m = make_good();
    m.key[m.keys++] = (struct key){"metric", "fisher"};
    refuse_maker(&m, KVC_ERR_DAMAGED, "a key that stands twice");
    m = make_good();
    struct tensor *t = add_tensor(&m, "layers.0.k.mean", "F32", 2, HEADS, DIM, 1);
    assert_int_equal(t->size, HEADS * DIM * 4);
    refuse_maker(&m, KVC_ERR_DAMAGED, "a tensor that stands twice");
    m = make_good();
    for (size_t i = 0; i < m.tensors; i++) m.tensor[i].name[0] = 'x';
    refuse_maker(&m, KVC_ERR_DAMAGED, "nothing of any layer");
    /* as many layers as there may be, of which two say something */
    m = make_good();
    key_of(&m, "model.layers")->value = "4096";
    struct kvc_profile *p = must_open(&m);
    assert_int_equal(kvc_profile_layers(p), 4096);
    assert_null(part_of(p, 4095, KVC_ROLE_K, KVC_PAIRING_HALVES, 1));
    kvc_profile_free(p);
    free_maker(&m);
}

/* A reader that does not know a required feature names it; it ignores texts that it does not know.
 */
static void required_features(void **state) {
    (void)state;
    static const struct {
        const char *text, *named;
    } cases[] = {{"lanes", "'lanes'"},
                 {"lanes,more", "'lanes'"},
                 {",", "''"},
                 {" ", "' '"},
                 {"a-name-of-more-than-sixty-four-bytes-which-is-cut-at-sixty-four-of-them",
                  "'a-name-of-more-than-sixty-four-bytes-which-is-cut-at-sixty-four-'"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct maker m = make_good();
        struct kvc_error e = {.code = KVC_OK};
        size_t n;
        m.key[m.keys++] = (struct key){"requires", cases[i].text};
        uint8_t *bytes = render(&m, &n);
        assert_null(kvc_profile_open_memory(bytes, n, &e));
        assert_int_equal(e.code, KVC_ERR_UNSUPPORTED);
        if (!strstr(e.message, cases[i].named)) fail_msg("%s", e.message);
        free(bytes);
        free_maker(&m);
    }
    struct maker m = make_good();
    m.key[m.keys++] = (struct key){"requires", ""};
    m.key[m.keys++] = (struct key){"require", "lanes"};
    key_of(&m, "metric")->name = "metrics";
    struct kvc_profile *p = must_open(&m);
    assert_int_equal(kvc_profile_metric(p), KVC_METRIC_COVARIANCE);
    kvc_profile_free(p);
    free_maker(&m);
}

static void wrong_tensors(void **state) {
    (void)state;
    static const char *const names[] = {"layers.0.rope",          "layers.0.k.mean",
                                        "layers.0.k.basis",       "layers.0.k.scale",
                                        "layers.0.v.mean",        "layers.0.v.basis",
                                        "layers.0.v.scale",       "layers.0.queries",
                                        "layers.0.queries.scale", "layers.1.v.mean",
                                        "layers.1.v.basis",       "layers.1.v.scale"};
    static const char *const dtypes[] = {"I8", "F32", "F64", "F16", "U8", "BF16", ""};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
            struct maker m = make_good();
            struct tensor *t = tensor_of(&m, names[i]);
            if (strcmp(t->dtype, dtypes[d]) == 0) {
                free_maker(&m);
                continue;
            }
            t->dtype = dtypes[d];
            refuse_maker(&m, KVC_ERR_DAMAGED, names[i]);
        }
        for (unsigned d = 0; d < 3; d++)
            for (unsigned how = 0; how < 5;
                 how++) { /* a dimension that is another; sizes with it, or not */
                static const uint64_t others[] = {0, 1, 0, UINT64_C(1) << 62, 1 << 21};
                struct maker m = make_good();
                struct tensor *t = tensor_of(&m, names[i]);
                const uint64_t old = t->dim[d], other = how == 2 ? old + 1 : others[how];
                if (d >= t->rank || old == other ||
                    (how == 2 && strcmp(names[i], "layers.0.rope") == 0)) {
                    free_maker(&m); /* rope: below */
                    continue;
                }
                t->dim[d] = other;
                if (how == 2) {
                    free(t->bytes);
                    t->size = t->size / old * other;
                    t->bytes = calloc(t->size, 1);
                }
                refuse_maker(&m, KVC_ERR_DAMAGED, names[i]);
            }
        for (int d = -1; d <= 1; d += 2) { /* a rank that is another */
            struct maker m = make_good();
            struct tensor *t = tensor_of(&m, names[i]);
            if (d < 0 && t->rank > 1) t->dim[t->rank - 2] *= t->dim[t->rank - 1];
            t->rank = (unsigned)((int)t->rank + d);
            refuse_maker(&m, KVC_ERR_DAMAGED, names[i]);
        }
        struct maker m = make_good(); /* not there */
        snprintf(tensor_of(&m, names[i])->name, sizeof m.tensor[0].name, "gone");
        if (strstr(names[i], "basis") || strcmp(names[i], "layers.0.rope") == 0 ||
            strcmp(names[i], "layers.0.queries") == 0) {
            kvc_profile_free(must_open(&m)); /* then the others count for nothing */
            free_maker(&m);
        } else {
            refuse_maker(&m, KVC_ERR_DAMAGED, names[i]);
        }
    }
    static const float wild[] = {NAN, INFINITY, -INFINITY, 0x1p+100f, -0x1p+100f, 3e38f};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        for (size_t w = 0; w < sizeof wild / sizeof wild[0]; w++) {
            struct maker m = make_good();
            struct tensor *t = tensor_of(&m, names[i]);
            if (strcmp(t->dtype, "F32") != 0) {
                free_maker(&m);
                continue;
            }
            put_f32(t, t->size / 4 - 1, wild[w]);
            refuse_maker(&m, KVC_ERR_DAMAGED, names[i]);
        }
    static const char *const scales[] = {"layers.0.k.scale", "layers.0.v.scale",
                                         "layers.0.queries.scale"};
    for (size_t i = 0; i < 3; i++) {
        struct maker m = make_good();
        put_f32(tensor_of(&m, scales[i]), 1, -0.001f);
        refuse_maker(&m, KVC_ERR_DAMAGED, "a scale below 0");
    }
}

/* A profile with predictors: V of layer 1, of 4 channels, is predicted from K and V of layer 0, of
 * 16 and 10. */
static struct maker make_predicting(void) {
    struct maker m = make_good();
    m.key[m.keys++] = (struct key){"predictor.back", "1"};
    struct tensor *t = add_tensor(&m, "layers.0.k.gain", "F32", 2, HEADS, DIM, 1);
    for (size_t i = 0; i < HEADS * DIM; i++) put_f32(t, i, (float)i);
    t = add_tensor(&m, "layers.0.v.gain", "F32", 2, HEADS, DIM_V, 1);
    for (size_t i = 0; i < HEADS * DIM_V; i++) put_f32(t, i, 100 + (float)i);
    t = add_tensor(&m, "layers.1.v.predictor", "I8", 2, DIM_1, HEADS * DIM + HEADS * DIM_V, 1);
    for (size_t i = 0; i < t->size; i++) t->bytes[i] = (uint8_t)i;
    t = add_tensor(&m, "layers.1.v.predictor.scale", "F32", 2, 1, DIM_1, 1);
    for (size_t i = 0; i < DIM_1; i++) put_f32(t, i, 1 + (float)i);
    return m;
}

static void predictors(void **state) {
    (void)state;
    struct kvc_error e;
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        struct maker m = make_predicting();
        struct kvc_profile *p = must_open(&m);
        const enum kvc_pairing pairing = interleaved ? KVC_PAIRING_INTERLEAVED : KVC_PAIRING_HALVES;
        const struct kvc_predictor *x;
        const struct kvc_small *s;
        assert_true(kvc_profile_predicts(p));
        assert_int_equal(kvc_profile_predictor(p, 0, KVC_ROLE_V, pairing, &x, &e), 0);
        assert_null(x);
        assert_int_equal(kvc_profile_predictor(p, 1, KVC_ROLE_V, pairing, &x, &e), 0);
        assert_int_equal(x->n, 2);
        const int8_t *const weights = x->matrix.weights;
        assert_int_equal(x->matrix.outputs, DIM_1);
        /* of 26 channels: each tensor's inputs are rounded up */
        assert_int_equal(x->matrix.inputs, INPUTS);
        assert_int_equal(x->input[1].at, HEADS * DIM);
        assert_int_equal(kvc_profile_small(p, 0, KVC_ROLE_K, pairing, &s, &e), 0);
        for (size_t d = 0; d < HEADS * DIM; d++) { /* channels of K are in the cache's order */
            const size_t to = d / DIM * DIM + channel(d % DIM, HALF, pairing);
            assert_true(s->gain[to] >= (float)d && s->gain[to] <= (float)d);
            for (size_t i = 0; i < DIM_1; i++)
                assert_int_equal(weights[kvc_dot_place(INPUTS, i, to)], (int8_t)(i * 26 + d));
        }
        for (size_t i = 0; i < DIM_1; i++)
            for (size_t j = 16; j < INPUTS; j++)
                assert_int_equal(weights[kvc_dot_place(INPUTS, i, j)],
                                 j < 26 ? (int8_t)(i * 26 + j) : 0);
        assert_int_equal(kvc_profile_small(p, 1, KVC_ROLE_V, pairing, &s, &e), 0);
        assert_null(s);
        kvc_profile_free(p);
        free_maker(&m);
    }
    /* version 0 is 1 without predictors, and so is 1 that does not say how many layers back */
    for (int i = 0; i < 2; i++) {
        struct maker m = make_predicting();
        if (i) key_of(&m, "predictor.back")->name = "predictor";
        else key_of(&m, "kvc.profile")->value = "0";
        struct kvc_profile *p = must_open(&m);
        assert_false(kvc_profile_predicts(p));
        kvc_profile_free(p);
        free_maker(&m);
    }
    static const char *const backs[] = {"", "0", "8", "-1", "one", "01", "1x"};
    for (size_t i = 0; i < sizeof backs / sizeof backs[0]; i++) {
        struct maker m = make_predicting();
        key_of(&m, "predictor.back")->value = backs[i];
        refuse_maker(&m, KVC_ERR_DAMAGED, backs[i]);
    }
    struct maker m = make_predicting();
    tensor_of(&m, "layers.1.v.predictor")->dim[1]--;
    tensor_of(&m, "layers.1.v.predictor")->size -= DIM_1;
    refuse_maker(&m, KVC_ERR_DAMAGED, "an input too few");
    static const struct {
        const char *tensor;
        float value;
    } numbers[] = {{"layers.0.k.gain", NAN},
                   {"layers.0.k.gain", -1},
                   {"layers.0.v.gain", 0x1p40f},
                   {"layers.1.v.predictor.scale", 0x1p40f},
                   {"layers.1.v.predictor.scale", INFINITY},
                   {"layers.1.v.mean", 0x1p41f}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        m = make_predicting();
        put_f32(tensor_of(&m, numbers[i].tensor), 1, numbers[i].value);
        refuse_maker(&m, KVC_ERR_DAMAGED, numbers[i].tensor);
    }
    static const char *const missing[] = {"layers.1.v.predictor.scale", "layers.0.v.gain",
                                          "layers.0.k.mean"};
    for (size_t i = 0; i < sizeof missing / sizeof missing[0]; i++) {
        m = make_predicting();
        tensor_of(&m, missing[i])->name[0] = 'x';
        refuse_maker(&m, KVC_ERR_DAMAGED, missing[i]);
    }
    m = make_predicting(); /* in version 0 they are other tensors, which mean nothing */
    key_of(&m, "kvc.profile")->value = "0";
    struct kvc_profile *p = must_open(&m);
    assert_false(kvc_profile_predicts(p));
    kvc_profile_free(p);
    free_maker(&m);
}

static void wrong_rope(void **state) {
    (void)state;
    static const double angles[] = {1.0000001, -0.0001, NAN, INFINITY, 2};
    for (size_t i = 0; i < sizeof angles / sizeof angles[0]; i++) {
        struct maker m = make_good();
        put_f64(tensor_of(&m, "layers.0.rope"), i % HALF, angles[i]);
        refuse_maker(&m, KVC_ERR_UNSUPPORTED, "an angle");
    }
    static const double right[] = {1, 0, 0x1p-1070};
    for (size_t i = 0; i < 3; i++) {
        struct maker m = make_good();
        put_f64(tensor_of(&m, "layers.0.rope"), i, right[i]);
        struct kvc_profile *p = must_open(&m);
        assert_true(part_of(p, 0, KVC_ROLE_K, KVC_PAIRING_HALVES, 0)->angle[i] == right[i]);
        kvc_profile_free(p);
        free_maker(&m);
    }
    for (uint64_t half = 4; half <= 5; half++) { /* as many pairs as K's channels make; one more */
        struct maker m = make_good();
        snprintf(tensor_of(&m, "layers.0.rope")->name, sizeof m.tensor[0].name, "gone");
        add_tensor(&m, "layers.0.rope", "F64", 1, half, 1, 1);
        if (half == 5) {
            refuse_maker(&m, KVC_ERR_DAMAGED, "more pairs than channels");
            continue;
        }
        struct kvc_profile *p = must_open(&m);
        assert_int_equal(part_of(p, 0, KVC_ROLE_K, KVC_PAIRING_INTERLEAVED, 1)->half, 4);
        kvc_profile_free(p);
        free_maker(&m);
    }
    struct maker m = make_good(); /* and without queries */
    snprintf(tensor_of(&m, "layers.0.queries")->name, sizeof m.tensor[0].name, "gone");
    snprintf(tensor_of(&m, "layers.0.rope")->name, sizeof m.tensor[0].name, "gone too");
    add_tensor(&m, "layers.0.rope", "F64", 1, 5, 1, 1);
    refuse_maker(&m, KVC_ERR_DAMAGED, "more pairs than channels of K");
    /* nor where K has no basis, and turns as an input of predictors */
    for (uint64_t half = 4; half <= 5; half++) {
        m = make_predicting();
        snprintf(tensor_of(&m, "layers.0.queries")->name, sizeof m.tensor[0].name, "gone");
        snprintf(tensor_of(&m, "layers.0.k.basis")->name, sizeof m.tensor[0].name, "gone too");
        snprintf(tensor_of(&m, "layers.0.rope")->name, sizeof m.tensor[0].name, "gone as well");
        add_tensor(&m, "layers.0.rope", "F64", 1, half, 1, 1);
        if (half == 5) {
            refuse_maker(&m, KVC_ERR_DAMAGED, "more pairs than channels of an input");
            continue;
        }
        struct kvc_profile *p = must_open(&m);
        const struct kvc_small *s;
        struct kvc_error e;
        assert_int_equal(kvc_profile_small(p, 0, KVC_ROLE_K, KVC_PAIRING_INTERLEAVED, &s, &e), 0);
        assert_int_equal(s->width, HEADS * DIM);
        kvc_profile_free(p);
        free_maker(&m);
    }
    /* where K is missing, queries must still hold what turns */
    m = make_good();
    for (size_t i = 0; i < m.tensors; i++)
        if (strncmp(m.tensor[i].name, "layers.0.k.", 11) == 0) m.tensor[i].name[0] = 'x';
    struct kvc_profile *p = must_open(&m);
    assert_null(part_of(p, 0, KVC_ROLE_K, KVC_PAIRING_INTERLEAVED, 1));
    assert_int_equal(part_of(p, 0, KVC_ROLE_V, KVC_PAIRING_INTERLEAVED, 1)->n_queries, QUERIES);
    kvc_profile_free(p);
    snprintf(tensor_of(&m, "layers.0.rope")->name, sizeof m.tensor[0].name, "gone");
    add_tensor(&m, "layers.0.rope", "F64", 1, 20, 1, 1);
    refuse_maker(&m, KVC_ERR_DAMAGED, "more pairs than channels of queries");
}

/* Query heads that KV heads do not share evenly, and queries of other channels than K's. */
static void wrong_queries(void **state) {
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        const uint64_t heads = i == 0 ? 3 : 4, n = i == 1 ? 4097 : 3,
                       dim = i == 2   ? 7
                             : i == 3 ? 9
                                      : DIM;
        struct maker m = make_good();
        snprintf(tensor_of(&m, "layers.0.queries")->name, sizeof m.tensor[0].name, "gone");
        snprintf(tensor_of(&m, "layers.0.queries.scale")->name, sizeof m.tensor[0].name,
                 "gone too");
        add_tensor(&m, "layers.0.queries", "I8", 3, heads, n, dim);
        add_tensor(&m, "layers.0.queries.scale", "F32", 2, heads, n, 1);
        refuse_maker(&m, KVC_ERR_DAMAGED, "queries");
    }
}

static void wrong_headers(void **state) {
    (void)state;
    struct maker m = make_good();
    char good[MOST_HEADER], header[MOST_HEADER];
    size_t n;
    write_header(&m, good);
    static const struct {
        const char *was, *is;
        enum kvc_code code;
    } cases[] = {
        {"\"data_offsets\":[0,24]", "\"data_offsets\":[24,0]", KVC_ERR_DAMAGED},
        {"\"data_offsets\":[0,24]", "\"data_offsets\":[-24,0]", KVC_ERR_DAMAGED},
        {"\"data_offsets\":[0,24]", "\"data_offsets\":[0,24,48]", KVC_ERR_DAMAGED},
        {"\"data_offsets\":[0,24]", "\"data_offsets\":[0]", KVC_ERR_DAMAGED},
        {"\"data_offsets\":[0,24]", "\"data_offsets\":[0.0,24.0]", KVC_ERR_DAMAGED},
        {"\"data_offsets\":[0,24]", "\"data_offsets\":24", KVC_ERR_DAMAGED},
        {"\"data_offsets\":[0,24]", "\"data_offsets\":[9000000,9000024]", KVC_ERR_DAMAGED},
        {"\"data_offsets\":[0,24]", "\"data_offsets\":[9223372036854775783,9223372036854775807]",
         KVC_ERR_DAMAGED},
        {"\"data_offsets\":[0,24]", "\"data_offset\":[0,24]", KVC_ERR_DAMAGED},
        {"\"shape\":[3]", "\"shape\":[\"3\"]", KVC_ERR_DAMAGED},
        {"\"shape\":[3]", "\"shape\":[-3]", KVC_ERR_DAMAGED},
        {"\"shape\":[3]", "\"shape\":3", KVC_ERR_DAMAGED},
        {"\"shape\":[3]", "\"shape\":[]", KVC_ERR_DAMAGED},
        {"\"dtype\":\"F64\"", "\"dtype\":64", KVC_ERR_DAMAGED},
        {"\"dtype\":\"F64\"", "\"type\":\"F64\"", KVC_ERR_DAMAGED},
        {"\"kvc.profile\":\"1\"", "\"kvc.profile\":1", KVC_ERR_DAMAGED},
        {"\"model.layers\":\"3\"", "\"model.layers\":3", KVC_ERR_DAMAGED},
        {"\"__metadata__\":{", "\"__metadata\":{", KVC_ERR_DAMAGED},
        {"}}", "}", KVC_ERR_DAMAGED},
        {"{\"__metadata__\"", "{[\"__metadata__\"", KVC_ERR_DAMAGED},
        {"{\"__metadata__\"", " {\"__metadata__\"", KVC_ERR_UNKNOWN_FORMAT},
        {"610]}", "611]}", KVC_ERR_DAMAGED}, /* of a tensor that nobody reads */
        {"610]}", "609]}", KVC_ERR_DAMAGED},
        {",610]}", "]}", KVC_ERR_DAMAGED},
        {"Tiny", "\xff\xfe", KVC_ERR_DAMAGED},
        {"Tiny", "\\u0000", KVC_ERR_DAMAGED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *at = strstr(good, cases[i].was);
        assert_non_null(at);
        if (strcmp(cases[i].was, "}}") == 0) at = strrchr(good, '}') - 1;
        header[0] = '\0';
        append(header, "%.*s%s%s", (int)(at - good), good, cases[i].is, at + strlen(cases[i].was));
        uint8_t *bytes = render_with(&m, header, &n);
        refuse(bytes, n, cases[i].code, cases[i].is);
        free(bytes);
    }
    /* a key with a rest that is no header is none */
    const uint8_t list[] = {2, 0, 0, 0, 0, 0, 0, 0, '[', ']'},
                  nothing[] = {2, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    refuse(list, sizeof list, KVC_ERR_UNKNOWN_FORMAT, "a list");
    refuse(nothing, sizeof nothing, KVC_ERR_UNKNOWN_FORMAT, "an empty header");
    uint8_t *bytes = render(&m, &n);
    static const uint64_t sizes[] = {0, 1, UINT64_MAX, UINT64_MAX - 7, UINT64_C(1) << 63};
    for (size_t i = 0; i < 5; i++) {
        for (unsigned b = 0; b < 8; b++) bytes[b] = (uint8_t)(sizes[i] >> 8 * b & 255);
        refuse(bytes, n, KVC_ERR_UNKNOWN_FORMAT, "the header's size");
    }
    free(bytes);
    free_maker(&m);
}

/* Any shorter file is none, and any changed byte is refused in words, or changes what is read and
 * nothing else. */
static void cut_and_changed(void **state) {
    (void)state;
    struct maker m = make_good();
    size_t n;
    uint8_t *bytes = render(&m, &n);
    for (size_t cut = 0; cut < n; cut++) {
        struct kvc_error e = {.code = KVC_OK};
        uint8_t *own = malloc(cut); /* so that a sanitizer sees the end */
        if (cut) memcpy(own, bytes, cut);
        struct kvc_profile *p = kvc_profile_open_memory(own, cut, &e);
        if (p) fail_msg("%zu bytes of %zu are taken", cut, n);
        assert_true((e.code == KVC_ERR_UNKNOWN_FORMAT || e.code == KVC_ERR_DAMAGED) &&
                    strlen(e.message) > 10);
        free(own);
    }
    for (size_t i = 0; i < n; i++) {
        struct kvc_error e = {.code = KVC_OK};
        const struct kvc_profile_part *part;
        const uint8_t old = bytes[i];
        bytes[i] = (uint8_t)(bytes[i] ^ (1 + random_bits() % 255));
        struct kvc_profile *p = kvc_profile_open_memory(bytes, n, &e);
        bytes[i] = old;
        for (uint32_t k = 0; p && k < 12; k++)
            if (kvc_profile_part(p, k / 4, k % 2 ? KVC_ROLE_K : KVC_ROLE_V,
                                 k & 2 ? KVC_PAIRING_INTERLEAVED : KVC_PAIRING_HALVES, 1, &part,
                                 &e))
                assert_true(strlen(e.message) > 10);
        if (!p) assert_true(strlen(e.message) > 10);
        kvc_profile_free(p);
    }
    free(bytes);
    free_maker(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_metadata), cmocka_unit_test(required_features),
        cmocka_unit_test(wrong_tensors),  cmocka_unit_test(predictors),
        cmocka_unit_test(wrong_rope),     cmocka_unit_test(wrong_queries),
        cmocka_unit_test(wrong_headers),  cmocka_unit_test(cut_and_changed),
    };
    return cmocka_run_group_tests_name("profile_refused", tests, NULL, NULL);
}
