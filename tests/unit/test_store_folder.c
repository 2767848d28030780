/* test_store_folder.c: a directory store whose files and folders are damaged, replaced or locked
 * by others while a program uses it. */
#include "store_support.h"

#include "formats/store/dir/dir.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>

#define HANG 120 /* seconds after which a test counts as waiting for ever */

static struct kvc_dir *directory(struct kvc_store *s) {
    return (struct kvc_dir *)s->tier[0].tier;
}

static const char *below(const char *path) {
    static char text[300];
    snprintf(text, sizeof text, "%s/%s", folder, path);
    return text;
}

/* Puts, and returns whether everything is stored. */
static int puts_all(struct kvc_store_namespace *ns, const struct made *x) {
    const struct kvc_store_put_options o = {.size = sizeof o, .wait = 1};
    struct kvc_error e = {.code = KVC_OK};
    return !kvc_store_put(ns, x->f, &o, &e) && e.code == KVC_OK;
}

static void configuration_becomes_pipe(void **state) {
    (void)state;
    struct made *x = make(2 * CHUNK, 3, NULL);
    struct kvc_store *s = open_store("conf", "");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    struct kvc_error e;
    char url[300];
    alarm(HANG);
    put(ns, x);
    assert_int_equal(unlink(below("conf/kvc-store.conf")), 0);
    assert_int_equal(mkfifo(below("conf/kvc-store.conf"), 0600), 0);
    assert_int_equal(count_found(ns, x), 0);
    assert_false(puts_all(ns, x));
    wait_for_all(s);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    assert_null(kvc_store_open(tier_url(url, sizeof url, "conf", ""), &patient, &e));
    assert_non_null(strstr(e.message, "regular file"));
    alarm(0);
    unmake(x);
}

