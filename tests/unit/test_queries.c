/* test_queries.c: queries estimated from K, V and weights: against those of a small model whose
 * inputs are known, and weights that cannot serve. Not for real models (tests/quality). */
#include "weights_support.h"

#include "formats/cache/keys.h"
#include "formats/cache/mapped.h"
#include "formats/model/queries.h"

/* 2 KV heads, 4 query heads, 8 channels each: K and V have 32 rows together */
enum { KV = 2, QUERY = 4, CHANNELS = 8, K_ROWS = KV * CHANNELS, Q_ROWS = QUERY * CHANNELS };
enum { MOST_IN = 64, MOST_ROWS = 300 };
#define THETA 10000.0

/* A layer, channels of heads in halves, and what goes through it. */
static struct layer {
    size_t in;
    int normed; /* heads of K and queries are normed */
    float k[K_ROWS * MOST_IN], v[K_ROWS * MOST_IN], q[Q_ROWS * MOST_IN];
    float k_bias[K_ROWS], v_bias[K_ROWS], q_bias[Q_ROWS], norm[MOST_IN];
    float k_norm[CHANNELS], q_norm[CHANNELS];
    float rows[2][MOST_ROWS * K_ROWS], query[MOST_ROWS * Q_ROWS]; /* after RoPE, in `pairing` */
} m;

/* What scaling divides angles by, and the factor of rotated channels. */
static double divisor[CHANNELS / 2] = {1, 1, 1, 1}, length = 1;

static double number(void) { /* in [-1, 1) */
    static uint64_t x = 1;
    x = x * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(x & ~UINT64_C(0x7ff)) * 0x1p-63;
}

static void fill(float *to, size_t n, double least, double most) {
    for (size_t i = 0; i < n; i++) to[i] = (float)(least + (most - least) * (number() + 1) / 2);
}

/* Makes n rows of `in` channels orthonormal, but for the factors of the norm. */
static void orthonormal(float *a, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double *row = calloc(m.in, sizeof *row), norm = 0;
        assert_non_null(row);
        for (size_t d = 0; d < m.in; d++) row[d] = number();
        for (size_t j = 0; j < 2 * i; j++) { /* twice for precision */
            const float *other = a + j % i * m.in;
            double share = 0;
            for (size_t d = 0; d < m.in; d++) share += row[d] * (double)(other[d] * m.norm[d]);
            for (size_t d = 0; d < m.in; d++) row[d] -= share * (double)(other[d] * m.norm[d]);
        }
        for (size_t d = 0; d < m.in; d++) norm += row[d] * row[d];
        for (size_t d = 0; d < m.in; d++)
            a[i * m.in + d] = (float)(row[d] / sqrt(norm) / (double)m.norm[d]);
        free(row);
    }
}

static void make_layer(size_t in, int normed) {
    m.in = in;
    m.normed = normed;
    fill(m.norm, in, 0.5, 1.5);
    fill(m.k, K_ROWS * in, -1, 1);
    fill(m.v, K_ROWS * in, -1, 1);
    fill(m.q, Q_ROWS * in, -1, 1);
    fill(m.k_bias, K_ROWS, -3, 3);
    fill(m.v_bias, K_ROWS, -3, 3);
    fill(m.q_bias, Q_ROWS, -3, 3);
    fill(m.k_norm, CHANNELS, 0.5, 2);
    fill(m.q_norm, CHANNELS, 0.5, 2);
}

/* Makes heads of a row: W (norm u) + bias, the heads' norm, RoPE. */
static void project(float *to, const float *w, const float *bias, const float *norm,
                    const double *u, size_t heads, int64_t position, enum kvc_pairing pairing) {
    for (size_t h = 0; h < heads; h++) {
        double x[CHANNELS], square = 0;
        for (size_t c = 0; c < CHANNELS; c++) {
            const size_t row = h * CHANNELS + c;
            x[c] = m.normed && norm ? 0 : (double)bias[row];
            for (size_t d = 0; d < m.in; d++)
                x[c] += (double)(w[row * m.in + d] * m.norm[d]) * u[d];
            square += x[c] * x[c] / CHANNELS;
        }
        for (size_t c = 0; c < CHANNELS && m.normed && norm; c++)
            x[c] *= (double)norm[c] / sqrt(square + 1e-5);
        for (size_t i = 0; i < CHANNELS / 2; i++) {
            const double angle = norm ? (double)position * pow(THETA, -2.0 * (double)i / CHANNELS) /
                                            divisor[i]
                                      : 0;
            const double longer = norm ? length : 1;
            const double a = x[i] * longer, b = x[i + CHANNELS / 2] * longer;
            const int apart = norm && pairing == KVC_PAIRING_INTERLEAVED;
            float *head = to + h * CHANNELS;
            head[apart ? 2 * i : i] = (float)(a * cos(angle) - b * sin(angle));
            head[apart ? 2 * i + 1 : i + CHANNELS / 2] = (float)(a * sin(angle) + b * cos(angle));
        }
    }
}

