/* test_gradients.c: gradients of small models of all kinds, against differences of their
 * log-probabilities in binary64; and what a learnt profile makes of them. Not for real models
 * (tests/quality). */
#include "formats/cache/keys.h"
#include "formats/cache/mapped.h"
#include "formats/model/gradients.h"
#include "formats/model/profile_learn.h"
#include "formats/model/profile_learn_state.h"
#include "formats/model/weights_product.h"

enum { TOKENS = 260, AGAIN = 32, NEAR = 64 };
#include "small_model.h"

static float rows[LAYERS][2][TOKENS * K_ROWS]; /* of the cache, in halves */

static size_t start_of(unsigned run) {
    return run ? TOKENS : TOKENS - NEAR;
}
static const int32_t *tokens_of(unsigned run, size_t *n) {
    static const double place[] = {1, 0.05, 0.5};
    *n = run ? AGAIN : NEAR;
    return token + (run ? (size_t)(place[run] * TOKENS) : TOKENS - NEAR);
}

/* Returns the sum of log-probabilities of the tokens that a run drew; `draw` draws them. */
static double run_tokens(unsigned run, size_t label[NEAR], int draw) {
    size_t n;
    const int32_t *t = tokens_of(run, &n);
    double logits[WORDS], sum = 0;
    for (size_t i = 0; i < n; i++) {
        run_token(t[i], start_of(run) + i, logits);
        double left = kvc_random_unit(i + (run ? NEAR + (run - 1) * AGAIN : 0));
        for (size_t w = 0; w < WORDS && draw; w++) {
            label[i] = w;
            if ((left -= exp(logits[w])) < 0) break;
        }
        sum += logits[label[i]];
    }
    return sum;
}

/* Puts the cache's rows back, which runs have overwritten. */
static void restore(void) {
    for (int l = 0; l < LAYERS; l++)
        for (int r = 0; r < 2; r++)
            for (size_t i = 0; i < TOKENS * K_ROWS; i++) seen[l][r][i] = (double)rows[l][r][i];
}

static struct kvc_cache *make_cache(enum kvc_pairing pairing) {
    static float turned[LAYERS][TOKENS * K_ROWS];
    const struct kvc_shape shape = {KVC_F32, TOKENS, KV, C};
    struct kvc_error e = {.message = ""};
    double logits[WORDS];
    for (size_t t = 0; t < TOKENS; t++) {
        token[t] = (int32_t)(WORDS * (number() + 1) / 2);
        run_token(token[t], t, logits);
    }
    for (int l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < TOKENS * K_ROWS; i++) {
            const size_t c = i % C, pair = c < C / 2 ? 2 * c : 2 * (c - C / 2) + 1;
            for (int r = 0; r < 2; r++) rows[l][r][i] = (float)seen[l][r][i];
            turned[l][i - c + pair] = rows[l][0][i];
        }
    struct kvc_cache *c = kvc_cache_new(&e);
    assert_non_null(c);
    assert_int_equal(kvc_meta_set_pairing(&c->meta, pairing, &e), 0);
    assert_int_equal(kvc_meta_set_text(&c->meta, KVC_KEY_ROPE_TYPE, "default", &e), 0);
    assert_int_equal(kvc_meta_set_f64(&c->meta, KVC_KEY_ROPE_THETA, THETA, &e), 0);
    assert_int_equal(kvc_meta_set_text(&c->meta, KVC_KEY_MODEL_ARCH,
                                       m.kind == GEMMA3 ? "gemma3" : "llama", &e),
                     0);
    assert_int_equal(kvc_cache_set_tokens(c, token, TOKENS, &e), 0);
    assert_int_equal(kvc_cache_add_part(c, KVC_PART_LIVE, TOKENS, &e), 0);
    for (uint32_t l = 0; l < LAYERS; l++) {
        const int window = m.kind == GEMMA3 && l == 1;
        assert_int_equal(kvc_cache_add_layer(c, 0, l, window ? KVC_LAYER_WINDOW : KVC_LAYER_FULL,
                                             &e),
                         l);
        c->layer[l].window = window ? WINDOW : 0;
        assert_int_equal(kvc_cache_add_tensor(c, l, KVC_ROLE_K, &shape, &e), 2 * l);
        assert_int_equal(kvc_cache_add_tensor(c, l, KVC_ROLE_V, &shape, &e), 2 * l + 1);
    }
    assert_int_equal(kvc_cache_map(c, NULL, NULL, &e), 0);
    for (uint32_t t = 0; t < 2 * LAYERS; t++) {
        const float *from = t % 2 || pairing == KVC_PAIRING_HALVES ? rows[t / 2][t % 2]
                                                                   : turned[t / 2];
        assert_int_equal(kvc_cache_map_memory(c, t, (const uint8_t *)from, &e), 0);
    }
    if (kvc_cache_finish(c, &e)) fail_msg("%s", e.message);
    return c;
}

