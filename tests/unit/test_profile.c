/* test_profile.c: what profile files tell, which caches they fit, and where they are found. Not for
 * files that are refused (test_profile_refused.c). */
#include "profile_support.h"
#include "temp_folder.h"

/* --- what is read --- */

static void check_part(struct maker *m, const struct kvc_profile_part *p, unsigned layer, char role,
                       size_t heads, size_t dim, size_t half, enum kvc_pairing pairing) {
    char name[3][32];
    snprintf(name[0], sizeof name[0], "layers.%u.%c.mean", layer, role);
    snprintf(name[1], sizeof name[1], "layers.%u.%c.basis", layer, role);
    snprintf(name[2], sizeof name[2], "layers.%u.%c.scale", layer, role);
    const struct tensor *mean = tensor_of(m, name[0]), *basis = tensor_of(m, name[1]),
                        *scale = tensor_of(m, name[2]);
    assert_non_null(p);
    assert_int_equal(p->heads, heads);
    assert_int_equal(p->dim, dim);
    assert_int_equal(p->half, half);
    assert_true(!p->angle == !half);
    for (size_t i = 0; i < half; i++) assert_true(p->angle[i] == pow(10000, -(double)i / HALF));
    for (size_t i = 0; i < heads * dim; i++) {
        assert_true(p->mean[i / dim * dim + channel(i % dim, half, pairing)] == f32_of(mean, i));
        for (size_t d = 0; d < dim; d++) {
            int8_t code;
            memcpy(&code, &basis->bytes[i * dim + d], 1);
            assert_true(p->basis[i * dim + channel(d, half, pairing)] ==
                        (float)code * f32_of(scale, i));
        }
    }
}

static void check_encoder(struct maker *m, const struct kvc_profile_part *p, int queries,
                          enum kvc_pairing pairing) {
    assert_non_null(p->inverse);
    for (size_t h = 0; h < p->heads; h++)
        for (size_t i = 0; i < p->dim; i++)
            for (size_t j = 0; j < p->dim; j++) {
                const float *row = p->basis + (h * p->dim + i) * p->dim,
                            *column = p->inverse + h * p->dim * p->dim + j;
                double sum = 0;
                for (size_t d = 0; d < p->dim; d++)
                    sum += (double)row[d] * (double)column[d * p->dim];
                assert_true(fabs(sum - (i == j)) < 1e-4);
            }
    if (!queries) {
        assert_int_equal(p->n_queries, 0);
        return;
    }
    assert_int_equal(p->n_queries, QUERIES);
    assert_int_equal(p->query_heads, QUERY_HEADS);
    const struct tensor *query = tensor_of(m, "layers.0.queries"),
                        *scale = tensor_of(m, "layers.0.queries.scale");
    for (size_t i = 0; i < QUERY_HEADS; i++)
        for (size_t q = 0; q < QUERIES; q++)
            for (size_t d = 0; d < DIM; d++) {
                int8_t code;
                memcpy(&code, &query->bytes[(i * QUERIES + q) * DIM + d], 1);
                assert_true(p->query[(q * QUERY_HEADS + i) * DIM + channel(d, HALF, pairing)] ==
                            (float)code * f32_of(scale, i * QUERIES + q));
            }
}