static int64_t position_of(size_t row) {
    return 3 + 2 * (int64_t)row;
}

/* Makes a cache of n rows in `pairing`, and m.query. */
static struct kvc_cache *make_cache(size_t n, enum kvc_pairing pairing) {
    const struct kvc_shape shape = {KVC_F32, n, KV, CHANNELS};
    struct kvc_error e = {.message = ""};
    for (size_t t = 0; t < n; t++) {
        double u[MOST_IN], norm = 0;
        for (size_t d = 0; d < m.in; d++) {
            u[d] = number();
            norm += u[d] * u[d];
        }
        for (size_t d = 0; d < m.in; d++) u[d] *= sqrt((double)m.in / norm);
        project(m.rows[0] + t * K_ROWS, m.k, m.k_bias, m.k_norm, u, KV, position_of(t), pairing);
        project(m.rows[1] + t * K_ROWS, m.v, m.v_bias, NULL, u, KV, 0, pairing);
        project(m.query + t * Q_ROWS, m.q, m.q_bias, m.q_norm, u, QUERY, position_of(t), pairing);
    }
    struct kvc_cache *c = kvc_cache_new(&e);
    assert_non_null(c);
    assert_int_equal(kvc_meta_set_pairing(&c->meta, pairing, &e), 0);
    assert_int_equal(kvc_meta_set_text(&c->meta, KVC_KEY_ROPE_TYPE, "default", &e), 0);
    assert_int_equal(kvc_meta_set_f64(&c->meta, KVC_KEY_ROPE_THETA, THETA, &e), 0);
    assert_int_equal(kvc_cache_add_part(c, KVC_PART_LIVE, n, &e), 0);
    for (size_t t = 0; t < n; t++) c->part[0].cells.pos[t] = position_of(t);
    assert_int_equal(kvc_cache_add_layer(c, 0, 3, KVC_LAYER_FULL, &e), 0);
    assert_int_equal(kvc_cache_add_tensor(c, 0, KVC_ROLE_K, &shape, &e), 0);
    assert_int_equal(kvc_cache_add_tensor(c, 0, KVC_ROLE_V, &shape, &e), 1);
    assert_int_equal(kvc_cache_map(c, NULL, NULL, &e), 0);
    for (uint32_t t = 0; t < 2; t++)
        assert_int_equal(kvc_cache_map_memory(c, t, (const uint8_t *)m.rows[t], &e), 0);
    if (kvc_cache_finish(c, &e)) fail_msg("%s", e.message);
    return c;
}

/* Channels of heads of a matrix or a vector in the order of interleaved pairs. */
static void interleave(float *to, const float *from, size_t rows, size_t in) {
    for (size_t o = 0; o < rows; o++)
        memcpy(to + in_pairs(o, CHANNELS) * in, from + o * in, in * sizeof *to);
}

enum { TENSORS = 9, NO_HEAD_NORMS = 7, OF_NORM = 6 };

