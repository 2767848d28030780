/* input_options.c: the options of all tools about reading input. Options of single formats come from the rows of the
 * formats, and this file names none. Not for opening (cli.c). */
#include "cli/cli.h"

#include "codecs/near.h"
#include "codecs/number.h"
#include "formats/cache/keys.h"
#include "formats/cache/meta_parse.h"
#include "formats/file/format_options.h"

#include <stdlib.h>
#include <string.h>

#ifndef KVC_PROFILES
#define KVC_PROFILES "/usr/local/share/kvc/profiles"
#endif

enum { MAX_LONG_OPTIONS = 96, HELP_COLUMN = 26, SCREEN_WIDTH = 80 };

static const struct option own[] = {
    {"from", required_argument, NULL, CLI_OPT_FROM},
    {"kv-heads", required_argument, NULL, CLI_OPT_KV_HEADS},
    {"pairing", required_argument, NULL, CLI_OPT_PAIRING},
    {"weights", required_argument, NULL, CLI_OPT_WEIGHTS},
    {"profile", required_argument, NULL, CLI_OPT_PROFILE},
    {"model", required_argument, NULL, CLI_OPT_MODEL},
    {"max-memory", required_argument, NULL, CLI_OPT_MAX_MEMORY},
    {"fact", required_argument, NULL, CLI_OPT_FACT},
    {"scale", required_argument, NULL, CLI_OPT_SCALE},
};

/* Calls take() for every option of formats that has an option of the tools, until take() returns a value other than 0.
 * Returns this value. For a row's option that takes all of the row's options at once, `o` is NULL. */
typedef int take_fn(void *state, const struct kvc_format *f, const struct kvc_format_option *o, int number);

static int each_option(take_fn *take, void *state, int writing) {
    int number = 0, status = 0;
    for (size_t i = 0; kvc_format_at(i) && !status; i++) {
        const struct kvc_format *f = kvc_format_at(i);
        const struct kvc_format_option *o = writing ? f->export_options : f->import_options;
        for (; o && o->key && !status; o++, number++)
            if (o->tool) status = take(state, f, o, number);
        if (!writing && f->tool && !status) status = take(state, f, NULL, number++);
    }
    return status;
}

/* --- the table for getopt_long() --- */

struct table {
    struct option option[MAX_LONG_OPTIONS];
    size_t n;
    int base;
};

static int add(struct table *t, const char *name, int has_arg, int value) {
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->option[i].name, name) == 0) return 0; /* formats may share an option, which has the number of the first */
    if (t->n + 1 == MAX_LONG_OPTIONS) abort();
    t->option[t->n++] = (struct option){name, has_arg, NULL, value};
    return 0;
}

static int add_of_format(void *state, const struct kvc_format *f, const struct kvc_format_option *o, int number) {
    struct table *t = state;
    return add(t, o ? o->tool : f->tool, o && o->kind == KVC_OPTION_FLAG ? no_argument : required_argument, t->base + number);
}

const struct option *cli_long_options(const struct option *of_tool, int writes) {
    static struct table t;
    for (; of_tool->name; of_tool++) add(&t, of_tool->name, of_tool->has_arg, of_tool->val);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) add(&t, own[i].name, own[i].has_arg, own[i].val);
    t.base = CLI_OPT_FORMAT;
    each_option(add_of_format, &t, 0);
    t.base = CLI_OPT_TARGET;
    if (writes) each_option(add_of_format, &t, 1);
    return t.option;
}

/* --- taking them --- */

/* Records "KEY" or "KEY=VALUE" for the format that has the option. */
static int set(struct cli_settings *s, const char *key, const char *value) {
    char *text = NULL;
    if (s->n + 1 == sizeof s->item / sizeof s->item[0]) {
        cli_usage("too many options of formats, or too many facts");
        return -1;
    }
    if (asprintf(&text, "%s%s%s", key, value ? "=" : "", value ? value : "") < 0) return -1;
    s->item[s->n++] = text;
    return 1;
}

