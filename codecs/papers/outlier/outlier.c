/* outlier.c: the stage that takes the extremes of each vector out of the matrix, exactly. Spec:
 * outlier.md. */
#include "codecs/floats.h"
#include "codecs/little_endian.h"
#include "codecs/memory.h"
#include "codecs/program.h"
#include "codecs/select.h"
#include "codecs/stage.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SHARE, N_ARGS };
enum { ONES = 32 };

static const struct kvc_arg arguments[N_ARGS] = {
    [SHARE] =
        {.kind = KVC_ARG_REAL, .least = 0.0001, .most = 0.5, .otherwise = 0.02, .required = 1},
};

static int outlier_accepts(const struct kvc_stage_args *args, const struct kvc_shape *shape,
                           struct kvc_error *e) {
    (void)args;
    if (shape->heads * shape->dim <= 65536) return 1;
    kvc_fail(e, KVC_ERR_UNSUPPORTED, "rows of more than 65 536 values have no index of two bytes");
    return 0;
}

/* outliers at an end up to which extremes of parts of a vector limit the search */
enum { FEW = 32 };

/* Returns the k-th largest of n numbers times sign, times sign; k <= FEW. Most numbers are compared
 * once. */
static float kth(const float *x, size_t n, size_t k, float sign) {
    float far[FEW], nearest = -INFINITY;
    for (size_t i = 0, have = 0; i < n; i++) {
        const float v = sign * x[i];
        if (have == k && v <= nearest) continue;
        size_t at = have < k ? have++ : k - 1;
        for (; at && v > far[at - 1]; at--) far[at] = far[at - 1];
        far[at] = v;
        nearest = far[have - 1];
    }
    return sign * nearest;
}

/* A block as vectors: channels of K, rows of V. */
struct vectors {
    size_t n, length;  /* vectors, values in each */
    size_t step, next; /* between values of one, between vectors */
    size_t index_bytes, value_bytes;
};

static void outlier_measure(struct vectors *v, const struct kvc_block *block,
                            enum kvc_dtype dtype) {
    const size_t rows = (size_t)block->shape.tokens,
                 width = (size_t)(block->shape.heads * block->shape.dim);
    const int by_row = block->role == KVC_SELECT_V;
    v->n = by_row ? rows : width;
    v->length = by_row ? width : rows;
    v->step = by_row ? 1 : width;
    v->next = by_row ? width : 1;
    v->index_bytes = v->length <= 256 ? 1 : 2;
    v->value_bytes = kvc_dtype_info(dtype)->size;
}

/* GEAR's rule: of n values floor(n * share / 2) at each end, at least one. */
static size_t how_many(const struct kvc_stage_args *args, size_t n) {
    const size_t k = (size_t)floor((double)n * args->f[SHARE] / 2);
    return k ? k : 1;
}

/* --- channels of K: their extremes are those of the whole segment --- */

/* One end of every channel: the furthest values, and among equals the first rows. */
struct ends {
    float sign; /* -1 at the lower end: times it, the furthest is the maximum */
    /* [channel][room]: keys of the furthest, a heap with the nearest at its top once it is full */
    uint64_t *far;
    size_t *n;      /* by channel */
    float *limit;   /* by channel: values that are nearer are not among them */
    uint64_t *last; /* by channel: the key of the last one that is an outlier */
};

struct state {
    size_t width, room; /* room: maximum of outliers at each end of a channel */
    uint64_t rows;      /* that came by */
    struct ends end[2];
    double *sum;      /* by channel */
    float *mean;      /* by channel; while looking, the sum over a block */
    uint16_t *beyond; /* channels of a row */
};

/* The key of a value of a row: the largest is the furthest, and among equals that of the first row.
 */
static uint64_t key_of(const struct ends *d, float value, uint64_t row) {
    /* a tensor has at most 2^31 rows */
    return kvc_select_key(d->sign * value, UINT32_MAX - (uint32_t)row);
}