/* Writes the layer as layer 3 of a file; `leave_out`: the number of a tensor, TENSORS: none. */
static const char *put_layer(int gguf, size_t leave_out) {
    static const char *const hf_name[TENSORS] = {
        "model.layers.3.self_attn.k_proj.weight", "model.layers.3.self_attn.k_proj.bias",
        "model.layers.3.self_attn.v_proj.weight", "model.layers.3.self_attn.v_proj.bias",
        "model.layers.3.self_attn.q_proj.weight", "model.layers.3.self_attn.q_proj.bias",
        "model.layers.3.input_layernorm.weight",  "model.layers.3.self_attn.k_norm.weight",
        "model.layers.3.self_attn.q_norm.weight"};
    static const char *const gguf_name[TENSORS] = {
        "blk.3.attn_k.weight",    "blk.3.attn_k.bias",        "blk.3.attn_v.weight",
        "blk.3.attn_v.bias",      "blk.3.attn_q.weight",      "blk.3.attn_q.bias",
        "blk.3.attn_norm.weight", "blk.3.attn_k_norm.weight", "blk.3.attn_q_norm.weight"};
    const char *const *name = gguf ? gguf_name : hf_name;
    const struct tensor all[TENSORS] = {
        {name[0], 0, 2, {K_ROWS, m.in}, m.k}, {name[1], 0, 1, {K_ROWS}, m.k_bias},
        {name[2], 0, 2, {K_ROWS, m.in}, m.v}, {name[3], 0, 1, {K_ROWS}, m.v_bias},
        {name[4], 0, 2, {Q_ROWS, m.in}, m.q}, {name[5], 0, 1, {Q_ROWS}, m.q_bias},
        {name[6], 0, 1, {m.in}, m.norm},      {name[7], 0, 1, {CHANNELS}, m.k_norm},
        {name[8], 0, 1, {CHANNELS}, m.q_norm}};
    static float k[K_ROWS * MOST_IN], q[Q_ROWS * MOST_IN], k_bias[K_ROWS], q_bias[Q_ROWS];
    struct tensor t[TENSORS];
    size_t n = 0;
    interleave(k, m.k, K_ROWS, m.in);
    interleave(q, m.q, Q_ROWS, m.in);
    interleave(k_bias, m.k_bias, K_ROWS, 1);
    interleave(q_bias, m.q_bias, Q_ROWS, 1);
    for (size_t i = 0; i < (m.normed ? TENSORS : NO_HEAD_NORMS); i++) {
        if (i == leave_out || (m.normed && (i == 1 || i == 5))) continue;
        t[n] = all[i];
        if (gguf && !m.normed) /* as llama.cpp's converter turns LLaMA's */
            t[n].values = i == 0   ? k
                          : i == 1 ? k_bias
                          : i == 4 ? q
                          : i == 5 ? q_bias
                                   : all[i].values;
        n++;
    }
    if (gguf) put_gguf("w.gguf", m.normed ? "qwen3" : "llama", t, n);
    else put_safetensors("w.safetensors", "", t, n);
    return in_folder(gguf ? "w.gguf" : "w.safetensors");
}

static struct kvc_cache *estimate(const struct kvc_cache *c, const char *path, unsigned threads,
                                  struct kvc_error *e) {
    *e = (struct kvc_error){.message = ""};
    struct kvc_weights *w = kvc_weights_open(path, e);
    if (!w) return NULL;
    struct kvc_cache *q = kvc_queries_estimate(c, w, threads, e);
    kvc_weights_close(w);
    return q;
}

static float *read_queries(const struct kvc_cache *q) {
    struct kvc_error e;
    const uint64_t n = q->tensor[0].shape.tokens;
    float *rows = calloc(n * Q_ROWS, sizeof *rows);
    assert_non_null(rows);
    assert_int_equal(q->tensor[0].shape.heads, QUERY);
    assert_int_equal(q->tensor[0].shape.dim, CHANNELS);
    assert_int_equal(q->tensor[0].shape.dtype, KVC_F32);
    assert_int_equal(q->read(q, 0, 0, n, (uint8_t *)rows, &e), 0);
    return rows;
}

static float *estimated(size_t n, enum kvc_pairing pairing, const char *path) {
    struct kvc_error e;
    struct kvc_cache *c = make_cache(n, pairing), *q = estimate(c, path, 1, &e);
    if (!q) fail_msg("%s", e.message);
    assert_int_equal(q->n_tensors, 1);
    assert_int_equal(q->tensor[0].role, KVC_ROLE_QUERIES);
    assert_int_equal(q->layer[0].index, 3);
    assert_int_equal(q->part[0].kind, KVC_PART_COMPANION);
    float *rows = read_queries(q);
    kvc_cache_free(q);
    kvc_cache_free(c);
    return rows;
}

static double error_of(const float *rows, const float *wanted, size_t n) {
    double apart = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        apart += (double)(rows[i] - wanted[i]) * (double)(rows[i] - wanted[i]);
        all += (double)wanted[i] * (double)wanted[i];
    }
    return sqrt(apart / all);
}

