/* zip_set.c: the zips among the members of a bundle. */
#include "formats/io/zip_set.h"

#include "codecs/memory.h"

struct spools {
    size_t n;
    struct kvc_zip_spool *of[];
};

int kvc_zip_set_open(struct kvc_zip_set *set, size_t n, struct kvc_error *e) {
    *set = (struct kvc_zip_set){.zip = kvc_alloc_zeros(n, sizeof *set->zip), .n = n};
    return set->zip ? 0 : kvc_fail_memory(e, "zips");
}

void kvc_zip_set_free(struct kvc_zip_set *set) {
    for (size_t i = 0; set->zip && i < set->n; i++) kvc_zip_free(&set->zip[i]);
    free(set->zip);
    *set = (struct kvc_zip_set){.n = 0};
}

void *kvc_zip_set_take(struct kvc_zip_set *set, struct kvc_error *e) {
    struct spools *taken = malloc(sizeof *taken + set->n * sizeof(struct kvc_zip_spool *));
    if (!taken) {
        kvc_fail_memory(e, "zips");
        return NULL;
    }
    taken->n = set->n;
    for (size_t i = 0; i < set->n; i++) {
        taken->of[i] = set->zip[i].spool;
        set->zip[i].spool_is_taken = 1;
    }
    return taken;
}

void kvc_zip_set_close(void *owner) {
    struct spools *taken = owner;
    for (size_t i = 0; i < taken->n; i++) kvc_zip_spool_close(taken->of[i]);
    free(taken);
}
