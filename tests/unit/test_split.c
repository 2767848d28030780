/* test_split.c: the stages `split` and `fast`: every bit of every kind of rows comes back from
 * either, no block grows, and damage inside sections, which a record's hash would notice first,
 * does no harm. Not for kernels (test_kernels.c), files (test_files.c) or other stages
 * (test_codecs.c).
 *
 * `test_split digest` prints a digest of all that is encoded: the test of kernel tables runs itself
 * so, once each. */
#include "every_table.h"
#include "recipe_support.h"
#include "values_support.h"

#include "codecs/stages/split/channels.h"
#include "codecs/registry.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

/* what split.md's RAW rule counts for a section: directory entry and half its padding */
enum { SECTION_COST = 24 };
enum { GUARD = 64 }; /* bytes after decoded rows that must not change */

static const enum kvc_dtype dtypes[] = {KVC_F32,  KVC_F16,  KVC_BF16,  KVC_F8E4M3, KVC_F8E5M2,
                                        KVC_U8,   KVC_I8,   KVC_Q8_0,  KVC_Q4_0,   KVC_Q4_1,
                                        KVC_Q5_0, KVC_Q5_1, KVC_IQ4_NL};
#define N_DTYPES (sizeof dtypes / sizeof dtypes[0])
static const char *const recipes[] = {"split", "split:stream=1024", "fast"};
#define N_RECIPES (sizeof recipes / sizeof recipes[0])

static const char *program; /* argv[0] */

/* --- rows --- */

static uint32_t random_state = 7;

static size_t values_of(const struct kvc_shape *s) {
    return (size_t)(s->tokens * s->heads * s->dim);
}

static size_t bytes_of(const struct kvc_shape *s) {
    return (size_t)(s->tokens * kvc_row_bytes(s));
}

/* The byte whose value in an 8-bit float type is nearest to x. */
static uint8_t nearest_byte(enum kvc_dtype dtype, float x) {
    static uint8_t byte_of[2][4096]; /* by the upper 12 bits of x */
    static int made[2];
    const unsigned which = dtype == KVC_F8E5M2;
    for (unsigned i = 0; i < 4096 && !made[which]; i++) {
        float want, got, least = INFINITY;
        uint32_t bits = (uint32_t)i << 20 | 0x80000;
        memcpy(&want, &bits, sizeof want);
        for (unsigned b = 0; b < 256; b++) {
            uint8_t byte = (uint8_t)b;
            kvc_dtype_info(dtype)->to_f32(&got, &byte, 1);
            if (fabsf(got - want) < least) least = fabsf(got - want), byte_of[which][i] = byte;
        }
    }
    made[which] = 1;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return byte_of[which][bits >> 20];
}

/* Value i of rows of a dtype whose blocks are single values. */
static void put_value(uint8_t *rows, enum kvc_dtype dtype, size_t i, float x) {
    uint16_t h;
    switch (dtype) {
    case KVC_F32: memcpy(rows + 4 * i, &x, 4); break;
    case KVC_F16: h = kvc_float_to_half(x), memcpy(rows + 2 * i, &h, 2); break;
    case KVC_BF16: h = kvc_float_to_bf16(x), memcpy(rows + 2 * i, &h, 2); break;
    case KVC_F8E4M3:
    case KVC_F8E5M2: rows[i] = nearest_byte(dtype, x); break;
    default: rows[i] = (uint8_t)(int)lrintf(fmaxf(-128, fminf(127, 16 * x))); break;
    }
}

/* How a block type's codes are put: bytes before them and after, and the bits of one. */
static void put_codes(uint8_t *rows, const struct kvc_dtype_info *info, size_t i, float x) {
    uint8_t *block = rows + i / 32 * info->size;
    const size_t j = i % 32, at = info->size - (info->dtype == KVC_Q8_0 ? 32 : 16);
    if (info->dtype == KVC_Q8_0) {
        block[at + j] = (uint8_t)(int)lrintf(fmaxf(-127, fminf(127, 30 * x)));
        return;
    }
    const int five = info->dtype == KVC_Q5_0 || info->dtype == KVC_Q5_1, half = five ? 16 : 8;
    const unsigned v = (unsigned)lrintf(
        fmaxf(0, fminf((float)(2 * half - 1), (float)half + (float)half * x / 3)));
    block[at + j % 16] = (uint8_t)((block[at + j % 16] & (j < 16 ? 0xf0u : 0x0fu)) |
                                   (v & 15) << (j < 16 ? 0 : 4));
    if (!five) return;
    uint8_t *fifth = block + at - 4 + j / 8;
    *fifth = (uint8_t)((*fifth & ~(1u << j % 8)) | (v >> 4) << j % 8);
}

enum kind {
    ZEROS,
    ALL_ONES,
    EQUAL,
    GARBAGE,
    COUNTING,
    EXTREMES,
    NORMAL,
    ZERO_ROWS,
    CONSTANT_CHANNELS,
    HUGE_MEANS,
    TINY,
    LARGE,
    TWO_VALUES,
    KINDS
};

/* Float rows of channels with a mean and a spread each; for block types the codes follow, with
 * scales that differ. */