static void outlier_end(void *state) {
    struct state *s = state;
    if (!s) return;
    for (int i = 0; i < 2; i++) {
        free(s->end[i].far);
        free(s->end[i].n);
        free(s->end[i].limit);
        free(s->end[i].last);
    }
    free(s->sum);
    free(s->mean);
    free(s->beyond);
    free(s);
}

static int outlier_begin(const struct kvc_stage_args *args, const struct kvc_encoding *x,
                         const struct kvc_block *like, void **state, struct kvc_error *e) {
    if (like->role == KVC_SELECT_V) return 0;
    struct state *s = calloc(1, sizeof *s);
    if (!s) return kvc_fail_memory(e, "outliers");
    *state = s;
    s->width = (size_t)(like->shape.heads * like->shape.dim);
    s->room = how_many(args, (size_t)x->segment_rows);
    s->sum = calloc(s->width, sizeof *s->sum);
    s->mean = calloc(s->width, sizeof *s->mean);
    s->beyond = kvc_alloc(s->width, sizeof *s->beyond);
    int complete = s->sum && s->mean && s->beyond;
    for (int i = 0; i < 2; i++) {
        struct ends *d = &s->end[i];
        d->far = kvc_alloc(s->width, s->room * sizeof *d->far);
        d->n = calloc(s->width, sizeof *d->n);
        d->limit = kvc_alloc(s->width, sizeof *d->limit);
        d->last = kvc_alloc(s->width, sizeof *d->last);
        complete = complete && d->far && d->n && d->limit && d->last;
        d->sign = i ? 1 : -1;
        for (size_t c = 0; d->limit && c < s->width; c++) d->limit[c] = -d->sign * INFINITY;
    }
    return complete ? 0 : kvc_fail_memory(e, "outliers");
}

/* Puts a value among the furthest of its channel, if it is. */
static void outlier_note(struct ends *d, size_t room, size_t channel, float value, uint64_t row) {
    const uint64_t one = key_of(d, value, row);
    uint64_t *heap = d->far + channel * room;
    size_t n = d->n[channel], at;
    if (n < room) {
        d->n[channel]++;
        for (at = n; at && one < heap[(at - 1) / 2]; at = (at - 1) / 2)
            heap[at] = heap[(at - 1) / 2];
        heap[at] = one;
    } else {
        if (one <= heap[0]) return;
        size_t child;
        for (at = 0; (child = 2 * at + 1) < n; at = child) {
            if (child + 1 < n) child += heap[child + 1] < heap[child];
            if (one <= heap[child]) break;
            heap[at] = heap[child];
        }
        heap[at] = one;
    }
    if (d->n[channel] == room) d->limit[channel] = d->sign * kvc_select_value(heap[0]);
}

/* Sets limits that at least s->room values of each channel of a block reach, at either end: those
 * of the extremes of its parts, some rows each. Then few values are noted before the first block
 * has filled the heaps. */
static int limit_first(struct state *s, const float *x, size_t rows, struct kvc_error *e) {
    const size_t parts = 2 * s->room, each = rows / parts, all = parts * s->width;
    float part[2 * FEW];
    if (!each || s->room > FEW) return 0;
    float *const least = kvc_alloc(all, 2 * sizeof *least);
    if (!least) return kvc_fail_memory(e, "outliers");
    float *const most = least + all;
    for (size_t p = 0; p < parts; p++)
        for (size_t t = 0; t < each; t++, x += s->width) {
            float *const to[2] = {least + p * s->width, most + p * s->width};
            for (int i = 0; i < 2 && !t; i++) memcpy(to[i], x, s->width * sizeof *x);
            if (t) kvc_kernels_get()->widen_ranges(to[0], to[1], x, s->width);
        }
    for (size_t c = 0; c < s->width; c++)
        for (int i = 0; i < 2; i++) {
            for (size_t p = 0; p < parts; p++) part[p] = (i ? most : least)[p * s->width + c];
            s->end[i].limit[c] = kth(part, parts, s->room, s->end[i].sign);
        }
    free(least);
    return 0;
}

