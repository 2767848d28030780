/* pack_job.h: the state of kvc-pack, and what it says of a packed file. Not for packing
 * (kvc-pack.c). */
#ifndef KVC_PACK_JOB_H
#define KVC_PACK_JOB_H

#include "cli/job.h"
#include "cli/progress.h"
#include "cli/token_ids.h"
#include "formats/file/pack.h"

struct cli_pack {
    struct cli_job job;
    struct kvc_packing how;
    struct kvc_recipe recipe; /* that --recipe names */
    const char *recipe_text;  /* as it was typed, or $KVC_RECIPE */
    const char *queries_path; /* NULL: none */
    struct kvc_opened queries;
    struct cli_selection part;
    const char *token_ids_path; /* NULL: none are given */
    struct cli_token_ids token_ids;
    struct cli_joined {
        int heads;               /* --join=heads */
        const char *append;      /* --append: the container that comes first; NULL: none */
        int n;                   /* files; 0: nothing is joined */
        char **paths;            /* of the files, of --append those after the first */
        struct kvc_opened *file; /* [n] */
        char *name;              /* of all of them, for messages */
    } joined;
    const char *curve_path;        /* the picture's; NULL: none */
    const char *learn_path;        /* NULL: no profile is to be made */
    unsigned learn_layers;         /* --learn-layers */
    const struct kvc_opened *file; /* being packed */
    uint64_t zero_bytes;           /* of its last rows that are zeros */
    struct kvc_packed done;        /* of that file */
    struct cli_progress progress;
    int hinted; /* that --model adds a fingerprint */
};

/* Checks the options beside --join. 0, or EXIT_TROUBLE (message printed). */
int pack_check_join(struct cli_pack *p);
/* Opens all operands and joins them as f->cache. pack_join_close() closes them, after *f. */
int pack_join_open(void *state, struct kvc_opened *f, const char *path, struct kvc_error *e);
void pack_join_close(struct cli_pack *p);

/* Packs a file by each preset to nowhere, and prints ratio and error (--curve). Returns an exit
 * status. */
int pack_curve(struct cli_pack *p, const char *path);

/* Looks at the rows of the cache that is packed (rows.h), and says what is doubtful, if anything
 * is. */
void pack_say_rows(struct cli_pack *p, const struct kvc_cache *c);
/* With -v: which tensors a lossy recipe left as they were, and the errors that it leaves in the
 * others. */
void pack_say_lossy(const struct cli_pack *p, const char *name, const struct kvc_cache *c,
                    const struct kvc_recipe *recipe);
/* Says that a file is packed, as --json, -v and -q ask for; that it is lossy even without -v. */
void pack_say_done(void *state, const struct kvc_opened *f);

#endif