static void fill_channels(uint8_t *rows, const struct kvc_shape *shape, enum kind kind) {
    const struct kvc_dtype_info *info = kvc_dtype_info(shape->dtype);
    const size_t n = (size_t)(shape->heads * shape->dim), values = values_of(shape);
    const float scale = kind == TINY ? 1e-40f : kind == LARGE ? 3e37f : 1;
    float *mean = get_memory(n * sizeof *mean), *spread = get_memory(n * sizeof *spread);
    for (size_t k = 0; k < n; k++) {
        spread[k] = kind == CONSTANT_CHANNELS ? 0 : exp2f(random_normal());
        mean[k] = random_normal() * (kind == HUGE_MEANS ? 1000 : k % 7 ? 0.5f : 5.0f);
    }
    for (size_t i = 0; i < bytes_of(shape); i++) rows[i] = (uint8_t)(random_byte() & 0x3f);
    for (size_t i = 0; i < values; i++) {
        float x = (mean[i % n] + spread[i % n] * random_normal()) * scale;
        if (kind == ZERO_ROWS && i / n % 5 == 2) x = 0;
        if (kind == TWO_VALUES) x = random_bits() & 1024 ? 1 : -0.5f;
        if (info->block == 1) put_value(rows, shape->dtype, i, x);
        else put_codes(rows, info, i, x);
    }
    free(mean);
    free(spread);
}

/* Signs, exponents and mantissas at random, the exponents mostly the minimum and the maximum: zeros
 * of both signs, subnormals, infinities, NaNs of every payload. Types without exponents get bytes
 * of all ones and all zeros. */
static void fill_extremes(uint8_t *rows, const struct kvc_shape *shape) {
    const struct kvc_dtype_info *info = kvc_dtype_info(shape->dtype);
    const unsigned mantissa = shape->dtype == KVC_F16      ? 10
                              : shape->dtype == KVC_F8E4M3 ? 3
                              : shape->dtype == KVC_F8E5M2 ? 2
                                                           : 7;
    const size_t width = info->size < 2 ? 1 : 2;
    const unsigned top = (unsigned)width * 8 - 1,
                   exponent = ((1u << top) - 1) >> mantissa << mantissa;
    for (size_t i = 0; i < bytes_of(shape); i++) rows[i] = random_byte();
    for (size_t at = info->size - width; info->block == 1 && at < bytes_of(shape);
         at += info->size) {
        unsigned low = random_bits() & 3, word = random_bits() & ((2u << top) - 1);
        if (low == 0) word &= ~exponent;
        if (low == 1) word |= exponent;
        if (low == 2) word &= 1u << top | exponent;
        for (size_t b = 0; b < width; b++) rows[at + b] = (uint8_t)(word >> 8 * b);
    }
    for (size_t i = 0; info->block > 1 && i < bytes_of(shape); i++)
        rows[i] = random_bits() & 64 ? 0xff : 0;
}

static void fill(uint8_t *rows, const struct kvc_shape *shape, enum kind kind) {
    const size_t n = bytes_of(shape), size = kvc_dtype_info(shape->dtype)->size;
    switch (kind) {
    case ZEROS: memset(rows, 0, n); break;
    case ALL_ONES: memset(rows, 0xff, n); break;
    case EQUAL:
        for (size_t i = 0; i < n; i++) rows[i] = (uint8_t)(i % size * 37 + 0x3c);
        break;
    case GARBAGE:
        for (size_t i = 0; i < n; i++) rows[i] = random_byte();
        break;
    case COUNTING: /* every pattern of the upper 16 bits, as far as there are values */
        for (size_t i = 0; i < n; i++) {
            size_t value = i / size, b = i % size;
            rows[i] = (uint8_t)(size <= 2       ? value >> 8 * b
                                : b + 2 >= size ? value >> 8 * (b + 2 - size)
                                                : value * 77);
        }
        break;
    case EXTREMES: fill_extremes(rows, shape); break;
    default: fill_channels(rows, shape, kind); break;
    }
}

/* --- there and back --- */

static struct kvc_pipeline pipeline_of(const char *recipe) {
    struct kvc_recipe r;
    struct kvc_pipeline line;
    struct kvc_error e;
    assert_int_equal(kvc_recipe_parse(recipe, &r, &e), 0);
    kvc_recipe_pipeline(&r, 0, 0, &line);
    assert_int_equal(line.n, 1);
    return line;
}

static void encode(const char *recipe, const struct kvc_shape *shape, const uint8_t *source,
                   struct kvc_sections *list) {
    const struct kvc_pipeline line = pipeline_of(recipe);
    const size_t n = bytes_of(shape);
    uint8_t *rows = get_memory(n);
    memcpy(rows, source, n);
    struct kvc_block block = {.shape = *shape, .rows = rows};
    struct kvc_error e = {.code = KVC_OK};
    assert_null(line.step[0].stage->accepts); /* takes every shape */
    kvc_sections_init(list);
    if (kvc_pipeline_encode(&line, &block, list, &e)) fail_msg("%s: %s", recipe, e.message);
    kvc_sections_seal(list);
    free(rows);
}

/* Each section's bytes in memory of their own, so that a sanitizer sees a byte read too far. */
static struct kvc_section *apart(const struct kvc_section *section, size_t n) {
    struct kvc_section *s = get_memory(n * sizeof *s);
    for (size_t i = 0; i < n; i++) {
        uint8_t *bytes = get_memory(section[i].size);
        s[i] = section[i];
        memcpy(bytes, section[i].data, section[i].size);
        s[i].data = bytes;
    }
    return s;
}

