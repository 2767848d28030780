/* prune.c: the stage that leaves out the channels of the lowest scores. Spec: prune.md. */
#include "codecs/floats.h"
#include "codecs/memory.h"
#include "codecs/probes.h"
#include "codecs/program.h"
#include "codecs/stage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { OF_K, OF_V, BY, MEAN, WINDOW, N_ARGS };
enum { BY_QUERY, BY_L1, BY_L2 };

static const char *const rules[] = {"query", "l1", "l2", NULL};

static const struct kvc_arg arguments[N_ARGS] = {
    [OF_K] = {.key = "k", .kind = KVC_ARG_REAL, .least = 0, .most = 0.95, .otherwise = 0},
    [OF_V] = {.key = "v", .kind = KVC_ARG_REAL, .least = 0, .most = 0.95, .otherwise = 0},
    [BY] = {.key = "by", .kind = KVC_ARG_WORD, .words = rules, .fallback = BY_QUERY},
    [MEAN] = {.key = "mean", .kind = KVC_ARG_FLAG},
    [WINDOW] = {.key = "window", .min = 1, .max = 65536, .fallback = 32},
};

static int prune_check(const struct kvc_stage_args *args, struct kvc_error *e) {
    if (args->f[OF_K] > 0 || args->f[OF_V] > 0) return 0;
    return kvc_fail(e, KVC_ERR_USAGE,
                    "prune needs k=0..0.95, v=0..0.95 or both: the share of channels to leave out");
}

static int prune_asks(const struct kvc_stage_args *args) {
    return args->i[BY] == BY_QUERY;
}

/* Channels of each head that are left out: floor(dim * share), as ThinK keeps floor((1 - share)
 * dim). */
static size_t left_out(const struct kvc_stage_args *args, unsigned role, uint64_t dim) {
    return (size_t)floor((double)dim * args->f[role == KVC_SELECT_V ? OF_V : OF_K]);
}

struct state {
    size_t heads, dim, out; /* out: channels of each head that are left out */
    uint8_t *pruned;        /* [head][channel] 1: left out */
    enum kvc_dtype own;
    double mean[]; /* [head][channel] */
};

/* Sums over the segment's tame values: x, |x|, x^2, each [head * channel], and how many there
 * were. */
static int sum_up(const struct kvc_encoding *x, unsigned role, size_t width, double *sum,
                  struct kvc_error *e) {
    double *plain = sum, *size = sum + width, *square = sum + 2 * width, *count = sum + 3 * width;
    float *rows = kvc_alloc(KVC_MAX_BLOCK_ROWS, width * sizeof *rows);
    if (!rows) return kvc_fail_memory(e, "channels");
    memset(sum, 0, 4 * width * sizeof *sum);
    const uint64_t stop = x->first + x->segment_rows;
    int status = 0;
    for (uint64_t t = x->first; t < stop && !status; t += KVC_MAX_BLOCK_ROWS) {
        const uint64_t n = stop - t < KVC_MAX_BLOCK_ROWS ? stop - t : KVC_MAX_BLOCK_ROWS;
        status = x->read(x, role, t, n, rows, e);
        for (size_t r = 0; r < n && !status; r++)
            for (size_t i = 0; i < width; i++) {
                const double v = (double)rows[r * width + i];
                if (!kvc_is_tame(rows[r * width + i])) continue; /* `finite` keeps it */
                plain[i] += v;
                size[i] += fabs(v);
                square[i] += v * v;
                count[i] += 1;
            }
    }
    free(rows);
    return status;
}

/* Scores the cost of leaving a channel out: ThinK (arXiv 2407.21018), equation 5 in its group-query
 * form, ||Q_j K_j^T||_F^2 up to a constant; with `mean`, where what is left out varies around a
 * mean that stays, the variance takes the place of the mean square. */
