/* test_quant.c: the stage `quant` against quant.md read value by value, alone and after `saliency`.
 * Not for the other lossy stages (test_lossy.c). */
#include "lossy_support.h"

/* A setting of the stage, and a matrix that goes into it. */
struct quant {
    const char *scheme;
    unsigned bits, low;
    size_t g;
    int sym;
    unsigned role;
    size_t rows, heads, dim;
    const uint8_t *salient; /* [row][head]; NULL: one class */
    const float *norm;      /* of channels, V of zip */
};

/* --- the reference --- */

static int salient_class(const struct quant *q, size_t t, size_t h) {
    return q->salient && !q->salient[t * q->heads + h];
}

/* Numbers of rows among those of their class in a head: rank[row][head]. */
static void find_ranks(const struct quant *q, size_t *rank) {
    for (size_t h = 0; h < q->heads; h++) {
        size_t n[2] = {0, 0};
        for (size_t t = 0; t < q->rows; t++) rank[t * q->heads + h] = n[salient_class(q, t, h)]++;
    }
}

/* Number of the group of a value; rank: of its row in its class. */
static size_t group_of(const struct quant *q, size_t t, size_t h, size_t d, size_t rank) {
    const int kivi = strcmp(q->scheme, "kivi") == 0, token = strcmp(q->scheme, "token") == 0;
    const size_t per_head = (q->dim + q->g - 1) / q->g;
    if (token || (kivi && q->role == V)) return (t * q->heads + h) * per_head + d / q->g;
    if (q->role == V) return rank;
    return (kivi ? rank / q->g : 0) * q->heads * q->dim + h * q->dim + d;
}

/* Each of the decoded values `y` is what quant.md makes of the values `x`. */
static void reference_check(const struct quant *q, const float *x, const float *y) {
    const size_t n = q->rows * q->heads * q->dim, width = q->heads * q->dim;
    float *least = get_memory(n * sizeof *least), *greatest = get_memory(n * sizeof *greatest);
    float *step = get_memory(n * sizeof *step), *low = get_memory(n * sizeof *low);
    size_t *rank = get_memory(q->rows * q->heads * sizeof *rank), groups = 0;
    size_t *group = get_memory(n * sizeof *group);
    find_ranks(q, rank);
    for (size_t i = 0; i < n; i++) {
        const size_t t = i / width, h = i % width / q->dim;
        group[i] = group_of(q, t, h, i % q->dim, rank[t * q->heads + h]);
        groups = group[i] >= groups ? group[i] + 1 : groups;
    }
    assert_in_range(groups, 1, n);
    for (int c = 0; c < (q->salient ? 2 : 1); c++) {
        const unsigned bits = c ? q->low : q->bits;
        const float levels = (float)((1 << bits) - 1);
        for (size_t g = 0; g < groups; g++) {
            least[g] = INFINITY;
            greatest[g] = -INFINITY;
        }
        for (size_t i = 0; i < n; i++) {
            if (salient_class(q, i / width, i % width / q->dim) != c) continue;
            const size_t g = group[i];
            const float v = q->norm ? x[i] * (1 / q->norm[i % width]) : x[i];
            least[g] = fminf(least[g], v);
            greatest[g] = fmaxf(greatest[g], v);
        }
        for (size_t g = 0; g < groups; g++) {
            const int there = least[g] <= greatest[g];
            low[g] = there ? least[g] : 0;
            step[g] = !there   ? 0
                      : q->sym ? 2 * fmaxf(-least[g], greatest[g]) / levels
                               : (greatest[g] - least[g]) / levels;
        }
        round_halves(step, groups);
        round_halves(low, groups);
        for (size_t i = 0; i < n; i++) {
            if (salient_class(q, i / width, i % width / q->dim) != c) continue;
            const size_t g = group[i];
            const float norm = q->norm ? q->norm[i % width] : 1, v = x[i] * (1 / norm);
            const float s = step[g], base = q->sym ? s * -(levels / 2) : low[g];
            double code = s > 0x1p-120f ? ((double)v - (double)base) / (double)s : 0;
            code = code < 0 ? 0 : code > (double)levels ? (double)levels : code;
            const double near = nearbyint(code), other = code < near ? near - 1 : near + 1;
            const float want = ((float)near * s + base) * norm,
                        neighbour = ((float)other * s + base) * norm;
            if (want == y[i]) continue;
            /* binary32 and a reciprocal leave this much of the code open */
            const int tied = 0.5 - fabs(code - near) < 1e-5 + code * 0x1p-21;
            if (!tied || neighbour != y[i])
                fail_msg("%s %c bits %u g %zu sym %d, %zu rows %zu heads dim %zu: value %zu is "
                         "%.9g, not %.9g (x %.9g, "
                         "step %.9g, low %.9g)",
                         q->scheme, q->role == V ? 'V' : 'K', bits, q->g, q->sym, q->rows, q->heads,
                         q->dim, i, (double)y[i], (double)want, (double)x[i], (double)s,
                         (double)base);
        }
        /* checks the reference itself: errors up to half a step, plus the rounding of range and
         * base; of numbers with a common exponent the smallest have fewer bits */
        double steps = 0, bases = 0;
        for (size_t g = 0; g < groups; g++) {
            steps = fmax(steps, (double)step[g]);
            bases = fmax(bases, q->sym ? 0 : fabs((double)low[g]));
        }
        for (size_t i = 0; i < n; i++) {
            if (salient_class(q, i / width, i % width / q->dim) != c) continue;
            const size_t g = group[i];
            const float norm = q->norm ? q->norm[i % width] : 1;
            const double s = (double)step[g], base = q->sym ? 0 : fabs((double)low[g]),
                         top = (double)levels;
            const double most = 0.5001 * s + top * s * 0x1p-11 + base * 0x1p-10 +
                                1e-6 * fabs((double)x[i] / (double)norm) +
                                (top * steps + bases) * 0x1p-38 + 255 * 0x1p-120;
            assert_true(fabs((double)y[i] - (double)x[i]) <= most * (double)norm);
        }
    }
    free(least);
    free(greatest);
    free(step);
    free(low);
    free(rank);
    free(group);
}

