/* meta.c: the sorted list of typed metadata, from and to text, and as a META section. */
#include "formats/cache/meta.h"

#include "codecs/memory.h"
#include "codecs/number.h"
#include "formats/cache/keys.h"
#include "formats/cache/rope_names.h"
#include "formats/io/bytes.h"
#include "formats/io/hash.h"
#include "formats/io/printable.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void entry_free(struct kvc_meta_entry *entry) {
    free(entry->key);
    free(entry->value);
}

void kvc_meta_free(struct kvc_meta *m) {
    for (size_t i = 0; i < m->n; i++) entry_free(&m->entry[i]);
    free(m->entry);
    memset(m, 0, sizeof *m);
}

/* Returns the index of a key, or the index where it has to be inserted; *found: 1 if it exists. */
static size_t locate(const struct kvc_meta *m, const char *key, int *found) {
    size_t low = 0, high = m->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int c = strcmp(m->entry[mid].key, key);
        if (c == 0) {
            *found = 1;
            return mid;
        }
        if (c < 0) low = mid + 1;
        else high = mid;
    }
    *found = 0;
    return low;
}

static int key_is_valid(const char *key, size_t n) {
    if (n < 1 || n > 255) return 0;
    for (size_t i = 0; i < n; i++)
        if (!((key[i] >= 'a' && key[i] <= 'z') || (key[i] >= '0' && key[i] <= '9') ||
              strchr("._-", key[i])) ||
            !key[i])
            return 0;
    return 1;
}

/* Checks for well-formed UTF-8 without NUL. */
static int text_is_valid(const uint8_t *s, size_t n) {
    for (size_t i = 0, step; i < n; i += step)
        if (!(step = kvc_utf8_length(s + i, n - i)) || !s[i]) return 0;
    return 1;
}

/* Adds or replaces an entry. A NUL follows every value, so that text can be used as a string. */
static int set(struct kvc_meta *m, const char *key, enum kvc_meta_type type, int critical,
               const void *value, uint64_t size, struct kvc_error *e) {
    int found;
    if (!key_is_valid(key, strlen(key)))
        return kvc_fail(e, KVC_ERR_USAGE, "metadata key '%s' is not [a-z0-9._-]", key);
    size_t at = locate(m, key, &found);
    struct kvc_meta_entry entry = {.key = strdup(key),
                                   .type = type,
                                   .critical = critical,
                                   .size = size,
                                   .value = malloc((size_t)size + 1)};
    if (!entry.key || !entry.value) goto memory;
    if (size) memcpy(entry.value, value, (size_t)size);
    entry.value[size] = '\0';
    if (found) {
        entry_free(&m->entry[at]);
    } else {
        struct kvc_meta_entry *grown = kvc_room_for_one(m->entry, m->n, sizeof *grown);
        if (!grown) goto memory;
        m->entry = grown;
        memmove(m->entry + at + 1, m->entry + at, (m->n - at) * sizeof *m->entry);
        m->n++;
    }
    m->entry[at] = entry;
    kvc_facts_note(&m->facts, entry.key, type, entry.value, size);
    return 0;
memory:
    entry_free(&entry);
    return kvc_fail_memory(e, "metadata");
}

int kvc_meta_set_bool(struct kvc_meta *m, const char *key, int v, struct kvc_error *e) {
    uint8_t byte = v != 0;
    return set(m, key, KVC_META_BOOL, 0, &byte, 1, e);
}

int kvc_meta_set_u64(struct kvc_meta *m, const char *key, uint64_t v, struct kvc_error *e) {
    uint8_t bytes[8];
    put_u64(bytes, v);
    return set(m, key, KVC_META_U64, 0, bytes, sizeof bytes, e);
}

int kvc_meta_set_i64(struct kvc_meta *m, const char *key, int64_t v, struct kvc_error *e) {
    uint8_t bytes[8];
    put_u64(bytes, (uint64_t)v);
    return set(m, key, KVC_META_I64, 0, bytes, sizeof bytes, e);
}

