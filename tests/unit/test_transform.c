/* test_transform.c: the stages of the transform codec, `derope`, `center`, `basis`, `steps` and
 * `code`, with a decoder of its own: what the library encodes is decoded slowly, value by value, as
 * the specs say, and must be what the library decodes, bit by bit. Encoders' choices, malformed
 * sections, arguments. Not for profile files (test_profile.c).
 *
 * `test_transform digest` prints a digest of all that is encoded and decoded: the test of kernel
 * tables runs itself so, once each. */
#include "lossy_support.h"

#include "codecs/eigen.h"
#include "codecs/profile_part.h"
#include "codecs/rope.h"
#include "codecs/tables.h"

#include <xxhash.h>

static const enum kvc_dtype dtypes[] = {KVC_F32, KVC_F16, KVC_BF16};
static const char *program; /* argv[0] */

/* --- driving the stages: as lossy_support.h does, with what these ask besides --- */

/* Room for a block that is to be decoded, in memory of its own, so that a sanitizer sees the end.
 */
static struct kvc_block room_for(const struct coded *t, size_t b,
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
                              .profile = profile};
    block.shape.tokens = n;
    for (size_t i = 0; i < n; i++) block.row[i] = first + i;
    memcpy(position, l->position + first, n * sizeof *position);
    memset(block.rows, 0xaa, bytes);
    return block;
}

/* Frees all but the rows. */
static void free_facts(const struct kvc_block *block) {
    free(block->row);
    free((int64_t *)(uintptr_t)block->position);
}

/* Rows of a block out of these sections; free() them. NULL and the reason where they are refused.
 */
static uint8_t *back(const struct coded *t, size_t b, const struct kvc_coded *sections,
                     const struct kvc_profile_part *profile, struct kvc_error *e) {
    struct kvc_block block = room_for(t, b, profile);
    memset(e, 0, sizeof *e);
    const int status = kvc_pipeline_decode_record(&t->line, &block, sections, NULL, e);
    free_facts(&block);
    if (!status) return block.rows;
    free(block.rows);
    return NULL;
}

static struct kvc_coded sections_of(const struct coded *t, size_t b) {
    return (struct kvc_coded){t->block[b].section, t->encoder.side.section, t->block[b].count,
                              t->encoder.side.count};
}

/* Decodes blocks a and b at once. Each must be as it is alone, unless that is refused. Returns 1
 * where it is. */
