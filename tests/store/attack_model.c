/* attack_model.c: random operations on the directory tier beside a model in memory.
 *
 *   attack_model [OPERATIONS [SEED [PROCESSES [PART]]]]
 *
 * One process without a limit, whose every answer the model knows; one with a limit, of which it
 * knows the bounds; PROCESSES at once on one store, where each checks what holds for all of them.
 * PART 1, 2 or 3 runs one of these alone. */
#include "tests/store/attack.h"

enum { CHAINS = 40, CROWD_CHAINS = 60 };
#define LIMIT 200000 /* bytes, of some 500 kB that there are */

static struct attack_random rng;

/* What the model knows. */
static struct {
    uint8_t there[CHAINS][ATTACK_DEPTH];
    uint8_t pinned[CHAINS][ATTACK_DEPTH];
} model;

static unsigned pick(unsigned n) {
    return (unsigned)attack_below(&rng, n);
}

static unsigned prefix_of_model(unsigned chain) {
    unsigned n = 0;
    while (n < ATTACK_DEPTH && model.there[chain][n]) n++;
    return n;
}

static void drop_one(struct kvc_dir *d, unsigned chain, unsigned depth) {
    const struct kvc_object o = attack_object(chain, depth);
    struct kvc_error e;
    if (kvc_tier_dir.drop(&d->tier, &o, 1, INT64_MAX, &e)) DIE("drop: %s", e.message);
}

/* --- one process, no limit: all answers are known --- */

static void put_known(struct kvc_dir *d, unsigned chain, unsigned depth) {
    struct kvc_error e;
    int there = 7;
    const struct kvc_tier_put how = {.replace = !pick(5), .pin = !pick(8), .cost = pick(3)};
    const int is = model.there[chain][depth], parent = !depth || model.there[chain][depth - 1];
    const int status = attack_put(d, chain, depth, &how, &there, &e);
    if (!parent && (!is || how.replace) && !status)
        DIE("a chunk was put whose parent is not there");
    if ((parent || (is && !how.replace)) && status) DIE("put: %s", e.message);
    if (!status && there != (is && !how.replace))
        DIE("put says %d of an object that is%s there", there, is ? "" : " not");
    if (!status) model.there[chain][depth] = 1;
}

static void get_known(struct kvc_dir *d, unsigned chain) {
    struct kvc_object o[ATTACK_DEPTH];
    attack_chain(chain, o);
    const struct attack_got g = attack_get(d, o, ATTACK_DEPTH);
    for (unsigned i = 0; i < ATTACK_DEPTH; i++)
        if ((g.there >> i & 1) != model.there[chain][i] ||
            (g.missing >> i & 1) == model.there[chain][i])
            DIE("object %u.%u is%s there, and get says otherwise", chain, i,
                model.there[chain][i] ? "" : " not");
}

static void hint(struct kvc_dir *d, unsigned chain, unsigned depth) {
    struct kvc_object o[ATTACK_DEPTH];
    struct kvc_error e;
    int status = 0;
    attack_chain(chain, o);
    switch (pick(3)) {
    case 0: status = kvc_tier_dir.touch(&d->tier, o, depth + 1, &e); break;
    case 1:
        status = kvc_tier_dir.missed(&d->tier, o + depth, ATTACK_DEPTH - depth, 1000, &e);
        break;
    default: status = kvc_tier_dir.pin(&d->tier, o, depth + 1, pick(2) ? INT64_MAX : 0, &e); break;
    }
    if (status) DIE("a hint: %s", e.message);
}

static void known(uint64_t operations) {
    struct kvc_dir *d = attack_open("max-size=0&min-free=0&durability=none&grace=0s");
    struct kvc_error e;
    for (attack_step = 0; attack_step < operations; attack_step++) {
        const unsigned chain = pick(CHAINS), depth = pick(ATTACK_DEPTH), what = pick(100);
        if (what < 45) put_known(d, chain, pick(3) ? prefix_of_model(chain) % ATTACK_DEPTH : depth);
        else if (what < 65) {
            const size_t found = attack_find(d, chain, &e), due = prefix_of_model(chain);
            if (found != due) DIE("chain %u has %zu objects, and find says %zu", chain, due, found);
        } else if (what < 80) get_known(d, chain);
        else if (what < 93) hint(d, chain, depth);
        else if (what < 99) {
            drop_one(d, chain, depth);
            model.there[chain][depth] = 0;
        } else if (!pick(20)) {
            const struct kvc_store_cleaned counts = attack_clean(d);
            if (counts.adopted || counts.missing || counts.evicted || counts.strangers)
                DIE("cleaning finds something to do");
            attack_check_books(d);
        }
    }
    attack_check_books(d);
    kvc_tier_dir.close(&d->tier);
}

