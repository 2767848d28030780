/* arrays_advice.c: says why no array of a file is K or V, and what can be done, by the names and
 * shapes that are there. Not for reading arrays. */
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

/* Returns 1 if there is an array of this name and of the form of another one. Arrays that were not
 * read have no form. */
static int has_name(const struct kvc_array *array, size_t n, const char *name,
                    const struct kvc_array *like) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(array[i].name, name) == 0)
            return !array[i].in || (array[i].rank == like->rank && array[i].dim[0] == like->dim[0]);
    return 0;
}

/* Writes the name with the text [at, at + cut) replaced. Returns 0 if it has no room. */
static int replace(char *out, const char *name, size_t at, size_t cut, const char *by) {
    const int n = snprintf(out, MOST_NAME, "%.*s%s%s", (int)at, name, by, name + at + cut);
    return n > 0 && n < MOST_NAME;
}

/* Finds the name of V for a name of K, whose number of the layer is name[at, at + digits). *shift
 * gets how much longer V's name is before the number. */
static int find_other(const struct kvc_array *array, size_t n, const struct kvc_array *k, size_t at,
                      size_t digits, char other[MOST_NAME], size_t *shift) {
    const char *name = k->name;
    static const char *const words[][2] = {{"keys", "values"}, {"key", "value"}, {"Key", "Value"},
                                           {"k", "v"},         {"K", "V"},       {"0", "1"}};
    for (size_t w = 0; w < sizeof words / sizeof words[0]; w++) {
        const size_t length = strlen(words[w][0]);
        for (const char *p = strstr(name, words[w][0]); p; p = strstr(p + 1, words[w][0])) {
            const size_t begin = (size_t)(p - name);
            const int alone = !(begin && isalnum((unsigned char)p[-1])) &&
                              !isalnum((unsigned char)p[length]);
            if ((length == 1 && !alone) || (begin < at + digits && begin + length > at)) continue;
            if (!replace(other, name, begin, length, words[w][1]) || !has_name(array, n, other, k))
                continue;
            *shift = begin < at ? strlen(words[w][1]) - length : 0;
            return 1;
        }
    }
    return 0;
}

/* Finds the patterns of K and V for an array of K. */
static int find_values(const struct kvc_array *array, size_t n, const struct kvc_array *k,
                       size_t at, struct pair *pair) {
    char other[MOST_NAME];
    size_t shift;
    return find_other(array, n, k, at, 1, other, &shift) &&
           replace(pair->keys, k->name, at, 1, "{i}") &&
           replace(pair->values, other, at + shift, 1, "{i}");
}

/* Lists the pairs of patterns under which layer 0 is there, each once. Returns their number, at
 * most MOST_PAIRS + 1. */
static size_t find_pairs(const struct kvc_array *array, size_t n, struct pair *pair) {
    size_t found = 0;
    for (size_t i = 0; i < n && i < MOST_LOOKS && found <= MOST_PAIRS; i++) {
        const char *name = array[i].name;
        if (!is_tensor(&array[i]) && array[i].in) continue;
        for (size_t at = 0; name[at] && found <= MOST_PAIRS; at++) {
            const int number = name[at] == '0' && !(at && isdigit((unsigned char)name[at - 1])) &&
                               !isdigit((unsigned char)name[at + 1]);
            if (!number || !find_values(array, n, &array[i], at, &pair[found])) continue;
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
        return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT,
                        "no array has a name by which kvc knows K or V; --map='keys=%s' "
                        "--map='values=%s' names them",
                        shown[0], shown[1]);
    return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT,
                    "the file holds several caches; --map='keys=%s' --map='values=%s' takes one of "
                    "them; keys of others are %s%s",
                    shown[0], shown[1], others, n > MOST_PAIRS ? ", ..." : "");
}

/* Returns 1 if all names of tensors are texts and numbers after them, of one text: "arr_0", "0",
 * "12". */
static int are_numbered(const struct kvc_array *array, size_t n, const char *text) {
    const size_t length = strlen(text);
    for (size_t i = 0; i < n; i++) {
        const char *name = array[i].name;
        if (strncmp(name, text, length) || !name[length] ||
            name[length + strspn(name + length, "0123456789")])
            return 0;
    }
    return n > 0;
}

/* Returns 1 if the names of half the arrays or more are those of weights of a model or of an
 * adapter. */
static int are_weights(const struct kvc_array *array, size_t n) {
    static const char *const ends[] = {".weight", ".bias",  ".qweight",         ".scales",
                                       ".qzeros", ".g_idx", ".weight_scale_inv"};
    size_t weights = 0;
    for (size_t i = 0; i < n; i++) {
        const char *dot = strrchr(array[i].name, '.');
        for (size_t k = 0; dot && k < sizeof ends / sizeof ends[0]; k++)
            if (strcmp(dot, ends[k]) == 0) weights++;
    }
    return weights && 2 * weights >= n;
}