static void free_apart(struct kvc_section *s, size_t n) {
    for (size_t i = 0; i < n; i++) free((uint8_t *)(uintptr_t)s[i].data);
    free(s);
}

/* Decodes two blocks at once, into memory of their own with a guard after them. Both must be
 * `want`, their n bytes each, unless that is refused. Returns 1 where it is. */
static int decode_two(const struct kvc_pipeline *line, const struct kvc_shape shape[2],
                      const struct kvc_coded own[2], const uint8_t *const want[2]) {
    struct kvc_block block[2];
    uint8_t *rows[2];
    for (int i = 0; i < 2; i++) {
        rows[i] = get_memory(bytes_of(&shape[i]) + GUARD);
        memset(rows[i], 0xa5, bytes_of(&shape[i]) + GUARD);
        block[i] = (struct kvc_block){.shape = shape[i], .rows = rows[i]};
    }
    const int status = kvc_pipeline_decode_two(line, block, own);
    for (int i = 0; i < 2; i++) {
        const size_t n = bytes_of(&shape[i]);
        for (size_t k = 0; k < GUARD; k++) assert_int_equal(rows[i][n + k], 0xa5);
        if (!status) assert_memory_equal(rows[i], want[i], n);
        free(rows[i]);
    }
    assert_in_range(status, 0, 1);
    return status;
}

/* Returns 1 where this CPU, and the kernels asked for, decode two blocks of this recipe at once. */
static int decodes_two(const struct kvc_pipeline *line) {
    kvc_kernels_choice(); /* makes the trial of kernels */
    return kvc_pipeline_decodes_two(line);
}

/* Decodes into `rows`, with a guard after them; 0 or -1 with a message. */
static int decode(const struct kvc_pipeline *line, const struct kvc_shape *shape, uint8_t *rows,
                  const struct kvc_section *section, size_t n, struct kvc_error *e) {
    const size_t size = bytes_of(shape);
    struct kvc_block block = {.shape = *shape, .rows = rows};
    memset(rows, 0xa5, size + GUARD);
    memset(e, 0, sizeof *e);
    int status = kvc_pipeline_decode(line, &block, section, n, e);
    for (size_t i = 0; i < GUARD; i++) assert_int_equal(rows[size + i], 0xa5);
    if (status) {
        assert_int_equal(status, -1);
        assert_true(e->code == KVC_ERR_DAMAGED || e->code == KVC_ERR_UNSUPPORTED);
        assert_true(*e->message);
    }
    if (decodes_two(line)) { /* the block beside itself */
        const struct kvc_coded both[] = {{.section = section, .n = n},
                                         {.section = section, .n = n}};
        const int alone = status || !n || section->type == KVC_SECTION_RAW;
        assert_int_equal(decode_two(line, (const struct kvc_shape[]){*shape, *shape}, both,
                                    (const uint8_t *[]){rows, rows}),
                         alone);
    }
    return status;
}

static int is_raw(const struct kvc_sections *list) {
    return list->count == 1 && list->section[0].type == KVC_SECTION_RAW;
}

static size_t stored(const struct kvc_sections *list) {
    size_t total = 0;
    for (size_t i = 0; i < list->count; i++) total += list->section[i].size;
    return total;
}

static XXH64_hash_t digest; /* of all that round_trip() encoded */

/* Encodes twice, decodes, compares; returns the stored bytes. */
static size_t round_trip(const char *recipe, const struct kvc_shape *shape, const uint8_t *source) {
    const struct kvc_pipeline line = pipeline_of(recipe);
    const size_t n = bytes_of(shape);
    struct kvc_sections list, again;
    struct kvc_error e;
    assert_true(kvc_shape_check(shape));
    encode(recipe, shape, source, &list);
    encode(recipe, shape, source, &again);
    assert_int_equal(list.count, again.count);
    assert_int_equal(list.used, again.used);
    for (size_t i = 0; i < list.count; i++) {
        const struct kvc_section *a = &list.section[i], *b = &again.section[i];
        assert_true(a->type == b->type && a->coder == b->coder && a->index == b->index &&
                    a->raw_size == b->raw_size);
        assert_int_equal(a->size, b->size);
        if (a->size) assert_memory_equal(a->data, b->data, a->size);
        const uint8_t entry[] = {a->type, a->coder, a->stage, a->index};
        digest = XXH3_64bits_withSeed(entry, sizeof entry, digest);
        digest = XXH3_64bits_withSeed(a->data, a->size, digest);
    }
    if (is_raw(&list)) {
        assert_int_equal(list.section[0].index, 0);
        assert_int_equal(list.section[0].coder, KVC_CODER_STORE);
        assert_int_equal(list.section[0].size, n);
        if (n) assert_memory_equal(list.section[0].data, source, n);
    } else if (list.count) {
        assert_true(stored(&list) + (list.count - 1) * SECTION_COST < n);
    }
    struct kvc_section *sections = apart(list.section, list.count);
    uint8_t *rows = get_memory(n + GUARD);
    if (decode(&line, shape, rows, sections, list.count, &e)) fail_msg("%s: %s", recipe, e.message);
    if (n && memcmp(rows, source, n) != 0)
        fail_msg("%s: %s, %d rows of %d x %d: other bytes came back", recipe,
                 kvc_dtype_info(shape->dtype)->name, (int)shape->tokens, (int)shape->heads,
                 (int)shape->dim);
    const size_t total = stored(&list);
    free(rows);
    free_apart(sections, list.count);
    kvc_sections_free(&list);
    kvc_sections_free(&again);
    return total;
}

