/* attack_faults.c: every system call, allocation and call of SQLite that a directory store makes
 * fails once, in every way that it can.
 *
 *   attack_faults [RUNS | N WAY INDEX POOR]
 *
 * A store is made, written, read, and cleaned, with call number N failing. Nothing may crash, and
 * no wrong bytes may come; the next process finds a store in order. RUNS are spread over all N,
 * each failing in one way; 0: every N in every way. Some are as on file systems that can do less.
 * N, WAY (the "seed" of a message), INDEX (1 or 0) and POOR (0 to 2) repeat one run. The linker
 * puts the functions below in place of the libraries' (tests.mk).
 */
#include "tests/store/attack.h"
#include "tests/large_files.h"

#include <sqlite3.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/statvfs.h>

/* --- calls that fail --- */

static const int codes[] = {EIO, ENOSPC, EINTR, EDQUOT, ESTALE, EACCES};
/* the last: reads and writes are short, others work */
#define KINDS (sizeof codes / sizeof codes[0] + 1)

static atomic_uint_fast64_t calls; /* since the start of the run */
static uint64_t failing;           /* number of the call that fails; 0: none */
static size_t kind;

/* 1: as on a file system without hard links and files without names. 2: without renameat2(), too */
static int poor;

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
WRAP(int, fsync, (int fd), (fd), -1)
WRAP(int, fdatasync, (int fd), (fd), -1)
WRAP(int, flock, (int fd, int how), (fd, how), -1)
WRAP(int, fstat64, (int fd, struct stat *st), (fd, st), -1)
WRAP(int, stat64, (const char *p, struct stat *st), (p, st), -1)
WRAP(int, fstatat64, (int fd, const char *p, struct stat *st, int f), (fd, p, st, f), -1)
WRAP(int, fstatvfs64, (int fd, struct statvfs *st), (fd, st), -1)
WRAP(void *, fdopendir, (int fd), (fd), NULL)
WRAP(void *, malloc, (size_t n), (n), NULL)
WRAP(void *, calloc, (size_t n, size_t size), (n, size), NULL)
WRAP(void *, realloc, (void *p, size_t n), (p, n), NULL)
WRAP(char *, strdup, (const char *p), (p), NULL)

int __real_linkat(int a, const char *p, int b, const char *q, int f);
int __wrap_linkat(int a, const char *p, int b, const char *q, int f);
int __wrap_linkat(int a, const char *p, int b, const char *q, int f) {
    if (fails()) return -1;
    if (!poor) return __real_linkat(a, p, b, q, f);
    errno = EPERM;
    return -1;
}
long __real_syscall(long n, long a, const char *p, long b, const char *q, unsigned f);
long __wrap_syscall(long n, long a, const char *p, long b, const char *q, unsigned f);
long __wrap_syscall(long n, long a, const char *p, long b, const char *q,
                    unsigned f) { /* renameat2 */
    if (fails()) return -1;
    if (poor < 2) return __real_syscall(n, a, p, b, q, f);
    errno = EINVAL;
    return -1;
}
int __real_open64(const char *p, int flags, mode_t mode);
int __wrap_open64(const char *p, int flags, mode_t mode);
int __wrap_open64(const char *p, int flags, mode_t mode) {
    return fails() ? -1 : __real_open64(p, flags, mode);
}
int __real_openat64(int fd, const char *p, int flags, mode_t mode);
int __wrap_openat64(int fd, const char *p, int flags, mode_t mode);
int __wrap_openat64(int fd, const char *p, int flags, mode_t mode) {
    if (fails()) return -1;
    if (!poor || (flags & O_TMPFILE) != O_TMPFILE) return __real_openat64(fd, p, flags, mode);
    errno = EOPNOTSUPP;
    return -1;
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

ssize_t __real_pwrite64(int fd, const void *p, size_t n, off_t at);
ssize_t __wrap_pwrite64(int fd, const void *p, size_t n, off_t at);
ssize_t __wrap_pwrite64(int fd, const void *p, size_t n, off_t at) {
    const size_t most = length(n);
    return most ? __real_pwrite64(fd, p, most, at) : -1;
}
WRAP(int, ftruncate64, (int fd, off_t n), (fd, n), -1)
int __real_fcntl64(int fd, int what, ...);
int __wrap_fcntl64(int fd, int what, ...);
int __wrap_fcntl64(int fd, int what, ...) {
    va_list list;
    va_start(list, what);
    void *value = va_arg(list, void *);
    va_end(list);
    return fails() ? -1 : __real_fcntl64(fd, what, value);
}

/* What SQLite returns; its own allocations cannot be reached from here, its files can. */
static int database(void) {
    static const int code[] = {SQLITE_IOERR, SQLITE_FULL,    SQLITE_BUSY,
                               SQLITE_NOMEM, SQLITE_CORRUPT, SQLITE_ERROR};
    return fails() ? code[kind] : 0;
}

#define WRAP_DB(name, parameters, arguments)          \
    int __real_##name parameters;                     \
    int __wrap_##name parameters;                     \
    int __wrap_##name parameters {                    \
        const int code = database();                  \
        return code ? code : __real_##name arguments; \
    }

