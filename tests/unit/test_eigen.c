/* test_eigen.c: directions by subspace iteration beside the eigenvectors, on spectra that are easy
 * and hard for it; linear equations, and their solutions in rounded numbers. */
#include "values_support.h"

#include "codecs/eigen.h"

#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed = 1;

static double normal(void) {
    double sum = -6;
    for (int i = 0; i < 12; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        sum += (double)(seed >> 11) * 0x1p-53;
    }
    return sum;
}

/* Makes the rows of an orthogonal matrix. */
static void make_basis(double *v, size_t dim) {
    for (size_t k = 0; k < dim; k++) {
        double *x = v + k * dim, square = 0;
        for (size_t i = 0; i < dim; i++) x[i] = normal();
        for (size_t pass = 0; pass < 2; pass++)
            for (size_t j = 0; j < k; j++) {
                double share = 0;
                for (size_t i = 0; i < dim; i++) share += x[i] * v[j * dim + i];
                for (size_t i = 0; i < dim; i++) x[i] -= share * v[j * dim + i];
            }
        for (size_t i = 0; i < dim; i++) square += x[i] * x[i];
        for (size_t i = 0; i < dim; i++) x[i] /= sqrt(square);
    }
}

/* Returns the squared Frobenius norm of what the directions leave: trace(G) - sum of d G d. */
static double left_by(const double *gram, const float *direction, size_t dim, size_t rank) {
    double left = 0;
    for (size_t i = 0; i < dim; i++) left += gram[i * dim + i];
    for (size_t k = 0; k < rank; k++) {
        const float *d = direction + k * dim;
        for (size_t i = 0; i < dim; i++)
            for (size_t j = 0; j < dim; j++)
                left -= (double)d[i] * (double)d[j] *
                        (i < j ? gram[i * dim + j] : gram[j * dim + i]);
    }
    return left;
}

static double share_of(unsigned spectrum, size_t i, size_t dim) {
    switch (spectrum) {
    case 0: return 1;                                 /* all equal */
    case 1: return pow(0.9, (double)i);               /* falls slowly */
    case 2: return pow((double)(i + 1), -1);          /* falls slower and slower */
    case 3: return i < 4 ? 100 : 1;                   /* a gap after the fourth */
    case 4: return i < 20 ? 100 : 1;                  /* more equal ones than are looked for */
    case 5: return 1 - 0.3 * (double)i / (double)dim; /* nearly equal */
    case 6: return i < 3;                             /* few directions at all */
    case 7: return i ? 1e-4 * pow((double)(i + 1), -2) : 1; /* one by far */
    case 8: return pow(2, -(double)i);                      /* falls fast */
    default: return 0;                                      /* nothing */
    }
}

static void subspaces(void **state) {
    (void)state;
    static const size_t dims[] = {1, 2, 16, 64, 128, 200}, ranks[] = {1, 2, 4, 16};
    struct kvc_error e;
    for (size_t d = 0; d < 6; d++) {
        const size_t dim = dims[d];
        double *basis = get_memory(dim * dim * sizeof *basis),
               *gram = get_memory(dim * dim * sizeof *gram);
        double *again = get_memory(dim * dim * sizeof *again);
        for (unsigned spectrum = 0; spectrum < 10; spectrum++) {
            memset(gram, 0, dim * dim * sizeof *gram);
            make_basis(basis, dim);
            for (size_t k = 0; k < dim; k++)
                for (size_t i = 0; i < dim; i++)
                    for (size_t j = i; j < dim; j++) /* the upper triangle alone counts */
                        gram[i * dim + j] += 1e-3 * share_of(spectrum, k, dim) *
                                             basis[k * dim + i] * basis[k * dim + j];
            for (size_t r = 0; r < 4 && ranks[r] <= dim; r++) {
                const size_t rank = ranks[r];
                float *found = get_memory(rank * dim * sizeof *found),
                      *exact = get_memory(rank * dim * sizeof *exact);
                double all = 0;
                for (size_t i = 0; i < dim; i++) all += gram[i * dim + i];
                assert_int_equal(kvc_gram_subspace(found, gram, dim, rank, &e), 0);
                memcpy(again, gram, dim * dim * sizeof *gram);
                assert_int_equal(kvc_gram_directions(exact, again, dim, rank, &e), 0);
                const double best = left_by(gram, exact, dim, rank),
                             left = left_by(gram, found, dim, rank);
                if (!(left <= 1.01 * 1.01 * best + 1e-6 * all))
                    fail_msg("%zu of %zu, spectrum %u: %g of %g left, %g at best", rank, dim,
                             spectrum, left, all, best);
                for (size_t k = 0; k < rank; k++) {
                    float far = 0;
                    for (size_t i = 0; i < dim; i++)
                        if (fabsf(found[k * dim + i]) > fabsf(far)) far = found[k * dim + i];
                    assert_true(far >= 0);
                    for (size_t j = 0; j <= k; j++) {
                        double product = 0;
                        for (size_t i = 0; i < dim; i++)
                            product += (double)found[k * dim + i] * (double)found[j * dim + i];
                        if (j < k) assert_true(fabs(product) < 1e-5);
                        else
                            assert_true(fabs(product - 1) < 1e-5 ||
                                        (far <= 0 && best < 1e-6 * all + 1e-12));
                    }
                }
                free(found);
                free(exact);
            }
        }
        free(basis);
        free(gram);
        free(again);
    }
}

