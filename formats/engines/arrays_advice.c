/* arrays_advice.c: says why no array of a file is K or V, and what can be done, by the names and shapes that are there. Not for
 * reading arrays. */
#include "formats/engines/arrays_read.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PAIRS = 3, MOST_NAME = 128, MOST_LOOKS = 2048 };

/* Patterns of names of K and V. */
struct pair {
    char keys[MOST_NAME], values[MOST_NAME];
};

static int is_tensor(const struct kvc_array *a) {
    return a->rank == 4 && a->dim[0] == 1;
}

static int has_name(const struct kvc_array *array, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(array[i].name, name) == 0) return is_tensor(&array[i]) || !array[i].in;
    return 0;
}

/* Writes the name with the text [at, at + cut) replaced. Returns 0 if it has no room. */
static int replace(char *out, const char *name, size_t at, size_t cut, const char *by) {
    const int n = snprintf(out, MOST_NAME, "%.*s%s%s", (int)at, name, by, name + at + cut);
    return n > 0 && n < MOST_NAME;
}

/* Finds a pattern of V for the name of K whose number of the layer is name[at, at + digits). */
static int find_values(const struct kvc_array *array, size_t n, const char *name, size_t at, size_t digits, struct pair *pair) {
    static const char *const words[][2] = {{"keys", "values"}, {"key", "value"}, {"Key", "Value"},
                                           {"k", "v"},         {"K", "V"},       {"0", "1"}};
    char other[MOST_NAME];
    for (size_t w = 0; w < sizeof words / sizeof words[0]; w++) {
        const size_t length = strlen(words[w][0]);
        for (const char *p = strstr(name, words[w][0]); p; p = strstr(p + 1, words[w][0])) {
            const size_t begin = (size_t)(p - name);
            const int alone = !(begin && isalnum((unsigned char)p[-1])) && !isalnum((unsigned char)p[length]);
            if ((length == 1 && !alone) || (begin < at + digits && begin + length > at)) continue;
            if (!replace(other, name, begin, length, words[w][1]) || !has_name(array, n, other)) continue;
            const size_t shift = begin < at ? strlen(words[w][1]) - length : 0;
            return replace(pair->keys, name, at, digits, "{i}") && replace(pair->values, other, at + shift, digits, "{i}");
        }
    }
    return 0;
}

/* Lists the pairs of patterns under which layer 0 is there, each once. Returns their number, at most MOST_PAIRS + 1. */
static size_t find_pairs(const struct kvc_array *array, size_t n, struct pair *pair) {
    size_t found = 0;
    for (size_t i = 0; i < n && i < MOST_LOOKS && found <= MOST_PAIRS; i++) {
        const char *name = array[i].name;
        if (!is_tensor(&array[i]) && array[i].in) continue;
        for (size_t at = 0; name[at] && found <= MOST_PAIRS; at++) {
            const int number = name[at] == '0' && !(at && isdigit((unsigned char)name[at - 1])) &&
                               !isdigit((unsigned char)name[at + 1]);
            if (!number || !find_values(array, n, name, at, 1, &pair[found])) continue;
            found++;
            break;
        }
    }
    return found;
}

static int fail_pairs(const struct pair *pair, size_t n, struct kvc_error *e) {
    char others[2 * MOST_NAME] = "", shown[2][MOST_NAME];
    for (size_t i = 1; i < n && i < MOST_PAIRS; i++)
        snprintf(others + strlen(others), sizeof others - strlen(others), "%s%s", i > 1 ? ", " : "",
                 kvc_name_show(pair[i].keys, shown[0], sizeof shown[0]));
    kvc_name_show(pair[0].keys, shown[0], sizeof shown[0]);
    kvc_name_show(pair[0].values, shown[1], sizeof shown[1]);
    if (n == 1)
        return kvc_fail(e, KVC_ERR_UNKNOWN,
                        "no array has a name by which kvc knows K or V; --map='keys=%s' --map='values=%s' names them", shown[0],
                        shown[1]);
    return kvc_fail(e, KVC_ERR_UNKNOWN,
                    "the file holds several caches; --map='keys=%s' --map='values=%s' takes one of them; keys of others are %s%s",
                    shown[0], shown[1], others, n > MOST_PAIRS ? ", ..." : "");
}

