/* quant.c: the stage that quantises groups of values uniformly. Spec: quant.md. Not for choosing salient tokens
 * (saliency.c) or outliers (outlier.c). */
#include "codecs/floats.h"
#include "codecs/memory.h"
#include "codecs/planes.h"
#include "codecs/program.h"
#include "codecs/stage.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SCHEME, BITS, GROUP, LOW, CLIP, SYM, N_ARGS };
enum scheme { KIVI, KCVT, TOKEN, ZIP };
enum axis { TOKENS, CHANNELS, ROW };

static const char *const schemes[] = {"kivi", "kcvt", "token", "zip", NULL};

static const struct kvc_arg arguments[N_ARGS] = {
    [SCHEME] = {.kind = KVC_ARG_WORD, .words = schemes, .required = 1},
    [BITS] = {.key = "bits", .min = 1, .max = 8, .required = 1},
    [GROUP] = {.key = "g", .min = 1, .max = 65536, .fallback = 64},
    [LOW] = {.key = "low", .min = 1, .max = 8, .fallback = 2},
    [CLIP] = {.key = "clip", .kind = KVC_ARG_FLAG},
    [SYM] = {.key = "sym", .kind = KVC_ARG_FLAG},
};

/* --- how a block falls into groups --- */

/* Rows and channels that are quantised as a matrix of their own. */
struct span {
    size_t channel, width, rows;
    const uint8_t *row; /* their numbers in the block; NULL: 0, 1, ... */
    size_t param, code; /* where theirs begin */
};

struct class {
    unsigned bits;
    struct span *span;
    size_t n_spans, params, codes;
};

struct layout {
    enum axis axis;
    int sym, clip, normed;
    size_t rows, heads, dim, width, group; /* width: of a row of the block */
    struct class class[2];
    unsigned n_classes;
    float *low, *step, *inverse; /* of one class's groups */
    float *norm, *inverse_norm;  /* of channels, V of zip */
    uint8_t *codes, *packed;
    void *memory[3];
};

static size_t groups_in(size_t n, size_t group) {
    return (n + group - 1) / group;
}

/* Where row r of a span finds its groups, and how many values share one. */
static size_t param_of(const struct layout *l, const struct span *s, size_t r) {
    if (l->axis == TOKENS) return s->param + r / l->group * s->width;
    if (l->axis == CHANNELS) return s->param + r * groups_in(s->width, l->group);
    return r;
}

static size_t share_of(const struct layout *l, const struct span *s) {
    return l->axis == TOKENS ? 1 : l->axis == CHANNELS ? l->group : s->width;
}

static size_t row_of(const struct span *s, size_t r) {
    return s->row ? s->row[r] : r;
}

static void choose_axis(struct layout *l, const struct kvc_stage_args *args, unsigned role) {
    const int value = role == KVC_SELECT_V;
    const enum scheme scheme = (enum scheme)args->i[SCHEME];
    l->group = (size_t)args->i[GROUP];
    l->normed = scheme == ZIP && value;
    if (scheme == TOKEN || (scheme == KIVI && value)) l->axis = CHANNELS;
    else if (value) l->axis = ROW;
    else l->axis = TOKENS;
    if (scheme != KIVI && scheme != TOKEN) l->group = l->rows ? l->rows : 1;
}

/* Lists which rows of head h belong to class c; how many. */
static size_t list_rows(const struct kvc_block *block, size_t h, unsigned c, uint8_t *row) {
    size_t n = 0;
    for (size_t t = 0; t < block->shape.tokens; t++)
        if (block->salient[t * block->shape.heads + h] == (c == 0)) row[n++] = (uint8_t)t;
    return n;
}

static void layout_free(struct layout *l) {
    for (unsigned i = 0; i < 3; i++) free(l->memory[i]);
}

