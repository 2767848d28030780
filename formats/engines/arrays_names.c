/* arrays_names.c: the meaning of names of arrays: conventions, and patterns of the option `map`.
 * Not for building the cache (arrays_read.c). */
#include "formats/engines/arrays_read.h"

#include "formats/engines/import.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DIGITS = 6 };

#define AXES "axes="
#define DTYPE "dtype="

const struct kvc_format_option kvc_arrays_options[] = {
    [KVC_ARRAYS_MAP] =
        {.key = "map",
         .kind = KVC_OPTION_LIST,
         .value = "KIND=PATTERN",
         .tool = "map",
         .help = "names of arrays: KIND keys, values, kv (both), queries, hidden, tokens or "
                 "positions; {i} for the layer number; axes=ORDER of arrays that are not [1, "
                 "heads, tokens, dim]; dtype=bf16 of integers that are bits; repeat as needed"},
    [KVC_ARRAYS_LATENT] = KVC_LATENT_OPTION,
    {.key = NULL},
};

struct rule {
    const char *key; /* as the option spells it */
    enum kvc_name_kind kind;
    enum kvc_role role;
};

static const struct rule rules[] = {
    {"keys", KVC_NAME_TENSOR, KVC_ROLE_K}, /* in the order of the enum below */
    {"values", KVC_NAME_TENSOR, KVC_ROLE_V},       {"queries", KVC_NAME_TENSOR, KVC_ROLE_QUERIES},
    {"hidden", KVC_NAME_TENSOR, KVC_ROLE_HIDDEN},  {"tokens", KVC_NAME_TOKENS, KVC_ROLE_K},
    {"positions", KVC_NAME_POSITIONS, KVC_ROLE_K}, {"kv", KVC_NAME_TENSOR, KVC_ROLE_K},
};
enum {
    RULE_KEYS,
    RULE_VALUES,
    RULE_QUERIES,
    RULE_HIDDEN,
    RULE_TOKENS,
    RULE_POSITIONS,
    RULE_KV,
    RULES
};

static int arrays_names_is_attention(unsigned rule) {
    return rule == RULE_KEYS || rule == RULE_VALUES || rule == RULE_KV;
}

static const struct {
    unsigned rule;
    const char *pattern;
    int sliding;
} conventions[] = {
    {RULE_KEYS, "layers.{i}.keys", 0},
    {RULE_VALUES, "layers.{i}.values", 0},
    {RULE_KEYS, "key_cache.{i}", 0},
    {RULE_VALUES, "value_cache.{i}", 0},
    {RULE_KEYS, "past_key_values.{i}.key", 0},
    {RULE_VALUES, "past_key_values.{i}.value", 0},
    {RULE_KEYS, "keys.{i}", 0}, /* a list of K and one of V, in one file or in two */
    {RULE_VALUES, "values.{i}", 0},
    {RULE_KEYS, "keys.arr_{i}", 0},
    {RULE_VALUES, "values.arr_{i}", 0},
    {RULE_KEYS, "sliding.layers.{i}.keys", 1},
    {RULE_VALUES, "sliding.layers.{i}.values", 1},
    {RULE_QUERIES, "queries.{i}", 0},
    {RULE_HIDDEN, "hidden.{i}", 0},
    {RULE_TOKENS, "tokens", 0},
    {RULE_POSITIONS, "positions", 0},
    {RULE_POSITIONS, "sliding.positions", 1},
};

/* Returns 1 when `name` is the pattern with a decimal number, without leading zeros, in place of
 * "{i}". */
static int matches(const char *pattern, const char *name, uint32_t *layer) {
    const char *place = strstr(pattern, "{i}");
    if (!place) return strcmp(pattern, name) == 0;
    size_t before = (size_t)(place - pattern), after = strlen(place + 3), n = strlen(name);
    if (n <= before + after || strncmp(pattern, name, before) ||
        strcmp(place + 3, name + n - after))
        return 0;
    const char *digit = name + before;
    size_t digits = n - before - after;
    if (digits > MAX_DIGITS || (digits > 1 && digit[0] == '0')) return 0;
    *layer = 0;
    for (size_t i = 0; i < digits; i++) {
        if (digit[i] < '0' || digit[i] > '9') return 0;
        *layer = *layer * 10 + (uint32_t)(digit[i] - '0');
    }
    return 1;
}

