/* fast_cut.c: chooses how `fast` cuts words, and adds the sections of blocks that a device has cut.
 * Spec: fast.md. */
#include "codecs/stages/fast/fast_cut.h"

#include "codecs/bits.h"
#include "codecs/planes.h"
#include "kernels/kernels.h"

#include <stdlib.h>

unsigned kvc_fast_mantissa(enum kvc_dtype dtype, unsigned *below) {
    *below = dtype == KVC_F32 ? 2 : 0;
    return dtype == KVC_F16 ? 10 : dtype == KVC_BF16 || dtype == KVC_F32 ? 7 : 0;
}

unsigned kvc_fast_choose(const uint32_t count[256], uint64_t values, unsigned mantissa,
                         uint16_t *bias, size_t n) {
    /* bits of a code below the exponent */
    const unsigned exponents = 1u << (15 - mantissa), part = mantissa - 7;
    unsigned best = KVC_FAST_WIDTH_MAX, shift = 0;
    uint64_t least = UINT64_MAX;
    for (unsigned width = part + KVC_FAST_WIDTH_MIN;
         width <= KVC_FAST_WIDTH_MAX && 1u << (width - part) <= exponents; width++) {
        uint64_t inside = 0;
        const unsigned window = 1u << (width - part);
        for (unsigned i = 0; i < window; i++) inside += count[i];
        for (unsigned s = 0; s < exponents; s++) { /* the window begins at exponent difference s */
            const uint64_t bits = values * width + 17 * (values - inside);
            if (bits < least) {
                least = bits;
                best = width;
                shift = s;
            }
            inside += count[(s + window) & (exponents - 1)];
            inside -= count[s];
        }
    }
    for (size_t i = 0; i < n; i++) bias[i] = (uint16_t)((bias[i] + shift) & (exponents - 1));
    return best;
}

size_t kvc_fast_put_params(uint8_t *to, const uint16_t *bias, size_t n, unsigned mantissa,
                           unsigned width) {
    struct kvc_bits b = {.bytes = to};
    const unsigned exponents = 1u << (15 - mantissa);
    uint64_t sum = 0, spread = 0;
    for (size_t i = 0; i < n; i++) sum += bias[i];
    const unsigned middle = (unsigned)(sum / n);
    for (size_t i = 0; i < n; i++) spread += kvc_zigzag((int)bias[i] - (int)middle);
    const unsigned k = kvc_bits_rice_for(spread, n);
    kvc_bits_put(&b, width, 4);
    kvc_bits_put(&b, k, 4);
    kvc_bits_put(&b, middle & (exponents - 1), 8);
    for (size_t i = 0; i < n; i++) kvc_bits_put_rice(&b, kvc_zigzag((int)bias[i] - (int)middle), k);
    return (b.at + 7) / 8;
}

/* --- blocks that a device has cut --- */

/* Returns value i of packed codes. */
static uint8_t code_at(const uint8_t *codes, size_t i, unsigned width) {
    uint8_t group[32];
    kvc_kernels_get()->unpack_bits(group, codes + i / 32 * 4 * width, 32, width);
    return group[i % 32];
}

/* Writes ESCAPES of a block of `values` values: distances and high bytes. Returns the bytes; more
 * than `room` if they do not fit. */
static size_t put_escapes(uint8_t *to, size_t room, const struct kvc_fast_cut *cut, size_t values) {
    size_t used = 0, next = 0; /* next: the value a distance of 0 means */
    for (size_t first = 0; first < values; first += KVC_ENCODE_TILE) {
        const struct kvc_encode_escapes *tile = &cut->escapes[first / KVC_ENCODE_TILE];
        for (uint32_t k = 0; k < tile->n; k++) {
            const uint32_t entry = cut->list[tile->first + k];
            const size_t i = first + (entry >> 8);
            /* escapes that change nothing bridge a long distance */
            for (; i - next > KVC_FAST_FARTHEST; next += KVC_FAST_FARTHEST + 1, used += 2) {
                if (used + 2 > room) return room + 1;
                to[used] = KVC_FAST_FARTHEST;
                to[used + 1] = code_at(cut->codes, next + KVC_FAST_FARTHEST, cut->width);
            }
            if (used + 2 > room) return room + 1;
            to[used++] = (uint8_t)(i - next);
            to[used++] = (uint8_t)entry;
            next = i + 1;
        }
    }
    return used;
}

static int add_sections(const struct kvc_shape *shape, const struct kvc_fast_cut *cut,
                        uint8_t *room, size_t size, uint8_t stage, struct kvc_sections *out,
                        struct kvc_error *e) {
    unsigned below;
    const unsigned mantissa = kvc_fast_mantissa(shape->dtype, &below);
    const size_t n = (size_t)(shape->heads * shape->dim), values = (size_t)shape->tokens * n;
    for (unsigned p = 0; p < below; p++)
        if (kvc_plane_add(out, stage, (uint8_t)p, cut->plane[p], values, e)) return -1;
    const size_t params = kvc_fast_put_params(room, cut->bias, n, mantissa, cut->width);
    if (kvc_sections_add(out, KVC_SECTION_PARAMS, stage, 0, room, params, 0, e) ||
        kvc_plane_add(out, stage, (uint8_t)below, cut->low, values, e))
        return -1;
    const size_t escapes = put_escapes(room, size, cut, values);
    if (escapes > size) return 1;
    if (escapes && kvc_sections_add(out, KVC_SECTION_ESCAPES, stage, 0, room, escapes, 0, e))
        return -1;
    return kvc_sections_add(out, KVC_SECTION_CODES, stage, 0, cut->codes,
                            KVC_PACKED(values, cut->width), 0, e);
}

int kvc_fast_add_cut(const struct kvc_shape *shape, const struct kvc_fast_cut *cut, uint8_t stage,
                     struct kvc_sections *out, struct kvc_error *e) {
    const size_t count = out->count, used = out->used,
                 size = (size_t)(shape->tokens * kvc_row_bytes(shape)),
                 params = KVC_FAST_PARAMS(shape->heads * shape->dim);
    uint8_t *room = malloc(size > params ? size : params);
    if (!room) return kvc_fail_memory(e, "a block");
    const int status = add_sections(shape, cut, room, size, stage, out, e);
    free(room);
    if (status < 0) return -1;
    if (!status &&
        out->used - used + (out->count - count) * KVC_SECTION_COST < size + KVC_SECTION_COST)
        return 0;
    out->count = count;
    out->used = used;
    return 1;
}
