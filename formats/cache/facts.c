/* facts.c: the keys that kvc knows, with their types; metadata decoded into typed facts, and set
 * from text. Not for deciding by facts. */
#include "formats/cache/facts.h"

#include "codecs/near.h"
#include "codecs/number.h"
#include "formats/cache/keys.h"
#include "formats/cache/rope_names.h"
#include "formats/io/bytes.h"
#include "formats/io/hash.h"

#include <math.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

/* --- words --- */

static void read_source(struct kvc_facts *f, const char *text) {
    f->of_llama = strncmp(text, "llama.cpp", 9) == 0;
}

static void read_pairing(struct kvc_facts *f, const char *text) {
    f->rope.pairing = kvc_pairing_parse(text);
}

static void read_rope_type(struct kvc_facts *f, const char *text) {
    f->rope.type = kvc_rope_type_parse(text);
}

/* K is after RoPE also where nothing says so. */
static void read_rope_k(struct kvc_facts *f, const char *text) {
    f->rope.before = *text && strcmp(text, "post") != 0;
}

static void read_token_form(struct kvc_facts *f, const char *text) {
    f->had_tokens = *text && strcmp(text, "none") != 0;
    f->plain_tokens = strcmp(text, "plain") == 0;
}

/* Returns the place that the last of the words in [text, end) names that relate states to a norm.
 * Case does not count. */
static enum kvc_hidden_place last_word(const char *text, const char *end) {
    enum kvc_hidden_place place = KVC_HIDDEN_UNKNOWN;
    for (; text < end; text++) {
        if (strncasecmp(text, "after", 5) == 0) place = KVC_HIDDEN_AFTER_NORM;
        if (strncasecmp(text, "before", 6) == 0) place = KVC_HIDDEN_BEFORE_NORM;
    }
    return place;
}

/* Reads "after ... norm" or "before ... norm", with other words of the source file between and
 * around. Unknown if the text has neither or contradicts itself. */
static void read_hidden_place(struct kvc_facts *f, const char *text) {
    static const char norm[] = "norm"; /* also the end of RMSNorm, LayerNorm, input_layernorm */
    f->hidden_place = KVC_HIDDEN_UNKNOWN;
    for (const char *at = text; *at; at++) {
        if (strncasecmp(at, norm, strlen(norm)) != 0) continue;
        const enum kvc_hidden_place place = last_word(text, at);
        text = at; /* a word is about the norm that follows it */
        if (place == KVC_HIDDEN_UNKNOWN) continue;
        const int contradicts = f->hidden_place != KVC_HIDDEN_UNKNOWN && place != f->hidden_place;
        f->hidden_place = contradicts ? KVC_HIDDEN_UNKNOWN : place;
        if (contradicts) return;
    }
}

/* --- lists of scales --- */

/* Reads a number as binary32. Returns the rest of the text, or NULL. */
static const char *read_scale(const char *text, float *scale) {
    double v;
    const char *rest = kvc_number_begin(text, &v);
    if (!rest || !((float)v > 0) || !isfinite((float)v)) return NULL;
    *scale = (float)v;
    return rest;
}

const char *kvc_scales_layer(const char *text, float *scale, uint64_t room, uint64_t *n) {
    for (*n = 0; *text && *text != ',';) {
        float one;
        if (*n && *text++ != ':') return NULL;
        if (!(text = read_scale(text, &one))) return NULL;
        if (*n < room) scale[*n] = one;
        ++*n;
    }
    return text;
}

int kvc_scales_check(const char *text) {
    uint64_t n;
    if (!*text) return -1;
    while ((text = kvc_scales_layer(text, NULL, 0, &n)) && *text) text++;
    return text ? 0 : -1;
}

/* --- the table --- */

#define AT(field) offsetof(struct kvc_facts, field)
/* Keys of facts, and others that are no text; a key that ends with a dot stands for all that begin
 * so. */