/* --- one process with a limit --- */

static void check_limit(struct kvc_dir *d, uint64_t limit) {
    struct kvc_store_tier_info facts;
    struct kvc_error e;
    if (kvc_tier_dir.facts(&d->tier, &facts, INT64_MAX, &e)) DIE("%s", e.message);
    if (facts.bytes < 0 || (uint64_t)facts.bytes > limit)
        DIE("%" PRId64 " bytes over a limit of %" PRIu64, facts.bytes, limit);
}

static void bounded_put(struct kvc_dir *d, unsigned chain) {
    struct kvc_error e;
    int there = 0;
    const size_t found = attack_find(d, chain, &e);
    const int pin = chain < 2; /* two chains are pinned, which take less than the limit */
    if (found == SIZE_MAX) DIE("find: %s", e.message);
    for (size_t i = found; i < ATTACK_DEPTH; i++) {
        const struct kvc_tier_put how = {.pin = pin, .cost = pick(3)};
        if (attack_put(d, chain, (unsigned)i, &how, &there, &e)) DIE("put: %s", e.message);
        if (there == KVC_PUT_REFUSED && pin) DIE("an object to be pinned is refused");
        if (there == KVC_PUT_REFUSED) break;
        model.pinned[chain][i] = (uint8_t)pin;
        check_limit(d, LIMIT);
    }
}

/* No object is there whose parent is not; pinned ones are there. */
static int see_parent(void *state, const uint8_t *key, const struct kvc_index_record *r,
                      struct kvc_error *e) {
    struct kvc_index_record parent;
    (void)key;
    if (r->ghost || !r->has_parent) return 0;
    if (kvc_index_get(state, r->parent, &parent, e) != 1 || parent.ghost || !parent.children)
        DIE("an object is there, and its parent was evicted, or does not know it");
    return 0;
}

static void check_chains(struct kvc_dir *d) {
    struct kvc_error e;
    struct kvc_index_txn *t = kvc_index_begin(d->index, 0, &e);
    if (!t || kvc_index_walk(t, KVC_LISTS, NULL, see_parent, t, &e)) DIE("%s", e.message);
    kvc_index_abort(t);
    for (unsigned c = 0; c < CHAINS; c++)
        for (unsigned i = 0; i < ATTACK_DEPTH; i++)
            if (model.pinned[c][i] && attack_find(d, c, &e) <= i)
                DIE("a pinned object was evicted");
}

static void bounded(uint64_t operations) {
    char options[100];
    struct kvc_error e;
    snprintf(options, sizeof options,
             "max-size=%d&min-free=0&durability=none&max-namespace-size=%d", LIMIT, LIMIT / 2);
    struct kvc_dir *d = attack_open(options);
    memset(&model, 0, sizeof model);
    for (attack_step = 0; attack_step < operations; attack_step++) {
        const unsigned chain = pick(CHAINS), what = pick(100);
        struct kvc_object o[ATTACK_DEPTH];
        attack_chain(chain, o);
        if (what < 40) bounded_put(d, chain);
        else if (what < 90) {
            const size_t found = attack_find(d, chain, &e);
            const struct attack_got g = attack_get(d, o, found);
            if (g.missing) DIE("an object was found, and is not there");
            if (kvc_tier_dir.touch(&d->tier, o, found, &e)) DIE("touch: %s", e.message);
        } else if (what < 95 && chain > 1) {
            for (unsigned i = ATTACK_DEPTH; i--;) drop_one(d, chain, i);
        } else if (!pick(50)) {
            const struct kvc_store_cleaned counts = attack_clean(d);
            if (counts.adopted || counts.missing || counts.strangers)
                DIE("cleaning finds something to do");
        }
        if (attack_step % 256 == 0) {
            attack_check_books(d);
            check_chains(d);
        }
    }
    check_chains(d);
    kvc_tier_dir.close(&d->tier);
}

