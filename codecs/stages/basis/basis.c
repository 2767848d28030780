/* basis.c: the stage that replaces channels by coefficients, head by head. Spec: basis.md. Not for
 * the basis as it is stored (basis_own.c), devices (basis_device.c), or a profile's matrices
 * (formats/model/profile.h). */
#include "codecs/eigen.h"
#include "codecs/floats.h"
#include "codecs/memory.h"
#include "codecs/probes.h"
#include "codecs/profile_part.h"
#include "codecs/rope.h"
#include "codecs/stage.h"
#include "codecs/stages/basis/basis_device.h"
#include "codecs/stages/basis/basis_own.h"

#include "kernels/kernels.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { DROP, BITS, K, N_ARGS };
enum { QUERY_WINDOW = 64 };

static const struct kvc_arg arguments[N_ARGS] = {
    [DROP] = {.key = "drop", .kind = KVC_ARG_REAL, .least = 0, .most = 1e6, .otherwise = 0.05},
    [BITS] = {.key = "bits", .min = 4, .max = 8, .fallback = 6},
    [K] = {.key = "k", .kind = KVC_ARG_REAL, .least = 0.01, .most = 100, .otherwise = 0.18},
};

static int basis_accepts(const struct kvc_stage_args *args, const struct kvc_shape *shape,
                         struct kvc_error *e) {
    (void)args;
    if (shape->dim <= KVC_BASIS_MAX_DIM) return 1;
    kvc_fail(e, KVC_ERR_UNSUPPORTED, "a head of %llu channels has too many for a basis (%d)",
             (unsigned long long)shape->dim, KVC_BASIS_MAX_DIM);
    return 0;
}

static int basis_asks(const struct kvc_stage_args *args) {
    (void)args;
    return 1;
}

/* --- encoding --- */

/* Where there is a profile, its basis serves and there is no state. */
struct state {
    const struct kvc_encoding *x;
    unsigned role;
    uint64_t rows;
    double *gram; /* [head][channel][channel] */
    struct kvc_basis_own own;
    float *inverse; /* [head][channel][component] */
};

static void basis_end(void *state) {
    struct state *s = state;
    if (!s) return;
    kvc_basis_own_free(&s->own);
    free(s->gram);
    free(s->inverse);
    free(s);
}

static int basis_begin(const struct kvc_stage_args *args, const struct kvc_encoding *x,
                       const struct kvc_block *like, void **state, struct kvc_error *e) {
    (void)args;
    if (like->profile) return 0;
    const size_t heads = (size_t)like->shape.heads, dim = (size_t)like->shape.dim;
    struct state *s = calloc(1, sizeof *s);
    if (!s) return kvc_fail_memory(e, "a basis");
    *state = s;
    s->x = x;
    s->role = like->role;
    if (kvc_basis_own_init(&s->own, heads, dim, e)) return -1;
    s->gram = kvc_alloc_zeros(heads * dim, dim * sizeof *s->gram);
    s->inverse = kvc_alloc_zeros(heads * dim, dim * sizeof *s->inverse);
    return s->gram && s->inverse ? 0 : kvc_fail_memory(e, "a basis");
}

static int basis_look(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                      struct kvc_error *e) {
    struct state *s = state;
    const size_t heads = s->own.heads, dim = s->own.dim;
    (void)args;
    s->rows += block->shape.tokens;
    for (size_t h = 0; h < heads; h++)
        if (kvc_gram_add(s->gram + h * dim * dim,
                         (const float *)(const void *)block->rows + h * dim,
                         (size_t)block->shape.tokens, dim, heads * dim, e))
            return -1;
    return 0;
}

/* Gives both channels of a pair of RoPE the same weight: rotations keep only the sum of a query's
 * energies. */
static void even_out(const struct kvc_rope_facts *rope, double *weight) {
    for (size_t i = 0; rope && kvc_pairing_turns(rope->pairing) && i < rope->half; i++) {
        double *a = &weight[kvc_pair_first(rope->pairing, i)],
               *b = &weight[kvc_pair_second(rope->pairing, i, rope->half)];
        *a = *b = (*a + *b) / 2;
    }
}

#define LEAST_SHARE 1e-8

/* Finds the weight of an error in each channel: of K the energy of queries there, or, without
 * queries, of the keys themselves, as an error of a logit; of V all alike, against the spread of
 * the layer. basis.md, "Encoders". */