int kvc_meta_set_f64(struct kvc_meta *m, const char *key, double v, struct kvc_error *e) {
    uint8_t bytes[8];
    put_f64(bytes, v);
    return set(m, key, KVC_META_F64, 0, bytes, sizeof bytes, e);
}

int kvc_meta_set_text(struct kvc_meta *m, const char *key, const char *v, struct kvc_error *e) {
    if (!text_is_valid((const uint8_t *)v, strlen(v)))
        return kvc_fail(e, KVC_ERR_DAMAGED, "the text for %s is not valid UTF-8", key);
    return set(m, key, KVC_META_TEXT, 0, v, strlen(v), e);
}

int kvc_meta_set_bytes(struct kvc_meta *m, const char *key, const void *v, size_t n,
                       struct kvc_error *e) {
    return set(m, key, KVC_META_BYTES, 0, v, n, e);
}

int kvc_meta_set_u64s(struct kvc_meta *m, const char *key, const uint64_t *v, size_t n,
                      struct kvc_error *e) {
    uint8_t *bytes = kvc_alloc(n, 8);
    if (!bytes) return kvc_fail_memory(e, "metadata");
    for (size_t i = 0; i < n; i++) put_u64(bytes + 8 * i, v[i]);
    int status = set(m, key, KVC_META_U64S, 0, bytes, 8 * n, e);
    free(bytes);
    return status;
}

int kvc_meta_set_entry(struct kvc_meta *m, const struct kvc_meta_entry *entry,
                       struct kvc_error *e) {
    return set(m, entry->key, entry->type, entry->critical, entry->value, entry->size, e);
}

void kvc_meta_remove(struct kvc_meta *m, const char *key) {
    int found;
    size_t at = locate(m, key, &found);
    if (!found) return;
    kvc_facts_note(&m->facts, key, m->entry[at].type, NULL, 0);
    entry_free(&m->entry[at]);
    memmove(m->entry + at, m->entry + at + 1, (m->n - at - 1) * sizeof *m->entry);
    m->n--;
}

int kvc_meta_copy(struct kvc_meta *to, const struct kvc_meta *from, struct kvc_error *e) {
    memcpy(to->content, from->content, sizeof to->content);
    for (size_t i = 0; i < from->n; i++) {
        const struct kvc_meta_entry *x = &from->entry[i];
        if (set(to, x->key, x->type, x->critical, x->value, x->size, e)) return -1;
    }
    if (from->facts.rope_table.state != KVC_TABLE_NONE)
        to->facts.rope_table = from->facts.rope_table;
    return 0;
}

const struct kvc_meta_entry *kvc_meta_find(const struct kvc_meta *m, const char *key) {
    int found;
    size_t at = locate(m, key, &found);
    return found ? &m->entry[at] : NULL;
}

static const struct kvc_meta_entry *typed(const struct kvc_meta *m, const char *key,
                                          enum kvc_meta_type type) {
    const struct kvc_meta_entry *x = kvc_meta_find(m, key);
    return x && x->type == type ? x : NULL;
}

const char *kvc_meta_text(const struct kvc_meta *m, const char *key, const char *otherwise) {
    const struct kvc_meta_entry *x = typed(m, key, KVC_META_TEXT);
    return x ? (const char *)x->value : otherwise;
}

uint64_t kvc_meta_u64(const struct kvc_meta *m, const char *key, uint64_t otherwise) {
    const struct kvc_meta_entry *x = typed(m, key, KVC_META_U64);
    return x ? get_u64(x->value) : otherwise;
}

int64_t kvc_meta_i64(const struct kvc_meta *m, const char *key, int64_t otherwise) {
    const struct kvc_meta_entry *x = typed(m, key, KVC_META_I64);
    return x ? (int64_t)get_u64(x->value) : otherwise;
}

double kvc_meta_f64(const struct kvc_meta *m, const char *key, double otherwise) {
    const struct kvc_meta_entry *x = typed(m, key, KVC_META_F64);
    return x ? get_f64(x->value) : otherwise;
}

