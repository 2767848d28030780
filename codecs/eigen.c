/* eigen.c: Gram matrices and their eigenvectors. Not for decoding. */
#include "codecs/eigen.h"

#include "codecs/memory.h"
#include "codecs/random.h"
#include "kernels/kernels.h"

#include <dlfcn.h>
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* LAPACK's dsyevr as every implementation exports it, with the lengths that Fortran adds for texts.
 * Matrices are column after column there, so that a row-major upper triangle is a lower one. */
typedef void dsyevr(const char *jobz, const char *range, const char *uplo, const int *n, double *a,
                    const int *lda, const double *vl, const double *vu, const int *il,
                    const int *iu, const double *abstol, int *m, double *w, double *z,
                    const int *ldz, int *isuppz, double *work, const int *lwork, int *iwork,
                    const int *liwork, int *info, size_t, size_t, size_t);

/* LAPACK is loaded when the first recipe needs it: the tools start faster, and most runs never need
 * it. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static dsyevr *lapack;
/* Serialises calls: an OpenBLAS built without threads must not be called by two threads at once,
 * and any may be installed. */
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

static void load_lapack(void) {
    static const char *const names[] = {"liblapack.so.3", "libopenblas.so.0", "liblapack.so",
                                        "libopenblas.so"};
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !lapack; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL), *found;
        if (!library) continue;
        if ((found = dlsym(library, "dsyevr_"))) memcpy(&lapack, &found, sizeof lapack);
        void (*set_threads)(int);
        if ((found = dlsym(library, "openblas_set_num_threads"))) {
            memcpy(&set_threads, &found, sizeof set_threads);
            set_threads(1); /* the threads are ours */
        }
    }
}

int kvc_gram_add(double *gram, const float *x, size_t n, size_t dim, size_t stride,
                 struct kvc_error *e) {
    /* rows side by side: those of a head lie a power of two apart, which few lines of a cache serve
     */
    float *rows = stride == dim ? NULL : kvc_alloc(n, dim * sizeof *rows);
    if (stride != dim && !rows) return kvc_fail_memory(e, "a Gram matrix");
    for (size_t t = 0; t < n && rows; t++)
        memcpy(rows + t * dim, x + t * stride, dim * sizeof *rows);
    kvc_kernels_get()->add_gram(gram, rows ? rows : x, n, dim, dim);
    free(rows);
    return 0;
}

/* Calls LAPACK for the `rank` largest eigenvalues and their eigenvectors, ascending. Returns 1 when
 * it does not find them. */
static int call_lapack(double *a, size_t n, size_t rank, double *z, double *value,
                       struct kvc_error *e) {
    /* dsyevr's documentation asks for at least 26 n and 10 n; OpenBLAS 0.3.34 writes the integer
     * before those it is given, too */
    const size_t room = 33 * n, whole = 10 * n, before = 1;
    double *work = kvc_alloc(room, sizeof *work), none = 0;
    int *numbers = kvc_alloc(before + whole + 2 * n, sizeof *numbers), failed = 0, found = 0;
    const int order = (int)n, n_room = (int)room, n_whole = (int)whole, first = (int)(n - rank) + 1;
    int status = work && numbers ? 0 : kvc_fail_memory(e, "eigenvalues");
    if (!status) {
        pthread_mutex_lock(&one_at_a_time);
        lapack("V", "I", "L", &order, a, &order, &none, &none, &first, &order, &none, &found, value,
               z, &order, numbers + before + whole, work, &n_room, numbers + before, &n_whole,
               &failed, 1, 1, 1);
        pthread_mutex_unlock(&one_at_a_time);
        status = failed || (size_t)found != rank;
    }
    free(work);
    free(numbers);
    return status;
}

/* Does the same by all eigenvalues, of which it takes the last. */
static int call_for_all(double *a, size_t n, size_t rank, double *z, double *value,
                        struct kvc_error *e) {
    double *all = kvc_alloc(n, n * sizeof *all);
    const int status = all ? call_lapack(a, n, n, all, value, e) : kvc_fail_memory(e, "directions");
    if (!status) memcpy(z, all + (n - rank) * n, rank * n * sizeof *z);
    if (!status) memmove(value, value + n - rank, rank * sizeof *value);
    free(all);
    return status;
}

/* Puts the eigenvectors of the `rank` largest eigenvalues of a symmetric matrix, which is
 * destroyed, into z, ascending. */