static int score(const struct kvc_stage_args *args, const struct kvc_encoding *x, unsigned role,
                 struct state *s, double *to, struct kvc_error *e) {
    const size_t width = s->heads * s->dim;
    double *sum = kvc_alloc(width, 4 * sizeof *sum), *energy = kvc_alloc(width, sizeof *energy);
    const int64_t by = args->i[BY];
    int status = sum && energy ? sum_up(x, role, width, sum, e) : kvc_fail_memory(e, "channels");
    if (!status && by == BY_QUERY) {
        if (role == KVC_SELECT_V)
            status = kvc_probes_output_energy(x, (uint64_t)args->i[WINDOW], energy, e);
        else kvc_probes_query_energy(x, (uint64_t)args->i[WINDOW], energy);
    }
    for (size_t i = 0; i < width && !status; i++) {
        const double n = sum[3 * width + i] > 0 ? sum[3 * width + i] : 1, mean = sum[i] / n;
        const double square = sum[2 * width + i] / n,
                     left = args->i[MEAN] ? square - mean * mean : square;
        s->mean[i] = mean;
        if (by == BY_L1) to[i] = sum[width + i] / n;
        else if (by == BY_L2) to[i] = left;
        else if (role == KVC_SELECT_V) to[i] = energy[i];
        else to[i] = energy[i] * left;
    }
    free(sum);
    free(energy);
    return status;
}

/* Orders places in the scores of a head: the lowest first, and among equals the first. */
static int lowest_first(const void *x, const void *y) {
    const double *a = *(const double *const *)x, *b = *(const double *const *)y;
    return *a < *b ? -1 : *a > *b ? 1 : a < b ? -1 : a > b;
}

/* Marks the lowest scores of a head. `place` has room for one of each. */
static void prune_mark(const double *score, uint8_t *pruned, size_t dim, size_t out,
                       const double **place) {
    for (size_t d = 0; d < dim; d++) place[d] = score + d;
    qsort(place, dim, sizeof *place, lowest_first);
    for (size_t k = 0; k < out; k++) pruned[place[k] - score] = 1;
}

static int prune_begin(const struct kvc_stage_args *args, const struct kvc_encoding *x,
                       const struct kvc_block *like, void **state, struct kvc_error *e) {
    struct state *s = kvc_alloc_after(sizeof *s, like->shape.heads,
                                      like->shape.dim * (sizeof *s->mean + 1));
    if (!s) return kvc_fail_memory(e, "channels");
    *state = s;
    s->heads = (size_t)like->shape.heads;
    s->dim = (size_t)like->shape.dim;
    s->own = like->shape.dtype;
    s->out = left_out(args, like->role, like->shape.dim);
    if (!s->out) return 0;
    if (args->i[BY] == BY_QUERY && !x->n_queries)
        return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_QUERIES,
                             "there are no queries to rank channels by; by=l2 needs none");
    const struct kvc_shape *source = like->role == KVC_SELECT_V ? &x->value : &x->key;
    if (source->heads != s->heads || source->dim != s->dim)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "another stage has changed the channels before");
    s->pruned = (uint8_t *)(s->mean + s->heads * s->dim);
    double *scores = kvc_alloc(s->heads, s->dim * sizeof *scores);
    const double **place = kvc_alloc(s->dim, sizeof *place);
    int status = scores && place ? score(args, x, like->role, s, scores, e)
                                 : kvc_fail_memory(e, "channels");
    for (size_t h = 0; h < s->heads && !status; h++)
        prune_mark(scores + h * s->dim, s->pruned + h * s->dim, s->dim, s->out, place);
    free(place);
    free(scores);
    return status;
}

static int prune_settle(const struct kvc_stage_args *args, void *state, uint8_t stage,
                        struct kvc_sections *side, struct kvc_error *e) {
    const struct state *s = state;
    const size_t width = s->heads * s->dim, size = kvc_dtype_info(s->own)->size;
    if (!s->out) return 0;
    uint8_t *bits = calloc(1, (width + 7) / 8), *means = kvc_alloc(s->heads * s->out, size);
    int status = bits && means ? 0 : kvc_fail_memory(e, "channels");
    size_t n = 0;
    for (size_t i = 0; i < width && !status; i++) {
        if (!s->pruned[i]) continue;
        const float mean = (float)s->mean[i];
        bits[i / 8] |= (uint8_t)(1u << i % 8);
        kvc_from_floats(means + n++ * size, &mean, 1, s->own);
    }
    if (!status)
        status = kvc_sections_add(side, KVC_SECTION_MASK, stage, 0, bits, (width + 7) / 8, 0, e);
    if (!status && args->i[MEAN])
        status = kvc_sections_add(side, KVC_SECTION_MEAN, stage, 0, means, n * size, 0, e);
    free(bits);
    free(means);
    return status;
}

