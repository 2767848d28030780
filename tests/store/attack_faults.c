/* attack_faults.c: every system call, allocation and call of LMDB that a directory store makes fails once, in every way that it can.
 *
 *   attack_faults [RUNS | N WAY INDEX]
 *
 * A store is made, written, read, and cleaned, with call number N failing. Nothing may crash, and no wrong bytes may come; the next process
 * finds a store in order. RUNS are spread over all N, each failing in one way; 0: every N in every way. N, WAY (the "seed" of a message)
 * and INDEX (1 or 0) repeat one run. The linker puts the functions below in place of the libraries' (tests.mk). */
#include "tests/store/attack.h"

#include <lmdb.h>
#include <stdatomic.h>
#include <sys/statvfs.h>

/* --- calls that fail --- */

static const int codes[] = {EIO, ENOSPC, EINTR, EDQUOT, ESTALE, EACCES};
#define KINDS (sizeof codes / sizeof codes[0] + 1) /* the last: reads and writes are short, others work */

static atomic_uint_fast64_t calls; /* since the start of the run */
static uint64_t failing;           /* number of the call that fails; 0: none */
static size_t kind;

/* Says whether this call is the one. */
static int is_due(void) {
    return failing && atomic_fetch_add(&calls, 1) + 1 == failing;
}

/* Says whether this call fails, and sets errno. */
static int fails(void) {
    if (!is_due() || kind == KINDS - 1) return 0;
    errno = codes[kind];
    return 1;
}

#define WRAP(type, name, parameters, arguments, failed)      \
    type __real_##name parameters;                           \
    type __wrap_##name parameters;                           \
    type __wrap_##name parameters {                          \
        return fails() ? (failed) : __real_##name arguments; \
    }

WRAP(int, mkdir, (const char *p, mode_t m), (p, m), -1)
WRAP(int, mkdirat, (int fd, const char *p, mode_t m), (fd, p, m), -1)
WRAP(int, unlinkat, (int fd, const char *p, int f), (fd, p, f), -1)
WRAP(int, renameat, (int a, const char *p, int b, const char *q), (a, p, b, q), -1)
WRAP(int, linkat, (int a, const char *p, int b, const char *q, int f), (a, p, b, q, f), -1)
WRAP(int, fsync, (int fd), (fd), -1)
WRAP(int, fdatasync, (int fd), (fd), -1)
WRAP(int, flock, (int fd, int how), (fd, how), -1)
WRAP(int, fstat64, (int fd, struct stat *st), (fd, st), -1)
WRAP(int, stat64, (const char *p, struct stat *st), (p, st), -1)
WRAP(int, fstatat64, (int fd, const char *p, struct stat *st, int f), (fd, p, st, f), -1)
WRAP(int, fstatvfs64, (int fd, struct statvfs *st), (fd, st), -1)
WRAP(void *, fdopendir, (int fd), (fd), NULL)
WRAP(char *, realpath, (const char *p, char *q), (p, q), NULL)
WRAP(void *, malloc, (size_t n), (n), NULL)
WRAP(void *, calloc, (size_t n, size_t size), (n, size), NULL)
WRAP(void *, realloc, (void *p, size_t n), (p, n), NULL)
WRAP(char *, strdup, (const char *p), (p), NULL)

int __real_open64(const char *p, int flags, mode_t mode);
int __wrap_open64(const char *p, int flags, mode_t mode);
int __wrap_open64(const char *p, int flags, mode_t mode) {
    return fails() ? -1 : __real_open64(p, flags, mode);
}
int __real_openat64(int fd, const char *p, int flags, mode_t mode);
int __wrap_openat64(int fd, const char *p, int flags, mode_t mode);
int __wrap_openat64(int fd, const char *p, int flags, mode_t mode) {
    return fails() ? -1 : __real_openat64(fd, p, flags, mode);
}

