/* pack_job.h: the state of kvc-pack, what it learns, and what it says of a packed file. Not for
 * packing (kvc-pack.c). */
#ifndef KVC_PACK_JOB_H
#define KVC_PACK_JOB_H

#include "cli/job.h"
#include "cli/progress.h"

struct cli_pack {
    struct cli_job job;
    struct kvc_write_options how;
    const char *recipe_text;  /* as it was typed, or $KVC_RECIPE */
    const char *queries_path; /* NULL: none */
    struct kvc_file *queries;
    int no_profile;                  /* --profile=none */
    struct kvc_profile *chosen;      /* for the current file; NULL: --profile, or none */
    struct kvc_profile_info profile; /* of how.shared_profile, or of `chosen` */
    struct cli_selection part;
    const char *token_ids_path; /* NULL: none are given */
    int32_t *token_ids;
    uint64_t n_token_ids;
    struct cli_joined {
        int heads;              /* --join=heads */
        const char *append;     /* --append: the container that comes first; NULL: none */
        char *recipe;           /* its recipe */
        int n;                  /* files; 0: nothing is joined */
        char **paths;           /* of the files, of --append those after the first */
        struct kvc_file **file; /* [n] */
    } joined;
    const char *base_path; /* --base; NULL: none */
    struct kvc_file *base;
    const char *curve_path; /* the picture's; NULL: none */
    struct cli_learns {
        int forbidden;                   /* --learn=no */
        uint8_t (*model)[KVC_KEY_BYTES]; /* [n] hashes of models that were looked at */
        size_t n;
    } learns;
    struct kvc_write_report done; /* of the current file */
    double start;                 /* of its packing */
    int said_queries[2];          /* that they were estimated ([1]), or could not be */
    int hinted;                   /* that --model adds a fingerprint */
    int hinted_profile;           /* what a profile would give, or how it stays to be had */
};

/* Checks the options beside --join. 0, or EXIT_TROUBLE (message printed). */
int pack_check_join(struct cli_pack *p);
/* Closes the operands that were opened. */
void pack_join_close(struct cli_pack *p);

/* Learns a profile for an input before it is packed, where the recipe takes one, the model has none
 * and the inputs have rows enough. What stops this is a note: packing goes on without. */
void pack_learn(void *state, const char *path, const struct kvc_file *f);

/* Packs a file by each preset to nowhere, and prints ratio and error (--curve). Returns an exit
 * status. */
int pack_curve(struct cli_pack *p, const char *path, struct kvc_error *e);

/* Returns bytes of rows divided by bytes of the output. */
double pack_ratio(const struct kvc_write_report *r);
/* Says that a file is packed, as --json, -v and -q ask for; that it is lossy even without -v. */
void pack_say_done(void *state, const struct kvc_file *f);

#endif