static int eigenvectors(double *a, size_t n, size_t rank, double *z, double *values,
                        struct kvc_error *e) {
    double *value = kvc_alloc(2 * n, sizeof *value), *diagonal = value ? value + n : NULL;
    if (!value) return kvc_fail_memory(e, "eigenvalues");
    pthread_once(&once, load_lapack);
    int status = lapack ? 0
                        : kvc_fail(e, KVC_ERR_UNSUPPORTED,
                                   "no LAPACK is installed (liblapack.so.3): install one, such as "
                                   "OpenBLAS");
    /* Its search for some of many equal eigenvalues may find too few, in OpenBLAS 0.3.13 by
     * AVX-512. That for all is another. The triangle that LAPACK does not use keeps the matrix. */
    for (size_t i = 0; i < n && !status; i++) {
        diagonal[i] = a[i * n + i];
        for (size_t j = 0; j < i; j++) a[i * n + j] = a[j * n + i];
    }
    if (!status) status = call_lapack(a, n, rank, z, value, e);
    if (status > 0 && rank < n) {
        for (size_t i = 0; i < n; i++) {
            a[i * n + i] = diagonal[i];
            for (size_t j = 0; j < i; j++) a[j * n + i] = a[i * n + j];
        }
        status = call_for_all(a, n, rank, z, value, e);
    }
    if (status > 0) status = kvc_fail(e, KVC_ERR_UNSUPPORTED, "LAPACK found no eigenvectors");
    if (!status && values) memcpy(values, value, rank * sizeof *values);
    free(value);
    return status;
}

int kvc_gram_directions(float *to, double *gram, size_t dim, size_t rank, struct kvc_error *e) {
    return kvc_gram_eigen(to, NULL, gram, dim, rank, e);
}

int kvc_gram_eigen(float *to, double *value, double *gram, size_t dim, size_t rank,
                   struct kvc_error *e) {
    double *vectors = kvc_alloc(rank, dim * sizeof *vectors);
    if (!vectors) return kvc_fail_memory(e, "eigenvectors");
    const int status = eigenvectors(gram, dim, rank, vectors, value, e);
    for (size_t k = 0; value && k < rank / 2 && !status; k++) { /* largest first */
        const double least = value[k];
        value[k] = value[rank - 1 - k];
        value[rank - 1 - k] = least;
    }
    for (size_t k = 0; k < rank && !status; k++) {
        const double *vector = vectors + (rank - 1 - k) * dim;
        double greatest = 0;
        for (size_t i = 0; i < dim; i++)
            if (fabs(vector[i]) > fabs(greatest)) greatest = vector[i];
        for (size_t i = 0; i < dim; i++)
            to[k * dim + i] = (float)(greatest < 0 ? -vector[i] : vector[i]);
    }
    free(vectors);
    return status;
}

