/* compare.c: matching the rows of two caches and measuring how far their values are apart. */
#include "formats/compare/compare.h"

#include "codecs/memory.h"
#include "formats/cache/scales.h"
#include "kernels/float_bits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PIECE 4096 /* values of a row converted at a time: whole blocks of any dtype */
#define CHUNK_BYTES (UINT64_C(32) << 20) /* rows read at a time, unless one row is more */

/* --- rows by position --- */

struct list {
    void *items;
    uint64_t n;
};

/* Returns room for one more item of `size` bytes at the end; NULL when out of memory. */
static void *list_add(struct list *l, size_t size) {
    void *grown = kvc_room_for_one(l->items, l->n, size);
    if (!grown) return NULL;
    l->items = grown;
    return (char *)l->items + size * (size_t)l->n++;
}

static int add_pair(struct list *runs, uint64_t a, uint64_t b) {
    struct kvc_run *last = runs->n ? (struct kvc_run *)runs->items + (runs->n - 1) : NULL;
    if (last && last->a + last->n == a && last->b + last->n == b) {
        last->n++;
        return 0;
    }
    struct kvc_run *run = list_add(runs, sizeof *run);
    if (!run) return -1;
    *run = (struct kvc_run){a, b, 1};
    return 0;
}

static int add_position(struct list *spans, int64_t position) {
    struct kvc_span *last = spans->n ? (struct kvc_span *)spans->items + (spans->n - 1) : NULL;
    /* ascending: + 1 cannot overflow */
    if (last && (last->last == position || last->last + 1 == position)) {
        last->last = position;
        return 0;
    }
    struct kvc_span *span = list_add(spans, sizeof *span);
    if (!span) return -1;
    *span = (struct kvc_span){position, position};
    return 0;
}

int kvc_match_rows(const struct kvc_cells *a, const struct kvc_cells *b, int64_t first,
                   int64_t last, struct kvc_matching *m, struct kvc_error *e) {
    struct list runs = {0}, only[2] = {{0}, {0}};
    uint64_t i = 0, j = 0, rows = 0;
    int failed = 0;
    while (!failed && (i < a->n || j < b->n)) {
        int in_a = i < a->n, in_b = j < b->n;
        int64_t x = in_a ? kvc_cells_position(a, i) : 0, y = in_b ? kvc_cells_position(b, j) : 0;
        if (in_a && in_b && x != y) { /* the lower position has no match */
            in_a = x < y;
            in_b = !in_a;
        }
        int64_t position = in_a ? x : y;
        if (position >= first && position <= last) {
            if (in_a && in_b) {
                failed = add_pair(&runs, i, j);
                rows++;
            } else {
                failed = add_position(&only[in_b], position);
            }
        }
        i += (uint64_t)in_a;
        j += (uint64_t)in_b;
    }
    *m = (struct kvc_matching){.run = runs.items,
                               .n_runs = runs.n,
                               .rows = rows,
                               .only = {only[0].items, only[1].items},
                               .n_only = {only[0].n, only[1].n}};
    if (!failed) return 0;
    kvc_matching_free(m);
    return kvc_fail_memory(e, "the positions of two caches");
}

void kvc_matching_free(struct kvc_matching *m) {
    free(m->run);
    free(m->only[0]);
    free(m->only[1]);
    memset(m, 0, sizeof *m);
}

/* --- measures --- */

/* Computes rms, frobenius and cosine from the sums. */
static void measure(struct kvc_difference *d) {
    double a = sqrt(d->aa), b = sqrt(d->bb), difference = sqrt(d->dd);
    d->rms = d->finite ? sqrt(d->dd / (double)d->finite) : 0;
    d->frobenius = a > 0 ? difference / a : difference > 0 ? (double)INFINITY : 0;
    d->cosine = a > 0 && b > 0 ? d->ab / (a * b) : a > 0 || b > 0 ? 0 : 1;
}

void kvc_difference_add(struct kvc_difference *total, const struct kvc_difference *part) {
    if (!total->differ && part->differ) {
        total->at_position = part->at_position;
        total->at_channel = part->at_channel;
        total->at_a = part->at_a;
        total->at_b = part->at_b;
    }
    total->values += part->values;
    total->differ += part->differ;
    total->nonfinite += part->nonfinite;
    total->finite += part->finite;
    if (part->max_abs > total->max_abs) total->max_abs = part->max_abs;
    total->aa += part->aa;
    total->bb += part->bb;
    total->ab += part->ab;
    total->dd += part->dd;
    measure(total);
}