/* Returns the rule of a value of the option `map`, and its pattern; RULES when the value matches no
 * rule. */
static unsigned rule_of_map(const char *map, const char **pattern) {
    for (unsigned r = 0; r < RULES; r++) {
        size_t n = strlen(rules[r].key);
        if (strncmp(map, rules[r].key, n) == 0 && map[n] == '=') {
            *pattern = map + n + 1;
            return r;
        }
    }
    return RULES;
}

static const char *const *maps_of(const struct kvc_import_options *o) {
    return o && o->value ? o->value[KVC_ARRAYS_MAP].list : NULL;
}

int kvc_name_maps_attention(const struct kvc_import_options *o) {
    for (const char *const *map = maps_of(o); map && *map; map++) {
        const char *pattern;
        const unsigned r = rule_of_map(*map, &pattern);
        if (arrays_names_is_attention(r)) return 1;
    }
    return 0;
}

/* Returns what the option `map` says after a word, or NULL. */
static const char *find_word(const struct kvc_import_options *o, const char *word) {
    const size_t n = strlen(word);
    for (const char *const *map = maps_of(o); map && *map; map++)
        if (strncmp(*map, word, n) == 0) return *map + n;
    return NULL;
}

const char *kvc_name_axes(const struct kvc_import_options *o) {
    return find_word(o, AXES);
}

const struct kvc_dtype_info *kvc_name_dtype(const struct kvc_import_options *o) {
    const char *name = find_word(o, DTYPE);
    return name ? kvc_dtype_by_name(name) : NULL;
}

/* Returns 1 for what is no name of an array. */
static int is_word(const char *map) {
    return strncmp(map, AXES, sizeof AXES - 1) == 0 || strncmp(map, DTYPE, sizeof DTYPE - 1) == 0;
}

static int check_axes(const char *axes, struct kvc_error *e) {
    static const char letters[] = "lcbthd";
    int good = strchr(axes, 't') && strchr(axes, 'd');
    for (const char *p = axes; *p; p++) good &= strchr(letters, *p) && !strchr(p + 1, *p);
    return good ? 0
                : kvc_fail(e, KVC_ERR_USAGE,
                           "map=axes=%s: an axis is a letter, each once, slowest first: l layer, c "
                           "K and V, b batch, t token, h head, d channel; t and d are needed",
                           axes);
}

/* Checks that the axes of an array agree with its pattern: {i} or an axis of layers; an axis of K
 * and V where it has both. */
static int check_attention(const char *map, int both, const char *place, const char *axes,
                           struct kvc_error *e) {
    const int layers = axes && strchr(axes, 'l'), planes = axes && strchr(axes, 'c');
    if (!place && !layers)
        return kvc_fail(
            e, KVC_ERR_USAGE,
            "map=%s: the pattern needs {i} once, in place of the layer number; if the array holds "
            "all layers, say the order of its axes, for instance map=axes=%s",
            map, both ? "lcbhtd" : "lbhtd");
    if (place && layers)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "map=%s: {i} is the layer, and map=axes=%s has another axis of layers (l)",
                        map, axes);
    if (both == planes) return 0;
    return kvc_fail(
        e, KVC_ERR_USAGE,
        both ? "map=%s: says K and V are in one array, so map=axes=ORDER must have their axis (c)"
             : "map=%s: an array of K or of V alone has no axis c; map=kv=NAME names one of both",
        map);
}

