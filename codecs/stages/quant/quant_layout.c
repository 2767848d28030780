/* quant_layout.c: groups of a block and sections of `quant`. Spec: quant.md. */
#include "codecs/stages/quant/quant_layout.h"

#include "codecs/floats.h"
#include "codecs/little_endian.h"
#include "codecs/memory.h"
#include "codecs/planes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum scheme { KIVI, KCVT, TOKEN, ZIP };

static const char *const schemes[] = {"kivi", "kcvt", "token", "zip", NULL};

const struct kvc_arg kvc_quant_arguments[KVC_QUANT_ARGS] = {
    [KVC_QUANT_SCHEME] = {.kind = KVC_ARG_WORD, .words = schemes, .required = 1},
    [KVC_QUANT_BITS] = {.key = "bits", .min = 1, .max = 8, .required = 1},
    [KVC_QUANT_GROUP] = {.key = "g", .min = 1, .max = 65536, .fallback = 64},
    [KVC_QUANT_LOW] = {.key = "low", .min = 1, .max = 8, .fallback = 2},
    [KVC_QUANT_CLIP] = {.key = "clip", .kind = KVC_ARG_FLAG},
    [KVC_QUANT_SYMMETRIC] = {.key = "sym", .kind = KVC_ARG_FLAG},
};

int kvc_quant_is_normed(const struct kvc_stage_args *args) {
    return args->i[KVC_QUANT_SCHEME] == ZIP;
}

static void choose_axis(struct kvc_quant_layout *l, const struct kvc_stage_args *args,
                        unsigned role) {
    const int value = role == KVC_SELECT_V;
    const enum scheme scheme = (enum scheme)args->i[KVC_QUANT_SCHEME];
    l->group = (size_t)args->i[KVC_QUANT_GROUP];
    l->normed = kvc_quant_is_normed(args) && value;
    if (scheme == TOKEN || (scheme == KIVI && value)) l->axis = KVC_QUANT_CHANNELS;
    else if (value) l->axis = KVC_QUANT_ROW;
    else l->axis = KVC_QUANT_ROWS;
    if (scheme != KIVI && scheme != TOKEN) l->group = l->rows ? l->rows : 1;
}

/* Lists the rows of head h that belong to class c, and returns their number. */
static size_t list_rows(const struct kvc_block *block, size_t h, unsigned c, uint8_t *row) {
    size_t n = 0;
    for (size_t t = 0; t < block->shape.tokens; t++)
        if (block->salient[t * block->shape.heads + h] == (c == 0)) row[n++] = (uint8_t)t;
    return n;
}

void kvc_quant_layout_free(struct kvc_quant_layout *l) {
    for (unsigned i = 0; i < 3; i++) free(l->memory[i]);
}

/* Makes the spans of all classes, each with its first parameter and code. */
static int make_spans(struct kvc_quant_layout *l, const struct kvc_stage_args *args,
                      const struct kvc_block *block, struct kvc_error *e) {
    const int apart = block->salient != NULL,
              by_head = apart || (l->axis == KVC_QUANT_CHANNELS && l->dim % l->group != 0);
    const size_t spans = by_head ? l->heads : 1;
    l->n_classes = apart ? 2 : 1;
    struct kvc_quant_span *span = l->memory[0] = kvc_alloc_zeros(l->n_classes,
                                                                 spans * sizeof *span);
    uint8_t *row = l->memory[1] = kvc_alloc(apart ? l->n_classes * spans : 0, l->rows);
    if (!span || !row) return kvc_fail_memory(e, "groups");
    for (unsigned c = 0; c < l->n_classes; c++) {
        struct kvc_quant_class *k = &l->class[c];
        k->bits = (unsigned)args->i[c ? KVC_QUANT_LOW : KVC_QUANT_BITS];
        k->span = span + c * spans;
        k->n_spans = spans;
        for (size_t i = 0; i < spans; i++) {
            struct kvc_quant_span *s = &k->span[i];
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
            if (l->axis == KVC_QUANT_ROWS)
                k->params += kvc_quant_groups(s->rows, l->group) * s->width;
            else if (l->axis == KVC_QUANT_CHANNELS)
                k->params += s->rows * kvc_quant_groups(s->width, l->group);
            else if (s->rows > k->params) k->params = s->rows;
        }
    }
    return 0;
}

