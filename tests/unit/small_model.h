/* small_model.h: a model of two layers of random weights, of all kinds, that runs in binary64; and
 * its file. The file that includes this one defines TOKENS, of a text, and AGAIN, those that run
 * after it. Not for real models (tests/quality). */
#ifndef SMALL_MODEL_H
#define SMALL_MODEL_H

#include "weights_support.h"

#include "codecs/random.h"

enum { LAYERS = 2, D = 12, KV = 2, Q = 4, C = 4, FFN = 20, WORDS = 30 };
enum { K_ROWS = KV * C, Q_ROWS = Q * C, WINDOW = 90 };
enum kind { LLAMA, QWEN2, QWEN3, GEMMA3, KINDS };
#define THETA 10000.0
#define EPSILON 1e-5

static struct weights {
    enum kind kind;
    float embedding[WORDS * D], logits[WORDS * D], last[D];
    struct weights_layer {
        float q[Q_ROWS * D], k[K_ROWS * D], v[K_ROWS * D], out[D * Q_ROWS];
        float q_bias[Q_ROWS], k_bias[K_ROWS], v_bias[K_ROWS], q_norm[C], k_norm[C];
        float norm[D], after[D], ffn_norm[D], ffn_after[D];
        float gate[FFN * D], up[FFN * D], down[D * FFN];
    } layer[LAYERS];
} m;

static int32_t token[TOKENS];

static double number(void) { /* in [-1, 1) */
    static uint64_t x = 5;
    return 2 * kvc_random_unit(x += KVC_RANDOM_STEP) - 1;
}

static void fill(float *to, size_t n, double middle, double spread) {
    for (size_t i = 0; i < n; i++) to[i] = (float)(middle + spread * number());
}

static void make_weights(enum kind kind, double weight_of_last_layer) {
    m.kind = kind;
    fill(m.embedding, WORDS * D, 0, 1);
    fill(m.logits, WORDS * D, 0, 1);
    fill(m.last, D, 1, 0.5);
    for (int i = 0; i < LAYERS; i++) {
        struct weights_layer *l = &m.layer[i];
        const double own = i == LAYERS - 1 ? weight_of_last_layer : 1;
        fill(l->q, Q_ROWS * D, 0, 1);
        fill(l->k, K_ROWS * D, 0, 1);
        fill(l->v, K_ROWS * D, 0, 1);
        fill(l->out, D * Q_ROWS, 0, own);
        fill(l->q_bias, Q_ROWS, 0, 1);
        fill(l->k_bias, K_ROWS, 0, 1);
        fill(l->v_bias, K_ROWS, 0, 1);
        fill(l->q_norm, C, 1, 0.5);
        fill(l->k_norm, C, 1, 0.5);
        fill(l->norm, D, 1, 0.5);
        fill(l->after, D, 1, 0.5);
        fill(l->ffn_norm, D, 1, 0.5);
        fill(l->ffn_after, D, 1, 0.5);
        fill(l->gate, FFN * D, 0, 1);
        fill(l->up, FFN * D, 0, 1);
        fill(l->down, D * FFN, 0, 0.5);
    }
}

/* --- the model in binary64 --- */

static void norm(double *to, const double *x, const float *factor, size_t n) {
    double square = 0;
    for (size_t i = 0; i < n; i++) square += x[i] * x[i] / (double)n;
    for (size_t i = 0; i < n; i++) to[i] = x[i] / sqrt(square + EPSILON) * (double)factor[i];
}

static void times(double *to, const float *w, const double *x, size_t out, size_t in) {
    for (size_t o = 0; o < out; o++) {
        to[o] = 0;
        for (size_t i = 0; i < in; i++) to[o] += (double)w[o * in + i] * x[i];
    }
}

/* Makes heads of queries or of K: bias or norm, RoPE. */
static void heads(double *x, size_t n, const float *bias, const float *factor, size_t position) {
    for (size_t h = 0; h < n; h++, x += C) {
        for (size_t c = 0; c < C && m.kind == QWEN2; c++) x[c] += (double)bias[h * C + c];
        if (m.kind == QWEN3 || m.kind == GEMMA3) norm(x, x, factor, C);
        for (size_t i = 0; i < C / 2; i++) {
            const double angle = (double)position * pow(THETA, -2.0 * (double)i / C), a = x[i],
                         b = x[i + C / 2];
            x[i] = a * cos(angle) - b * sin(angle);
            x[i + C / 2] = b * cos(angle) + a * sin(angle);
        }
    }
}

