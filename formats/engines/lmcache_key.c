/* lmcache_key.c: the keys of LMCache's chunks, which are the names of their files. Nothing depends
 * on them but the order of layers, because files are renamed. Source: LMCache lmcache/utils.py,
 * gds_backend.py, l2_adapters/fs_l2_adapter.py. */
#include "formats/engines/lmcache_chunk.h"

#include "formats/io/member_name.h"

#include <stdlib.h>
#include <string.h>

/* Copies the last part of a path without the suffix of its storage, "%40" decoded, as GDS writes
 * it. */
static void plain(char *text, size_t size, const char *path) {
    static const char *const suffixes[] = {".data", ".kvcache.safetensors", ".weka1", ".pt"};
    const char *from = kvc_base_name(path);
    size_t n = 0, left = strlen(from);
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        const size_t length = strlen(suffixes[i]);
        if (left <= length || strcmp(from + left - length, suffixes[i]) != 0) continue;
        left -= length;
        break;
    }
    while (left && n + 1 < size) {
        char hex[3] = {0};
        if (*from == '%' && left >= 3) memcpy(hex, from + 1, 2);
        if (strspn(hex, "0123456789abcdefABCDEF") == 2) {
            text[n++] = (char)strtoul(hex, NULL, 16);
            from += 3;
            left -= 3;
        } else {
            text[n++] = *from++;
            left--;
        }
    }
    text[left ? 0 : n] = '\0';
}

static int lmcache_key_count(const char *text, uint64_t *v) {
    const size_t n = strlen(text);
    *v = strtoull(text, NULL, 10);
    return n && n <= 9 && strspn(text, "0123456789") == n;
}

static int is_hex(const char *text) {
    const char *digits = text + (strncmp(text, "0x", 2) == 0 ? 2 : *text == '-');
    return *digits && !digits[strspn(digits, "0123456789abcdef")];
}

static int is_word(const char *text) {
    return *text >= 'a' && *text <= 'z' &&
           !text[strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_")];
}

/* Copies the model's name, in which '/' is "-SEP-". */
static int take_model(struct kvc_lmcache_key *key, const char *name) {
    size_t n = 0;
    for (; *name; n++) {
        const int separator = strncmp(name, "-SEP-", 5) == 0;
        if (n + 1 >= sizeof key->model || (unsigned char)*name < ' ' || *name == '\x7f') return 0;
        key->model[n] = (char)(separator ? '/' : *name);
        name += separator ? 5 : 1;
    }
    return n != 0;
}

int kvc_lmcache_key_of(struct kvc_lmcache_key *key, const char *path) {
    enum { FIELDS = 6 };
    char text[sizeof key->chunk], *field[FIELDS], *rest = text;
    uint64_t number;
    size_t n = 0;
    memset(key, 0, sizeof *key);
    plain(text, sizeof text, path);
    memcpy(key->chunk, text, sizeof text);
    while (n < FIELDS && rest) {
        field[n++] = rest;
        if ((rest = strchr(rest, '@'))) *rest++ = '\0';
    }
    if (n < 4 || !take_model(key, field[0])) return 0;
    if (strncmp(field[1], "0x", 2) == 0 && strlen(field[1]) == 10 && is_hex(field[1])) {
        const unsigned long rank = strtoul(field[1], NULL, 16);
        key->world = rank >> 24;
        key->worker = rank >> 16 & 255;
        return is_hex(field[2]) && is_hex(field[3]);
    }
    if (n == 5 && is_word(field[0]) && !lmcache_key_count(field[1], &number) &&
        lmcache_key_count(field[2], &key->world) && lmcache_key_count(field[3], &key->worker) &&
        is_hex(field[4]))
        return take_model(key, field[1]);
    if (n < 5 || !lmcache_key_count(field[1], &key->world) ||
        !lmcache_key_count(field[2], &key->worker) || !is_hex(field[3]) || !is_word(field[4]))
        return 0;
    if (strlen(field[4]) < sizeof key->dtype) memcpy(key->dtype, field[4], strlen(field[4]) + 1);
    key->has_layer = n == FIELDS && lmcache_key_count(field[5], &key->layer);
    if (key->has_layer) { /* the key of the chunk is what is left without the layer */
        const size_t at = (size_t)(field[5] - text), length = strlen(field[5]);
        memmove(key->chunk + at - 1, key->chunk + at + length, sizeof key->chunk - at - length);
    }
    return 1;
}