/* Returns the channel norms in a block's NORMS, which are about the roots of the channels' maximum
 * magnitudes. */
static float *read_norms(const struct kvc_sections *list, const float *x, size_t rows,
                         size_t width) {
    const struct kvc_section *s = section_of(list, KVC_SECTION_NORMS, 0);
    assert_non_null(s);
    assert_int_equal(s->size, 2 + width);
    const int base = (int16_t)(uint16_t)(s->data[0] | s->data[1] << 8);
    float *norm = get_memory(width * sizeof *norm), most = 0;
    for (size_t i = 0; i < rows * width; i++) most = fmaxf(most, fabsf(x[i]));
    for (size_t c = 0; c < width; c++) {
        const unsigned byte = s->data[2 + c];
        float greatest = 0;
        norm[c] = ldexpf((float)(8 + byte % 8), base + (int)(byte / 8));
        for (size_t t = 0; t < rows; t++) greatest = fmaxf(greatest, fabsf(x[t * width + c]));
        if (greatest < 1e-12f * most) continue; /* below the smallest code */
        assert_true(norm[c] <= sqrtf(greatest) * 1.000001f && norm[c] * 1.126f >= sqrtf(greatest));
    }
    return norm;
}

/* --- runs --- */

static void recipe_of(const struct quant *q, const char *before, const char *behind, char *text,
                      size_t size) {
    const int n = snprintf(text, size, "%squant:%s:bits=%u:g=%zu%s%s%s", before, q->scheme, q->bits,
                           q->g, q->low == 2 ? "" : ":low=",
                           q->low == 2 ? "" : (char[]){(char)('0' + q->low), 0},
                           q->sym ? ":sym" : "");
    assert_in_range(n, 1, size - 1);
    strncat(text, behind, size - 1 - (size_t)n);
}