/* --- values --- */

struct side {
    const struct kvc_cache *cache;
    const char *name;
    uint32_t tensor;
    const struct kvc_dtype_info *type;
    float *scale; /* of each head, where values are what is stored times a scale; or NULL */
    uint64_t dim; /* of a head that has a scale */
    uint64_t row_bytes;
    uint8_t *rows;      /* a chunk of canonical rows */
    float value[PIECE]; /* a piece of one of them */
};

struct comparison {
    struct side a, b;
    const struct kvc_compare_options *o;
    kvc_report_fn *report; /* NULL once it asked for no more */
    struct kvc_difference *out;
    struct kvc_difference *row; /* of the current row, or NULL */
    uint64_t row_values, dim;
    int one_type;     /* equal bytes are equal values: one dtype, and one scale of each head */
    uint64_t matched; /* number of the matched row whose values are compared */
};

/* `encoded`: the result for the encoded bytes, in exact comparisons. */
static int pair_differs(const struct kvc_compare_options *o, float a, float b, int encoded) {
    const int other_bits = kvc_float_to_bits(a) != kvc_float_to_bits(b);
    if (o->exact) return encoded || other_bits;
    if (!isfinite(a) || !isfinite(b)) return other_bits;
    return !(fabs((double)a - (double)b) <= o->abs + o->rel * fabs((double)b));
}

/* Adds a pair to the sums. */
static void add_values(struct kvc_difference *d, float a, float b) {
    d->values++;
    if (!isfinite(a) || !isfinite(b)) return;
    const double x = (double)a, y = (double)b, apart = fabs(x - y);
    d->finite++;
    d->aa += x * x;
    d->bb += y * y;
    d->ab += x * y;
    d->dd += apart * apart;
    if (apart > d->max_abs) d->max_abs = apart;
}

/* Counts a pair that differs. */
static void add_differing(struct kvc_difference *d, int64_t position, uint64_t channel, double a,
                          double b) {
    if (!d->differ++) {
        d->at_position = position;
        d->at_channel = channel;
        d->at_a = a;
        d->at_b = b;
    }
    if (!isfinite(a) || !isfinite(b)) d->nonfinite++;
}

static void note_pair(struct comparison *c, int64_t position, uint64_t head, uint64_t channel,
                      double a, double b) {
    const struct kvc_difference_detail *detail = &c->o->detail;
    add_differing(&c->out[head], position, channel, a, b);
    if (detail->channel)
        add_differing(&detail->channel[head * c->dim + channel], position, channel, a, b);
    if (c->row) add_differing(c->row, position, channel, a, b);
    if (c->report && c->report(c->o->state, position, head, channel, a, b)) c->report = NULL;
}

/* Returns 1 where value i of a piece differs in its encoded bytes, in exact comparisons of one
 * dtype. A block whose values are all the same though its bytes are not (the sign of a zero scale,
 * say) differs in its first value. */
static int encoded_differs(const struct comparison *c, const uint8_t *pa, const uint8_t *pb,
                           size_t i) {
    const struct kvc_dtype_info *type = c->a.type;
    if (i % type->block) return 0;
    size_t at = i / type->block * type->size;
    if (!memcmp(pa + at, pb + at, type->size)) return 0;
    return type->block == 1 || !memcmp(c->a.value + i, c->b.value + i, type->block * sizeof(float));
}

/* Compares values [first, first + n) of a row, already converted; pa and pb are their encoded
 * bytes. */
static void compare_piece(struct comparison *c, int64_t position, uint64_t first, size_t n,
                          const uint8_t *pa, const uint8_t *pb) {
    const int same = c->one_type && !memcmp(pa, pb, n / c->a.type->block * c->a.type->size);
    uint64_t head = first / c->dim, channel = first % c->dim;
    for (size_t i = 0; i < n; i++) {
        float a = c->a.value[i], b = c->b.value[i];
        add_values(&c->out[head], a, b);
        if (c->o->detail.channel) add_values(&c->o->detail.channel[first + i], a, b);
        if (c->row) add_values(c->row, a, b);
        if (!same &&
            pair_differs(c->o, a, b, c->o->exact && c->one_type && encoded_differs(c, pa, pb, i)))
            note_pair(c, position, head, channel, (double)a, (double)b);
        if (++channel == c->dim) {
            channel = 0;
            head++;
        }
    }
}