/* K and V determine the input: as many rows as it has channels, or more; in all pairings. */
static void test_determined(void **state) {
    (void)state;
    enum { ROWS = 20 };
    for (size_t in = 16; in <= 32; in += 16)
        for (int gguf = 0; gguf < 2; gguf++)
            for (int pairs = 0; pairs < 2; pairs++) {
                make_layer(in, 0);
                static float a[2 * K_ROWS * MOST_IN];
                if (in == 32) { /* a random square matrix may be hard to invert */
                    orthonormal(a, 2 * K_ROWS);
                    memcpy(m.k, a, K_ROWS * in * sizeof *a);
                    memcpy(m.v, a + K_ROWS * in, K_ROWS * in * sizeof *a);
                }
                float *rows = estimated(ROWS, pairs ? KVC_PAIRING_INTERLEAVED : KVC_PAIRING_HALVES,
                                        put_layer(gguf, TENSORS));
                assert_true(error_of(rows, m.query, ROWS * Q_ROWS) < 1e-3);
                free(rows);
            }
}

/* Where K is normed per head, its length is found from V and the directions of all heads. */
static void test_normed(void **state) {
    (void)state;
    enum { ROWS = 20 };
    for (int gguf = 0; gguf < 2; gguf++) {
        make_layer(20, 1);
        float *rows = estimated(ROWS, KVC_PAIRING_HALVES, put_layer(gguf, TENSORS));
        assert_true(error_of(rows, m.query, ROWS * Q_ROWS) < 2e-3);
        free(rows);
    }
}

static void refused(const struct kvc_cache *c, const char *path, enum kvc_code code,
                    const char *words) {
    struct kvc_error e;
    struct kvc_cache *q = estimate(c, path, 1, &e);
    assert_null(q);
    if (!strstr(e.message, words)) fail_msg("'%s' is not in: %s", words, e.message);
    assert_int_equal(e.code, code);
}

/* Sets divisors by the wavelengths of pairs, as transformers has them. */
static void scale_as_llama3(double factor, double original, double low, double high) {
    for (size_t i = 0; i < CHANNELS / 2; i++) {
        const double wave = 8 * atan(1) * pow(THETA, 2.0 * (double)i / CHANNELS);
        const double smooth = (original / wave - low) / (high - low);
        divisor[i] = 1 / ((1 - smooth) / factor + smooth);
        if (wave > original / low) divisor[i] = factor;
        if (wave < original / high) divisor[i] = 1;
    }
}

static void scale_as_yarn(double factor, double original, double fast, double slow) {
    const double first = fmax(floor(CHANNELS * log(original / (fast * 8 * atan(1))) / 2 /
                                    log(THETA)),
                              0),
                 last = ceil(CHANNELS * log(original / (slow * 8 * atan(1))) / 2 / log(THETA));
    for (size_t i = 0; i < CHANNELS / 2; i++) {
        const double kept = 1 - fmin(fmax(((double)i - first) / (last - first), 0), 1);
        divisor[i] = 1 / ((1 - kept) / factor + kept);
    }
    length = 0.1 * log(factor) + 1;
}

static void plain_rope(void) {
    for (size_t i = 0; i < CHANNELS / 2; i++) divisor[i] = 1;
    length = 1;
}

/* Returns how far estimates are from the queries; 1 where they are refused. */
static double estimate_error(const struct kvc_cache *c, const char *path, size_t n) {
    struct kvc_error e;
    struct kvc_cache *q = estimate(c, path, 1, &e);
    if (!q) return 1;
    float *rows = read_queries(q);
    const double error = error_of(rows, m.query, n * Q_ROWS);
    free(rows);
    kvc_cache_free(q);
    return error;
}