/* --- tests --- */

/* What is measured, and the pairing of the cache. */
struct measured {
    enum kvc_pairing pairing;
    unsigned layers;
    size_t label[KVC_GRADIENTS_RUNS][NEAR];
};

static size_t place_of(size_t channel, enum kvc_pairing pairing) {
    const size_t c = channel % C, pair = c < C / 2 ? 2 * c : 2 * (c - C / 2) + 1;
    return pairing == KVC_PAIRING_HALVES ? channel : channel - c + pair;
}

/* Compares gradients with differences at some places of each run, and queries. */
static int compare(void *state, const struct kvc_gradients *g, struct kvc_error *e) {
    struct measured *x = state;
    (void)e;
    assert_int_equal(g->query_heads, Q);
    for (size_t i = 0; i < NEAR * Q_ROWS; i++) {
        const double wanted = asked[g->layer][start_of(0) + i / Q_ROWS][i % Q_ROWS];
        const size_t at = i - i % Q_ROWS + place_of(i % Q_ROWS, x->pairing);
        assert_true(fabs((double)g->queries[at] - wanted) < 1e-2);
    }
    for (unsigned run = 0; run < KVC_GRADIENTS_RUNS; run++)
        for (int r = 0; r < 2; r++) {
            const float *of = g->run[run].of[r];
            double square = 0;
            assert_int_equal(g->run[run].rows, start_of(run));
            assert_int_equal(g->run[run].position, start_of(run));
            for (size_t i = 0; i < start_of(run) * K_ROWS; i++)
                square += (double)(of[i] * of[i]) / (double)(start_of(run) * K_ROWS);
            assert_true(square > 0);
            for (int k = 0; k < 6; k++) {
                const size_t t = start_of(run) - 1 - (size_t)(k * k), c = (size_t)k % K_ROWS;
                double sum[2];
                for (int way = 0; way < 2; way++) {
                    restore();
                    seen[g->layer][r][t * K_ROWS + c] += way ? 1e-4 : -1e-4;
                    sum[way] = run_tokens(run, x->label[run], 0);
                }
                const size_t at = r ? c : place_of(c, x->pairing);
                const double wanted = (sum[1] - sum[0]) / 2e-4, got = (double)of[t * K_ROWS + at];
                if (fabs(wanted - got) > 2e-3 * (sqrt(square) + fabs(wanted)))
                    fail_msg("kind %d, layer %u, run %u, %c, row %zu: %g, not %g", m.kind, g->layer,
                             run, "KV"[r], t, got, wanted);
            }
        }
    x->layers++;
    return 0;
}

static int measure(const struct kvc_cache *c, const char *path, unsigned threads,
                   int (*take)(void *state, const struct kvc_gradients *g, struct kvc_error *e),
                   int (*stop)(void *state), void *state, struct kvc_error *e) {
    const struct kvc_gradients_taker to = {take, stop, state, state};
    *e = (struct kvc_error){.message = ""};
    struct kvc_weights *w = kvc_weights_open(path, e);
    if (!w) return -1;
    struct kvc_gradients_pass *p = kvc_gradients_begin(c, w, threads, &to, e);
    const int status = p ? kvc_gradients_end(p, e) : -1;
    kvc_gradients_free(p);
    kvc_weights_close(w);
    return status;
}

