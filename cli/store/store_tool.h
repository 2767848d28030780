/* store_tool.h: what the commands of kvc-store share. Not for stores themselves (formats/store). */
#ifndef KVC_STORE_TOOL_H
#define KVC_STORE_TOOL_H

#include "cli/cli.h"
#include "cli/progress.h"
#include "formats/api/kvc_store.h"
#include "formats/store/tier.h"

struct store_tool {
    struct cli_input input;
    const char *store; /* --store: tiers */
    const char *tokens, *output, *to, *like, *ns;
    struct kvc_store_options open;
    struct kvc_store_namespace_options of_namespace;
    int json, quiet, verbose, dry_run, repair, force, pin, lossy_metadata;
    uint64_t max_size; /* UINT64_MAX: as configured */
    int64_t seconds, older;
    int n; /* operands */
    char **operand;
    /* open while a command runs, if the command needs one. NULL: it is to be made */
    struct kvc_store *s;
    struct cli_token_ids ids; /* of --tokens, which is read once: it may be standard input */
    struct cli_json report;
    struct cli_progress progress; /* of the command; it ends before anything is printed */
};

/* A command. Prints its messages; returns an exit status. */
typedef int store_command(struct store_tool *t);
store_command store_init, store_put, store_get, store_find, store_why, store_ls, store_stat,
    store_stats, store_config, store_gc, store_verify, store_pin, store_unpin, store_drop,
    store_export, store_import, store_sync, store_doctor;

/* Prints an error and returns EXIT_TROUBLE. */
int store_trouble(const struct kvc_error *e);
/* Shows progress; a kvc_progress_fn whose state is the struct store_tool. */
int store_show(void *state, uint64_t done, uint64_t total);
/* Begins to show progress of a walk through the objects of a tier, of one namespace or all (NULL).
 * Returns their bytes, which costs a walk of its own; 0 if no progress is shown, or the bytes are
 * not known. */
uint64_t store_show_walk(struct store_tool *t, struct kvc_tier *l, const uint8_t *ns);
/* Returns 1 if a directory of the store is to be made; -1: the store's text is wrong, and a message
 * was printed. */
int store_is_new(struct store_tool *t);
/* Says which directory is none. Returns EXIT_TROUBLE. */
int store_refuse_new(const struct store_tool *t);
/* Opens the store, with the operands of init as limits; an exit status. */
int store_open(struct store_tool *t, int with_limits);
/* Opens a chain of tiers, and says which directories it makes. NULL: a message was printed. */
struct kvc_store *store_open_tiers(struct store_tool *t, const char *tiers);
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
/* Finds the longest prefix of --tokens in these namespaces. *hit is NULL, without a message, if
 * there is none. */
int store_find_longest(struct store_tool *t, const struct store_namespaces *namespaces,
                       struct kvc_store_hit **hit);
/* Says why no tier has an object, as far as the tiers know. */
void store_explain(const struct kvc_store *s, const struct kvc_object *o, char *text, size_t size);
/* Seconds as "3 min". */
void store_age_text(int64_t seconds, char text[32]);

#endif