/* Refuses a mask that does not leave out as many channels of each head. */
static int check_mask(const struct kvc_section *s, size_t heads, size_t dim, size_t out,
                      struct kvc_error *e) {
    if (s->size != (heads * dim + 7) / 8)
        return kvc_fail(e, KVC_ERR_DAMAGED, "section MASK is not a bit a channel");
    if (heads * dim % 8 && s->data[s->size - 1] >> heads * dim % 8)
        return kvc_fail(e, KVC_ERR_DAMAGED, "section MASK has bits of channels that are not there");
    for (size_t h = 0; h < heads; h++) {
        size_t n = 0;
        for (size_t i = h * dim; i < (h + 1) * dim; i++) n += s->data[i / 8] >> i % 8 & 1;
        if (n != out)
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "section MASK leaves out %zu channels of head %zu, not %zu", n, h, out);
    }
    return 0;
}

/* Takes the channels that the segment left out before rows were added to it. Their means, which no
 * row needs to be coded, stay as well. */
static int prune_adopt(const struct kvc_stage_args *args, void *state,
                       const struct kvc_stored *stored, struct kvc_error *e) {
    struct state *s = state;
    const struct kvc_section *next = stored->side, *end_side = next + stored->n_side, *mask;
    (void)args;
    if (!s->out) return kvc_section_none_left(next, end_side, e);
    if (!(mask = kvc_section_take_stored(&next, end_side, KVC_SECTION_MASK, 0, e))) return -1;
    if (check_mask(mask, s->heads, s->dim, s->out, e)) return -1;
    for (size_t i = 0; i < s->heads * s->dim; i++) s->pruned[i] = mask->data[i / 8] >> i % 8 & 1;
    return 0;
}

/* Copies a value of 2 or 4 bytes. */
static inline void copy_value(uint8_t *to, const uint8_t *from, size_t size) {
    if (size == 2) memmove(to, from, 2);
    else memmove(to, from, 4);
}

/* Channels of a row that are not left out, and how many. */
static size_t list_kept(const uint8_t *bits, const uint8_t *pruned, size_t width, uint32_t *kept) {
    size_t n = 0;
    for (size_t i = 0; i < width; i++)
        if (!(bits ? bits[i / 8] >> i % 8 & 1 : pruned[i])) kept[n++] = (uint32_t)i;
    return n;
}

static int prune_encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                        uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    const struct state *s = state;
    const size_t width = s->heads * s->dim, rows = (size_t)block->shape.tokens,
                 size = kvc_dtype_info(block->own)->size;
    (void)args, (void)stage, (void)out;
    if (!s->out) return 0;
    uint32_t *kept = kvc_alloc(width, sizeof *kept);
    if (!kept) return kvc_fail_memory(e, "channels");
    const size_t n = list_kept(NULL, s->pruned, width, kept);
    /* rows shrink, so that no value is overwritten before it is read */
    for (size_t t = 0; t < rows; t++)
        for (size_t i = 0; i < n; i++)
            copy_value(block->rows + (t * n + i) * size, block->rows + (t * width + kept[i]) * size,
                       size);
    free(kept);
    block->shape.dim -= s->out;
    return 0;
}

static int prune_open(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                      struct kvc_block *block, struct kvc_error *e) {
    const struct kvc_section *next = stored->side, *end_side = next + stored->n_side, *s;
    const size_t out = left_out(args, block->role, block->shape.dim),
                 dim = (size_t)block->shape.dim;
    const size_t heads = (size_t)block->shape.heads, size = kvc_dtype_info(block->own)->size;
    if (kvc_stored_none(stored, e)) return -1;
    if (!out) return kvc_section_none_left(next, end_side, e);
    if (!(s = kvc_section_take_stored(&next, end_side, KVC_SECTION_MASK, 0, e))) return -1;
    if (check_mask(s, heads, dim, out, e)) return -1;
    if (args->i[MEAN]) {
        if (!(s = kvc_section_take_stored(&next, end_side, KVC_SECTION_MEAN, 0, e))) return -1;
        if (s->size != heads * out * size)
            return kvc_fail(e, KVC_ERR_DAMAGED, "section MEAN is not a value a channel");
    }
    block->shape.dim -= out;
    return kvc_section_none_left(next, end_side, e);
}

