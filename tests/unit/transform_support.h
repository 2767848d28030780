/* transform_support.h: what the tests of the transform codec share: decoding of single blocks,
 * streams and angles read slowly as the specs say, and kinds of layers. Not for other tests. */
#ifndef TRANSFORM_SUPPORT_H
#define TRANSFORM_SUPPORT_H

#include "lossy_support.h"

#include "codecs/eigen.h"
#include "codecs/profile_part.h"
#include "codecs/rope.h"
#include "codecs/stages/code/code_plan.h"

/* --- decoding --- */

/* What a reader knows of the rotation: angles of a profile only with one of as many pairs. NULL:
 * nothing; free() it. */
static inline struct kvc_rope_facts *turn_for(const struct coded *t,
                                              const struct kvc_profile_part *profile) {
    const struct kvc_rope_facts *f = turn_known(&t->w);
    if (!f) return NULL;
    struct kvc_rope_facts *turn = get_memory(sizeof *turn);
    *turn = *f;
    if (f->of_profile) turn->angle = profile && profile->half == f->half ? profile->angle : NULL;
    return turn;
}

/* Room for a block that is to be decoded, in memory of its own, so that a sanitizer sees the end.
 */
static inline struct kvc_block room_for(const struct coded *t, size_t b,
                                        const struct kvc_profile_part *profile) {
    const struct layer *l = t->w.layer;
    const size_t n = (size_t)rows_in_block(t, b),
                 first = (size_t)(t->w.first + b * t->w.block_rows);
    const size_t bytes = n * (size_t)kvc_row_bytes(&l->shape[t->w.role]);
    int64_t *position = get_memory(n * sizeof *position);
    struct kvc_block block = {.shape = l->shape[t->w.role],
                              .rows = get_memory(bytes),
                              .role = select_of(t->w.role),
                              .row = get_memory(n * sizeof *block.row),
                              .position = position,
                              .first_row = first,
                              .turn = turn_for(t, profile),
                              .profile = profile};
    block.shape.tokens = n;
    for (size_t i = 0; i < n; i++) block.row[i] = first + i;
    memcpy(position, l->position + first, n * sizeof *position);
    memset(block.rows, 0xaa, bytes);
    return block;
}

/* Frees all but the rows. */
static inline void free_facts(const struct kvc_block *block) {
    free(block->row);
    free((int64_t *)(uintptr_t)block->position);
    free((struct kvc_rope_facts *)(uintptr_t)block->turn);
}

/* Rows of a block out of these sections; free() them. NULL and the reason where they are refused.
 */
static inline uint8_t *back(const struct coded *t, size_t b, const struct kvc_coded *sections,
                            const struct kvc_profile_part *profile, struct kvc_error *e) {
    struct kvc_block block = room_for(t, b, profile);
    memset(e, 0, sizeof *e);
    const int status = kvc_pipeline_decode_record(&t->line, &block, sections, NULL, e);
    free_facts(&block);
    if (!status) return block.rows;
    free(block.rows);
    return NULL;
}

static inline struct kvc_coded sections_of(const struct coded *t, size_t b) {
    return (struct kvc_coded){t->block[b].section, t->encoder.side.section, t->block[b].count,
                              t->encoder.side.count};
}

/* Decodes blocks a and b at once. Each must be as it is alone, unless that is refused. Returns 1
 * where it is. */
static inline int two_back(const struct coded *t, size_t a, const struct kvc_coded *of_a, size_t b,
                           const struct kvc_coded *of_b) {
    struct kvc_block block[] = {room_for(t, a, t->w.known.profile),
                                room_for(t, b, t->w.known.profile)};
    const struct kvc_coded coded[] = {*of_a, *of_b};
    const int status = kvc_pipeline_decode_two(&t->line, block, coded);
    for (int i = 0; i < 2; i++) {
        struct kvc_error e;
        uint8_t *alone = status ? NULL : back(t, i ? b : a, &coded[i], t->w.known.profile, &e);
        if (alone)
            assert_memory_equal(block[i].rows, alone,
                                block[i].shape.tokens * kvc_row_bytes(&block[i].shape));
        assert_true(status || alone);
        free(alone);
        free_facts(&block[i]);
        free(block[i].rows);
    }
    assert_in_range(status, 0, 1);
    return status;
}

