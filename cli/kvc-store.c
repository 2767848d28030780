/* kvc-store.c: the options and commands of kvc-store. Not for what the commands do (store/). */
#include "cli/store/store_tool.h"

#include "codecs/near.h"
#include "formats/store/url.h"

#include <stdlib.h>
#include <string.h>

enum {
    OPT_STORE = CLI_OPT_FREE,
    OPT_TOKENS,
    OPT_TO,
    OPT_LIKE,
    OPT_SPACE,
    OPT_CHUNK,
    OPT_TENANT,
    OPT_KEY,
    OPT_MAX,
    OPT_OLDER,
    OPT_SECONDS,
    OPT_PIN,
    OPT_REPAIR,
    OPT_LOSSY,
    OPT_JSON
};

static const struct option long_options[] = {
    {"store", required_argument, NULL, 's'},
    {"recipe", required_argument, NULL, 'r'},
    {"output", required_argument, NULL, 'o'},
    {"force", no_argument, NULL, 'f'},
    {"quiet", no_argument, NULL, 'q'},
    {"verbose", no_argument, NULL, 'v'},
    {"threads", required_argument, NULL, 'T'},
    {"help", no_argument, NULL, CLI_OPT_HELP},
    {"version", no_argument, NULL, 'V'},
    {"tokens", required_argument, NULL, OPT_TOKENS},
    {"to", required_argument, NULL, OPT_TO},
    {"like", required_argument, NULL, OPT_LIKE},
    {"space", required_argument, NULL, OPT_SPACE},
    {"chunk", required_argument, NULL, OPT_CHUNK},
    {"tenant-file", required_argument, NULL, OPT_TENANT},
    {"key-file", required_argument, NULL, OPT_KEY},
    {"max-size", required_argument, NULL, OPT_MAX},
    {"older-than", required_argument, NULL, OPT_OLDER},
    {"for", required_argument, NULL, OPT_SECONDS},
    {"pin", no_argument, NULL, OPT_PIN},
    {"dry-run", no_argument, NULL, 'n'},
    {"repair", no_argument, NULL, OPT_REPAIR},
    {"lossy-metadata", no_argument, NULL, OPT_LOSSY},
    {"json", no_argument, NULL, OPT_JSON},
    {NULL, 0, NULL, 0},
};

static const char brief[] = "Usage: kvc-store [OPTION]... COMMAND [ARGUMENT]...\n"
                            "Keep the KV caches of prompts' prefixes, and find the longest one that a prompt\n"
                            "begins with.\n"
                            "\n"
                            "  init                    make a store\n"
                            "  put FILE...             store the whole chunks of caches\n"
                            "  get --tokens=FILE       write the longest prefix of the tokens that is stored\n"
                            "  find --tokens=FILE      say how long it is, and where\n"
                            "  ls, stats               list namespaces; print what the levels hold\n"
                            "  gc, verify, doctor      evict; check objects; examine servers and limits\n"
                            "\n"
                            "  -s, --store=STORE       dir:FOLDER, redis://HOSTS or s3://BUCKET/PREFIX\n"
                            "                          (default: $KVC_STORE)\n"
                            "      --tokens=FILE       token ids: numbers, JSON of an engine, or a cache\n"
                            "  -r, --recipe=RECIPE     how chunks are coded (default split)\n"
                            "  -o, --output=FILE       write to FILE (default: standard output)\n"
                            "      --json              print a report as JSON\n"
                            "  -q, --quiet             errors only, no progress\n"
                            "  -v, --verbose           print more\n"
                            "  -V, --version           print the version\n"
                            "\n"
                            "All commands and examples: kvc-store --help. The manual: man kvc-store.\n";

