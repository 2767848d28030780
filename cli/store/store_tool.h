/* store_tool.h: what the commands of kvc-store share. Not for stores themselves (formats/store). */
#ifndef KVC_STORE_TOOL_H
#define KVC_STORE_TOOL_H

#include "cli/cli.h"
#include "cli/progress.h"
#include "formats/api/kvc_store.h"

struct store_tool {
    struct cli_input input;
    const char *store; /* --store: tiers */
    const char *tokens, *output, *to, *like, *ns;
    struct kvc_store_options open;
    struct kvc_store_namespace_options of_namespace;
    int json, quiet, verbose, repair, force, pin, lossy_metadata;
    struct kvc_store_clean_options clean; /* gc */
    int64_t seconds;
    uint64_t left_out; /* objects that were not moved */
    int n;             /* operands */
    char **operand;
    struct kvc_error *e;      /* of the last call that failed */
    struct kvc_store *s;      /* open while a command runs */
    int unmade;               /* directories of it do not exist: the command may make them */
    struct cli_token_ids ids; /* of --tokens, which is read once: it may be standard input */
    struct cli_json report;
    struct cli_progress progress; /* of the command; it ends before anything is printed */
};

/* A command. Prints its messages; returns an exit status. */
typedef int store_command(struct store_tool *t);
store_command store_init, store_put, store_get, store_find, store_why, store_ls, store_stat,
    store_stats, store_config, store_gc, store_verify, store_pin, store_unpin, store_drop,
    store_export, store_import, store_sync, store_doctor;

/* Prints t->e and returns EXIT_TROUBLE. */
int store_trouble(const struct store_tool *t);
/* Shows progress; a kvc_progress_fn whose state is the struct store_tool. */
int store_show(void *state, uint64_t done, uint64_t total);
/* Begins to show progress. Returns store_show() if any is shown, or NULL: it is not free. */
kvc_progress_fn *store_progress(struct store_tool *t, const char *name);
/* Opens the store, and checks all of its text; nothing is made. An exit status. */
int store_open(struct store_tool *t);
/* Opens it again with the operands of init as limits. */
int store_open_limited(struct store_tool *t);
/* Makes the directories of a store that do not exist, and says so; an exit status. */
int store_make(struct store_tool *t, struct kvc_store *s);
/* Says which directory is none. Returns EXIT_TROUBLE. */
int store_refuse_unmade(struct store_tool *t);
/* Opens an input file as the options say. NULL: a message was printed. */
struct kvc_file *store_open_file(struct store_tool *t, const char *path);
/* The namespaces that --namespace, --like or the whole store gives. */
struct store_namespaces {
    struct kvc_store_namespace **item;
    size_t n;
};
int store_take_namespaces(struct store_tool *t, struct store_namespaces *namespaces);
void store_free_namespaces(struct store_namespaces *namespaces);
/* Reads --tokens into t->ids, unless they are there. */
int store_take_tokens(struct store_tool *t);
/* A prefix that was found, in the namespace that has it. */
struct store_found {
    struct kvc_store_hit *hit;
    const struct kvc_store_namespace *ns, *equal; /* that has as much, as exactly; NULL: none */
};
/* Finds the longest prefix of --tokens in these namespaces. found->hit is NULL, without a message,
 * if there is none. */
int store_find_longest(struct store_tool *t, const struct store_namespaces *namespaces,
                       struct store_found *found);
/* Says why no tier has the chunk that would come next, as far as the tiers know; "" if all chunks
 * were found. */
void store_explain(struct store_tool *t, const struct kvc_store_hit *hit, char *text, size_t size);
/* Describes a hit, and a namespace. */
struct kvc_store_hit_info store_hit_info(const struct kvc_store_hit *hit);
struct kvc_store_namespace_info store_namespace_info(const struct kvc_store_namespace *ns);
/* Seconds as "3 min". */
void store_age_text(int64_t seconds, char text[32]);

#endif