/* Tests the round trip of one kind of rows with every recipe. */
static void round_trips(enum kvc_dtype dtype, uint64_t tokens, uint64_t heads, uint64_t dim,
                        enum kind kind) {
    const struct kvc_shape shape = {dtype, tokens, heads, dim};
    uint8_t *source = get_memory(bytes_of(&shape));
    fill(source, &shape, kind);
    for (size_t r = 0; r < N_RECIPES; r++) round_trip(recipes[r], &shape, source);
    free(source);
}

static void every_kind_of_rows(void **state) {
    (void)state;
    for (size_t d = 0; d < N_DTYPES; d++)
        for (int kind = 0; kind < KINDS; kind++) {
            round_trips(dtypes[d], 100, 1, 32, (enum kind)kind);
            round_trips(dtypes[d], 20, 2, 64, (enum kind)kind);
        }
}

static void every_number_of_rows(void **state) {
    (void)state;
    for (size_t d = 0; d < N_DTYPES; d++) {
        const uint64_t dim = kvc_dtype_info(dtypes[d])->block == 1 ? 9 : 32;
        for (uint64_t tokens = 0; tokens <= 256; tokens += tokens < 34 || tokens > 250 ? 1
                                                           : tokens < 90               ? 7
                                                                                       : 23)
            round_trips(dtypes[d], tokens, 1, dim, NORMAL);
        round_trips(dtypes[d], 256, 1, dim, EXTREMES);
    }
}

static void every_number_of_channels(void **state) {
    (void)state;
    static const uint64_t dims[] = {1, 2, 3, 5, 8, 16, 31, 32, 33, 40, 64, 80, 96, 128, 576, 1088};
    for (size_t d = 0; d < N_DTYPES; d++)
        for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
            if (dims[i] % kvc_dtype_info(dtypes[d])->block) continue;
            round_trips(dtypes[d], 1, 1, dims[i], NORMAL);
            round_trips(dtypes[d], 40, 1, dims[i], NORMAL);
            round_trips(dtypes[d], 3, 3, dims[i], EXTREMES);
        }
    /* blocks across heads */
    for (size_t d = 0; d < N_DTYPES; d++) round_trips(dtypes[d], 33, 4, 80, NORMAL);
}

/* As many values as there are patterns of 16 bits, in order and mixed. */
static void every_pattern(void **state) {
    (void)state;
    for (size_t d = 0; d < N_DTYPES; d++) {
        const struct kvc_shape shape = {dtypes[d], 256, 2, 128};
        const size_t size = kvc_dtype_info(dtypes[d])->size, n = bytes_of(&shape) / size;
        uint8_t *source = get_memory(bytes_of(&shape)), *mixed = get_memory(bytes_of(&shape));
        fill(source, &shape, COUNTING);
        for (size_t i = 0; i < n; i++)
            memcpy(mixed + i * size, source + i * 40503 % n * size, size);
        for (size_t r = 0; r < N_RECIPES; r++) {
            round_trip(recipes[r], &shape, source);
            round_trip(recipes[r], &shape, mixed);
        }
        free(source);
        free(mixed);
    }
}

static void large_blocks(void **state) {
    (void)state;
    for (size_t d = 0; d < N_DTYPES; d++) round_trips(dtypes[d], 256, 3, 128, NORMAL);
}

/* --- what is gained --- */

static void channels_shrink(void **state) {
    (void)state;
    static const struct {
        enum kvc_dtype dtype;
        const char *recipe;
        double most; /* of the rows */
    } cases[] = {{KVC_BF16, "split", 0.75},   {KVC_F16, "split", 0.9},
                 {KVC_F32, "split", 0.9},     {KVC_BF16, "fast", 0.8},
                 {KVC_F16, "fast", 0.95},     {KVC_F32, "fast", 0.9},
                 {KVC_I8, "split", 0.95},     {KVC_F8E4M3, "split", 0.95},
                 {KVC_F8E5M2, "split", 0.85}, {KVC_Q8_0, "split", 0.95},
                 {KVC_Q4_0, "split", 0.95}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct kvc_shape shape = {cases[i].dtype, 256, 2, 128};
        uint8_t *source = get_memory(bytes_of(&shape));
        fill(source, &shape, NORMAL);
        double share = (double)round_trip(cases[i].recipe, &shape, source) /
                       (double)bytes_of(&shape);
        if (share > cases[i].most)
            fail_msg("%s, %s: %.3f of the rows, at most %.2f is due",
                     kvc_dtype_info(shape.dtype)->name, cases[i].recipe, share, cases[i].most);
        free(source);
    }
}

