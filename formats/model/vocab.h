/* vocab.h: the hash by which files with the same tokenizer are recognised. Not for tokenizing.
 * KEYS.md, "Tokenizer hash". */
#ifndef KVC_VOCAB_H
#define KVC_VOCAB_H

#include "formats/model/gguf.h"
#include "formats/io/hash.h"

/* Hashes the vocabulary of a GGUF file. *known is 0 when the file holds no vocabulary that the hash
 * is defined for. */
int kvc_vocab_hash_gguf(const struct kvc_gguf *g, uint8_t out[KVC_SHA256_BYTES], int *known,
                        struct kvc_error *e);
/* The same of a tokenizer.json. `limit`: the model's vocab_size (tokens beyond it do not count), 0
 * when unknown. */
int kvc_vocab_hash_json(const uint8_t *json, uint64_t size, uint64_t limit,
                        uint8_t out[KVC_SHA256_BYTES], int *known, struct kvc_error *e);

#endif
