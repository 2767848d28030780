/* test_lossy_scores.c: the stages that score channels or tokens, `prune` and `saliency`, by the
 * attention of queries, computed in double. Not for kvc-diff's attention (test_attention.c). */
#include "lossy_support.h"

/* --- attention of the queries, in double --- */

/* The weights of query q of query head i: to[row]. */
static void attend(const struct layer *l, size_t q, size_t i, const float *key, double *to) {
    const size_t rows = (size_t)l->shape[K].tokens, dim = (size_t)l->shape[K].dim,
                 heads = (size_t)l->shape[K].heads;
    const size_t h = i / (size_t)(l->query_heads / heads);
    double most = -INFINITY, sum = 0;
    for (size_t t = 0; t < rows; t++) {
        to[t] = 0;
        for (size_t d = 0; d < dim; d++)
            to[t] += (double)l->query[(q * (size_t)l->query_heads + i) * dim + d] *
                     (double)key[(t * heads + h) * dim + d];
        to[t] /= sqrt((double)dim);
        if (l->position[t] > l->query_position[q]) to[t] = -INFINITY;
        most = fmax(most, to[t]);
    }
    for (size_t t = 0; t < rows; t++) sum += to[t] = exp(to[t] - most);
    for (size_t t = 0; t < rows; t++) to[t] /= sum;
}

/* --- prune --- */

enum { QUERY, L1, L2 };

/* prune.md's scores: to[head][channel]. */
static void prune_scores(const struct layer *l, unsigned role, int by, int mean, size_t window,
                         size_t first, size_t n, double *to) {
    const size_t heads = (size_t)l->shape[role].heads, dim = (size_t)l->shape[role].dim,
                 width = heads * dim;
    const size_t from = l->n_queries > window ? (size_t)l->n_queries - window : 0;
    float *x = layer_values(l, role), *key = layer_values(l, K);
    double *weight = get_memory((size_t)l->shape[K].tokens * sizeof *weight);
    for (size_t c = 0; c < width; c++) {
        const size_t h = c / dim, group = l->query_heads ? (size_t)l->query_heads / heads : 0;
        double sum = 0, size = 0, square = 0, energy = 0;
        for (size_t t = first; t < first + n; t++) {
            sum += (double)x[t * width + c];
            size += fabs((double)x[t * width + c]);
            square += pow((double)x[t * width + c], 2);
        }
        to[c] = square / (double)n - (mean ? pow(sum / (double)n, 2) : 0);
        if (by == L1) to[c] = size / (double)n;
        if (by != QUERY) continue;
        if (role == V) to[c] = 0;
        for (size_t q = from; q < l->n_queries && role == K; q++)
            for (size_t g = 0; g < group; g++)
                energy += pow(
                    (double)l->query[(q * (size_t)l->query_heads + h * group + g) * dim + c % dim],
                    2);
        if (role == K) to[c] *= energy / (double)((l->n_queries - from) * group);
    }
    for (size_t q = from; q < l->n_queries && by == QUERY && role == V; q++)
        for (size_t i = 0; i < l->query_heads; i++) {
            const size_t h = i / ((size_t)l->query_heads / heads);
            attend(l, q, i, key, weight);
            for (size_t d = 0; d < dim; d++) {
                double out = 0;
                for (size_t t = 0; t < l->shape[K].tokens; t++)
                    out += weight[t] * (double)x[t * width + h * dim + d];
                to[h * dim + d] += out * out;
            }
        }
    free(weight);
    free(x);
    free(key);
}