WRAP_DB(sqlite3_vfs_register, (sqlite3_vfs * vfs, int first), (vfs, first))
WRAP_DB(sqlite3_prepare_v2,
        (sqlite3 * db, const char *sql, int n, sqlite3_stmt **s, const char **end),
        (db, sql, n, s, end))
WRAP_DB(sqlite3_prepare_v3,
        (sqlite3 * db, const char *sql, int n, unsigned f, sqlite3_stmt **s, const char **end),
        (db, sql, n, f, s, end))
WRAP_DB(sqlite3_exec,
        (sqlite3 * db, const char *sql, int (*one)(void *, int, char **, char **), void *state,
         char **why),
        (db, sql, one, state, why))
WRAP_DB(sqlite3_step, (sqlite3_stmt * s), (s))
WRAP_DB(sqlite3_file_control, (sqlite3 * db, const char *name, int what, void *value),
        (db, name, what, value))

/* --- what is run --- */

#define FEW_CHAINS 4
#define FEW 5 /* of a chain that are put */
#define FAULT_LIMIT 20000

/* A call that fails says why. */
static void expect(int status, struct kvc_error *e) {
    if (status && (e->code == KVC_OK || !*e->message)) DIE("a call failed without a word");
    if (status && failing == UINT64_MAX) DIE("a call failed: %s", e->message);
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
    struct kvc_tier *l = &d->tier;
    struct kvc_error e = {.code = KVC_OK};
    struct kvc_object o[ATTACK_DEPTH];
    struct kvc_store_tier_info facts;
    struct kvc_store_cleaned counts;
    int there;
    for (unsigned c = 0; c < FEW_CHAINS; c++)
        for (unsigned i = 0; i < FEW; i++) {
            const struct kvc_tier_put how = {.replace = i == 3,
                                             .pin = c == 1,
                                             .seconds = c == 2 ? 1000 : 0};
            expect(attack_put(d, c, i, &how, &there, &e), &e);
            if (i == 3) expect(attack_put(d, c, i, &how, &there, &e), &e);
        }
    read_all(d);
    attack_chain(3, o);
    expect(kvc_tier_dir.touch(l, o, 4, &e), &e);
    expect(kvc_tier_dir.missed(l, o, ATTACK_DEPTH, 1000, &e), &e);
    if (d->index) expect(kvc_tier_dir.pin(l, o, 2, INT64_MAX, &e), &e);
    expect(kvc_tier_dir.quarantine(l, &o[1], &e), &e);
    expect(kvc_tier_dir.drop(l, &o[2], 1, INT64_MAX, &e), &e);
    expect(kvc_tier_dir.walk(l, o->ns, ignore, NULL, &e), &e);
    expect(kvc_tier_dir.facts(l, &facts, INT64_MAX, &e), &e);
    expect(kvc_dir_clean(&d->tier,
                         &(struct kvc_store_clean_options){.evict = 1, .max_size = FAULT_LIMIT / 2},
                         &counts, &e),
           &e);
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
        kvc_tier_dir.close(&d->tier);
    }
    failing = 0;
    d = attack_open(how); /* the next process */
    attack_clean(d);
    attack_clean(d);
    if (d->index) attack_check_books(d);
    if (attack_names("trash")) DIE("the trash has %u files", attack_names("trash"));
    read_all(d);
    kvc_tier_dir.close(&d->tier);
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
    printf("%s: %" PRIu64 " runs over %" PRIu64 " calls, %.1f s\n", what, runs, n,
           attack_seconds() - began);
    fflush(stdout);
}

int main(int argc, char **argv) {
    const uint64_t runs = attack_number(argc, argv, 1, 100);
    if (argc > 3) {
        attack_step = failing = runs;
        attack_seed = kind = attack_number(argc, argv, 2, 0) % KINDS;
        poor = (int)attack_number(argc, argv, 4, 0);
        run(options[attack_number(argc, argv, 3, 1) & 1]);
        return 0;
    }
    run_all("with an index", 1, runs);
    run_all("without one", 0, runs);
    for (poor = 1; poor <= 2; poor++)
        run_all(poor == 1 ? "without hard links" : "without renameat2()", poor == 1,
                (runs + 3) / 4);
    printf("4 passed, 0 failed\n");
    return 0;
}
