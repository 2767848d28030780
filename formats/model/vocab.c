/* vocab.c: hashing the vocabulary of a GGUF file or a tokenizer.json. Not for tokenizing.
 *
 * The conversion to GGUF changes the spelling of tokens. Both files are hashed in one spelling:
 * U+2581 as a space, ids that no token has as "[PAD<id>]", and no padding at the end. */
#include "formats/model/vocab.h"
#include "formats/io/json_text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TAG "kvc tokenizer 0\n"
/* real ids are below 2^19; bounds the padding for missing ids */
#define MAX_ID (UINT64_C(1) << 22)

static const char lower_block[] = "\xe2\x96\x81"; /* U+2581, sentencepiece's space */
enum { LOWER_BLOCK = sizeof lower_block - 1 };

struct token {
    uint64_t id;
    const char *text;
    size_t size;
    int added; /* overrides a token of the same id in the model's own list */
};

static int is_padding(uint64_t id, const char *text, uint64_t size) {
    char padding[32];
    /* printing each id takes longer than reading the file */
    if (size < 6 || memcmp(text, "[PAD", 4) != 0) return 0;
    int n = snprintf(padding, sizeof padding, "[PAD%" PRIu64 "]", id);
    return size == (uint64_t)n && memcmp(text, padding, size) == 0;
}

static void hash_token(struct kvc_sha256 *h, const char *text, size_t size) {
    size_t spaces = 0;
    const char *end = text + size, *next;
    for (const char *p = text; (next = memmem(p, (size_t)(end - p), lower_block, LOWER_BLOCK));
         p = next + LOWER_BLOCK)
        spaces++;
    kvc_sha256_u32(h, (uint32_t)(size - spaces * (LOWER_BLOCK - 1)));
    for (; spaces; spaces--) {
        next = memmem(text, (size_t)(end - text), lower_block, LOWER_BLOCK);
        kvc_sha256_update(h, text, (size_t)(next - text));
        kvc_sha256_update(h, " ", 1);
        text = next + LOWER_BLOCK;
    }
    kvc_sha256_update(h, text, (size_t)(end - text));
}

static void hash_padding(struct kvc_sha256 *h, uint64_t id) {
    char padding[32];
    int n = snprintf(padding, sizeof padding, "[PAD%" PRIu64 "]", id);
    hash_token(h, padding, (size_t)n);
}

int kvc_vocab_hash_gguf(const struct kvc_gguf *g, uint8_t out[KVC_SHA256_BYTES], int *known,
                        struct kvc_error *e) {
    *known = 0;
    const struct kvc_gguf_entry *list = kvc_gguf_find(g, "tokenizer.ggml.tokens");
    if (!list || !list->array || list->type != KVC_GGUF_STRING || list->count > MAX_ID) return 0;

    uint64_t n = 0, size;
    const uint8_t *at = list->items;
    for (uint64_t id = 0; id < list->count; id++) {
        const char *text = kvc_gguf_next_string(&at, &size);
        if (size > UINT32_MAX) return 0;
        if (!is_padding(id, text, size)) n = id + 1;
    }
    if (!n) return 0;

    struct kvc_sha256 h;
    kvc_sha256_init(&h);
    kvc_sha256_update(&h, TAG, sizeof TAG - 1);
    at = list->items;
    for (uint64_t id = 0; id < n; id++) {
        const char *text = kvc_gguf_next_string(&at, &size);
        hash_token(&h, text, (size_t)size);
    }
    *known = 1;
    return kvc_sha256_final(&h, out, e);
}

/* Appends a token, unless its id is out of range or beyond the limit. Returns -1 when the JSON is
 * no token. */
static int vocab_append(struct token *list, size_t *n, const json_t *id, const json_t *text,
                        int added, uint64_t limit) {
    if (!json_is_integer(id) || !json_is_string(text) || json_integer_value(id) < 0) return -1;
    uint64_t number = (uint64_t)json_integer_value(id);
    if (limit && number >= limit) return 0;
    if (number >= MAX_ID) return -1;
    list[(*n)++] = (struct token){number, json_string_value(text), json_string_length(text), added};
    return 0;
}

/* Lists the tokens of a model's vocabulary (token -> id, or [[token, score], ...]) and of
 * added_tokens, in no order. */