static int two_back(const struct coded *t, size_t a, const struct kvc_coded *of_a, size_t b,
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

static uint8_t *must_come_back(const struct coded *t, size_t b) {
    const struct kvc_coded sections = sections_of(t, b);
    struct kvc_error e;
    uint8_t *rows = back(t, b, &sections, t->w.known.profile, &e);
    if (!rows) fail_msg("%s: block %zu: %s", t->w.recipe, b, e.message);
    return rows;
}

static const struct kvc_section *find(const struct kvc_sections *list, unsigned stage,
                                      unsigned type) {
    for (size_t i = 0; i < list->count; i++)
        if (list->section[i].stage == stage && list->section[i].type == type)
            return &list->section[i];
    return NULL;
}

/* The number of a stage in the pipeline, from `from` on; line->n where there is none. */
static unsigned stage_number(const struct kvc_pipeline *line, const char *name, unsigned from) {
    while (from < line->n && strcmp(line->step[from].stage->name, name) != 0) from++;
    return from;
}

/* --- strings of bits and rANS, as rans.md says --- */

struct string {
    const uint8_t *bytes;
    size_t size, at;
};

static unsigned take_bits(struct string *s, unsigned n) {
    unsigned v = 0;
    for (unsigned i = 0; i < n; i++, s->at++) {
        assert_true(s->at < 8 * s->size);
        v |= (unsigned)bit(s->bytes, s->at) << i;
    }
    return v;
}

static unsigned take_rice(struct string *s, unsigned k) {
    unsigned ones = 0;
    while (ones < 24 && take_bits(s, 1)) ones++;
    if (ones == 24) return take_bits(s, 16);
    return ones << k | take_bits(s, k);
}

/* Only zero bits are left, fewer than a byte. */
static void must_end(struct string *s) {
    assert_true(8 * s->size - s->at < 8);
    while (s->at < 8 * s->size) assert_int_equal(take_bits(s, 1), 0);
}

static int64_t unzigzag(uint32_t v) {
    return v % 2 ? -(int64_t)(v / 2) - 1 : (int64_t)(v / 2);
}

static void take_table(struct string *s, unsigned alphabet, unsigned bits, uint16_t *frequency) {
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

static uint32_t u32_at(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

struct stream {
    uint32_t state[32];
    unsigned lanes;
    const uint8_t *word, *end;
};

static struct stream open_stream(const uint8_t *states, unsigned lanes, const uint8_t *words,
                                 size_t size) {
    struct stream s = {.lanes = lanes, .word = words, .end = words + size};
    for (unsigned i = 0; i < lanes; i++) s.state[i] = u32_at(states + 4 * i);
    return s;
}

static unsigned take_symbol(struct stream *s, unsigned lane, const uint16_t *frequency,
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

static void close_stream(const struct stream *s) {
    assert_ptr_equal(s->word, s->end);
    for (unsigned i = 0; i < s->lanes; i++) assert_int_equal(s->state[i], 65536);
}

/* --- the stages, one value after the other --- */

/* What the tests have met. */
static struct {
    unsigned escapes, lost_bits[8], saturated, lanes[33], kind[2], profiles, class[16], turned[3];
    /* pairs: blocks decoded at once, of different lengths */
    unsigned positions_beyond_31_bits, pairs;
} seen;

enum { LEAST_CLASS = -6, MOST_CLASS = 4 };

/* The rows of a block that no stage took out, as the stages hand them on. */
struct slow {
    const struct coded *t;
    const struct kvc_sections *own;
    size_t first, rows, heads, dim; /* first: number of the first row in the tensor */
    float *x;                       /* [row][head][channel] */
    int *class;                     /* [row][head]; NULL: all 0 */
};

static const struct kvc_section *side_of(const struct slow *s, unsigned stage, unsigned type) {
    return find(&s->t->encoder.side, stage, type);
}

/* code.md, "Tables": the table of an index, and the low bits that a code loses first. */
static unsigned table_of(unsigned index, unsigned *lost) {
    *lost = index < 32 ? 0 : (unsigned)ceil((index - 31) / 5.0);
    return index - 5 * *lost;
}

static unsigned index_of_class(unsigned index, int class) {
    const double moved = index - floor((5.0 * class + 1) / 2);
    return moved < 0 ? 0 : moved > 63 ? 63 : (unsigned)moved;
}

static void read_indices(const struct kvc_section *s, size_t heads, size_t dim, unsigned *index) {
    struct string bits = {.bytes = s->data, .size = s->size};
    for (size_t i = 0; i < heads * dim; i++) {
        const int64_t v = i % dim ? (int64_t)index[i - 1] - unzigzag(take_rice(&bits, 1))
                                  : take_bits(&bits, 6);
        assert_in_range(v, 0, 63);
        index[i] = (unsigned)v;
    }
    must_end(&bits);
}

static double number_after(const char *recipe, const char *what, double otherwise) {
    const char *at = strstr(recipe, what);
    return at ? strtod(at + strlen(what), NULL) : otherwise;
}

static void slow_code(struct slow *s, unsigned stage) {
    const struct kvc_section *table = side_of(s, stage, KVC_SECTION_TABLES);
    const struct kvc_section *section = find(s->own, stage, KVC_SECTION_CODES);
    const float step = (float)number_after(s->t->w.recipe, "step=", 0);
    const size_t width = s->heads * s->dim, values = s->rows * width;
    unsigned lanes = (unsigned)number_after(s->t->w.recipe, "lanes=", 32);
    assert_non_null(table);
    unsigned *index = get_memory(width * sizeof *index),
             *symbol = get_memory(values * sizeof *symbol);
    read_indices(table, s->heads, s->dim, index);
    if (!values) {
        assert_null(section);
        free(index);
        free(symbol);
        return;
    }
    assert_non_null(section);
    while (lanes > 1 && values < (size_t)512 * lanes) lanes /= 2;
    seen.lanes[lanes]++;
    const uint8_t *states = section->data + 4, *words = states + 4 * lanes,
                  *rest = words + u32_at(section->data);
    struct stream stream = open_stream(states, lanes, words, u32_at(section->data));
    struct string bits = {.bytes = rest, .size = (size_t)(section->data + section->size - rest)};
    for (size_t i = 0; i < values; i++) {
        unsigned lost;
        const unsigned own = index_of_class(index[i % width], s->class ? s->class[i / s->dim] : 0);
        symbol[i] = take_symbol(&stream, (unsigned)(i % s->dim) % lanes,
                                kvc_code_frequency[table_of(own, &lost)], 11);
    }
    close_stream(&stream);
    for (size_t i = 0; i < values; i++) {
        unsigned lost;
        int64_t code = (int64_t)symbol[i] - 63;
        table_of(index_of_class(index[i % width], s->class ? s->class[i / s->dim] : 0), &lost);
        if (symbol[i] == 127) {
            const unsigned n = take_bits(&bits, 5);
            code = unzigzag(1u << n | take_bits(&bits, n));
            seen.escapes++;
        }
        if (lost) code = code * (1 << lost) + take_bits(&bits, lost) - (1 << (lost - 1));
        seen.lost_bits[lost]++;
        seen.saturated += code == (1 << 24) - 1 || code == 1 - (1 << 24);
        assert_true(code < 1 << 24 && code > -(1 << 24));
        s->x[i] = (float)code * step;
    }
    must_end(&bits);
    free(index);
    free(symbol);
}

/* Forwards: the classes that `steps` tells. */
static void slow_classes(struct slow *s, unsigned stage) {
    const struct kvc_section *table = side_of(s, stage, KVC_SECTION_STEPS);
    const struct kvc_section *section = find(s->own, stage, KVC_SECTION_STEPS);
    uint16_t frequency[12];
    assert_non_null(table);
    struct string bits = {.bytes = table->data, .size = table->size};
    take_table(&bits, 12, 8, frequency);
    must_end(&bits);
    assert_int_equal(frequency[11], 0);
    s->class = get_memory(s->rows * s->heads * sizeof *s->class);
    if (!s->rows) {
        assert_null(section);
        return;
    }
    assert_non_null(section);
    struct stream stream = open_stream(section->data, 1, section->data + 4, section->size - 4);
    for (size_t i = 0; i < s->rows * s->heads; i++) {
        s->class[i] = (int)take_symbol(&stream, 0, frequency, 8) - 6;
        seen.class[s->class[i] - LEAST_CLASS]++;
    }
    close_stream(&stream);
}

static void slow_steps(struct slow *s) {
    for (size_t i = 0; i < s->rows * s->heads * s->dim; i++) {
        const int k = s->class[i / s->dim];
        if (k) s->x[i] *= (float)pow(2, k / 2.0);
    }
}

static void slow_product(struct slow *s, size_t h, const float *row, size_t rows) {
    float *y = get_memory(s->dim * sizeof *y);
    for (size_t t = 0; t < s->rows; t++) {
        float *c = s->x + (t * s->heads + h) * s->dim;
        for (size_t d = 0; d < s->dim; d++) {
            y[d] = 0;
            for (size_t j = 0; j < rows; j++)
                if (c[j] != 0) y[d] = fmaf(c[j], row[j * s->dim + d], y[d]);
        }
        memcpy(c, y, s->dim * sizeof *y);
    }
    free(y);
}

static void slow_basis(struct slow *s, unsigned stage) {
    const struct kvc_section *section = side_of(s, stage, KVC_SECTION_BASIS);
    const size_t width = s->heads * s->dim;
    if (!section) {
        seen.profiles++;
        const float *row = s->t->w.known.profile->basis;
        for (size_t h = 0; h < s->heads; h++) slow_product(s, h, row + h * s->dim * s->dim, s->dim);
        return;
    }
    const uint8_t *p = section->data + 2;
    const unsigned kind = section->data[0], bits = section->data[1];
    float *scale = get_memory(width * sizeof *scale),
          *row_scale = get_memory(width * sizeof *row_scale);
    assert_in_range(kind, 0, 1);
    seen.kind[kind]++;
    read_halves(scale, width, &p);
    if (!kind) {
        for (size_t i = 0; i < s->rows * width; i++) s->x[i] *= scale[i % width];
    } else {
        const uint8_t *kept = p;
        size_t total = 0, at = 0;
        p += 2 * s->heads;
        for (size_t h = 0; h < s->heads; h++) total += kept[2 * h] | (size_t)kept[2 * h + 1] << 8;
        if (total) read_halves(row_scale, total, &p);
        float *row = get_memory(total * s->dim * sizeof *row);
        for (size_t h = 0; h < s->heads; h++) {
            const size_t n = kept[2 * h] | (size_t)kept[2 * h + 1] << 8;
            for (size_t i = at * s->dim; i < (at + n) * s->dim; i++) {
                const float element = (float)((int)unpacked(p, bits, i) - (1 << (bits - 1)));
                row[i] = (element * row_scale[i / s->dim]) * scale[h * s->dim + i % s->dim];
            }
            slow_product(s, h, row + at * s->dim, n);
            at += n;
        }
        p += packed_size(total * s->dim, bits);
        free(row);
    }
    assert_ptr_equal(p, section->data + section->size);
    free(scale);
    free(row_scale);
}

static void slow_center(struct slow *s, unsigned stage) {
    const struct kvc_section *section = side_of(s, stage, KVC_SECTION_MEAN);
    const size_t width = s->heads * s->dim;
    float *mean = get_memory(width * sizeof *mean);
    if (section) {
        const uint8_t *p = section->data;
        read_halves(mean, width, &p);
        assert_ptr_equal(p, section->data + section->size);
    } else {
        memcpy(mean, s->t->w.known.profile->mean, width * sizeof *mean);
    }
    for (size_t i = 0; i < s->rows * width; i++) s->x[i] = s->x[i] + mean[i % width];
    free(mean);
}

struct turn {
    double c, s;
};

static struct turn both(struct turn a, struct turn b) {
    return (struct turn){a.c * b.c - a.s * b.s, a.c * b.s + a.s * b.c};
}

static double factorial(unsigned n) {
    uint64_t product = 1;
    for (unsigned i = 2; i <= n; i++) product *= i;
    return (double)product; /* of 20 still exact: it ends in many zero bits */
}

/* derope.md, 1. */
static struct turn unit(double x) {
    const double z = x * x;
    struct turn t = {0, 0};
    for (int n = 20; n >= 0; n -= 2) t.c = t.c * z + (n % 4 ? -1 : 1) / factorial((unsigned)n);
    for (int n = 19; n >= 1; n -= 2) t.s = t.s * z + (n % 4 == 3 ? -1 : 1) / factorial((unsigned)n);
    t.s *= x;
    return t;
}

/* derope.md, 2 to 4, from the beginning each time. */
static void slow_angle(double angle, int64_t position, float *cosine, float *sine) {
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

/* Turns one head by a position. */
static void slow_turn(float *x, const double *angle, size_t half, unsigned pairing,
                      int64_t position, int back_again) {
    for (size_t i = 0; i < half; i++) {
        float *u = &x[pairing == 1 ? i : 2 * i], *v = pairing == 1 ? u + half : u + 1, c, s;
        slow_angle(angle[i], position, &c, &s);
        if (back_again) s = -s;
        const float uc = *u * c, vs = *v * s, vc = *v * c, us = *u * s;
        *u = uc - vs;
        *v = vc + us;
    }
}

static void slow_derope(struct slow *s, unsigned stage) {
    const struct kvc_section *section = side_of(s, stage, KVC_SECTION_ROPE);
    if (!section) {
        seen.turned[0]++;
        return;
    }
    const uint8_t *p = section->data;
    const size_t half = p[2] | (size_t)p[3] << 8;
    const unsigned pairing = p[0], of_profile = p[1];
    double *angle = get_memory(half * sizeof *angle);
    assert_int_equal(section->size, 4 + (of_profile ? 0 : 8 * half));
    for (size_t i = 0; i < half; i++) {
        uint64_t bits = 0;
        for (unsigned b = 0; b < 8 && !of_profile; b++) bits |= (uint64_t)p[4 + 8 * i + b] << 8 * b;
        memcpy(&angle[i], &bits, sizeof bits);
        if (of_profile) angle[i] = s->t->w.known.profile->angle[i];
    }
    seen.turned[pairing]++;
    for (size_t i = 0; i < s->rows * s->heads; i++) {
        const int64_t position = s->t->w.layer->position[s->first + i / s->heads];
        seen.positions_beyond_31_bits += position >= INT64_C(1) << 31;
        slow_turn(s->x + i * s->dim, angle, half, pairing, position, 0);
    }
    free(angle);
}

/* finite.md: the values that came back as they were. */
static void slow_finite(struct slow *s, unsigned stage, uint8_t *rows, size_t size) {
    const struct kvc_section *section = find(s->own, stage, KVC_SECTION_ESCAPES);
    struct kvc_error e;
    if (!section) return;
    const size_t bytes = (size_t)section->raw_size, n = bytes / (4 + size);
    uint8_t *raw = get_memory(bytes);
    if (kvc_section_decode(section, raw, bytes, &e)) fail_msg("%s", e.message);
    for (size_t i = 0; i < n; i++)
        memcpy(rows + u32_at(raw + 4 * i) * size, raw + 4 * n + i * size, size);
    free(raw);
}

/* How many rows a stage took out of the block. */
static size_t taken_out(const struct coded *t, size_t b, const char *stage, unsigned type) {
    const struct kvc_section *s = find(&t->block[b], stage_number(&t->line, stage, 0), type);
    return s ? s->data[0] | (size_t)s->data[1] << 8 : 0;
}

/* The rows of a block that are coded, in the tensor's dtype; free() them. */
static uint8_t *slow_rows(const struct coded *t, size_t b, size_t sinks, size_t tails) {
    const struct kvc_pipeline *line = &t->line;
    const struct kvc_shape *shape = &t->w.layer->shape[t->w.role];
    const size_t size = kvc_dtype_info(shape->dtype)->size;
    struct slow s = {.t = t,
                     .own = &t->block[b],
                     .rows = (size_t)rows_in_block(t, b) - sinks - tails,
                     .first = (size_t)(t->w.first + b * t->w.block_rows) + sinks,
                     .heads = (size_t)shape->heads,
                     .dim = (size_t)shape->dim};
    const size_t values = s.rows * s.heads * s.dim;
    uint8_t *rows = get_memory(values * size);
    s.x = get_memory(values * sizeof *s.x);
    if (stage_number(line, "steps", 0) < line->n) slow_classes(&s, stage_number(line, "steps", 0));
    for (unsigned i = line->n; i-- > 0;) {
        const char *name = line->step[i].stage->name;
        if (strcmp(name, "code") == 0) slow_code(&s, i);
        else if (strcmp(name, "steps") == 0) slow_steps(&s);
        else if (strcmp(name, "basis") == 0) slow_basis(&s, i);
        else if (strcmp(name, "center") == 0) slow_center(&s, i);
        else if (strcmp(name, "derope") == 0) slow_derope(&s, i);
        if (strcmp(name, "finite") != 0) continue;
        for (size_t k = 0; k < values; k++) {
            /* a value beyond f16 becomes the largest f16 */
            const float y = as_stored(s.x[k], shape->dtype);
            put_value(rows, shape->dtype, k,
                      isinf(y) && shape->dtype == KVC_F16 ? copysignf(65504, y) : s.x[k]);
        }
        slow_finite(&s, i, rows, size);
    }
    free(s.x);
    free(s.class);
    return rows;
}

/* What the library decodes is what the specs say; what was taken out is as it was. */
static void check_trip(const struct coded *t) {
    const struct layer *l = t->w.layer;
    const struct kvc_shape *shape = &l->shape[t->w.role];
    const size_t row = (size_t)kvc_row_bytes(shape), size = kvc_dtype_info(shape->dtype)->size;
    for (size_t b = t->blocks; b-- > 0;) {
        const size_t n = (size_t)rows_in_block(t, b),
                     sinks = taken_out(t, b, "sink", KVC_SECTION_SINK);
        const size_t tails = taken_out(t, b, "tail", KVC_SECTION_TAIL), left = n - sinks - tails;
        const uint8_t *source = l->rows[t->w.role] + (t->w.first + b * t->w.block_rows) * row;
        uint8_t *rows = must_come_back(t, b), *slow = slow_rows(t, b, sinks, tails);
        assert_memory_equal(rows, source, sinks * row);
        assert_memory_equal(rows + (n - tails) * row, source + (n - tails) * row, tails * row);
        for (size_t i = 0; i < left * row / size; i++)
            if (memcmp(rows + sinks * row + i * size, slow + i * size, size) != 0)
                fail_msg("%s of %s %c, heads %d, channels %d, block %zu: value %zu is %a, not %a",
                         t->w.recipe, kvc_dtype_info(shape->dtype)->name,
                         t->w.role == V ? 'V' : 'K', (int)shape->heads, (int)shape->dim, b, i,
                         (double)get_value(rows + sinks * row, shape->dtype, i),
                         (double)get_value(slow, shape->dtype, i));
        free(rows);
        free(slow);
    }
}

/* Blocks are decoded two at a time: the first with the last, which may be shorter, in both orders;
 * none where one has lost its end. */
static void check_pair(const struct coded *t) {
    const size_t last = t->blocks - 1;
    const struct kvc_coded first = sections_of(t, 0), other = sections_of(t, last);
    if (!kvc_pipeline_decodes_two(&t->line)) return;
    assert_int_equal(two_back(t, 0, &first, last, &other), 0);
    assert_int_equal(two_back(t, last, &other, 0, &first), 0);
    struct kvc_section *cut = get_memory(other.n * sizeof *cut);
    memcpy(cut, other.section, other.n * sizeof *cut);
    struct kvc_section *const codes = &cut[other.n - 1];
    codes->size -= codes->size > 2 ? 2 : codes->size;
    const struct kvc_coded damaged = {cut, other.side, other.n, other.n_side};
    assert_int_equal(two_back(t, 0, &first, last, &damaged), 1);
    assert_int_equal(two_back(t, last, &damaged, 0, &first), 1);
    free(cut);
    seen.pairs += rows_in_block(t, 0) != rows_in_block(t, last);
}

static void add_digest(const struct coded *t, XXH3_state_t *digest) {
    const size_t row = (size_t)kvc_row_bytes(&t->w.layer->shape[t->w.role]);
    for (size_t b = 0; b <= t->blocks; b++) {
        const struct kvc_sections *list = b < t->blocks ? &t->block[b] : &t->encoder.side;
        uint8_t *rows = b < t->blocks ? must_come_back(t, b) : NULL;
        if (rows) XXH3_64bits_update(digest, rows, (size_t)rows_in_block(t, b) * row);
        for (size_t i = 0; i < list->count; i++)
            XXH3_64bits_update(digest, list->section[i].data, list->section[i].size);
        free(rows);
    }
}

/* --- what is coded --- */

enum kind { NORMAL, ZEROS, CONSTANT, LARGE, RARE, ALIKE, KINDS };

/* All channels follow three, and have something of their own besides. */
static void fill_alike(struct layer *l, unsigned role, float own) {
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

/* LARGE: values beyond all codes, and wild values; RARE: values far beyond the scale of most
 * values. */
static void fill_kind(struct layer *l, unsigned role, enum kind kind) {
    const enum kvc_dtype dtype = l->shape[role].dtype;
    const size_t width = width_of(l, role), n = (size_t)l->shape[role].tokens * width;
    const float great = dtype == KVC_F16 ? 65504 : 0x1.8p+49f,
                wild = dtype == KVC_F16 ? INFINITY : 1e30f;
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

static void set_positions(struct layer *l, enum places places) {
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

static struct part make_part(size_t heads, size_t dim, size_t half) {
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

static void free_part(struct part *p) {
    free(p->mean);
    free(p->basis);
    free(p->inverse);
    free(p->angle);
}

static const char *const recipes[] = {
    "derope,center,basis,steps,code:step=0.05",
    "derope,center,basis,steps:p=2:c=0.001:tail=40:fine=6,code:step=0.5:lanes=1",
    "center,basis:drop=0.3:bits=4,code:step=0.02:lanes=2",
    "basis:bits=8:k=1.4,steps:p=0:tail=0,code:step=0.001:lanes=4",
    "code:step=0.01:lanes=8",
    "code:step=0.0002:lanes=16",
    "code:step=3",
    "derope,code:step=0.3",
    "steps:tail=300:fine=6,code:step=1:lanes=32",
    "center,code:step=1000000",
    "sink:5,tail:7,derope,center,basis,steps:fine=5,code:step=0.1",
    "derope,basis,center,code:step=0.7:lanes=16",
    "center,derope,steps:p=1.5:c=1000:fine=0,basis:bits=5,code:step=0.004",
};
enum { RECIPES = sizeof recipes / sizeof recipes[0] };

static const size_t dims[] = {64, 80, 128, 256, 6};

/* A digest of all that is encoded and decoded, which is checked first where that is wanted. */
static XXH64_hash_t digest_of_all(int checked) {
    XXH3_state_t *digest = XXH3_createState();
    assert_non_null(digest);
    XXH3_64bits_reset(digest);
    random_state = 7;
    memset(&seen, 0, sizeof seen);
    for (size_t g = 0; g < sizeof dims / sizeof dims[0]; g++)
        for (size_t heads = 1; heads <= 3; heads += 2)
            for (unsigned many = 0; many < 2; many++) {
                const size_t rows = !many ? 1 : heads == 1 ? 300 : 140;
                const size_t dim = dims[g], half = g % 2 ? dim / 2 : dim / 4;
                struct part part = make_part(heads, dim, half);
                struct layer l[KINDS];
                for (unsigned kind = 0; kind < KINDS; kind++) {
                    l[kind] = make_layer(dtypes[(kind + g) % 3], rows, heads, dim);
                    fill_kind(&l[kind], K, kind);
                    fill_kind(&l[kind], V, kind);
                    set_positions(&l[kind], (g + kind) % PLACES);
                    if (kind % 2 == 0) add_queries(&l[kind], rows < 8 ? rows : 8, 1 + kind / 2);
                }
                for (size_t r = 0; r < RECIPES; r++)
                    for (unsigned role = 0; role < 2; role++) {
                        /* large ones take their time */
                        if (random_bits() % (dim < 128 ? 2 : 5) && many) continue;
                        const unsigned kind = random_bits() % KINDS, with = random_bits() % 4;
                        const struct kvc_rope_facts facts = {.pairing = 1 + random_bits() % 2,
                                                             .half = half,
                                                             .angle = part.angle,
                                                             .of_profile = with == 1};
                        const struct known known = {.rope = with < 3 && half ? &facts : NULL,
                                                    .profile = with == 1 ? &part.part : NULL,
                                                    .window = with == 2 ? 100 : 0};
                        const struct wanted w = {.recipe = recipes[r],
                                                 .layer = &l[kind],
                                                 .role = role,
                                                 .block_rows = random_bits() % 3 ? 128 : 0,
                                                 .first = rows > 1 && random_bits() % 5 == 0 ? 128
                                                                                             : 0,
                                                 .known = known};
                        struct coded t;
                        must_code(&t, &w);
                        if (checked) check_trip(&t);
                        if (checked && t.blocks) check_pair(&t);
                        add_digest(&t, digest);
                        code_free(&t);
                    }
                for (unsigned kind = 0; kind < KINDS; kind++) free_layer(&l[kind]);
                free_part(&part);
            }
    const XXH64_hash_t value = XXH3_64bits_digest(digest);
    XXH3_freeState(digest);
    return value;
}

/* Every kernel table codes to the same bytes and decodes as the specs say. The table is chosen once
 * a process. */
static void decoded_as_specified(void **state) {
    (void)state;
    char command[4200], line[64]; /* PATH_MAX and a little */
    /* makes the trial of kernels, after which blocks may be decoded two at a time */
    kvc_kernels_choice();
    const unsigned long long own = digest_of_all(1);
    assert_true(seen.pairs > 20 || !kvc_kernels_get()->rans_decode_two);
    for (unsigned i = 0; i <= 7; i++) assert_true(seen.lost_bits[i] > 100);
    for (unsigned i = 1; i <= 32; i *= 2) assert_true(seen.lanes[i] > 0);
    for (int k = LEAST_CLASS; k <= MOST_CLASS; k++) assert_true(seen.class[k - LEAST_CLASS] > 0);
    assert_true(seen.escapes > 1000 && seen.saturated > 100 &&
                seen.positions_beyond_31_bits > 1000);
    assert_true(seen.kind[0] > 10 && seen.kind[1] > 10 && seen.profiles > 10);
    assert_true(seen.turned[0] > 10 && seen.turned[1] > 10 && seen.turned[2] > 10);
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        if (!kvc_kernels_find(*name)) continue;
        const int length = snprintf(command, sizeof command, "KVC_KERNEL=%s '%s' digest", *name,
                                    program);
        assert_in_range(length, 1, sizeof command - 1);
        FILE *f = popen(command, "r");
        assert_non_null(f);
        char *got = fgets(line, sizeof line, f);
        const int status = pclose(f);
        if (status || !got) fail_msg("%s: status %d", command, status);
        if (strtoull(line, NULL, 16) != own) fail_msg("kernels %s: other bytes", *name);
    }
}

/* --- what encoders choose --- */

static float *decoded_values(const struct coded *t) {
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

/* code.md, "Encoders": the nearest multiple of the step, ties to the even one, none below 2^24 in
 * size excepted. */
static void codes_are_the_nearest(void **state) {
    (void)state;
    static const char *const coders[] = {"code:step=0.37", "code:step=0.5", "code:step=0.000001",
                                         "code:step=1000000"};
    for (size_t r = 0; r < 4; r++)
        for (unsigned kind = 0; kind < KINDS; kind++) {
            struct layer l = make_layer(KVC_F32, 40, 2, 16);
            struct coded t;
            fill_kind(&l, K, kind == LARGE ? NORMAL : kind);
            /* ties */
            for (size_t i = 0; i < 40; i++)
                put_value(l.rows[K], KVC_F32, 31 * i, (float)i * 0.25f - 5);
            put_value(l.rows[K], KVC_F32, 1000, 0x1.fffffep+49f);
            put_value(l.rows[K], KVC_F32, 1001, -0x1p+49f);
            must_code(&t, &(struct wanted){.recipe = coders[r], .layer = &l});
            float *x = layer_values(&l, K), *y = decoded_values(&t),
                  step = (float)number_after(coders[r], "step=", 0);
            for (size_t i = 0; i < 40 * 32; i++) {
                float code = nearbyintf(x[i] * (1 / step));
                code = fabsf(code) < 0x1p+24f ? code : copysignf(0x1p+24f - 1, code);
                if (y[i] != code * step)
                    fail_msg("%s: %a becomes %a, not %a", coders[r], (double)x[i], (double)y[i],
                             (double)(code * step));
            }
            free(x);
            free(y);
            code_free(&t);
            free_layer(&l);
        }
}

/* Bits that a code takes at an index. */
static double bits_of(unsigned index, int64_t code) {
    unsigned lost;
    const uint16_t *f = kvc_code_frequency[table_of(index, &lost)];
    const int64_t r = (int64_t)floor(((double)code + (lost ? 1 << (lost - 1) : 0)) / (1 << lost));
    if (r > -63 && r < 64 && f[63 + r]) return 11 - log2(f[63 + r]) + lost;
    const double zigzag = r < 0 ? -2 * (double)r - 1 : 2 * (double)r;
    return 11 - log2(f[127]) + 5 + floor(log2(zigzag)) + lost;
}

/* The index of each component takes hardly more bits than the best; sizes from 64 on are counted in
 * bins. */
static void indices_are_the_cheapest(void **state) {
    (void)state;
    enum { ROWS = 300, DIM = 40 };
    struct layer l = make_layer(KVC_F32, ROWS, 1, DIM);
    unsigned least = 63, most = 0;
    for (size_t i = 0; i < ROWS * DIM; i++)
        put_value(l.rows[K], KVC_F32, i,
                  random_normal() * ldexpf(1, (int)(i % DIM) / 2 - 4) * (i % 3 ? 1 : 0.1f));
    struct coded t;
    must_code(&t, &(struct wanted){.recipe = "code:step=1", .layer = &l});
    unsigned index[DIM];
    float *y = decoded_values(&t);
    read_indices(find(&t.encoder.side, stage_number(&t.line, "code", 0), KVC_SECTION_TABLES), 1,
                 DIM, index);
    for (size_t c = 0; c < DIM; c++) {
        double cost[64], best = INFINITY;
        for (unsigned i = 0; i < 64; i++) {
            cost[i] = 0;
            for (size_t row = 0; row < ROWS; row++)
                cost[i] += bits_of(i, (int64_t)y[row * DIM + c]);
            best = fmin(best, cost[i]);
        }
        if (cost[index[c]] > best + 0.02 * ROWS)
            fail_msg("component %zu: index %u takes %.1f bits, another %.1f", c, index[c],
                     cost[index[c]], best);
        least = index[c] < least ? index[c] : least;
        most = index[c] > most ? index[c] : most;
    }
    assert_true(least < 8 && most > 55);
    free(y);
    code_free(&t);
    free_layer(&l);
}

/* code.md: what the fixed tables are said to be: probabilities of rounded values at each scale,
 * within what rounding and the place for rare ones take. */
static void tables(void **state) {
    (void)state;
    for (int i = 0; i < KVC_CODE_TABLES; i++) {
        const uint16_t *f = kvc_code_frequency[i];
        const double scale = exp2(-3.4 + 0.2 * i);
        unsigned sum = 0;
        for (int s = 0; s < KVC_CODE_SYMBOLS; s++) sum += f[s];
        assert_int_equal(sum, 2048);
        assert_true(f[127] > 0 && f[63] > 0);
        for (int r = 1; r < 64; r++) {
            const double low = (r - 0.5) / scale, high = (r + 0.5) / scale;
            const double p = 0.35 * (erfc(low / 0.75 / sqrt(2)) - erfc(high / 0.75 / sqrt(2))) +
                             0.15 * (exp(-sqrt(2) * low / 1.4) - exp(-sqrt(2) * high / 1.4));
            if (r < 63) assert_int_equal(f[63 - r], f[63 + r]);
            if (r < 63 && f[63 + r]) assert_true(fabs(f[63 + r] - 2048 * p) < 1 + 0.02 * 2048 * p);
            else assert_true(2048 * p < 1);
        }
        assert_int_equal(f[0], 0); /* -63 has no partner: 64 is the escape */
    }
}

static void means(void **state) {
    (void)state;
    for (unsigned d = 0; d < 3; d++) {
        struct layer l = make_layer(dtypes[d], 300, 3, 20);
        struct coded t;
        must_code(&t, &(struct wanted){.recipe = "center,code:step=1", .layer = &l, .role = V});
        const struct kvc_section *s = find(&t.encoder.side, stage_number(&t.line, "center", 0),
                                           KVC_SECTION_MEAN);
        const uint8_t *p = s->data;
        float mean[60], *x = layer_values(&l, V);
        double greatest = 0, want[60] = {0};
        read_halves(mean, 60, &p);
        for (size_t i = 0; i < 300 * 60; i++) want[i % 60] += (double)x[i] / 300;
        for (size_t c = 0; c < 60; c++) greatest = fmax(greatest, fabs(want[c]));
        for (size_t c = 0; c < 60; c++)
            assert_true(fabs((double)mean[c] - want[c]) <=
                        fabs(want[c]) * 0x1.01p-11 + greatest * 0x1p-38);
        code_free(&t);
        free(x);
        fill_kind(&l, V, CONSTANT); /* of which halves lose nothing, nor do the dtypes */
        must_code(&t, &(struct wanted){.recipe = "center,code:step=1", .layer = &l, .role = V});
        float *y = decoded_values(&t);
        x = layer_values(&l, V);
        for (size_t i = 0; i < 300 * 60; i++) assert_true(x[i] == y[i]);
        free(x);
        free(y);
        code_free(&t);
        free_layer(&l);
    }
}

/* What turns with its positions does not turn afterwards: nothing is left to code but what binary32
 * misses. */
static void turned_back(void **state) {
    (void)state;
    for (unsigned pairing = 1; pairing <= 2; pairing++)
        for (unsigned places = 0; places < 3; places++) /* NEAR, GAPS, FAR */
            for (size_t half = 12; half <= 16; half += 4) {
                enum { ROWS = 200, DIM = 32 };
                struct layer l = make_layer(KVC_F32, ROWS, 2, DIM);
                double angle[16];
                const struct kvc_rope_facts facts = {.pairing = pairing,
                                                     .half = half,
                                                     .angle = angle};
                const struct known known = {.rope = &facts};
                float constant[2 * DIM];
                set_positions(&l, places);
                for (size_t i = 0; i < half; i++) angle[i] = pow(10000, -(double)i / (double)half);
                for (size_t i = 0; i < 2 * DIM; i++) constant[i] = random_normal();
                for (size_t t = 0; t < ROWS; t++)
                    for (size_t h = 0; h < 2; h++) {
                        double x[DIM];
                        for (size_t d = 0; d < DIM; d++) x[d] = (double)constant[h * DIM + d];
                        for (size_t i = 0; i < half; i++) { /* as libm has it */
                            const size_t u = pairing == 1 ? i : 2 * i,
                                         v = pairing == 1 ? i + half : 2 * i + 1;
                            const long double turn = (long double)angle[i] *
                                                     (long double)l.position[t];
                            const double c = (double)cosl(turn), s = (double)sinl(turn), a = x[u],
                                         b = x[v];
                            float own_c, own_s;
                            slow_angle(angle[i], l.position[t], &own_c, &own_s);
                            const double off = 1e-7 + (double)l.position[t] * 0x1p-53;
                            assert_true(fabs((double)own_c - c) < off &&
                                        fabs((double)own_s - s) < off);
                            x[u] = a * c - b * s;
                            x[v] = b * c + a * s;
                        }
                        for (size_t d = 0; d < DIM; d++)
                            put_value(l.rows[K], KVC_F32, (t * 2 + h) * DIM + d, (float)x[d]);
                    }
                struct coded turned, plain;
                must_code(&turned, &(struct wanted){.recipe = "derope,center,code:step=0.01",
                                                    .layer = &l,
                                                    .known = known});
                must_code(&plain, &(struct wanted){.recipe = "center,code:step=0.01",
                                                   .layer = &l,
                                                   .known = known});
                const size_t with = (size_t)find(&turned.block[0], 3, KVC_SECTION_CODES)->size;
                const size_t without = (size_t)find(&plain.block[0], 2, KVC_SECTION_CODES)->size;
                if (with > 250 || without < 4000)
                    fail_msg("%zu bytes turned back, %zu as they are", with, without);
                float *x = layer_values(&l, K), *y = decoded_values(&turned);
                for (size_t i = 0; i < ROWS * 2 * DIM; i++)
                    assert_true(fabsf(x[i] - y[i]) < 0.004f);
                free(x);
                free(y);
                code_free(&turned);
                code_free(&plain);
                free_layer(&l);
            }
}

/* The rows of a block are coded in a profile's components: errors are below half a step in each. */
static void coefficients_of_a_profile(void **state) {
    (void)state;
    for (size_t dim = 8; dim <= 72; dim += 64) {
        struct part part = make_part(2, dim, dim / 2);
        struct layer l = make_layer(KVC_F32, 100, 2, dim);
        const struct kvc_rope_facts facts = {.pairing = 2,
                                             .half = dim / 2,
                                             .angle = part.angle,
                                             .of_profile = 1};
        const struct known known = {.rope = &facts, .profile = &part.part};
        struct coded t;
        must_code(&t, &(struct wanted){.recipe = "center,basis,code:step=0.125",
                                       .layer = &l,
                                       .role = V,
                                       .known = known});
        assert_int_equal(t.encoder.side.count, 1); /* TABLES alone */
        float *x = layer_values(&l, V), *y = decoded_values(&t);
        for (size_t i = 0; i < 100 * 2 * dim; i++) {
            double most = 0;
            for (size_t j = 0; j < dim; j++)
                most += 0.0625 * fabs((double)part.basis[(i / dim % 2 * dim + j) * dim + i % dim]);
            assert_true(fabs((double)x[i] - (double)y[i]) <= most * 1.0001 + 1e-4);
        }
        free(x);
        free(y);
        code_free(&t);
        free_layer(&l);
        free_part(&part);
    }
}

/* basis.md, "Own": a step of s in coefficients is an error of about s / sqrt(12) a component in the
 * metric: of V in units of the layer's root mean square; of K in logits where there are queries,
 * else with K's own energy as theirs. */
static void basis_of_its_own(void **state) {
    (void)state;
    enum { ROWS = 600, HEADS = 2, DIM = 64 };
    static const char *const stages[] = {"center,basis:drop=0,code:step=0.001",
                                         "center,basis:drop=0:bits=4,code:step=0.001",
                                         "center,basis:drop=0:bits=8:k=4,code:step=0.001"};
    unsigned met[2] = {0};
    for (unsigned role = 0; role < 2; role++)
        for (unsigned queries = 0; queries < 2; queries++)
            for (size_t r = 0; r < 3; r++)
                for (unsigned kind = 0; kind < 2; kind++) {
                    struct layer l = make_layer(KVC_F32, ROWS, HEADS, DIM);
                    struct coded t;
                    if (kind) fill_alike(&l, role, 0.25f); /* which is worth a basis */
                    if (queries) add_queries(&l, 64, 3);
                    must_code(&t, &(struct wanted){.recipe = stages[r], .layer = &l, .role = role});
                    const struct kvc_section *s = find(&t.encoder.side, 2, KVC_SECTION_BASIS);
                    met[s->data[0]]++;
                    assert_int_equal(s->data[1], number_after(stages[r], "bits=", 6));
                    float *x = layer_values(&l, role), *y = decoded_values(&t);
                    double error = 0, energy = 0, each[HEADS * DIM] = {0}, mean[HEADS * DIM] = {0},
                           squares = 0;
                    for (size_t i = 0; i < ROWS * HEADS * DIM; i++)
                        mean[i % (HEADS * DIM)] += (double)x[i] / ROWS;
                    for (size_t i = 0; i < ROWS * HEADS * DIM; i++) {
                        const double own = (double)x[i] - mean[i % (HEADS * DIM)];
                        each[i % (HEADS * DIM)] += own * own / ROWS;
                        energy += own * own / (ROWS * HEADS * DIM);
                    }
                    for (size_t i = 0; i < ROWS * HEADS * DIM; i++) {
                        const double d = (double)x[i] - (double)y[i];
                        squares += d * d / (ROWS * HEADS * DIM);
                        if (role == V) error += d * d / energy / (ROWS * HEADS * DIM);
                        else if (!queries) { /* the head's channels weigh as their energies, against
                                                the layer's mean */
                            double head = 0;
                            for (size_t c = 0; c < DIM; c++)
                                head += each[i / DIM % HEADS * DIM + c] / DIM;
                            const double weight = (each[i % (HEADS * DIM)] + 0.02 * head) / head /
                                                  energy;
                            error += d * d * weight / (ROWS * HEADS * DIM);
                        }
                    }
                    for (size_t q = 0; q < 64 && role == K && queries; q++)
                        for (size_t h = 0; h < HEADS * 3; h++)
                            for (size_t row = 0; row < ROWS; row++) {
                                double logit = 0;
                                for (size_t d = 0; d < DIM; d++) {
                                    const size_t at = (row * HEADS + h / 3) * DIM + d;
                                    logit += (double)l.query[(q * HEADS * 3 + h) * DIM + d] *
                                             (double)(x[at] - y[at]);
                                }
                                error += logit * logit / DIM / DIM / (64 * HEADS * 3 * ROWS);
                            }
                    const double k = role == K ? number_after(stages[r], "k=", 0.18) : 1,
                                 want = 1e-6 / 12 * k * k;
                    if (!(error > 0.6 * want && error < 1.5 * want))
                        fail_msg("%s of %c, kind %u, queries %u: error %g, not %g", stages[r],
                                 role == V ? 'V' : 'K', kind, queries, error, want);
                    assert_true(squares < 1e-4 * k * k * energy);
                    free(x);
                    free(y);
                    code_free(&t);
                    free_layer(&l);
                }
    assert_true(met[0] > 3 && met[1] > 3);
}

/* Weak components are left out, and too many channels for too few rows get none. */
static void rows_of_a_basis(void **state) {
    (void)state;
    static const char *const stages[] = {"center,basis:drop=0,code:step=0.1",
                                         "center,basis,code:step=0.1",
                                         "center,basis:drop=0.5,code:step=0.1",
                                         "center,basis:drop=1000000,code:step=0.1"};
    size_t kept[4];
    struct layer l = make_layer(KVC_F32, 900, 1, 48);
    struct coded t;
    fill_alike(&l, V, 0.25f);
    for (size_t r = 0; r < 4; r++) {
        must_code(&t, &(struct wanted){.recipe = stages[r], .layer = &l, .role = V});
        const uint8_t *p = find(&t.encoder.side, 2, KVC_SECTION_BASIS)->data, *after = p + 2;
        float scale[48];
        read_halves(scale, 48, &after);
        kept[r] = p[0] ? after[0] | (size_t)after[1] << 8 : 0;
        code_free(&t);
    }
    assert_int_equal(kept[0], 48);
    assert_true(kept[1] >= 3 && kept[1] < 48 && kept[2] == 3 && kept[3] == 0);
    free_layer(&l);
    l = make_layer(KVC_F32, 511, 1, 256);
    must_code(&t, &(struct wanted){.recipe = "center,basis,code:step=0.1", .layer = &l, .role = V});
    assert_int_equal(find(&t.encoder.side, 2, KVC_SECTION_BASIS)->data[0], 0);
    code_free(&t);
    free_layer(&l);
}

/* A head of nothing but zeros, or that no query reads, leaves the others as they are. */
static void dead_heads(void **state) {
    (void)state;
    for (unsigned queries = 0; queries < 2; queries++)
        for (unsigned role = 0; role < 2; role++) {
            struct layer l = make_layer(KVC_F32, 200, 3, 16);
            struct coded t;
            if (queries) add_queries(&l, 8, 1);
            for (size_t i = 0; i < 200 * 48; i++)
                if (i / 16 % 3 == 1) put_value(l.rows[role], KVC_F32, i, 0);
            for (size_t i = 0; i < 8 * 48 && queries; i++)
                if (i / 16 % 3 == 1) l.query[i] = 0;
            const struct wanted w = {.recipe = "center,basis:k=1,code:step=0.01",
                                     .layer = &l,
                                     .role = role};
            must_code(&t, &w);
            float *x = layer_values(&l, role), *y = decoded_values(&t);
            for (size_t i = 0; i < 200 * 48; i++)
                if (!(fabsf(x[i] - y[i]) < 0.5f))
                    fail_msg("%c, queries %u: value %zu is %g, not %g", role == V ? 'V' : 'K',
                             queries, i, (double)y[i], (double)x[i]);
            free(x);
            free(y);
            code_free(&t);
            free_layer(&l);
        }
}

/* --- the classes of tokens --- */

struct rule {
    double p, c;
    int64_t tail, fine;
    uint64_t window;
    unsigned queries; /* 0: none, 1: the layer's, 2: a profile's, all at the last row */
};

/* The attention that each row of a KV head gets: n times the root of the mean square of its shares.
 */
static void slow_attention(const struct layer *l, const struct known *known, size_t head,
                           double *a) {
    const size_t rows = (size_t)l->shape[K].tokens, heads = (size_t)l->shape[K].heads,
                 dim = (size_t)l->shape[K].dim;
    const float *query = known->queries ? known->query : l->query;
    const uint64_t n = known->queries ? known->queries : l->n_queries;
    const size_t all = (size_t)(known->queries ? known->query_heads : l->query_heads),
                 group = all / heads;
    double *share = get_memory(rows * sizeof *share);
    size_t hidden = 0;
    for (size_t t = 0; t < rows; t++) a[t] = 0;
    for (size_t q = 0; q < n; q++) {
        const int64_t at = known->queries ? l->position[rows - 1] : l->query_position[q];
        for (size_t g = 0; g < group; g++) {
            double sum = 0, most = -INFINITY;
            hidden = 0;
            for (size_t t = 0; t < rows; t++) {
                share[t] = -INFINITY;
                const int too_old = known->window && at - l->position[t] >= (int64_t)known->window;
                hidden += too_old != 0;
                if (l->position[t] > at || too_old) continue;
                double logit = 0;
                for (size_t d = 0; d < dim; d++)
                    logit += (double)query[(q * all + head * group + g) * dim + d] *
                             (double)get_value(l->rows[K], l->shape[K].dtype,
                                               (t * heads + head) * dim + d);
                share[t] = logit / sqrt((double)dim);
                most = fmax(most, share[t]);
            }
            for (size_t t = 0; t < rows; t++) sum += share[t] = exp(share[t] - most);
            for (size_t t = 0; t < rows; t++)
                a[t] += share[t] / sum * (share[t] / sum) / (double)(n * group);
        }
    }
    for (size_t t = 0; t < rows; t++) a[t] = (double)(rows - hidden) * sqrt(a[t]);
    free(share);
}

/* How many classes are met, as bits. */
static unsigned check_classes(const struct rule *rule, const struct layer *l, unsigned role) {
    const size_t rows = (size_t)l->shape[K].tokens, heads = (size_t)l->shape[K].heads,
                 dim = (size_t)l->shape[K].dim;
    float *query = get_memory(5 * 2 * heads * dim * sizeof *query);
    double *a = get_memory(rows * sizeof *a);
    unsigned met = 0;
    char recipe[120];
    struct coded t;
    for (size_t i = 0; i < 5 * 2 * heads * dim; i++) query[i] = random_normal() * 0.5f;
    const struct known known = {.window = rule->window,
                                .query = query,
                                .queries = rule->queries == 2 ? 5 : 0,
                                .query_heads = 2 * heads};
    snprintf(recipe, sizeof recipe, "steps:p=%.3f:c=%.3f:tail=%d:fine=%d,code:step=0.1", rule->p,
             rule->c, (int)rule->tail, (int)rule->fine);
    must_code(&t,
              &(struct wanted){
                  .recipe = recipe, .layer = l, .role = role, .block_rows = 70, .known = known});
    for (size_t h = 0; h < heads; h++) {
        const int asks = rule->p > 0 &&
                         (rule->queries == 2 || (rule->queries == 1 && l->n_queries));
        if (asks) slow_attention(l, &known, h, a);
        for (size_t b = 0; b < t.blocks; b++) {
            struct slow s = {.t = &t,
                             .own = &t.block[b],
                             .rows = (size_t)rows_in_block(&t, b),
                             .heads = heads,
                             .dim = dim};
            slow_classes(&s, 1);
            for (size_t i = 0; i < s.rows; i++) {
                const size_t row = b * 70 + i;
                const int64_t left = l->position[rows - 1] - l->position[row],
                              edge = (int64_t)rule->window - left - 1;
                double step = asks ? pow((a[row] + rule->c) / (1 + rule->c), -rule->p) : 1;
                if (rule->window)
                    step *= pow(2 * (double)(edge < 1 ? 1 : edge) / (double)rule->window, -0.5);
                const double exact = 2 * log2(step);
                int class = (int)nearbyint(exact),
                    other = (int)nearbyint(exact + (exact < class ? -0.01 : 0.01));
                int *const both[2] = {&class, &other};
                for (int k = 0; k < 2; k++) {
                    *both[k] = *both[k] < LEAST_CLASS  ? LEAST_CLASS
                               : *both[k] > MOST_CLASS ? MOST_CLASS
                                                       : *both[k];
                    if (left<rule->tail && * both[k]> - rule->fine) *both[k] = -(int)rule->fine;
                }
                if (s.class[i * heads + h] != class && s.class[i * heads + h] != other)
                    fail_msg("%s of %c, window %d, queries %u: row %zu, head %zu has class %d, not "
                             "%d (%.4f)",
                             recipe, role == V ? 'V' : 'K', (int)rule->window, rule->queries, row,
                             h, s.class[i * heads + h], class, exact);
                met |= 1u << (s.class[i * heads + h] - LEAST_CLASS);
            }
            free(s.class);
        }
    }
    code_free(&t);
    free(query);
    free(a);
    return met;
}

static void classes_of_tokens(void **state) {
    (void)state;
    static const struct rule rules[] = {
        {0.5, 0.3, 16, 4, 0, 1},   {0.5, 0.3, 16, 4, 0, 2},   {0.5, 0.3, 16, 4, 0, 0},
        {2, 0.001, 0, 0, 0, 1},    {0, 0.3, 16, 6, 0, 1},     {1, 1000, 1, 0, 0, 1},
        {1.3, 0.05, 300, 3, 0, 2}, {0.5, 0.3, 16, 4, 64, 1},  {0.5, 0.3, 4, 1, 64, 2},
        {0.7, 0.3, 16, 4, 64, 0},  {0.5, 0.3, 16, 4, 500, 1}, {0, 1, 0, 0, 31, 0},
    };
    unsigned met = 0;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        for (unsigned role = 0; role < 2; role++)
            for (unsigned places = 0; places < (rules[i].window ? 1 : 2); places++) {
                struct layer l = make_layer(KVC_F32, 160, 2, 24);
                set_positions(&l, places);
                if (rules[i].queries == 1) add_queries(&l, 6, 2);
                met |= check_classes(&rules[i], &l, role);
                free_layer(&l);
            }
    assert_int_equal(met, 0x7ff); /* all eleven */
}

/* --- the examples of the specs --- */

static void examples(void **state) {
    (void)state;
    static const uint8_t rope[] = {1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f};
    static const uint8_t mean[] = {0xf2, 0xff, 8, 8, 0, 0, 0, 0, 0, 0x74, 0x70};
    static const double angle[] = {1};
    static const struct kvc_rope_facts facts = {.pairing = 1, .half = 1, .angle = angle};
    static const struct known known = {.rope = &facts};
    struct layer l = make_layer(KVC_F32, 1, 1, 2);
    struct coded t;
    unsigned lost;
    put_value(l.rows[K], KVC_F32, 0, 1);
    put_value(l.rows[K], KVC_F32, 1, 0.5f);
    must_code(&t, &(struct wanted){.recipe = "derope,center,steps,code:step=0.25",
                                   .layer = &l,
                                   .known = known});
    const struct kvc_section *s = find(&t.encoder.side, 1, KVC_SECTION_ROPE);
    assert_int_equal(s->size, sizeof rope);
    assert_memory_equal(s->data, rope, sizeof rope);
    s = find(&t.encoder.side, 2, KVC_SECTION_MEAN);
    assert_int_equal(s->size, sizeof mean);
    assert_memory_equal(s->data, mean, sizeof mean);
    float *y = decoded_values(&t);
    assert_true(y[0] == 1 && y[1] == 0.5f);
    free(y);
    code_free(&t);
    must_code(&t, &(struct wanted){.recipe = "steps:tail=0,code:step=0.25", .layer = &l});
    s = find(&t.encoder.side, 1, KVC_SECTION_STEPS);
    struct string bits = {.bytes = s->data, .size = s->size};
    uint16_t frequency[12];
    take_table(&bits, 12, 8, frequency);
    assert_int_equal(frequency[6], 128);
    assert_int_equal(frequency[0], 128);
    code_free(&t);
    free_layer(&l);
    assert_int_equal(table_of(index_of_class(13, 0), &lost), 13);
    assert_int_equal(lost, 0);
    assert_int_equal(index_of_class(13, 2), 8);
    assert_int_equal(index_of_class(13, -1), 15);
}

/* --- sections that break the specs --- */

/* Sections of a block and of its segment, each in memory of its own, so that a sanitizer sees what
 * is read beyond. */
enum { MOST_SECTIONS = 16 };
struct copy {
    struct kvc_section s[MOST_SECTIONS];
    size_t n;
};
struct broken {
    struct copy own, side;
};

static void set_bytes(struct kvc_section *s, const uint8_t *bytes, size_t n) {
    uint8_t *copy = malloc(n); /* of no bytes too */
    assert_true(copy || !n);
    if (n) memcpy(copy, bytes, n);
    s->data = copy;
    s->size = (uint32_t)n;
    s->raw_size = n;
}

static void change_bytes(struct kvc_section *s, const uint8_t *bytes, size_t n) {
    uint8_t *old = (uint8_t *)(uintptr_t)s->data;
    set_bytes(s, bytes, n);
    free(old);
}

static void copy_list(struct copy *to, const struct kvc_sections *from) {
    assert_true(from->count <= MOST_SECTIONS);
    to->n = from->count;
    for (size_t i = 0; i < to->n; i++) {
        to->s[i] = from->section[i];
        set_bytes(&to->s[i], from->section[i].data, from->section[i].size);
    }
}

static struct broken copy_of(const struct coded *t, size_t b) {
    struct broken x;
    copy_list(&x.own, &t->block[b]);
    copy_list(&x.side, &t->encoder.side);
    return x;
}

static void free_broken(struct broken *x) {
    for (size_t i = 0; i < x->own.n; i++) free((void *)(uintptr_t)x->own.s[i].data);
    for (size_t i = 0; i < x->side.n; i++) free((void *)(uintptr_t)x->side.s[i].data);
}

static struct kvc_section *section_in(struct copy *list, unsigned type) {
    size_t i = 0;
    while (i < list->n && list->s[i].type != type) i++;
    if (i == list->n) fail_msg("no section of type %u", type);
    return &list->s[i];
}

static void remove_section(struct copy *list, unsigned type) {
    struct kvc_section *s = section_in(list, type);
    free((void *)(uintptr_t)s->data);
    memmove(s, s + 1, (size_t)(list->s + --list->n - s) * sizeof *s);
}

static void double_section(struct copy *list, unsigned type) {
    struct kvc_section *s = section_in(list, type);
    assert_true(list->n < MOST_SECTIONS);
    memmove(s + 1, s, (size_t)(list->s + list->n++ - s) * sizeof *s);
    set_bytes(s + 1, s->data, s->size);
}

/* What it decodes to, or NULL; refused only in words and for the right reasons. */
static uint8_t *try_broken(const struct coded *t, size_t b, const struct broken *x,
                           const struct kvc_profile_part *profile, struct kvc_error *e) {
    const struct kvc_coded sections = {x->own.s, x->side.s, x->own.n, x->side.n};
    uint8_t *rows = back(t, b, &sections, profile, e);
    if (rows) return rows;
    assert_true(strlen(e->message) > 10);
    if (e->code != KVC_ERR_DAMAGED && e->code != KVC_ERR_UNSUPPORTED && e->code != KVC_ERR_MODEL)
        fail_msg("code %d: %s", (int)e->code, e->message);
    return NULL;
}

/* Refused, and the message has these words; frees x. */
static void refuse(const struct coded *t, size_t b, struct broken *x,
                   const struct kvc_profile_part *profile, const char *what, const char *words) {
    struct kvc_error e;
    uint8_t *rows = try_broken(t, b, x, profile, &e);
    if (rows) fail_msg("%s: taken", what);
    if (!strstr(e.message, words)) fail_msg("%s: %s", what, e.message);
    free_broken(x);
}

/* Of the recipe that the tests below break: each of its sections, and where it stands. */
static const struct place {
    const char *name;
    unsigned type;
    int is_side;
} places[] = {
    {"ROPE", KVC_SECTION_ROPE, 1},     {"MEAN", KVC_SECTION_MEAN, 1},
    {"BASIS", KVC_SECTION_BASIS, 1},   {"STEPS", KVC_SECTION_STEPS, 1},
    {"TABLES", KVC_SECTION_TABLES, 1}, {"STEPS", KVC_SECTION_STEPS, 0},
    {"CODES", KVC_SECTION_CODES, 0},
};

static struct kvc_section *at_place(struct broken *x, const struct place *p) {
    return section_in(p->is_side ? &x->side : &x->own, p->type);
}

/* Every stage, coded with bases of its own (all rows kept, or scales only), with escapes and low
 * bits. */
static const double few_angles[] = {1, 0.5, 0.25};
static const struct kvc_rope_facts few_facts = {.pairing = 1, .half = 3, .angle = few_angles};
static const struct known few_known = {.rope = &few_facts};

static struct layer make_few(int great) {
    struct layer l = make_layer(KVC_F32, 600, 2, 8);
    fill_kind(&l, K, ALIKE);
    for (size_t i = 0; i < 600 * 16 && great; i += 997) put_value(l.rows[K], KVC_F32, i, 3000);
    add_queries(&l, 5, 2);
    return l;
}

static void any_damage(void **state) {
    (void)state;
    static const char *const stages[] = {
        "derope,center,basis,steps,code:step=0.02:lanes=2",
        "derope,center,basis:drop=100000,steps:fine=6,code:step=0.0001"};
    for (size_t r = 0; r < 2; r++) {
        struct layer l = make_few(r == 1);
        struct coded t;
        must_code(&t, &(struct wanted){
                          .recipe = stages[r], .layer = &l, .block_rows = 20, .known = few_known});
        for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
            struct broken x = copy_of(&t, 3);
            const size_t size = at_place(&x, &places[p])->size;
            free_broken(&x);
            for (size_t n = 0; n <= size + 2; n++) { /* shorter, and longer by zeros or ones */
                uint8_t *bytes = get_memory(size + 2);
                if (n == size) {
                    free(bytes);
                    continue;
                }
                x = copy_of(&t, 3);
                memset(bytes, n == size + 1 ? 0 : 0xff, size + 2);
                memcpy(bytes, at_place(&x, &places[p])->data, n < size ? n : size);
                change_bytes(at_place(&x, &places[p]), bytes, n);
                free(bytes);
                refuse(&t, 3, &x, NULL, places[p].name, "");
            }
            for (unsigned how = 0; how < 6; how++) {
                x = copy_of(&t, 3);
                struct copy *list = places[p].is_side ? &x.side : &x.own;
                struct kvc_section *s = at_place(&x, &places[p]);
                if (how == 0) s->coder = KVC_CODER_ZSTD;
                if (how == 1) s->raw_size++;
                if (how == 2) s->index = 1;
                if (how == 3) s->type = KVC_SECTION_NORMS;
                if (how == 4) double_section(list, places[p].type);
                if (how == 5) remove_section(list, places[p].type);
                /* nothing is known of RoPE: allowed */
                if (how == 5 && places[p].type == KVC_SECTION_ROPE) {
                    struct kvc_error e;
                    uint8_t *rows = try_broken(&t, 3, &x, NULL, &e);
                    assert_non_null(rows);
                    free(rows);
                    free_broken(&x);
                    continue;
                }
                refuse(&t, 3, &x, NULL, places[p].name, "");
            }
            for (size_t i = 0; i < 8 * size; i++) { /* any bit: refused, or decoded to something */
                struct kvc_error e;
                x = copy_of(&t, 3);
                uint8_t *byte = (uint8_t *)(uintptr_t)&at_place(&x, &places[p])->data[i / 8];
                *byte ^= (uint8_t)(1 << i % 8);
                free(try_broken(&t, 3, &x, NULL, &e));
                free_broken(&x);
            }
            /* where it does not belong */
            x = copy_of(&t, 3);
            struct kvc_section moved = *at_place(&x, &places[p]);
            struct copy *other = places[p].is_side ? &x.own : &x.side;
            size_t to = 0;
            while (to < other->n && other->s[to].stage <= moved.stage) to++;
            assert_true(other->n < MOST_SECTIONS);
            memmove(&other->s[to + 1], &other->s[to], (other->n++ - to) * sizeof moved);
            other->s[to] = moved;
            set_bytes(&other->s[to], moved.data, moved.size);
            refuse(&t, 3, &x, NULL, places[p].name, "");
            x = copy_of(&t, 3);
            at_place(&x, &places[p])->stage = 9;
            refuse(&t, 3, &x, NULL, places[p].name, "");
        }
        code_free(&t);
        free_layer(&l);
    }
}

static void put_f64(uint8_t *to, double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    for (unsigned b = 0; b < 8; b++) to[b] = (uint8_t)(bits >> 8 * b & 255);
}

static void malformed_rope(void **state) {
    (void)state;
    static const uint8_t heads[][4] = {{0, 0, 3, 0}, {3, 0, 3, 0}, {255, 0, 3, 0},
                                       {1, 2, 3, 0}, {1, 0, 0, 0}, {1, 0, 5, 0},
                                       {1, 0, 3, 1}, {2, 0, 4, 0}, {1, 1, 3, 0}};
    static const double angles[] = {-0.001, 1.0000001, NAN, INFINITY, -INFINITY, 1e300};
    struct layer l = make_few(1);
    struct coded t;
    struct broken x;
    uint8_t bytes[28];
    must_code(&t, &(struct wanted){.recipe = "derope,code:step=0.1",
                                   .layer = &l,
                                   .block_rows = 20,
                                   .known = few_known});
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        x = copy_of(&t, 0);
        struct kvc_section *s = section_in(&x.side, KVC_SECTION_ROPE);
        memcpy(bytes, s->data, 28);
        memcpy(bytes, heads[i], 4);
        change_bytes(s, bytes, 28);
        refuse(&t, 0, &x, NULL, "a field of ROPE", "ROPE is out of range");
    }
    for (size_t i = 0; i < 3 * sizeof angles / sizeof angles[0]; i++) {
        x = copy_of(&t, 0);
        put_f64((uint8_t *)(uintptr_t)section_in(&x.side, KVC_SECTION_ROPE)->data + 4 + 8 * (i % 3),
                angles[i / 3]);
        refuse(&t, 0, &x, NULL, "an angle", "angle");
    }
    code_free(&t);
    /* of a profile: no profile, a profile that rotates nothing, a profile of other pairs; the pairs
     * are as many as channels allow */
    struct part part = make_part(2, 8, 3), other = make_part(2, 8, 4), none = make_part(2, 8, 0);
    const struct kvc_rope_facts facts = {.pairing = 2,
                                         .half = 3,
                                         .angle = part.angle,
                                         .of_profile = 1};
    const struct known known = {.rope = &facts, .profile = &part.part};
    must_code(&t, &(struct wanted){.recipe = "derope,code:step=0.1",
                                   .layer = &l,
                                   .block_rows = 20,
                                   .known = known});
    assert_int_equal(find(&t.encoder.side, 1, KVC_SECTION_ROPE)->size, 4);
    x = copy_of(&t, 0);
    refuse(&t, 0, &x, NULL, "no profile", "profile");
    x = copy_of(&t, 0);
    refuse(&t, 0, &x, &none.part, "a profile without angles", "pairs");
    x = copy_of(&t, 0);
    ((uint8_t *)(uintptr_t)section_in(&x.side, KVC_SECTION_ROPE)->data)[1] = 2;
    refuse(&t, 0, &x, &part.part, "something else than a profile", "ROPE is out of range");
    x = copy_of(&t, 0);
    refuse(&t, 0, &x, &other.part, "a profile of other pairs", "pairs");
    l.position[3] = -1;
    x = copy_of(&t, 0);
    refuse(&t, 0, &x, &part.part, "a position below 0", "below 0");
    code_free(&t);
    /* and what encoders refuse */
    struct kvc_error e;
    l.position[0] = -2;
    assert_int_equal(
        code(&t, &(struct wanted){.recipe = "derope,code:step=1", .layer = &l, .known = few_known},
             &e),
        -1);
    assert_int_equal(e.code, KVC_ERR_UNSUPPORTED);
    code_free(&t);
    l.position[0] = 0;
    const struct kvc_rope_facts wide = {.pairing = 1, .half = 5, .angle = few_angles};
    assert_int_equal(code(&t,
                          &(struct wanted){.recipe = "derope,code:step=1",
                                           .layer = &l,
                                           .known = (struct known){.rope = &wide}},
                          &e),
                     -1);
    assert_int_equal(e.code, KVC_ERR_UNSUPPORTED);
    code_free(&t);
    free_part(&part);
    free_part(&other);
    free_part(&none);
    free_layer(&l);
}

static void malformed_means_and_bases(void **state) {
    (void)state;
    struct layer l = make_few(0);
    struct coded t;
    struct broken x;
    const struct wanted w = {.recipe = "center,basis:drop=0,code:step=0.1",
                             .layer = &l,
                             .block_rows = 20};
    must_code(&t, &w);
    assert_int_equal(find(&t.encoder.side, 2, KVC_SECTION_BASIS)->data[0], 1);
    x = copy_of(&t, 0);
    remove_section(&x.side, KVC_SECTION_MEAN);
    refuse(&t, 0, &x, NULL, "no means", "profile's means");
    x = copy_of(&t, 0);
    remove_section(&x.side, KVC_SECTION_BASIS);
    refuse(&t, 0, &x, NULL, "no basis", "profile's matrices");
    /* one number of 2 bytes each, exponent 0, nothing packed: all bits are known; an infinity and a
     * NaN */
    uint8_t halves[9 + 32] = {0, 0, 0, 8};
    for (unsigned i = 0; i < 2; i++) {
        x = copy_of(&t, 0);
        halves[9 + 3] = (uint8_t)i;
        halves[9 + 16 + 3] = 0x7c;
        change_bytes(section_in(&x.side, KVC_SECTION_MEAN), halves, sizeof halves);
        refuse(&t, 0, &x, NULL, "a mean that is none", "not finite");
    }
    const struct kvc_section *basis = find(&t.encoder.side, 2, KVC_SECTION_BASIS);
    static const uint8_t heads[][2] = {{2, 6}, {255, 6}, {1, 3}, {1, 9}, {0, 0}, {0, 255}};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        x = copy_of(&t, 0);
        memcpy((uint8_t *)(uintptr_t)section_in(&x.side, KVC_SECTION_BASIS)->data, heads[i], 2);
        refuse(&t, 0, &x, NULL, "a field of BASIS", "section BASIS: ");
    }
    x = copy_of(&t, 0); /* rows are bytes too many for scales alone */
    *(uint8_t *)(uintptr_t)section_in(&x.side, KVC_SECTION_BASIS)->data = 0;
    refuse(&t, 0, &x, NULL, "kind 0 with rows", "bytes after");
    const uint8_t *counts = basis->data + 2;
    float scale[16];
    read_halves(scale, 16, &counts);
    const size_t at = (size_t)(counts - basis->data);
    assert_true(basis->data[at] == 8 && basis->data[at + 1] == 0);
    for (unsigned i = 0; i < 3; i++) {
        x = copy_of(&t, 0);
        uint8_t *p = (uint8_t *)(uintptr_t)section_in(&x.side, KVC_SECTION_BASIS)->data + at;
        p[i == 0 ? 0 : i == 1 ? 1 : 3] = i == 0 ? 9 : 255;
        refuse(&t, 0, &x, NULL, "rows of BASIS", "more rows than channels");
    }
    code_free(&t);
    /* a basis of no rows at all is one: all is 0; a profile stands in for what is not there */
    struct part part = make_part(2, 8, 0);
    struct kvc_error e;
    uint8_t empty[2 + 41 + 4] = {1, 6, 0, 0, 0, 8};
    must_code(&t, &(struct wanted){.recipe = "basis,code:step=0.1", .layer = &l, .block_rows = 20});
    x = copy_of(&t, 0);
    change_bytes(section_in(&x.side, KVC_SECTION_BASIS), empty, 2 + 9 + 32 + 4);
    uint8_t *rows = try_broken(&t, 0, &x, NULL, &e);
    if (!rows) fail_msg("%s", e.message);
    for (size_t i = 0; i < 20 * 16; i++) assert_true(get_value(rows, KVC_F32, i) == 0);
    free(rows);
    free_broken(&x);
    x = copy_of(&t, 0);
    remove_section(&x.side, KVC_SECTION_BASIS);
    rows = try_broken(&t, 0, &x, &part.part, &e);
    assert_non_null(rows);
    free(rows);
    free_broken(&x);
    code_free(&t);
    free_part(&part);
    free_layer(&l);
}

struct writer {
    uint8_t bytes[200];
    size_t at;
};

static void put_bits(struct writer *w, uint64_t v, unsigned n) {
    for (unsigned i = 0; i < n; i++, w->at++)
        if (v >> i & 1) w->bytes[w->at / 8] = (uint8_t)(w->bytes[w->at / 8] | 1u << w->at % 8);
}

static void put_rice(struct writer *w, uint32_t v, unsigned k) {
    for (uint32_t i = 0; i < v >> k; i++) put_bits(w, 1, 1);
    put_bits(w, 0, 1);
    put_bits(w, v, k);
}

static size_t bytes_of(const struct writer *w) {
    return (w->at + 7) / 8;
}

/* Differences of levels, as rans.md has them; a level of 0 is followed by how many more there are.
 */
static void put_levels(struct writer *w, const int *level, unsigned n) {
    int before = 0;
    for (unsigned i = 0; i < n; i++) {
        const int d = level[i] - before;
        put_rice(w, (uint32_t)(d < 0 ? -2 * d - 1 : 2 * d), 2);
        before = level[i];
        if (level[i]) continue;
        unsigned more = 0;
        while (i + 1 < n && !level[i + 1]) more++, i++;
        put_rice(w, more, 3);
    }
}

static void malformed_steps(void **state) {
    (void)state;
    struct layer l = make_few(1);
    struct coded t;
    struct broken x;
    must_code(&t, &(struct wanted){.recipe = "steps,code:step=0.1", .layer = &l, .block_rows = 20});
    static const struct {
        int level[12];
        unsigned n;
        const char *words;
    } tables_[] = {
        {{0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0, 1}, 12, "STEPS is malformed"}, /* symbol 11 */
        {{0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0, 0}, 12, ""},                   /* one symbol only */
        {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 12, ""},                    /* none */
        {{26, 26, 26, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 12, ""},                 /* too many */
        {{28, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 3, ""},                       /* an end too early */
        /* a level that there is not */
        {{1, 41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 12, ""},
    };
    for (size_t i = 0; i < sizeof tables_ / sizeof tables_[0]; i++) {
        struct writer w = {.at = 0};
        put_levels(&w, tables_[i].level, tables_[i].n);
        x = copy_of(&t, 0);
        change_bytes(section_in(&x.side, KVC_SECTION_STEPS), w.bytes, bytes_of(&w));
        refuse(&t, 0, &x, NULL, "a table of STEPS", tables_[i].words);
    }
    static const uint32_t states[] = {0, 1, 65535};
    for (size_t i = 0; i < 3; i++) {
        x = copy_of(&t, 0);
        uint8_t *p = (uint8_t *)(uintptr_t)section_in(&x.own, KVC_SECTION_STEPS)->data;
        for (unsigned b = 0; b < 4; b++) p[b] = (uint8_t)(states[i] >> 8 * b);
        refuse(&t, 0, &x, NULL, "a state of STEPS", "out of range");
    }
    x = copy_of(&t, 0); /* another end */
    ((uint8_t *)(uintptr_t)section_in(&x.own, KVC_SECTION_STEPS)->data)[0] ^= 1;
    refuse(&t, 0, &x, NULL, "a stream of STEPS", "STEPS");
    code_free(&t);
    free_layer(&l);
}

static void malformed_codes(void **state) {
    (void)state;
    struct layer l = make_few(1);
    struct coded t;
    struct broken x;
    struct kvc_error e;
    must_code(&t,
              &(struct wanted){.recipe = "code:step=0.1:lanes=1", .layer = &l, .block_rows = 20});
    static const struct {
        int first, second;
    } indices[] = {{63, 64}, {0, -1}, {40, 100}, {10, -200}};
    for (size_t i = 0; i < 4; i++) {
        struct writer w = {.at = 0};
        put_bits(&w, (uint32_t)indices[i].first, 6);
        const int d = indices[i].first - indices[i].second;
        put_rice(&w, (uint32_t)(d < 0 ? -2 * d - 1 : 2 * d), 1);
        put_bits(&w, 0, 60);
        x = copy_of(&t, 0);
        change_bytes(section_in(&x.side, KVC_SECTION_TABLES), w.bytes, bytes_of(&w));
        refuse(&t, 0, &x, NULL, "an index", "TABLES is out of range");
    }
    /* filling bits, bits left over, and the long form where it need not be */
    for (unsigned i = 0; i < 3; i++) {
        struct writer w = {.at = 0};
        for (size_t h = 0; h < 2; h++) {
            put_bits(&w, 20, 6);
            for (size_t c = 1; c < 8; c++) {
                if (i == 2 && c == 1) put_bits(&w, 0xffffff, 40); /* 24 ones, 16 bits of 0 */
                else put_rice(&w, 0, 1);
            }
        }
        if (i == 0) put_bits(&w, 0xff, 8 - w.at % 8);
        if (i == 1) put_bits(&w, 0, 8);
        x = copy_of(&t, 0);
        change_bytes(section_in(&x.side, KVC_SECTION_TABLES), w.bytes, bytes_of(&w));
        refuse(&t, 0, &x, NULL, "the end of TABLES", "TABLES");
    }
    static const uint32_t sizes[] = {UINT32_MAX, 1 << 20, 0x80000000};
    for (size_t i = 0; i < 3; i++) {
        x = copy_of(&t, 0);
        uint8_t *p = (uint8_t *)(uintptr_t)section_in(&x.own, KVC_SECTION_CODES)->data;
        for (unsigned b = 0; b < 4; b++) p[b] = (uint8_t)(sizes[i] >> 8 * b);
        refuse(&t, 0, &x, NULL, "the size of CODES", "shorter than its words");
    }
    for (int d = -3; d <= 3; d++) { /* words that are too many, too few, or cut */
        if (!d) continue;
        x = copy_of(&t, 0);
        uint8_t *p = (uint8_t *)(uintptr_t)section_in(&x.own, KVC_SECTION_CODES)->data;
        const uint32_t words = u32_at(p) + (uint32_t)d;
        for (unsigned b = 0; b < 4; b++) p[b] = (uint8_t)(words >> 8 * b);
        refuse(&t, 0, &x, NULL, "the words of CODES", "");
    }
    x = copy_of(&t, 0);
    memset((uint8_t *)(uintptr_t)section_in(&x.own, KVC_SECTION_CODES)->data + 4, 0, 4);
    refuse(&t, 0, &x, NULL, "a state of CODES", "out of range");
    code_free(&t);

    /* one escape: 24 and the 24 low bits of zigzag(1 - 2^24), then nothing */
    for (size_t i = 0; i < 600 * 16; i++) put_value(l.rows[V], KVC_F32, i, i == 19 ? -0x1p+30f : 0);
    must_code(&t,
              &(struct wanted){.recipe = "code:step=1", .layer = &l, .role = V, .block_rows = 20});
    for (unsigned i = 0; i < 5; i++) {
        x = copy_of(&t, 0);
        struct kvc_section *s = section_in(&x.own, KVC_SECTION_CODES);
        const size_t from = 8 + u32_at(s->data);
        struct string bits = {.bytes = s->data + from, .size = s->size - from};
        assert_int_equal(take_bits(&bits, 5), 24);
        assert_int_equal(unzigzag(1u << 24 | take_bits(&bits, 24)), 1 - (1 << 24));
        must_end(&bits);
        struct writer w = {.at = 0};
        /* the largest index; one too large, of either sign; the largest number; missing bits */
        put_bits(&w, i == 3 ? 31 : i == 2 ? 25 : 24, 5);
        put_bits(&w,
                 i == 0   ? 0xfffffe
                 : i == 1 ? 0xffffff
                 : i == 2 ? 0
                          : UINT32_MAX,
                 i == 3   ? 31
                 : i == 2 ? 25
                          : 24);
        uint8_t bytes[4000];
        assert_true(from + 8 < sizeof bytes);
        memcpy(bytes, s->data, from);
        memcpy(bytes + from, w.bytes, 8);
        change_bytes(s, bytes, from + (i == 4 ? 3 : bytes_of(&w)));
        if (i) {
            refuse(&t, 0, &x, NULL, "an escape", "CODES has a code out of range");
            continue;
        }
        uint8_t *rows = try_broken(&t, 0, &x, NULL, &e);
        assert_non_null(rows);
        assert_true(get_value(rows, KVC_F32, 19) == 0x1p+24f - 1);
        free(rows);
        free_broken(&x);
    }
    /* a pipeline without a step */
    const struct kvc_stage *coder = t.line.step[t.line.n - 1].stage;
    assert_int_equal(kvc_stage_parse(coder, "", &t.line.step[t.line.n - 1].args, &e), 0);
    x = copy_of(&t, 0);
    refuse(&t, 0, &x, NULL, "no step", "no step");
    code_free(&t);
    assert_int_equal(code(&t, &(struct wanted){.recipe = "code", .layer = &l}, &e), -1);
    assert_int_equal(e.code, KVC_ERR_USAGE);
    assert_non_null(strstr(e.message, "step"));
    code_free(&t);
    /* a block of which sinks take all rows has no codes */
    const struct wanted w = {.recipe = "sink:30,steps,code:step=1",
                             .layer = &l,
                             .role = V,
                             .block_rows = 20};
    must_code(&t, &w);
    for (unsigned i = 0; i < 2; i++) {
        const unsigned type = i ? KVC_SECTION_CODES : KVC_SECTION_STEPS;
        const unsigned stage = stage_number(&t.line, i ? "code" : "steps", 0);
        assert_null(find(&t.block[0], stage, type));
        x = copy_of(&t, 0);
        x.own.s[x.own.n] = *find(&t.block[1], stage, type);
        set_bytes(&x.own.s[x.own.n], x.own.s[x.own.n].data, x.own.s[x.own.n].size);
        x.own.n++;
        refuse(&t, 0, &x, NULL, "sections of no rows", "more than are due");
    }
    code_free(&t);
    free_layer(&l);
}

/* --- recipes --- */

static void recipes_are_read(void **state) {
    (void)state;
    static const struct {
        const char *text, *canonical;
    } good[] = {
        {"derope", "derope"},
        {"center", "center"},
        {"basis", "basis"},
        {"basis:drop=0.05:bits=6:k=0.18", "basis"},
        {"basis:drop=0", "basis:drop=0"},
        {"basis:k=0.01:bits=4:drop=1000000", "basis:drop=1000000:bits=4:k=0.01"},
        {"basis:bits=8:k=100", "basis:bits=8:k=100"},
        {"steps", "steps"},
        {"steps:p=0.5:c=0.3:tail=16:fine=4", "steps"},
        {"steps:fine=0:tail=65536:c=1000:p=2", "steps:p=2:c=1000:tail=65536:fine=0"},
        {"steps:p=0:c=0.001:tail=0:fine=6", "steps:p=0:c=0.001:tail=0:fine=6"},
        {"code", "code"},
        {"code:step=0.05", "code:step=0.05"},
        {"code:lanes=32:step=1000000", "code:step=1000000"},
        {"code:step=0.000123:lanes=1", "code:step=0.000123:lanes=1"},
        {"code:kld=0.003:lanes=16", "code:kld=0.003:lanes=16"},
    };
    static const char *const bad[] = {
        "derope:1",           "derope:halves",      "center:0",       "basis:6",
        "basis:bits=3",       "basis:bits=9",       "basis:k=0.009",  "basis:k=101",
        "basis:drop=-1",      "basis:drop=1000001", "basis:bits=6.5", "steps:p=2.1",
        "steps:p=-1",         "steps:c=0",          "steps:c=1001",   "steps:tail=65537",
        "steps:fine=7",       "steps:fine=-1",      "steps:0.5",      "code:0.5",
        "code:step=-1",       "code:step=1000001",  "code:step=x",    "code:lanes=0",
        "code:lanes=3",       "code:lanes=33",      "code:lanes=64",  "code:kld=101",
        "code:step=1:step=1", "code:lanes",
    };
    struct kvc_recipe r, again;
    struct kvc_error e;
    char text[256];
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        if (kvc_recipe_parse(good[i].text, &r, &e)) fail_msg("%s: %s", good[i].text, e.message);
        assert_int_equal(kvc_recipe_print(&r, text, sizeof text), 0);
        assert_string_equal(text, good[i].canonical);
        assert_int_equal(kvc_recipe_parse(text, &again, &e), 0);
        assert_memory_equal(&r, &again, sizeof r);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (!kvc_recipe_parse(bad[i], &r, &e)) fail_msg("'%s' is taken", bad[i]);
        assert_int_equal(e.code, KVC_ERR_USAGE);
        assert_true(strlen(e.message) > 10);
    }
    /* a step that was looked for, in five digits, takes the place of a KLD */
    double kld;
    assert_int_equal(kvc_recipe_parse("code:kld=0.003:lanes=4", &r, &e), 0);
    assert_true(kvc_stage_code.step(&r.item[0].args, &kld) == 0 && kld == 0.003);
    kvc_stage_code.set_step(&r.item[0].args, 0.000123456789);
    assert_true(kvc_stage_code.step(&r.item[0].args, &kld) == 0.00012346 && kld == 0);
    assert_int_equal(kvc_recipe_print(&r, text, sizeof text), 0);
    assert_string_equal(text, "code:step=0.00012346:lanes=4");
}

/* Stages that need positions of rows allow no later stage that takes rows, and occur once; `code`
 * ends a pipeline, its companions do not; other dtypes and heads that are too wide are refused. */
static void orders(void **state) {
    (void)state;
    static const struct {
        const char *recipe, *words;
    } bad[] = {
        {"derope,sink:2,code:step=1", "sink cannot come after derope"},
        {"steps,tail:2,code:step=1", "tail cannot come after steps"},
        {"steps,steps,code:step=1", "steps occurs twice"},
        {"derope,center,derope,code:step=1", "derope occurs twice"},
        {"derope,merge:slerp,code:step=1", "derope cannot come before merge"},
    };
    struct kvc_recipe r;
    struct kvc_pipeline line;
    struct kvc_error e;
    char text[256];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(kvc_recipe_parse(bad[i].recipe, &r, &e), 0);
        kvc_recipe_pipeline(&r, KVC_SELECT_K, 0, &line);
        assert_int_equal(kvc_pipeline_check(&line, &e), -1);
        if (!strstr(e.message, bad[i].words)) fail_msg("%s: %s", bad[i].recipe, e.message);
    }
    line = pipeline_for("sink:2,derope,center,basis,steps,code:step=0.5", K);
    assert_int_equal(kvc_pipeline_print(&line, text, sizeof text), 0);
    assert_string_equal(text, "sink:2,finite,derope,center,basis,steps,code:step=0.5");
    assert_int_equal(kvc_pipeline_lossless(&line), 0);
    line = pipeline_for("derope,center,basis,steps", K); /* the default ends it */
    assert_int_equal(kvc_pipeline_print(&line, text, sizeof text), 0);
    assert_string_equal(text, "finite,derope,center,basis,steps,split");
    const struct kvc_shape wide = {KVC_F16, 1, 1, 1025}, coded = {KVC_Q8_0, 1, 1, 64};
    line = pipeline_for("basis,code:step=1", K);
    assert_int_equal(kvc_pipeline_accepts(&line, &wide, &e), 0);
    assert_non_null(strstr(e.message, "1025 channels"));
    line = pipeline_for("code:step=1", K);
    assert_int_equal(kvc_pipeline_accepts(&line, &wide, &e), 1);
    assert_int_equal(kvc_pipeline_accepts(&line, &coded, &e), 0);
    assert_int_equal(e.code, KVC_ERR_UNSUPPORTED);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoded_as_specified),
        cmocka_unit_test(codes_are_the_nearest),
        cmocka_unit_test(indices_are_the_cheapest),
        cmocka_unit_test(tables),
        cmocka_unit_test(means),
        cmocka_unit_test(turned_back),
        cmocka_unit_test(coefficients_of_a_profile),
        cmocka_unit_test(basis_of_its_own),
        cmocka_unit_test(rows_of_a_basis),
        cmocka_unit_test(dead_heads),
        cmocka_unit_test(classes_of_tokens),
        cmocka_unit_test(examples),
        cmocka_unit_test(any_damage),
        cmocka_unit_test(malformed_rope),
        cmocka_unit_test(malformed_means_and_bases),
        cmocka_unit_test(malformed_steps),
        cmocka_unit_test(malformed_codes),
        cmocka_unit_test(recipes_are_read),
        cmocka_unit_test(orders),
    };
    program = argv[0];
    if (argc == 2 && strcmp(argv[1], "digest") == 0) {
        printf("%016llx\n", (unsigned long long)digest_of_all(0));
        return 0;
    }
    return cmocka_run_group_tests_name("transform", tests, NULL, NULL);
}
