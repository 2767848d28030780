/* words.h: the words of a dtype: the part of each value that a stage models, as integers. Spec: split.md, "Words". Not
 * for the model (channels.h) and not for bytes beside the words (planes.h). */
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
    unsigned planes;                      /* bytes of a block that come before the words', each a plane of its own */
    int sign;                             /* codes: two's complement */
    unsigned fifth;                       /* codes: bytes of fifth bits before the nibbles */
};

const struct kvc_words *kvc_words_of(enum kvc_dtype dtype);
/* Low bits that no symbol covers, and how many symbols there are. */
unsigned kvc_words_shift(const struct kvc_words *f);
unsigned kvc_words_alphabet(const struct kvc_words *f);
/* 1 when canonical rows are their words and nothing else. */
int kvc_words_in_place(const struct kvc_words *f);

/* The words of n values (whole blocks) out of canonical rows, and back; bytes of planes are left alone. */
void kvc_words_out(uint16_t *words, const uint8_t *rows, size_t n, const struct kvc_words *f);
void kvc_words_in(uint8_t *rows, const uint16_t *words, size_t n, const struct kvc_words *f);

#endif