/* Scaled RoPE, whose numbers the metadata or a table of the GGUF file tell: heads normed or not. */
static void test_scaled(void **state) {
    (void)state;
    enum { ROWS = 20, LLAMA3, LLAMA3_TABLE, YARN, YARN_MORE, LINEAR, WAYS };
    struct kvc_error e;
    for (int way = LLAMA3; way < WAYS; way++)
        for (int normed = 0; normed < 2; normed++) {
            plain_rope();
            if (way <= LLAMA3_TABLE) scale_as_llama3(8, 512, 1, 4);
            if (way == YARN) scale_as_yarn(4, 1024, 32, 1);
            if (way == YARN_MORE) {
                scale_as_yarn(16, 1024, 8, 2);
                length = 1.5;
            }
            for (size_t i = 0; i < CHANNELS / 2 && way == LINEAR; i++) divisor[i] = 2;
            make_layer(normed ? 20 : 16, normed);
            const char *path = put_layer(1, TENSORS);
            struct kvc_cache *c = make_cache(ROWS, KVC_PAIRING_HALVES);
            assert_true(estimate_error(c, path, ROWS) > 0.02); /* the type is default */
            const char *const facts[][5] = {
                [LLAMA3] = {"rope.type=llama3", "rope.factor=8", "rope.original-context=512",
                            "rope.scaling={\"low_freq_factor\":1,\"high_freq_factor\":4}", NULL},
                [LLAMA3_TABLE] = {"rope.type=llama3", NULL},
                [YARN] = {"rope.type=yarn", "rope.factor=4", "rope.original-context=1024", NULL},
                [YARN_MORE] = {"rope.type=yarn", "rope.factor=16", "rope.original-context=1024",
                               "rope.scaling={\"beta_fast\":8,\"beta_slow\":2,"
                               "\"attention_factor\":1.5}",
                               NULL},
                [LINEAR] = {"rope.type=linear", "rope.factor=2", NULL}};
            assert_int_equal(kvc_meta_give(&c->meta, facts[way], &e), 0);
            if (way == LLAMA3_TABLE) {
                refused(c, path, KVC_ERR_UNSUPPORTED, "the angles by which RoPE rotated K are");
                struct kvc_rope_table *table = &c->meta.facts.rope_table;
                *table = (struct kvc_rope_table){.state = KVC_TABLE_READ,
                                                 .type = KVC_ROPE_TYPE_LLAMA3,
                                                 .pairs = CHANNELS / 2,
                                                 .length = 1};
                for (size_t i = 0; i < CHANNELS / 2; i++) table->divisor[i] = (float)divisor[i];
            }
            const double error = estimate_error(c, path, ROWS);
            if (!(error < 2e-3)) fail_msg("way %d, normed %d: %g", way, normed, error);
            kvc_cache_free(c);
        }
    plain_rope();
}

/* Types whose angles depend on what no cache tells. */
static void test_unknown_rope(void **state) {
    (void)state;
    struct kvc_error e;
    make_layer(40, 0);
    const char *path = put_layer(0, TENSORS);
    struct kvc_cache *c = make_cache(8, KVC_PAIRING_HALVES);
    assert_int_equal(kvc_meta_set_text(&c->meta, KVC_KEY_ROPE_TYPE, "longrope", &e), 0);
    refused(c, path, KVC_ERR_UNSUPPORTED, "layer 3: RoPE took one of two lists of angles");
    assert_int_equal(kvc_meta_set_text(&c->meta, KVC_KEY_ROPE_TYPE, "dynamic", &e), 0);
    refused(c, path, KVC_ERR_UNSUPPORTED, "kvc does not know RoPE of type 'dynamic'");
    assert_int_equal(kvc_meta_set_text(&c->meta, KVC_KEY_ROPE_TYPE, "default", &e), 0);
    c->meta.facts.rope_table.state = KVC_TABLE_OF_TWO;
    c->meta.facts.rope_table.type = KVC_ROPE_TYPE_DEFAULT;
    refused(c, path, KVC_ERR_UNSUPPORTED, "RoPE took one of two lists of angles");
    c->meta.facts.rope_table.state = KVC_TABLE_DAMAGED;
    refused(c, path, KVC_ERR_UNSUPPORTED, "the angles by which RoPE rotated K are not known");
    kvc_cache_free(c);
}

