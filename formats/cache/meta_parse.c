/* meta_parse.c: metadata from text. */
#include "formats/cache/meta_parse.h"

#include "codecs/near.h"
#include "codecs/number.h"
#include "formats/cache/keys.h"
#include "formats/cache/rope_pairing.h"
#include "formats/cache/scales.h"
#include "formats/io/hash.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_KEY = 255, MOST_BYTES = 512, MOST_COUNTS = 16 };

/* Keys of facts, and others that are no text; a key that ends with a dot stands for all that begin
 * so. */
static const struct {
    const char *key;
    enum kvc_meta_type type;
    /* of the model and its values, which somebody may know who did not write the file */
    int is_fact;
} types[] = {
    {KVC_KEY_MODEL_NAME, KVC_META_TEXT, 1},
    {KVC_KEY_MODEL_ARCH, KVC_META_TEXT, 1},
    {KVC_KEY_MODEL_LAYERS, KVC_META_U64, 1},
    {KVC_KEY_MODEL_HEADS, KVC_META_U64, 1},
    {KVC_KEY_MODEL_KV_HEADS, KVC_META_U64, 1},
    {KVC_KEY_MODEL_HEAD_DIM, KVC_META_U64, 1},
    {KVC_KEY_MODEL_HEAD_DIM_V, KVC_META_U64, 1},
    {KVC_KEY_MODEL_ADAPTERS, KVC_META_TEXT, 1},
    {KVC_KEY_MODEL_ADAPTERS_HASH, KVC_META_BYTES, 1},
    {KVC_KEY_FINGERPRINT, KVC_META_BYTES, 1},
    {KVC_KEY_TOKENIZER, KVC_META_BYTES, 1},
    {KVC_KEY_ROPE_K, KVC_META_TEXT, 1},
    {KVC_KEY_ROPE_PAIRING, KVC_META_TEXT, 1},
    {KVC_KEY_ROPE_ASSUMED, KVC_META_BOOL, 0},
    {KVC_KEY_ROPE_TYPE, KVC_META_TEXT, 1},
    {KVC_KEY_ROPE_THETA, KVC_META_F64, 1},
    {KVC_KEY_ROPE_DIM, KVC_META_U64, 1},
    {KVC_KEY_ROPE_FACTOR, KVC_META_F64, 1},
    {KVC_KEY_ROPE_ORIGINAL, KVC_META_U64, 1},
    {KVC_KEY_ROPE_SCALING, KVC_META_TEXT, 1},
    {KVC_KEY_ROPE_SECTIONS, KVC_META_U64S, 1},
    {KVC_KEY_SCALE_K, KVC_META_TEXT, 1},
    {KVC_KEY_SCALE_V, KVC_META_TEXT, 1},
    {KVC_KEY_SCALE_SOURCE, KVC_META_TEXT, 1},
    {KVC_KEY_HADAMARD_K, KVC_META_U64, 1},
    {KVC_KEY_HADAMARD_V, KVC_META_U64, 1},
    {KVC_KEY_HIDDEN_STATES, KVC_META_TEXT, 1},
    {KVC_KEY_WINDOW, KVC_META_U64, 1},
    {KVC_KEY_WINDOW_ASSUMED, KVC_META_BOOL, 0},
    {KVC_KEY_POSITIONS_GIVEN, KVC_META_BOOL, 0},
    {KVC_KEY_PAGE_SIZE, KVC_META_U64, 1},
    {KVC_KEY_SHARD, KVC_META_TEXT, 1},
    {KVC_KEY_HEADS_KNOWN, KVC_META_BOOL, 0},
    {KVC_KEY_LAYERS_KNOWN, KVC_META_BOOL, 0},
    {KVC_KEY_VALUES_PROFILE, KVC_META_BYTES, 0},
};

/* Keys that the container keeps for itself; as above. */
static const char *const own[] = {KVC_KEY_PRODUCER,     "source.", "profile.", KVC_KEY_RECIPE,
                                  KVC_KEY_TOKENS_FIRST, "llama."};

static int is_key(const char *key, const char *pattern) {
    const size_t n = strlen(pattern);
    return n && pattern[n - 1] == '.' ? strncmp(key, pattern, n) == 0 : strcmp(key, pattern) == 0;
}

static enum kvc_meta_type type_of(const char *key) {
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (is_key(key, types[i].key)) return types[i].type;
    return KVC_META_TEXT;
}

static int set_bytes(struct kvc_meta *m, const char *key, const char *value, struct kvc_error *e) {
    uint8_t bytes[MOST_BYTES];
    const size_t n = strlen(value);
    int good = n && n % 2 == 0 && n / 2 <= sizeof bytes;
    for (size_t i = 0; i < n / 2 && good; i++) {
        const int high = kvc_hex_digit(value[2 * i]), low = kvc_hex_digit(value[2 * i + 1]);
        good = high >= 0 && low >= 0;
        bytes[i] = (uint8_t)(high * 16 + low);
    }
    return good ? kvc_meta_set_bytes(m, key, bytes, n / 2, e)
                : kvc_fail(e, KVC_ERR_USAGE, "%s: is not up to %d bytes in hex", key, MOST_BYTES);
}

