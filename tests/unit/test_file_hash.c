/* test_file_hash.c: the hash over all bytes of a weights file, its pieces, and how it is
 * remembered. */
#include "formats/model/file_hash.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define PIECE (UINT64_C(1) << 24)
#define LARGE (UINT64_C(66) << 20) /* above the size from which hashes are remembered */

static char folder[256], file[300], cache[300], remembered[1024];

static int set_up(void **state) {
    const char *tmp = getenv("TMPDIR");
    (void)state;
    snprintf(folder, sizeof folder, "%.200s/kvc-file-hash-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(folder)) return -1;
    snprintf(file, sizeof file, "%s/weights", folder);
    snprintf(cache, sizeof cache, "%s/cache", folder);
    return setenv("XDG_CACHE_HOME", cache, 1);
}

/* Finds the only file of the folder of remembered hashes. Returns their number. */
static int find_remembered(void) {
    char weights[400];
    int n = 0;
    snprintf(weights, sizeof weights, "%s/kvc/weights", cache);
    DIR *dir = opendir(weights);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (*entry->d_name != '.') {
            n++;
            snprintf(remembered, sizeof remembered, "%s/%s", weights, entry->d_name);
        }
    if (dir) closedir(dir);
    return n;
}

static int tear_down(void **state) {
    char path[400];
    (void)state;
    while (find_remembered())
        if (unlink(remembered)) return -1;
    snprintf(path, sizeof path, "%s/kvc/weights", cache);
    rmdir(path);
    snprintf(path, sizeof path, "%s/kvc", cache);
    rmdir(path);
    rmdir(cache);
    unlink(file);
    return rmdir(folder);
}

/* Makes a file of zeros but for bytes at the given places. */
static void make(uint64_t size, uint64_t a, uint64_t b) {
    const int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    assert_int_equal(pwrite(fd, "a", 1, (off_t)a), 1);
    assert_int_equal(pwrite(fd, "b", 1, (off_t)b), 1);
    assert_int_equal(close(fd), 0);
}

static void hash_of(const char *path, uint8_t *hash) {
    struct kvc_input in;
    struct kvc_error e;
    assert_int_equal(kvc_input_open(&in, path, &e), 0);
    assert_int_equal(kvc_file_hash(&in, hash, &e), 0);
    kvc_input_close(&in);
}

/* The same by the words of KEYS.md. */
static void hash_plainly(uint8_t *hash) {
    static uint8_t piece[PIECE];
    struct kvc_sha256 all;
    FILE *f = fopen(file, "rb");
    assert_non_null(f);
    kvc_sha256_init(&all);
    for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;) {
        assert_int_equal(kvc_sha256(piece, n, hash, NULL), 0);
        kvc_sha256_update(&all, hash, KVC_SHA256_BYTES);
    }
    fclose(f);
    assert_int_equal(kvc_sha256_final(&all, hash, NULL), 0);
}

static void pieces_are_hashed(void **state) {
    (void)state;
    const uint64_t sizes[] = {2, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 300000};
    uint8_t hash[KVC_SHA256_BYTES], due[KVC_SHA256_BYTES];
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        make(sizes[i], 0, sizes[i] - 1);
        hash_of(file, hash);
        hash_plainly(due);
        assert_memory_equal(hash, due, sizeof hash);
    }
    assert_int_equal(find_remembered(), 0); /* small files are not */
}

/* A byte between the samples is found. */
static void every_byte_counts(void **state) {
    (void)state;
    uint8_t hash[KVC_SHA256_BYTES], other[KVC_SHA256_BYTES];
    make(2 * PIECE, PIECE + 12345, PIECE + 12346);
    hash_of(file, hash);
    make(2 * PIECE, PIECE + 12346, PIECE + 12345);
    hash_of(file, other);
    assert_memory_not_equal(hash, other, sizeof hash);
}

static void put(const char *path, const char *text) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

/* Puts a hash of 0xee into the remembered file, with its check over the key, its name. Returns its
 * text. */
static const char *forge(void) {
    static char text[4 * KVC_SHA256_BYTES + 1];
    uint8_t both[2 * KVC_SHA256_BYTES], check[KVC_SHA256_BYTES];
    const char *name = strrchr(remembered, '/') + 1;
    for (size_t i = 0; i < KVC_SHA256_BYTES; i++) {
        unsigned byte;
        assert_int_equal(sscanf(name + 2 * i, "%2x", &byte), 1);
        both[i] = (uint8_t)byte;
    }
    memset(both + KVC_SHA256_BYTES, 0xee, KVC_SHA256_BYTES);
    assert_int_equal(kvc_sha256(both, sizeof both, check, NULL), 0);
    kvc_hex(both + KVC_SHA256_BYTES, KVC_SHA256_BYTES, text);
    kvc_hex(check, sizeof check, text + 2 * KVC_SHA256_BYTES);
    put(remembered, text);
    return text;
}

static void check_hash(const uint8_t *due) {
    uint8_t hash[KVC_SHA256_BYTES];
    hash_of(file, hash);
    assert_memory_equal(hash, due, sizeof hash);
}

