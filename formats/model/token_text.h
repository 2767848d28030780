/* token_text.h: the texts of a model's tokens, from the vocabulary of a GGUF file or a
 * tokenizer.json, for people to read. Not for tokenizing or for hashing the vocabulary (vocab.h).
 */
#ifndef KVC_TOKEN_TEXT_H
#define KVC_TOKEN_TEXT_H

#include "codecs/error.h"

#include <stddef.h>
#include <stdint.h>

struct kvc_token_texts;

/* Reads the vocabulary of a model; `path` is as for kvc_model_read(). *texts is NULL if the files
 * hold none. The caller frees it. */
int kvc_token_texts_read(const char *path, struct kvc_token_texts **texts, struct kvc_error *e);
void kvc_token_texts_free(struct kvc_token_texts *t);

/* Writes the bytes that a token stands for in a text, with a NUL after them, and returns 1; returns
 * 0 for an id without a token. Byte-level vocabularies and the spaces and bytes of sentencepiece
 * are decoded; bytes 0, and bytes beyond the size, are left out. A character of several bytes may
 * begin in one token and end in the next. */
int kvc_token_text(const struct kvc_token_texts *t, int64_t id, char *text, size_t size);

#endif
