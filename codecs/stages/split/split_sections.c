/* split_sections.c: opens the sections of a block that `split` coded. Spec: split.md. */
#include "codecs/stages/split/split_sections.h"

#include "codecs/little_endian.h"
#include "codecs/planes.h"

#include <string.h>

unsigned kvc_split_table(unsigned tables, unsigned c) {
    for (unsigned k = c + 1; k-- > 0;)
        if (tables >> k & 1) return k;
    return (unsigned)__builtin_ctz(tables);
}

size_t kvc_split_stream(const struct kvc_split *s, size_t i) {
    return get_u32(s->sizes + 4 * i);
}

/* Reads the header of CODES and its tables. */
static int open_tables(struct kvc_split *s, struct kvc_bits *in, struct kvc_error *e) {
    const uint8_t *p = s->codes->data;
    if (s->codes->size < KVC_SPLIT_HEADER)
        return kvc_fail(e, KVC_ERR_DAMAGED, "section CODES is too short");
    s->bits = p[0] & 15;
    s->lanes = 1u << (p[0] >> 4);
    s->tables = p[1];
    s->per = get_u16(p + 2);
    if (s->bits < KVC_RANS_MIN_BITS || s->bits > KVC_RANS_MAX_BITS || s->lanes > KVC_RANS_LANES ||
        !s->tables || !s->per || s->per > s->rows)
        return kvc_fail(e, KVC_ERR_DAMAGED, "the header of section CODES is out of range");
    *in = (struct kvc_bits){.read = p,
                            .at = 8 * KVC_SPLIT_HEADER,
                            .limit = 8 * (size_t)s->codes->size};
    for (unsigned k = 0; k < KVC_CONTEXTS; k++)
        if (s->tables >> k & 1 &&
            kvc_rans_table_read(in, s->frequency[k], kvc_words_alphabet(s->form), s->bits, e))
            return -1;
    return 0;
}

/* Finds the streams after the tables. */
static int open_streams(struct kvc_split *s, struct kvc_bits *in, struct kvc_error *e) {
    if (kvc_bits_get(in, (unsigned)(-in->at % 32)))
        return kvc_fail(e, KVC_ERR_DAMAGED, "padding after tables is not 0");
    const size_t at = in->at / 8;
    s->streams = (s->rows + s->per - 1) / s->per;
    if (in->bad || (s->codes->size - at) / (4 + 4 * s->lanes) < s->streams)
        return kvc_fail(e, KVC_ERR_DAMAGED, "section CODES is too short");
    s->sizes = s->codes->data + at;
    s->states = s->sizes + 4 * s->streams;
    s->words = s->states + 4 * s->lanes * s->streams;
    size_t left = (size_t)(s->codes->data + s->codes->size - s->words);
    for (size_t i = 0; i < s->streams; i++) {
        const size_t size = kvc_split_stream(s, i);
        if (size > left) return kvc_fail(e, KVC_ERR_DAMAGED, "section CODES is too short");
        if (size % 2) return kvc_fail(e, KVC_ERR_DAMAGED, "an rANS stream ends in half a word");
        left -= size;
    }
    return left ? kvc_fail(e, KVC_ERR_DAMAGED, "section CODES is too long") : 0;
}

int kvc_split_predicts(enum kvc_dtype dtype) {
    return kvc_words_of(dtype)->format || dtype == KVC_Q8_0;
}

int kvc_split_open(struct kvc_split *s, const struct kvc_shape *shape, int predicted,
                   const struct kvc_section *sections, size_t n, struct kvc_error *e) {
    const struct kvc_dtype_info *info = kvc_dtype_info(shape->dtype);
    const struct kvc_section *next = sections, *end = n ? sections + n : sections, *params;
    struct kvc_bits in;
    memset(s, 0, offsetof(struct kvc_split, frequency));
    s->form = kvc_words_of(shape->dtype);
    s->rows = (size_t)shape->tokens;
    s->n = (size_t)(shape->heads * shape->dim);
    s->values = s->rows * s->n;
    s->blocks = s->values / info->block;
    if (kvc_channels_init(&s->model, s->n, s->form->format, s->form->bits, e)) return -1;
    if (!s->values && !n) return 0;
    for (unsigned p = 0; p < s->form->planes; p++)
        if (!(s->plane[p] = kvc_section_take(&next, end, KVC_SECTION_PLANE, p, e))) return -1;
    if (next != end && next->type == KVC_SECTION_PARAMS) {
        if (!(params = kvc_section_take_stored(&next, end, KVC_SECTION_PARAMS, 0, e)) ||
            kvc_channels_read(&s->model, predicted && kvc_split_predicts(shape->dtype),
                              params->data, params->size, e))
            return -1;
    } else {
        kvc_channels_flat(&s->model);
    }
    const unsigned shift = kvc_words_shift(s->form);
    s->low_size = shift == 8 ? s->values : shift ? KVC_PACKED(s->values, shift) : 0;
    if (!(s->codes = kvc_section_take_stored(&next, end, KVC_SECTION_CODES, 0, e)) ||
        open_tables(s, &in, e) || open_streams(s, &in, e))
        return -1;
    if (shift && !(s->low = kvc_section_take(&next, end, KVC_SECTION_PLANE, s->form->planes, e)))
        return -1;
    return kvc_section_none_left(next, end, e);
}

void kvc_split_close(struct kvc_split *s) {
    kvc_channels_free(&s->model);
}