static inline uint8_t *must_come_back(const struct coded *t, size_t b) {
    const struct kvc_coded sections = sections_of(t, b);
    struct kvc_error e;
    uint8_t *rows = back(t, b, &sections, t->w.known.profile, &e);
    if (!rows) fail_msg("%s: block %zu: %s", t->w.recipe, b, e.message);
    return rows;
}

static inline const struct kvc_section *find(const struct kvc_sections *list, unsigned stage,
                                             unsigned type) {
    for (size_t i = 0; i < list->count; i++)
        if (list->section[i].stage == stage && list->section[i].type == type)
            return &list->section[i];
    return NULL;
}

/* The number of a stage in the pipeline, from `from` on; line->n where there is none. */
static inline unsigned stage_number(const struct kvc_pipeline *line, const char *name,
                                    unsigned from) {
    while (from < line->n && strcmp(line->step[from].stage->name, name) != 0) from++;
    return from;
}

static inline float *decoded_values(const struct coded *t) {
    const enum kvc_dtype dtype = t->w.layer->shape[t->w.role].dtype;
    const size_t width = width_of(t->w.layer, t->w.role);
    float *x = get_memory((size_t)t->w.n * width * sizeof *x);
    for (size_t b = 0; b < t->blocks; b++) {
        uint8_t *rows = must_come_back(t, b);
        for (size_t i = 0; i < (size_t)rows_in_block(t, b) * width; i++)
            x[b * (size_t)t->w.block_rows * width + i] = get_value(rows, dtype, i);
        free(rows);
    }
    return x;
}

/* --- strings of bits and rANS, as rans.md says --- */

struct string {
    const uint8_t *bytes;
    size_t size, at;
};

static inline unsigned take_bits(struct string *s, unsigned n) {
    unsigned v = 0;
    for (unsigned i = 0; i < n; i++, s->at++) {
        assert_true(s->at < 8 * s->size);
        v |= (unsigned)bit(s->bytes, s->at) << i;
    }
    return v;
}

static inline unsigned take_rice(struct string *s, unsigned k) {
    unsigned ones = 0;
    while (ones < 24 && take_bits(s, 1)) ones++;
    if (ones == 24) return take_bits(s, 16);
    return ones << k | take_bits(s, k);
}

/* Only zero bits are left, fewer than a byte. */
static inline void must_end(struct string *s) {
    assert_true(8 * s->size - s->at < 8);
    while (s->at < 8 * s->size) assert_int_equal(take_bits(s, 1), 0);
}

static inline int64_t unzigzag(uint32_t v) {
    return v % 2 ? -(int64_t)(v / 2) - 1 : (int64_t)(v / 2);
}

static inline void take_table(struct string *s, unsigned alphabet, unsigned bits,
                              uint16_t *frequency) {
    int level = 0, greatest = -1;
    unsigned special = 0, sum = 0;
    memset(frequency, 0, alphabet * sizeof *frequency);
    for (unsigned i = 0; i < alphabet; i++) {
        level += (int)unzigzag(take_rice(s, 2));
        assert_in_range(level, 0, 40);
        if (level > greatest) {
            greatest = level;
            special = i;
        }
        frequency[i] = (uint16_t)(level < 8 ? level : (4 + level % 4) << (level / 4 - 1));
        if (!level) i += take_rice(s, 3);
    }
    frequency[special] = 0;
    for (unsigned i = 0; i < alphabet; i++) sum += frequency[i];
    assert_in_range(sum, 1, (1u << bits) - 1);
    frequency[special] = (uint16_t)((1u << bits) - sum);
}

