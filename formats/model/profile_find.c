/* profile_find.c: finds a profile by its hash. Not for where profiles are looked for
 * (profile_folders.c), or for what is in them (profile.c). */
#include "formats/io/input.h"
#include "formats/model/profile_folders.h"

#include <stdio.h>
#include <string.h>

/* A search, and what it found. */
struct search {
    const uint8_t *sha256;
    char name[2 * KVC_SHA256_BYTES + sizeof KVC_PROFILE_SUFFIX]; /* of a file called by its hash */
    int by_name;
    struct kvc_profile *found;
};

/* Opens the profile at `path` if it has this hash. */
static int try_file(void *state, const char *path) {
    struct search *s = state;
    struct kvc_input in;
    uint8_t sha256[KVC_SHA256_BYTES];
    if (kvc_profile_open_input(&in, path, NULL)) return 0;
    if (in.size <= KVC_PROFILE_BYTES && !kvc_input_pin(&in, 0, in.size, NULL) &&
        !kvc_sha256(in.data, (size_t)in.size, sha256, NULL) &&
        memcmp(sha256, s->sha256, sizeof sha256) == 0)
        s->found = kvc_profile_open_memory(in.data, (size_t)in.size, NULL);
    kvc_input_close(&in);
    return s->found != NULL;
}

/* Looks in a folder for a file that is called by the hash, or at all profiles of the folder. */
static int try_folder(void *state, const char *folder, const char *shown) {
    struct search *s = state;
    char path[KVC_PROFILE_PATH];
    (void)shown;
    if (!s->by_name) return kvc_profile_files(folder, try_file, s);
    if (snprintf(path, sizeof path, "%s/%s", folder, s->name) >= KVC_PROFILE_PATH) return 0;
    return kvc_profile_is_file(path) ? try_file(s, path) : 0;
}

static const char *profile_find_name_of(const char *model) {
    return model && *model ? model : "a model without a name";
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
    else snprintf(wrong, size, "; %.300s", e.message);
    kvc_profile_free(p);
    return NULL;
}

/* Adds the name of a folder to a list, as far as there is room. */
static int list_folder(void *state, const char *folder, const char *shown) {
    char *text = state;
    const size_t used = strlen(text);
    (void)folder;
    snprintf(text + used, 320 - used, "%s%s", used ? ", " : "", shown);
    return 0;
}

static void fail_missing(const uint8_t *sha256, const char *model,
                         const struct kvc_profile_places *places, const char *wrong,
                         struct kvc_error *e) {
    char hash[2 * KVC_SHA256_BYTES + 1], looked[320] = "", command[320] = "";
    kvc_hex(sha256, KVC_SHA256_BYTES, hash);
    kvc_profile_folders(places, list_folder, looked);
    if (!places->folders) kvc_profile_keep_command(sha256, "FILE", command, sizeof command);
    kvc_fail_need(e, KVC_ERR_OTHER_MODEL, KVC_NEED_PROFILE,
                  "packed with the profile of %s, sha256 %s, which was found nowhere%s%s%s%s%s%s",
                  profile_find_name_of(model), hash, *looked ? " (looked in " : "", looked,
                  *looked ? ")" : "", wrong, *command ? "; to have it found, " : "", command);
}

struct kvc_profile *kvc_profile_find(const uint8_t sha256[KVC_SHA256_BYTES], const char *model,
                                     const struct kvc_profile_places *places, struct kvc_error *e) {
    struct search s = {.sha256 = sha256};
    char wrong[512] = "";
    if (places->open && memcmp(kvc_profile_sha256(places->open), sha256, KVC_SHA256_BYTES) == 0)
        return kvc_profile_hold(places->open);
    if (places->given && (s.found = try_given(places->given, sha256, wrong, sizeof wrong)))
        return s.found;
    kvc_hex(sha256, KVC_SHA256_BYTES, s.name);
    strcat(s.name, KVC_PROFILE_SUFFIX);
    for (s.by_name = 1; s.by_name >= 0 && !s.found; s.by_name--)
        kvc_profile_folders(places, try_folder, &s);
    if (!s.found) fail_missing(sha256, model, places, wrong, e);
    return s.found;
}
