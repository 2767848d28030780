/* arrays_beside.c: arrays that lie beside K and V: input_ids, attention_mask, and those whose meaning is unknown. Not for names
 * that say what an array is (arrays_names.c). */
#include "formats/engines/arrays_read.h"

#include "formats/cache/keys.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MOST_NAMES = 6 }; /* that are recorded; the others are counted */

#define IDS "input_ids"
#define MASK "attention_mask"

/* Returns the last part of a path of keys. */
static const char *last_part(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

int kvc_name_is_beside(const char *name) {
    return strcmp(last_part(name), IDS) == 0 || strcmp(last_part(name), MASK) == 0;
}

/* Returns the length of an array [T] or [1,T]; 0 of others. */
static uint64_t length_of(const struct kvc_array *a) {
    if (!a->in || !(a->rank == 1 || (a->rank == 2 && a->dim[0] == 1))) return 0;
    return a->dim[a->rank - 1];
}

static const struct kvc_array *find(struct kvc_array *array, size_t n, const char *last, size_t *at) {
    for (*at = 0; *at < n; ++*at)
        if (array[*at].meaning == KVC_NAME_OTHER && strcmp(last_part(array[*at].name), last) == 0) return &array[*at];
    return NULL;
}

const struct kvc_array *kvc_names_ids(const struct kvc_cache *c, struct kvc_array *array, size_t n) {
    size_t i;
    const struct kvc_array *a = find(array, n, IDS, &i);
    const uint64_t rows = c->part[0].cells.n, ids = a ? length_of(a) : 0;
    if (!a || c->tokens || !a->int_size || (ids != rows && ids != rows + 1)) return NULL;
    array[i].meaning = KVC_NAME_TOKENS;
    return a;
}

/* Describes the rows that a mask keeps: "" for all. Returns -1 where the mask's bytes cannot be read. */
static int read_mask(const struct kvc_array *a, uint64_t rows, char *text, size_t size, struct kvc_error *e) {
    const uint64_t n = length_of(a), stride = a->strided ? a->stride[a->rank - 1] : a->size / n;
    const uint64_t element = a->info ? a->info->size : a->int_size ? a->int_size : stride;
    uint64_t first = UINT64_MAX, end = 0, kept = 0;
    if (kvc_input_pin(a->in, a->at, a->size, e)) return -1;
    for (uint64_t i = 0; i < n && i < rows; i++) {
        int any = 0;
        for (uint64_t k = 0; k < element && i * stride + k < a->size; k++) any |= a->in->data[a->at + i * stride + k];
        if (!any) continue;
        if (first == UINT64_MAX) first = i;
        end = i + 1;
        kept++;
    }
    kvc_input_unpin(a->in, a->at, a->size);
    if (kept && kept == end - first) snprintf(text, size, "%" PRIu64 ":%" PRIu64, first, end);
    else snprintf(text, size, "scattered");
    if (kept == rows) *text = '\0';
    return 0;
}

/* Notes the padding of an attention_mask of whole numbers or truths, one for each row or one more. A mask without padding says
 * nothing. */
static int take_mask(struct kvc_cache *c, struct kvc_array *array, size_t n, struct kvc_error *e) {
    char used[48];
    size_t i;
    const struct kvc_array *a = find(array, n, MASK, &i);
    const uint64_t rows = c->part[0].cells.n, length = a ? length_of(a) : 0;
    if (!length || !a->size || (length != rows && length != rows + 1)) return 0;
    if (read_mask(a, rows, used, sizeof used, e)) return -1;
    if (*used) return kvc_meta_set_text(&c->meta, KVC_KEY_ROWS_USED, used, e);
    array[i].meaning = KVC_NAME_FACT;
    return 0;
}

/* Records the names of the arrays that have no meaning for kvc. */
static int note_others(struct kvc_cache *c, const struct kvc_array *array, size_t n, struct kvc_error *e) {
    char text[512] = "", shown[64], more[32];
    size_t others = 0;
    for (size_t i = 0; i < n; i++) {
        if (array[i].meaning != KVC_NAME_OTHER || others++ >= MOST_NAMES) continue;
        kvc_name_show(array[i].name, shown, sizeof shown);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", *text ? ", " : "", shown);
    }
    snprintf(more, sizeof more, " and %zu more", others - MOST_NAMES);
    if (others > MOST_NAMES) snprintf(text + strlen(text), sizeof text - strlen(text), "%s", more);
    return others ? kvc_meta_set_text(&c->meta, KVC_KEY_OTHER_ARRAYS, text, e) : 0;
}

int kvc_names_beside(struct kvc_cache *c, struct kvc_array *array, size_t n, struct kvc_error *e) {
    return take_mask(c, array, n, e) || note_others(c, array, n, e) ? -1 : 0;
}
