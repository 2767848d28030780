/* fast_cut.h: how `fast` cuts the words of a block, chosen once for the CPU's encoder (fast.c) and
 * for a device's, and the sections of a block that a device has cut. Spec: fast.md. Not for cutting
 * (kernels). */
#ifndef KVC_FAST_CUT_H
#define KVC_FAST_CUT_H

#include "codecs/stage.h"
#include "kernels/device/encode_launch.h"

/* Widths of codes; the longest distance of two escapes. */
enum { KVC_FAST_WIDTH_MIN = 1, KVC_FAST_WIDTH_MAX = 7, KVC_FAST_FARTHEST = 255 };

/* Returns the mantissa bits of the 16-bit words of a dtype, and the bytes below them; 0 if `fast`
 * stores its rows unchanged. */
unsigned kvc_fast_mantissa(enum kvc_dtype dtype, unsigned *below);

/* Chooses the width of codes and the begin of their window so that values cost the fewest bits.
 * count[i] values have an exponent of i more than the bias of their channel, mod the number of
 * exponents. Moves the n biases, and returns the width. */
unsigned kvc_fast_choose(const uint32_t count[256], uint64_t values, unsigned mantissa,
                         uint16_t *bias, size_t n);

/* Writes PARAMS: the width, then the n biases around a middle one. Returns the bytes, at most
 * KVC_FAST_PARAMS(n). */
#define KVC_FAST_PARAMS(n) (4 + 5 * (size_t)(n))
size_t kvc_fast_put_params(uint8_t *to, const uint16_t *bias, size_t n, unsigned mantissa,
                           unsigned width);

/* A block as a device has cut it. */
struct kvc_fast_cut {
    unsigned width;
    const uint16_t *bias;                     /* a channel, not shifted */
    const uint8_t *low, *codes;               /* a byte a value; packed */
    const uint8_t *plane[2];                  /* of f32 */
    const struct kvc_encode_escapes *escapes; /* a tile */
    const uint32_t *list;                     /* entries of escapes */
};

/* Adds the sections of a block of this shape, as kvc_stage_fast.encode() does. Returns 1, and adds
 * nothing, if these would not be smaller than the rows: the block is then coded by the stage. */
int kvc_fast_add_cut(const struct kvc_shape *shape, const struct kvc_fast_cut *cut, uint8_t stage,
                     struct kvc_sections *out, struct kvc_error *e);

#endif