static double inner(const double *a, const double *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* Makes `rank` vectors orthonormal, in their order (Gram-Schmidt, twice for precision). Vectors
 * that depend on the ones before become 0: what is left of them is rounding, and points anywhere.
 */
static void orthonormalise(double *v, size_t rank, size_t dim) {
    for (size_t k = 0; k < rank; k++) {
        double *x = v + k * dim;
        const double before = inner(x, x, dim);
        for (int pass = 0; pass < 2; pass++)
            for (size_t j = 0; j < k; j++) {
                const double share = inner(x, v + j * dim, dim);
                for (size_t i = 0; i < dim; i++) x[i] -= share * v[j * dim + i];
            }
        const double left = inner(x, x, dim), norm = left > 1e-24 * before ? sqrt(left) : 0;
        for (size_t i = 0; i < dim; i++) x[i] = norm > 0 ? x[i] / norm : 0;
    }
}

/* Returns the next number of a sequence, in [0, 1). */
static double uniform(uint64_t *state) {
    const double next = kvc_random_unit(*state);
    *state += KVC_RANDOM_STEP;
    return next;
}

int kvc_gram_power(float *to, const double *gram, size_t dim, size_t rank, unsigned loops,
                   struct kvc_error *e) {
    double *p = kvc_alloc(rank, dim * sizeof *p), *next = kvc_alloc(rank, dim * sizeof *next);
    uint64_t state = 1;
    const int status = p && next ? 0 : kvc_fail_memory(e, "directions");
    for (size_t i = 0; i < rank * dim && !status; i++) p[i] = uniform(&state);
    for (unsigned sweep = 0; sweep < loops && !status; sweep++) {
        /* A = X P, P = XT A: together P = (XT X) P. Orthonormal before each sweep, not the last
         * alone: the same space, but directions that do not collapse onto the first. */
        orthonormalise(p, rank, dim);
        memset(next, 0, rank * dim * sizeof *next);
        for (size_t k = 0; k < rank; k++)
            for (size_t i = 0; i < dim; i++)
                for (size_t j = 0; j < dim; j++)
                    next[k * dim + i] += (i < j ? gram[i * dim + j] : gram[j * dim + i]) *
                                         p[k * dim + j];
        memcpy(p, next, rank * dim * sizeof *p);
    }
    if (!status) {
        orthonormalise(p, rank, dim);
        for (size_t i = 0; i < rank * dim; i++) to[i] = (float)p[i];
    }
    free(p);
    free(next);
    return status;
}

/* --- subspace iteration --- */

/* ASIDE: directions beside the wanted ones, which speed up convergence */
enum { ASIDE = 4, MAX_SWEEPS = 100 };
/* a sweep that lowers the squared residual by less than this share is the last */
static const double SETTLED = 1e-3;
static const double PRECISION = 1e-7; /* of sums in binary32, as a share of all squares */

/* Makes `rank` vectors orthonormal as orthonormalise() does, in binary32. Vectors that depend on
 * the ones before become 0. */
static void make_orthonormal(float *v, size_t rank, size_t dim) {
    const struct kvc_kernels *f = kvc_kernels_get();
    for (size_t k = 0; k < rank; k++) {
        float *x = v + k * dim;
        const float before = f->dot(x, x, dim);
        for (int pass = 0; pass < 2; pass++)
            for (size_t j = 0; j < k; j++)
                f->add_scaled(x, v + j * dim, -f->dot(x, v + j * dim, dim), dim);
        const float left = f->dot(x, x, dim);
        f->scale(x, x, left > 1e-12f * before && left >= FLT_MIN ? 1 / sqrtf(left) : 0, dim);
    }
}

/* Diagonalises a symmetric matrix a[n][n] by Jacobi's rotations: its diagonal becomes the
 * eigenvalues, the rows of v the eigenvectors. */
static void jacobi(double *a, double *v, size_t n) {
    double all = 0, aside = 1;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            v[i * n + j] = i == j;
            all += a[i * n + j] * a[i * n + j];
        }
    for (unsigned sweep = 0; sweep < MAX_SWEEPS && aside > 1e-28 * all; sweep++) {
        aside = 0;
        for (size_t i = 0; i < n; i++)
            for (size_t j = i + 1; j < n; j++) {
                const double off = a[i * n + j];
                aside += off * off;
                if (!(fabs(off) > 0)) continue;
                const double theta = (a[j * n + j] - a[i * n + i]) / (2 * off);
                const double t = (theta < 0 ? -1 : 1) / (fabs(theta) + sqrt(theta * theta + 1));
                const double c = 1 / sqrt(t * t + 1), s = c * t;
                for (size_t k = 0; k < n; k++) {
                    const double x = a[k * n + i], y = a[k * n + j];
                    a[k * n + i] = c * x - s * y;
                    a[k * n + j] = s * x + c * y;
                }
                for (size_t k = 0; k < n; k++) {
                    const double x = a[i * n + k], y = a[j * n + k], p = v[i * n + k],
                                 q = v[j * n + k];
                    a[i * n + k] = c * x - s * y;
                    a[j * n + k] = s * x + c * y;
                    v[i * n + k] = c * p - s * q;
                    v[j * n + k] = s * p + c * q;
                }
            }
    }
}

/* Puts the `rank` strongest directions within the span of q, `n` orthonormal vectors, into `to`; y
 * is q times the matrix. room has 2 n n numbers. (Rayleigh and Ritz) */
static void take_strongest(float *to, size_t rank, const float *q, const float *y, size_t n,
                           size_t dim, double *room) {
    const struct kvc_kernels *f = kvc_kernels_get();
    double *inside = room, *turn = room + n * n;
    for (size_t i = 0; i < n; i++)
        for (size_t j = i; j < n; j++)
            inside[i * n + j] = inside[j * n + i] = (double)f->dot(q + i * dim, y + j * dim, dim);
    jacobi(inside, turn, n);
    for (size_t k = 0; k < rank; k++) {
        size_t best = 0;
        for (size_t i = 1; i < n; i++)
            if (inside[i * n + i] > inside[best * n + best]) best = i;
        inside[best * n + best] = -1; /* taken */
        float *x = to + k * dim, far = 0;
        memset(x, 0, dim * sizeof *x);
        for (size_t i = 0; i < n; i++)
            f->add_scaled(x, q + i * dim, (float)turn[best * n + i], dim);
        for (size_t i = 0; i < dim; i++)
            if (fabsf(x[i]) > fabsf(far)) far = x[i];
        if (far < 0) f->scale(x, x, -1, dim);
    }
}