int kvc_quant_layout_init(struct kvc_quant_layout *l, const struct kvc_stage_args *args,
                          const struct kvc_block *block, struct kvc_error *e) {
    memset(l, 0, sizeof *l);
    l->rows = (size_t)block->shape.tokens;
    l->heads = (size_t)block->shape.heads;
    l->dim = (size_t)block->shape.dim;
    l->width = l->heads * l->dim;
    l->sym = (int)args->i[KVC_QUANT_SYMMETRIC];
    l->clip = (int)args->i[KVC_QUANT_CLIP];
    choose_axis(l, args, block->role);
    if (make_spans(l, args, block, e)) {
        kvc_quant_layout_free(l);
        return -1;
    }
    size_t params = 0, codes = 0;
    for (unsigned c = 0; c < l->n_classes; c++) {
        params = l->class[c].params > params ? l->class[c].params : params;
        codes = l->class[c].codes > codes ? l->class[c].codes : codes;
    }
    /* room for the largest section: parameters, packed codes, or norms */
    size_t packed = 2 * KVC_HALVES_BOUND(params);
    if (codes + 32 > packed) packed = codes + 32;
    if (l->width + 2 > packed) packed = l->width + 2;
    float *floats = l->memory[2] = malloc((4 * params + 3 * l->width) * sizeof *floats + codes +
                                          packed);
    if (!floats) {
        kvc_quant_layout_free(l);
        return kvc_fail_memory(e, "groups");
    }
    l->low = floats;
    l->step = l->low + params;
    l->high = l->step + params;
    l->inverse = l->high + params;
    l->norm = l->inverse + params;
    l->norm_low = l->norm + l->width;
    l->norm_inverse = l->norm_low + l->width;
    l->codes = (uint8_t *)(l->norm_inverse + l->width);
    l->packed = l->codes + codes;
    return 0;
}

int kvc_quant_read_norms(const struct kvc_quant_layout *l, const uint8_t *bytes,
                         struct kvc_error *e) {
    const int base = (int16_t)get_u16(bytes);
    if (base < KVC_QUANT_NORM_MIN || base > KVC_QUANT_NORM_MAX)
        return kvc_fail(e, KVC_ERR_DAMAGED, "an exponent of %d is out of range", base);
    for (size_t c = 0; c < l->width; c++) {
        const uint8_t code = bytes[2 + c];
        l->norm[c] = ldexpf((float)(8 + code % 8), base + code / 8);
    }
    return 0;
}

int kvc_quant_open(struct kvc_quant_sections *s, const struct kvc_quant_layout *l,
                   const struct kvc_stored *stored, struct kvc_error *e) {
    const struct kvc_section *next = stored->section, *end = next + stored->n;
    memset(s, 0, sizeof *s);
    if (l->normed) {
        if (!(s->norms = kvc_section_take_stored(&next, end, KVC_SECTION_NORMS, 0, e))) return -1;
        if (s->norms->size != 2 + l->width)
            return kvc_fail(e, KVC_ERR_DAMAGED, "section NORMS is not a byte a channel");
        if (kvc_quant_read_norms(l, s->norms->data, e)) return -1;
    }
    for (unsigned c = 0; c < l->n_classes; c++) {
        const struct kvc_quant_class *k = &l->class[c];
        const size_t due = kvc_packed_bytes(k->codes, k->bits);
        if (!k->codes) continue;
        if (!(s->params[c] = kvc_section_take_stored(&next, end, KVC_SECTION_PARAMS, c, e)) ||
            !(s->codes[c] = kvc_section_take_stored(&next, end, KVC_SECTION_CODES, c, e)))
            return -1;
        if (s->codes[c]->size != due)
            return kvc_fail(e, KVC_ERR_DAMAGED, "section CODES has %u bytes where %zu are due",
                            s->codes[c]->size, due);
    }
    return kvc_section_none_left(next, end, e);
}
