/* test_transform.c: the stages of the transform codec, `derope`, `center`, `basis`, `steps` and
 * `code`, with a decoder of its own: what the library encodes is decoded slowly, value by value, as
 * the specs say, and must be what the library decodes, bit by bit. Not for encoders' choices
 * (test_transform_choices.c), malformed sections (test_transform_damage.c) or profile files
 * (test_profile.c).
 *
 * `test_transform digest` prints a digest of all that is encoded and decoded: the test of kernel
 * tables runs itself so, once each. */
#include "every_table.h"
#include "transform_support.h"

#include <xxhash.h>

static const char *program; /* argv[0] */

/* --- the stages, one value after the other --- */

/* What the tests have met. */
static struct {
    unsigned escapes, lost_bits[8], longest, lanes[33], kind[2], profiles, class[16], turned[3];
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
        uint16_t frequency[KVC_CODE_SYMBOLS];
        kvc_code_frequencies(frequency, table_of(own, &lost));
        symbol[i] = take_symbol(&stream, (unsigned)(i % s->dim) % lanes, frequency, 11);
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
        seen.longest += code >= 1 << 20 || code <= -(1 << 20);
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

static void slow_derope(struct slow *s) {
    const struct kvc_rope_facts *turn = turn_known(&s->t->w);
    if (!turn) {
        seen.turned[0]++;
        return;
    }
    seen.turned[turn->pairing]++;
    for (size_t i = 0; i < s->rows * s->heads; i++) {
        const int64_t position = s->t->w.layer->position[s->first + i / s->heads];
        seen.positions_beyond_31_bits += position >= INT64_C(1) << 31;
        slow_turn(s->x + i * s->dim, turn->angle, turn->half, turn->pairing, position, 0);
    }
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
        else if (strcmp(name, "derope") == 0) slow_derope(&s);
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

/* --- recipes over kinds of layers --- */

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
static unsigned long long digest_of_all(int checked) {
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
                    l[kind] = make_layer(float_dtypes[(kind + g) % 3], rows, heads, dim);
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

static unsigned long long digest_of_rows(void) {
    return digest_of_all(0);
}

/* Every kernel table codes to the same bytes and decodes as the specs say. */
static void decoded_as_specified(void **state) {
    (void)state;
    /* makes the trial of kernels, after which blocks may be decoded two at a time */
    kvc_kernels_choice();
    const unsigned long long own = digest_of_all(1);
    assert_true(seen.pairs > 20 || !kvc_kernels_get()->rans_decode_two);
    for (unsigned i = 0; i <= 7; i++) assert_true(seen.lost_bits[i] > 100);
    for (unsigned i = 1; i <= 32; i *= 2) assert_true(seen.lanes[i] > 0);
    for (int k = LEAST_CLASS; k <= MOST_CLASS; k++) assert_true(seen.class[k - LEAST_CLASS] > 0);
    assert_true(seen.escapes > 1000 && seen.longest > 100 && seen.positions_beyond_31_bits > 1000);
    assert_true(seen.kind[0] > 10 && seen.kind[1] > 10 && seen.profiles > 10);
    assert_true(seen.turned[0] > 10 && seen.turned[1] > 10 && seen.turned[2] > 10);
    assert_every_table(program, &own);
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
    assert_null(find(&t.encoder.side, 1, 0)); /* derope has no sections */
    const struct kvc_section *s = find(&t.encoder.side, 2, KVC_SECTION_MEAN);
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

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoded_as_specified),
        cmocka_unit_test(classes_of_tokens),
        cmocka_unit_test(examples),
    };
    if (print_digest(argc, argv, digest_of_rows)) return 0;
    program = argv[0];
    return cmocka_run_group_tests_name("transform", tests, NULL, NULL);
}
