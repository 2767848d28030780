/* test_lossy_lowrank.c: the stage `lowrank`: errors beside the optimum, which eigenvalues tell. Not
 * for the eigenvalues themselves (test_eigen.c). */
#include "lossy_support.h"

/* --- lowrank --- */

/* Eigenvalues of a symmetric matrix, which is destroyed, by Jacobi's rotations. */
static void eigenvalues(double *a, size_t n, double *value) {
    for (int sweep = 0; sweep < 30; sweep++)
        for (size_t p = 0; p < n; p++)
            for (size_t q = p + 1; q < n; q++) {
                if (fabs(a[p * n + q]) < 1e-300) continue;
                const double theta = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
                const double t = (theta < 0 ? -1 : 1) / (fabs(theta) + sqrt(theta * theta + 1)),
                             c = 1 / sqrt(t * t + 1), s = t * c;
                for (size_t i = 0; i < n; i++) {
                    const double x = a[i * n + p], y = a[i * n + q];
                    a[i * n + p] = c * x - s * y;
                    a[i * n + q] = s * x + c * y;
                }
                for (size_t i = 0; i < n; i++) {
                    const double x = a[p * n + i], y = a[q * n + i];
                    a[p * n + i] = c * x - s * y;
                    a[q * n + i] = s * x + c * y;
                }
            }
    for (size_t i = 0; i < n; i++) value[i] = a[i * n + i];
}

/* Returns the minimum squared error at rank r of `dim` channels of x from channel `at` on; *all is
 * the sum of squares. */
static double optimum(const float *x, size_t rows, size_t width, size_t at, size_t dim, size_t r,
                      double *all) {
    double *gram = get_memory(dim * dim * sizeof *gram), *value = get_memory(dim * sizeof *value),
           sum = 0;
    for (size_t i = 0; i < dim; i++)
        for (size_t j = 0; j < dim; j++) {
            gram[i * dim + j] = 0;
            for (size_t t = 0; t < rows; t++)
                gram[i * dim + j] += (double)x[t * width + at + i] * (double)x[t * width + at + j];
        }
    for (size_t i = 0; i < dim; i++) *all += gram[i * dim + i];
    eigenvalues(gram, dim, value);
    for (size_t k = 0; k < dim; k++) sum += value[k];
    for (size_t k = 0; k < r; k++) { /* the largest, one after another */
        size_t most = 0;
        for (size_t i = 1; i < dim; i++)
            if (value[i] > value[most]) most = i;
        sum -= value[most];
        value[most] = -1;
    }
    free(gram);
    free(value);
    return sum > 0 ? sum : 0;
}

/* Decoded values are the sums of products that lowrank.md writes down. */
static void check_products(const struct coded *c, const float *y, size_t heads, size_t dim,
                           size_t r) {
    float *b = get_memory(heads * r * dim * sizeof *b),
          *a = get_memory(256 * heads * r * sizeof *a);
    assert_int_equal(c->encoder.side.count, 1);
    assert_int_equal(c->encoder.side.section[0].type, KVC_SECTION_FACTOR_B);
    const uint8_t *p = c->encoder.side.section[0].data;
    read_halves(b, heads * r * dim, &p);
    for (size_t n = 0; n < c->blocks; n++) {
        const size_t rows = (size_t)rows_in_block(c, n), first = n * (size_t)c->w.block_rows;
        const struct kvc_section *s = section_of(&c->block[n], KVC_SECTION_FACTOR_A, 0);
        assert_non_null(s);
        p = s->data;
        read_halves(a, rows * heads * r, &p);
        assert_ptr_equal(p, s->data + s->size);
        for (size_t i = 0; i < rows * heads * dim; i++) {
            const size_t t = i / (heads * dim), h = i / dim % heads;
            float sum = 0;
            for (size_t k = 0; k < r; k++)
                sum = fmaf(a[(t * heads + h) * r + k], b[(h * r + k) * dim + i % dim], sum);
            assert_true(sum == y[first * heads * dim + i]);
        }
    }
    free(a);
    free(b);
}

static double check_rank(const struct layer *l, unsigned role, size_t r, int layer, const char *how,
                         uint64_t block_rows) {
    const size_t rows = (size_t)l->shape[role].tokens, width = width_of(l, role);
    const size_t heads = layer ? 1 : (size_t)l->shape[role].heads, dim = width / heads,
                 rank = r < dim ? r : dim;
    const int power = strstr(how, "power") != NULL, exact = strstr(how, "exact") != NULL;
    struct coded c;
    char recipe[64];
    double error = 0, best = 0, all = 0;
    snprintf(recipe, sizeof recipe, "lowrank:r=%zu%s%s", r, layer ? ":layer" : "", how);
    must_code(
        &c, &(struct wanted){.recipe = recipe, .layer = l, .role = role, .block_rows = block_rows});
    uint8_t *back = decode(&c, NULL);
    float *x = layer_values(l, role), *y = values_of(back, l->shape[role].dtype, rows * width);
    if (l->shape[role].dtype == KVC_F32) check_products(&c, y, heads, dim, rank);
    for (size_t i = 0; i < rows * width; i++) error += pow((double)x[i] - (double)y[i], 2);
    for (size_t h = 0; h < heads; h++) best += optimum(x, rows, width, h * dim, dim, rank, &all);
    /* what rounding factors and results costs */
    const double halves = all * (l->shape[role].dtype == KVC_BF16 ? 1e-5 : 1e-6);
    if (l->shape[role].dtype == KVC_F32 && error < best * (1 - 1e-6) - halves)
        fail_msg("%s: squared error %g below the optimum %g", recipe, error, best);
    if (!power && error > best * (exact ? 1.001 : 1.01 * 1.01) + halves)
        fail_msg("%s: squared error %g, optimum %g of %g", recipe, error, best, all);
    if (power && error > best + 0.02 * all)
        fail_msg("%s: squared error %g, optimum %g of %g", recipe, error, best, all);
    if (rank == dim && !power) assert_true(error <= halves);
    free(x);
    free(y);
    free(back);
    code_free(&c);
    return error;
}