/* --- many processes --- */

static void crowd_member(uint64_t operations, uint64_t seed, const char *options) {
    attack_seed = seed;
    rng.state = seed;
    struct kvc_dir *d = attack_open(options);
    struct kvc_error e;
    int there;
    for (attack_step = 0; attack_step < operations; attack_step++) {
        const unsigned chain = pick(CROWD_CHAINS), depth = pick(ATTACK_DEPTH), what = pick(100);
        struct kvc_object o[ATTACK_DEPTH];
        attack_chain(chain, o);
        const size_t found = attack_find(d, chain, &e);
        if (found == SIZE_MAX) DIE("find: %s", e.message);
        if (what < 40) {
            for (size_t i = found; i < ATTACK_DEPTH; i++) {
                const struct kvc_tier_put how = {.replace = !pick(10)};
                const int status = attack_put(d, chain, (unsigned)i, &how, &there, &e);
                /* else its parent may have gone meanwhile */
                if (status && !i) DIE("put: %s", e.message);
                if (status || there == KVC_PUT_REFUSED) break;
            }
        } else if (what < 70) {
            attack_get(d, o, found);
            if (kvc_tier_dir.touch(&d->tier, o, found, &e)) DIE("touch: %s", e.message);
        } else if (what < 80) hint(d, chain, depth);
        else if (what < 88) drop_one(d, chain, depth);
        else if (what < 89 && !pick(20)) attack_clean(d);
        else if (what < 90) {
            kvc_tier_dir.close(&d->tier);
            d = attack_open(options);
        }
        if (attack_step % 16 == 0) check_limit(d, LIMIT);
    }
    kvc_tier_dir.close(&d->tier);
}

static void crowd(uint64_t operations, unsigned processes) {
    char options[100];
    int status, failed = 0;
    snprintf(options, sizeof options, "max-size=%d&min-free=0&durability=none", LIMIT);
    for (unsigned i = 0; i < processes; i++) {
        const pid_t pid = fork();
        if (pid < 0) DIE("fork: %s", strerror(errno));
        if (pid) continue;
        crowd_member(operations, attack_seed * 1000 + i, options);
        fflush(NULL);
        _exit(0);
    }
    /* Files appear and go while the index is locked for writing, so the books are right at any
     * instant. */
    struct kvc_dir *d = attack_open(options);
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) >= 0;) {
        if (pid) failed |= status;
        else usleep(20000);
        attack_check_books(d);
        check_limit(d, LIMIT);
    }
    if (failed) DIE("a process failed");
    const struct kvc_store_cleaned counts = attack_clean(d);
    if (counts.adopted || counts.missing || counts.strangers)
        DIE("cleaning adopts %" PRIu64 " files and forgets %" PRIu64, counts.adopted,
            counts.missing);
    attack_check_books(d);
    check_limit(d, LIMIT);
    kvc_tier_dir.close(&d->tier);
}

static void run(const char *what, uint64_t operations, void (*attack)(uint64_t operations)) {
    const double began = attack_seconds();
    attack_scratch();
    attack(operations);
    attack_remove();
    printf("%s: %" PRIu64 " operations, %.1f s\n", what, operations, attack_seconds() - began);
    fflush(stdout);
}

static unsigned processes;

static void run_crowd(uint64_t operations) {
    crowd(operations / processes, processes);
}

int main(int argc, char **argv) {
    const uint64_t operations = attack_number(argc, argv, 1, 4000);
    attack_seed = rng.state = attack_number(argc, argv, 2, 1);
    processes = (unsigned)attack_number(argc, argv, 3, 8);
    const uint64_t part = attack_number(argc, argv, 4, 0);
    if (part < 2) run("one process", operations, known);
    if (!part || part == 2) run("one process with a limit", operations, bounded);
    if (!part || part == 3) run("a crowd", operations, run_crowd);
    printf("%d passed, 0 failed\n", part ? 1 : 3);
    return 0;
}