static int set_number(struct kvc_meta *m, const char *key, const char *value, int is_float,
                      struct kvc_error *e) {
    char *end;
    double x;
    if (is_float && kvc_number_read(value, &x))
        return kvc_fail(e, KVC_ERR_USAGE, "%s: is no number", key);
    if (is_float) return kvc_meta_set_f64(m, key, x, e);
    errno = 0;
    const unsigned long long n = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || errno)
        return kvc_fail(e, KVC_ERR_USAGE, "%s: is no whole number from 0 to 2^64 - 1", key);
    return kvc_meta_set_u64(m, key, n, e);
}

/* Sets whole numbers with spaces or commas between them. */
static int set_counts(struct kvc_meta *m, const char *key, const char *value, struct kvc_error *e) {
    uint64_t counts[MOST_COUNTS];
    size_t n = 0;
    while (*value) {
        char *end;
        errno = 0;
        const unsigned long long count = strtoull(value, &end, 10);
        const int more = (*end == ' ' || *end == ',') && end[1];
        if (*value < '0' || *value > '9' || errno || n == MOST_COUNTS || (*end && !more)) {
            n = 0;
            break;
        }
        counts[n++] = count;
        value = end + (*end != 0);
    }
    return n ? kvc_meta_set_u64s(m, key, counts, n, e)
             : kvc_fail(e, KVC_ERR_USAGE, "%s: is no list of up to %d whole numbers, as 16 24 24",
                        key, MOST_COUNTS);
}

/* Refuses words that mean nothing. */
static int set_text(struct kvc_meta *m, const char *key, const char *value, struct kvc_error *e) {
    enum kvc_pairing pairing;
    if (strncmp(key, "scale.", 6) == 0 && strcmp(key, KVC_KEY_SCALE_SOURCE) != 0 &&
        kvc_scales_check(value))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%s: '%.60s' is no scale above 0, nor a list of such: 0.5,0.25 of layers, "
                        "0.5:0.4 of heads",
                        key, value);
    if (strcmp(key, KVC_KEY_ROPE_K) == 0 && strcmp(value, "post") != 0 && strcmp(value, "pre") != 0)
        return kvc_fail(e, KVC_ERR_USAGE, "%s: '%.60s' is neither post nor pre", key, value);
    if (strcmp(key, KVC_KEY_ROPE_PAIRING) == 0 && !kvc_pairing_parse(value, &pairing))
        return kvc_fail(e, KVC_ERR_USAGE, "%s: '%.60s' is none of halves, interleaved, none", key,
                        value);
    return kvc_meta_set_text(m, key, value, e);
}

int kvc_meta_parse(struct kvc_meta *m, const char *text, struct kvc_error *e) {
    char key[MOST_KEY + 1];
    const char *value = strchr(text, '=');
    if (!value || value == text || value - text > MOST_KEY)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "metadata are given as KEY=VALUE, with a key of at most %d bytes",
                        MOST_KEY);
    snprintf(key, sizeof key, "%.*s", (int)(value++ - text), text);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (is_key(key, own[i]))
            return kvc_fail(e, KVC_ERR_USAGE, "%s: kvc sets this key itself", key);
    switch (type_of(key)) {
    case KVC_META_BOOL:
        if (strcmp(value, "true") != 0 && strcmp(value, "false") != 0)
            return kvc_fail(e, KVC_ERR_USAGE, "%s: is neither true nor false", key);
        return kvc_meta_set_bool(m, key, *value == 't', e);
    case KVC_META_U64: return set_number(m, key, value, 0, e);
    case KVC_META_F64: return set_number(m, key, value, 1, e);
    case KVC_META_U64S: return set_counts(m, key, value, e);
    case KVC_META_BYTES: return set_bytes(m, key, value, e);
    default: return set_text(m, key, value, e);
    }
}

/* --- facts --- */

static int is_fact(const char *key) {
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (is_key(key, types[i].key)) return types[i].is_fact;
    return 0;
}

static int no_such_fact(const char *key, struct kvc_error *e) {
    struct kvc_near near = {.word = key};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].is_fact) kvc_near_offer(&near, types[i].key);
    return kvc_fail(e, KVC_ERR_USAGE, "there is no fact '%s'%s%s%s", key,
                    *near.text ? "; did you mean " : "", near.text, *near.text ? "?" : "");
}

int kvc_facts_give(struct kvc_meta *m, const char *const *facts, struct kvc_error *e) {
    for (; facts && *facts; facts++) {
        char key[MOST_KEY + 1];
        const size_t n = strcspn(*facts, "=");
        snprintf(key, sizeof key, "%.*s", (int)(n < MOST_KEY ? n : MOST_KEY), *facts);
        if (!is_fact(key)) return no_such_fact(key, e);
        if (kvc_meta_parse(m, *facts, e)) return -1;
        if (strcmp(key, KVC_KEY_ROPE_PAIRING) == 0) kvc_meta_remove(m, KVC_KEY_ROPE_ASSUMED);
    }
    return 0;
}
