/* file_list.c: collects the inputs of a tool from operands, lists of names and folders. Not for
 * opening them (cli.c). */
#include "cli/file_list.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const struct cli_option cli_files_options[] = {
    {"recursive", 0, NULL, "of a folder: each .kvc below it",
     CLI_FLAG(struct cli_files, recursive)},
    {"files-from", 0, "LIST", "also the files that LIST names, one a line; - is standard input",
     CLI_TEXT(struct cli_files, from)},
    {"null", '0', NULL, "names in it end with a NUL byte, as of find -print0",
     CLI_FLAG(struct cli_files, null)},
    {.name = NULL},
};

/* Adds an input. Takes the path, which may be NULL. */
static int file_list_add(struct cli_files *f, char *path, size_t below) {
    char **paths = path && f->n < INT_MAX ? cli_room_for_one(f->path, (size_t)f->n, sizeof *paths)
                                          : NULL;
    if (paths) f->path = paths;
    size_t *belows = paths ? cli_room_for_one(f->below, (size_t)f->n, sizeof *belows) : NULL;
    if (belows) f->below = belows;
    if (!belows) {
        free(path);
        cli_warn("no memory for the names of files");
        return EXIT_TROUBLE;
    }
    f->path[f->n] = path;
    f->below[f->n++] = below;
    return 0;
}

static int is_wanted(const struct cli_files *f, const char *name) {
    const size_t n = strlen(name);
    for (int i = 0; i < 4 && f->suffix[i]; i++) {
        const size_t m = strlen(f->suffix[i]);
        if (n > m && strcmp(name + n - m, f->suffix[i]) == 0) return !f->others;
    }
    return f->others;
}

static int by_bytes(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_entry(const struct dirent *d) {
    return strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0;
}

static int add_folder(struct cli_files *f, const char *folder, size_t below);

/* Adds a file or what is below a folder, both found in a folder. Takes the path. */
static int add_found(struct cli_files *f, char *path, size_t below) {
    struct stat st;
    int status = 0;
    if (!path) return file_list_add(f, NULL, below);
    if (lstat(path, &st)) return file_list_add(f, path, below); /* opening it will say why */
    if (S_ISREG(st.st_mode) && is_wanted(f, path + below)) return file_list_add(f, path, below);
    if (S_ISDIR(st.st_mode)) status = add_folder(f, path, below);
    free(path);
    return status;
}

static int add_folder(struct cli_files *f, const char *folder, size_t below) {
    struct dirent **entry = NULL;
    const int n = scandir(folder, &entry, is_entry, by_bytes);
    const size_t length = strlen(folder);
    int status = n < 0 ? file_list_add(f, strdup(folder), below) : 0;
    for (int i = 0; i < n; i++) {
        char *path = NULL;
        if (!status && asprintf(&path, "%s%s%s", folder, folder[length - 1] == '/' ? "" : "/",
                                entry[i]->d_name) < 0)
            path = NULL;
        if (!status) status = add_found(f, path, below);
        free(entry[i]);
    }
    free(entry);
    return status;
}

static int add_named(struct cli_files *f, const char *name) {
    struct stat st;
    size_t n = strlen(name);
    const int is_folder = f->recursive && strcmp(name, "-") != 0 && stat(name, &st) == 0 &&
                          S_ISDIR(st.st_mode);
    if (is_folder) return add_folder(f, name, n + (name[n - 1] != '/'));
    while (n > 1 && name[n - 1] == '/') n--; /* the name of a folder follows the slash before it */
    while (n && name[n - 1] != '/') n--;
    return file_list_add(f, strdup(name), n);
}

/* Returns 1 for a line that ends in CR, where no file has that name. */
static int ends_in_cr(const struct cli_files *f, const char *line, size_t n) {
    struct stat st;
    return !f->null && line[n - 1] == '\r' && lstat(line, &st) != 0;
}

/* Reads the next name of --files-from and what ends it, into a string. Returns its length, -1 after
 * the last one or when reading failed; PATH_MAX: it is longer than a path can be. */
static int next_name(FILE *in, int last, char line[PATH_MAX + 1]) {
    int n = 0, c = 0;
    while (n < PATH_MAX && (c = getc(in)) != EOF && c != last) line[n++] = (char)c;
    line[n] = '\0';
    return c == EOF && (!n || ferror(in)) ? -1 : n;
}

/* Adds a name of n bytes of --files-from. The name "-" is that of a file. */
static int add_listed(struct cli_files *f, const char *line, size_t n) {
    if (strlen(line) != n) {
        cli_warn(
            "--files-from=%s: a name contains a NUL byte; -0 reads names that end in NUL bytes",
            f->from);
        return EXIT_TROUBLE;
    }
    if (n == PATH_MAX) {
        cli_warn("--files-from=%s: a name has more than %d bytes, as no file does", f->from,
                 PATH_MAX - 1);
        return EXIT_TROUBLE;
    }
    if (n && ends_in_cr(f, line, n)) {
        cli_warn("--files-from=%s: its lines end in CR LF, as programs of Windows write them, "
                 "and no file is named with a CR; "
                 "take the CRs out, for instance with dos2unix",
                 f->from);
        return EXIT_TROUBLE;
    }
    return n ? add_named(f, strcmp(line, "-") == 0 ? "./-" : line) : 0;
}

static int add_list(struct cli_files *f) {
    const int from_stdin = strcmp(f->from, "-") == 0;
    FILE *in = from_stdin ? stdin : fopen(f->from, "r");
    char line[PATH_MAX + 1];
    int n, status = 0;
    if (!in) {
        cli_warn("--files-from=%s: %s", f->from, strerror(errno));
        return EXIT_TROUBLE;
    }
    while (!status && (n = next_name(in, f->null ? '\0' : '\n', line)) >= 0)
        status = add_listed(f, line, (size_t)n);
    if (!status && ferror(in)) {
        cli_warn("--files-from=%s: %s", f->from, strerror(errno));
        status = EXIT_TROUBLE;
    }
    if (!from_stdin) fclose(in);
    return status;
}

int cli_files_collect(struct cli_files *f, int n, char **operand) {
    int status = 0, from_stdin = f->from && strcmp(f->from, "-") == 0;
    if (f->null && !f->from) return cli_usage("-0 needs --files-from=FILE");
    if (f->recursive && !f->from && !n) return cli_usage("--recursive needs a folder");
    for (int i = 0; i < n; i++)
        if (from_stdin && strcmp(operand[i], "-") == 0)
            return cli_usage("standard input can be read only once");
    f->named = f->from || f->recursive;
    for (int i = 0; i < n && !status; i++) status = add_named(f, operand[i]);
    return status || !f->from ? status : add_list(f);
}

void cli_files_free(struct cli_files *f) {
    for (int i = 0; i < f->n; i++) free(f->path[i]);
    free(f->path);
    free(f->below);
    f->path = NULL;
    f->below = NULL;
    f->n = 0;
}