static void test_gradients(void **state) {
    struct kvc_error e;
    (void)state;
    for (int kind = 0; kind < KINDS; kind++)
        for (int gguf = 0; gguf < 2; gguf++) {
            struct measured x = {.pairing = (kind + gguf) % 2 ? KVC_PAIRING_INTERLEAVED
                                                              : KVC_PAIRING_HALVES};
            make_weights((enum kind)kind, 1);
            struct kvc_cache *c = make_cache(x.pairing);
            for (unsigned run = 0; run < KVC_GRADIENTS_RUNS; run++) {
                restore();
                run_tokens(run, x.label[run], 1);
            }
            if (measure(c, put_model(gguf, "none"), 2, compare, NULL, &x, &e))
                fail_msg("kind %d: %s", kind, e.message);
            assert_int_equal(x.layers, LAYERS);
            kvc_cache_free(c);
        }
}

/* Returns the mean length of the rows of V's basis of a layer: how large an error may be there. */
static double room_of(struct kvc_profile *p, uint32_t layer) {
    struct kvc_error e;
    const struct kvc_profile_part *part;
    double sum = 0;
    assert_int_equal(kvc_profile_part(p, layer, KVC_ROLE_V, KVC_PAIRING_HALVES, 0, &part, &e), 0);
    assert_non_null(part);
    for (size_t i = 0; i < KV * C * C; i++) sum += (double)(part->basis[i] * part->basis[i]);
    return sqrt(sum / (KV * C));
}

/* A layer that hardly adds to its output may have coarser rows; without weights nothing says so.
 * A cache that is measured twice says the same. */
static void test_learnt(void **state) {
    double apart[3], room[3];
    (void)state;
    make_weights(LLAMA, 0.01);
    struct kvc_cache *c = make_cache(KVC_PAIRING_HALVES);
    struct kvc_error e;
    struct kvc_weights *w = kvc_weights_open(put_model(1, "none"), &e);
    assert_non_null(w);
    for (int times = 0; times < 3; times++) {
        const int known = times > 0;
        struct kvc_learner *l = kvc_learner_new(&e);
        struct kvc_buffer bytes = {0};
        struct kvc_sink out = kvc_sink_buffer(&bytes);
        for (int i = 0; i < times || i < 1; i++) {
            struct kvc_gradients_pass *pass = NULL;
            if (known && kvc_learner_look(l, c, w, 1, NULL, NULL, 1, &pass, &e))
                fail_msg("%s", e.message);
            assert_int_equal(kvc_learner_add(l, c, NULL, &e), 0);
            if (known && kvc_learner_measure(l, pass, &e)) fail_msg("%s", e.message);
            kvc_gradients_free(pass);
        }
        assert_int_equal(kvc_learner_has_gradients(l), known);
        assert_int_equal(kvc_learner_has_queries(l), known);
        if (kvc_learner_write(l, &out, &e)) fail_msg("%s", e.message);
        struct kvc_profile *p = kvc_profile_open_memory(bytes.data, bytes.n, &e);
        assert_non_null(p);
        assert_int_equal(kvc_profile_metric(p), known ? KVC_METRIC_FISHER : KVC_METRIC_COVARIANCE);
        room[times] = room_of(p, 0);
        apart[times] = room_of(p, LAYERS - 1) / room[times];
        kvc_profile_free(p);
        kvc_learner_free(l);
        free(bytes.data);
    }
    assert_true(apart[0] < 3);
    assert_true(apart[1] > 20);
    assert_true(fabs(apart[2] / apart[1] - 1) < 0.01);
    assert_true(fabs(room[2] / room[1] - 1) < 0.01);
    kvc_weights_close(w);
    kvc_cache_free(c);
}

/* A metric of few caches, and of heads of many channels, is taken larger than it was measured. */
static void test_margin(void **state) {
    static const struct {
        size_t dim;
        unsigned measured;
        double margin;
    } x[] = {{64, 6, 1}, {64, 2, 1.7321}, {64, 8, 1}, {128, 8, 1.2247}, {256, 8, 1.7321}};
    (void)state;
    for (size_t i = 0; i < sizeof x / sizeof x[0]; i++) {
        double weight = 2 * x[i].measured, form[1] = {0}, sum[1] = {0};
        struct kvc_learnt_layer layer = {
            .part[1] = {.heads = 1, .dim = x[i].dim, .sum = sum, .form = form, .weight = &weight}};
        struct kvc_learner l = {.layer = &layer, .layers = 1, .measured = x[i].measured};
        layer.part[1].measured = x[i].measured;
        kvc_learn_gradients_settle(&l);
        assert_true(fabs(kvc_learn_weight(&layer.part[1], 0) / exp(2) - x[i].margin) < 1e-4);
    }
}