static int outlier_look(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                        struct kvc_error *e) {
    struct state *s = state;
    const struct kvc_kernels *f = kvc_kernels_get();
    const float *x = (const float *)(const void *)block->rows;
    (void)args;
    if (!s->rows && limit_first(s, x, (size_t)block->shape.tokens, e)) return -1;
    memset(s->mean, 0, s->width * sizeof *s->mean);
    for (size_t t = 0; t < block->shape.tokens; t++, x += s->width) {
        const uint64_t row = kvc_block_row(block, t);
        const size_t n = f->find_beyond(s->beyond, x, s->end[0].limit, s->end[1].limit, s->width,
                                        1);
        for (size_t i = 0; i < n; i++) {
            const size_t c = s->beyond[i];
            if (x[c] >= s->end[1].limit[c]) outlier_note(&s->end[1], s->room, c, x[c], row);
            if (x[c] <= s->end[0].limit[c]) outlier_note(&s->end[0], s->room, c, x[c], row);
        }
        f->add_scaled(s->mean, x, 1, s->width); /* binary32 over a block */
    }
    for (size_t c = 0; c < s->width; c++) s->sum[c] += (double)s->mean[c]; /* binary64 over all */
    s->rows += block->shape.tokens;
    return 0;
}

static int outlier_settle(const struct kvc_stage_args *args, void *state, uint8_t stage,
                          struct kvc_sections *side, struct kvc_error *e) {
    struct state *s = state;
    (void)stage, (void)side, (void)e;
    if (!s) return 0;
    const size_t k = how_many(args, (size_t)s->rows);
    for (size_t c = 0; c < s->width; c++) {
        s->mean[c] = s->rows ? (float)(s->sum[c] / (double)s->rows) : 0;
        for (int i = 0; i < 2; i++) {
            struct ends *d = &s->end[i];
            uint64_t *far = d->far + c * s->room;
            d->last[c] = s->rows > 2 * k ? kvc_select(far, d->n[c], d->n[c] - k)
                                         : kvc_select_key(INFINITY, UINT32_MAX);
            d->limit[c] = d->sign * kvc_select_value(d->last[c]);
        }
    }
    return 0;
}

/* --- rows of V --- */

/* up to FEW outliers at an end, the extremes of at least LANES parts of a row limit the search */
enum { LANES = 64 };

/* Room for finding the extremes of a row. */
struct finding {
    uint64_t *low, *high; /* keys of values that may be among the smallest, the largest */
    float *least, *most;  /* of parts of the row */
    uint16_t *beyond;
};

static void finding_free(struct finding *f) {
    free(f->low);
    free(f->least);
    free(f->beyond);
}

static int finding_init(struct finding *f, size_t n, struct kvc_error *e) {
    f->low = kvc_alloc(n, 2 * sizeof *f->low);
    f->least = kvc_alloc(n, 2 * sizeof *f->least);
    f->beyond = kvc_alloc(n, sizeof *f->beyond);
    if (!f->low || !f->least || !f->beyond) return kvc_fail_memory(e, "outliers");
    f->high = f->low + n;
    f->most = f->least + n;
    return 0;
}

/* Sets limits that at least the k smallest of x, and the k largest, reach: those of the extremes of
 * parts of x. */
static void find_limits(struct finding *f, const float *x, size_t n, size_t k, float limit[2]) {
    const size_t parts = 8 * k < LANES ? LANES : 8 * k;
    limit[0] = INFINITY;
    limit[1] = -INFINITY;
    if (k == 1) kvc_kernels_get()->range(x, n, &limit[0], &limit[1]);
    if (k == 1 || k > FEW || n < 2 * parts) return;
    memcpy(f->least, x, parts * sizeof *x);
    memcpy(f->most, x, parts * sizeof *x);
    for (size_t i = parts; i < n; i += parts)
        kvc_kernels_get()->widen_ranges(f->least, f->most, x + i, n - i < parts ? n - i : parts);
    limit[0] = kth(f->least, parts, k, -1);
    limit[1] = kth(f->most, parts, k, 1);
}