static void what_it_says(void **state) {
    (void)state;
    struct maker m = make_good();
    struct kvc_error e;
    uint8_t digest[32];
    size_t n, size;
    uint8_t *bytes = render(&m, &n);
    struct kvc_profile *p = kvc_profile_open_memory(bytes, n, &e);
    if (!p) fail_msg("%s", e.message);
    assert_int_equal(kvc_profile_layers(p), LAYERS);
    assert_string_equal(kvc_profile_model(p), "Tiny");
    assert_int_equal(kvc_profile_metric(p), KVC_METRIC_FISHER);
    assert_memory_equal(kvc_profile_bytes(p, &size), bytes, n);
    assert_int_equal(size, n);
    assert_int_equal(EVP_Digest(bytes, n, digest, NULL, EVP_sha256(), NULL), 1);
    assert_memory_equal(kvc_profile_sha256(p), digest, 32);
    memset(bytes, 0xee, n); /* they were copied */
    free(bytes);
    for (enum kvc_pairing pairing = KVC_PAIRING_HALVES; pairing <= KVC_PAIRING_INTERLEAVED;
         pairing++) {
        const struct kvc_profile_part *k = part_of(p, 0, KVC_ROLE_K, pairing, 0);
        const struct kvc_profile_part *v = part_of(p, 0, KVC_ROLE_V, pairing, 0);
        check_part(&m, k, 0, 'k', HEADS, DIM, HALF, pairing);
        check_part(&m, v, 0, 'v', HEADS, DIM_V, 0, pairing);
        assert_null(k->inverse);
        assert_int_equal(k->n_queries, 0);
        assert_ptr_equal(part_of(p, 0, KVC_ROLE_K, pairing, 1), k);
        assert_ptr_equal(part_of(p, 0, KVC_ROLE_V, pairing, 1), v);
        check_part(&m, k, 0, 'k', HEADS, DIM, HALF, pairing);
        check_encoder(&m, k, 1, pairing);
        check_encoder(&m, v, 1, pairing);
        assert_ptr_equal(part_of(p, 0, KVC_ROLE_K, pairing, 0), k);
        const struct kvc_profile_part *other = part_of(p, 1, KVC_ROLE_V, pairing, 1);
        check_part(&m, other, 1, 'v', 1, DIM_1, 0, pairing);
        check_encoder(&m, other, 0, pairing);
        assert_null(part_of(p, 1, KVC_ROLE_K, pairing, 1));
        assert_null(part_of(p, 2, KVC_ROLE_K, pairing, 0));
        assert_null(part_of(p, 2, KVC_ROLE_V, pairing, 1));
        assert_null(part_of(p, LAYERS, KVC_ROLE_K, pairing, 0));
        assert_null(part_of(p, UINT32_MAX, KVC_ROLE_V, pairing, 1));
        assert_null(part_of(p, 0, KVC_ROLE_HIDDEN, pairing, 1));
    }
    /* K that no pairing turns is as halves */
    assert_ptr_equal(part_of(p, 0, KVC_ROLE_K, KVC_PAIRING_NONE, 0),
                     part_of(p, 0, KVC_ROLE_K, KVC_PAIRING_HALVES, 0));
    kvc_profile_free(p);
    kvc_profile_free(NULL);

    static const struct {
        const char *name;
        enum kvc_profile_metric metric;
    } metrics[] = {{"query", KVC_METRIC_QUERY}, {"covariance", KVC_METRIC_COVARIANCE}};
    for (size_t i = 0; i < 2; i++) {
        key_of(&m, "metric")->value = metrics[i].name;
        p = must_open(&m);
        assert_int_equal(kvc_profile_metric(p), metrics[i].metric);
        kvc_profile_free(p);
    }
    key_of(&m, "model.name")->name = "unheard-of";
    key_of(&m, "metric")->name = "neither";
    p = must_open(&m);
    assert_string_equal(kvc_profile_model(p), "");
    assert_int_equal(kvc_profile_metric(p), KVC_METRIC_COVARIANCE);
    kvc_profile_free(p);
    free_maker(&m);
}

/* A matrix without an inverse decodes; encoders are refused, however often they ask. */
static void no_inverse(void **state) {
    (void)state;
    struct maker m = make_good();
    const struct kvc_profile_part *part;
    struct kvc_error e;
    put_f32(tensor_of(&m, "layers.0.k.scale"), 3, 0);
    struct kvc_profile *p = must_open(&m);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kvc_profile_part(p, 0, KVC_ROLE_K, KVC_PAIRING_HALVES, 1, &part, &e), -1);
        assert_null(part);
        assert_int_equal(e.code, KVC_ERR_DAMAGED);
        assert_non_null(part_of(p, 0, KVC_ROLE_K, KVC_PAIRING_HALVES, 0));
        assert_non_null(part_of(p, 0, KVC_ROLE_V, KVC_PAIRING_HALVES, 1));
    }
    kvc_profile_free(p);
    free_maker(&m);
}

