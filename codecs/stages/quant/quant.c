/* quant.c: the stage that quantises groups of values uniformly. Spec: quant.md. Not for the groups
 * and sections (quant_layout.c), parameters (quant_params.c), devices (quant_device.c), salient
 * tokens (saliency.c) or outliers (outlier.c). */
#include "codecs/floats.h"
#include "codecs/little_endian.h"
#include "codecs/memory.h"
#include "codecs/planes.h"
#include "codecs/stage.h"
#include "codecs/stages/quant/quant_device.h"
#include "codecs/stages/quant/quant_layout.h"
#include "codecs/stages/quant/quant_params.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- groups --- */

/* Returns the first parameter of row r of a span; the next function, the number of values that
 * share one. */
static size_t param_of(const struct kvc_quant_layout *l, const struct kvc_quant_span *s, size_t r) {
    if (l->axis == KVC_QUANT_ROWS) return s->param + r / l->group * s->width;
    if (l->axis == KVC_QUANT_CHANNELS) return s->param + r * kvc_quant_groups(s->width, l->group);
    return r;
}

static size_t share_of(const struct kvc_quant_layout *l, const struct kvc_quant_span *s) {
    return l->axis == KVC_QUANT_ROWS ? 1 : l->axis == KVC_QUANT_CHANNELS ? l->group : s->width;
}

static size_t row_of(const struct kvc_quant_span *s, size_t r) {
    return s->row ? s->row[r] : r;
}

/* Work on the values of one row of a span; `factor` are steps or their reciprocals. */
typedef void row_work(const struct kvc_quant_class *k, float *x, const float *low,
                      const float *factor, uint8_t *codes, size_t width, size_t share);

static void each_row(const struct kvc_quant_layout *l, const struct kvc_quant_class *k, float *x,
                     const float *factor, row_work *work) {
    for (size_t i = 0; i < k->n_spans; i++) {
        const struct kvc_quant_span *s = &k->span[i];
        for (size_t r = 0; r < s->rows; r++) {
            const size_t p = param_of(l, s, r);
            work(k, x + row_of(s, r) * l->width + s->channel, l->low + p, factor + p,
                 l->codes + s->code + r * s->width, s->width, share_of(l, s));
        }
    }
}

/* --- encoding: ranges --- */

/* Finds the minimum and the maximum of every group. */
static void find_ranges(const struct kvc_quant_layout *l, const struct kvc_quant_class *k,
                        const float *x) {
    const struct kvc_kernels *f = kvc_kernels_get();
    for (size_t i = 0; i < k->n_spans; i++) {
        const struct kvc_quant_span *s = &k->span[i];
        for (size_t r = 0; r < s->rows; r++) {
            const float *from = x + row_of(s, r) * l->width + s->channel;
            float *low = l->low + param_of(l, s, r), *high = l->high + param_of(l, s, r);
            if (l->axis == KVC_QUANT_ROWS && r % l->group == 0) {
                memcpy(low, from, s->width * sizeof *low);
                memcpy(high, from, s->width * sizeof *high);
            } else if (l->axis == KVC_QUANT_ROWS) {
                f->widen_ranges(low, high, from, s->width);
            } else if (l->axis == KVC_QUANT_CHANNELS) {
                for (size_t at = 0; at < s->width; at += l->group)
                    f->range(from + at, s->width - at < l->group ? s->width - at : l->group, low++,
                             high++);
            } else {
                float least, greatest;
                f->range(from, s->width, &least, &greatest);
                /* the first span that has this row begins its group */
                int begun = 0;
                for (size_t b = 0; b < i && !begun; b++) begun = k->span[b].rows > r;
                if (!begun || least < *low) *low = least;
                if (!begun || greatest > *high) *high = greatest;
            }
        }
    }
}

/* Copies the values of group `g` to `to`, and returns their number. */
static size_t quant_collect(const struct kvc_quant_layout *l, const struct kvc_quant_class *k,
                            const float *x, size_t g, float *to) {
    size_t n = 0;
    for (size_t i = 0; i < k->n_spans; i++) {
        const struct kvc_quant_span *s = &k->span[i];
        const size_t in_row = l->axis == KVC_QUANT_ROWS       ? s->width
                              : l->axis == KVC_QUANT_CHANNELS ? kvc_quant_groups(s->width, l->group)
                                                              : 1;
        const size_t begin = l->axis == KVC_QUANT_ROW ? 0 : s->param;
        if (g < begin) continue;
        const size_t k_row = (g - begin) / in_row, column = (g - begin) % in_row;
        const size_t first = l->axis == KVC_QUANT_ROWS ? k_row * l->group : k_row;
        const size_t rows = l->axis == KVC_QUANT_ROWS ? l->group : 1, share = share_of(l, s);
        for (size_t r = first; r < first + rows && r < s->rows; r++)
            for (size_t c = column * share; c < (column + 1) * share && c < s->width; c++)
                to[n++] = x[row_of(s, r) * l->width + s->channel + c];
        if (l->axis != KVC_QUANT_ROW && n) break;
    }
    return n;
}