/* K and V that a token sees, by position: those of the cache, and those that runs make. */
static double seen[LAYERS][2][(TOKENS + AGAIN) * K_ROWS];

static double asked[LAYERS][TOKENS + AGAIN][Q_ROWS]; /* queries, by position */

static void attend(double *to, const double *q, int layer, size_t position) {
    const size_t first = m.kind == GEMMA3 && layer == 1 && position >= WINDOW
                             ? position + 1 - WINDOW
                             : 0;
    for (size_t h = 0; h < Q; h++) {
        double share[TOKENS + AGAIN], sum = 0;
        const size_t kv = h / (Q / KV) * C;
        for (size_t t = first; t <= position; t++) {
            double logit = 0;
            for (size_t c = 0; c < C; c++)
                logit += q[h * C + c] * seen[layer][0][t * K_ROWS + kv + c] / sqrt(C);
            sum += share[t] = exp(logit);
        }
        for (size_t c = 0; c < C; c++) {
            to[h * C + c] = 0;
            for (size_t t = first; t <= position; t++)
                to[h * C + c] += share[t] / sum * seen[layer][1][t * K_ROWS + kv + c];
        }
    }
}

/* Runs a token at a position; sets its log-probabilities. */
static void run_token(int32_t id, size_t position, double *logits) {
    double h[D], x[D], q[Q_ROWS], o[Q_ROWS], gate[FFN], up[FFN], added[D];
    for (size_t i = 0; i < D; i++)
        h[i] = (double)m.embedding[(size_t)id * D + i] * (m.kind == GEMMA3 ? sqrt(D) : 1);
    for (int i = 0; i < LAYERS; i++) {
        const struct weights_layer *l = &m.layer[i];
        double *k = seen[i][0] + position * K_ROWS, *v = seen[i][1] + position * K_ROWS;
        norm(x, h, l->norm, D);
        times(q, l->q, x, Q_ROWS, D);
        times(k, l->k, x, K_ROWS, D);
        times(v, l->v, x, K_ROWS, D);
        for (size_t c = 0; c < K_ROWS && m.kind == QWEN2; c++) v[c] += (double)l->v_bias[c];
        heads(q, Q, l->q_bias, l->q_norm, position);
        heads(k, KV, l->k_bias, l->k_norm, position);
        memcpy(asked[i][position], q, sizeof q);
        attend(o, q, i, position);
        times(added, l->out, o, D, Q_ROWS);
        if (m.kind == GEMMA3) norm(added, added, l->after, D);
        for (size_t c = 0; c < D; c++) h[c] += added[c];
        norm(x, h, l->ffn_norm, D);
        times(gate, l->gate, x, FFN, D);
        times(up, l->up, x, FFN, D);
        for (size_t c = 0; c < FFN; c++) {
            const double g = gate[c], inner = sqrt(2 / acos(-1)) * (g + 0.044715 * g * g * g);
            up[c] *= m.kind == GEMMA3 ? g * (1 + tanh(inner)) / 2 : g / (1 + exp(-g));
        }
        times(added, l->down, up, D, FFN);
        if (m.kind == GEMMA3) norm(added, added, l->ffn_after, D);
        for (size_t c = 0; c < D; c++) h[c] += added[c];
    }
    norm(x, h, m.last, D);
    times(logits, m.kind == QWEN2 ? m.logits : m.embedding, x, WORDS, D);
    double sum = 0;
    for (size_t i = 0; i < WORDS; i++) sum += exp(logits[i]);
    for (size_t i = 0; i < WORDS; i++) logits[i] -= log(sum);
}

/* --- its file --- */

enum { OF_LAYER = 18, MOST = LAYERS * OF_LAYER + 3 };

static float *changed[64]; /* copies that a file has instead */
static size_t n_changed;

/* Copies values: rows as llama.cpp's converter pairs them, or less 1. */
static const float *copy(const float *from, size_t n, size_t in, int pairs, float less) {
    float *to = changed[n_changed++] = malloc(n * in * sizeof *to);
    assert_non_null(to);
    for (size_t o = 0; o < n; o++) {
        const size_t c = o % C, at = o - c + (c < C / 2 ? 2 * c : 2 * (c - C / 2) + 1);
        for (size_t i = 0; i < in; i++) to[(pairs ? at : o) * in + i] = from[o * in + i] - less;
    }
    return to;
}

