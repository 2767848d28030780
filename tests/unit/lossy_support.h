/* lossy_support.h: a layer's K and V in memory, coded and decoded block by block as the container
 * does, for the tests of lossy stages. Not for other tests. */
#ifndef LOSSY_SUPPORT_H
#define LOSSY_SUPPORT_H

#include "values_support.h"

#include "codecs/dtype.h"
#include "codecs/floats.h"
#include "codecs/recipe.h"
#include "codecs/shared.h"
#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* --- numbers --- */

static uint32_t random_state = 7;

static inline void put_value(uint8_t *rows, enum kvc_dtype dtype, size_t i, float x) {
    const uint16_t h = dtype == KVC_F16 ? kvc_float_to_half(x) : kvc_float_to_bf16(x);
    if (dtype == KVC_F32) memcpy(rows + 4 * i, &x, 4);
    else memcpy(rows + 2 * i, &h, 2);
}

static inline float get_value(const uint8_t *rows, enum kvc_dtype dtype, size_t i) {
    float x;
    uint16_t h;
    if (dtype == KVC_F32) {
        memcpy(&x, rows + 4 * i, 4);
        return x;
    }
    memcpy(&h, rows + 2 * i, 2);
    if (dtype == KVC_F16) return kvc_half_to_float(h);
    const uint32_t bits = (uint32_t)h << 16;
    memcpy(&x, &bits, 4);
    return x;
}

/* What x becomes in a matrix of this dtype. */
static inline float as_stored(float x, enum kvc_dtype dtype) {
    uint8_t bytes[4];
    put_value(bytes, dtype, 0, x);
    return get_value(bytes, dtype, 0);
}

/* n numbers as floats.md stores and reads them. */
static inline void round_halves(float *x, size_t n) {
    int exponent = 15;
    double greatest = 0;
    for (size_t i = 0; i < n; i++) greatest = fmax(greatest, fabs((double)x[i]));
    if (greatest > 0) frexp(greatest, &exponent);
    exponent -= 15; /* below 2^15 */
    exponent = exponent < -126 ? -126 : exponent > 112 ? 112 : exponent;
    for (size_t i = 0; i < n; i++) {
        int own;
        const double scaled = ldexp((double)x[i], -exponent);
        frexp(scaled, &own); /* 11 bits: own - 11 is the place of the last, and never below 2^-24 */
        const int place = own - 11 < -24 ? -24 : own - 11;
        x[i] = (float)ldexp(nearbyint(ldexp(scaled, -place)), place + exponent);
    }
}

/* Value i of those packed in `width` bits each, 32 together: the lowest four bits first, then two,
 * then one. */
static inline unsigned unpacked(const uint8_t *p, unsigned width, size_t i) {
    unsigned value = 0, have = 0;
    if (width == 8) return p[i];
    p += i / 32 * 4 * width;
    i %= 32;
    for (unsigned part = 4; part; part /= 2) {
        const size_t bytes = 4 * part;
        if (!(width & part)) continue;
        value |= ((unsigned)p[i % bytes] >> i / bytes * part & ((1u << part) - 1)) << have;
        have += part;
        p += bytes;
    }
    return value;
}

static inline size_t packed_size(size_t n, unsigned width) {
    return width == 8 ? n : (n + 31) / 32 * 4 * width;
}

/* Reads n numbers as floats.md says from *p on. */
static inline void read_halves(float *x, size_t n, const uint8_t **p) {
    const uint8_t *head = *p;
    const int exponent = (int16_t)(uint16_t)(head[0] | head[1] << 8);
    const unsigned zeros = head[2], width = head[3] & 127, rotated = head[3] >> 7, least = head[4];
    const size_t escapes = head[5] | (size_t)head[6] << 8 | (size_t)head[7] << 16 |
                           (size_t)head[8] << 24;
    const uint8_t *lower = head + 9, *upper = lower + packed_size(n, 8 - zeros),
                  *escape = upper + packed_size(n, width);
    *p = escape + escapes;
    for (size_t i = 0; i < n; i++) {
        unsigned high = unpacked(upper, width, i);
        if (width < 8 && high == (1u << width) - 1) {
            high = *escape++;
        } else if (width < 8) {
            high = (high + least) & 255;
            if (rotated) high = high >> 1 | (high & 1) << 7;
        }
        const unsigned low = zeros == 8 ? 0 : unpacked(lower, 8 - zeros, i) << zeros;
        x[i] = ldexpf(kvc_half_to_float((uint16_t)(high << 8 | low)), exponent);
    }
    assert_ptr_equal(escape, *p);
}

