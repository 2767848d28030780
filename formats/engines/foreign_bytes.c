/* foreign_bytes.c: names what an input is that no format takes, by its first bytes: files of other
 * programs, and text. Not for files that a format could take for its own (foreign.c). */
#include "formats/engines/foreign.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { LOOKED_AT = 512, LEAST_TEXT = 16 }; /* bytes */

/* The first bytes of an input. */
struct head {
    uint8_t bytes[LOOKED_AT];
    size_t n;
};

#define PICTURE "it is a picture, not a cache"
#define OLD_WEIGHTS \
    "it is a model's weights, in a format of llama.cpp from before GGUF, not a cache"

static const struct beginning {
    const char *bytes;
    size_t size, offset;
    const char *text;
} beginnings[] = {
    {"\x89PNG\r\n\x1a\n", 8, 0, PICTURE},
    {"\xff\xd8\xff", 3, 0, PICTURE},
    {"%PDF-", 5, 0, "it is a PDF document, not a cache"},
    {"\x7f"
     "ELF",
     4, 0, "it is a program or a library (ELF), not a cache"},
    {"PAR1", 4, 0, "it is a Parquet file; write its K and V as safetensors or npz"},
    {"ARROW1", 6, 0, "it is an Arrow file; write its K and V as safetensors or npz"},
    {"MATLAB 5.0", 10, 0, "it is a MATLAB file; write its K and V as safetensors or npz"},
    {"SQLite format 3", 16, 0,
     "it is an SQLite database, as the index of a prefix store is; kvc-store reads stores"},
    {"Rar!\x1a\x07", 6, 0, "it is a RAR archive; unpack it first"},
    {"<?xml", 5, 0,
     "it is XML, as object stores answer in place of a file; download the file itself"},
    {"TFL3", 4, 4, "it is a model (TensorFlow Lite), not a cache"},
    {"lmgg", 4, 0, OLD_WEIGHTS},
    {"fmgg", 4, 0, OLD_WEIGHTS},
    {"tjgg", 4, 0, OLD_WEIGHTS},
};

static const char *find_beginning(const struct head *head) {
    for (size_t i = 0; i < sizeof beginnings / sizeof beginnings[0]; i++) {
        const struct beginning *b = &beginnings[i];
        if (head->n >= b->offset + b->size &&
            memcmp(head->bytes + b->offset, b->bytes, b->size) == 0)
            return b->text;
    }
    return NULL;
}

/* Returns 1 for a message of protobuf as ONNX begins: field 1, a small version, then field 2, the
 * name of a producer. */
static int is_onnx(const struct head *head) {
    const uint8_t *b = head->bytes;
    if (head->n < 8 || b[0] != 0x08 || b[1] > 0x20 || b[2] != 0x12 || !b[3] || b[3] > 64 ||
        head->n < 4u + b[3])
        return 0;
    for (size_t i = 0; i < b[3]; i++)
        if (b[4 + i] < ' ' || b[4 + i] > '~') return 0;
    return 1;
}

/* Returns where text begins after white space; SIZE_MAX if the bytes are no text. Bytes from 0x80
 * on count as those of UTF-8. */
static size_t find_text(const struct head *head) {
    size_t begin = SIZE_MAX;
    for (size_t i = 0; i < head->n; i++) {
        const uint8_t byte = head->bytes[i];
        const int space = byte == ' ' || (byte >= '\t' && byte <= '\r');
        if ((byte < ' ' && !space) || byte == 0x7f) return SIZE_MAX;
        if (!space && begin == SIZE_MAX) begin = i;
    }
    return begin;
}

static int begins(const struct head *head, size_t at, const char *word) {
    const size_t n = strlen(word);
    return head->n - at >= n && strncasecmp((const char *)head->bytes + at, word, n) == 0;
}

static const char *name_text(const struct head *head) {
    const size_t at = find_text(head);
    if (at == SIZE_MAX || head->n < LEAST_TEXT) return NULL;
    if (begins(head, at, "<!doctype html") || begins(head, at, "<html"))
        return "it is a web page, as servers send in place of a file; download the file itself";
    if (begins(head, at, "<?xml"))
        return "it is XML, as object stores answer in place of a file; download the file itself";
    if (begins(head, at, "{") || begins(head, at, "[")) return "it is JSON, not a cache";
    return "it is text, not a cache";
}

int kvc_foreign_by_bytes(const struct kvc_input *in, char *text, size_t size) {
    struct head head = {.n = in->size < LOOKED_AT ? (size_t)in->size : LOOKED_AT};
    if (!head.n || kvc_input_copy(in, 0, head.bytes, head.n, NULL)) return 0;
    const char *name = find_beginning(&head);
    if (!name && is_onnx(&head)) name = "it is a model (ONNX), not a cache";
    if (!name) name = name_text(&head);
    if (name) snprintf(text, size, "%s", name);
    return name != NULL;
}
