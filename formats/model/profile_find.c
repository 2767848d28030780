/* profile_find.c: where profile files are looked for. Not for what is in them (profile.c). */
#include "formats/model/profile.h"

#include "formats/io/input.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Opens the profile at `path` if it has this hash. NULL otherwise, without a message. */
static struct kvc_profile *try_file(const char *path, const uint8_t sha256[KVC_SHA256_BYTES]) {
    struct kvc_input in;
    uint8_t found[KVC_SHA256_BYTES];
    struct kvc_profile *p = NULL;
    if (kvc_input_open(&in, path, NULL)) return NULL;
    if (in.size <= KVC_PROFILE_BYTES && !kvc_input_pin(&in, 0, in.size, NULL) &&
        !kvc_sha256(in.data, (size_t)in.size, found, NULL) &&
        memcmp(found, sha256, sizeof found) == 0)
        p = kvc_profile_open_memory(in.data, (size_t)in.size, NULL);
    kvc_input_close(&in);
    return p;
}

static const char *profile_find_name_of(const char *model) {
    return *model ? model : "a model without a name";
}

/* Opens the profile that the user named. NULL where it has another hash or cannot be read; `wrong`
 * gets the reason. */
static struct kvc_profile *try_given(const char *path, const uint8_t sha256[KVC_SHA256_BYTES],
                                     char *wrong, size_t size) {
    struct kvc_error e;
    struct kvc_profile *p = kvc_profile_open(path, &e);
    if (p && memcmp(kvc_profile_sha256(p), sha256, KVC_SHA256_BYTES) == 0) return p;
    if (p)
        snprintf(wrong, size, "; %.200s is another: the profile of %.200s", path,
                 profile_find_name_of(kvc_profile_model(p)));
    else snprintf(wrong, size, "; %.400s", e.message);
    kvc_profile_free(p);
    return NULL;
}

static struct kvc_profile *try_folder(const char *folder, size_t length,
                                      const uint8_t sha256[KVC_SHA256_BYTES]) {
    char path[4096];
    struct kvc_profile *p = NULL;
    if (!length || length + 260 > sizeof path) return NULL;
    memcpy(path, folder, length);
    path[length] = '\0';
    DIR *d = opendir(path);
    for (const struct dirent *entry; d && !p && (entry = readdir(d));) {
        const size_t n = strlen(entry->d_name), suffix = strlen(KVC_PROFILE_SUFFIX);
        if (n <= suffix || strcmp(entry->d_name + n - suffix, KVC_PROFILE_SUFFIX) != 0) continue;
        snprintf(path + length, sizeof path - length, "/%s", entry->d_name);
        struct stat st;
        /* a FIFO would wait for its writer */
        if (stat(path, &st) == 0 && S_ISREG(st.st_mode)) p = try_file(path, sha256);
    }
    if (d) closedir(d);
    return p;
}

struct kvc_profile *kvc_profile_find(const uint8_t sha256[KVC_SHA256_BYTES], const char *model,
                                     const struct kvc_profile_places *places, struct kvc_error *e) {
    const char *rest = places->folders;
    char wrong[512] = "";
    if (places->open && memcmp(kvc_profile_sha256(places->open), sha256, KVC_SHA256_BYTES) == 0)
        return kvc_profile_hold(places->open);
    struct kvc_profile *p = places->given ? try_given(places->given, sha256, wrong, sizeof wrong)
                                          : NULL;
    if (!p && places->folder) p = try_folder(places->folder, strlen(places->folder), sha256);
    while (!p && rest && *rest) {
        const size_t n = strcspn(rest, ":");
        p = try_folder(rest, n, sha256);
        rest += n + (rest[n] == ':');
    }
    if (p) return p;
    char hash[2 * KVC_SHA256_BYTES + 1];
    kvc_hex(sha256, KVC_SHA256_BYTES, hash);
    kvc_fail_need(e, KVC_ERR_MODEL, KVC_NEED_PROFILE,
                  "packed with the profile of %s, sha256 %s, which was found nowhere%s",
                  profile_find_name_of(model), hash, wrong);
    return NULL;
}