static const char help[] = "Usage: kvc-store [OPTION]... COMMAND [ARGUMENT]...\n"
                           "Keep the KV caches of prompts' prefixes, and find the longest one that a prompt\n"
                           "begins with.\n"
                           "\n"
                           "  init [KEY=VALUE]...     make a store; the limits are those of config\n"
                           "  put FILE...             store the whole chunks of caches, of any format that\n"
                           "                          kvc-pack reads\n"
                           "  get --tokens=FILE       write the longest prefix of the tokens that is stored\n"
                           "  find --tokens=FILE      say how long it is, and where\n"
                           "  why --tokens=FILE       say what each namespace lacks of the tokens; with\n"
                           "                          --like=FILE also in which facts it differs from a\n"
                           "                          cache file\n"
                           "  ls                      list namespaces; with -v objects\n"
                           "  stat NAME...            what is known of objects\n"
                           "  stats                   what the levels hold\n"
                           "  config [KEY=VALUE]...   print or change the limits of a directory, for all who\n"
                           "                          use it\n"
                           "  gc                      adopt files, evict what is too old or too much, empty\n"
                           "                          the trash\n"
                           "  verify                  read and check everything; with --repair put aside\n"
                           "                          what is bad\n"
                           "  pin, unpin              keep the prefix of --tokens, or no longer\n"
                           "  drop                    remove the prompt of --tokens, but for what others\n"
                           "                          share, or all objects of a namespace\n"
                           "  export, import FILE     write all objects as a tar archive; put those of an\n"
                           "                          archive\n"
                           "  sync STORE              copy what STORE lacks\n"
                           "  doctor                  examine file systems, servers and limits\n"
                           "\n"
                           "  -s, --store=STORE       levels, the fastest first, separated by commas:\n"
                           "                          dir:FOLDER, redis://HOSTS, s3://BUCKET/PREFIX, each\n"
                           "                          with ?KEY=VALUE&... (default: $KVC_STORE)\n"
                           "      --tokens=FILE       token ids: a file of numbers, JSON of an engine, or a\n"
                           "                          cache\n"
                           "  -r, --recipe=RECIPE     how chunks are coded (default split); lossy ones have\n"
                           "                          their own namespace\n"
                           "      --chunk=N           tokens of a chunk, a multiple of 256 (default by the\n"
                           "                          size of a token)\n"
                           "      --like=FILE         the namespace of a cache file\n"
                           "      --space=NAME        a namespace by the first digits of its name\n"
                           "      --tenant-file=FILE  a secret: caches of its owner only\n"
                           "      --key-file=FILE     a secret: signs objects, and refuses those without its\n"
                           "                          signature\n"
                           "  -o, --output=FILE       write to FILE (default: standard output)\n"
                           "      --to=FORMAT         of get: the format to write, as kvc-unpack has it\n"
                           "                          (default kvc)\n"
                           "      --lossy-metadata    of get: also a format that does not hold all of the\n"
                           "                          cache\n"
                           "      --for=TIME          of put: how long objects live; of pin: for how long.\n"
                           "                          30s, 5m, 2h, 7d\n"
                           "      --pin               of put: never evict\n"
                           "      --max-size=SIZE     of gc: evict down to this size\n"
                           "      --older-than=TIME   of gc: evict what was not used for so long\n"
                           "  -n, --dry-run           of gc: change nothing\n"
                           "      --repair            of verify: put aside what is bad\n"
                           "  -T, --threads=N         threads that read and write (default 4)\n"
                           "  -f, --force             replace an existing output, write to a terminal\n"
                           "      --json              print a report as JSON\n"
                           "  -q, --quiet             errors only, no progress\n"
                           "  -v, --verbose           print more\n"
                           "  -h                      print the most used options\n"
                           "      --help              print this text\n"
                           "  -V, --version           print the version\n";

static const char end_of_help[] = "\n"
                                  "Exit status: 0 done; 1 nothing found, or something is bad (verify, doctor); 2\n"
                                  "trouble.\n"
                                  "\n"
                                  "Examples:\n"
                                  "  kvc-store -s dir:caches init max-size=100G\n"
                                  "  kvc-store -s dir:caches put slot.bin\n"
                                  "  kvc-store -s dir:caches find --tokens=prompt.json\n"
                                  "  kvc-store -s dir:caches get --tokens=prompt.json --to=llama -o slot.bin\n";

/* Options that only some commands take. One that a command ignored could do harm: drop --dry-run. */
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
static const struct {
    int opt;
    unsigned group;
    const char *name;
} grouped[] = {
    {OPT_TOKENS, TOKENS, "--tokens"},
    {OPT_LIKE, WHICH, "--like"},
    {OPT_SPACE, WHICH, "--space"},
    {'r', SPACE, "-r"},
    {OPT_CHUNK, SPACE, "--chunk"},
    {OPT_TENANT, SPACE, "--tenant-file"},
    {'o', OUTPUT, "-o"},
    {'f', OUTPUT, "-f"},
    {OPT_TO, TO, "--to"},
    {OPT_LOSSY, TO, "--lossy-metadata"},
    {OPT_SECONDS, LIFE, "--for"},
    {OPT_PIN, PIN, "--pin"},
    {OPT_MAX, LIMIT, "--max-size"},
    {OPT_OLDER, LIMIT, "--older-than"},
    {'n', LIMIT, "--dry-run"},
    {OPT_REPAIR, REPAIR, "--repair"},
};