static double squared_error(const float *x, size_t n, float low, float step, float levels) {
    double sum = 0;
    const float inverse = step > 0 ? 1 / step : 0;
    for (size_t i = 0; i < n; i++) {
        float q = rintf((x[i] - low) * inverse);
        q = q < 0 ? 0 : q > levels ? levels : q;
        const double d = (double)(q * step + low - x[i]);
        sum += d * d;
    }
    return sum;
}

/* Narrows the ranges to those of minimum squared error. */
static int clip_ranges(const struct kvc_quant_layout *l, const struct kvc_quant_class *k,
                       const float *x, struct kvc_error *e) {
    float *value = kvc_alloc(l->rows > l->width ? l->rows : l->width, sizeof *value);
    const float levels = kvc_quant_levels(k);
    if (!value) return kvc_fail_memory(e, "a group");
    for (size_t g = 0; g < k->params; g++) {
        const size_t n = quant_collect(l, k, x, g, value);
        const float far = -l->low[g] > l->high[g] ? -l->low[g] : l->high[g];
        const float middle = l->sym ? 0 : 0.5f * l->low[g] + 0.5f * l->high[g];
        const float half = l->sym ? far : 0.5f * l->high[g] - 0.5f * l->low[g];
        double best = (double)INFINITY;
        float least = l->low[g], greatest = l->high[g];
        for (int factor = 100; factor >= 30; factor -= 5) {
            const float reach = half * (float)factor / 100;
            const double error = squared_error(value, n, middle - reach, 2 * reach / levels,
                                               levels);
            if (error < best) {
                best = error;
                least = middle - reach;
                greatest = middle + reach;
            }
        }
        l->low[g] = least;
        l->high[g] = greatest;
    }
    free(value);
    return 0;
}

/* --- encoding: codes --- */

static void quantise_row(const struct kvc_quant_class *k, float *x, const float *low,
                         const float *inverse, uint8_t *codes, size_t width, size_t share) {
    kvc_kernels_get()->quantise(codes, x, low, inverse, width, share, kvc_quant_levels(k));
}

static void dequantise_row(const struct kvc_quant_class *k, float *x, const float *low,
                           const float *step, uint8_t *codes, size_t width, size_t share) {
    (void)k;
    kvc_kernels_get()->dequantise(x, codes, step, low, width, share);
}

static void dequantise_add_row(const struct kvc_quant_class *k, float *x, const float *low,
                               const float *step, uint8_t *codes, size_t width, size_t share) {
    (void)k;
    kvc_kernels_get()->dequantise_add(x, codes, step, low, width, share);
}

static int encode_class(const struct kvc_quant_layout *l, unsigned c, float *x, int looked,
                        uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    const struct kvc_quant_class *k = &l->class[c];
    if (!k->codes) return 0;
    find_ranges(l, k, x);
    if (l->clip && clip_ranges(l, k, x, e)) return -1;
    if (kvc_quant_add_params(l, k, looked, stage, (uint8_t)c, out, e)) return -1;
    each_row(l, k, x, l->inverse, quantise_row);
    if (looked) return 0;
    kvc_packed_write(l->packed, l->codes, k->codes, k->bits);
    return kvc_sections_add(out, KVC_SECTION_CODES, stage, (uint8_t)c, l->packed,
                            kvc_packed_bytes(k->codes, k->bits), 0, e);
}

enum { NORM_EXPONENTS = 32 };

/* Adds channel norms (ZipCache, algorithm 2: the root of the maximum size). */
static int add_norms(const struct kvc_quant_layout *l, const float *x, uint8_t stage,
                     struct kvc_sections *out, struct kvc_error *e) {
    float greatest = 0;
    memset(l->norm, 0, l->width * sizeof *l->norm);
    memset(l->norm_low, 0, l->width * sizeof *l->norm_low);
    for (size_t t = 0; t < l->rows; t++)
        kvc_kernels_get()->widen_ranges(l->norm_low, l->norm, x + t * l->width, l->width);
    for (size_t c = 0; c < l->width; c++) {
        if (-l->norm_low[c] > l->norm[c]) l->norm[c] = -l->norm_low[c];
        greatest = l->norm[c] > greatest ? l->norm[c] : greatest;
    }
    int base = 0;
    frexpf(sqrtf(greatest), &base); /* below 2^base; 8 + m is below 2^4 */
    base -= NORM_EXPONENTS - 1 + 4;
    base = base < KVC_QUANT_NORM_MIN ? KVC_QUANT_NORM_MIN : base;
    uint8_t *bytes = l->packed;
    put_u16(bytes, (uint16_t)base);
    for (size_t c = 0; c < l->width; c++) {
        int exponent = 0;
        const float part = frexpf(sqrtf(l->norm[c]), &exponent); /* 0.5 <= part < 1, or 0 */
        int code = l->norm[c] > 0 ? (exponent - 4 - base) * 8 + (int)(part * 16) - 8 : 0;
        code = code < 0 ? 0 : code > 255 ? 255 : code;
        bytes[2 + c] = (uint8_t)code;
    }
    return kvc_sections_add(out, KVC_SECTION_NORMS, stage, 0, bytes, 2 + l->width, 0, e);
}

