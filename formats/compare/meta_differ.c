/* meta_differ.c: metadata of two caches that differs. */
#include "formats/compare/meta_differ.h"

#include "formats/cache/keys.h"

#include <string.h>

static int counts(const struct kvc_cache *const cache[2], enum kvc_meta_reach reach,
                  const char *key) {
    static const char *const keys[] = {KVC_KEY_ROPE_K,   KVC_KEY_ROPE_TYPE,   KVC_KEY_ROPE_THETA,
                                       KVC_KEY_ROPE_DIM, KVC_KEY_ROPE_FACTOR, KVC_KEY_ROPE_ORIGINAL,
                                       KVC_KEY_WINDOW};
    /* Comparing undoes these. */
    static const char *const undone[] = {KVC_KEY_HADAMARD_K, KVC_KEY_HADAMARD_V, KVC_KEY_SCALE_K,
                                         KVC_KEY_SCALE_V};
    if (strcmp(key, KVC_KEY_ROPE_PAIRING) == 0)
        return cache[0]->meta.facts.rope.pairing == KVC_PAIRING_NONE ||
               cache[1]->meta.facts.rope.pairing == KVC_PAIRING_NONE;
    for (size_t i = 0; i < sizeof undone / sizeof undone[0]; i++)
        if (strcmp(key, undone[i]) == 0) return reach != KVC_META_MEANING;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strcmp(keys[i], key) == 0) return 1;
    return reach == KVC_META_EVERY_ENTRY;
}

static int same(const struct kvc_meta_entry *a, const struct kvc_meta_entry *b) {
    if (a->type == b->type)
        return a->size == b->size && (!a->size || memcmp(a->value, b->value, a->size) == 0);
    char text[2][600];
    kvc_meta_print(a, text[0], sizeof text[0]);
    kvc_meta_print(b, text[1], sizeof text[1]);
    return strcmp(text[0], text[1]) == 0;
}

void kvc_meta_differ(const struct kvc_cache *const cache[2], enum kvc_meta_reach reach,
                     kvc_meta_differ_fn *differs, void *state) {
    const struct kvc_meta *a = &cache[0]->meta, *b = &cache[1]->meta;
    for (size_t i = 0, j = 0; i < a->n || j < b->n;) {
        const int order = i == a->n ? 1 : j == b->n ? -1 : strcmp(a->entry[i].key, b->entry[j].key);
        const struct kvc_meta_entry *x = order <= 0 ? &a->entry[i] : NULL,
                                    *y = order >= 0 ? &b->entry[j] : NULL;
        if (x && y ? !same(x, y) && counts(cache, reach, x->key) : reach == KVC_META_EVERY_ENTRY)
            differs(state, x, y);
        i += order <= 0;
        j += order >= 0;
    }
}