/* Finds the indices of the k smallest of x and of its k largest, ascending. Among equals the first
 * are smallest and the last largest, so that none is both. */
static void find_extremes(struct finding *f, const float *x, size_t n, size_t k, uint16_t *index) {
    float limit[2];
    size_t lows = 0, highs = 0;
    find_limits(f, x, n, k, limit);
    const size_t found = kvc_kernels_get()->find_beyond(f->beyond, x, &limit[0], &limit[1], n, 0);
    for (size_t i = 0; i < found; i++) {
        const uint16_t at = f->beyond[i];
        if (x[at] <= limit[0]) f->low[lows++] = kvc_select_key(x[at], at);
        if (x[at] >= limit[1]) f->high[highs++] = kvc_select_key(x[at], at);
    }
    const uint64_t last_low = kvc_select(f->low, lows, k - 1),
                   first_high = kvc_select(f->high, highs, highs - k);
    for (size_t i = 0, at = 0; i < found; i++) {
        const uint64_t key = kvc_select_key(x[f->beyond[i]], f->beyond[i]);
        if (key <= last_low || key >= first_high) index[at++] = f->beyond[i];
    }
}

static float mean_of(const float *x, size_t n) {
    static const float ones[ONES] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                     1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    double sum = 0;
    for (size_t i = 0; i < n; i += ONES)
        sum += (double)kvc_kernels_get()->dot(x + i, ones, n - i < ONES ? n - i : ONES);
    return (float)(sum / (double)n);
}

static int encode_rows(const struct kvc_stage_args *args, struct kvc_block *block, uint8_t stage,
                       struct kvc_sections *out, struct kvc_error *e) {
    struct vectors v;
    float *x = (float *)(void *)block->rows;
    outlier_measure(&v, block, block->own);
    const size_t k = how_many(args, v.length), each = 2 * k, all = v.n * each;
    if (each > v.length) return 0;
    const size_t size = 2 + all * (v.index_bytes + v.value_bytes);
    float *values = kvc_alloc(all, sizeof *values);
    uint16_t *index = kvc_alloc(each, sizeof *index);
    struct finding f = {0};
    uint8_t *bytes = malloc(size);
    int status = values && index && bytes ? finding_init(&f, v.length, e)
                                          : kvc_fail_memory(e, "outliers");
    for (size_t t = 0; t < v.n && !status; t++) {
        float *place = x + t * v.length;
        find_extremes(&f, place, v.length, k, index);
        const float mean = mean_of(place, v.length);
        for (size_t i = 0; i < each; i++) {
            uint8_t *at = bytes + 2 + (t * each + i) * v.index_bytes;
            values[t * each + i] = place[index[i]];
            place[index[i]] = mean;
            if (v.index_bytes == 2) put_u16(at, index[i]);
            else *at = (uint8_t)index[i];
        }
    }
    if (!status) {
        put_u16(bytes, (uint16_t)k);
        kvc_from_floats(bytes + 2 + all * v.index_bytes, values, all, block->own);
        status = kvc_sections_add(out, KVC_SECTION_OUTLIERS, stage, 0, bytes, size, 0, e);
    }
    free(values);
    free(index);
    finding_free(&f);
    free(bytes);
    return status;
}

enum { MOST = 255 }; /* outliers of a channel in a block */

