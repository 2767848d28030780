/* arrays_beside.c: arrays that lie beside K and V: input_ids, position_ids, attention_mask, and
 * those whose meaning is unknown. Not for names that say what an array is (arrays_names.c). */
#include "formats/engines/arrays_read.h"

#include "formats/cache/keys.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MOST_NAMES = 6 }; /* that are recorded; the others are counted */

#define IDS "input_ids"
#define MASK "attention_mask"
#define POSITIONS "position_ids"

/* Returns the last part of a path of keys. */
static const char *last_part(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

int kvc_name_is_beside(const char *name) {
    const char *last = last_part(name);
    return strcmp(last, IDS) == 0 || strcmp(last, MASK) == 0 || strcmp(last, POSITIONS) == 0;
}

/* Returns the length of an array [T], [1,T] and so on; 0 of others. */
static uint64_t length_of(const struct kvc_array *a) {
    if (!a->in || !a->rank || a->rank > KVC_ARRAY_RANK) return 0;
    for (uint64_t i = 0; i + 1 < a->rank; i++)
        if (a->dim[i] != 1) return 0;
    return a->dim[a->rank - 1];
}

/* Returns the array of a name that has `rows` entries, or one more where `more` is 1, and no
 * meaning yet. */
static struct kvc_array *arrays_beside_find(struct kvc_array *array, size_t n, const char *last,
                                            uint64_t rows, int more) {
    for (size_t i = 0; i < n; i++) {
        if (array[i].meaning != KVC_NAME_OTHER || strcmp(last_part(array[i].name), last) != 0)
            continue;
        const uint64_t length = length_of(&array[i]);
        if (length && array[i].size && (length == rows || (more && length == rows + 1)))
            return &array[i];
    }
    return NULL;
}

const struct kvc_array *kvc_names_ids(const struct kvc_cache *c, struct kvc_array *array,
                                      size_t n) {
    struct kvc_array *a = c->tokens ? NULL
                                    : arrays_beside_find(array, n, IDS, c->part[0].cells.n, 1);
    if (!a || !a->int_size || a->rank > 2) return NULL;
    a->meaning = KVC_NAME_TOKENS;
    return a;
}

const struct kvc_array *kvc_names_position_ids(struct kvc_array *array, size_t n, uint64_t rows) {
    struct kvc_array *a = arrays_beside_find(array, n, POSITIONS, rows, 0);
    if (!a || !a->int_size || a->rank > 2) return NULL;
    a->meaning = KVC_NAME_POSITIONS;
    return a;
}

/* --- attention_mask --- */

/* The rows that a mask keeps: `kept` rows from `first` to before `end`. */
struct kept {
    uint64_t first, end, rows;
};

/* Returns 1 if an entry is not zero; *negative: it is a number below zero. */
static int is_set(const struct kvc_array *a, uint64_t i, int *negative) {
    const uint64_t stride = a->strided ? a->stride[a->rank - 1] : a->size / length_of(a);
    const uint64_t element = a->info ? a->info->size : a->int_size ? a->int_size : stride;
    int any = 0;
    *negative = 0;
    for (uint64_t k = 0; k < element && i * stride + k < a->size; k++) {
        const uint8_t byte = a->in->data[a->at + i * stride + k];
        any |= byte;
        *negative = byte >> 7;
    }
    *negative = *negative && any;
    return any != 0;
}

/* Finds the rows that a mask keeps. A mask of floating-point numbers that has negative ones is
 * added to scores: 0 keeps a row. */
static int read_mask(const struct kvc_array *a, uint64_t rows, struct kept *kept,
                     struct kvc_error *e) {
    int negative, adds = 0;
    if (kvc_input_pin(a->in, a->at, a->size, e)) return -1;
    for (uint64_t i = 0; i < rows && a->info && a->info->floating && !adds; i++)
        adds = is_set(a, i, &negative) && negative;
    *kept = (struct kept){.first = rows};
    for (uint64_t i = 0; i < rows; i++) {
        if (is_set(a, i, &negative) == adds) continue;
        if (!kept->rows++) kept->first = i;
        kept->end = i + 1;
    }
    kvc_input_unpin(a->in, a->at, a->size);
    return 0;
}

/* Returns 1 if the rows that are kept follow each other, and their positions do so from one on that
 * a token can have. */
static int is_run(const struct kvc_cells *cells, const struct kept *kept) {
    if (!kept->rows || kept->rows != kept->end - kept->first) return 0;
    const int64_t first = cells->pos[kept->first];
    if (first < 0 || (uint64_t)first > KVC_MAX_CELLS) return 0;
    for (uint64_t i = 1; i < kept->rows; i++)
        if (cells->pos[kept->first + i] != first + (int64_t)i) return 0;
    return 1;
}

int kvc_names_pad_positions(struct kvc_cells *cells, struct kvc_array *array, size_t n,
                            struct kvc_error *e) {
    struct kept kept;
    const struct kvc_array *a = arrays_beside_find(array, n, MASK, cells->n, 1);
    if (!a) return 0;
    if (read_mask(a, cells->n, &kept, e)) return -1;
    if (!is_run(cells, &kept)) return 0;
    const int64_t shift = cells->pos[kept.first] - (int64_t)kept.first;
    for (uint64_t i = 0; i < cells->n; i++)
        if (i < kept.first || i >= kept.end) cells->pos[i] = (int64_t)i + shift;
    return 0;
}

/* Notes the padding of an attention_mask. A mask without padding says nothing. */
static int take_mask(struct kvc_cache *c, struct kvc_array *array, size_t n, struct kvc_error *e) {
    char used[48] = "scattered";
    struct kept kept;
    const struct kvc_cells *cells = &c->part[0].cells;
    struct kvc_array *a = arrays_beside_find(array, n, MASK, cells->n, 1);
    if (!a) return 0;
    if (read_mask(a, cells->n, &kept, e)) return -1;
    if (is_run(cells, &kept))
        snprintf(used, sizeof used, "%" PRId64 ":%" PRId64, cells->pos[kept.first],
                 cells->pos[kept.end - 1] + 1);
    if (kept.rows < cells->n) return kvc_meta_set_text(&c->meta, KVC_KEY_ROWS_USED, used, e);
    a->meaning = KVC_NAME_FACT;
    return 0;
}

static int note_others(struct kvc_cache *c, const struct kvc_array *array, size_t n,
                       struct kvc_error *e) {
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
    if (take_mask(c, array, n, e) || note_others(c, array, n, e)) return -1;
    return 0;
}