static int collect(json_t *vocab, json_t *added, uint64_t limit, struct token *list, size_t *n) {
    const char *key;
    size_t i;
    json_t *item;
    *n = 0;
    if (json_is_object(vocab)) {
        json_object_foreach(vocab, key, item) {
            if (!json_is_integer(item) || json_integer_value(item) < 0) return -1;
            uint64_t id = (uint64_t)json_integer_value(item);
            if (limit && id >= limit) continue;
            if (id >= MAX_ID) return -1;
            list[(*n)++] = (struct token){id, key, strlen(key), 0};
        }
    } else {
        json_array_foreach(vocab, i, item) {
            json_t *text = json_array_get(item, 0);
            if (!json_is_string(text) || i >= MAX_ID) return -1;
            if (limit && i >= limit) break;
            list[(*n)++] = (struct token){i, json_string_value(text), json_string_length(text), 0};
        }
    }
    json_array_foreach(added, i, item) if (vocab_append(list, n, json_object_get(item, "id"),
                                                        json_object_get(item, "content"), 1,
                                                        limit)) return -1;
    return 0;
}

static int by_id(const void *a, const void *b) {
    const struct token *x = a, *y = b;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    return x->added - y->added;
}

/* Keeps one token per id. Returns -1 when it is not clear which token to keep. */
static int unique(struct token *list, size_t *n) {
    size_t kept = 0;
    for (size_t i = 0; i < *n; i++) {
        if (kept && list[kept - 1].id == list[i].id) {
            const struct token *old = &list[kept - 1];
            int same = old->size == list[i].size && memcmp(old->text, list[i].text, old->size) == 0;
            if (!same && old->added == list[i].added) return -1;
            list[kept - 1] = list[i];
        } else {
            list[kept++] = list[i];
        }
    }
    *n = kept;
    return 0;
}

static int hash_list(const struct token *list, size_t n, uint8_t out[KVC_SHA256_BYTES],
                     struct kvc_error *e) {
    struct kvc_sha256 h;
    kvc_sha256_init(&h);
    kvc_sha256_update(&h, TAG, sizeof TAG - 1);
    uint64_t id = 0;
    for (size_t i = 0; i < n; i++, id++) {
        for (; id < list[i].id; id++) hash_padding(&h, id);
        hash_token(&h, list[i].text, list[i].size);
    }
    return kvc_sha256_final(&h, out, e);
}

static int hash_parsed(json_t *root, uint64_t limit, uint8_t out[KVC_SHA256_BYTES], int *known,
                       struct kvc_error *e) {
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    json_t *added = json_object_get(root, "added_tokens");
    size_t n = json_object_size(vocab) + json_array_size(vocab) + json_array_size(added);
    if (!n) return 0;
    struct token *list = calloc(n, sizeof *list);
    if (!list) return kvc_fail_memory(e, "a vocabulary");
    int status = 0;
    if (collect(vocab, added, limit, list, &n) == 0) {
        qsort(list, n, sizeof *list, by_id);
        if (unique(list, &n) == 0) {
            while (n && is_padding(list[n - 1].id, list[n - 1].text, list[n - 1].size)) n--;
            if (n) {
                *known = 1;
                status = hash_list(list, n, out, e);
            }
        }
    }
    free(list);
    return status;
}

int kvc_vocab_hash_json(const uint8_t *json, uint64_t size, uint64_t limit,
                        uint8_t out[KVC_SHA256_BYTES], int *known, struct kvc_error *e) {
    *known = 0;
    json_error_t error;
    json_t *root = kvc_json_load(json, (size_t)size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL,
                                 &error);
    if (!root) {
        /* A token with a NUL byte as a key is legal JSON that the parser cannot hold: no vocabulary
         * then. */
        if (json_error_code(&error) == json_error_null_byte_in_key) return 0;
        if (json_error_code(&error) == json_error_out_of_memory)
            return kvc_fail_memory(e, "a tokenizer");
        return kvc_fail(e, KVC_ERR_DAMAGED, "no valid JSON: %s (line %d)", error.text, error.line);
    }
    int status = hash_parsed(root, limit, out, known, e);
    json_decref(root);
    return status;
}