/* Spans of all classes, with where their groups and codes begin. */
static int make_spans(struct layout *l, const struct kvc_stage_args *args, const struct kvc_block *block,
                      struct kvc_error *e) {
    const int apart = block->salient != NULL, by_head = apart || (l->axis == CHANNELS && l->dim % l->group != 0);
    const size_t spans = by_head ? l->heads : 1;
    l->n_classes = apart ? 2 : 1;
    struct span *span = l->memory[0] = kvc_alloc_zeros(l->n_classes, spans * sizeof *span);
    uint8_t *row = l->memory[1] = kvc_alloc(apart ? l->n_classes * spans : 0, l->rows);
    if (!span || !row) return kvc_fail_memory(e, "groups");
    for (unsigned c = 0; c < l->n_classes; c++) {
        struct class *k = &l->class[c];
        k->bits = (unsigned)args->i[c ? LOW : BITS];
        k->span = span + c * spans;
        k->n_spans = spans;
        for (size_t i = 0; i < spans; i++) {
            struct span *s = &k->span[i];
            s->channel = by_head ? i * l->dim : 0;
            s->width = by_head ? l->dim : l->width;
            s->rows = l->rows;
            if (apart) {
                s->row = row + (c * spans + i) * l->rows;
                s->rows = list_rows(block, i, c, row + (c * spans + i) * l->rows);
            }
            s->param = k->params;
            s->code = k->codes;
            k->codes += s->rows * s->width;
            if (l->axis == TOKENS) k->params += groups_in(s->rows, l->group) * s->width;
            else if (l->axis == CHANNELS) k->params += s->rows * groups_in(s->width, l->group);
            else if (s->rows > k->params) k->params = s->rows;
        }
    }
    return 0;
}

static int layout_init(struct layout *l, const struct kvc_stage_args *args, const struct kvc_block *block,
                       struct kvc_error *e) {
    memset(l, 0, sizeof *l);
    l->rows = (size_t)block->shape.tokens;
    l->heads = (size_t)block->shape.heads;
    l->dim = (size_t)block->shape.dim;
    l->width = l->heads * l->dim;
    l->sym = (int)args->i[SYM];
    l->clip = (int)args->i[CLIP];
    choose_axis(l, args, block->role);
    if (make_spans(l, args, block, e)) {
        layout_free(l);
        return -1;
    }
    size_t params = 0, codes = 0;
    for (unsigned c = 0; c < l->n_classes; c++) {
        params = l->class[c].params > params ? l->class[c].params : params;
        codes = l->class[c].codes > codes ? l->class[c].codes : codes;
    }
    /* room for the greatest of what is put together there: parameters, packed codes, norms */
    size_t packed = 2 * KVC_HALVES_BOUND(params);
    if (codes + 32 > packed) packed = codes + 32;
    if (l->width + 2 > packed) packed = l->width + 2;
    float *floats = l->memory[2] = malloc((3 * params + 2 * l->width) * sizeof *floats + codes + packed);
    if (!floats) {
        layout_free(l);
        return kvc_fail_memory(e, "groups");
    }
    l->low = floats;
    l->step = l->low + params;
    l->inverse = l->step + params;
    l->norm = l->inverse + params;
    l->inverse_norm = l->norm + l->width;
    l->codes = (uint8_t *)(l->inverse_norm + l->width);
    l->packed = l->codes + codes;
    return 0;
}

static float levels_of(const struct class *k) {
    return (float)((1u << k->bits) - 1);
}

/* Values of a whole class, row after row: what is done to each is the caller's. */
typedef void row_work(const struct layout *l, const struct class *k, float *x, const float *low, const float *factor,
                      uint8_t *codes, size_t width, size_t share);

static void each_row(const struct layout *l, const struct class *k, float *x, const float *factor, row_work *work) {
    for (size_t i = 0; i < k->n_spans; i++) {
        const struct span *s = &k->span[i];
        for (size_t r = 0; r < s->rows; r++) {
            const size_t p = param_of(l, s, r);
            work(l, k, x + row_of(s, r) * l->width + s->channel, l->low + p, factor + p,
                 l->codes + s->code + r * s->width, s->width, share_of(l, s));
        }
    }
}