struct wanted {
    struct cli_settings *settings;
    const char *arg;
    int number;
};

int cli_take_settings(struct cli_settings *s, const struct kvc_format *f, int writing, const char *option, const char *text) {
    struct kvc_option_values values;
    struct kvc_error e;
    if (kvc_options_read(&values, writing ? f->export_options : f->import_options, f->name, text, NULL, &e)) {
        cli_usage("--%s: %s", option, e.message);
        return -1;
    }
    int status = 1;
    for (size_t i = 0; values.text[i] && status > 0; i++) {
        char *equals = strchr(values.text[i], '=');
        if (equals) *equals = '\0';
        status = set(s, values.text[i], equals ? equals + 1 : NULL);
    }
    kvc_options_free(&values);
    return status;
}

static int take(void *state, const struct kvc_format *f, const struct kvc_format_option *o, int number) {
    const struct wanted *w = state;
    if (number != w->number) return 0;
    if (!o) return cli_take_settings(w->settings, f, 0, f->tool, w->arg);
    struct kvc_option_values values;
    struct kvc_error e;
    const int status = set(w->settings, o->key, o->kind == KVC_OPTION_FLAG ? NULL : w->arg);
    const char *const one[] = {status > 0 ? w->settings->item[w->settings->n - 1] : NULL, NULL};
    if (status > 0 && kvc_options_read(&values, (const struct kvc_format_option[]){*o, {.key = NULL}}, f->name, NULL, one, &e)) {
        cli_usage("--%s=%s: %s", o->tool, w->arg, e.message);
        return -1;
    }
    if (status > 0) kvc_options_free(&values);
    return status;
}

int cli_target_option(struct cli_settings *s, int opt, const char *arg) {
    struct wanted w = {.settings = s, .arg = arg, .number = opt - CLI_OPT_TARGET};
    return opt >= CLI_OPT_TARGET ? each_option(take, &w, 1) : 0;
}

const char *cli_format_names(int writing, char *text, size_t size) {
    size_t used = 0;
    unsigned n = 0, left = 0;
    for (size_t i = 0; kvc_format_at(i); i++) left += !writing || kvc_format_is_written(kvc_format_at(i));
    *text = '\0';
    for (size_t i = 0; kvc_format_at(i); i++) {
        if (writing && !kvc_format_is_written(kvc_format_at(i))) continue;
        const int m = snprintf(text + used, size - used, "%s%s", !n++ ? "" : --left > 1 ? ", " : " or ", kvc_format_at(i)->name);
        if (m < 0 || (size_t)m >= size - used) break;
        used += (size_t)m;
    }
    return text;
}

int cli_no_such_format(const char *option, const char *name, int writing) {
    struct kvc_near near = {.word = name};
    char names[256];
    for (size_t i = 0; kvc_format_at(i); i++)
        if (!writing || kvc_format_is_written(kvc_format_at(i))) kvc_near_offer(&near, kvc_format_at(i)->name);
    if (*near.text) return cli_usage("--%s=%s: there is no such format; did you mean %s?", option, name, near.text);
    cli_format_names(writing, names, sizeof names);
    return cli_usage("--%s=%s: there is no such format; it is %s", option, name, names);
}

/* Takes --from=FORMAT[:KEY=VALUE,...]. */
static int take_format(struct cli_input *in, const char *arg) {
    const struct kvc_format *f = kvc_format_find(arg);
    const char *colon = strchr(arg, ':');
    struct kvc_option_values values;
    struct kvc_error e;
    if (!f) {
        cli_no_such_format("from", arg, 0);
        return -1;
    }
    if (kvc_options_read(&values, f->import_options, f->name, colon ? colon + 1 : NULL, NULL, &e)) {
        cli_usage("--from=%s: %s", arg, e.message);
        return -1;
    }
    kvc_options_free(&values);
    in->import.format = arg;
    return 1;
}

/* --- facts --- */