/* --- layers --- */

enum { K, V };

struct layer {
    struct kvc_shape shape[2]; /* of K, of V */
    uint8_t *rows[2];
    int64_t *position;
    float *query; /* [query][query head][channel] */
    int64_t *query_position;
    uint64_t n_queries, query_heads;
};

static inline unsigned select_of(unsigned role) {
    return role == V ? KVC_SELECT_V : KVC_SELECT_K;
}

static inline size_t width_of(const struct layer *l, unsigned role) {
    return (size_t)(l->shape[role].heads * l->shape[role].dim);
}

/* K and V of the same shape, of normal values, channels having means and spreads of their own. */
static inline struct layer make_layer(enum kvc_dtype dtype, uint64_t rows, uint64_t heads,
                                      uint64_t dim) {
    struct layer l = {.shape = {{dtype, rows, heads, dim}, {dtype, rows, heads, dim}}};
    const size_t width = (size_t)(heads * dim), bytes = (size_t)(rows * kvc_row_bytes(&l.shape[K]));
    float *mean = get_memory(width * sizeof *mean), *spread = get_memory(width * sizeof *spread);
    for (unsigned role = 0; role < 2; role++) {
        l.rows[role] = get_memory(bytes);
        for (size_t c = 0; c < width; c++) {
            mean[c] = random_normal();
            spread[c] = 0.1f + fabsf(random_normal());
        }
        for (size_t i = 0; i < bytes; i++) l.rows[role][i] = (uint8_t)(random_bits() & 0x3f);
        if (!kvc_is_float(dtype)) continue;
        for (size_t i = 0; i < rows * width; i++)
            put_value(l.rows[role], dtype, i,
                      mean[i % width] + spread[i % width] * random_normal());
    }
    l.position = get_memory(rows * sizeof *l.position);
    for (size_t t = 0; t < rows; t++) l.position[t] = (int64_t)t;
    free(mean);
    free(spread);
    return l;
}

/* The queries of the last n tokens. */
static inline void add_queries(struct layer *l, uint64_t n, uint64_t group) {
    const uint64_t rows = l->shape[K].tokens;
    const size_t each = (size_t)(l->shape[K].heads * group * l->shape[K].dim);
    l->n_queries = n;
    l->query_heads = l->shape[K].heads * group;
    l->query = get_memory(n * each * sizeof *l->query);
    l->query_position = get_memory(n * sizeof *l->query_position);
    for (size_t i = 0; i < n * each; i++) l->query[i] = random_normal() * (i % 7 == 0 ? 3 : 0.7f);
    for (size_t q = 0; q < n; q++) l->query_position[q] = l->position[rows - n + q];
}

static inline void free_layer(struct layer *l) {
    free(l->rows[K]);
    free(l->rows[V]);
    free(l->position);
    free(l->query);
    free(l->query_position);
}