/* --- encoding: ranges --- */

/* Least and greatest of every group, into l->low and l->step. */
static void find_ranges(const struct layout *l, const struct class *k, const float *x) {
    const struct kvc_kernels *f = kvc_kernels_get();
    for (size_t i = 0; i < k->n_spans; i++) {
        const struct span *s = &k->span[i];
        for (size_t r = 0; r < s->rows; r++) {
            const float *from = x + row_of(s, r) * l->width + s->channel;
            float *low = l->low + param_of(l, s, r), *high = l->step + param_of(l, s, r);
            if (l->axis == TOKENS && r % l->group == 0) {
                memcpy(low, from, s->width * sizeof *low);
                memcpy(high, from, s->width * sizeof *high);
            } else if (l->axis == TOKENS) {
                f->widen_ranges(low, high, from, s->width);
            } else if (l->axis == CHANNELS) {
                for (size_t at = 0; at < s->width; at += l->group)
                    f->range(from + at, s->width - at < l->group ? s->width - at : l->group, low++, high++);
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

/* The values of group `g`, into `to`; how many. */
static size_t collect(const struct layout *l, const struct class *k, const float *x, size_t g, float *to) {
    size_t n = 0;
    for (size_t i = 0; i < k->n_spans; i++) {
        const struct span *s = &k->span[i];
        const size_t in_row = l->axis == TOKENS ? s->width : l->axis == CHANNELS ? groups_in(s->width, l->group) : 1;
        const size_t begin = l->axis == ROW ? 0 : s->param;
        if (g < begin) continue;
        const size_t k_row = (g - begin) / in_row, column = (g - begin) % in_row;
        const size_t first = l->axis == TOKENS ? k_row * l->group : k_row;
        const size_t rows = l->axis == TOKENS ? l->group : 1, share = share_of(l, s);
        for (size_t r = first; r < first + rows && r < s->rows; r++)
            for (size_t c = column * share; c < (column + 1) * share && c < s->width; c++)
                to[n++] = x[row_of(s, r) * l->width + s->channel + c];
        if (l->axis != ROW && n) break;
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

/* Narrows the ranges to those of the least squared error. */
static int clip_ranges(const struct layout *l, const struct class *k, const float *x, struct kvc_error *e) {
    float *value = kvc_alloc(l->rows > l->width ? l->rows : l->width, sizeof *value);
    const float levels = levels_of(k);
    if (!value) return kvc_fail_memory(e, "a group");
    for (size_t g = 0; g < k->params; g++) {
        const size_t n = collect(l, k, x, g, value);
        const float far = -l->low[g] > l->step[g] ? -l->low[g] : l->step[g];
        const float middle = l->sym ? 0 : 0.5f * l->low[g] + 0.5f * l->step[g];
        const float half = l->sym ? far : 0.5f * l->step[g] - 0.5f * l->low[g];
        double best = INFINITY;
        float least = l->low[g], greatest = l->step[g];
        for (int factor = 100; factor >= 30; factor -= 5) {
            const float reach = half * (float)factor / 100;
            const double error = squared_error(value, n, middle - reach, 2 * reach / levels, levels);
            if (error < best) {
                best = error;
                least = middle - reach;
                greatest = middle + reach;
            }
        }
        l->low[g] = least;
        l->step[g] = greatest;
    }
    free(value);
    return 0;
}

/* --- encoding: codes --- */

static void quantise_row(const struct layout *l, const struct class *k, float *x, const float *low, const float *inverse,
                         uint8_t *codes, size_t width, size_t share) {
    (void)l;
    kvc_kernels_get()->quantise(codes, x, low, inverse, width, share, levels_of(k));
}

static void dequantise_row(const struct layout *l, const struct class *k, float *x, const float *low, const float *step,
                           uint8_t *codes, size_t width, size_t share) {
    (void)l, (void)k;
    kvc_kernels_get()->dequantise(x, codes, step, low, width, share);
}

static void dequantise_add_row(const struct layout *l, const struct class *k, float *x, const float *low,
                               const float *step, uint8_t *codes, size_t width, size_t share) {
    (void)l, (void)k;
    kvc_kernels_get()->dequantise_add(x, codes, step, low, width, share);
}

/* The least values that steps around 0 imply. */
static void centre(const struct layout *l, const struct class *k) {
    const float half = levels_of(k) / 2;
    for (size_t g = 0; g < k->params; g++) l->low[g] = l->step[g] * -half;
}

/* Steps and least values out of ranges, as they will be read. */
static int add_params(const struct layout *l, const struct class *k, uint8_t stage, uint8_t index,
                      struct kvc_sections *out, struct kvc_error *e) {
    const float levels = levels_of(k);
    uint8_t *end = l->packed;
    for (size_t g = 0; g < k->params; g++) {
        const float least = l->low[g], greatest = l->step[g];
        if (l->sym) l->step[g] = 2 * (-least > greatest ? -least : greatest) / levels;
        else l->step[g] = (greatest - least) / levels;
    }
    if (kvc_halves_write(&end, l->step, k->params, e)) return -1;
    if (l->sym) centre(l, k);
    else if (kvc_halves_write(&end, l->low, k->params, e)) return -1;
    /* below this a reciprocal may be infinite, and a step moves nothing that matters */
    for (size_t g = 0; g < k->params; g++) l->inverse[g] = l->step[g] > 0x1p-120f ? 1 / l->step[g] : 0;
    return kvc_sections_add(out, KVC_SECTION_PARAMS, stage, index, l->packed, (size_t)(end - l->packed), 0, e);
}

static int encode_class(const struct layout *l, unsigned c, float *x, uint8_t stage, struct kvc_sections *out,
                        struct kvc_error *e) {
    const struct class *k = &l->class[c];
    if (!k->codes) return 0;
    find_ranges(l, k, x);
    if (l->clip && clip_ranges(l, k, x, e)) return -1;
    if (add_params(l, k, stage, (uint8_t)c, out, e)) return -1;
    each_row(l, k, x, l->inverse, quantise_row);
    kvc_packed_write(l->packed, l->codes, k->codes, k->bits);
    return kvc_sections_add(out, KVC_SECTION_CODES, stage, (uint8_t)c, l->packed, kvc_packed_bytes(k->codes, k->bits), 0,
                            e);
}

enum { NORM_EXPONENTS = 32, NORM_LEAST = -150, NORM_MOST = 100 };

/* Channel norms (ZipCache, algorithm 2: the root of the greatest size) as they will be read. */
static int add_norms(const struct layout *l, const float *x, uint8_t stage, struct kvc_sections *out,
                     struct kvc_error *e) {
    float greatest = 0;
    memset(l->norm, 0, 2 * l->width * sizeof *l->norm); /* and l->inverse_norm: the least, so far */
    for (size_t t = 0; t < l->rows; t++)
        kvc_kernels_get()->widen_ranges(l->inverse_norm, l->norm, x + t * l->width, l->width);
    for (size_t c = 0; c < l->width; c++) {
        if (-l->inverse_norm[c] > l->norm[c]) l->norm[c] = -l->inverse_norm[c];
        greatest = l->norm[c] > greatest ? l->norm[c] : greatest;
    }
    int base = 0;
    frexpf(sqrtf(greatest), &base); /* below 2^base; 8 + m is below 2^4 */
    base -= NORM_EXPONENTS - 1 + 4;
    base = base < NORM_LEAST ? NORM_LEAST : base;
    uint8_t *bytes = l->packed;
    bytes[0] = (uint8_t)(base & 255);
    bytes[1] = (uint8_t)(base >> 8 & 255);
    for (size_t c = 0; c < l->width; c++) {
        int exponent = 0;
        const float part = frexpf(sqrtf(l->norm[c]), &exponent); /* 0.5 <= part < 1, or 0 */
        int code = l->norm[c] > 0 ? (exponent - 4 - base) * 8 + (int)(part * 16) - 8 : 0;
        code = code < 0 ? 0 : code > 255 ? 255 : code;
        bytes[2 + c] = (uint8_t)code;
    }
    return kvc_sections_add(out, KVC_SECTION_NORMS, stage, 0, bytes, 2 + l->width, 0, e);
}

static int read_norms(const struct layout *l, const uint8_t *bytes, struct kvc_error *e) {
    const int base = (int16_t)(uint16_t)(bytes[0] | bytes[1] << 8);
    if (base < NORM_LEAST || base > NORM_MOST)
        return kvc_fail(e, KVC_ERR_DAMAGED, "an exponent of %d is out of range", base);
    for (size_t c = 0; c < l->width; c++) {
        const uint8_t code = bytes[2 + c];
        l->norm[c] = ldexpf((float)(8 + code % 8), base + code / 8);
    }
    return 0;
}

/* x times or over the norms. */
static void apply_norms(const struct layout *l, float *x, const float *norm) {
    for (size_t t = 0; t < l->rows; t++) kvc_kernels_get()->multiply(x + t * l->width, norm, l->width);
}

/* Takes what was coded out of x, which has been divided by the norms: what is left is the residual. */
static int subtract(const struct layout *l, float *x, const struct class *k, struct kvc_error *e) {
    float *coded = kvc_alloc(l->rows, l->width * sizeof *coded);
    if (!coded) return kvc_fail_memory(e, "a residual");
    each_row(l, k, coded, l->step, dequantise_row);
    for (size_t i = 0; i < k->n_spans; i++) {
        const struct span *s = &k->span[i];
        for (size_t r = 0; r < s->rows; r++) {
            const size_t at = row_of(s, r) * l->width + s->channel;
            kvc_kernels_get()->add_scaled(x + at, coded + at, -1, s->width);
        }
    }
    free(coded);
    return 0;
}

static int encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block, uint8_t stage,
                  struct kvc_sections *out, struct kvc_error *e) {
    struct layout l;
    float *x = (float *)(void *)block->rows;
    (void)state;
    if (!block->shape.tokens) return 0;
    if (layout_init(&l, args, block, e)) return -1;
    int status = 0;
    if (l.normed) {
        status = add_norms(&l, x, stage, out, e) || read_norms(&l, l.packed, e);
        for (size_t c = 0; c < l.width; c++) l.inverse_norm[c] = 1 / l.norm[c];
        if (!status) apply_norms(&l, x, l.inverse_norm);
    }
    for (unsigned c = 0; c < l.n_classes && !status; c++) {
        status = encode_class(&l, c, x, stage, out, e);
        if (!status && block->residual && l.class[c].codes) status = subtract(&l, x, &l.class[c], e);
    }
    if (!status && l.normed && block->residual) apply_norms(&l, x, l.norm);
    layout_free(&l);
    return status ? -1 : 0;
}

/* --- decoding --- */

static int read_params(const struct layout *l, const struct class *k, const struct kvc_section *s, struct kvc_error *e) {
    const uint8_t *p = s->data, *end = p + s->size;
    if (kvc_halves_read(l->step, &p, end, k->params, e)) return kvc_error_prefix(e, "PARAMS");
    if (l->sym) centre(l, k);
    else if (kvc_halves_read(l->low, &p, end, k->params, e)) return kvc_error_prefix(e, "PARAMS");
    return p == end ? 0 : kvc_fail(e, KVC_ERR_DAMAGED, "section PARAMS has bytes after its numbers");
}

static int read_codes(const struct layout *l, const struct class *k, const struct kvc_section *s, struct kvc_error *e) {
    const size_t due = kvc_packed_bytes(k->codes, k->bits);
    if (s->size != due)
        return kvc_fail(e, KVC_ERR_DAMAGED, "section CODES has %u bytes where %zu are due", s->size, due);
    return kvc_packed_read(l->codes, s->data, k->codes, k->bits, e);
}

static int decode_sections(const struct layout *l, struct kvc_block *block, const struct kvc_section *next,
                           const struct kvc_section *end, struct kvc_error *e) {
    const struct kvc_section *s;
    float *x = (float *)(void *)block->rows;
    if (l->normed) {
        if (!(s = kvc_section_take_stored(&next, end, KVC_SECTION_NORMS, 0, e))) return -1;
        if (s->size != 2 + l->width) return kvc_fail(e, KVC_ERR_DAMAGED, "section NORMS is not a byte a channel");
        if (read_norms(l, s->data, e)) return -1;
    }
    /* the residual is the rows', not the normed rows' */
    float *left = NULL;
    const size_t values = l->rows * l->width;
    if (l->normed && block->residual) {
        if (!(left = kvc_alloc(values, sizeof *left))) return kvc_fail_memory(e, "a residual");
        memcpy(left, x, values * sizeof *left);
    }
    int status = 0;
    for (unsigned c = 0; c < l->n_classes && !status; c++) {
        const struct class *k = &l->class[c];
        if (!k->codes) continue;
        if (!(s = kvc_section_take_stored(&next, end, KVC_SECTION_PARAMS, c, e)) || read_params(l, k, s, e) ||
            !(s = kvc_section_take_stored(&next, end, KVC_SECTION_CODES, c, e)) || read_codes(l, k, s, e))
            status = -1;
        else each_row(l, k, x, l->step, block->residual && !l->normed ? dequantise_add_row : dequantise_row);
    }
    if (!status && l->normed) apply_norms(l, x, l->norm);
    if (!status && left) kvc_kernels_get()->add_scaled(x, left, 1, values);
    free(left);
    return status ? -1 : kvc_section_none_left(next, end, e);
}

static int decode(const struct kvc_stage_args *args, const struct kvc_stored *stored, struct kvc_block *block,
                  struct kvc_error *e) {
    struct layout l;
    if (stored->n_side) return kvc_section_none_left(stored->side, stored->side + stored->n_side, e);
    if (!block->shape.tokens) return kvc_section_none_left(stored->section, stored->section + stored->n, e);
    if (layout_init(&l, args, block, e)) return -1;
    const int status = decode_sections(&l, block, stored->section, stored->section + stored->n, e);
    layout_free(&l);
    return status;
}

/* Of every head and class where its parameters and codes begin; of every row and head its class and its rank there. */
static int lower_spans(const struct layout *l, struct kvc_program *program, struct kvc_device_op *op, struct kvc_error *e) {
    const struct class *k = l->class;
    if (k->n_spans == 1 && l->heads > 1) return 0;
    uint32_t *begin = program->table(program->owner, l->n_classes * l->heads * 2 * sizeof *begin, &op->quant.begin);
    if (!begin) return kvc_fail_memory(e, "groups");
    for (unsigned c = 0; c < l->n_classes; c++)
        for (size_t h = 0; h < l->heads; h++) {
            *begin++ = (uint32_t)l->class[c].span[h].param;
            *begin++ = (uint32_t)l->class[c].span[h].code;
        }
    op->quant.flags |= KVC_QUANT_BY_HEAD;
    if (l->n_classes == 1) return 0;
    uint16_t *rank = program->table(program->owner, l->rows * l->heads * sizeof *rank, &op->quant.rank);
    if (!rank) return kvc_fail_memory(e, "groups");
    for (unsigned c = 0; c < l->n_classes; c++)
        for (size_t h = 0; h < l->heads; h++) {
            const struct span *s = &l->class[c].span[h];
            for (size_t r = 0; r < s->rows; r++) rank[s->row[r] * l->heads + h] = (uint16_t)(r | c << 15);
        }
    return 0;
}

static int lower_class(const struct layout *l, unsigned c, const struct kvc_section **next, const struct kvc_section *end,
                       struct kvc_program *program, struct kvc_device_op *op, struct kvc_error *e) {
    const struct class *k = &l->class[c];
    const struct kvc_section *s;
    op->quant.bits[c] = k->bits;
    op->quant.centre[c] = -levels_of(k) / 2;
    if (!k->codes) return 0;
    if (!(s = kvc_section_take_stored(next, end, KVC_SECTION_PARAMS, c, e))) return -1;
    const uint8_t *p = s->data;
    if (!(op->quant.step[c] = kvc_program_halves(program, s, &p, k->params, e))) return kvc_error_prefix(e, "PARAMS");
    op->quant.low[c] = l->sym ? op->quant.step[c] : kvc_program_halves(program, s, &p, k->params, e); /* not read for `sym` */
    if (!op->quant.low[c]) return kvc_error_prefix(e, "PARAMS");
    if (p != s->data + s->size) return kvc_fail(e, KVC_ERR_DAMAGED, "section PARAMS has bytes after its numbers");
    if (!(s = kvc_section_take_stored(next, end, KVC_SECTION_CODES, c, e))) return -1;
    if (!(op->quant.codes[c] = kvc_program_bytes(program, s, kvc_packed_bytes(k->codes, k->bits), &p, e))) return -1;
    return k->bits < 8 ? kvc_packed_check(p, k->codes, k->bits, e) : 0;
}

static int lower(const struct kvc_stage_args *args, const struct kvc_stored *stored, struct kvc_block *block,
                 struct kvc_program *program, struct kvc_error *e) {
    struct layout l;
    const struct kvc_section *next = stored->section, *end = next + stored->n, *s;
    struct kvc_device_op op = kvc_program_op_of(KVC_OP_QUANT, &block->shape);
    if (stored->n_side) return kvc_section_none_left(stored->side, stored->side + stored->n_side, e);
    if (!block->shape.tokens) return kvc_section_none_left(stored->section, stored->section + stored->n, e);
    if (layout_init(&l, args, block, e)) return -1;
    int status = 0;
    if (l.normed) {
        if (!(s = kvc_section_take_stored(&next, end, KVC_SECTION_NORMS, 0, e))) status = -1;
        else if (s->size != 2 + l.width) status = kvc_fail(e, KVC_ERR_DAMAGED, "section NORMS is not a byte a channel");
        else status = read_norms(&l, s->data, e);
        if (!status && !(op.quant.norms = kvc_program_copy(program, l.norm, l.width * sizeof *l.norm, e))) status = -1;
    }
    op.quant.axis = l.axis == TOKENS ? KVC_QUANT_ROWS : l.axis == CHANNELS ? KVC_QUANT_CHANNELS : KVC_QUANT_ROW;
    op.quant.group = (uint32_t)l.group;
    op.quant.flags = (l.sym ? KVC_QUANT_SYM : 0) | (block->residual ? KVC_QUANT_ADD : 0);
    if (!status) status = lower_spans(&l, program, &op, e);
    for (unsigned c = 0; c < l.n_classes && !status; c++) status = lower_class(&l, c, &next, end, program, &op, e);
    if (!status) status = kvc_section_none_left(next, end, e);
    if (!status && !block->residual) status = kvc_program_begin(program, l.rows, e);
    if (!status) status = kvc_program_op(program, &op, e);
    layout_free(&l);
    return status ? -1 : 0;
}

const struct kvc_stage kvc_stage_quant = {
    .id = 8,
    .name = "quant",
    .summary = "uniform quantisation of groups, 1 to 8 bits",
    .flags = KVC_STAGE_FINITE | KVC_STAGE_FLOAT | KVC_STAGE_RESIDUAL,
    .args = arguments,
    .n_args = N_ARGS,
    .encode = encode,
    .decode = decode,
    .lower = lower,
};
