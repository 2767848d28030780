/* profile_folders.h: the folders where profiles stay to be had, and the profiles in them. Not for
 * choosing one: by its hash (profile_find.c), by its fit (profile_choose.h). */
#ifndef KVC_PROFILE_FOLDERS_H
#define KVC_PROFILE_FOLDERS_H

#include "formats/io/hash.h"
#include "formats/model/profile.h"

enum { KVC_PROFILE_PATH = 4096 }; /* bytes of a path, with its end */

/* Takes a folder, and how messages and commands name it. Returns other than 0 to end the visits. */
typedef int kvc_profile_visit_folder(void *state, const char *folder, const char *shown);
/* Takes the path of a profile. Returns other than 0 to end the visits. */
typedef int kvc_profile_visit(void *state, const char *path);

/* Visits the folders of `places` in their order, whether they exist or not. Returns what ended the
 * visits, or 0. */
int kvc_profile_folders(const struct kvc_profile_places *places, kvc_profile_visit_folder *visit,
                        void *state);
/* Finds the folder that new profiles are put into: the user's, or the first of $KVC_PROFILE_PATH if
 * the user's is not searched or the environment names none. Returns 0 where there is none. */
int kvc_profile_own_folder(char folder[KVC_PROFILE_PATH]);
/* Returns the folder of a file in `folder`; NULL for path NULL, or one that is too long. */
const char *kvc_profile_folder_of(const char *path, char folder[KVC_PROFILE_PATH]);
/* Visits the regular files *.kvcp of a folder. What cannot be looked at is left out. */
int kvc_profile_files(const char *folder, kvc_profile_visit *visit, void *state);
/* Returns 1 for the path of a regular file that has bytes and is not too large for a profile, or of
 * a symbolic link to one. */
int kvc_profile_is_file(const char *path);

/* Writes a command of the shell that puts the file of the profile of this hash into the user's
 * folder. "" if the user has no folder, it is not searched, or `size` is too small. */
void kvc_profile_keep_command(const uint8_t sha256[KVC_SHA256_BYTES], const char *file, char *text,
                              size_t size);

#endif