/* Takes --fact=KEY=VALUE. */
static int take_fact(struct cli_input *in, const char *arg) {
    struct kvc_meta meta = {.n = 0};
    struct kvc_error e;
    const char *const one[] = {arg, NULL};
    const int refused = kvc_facts_give(&meta, one, &e);
    kvc_meta_free(&meta);
    if (refused) {
        cli_usage("--fact=%s: %s", arg, e.message);
        return -1;
    }
    in->import.facts = in->facts.item;
    return set(&in->facts, arg, NULL);
}

/* Takes --scale=S, and --scale=K:S,V:S or a part of it. */
static int take_scale(struct cli_input *in, const char *arg) {
    const char *part = arg;
    do {
        char text[64];
        double v;
        const int key = *part && part[1] == ':' ? *part & ~0x20 : 0;
        const char *number = key ? part + 2 : part, *rest = kvc_number_begin(number, &v);
        if ((key && key != 'K' && key != 'V') || (!key && part != arg) || !rest || !(v > 0) ||
            (*rest && (!key || *rest != ','))) {
            cli_usage("--scale=%s: wants a number above 0, or K:S,V:S, as 0.5 or K:0.02,V:0.03", arg);
            return -1;
        }
        for (int v_of = key == 'V'; v_of <= (key != 'K'); v_of++) {
            snprintf(text, sizeof text, "%s=%.*s", v_of ? KVC_KEY_SCALE_V : KVC_KEY_SCALE_K, (int)(rest - number), number);
            if (take_fact(in, text) < 0) return -1;
        }
        part = *rest ? rest + 1 : NULL;
    } while (part);
    return 1;
}

int cli_input_option(struct cli_input *in, int opt, const char *arg) {
    uint64_t n;
    in->import.set = in->settings.item;
    switch (opt) {
    case CLI_OPT_FROM: return take_format(in, arg);
    case CLI_OPT_KV_HEADS:
        if (cli_parse_u64(arg, &n) || !n || n > UINT16_MAX) {
            cli_usage("--kv-heads=%s is not a number of heads", arg);
            return -1;
        }
        in->import.kv_heads = (uint32_t)n;
        return 1;
    case CLI_OPT_PAIRING:
        if (!kvc_pairing_parse(arg, &in->import.pairing)) {
            cli_usage("--pairing=%s is none of halves, interleaved, none", arg);
            return -1;
        }
        return 1;
    case CLI_OPT_MODEL: in->model_path = arg; return 1;
    case CLI_OPT_WEIGHTS: in->weights_path = arg; return 1;
    case CLI_OPT_PROFILE: in->import.profile = arg; return 1;
    case CLI_OPT_MAX_MEMORY:
        if (!cli_parse_u64(arg, &in->import.max_memory)) return 1;
        cli_usage("--max-memory=%s is not a number of bytes, like 512M or 4G", arg);
        return -1;
    case CLI_OPT_NO_VERIFY: in->import.no_verify = 1; return 1;
    case CLI_OPT_FACT: return take_fact(in, arg);
    case CLI_OPT_SCALE: return take_scale(in, arg);
    default: break;
    }
    struct wanted w = {.settings = &in->settings, .arg = arg, .number = opt - CLI_OPT_FORMAT};
    return opt >= CLI_OPT_FORMAT && opt < CLI_OPT_TARGET ? each_option(take, &w, 0) : 0;
}

/* Returns the folders of $KVC_PROFILE_PATH and then that of installed profiles, joined by colons. The text lives as long as the
 * program. */
static const char *profile_folders(void) {
    static char *folders;
    const char *variable = getenv("KVC_PROFILE_PATH");
    if (!variable || !*variable) return KVC_PROFILES;
    free(folders);
    if (asprintf(&folders, "%s:%s", variable, KVC_PROFILES) >= 0) return folders;
    folders = NULL;
    return variable;
}

void cli_input_environment(struct cli_input *in) {
    const char *model = getenv("KVC_MODEL");
    if (model && *model) in->model_path = model;
    in->import.profile_folders = profile_folders();
}

