/* policy.c: evicts by learned hit density. Spec: STORE.md, "Eviction".
 *
 * Time is a clock of bytes that were asked for. For leaves used once, twice and more often, the
 * store counts at which age they came back, as residents or as ghosts, at which age they were
 * forgotten, and how many still wait. From that follows the probability to come back in each group
 * of ages (Kaplan and Meier 1958), and from that a score: the largest ratio, over all horizons, of
 * expected hits to the byte-time that they cost (the index of Gittins 1979; for caches: Beckmann et
 * al., "LHD", NSDI 2018). The lowest score goes. */
#include "formats/store/dir/policy.h"

#include <math.h>
#include <string.h>

#define EPOCHS_PER_CAPACITY 4            /* also how often scores are computed */
#define HALVE 8                          /* capacities of clock after which counts are halved */
#define MAX_CAPACITY (UINT64_C(1) << 56) /* bytes; stands for no limit */
#define GHOSTS 2                         /* capacities of bytes that ghosts had */
#define PRIOR_WEIGHT (1. / 16)           /* of a capacity: for how much the prior counts */
#define PRIOR 0.05 /* probability to come back within a group of ages, times uses */

/* --- ages --- */

/* The lower edge of a group of ages, in 64ths of the capacity: 0 1 2 3 4 5 6 7 8 10 12 14 16 20 ...
 */
static double edge(unsigned group) {
    return group < 4 ? group : ldexp(4 + group % 4, (int)(group / 4) - 1);
}

static unsigned group_of(const struct kvc_policy_state *p, uint64_t age) {
    const uint64_t x = p->capacity >= 64 ? age / (p->capacity / 64) : age;
    if (x < 4) return (unsigned)x;
    const unsigned log = 63 - (unsigned)__builtin_clzll(x);
    const unsigned group = 4 * (log - 1) + (unsigned)(x >> (log - 2) & 3);
    return group < KVC_AGES ? group : KVC_AGES - 1;
}

static uint64_t epoch_length(const struct kvc_policy_state *p) {
    return p->capacity / EPOCHS_PER_CAPACITY + 1;
}

/* Returns where those that were used at a time are counted as waiting; NULL: they are no longer. */
static uint64_t *waiting(struct kvc_policy_state *p, unsigned uses, uint64_t touched) {
    const uint64_t length = epoch_length(p), epoch = touched / length;
    return p->clock / length - epoch < KVC_EPOCHS ? &p->alive[uses - 1][epoch % KVC_EPOCHS] : NULL;
}

static void policy_add(uint64_t *sum, uint64_t bytes) {
    if (sum) *sum += bytes;
}

static void policy_take(uint64_t *sum, uint64_t bytes) {
    if (sum) *sum -= bytes < *sum ? bytes : *sum;
}

/* --- learning --- */

/* Computes the probabilities to come back of leaves of so many uses. */
static void estimate(const struct kvc_policy_state *p, unsigned uses, double *back) {
    const double weight = PRIOR_WEIGHT * (double)p->capacity + 1;
    const uint64_t length = epoch_length(p), now = p->clock / length;
    double wait[KVC_AGES] = {0}, risk = 0;
    for (uint64_t i = 0; i < KVC_EPOCHS && i <= now; i++) {
        const uint64_t middle = (now - i) * length + length / 2;
        wait[group_of(p, p->clock > middle ? p->clock - middle : 0)] +=
            (double)p->alive[uses - 1][(now - i) % KVC_EPOCHS];
    }
    for (unsigned g = KVC_AGES; g--;) {
        risk += (double)p->hits[uses - 1][g] + (double)p->gone[uses - 1][g] + wait[g];
        back[g] = ((double)p->hits[uses - 1][g] + weight * PRIOR * uses) / (risk + weight);
    }
}