int kvc_meta_bool(const struct kvc_meta *m, const char *key, int otherwise) {
    const struct kvc_meta_entry *x = typed(m, key, KVC_META_BOOL);
    return x ? x->value[0] : otherwise;
}

/* --- to text --- */

/* Converts the result of snprintf() to a size. */
static size_t printed(int n) {
    return n > 0 ? (size_t)n : 0;
}

size_t kvc_meta_print(const struct kvc_meta_entry *x, char *text, size_t size) {
    size_t used = 0;
    if (size) *text = '\0';
    switch (x->type) {
    case KVC_META_BOOL: return printed(snprintf(text, size, "%s", x->value[0] ? "true" : "false"));
    case KVC_META_U64: return printed(snprintf(text, size, "%" PRIu64, get_u64(x->value)));
    case KVC_META_I64: return printed(snprintf(text, size, "%" PRId64, (int64_t)get_u64(x->value)));
    case KVC_META_F64: return printed(kvc_number_print(text, size, 17, get_f64(x->value)));
    case KVC_META_TEXT: return printed(snprintf(text, size, "%s", (const char *)x->value));
    case KVC_META_BYTES: /* as many whole bytes as fit */
        for (uint64_t i = 0; i < x->size && used + 3 <= size; i++, used += 2)
            snprintf(text + used, size - used, "%02x", x->value[i]);
        return 2 * (size_t)x->size;
    case KVC_META_U64S:
        for (uint64_t i = 0; i + 8 <= x->size; i += 8) {
            const size_t room = used < size ? size - used : 0;
            used += printed(snprintf(room ? text + used : NULL, room, "%s%" PRIu64, i ? " " : "",
                                     get_u64(x->value + i)));
        }
        return used;
    }
    return 0;
}

/* --- from text --- */

enum { MOST_KEY = 255, MOST_BYTES = 512, MOST_COUNTS = 16 };

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

int kvc_meta_parse(struct kvc_meta *m, const char *text, struct kvc_error *e) {
    char key[MOST_KEY + 1];
    const char *value = strchr(text, '=');
    if (!value || value == text || value - text > MOST_KEY)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "metadata are given as KEY=VALUE, with a key of at most %d bytes",
                        MOST_KEY);
    snprintf(key, sizeof key, "%.*s", (int)(value++ - text), text);
    if (kvc_fact_value_check(key, value, e)) return -1;
    switch (kvc_fact_type(key)) {
    case KVC_META_BOOL:
        if (strcmp(value, "true") != 0 && strcmp(value, "false") != 0)
            return kvc_fail(e, KVC_ERR_USAGE, "%s: is neither true nor false", key);
        return kvc_meta_set_bool(m, key, *value == 't', e);
    case KVC_META_U64: return set_number(m, key, value, 0, e);
    case KVC_META_F64: return set_number(m, key, value, 1, e);
    case KVC_META_U64S: return set_counts(m, key, value, e);
    case KVC_META_BYTES: return set_bytes(m, key, value, e);
    default: return kvc_meta_set_text(m, key, value, e);
    }
}

int kvc_meta_give(struct kvc_meta *m, const char *const *facts, struct kvc_error *e) {
    for (; facts && *facts; facts++) {
        char key[MOST_KEY + 1];
        const size_t n = strcspn(*facts, "=");
        snprintf(key, sizeof key, "%.*s", (int)(n < MOST_KEY ? n : MOST_KEY), *facts);
        if (kvc_fact_need(key, e) || kvc_meta_parse(m, *facts, e)) return -1;
        if (strcmp(key, KVC_KEY_ROPE_PAIRING) == 0) kvc_meta_remove(m, KVC_KEY_ROPE_ASSUMED);
    }
    return 0;
}

int kvc_meta_set_pairing(struct kvc_meta *m, enum kvc_pairing pairing, struct kvc_error *e) {
    kvc_meta_remove(m, KVC_KEY_ROPE_ASSUMED);
    return kvc_meta_set_text(m, KVC_KEY_ROPE_PAIRING, kvc_pairing_name(pairing), e);
}

/* --- the section --- */