/* Codes, decodes and compares with the reference, block by block. salient: of all rows, or NULL. */
static void check(const struct quant *setting, const char *before, const struct layer *l,
                  const uint8_t *salient, uint64_t block_rows) {
    struct quant q = *setting;
    struct coded c;
    char recipe[128];
    const size_t width = width_of(l, q.role);
    recipe_of(&q, before, "", recipe, sizeof recipe);
    must_code(&c, &(struct wanted){
                      .recipe = recipe, .layer = l, .role = q.role, .block_rows = block_rows});
    uint8_t *rows = decode(&c, NULL);
    float *x = layer_values(l, q.role), *y = values_of(rows, KVC_F32, (size_t)c.w.n * width);
    q.heads = (size_t)l->shape[q.role].heads;
    q.dim = (size_t)l->shape[q.role].dim;
    for (size_t b = 0; b < c.blocks; b++) {
        const size_t at = b * (size_t)c.w.block_rows;
        float *norm = NULL;
        q.rows = (size_t)rows_in_block(&c, b);
        q.salient = salient ? salient + at * q.heads : NULL;
        if (strcmp(q.scheme, "zip") == 0 && q.role == V)
            norm = read_norms(&c.block[b], x + at * width, q.rows, width);
        else assert_null(section_of(&c.block[b], KVC_SECTION_NORMS, 0));
        q.norm = norm;
        reference_check(&q, x + at * width, y + at * width);
        free(norm);
    }
    free(x);
    free(y);
    free(rows);
    code_free(&c);
}

static const char *const schemes[] = {"kivi", "kcvt", "token", "zip"};
static const size_t group_sizes[] = {64, 1, 5, 32, 1000};
static const uint64_t dims[] = {1, 7, 64, 80, 96, 112, 128, 192, 256, 576};
static const uint64_t row_counts[] = {1, 2, 63, 64, 65, 256};

static int takes_groups(const char *scheme) {
    return strcmp(scheme, "kivi") == 0 || strcmp(scheme, "token") == 0;
}

/* Every scheme, tensor, number of bits, group, dim and number of rows; large matrices with two
 * numbers of bits in turn.
 */
static void every_setting(void **state) {
    (void)state;
    unsigned turn = 0;
    for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++)
        for (size_t r = 0; r < sizeof row_counts / sizeof row_counts[0]; r++) {
            struct layer l = make_layer(KVC_F32, row_counts[r], 1 + (d + r) % 3, dims[d]);
            const int large = row_counts[r] * l.shape[K].heads * dims[d] > 20000;
            for (unsigned s = 0; s < 4; s++)
                for (unsigned g = 0; g < (takes_groups(schemes[s]) ? 5 : 1); g++) {
                    turn++;
                    for (unsigned i = 0; i < (large ? 1 : 8); i++)
                        for (unsigned role = 0; role < 2; role++)
                            check(&(struct quant){.scheme = schemes[s],
                                                  .bits = 1 + (turn + i) % 8,
                                                  .low = 2,
                                                  .g = group_sizes[g],
                                                  .sym = (turn + i) % 4 == 0,
                                                  .role = role},
                                  "", &l, NULL, 0);
                }
            free_layer(&l);
        }
}

/* Tests sym with every grouping and number of bits: no minima are stored, so PARAMS is smaller. */
static void symmetric_ranges(void **state) {
    (void)state;
    struct layer l = make_layer(KVC_F32, 70, 2, 24);
    for (unsigned s = 0; s < 4; s++)
        for (unsigned bits = 1; bits <= 8; bits++)
            for (unsigned role = 0; role < 2; role++) {
                struct coded c;
                struct quant q = {
                    .scheme = schemes[s], .bits = bits, .low = 2, .g = 5, .role = role};
                char text[128];
                size_t size[2];
                for (q.sym = 0; q.sym < 2; q.sym++) {
                    check(&q, "", &l, NULL, 0);
                    recipe_of(&q, "", "", text, sizeof text);
                    must_code(&c, &(struct wanted){.recipe = text, .layer = &l, .role = role});
                    const struct kvc_section *p = section_of(&c.block[0], KVC_SECTION_PARAMS, 0);
                    assert_non_null(p);
                    const uint8_t *at = p->data;
                    float *x = get_memory(70 * 48 * sizeof *x);
                    const size_t groups = group_of(&(struct quant){.scheme = q.scheme,
                                                                   .g = 5,
                                                                   .role = role,
                                                                   .rows = 70,
                                                                   .heads = 2,
                                                                   .dim = 24},
                                                   69, 1, 23, 69) +
                                          1;
                    read_halves(x, groups, &at);
                    if (!q.sym) read_halves(x, groups, &at);
                    assert_ptr_equal(at, p->data + p->size); /* steps, minima, nothing else */
                    size[q.sym] = p->size;
                    free(x);
                    code_free(&c);
                }
                assert_true(size[1] < size[0]);
            }
    free_layer(&l);
}

/* The squared error of a recipe's values, those of zip's V in units of their channels' norms, as
 * they are quantised. */