enum { MOST_THREADS = 64 };
enum store_use { OLD_STORE, ANY_STORE };
enum { MANY = 1 << 30 };
static const struct command {
    const char *name;
    store_command *run;
    enum store_use use;
    int most; /* operands */
    unsigned takes;
} commands[] = {
    {"init", store_init, ANY_STORE, MANY, 0},
    {"put", store_put, ANY_STORE, MANY, SPACE | LIFE | PIN},
    {"get", store_get, OLD_STORE, 0, TOKENS | WHICH | SPACE | OUTPUT | TO},
    {"find", store_find, OLD_STORE, 0, TOKENS | WHICH | SPACE},
    {"why", store_why, OLD_STORE, 0, TOKENS | WHICH | SPACE},
    {"ls", store_ls, OLD_STORE, 0, WHICH | SPACE},
    {"stat", store_stat, OLD_STORE, MANY, 0},
    {"stats", store_stats, OLD_STORE, 0, 0},
    {"config", store_config, OLD_STORE, MANY, 0},
    {"gc", store_gc, OLD_STORE, 0, LIMIT},
    {"verify", store_verify, OLD_STORE, 0, REPAIR},
    {"pin", store_pin, OLD_STORE, 0, TOKENS | WHICH | SPACE | LIFE},
    {"unpin", store_unpin, OLD_STORE, 0, TOKENS | WHICH | SPACE},
    {"drop", store_drop, OLD_STORE, 0, TOKENS | WHICH | SPACE},
    {"export", store_export, OLD_STORE, 0, WHICH | SPACE | OUTPUT},
    {"import", store_import, ANY_STORE, 1, 0},
    {"sync", store_sync, OLD_STORE, 1, WHICH | SPACE},
    {"doctor", store_doctor, OLD_STORE, 0, 0},
};

/* Reads a time with a unit as seconds. */
static int take_seconds(const char *option, const char *text, int64_t *seconds) {
    struct kvc_url url = {.option[0] = {.key = option, .value = text}, .n = 1};
    struct kvc_error e;
    int64_t t = 0;
    if (kvc_url_time(&url, option, &t, &e)) return cli_usage("%s", e.message);
    *seconds = t / 1000000;
    return EXIT_SAME;
}

static int take_bytes(const char *option, const char *text, uint64_t *bytes) {
    struct kvc_url url = {.option[0] = {.key = option, .value = text}, .n = 1};
    struct kvc_error e;
    return kvc_url_bytes(&url, option, bytes, &e) ? cli_usage("%s", e.message) : EXIT_SAME;
}

/* Takes an option. 0, EXIT_TROUBLE (message printed), or -1: it is none of the tool's own. */
static int take_option(struct store_tool *t, int opt, const char *arg) {
    switch (opt) {
    case 's': t->store = arg; return 0;
    case 'r': t->of_space.recipe = arg; return 0;
    case 'o': t->output = arg; return 0;
    case 'f': t->force = 1; return 0;
    case 'q': t->quiet = t->input.quiet = 1; return 0;
    case 'v': t->verbose = 1; return 0;
    case 'n': t->dry_run = 1; return 0;
    case OPT_TOKENS: t->tokens = arg; return 0;
    case OPT_TO: t->to = arg; return 0;
    case OPT_LIKE: t->like = arg; return 0;
    case OPT_SPACE: t->space = arg; return 0;
    case OPT_TENANT: t->of_space.tenant_file = arg; return 0;
    case OPT_KEY: t->open.key_file = arg; return 0;
    case OPT_PIN: t->pin = 1; return 0;
    case OPT_REPAIR: t->repair = 1; return 0;
    case OPT_LOSSY: t->lossy_metadata = 1; return 0;
    case OPT_JSON: t->json = 1; return 0;
    case OPT_MAX: return take_bytes("--max-size", arg, &t->max_size);
    case OPT_OLDER: return take_seconds("--older-than", arg, &t->older);
    case OPT_SECONDS: return take_seconds("--for", arg, &t->seconds);
    case 'T': t->has_threads = 1; return cli_take_threads(arg, MOST_THREADS, &t->open.threads);
    case OPT_CHUNK:
        if (cli_parse_u64(arg, &t->of_space.chunk) || !t->of_space.chunk || t->of_space.chunk % 256)
            return cli_usage("--chunk takes a multiple of 256, not '%s'", arg);
        return 0;
    default: return -1;
    }
}

