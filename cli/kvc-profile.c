/* kvc-profile.c: the options and commands of kvc-profile. Not for what the commands do (profile/).
 */
#include "cli/profile/profile_tool.h"
#include "cli/input_options.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Groups of options that only some commands take. */
enum { LEARN = 1 << 0, FIT = 1 << 1, CACHES = 1 << 2 /* are read */, MAKE = 1 << 3 };
enum { MOST_THREADS = 1024, MANY = 1 << 30 };

static const struct command {
    const char *name, *operands;
    profile_command *run;
    int most; /* operands */
    unsigned takes;
    const char *help;
} commands[] = {
    {"learn", " CACHE...", profile_learn, MANY, LEARN | CACHES,
     "make a profile from caches of one model; they are of different texts; with --profile: add "
     "predictors to a copy of that profile"},
    {"make", " MODEL TEXT...", profile_make, MANY, MAKE,
     "make a profile from the model and texts by torch; no caches are needed; MODEL is "
     "a GGUF file or a folder of transformers, TEXT files of many kinds; takes minutes a text"},
    {"add", " FILE...", profile_add, MANY, 0, "put profiles where every tool finds them"},
    {"list", "", profile_list, 0, 0, "list the profiles that are found"},
    {"show", " PROFILE...", profile_show, MANY, 0,
     "print the facts of a profile; PROFILE is a file, the first digits of a hash, or a part of a "
     "model's name"},
    {"fit", " PROFILE CACHE", profile_fit, 2, FIT | CACHES,
     "say whether it fits a cache, and how small it makes it"},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void print_commands(int how) {
    for (size_t i = 0; i < COMMANDS; i++) {
        const struct command *c = &commands[i];
        if (how == 'l') printf("-\t%s\n", c->name);
        else cli_print_help(printf("  %s%s", c->name, c->operands), c->help, how == 'h');
    }
    if (how != 'l') putchar('\n');
}

static const struct cli_option options[] = {
    {"output", 'o', "OUTPUT",
     "of learn and make: write to OUTPUT (default: into the folder of profiles, under its hash)",
     CLI_TEXT(struct profile_tool, output), .group = LEARN | MAKE},
    {"force", 'f', NULL,
     "of learn and make: replace an existing OUTPUT; write to a terminal; start again what was "
     "interrupted",
     CLI_FLAG(struct profile_tool, force), .group = LEARN | MAKE},
    {"back", 0, "N",
     "of learn and make: predict each layer from N layers before it (0 to 7, default 1)",
     CLI_NUMBER(struct profile_tool, back, 0, 7), .group = LEARN | MAKE},
    {"force-profile", 0, NULL, "of learn: add predictors to a --profile that does not fit a cache",
     CLI_FLAG(struct profile_tool, force_profile), .group = LEARN},
    {"resume", 0, NULL, "of make: go on where it was interrupted; the command is the same",
     CLI_FLAG(struct profile_tool, resume), .group = MAKE},
    {"measure", 0, "N",
     "of make: only the first N texts by gradients, the others for predictors alone (default: all)",
     CLI_NUMBER(struct profile_tool, measure, 1, MANY), .group = MAKE},
    {"text-tokens", 0, "N",
     "of make: tokens of a text before those that are predicted (default 2048)",
     CLI_NUMBER(struct profile_tool, tokens, 129, MANY), .group = MAKE},
    {"samples", 0, "N", "of make: predictions that are sampled of a text (default 2)",
     CLI_NUMBER(struct profile_tool, samples, 1, MANY), .group = MAKE},
    {"predict-tokens", 0, "N", "of make: tokens of a text for predictors (default 1024)",
     CLI_NUMBER(struct profile_tool, predict_tokens, 5, MANY), .group = MAKE},
    {"float32", 0, NULL,
     "of make: keep weights in float32; takes twice the memory (default: bfloat16)",
     CLI_FLAG(struct profile_tool, float32), .group = MAKE},
    {"recipe", 'r', "RECIPE", "of fit: how the cache would be packed (default small)",
     CLI_TEXT(struct profile_tool, recipe), .group = FIT, .names = cli_recipe_names},
    {"threads", 'T', "N", "threads (default 0: one per core)", .take = cli_take_threads,
     .field = offsetof(struct profile_tool, threads), .max = MOST_THREADS,
     .group = LEARN | FIT | MAKE},
    {"json", 0, "[=lines]", "print a report as JSON; lines: an object a line",
     CLI_CHOICE(struct profile_tool, lines, "lines"), .min = 1},
    {"quiet", 'q', NULL, "print errors only; no notes, no progress",
     CLI_FLAG(struct profile_tool, input.quiet)},
    {"verbose", 'v', NULL, "with -V: print more", CLI_FLAG(struct profile_tool, verbose)},
    {.name = NULL},
};

/* Finds a command. NULL: there is none, and a message was printed. */
static const struct command *find_command(const char *name) {
    const char *names[COMMANDS + 1] = {NULL};
    for (size_t i = 0; i < COMMANDS; i++) {
        names[i] = commands[i].name;
        if (strcmp(names[i], name) == 0) return &commands[i];
    }
    cli_no_command(name, names, NULL);
    return NULL;
}

static int refuse(void *state, const struct cli_option *o) {
    const struct command *c = state;
    return o->group && !(o->group & c->takes) ? cli_usage("%s takes no --%s", c->name, o->name) : 0;
}

static int profile_run(struct profile_tool *t, struct command c) {
    if (cli_each_given(refuse, &c)) return EXIT_TROUBLE;
    if (t->n > c.most) return cli_usage("%s takes no '%s'", c.name, t->operand[c.most]);
    FILE *nowhere = t->input.quiet && !t->json ? fopen("/dev/null", "w") : NULL;
    t->out = nowhere ? nowhere : stdout;
    const int status = c.run(t);
    if (nowhere) fclose(nowhere);
    return status;
}

int main(int argc, char **argv) {
    static struct profile_tool t = {.recipe = "small", .back = 1};
    const struct cli_group groups[] = {{"Options", options, &t},
                                       {NULL, cli_common_options, NULL},
                                       {"Reading caches", cli_input_options, &t.input},
                                       {NULL, cli_format_options(0), &t.input.settings},
                                       {NULL, NULL, NULL}};
    const struct cli_command_line line = {
        .usage =
            "Usage: kvc-profile [OPTION]... COMMAND [ARGUMENT]...\n"
            "Make, keep and look at profiles: what the caches of a model have in common, with\n"
            "which kvc-pack makes them much smaller.\n",
        .brief = "output back resume model recipe json quiet version",
        .groups = groups,
        .print_commands = print_commands,
        .end = "\n"
               "Exit status: 0 ok; 1 no such profile (show, fit), or it does not fit (fit); 2\n"
               "trouble.\n"
               "\n"
               "Examples:\n"
               "  kvc-profile learn --model=model.gguf *.bin   from slots of llama.cpp\n"
               "  kvc-profile make --resume model.gguf *.txt   from the model itself: hours\n"
               "  kvc-profile add model.kvcp                   kvc-pack -r small finds it then\n"
               "  kvc-profile list\n"
               "  kvc-profile fit model.kvcp slot.bin          what would it give?\n"};
    cli_start(argv, "kvc-profile");
    cli_input_environment(&t.input);
    if (cli_take_options(&line, argc, argv) || cli_threads_environment(MOST_THREADS, &t.threads))
        return EXIT_TROUBLE;
    if (optind == argc) return cli_usage("name a command");
    const struct command *c = find_command(argv[optind]);
    if (!c) return EXIT_TROUBLE;
    t.json = cli_given("json");
    t.operand = argv + optind + 1;
    t.n = argc - optind - 1;
    t.e = cli_error_new();
    const int status = profile_run(&t, *c);
    kvc_error_free(t.e);
    return cli_finish(status);
}