/* Returns 1 if all names of tensors are texts and numbers after them, of one text: "arr_0", "0", "12". */
static int are_numbered(const struct kvc_array *array, size_t n, const char *text) {
    const size_t length = strlen(text);
    for (size_t i = 0; i < n; i++) {
        const char *name = array[i].name;
        if (strncmp(name, text, length) || !name[length] || name[length + strspn(name + length, "0123456789")]) return 0;
    }
    return n > 0;
}

/* Returns 1 if the names of half the arrays or more are those of weights of a model or of an adapter. */
static int are_weights(const struct kvc_array *array, size_t n) {
    static const char *const ends[] = {".weight", ".bias", ".qweight", ".scales", ".qzeros", ".g_idx", ".weight_scale_inv"};
    size_t weights = 0;
    for (size_t i = 0; i < n; i++) {
        const char *dot = strrchr(array[i].name, '.');
        for (size_t k = 0; dot && k < sizeof ends / sizeof ends[0]; k++)
            if (strcmp(dot, ends[k]) == 0) weights++;
    }
    return weights && 2 * weights >= n;
}

/* Says of arrays with more dimensions than those of a layer how to save them. */
static int fail_stacked(const struct kvc_array *a, struct kvc_error *e) {
    char what[320];
    return kvc_fail(e, KVC_ERR_UNKNOWN,
                    "%s has %" PRIu64
                    " dimensions, so all layers are in one array; save one array of a layer, [1, heads, tokens, head "
                    "dim]: {f'layers.{i}.keys': k[i], f'layers.{i}.values': v[i]} for each i",
                    kvc_array_describe(a, what, sizeof what), a->rank);
}

static int fail_names(const struct kvc_array *array, size_t n, struct kvc_error *e) {
    char list[320] = "", name[64];
    for (size_t i = 0; i < n && i < 4; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s'%s'", i ? ", " : "",
                 kvc_name_show(array[i].name, name, sizeof name));
    if (!n) return kvc_fail(e, KVC_ERR_UNKNOWN, "there are no arrays in it, so no KV cache");
    return kvc_fail_need(e, KVC_ERR_UNKNOWN, KVC_NEED_NAMES, "no array is named as K or V of a KV cache; found %s%s", list,
                         n > 4 ? ", ..." : "");
}

int kvc_names_unknown(const struct kvc_array *array, size_t n, int mapped, struct kvc_error *e) {
    struct pair pair[MOST_PAIRS + 1];
    const size_t pairs = find_pairs(array, n, pair);
    char name[64];
    if (mapped)
        return kvc_fail(e, KVC_ERR_UNKNOWN, "no array has a name of the patterns that are given (map); the first of %zu is '%s'",
                        n, n ? kvc_name_show(array->name, name, sizeof name) : "");
    if (are_weights(array, n))
        return kvc_fail(e, KVC_ERR_UNKNOWN, "the arrays are weights of a model or an adapter ('%s'), not a cache",
                        kvc_name_show(array->name, name, sizeof name));
    if (pairs) return fail_pairs(pair, pairs, e);
    for (size_t i = 0; i < n; i++)
        if (array[i].rank > 4 && array[i].rank < 8) return fail_stacked(&array[i], e);
    if (n && !*array->name)
        return kvc_fail(e, KVC_ERR_UNKNOWN,
                        "the file is one tensor without a name; save a dict: {'layers.0.keys': k, 'layers.0.values': v}");
    if (are_numbered(array, n, "arr_"))
        return kvc_fail(
            e, KVC_ERR_UNKNOWN,
            "the arrays have no names but 'arr_0' and so on, of numpy.savez(file, a, b); give names: numpy.savez(file, "
            "**{f'layers.{i}.keys': k[i], ...})");
    if (are_numbered(array, n, ""))
        return kvc_fail(e, KVC_ERR_UNKNOWN,
                        "the file is a list of tensors, which does not say whether they are K or V; save both lists in one file: "
                        "{'key_cache': keys, 'value_cache': values}");
    return fail_names(array, n, e);
}

int kvc_names_lone(const struct kvc_array *a, uint32_t layer, int is_k, struct kvc_error *e) {
    char one[320];
    kvc_array_describe(a, one, sizeof one);
    if (!is_k || a->dim[1] != 1)
        return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_NAMES, "layer %" PRIu32 " has %s but no %s (%s)", layer,
                             is_k ? "K" : "V", is_k ? "V" : "K", one);
    return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                    "layer %" PRIu32
                    " has K but no V (%s); if these are latents of a model with latent attention, which have one head and "
                    "no V, --latent takes them",
                    layer, one);
}