static void learn(struct kvc_policy_state *p) {
    double back[KVC_AGES];
    for (unsigned uses = 1; uses <= KVC_INDEX_USES; uses++) {
        estimate(p, uses, back);
        for (unsigned g = 0; g < KVC_AGES; g++) {
            double stays = 1, hits = 0, held = 0, best = 0;
            for (unsigned k = g; k < KVC_AGES; k++) {
                hits += stays * back[k];
                held += stays * (1 - back[k] / 2) * (edge(k + 1) - edge(k));
                stays *= 1 - back[k];
                if (hits / held > best) best = hits / held;
            }
            p->score[uses - 1][g] = (float)best;
        }
    }
}

static void halve(struct kvc_policy_state *p) {
    for (unsigned u = 0; u < KVC_INDEX_USES; u++)
        for (unsigned g = 0; g < KVC_AGES; g++) {
            p->hits[u][g] /= 2;
            p->gone[u][g] /= 2;
        }
}

void kvc_policy_begin(struct kvc_index_txn *t, uint64_t capacity) {
    struct kvc_policy_state *p = &kvc_index_sums(t)->policy;
    if (capacity > MAX_CAPACITY) capacity = MAX_CAPACITY;
    if (capacity / 2 > p->capacity ||
        capacity < p->capacity /
                       2) { /* ages are measured in capacities: what was counted has no meaning */
        const uint64_t clock = p->clock;
        *p = (struct kvc_policy_state){.clock = clock, .capacity = capacity};
        p->next_halve = clock + HALVE * capacity;
    }
    if (p->clock < p->next_learn) return;
    if (p->clock >= p->next_halve && p->next_learn) {
        halve(p);
        p->next_halve = p->clock + HALVE * p->capacity;
    }
    learn(p);
    p->next_learn = p->clock + epoch_length(p);
}

void kvc_policy_tick(struct kvc_index_txn *t, uint64_t bytes) {
    struct kvc_policy_state *p = &kvc_index_sums(t)->policy;
    const uint64_t length = epoch_length(p), before = p->clock / length;
    p->clock += bytes;
    for (uint64_t i = before + 1; i <= p->clock / length && i <= before + KVC_EPOCHS; i++)
        for (unsigned u = 0; u < KVC_INDEX_USES; u++) p->alive[u][i % KVC_EPOCHS] = 0;
}

/* --- what happens to records --- */

/* Counts that a known object was asked for, and makes it one that is used now. */
static void use(struct kvc_policy_state *p, const struct kvc_index_record *old,
                struct kvc_index_record *r) {
    if (old && old->uses) {
        p->hits[old->uses - 1][group_of(p, p->clock - old->touched)] += old->size;
        policy_take(waiting(p, old->uses, old->touched), old->size);
    }
    r->uses = old && old->uses < KVC_INDEX_USES ? (uint8_t)(old->uses + 1)
              : old                             ? KVC_INDEX_USES
                                                : 1;
    r->touched = p->clock;
    policy_add(waiting(p, r->uses, r->touched), r->size);
}

int kvc_policy_insert(struct kvc_index_txn *t, const uint8_t *key,
                      const struct kvc_index_record *old, struct kvc_index_record *r,
                      struct kvc_error *e) {
    struct kvc_index_record parent;
    struct kvc_index_sums *sums = kvc_index_sums(t);
    use(&sums->policy, old, r);
    r->ghost = 0;
    r->children = old ? old->children : 0;
    const int found = r->has_parent ? kvc_index_get(t, r->parent, &parent, e) : 0;
    if (found < 0) return -1;
    r->depth = found ? parent.depth + 1 : 0;
    sums->puts++;
    return kvc_index_change(t, key, old, r, e);
}

static int bound_ghosts(struct kvc_index_txn *t, struct kvc_error *e);

int kvc_policy_missed(struct kvc_index_txn *t, const uint8_t *key,
                      const struct kvc_index_record *old, struct kvc_index_record *r,
                      struct kvc_error *e) {
    use(&kvc_index_sums(t)->policy, old, r);
    r->ghost = 1;
    r->children = old ? old->children : 0;
    if (kvc_index_change(t, key, old, r, e) || bound_ghosts(t, e)) return -1;
    return 0;
}