/* Where they do not determine it, the estimate has the energy of an input, and K and V. */
static void test_energy(void **state) {
    (void)state;
    enum { ROWS = 30 };
    make_layer(32, 0);
    orthonormal(m.q, Q_ROWS);
    memset(m.q_bias, 0, sizeof m.q_bias);
    fill(m.v, K_ROWS * m.in, 0, 0); /* only K is known */
    float *rows = estimated(ROWS, KVC_PAIRING_HALVES, put_layer(0, TENSORS));
    static float unturned[ROWS * Q_ROWS];
    for (size_t t = 0; t < ROWS; t++) {
        double energy = 0, apart = 0, all = 0, u[MOST_IN];
        float k[K_ROWS];
        for (size_t h = 0; h < QUERY; h++) /* RoPE backwards */
            for (size_t i = 0; i < CHANNELS / 2; i++) {
                const double angle = (double)position_of(t) *
                                     pow(THETA, -2.0 * (double)i / CHANNELS);
                const float *head = rows + t * Q_ROWS + h * CHANNELS;
                const double a = (double)head[i], b = (double)head[i + CHANNELS / 2];
                float *to = unturned + t * Q_ROWS + h * CHANNELS;
                to[i] = (float)(a * cos(angle) + b * sin(angle));
                to[i + CHANNELS / 2] = (float)(b * cos(angle) - a * sin(angle));
            }
        for (size_t i = 0; i < Q_ROWS; i++)
            energy += (double)rows[t * Q_ROWS + i] * (double)rows[t * Q_ROWS + i];
        assert_true(fabs(energy / (double)m.in - 1) < 1e-3);
        for (size_t d = 0; d < m.in; d++) {
            u[d] = 0;
            for (size_t i = 0; i < Q_ROWS; i++)
                u[d] += (double)(unturned[t * Q_ROWS + i] * m.q[i * m.in + d] * m.norm[d]);
        }
        project(k, m.k, m.k_bias, m.k_norm, u, KV, position_of(t), KVC_PAIRING_HALVES);
        for (size_t i = 0; i < K_ROWS; i++) {
            const double own = (double)m.rows[0][t * K_ROWS + i];
            apart += ((double)k[i] - own) * ((double)k[i] - own);
            all += own * own;
        }
        assert_true(apart < 1e-5 * all);
    }
    /* and is not the true one */
    assert_true(error_of(rows, m.query, ROWS * Q_ROWS) > 0.2);
    free(rows);
}

/* 64 of the last 256 rows; the same by any number of threads; rows that are not finite do not
 * disturb others. */
static void test_rows(void **state) {
    (void)state;
    struct kvc_error e;
    make_layer(48, 0);
    const char *path = put_layer(0, TENSORS);
    struct kvc_cache *c = make_cache(MOST_ROWS, KVC_PAIRING_HALVES);
    float *rows[3];
    for (unsigned i = 0; i < 3; i++) {
        if (i == 2) m.rows[1][(MOST_ROWS - 1) * K_ROWS] = NAN;
        struct kvc_cache *q = estimate(c, path, i + 1, &e);
        if (!q) fail_msg("%s", e.message);
        assert_int_equal(q->tensor[0].shape.tokens, KVC_QUERIES_ROWS);
        for (size_t t = 0; t < KVC_QUERIES_ROWS; t++)
            assert_int_equal(kvc_cells_position(&q->part[0].cells, t),
                             position_of(MOST_ROWS - 1 - 4 * (KVC_QUERIES_ROWS - 1 - t)));
        rows[i] = read_queries(q);
        kvc_cache_free(q);
    }
    const size_t last = (KVC_QUERIES_ROWS - 1) * Q_ROWS;
    assert_memory_equal(rows[0], rows[1], (last + Q_ROWS) * sizeof **rows);
    assert_true(error_of(rows[2], rows[0], last) < 1e-6);
    assert_true(isfinite(rows[2][last]));
    for (int i = 0; i < 3; i++) free(rows[i]);
    kvc_cache_free(c);
}