/* Converts values [first, first + n) of a row. */
static void convert(struct side *s, uint64_t first, size_t n, const uint8_t *encoded) {
    s->type->to_f32(s->value, encoded, n / s->type->block);
    for (size_t i = 0; s->scale && i < n; i++) s->value[i] *= s->scale[(first + i) / s->dim];
}

static void compare_row(struct comparison *c, int64_t position, const uint8_t *row_a,
                        const uint8_t *row_b) {
    for (uint64_t first = 0; first < c->row_values; first += PIECE) {
        size_t n = c->row_values - first < PIECE ? (size_t)(c->row_values - first) : PIECE;
        const uint8_t *pa = row_a + first / c->a.type->block * c->a.type->size;
        const uint8_t *pb = row_b + first / c->b.type->block * c->b.type->size;
        convert(&c->a, first, n, pa);
        convert(&c->b, first, n, pb);
        compare_piece(c, position, first, n, pa, pb);
        if (c->o->sums)
            kvc_error_sums_values(c->o->sums, c->matched, first, c->a.value, c->b.value, n);
    }
    c->matched++;
}

static int name_side(const struct side *s, struct kvc_error *e) {
    return s->name ? kvc_error_prefix(e, s->name) : -1;
}

static int compare_read_rows(struct side *s, uint64_t first, uint64_t n, struct kvc_error *e) {
    return s->cache->read(s->cache, s->tensor, first, n, s->rows, e) ? name_side(s, e) : 0;
}

/* Returns the number of rows to read at once from `row` on: to the end of its block, which readers
 * decode as a whole, and no more than `maximum`. */
static uint64_t chunk_at(const struct kvc_cells *cells, uint64_t row, uint64_t n,
                         uint64_t maximum) {
    uint64_t to_end = cells->block[kvc_cells_block_of(cells, row) + 1] - row;
    if (n > to_end) n = to_end;
    return n < maximum ? n : maximum;
}

/* Reads all matched rows: with `values` to measure them, without to compare their bytes only. */
static int compare_walk(struct comparison *c, const struct kvc_matching *rows, uint64_t maximum,
                        int values, int *equal, struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_tensor_cells(c->a.cache, c->a.tensor);
    uint64_t done = 0; /* rows */
    for (uint64_t r = 0; r < rows->n_runs; r++) {
        struct kvc_run left = rows->run[r];
        while (left.n) {
            uint64_t n = chunk_at(cells, left.a, left.n, maximum);
            if (compare_read_rows(&c->a, left.a, n, e) || compare_read_rows(&c->b, left.b, n, e))
                return -1;
            if (!values && memcmp(c->a.rows, c->b.rows, (size_t)(n * c->a.row_bytes))) {
                *equal = 0;
                return 0;
            }
            for (uint64_t i = 0; values && i < n; i++, done++) {
                c->row = c->o->detail.row ? &c->o->detail.row[done] : NULL;
                compare_row(c, kvc_cells_position(cells, left.a + i),
                            c->a.rows + i * c->a.row_bytes, c->b.rows + i * c->b.row_bytes);
            }
            left.a += n;
            left.b += n;
            left.n -= n;
        }
    }
    return 0;
}

static void side_start(struct side *s, const struct kvc_cache *cache, uint32_t tensor,
                       const char *name) {
    const struct kvc_shape *shape = &cache->tensor[tensor].shape;
    s->cache = cache;
    s->name = name;
    s->tensor = tensor;
    s->type = kvc_dtype_info(shape->dtype);
    s->row_bytes = kvc_row_bytes(shape);
}

/* --- scales --- */

/* Returns 1 if no scale of a head differs. A side that has one head for all channels has one scale.
 */
static int same_scales(const struct comparison *c) {
    if (!c->a.scale || !c->b.scale) return !c->a.scale && !c->b.scale;
    const uint64_t dim = c->a.dim < c->b.dim ? c->a.dim : c->b.dim;
    for (uint64_t i = 0; i < c->row_values; i += dim) {
        const float a = c->a.scale[i / c->a.dim], b = c->b.scale[i / c->b.dim];
        if (a < b || a > b) return 0;
    }
    return 1;
}

/* Takes the scales of a side. Returns 1, also where there are none to take, 0 if they are unknown,
 * or -1. */
static int take_scale(struct side *s, struct kvc_error *e) {
    const struct kvc_tensor *t = &s->cache->tensor[s->tensor];
    if (!kvc_tensor_is_scaled(t)) return 1;
    s->dim = t->shape.dim;
    s->scale = kvc_alloc(t->shape.heads, sizeof *s->scale);
    if (!s->scale) return kvc_fail_memory(e, "scales");
    return kvc_scales_of(s->cache, &s->cache->meta, s->tensor, s->scale, e);
}

