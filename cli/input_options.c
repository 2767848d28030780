/* input_options.c: the options of all tools about reading input. Options of single formats come
 * from the rows of the formats, and this file names none. Not for opening (cli.c). */
#include "cli/input_options.h"

#include <stdlib.h>
#include <string.h>

/* --- options of formats --- */

enum { MAX_FORMAT_OPTIONS = 24, MAX_FORMATS = 32 };

/* Records "KEY" or "KEY=VALUE" for the format that has the option. 0, or EXIT_TROUBLE (message
 * printed). */
static int set(struct cli_settings *s, const char *key, const char *value) {
    char *text = NULL;
    if (s->n + 1 == sizeof s->item / sizeof s->item[0])
        return cli_usage("too many options of formats, or too many facts");
    if (asprintf(&text, "%s%s%s", key, value ? "=" : "", value ? value : "") < 0)
        return EXIT_TROUBLE;
    s->item[s->n++] = text;
    return 0;
}

int cli_find_format(const char *name, struct kvc_format_info *f) {
    const size_t n = strcspn(name, ":");
    *f = (struct kvc_format_info){.size = sizeof *f};
    for (size_t i = 0; !kvc_format_describe(i, f); i++)
        if (strlen(f->name) == n && memcmp(f->name, name, n) == 0) return 0;
    return -1;
}

/* Checks the options that follow a format's name and a colon, given to --OPTION. 0, or EXIT_TROUBLE
 * (message printed). */
static int check_format(const char *option, const char *name, int writing) {
    struct kvc_error *e = cli_error_new();
    int status = kvc_format_check(name, writing, NULL, e);
    if (status) status = cli_usage("--%s=%s: %s", option, name, kvc_error_message(e));
    kvc_error_free(e);
    return status;
}

/* Takes all options of a format, "KEY=VALUE,KEY=VALUE". */
static int take_all(struct cli_settings *s, const char *format, const char *option,
                    const char *arg) {
    struct kvc_error *e = cli_error_new();
    char *named = NULL;
    int status = asprintf(&named, "%s:%s", format, arg) < 0 ? EXIT_TROUBLE : 0;
    if (!status && kvc_format_check(named, 0, NULL, e))
        status = cli_usage("--%s: %s", option, kvc_error_message(e));
    char *rest = status ? NULL : strchr(named, ':') + 1;
    for (char *item; !status && rest && (item = strsep(&rest, ",")) != NULL;)
        status = set(s, item, NULL);
    free(named);
    kvc_error_free(e);
    return status;
}

static int take_key(struct cli_settings *s, const char *format, int writing,
                    const struct kvc_format_option_info *o, const char *arg) {
    struct kvc_error *e = cli_error_new();
    int status = set(s, o->key, o->is_flag ? NULL : arg);
    const char *const one[] = {status ? NULL : s->item[s->n - 1], NULL};
    if (!status && kvc_format_check(format, writing, one, e))
        status = cli_usage("--%s=%s: %s", o->tool, arg, kvc_error_message(e));
    kvc_error_free(e);
    return status;
}

/* Takes an option of the first format that has it. Formats may share an option. */
static int take_of_format(const struct cli_option *option, void *state, const char *arg) {
    const int writing = option->group != 0;
    struct kvc_format_info f = {.size = sizeof f};
    struct kvc_format_option_info o = {.size = sizeof o};
    for (size_t i = 0; !kvc_format_describe(i, &f); i++) {
        for (size_t k = 0; !kvc_format_option_describe(f.name, writing, k, &o); k++)
            if (o.tool && strcmp(o.tool, option->name) == 0)
                return take_key(state, f.name, writing, &o, arg);
        if (!writing && f.tool && strcmp(f.tool, option->name) == 0)
            return take_all(state, f.name, f.tool, arg);
    }
    return EXIT_TROUBLE;
}

/* Returns the help of an option that takes all of a format's options: its keys. The text lives as
 * long as the program. */
static const char *help_of_all(const char *format) {
    struct kvc_format_option_info o = {.size = sizeof o};
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out) return "";
    fprintf(out, "%s input: ", format);
    for (size_t i = 0; !kvc_format_option_describe(format, 0, i, &o); i++)
        fprintf(out, "%s%s=%s", i ? "," : "", o.key, o.value);
    fclose(out);
    return text;
}

