/* object.c: writes and reads names of objects. Spec: STORE.md, "Objects". */
#include "formats/store/object.h"

#include "formats/io/hash.h"

#include <string.h>

static const char *const word[KVC_OBJECT_KINDS] = {
    [KVC_OBJECT_CHUNK] = "kv",     [KVC_OBJECT_STATE] = "state", [KVC_OBJECT_NAMESPACE] = "space",
    [KVC_OBJECT_PROFILE] = "kvcp", [KVC_OBJECT_NAMED] = "named", [KVC_OBJECT_LEARNT] = "learnt"};

struct kvc_object kvc_object_of(enum kvc_object_kind kind, const uint8_t *ns, const uint8_t *key) {
    struct kvc_object o = {.kind = kind};
    if (ns) memcpy(o.ns, ns, sizeof o.ns);
    memcpy(o.key, key, sizeof o.key);
    return o;
}

void kvc_object_name(const struct kvc_object *o, char text[KVC_OBJECT_NAME]) {
    kvc_hex(o->ns, sizeof o->ns, text);
    text += 2 * sizeof o->ns;
    *text++ = '-';
    kvc_hex(o->key, sizeof o->key, text);
    text += 2 * sizeof o->key;
    *text++ = '.';
    memcpy(text, word[o->kind], strlen(word[o->kind]) + 1);
}

/* Names have lower-case digits only. */
static int digit(char c) {
    return c >= 'A' && c <= 'F' ? -1 : kvc_hex_digit(c);
}

/* Reads 2 * n digits. A NUL is no digit, so that no byte after it is read. */
static int bytes_of(const char *text, uint8_t *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const int high = digit(text[2 * i]), low = high < 0 ? -1 : digit(text[2 * i + 1]);
        if (low < 0) return -1;
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    return 0;
}

int kvc_object_parse(const char *text, struct kvc_object *o) {
    if (bytes_of(text, o->ns, sizeof o->ns) || text[2 * sizeof o->ns] != '-') return -1;
    text += 2 * sizeof o->ns + 1;
    if (bytes_of(text, o->key, sizeof o->key) || text[2 * sizeof o->key] != '.') return -1;
    text += 2 * sizeof o->key + 1;
    for (unsigned kind = 0; kind < KVC_OBJECT_KINDS; kind++)
        if (strcmp(text, word[kind]) == 0) {
            o->kind = (enum kvc_object_kind)kind;
            return 0;
        }
    return -1;
}

int kvc_object_equal(const struct kvc_object *a, const struct kvc_object *b) {
    return a->kind == b->kind && memcmp(a->ns, b->ns, sizeof a->ns) == 0 &&
           memcmp(a->key, b->key, sizeof a->key) == 0;
}