/* --- caches --- */

struct geometry {
    uint32_t layer;                          /* number in the model */
    uint64_t k_heads, k_dim, v_heads, v_dim; /* 0 heads: no such tensor */
};

static struct kvc_cache *make_cache(const struct geometry *g, const char *pairing) {
    static const uint8_t rows[4096];
    struct kvc_error e;
    struct kvc_cache *c = kvc_cache_new(&e);
    const uint32_t part = kvc_cache_add_part(c, KVC_PART_LIVE, 4, &e);
    uint32_t layer = kvc_cache_add_layer(c, part, g->layer, KVC_LAYER_FULL, &e);
    if (kvc_cache_map(c, NULL, NULL, &e)) fail_msg("%s", e.message);
    for (unsigned v = 0; v < 2; v++) {
        const struct kvc_shape shape = {KVC_F32, 4, v ? g->v_heads : g->k_heads,
                                        v ? g->v_dim : g->k_dim};
        if (!shape.heads) continue;
        const uint32_t t = kvc_cache_add_tensor(c, layer, v ? KVC_ROLE_V : KVC_ROLE_K, &shape, &e);
        if (t == KVC_NONE || kvc_cache_map_memory(c, t, rows, &e)) fail_msg("%s", e.message);
    }
    const struct kvc_shape latent = {KVC_F32, 4, 1, 1};
    if (!g->k_heads && !g->v_heads) kvc_cache_add_tensor(c, layer, KVC_ROLE_LATENT, &latent, &e);
    if (pairing && kvc_meta_set_text(&c->meta, KVC_KEY_ROPE_PAIRING, pairing, &e))
        fail_msg("%s", e.message);
    if (kvc_cache_finish(c, &e)) fail_msg("%s", e.message);
    return c;
}

static const struct geometry right = {0, HEADS, DIM, HEADS, DIM_V};

static void fits(const struct kvc_profile *p, struct kvc_cache *c, enum kvc_code code,
                 const char *what) {
    struct kvc_error e = {.code = KVC_OK};
    const int status = kvc_profile_fits(p, c, &e);
    if (code == KVC_OK ? status != 0 : status != -1 || e.code != code || strlen(e.message) < 20)
        fail_msg("%s: code %d: %s", what, (int)e.code, status ? e.message : "fits");
    kvc_cache_free(c);
}

static struct kvc_cache *with_text(struct kvc_cache *c, const char *key, const char *value) {
    struct kvc_error e;
    if (kvc_meta_set_text(&c->meta, key, value, &e)) fail_msg("%s", e.message);
    return c;
}

static struct kvc_cache *with_number(struct kvc_cache *c, const char *key, double value) {
    struct kvc_error e;
    const int whole = strcmp(key, KVC_KEY_ROPE_THETA) != 0 && strcmp(key, KVC_KEY_ROPE_FACTOR) != 0;
    if (whole ? kvc_meta_set_u64(&c->meta, key, (uint64_t)value, &e)
              : kvc_meta_set_f64(&c->meta, key, value, &e))
        fail_msg("%s", e.message);
    return c;
}

static struct kvc_cache *with_bytes(struct kvc_cache *c, const char *key, uint8_t last, size_t n) {
    uint8_t bytes[32] = {0x01, 0xab};
    struct kvc_error e;
    bytes[31] = last;
    if (kvc_meta_set_bytes(&c->meta, key, bytes, n, &e)) fail_msg("%s", e.message);
    return c;
}

static struct kvc_cache *with_rope(struct kvc_cache *c, double theta, double rotated) {
    with_text(c, KVC_KEY_ROPE_TYPE, "default");
    with_number(c, KVC_KEY_ROPE_THETA, theta);
    return with_number(c, KVC_KEY_ROPE_DIM, rotated);
}

