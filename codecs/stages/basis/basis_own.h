/* basis_own.h: the basis of a block: a basis of the file's own, as the BASIS section has it, or the
 * profile's. Opened once for the CPU (basis.c) and for a device (basis_device.c). Spec: basis.md.
 * Not for finding a basis (basis.c). */
#ifndef KVC_BASIS_OWN_H
#define KVC_BASIS_OWN_H

#include "codecs/stage.h"

enum { KVC_BASIS_SCALED, KVC_BASIS_ROWS }; /* kinds: the first byte of BASIS */
enum { KVC_BASIS_MAX_DIM = 1024 };         /* channels of a head */

/* Component j of head h is row j of the kept[h] rows of that head; of kind KVC_BASIS_SCALED it is
 * channel j. */
struct kvc_basis_own {
    size_t heads, dim;
    unsigned kind, bits;
    size_t *kept;     /* rows of each head */
    float *scale;     /* of channels, [head][channel] */
    float *row_scale; /* of rows, head after head */
    uint8_t *code;    /* of their elements, offset by 2^(bits - 1) */
    float *row;       /* coefficients to channels: made by kvc_basis_own_build() */
};

int kvc_basis_own_init(struct kvc_basis_own *o, size_t heads, size_t dim, struct kvc_error *e);
void kvc_basis_own_free(struct kvc_basis_own *o);
/* Returns the number of rows of all heads. */
size_t kvc_basis_own_count(const struct kvc_basis_own *o);
/* Makes room for the rows, once kept[] is set. */
int kvc_basis_own_rows(struct kvc_basis_own *o, struct kvc_error *e);
/* Makes the rows of codes and scales (basis.md, "Decoding": each product is rounded). */
void kvc_basis_own_build(struct kvc_basis_own *o);
/* Adds the section BASIS. */
int kvc_basis_own_write(struct kvc_basis_own *o, uint8_t stage, struct kvc_sections *side,
                        struct kvc_error *e);

/* Reads the section BASIS, of a basis that was initialised and is empty. */
int kvc_basis_own_read(struct kvc_basis_own *o, const struct kvc_stored *stored,
                       struct kvc_error *e);

/* The basis of a block. */
struct kvc_basis_source {
    const struct kvc_profile_part *profile; /* NULL: `own` */
    const struct kvc_section *section;      /* BASIS */
    struct kvc_basis_own own;               /* to be freed in any case */
};

/* Opens the stage's sections of a block. */
int kvc_basis_open(struct kvc_basis_source *b, const struct kvc_stored *stored,
                   const struct kvc_block *block, struct kvc_error *e);

#endif