static const struct row {
    const char *key;
    enum kvc_meta_type type;
    int is_fact;  /* of the model and its values, which somebody may know who did not write the file
                   */
    size_t field; /* of struct kvc_facts; 0: none */
    size_t known; /* a field that is 1 where the key is there; for a bool, where it is false */
    void (*read)(struct kvc_facts *f, const char *text); /* of words; "": there are none */
} table[] = {
    {KVC_KEY_SOURCE_FORMAT, KVC_META_TEXT, 0, 0, 0, read_source},
    {KVC_KEY_PROFILE, KVC_META_BYTES, 0, AT(profile), 0, NULL},
    {KVC_KEY_MODEL_NAME, KVC_META_TEXT, 1, AT(model), 0, NULL},
    {KVC_KEY_MODEL_ARCH, KVC_META_TEXT, 1, AT(architecture), 0, NULL},
    {KVC_KEY_MODEL_LAYERS, KVC_META_U64, 1, AT(layers), 0, NULL},
    {KVC_KEY_MODEL_HEADS, KVC_META_U64, 1, AT(query_heads), 0, NULL},
    {KVC_KEY_MODEL_KV_HEADS, KVC_META_U64, 1, AT(kv_heads), 0, NULL},
    {KVC_KEY_MODEL_HEAD_DIM, KVC_META_U64, 1, AT(head_dim), 0, NULL},
    {KVC_KEY_MODEL_HEAD_DIM_V, KVC_META_U64, 1, AT(head_dim_v), 0, NULL},
    {KVC_KEY_MODEL_ADAPTERS, KVC_META_TEXT, 1, AT(adapters), 0, NULL},
    {KVC_KEY_MODEL_ADAPTERS_HASH, KVC_META_BYTES, 1, 0, 0, NULL},
    {KVC_KEY_FINGERPRINT, KVC_META_BYTES, 1, 0, 0, NULL},
    {KVC_KEY_TOKENIZER, KVC_META_BYTES, 1, 0, 0, NULL},
    {KVC_KEY_ROPE_K, KVC_META_TEXT, 1, 0, 0, read_rope_k},
    {KVC_KEY_ROPE_PAIRING, KVC_META_TEXT, 1, 0, 0, read_pairing},
    {KVC_KEY_ROPE_ASSUMED, KVC_META_BOOL, 0, AT(rope.assumed), 0, NULL},
    {KVC_KEY_ROPE_TYPE, KVC_META_TEXT, 1, 0, 0, read_rope_type},
    {KVC_KEY_ROPE_THETA, KVC_META_F64, 1, AT(rope.theta), 0, NULL},
    {KVC_KEY_ROPE_DIM, KVC_META_U64, 1, AT(rope.dim), AT(rope.dim_known), NULL},
    {KVC_KEY_ROPE_FACTOR, KVC_META_F64, 1, AT(rope.factor), 0, NULL},
    {KVC_KEY_ROPE_ORIGINAL, KVC_META_U64, 1, AT(rope.original), 0, NULL},
    {KVC_KEY_ROPE_SCALING, KVC_META_TEXT, 1, AT(rope.scaling), 0, NULL},
    {KVC_KEY_ROPE_SECTIONS, KVC_META_U64S, 1, 0, 0, NULL},
    {KVC_KEY_ROPE_SOURCE, KVC_META_TEXT, 1, 0, 0, NULL},
    {KVC_KEY_SCALE_K, KVC_META_TEXT, 1, AT(scale[0]), 0, NULL},
    {KVC_KEY_SCALE_V, KVC_META_TEXT, 1, AT(scale[1]), 0, NULL},
    {KVC_KEY_SCALE_SOURCE, KVC_META_TEXT, 1, 0, 0, NULL},
    {KVC_KEY_HADAMARD_K, KVC_META_U64, 1, AT(tile[0]), AT(tile_known[0]), NULL},
    {KVC_KEY_HADAMARD_V, KVC_META_U64, 1, AT(tile[1]), AT(tile_known[1]), NULL},
    {KVC_KEY_HIDDEN_STATES, KVC_META_TEXT, 1, 0, 0, read_hidden_place},
    {KVC_KEY_WINDOW, KVC_META_U64, 1, AT(window), 0, NULL},
    {KVC_KEY_WINDOW_ASSUMED, KVC_META_BOOL, 0, AT(window_assumed), 0, NULL},
    {KVC_KEY_POSITIONS_GIVEN, KVC_META_BOOL, 0, AT(positions_given), 0, NULL},
    {KVC_KEY_ROWS_USED, KVC_META_TEXT, 0, AT(rows_used), 0, NULL},
    {KVC_KEY_PAGE_SIZE, KVC_META_U64, 1, 0, 0, NULL},
    {KVC_KEY_SHARD_RANK, KVC_META_U64, 1, AT(shard_rank), 0, NULL},
    {KVC_KEY_SHARD_RANKS, KVC_META_U64, 1, AT(shard_ranks), 0, NULL},
    {KVC_KEY_SHARD_SET, KVC_META_BYTES, 1, AT(shard_set), 0, NULL},
    {KVC_KEY_HEADS_KNOWN, KVC_META_BOOL, 0, 0, AT(heads_unknown), NULL},
    {KVC_KEY_LAYERS_KNOWN, KVC_META_BOOL, 0, 0, AT(layers_unknown), NULL},
    {KVC_KEY_TOKENS_FIRST, KVC_META_U64, 0, AT(tokens_first), 0, NULL},
    {KVC_KEY_PREFIX_IDENTITY, KVC_META_TEXT, 0, AT(identity), 0, NULL},
    {KVC_KEY_PREFIX_PARENT, KVC_META_BYTES, 0, AT(parent), 0, NULL},
    {KVC_KEY_VALUES_PROFILE, KVC_META_BYTES, 0, 0, 0, NULL},
    {KVC_KEY_VALUES_CONTENT, KVC_META_BYTES, 0, 0, 0, NULL},
    {KVC_KEY_LLAMA_TOKEN_FORM, KVC_META_TEXT, 0, 0, 0, read_token_form},
    {KVC_KEY_CELLS_COORDINATES, KVC_META_U64, 0, AT(coordinates), 0, NULL},
};
enum { ROWS = sizeof table / sizeof table[0] };