/* All values of K or V. */
static inline float *values_of(const uint8_t *rows, enum kvc_dtype dtype, size_t n) {
    float *x = get_memory(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = get_value(rows, dtype, i);
    return x;
}

static inline float *layer_values(const struct layer *l, unsigned role) {
    return values_of(l->rows[role], l->shape[role].dtype,
                     (size_t)l->shape[role].tokens * width_of(l, role));
}

/* --- coding --- */

/* Facts of the model, as struct kvc_encoding has them. */
struct known {
    const struct kvc_rope_facts *rope;
    const struct kvc_profile_part *profile;
    uint64_t window;
    const float *query; /* of a profile */
    uint64_t queries, query_heads;
};

struct wanted {
    const char *recipe;
    const struct layer *layer, *partner; /* partner: of a pair the other layer */
    unsigned role;
    int second, deeper;  /* as struct kvc_encoding has them */
    uint64_t block_rows; /* 0: 256 */
    uint64_t first, n;   /* the segment; n 0: all rows */
    struct known known;
};

struct coded {
    struct wanted w;
    struct kvc_pipeline line;
    struct kvc_shared shared;
    struct kvc_encoding encoding;
    struct kvc_encoder encoder;
    struct kvc_sections *block; /* of each */
    size_t blocks;
    int ready; /* how many blocks have been initialised */
};

static inline int read_values(const struct kvc_encoding *x, unsigned role, uint64_t first,
                              uint64_t n, float *dst, struct kvc_error *e) {
    const struct coded *c = x->owner;
    const unsigned which = role == KVC_SELECT_V ? V : K;
    const struct layer *l = c->w.layer;
    (void)e;
    assert_true(first + n <= l->shape[which].tokens);
    for (size_t i = 0; i < n * width_of(l, which); i++)
        dst[i] = get_value(l->rows[which], l->shape[which].dtype,
                           (size_t)first * width_of(l, which) + i);
    return 0;
}

static inline struct kvc_pipeline pipeline_for(const char *recipe, unsigned role) {
    struct kvc_recipe r;
    struct kvc_pipeline line;
    struct kvc_error e;
    if (kvc_recipe_parse(recipe, &r, &e)) fail_msg("%s", e.message);
    kvc_recipe_pipeline(&r, select_of(role), 0, &line);
    if (kvc_pipeline_check(&line, &e)) fail_msg("%s: %s", recipe, e.message);
    return line;
}

static inline uint64_t rows_in_block(const struct coded *c, size_t b) {
    const uint64_t begin = b * c->w.block_rows, left = c->w.n - begin;
    return left < c->w.block_rows ? left : c->w.block_rows;
}

/* The rotation of the tensor's rows, as encoders know it, or NULL. */
static inline const struct kvc_rope_facts *turn_known(const struct wanted *w) {
    const struct kvc_rope_facts *f = w->known.rope;
    return f && w->role == K && f->half && kvc_pairing_turns(f->pairing) && f->angle ? f : NULL;
}

/* A block of a layer as a stage gets it, in memory of its own. */
struct own_block {
    struct kvc_block block;
    uint8_t *rows;
    uint64_t *row;
};

static inline struct own_block load_block(const struct coded *c, const struct layer *l, size_t b) {
    const struct kvc_shape *s = &l->shape[c->w.role];
    const uint64_t n = rows_in_block(c, b), first = c->w.first + b * c->w.block_rows;
    const size_t bytes = (size_t)(n * kvc_row_bytes(s));
    struct own_block o = {.rows = get_memory(bytes), .row = get_memory(n * sizeof *o.row)};
    memcpy(o.rows, l->rows[c->w.role] + first * kvc_row_bytes(s), bytes);
    for (uint64_t i = 0; i < n; i++) o.row[i] = first + i;
    o.block =
        (struct kvc_block){.shape = *s, .rows = o.rows, .row = o.row, .role = select_of(c->w.role)};
    o.block.shape.tokens = n;
    return o;
}

static inline void free_block(struct own_block *o) {
    free(o->rows);
    free(o->row);
}

/* Gives block b to kvc_encoder_look() of step i, or, with `out`, to kvc_encoder_block(). */
static inline int pass_block(struct coded *c, size_t b, unsigned i, struct kvc_sections *out,
                             struct kvc_error *e) {
    struct own_block own = load_block(c, c->w.layer, b), other = {.rows = NULL};
    own.block.profile = c->w.known.profile;
    own.block.turn = turn_known(&c->w);
    if (c->w.partner) {
        other = load_block(c, c->w.partner, b);
        own.block.partner = &other.block;
    }
    const int status = out ? kvc_encoder_block(&c->encoder, &own.block, out, e)
                           : kvc_encoder_look(&c->encoder, i, &own.block, e);
    free_block(&own);
    if (c->w.partner) free_block(&other);
    return status;
}

/* Codes all blocks of the segment: 0, or -1 and the reason. code_free() in both cases. */
static inline int code(struct coded *c, const struct wanted *w, struct kvc_error *e) {
    const struct layer *l = w->layer;
    memset(c, 0, sizeof *c);
    memset(e, 0, sizeof *e);
    c->w = *w;
    if (!c->w.block_rows) c->w.block_rows = 256;
    if (!c->w.n) c->w.n = l->shape[w->role].tokens - c->w.first;
    c->line = pipeline_for(w->recipe, w->role);
    assert_int_equal(kvc_shared_init(&c->shared, e), 0);
    c->encoding = (struct kvc_encoding){.rows = l->shape[w->role].tokens,
                                        .position = l->position,
                                        .read = read_values,
                                        .key = l->shape[K],
                                        .value = l->shape[V],
                                        .query = l->query,
                                        .query_position = l->query_position,
                                        .n_queries = l->n_queries,
                                        .query_heads = l->query_heads,
                                        .first = c->w.first,
                                        .segment_rows = c->w.n,
                                        .pair = 5,
                                        .second = w->second,
                                        .deeper = w->deeper,
                                        .shared = &c->shared,
                                        .rope = w->known.rope,
                                        .window = w->known.window,
                                        .profile_query = w->known.query,
                                        .profile_queries = w->known.queries,
                                        .profile_query_heads = w->known.query_heads,
                                        .owner = c};
    kvc_encoder_init(&c->encoder, &c->line, &c->encoding);
    c->blocks = (size_t)((c->w.n + c->w.block_rows - 1) / c->w.block_rows);
    c->block = get_memory(c->blocks * sizeof *c->block);
    const unsigned steps = w->second ? kvc_pipeline_first(&c->line, KVC_STAGE_PAIR) + 1 : c->line.n;
    if (!kvc_pipeline_accepts(&c->line, &l->shape[w->role], e)) return -1;
    for (unsigned i = 0; i < steps; i++) {
        const struct kvc_stage *s = c->line.step[i].stage;
        const struct kvc_block like = {.shape = l->shape[w->role],
                                       .role = select_of(w->role),
                                       .turn = turn_known(w),
                                       .profile = w->known.profile};
        if (!(s->flags & KVC_STAGE_LOOKS)) continue;
        if (kvc_encoder_begin(&c->encoder, i, &like, e)) return -1;
        for (size_t b = 0; b < c->blocks && s->look; b++)
            if (pass_block(c, b, i, NULL, e)) return -1;
        if (kvc_encoder_settle(&c->encoder, i, e)) return -1;
    }
    for (size_t b = 0; b < c->blocks; b++) {
        kvc_sections_init(&c->block[c->ready++]);
        if (pass_block(c, b, 0, &c->block[b], e)) return -1;
        kvc_sections_seal(&c->block[b]);
    }
    return 0;
}

static inline void code_free(struct coded *c) {
    kvc_encoder_free(&c->encoder);
    kvc_shared_free(&c->shared);
    for (int b = 0; b < c->ready; b++) kvc_sections_free(&c->block[b]);
    free(c->block);
}

static inline void must_code(struct coded *c, const struct wanted *w) {
    struct kvc_error e;
    if (code(c, w, &e)) fail_msg("%s: %s", w->recipe, e.message);
}

/* The block's rows from the n sections given; `first`: of a pair's second tensor the first one. */
static inline int try_decode(const struct coded *c, size_t b, const struct kvc_section *section,
                             size_t n, const struct coded *first, uint8_t *rows,
                             struct kvc_error *e) {
    const uint64_t count = rows_in_block(c, b);
    const size_t bytes = (size_t)(count * kvc_row_bytes(&c->w.layer->shape[c->w.role]));
    uint8_t *own = get_memory(bytes); /* so that a sanitizer sees the end */
    memset(own, 0xaa, bytes);
    struct kvc_block block = {.shape = c->w.layer->shape[c->w.role],
                              .rows = own,
                              .role = select_of(c->w.role)};
    const struct kvc_coded coded = {section, c->encoder.side.section, n, c->encoder.side.count};
    struct kvc_coded base = {0};
    if (first)
        base = (struct kvc_coded){first->block[b].section, first->encoder.side.section,
                                  first->block[b].count, first->encoder.side.count};
    block.shape.tokens = count;
    const int status = kvc_pipeline_decode_record(&c->line, &block, &coded, first ? &base : NULL,
                                                  e);
    if (!status) memcpy(rows, own, bytes);
    free(own);
    return status;
}

/* All rows of the segment. */
static inline uint8_t *decode(const struct coded *c, const struct coded *first) {
    const uint64_t row = kvc_row_bytes(&c->w.layer->shape[c->w.role]);
    uint8_t *rows = get_memory((size_t)(c->w.n * row));
    struct kvc_error e;
    for (size_t b = c->blocks; b-- > 0;)
        if (try_decode(c, b, c->block[b].section, c->block[b].count, first,
                       rows + b * c->w.block_rows * row, &e))
            fail_msg("%s: block %zu: %s", c->w.recipe, b, e.message);
    return rows;
}

/* What a recipe makes of K or V. */
static inline uint8_t *there_and_back(const char *recipe, const struct layer *l, unsigned role,
                                      uint64_t block_rows) {
    struct coded c;
    must_code(
        &c, &(struct wanted){.recipe = recipe, .layer = l, .role = role, .block_rows = block_rows});
    uint8_t *rows = decode(&c, NULL);
    code_free(&c);
    return rows;
}

/* A section by type and index; NULL when there is none. */
static inline const struct kvc_section *section_of(const struct kvc_sections *list, unsigned type,
                                                   unsigned index) {
    for (size_t i = 0; i < list->count; i++)
        if (list->section[i].type == type && list->section[i].index == index)
            return &list->section[i];
    return NULL;
}

static inline int bit(const uint8_t *bits, size_t i) {
    return bits[i / 8] >> i % 8 & 1;
}

/* --- bits --- */

static const enum kvc_dtype float_dtypes[] = {KVC_F32, KVC_F16, KVC_BF16};

static inline int same_bits(const uint8_t *a, const uint8_t *b, enum kvc_dtype dtype, size_t i) {
    const size_t size = kvc_dtype_info(dtype)->size;
    return memcmp(a + i * size, b + i * size, size) == 0;
}

static inline int same_row(const struct layer *l, unsigned role, const uint8_t *rows, size_t t) {
    const size_t size = (size_t)kvc_row_bytes(&l->shape[role]);
    return memcmp(rows + t * size, l->rows[role] + t * size, size) == 0;
}

static inline void put_pattern(uint8_t *rows, enum kvc_dtype dtype, size_t i, uint32_t bits) {
    const size_t size = kvc_dtype_info(dtype)->size;
    for (size_t b = 0; b < size; b++) rows[i * size + b] = (uint8_t)(bits >> 8 * b & 255);
}

/* Of each of these dtypes: NaNs, infinities, and values beyond what `finite` leaves. */
static const uint32_t wild_patterns[3][7] = {
    {0x7fc00001, 0xffa12345, 0x7f800000, 0xff800000, 0x58800000, 0xff7fffff, 0x7fffffff},
    {0x7e01, 0xfd23, 0x7c00, 0xfc00, 0x7c01, 0xffff, 0x7fff},
    {0x7fc1, 0xffa1, 0x7f80, 0xff80, 0x5880, 0xff7f, 0x7fff},
};

#endif