static void what_does_not_shrink_is_raw(void **state) {
    (void)state;
    for (size_t d = 0; d < N_DTYPES; d++)
        for (size_t r = 0; r < N_RECIPES; r++)
            for (uint64_t tokens = 1; tokens <= 256; tokens *= 16) {
                const struct kvc_shape shape = {dtypes[d], tokens, 1, 64};
                uint8_t *source = get_memory(bytes_of(&shape));
                struct kvc_sections list;
                fill(source, &shape, GARBAGE);
                encode(recipes[r], &shape, source, &list);
                assert_true(is_raw(&list));
                kvc_sections_free(&list);
                free(source);
            }
    /* fast.md: dtypes without exponents of their own are RAW, whatever they hold */
    for (size_t d = 0; d < N_DTYPES; d++) {
        if (dtypes[d] == KVC_F32 || dtypes[d] == KVC_F16 || dtypes[d] == KVC_BF16) continue;
        const struct kvc_shape shape = {dtypes[d], 64, 1, 64};
        uint8_t *source = get_memory(bytes_of(&shape));
        struct kvc_sections list;
        fill(source, &shape, ZEROS);
        encode("fast", &shape, source, &list);
        assert_true(is_raw(&list));
        kvc_sections_free(&list);
        free(source);
    }
}

static void no_rows_no_sections(void **state) {
    (void)state;
    for (size_t d = 0; d < N_DTYPES; d++)
        for (size_t r = 0; r < N_RECIPES; r++) {
            const struct kvc_shape shape = {dtypes[d], 0, 1, 64};
            assert_int_equal(round_trip(recipes[r], &shape, (const uint8_t *)""), 0);
        }
}

/* --- turning channels --- */

/* K as RoPE leaves it: pair i of each head turns by base^(-i / pairs) a row, from row `start` on.
 */
static void fill_turning(uint8_t *rows, const struct kvc_shape *shape, size_t period, size_t first,
                         int interleaved, double base, size_t start) {
    const size_t n = (size_t)(shape->heads * shape->dim), pairs = (period - first) / 2;
    double *mean = get_memory(n * sizeof *mean);
    for (size_t k = 0; k < n; k++) mean[k] = 12 * (double)random_normal();
    for (size_t t = 0; t < shape->tokens; t++)
        for (size_t k = 0; k < n; k++) {
            const size_t head = k / period * period, d = k - head;
            double m = mean[k];
            if (d >= first) {
                const size_t at = d - first, i = interleaved ? at / 2 : at % pairs;
                const int second = interleaved ? (int)(at % 2) : at >= pairs;
                const size_t other = interleaved ? (second ? d - 1 : d + 1)
                                     : second    ? d - pairs
                                                 : d + pairs;
                const double w = pow(base, -(double)i / (double)pairs) * (double)(start + t);
                m = m * cos(w) + (second ? 1 : -1) * mean[head + other] * sin(w);
            }
            put_value(rows, shape->dtype, t * n + k, (float)m + random_normal());
        }
    free(mean);
}

static const struct kvc_word_format bf16_words = {15, 16, 6, 0}, f16_words = {15, 13, 8, 112};

/* The turn that the PARAMS of `split` tell of these rows; *c is freed by the caller. */
static void read_model(const struct kvc_shape *shape, const uint8_t *source,
                       struct kvc_channels *c) {
    struct kvc_sections list;
    struct kvc_error e;
    encode("split", shape, source, &list);
    const struct kvc_section *params = NULL;
    for (size_t i = 0; i < list.count; i++)
        if (list.section[i].type == KVC_SECTION_PARAMS) params = &list.section[i];
    assert_non_null(params);
    assert_int_equal(kvc_channels_init(c, (size_t)(shape->heads * shape->dim),
                                       shape->dtype == KVC_F16 ? &f16_words : &bf16_words, 16, &e),
                     0);
    assert_int_equal(kvc_channels_read(c, 0, params->data, params->size, &e), 0);
    kvc_sections_free(&list);
}

static void turning_channels_are_found(void **state) {
    (void)state;
    static const struct {
        uint64_t heads, dim;
        size_t period, first, start;
        double base;
    } cases[] = {{2, 64, 64, 0, 0, 1e4}, {1, 128, 128, 0, 0, 5e5},   {1, 192, 64, 0, 300, 1e4},
                 {3, 80, 80, 0, 0, 1e6}, {1, 576, 576, 512, 0, 1e4}, {2, 32, 32, 0, 77, 1e4}};
    static const enum kvc_dtype floats[] = {KVC_F32, KVC_F16, KVC_BF16};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (unsigned d = 0; d < 3; d++)
            for (int interleaved = 0; interleaved < 2; interleaved++) {
                const struct kvc_shape shape = {floats[d], 256, cases[i].heads, cases[i].dim};
                const size_t pairs = (cases[i].period - cases[i].first) / 2;
                uint8_t *source = get_memory(bytes_of(&shape));
                struct kvc_channels c;
                fill_turning(source, &shape, cases[i].period, cases[i].first, interleaved,
                             cases[i].base, cases[i].start);
                round_trip("split", &shape, source);
                round_trip("split:stream=1024", &shape, source);
                read_model(&shape, source, &c);
                assert_int_equal(c.turn, interleaved ? KVC_TURN_INTERLEAVED : KVC_TURN_HALVES);
                assert_int_equal(c.period, cases[i].period);
                assert_int_equal(c.first, cases[i].first);
                assert_int_equal(c.pairs, pairs);
                assert_true(fabs((double)c.angle - 1) < 1e-6);
                assert_true(fabs((double)c.ratio - pow(cases[i].base, -1.0 / (double)pairs)) <
                            1e-6);
                kvc_channels_free(&c);
                free(source);
            }
}

/* Resting channels are not taken for turning ones, and turning ones cost about as much as resting
 * ones. */
