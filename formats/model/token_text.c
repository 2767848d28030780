/* token_text.c: reads vocabularies and decodes the spelling of tokens. Not for tokenizing or for
 * hashes (vocab.c).
 *
 * Two spellings exist. Byte-level BPE (GPT-2) writes each byte as a character: printable bytes as
 * themselves, the 68 others as U+0100 to U+0143. Sentencepiece writes a space as U+2581 and a byte
 * as <0xNN>. A vocabulary with a token that begins with U+0120, the byte-level space, and none with
 * U+2581 is byte-level. */
#include "formats/model/token_text.h"

#include "codecs/memory.h"
#include "formats/io/json_text.h"
#include "formats/model/gguf.h"
#include "formats/model/model_files.h"

#include <jansson.h>
#include <string.h>

#define MAX_ID (UINT64_C(1) << 22) /* real ids are below 2^19 */
#define MAX_TOKENIZER_BYTES (UINT64_C(256) << 20)

struct kvc_token_texts {
    uint64_t n;
    char **text; /* [n], as the file spells them; NULL: no token */
    int byte_level;
};

static const char lower_block[] = "\xe2\x96\x81"; /* U+2581 */
static const char byte_space[] = "\xc4\xa0";      /* U+0120 */

/* Adds a token, whose spelling has no NUL, or a later one of the same id. */
static int token_text_add(struct kvc_token_texts *t, uint64_t id, const char *text, uint64_t size,
                          struct kvc_error *e) {
    if (id >= t->n || memchr(text, '\0', (size_t)size)) return 0;
    char *copy = strndup(text, (size_t)size);
    if (!copy) return kvc_fail_memory(e, "a vocabulary");
    free(t->text[id]);
    t->text[id] = copy;
    return 0;
}

static int token_text_make_room(struct kvc_token_texts *t, uint64_t n, struct kvc_error *e) {
    t->text = kvc_alloc_zeros(n, sizeof *t->text);
    t->n = t->text ? n : 0;
    return t->text ? 0 : kvc_fail_memory(e, "a vocabulary");
}

static int read_gguf(struct kvc_token_texts *t, const struct kvc_input *in, struct kvc_error *e) {
    struct kvc_gguf g;
    if (kvc_gguf_open(&g, in, e)) return -1;
    const struct kvc_gguf_entry *list = kvc_gguf_find(&g, "tokenizer.ggml.tokens");
    int status = 0;
    if (list && list->array && list->type == KVC_GGUF_STRING && list->count <= MAX_ID) {
        const uint8_t *at = list->items;
        status = token_text_make_room(t, list->count, e);
        for (uint64_t id = 0; id < list->count && !status; id++) {
            uint64_t size;
            const char *text = kvc_gguf_next_string(&at, &size);
            status = token_text_add(t, id, text, size, e);
        }
    }
    kvc_gguf_close(&g);
    return status;
}

/* Adds a token of tokenizer.json. What is no token is left out, as this is for reading only. */
static int add_json(struct kvc_token_texts *t, const json_t *id, const char *text, size_t size,
                    struct kvc_error *e) {
    const json_int_t number = json_is_integer(id) ? json_integer_value(id) : -1;
    return number >= 0 && text ? token_text_add(t, (uint64_t)number, text, size, e) : 0;
}

static int add_vocabulary(struct kvc_token_texts *t, json_t *root, struct kvc_error *e) {
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab"), *item;
    json_t *added = json_object_get(root, "added_tokens");
    const char *key;
    size_t i;
    json_object_foreach(vocab, key, item) if (add_json(t, item, key, strlen(key), e)) return -1;
    json_array_foreach(vocab, i, item) { /* [[token, score], ...] */
        const json_t *text = json_array_get(item, 0);
        if (json_is_string(text) &&
            token_text_add(t, i, json_string_value(text), json_string_length(text), e))
            return -1;
    }
    json_array_foreach(added, i, item) {
        const json_t *text = json_object_get(item, "content");
        if (add_json(t, json_object_get(item, "id"), json_string_value(text),
                     json_string_length(text), e))
            return -1;
    }
    return 0;
}

/* Returns one more than the largest id, up to MAX_ID. */
static uint64_t count_ids(json_t *root) {
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab"), *item;
    json_t *added = json_object_get(root, "added_tokens");
    uint64_t n = json_array_size(vocab);
    const char *key;
    size_t i;
    json_object_foreach(vocab, key, item) {
        const json_int_t id = json_integer_value(item);
        if (id >= 0 && (uint64_t)id >= n) n = (uint64_t)id + 1;
    }
    json_array_foreach(added, i, item) {
        const json_int_t id = json_integer_value(json_object_get(item, "id"));
        if (id >= 0 && (uint64_t)id >= n) n = (uint64_t)id + 1;
    }
    return n < MAX_ID ? n : MAX_ID;
}

