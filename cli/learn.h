/* learn.h: profiles that are learnt from cache files, and files of profiles where readers look for
 * them: for kvc-profile and kvc-pack. Not for the decision to learn (pack_learn.c). */
#ifndef KVC_LEARN_H
#define KVC_LEARN_H

#include "cli/cli.h"
#include "cli/progress.h"

/* Caches to learn from. */
struct cli_learn_from {
    const char *const *path;
    size_t n;
    uint64_t most; /* rows of a layer that are read of one, where it can be cut; 0: all */
    struct cli_input *input;
    struct cli_progress *progress; /* shows how many were read; NULL: nothing does */
    /* [n]: caches of another model than the weights are left out, with a note, and noted here by 1;
     * NULL: they are refused */
    uint8_t *left_out;
    int quiet; /* print neither these notes nor why nothing came from the weights */
};
/* Returns the rows of the layer that has most: what a file has to learn from. */
uint64_t cli_learn_rows(const struct kvc_file *f);
/* Learns a profile from caches of one model. Messages name the file that they are about. The caller
 * closes the profile, which no file has yet. NULL: *e has the reason. */
struct kvc_profile *cli_learn(const struct cli_learn_from *from,
                              const struct kvc_learning_options *how,
                              struct kvc_learning_info *info, struct kvc_error *e);

enum {
    CLI_PROFILE_PUBLIC = 0666, /* as far as the umask lets it */
    CLI_PROFILE_OWN = 0600     /* of the user's own texts, about which it tells something */
};
/* Writes a profile to `path`, NULL: standard output. */
int cli_profile_write(const struct kvc_profile *p, const char *path, int force, unsigned mode,
                      struct kvc_error *e);
/* Puts a profile into the folder of new profiles, under its hash. Makes the folder if need be, and
 * clears it of what writers that were killed left there. A profile that is there already stays.
 * Returns the path of its file, which the caller frees; NULL: *e has the reason. */
char *cli_profile_keep(const struct kvc_profile *p, unsigned mode, struct kvc_error *e);

#endif
