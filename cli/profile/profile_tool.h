/* profile_tool.h: what the commands of kvc-profile share. Not for profiles themselves
 * (formats/model), nor for learning (learn.h). */
#ifndef KVC_PROFILE_TOOL_H
#define KVC_PROFILE_TOOL_H

#include "cli/cli.h"

struct profile_tool {
    struct cli_input input; /* its profile is the base of learn */
    const char *output, *recipe;
    unsigned back, threads;
    unsigned measure, tokens, samples, predict_tokens; /* of make; 0: not given */
    int force, force_profile, resume, float32, lines, verbose;
    int json;
    int n; /* operands */
    char **operand;
    FILE *out;           /* standard output, or nowhere with -q */
    struct kvc_error *e; /* of the last call that failed */
};

/* A command. Prints its messages; returns an exit status. */
typedef int profile_command(struct profile_tool *t);
profile_command profile_learn, profile_make, profile_add, profile_list, profile_show, profile_fit;

/* Prints t->e and returns EXIT_TROUBLE. */
static inline int profile_trouble(const struct profile_tool *t) {
    cli_error(t->e);
    return EXIT_TROUBLE;
}

#endif
