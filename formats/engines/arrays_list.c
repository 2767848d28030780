/* arrays_list.c: lists of arrays of one file or of several: names by member, and the source. Not
 * for taking arrays apart (arrays_split.c). */
#include "formats/engines/arrays_list.h"

#include "codecs/memory.h"
#include "formats/cache/mapped.h"
#include "formats/engines/import.h"
#include "formats/io/member_name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keeps a text until the list is cleared. Returns NULL and the error where there is no memory;
 * frees the text then. */
static const char *arrays_list_keep(struct kvc_array_list *list, char *text, struct kvc_error *e) {
    char **grown = text ? kvc_room_for_one(list->text, list->n_texts, sizeof *grown) : NULL;
    if (!grown) {
        free(text);
        kvc_fail_memory(e, "names");
        return NULL;
    }
    list->text = grown;
    return list->text[list->n_texts++] = text;
}

int kvc_arrays_add(struct kvc_array_list *list, const struct kvc_array *a, struct kvc_error *e) {
    const char *name = arrays_list_keep(list, strdup(a->name), e);
    struct kvc_array *grown = name ? kvc_room_for_one(list->array, list->n, sizeof *grown) : NULL;
    if (!grown) return name ? kvc_fail_memory(e, "arrays") : -1;
    list->array = grown;
    list->array[list->n] = *a;
    list->array[list->n++].name = name;
    return 0;
}

void kvc_arrays_clear(struct kvc_array_list *list) {
    for (size_t i = 0; i < list->n_texts; i++) free(list->text[i]);
    free(list->text);
    free(list->array);
    *list = (struct kvc_array_list){.n = 0};
}

/* --- names by member --- */

static int is_unknown(const struct kvc_array *a, const struct kvc_import_options *o) {
    return !a->known.kind && kvc_name_of(a->name, o).kind == KVC_NAME_OTHER &&
           !kvc_name_is_beside(a->name);
}

static int by_name(const void *pa, const void *pb) {
    const struct kvc_array *const *a = pa, *const *b = pb;
    return strcmp((*a)->name, (*b)->name);
}

/* Sets *clash to 1 if two members have arrays of one name without a meaning. */
static int find_clash(const struct kvc_array_list *list, const struct kvc_import_options *o,
                      int *clash, struct kvc_error *e) {
    const struct kvc_array **sorted = kvc_alloc(list->n, sizeof *sorted);
    size_t n = 0;
    *clash = 0;
    if (!sorted) return kvc_fail_memory(e, "names");
    for (size_t i = 0; i < list->n; i++)
        if (is_unknown(&list->array[i], o)) sorted[n++] = &list->array[i];
    if (n) qsort(sorted, n, sizeof *sorted, by_name);
    for (size_t i = 1; i < n; i++)
        *clash |= strcmp(sorted[i]->name, sorted[i - 1]->name) == 0 &&
                  sorted[i]->member != sorted[i - 1]->member;
    free(sorted);
    return 0;
}

/* Returns the length of a member's name without folders and without what comes after its last dot;
 * *from gets its begin. */
static int stem_of(const char *name, const char **from) {
    static const char *const words[][2] = {{"key", "keys"},     {"k", "keys"},   {"K", "keys"},
                                           {"value", "values"}, {"v", "values"}, {"V", "values"}};
    *from = kvc_base_name(name);
    const char *dot = strrchr(*from, '.');
    const int n = dot ? (int)(dot - *from) : (int)strlen(*from);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if ((size_t)n == strlen(words[i][0]) && memcmp(*from, words[i][0], (size_t)n) == 0)
            return (int)strlen(*from = words[i][1]);
    return n;
}

int kvc_arrays_name_members(struct kvc_array_list *list, const struct kvc_bundle *b,
                            const struct kvc_import_options *o, struct kvc_error *e) {
    const char *from;
    char *text;
    int clash = 0;
    if (!b->is_file && find_clash(list, o, &clash, e)) return -1;
    for (size_t i = 0; i < list->n; i++) {
        struct kvc_array *a = &list->array[i];
        if (b->is_file && !*a->name) a->name = "tensor";
        if (b->is_file || (*a->name && !(clash && is_unknown(a, o)))) continue;
        const int n = stem_of(b->member[a->member].name, &from);
        if (asprintf(&text, "%.*s%s%s", n, from, *a->name ? "." : "", a->name) < 0) text = NULL;
        if (!(a->name = arrays_list_keep(list, text, e))) return -1;
    }
    return 0;
}

/* --- the source --- */

int kvc_arrays_source(struct kvc_cache *c, const struct kvc_array_list *list,
                      const struct kvc_bundle *b, struct kvc_error *e) {
    for (size_t i = 0; i < list->n; i++)
        if (list->array[i].tensor != KVC_NONE &&
            list->array[i].in != b->member[list->array[i].member].in)
            return 0;
    for (size_t i = 0; i < b->n; i++) {
        const struct kvc_input *in = kvc_member_begin(c, b, i, e);
        if (!in || kvc_names_extents(c, list->array, list->n, in, e)) return -1;
    }
    return 0;
}

/* --- zips --- */

struct zips {
    size_t n;
    struct kvc_zip_members of[]; /* by member; empty where it is no zip, or not read */
};

static void free_zips(void *owner) {
    struct zips *zips = owner;
    for (size_t i = 0; i < zips->n; i++) kvc_zip_free(&zips->of[i]);
    free(zips);
}

struct kvc_cache *kvc_arrays_of_zips(const struct kvc_bundle *b, const struct kvc_import_options *o,
                                     kvc_arrays_zip_read *read, kvc_arrays_build *build,
                                     struct kvc_error *e) {
    struct kvc_array_list list = {.n = 0};
    if (kvc_name_check_map(o, e)) return NULL;
    struct kvc_cache *c = kvc_cache_new(e);
    struct zips *zips = kvc_alloc_after(sizeof *zips, b->n, sizeof *zips->of);
    if (!c || (zips ? kvc_cache_map(c, free_zips, zips, e) : kvc_fail_memory(e, "zips"))) {
        free(zips);
        return kvc_import_end(c, -1);
    }
    zips->n = b->n;
    int status = read(&list, zips->of, b, o, e);
    if (!status) status = build(c, &list, b, o, e);
    kvc_arrays_clear(&list);
    return kvc_import_end(c, status);
}
