/* attack_index.c: the index of a directory store is damaged again and again: cut, flipped,
 * overwritten, replaced by what is no file; before the store is opened, and while one process or
 * several use it.
 *
 *   attack_index [DAMAGES [SEED]]
 *
 * No process may be killed or wait for ever, no wrong bytes may come, no object may be lost.
 * Alone in the store, every call does what it would do with a good index; among others it may
 * fail. At the end the index has the sums of the files. */
#include "tests/store/attack.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

enum { CHAINS = 40, FULL_CHAINS = 30, WORKERS = 4, PATIENCE = 60, PAGE_BYTES = 4096 };

static struct attack_random rng;
static uint8_t there[CHAINS][ATTACK_DEPTH];
static const char *const options = "max-size=0&min-free=0&durability=none&grace=0s";

static unsigned pick(unsigned n) {
    return (unsigned)attack_below(&rng, n);
}

/* --- damage --- */

enum damage {
    CUT,
    FLIP,
    NOISE,
    ZEROS,
    COPY,
    SWAP,
    GROW,
    RUBBISH,
    EMPTY,
    JOURNAL,
    GONE,
    LINK,
    PIPE,
    FOLDER,
    DAMAGES,
    OLD = DAMAGES
};

static const char *index_path(const char *more) {
    static char path[2][200];
    static int last;
    last = !last;
    snprintf(path[last], sizeof path[last], "%s/store/" KVC_INDEX_NAME "%s", attack_folder, more);
    return path[last];
}

static void fill_random(uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)attack_next(&rng);
}

static void write_at(int fd, const void *p, size_t n, off_t at) {
    if (pwrite(fd, p, n, at) != (ssize_t)n) DIE("cannot damage: %s", strerror(errno));
}

/* Flips bits and sets bytes: anywhere, or where pages have their headers. */
static void flip(int fd, off_t pages) {
    static const unsigned within[] = {PAGE_BYTES, 256, 64}, many[] = {1, 2, 5, 20};
    for (unsigned n = many[pick(4)]; n--;) {
        const off_t at = (off_t)pick((unsigned)pages) * PAGE_BYTES + pick(within[pick(3)]);
        uint8_t byte = 0;
        if (pread(fd, &byte, 1, at) < 0) DIE("cannot damage: %s", strerror(errno));
        byte = (uint8_t)(pick(2) ? byte ^ 1u << pick(8) : attack_next(&rng));
        write_at(fd, &byte, 1, at);
    }
}

/* A page as it was some damages ago, as a crash of the machine leaves it: its checksum is right. */
static struct {
    uint8_t bytes[PAGE_BYTES];
    off_t at;
} old;

static void damage_pages(enum damage kind, int fd, off_t pages) {
    uint8_t a[PAGE_BYTES] = {0}, b[PAGE_BYTES] = {0};
    const off_t x = (off_t)pick((unsigned)pages) * PAGE_BYTES,
                y = (off_t)pick((unsigned)pages) * PAGE_BYTES;
    const size_t keep = pick(3) ? 0 : 16; /* the header of a page may stay */
    if (pread(fd, a, sizeof a, x) < 0 || pread(fd, b, sizeof b, y) < 0)
        DIE("cannot damage: %s", strerror(errno));
    switch (kind) {
    case NOISE: fill_random(a + keep, sizeof a - keep); break;
    case ZEROS: memset(a + keep, 0, sizeof a - keep); break;
    case COPY: memcpy(a, b, sizeof a); break;
    case OLD:
        write_at(fd, old.bytes, sizeof old.bytes, old.at);
        memcpy(old.bytes, b, sizeof b);
        old.at = y;
        return;
    default: write_at(fd, a, sizeof a, y); memcpy(a, b, sizeof a);
    }
    write_at(fd, a, sizeof a, x);
}