/* share: in hundredths. */
static void check_prune(const struct layer *l, unsigned role, unsigned share, int by, int mean,
                        size_t window, size_t first, size_t n) {
    const enum kvc_dtype dtype = l->shape[role].dtype;
    const size_t heads = (size_t)l->shape[role].heads, dim = (size_t)l->shape[role].dim,
                 width = heads * dim;
    const size_t size = kvc_dtype_info(dtype)->size, out = dim * share / 100;
    double *score = get_memory(width * sizeof *score);
    struct coded c;
    char recipe[100];
    snprintf(recipe, sizeof recipe, "prune:%c=0.%02u%s%s:window=%zu,split", role == V ? 'v' : 'k',
             share,
             by == L1   ? ":by=l1"
             : by == L2 ? ":by=l2"
                        : "",
             mean ? ":mean" : "", window);
    must_code(&c, &(struct wanted){.recipe = recipe,
                                   .layer = l,
                                   .role = role,
                                   .block_rows = 60,
                                   .first = first,
                                   .n = n});
    uint8_t *back = decode(&c, NULL);
    prune_scores(l, role, by, mean, window, first, n, score);
    const struct kvc_section *mask = section_of(&c.encoder.side, KVC_SECTION_MASK, 0);
    if (!out) {
        assert_int_equal(c.encoder.side.count, 0);
        assert_memory_equal(back, l->rows[role] + first * width * size, n * width * size);
    } else {
        assert_non_null(mask);
        assert_int_equal(mask->size, (width + 7) / 8);
    }
    for (size_t h = 0; h < heads && out; h++) {
        size_t count = 0;
        for (size_t i = h * dim; i < (h + 1) * dim; i++) {
            size_t below = 0, clearly = 0; /* channels of lower scores, and of clearly lower ones */
            for (size_t j = h * dim; j < (h + 1) * dim; j++) {
                below += score[j] < score[i] * 1.0001;
                clearly += score[j] < score[i] * 0.9999 ||
                           (by != QUERY && score[j] == score[i] && j < i);
            }
            if (bit(mask->data, i) ? clearly >= out : below - 1 < out && clearly < out)
                fail_msg("%s: channel %zu is %s", recipe, i,
                         bit(mask->data, i) ? "left out" : "kept");
            count += (size_t)bit(mask->data, i);
        }
        assert_int_equal(count, out);
    }
    for (size_t i = 0; i < width && out; i++) {
        double sum = 0;
        for (size_t t = 0; t < n; t++)
            sum += (double)get_value(l->rows[role], dtype, (first + t) * width + i);
        uint8_t want[4];
        put_value(want, dtype, 0, mean ? (float)(sum / (double)n) : 0);
        for (size_t t = 0; t < n; t++) {
            const uint8_t *is = back + (t * width + i) * size;
            if (bit(mask->data, i)) assert_memory_equal(is, want, size);
            else assert_memory_equal(is, l->rows[role] + ((first + t) * width + i) * size, size);
        }
    }
    assert_true(!out || !mean == !section_of(&c.encoder.side, KVC_SECTION_MEAN, 0));
    free(score);
    free(back);
    code_free(&c);
}

static void pruned_channels(void **state) {
    (void)state;
    static const unsigned shares[] = {1, 30, 50, 95};
    for (unsigned d = 0; d < 3; d++)
        for (uint64_t group = 1; group <= 3; group++) {
            struct layer l = make_layer(float_dtypes[d], 150, 2, 20);
            for (size_t t = 75; t < 150; t++) l.position[t] += 10;
            add_queries(&l, 9, group);
            /* -0 */
            for (size_t i = 0; i < 150 * 40; i += 37)
                put_pattern(l.rows[V], float_dtypes[d], i, d ? 0x8000 : 0x80000000);
            for (size_t s = 0; s < 4; s++)
                for (unsigned role = 0; role < 2; role++)
                    for (int by = 0; by < 3; by++)
                        for (int mean = 0; mean < 2; mean++) {
                            check_prune(&l, role, shares[s], by, mean, 32, 0, 150);
                            /* the second of two segments */
                            check_prune(&l, role, shares[s], by, mean, 4, 60, 90);
                        }
            free_layer(&l);
        }
    /* equal scores: the first channels go */
    struct layer l = make_layer(KVC_F32, 10, 2, 12);
    for (size_t i = 0; i < 240; i++) put_value(l.rows[K], KVC_F32, i, 2);
    check_prune(&l, K, 50, L1, 0, 32, 0, 10);
    check_prune(&l, K, 50, L2, 1, 32, 0, 10);
    free_layer(&l);
}

static void must_not_code(const char *recipe, const struct layer *l, unsigned role,
                          const char *words) {
    struct coded c;
    struct kvc_error e;
    if (!code(&c, &(struct wanted){.recipe = recipe, .layer = l, .role = role}, &e))
        fail_msg("%s is taken", recipe);
    assert_int_equal(e.code, KVC_ERR_UNSUPPORTED);
    if (!strstr(e.message, words)) fail_msg("%s: '%s' says no '%s'", recipe, e.message, words);
    code_free(&c);
}