/* The index costs its hints, not what is stored. */
static void index_cannot_be_written(void **state) {
    (void)state;
    struct made *x = make(3 * CHUNK, 3, NULL);
    struct kvc_store *s = open_store("full", "");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    struct kvc_error e = {.code = KVC_OK};
    struct kvc_store_cleaned counts;
    struct rlimit before, none;
    const struct kvc_store_clean_options all = {.evict = 1, .max_size = 0};
    put(ns, x);
    struct kvc_store_hit *hit = find_n(ns, x->ids, 3 * CHUNK);
    assert_int_equal(kvc_store_pin(hit, 0, &e), 0);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    assert_int_not_equal(kvc_store_unpin(hit, &e), 0);
    assert_non_null(strstr(e.message, "index"));
    assert_int_equal(read_back(ns, x), 3 * CHUNK);
    assert_int_equal(unlink(below("full/" KVC_INDEX_NAME)), 0);
    assert_int_equal(count_found(ns, x), 3 * CHUNK); /* by the files */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    wait_for_all(s);
    assert_int_equal(count_found(ns, x), 3 * CHUNK);
    assert_int_equal(kvc_store_pin(hit, 0, &e), 0);
    assert_int_equal(kvc_dir_clean(&directory(s)->tier, &all, &counts, &e), 0);
    assert_int_equal(counts.evicted, 0);
    assert_int_equal(read_back(ns, x), 3 * CHUNK);
    kvc_store_hit_free(hit);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

static int set_boot(struct kvc_dir *d, struct kvc_index_txn *t, void *boot, struct kvc_error *e) {
    (void)d, (void)e;
    strcpy(kvc_index_sums(t)->boot, boot);
    kvc_index_sums(t)->bytes += 1000000; /* as if this page were of another time than the others */
    return 0;
}

/* An index of an earlier boot is looked through: what is whole stays, and sums are computed
 * anew. */
static void index_of_another_boot(void **state) {
    (void)state;
    char boot[] = "another one";
    struct made *x = make(3 * CHUNK, 3, NULL);
    struct kvc_store *s = open_store("boot", "");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    struct kvc_error e;
    struct kvc_store_cleaned counts;
    struct kvc_store_tier_info before, after;
    const struct kvc_store_clean_options all = {.evict = 1, .max_size = 0};
    put(ns, x);
    struct kvc_store_hit *hit = find_n(ns, x->ids, 3 * CHUNK);
    assert_int_equal(kvc_store_pin(hit, 0, &e), 0);
    assert_int_equal(kvc_tier_dir.facts(s->tier[0].tier, &before, INT64_MAX, &e), 0);
    assert_int_equal(kvc_dir_run(directory(s), 1, INT64_MAX, set_boot, boot, &e), 0);
    kvc_store_hit_free(hit);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    s = open_store("boot", "");
    ns = open_namespace(s, x);
    assert_int_equal(kvc_tier_dir.facts(s->tier[0].tier, &after, INT64_MAX, &e), 0);
    assert_int_equal(after.bytes, before.bytes);
    assert_int_equal(after.objects, before.objects);
    assert_int_equal(kvc_dir_clean(&directory(s)->tier, &all, &counts, &e), 0);
    assert_int_equal(counts.evicted, 0);
    assert_int_equal(read_back(ns, x), 3 * CHUNK);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

/* Who waits for others does so until the deadline, and takes the index for no worse. Finding
 * does not wait for who writes. */
static void index_in_use(void **state) {
    (void)state;
    struct made *x = make(2 * CHUNK, 3, NULL);
    struct kvc_store *s = open_store("busy", ""), *other = open_store("busy", "");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    struct kvc_error e = {.code = KVC_OK};
    put(ns, x);
    wait_for_all(s);
    struct kvc_index_txn *t = kvc_index_begin(directory(other)->index, 1, &e);
    assert_non_null(t);
    assert_int_equal(count_found(ns, x), 2 * CHUNK);
    const kvc_instant began = kvc_now();
    assert_null(kvc_index_begin_until(directory(s)->index, 1, began + 50000, &e));
    assert_in_range(kvc_now() - began, 50000, 20000000);
    assert_int_equal(e.severity, KVC_SEVERITY_RETRY);
    assert_non_null(strstr(e.message, "too long"));
    int made = 0;
    assert_int_equal(kvc_index_renew(directory(s)->index, &made, &e), 1);
    kvc_index_abort(t);
    t = kvc_index_begin_until(directory(s)->index, 1, kvc_now() + LONG, &e);
    assert_non_null(t);
    assert_int_equal(count_found(ns, x), 2 * CHUNK); /* nor for who writes in the same process */
    kvc_index_abort(t);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    kvc_store_close(other);
    unmake(x);
}

/* A record whose file somebody has removed or replaced does not count for who puts. */
static void records_are_not_believed(void **state) {
    (void)state;
    struct made *x = make(3 * CHUNK, 3, NULL);
    struct kvc_store *s = open_store("files", "");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    char path[400];
    struct stat st;
    put(ns, x);
    chunk_path(ns, x, 1, "files", path, sizeof path);
    for (int what = 0; what < 4; what++) {
        assert_int_equal(unlink(path), 0);
        if (what == 1) assert_int_equal(mkdir(path, 0700), 0);
        if (what == 2) assert_int_equal(mkfifo(path, 0600), 0);
        if (what == 3) assert_int_equal(symlink("/dev/zero", path), 0);
        put(ns, x);
        assert_int_equal(lstat(path, &st), 0);
        assert_true(S_ISREG(st.st_mode));
        assert_int_equal(read_back(ns, x), 3 * CHUNK);
    }
    /* who reads finds it out */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(read_back(ns, x), CHUNK);
    wait_for_all(s);
    assert_int_equal(counted(s, KVC_COUNT_BAD), 1);
    assert_int_equal(lstat(path, &st), -1);
    assert_int_equal(count_found(ns, x), CHUNK);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

/* Folders that become links while the store is open lead nowhere. */
static void folders_become_links(void **state) {
    (void)state;
    static const char *const name[] = {"obj", "ns", "bad", "trash"};
    struct made *x = make(2 * CHUNK, 3, NULL), *y = make(2 * CHUNK, 500, NULL);
    struct kvc_store *s = open_store("links", "&grace=0s");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    const struct kvc_store_clean_options all = {.evict = 1, .max_size = 0};
    struct kvc_store_cleaned counts;
    struct kvc_error e;
    struct stat st;
    char is[300], elsewhere[300];
    put(ns, x);
    for (unsigned i = 0; i < 4; i++) {
        snprintf(is, sizeof is, "%s/links/%s", folder, name[i]);
        snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere-%s", folder, name[i]);
        assert_int_equal(rename(is, elsewhere), 0);
        assert_int_equal(stat(elsewhere, &st), 0);
        const struct timespec before = st.st_mtim;
        assert_int_equal(symlink(elsewhere, is), 0);
        if (i != 1 && i != 2)
            assert_false(puts_all(ns, y) && !kvc_dir_clean(&directory(s)->tier, &all, &counts, &e));
        read_back(ns, x);
        kvc_tier_dir.quarantine(s->tier[0].tier, &(struct kvc_object){.kind = KVC_OBJECT_CHUNK},
                                &e);
        assert_int_equal(stat(elsewhere, &st), 0);
        /* nothing was made, removed or moved in it */
        assert_memory_equal(&before, &st.st_mtim, sizeof before);
        assert_int_equal(unlink(is), 0);
        assert_int_equal(rename(elsewhere, is), 0);
    }
    put(ns, x);
    assert_int_equal(read_back(ns, x), 2 * CHUNK);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
    unmake(y);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configuration_becomes_pipe), cmocka_unit_test(index_cannot_be_written),
        cmocka_unit_test(index_of_another_boot),      cmocka_unit_test(index_in_use),
        cmocka_unit_test(records_are_not_believed),   cmocka_unit_test(folders_become_links),
    };
    return cmocka_run_group_tests_name("store folder", tests, make_folder, remove_folder);
}