static void say(struct kvc_cache *c, uint8_t print, uint64_t layers) {
    const uint8_t hash[32] = {print};
    struct kvc_error e;
    if (print)
        assert_int_equal(kvc_meta_set_bytes(&c->meta, KVC_KEY_FINGERPRINT "gguf.sampled", hash,
                                            sizeof hash, &e),
                         0);
    if (layers) assert_int_equal(kvc_meta_set_u64(&c->meta, KVC_KEY_MODEL_LAYERS, layers, &e), 0);
}

/* What any cache says of its model counts for those after it; layers that no cache has count. */
static void test_models(void **state) {
    struct kvc_error e;
    struct kvc_buffer bytes = {0};
    struct kvc_sink out = kvc_sink_buffer(&bytes);
    struct kvc_cache *c[4];
    (void)state;
    make_weights(LLAMA, 1);
    for (int i = 0; i < 4; i++) c[i] = make_cache(KVC_PAIRING_HALVES);
    say(c[1], 1, 5);
    say(c[2], 2, 0);
    say(c[3], 0, 6);
    struct kvc_learner *l = kvc_learner_new(&e);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(kvc_learner_add(l, c[i], NULL, &e), i < 2 ? 0 : -1);
        if (i > 1) assert_int_equal(e.code, KVC_ERR_OTHER_MODEL);
    }
    if (kvc_learner_write(l, &out, &e)) fail_msg("%s", e.message);
    struct kvc_profile *p = kvc_profile_open_memory(bytes.data, bytes.n, &e);
    assert_non_null(p);
    assert_int_equal(kvc_profile_layers(p), 5);
    assert_int_equal(strlen(kvc_profile_text(p, KVC_KEY_FINGERPRINT "gguf.sampled")), 64);
    kvc_profile_free(p);
    kvc_learner_free(l);
    free(bytes.data);
    for (int i = 0; i < 4; i++) kvc_cache_free(c[i]);
}

static int nothing(void *state, const struct kvc_gradients *g, struct kvc_error *e) {
    (void)state, (void)g, (void)e;
    return 0;
}

static void refused(const struct kvc_cache *c, const char *path, enum kvc_code code,
                    const char *words) {
    struct kvc_error e;
    assert_int_equal(measure(c, path, 1, nothing, NULL, NULL, &e), -1);
    if (!strstr(e.message, words)) fail_msg("'%s' is not in: %s", words, e.message);
    assert_int_equal(e.code, code);
}

static void test_refused(void **state) {
    struct kvc_error e;
    (void)state;
    make_weights(LLAMA, 1);
    struct kvc_cache *c = make_cache(KVC_PAIRING_HALVES);
    refused(c, put_model(1, "blk.1.ffn_down"), KVC_ERR_UNSUPPORTED, "blk.1.ffn_down.weight");
    refused(c, put_model(1, "blk.1.ffn_norm"), KVC_ERR_UNSUPPORTED, "norms");
    m.embedding[(size_t)token[TOKENS - 1] * D] += 9; /* of one token of the run */
    refused(c, put_model(1, "none"), KVC_ERR_UNSUPPORTED, "another quantisation");
    for (size_t i = 0; i < (size_t)K_ROWS * D; i++) m.layer[0].k[i] *= -1;
    refused(c, put_model(1, "none"), KVC_ERR_OTHER_MODEL, "is it the right model");
    token[TOKENS - 1] = WORDS;
    assert_int_equal(kvc_cache_set_tokens(c, token, TOKENS, &e), 0);
    refused(c, put_model(1, "none"), KVC_ERR_OTHER_MODEL, "the model has no token 30");
    assert_int_equal(kvc_cache_set_tokens(c, token, TOKENS - 1, &e), 0);
    refused(c, put_model(1, "none"), KVC_ERR_UNSUPPORTED, "the ids of 256 tokens");
    struct tensor t = {"blk.0.attn_k.weight", 0, 2, {K_ROWS, D}, m.layer[0].k};
    put_gguf("other.gguf", "phi3", &t, 1);
    refused(c, in_folder("other.gguf"), KVC_ERR_UNSUPPORTED, "gradients are known of LLaMA");
    kvc_cache_free(c);
}