static void drop_scale(struct side *s) {
    free(s->scale);
    s->scale = NULL;
}

/* Takes the scales of values of 8 bits. Where both sides store one type and neither knows its
 * scales, what is stored is compared. */
static int take_scales(struct comparison *c, struct kvc_error *e) {
    const int a = take_scale(&c->a, e);
    if (a < 0) return name_side(&c->a, e);
    const int b = take_scale(&c->b, e);
    if (b < 0) return name_side(&c->b, e);
    const int one_type = c->a.type == c->b.type;
    if (!a && !b && one_type) {
        drop_scale(&c->a);
        drop_scale(&c->b);
    } else if (!a && kvc_scales_need(c->a.cache, c->a.tensor, e)) {
        return name_side(&c->a, e);
    } else if (!b && kvc_scales_need(c->b.cache, c->b.tensor, e)) {
        return name_side(&c->b, e);
    }
    c->one_type = one_type && same_scales(c);
    return 0;
}

/* Counts the values of a tensor whose bytes are all equal in channels. */
static void count_equal(const struct comparison *c, uint64_t rows) {
    const struct kvc_difference_detail *detail = &c->o->detail;
    for (uint64_t i = 0; detail->channel && i < c->row_values; i++)
        detail->channel[i].values += rows;
}

static void measure_detail(const struct comparison *c, uint64_t rows) {
    const struct kvc_difference_detail *detail = &c->o->detail;
    for (uint64_t i = 0; detail->channel && i < c->row_values; i++) measure(&detail->channel[i]);
    for (uint64_t i = 0; detail->row && i < rows; i++) measure(&detail->row[i]);
}

int kvc_compare_tensor(const struct kvc_cache *a, uint32_t ta, const struct kvc_cache *b,
                       uint32_t tb, const struct kvc_matching *rows, uint64_t heads,
                       const struct kvc_compare_options *o, struct kvc_difference *out,
                       struct kvc_error *e) {
    const struct kvc_shape *sa = &a->tensor[ta].shape, *sb = &b->tensor[tb].shape;
    uint64_t row_values = sa->heads * sa->dim;
    if (row_values != sb->heads * sb->dim || !heads || row_values % heads)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "rows of %llu and %llu values cannot be compared by %llu heads",
                        (unsigned long long)row_values, (unsigned long long)(sb->heads * sb->dim),
                        (unsigned long long)heads);
    struct comparison *c = calloc(1, sizeof *c);
    if (!c) return kvc_fail_memory(e, "a comparison");
    side_start(&c->a, a, ta, o->name[0]);
    side_start(&c->b, b, tb, o->name[1]);
    c->o = o;
    c->report = o->report;
    c->out = out;
    c->row_values = row_values;
    c->dim = row_values / heads;

    uint64_t widest = c->a.row_bytes > c->b.row_bytes ? c->a.row_bytes : c->b.row_bytes;
    uint64_t maximum = CHUNK_BYTES / widest;
    maximum = maximum > KVC_BLOCK ? KVC_BLOCK : maximum ? maximum : 1;
    if (maximum > rows->rows) maximum = rows->rows ? rows->rows : 1;
    c->a.rows = kvc_alloc(maximum, c->a.row_bytes);
    c->b.rows = kvc_alloc(maximum, c->b.row_bytes);
    int rc = c->a.rows && c->b.rows ? take_scales(c, e) : kvc_fail_memory(e, "rows to compare");

    /* Most tensors of most comparisons are equal, so bytes are compared first, and values only
     * where bytes differ, or for sums along positions, which are over all tensors. */
    int equal = c->one_type;
    const int by_row = o->detail.row || o->sums;
    memset(out, 0, (size_t)heads * sizeof *out);
    if (!rc && equal) rc = compare_walk(c, rows, maximum, 0, &equal, e);
    if (!rc && (!equal || by_row)) rc = compare_walk(c, rows, maximum, 1, NULL, e);
    for (uint64_t h = 0; h < heads; h++) {
        if (equal) out[h] = (struct kvc_difference){.values = rows->rows * c->dim};
        measure(&out[h]);
    }
    if (equal && !by_row) count_equal(c, rows->rows);
    measure_detail(c, rows->rows);
    free(c->a.rows);
    free(c->b.rows);
    drop_scale(&c->a);
    drop_scale(&c->b);
    free(c);
    return rc;
}
