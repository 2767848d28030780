/* dry_run.c: dry runs of the programs of blocks, which show the tables that blocks share. Not for
 * programs that are run (batch.c). */
#include "formats/device/batch.h"

#include "formats/container/device_blocks.h"

#include <stdlib.h>

enum { ALIGN = 16 };

static size_t aligned(size_t n) {
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* A table without use, which is freed when the block is done. */
struct dry {
    struct kvc_kept *kept;
    struct dry_table {
        struct dry_table *next;
    } * tables;
    int added, more;
};

static uint64_t dry_place(void *owner, const struct kvc_section *s) {
    (void)owner, (void)s;
    return ALIGN;
}
static int dry_inputs(void *owner, uint32_t tensor, uint64_t *at) {
    (void)owner, (void)tensor;
    *at = ALIGN;
    return 0;
}
static uint64_t dry_scratch(void *owner, size_t n) {
    (void)owner, (void)n;
    return ALIGN;
}
static void *dry_table(void *owner, size_t n, uint64_t *address) {
    struct dry *d = owner;
    struct dry_table *t = malloc(aligned(sizeof *t) + n);
    if (!t) return NULL;
    t->next = d->tables;
    d->tables = t;
    *address = ALIGN;
    return (uint8_t *)t + aligned(sizeof *t);
}

static int dry_keep(void *owner, const struct kvc_program_key *key, size_t n, void **bytes,
                    uint64_t *address, struct kvc_error *e) {
    struct dry *d = owner;
    struct kvc_kept *k = d->kept;
    *bytes = NULL;
    *address = ALIGN;
    if (kvc_kept_find(k, key, n)) return 0;
    if (kvc_kept_add(k, key, n, bytes, e)) return -1;
    d->more |= key->size != 0 && key->which != 0;
    return 0;
}

int kvc_kept_add_block(struct kvc_kept *k, const struct kvc_cache *c, uint32_t tensor,
                       uint64_t block, int *more, struct kvc_error *e) {
    struct dry d = {.kept = k};
    struct kvc_program p = {.owner = &d,
                            .place = dry_place,
                            .table = dry_table,
                            .scratch = dry_scratch,
                            .keep = dry_keep,
                            .inputs = dry_inputs};
    const int status = kvc_container_lower(c, tensor, block, NULL, &p, e);
    for (struct dry_table *t = d.tables, *next; t; t = next) {
        next = t->next;
        free(t);
    }
    kvc_program_free(&p);
    *more = d.more;
    return status < 0 ? -1 : 0;
}