/* Writes the model; `without`: the name of a tensor of GGUF that is left out. */
static const char *put_model(int gguf, const char *without) {
    static const char *const of_layer[2][OF_LAYER] = {
        {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
         "self_attn.o_proj.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight",
         "mlp.down_proj.weight", "input_layernorm.weight", "post_attention_layernorm.weight",
         "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias",
         "self_attn.q_norm.weight", "self_attn.k_norm.weight", "pre_feedforward_layernorm.weight",
         "post_attention_layernorm.weight", "post_feedforward_layernorm.weight"},
        {"attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight", "ffn_gate.weight",
         "ffn_up.weight", "ffn_down.weight", "attn_norm.weight", "ffn_norm.weight", "attn_q.bias",
         "attn_k.bias", "attn_v.bias", "attn_q_norm.weight", "attn_k_norm.weight",
         "ffn_norm.weight", "post_attention_norm.weight", "post_ffw_norm.weight"}};
    static const char *const archs[KINDS] = {"llama", "qwen2", "qwen3", "gemma3"};
    const int pairs = gguf && m.kind == LLAMA, less = !gguf && m.kind == GEMMA3;
    static char name[MOST][80];
    struct tensor t[MOST];
    size_t n = 0;
    for (int i = 0; i < LAYERS; i++) {
        const struct weights_layer *l = &m.layer[i];
        const int normed = m.kind == QWEN3 || m.kind == GEMMA3, biased = m.kind == QWEN2,
                  gemma = m.kind == GEMMA3;
        const struct {
            int there;
            const float *values;
            unsigned rank;
            size_t out, in;
        } all[OF_LAYER - 1] = {{1, copy(l->q, Q_ROWS, D, pairs, 0), 2, Q_ROWS, D},
                               {1, copy(l->k, K_ROWS, D, pairs, 0), 2, K_ROWS, D},
                               {1, l->v, 2, K_ROWS, D},
                               {1, l->out, 2, D, Q_ROWS},
                               {1, l->gate, 2, FFN, D},
                               {1, l->up, 2, FFN, D},
                               {1, l->down, 2, D, FFN},
                               {1, copy(l->norm, D, 1, 0, (float)less), 1, D, 0},
                               {!gemma, l->ffn_norm, 1, D, 0},
                               {biased, l->q_bias, 1, Q_ROWS, 0},
                               {biased, l->k_bias, 1, K_ROWS, 0},
                               {biased, l->v_bias, 1, K_ROWS, 0},
                               {normed, copy(l->q_norm, C, 1, 0, (float)less), 1, C, 0},
                               {normed, copy(l->k_norm, C, 1, 0, (float)less), 1, C, 0},
                               {gemma, copy(l->ffn_norm, D, 1, 0, (float)less), 1, D, 0},
                               {gemma, copy(l->after, D, 1, 0, (float)less), 1, D, 0},
                               {gemma, copy(l->ffn_after, D, 1, 0, (float)less), 1, D, 0}};
        for (size_t k = 0; k < OF_LAYER - 1; k++) {
            snprintf(name[n], sizeof name[n], gguf ? "blk.%d.%s" : "model.layers.%d.%s", i,
                     of_layer[gguf][k]);
            if (all[k].there && !strstr(name[n], without)) {
                t[n] = (struct tensor){
                    name[n], 0, all[k].rank, {all[k].out, all[k].in}, all[k].values};
                n++;
            }
        }
    }
    t[n++] = (struct tensor){
        gguf ? "token_embd.weight" : "model.embed_tokens.weight", 0, 2, {WORDS, D}, m.embedding};
    t[n++] = (struct tensor){gguf ? "output_norm.weight" : "model.norm.weight",
                             0,
                             1,
                             {D},
                             copy(m.last, D, 1, 0, (float)less)};
    if (m.kind == QWEN2)
        t[n++] =
            (struct tensor){gguf ? "output.weight" : "lm_head.weight", 0, 2, {WORDS, D}, m.logits};
    if (gguf) put_gguf("w.gguf", archs[m.kind], t, n);
    else put_safetensors("w.safetensors", "", t, n);
    char config[200];
    snprintf(config, sizeof config,
             "{\"model_type\":\"%s\",\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
             "\"num_attention_heads\":%d}",
             archs[m.kind], Q);
    put_file("config.json", config, strlen(config));
    while (n_changed) free(changed[--n_changed]);
    return in_folder(gguf ? "w.gguf" : "w.safetensors");
}

#endif