static void caches(void **state) {
    (void)state;
    struct maker m = make_good();
    m.key[m.keys++] =
        (struct key){"model.fingerprint.gguf.pieces",
                     "01ab000000000000000000000000000000000000000000000000000000000007"};
    struct kvc_profile *p = must_open(&m);
    fits(p, make_cache(&right, "halves"), KVC_OK, "halves");
    fits(p, make_cache(&right, "interleaved"), KVC_OK, "interleaved");
    fits(p, make_cache(&right, NULL), KVC_ERR_UNSUPPORTED, "a pairing that is not known");
    static const struct {
        struct geometry g;
        enum kvc_code code;
    } cases[] = {
        {{0, 1, DIM, HEADS, DIM_V}, KVC_ERR_OTHER_MODEL},
        {{0, HEADS, DIM + 2, HEADS, DIM_V}, KVC_ERR_OTHER_MODEL},
        {{0, 1, HEADS * DIM, HEADS, DIM_V}, KVC_ERR_OTHER_MODEL},
        {{0, HEADS, DIM, 1, HEADS * DIM_V}, KVC_ERR_OTHER_MODEL},
        {{0, HEADS, DIM, HEADS, DIM}, KVC_ERR_OTHER_MODEL},
        {{0, HEADS, DIM, 0, 0}, KVC_OK},
        {{0, 0, 0, HEADS, DIM_V}, KVC_OK},
        {{1, 5, 7, 1, DIM_1}, KVC_OK}, /* of K it knows nothing */
        {{1, 5, 7, 1, DIM_1 + 1}, KVC_ERR_OTHER_MODEL},
        {{2, 9, 9, 9, 9}, KVC_OK},
        {{3, HEADS, DIM, HEADS, DIM_V}, KVC_ERR_OTHER_MODEL},
        {{4000000000, 1, 1, 1, 1}, KVC_ERR_OTHER_MODEL},
        {{0, 0, 0, 0, 0}, KVC_ERR_OTHER_MODEL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        fits(p, make_cache(&cases[i].g, "halves"), cases[i].code, "a geometry");
    fits(p, with_number(make_cache(&right, "halves"), KVC_KEY_MODEL_LAYERS, 3), KVC_OK,
         "as many layers");
    fits(p, with_number(make_cache(&right, "halves"), KVC_KEY_MODEL_LAYERS, 4), KVC_ERR_OTHER_MODEL,
         "other layers");
    /* fingerprints: of one kind the same or not, of another kind no matter */
    static const char full[] = "model.fingerprint.gguf.pieces",
                      sampled[] = "model.fingerprint.gguf.sampled";
    fits(p, with_bytes(make_cache(&right, "halves"), full, 7, 32), KVC_OK, "the same weights");
    fits(p, with_bytes(make_cache(&right, "halves"), full, 8, 32), KVC_ERR_OTHER_MODEL,
         "other weights");
    fits(p, with_bytes(make_cache(&right, "halves"), sampled, 8, 32), KVC_OK, "another kind");
    fits(p, with_bytes(make_cache(&right, "halves"), full, 8, 16), KVC_OK, "no fingerprint at all");
    /* RoPE: what the cache says of it is the profile's, or not; where it says too little it is
     * believed */
    fits(p, with_rope(make_cache(&right, "halves"), 10000, 2 * HALF), KVC_OK, "the same RoPE");
    fits(p, with_rope(make_cache(&right, "halves"), 500000, 2 * HALF), KVC_ERR_OTHER_MODEL,
         "another base");
    fits(p, with_rope(make_cache(&right, "halves"), 10000, DIM), KVC_ERR_OTHER_MODEL,
         "other channels");
    fits(p,
         with_text(with_rope(make_cache(&right, "halves"), 500000, 6), KVC_KEY_ROPE_TYPE, "yarn"),
         KVC_OK, "YaRN");
    kvc_profile_free(p);
    free_maker(&m);
    /* K as it stands in caches of one pairing */
    m = make_good();
    snprintf(tensor_of(&m, "layers.0.rope")->name, sizeof m.tensor[0].name, "gone");
    m.key[m.keys++] = (struct key){"rope.pairing", "interleaved"};
    p = must_open(&m);
    fits(p, make_cache(&right, "interleaved"), KVC_OK, "the pairing");
    fits(p, make_cache(&right, "halves"), KVC_ERR_OTHER_MODEL, "the other pairing");
    fits(p, make_cache(&right, NULL), KVC_OK, "no pairing");
    kvc_profile_free(p);
    free_maker(&m);
}

/* Angles of a layer, from the profile's part or from what the metadata tell. */
static void angles_of_caches(void **state) {
    (void)state;
    static const double own[] = {1, 0.5, 0.25};
    static const struct kvc_profile_part turned = {.heads = HEADS,
                                                   .dim = DIM,
                                                   .half = 3,
                                                   .angle = own};
    static const struct kvc_profile_part still = {.heads = HEADS, .dim = DIM};
    static const struct {
        const char *type, *pairing, *k;
        double theta, rotated, factor;
        const struct kvc_profile_part *part;
        size_t half; /* 0: no angles */
    } cases[] = {
        {"default", "halves", NULL, 10000, 0, 0, NULL, 4},
        {"default", "interleaved", "post", 500000, 6, 0, NULL, 3},
        {"linear", "halves", NULL, 10000, 8, 4, NULL, 4},
        {"yarn", "halves", NULL, 10000, 8, 4, NULL, 0},
        {"llama3", "halves", NULL, 10000, 8, 0, NULL, 0},
        {NULL, "halves", NULL, 10000, 8, 0, NULL, 0},
        {"default", NULL, NULL, 10000, 8, 0, NULL, 0},
        {"default", "none", NULL, 10000, 8, 0, NULL, 0},
        {"default", "halves", "pre", 10000, 8, 0, NULL, 0},
        {"default", "halves", NULL, 0, 8, 0, NULL, 0},
        {"default", "halves", NULL, 10000, 7, 0, NULL, 0},
        {"default", "halves", NULL, 10000, 10, 0, NULL, 0},
        {"linear", "halves", NULL, 10000, 8, 0.5, NULL, 0},
        {"yarn", "halves", NULL, 0, 0, 0, &turned, 3},
        {"default", "halves", NULL, 10000, 8, 0, &still, 0},
        {"default", "halves", "pre", 10000, 8, 0, &turned, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvc_cache *c = make_cache(&right, cases[i].pairing);
        struct kvc_rope_facts facts;
        struct kvc_error e;
        double *room;
        if (cases[i].type) with_text(c, KVC_KEY_ROPE_TYPE, cases[i].type);
        if (cases[i].k) with_text(c, KVC_KEY_ROPE_K, cases[i].k);
        if (cases[i].theta > 0) with_number(c, KVC_KEY_ROPE_THETA, cases[i].theta);
        if (cases[i].rotated > 0) with_number(c, KVC_KEY_ROPE_DIM, cases[i].rotated);
        if (cases[i].factor > 0) with_number(c, KVC_KEY_ROPE_FACTOR, cases[i].factor);
        if (kvc_rope_of_layer(c, 0, cases[i].part, &facts, &room, &e)) fail_msg("%s", e.message);
        if (!facts.angle != !cases[i].half)
            fail_msg("case %zu: there are %s angles", i, facts.angle ? "such" : "no");
        if (facts.angle) {
            assert_int_equal(facts.half, cases[i].half);
            assert_int_equal(facts.of_profile, cases[i].part != NULL);
            assert_int_equal(facts.pairing, strcmp(cases[i].pairing, "halves") == 0 ? 1 : 2);
        }
        for (size_t k = 0; facts.angle && k < facts.half; k++) {
            const double factor = cases[i].factor > 0 ? cases[i].factor : 1;
            const double want = cases[i].part
                                    ? own[k]
                                    : pow(cases[i].theta, -(double)k / (double)facts.half) / factor;
            assert_true(fabs(facts.angle[k] - want) <= 1e-15 * want);
        }
        free(room);
        kvc_cache_free(c);
    }
}

/* --- finding --- */

/* Where a profile is found from: the path given, a folder, more folders; all below the test's. */
static int found(const uint8_t *hash, const char *given, const char *in, const char *path,
                 struct kvc_error *e) {
    char where[3][512] = {"", "", ""};
    if (given) snprintf(where[0], sizeof where[0], "%s/%s", folder, given);
    if (in) snprintf(where[1], sizeof where[1], "%s/%s", folder, in);
    if (path) snprintf(where[2], sizeof where[2], "/nowhere::%s/empty:%s/%s", folder, folder, path);
    memset(e, 0, sizeof *e);
    const struct kvc_profile_places searched = {given ? where[0] : NULL, in ? where[1] : NULL,
                                                path ? where[2] : NULL, NULL};
    struct kvc_profile *p = kvc_profile_find(hash, "Tiny", &searched, e);
    if (p) assert_memory_equal(kvc_profile_sha256(p), hash, 32);
    kvc_profile_free(p);
    return p != NULL;
}

static void places(void **state) {
    (void)state;
    struct maker m = make_good(), other = make_good();
    struct kvc_error e;
    uint8_t hash[32], wrong[32] = {0x5a, 0x01};
    char path[200];
    size_t n, n_other;
    key_of(&other, "model.name")->value = "Another";
    uint8_t *bytes = render(&m, &n), *others = render(&other, &n_other);
    assert_int_equal(kvc_sha256(bytes, n, hash, &e), 0);
    for (unsigned i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, (const char *[]){"empty", "a", "b"}[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    put_file("a/other.kvcp", others, n_other);
    put_file("a/cut.kvcp", bytes, n - 40);
    put_file("a/the one.kvcp", bytes, n);
    put_file("b/.kvcp", bytes, n);
    put_file("b/profile", bytes, n);
    put_file("b/profile.kvcp.bak", bytes, n);
    assert_true(found(hash, NULL, "a", NULL, &e));
    assert_true(found(hash, NULL, NULL, "a", &e));
    assert_true(found(hash, "b/profile", NULL, NULL, &e)); /* whatever it is called */
    assert_true(found(hash, "a/other.kvcp", "a", NULL, &e));
    assert_true(found(hash, "nowhere", "empty", "a", &e));
    assert_false(found(hash, NULL, NULL, NULL, &e));
    assert_false(found(hash, NULL, "b", "b", &e)); /* other names are none */
    assert_int_equal(e.code, KVC_ERR_OTHER_MODEL);
    assert_non_null(strstr(e.message, "Tiny"));
    char hex[65];
    kvc_hex(hash, 32, hex);
    assert_non_null(strstr(e.message, hex));
    assert_false(found(hash, NULL, "nowhere", "nowhere", &e));
    assert_false(found(hash, "a/other.kvcp", NULL, NULL, &e));
    assert_int_equal(e.code, KVC_ERR_OTHER_MODEL);
    assert_non_null(strstr(e.message, "Another"));
    assert_false(found(hash, "a/cut.kvcp", NULL, NULL, &e));
    assert_non_null(strstr(e.message, "cut.kvcp"));
    assert_false(found(wrong, "a/the one.kvcp", "a", "a", &e));
    assert_int_equal(e.code, KVC_ERR_OTHER_MODEL);

    snprintf(path, sizeof path, "%s/a/the one.kvcp", folder);
    struct kvc_profile *p = kvc_profile_open(path, &e);
    if (!p) fail_msg("%s", e.message);
    assert_memory_equal(kvc_profile_sha256(p), hash, 32);
    kvc_profile_free(p);
    snprintf(path, sizeof path, "%s/a/cut.kvcp", folder);
    assert_null(kvc_profile_open(path, &e));
    assert_int_equal(e.code, KVC_ERR_DAMAGED);
    assert_non_null(strstr(e.message, path));
    snprintf(path, sizeof path, "%s/none.kvcp", folder);
    assert_null(kvc_profile_open(path, &e));
    assert_int_equal(e.code, KVC_ERR_IO);
    assert_non_null(strstr(e.message, path));
    free(bytes);
    free(others);
    free_maker(&m);
    free_maker(&other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_says),
        cmocka_unit_test(no_inverse),
        cmocka_unit_test(caches),
        cmocka_unit_test(angles_of_caches),
        cmocka_unit_test_setup_teardown(places, make_folder, remove_folder),
    };
    return cmocka_run_group_tests_name("profile", tests, NULL, NULL);
}
