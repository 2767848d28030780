/* outlier.c: the stage that takes the extremes of each vector out of the matrix, exactly. Spec: outlier.md. */
#include "codecs/args.h"
#include "codecs/ends.h"
#include "codecs/floats.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SHARE, N_ARGS };
enum { TILE = 16 };  /* channels that are turned into vectors together */
enum { CHUNK = 16 }; /* values whose extremes are found first */
enum { ONES = 32 };

static const struct kvc_arg arguments[N_ARGS] = {
    [SHARE] = {.kind = KVC_ARG_REAL, .least = 0.0001, .most = 0.5, .otherwise = 0.02, .required = 1},
};

static int parse(const char *text, struct kvc_stage_args *args, struct kvc_error *e) {
    return kvc_args_parse("outlier", arguments, N_ARGS, text, args, e);
}

static void print(const struct kvc_stage_args *args, char *text, size_t size) {
    kvc_args_print(arguments, N_ARGS, args, text, size);
}

static int accepts(const struct kvc_stage_args *args, const struct kvc_shape *shape, struct kvc_error *e) {
    (void)args;
    if (shape->heads * shape->dim <= 65536) return 1;
    kvc_fail(e, KVC_ERR_UNSUPPORTED, "rows of more than 65 536 values have no index of two bytes");
    return 0;
}

/* Extremes of the chunks of a vector. */
struct chunks {
    float low[65536 / CHUNK], high[65536 / CHUNK];
};

/* A block as vectors: channels of K, rows of V. */
struct vectors {
    size_t n, length;       /* vectors, values in each */
    size_t step, next;      /* between values of one, between vectors */
    size_t taken;           /* of each end */
    size_t index_bytes, value_bytes;
};

static void measure(struct vectors *v, const struct kvc_block *block, enum kvc_dtype dtype) {
    const size_t rows = (size_t)block->shape.tokens, width = (size_t)(block->shape.heads * block->shape.dim);
    const int by_row = block->role == KVC_SELECT_V;
    v->n = by_row ? rows : width;
    v->length = by_row ? width : rows;
    v->step = by_row ? 1 : width;
    v->next = by_row ? width : 1;
    v->index_bytes = v->length <= 256 ? 1 : 2;
    v->value_bytes = kvc_dtype_info(dtype)->size;
}

/* GEAR's rule, floor(length * share / 2), for channels through the whole tensor: each block takes what the rule gives at
 * its end less what it gave at its beginning. */
static size_t how_many(const struct kvc_stage_args *args, const struct vectors *v, const struct kvc_block *block) {
    const double half = args->f[SHARE] / 2;
    size_t k;
    if (block->role == KVC_SELECT_V) {
        k = (size_t)floor((double)v->length * half);
    } else {
        const uint64_t first = kvc_ends_row(block, 0), end = first + v->length;
        k = (size_t)(floor((double)end * half) - floor((double)first * half));
    }
    return k < v->length / 2 ? k : v->length / 2;
}

/* Puts i where it belongs among the k greatest found so far, `better` ones first, those met first among equals. */
static size_t insert(const float *x, uint16_t *found, size_t have, size_t k, size_t i, float sign) {
    size_t at = have < k ? have++ : k - 1;
    for (; at && sign * x[i] > sign * x[found[at - 1]]; at--) found[at] = found[at - 1];
    found[at] = (uint16_t)i;
    return have;
}

/* The k-th greatest of n numbers times sign; less than any when there are fewer. */
static float kth(const float *x, size_t n, size_t k, float sign, uint16_t *room) {
    size_t have = 0;
    if (n < k) return -INFINITY;
    for (size_t i = 0; i < n; i++)
        if (have < k || sign * x[i] > sign * x[room[k - 1]]) have = insert(x, room, have, k, i, sign);
    return sign * x[room[k - 1]];
}

/* Indices of the k least of x and of its k greatest, ascending. Among equals the first are least, the last greatest: so
 * none is both. Only chunks whose extremes reach the k-th of all chunks' extremes can have any. */
static void find_extremes(const float *x, size_t n, size_t k, struct chunks *c, uint16_t *index) {
    uint16_t *least = index, *greatest = index + k;
    const size_t chunks = (n + CHUNK - 1) / CHUNK;
    for (size_t i = 0; i < chunks; i++)
        kvc_kernels_get()->range(x + i * CHUNK, n - i * CHUNK < CHUNK ? n - i * CHUNK : CHUNK, &c->low[i], &c->high[i]);
    float limit = kth(c->low, chunks, k, -1, index);
    for (size_t i = 0, have = 0; i < chunks; i++) {
        if (!(-c->low[i] >= limit)) continue;
        for (size_t j = i * CHUNK; j < n && j < (i + 1) * CHUNK; j++)
            if (have < k || x[j] < x[least[k - 1]]) have = insert(x, least, have, k, j, -1);
    }
    limit = kth(c->high, chunks, k, 1, greatest);
    for (size_t i = chunks, have = 0; i-- > 0;) {
        if (!(c->high[i] >= limit)) continue;
        for (size_t j = (i + 1) * CHUNK < n ? (i + 1) * CHUNK : n; j-- > i * CHUNK;)
            if (have < k || x[j] > x[greatest[k - 1]]) have = insert(x, greatest, have, k, j, 1);
    }
    for (size_t i = 1; i < 2 * k; i++) {
        const uint16_t one = index[i];
        size_t at = i;
        for (; at && index[at - 1] > one; at--) index[at] = index[at - 1];
        index[at] = one;
    }
}

static float mean_of(const float *x, size_t n) {
    static const float ones[ONES] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                     1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    double sum = 0;
    for (size_t i = 0; i < n; i += ONES) sum += (double)kvc_kernels_get()->dot(x + i, ones, n - i < ONES ? n - i : ONES);
    return (float)(sum / (double)n);
}

