/* words.c: the words of every dtype. Spec: split.md, "Words". */
#include "codecs/words.h"

#include "codecs/little_endian.h"

#include <string.h>

static const struct kvc_word_format f32_words = {15, 16, 6, 0}, bf16_words = {15, 16, 6, 0},
                                    f16_words = {15, 13, 8, 112}, f8e4m3_words = {7, 20, 0, 120},
                                    f8e5m2_words = {7, 21, 0, 112};

static const struct kvc_words table[] = {
    {KVC_F32, 16, &f32_words, 2, 0, 0},
    {KVC_F16, 16, &f16_words, 0, 0, 0},
    {KVC_BF16, 16, &bf16_words, 0, 0, 0},
    {KVC_F8E4M3, 8, &f8e4m3_words, 0, 0, 0},
    {KVC_F8E5M2, 8, &f8e5m2_words, 0, 0, 0},
    {KVC_U8, 8, NULL, 0, 0, 0},
    {KVC_I8, 8, NULL, 0, 1, 0},
    {KVC_Q8_0, 8, NULL, 2, 1, 0},
    {KVC_Q4_0, 4, NULL, 2, 0, 0},
    {KVC_Q4_1, 4, NULL, 4, 0, 0},
    {KVC_Q5_0, 5, NULL, 2, 0, 4},
    {KVC_Q5_1, 5, NULL, 4, 0, 4},
    {KVC_IQ4_NL, 4, NULL, 2, 0, 0},
};

const struct kvc_words *kvc_words_of(enum kvc_dtype dtype) {
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].dtype == dtype) return &table[i];
    return NULL;
}

unsigned kvc_words_shift(const struct kvc_words *f) {
    return f->format ? f->format->shift : 0;
}

unsigned kvc_words_alphabet(const struct kvc_words *f) {
    return 1u << (f->bits - kvc_words_shift(f));
}

int kvc_words_in_place(const struct kvc_words *f) {
    return f->bits == 16 && kvc_dtype_info(f->dtype)->size == 2;
}

/* Compilers vectorise loops of 32 without aliasing by themselves. */
static void widen(uint16_t *restrict words, const uint8_t *restrict p) {
    for (unsigned j = 0; j < 32; j++) words[j] = p[j];
}

static void narrow(uint8_t *restrict p, const uint16_t *restrict words) {
    for (unsigned j = 0; j < 32; j++) p[j] = (uint8_t)words[j];
}

static void nibbles_out(uint16_t *restrict words, const uint8_t *restrict p) {
    for (unsigned j = 0; j < 16; j++) words[j] = p[j] & 15;
    for (unsigned j = 0; j < 16; j++) words[16 + j] = p[j] >> 4;
}

static void nibbles_in(uint8_t *restrict p, const uint16_t *restrict words) {
    for (unsigned j = 0; j < 16; j++) p[j] = (uint8_t)((words[j] & 15) | (words[16 + j] & 15) << 4);
}

static void fifths_out(uint16_t *words, const uint8_t *p) {
    for (unsigned j = 0; j < 32; j++)
        words[j] = (uint16_t)(words[j] | ((unsigned)p[j / 8] >> j % 8 & 1) << 4);
}

static void fifths_in(uint8_t *p, const uint16_t *words) {
    memset(p, 0, 4);
    for (unsigned j = 0; j < 32; j++) p[j / 8] = (uint8_t)(p[j / 8] | (words[j] >> 4 & 1) << j % 8);
}

void kvc_words_out(uint16_t *words, const uint8_t *rows, size_t n, const struct kvc_words *f) {
    const struct kvc_dtype_info *info = kvc_dtype_info(f->dtype);
    const uint8_t *p = rows + f->planes;
    if (info->block == 1 && f->bits == 16)
        for (size_t i = 0; i < n; i++, p += info->size) words[i] = get_u16(p);
    else if (info->block == 1)
        for (size_t i = 0; i < n; i++) words[i] = p[i];
    else if (f->bits == 8)
        for (size_t i = 0; i < n; i += 32, p += info->size) widen(words + i, p);
    else
        for (size_t i = 0; i < n; i += 32, p += info->size) {
            nibbles_out(words + i, p + f->fifth);
            if (f->fifth) fifths_out(words + i, p);
        }
}

void kvc_words_in(uint8_t *rows, const uint16_t *words, size_t n, const struct kvc_words *f) {
    const struct kvc_dtype_info *info = kvc_dtype_info(f->dtype);
    uint8_t *p = rows + f->planes;
    if (info->block == 1 && f->bits == 16)
        for (size_t i = 0; i < n; i++, p += info->size) put_u16(p, words[i]);
    else if (info->block == 1)
        for (size_t i = 0; i < n; i++) p[i] = (uint8_t)words[i];
    else if (f->bits == 8)
        for (size_t i = 0; i < n; i += 32, p += info->size) narrow(p, words + i);
    else
        for (size_t i = 0; i < n; i += 32, p += info->size) {
            nibbles_in(p + f->fifth, words + i);
            if (f->fifth) fifths_in(p, words + i);
        }
}