const struct cli_option *cli_format_options(int writing) {
    static struct cli_option of_reading[MAX_FORMAT_OPTIONS + 1], of_writing[MAX_FORMAT_OPTIONS + 1];
    struct cli_option *table = writing ? of_writing : of_reading;
    struct kvc_format_info f = {.size = sizeof f};
    struct kvc_format_option_info o = {.size = sizeof o};
    size_t n = 0;
    for (size_t i = 0; !kvc_format_describe(i, &f); i++) {
        for (size_t k = 0; !kvc_format_option_describe(f.name, writing, k, &o); k++)
            if (o.tool && n < MAX_FORMAT_OPTIONS)
                table[n++] = (struct cli_option){.name = o.tool,
                                                 .argument = o.is_flag ? NULL : o.value,
                                                 .help = o.what,
                                                 .take = take_of_format,
                                                 .group = (unsigned)writing};
        if (!writing && f.tool && n < MAX_FORMAT_OPTIONS)
            table[n++] = (struct cli_option){.name = f.tool,
                                             .argument = "GEOMETRY",
                                             .help = help_of_all(f.name),
                                             .take = take_of_format};
    }
    return table;
}

/* --- names --- */

static void add_name(char text[512], const char *name) {
    const size_t used = strlen(text);
    snprintf(text + used, 512 - used, "%s%s", used ? " " : "", name);
}

static const char *list_formats(char text[512], int writing) {
    struct kvc_format_info f = {.size = sizeof f};
    *text = '\0';
    for (size_t i = 0; !kvc_format_describe(i, &f); i++)
        if (!writing || f.written) add_name(text, f.name);
    return text;
}

static const char *format_names(void) {
    static char text[512];
    return list_formats(text, 0);
}

const char *cli_target_names(void) {
    static char text[512];
    return list_formats(text, 1);
}

const char *cli_recipe_names(void) {
    static char text[512];
    *text = '\0';
    for (size_t i = 0; kvc_preset_name(i, NULL); i++) add_name(text, kvc_preset_name(i, NULL));
    for (size_t i = 0; kvc_stage_name(i); i++) add_name(text, kvc_stage_name(i));
    return text;
}

int cli_no_such_format(const char *option, const char *name, int writing) {
    struct kvc_format_info f = {.size = sizeof f};
    const char *known[MAX_FORMATS + 1] = {NULL};
    char names[512], near[160];
    size_t n = 0;
    for (size_t i = 0; n < MAX_FORMATS && !kvc_format_describe(i, &f); i++)
        if (!writing || f.written) known[n++] = f.name;
    if (*kvc_similar_names(name, known, near, sizeof near))
        return cli_usage("--%s=%s: there is no such format; did you mean %s?", option, name, near);
    cli_join_words(writing ? cli_target_names() : format_names(), " ", " or ", names, sizeof names);
    return cli_usage("--%s=%s: there is no such format; it is %s", option, name, names);
}

/* Takes --from=FORMAT[:KEY=VALUE,...]. */
static int take_format(const struct cli_option *o, void *state, const char *arg) {
    struct cli_input *in = state;
    struct kvc_format_info f;
    in->open.format = arg;
    return cli_find_format(arg, &f) ? cli_no_such_format(o->name, arg, 0)
                                    : check_format(o->name, arg, 0);
}

/* --- facts --- */

/* Records a fact KEY=VALUE. 0, or EXIT_TROUBLE (message printed). */
static int add_fact(struct cli_input *in, const char *text) {
    struct kvc_error *e = cli_error_new();
    int status = kvc_fact_check(text, e);
    if (status) status = cli_usage("--fact=%s: %s", text, kvc_error_message(e));
    kvc_error_free(e);
    in->open.facts = in->facts.item;
    return status ? status : set(&in->facts, text, NULL);
}

static int take_fact(const struct cli_option *o, void *state, const char *arg) {
    (void)o;
    return add_fact(state, arg);
}