static void turning_costs_little(void **state) {
    (void)state;
    const struct kvc_shape shape = {KVC_BF16, 256, 2, 64};
    uint8_t *resting = get_memory(bytes_of(&shape)), *turning = get_memory(bytes_of(&shape));
    struct kvc_channels c;
    fill_turning(resting, &shape, 64, 64, 0, 1, 0);
    read_model(&shape, resting, &c);
    assert_int_equal(c.turn, KVC_TURN_NONE);
    kvc_channels_free(&c);
    fill_turning(turning, &shape, 64, 0, 0, 1e4, 0);
    const size_t rest = round_trip("split", &shape, resting),
                 turn = round_trip("split", &shape, turning);
    assert_true(turn * 10 < rest * 11);
    free(resting);
    free(turning);
}

/* --- kernels --- */

static unsigned long long digest_of_all(void) {
    random_state = 7;
    digest = 0;
    for (size_t d = 0; d < N_DTYPES; d++) {
        for (int kind = 0; kind < KINDS; kind++) round_trips(dtypes[d], 37, 3, 32, (enum kind)kind);
        round_trips(dtypes[d], 200, 1, 576, NORMAL);
        if (kvc_dtype_info(dtypes[d])->block > 1) continue;
        for (uint64_t dim = 1; dim <= 65; dim += 4) round_trips(dtypes[d], 50, 1, dim, EXTREMES);
        for (uint64_t dim = 1; dim <= 65; dim += 4) round_trips(dtypes[d], 50, 1, dim, NORMAL);
    }
    return digest;
}

/* Every kernel table codes to the same bytes and gets them back. */
static void every_kernel_table(void **state) {
    (void)state;
    assert_every_table(program, NULL);
}

/* --- two blocks at once --- */

/* Encoded rows. */
struct coded_rows {
    struct kvc_shape shape;
    uint8_t *source;
    struct kvc_sections list;
};

static struct coded_rows code_rows(const char *recipe, enum kvc_dtype dtype, uint64_t tokens,
                                   uint64_t dim, enum kind kind) {
    struct coded_rows x = {.shape = {dtype, tokens, 1, dim}};
    x.source = get_memory(bytes_of(&x.shape));
    fill(x.source, &x.shape, kind);
    encode(recipe, &x.shape, x.source, &x.list);
    return x;
}

static int decode_coded_two(const struct kvc_pipeline *line, const struct coded_rows *a,
                            const struct coded_rows *b) {
    const struct kvc_coded own[] = {{.section = a->list.section, .n = a->list.count},
                                    {.section = b->list.section, .n = b->list.count}};
    return decode_two(line, (const struct kvc_shape[]){a->shape, b->shape}, own,
                      (const uint8_t *[]){a->source, b->source});
}

static void coded_rows_free(struct coded_rows *x) {
    free(x->source);
    kvc_sections_free(&x->list);
}

/* Blocks of other numbers of rows, streams, lanes and models; beside a RAW block or a damaged one,
 * neither is decoded. */
static void two_blocks_at_once(void **state) {
    static const uint64_t tokens[] = {20, 110, 256};
    enum { BLOCKS = 6, DIM = 96 };
    const struct kvc_pipeline line = pipeline_of("split");
    (void)state;
    assert_false(decodes_two(&(struct kvc_pipeline){.n = 0}));
    const struct kvc_pipeline fast = pipeline_of("fast");
    assert_false(decodes_two(&fast));
    if (!decodes_two(&line)) skip();
    for (size_t d = 0; d < N_DTYPES; d++) {
        struct coded_rows x[BLOCKS], raw = code_rows("split", dtypes[d], 12, DIM, GARBAGE);
        for (size_t i = 0; i < BLOCKS; i++)
            x[i] = code_rows(recipes[i % 2], dtypes[d], tokens[i / 2], DIM,
                             i % 3 ? TWO_VALUES : CONSTANT_CHANNELS);
        assert_true(is_raw(&raw.list));
        for (size_t i = 0; i < BLOCKS; i++) {
            assert_false(is_raw(&x[i].list));
            assert_int_equal(decode_coded_two(&line, &x[i], &raw), 1);
            assert_int_equal(decode_coded_two(&line, &raw, &x[i]), 1);
            for (size_t k = 0; k < BLOCKS; k++)
                assert_int_equal(decode_coded_two(&line, &x[i], &x[k]), 0);
        }
        for (size_t s = 0; s < x[0].list.count; s++) {
            x[0].list.section[s].raw_size++;
            assert_int_equal(decode_coded_two(&line, &x[0], &x[1]), 1);
            assert_int_equal(decode_coded_two(&line, &x[5], &x[0]), 1);
            x[0].list.section[s].raw_size--;
        }
        for (size_t i = 0; i < BLOCKS; i++) coded_rows_free(&x[i]);
        coded_rows_free(&raw);
    }
}

/* --- damage --- */

struct damage {
    const char *recipe;
    struct kvc_pipeline line;
    struct kvc_shape shape;
    enum kind kind;
    struct kvc_section *section; /* apart */
    size_t n;
    uint8_t *rows;
    size_t tried, refused;
    enum kvc_section_type type; /* of the section that is being damaged */
};

static int try(struct damage *x, const struct kvc_section *section, size_t n) {
    struct kvc_error e;
    int status = decode(&x->line, &x->shape, x->rows, section, n, &e);
    x->tried++;
    x->refused += status != 0;
    return status;
}