int kvc_gram_subspace(float *to, const double *gram, size_t dim, size_t rank, struct kvc_error *e) {
    const size_t n = rank + ASIDE < dim ? rank + ASIDE : dim;
    float *whole = kvc_alloc(dim + 2 * n, dim * sizeof *whole);
    double *room = kvc_alloc(2 * n, n * sizeof *room), trace = 0, caught = -1, last;
    uint64_t state = 1;
    const int status = whole && room ? 0 : kvc_fail_memory(e, "directions");
    float *q = status ? NULL : whole + dim * dim, *y = status ? NULL : q + n * dim;
    for (size_t i = 0; i < dim; i++) trace += gram[i * dim + i];
    const double scale = trace > 0 ? 1 / trace : 0;
    for (size_t i = 0; i < dim && !status; i++)
        for (size_t j = i; j < dim; j++)
            whole[i * dim + j] = whole[j * dim + i] = (float)(scale * gram[i * dim + j]);
    for (size_t i = 0; i < n * dim && !status; i++) q[i] = (float)(uniform(&state) - 0.5);
    for (unsigned sweep = 0; sweep < MAX_SWEEPS && !status; sweep++) {
        if (sweep) memcpy(q, y, n * dim * sizeof *q);
        make_orthonormal(q, n, dim);
        last = caught;
        caught = 0;
        for (size_t k = 0; k < n; k++) {
            kvc_kernels_get()->multiply_rows(y + k * dim, q + k * dim, whole, dim, dim, dim);
            caught += (double)kvc_kernels_get()->dot(q + k * dim, y + k * dim, dim);
        }
        if (caught - last <= SETTLED * (1 - caught) + PRECISION) break;
    }
    if (!status) take_strongest(to, rank, q, y, n, dim, room);
    free(whole);
    free(room);
    return status;
}

int kvc_invert(double *a, size_t n, struct kvc_error *e) {
    kvc_subtract_rows_fn *const subtract = kvc_kernels_get()->subtract_rows;
    double *room = kvc_alloc(2 * n, n * sizeof *room);
    if (!room) return kvc_fail_memory(e, "an inverse");
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            room[2 * n * i + j] = a[n * i + j];
            room[2 * n * i + n + j] = i == j;
        }
    int status = 0;
    /* of rows scaled alike, so that a pivot of rounding errors is small against it */
    double largest = 0;
    for (size_t i = 0; i < n; i++) {
        double most = 0;
        for (size_t j = 0; j < n; j++) most = fmax(most, fabs(room[2 * n * i + j]));
        for (size_t j = 0; j < 2 * n && most > 0; j++) room[2 * n * i + j] /= most;
        largest = fmax(largest, most > 0);
    }
    for (size_t i = 0; i < n && !status; i++) {
        size_t pivot = i;
        for (size_t k = i + 1; k < n; k++)
            if (fabs(room[2 * n * k + i]) > fabs(room[2 * n * pivot + i])) pivot = k;
        double *row = room + 2 * n * i, *best = room + 2 * n * pivot;
        if (!(fabs(best[i]) > 1e-9 * largest)) {
            status = kvc_fail(e, KVC_ERR_DAMAGED, "a matrix has no inverse");
            break;
        }
        for (size_t j = 0; j < 2 * n && pivot != i; j++) {
            const double swapped = row[j];
            row[j] = best[j];
            best[j] = swapped;
        }
        const double scale = 1 / row[i];
        for (size_t j = 0; j < 2 * n; j++) row[j] *= scale;
        for (size_t k = 0; k < n; k++) {
            double *other = room + 2 * n * k;
            const double factor = other[i];
            if (k == i || factor == 0) continue;
            subtract(other + i, row + i, 0, &factor, 0, 1, 2 * n - i);
        }
    }
    for (size_t i = 0; i < n && !status; i++)
        memcpy(a + n * i, room + 2 * n * i + n, n * sizeof *a);
    free(room);
    return status;
}

static void divide(double *x, double by, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] /= by;
}

/* What the nearest cache holds. Rows lie side by side there: from one row of a large matrix to the
 * next it may be a multiple of what the cache has in one place. */
enum { ROWS_AT_ONCE = 32, COLUMNS_AT_ONCE = 64 };
static const double MOST_UNITS = 127;

static void copy_columns(double *to, size_t to_stride, const double *from, size_t from_stride,
                         size_t rows, size_t columns) {
    for (size_t r = 0; r < rows; r++)
        memcpy(to + r * to_stride, from + r * from_stride, columns * sizeof *to);
}