/* Takes the extremes of one vector: x are its values, `place` where they stand in the matrix. */
static void take_vector(const struct vectors *v, const float *x, float *place, struct chunks *chunks, uint16_t *index,
                        uint8_t *indices, float *values) {
    find_extremes(x, v->length, v->taken, chunks, index);
    const float mean = mean_of(x, v->length);
    for (size_t i = 0; i < 2 * v->taken; i++) {
        values[i] = x[index[i]];
        place[index[i] * v->step] = mean;
        indices[i * v->index_bytes] = (uint8_t)(index[i] & 255);
        if (v->index_bytes == 2) indices[i * 2 + 1] = (uint8_t)(index[i] >> 8);
    }
}

static size_t section_bytes(const struct vectors *v) {
    return 2 + v->n * 2 * v->taken * (v->index_bytes + v->value_bytes);
}


static int encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block, uint8_t stage,
                  struct kvc_sections *out, struct kvc_error *e) {
    struct vectors v;
    float *x = (float *)(void *)block->rows;
    (void)state;
    measure(&v, block, block->own);
    v.taken = v.length && v.n ? how_many(args, &v, block) : 0;
    if (!v.taken) return 0;
    const size_t each = 2 * v.taken, all = v.n * each, size = section_bytes(&v);
    float *tile = malloc(TILE * v.length * sizeof *tile), *values = malloc(all * sizeof *values);
    uint16_t *index = malloc(each * sizeof *index);
    struct chunks *chunks = malloc(sizeof *chunks);
    uint8_t *bytes = malloc(size);
    int status = tile && values && index && chunks && bytes ? 0 : kvc_fail_memory(e, "outliers");
    for (size_t first = 0; first < v.n && !status; first += TILE) {
        const size_t n = v.n - first < TILE ? v.n - first : TILE;
        if (v.step != 1)
            for (size_t r = 0; r < v.length; r++)
                for (size_t c = 0; c < n; c++) tile[c * v.length + r] = x[r * v.step + first + c];
        for (size_t i = first; i < first + n; i++) {
            float *place = x + i * v.next;
            if (v.step == 1) memcpy(tile, place, v.length * sizeof *tile);
            take_vector(&v, v.step == 1 ? tile : tile + (i - first) * v.length, place, chunks,
                        index, bytes + 2 + i * each * v.index_bytes, values + i * each);
        }
    }
    if (!status) {
        bytes[0] = (uint8_t)(v.taken & 255);
        bytes[1] = (uint8_t)(v.taken >> 8);
        kvc_from_floats(bytes + 2 + all * v.index_bytes, values, all, block->own);
        status = kvc_sections_add(out, KVC_SECTION_OUTLIERS, stage, 0, bytes, size, 0, e);
    }
    free(tile);
    free(values);
    free(index);
    free(chunks);
    free(bytes);
    return status;
}

static int decode(const struct kvc_stage_args *args, const struct kvc_stored *stored, struct kvc_block *block,
                  struct kvc_error *e) {
    (void)args;
    const struct kvc_section *next = stored->section, *end = next + stored->n, *s;
    struct vectors v;
    float *x = (float *)(void *)block->rows;
    if (stored->n_side) return kvc_section_none_left(stored->side, stored->side + stored->n_side, e);
    if (next == end) return 0;
    if (!(s = kvc_section_take_stored(&next, end, KVC_SECTION_OUTLIERS, 0, e)) || kvc_section_none_left(next, end, e))
        return -1;
    measure(&v, block, block->own);
    if (s->size < 2) return kvc_fail(e, KVC_ERR_DAMAGED, "section OUTLIERS is too short");
    v.taken = s->data[0] | (size_t)s->data[1] << 8;
    if (!v.taken || v.taken > v.length / 2 || !v.n)
        return kvc_fail(e, KVC_ERR_DAMAGED, "%zu outliers at each end of %zu values", v.taken, v.length);
    if (s->size != section_bytes(&v))
        return kvc_fail(e, KVC_ERR_DAMAGED, "section OUTLIERS has %u bytes where %zu are due", s->size, section_bytes(&v));
    const size_t each = 2 * v.taken;
    const uint8_t *indices = s->data + 2, *values = indices + v.n * each * v.index_bytes;
    float *value = malloc(each * sizeof *value);
    int status = value ? 0 : kvc_fail_memory(e, "outliers");
    for (size_t i = 0; i < v.n && !status; i++) {
        size_t from = 0;
        kvc_to_floats(value, values + i * each * v.value_bytes, each, block->own);
        for (size_t j = 0; j < each && !status; j++) {
            const uint8_t *p = indices + (i * each + j) * v.index_bytes;
            const size_t at = v.index_bytes == 2 ? p[0] | (size_t)p[1] << 8 : p[0];
            if (at < from || at >= v.length)
                status = kvc_fail(e, KVC_ERR_DAMAGED, "outlier %zu of vector %zu is out of place", j, i);
            else if (!isfinite(value[j]))
                status = kvc_fail(e, KVC_ERR_DAMAGED, "outlier %zu of vector %zu is not finite", j, i);
            else x[i * v.next + at * v.step] = value[j];
            from = at + 1;
        }
    }
    free(value);
    return status;
}

const struct kvc_stage kvc_stage_outlier = {
    .id = 9,
    .name = "outlier",
    .summary = "the least and greatest of each vector apart, exactly",
    .flags = KVC_STAGE_FINITE | KVC_STAGE_FLOAT,
    .parse = parse,
    .print = print,
    .accepts = accepts,
    .encode = encode,
    .decode = decode,
};
