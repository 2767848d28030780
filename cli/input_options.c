/* input_options.c: the options of all tools about reading input. Options of single formats come
 * from the rows of the formats, and this file names none. Not for opening (cli.c). */
#include "cli/input_options.h"

#include "codecs/near.h"
#include "codecs/number.h"
#include "codecs/presets.h"
#include "codecs/registry.h"
#include "formats/cache/keys.h"
#include "formats/cache/meta.h"
#include "formats/file/format_options.h"

#include <stdlib.h>
#include <string.h>

#ifndef KVC_PROFILES
#define KVC_PROFILES "/usr/local/share/kvc/profiles"
#endif

/* --- options of formats --- */

enum { MAX_FORMAT_OPTIONS = 24 };

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

int cli_take_settings(struct cli_settings *s, const struct kvc_format *f, int writing,
                      const char *option, const char *text) {
    struct kvc_option_values values;
    struct kvc_error e;
    if (kvc_options_read(&values, writing ? f->export_options : f->import_options, f->name, text,
                         NULL, &e))
        return cli_usage("--%s: %s", option, e.message);
    int status = 0;
    for (size_t i = 0; values.text[i] && !status; i++) {
        char *equals = strchr(values.text[i], '=');
        if (equals) *equals = '\0';
        status = set(s, values.text[i], equals ? equals + 1 : NULL);
    }
    kvc_options_free(&values);
    return status;
}

/* Takes an option of a format by its key. */
static int take_key(struct cli_settings *s, const struct kvc_format *f,
                    const struct kvc_format_option *o, const char *arg) {
    struct kvc_option_values values;
    struct kvc_error e;
    if (set(s, o->key, o->kind == KVC_OPTION_FLAG ? NULL : arg)) return EXIT_TROUBLE;
    const char *const one[] = {s->item[s->n - 1], NULL};
    if (kvc_options_read(&values, (const struct kvc_format_option[]){*o, {.key = NULL}}, f->name,
                         NULL, one, &e))
        return cli_usage("--%s=%s: %s", o->tool, arg, e.message);
    kvc_options_free(&values);
    return 0;
}

/* Takes an option of the first format that has it. Formats may share an option. */
static int take_of_format(const struct cli_option *option, void *state, const char *arg) {
    const int writing = option->group != 0;
    for (size_t i = 0; kvc_format_at(i); i++) {
        const struct kvc_format *f = kvc_format_at(i);
        const struct kvc_format_option *o = writing ? f->export_options : f->import_options;
        for (; o && o->key; o++)
            if (o->tool && strcmp(o->tool, option->name) == 0) return take_key(state, f, o, arg);
        if (!writing && f->tool && strcmp(f->tool, option->name) == 0)
            return cli_take_settings(state, f, 0, f->tool, arg);
    }
    return EXIT_TROUBLE;
}

/* Returns the help of an option that takes all of a format's options: its keys. The text lives as
 * long as the program. */
static const char *help_of_all(const struct kvc_format *f) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out) return "";
    fprintf(out, "%s input: ", f->name);
    for (const struct kvc_format_option *o = f->import_options; o->key; o++)
        fprintf(out, "%s%s=%s", o == f->import_options ? "" : ",", o->key, o->value);
    fclose(out);
    return text;
}

const struct cli_option *cli_format_options(int writing) {
    static struct cli_option of_reading[MAX_FORMAT_OPTIONS + 1], of_writing[MAX_FORMAT_OPTIONS + 1];
    struct cli_option *table = writing ? of_writing : of_reading;
    size_t n = 0;
    for (size_t i = 0; kvc_format_at(i) && n + KVC_MAX_FORMAT_OPTIONS < MAX_FORMAT_OPTIONS; i++) {
        const struct kvc_format *f = kvc_format_at(i);
        const struct kvc_format_option *o = writing ? f->export_options : f->import_options;
        for (; o && o->key; o++)
            if (o->tool)
                table[n++] = (struct cli_option){.name = o->tool,
                                                 .argument = o->kind == KVC_OPTION_FLAG ? NULL
                                                                                        : o->value,
                                                 .help = o->help,
                                                 .take = take_of_format,
                                                 .group = (unsigned)writing};
        if (!writing && f->tool)
            table[n++] = (struct cli_option){.name = f->tool,
                                             .argument = "GEOMETRY",
                                             .help = help_of_all(f),
                                             .take = take_of_format};
    }
    return table;
}

/* --- names --- */

/* Adds a word to a list of words. */
static void add_name(char text[512], const char *name) {
    const size_t used = strlen(text);
    snprintf(text + used, 512 - used, "%s%s", used ? " " : "", name);
}

const char *cli_format_names(void) {
    static char text[512];
    *text = '\0';
    for (size_t i = 0; kvc_format_at(i); i++) add_name(text, kvc_format_at(i)->name);
    return text;
}

const char *cli_target_names(void) {
    static char text[512];
    *text = '\0';
    for (size_t i = 0; kvc_format_at(i); i++)
        if (kvc_format_is_written(kvc_format_at(i))) add_name(text, kvc_format_at(i)->name);
    return text;
}