/* Takes --scale=S, and --scale=K:S,V:S or a part of it. */
static int take_scales(const struct cli_option *o, void *state, const char *arg) {
    const char *part = arg;
    while (part) {
        char number[64], text[96];
        double v;
        const int key = *part && part[1] == ':' ? *part & ~0x20 : 0;
        const size_t before = key ? 2 : 0, n = strcspn(part, key ? "," : "");
        snprintf(number, sizeof number, "%.*s", (int)(n - before), part + before);
        if ((key && key != 'K' && key != 'V') || (!key && part != arg) ||
            cli_parse_f64(number, &v) || !(v > 0))
            return cli_usage("--%s=%s: wants a number above 0, or K:S,V:S, as 0.5 or K:0.02,V:0.03",
                             o->name, arg);
        for (int of_v = key == 'V'; of_v <= (key != 'K'); of_v++) {
            snprintf(text, sizeof text, "%s=%s", of_v ? "scale.v" : "scale.k", number);
            if (add_fact(state, text)) return EXIT_TROUBLE;
        }
        part = part[n] ? part + n + 1 : NULL;
    }
    return 0;
}

/* --- the tables --- */

const struct cli_option cli_input_options[] = {
    {"from", 0, "FORMAT[:OPTIONS]",
     "input is %s (default: its first bytes decide); OPTIONS of a format: KEY=VALUE,KEY=VALUE",
     .take = take_format, .names = format_names},
    {"model", 0, "FILE",
     "the model's weights: geometry and RoPE facts; GGUF or safetensors (default: $KVC_MODEL)",
     CLI_TEXT(struct cli_input, open.model)},
    {"weights", 0, "FILE", "weights from which K and V are rebuilt (recipe project)",
     CLI_TEXT(struct cli_input, open.weights)},
    {"profile", 0, "FILE",
     "the model's profile (kvc-profile(5)); for reading it is also searched by its hash, beside "
     "the "
     ".kvc and in the folders of profiles",
     CLI_TEXT(struct cli_input, open.profile)},
    {"kv-heads", 0, "N", "number of KV heads, if the file does not record it",
     CLI_NUMBER(struct cli_input, open.kv_heads, 1, UINT16_MAX), .wants = "a number of heads"},
    {"pairing", 0, "P", "RoPE pairing of K: halves, interleaved or none",
     CLI_WORD(struct cli_input, open.pairing, CLI_PAIRING_WORDS)},
    {"max-memory", 0, "SIZE",
     "memory that decoding a .kvc may take, e.g. 512M; fewer threads decode if need be (default: a "
     "quarter of the machine's)",
     CLI_NUMBER(struct cli_input, open.max_memory, 0, UINT64_MAX),
     .wants = "a number of bytes, like 512M or 4G"},
    {"scale", 0, "SCALES",
     "factors of K and V that are stored in 8 bits: K:S,V:S, or S of both; 1: none",
     .take = take_scales},
    {"fact", 0, "KEY=VALUE",
     "a fact that the file does not tell, or tells wrongly: rope.factor=4 (kvc(5))",
     .take = take_fact},
    {.name = NULL},
};

static int take_positions(const struct cli_option *o, void *state, const char *arg) {
    struct cli_selection *s = state;
    (void)o;
    s->given = 1;
    return cli_take_range("--tokens=", arg, &s->selection.first, &s->selection.end);
}

static int take_layers(const struct cli_option *o, void *state, const char *arg) {
    struct cli_selection *s = state;
    (void)o;
    s->given = 1;
    s->selection.n_layers = 0;
    const int status = cli_take_list("--layers=", arg, &s->layers, &s->selection.n_layers);
    s->selection.layers = s->layers;
    return status;
}

const struct cli_option cli_selection_options[] = {
    {"tokens", 0, "A:B", "select positions A to B-1", .take = take_positions},
    {"layers", 0, "LIST", "select these layers, e.g. 0-3,7", .take = take_layers},
    {.name = NULL},
};

void cli_input_environment(struct cli_input *in) {
    const char *model = getenv("KVC_MODEL");
    if (model && *model) in->open.model = model;
    in->open.set = in->settings.item;
}