static int encode_channels(const struct state *s, struct kvc_block *block, uint8_t stage,
                           struct kvc_sections *out, struct kvc_error *e) {
    const size_t width = s->width, rows = (size_t)block->shape.tokens,
                 value_bytes = kvc_dtype_info(block->own)->size;
    float *x = (float *)(void *)block->rows;
    uint8_t *count = calloc(width, 1);
    size_t *at = kvc_alloc(width, sizeof *at), n = 0, all = 0;
    /* numbers of outliers in the block, row after row */
    uint32_t *found = kvc_alloc(rows, width * sizeof *found);
    int status = count && at && found ? 0 : kvc_fail_memory(e, "outliers");
    for (size_t t = 0; t < rows && !status; t++) {
        const float *row = x + t * width;
        const uint64_t number = kvc_block_row(block, t);
        const size_t many = kvc_kernels_get()->find_beyond(s->beyond, row, s->end[0].limit,
                                                           s->end[1].limit, width, 1);
        for (size_t i = 0; i < many; i++) {
            const size_t c = s->beyond[i];
            const struct ends *d = s->end;
            if (key_of(&d[1], row[c], number) < d[1].last[c] &&
                key_of(&d[0], row[c], number) < d[0].last[c])
                continue;
            if (count[c] == MOST) continue;
            count[c]++;
            found[n++] = (uint32_t)(t * width + c);
        }
    }
    for (size_t c = 0; c < width && !status; c++) {
        at[c] = all;
        all += count[c];
    }
    if (status || !all) {
        free(found);
        free(count);
        free(at);
        return status;
    }
    const size_t size = 2 + width + all * (1 + value_bytes);
    float *values = kvc_alloc(all, sizeof *values);
    uint8_t *bytes = malloc(size);
    status = values && bytes ? 0 : kvc_fail_memory(e, "outliers");
    if (!status) {
        put_u16(bytes, 0);
        memcpy(bytes + 2, count, width);
        for (size_t i = 0; i < n; i++) {
            const size_t c = found[i] % width;
            bytes[2 + width + at[c]] = (uint8_t)(found[i] / width);
            values[at[c]++] = x[found[i]];
            x[found[i]] = s->mean[c];
        }
        kvc_from_floats(bytes + 2 + width + all, values, all, block->own);
        status = kvc_sections_add(out, KVC_SECTION_OUTLIERS, stage, 0, bytes, size, 0, e);
    }
    free(values);
    free(bytes);
    free(found);
    free(count);
    free(at);
    return status;
}

static int outlier_encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                          uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    if (!block->shape.tokens) return 0;
    return state ? encode_channels(state, block, stage, out, e)
                 : encode_rows(args, block, stage, out, e);
}

/* OUTLIERS, opened. */
struct opened {
    const struct kvc_section *section;
    struct vectors vectors;
    /* all: 0 where the block has no outliers; each: outliers of every vector, or 0: count[vector]
     */
    size_t all, each;
    const uint8_t *count, *index, *value;
};

static int outlier_open_sections(const struct kvc_stored *stored, const struct kvc_block *block,
                                 struct opened *r, struct kvc_error *e) {
    struct vectors *const v = &r->vectors;
    memset(r, 0, sizeof *r);
    if (!stored->n) return 0;
    const struct kvc_section *s = r->section = kvc_section_only(stored->section, stored->n,
                                                                KVC_SECTION_OUTLIERS, e);
    if (!s) return -1;
    outlier_measure(v, block, block->own);
    if (s->size < 2) return kvc_fail(e, KVC_ERR_DAMAGED, "section OUTLIERS is too short");
    const size_t k = get_u16(s->data);
    r->each = 2 * k;
    r->count = s->data + 2;
    r->all = v->n * r->each;
    if (r->each > v->length)
        return kvc_fail(e, KVC_ERR_DAMAGED, "%zu outliers at each end of %zu values", k, v->length);
    if (!k) {
        if (s->size - 2 < v->n)
            return kvc_fail(e, KVC_ERR_DAMAGED, "section OUTLIERS is too short");
        for (size_t i = 0; i < v->n; i++) r->all += r->count[i];
    }
    if (!r->all) return kvc_fail(e, KVC_ERR_DAMAGED, "section OUTLIERS has no outliers");
    r->index = r->count + (k ? 0 : v->n);
    r->value = r->index + r->all * v->index_bytes;
    const size_t size = (size_t)(r->value - s->data) + r->all * v->value_bytes;
    if (s->size != size)
        return kvc_fail(e, KVC_ERR_DAMAGED, "section OUTLIERS has %u bytes where %zu are due",
                        s->size, size);
    return 0;
}

