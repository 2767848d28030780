/* quant_layout.h: how a block falls into groups that `quant` quantises together, and its sections,
 * checked and opened once for the CPU (quant.c) and for a device (quant_device.c). Spec: quant.md.
 */
#ifndef KVC_QUANT_LAYOUT_H
#define KVC_QUANT_LAYOUT_H

#include "codecs/stage.h"
#include "kernels/device/launch.h"

enum kvc_quant_arg {
    KVC_QUANT_SCHEME,
    KVC_QUANT_BITS,
    KVC_QUANT_GROUP,
    KVC_QUANT_LOW,
    KVC_QUANT_CLIP,
    KVC_QUANT_SYMMETRIC,
    KVC_QUANT_ARGS
};
extern const struct kvc_arg kvc_quant_arguments[KVC_QUANT_ARGS];

/* Rows and channels that are quantised as a matrix of their own. */
struct kvc_quant_span {
    size_t channel, width, rows;
    const uint8_t *row; /* their numbers in the block; NULL: 0, 1, ... */
    size_t param, code; /* number of the first parameter, of the first code */
};

/* Rows that are quantised to the same number of bits. */
struct kvc_quant_class {
    unsigned bits;
    struct kvc_quant_span *span;
    size_t n_spans, params, codes;
};

struct kvc_quant_layout {
    unsigned axis; /* KVC_QUANT_ROWS, _CHANNELS or _ROW (launch.h) */
    int sym, clip, normed;
    size_t rows, heads, dim, width, group; /* width: of a row of the block */
    struct kvc_quant_class class[2];
    unsigned n_classes;
    float *low, *step;              /* of one class's groups */
    float *high, *inverse;          /* encoding: maxima, reciprocals of steps */
    float *norm;                    /* of channels, V of zip */
    float *norm_low, *norm_inverse; /* encoding: minima of channels, reciprocals of norms */
    uint8_t *codes, *packed;
    void *memory[3];
};

int kvc_quant_layout_init(struct kvc_quant_layout *l, const struct kvc_stage_args *args,
                          const struct kvc_block *block, struct kvc_error *e);
void kvc_quant_layout_free(struct kvc_quant_layout *l);

/* Returns 1 if the scheme divides V by norms. */
int kvc_quant_is_normed(const struct kvc_stage_args *args);

/* Returns the groups that n values make. */
static inline size_t kvc_quant_groups(size_t n, size_t group) {
    return (n + group - 1) / group;
}

static inline float kvc_quant_levels(const struct kvc_quant_class *k) {
    return (float)((1u << k->bits) - 1);
}

/* The sections of a block; those of an empty class are NULL. */
struct kvc_quant_sections {
    const struct kvc_section *norms, *params[2], *codes[2];
};

/* Opens the sections of a block of this layout, and reads its norms. */
int kvc_quant_open(struct kvc_quant_sections *s, const struct kvc_quant_layout *l,
                   const struct kvc_stored *stored, struct kvc_error *e);

/* Reads the norms of channels, 2 + l->width bytes. */
int kvc_quant_read_norms(const struct kvc_quant_layout *l, const uint8_t *bytes,
                         struct kvc_error *e);

enum { KVC_QUANT_NORM_MIN = -150, KVC_QUANT_NORM_MAX = 100 }; /* the exponent of norms */

#endif