/* Returns how many bytes are read or written: some of them, once. 0: none, and errno is set. */
static size_t length(size_t n) {
    if (!is_due()) return n;
    if (kind == KINDS - 1) return n > 1 ? n / 2 : n;
    errno = codes[kind];
    return 0;
}
ssize_t __real_write(int fd, const void *p, size_t n);
ssize_t __wrap_write(int fd, const void *p, size_t n);
ssize_t __wrap_write(int fd, const void *p, size_t n) {
    const size_t most = length(n);
    return most ? __real_write(fd, p, most) : -1;
}
ssize_t __real_pread64(int fd, void *p, size_t n, off_t at);
ssize_t __wrap_pread64(int fd, void *p, size_t n, off_t at);
ssize_t __wrap_pread64(int fd, void *p, size_t n, off_t at) {
    const size_t most = length(n);
    return most ? __real_pread64(fd, p, most, at) : -1;
}

/* What LMDB returns; its own system calls cannot be reached from here. */
static int database(void) {
    return fails() ? (kind % 2 ? MDB_MAP_FULL : errno) : 0;
}

#define WRAP_DB(name, parameters, arguments)          \
    int __real_##name parameters;                     \
    int __wrap_##name parameters;                     \
    int __wrap_##name parameters {                    \
        const int code = database();                  \
        return code ? code : __real_##name arguments; \
    }

WRAP_DB(mdb_env_create, (MDB_env * *env), (env))
WRAP_DB(mdb_env_open, (MDB_env * env, const char *path, unsigned f, mdb_mode_t mode), (env, path, f, mode))
WRAP_DB(mdb_txn_begin, (MDB_env * env, MDB_txn *up, unsigned f, MDB_txn **txn), (env, up, f, txn))
WRAP_DB(mdb_dbi_open, (MDB_txn * txn, const char *name, unsigned f, MDB_dbi *dbi), (txn, name, f, dbi))
WRAP_DB(mdb_get, (MDB_txn * txn, MDB_dbi dbi, MDB_val *k, MDB_val *v), (txn, dbi, k, v))
WRAP_DB(mdb_put, (MDB_txn * txn, MDB_dbi dbi, MDB_val *k, MDB_val *v, unsigned f), (txn, dbi, k, v, f))
WRAP_DB(mdb_del, (MDB_txn * txn, MDB_dbi dbi, MDB_val *k, MDB_val *v), (txn, dbi, k, v))
WRAP_DB(mdb_cursor_open, (MDB_txn * txn, MDB_dbi dbi, MDB_cursor **c), (txn, dbi, c))
WRAP_DB(mdb_cursor_get, (MDB_cursor * c, MDB_val *k, MDB_val *v, MDB_cursor_op op), (c, k, v, op))

int __real_mdb_txn_commit(MDB_txn *txn);
int __wrap_mdb_txn_commit(MDB_txn *txn);
int __wrap_mdb_txn_commit(MDB_txn *txn) {
    const int code = database();
    if (!code) return __real_mdb_txn_commit(txn);
    mdb_txn_abort(txn);
    return code;
}

/* --- what is run --- */

#define FEW_CHAINS 4
#define FEW 5 /* of a chain that are put */
#define FAULT_LIMIT 20000

/* A call that fails says why. */
static void expect(int status, struct kvc_error *e) {
    if (status && (e->code == KVC_OK || !*e->message)) DIE("a call failed without a word");
    *e = (struct kvc_error){.code = KVC_OK};
}

static void read_all(struct kvc_dir *d) {
    struct kvc_error e = {.code = KVC_OK};
    for (unsigned c = 0; c < FEW_CHAINS; c++) {
        struct kvc_object o[ATTACK_DEPTH];
        attack_chain(c, o);
        const size_t found = attack_find(d, c, &e);
        expect(found == SIZE_MAX, &e);
        attack_get(d, o, ATTACK_DEPTH);
    }
}