int kvc_policy_touch(struct kvc_index_txn *t, const uint8_t *key, const struct kvc_index_record *r,
                     int64_t now, struct kvc_error *e) {
    struct kvc_index_sums *sums = kvc_index_sums(t);
    struct kvc_index_record next = *r;
    use(&sums->policy, r, &next);
    next.used = now;
    sums->hits++;
    return kvc_index_change(t, key, r, &next, e);
}

/* --- evicting --- */

struct search {
    const struct kvc_policy_choice *choice;
    uint8_t *key;
    struct kvc_index_record *record;
    double score; /* of the best so far */
    const struct kvc_policy_state *policy;
    int found;
};

static void propose(struct search *s, const uint8_t *key, const struct kvc_index_record *r) {
    const struct kvc_policy_state *p = s->policy;
    const double score = (double)p->score[r->uses - 1][group_of(p, p->clock - r->touched)] *
                         (r->cost > 0 ? r->cost : 1);
    if (s->found && score >= s->score) return;
    s->score = score;
    s->found = 1;
    memcpy(s->key, key, KVC_OBJECT_KEY);
    *s->record = *r;
}

/* Takes the oldest leaf of a list that may go. */
static int see_leaf(void *state, const uint8_t *key, const struct kvc_index_record *r,
                    struct kvc_error *e) {
    struct search *s = state;
    const struct kvc_policy_choice *c = s->choice;
    (void)e;
    if (r->pinned > c->now || (c->keep && memcmp(key, c->keep, KVC_OBJECT_KEY) == 0)) return 0;
    if (c->ns && memcmp(r->ns, c->ns, KVC_OBJECT_NS) != 0) return 0;
    propose(s, key, r);
    return 1;
}

int kvc_policy_victim(struct kvc_index_txn *t, const struct kvc_policy_choice *choice, uint8_t *key,
                      struct kvc_index_record *r, struct kvc_error *e) {
    struct kvc_index_record own;
    struct search s = {.choice = choice,
                       .key = key,
                       .record = r,
                       .policy = &kvc_index_sums(t)->policy};
    for (unsigned list = 0; list < KVC_INDEX_USES; list++)
        if (kvc_index_walk(t, list, NULL, see_leaf, &s, e)) return -1;
    const int found = choice->own ? kvc_index_get(t, choice->own, &own, e) : 0;
    if (found > 0 && !own.ghost && own.pinned <= choice->now) propose(&s, choice->own, &own);
    return found < 0 ? -1 : s.found;
}

static int see_first(void *state, const uint8_t *key, const struct kvc_index_record *r,
                     struct kvc_error *e) {
    struct search *s = state;
    (void)e;
    memcpy(s->key, key, KVC_OBJECT_KEY);
    *s->record = *r;
    s->found = 1;
    return 1;
}

/* Forgets the oldest ghosts where there are too many. */
static int bound_ghosts(struct kvc_index_txn *t, struct kvc_error *e) {
    struct kvc_index_sums *sums = kvc_index_sums(t);
    struct kvc_policy_state *p = &sums->policy;
    struct kvc_index_record oldest;
    uint8_t key[KVC_OBJECT_KEY];
    while (sums->ghost_bytes / GHOSTS > p->capacity) {
        struct search s = {.key = key, .record = &oldest};
        if (kvc_index_walk(t, KVC_LIST_GHOSTS, NULL, see_first, &s, e)) return -1;
        if (!s.found) return 0;
        p->gone[oldest.uses - 1][group_of(p, p->clock - oldest.touched)] += oldest.size;
        policy_take(waiting(p, oldest.uses, oldest.touched), oldest.size);
        if (kvc_index_change(t, key, &oldest, NULL, e)) return -1;
    }
    return 0;
}

int kvc_policy_evicted(struct kvc_index_txn *t, const uint8_t *key,
                       const struct kvc_index_record *r, struct kvc_error *e) {
    struct kvc_index_sums *sums = kvc_index_sums(t);
    struct kvc_index_record ghost = *r;
    ghost.ghost = 1;
    ghost.pinned = ghost.expires = 0;
    sums->evicted++;
    sums->evicted_bytes += r->size;
    if (kvc_index_change(t, key, r, &ghost, e) || bound_ghosts(t, e)) return -1;
    return 0;
}