/* Values near a few directions, as those of caches are, and noise. */
static void make_directed(struct layer *l, unsigned role) {
    const size_t width = width_of(l, role), rows = (size_t)l->shape[role].tokens;
    float *direction = get_memory(6 * width * sizeof *direction);
    for (size_t i = 0; i < 6 * width; i++) direction[i] = random_normal();
    for (size_t t = 0; t < rows; t++) {
        float a[6];
        for (int k = 0; k < 6; k++) a[k] = ldexpf(random_normal(), 2 * (5 - k));
        for (size_t i = 0; i < width; i++) {
            float x = 0.5f * random_normal();
            for (size_t k = 0; k < 6; k++) x += a[k] * direction[k * width + i];
            put_value(l->rows[role], l->shape[role].dtype, t * width + i, x);
        }
    }
    free(direction);
}

static void ranks(void **state) {
    (void)state;
    static const size_t r[] = {1, 2, 4, 20, 256};
    for (unsigned d = 0; d < 3; d++)
        for (unsigned role = 0; role < 2; role++)
            for (size_t i = 0; i < 5; i++) {
                struct layer l = make_layer(float_dtypes[d], 150, 2, 20);
                check_rank(&l, role, r[i], 0, "", 64);
                check_rank(&l, role, r[i], 1, "", 64);
                make_directed(&l, role);
                check_rank(&l, role, r[i], 0, "", 256);
                check_rank(&l, role, r[i], 0, ":power=3", 256);
                check_rank(&l, role, r[i], 1, "", 50);
                check_rank(&l, role, r[i], 0, ":exact", 256);
                check_rank(&l, role, r[i], 1, ":exact", 50);
                free_layer(&l);
            }
    struct layer few = make_layer(KVC_F32, 3, 1, 80), none = make_layer(KVC_F32, 40, 1, 8);
    check_rank(&few, K, 4, 0, "", 256); /* fewer rows than the rank */
    check_rank(&few, K, 4, 0, ":power=3", 256);
    memset(none.rows[K], 0, 40 * 32);
    assert_true(check_rank(&none, K, 2, 0, "", 256) == 0);
    assert_true(check_rank(&none, K, 2, 0, ":power=3", 256) == 0);
    free_layer(&few);
    free_layer(&none);
    /* one direction alone: the others are rounding */
    for (size_t i = 0; i < 5; i++)
        for (int kind = 0; kind < 3; kind++) {
            struct layer alike = make_layer(KVC_F32, 150, 1, 16);
            for (size_t k = 0; k < 150 * 16; k++)
                put_value(alike.rows[K], KVC_F32, k,
                          kind == 0   ? -38.75f
                          : kind == 1 ? (k % 16 == 6 ? -494 : -38.75f)
                                      : (float)(k / 16 % 7) * (float)(k % 16 + 1) / 3);
            check_rank(&alike, K, r[i], 0, "", 256);
            check_rank(&alike, K, r[i], 0, ":power=2", 256);
            check_rank(&alike, K, r[i], 1, ":power=5", 256);
            free_layer(&alike);
        }
}

/* Each segment has directions of its own, out of its rows alone; what follows them changes no block
 * before. */
static void segments(void **state) {
    (void)state;
    struct layer l = make_layer(KVC_F32, 300, 2, 16), cut = l;
    cut.shape[K].tokens = cut.shape[V].tokens = 200;
    struct coded a, b;
    must_code(&a,
              &(struct wanted){
                  .recipe = "lowrank:r=3", .layer = &l, .block_rows = 50, .first = 100, .n = 100});
    must_code(&b, &(struct wanted){.recipe = "lowrank:r=3",
                                   .layer = &cut,
                                   .block_rows = 50,
                                   .first = 100,
                                   .n = 100});
    uint8_t *x = decode(&a, NULL), *y = decode(&b, NULL);
    assert_memory_equal(x, y, 100 * 32 * 4);
    free(x);
    free(y);
    code_free(&a);
    code_free(&b);
    free_layer(&l);
}

/* After quant, the remaining error shrinks with the rank. */
static void lowrank_behind_quant(void **state) {
    (void)state;
    static const char *const recipes[] = {"quant:kcvt:bits=2", "quant:kcvt:bits=2,lowrank:r=2",
                                          "quant:kcvt:bits=2,lowrank:r=8",
                                          "quant:kcvt:bits=2,lowrank:r=8,lowrank:r=8"};
    for (unsigned role = 0; role < 2; role++) {
        struct layer l = make_layer(KVC_F32, 200, 2, 32);
        double before = INFINITY;
        for (size_t i = 0; i < 4; i++) {
            uint8_t *back = there_and_back(recipes[i], &l, role, 64);
            double error = 0;
            for (size_t k = 0; k < 200 * 64; k++)
                error += pow((double)get_value(back, KVC_F32, k) -
                                 (double)get_value(l.rows[role], KVC_F32, k),
                             2);
            assert_true(error < before);
            before = error;
            free(back);
        }
        free_layer(&l);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks),
        cmocka_unit_test(segments),
        cmocka_unit_test(lowrank_behind_quant),
    };
    return cmocka_run_group_tests_name("lossy_lowrank", tests, NULL, NULL);
}