static void hashes_are_remembered(void **state) {
    (void)state;
    uint8_t due[KVC_SHA256_BYTES], ee[KVC_SHA256_BYTES];
    char text[600], old[sizeof remembered];
    struct stat st;
    memset(ee, 0xee, sizeof ee);
    make(LARGE, 5, LARGE - 7);
    hash_plainly(due);
    check_hash(due);
    assert_int_equal(find_remembered(), 0); /* the file may be changed within the same tick */
    sleep(3);
    check_hash(due);
    assert_int_equal(find_remembered(), 1);
    /* what is remembered is taken, as this shows; nothing but the whole of it is */
    for (int i = 0; i < 7; i++) {
        strcpy(text, forge());
        check_hash(ee);
        if (i == 0) text[30] = '\0';
        if (i == 1) text[0] = 'x'; /* no digit */
        if (i == 2) text[7] = 'd';
        if (i == 3) text[100] = (char)(text[100] == '0' ? '1' : '0');
        if (i == 4) strcat(text, "0");
        if (i == 5) text[0] = '\0';
        if (i == 6) memset(text, '0', sizeof text - 1), text[sizeof text - 1] = '\0';
        put(remembered, text);
        check_hash(due);
        check_hash(due);
    }
    /* something else in the place of the file, which must not be waited for */
    assert_int_equal(unlink(remembered), 0);
    assert_int_equal(mkfifo(remembered, 0600), 0);
    alarm(60);
    check_hash(due);
    alarm(0);
    assert_int_equal(lstat(remembered, &st), 0);
    assert_true(S_ISREG(st.st_mode));
    assert_int_equal(unlink(remembered), 0);
    assert_int_equal(mkdir(remembered, 0700), 0);
    check_hash(due);
    assert_int_equal(find_remembered(), 1); /* no temporary file is left */
    assert_int_equal(rmdir(remembered), 0);
    assert_int_equal(symlink(remembered, remembered), 0);
    check_hash(due);
    forge();
    check_hash(ee);
    /* a change of one byte, with the old time of modification */
    assert_int_equal(stat(file, &st), 0);
    snprintf(old, sizeof old, "%s", remembered);
    const int fd = open(file, O_WRONLY);
    assert_int_equal(pwrite(fd, "c", 1, 1000), 1);
    const struct timespec times[2] = {st.st_atim, st.st_mtim};
    assert_int_equal(futimens(fd, times), 0);
    close(fd);
    hash_plainly(due);
    check_hash(due);
    assert_int_equal(unlink(old), 0);
}

/* The file at the path is another than the one that is open: its hash is neither taken nor
 * remembered. */
static void replaced_files_are_hashed(void **state) {
    (void)state;
    uint8_t due[KVC_SHA256_BYTES], other[KVC_SHA256_BYTES], hash[KVC_SHA256_BYTES];
    char was[400];
    struct kvc_input in;
    struct kvc_error e;
    snprintf(was, sizeof was, "%s.was", file);
    make(LARGE, 7, 8);
    hash_plainly(due);
    assert_int_equal(rename(file, was), 0);
    make(LARGE, 8, 7);
    hash_plainly(other);
    assert_int_equal(kvc_input_open(&in, was, &e), 0);
    assert_int_equal(rename(file, was), 0);
    sleep(3);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kvc_file_hash(&in, hash, &e), 0);
        assert_memory_equal(hash, due, sizeof hash);
        assert_int_equal(find_remembered(), i); /* of the new file alone */
        hash_of(was, hash);
        assert_memory_equal(hash, other, sizeof hash);
    }
    kvc_input_close(&in);
    assert_int_equal(unlink(was), 0);
    assert_int_equal(unlink(remembered), 0);
}

/* No folder to remember in, or no right to: the hash comes all the same. */
static void remembering_is_not_needed(void **state) {
    (void)state;
    uint8_t due[KVC_SHA256_BYTES];
    char absent[400];
    const char *home = getenv("HOME");
    char *was = home ? strdup(home) : NULL;
    make(LARGE, 1, 2);
    hash_plainly(due);
    sleep(3);
    snprintf(absent, sizeof absent, "%s/absent", folder);
    setenv("HOME", "/dev/null", 1);
    for (int i = 0; i < 5; i++) {
        if (i == 3) unsetenv("XDG_CACHE_HOME"), setenv("HOME", absent, 1);
        if (i == 4) setenv("HOME", "/dev/full", 1);
        if (i == 0) setenv("XDG_CACHE_HOME", "/dev/null", 1);
        if (i == 1) setenv("XDG_CACHE_HOME", "relative", 1); /* counts as not set */
        if (i == 2) unsetenv("XDG_CACHE_HOME"), unsetenv("HOME");
        check_hash(due);
    }
    assert_int_equal(access("relative", F_OK), -1);
    assert_int_equal(access(absent, F_OK), -1); /* a home is not made */
    if (was) setenv("HOME", was, 1);
    free(was);
    setenv("XDG_CACHE_HOME", cache, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(pieces_are_hashed),
                                       cmocka_unit_test(every_byte_counts),
                                       cmocka_unit_test(hashes_are_remembered),
                                       cmocka_unit_test(replaced_files_are_hashed),
                                       cmocka_unit_test(remembering_is_not_needed)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
