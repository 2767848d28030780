/* comparing.h: a comparison of two caches, step by step (formats/api/kvc_comparing.h): the one
 * order of matching, aligning and measuring, under kvc_file_compare() and kvc-diff. */
#ifndef KVC_COMPARING_H
#define KVC_COMPARING_H

#include "formats/compare/attend.h"
#include "formats/compare/groups.h"

/* The caller sets the caches of `pairs`, the selection, `options` with names, and the fields up to
 * `groups`. */
struct kvc_comparing {
    struct kvc_pairs pairs;
    struct kvc_compare_options options;
    int every;                       /* metadata and the rest: everything, not meaning alone */
    const struct kvc_cache *queries; /* NULL: those of a, or of b */
    struct kvc_cache *estimated;     /* queries, owned; NULL: none were estimated */
    struct kvc_groups groups;
    struct kvc_align align;
    struct kvc_attended attended;
};

/* Finds the pairs. Refuses a selection that reaches nothing. */
int kvc_comparing_begin(struct kvc_comparing *c, struct kvc_error *e);
/* Returns 1 if the token ids of both, at the positions that are compared, are not the same, 0 if
 * they are or one has none, or -1. */
int kvc_comparing_ids_differ(const struct kvc_comparing *c, struct kvc_error *e);
/* Returns the cache with queries, or NULL and *e. */
const struct kvc_cache *kvc_comparing_queries(const struct kvc_comparing *c, struct kvc_error *e);

#endif
