/* profile_folders.c: the folders where profiles stay to be had. Not for what is in the files
 * (profile.c). */
#include "formats/model/profile_folders.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#ifndef KVC_PROFILES
#define KVC_PROFILES "/usr/local/share/kvc/profiles"
#endif
#define OF_USER "kvc/profiles"

/* --- folders --- */

/* Finds the user's folder; `shown` is text that the shell reads as its path. Returns 0 where the
 * environment names no home. Relative paths name none (XDG Base Directory Specification). */
static int user_folder(char path[KVC_PROFILE_PATH], const char **shown) {
    const char *data = secure_getenv("XDG_DATA_HOME"), *home = secure_getenv("HOME");
    const int of_data = data && *data == '/';
    if (!of_data && !(home && *home == '/')) return 0;
    *shown = of_data ? "$XDG_DATA_HOME/" OF_USER : "~/.local/share/" OF_USER;
    return snprintf(path, KVC_PROFILE_PATH, "%s/%s", of_data ? data : home,
                    of_data ? OF_USER : ".local/share/" OF_USER) < KVC_PROFILE_PATH;
}

/* Visits folders separated by colons. *none becomes 1 at a "none", which ends them. */
static int visit_list(const char *list, int *none, kvc_profile_visit_folder *visit, void *state) {
    char path[KVC_PROFILE_PATH];
    int status = 0;
    for (size_t n; *list && !status; list += n + (list[n] == ':')) {
        n = strcspn(list, ":");
        if (!n || n >= sizeof path) continue;
        memcpy(path, list, n);
        path[n] = '\0';
        if ((*none = strcmp(path, "none") == 0)) return 0;
        status = visit(state, path, path);
    }
    return status;
}

int kvc_profile_folders(const struct kvc_profile_places *places, kvc_profile_visit_folder *visit,
                        void *state) {
    char path[KVC_PROFILE_PATH];
    const char *shown,
        *first = places->folders ? places->folders : secure_getenv("KVC_PROFILE_PATH");
    int none = 0, status = places->folder ? visit(state, places->folder, places->folder) : 0;
    if (!status && first) status = visit_list(first, &none, visit, state);
    if (status || none || places->folders) return status;
    if (user_folder(path, &shown)) status = visit(state, path, shown);
    return status ? status : visit(state, KVC_PROFILES, KVC_PROFILES);
}

/* Keeps the first folder of a list. Its room is as large as those of the list may be. */
static int keep_first(void *state, const char *folder, const char *shown) {
    char *first = state;
    (void)shown;
    if (!*first) strcpy(first, folder);
    return 0;
}

int kvc_profile_own_folder(char folder[KVC_PROFILE_PATH]) {
    const char *list = secure_getenv("KVC_PROFILE_PATH"), *shown;
    char first[KVC_PROFILE_PATH] = "";
    int none = 0;
    if (list) visit_list(list, &none, keep_first, first);
    if (!none && user_folder(folder, &shown)) return 1;
    strcpy(folder, first);
    return *first != '\0';
}

const char *kvc_profile_folder_of(const char *path, char folder[KVC_PROFILE_PATH]) {
    const char *slash = path ? strrchr(path, '/') : NULL;
    const size_t n = slash ? (size_t)(slash - path) + (slash == path) : 1;
    if (!path || n >= KVC_PROFILE_PATH) return NULL;
    memcpy(folder, slash ? path : ".", n);
    folder[n] = '\0';
    return folder;
}

/* --- files --- */

int kvc_profile_is_file(const char *path) {
    struct stat st;
    /* reading a FIFO would wait for its writer, and files of /proc, which have size 0, may wait */
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 &&
           (uint64_t)st.st_size <= KVC_PROFILE_BYTES;
}

int kvc_profile_files(const char *folder, kvc_profile_visit *visit, void *state) {
    const size_t suffix = strlen(KVC_PROFILE_SUFFIX);
    char path[KVC_PROFILE_PATH];
    int status = 0;
    DIR *d = opendir(folder);
    for (const struct dirent *entry; d && !status && (entry = readdir(d));) {
        const size_t n = strlen(entry->d_name);
        if (n <= suffix || strcmp(entry->d_name + n - suffix, KVC_PROFILE_SUFFIX) != 0 ||
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) >= KVC_PROFILE_PATH)
            continue;
        if (kvc_profile_is_file(path)) status = visit(state, path);
    }
    if (d) closedir(d);
    return status;
}

/* --- the command --- */

/* Writes a word of the shell. Returns -1 if it does not fit. */
static int put_word(char *text, size_t size, const char *word) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                "_-+=./,:@%";
    const int quoted = word[strspn(word, plain)] != '\0';
    size_t n = 0;
    if (size < 8) return -1;
    if (quoted) text[n++] = '\'';
    for (; *word; word++) {
        if (n + 8 > size) return -1;
        if (*word == '\'') n = (size_t)(stpcpy(text + n, "'\"'\"") - text); /* '"'"' */
        text[n++] = *word;
    }
    if (quoted) text[n++] = '\'';
    text[n] = '\0';
    return 0;
}

/* Takes how the user's folder is shown, the only one that is shown as another text. */
static int take_user(void *state, const char *folder, const char *shown) {
    const char **user = state;
    if (folder != shown) *user = shown;
    return folder != shown;
}

void kvc_profile_keep_command(const uint8_t sha256[KVC_SHA256_BYTES], const char *file, char *text,
                              size_t size) {
    const struct kvc_profile_places places = {.folders = NULL};
    char word[KVC_PROFILE_PATH], hash[2 * KVC_SHA256_BYTES + 1];
    const char *shown = NULL;
    *text = '\0';
    if (!kvc_profile_folders(&places, take_user, &shown) || put_word(word, sizeof word, file))
        return;
    kvc_hex(sha256, KVC_SHA256_BYTES, hash);
    const int n = snprintf(text, size, "install -Dm644 %s%s %s/%s" KVC_PROFILE_SUFFIX,
                           *file == '-' ? "./" : "", word, shown, hash);
    if (n < 0 || (size_t)n >= size) *text = '\0';
}