/* --- a LAPACK that finds fewer of equal eigenvalues than it is asked for --- */

typedef void dsyevr(const char *, const char *, const char *, const int *, double *, const int *,
                    const double *, const double *, const int *, const int *, const double *, int *,
                    double *, double *, const int *, int *, double *, const int *, int *,
                    const int *, int *, size_t, size_t, size_t);

static dsyevr *real;
static unsigned calls, finds_few;

static void poor(const char *jobz, const char *range, const char *uplo, const int *n, double *a,
                 const int *lda, const double *vl, const double *vu, const int *il, const int *iu,
                 const double *abstol, int *m, double *w, double *z, const int *ldz, int *isuppz,
                 double *work, const int *lwork, int *iwork, const int *liwork, int *info, size_t x,
                 size_t y, size_t last) {
    calls++;
    iwork[-1] = *n; /* as OpenBLAS 0.3.34 does */
    real(jobz, range, uplo, n, a, lda, vl, vu, il, iu, abstol, m, w, z, ldz, isuppz, work, lwork,
         iwork, liwork, info, x, y, last);
    if (finds_few && (*il > 1 || finds_few > 1)) *m = 0;
}

void *__real_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name) {
    void *found = __real_dlsym(library, name);
    dsyevr *const mine = poor;
    if (!found || strcmp(name, "dsyevr_") != 0) return found;
    memcpy(&real, &found, sizeof real);
    memcpy(&found, &mine, sizeof found);
    return found;
}

/* What is not found among the largest is found among all; else it is a fault. */
static void few_found(void **state) {
    (void)state;
    enum { DIM = 24, RANK = 3 };
    double gram[DIM * DIM] = {0}, basis[DIM * DIM], again[DIM * DIM];
    float want[RANK * DIM], got[RANK * DIM];
    double values[RANK], others[RANK];
    struct kvc_error e;
    make_basis(basis, DIM);
    for (size_t k = 0; k < DIM; k++)
        for (size_t i = 0; i < DIM; i++)
            for (size_t j = i; j < DIM; j++)
                gram[i * DIM + j] += (double)(k + 1) * basis[k * DIM + i] * basis[k * DIM + j];
    memcpy(again, gram, sizeof gram);
    calls = finds_few = 0;
    assert_int_equal(kvc_gram_eigen(want, values, again, DIM, RANK, &e), 0);
    assert_int_equal(calls, 1);
    memcpy(again, gram, sizeof gram);
    finds_few = 1;
    assert_int_equal(kvc_gram_eigen(got, others, again, DIM, RANK, &e), 0);
    assert_int_equal(calls, 3);
    for (size_t k = 0; k < RANK; k++) {
        assert_true(fabs(others[k] - (double)(DIM - k)) < 1e-9);
        assert_true(fabs(others[k] - values[k]) < 1e-9);
    }
    for (size_t i = 0; i < RANK * DIM; i++) assert_true(fabsf(got[i] - want[i]) < 1e-5f);
    finds_few = 2;
    assert_int_equal(kvc_gram_eigen(got, others, gram, DIM, RANK, &e), -1);
    assert_string_equal(e.message, "LAPACK found no eigenvectors");
    finds_few = 0;
}