/* Returns the axes that an array of all layers may have; NULL: there are none that kvc reads. */
static const char *axes_of(const struct kvc_array *a, int both) {
    if (!both)
        return a->rank == 4     ? "lhtd"
               : a->rank != 5   ? NULL
               : a->dim[1] == 1 ? "lbhtd"
               : a->dim[0] == 1 ? "blhtd"
                                : NULL;
    if (a->rank == 5) return a->dim[1] == 2 ? "lchtd" : a->dim[0] == 2 ? "clhtd" : NULL;
    if (a->rank != 6 || a->dim[2] != 1) return NULL;
    return a->dim[1] == 2 ? "lcbhtd" : a->dim[0] == 2 ? "clbhtd" : NULL;
}

#define LETTERS "if that is the order of its axes: l layer, %sb batch, h head, t token, d channel"

static int is_stacked(const struct kvc_array *a) {
    return a->in && a->rank > 3 && a->rank < 7 && !is_tensor(a);
}

/* Says of an array of all layers how to read it. Returns 1 where it is none. */
static int fail_stacked(const struct kvc_array *array, size_t n, const struct kvc_array *a,
                        struct kvc_error *e) {
    char what[320], other[MOST_NAME], shown[2][MOST_NAME];
    size_t shift;
    int pair = find_other(array, n, a, strlen(a->name), 0, other, &shift);
    if (!pair && n == 2 && a == array && array[1].rank == a->rank &&
        memcmp(a->dim, array[1].dim, a->rank * sizeof *a->dim) == 0)
        pair = snprintf(other, sizeof other, "%s", array[1].name) < MOST_NAME;
    const char *axes = axes_of(a, !pair);
    if (!axes) return 1;
    kvc_array_describe(a, what, sizeof what);
    kvc_name_show(a->name, shown[0], sizeof shown[0]);
    if (!pair)
        return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT,
                        "%s holds all layers; --map='kv=%s' --map=axes=%s reads it, " LETTERS, what,
                        shown[0], axes, "c K and V, ");
    return kvc_fail(
        e, KVC_ERR_UNKNOWN_FORMAT,
        "%s holds all layers; --map='keys=%s' --map='values=%s' --map=axes=%s reads it, " LETTERS,
        what, shown[0], kvc_name_show(other, shown[1], sizeof shown[1]), axes, "");
}

static int fail_names(const struct kvc_array *array, size_t n, struct kvc_error *e) {
    char list[320] = "", name[64];
    for (size_t i = 0; i < n && i < 4; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s'%s'", i ? ", " : "",
                 kvc_name_show(array[i].name, name, sizeof name));
    if (!n) return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "there are no arrays in it, so no KV cache");
    return kvc_fail_need(e, KVC_ERR_UNKNOWN_FORMAT, KVC_NEED_NAMES,
                         "no array is named as K or V of a KV cache; found %s%s", list,
                         n > 4 ? ", ..." : "");
}

int kvc_names_unknown(const struct kvc_array *array, size_t n, int mapped, struct kvc_error *e) {
    struct pair pair[MOST_PAIRS + 1];
    const size_t pairs = find_pairs(array, n, pair);
    char name[64];
    if (mapped)
        return kvc_fail(
            e, KVC_ERR_UNKNOWN_FORMAT,
            "no array has a name of the patterns that are given (map); the first of %zu is '%s'", n,
            n ? kvc_name_show(array->name, name, sizeof name) : "");
    if (are_weights(array, n))
        return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT,
                        "the arrays are weights of a model or an adapter ('%s'), not a cache",
                        kvc_name_show(array->name, name, sizeof name));
    if (pairs) return fail_pairs(pair, pairs, e);
    for (size_t i = 0; i < n && i < MOST_LOOKS; i++)
        if (is_stacked(&array[i]) && fail_stacked(array, n, &array[i], e) < 0) return -1;
    if (n == 1 && strcmp(array->name, "tensor") == 0)
        return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT,
                        "the file is one tensor without a name; save a dict: {'layers.0.keys': k, "
                        "'layers.0.values': v}");
    if (are_numbered(array, n, "arr_"))
        return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT,
                        "the arrays have no names but 'arr_0' and so on, of numpy.savez(file, a, "
                        "b); give names: numpy.savez(file, **{f'layers.{i}.keys': k[i], ...})");
    if (are_numbered(array, n, ""))
        return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT,
                        "the file is a list of tensors, which does not say whether they are K or "
                        "V; give the folder, or a tar archive, of it and of the other list, with "
                        "the names keys and values: keys.pt, values.pt");
    return fail_names(array, n, e);
}

int kvc_names_lone(const struct kvc_array *a, uint32_t layer, int is_k, struct kvc_error *e) {
    char one[320];
    kvc_array_describe(a, one, sizeof one);
    if (!is_k || a->dim[1] != 1)
        return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_NAMES,
                             "layer %" PRIu32 " has %s but no %s (%s)", layer, is_k ? "K" : "V",
                             is_k ? "V" : "K", one);
    return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                    "layer %" PRIu32
                    " has K but no V (%s); if these are latents of a model with latent attention, "
                    "which have one head and no V, --latent takes them",
                    layer, one);
}