static int outlier_decode(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                          struct kvc_block *block, struct kvc_error *e) {
    (void)args;
    struct opened r;
    float *x = (float *)(void *)block->rows;
    if (outlier_open_sections(stored, block, &r, e)) return -1;
    if (!r.all) return 0;
    const struct vectors v = r.vectors;
    float *value = kvc_alloc(r.all, sizeof *value);
    if (!value) return kvc_fail_memory(e, "outliers");
    kvc_to_floats(value, r.value, r.all, block->own);
    int status = 0;
    size_t k = 0;
    for (size_t i = 0; i < v.n && !status; i++) {
        const size_t n = r.each ? r.each : r.count[i];
        size_t from = 0;
        for (size_t j = 0; j < n && !status; j++, k++) {
            const uint8_t *p = r.index + k * v.index_bytes;
            const size_t at = v.index_bytes == 2 ? get_u16(p) : p[0];
            if (at < from || at >= v.length)
                status = kvc_fail(e, KVC_ERR_DAMAGED, "outlier %zu of vector %zu is out of place",
                                  j, i);
            else if (!isfinite(value[k]))
                status = kvc_fail(e, KVC_ERR_DAMAGED, "outlier %zu of vector %zu is not finite", j,
                                  i);
            else x[i * v.next + at * v.step] = value[k];
            from = at + 1;
        }
    }
    free(value);
    return status;
}

static int outlier_lower(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                         struct kvc_block *block, struct kvc_program *program,
                         struct kvc_error *e) {
    (void)args;
    struct opened r;
    struct kvc_device_op op = kvc_program_op_of(KVC_OP_OUTLIERS, &block->shape);
    if (outlier_open_sections(stored, block, &r, e)) return -1;
    if (!r.all) return 0;
    const struct vectors v = r.vectors;
    const uint8_t *first = r.section->data;
    const uint64_t base = kvc_program_bytes(program, r.section, r.section->size, NULL, e);
    if (!base) return -1;
    if (!r.each) {
        uint32_t *start = kvc_program_table(program, (v.n + 1) * sizeof *start, &op.outliers.start,
                                            e),
                 at = 0;
        if (!start) return -1;
        for (size_t i = 0; i < v.n; at += r.count[i++]) start[i] = at;
        start[v.n] = at;
    }
    op.outliers.index = base + (uint64_t)(r.index - first);
    op.outliers.value = base + (uint64_t)(r.value - first);
    op.outliers.index_bytes = (uint32_t)v.index_bytes;
    op.outliers.each = (uint32_t)r.each;
    op.outliers.dtype = (uint32_t)block->own;
    op.outliers.columns = block->role != KVC_SELECT_V;
    op.outliers.length = (uint32_t)v.length;
    return kvc_program_op(program, &op, e);
}

const struct kvc_stage kvc_stage_outlier = {
    .id = 9,
    .name = "outlier",
    .summary = "the extremes of each vector apart, exactly",
    .flags = KVC_STAGE_FINITE | KVC_STAGE_FLOAT | KVC_STAGE_LOOKS,
    .args = arguments,
    .n_args = N_ARGS,
    .accepts = outlier_accepts,
    .begin = outlier_begin,
    .look = outlier_look,
    .settle = outlier_settle,
    .end = outlier_end,
    .encode = outlier_encode,
    .decode = outlier_decode,
    .lower = outlier_lower,
};