static void must_refuse(struct damage *x, const struct kvc_section *section, size_t n,
                        const char *what) {
    if (!try(x, section, n))
        fail_msg("%s, %s, section %s: %s is not refused", x->recipe,
                 kvc_dtype_info(x->shape.dtype)->name, kvc_section_name(x->type), what);
}

static void flip_bits(struct damage *x, size_t i) {
    const size_t tried = x->tried, refused = x->refused;
    uint8_t *bytes = (uint8_t *)(uintptr_t)x->section[i].data; /* memory of apart() */
    for (size_t bit = 0; bit < 8 * (size_t)x->section[i].size; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        try(x, x->section, x->n);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    /* rans.md: most damage shows in how a stream ends (unless symbols take a whole number of bits
     * each) */
    if (x->type == KVC_SECTION_CODES && x->kind != TWO_VALUES &&
        strncmp(x->recipe, "split", 5) == 0)
        assert_true((x->refused - refused) * 10 > (x->tried - tried) * 9);
}

/* Shorter and longer sections, whose directory entry agrees where they are stored. Pairs of bytes
 * may be missing in ESCAPES, or more of them be there, and only the hash tells. */
static void cut_and_extend(struct damage *x, size_t i) {
    const struct kvc_section whole = x->section[i];
    const int pairs = whole.type == KVC_SECTION_ESCAPES;
    for (uint32_t size = 0; size < whole.size + 40;
         size += size + 20 < whole.size && size > 40 ? 7 : 1) {
        if (size == whole.size) continue;
        uint8_t *bytes = get_memory(size);
        for (uint32_t b = 0; b < size; b++)
            bytes[b] = b < whole.size ? whole.data[b] : random_byte();
        x->section[i].data = bytes;
        x->section[i].size = size;
        if (whole.coder == KVC_CODER_STORE) x->section[i].raw_size = size;
        if (pairs && size && size % 2 == 0) try(x, x->section, x->n);
        else must_refuse(x, x->section, x->n, size < whole.size ? "a cut" : "an addition");
        free(bytes);
        x->section[i] = whole;
    }
}

static void change_entry(struct damage *x, size_t i) {
    static const uint64_t sizes[] = {0, 1, 255, 65536, UINT64_C(1) << 32, UINT64_MAX};
    struct kvc_section *s = &x->section[i];
    const struct kvc_section whole = *s;
    for (unsigned type = 0; type < 256; type++) {
        s->type = (uint8_t)type;
        if (type != whole.type) must_refuse(x, x->section, x->n, "another type");
    }
    *s = whole;
    for (unsigned index = 0; index < 256; index++) {
        s->index = (uint8_t)index;
        if (index != whole.index) must_refuse(x, x->section, x->n, "another index");
    }
    *s = whole;
    for (unsigned coder = 0; coder < 256; coder++) {
        s->coder = (uint8_t)coder;
        if (coder != whole.coder) must_refuse(x, x->section, x->n, "another byte coder");
    }
    *s = whole;
    for (unsigned stage = 1; stage < 256; stage++) {
        s->stage = (uint8_t)stage;
        must_refuse(x, x->section, x->n, "another stage");
    }
    *s = whole;
    s->raw_size++;
    must_refuse(x, x->section, x->n, "a greater decoded size");
    s->raw_size -= 2;
    must_refuse(x, x->section, x->n, "a smaller decoded size");
    for (unsigned k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        s->raw_size = sizes[k];
        if (s->raw_size != whole.raw_size) must_refuse(x, x->section, x->n, "another decoded size");
    }
    *s = whole;
}

/* Section i left out, twice, in every other's place, and RAW beside the others. Where a section may
 * be absent, only the hash tells that it is gone. */
static void rearrange(struct damage *x, size_t i) {
    const size_t n = x->n;
    struct kvc_section *list = get_memory((n + 1) * sizeof *list);
    const int optional = x->type == KVC_SECTION_ESCAPES || x->type == KVC_SECTION_PARAMS;
    for (size_t j = 0; j < n - 1; j++) list[j] = x->section[j + (j >= i)];
    if (optional) try(x, list, n - 1);
    else must_refuse(x, list, n - 1, "none");
    for (size_t at = 0; at <= n; at++) {
        for (size_t j = 0; j <= n; j++)
            list[j] = j == at ? x->section[i] : x->section[j - (j > at)];
        must_refuse(x, list, n + 1, "one more");
        uint8_t none = 0;
        list[at] = (struct kvc_section){.type = KVC_SECTION_RAW, .data = &none};
        must_refuse(x, list, n + 1, "an additional RAW");
    }
    for (size_t at = 0; at < n; at++) {
        if (at == i) continue;
        memcpy(list, x->section, n * sizeof *list);
        list[i] = x->section[at];
        list[at] = x->section[i];
        must_refuse(x, list, n, "another order");
    }
    free(list);
}

static void damage(const char *recipe, enum kvc_dtype dtype, uint64_t tokens, uint64_t dim,
                   enum kind kind, int turning) {
    struct damage x = {.recipe = recipe,
                       .line = pipeline_of(recipe),
                       .shape = {dtype, tokens, 1, dim},
                       .kind = kind};
    struct kvc_sections list;
    uint8_t *source = get_memory(bytes_of(&x.shape));
    struct kvc_error e;
    if (turning) fill_turning(source, &x.shape, (size_t)dim, 0, 0, 1e4, 0);
    else fill(source, &x.shape, kind);
    encode(recipe, &x.shape, source, &list);
    if (is_raw(&list))
        fail_msg("%s, %s: RAW, nothing to damage", recipe, kvc_dtype_info(dtype)->name);
    x.n = list.count;
    x.section = apart(list.section, list.count);
    x.rows = get_memory(bytes_of(&x.shape) + GUARD);
    for (size_t i = 0; i < x.n; i++) {
        x.type = x.section[i].type;
        flip_bits(&x, i);
        cut_and_extend(&x, i);
        change_entry(&x, i);
        rearrange(&x, i);
    }
    /* all is as it was */
    assert_int_equal(decode(&x.line, &x.shape, x.rows, x.section, x.n, &e), 0);
    assert_memory_equal(x.rows, source, bytes_of(&x.shape));
    free_apart(x.section, x.n);
    free(x.rows);
    free(source);
    kvc_sections_free(&list);
}

static void damaged_split(void **state) {
    (void)state;
    for (size_t d = 0; d < N_DTYPES; d++) damage("split", dtypes[d], 12, 32, TWO_VALUES, 0);
    for (size_t d = 0; d < 3; d++) damage("split", dtypes[d], 16, 40, NORMAL, 0);
    damage("split:stream=1024", KVC_BF16, 110, 17, NORMAL, 0);
    damage("split", KVC_Q8_0, 20, 32, CONSTANT_CHANNELS, 0);
    damage("split", KVC_Q5_1, 40, 32, CONSTANT_CHANNELS, 0);
    damage("split", KVC_BF16, 100, 16, NORMAL, 1);
}

static void damaged_fast(void **state) {
    (void)state;
    for (size_t d = 0; d < 3; d++) {
        damage("fast", dtypes[d], 40, 20, dtypes[d] == KVC_F16 ? HUGE_MEANS : NORMAL, 0);
        damage("fast", dtypes[d], 12, 32, TWO_VALUES, 0);
        damage("fast", dtypes[d], 20, 33, dtypes[d] == KVC_F16 ? CONSTANT_CHANNELS : ZERO_ROWS, 0);
    }
}

static void damaged_raw(void **state) {
    (void)state;
    for (size_t d = 0; d < N_DTYPES; d++)
        for (size_t r = 0; r < N_RECIPES; r++) {
            struct damage x = {.recipe = recipes[r],
                               .line = pipeline_of(recipes[r]),
                               .shape = {dtypes[d], 2, 1, 32},
                               .type = KVC_SECTION_RAW};
            struct kvc_sections list;
            uint8_t *source = get_memory(bytes_of(&x.shape));
            fill(source, &x.shape, GARBAGE);
            encode(recipes[r], &x.shape, source, &list);
            assert_true(is_raw(&list));
            x.n = 1;
            x.section = apart(list.section, 1);
            x.rows = get_memory(bytes_of(&x.shape) + GUARD);
            flip_bits(&x, 0);
            assert_int_equal(x.refused, 0);
            cut_and_extend(&x, 0);
            change_entry(&x, 0);
            rearrange(&x, 0);
            free_apart(x.section, 1);
            free(x.rows);
            free(source);
            kvc_sections_free(&list);
        }
}

/* --- arguments --- */

static void arguments(void **state) {
    (void)state;
    static const char *const good[] = {"split", "fast", "split:stream=1024",
                                       "split:stream=16777216"};
    static const char *const bad[] = {"split:stream=1023",
                                      "split:stream=16777217",
                                      "split:stream=",
                                      "split:stream=-1",
                                      "split:stream=65536x",
                                      "split:stream=+4096",
                                      "split:stream= 4096",
                                      "split:65536",
                                      "split:stream=99999999999999999999",
                                      "split:stream=4096:stream=4096",
                                      "split:level=1",
                                      "fast:1",
                                      "fast:stream=4096",
                                      "fast:"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) assert_recipe(good[i], good[i]);
    assert_recipe("split:stream=65536", "split");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_no_recipe(bad[i]);
    assert_ptr_equal(pipeline_of("split").step[0].stage, kvc_stage_by_id(3));
    assert_ptr_equal(pipeline_of("fast").step[0].stage, kvc_stage_by_id(4));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arguments),
        cmocka_unit_test(no_rows_no_sections),
        cmocka_unit_test(every_kind_of_rows),
        cmocka_unit_test(every_number_of_rows),
        cmocka_unit_test(every_number_of_channels),
        cmocka_unit_test(every_pattern),
        cmocka_unit_test(large_blocks),
        cmocka_unit_test(channels_shrink),
        cmocka_unit_test(what_does_not_shrink_is_raw),
        cmocka_unit_test(turning_channels_are_found),
        cmocka_unit_test(turning_costs_little),
        cmocka_unit_test(every_kernel_table),
        cmocka_unit_test(two_blocks_at_once),
        cmocka_unit_test(damaged_raw),
        cmocka_unit_test(damaged_split),
        cmocka_unit_test(damaged_fast),
    };
    if (print_digest(argc, argv, digest_of_all)) return 0;
    program = argv[0];
    return cmocka_run_group_tests_name("split", tests, NULL, NULL);
}