static double squared_error(const char *recipe, const struct layer *l, unsigned role) {
    const size_t width = width_of(l, role), n = (size_t)l->shape[role].tokens * width;
    struct coded c;
    must_code(&c, &(struct wanted){.recipe = recipe, .layer = l, .role = role});
    assert_int_equal(c.blocks, 1);
    uint8_t *rows = decode(&c, NULL);
    float *x = layer_values(l, role), *norm = NULL;
    double sum = 0;
    if (section_of(&c.block[0], KVC_SECTION_NORMS, 0))
        norm = read_norms(&c.block[0], x, n / width, width);
    for (size_t i = 0; i < n; i++)
        sum += pow(((double)x[i] - (double)get_value(rows, KVC_F32, i)) /
                       (norm ? (double)norm[i % width] : 1),
                   2);
    free(norm);
    free(x);
    free(rows);
    code_free(&c);
    return sum;
}

/* Looking for a range does not make it worse, and makes it better where few values are far out. */
static void clip_all(int sym) {
    for (unsigned s = 0; s < 4; s++)
        for (unsigned bits = 1; bits <= 8; bits++)
            for (unsigned role = 0; role < 2; role++) {
                struct layer l = make_layer(KVC_F32, 256, 2, 64);
                char plain[64], clip[64];
                for (size_t i = 0; i < 256 * 128; i += 97)
                    put_value(l.rows[role], KVC_F32, i, 3 * get_value(l.rows[role], KVC_F32, i));
                snprintf(plain, sizeof plain, "quant:%s:bits=%u%s", schemes[s], bits,
                         sym ? ":sym" : "");
                snprintf(clip, sizeof clip, "quant:%s:bits=%u:clip%s", schemes[s], bits,
                         sym ? ":sym" : "");
                const double without = squared_error(plain, &l, role),
                             with = squared_error(clip, &l, role);
                /* rounding of parameters, which comes later, is a matter of luck */
                if (!(with <= without * 1.0001))
                    fail_msg("%s of %c: squared error %g, without clip %g", clip,
                             role == V ? 'V' : 'K', with, without);
                if (bits <= 3 && !sym) assert_true(with < 0.9 * without);
                free_layer(&l);
            }
}

static void clipping(void **state) {
    (void)state;
    clip_all(0);
}

static void clipping_around_zero(void **state) {
    (void)state;
    clip_all(1);
}

/* Groups of equal values that halves can hold come back as they are: zeros and bf16's of like
 * sizes. */
static void constant_groups(void **state) {
    (void)state;
    struct layer l = make_layer(KVC_BF16, 130, 2, 70);
    for (unsigned s = 0; s < 4; s++)
        for (unsigned bits = 1; bits <= 8; bits++)
            for (unsigned role = 0; role < 2; role++) {
                const int by_channel = role == K && strcmp(schemes[s], "token") != 0;
                char text[64];
                /* its norms are not powers of two */
                if (strcmp(schemes[s], "zip") == 0 && role == V) continue;
                for (size_t i = 0; i < 130 * 140; i++) {
                    const size_t group = by_channel ? i % 140 : i / 140;
                    put_value(l.rows[role], KVC_BF16, i,
                              group % 5 == 0
                                  ? 0
                                  : (group % 2 ? -1.0f : 1.0f) * (float)(1 + group) / 32);
                }
                snprintf(text, sizeof text, "quant:%s:bits=%u", schemes[s], bits);
                uint8_t *back = there_and_back(text, &l, role, 64);
                for (size_t i = 0; i < 130 * 140; i++)
                    assert_true(get_value(back, KVC_BF16, i) ==
                                get_value(l.rows[role], KVC_BF16, i));
                free(back);
            }
    free_layer(&l);
}

/* Ranges far from 1, ranges small beside their place, and magnitudes that differ from channel to
 * channel or row to row.
 */
