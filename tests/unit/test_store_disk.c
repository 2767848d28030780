/* test_store_disk.c: a directory store on a disk that others fill, and under a clock that is set
 * back. The linker puts the functions below in place of the C library's (tests.mk). */
#include "store_support.h"

#include "formats/store/dir/dir.h"
#include "tests/large_files.h"

#include <errno.h>
#include <pthread.h>
#include <sys/statvfs.h>

#define DAY 86400
enum { CACHES = 6, DISK = 1 << 20 }; /* bytes */

static _Atomic int64_t clock_is_ahead; /* seconds */
static _Atomic int64_t files_are_ahead;
static _Atomic int64_t others = -1; /* bytes of the disk that others take; -1: it is a real one */

time_t __real_time(time_t *t);
time_t __wrap_time(time_t *t);
int __real_fstatat64(int fd, const char *name, struct stat *st, int flags);
int __wrap_fstatat64(int fd, const char *name, struct stat *st, int flags);
int __real_fstatvfs64(int fd, struct statvfs *fs);
int __wrap_fstatvfs64(int fd, struct statvfs *fs);
ssize_t __real_write(int fd, const void *data, size_t n);
ssize_t __wrap_write(int fd, const void *data, size_t n);

time_t __wrap_time(time_t *t) {
    const time_t now = __real_time(NULL) + clock_is_ahead;
    if (t) *t = now;
    return now;
}

int __wrap_fstatat64(int fd, const char *name, struct stat *st, int flags) {
    const int status = __real_fstatat64(fd, name, st, flags);
    if (!status) st->st_ctim.tv_sec += files_are_ahead;
    return status;
}

static int64_t taken;

static int add_size(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)at;
    if (type == FTW_F && !strstr(path, "index.sqlite")) taken += st->st_size;
    return 0;
}

/* Asked by the test, and by threads of the store that write. */
static int64_t left(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    taken = others;
    assert_int_equal(nftw(folder, add_size, 8, FTW_PHYS), 0);
    const int64_t free_bytes = taken < DISK ? DISK - taken : 0;
    pthread_mutex_unlock(&lock);
    return free_bytes;
}

int __wrap_fstatvfs64(int fd, struct statvfs *fs) {
    const int status = __real_fstatvfs64(fd, fs);
    if (status || others < 0) return status;
    fs->f_frsize = 1;
    fs->f_blocks = DISK;
    fs->f_bavail = (fsblkcnt_t)left();
    return 0;
}

ssize_t __wrap_write(int fd, const void *data, size_t n) {
    struct stat st;
    if (others < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode) || left() >= (int64_t)n)
        return __real_write(fd, data, n);
    errno = ENOSPC;
    return -1;
}

static struct kvc_store *open_with(const char *name, const char *options) {
    char url[400];
    snprintf(url, sizeof url, "dir:%s/%s?durability=none&%s", folder, name, options);
    return open_store_with(url, &patient);
}

static struct kvc_store_cleaned clean(struct kvc_store *s) {
    static const struct kvc_store_clean_options usual = {.evict = 0};
    struct kvc_store_cleaned counts;
    struct kvc_error e;
    if (kvc_dir_clean(s->tier[0].tier, &usual, &counts, &e)) fail_msg("%s", e.message);
    return counts;
}

/* Cleaning evicts once, and who puts makes room for what cannot be written. */
static void others_fill_the_disk(void **state) {
    (void)state;
    for (int indexed = 0; indexed < 2; indexed++) {
        const char *name = indexed ? "indexed" : "files";
        struct kvc_store *s = open_with(name, indexed ? "min-free=10" : "min-free=10&index=no");
        struct made *x[CACHES];
        for (int i = 0; i < CACHES; i++) x[i] = make(4 * CHUNK, 1000 * (i + 1), NULL);
        struct kvc_store_namespace *ns = open_namespace(s, x[0]);
        others = 0;
        for (int i = 0; i < CACHES - 1; i++) put(ns, x[i]);
        const uint64_t objects = clean(s).objects;
        others = left() - DISK / 10 + 1000; /* a little too much */
        assert_true(clean(s).evicted > 0);
        assert_int_equal(clean(s).evicted, 0);
        assert_true(clean(s).objects + 4 > objects);
        others += left();
        put(ns, x[CACHES - 1]);
        assert_int_equal(read_back(ns, x[CACHES - 1]), 4 * CHUNK);
        assert_true(left() > 0);
        others = -1;
        wait_for_all(s);
        kvc_store_namespace_close(ns);
        kvc_store_close(s);
        for (int i = 0; i < CACHES; i++) unmake(x[i]);
    }
}

