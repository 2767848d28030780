/* test_profile_folders.c: where profiles stay to be had: the folders of the environment, what lies
 * in them, and the command that puts a profile there. Not for choosing one (test_fit.c). */
#include "formats/api/kvc.h"
#include "formats/model/profile_folders.h"
#include "profile_support.h"
#include "temp_folder.h"

#include <fcntl.h>

static uint8_t hash[KVC_SHA256_BYTES];
static char by_hash[80]; /* HASH.kvcp */
static uint8_t *bytes;
static size_t n_bytes;

/* --- folders --- */

/* Adds a folder to a list, with what it is shown as where this is another text. */
static int list(void *state, const char *path, const char *shown) {
    char *text = state;
    const size_t used = strlen(text);
    snprintf(text + used, 1000 - used, "%s%s%s%s%s", used ? " " : "", path,
             strcmp(path, shown) != 0 ? "(" : "", strcmp(path, shown) != 0 ? shown : "",
             strcmp(path, shown) != 0 ? ")" : "");
    return 0;
}

static void set(const char *name, const char *value) {
    if (value) setenv(name, value, 1);
    else unsetenv(name);
}

static void folders_of_the_environment(void **state) {
    (void)state;
    static const struct {
        const char *path, *data, *home;         /* of the environment */
        const struct kvc_profile_places places; /* as the caller has them */
        const char *folders;                    /* "@": those of the installation */
    } cases[] = {
        {NULL, NULL, "/h", {0}, "/h/.local/share/kvc/profiles(~/.local/share/kvc/profiles) @"},
        {NULL, "/d", "/h", {0}, "/d/kvc/profiles($XDG_DATA_HOME/kvc/profiles) @"},
        {NULL, "d", "/h", {0}, "/h/.local/share/kvc/profiles(~/.local/share/kvc/profiles) @"},
        {NULL, "", "/h", {0}, "/h/.local/share/kvc/profiles(~/.local/share/kvc/profiles) @"},
        {NULL, NULL, NULL, {0}, "@"},
        {NULL, NULL, "", {0}, "@"},
        {NULL, NULL, "h", {0}, "@"},
        {"a", NULL, NULL, {0}, "a @"},
        {":a::b:", "/d:e", NULL, {0}, "a b /d:e/kvc/profiles($XDG_DATA_HOME/kvc/profiles) @"},
        {"", NULL, NULL, {0}, "@"},
        {"none", NULL, "/h", {0}, ""},
        {"a:none:b", NULL, "/h", {0}, "a"},
        {"nones:none", NULL, "/h", {0}, "nones"},
        {"a", NULL, "/h", {.folder = "of file", .folders = "x:y"}, "of file x y"},
        {"a", NULL, "/h", {.folder = "of file", .folders = ""}, "of file"},
        {"a", NULL, "/h", {.folders = "x:none:y"}, "x"},
        {"none", NULL, "/h", {.folder = "of file"}, "of file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[1000] = "", *installed;
        set("KVC_PROFILE_PATH", cases[i].path);
        set("XDG_DATA_HOME", cases[i].data);
        set("HOME", cases[i].home);
        assert_int_equal(kvc_profile_folders(&cases[i].places, list, text), 0);
        if (strchr(cases[i].folders, '@')) {
            installed = strrchr(text, ' ');
            installed = installed ? installed + 1 : text;
            assert_non_null(strstr(installed, "/kvc/profiles"));
            assert_int_equal(*installed, '/');
            strcpy(installed, "@");
        }
        if (strcmp(text, cases[i].folders) != 0) fail_msg("case %zu: %s", i, text);
    }
}

/* Too long a path is nowhere, and harms nothing. */
static void long_paths(void **state) {
    (void)state;
    const struct kvc_profile_places none = {0};
    char text[1000] = "", command[512], *path = calloc(1, 9000), room[KVC_PROFILE_PATH];
    memset(path, '/', 8999);
    assert_null(kvc_profile_folder_of(path, room));
    for (int i = 0; i < 2; i++) { /* the second fits alone, but no file in it */
        setenv("XDG_DATA_HOME", path, 1);
        setenv("KVC_PROFILE_PATH", path, 1);
        assert_null(kvc_profile_find(hash, "", &none, NULL));
        path[4070] = 'x';
        path[4071] = '\0';
    }
    memset(path, '/', 8999);
    setenv("XDG_DATA_HOME", path, 1);
    kvc_profile_keep_command(hash, "p", command, sizeof command);
    assert_string_equal(command, "");
    set("KVC_PROFILE_PATH", NULL);
    assert_int_equal(kvc_profile_folders(&none, list, text), 0);
    assert_null(strchr(text, ' ')); /* that of the installation alone */
    free(path);
}

static void folders_of_files(void **state) {
    (void)state;
    char room[KVC_PROFILE_PATH];
    assert_string_equal(kvc_profile_folder_of("a.kvc", room), ".");
    assert_string_equal(kvc_profile_folder_of("b/a.kvc", room), "b");
    assert_string_equal(kvc_profile_folder_of("/c/b/a.kvc", room), "/c/b");
    assert_string_equal(kvc_profile_folder_of("/a.kvc", room), "/");
    assert_null(kvc_profile_folder_of(NULL, room));
}

/* --- files --- */

static int is_found(void) {
    const struct kvc_profile_places places = {.given = NULL};
    struct kvc_error e = {.code = KVC_OK};
    struct kvc_profile *p = kvc_profile_find(hash, "Tiny", &places, &e);
    if (p) assert_memory_equal(kvc_profile_sha256(p), hash, sizeof hash);
    else assert_int_equal(e.need, KVC_NEED_PROFILE);
    kvc_profile_free(p);
    return p != NULL;
}

static void files_of_a_folder(void **state) {
    (void)state;
    char other[200];
    set("KVC_PROFILE_PATH", NULL);
    setenv("HOME", folder, 1);
    setenv("XDG_DATA_HOME", folder, 1);
    assert_false(is_found()); /* there is no folder yet */
    assert_int_equal(mkdir(in_folder("kvc"), 0700), 0);
    put_file("kvc/profiles", bytes, n_bytes); /* a file in the folder's place */
    assert_false(is_found());
    drop_file("kvc/profiles");
    assert_int_equal(mkfifo(in_folder("kvc/profiles"), 0600), 0);
    assert_false(is_found());
    drop_file("kvc/profiles");
    assert_int_equal(symlink("profiles", in_folder("kvc/profiles")), 0);
    assert_false(is_found());
    drop_file("kvc/profiles");
    assert_int_equal(mkdir(in_folder("kvc/profiles"), 0700), 0);
    assert_false(is_found());

    snprintf(other, sizeof other, "kvc/profiles/%s", by_hash);
    put_file(other, bytes, n_bytes);
    assert_true(is_found());
    if (getuid()) { /* root reads all */
        assert_int_equal(chmod(in_folder("kvc/profiles"), 0), 0);
        assert_false(is_found());
        assert_int_equal(chmod(in_folder("kvc/profiles"), 0700), 0);
        assert_int_equal(chmod(in_folder(other), 0), 0);
        assert_false(is_found());
    }
    drop_file(other);
    /* another name, and the name of the hash for what is not the profile: each is harmless */
    put_file("kvc/profiles/a.kvcp", bytes, n_bytes);
    assert_true(is_found());
    put_file(other, bytes, n_bytes - 1);
    assert_true(is_found());
    drop_file(other);
    put_file(other, "", 0);
    assert_true(is_found());
    drop_file(other);
    assert_false(kvc_profile_is_file("/proc/self/status")); /* of size 0: reading may wait */
    assert_int_equal(symlink("/dev/zero", in_folder(other)), 0);
    assert_true(is_found());
    drop_file(other);
    put_file(other, "large", 5); /* for a profile, in a file that takes no room */
    assert_int_equal(truncate(in_folder(other), (off_t)KVC_PROFILE_BYTES + 1), 0);
    assert_false(kvc_profile_is_file(in_folder(other)));
    assert_true(is_found());
    drop_file(other);
    assert_int_equal(mkfifo(in_folder(other), 0600), 0);
    assert_true(is_found());
    drop_file(other);
    assert_int_equal(symlink("loop.kvcp", in_folder("kvc/profiles/loop.kvcp")), 0);
    assert_int_equal(symlink("loop.kvcp", in_folder(other)), 0);
    assert_true(is_found());
    drop_file(other);
    assert_int_equal(symlink("a.kvcp", in_folder(other)), 0);
    assert_true(is_found());
    drop_file("kvc/profiles/a.kvcp");
    assert_false(is_found());
    assert_int_equal(symlink("../../elsewhere", in_folder("kvc/profiles/b.kvcp")), 0);
    put_file("elsewhere", bytes, n_bytes); /* a link to it serves */
    assert_true(is_found());
}

/* A file that is called by the hash is found before others are read. */
static void the_name_is_tried_first(void **state) {
    (void)state;
    char name[200];
    set("KVC_PROFILE_PATH", NULL);
    setenv("XDG_DATA_HOME", folder, 1);
    assert_int_equal(mkdir(in_folder("kvc"), 0700), 0);
    assert_int_equal(mkdir(in_folder("kvc/profiles"), 0700), 0);
    assert_int_equal(mkdir(in_folder("first"), 0700), 0);
    setenv("KVC_PROFILE_PATH", in_folder("first"), 1);
    put_file("first/a.kvcp", bytes, n_bytes);
    snprintf(name, sizeof name, "kvc/profiles/%s", by_hash);
    put_file(name, bytes, n_bytes);
    const struct timespec old[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    struct stat st;
    assert_int_equal(utimensat(AT_FDCWD, in_folder("first/a.kvcp"), old, 0), 0);
    assert_true(is_found());
    assert_int_equal(stat(in_folder("first/a.kvcp"), &st), 0);
    assert_int_equal(st.st_atim.tv_sec, 1); /* not read */
}

/* The folder of new profiles: one that readers search. */
static void the_folder_of_new_profiles(void **state) {
    (void)state;
    static const struct {
        const char *path, *data, *home, *want; /* "": there is none */
    } cases[] = {
        {NULL, NULL, "/h", "/h/.local/share/kvc/profiles"},
        {NULL, "/d", "/h", "/d/kvc/profiles"},
        {NULL, "relative", "/h", "/h/.local/share/kvc/profiles"},
        {NULL, NULL, NULL, ""}, /* not the installed one */
        {"a:b", NULL, "/h", "/h/.local/share/kvc/profiles"},
        {"a:b", NULL, NULL, "a"},
        {"a:none:b", NULL, "/h", "a"},
        {"::a:none", NULL, "/h", "a"},
        {"none", NULL, "/h", ""},
        {"none:a", NULL, "/h", ""},
        {"", NULL, "/h", "/h/.local/share/kvc/profiles"},
    };
    char own[KVC_PROFILE_PATH], path[64];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        set("KVC_PROFILE_PATH", cases[i].path);
        set("XDG_DATA_HOME", cases[i].data);
        set("HOME", cases[i].home);
        assert_int_equal(kvc_profile_own_folder(own), *cases[i].want != 0);
        assert_string_equal(own, cases[i].want);
        const size_t n = strlen(cases[i].want);
        assert_int_equal(kvc_shared_profile_folder(path, sizeof path), n != 0);
        assert_string_equal(path, cases[i].want);
        assert_int_equal(kvc_shared_profile_folder(path, n), 0); /* no room for its end */
    }
}

/* --- messages --- */

static void what_a_reader_is_told(void **state) {
    (void)state;
    const struct kvc_profile_places beside = {.folder = "there"}, own = {.folders = "x:y"},
                                    nowhere = {.folders = ""};
    struct kvc_error e;
    char want[600];
    setenv("KVC_PROFILE_PATH", "a:b", 1);
    setenv("HOME", "/h", 1);
    set("XDG_DATA_HOME", NULL);
    assert_null(kvc_profile_find(hash, "Tiny", &beside, &e));
    snprintf(want, sizeof want, "the profile of Tiny, sha256 %.64s, ", by_hash);
    assert_non_null(strstr(e.message, want));
    assert_non_null(strstr(e.message, "(looked in there, a, b, ~/.local/share/kvc/profiles, /"));
    snprintf(want, sizeof want, "install -Dm644 FILE ~/.local/share/kvc/profiles/%s", by_hash);
    assert_non_null(strstr(e.message, want));
    set("HOME", NULL);
    assert_null(kvc_profile_find(hash, "Tiny", &beside, &e));
    assert_null(strstr(e.message, "install"));
    setenv("HOME", "/h", 1);
    setenv("KVC_PROFILE_PATH", "a:none", 1);
    assert_null(kvc_profile_find(hash, "Tiny", &beside, &e));
    assert_non_null(strstr(e.message, "(looked in there, a)"));
    assert_null(strstr(e.message, "install"));
    setenv("KVC_PROFILE_PATH", "a:b", 1);
    setenv("HOME", "/h", 1); /* folders of the caller's own: the user's is not searched */
    assert_null(kvc_profile_find(hash, "", &own, &e));
    assert_non_null(strstr(e.message, "a model without a name"));
    assert_non_null(strstr(e.message, "(looked in x, y)"));
    assert_null(strstr(e.message, "install"));
    assert_null(kvc_profile_find(hash, "", &nowhere, &e));
    assert_null(strstr(e.message, "looked"));
}

/* Runs the command with the words of a file's name as the shell splits them. */
static void commands(void **state) {
    (void)state;
    static const char *const names[] = {"a.kvcp",    "-a",     "a b",   "it's",  "''",
                                        "$HOME `x`", "a\nb\\", "a;b#c", "*?[a]~"};
    char command[800], shell[1200], kept[200];
    setenv("XDG_DATA_HOME", folder, 1);
    snprintf(kept, sizeof kept, "kvc/profiles/%s", by_hash);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        put_file(names[i], bytes, n_bytes);
        kvc_profile_keep_command(hash, names[i], command, sizeof command);
        snprintf(shell, sizeof shell, "cd '%s' && %s", folder, command);
        assert_false(is_found());
        if (system(shell)) fail_msg("%s", command);
        assert_true(is_found());
        drop_file(kept);
        for (size_t n = 1; n < strlen(command) + 1; n += 7) { /* whole, or nothing */
            char few[800];
            kvc_profile_keep_command(hash, names[i], few, n);
            assert_string_equal(few, "");
        }
    }
}

static int make_profile_file(void **state) {
    struct maker m = make_good();
    struct kvc_error e;
    (void)state;
    bytes = render(&m, &n_bytes);
    free_maker(&m);
    if (kvc_sha256(bytes, n_bytes, hash, &e)) return -1;
    kvc_hex(hash, sizeof hash, by_hash);
    strcat(by_hash, ".kvcp");
    return 0;
}

static int free_profile_file(void **state) {
    (void)state;
    free(bytes);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_of_the_environment),
        cmocka_unit_test(long_paths),
        cmocka_unit_test(folders_of_files),
        cmocka_unit_test_setup_teardown(files_of_a_folder, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(the_name_is_tried_first, make_folder, remove_folder),
        cmocka_unit_test(the_folder_of_new_profiles),
        cmocka_unit_test(what_a_reader_is_told),
        cmocka_unit_test_setup_teardown(commands, make_folder, remove_folder),
    };
    return cmocka_run_group_tests_name("profile_folders", tests, make_profile_file,
                                       free_profile_file);
}