static int ignore(void *state, const struct kvc_object *o, uint64_t size, int64_t used) {
    (void)state, (void)o, (void)size, (void)used;
    return 0;
}

static void work(struct kvc_dir *d) {
    struct kvc_level *l = &d->level;
    struct kvc_error e = {.code = KVC_OK};
    struct kvc_object o[ATTACK_DEPTH];
    struct kvc_level_facts facts;
    struct kvc_dir_counts counts;
    int there;
    for (unsigned c = 0; c < FEW_CHAINS; c++)
        for (unsigned i = 0; i < FEW; i++) {
            const struct kvc_level_put how = {.replace = i == 3, .pin = c == 1, .seconds = c == 2 ? 1000 : 0};
            expect(attack_put(d, c, i, &how, &there, &e), &e);
            if (i == 3) expect(attack_put(d, c, i, &how, &there, &e), &e);
        }
    read_all(d);
    attack_chain(3, o);
    expect(kvc_level_dir.touch(l, o, 4, &e), &e);
    expect(kvc_level_dir.missed(l, o, ATTACK_DEPTH, 1000, &e), &e);
    if (d->index) expect(kvc_level_dir.pin(l, o, 2, INT64_MAX, &e), &e);
    expect(kvc_level_dir.quarantine(l, &o[1], &e), &e);
    expect(kvc_level_dir.drop(l, &o[2], 1, INT64_MAX, &e), &e);
    expect(kvc_level_dir.walk(l, o->space, ignore, NULL, &e), &e);
    expect(kvc_level_dir.facts(l, &facts, INT64_MAX, &e), &e);
    expect(kvc_dir_clean(d, &(struct kvc_dir_clean){.max_size = FAULT_LIMIT / 2}, &counts, &e), &e);
    read_all(d);
}

/* Runs all of it with call number `failing` failing. Returns how many calls there were. */
static uint64_t run(const char *how) {
    struct kvc_error e = {.code = KVC_OK};
    attack_scratch();
    atomic_store(&calls, 0);
    struct kvc_dir *d = attack_try_open(how, &e);
    expect(!d, &e);
    if (d) {
        work(d);
        kvc_level_dir.close(&d->level);
    }
    failing = 0;
    d = attack_open(how); /* the next process */
    attack_clean(d);
    attack_clean(d);
    if (d->index) attack_check_books(d);
    if (attack_names("trash")) DIE("the trash has %u files", attack_names("trash"));
    read_all(d);
    kvc_level_dir.close(&d->level);
    attack_remove();
    return atomic_load(&calls);
}

static const char *const options[] = {"max-size=20000&min-free=1&durability=full&grace=0s&index=no",
                                      "max-size=20000&min-free=1&durability=full&grace=0s"};

static void run_all(const char *what, int indexed, uint64_t most) {
    const double began = attack_seconds();
    failing = UINT64_MAX;
    const uint64_t n = run(options[indexed]), stride = most ? n / most + 1 : 1;
    uint64_t runs = 0;
    for (uint64_t i = 1; i <= n; i += stride)
        for (size_t k = 0; k < KINDS; k++) {
            if (most && i / stride % KINDS != k) continue;
            attack_step = failing = i;
            attack_seed = kind = k;
            run(options[indexed]);
            runs++;
        }
    printf("%s: %" PRIu64 " runs over %" PRIu64 " calls, %.1f s\n", what, runs, n, attack_seconds() - began);
    fflush(stdout);
}

int main(int argc, char **argv) {
    const uint64_t runs = attack_number(argc, argv, 1, 100);
    if (argc > 3) {
        attack_step = failing = runs;
        attack_seed = kind = attack_number(argc, argv, 2, 0) % KINDS;
        run(options[attack_number(argc, argv, 3, 1) & 1]);
        return 0;
    }
    run_all("with an index", 1, runs);
    run_all("without one", 0, runs);
    printf("2 passed, 0 failed\n");
    return 0;
}