/* Files that get old only once the clock has caught up go at once. */
static void files_from_before(void **state) {
    (void)state;
    struct made *x = make(4 * CHUNK, 1, NULL);
    struct kvc_store *s = open_with("before", "min-free=0&grace=1h");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    const struct kvc_store_clean_options all = {.evict = 1};
    struct kvc_store_cleaned counts;
    struct kvc_error e;
    char path[300];
    put(ns, x);
    wait_for_all(s);
    assert_int_equal(kvc_dir_clean(s->tier[0].tier, &all, &counts, &e), 0);
    assert_int_equal(count_names("before", "trash"), 4);
    snprintf(path, sizeof path, "%s/before/.kvc-store.conf.1a2b", folder);
    close(open(path, O_CREAT | O_WRONLY, 0600)); /* its writer was killed */
    clean(s);
    assert_int_equal(count_names("before", "trash"), 4);
    assert_int_equal(access(path, F_OK), 0); /* it may be being written */
    files_are_ahead = DAY;
    assert_int_equal(clean(s).trash_bytes, 0);
    files_are_ahead = 0;
    assert_int_equal(count_names("before", "trash"), 0);
    assert_int_equal(access(path, F_OK), -1);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    files_are_ahead = -100;
    clean(s);
    files_are_ahead = 0;
    assert_int_equal(access(path, F_OK), -1);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

/* Has the files of a store used in a day. */
static int use_later(const char *path, const struct stat *st, int type, struct FTW *at) {
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = st->st_mtime + DAY}};
    (void)at;
    return type == FTW_F && strstr(path, "/obj/") ? utimensat(AT_FDCWD, path, times, 0) : 0;
}

/* What was used after now is used now: else nothing would evict it until the clock caught up. */
static void uses_from_before(void **state) {
    static const char *const options[] = {"min-free=0&max-age=1h", "min-free=0&max-age=1h",
                                          "min-free=0&max-age=1h&index=no"};
    (void)state;
    for (int way = 0; way < 3; way++) { /* in the index; in files that it adopts; in files */
        char name[32], path[300];
        snprintf(name, sizeof name, "uses%d", way);
        struct made *x = make(4 * CHUNK, 1, NULL);
        struct kvc_store *s = open_with(name, options[way]);
        struct kvc_store_namespace *ns = open_namespace(s, x);
        clock_is_ahead = way ? 0 : DAY;
        put(ns, x);
        wait_for_all(s);
        clock_is_ahead = 0;
        snprintf(path, sizeof path, "%s/%s", folder, name);
        if (way) assert_int_equal(nftw(path, use_later, 8, FTW_PHYS), 0);
        if (way == 1) {
            snprintf(path, sizeof path, "%s/%s/" KVC_INDEX_NAME, folder, name);
            assert_int_equal(unlink(path), 0);
        }
        assert_int_equal(clean(s).evicted, 0);
        clock_is_ahead = 3700;
        assert_int_equal(clean(s).evicted, 4);
        clock_is_ahead = 0;
        kvc_store_namespace_close(ns);
        kvc_store_close(s);
        unmake(x);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_fill_the_disk),
        cmocka_unit_test(files_from_before),
        cmocka_unit_test(uses_from_before),
    };
    return cmocka_run_group_tests_name("store disk", tests, make_folder, remove_folder);
}
