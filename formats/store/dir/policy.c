/* policy.c: ARC in bytes, leaves first. Spec: STORE.md, "Eviction". */
#include "formats/store/dir/policy.h"

#include <string.h>

/* Moves the target size of the list of objects used once. */
static void adapt(struct kvc_index_sums *sums, const struct kvc_index_record *ghost, uint64_t limit) {
    const double once = (double)sums->bytes[KVC_LIST_GHOST_ONCE], again = (double)sums->bytes[KVC_LIST_GHOST_AGAIN];
    const double size = (double)ghost->size;
    if (ghost->list == KVC_LIST_GHOST_ONCE) sums->target += once > 0 && again > once ? size * again / once : size;
    else sums->target -= again > 0 && once > again ? size * once / again : size;
    if (sums->target < 0) sums->target = 0;
    if (sums->target > (double)limit) sums->target = (double)limit;
}

int kvc_policy_insert(struct kvc_index_txn *t, const uint8_t *key, const struct kvc_index_record *old, struct kvc_index_record *r,
                      uint64_t limit, struct kvc_error *e) {
    const int ghost = old && (old->list == KVC_LIST_GHOST_ONCE || old->list == KVC_LIST_GHOST_AGAIN);
    if (ghost) adapt(kvc_index_sums(t), old, limit);
    kvc_index_sums(t)->puts++;
    return kvc_index_move(t, key, old, r, ghost ? KVC_LIST_AGAIN : KVC_LIST_ONCE, e);
}

int kvc_policy_touch(struct kvc_index_txn *t, const uint8_t *key, const struct kvc_index_record *r, int hit, int64_t now,
                     struct kvc_error *e) {
    struct kvc_index_record next = *r;
    next.used = now;
    if (hit) {
        next.uses++;
        kvc_index_sums(t)->hits++;
    }
    return kvc_index_move(t, key, r, &next, hit ? KVC_LIST_AGAIN : (enum kvc_index_list)r->list, e);
}

/* --- evicting --- */

struct search {
    const uint8_t *keep, *space;
    int64_t now;
    uint8_t *key;
    struct kvc_index_record *record;
    int found;
};

static int see_leaf(void *state, const uint8_t *key, const struct kvc_index_record *r, struct kvc_error *e) {
    struct search *s = state;
    (void)e;
    if (r->children || r->pinned > s->now || (s->keep && memcmp(key, s->keep, KVC_OBJECT_KEY) == 0)) return 0;
    if (s->space && memcmp(r->space, s->space, KVC_OBJECT_SPACE) != 0) return 0;
    memcpy(s->key, key, KVC_OBJECT_KEY);
    *s->record = *r;
    s->found = 1;
    return 1;
}

int kvc_policy_victim(struct kvc_index_txn *t, const uint8_t *keep, const uint8_t *space, int64_t now, uint8_t *key,
                      struct kvc_index_record *r, struct kvc_error *e) {
    const struct kvc_index_sums *sums = kvc_index_sums(t);
    struct search s = {.keep = keep, .space = space, .now = now, .key = key, .record = r};
    const int once = (double)sums->bytes[KVC_LIST_ONCE] > sums->target || !sums->records[KVC_LIST_AGAIN];
    const unsigned list[2] = {once ? KVC_LIST_ONCE : KVC_LIST_AGAIN, once ? KVC_LIST_AGAIN : KVC_LIST_ONCE};
    for (int i = 0; i < 2 && !s.found; i++)
        if (kvc_index_walk(t, list[i], see_leaf, &s, e)) return -1;
    return s.found;
}

/* Forgets the oldest ghosts of a list until its bytes are at most `most`. */
static int see_first(void *state, const uint8_t *key, const struct kvc_index_record *r, struct kvc_error *e) {
    struct search *s = state;
    (void)e;
    memcpy(s->key, key, KVC_OBJECT_KEY);
    *s->record = *r;
    s->found = 1;
    return 1;
}

static int bound_ghosts(struct kvc_index_txn *t, enum kvc_index_list list, uint64_t most, struct kvc_error *e) {
    uint8_t key[KVC_OBJECT_KEY];
    struct kvc_index_record r;
    while (kvc_index_sums(t)->bytes[list] > most) {
        struct search s = {.key = key, .record = &r};
        if (kvc_index_walk(t, list, see_first, &s, e)) return -1;
        if (!s.found) return 0;
        if (kvc_index_remove(t, key, &r, e)) return -1;
    }
    return 0;
}

int kvc_policy_evicted(struct kvc_index_txn *t, const uint8_t *key, const struct kvc_index_record *r, uint64_t limit,
                       struct kvc_error *e) {
    struct kvc_index_sums *sums = kvc_index_sums(t);
    struct kvc_index_record ghost = *r;
    sums->evicted++;
    sums->evicted_bytes += r->size;
    if (kvc_index_move(t, key, r, &ghost, r->list == KVC_LIST_ONCE ? KVC_LIST_GHOST_ONCE : KVC_LIST_GHOST_AGAIN, e)) return -1;
    const uint64_t once = sums->bytes[KVC_LIST_ONCE];
    return bound_ghosts(t, KVC_LIST_GHOST_ONCE, limit > once ? limit - once : 0, e) ||
                   bound_ghosts(t, KVC_LIST_GHOST_AGAIN, limit, e)
               ? -1
               : 0;
}
