/* temp_folder.h: a folder of a test's own, and files in it. Not for what the files hold. */
#ifndef TEMP_FOLDER_H
#define TEMP_FOLDER_H

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[128];

static inline int remove_one(const char *path, const struct stat *st, int type, struct FTW *f) {
    (void)st, (void)type, (void)f;
    return remove(path);
}

/* Makes the folder in $TMPDIR, for the setup of a test. */
static inline int make_folder(void **state) {
    const char *tmp = getenv("TMPDIR");
    (void)state;
    snprintf(folder, sizeof folder, "%.90s/kvc-test-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

/* Removes the folder with all that is in it. */
static inline int remove_folder(void **state) {
    (void)state;
    return nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* The path of a file in the folder, good until the next call. */
static inline const char *in_folder(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static inline void put_file(const char *name, const void *data, size_t n) {
    FILE *f = fopen(in_folder(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline void drop_file(const char *name) {
    assert_int_equal(unlink(in_folder(name)), 0);
}

#endif