static inline uint32_t u32_at(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

struct stream {
    uint32_t state[32];
    unsigned lanes;
    const uint8_t *word, *end;
};

static inline struct stream open_stream(const uint8_t *states, unsigned lanes, const uint8_t *words,
                                        size_t size) {
    struct stream s = {.lanes = lanes, .word = words, .end = words + size};
    for (unsigned i = 0; i < lanes; i++) s.state[i] = u32_at(states + 4 * i);
    return s;
}

static inline unsigned take_symbol(struct stream *s, unsigned lane, const uint16_t *frequency,
                                   unsigned bits) {
    uint32_t *x = &s->state[lane], slot = *x % (1u << bits), below = 0;
    unsigned symbol = 0;
    while (slot >= below + frequency[symbol]) below += frequency[symbol++];
    *x = frequency[symbol] * (*x >> bits) + slot - below;
    if (*x < 65536) {
        assert_true(s->end - s->word >= 2);
        *x = *x << 16 | s->word[0] | (uint32_t)s->word[1] << 8;
        s->word += 2;
    }
    return symbol;
}

static inline void close_stream(const struct stream *s) {
    assert_ptr_equal(s->word, s->end);
    for (unsigned i = 0; i < s->lanes; i++) assert_int_equal(s->state[i], 65536);
}

/* --- tables and angles, as code.md and derope.md say --- */

/* code.md, "Tables": the table of an index, and the low bits that a code loses first. */
static inline unsigned table_of(unsigned index, unsigned *lost) {
    *lost = index < 32 ? 0 : (unsigned)ceil((index - 31) / 5.0);
    return index - 5 * *lost;
}

static inline unsigned index_of_class(unsigned index, int class) {
    const double moved = index - floor((5.0 * class + 1) / 2);
    return moved < 0 ? 0 : moved > 63 ? 63 : (unsigned)moved;
}

static inline void read_indices(const struct kvc_section *s, size_t heads, size_t dim,
                                unsigned *index) {
    struct string bits = {.bytes = s->data, .size = s->size};
    for (size_t i = 0; i < heads * dim; i++) {
        const int64_t v = i % dim ? (int64_t)index[i - 1] - unzigzag(take_rice(&bits, 1))
                                  : take_bits(&bits, 6);
        assert_in_range(v, 0, 63);
        index[i] = (unsigned)v;
    }
    must_end(&bits);
}

static inline double number_after(const char *recipe, const char *what, double otherwise) {
    const char *at = strstr(recipe, what);
    return at ? strtod(at + strlen(what), NULL) : otherwise;
}

struct turn {
    double c, s;
};

static inline struct turn both(struct turn a, struct turn b) {
    return (struct turn){a.c * b.c - a.s * b.s, a.c * b.s + a.s * b.c};
}

static inline double factorial(unsigned n) {
    uint64_t product = 1;
    for (unsigned i = 2; i <= n; i++) product *= i;
    return (double)product; /* of 20 still exact: it ends in many zero bits */
}

/* derope.md, 1. */
static inline struct turn unit(double x) {
    const double z = x * x;
    struct turn t = {0, 0};
    for (int n = 20; n >= 0; n -= 2) t.c = t.c * z + (n % 4 ? -1 : 1) / factorial((unsigned)n);
    for (int n = 19; n >= 1; n -= 2) t.s = t.s * z + (n % 4 == 3 ? -1 : 1) / factorial((unsigned)n);
    t.s *= x;
    return t;
}

/* derope.md, 2 to 4, from the beginning each time. */
static inline void slow_angle(double angle, int64_t position, float *cosine, float *sine) {
    struct turn base = unit(angle), low[16], middle[16], high = {1, 0};
    low[0] = middle[0] = high;
    for (int d = 1; d < 16; d++) low[d] = both(low[d - 1], base);
    base = both(low[15], base);
    for (int d = 1; d < 16; d++) middle[d] = both(middle[d - 1], base);
    struct turn power = both(middle[15], base);
    for (int64_t h = position / 256; h; h /= 2) {
        if (h % 2) high = both(high, power);
        power = both(power, power);
    }
    const struct turn t = both(both(high, middle[position / 16 % 16]), low[position % 16]);
    *cosine = (float)t.c;
    *sine = (float)t.s;
}

/* --- what is coded --- */

enum kind { NORMAL, ZEROS, CONSTANT, LARGE, RARE, ALIKE, KINDS };

/* All channels follow three, and have something of their own besides. */
static inline void fill_alike(struct layer *l, unsigned role, float own) {
    const size_t width = width_of(l, role), n = (size_t)l->shape[role].tokens * width;
    float common[3] = {0};
    for (size_t i = 0; i < n; i++) {
        if (i % width == 0)
            for (int k = 0; k < 3; k++) common[k] = random_normal();
        const size_t c = i % width;
        const float x = get_value(l->rows[role], l->shape[role].dtype, i);
        put_value(l->rows[role], l->shape[role].dtype, i,
                  common[c % 3] * (float)(1 + c % 7) + own * x);
    }
}

/* LARGE: values with long codes, and wild values; RARE: values far beyond the scale of most
 * values. */
static inline void fill_kind(struct layer *l, unsigned role, enum kind kind) {
    const enum kvc_dtype dtype = l->shape[role].dtype;
    const size_t width = width_of(l, role), n = (size_t)l->shape[role].tokens * width;
    const float great = 2000, wild = dtype == KVC_F16 ? INFINITY : 1e30f;
    if (kind == ALIKE) fill_alike(l, role, 0x1p-6f);
    for (size_t i = 0; i < n; i++) {
        const float sign = i % 2 ? 1 : -1, x = get_value(l->rows[role], dtype, i);
        if (kind == ZEROS) put_value(l->rows[role], dtype, i, i % 3 ? 0 : -0.0f);
        if (kind == CONSTANT) put_value(l->rows[role], dtype, i, (float)(i % width) / 16 - 1);
        if (kind == LARGE && i % 61 == 7) put_value(l->rows[role], dtype, i, sign * great);
        if (kind == LARGE && i % 97 == 5) put_value(l->rows[role], dtype, i, sign * wild);
        if (kind == RARE)
            put_value(l->rows[role], dtype, i, random_bits() % 101 ? x * 0x1p-10f : x);
    }
}

enum places { NEAR, GAPS, FAR, LAST, PLACES }; /* the last ones that derope takes */

static inline void set_positions(struct layer *l, enum places places) {
    const int64_t rows = (int64_t)l->shape[K].tokens;
    int64_t at = places == FAR    ? (INT64_C(1) << 31) - 130
                 : places == LAST ? (INT64_C(1) << 32) - rows
                                  : 0;
    for (size_t t = 0; t < l->shape[K].tokens; t++) {
        if (places == GAPS) at += random_bits() % 5;
        if (places == FAR && t % 50 == 49) at += 100000;
        l->position[t] = at;
        if (places != GAPS || t % 5) at++; /* else the next one stands there too */
    }
}

/* What a profile could know: means, matrices that can be inverted, angles. */
struct part {
    struct kvc_profile_part part;
    float *mean, *basis, *inverse;
    double *angle;
};

static inline struct part make_part(size_t heads, size_t dim, size_t half) {
    struct part p = {.mean = get_memory(heads * dim * sizeof *p.mean),
                     .basis = get_memory(heads * dim * dim * sizeof *p.basis),
                     .inverse = get_memory(heads * dim * dim * sizeof *p.inverse),
                     .angle = get_memory(half * sizeof *p.angle)};
    double *square = get_memory(dim * dim * sizeof *square);
    struct kvc_error e;
    for (size_t i = 0; i < heads * dim; i++) p.mean[i] = random_normal();
    for (size_t h = 0; h < heads; h++) {
        for (size_t i = 0; i < dim * dim; i++) {
            const float own = i / dim == i % dim ? 1.5f : 0;
            p.basis[h * dim * dim + i] = (own + random_normal() / (float)dim) *
                                         (float)(1 + i / dim % 4);
            square[i] = (double)p.basis[h * dim * dim + i];
        }
        if (kvc_invert(square, dim, &e)) fail_msg("%s", e.message);
        for (size_t i = 0; i < dim * dim; i++) p.inverse[h * dim * dim + i] = (float)square[i];
    }
    for (size_t i = 0; i < half; i++) p.angle[i] = pow(10000, -(double)i / (double)half);
    free(square);
    p.part = (struct kvc_profile_part){.heads = heads,
                                       .dim = dim,
                                       .mean = p.mean,
                                       .basis = p.basis,
                                       .half = half,
                                       .angle = half ? p.angle : NULL,
                                       .inverse = p.inverse};
    return p;
}

static inline void free_part(struct part *p) {
    free(p->mean);
    free(p->basis);
    free(p->inverse);
    free(p->angle);
}

#endif
