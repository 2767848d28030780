/* kept_tables.c: a hash table of tables that stay on a device. */
#include "formats/device/kept_tables.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { ALIGN = 16 };

static uint64_t hash_of(const struct kvc_kept *k, const struct kvc_program_key *key) {
    if (k->hash) return k->hash(key);
    const uint64_t seed = (uint64_t)key->which << 1 | (key->size != 0);
    const uint64_t hash = key->size ? XXH3_64bits_withSeed(key->bytes, key->size, seed)
                                    : XXH3_64bits_withSeed(&key->bytes, sizeof key->bytes, seed);
    return hash ? hash : 1;
}

static int is_same(const struct kvc_program_key *a, const struct kvc_program_key *b) {
    return a->which == b->which && a->size == b->size &&
           (a->size ? memcmp(a->bytes, b->bytes, a->size) == 0 : a->bytes == b->bytes);
}

/* Finds the first empty place for a hash. */
static struct kvc_kept_table *empty_place(const struct kvc_kept *k, uint64_t hash) {
    size_t i = (size_t)hash & (k->places - 1);
    while (k->table[i].hash) i = (i + 1) & (k->places - 1);
    return &k->table[i];
}

const struct kvc_kept_table *kvc_kept_find(const struct kvc_kept *k,
                                           const struct kvc_program_key *key, size_t n) {
    if (!k->places) return NULL;
    const uint64_t hash = hash_of(k, key);
    for (size_t i = (size_t)hash & (k->places - 1); k->table[i].hash;
         i = (i + 1) & (k->places - 1)) {
        const struct kvc_kept_table *t = &k->table[i];
        if (t->hash == hash && t->size == n && is_same(&t->key, key)) return t;
    }
    return NULL;
}

/* Makes room for one more table. At least half of the places stay empty. */
static int more_places(struct kvc_kept *k, struct kvc_error *e) {
    struct kvc_kept old = *k;
    if (2 * k->n < k->places) return 0;
    k->places = k->places ? 2 * k->places : 64;
    if (!(k->table = calloc(k->places, sizeof *k->table))) {
        *k = old;
        return kvc_fail_memory(e, "tables");
    }
    for (size_t i = 0; i < old.places; i++)
        if (old.table[i].hash) *empty_place(k, old.table[i].hash) = old.table[i];
    free(old.table);
    return 0;
}

static int more_bytes(struct kvc_kept *k, size_t n, struct kvc_error *e) {
    if (k->room - k->used >= n) return 0;
    const size_t room = 2 * k->room + n;
    uint8_t *grown = realloc(k->bytes, room);
    if (!grown) return kvc_fail_memory(e, "tables");
    k->bytes = grown;
    k->room = room;
    return 0;
}

int kvc_kept_add(struct kvc_kept *k, const struct kvc_program_key *key, size_t n, void **bytes,
                 struct kvc_error *e) {
    const size_t size = (n + ALIGN - 1) / ALIGN * ALIGN;
    const uint64_t hash = hash_of(k, key);
    struct kvc_program_key own = *key;
    if (more_places(k, e) || more_bytes(k, size, e)) return -1;
    if (key->size) {
        void *copy = malloc(key->size);
        if (!copy) return kvc_fail_memory(e, "tables");
        own.bytes = memcpy(copy, key->bytes, key->size);
    }
    *empty_place(k, hash) =
        (struct kvc_kept_table){.hash = hash, .key = own, .offset = k->used, .size = n};
    *bytes = k->bytes + k->used;
    k->used += size;
    k->n++;
    return 0;
}

void kvc_kept_free(struct kvc_kept *k) {
    for (size_t i = 0; i < k->places; i++)
        if (k->table[i].key.size) free((void *)(uintptr_t)k->table[i].key.bytes);
    free(k->table);
    free(k->bytes);
    memset(k, 0, sizeof *k);
}