/* Puts something else in the place of the index or of its journal. */
static void replace(enum damage kind) {
    const char *path = index_path(pick(2) ? "" : "-journal");
    char inside[220];
    snprintf(inside, sizeof inside, "%s/file", path);
    unlink(path);
    if (kind == LINK && symlink(pick(2) ? "/dev/zero" : "kvc-store.conf", path)) return;
    if (kind == PIPE && mkfifo(path, 0600)) return;
    if (kind == FOLDER && !mkdir(path, 0700) && pick(2))
        close(open(inside, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

static void damage(enum damage kind) {
    uint8_t rubbish[3000];
    struct stat st;
    if (kind >= GONE && kind <= FOLDER) {
        replace(kind);
        return;
    }
    const int fd = open(index_path(kind == JOURNAL ? "-journal" : ""),
                        O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (fd < 0 || fstat(fd, &st) ||
        !S_ISREG(
            st.st_mode)) { /* another process is about to remove what this one put there before */
        if (fd >= 0) close(fd);
        return;
    }
    const off_t pages = st.st_size / PAGE_BYTES + 1;
    fill_random(rubbish, sizeof rubbish);
    if (kind == CUT || kind == EMPTY) {
        const off_t to = kind == EMPTY ? 0
                         : pick(2)     ? (off_t)pick((unsigned)pages) * PAGE_BYTES
                                       : (off_t)pick((unsigned)st.st_size + 1);
        if (ftruncate(fd, to)) DIE("cannot damage: %s", strerror(errno));
    } else if (kind == GROW) write_at(fd, rubbish, 1 + pick(sizeof rubbish - 1), st.st_size);
    else if (kind == RUBBISH || kind == JOURNAL) write_at(fd, rubbish, sizeof rubbish, 0);
    else if (kind == FLIP) flip(fd, pages);
    else damage_pages(kind, fd, pages);
    close(fd);
}

/* --- alone --- */

static unsigned due(unsigned chain) {
    unsigned n = 0;
    while (n < ATTACK_DEPTH && there[chain][n]) n++;
    return n;
}

static void find_all(struct kvc_dir *d, unsigned chain) {
    struct kvc_error e;
    struct kvc_object o[ATTACK_DEPTH];
    attack_chain(chain, o);
    const size_t found = attack_find(d, chain, &e);
    if (found == SIZE_MAX) DIE("find: %s", e.message);
    if (attack_get(d, o, found).missing) DIE("what was found is not there");
    if (found != due(chain))
        DIE("chain %u has %u objects, and find says %zu", chain, due(chain), found);
}

/* Calls whatever may meet the damage first. */
static void use(struct kvc_dir *d) {
    const unsigned chain = pick(CHAINS), n = due(chain),
                   at = n < ATTACK_DEPTH ? n : ATTACK_DEPTH - 1;
    struct kvc_object o[ATTACK_DEPTH];
    struct kvc_store_tier_info facts;
    struct kvc_error e = {.code = KVC_OK};
    int is = 0, status = 0;
    attack_chain(chain, o);
    switch (pick(9)) {
    case 0: status = attack_put(d, chain, at, NULL, &is, &e); break;
    case 1: status = kvc_tier_dir.touch(&d->tier, o, n, &e); break;
    case 2: status = kvc_tier_dir.missed(&d->tier, o + n, ATTACK_DEPTH - n, 1000, &e); break;
    case 3: status = kvc_tier_dir.pin(&d->tier, o, n, INT64_MAX, &e); break;
    case 4: status = kvc_tier_dir.expect(&d->tier, o, n, 0, &e); break;
    case 5: status = kvc_tier_dir.facts(&d->tier, &facts, INT64_MAX, &e); break;
    case 6:
        status = kvc_tier_dir.drop(&d->tier, &o[chain < FULL_CHAINS || !n ? at : n - 1], 1,
                                   INT64_MAX, &e);
        break;
    case 7: attack_clean(d); break;
    default: find_all(d, chain);
    }
    if (status) DIE("a call with a damaged index: %s", e.message);
    if (e.code) DIE("a call that succeeds says: %s", e.message);
}

/* Brings the model to what the files say: it is told of no call above that changes them. */
static void look(struct kvc_dir *d) {
    struct stat st;
    for (unsigned c = 0; c < CHAINS; c++)
        for (unsigned i = 0; i < ATTACK_DEPTH; i++) {
            const struct kvc_object o = attack_object(c, i);
            const int is = !kvc_root_stat(&d->root, &o, &st);
            if (c < FULL_CHAINS && i + 1 < ATTACK_DEPTH && !is) DIE("object %u.%u is lost", c, i);
            there[c][i] = (uint8_t)is;
        }
}

static void fill_store(void) {
    struct kvc_error e;
    struct kvc_dir *d = attack_open(options);
    int is;
    for (unsigned c = 0; c < CHAINS; c++)
        for (unsigned i = 0;
             i + 1 < ATTACK_DEPTH && i < (c < FULL_CHAINS ? ATTACK_DEPTH : c - FULL_CHAINS); i++)
            if (attack_put(d, c, i, NULL, &is, &e)) DIE("put: %s", e.message);
    look(d);
    kvc_tier_dir.close(&d->tier);
}

static int set_boot(struct kvc_dir *d, struct kvc_index_txn *t, void *state, struct kvc_error *e) {
    (void)d, (void)e;
    strcpy(kvc_index_sums(t)->boot, state);
    return 0;
}

static void alone(uint64_t damages, uint64_t *step) {
    fill_store();
    char boot[] = "another one"; /* of the machine: what is opened next is looked through */
    struct kvc_error e;
    struct kvc_dir *d = attack_open(options);
    for (; *step < damages; ++*step) {
        const int reopen = pick(2) != 0;
        attack_step = *step;
        alarm(PATIENCE);
        if (kvc_dir_run(d, 1, INT64_MAX, set_boot, boot, &e)) DIE("%s", e.message);
        if (reopen) kvc_tier_dir.close(&d->tier);
        damage((enum damage)pick(reopen ? DAMAGES + 1 : DAMAGES));
        if (reopen) d = attack_open(options);
        use(d);
        look(d);
        for (unsigned c = 0; c < CHAINS; c++) find_all(d, c);
        if (*step % 16) continue;
        attack_clean(d);
        attack_check_books(d);
    }
    kvc_tier_dir.close(&d->tier);
}

/* --- among others --- */

static void work_for_ever(void) {
    struct kvc_dir *d = attack_open(options);
    struct kvc_error e;
    struct kvc_store_cleaned counts;
    int is;
    for (attack_step = 0;; attack_step++) {
        const unsigned chain = pick(FULL_CHAINS), what = pick(100);
        struct kvc_object o[ATTACK_DEPTH];
        attack_chain(chain, o);
        alarm(PATIENCE);
        const size_t found = attack_find(d, chain, &e);
        if (found != SIZE_MAX && found + 1 < ATTACK_DEPTH)
            DIE("chain %u has %zu objects", chain, found);
        if (what < 30) attack_put(d, chain, ATTACK_DEPTH - 1, NULL, &is, &e);
        else if (what < 50) kvc_tier_dir.drop(&d->tier, &o[ATTACK_DEPTH - 1], 1, INT64_MAX, &e);
        else if (what < 70) kvc_tier_dir.touch(&d->tier, o, ATTACK_DEPTH - 1, &e);
        else if (what < 75)
            kvc_dir_clean(&d->tier, &(struct kvc_store_clean_options){.evict = 0}, &counts, &e);
        else if (what < 98) {
            const struct attack_got g = attack_get(d, o, ATTACK_DEPTH - 1);
            if (g.missing) DIE("an object of chain %u is lost", chain);
        } else {
            kvc_tier_dir.close(&d->tier);
            d = attack_open(options);
        }
    }
}

static void crowd(uint64_t damages, uint64_t *step) {
    pid_t pid[WORKERS];
    int status;
    fill_store();
    for (unsigned i = 0; i < WORKERS; i++) {
        const uint64_t seed = attack_next(&rng);
        if ((pid[i] = fork()) < 0) DIE("fork: %s", strerror(errno));
        if (pid[i]) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        attack_seed = rng.state = seed;
        work_for_ever();
    }
    for (; *step < damages; ++*step) {
        usleep(pick(5000));
        damage((enum damage)pick(DAMAGES));
        for (unsigned i = 0; i < WORKERS; i++)
            if (waitpid(pid[i], &status, WNOHANG))
                DIE("damage %" PRIu64 " ends a process with %#x", *step, (unsigned)status);
    }
    for (unsigned i = 0; i < WORKERS; i++) kill(pid[i], SIGKILL);
    for (unsigned i = 0; i < WORKERS; i++)
        if (waitpid(pid[i], &status, 0) != pid[i] || WTERMSIG(status) != SIGKILL)
            DIE("a process ended with %#x", (unsigned)status);
    struct kvc_dir *d = attack_open(options);
    look(d);
    for (unsigned c = 0; c < CHAINS; c++) find_all(d, c);
    attack_clean(d);
    attack_check_books(d);
    kvc_tier_dir.close(&d->tier);
}

/* Runs it in a process of its own, whose end is what is looked at. */
static void run(const char *what, void (*attack)(uint64_t damages, uint64_t *step),
                uint64_t damages) {
    const double began = attack_seconds();
    uint64_t *step = mmap(NULL, sizeof *step, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                          -1, 0);
    int status;
    if (step == MAP_FAILED) DIE("no memory");
    attack_scratch();
    fflush(NULL);
    const pid_t pid = fork();
    if (pid < 0) DIE("fork: %s", strerror(errno));
    if (!pid) {
        attack(damages, step);
        _exit(0);
    }
    if (waitpid(pid, &status, 0) != pid || status)
        DIE("%s: damage %" PRIu64 " ends it with %#x", what, *step, (unsigned)status);
    attack_remove();
    printf("%s: %" PRIu64 " damages, %.1f s\n", what, *step, attack_seconds() - began);
    fflush(stdout);
    munmap(step, sizeof *step);
}

int main(int argc, char **argv) {
    const uint64_t damages = attack_number(argc, argv, 1, 300);
    attack_seed = rng.state = attack_number(argc, argv, 2, 1);
    run("an index damaged", alone, damages / 2);
    run("an index damaged while others use it", crowd, damages - damages / 2);
    printf("2 passed, 0 failed\n");
    return 0;
}
