/* kept_tables.h: tables that stay on a device for a whole load, each found by the key of a program
 * (codecs/program.h). Not for choosing the tables (batch.h) or for copying them to the device
 * (load.h). */
#ifndef KVC_KEPT_TABLES_H
#define KVC_KEPT_TABLES_H

#include "codecs/program.h"

struct kvc_kept_table {
    uint64_t hash;              /* of the key; 0: an empty place */
    struct kvc_program_key key; /* its bytes are a copy where its size is not 0 */
    size_t offset, size;
};

/* Zero-initialise. The plan adds tables; loading only looks them up. */
struct kvc_kept {
    struct kvc_kept_table *table; /* open addressing: `places` of them, a power of two, n in use */
    size_t n, places;
    uint8_t *bytes; /* of all tables, copied to the device */
    size_t used, room;
    uint64_t address; /* of `bytes` on the device */
    /* For tests: replaces the hash of keys when not NULL. Must not return 0. */
    uint64_t (*hash)(const struct kvc_program_key *key);
};
void kvc_kept_free(struct kvc_kept *k);

/* Finds the table of n bytes with this key; NULL when there is none. */
const struct kvc_kept_table *kvc_kept_find(const struct kvc_kept *k,
                                           const struct kvc_program_key *key, size_t n);
/* Adds a table of n bytes, at a multiple of 16, whose key was not added before. The caller writes
 * the bytes at *bytes, which is valid until another table is added. */
int kvc_kept_add(struct kvc_kept *k, const struct kvc_program_key *key, size_t n, void **bytes,
                 struct kvc_error *e);

#endif
