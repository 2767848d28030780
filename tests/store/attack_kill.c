/* attack_kill.c: processes that write, evict and clean a directory store are killed at random
 * instants, while others read.
 *
 *   attack_kill [KILLS [SEED]]
 *
 * No reader may ever get wrong bytes. Afterwards the index has the sums of the files, nothing is
 * left over, and no lock is held. In a second round the index is deleted at random instants
 * instead. */
#include "tests/store/attack.h"

#include <signal.h>
#include <sys/prctl.h>

enum { WRITERS = 4, READERS = 2, KILL_CHAINS = 60, PATIENCE = 60 };
#define KILL_LIMIT 200000

static struct attack_random rng;
static int index_goes; /* it is deleted now and then */
static const char *const options = "max-size=200000&min-free=0&grace=0s&durability=none";

static unsigned pick(unsigned n) {
    return (unsigned)attack_below(&rng, n);
}

/* Finds what is there of a chain. An index that is deleted twice during a call makes it fail. */
static size_t find_chain(struct kvc_dir *d, unsigned chain) {
    struct kvc_error e;
    const size_t found = attack_find(d, chain, &e);
    if (found != SIZE_MAX) return found;
    if (!index_goes) DIE("find: %s", e.message);
    return 0;
}

static _Noreturn void write_for_ever(void) {
    struct kvc_error e;
    struct kvc_dir *d = attack_open(options);
    int there;
    for (;;) {
        const unsigned chain = pick(KILL_CHAINS), what = pick(100);
        struct kvc_object o[ATTACK_DEPTH];
        attack_chain(chain, o);
        const size_t found = find_chain(d, chain);
        const struct kvc_tier_put how = {.replace = !pick(10)};
        if (what < 70) {
            for (size_t i = found; i < ATTACK_DEPTH; i++)
                if (attack_put(d, chain, (unsigned)i, &how, &there, &e) || there) break;
        } else if (what < 85) kvc_tier_dir.touch(&d->tier, o, found, &e);
        else if (what < 92) kvc_tier_dir.drop(&d->tier, o + found / 2, 1, INT64_MAX, &e);
        else if (what < 96) {
            attack_clean(d);
        } else {
            kvc_tier_dir.close(&d->tier);
            d = attack_open(options);
        }
    }
}

static _Noreturn void read_for_ever(void) {
    struct kvc_dir *d = attack_open(options);
    for (;;) {
        struct kvc_object o[ATTACK_DEPTH];
        const unsigned chain = pick(KILL_CHAINS);
        attack_chain(chain, o);
        const size_t found = find_chain(d, chain);
        attack_get(d, o, found ? found : 1);
    }
}

static pid_t start(unsigned i, uint64_t seed) {
    const pid_t pid = fork();
    if (pid < 0) DIE("fork: %s", strerror(errno));
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    attack_seed = rng.state = seed;
    if (i < WRITERS) write_for_ever();
    read_for_ever();
}

/* Waits for a process that was killed; one that ended otherwise has found something. */
static void expect_killed(pid_t pid) {
    int status;
    if (waitpid(pid, &status, 0) != pid) DIE("wait: %s", strerror(errno));
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        DIE("a process ended with %#x", (unsigned)status);
}

static void remove_index(void) {
    char path[200];
    snprintf(path, sizeof path, "%s/store/" KVC_INDEX_NAME, attack_folder);
    unlink(path);
    if (pick(2)) return;
    snprintf(path, sizeof path, "%s/store/" KVC_INDEX_NAME "-journal", attack_folder);
    unlink(path);
}

/* What must hold when nobody is left. */
static void check_rest(void) {
    struct kvc_error e;
    int there;
    alarm(PATIENCE); /* a lock that a dead process holds ends here */
    struct kvc_dir *d = attack_open(options);
    attack_clean(d);
    struct kvc_store_cleaned counts = attack_clean(d);
    if (counts.adopted || counts.missing || counts.evicted || counts.strangers)
        DIE("cleaning twice finds something to do");
    attack_check_books(d);
    if (attack_count_all(d).bytes > KILL_LIMIT) DIE("the store is over its limit");
    if (attack_names("trash")) DIE("the trash has %u files", attack_names("trash"));
    for (unsigned c = 0; c < KILL_CHAINS; c++) {
        struct kvc_object o[ATTACK_DEPTH];
        attack_chain(c, o);
        const size_t found = attack_find(d, c, &e);
        const struct attack_got g = attack_get(d, o, found);
        if (g.missing) DIE("what was found is not there");
        if (attack_put(d, c, (unsigned)found % ATTACK_DEPTH, NULL, &there, &e))
            DIE("put: %s", e.message);
    }
    kvc_tier_dir.close(&d->tier);
    alarm(0);
}

static void round_of(uint64_t kills, int goes) {
    pid_t pid[WRITERS + READERS];
    attack_scratch();
    index_goes = goes;
    for (unsigned i = 0; i < WRITERS + READERS; i++) pid[i] = start(i, attack_next(&rng));
    for (attack_step = 0; attack_step < kills; attack_step++) {
        usleep(pick(4000));
        if (index_goes && !pick(4)) remove_index();
        /* A reader now and then too: it holds a slot of the index. */
        const unsigned i = pick(16) ? pick(WRITERS) : WRITERS + pick(READERS);
        kill(pid[i], SIGKILL);
        expect_killed(pid[i]);
        pid[i] = start(i, attack_next(&rng));
    }
    for (unsigned i = 0; i < WRITERS + READERS; i++) {
        kill(pid[i], SIGKILL);
        expect_killed(pid[i]);
    }
    check_rest();
    attack_remove();
}

int main(int argc, char **argv) {
    const uint64_t kills = attack_number(argc, argv, 1, 100);
    attack_seed = rng.state = attack_number(argc, argv, 2, 1);
    double began = attack_seconds();
    round_of(kills, 0);
    printf("kills: %" PRIu64 ", %.1f s\n", kills, attack_seconds() - began);
    began = attack_seconds();
    round_of(kills / 4 + 1, 1);
    printf("kills with the index deleted: %" PRIu64 ", %.1f s\n", kills / 4 + 1,
           attack_seconds() - began);
    printf("2 passed, 0 failed\n");
    return 0;
}