static int find_weights(const struct state *s, double k, double *weight, struct kvc_error *e) {
    const size_t heads = s->own.heads, dim = s->own.dim, width = heads * dim;
    const double rows = s->rows ? (double)s->rows : 1;
    double sum = 0, most = 0;
    for (size_t i = 0; i < width; i++) {
        weight[i] = s->gram[(i / dim * dim + i % dim) * dim + i % dim] / rows;
        sum += weight[i];
    }
    const double mean = sum / (double)width > 1e-30 ? sum / (double)width : 1;
    const int is_key = s->role == KVC_SELECT_K, queries = is_key && s->x->n_queries &&
                                                          s->x->key.dim == dim &&
                                                          s->x->key.heads == heads;
    if (queries) {
        double *energy = kvc_alloc(width, sizeof *energy);
        if (!energy) return kvc_fail_memory(e, "a basis");
        kvc_probes_query_energy(s->x, QUERY_WINDOW, energy);
        memcpy(weight, energy, width * sizeof *energy);
        free(energy);
    }
    for (size_t h = 0; h < heads; h++) {
        double *w = weight + h * dim, total = 0;
        if (is_key) even_out(s->x->rope, w);
        for (size_t d = 0; d < dim; d++) total += w[d] / (double)dim;
        for (size_t d = 0; d < dim; d++) {
            if (!is_key) w[d] = 1 / mean;
            else if (queries) w[d] = (w[d] + 0.02 * total) / (double)dim;
            else w[d] = (w[d] + 0.02 * total) / (total > 1e-30 ? total : 1) / mean;
            if (is_key) w[d] /= k * k;
            if (!(w[d] > 1e-30)) w[d] = 1e-30;
            if (w[d] > 1e30) w[d] = 1e30;
            most = fmax(most, w[d]);
        }
    }
    /* scales are halves with a common exponent: a scale far above the others would take their
     * digits */
    for (size_t i = 0; i < width; i++) weight[i] = fmax(weight[i], LEAST_SHARE * most);
    return 0;
}

/* The square of a step of 0.4, as noise. */
#define COARSE (0.4 * 0.4 / 12)

/* Estimates the bits of n coefficients of this variance; `floor` is a share of the step, squared.
 */
static double basis_bits_of(double variance, double floor, double n) {
    return variance > floor ? n / 2 * log2(variance / floor) : 0;
}

/* Finds the directions of one head in its metric, and adds the bits that they save to *gain. */
static int find_rows(const struct state *s, size_t h, double floor, double *value, float *vector,
                     double *gain, struct kvc_error *e) {
    const struct kvc_basis_own *o = &s->own;
    const size_t dim = o->dim;
    const double n = s->rows ? (double)s->rows : 1;
    double *gram = kvc_alloc(dim, dim * sizeof *gram);
    if (!gram) return kvc_fail_memory(e, "a basis");
    for (size_t i = 0; i < dim; i++)
        for (size_t j = i; j < dim; j++)
            gram[i * dim + j] = s->gram[(h * dim + i) * dim + j] / n /
                                (double)o->scale[h * dim + i] / (double)o->scale[h * dim + j];
    for (size_t i = 0; i < dim; i++) *gain += basis_bits_of(gram[i * dim + i], floor, n);
    const int status = kvc_gram_eigen(vector, value, gram, dim, dim, e);
    for (size_t i = 0; i < dim && !status; i++) *gain -= basis_bits_of(value[i], floor, n);
    free(gram);
    return status;
}

/* Rounds rows to codes, each by a scale of its own, which is rounded first. */
static int round_rows(struct kvc_basis_own *o, const float *vector, struct kvc_error *e) {
    const size_t dim = o->dim, rows = kvc_basis_own_count(o);
    const float most = (float)((1 << (o->bits - 1)) - 1);
    float *from = kvc_alloc(rows, dim * sizeof *from);
    uint8_t *room = malloc(KVC_HALVES_BOUND(rows)), *p = room;
    int status = from && room ? 0 : kvc_fail_memory(e, "a basis");
    size_t n = 0;
    for (size_t h = 0; h < o->heads && !status; h++)
        for (size_t j = 0; j < o->kept[h]; j++, n++) {
            float low, high;
            memcpy(from + n * dim, vector + (h * dim + j) * dim, dim * sizeof *from);
            kvc_kernels_get()->range(from + n * dim, dim, &low, &high);
            o->row_scale[n] = (high > -low ? high : -low) / most;
        }
    if (!status && rows) status = kvc_halves_write(&p, o->row_scale, rows, e);
    for (size_t i = 0; i < rows * dim && !status; i++) {
        const float scale = o->row_scale[i / dim], code = scale > 0 ? rintf(from[i] / scale) : 0;
        o->code[i] = (uint8_t)((code > most ? most : code < -most ? -most : code) + most + 1);
    }
    free(from);
    free(room);
    return status;
}

