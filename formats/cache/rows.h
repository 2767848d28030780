/* rows.h: compares the rows of K and V with the token ids, the padding mask and the sliding windows
 * that belong to them. Every way of packing and of storing asks here. Not for comparing two caches.
 */
#ifndef KVC_ROWS_H
#define KVC_ROWS_H

#include "formats/cache/cache.h"

/* What is doubtful about the rows of a cache. */
struct kvc_rows {
    uint64_t rows; /* of the first part, which has the longest layers */
    uint64_t ids;
    /* 1: more ids than rows and one, and nothing says which ids the rows are of */
    int other_ids;
    uint64_t zeros; /* last rows that are zero in all K and V, though the first is not */
    /* rows of the layers that are shorter, though nothing says that they have a window; 0: there
     * are none */
    uint64_t short_of;
    int has_model; /* 1: the model's architecture is known, so its windows would be */
    /* positions of rows that are no padding, by the file's mask: "100:400", "scattered"; belongs to
     * the metadata; NULL: all */
    const char *used;
};

/* Compares. Reads the last row of each K and V, and more only where the last is zero. An id more
 * than rows is usual: the last token has been sampled, not computed. */
int kvc_rows_look(struct kvc_rows *r, const struct kvc_cache *c, struct kvc_error *e);

/* Of metadata of positions [first, end): drops the note of padding where the range has none. */
void kvc_rows_cut(struct kvc_meta *meta, uint64_t first, uint64_t end);

/* Writes what is doubtful, and what to do, as one line without a full stop; "" where nothing is.
 * `by` goes before the option that helps: "kvc-pack ", or "" where kvc-pack asks. */
void kvc_rows_say(const struct kvc_rows *r, const char *by, char *text, size_t size);

/* Refuses a cache whose rows may be those of other tokens than its ids, or of none. Ids that end
 * before the rows do are no reason. */
int kvc_rows_refuse(const struct kvc_rows *r, struct kvc_error *e);

#endif