/* The side sections, which prune_open() has checked. */
struct sections {
    const uint8_t *mask, *means; /* means: NULL where left-out channels are 0 */
};

static struct sections sections_of(const struct kvc_stage_args *args,
                                   const struct kvc_stored *stored) {
    return (struct sections){stored->side[0].data, args->i[MEAN] ? stored->side[1].data : NULL};
}

/* Fills a row with the values of left-out channels: zeros, or their means. */
static void empty_row(uint8_t *row, const uint8_t *mask, const uint8_t *means, size_t width,
                      size_t size) {
    memset(row, 0, width * size);
    for (size_t i = 0; means && i < width; i++) {
        if (!(mask[i / 8] >> i % 8 & 1)) continue;
        memcpy(row + i * size, means, size);
        means += size;
    }
}

static int prune_decode(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                        struct kvc_block *block, struct kvc_error *e) {
    const size_t size = kvc_dtype_info(block->own)->size,
                 width = (size_t)(block->shape.heads * block->shape.dim);
    const size_t rows = (size_t)block->shape.tokens,
                 n = (size_t)(block->handed.heads * block->handed.dim);
    if (n == width) return 0;
    const struct sections s = sections_of(args, stored);
    uint32_t *kept = kvc_alloc(width, sizeof *kept + 2 * size);
    if (!kept) return kvc_fail_memory(e, "channels");
    uint8_t *empty = (uint8_t *)(kept + width), *from = empty + width * size;
    list_kept(s.mask, NULL, width, kept);
    empty_row(empty, s.mask, s.means, width, size);
    /* from the end, so that no row is overwritten before it has moved */
    for (size_t t = rows; t-- > 0;) {
        uint8_t *row = block->rows + t * width * size;
        memcpy(from, block->rows + t * n * size, n * size);
        memcpy(row, empty, width * size);
        for (size_t i = 0; i < n; i++) copy_value(row + kept[i] * size, from + i * size, size);
    }
    free(kept);
    return 0;
}

static int prune_lower(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                       struct kvc_block *block, struct kvc_program *program, struct kvc_error *e) {
    const size_t size = kvc_dtype_info(block->own)->size,
                 width = (size_t)(block->shape.heads * block->shape.dim);
    const size_t n = (size_t)(block->handed.heads * block->handed.dim),
                 dim = (size_t)block->shape.dim;
    struct kvc_device_op op = kvc_program_op_of(KVC_OP_SPREAD, &block->shape);
    void *map, *words = NULL;
    if (n == width) return 0;
    if (dim > KVC_DEVICE_TILE) return 1;
    const struct sections s = sections_of(args, stored);
    if (kvc_program_keep(program, s.mask, 0, 2 * width, &map, &op.spread.map, e)) return -1;
    uint16_t *to = map, stored_here = 0;
    for (size_t i = 0; i < width && to; i++) {
        if (i % dim == 0) stored_here = 0;
        to[i] = s.mask[i / 8] >> i % 8 & 1 ? UINT16_MAX : stored_here++;
    }
    if (s.means && kvc_program_keep(program, s.mask, 1, 4 * width, &words, &op.spread.empty, e))
        return -1;
    uint32_t *word = words;
    for (size_t i = 0, left = 0; i < width && word; i++) {
        word[i] = 0;
        if (s.mask[i / 8] >> i % 8 & 1) memcpy(&word[i], s.means + left++ * size, size);
    }
    op.spread.stored = (uint32_t)block->handed.dim;
    return kvc_program_op(program, &op, e);
}

const struct kvc_stage kvc_stage_prune = {
    .id = 11,
    .name = "prune",
    .summary = "leaves out the channels of least use to queries",
    .flags = KVC_STAGE_FINITE | KVC_STAGE_LOOKS | KVC_STAGE_HEADS | KVC_STAGE_SIDE |
             KVC_STAGE_NARROWS,
    .asks = prune_asks,
    .args = arguments,
    .n_args = N_ARGS,
    .check = prune_check,
    .begin = prune_begin,
    .settle = prune_settle,
    .adopt = prune_adopt,
    .end = free,
    .encode = prune_encode,
    .open = prune_open,
    .decode = prune_decode,
    .lower = prune_lower,
};