/* What `finite` takes out, and what is not a number among queries, counts in no score, mean or
 * weight: all else comes back nearly as it does without them. */
static void wild_values(void **state) {
    (void)state;
    static const struct {
        const char *recipe;
        unsigned role;
        float most; /* error of a value of the normal distribution */
    } cases[] = {
        {"prune:k=0.5:by=l1:mean,split", K, 8}, {"prune:k=0.5:by=l2:mean,split", K, 8},
        {"prune:k=0.5:mean,split", K, 8},       {"prune:v=0.5:by=l1:mean,split", V, 8},
        {"prune:v=0.5:mean,split", V, 8},       {"basis,code:step=0.1", K, 1},
        {"basis,steps,code:step=0.1", K, 1},
    };
    static const float wild[] = {1e38f, -1e30f, 0x1p50f, NAN, INFINITY};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t w = 0; w < sizeof wild / sizeof *wild; w++) {
            struct layer l = make_layer(KVC_F32, 150, 2, 20);
            add_queries(&l, 9, 2);
            for (size_t k = 0; k < 2 * 20; k++) {
                put_value(l.rows[cases[i].role], KVC_F32, (3 * k + 20) * 40 + k, wild[w]);
                l.query[(k % 9) * 80 + 2 * k] = wild[w];
            }
            struct coded c;
            must_code(&c, &(struct wanted){.recipe = cases[i].recipe,
                                           .layer = &l,
                                           .role = cases[i].role});
            float *x = layer_values(&l, cases[i].role), *y = (float *)(void *)decode(&c, NULL);
            for (size_t k = 0; k < 150 * 40; k++)
                if (kvc_is_tame(x[k]) ? !(fabsf(x[k] - y[k]) < cases[i].most)
                                      : memcmp(&x[k], &y[k], sizeof *x) != 0 && !isnan(x[k]))
                    fail_msg("%s with %g: %g becomes %g", cases[i].recipe, (double)wild[w],
                             (double)x[k], (double)y[k]);
            free(x);
            free(y);
            code_free(&c);
            free_layer(&l);
        }
}

/* --- saliency --- */

enum { CODE, PAPER, KNORM };

static void saliency_scores(const struct layer *l, int rule, double *to) {
    const size_t rows = (size_t)l->shape[K].tokens, dim = (size_t)l->shape[K].dim,
                 heads = (size_t)l->shape[K].heads;
    float *key = layer_values(l, K);
    double *weight = get_memory(rows * sizeof *weight);
    memset(to, 0, heads * rows * sizeof *to);
    for (size_t i = 0; i < heads * rows && rule == KNORM; i++)
        for (size_t d = 0; d < dim; d++)
            to[i] -= pow((double)key[(i % rows * heads + i / rows) * dim + d], 2);
    for (size_t q = 0; q < l->n_queries && rule != KNORM; q++)
        for (size_t i = 0; i < l->query_heads; i++) {
            attend(l, q, i, key, weight);
            for (size_t t = 0; t < rows; t++)
                to[i / ((size_t)l->query_heads / heads) * rows + t] += weight[t];
        }
    for (size_t i = 0; i < heads * rows && rule != KNORM; i++) {
        size_t n = 0;
        for (size_t q = 0; q < l->n_queries; q++)
            n += l->query_position[q] >= l->position[i % rows];
        if (rule == CODE) n = rows - i % rows;
        to[i] = n ? to[i] / (double)n : INFINITY;
    }
    free(weight);
    free(key);
}