/* Finds a command. NULL: there is none, and a message was printed. */
static const struct command *find_command(const char *name) {
    static const char *const removing[] = {"rm", "remove", "del", "delete", "unlink", "erase", "forget"};
    struct kvc_near near = {.word = name};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
        kvc_near_offer(&near, commands[i].name);
    }
    for (size_t i = 0; i < sizeof removing / sizeof removing[0]; i++)
        if (strcmp(removing[i], name) == 0) snprintf(near.text, sizeof near.text, "drop");
    cli_usage("there is no command '%s'%s%s%s", name, *near.text ? "; did you mean " : "", near.text, *near.text ? "?" : "");
    return NULL;
}

/* Notes that an option was given, by its number in `grouped`. */
static void note_option(uint32_t *given, int opt) {
    for (size_t i = 0; i < sizeof grouped / sizeof grouped[0]; i++)
        if (grouped[i].opt == opt) *given |= UINT32_C(1) << i;
}

/* Refuses options and operands that the command would ignore. */
static int check_usage(const struct store_tool *t, const struct command *c, uint32_t given) {
    for (size_t i = 0; i < sizeof grouped / sizeof grouped[0]; i++)
        if (given >> i & 1 && !(c->takes & grouped[i].group)) return cli_usage("%s takes no %s", c->name, grouped[i].name);
    if (t->n > c->most) return cli_usage("%s takes no '%s'", c->name, t->operand[c->most]);
    if (t->json && c->takes & OUTPUT && !t->output) return cli_usage("--json needs -o: standard output gets the file");
    return EXIT_SAME;
}

/* Opens the store before a command runs. A store that a command may make is opened by the command, once there is something to put. */
static int open_store(struct store_tool *t, const struct command *c) {
    const int is_new = t->store ? store_is_new(t) : 0;
    if (!t->store) return cli_usage("name the store: -s STORE, or KVC_STORE in the environment");
    if (is_new < 0) return EXIT_TROUBLE;
    if (!is_new || c->run == store_init) return store_open(t, c->run == store_init);
    return c->use == OLD_STORE ? store_refuse_new(t) : EXIT_SAME;
}

static int run(struct store_tool *t, const struct command *c) {
    int status = open_store(t, c);
    if (status) return status;
    if (t->json) {
        cli_json_start(&t->report, stdout);
        cli_json_open(&t->report, NULL, '{');
        cli_json_u64(&t->report, "schema", 1);
        cli_json_text(&t->report, "tool", cli_tool());
        cli_json_text(&t->report, "command", c->name);
    }
    status = c->run(t);
    if (t->json) {
        cli_json_u64(&t->report, "status", (uint64_t)status);
        cli_json_close(&t->report);
        cli_json_end(&t->report);
    }
    if (t->s) kvc_store_flush(t->s, 0);
    kvc_store_close(t->s);
    return status;
}

/* Returns a variable of the environment; empty counts as unset. */
static const char *environment(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

int main(int argc, char **argv) {
    static struct store_tool t = {.max_size = UINT64_MAX};
    int opt, version = 0;
    uint32_t given = 0;
    cli_start(argv, "kvc-store");
    cli_sizes_by_1024(); /* as limits are given */
    cli_input_environment(&t.input);
    t.store = environment("KVC_STORE");
    t.open.size = sizeof t.open;
    t.of_space.size = sizeof t.of_space;
    t.open.backends = environment("KVC_STORE_BACKENDS");
    while ((opt = cli_next_option(argc, argv, "s:r:o:fqvnT:hV", cli_long_options(long_options, 0))) != -1) {
        if (opt == '?' || opt == ':') return cli_try_help();
        if (opt == 'h' || opt == CLI_OPT_HELP) return cli_help(opt, brief, help, end_of_help);
        if (opt == 'V') {
            version = 1;
            continue;
        }
        note_option(&given, opt);
        int status = take_option(&t, opt, optarg);
        if (status < 0) status = cli_input_option(&t.input, opt, optarg) < 0 ? EXIT_TROUBLE : EXIT_SAME;
        if (status) return status;
    }
    if (version) return cli_version(t.verbose, NULL);
    if (!t.has_threads && cli_take_threads(NULL, MOST_THREADS, &t.open.threads)) return EXIT_TROUBLE;
    if (optind == argc) return cli_usage("name a command");
    const struct command *c = find_command(argv[optind]);
    if (!c) return EXIT_TROUBLE;
    t.operand = argv + optind + 1;
    t.n = argc - optind - 1;
    t.of_space.profile = t.input.import.profile;
    const int status = check_usage(&t, c, given);
    return cli_finish(status ? status : run(&t, c));
}