static double product(const double *a, const double *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* Makes the coefficients of least squares in the metric for the n rows b of a head: S RT (R RT)^-1
 * of rows R in the metric, whose root is S. */
static int invert_head(struct state *s, size_t h, const float *b, size_t n, struct kvc_error *e) {
    const size_t dim = s->own.dim;
    const float *scale = s->own.scale + h * dim;
    double *gram = kvc_alloc(n, (n + dim + 1) * sizeof *gram);
    if (!gram) return kvc_fail_memory(e, "a basis");
    double *row = gram + n * n;
    for (size_t i = 0; i < n * dim; i++) row[i] = (double)b[i] / (double)scale[i % dim];
    for (size_t i = 0; i < n; i++)
        for (size_t j = i; j < n; j++)
            gram[i * n + j] = gram[j * n + i] = product(row + i * dim, row + j * dim, dim);
    int status = kvc_invert(gram, n, e);
    double *sum = row + n * dim;
    for (size_t d = 0; d < dim && !status; d++) {
        memset(sum, 0, n * sizeof *sum);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++) sum[j] += row[i * dim + d] * gram[i * n + j];
        for (size_t j = 0; j < n; j++)
            s->inverse[(h * dim + d) * dim + j] = (float)(sum[j] / (double)scale[d]);
    }
    free(gram);
    return status;
}

/* Makes the coefficients' matrices for the basis as it is stored. */
static int invert_basis(struct state *s, struct kvc_error *e) {
    const struct kvc_basis_own *o = &s->own;
    const size_t heads = o->heads, dim = o->dim;
    const float *row = o->row;
    int status = 0;
    for (size_t i = 0; i < heads * dim && o->kind == KVC_BASIS_SCALED; i++)
        s->inverse[i * dim + i % dim] = 1 / o->scale[i];
    for (size_t h = 0; h < heads && o->kind == KVC_BASIS_ROWS && !status; row += o->kept[h++] * dim)
        status = invert_head(s, h, row, o->kept[h], e);
    return status;
}

static int find_basis(const struct kvc_stage_args *args, struct state *s, struct kvc_error *e) {
    struct kvc_basis_own *o = &s->own;
    const size_t heads = o->heads, dim = o->dim;
    /* minimum of a variance to be stored, and to cost bits, at the default step of packing without
     * a profile */
    const double drop = args->f[DROP] * args->f[DROP], floor = drop > COARSE ? drop : COARSE;
    double *weight = kvc_alloc(heads + 1, dim * sizeof *weight),
           *value = weight ? weight + heads * dim : NULL;
    double gain = 0, cost = 0;
    float *vector = kvc_alloc(heads * dim, dim * sizeof *vector);
    uint8_t *room = malloc(KVC_HALVES_BOUND(heads * dim)), *p = room;
    int status = weight && vector && room ? 0 : kvc_fail_memory(e, "a basis");
    o->kind = KVC_BASIS_ROWS;
    o->bits = (unsigned)args->i[BITS];
    if (!status) status = find_weights(s, args->f[K], weight, e);
    for (size_t i = 0; i < heads * dim && !status; i++) o->scale[i] = (float)(1 / sqrt(weight[i]));
    if (!status) status = kvc_halves_write(&p, o->scale, heads * dim, e); /* rounds them */
    for (size_t h = 0; h < heads && !status; h++) {
        status = find_rows(s, h, floor, value, vector + h * dim * dim, &gain, e);
        for (size_t j = 0; j < dim && !status; j++) o->kept[h] += value[j] > drop;
        cost += (double)o->kept[h] * (double)(dim * o->bits + 16);
    }
    if (!status && !(gain > cost)) {
        o->kind = KVC_BASIS_SCALED;
        memset(o->kept, 0, heads * sizeof *o->kept);
    } else if (!status) {
        status = kvc_basis_own_rows(o, e);
        if (!status) status = round_rows(o, vector, e);
        if (!status) kvc_basis_own_build(o);
    }
    if (!status) status = invert_basis(s, e);
    free(weight);
    free(vector);
    free(room);
    return status;
}

