/* test_output.c: output files (cli/output.c), without names while they are written and with
 * temporary ones, as file systems have it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/cli.h"
#include "codecs/error.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef int open_fn(struct cli_output *o, const char *path, int force, unsigned mode,
                    struct kvc_error *e);

/* A private directory, in which the test runs. */
static int enter(void **state) {
    char *dir = strdup("/tmp/kvc-output-XXXXXX");
    *state = dir;
    return !dir || !mkdtemp(dir) || chdir(dir);
}

static unsigned count_files(void) {
    unsigned n = 0;
    DIR *d = opendir(".");
    assert_non_null(d);
    for (const struct dirent *x; (x = readdir(d));)
        n += strcmp(x->d_name, ".") != 0 && strcmp(x->d_name, "..") != 0;
    closedir(d);
    return n;
}

static int leave(void **state) {
    int status = unlink("file") || unlink("other") || count_files() || chdir("/") || rmdir(*state);
    free(*state);
    return status;
}

static void expect_file(const char *name, const char *want) {
    char text[64] = "";
    FILE *f = fopen(name, "r");
    assert_non_null(f);
    assert_non_null(fgets(text, sizeof text, f));
    fclose(f);
    assert_string_equal(text, want);
}

static void write_text(struct cli_output *o, open_fn *open_output, const char *path, int force,
                       const char *text) {
    struct kvc_error e;
    assert_int_equal(open_output(o, path, force, 0640, &e), 0);
    /* in any order */
    assert_ptr_equal(cli_output_any_order(o), cli_output_put);
    assert_int_equal(cli_output_put(o, 1, text + 1, strlen(text) - 1), 0);
    assert_int_equal(cli_output_write(o, text, 1), 0);
    assert_int_equal(o->offset, 1);
}

static void run(open_fn *open_output, unsigned names) {
    const struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1100000000}};
    struct kvc_error e;
    struct cli_output o;
    struct stat st;
    umask(022);
    /* given up: nothing is left */
    write_text(&o, open_output, "file", 0, "half");
    assert_int_equal(count_files(), names);
    cli_output_abandon(&o);
    cli_output_abandon(&o);
    assert_int_equal(count_files(), 0);
    /* a signal: nothing is left */
    write_text(&o, open_output, "file", 0, "half");
    cli_output_remove_all();
    assert_int_equal(count_files(), 0);
    cli_output_abandon(&o);
    /* completed, with mode and times */
    write_text(&o, open_output, "file", 0, "first");
    o.times = times;
    assert_int_equal(cli_output_commit(&o, &e), 0);
    cli_output_abandon(&o);
    expect_file("file", "first");
    assert_int_equal(stat("file", &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_int_equal(st.st_mtim.tv_sec, 1100000000);
    assert_int_equal(count_files(), 1);
    /* refused where one is there, also where it came meanwhile */
    assert_int_equal(open_output(&o, "file", 0, 0666, &e), -1);
    write_text(&o, open_output, "other", 0, "late");
    assert_int_equal(link("file", "other"), 0);
    assert_int_equal(cli_output_commit(&o, &e), -1);
    assert_int_equal(e.code, KVC_ERR_USAGE);
    cli_output_abandon(&o);
    expect_file("other", "first");
    assert_int_equal(count_files(), 2);
    /* replaced by force, which leaves what else bears the old file's name */
    write_text(&o, open_output, "file", 1, "second");
    assert_int_equal(count_files(), 2 + names);
    assert_int_equal(cli_output_commit(&o, &e), 0);
    cli_output_abandon(&o);
    expect_file("file", "second");
    expect_file("other", "first");
    assert_int_equal(count_files(), 2);
}

/* What fsync() of a folder says, after so many good ones. */
static int folder_error, good_before;
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd) {
    struct stat st;
    if (!folder_error || fstat(fd, &st) || !S_ISDIR(st.st_mode) || good_before-- > 0)
        return __real_fsync(fd);
    errno = folder_error;
    return -1;
}

/* The name alone is not durable: the output stays, also a folder, and the message says so. */
static void name_not_durable(void **state) {
    struct kvc_error e;
    struct cli_output o;
    struct cli_folder f;
    (void)state;
    write_text(&o, cli_output_open, "file", 0, "first");
    assert_int_equal(cli_output_commit(&o, &e), 0);
    folder_error = EIO;
    for (int i = 0; i < 2; i++) { /* it replaces, and is new */
        const char *name = i ? "other" : "file";
        write_text(&o, i ? cli_output_open_named : cli_output_open, name, 1, "second");
        assert_int_equal(cli_output_end(&o, 0, &e), -1);
        assert_int_equal(e.code, KVC_ERR_IO);
        assert_non_null(strstr(e.message, "is complete"));
        expect_file(name, "second");
        assert_int_equal(count_files(), 1 + i);
    }
    folder_error = EINVAL; /* a file system that has no such call for folders */
    write_text(&o, cli_output_open, "file", 1, "third");
    assert_int_equal(cli_output_commit(&o, &e), 0);
    assert_int_equal(cli_folder_open(&f, "folder/", &e), 0);
    folder_error = EIO; /* before it has its name */
    assert_int_equal(cli_folder_commit(&f, &e), -1);
    assert_int_equal(count_files(), 2);
    assert_int_equal(cli_folder_open(&f, "folder/", &e), 0);
    good_before = 1;
    assert_int_equal(cli_folder_commit(&f, &e), -1);
    assert_non_null(strstr(e.message, "is complete"));
    assert_int_equal(rmdir("folder"), 0);
    folder_error = 0;
}

static void without_names(void **state) {
    (void)state;
    int fd = open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) { /* then cli_output_open() must do with names */
        run(cli_output_open, 1);
        return;
    }
    close(fd);
    run(cli_output_open, 0);
}

static void with_names(void **state) {
    (void)state;
    run(cli_output_open_named, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(without_names, enter, leave),
        cmocka_unit_test_setup_teardown(with_names, enter, leave),
        cmocka_unit_test_setup_teardown(name_not_durable, enter, leave),
    };
    return cmocka_run_group_tests_name("output", tests, NULL, NULL);
}