/* --- help --- */

/* Returns the length of the words of a text, or of the items of a list with commas, that fit into `width` columns. */
static int line_length(const char *text, int width) {
    const int length = (int)strlen(text);
    int fits = length < width ? length : width;
    while (fits && fits < length && text[fits] != ' ' && text[fits - 1] != ',') fits--;
    return fits ? fits : length;
}

void cli_print_wrapped(int used, int column, const char *text) {
    if (used >= column) used = printf("\n") - 1;
    while (*text) {
        const int length = line_length(text, SCREEN_WIDTH - column);
        printf("%*s%.*s\n", column - used, "", length, text);
        text += length + (text[length] == ' ');
        used = 0;
    }
}

/* Prints "  --name=VALUE  text" in the columns of all help texts. */
static void print_option(const char *name, const char *value, const char *text) {
    cli_print_wrapped(printf("      --%s%s%s", name, value ? "=" : "", value ? value : ""), HELP_COLUMN, text);
}

static int print_of_format(void *state, const struct kvc_format *f, const struct kvc_format_option *o, int number) {
    const char **printed = state;
    char lines[512] = "";
    (void)number;
    const char *tool = o ? o->tool : f->tool;
    for (int i = 0; i < MAX_LONG_OPTIONS; i++) {
        if (printed[i] && strcmp(printed[i], tool) == 0) return 0;
        if (printed[i]) continue;
        printed[i] = tool;
        break;
    }
    if (o) print_option(tool, o->kind == KVC_OPTION_FLAG ? NULL : o->value, o->help);
    else {
        int used = snprintf(lines, sizeof lines, "%s input: ", f->name);
        for (const struct kvc_format_option *x = f->import_options; x->key && used < (int)sizeof lines; x++)
            used += snprintf(lines + used, sizeof lines - (size_t)used, "%s%s=%s", x == f->import_options ? "" : ",", x->key,
                             x->value);
        print_option(tool, "GEOMETRY", lines);
    }
    return 0;
}

void cli_print_input_help(void) {
    const char *printed[MAX_LONG_OPTIONS] = {NULL};
    char names[256], lines[512];
    puts("Reading input:");
    snprintf(lines, sizeof lines, "input is %s (default: its first bytes decide); OPTIONS of a format: KEY=VALUE,KEY=VALUE",
             cli_format_names(0, names, sizeof names));
    print_option("from", "FORMAT[:OPTIONS]", lines);
    print_option("model", "FILE", "the model's weights (GGUF or safetensors): geometry and RoPE facts (default: $KVC_MODEL)");
    print_option("weights", "FILE", "weights from which K and V are rebuilt (recipe project)");
    print_option("profile", "FILE",
                 "the model's profile (kvc-profile(5)), for packing and unpacking; "
                 "also searched beside a .kvc, in $KVC_PROFILE_PATH and in " KVC_PROFILES);
    print_option("kv-heads", "N", "number of KV heads, if the file does not record it");
    print_option("pairing", "P", "RoPE pairing of K: halves, interleaved or none");
    print_option("max-memory", "SIZE",
                 "memory that decoding a .kvc may take, e.g. 512M; fewer threads decode if need be (default: a quarter of the "
                 "machine's)");
    print_option("scale", "K:S,V:S", "factors of K and V that are stored in 8 bits; S alone: of both; 1: none");
    print_option("fact", "KEY=VALUE", "a fact that the file does not tell, or tells wrongly: rope.factor=4 (kvc(5))");
    each_option(print_of_format, printed, 0);
}

void cli_print_target_help(void) {
    const char *printed[MAX_LONG_OPTIONS] = {NULL};
    char names[256], lines[512];
    snprintf(lines, sizeof lines, "write another layout: %s; OPTIONS of a format: KEY=VALUE,KEY=VALUE",
             cli_format_names(1, names, sizeof names));
    print_option("to", "FORMAT[:OPTIONS]", lines);
    each_option(print_of_format, printed, 1);
}