/* Products with a matrix in blocks of ggml, in pieces of columns, there and back. */
static void test_products(void **state) {
    enum { OUT_ROWS = 70, COLUMNS = 320, ROWS = 5 };
    static float w[OUT_ROWS * COLUMNS], x[ROWS * COLUMNS], y[ROWS * OUT_ROWS],
        of_y[ROWS * OUT_ROWS], of_x[ROWS * COLUMNS], row[COLUMNS];
    struct kvc_error e = {.message = ""};
    (void)state;
    for (size_t i = 0; i < OUT_ROWS * COLUMNS; i++) w[i] = (float)((int)(i * 37 % 201) - 100) / 8;
    fill(x, ROWS * COLUMNS, 0, 1);
    fill(of_y, ROWS * OUT_ROWS, 0, 1);
    const struct tensor t[] = {{"blk.0.attn_k.weight", 0, 2, {K_ROWS, D}, m.layer[0].k},
                               {"blk.0.attn_output.weight", 8, 2, {OUT_ROWS, COLUMNS}, w}};
    put_gguf("w.gguf", "llama", t, 2);
    struct kvc_weights *weights = kvc_weights_open(in_folder("w.gguf"), &e);
    struct kvc_weights_tensor k;
    struct kvc_weights_matrix matrix;
    if (!weights) fail_msg("%s", e.message);
    const struct kvc_weights_naming *naming = kvc_weights_find_k(weights, 0, &k, &e);
    assert_int_equal(kvc_weights_matrix(weights, naming, KVC_WEIGHT_OUT, 0, COLUMNS, OUT_ROWS,
                                        &matrix, &e),
                     1);
    for (unsigned threads = 1; threads < 4; threads += 2) {
        assert_int_equal(kvc_weights_multiply(y, x, ROWS, &matrix, threads, &e), 0);
        assert_int_equal(kvc_weights_multiply_back(of_x, of_y, ROWS, &matrix, threads, &e), 0);
        for (size_t r = 0; r < ROWS; r++) {
            for (size_t o = 0; o < OUT_ROWS; o++) {
                double sum = 0;
                for (size_t i = 0; i < COLUMNS; i++)
                    sum += (double)w[o * COLUMNS + i] * (double)x[r * COLUMNS + i];
                assert_true(fabs((double)y[r * OUT_ROWS + o] - sum) < 1e-2);
            }
            for (size_t i = 0; i < COLUMNS; i++) {
                double sum = 0;
                for (size_t o = 0; o < OUT_ROWS; o++)
                    sum += (double)w[o * COLUMNS + i] * (double)of_y[r * OUT_ROWS + o];
                assert_true(fabs((double)of_x[r * COLUMNS + i] - sum) < 1e-2);
            }
        }
    }
    assert_int_equal(kvc_weights_row(row, &matrix, OUT_ROWS - 1, &e), 0);
    for (size_t i = 0; i < COLUMNS; i++) assert_true(row[i] == w[(OUT_ROWS - 1) * COLUMNS + i]);
    assert_int_equal(kvc_weights_matrix(weights, naming, KVC_WEIGHT_OUT, 0, COLUMNS, OUT_ROWS + 1,
                                        &matrix, &e),
                     -1);
    assert_int_equal(e.code, KVC_ERR_OTHER_MODEL);
    assert_int_equal(kvc_weights_matrix(weights, naming, KVC_WEIGHT_UP, 0, COLUMNS, 0, &matrix, &e),
                     0);
    kvc_weights_close(weights);
}

/* stop() is asked before each layer, forward and back. */
static int count_down(void *state) {
    int *left = state;
    return (*left)-- == 0;
}

static void test_stopped(void **state) {
    (void)state;
    make_weights(LLAMA, 1);
    struct kvc_cache *c = make_cache(KVC_PAIRING_HALVES);
    const char *path = put_model(1, "none");
    struct kvc_error e;
    for (int layers = 0; layers <= 2 * LAYERS; layers++) {
        int left = layers;
        assert_int_equal(measure(c, path, 1, nothing, count_down, &left, &e),
                         layers < 2 * LAYERS ? -1 : 0);
        assert_int_equal(left, layers < 2 * LAYERS ? -1 : 0);
    }
    kvc_cache_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients), cmocka_unit_test(test_learnt),
        cmocka_unit_test(test_margin),    cmocka_unit_test(test_models),
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_products),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
