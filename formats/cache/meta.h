/* meta.h: typed metadata: a sorted list of keys with values, as a .kvc stores it. Not for the
 * meaning of keys (FORMAT.md), nor for deciding by them (facts.h). */
#ifndef KVC_META_H
#define KVC_META_H

#include "codecs/error.h"
#include "formats/cache/facts.h"

#include <stddef.h>
#include <stdint.h>

struct kvc_meta_entry {
    char *key;
    enum kvc_meta_type type;
    int critical;  /* a reader that does not know the key must refuse the file */
    uint64_t size; /* bytes of the value as encoded */
    uint8_t *value;
};

struct kvc_meta {
    struct kvc_meta_entry *entry; /* sorted by key, byte order, unique */
    size_t n;
    struct kvc_facts facts; /* what the entries tell, always as they are now */
    /* content id of the container that was opened; zeros: the cache is no container's */
    uint8_t content[32];
};

void kvc_meta_free(struct kvc_meta *m);
/* Setters replace an entry of the same key. `key`: 1-255 bytes of [a-z0-9._-]. */
int kvc_meta_set_bool(struct kvc_meta *m, const char *key, int v, struct kvc_error *e);
int kvc_meta_set_u64(struct kvc_meta *m, const char *key, uint64_t v, struct kvc_error *e);
int kvc_meta_set_i64(struct kvc_meta *m, const char *key, int64_t v, struct kvc_error *e);
int kvc_meta_set_f64(struct kvc_meta *m, const char *key, double v, struct kvc_error *e);
int kvc_meta_set_text(struct kvc_meta *m, const char *key, const char *v, struct kvc_error *e);
int kvc_meta_set_bytes(struct kvc_meta *m, const char *key, const void *v, size_t n,
                       struct kvc_error *e);
int kvc_meta_set_u64s(struct kvc_meta *m, const char *key, const uint64_t *v, size_t n,
                      struct kvc_error *e);
/* Sets a copy of an entry of other metadata. */
int kvc_meta_set_entry(struct kvc_meta *m, const struct kvc_meta_entry *entry, struct kvc_error *e);
void kvc_meta_remove(struct kvc_meta *m, const char *key);
int kvc_meta_copy(struct kvc_meta *to, const struct kvc_meta *from, struct kvc_error *e);

const struct kvc_meta_entry *kvc_meta_find(const struct kvc_meta *m, const char *key);
/* Return the value, or `otherwise` if the key is absent or of another type. Text ends with a NUL
 * and is owned by the metadata. */
const char *kvc_meta_text(const struct kvc_meta *m, const char *key, const char *otherwise);
uint64_t kvc_meta_u64(const struct kvc_meta *m, const char *key, uint64_t otherwise);
int64_t kvc_meta_i64(const struct kvc_meta *m, const char *key, int64_t otherwise);
double kvc_meta_f64(const struct kvc_meta *m, const char *key, double otherwise);
int kvc_meta_bool(const struct kvc_meta *m, const char *key, int otherwise);
/* Writes one entry as text ("0.5", "true", bytes in hex), cut to `size` bytes with the NUL. Returns
 * the length of the whole text, as snprintf() does. `text` may be NULL if size is 0. */
size_t kvc_meta_print(const struct kvc_meta_entry *entry, char *text, size_t size);

/* Sets an entry from "KEY=VALUE", of the type that the key has: numbers are decimal, a bool is true
 * or false, bytes are hex. Keys that kvc keeps for itself are refused. */
int kvc_meta_parse(struct kvc_meta *m, const char *text, struct kvc_error *e);
/* Sets facts of a cache that somebody knows who did not write its file: "KEY=VALUE",
 * NULL-terminated; NULL: none. Refuses keys that are no facts, and names similar ones. What the
 * metadata said before is replaced. */
int kvc_meta_give(struct kvc_meta *m, const char *const *facts, struct kvc_error *e);
/* Notes the RoPE pairing of K, which is known from now on. */
int kvc_meta_set_pairing(struct kvc_meta *m, enum kvc_pairing pairing, struct kvc_error *e);

/* The META section (FORMAT.md). kvc_meta_encode() allocates *bytes, which the caller frees.
 * kvc_meta_decode() refuses keys that are not sorted and unique, unknown types, and unknown
 * critical keys. */
int kvc_meta_encode(const struct kvc_meta *m, uint8_t **bytes, size_t *n, struct kvc_error *e);
int kvc_meta_decode(struct kvc_meta *m, const uint8_t *bytes, size_t n, struct kvc_error *e);

#endif