static void huge_and_tiny(void **state) {
    (void)state;
    enum { TINY, HUGE_ONES, BESIDE_1000, BY_CHANNEL, BY_ROW, ALL_KINDS, KINDS };
    for (int kind = 0; kind < KINDS; kind++) {
        struct layer l = make_layer(KVC_F32, 129, 2, 40);
        for (unsigned role = 0; role < 2; role++)
            for (size_t i = 0; i < 129 * 80; i++) {
                float x = random_normal();
                const size_t by = kind == BY_CHANNEL ? i % 80 : i / 80;
                if (kind == TINY) x *= 1e-30f;
                else if (kind == HUGE_ONES) x *= 1e14f;
                else if (kind == BESIDE_1000)
                    x = as_stored(1000 + 0.1f * x, i % 3 ? KVC_BF16 : KVC_F32);
                else if (kind == ALL_KINDS) x = ldexpf(x, (int)(random_bits() % 120) - 75);
                else x = ldexpf(x, (int)(by * 7 % 50) - 25);
                put_value(l.rows[role], KVC_F32, i, x);
            }
        for (unsigned s = 0; s < 4; s++)
            for (unsigned bits = 1; bits <= 8; bits++)
                for (unsigned role = 0; role < 2; role++)
                    for (int sym = 0; sym < 2; sym++)
                        check(&(struct quant){.scheme = schemes[s],
                                              .bits = bits,
                                              .low = 2,
                                              .g = 32,
                                              .sym = sym,
                                              .role = role},
                              "", &l, NULL, 0);
        free_layer(&l);
    }
}

/* Blocks stand alone: groups restart in each. Other dtypes get the nearest value of theirs. */
static void blocks_and_dtypes(void **state) {
    (void)state;
    static const enum kvc_dtype dtypes[] = {KVC_F16, KVC_BF16};
    for (unsigned s = 0; s < 4; s++)
        for (unsigned role = 0; role < 2; role++) {
            struct layer l = make_layer(KVC_F32, 150, 2, 48);
            for (uint64_t block_rows = 31; block_rows <= 256; block_rows += 75)
                check(&(struct quant){.scheme = schemes[s],
                                      .bits = 3,
                                      .low = 2,
                                      .g = 20,
                                      .role = role},
                      "", &l, NULL, block_rows);
            for (unsigned d = 0; d < 2; d++) {
                struct layer own = make_layer(dtypes[d], 150, 2, 48);
                char text[64];
                snprintf(text, sizeof text, "quant:%s:bits=3:g=20", schemes[s]);
                for (size_t i = 0; i < 150 * 96; i++)
                    put_value(l.rows[role], KVC_F32, i, get_value(own.rows[role], dtypes[d], i));
                uint8_t *wide = there_and_back(text, &l, role, 0),
                        *back = there_and_back(text, &own, role, 0);
                for (size_t i = 0; i < 150 * 96; i++)
                    assert_true(get_value(back, dtypes[d], i) ==
                                as_stored(get_value(wide, KVC_F32, i), dtypes[d]));
                free(wide);
                free(back);
                free_layer(&own);
            }
            free_layer(&l);
        }
}

/* What quant missed and a lossless stage keeps makes the values whole, but for binary32's rounding.
 */
static void residuals(void **state) {
    (void)state;
    struct layer l = make_layer(KVC_F32, 100, 2, 48);
    for (unsigned s = 0; s < 4; s++)
        for (unsigned role = 0; role < 2; role++)
            for (int apart = 0; apart < 2; apart++) {
                char text[128];
                snprintf(text, sizeof text, "%squant:%s:bits=2,split",
                         apart ? "saliency:0.3:by=knorm," : "", schemes[s]);
                uint8_t *back = there_and_back(text, &l, role, 64);
                float *x = layer_values(&l, role);
                for (size_t i = 0; i < 100 * 96; i++)
                    assert_true(fabsf(get_value(back, KVC_F32, i) - x[i]) <=
                                1e-6f * (1 + fabsf(x[i])));
                free(x);
                free(back);
            }
    free_layer(&l);
}

/* --- two classes --- */

enum { ALL, NONE, RANDOM, HEAD_EMPTY, ONE_TOKEN, MASKS };

/* K whose small norms are where a mask of two blocks of `half` rows is to be: the share of them in
 * each head. */