/* Takes ROWS_AT_ONCE rows of x, from row k on, from its rows `first` to `end`. times: how often, by
 * row they are taken from; triangle: 1, no column below a row's number. */
static void take_rows(double *x, size_t width, double (*times)[ROWS_AT_ONCE], size_t k,
                      size_t first, size_t end, int triangle) {
    _Alignas(64) double rows[ROWS_AT_ONCE][COLUMNS_AT_ONCE];
    kvc_subtract_rows_fn *const subtract = kvc_kernels_get()->subtract_rows;
    for (size_t c = triangle ? first : 0, next; c < width; c = next) {
        next = width - c < COLUMNS_AT_ONCE ? width : c + COLUMNS_AT_ONCE;
        copy_columns(rows[0], COLUMNS_AT_ONCE, x + k * width + c, width, ROWS_AT_ONCE, next - c);
        for (size_t i = first; i < end; i++) {
            const size_t from = triangle && i > c ? i : c;
            if (from < next)
                subtract(x + i * width + from, &rows[0][from - c], COLUMNS_AT_ONCE,
                         times[i - first], 1, ROWS_AT_ONCE, next - from);
        }
    }
}

/* Each row takes those before it in their order. */
int kvc_factorise(double *a, size_t n, double *b, size_t m, struct kvc_error *e) {
    kvc_subtract_rows_fn *const subtract = kvc_kernels_get()->subtract_rows;
    for (size_t first = 0, end; first < n; first = end) {
        end = n - first < ROWS_AT_ONCE ? n : first + ROWS_AT_ONCE;
        for (size_t k = 0; k < first; k += ROWS_AT_ONCE) {
            double times[ROWS_AT_ONCE][ROWS_AT_ONCE];
            for (size_t r = 0; r < ROWS_AT_ONCE; r++)
                for (size_t i = first; i < end; i++) times[i - first][r] = a[(k + r) * n + i];
            take_rows(a, n, times, k, first, end, 1);
            take_rows(b, m, times, k, first, end, 0);
        }
        for (size_t k = first; k < end; k++) {
            double *row = a + k * n, *right = b + k * m;
            if (!(row[k] > 0))
                return kvc_fail(e, KVC_ERR_UNSUPPORTED, "a matrix is not positive definite");
            const double root = sqrt(row[k]);
            divide(row + k, root, n - k);
            divide(right, root, m);
            for (size_t i = k + 1; i < end; i++) {
                subtract(a + i * n + i, row + i, 0, row + i, 0, 1, n - i);
                subtract(b + i * m, right, 0, row + i, 0, 1, m);
            }
        }
    }
    return 0;
}

/* Rounds to multiples of the units, at most MOST_UNITS of them. */
static void round_row(double *x, const double *unit, size_t n) {
    for (size_t i = 0; i < n; i++)
        x[i] = unit[i] > 0 ? fmax(-MOST_UNITS, fmin(MOST_UNITS, rint(x[i] / unit[i]))) * unit[i]
                           : 0;
}

int kvc_substitute(const double *u, size_t n, const double *y, double *x, size_t m,
                   const double *unit, struct kvc_error *e) {
    kvc_subtract_rows_fn *const subtract = kvc_kernels_get()->subtract_rows;
    double *part = kvc_alloc_lines(n, COLUMNS_AT_ONCE * sizeof *part);
    if (!part) return kvc_fail_memory(e, "equations");
    for (size_t c = 0; c < m; c += COLUMNS_AT_ONCE) {
        const size_t width = m - c < COLUMNS_AT_ONCE ? m - c : COLUMNS_AT_ONCE;
        copy_columns(part, COLUMNS_AT_ONCE, y + c, m, n, width);
        for (size_t k = n; k-- > 0;) {
            double *right = part + k * COLUMNS_AT_ONCE;
            subtract(right, right + COLUMNS_AT_ONCE, COLUMNS_AT_ONCE, u + k * n + k + 1, 1,
                     n - k - 1, width);
            divide(right, u[k * n + k], width);
            if (unit) round_row(right, unit + c, width);
        }
        copy_columns(x + c, m, part, COLUMNS_AT_ONCE, n, width);
    }
    free(part);
    return 0;
}

int kvc_solve_symmetric(double *a, size_t n, double *b, size_t m, struct kvc_error *e) {
    if (kvc_factorise(a, n, b, m, e)) return -1;
    return kvc_substitute(a, n, b, b, m, NULL, e);
}