static int basis_settle(const struct kvc_stage_args *args, void *state, uint8_t stage,
                        struct kvc_sections *side, struct kvc_error *e) {
    struct state *s = state;
    if (!s) return 0;
    return find_basis(args, s, e) ? -1 : kvc_basis_own_write(&s->own, stage, side, e);
}

static int basis_adopt(const struct kvc_stage_args *args, void *state,
                       const struct kvc_stored *stored, struct kvc_error *e) {
    struct state *s = state;
    (void)args;
    if (kvc_basis_own_read(&s->own, stored, e)) return -1;
    if (s->own.kind == KVC_BASIS_ROWS) kvc_basis_own_build(&s->own);
    return invert_basis(s, e);
}

enum { ROWS = 16 }; /* rows that are copied, and multiplied into their place */

/* Multiplies n rows of a head, `stride` floats apart, by a matrix whose columns are in tiles; those
 * that fill none are in the matrix. */
static void analyse_rows(float *x, size_t stride, size_t n, const float *tiles, const float *matrix,
                         size_t dim, float *copy) {
    const struct kvc_kernels *k = kvc_kernels_get();
    const size_t whole = dim / KVC_TILE * KVC_TILE;
    for (size_t t = 0; t < n; t++) memcpy(copy + t * dim, x + t * stride, dim * sizeof *copy);
    k->multiply_tiles(x, stride, copy, dim, n, tiles, dim, dim / KVC_TILE);
    for (size_t t = 0; t < n && whole < dim; t++)
        k->multiply_rows(x + t * stride + whole, copy + t * dim, matrix + whole, dim, dim,
                         dim - whole);
}

/* Multiplies each head's channels by `matrix`, [head][channel][component] and dense. */
static int analyse(struct kvc_block *block, const float *matrix, struct kvc_error *e) {
    const size_t heads = (size_t)block->shape.heads, dim = (size_t)block->shape.dim,
                 rows = (size_t)block->shape.tokens;
    float *tiles = rows ? kvc_alloc_lines(dim + ROWS, dim * sizeof *tiles) : NULL;
    if (rows && !tiles) return kvc_fail_memory(e, "rows");
    for (size_t h = 0; h < heads && rows; h++, matrix += dim * dim) {
        float *x = (float *)(void *)block->rows + h * dim;
        for (size_t first = 0; first + KVC_TILE <= dim; first += KVC_TILE)
            for (size_t d = 0; d < dim; d++)
                memcpy(tiles + first * dim + d * KVC_TILE, matrix + d * dim + first,
                       KVC_TILE * sizeof *tiles);
        for (size_t t = 0; t < rows; t += ROWS)
            analyse_rows(x + t * heads * dim, heads * dim, rows - t < ROWS ? rows - t : ROWS, tiles,
                         matrix, dim, tiles + dim * dim);
    }
    free(tiles);
    return 0;
}

static int basis_encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                        uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    const struct state *s = state;
    (void)args, (void)stage, (void)out;
    return analyse(block, s ? s->inverse : block->profile->inverse, e);
}

/* --- decoding --- */

enum { CACHED = 16384 }; /* floats of a matrix that are multiplied at once, 64 KB */
enum { LINE = 16 };      /* floats of a line of caches */

/* The basis of a block that is being decoded, head after head. Matrices of more than CACHED floats
 * are copied, in strips of columns. */
struct row_basis {
    struct kvc_basis_source source;
    size_t heads, dim;
    const float *row; /* NULL: there are scales only */
    /* the same, [head][strip][component][column of the strip]; NULL: a head has one strip */
    float *strips;
};

static size_t kept_of(const struct row_basis *b, size_t head) {
    return b->source.profile ? b->dim : b->source.own.kept[head];
}

/* Returns the columns of a head's strips, the last of which may be narrower. */
static size_t strip_of(const struct row_basis *b, size_t head) {
    const size_t n = kept_of(b, head), fit = n ? CACHED / n / LINE * LINE : b->dim;
    return fit < b->dim ? fit : b->dim;
}