const char *cli_recipe_names(void) {
    static char text[512];
    *text = '\0';
    for (size_t i = 0; kvc_preset_at(i); i++) add_name(text, kvc_preset_at(i)->name);
    for (size_t i = 0; kvc_stage_at(i); i++) add_name(text, kvc_stage_at(i)->name);
    return text;
}

int cli_no_such_format(const char *option, const char *name, int writing) {
    struct kvc_near near = {.word = name};
    char names[512];
    for (size_t i = 0; kvc_format_at(i); i++)
        if (!writing || kvc_format_is_written(kvc_format_at(i)))
            kvc_near_offer(&near, kvc_format_at(i)->name);
    if (*near.text)
        return cli_usage("--%s=%s: there is no such format; did you mean %s?", option, name,
                         near.text);
    cli_join_words(writing ? cli_target_names() : cli_format_names(), " ", " or ", names,
                   sizeof names);
    return cli_usage("--%s=%s: there is no such format; it is %s", option, name, names);
}

/* Takes --from=FORMAT[:KEY=VALUE,...]. */
static int take_format(const struct cli_option *o, void *state, const char *arg) {
    struct cli_input *in = state;
    const struct kvc_format *f = kvc_format_find(arg);
    const char *colon = strchr(arg, ':');
    struct kvc_option_values values;
    struct kvc_error e;
    if (!f) return cli_no_such_format(o->name, arg, 0);
    if (kvc_options_read(&values, f->import_options, f->name, colon ? colon + 1 : NULL, NULL, &e))
        return cli_usage("--%s=%s: %s", o->name, arg, e.message);
    kvc_options_free(&values);
    in->import.format = arg;
    return 0;
}

/* --- facts --- */

/* Records a fact KEY=VALUE. 0, or EXIT_TROUBLE (message printed). */
static int add_fact(struct cli_input *in, const char *text) {
    struct kvc_meta meta = {.n = 0};
    struct kvc_error e;
    const char *const one[] = {text, NULL};
    const int refused = kvc_meta_give(&meta, one, &e);
    kvc_meta_free(&meta);
    if (refused) return cli_usage("--fact=%s: %s", text, e.message);
    in->import.facts = in->facts.item;
    return set(&in->facts, text, NULL);
}

static int take_fact(const struct cli_option *o, void *state, const char *arg) {
    (void)o;
    return add_fact(state, arg);
}

/* Takes --scale=S, and --scale=K:S,V:S or a part of it. */
static int take_scales(const struct cli_option *o, void *state, const char *arg) {
    const char *part = arg;
    do {
        char text[64];
        double v;
        const int key = *part && part[1] == ':' ? *part & ~0x20 : 0;
        const char *number = key ? part + 2 : part, *rest = kvc_number_begin(number, &v);
        if ((key && key != 'K' && key != 'V') || (!key && part != arg) || !rest || !(v > 0) ||
            (*rest && (!key || *rest != ',')))
            return cli_usage("--%s=%s: wants a number above 0, or K:S,V:S, as 0.5 or K:0.02,V:0.03",
                             o->name, arg);
        for (int v_of = key == 'V'; v_of <= (key != 'K'); v_of++) {
            snprintf(text, sizeof text, "%s=%.*s", v_of ? KVC_KEY_SCALE_V : KVC_KEY_SCALE_K,
                     (int)(rest - number), number);
            if (add_fact(state, text)) return EXIT_TROUBLE;
        }
        part = *rest ? rest + 1 : NULL;
    } while (part);
    return 0;
}

/* --- the tables --- */

const struct cli_option cli_input_options[] = {
    {"from", 0, "FORMAT[:OPTIONS]",
     "input is %s (default: its first bytes decide); OPTIONS of a format: KEY=VALUE,KEY=VALUE",
     .take = take_format, .names = cli_format_names},
    {"model", 0, "FILE",
     "the model's weights: geometry and RoPE facts; GGUF or safetensors (default: $KVC_MODEL)",
     CLI_TEXT(struct cli_input, model_path)},
    {"weights", 0, "FILE", "weights from which K and V are rebuilt (recipe project)",
     CLI_TEXT(struct cli_input, weights_path)},
    {"profile", 0, "FILE",
     "the model's profile (kvc-profile(5)); for packing and unpacking, also searched beside a "
     ".kvc, in $KVC_PROFILE_PATH "
     "and in " KVC_PROFILES,
     CLI_TEXT(struct cli_input, import.profile)},
    {"kv-heads", 0, "N", "number of KV heads, if the file does not record it",
     CLI_NUMBER(struct cli_input, import.kv_heads, 1, UINT16_MAX), .wants = "a number of heads"},
    {"pairing", 0, "P", "RoPE pairing of K: halves, interleaved or none",
     CLI_CHOICE(struct cli_input, import.pairing, CLI_PAIRING_WORDS),
     .min = KVC_PAIRING_UNKNOWN + 1},
    {"max-memory", 0, "SIZE",
     "memory that decoding a .kvc may take, e.g. 512M; fewer threads decode if need be (default: a "
     "quarter of the machine's)",
     CLI_NUMBER(struct cli_input, import.max_memory, 0, UINT64_MAX),
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

/* Returns the folders of $KVC_PROFILE_PATH and then that of installed profiles, joined by colons.
 * The text lives as long as the program. */
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
    in->import.set = in->settings.item;
}