static int is_key(const char *key, const char *pattern) {
    const size_t n = strlen(pattern);
    return n && pattern[n - 1] == '.' ? strncmp(key, pattern, n) == 0 : strcmp(key, pattern) == 0;
}

/* Returns the row of a key, or NULL. */
static const struct row *row_of(const char *key) {
    for (size_t i = 0; i < ROWS; i++)
        if (is_key(key, table[i].key)) return &table[i];
    return NULL;
}

enum kvc_meta_type kvc_fact_type(const char *key) {
    const struct row *row = row_of(key);
    return row ? row->type : KVC_META_TEXT;
}

int kvc_fact_need(const char *key, struct kvc_error *e) {
    const struct row *row = row_of(key);
    struct kvc_near near = {.word = key};
    if (row && row->is_fact) return 0;
    for (size_t i = 0; i < ROWS; i++)
        if (table[i].is_fact) kvc_near_offer(&near, table[i].key);
    return kvc_fail(e, KVC_ERR_USAGE, "there is no fact '%s'%s%s%s", key,
                    *near.text ? "; did you mean " : "", near.text, *near.text ? "?" : "");
}

int kvc_fact_value_check(const char *key, const char *value, struct kvc_error *e) {
    /* keys that the container keeps for itself; as in the table */
    static const char *const own[] = {KVC_KEY_PRODUCER,     "source.", "profile.", KVC_KEY_RECIPE,
                                      KVC_KEY_TOKENS_FIRST, "llama.",  "cells."};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (is_key(key, own[i]))
            return kvc_fail(e, KVC_ERR_USAGE, "%s: kvc sets this key itself", key);
    if (strncmp(key, "scale.", 6) == 0 && strcmp(key, KVC_KEY_SCALE_SOURCE) != 0 &&
        kvc_scales_check(value))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%s: '%.60s' is no scale above 0, nor a list of such: 0.5,0.25 of layers, "
                        "0.5:0.4 of heads",
                        key, value);
    if (strcmp(key, KVC_KEY_ROPE_K) == 0 && strcmp(value, "post") != 0 && strcmp(value, "pre") != 0)
        return kvc_fail(e, KVC_ERR_USAGE, "%s: '%.60s' is neither post nor pre", key, value);
    if (strcmp(key, KVC_KEY_ROPE_PAIRING) == 0 && !kvc_pairing_parse(value))
        return kvc_fail(e, KVC_ERR_USAGE, "%s: '%.60s' is none of halves, interleaved, none", key,
                        value);
    return 0;
}

void kvc_facts_note(struct kvc_facts *f, const char *key, enum kvc_meta_type type,
                    const uint8_t *value, uint64_t n) {
    const struct row *row = row_of(key);
    if (!row) return;
    if (type != row->type) value = NULL;
    const char *text = value && type == KVC_META_TEXT ? (const char *)value : "";
    const int is_true = value && type == KVC_META_BOOL && *value, known = value && !is_true;
    const uint64_t bits = value && n == 8 ? get_u64(value) : 0; /* of a u64 or an f64 */
    char *const to = (char *)f + row->field;
    if (row->read) row->read(f, text);
    if (row->known) memcpy((char *)f + row->known, &known, sizeof known);
    if (!row->field) return;
    switch (row->type) {
    case KVC_META_BOOL: memcpy(to, &is_true, sizeof is_true); return;
    case KVC_META_TEXT:
        if (!*text) text = NULL;
        memcpy(to, &text, sizeof text);
        return;
    case KVC_META_BYTES:
        if (n != (row->field == AT(shard_set) ? KVC_SHARD_SET_BYTES : KVC_SHA256_BYTES))
            value = NULL;
        memcpy(to, &value, sizeof value);
        return;
    default: memcpy(to, &bits, sizeof bits);
    }
}
