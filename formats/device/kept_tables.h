/* kept_tables.h: tables that stay on a device for a whole load, each found by the key that programs ask for it with
 * (codecs/program.h). Not for which tables those are (batch.h) or for getting them there (load.h). */
#ifndef KVC_KEPT_TABLES_H
#define KVC_KEPT_TABLES_H

#include "codecs/program.h"

struct kvc_kept_table {
    uint64_t hash;              /* of the key; 0: an empty place */
    struct kvc_program_key key; /* where its size is not 0, its bytes are a copy */
    size_t offset, size;
};

/* Zero-initialise. Planning fills it, loading only looks things up. */
struct kvc_kept {
    struct kvc_kept_table *table; /* open addressing: `places` of them, a power of two, n in use */
    size_t n, places;
    uint8_t *bytes; /* what goes to the device */
    size_t used, room;
    uint64_t address; /* where it is there */
    /* Tests: takes the place of the hash over keys when not NULL. It is not 0 of any key. */
    uint64_t (*hash)(const struct kvc_program_key *key);
};
void kvc_kept_free(struct kvc_kept *k);

/* The table of n bytes with that key; NULL when there is none. */
const struct kvc_kept_table *kvc_kept_find(const struct kvc_kept *k, const struct kvc_program_key *key, size_t n);
/* Adds a table of n bytes, on a multiple of 16, whose key is not there yet. *bytes is where to write them, until another table
 * is added. */
int kvc_kept_add(struct kvc_kept *k, const struct kvc_program_key *key, size_t n, void **bytes, struct kvc_error *e);

#endif