int kvc_meta_encode(const struct kvc_meta *m, uint8_t **bytes, size_t *n, struct kvc_error *e) {
    size_t size = 4;
    for (size_t i = 0; i < m->n; i++) {
        if (m->entry[i].size > UINT32_MAX)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "metadata key %s: the value is over 4 GiB",
                            m->entry[i].key);
        size += 8 + strlen(m->entry[i].key) + (size_t)m->entry[i].size;
    }
    uint8_t *p = *bytes = malloc(size);
    if (!p) return kvc_fail_memory(e, "metadata");
    *n = size;
    put_u32(p, (uint32_t)m->n);
    p += 4;
    for (size_t i = 0; i < m->n; i++) {
        const struct kvc_meta_entry *x = &m->entry[i];
        size_t key = strlen(x->key), value = (size_t)x->size;
        p[0] = (uint8_t)key;
        p[1] = (uint8_t)x->type;
        p[2] = (uint8_t)x->critical;
        p[3] = 0;
        put_u32(p + 4, (uint32_t)value);
        memcpy(p + 8, x->key, key);
        if (value) memcpy(p + 8 + key, x->value, value);
        p += 8 + key + value;
    }
    return 0;
}

static int value_is_valid(unsigned type, const uint8_t *value, size_t n) {
    switch (type) {
    case KVC_META_BOOL: return n == 1 && value[0] <= 1;
    case KVC_META_U64:
    case KVC_META_I64:
    case KVC_META_F64: return n == 8;
    case KVC_META_TEXT: return text_is_valid(value, n);
    case KVC_META_BYTES: return 1;
    case KVC_META_U64S: return n % 8 == 0;
    default: return 0;
    }
}

int kvc_meta_decode(struct kvc_meta *m, const uint8_t *bytes, size_t n, struct kvc_error *e) {
    char last[256] = "";
    if (n < 4) return kvc_fail(e, KVC_ERR_DAMAGED, "metadata is cut short");
    uint32_t count = get_u32(bytes);
    size_t at = 4;
    for (uint32_t i = 0; i < count; i++) {
        if (n - at < 8)
            return kvc_fail(e, KVC_ERR_DAMAGED, "metadata is cut short at key %" PRIu32, i);
        size_t key_size = bytes[at], value_size = get_u32(bytes + at + 4);
        unsigned type = bytes[at + 1], critical = bytes[at + 2];
        if (critical > 1 || bytes[at + 3])
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "metadata: reserved bits are set");
        if (n - at - 8 < key_size || n - at - 8 - key_size < value_size)
            return kvc_fail(e, KVC_ERR_DAMAGED, "metadata is cut short at key %" PRIu32, i);
        char key[256];
        memcpy(key, bytes + at + 8, key_size);
        key[key_size] = '\0';
        const uint8_t *value = bytes + at + 8 + key_size;
        if (!key_is_valid(key, key_size))
            return kvc_fail(e, KVC_ERR_DAMAGED, "metadata key %" PRIu32 " is malformed", i);
        if (i && strcmp(last, key) >= 0)
            return kvc_fail(e, KVC_ERR_DAMAGED, "metadata keys are not sorted and unique at '%s'",
                            key);
        if (critical) /* no key of version 1 is */
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "this kvc does not know the metadata key '%s', which a reader must "
                            "understand: use a newer kvc",
                            key);
        if (type < KVC_META_BOOL || type > KVC_META_U64S)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "metadata key '%s' has a value of type %u, which this kvc does not "
                            "know: use a newer kvc",
                            key, type);
        if (!value_is_valid(type, value, value_size))
            return kvc_fail(e, KVC_ERR_DAMAGED, "metadata key '%s' has no valid value of type %u",
                            key, type);
        if (set(m, key, (enum kvc_meta_type)type, (int)critical, value, value_size, e)) return -1;
        memcpy(last, key, sizeof last);
        at += 8 + key_size + value_size;
    }
    return at == n ? 0 : kvc_fail(e, KVC_ERR_DAMAGED, "metadata: bytes follow the last key");
}