/* --- equations --- */

static void solve(size_t n, size_t m) {
    double *a = calloc(n * n, sizeof *a), *b = calloc(n * m, sizeof *b),
           *x = calloc(n * m, sizeof *x), *root = calloc(n * n, sizeof *root);
    struct kvc_error e;
    assert_true(a && b && x && root);
    for (size_t i = 0; i < n * n; i++) root[i] = normal();
    for (size_t i = 0; i < n * m; i++) x[i] = normal();
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            a[i * n + j] = i == j ? 0.1 : 0;
            for (size_t k = 0; k < n; k++) a[i * n + j] += root[i * n + k] * root[j * n + k];
        }
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < m; j++)
            for (size_t k = 0; k < n; k++) b[i * m + j] += a[i * n + k] * x[k * m + j];
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++) a[i * n + j] = -1; /* not read */
    assert_int_equal(kvc_solve_symmetric(a, n, b, m, &e), 0);
    for (size_t i = 0; i < n * m; i++) assert_true(fabs(b[i] - x[i]) < 1e-9);
    a[0] = -1;
    assert_int_equal(kvc_solve_symmetric(a, n, b, m, &e), -1);
    free(a);
    free(b);
    free(x);
    free(root);
}

/* |U (x - exact)|, squared, of all columns */
static double error_of(const double *u, size_t n, const double *x, const double *exact, size_t m) {
    double total = 0;
    for (size_t c = 0; c < m; c++)
        for (size_t k = 0; k < n; k++) {
            double sum = 0;
            for (size_t j = k; j < n; j++) sum += u[k * n + j] * (x[j * m + c] - exact[j * m + c]);
            total += sum * sum;
        }
    return total;
}

/* Inputs that are alike: weights rounded for each other's errors serve better than weights rounded
 * each to its nearest, and keep within the bound that U's diagonal gives. */
static void weights_are_rounded(void **state) {
    (void)state;
    enum { N = 70, M = 66 };
    static double u[N * N], y[N * M], exact[N * M], x[N * M], nearest[N * M], unit[M];
    struct kvc_error e;
    double bound = 0;
    for (size_t i = 0; i < N; i++) {
        for (size_t j = i; j < N; j++) u[i * N + j] = i == j ? 0.5 : 1 + (double)((i * j) % 7) / 9;
        for (size_t c = 0; c < M; c++) y[i * M + c] = sin((double)(i * M + c));
    }
    unit[0] = 0; /* no weights */
    assert_int_equal(kvc_substitute(u, N, y, exact, M, NULL, &e), 0);
    for (size_t c = 1; c < M; c++) { /* the largest is some 100 units */
        double largest = 0;
        for (size_t i = 0; i < N; i++) largest = fmax(largest, fabs(exact[i * M + c]));
        unit[c] = largest / (double)(60 + c);
        bound += N * 0.25 * 0.25 * unit[c] * unit[c];
    }
    assert_int_equal(kvc_substitute(u, N, y, x, M, unit, &e), 0);
    for (size_t i = 0; i < N; i++)
        for (size_t c = 0; c < M; c++) {
            const double in_units = c ? x[i * M + c] / unit[c] : 0;
            assert_true(in_units == rint(in_units) && fabs(in_units) <= 127);
            if (!c) assert_true(x[i * M] == 0);
            nearest[i * M + c] = c ? rint(exact[i * M + c] / unit[c]) * unit[c] : 0;
            if (!c) exact[i * M] = 0;
        }
    assert_true(error_of(u, N, x, exact, M) <= bound);
    assert_true(error_of(u, N, nearest, exact, M) > 4 * bound);
}

/* Few rows and columns, and more than are solved at once. */
static void equations_are_solved(void **state) {
    (void)state;
    solve(7, 3);
    solve(70, 130);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(few_found), cmocka_unit_test(subspaces),
                                       cmocka_unit_test(equations_are_solved),
                                       cmocka_unit_test(weights_are_rounded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