int kvc_name_check_map(const struct kvc_import_options *o, struct kvc_error *e) {
    const char *axes = kvc_name_axes(o), *dtype = find_word(o, DTYPE);
    if (axes && check_axes(axes, e)) return -1;
    if (dtype &&
        (!kvc_name_dtype(o) || kvc_name_dtype(o)->block > 1 || kvc_name_dtype(o)->size > 2))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "map=dtype=%s: integers are the bits of bf16, f16, f8e4m3 or f8e5m2",
                        dtype);
    if (axes && !kvc_name_maps_attention(o) && (strchr(axes, 'l') || strchr(axes, 'c')))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "map=axes=%s: say which arrays: map=keys=NAME and map=values=NAME, or "
                        "map=kv=NAME of one with both",
                        axes);
    for (const char *const *map = maps_of(o); map && *map; map++) {
        const char *pattern = NULL;
        if (is_word(*map)) continue;
        unsigned r = rule_of_map(*map, &pattern);
        if (r == RULES)
            return kvc_fail(e, KVC_ERR_USAGE,
                            "map=%s: must begin with keys=, values=, kv=, queries=, hidden=, "
                            "tokens=, positions=, axes= or dtype=",
                            *map);
        const char *place = strstr(pattern, "{i}");
        if (!*pattern) return kvc_fail(e, KVC_ERR_USAGE, "map=%s: the pattern is empty", *map);
        int of_a_layer = rules[r].kind == KVC_NAME_TENSOR;
        if (!of_a_layer && place)
            return kvc_fail(e, KVC_ERR_USAGE, "map=%s: %s belong to no layer; take {i} out", *map,
                            rules[r].key);
        if (place && strstr(place + 3, "{i}"))
            return kvc_fail(e, KVC_ERR_USAGE, "map=%s: the pattern has {i} more than once", *map);
        if (arrays_names_is_attention(r) && check_attention(*map, r == RULE_KV, place, axes, e))
            return -1;
        if (of_a_layer && !place && !arrays_names_is_attention(r))
            return kvc_fail(e, KVC_ERR_USAGE,
                            "map=%s: the pattern needs {i} once, in place of the layer number",
                            *map);
    }
    return 0;
}

struct kvc_name kvc_name_of(const char *name, const struct kvc_import_options *o) {
    struct kvc_name found = {.kind = KVC_NAME_OTHER};
    int mapped[RULES] = {0};
    for (const char *const *map = maps_of(o); map && *map; map++) {
        const char *pattern = NULL;
        unsigned r = rule_of_map(*map, &pattern);
        if (r == RULES) continue;
        mapped[r] = 1;
        if (found.kind == KVC_NAME_OTHER && matches(pattern, name, &found.layer)) {
            found.kind = rules[r].kind;
            found.role = rules[r].role;
            found.both = r == RULE_KV;
        }
    }
    mapped[RULE_KEYS] = mapped[RULE_VALUES] = mapped[RULE_KEYS] || mapped[RULE_VALUES] ||
                                              mapped[RULE_KV];
    for (size_t i = 0;
         found.kind == KVC_NAME_OTHER && i < sizeof conventions / sizeof conventions[0]; i++) {
        if (mapped[conventions[i].rule] || !matches(conventions[i].pattern, name, &found.layer))
            continue;
        found.kind = rules[conventions[i].rule].kind;
        found.role = rules[conventions[i].rule].role;
        found.sliding = conventions[i].sliding;
    }
    return found;
}

void kvc_name_print(const struct kvc_name *name, char *text, size_t size) {
    const char *sliding = name->sliding ? "sliding." : "";
    if (name->kind == KVC_NAME_TOKENS) snprintf(text, size, "tokens");
    else if (name->kind == KVC_NAME_POSITIONS) snprintf(text, size, "%spositions", sliding);
    else if (name->role == KVC_ROLE_QUERIES) snprintf(text, size, "queries.%" PRIu32, name->layer);
    else if (name->role == KVC_ROLE_HIDDEN) snprintf(text, size, "hidden.%" PRIu32, name->layer);
    else
        snprintf(text, size, "%slayers.%" PRIu32 ".%s", sliding, name->layer,
                 name->role == KVC_ROLE_V ? "values" : "keys");
}