static int make_strips(struct row_basis *b, struct kvc_error *e) {
    size_t rows = 0, narrow = 0;
    for (size_t h = 0; h < b->heads; h++) {
        rows += kept_of(b, h);
        narrow |= strip_of(b, h) < b->dim;
    }
    if (!narrow) return 0;
    float *to = b->strips = kvc_alloc_lines(rows * b->dim, sizeof *to);
    const float *row = b->row;
    if (!to) return kvc_fail_memory(e, "a basis");
    for (size_t h = 0; h < b->heads; row += kept_of(b, h++) * b->dim)
        for (size_t first = 0, strip = strip_of(b, h), width; first < b->dim; first += width) {
            width = b->dim - first < strip ? b->dim - first : strip;
            for (size_t j = 0; j < kept_of(b, h); j++, to += width)
                memcpy(to, row + j * b->dim + first, width * sizeof *to);
        }
    return 0;
}

static int basis_rows_begin(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                            const struct kvc_block *block, void **state, struct kvc_error *e) {
    struct row_basis *b = calloc(1, sizeof *b);
    (void)args;
    if (!b) return kvc_fail_memory(e, "a basis");
    *state = b;
    b->heads = (size_t)block->shape.heads;
    b->dim = (size_t)block->shape.dim;
    if (kvc_basis_open(&b->source, stored, block, e)) return -1;
    if (b->source.profile) {
        b->row = b->source.profile->basis;
    } else if (b->source.own.kind == KVC_BASIS_ROWS) {
        kvc_basis_own_build(&b->source.own);
        b->row = b->source.own.row;
    }
    return b->row ? make_strips(b, e) : 0;
}

static void exchange(struct kvc_row_run *run) {
    float *const rows = run->rows;
    run->rows = run->spare;
    run->spare = rows;
}

static int basis_rows_next(void *state, struct kvc_row_run *run, struct kvc_error *e) {
    const struct row_basis *b = state;
    const struct kvc_kernels *k = kvc_kernels_get();
    const size_t dim = b->dim, width = b->heads * dim;
    (void)e;
    for (size_t t = 0; t < run->n && !b->row; t++)
        k->multiply(run->rows + t * width, b->source.own.scale, width);
    if (!b->row) return 0;
    const float *row = b->strips ? b->strips : b->row;
    for (size_t h = 0; h < b->heads; h++) {
        const size_t n = kept_of(b, h), strip = strip_of(b, h);
        for (size_t first = 0, columns; first < dim; first += columns, row += n * columns) {
            columns = dim - first < strip ? dim - first : strip;
            k->multiply_sparse(run->spare + h * dim + first, width, run->rows + h * dim, width,
                               run->n, row, n, columns, columns);
        }
    }
    exchange(run);
    return 0;
}

static int basis_rows_end(void *state, int done, struct kvc_error *e) {
    struct row_basis *b = state;
    (void)done, (void)e;
    if (!b) return 0;
    kvc_basis_own_free(&b->source.own);
    free(b->strips);
    free(b);
    return 0;
}

static void basis_describe(const struct kvc_stored *stored, unsigned role,
                           struct kvc_description *d) {
    (void)role;
    if (!stored->n_side || !stored->side->size) d->coordinates = "the profile's basis";
    else
        d->coordinates = stored->side->data[0] == KVC_BASIS_SCALED ? "no basis, only scales"
                                                                   : "a basis of its own";
}

const struct kvc_stage kvc_stage_basis = {
    .id = 17,
    .name = "basis",
    .summary = "channels of a head as coefficients of a basis, the profile's or its own",
    .flags = KVC_STAGE_FINITE | KVC_STAGE_FLOAT | KVC_STAGE_LOOKS | KVC_STAGE_HEADS |
             KVC_STAGE_PROFILE | KVC_STAGE_SIDE,
    .asks = basis_asks,
    .args = arguments,
    .n_args = N_ARGS,
    .accepts = basis_accepts,
    .begin = basis_begin,
    .look = basis_look,
    .settle = basis_settle,
    .adopt = basis_adopt,
    .end = basis_end,
    .encode = basis_encode,
    .describe = basis_describe,
    .rows_begin = basis_rows_begin,
    .rows_next = basis_rows_next,
    .rows_end = basis_rows_end,
    .lower = kvc_basis_lower,
};
