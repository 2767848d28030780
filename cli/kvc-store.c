/* kvc-store.c: the options and commands of kvc-store. Not for what the commands do (store/). */
#include "cli/store/store_tool.h"
#include "cli/input_options.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Groups of options that only some commands take. One that a command ignored could do harm: drop
 * --dry-run. */
enum {
    TOKENS = 1 << 0,
    WHICH = 1 << 1,  /* namespaces that are there */
    SPACE = 1 << 2,  /* what makes a namespace of a cache */
    OUTPUT = 1 << 3, /* where and how a file is written */
    TO = 1 << 4,
    LIFE = 1 << 5,
    PIN = 1 << 6,
    LIMIT = 1 << 7,
    REPAIR = 1 << 8
};
enum { MOST_THREADS = 64 };
enum store_use { OLD_STORE, ANY_STORE };
enum { MANY = 1 << 30 };
static const struct command {
    const char *name, *operands;
    store_command *run;
    enum store_use use;
    int most; /* operands */
    unsigned takes;
    int brief; /* -h shows it */
    const char *help;
} commands[] = {
    {"init", " [KEY=VALUE]...", store_init, ANY_STORE, MANY, 0, 1,
     "make a store; the limits are those of config"},
    {"put", " FILE...", store_put, ANY_STORE, MANY, SPACE | LIFE | PIN, 1,
     "store the whole chunks of caches; of any format that kvc-pack reads"},
    {"get", " --tokens=FILE", store_get, OLD_STORE, 0, TOKENS | WHICH | SPACE | OUTPUT | TO, 1,
     "write the longest prefix of the tokens that is stored"},
    {"find", " --tokens=FILE", store_find, OLD_STORE, 0, TOKENS | WHICH | SPACE, 1,
     "say how long it is, and where"},
    {"why", " --tokens=FILE", store_why, OLD_STORE, 0, TOKENS | WHICH | SPACE, 0,
     "say what each namespace lacks of the tokens; with --like=FILE also in which facts it differs "
     "from a cache file"},
    {"ls", "", store_ls, OLD_STORE, 0, WHICH | SPACE, 1, "list namespaces; with -v objects"},
    {"stat", " NAME...", store_stat, OLD_STORE, MANY, 0, 0, "what is known of objects"},
    {"stats", "", store_stats, OLD_STORE, 0, 0, 0, "what the tiers hold"},
    {"config", " [KEY=VALUE]...", store_config, OLD_STORE, MANY, 0, 0,
     "print or change the limits of a directory, for all who use it"},
    {"gc", "", store_gc, OLD_STORE, 0, LIMIT, 1,
     "evict what is too old or too much; adopt files, empty the trash"},
    {"verify", "", store_verify, OLD_STORE, 0, REPAIR, 0,
     "read and check everything; with --repair put aside what is bad"},
    {"pin", "", store_pin, OLD_STORE, 0, TOKENS | WHICH | SPACE | LIFE, 0,
     "keep the prefix of --tokens"},
    {"unpin", "", store_unpin, OLD_STORE, 0, TOKENS | WHICH | SPACE, 0, "keep it no longer"},
    {"drop", "", store_drop, OLD_STORE, 0, TOKENS | WHICH | SPACE, 0,
     "remove the prompt of --tokens, but for what others share, or all objects of a namespace"},
    {"export", "", store_export, OLD_STORE, 0, WHICH | SPACE | OUTPUT, 0,
     "write all objects as a tar archive"},
    {"import", " FILE", store_import, ANY_STORE, 1, 0, 0, "put the objects of such an archive"},
    {"sync", " STORE", store_sync, OLD_STORE, 1, WHICH | SPACE, 0, "copy what STORE lacks"},
    {"doctor", "", store_doctor, OLD_STORE, 0, 0, 0, "examine file systems, servers and limits"},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void print_commands(int how) {
    for (size_t i = 0; i < COMMANDS; i++) {
        const struct command *c = &commands[i];
        if (how == 'l') printf("-\t%s\n", c->name);
        else if (c->brief || how != 'h')
            cli_print_help(printf("  %s%s", c->name, c->operands), c->help, how == 'h');
    }
    if (how != 'l') putchar('\n');
}

/* Reads a time with a unit as seconds. */
static int take_seconds(const struct cli_option *o, void *into, const char *arg) {
    const struct store_tool *t = into;
    void *field = (char *)into + o->field;
    int64_t *seconds = field, time = 0;
    if (kvc_store_read_time(o->name, arg, &time, t->e))
        return cli_usage("--%s", kvc_error_message(t->e));
    *seconds = time / 1000000;
    return 0;
}

static int store_take_bytes(const struct cli_option *o, void *into, const char *arg) {
    struct store_tool *t = into;
    t->clean.evict = 1;
    if (!kvc_store_read_size(o->name, arg, &t->clean.max_size, t->e)) return 0;
    return cli_usage("--%s", kvc_error_message(t->e));
}

static int take_chunk(const struct cli_option *o, void *into, const char *arg) {
    struct store_tool *t = into;
    if (!cli_parse_u64(arg, &t->of_namespace.chunk) && t->of_namespace.chunk &&
        t->of_namespace.chunk % 256 == 0)
        return 0;
    return cli_usage("--%s takes a multiple of 256, not '%s'", o->name, arg);
}

static const struct cli_option options[] = {
    {"store", 's', "STORE",
     "dir:FOLDER, redis://HOSTS or s3://BUCKET/PREFIX (default: $KVC_STORE); each with "
     "?KEY=VALUE&...; several, the fastest "
     "first, separated by commas",
     CLI_TEXT(struct store_tool, store)},
    {"tokens", 0, "FILE", "token ids: numbers, JSON of an engine, or a cache",
     CLI_TEXT(struct store_tool, tokens), .group = TOKENS},
    {"recipe", 'r', "RECIPE",
     "how chunks are coded (default split); lossy ones have their own namespace",
     CLI_TEXT(struct store_tool, of_namespace.recipe), .group = SPACE, .names = cli_recipe_names},
    {"learn", 0, "WHEN",
     "no: learn no profile for a lossy recipe that takes one; it packs without (default yes)",
     CLI_CHOICE(struct store_tool, of_namespace.no_learning, "yes|no"), .group = SPACE},
    {"chunk", 0, "N", "tokens of a chunk, a multiple of 256 (default by the size of a token)",
     .take = take_chunk, .group = SPACE},
    {"like", 0, "FILE", "the namespace of a cache file", CLI_TEXT(struct store_tool, like),
     .group = WHICH},
    {"namespace", 0, "NAME", "a namespace by the first digits of its name",
     CLI_TEXT(struct store_tool, ns), .group = WHICH},
    {"tenant-file", 0, "FILE", "a secret: caches of its owner only",
     CLI_TEXT(struct store_tool, of_namespace.tenant_file), .group = SPACE},
    {"key-file", 0, "FILE", "a secret: signs objects, and refuses those without its signature",
     CLI_TEXT(struct store_tool, open.key_file)},
    {"output", 'o', "OUTPUT", "write to OUTPUT (default: standard output)",
     CLI_TEXT(struct store_tool, output), .group = OUTPUT},
    {"to", 0, "FORMAT", "of get: the format to write, as kvc-unpack has it (default kvc)",
     CLI_TEXT(struct store_tool, to), .group = TO, .names = cli_target_names},
    {"lossy-metadata", 0, NULL, "of get: also a format that does not hold all of the cache",
     CLI_FLAG(struct store_tool, lossy_metadata), .group = TO},
    {"for", 0, "TIME", "of put: how long objects live; of pin: for how long. 30s, 5m, 2h, 7d",
     .take = take_seconds, .field = offsetof(struct store_tool, seconds), .group = LIFE},
    {"pin", 0, NULL, "of put: never evict", CLI_FLAG(struct store_tool, pin), .group = PIN},
    {"max-size", 0, "SIZE", "of gc: evict down to this size", .take = store_take_bytes,
     .group = LIMIT},
    {"older-than", 0, "TIME", "of gc: evict what was not used for so long", .take = take_seconds,
     .field = offsetof(struct store_tool, clean.older), .group = LIMIT},
    {"dry-run", 'n', NULL, "of gc: change nothing", CLI_FLAG(struct store_tool, clean.dry_run),
     .group = LIMIT},
    {"repair", 0, NULL, "of verify: put aside what is bad", CLI_FLAG(struct store_tool, repair),
     .group = REPAIR},
    {"threads", 'T', "N", "threads that read and write (default 4)", .take = cli_take_threads,
     .field = offsetof(struct store_tool, open.threads), .max = MOST_THREADS},
    {"force", 'f', NULL, "replace an existing output, write to a terminal",
     CLI_FLAG(struct store_tool, force), .group = OUTPUT},
    {"json", 0, NULL, "print a report as JSON", CLI_FLAG(struct store_tool, json)},
    {"quiet", 'q', NULL, "errors only, no progress", CLI_FLAG(struct store_tool, input.quiet)},
    {"verbose", 'v', NULL, "print more", CLI_FLAG(struct store_tool, verbose)},
    {.name = NULL},
};

/* Finds a command. NULL: there is none, and a message was printed. */
static const struct command *find_command(const char *name) {
    static const char *const removing[] = {"rm",     "remove", "del",   "delete",
                                           "unlink", "erase",  "forget"};
    const char *names[COMMANDS + 1] = {NULL};
    for (size_t i = 0; i < COMMANDS; i++) {
        names[i] = commands[i].name;
        if (strcmp(names[i], name) == 0) return &commands[i];
    }
    const char *meant = NULL;
    for (size_t i = 0; i < sizeof removing / sizeof removing[0]; i++)
        if (strcmp(removing[i], name) == 0) meant = "drop";
    cli_no_command(name, names, meant);
    return NULL;
}

static int refuse(void *state, const struct cli_option *o) {
    const struct command *c = state;
    return o->group & ~c->takes ? cli_usage("%s takes no --%s", c->name, o->name) : 0;
}

/* Refuses options and operands that the command would ignore. */
static int check_usage(const struct store_tool *t, struct command c) {
    if (cli_each_given(refuse, &c)) return EXIT_TROUBLE;
    if (t->n > c.most) return cli_usage("%s takes no '%s'", c.name, t->operand[c.most]);
    if (t->json && c.takes & OUTPUT && !t->output)
        return cli_usage("--json needs -o: standard output gets the file");
    return EXIT_SAME;
}

/* Opens the store before a command runs. A store that does not exist is made by the command, once
 * there is something to put. */
static int open_store(struct store_tool *t, const struct command *c) {
    if (!t->store) return cli_usage("name the store: -s STORE, or KVC_STORE in the environment");
    int status = store_open(t);
    if (!status && c->run == store_init) status = store_open_limited(t);
    if (status) return status;
    if (t->unmade) return c->use == OLD_STORE ? store_refuse_unmade(t) : EXIT_SAME;
    return kvc_store_make(t->s, t->e) ? store_trouble(t) : EXIT_SAME;
}

static int store_run(struct store_tool *t, const struct command *c) {
    int status = open_store(t, c);
    if (status) {
        kvc_store_close(t->s);
        return status;
    }
    if (t->json) {
        cli_json_start(&t->report, stdout);
        cli_json_open(&t->report, NULL, '{');
        cli_json_u64(&t->report, "schema", 1);
        cli_json_text(&t->report, "tool", cli_tool());
        cli_json_text(&t->report, "command", c->name);
    }
    status = c->run(t);
    if (t->json) {
        if (kvc_error_code(t->e) != KVC_OK) cli_json_error(&t->report, t->e);
        cli_json_u64(&t->report, "status", (uint64_t)status);
        cli_json_close(&t->report);
        cli_json_end(&t->report);
    }
    kvc_store_flush(t->s, 0);
    kvc_store_close(t->s);
    return status;
}

/* Returns a variable of the environment; empty counts as unset. */
static const char *environment(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

int main(int argc, char **argv) {
    static struct store_tool t;
    const struct cli_group groups[] = {{"Options", options, &t},
                                       {NULL, cli_common_options, NULL},
                                       {"Reading input", cli_input_options, &t.input},
                                       {NULL, cli_format_options(0), &t.input.settings},
                                       {NULL, NULL, NULL}};
    const struct cli_command_line line = {
        .usage = "Usage: kvc-store [OPTION]... COMMAND [ARGUMENT]...\n"
                 "Keep the KV caches of prompts' prefixes, and find the longest one that a prompt\n"
                 "begins with.\n",
        .brief = "store tokens recipe output json quiet verbose version",
        .groups = groups,
        .print_commands = print_commands,
        .end = "\n"
               "Exit status: 0 done; 1 nothing found, something is bad (verify, doctor), or left\n"
               "out (export, import, sync); 2 trouble.\n"
               "\n"
               "Examples:\n"
               "  kvc-store -s dir:caches init max-size=100G\n"
               "  kvc-store -s dir:caches put slot.bin\n"
               "  kvc-store -s dir:caches find --tokens=prompt.json\n"
               "  kvc-store -s dir:caches get --tokens=prompt.json --to=llama -o slot.bin\n"};
    cli_start(argv, "kvc-store");
    cli_sizes_by_1024(); /* as limits are given */
    cli_input_environment(&t.input);
    t.store = environment("KVC_STORE");
    t.e = cli_error_new();
    t.open.size = sizeof t.open;
    t.open.unmade = 1;
    t.clean.size = sizeof t.clean;
    t.of_namespace.size = sizeof t.of_namespace;
    t.open.backends = environment("KVC_STORE_BACKENDS");
    if (cli_take_options(&line, argc, argv) ||
        cli_threads_environment(MOST_THREADS, &t.open.threads))
        return EXIT_TROUBLE;
    if (optind == argc) return cli_usage("name a command");
    const struct command *c = find_command(argv[optind]);
    if (!c) return EXIT_TROUBLE;
    t.quiet = t.input.quiet;
    t.operand = argv + optind + 1;
    t.n = argc - optind - 1;
    t.of_namespace.profile = t.input.open.profile;
    t.of_namespace.model = t.input.open.model;
    int status = check_usage(&t, *c);
    if (!status) status = store_run(&t, c);
    free(t.ids.id);
    kvc_error_free(t.e);
    return cli_finish(status);
}