static int read_json(struct kvc_token_texts *t, const struct kvc_model_files *files,
                     struct kvc_error *e) {
    struct kvc_input in;
    const int there = kvc_model_files_beside(files, "tokenizer.json", MAX_TOKENIZER_BYTES, &in, e);
    if (there <= 0) return there;
    json_error_t error;
    json_t *root = kvc_json_load(in.data, (size_t)in.size, JSON_ALLOW_NUL, &error);
    kvc_input_close(&in);
    if (!root)
        return kvc_fail(e, KVC_ERR_DAMAGED, "tokenizer.json: no valid JSON: %s (line %d)",
                        error.text, error.line);
    const uint64_t n = count_ids(root);
    int status = n ? token_text_make_room(t, n, e) : 0;
    if (n && !status) status = add_vocabulary(t, root, e);
    json_decref(root);
    return status;
}

static void settle_spelling(struct kvc_token_texts *t) {
    for (uint64_t id = 0; id < t->n; id++) {
        if (!t->text[id]) continue;
        if (strstr(t->text[id], lower_block)) {
            t->byte_level = 0;
            return;
        }
        if (strncmp(t->text[id], byte_space, sizeof byte_space - 1) == 0) t->byte_level = 1;
    }
}

int kvc_token_texts_read(const char *path, struct kvc_token_texts **texts, struct kvc_error *e) {
    struct kvc_model_files files;
    struct kvc_input in;
    uint64_t header;
    *texts = NULL;
    if (kvc_model_files_list(&files, path, e)) return -1;
    struct kvc_token_texts *t = calloc(1, sizeof *t);
    int status = t ? kvc_input_open(&in, files.path[0], e) : kvc_fail_memory(e, "a vocabulary");
    if (!status) {
        status = kvc_model_file_begins(&in, &header, e);
        if (!status) status = header ? read_json(t, &files, e) : read_gguf(t, &in, e);
        kvc_input_close(&in);
    }
    kvc_model_files_free(&files);
    if (status || !t->n) {
        kvc_token_texts_free(t);
        return status;
    }
    settle_spelling(t);
    *texts = t;
    return 0;
}

void kvc_token_texts_free(struct kvc_token_texts *t) {
    for (uint64_t id = 0; t && id < t->n; id++) free(t->text[id]);
    if (t) free(t->text);
    free(t);
}

/* Returns the byte that a character of GPT-2's alphabet stands for, or -1. */
static int byte_of(unsigned character) {
    if (character >= 256) {
        const unsigned i = character - 256; /* the bytes that are not printable, in order */
        return i < 33 ? (int)i : i < 67 ? (int)(i - 33 + 127) : i == 67 ? 173 : -1;
    }
    const int printable = (character >= 33 && character < 127) ||
                          (character >= 161 && character != 173);
    return printable ? (int)character : -1;
}

/* Decodes the spelling of byte-level BPE. Returns -1 if a character does not belong to its
 * alphabet, as in added tokens. */
static int decode_bytes(const char *spelled, char *text, size_t size) {
    size_t used = 0;
    for (const unsigned char *s = (const unsigned char *)spelled; *s;) {
        unsigned character = *s;
        if ((s[0] & 0xe0) == 0xc0 && (s[1] & 0xc0) == 0x80)
            character = (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu);
        else if (s[0] >= 0x80) return -1;
        s += character < 0x80 ? 1 : 2;
        const int byte = byte_of(character);
        if (byte < 0) return -1;
        if (byte && used + 1 < size) text[used++] = (char)byte;
    }
    text[used] = '\0';
    return 0;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

static void decode_pieces(const char *spelled, char *text, size_t size) {
    size_t used = 0;
    if (strlen(spelled) == 6 && strncmp(spelled, "<0x", 3) == 0 && spelled[5] == '>' &&
        hex_digit(spelled[3]) >= 0 && hex_digit(spelled[4]) >= 0) {
        text[0] = (char)(16 * hex_digit(spelled[3]) + hex_digit(spelled[4]));
        text[1] = '\0';
        return;
    }
    while (*spelled && used + 1 < size) {
        const int space = strncmp(spelled, lower_block, sizeof lower_block - 1) == 0;
        text[used++] = space ? ' ' : *spelled;
        spelled += space ? sizeof lower_block - 1 : 1;
    }
    text[used] = '\0';
}

int kvc_token_text(const struct kvc_token_texts *t, int64_t id, char *text, size_t size) {
    if (id < 0 || (uint64_t)id >= t->n || !t->text[id] || size < 2) return 0;
    if (!t->byte_level) decode_pieces(t->text[id], text, size);
    else if (decode_bytes(t->text[id], text, size)) snprintf(text, size, "%s", t->text[id]);
    return 1;
}