/* Weights that cannot serve. */
static void test_weights(void **state) {
    (void)state;
    make_layer(40, 0);
    struct kvc_cache *c = make_cache(8, KVC_PAIRING_HALVES);
    refused(c, put_layer(0, 4), KVC_ERR_UNSUPPORTED,
            "layer 3: w.safetensors: no tensor 'model.layers.3.self_attn.q_proj.weight'");
    refused(c, put_layer(1, 4), KVC_ERR_UNSUPPORTED,
            "layer 3: w.gguf: no tensor 'blk.3.attn_q.weight'");
    refused(c, put_layer(0, 2), KVC_ERR_UNSUPPORTED, "no tensor 'model.layers.3.self_attn.v_proj");
    refused(c, put_layer(0, 0), KVC_ERR_UNSUPPORTED, "no tensor 'model.layers.3.self_attn.k_proj");
    refused(c, put_layer(0, OF_NORM), KVC_ERR_UNSUPPORTED, "layer 3: the weights have no norm");
    struct kvc_error e;
    assert_int_equal(kvc_meta_set_u64(&c->meta, KVC_KEY_MODEL_HEADS, QUERY + 2, &e), 0);
    refused(c, put_layer(0, TENSORS), KVC_ERR_OTHER_MODEL, "4 query heads, but the model has 6");
    kvc_meta_remove(&c->meta, KVC_KEY_MODEL_HEADS);

    const struct tensor odd[] = {
        {"model.layers.3.self_attn.k_proj.weight", 0, 2, {K_ROWS, m.in}, m.k},
        {"model.layers.3.self_attn.v_proj.weight", 0, 2, {K_ROWS, m.in}, m.v},
        {"model.layers.3.input_layernorm.weight", 0, 1, {m.in}, m.norm},
        {"model.layers.3.self_attn.q_proj.weight", 0, 2, {K_ROWS + 1, m.in}, m.q}};
    put_safetensors("w.safetensors", "", odd, 4);
    refused(c, in_folder("w.safetensors"), KVC_ERR_OTHER_MODEL,
            "q_proj.weight' has shape [17][40], but the cache needs [16][40]");
    struct tensor other[4];
    memcpy(other, odd, sizeof odd);
    other[0].dim[0] = K_ROWS - CHANNELS;
    put_safetensors("w.safetensors", "", other, 4);
    refused(c, in_folder("w.safetensors"), KVC_ERR_OTHER_MODEL, "k_proj.weight' has shape [8][40]");

    float *const spoilt[] = {&m.k[5], &m.v[7], &m.norm[2], &m.q[11], &m.q_bias[1]};
    for (size_t i = 0; i < sizeof spoilt / sizeof *spoilt; i++) {
        const float was = *spoilt[i];
        *spoilt[i] = i % 2 ? INFINITY : NAN;
        refused(c, put_layer(0, TENSORS), KVC_ERR_DAMAGED, "not finite");
        *spoilt[i] = was;
    }
    for (size_t i = 0; i < m.in * K_ROWS; i++) m.v[i] /= 4; /* not those of the cache */
    refused(c, put_layer(0, TENSORS), KVC_ERR_OTHER_MODEL,
            "K and V are not those of these weights");
    memset(m.v, 0, sizeof m.v);
    memset(m.k, 0, sizeof m.k);
    refused(c, put_layer(0, TENSORS), KVC_ERR_UNSUPPORTED, "layer 3: a matrix is not positive");
    kvc_cache_free(c);
}

/* Rows of A that depend on each other are no trouble. */
static void test_singular(void **state) {
    (void)state;
    enum { ROWS = 20 };
    make_layer(40, 0);
    memcpy(m.v + m.in, m.v, m.in * sizeof *m.v);
    memset(m.k, 0, m.in * sizeof *m.k);
    float *rows = estimated(ROWS, KVC_PAIRING_HALVES, put_layer(0, TENSORS));
    assert_true(error_of(rows, m.query, ROWS * Q_ROWS) < 1);
    free(rows);
}

/* Caches that do not say enough. */
static void test_caches(void **state) {
    (void)state;
    struct kvc_error e;
    make_layer(40, 0);
    const char *path = put_layer(0, TENSORS);
    struct kvc_cache *c = make_cache(8, KVC_PAIRING_HALVES);
    struct kvc_cache *q = estimate(c, path, 0, &e);
    assert_non_null(q);
    kvc_cache_free(q);
    assert_int_equal(kvc_meta_set_f64(&c->meta, KVC_KEY_ROPE_THETA, 50, &e), 0);
    refused(c, path, KVC_ERR_OTHER_MODEL, "its RoPE?");
    kvc_meta_remove(&c->meta, KVC_KEY_ROPE_THETA);
    refused(c, path, KVC_ERR_UNSUPPORTED, "the angles by which RoPE rotated K are not known");
    kvc_meta_remove(&c->meta, KVC_KEY_ROPE_PAIRING);
    refused(c, path, KVC_ERR_USAGE, "RoPE pairing of the cache's K is unknown");
    assert_int_equal(kvc_meta_set_text(&c->meta, KVC_KEY_ROPE_K, "pre", &e), 0);
    refused(c, path, KVC_ERR_UNSUPPORTED, "K is stored before RoPE");
    assert_int_equal(kvc_meta_set_bool(&c->meta, KVC_KEY_HEADS_KNOWN, 0, &e), 0);
    refused(c, path, KVC_ERR_USAGE, "how many KV heads");
    kvc_cache_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_determined),   cmocka_unit_test(test_normed),
        cmocka_unit_test(test_energy),       cmocka_unit_test(test_rows),
        cmocka_unit_test(test_weights),      cmocka_unit_test(test_singular),
        cmocka_unit_test(test_caches),       cmocka_unit_test(test_scaled),
        cmocka_unit_test(test_unknown_rope),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
