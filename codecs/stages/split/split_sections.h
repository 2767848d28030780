/* split_sections.h: the sections of a block that `split` coded, checked and opened once for the CPU
 * (split_decode.c) and for a device (split_device.c). Spec: split.md. Not for a block that is one
 * RAW section. */
#ifndef KVC_SPLIT_SECTIONS_H
#define KVC_SPLIT_SECTIONS_H

#include "codecs/stages/split/channels.h"
#include "codecs/rans.h"
#include "codecs/sections.h"
#include "codecs/tensor.h"
#include "codecs/words.h"

#include <stddef.h>
#include <stdint.h>

/* bytes that CODES begins with; planes of a dtype at most */
enum { KVC_SPLIT_HEADER = 4, KVC_SPLIT_PLANES = 4 };

struct kvc_split {
    const struct kvc_words *form;
    size_t rows, n, values; /* values = rows * n */
    size_t blocks;          /* of the dtype; also bytes of a plane */
    /* bytes of blocks before the words, form->planes of them */
    const struct kvc_section *plane[KVC_SPLIT_PLANES];
    const struct kvc_section *low; /* low bits, or NULL */
    size_t low_size;               /* bytes of low bits */
    struct kvc_channels model;

    /* CODES */
    const struct kvc_section *codes;
    /* of tables: log2 of their slots; of streams */
    unsigned bits, lanes;
    unsigned tables;                                    /* a bit per context that has a table */
    uint16_t frequency[KVC_CONTEXTS][KVC_RANS_SYMBOLS]; /* of these contexts */
    size_t per, streams;                                /* rows of a stream */
    /* of the streams: four bytes, four bytes a lane, the words of all */
    const uint8_t *sizes, *states, *words;
};

/* Returns 1 for dtypes whose blocks may be coded relative to predictions. */
int kvc_split_predicts(enum kvc_dtype dtype);
/* Opens the n sections of a block of this shape. `predicted`, 1: its values may be predicted; the
 * caller then sets model.ahead, and for q8_0 model.scales. Checks everything but the bytes of
 * planes and low bits and the streams themselves. To be closed in any case. */
int kvc_split_open(struct kvc_split *s, const struct kvc_shape *shape, int predicted,
                   const struct kvc_section *sections, size_t n, struct kvc_error *e);
void kvc_split_close(struct kvc_split *s);

/* Returns the bytes of stream i's words. */
size_t kvc_split_stream(const struct kvc_split *s, size_t i);
/* Returns the context whose table serves context c: its own, else the nearest below that has a
 * table, else the first. */
unsigned kvc_split_table(unsigned tables, unsigned c);

#endif