static double mask_keys(struct layer *l, int kind, size_t half, uint8_t *mask) {
    const size_t rows = 2 * half, heads = (size_t)l->shape[K].heads, dim = (size_t)l->shape[K].dim;
    const size_t most = kind == ALL ? rows : kind == NONE ? 0 : kind == ONE_TOKEN ? 1 : half / 2;
    memset(mask, 0, rows * heads);
    for (size_t h = 0; h < heads; h++)
        for (size_t n = 0; n < most;) {
            size_t t = random_bits() % rows;
            if (kind == ALL) t = n;
            /* head 0 only in the second block, others the first */
            if (kind == HEAD_EMPTY) t = h == 0 ? half + t / 2 : t / 2;
            n += !mask[t * heads + h];
            mask[t * heads + h] = 1;
        }
    for (size_t i = 0; i < rows * heads; i++) {
        double square = 0;
        for (size_t d = 0; d < dim; d++) {
            const double v = (double)get_value(l->rows[K], KVC_F32, i * dim + d);
            square += v * v;
        }
        const double norm = (mask[i] ? 1 : 3) + 0.001 * (double)(random_bits() % 1000);
        for (size_t d = 0; d < dim; d++)
            put_value(l->rows[K], KVC_F32, i * dim + d,
                      (float)(norm / sqrt(square) *
                              (double)get_value(l->rows[K], KVC_F32, i * dim + d)));
    }
    return (double)most / (double)rows;
}

static void two_classes(void **state) {
    (void)state;
    static const size_t halves[] = {1, 20, 64, 256};
    for (int kind = 0; kind < MASKS; kind++)
        for (size_t r = 0; r < 4; r++)
            for (uint64_t dim = 7; dim <= 64; dim += 57) {
                const size_t half = halves[r];
                struct layer l = make_layer(KVC_F32, 2 * half, 3, dim);
                uint8_t *mask = get_memory(2 * half * 3);
                char before[64], recipe[80];
                const double share = mask_keys(&l, kind, half, mask);
                snprintf(before, sizeof before, "saliency:%.12f:by=knorm,", share);
                struct coded c;
                snprintf(recipe, sizeof recipe, "%ssplit", before);
                must_code(&c, &(struct wanted){
                                  .recipe = recipe, .layer = &l, .role = V, .block_rows = half});
                for (size_t b = 0; b < c.blocks; b++) {
                    const struct kvc_section *s = section_of(&c.block[b], KVC_SECTION_MASK, 0);
                    assert_non_null(s);
                    for (size_t i = 0; i < half * 3; i++)
                        assert_int_equal(bit(s->data, i), mask[b * half * 3 + i]);
                }
                code_free(&c);
                for (unsigned s = 0; s < 4; s++)
                    for (unsigned role = 0; role < 2; role++)
                        for (unsigned bits = 1; bits <= 8; bits += half > 64 ? 3 : 1)
                            check(&(struct quant){.scheme = schemes[s],
                                                  .bits = bits,
                                                  .low = 1 + (bits + 3) % 8,
                                                  .g = 5,
                                                  .sym = bits % 4 == 3,
                                                  .role = role},
                                  before, &l, mask, half);
                free(mask);
                free_layer(&l);
            }
}

/* quant.md's example. */
static void worked_example(void **state) {
    (void)state;
    static const uint8_t codes[8] = {0};
    static const float want[] = {0, 0, 1, 2};
    struct layer l = make_layer(KVC_F32, 1, 1, 2);
    struct coded c;
    float got[4];
    put_value(l.rows[K], KVC_F32, 0, 1);
    put_value(l.rows[K], KVC_F32, 1, 2);
    must_code(&c, &(struct wanted){.recipe = "quant:kivi:bits=2:g=64", .layer = &l, .role = K});
    assert_int_equal(c.block[0].count, 2);
    const struct kvc_section *p = section_of(&c.block[0], KVC_SECTION_PARAMS, 0),
                             *s = section_of(&c.block[0], KVC_SECTION_CODES, 0);
    const uint8_t *at = p->data;
    read_halves(got, 2, &at);
    read_halves(got + 2, 2, &at);
    assert_ptr_equal(at, p->data + p->size);
    assert_memory_equal(got, want, sizeof got);
    assert_int_equal(s->size, sizeof codes);
    assert_memory_equal(s->data, codes, sizeof codes);
    code_free(&c);
    free_layer(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worked_example),
        cmocka_unit_test(every_setting),
        cmocka_unit_test(symmetric_ranges),
        cmocka_unit_test(clipping),
        cmocka_unit_test(clipping_around_zero),
        cmocka_unit_test(constant_groups),
        cmocka_unit_test(huge_and_tiny),
        cmocka_unit_test(blocks_and_dtypes),
        cmocka_unit_test(residuals),
        cmocka_unit_test(two_classes),
    };
    return cmocka_run_group_tests_name("quant", tests, NULL, NULL);
}
