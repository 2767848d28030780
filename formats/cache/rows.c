/* rows.c: compares rows with token ids, padding and windows. */
#include "formats/cache/rows.h"

#include "codecs/memory.h"
#include "formats/cache/facts.h"
#include "formats/cache/keys.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- rows of zeros --- */

static int is_zero(const uint8_t *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (bytes[i]) return 0;
    return 1;
}

/* Sets *zeros to the number of zero rows at the end of a tensor, at most *zeros. */
static int count_zeros(const struct kvc_cache *c, uint32_t t, uint64_t *zeros,
                       struct kvc_error *e) {
    const uint64_t rows = c->tensor[t].shape.tokens, most = *zeros,
                   row = kvc_row_bytes(&c->tensor[t].shape);
    uint8_t *bytes = kvc_alloc(KVC_BLOCK, row);
    if (!bytes) return kvc_fail_memory(e, "rows");
    int status = 0, more = 1;
    for (*zeros = 0; *zeros < most && more && !status;) {
        uint64_t n = *zeros ? KVC_BLOCK : 1; /* mostly the last row decides */
        if (n > most - *zeros) n = most - *zeros;
        status = c->read(c, t, rows - *zeros - n, n, bytes, e);
        for (uint64_t i = n; i-- > 0 && more && !status;) {
            more = is_zero(bytes + i * row, (size_t)row);
            *zeros += (uint64_t)more;
        }
    }
    free(bytes);
    return status;
}

static int is_counted(const struct kvc_cache *c, uint32_t t) {
    return kvc_tensor_layer(c, t)->part == 0 && c->tensor[t].role <= KVC_ROLE_LATENT;
}

/* Counts the last rows that are zero in all tensors of part 0. Of a cache of zeros alone, none are.
 */
static int find_zeros(struct kvc_rows *r, const struct kvc_cache *c, struct kvc_error *e) {
    uint64_t zeros = r->rows;
    int any = 0;
    for (uint32_t t = 0; t < c->n_tensors && zeros && c->read; t++) {
        if (!is_counted(c, t)) continue;
        any = 1;
        if (count_zeros(c, t, &zeros, e)) return -1;
    }
    r->zeros = any && zeros < r->rows ? zeros : 0;
    return 0;
}

/* --- the others --- */

/* Returns 1 if the positions are 0, 1, 2, ... and no file has said so. */
static int positions_assumed(const struct kvc_cache *c) {
    const struct kvc_cells *cells = &c->part[0].cells;
    if (c->meta.facts.of_llama || c->meta.facts.positions_given) return 0;
    return cells->n && !kvc_cells_position(cells, 0) &&
           kvc_cells_position(cells, cells->n - 1) == (int64_t)cells->n - 1;
}

static uint64_t find_short(const struct kvc_cache *c) {
    if (!c->meta.facts.window_assumed || c->meta.facts.window) return 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (c->part[c->layer[i].part].kind == KVC_PART_WINDOW && !c->layer[i].window)
            return c->part[c->layer[i].part].cells.n;
    return 0;
}

int kvc_rows_look(struct kvc_rows *r, const struct kvc_cache *c, struct kvc_error *e) {
    *r = (struct kvc_rows){.ids = c->n_tokens};
    if (!c->n_parts || c->part[0].kind > KVC_PART_WINDOW) return 0;
    for (uint32_t i = 1; i < c->n_parts; i++)
        if (c->part[i].stream && c->part[i].cells.n) return 0; /* ids are of one sequence */
    r->rows = c->part[0].cells.n;
    r->used = c->meta.facts.rows_used;
    r->has_model = c->meta.facts.architecture != NULL;
    r->short_of = find_short(c);
    r->other_ids = r->ids > r->rows + 1 && positions_assumed(c);
    return find_zeros(r, c, e);
}

void kvc_rows_cut(struct kvc_meta *meta, uint64_t first, uint64_t end) {
    uint64_t from, to;
    const char *used = meta->facts.rows_used;
    if (used && sscanf(used, "%" SCNu64 ":%" SCNu64, &from, &to) == 2 && first >= from && end <= to)
        kvc_meta_remove(meta, KVC_KEY_ROWS_USED);
}

/* --- in words --- */

__attribute__((format(printf, 3, 4))) static void add(char *text, size_t size, const char *format,
                                                      ...) {
    const size_t used = strlen(text);
    va_list ap;
    if (used + 3 >= size) return;
    va_start(ap, format);
    if (used) memcpy(text + used, "; ", 3);
    vsnprintf(text + used + (used ? 2 : 0), size - used - (used ? 2 : 0), format, ap);
    va_end(ap);
}

static void say_other_ids(const struct kvc_rows *r, const char *by, char *text, size_t size) {
    add(text, size,
        "%" PRIu64 " token ids for %" PRIu64
        " rows, and nothing says which ids the rows are of: an array 'positions' does; if the "
        "others have no rows yet, %s--tokens=0:%" PRIu64,
        r->ids, r->rows, by, r->rows);
}

static void say_zeros(const struct kvc_rows *r, const char *by, char *text, size_t size) {
    add(text, size,
        "the last %" PRIu64 " of %" PRIu64
        " rows are zeros, as in a static cache that is not full: %s--tokens=0:%" PRIu64
        " leaves them out",
        r->zeros, r->rows, by, r->rows - r->zeros);
}

static void say_padding(const struct kvc_rows *r, const char *by, char *text, size_t size) {
    if (strcmp(r->used, "scattered") == 0)
        add(text, size,
            "attention_mask leaves out rows between others: padding that no token range takes out");
    else
        add(text, size, "attention_mask leaves out all rows but %s as padding: %s--tokens=%s%s",
            r->used, by, r->used,
            strncmp(r->used, "0:", 2)
                ? " (where K was rotated for positions from 0 on, an array position_ids says so)"
                : "");
}

static void say_short(const struct kvc_rows *r, char *text, size_t size) {
    add(text, size,
        "some layers have %" PRIu64 " rows and others %" PRIu64
        ", and nothing says that a sliding window left the others out%s",
        r->short_of, r->rows,
        r->has_model ? "" : " (--model, or sliding_window in the file, does)");
}

void kvc_rows_say(const struct kvc_rows *r, const char *by, char *text, size_t size) {
    *text = '\0';
    if (r->other_ids) say_other_ids(r, by, text, size);
    if (r->ids && r->ids < r->rows && r->ids != r->rows - r->zeros)
        add(text, size, "%" PRIu64 " token ids for %" PRIu64 " rows: the last rows have none",
            r->ids, r->rows);
    if (r->zeros) say_zeros(r, by, text, size);
    if (r->used) say_padding(r, by, text, size);
    if (r->short_of) say_short(r, text, size);
}

int kvc_rows_refuse(const struct kvc_rows *r, struct kvc_error *e) {
    char text[800] = "";
    if (r->other_ids) say_other_ids(r, "kvc-pack ", text, sizeof text);
    if (r->zeros && r->ids > r->rows - r->zeros) say_zeros(r, "kvc-pack ", text, sizeof text);
    if (r->used) say_padding(r, "kvc-pack ", text, sizeof text);
    if (r->short_of) say_short(r, text, sizeof text);
    return *text ? kvc_fail(e, KVC_ERR_USAGE, "%s", text) : 0;
}