/* share: in hundredths; sink: rows that do not reach the stage. */
static void check_saliency(const struct layer *l, unsigned role, unsigned share, int rule,
                           size_t sink, size_t first, size_t n) {
    const size_t rows = (size_t)l->shape[K].tokens, heads = (size_t)l->shape[K].heads;
    double *score = get_memory(heads * rows * sizeof *score);
    uint8_t *salient = get_memory(heads * n);
    struct coded c;
    char recipe[100] = "";
    const size_t skip = sink > first ? sink - first : 0, come = n - skip;
    const size_t most = come - (100 - share) * come / 100;
    if (sink) snprintf(recipe, sizeof recipe, "sink:%zu,", sink);
    snprintf(recipe + strlen(recipe), sizeof recipe - strlen(recipe), "saliency:%u.%02u%s,split",
             share / 100, share % 100,
             rule == PAPER   ? ":norm=paper"
             : rule == KNORM ? ":by=knorm"
                             : "");
    must_code(&c, &(struct wanted){.recipe = recipe,
                                   .layer = l,
                                   .role = role,
                                   .block_rows = 60,
                                   .first = first,
                                   .n = n});
    uint8_t *back = decode(&c, NULL);
    assert_memory_equal(back, l->rows[role] + first * kvc_row_bytes(&l->shape[role]),
                        n * kvc_row_bytes(&l->shape[role]));
    saliency_scores(l, rule, score);
    for (size_t b = 0, t = skip; b < c.blocks; b++) {
        const struct kvc_section *s = section_of(&c.block[b], KVC_SECTION_MASK, 0);
        const size_t end = b * 60 + (size_t)rows_in_block(&c, b), here = t < end ? end - t : 0;
        assert_true(!here == !s);
        if (s) assert_int_equal(s->size, (here * heads + 7) / 8);
        for (size_t i = 0; i < here; i++, t++)
            for (size_t h = 0; h < heads; h++)
                salient[h * n + t] = (uint8_t)bit(s->data, i * heads + h);
    }
    for (size_t h = 0; h < heads; h++) {
        size_t count = 0;
        for (size_t t = skip; t < n; t++) {
            const double own = score[h * rows + first + t], slack = 1e-4 * fabs(own);
            size_t above = 0, clearly = 0;
            for (size_t i = skip; i < n; i++) {
                const double other = score[h * rows + first + i];
                above += i != t && (other >= own || own - other < slack);
                clearly += i != t && other > own && other - own > slack;
            }
            if (salient[h * n + t] ? clearly >= most : above < most)
                fail_msg("%s: row %zu of head %zu is %d", recipe, t, h, salient[h * n + t]);
            count += salient[h * n + t];
        }
        assert_int_equal(count, most);
    }
    free(score);
    free(salient);
    free(back);
    code_free(&c);
}

static void salient_tokens(void **state) {
    (void)state;
    static const unsigned shares[] = {0, 1, 10, 40, 60, 99, 100};
    for (uint64_t group = 1; group <= 3; group += 2) {
        struct layer l = make_layer(KVC_F32, 150, 3, 16);
        for (size_t t = 20; t < 150; t++) l.position[t] += 7;
        add_queries(&l, 25, group);
        for (size_t s = 0; s < 7; s++)
            for (unsigned role = 0; role < 2; role++)
                for (int rule = 0; rule < 3; rule++) {
                    check_saliency(&l, role, shares[s], rule, 0, 0, 150);
                    check_saliency(&l, role, shares[s], rule, 10, 0, 150);
                    check_saliency(&l, role, shares[s], rule, 4, 60, 90);
                }
        /* queries that stand before the last keys: what nothing has looked at yet is kept */
        for (size_t q = 0; q < 25; q++) l.query_position[q] -= 30;
        check_saliency(&l, K, 50, CODE, 0, 0, 150);
        check_saliency(&l, V, 50, PAPER, 0, 0, 150);
        free_layer(&l);
    }
}

static void without_queries(void **state) {
    (void)state;
    struct layer l = make_layer(KVC_F16, 20, 2, 16);
    must_not_code("saliency:0.6,quant:zip:bits=4", &l, K, "no queries");
    must_not_code("saliency:0.6:norm=paper,quant:zip:bits=4", &l, V, "no queries");
    must_not_code("saliency:0.6:by=knorm,saliency:0.3:by=knorm,split", &l, K, "occurs twice");
    must_not_code("prune:k=0.5,split", &l, K, "no queries");
    must_not_code("prune:v=0.5,split", &l, V, "no queries");
    check_prune(&l, K, 50, L2, 0, 32, 0, 20);
    free_layer(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pruned_channels),
        cmocka_unit_test(wild_values),
        cmocka_unit_test(salient_tokens),
        cmocka_unit_test(without_queries),
    };
    return cmocka_run_group_tests_name("lossy_scores", tests, NULL, NULL);
}