/* Multiplies x by norms, or by their reciprocals. */
static void apply_norms(const struct kvc_quant_layout *l, float *x, const float *norm) {
    for (size_t t = 0; t < l->rows; t++)
        kvc_kernels_get()->multiply(x + t * l->width, norm, l->width);
}

/* Subtracts the coded values from x, which has been divided by the norms: the rest is the residual.
 */
static int subtract(const struct kvc_quant_layout *l, float *x, const struct kvc_quant_class *k,
                    struct kvc_error *e) {
    const struct kvc_kernels *f = kvc_kernels_get();
    float *coded = kvc_alloc(l->width, sizeof *coded);
    if (!coded) return kvc_fail_memory(e, "a residual");
    for (size_t i = 0; i < k->n_spans; i++) {
        const struct kvc_quant_span *s = &k->span[i];
        for (size_t r = 0; r < s->rows; r++) {
            const size_t p = param_of(l, s, r);
            f->dequantise(coded, l->codes + s->code + r * s->width, l->step + p, l->low + p,
                          s->width, share_of(l, s));
            f->add_scaled(x + row_of(s, r) * l->width + s->channel, coded, -1, s->width);
        }
    }
    free(coded);
    return 0;
}

static int quant_encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                        uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    struct kvc_quant_layout l;
    float *x = (float *)(void *)block->rows;
    (void)state;
    if (!block->shape.tokens) return 0;
    if (kvc_quant_layout_init(&l, args, block, e)) return -1;
    int status = 0;
    if (l.normed) {
        status = add_norms(&l, x, stage, out, e) || kvc_quant_read_norms(&l, l.packed, e);
        for (size_t c = 0; c < l.width; c++) l.norm_inverse[c] = 1 / l.norm[c];
        if (!status) apply_norms(&l, x, l.norm_inverse);
    }
    for (unsigned c = 0; c < l.n_classes && !status; c++) {
        status = encode_class(&l, c, x, block->looked, stage, out, e);
        if (!status && block->residual && l.class[c].codes)
            status = subtract(&l, x, &l.class[c], e);
    }
    if (!status && l.normed && block->residual) apply_norms(&l, x, l.norm);
    kvc_quant_layout_free(&l);
    return status ? -1 : 0;
}

/* --- decoding --- */

static int read_params(const struct kvc_quant_layout *l, const struct kvc_quant_class *k,
                       const struct kvc_section *s, struct kvc_error *e) {
    const uint8_t *p = s->data, *end = p + s->size;
    if (kvc_halves_read(l->step, &p, end, k->params, e)) return kvc_error_prefix(e, "PARAMS");
    if (l->sym) kvc_quant_centre(l, k);
    else if (kvc_halves_read(l->low, &p, end, k->params, e)) return kvc_error_prefix(e, "PARAMS");
    return p == end ? 0
                    : kvc_fail(e, KVC_ERR_DAMAGED, "section PARAMS has bytes after its numbers");
}

static int decode_sections(const struct kvc_quant_layout *l, struct kvc_block *block,
                           const struct kvc_stored *stored, struct kvc_error *e) {
    struct kvc_quant_sections s;
    float *x = (float *)(void *)block->rows;
    if (kvc_quant_open(&s, l, stored, e)) return -1;
    /* the residual is the rows', not the normed rows' */
    float *left = NULL;
    const size_t values = l->rows * l->width;
    if (l->normed && block->residual) {
        if (!(left = kvc_alloc(values, sizeof *left))) return kvc_fail_memory(e, "a residual");
        memcpy(left, x, values * sizeof *left);
    }
    int status = 0;
    for (unsigned c = 0; c < l->n_classes && !status; c++) {
        const struct kvc_quant_class *k = &l->class[c];
        if (!k->codes) continue;
        status = read_params(l, k, s.params[c], e) ||
                 kvc_packed_read(l->codes, s.codes[c]->data, k->codes, k->bits, e);
        if (!status)
            each_row(l, k, x, l->step,
                     block->residual && !l->normed ? dequantise_add_row : dequantise_row);
    }
    if (!status && l->normed) apply_norms(l, x, l->norm);
    if (!status && left) kvc_kernels_get()->add_scaled(x, left, 1, values);
    free(left);
    return status ? -1 : 0;
}

static int quant_decode(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                        struct kvc_block *block, struct kvc_error *e) {
    struct kvc_quant_layout l;
    if (!block->shape.tokens) return kvc_stored_none(stored, e);
    if (kvc_quant_layout_init(&l, args, block, e)) return -1;
    const int status = decode_sections(&l, block, stored, e);
    kvc_quant_layout_free(&l);
    return status;
}

const struct kvc_stage kvc_stage_quant = {
    .id = 8,
    .name = "quant",
    .summary = "uniform quantisation of groups, 1 to 8 bits",
    .flags = KVC_STAGE_FINITE | KVC_STAGE_FLOAT | KVC_STAGE_RESIDUAL,
    .args = kvc_quant_arguments,
    .n_args = KVC_QUANT_ARGS,
    .encode = quant_encode,
    .decode = quant_decode,
    .lower = kvc_quant_lower,
};
