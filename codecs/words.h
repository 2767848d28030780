/* words.h: the words of a dtype: the part of each value that a stage models, as integers. Spec:
 * split.md, "Words". Not for the model (channels.h) or for bytes beside the words (planes.h). */
#ifndef KVC_WORDS_H
#define KVC_WORDS_H

#include "codecs/dtype.h"
#include "kernels/kernels.h"

#include <stddef.h>
#include <stdint.h>

struct kvc_words {
    enum kvc_dtype dtype;
    unsigned bits;                        /* of a word */
    const struct kvc_word_format *format; /* of float words; NULL: codes */
    /* bytes of a block before the words, each a plane of its own */
    unsigned planes;
    int sign;       /* codes: two's complement */
    unsigned fifth; /* codes: bytes of fifth bits before the nibbles */
};

/* Returns the words of a dtype; every dtype has some. */
const struct kvc_words *kvc_words_of(enum kvc_dtype dtype);
/* Return the number of low bits, which no symbol covers, and the number of symbols. */
unsigned kvc_words_shift(const struct kvc_words *f);
unsigned kvc_words_alphabet(const struct kvc_words *f);
/* Returns 1 when canonical rows consist of their words alone. */
int kvc_words_in_place(const struct kvc_words *f);

/* Copy the words of n values (whole blocks) out of canonical rows, and back; the bytes of planes
 * are not touched. */
void kvc_words_out(uint16_t *words, const uint8_t *rows, size_t n, const struct kvc_words *f);
void kvc_words_in(uint8_t *rows, const uint16_t *words, size_t n, const struct kvc_words *f);

#endif
